"""Document 002, Visualize Attention Weights (Kata 9.1): its numbers and its claims in words."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from _errata_verdicts import SLACK, Document, softmax

import jattn

CAT_SAT = np.array(
    [
        [0.15, 0.10, 0.10, 0.10, 0.15, 0.40],
        [0.10, 0.20, 0.15, 0.05, 0.10, 0.40],
        [0.10, 0.30, 0.20, 0.10, 0.10, 0.20],
        [0.10, 0.10, 0.15, 0.15, 0.10, 0.40],
        [0.10, 0.10, 0.10, 0.10, 0.20, 0.40],
        [0.15, 0.15, 0.10, 0.10, 0.15, 0.35],
    ]
)
LARGE = np.array([30.0, 50.0, 35.0])
DRAWS = 10_000


def chance_above(x: float, d: int) -> float:
    """How often the dot product of two standard normal vectors of (even) width d exceeds x.

    It is distributed as X − Y, both Gamma(d/2): P(X > Y + x) = Σ_{k<d/2} E[(Y+x)^k e^{−(Y+x)}] / k!.
    """
    n = d // 2
    terms = (
        math.comb(k, j) * x ** (k - j) / math.factorial(k) * math.perm(n + j - 1, j) / 2 ** (n + j)
        for k in range(n)
        for j in range(k + 1)
    )
    return math.exp(-x) * math.fsum(terms)


@functools.cache
def too_peaked() -> tuple[np.ndarray, float]:
    """The program of document 002 (6 words, d_model 8, d_k 4, all entries standard normal), many times.

    The percentage of draws in which each of its three divisors (1, √d_k, d_k) leaves the row of "cat" with a spread
    over 0.8, which it calls too peaked, and the standard deviation of a score between two words after division by √d_k.
    """
    rng = np.random.RandomState(42)  # the one generator whose stream NumPy promises never to change
    x, w_q, w_k = (jnp.asarray(rng.standard_normal((DRAWS, *shape))) for shape in ((6, 8), (8, 4), (8, 4)))

    def row(x: jax.Array, w_q: jax.Array, w_k: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        s = jattn.explain((x @ w_q)[1:2], x @ w_k, x @ w_k, scale=scale)
        return s.weights.max() - s.weights.min(), s.scaled[0, 0]

    many = jax.vmap(jax.vmap(row, (0, 0, 0, None)), (None, None, None, 0))
    spread, scores = jax.jit(many)(x, w_q, w_k, 1 / jnp.array([1.0, 2.0, 4.0]))
    return np.asarray(100 * (spread > 0.8).mean(1)), float(scores[1].std())


def attention_kata(doc: Document) -> None:
    doc.prints("steps across a 100-word sentence", "99", 100 - 1)
    saturated = softmax(LARGE)
    doc.prints("softmax of the unscaled scores", "0.00, 1.00, 0.00", saturated)
    doc.prints("√64", "8", math.sqrt(64))
    scaled = doc.prints("scores / 8", "3.75, 6.25, 4.38", LARGE / 8)
    doc.prints("softmax of the scaled scores", "0.06, 0.76, 0.18", softmax(LARGE / 8), by=softmax, of=[scaled])
    doc.prints("√d_k of its program", "2.0", math.sqrt(4))

    off = np.abs(CAT_SAT.sum(1) - 1).max()
    doc.says("each row of the matrix sums to 1.0", off < SLACK, f"off by {off:.0e}")
    doc.says("“very high dot product”: nearly all the weight", saturated.max() > 0.99, f"{saturated.max():.7f}")
    rare = [1 / chance_above(x, 64) for x in (30, 50)]
    doc.says(
        "dot products “like 30-50” at d_k = 64",
        rare[1] < 1000,
        f"their standard deviation is {math.sqrt(64):.0f}, so 30 is {30 / 8} of them and 50 {50 / 8}: of standard "
        f"normal pairs one in {rare[0]:.0f} exceeds 30, one in {rare[1]:.1e} exceeds 50",
    )
    dv = jax.grad(lambda v: jattn.explain(jnp.ones((1, 1)), jnp.asarray(LARGE)[:, None], v, scale=1.0).out[0, 0])
    reach = np.asarray(jax.jit(dv)(jnp.zeros((3, 1))))[:, 0]
    doc.says(
        "“No gradients vanish” over distance",
        reach.min() > 1e-3,
        "distance does not matter, weight does: the gradient that reaches a value is multiplied by its weight, "
        f"{reach[0]:.1e} and {reach[2]:.1e} in its own saturated example",
    )
    peaked, std = too_peaked()
    doc.says(
        "dividing by √d_k “prevents softmax saturation”",
        peaked[1] < 5,
        f"not in its own program, whose W are not scaled by √d_model: scores have standard deviation {std:.1f} after "
        f"the division, not 1, and it calls {peaked[1]:.0f} % of the rows of “cat” too peaked ({peaked[0]:.0f} % "
        f"undivided, {peaked[2]:.0f} % divided by d_k; {DRAWS} draws)",
    )
