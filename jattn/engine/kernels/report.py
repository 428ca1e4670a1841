"""Which passes a program contains, and how each would run on a platform: read off its jaxpr, without running it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax

from jattn import _errors
from jattn.engine.batching import Vmapped, batched_call_p, batched_jvp_p, one_after_the_other
from jattn.engine.kernels.support import for_kernels, refusal
from jattn.engine.schedule import PlannedFunction

PLATFORMS = ("cpu", "gpu", "tpu")


class Implementation(NamedTuple):
    """One pass of attention in a program."""

    name: str
    """forward, tangent or backward; on a CPU jvp, of forward and tangent at once; of a ring ringforward and so on; or
    derived, of what JAX derives of these."""
    kernel: bool
    """Whether it runs as kernels; else as loops."""
    reason: str
    """Why it runs as loops, in words; empty where it does not."""


def implementations(f: Callable[..., object], *args: object, platform: str | None = None) -> tuple[Implementation, ...]:
    """How each pass of attention that a function contains runs on a platform: as kernels, or as loops and why.

    Nothing runs and no device is needed: the answer is that of structure, dtypes and sizes, and for a GPU, where no
    kernel is asked for, of whether it is one that they were run on. Any transform may stand around attention:
    `implementations(jax.grad(loss), q, k, v, platform="tpu")`.

    Args:
      f: a function that jax.jit can take.
      args: its arguments, or jax.ShapeDtypeStruct of them.
      platform: "cpu", "gpu" or "tpu"; that of the default device if None.

    Returns:
      Implementation(name, kernel, reason) of each pass in the order of the program, those of the branches of a choice
      and of the bodies of loops once each.

    Raises:
      TypeError: f is not a function.
      ValueError: the platform is none of these.

    Memory: none but that of tracing.

    Source: what has a kernel is said in `jattn.engine.kernels.support`.

    Example:
      >>> import jax, jax.numpy as jnp, jattn
      >>> x = jax.ShapeDtypeStruct((4096, 64), jnp.float32)
      >>> jattn.implementations(jattn.attention, x, x, x, platform="tpu")
      (Implementation(name='forward', kernel=True, reason=''),)
      >>> few = jax.ShapeDtypeStruct((1, 64), jnp.float32)
      >>> jattn.implementations(jattn.attention, few, x, x, platform="tpu")[0].reason
      'with fewer than 16 queries reading the keys is all there is to do'
    """
    remedy = "Pass it and its arguments apart, as in implementations(jattn.attention, q, k, v)."
    _errors.function("implementations", "f", f, remedy)
    platform = jax.default_backend() if platform is None else platform
    if platform not in PLATFORMS:
        must = f"platform must be one of {', '.join(map(repr, PLATFORMS))}"
        remedy = "Leave it out for that of the default device."
        _errors.fail(ValueError, "implementations", must, remedy, platform=repr(platform))
    return tuple(_found(jax.make_jaxpr(f)(*args).jaxpr, platform))


def _found(jaxpr: Any, platform: str) -> Iterator[Implementation]:
    for eqn in jaxpr.eqns:
        if eqn.primitive is batched_call_p:
            yield _of_call(eqn, platform)
        elif eqn.primitive is batched_jvp_p:
            apart = jax.make_jaxpr(partial(one_after_the_other, **eqn.params))(*(v.aval for v in eqn.invars))
            passes = tuple(_found(apart.jaxpr, platform))
            yield from passes if platform != "cpu" else [passes[0]._replace(name="jvp")]
            continue
        for leaf in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(leaf, "jaxpr", leaf)
            if hasattr(inner, "eqns"):
                yield from _found(inner, platform)


def _of_call(eqn: Any, platform: str) -> Implementation:
    fun: Any = eqn.params["fun"]
    levels = fun.batch_levels(len(eqn.invars), len(eqn.outvars))
    while isinstance(fun, Vmapped):
        fun = fun.fun
    name = type(fun).__name__.lower()
    if fun.collective:
        return Implementation(name, False, "a ring asks for each device's share where it is lowered")
    if not isinstance(fun, PlannedFunction):
        return Implementation("derived", False, "derivatives that JAX derives of the passes run as loops")
    if fun.plan.implementation == "loops":
        return Implementation(name, False, "implementation='loops' was asked for")
    with fun.settings.hold():
        reason = refusal(for_kernels(fun, platform), levels, [v.aval for v in eqn.invars])
    return Implementation(name, reason is None, reason or "")
