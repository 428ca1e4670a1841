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
from _sum_page import TRIALS, show
from jax import random

import jattn
from jattn.masks import window

WORDS = {"the": [0.1, 0.1, 0.1], "river": [0.9, 0.9, 0.0], "bank": [0.6, 0.2, 0.8], "was": [0.1, 0.0, 0.2],
         "flooded": [0.5, 0.9, 0.0]}  # fmt: skip
D, WIDTHS, PASSES = 3, [3, 64, 256, 768], [0, 1, 2, 3, 4, 6, 8, 12, 16]


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
    """The std of the scores raw and divided by √d, and the mean largest weight of a softmax over five of them."""
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
        "formula_differs": abs(attention(q, k, v) - formula).max(),
        "self": {"identity": jnp.eye(len(words)) @ v, "window": attention(q, k, v, mask=window(0, 0))},
        "uniform": {"out": attention(q, k, v, scale=0.0), "mean": v.mean(0)},
        "twice": twice, "passes": PASSES, "repeats": repeats, "medians": medians,
        "unprojected": {"weights": plain.weights, "out": plain.out},
    }  # fmt: skip


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
