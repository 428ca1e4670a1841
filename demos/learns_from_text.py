"""Attention that learns from text: bank, river and money; verbs and objects, pronouns and nouns, adjectives and nouns.

One head, with embeddings, W_Q, W_K and W_V from nothing, is trained to say what a word means in its sentence: a bank
of the river or of money, what was broke(n), what "it" is, what is bright. Nobody tells it where to look. Beside it
learn a reader whose attention is held uniform and one that sees positions alone; all are judged on sentences that none
was trained on. The sentences are the project's own, in twins that differ by their clues alone.
Wiegreffe and Pinter 2019, "Attention is not not explanation".
"""

import argparse
import math

import _cli
import jax
import numpy as np
from _cli import BadInput, table
from _corpus import RELATIONS, ROLES, STORY, corpus
from _reader import KINDS, train_all
from _text_picture import draw
from jax import random
from rich.console import Console

from jattn import figures

WORDS = list(RELATIONS)
SHOWN = 4  # steps of training in a table, beside the last


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--steps", type=int, default=160, help="of Adam, 20 to 2000 (default: 160)")
    parser.add_argument("--readers", type=int, default=6, help="of each kind, 1 to 64 (default: 6)")
    parser.add_argument("--rate", type=float, default=0.01, help="the learning rate (default: 0.01)")
    _cli.add_out(parser, "the picture")
    _cli.add_seed(parser, "what is held out and of the readers", default=0)
    return parser


def over(x: jax.Array) -> dict[str, np.ndarray]:
    """Of a leaf [readers, ...]: the mean reader, the least and the most."""
    x = np.asarray(x)
    return {"mean": x.mean(0), "least": x.min(0), "most": x.max(0)}


def compute(args: argparse.Namespace) -> dict:
    for name, low, high in (("steps", 20, 2000), ("readers", 1, 64)):
        if not low <= getattr(args, name) <= high:
            raise BadInput(f"--{name} {getattr(args, name)}: must be from {low} to {high}. Leave it out.")
    if not 0 < args.rate < math.inf:
        raise BadInput(f"--rate {args.rate:g}: must be a number above 0. Leave it out for 0.01.")
    _cli.check_folder(args.out)
    (c, words), every = corpus(args.seed), max(1, args.steps // 40)
    keys, size = random.split(random.key(args.seed), args.readers), {"words": len(words), "steps": args.steps}
    path, verdict = train_all(keys, c, args.rate, every=every, **size)
    if not all(np.isfinite(x).all() for x in jax.tree.leaves(verdict)):
        raise BadInput(f"--rate {args.rate:g}: the training left what floating point can hold. Give a smaller rate.")
    kinds = {}
    for k, kind in enumerate(KINDS):
        of = {name: seen for name, seen in verdict.items() if name != "story"}
        kinds[kind] = {
            "loss": {name: over(seen.loss[k]) for name, seen in of.items()},
            "right": {name: over(seen.right[k]) for name, seen in of.items()},
            "on_clue": over(path["held"].on_clue[k]), "learning": over(path["held"].right[k]),
            "story": over(path["story"][k]), "sense": over(verdict["story"][k]),
        }  # fmt: skip
    results = {
        "at": [every * i for i in range(len(path["train"][0, 0]))], "readers": args.readers, "rate": args.rate,
        "sentences": {name: len(getattr(c, name).n) for name in ("train", "held", "new")}, "kinds": kinds,
        "each_story": np.asarray(path["story"][0]),
    }  # fmt: skip
    picture = args.out / "learns_from_text"
    results["pictures"] = _cli.save(args.out, lambda: figures.save(draw(results), picture))
    return results


def spread(x: dict, i: tuple = ()) -> str:
    """The mean, and from the least to the most."""
    mean, least, most = (float(np.mean(np.array(x[key])[i])) for key in ("mean", "least", "most"))
    return f"{mean:.0%}" if round(100 * least) == round(100 * most) else f"{mean:.0%} ({least:.0%} to {most:.0%})"


def show(console: Console, r: dict) -> None:
    k, n = r["kinds"], r["sentences"]
    _cli.title(console, f"{n['train']} sentences to learn from, {n['held']} held out, {n['new']} of words never seen")
    console.print(f"such as: {STORY[0]}\n     or: {STORY[1]}")
    console.print(f"{r['readers']} readers of each kind, {r['at'][-1]} steps of Adam; (least to most) of them.")

    _cli.title(console, "Read rightly: what was measured beside what should be")
    line = lambda what, kind, data, should: [what, spread(k[kind]["right"][data]), should]  # noqa: E731
    console.print(
        table(
            ["", "measured", "should be"],
            [
                line("held-out sentences", "reader", "held", "above 50%, a coin"),
                line("  attention held uniform", "uniform", "held", "50% if it needed attention"),
                line("  sees positions alone", "positions", "held", "50% exactly: twins"),
                line("  may not attend its clues", "reader", "cut", "50% exactly: twins"),
                line("clues it was never trained on", "reader", "new", "near 50%: nothing to go by"),
            ],
        )
    )
    loss = k["positions"]["loss"]["train"]["mean"]
    console.print(f"Positions alone leave a training loss of {loss:.4f}; ln 2 = {math.log(2):.4f} is that of a coin.")

    _cli.title(console, "Attention to the clues, in held-out sentences (mean of the readers)")
    at = sorted({0, *(int(i) for i in np.linspace(0, len(r["at"]) - 1, 2 * SHOWN - 1)[1:SHOWN]), len(r["at"]) - 1})
    rows = []
    for i, word in enumerate(WORDS):
        seen = np.array(k["reader"]["on_clue"]["mean"])[at, i]
        controls = [np.array(k[kind]["on_clue"]["mean"])[-1, i] for kind in ("uniform", "positions")]
        rows.append([f"{word}: {ROLES[word]}", *(f"{x:.2f}" for x in (*seen, *controls))])
    console.print(table(["step", *(str(r["at"][j]) for j in at), "uniform", "positions"], rows))
    console.print("uniform: what a mean over the sentence gives them; positions: what the blinded reader does.")

    for s, text in enumerate(STORY):
        _cli.title(console, f"bank in “{text}”" + (", never trained on" if s < 2 else ": a clue of either sense"))
        words = text.split()
        clues = [j for j, w in enumerate(words) if w in {"river", "water", "money", "deposit"}]
        w = np.array(k["reader"]["story"]["mean"])[at, s]
        lines = [[words[j], *(f"{x:.2f}" for x in w[:, j]), f"{spread(k['reader']['story'], (-1, s, j))}"]
                 for j in clues]  # fmt: skip
        rest = 1 - w[:, clues].sum(1)
        lines.append(["all other words", *(f"{x:.2f}" for x in rest), ""])
        console.print(table(["step", *(str(r["at"][j]) for j in at), "readers differ"], lines))
        console.print(f"It is read as the river's with probability {spread(k['reader']['sense'], (s,))}.")

    _cli.title(console, "What attention does not show")
    for line_ in not_shown(r):
        console.print(f"- {line_}")
    console.print("\nPictures: " + ", ".join(r["pictures"]), soft_wrap=True)


def not_shown(r: dict) -> list[str]:
    k = r["kinds"]
    share = {key: np.array(k["reader"]["on_clue"][key])[-1] for key in ("mean", "least", "most")}
    wide = int((share["most"] - share["least"]).argmax())
    river, money = (float(np.array(k["reader"]["story"]["mean"])[-1, s, [1, 4]].sum()) for s in (0, 1))
    uniform, reader = (float(np.mean(k[kind]["right"]["held"]["mean"])) for kind in ("uniform", "reader"))
    return [
        f"That it is needed: a reader whose attention is held uniform is right of {uniform:.0%}, one that is free of "
        f"{reader:.0%}. The values carry the sense; attention makes the sum cleaner.",
        f"Which sense it is: bank gives {river:.0%} to river and water, and {money:.0%} to money and deposit. Where it "
        "looks is much the same; what it finds there differs.",
        f"Anything unique: equally right readers give the clues of {WORDS[wide]!r} from {share['least'][wide]:.0%} to "
        f"{share['most'][wide]:.0%} of their attention.",
        f"Knowledge: of a clue never trained on it is right {spread(k['reader']['right']['new'])}, however much it "
        "attends to it.",
        f"Certainty: with a clue of either sense it says river with {spread(k['reader']['sense'], (2,))}; readers do "
        "not agree on what attention they give to either.",
        "Language: 4 words, 32 templates. What was cut off did matter (50%), and that is the test that counts.",
    ]


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
