"""What the hosts share: their arrays in the form that `dot_product_attention` takes."""

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn.many_heads import dot_product_attention
from jattn.masks import Mask


def host(name: str) -> Any:
    """The library of that name, or an ImportError that says how to get it."""
    root = name.split(".")[0]
    if importlib.util.find_spec(root) is None:
        must = f"{root} must be installed for jattn.hosts.{root}"
        _errors.fail(ImportError, "hosts", must, "Run pip install 'jattn[hosts]'.", **{root: "not found"})
    return importlib.import_module(name)


def attend_heads(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any) -> jax.Array:
    """`dot_product_attention` with any number of batch axes before the tokens: [*B, T, N, H] and [*B, S, K, H]."""
    batch = query.shape[:-3]
    query, key, value = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
    if mask is not None and not isinstance(mask, Mask):
        mask = _folded(_booleans(mask), batch) if batch else _booleans(mask)
    if batch and bias is not None:
        bias = _folded(bias, batch)
    out = dot_product_attention(query, key, value, bias, mask, **options)
    return out.reshape(*batch, *out.shape[1:])


def _booleans(mask: Any) -> jax.Array:
    """The hosts read a mask by `where`, and flax hands over its own in float32: what is not 0 allows a pair."""
    mask = jnp.asarray(mask)
    return mask if mask.dtype == jnp.bool_ else mask != 0


def _folded(x: Any, batch: tuple[int, ...]) -> jax.Array:
    """[*B, N, T, S] → [B, N, T, S], the batch left at 1 where it is one for all, missing axes in front."""
    x = jnp.asarray(x)
    x = x.reshape((1,) * (len(batch) + 3 - x.ndim) + x.shape)
    if all(n == 1 for n in x.shape[:-3]):
        return x.reshape(1, *x.shape[-3:])
    return jnp.broadcast_to(x, (*batch, *x.shape[-3:])).reshape(-1, *x.shape[-3:])


def attend_broadcast_dropout(query: Any, key: Any, value: Any, bias: Any, mask: Any, **options: Any) -> jax.Array:
    """`attend_heads` with one draw of dropout for every head and every example."""
    batch, N = query.shape[:-3], query.shape[-2]
    key, value = (jnp.repeat(x, N // x.shape[-2], -2) for x in (key, value))
    q, k, v = (jnp.moveaxis(x.reshape(-1, *x.shape[-3:]), 2, 1)[:, :, :, None] for x in (query, key, value))
    mask = None if mask is None else _booleans(mask)
    pairs = {name: _folded(x, batch) for name, x in (("bias", bias), ("mask", mask)) if x is not None}
    over = [{name: None if x.shape[axis] == 1 else 0 for name, x in pairs.items()} for axis in (0, 1)]
    pairs = {name: x.squeeze(tuple(a for a in (0, 1) if x.shape[a] == 1)) for name, x in pairs.items()}

    def head(q: jax.Array, k: jax.Array, v: jax.Array, own: dict[str, Any]) -> jax.Array:
        return dot_product_attention(q, k, v, own.get("bias"), own.get("mask"), **options)

    out = jax.vmap(jax.vmap(head, (0, 0, 0, over[1])), (0, 0, 0, over[0]))(q, k, v, pairs)
    return jnp.moveaxis(out[:, :, :, 0], 1, 2).reshape(*batch, q.shape[2], N, v.shape[-1])
