"""Rank collapse: attention alone draws all tokens together, cubically in each layer; a skip connection stops it."""

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from jattn._types import Array, Float
from jattn.lab.result import Result, result, seed_of
from jattn.one_head import attention

__all__ = ["SIZES", "Layer", "drawn", "layer", "leading", "rank_collapse", "residual", "slope"]

T, D = 7, 5
SIZES = (1e-2, 3e-3, 1e-3)
Rows = TypeVar("Rows", jax.Array, np.ndarray)


class Layer(NamedTuple):
    """The matrices of one head, each [D, D]."""

    w_q: Float[Array, "D D"]
    w_k: Float[Array, "D D"]
    w_v: Float[Array, "D D"]


def residual(x: Rows) -> Rows:
    """The part of x [..., T, D] in which its rows differ: x − 1 x̄ᵀ."""
    return x - x.mean(-2, keepdims=True)


def layer(w: Layer, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
    """One head of self-attention, no skip connection."""
    return attention(x @ w.w_q, x @ w.w_k, x @ w.w_v)


def leading(w: Layer, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
    """The residual of `layer` to leading order in the residual R of x: R W_Q W_Kᵀ (RᵀR / T) W_V / √D.

    To first order in r_t the weights of a query are π_s (1 + r_tᵀ W (r_s − r̄)), with π the same for all; so their
    means of r_s differ by r_tᵀ W Cov(r), and Cov(r) is RᵀR / T where R is small.
    """
    r = residual(x)
    return r @ w.w_q @ w.w_k.T @ (r.T @ r / r.shape[0]) @ w.w_v / r.shape[1] ** 0.5


def drawn(seed: int) -> tuple[Layer, Float[Array, "D"], Float[Array, "T D"]]:
    """The matrices, the mean of the tokens, and a residual of norm 1."""
    *of_w, of_mean, of_rest = random.split(random.key(seed), 5)
    w = Layer(*(random.normal(k, (D, D), jnp.float64) / D**0.5 for k in of_w))
    rest = residual(random.normal(of_rest, (T, D), jnp.float64))
    return w, random.normal(of_mean, (D,), jnp.float64), rest / jnp.linalg.norm(rest)


def slope(sizes: np.ndarray, norms: np.ndarray) -> float:
    """The power of `sizes` that `norms` follow, by least squares of their logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(norms), 1)[0])


def rank_collapse(seed: int = 0) -> Result:
    """The power law by which one layer of attention draws nearly equal tokens together.

        ‖res(attention(x))‖ ~ ‖res(x)‖³,    ‖res(x + attention(x))‖ ~ ‖res(x)‖

    Args:
      seed: of the tokens and the matrices.

    Returns:
      The slopes of log ‖res‖ after a layer over log ‖res‖ before it, without and with a skip connection; what of the
      residual remains beside one; and how far the residual is from its leading term (`leading`), relative to it.

    Raises:
      TypeError, ValueError: seed is not a whole number from 0 to 2³² − 1.

    Memory: some kilobytes.

    Source: Dong, Cordonnier and Loukas 2021, "Attention is not all you need: pure attention loses rank doubly
      exponentially with depth", theorem 2.2 and section 2.3.

    Example:
      >>> from jattn import lab
      >>> round(lab.rank_collapse(0).measured["slope of a layer"], 2)
      3.0
    """
    seed = seed_of("rank_collapse", seed)
    with jax.enable_x64(True):
        w, mean, rest = drawn(seed)
        x = jnp.stack([mean[None] + size * rest for size in SIZES])
        one, skipped = (jax.jit(jax.vmap(f))(x) for f in (lambda x: layer(w, x), lambda x: x + layer(w, x)))
        lead = np.asarray(leading(w, x[-1]))
    before, after, beside = (np.linalg.norm(residual(np.asarray(ys)), axis=(1, 2)) for ys in (x, one, skipped))
    return result(
        "Attention without skip connections loses rank cubically",
        "the power 3, and the leading term in closed form",
        "Dong et al. 2021",
        {
            "slope of a layer": (slope(before, after), 3, 0.02, 0.02),
            "slope beside a skip": (slope(before, beside), 1, 0.02, 0.02),
            "kept beside a skip": (beside[-1] / before[-1], 1, 0.01, 0.01),
            "off the leading term": (
                np.linalg.norm(residual(np.asarray(one[-1])) - lead) / np.linalg.norm(lead),
                0,
                0,
                0.02,
            ),
        },
    )
