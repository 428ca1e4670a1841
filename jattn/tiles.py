"""Tiles: some rows of q against some rows of k, and which of these rectangles are worth visiting.

Attention is computed one tile at a time, so that no T × S array is ever formed. This module says what a tile
is worth (`logits`), where the tiles lie (`Plan`), and which may meet (`route`): a tile whose mask rules out
every pair is never visited, and one whose mask lets every pair meet is not masked.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jattn._numerics import set_aside
from jattn._values import recomputed
from jattn.masks import Mask, Rows, Spans


class Operands(NamedTuple):
    """Everything that attention is a function of, for one head; None where the caller gave nothing."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    bias: jax.Array | None
    sink: jax.Array | None
    scale: jax.Array | None
    captured: tuple[jax.Array, ...]
    mask: Mask | None
    q_positions: jax.Array | None
    k_positions: jax.Array | None
    dropout: tuple[jax.Array, jax.Array] | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What does not change from call to call: sizes, dtype, and the score as a closed function."""

    T: int
    S: int
    q_tile: int
    k_tile: int
    dtype: Any
    score: Any
    platform: str = "cpu"
    tile_given: bool = True
    """Whether the caller chose the tile, and it is the same on every platform."""

    def for_platform(self, platform: str) -> "Plan":
        """The same plan with the tile that suits a platform."""
        if platform == self.platform or self.tile_given:
            return dataclasses.replace(self, platform=platform)
        q_tile, k_tile = tile_sizes(self.T, self.S, backend=platform)
        return dataclasses.replace(self, q_tile=q_tile, k_tile=k_tile, platform=platform)

    @property
    def known(self) -> bool:
        """Whether T and S are numbers. In a program to be exported they may be symbols, and tiles have fixed sizes."""
        return isinstance(self.T, int) and isinstance(self.S, int)

    @property
    def nq(self) -> int:
        return -(-self.T // self.q_tile)

    @property
    def nk(self) -> int:
        return -(-self.S // self.k_tile)

    @property
    def bytes(self) -> int:
        """The working set of one tile: its logits and its weights.

        Few queries are bound by reading the keys, which no cache holds: then all heads run side by side.
        """
        return 0 if self.q_tile < CELL else 2 * self.q_tile * self.k_tile * np.dtype(self.dtype).itemsize


def tile_sizes(T: int, S: int, *, backend: str | None = None) -> tuple[int, int]:
    """How many queries and how many keys make a tile.

    A tile of logits must stay in the second-level cache of a CPU core, together with its weights; a small call
    is one tile and no loop. Lengths are split evenly and rounded up to 16 rows, so that little is padded: 1021
    queries are two tiles of 512, not one of 512 and one of 509. On an accelerator tiles are larger, since each
    step of the loop is a kernel launch.

    Args:
      T: queries. S: keys. Either may be a symbol of `jax.export`, which may turn out short: its tiles are half as long.
      backend: "cpu", "gpu" or "tpu"; the default backend if None.

    Returns:
      (queries, keys) of a tile, at least 1 each.
    """
    most = 512 if (backend or jax.default_backend()) == "cpu" else 1024

    def even(n: int, most: int) -> int:
        if not isinstance(n, int):
            return most // 2
        if n <= most:
            return max(1, n)
        return 16 * math.ceil(n / math.ceil(n / most) / 16)

    q = even(T, most)
    # Few queries leave room for many keys: the same area, in fewer steps.
    return q, even(S, max(most, most * most // q // 16 * 16))


def padded(plan: Plan, x: Operands) -> Operands:
    """The operands with rows added until whole tiles cover them."""
    T, S = plan.nq * plan.q_tile, plan.nk * plan.k_tile
    if (T, S) == (plan.T, plan.S):
        return x

    def pad(a: Any, axis: int, have: int, want: int, **how: Any) -> Any:
        if a is None or a.ndim <= axis or a.shape[axis] != have:  # absent, or one entry for all
            return a
        return jnp.pad(a, [(0, want - have) if i == axis else (0, 0) for i in range(a.ndim)], **how)

    return x._replace(
        q=pad(x.q, 0, plan.T, T),
        k=pad(x.k, 0, plan.S, S),
        v=pad(x.v, 0, plan.S, S),
        bias=pad(pad(x.bias, 0, plan.T, T), 1, plan.S, S),
        sink=pad(x.sink, 0, plan.T, T),
        mask=None if x.mask is None else x.mask.padded(T, S),
        q_positions=pad(x.q_positions, 0, plan.T, T, mode="edge"),
        k_positions=pad(x.k_positions, 0, plan.S, S, mode="edge"),
    )


def rows(a: jax.Array, i: Any, n: int) -> jax.Array:
    """Tile i of n rows; all of an array that has just one tile."""
    return a if a.shape[0] == n else jax.lax.dynamic_slice_in_dim(a, i * n, n)


class Tile(NamedTuple):
    """The parts of the operands that the logits of a tile are made of, in the dtype of the arithmetic."""

    q: Any
    k: Any
    bias: Any
    scale: Any
    captured: tuple[Any, ...]


def tile_of(plan: Plan, x: Operands, i: Any, j: Any) -> Tile:
    """What the logits of tile (i, j) depend on. Of tangents, `x` may hold None in any place."""

    def cut(a: Any, *where: tuple[Any, int]) -> Any:
        if a is None:
            return None
        for axis, (i, n) in enumerate(where):
            if a.shape[axis] not in (1, n):
                a = jax.lax.dynamic_slice_in_dim(a, i * n, n, axis)
        return a.astype(plan.dtype)

    q, k = (i, plan.q_tile), (j, plan.k_tile)
    return Tile(cut(x.q, q), cut(x.k, k), cut(x.bias, q, k), cut(x.scale), x.captured)


def meeting(plan: Plan, x: Operands, i: Any, j: Any) -> jax.Array:
    """Which pairs of tile (i, j) meet; the rows that pad the last tile of keys do not exist."""
    q, k = _rows(plan.q_tile, i, x.q_positions), _rows(plan.k_tile, j, x.k_positions)
    pairs = jnp.ones((plan.q_tile, plan.k_tile), bool) if x.mask is None else x.mask.pairs(q, k)
    return pairs & (k.numbers < plan.S)[None, :] if plan.nk * plan.k_tile != plan.S else pairs


def _rows(n: int, i: Any, positions: jax.Array | None) -> Rows:
    start = i * n
    return Rows(start, start + jnp.arange(n, dtype=jnp.int32) if positions is None else rows(positions, i, n))


def scaled(q: jax.Array, tile: Tile) -> jax.Array:
    """The queries of a tile, bad ones set aside before (0 · NaN would reach the scale), times the scale before the dot.

    The products then end in a sum, not in a factor that XLA could fuse with "− max".
    """
    return q * tile.scale


def product(tile: Tile, met: jax.Array | None, *, keys_first: bool = False) -> jax.Array:
    """The scaled products of a tile, queries down, keys across, or turned about; in a masked one, of what is good."""
    q, k = tile.q, tile.k
    if met is not None:
        q, k = set_aside(q)[0], set_aside(k)[0]
    q = scaled(q, tile)
    return k @ q.T if keys_first else q @ k.T


def logits(
    plan: Plan, x: Operands, i: Any, j: Any, met: jax.Array | None, tile: Tile, *, keys_first: bool = False
) -> jax.Array:
    """l_ts of one tile, queries down and keys across, or turned about; −∞ where a pair is not `met` (None: all are)."""
    return worth(plan, x, i, j, met, tile, product(tile, met, keys_first=keys_first), keys_first=keys_first)


def worth(
    plan: Plan, x: Operands, i: Any, j: Any, met: jax.Array | None, tile: Tile, products: jax.Array, *, keys_first: bool
) -> jax.Array:
    """What the products of a tile become: score, bias, mask. The one place where a logit is made of a product."""
    ell = products
    if plan.score is not None:
        t, s = (
            _rows(n, m, p).positions for n, m, p in ((plan.q_tile, i, x.q_positions), (plan.k_tile, j, x.k_positions))
        )
        ell = plan.score(tile.captured, ell if met is None else jnp.where(met, ell, 0), t, s, keys_first)
    if tile.bias is not None:
        bias = tile.bias.T if keys_first else tile.bias
        ell = ell + (bias if met is None else jnp.where(met, bias, 0))
    if met is None:
        return ell
    q_bad, k_bad = (~jnp.isfinite(a).all(1) for a in (tile.q, tile.k))
    bad = k_bad[:, None] | q_bad[None, :] if keys_first else q_bad[:, None] | k_bad[None, :]
    return jnp.where(met, jnp.where(bad, jnp.nan, ell), -jnp.inf)


def dropped(plan: Plan, x: Operands, i: Any, j: Any) -> jax.Array | None:
    """What dropout multiplies the weights of a tile by: 0, or 1 / (1 − rate); None without dropout.

    A pair's lot depends on the key and on its two row numbers alone, never on the tiles: it is drawn in cells of
    16 × 16 pairs, each from the key folded with the cell's place.
    """
    if x.dropout is None:
        return None
    key, rate = x.dropout
    down, across = (-(-n // CELL) for n in (plan.q_tile, plan.k_tile))

    def cell(a: jax.Array, b: jax.Array) -> jax.Array:
        here = jax.random.fold_in(jax.random.fold_in(key, a), b)
        return jax.random.bernoulli(here, 1 - rate, (CELL, CELL))

    a = i * (plan.q_tile // CELL) + jnp.arange(down, dtype=jnp.int32)
    b = j * (plan.k_tile // CELL) + jnp.arange(across, dtype=jnp.int32)
    kept = jax.vmap(jax.vmap(cell, (None, 0)), (0, None))(a, b)
    kept = kept.swapaxes(1, 2).reshape(down * CELL, across * CELL)[: plan.q_tile, : plan.k_tile]
    return jnp.where(kept, 1 / (1 - rate), 0).astype(plan.dtype)


CELL = 16


# Which tiles are visited.


@dataclasses.dataclass(frozen=True, eq=False)
class Route:
    """The tiles that may meet: known before tracing (`lists`), or only when the program runs (`verdict`).

    `lists` holds the tiles that need no mask and those that need one, each as (i, j) row by row. `verdict` is 0, 1
    or 2 for each tile: no pair, some pairs, all pairs meet.
    """

    plan: Plan
    lists: tuple[np.ndarray, np.ndarray] | None
    verdict: jax.Array | None


def route(plan: Plan, x: Operands) -> Route:
    """Asks the mask about every tile at once. `x` is padded."""
    q = _spans(plan.T, plan.q_tile, plan.nq, x.q_positions, 0)
    k = _spans(plan.S, plan.k_tile, plan.nk, x.k_positions, 1)
    may, must = (True, True) if x.mask is None else x.mask.verdict(q, k)
    must = must & (k.first + (plan.k_tile - 1) < plan.S)
    if isinstance(may, jax.Array) or isinstance(must, jax.Array) or not plan.known:
        verdict = jnp.where(must, jnp.int32(2), jnp.where(may, jnp.int32(1), jnp.int32(0)))
        verdict = jnp.broadcast_to(verdict, (plan.nq, plan.nk))
        return Route(plan, None, verdict)
    may, must = (np.broadcast_to(np.asarray(a), (plan.nq, plan.nk)) for a in (may, must))
    return Route(plan, (np.argwhere(may & must), np.argwhere(may & ~must)), None)


def routes_differ(plan: Plan, mapped: Operands) -> bool:
    """Whether examples visit different tiles, given which of their operands differ.

    Not asked of few queries, which run side by side whatever they visit (`Plan.bytes`).
    """
    of_route = (mapped.mask, mapped.q_positions, mapped.k_positions)
    several = plan.nq * plan.nk != 1 and plan.bytes > 0
    return several and mapped.mask is not None and any(jax.tree.leaves(of_route))


def _spans(length: int, tile: int, n: int, positions: jax.Array | None, axis: int) -> Spans:
    """The tiles of an axis, down (0) or across (1)."""
    if isinstance(n, int):
        first = np.arange(n, dtype=np.int32) * tile
        numbered = Spans.at(first, np.minimum(first + tile, length) - 1, axis)._replace(size=tile)
    else:
        starts = jnp.expand_dims(jnp.arange(n, dtype=jnp.int32) * tile, 1 - axis)
        last = jnp.minimum(starts + tile, jnp.asarray(length, jnp.int32)) - 1
        numbered = Spans(starts, last, starts, last, tile)
    if positions is None:
        return numbered
    # Padded with the last position, which changes neither end.
    return numbered._replace(lowest=numbered.of(positions, jnp.min), highest=numbered.of(positions, jnp.max))


def over_keys(route: Route, i: Any, step: Callable[..., Any], carry: Any) -> Any:
    """Folds `step(carry, j, masked)` over the key tiles that may meet query tile i, as the program runs."""
    if route.verdict is not None:
        here: jax.Array = route.verdict[i]
        js = jnp.arange(route.plan.nk, dtype=jnp.int32)
        for kind, masked in ((2, False), (1, True)):
            # From each tile the next one to visit: a branch inside the loop would copy the carry at every tile.
            none = jnp.asarray(route.plan.nk, jnp.int32)
            following = jax.lax.cummin(jnp.where(here == kind, js, none), reverse=True)

            def visit(_: Any, at: Any, following: Any = following, masked: bool = masked) -> Any:
                c, j = at[0], following[at[1]]
                return step(c, j, masked), j + 1

            carry, _ = jax.lax.fori_loop(0, jnp.sum(here == kind, dtype=jnp.int32), visit, (carry, jnp.int32(0)))
        return carry
    assert route.lists is not None
    for tiles, masked in zip(route.lists, (False, True), strict=True):
        if len(tiles) == 0:
            continue
        if route.plan.nq == 1 and len(tiles) == 1:
            carry = step(carry, int(tiles[0, 1]), masked)
            continue
        bounds = jnp.asarray(np.searchsorted(tiles[:, 0], np.arange(route.plan.nq + 1)), jnp.int32)
        js = jnp.asarray(tiles[:, 1], jnp.int32)
        carry = jax.lax.fori_loop(
            bounds[i], bounds[i + 1], lambda n, c, js=js, masked=masked: step(c, js[n], masked), carry
        )
    return carry


def over_queries(plan: Plan, row: Callable[..., Any], carry: Any) -> Any:
    """Scans `row(carry, i) -> (carry, y)` over the query tiles; the y are joined along their rows."""
    if plan.nq == 1:
        return row(carry, 0)
    carry, ys = jax.lax.scan(row, carry, jnp.arange(plan.nq, dtype=jnp.int32))
    return carry, jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:]), ys)


def over_tiles(route: Route, add: Callable[..., Any], carry: Any) -> Any:
    """Scans `add(carry, i, j, masked)` over all tiles that may meet, in a loop of static length.

    The form that JAX can transpose: `add` must be linear in the carry.
    """
    if route.verdict is not None:
        verdict = route.verdict
        nk = jnp.asarray(route.plan.nk, jnp.int32)

        def visit(c: Any, n: jax.Array) -> Any:
            i, j = n // nk, n % nk
            visits = [lambda c: c, lambda c: add(c, i, j, True), lambda c: add(c, i, j, False)]
            # Computed anew, or the branches would keep, of every tile, all that they look at.
            return recomputed(lambda: jax.lax.switch(verdict[i, j], visits, c)), None

        return jax.lax.scan(visit, carry, jnp.arange(route.plan.nq * route.plan.nk, dtype=jnp.int32))[0]
    assert route.lists is not None
    for tiles, masked in zip(route.lists, (False, True), strict=True):
        if len(tiles) == 1:
            carry = add(carry, int(tiles[0, 0]), int(tiles[0, 1]), masked)
        elif len(tiles):

            def visit_one(c: Any, ij: jax.Array, masked: bool = masked) -> Any:
                return add(c, *ij, masked), None

            carry = jax.lax.scan(visit_one, carry, jnp.asarray(tiles, jnp.int32))[0]
    return carry
