"""What a mask is asked about: rows, the axes of one tile, the spans of many, and the block states that it answers."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jattn._types import Array, ArrayLike, Integer, NumPyArrayLike

EMPTY, PARTIAL, FULL = 0, 1, 2
"""What a tile of queries and keys is to a mask: no pair, some pairs, or every pair is allowed.

`&` is the minimum of two block states, `|` their maximum, and `~` is 2 minus one."""
BlockState: TypeAlias = int | np.integer | np.ndarray | jax.Array
"""One of these of a tile, or of each of many: in NumPy where it is known before anything is traced."""
Ends: TypeAlias = np.ndarray | jax.Array
"""One entry a tile: in NumPy where it is known before anything is traced."""


def block_state(some: ArrayLike, every: ArrayLike) -> BlockState:
    """What a tile is to a mask: EMPTY, PARTIAL or FULL, as none, some or all of its pairs are allowed.

    Args:
      some: whether some pair is allowed: a boolean, or an array of one entry a tile.
      every: whether every pair is, likewise.

    Returns:
      An integer, or int32 in an array: NumPy where both are known before anything is traced.

    Memory: one integer a tile.

    Source: Dong et al. 2024, "Flex Attention: a programming model for generating optimized attention kernels", whose
    BlockMask tells full blocks from partial ones.

    Example:
      >>> from jattn import masks
      >>> masks.block_state(True, False) == masks.PARTIAL
      True
    """
    if isinstance(some, bool) and isinstance(every, bool):
        return FULL if every else PARTIAL if some else EMPTY
    xp = jnp if isinstance(some, jax.Array) or isinstance(every, jax.Array) else np
    return xp.where(every, np.int32(FULL), xp.where(some, np.int32(PARTIAL), np.int32(EMPTY)))


class Rows(NamedTuple):
    """Some consecutive rows of q or of k: where they begin in their array, and their positions."""

    start: Integer[Array, ""] | int
    positions: Integer[Array, " n"]

    def along(self, axis: int) -> "TileAxis":
        """These rows as an axis of a tile, down (0) or across (1)."""
        numbers = self.start + jnp.arange(self.positions.shape[0], dtype=jnp.int32)
        return TileAxis(*(jnp.expand_dims(x, 1 - axis) for x in (numbers, self.positions)))

    def cut(self, x: jax.Array, axis: int) -> jax.Array:
        """These rows of an array that has one entry a row along `axis`, or one entry for all."""
        n = self.positions.shape[0]
        if x.shape[axis] in (1, n):
            return x
        return jax.lax.dynamic_slice_in_dim(x, self.start, n, axis, allow_negative_indices=False)


class TileAxis(NamedTuple):
    """The rows of q or of k that one tile has, along their axis of it: [n, 1] down, [1, n] across.

    What is computed of the axes of q and k broadcasts to the tile, whichever of the two is down.
    """

    numbers: Integer[Array, "..."]
    """The number of each row in its array."""
    positions: Integer[Array, "..."]
    """Where it stands in the sequence, in tokens."""


def over_vectors(f: Callable[[jax.Array, jax.Array], jax.Array], q: jax.Array, k: jax.Array) -> jax.Array:
    """f([n], [m]) → [n, m] of what lies along the axes of q and of k, laid as the tile is."""
    found = f(q.ravel(), k.ravel())
    return found.T if k.shape[0] > 1 or q.shape[1] > 1 else found


class Spans(NamedTuple):
    """The tiles of one axis: the rows that each holds, and the positions that these lie between, ends included.

    NumPy arrays where they are known before anything is traced, so that their block states are too.
    """

    first: Ends
    last: Ends
    lowest: Ends
    highest: Ends
    size: int
    """Rows from the first of a tile to the last, but for tiles that the array ends in."""

    @classmethod
    def at(cls, first: NumPyArrayLike, last: NumPyArrayLike, axis: int) -> "Spans":
        """Tiles of rows that stand at their own numbers, laid down (axis 0) or across (axis 1)."""
        first, last = (np.expand_dims(np.asarray(n, np.int32), 1 - axis) for n in (first, last))
        return cls(first, last, first, last, int(np.max(last - first, initial=0)) + 1)

    def of(self, x: Ends, reduce: Callable[..., Ends]) -> Ends:
        """`reduce(rows, axis=)` of each tile's rows of an array that has one entry a row."""
        n = self.first.size
        if self.cover(x.shape[0]):
            rows = x.reshape(n, self.size)
        else:
            rows = x[np.minimum(self.first.reshape(n, 1) + np.arange(self.size), self.last.reshape(n, 1))]
        return reduce(rows, axis=1).reshape(self.first.shape)

    def cover(self, rows: int) -> bool:
        """Whether the tiles are those that so many rows are cut into."""
        n = self.first.size
        # Of a symbolic number of tiles each is whole, and nothing about them is known yet.
        whole = isinstance(self.first, jax.Array) or (self.first.ravel() == np.arange(n) * self.size).all()
        return n * self.size == rows and bool(whole)
