"""The batching rule: a function over the leading axis of its operands, a group of examples at a time."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._jax import batching
from jattn._numerics import Settings, is_half
from jattn.engine import tuning
from jattn.engine.batching.function import BatchedFunction, ForFinite, Kernel, Leaves, insert, times
from jattn.engine.batching.partition import BatchLevels
from jattn.engine.batching.primitive import abstract, batched_call, batched_call_p


class Example(NamedTuple):
    """One example of those along the leading axis of an array, which is not taken out of it."""

    whole: Any
    """An array, or an example itself."""
    number: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.whole.shape[1:]
        return shape

    @property
    def ndim(self) -> int:
        return len(self.shape)


if TYPE_CHECKING:
    Operand: TypeAlias = Any  # of the two, its place says which
else:
    Operand = jax.Array | Example
"""What a function of one example is given."""


def slice_of(x: Any, starts: Sequence[Any], sizes: Sequence[int]) -> jax.Array:
    """A part of an array or of an `Example`: that many rows from the starts on, along each axis."""
    starts = [jnp.asarray(start, jnp.int32) for start in starts]
    if not isinstance(x, Example):
        whole = tuple(sizes) == x.shape
        return x if whole else jax.lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)
    numbers: list[jax.Array] = []
    while isinstance(x, Example):
        numbers.insert(0, x.number)
        x = x.whole
    return _part_of_examples((1,) * len(numbers), tuple(sizes))(x, numbers, starts).reshape(sizes)


def _part_of_examples(counts: tuple[int, ...], sizes: tuple[int, ...]) -> Callable[..., jax.Array]:
    """(array, the first example along each leading axis, starts) → the part that so many examples of each have.

    Mapped over the numbers of a group, which follow each other, it stays one slice; JAX would make a gather of it.
    """

    def cut(x: jax.Array, numbers: list[jax.Array], starts: list[jax.Array]) -> jax.Array:
        return jax.lax.dynamic_slice(x, (*numbers, *starts), (*counts, *sizes), allow_negative_indices=False)

    def of_group(
        group: int, batched: Any, x: jax.Array, numbers: list[jax.Array], starts: list[jax.Array]
    ) -> tuple[jax.Array, bool]:
        if batched[0] or any(batched[2]) or sum(batched[1]) != 1:
            axes = jax.tree.map(lambda b: 0 if b else None, list(batched))
            return jax.vmap(cut, axes)(x, numbers, starts), True
        axis = batched[1].index(True)
        more = (*counts[:axis], group, *counts[axis + 1 :])
        found = _part_of_examples(more, sizes)(x, [n[0] if n.ndim else n for n in numbers], starts)
        return jnp.expand_dims(jnp.moveaxis(found, axis, 0), axis + 1), True

    part = jax.custom_batching.custom_vmap(cut)
    part.def_vmap(of_group)
    return part


def _type_of(x: Any) -> Any:
    return example_type(_type_of(x.whole)) if isinstance(x, Example) else jax.typeof(x)


@dataclasses.dataclass(frozen=True)
class Vmapped(BatchedFunction):
    """`fun` over the leading axis of the operands that are `mapped`; outputs stacked, or `summed`."""

    fun: BatchedFunction
    mapped: tuple[bool, ...]
    size: int
    summed: tuple[bool, ...]
    inside: frozenset[int] = frozenset()
    """The operands whose examples lay behind another axis, before they were brought to the front."""

    def output_types(self, *types: Any) -> list[Any]:
        return [
            y if summed else jax.ShapeDtypeStruct((self.size, *y.shape), y.dtype)
            for y, summed in zip(self._output_types_of_one(self.fun, types), self.summed, strict=True)
        ]

    def _output_types_of_one(self, fun: BatchedFunction, types: Sequence[Any]) -> list[Any]:
        return fun.output_types(*(example_type(x) if m else x for x, m in zip(types, self.mapped, strict=True)))

    @property
    def read_in_place(self) -> frozenset[int]:
        return self.fun.read_in_place

    @property
    def _in_place(self) -> frozenset[int]:
        return frozenset(i for i in self.fun.read_in_place if self.mapped[i])

    @property
    def group(self) -> int:
        """How many examples run in one vmap."""
        if self.platform == "cpu" and self.fun.examples_diverge(self.mapped):
            return 1
        if self.fun.working_set_bytes is None:
            return 1 if self._in_place else self.size
        most = max(1, tuning.group_bytes(self.platform) // self.fun.working_set_bytes)
        if not isinstance(self.size, int):  # of a symbolic batch nobody knows whether a group would be full
            return 1
        # Groups of one size, if they are not much smaller: what is left over would be a program of its own.
        equal = next(n for n in range(min(self.size, most), 0, -1) if self.size % n == 0)
        return equal if 2 * equal > most else min(self.size, most)

    @property
    def platform(self) -> str:
        return self.fun.platform

    def for_platform(self, platform: str) -> BatchedFunction:
        return dataclasses.replace(self, fun=self.fun.for_platform(platform))

    def before_sums(self) -> BatchedFunction:
        return dataclasses.replace(self, fun=self.fun.before_sums())

    def with_residuals(self) -> BatchedFunction:
        return dataclasses.replace(self, fun=self.fun.with_residuals())

    def for_finite(self, examples: int = 1) -> ForFinite | None:
        finite = self.fun.for_finite(self.size * examples)
        if finite is None:
            return None
        fun, otherwise = (dataclasses.replace(self, fun=one) for one in (finite.fun, finite.otherwise))
        return ForFinite(fun, finite.holds, otherwise)

    def batch_levels(self, operands: int, outputs: int) -> BatchLevels:
        below = self.fun.batch_levels(operands, outputs)

        def own(mapped: Sequence[bool], inner: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
            return tuple((0,) * m + tuple(level + 1 for level in more) for m, more in zip(mapped, inner, strict=False))

        stacked = [not summed for summed in self.summed]
        sizes = (self.size, *below.sizes)
        inside = frozenset({(i, 0) for i in self.inside} | {(i, level + 1) for i, level in below.inside})
        return BatchLevels(sizes, own(self.mapped, below.operands), own(stacked, below.outputs), inside)

    def resized(self, *sizes: int) -> "Vmapped":
        size, *inner = sizes
        return dataclasses.replace(self, size=size, fun=self.fun.resized(*inner))

    def without_levels_of_one(self) -> BatchedFunction:
        fun = self.fun.without_levels_of_one()
        return fun if self.size == 1 else dataclasses.replace(self, fun=fun)

    @property
    def working_set_bytes(self) -> int | None:
        return times(self.group, self.fun.working_set_bytes)

    @property
    def collective(self) -> bool:
        return self.fun.collective

    @property
    def settings(self) -> Settings:
        return self.fun.settings

    @property
    def checkpoint_names(self) -> tuple[str, ...]:
        return self.fun.checkpoint_names

    @property
    def linear_argnums(self) -> frozenset[int]:
        return self.fun.linear_argnums

    @property
    def jointly_linear(self) -> tuple[frozenset[int], ...]:
        return self.fun.jointly_linear

    def examples_diverge(self, mapped: tuple[bool, ...]) -> bool:
        return self.fun.examples_diverge(mapped)

    def kernel(self, platform: str, levels: BatchLevels, avals: Sequence[Any], *, exported: bool) -> Kernel | None:
        return self.fun.kernel(platform, levels, avals, exported=exported)

    def __call__(self, *xs: Operand) -> list[jax.Array]:
        inner = self.fun
        if not isinstance(inner, Vmapped) or (self.mapped, self.summed) != (inner.mapped, inner.summed):
            return self._in_groups(self._before_sums, xs, self._in_place)
        # Batch and heads as one axis: a loop in a loop costs more than one.
        size = self.size * inner.size
        whole = dataclasses.replace(inner, size=size)
        ys = whole(*(x.reshape(size, *x.shape[2:]) if m else x for x, m in zip(xs, self.mapped, strict=True)))
        stacked = (self.size, inner.size)
        return [y if s else y.reshape(*stacked, *y.shape[1:]) for y, s in zip(ys, self.summed, strict=True)]

    def transposable(self, *xs: jax.Array) -> list[jax.Array]:
        return self._in_groups(jax.checkpoint(self._before_sums.transposable), xs)

    @property
    def _before_sums(self) -> BatchedFunction:
        return self.fun.before_sums() if any(self.summed) else self.fun

    @property
    def constant_outputs(self) -> frozenset[int]:
        return self.fun.constant_outputs

    @property
    def constant_operands(self) -> frozenset[int]:
        return self.fun.constant_operands

    def tangent_function(self, argnums: tuple[int, ...]) -> BatchedFunction | None:
        own = self.fun.tangent_function(argnums)
        if own is None:
            return None
        stacked = tuple(not summed for summed in self.summed)
        mapped = self.mapped + stacked + tuple(self.mapped[i] for i in argnums)
        summed = tuple(s for i, s in enumerate(self.summed) if i not in self.constant_outputs)
        return Vmapped(own, mapped, self.size, summed)

    def jvp_function(self, argnums: tuple[int, ...]) -> BatchedFunction | None:
        own = self.fun.jvp_function(argnums)
        if own is None:
            return None
        mapped = self.mapped + tuple(self.mapped[i] for i in argnums)
        dots = tuple(s for i, s in enumerate(self.summed) if i not in self.constant_outputs)
        return Vmapped(own, mapped, self.size, self.summed + dots)

    def derived_tangent(self, argnums: tuple[int, ...], n: int) -> BatchedFunction:
        mapped = self.mapped + tuple(self.mapped[i] for i in argnums)
        return Vmapped(self.fun.derived_tangent(argnums, n), mapped, self.size, self.summed)

    def transpose_function(
        self, argnums: tuple[int, ...], shapes: tuple[Any, ...], n: int, outputs: int
    ) -> BatchedFunction:
        one = tuple(
            (shape[1:] if self.mapped[i] else shape, dtype) for i, (shape, dtype) in zip(argnums, shapes, strict=True)
        )
        kept = tuple(mapped for i, mapped in enumerate(self.mapped) if i not in argnums)
        cts = tuple(not summed for summed in self.summed)
        fun = self.fun.transpose_function(argnums, one, n, outputs)
        return Vmapped(fun, kept + cts, self.size, tuple(not self.mapped[i] for i in argnums))

    def _in_groups(self, fun: Any, xs: Leaves, in_place: frozenset[int] = frozenset()) -> list[jax.Array]:
        # Asked where something is summed alone: the answer may take a trace.
        types = self._output_types_of_one(self.fun, list(map(_type_of, xs))) if any(self.summed) else None
        shared = [x for x, mapped in zip(xs, self.mapped, strict=True) if not mapped]
        places = tuple(i for i, mapped in enumerate(self.mapped) if mapped)
        # Of what is read in place, each example gets its number.
        examples = [jnp.arange(self.size, dtype=jnp.int32) if i in in_place else xs[i] for i in places]

        def run_one(*one: jax.Array) -> list[jax.Array]:
            own = [Example(xs[i], x) if i in in_place else x for i, x in zip(places, one, strict=True)]
            found: list[jax.Array] = fun(*insert(shared, places, own))
            if types is None:
                return found
            return [x if s else x.astype(y.dtype) for x, y, s in zip(found, types, self.summed, strict=True)]

        def run_group(examples: Leaves) -> list[jax.Array]:
            if examples[0].shape[0] == 1:
                return [y[None] for y in run_one(*(x[0] for x in examples))]
            return jax.vmap(run_one)(*examples)

        def add_up(ys: Leaves) -> tuple[list[jax.Array], list[jax.Array]]:
            pairs = list(zip(ys, self.summed, strict=True))
            return [wide(y).sum(0) for y, summed in pairs if summed], [y for y, summed in pairs if not summed]

        def wide(y: jax.Array) -> jax.Array:
            """Sums of half precision are rounded once, and not at every group."""
            return y.astype(jnp.float32) if is_half(y) else y

        groups, rest = (1, 0) if self.group == self.size else divmod(self.size, self.group)
        total: list[jax.Array] = []
        stacked: list[jax.Array] = []
        if groups != 1:
            # Of one example a group has no axis: for one of length 1, XLA copies every operand before the loop.
            alone = self.group == 1
            shape = (groups,) if alone else (groups, self.group)
            grouped = [x[: groups * self.group].reshape(*shape, *x.shape[1:]) for x in examples]

            def step(total: Leaves, group: Leaves) -> tuple[list[jax.Array], list[jax.Array]]:
                more, ys = add_up([y[None] for y in run_one(*group)] if alone else run_group(group))
                return [a + b for a, b in zip(total, more, strict=True)], [y[0] for y in ys] if alone else ys

            parts = [] if types is None else self._output_types_of_one(self._before_sums, list(map(_type_of, xs)))
            zeros = [wide(jnp.zeros(y.shape, y.dtype)) for y, s in zip(parts, self.summed, strict=False) if s]
            total, ys = jax.lax.scan(step, zeros, grouped)
            stacked = [y.reshape(groups * self.group, *y.shape[len(shape) :]) for y in ys]
        else:
            total, stacked = add_up(run_group([x[: self.group] for x in examples]))
        if rest:
            more, ys = add_up(run_group([x[-rest:] for x in examples]))
            total = [a + b for a, b in zip(total, more, strict=True)]
            stacked = [jnp.concatenate(pair) for pair in zip(stacked, ys, strict=True)]
        if types is None:
            return stacked
        sums, stacks = iter(total), iter(stacked)
        pairs = zip(types, self.summed, strict=True)
        return [next(sums).astype(y.dtype) if summed else next(stacks) for y, summed in pairs]


def batching_rule(operands: Leaves, dims: Sequence[Any], *, fun: BatchedFunction) -> tuple[list[Any], list[int]]:
    operands, mapped, size = examples_first(operands, dims)
    out = abstract(
        *(example_type(jax.typeof(x)) if m else jax.typeof(x) for x, m in zip(operands, mapped, strict=True)), fun=fun
    )
    if size == 0:
        return [jnp.zeros((0, *y.shape), y.dtype) for y in out], [0] * len(out)
    inside = frozenset(i for i, d in enumerate(dims) if d)
    return batched_call(Vmapped(fun, mapped, size, (False,) * len(out), inside), *operands), [0] * len(out)


def examples_first(operands: Leaves, dims: Sequence[Any]) -> tuple[list[Any], tuple[bool, ...], int]:
    """The operands with their examples along the leading axis, which of them are mapped, and the number of examples."""
    mapped = tuple(d is not None for d in dims)
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    with _errors.only_moved():
        operands = [jnp.moveaxis(x, d, 0) if d else x for x, d in zip(operands, dims, strict=True)]
    return operands, mapped, size


def example_type(aval: Any) -> Any:
    """The type of one example of those along the leading axis."""
    spec = jax.sharding.PartitionSpec(*aval.sharding.spec[1:])
    return aval.update(shape=aval.shape[1:], sharding=aval.sharding.update(spec=spec))


batching.primitive_batchers[batched_call_p] = batching_rule
