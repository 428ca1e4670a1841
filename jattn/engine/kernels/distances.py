"""What a score modifier looks up by distance, in a kernel of the TPU, which cannot gather.

Where rows stand in order it need not: each diagonal of a tile has one distance, and those of a tile are consecutive.
So an operand holds what the tables say of all T + S distances; a tile reads those of its own, and spreads them over its
diagonals by rotating rows. Back go the sums of diagonals.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jattn import _jax
from jattn.engine.plan import Operands, Plan
from jattn.engine.score import TileScore
from jattn.engine.tuning import KERNEL_OFFSETS, LANES
from jattn.scores import OfPairs

SUBLANES = 8
"""Rows of a vector register."""


@dataclasses.dataclass(frozen=True)
class DistanceScore:
    """A score modifier of this library whose tables are looked up at every distance before the kernel."""

    score: TileScore
    rows: tuple[int, int]
    """Of queries and of keys, whole tiles."""
    tree: Any
    roles: tuple[str, ...]
    """Of each value: "o" where there is one for each offset, "" for a scalar."""

    @classmethod
    def of(cls, plan: Plan, x: Operands) -> "DistanceScore | None":
        """None where no table is looked up by distance, one is not, rows have positions, or they are too many."""
        rows = plan.q_rows, plan.k_rows
        in_order = x.q_positions is None and x.k_positions is None
        if plan.platform != "tpu" or not isinstance(plan.score, TileScore) or not in_order:
            return None
        found = jax.eval_shape(lambda *captured: at_every_distance(plan.score, captured, rows), *x.captured)
        parts = jax.tree.leaves(found, is_leaf=lambda part: isinstance(part, OfPairs))
        roles = tuple("o" if isinstance(part, OfPairs) else "" for part in parts)
        left = any(role == "" and part.ndim for part, role in zip(parts, roles, strict=True))
        if left or not 0 < sum(rows) * roles.count("o") <= KERNEL_OFFSETS:
            return None
        return cls(plan.score, rows, jax.tree.structure(found), roles)

    def values(self, captured: tuple[jax.Array, ...], t: jax.Array, s: jax.Array) -> tuple[jax.Array, ...]:
        """The values, of what the score modifier captured. The positions of the rows are their numbers."""
        return tuple(jax.tree.leaves(at_every_distance(self.score, captured, self.rows)))

    def __call__(self, values: Any, tile: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        return jax.tree.unflatten(self.tree, values)(tile, t, s).astype(tile.dtype)


def at_every_distance(score: TileScore, captured: tuple[Any, ...], rows: tuple[int, int]) -> Any:
    """A score modifier with an entry at each offset: s − t falls from the number of keys to 1 − that of queries."""
    n, m = rows
    return jax.tree.unflatten(score.tree, captured).at_distances(m - jnp.arange(n + m, dtype=jnp.int32))


def offsets_of_tile(plan: Plan, i: Any, j: Any) -> Any:
    """The offsets of tile (i, j), as many as it has queries and keys."""
    first = i * plan.q_tile + (plan.k_tiles - 1 - j) * plan.k_tile
    return _jax.pallas.ds(_jax.pallas.multiple_of(first, LANES), plan.q_tile + plan.k_tile)


def over_diagonals(entries: jax.Array, queries: int) -> jax.Array:
    """[1, queries + keys] → [keys, queries], with entry c − r + keys at row r and column c."""
    n = entries.shape[1]
    keys = n - queries
    group = jnp.concatenate([_jax.tpu.roll(entries, queries + r, 1) for r in range(SUBLANES)], 0)
    groups = [group]
    for _ in range(keys // SUBLANES - 1):
        groups.append(_jax.tpu.roll(groups[-1], SUBLANES, 1))
    return jnp.concatenate([group[:, :queries] for group in groups], 0)


def sums_of_diagonals(x: jax.Array) -> jax.Array:
    """The transpose of `over_diagonals`: [keys, queries] → [1, queries + keys]."""
    keys, queries = x.shape
    n = keys + queries
    beyond = jnp.zeros((SUBLANES, keys), x.dtype)
    total = jnp.zeros((SUBLANES, n), x.dtype)
    for r in reversed(range(0, keys, SUBLANES)):
        total = _jax.tpu.roll(total, n - SUBLANES, 1) + jnp.concatenate([x[r : r + SUBLANES], beyond], 1)
    return sum(_jax.tpu.roll(total[r : r + 1], keys - r, 1) for r in range(SUBLANES))
