"""Entropy collapse: how peaked a row of attention can be, given the spectral norms of weights and tokens."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from jattn._softmax import log_softmax
from jattn._types import Array, Float
from jattn.lab.result import Result, result, seed_of
from jattn.one_head import explain

__all__ = ["SIGMAS", "bound", "drawn", "entropies", "entropy_bound", "peaked", "sigma_of"]

T, DRAWS, EPS = 7, 2000, 1e-12
SIGMAS = (0.1, 0.3, 1.0, 3.0, 10.0)


def entropies(x: Float[Array, "T D"], w_q: Float[Array, "D E"], w_k: Float[Array, "D E"]) -> Float[Array, " T"]:
    """The entropy of each row of softmax(x W_Q W_Kᵀ xᵀ), in nats."""
    steps = explain(x @ w_q, x @ w_k, x, scale=1.0)
    return -jnp.sum(steps.weights * log_softmax(steps.scaled), 1)


def bound(sigma: np.ndarray, n: int) -> np.ndarray | np.float64:
    """The least entropy of n weights whose logits have the norm σ: one stands out, and the others are equal.

    log(1 + (n−1)β) + σ √(n(n−1)) β / (1 + (n−1)β),    β = exp(−σ √(n/(n−1)))
    """
    beta = np.exp(-sigma * np.sqrt(n / (n - 1)))
    return np.log1p((n - 1) * beta) + sigma * np.sqrt(n * (n - 1)) * beta / (1 + (n - 1) * beta)


def sigma_of(x: np.ndarray, w_q: np.ndarray, w_k: np.ndarray) -> np.ndarray:
    """‖W_K W_Qᵀ‖₂ ‖x xᵀ‖₂, over leading batch axes: no row of logits is longer."""
    return np.linalg.norm(w_k @ w_q.mT, 2, (-2, -1)) * np.linalg.norm(x, 2, (-2, -1)) ** 2


def peaked(sigma: Array) -> tuple[Array, Array, Array]:
    """x, W_Q, W_K [T, T] whose first row of attention attains the bound: its logits are the centred e_1 of norm σ."""
    e = jnp.eye(T)
    top = (e[0] - 1 / T) * (T / (T - 1)) ** 0.5
    return e, sigma * jnp.outer(e[0], e[0]), jnp.outer(top, e[0])


def drawn(key: Array) -> tuple[Array, Array, Array]:
    """x, W_Q, W_K: a random σ, and from one in a thousand to a hundred times as much noise as there is of `peaked`."""
    of_sigma, of_noise, *of_each = random.split(key, 5)
    sigma = 10.0 ** random.uniform(of_sigma, minval=-1, maxval=1)
    noise = 10.0 ** random.uniform(of_noise, minval=-3, maxval=2)
    made = [m + noise * random.normal(k, m.shape) for k, m in zip(of_each, peaked(sigma), strict=True)]
    return tuple(m / jnp.linalg.norm(m, 2) * n for m, n in zip(made, (1.0, sigma, 1.0), strict=True))


def entropy_bound(seed: int = 0) -> Result:
    """The least entropy of a row of attention, against random weights and against those that attain it.

        H(softmax(x_t W_Q W_Kᵀ xᵀ)) ≥ bound(‖W_K W_Qᵀ‖₂ ‖x xᵀ‖₂)

    Args:
      seed: of 2,000 draws of x, W_Q, W_K, from ones that nearly attain the bound to pure noise.

    Returns:
      How many draws have a row below the bound (by more than rounding, 1e-12); by how much the nearest misses it; and
      the largest distance from it of the weights that attain it, for σ from 0.1 to 10.

    Raises:
      TypeError, ValueError: seed is not a whole number from 0 to 2³² − 1.

    Memory: the 2,000 draws at once, 2.4 MB in float64, a few times.

    Source: Zhai et al. 2023, "Stabilizing transformer training by preventing attention entropy collapse", theorem 3.1.

    Example:
      >>> from jattn import lab
      >>> lab.entropy_bound(0).measured["violations in 2,000 draws"]
      0.0
    """
    seed = seed_of("entropy_bound", seed)
    with jax.enable_x64(True):
        draws = jax.jit(jax.vmap(drawn))(random.split(random.key(seed), DRAWS))
        extreme = jax.vmap(peaked)(jnp.asarray(SIGMAS))
        of_rows = jax.jit(jax.vmap(entropies))
        measured, attained = np.asarray(of_rows(*draws)), np.asarray(of_rows(*extreme))[:, 0]
    above = measured.min(1) - bound(sigma_of(*map(np.asarray, draws)), T)
    off = np.abs(attained - bound(np.array(SIGMAS), T)).max()
    return result(
        "Spectral norms bound the entropy of attention from below",
        "the bound in closed form",
        "Zhai et al. 2023",
        {
            "violations in 2,000 draws": ((above < -EPS).sum(), 0, 0, 0),
            "nearest draw above the bound": (above.min(), 0, EPS, 0.01),
            "farthest from attaining it": (off, 0, 0, EPS),
        },
    )
