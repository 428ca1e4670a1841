"""Attention at real lengths: blocks of queries and keys, and the rows that were chosen."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jattn import _errors, _picture_inputs
from jattn._types import NumPyArrayLike
from jattn.page._document import Part

_MOST = 512
"""Blocks along a side: 1.4 MB for each of the two arrays."""


def blocks(
    mass: NumPyArrayLike,
    largest: NumPyArrayLike,
    *,
    T: int,
    S: int,
    rows: Mapping[int, NumPyArrayLike] | None = None,
    states: NumPyArrayLike | None = None,
    limit: int = 4_000_000,
) -> Part:
    """One head over thousands of tokens, block by block, from the whole down to a block; and exact rows.

        mass_ij = (1/|i|) Σ_{t in i} Σ_{s in j} w_ts        largest_ij = max_{t in i, s in j} w_ts

    Block i holds the queries from i·⌈T/n⌉ on, block j the keys from j·⌈S/m⌉ on. Farther out the page shows means of
    mass, and largest of largest, over blocks of blocks. `weights_of` gives the weights of the queries of a block from
    their lse: no array of T × S is needed.

    Args:
      mass: [n, m], from 0 to 1, n and m at most 512; kept in float32.
      largest: [n, m], from 0 to 1; kept in float32.
      T: how many queries. S: how many keys.
      rows: query → its weights [S]; they are shown exact (in float32) when the query, or one near it, is chosen.
      states: [n, m], the block state of a mask for each block: 0 EMPTY, 1 PARTIAL, 2 FULL.
      limit: the most bytes that the rows may add to the page.

    Returns:
      A part for `html` or `write`.

    Raises:
      TypeError, ValueError: a shape does not fit, n or m is not what T and S are cut into, a row is not one of T, a
        finite number is none of float32, or the rows would take more than `limit`.

    Memory: 5.4 bytes a number: 0.7 MB for two arrays of 256 × 256, 22 kB for a row of 4,096, 0.35 MB for one of 65,536.

    Source: BertViz (Vig 2019) shows pairs; blocks are those in which attention is computed (Dao et al. 2022).

    Example:
      >>> import numpy as np
      >>> from jattn import page
      >>> mass = np.full((4, 4), 0.25)
      >>> page.blocks(mass, mass / 1024, T=4096, S=4096, rows={7: np.full(4096, 1 / 4096)}).data["rows"]
      [7]
    """
    caller = "blocks"
    T, S = _errors.count(caller, "T", T, least=1), _errors.count(caller, "S", S, least=1)
    x = _picture_inputs.numbers(caller, "mass", mass, (None, None), "[n, m]", finite=False)
    n, m = x.shape
    _picture_inputs.equal_blocks(caller, x, T, S, most=_MOST)
    y = _picture_inputs.numbers(caller, "largest", largest, (n, m), "[n, m]", finite=False)
    held: dict[str, Any] = {"shape": [n, m], "T": T, "S": S, "mass": _picture_inputs.single(caller, "mass", x)}
    held["largest"] = _picture_inputs.single(caller, "largest", y)
    held["states"] = None
    if states is not None:
        z = _picture_inputs.block_states(caller, "states", states, (n, m), "[n, m]")
        held["states"] = ["".join(map(str, line)) for line in z.astype(int)]
    held["rows"], exact = [], []
    limit = _errors.count(caller, "limit", limit)
    given = _picture_inputs.mapping(caller, "rows", rows, "queries to their weights")
    for at, w in sorted(((_errors.count(caller, "rows", t), w) for t, w in given.items()), key=lambda row: row[0]):
        if at >= T:
            _errors.fail(ValueError, caller, "rows must name queries", "Count from 0.", rows=str(at), T=str(T))
        held["rows"].append(at)
        row = _picture_inputs.numbers(caller, f"rows[{at}]", w, (S,), "[S]", finite=False)
        exact.append(_picture_inputs.single(caller, f"rows[{at}]", row))
    size = 16 * len(exact) * S // 3
    if size > limit:
        remedy = f"Keep {limit * 3 // (16 * S)} rows, or raise limit: each takes {16 * S // 3:,} bytes of the page."
        got = {"rows": f"of {size:,} bytes", "limit": f"{limit:,}"}
        _errors.fail(ValueError, caller, "rows must fit into limit", remedy, **got)
    held["exact"] = np.concatenate(exact) if exact else np.zeros(0, np.float32)
    return Part("blocks", held)
