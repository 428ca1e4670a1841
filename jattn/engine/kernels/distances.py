"""What a score modifier looks up by distance, in a kernel of the TPU, which cannot gather.

Where rows stand in order it need not: each diagonal of a tile has one distance, and those of a tile are consecutive.
So an operand holds what the tables say of all T + S distances; a tile reads those of its own, and spreads them over its
diagonals by rotating rows. Back go the sums of diagonals.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _jax
from jattn._diagonals import diagonal_sums
from jattn.engine.plan import Operands, Plan
from jattn.engine.tuning import LANES

SUBLANES = 8
"""Rows of a vector register."""


def in_order(plan: Plan, x: Operands) -> bool:
    """Whether a kernel takes what is looked up by distance: of a TPU, where rows have no positions."""
    return plan.platform == "tpu" and x.q_positions is None and x.k_positions is None


def distances(rows: tuple[int, int], lengths: tuple[int, int] | None = None) -> jax.Array:
    """The distance s − t at each offset of so many queries and keys: it falls from the number of keys.

    With the lengths (T, S), that of a row that pads is one that a query has from a key (`tile.within`).
    """
    queries, keys = rows
    every = keys - jnp.arange(queries + keys, dtype=jnp.int32)
    return every if lengths is None else jnp.clip(every, 1 - lengths[0], lengths[1] - 1)


def offsets_of_tile(plan: Plan, i: Any, j: Any) -> Any:
    """The offsets of tile (i, j), as many as it has queries and keys."""
    first = i * plan.q_tile + (plan.k_tiles - 1 - j) * plan.k_tile
    return _jax.pallas.ds(_jax.pallas.multiple_of(first, LANES), plan.q_tile + plan.k_tile)


def roll(x: jax.Array, by: int) -> Any:
    """Rows rotated to the right. The shift is an int32 with jax_enable_x64 too: a TPU rotates by no other."""
    return _jax.tpu.roll(x, np.int32(by), 1)


def over_diagonals(entries: jax.Array, queries: int) -> jax.Array:
    """[1, queries + keys] → [keys, queries], with entry c − r + keys at row r and column c."""
    n = entries.shape[1]
    keys = n - queries
    group = jnp.concatenate([roll(entries, queries + r) for r in range(SUBLANES)], 0)
    groups = [group]
    for _ in range(keys // SUBLANES - 1):
        groups.append(roll(groups[-1], SUBLANES))
    return jnp.concatenate([group[:, :queries] for group in groups], 0)


def sums_of_diagonals(x: jax.Array) -> jax.Array:
    """The transpose of `over_diagonals`: [keys, queries] → [1, queries + keys]."""
    keys, queries = x.shape
    n = keys + queries
    beyond = jnp.zeros((SUBLANES, keys), x.dtype)
    total = jnp.zeros((SUBLANES, n), x.dtype)
    for r in reversed(range(0, keys, SUBLANES)):
        total = roll(total, n - SUBLANES) + jnp.concatenate([x[r : r + SUBLANES], beyond], 1)
    return sum(roll(total[r : r + 1], keys - r) for r in range(SUBLANES))


def sums_at_offsets(x: jax.Array) -> jax.Array:
    """The sums at all offsets, [heads, queries + keys], of pairs on each diagonal of square tiles, [heads, diagonals,
    keys, queries]."""
    heads, _, n, _ = x.shape
    sums = jnp.pad(diagonal_sums(x), ((0, 0), (0, 0), (1, 0)))  # entry c − r + n of column c in row r
    # The second half of the offsets of a diagonal of tiles is the first of the next one's.
    first, second = (
        jnp.pad(half, ((0, 0), at, (0, 0))) for half, at in ((sums[..., :n], (0, 1)), (sums[..., n:], (1, 0)))
    )
    return (first + second).reshape(heads, -1)
