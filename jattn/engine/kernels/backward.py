"""The backward pass as kernels: one for the cotangents that a query tile sums, one for dk and dv, and on a GPU one for
tables that are looked up by distance.

Source: Dao et al. 2022, "FlashAttention", algorithm 4, a query tile (or, for dk and dv, a key tile) at a time.
"""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jattn._numerics import before_transpose, is_half, remembered_transpose
from jattn.engine import tuning
from jattn.engine.backward import Backward, backward_tile
from jattn.engine.batching import BatchLevels, Operand
from jattn.engine.kernels.distances import sums_at_offsets, sums_of_diagonals
from jattn.engine.kernels.grid import Grid
from jattn.engine.kernels.kernel import Kernel, Output
from jattn.engine.kernels.layout import Call, Leaf
from jattn.engine.kernels.passes import Carry, Run, Saved, add, recomputed, zeros
from jattn.engine.kernels.plans import (
    BACKWARD_KV,
    BACKWARD_Q,
    BACKWARD_TABLE,
    differentiates_tables,
    of_one,
    plan_of,
    repeated_for_cotangents,
)
from jattn.engine.kernels.score import has_values, is_float
from jattn.engine.plan import Operands, select_active
from jattn.engine.tangent import live_rows


def backward(fun: Backward, levels: BatchLevels, run: Run, *operands: Operand) -> list[jax.Array]:
    """Cotangents of the active operands: one kernel for those that a query tile sums, one for dk and dv.

    On a GPU the cotangent of out goes to the tensor cores in the 16 bits of q, k and v if it fits into them, as that of
    a rounded result does. It is float32 here, and is asked of its values: a program holds the kernels of both.
    """
    n = fun.tree.num_leaves
    levels, xs = repeated_for_cotangents(fun, levels, operands)
    x: Operands = jax.tree.unflatten(fun.tree, xs[:n])
    dtypes = {a.dtype for a in (x.q, x.k, x.v)}
    of_float32 = partial(cotangents, fun, levels, run, None)
    if fun.plan.platform != "gpu" or len(dtypes) > 1 or x.q.dtype.itemsize != 2:
        return of_float32(*xs)
    found: list[jax.Array] = jax.lax.cond(
        fits(xs[n + 3], x.q.dtype), partial(cotangents, fun, levels, run, x.q.dtype), of_float32, *xs
    )
    return found


def fits(x: jax.Array, dtype: Any) -> jax.Array:
    """Whether every entry is a finite number of a narrower dtype.

    Asked of the bits: XLA leaves out a cast there and back on a GPU (`xla_allow_excess_precision`).
    """
    kind = jnp.finfo(dtype)
    narrow = jax.lax.reduce_precision(x, kind.nexp, kind.nmant)  # what is subnormal in dtype becomes 0
    exact = narrow == x
    if kind.nexp < jnp.finfo(x.dtype).nexp:
        steps = x / float(kind.smallest_subnormal)
        exact |= (jnp.abs(x) < float(kind.smallest_normal)) & (steps == jnp.round(steps))
    return (jnp.isfinite(narrow) & exact).all()


def cotangents(fun: Backward, levels: BatchLevels, run: Run, dtype: Any, *xs: Operand) -> list[jax.Array]:
    """Those of the active operands, by kernels that read the cotangent of out in a dtype (None: in float32).

    On a GPU, which cannot sum over the diagonals of a tile, a table has a kernel of its own.
    """
    at_distances = differentiates_tables(fun, of_one(fun, levels, xs))
    given_plan = partial(plan_of, fun, levels, xs, float32_dout=dtype is None, at_distances=at_distances)
    call = Call(given_plan(BACKWARD_Q), fun.tree, levels, xs)
    pull = Pullback.of(call, run, dtype)
    # Each active operand by its number, so that every cotangent finds its place.
    given = select_active(fun.tree, fun.argnums, fun.argnums)
    active = given._replace(captured=numbered_values(call, given.captured, fun.tree.num_leaves))
    found: dict[int, tuple[jax.Array, tuple[int, ...]]] = {}
    of_queries, of_keys, of_tables = pull.sides(active)
    if jax.tree.leaves(of_queries):
        found |= pull.to_queries(of_queries)
    if jax.tree.leaves(of_keys):
        plan = given_plan(BACKWARD_KV)
        same = (plan.q_tile, plan.k_tile) == (call.plan.q_tile, call.plan.k_tile)
        by_keys = pull if same else Pullback.of(Call(plan, fun.tree, levels, xs), run, dtype)
        found |= by_keys.to_keys(of_keys)
    of_offsets = call
    if jax.tree.leaves(of_tables):
        of_offsets = Call(given_plan(BACKWARD_TABLE), fun.tree, levels, xs)
        found |= Pullback.of(of_offsets, run, dtype).to_tables(of_tables)
    if has_values(call.plan.score) and any(i is not None for i in given.captured):
        pairs = zip(active.captured, call.x.captured, strict=True)
        of_values = [call.gather(*found[i], leaf.own) for i, leaf in pairs if i is not None]
        captured = {n: i for n, i in enumerate(given.captured) if i is not None}
        for (n, i), y in zip(captured.items(), of_offsets.pull_values([*captured], of_values), strict=True):
            found[i] = y, call.raw.captured[n].own
    if active.sink is not None:
        dsink = (pull.saved.sink_weight(call) * pull.g).reshape(-1, call.plan.T)
        found[active.sink] = dsink if call.raw.sink.array.ndim == 2 else dsink.sum(-1), call.every
    out = [call.gather(*found[i], levels.operands[i]) for i in fun.argnums]
    return [y.reshape(xs[i].shape).astype(xs[i].dtype) for i, y in zip(fun.argnums, out, strict=True)]


def numbered_values(call: Call, captured: tuple[int | None, ...], free: int) -> tuple[int | None, ...]:
    """What the score modifier captured, by its numbers where it is active; or in its place the floating values that
    stand for it, by numbers from `free` on."""
    if not has_values(call.plan.score):
        return captured
    active = any(i is not None for i in captured)
    return tuple(free + n if active and is_float(leaf.array) else None for n, leaf in enumerate(call.x.captured))


def times_scale(scale_last: bool, carry: Carry, operands: Any) -> Carry:
    """The sums, the first of them times the scale where no tile was multiplied by it."""
    return [carry[0] * operands[0].scale, *carry[1:]] if scale_last else carry


@dataclasses.dataclass(frozen=True, eq=False)
class Pullback:
    """The kernels of the backward pass, and what they read: the operands, the rows of (m, log_sum), dout, g, and as 1
    or 0 whether dout goes on."""

    call: Call
    saved: Saved
    g: jax.Array
    operands: tuple[Operands, tuple[Leaf, Leaf], Leaf, Leaf, Leaf]
    run: Run

    @classmethod
    def of(cls, call: Call, run: Run, dtype: Any) -> "Pullback":
        """With dout in a dtype that it fits into (None: in float32)."""
        saved = Saved.of(call)
        dout, dlse = call.more[3:]
        attended = jnp.where(saved.nonempty[..., None], call.spread(dout), 0)
        g = jnp.where(saved.nonempty, call.spread(dlse) - jnp.sum(attended * saved.out, -1), 0)
        live = live_rows(saved.nonempty, saved.out, searched=call.raw.mask is not None)
        if dtype is not None:
            dout = dataclasses.replace(dout, array=dout.array.astype(dtype))
        rows = call.lay(dout, "qd"), call.row(g), call.row(live.astype(call.plan.dtype))
        return cls(call, saved, g, (call.x, saved.rows, *rows), run)

    def tile(
        self, operands: Any, i: Any, j: Any, masked: bool, finite: bool, active: Operands, *, scale_last: bool
    ) -> Operands:
        """The parts of the cotangents of the active operands that one tile has.

        Where the scale is active, that of q is of the scaled query, from which both can be had. (A query that is scaled
        before would pass for one that is not finite where the scale is not, and have no cotangent.) An active scalar
        that the score modifier captured is laid out as a row, so that its cotangent is one; a table, as a row an entry.
        What it looked up for a key stays a column.
        """
        x, rows, dout, g, live = operands
        if not is_half(dout):  # in 16 bits it is finite: times a weight of 0 it is 0
            dout = before_transpose(lambda dout, live: jnp.where(live > 0, dout, 0), dout, remembered_transpose(live))
        w = recomputed(self.call, x, rows, i, j, masked, finite)
        captured = tuple(
            c
            if n is None or leaf.role in ("k", "o")
            else jnp.broadcast_to(c, (*c.shape[:1], g.shape[1]) if c.ndim else g.shape)
            for c, n, leaf in zip(w.tile.captured, active.captured, self.call.x.captured, strict=True)
        )
        w = w._replace(tile=w.tile._replace(captured=captured))
        plan = dataclasses.replace(self.call.plan, finite=finite)
        of_scaled = scale_last or active.scale is not None
        return backward_tile(plan, w, active._replace(scale=None), dout, g, scale_last=of_scaled)

    def sides(self, active: Operands) -> tuple[Operands, Operands, Operands]:
        """The active operands whose cotangents a query tile sums, those of which a key tile does, and those of which on
        a GPU a diagonal of tiles does."""

        def side(leaf: Leaf) -> str:
            return leaf.role if leaf.role == "k" or (leaf.role == "o" and self.call.plan.platform == "gpu") else "q"

        pairs = list(zip(active.captured, self.call.x.captured, strict=True))
        captured = {of: tuple(i if side(leaf) == of else None for i, leaf in pairs) for of in "qko"}
        of_queries = active._replace(k=None, v=None, sink=None, captured=captured["q"])
        of_keys = Operands(None, active.k, active.v, captured=captured["k"])
        return of_queries, of_keys, Operands(None, None, None, captured=captured["o"])

    def to_queries(self, active: Operands) -> dict[int, Any]:
        """The cotangents of q, bias, scale and what the score modifier captured."""
        call, plan = self.call, self.call.plan
        x, every = self.operands[0], call.every
        T, D, nq = plan.q_rows, x.q.array.shape[2], plan.q_tile
        wanted = active._replace(q=-1 if active.q is None else active.q)
        of_captured = {i: leaf for i, leaf in zip(active.captured, x.captured, strict=True) if i is not None}
        captured = {i: leaf for i, leaf in of_captured.items() if leaf.role != "o"}
        at_offsets = [i for i in of_captured if i not in captured]
        entries = [1 if leaf.role == "" else leaf.array.shape[1] for leaf in captured.values()]
        rounded = active.scale is None and x.q.own == every
        outputs = [Output((T, D), "qd", x.q.array.dtype if rounded else plan.dtype, across=True)]
        outputs += [Output((n, T), "nq", plan.dtype) for n in entries]
        outputs += [Output((T, plan.k_rows), "qk", plan.dtype)] * (active.bias is not None)
        outputs += [Output((1, T + plan.k_rows), "o", plan.dtype)] * len(at_offsets)

        def visit(operands: Any, carry: Carry, i: Any, j: Any, masked: bool, finite: bool) -> tuple[Carry, Carry]:
            parts = self.tile(operands, i, j, masked, finite, wanted, scale_last=scale_last)
            of = dict(zip(active.captured, parts.captured, strict=True))
            of_tile = [] if active.bias is None else [parts.bias.T]
            sums = [parts.q, *(of[i] for i in captured)]
            of_offsets = [sums_of_diagonals(of[i].astype(plan.dtype)) for i in at_offsets]
            return add(carry, sums), [*of_tile, *of_offsets]

        scale_last = plan.platform == "gpu" and active.scale is None
        grid = Grid(plan, call.sizes, every)
        shapes = [(D, nq), *((n, nq) for n in entries)]
        kernel = Kernel(
            BACKWARD_Q,
            call,
            grid,
            self.operands,
            outputs,
            shapes,
            zeros(shapes, plan.dtype),
            visit,
            partial(times_scale, scale_last),
            self.saved.rows,
            of_tile=int(active.bias is not None),
            of_offsets=len(at_offsets),
        )
        dq, *rest = self.run(kernel)
        dq = dq[:, : plan.T]
        found: dict[int, Any] = {
            i: ({"": y.sum((1, 2)), "n1": y.sum(2), "q": y[:, 0, : plan.T]}[leaf.role], every)
            for (i, leaf), y in zip(captured.items(), rest, strict=False)
        }
        found |= {i: (y[:, 0], every) for i, y in zip(at_offsets, rest[len(rest) - len(at_offsets) :], strict=True)}
        if active.bias is not None:
            found[active.bias] = rest[len(captured)][:, : plan.T, : plan.S], every
        if active.scale is not None:
            q = call.spread(call.raw.q).astype(plan.dtype)
            unscaled = dq.reshape(*call.sizes, plan.T, D)
            found[active.scale] = (unscaled * jnp.where(jnp.isfinite(q), q, 0)).sum((-2, -1)).reshape(-1), every
            scale = call.spread(call.raw.scale)[..., None, None].astype(plan.dtype)
            dq = (unscaled * scale).reshape(dq.shape)
        if active.q is not None:
            found[active.q] = dq, every
        return found

    def to_keys(self, active: Operands) -> dict[int, Any]:
        """The cotangents of k and v, and of what the score modifier looked up for a key: each key tile visits the query
        tiles of all heads that share it."""
        call, plan, x = self.call, self.call.plan, self.operands[0]
        every = (active.k, x.k), (active.v, x.v), *zip(active.captured, x.captured, strict=True)
        pairs = [(i, leaf) for i, leaf in every if i is not None]
        kept = tuple(sorted({level for _, leaf in pairs for level in leaf.own}))
        widths = [1 if leaf.role == "k" else leaf.array.shape[2] for _, leaf in pairs]
        outputs = [
            Output((plan.k_rows, D), "kd", leaf.array.dtype if leaf.own == kept else plan.dtype)
            for D, (_, leaf) in zip(widths, pairs, strict=True)
        ]

        def visit(operands: Any, carry: Carry, i: Any, j: Any, masked: bool, finite: bool) -> tuple[Carry, Carry]:
            parts = self.tile(operands, i, j, masked, finite, active, scale_last=scale_last)
            return add(carry, [part for part in (parts.k, parts.v, *parts.captured) if part is not None]), ()

        grid = Grid(plan, call.sizes, kept, keys_outer=True)
        shapes = [(plan.k_tile, D) for D in widths]
        start = zeros(shapes, plan.dtype)
        # Where heads that share the keys have scales of their own, each tile is scaled.
        scale_last = plan.platform == "gpu" and active.k is not None and set(x.scale.own) <= set(kept)
        finish = partial(times_scale, scale_last)
        kernel = Kernel(BACKWARD_KV, call, grid, self.operands, outputs, shapes, start, visit, finish, self.saved.rows)
        return {
            i: (y[:, : plan.S, 0] if leaf.role == "k" else y[:, : plan.S], kept)
            for (i, leaf), y in zip(pairs, self.run(kernel), strict=True)
        }

    def to_tables(self, active: Operands) -> dict[int, Any]:
        """The cotangents of what the score modifier looked up by distance: each diagonal of tiles sums them pair by
        pair."""
        call, plan = self.call, self.call.plan
        at_offsets = {
            i: leaf for i, leaf in zip(active.captured, self.operands[0].captured, strict=True) if i is not None
        }
        own = tuple(sorted({level for leaf in at_offsets.values() for level in leaf.own}))
        # Heads that share a table are visited one after another, where enough programs are left.
        enough = math.prod(call.sizes[level] for level in own) * plan.q_tiles >= tuning.GPU_PROGRAMS
        grid = Grid(plan, call.sizes, own if enough else call.every, diagonals=True)
        shape = (plan.k_tile, plan.q_tile)
        outputs = [Output((grid.outer * plan.k_tile, plan.q_tile), "kd", plan.dtype)] * len(at_offsets)

        def visit(operands: Any, carry: Carry, i: Any, j: Any, masked: bool, finite: bool) -> tuple[Carry, Carry]:
            parts = self.tile(operands, i, j, masked, finite, active, scale_last=False)
            return add(carry, [part for part in parts.captured if part is not None]), ()

        shapes = [shape] * len(at_offsets)
        start, finish = zeros(shapes, plan.dtype), lambda carry, x: carry
        kernel = Kernel(
            BACKWARD_TABLE, call, grid, self.operands, outputs, shapes, start, visit, finish, self.saved.rows
        )
        found = (sums_at_offsets(y.reshape(-1, grid.outer, *shape)) for y in self.run(kernel))
        return {i: (y, grid.kept) for i, y in zip(at_offsets, found, strict=True)}
