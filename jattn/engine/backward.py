"""The backward (vjp) pass: the transpose of the tangent pass.

With p = exp(l − m − log_sum), a tile's logits l and the dropout factors d (1 without dropout):

    dl = p·(d·(dout·vᵀ) + dlse − ⟨dout, out⟩),    dv = (p·d)ᵀ dout,    then back through the logits

A sum over tiles, given the final (m, log_sum), and linear in the cotangents.

Source: Dao et al. 2022, "FlashAttention", algorithm 4, with the cotangent of lse.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jattn._numerics import after, before_transpose, is_half, transpose, zero_nonfinite_rows
from jattn.engine import tile as tiles
from jattn.engine import tuning
from jattn.engine.batching import Operand
from jattn.engine.plan import Operands, Plan, fits_one_tile, pad, select_active
from jattn.engine.schedule import schedule, sum_by_rows
from jattn.engine.tangent import (
    DerivativePass,
    Recomputed,
    Residuals,
    active_fields,
    keep_active,
    merge_active,
)

SUM_ROLES = Operands(q="dq", k="kd", v="kd", bias="kq", scale="")
"""Which axes the part of a cotangent has that one tile yields (`schedule`)."""


@dataclasses.dataclass(frozen=True)
class Backward(DerivativePass):
    """..., cotangents of out and of lse → cotangents of the active leaves."""

    @property
    def linear_operands(self) -> int:
        return 2

    def output_types(self, *types: Any) -> list[Any]:
        return self.cotangent_types([types[i] for i in self.argnums])

    @property
    def working_set_bytes(self) -> int | None:
        return None if keeps_weights(self.plan, self.leaf_numbers) else super().working_set_bytes

    def run(self, total: Callable[..., Any], *xs: Operand) -> list[jax.Array]:
        plan, residuals = self.plan, self.residuals(xs)
        dout, dlse = xs[self.nonlinear_operands :]
        dout = jnp.where(residuals.nonempty[:, None], dout, 0)
        g = jnp.where(residuals.nonempty, dlse - row_sums(plan, dout * residuals.out), 0)
        if residuals.searched(plan):
            dout = jnp.where(residuals.live(plan)[:, None], dout, 0)
        active = select_active(self.tree, self.argnums, [xs[i] for i in self.argnums])
        if total is sum_by_rows and keeps_weights(plan, self.leaf_numbers):
            cotangents = single_tile(plan, residuals, active, dout, g)
        else:
            cotangents = sum_backward(plan, residuals, active, dout, g, total)
        if active.sink is not None:
            dsink = residuals.sink_weight(plan) * g
            dsink = dsink if active.sink.shape == (plan.T,) else dsink.sum().reshape(active.sink.shape)
            cotangents = cotangents._replace(sink=dsink)
        return rounded_as(plan, active, cotangents)


def row_sums(plan: Plan, x: jax.Array) -> jax.Array:
    """The sum of each row of x, [T, Dv].

    In given tiles, tile after tile: XLA adds up the entries of arrays of 4,096 numbers and more in another order, and
    the bits of a row would depend on how many others there are.
    """
    if plan.tile_given is None:
        return x.sum(1)
    rows = plan.pad_rows(x).reshape(plan.q_tiles, plan.q_tile, x.shape[1])
    return jax.lax.map(lambda tile: tile.sum(1), rows).reshape(plan.q_rows)[: plan.T]


def keeps_weights(plan: Plan, x: Operands) -> bool:
    """One tile of so few pairs that their weights may be kept from the forward pass."""
    return plan.platform == "cpu" and fits_one_tile(plan, x) and plan.q_tile * plan.k_tile <= tuning.KEPT_PAIRS


def single_tile(plan: Plan, residuals: Residuals, active: Operands, dout: jax.Array, g: jax.Array) -> Operands:
    """The cotangents of the active operands of one tile without a mask, its queries down as in the forward pass."""
    tile = tiles.cut(plan, residuals.x, 0, 0)
    fields = active_fields(active, tile)
    products = tiles.products(tile.q, tile.k, tile.scale)
    logits = tiles.tile_logits(plan, tile, products, None, transposed=False)
    p = tiles.weights(plan, logits, residuals.m, tile.q.shape[1]) * jnp.exp(-residuals.log_sum_padded)[:, None]
    ds = p * (dout @ tile.v.T + g[:, None])
    dq = ds @ tile.k  # of the scaled query
    return Operands(
        q=None if fields["q"] is None else dq * tile.scale,
        k=None if fields["k"] is None else tiles.dot(ds, tile.q * tile.scale, over=(0, 0)),
        v=None if active.v is None else tiles.dot(p, dout, over=(0, 0)),
        scale=None if fields["scale"] is None else jnp.sum(dq * tile.q),
    )


def sum_backward(
    plan: Plan,
    residuals: Residuals,
    active: Operands,
    dout: jax.Array,
    g: jax.Array,
    total: Callable[..., Any],
    recomputed: type[Recomputed] = Recomputed,
) -> Operands:
    """The cotangents of the active operands but the sink, in the dtype of the sums and with the rows that pad.

    Args:
      dout: [T, Dv]. g: [T], what each weight of a query gets beside ⟨dout, v⟩.
      total: how the parts of the tiles are added up (`schedule`).
    """
    residuals = residuals.without_nonfinite(plan)
    dout_padded, g_padded = plan.pad_rows(dout), plan.pad_rows(g)

    def tile(i: Any, j: Any, masked: bool, first: Any) -> list[jax.Array]:
        dout, g = (tiles.cut_rows(a, i, plan.q_tile) for a in (dout_padded, g_padded))
        tile = recomputed.of(plan, residuals, i, j, masked, first=first)
        parts = backward_tile(plan, tile, active, after(first, dout), g[None, :])
        if residuals.nonfinite is not None:
            parts = residuals.nonfinite.tile(plan, i, j).transposed.zero(parts)
        return jax.tree.leaves(parts)

    tiled = pad(plan, active)._replace(sink=None, dropout=None)
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, plan.dtype), tiled._replace(captured=()))
    zeros = zeros._replace(captured=jax.tree.map(lambda a: jnp.zeros(a.shape, sums_in(plan, a)), tiled.captured))
    roles = SUM_ROLES._replace(captured=("",) * len(tiled.captured))
    flat, form = jax.tree.flatten(zeros)
    flat_roles = jax.tree.leaves(keep_active(zeros, roles))
    sums = total(schedule(plan, residuals.x), tile, flat, flat_roles) if flat else []
    found: Operands = jax.tree.unflatten(form, sums)
    return found


def rounded_as(plan: Plan, active: Operands, cotangents: Operands) -> list[jax.Array]:
    """The leaves of the cotangents without the rows that pad, rounded once: as those of the active operands."""
    pairs = zip(jax.tree.leaves(cotangents), jax.tree.leaves(active), strict=True)
    return [a[tuple(map(slice, leaf.shape))].astype(plan.cotangent_dtype(leaf.dtype)) for a, leaf in pairs]


def backward_tile(
    plan: Plan, w: Recomputed, active: Operands, dout: jax.Array, g: jax.Array, *, scale_last: bool = False
) -> Operands:
    """The parts of the cotangents of the active operands that one tile has, with axes as in `SUM_ROLES`.

    Args:
      scale_last: whether those of q and k are to be multiplied by the scale when they are summed.
    """
    fields = active_fields(active, w.tile)
    q, k, scale = w.tile.q, w.tile.k, w.tile.scale
    q_nonfinite = k_nonfinite = None
    if w.v_nonfinite is not None:
        (q, q_nonfinite), (k, k_nonfinite) = zero_nonfinite_rows(q), zero_nonfinite_rows(k)

    def logits(products: jax.Array, bias: Any, captured: Any) -> jax.Array:
        tile = merge_active(w.tile, {"bias": bias, "captured": captured})
        return tiles.tile_logits(plan, tile, products, w.allowed, transposed=True, nonfinite=w.nonfinite)

    products = tiles.products(q, k, scale, transposed=True)
    found, pullback = jax.vjp(logits, products, fields["bias"], fields["captured"])
    p = w.probabilities(found)
    ds, dbias, dcaptured = pullback(p * (w.drop(tiles.dot(w.v, transpose(dout))) + g))
    dq: Any = None
    dk: Any = None
    if fields["q"] is not None or fields["scale"] is not None:
        dq = tiles.dot(k, ds, over=(0, 0))  # of the scaled query, [D, queries]
        dq = dq if q_nonfinite is None else jnp.where(q_nonfinite.T, 0, dq)
    if fields["k"] is not None:
        if scale_last:
            dk = tiles.dot(ds, q)
        else:
            dk = tiles.dot(ds, q) * scale if is_half(q) else tiles.dot(ds, before_transpose(lambda q: q * scale, q))
        dk = dk if k_nonfinite is None else jnp.where(k_nonfinite, 0, dk)
    return Operands(
        q=None if fields["q"] is None else (dq if scale_last else dq * scale),
        k=dk,
        v=None if active.v is None else w.at_finite_values(tiles.dot(w.drop(p), dout)),
        bias=dbias,
        scale=None if fields["scale"] is None else jnp.sum(dq * transpose(q)),
        captured=jax.tree.map(lambda a: a.astype(sums_in(plan, a)), dcaptured),
    )


def sums_in(plan: Plan, captured: jax.Array) -> Any:
    """The dtype in which the cotangent of what a score modifier captured is summed, over tiles and over heads."""
    return plan.dtype if is_half(captured) else captured.dtype
