"""Masks that look at rows: where an entry lies in the arrays passed, whatever its position."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._numerics import how_many_up_to
from jattn._types import Array, ArrayLike, Bool, Integer
from jattn._values import show, value
from jattn.masks._algebra import Mask, Pattern
from jattn.masks._counts import token_count
from jattn.masks._tiles import PARTIAL, BlockState, Ends, Spans, TileAxis, block_state


@value
class Lengths(Mask):
    """See `lengths`."""

    counts_rows = True

    q: Integer[Array, ""] | int | None
    k: Integer[Array, ""] | int | None

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        def filled(rows: TileAxis, n: Any) -> jax.Array:
            return jnp.ones((), bool) if n is None else rows.numbers < n

        return filled(q, self.q) & filled(k, self.k)

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        some: Ends | bool = True
        every: Ends | bool = True
        for tiles, n in ((q, self.q), (k, self.k)):
            if n is not None:
                some, every = (tiles.first < n) & some, (tiles.last < n) & every
        return block_state(some, every)

    def pattern(self) -> Pattern:
        return Pattern(False, None, *(() if n is None else (n,) for n in (self.q, self.k)))

    def __repr__(self) -> str:
        return f"lengths(q={show(self.q)}, k={show(self.k)})"


@value
class Dense(Mask):
    """See `dense`."""

    counts_rows = True

    array: Bool[Array, "T S"]

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return self.array

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        """By reading the array once, a row of tiles at a time: an attended pair costs many times that."""
        if 1 not in self.array.shape:
            if not all(isinstance(n, int) for n in self.array.shape):
                return PARTIAL  # JAX maps over no symbolic number of rows
            if q.first.size * k.first.size == 1:
                return PARTIAL  # what is known before tracing is worth more than one visit
            ends = (jnp.asarray(np.stack([x.first.ravel(), x.last.ravel()])) for x in (q, k))
            sizes = ((x.size, x.cover(n)) for x, n in zip((q, k), self.array.shape, strict=True))
            return block_state(*_some_and_every(self.array, *ends, *sizes))
        row = self.array.reshape(-1)
        spans = k if self.array.shape[0] == 1 else q
        if row.shape[0] == 1:
            return block_state(row[0], row[0])
        return block_state(spans.of(row, jnp.any), spans.of(row, jnp.all))

    def validate(self, caller: str, T: int, S: int, placed: bool) -> None:
        _errors.broadcastable(caller, "mask", self.array, (T, S), "[T, S]")

    def padded(self, T: int, S: int) -> Mask:
        more = [(0, 0 if have == 1 else want - have) for have, want in zip(self.array.shape, (T, S), strict=True)]
        return Dense(jnp.pad(self.array, more)) if any(n for _, n in more) else self

    def leaf_axes(self) -> list[str]:
        return ["qk"]

    def __repr__(self) -> str:
        return f"dense({show(self.array)})"


@partial(jax.jit, static_argnums=(3, 4))
def _some_and_every(
    array: jax.Array, q: jax.Array, k: jax.Array, of_q: tuple[int, bool], of_k: tuple[int, bool]
) -> tuple[jax.Array, jax.Array]:
    """Whether some pair, and whether every pair, of each tile is True: [tiles of q, tiles of k].

    The tiles are given by their first and last rows, how many rows they have, and whether these are all rows in turn.
    One row of tiles after another, first over queries: many times faster on a CPU than both at once.
    """
    (q_size, in_turn_q), (k_size, in_turn_k) = of_q, of_k
    keys = jnp.minimum(k[0][:, None] + jnp.arange(k_size, dtype=jnp.int32)[None, :], k[1][:, None])

    def tiles_of(x: jax.Array) -> jax.Array:
        return x.reshape(-1, k_size) if in_turn_k else x[keys]

    def row(ends: jax.Array) -> tuple[jax.Array, jax.Array]:
        if in_turn_q:
            allowed = jax.lax.dynamic_slice_in_dim(array, ends[0], q_size)
        else:
            allowed = array[jnp.minimum(ends[0] + jnp.arange(q_size, dtype=jnp.int32), ends[1])]
        return tiles_of(allowed.any(0)).any(1), tiles_of(allowed.all(0)).all(1)

    return jax.lax.map(row, q.T)


@value
class Segments(Mask):
    """See `segments`."""

    q: Integer[Array, " T"]
    k: Integer[Array, " S"] | None

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return self.q == self._of_keys

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        (low_q, high_q, seen_q), (low_k, high_k, seen_k) = _ids(self.q, q), _ids(self._of_keys, k)
        some = (low_q <= high_k) & (low_k <= high_q) & (seen_q & seen_k != 0)
        return block_state(some, (low_q == high_k) & (low_k == high_q))

    def validate(self, caller: str, T: int, S: int, placed: bool) -> None:
        if self.k is None and T != S:
            remedy = "Say which segment each key is in: segments(q_ids, k_ids)."
            _errors.fail(ValueError, caller, "k_ids must be given where T ≠ S", remedy, T=str(T), S=str(S))
        for name, axis, ids, n in (("q_ids", "T", self.q, T), ("k_ids", "S", self._of_keys, S)):
            if ids.shape != (n,):
                remedy = f"Give each row the number of its segment: {axis} is {n} here."
                _errors.fail(ValueError, caller, f"{name} must have the shape [{axis}]", remedy, **{name: ids})

    def split_qk(self) -> Mask:
        return Segments(self.q, self._of_keys)

    def leaf_axes(self) -> list[str]:
        return ["q", "k"]

    def padded(self, T: int, S: int) -> Mask:
        ids = (jnp.pad(x, (0, n - x.shape[0]), mode="edge") for x, n in ((self.q, T), (self._of_keys, S)))
        return Segments(*ids)

    @property
    def _of_keys(self) -> jax.Array:
        return self.q if self.k is None else self.k

    def __repr__(self) -> str:
        return f"segments({show(self.q)})" if self.k is None else f"segments({show(self.q)}, {show(self.k)})"


@value
class Ragged(Mask):
    """See `ragged`."""

    counts_rows = True

    q: Integer[Array, " ends"]
    k: Integer[Array, " ends"] | None

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        of_q, of_k = _sequence(self.q, q.numbers), _sequence(self._of_keys, k.numbers)
        return (of_q == of_k) & self._exist(of_q)

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        (low_q, high_q, whole_q), (low_k, high_k, whole_k) = _sequences(self.q, q), _sequences(self._of_keys, k)
        low, high = jnp.maximum(low_q, low_k), jnp.minimum(high_q, high_k)
        # How many sequences up to each have both queries and keys: one between low and high has them in these tiles.
        both = (jnp.diff(self.q) > 0) & (jnp.diff(self._of_keys) > 0)
        up_to = jnp.pad(jnp.cumsum(both, dtype=jnp.int32), (1, 1), mode="edge").at[0].set(0)
        some = (low <= high) & (up_to[high] > up_to[jnp.maximum(low - 1, 0)])
        return block_state(some, whole_q & whole_k & (low_q == high_k) & (low_k == high_q))

    def in_rows(self, T: int, S: int) -> Mask:
        return Segments(*_sequence_of_rows(self.q, self._of_keys, T, S))

    @property
    def _of_keys(self) -> jax.Array:
        return self.q if self.k is None else self.k

    def _exist(self, sequence: jax.Array) -> jax.Array:
        return (sequence > 0) & (sequence < self.q.shape[0])

    def __repr__(self) -> str:
        return f"ragged({show(self.q)})" if self.k is None else f"ragged({show(self.q)}, {show(self.k)})"


def _sequence(starts: jax.Array, rows: Any) -> jax.Array:
    """The sequence of each row, counted from 1; 0 before the first, N + 1 after the last."""
    return how_many_up_to(starts, jnp.asarray(rows))


@partial(jax.jit, static_argnums=(2, 3))
def _sequence_of_rows(q: jax.Array, k: jax.Array, T: int, S: int) -> tuple[jax.Array, jax.Array]:
    """The sequence of each query and key. Rows of none have numbers that the other side does not have."""
    of_q, of_k = (_sequence(x, jnp.arange(n, dtype=jnp.int32)) for x, n in ((q, T), (k, S)))
    of_k = jnp.where(of_k == 0, -1, jnp.where(of_k == k.shape[0], k.shape[0] + 1, of_k))
    return of_q, of_k


def _sequences(starts: jax.Array, tiles: Spans) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of each tile: the first and the last sequence that it has rows of, and whether every row of it is in one.

    Where no row is, the last is before the first.
    """
    first, last = jnp.maximum(tiles.first, starts[0]), jnp.minimum(tiles.last, starts[-1] - 1)
    high = jnp.where(first <= last, _sequence(starts, last), 0)
    return _sequence(starts, first), high, (first == tiles.first) & (last == tiles.last)


def _ids(ids: jax.Array, tiles: Spans) -> tuple[Ends, Ends, Ends]:
    """Of each tile: its lowest and its highest id, and which of 32 remainders occur among them, as bits.

    Ids in no order are told apart by the bits; the ids of documents packed in order by the ends alone.
    """
    bits = jnp.left_shift(jnp.uint32(1), (ids & 31).astype(jnp.uint32))
    return tiles.of(ids, jnp.min), tiles.of(ids, jnp.max), tiles.of(bits, jnp.bitwise_or.reduce)


def lengths(q: Integer[ArrayLike, ""] | None = None, k: Integer[ArrayLike, ""] | None = None) -> Mask:
    """Only the first `q` rows of q and the first `k` rows of k exist; the rest is padding.

    Counts rows of the arrays, whatever the positions say.

    Args:
      q: how many rows of q are filled: a whole number or an integer scalar, possibly traced (map over a
        batch of lengths with jax.vmap), or None for all.
      k: how many rows of k and v are filled, likewise.

    Returns:
      A mask. A length beyond the array means all of it; a length of 0 or less, nothing.

    Raises:
      TypeError: a length is not a scalar integer.
      ValueError: neither is given.

    Memory: that of its numbers: no pair is written out.

    Source: `query_seq_lengths` and `key_value_seq_lengths` of jax.nn.dot_product_attention.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.lengths(q=2, k=3), 3, 5))
      ###··
      ###··
      ·····
    """
    if q is None and k is None:
        remedy = "Say how many rows are filled: lengths(k=5)."
        _errors.fail(ValueError, "lengths", "q or k must be given", remedy, q="None", k="None")
    return Lengths(
        *(None if n is None else token_count("lengths", name, n, "rows") for name, n in (("q", q), ("k", k)))
    )


def dense(array: Bool[ArrayLike, "T S"] | Sequence[Sequence[bool]]) -> Mask:
    """The pairs that a boolean array marks True.

    Args:
      array: boolean, [T, S], or with 1 in place of either.

    Returns:
      A mask over the rows of the arrays, whatever the positions say.

    Raises:
      TypeError: the array is not boolean.
      ValueError: it has not two axes. That it belongs to T queries and S keys is checked where it is used.

    Memory: the array, which is the caller's own T × S. Each pass reads it once, to find the tiles that need no visit.

    Source: `mask` of jax.nn.dot_product_attention, for one head.

    Example:
      >>> import numpy as np
      >>> from jattn import masks
      >>> masks.dense(np.eye(3, dtype=bool)) & masks.causal()
      dense(bool[3,3]) & causal()
      >>> print(masks.picture(masks.dense(np.array([[True, False, True, True]])), 2, 4))  # one row for all queries
      #·##
      #·##
    """
    x = _errors.array("dense", "array", array)
    remedy = "True allows a pair: of zeros and ones make array != 0. An additive mask is a bias: attention(bias=...)."
    _errors.kind("dense", "array", x, jnp.bool_, remedy)
    _errors.rank("dense", 2, "[T, S]", "Map over a batch or heads with jax.vmap.", array=x)
    return Dense(x)


def segments(
    q_ids: Integer[ArrayLike, " T"] | Sequence[int], k_ids: Integer[ArrayLike, " S"] | Sequence[int] | None = None
) -> Mask:
    """Rows of one segment attend each other: documents packed into one row, images of one batch, sets within a set.

    Asks for rows of the arrays, whatever the positions say.

    Args:
      q_ids: integers [T], the segment of each row of q, in any order, possibly traced.
      k_ids: integers [S], the segment of each row of k and v; as `q_ids` if None, which asks for T = S.

    Returns:
      A mask. `segments(ids) & causal()` is causal attention within each document. Padding is a segment of its own, or
      a matter of `lengths`. A query whose segment no key has attends nothing.

    Raises:
      TypeError: ids are not integers.
      ValueError: they have not one axis, or int32 does not hold them and JAX has no 64 bits. That there is one for each
        row is checked where the mask is used.

    Memory: the ids.

    Source: Krell et al. 2021, "Efficient sequence packing without cross-contamination", section 3.2.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.segments([0, 0, 1, 1, 1]), 5))
      ##···
      ##···
      ··###
      ··###
      ··###
    """
    given = {"q_ids": q_ids} if k_ids is None else {"q_ids": q_ids, "k_ids": k_ids}
    if jax.dtypes.canonicalize_dtype(np.int64).itemsize <= 4:
        for name, x in given.items():
            if getattr(x, "dtype", None) != np.uint32:  # which int32 tells apart too
                remedy = "Number the segments from 0, or enable 64 bits in JAX (jax_enable_x64)."
                _errors.in_int32("segments", name, x, remedy)
    ids = [_errors.array("segments", name, x) for name, x in given.items()]
    for name, x in zip(given, ids, strict=True):
        _errors.kind("segments", name, x, jnp.integer, "An id is the number of a segment: pass whole numbers.")
        _errors.rank("segments", 1, "[T]" if name == "q_ids" else "[S]", "Map over a batch with jax.vmap.", **{name: x})
    widest = max((x.dtype for x in ids), key=lambda dtype: dtype.itemsize)
    dtype = jnp.int64 if widest.itemsize > 4 else jnp.int32  # a uint32 wraps, which keeps apart what is apart
    return Segments(ids[0].astype(dtype), None if k_ids is None else ids[1].astype(dtype))


def ragged(
    starts: Integer[ArrayLike, " ends"] | Sequence[int],
    k_starts: Integer[ArrayLike, " ends"] | Sequence[int] | None = None,
) -> Mask:
    """Rows of one sequence attend each other: sequences of any lengths one after another, by their cumulative lengths.

        query t may attend key s  ⟺  starts[n] ≤ t < starts[n + 1] and k_starts[n] ≤ s < k_starts[n + 1] for some n

    Counts rows of the arrays, whatever the positions say.

    Args:
      starts: integers [N + 1], where each of N sequences starts in q and where the last ends: `cu_seqlens` elsewhere.
        Possibly traced.
      k_starts: likewise in k and v; as `starts` if None.

    Returns:
      A mask. A row before the first start or after the last attends nothing and is attended by nothing. A start below
      an earlier one counts as that one: the sequence before it is empty. A query whose sequence has no key attends
      nothing.

    Raises:
      TypeError: starts are not integers.
      ValueError: they have not one axis or are empty, or there are not as many of keys as of queries.

    Memory: two integers a row, while it is attended.

    Source: Dao et al. 2022, "FlashAttention", whose variable-length interface names them; Krell et al. 2021,
      "Efficient sequence packing without cross-contamination", section 3.2.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.ragged([0, 2, 5]), 6))
      ##····
      ##····
      ··###·
      ··###·
      ··###·
      ······
    """
    found = _errors.starts("ragged", starts, k_starts)
    return Ragged(found[0], None if k_starts is None else found[1])
