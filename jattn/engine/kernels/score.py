"""A score modifier of scalars as kernels take it: what it looks up for a query, or for a key, is an operand."""

import dataclasses
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from jattn._values import Separated, Table, separate
from jattn.engine.score import ScalarScore

ROLE_OF = MappingProxyType({None: "", 1: "q", 2: "k"})
"""Of f(x, t, s): what depends on t has an entry a query, what depends on s one a key."""


@dataclasses.dataclass(frozen=True, eq=False)
class SeparatedScore:
    """f(x, t, s) over a tile, given the values that depend on t, on s or on neither."""

    parts: Separated

    @classmethod
    def of(cls, score: ScalarScore) -> "SeparatedScore | None":
        """None where an array is asked for more than its entries."""
        parts = separate(score.closed, 1, 2)
        return None if parts is None else cls(parts)

    @property
    def tables(self) -> list[Any]:
        """The types of the arrays that are looked up for each pair."""
        return [v.aval for v in self.parts.between[None] if v.aval.shape]

    @property
    def roles(self) -> tuple[str, ...]:
        """Of each value, whose rows it has an entry for; what is looked up for a pair is "", as a scalar is."""
        return tuple(ROLE_OF[n] for n, variables in self.parts.between.items() for _ in variables)

    def values(self, captured: tuple[jax.Array, ...], t: jax.Array, s: jax.Array) -> tuple[jax.Array, ...]:
        """The values, of all queries [T] and all keys [S]."""
        found = self.parts.alone(None, captured)
        for n, positions in ((1, t), (2, s)):
            found += jax.vmap(lambda x, n=n: self.parts.alone(n, captured, x))(positions)
        return tuple(found)

    def __call__(self, values: Any, tile: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        laid = [c if isinstance(c, Table) else jnp.broadcast_to(c, tile.shape) for c in values]

        def one(x: jax.Array, t: jax.Array, s: jax.Array, *scalars: jax.Array) -> jax.Array:
            of_pair = iter(scalars)
            rest = (c if isinstance(c, Table) else next(of_pair) for c in laid)
            given = {n: [next(rest) for _ in variables] for n, variables in self.parts.between.items()}
            found: jax.Array = self.parts.rest(given, x, t, s)[0].astype(x.dtype)
            return found

        return jax.vmap(jax.vmap(one))(tile, t, s, *(c for c in laid if not isinstance(c, Table)))
