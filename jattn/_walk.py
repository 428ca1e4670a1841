"""Words: a function whose batch is walked.

`jax.vmap` turns a loop over tiles into a loop over batched tiles. For attention that is the wrong loop
inside: the working set of one step grows by the size of the batch until no cache holds it, a `cond` that
skips a tile becomes a `select` that computes it, and bounds that differ between examples are all the
largest. `walk(fun)(*operands)` is `fun(*operands)` with one difference: mapped by vmap it runs a few
examples at a time, one group after another, and inside a group of one everything is as it was.

Nothing else changes. It has every derivative of `fun`, in both modes and to every order:

    jvp          one more walk, of the tangent function, linear in the tangents
    transpose    one more walk, of its transpose

both derived by JAX, or the ones that `fun` brings along.

This is the "linear map with an explicit transpose" that `jax.custom_derivatives.linear_call` offers, with
the batching rule and the higher orders that it lacks. A function to be walked is a hashable value (a frozen
dataclass with `__call__`), so that equal calls are compiled once.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Leaves = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Walkable:
    """A function of arrays to a list of arrays, hashable, with what `walk` has to know of it."""

    @property
    def bytes(self) -> int:
        """The working set of one call: how many run side by side is `_BUDGET` over this."""
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

    @property
    def names(self) -> tuple[str, ...]:
        """What the outputs are called by `jax.checkpoint` and its policies; nothing, where it is empty."""
        return ()

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
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

    def transposed(self, over: tuple[int, ...], shapes: tuple[Any, ...], n: int, outputs: int) -> "Walkable":
        """(operands but those at `over`, cotangents of the outputs) → cotangents of the operands at `over`.

        `shapes` holds (shape, dtype) of those at `over`; `n` counts the operands, `outputs` the outputs.
        """
        return Transposed(self, over, shapes, n, outputs)


def walk(fun: Walkable, *operands: Any) -> list[jax.Array]:
    """`fun(*operands)`, one group of examples at a time where it is mapped."""
    return walk_p.bind(*alike(*map(jnp.asarray, operands)), fun=fun)


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


walk_p = Primitive("walk")
walk_p.multiple_results = True
walk_p.def_impl(lambda *xs, fun: _run(fun, *xs))


def _abstract(*avals: Any, fun: Walkable) -> list[Any]:
    out = jax.make_jaxpr(partial(_run, fun))(*(avals if fun.collective else map(_alone, avals))).out_avals
    return [y.update(manual_axis_type=avals[0].manual_axis_type) for y in out]


def _alone(aval: Any) -> Any:
    """A type as one device sees it, on which values cannot vary."""
    return aval.update(manual_axis_type=jax.sharding.ManualAxisType())


def _lower(ctx: Any, *xs: Any, fun: Walkable) -> Any:
    if not fun.collective:
        ctx = ctx.replace(avals_in=[*map(_alone, ctx.avals_in)], avals_out=[*map(_alone, ctx.avals_out)])
    return mlir.lower_fun(lambda *xs: _run(fun, *xs), multiple_results=True)(ctx, *xs)


walk_p.def_abstract_eval(_abstract)
mlir.register_lowering(walk_p, _lower)


# Derivatives.


@dataclasses.dataclass(frozen=True)
class Tangent(Walkable):
    """(operands, tangents of those at `over`) → tangents of the outputs."""

    fun: Walkable
    over: tuple[int, ...]
    n: int

    @property
    def bytes(self) -> int:
        return 2 * self.fun.bytes

    @property
    def collective(self) -> bool:
        return self.fun.collective

    @property
    def linear(self) -> frozenset[int]:
        return frozenset(range(self.n, self.n + len(self.over)))

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return _jvp(self.fun, self.over, xs[: self.n], xs[self.n :])

    def smooth(self, *xs: jax.Array) -> list[jax.Array]:
        return _jvp(self.fun.smooth, self.over, xs[: self.n], xs[self.n :])


@dataclasses.dataclass(frozen=True)
class Transposed(Walkable):
    """(operands but those at `over`, cotangents) → cotangents of the operands at `over`, derived by JAX."""

    fun: Walkable
    over: tuple[int, ...]
    shapes: tuple[Any, ...]
    n: int
    outputs: int

    @property
    def bytes(self) -> int:
        return 2 * self.fun.bytes

    @property
    def collective(self) -> bool:
        return self.fun.collective

    @property
    def linear(self) -> frozenset[int]:
        kept = self.n - len(self.over)
        return frozenset(range(kept, kept + self.outputs))

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        kept, cts = xs[: -self.outputs], xs[-self.outputs :]
        zeros = alike(cts[0], *(jnp.zeros(shape, dtype) for shape, dtype in self.shapes))[1:]
        _, pull = jax.vjp(lambda *moved: self.fun.smooth(*_insert(kept, self.over, moved)), *zeros)
        return list(pull(list(cts)))


def _jvp(fun: Any, over: tuple[int, ...], primals: Leaves, tangents: Leaves) -> list[jax.Array]:
    rest = [x for i, x in enumerate(primals) if i not in over]
    return jax.jvp(lambda *moved: fun(*_insert(rest, over, moved)), [primals[i] for i in over], list(tangents))[1]


def _insert(rest: Leaves, over: tuple[int, ...], xs: Leaves) -> list[Any]:
    """`rest` with `xs` put back at the places `over`."""
    full = list(rest)
    for i, x in zip(over, xs, strict=True):
        full.insert(i, x)
    return full


def _jvp_rule(primals: Leaves, tangents: Leaves, *, fun: Walkable) -> tuple[list[Any], list[Any]]:
    out = walk(fun, *primals)
    if fun.names:
        out = [checkpoint_name(y, name) for y, name in zip(out, fun.names, strict=True)]
    over = tuple(i for i, t in enumerate(tangents) if type(t) is not ad.Zero)
    if set(over) <= fun.linear:  # then its derivative is itself
        moved = [ad.instantiate_zeros(tangents[i]) if i in fun.linear else x for i, x in enumerate(primals)]
        return out, walk(fun, *moved)
    dots = [tangents[i] for i in over]
    own = fun.tangent(over)
    if own is None:
        return out, walk(Tangent(fun, over, len(primals)), *primals, *dots)
    moving = iter(walk(own, *primals, *out, *dots))
    return out, [ad.Zero(jax.typeof(y)) if i in fun.constant else next(moving) for i, y in enumerate(out)]


def _transpose_rule(cts: Leaves, *operands: Any, fun: Walkable) -> list[Any]:
    over = tuple(i for i, x in enumerate(operands) if ad.is_undefined_primal(x))
    avals = [operands[i].aval for i in over]
    shapes = tuple((a.shape, a.dtype) for a in avals)
    kept = [x for x in operands if not ad.is_undefined_primal(x)]
    transposed = fun.transposed(over, shapes, len(operands), len(cts))
    out = iter(walk(transposed, *kept, *map(ad.instantiate_zeros, cts)))
    return [next(out) if i in over else None for i in range(len(operands))]


ad.primitive_jvps[walk_p] = _jvp_rule
ad.primitive_transposes[walk_p] = _transpose_rule


# Batches.


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
        if self.fun.apart(self.mapped) and jax.default_backend() == "cpu":
            return 1
        return max(1, min(self.size, _budget() // max(1, self.fun.bytes)))

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
            if len(examples[0]) == 1:
                return [y[None] for y in fun(*_insert(shared, places, [x[0] for x in examples]))]
            return jax.vmap(lambda *one: fun(*_insert(shared, places, one)))(*examples)

        def add_up(ys: Leaves) -> tuple[list[jax.Array], list[jax.Array]]:
            pairs = list(zip(ys, self.summed, strict=True))
            return [y.sum(0) for y, summed in pairs if summed], [y for y, summed in pairs if not summed]

        groups, rest = divmod(self.size, self.group)
        total: list[jax.Array] = []
        stacked: list[jax.Array] = []
        if groups > 1:
            grouped = [x[: groups * self.group].reshape(groups, self.group, *x.shape[1:]) for x in examples]

            def step(total: Leaves, group: Leaves) -> tuple[list[jax.Array], list[jax.Array]]:
                more, ys = add_up(side_by_side(group))
                return [a + b for a, b in zip(total, more, strict=True)], ys

            first = jax.eval_shape(lambda g: add_up(side_by_side(g))[0], [x[0] for x in grouped])
            total, ys = jax.lax.scan(step, [jnp.zeros(x.shape, x.dtype) for x in first], grouped)
            stacked = [y.reshape(-1, *y.shape[2:]) for y in ys]
        elif groups == 1:
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
    out = _abstract(
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


def _budget() -> int:
    """Bytes of working set that may be in flight. A CPU core must find them in its caches; an accelerator
    wants every unit busy, and its memory is the only bound."""
    return 3 * 2**20 if jax.default_backend() == "cpu" else 2**30
