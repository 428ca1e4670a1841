"""Why scores are divided by √d: a dot product adds d terms, and so their variances."""

from functools import partial

import jax
import numpy as np
from jax import random

from jattn.lab.result import Result, result, seed_of
from jattn.one_head import explain

__all__ = ["one_score", "spread", "variance_of_dot_products"]

WIDTHS, TRIALS = (3, 64, 256, 768), 10_000


def one_score(key: jax.Array, d: int, mean: float) -> tuple[jax.Array, jax.Array]:
    """A raw and a scaled score of one query and one key, their entries from N(mean, 1)."""
    q, k = mean + random.normal(key, (2, 1, d))
    steps = explain(q, k, k)
    return steps.scores[0, 0], steps.scaled[0, 0]


def spread(d: int, mean: float) -> tuple[float, float]:
    """The standard deviation of ⟨q, k⟩, and the standard error of its estimate from TRIALS draws.

    A product of two entries has the variance 1 + 2μ²; with μ = 0 its fourth moment is 9, so that the sum has the
    excess kurtosis 6/d. With μ ≠ 0 that of a product is (6 + 24 μ²) / (1 + 2μ²)².
    """
    variance = 1 + 2 * mean**2
    excess = (6 + 24 * mean**2) / variance**2 / d
    std = (d * variance) ** 0.5
    return std, std * ((2 + excess) / (4 * TRIALS)) ** 0.5


def variance_of_dot_products(seed: int = 0) -> Result:
    """The standard deviation of the dot product of two random vectors, before and after division by √d.

        std ⟨q, k⟩ = √d,    std ⟨q, k⟩ / √d = 1,    where entries have mean 0 and variance 1

    Args:
      seed: of 10,000 pairs of vectors for each width.

    Returns:
      For d = 3, 64, 256, 768 the deviation of the scaled scores; for d = 768 that of the raw ones and their mean, which
      stays 0; and for entries of variance 1 but mean 1, where √d is not enough: std √(3d), scaled √3. Each within four
      standard errors.

    Raises:
      TypeError, ValueError: seed is not a whole number from 0 to 2³² − 1.

    Memory: 500 pairs of vectors at once, 3 MB at d = 768, a few times.

    Source: Vaswani et al. 2017, "Attention is all you need", footnote 4.

    Example:
      >>> from jattn import lab
      >>> round(lab.variance_of_dot_products(0).measured["std of scaled, d = 768"], 1)
      1.0
    """
    seed = seed_of("variance_of_dot_products", seed)
    rows: dict[str, tuple[float, float, float, float]] = {}
    for d, mean in (*((d, 0.0) for d in WIDTHS), (WIDTHS[-1], 1.0)):
        keys = random.split(random.fold_in(random.key(seed), d + int(mean)), TRIALS)
        sample = jax.jit(partial(jax.lax.map, partial(one_score, d=d, mean=mean), batch_size=500))
        raw, scaled = (np.asarray(x, np.float64) for x in sample(keys))
        std, error = spread(d, mean)
        where = f"d = {d}" + (", mean 1" if mean else "")
        if d == WIDTHS[-1]:
            rows[f"std of raw scores, {where}"] = (raw.std(), std, 4 * error, 4 * error)
        rows[f"std of scaled, {where}"] = (scaled.std(), std / d**0.5, 4 * error / d**0.5, 4 * error / d**0.5)
        if d == WIDTHS[-1] and not mean:
            far = 4 * std / TRIALS**0.5
            rows[f"mean of raw scores, {where}"] = (raw.mean(), 0, far, far)
    return result(
        "Dot products of width d spread as √d, if entries have mean 0",
        "variances in closed form, 4 standard errors",
        "Vaswani et al. 2017",
        rows,
    )
