"""The block schedule: which tiles are visited, in what loops, and where the parts that they yield are added up.

A tile that the mask calls EMPTY is never visited, and one that it calls FULL is not masked.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn._numerics import Settings, unknown
from jattn._values import recomputed
from jattn.engine import tuning
from jattn.engine.batching import BatchedFunction, ForFinite
from jattn.engine.plan import Operands, Plan, all_finite
from jattn.masks import EMPTY, FULL, PARTIAL, Spans

PASSES = ((FULL, False), (PARTIAL, True))
"""The tiles of a row are visited in two passes: those without a mask, then those with one."""


@dataclasses.dataclass(frozen=True)
class PlannedFunction(BatchedFunction):
    """A function of the leaves of the operands, a pytree of the structure `tree`, and perhaps of more."""

    plan: Plan
    tree: Any

    @property
    def platform(self) -> str:
        return self.plan.platform

    @property
    def settings(self) -> Settings:
        return self.plan.settings

    def for_platform(self, platform: str) -> BatchedFunction:
        plan, x = self.plan.for_platform(platform), self.leaf_numbers
        if x.mask is not None and not jax.tree.leaves((x.mask, x.q_positions, x.k_positions)):
            plan = tiles_for_mask(plan, x)
        return dataclasses.replace(self, plan=plan)

    @property
    def read_in_place(self) -> frozenset[int]:
        plan, bias = self.plan, self.leaf_numbers.bias
        if bias is None or plan.platform != "cpu" or not plan.static_lengths:
            return frozenset()
        several, whole = plan.q_tiles * plan.k_tiles > 1, (plan.q_rows, plan.k_rows) == (plan.T, plan.S)
        return frozenset({bias}) if several and whole else frozenset()

    @property
    def leaf_numbers(self) -> Operands:
        """The operands with its number for each leaf: which of them are there."""
        numbers: Operands = jax.tree.unflatten(self.tree, range(self.tree.num_leaves))
        return numbers

    def before_sums(self) -> BatchedFunction:
        return dataclasses.replace(self, plan=dataclasses.replace(self.plan, summed=True))

    def cotangent_types(self, operands: Sequence[Any]) -> list[Any]:
        """The types of the cotangents of some operands."""
        return [jax.ShapeDtypeStruct(x.shape, self.plan.cotangent_dtype(x.dtype)) for x in operands]

    def for_finite(self, examples: int = 1) -> ForFinite | None:
        plan = self.plan
        if plan.finite or not has_forms(plan) or few_pairs(plan, examples):
            return None
        leaves = self.tree.num_leaves
        return ForFinite(
            dataclasses.replace(self, plan=dataclasses.replace(plan, finite=True)),
            lambda *xs: all_finite(plan, jax.tree.unflatten(self.tree, xs[:leaves])),
            dataclasses.replace(self, plan=dataclasses.replace(plan, all_masked=self.leaf_numbers.mask is not None)),
        )

    def examples_diverge(self, mapped: tuple[bool, ...]) -> bool:
        return schedules_differ(self.plan, jax.tree.unflatten(self.tree, mapped[: self.tree.num_leaves]))


def has_forms(plan: Plan) -> bool:
    """Whether the loops of a plan have faster forms: for finite operands, and for a function with its tangent."""
    # Where the caller chose the tile, an example has the same bits in every batch: one form only. Few queries are
    # bound by reading the keys, and the search for non-finite entries would read them once more.
    return plan.platform == "cpu" and not plan.tile_given and plan.q_tile >= tuning.FEW_QUERIES


def few_pairs(plan: Plan, examples: int) -> bool:
    """Whether so many examples are done before a second form would be compiled; never of a size that is a symbol."""
    return plan.static_lengths and isinstance(examples, int) and examples * plan.T * plan.S < tuning.FEW_PAIRS


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """The tiles to visit: known before tracing (`lists`), or only when the program runs (`states`).

    `lists` holds, for each of `PASSES`, its tiles as (i, j) row by row; `states` the block state of each tile.
    """

    plan: Plan
    lists: tuple[np.ndarray, np.ndarray] | None
    states: jax.Array | None
    q: jax.Array
    most_written_out: int

    @property
    def written_out(self) -> bool:
        """Whether the tiles are visited one after another without a loop, as few of them are that are finite."""
        if self.lists is None or not self.plan.finite:
            return False
        in_rows = np.bincount(np.concatenate(self.lists)[:, 0], minlength=1)
        longest = max(tuning.WRITTEN_OUT_IN_A_ROW, self.plan.q_tiles)
        return in_rows.sum() <= self.most_written_out and in_rows.max() <= longest


def schedule(plan: Plan, x: Operands, *, of_value: bool = False) -> Schedule:
    """Which tiles are visited. `x` is padded. `of_value`: whether that is for a value, and not for a derivative."""
    most = tuning.WRITTEN_OUT_TILES_OF_VALUE if of_value else tuning.WRITTEN_OUT_TILES
    states = block_states(plan, x)
    if isinstance(states, jax.Array):
        return Schedule(plan, None, states, x.q, most)
    unmasked, masked = (np.argwhere(states == state) for state, _ in PASSES)
    return Schedule(plan, (unmasked, masked), None, x.q, most)


def block_states(plan: Plan, x: Operands) -> Any:
    """The block states of all tiles, by one call of the mask: in NumPy where they are known before tracing."""
    q = _spans(plan.T, plan.q_tile, plan.q_tiles, x.q_positions, 0)
    k = _spans(plan.S, plan.k_tile, plan.k_tiles, x.k_positions, 1)
    state = FULL if x.mask is None else x.mask.block_state(q, k)
    most = PARTIAL if plan.all_masked else FULL
    # The mask does not know of the rows that pad the last tile of keys.
    whole = k.first + (plan.k_tile - 1) < plan.S
    shape = (plan.q_tiles, plan.k_tiles)
    if isinstance(state, jax.Array) or not plan.static_lengths:
        bound = jnp.where(whole, jnp.int32(most), jnp.int32(PARTIAL))
        return jnp.broadcast_to(jnp.minimum(bound, jnp.asarray(state, jnp.int32)), shape)
    return np.broadcast_to(np.minimum(np.where(whole, most, PARTIAL), state), shape)


def schedules_differ(plan: Plan, mapped: Operands) -> bool:
    """Whether examples visit different tiles, given which of their operands differ.

    Not asked of few queries, which run in one group whatever they visit (`Plan.working_set_bytes`).
    """
    of_schedule = (mapped.mask, mapped.q_positions, mapped.k_positions)
    several = plan.q_tiles * plan.k_tiles != 1 and plan.working_set_bytes is not None
    return several and mapped.mask is not None and any(jax.tree.leaves(of_schedule))


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


def tiles_for_mask(plan: Plan, x: Operands) -> Plan:
    """The same plan with smaller tiles, where a mask without arrays rules so many more pairs out with them."""
    if plan.platform != "cpu" or plan.tile_given or not plan.static_lengths:
        return plan
    q_tile, k_tile = tuning.small_tile_sizes(plan.T, plan.S)
    small = dataclasses.replace(plan, q_tile=q_tile, k_tile=k_tile)
    if small.q_tiles * small.k_tiles > tuning.MOST_SMALL_TILES or min(plan.q_tile, plan.k_tile) <= tuning.SMALL_TILE:
        return plan
    states = block_states(plan, x)
    if isinstance(states, jax.Array):  # known when the program runs
        return plan
    visited, full = ((states >= least).sum() * plan.q_tile * plan.k_tile for least in (PARTIAL, FULL))
    if full > tuning.SMALL_TILE_SHARE * visited:  # no smaller tile leaves these out: the mask is not asked again
        return plan
    fewer = (block_states(small, x) != EMPTY).sum() * q_tile * k_tile
    return small if fewer <= tuning.SMALL_TILE_SHARE * visited else plan


# Loops.


def fold_rows(
    visits: Schedule,
    carry: Any,
    start: Callable[..., Any],
    step: Callable[..., Any],
    finish: Callable[..., Any],
    once: Callable[[Any, jax.Array], Any] | None = None,
) -> Any:
    """(carry, ys) after all query tiles; the y, which each of them leaves, are joined along their rows.

    For each query tile i: state = start(carry, i); state, made = step(state, i, j, masked, first) for each key tile j
    that it visits; carry, y = finish(state). `made` is what the step computed last. Without a loop, `first` is what was
    made of a tile before, and the step is to compute nothing of its tile earlier (`_numerics.after`); XLA knows neither
    i nor j, so that tiles share their kernels; and once(state, one), if it is given, takes the place of the state and
    of what was made (`SoftmaxState.once`).
    """
    n = visits.plan.q_tiles
    if visits.written_out:
        assert visits.lists is not None
        counted = map(jnp.int32, range(max(n, visits.plan.k_tiles)))
        *numbers, one = unknown(visits.q, *counted, jnp.ones((), visits.plan.dtype))
        step = jax.jit(step, static_argnums=3)  # traced once for all tiles that are alike
        rows, made = [], [()] * tuning.TILES_AT_ONCE
        for i in range(n):
            state = start(carry, numbers[i])
            for tiles, (_, masked) in zip(visits.lists, PASSES, strict=True):
                for j in tiles[tiles[:, 0] == i, 1]:
                    state, last = step(state, numbers[i], numbers[j], masked, made[-tuning.TILES_AT_ONCE])
                    if once is not None:
                        last = state = once(state, one)
                    made.append(last)
            carry, y = finish(state)
            rows.append(y)
        return carry, y if n == 1 else jax.tree.map(lambda *ys: jnp.concatenate(ys), *rows)

    def row(carry: Any, i: Any) -> Any:
        return finish(_fold_keys(visits, i, step, start(carry, i)))

    if n == 1:
        return row(carry, 0)
    carry, ys = jax.lax.scan(row, carry, jnp.arange(n, dtype=jnp.int32))
    return carry, jax.tree.map(lambda y: y.reshape(n * y.shape[1], *y.shape[2:]), ys)  # values may have no width


def _fold_keys(visits: Schedule, i: Any, step: Callable[..., Any], state: Any) -> Any:
    """Folds step(state, i, j, masked) over the key tiles that query tile i visits, in loops as the program runs."""
    if visits.states is not None:
        row = entry(visits.states, i)
        js = jnp.arange(visits.plan.k_tiles, dtype=jnp.int32)
        for kind, masked in PASSES[1:] if visits.plan.all_masked else PASSES:
            # From each tile the next one to visit: a branch inside the loop would copy the carry at every tile.
            none = jnp.asarray(visits.plan.k_tiles, jnp.int32)
            following = jax.lax.cummin(jnp.where(row == kind, js, none), reverse=True)

            def visit(_: Any, at: Any, following: Any = following, masked: bool = masked) -> Any:
                so_far, j = at[0], entry(following, at[1])
                return step(so_far, i, j, masked, ())[0], j + 1

            state, _ = jax.lax.fori_loop(0, jnp.sum(row == kind, dtype=jnp.int32), visit, (state, jnp.int32(0)))
        return state
    assert visits.lists is not None
    # One list for both passes: XLA compiles once what is alike in their loops.
    js = jnp.asarray(np.concatenate(visits.lists)[:, 1], jnp.int32)
    for tiles, first, (_, masked) in zip(visits.lists, (0, len(visits.lists[0])), PASSES, strict=True):
        if len(tiles) == 0:
            continue
        if visits.plan.q_tiles == 1 and len(tiles) == 1:
            state, _ = step(state, i, int(tiles[0, 1]), masked, ())
            continue
        bounds = jnp.asarray(first + np.searchsorted(tiles[:, 0], np.arange(visits.plan.q_tiles + 1)), jnp.int32)

        def visit_listed(n: Any, so_far: Any, masked: bool = masked) -> Any:
            return step(so_far, i, entry(js, n), masked, ())[0]

        state = jax.lax.fori_loop(entry(bounds, i), entry(bounds, i + 1), visit_listed, state)
    return state


def entry(x: jax.Array, i: Any) -> jax.Array:
    """x[i] for i ≥ 0, without the test for a negative index that JAX would add."""
    return jax.lax.dynamic_index_in_dim(x, i, keepdims=False, allow_negative_indices=False)


def scan_tiles(visits: Schedule, add: Callable[..., Any], carry: Any) -> Any:
    """Scans `add(carry, i, j, masked)` over all visited tiles, in a loop of static length.

    The form that JAX can transpose: `add` must be linear in the carry.
    """
    if visits.states is not None:
        states = visits.states
        k_tiles = jnp.asarray(visits.plan.k_tiles, jnp.int32)

        def visit(c: Any, n: jax.Array) -> Any:
            i, j = n // k_tiles, n % k_tiles
            branches: list[Any] = [None] * 3
            branches[EMPTY] = lambda c: c
            branches[PARTIAL] = lambda c: add(c, i, j, True)
            branches[FULL] = lambda c: add(c, i, j, False)
            # Recomputed: else each branch would keep its residuals for every tile.
            return recomputed(lambda: jax.lax.switch(states[i, j], branches, c)), None

        every = jnp.arange(visits.plan.q_tiles * visits.plan.k_tiles, dtype=jnp.int32)
        return jax.lax.scan(visit, carry, every)[0]
    assert visits.lists is not None
    for tiles, (_, masked) in zip(visits.lists, PASSES, strict=True):
        if len(tiles) == 1:
            carry = add(carry, int(tiles[0, 0]), int(tiles[0, 1]), masked)
        elif len(tiles):

            def visit_one(c: Any, ij: jax.Array, masked: bool = masked) -> Any:
                return add(c, *ij, masked), None

            carry = jax.lax.scan(visit_one, carry, jnp.asarray(tiles, jnp.int32))[0]
    return carry


# Sums over tiles, for the derivative passes. `tile(i, j, masked, first)` yields a list of parts, each with a role: "qd"
# or "dq", of the queries of the tile; "kd", of its keys, [k, d]; "kq", of its pairs; or "", of neither. The sums have
# all rows, and rows down.


def sum_by_rows(visits: Schedule, tile: Callable[..., Any], zeros: list[jax.Array], roles: list[str]) -> list[Any]:
    """The sums of the parts, row of tiles after row: for evaluation, with loop bounds of any kind."""
    plan, of_row = visits.plan, [role in ("q", "qd", "dq") for role in roles]

    def start(others: list[jax.Array], i: Any) -> list[jax.Array]:
        rest = iter(others)
        return [
            _row_of(plan, z, role) if own else next(rest) for z, own, role in zip(zeros, of_row, roles, strict=True)
        ]

    def step(totals: list[jax.Array], i: Any, j: Any, masked: bool, first: Any) -> tuple[list[jax.Array], Any]:
        parts = tile(i, j, masked, first)
        sums = [
            total + part if own else _add_part(plan, total, part, role, i, j)
            for total, part, own, role in zip(totals, parts, of_row, roles, strict=True)
        ]
        return sums, parts

    def finish(totals: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        others = [a for a, own in zip(totals, of_row, strict=True) if not own]
        return others, [a.T if role == "dq" else a for a, own, role in zip(totals, of_row, roles, strict=True) if own]

    others, rows = fold_rows(visits, [z for z, own in zip(zeros, of_row, strict=True) if not own], start, step, finish)
    rest, own_rows = iter(others), iter(rows)
    return [next(own_rows) if own else next(rest) for own in of_row]


def _row_of(plan: Plan, total: jax.Array, role: str) -> jax.Array:
    """Zeros for the part that a query tile has of a total, laid as its role says."""
    row = jnp.zeros((plan.q_tile, *total.shape[1:]), total.dtype)
    return row.T if role == "dq" else row


def sum_by_tiles(visits: Schedule, tile: Callable[..., Any], zeros: list[jax.Array], roles: list[str]) -> list[Any]:
    """The same sums, tile after tile: for JAX to transpose. Nothing of a tile is kept."""

    def add(carry: list[jax.Array], i: Any, j: Any, masked: bool) -> list[jax.Array]:
        parts = recomputed(lambda: tile(i, j, masked, ()))
        return [
            _add_part(visits.plan, total, part, role, i, j)
            for total, part, role in zip(carry, parts, roles, strict=True)
        ]

    return scan_tiles(visits, add, zeros)


def _add_part(plan: Plan, total: jax.Array, part: jax.Array, role: str, i: Any, j: Any) -> jax.Array:
    """Adds a part of tile (i, j) to its rows of the total."""
    if role in ("dq", "kq"):
        part, role = part.T, role[::-1]
    if total.shape == part.shape:
        return total + part
    start = [jnp.int32(0)] * total.ndim  # one dtype for all: beside float64 a Python int would be int64
    for axis, letter in enumerate(role):
        if part.shape[axis] != total.shape[axis]:
            start[axis] = jnp.asarray({"q": i * plan.q_tile, "k": j * plan.k_tile}[letter], jnp.int32)
    here = jax.lax.dynamic_slice(total, start, part.shape, allow_negative_indices=False)
    return jax.lax.dynamic_update_slice(total, here + part, start, allow_negative_indices=False)
