"""The functions that a batched call calls: what it asks of them, and those that JAX derives."""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jattn._numerics import Settings, match_varying_axes
from jattn.engine.batching.partition import BatchLevels

Leaves = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class BatchedFunction:
    """A function of arrays to a list of arrays, hashable, with what `batched_call` has to know of it."""

    @property
    def platform(self) -> str:
        """What it is to run on: "cpu", "tpu" or "gpu", as `jax.default_backend` calls them."""
        return jax.default_backend()

    def for_platform(self, platform: str) -> "BatchedFunction":
        """The same function, in the form that suits a platform. Asked where a program is lowered for one."""
        return self

    def output_types(self, *types: Any) -> list[Any]:
        """What has the shapes and dtypes of the outputs, given the types of the operands.

        Asked wherever a call is traced: a class that knows the answer spares a trace of the whole function.
        """
        return traced_types(self, *types)

    def before_sums(self) -> "BatchedFunction":
        """The same function, whose results are summed over examples and rounded after that."""
        return self

    def with_residuals(self) -> "BatchedFunction":
        """The same function, all of whose outputs a derivative reads."""
        return self

    @property
    def working_set_bytes(self) -> int | None:
        """The working set of one call: `tuning.group_bytes` holds that of a group of examples; None for no limit."""
        return None

    @property
    def linear_argnums(self) -> frozenset[int]:
        """The operands that the function is jointly linear in."""
        return frozenset()

    @property
    def jointly_linear(self) -> tuple[frozenset[int], ...]:
        """Sets of operands in each of which the function is linear, up to what is added, where all others are given."""
        return (self.linear_argnums,)

    def examples_diverge(self, mapped: tuple[bool, ...]) -> bool:
        """Whether examples that differ in these operands do different work: in one group each would do all of it."""
        return False

    @property
    def read_in_place(self) -> frozenset[int]:
        """The operands of which the function cuts what it needs (`slice_of`).

        Of a batch it gets an `Example`: taken out of the batch, each would be copied whole.
        """
        return frozenset()

    def for_finite(self, examples: int = 1) -> "ForFinite | None":
        """The form for operands that are finite, where it is faster for them. `examples`: how many there are in all."""
        return None

    @property
    def collective(self) -> bool:
        """Whether it communicates with other devices. One that does not is traced as if there were none."""
        return False

    @property
    def settings(self) -> Settings:
        """Those of where it is lowered, unless a class knows those of where it was called."""
        return Settings.here()

    def batch_levels(self, operands: int, outputs: int) -> BatchLevels:
        """How it is mapped, given how many operands it has, and how many of its outputs are asked about."""
        return BatchLevels((), ((),) * operands, ((),) * outputs)

    def resized(self, *sizes: int) -> "BatchedFunction":
        """The same function of batches of these sizes, level by level."""
        return self

    def without_levels_of_one(self) -> "BatchedFunction":
        """The same function, mapped over no batch of one example."""
        return self

    @property
    def checkpoint_names(self) -> tuple[str, ...]:
        """The names of the outputs for policies of `jax.checkpoint`; empty where they have none."""
        return ()

    def kernel(self, platform: str, levels: BatchLevels, avals: Sequence[Any], *, exported: bool) -> "Kernel | None":
        """The function over all `levels` as kernels of a platform; None where it runs as loops.

        A `FiniteKernel` is one for finite operands alone. `exported`: whether the program is to be read again.
        Raises where the caller asked for a kernel and there is none.
        """
        choose = self.choose_kernel
        return None if choose is None else choose(platform, levels, avals, exported=exported)

    choose_kernel: ClassVar[Callable[..., Any] | None] = None
    """choose(platform, levels, avals, exported=...), which `has_kernels` declares."""

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        """The function. Each class has its own."""
        raise NotImplementedError

    def transposable(self, *xs: jax.Array) -> list[jax.Array]:
        """The same function, in a form that JAX can transpose: loops of static length, nothing kept in a carry."""
        return self(*xs)

    @property
    def constant_outputs(self) -> frozenset[int]:
        """The outputs that have no tangent."""
        return frozenset()

    @property
    def constant_operands(self) -> frozenset[int]:
        """The operands whose tangents are 0 in every call, so that `tangent_function` knows nothing of them."""
        return frozenset()

    def tangent_function(self, argnums: tuple[int, ...]) -> "BatchedFunction | None":
        """(operands, outputs, tangents of the operands at argnums) → tangents of the outputs but the constant ones.

        None where the function has no rule of its own, and JAX derives it.
        """
        return None

    def jvp_function(self, argnums: tuple[int, ...]) -> "BatchedFunction | None":
        """(operands, tangents of those at argnums) → outputs, then what `tangent_function` returns.

        None where both at once are not faster than one after the other.
        """
        return None

    def derived_tangent(self, argnums: tuple[int, ...], n: int) -> "BatchedFunction":
        """(operands, tangents of those at argnums) → tangents of the outputs, derived by JAX."""
        return DerivedTangent(self, argnums, n)

    def transpose_function(
        self, argnums: tuple[int, ...], shapes: tuple[Any, ...], n: int, outputs: int
    ) -> "BatchedFunction":
        """(operands but those at argnums, cotangents of the outputs) → cotangents of the operands at argnums.

        `shapes` holds (shape, dtype) of those at argnums; `n` counts the operands, `outputs` the outputs.
        """
        return DerivedTranspose(self, argnums, n, shapes, outputs)


class ForFinite(NamedTuple):
    """The same function for operands that are finite, whether those of a whole batch are, and that for all others."""

    fun: BatchedFunction
    holds: Callable[..., jax.Array]
    otherwise: BatchedFunction


class FiniteKernel(NamedTuple):
    """A kernel for operands that are finite, and whether those of a whole batch are; the others run as loops.

    That is asked of all operands and of what the kernel made of them: holds(xs, ys).
    """

    run: Callable[..., list[jax.Array]]
    holds: Callable[..., jax.Array]
    in_memory_order: Callable[[Leaves], Leaves] = list
    """The operands with their axes in the order of memory, where the loops alone need them in another order."""
    ordered: Callable[[Leaves], Leaves] = list
    """Back again: xs = ordered(in_memory_order(xs))."""


Kernel: TypeAlias = Callable[..., list[jax.Array]] | FiniteKernel


def has_kernels(kind: type[BatchedFunction], choose: Callable[..., Any]) -> None:
    """Declares how functions of a kind find their kernels: choose(function, platform, levels, avals, exported=...)."""
    kind.choose_kernel = choose


class Linear(BatchedFunction):
    """A pass that is linear in its last operands, and whose transpose in all of them is known as another such pass.

    The two passes have the same fields (`are_transposes` declares them).
    """

    transpose_pass: ClassVar[type]

    @property
    def nonlinear_operands(self) -> int:
        """How many operands come before those that it is linear in. Each class has its own."""
        raise NotImplementedError

    @property
    def linear_operands(self) -> int:
        """How many those are. Each class has its own."""
        raise NotImplementedError

    @property
    def linear_argnums(self) -> frozenset[int]:
        return frozenset(range(self.nonlinear_operands, self.nonlinear_operands + self.linear_operands))

    def transpose_function(self, argnums: tuple[int, ...], *sizes: Any) -> BatchedFunction:
        if set(argnums) == self.linear_argnums:
            fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
            return self.transpose_pass(**fields)
        return super().transpose_function(argnums, *sizes)


def are_transposes(a: type[Linear], b: type[Linear]) -> None:
    """Declares two passes to be the transposes of each other."""
    a.transpose_pass, b.transpose_pass = b, a


run_jitted = jax.jit(operator.call, static_argnums=0)  # (fun, *operands)


def traced_types(fun: BatchedFunction, *types: Any) -> list[Any]:
    with fun.settings.hold():
        return list(jax.make_jaxpr(partial(run_jitted, fun))(*types).out_avals)


# What JAX derives.


@dataclasses.dataclass(frozen=True)
class _Derived(BatchedFunction):
    """What JAX derives of `fun`, with respect to the operands at argnums of its `n`."""

    fun: BatchedFunction
    argnums: tuple[int, ...]
    n: int

    @property
    def platform(self) -> str:
        return self.fun.platform

    def for_platform(self, platform: str) -> BatchedFunction:
        return dataclasses.replace(self, fun=self.fun.for_platform(platform))

    @property
    def working_set_bytes(self) -> int | None:
        return times(2, self.fun.working_set_bytes)

    @property
    def collective(self) -> bool:
        return self.fun.collective

    @property
    def settings(self) -> Settings:
        return self.fun.settings


@dataclasses.dataclass(frozen=True)
class DerivedTangent(_Derived):
    """(operands, tangents of those at argnums) → tangents of the outputs."""

    @property
    def linear_argnums(self) -> frozenset[int]:
        return frozenset(range(self.n, self.n + len(self.argnums)))

    @property
    def jointly_linear(self) -> tuple[frozenset[int], ...]:
        tangents = {i: self.n + at for at, i in enumerate(self.argnums)}
        others = (xs | {tangents[i] for i in xs & tangents.keys()} for xs in self.fun.jointly_linear)
        return (self.linear_argnums, *others)

    def output_types(self, *types: Any) -> list[Any]:
        return self.fun.output_types(*types[: self.n])

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return _jvp(self.fun, self.argnums, xs[: self.n], xs[self.n :])

    def transposable(self, *xs: jax.Array) -> list[jax.Array]:
        return _jvp(self.fun.transposable, self.argnums, xs[: self.n], xs[self.n :])


@dataclasses.dataclass(frozen=True)
class DerivedTranspose(_Derived):
    """(operands but those at argnums, cotangents) → cotangents of the operands at argnums."""

    shapes: tuple[Any, ...]
    outputs: int

    @property
    def linear_argnums(self) -> frozenset[int]:
        kept = self.n - len(self.argnums)
        return frozenset(range(kept, kept + self.outputs))

    @property
    def jointly_linear(self) -> tuple[frozenset[int], ...]:
        kept = [i for i in range(self.n) if i not in self.argnums]
        others = (frozenset(at for at, i in enumerate(kept) if i in xs) for xs in self.fun.jointly_linear)
        return (self.linear_argnums, *others)

    def output_types(self, *types: Any) -> list[Any]:
        return [jax.ShapeDtypeStruct(*of_one) for of_one in self.shapes]

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        kept, cts = xs[: -self.outputs], xs[-self.outputs :]
        zeros = match_varying_axes(cts[0], *(jnp.zeros(shape, dtype) for shape, dtype in self.shapes))[1:]
        _, pullback = jax.vjp(lambda *active: self.fun.transposable(*insert(kept, self.argnums, active)), *zeros)
        return list(pullback(list(cts)))


def _jvp(fun: Any, argnums: tuple[int, ...], primals: Leaves, tangents: Leaves) -> list[jax.Array]:
    rest = [x for i, x in enumerate(primals) if i not in argnums]
    active = [primals[i] for i in argnums]
    return jax.jvp(lambda *active: fun(*insert(rest, argnums, active)), active, list(tangents))[1]


def insert(rest: Leaves, argnums: tuple[int, ...], xs: Leaves) -> list[Any]:
    """`rest` with `xs` put back at the places `argnums`."""
    full = list(rest)
    for i, x in zip(argnums, xs, strict=True):
        full.insert(i, x)
    return full


def times(n: int, size: int | None) -> int | None:
    """n times a working set; no limit stays no limit."""
    return None if size is None else n * size
