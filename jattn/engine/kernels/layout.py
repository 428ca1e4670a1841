"""The operands of all heads in blocks by their roles.

A tile of a kernel is transposed, keys down and queries across: what belongs to a query is a row [1, q], to a key a
column [k, 1], to neither a scalar. In the passes that sum over keys a GPU has it the other way round
(`Call.transposed`). An operand that lacks some levels of a batch, such as the keys of grouped heads, is found by its
index and never repeated.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn._numerics import is_half
from jattn.engine.batching import BatchLevels, Operand
from jattn.engine.kernels import threefry
from jattn.engine.kernels.distances import distances, in_order, over_diagonals
from jattn.engine.kernels.score import SeparatedScore, has_values, is_float
from jattn.engine.plan import ROLES, Operands, Plan, pad, repeat_last
from jattn.engine.schedule import block_states
from jattn.engine.tile import Tile, reaches_beyond, within
from jattn.engine.tuning import LANES
from jattn.masks import Mask, TileAxis


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf:
    """An array with the levels that it has as one leading axis, and the role of its other axes."""

    array: Any
    own: tuple[int, ...]
    role: str
    boolean: bool = False


class Call:
    """The operands of a pass over all heads, in the form that its kernels take."""

    def __init__(self, plan: Plan, tree: Any, levels: BatchLevels, xs: Sequence[Operand], *, over_keys: bool = False):
        self.plan: Plan = plan
        # A row of a tile lies in one warp of a GPU: sums over keys are then made without shared memory.
        self.transposed: bool = not (over_keys and plan.platform == "gpu")
        self.sizes: tuple[int, ...] = levels.sizes
        n = tree.num_leaves
        leaves = [
            Leaf(x.reshape(-1, *x.shape[len(own) :]), own, "") for x, own in zip(xs, levels.operands, strict=True)
        ]
        self.more: list[Leaf] = leaves[n:]
        self.raw: Operands = jax.tree.unflatten(tree, leaves[:n])
        self.x: Operands = self.in_blocks(self.raw._replace(captured=self.values(self.raw.captured)))
        if plan.score is not None and plan.q_rows != plan.T:  # as `pad_for_derivatives`
            q = self.x.q
            self.x = self.x._replace(q=dataclasses.replace(q, array=repeat_last(q.array, plan.T)))

    @property
    def every(self) -> tuple[int, ...]:
        return tuple(range(len(self.sizes)))

    def spread(self, leaf: Leaf) -> jax.Array:
        """A leaf with an axis for every level, 1 where it lacks one: for what is computed outside of a kernel."""
        shape = (self.sizes[level] if level in leaf.own else 1 for level in self.every)
        return leaf.array.reshape(*shape, *leaf.array.shape[1:])

    def spread_sink(self, sink: Leaf) -> jax.Array:
        """A sink, or its tangent, with an axis for every level and one for the queries."""
        spread = self.spread(sink).astype(self.plan.dtype)
        return spread if sink.array.ndim == 2 else spread[..., None]

    def gather(self, y: jax.Array, kept: Sequence[int], own: Sequence[int]) -> jax.Array:
        """[heads kept, …] → the levels `own`, summed over the others."""
        y = y.reshape(*(self.sizes[level] for level in kept), *y.shape[1:])
        rest = tuple(axis for axis, level in enumerate(kept) if level not in own)
        return y.sum(rest) if rest else y

    def in_blocks(self, x: Operands) -> Operands:
        """Operands, or tangents of them, padded to whole tiles and laid out by their roles."""
        mask = x.mask
        if mask is not None:
            mask = mask.map_leaves(self.by_rows)
            leaves, tree = jax.tree.flatten(mask)
            laid = [self.lay(leaf, role) for leaf, role in zip(leaves, mask.leaf_axes(), strict=True)]
            mask = jax.tree.unflatten(tree, laid)
        # A function of a user's computes with what it captured as it is.
        captured = x.captured if isinstance(self.plan.score, SeparatedScore) else tuple(map(self.rounded, x.captured))
        return Operands(
            q=self.lay(x.q, ROLES.q),
            k=self.lay(x.k, ROLES.k),
            v=self.lay(x.v, ROLES.v),
            bias=self.lay(self.rounded(x.bias), ROLES.bias),
            sink=None if x.sink is None else self.lay(self.rounded(x.sink), ROLES.sink[: x.sink.array.ndim - 1]),
            scale=self.lay(self.rounded(x.scale), ROLES.scale),
            captured=tuple(starmap(self.lay, zip(captured, self.captured_roles(x), strict=True))),
            mask=mask,
            q_positions=self.lay(x.q_positions, ROLES.q_positions),
            k_positions=self.lay(x.k_positions, ROLES.k_positions),
            dropout=None if x.dropout is None else (self.words(x.dropout[0]), self.lay(x.dropout[1], "")),
        )

    def rounded(self, leaf: Leaf | None) -> Leaf | None:
        """A leaf that a tile rounds to the dtype of the sums, rounded already: a TPU cannot even read a float64."""
        if leaf is None or not is_float(leaf.array) or leaf.array.dtype.itemsize <= np.dtype(self.plan.dtype).itemsize:
            return leaf
        return dataclasses.replace(leaf, array=leaf.array.astype(self.plan.dtype))

    def captured_roles(self, x: Operands) -> Sequence[str]:
        """Those of what the score modifier captured, or of the values that stand for it."""
        return self.plan.score.roles if has_values(self.plan.score) else [""] * len(x.captured)

    def values(self, captured: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        """What a kernel takes for what the score modifier captured."""
        score = self.plan.score
        if not has_values(score):
            return captured
        found: tuple[Leaf, ...] = self.over_levels(score.values, captured, *self.positions)
        return found

    def values_dot(self, captured_dot: tuple[Leaf | None, ...]) -> tuple[Leaf | None, ...]:
        """The tangents of these values, of those of what was captured."""
        score = self.plan.score
        if not has_values(score):
            return captured_dot
        active = [n for n, x_dot in enumerate(captured_dot) if x_dot is not None]
        if not active:
            return (None,) * len(score.roles)

        def of_one(captured: tuple[jax.Array, ...], tangents: list[jax.Array], t: jax.Array, s: jax.Array) -> Any:
            def f(*xs: jax.Array) -> list[jax.Array]:
                given = list(captured)
                for n, x in zip(active, xs, strict=True):
                    given[n] = x
                return [y for y in score.values(tuple(given), t, s) if is_float(y)]

            return jax.jvp(f, tuple(captured[n] for n in active), tuple(tangents))[1]

        found = iter(self.over_levels(of_one, self.raw.captured, [captured_dot[n] for n in active], *self.positions))
        return tuple(next(found) if is_float(leaf.array) else None for leaf in self.x.captured)

    def pull_values(self, active: Sequence[int], cotangents: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """The cotangents of some of what was captured, with the levels of each, of those of all floating values."""

        def f(*xs: jax.Array) -> list[jax.Array]:
            given = list(self.raw.captured)
            for n, x in zip(active, xs, strict=True):
                given[n] = dataclasses.replace(given[n], array=x)
            return [leaf.array for leaf in self.values(tuple(given)) if is_float(leaf.array)]

        y, pull = jax.vjp(f, *(self.raw.captured[n].array for n in active))
        pairs = zip(cotangents, y, strict=True)
        found: tuple[jax.Array, ...] = pull([dy.reshape(y.shape).astype(y.dtype) for dy, y in pairs])
        return found

    @property
    def positions(self) -> tuple[Leaf, Leaf]:
        """Where all rows of q and of k stand."""
        x, plan = self.raw, self.plan
        rows = (Leaf(jnp.arange(n, dtype=jnp.int32)[None], (), "") for n in (plan.T, plan.S))
        q, k = (n if at is None else at for n, at in zip(rows, (x.q_positions, x.k_positions), strict=True))
        return q, k

    def words(self, key: Leaf) -> tuple[Leaf, Leaf]:
        """A key of threefry2x32 as the two words that it is made of."""
        words = jax.lax.bitcast_convert_type(jax.random.key_data(key.array), jnp.int32)
        return Leaf(words[:, 0], key.own, ""), Leaf(words[:, 1], key.own, "")

    def lay(self, leaf: Any, role: str) -> Any:
        """A leaf in the form of its blocks: padded, and one entry a row along the last axis. None stays None."""
        if leaf is None:
            return None
        a, plan = leaf.array, self.plan
        lengths = {"q": (plan.T, plan.q_rows), "k": (plan.S, plan.k_rows)}
        if role == "":  # a table, which every tile has whole, or a scalar
            role = ("", "n", "nm")[a.ndim - 1]
        if role == "nm":
            lengths = {letter: (n, -(-n // LANES) * LANES) for letter, n in zip(role, a.shape[1:], strict=True)}
        if role == "qk":  # one entry for all rows of a side has no axis there
            role = "".join(
                letter for letter, n in zip(role, a.shape[1:], strict=True) if n != 1 or lengths[letter][0] == 1
            )
            a = a.reshape(a.shape[0], *(lengths[letter][0] for letter in role))
        boolean = a.dtype == jnp.bool_
        if boolean:
            a = a.astype(jnp.int8 if role in ("qk", "nm") else jnp.int32)
        more = [(0, 0)] + [(0, lengths[letter][1] - lengths[letter][0] if letter in lengths else 0) for letter in role]
        ids = role in ("q", "k") and jnp.issubdtype(a.dtype, jnp.integer)
        a = jnp.pad(a, more, mode="edge" if ids else "constant") if any(n for _, n in more) else a
        if role in ("q", "k", "o"):
            a = a[:, None, :]
        elif role == "n":  # a table, as a column
            a, role = a[:, :, None], "n1"
        return Leaf(a, leaf.own, role, boolean)

    def row(self, y: jax.Array, fill: float = 0.0) -> Leaf:
        """[every level, T] of one entry a query, as a leaf."""
        y = jnp.broadcast_to(y, (*self.sizes, self.plan.T)).reshape(-1, self.plan.T)
        y = jnp.pad(y, ((0, 0), (0, self.plan.q_rows - self.plan.T)), constant_values=fill)
        return Leaf(y[:, None, :], self.every, "q")

    def states(self) -> Leaf:
        """The block state of every tile, [heads, query tiles, key tiles], of the levels that the mask has.

        In NumPy where they are known before anything is traced.
        """

        def of_one(mask: Any, q: Any, k: Any) -> Any:
            x = Operands(None, None, None, mask=mask, q_positions=q, k_positions=k)
            return block_states(self.plan, pad(self.plan, x)).astype(np.int32)

        found: Leaf = self.over_levels(of_one, self.raw.mask, self.raw.q_positions, self.raw.k_positions)
        return found

    def by_rows(self, part: Mask) -> Mask:
        """A part of a mask, whose leaves are leaves here, with an entry a row for what it looks up."""
        if type(part).by_rows is Mask.by_rows:
            return part
        offsets = []
        if in_order(self.plan, self.raw):
            offsets.append(Leaf(-distances((self.plan.q_rows, self.plan.k_rows))[None], (), ""))
        found: Mask = self.over_levels(lambda part, *at: part.by_rows(*at), part, *self.positions, *offsets)
        return found

    def over_levels(self, f: Callable[..., Any], *xs: Any) -> Any:
        """What a function finds of trees of leaves, mapped over all levels that any of them has: a tree of leaves."""
        leaves, tree = jax.tree.flatten(xs)
        own = tuple(sorted({level for leaf in leaves for level in leaf.own}))
        mapped: Callable[[list[Any]], Any] = lambda arrays: f(*jax.tree.unflatten(tree, arrays))  # noqa: E731
        for level in reversed(own):
            mapped = jax.vmap(mapped, ([0 if level in leaf.own else None for leaf in leaves],))
        shapes = (tuple(self.sizes[level] for level in leaf.own) for leaf in leaves)
        found = mapped([leaf.array.reshape(*n, *leaf.array.shape[1:]) for n, leaf in zip(shapes, leaves, strict=True)])
        return jax.tree.map(lambda y: Leaf(y.reshape(-1, *y.shape[len(own) :]), own, ""), found)

    def nonfinite_tiles(self, rows: Sequence[Leaf] = ()) -> list[Leaf]:
        """Whether each tile of q, of k and of v holds what is not finite, or so large that a product could overflow.

        A query of which the forward pass found a NaN (`rows`) makes its tile one of them: it met one in another tile.
        """
        plan = self.plan
        return self._nonfinite(rows, (plan.q_tiles, plan.k_tiles))

    def nonfinite_heads(self, rows: Sequence[Leaf], largest: float) -> list[Leaf]:
        """The same of whole heads, or whether a product of q and k could exceed `largest`."""
        return self._nonfinite(rows, (1, 1), largest)

    def _nonfinite(self, rows: Sequence[Leaf], tiles: tuple[int, int], largest: float = math.inf) -> list[Leaf]:
        plan, x, (of_queries, of_keys) = self.plan, self.x, tiles
        most = float(jnp.finfo(plan.dtype).max) / 16
        # |⟨q, k⟩| ≤ D · max |q| · max |k|
        bound, bound_of_v = (math.sqrt(n / x.q.array.shape[2]) for n in (min(most, largest), most))

        def any_not(holds: jax.Array, n: int) -> jax.Array:
            return ~holds.reshape(n, -1).all(1)

        def of_rows(x: jax.Array, bound: float, n: int) -> jax.Array:
            holds = magnitude(x) < bound  # no comparison with a NaN does
            if plan.platform == "gpu":  # row by row first: at once, of heads that lie between, XLA's takes .1 ms more
                holds = jnp.sum(~holds, -1, dtype=jnp.int32) == 0
            return any_not(holds, n)

        def magnitude(a: jax.Array) -> jax.Array:
            return jnp.abs(a.astype(plan.dtype))

        def of_q(q: jax.Array, scale: jax.Array, *rows: jax.Array) -> jax.Array:
            found = of_rows(magnitude(q) * jnp.maximum(magnitude(scale), 1), bound, of_queries)
            for row in rows:
                found |= any_not(~jnp.isnan(row), of_queries)
            return found

        of_k = lambda k: of_rows(k, bound, of_keys)  # noqa: E731
        of_v = lambda v: of_rows(v, bound_of_v / plan.S, of_keys)  # noqa: E731
        found = self.over_levels(of_q, x.q, x.scale, *rows), self.over_levels(of_k, x.k), self.over_levels(of_v, x.v)
        return [dataclasses.replace(y, array=y.array.astype(jnp.int32).reshape(-1)) for y in found]

    def tile(self, x: Operands, i: Any, j: Any) -> Tile:
        """The tile (i, j), of blocks that were read."""
        plan, of_q = self.plan, int(self.transposed)
        shape = (plan.k_tile, plan.q_tile) if self.transposed else (plan.q_tile, plan.k_tile)

        def axis(n: Any, size: int, along: int, positions: Any) -> TileAxis:
            numbers = n * size + jax.lax.broadcasted_iota(jnp.int32, shape, along)
            return TileAxis(numbers, numbers if positions is None else jnp.broadcast_to(positions, shape))

        def factor(a: Any) -> Any:
            return a if a is not None and plan.platform == "gpu" and is_half(a) else wide(plan, a)

        dropout = None
        if x.dropout is not None:
            words, rate = x.dropout
            first, sizes = (i * plan.q_tile, j * plan.k_tile), (plan.q_tile, plan.k_tile)
            dropout = threefry.kept(words, 1 - rate, first, sizes, transposed=self.transposed), rate

        def over_tile(leaf: Leaf, a: Any) -> Any:
            if leaf.role == "o":
                return self.of_offsets(a, leaf)
            return a if leaf.role == "" or leaf.role.startswith("n") else jnp.broadcast_to(a, shape)

        mask = None if x.mask is None else jax.tree.map(over_tile, self.x.mask, x.mask)

        def told(axis: TileAxis, positions: Any, n: Any, size: int, length: int) -> Any:
            beyond = plan.score is not None and positions is None and reaches_beyond(length, n, size)
            return within(axis.positions, length) if beyond else axis.positions

        q_axis, k_axis = axis(i, plan.q_tile, of_q, x.q_positions), axis(j, plan.k_tile, 1 - of_q, x.k_positions)
        return Tile(
            q=factor(x.q),
            k=factor(x.k),
            v=factor(x.v),
            bias=wide(plan, x.bias),
            scale=wide(plan, x.scale),
            captured=tuple(starmap(self.of_offsets, zip(x.captured, self.x.captured, strict=True))),
            mask=mask,
            q_axis=q_axis,
            k_axis=k_axis,
            positions=(
                told(q_axis, x.q_positions, i, plan.q_tile, plan.T),
                told(k_axis, x.k_positions, j, plan.k_tile, plan.S),
            ),
            dropout=dropout,
        )

    def of_offsets(self, value: Any, leaf: Leaf) -> Any:
        """What was read; of what has an entry for each offset, one of each pair, as a GPU reads it."""
        if value is None or leaf.role != "o" or self.plan.platform == "gpu":
            return value
        entries = value.astype(self.plan.dtype if is_float(value) else jnp.int32)
        found = over_diagonals(entries, self.plan.q_tile)
        return found != 0 if leaf.boolean else found.astype(value.dtype)


def wide(plan: Plan, x: Any) -> Any:
    """What was read, in the dtype of the arithmetic: itself where it has it already."""
    return x if x is None or x.dtype == plan.dtype else x.astype(plan.dtype)
