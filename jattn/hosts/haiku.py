"""For haiku: `MultiHeadAttention`, in place of haiku's, with the same arguments, parameters and results.

>>> import haiku as hk
>>> import jax, jax.numpy as jnp
>>> from jattn.hosts.haiku import MultiHeadAttention
>>> draw = hk.initializers.VarianceScaling(1.0)
>>> layer = hk.transform(lambda x: MultiHeadAttention(num_heads=2, key_size=4, w_init=draw)(x, x, x))
>>> x = jnp.ones((3, 5, 8))
>>> layer.apply(layer.init(jax.random.key(0), x), None, x).shape
(3, 5, 8)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from jattn._types import Array, ArrayLike, Float, Integer
from jattn.hosts._attend import Measured, attend_heads, host, known_options, measure_heads
from jattn.many_heads import DotProductAttentionOptions
from jattn.masks import Mask

if TYPE_CHECKING:
    import haiku as hk
else:
    hk = host("haiku")

__all__ = ["Measured", "MultiHeadAttention"]


class MultiHeadAttention(hk.MultiHeadAttention):
    """haiku.MultiHeadAttention at linear memory. Its mask may also be a value of `jattn.masks`."""

    @overload
    def __call__(
        self,
        query: Float[Array, "*B T E"],
        key: Float[Array, "*#B S C"],
        value: Float[Array, "*#B S V"],
        mask: Mask | ArrayLike | None = ...,
        *,
        bias: ArrayLike | None = ...,
        measure: None = ...,
        **options: Unpack[DotProductAttentionOptions],
    ) -> Float[Array, "*B T O"]: ...
    @overload
    def __call__(
        self,
        query: Float[Array, "*B T E"],
        key: Float[Array, "*#B S C"],
        value: Float[Array, "*#B S V"],
        mask: Mask | ArrayLike | None = ...,
        *,
        bias: ArrayLike | None = ...,
        measure: Integer[ArrayLike, " R"] | Sequence[int],
        **options: Unpack[DotProductAttentionOptions],
    ) -> tuple[Float[Array, "*B T O"], Measured]: ...
    def __call__(
        self,
        query: Float[Array, "*B T E"],
        key: Float[Array, "*#B S C"],
        value: Float[Array, "*#B S V"],
        mask: Mask | ArrayLike | None = None,
        *,
        bias: ArrayLike | None = None,
        measure: Integer[ArrayLike, " R"] | Sequence[int] | None = None,
        **options: Unpack[DotProductAttentionOptions],
    ) -> Float[Array, "*B T O"] | tuple[Float[Array, "*B T O"], Measured]:
        """As haiku.MultiHeadAttention; further options are those of `jattn.dot_product_attention`.

        bias: floating point, of any shape that broadcasts to [*B, N, T, S], added to the logits.

        measure: integers [R], or [] for none: returned is (out, (statistics, weights)), what `jattn.statistics` says of
        each head, arrays [*B, N, T] at linear memory, and the weights [*B, N, R, S] of these queries. It is measured of
        the same attention, under its bias and every option: a sink one for all or one a head [N], positions, lengths,
        is_causal, local_window_size, score and scale. Dropout is left out, and tile and implementation do not matter.
        """
        known_options(options)
        q = self._linear_projection(query, self.key_size, "query")
        k = self._linear_projection(key, self.key_size, "key")
        v = self._linear_projection(value, self.value_size, "value")
        out = attend_heads(q, k, v, bias, mask, **options)
        joined = out.reshape(*out.shape[:-2], self.num_heads * self.value_size)
        more: dict[str, Any] = {"w_init": self.w_init, "with_bias": self.with_bias, "b_init": self.b_init}
        out = hk.Linear(self.model_size, **more)(joined)
        if measure is None:
            return out
        return out, measure_heads(q, k, bias, mask, rows=measure, name="measure", **options)
