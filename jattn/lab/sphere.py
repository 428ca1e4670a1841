"""Clustering on the sphere: layers of attention as time, tokens as particles that draw together."""

import jax
import jax.numpy as jnp
import numpy as np

from jattn._types import Array, Float
from jattn.lab.result import Result, oracle, result, seed_of
from jattn.one_head import attention

__all__ = ["clustering", "flow", "scalar_rate", "velocity"]

T, D, BETAS = 7, 11, (1.0, 4.0)
HORIZON, SAMPLES, SUBSTEPS = 10.0, 50, 20


def velocity(x: Float[Array, "T D"], beta: Array) -> Float[Array, "T D"]:
    """What attention at inverse temperature β moves each token by, less what would leave the sphere."""
    out = attention(x, x, x, scale=beta)
    return out - jnp.sum(out * x, 1, keepdims=True) * x


def flow(x: Float[Array, "T D"], beta: Array) -> Float[Array, "N T D"]:
    """The tokens at SAMPLES equal steps of time up to HORIZON, by the fourth-order method of Runge and Kutta."""
    h = HORIZON / (SAMPLES * SUBSTEPS)

    def step(_: jax.Array, x: Array) -> Array:
        a = velocity(x, beta)
        b = velocity(x + h / 2 * a, beta)
        c = velocity(x + h / 2 * b, beta)
        return x + h / 6 * (a + 2 * b + 2 * c + velocity(x + h * c, beta))

    def sample(x: Array, _: None) -> tuple[Array, Array]:
        x = jax.lax.fori_loop(0, SUBSTEPS, step, x)
        return x, x

    return jax.lax.scan(sample, x, None, length=SAMPLES)[1]


def scalar_rate(rho: float | np.ndarray, beta: float, n: int) -> float | np.ndarray:
    """dρ/dt where every two of n tokens have the cosine ρ: 2 e^{βρ} (1 − ρ) (1 + (n−1)ρ) / (e^β + (n−1) e^{βρ})."""
    return 2 * np.exp(beta * rho) * (1 - rho) * (1 + (n - 1) * rho) / (np.exp(beta) + (n - 1) * np.exp(beta * rho))


def clustering(seed: int = 0) -> Result:
    """The common cosine of tokens that begin orthonormal and move by attention on the sphere.

        dx_t/dt = P_{x_t} Σ_s w_ts x_s,    w = softmax(β x xᵀ),    P_x y = y − ⟨x, y⟩ x

    Args:
      seed: of the orthonormal tokens [7, 11].

    Returns:
      For each β the cosine at time 1, and the largest distance of any two tokens' cosine from the scalar ODE
      (`scalar_rate`) at fifty times up to 10.

    Raises:
      TypeError, ValueError: seed is not a whole number from 0 to 2³² − 1.

    Memory: the tokens at fifty times for two β, 0.1 MB in float64.

    Source: Geshkovski, Letrouit, Polyanskiy and Rigollet 2023, "A mathematical perspective on transformers", section 6
      (high dimension).

    Example:
      >>> from jattn import lab
      >>> all(lab.clustering(0).holds.values())
      True
    """
    seed = seed_of("clustering", seed)
    solve_ivp = oracle("clustering", "scipy.integrate").solve_ivp
    start = np.linalg.qr(np.random.default_rng(seed).standard_normal((D, T)))[0].T
    with jax.enable_x64(True):
        paths = jax.jit(jax.vmap(flow, (None, 0)))(jnp.asarray(start), jnp.asarray(BETAS))
        cosines = np.asarray(jnp.einsum("bntd,bnsd->bnts", paths, paths))
    times = np.linspace(0, HORIZON, SAMPLES + 1)[1:]
    rows = {}
    for beta, pairs in zip(BETAS, cosines[:, :, *np.triu_indices(T, 1)], strict=True):
        rho = solve_ivp(
            lambda _, rho, beta=beta: scalar_rate(rho, beta, T), (0, HORIZON), [0.0],
            method="DOP853", t_eval=times, rtol=1e-12, atol=1e-13,
        ).y[0]  # fmt: skip
        one = int(np.searchsorted(times, 1 - 1e-9))
        rows[f"cosine at time 1, β = {beta:g}"] = (pairs[one].mean(), rho[one], 1e-8, 1e-8)
        rows[f"farthest off the ODE, β = {beta:g}"] = (np.abs(pairs - rho[:, None]).max(), 0, 0, 1e-8)
    return result(
        "Equiangular tokens cluster by a scalar ODE", "scipy.integrate.solve_ivp", "Geshkovski et al. 2023", rows
    )
