"""For equinox: `MultiheadAttention`, in place of equinox.nn's, with the same arguments, weights and results.

>>> import jax, jax.numpy as jnp
>>> from jattn.hosts.equinox import MultiheadAttention
>>> layer = MultiheadAttention(num_heads=2, query_size=8, key=jax.random.key(0))
>>> x = jnp.ones((5, 8))
>>> layer(x, x, x).shape
(5, 8)
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, overload

import jax

from jattn import _errors
from jattn._types import AnyArray, Array, ArrayLike, Bool, Float, Integer, PRNGKey
from jattn.arguments.options import dropout_share, drops
from jattn.hosts._attend import Measured, attend_heads, host, key_of_dropout, known_options, measure_heads
from jattn.many_heads import DotProductAttentionOptions
from jattn.masks import Mask

if TYPE_CHECKING:
    import equinox as eqx
else:
    eqx = host("equinox")

__all__ = ["MaskOfHeads", "Measured", "MultiheadAttention", "ProcessHeads"]

MaskOfHeads: TypeAlias = Mask | Bool[AnyArray, "#T #S"] | Bool[AnyArray, "#N #T #S"]
"""A value of `jattn.masks`, or booleans of each pair, for all heads or for each of N."""
ProcessHeads: TypeAlias = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
"""f(q [T, N, H], k [S, N, H], v [S, N, Hv]) -> the same three, as equinox.nn.MultiheadAttention takes it."""


class MultiheadAttention(eqx.nn.MultiheadAttention):
    """equinox.nn.MultiheadAttention at linear memory. Its mask may also be a value of `jattn.masks`."""

    @overload  # type: ignore[override]  # of its `deterministic`, which is deprecated, nothing is known here
    def __call__(
        self,
        query: Float[AnyArray, "T E"],
        key_: Float[AnyArray, "S C"],
        value: Float[AnyArray, "S V"],
        mask: MaskOfHeads | None = ...,
        *,
        key: PRNGKey | None = ...,
        inference: bool | None = ...,
        process_heads: ProcessHeads | None = ...,
        bias: ArrayLike | None = ...,
        measure: None = ...,
        **options: Unpack[DotProductAttentionOptions],
    ) -> Float[Array, "T O"]: ...
    @overload
    def __call__(
        self,
        query: Float[AnyArray, "T E"],
        key_: Float[AnyArray, "S C"],
        value: Float[AnyArray, "S V"],
        mask: MaskOfHeads | None = ...,
        *,
        key: PRNGKey | None = ...,
        inference: bool | None = ...,
        process_heads: ProcessHeads | None = ...,
        bias: ArrayLike | None = ...,
        measure: Integer[ArrayLike, " R"] | Sequence[int],
        **options: Unpack[DotProductAttentionOptions],
    ) -> tuple[Float[Array, "T O"], Measured]: ...
    def __call__(
        self,
        query: Float[AnyArray, "T E"],
        key_: Float[AnyArray, "S C"],
        value: Float[AnyArray, "S V"],
        mask: MaskOfHeads | None = None,
        *,
        key: PRNGKey | None = None,
        inference: bool | None = None,
        deterministic: bool | None = None,
        process_heads: ProcessHeads | None = None,
        bias: ArrayLike | None = None,
        measure: Integer[ArrayLike, " R"] | Sequence[int] | None = None,
        **options: Unpack[DotProductAttentionOptions],
    ) -> Float[Array, "T O"] | tuple[Float[Array, "T O"], Measured]:
        """As equinox.nn.MultiheadAttention; further options are those of `jattn.dot_product_attention`.

        bias: floating point, of any shape that broadcasts to [N, T, S], added to the logits.

        measure: integers [R], or [] for none: returned is (out, (statistics, weights)), what `jattn.statistics` says of
        each head, arrays [N, T] at linear memory, and the weights [N, R, S] of these queries. It is measured of
        the same attention, under its bias and every option: a sink one for all or one a head [N], positions, lengths,
        is_causal, local_window_size, score and scale. Dropout is left out, and tile and implementation do not matter.
        """
        known_options(options)
        if deterministic is not None:
            inference = deterministic
            said = "MultiheadAttention: deterministic= is a former name of inference=, which takes its place"
            warnings.warn(said, stacklevel=2)
        given = ("query", query, self.query_proj), ("key_", key_, self.key_proj), ("value", value, self.value_proj)
        query, key_, value = (_tokens(*x) for x in given)
        if key_.shape[0] != value.shape[0]:
            must, remedy = "key_ and value must agree in their number of rows", "Each key needs its one value."
            _errors.fail(ValueError, "hosts", must, remedy, key_=key_, value=value)
        q, k, v = (self._heads(*x) for x in ((self.query_proj, query), (self.key_proj, key_), (self.value_proj, value)))
        if process_heads is not None:
            q, k, v = _processed(process_heads, q, k, v)
        mask = _mask(mask)
        off = self.dropout.inference if inference is None else inference
        if drops(options.get("dropout_rate", 0)) and (drops(self.dropout.p) or _errors.flag("hosts", "inference", off)):
            must = "dropout_rate must be left out where the layer drops by its dropout_p, and in inference"
            got = {"dropout_rate": _errors.kind_of(options["dropout_rate"])}
            _errors.fail(ValueError, "hosts", must, "Make the layer with dropout_p, and pass its key.", **got)
        if drops(self.dropout.p) and not _errors.flag("hosts", "inference", off):
            dropout_share("hosts", self.dropout.p, "dropout_p")
            key = key_of_dropout("key", key, "inference=True")
            options |= {"dropout_rate": jax.lax.stop_gradient(self.dropout.p), "dropout_key": key}  # as equinox has it
        out = attend_heads(q, k, v, bias, mask, **options)
        out = jax.vmap(self.output_proj)(out.reshape(query.shape[0], math.prod(out.shape[1:])))
        if measure is None:
            return out
        return out, measure_heads(q, k, bias, mask, rows=measure, name="measure", **options)

    def _heads(self, projection: Any, x: Any) -> jax.Array:
        y = jax.vmap(projection)(x)
        return y.reshape(x.shape[0], self.num_heads, y.shape[1] // self.num_heads)


def _tokens(name: str, x: Any, projection: Any) -> jax.Array:
    """Of one example, in the width that a projection takes. Of a projection of one's own no width is known."""
    x = _errors.array("hosts", name, x)
    of, width = f"{name.strip('_')}_size", getattr(projection, "in_features", None)
    _errors.rank("hosts", 2, f"[tokens, {of}]", "Map a batch of examples with jax.vmap.", **{name: x})
    if isinstance(width, int) and x.shape[1] != width:
        must, remedy = f"{name} must have {of} columns", f"Make the layer with {of}={x.shape[1]}, or project {name}."
        _errors.fail(ValueError, "hosts", must, remedy, **{name: x, of: str(width)})
    return x


def _mask(mask: Any) -> Any:
    """Of one example: booleans [T, S] or [N, T, S]. Of one axis equinox takes none, and a batch is mapped."""
    if mask is None or isinstance(mask, Mask) or callable(mask):
        return mask
    mask = _errors.array("hosts", "mask", mask)
    if mask.ndim not in (2, 3):
        remedy = "Of one entry a key make one a pair: mask[None]; map a batch of examples with jax.vmap."
        _errors.fail(ValueError, "hosts", "mask must have the axes [T, S] or [N, T, S]", remedy, mask=mask)
    return mask


def _processed(process_heads: ProcessHeads, *heads: jax.Array) -> list[jax.Array]:
    """What process_heads makes of the heads; keys and values may be fewer or more, as of a cache."""
    q, k, v = heads
    remedy = "Write f(q, k, v) -> (q, k, v) of [tokens, heads, width]."
    _errors.function("hosts", "process_heads", process_heads, remedy)
    found = process_heads(q, k, v)
    if not isinstance(found, tuple | list) or len(found) != 3:
        must, remedy = "process_heads must return query, key and value", "Return all three: (q, k, v)."
        got = f"{len(found)} of them" if isinstance(found, tuple | list) else _errors.kind_of(found)
        _errors.fail(TypeError, "hosts", must, remedy, process_heads=got)
    new_q, new_k, new_v = (_errors.array("hosts", f"process_heads' {n}", x) for n, x in zip("qkv", found, strict=True))
    if new_q.shape != q.shape or new_v.ndim != 3 or new_v.shape[-1] != v.shape[-1]:
        must = f"process_heads must leave q {_errors.shape(q)}, and v {v.shape[-1]} wide"
        _errors.fail(ValueError, "hosts", must, "Return heads of the same shapes.", q=new_q, v=new_v)
    return [new_q, new_k, new_v]
