"""The block state of every tile of a mask: EMPTY, PARTIAL or FULL; and how many tiles attention computes under it."""

import jax
import jax.numpy as jnp
import numpy as np

import jattn
from jattn.masks import Mask, Spans, block_state
from jattn.scores import Score


class Counting(Score):
    """Leaves a score as it is, and counts the tiles that it is shown."""

    def __init__(self) -> None:
        self.tiles = 0

    def seen(self, x: np.ndarray) -> np.ndarray:
        self.tiles += 1
        return np.zeros_like(x)

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct((), score.dtype)
        return score + jax.pure_callback(self.seen, shape, score[0, 0], vmap_method="sequential")


# A value without arrays: all of it is structure.
jax.tree_util.register_pytree_node(Counting, lambda c: ((), c), lambda c, _: c)


def visited(given: list[Mask], T: int, S: int, tile: tuple[int, int]) -> list[int]:
    """The tiles that attention computes under each mask, all of one structure, of T queries and S keys at 0, 1, 2, …"""
    counting, (q, k) = Counting(), (jnp.ones((n, 2), jnp.float32) for n in (T, S))
    at = {} if T == S else {"q_positions": np.arange(T, dtype=np.int32), "k_positions": np.arange(S, dtype=np.int32)}
    attend = jax.jit(lambda mask: jattn.attention(q, k, k, mask=mask, score=counting, tile=tile, **at))

    def count(mask: Mask) -> int:
        before = counting.tiles
        jax.block_until_ready(attend(mask))
        return counting.tiles - before

    return [count(mask) for mask in given]


def by_the_mask(mask: Mask, length: int, tile: int) -> np.ndarray:
    """What the mask itself says of each tile, before any pair is looked at; PARTIAL where it cannot tell."""
    first = np.arange(0, length, tile, dtype=np.int32)
    q, k = (Spans.at(first, first + tile - 1, axis) for axis in (0, 1))
    return np.broadcast_to(mask.block_state(q, k), (len(first), len(first)))


def by_the_pairs(allowed: np.ndarray, tile: int) -> np.ndarray:
    """What the pairs of each tile are: none of them allowed, some, or all; `allowed` is [length, length]."""
    n = len(allowed) // tile
    tiles = allowed.reshape(n, tile, n, tile)
    return np.asarray(block_state(tiles.any((1, 3)), tiles.all((1, 3))))
