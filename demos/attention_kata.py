"""Self-attention on "The cat sat on the bank" with random matrices, and the kata's three exercises.

Runs "Visualize Attention Weights" (Kata 9.1): embeddings, Q, K, V, scores, weights, outputs, the heatmap in four
characters, the top three tokens, the effect of dividing by 1, √d_k and d_k on one row and on many draws, and the
three hands-on questions, answered by computation. The kata draws from a generator that it does not show; here the
numbers are jax.random's, by --seed.
"""

import argparse

import _cli
import _exercises as ex
import jax
import jax.numpy as jnp
from _kata_page import show
from jax import random

import jattn

WORDS, D_MODEL, D_K = ["The", "cat", "sat", "on", "the", "bank"], 8, 4
ENTRIES = len(WORDS) * D_MODEL + 3 * D_MODEL * D_K  # of E and of W_Q, W_K, W_V
VARIANCES = {"N(0, 1), as in the kata": 1.0, "N(0, 1/d_model)": 1 / D_MODEL}


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    # A draw in which all four characters and two verdicts occur; the tables over many draws say how rare that is.
    _cli.add_seed(parser, "the embeddings and matrices", default=6)
    return parser


def project(entries: jax.Array) -> dict[str, jax.Array]:
    """E and the matrices out of entries [ENTRIES] from N(0, 1), as the kata draws them; and q, k, v."""
    E = entries[: len(WORDS) * D_MODEL].reshape(len(WORDS), D_MODEL)
    W_Q, W_K, W_V = entries[len(WORDS) * D_MODEL :].reshape(3, D_MODEL, D_K)
    return {"E": E, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "q": E @ W_Q, "k": E @ W_K, "v": E @ W_V}


def cat_row(entries: jax.Array) -> jax.Array:
    """The raw scores of "cat"."""
    made = project(entries)
    return made["k"] @ made["q"][WORDS.index("cat")]


def compute(args: argparse.Namespace) -> dict:
    of_draws, of_noise, of_rows = random.split(random.key(args.seed), 3)
    draws = random.normal(of_draws, (1 + ex.DRAWS, ENTRIES))
    x = jax.jit(project)(draws[0])
    steps = jax.jit(jattn.explain)(x["q"], x["k"], x["v"])
    cat = steps.scores[WORDS.index("cat")]
    cats = jax.jit(jax.vmap(cat_row))(draws[1:])
    noise = random.normal(of_noise, (ex.DRAWS, ex.N, 1))
    rows = jax.jit(jax.vmap(ex.unit_rows))(random.split(of_rows, ex.DRAWS))
    return {
        "words": WORDS, **x, **steps._asdict(), "row_sums": steps.weights.sum(1),
        "cat": [jax.jit(ex.judge)(cat, divisor) for divisor in (1.0, D_K**0.5, float(D_K))],
        "draws": {name: ex.over_draws(variance * cats, D_K) for name, variance in VARIANCES.items()},
        "contexts": [ex.in_context(sentence) for sentence in ex.CONTEXTS],
        "matches": [ex.one_match(score, x["v"], noise) for score in ex.MATCHES],
        "widths": [row for d in ex.WIDTHS for row in ex.over_draws(rows[d], d)],
        "text_softmax": jax.jit(jattn.softmax)(jnp.array([3.75, 6.25, 4.38])),
    }  # fmt: skip


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
