"""Passes for what is asked of a query beside its attention: its best keys, and how its logits lie below their maximum.

`BestKeys` and `Deviation` visit the tiles that the forward pass visits. The first chooses and has no derivative; that
of the chosen logits is the derivative of `LogitsAt`, which computes them again. `Deviation` and `LogitsAt` bring their
tangent and backward passes along, sums of parts of which nothing is kept, as those of attention.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jattn._numerics import below, max_or_nan, zero_nonfinite_rows
from jattn._values import recomputed
from jattn.engine import tile as tiles
from jattn.engine.backward import rounded_as, sum_backward, sums_in
from jattn.engine.batching import Linear, Operand, are_transposes, times
from jattn.engine.plan import Operands, Plan, pad, select_active
from jattn.engine.schedule import PlannedFunction, fold_rows, schedule, sum_by_rows
from jattn.engine.tangent import (
    DerivativePass,
    Recomputed,
    Residuals,
    fill_inactive,
    pad_for_derivatives,
    sum_tangent,
)
from jattn.engine.tile import Tile


@dataclasses.dataclass(frozen=True)
class BestKeys(PlannedFunction):
    """The leaves of the operands → (indices [T, n] of the n best keys, logits [T, n]), best first.

    Of equal logits the lower index is first. Where there are fewer keys the index is S and the logit −∞. A logit that
    is NaN comes first, and is +∞ here.
    """

    n: int

    def output_types(self, *types: Any) -> list[Any]:
        logits = self.plan.type_of_rows(self.n)
        return [logits.update(dtype=jnp.dtype(jnp.int32)), logits]

    @property
    def working_set_bytes(self) -> int | None:
        return self.plan.working_set_bytes

    def __call__(self, *leaves: Operand) -> list[jax.Array]:
        plan = self.plan
        x = pad(plan, jax.tree.unflatten(self.tree, leaves))
        visits = schedule(plan, x)
        none = jnp.asarray(plan.S, jnp.int32)

        def start(_: Any, i: Any) -> tuple[jax.Array, jax.Array]:
            shape = plan.q_tile, self.n
            return jnp.full(shape, -jnp.inf, plan.dtype), jnp.broadcast_to(none, shape)

        def step(best: tuple[jax.Array, jax.Array], i: Any, j: Any, masked: bool, first: Any) -> tuple[Any, Any]:
            tile = tiles.cut(plan, x, i, j, first=first)
            logits = tiles.logits(plan, tile, _allowed(self, tile, masked))
            found, at = _best(jnp.where(jnp.isnan(logits), jnp.inf, logits), self.n)
            # Full tiles are visited before partial ones: of equal logits the index decides, not the order.
            keys = jnp.concatenate([-best[0], -found], 1), jnp.concatenate([best[1], at + j * plan.k_tile], 1)
            minus, indices = jax.lax.sort(keys, dimension=1, num_keys=2)
            best = -minus[:, : self.n], indices[:, : self.n]
            return best, best

        def finish(best: tuple[jax.Array, jax.Array]) -> tuple[None, tuple[jax.Array, jax.Array]]:
            logits, indices = best
            return None, (jnp.where(logits == -jnp.inf, none, indices), logits)

        _, ys = fold_rows(visits, None, start, step, finish)
        return [y[: plan.T] for y in ys]


def _best(x: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """The n largest of each row, or all of a row that is shorter, and where they are (int32)."""
    if n == 1:
        at = jax.lax.argmax(x, 1, jnp.int32)[:, None]
        return max_or_nan(x, 1)[:, None], at
    found, at = jax.lax.top_k(jnp.where(x == 0, 0, x), min(n, x.shape[1]))  # to which 0 is more than −0
    return found, at.astype(jnp.int32)


def _allowed(fun: PlannedFunction, tile: Tile, masked: bool) -> jax.Array:
    """The allowed pairs of a tile. Not None of a full one: a key that is not finite then has the logit NaN."""
    plan = fun.plan
    return tiles.tile_mask(plan, tile) if masked else jnp.ones((plan.q_tile, plan.k_tile), bool)


# The logits of chosen keys. One key of each query at a time: nothing of width D is kept for each of the n.


class _VisitsNoTile(PlannedFunction):
    """A function of the operands alone, whatever tiles their mask rules out."""

    def examples_diverge(self, mapped: tuple[bool, ...]) -> bool:
        return False

    @property
    def read_in_place(self) -> frozenset[int]:
        return frozenset()

    def for_finite(self, examples: int = 1) -> None:
        return None


@dataclasses.dataclass(frozen=True)
class LogitsAt(_VisitsNoTile):
    """The leaves of the operands, indices [T, n] of keys → the logits of these pairs [T, n]; −∞ where an index is S."""

    def output_types(self, *types: Any) -> list[Any]:
        return [self.plan.type_of_rows(types[-1].shape[1])]

    def tangent_function(self, argnums: tuple[int, ...]) -> "LogitsAtTangent":
        return LogitsAtTangent(self.plan, self.tree, argnums)

    def __call__(self, *xs: Operand) -> list[jax.Array]:
        x = jax.tree.unflatten(self.tree, xs[:-1])
        return [jax.lax.map(lambda at: logits_at(self.plan, x, at), xs[-1].T).T]


def logits_at(plan: Plan, x: Operands, at: jax.Array) -> jax.Array:
    """The logit of one key of each query, [T]."""
    rows, allowed = jnp.arange(plan.T, dtype=jnp.int32), at < plan.S
    at = jnp.where(allowed, at, 0)
    score = None if plan.score is None else jax.vmap(partial(plan.score, x.captured))
    (q, q_nonfinite), (k, k_nonfinite) = (zero_nonfinite_rows(a.astype(plan.dtype)) for a in (x.q, x.k[at]))
    bias = None if x.bias is None else _entries(x.bias, rows, at).astype(plan.dtype)
    t, s = (i if places is None else places[i] for i, places in ((rows, x.q_positions), (at, x.k_positions)))
    products = jnp.sum(q * x.scale.astype(plan.dtype) * k, 1)
    return tiles.logits_from_products(products, score, bias, allowed, (q_nonfinite | k_nonfinite)[:, 0], t, s)


def _entries(x: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    """x[i, j], of an array that may have one entry for all along either axis."""
    return x[tuple(0 if n == 1 else at for n, at in zip(x.shape, (i, j), strict=True))] * jnp.ones(i.shape, x.dtype)


@dataclasses.dataclass(frozen=True)
class _OfLogitsAt(_VisitsNoTile, Linear):
    """Operands: the leaves, (indices, logits), then what the pass is linear in."""

    argnums: tuple[int, ...]
    """The leaves that are differentiated."""

    @property
    def nonlinear_operands(self) -> int:
        return self.tree.num_leaves + 2

    def active(self, xs: Any) -> Operands:
        """The operands that are differentiated, in the dtype of the arithmetic, and None for the others."""
        active = select_active(self.tree, self.argnums, xs)
        wide = jax.tree.map(lambda a: a.astype(self.plan.dtype), active._replace(captured=()))
        return wide._replace(captured=active.captured)

    def one_key(self, xs: Any, at: jax.Array) -> Callable[[Operands], jax.Array]:
        """Active operands → the logit of one key of each query."""
        x = jax.tree.unflatten(self.tree, xs[: self.tree.num_leaves])

        def logits(active: Operands) -> jax.Array:
            # A mask is not asked: what it rules out was not chosen.
            return logits_at(self.plan, fill_inactive(active, x._replace(mask=None)), at)

        return logits


@dataclasses.dataclass(frozen=True)
class LogitsAtTangent(_OfLogitsAt):
    """..., tangents of the active leaves → those of the logits."""

    @property
    def linear_operands(self) -> int:
        return len(self.argnums)

    def output_types(self, *types: Any) -> list[Any]:
        return [types[self.nonlinear_operands - 1]]

    def __call__(self, *xs: Operand) -> list[jax.Array]:
        primals, tangents = self.active([xs[i] for i in self.argnums]), self.active(xs[self.nonlinear_operands :])

        def tangent(at: jax.Array) -> jax.Array:
            return recomputed(lambda: jax.jvp(self.one_key(xs, at), (primals,), (tangents,))[1])

        return [jax.lax.map(tangent, xs[self.tree.num_leaves].T).T]


@dataclasses.dataclass(frozen=True)
class LogitsAtBackward(_OfLogitsAt):
    """..., cotangents of the logits → those of the active leaves."""

    @property
    def linear_operands(self) -> int:
        return 1

    def output_types(self, *types: Any) -> list[Any]:
        return self.cotangent_types([types[i] for i in self.argnums])

    def __call__(self, *xs: Operand) -> list[jax.Array]:
        leaves = [xs[i] for i in self.argnums]
        primals = self.active(leaves)

        def add(total: Operands, one: Any) -> tuple[Operands, None]:
            at, ct = one
            part = recomputed(lambda: jax.vjp(self.one_key(xs, at), primals)[1](ct)[0])
            return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, part), None

        columns = xs[self.tree.num_leaves].T, xs[-1].T
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, sums_in(self.plan, a)), primals)
        found, _ = jax.lax.scan(add, zeros, columns)
        pairs = zip(jax.tree.leaves(found), leaves, strict=True)
        return [a.astype(self.plan.cotangent_dtype(leaf.dtype)) for a, leaf in pairs]


are_transposes(LogitsAtTangent, LogitsAtBackward)


# The mean of the logits, below their maximum.


@dataclasses.dataclass(frozen=True)
class Deviation(PlannedFunction):
    """The leaves of the operands, m and log_sum of the forward pass → Σ_s exp(l_s − m − log_sum) (l_s − m), [T].

    m and log_sum are constants. Each term is at most 0, so that none cancels another, however large the logits are.
    """

    @property
    def working_set_bytes(self) -> int | None:
        return times(2, self.plan.working_set_bytes)  # logits, weights, and their product

    def output_types(self, *types: Any) -> list[Any]:
        return [self.plan.type_of_rows()]

    @property
    def constant_operands(self) -> frozenset[int]:
        return frozenset((self.tree.num_leaves, self.tree.num_leaves + 1))

    def tangent_function(self, argnums: tuple[int, ...]) -> "DeviationTangent":
        return DeviationTangent(self.plan, self.tree, argnums)

    def __call__(self, *xs: Operand) -> list[jax.Array]:
        plan, residuals = self.plan, _residuals(self, xs).without_nonfinite(self.plan)

        def tile(i: Any, j: Any, masked: bool, first: Any) -> list[jax.Array]:
            w = Recomputed.of(plan, residuals, i, j, masked, first=first)
            logits = tiles.logits(plan, w.tile, w.allowed, transposed=True, nonfinite=w.nonfinite)
            return [jnp.sum(w.probabilities(logits) * _finite_below(logits, w.m), 0)]

        (found,) = sum_by_rows(schedule(plan, residuals.x), tile, [jnp.zeros((plan.q_rows,), plan.dtype)], ["q"])
        return [found[: plan.T]]


def _residuals(fun: PlannedFunction, xs: Any) -> Residuals:
    n = fun.tree.num_leaves
    m, log_sum = xs[n : n + 2]
    x = pad_for_derivatives(fun.plan, jax.tree.unflatten(fun.tree, xs[:n]))
    return Residuals(x, m, m, fun.plan.pad_rows(jnp.where(m == -jnp.inf, 0, m), jnp.inf), fun.plan.pad_rows(log_sum))


def _finite_below(logits: jax.Array, m: jax.Array) -> jax.Array:
    """l − m, and 0 for a pair without a weight: 0 · ∞ would be NaN, here and in the derivatives."""
    under = below(logits, m)
    return jnp.where(under == -jnp.inf, 0, under)


class _OfDeviation(Recomputed):
    """One tile, with the derivative of the deviation by a logit in the place of that of lse: p · (1 + l − m)."""

    def probabilities(self, logits: jax.Array) -> jax.Array:
        return super().probabilities(logits) * (1 + _finite_below(logits, self.m))


class _DeviationPass(DerivativePass):
    """Operands: the leaves, (m, log_sum, deviation), then what the pass is linear in."""

    def residuals(self, xs: Any) -> Residuals:
        return _residuals(self, xs)


@dataclasses.dataclass(frozen=True)
class DeviationTangent(_DeviationPass):
    """..., tangents of the active leaves → Σ_s p_s (1 + l_s − m) l_dot_s."""

    @property
    def linear_operands(self) -> int:
        return len(self.argnums)

    def output_types(self, *types: Any) -> list[Any]:
        return [self.plan.type_of_rows()]

    def run(self, total: Callable[..., Any], *xs: Operand) -> list[jax.Array]:
        x_dot = pad(self.plan, select_active(self.tree, self.argnums, xs[self.nonlinear_operands :]))
        return sum_tangent(self.plan, self.residuals(xs), x_dot, total, _OfDeviation)[1:]


@dataclasses.dataclass(frozen=True)
class DeviationBackward(_DeviationPass):
    """..., the cotangent of the deviation → those of the active leaves."""

    @property
    def linear_operands(self) -> int:
        return 1

    def output_types(self, *types: Any) -> list[Any]:
        return self.cotangent_types([types[i] for i in self.argnums])

    def run(self, total: Callable[..., Any], *xs: Operand) -> list[jax.Array]:
        residuals = self.residuals(xs)
        active = select_active(self.tree, self.argnums, [xs[i] for i in self.argnums])
        no_values = jnp.zeros((self.plan.T, residuals.x.v.shape[1]), self.plan.dtype)
        cotangents = sum_backward(self.plan, residuals, active, no_values, xs[-1], total, _OfDeviation)
        return rounded_as(self.plan, active, cotangents)


are_transposes(DeviationTangent, DeviationBackward)
