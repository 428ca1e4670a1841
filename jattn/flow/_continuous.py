"""The continuous flow: gradient descent with steps of no size, in logarithmic time."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._jax import odeint
from jattn._types import ArrayLike, Float
from jattn.flow._paths import Data, Loss, Now, Observe, Params, Trajectory, Tree, check_functions, finite


def integrate(
    loss: Loss,
    params: Params,
    times: Float[ArrayLike, " n"] | Sequence[float],
    *,
    data: Data = (),
    observe: Observe | None = None,
    tolerance: float = 1e-8,
) -> Trajectory[Params]:
    """Follows the gradient flow to given times, with a step size that adapts to a tolerance.

        dθ/dt = −∇L(θ),    integrated as  dθ/dτ = −(1 + t) ∇L(θ),  τ = log(1 + t)

    Where the loss or its gradient is not finite the flow rests, and the trajectory says so. The solver knows them at
    the points where it takes them alone: a band that is narrower than its steps may be passed without being seen.

    In τ the path of a softmax that saturates is slow for ever, so t = 1e18 costs little more than t = 1e3. A flow that
    comes to rest at a finite point is stiff in τ: its cost grows as t times the largest curvature there.

    Args:
      loss: loss(params, *data) -> scalar, compiled as that of `run`.
      params: where it starts, at t = 0: a pytree of floating-point arrays of one dtype.
      times: [n], one or more, increasing, from 0 on; in units of learning rate × steps.
      data: further arguments of the loss, traced.
      observe: picks what to keep from a `Now`, whose step is the number of the time; the parameters if None.
      tolerance: above 0, the error allowed in each parameter, absolute and relative to its size. Each step is held to a
        tenth of it; that the path as a whole keeps it is measured in the tests, not proven. In float32 at least 1e-5.

    Returns:
      Trajectory with `at` = times, no state and no sums. `broke` is the number of the first time by which a parameter,
      the loss or its gradient was not finite, at that time or before, −1 if none: `params` are those of the time before
      it, and `kept` drops what was seen from it on, which means nothing. Differentiable in reverse; by a time that is 0
      the derivative is taken as 0.

    Raises:
      TypeError: a parameter is not floating point; `loss` or `observe` is no function; `tolerance` is not one number.
      ValueError: `times` has not one axis, or is known and does not increase from 0 on, each finite; `tolerance` is not
      finite and above 0; the loss is not a scalar; parameters are cut along explicit axes of a mesh, or they or the
      data vary over the devices of a jax.shard_map that checks this.

    Memory: the parameters at all n times and what `observe` picks there, and some twenty copies of the parameters.

    Source: Dormand and Prince 1980, as jax.experimental.ode has it.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> path = flow.integrate(lambda x: 0.5 * x**2, jnp.float32(1), jnp.array([0.0, 1.0]), tolerance=1e-5)
      >>> print((1000 * path.params).round())  # 1000 / e
      368.0
    """
    params = check_functions("integrate", loss, observe, params, data)
    _refuse_pieces(params, data)
    if isinstance(times, Sequence):
        times = [float(t) if type(t) is int or isinstance(t, np.integer) else t for t in times]
    given, times = times, _errors.array("integrate", "times", times)
    _errors.floating("integrate", times=times)
    _errors.rank("integrate", 1, "[n]", "Pass the times to look at, from 0 on.", times=times)
    if not len(times) or (_errors.known(*jax.tree.leaves(given)) and not _increase(np.asarray(given))):
        remedy = "Pass the times to look at, finite, sorted and without repeats."
        _errors.fail(ValueError, "integrate", "times must increase from 0 on", remedy, times=times)
    remedy = "In float32 give at least 1e-5."
    tolerance = _errors.amount("integrate", "tolerance", tolerance, above=0, remedy=remedy)
    return _integrate(loss, observe, params, times, data, tolerance)


def _refuse_pieces(params: Tree, data: Data) -> None:
    """Refuses what odeint's loops take no types of: parameters that are cut over explicit axes, or what varies over the
    devices of a `jax.shard_map`, where each device would take another number of steps."""
    for name, tree in (("params", params), ("data", data)):
        for kind in map(jax.typeof, jax.tree.leaves(tree)):
            if axes := sorted(map(str, kind.manual_axis_type.varying)):
                remedy = "Call it outside, of global arrays, or give jax.shard_map check_vma=False."
                must = f"{name} must be the same on all devices of a jax.shard_map"
                _errors.fail(ValueError, "integrate", must, remedy, **{name: f"that differ along {', '.join(axes)}"})
            cut = [str(entry) for entry in kind.sharding.spec if entry is not None]
            if name == "params" and cut:
                remedy = "Pass them whole, jax.sharding.reshard(x, jax.P()), or on a mesh of automatic axes."
                must = "params must not be cut along explicit axes of a mesh"
                _errors.fail(ValueError, "integrate", must, remedy, params=f"cut along {', '.join(cut)}")


def _increase(times: np.ndarray) -> bool:
    return bool(times[0] >= 0 and (np.diff(times) > 0).all() and times[-1] < np.inf)


def _is_float(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _as(like: Tree, tree: Tree) -> Tree:
    """`tree` in the dtypes of `like`."""
    return jax.tree.map(lambda to, x: x.astype(to.dtype) if _is_float(to) else x, like, tree)


@partial(jax.jit, static_argnames=("loss", "observe", "tolerance"))
def _integrate(
    loss: Loss, observe: Observe | None, params: Params, times: jax.Array, data: Data, tolerance: float
) -> Trajectory[Params]:
    data = jax.tree.map(jnp.asarray, data)  # without jit they may be numbers of Python
    # odeint ravels the parameters, the clock and, in reverse, the data together, and so takes them in one dtype alone.
    dtype = _errors.wide(times, *(x for x in jax.tree.leaves((params, data)) if _is_float(x)))
    widened = jax.tree.map(lambda x: x.astype(dtype) if _is_float(x) else x, (params, data))

    # From a derivative that is not finite odeint goes on with its last polynomial, without a word. So the flow rests
    # where the loss or its gradient is not, and every later look finds it there.
    def flow(wide: Tree, tau: jax.Array, wide_data: Data) -> Tree:
        value, grads = jax.value_and_grad(loss)(_as(params, wide), *_as(data, wide_data))
        good = finite((value, grads))
        return jax.tree.map(lambda g: jnp.where(good, -jnp.exp(tau) * g.astype(dtype), 0), grads)

    # odeint divides by the length of its last step, and at t = 0 there was none: it is asked for a later time there.
    clock = times.astype(dtype)
    after = jnp.where(clock == 0, 0.5 * jnp.min(jnp.where(clock == 0, 1, clock), initial=1), clock)
    taus = jnp.concatenate([jnp.zeros(1, clock.dtype), jnp.log1p(after)])
    path = odeint(flow, widened[0], taus, widened[1], rtol=tolerance / 10, atol=tolerance / 10)
    path = jax.tree.map(
        lambda x, x0: jnp.where((times == 0).reshape(-1, *[1] * x0.ndim), x0[None], x[1:].astype(x0.dtype)),
        path, params,
    )  # fmt: skip

    def look(i: jax.Array, params: Tree) -> tuple[jax.Array, Tree, jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, *data)
        good = finite(params) & (finite((value, grads)) | (times[i] == 0))
        picked = params if observe is None else observe(Now(i, params, value, grads, None, None, data))
        return value, picked, good

    n = len(times)
    losses, seen, good = jax.vmap(look)(jnp.arange(n, dtype=jnp.int32), path)
    broke = jnp.where(good.all(), -1, jnp.argmin(good)).astype(jnp.int32)
    last = jnp.where(broke < 0, n, broke) - 1
    end = jax.tree.map(lambda x, x0: jnp.where(last < 0, x0, x[jnp.maximum(last, 0)]), path, params)
    return Trajectory(times, losses, seen, end, None, None, broke)
