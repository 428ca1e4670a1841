"""The path of an optimiser: one traced loop, and what was seen along it."""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from types import CellType, ModuleType
from typing import Any, Generic, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jattn import _errors
from jattn._numerics import match_varying_trees, on_explicit_mesh, promoted
from jattn._types import Array, ArrayTree, Float, Integer
from jattn._values import pytree
from jattn.flow._looks import looks_at

Tree: TypeAlias = ArrayTree
Data: TypeAlias = tuple[ArrayTree, ...]
"""The arguments of a loss after the parameters."""
Params = TypeVar("Params")
"""A pytree of floating-point arrays, of the user's own type."""
Loss: TypeAlias = Callable[..., jax.Array]
"""loss(params, *data) -> scalar."""


@pytree
@dataclasses.dataclass(frozen=True)
class Now:
    """One moment of a run, before its next step: what an `observe` may pick from; what it leaves is not computed."""

    step: jax.Array
    params: Tree
    loss: jax.Array
    grads: Tree
    sums: Tree
    """What `track` made of the updates, summed over all steps so far; None without one."""
    state: Tree
    """The optimiser's."""
    data: Data


Observe: TypeAlias = Callable[[Now], Tree]
"""observe(now) -> a tree of arrays: what a path keeps of each step that it looks at."""
Track: TypeAlias = Callable[[Tree], Tree]
"""track(update) -> a tree of arrays, which is summed over all steps."""


@pytree
@dataclasses.dataclass(frozen=True)
class Trajectory(Generic[Params]):
    """What was seen of a run, and where it ended."""

    at: Integer[Array, " n"] | Float[Array, " n"]
    """The steps at which it was looked at, the number of steps taken before; of `integrate` the times."""
    loss: Float[Array, " n"]
    seen: Tree
    """What `observe` picked, with a leading axis n; the parameters by default."""
    params: Params
    """The last ones that are finite."""
    state: Tree
    sums: Tree
    broke: Integer[Array, ""]
    """The number of the step that met a NaN or an infinity, in the loss, a gradient or a new parameter, and was not
    taken: the parameters before it are the last. Of `integrate` the number of a time. −1 if none did."""

    def kept(self) -> "Trajectory[Params]":
        """Only what was seen before the run broke; all of it if it did not. Of one run, outside of jit and vmap."""
        if np.ndim(self.broke) or not _errors.known(self.broke):
            got = {"broke": self.broke if np.ndim(self.broke) else "traced"}
            remedy = "Take one: jax.tree.map(lambda x: x[0], runs) of runs that were mapped, outside of jit."
            _errors.fail(ValueError, "trajectory", "what was kept is asked of one run that has ended", remedy, **got)
        at, broke = np.asarray(self.at), int(self.broke)
        n = len(at)
        if broke >= 0:  # the number of a step, or of one of the times
            n = int(np.sum(at <= broke)) if np.issubdtype(at.dtype, np.integer) else broke
        cut = jax.tree.map(lambda x: x[:n], {"at": self.at, "loss": self.loss, "seen": self.seen})
        return dataclasses.replace(self, **cut)


@pytree
@dataclasses.dataclass(frozen=True)
class RunState:
    """Where a run stands: all that its next step depends on."""

    params: Tree
    state: Tree
    sums: Tree
    step: jax.Array
    broke: jax.Array


@dataclasses.dataclass(frozen=True)
class RunRule:
    """What a run does at each step; hashable by the identity of its functions, so that jit compiles it once."""

    loss: Loss
    optimizer: optax.GradientTransformation
    observe: Observe | None
    track: Track | None

    def begin(self, caller: str, params: Tree, state: Tree, data: Data) -> RunState:
        with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic mixes floats and counts
            state = self.optimizer.init(params) if state is None else state
            structure: Any = jax.tree.structure(state)
            if structure != jax.tree.structure(jax.eval_shape(self.optimizer.init, params)):
                remedy = "Pass that of a run of this optimizer and of params like these, or leave it out."
                _errors.fail(ValueError, caller, "state must be one of optimizer", remedy, state="of another structure")
        state, updates = self._widened(caller, params, state, data)
        sums = None if self.track is None else jax.tree.map(jnp.zeros_like, jax.eval_shape(self.track, updates))
        broke = jnp.where(finite(params), jnp.int32(-1), jnp.int32(0))
        # Inside jax.shard_map what starts as a constant must be said to differ between devices where `broke` does.
        broke, params, state, sums, step = match_varying_trees(broke, params, state, sums, jnp.int32(0))

        def first() -> Tree:
            loss, grads = self._loss_and_grads(params, data)
            return loss, grads, self._update(data, grads, state, params, loss)

        return mapped_as(first, RunState(params, state, sums, step, broke))

    def _widened(self, caller: str, params: Tree, state: Tree, data: Data) -> tuple[Tree, Tree]:
        """The state in the dtypes that it has after an update, which may be wider; and what updates are like.

        Of bfloat16 beside float32 some of optax's states are float32 from the first update on, in a loop of Python
        too. A scan needs them so from the beginning.
        """
        value = jax.eval_shape(self.loss, params, *data)
        while True:  # each round that goes on widens some dtype
            updates, after = jax.eval_shape(partial(self._update, data), params, state, params, value)
            narrower, state = state, _as_after(caller, state, after)
            pairs = zip(jax.tree.leaves(narrower), jax.tree.leaves(state), strict=True)
            if all(jax.typeof(x).dtype == jax.typeof(y).dtype for x, y in pairs):
                return state, updates

    def _update(self, data: Data, grads: Tree, state: Tree, params: Tree, loss: jax.Array) -> tuple[Tree, Tree]:
        """What the optimiser makes of the gradients: (updates, state)."""
        update = optax.with_extra_args_support(self.optimizer).update

        # A line search passes on to value_fn what it does not know itself, and fails where that has no such argument.
        def value_fn(params: Tree, grad_fn: object = None, obj_fn: object = None) -> jax.Array:
            return self.loss(params, *data)

        more = {"value": loss, "grad": grads, "value_fn": value_fn, "obj_fn": value_fn}
        more["grad_fn"] = lambda params, _: jax.grad(self.loss)(params, *data)
        names = inspect.signature(update).parameters
        if not any(x.kind is x.VAR_KEYWORD for x in names.values()):  # as of optax.contrib.sam
            more = {name: x for name, x in more.items() if name in names}
        with jax.numpy_dtype_promotion("standard"):
            made: tuple[Tree, Tree] = update(grads, state, params, **more)
        return made

    def step(self, run_state: RunState, data: Data) -> RunState:
        """One step of the optimiser, unless the run broke before or would now.

        Chosen by a select, not by jax.lax.cond, whose batching fails on constants inside jax.shard_map (JAX 0.10).
        """
        loss, grads = self._loss_and_grads(run_state.params, data)
        updates, state = self._update(data, grads, run_state.state, run_state.params, loss)
        with jax.numpy_dtype_promotion("standard"):
            params = optax.apply_updates(run_state.params, updates)
        sums = None if self.track is None else jax.tree.map(jnp.add, run_state.sums, self.track(updates))
        whole, good = run_state.broke < 0, finite((loss, grads, params))
        broke = jnp.where(whole & ~good, run_state.step, run_state.broke)
        new, old = RunState(params, state, sums, run_state.step + 1, broke), dataclasses.replace(run_state, broke=broke)
        return jax.tree.map(lambda a, b: jnp.where(whole & good, a, b), new, old)

    def steps(self, run_state: RunState, data: Data, n: Any) -> RunState:
        """n steps; n may be traced, and where it is not this can be differentiated in reverse."""
        if isinstance(n, int) and n == 0:  # a scan of no steps has no output to speak of without jit
            return run_state
        if isinstance(n, int):
            return jax.lax.scan(lambda w, _: (self.step(w, data), None), run_state, length=n)[0]
        return jax.lax.fori_loop(np.int32(0), n, lambda _, w: self.step(w, data), run_state)

    def look(self, run_state: RunState, data: Data) -> tuple[jax.Array, Tree]:
        """The loss, and what there is to see, as arrays: either may be a number of Python."""
        if self.observe is None:
            return jnp.asarray(self.loss(run_state.params, *data)), run_state.params
        loss, grads = self._loss_and_grads(run_state.params, data)
        now = Now(run_state.step, run_state.params, loss, grads, run_state.sums, run_state.state, data)
        return loss, jax.tree.map(jnp.asarray, self.observe(now))

    def _loss_and_grads(self, params: Tree, data: Data) -> tuple[jax.Array, Tree]:
        loss, grads = jax.value_and_grad(self.loss)(params, *data)
        return jnp.asarray(loss), grads


def run(
    loss: Loss,
    params: Params,
    optimizer: optax.GradientTransformation,
    steps: int,
    *,
    data: Data = (),
    observe: Observe | None = None,
    at: int | Sequence[int] | None = None,
    state: Tree = None,
    track: Track | None = None,
) -> Trajectory[Params]:
    """Follows an optax optimiser for a number of steps, in one jitted scan, and returns what was seen on the way.

        params_{t+1} = params_t + update(∇L(params_t)),    t = 0, …, steps − 1

    Thousands of runs are one call: map it with jax.vmap over `params`, `data`, or `state` (with
    optax.inject_hyperparams that is where learning rates and other hyper-parameters live), or over anything that an
    optimiser made inside the mapped function was made from. Arrays that are sharded over a mesh stay where they are,
    and it may be called within jax.shard_map: where the loss or a rate differs between devices, so must `params`, by
    jax.lax.pcast(params, axis_name, to="varying") of what is a constant.

    Args:
      loss: loss(params, *data) -> scalar. Keep one function object and it is compiled once, with what it closes over by
        then: as of a function under jax.jit, what changes later belongs into `data`.
      params: a pytree of floating-point arrays.
      optimizer: a gradient transformation of optax, of params as the loss takes them. It is given value, grad,
        value_fn, obj_fn and grad_fn where it asks for them, as L-BFGS and other line searches do. The update of
        optax.lookahead takes the gradient by the fast ones alone: wrap it, as in
        optax.GradientTransformation(o.init, lambda grads, *more: o.update(grads.fast, *more)).
      steps: how many, 0 or more.
      data: further arguments of the loss, traced: pass arrays here rather than closing over them.
      observe: picks what to keep from a `Now`: any pytree of arrays; the parameters if None.
      at: when to look: every so many steps and after the last, or at these steps (as `log_steps` makes them), each the
        number of steps taken before. At 0 and after the last if None. Looks unevenly spaced have no gradient in
        reverse; jax.jvp takes any.
      state: the optimiser's state to begin with; optimizer.init(params) if None. Where an update widens its dtypes, as
        some do of bfloat16 beside float32, it is that wide from the beginning.
      track: track(updates) -> pytree, summed over all steps and shown to `observe` as `sums`. With the function that
        reads a conserved quadratic off the parameters this is its exact drift under plain gradient descent.

    Returns:
      Trajectory(at, loss, seen, params, state, sums, broke). A step that meets a NaN or an infinity is not taken, and
      the run ends there: `broke` is its number, and what would be seen later shows the last good parameters; `kept`
      cuts it.

    Raises:
      TypeError: a parameter is not floating point; `steps` or `at` are not whole numbers; `data` is no tuple; `loss`,
      `observe` or `track` no function; an update narrows a dtype of the optimiser's state.
      ValueError: `steps` is 2³¹ or more; `at` is not increasing within 0 to `steps`; the loss is not a scalar; an
      update changes the structure or a shape of the optimiser's state.

    Memory: what `observe` picks, times the number of looks.

    Source: optax; Robbins and Monro 1951 for the idea.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jattn import flow
      >>> path = flow.run(lambda x: 0.5 * x**2, jnp.float32(1), optax.sgd(0.5), 4, at=2)
      >>> print(path.at, path.seen)
      [0 2 4] [1.     0.25   0.0625]
      >>> rates = jnp.array([0.5, 0.1])
      >>> end = jax.vmap(lambda rate: flow.run(lambda x: 0.5 * x**2, jnp.float32(1), optax.sgd(rate), 4).params)
      >>> print(end(rates))
      [0.0625 0.6561]
    """
    rule, params, looks = validate("run", loss, params, optimizer, steps, data, observe, at, track)
    return compiled(_run, params, data, state, rule=rule, at=looks, steps=int(steps))


@partial(jax.jit, static_argnames=("rule", "at", "steps"))
def _run(
    params: Params, data: Data, state: Tree, *, rule: RunRule, at: tuple[int, ...], steps: int
) -> Trajectory[Params]:
    run_state = rule.steps(rule.begin("run", params, state, data), data, at[0])
    parts = [jax.tree.map(lambda x: x[None], rule.look(run_state, data))]
    gaps = np.diff(np.asarray(at, np.int32))
    alike = [list(same) for _, same in itertools.groupby(gaps)]

    def on(run_state: RunState, gap: Any) -> tuple[RunState, tuple[jax.Array, Tree]]:
        run_state = rule.steps(run_state, data, gap)
        return run_state, rule.look(run_state, data)

    def on_by(gap: int) -> Callable[[RunState, None], tuple[RunState, tuple[jax.Array, Tree]]]:
        return lambda run_state, _: on(run_state, gap)

    if len(alike) <= 2:  # every so many steps, and after the last
        for same in alike:
            run_state, part = jax.lax.scan(on_by(int(same[0])), run_state, length=len(same))
            parts.append(part)
    else:
        run_state, part = jax.lax.scan(on, run_state, gaps)
        parts.append(part)
    loss, seen = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    run_state = rule.steps(run_state, data, steps - at[-1])  # those after the last look
    return Trajectory(
        jnp.asarray(at, jnp.int32), loss, seen, run_state.params, run_state.state, run_state.sums, run_state.broke
    )


def compiled(f: Any, *arrays: Tree, **static: Any) -> Any:
    """f(*arrays, **static) of a jitted function, which keeps what is static.

    Where that closes over a tracer, as an optimiser made inside a mapped function does, it is compiled for this call.
    """
    if _holds_tracer([*static.values()], set()):
        return jax.jit(lambda *arrays: f.__wrapped__(*arrays, **static))(*arrays)
    return f(*arrays, **static)


def _holds_tracer(x: Any, seen: set[int]) -> bool:
    """Whether x is a tracer, or a function, a container or a dataclass that holds one."""
    if isinstance(x, jax.core.Tracer):
        return True
    if id(x) in seen or isinstance(x, type | ModuleType):
        return False
    seen.add(id(x))
    inner: list[Any] = [x.func, x.args, x.keywords] if isinstance(x, partial) else []
    inner += x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else []
    if callable(x) or dataclasses.is_dataclass(x):
        inner += [getattr(x, name, None) for name in ("__defaults__", "__kwdefaults__", "__self__", "__dict__")]
        inner += [cell.cell_contents for cell in getattr(x, "__closure__", None) or () if cell != CellType()]
    return any(_holds_tracer(y, seen) for y in inner)


def validate(
    caller: str,
    loss: Loss,
    params: Tree,
    optimizer: Any,
    steps: int,
    data: Data,
    observe: Observe | None,
    at: int | Sequence[int] | None,
    track: Track | None,
) -> tuple[RunRule, Tree, tuple[int, ...]]:
    """What every run is asked: its rule, its parameters as arrays, and the steps to look at."""
    if not hasattr(optimizer, "init") or not hasattr(optimizer, "update"):
        got = {"optimizer": f"of type {type(optimizer).__name__}"}
        _errors.fail(TypeError, caller, "optimizer must be one of optax", "Pass for example optax.sgd(0.1).", **got)
    if track is not None:
        _errors.function(caller, "track", track, "Write track(updates) -> a pytree of arrays.")
    params = check_functions(caller, loss, observe, params, data)
    return RunRule(loss, optimizer, observe, track), params, looks_at(caller, steps, at)


def check_functions(caller: str, loss: Loss, observe: Observe | None, params: Tree, data: Data) -> Tree:
    """The parameters as arrays, once they, the data, `observe` and the loss are seen to be real."""
    _errors.function(caller, "loss", loss, "Write loss(params, *data) -> scalar.")
    if observe is not None:
        _errors.function(caller, "observe", observe, "Write observe(now) -> a pytree of arrays.")
    if not isinstance(data, tuple | list):  # rows of an array would be taken for arguments
        got = {"data": f"of type {type(data).__name__}"}
        remedy = "Give what the loss takes after the parameters, one alone as data=(x,)."
        _errors.fail(TypeError, caller, "data must be a tuple", remedy, **got)
    _errors.leaves(caller, "data", data, "lambda params, *arrays: loss(params, *arrays, name)")
    _errors.leaves(caller, "params", params, "params, rest = equinox.partition(model, equinox.is_array)")
    params = jax.tree.map(lambda x: _errors.array(caller, "params", x), params)
    if not jax.tree.leaves(params):
        must, remedy = "params must hold at least one array", "Pass what the loss is to be differentiated by."
        _errors.fail(ValueError, caller, must, remedy, params=f"of type {type(params).__name__}")
    for x in jax.tree.leaves(params):
        _errors.floating(caller, params=x)
    _errors.loss(caller, jax.eval_shape(loss, params, *data))
    return params


def _as_after(caller: str, state: Tree, after: Tree) -> Tree:
    """The optimiser's state, each leaf as wide as after an update; refused where that changes more than its width."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    structure: Any = jax.tree.structure(state)
    remedy = "Let its init make the state that its update returns."
    if structure != jax.tree.structure(after):
        must = "optimizer must keep the structure of its state"
        _errors.fail(ValueError, caller, must, remedy, state="of another structure after an update")
    made = []
    for (path, x), new in zip(leaves, jax.tree.leaves(after), strict=True):
        old = jax.typeof(x)
        before, later = (f"{y.dtype}{_errors.shape(y)}" for y in (old, new))
        got = {f"state{jax.tree_util.keystr(path)}": f"{before}, after an update {later}"}
        if old.shape != new.shape:
            _errors.fail(ValueError, caller, "optimizer must keep the shapes of its state", remedy, **got)
        if old.dtype != new.dtype and not old.weak_type and promoted(old.dtype, new.dtype) != new.dtype:
            _errors.fail(TypeError, caller, "optimizer must not narrow a dtype of its state", remedy, **got)
        made.append(x if old.dtype == new.dtype else jnp.asarray(x, new.dtype))
    return jax.tree.unflatten(structure, made)


def finite(tree: Tree) -> jax.Array:
    """Whether every number of a tree is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def mapped_as(after: Callable[[], Tree], tree: Tree) -> Tree:
    """On an explicit mesh: `tree`, one for each example that any part of `after()` differs for. Elsewhere: `tree`.

    JAX 0.10 to 0.12 finds no mesh where it learns only in a loop that a part of its state differs between examples.
    """
    if not on_explicit_mesh():
        return tree
    zero = sum((x == x).all().astype(jnp.int32) for x in jax.tree.leaves(after())) * 0
    # Not by a select, whose batching lays out what is mapped and what is not in two ways.
    return jax.tree.map(lambda x: x + zero.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.number) else x, tree)
