"""Batches: a function over the leading axis of its operands, a few examples at a time."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jattn._jax import batching
from jattn._walk._primitive import Leaves, Walkable, abstract, insert, walk, walk_p
from jattn._walk._shards import Levels


@dataclasses.dataclass(frozen=True)
class Mapped(Walkable):
    """`fun` over the leading axis of the operands that are `mapped`; outputs stacked, or `summed`."""

    fun: Walkable
    mapped: tuple[bool, ...]
    size: int
    summed: tuple[bool, ...]

    @property
    def group(self) -> int:
        """How many examples run side by side."""
        if self.fun.apart(self.mapped) and self.platform == "cpu":
            return 1
        if self.fun.bytes == 0:
            return self.size
        at_once = max(1, _budget(self.platform) // self.fun.bytes)
        # Of a symbolic batch nobody knows whether a group would be full: each example alone.
        return min(self.size, at_once) if isinstance(self.size, int) else 1

    @property
    def platform(self) -> str:
        return self.fun.platform

    def for_platform(self, platform: str) -> Walkable:
        return dataclasses.replace(self, fun=self.fun.for_platform(platform))

    def levels(self, operands: int, outputs: int) -> Levels:
        below = self.fun.levels(operands, outputs)

        def own(mapped: Sequence[bool], inner: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
            return tuple((0,) * m + tuple(level + 1 for level in more) for m, more in zip(mapped, inner, strict=False))

        stacked = [not summed for summed in self.summed]
        return Levels((self.size, *below.sizes), own(self.mapped, below.operands), own(stacked, below.outputs))

    def resized(self, *sizes: int) -> "Mapped":
        size, *inner = sizes
        return dataclasses.replace(self, size=size, fun=self.fun.resized(*inner))

    @property
    def bytes(self) -> int:
        return self.group * self.fun.bytes

    @property
    def collective(self) -> bool:
        return self.fun.collective

    @property
    def names(self) -> tuple[str, ...]:
        return self.fun.names

    @property
    def linear(self) -> frozenset[int]:
        return self.fun.linear

    def apart(self, mapped: tuple[bool, ...]) -> bool:
        return self.fun.apart(mapped)

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return self._over(self.fun, xs)

    def smooth(self, *xs: jax.Array) -> list[jax.Array]:
        return self._over(jax.checkpoint(self.fun.smooth), xs)

    @property
    def constant(self) -> frozenset[int]:
        return self.fun.constant

    def tangent(self, over: tuple[int, ...]) -> Walkable | None:
        own = self.fun.tangent(over)
        if own is None:
            return None
        stacked = tuple(not summed for summed in self.summed)
        mapped = self.mapped + stacked + tuple(self.mapped[i] for i in over)
        return Mapped(own, mapped, self.size, tuple(s for i, s in enumerate(self.summed) if i not in self.constant))

    def derived(self, over: tuple[int, ...], n: int) -> Walkable:
        mapped = self.mapped + tuple(self.mapped[i] for i in over)
        return Mapped(self.fun.derived(over, n), mapped, self.size, self.summed)

    def transposed(self, over: tuple[int, ...], shapes: tuple[Any, ...], n: int, outputs: int) -> Walkable:
        one = tuple(
            (shape[1:] if self.mapped[i] else shape, dtype) for i, (shape, dtype) in zip(over, shapes, strict=True)
        )
        kept = tuple(mapped for i, mapped in enumerate(self.mapped) if i not in over)
        cts = tuple(not summed for summed in self.summed)
        fun = self.fun.transposed(over, one, n, outputs)
        return Mapped(fun, kept + cts, self.size, tuple(not self.mapped[i] for i in over))

    def _over(self, fun: Any, xs: Leaves) -> list[jax.Array]:
        shared = [x for x, mapped in zip(xs, self.mapped, strict=True) if not mapped]
        places = tuple(i for i, mapped in enumerate(self.mapped) if mapped)
        examples = [xs[i] for i in places]

        def side_by_side(examples: Leaves) -> list[jax.Array]:
            if examples[0].shape[0] == 1:
                return [y[None] for y in fun(*insert(shared, places, [x[0] for x in examples]))]
            return jax.vmap(lambda *one: fun(*insert(shared, places, one)))(*examples)

        def add_up(ys: Leaves) -> tuple[list[jax.Array], list[jax.Array]]:
            pairs = list(zip(ys, self.summed, strict=True))
            return [y.sum(0) for y, summed in pairs if summed], [y for y, summed in pairs if not summed]

        groups, rest = (1, 0) if self.group == self.size else divmod(self.size, self.group)
        total: list[jax.Array] = []
        stacked: list[jax.Array] = []
        if groups != 1:
            grouped = [x[: groups * self.group].reshape(groups, self.group, *x.shape[1:]) for x in examples]

            def step(total: Leaves, group: Leaves) -> tuple[list[jax.Array], list[jax.Array]]:
                more, ys = add_up(side_by_side(group))
                return [a + b for a, b in zip(total, more, strict=True)], ys

            first = jax.eval_shape(lambda g: add_up(side_by_side(g))[0], [x[0] for x in grouped])
            total, ys = jax.lax.scan(step, [jnp.zeros(x.shape, x.dtype) for x in first], grouped)
            stacked = [y.reshape(-1, *y.shape[2:]) for y in ys]
        else:
            total, stacked = add_up(side_by_side([x[: self.group] for x in examples]))
        if rest:
            more, ys = add_up(side_by_side([x[-rest:] for x in examples]))
            total = [a + b for a, b in zip(total, more, strict=True)]
            stacked = [jnp.concatenate(pair) for pair in zip(stacked, ys, strict=True)]
        sums, stacks = iter(total), iter(stacked)
        return [next(sums) if summed else next(stacks) for summed in self.summed]


def _batching_rule(operands: Leaves, dims: Sequence[Any], *, fun: Walkable) -> tuple[list[Any], list[int]]:
    mapped = tuple(d is not None for d in dims)
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    operands = [jnp.moveaxis(x, d, 0) if m else x for x, d, m in zip(operands, dims, mapped, strict=True)]
    out = abstract(
        *(_example(jax.typeof(x)) if m else jax.typeof(x) for x, m in zip(operands, mapped, strict=True)), fun=fun
    )
    if size == 0:
        return [jnp.zeros((0, *y.shape), y.dtype) for y in out], [0] * len(out)
    return walk(Mapped(fun, mapped, size, (False,) * len(out)), *operands), [0] * len(out)


def _example(aval: Any) -> Any:
    """The type of one of those that lie along the leading axis."""
    spec = jax.sharding.PartitionSpec(*aval.sharding.spec[1:])
    return aval.update(shape=aval.shape[1:], sharding=aval.sharding.update(spec=spec))


batching.primitive_batchers[walk_p] = _batching_rule


def _budget(platform: str) -> int:
    """Bytes of working set that may be in flight. A CPU core must find them in its caches; an accelerator
    wants every unit busy, and its memory is the only bound."""
    return 8 * 2**20 if platform == "cpu" else 2**30
