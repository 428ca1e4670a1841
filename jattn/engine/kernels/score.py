"""A score modifier as kernels take it: what it looks up for a query, for a key or for a distance is an operand."""

import dataclasses
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jattn._values import Separated, Table, separate
from jattn.engine.kernels.distances import distances, in_order
from jattn.engine.plan import Operands, Plan
from jattn.engine.score import ScalarScore, TileScore
from jattn.engine.tuning import KERNEL_OFFSETS
from jattn.scores import OfPairs

ROLE_OF = MappingProxyType({None: "", 1: "q", 2: "k", (1, 2): "o"})
"""Of f(x, t, s): what depends on t has an entry a query, what depends on s one a key, and what depends on t − s one an
offset (`distances`)."""

Rows: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""Of queries and of keys: the rows of whole tiles, and how many there are, (T, S)."""


@dataclasses.dataclass(frozen=True, eq=False)
class SeparatedScore:
    """f(x, t, s) over a tile, given the values that depend on t, on s, on t − s or on neither."""

    parts: Separated
    rows: Rows | None = None
    """Where what depends on t − s alone is looked up at every distance."""

    @classmethod
    def of(cls, score: ScalarScore, rows: Rows | None = None) -> "SeparatedScore | None":
        """None where an array is asked for more than its entries."""
        parts = separate(score.closed, 1, 2, *(() if rows is None else ((1, 2),)))
        return None if parts is None else cls(parts, rows)

    @property
    def tables(self) -> list[Any]:
        """The types of the arrays that are looked up for each pair."""
        return [v.aval for v in self.parts.between[None] if v.aval.shape]

    @property
    def roles(self) -> tuple[str, ...]:
        """Of each value, whose rows it has an entry for; what is looked up for a pair is "", as a scalar is."""
        return tuple(ROLE_OF[n] for n, variables in self.parts.between.items() for _ in variables)

    def values(self, captured: tuple[jax.Array, ...], t: jax.Array, s: jax.Array) -> tuple[jax.Array, ...]:
        """The values, of all queries [T], all keys [S] and all offsets."""
        at: dict[Any, jax.Array] = {1: t, 2: s}
        if self.rows is not None:
            at[1, 2] = -distances(*self.rows)
        found = self.parts.alone(None, captured)
        for n, every in at.items():
            found += jax.vmap(lambda x, n=n: self.parts.alone(n, captured, x))(every)
        return tuple(found)

    def __call__(self, values: Any, tile: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        laid = [c if isinstance(c, Table) else jnp.broadcast_to(c, tile.shape) for c in values]

        def one(x: jax.Array, t: jax.Array, s: jax.Array, *scalars: jax.Array) -> jax.Array:
            of_pair = iter(scalars)
            rest = (c if isinstance(c, Table) else next(of_pair) for c in laid)
            given = {n: [next(rest) for _ in variables] for n, variables in self.parts.between.items()}
            return jax.lax.convert_element_type(self.parts.rest(given, x, t, s)[0], x.dtype)

        return jax.vmap(jax.vmap(one))(tile, t, s, *(c for c in laid if not isinstance(c, Table)))


@dataclasses.dataclass(frozen=True)
class DistanceScore:
    """A score modifier of this library whose tables are looked up at every distance before the kernel."""

    score: TileScore
    rows: Rows
    tree: Any
    roles: tuple[str, ...]
    """Of each value: "o" of one for each offset, "" of a scalar."""

    @classmethod
    def of(cls, score: TileScore, captured: tuple[Any, ...], rows: Rows) -> "DistanceScore | None":
        """None where an array is not looked up by distance."""
        found = jax.eval_shape(lambda *captured: _at_every_distance(score, captured, rows), *captured)
        parts = jax.tree.leaves(found, is_leaf=lambda part: isinstance(part, OfPairs))
        roles = tuple("o" if isinstance(part, OfPairs) else "" for part in parts)
        left = any(role == "" and part.ndim for part, role in zip(parts, roles, strict=True))
        return None if left else cls(score, rows, jax.tree.structure(found), roles)

    def values(self, captured: tuple[jax.Array, ...], t: jax.Array, s: jax.Array) -> tuple[jax.Array, ...]:
        """The values, of what the score modifier captured. The positions of the rows are their numbers."""
        return tuple(jax.tree.leaves(_at_every_distance(self.score, captured, self.rows)))

    def __call__(self, values: Any, tile: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        return jax.tree.unflatten(self.tree, values)(tile, t, s).astype(tile.dtype)


def _at_every_distance(score: TileScore, captured: tuple[Any, ...], rows: Rows) -> Any:
    return jax.tree.unflatten(score.tree, captured).at_distances(distances(*rows))


KernelScore: TypeAlias = SeparatedScore | DistanceScore | TileScore


def kernel_score(plan: Plan, x: Operands) -> KernelScore | None:
    """The score modifier as a kernel with these tiles takes it; None where it can take none.

    By distance on a TPU, which cannot gather, where rows have no positions and the offsets are not too many.
    """
    sizes, score = (plan.q_rows, plan.k_rows), plan.score
    rows = sizes, (plan.T, plan.S)
    found: SeparatedScore | DistanceScore | None = None
    if in_order(plan, x) and isinstance(score, ScalarScore):
        found = SeparatedScore.of(score, rows)
    elif in_order(plan, x) and isinstance(score, TileScore):
        found = DistanceScore.of(score, x.captured, rows)
    if found is not None and 0 < sum(sizes) * found.roles.count("o") <= KERNEL_OFFSETS:
        return found
    return SeparatedScore.of(score) if isinstance(score, ScalarScore) else score


def is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def has_values(score: Any) -> bool:
    """Whether a kernel takes values that a score modifier makes of what it captured."""
    return isinstance(score, (SeparatedScore, DistanceScore))


def by_distance(score: Any) -> bool:
    """Whether some of these values are one for each offset."""
    return has_values(score) and "o" in score.roles
