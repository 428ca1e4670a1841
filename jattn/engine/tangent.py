"""The tangent (jvp) pass, and what both derivative passes start from.

With p = exp(l − m − log_sum), a tile's logits l and the dropout factors d (1 without dropout):

    out_dot = A − lse_dot·out,    A = Σ_s p·d·(l_dot·v + v_dot),    lse_dot = Σ_s p·l_dot

A sum over tiles, given the final (m, log_sum), and linear in the tangents. Its transpose is `backward`; JAX derives
every further order from these two.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from jattn._numerics import (
    below,
    exp,
    finite_or_zero,
    nan_where,
    nonfinite_rows,
    remembered_transpose,
    sum_of,
    untransposed,
    zero_nonfinite_rows,
)
from jattn.engine import tile as tiles
from jattn.engine.batching import ForFinite, Linear, Operand, times
from jattn.engine.plan import Operands, Plan, pad, repeat_last, select_active
from jattn.engine.schedule import PlannedFunction, schedule, sum_by_rows, sum_by_tiles
from jattn.engine.tile import Tile

OperandsOrTile = TypeVar("OperandsOrTile", Operands, Tile)


class NonfiniteRows(NamedTuple):
    """Which rows of q, k and v are not finite, [n, 1]."""

    q: jax.Array
    k: jax.Array
    v: jax.Array

    def tile(self, plan: Plan, i: Any, j: Any) -> "NonfiniteRows":
        """Those of one tile."""
        of_k, of_v = (tiles.cut_rows(rows, j, plan.k_tile) for rows in (self.k, self.v))
        return NonfiniteRows(tiles.cut_rows(self.q, i, plan.q_tile), of_k, of_v)

    @property
    def transposed(self) -> "NonfiniteRows":
        """For parts of cotangents, of which that of q is [D, queries]."""
        return self._replace(q=self.q.T)

    def zero(self, x: OperandsOrTile) -> OperandsOrTile:
        """Operands, tangents or cotangents with zero in these rows, so that no derivative passes through them."""
        q, k, v = (
            None if a is None else jnp.where(nonfinite, 0, a)
            for a, nonfinite in zip((x.q, x.k, x.v), self, strict=True)
        )
        return x._replace(q=q, k=k, v=v)


class Residuals(NamedTuple):
    """What a derivative pass starts from: the padded operands, and what the forward pass found."""

    x: Operands
    out: jax.Array
    m: jax.Array
    m_padded: jax.Array
    log_sum_padded: jax.Array
    nonfinite: NonfiniteRows | None = None
    """Where tiles have zero for the rows that are not finite (`without_nonfinite`)."""

    @property
    def nonempty(self) -> jax.Array:
        """The queries with an allowed key or a sink; the derivative of the others is zero."""
        return self.m != -jnp.inf

    def live(self, plan: Plan) -> jax.Array:
        return live_rows(self.nonempty, self.out, searched=self.searched(plan))

    def searched(self, plan: Plan) -> bool:
        """Whether a mask may hide what is not finite."""
        return self.x.mask is not None and not plan.finite

    def without_nonfinite(self, plan: Plan) -> "Residuals":
        """The same, with the rows of q, k and v that are not finite, where a mask may hide them: tiles have 0 there.

        They are searched for once, not in every tile. A query that attends one has a NaN in its maximum or cotangent.
        """
        if not self.searched(plan):
            return self
        return self._replace(nonfinite=NonfiniteRows(*map(nonfinite_rows, (self.x.q, self.x.k, self.x.v))))

    def sink_weight(self, plan: Plan) -> jax.Array:
        """The share of the sink in the denominator of each query."""
        return jnp.exp(below(per_query(plan, self.x.sink), self.m_padded[: plan.T]) - self.log_sum_padded[: plan.T])


def pad_for_derivatives(plan: Plan, x: Operands) -> Operands:
    """The operands of a derivative pass in whole tiles; beside a score modifier the last query pads the queries.

    Of a product of zeros a score may have an infinite derivative, which times a cotangent of 0 would reach that of k.
    """
    padded = pad(plan, x)
    return padded if plan.score is None or plan.q_rows == plan.T else padded._replace(q=repeat_last(padded.q, plan.T))


def live_rows(nonempty: jax.Array, out: jax.Array, *, searched: bool) -> jax.Array:
    """The queries whose cotangents of out reach the values: those that attended to something.

    Searched, for what a mask hides: of these, the ones whose output is finite. NaN times a weight of 0 would reach
    values that the query may not attend.
    """
    return nonempty & ~nonfinite_rows(out)[..., 0] if searched else nonempty


def per_query(plan: Plan, sink: jax.Array) -> jax.Array:
    """A sink, padded or one for all, as one entry a query."""
    return jnp.broadcast_to((sink[: plan.T] if sink.ndim else sink).astype(plan.dtype), (plan.T,))


@dataclasses.dataclass(frozen=True)
class DerivativePass(PlannedFunction, Linear):
    """A sum over tiles. Operands: the leaves, (out, m, log_sum), then what the pass is linear in."""

    argnums: tuple[int, ...]
    """The leaves that are differentiated: the active ones."""

    @property
    def working_set_bytes(self) -> int | None:
        return times(4, self.plan.working_set_bytes)  # logits, weights, their cotangents, and sums that are added to

    @property
    def read_in_place(self) -> frozenset[int]:
        return super().read_in_place - set(self.argnums)

    def for_finite(self, examples: int = 1) -> ForFinite | None:
        # A single tile without a mask needs no search for non-finite rows: the result is the same without.
        one = self.plan.q_tiles == self.plan.k_tiles == 1
        return None if one and self.leaf_numbers.mask is None else super().for_finite(examples)

    @property
    def nonlinear_operands(self) -> int:
        return self.tree.num_leaves + 3

    def __call__(self, *xs: Operand) -> list[jax.Array]:
        return self.run(sum_by_rows, *xs)

    def transposable(self, *xs: Operand) -> list[jax.Array]:
        return self.run(sum_by_tiles, *xs)

    def run(self, total: Callable[..., Any], *xs: Operand) -> list[jax.Array]:
        raise NotImplementedError

    def residuals(self, xs: Sequence[Operand]) -> Residuals:
        plan, n = self.plan, self.tree.num_leaves
        out, m, log_sum = xs[n : n + 3]
        # A row that pads has no weight anywhere: whatever its logits, they lie infinitely far below its maximum.
        m_padded = plan.pad_rows(finite_or_zero(m), jnp.inf)
        x = pad_for_derivatives(plan, jax.tree.unflatten(self.tree, xs[:n]))
        return Residuals(x, out, m, m_padded, plan.pad_rows(log_sum))


def allowed_pairs(plan: Plan, tile: Tile) -> jax.Array:
    """The allowed pairs of a tile. What may not be finite is not met by rows that pad the last tile of queries.

    By its number such a row may attend a key that is hidden from every query. Its weight there would be NaN, and reach
    the cotangent of the value.
    """
    allowed = tiles.tile_mask(plan, tile)
    return allowed if plan.finite or plan.q_rows == plan.T else allowed & (tile.q_axis.numbers < plan.T)


class Recomputed(NamedTuple):
    """One tile of a derivative pass: queries down and keys across, or transposed.

    The backward pass sums over queries, the tangent pass over keys. In the form where the axis that is summed over is
    across, products with p and with ds need neither of them transposed: on a CPU they run up to twice as fast.
    """

    tile: Tile
    allowed: jax.Array | None
    m: jax.Array
    log_sum: jax.Array
    factors: jax.Array | None
    v: jax.Array
    v_nonfinite: jax.Array | None
    """Which values are not finite; None where the tile is not searched for them."""
    transposed: bool = True
    nonfinite: jax.Array | None = None
    """The pairs whose query or key was not finite before it was replaced by zero."""
    plain: bool = False
    """Whether no logit is +∞, and none the result of a product that a compiler could fuse with "− m"."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        residuals: Residuals,
        i: Any,
        j: Any,
        masked: bool,
        *,
        transposed: bool = True,
        first: Any = (),
    ) -> "Recomputed":
        tile = tiles.cut(plan, residuals.x, i, j, transposed=transposed, first=first)
        allowed = allowed_pairs(plan, tile) if masked else None
        m, log_sum = (
            jnp.expand_dims(tiles.cut_rows(a, i, plan.q_tile), 0 if transposed else 1)
            for a in (residuals.m_padded, residuals.log_sum_padded)
        )
        factors = tiles.dropout_factors(plan, tile, transposed=transposed)
        if residuals.nonfinite is None:
            v, v_nonfinite = zero_nonfinite_rows(tile.v) if masked and not plan.finite else (tile.v, None)
            return cls(tile, allowed, m, log_sum, factors, v, v_nonfinite, transposed)
        here = residuals.nonfinite.tile(plan, i, j)
        tile = here.zero(tile)
        nonfinite = here.k | here.q.T if transposed else here.q | here.k.T
        return cls(tile, allowed, m, log_sum, factors, tile.v, None, transposed, nonfinite)

    def probabilities(self, logits: jax.Array) -> jax.Array:
        """p, from the logits and the residuals. In a row that is NaN it is 0 of what the row may not attend."""
        p = exp((jnp.subtract if self.plain else below)(logits, self.m) - self.log_sum)
        finite = self.v_nonfinite is None and self.nonfinite is None
        return p if finite or self.allowed is None else jnp.where(self.allowed, p, 0)

    def drop(self, p: jax.Array) -> jax.Array:
        return p if self.factors is None else p * self.factors

    def at_finite_values(self, dv: jax.Array) -> jax.Array:
        """Zero at the values that are not finite: neither tangent nor cotangent passes there."""
        return dv if self.v_nonfinite is None else jnp.where(self.v_nonfinite, 0, dv)


LOGIT_INPUTS = ("q", "k", "bias", "scale", "captured")
"""The fields of a tile that its logits are differentiable functions of."""


def keep_active(active: Any, full: Any) -> Any:
    """`full`, with None for each leaf that is None in `active`."""
    return jax.tree.map(lambda a, x: None if a is None else x, active, full, is_leaf=lambda a: a is None)


def active_fields(active: Operands | Tile, tile: Tile) -> dict[str, Any]:
    """The fields of a tile that the logits depend on, with None for each leaf that is not active."""
    return {name: keep_active(getattr(active, name), getattr(tile, name)) for name in LOGIT_INPUTS}


def fill_inactive(active: Any, full: Any) -> Any:
    """`active`, with the leaf of `full` for each that is None."""
    return jax.tree.map(lambda a, x: x if a is None else a, active, full, is_leaf=lambda a: a is None)


def merge_active(tile: Tile, active: dict[str, Any]) -> Tile:
    """The tile with its active leaves replaced."""
    return tile._replace(**{name: fill_inactive(a, getattr(tile, name)) for name, a in active.items()})


@dataclasses.dataclass(frozen=True)
class Tangent(DerivativePass):
    """..., tangents of the active leaves → (out_dot, lse_dot)."""

    @property
    def linear_operands(self) -> int:
        return len(self.argnums)

    def output_types(self, *types: Any) -> list[Any]:
        out, _, log_sum = types[self.tree.num_leaves : self.nonlinear_operands]
        return [out, log_sum]

    def run(self, total: Callable[..., Any], *xs: Operand) -> list[jax.Array]:
        plan, residuals = self.plan, self.residuals(xs)
        x_dot = pad(plan, select_active(self.tree, self.argnums, xs[self.nonlinear_operands :]))
        a, lse_dot = sum_tangent(plan, residuals, x_dot, total)
        if x_dot.sink is not None:
            lse_dot += residuals.sink_weight(plan) * per_query(plan, x_dot.sink)
        nonempty, live = residuals.nonempty[:, None], residuals.live(plan)[:, None]
        out_dot = a - lse_dot[:, None] * jnp.where(live, residuals.out, 0)
        return [
            nan_where(nonempty & ~live, jnp.where(live, out_dot, 0)),
            jnp.where(residuals.nonempty, lse_dot, 0),
        ]


def sum_tangent(
    plan: Plan,
    residuals: Residuals,
    x_dot: Operands,
    total: Callable[..., Any],
    recomputed: type[Recomputed] = Recomputed,
) -> list[jax.Array]:
    """A [T, Dv] and lse_dot [T], given the padded tangents of the active operands."""
    residuals = residuals.without_nonfinite(plan)

    def tile(i: Any, j: Any, masked: bool, first: Any) -> list[jax.Array]:
        w = recomputed.of(plan, residuals, i, j, masked, transposed=False, first=first)
        tile_dot = tiles.cut(plan, x_dot, i, j, first=first)
        nonfinite = residuals.nonfinite
        return tangent_tile(plan, w, tile_dot if nonfinite is None else nonfinite.tile(plan, i, j).zero(tile_dot))

    zeros = [jnp.zeros((plan.q_rows, *tail), plan.dtype) for tail in (residuals.x.v.shape[1:], ())]
    return [y[: plan.T] for y in total(schedule(plan, residuals.x), tile, zeros, ["qd", "q"])]


def logits_and_tangents(
    plan: Plan, tile: Tile, tile_dot: Tile, allowed: jax.Array | None, **how: Any
) -> tuple[jax.Array, jax.Array]:
    """The logits of a tile, as `tile.logits` makes them, and their tangents."""

    tangents = {name: getattr(tile_dot, name) for name in LOGIT_INPUTS}
    given = {name: untransposed(tangents[name]) for name in ("q", "k") if tangents[name] is not None}
    transposed = [name for name, x in given.items() if x is not None]

    def logits(active: dict[str, Any]) -> jax.Array:
        active = active | {name: remembered_transpose(active[name]) for name in transposed}
        return tiles.logits(plan, merge_active(tile, active), allowed, **how)

    def as_given(fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {name: untransposed(fields[name]) for name in transposed}

    found: tuple[jax.Array, jax.Array]
    found = jax.jvp(logits, (as_given(active_fields(tile_dot, tile)),), (as_given(tangents),))
    return found


def tangent_tile(plan: Plan, w: Recomputed, tile_dot: Tile) -> list[jax.Array]:
    """The parts of A, [queries, Dv], and of lse_dot, [queries], that one tile has; A transposed as the tile is."""

    def weighted(p: jax.Array, v: jax.Array) -> jax.Array:
        return tiles.dot(v, p, over=(0, 0)) if w.transposed else tiles.dot(p, v)

    how = {"transposed": w.transposed, "nonfinite": w.nonfinite}
    found, logits_dot = logits_and_tangents(plan, w.tile, tile_dot, w.allowed, **how)
    p = w.probabilities(found)
    p_dot = p * logits_dot
    a = weighted(w.drop(p_dot), w.v)
    if tile_dot.v is not None:
        a = sum_of(a, weighted(w.drop(p), w.at_finite_values(tile_dot.v)))
    return [a, p_dot.sum(0 if w.transposed else 1)]
