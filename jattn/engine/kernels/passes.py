"""The forward and the tangent pass, each as a kernel: what it folds over tiles, and what is left to do outside of it.

A pass takes `run`, which makes a platform's program of a `Kernel`. The backward pass is in `backward.py`.

Source: Dao et al. 2022, "FlashAttention", algorithm 2, a query tile at a time.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jattn._numerics import added, below, finite_or_zero, zero_nonfinite_rows
from jattn.engine import tile as tiles
from jattn.engine.batching import BatchLevels, Operand
from jattn.engine.forward import Forward, forward_full_tile, forward_masked_tile
from jattn.engine.kernels.grid import Grid
from jattn.engine.kernels.kernel import Kernel, Output
from jattn.engine.kernels.layout import Call, Leaf
from jattn.engine.kernels.plans import FORWARD, TANGENT, differentiates_tables, of_one, plan_of
from jattn.engine.plan import Operands, select_active
from jattn.engine.tangent import Recomputed, Tangent, allowed_pairs, tangent_tile
from jattn.partials import SoftmaxState

Run = Callable[[Kernel], list[jax.Array]]
Carry = Sequence[jax.Array]


def forward(fun: Forward, levels: BatchLevels, run: Run, *xs: Operand) -> list[jax.Array]:
    """(out, m, log_sum) of all heads."""
    call = Call(plan_of(fun, levels, xs, FORWARD), fun.tree, levels, xs, over_keys=True)
    plan, nq, T, Dv = call.plan, call.plan.q_tile, call.plan.q_rows, call.x.v.array.shape[2]
    across = {"transposed": call.transposed}
    sums = are_sums(call) and call.x.sink is None
    shapes = [(1, nq), (1, nq), (Dv, nq)] if call.transposed else [(nq,), (nq,), (nq, Dv)]

    def start(x: Operands) -> Carry:
        sink = x.sink if x.sink is None or x.sink.ndim == 0 else x.sink.reshape(shapes[0])
        return SoftmaxState.start(sink, shapes[0], Dv, plan.dtype, **across)

    def visit(x: Operands, carry: Carry, i: Any, j: Any, masked: bool, finite: bool) -> tuple[Carry, Carry]:
        tile, state = call.tile(x, i, j), SoftmaxState(*carry)
        how = across | {"plain": finite and sums}
        if masked:
            return forward_masked_tile(dataclasses.replace(plan, finite=finite), state, tile, **how), ()
        # A tile with a non-finite row is visited as a masked one.
        return forward_full_tile(plan, state, tile, lambda products: None, **how), ()

    def finish(carry: Carry, x: Any) -> Carry:
        out, m, log_sum = SoftmaxState(*carry).finish(**across)
        # The maximum of a GPU passes over NaN, and the sum does not.
        out += jnp.sum(out * 0, 0 if call.transposed else 1, keepdims=True)
        return out, *(row.reshape(1, nq) for row in (m + log_sum * 0, log_sum))

    row = Output((1, T), "q", plan.dtype)
    outputs = [Output((T, Dv), "qd", plan.dtype, across=call.transposed), row, row]
    grid = Grid(plan, call.sizes, call.every)
    out, m, log_sum = run(Kernel(FORWARD, call, grid, call.x, outputs, shapes, start, visit, finish))
    ys = out[:, : plan.T], m[:, 0, : plan.T], log_sum[:, 0, : plan.T]
    return [call.gather(y, call.every, own) for y, own in zip(ys, levels.outputs, strict=True)]


def zeros(shapes: Sequence[tuple[int, ...]], dtype: Any) -> Callable[[Any], Carry]:
    """The start of a sum."""
    return lambda _: [jnp.zeros(shape, dtype) for shape in shapes]


def add(carry: Carry, parts: Sequence[Any]) -> Carry:
    return [added(total, part) for total, part in zip(carry, parts, strict=True)]


@dataclasses.dataclass(frozen=True, eq=False)
class Saved:
    """What the forward pass found: whole arrays with an axis for every level, and rows for a kernel."""

    out: jax.Array
    m: jax.Array
    log_sum: jax.Array
    rows: tuple[Leaf, Leaf]

    @classmethod
    def of(cls, call: Call) -> "Saved":
        out, m, log_sum = map(call.spread, call.more[:3])
        # A row that pads has no weight anywhere: whatever its logits, they lie infinitely far below its maximum.
        return cls(out, m, log_sum, (call.row(m, jnp.inf), call.row(log_sum)))

    @property
    def nonempty(self) -> jax.Array:
        return self.m != -jnp.inf

    def sink_weight(self, call: Call) -> jax.Array:
        """The share of the sink in the denominator of each query."""
        sink, m = jnp.broadcast_arrays(call.spread_sink(call.raw.sink), finite_or_zero(self.m))
        return jnp.exp(below(sink, m) - self.log_sum)


def recomputed(
    call: Call, x: Operands, rows: tuple[jax.Array, jax.Array], i: Any, j: Any, masked: bool, finite: bool
) -> Recomputed:
    """One tile of a derivative pass."""
    tile = call.tile(x, i, j)
    allowed = allowed_pairs(dataclasses.replace(call.plan, finite=finite), tile) if masked else None
    v, v_nonfinite = zero_nonfinite_rows(tile.v) if masked and not finite else (tile.v, None)
    m, log_sum = rows
    factors = tiles.dropout_factors(call.plan, tile, transposed=call.transposed)
    plain = finite and call.plan.platform == "gpu" and are_sums(call)
    return Recomputed(tile, allowed, finite_or_zero(m), log_sum, factors, v, v_nonfinite, call.transposed, plain=plain)


def are_sums(call: Call) -> bool:
    """Whether logits are sums of products alone: of a finite tile none is infinite."""
    return call.plan.score is None and call.x.bias is None and call.x.q.array.shape[2] > 1


def tangent(fun: Tangent, levels: BatchLevels, run: Run, *xs: Operand) -> list[jax.Array]:
    """(out_dot, lse_dot) of all heads."""
    at_distances = differentiates_tables(fun, of_one(fun, levels, xs))
    plan = plan_of(fun, levels, xs, TANGENT, at_distances=at_distances)
    call = Call(plan, fun.tree, levels, xs, over_keys=True)
    saved = Saved.of(call)
    raw_dot = select_active(fun.tree, fun.argnums, call.more[3:])
    # The tangent of the sink is a matter of whole rows.
    in_kernel = raw_dot._replace(sink=None, dropout=None, captured=call.values_dot(raw_dot.captured))
    operands = (call.x, saved.rows, call.in_blocks(in_kernel))
    nq, T, Dv = plan.q_tile, plan.q_rows, saved.out.shape[-1]
    shapes = [(Dv, nq), (1, nq)] if call.transposed else [(nq, Dv), (nq,)]

    def visit(operands: Any, carry: Carry, i: Any, j: Any, masked: bool, finite: bool) -> tuple[Carry, Carry]:
        x, rows, x_dot = operands
        w = recomputed(call, x, rows, i, j, masked, finite)
        a, lse_dot = tangent_tile(dataclasses.replace(plan, finite=finite), w, call.tile(x_dot, i, j))
        return add(carry, (a, lse_dot.reshape(shapes[1]))), ()

    def finish(carry: Carry, x: Any) -> Carry:
        a, lse_dot = carry
        return a, lse_dot.reshape(1, nq)

    outputs = [Output((T, Dv), "qd", plan.dtype, across=call.transposed), Output((1, T), "q", plan.dtype)]
    grid = Grid(plan, call.sizes, call.every)
    start = zeros(shapes, plan.dtype)
    kernel = Kernel(TANGENT, call, grid, operands, outputs, shapes, start, visit, finish, saved.rows)
    a, lse_dot = run(kernel)
    a = a[:, : plan.T].reshape(*call.sizes, plan.T, Dv)
    lse_dot = lse_dot[:, 0, : plan.T].reshape(*call.sizes, plan.T)
    if raw_dot.sink is not None:
        lse_dot += saved.sink_weight(call) * call.spread_sink(raw_dot.sink)
    return [
        jnp.where(saved.nonempty[..., None], a - lse_dot[..., None] * saved.out, 0),
        jnp.where(saved.nonempty, lse_dot, 0),
    ]
