"""The ring: keys and values travel from device to device, queries stay, and each meeting adds a partial.

The derivative is again a ring, given the final (out, m, log_sum), and so is its transpose:

    tangents     k_dot and v_dot travel with k and v; the tangents of out and lse are sums over the stops
    cotangents   dk and dv travel with k and v, gathering a part at each stop, and go home from the last one

Each is linear, and each is the other's transpose; JAX derives every further order from these two. Nothing is kept of
a stop but what travels on, so that the memory of a device does not grow with their number.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jattn._numerics import below, finite_or_zero
from jattn._values import recomputed
from jattn._walk import Mapped, Walkable, walk
from jattn.blockwise import CHECKPOINT_NAMES, Fold
from jattn.derivatives import Cotangents, Tangents
from jattn.tiles import Plan

Levels = tuple[bool, bool, bool]
EACH: Levels = (True, True, True)
"""One entry for each example, key/value head and query head of it."""


@dataclasses.dataclass(frozen=True)
class Way:
    """Where keys and values go: over which axis, and how many devices on before each stop but the first."""

    axis_name: Any
    size: int
    strides: tuple[int, ...]

    @classmethod
    def past(cls, axis_name: Any, size: int, visited: tuple[int, ...]) -> "Way":
        """To each of these distances in turn, of which the first is 0."""
        return cls(axis_name, size, tuple(j - i for i, j in itertools.pairwise(visited)))

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The strides, and how many equal ones follow each other."""
        return [(stride, len(list(run))) for stride, run in itertools.groupby(self.strides)]

    def on(self, xs: Any, stride: int) -> Any:
        """What travels, `stride` devices further."""
        if stride % self.size == 0:
            return xs
        pairs = [(i, (i + stride) % self.size) for i in range(self.size)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axis_name, pairs), xs)

    def home(self, xs: Any) -> Any:
        return self.on(xs, -sum(self.strides))

    def around(self, hop: Callable[[Any, int], Any], carry: Any) -> Any:
        """Folds `hop(carry, stride)` over the stops but the first; equal strides in a row are one loop."""
        for stride, n in self.runs:
            step = partial(lambda by, c, _: (hop(c, by), None), stride)
            carry = jax.lax.scan(step, carry, length=n)[0]
        return carry


@dataclasses.dataclass(frozen=True)
class Heads:
    """One head's computation, and which of its leaves each example, key/value head and query head has of its own."""

    plan: Plan
    tree: Any
    levels: tuple[Levels, ...]
    sizes: tuple[int, int, int]
    travels: tuple[int, ...]
    """The leaves that belong to keys: k, v, where they stand, what a mask knows of them."""
    sink: int | None
    """The leaf that joins the denominator, at the first stop alone."""

    def each(self, fun: Walkable, operands: Sequence[Levels], outputs: Sequence[Levels]) -> Walkable:
        """`fun` of one head over all of them; an output that is one for several is summed over these."""
        for level in (2, 1, 0):
            mapped, summed = (m[level] for m in operands), (not m[level] for m in outputs)
            fun = Mapped(fun, tuple(mapped), self.sizes[level], tuple(summed))
        return fun

    def later(self, leaves: Sequence[Any]) -> list[Any]:
        """The leaves at a later stop."""
        return [jnp.full_like(x, -jnp.inf) if i == self.sink else x for i, x in enumerate(leaves)]

    def taken(self, leaves: Sequence[Any]) -> list[Any]:
        return [leaves[i] for i in self.travels]

    def put(self, leaves: Sequence[Any], travelling: Sequence[Any]) -> list[Any]:
        there = dict(zip(self.travels, travelling, strict=True))
        return [there.get(i, x) for i, x in enumerate(leaves)]


@dataclasses.dataclass(frozen=True)
class _Around(Walkable):
    heads: Heads
    way: Way

    @property
    def collective(self) -> bool:
        return True

    @property
    def platform(self) -> str:
        return self.heads.plan.platform

    def for_platform(self, platform: str) -> Walkable:
        heads = dataclasses.replace(self.heads, plan=self.heads.plan.for_platform(platform))
        return dataclasses.replace(self, heads=heads)

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return self.run(lambda hop: hop, *xs)

    def smooth(self, *xs: jax.Array) -> list[jax.Array]:
        return self.run(lambda hop: lambda carry, stride: recomputed(lambda: hop(carry, stride)), *xs)

    def run(self, kept: Callable[..., Any], *xs: jax.Array) -> list[jax.Array]:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Ring(_Around):
    """The leaves of the operands → (out, m, log_sum), each [B, Hkv, G, T, ...]; m counts as a constant."""

    @property
    def constant(self) -> frozenset[int]:
        return frozenset({1})

    @property
    def names(self) -> tuple[str, ...]:
        return CHECKPOINT_NAMES

    def tangent(self, over: tuple[int, ...]) -> Walkable:
        return RingTangents(self.heads, self.way, over)

    def run(self, kept: Callable[..., Any], *xs: jax.Array) -> list[jax.Array]:
        heads = self.heads
        fold = heads.each(Fold(heads.plan, heads.tree), heads.levels, [EACH] * 3)

        def hop(carry: Any, stride: int) -> Any:
            total, travelling = carry
            travelling = self.way.on(travelling, stride)
            more = walk(fold, *heads.later(heads.put(xs, travelling)))
            return joined(total, more), travelling

        return self.way.around(kept(hop), (walk(fold, *xs), heads.taken(xs)))[0]


@dataclasses.dataclass(frozen=True)
class _Linear(_Around):
    """A pass that is linear in what follows the leaves and (out, m, log_sum)."""

    over: tuple[int, ...]
    """The leaves that move."""

    @property
    def n(self) -> int:
        return len(self.heads.levels) + 3

    @property
    def moved(self) -> list[Levels]:
        return [self.heads.levels[i] for i in self.over]

    @property
    def saved(self) -> list[Levels]:
        return [*self.heads.levels, EACH, EACH, EACH]

    def split(self, xs: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        return list(xs[: self.n - 3]), list(xs[self.n - 3 : self.n]), list(xs[self.n :])


@dataclasses.dataclass(frozen=True)
class RingTangents(_Linear):
    """..., tangents of the leaves that move → (out_dot, lse_dot)."""

    @property
    def linear(self) -> frozenset[int]:
        return frozenset(range(self.n, self.n + len(self.over)))

    def transposed(self, over: tuple[int, ...], *sizes: Any) -> Walkable:
        whole = set(over) == self.linear
        return RingCotangents(self.heads, self.way, self.over) if whole else super().transposed(over, *sizes)

    def run(self, kept: Callable[..., Any], *xs: jax.Array) -> list[jax.Array]:
        heads = self.heads
        leaves, saved, dots = self.split(xs)
        tangents = heads.each(Tangents(heads.plan, heads.tree, self.over), [*self.saved, *self.moved], [EACH] * 2)
        with_keys = [i in heads.travels for i in self.over]

        def hop(carry: Any, stride: int) -> Any:
            total, travelling = carry
            travelling = self.way.on(travelling, stride)
            keys, moving = travelling
            there = iter(moving)
            here = [
                next(there) if w else jnp.zeros_like(d) if i == heads.sink else d
                for i, d, w in zip(self.over, dots, with_keys, strict=True)
            ]
            more = walk(tangents, *heads.later(heads.put(leaves, keys)), *saved, *here)
            return [a + b for a, b in zip(total, more, strict=True)], travelling

        start = walk(tangents, *leaves, *saved, *dots)
        moving = [d for d, w in zip(dots, with_keys, strict=True) if w]
        return self.way.around(kept(hop), (start, (heads.taken(leaves), moving)))[0]


@dataclasses.dataclass(frozen=True)
class RingCotangents(_Linear):
    """..., cotangents of out and of lse → cotangents of the leaves that move."""

    @property
    def linear(self) -> frozenset[int]:
        return frozenset({self.n, self.n + 1})

    def transposed(self, over: tuple[int, ...], *sizes: Any) -> Walkable:
        whole = set(over) == self.linear
        return RingTangents(self.heads, self.way, self.over) if whole else super().transposed(over, *sizes)

    def run(self, kept: Callable[..., Any], *xs: jax.Array) -> list[jax.Array]:
        heads = self.heads
        leaves, saved, cts = self.split(xs)
        pull = heads.each(Cotangents(heads.plan, heads.tree, self.over), [*self.saved, EACH, EACH], self.moved)
        with_keys = [i in heads.travels for i in self.over]

        def at(leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            # In the dtype of the arithmetic: what is summed over the stops is rounded once, at the end.
            wide = [x.astype(heads.plan.dtype) if i in self.over else x for i, x in enumerate(leaves)]
            parts = walk(pull, *wide, *saved, *cts)
            sides = ([p for p, w in zip(parts, with_keys, strict=True) if w is keys] for keys in (True, False))
            return tuple(sides)  # type: ignore[return-value]

        def hop(carry: Any, stride: int) -> Any:
            resting, travelling = carry
            keys, gathered = self.way.on(travelling, stride)
            parts, rest = at(heads.later(heads.put(leaves, keys)))
            return jax.tree.map(jnp.add, resting, rest), (keys, jax.tree.map(jnp.add, gathered, parts))

        parts, rest = at(leaves)
        resting, (_, gathered) = self.way.around(kept(hop), (rest, (heads.taken(leaves), parts)))
        of_keys, of_rest = iter(self.way.home(gathered)), iter(resting)
        found = [next(of_keys) if w else next(of_rest) for w in with_keys]
        return [x.astype(leaves[i].dtype) for x, i in zip(found, self.over, strict=True)]


def joined(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> list[jax.Array]:
    """Two partials (out, m, log_sum) as one, lse = m + log_sum: the monoid of `partials`, with m kept apart."""
    (out_a, m_a, log_a), (out_b, m_b, log_b) = a, b
    m = jnp.maximum(m_a, m_b)
    top = finite_or_zero(m)
    w_a, w_b = jnp.exp(below(m_a, top) + log_a), jnp.exp(below(m_b, top) + log_b)
    total = w_a + w_b
    total = jnp.where(total == 0, 1, total)
    out = (w_a / total)[..., None] * out_a + (w_b / total)[..., None] * out_b
    return [out, m, jnp.log(total)]
