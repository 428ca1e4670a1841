"""What a kernel is made of: for each outer tile, a fold over the inner tiles that it visits, whatever the platform."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jattn.engine.kernels.grid import Grid
from jattn.engine.kernels.layout import Call, Leaf
from jattn.masks import EMPTY


class Output(NamedTuple):
    """An array that a kernel makes of each head that it keeps apart."""

    shape: tuple[int, ...]
    role: str
    dtype: Any
    across: bool = False
    """Whether `finish` gives its blocks transposed."""


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel."""

    name: str
    call: Call
    grid: Grid
    operands: Any
    """A pytree of leaves."""
    outputs: Sequence[Output]
    carry: Sequence[tuple[int, ...]]
    """The shapes of what the fold carries, in the dtype of the arithmetic."""
    start: Callable[[Any], Sequence[jax.Array]]
    """operands → the carry before any tile; it looks at what belongs to the outer tile alone."""
    visit: Callable[[Any, Sequence[jax.Array], Any, Any, bool, bool], tuple[Sequence[jax.Array], Sequence[jax.Array]]]
    """operands, carry, i, j, masked, finite → the carry after tile (i, j), and what that tile alone has; `finite`: its
    tiles of q, k and v are none of `Call.nonfinite_tiles`."""
    finish: Callable[[Sequence[jax.Array], Any], Sequence[jax.Array]]
    """The carry after all tiles, and on a GPU the operands as at the start → the outputs but those to which every tile
    has its own part, which come last."""

    rows: Sequence[Leaf] = ()
    """What the forward pass found of each query."""
    of_tile: int = 0
    """How many of the outputs are one a tile."""
    of_offsets: int = 0
    """How many are one a head, to which each tile adds the sums that it has at its offsets. They come last of all."""

    @property
    def states(self) -> Leaf:
        """The block states, [heads, outer tiles, inner tiles]."""
        found, grid = self.call.states(), self.grid
        if grid.diagonals:
            i, j = grid.tile(np.arange(grid.outer)[:, None], np.arange(grid.inner))
            there = (i >= 0) & (i < self.call.plan.q_tiles)
            xp = np if isinstance(found.array, np.ndarray) else jnp
            along = xp.where(there, found.array[:, np.where(there, i, 0), j], EMPTY)
            return dataclasses.replace(found, array=along)
        return dataclasses.replace(found, array=found.array.swapaxes(1, 2)) if grid.keys_outer else found

    def tile_at(self, a: Any, b: Any) -> tuple[Any, Any]:
        """(i, j) of outer tile a and step b of its fold."""
        return self.grid.tile(a, self.grid.inner_tile(b))

    def is_nonfinite(self, tables: Sequence[Any], nonfinite: Sequence[Leaf], h: Any, b: Any, i: Any, j: Any) -> Any:
        """Whether tile (i, j) is of such a tile of q, k or v; `tables` are read at an index."""
        plan, grid = self.call.plan, self.grid
        counts = plan.q_tiles, plan.k_tiles, plan.k_tiles
        found = jnp.int32(0)
        for table, leaf, n, at in zip(tables, nonfinite, counts, (i, j, j), strict=True):
            found += table[grid.flat(leaf.own, h, b) * n + at]
        return found > 0
