"""The block state of every tile of a mask: EMPTY, PARTIAL or FULL."""

import numpy as np

from jattn.masks import Mask, Spans, block_state


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
