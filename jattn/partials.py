"""Partial attentions: pairs `(out, lse)`, and the monoid that they form.

Attention over some of the keys is a weighted mean `out` and the logarithm `lse` of the weight it stands
for. Two such pairs over disjoint sets of keys make the pair over their union, in any order and any
grouping, and the pair `(0, −inf)` over no keys changes nothing. A tile of keys, a page of a cache, a
shard on another device and a shared prefix are all partials; a sink is the partial `(0, sink)`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jattn import _checks
from jattn._types import Partial


def merge(a: Partial, b: Partial) -> Partial:
    """The attention over two disjoint sets of keys, from the attention over each.

        lse = log(exp(lse_a) + exp(lse_b)),    out = exp(lse_a − lse)·out_a + exp(lse_b − lse)·out_b

    Associative and commutative to rounding, with the identity `(0, −inf)`; differentiable to every order.

    Args:
      a: `(out, lse)`, out [*B, Dv] and lse [*B], as `attention(..., return_lse=True)` gives them.
      b: likewise, of the same shapes.

    Returns:
      `(out, lse)`. A partial of lse −inf has no keys, and its `out` is not looked at: two of them give
      zeros and −inf. `out` keeps the dtype that `out_a` and `out_b` promote to, `lse` at least float32.

    Raises:
      TypeError: a partial is not a pair of floating-point arrays.
      ValueError: shapes differ, or `lse` has not the axes of `out` without the last.

    Memory: as its inputs.

    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3 and eq. 4.

    Example:
      >>> import jax, jax.numpy as jnp, jattn
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 6, 2))
      >>> whole = jattn.attention(q, k, v)
      >>> halves = [jattn.attention(q, k[i], v[i], return_lse=True) for i in (slice(0, 4), slice(4, 6))]
      >>> out, lse = jattn.merge(*halves)
      >>> bool(jnp.allclose(out, whole, atol=1e-6))
      True
    """
    (out_a, lse_a), (out_b, lse_b) = _partial("a", a), _partial("b", b)
    if out_a.shape != out_b.shape:
        remedy = "Merge partials of the same queries: broadcast a shared one first."
        _checks.fail(ValueError, "merge", "the two partials must have one shape", remedy, out_a=out_a, out_b=out_b)
    dtype = _checks.wide(out_a, lse_a, out_b, lse_b)
    lse_a, lse_b = lse_a.astype(dtype), lse_b.astype(dtype)
    top = jnp.maximum(lse_a, lse_b)
    top = jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top))  # any shift is exact; its derivative is zero
    w_a, w_b = jnp.exp(lse_a - top), jnp.exp(lse_b - top)
    total = w_a + w_b
    total = jnp.where(total == 0, 1, total)
    out = _share(w_a / total, out_a, lse_a) + _share(w_b / total, out_b, lse_b)
    lse = jnp.where((lse_a == -jnp.inf) & (lse_b == -jnp.inf), -jnp.inf, top + jnp.log(total))
    return out.astype(jnp.promote_types(out_a.dtype, out_b.dtype)), lse


def _share(weight: jax.Array, out: jax.Array, lse: jax.Array) -> jax.Array:
    """weight·out, where a partial of no keys is not looked at (it may hold anything)."""
    return weight[..., None] * jnp.where((lse == -jnp.inf)[..., None], 0, out.astype(lse.dtype))


def _partial(name: str, x: Any) -> tuple[jax.Array, jax.Array]:
    remedy = "Pass the pair that attention(..., return_lse=True) returns."
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        got = {name: f"of type {type(x).__name__}"}
        _checks.fail(TypeError, "merge", f"{name} must be a pair (out, lse)", remedy, **got)
    out, lse = _checks.array("merge", f"out_{name}", x[0]), _checks.array("merge", f"lse_{name}", x[1])
    _checks.floating("merge", **{f"out_{name}": out, f"lse_{name}": lse})
    if lse.shape != out.shape[:-1] or out.ndim == 0:
        must = f"lse_{name} must have the axes of out_{name} without the last"
        _checks.fail(ValueError, "merge", must, remedy, **{f"out_{name}": out, f"lse_{name}": lse})
    return out, lse
