"""The page of weighted_sum.py: its steps, its experiments, and the five questions of the course with their numbers."""

import numpy as np
from _cli import numbers, table, title, vector
from rich.console import Console

from jattn.console import heatmap, vectors

FEATURES = ["geographic", "liquid", "financial"]
TRIALS = 10_000  # of step 2
ALMOST_NOTHING = 0.05  # a weight below it


def show(console: Console, r: dict) -> None:
    by_hand(console, r["hand"])
    variance(console, r["variance"])
    formula(console, r)
    to_oneself(console, r)
    uniform(console, r["uniform"])
    twice(console, r)
    many_times(console, r)
    title(console, "The five questions, each with a number")
    for i, answer in enumerate(answers(r), 1):
        console.print(f"{i}. {answer}")


def by_hand(console: Console, hand: dict) -> None:
    title(console, "Step 1: a weighted sum, by hand")
    for weight, value, term in zip(hand["weights"], np.eye(3), hand["terms"], strict=True):
        console.print(f"  {weight} × {vector(value, 0)} = {vector(term, 1)}")
    console.print(f"  sum             = {vector(hand['out'], 1)}")


def variance(console: Console, widths: list[dict]) -> None:
    title(console, f"Step 2: the std of a dot product over {TRIALS:,} trials, and five in a softmax")
    heads = ["d", "std\nof a·b", "√d", "std\n/ √d", "gap\nof five", "in\ntheory", "largest\nweight", "with\n/ √d"]
    lines = []
    for x in widths:
        root = x["d"] ** 0.5
        cells = [x["raw"], root, x["scaled"], x["gap"], 2.326 * root, x["largest_raw"], x["largest_scaled"]]
        lines.append([str(x["d"]), *numbers(cells)])
    console.print(table(heads, lines))
    console.print("The gap between the highest and the lowest of five: in theory 2.326 √d, for normal scores.")


def formula(console: Console, r: dict) -> None:
    words = r["words"]
    title(console, "Step 3: the complete formula, softmax(q kᵀ / √d) v")
    console.print(vectors(words, r["E"], columns=FEATURES))
    console.print(heatmap(np.array(r["weights"]), words, words, title="\nweights"))
    console.print()
    rows = [[word, vector(value), vector(out)] for word, value, out in zip(words, r["v"], r["out"], strict=True)]
    console.print(table(["", "value vector", "contextualised"], rows))
    console.print(f"The text's five lines of NumPy and jattn.attention differ by {r['formula_differs']:.1g} at most.")


def to_oneself(console: Console, r: dict) -> None:
    title(console, "Experiment 1: attend to yourself only")
    off = {name: np.abs(np.subtract(out, r["v"])).max() for name, out in r["self"].items()}
    console.print(f"identity weights: largest |output − value| = {off['identity']:.1g}")
    console.print(f"jattn.attention(q, k, v, mask=window(0, 0)): {off['window']:.1g}")


def uniform(console: Console, same: dict) -> None:
    title(console, "Experiment 2: attend to all alike (scale = 0)")
    off = np.abs(np.subtract(same["out"], same["mean"])).max()
    console.print(f"every output is the mean value {vector(same['mean'])}, to within {off:.1g}")


def moved_again(r: dict) -> np.ndarray:
    """How far the second pass moves each word."""
    return np.linalg.norm(np.subtract(r["twice"], r["out"]), axis=1)


def twice(console: Console, r: dict) -> None:
    title(console, "Experiment 3: attention twice, with the same matrices")
    columns = zip(r["words"], r["out"], r["twice"], moved_again(r), strict=True)
    rows = [[word, vector(once), vector(again), f"{far:.3f}"] for word, once, again, far in columns]
    console.print(table(["", "once", "twice", "moved by"], rows))


def many_times(console: Console, r: dict) -> None:
    title(console, "... and many times: how unlike are the words?")
    plain, skip, medians = r["repeats"]["plain"], r["repeats"]["skip"], r["medians"]
    columns = [
        ("distance\nto mean", plain["away"]),
        ("least\ncosine", plain["cosine"]),
        ("size", plain["size"]),
        ("median of\n1000 draws", medians["plain"]),
        ("x + attention:\ndistance", skip["away"]),
        ("median of\n1000 draws", medians["skip"]),
    ]
    rows = []
    for i, passes in enumerate(r["passes"]):
        cells = [column[i] for _, column in columns]
        rows.append([str(passes), *(f"{x:.2g}" if x > 1e-15 else "rounding" for x in cells)])
    console.print(table(["passes", *(head for head, _ in columns)], rows))
    console.print(
        "Distance: of the words to their mean, relative to their size. 0 and cosine 1: they all say the same."
    )


def answers(r: dict) -> list[str]:
    words, bank, river = r["words"], r["words"].index("bank"), r["words"].index("river")
    E, v, least, mixed = np.array(r["E"]), np.array(r["v"]), min(r["weights"][bank]), np.array(r["unprojected"]["out"])
    before, after, at_mean = (np.linalg.norm(x - E[river]) for x in (E[bank], mixed[bank], E.mean(0)))
    widest, itself = r["variance"][-1], np.array(r["self"]["window"])
    away, skipped = (r["repeats"][name]["away"] for name in ("plain", "skip"))
    low = "contribute" if least < ALMOST_NOTHING else "do not contribute"
    alike = "they do so more slowly" if skipped[-1] < skipped[0] else "they do not"
    return [
        f"A mean of the values, weighted by relevance. Low scores {low} 'almost nothing' here: the least weight in "
        f"the row of bank is {least:.3f} (an equal share is {1 / len(words):.3f}).",
        f"With q = k = v = E, river has {r['unprojected']['weights'][bank][river]:.3f} of bank's attention; bank's "
        f"financial feature falls from {E[bank][2]:.3f} to {mixed[bank][2]:.3f}, its distance to river from "
        f"{before:.3f} to {after:.3f} (to the plain mean it would be {at_mean:.3f}).",
        f"Because the std of a·b is √d: at d = 768, {widest['raw']:.2f}. The largest of five weights is then "
        f"{widest['largest_raw']:.3f} on average; divided by √d, {widest['largest_scaled']:.3f}.",
        f"Each word's own value, exactly: {abs(itself - v).max():.1g} apart, not the word itself: "
        f"{np.linalg.norm(itself - E, axis=1).max():.3f} apart. Without a mask, softmax needs a lead of "
        f"{np.log(999 * (len(words) - 1)):.2f} over all other scores to come within 0.1 %.",
        f"The vectors change, by up to {moved_again(r).max():.3f}. But with attention alone the words become alike, "
        f"not 'richer': their distance to the mean is {away[0]:.2f} of their size at first, {away[2]:.2g} after two "
        f"passes, {away[3]:.2g} after three. Added to what it read (x + attention) {alike}: after {r['passes'][-1]}, "
        f"{skipped[-1]:.2g}.",
    ]
