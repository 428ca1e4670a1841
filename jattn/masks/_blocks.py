"""Masks that cut the sequence into blocks of one size, from position 0."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._types import Array, ArrayLike, Bool
from jattn._values import show, static, value
from jattn.masks._algebra import Mask
from jattn.masks._counts import distance
from jattn.masks._tiles import BlockState, Spans, TileAxis, block_state, over_vectors


@value
class Chunked(Mask):
    """See `chunked`."""

    looks_at_positions = True
    size: int = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        # Rounded down without `//`, which asks which TPU there is, and fails where a program is only compiled for one.
        chunk_q, chunk_k = (x.positions - x.positions % self.size for x in (q, k))
        return chunk_q == chunk_k

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        (low_q, high_q), (low_k, high_k) = ((x.lowest // self.size, x.highest // self.size) for x in (q, k))
        return block_state((low_q <= high_k) & (low_k <= high_q), (low_q == high_k) & (low_k == high_q))

    def __repr__(self) -> str:
        return f"chunked({self.size})"


@value
class Blocks(Mask):
    """See `blocks`."""

    looks_at_positions = True
    reads_entries = True
    table: Bool[Array, "Tb Sb"]
    size: int = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        in_kernel = q.positions.shape == k.positions.shape  # each laid out over the whole tile, transposed
        if in_kernel and isinstance(self.table, jax.Array):
            return self._by_products(q.positions[:1], k.positions[:, :1])
        (i, i_there), (j, j_there) = (self._of(x.positions, n) for x, n in zip((q, k), self.table.shape, strict=True))
        if in_kernel:  # of a GPU, which reads an entry for each pair
            return self.table[i, j] & i_there & j_there
        # Whole rows and then columns of the table: many times faster on a CPU than an entry for each pair.
        return over_vectors(lambda i, j: self.table[i][:, j], i, j) & i_there & j_there

    def _by_products(self, t: jax.Array, s: jax.Array) -> jax.Array:
        """The allowed pairs of positions [1, n] and [m, 1]: [m, n]. A kernel cannot gather: of sums with one term
        that is not 0, products of matrices find the entries, exactly in any precision."""

        def within(positions: jax.Array, blocks: int, axis: int) -> jax.Array:
            shape = (positions.size, blocks) if axis else (blocks, positions.size)
            first = jax.lax.broadcasted_iota(jnp.int32, shape, axis) * self.size
            return ((positions >= first) & (positions < first + self.size)).astype(jnp.float32)

        rows, columns = self.table.shape
        of_queries = jax.lax.dot_general(self.table.astype(jnp.float32), within(t, rows, 0), (((0,), (0,)), ((), ())))
        return within(s, columns, 1) @ of_queries > 0.5

    def _of(self, positions: Any, n: int) -> tuple[Any, Any]:
        """The block of each position among n, and whether there is one."""
        block = positions // self.size
        return jnp.clip(block, 0, n - 1), (block >= 0) & (block < n)

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        # Sums over all blocks above and to the left: four of them give the sum over any rectangle.
        sums = jnp.pad(jnp.cumsum(jnp.cumsum(self.table, 0, jnp.int32), 1, jnp.int32), ((1, 0), (1, 0)))
        ends = [(x.lowest // self.size, x.highest // self.size + 1) for x in (q, k)]
        (a, b), (c, d) = ([jnp.clip(end, 0, n) for end in two] for two, n in zip(ends, self.table.shape, strict=True))
        allowed = sums[b, d] - sums[a, d] - sums[b, c] + sums[a, c]
        (low_q, high_q), (low_k, high_k) = ends
        inside = (a == low_q) & (b == high_q) & (c == low_k) & (d == high_k)
        return block_state(allowed > 0, inside & (allowed == (b - a) * (d - c)))

    def validate(self, caller: str, T: int, S: int, placed: bool) -> None:
        want = tuple(-(-n // self.size) for n in (T, S))
        if not placed and self.table.shape != want:
            remedy = (
                f"One entry for each block of {self.size} tokens is {list(want)} here; or say where the rows stand."
            )
            _errors.fail(ValueError, caller, "table must have the shape [T / size, S / size]", remedy, table=self.table)

    def __repr__(self) -> str:
        return f"blocks({show(self.table)}, {self.size})"


def chunked(size: int) -> Mask:
    """A query attends the keys of its own chunk: the sequence is cut into chunks of `size` tokens, from position 0.

    Args:
      size: tokens, ≥ 1.

    Returns:
      A mask. `chunked(size) & causal()` is causal within each chunk.

    Raises:
      TypeError: the size is not a whole number.
      ValueError: it is less than 1.

    Memory: that of its numbers: no pair is written out.

    Source: Parmar et al. 2018, "Image transformer", section 3.3, where the blocks are chunks of this kind.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.chunked(2), 5))
      ##···
      ##···
      ··##·
      ··##·
      ····#
    """
    return Chunked(distance("chunked", "size", size, least=1))


def blocks(table: Bool[ArrayLike, "down across"] | Sequence[Sequence[bool]], size: int) -> Mask:
    """Block-sparse: the table says of each block of `size` × `size` pairs whether it is allowed.

        query t may attend key s  ⟺  table[t // size, s // size]

    Args:
      table: boolean, [⌈T / size⌉, ⌈S / size⌉], possibly traced. With positions given, of the whole sequence.
      size: tokens a side, ≥ 1. Blocks as large as the engine's tiles, or larger, cost nothing where they are False.

    Returns:
      A mask. A position beyond the table is not allowed.

    Raises:
      TypeError: the table is not boolean, or the size not a whole number.
      ValueError: the table has not two axes or is empty, or the size is less than 1. That it covers T queries and
        S keys is checked where the mask is used.

    Memory: the table.

    Source: Child et al. 2019, "Generating long sequences with sparse transformers", section 5.5.

    Example:
      >>> import numpy as np
      >>> from jattn import masks
      >>> print(masks.picture(masks.blocks(np.array([[True, False], [True, True]]), 2), 4))
      ##··
      ##··
      ####
      ####
    """
    x = _errors.array("blocks", "table", table)
    _errors.kind("blocks", "table", x, jnp.bool_, "True allows a block.")
    _errors.rank("blocks", 2, "[T / size, S / size]", "Map over a batch or heads with jax.vmap.", table=x)
    if x.size == 0:
        must, remedy = "table must have an entry", "For nothing to be allowed pass masks.empty()."
        _errors.fail(ValueError, "blocks", must, remedy, table=x)
    return Blocks(x, distance("blocks", "size", size, least=1))
