"""What the hosts share: their arrays in the form that `dot_product_attention` takes."""

import functools
import importlib.util
import math
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn.arguments import heads
from jattn.arguments.options import bias_array, known_rows, one_key, row_numbers
from jattn.many_heads import dot_product_attention, local_window
from jattn.masks import Mask, causal, dense, lengths
from jattn.one_head import weights_of
from jattn.per_query import statistics
from jattn.reference import Statistics


def host(name: str) -> Any:
    """The library of that name, or a ModuleNotFoundError that says how to get it."""
    root = name.split(".")[0]
    if importlib.util.find_spec(root) is None:
        _errors.missing("hosts", root, "hosts")
    return importlib.import_module(name)


def key_of_dropout(name: str, key: Any, off: str) -> jax.Array:
    """The key of dropout; its absence, and what is none, are refused by the name that the host has for it."""
    remedy = f"Pass a key of jax.random, {name}=jax.random.key(0), or {off}."
    if key is None:
        _errors.fail(ValueError, "hosts", f"{name} must be given where weights are dropped", remedy, **{name: "None"})
    if not isinstance(key, jax.Array | np.ndarray):  # as a number, or the Rngs of flax
        _errors.fail(TypeError, "hosts", f"{name} must be one key", remedy, **{name: _errors.kind_of(key)})
    return one_key("hosts", key, name)


def attend_heads(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any) -> jax.Array:
    """`dot_product_attention` with any number of batch axes before the tokens: [*B, T, N, H] and [*B, S, K, H]."""
    batch, (query, key, value) = _one_batch(query=query, key=key, value=value)
    pairs = _pairs(batch, query, key, bias, None if isinstance(mask, Mask) else mask)
    bias, mask = pairs.get("bias"), pairs.get("mask", mask)
    out = dot_product_attention(query, key, value, bias, mask, **options)
    return out.reshape(*batch, *out.shape[1:])


def _one_batch(**arrays: Any) -> tuple[tuple[int, ...], list[jax.Array]]:
    """*B, to which the batch axes of query, key and perhaps value broadcast, and each as [B, tokens, heads, width]."""
    arrays = {name: _errors.array("hosts", name, x) for name, x in arrays.items()}
    for name, x in arrays.items():
        if x.ndim < 3:
            must, remedy = f"{name} must have the axes [*B, tokens, heads, width]", "Give one head an axis: x[:, None]."
            _errors.fail(ValueError, "hosts", must, remedy, **{name: x})
    must, N = "the query heads N must be a multiple of the key heads", arrays["query"].shape[-2]
    for name, x in arrays.items():
        heads.group_size("hosts", N, x.shape[-2], must.replace("key", name), **arrays)
    _errors.floating("hosts", **arrays)
    query, key, value = arrays["query"], arrays["key"], arrays.get("value", arrays["key"])
    if key.shape[-3:-1] != value.shape[-3:-1]:
        must = "key and value must agree in their tokens and heads"
        _errors.fail(ValueError, "hosts", must, "Each key needs its one value.", key=key, value=value)
    if query.shape[-1] != key.shape[-1]:
        remedy = "Project one of them to the width of the other."
        _errors.fail(ValueError, "hosts", "query and key must agree in their width", remedy, query=query, key=key)
    _errors.width("hosts", "the width of query and key", query=query, key=key)
    try:
        batch = jnp.broadcast_shapes(*(x.shape[:-3] for x in arrays.values()))
    except ValueError:
        must = "the batch axes, those before the last three, must broadcast"
        _errors.fail(ValueError, "hosts", must, "Give each its full length or 1.", **arrays)
    full = (jnp.broadcast_to(x, (*batch, *x.shape[-3:])) for x in arrays.values())
    return batch, [x.reshape(math.prod(batch), *x.shape[-3:]) for x in full]


def _booleans(mask: Any) -> jax.Array:
    """The hosts read a mask by `where`, and flax hands over its own in float32: what is not 0 allows a pair."""
    if callable(mask):
        got = {"mask": f"of type {type(mask).__name__}"}
        remedy = _errors.call_it(Mask, mask, "Make a mask of a function: jattn.masks.where(f).", "mask=")
        _errors.fail(TypeError, "hosts", "mask must be a mask or an array", remedy, **got)
    mask = _errors.array("hosts", "mask", mask)
    return mask if mask.dtype == jnp.bool_ else mask != 0


def _pairs(batch: tuple[int, ...], query: Any, key: Any, bias: Any, mask: Any) -> dict[str, jax.Array]:
    """The bias and the mask, [*B, N, T, S] → [B, N, T, S], the batch left at 1 where it is one for all."""
    (T, N), S = query.shape[1:3], key.shape[1]
    given = {} if bias is None else {"bias": bias_array("hosts", bias)}
    given |= {} if mask is None else {"mask": _booleans(mask)}
    return {name: folded("hosts", name, x, batch, (N, T, S), "[*B, N, T, S]") for name, x in given.items()}


def folded(
    caller: str, name: str, x: jax.Array, batch: tuple[int, ...], pairs: tuple[int, ...], axes: str
) -> jax.Array:
    """[*B, N, T, S] → [B, N, T, S], the batch left at 1 where it is one for all, missing axes in front."""
    more = max(x.ndim - len(batch) - 3, 0)
    x = x if any(n != 1 for n in x.shape[:more]) else x.reshape(x.shape[more:])
    _errors.broadcastable(caller, name, x, (*batch, *pairs), axes)
    x = x.reshape((1,) * (len(batch) + 3 - x.ndim) + x.shape)
    if all(n == 1 for n in x.shape[:-3]):
        return x.reshape(1, *x.shape[-3:])
    return jnp.broadcast_to(x, (*batch, *x.shape[-3:])).reshape(math.prod(batch), *x.shape[-3:])


def chosen_rows(rows: Any, name: str = "rows") -> jax.Array:
    """Integers [R], the queries whose weights are asked for, or nothing at all."""
    return jnp.zeros(0, jnp.int32) if np.size(rows) == 0 else row_numbers("hosts", rows, name)


SHARED = ("score", "scale")
EACH = ("sink", "q_positions", "k_positions", "query_seq_lengths", "key_value_seq_lengths")
NO_PART = ("dropout_rate", "dropout_key", "tile", "implementation")
"""Options of `dot_product_attention` that are a part of a weight, alike for all heads, or with an entry a head or an
example; and that are none. Beside them `is_causal` and `local_window_size`, which make a mask."""


def known_options(options: Mapping[str, object]) -> None:
    """Refuses an option of a layer that `dot_product_attention` has not, or that would change what a layer returns."""
    names = ("is_causal", "local_window_size", *SHARED, *EACH, *NO_PART)
    unknown = sorted(options.keys() - {*names})
    if unknown:
        remedy = f"Beside mask, bias and measure there are {', '.join(names)}."
        if unknown[0] == "return_residual":
            remedy = "Pass measure=[]: the residual is lse of the statistics that are then returned."
        _errors.fail(TypeError, "hosts", "each option of a layer must be known", remedy, option=unknown[0])


class Measured(NamedTuple):
    """What is measured of each head, beside its output; no dropout is in it."""

    statistics: Statistics
    """As of `jattn.statistics`, arrays [*B, N, T]."""
    weights: jax.Array
    """[*B, N, R, S], of the R chosen queries, in float32 or wider."""


def measure_heads(
    query: Any,
    key: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    rows: Any,
    name: str = "rows",
    is_causal: bool = False,
    local_window_size: Any = None,
    **options: Any,
) -> Measured:
    """What `jattn.statistics` says of each head of `attend_heads`, at linear memory, and the weights of chosen rows.

    Args:
      query: [*B, T, N, H]. key: [*B, S, K, H].
      bias, mask: as in `attend_heads`.
      rows: integers [R], or nothing at all. name: what the caller calls them.
      is_causal, local_window_size, **options: as in `dot_product_attention`, in the shapes that are given there: score,
        scale, sink, positions and lengths. What is no part of a weight, as dropout and tile, is left out.
    """
    caller = "hosts"
    rows = chosen_rows(rows, name)
    batch, (query, key) = _one_batch(query=query, key=key)
    (T, N), (S, K) = query.shape[1:3], key.shape[1:3]
    known_rows(caller, rows, T, name, query=query)
    sided = [causal()] if is_causal else []
    sided += [] if local_window_size is None else [local_window(caller, local_window_size)]
    own = _entries(caller, query, S, K, {name: options.get(name) for name in EACH})
    if sided and not own.keys() & {"q_positions", "k_positions"}:
        # Without positions they are counted from the first rows, as in jax.nn.
        own |= {f"{side}_positions": (jnp.arange(n, dtype=jnp.int32), (None,) * 3) for side, n in (("q", T), ("k", S))}
    pairs = _pairs(batch, query, key, bias, None if isinstance(mask, Mask) else mask)
    for name, x in pairs.items():
        axes = tuple(None if x.shape[axis] == 1 else 0 for axis in (0, 1, 1))
        x = x[:, 0] if x.shape[1] == 1 else heads.split_heads(x, K, 1)
        own[name] = x[0] if x.shape[0] == 1 else x, axes
    everywhere = [*([mask] if isinstance(mask, Mask) else []), *sided]
    alike = {name: options.get(name) for name in SHARED}

    def head(q: jax.Array, k: jax.Array, _: jax.Array, own: dict[str, jax.Array]) -> Measured:
        allowed = [*everywhere, *([dense(own["mask"])] if "mask" in own else [])]
        filled = [own.get(f"{side}_seq_lengths") for side in ("query", "key_value")]
        allowed += [lengths(*filled)] if any(n is not None for n in filled) else []
        given: dict[str, Any] = {"mask": functools.reduce(operator.and_, allowed) if allowed else None, **alike}
        given |= {name: own.get(name) for name in ("bias", "q_positions", "k_positions")}
        found = statistics(q, k, sink=own.get("sink"), **given)
        return Measured(found, weights_of(q, k, found.lse, rows, **given))

    keys = jnp.moveaxis(key, 1, 2)
    over = [{name: axes[level] for name, (_, axes) in own.items()} for level in range(3)]
    arrays = {name: x for name, (x, _) in own.items()}
    found = heads.vmap_heads(head, over)(heads.heads_before_rows(query, K), keys, keys, arrays)
    return jax.tree.map(lambda x: x.reshape(*batch, N, *x.shape[3:]), found)


def _entries(
    caller: str, query: jax.Array, S: int, K: int, given: dict[str, Any]
) -> dict[str, tuple[jax.Array, tuple[int | None, ...]]]:
    """What has an entry a head or an example, of those that are not None, and its axes: of examples, of key/value
    heads, of the query heads of one of these."""
    B, T, N = query.shape[:3]
    found: dict[str, tuple[jax.Array, tuple[int | None, ...]]] = {}
    given = {name: x for name, x in given.items() if x is not None}
    for name, axes, n in (("q_positions", "[B, T]", T), ("k_positions", "[B, S]", S)):
        if name in given:
            x = heads.per_row(caller, name, given[name], (B, n), axes, "tokens", shared=True)
            found[name] = x, (0 if x.ndim == 2 else None, None, None)
    for name in given.keys() & {"query_seq_lengths", "key_value_seq_lengths"}:
        found[name] = heads.per_row(caller, name, given[name], (B,), "[B]", "rows"), (0, None, None)
    if "sink" in given:
        sink = jnp.broadcast_to(heads.sink_per_head(caller, given["sink"], N, "N"), (N,))
        found["sink"] = heads.split_heads(sink, K), (None, 0, 0)
    return found


def _one_a_head(x: jax.Array, N: int) -> jax.Array:
    """[B, tokens, K, width] → [B, tokens, N, width], as jnp.repeat, which takes no heads of an explicit mesh."""
    B, tokens, K, width = x.shape
    shared = jnp.broadcast_to(x[:, :, :, None], (B, tokens, K, N // K, width))
    return shared.reshape(B, tokens, N, width)


def attend_broadcast_dropout(query: Any, key: Any, value: Any, bias: Any, mask: Any, **options: Any) -> jax.Array:
    """`attend_heads` with one draw of dropout for every head and every example."""
    batch, arrays = _one_batch(query=query, key=key, value=value)
    shared = mask if isinstance(mask, Mask) else None
    pairs, N = _pairs(batch, arrays[0], arrays[1], bias, None if shared is not None else mask), query.shape[-2]
    q, k, v = (jnp.moveaxis(_one_a_head(x, N), 2, 1)[:, :, :, None] for x in arrays)
    over = [{name: None if x.shape[axis] == 1 else 0 for name, x in pairs.items()} for axis in (0, 1)]
    pairs = {name: x.squeeze(tuple(a for a in (0, 1) if x.shape[a] == 1)) for name, x in pairs.items()}

    def head(q: jax.Array, k: jax.Array, v: jax.Array, own: dict[str, Any]) -> jax.Array:
        return dot_product_attention(q, k, v, own.get("bias"), own.get("mask", shared), **options)

    out = jax.vmap(jax.vmap(head, (0, 0, 0, over[1])), (0, 0, 0, over[0]))(q, k, v, pairs)
    return jnp.moveaxis(out[:, :, :, 0], 1, 2).reshape(*batch, q.shape[2], N, v.shape[-1])
