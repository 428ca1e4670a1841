"""A mask that is a list of key blocks for each block of queries."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._types import Array, ArrayLike, Bool, Integer
from jattn._values import show, static, value
from jattn.masks._algebra import Mask
from jattn.masks._counts import distance
from jattn.masks._tiles import BlockState, Spans, TileAxis, block_state, over_vectors

UNROLLED = 8
"""How many of the chosen blocks are compared in one pass over the pairs."""


@value
class ChosenBlocks(Mask):
    """See `chosen_blocks`."""

    looks_at_positions = True
    indices: Integer[Array, "Tb n"]
    size: int = static()
    q_size: int = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return over_vectors(self._of_vectors, q.positions, k.positions)

    def _of_vectors(self, t: jax.Array, s: jax.Array) -> jax.Array:
        """The allowed pairs of the positions [n] and [m]."""
        chosen, j = self._of_queries(t), s // self.size

        def compare(c: Any, allowed: jax.Array) -> jax.Array:
            return allowed | (jax.lax.dynamic_index_in_dim(chosen, c, 1) == j[None])

        found = jnp.zeros((t.shape[0], s.shape[0]), bool)
        return jax.lax.fori_loop(0, chosen.shape[1], compare, found, unroll=UNROLLED) & (j >= 0)[None]

    def _of_queries(self, t: jax.Array) -> jax.Array:
        """What the positions [n] have chosen: a position before or after all blocks of queries, none."""
        rows, i = self.indices.shape[0], t // self.q_size
        row = ((0, 0 if rows else 1), (0, 0))  # of no blocks there is no row to look up
        indices = jnp.pad(self.indices, row, constant_values=-1)
        return jnp.where(((i >= 0) & (i < rows))[:, None], indices[jnp.clip(i, 0, indices.shape[0] - 1)], -1)

    def by_rows(self, q_positions: jax.Array, k_positions: jax.Array, distances: jax.Array | None = None) -> Mask:
        chosen = self._of_queries(q_positions)
        in_range = (chosen >= 0) & (chosen <= _errors.MOST // self.size)
        return ChosenByRows(jnp.where(in_range, chosen * self.size, -1).T, self.size)

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        (rows, n), columns = self.indices.shape, jnp.arange(k.lowest.size, dtype=jnp.int32)
        low_k, high_k = (jnp.asarray(end, jnp.int32).reshape(1, -1) // self.size for end in (k.lowest, k.highest))
        ordered = jnp.sort(self.indices, axis=1)
        again = jnp.pad(ordered[:, 1:] == ordered[:, :-1], ((0, 0), (1, 0)))  # what is chosen twice counts once
        distinct = jnp.where(again, -1, ordered)

        def count(c: Any, total: jax.Array) -> jax.Array:
            block = jax.lax.dynamic_index_in_dim(distinct, c, 1)
            return total + ((block >= jnp.maximum(low_k, 0)) & (block <= high_k)).astype(jnp.int32)

        # Of each block of queries, how many blocks of each tile of keys it has chosen.
        start = jnp.zeros((rows, columns.shape[0]), jnp.int32)
        found = jax.lax.fori_loop(0, n, count, start, unroll=UNROLLED)
        low_q, high_q = q.lowest // self.q_size, q.highest // self.q_size + 1
        a, b = (jnp.clip(end, 0, rows) for end in (low_q, high_q))
        columns = columns.reshape(k.lowest.shape)

        def among(flags: jax.Array) -> jax.Array:
            """For how many of the query blocks of each tile a flag is set: a difference of sums from the first on."""
            sums = jnp.pad(jnp.cumsum(flags, 0, jnp.int32), ((1, 0), (0, 0)))
            return sums[b, columns] - sums[a, columns]

        every = among(found == high_k - low_k + 1) == b - a
        return block_state(among(found > 0) > 0, every & (a == low_q) & (b == high_q))

    def validate(self, caller: str, T: int, S: int, placed: bool) -> None:
        want = -(-T // self.q_size)
        if not placed and self.indices.shape[0] != want:
            remedy = f"One row for each {self.q_size} queries is {want} rows here; or say where the rows stand."
            must = "indices must have the shape [T / q_size, n]"
            _errors.fail(ValueError, caller, must, remedy, indices=self.indices)

    def __repr__(self) -> str:
        of_queries = "" if self.q_size == self.size else f", q_size={self.q_size}"
        return f"chosen_blocks({show(self.indices)}, {self.size}{of_queries})"


@value
class ChosenByRows(Mask):
    """`ChosenBlocks` in a kernel: where each block begins that a query has chosen, and -1 where an index names none."""

    looks_at_positions = True
    begins: Integer[Array, "n T"]
    size: int = static()

    def leaf_axes(self) -> list[str]:
        return ["nq"]

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        begin, n = k.positions - k.positions % self.size, self.begins.shape[0]
        if isinstance(self.begins, jax.Array):
            allowed = functools.reduce(operator.or_, (begin == self.begins[c : c + 1] for c in range(n)))
        else:  # of a GPU, which reads a row of entries at a time: all of them would not fit into registers
            of_one = lambda c, allowed: allowed | (begin == self.begins[c])  # noqa: E731
            allowed = jax.lax.fori_loop(0, n, of_one, jnp.zeros(begin.shape, bool))
        return allowed & (k.positions >= 0)


def chosen_blocks(
    indices: Integer[ArrayLike, "blocks n"] | Sequence[Sequence[int]], size: int, *, q_size: int | None = None
) -> Mask:
    """Block-sparse by choice: each block of queries attends the key blocks that its row of indices names.

        query t may attend key s  ⟺  s // size is in indices[t // q_size]

    Args:
      indices: integers [⌈T / q_size⌉, n], in any order, usually traced, and different for each example and head under
        jax.vmap. A negative one names no block, so that a row may name fewer than n; one that is named twice is
        attended once; one beyond the last key names nothing. With positions given, of the whole sequence.
      size: tokens of a block of keys, ≥ 1.
      q_size: tokens of a block of queries, ≥ 1; as `size` if None. With 1 each query chooses for itself.

    Returns:
      A mask. Only tiles that hold a chosen block are visited, in the value and in each derivative, and one in which
      every query block has chosen every key block is not masked. A position before or after the blocks of queries
      attends nothing. The choice has no derivative: `top_keys`, of one key for each block, has one of its logits.

    Raises:
      TypeError: indices are not integers, or a size is not a whole number.
      ValueError: indices have not two axes, or a size is less than 1. That there is a row for each block of T queries
        is checked where the mask is used.

    Memory: the indices, and ⌈T / q_size⌉ numbers for each tile of keys; for a kernel n numbers for each query.

    Source: Yuan et al. 2025, "Native sparse attention", section 3.3.2; Lu et al. 2025, "MoBA: mixture of block
      attention for long-context LLMs", section 2.2.

    Example:
      >>> import jax, jax.numpy as jnp, jattn
      >>> from jattn import masks
      >>> print(masks.picture(masks.chosen_blocks(jnp.array([[0, -1], [2, 0], [1, 2]]), 2), 6))
      ##····
      ##····
      ##··##
      ##··##
      ··####
      ··####

      The 2 blocks of 4 keys whose mean is nearest, for each block of 4 queries:

      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 16, 8))
      >>> means = [x.reshape(4, 4, 8).mean(1) for x in (q, k)]
      >>> indices, _ = jattn.top_keys(*means, 2, mask=masks.causal())
      >>> jattn.attention(q, k, v, mask=masks.chosen_blocks(indices, 4) & masks.causal()).shape
      (16, 8)
    """
    remedy = "An index is the number of a block: pass whole numbers."
    x = _errors.whole_numbers("chosen_blocks", "indices", indices, remedy)
    _errors.rank("chosen_blocks", 2, "[T / q_size, n]", "Map over a batch or heads with jax.vmap.", indices=x)
    size = distance("chosen_blocks", "size", size, least=1)
    q_size = size if q_size is None else distance("chosen_blocks", "q_size", q_size, least=1)
    none = ((0, 0), (0, 0 if x.shape[1] else 1))  # a row of no indices is one of an index that names no block
    return ChosenBlocks(jnp.pad(x, none, constant_values=-1), size, q_size)
