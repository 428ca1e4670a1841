"""The primitive: a function to be walked, its derivatives, and how it becomes a program."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jattn._jax import ManualAxisType, Primitive, ad, asks_for_devices, mlir
from jattn._walk._shards import Levels, kept_apart

Leaves = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Walkable:
    """A function of arrays to a list of arrays, hashable, with what `walk` has to know of it."""

    @property
    def platform(self) -> str:
        """What it is to run on: "cpu", "tpu" or "gpu", as `jax.default_backend` calls them."""
        return jax.default_backend()

    def for_platform(self, platform: str) -> "Walkable":
        """The same function, in the form that suits a platform. Asked where a program is lowered for one."""
        return self

    @property
    def bytes(self) -> int:
        """The working set of one call: as many run side by side as the budget of `Mapped` holds; 0 for no bound."""
        return 0

    @property
    def linear(self) -> frozenset[int]:
        """The operands that the function is jointly linear in."""
        return frozenset()

    def apart(self, mapped: tuple[bool, ...]) -> bool:
        """Whether examples that differ in these operands do different work: side by side each would do all of it."""
        return False

    @property
    def collective(self) -> bool:
        """Whether it speaks to other devices. One that does not is traced as if there were none."""
        return False

    def levels(self, operands: int, outputs: int) -> Levels:
        """How it is mapped, given how many operands it has, and how many of its outputs are asked about."""
        return Levels((), ((),) * operands, ((),) * outputs)

    def resized(self, *sizes: int) -> "Walkable":
        """The same function of as many examples as this, level by level."""
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """What the outputs are called by `jax.checkpoint` and its policies; nothing, where it is empty."""
        return ()

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        """The function. Each class has its own."""
        raise NotImplementedError

    def smooth(self, *xs: jax.Array) -> list[jax.Array]:
        """The same function, in a form that JAX can transpose: loops of static length, nothing kept in a carry."""
        return self(*xs)

    @property
    def constant(self) -> frozenset[int]:
        """The outputs that have no tangent."""
        return frozenset()

    def tangent(self, over: tuple[int, ...]) -> "Walkable | None":
        """(operands, outputs, tangents of the operands at `over`) → tangents of the outputs but the constant ones.

        None where the function brings none along, and JAX is to derive it.
        """
        return None

    def derived(self, over: tuple[int, ...], n: int) -> "Walkable":
        """(operands, tangents of those at `over`) → tangents of the outputs, derived by JAX."""
        return Tangent(self, over, n)

    def transposed(self, over: tuple[int, ...], shapes: tuple[Any, ...], n: int, outputs: int) -> "Walkable":
        """(operands but those at `over`, cotangents of the outputs) → cotangents of the operands at `over`.

        `shapes` holds (shape, dtype) of those at `over`; `n` counts the operands, `outputs` the outputs.
        """
        return Transposed(self, over, n, shapes, outputs)


def walk(fun: Walkable, *operands: Any) -> list[jax.Array]:
    """`fun(*operands)`, one group of examples at a time where it is mapped."""
    xs = alike(*(x if isinstance(x, jax.Array) else jnp.asarray(x) for x in operands))
    fun.levels(len(xs), 0).check([jax.typeof(x) for x in xs])
    return walk_p.bind(*xs, fun=fun)


def alike(*xs: jax.Array) -> list[jax.Array]:
    """Inside `jax.shard_map`: the arrays, each varying over all axes that any of them varies over.

    An operand that is the same on all devices has a cotangent that is a sum over them. Cast here, it is summed once and
    by all; cast where it is used, in a branch that only some devices take, the others would be waited for for ever.
    """
    types = [jax.typeof(x).manual_axis_type.varying for x in xs]
    every = frozenset().union(*types)
    missing = [tuple(sorted(every - t, key=str)) for t in types]
    return [jax.lax.pcast(x, m, to="varying") if m else x for x, m in zip(xs, missing, strict=True)]


@partial(jax.jit, static_argnums=0)
def _run(fun: Walkable, *xs: Any) -> list[jax.Array]:
    return fun(*xs)


@partial(jax.jit, static_argnums=0)
def _compiled(fun: Walkable, *xs: Any) -> list[jax.Array]:
    if not any(isinstance(x, jax.core.Tracer) for x in xs):
        # jax.disable_jit; or jax.debug_nans found a NaN, and calls what was compiled once more, operation by operation.
        return fun.for_platform(jax.default_backend())(*xs)
    return walk_p.bind(*xs, fun=fun)


walk_p = Primitive("walk")
walk_p.multiple_results = True
walk_p.def_impl(lambda *xs, fun: _compiled(fun, *xs))


def abstract(*avals: Any, fun: Walkable) -> list[Any]:
    """The types of the outputs, given those of the operands."""
    out = jax.make_jaxpr(partial(_run, fun))(*(avals if fun.collective else map(_alone, avals))).out_avals
    if not fun.collective:
        specs = fun.levels(len(avals), len(out)).specs(avals)
        out = [y.update(sharding=avals[0].sharding.update(spec=spec)) for y, spec in zip(out, specs, strict=True)]
    return [y.update(manual_axis_type=avals[0].manual_axis_type) for y in out]


def _alone(aval: Any) -> Any:
    """A type as one device sees it, on which values cannot vary, and which holds all of an array."""
    spec = jax.sharding.PartitionSpec(*[None] * len(aval.shape))
    return aval.update(manual_axis_type=ManualAxisType(), sharding=aval.sharding.update(spec=spec))


def _lower(ctx: Any, *xs: Any, fun: Walkable, platform: str) -> Any:
    fun = fun.for_platform(platform)
    if not fun.collective:
        ctx = ctx.replace(avals_in=[*map(_alone, ctx.avals_in)], avals_out=[*map(_alone, ctx.avals_out)])
    run: Any = partial(_run, fun)
    levels = fun.levels(len(xs), len(ctx.avals_out))
    if levels.sizes and not fun.collective:
        run = kept_apart(lambda *sizes: partial(_run, fun.resized(*sizes)), levels, ctx.module_context)
    return mlir.lower_fun(run, multiple_results=True)(ctx, *xs)


walk_p.def_abstract_eval(abstract)
# A program may be lowered for several platforms at once, to be exported: each gets its own form.
mlir.register_lowering(walk_p, partial(_lower, platform="gpu"))
mlir.register_lowering(walk_p, partial(_lower, platform="cpu"), platform="cpu")
mlir.register_lowering(walk_p, partial(_lower, platform="tpu"), platform="tpu")
# The rule asks which devices there are, to keep examples apart (`_shards`).
asks_for_devices(walk_p)


# Derivatives.


@dataclasses.dataclass(frozen=True)
class _Derived(Walkable):
    """What JAX derives of `fun`, with respect to the operands at `over` of its `n`."""

    fun: Walkable
    over: tuple[int, ...]
    n: int

    @property
    def platform(self) -> str:
        return self.fun.platform

    def for_platform(self, platform: str) -> Walkable:
        return dataclasses.replace(self, fun=self.fun.for_platform(platform))

    @property
    def bytes(self) -> int:
        return 2 * self.fun.bytes

    @property
    def collective(self) -> bool:
        return self.fun.collective


@dataclasses.dataclass(frozen=True)
class Tangent(_Derived):
    """(operands, tangents of those at `over`) → tangents of the outputs."""

    @property
    def linear(self) -> frozenset[int]:
        return frozenset(range(self.n, self.n + len(self.over)))

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return _jvp(self.fun, self.over, xs[: self.n], xs[self.n :])

    def smooth(self, *xs: jax.Array) -> list[jax.Array]:
        return _jvp(self.fun.smooth, self.over, xs[: self.n], xs[self.n :])


@dataclasses.dataclass(frozen=True)
class Transposed(_Derived):
    """(operands but those at `over`, cotangents) → cotangents of the operands at `over`."""

    shapes: tuple[Any, ...]
    outputs: int

    @property
    def linear(self) -> frozenset[int]:
        kept = self.n - len(self.over)
        return frozenset(range(kept, kept + self.outputs))

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        kept, cts = xs[: -self.outputs], xs[-self.outputs :]
        zeros = alike(cts[0], *(jnp.zeros(shape, dtype) for shape, dtype in self.shapes))[1:]
        _, pull = jax.vjp(lambda *moved: self.fun.smooth(*insert(kept, self.over, moved)), *zeros)
        return list(pull(list(cts)))


def _jvp(fun: Any, over: tuple[int, ...], primals: Leaves, tangents: Leaves) -> list[jax.Array]:
    rest = [x for i, x in enumerate(primals) if i not in over]
    return jax.jvp(lambda *moved: fun(*insert(rest, over, moved)), [primals[i] for i in over], list(tangents))[1]


def insert(rest: Leaves, over: tuple[int, ...], xs: Leaves) -> list[Any]:
    """`rest` with `xs` put back at the places `over`."""
    full = list(rest)
    for i, x in zip(over, xs, strict=True):
        full.insert(i, x)
    return full


def _instantiated(x: Any) -> Any:
    return _zeros(x.aval) if type(x) is ad.Zero else x


@partial(jax.jit, static_argnums=0, inline=True)
def _zeros(aval: Any) -> jax.Array:
    """A program without arguments: made eagerly, zeros would be moved to the device, which a transfer guard minds."""
    return ad.instantiate_zeros(ad.Zero(aval))


def _jvp_rule(primals: Leaves, tangents: Leaves, *, fun: Walkable) -> tuple[list[Any], list[Any]]:
    out = walk(fun, *primals)
    if fun.names:
        out = [checkpoint_name(y, name) for y, name in zip(out, fun.names, strict=True)]
    over = tuple(i for i, t in enumerate(tangents) if type(t) is not ad.Zero)
    if set(over) <= fun.linear:  # then its derivative is itself
        moved = [_instantiated(tangents[i]) if i in fun.linear else x for i, x in enumerate(primals)]
        return out, walk(fun, *moved)
    dots = [tangents[i] for i in over]
    own = fun.tangent(over)
    if own is None:
        return out, walk(fun.derived(over, len(primals)), *primals, *dots)
    moving = iter(walk(own, *primals, *out, *dots))
    return out, [ad.Zero(jax.typeof(y)) if i in fun.constant else next(moving) for i, y in enumerate(out)]


def _transpose_rule(cts: Leaves, *operands: Any, fun: Walkable) -> list[Any]:
    over = tuple(i for i, x in enumerate(operands) if ad.is_undefined_primal(x))
    avals = [operands[i].aval for i in over]
    shapes = tuple((a.shape, a.dtype) for a in avals)
    kept = [x for x in operands if not ad.is_undefined_primal(x)]
    transposed = fun.transposed(over, shapes, len(operands), len(cts))
    out = iter(walk(transposed, *kept, *map(_instantiated, cts)))
    return [next(out) if i in over else None for i in range(len(operands))]


ad.primitive_jvps[walk_p] = _jvp_rule
ad.primitive_transposes[walk_p] = _transpose_rule
