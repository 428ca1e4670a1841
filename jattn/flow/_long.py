"""A long run, in parts: with a progress bar, and checkpoints from which it goes on after a kill."""

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jattn import _errors
from jattn.flow._paths import Data, Loss, Observe, Params, RunRule, RunState, Track, Trajectory, Tree, validate


def run_in_parts(
    loss: Loss,
    params: Params,
    optimizer: optax.GradientTransformation,
    steps: int,
    *,
    every: int,
    folder: str | os.PathLike[str] | None = None,
    on_progress: Callable[[int, int], object] | None = None,
    data: Data = (),
    observe: Observe | None = None,
    at: int | Sequence[int] | None = None,
    state: Tree = None,
    track: Track | None = None,
) -> Trajectory[Params]:
    """A long `run`, taken in parts, with word of its progress and checkpoints from which it resumes.

    Called again with the same arguments after it was stopped, by a kill too, it goes on from its last checkpoint and
    ends bit for bit where it would have ended. It stops at once where a step meets a NaN or an infinity.

    Args:
      loss: as in `run`.
      params, optimizer, steps, data, observe, at, state, track: as in `run`.
      every: how many steps a part has at most, 1 or more: how often there is word, and how much a kill can cost.
      folder: where to keep checkpoints, the last two, for one process at a time; needs the extra `train`. None keeps
        none. Resuming takes what was learned from there, and `loss`, `data` and `optimizer` from you.
      on_progress: on_progress(steps taken, steps) after each part, such as `jattn.console.progress` makes.

    Returns:
      A Trajectory, as `run` does: of the kept looks alone where the run broke.

    Raises:
      TypeError, ValueError: as `run`; or the folder holds a run with other parameters, `steps` or `at`, one whose
        `observe` picked other names, shapes or dtypes, or a last checkpoint of which files are lost or damaged; or it
        is no path.
      ModuleNotFoundError: a folder is given and orbax is not installed: the extra `train` brings it.

    Memory: as `run`; a checkpoint holds what was seen so far.

    Source: orbax, whose checkpoints are written beside and then renamed, so that one is whole or not there.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from jattn import flow
      >>> args = (lambda x: 0.5 * x**2, jnp.float32(1), optax.sgd(0.5), 4)
      >>> path = flow.run_in_parts(*args, every=3, on_progress=lambda done, steps: print(done, "of", steps))
      3 of 4
      4 of 4
      >>> print(path.params)
      0.0625
    """
    every = _errors.count("run_in_parts", "every", every, least=1)
    if folder is not None:
        folder = _errors.path("run_in_parts", "folder", folder)
    if on_progress is not None:
        remedy = "Write on_progress(steps taken, steps), or: with jattn.console.progress(title) as on_progress."
        _errors.takes("run_in_parts", "on_progress", on_progress, 2, remedy, "numbers")
    rule, params, looks = validate("run_in_parts", loss, params, optimizer, steps, data, observe, at, track)
    steps = int(steps)
    run_state = _begin(rule, params, state, data)
    told = {"steps": steps, "at": list(looks), "params": _shapes((run_state.params, run_state.state, run_state.sums))}
    seen: list[Tree] = []
    kept = None
    if folder is not None:
        like = jax.eval_shape(partial(_look, rule), run_state, data)
        kept = _Checkpoints(folder, told | {"observe": _shapes(like)})
        run_state, seen = kept.restore(run_state, like, looks)

    stops = sorted({*looks, *range(every, steps, every), steps})
    done = int(run_state.step)
    if not seen and looks[0] == 0:
        seen = [_look(rule, run_state, data)]
    for stop in (t for t in stops if t > done):
        if int(run_state.broke) >= 0:
            break
        run_state = _advance(rule, run_state, data, np.int32(stop - int(run_state.step)))
        broke = int(run_state.broke) >= 0
        if stop in looks and not broke:
            seen.append(_look(rule, run_state, data))
        if broke or stop % every == 0 or stop == steps:
            if kept is not None:
                seen = [_joined(seen)] if seen else []
                kept.save(run_state, seen)
            if on_progress is not None:
                on_progress(int(run_state.step), steps)
    if kept is not None:
        kept.close()
    if not seen:  # it broke before the first look: the end is shown in its place
        seen, looks = [_look(rule, run_state, data)], (int(run_state.step),)
    losses, shown = _joined(seen)
    at_seen = jnp.asarray(looks[: len(losses)], jnp.int32)
    return Trajectory(at_seen, losses, shown, run_state.params, run_state.state, run_state.sums, run_state.broke)


@partial(jax.jit, static_argnames="rule")
def _begin(rule: RunRule, params: Tree, state: Tree, data: Data) -> RunState:
    return rule.begin("run_in_parts", params, state, data)


@partial(jax.jit, static_argnames="rule")
def _advance(rule: RunRule, run_state: RunState, data: Data, n: Any) -> RunState:
    return rule.steps(run_state, data, n)


@partial(jax.jit, static_argnames="rule")
def _look(rule: RunRule, run_state: RunState, data: Data) -> Tree:
    """What there is to see, with a leading axis of 1."""
    return jax.tree.map(lambda x: x[None], rule.look(run_state, data))


def _joined(seen: list[Tree]) -> Tree:
    return jax.tree.map(lambda *x: jnp.concatenate(x), *seen)


def _shapes(tree: Tree) -> list[str]:
    """Each leaf by its path, dtype and shape, as a checkpoint says it."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [f"{jax.tree_util.keystr(path)} {x.dtype}{_errors.shape(x)}" for path, x in leaves]


class _Checkpoints:
    """A folder of checkpoints of one run, in the order of its steps."""

    def __init__(self, folder: Path, told: dict[str, Any]) -> None:
        try:
            import orbax.checkpoint as ocp
        except ImportError:
            _errors.missing("run_in_parts", "orbax", "train")
        self._ocp, self._told = ocp, json.loads(json.dumps(told))
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self, run_state: RunState, seen: list[Tree]) -> None:
        if int(run_state.step) in self._manager.all_steps():  # it broke right there, and will again
            return
        args = self._ocp.args
        held = args.Composite(arrays=args.StandardSave(_named(run_state, seen)), told=args.JsonSave(self._told))
        self._manager.save(int(run_state.step), args=held, force=True)

    def restore(self, run_state: RunState, like: Tree, looks: tuple[int, ...]) -> tuple[RunState, list[Tree]]:
        """The last checkpoint, or the beginning."""
        last = self._manager.latest_step()
        if last is None:
            return run_state, []
        args = self._ocp.args
        told = self._read(last, told=args.JsonRestore())
        if told != self._told:
            others = " and ".join(name for name in self._told if told.get(name) != self._told[name])
            remedy = "Give it a folder of its own, or ask for the run that is there."
            must = "folder must hold the run that is asked for"
            _errors.fail(ValueError, "run_in_parts", must, remedy, folder=f"of a run with other {others}")
        n = sum(t <= last for t in looks)
        blank = [jax.tree.map(lambda x: jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype), like)] if n else []
        held = self._read(last, arrays=args.StandardRestore(_named(run_state, blank)))
        return _filled(run_state, held["run_state"]), [_filled(like, held["seen"]) for like in blank]

    def _read(self, step: int, **item: Any) -> Any:
        """One item of a checkpoint, whatever of its files is lost or cut short."""
        (name,) = item
        try:
            return self._manager.restore(step, args=self._ocp.args.Composite(**item))[name]
        except (ValueError, LookupError, OSError):
            remedy = (
                f"Remove {step} from the folder: the run goes on from the checkpoint before it, or from its beginning."
            )
            must = "folder must hold checkpoints that can be read"
            _errors.fail(ValueError, "run_in_parts", must, remedy, folder=f"with a damaged one, {step}")

    def close(self) -> None:
        self._manager.close()


def _named(run_state: RunState, seen: list[Tree]) -> dict[str, dict[str, jax.Array]]:
    """The leaves by their numbers: what every version of orbax can hold, whatever the optimiser's state is made of.

    It holds no array without entries.
    """
    leaves = {"run_state": jax.tree.leaves(run_state), "seen": jax.tree.leaves(seen)}
    return {name: {f"{i:06d}": x for i, x in enumerate(xs) if x.size} for name, xs in leaves.items() if xs}


def _filled(like: Tree, held: dict[str, jax.Array]) -> Tree:
    """The tree with the leaves that are held by their numbers."""
    leaves = enumerate(jax.tree.leaves(like))
    made = [held[f"{i:06d}"] if x.size else jnp.zeros(x.shape, x.dtype) for i, x in leaves]
    return jax.tree.unflatten(jax.tree.structure(like), made)
