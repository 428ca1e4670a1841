"""The primitive of a batched call, and how it becomes a program."""

import contextlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jattn._jax import ManualAxisType, Primitive, about_triton, asks_for_devices, mlir
from jattn._numerics import match_varying_axes
from jattn.engine.batching.function import BatchedFunction, FiniteKernel, Kernel, Leaves, run_jitted, traced_types
from jattn.engine.batching.partition import BatchLevels, partitioned


def batched_call(fun: BatchedFunction, *operands: Any) -> list[jax.Array]:
    """`fun(*operands)`, one group of examples at a time where it is mapped."""
    return batched_call_p.bind(*checked_operands(fun, operands), fun=fun)


def checked_operands(fun: BatchedFunction, operands: Leaves) -> list[jax.Array]:
    """The operands as arrays that vary over the same axes, sharded as a batch can be."""
    xs = match_varying_axes(*(x if isinstance(x, jax.Array) else jnp.asarray(x) for x in operands))
    fun.batch_levels(len(xs), 0).check([jax.typeof(x) for x in xs])
    return xs


def _evaluate(fun: BatchedFunction, levels: BatchLevels, *xs: Any) -> list[jax.Array]:
    """The function, in the form for finite operands where they are found to be: one decision for the whole batch.

    A level of one example has no axis in it: in a loop over another level XLA would copy every operand for that.
    """
    fun = fun.without_levels_of_one()
    xs = tuple(jax.lax.squeeze(x, levels.axes_of_one(own)) for x, own in zip(xs, levels.operands, strict=True))
    finite = fun.for_finite()
    if finite is None:
        ys = run_jitted(fun, *xs)
    else:
        either = partial(run_jitted, finite.fun), partial(run_jitted, finite.otherwise)
        ys = jax.lax.cond(finite.holds(*xs), *either, *xs)
    return [jnp.expand_dims(y, levels.axes_of_one(own)) for y, own in zip(ys, levels.outputs, strict=True)]


def _run_kernel(kernel: Kernel, fun: BatchedFunction, *xs: Any) -> list[jax.Array]:
    """A kernel; of one for finite operands its results where they are, and those of the loops elsewhere.

    It runs in either case: outside of the choice, a backward pass shares what it computes with the forward pass.
    """
    if not isinstance(kernel, FiniteKernel):
        return list(kernel(*xs))
    ys = kernel.run(*xs)

    def loops(*xs: Any) -> list[jax.Array]:
        return run_jitted(fun, *kernel.ordered(xs))

    # In the order of memory they are passed without a copy: the loops alone make one.
    return list(jax.lax.cond(kernel.holds(xs, ys), lambda *_: ys, loops, *kernel.in_memory_order(xs)))


@partial(jax.jit, static_argnames="fun")
def _compiled(*xs: Any, fun: BatchedFunction) -> list[jax.Array]:
    if not any(isinstance(x, jax.core.Tracer) for x in xs):
        # jax.disable_jit; or jax.debug_nans found a NaN, and calls what was compiled once more, operation by operation.
        with fun.settings.hold():
            return fun.for_platform(jax.default_backend())(*xs)
    return batched_call_p.bind(*xs, fun=fun)


batched_call_p: Primitive = Primitive("batched_call")
batched_call_p.multiple_results = True
batched_call_p.def_impl(_compiled)


def abstract(*avals: Any, fun: BatchedFunction) -> list[Any]:
    """The types of the outputs, given those of the operands."""
    first = avals[0]
    if fun.collective:
        return [y.update(manual_axis_type=first.manual_axis_type) for y in traced_types(fun, *avals)]
    out = fun.output_types(*map(_unbatched_type, avals))
    specs = fun.batch_levels(len(avals), len(out)).specs(avals)
    return [
        first.update(shape=y.shape, dtype=y.dtype, weak_type=False, sharding=first.sharding.update(spec=spec))
        for y, spec in zip(out, specs, strict=True)
    ]


def _unbatched_type(aval: Any) -> Any:
    """A type as one device sees it, on which values cannot vary, and which holds all of an array."""
    spec = jax.sharding.PartitionSpec(*[None] * len(aval.shape))
    return aval.update(manual_axis_type=ManualAxisType(), sharding=aval.sharding.update(spec=spec))


def lower(ctx: Any, *xs: Any, fun: BatchedFunction, platform: str) -> Any:
    """The call as a program, under the settings of where it was called: it is lowered when a block has been left that
    set the precision of products, or `jax.enable_x64`."""
    with fun.settings.hold():
        return _lower(ctx, *xs, fun=fun.for_platform(platform), platform=platform)


def _lower(ctx: Any, *xs: Any, fun: BatchedFunction, platform: str) -> Any:
    if not fun.collective:
        avals_in, avals_out = (list(map(_unbatched_type, avals)) for avals in (ctx.avals_in, ctx.avals_out))
        ctx = ctx.replace(avals_in=avals_in, avals_out=avals_out)
    levels = fun.batch_levels(len(xs), len(ctx.avals_out))
    exported = ctx.module_context.lowering_parameters.for_export
    whole = fun.kernel(platform, levels, ctx.avals_in, exported=exported)

    def of_sizes(*sizes: int) -> Any:
        """The function of so many examples: all of them, or the share of one device."""
        share, here = fun.resized(*sizes), levels._replace(sizes=sizes)
        if whole is None:
            return partial(_evaluate, share, here)
        if sizes == levels.sizes:
            return partial(_run_kernel, whole, share)

        def run(*xs: Any) -> list[jax.Array]:
            avals = [jax.typeof(x) for x in xs]
            kernel = share.kernel(platform, here, avals, exported=exported)
            return _evaluate(share, here, *xs) if kernel is None else _run_kernel(kernel, share, *xs)

        return run

    run = of_sizes(*levels.sizes)
    if levels.sizes and not fun.collective:
        run = partitioned(of_sizes, levels, ctx.module_context)
    with about_triton() if whole is not None and platform == "gpu" else contextlib.nullcontext():
        return mlir.lower_fun(run, multiple_results=True)(ctx, *xs)


batched_call_p.def_abstract_eval(abstract)
# A program may be lowered for several platforms at once, to be exported: each gets its own form.
mlir.register_lowering(batched_call_p, partial(lower, platform="gpu"))
mlir.register_lowering(batched_call_p, partial(lower, platform="cpu"), platform="cpu")
mlir.register_lowering(batched_call_p, partial(lower, platform="tpu"), platform="tpu")
# The rule asks which devices there are, so that each runs its own examples (`partition`).
asks_for_devices(batched_call_p)
