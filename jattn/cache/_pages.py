"""Pages that rows take from a common pool as they grow, share, and give back.

The table says everything: a page is free when no row's table names it, so that nothing needs to be counted and no
count can go wrong. A page that is not yet full belongs to one row alone; only full ones, which nobody writes any
more, are shared.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jattn import _errors
from jattn._numerics import on_automatic_axes, spec_of
from jattn._types import Array, ArrayLike, Bool, DTypeLike, Integer
from jattn._values import value
from jattn.cache._buffers import _counters
from jattn.cache._store import Cache, empty, serialized
from jattn.cache._validate import rows_of, shape_of


@serialized
@value
class Paged(Cache):
    """See `paged`."""

    table: Integer[Array, "B M"]
    """Where the pages of each row lie, in order; −1 where it has none."""

    @property
    def capacity(self) -> int:
        return self.table.shape[1] * self.store.C

    def pages(self, numbers: Integer[Array, "B J"]) -> Integer[Array, "B J"]:
        own = jnp.take_along_axis(self.table, jnp.minimum(numbers, self.table.shape[1] - 1), 1)
        return jnp.maximum(own, 0)

    def admit(self, n: Integer[Array, " B"]) -> tuple[Cache, Integer[Array, " B"]]:
        have, want = (-(-x // self.store.C) for x in (self.length, self.length + n))
        short = want > self.table.shape[1]
        free, count = free_pages(self.table, self.store.k.shape[0])
        fits = served(jnp.where(short, free.shape[0] + 1, want - have), count)
        need = jnp.where(fits, want - have, 0)
        end = jnp.cumsum(need, dtype=jnp.int32)
        number = jnp.arange(self.table.shape[1], dtype=jnp.int32)[None]
        taken = fits[:, None] & (number >= have[:, None]) & (number < want[:, None])
        rank = (end - need)[:, None] + number - have[:, None]
        table = jnp.where(taken, free[jnp.clip(rank, 0, free.shape[0] - 1)], self.table)
        return dataclasses.replace(self, table=table, full=self.full | ~fits), jnp.where(fits, n, 0)


def served(need: Integer[Array, " B"], count: Integer[Array, ""]) -> Bool[Array, " B"]:
    """Which rows get all the pages that they need of `count`, in their order; the others take none.

    The first row that finds too few is refused, and with it each later one that needs more than are left there; then
    again without these. Where no row needs more than one page, as in a step of decoding, once is enough.
    """

    def refuse(refused: jax.Array) -> jax.Array:
        taken = jnp.where(refused, 0, need)
        beyond = jnp.cumsum(taken, dtype=jnp.int32) > count
        left = count - jnp.where(beyond, 0, taken).sum(dtype=jnp.int32)
        return refused | (beyond & (need > left))

    def too_many(refused: jax.Array) -> jax.Array:
        return jnp.where(refused, 0, need).sum(dtype=jnp.int32) > count

    return ~jax.lax.while_loop(too_many, refuse, refuse(need > count))


def free_pages(table: Integer[Array, "B M"], N: int) -> tuple[Integer[Array, " N"], Integer[Array, ""]]:
    """(the numbers of the pages, those that no row has first; how many these are)."""
    used = jnp.zeros((N,), bool).at[jnp.where(table < 0, N, table)].set(True, mode="drop")
    return jnp.argsort(used, stable=True).astype(jnp.int32), (~used).sum(dtype=jnp.int32)


def paged(
    B: int,
    Hkv: int,
    S: int,
    D: int,
    Dv: int | None = None,
    *,
    pages: int,
    page: int = 64,
    dtype: DTypeLike = jnp.float32,
    start: int = 0,
) -> Paged:
    """An empty cache of pages that rows take from one pool as they grow, share (`share`) and give back (`free`).

    Full: a row for whose new tokens the pool has not enough pages, or whose table has no place for them, takes none
    of them and raises its flag `full`, as in `contiguous`. Rows are served in their order; pages that one of them is
    refused are there for those after it.

    Args:
      B: rows of the batch, ≥ 1.
      Hkv: key/value heads, ≥ 1.
      S: the most tokens that a row may hold, ≥ 1, rounded up to whole pages.
      D: width of a key, ≥ 1.
      Dv: width of a value; D if None.
      pages: how many pages there are in all, ≥ 1.
      page: how many tokens a page holds, ≥ 1.
      dtype: floating point, or `jnp.int8` for bytes and one float32 scale per head and token.
      start: the position of the first token of each row.

    Returns:
      A `Paged`, a pytree with the fields length [B], next [B], full [B], start and table [B, M], M = ⌈S / page⌉.

    Raises:
      TypeError: a size is not a whole number, or the dtype is neither floating point nor int8.
      ValueError: a size is too small.

    Memory: pages · page · Hkv · (D + Dv) numbers of `dtype`, up to 13 bytes a token and head, 4 · B · M bytes.

    Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention",
      section 4.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import cache
      >>> c = cache.paged(B=3, Hkv=1, S=8, D=2, pages=5, page=2)
      >>> x = jnp.ones((3, 1, 5, 2))
      >>> c = cache.append(c, x, x, lengths=jnp.array([5, 0, 1]))
      >>> print(c.table)
      [[ 0  1  2 -1]
       [-1 -1 -1 -1]
       [ 3 -1 -1 -1]]
      >>> print(cache.share(c, 0, jnp.array([1])).table[1])  # two whole pages in common, and a copy of the begun one
      [ 0  1  4 -1]
    """
    caller = "paged"
    B, S = _errors.count(caller, "B", B, least=1), _errors.count(caller, "S", S, least=1)
    N, C = _errors.count(caller, "pages", pages, least=1), _errors.count(caller, "page", page, least=1)
    table = jax.device_put(np.full((B, -(-S // C)), -1, np.int32))
    return Paged(empty(caller, N, C, Hkv, D, Dv, dtype), *_counters(caller, B, start), table)


def share(cache: Paged, source: Integer[ArrayLike, ""], targets: Integer[ArrayLike, " R"]) -> Paged:
    """The cache in which other rows begin as the row `source`, with its whole pages in common.

    What the targets held is given back. The page that the source has begun to fill is copied, one for each target, so
    that both may go on writing.

    Args:
      cache: made by `paged`.
      source: the row to begin as, an integer 0 ≤ row < B, possibly traced.
      targets: integers [R], the rows that begin so; the source itself, and what lies outside of 0 ≤ row < B, are passed
        over. No row twice.

    Returns:
      A cache of the same structure. A target for which no page is left is emptied, as by `free`, and has its flag
      `full` raised.

    Raises:
      TypeError: `cache` is not a paged cache, or rows are not integers.
      ValueError: rows have the wrong axes; or, outside jit, the source is no row, or the pages do not suffice.

    Memory: as the cache; under donation R pages are copied.

    Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention",
      section 4.4.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import cache
      >>> c = cache.paged(B=2, Hkv=1, S=4, D=2, pages=2, page=2)
      >>> x = jnp.ones((2, 1, 4, 2))
      >>> c = cache.share(cache.append(c, x, x, lengths=jnp.array([4, 0])), 0, jnp.array([1]))
      >>> print(c.table, c.length)  # two pages hold eight tokens
      [[0 1]
       [0 1]] [4 4]
    """
    caller = "share"
    B = shape_of(caller, cache)[0]
    if not isinstance(cache, Paged):
        got = {"cache": f"of type {type(cache).__name__}"}
        _errors.fail(
            TypeError, caller, "cache must be paged", "Only pages are shared: make it with cache.paged.", **got
        )
    source = _errors.number_of(caller, "source", source, B, "B").astype(jnp.int32)
    targets = rows_of(caller, "targets", targets)
    shared, fits = on_automatic_axes(_shared, (spec_of(cache), PartitionSpec()), cache, source, targets)
    if _errors.known(fits) and not _errors.read(fits):
        remedy = "Make the cache with more pages, or free rows."
        got = {"targets": targets, "cache": f"of {cache.store.k.shape[0]} pages"}
        _errors.fail(ValueError, caller, "each target must find a page for what the source has begun", remedy, **got)
    return shared


@jax.jit
def _shared(cache: Paged, source: jax.Array, targets: jax.Array) -> tuple[Paged, jax.Array]:
    """The cache in which the targets begin as the source, and whether there was a page for each of them."""
    B = cache.length.shape[0]
    targets = jnp.where((targets == source) | (targets < 0), B, targets)

    C, M = cache.store.C, cache.table.shape[1]
    length = cache.length[source]
    begun, whole = length % C > 0, length // C
    number = jnp.arange(M, dtype=jnp.int32)[None]
    rest = cache.table.at[targets].set(-1, mode="drop")
    free, count = free_pages(rest, cache.store.k.shape[0])
    valid = targets < B
    need = jnp.where(valid & begun, 1, 0)
    end = jnp.cumsum(need, dtype=jnp.int32)
    fits = (need == 0) | (end <= count)
    own = free[jnp.clip(end - need, 0, free.shape[0] - 1)]
    rows = jnp.where(number < whole, cache.table[source][None], -1)
    rows = jnp.where((number == whole) & begun, own[:, None], rows)
    rows = jnp.where(fits[:, None], rows, -1)

    # A page that is not copied is put back as it was.
    here = jnp.maximum(cache.table[source, jnp.minimum(whole, M - 1)], 0)
    there = jnp.where((need > 0) & fits, own, here)

    def copy(store: Any, to: jax.Array) -> tuple[Any, None]:
        def one(x: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(x, jax.lax.dynamic_slice_in_dim(x, here, 1), to, 0)

        return jax.tree.map(one, store), None

    store = jax.lax.scan(copy, cache.store, there)[0]

    def begin(x: jax.Array, values: jax.Array) -> jax.Array:
        return x.at[targets].set(jnp.broadcast_to(values.astype(x.dtype), targets.shape), mode="drop")

    shared = dataclasses.replace(
        cache,
        store=store,
        table=rest.at[targets].set(jnp.broadcast_to(rows, (targets.shape[0], M)), mode="drop"),
        length=begin(cache.length, jnp.where(fits, length, 0)),
        next=begin(cache.next, jnp.where(fits, cache.next[source], cache.start)),
        full=begin(cache.full, ~fits | cache.full[source]),
    )
    return shared, fits.all()
