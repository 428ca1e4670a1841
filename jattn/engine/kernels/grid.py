"""The grid of a kernel: one axis for all levels of a batch, then the tiles of one side, then those of the other."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jattn.engine.plan import Plan


@dataclasses.dataclass(frozen=True)
class Grid:
    """The grid of a kernel: the heads that it keeps apart, the tiles of one side, then those of the other side.

    With `keys_outer` each key tile visits its query tiles, of all heads that share it; with `diagonals`, which only the
    GPU has, the tiles of a diagonal are visited, whose pairs lie at the same distances; else each query tile of a head
    visits its key tiles. Tiles that the mask calls EMPTY are passed over, and nothing is fetched for them.
    """

    plan: Plan
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    keys_outer: bool = False
    diagonals: bool = False

    @property
    def shared(self) -> tuple[int, ...]:
        """The levels that one outer tile visits all of."""
        return tuple(level for level in range(len(self.sizes)) if level not in self.kept)

    @property
    def outer(self) -> int:
        if self.diagonals:
            return self.plan.q_tiles + self.plan.k_tiles - 1
        return self.plan.k_tiles if self.keys_outer else self.plan.q_tiles

    @property
    def inner(self) -> int:
        return self.plan.q_tiles if self.keys_outer else self.plan.k_tiles

    def count(self, levels: Sequence[int]) -> int:
        return math.prod(self.sizes[level] for level in levels)

    @property
    def steps(self) -> tuple[int, int, int]:
        """How many it has along each of its axes."""
        return self.count(self.kept), self.outer, self.count(self.shared) * self.inner

    def indices(self, h: Any, b: Any) -> dict[int, Any]:
        """The index of each level at a step of the grid."""
        r = jax.lax.div(b, jnp.int32(self.inner)) if self.shared else None
        return self._digits(h, self.kept) | self._digits(r, self.shared)

    def _digits(self, n: Any, levels: Sequence[int]) -> dict[int, Any]:
        found = {}
        for place, level in enumerate(levels):
            below = self.count(levels[place + 1 :])
            digit = jax.lax.div(n, jnp.int32(below)) if below > 1 else n
            found[level] = jax.lax.rem(digit, jnp.int32(self.sizes[level])) if place else digit
        return found

    def flat(self, own: Sequence[int], h: Any, b: Any) -> Any:
        """The index along the leading axis of a leaf with the levels `own`."""
        at = self.indices(h, b)
        index: Any = jnp.int32(0)
        for level in own:
            index = index * self.sizes[level] + at[level]
        return index

    def tile(self, a: Any, n: Any) -> tuple[Any, Any]:
        """(i, j) of outer tile a and inner tile n: on a diagonal, that of key tile n, if there is one."""
        if self.diagonals:
            return a + n - (self.plan.k_tiles - 1), n
        return (n, a) if self.keys_outer else (a, n)

    def inner_tile(self, b: Any) -> Any:
        return jax.lax.rem(b, jnp.int32(self.inner)) if self.shared else b

    def place(self, own: Sequence[int], h: Any, a: Any, b: Any) -> Any:
        """Where the entry of a tile stands in a flat table of the heads `own`, outer tiles and inner tiles."""
        return (self.flat(own, h, b) * self.outer + a) * self.inner + self.inner_tile(b)
