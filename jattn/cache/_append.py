"""New tokens into a cache, and rows emptied."""

import dataclasses
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jattn import _errors
from jattn._numerics import match_varying_trees, on_automatic_axes, spec_of
from jattn._types import Array, ArrayLike, Float, Integer
from jattn.arguments.heads import per_row
from jattn.cache._buffers import NEVER, Ring
from jattn.cache._pages import Paged
from jattn.cache._store import Cache, tokens, write
from jattn.cache._validate import rows_of, shape_of

C = TypeVar("C", bound=Cache)


def append(
    cache: C,
    k: Float[ArrayLike, "B Hkv T D"],
    v: Float[ArrayLike, "B Hkv T Dv"],
    *,
    lengths: Integer[ArrayLike, " B"] | None = None,
    positions: Integer[ArrayLike, "B T"] | None = None,
) -> C:
    """The cache with T more tokens in each row: a prompt, or one step of decoding.

    Args:
      cache: of any kind.
      k: [B, Hkv, T, D], in the dtype of the cache, or any floating point for one in int8. Heads major.
      v: [B, Hkv, T, Dv].
      lengths: integers [B], how many of the T tokens each row takes, 0 ≤ n ≤ T; the others are padding and leave no
        trace. All of them if None.
      positions: integers [B, T], where the tokens stand; those that follow on the last token of the row if None
        (`next_positions`). They must grow along T.

    Returns:
      A cache of the same structure, so that nothing is compiled again. A row without room for all of its tokens is
      left as it was and has its flag `full` raised; a ring always has room. T = 0 changes nothing.

    Raises:
      TypeError: `cache` is not a cache, or a dtype is of the wrong kind.
      ValueError: shapes do not fit the cache; or, outside jit, a row has no room. (Inside, no value is known to raise
        by; outside, knowing it waits for the device.)

    Memory: a copy of the cache; none under `jax.jit(..., donate_argnums=...)`, where the new tokens are put in place.

    Source: Shazeer 2019, "Fast Transformer Decoding", section 2.4, for decoding step by step.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jattn import cache
      >>> k, v = jax.random.normal(jax.random.key(0), (2, 1, 1, 4, 8))
      >>> step = jax.jit(cache.append, donate_argnums=0)
      >>> c = step(cache.contiguous(B=1, Hkv=1, S=6, D=8), k, v)
      >>> c = step(c, k, v)  # 8 tokens do not fit into 6 places
      >>> print(c.length, c.full)
      [4] [ True]
    """
    caller = "append"
    B, Hkv, D, Dv = shape_of(caller, cache)
    k, v = _errors.array(caller, "k", k), _errors.array(caller, "v", v)
    remedy = "Heads stand before tokens: jax.numpy.swapaxes(x, 1, 2) turns [B, T, Hkv, D]."
    _errors.rank(caller, 4, "[B, Hkv, T, D]", remedy, k=k)
    _errors.rank(caller, 4, "[B, Hkv, T, Dv]", remedy, v=v)
    _errors.floating(caller, k=k, v=v)
    for name, x, width in (("k", k, D), ("v", v, Dv)):
        if (*x.shape[:2], x.shape[3]) != (B, Hkv, width):
            must = f"{name} must have the B, Hkv and {'D' if name == 'k' else 'Dv'} of the cache"
            got = {name: x, "cache": f"[{B}, {Hkv}, {cache.capacity}, {width}]"}
            swapped = (x.shape[0], *x.shape[2:]) == (B, Hkv, width)
            _errors.fail(ValueError, caller, must, remedy if swapped else "Make the cache for these shapes.", **got)
        kept = (cache.store.k if name == "k" else cache.store.v).dtype
        if kept not in (jnp.int8, x.dtype):
            got = {name: str(x.dtype), "cache": str(kept)}
            remedy = f"Convert it first, {name}.astype(...), or make the cache with this dtype."
            _errors.fail(TypeError, caller, f"{name} must have the dtype of the cache", remedy, **got)
    T = k.shape[2]
    if v.shape[2] != T:
        _errors.fail(ValueError, caller, "k and v must agree in T", "Each key needs its one value.", k=k, v=v)
    if lengths is not None:
        lengths = per_row(caller, "lengths", lengths, (B,), "[B]", "tokens")
    if positions is not None:
        positions = per_row(caller, "positions", positions, (B, T), "[B, T]", "tokens")
    if T == 0:
        return cache

    specs = spec_of(cache), PartitionSpec()
    written, refused = on_automatic_axes(_written, specs, *match_varying_trees(cache, k, v, lengths, positions))
    if _errors.known(refused) and _errors.read(refused):
        got = {"k": k, "cache": f"[{B}, {Hkv}, {cache.capacity}, {D}]"}
        remedy = "Make a longer cache or more pages, free rows, or use a ring where a window is enough."
        _errors.fail(ValueError, caller, "each row must have room for its new tokens", remedy, **got)
    return written


@jax.jit
def _written(
    cache: C, k: jax.Array, v: jax.Array, lengths: jax.Array | None, positions: jax.Array | None
) -> tuple[C, jax.Array]:
    """The cache with its new tokens, and whether a row had no room for them."""
    B, T = k.shape[0], k.shape[2]
    asked = jnp.full((B,), T, jnp.int32) if lengths is None else lengths.clip(0, T)
    at = _following(cache, T) if positions is None else positions
    room, n = cache.admit(asked)
    refused = (room.full & ~cache.full).any()
    room = room.written(n, at)
    stop = room.length + n
    begin = jnp.maximum(room.length, stop - room.capacity)
    size = room.store.C
    J = _pages_of(room, T)
    pages = room.pages(begin[:, None] // size + jnp.arange(J, dtype=jnp.int32)[None])
    store = write(room.store, tokens(room.store, k, v, at), pages, room.length, begin, stop)
    last = jnp.take_along_axis(at, jnp.maximum(n - 1, 0)[:, None], 1)[:, 0]
    following = jnp.where(n > 0, last + 1, room.next)
    return dataclasses.replace(room, store=store, length=stop, next=following), refused  # type: ignore[return-value]


def _pages_of(cache: Cache, T: Any) -> int:
    """How many pages T tokens may fall into; as many as a row has, where T is a symbol of jax.export."""
    size = cache.store.C
    if T == 1 or (cache.capacity == size and not isinstance(cache, Ring)):
        return 1
    most = -(-cache.capacity // size) + 1
    return min(most, (T - 2) // size + 2) if isinstance(T, int) else most


def next_positions(cache: Cache, T: int = 1) -> Integer[Array, "B T"]:
    """The positions that the next T tokens of each row will take, for rotary embeddings before `append`.

    Args:
      cache: of any kind.
      T: how many tokens.

    Returns:
      Integers [B, T], in tokens.

    Raises:
      TypeError: `cache` is not a cache, or T is not a whole number.
      ValueError: T is negative.

    Memory: B × T integers.

    Example:
      >>> from jattn import cache
      >>> print(cache.next_positions(cache.ring(B=1, Hkv=1, D=4, window=3, start=7), 2))
      [[7 8]]
    """
    caller = "next_positions"
    shape_of(caller, cache)
    return _following(cache, _errors.count(caller, "T", T))


@partial(jax.jit, static_argnums=1)
def _following(cache: Cache, T: int) -> jax.Array:
    return cache.next[:, None] + jnp.arange(T, dtype=jnp.int32)[None]


def free(cache: C, rows: Integer[ArrayLike, " R"]) -> C:
    """The cache with these rows emptied, and their pages, as far as no other row has them, there to be taken again.

    Args:
      cache: of any kind.
      rows: integers [R], 0 ≤ row < B; what lies outside is passed over.

    Returns:
      A cache of the same structure. An emptied row has length 0, starts at the position that the cache was made with
      (`start`) and is not `full`.

    Raises:
      TypeError: `cache` is not a cache, or rows are not integers.
      ValueError: rows have not the axis [R].

    Memory: as the cache; under donation nothing is copied.

    Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention",
    section 4.4, for pages that several rows have.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import cache
      >>> c = cache.contiguous(B=2, Hkv=1, S=4, D=2)
      >>> c = cache.append(c, jnp.ones((2, 1, 3, 2)), jnp.ones((2, 1, 3, 2)))
      >>> print(cache.free(c, jnp.array([1])).length)
      [3 0]
    """
    caller = "free"
    shape_of(caller, cache)
    freed: C = on_automatic_axes(_emptied, spec_of(cache), cache, rows_of(caller, "rows", rows))
    return freed


@jax.jit
def _emptied(cache: C, rows: jax.Array) -> C:
    emptied = (jnp.arange(cache.length.shape[0], dtype=jnp.int32)[:, None] == rows[None]).any(1)

    def reset(x: jax.Array, to: int | bool | jax.Array) -> jax.Array:
        return jnp.where(emptied.reshape(-1, *[1] * (x.ndim - 1)), jnp.asarray(to, x.dtype), x)

    counters = {"length": reset(cache.length, 0), "next": reset(cache.next, cache.start)}
    more = {"full": reset(cache.full, False)}
    if isinstance(cache, Ring):
        more["gone"] = reset(cache.gone, NEVER)
    if isinstance(cache, Paged):
        more["table"] = reset(cache.table, -1)
    return dataclasses.replace(cache, **counters, **more)  # type: ignore[arg-type]
