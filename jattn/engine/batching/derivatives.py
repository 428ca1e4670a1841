"""The derivatives of a batched call: its jvp, which may be one program with the call itself, and its transpose.

A jvp binds a second primitive, `batched_jvp_p`, where a function has a `jvp_function`. Under every transformation that
takes the call and its tangents apart it is the two batched calls again (`one_after_the_other`): where JAX knows the
operands and not the tangents, as in `jax.grad`, and where only the tangents are mapped, as in `jax.jacfwd`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jattn import _errors
from jattn._jax import Primitive, ad, asks_for_devices, batching, mlir, partial_eval, set_current_trace
from jattn._taylor import has_series
from jattn.engine.batching.function import BatchedFunction, Leaves, insert
from jattn.engine.batching.primitive import abstract, batched_call, batched_call_p, checked_operands, lower
from jattn.engine.batching.vmap import Vmapped, batching_rule, example_type, examples_first


def _instantiate(x: Any, beside: Leaves) -> Any:
    """x, zeros where it is a symbol of them; on an explicit mesh, on the devices of the arrays beside it."""
    if type(x) is not ad.Zero:
        return x
    aval: Any = x.aval
    return _zeros(aval) if aval.sharding.mesh.empty else _zeros(aval, *beside)


@partial(jax.jit, static_argnums=0, inline=True, keep_unused=True)
def _zeros(aval: Any, *_: jax.Array) -> jax.Array:
    """A program: made eagerly, zeros would be moved to the device, which a transfer guard refuses. Its arguments
    tell it the devices of a mesh that `jax.set_mesh` does not name."""
    return ad.instantiate_zeros(ad.Zero(aval))


def _named_call(fun: BatchedFunction, primals: Leaves) -> list[jax.Array]:
    out = batched_call(fun, *primals)
    names = fun.checkpoint_names
    return [checkpoint_name(y, name) for y, name in zip(out, names, strict=True)] if names else out


def one_after_the_other(*xs: Any, fun: BatchedFunction, argnums: tuple[int, ...]) -> list[jax.Array]:
    """(operands, tangents of those at argnums) → outputs, then their tangents: two batched calls."""
    n = len(xs) - len(argnums)
    out = _named_call(fun.with_residuals(), xs[:n])
    return [*out, *batched_call(_tangent_of(fun, argnums), *xs[:n], *out, *xs[n:])]


def _tangent_of(fun: BatchedFunction, argnums: tuple[int, ...]) -> BatchedFunction:
    own = fun.tangent_function(argnums)
    assert own is not None
    return own


def _jvp_rule(primals: Leaves, tangents: Leaves, *, fun: BatchedFunction) -> tuple[list[Any], list[Any]]:
    argnums = tuple(i for i, t in enumerate(tangents) if type(t) is not ad.Zero)
    if set(argnums) <= fun.linear_argnums:  # then its derivative is itself
        dots = [_instantiate(tangents[i], primals) if i in fun.linear_argnums else x for i, x in enumerate(primals)]
        return _named_call(fun, primals), batched_call(fun, *dots)
    xs = [*primals, *(tangents[i] for i in argnums)]
    if fun.tangent_function(argnums) is None:
        return _named_call(fun, primals), batched_call(fun.derived_tangent(argnums, len(primals)), *xs)
    together = fun.jvp_function(argnums)
    if together is None or _varying_axes(xs) != _varying_axes(primals):
        found = one_after_the_other(*xs, fun=fun, argnums=argnums)
    else:
        found = batched_jvp_p.bind(*checked_operands(together, xs), fun=fun, argnums=argnums)
    n = (len(found) + len(fun.constant_outputs)) // 2
    out, rest = found[:n], iter(found[n:])
    return out, [ad.Zero(jax.typeof(y)) if i in fun.constant_outputs else next(rest) for i, y in enumerate(out)]


def _varying_axes(xs: Leaves) -> frozenset[Any]:
    """The mesh axes inside `jax.shard_map` that any of them varies over: outputs vary as operands, not as tangents."""
    return frozenset().union(*(jax.typeof(x).manual_axis_type.varying for x in xs))


def _transpose_rule(cts: Leaves, *operands: Any, fun: BatchedFunction) -> list[Any]:
    argnums = tuple(i for i, x in enumerate(operands) if ad.is_undefined_primal(x))
    avals = [operands[i].aval for i in argnums]
    shapes = tuple((a.shape, a.dtype) for a in avals)
    kept = [x for x in operands if not ad.is_undefined_primal(x)]
    if not any(set(argnums) <= xs for xs in fun.jointly_linear):
        must = "attention must be linear in what it is transposed by, as it is in v alone"
        got = {f"operand {i}": aval for i, aval in zip(argnums, avals, strict=True)}
        _errors.fail(ValueError, "linear_transpose", must, "Take the derivative at a point: jax.vjp.", **got)
    cts = [_instantiate(ct, kept) for ct in cts]
    if fun.tangent_function(argnums) is None:
        transposed = fun.transpose_function(argnums, shapes, len(operands), len(cts))
        out = iter(batched_call(transposed, *kept, *cts))
    else:  # it has a pullback of its own, which is the same at every point: at zero
        _, pullback = jax.vjp(lambda *xs: batched_call(fun, *insert(kept, argnums, xs)), *map(_zeros, avals))
        out = iter(pullback(cts))
    return [next(out) if i in argnums else None for i in range(len(operands))]


ad.primitive_jvps[batched_call_p] = _jvp_rule
ad.primitive_transposes[batched_call_p] = _transpose_rule
has_series(batched_call_p, lambda params: params["fun"].constant_operands)


# The call and its tangents in one program.


@partial(jax.jit, static_argnames=("fun", "argnums"))
def _compiled(*xs: Any, **how: Any) -> list[jax.Array]:
    if not any(isinstance(x, jax.core.Tracer) for x in xs):
        return one_after_the_other(*xs, **how)  # jax.disable_jit, or jax.debug_nans looks for a NaN
    return batched_jvp_p.bind(*xs, **how)


batched_jvp_p: Primitive = Primitive("batched_jvp")
batched_jvp_p.multiple_results = True
batched_jvp_p.def_impl(_compiled)


def _abstract(*avals: Any, fun: BatchedFunction, argnums: tuple[int, ...]) -> list[Any]:
    n = len(avals) - len(argnums)
    out = abstract(*avals[:n], fun=fun)
    return [*out, *abstract(*avals[:n], *out, *avals[n:], fun=_tangent_of(fun, argnums))]


def _lower_together(ctx: Any, *xs: Any, fun: BatchedFunction, argnums: tuple[int, ...]) -> Any:
    together = fun.for_platform("cpu").jvp_function(argnums)
    assert together is not None  # or the primitive would not have been bound
    return lower(ctx, *xs, fun=together, platform="cpu")


batched_jvp_p.def_abstract_eval(_abstract)
mlir.register_lowering(batched_jvp_p, mlir.lower_fun(one_after_the_other))
mlir.register_lowering(batched_jvp_p, _lower_together, platform="cpu")
asks_for_devices(batched_jvp_p)


def _batching_rule(xs: Leaves, dims: Leaves, *, fun: BatchedFunction, argnums: tuple[int, ...]) -> Any:
    n = len(xs) - len(argnums)
    if any(d is not None and dims[i] is None for i, d in zip(argnums, dims[n:], strict=True)):
        return _batched_apart(xs, dims, fun, argnums)
    xs, mapped, size = examples_first(xs, dims)
    types = [example_type(jax.typeof(x)) if m else jax.typeof(x) for x, m in zip(xs[:n], mapped, strict=False)]
    vmapped = Vmapped(fun, mapped[:n], size, (False,) * len(abstract(*types, fun=fun)))
    dots = [  # each is mapped where its operand is
        dot if m or not mapped[i] else jnp.broadcast_to(dot, (size, *dot.shape))
        for i, dot, m in zip(argnums, xs[n:], mapped[n:], strict=True)
    ]
    found = batched_jvp_p.bind(*xs[:n], *dots, fun=vmapped, argnums=argnums)
    return found, [0] * len(found)


def _batched_apart(xs: Leaves, dims: Leaves, fun: BatchedFunction, argnums: tuple[int, ...]) -> Any:
    """Of several tangents for one operand, which is attended to once."""
    n, fun = len(xs) - len(argnums), fun.with_residuals()
    if all(d is None for d in dims[:n]):
        out = _named_call(fun, xs[:n])
        out_dims: list[Any] = [None] * len(out)
    else:
        out, out_dims = batching_rule(xs[:n], dims[:n], fun=fun)
    own = _tangent_of(fun, argnums)
    dots, dots_dims = batching_rule([*xs[:n], *out, *xs[n:]], [*dims[:n], *out_dims, *dims[n:]], fun=own)
    return [*out, *dots], [*out_dims, *dots_dims]


def _jvp_of_jvp(primals: Leaves, tangents: Leaves, **how: Any) -> Any:
    equation = _as_jit([jax.typeof(x) for x in primals], how)
    return ad.primitive_jvps[equation.primitive](primals, tangents, **equation.params)


def _partial_eval(trace: Any, *tracers: Any, **how: Any) -> Any:
    with set_current_trace(trace):
        return one_after_the_other(*tracers, **how)


def _partial_eval_of_jaxpr(saveable: Any, unknown: Any, instantiated: Any, equation: Any) -> Any:
    jit = _as_jit([x.aval for x in equation.invars], equation.params)
    jit = jit.replace(invars=equation.invars, outvars=equation.outvars)
    return partial_eval.partial_eval_jaxpr_custom_rules[jit.primitive](saveable, unknown, instantiated, jit)


def _as_jit(avals: Leaves, how: Any) -> Any:
    """The equation of the two calls in a `jax.jit`, which JAX can take apart."""
    (equation,) = jax.make_jaxpr(jax.jit(partial(one_after_the_other, **how)))(*avals).eqns
    return equation


batching.primitive_batchers[batched_jvp_p] = _batching_rule
ad.primitive_jvps[batched_jvp_p] = _jvp_of_jvp
partial_eval.custom_partial_eval_rules[batched_jvp_p] = _partial_eval
partial_eval.partial_eval_jaxpr_custom_rules[batched_jvp_p] = _partial_eval_of_jaxpr
has_series(batched_jvp_p)
