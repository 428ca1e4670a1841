"""For flax: `attention_fn`, which flax.nnx.MultiHeadAttention and flax.linen's modules take as an argument.

>>> import jax.numpy as jnp
>>> from flax import nnx
>>> from jattn.hosts.flax import attention_fn
>>> layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0), attention_fn=attention_fn)
>>> layer(jnp.ones((3, 5, 8))).shape
(3, 5, 8)
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._numerics import promoted
from jattn._types import Array, ArrayLike, DTypeLike, Float, Integer, PRNGKey
from jattn.arguments.options import dropout_share, drops
from jattn.hosts._attend import (
    attend_broadcast_dropout,
    attend_heads,
    chosen_rows,
    host,
    key_of_dropout,
    measure_heads,
)
from jattn.masks import Mask

__all__ = ["Sows", "attention_fn"]

_flax = host("flax")


@runtime_checkable
class Sows(Protocol):
    """A module of flax, of nnx or linen: what keeps intermediates."""

    def sow(self, kind: str, name: str, value: object, /) -> bool: ...


def attention_fn(
    query: Float[ArrayLike, "*B T N H"],
    key: Float[ArrayLike, "*B S K H"],
    value: Float[ArrayLike, "*B S K Hv"],
    bias: ArrayLike | None = None,
    mask: Mask | ArrayLike | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: PRNGKey | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: Sows | None = None,
    is_causal: bool = False,
    *,
    rows: Integer[ArrayLike, " R"] | Sequence[int] | None = None,
    statistics: bool = False,
    qk_attn_weights_einsum: None = None,
    attn_weights_value_einsum: None = None,
) -> Float[Array, "*B T N Hv"]:
    """Attention under the signature of flax.nnx.dot_product_attention and flax.linen's.

    Args:
      query: [*B, T, N, H]. key: [*B, S, K, H]. value: [*B, S, K, Hv], N a multiple of K.
      bias, mask: of any shape that broadcasts to [*B, N, T, S]. The mask may also be a value of `jattn.masks`, but in a
        layer with decode=True, which joins it to a mask of its own.
      broadcast_dropout: one draw of dropout for all heads and examples, instead of one for each.
      dropout_rng: a key of jax.random. dropout_rate: the share of weights that are dropped, unless `deterministic`.
      dtype: in which query, key and value are taken; that which they have together if None.
      precision: of matrix products, as in jax.lax.Precision; of one for each operand the higher is that of both.
      module: a module of flax that keeps `attention_weights` [*B, N, T, S], with its `sow`: what flax passes where it
        is called with sow_weights=True. T × S memory, and no dropout is in them.
      is_causal: query t attends keys s ≤ t, counted from the first rows.
      rows: integers [R], the queries whose weights [*B, N, R, S] the module keeps; all of them if None, none if empty.
      statistics: the module also keeps `attention_statistics`, what `jattn.statistics` says of each head: arrays
        [*B, N, T], at linear memory. Give `rows` and `statistics` with functools.partial, as the example does; without
        a module, as in a call of the layer without sow_weights=True, nothing is measured.
      qk_attn_weights_einsum, attn_weights_value_einsum: refused. A layer of linen that is given classes of them, as to
        quantise its products, leaves them out where its attention_fn does not name them.

    Returns:
      [*B, T, N, Hv]. Where it drops, it drops other weights than flax for the same key. A query that may attend no key
      gives zeros, where flax gives the mean of all values.

    Raises:
      TypeError, ValueError: as `dot_product_attention`; or a precision that JAX does not know; or a module that keeps
        nothing; or `statistics` is no bool; or `deterministic` or `broadcast_dropout` is none where weights may be
        dropped; or a known dropout_rate is not in [0, 1); or `rows` are not rows of query.
      NotImplementedError: an einsum of the caller's own.

    Memory: linear in T and S, unless a module keeps the weights; R · S of a head for those of R rows.

    Source: flax.nnx.dot_product_attention, for the signature.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jattn.hosts.flax import attention_fn
      >>> query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 5, 4, 8))
      >>> attention_fn(query, key, value, is_causal=True, deterministic=True).shape
      (2, 5, 4, 8)

      The maximum logit and the entropy of each head of a layer, and the weights of the last query alone:

      >>> import functools
      >>> from flax import linen
      >>> attention_fn = functools.partial(attention_fn, rows=jax.numpy.array([4]), statistics=True)
      >>> layer, x = linen.MultiHeadDotProductAttention(4, attention_fn=attention_fn), query.reshape(2, 5, 32)
      >>> params = layer.init(jax.random.key(1), x)
      >>> _, kept = layer.apply(params, x, sow_weights=True, mutable=["intermediates"])
      >>> (found,), (weights,) = (kept["intermediates"][f"attention_{name}"] for name in ("statistics", "weights"))
      >>> found.max_logit.shape, found.entropy.shape, weights.shape
      ((2, 4, 5), (2, 4, 5), (2, 4, 1, 5))
    """
    own = {"qk_attn_weights_einsum": qk_attn_weights_einsum, "attn_weights_value_einsum": attn_weights_value_einsum}
    for name, einsum in own.items():
        if einsum is not None:
            must, remedy = f"{name} must be None", "Leave it out, or keep the attention of flax for this layer."
            _errors.fail(NotImplementedError, "hosts", must, remedy, **{name: _errors.kind_of(einsum)})
    if module is not None and not isinstance(module, Sows):
        must, remedy = "module must be one of flax, which has sow", "Leave it out where nothing is to be kept."
        _errors.fail(TypeError, "hosts", must, remedy, module=_errors.kind_of(module))
    rows = None if rows is None else chosen_rows(rows)
    is_causal = _errors.flag("hosts", "is_causal", is_causal)
    statistics = _errors.flag("hosts", "statistics", statistics)
    given = {"query": query, "key": key, "value": value}
    query, key, value = (_errors.array("hosts", name, x) for name, x in given.items())
    if dtype is None:
        dtype = promoted(query.dtype, key.dtype, value.dtype)
    else:
        dtype = _errors.dtype("hosts", dtype, "Pass one of jax.numpy, as in dtype=jax.numpy.float32.")
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    if drops(dropout_rate):  # also where `deterministic`, as the layers of flax say of any rate below 0
        dropout_share("hosts", dropout_rate)
    dropping = drops(dropout_rate) and not _errors.flag("hosts", "deterministic", deterministic)
    if dropping:
        broadcast_dropout = _errors.flag("hosts", "broadcast_dropout", broadcast_dropout)
        dropout_rng = key_of_dropout("dropout_rng", dropout_rng, "deterministic=True")
    options = {"is_causal": is_causal} | (
        {"dropout_rate": dropout_rate, "dropout_key": dropout_rng} if dropping else {}
    )
    with _products(precision):
        if module is not None:
            for name, x in _kept(query, key, bias, mask, is_causal, rows, statistics).items():
                _keep(module, name, x)
        f = attend_broadcast_dropout if dropping and broadcast_dropout else attend_heads
        return f(query, key, value, bias, mask, **options)


def _products(precision: Any) -> contextlib.AbstractContextManager[Any]:
    """Around matrix products, which are of that precision in it."""
    if precision is None:
        return contextlib.nullcontext()
    try:
        return jax.default_matmul_precision(_name_of(precision))
    except (TypeError, ValueError):
        remedy = "Pass one of jax.lax.Precision, as in precision='highest'."
        _errors.fail(ValueError, "hosts", "precision must be known to JAX", remedy, precision=repr(precision))


def _name_of(precision: Any) -> Any:
    """The name under which `jax.default_matmul_precision` knows a precision: it takes no member of an enumeration."""
    if isinstance(precision, tuple):
        first, second = map(jax.lax.Precision, precision)
        precision = max(first, second, key=lambda x: x.value)
    if isinstance(precision, jax.lax.Precision):
        return precision.name.lower()
    return precision.name if isinstance(precision, jax.lax.DotAlgorithmPreset) else precision


def _kept(query: Any, key: Any, bias: Any, mask: Any, is_causal: bool, rows: Any, statistics: bool) -> dict[str, Any]:
    """What a module keeps, by the name under which it does."""
    kept: dict[str, Any] = {}
    if statistics or rows is not None:
        found = measure_heads(query, key, bias, mask, rows=() if rows is None else rows, is_causal=is_causal)
        kept |= {"attention_statistics": found.statistics} if statistics else {}
        kept |= {"attention_weights": found.weights.astype(query.dtype)} if found.weights.shape[-2] else {}
    return kept | ({"attention_weights": _weights(query, key, bias, mask, is_causal)} if rows is None else {})


def _weights(query: Any, key: Any, bias: Any, mask: Any, is_causal: bool) -> jax.Array:
    """[*B, N, T, S]: the values of an attention whose values are the unit vectors."""
    S = key.shape[-3]
    units = jnp.broadcast_to(jnp.eye(S, dtype=query.dtype)[:, None], (*key.shape[:-1], S))
    return jnp.moveaxis(attend_heads(query, key, units, bias, mask, is_causal=is_causal), -3, -2)


def _keep(module: Any, name: str, x: Any) -> None:
    """As flax's own attention does: among the intermediates."""
    nnx = host("flax.nnx")
    kind = nnx.Intermediate if isinstance(module, nnx.Module) else "intermediates"
    module.sow(kind, name, x)
