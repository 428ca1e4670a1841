"""Attention by hand on four words, "walk near river bank", or on words of your own.

Recomputes the walkthrough that begins 'The word "bank" is ambiguous': the embeddings E, the 16 scores written
out as sums, scaled scores, exponentials, weights, every output, and what moved where. Nothing is learned here:
W_q = W_k = W_v = I, so q = k = v = E.

  python demos/walk_near_river_bank.py
  python demos/walk_near_river_bank.py --word walk=0.1,0.9 --word near=0.5,0.5 --word home=0.9,0.1
  python demos/walk_near_river_bank.py --file words.json --focus bank --toward river

words.json: {"walk": [0.1, 0.9], "near": [0.5, 0.5]}, or [["walk", [0.1, 0.9]], ...] where a word may repeat.
"""

import argparse

import _cli
import _sentence
import numpy as np
from _cli import numbers, vector
from rich.console import Console

import jattn
from jattn.console import heatmap, vectors

SENTENCE = [("walk", [0.1, 0.9]), ("near", [0.5, 0.5]), ("river", [0.8, 0.8]), ("bank", [0.8, 0.5])]
TEXT_OUTPUTS = [[0.528, 0.622], [0.553, 0.637], [0.634, 0.677], [0.587, 0.672]]


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    _sentence.add_arguments(parser)
    parser.add_argument("--focus", metavar="WORD", help="the word to follow (default: the last)")
    parser.add_argument("--toward", metavar="WORD", help="what it may move toward (default: the word it attends most)")
    return parser


def compute(args: argparse.Namespace) -> dict:
    sentence = _sentence.read(args, SENTENCE)
    words = _sentence.labels(sentence)
    t = len(words) - 1 if args.focus is None else _sentence.position("--focus", args.focus, words)
    E = np.array([x for _, x in sentence])

    steps = jattn.explain(E, E, E)
    _, scaled, weights, out = (np.asarray(x) for x in steps)
    less = np.where(scaled.max(1) > 500, scaled.max(1), 0)  # an exponential beyond float64 is shown less the largest
    exps = np.exp(scaled - less[:, None])

    others = weights[t] - (np.arange(len(words)) == t)
    s = int(others.argmax()) if args.toward is None else _sentence.position("--toward", args.toward, words)
    to_mean = [distance(x, E.mean(0)) for x in (E, out)]
    to_toward = [distance(x, E[s]) for x in (E, out)]
    return {
        "claim": sentence == SENTENCE and (words[t], words[s]) == ("bank", "river"),
        "words": words, "focus": t, "toward": s, "E": E, **steps._asdict(),
        "exps": exps, "less": less, "sums": exps.sum(1), "terms": weights[t][:, None] * E,
        "mean": E.mean(0), "length": distance(E, 0), "shift": out - E, "moved": distance(out, E),
        "to_mean": to_mean, "to_toward": to_toward, "mean_to_toward": distance(E.mean(0), E[s]),
        "cos_mean": cos(out[t] - E[t], E.mean(0) - E[t]), "cos_toward": cos(out[t] - E[t], E[s] - E[t]),
    }  # fmt: skip


def distance(x: np.ndarray, y: np.ndarray | float) -> np.ndarray:
    return np.linalg.norm(x - y, axis=-1)


def cos(x: np.ndarray, y: np.ndarray) -> float | None:
    lengths = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / lengths) if lengths > 1e-12 else None  # no direction: nothing moved, or it is there already


def short(x: float) -> str:
    """Two decimals, or four digits where those say more."""
    return max(f"{x:.2f}", f"{x:.4g}", key=len)


def written_out(x: np.ndarray, y: np.ndarray) -> str:
    """x·y as a sum of products, and, where there are two or three, of their values."""
    terms = [f"{a:.4g}×{b:.4g}" for a, b in zip(x, y, strict=True)]
    values = [short(a * b) for a, b in zip(x, y, strict=True)]
    return " + ".join(terms[:6] + ["…"] * (len(terms) > 6)) + f" = {' + '.join(values)}" * (1 < len(x) <= 3)


def show(console: Console, r: dict) -> None:
    words, n, t, s = r["words"], len(r["words"]), r["focus"], r["toward"]
    E, W, out = np.array(r["E"]), np.array(r["weights"]), np.array(r["out"])
    focus, toward, wide = words[t], words[s], max(map(len, words))
    axes = list("xyz"[: E.shape[1]]) if E.shape[1] <= 3 else [str(i + 1) for i in range(E.shape[1])]
    rows = range(n) if n <= 6 else [t]  # a long sentence is written out for the focus only

    _cli.title(console, "E: the embeddings; q = k = v = E")
    console.print(vectors(words, E, columns=axes))

    _cli.title(console, "Scores: query · key, written out")
    for i in rows:
        for j in range(n):
            score = short(r["scores"][i][j])
            console.print(f" {words[i]:>{wide}} · {words[j]:<{wide}} = {written_out(E[i], E[j])} = {score}")
    _cli.title(console, "Scores: q kᵀ")
    console.print(vectors(words, r["scores"], columns=words))
    top = ", ".join(f"{words[i]} → {words[int(np.argmax(row))]}" for i, row in enumerate(r["scores"]))
    lengths = ", ".join(f"{word} {x:.3f}" for word, x in zip(words, r["length"], strict=True))
    console.print(f"Highest in each row: {top}. A dot product rewards length too: {lengths}.")

    _cli.title(console, f"Scaled: divided by √d_k = √{len(axes)} ≈ {len(axes) ** 0.5:.3f}")
    console.print(vectors(words, r["scaled"], columns=words))
    _cli.title(
        console, "exp(scaled" + (" − the row's largest" if any(r["less"]) else "") + "), and the sum of each row"
    )
    exps = [[*row, total] for row, total in zip(r["exps"], r["sums"], strict=True)]
    console.print(vectors(words, exps, columns=[*words, "sum"]))
    _cli.title(console, "Weights: each exponential divided by the sum of its row")
    console.print(heatmap(W, words, words))

    _cli.title(console, "Outputs: each row of weights × the values")
    for i in rows:
        for axis, column, y in list(zip(axes, E.T, out[i], strict=True))[:6]:
            terms = " + ".join(f"{w:.3f}×{x:.4g}" for w, x in zip(W[i], column, strict=True))
            console.print(f" {words[i]:>{wide}} {axis} = {terms} = {y:.3f}")
    if len(axes) <= 3:
        heads = ["weight", *(f"value {a}" for a in axes), *(f"weighted {a}" for a in axes)]
        each = [[words[j], *numbers([W[t][j], *E[j], *x])] for j, x in enumerate(r["terms"])]
        each.append(["sum", f"{W[t].sum():.3f}", *[""] * len(axes), *numbers(out[t])])
        _cli.title(console, f"The output of {focus}, in full")
        console.print(_cli.table(["", *heads], each))
    else:
        console.print(vectors(words, out, columns=axes))

    _cli.title(console, "What moved where")
    text = [[vector(x)] for x in TEXT_OUTPUTS] if r["claim"] else [[]] * n
    moves = [[w, vector(E[i]), vector(out[i]), f"{r['moved'][i]:.3f}", *text[i]] for i, w in enumerate(words)]
    if len(axes) <= 3:
        console.print(_cli.table(["", "before", "after", "moved by", *["the text prints"] * r["claim"]], moves))
        console.print()
    far = [[words[i], *numbers(x)] for i, x in enumerate(zip(*r["to_mean"], *r["to_toward"], strict=True))]
    console.print(_cli.table(["distance", "to the mean", "after", f"to {toward}", "after"], far))
    console.print()
    way = ""
    if r["cos_mean"] is not None and r["cos_toward"] is not None:
        way = f"; cosine {r['cos_toward']:.3f} with the way to {toward}, {r['cos_mean']:.3f} with the way to the mean"
    console.print(f"The shift of {focus}: {r['moved'][t]:.3f} long{way}.")
    console.print(f"Equal weights would take every word to the mean, {r['mean_to_toward']:.3f} from {toward}.")
    if r["claim"]:
        before, after = (x[t] for x in r["to_toward"])
        console.print(
            "\nThe text: bank is 'pulled significantly toward river'. Measured: it comes "
            f"{1 - after / before:.0%} closer, but what it goes to is the mean of the sentence, like every word here, "
            f"for the weights are nearly equal: {W[t].min():.3f} to {W[t].max():.3f}. Without learned matrices "
            "attention mostly averages. The outputs that the text prints for walk, near and river are wrong "
            "beyond rounding."
        )


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
