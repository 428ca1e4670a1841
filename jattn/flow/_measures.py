"""What weights and logits are like, in one number each, and what a gradient flow conserves."""

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._numerics import match_varying_axes, max_or_nan, promoted
from jattn._types import Array, ArrayLike, Float, Keys, Numeric, Queries
from jattn.arguments.options import qkv, scale_array


def entropy(weights: Float[ArrayLike, "*B S"]) -> Float[Array, "*B"]:
    """The entropy of each row of weights, in nats.

        H = −Σ_s p_s log p_s,    0 ≤ H ≤ log S

    Args:
      weights: [..., S], rows that sum to one.

    Returns:
      [...]. A weight of 0 counts 0, so a row without an allowed key has entropy 0; its gradient is finite. Of a row
      that holds NaN it is NaN.

    Raises:
      TypeError: `weights` is not floating point. ValueError: it has no axis.

    Memory: as `weights`.

    Source: Shannon 1948.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> print(flow.entropy(jnp.array([[0.5, 0.5], [1.0, 0.0]])))
      [0.6931472 0.       ]
    """
    return _entropy(_rows("entropy", weights))


@jax.jit
def _entropy(weights: jax.Array) -> jax.Array:
    some = jnp.where(weights == 0, 1, weights)
    found = -jnp.sum(some * jnp.log(some), -1)
    return found + jax.lax.stop_gradient(found - found)  # no −0, where XLA leaves out + 0.0


def saturation(weights: Float[ArrayLike, "*B S"]) -> Float[Array, "*B"]:
    """How far each row of weights is from letting a gradient through: 0 where it is uniform, 1 where it is one-hot.

        1 − trace J / (1 − 1/S),    trace J = 1 − |p|² = Σ_s p_s (1 − p_s)

    Args:
      weights: [..., S], rows that sum to one.

    Returns:
      [...], from 0 to 1. A single key (S = 1) is saturated: 1.

    Raises:
      TypeError: `weights` is not floating point. ValueError: it has no axis.

    Memory: as `weights`.

    Source: the trace of the softmax Jacobian.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> print(flow.saturation(jnp.array([[0.5, 0.5], [1.0, 0.0]])))
      [0. 1.]
    """
    return _saturation(_rows("saturation", weights))


@jax.jit
def _saturation(weights: jax.Array) -> jax.Array:
    n = weights.shape[-1]
    found = 1 - jnp.sum(weights * (1 - weights), -1) / (1 - 1 / n if n > 1 else 1)
    return jnp.where(found < 0, 0, found)  # of a uniform row its rounding


def _rows(caller: str, weights: Float[ArrayLike, "*B S"]) -> Float[Array, "*B S"]:
    """Rows of weights, or an error that names them."""
    weights = _errors.array(caller, "weights", weights)
    _errors.floating(caller, weights=weights)
    if not weights.ndim:
        _errors.fail(ValueError, caller, "weights must have the axes [..., S]", "Pass whole rows.", weights=weights)
    return weights


def max_logit(q: Queries, k: Keys, *, scale: Numeric | None = None) -> Float[Array, ""]:
    """The largest scaled dot product of any query with any key: what grows before a head saturates.

        max_ts scale · ⟨q_t, k_s⟩

    Args:
      q: [T, D]. k: [S, D].
      scale: 1/√D if None.

    Returns:
      A scalar in float32 or wider; −inf where T or S is 0.

    Raises:
      TypeError, ValueError: as `jattn.attention`.

    Memory: T × S.

    Source: Dehghani et al. 2023, "Scaling vision transformers to 22 billion parameters", section 2.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> print(flow.max_logit(2 * jnp.eye(4), jnp.eye(4)))
      1.0
    """
    q, k, _ = qkv("max_logit", q, k, k)
    dtype = _errors.wide(q, k)
    c = np.asarray(q.shape[1] ** -0.5, dtype) if scale is None else scale_array("max_logit", scale).astype(dtype)
    return _largest(q.astype(dtype), k.astype(dtype), jax.device_put(c))


@jax.jit
def _largest(q: jax.Array, k: jax.Array, scale: jax.Array) -> jax.Array:
    return max_or_nan((q * scale) @ k.T, initial=-jnp.inf)


def rollout(weights: Float[ArrayLike, "L T T"], *, residual: Numeric = 0.5) -> Float[Array, "T T"]:
    """How much of each input reaches each position, if every layer mixed tokens by its weights alone.

        R = Π_l ((1 − r) A_l + r I),  the last layer leftmost

    Args:
      weights: [L, T, T], the weights of each layer, the first layer first, heads averaged.
      residual: r, the share that the skip connection carries, from 0 to 1.

    Returns:
      [T, T], rows that sum to one. L = 0 gives the identity.

    Raises:
      TypeError: `weights` is not floating point, or `residual` is not one real number.
      ValueError: `weights` has not the axes [L, T, T].

    Memory: T × T.

    Source: Abnar and Zuidema 2020, "Quantifying attention flow in transformers", section 3.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> print(flow.rollout(jnp.full((2, 2, 2), 0.5)))
      [[0.625 0.375]
       [0.375 0.625]]
    """
    weights = _errors.array("rollout", "weights", weights)
    _errors.floating("rollout", weights=weights)
    if weights.ndim != 3 or weights.shape[1] != weights.shape[2]:
        remedy = "Average over heads and stack the layers: weights.mean(1)."
        _errors.fail(ValueError, "rollout", "weights must have the axes [L, T, T]", remedy, weights=weights)
    r = _errors.scalar("rollout", "residual", residual, "Pass one share for all layers.").astype(weights.dtype)
    return _rolled(weights, r)


@jax.jit
def _rolled(weights: jax.Array, r: jax.Array) -> jax.Array:
    weights, r, eye = match_varying_axes(weights, r, jnp.eye(weights.shape[1], dtype=weights.dtype))
    return jax.lax.scan(lambda reached, A: (((1 - r) * A + r * eye) @ reached, None), eye, weights)[0]


def balance(a: Float[ArrayLike, "*n D"], b: Float[ArrayLike, "*m D"]) -> Float[Array, "D D"]:
    """What gradient flow conserves of two factors whose product alone the loss sees.

        aᵀ a − bᵀ b,  where L depends on a bᵀ alone

    For W_Q and W_K: balance(W_Q, W_K). For W_V and W_O: balance(W_V, W_O.T). For a free query and free keys:
    balance(q, k), whose trace is |q|² − |K|²_F. Discrete gradient descent moves it by exactly η² (g_aᵀ g_a − g_bᵀ g_b)
    a step, which is the balance of the two updates: hand it to `run` as `track`. Momentum and Adam break it.

    Args:
      a: [n, D], or [D] for a single row. b: [m, D], or [D].

    Returns:
      [D, D], symmetric; of halves computed in float32 and rounded once.

    Raises:
      TypeError: a factor is not floating point. ValueError: it has other axes, or the two have not one D.

    Memory: D × D.

    Source: Du, Hu and Lee 2018, "Algorithmic regularization in learning deep homogeneous models", theorem 2.2.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> print(flow.balance(jnp.array([1.0, 0.0]), jnp.eye(2)))
      [[ 0.  0.]
       [ 0. -1.]]
    """
    a, b = (_errors.array("balance", name, x) for name, x in (("a", a), ("b", b)))
    _errors.floating("balance", a=a, b=b)
    if a.ndim not in (1, 2) or b.ndim not in (1, 2) or a.shape[-1] != b.shape[-1]:
        remedy = "The loss must see their product a bᵀ alone."
        _errors.fail(ValueError, "balance", "a must be [n, D] or [D], and b [m, D] or [D]", remedy, a=a, b=b)
    dtype, wide = promoted(a.dtype, b.dtype), _errors.wide(a, b)
    a, b = (jnp.atleast_2d(x).astype(wide) for x in (a, b))
    kept: jax.Array = a.T @ a - b.T @ b
    return kept.astype(dtype)
