"""For equinox: `MultiheadAttention`, in place of equinox.nn's, with the same arguments, weights and results.

>>> import jax, jax.numpy as jnp
>>> from jattn.hosts.equinox import MultiheadAttention
>>> layer = MultiheadAttention(num_heads=2, query_size=8, key=jax.random.key(0))
>>> x = jnp.ones((5, 8))
>>> layer(x, x, x).shape
(5, 8)
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, overload

import jax

from jattn._types import AnyArray, Array, ArrayLike, Bool, Float, Integer, PRNGKey
from jattn.hosts._attend import Measured, attend_heads, host, measure_heads, needs_key
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
        process_heads: ProcessHeads | None = None,
        measure: Integer[ArrayLike, " R"] | Sequence[int] | None = None,
        **options: Unpack[DotProductAttentionOptions],
    ) -> Float[Array, "T O"] | tuple[Float[Array, "T O"], Measured]:
        """As equinox.nn.MultiheadAttention; further options are those of `jattn.dot_product_attention`.

        measure: integers [R], or [] for none: returned is (out, (statistics, weights)), what `jattn.statistics` says of
        each head, arrays [N, T] at linear memory, and the weights [N, R, S] of these queries. It is measured of the
        same attention, under every option: a sink one for all or one a head [N], positions, lengths, is_causal,
        local_window_size, score and scale. Dropout is left out, and tile and implementation do not matter.
        """
        q, k, v = (self._heads(*x) for x in ((self.query_proj, query), (self.key_proj, key_), (self.value_proj, value)))
        if process_heads is not None:
            q, k, v = process_heads(q, k, v)
        off = self.dropout.inference if inference is None else inference
        if not off and self.dropout.p > 0:
            needs_key("key", key, "inference=True")
            options |= {"dropout_rate": self.dropout.p, "dropout_key": key}
        out = attend_heads(q, k, v, None, mask, **options)
        out = jax.vmap(self.output_proj)(out.reshape(query.shape[0], math.prod(out.shape[1:])))
        return out if measure is None else (out, measure_heads(q, k, None, mask, rows=measure, **options))

    def _heads(self, projection: Any, x: Any) -> jax.Array:
        y = jax.vmap(projection)(x)
        return y.reshape(x.shape[0], self.num_heads, y.shape[1] // self.num_heads)
