"""The page of walk_near_river_bank.py: each step written out, then what moved where."""

import numpy as np
from _cli import numbers, table, title, vector
from rich.console import Console

from jattn.console import heatmap, vectors

TEXT_OUTPUTS = [[0.528, 0.622], [0.553, 0.637], [0.634, 0.677], [0.587, 0.672]]


def show(console: Console, r: dict) -> None:
    title(console, "E: the embeddings; q = k = v = E")
    console.print(vectors(r["words"], r["E"], columns=axes(r)))
    scores(console, r)
    weights(console, r)
    outputs(console, r)
    moves(console, r)
    if r["claim"]:
        claim(console, r)


def axes(r: dict) -> list[str]:
    """The names of the features."""
    wide = len(r["E"][0])
    return list("xyz"[:wide]) if wide <= 3 else [str(i + 1) for i in range(wide)]


def written_words(r: dict) -> list[int]:
    """The words whose steps are written out: all; of a long sentence the focus only."""
    return list(range(len(r["words"]))) if len(r["words"]) <= 6 else [r["focus"]]


def short(x: float) -> str:
    """Two decimals, or four digits where those say more."""
    return max(f"{x + 0.0:.2f}", f"{x + 0.0:.4g}", key=len)  # + 0.0: no −0.00


def written_out(x: list[float], y: list[float]) -> str:
    """x·y as a sum of products, and, where there are two or three, of their values."""
    terms = [f"{a:.4g}×{b:.4g}" for a, b in zip(x, y, strict=True)]
    values = [short(a * b) for a, b in zip(x, y, strict=True)]
    return " + ".join(terms[:6] + ["…"] * (len(terms) > 6)) + f" = {' + '.join(values)}" * (1 < len(x) <= 3)


def scores(console: Console, r: dict) -> None:
    words, E, wide = r["words"], r["E"], max(map(len, r["words"]))
    title(console, "Scores: query · key, written out")
    for i in written_words(r):
        for j, word in enumerate(words):
            score = short(r["scores"][i][j])
            console.print(f" {words[i]:>{wide}} · {word:<{wide}} = {written_out(E[i], E[j])} = {score}")
    title(console, "Scores: q kᵀ")
    console.print(vectors(words, r["scores"], columns=words))
    top = ", ".join(f"{words[i]} → {words[int(np.argmax(row))]}" for i, row in enumerate(r["scores"]))
    lengths = ", ".join(f"{word} {x:.3f}" for word, x in zip(words, r["length"], strict=True))
    console.print(f"Highest in each row: {top}. A dot product rewards length too: {lengths}.")


def weights(console: Console, r: dict) -> None:
    words, width = r["words"], len(axes(r))
    title(console, f"Scaled: divided by √d_k = √{width} ≈ {width**0.5:.3f}")
    console.print(vectors(words, r["scaled"], columns=words))
    less = " − the row's largest" if any(r["less"]) else ""
    title(console, f"exp(scaled{less}), and the sum of each row")
    exps = [[*row, total] for row, total in zip(r["exps"], r["sums"], strict=True)]
    console.print(vectors(words, exps, columns=[*words, "sum"]))
    title(console, "Weights: each exponential divided by the sum of its row")
    console.print(heatmap(np.array(r["weights"]), words, words))


def outputs(console: Console, r: dict) -> None:
    words, t, names, wide = r["words"], r["focus"], axes(r), max(map(len, r["words"]))
    E, W, out = np.array(r["E"]), np.array(r["weights"]), np.array(r["out"])
    title(console, "Outputs: each row of weights × the values")
    for i in written_words(r):
        for axis, column, y in list(zip(names, E.T, out[i], strict=True))[:6]:
            terms = " + ".join(f"{w:.3f}×{x:.4g}" for w, x in zip(W[i], column, strict=True))
            console.print(f" {words[i]:>{wide}} {axis} = {terms} = {y:.3f}")
    if len(names) > 3:
        console.print(vectors(words, out, columns=names))
        return
    heads = ["weight", *(f"value {a}" for a in names), *(f"weighted {a}" for a in names)]
    each = [[words[j], *numbers([W[t][j], *E[j], *x])] for j, x in enumerate(r["terms"])]
    each.append(["sum", f"{W[t].sum():.3f}", *[""] * len(names), *numbers(out[t])])
    title(console, f"The output of {words[t]}, in full")
    console.print(table(["", *heads], each))


def moves(console: Console, r: dict) -> None:
    words, t, toward = r["words"], r["focus"], r["words"][r["toward"]]
    title(console, "What moved where")
    if len(axes(r)) <= 3:
        columns = zip(words, map(vector, r["E"]), map(vector, r["out"]), numbers(r["moved"]), strict=True)
        rows = [list(row) for row in columns]
        if r["claim"]:
            rows = [[*row, vector(text)] for row, text in zip(rows, TEXT_OUTPUTS, strict=True)]
        console.print(table(["", "before", "after", "moved by", *["the text prints"] * r["claim"]], rows))
        console.print()
    far = [[words[i], *numbers(x)] for i, x in enumerate(zip(*r["to_mean"], *r["to_toward"], strict=True))]
    console.print(table(["distance", "to the mean", "after", f"to {toward}", "after"], far))
    console.print()
    way = ""
    if r["cos_mean"] is not None and r["cos_toward"] is not None:
        way = f"; cosine {r['cos_toward']:.3f} with the way to {toward}, {r['cos_mean']:.3f} with the way to the mean"
    console.print(f"The shift of {words[t]}: {r['moved'][t]:.3f} long{way}.")
    console.print(f"Equal weights would take every word to the mean, {r['mean_to_toward']:.3f} from {toward}.")


def claim(console: Console, r: dict) -> None:
    before, after = (x[r["focus"]] for x in r["to_toward"])
    W = r["weights"][r["focus"]]
    console.print(
        "\nThe text: bank is 'pulled significantly toward river'. Measured: it comes "
        f"{1 - after / before:.0%} closer, but what it goes to is the mean of the sentence, like every word here, "
        f"for the weights are nearly equal: {min(W):.3f} to {max(W):.3f}. Without learned matrices "
        "attention mostly averages. The outputs that the text prints for walk, near and river are wrong "
        "beyond rounding."
    )
