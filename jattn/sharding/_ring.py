"""The ring: keys and values travel from device to device, queries stay, and each stop adds a partial.

The derivative is again a ring, given the final (out, m, log_sum), and so is its transpose:

    tangents     k_dot and v_dot travel with k and v; the tangents of out and lse are sums over the stops
    cotangents   dk and dv travel with k and v, gaining a part at each stop, and return home from the last one

Each is linear, and each is the other's transpose; JAX derives every further order from these two. Nothing is kept of
a stop but what travels on, so that the memory of a device does not grow with their number. Keys are sent on before a
stop looks at them: a device sends those of the next stop while it computes with its own.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jattn._numerics import Settings
from jattn._values import recomputed
from jattn.engine.backward import Backward, sums_in
from jattn.engine.batching import BatchedFunction, Linear, Vmapped, are_transposes, batched_call
from jattn.engine.forward import Forward, ReturnsPartial
from jattn.engine.plan import Plan
from jattn.engine.tangent import Tangent
from jattn.partials import merge_finished

Keep = Callable[[Callable[[], Any]], Any]
"""Calls its argument, and says what of it is kept for a derivative."""
Levels = tuple[bool, bool, bool]
EACH: Levels = (True, True, True)
"""One entry for each example, key/value head and query head of it."""


@dataclasses.dataclass(frozen=True)
class RingSchedule:
    """Where keys and values go: over which axis, and how many devices on before each stop but the first."""

    axis_name: Any
    size: int
    strides: tuple[int, ...]

    @classmethod
    def past(cls, axis_name: Any, size: int, visited: tuple[int, ...]) -> "RingSchedule":
        """To each of these distances in turn, of which the first is 0."""
        return cls(axis_name, size, tuple(j - i for i, j in itertools.pairwise(visited)))

    @property
    def runs(self) -> list[tuple[tuple[int, int], int]]:
        """The strides that lead to a stop and on from it, of all but the first and last, and how many follow each
        other that are equal."""
        return [(both, len(list(run))) for both, run in itertools.groupby(itertools.pairwise(self.strides))]

    def shift(self, xs: Any, stride: int) -> Any:
        """What travels, `stride` devices further."""
        if stride % self.size == 0:
            return xs
        pairs = [(i, (i + stride) % self.size) for i in range(self.size)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axis_name, pairs), xs)

    def return_home(self, xs: Any) -> Any:
        return self.shift(xs, -sum(self.strides))

    def run(self, stop: Callable[[Any, Any, int], Any], total: Any, travelling: Any, kept: Keep) -> Any:
        """Folds `stop(total, travelling, stride)` over the stops but the first; equal strides in a row are one loop.

        What travels is sent on before a stop looks at it: nothing of the next stop's waits for this one's arithmetic,
        and a device may send and compute at the same time.
        """
        if not self.strides:
            return total

        def hop(carry: Any, strides: tuple[int, int]) -> Any:
            total, here = carry
            ahead = self.shift(here, strides[1])
            return stop(total, here, strides[0]), ahead

        carry = total, self.shift(travelling, self.strides[0])
        for both, n in self.runs:
            step = partial(lambda by, c, _: (kept(lambda: hop(c, by)), None), both)
            carry = jax.lax.scan(step, carry, length=n)[0]
        return kept(lambda: stop(*carry, self.strides[-1]))


@dataclasses.dataclass(frozen=True)
class MappedHead:
    """One head's computation, and which of its leaves each example, key/value head and query head has of its own."""

    plan: Plan
    tree: Any
    levels: tuple[Levels, ...]
    sizes: tuple[int, int, int]
    travels: tuple[int, ...]
    """The leaves that belong to keys: k, v, where they stand, what a mask knows of them."""
    sink: int | None
    """The leaf that joins the denominator, at the first stop alone."""

    def each(self, fun: BatchedFunction, operands: Sequence[Levels], outputs: Sequence[Levels]) -> BatchedFunction:
        """`fun` of one head over all of them; an output that is one for several is summed over these."""
        for level in (2, 1, 0):
            mapped, summed = (m[level] for m in operands), (not m[level] for m in outputs)
            fun = Vmapped(fun, tuple(mapped), self.sizes[level], tuple(summed))
        return fun

    def without_sink(self, leaves: Sequence[Any]) -> list[Any]:
        """The leaves at a later stop."""
        return [jnp.full_like(x, -jnp.inf) if i == self.sink else x for i, x in enumerate(leaves)]

    def travelling_leaves(self, leaves: Sequence[Any]) -> list[Any]:
        return [leaves[i] for i in self.travels]

    def insert_keys(self, leaves: Sequence[Any], travelling: Sequence[Any]) -> list[Any]:
        there = dict(zip(self.travels, travelling, strict=True))
        return [there.get(i, x) for i, x in enumerate(leaves)]


@dataclasses.dataclass(frozen=True)
class _RingPass(BatchedFunction):
    heads: MappedHead
    ring: RingSchedule

    @property
    def collective(self) -> bool:
        return True

    @property
    def platform(self) -> str:
        return self.heads.plan.platform

    @property
    def settings(self) -> Settings:
        return self.heads.plan.settings

    def for_platform(self, platform: str) -> BatchedFunction:
        heads = dataclasses.replace(self.heads, plan=self.heads.plan.for_platform(platform))
        return dataclasses.replace(self, heads=heads)

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return self.run(lambda stop: stop(), *xs)

    def transposable(self, *xs: jax.Array) -> list[jax.Array]:
        return self.run(recomputed, *xs)

    def run(self, kept: Keep, *xs: jax.Array) -> list[jax.Array]:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class RingForward(_RingPass, ReturnsPartial):
    """The leaves of the operands → (out, m, log_sum), each [B, Hkv, G, T, ...]."""

    @property
    def jointly_linear(self) -> tuple[frozenset[int], ...]:
        return Forward(self.heads.plan, self.heads.tree).jointly_linear

    def tangent_function(self, argnums: tuple[int, ...]) -> BatchedFunction:
        return RingTangent(self.heads, self.ring, argnums)

    def run(self, kept: Keep, *xs: jax.Array) -> list[jax.Array]:
        heads = self.heads
        forward = heads.each(Forward(heads.plan, heads.tree), heads.levels, [EACH] * 3)

        def stop(total: Any, keys: Any, stride: int) -> Any:
            return merge_finished(total, batched_call(forward, *heads.without_sink(heads.insert_keys(xs, keys))))

        return self.ring.run(stop, batched_call(forward, *xs), heads.travelling_leaves(xs), kept)


@dataclasses.dataclass(frozen=True)
class _RingDerivative(_RingPass, Linear):
    """A pass that is linear in what follows the leaves and the residuals (out, m, log_sum)."""

    argnums: tuple[int, ...]
    """The active leaves: those that are differentiated."""

    @property
    def nonlinear_operands(self) -> int:
        return len(self.heads.levels) + 3

    @property
    def active_levels(self) -> list[Levels]:
        return [self.heads.levels[i] for i in self.argnums]

    @property
    def nonlinear_levels(self) -> list[Levels]:
        return [*self.heads.levels, EACH, EACH, EACH]

    @property
    def with_keys(self) -> list[bool]:
        """Of each active leaf, whether it travels with the keys."""
        return [i in self.heads.travels for i in self.argnums]

    def split(self, xs: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """(leaves, residuals, what the pass is linear in)."""
        n = self.nonlinear_operands
        return list(xs[: n - 3]), list(xs[n - 3 : n]), list(xs[n:])


@dataclasses.dataclass(frozen=True)
class RingTangent(_RingDerivative):
    """..., tangents of the active leaves → (out_dot, lse_dot)."""

    @property
    def linear_operands(self) -> int:
        return len(self.argnums)

    def run(self, kept: Keep, *xs: jax.Array) -> list[jax.Array]:
        heads = self.heads
        leaves, residuals, dots = self.split(xs)
        tangents = heads.each(
            Tangent(heads.plan, heads.tree, self.argnums), [*self.nonlinear_levels, *self.active_levels], [EACH] * 2
        )

        def stop(total: Any, travelling: Any, stride: int) -> Any:
            keys, key_dots = travelling
            there = iter(key_dots)
            here = [
                next(there) if w else jnp.zeros_like(d) if i == heads.sink else d
                for i, d, w in zip(self.argnums, dots, self.with_keys, strict=True)
            ]
            more = batched_call(tangents, *heads.without_sink(heads.insert_keys(leaves, keys)), *residuals, *here)
            return [a + b for a, b in zip(total, more, strict=True)]

        start = batched_call(tangents, *leaves, *residuals, *dots)
        key_dots = [d for d, w in zip(dots, self.with_keys, strict=True) if w]
        return self.ring.run(stop, start, (heads.travelling_leaves(leaves), key_dots), kept)


@dataclasses.dataclass(frozen=True)
class RingBackward(_RingDerivative):
    """..., cotangents of out and of lse → cotangents of the active leaves."""

    @property
    def linear_operands(self) -> int:
        return 2

    def run(self, kept: Keep, *xs: jax.Array) -> list[jax.Array]:
        heads = self.heads
        leaves, residuals, cts = self.split(xs)
        captured = jax.tree.unflatten(heads.tree, range(len(leaves))).captured
        pullback = heads.each(
            Backward(heads.plan, heads.tree, self.argnums), [*self.nonlinear_levels, EACH, EACH], self.active_levels
        )

        def at(leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            # In the dtype of the arithmetic: what is summed over the stops is rounded once, at the end. A score that is
            # any function takes what it captured in its own dtype alone.
            widened = set(self.argnums) - set(captured)
            wide = [x.astype(heads.plan.dtype) if i in widened else x for i, x in enumerate(leaves)]
            parts = [x.astype(sums_in(heads.plan, x)) for x in batched_call(pullback, *wide, *residuals, *cts)]
            both = ([p for p, w in zip(parts, self.with_keys, strict=True) if w is keys] for keys in (True, False))
            return tuple(both)  # type: ignore[return-value]

        def stop(total: Any, keys: Any, stride: int) -> Any:
            resting, key_cts = total
            key_cts = self.ring.shift(key_cts, stride)  # one stop behind the keys, which gain nothing on the way
            parts, rest = at(heads.without_sink(heads.insert_keys(leaves, keys)))
            return jax.tree.map(jnp.add, resting, rest), jax.tree.map(jnp.add, key_cts, parts)

        parts, rest = at(leaves)
        resting, key_cts = self.ring.run(stop, (rest, parts), heads.travelling_leaves(leaves), kept)
        of_keys, of_rest = iter(key_cts), iter(resting)
        sums = [next(of_keys) if w else next(of_rest) for w in self.with_keys]
        found = [x.astype(leaves[i].dtype) for x, i in zip(sums, self.argnums, strict=True)]  # then they are sent home
        return [self.ring.return_home(x) if w else x for x, w in zip(found, self.with_keys, strict=True)]


are_transposes(RingTangent, RingBackward)
