"""The page of learns_from_text.py: what was measured beside what should be, and what attention does not show."""

import math

import numpy as np
from _cli import numbers, table, title
from _corpus import RELATIONS, ROLES, STORY
from rich.console import Console

WORDS = list(RELATIONS)
SHOWN = 4  # steps of training in a table, beside the last
CLUES = {"river", "water", "money", "deposit"}  # of the sentences in STORY


def show(console: Console, r: dict) -> None:
    n = r["sentences"]
    title(console, f"{n['train']} sentences to learn from, {n['held']} held out, {n['new']} of words never seen")
    console.print(f"such as: {STORY[0]}\n     or: {STORY[1]}")
    readers = "1 reader" if r["readers"] == 1 else f"{r['readers']} readers"
    console.print(f"{readers} of each kind, {r['at'][-1]} steps of Adam; (least to most) of them.")
    accuracy(console, r["kinds"])
    attention_to_clues(console, r)
    for s in range(len(STORY)):
        one_story(console, r, s)
    title(console, "What attention does not show")
    for line in not_shown(r):
        console.print(f"- {line}")
    console.print("\nPictures: " + ", ".join(r["pictures"]), soft_wrap=True)


def spread(x: dict, i: tuple = ()) -> str:
    """The mean, and from the least to the most."""
    mean, least, most = (float(np.mean(np.array(x[key])[i])) for key in ("mean", "least", "most"))
    return f"{mean:.0%}" if round(100 * least) == round(100 * most) else f"{mean:.0%} ({least:.0%} to {most:.0%})"


def accuracy(console: Console, kinds: dict) -> None:
    title(console, "Read rightly: what was measured beside what should be")
    right = {kind: x["right"] for kind, x in kinds.items()}
    rows = [
        ["held-out sentences", spread(right["reader"]["held"]), "above 50%, a coin"],
        ["  attention held uniform", spread(right["uniform"]["held"]), "50% if it needed attention"],
        ["  sees positions alone", spread(right["positions"]["held"]), "50% exactly: twins"],
        ["  may not attend its clues", spread(right["reader"]["cut"]), "50% exactly: twins"],
        ["clues it was never trained on", spread(right["reader"]["new"]), "near 50%: nothing to go by"],
    ]
    console.print(table(["", "measured", "should be"], rows))
    loss = kinds["positions"]["loss"]["train"]["mean"]
    console.print(f"Positions alone leave a training loss of {loss:.4f}; ln 2 = {math.log(2):.4f} is that of a coin.")


def shown_steps(r: dict) -> list[int]:
    """The places in r["at"] of the steps that a table has: the first, some of the first half, the last."""
    last = len(r["at"]) - 1
    early = np.linspace(0, last, 2 * SHOWN - 1)[1:SHOWN]
    return sorted({0, *(int(i) for i in early), last})


def attention_to_clues(console: Console, r: dict) -> None:
    title(console, "Attention to the clues, in held-out sentences (mean of the readers)")
    at = shown_steps(r)
    on_clue = {kind: np.array(x["on_clue"]["mean"]) for kind, x in r["kinds"].items()}  # [step, word]
    rows = []
    for i, word in enumerate(WORDS):
        shares = [*on_clue["reader"][at, i], on_clue["uniform"][-1, i], on_clue["positions"][-1, i]]
        rows.append([f"{word}: {ROLES[word]}", *(f"{x:.2f}" for x in shares)])
    console.print(table(["step", *(str(r["at"][j]) for j in at), "uniform", "positions"], rows))
    console.print("uniform: what a mean over the sentence gives them; positions: what the blinded reader does.")


def one_story(console: Console, r: dict, s: int) -> None:
    """Bank's attention in the sentence of number s, along training."""
    reader, words, at = r["kinds"]["reader"], STORY[s].split(), shown_steps(r)
    title(console, f"bank in “{STORY[s]}”" + (", never trained on" if s < 2 else ": a clue of either sense"))
    clues = [j for j, word in enumerate(words) if word in CLUES]
    weights = np.array(reader["story"]["mean"])[at, s]  # [step, word]
    rows = []
    for j in clues:
        rows.append([words[j], *(f"{x:.2f}" for x in weights[:, j]), spread(reader["story"], (-1, s, j))])
    rest = 1 - weights[:, clues].sum(1)
    rows.append(["all other words", *numbers(rest, 2), ""])
    console.print(table(["step", *(str(r["at"][j]) for j in at), "readers differ"], rows))
    console.print(f"It is read as the river's with probability {spread(reader['sense'], (s,))}.")


def not_shown(r: dict) -> list[str]:
    k = r["kinds"]
    share = {key: np.array(k["reader"]["on_clue"][key])[-1] for key in ("mean", "least", "most")}
    wide = int((share["most"] - share["least"]).argmax())
    river, money = (float(np.array(k["reader"]["story"]["mean"])[-1, s, [1, 4]].sum()) for s in (0, 1))
    uniform, reader = (float(np.mean(k[kind]["right"]["held"]["mean"])) for kind in ("uniform", "reader"))
    cut = float(np.mean(k["reader"]["right"]["cut"]["mean"]))
    looks = "is much the same; what it finds there differs" if abs(river - money) < 0.25 else "differs as well"
    carry = "The values carry the sense; attention makes the sum cleaner"
    if reader <= uniform:
        carry = "Attention does not make the sum cleaner here"
    right, both = spread(k["reader"]["right"]["held"]), spread(k["reader"]["sense"], (2,))
    unique, agree = "one reader cannot show it: take --readers 2 or more", "what others would say, one cannot show"
    if r["readers"] > 1:
        given = f"from {share['least'][wide]:.0%} to {share['most'][wide]:.0%}"
        unique = f"readers that are right of {right} give the clues of {WORDS[wide]!r} {given} of their attention"
        least, most = (np.array(k["reader"]["story"][key])[-1, 2, 1] for key in ("least", "most"))
        agree = f"by the reader, river has from {least:.0%} to {most:.0%} of its attention"
    return [
        f"That it is needed: a reader whose attention is held uniform is right of {uniform:.0%}, one that is free of "
        f"{reader:.0%}. {carry}.",
        f"Which sense it is: bank gives {river:.0%} to river and water, and {money:.0%} to money and deposit. Where it "
        f"looks {looks}.",
        f"Anything unique: {unique}.",
        f"Knowledge: of a clue never trained on it is right {spread(k['reader']['right']['new'])}, however much it "
        "attends to it.",
        f"Certainty: with a clue of either sense it says river with {both}; {agree}.",
        f"Language: 4 words, 32 templates. With its clues cut off the reader is right of {cut:.0%} in place of "
        f"{reader:.0%}, and that is the test that counts.",
    ]
