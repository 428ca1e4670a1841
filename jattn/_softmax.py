"""Softmax whose derivative keeps the tail of a saturated row.

A row is saturated when one weight is 1 to rounding. Its other weights, and every derivative, are then
tiny but not zero, and the usual rule `dp = p·dx − p·(p·dx)` cancels them away: two nearly equal numbers
are subtracted (jax issues 40344, 40384, 40386). A softmax does not change when a constant is added to
its row, so nothing is lost if the tangents are measured from the tangent of the largest entry. That
entry's own is then exactly zero, and what was a difference of large numbers is a sum of small ones.

It costs about twice the plain rule. The definition and the study of gradients use it; the tiles of the
engine, where only sums over a row are seen, do not.
"""

import operator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._numerics import finite_or_zero
from jattn._types import Array, Float


def softmax(x: Float[Array, "*B n"], axis: int = -1) -> Float[Array, "*B n"]:
    """The weights exp(x_i) / Σ_j exp(x_j), with a derivative that is right to rounding in every entry.

        p = softmax(x),    p_dot_i = p_i (m_i − Σ_j p_j m_j),    m_i = x_dot_i − x_dot_argmax

    Differentiable to every order, in both modes; the tangents sum to zero by construction.

    Args:
      x: logits, real, at least one axis. An entry of −inf has weight 0.
      axis: the axis that the weights sum to one over.

    Returns:
      Weights of the shape and dtype of `x`, computed in float32 or wider. A row of −inf alone, or of no
      entries, has weights 0 (where jax.nn.softmax gives NaN), and gradient 0.

    Raises:
      TypeError: `x` is not floating point, or `axis` is not one whole number.
      ValueError: `x` has no axis `axis`.

    Memory: as `x`, a few times.

    Source: the shift invariance of softmax; jax issue 40344 for the loss that it mends.

    Example:
      >>> import jax, jax.numpy as jnp, jattn
      >>> x = jnp.array([40.0, 0.0])
      >>> print(jax.grad(lambda x: jattn.softmax(x)[0])(x))  # ± e⁻⁴⁰, where jax.nn.softmax says [0, -4.2e-18]
      [ 4.248354e-18 -4.248354e-18]
    """
    return _rowwise("softmax", x, axis, _softmax)


def log_softmax(x: Float[Array, "*B n"], axis: int = -1) -> Float[Array, "*B n"]:
    """The logarithms x_i − log Σ_j exp(x_j) of the softmax weights, right to rounding in every entry.

        log p_argmax = −log1p(Σ_{j≠argmax} exp(x_j − x_argmax)),    log p_i = x_i − x_argmax + log p_argmax

    Differentiable to every order, in both modes.

    Args:
      x: logits, real, at least one axis. An entry of −inf has log-weight −inf, and gradient 0.
      axis: the axis that the weights sum to one over.

    Returns:
      Logarithms of the shape and dtype of `x`, computed in float32 or wider. A row of −inf alone stays
      −inf, with gradient 0.

    Raises:
      TypeError: `x` is not floating point, or `axis` is not one whole number.
      ValueError: `x` has no axis `axis`.

    Memory: as `x`, a few times.

    Source: the shift invariance of softmax; jax issue 40384 for the loss that it mends.

    Example:
      >>> import jax.numpy as jnp, jattn
      >>> print(jattn.log_softmax(jnp.array([40.0, 0.0])))  # jax.nn.log_softmax says [0, -40]
      [-4.248354e-18 -4.000000e+01]
    """
    return _rowwise("log_softmax", x, axis, _log_softmax)


def _rowwise(caller: str, x: Any, axis: int, rule: Any) -> jax.Array:
    """`rule` along `axis`, in at least float32."""
    x = _errors.array(caller, "x", x)
    _errors.floating(caller, x=x)
    try:
        axis = operator.index(axis)
    except TypeError:
        got = {"axis": f"of type {type(axis).__name__}"}
        _errors.fail(TypeError, caller, "axis must be a whole number", "Join several axes first: x.reshape(…).", **got)
    if not -x.ndim <= axis < x.ndim:
        remedy = f"Choose an axis from {-x.ndim} to {x.ndim - 1}." if x.ndim else "Give x at least one axis."
        _errors.fail(ValueError, caller, f"x must have the axis {axis}", remedy, x=x)
    return _along(rule, x, axis)


@partial(jax.jit, static_argnums=(0, 2))
def _along(rule: Any, x: jax.Array, axis: int) -> jax.Array:
    wide = x.astype(_errors.wide(x))
    return jnp.moveaxis(rule(jnp.moveaxis(wide, axis, -1)), -1, axis).astype(x.dtype)


def _from_top(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """x minus its largest entry, and which entry that is; the differences of a dead row are −inf."""
    if x.shape[-1] == 0:
        return x, jnp.zeros(x.shape, bool)
    top = jnp.argmax(x, -1, keepdims=True)
    is_top = jax.lax.broadcasted_iota(top.dtype, x.shape, x.ndim - 1) == top
    m = jnp.max(x, -1, keepdims=True)
    # Under jit XLA may contract a product in x with this subtraction into one fused multiply-add, and
    # the largest entry then misses its own rounded maximum by half an ulp: 1e22 for a logit of 1e30.
    # So its difference, and that of its equals, is not computed but known.
    return jnp.where((x >= m) & (m > -jnp.inf), 0, x - finite_or_zero(m)), is_top


def _tangents_from_top(x: jax.Array, is_top: jax.Array, x_dot: jax.Array) -> jax.Array:
    """x_dot_i − x_dot_argmax: exactly 0 at the argmax, and 0 where the entry or the row does not exist."""
    top_dot = jnp.sum(jnp.where(is_top, x_dot, 0), -1, keepdims=True)
    return jnp.where(is_top | (x == -jnp.inf), 0, x_dot - top_dot)


@jax.custom_jvp
def _softmax(x: jax.Array) -> jax.Array:
    e = jnp.exp(_from_top(x)[0])
    total = jnp.sum(e, -1, keepdims=True)
    return e / jnp.where(total == 0, 1, total)


@_softmax.defjvp
def _softmax_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (x_dot,) = primals, tangents
    p = _softmax(x)
    m = _tangents_from_top(x, _from_top(x)[1], x_dot)
    return p, p * (m - jnp.sum(p * m, -1, keepdims=True))


@jax.custom_jvp
def _log_softmax(x: jax.Array) -> jax.Array:
    d, is_top = _from_top(x)
    others = jnp.sum(jnp.where(is_top, 0, jnp.exp(d)), -1, keepdims=True)
    return d - jnp.log1p(others)


@_log_softmax.defjvp
def _log_softmax_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (x_dot,) = primals, tangents
    is_top = _from_top(x)[1]
    m = _tangents_from_top(x, is_top, x_dot)
    mean = jnp.sum(_softmax(x) * m, -1, keepdims=True)
    return _log_softmax(x), jnp.where(x == -jnp.inf, 0, m - mean)
