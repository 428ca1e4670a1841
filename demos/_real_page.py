"""The page of real_bank.py: the numbers in tables, what they say of the popular story, and what they do not say."""

import _real_heads
import numpy as np
from _cli import table, title
from _minilm import NAME
from rich.console import Console

MANY = 6  # heads shown at each end


def ranks(x: np.ndarray) -> np.ndarray:
    """1 for the largest, row by row as the heads are numbered."""
    return (np.argsort(np.argsort(-x, axis=None, kind="stable"), kind="stable") + 1).reshape(x.shape)


def name(head: tuple) -> str:
    """Layer and head, counted from 0, as the page and arrays do."""
    return f"{head[0]}.{head[1]}"


def show(console: Console, r: dict) -> None:
    word, clue, (one, other) = r["word"], r["clue"], r["senses"]
    title(console, f"“{r['sentence']}”, read by {NAME}")
    console.print(f"weights: {r['model']}", soft_wrap=True)
    console.print(f"tokens: {' '.join(r['tokens'])}")

    title(console, f"The sense of {word!r}: +1 is {one}, −1 is {other}")
    unseen = [*r["unseen"][0], *r["unseen"][1]]
    console.print(
        f"An axis through the means of its last hidden state over {r['sentences'][0]} and {r['sentences'][1]} "
        f"sentences written for it. With each left out in turn, {sum(x > 0 for x in unseen)} of {len(unseen)} fall on "
        f"their own side (a coin: {len(unseen) / 2:g}), the worst at {min(unseen):+.2f}. Here it is {r['score']:+.3f}."
    )
    title(console, f"... when {word!r} may not attend, in all {np.size(r['attention'])} heads, to")
    console.print(
        table(
            ["token", "score", "change"],
            [[t, f"{x:+.3f}", f"{x - r['score']:+.3f}"] for t, x in zip(r["tokens"], r["without"], strict=True)],
        )
    )

    title(console, f"Masking {word} → {clue}: a bias log(1 − m) in every head")
    console.print(
        table(
            ["taken, m", *(f"{m:.0%}" for m in r["taken"])],
            [["score", *(f"{x:+.3f}" for x in r["masked"])]],
        )
    )
    console.print(masking(r))

    title(console, f"Heads, counted from 0 (layer.head): {word} → {clue}")
    console.print(table(["", "attention", "control", "5 to 95 %", "gradient", "effect", "rank of 72"], rows(r)))
    if r["control"] is None:
        control = "none of the plain sentences is that long. "
    else:
        control = "the mean, and the range, of what the head attends at the same distance, at "
        control += f"{r['places']} places in plain sentences without either word. "
    console.print(
        f"control: {control}effect: what the score does when that head alone may not attend to it. gradient: the same "
        "by a first-order estimate from jax.grad. rank: of the size of the effect."
    )

    title(console, "Which number tells what a head is worth? Spearman's rank correlation over 72 heads")
    a = {k: "–" if x is None else f"{x:+.3f}" for k, x in r["agreement"].items()}
    console.print(
        table(
            ["with the true effect", "its size", "with sign"],
            [
                ["attention", a["attention"], a["attention, signed"]],
                ["gradient", a["gradient"], a["gradient, signed"]],
            ],
        )
    )
    console.print("With sign, attention is read as the popular story reads it: more of it, more of the sense.")
    console.print(story(r))

    _real_heads.show(console, r["heads"], word)

    title(console, "What this does not show")
    for line in caveats(r):
        console.print(f"- {line}")
    console.print("\nPictures: " + ", ".join(r["pictures"]), soft_wrap=True)


def rows(r: dict) -> list[list[str]]:
    """The heads that attend most, then those that matter most."""
    attention, effect = np.array(r["attention"]), np.array(r["effect"])
    most, rank = np.argsort(-attention, axis=None)[:MANY], ranks(abs(effect))
    matter = [i for i in np.argsort(-abs(effect), axis=None)[:MANY] if i not in most]
    lines = []
    for i in (*most, *matter):
        h = np.unravel_index(i, attention.shape)
        controls = ["–", "–"]
        if r["control"] is not None:
            control, low, high = (np.array(r[key])[h] for key in ("control", "low", "high"))
            controls = [f"{control:.3f}", f"{low:.2f} – {high:.2f}"]
        line = [f"{attention[h]:.3f}", *controls, f"{np.array(r['estimate'])[h]:+.3f}", f"{effect[h]:+.3f}"]
        lines.append([name(h), *line, str(rank[h])])
    return lines


def masking(r: dict) -> str:
    """Whether the sense flips, and how far."""
    start, end, hidden = r["score"], r["masked"][-1], r["hidden"]
    flips = start * end < 0
    verdict = "The sense flips" if flips else "The sense does not flip"
    how = f"{verdict}: {start:+.3f} → {end:+.3f}"
    if flips and abs(end) < 0.5:
        how += ", which is undecided rather than the other sense"
    return how + f". Hidden from every word, not from {r['word']} alone, {r['clue']} leaves {hidden:+.3f}."


def story(r: dict) -> str:
    """The head that the popular story would point at, and the worst miss of the gradient."""
    attention, effect, estimate = (np.array(r[key]) for key in ("attention", "effect", "estimate"))
    top = np.unravel_index(attention.argmax(), attention.shape)
    text = f"The head that attends {r['clue']} most is {name(top)}, with {attention[top]:.1%}"
    if r["control"] is not None:
        text += f"; at that distance it attends {np.array(r['control'])[top]:.1%} on average whatever stands there"
        positional = attention[top] <= np.array(r["high"])[top]
        text += ": it is positional" if positional else ", and seldom as much: it is more than positional"
    rank, size = ranks(abs(effect))[top], abs(effect[top] / r["score"])
    text += f". Taking it away moves the score by {effect[top]:+.4f} ({size:.1%} of it), rank {rank} of 72. "
    miss = np.unravel_index(abs(estimate - effect).argmax(), effect.shape)
    return text + (
        f"The gradient errs most on head {name(miss)}: {estimate[miss]:+.3f} for a true {effect[miss]:+.3f}; it sees a "
        "line where the softmax, and whatever follows the head, curve."
    )


def caveats(r: dict) -> list[str]:
    one, other = r["senses"]
    return [
        "The model was trained to embed sentences, not to tell senses apart or to predict words.",
        f"The axis is what {r['sentences'][0]} and {r['sentences'][1]} sentences make of it; others give other numbers."
        f" Half way is where the means of {one} and {other} meet, not where a reader would be in doubt.",
        f"Only the direct way {r['word']} → {r['clue']} is cut; what {r['clue']} tells the other words still arrives."
        " A mask also makes a model see what it never saw in training.",
        "The effects of single heads do not add up to that of all: "
        f"{np.sum(r['effect']):+.3f} against {r['masked'][-1] - r['score']:+.3f}.",
        "One sentence is an example. Whether attention misleads in it proves nothing of others.",
    ]
