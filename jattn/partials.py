"""Partial attentions, the softmax state that a fold over keys carries, and how both merge.

Attention over some of the keys is a weighted mean `out` and the logarithm `lse` of the weight it stands
for. Two such pairs over disjoint sets of keys make the pair over their union, in any order and any
grouping, and the pair `(0, −inf)` over no keys changes nothing. A tile of keys, a page of a cache, a
shard on another device and a shared prefix are all partials; a sink is the partial `(0, sink)`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._numerics import added, below, exp, finite_or_zero, promoted
from jattn._types import Partial


class SoftmaxState(NamedTuple):
    """What a fold over keys carries of each query: the online softmax.

        m = max_s l_s,    total = Σ_s exp(l_s − m) + exp(sink − m),    acc = Σ_s exp(l_s − m) v_s

    A query that has seen no key has m = −inf and total = 0.

    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3, in the form of Rabe
    and Staats 2021: the division by the total is put off to the end.
    """

    m: jax.Array
    total: jax.Array
    acc: Any
    """An array, or several: a pytree."""

    @classmethod
    def start(
        cls, sink: jax.Array | None, shape: tuple[int, ...], Dv: int, dtype: Any, *, transposed: bool = False
    ) -> "SoftmaxState":
        """Before any key: a sink, which broadcasts to `shape`, joins the denominator here and brings no value.

        m and total have the shape [...], and acc [..., Dv]; `transposed`, [1, queries] and [Dv, queries].
        """
        sink = jnp.float32(-jnp.inf) if sink is None else sink
        m = jnp.broadcast_to(sink.astype(dtype), shape)
        acc = (Dv, shape[-1]) if transposed else (*shape, Dv)
        return cls(m, (m > -jnp.inf).astype(dtype), jnp.zeros(acc, dtype))

    @classmethod
    def of(cls, logits: jax.Array, weighted_values: Callable[[jax.Array], Any]) -> "SoftmaxState":
        """Of the first keys, without a sink: as `absorb` where `exact`."""
        m = logits.max(-1)
        p = jnp.exp(logits - m[..., None])
        return cls(m, p.sum(-1), weighted_values(p))

    def absorb(
        self,
        logits: jax.Array,
        weighted_values: Callable[[jax.Array], Any],
        nan_rows: jax.Array | None = None,
        *,
        transposed: bool = False,
        exact: bool = False,
        plain: bool = False,
    ) -> "SoftmaxState":
        """With some more keys. m counts as a constant: m + log(total) and acc / total are the same whatever it is, and
        the derivative of a maximum looks for the entries that equal it, which a logit that XLA computes twice, once
        with a multiply-add, may miss: 0 / 0.

        Args:
          logits: [..., keys]; `transposed`, [keys, queries].
          weighted_values: f(p) = Σ_s p_s v_s of p = exp(logits − m), in the shape of acc.
          nan_rows: 0, or NaN for the queries whose result is to be NaN.
          exact: whether no logit is infinite, excluded pairs having `excluded` for −∞, and none is the result of a
            product that XLA could fuse with "− m". Then XLA makes one kernel of maximum, difference and exponential.
          plain: whether none is +∞, and none the result of such a product.
        """
        keys: dict[str, Any] = {"axis": 0, "keepdims": True} if transposed else {"axis": -1}
        m = jax.lax.stop_gradient(jnp.maximum(self.m, logits.max(**keys)))
        if nan_rows is not None:
            m += nan_rows
        top, minus = (m, jnp.subtract) if exact else (finite_or_zero(m), below)
        p = exp((jnp.subtract if plain else minus)(logits, _beside_width(top, transposed)))
        shrink = exp(minus(self.m, top))
        wide = _beside_width(shrink, transposed)
        acc = jax.tree.map(lambda acc, more: added(acc * wide, more), self.acc, weighted_values(p))
        return SoftmaxState(m, self.total * shrink + p.sum(**keys), acc)

    def once(self, one: jax.Array) -> "SoftmaxState":
        """The same, of which XLA computes nothing a second time where it is needed: divided by a one that it does not
        know (`_numerics.unknown`), as it does not repeat a division."""
        return jax.tree.map(lambda a: a / one, self)

    def finish(self, *, transposed: bool = False, exact: bool = False) -> tuple[Any, jax.Array, jax.Array]:
        """(out, m, log_sum), lse = m + log_sum: kept apart, since beside a logit of 1e8 the logarithm is lost.

        A query without a key has out = 0, m = −inf, log_sum = 0.
        """
        empty = self.m <= excluded(self.m.dtype) if exact else self.total == 0
        total = jnp.where(empty, 1, self.total)
        out = jax.tree.map(lambda acc: acc / _beside_width(total, transposed), self.acc)
        if exact:
            out = jax.tree.map(lambda out: jnp.where(_beside_width(empty, transposed), 0, out), out)
        return out, jnp.where(empty, -jnp.inf, self.m), jnp.log(total)


def excluded(dtype: Any) -> jax.Array:
    """A logit below every other by more than the logarithm of any number, where no other is near it (`all_finite`).

    Beside a logit that is allowed its weight is 0. A state that has seen nothing else holds weights of 1, which the
    first allowed key multiplies by 0, and `finish` leaves out.
    """
    return jnp.asarray(jnp.finfo(dtype).min / 2, dtype)


def _beside_width(x: jax.Array, transposed: bool) -> jax.Array:
    """One entry a query, laid beside an array that has the queries and one more axis."""
    return x if transposed else x[..., None]


def merge_finished(a: Any, b: Any) -> list[jax.Array]:
    """Two partials (out, m, log_sum), of disjoint sets of keys, as one. m counts as a constant.

    A partial of no keys is not looked at: its `out` may hold anything.
    """
    m = jax.lax.stop_gradient(jnp.maximum(a[1], b[1]))
    top = finite_or_zero(m)
    weights = [jnp.exp(below(x[1], top) + x[2]) for x in (a, b)]
    total = weights[0] + weights[1]
    total = jnp.where(total == 0, 1, total)
    out, more = (
        (w / total)[..., None] * jnp.where((x[1] == -jnp.inf)[..., None], 0, x[0])
        for w, x in zip(weights, (a, b), strict=True)
    )
    return [out + more, m, jnp.log(total)]


def merge_devices(
    out: jax.Array, own: jax.Array, log_sum: jax.Array, axis_name: Any, sink: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(out, lse) of the partials (out, own m, log_sum) of all devices along an axis and the sink: a maximum, a sum."""
    m = jax.lax.stop_gradient(jnp.maximum(jax.lax.pmax(jax.lax.stop_gradient(own), axis_name), sink))
    top = finite_or_zero(m)
    w = jnp.exp((own - top) + log_sum)
    acc, total = jax.lax.psum((w[..., None] * out, w), axis_name)
    out, m, log_sum = SoftmaxState(m, total + jnp.exp(sink - top), acc).finish()
    return out, m + log_sum


def merge(a: Partial, b: Partial) -> Partial:
    """The attention over two disjoint sets of keys, from the attention over each.

        lse = log(exp(lse_a) + exp(lse_b)),    out = exp(lse_a − lse)·out_a + exp(lse_b − lse)·out_b

    Associative and commutative to the rounding of lse, with the identity `(0, −inf)`; differentiable to every order.

    Args:
      a: `(out, lse)`, out [*B, Dv] and lse [*B], as `attention(..., return_lse=True)` gives them.
      b: likewise, of the same shapes.

    Returns:
      `(out, lse)`. A partial of lse −inf has no keys, and its `out` is not looked at: two of them give
      zeros and −inf. `out` keeps the dtype that `out_a` and `out_b` promote to, `lse` at least float32. The share of
      each carries the rounding error of its lse, |lse|·eps relative: where logits are as large as 1e6 in float32,
      attend all keys in one call.

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
        _errors.fail(ValueError, "merge", "the two partials must have one shape", remedy, out_a=out_a, out_b=out_b)
    return _merged(out_a, lse_a, out_b, lse_b)


@jax.jit
def _merged(out_a: jax.Array, lse_a: jax.Array, out_b: jax.Array, lse_b: jax.Array) -> Partial:
    dtype = _errors.wide(out_a, lse_a, out_b, lse_b)
    zero = jnp.zeros(lse_a.shape, dtype)
    parts = [(out.astype(dtype), lse.astype(dtype), zero) for out, lse in ((out_a, lse_a), (out_b, lse_b))]
    out, m, log_sum = merge_finished(*parts)
    return out.astype(promoted(out_a.dtype, out_b.dtype)), m + log_sum


def _partial(name: str, x: Any) -> tuple[jax.Array, jax.Array]:
    remedy = "Pass the pair that attention(..., return_lse=True) returns."
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        got = {name: f"of type {type(x).__name__}"}
        _errors.fail(TypeError, "merge", f"{name} must be a pair (out, lse)", remedy, **got)
    out, lse = _errors.array("merge", f"out_{name}", x[0]), _errors.array("merge", f"lse_{name}", x[1])
    _errors.floating("merge", **{f"out_{name}": out, f"lse_{name}": lse})
    if lse.shape != out.shape[:-1] or out.ndim == 0:
        must = f"lse_{name} must have the axes of out_{name} without the last"
        _errors.fail(ValueError, "merge", must, remedy, **{f"out_{name}": out, f"lse_{name}": lse})
    return out, lse
