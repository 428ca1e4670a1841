"""The weighted sum: what softmax(q kᵀ / √d) v does to words, once and many times.

Runs the course file "The Weighted Sum": the example by hand, the √d of random dot products, the complete formula,
attention to oneself, uniform attention, attention twice (and many times), and a measured number for each of the
five quiz questions. The course's words and matrices stand in its earlier files; here the words are five with
vectors set by hand, and the matrices are drawn from N(0, 1), by --seed.
"""

import argparse
from itertools import accumulate

import _cli
import jax
import jax.numpy as jnp
import numpy as np
from _cli import numbers, table, vector
from jax import random
from rich.console import Console

import jattn
from jattn.console import heatmap, vectors
from jattn.masks import window

FEATURES = ["geographic", "liquid", "financial"]
WORDS = {"the": [0.1, 0.1, 0.1], "river": [0.9, 0.9, 0.0], "bank": [0.6, 0.2, 0.8], "was": [0.1, 0.0, 0.2],
         "flooded": [0.5, 0.9, 0.0]}  # fmt: skip
D, WIDTHS, TRIALS, PASSES = 3, [3, 64, 256, 768], 10_000, [0, 1, 2, 3, 4, 6, 8, 12, 16]


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    _cli.add_seed(parser, "the matrices and of the simulation")
    return parser


def dot_products(key: jax.Array) -> jax.Array:
    """One trial: a·b in each of WIDTHS dimensions, all entries from N(0, 1)."""
    a, b = random.normal(key, (2, sum(WIDTHS)))
    ends = list(accumulate(WIDTHS))
    return jnp.stack([a[end - d : end] @ b[end - d : end] for d, end in zip(WIDTHS, ends, strict=True)])


def spread_of(scores: jax.Array, d: int | jax.Array) -> dict:
    """The std of the scores raw and divided by √d, and the mean largest weight when five of them meet in a softmax."""
    largest = lambda x: jattn.softmax(x.reshape(-1, 5)).max(1).mean()  # noqa: E731
    gap = jnp.ptp(scores.reshape(-1, 5), 1).mean()
    return {"d": d, "raw": scores.std(), "scaled": (scores / d**0.5).std(), "gap": gap,
            "largest_raw": largest(scores), "largest_scaled": largest(scores / d**0.5)}  # fmt: skip


def alike(x: jax.Array) -> dict:
    """How far the words are from their mean, relative to their size, the least cosine of two of them, their size."""
    away = jnp.linalg.norm(x - x.mean(0, keepdims=True)) / jnp.linalg.norm(x)
    unit = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    return {"away": away, "cosine": (unit @ unit.T).min(), "size": jnp.linalg.norm(x)}


def repeat(x: jax.Array, matrices: jax.Array, skip: float) -> dict:
    """Attention upon attention with the same three matrices; with skip = 1 each pass is added to what it read."""

    def one_pass(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        q, k, v = x @ matrices[0], x @ matrices[1], x @ matrices[2]
        return skip * x + jattn.attention(q, k, v), x

    return jax.vmap(alike)(jax.lax.scan(one_pass, x, length=PASSES[-1] + 1)[1][jnp.array(PASSES)])


def compute(args: argparse.Namespace) -> dict:
    trials, matrices = random.split(random.key(args.seed))
    vs, w = jnp.eye(3), jnp.array([0.7, 0.2, 0.1])

    scores = jax.jit(jax.vmap(dot_products))(random.split(trials, TRIALS))  # every trial in one call

    explain, attention = jax.jit(jattn.explain), jax.jit(jattn.attention)
    words, E = list(WORDS), jnp.array(list(WORDS.values()))
    many = random.normal(matrices, (1001, 3, D, D))
    W = many[0]
    q, k, v = E @ W[0], E @ W[1], E @ W[2]
    steps = explain(q, k, v)
    twice = attention(*(steps.out @ M for M in W))
    exps = np.exp(np.asarray(q) @ np.asarray(k).T / np.sqrt(D))
    formula = exps / exps.sum(1, keepdims=True) @ np.asarray(v)

    repeats = {name: jax.jit(repeat)(E, W, skip) for name, skip in (("plain", 0.0), ("skip", 1.0))}
    medians = {name: jnp.median(jax.jit(jax.vmap(repeat, (None, 0, None)))(E, many[1:], skip)["away"], 0)
               for name, skip in (("plain", 0.0), ("skip", 1.0))}  # fmt: skip
    plain = explain(E, E, E)
    return {
        "hand": {"weights": w, "terms": w[:, None] * vs, "out": w @ vs},
        "variance": [jax.jit(spread_of)(x, d) for x, d in zip(scores.T, WIDTHS, strict=True)],
        "words": words, "E": E, "W_Q": W[0], "W_K": W[1], "W_V": W[2], "q": q, "k": k, "v": v, **steps._asdict(),
        "formula_differs": abs(steps.out - formula).max(),
        "self": {"identity": jnp.eye(len(words)) @ v, "window": attention(q, k, v, mask=window(0, 0))},
        "uniform": {"out": attention(q, k, v, scale=0.0), "mean": v.mean(0)},
        "twice": twice, "passes": PASSES, "repeats": repeats, "medians": medians,
        "unprojected": {"weights": plain.weights, "out": plain.out},
    }  # fmt: skip


def show(console: Console, r: dict) -> None:
    words, bank, river = r["words"], r["words"].index("bank"), r["words"].index("river")
    E, v, W, out = (np.array(r[name]) for name in ("E", "v", "weights", "out"))
    _cli.title(console, "Step 1: a weighted sum, by hand")
    for w, e, term in zip(r["hand"]["weights"], np.eye(3), r["hand"]["terms"], strict=True):
        console.print(f"  {w} × {vector(e, 0)} = {vector(term, 1)}")
    console.print(f"  sum             = {vector(r['hand']['out'], 1)}")

    _cli.title(console, f"Step 2: the std of a dot product over {TRIALS:,} trials, and five in a softmax")
    heads = ["d", "std of a·b", "√d", "std / √d", "gap of five", "in theory", "largest weight", "with / √d"]
    lines = [[str(x["d"]), *numbers([x["raw"], x["d"] ** 0.5, x["scaled"], x["gap"], 2.326 * x["d"] ** 0.5,
              x["largest_raw"], x["largest_scaled"]])] for x in r["variance"]]  # fmt: skip
    console.print(table([h.replace(" ", "\n", 1) for h in heads], lines))
    console.print("The gap between the highest and the lowest of five: in theory 2.326 √d, for normal scores.")

    _cli.title(console, "Step 3: the complete formula, softmax(q kᵀ / √d) v")
    console.print(vectors(words, E, columns=FEATURES))
    console.print(heatmap(W, words, words, title="\nweights"))
    console.print()
    both = [[word, vector(v[i]), vector(out[i])] for i, word in enumerate(words)]
    console.print(table(["", "value vector", "contextualised"], both))
    console.print(f"The text's five lines of NumPy and jattn.attention differ by {r['formula_differs']:.1g} at most.")

    _cli.title(console, "Experiment 1: attend to yourself only")
    identity, itself = (np.array(r["self"][name]) for name in ("identity", "window"))
    console.print(f"identity weights: largest |output − value| = {abs(identity - v).max():.1g}")
    console.print(f"jattn.attention(q, k, v, mask=window(0, 0)): {abs(itself - v).max():.1g}")
    _cli.title(console, "Experiment 2: attend to all alike (scale = 0)")
    same = abs(np.array(r["uniform"]["out"]) - r["uniform"]["mean"]).max()
    console.print(f"every output is the mean value {vector(r['uniform']['mean'])}, to within {same:.1g}")

    _cli.title(console, "Experiment 3: attention twice, with the same matrices")
    far = np.linalg.norm(np.array(r["twice"]) - out, axis=1)
    again = [[w, vector(a), vector(b), f"{x:.3f}"] for w, a, b, x in zip(words, out, r["twice"], far, strict=True)]
    console.print(table(["", "once", "twice", "moved by"], again))
    _cli.title(console, "... and many times: how unlike are the words?")
    plain, skip, medians = r["repeats"]["plain"], r["repeats"]["skip"], r["medians"]
    heads = [
        "passes",
        "distance\nto mean",
        "least\ncosine",
        "size",
        "median of\n1000 draws",
        "x + attention:\ndistance",
    ]
    columns = [plain["away"], plain["cosine"], plain["size"], medians["plain"], skip["away"], medians["skip"]]
    lines = [
        [str(n), *(f"{x:.2g}" if x > 1e-15 else "rounding" for x in row)]
        for n, row in zip(PASSES, zip(*columns, strict=True), strict=True)
    ]
    console.print(table([*heads, "median of\n1000 draws"], lines))
    console.print(
        "Distance: of the words to their mean, relative to their size. 0 and cosine 1: they all say the same."
    )

    _cli.title(console, "The five questions, each with a number")
    blend, wide = r["unprojected"], r["variance"][-1]
    before, after = (np.linalg.norm(x[bank] - E[river]) for x in (E, np.array(blend["out"])))
    answers = [
        f"A mean of the values, weighted by relevance. Low scores do not contribute 'almost nothing' here: the "
        f"least weight in the row of bank is {W[bank].min():.3f} (an equal share is {1 / len(words):.3f}).",
        f"With q = k = v = E, river has {blend['weights'][bank][river]:.3f} of bank's attention; bank's financial "
        f"feature falls from {E[bank][2]:.3f} to {blend['out'][bank][2]:.3f}, its distance to river from "
        f"{before:.3f} to {after:.3f} (to the plain mean it would be {np.linalg.norm(E.mean(0) - E[river]):.3f}).",
        f"Because the std of a·b is √d: at d = 768, {wide['raw']:.2f}. The largest of five weights is then "
        f"{wide['largest_raw']:.3f} on average; divided by √d, {wide['largest_scaled']:.3f}.",
        f"Each word's own value, exactly: {abs(itself - v).max():.1g} apart, not the word itself: "
        f"{np.linalg.norm(itself - E, axis=1).max():.3f} apart. Without a mask, softmax needs a lead of "
        f"{np.log(999 * (len(words) - 1)):.2f} over all other scores to come within 0.1 %.",
        f"The vectors change, by up to {far.max():.3f}. But with attention alone the words become alike, not "
        f"'richer': their distance to the mean is {plain['away'][0]:.2f} of their size at first, "
        f"{plain['away'][2]:.2g} after two passes, {plain['away'][3]:.2g} after three. Added to what it "
        f"read (x + attention) they do so more slowly: after {PASSES[-1]}, {skip['away'][-1]:.2g}.",
    ]
    for i, answer in enumerate(answers, 1):
        console.print(f"{i}. {answer}")


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
