"""The jvp pass: the forward and the tangent pass at once, for `jax.jvp` where nothing of it is transposed.

With a tile's logits l, their tangents l_dot, and the dropout factors d (1 without dropout), a fold carries the softmax
state and, relative to the same running maximum m,

    A = Σ_s exp(l_s − m)·d·(l_dot·v + v_dot),    L = Σ_s exp(l_s − m)·l_dot

and ends, divided by the total, in lse_dot = L and out_dot = A − L·out. One after the other, the two passes would
multiply queries with keys, and take exponentials, twice.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jattn._numerics import below, nan_if_nonfinite
from jattn.engine import tile as tiles
from jattn.engine.batching import ForFinite, Operand, times
from jattn.engine.forward import Forward, before_keys, exact_logits, nan_rows_of, single_softmax
from jattn.engine.plan import Operands, Plan, fits_one_tile, pad, select_active
from jattn.engine.schedule import PlannedFunction, fold_rows, schedule
from jattn.engine.tangent import Tangent, logits_and_tangents, per_query
from jattn.engine.tile import Tile
from jattn.partials import SoftmaxState, excluded


@dataclasses.dataclass(frozen=True)
class Jvp(PlannedFunction):
    """The leaves of the operands, tangents of the active ones → (out, m, log_sum, out_dot, lse_dot)."""

    argnums: tuple[int, ...]

    @property
    def working_set_bytes(self) -> int | None:
        return None if self._in_one_tile else times(4, self.plan.working_set_bytes)

    @property
    def _in_one_tile(self) -> bool:
        return fits_one_tile(self.plan, self.leaf_numbers)

    def for_finite(self, examples: int = 1) -> ForFinite | None:
        return None if self._in_one_tile else super().for_finite(examples)

    @property
    def read_in_place(self) -> frozenset[int]:
        return super().read_in_place - set(self.argnums)

    @property
    def one_after_the_other(self) -> tuple[Forward, Tangent]:
        return Forward(self.plan, self.tree), Tangent(self.plan, self.tree, self.argnums)

    def output_types(self, *types: Any) -> list[Any]:
        out, m, log_sum = self.one_after_the_other[0].output_types(*types[: self.tree.num_leaves])
        return [out, m, log_sum, out, log_sum]

    def __call__(self, *xs: Operand) -> list[jax.Array]:
        plan, n = self.plan, self.tree.num_leaves
        if not (plan.finite or self._in_one_tile):
            forward, tangent = self.one_after_the_other
            found = forward(*xs[:n])
            return [*found, *tangent(*xs[:n], *found, *xs[n:])]
        x = pad(plan, jax.tree.unflatten(self.tree, xs[:n]))
        x_dot = pad(plan, select_active(self.tree, self.argnums, xs[n:]))
        if self._in_one_tile:
            return _single_tile(plan, x, x_dot)
        out, m, log_sum, a, lse_dot = (y[: plan.T] for y in _fold(plan, x, x_dot))
        nonempty = m != -jnp.inf
        if x_dot.sink is not None:
            top = jnp.where(nonempty, m, 0)
            lse_dot += jnp.exp(below(per_query(plan, x.sink), top) - log_sum) * per_query(plan, x_dot.sink)
        out_dot = a - lse_dot[:, None] * out
        return [out, m, log_sum, jnp.where(nonempty[:, None], out_dot, 0), jnp.where(nonempty, lse_dot, 0)]


def _single_tile(plan: Plan, x: Operands, x_dot: Operands) -> list[jax.Array]:
    """The same of one tile, of which every pair is allowed, in few steps: over many heads a quarter faster."""
    tile, tile_dot = tiles.cut(plan, x, 0, 0), tiles.cut(plan, x_dot, 0, 0)
    logits, logits_dot = logits_and_tangents(plan, tile, tile_dot, None)
    p, m, total, log_sum = single_softmax(plan, logits, nan_rows_of(plan, x)(logits, 0, 0), tile.q.shape[1])
    out, a, lse_dot = (y / total[:, None] for y in _weighted(plan, tile, tile_dot, p, p * logits_dot))
    out += nan_if_nonfinite(out)[:, None]
    nonempty = (m != -jnp.inf)[:, None]
    out_dot, lse_dot = (jnp.where(nonempty, y, 0) for y in (a - lse_dot * out, lse_dot))
    return [out, m, log_sum, out_dot, lse_dot[:, 0]]


def _fold(plan: Plan, x: Operands, x_dot: Operands) -> tuple[jax.Array, ...]:
    """(out, m, log_sum, A, L) of all query tiles, of operands that are finite."""
    visits = schedule(plan, x)
    exact = exact_logits(plan, x)
    least = excluded(plan.dtype) if exact else -jnp.inf

    def first_state(i: Any) -> SoftmaxState:
        state = before_keys(plan, x, i)
        return state._replace(acc=(state.acc, state.acc, state.acc[:, :1]))

    def start(_: Any, i: Any) -> SoftmaxState | None:
        if exact and visits.written_out:
            return None  # the first tile makes the state
        return first_state(i)

    def step(state: SoftmaxState | None, i: Any, j: Any, masked: bool, first: Any) -> tuple[SoftmaxState, Any]:
        tile, tile_dot = (tiles.cut(plan, a, i, j, first=first) for a in (x, x_dot))
        allowed = tiles.tile_mask(plan, tile) if masked else None
        found, logits_dot = logits_and_tangents(plan, tile, tile_dot, allowed, excluded=least)

        def sums(p: jax.Array) -> tuple[jax.Array, ...]:
            return _weighted(plan, tile, tile_dot, p, p * logits_dot)

        state = SoftmaxState.of(found, sums) if state is None else state.absorb(found, sums, exact=exact)
        return state, ()

    def finish(state: SoftmaxState | None) -> tuple[None, tuple[jax.Array, ...]]:
        (out, a, total_dot), m, log_sum = (first_state(0) if state is None else state).finish(exact=exact)
        return None, (out if exact else out + nan_if_nonfinite(out)[:, None], m, log_sum, a, total_dot[:, 0])

    return tuple(fold_rows(visits, None, start, step, finish, SoftmaxState.once)[1])


def _weighted(plan: Plan, tile: Tile, tile_dot: Tile, p: jax.Array, p_dot: jax.Array) -> tuple[jax.Array, ...]:
    """The parts of the sums that one tile has: of the values, of A, and of L with its rows down."""
    factors = tiles.dropout_factors(plan, tile)

    def drop(p: jax.Array) -> jax.Array:
        return p if factors is None else p * factors

    a = drop(p_dot) @ tile.v
    if tile_dot.v is not None:
        a += drop(p) @ tile_dot.v
    return drop(p) @ tile.v, a, p_dot.sum(1, keepdims=True)
