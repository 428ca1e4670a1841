"""Document 003, The Weighted Sum: its numbers and its claims in words."""

import itertools
import math

import numpy as np
from _bank_toy import K, Q, V
from _errata_kata import too_peaked
from _errata_verdicts import SLACK, Document, diameter, explain
from _errata_walk import E

HAND_V = np.eye(3)
HAND_W = np.array([0.7, 0.2, 0.1])


def weighted_sum(doc: Document) -> None:
    # softmax(log w) = w: the hand-made weights, through the definition.
    out = explain(np.ones((1, 1)), np.log(HAND_W)[:, None], HAND_V, scale=1.0).out[0]
    terms = doc.prints("the three terms", "0.7, 0.0, 0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 0.1", HAND_W[:, None] * HAND_V)
    doc.prints("their sum", "0.7, 0.2, 0.1", out, by=lambda x: x.reshape(3, 3).sum(0), of=[terms], times=2)

    itself, uniform = explain(E, E, E, mask=np.eye(4, dtype=bool)).out, explain(E, E, E, scale=0.0).out
    doc.says("attend to self: “exactly” the value", (itself == E).all(), f"off by {np.abs(itself - E).max():.0e}")
    off = np.abs(uniform - E.mean(0)).max()
    doc.says("uniform: the average of the values, for all", off < SLACK, f"off by {off:.0e}")
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
    pairs = explain(signs, signs, signs)
    raw, scaled = pairs.scores.var(), pairs.scaled.var()
    doc.says(
        "variance d, and 1 after division by √d",
        np.allclose((raw, scaled), (3, 1), rtol=1e-12),
        f"{raw:.4f} and {scaled:.4f} over all pairs of ±1 vectors of width 3",
    )
    # The relative standard error of a sample's standard deviation: √((kurtosis − 1) / 4n), kurtosis 3 + 6/d.
    error = 100 * max(math.sqrt((2 + 6 / d) / 40_000) for d in (3, 64, 256, 768))
    doc.says("10,000 trials track √d “closely”", error < 2, f"standard error at most {error:.1f} %")
    once = explain(E, E, E)
    twice = explain(once.out, once.out, once.out).out
    change = np.abs(twice - once.out).max()
    doc.says("a second pass changes the vectors", change > SLACK, f"by {change:.3f}")
    shifted = np.array([[0.0], [2.0]])
    product = explain(shifted, shifted, shifted).scores.var()
    doc.says(
        "variance 1 each, so “each product also has variance 1”",
        product == 1,
        f"only with mean 0: components that are 0 or 2, equally often, have variance {shifted.var():.0f}, "
        f"and their product {product:.0f}",
    )
    mean = pairs.scores.mean()
    doc.says(
        "scores “get larger on average”", mean > SLACK, f"their mean is {mean:.0f}, whatever d; only the spread grows"
    )
    low, the = 100 * once.weights[3].min(), 100 * explain(Q[None], K, V).weights[0, 2]
    doc.says(
        "“almost nothing” from words that scored low",
        low < 5,
        f"the word that scores lowest for bank still has {low:.1f} % of it in document 001, and {the:.1f} % in "
        "document 000, where its score is 0",
    )
    sizes = [diameter(x) for x in (E, once.out, twice)]
    doc.says(
        "a second pass: vectors “richer than the original”",
        sizes[2] >= sizes[0],
        f"a weighted mean cannot leave the hull: the four words of document 001 lie within {sizes[0]:.3f} of each "
        f"other, after one pass {sizes[1]:.3f}, after two {sizes[2]:.1e}; they become one word",
    )
    std = too_peaked()[1]
    doc.says(
        "scores “in the same range across all architectures”",
        abs(std - 1) < 0.1,
        "only if q and k have mean 0 and variance 1: in the program of document 002 the standard deviation after "
        f"division is {std:.1f}",
    )
