"""The tangent pass and its transpose: both are sums over tiles, given the final (m, log_sum).

With p = exp(l − m − log_sum), a tile's logits l and the dropout factor d (1 without dropout):

    tangents    out_dot = A − lse_dot·out,   A = Σ_s p·d·(l_dot·v + v_dot),   lse_dot = Σ_s p·l_dot
    cotangents  dl = p·(d·(dout·vᵀ) + dlse − ⟨dout, out⟩),   dv = (p·d)ᵀ dout,   then back through the logits

The second is the flash backward (Dao et al. 2022, algorithm 4, with the cotangent of lse). Each is linear in what it
carries over, and each is the other's transpose; JAX derives every further order from these two.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jattn import tiles
from jattn._numerics import below, finite_or_zero, set_aside
from jattn._values import recomputed
from jattn._walk import Walkable
from jattn.tiles import Operands, Plan, Route, Tile, rows


@dataclasses.dataclass(frozen=True)
class _Pass(Walkable):
    """A sum over tiles. Operands: the leaves, (out, m, log_sum), then what the pass is linear in."""

    plan: Plan
    tree: Any
    over: tuple[int, ...]
    """The leaves of the operands that move."""

    @property
    def platform(self) -> str:
        return self.plan.platform

    def for_platform(self, platform: str) -> Walkable:
        return dataclasses.replace(self, plan=self.plan.for_platform(platform))

    @property
    def bytes(self) -> int:
        return 4 * self.plan.bytes  # logits, weights, their cotangents, and sums that are added to at every tile

    @property
    def n(self) -> int:
        return self.tree.num_leaves + 3

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return self.run(sum_by_rows, *xs)

    def apart(self, mapped: tuple[bool, ...]) -> bool:
        return tiles.routes_differ(self.plan, jax.tree.unflatten(self.tree, mapped[: self.tree.num_leaves]))

    def smooth(self, *xs: jax.Array) -> list[jax.Array]:
        return self.run(sum_by_tiles, *xs)

    def run(self, total: Callable[..., Any], *xs: jax.Array) -> list[jax.Array]:
        raise NotImplementedError

    def moving(self, xs: Sequence[Any]) -> Operands:
        """Operands that hold `xs` at the leaves that move, and None elsewhere."""
        leaves: list[Any] = [None] * self.tree.num_leaves
        for i, x in zip(self.over, xs, strict=True):
            leaves[i] = x
        return jax.tree.unflatten(self.tree, leaves)._replace(mask=None)

    def saved(self, xs: Sequence[jax.Array]) -> "_Saved":
        x = tiles.padded(self.plan, jax.tree.unflatten(self.tree, xs[: self.tree.num_leaves]))
        out, m, log_sum = xs[self.tree.num_leaves : self.n]
        more = self.plan.nq * self.plan.q_tile - self.plan.T
        # A row that pads has no weight anywhere: whatever its logits, they lie infinitely far below its maximum.
        m_padded = jnp.pad(finite_or_zero(m), (0, more), constant_values=jnp.inf)
        return _Saved(self.plan, x, out, m, m_padded, jnp.pad(log_sum, (0, more)))


@dataclasses.dataclass(frozen=True)
class Tangents(_Pass):
    """..., tangents of the leaves that move → (out_dot, lse_dot)."""

    @property
    def linear(self) -> frozenset[int]:
        return frozenset(range(self.n, self.n + len(self.over)))

    def transposed(self, over: tuple[int, ...], *sizes: Any) -> Walkable:
        whole = set(over) == self.linear
        return Cotangents(self.plan, self.tree, self.over) if whole else super().transposed(over, *sizes)

    def run(self, total: Callable[..., Any], *xs: jax.Array) -> list[jax.Array]:
        plan, saved = self.plan, self.saved(xs)
        x_dot = tiles.padded(plan, self.moving(xs[self.n :]))

        def tile(i: Any, j: Any, masked: bool) -> list[jax.Array]:
            w = _Weights(saved, i, j, masked)
            logits, logits_dot = jax.jvp(w.logits, (w.moving(x_dot),), (tiles.tile_of(plan, x_dot, i, j),))
            p = w.of(logits)
            p_dot = p * logits_dot
            a = _turned_dot(w.v, w.drop(p_dot))
            if x_dot.v is not None:
                v_dot = w.without_bad(rows(x_dot.v, j, plan.k_tile).astype(plan.dtype))
                a += _turned_dot(v_dot, w.drop(p))
            return [a, p_dot.sum(0)]

        T = plan.nq * plan.q_tile
        zeros = jnp.zeros((T, saved.out.shape[1]), plan.dtype), jnp.zeros((T,), plan.dtype)
        a, lse_dot = (y[: plan.T] for y in total(tiles.route(plan, saved.x), tile, list(zeros), ["q", "q"]))
        if x_dot.sink is not None:
            lse_dot += saved.sink_weight() * _each(x_dot.sink, plan)
        lives = saved.m > -jnp.inf
        return [
            jnp.where(lives[:, None], a - lse_dot[:, None] * saved.out, 0),
            jnp.where(lives, lse_dot, 0),
        ]


@dataclasses.dataclass(frozen=True)
class Cotangents(_Pass):
    """..., cotangents of out and of lse → cotangents of the leaves that move."""

    @property
    def linear(self) -> frozenset[int]:
        return frozenset({self.n, self.n + 1})

    def transposed(self, over: tuple[int, ...], *sizes: Any) -> Walkable:
        whole = set(over) == self.linear
        return Tangents(self.plan, self.tree, self.over) if whole else super().transposed(over, *sizes)

    def run(self, total: Callable[..., Any], *xs: jax.Array) -> list[jax.Array]:
        plan, saved = self.plan, self.saved(xs)
        dout, dlse = xs[self.n :]
        lives = saved.m > -jnp.inf
        dout = jnp.where(lives[:, None], dout, 0)
        g = jnp.where(lives, dlse - jnp.sum(dout * saved.out, 1), 0)
        more = plan.nq * plan.q_tile - plan.T
        dout_padded, g_padded = jnp.pad(dout, ((0, more), (0, 0))), jnp.pad(g, (0, more))
        leaves = xs[: self.tree.num_leaves]
        move = self.moving([leaves[i] for i in self.over])

        def tile(i: Any, j: Any, masked: bool) -> list[jax.Array]:
            w = _Weights(saved, i, j, masked)
            there = w.moving(move)
            q, k = w.tile.q, w.tile.k
            if masked:
                (q, q_bad), (k, k_bad) = set_aside(q), set_aside(k)
            scaled = tiles.scaled(q, w.tile)
            logits, pull = jax.vjp(w.worth, k @ scaled.T, there.bias, there.captured)
            p = w.of(logits)
            dout, g = rows(dout_padded, i, plan.q_tile), rows(g_padded, i, plan.q_tile)
            ds, dbias, dcaptured = pull(p * (w.drop(w.v @ dout.T) + g[None, :]))
            dq = _turned_dot(k, ds)  # of the scaled query, [D, queries]
            dq, dk = jnp.where(q_bad[None, :], 0, dq) if masked else dq, None
            if there.k is not None:
                dk = jnp.where(k_bad[:, None], 0, ds @ scaled) if masked else ds @ scaled
            parts = [
                None if there.q is None else dq * w.tile.scale,
                dk,
                dbias,
                None if there.scale is None else jnp.sum(dq * q.T),
                dcaptured,
                None if move.v is None else w.without_bad(w.drop(p) @ dout),
            ]
            return jax.tree.leaves(parts)

        x = tiles.padded(plan, move)
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, plan.dtype), (x.q, x.k, x.bias, x.scale))
        zeros = [
            *zeros,
            jax.tree.map(jnp.zeros_like, x.captured),
            None if x.v is None else jnp.zeros(x.v.shape, plan.dtype),
        ]
        axes = ["q", "k", "qk", "", ("",) * len(x.captured), "k"]
        axes = jax.tree.leaves(jax.tree.map(lambda z, a: None if z is None else a, zeros, axes, is_leaf=_absent))
        flat, tree = jax.tree.flatten(zeros)
        dq, dk, dbias, dscale, dcaptured, dv = jax.tree.unflatten(
            tree, total(tiles.route(plan, saved.x), tile, flat, axes) if flat else []
        )
        dsink = None
        if move.sink is not None:
            dsink = saved.sink_weight() * g
            dsink = dsink if move.sink.shape == (plan.T,) else dsink.sum().reshape(move.sink.shape)
        found = Operands(dq, dk, dv, dbias, dsink, dscale, dcaptured, None, None, None, None)
        # Without the rows that pad, and rounded once.
        kept = zip(jax.tree.leaves(found), (leaves[i] for i in self.over), strict=True)
        return [a[tuple(map(slice, leaf.shape))].astype(leaf.dtype) for a, leaf in kept]


@dataclasses.dataclass(frozen=True)
class _Saved:
    """What a pass starts from: the padded operands, and what the forward fold found."""

    plan: Plan
    x: Operands
    out: jax.Array
    m: jax.Array
    m_padded: jax.Array
    log_sum: jax.Array

    def sink_weight(self) -> jax.Array:
        """What share of each row's denominator the sink has."""
        T = self.plan.T
        assert self.x.sink is not None
        return jnp.exp(below(_each(self.x.sink, self.plan), self.m_padded[:T]) - self.log_sum[:T])


class _Weights:
    """One tile, keys down and queries across: its logits as a function of what moves, the weights, the values.

    Turned about, the two large products of the transpose, with ds and with p, need neither of them transposed: on a
    CPU the backward pass runs up to twice as fast.
    """

    def __init__(self, saved: _Saved, i: Any, j: Any, masked: bool):
        plan, x = saved.plan, saved.x
        self.plan, self.x, self.i, self.j = plan, x, i, j
        self.met = tiles.meeting(plan, x, i, j).T if masked else None
        self.m, self.log_sum = (rows(a, i, plan.q_tile)[None, :] for a in (saved.m_padded, saved.log_sum))
        kept = tiles.dropped(plan, x, i, j)
        self.kept = None if kept is None else kept.T
        self.tile = tiles.tile_of(plan, x, i, j)
        self.v, self.v_bad = rows(x.v, j, plan.k_tile).astype(plan.dtype), None
        if self.met is not None:
            self.v, self.v_bad = set_aside(self.v)

    def moving(self, move: Operands) -> Tile:
        """The parts of the tile that `move` has, and None elsewhere."""
        there = Tile(move.q, move.k, move.bias, move.scale, move.captured)
        return jax.tree.map(lambda m, a: None if m is None else a, there, self.tile, is_leaf=_absent)

    def logits(self, moved: Tile) -> jax.Array:
        return tiles.logits(self.plan, self.x, self.i, self.j, self.met, self.remade(moved), keys_first=True)

    def worth(self, products: jax.Array, bias: Any, captured: Any) -> jax.Array:
        tile = self.remade(Tile(None, None, bias, None, captured))
        return tiles.worth(self.plan, self.x, self.i, self.j, self.met, tile, products, keys_first=True)

    def remade(self, moved: Tile) -> Tile:
        return jax.tree.map(lambda m, a: a if m is None else m, moved, self.tile, is_leaf=_absent)

    def of(self, logits: jax.Array) -> jax.Array:
        return jnp.exp(below(logits, self.m) - self.log_sum)

    def drop(self, p: jax.Array) -> jax.Array:
        return p if self.kept is None else p * self.kept

    def without_bad(self, dv: jax.Array) -> jax.Array:
        """Zero at the values that were set aside: neither tangent nor cotangent passes there."""
        return dv if self.v_bad is None else jnp.where(self.v_bad[:, None], 0, dv)


def _turned_dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """aᵀ b for a narrow a [n, d] and a wide b [n, m]: transposing the narrow one costs little."""
    return jax.lax.dot_general(a, b, (((0,), (0,)), ((), ())))


def _absent(x: Any) -> bool:
    return x is None


def _each(sink: jax.Array, plan: Plan) -> jax.Array:
    """A sink, padded or one for all, as one entry a query."""
    return jnp.broadcast_to((sink[: plan.T] if sink.ndim else sink).astype(plan.dtype), (plan.T,))


def sum_by_rows(visits: Route, tile: Callable[..., Any], zeros: list[jax.Array], axes: list[str]) -> list[jax.Array]:
    """Sums `tile(i, j, masked)` where its parts belong, row of tiles after row: for evaluation, with any bounds.

    `axes` says of each part what it runs over: the keys of the tile down (k), its queries across (q), its queries down
    and its keys across (qk), or nothing. The sums have all rows down.
    """
    plan, by_row = visits.plan, [a == "q" for a in axes]

    def row(others: list[jax.Array], i: Any) -> Any:
        def step(carry: Any, j: Any, masked: bool) -> Any:
            parts = tile(i, j, masked)
            return [
                acc + part if mine else _put(plan, acc, part, letters, i, j)
                for acc, part, mine, letters in zip(carry, parts, by_row, axes, strict=True)
            ]

        rest = iter(others)
        start = [
            jnp.zeros((*z.shape[1:], plan.q_tile), z.dtype) if mine else next(rest)
            for z, mine in zip(zeros, by_row, strict=True)
        ]
        done = tiles.over_keys(visits, i, step, start)
        return (
            [a for a, mine in zip(done, by_row, strict=True) if not mine],
            [a.T for a, mine in zip(done, by_row, strict=True) if mine],
        )

    others, mine = tiles.over_queries(plan, row, [z for z, mine in zip(zeros, by_row, strict=True) if not mine])
    others, mine = iter(others), iter(mine)
    return [next(mine) if is_row else next(others) for is_row in by_row]


def sum_by_tiles(visits: Route, tile: Callable[..., Any], zeros: list[jax.Array], axes: list[str]) -> list[jax.Array]:
    """The same sums, tile after tile: for JAX to transpose. Nothing of a tile outlives it."""

    def add(carry: list[jax.Array], i: Any, j: Any, masked: bool) -> list[jax.Array]:
        parts = recomputed(lambda: tile(i, j, masked))
        return [
            _put(visits.plan, acc, part, letters, i, j) for acc, part, letters in zip(carry, parts, axes, strict=True)
        ]

    return tiles.over_tiles(visits, add, zeros)


def _put(plan: Plan, acc: jax.Array, part: jax.Array, axes: str, i: Any, j: Any) -> jax.Array:
    """Adds a part of tile (i, j) to where it belongs."""
    if axes == "q":
        part = part.T
    if acc.shape == part.shape:
        return acc + part
    start = [jnp.int32(0)] * acc.ndim  # one dtype for all: beside float64 a Python int would be int64
    for axis, letter in enumerate(axes):
        if part.shape[axis] != acc.shape[axis]:
            start[axis] = jnp.asarray({"q": i * plan.q_tile, "k": j * plan.k_tile}[letter], jnp.int32)
    here = jax.lax.dynamic_slice(acc, start, part.shape)
    return jax.lax.dynamic_update_slice(acc, here + part, start)
