"""What a picture is given: numbers, names, the record of a run. Read here for all three media, refused in one voice."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias, runtime_checkable

import numpy as np

from jattn import _errors
from jattn._types import NumPyArrayLike
from jattn.masks import EMPTY, FULL, PARTIAL

_ORDER = ("loss", "p", "p_r", "cosines", "margin", "norm")  # of the panels of a run; any others follow
LARGEST = 1e300  # what is drawn is added and multiplied by small numbers, in float64
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@runtime_checkable
class RunFields(Protocol):
    """The attributes that an object must have to be drawn as a run; further ones are series."""

    @property
    def q(self) -> NumPyArrayLike: ...
    @property
    def k(self) -> NumPyArrayLike: ...
    @property
    def weights(self) -> NumPyArrayLike: ...


@runtime_checkable
class SeenRun(Protocol):
    """A `flow.Trajectory`, of which the fields of `seen` are drawn, at the steps or times `at`."""

    @property
    def at(self) -> NumPyArrayLike: ...
    @property
    def seen(self) -> Any: ...


RunLike: TypeAlias = Mapping[str, object] | RunFields | SeenRun
"""A run as it is given: these arrays by name, an object with these attributes, or one that has seen such an object."""


@dataclasses.dataclass(frozen=True)
class Run:
    """F frames of one query among S keys of width D, each from the same moment of a descent."""

    steps: np.ndarray  # [F], the number of the step, increasing
    q: np.ndarray  # [F, D]
    k: np.ndarray  # [F, S, D]
    weights: np.ndarray  # [F, S]
    series: dict[str, dict[str, np.ndarray]]  # panel → name → [F], whatever else was recorded


def array(caller: str, name: str, x: Any, axes: str) -> np.ndarray:
    """`x` as float64, of any shape."""
    held = _errors.reals(x)
    if held is None:
        must, got = f"{name} must be an array of numbers {axes}", {name: _errors.kind_of(x)}
        _errors.fail(TypeError, caller, must, "Pass real numbers, in one shape throughout.", **got)
    return held


def numbers(
    caller: str, name: str, x: Any, shape: tuple[int | None, ...], axes: str, *, finite: bool = True
) -> np.ndarray:
    """`x` as float64 of the shape asked for (None: any length), finite throughout where that matters."""
    x = array(caller, name, x, axes)
    if x.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, x.shape, strict=True)):
        want = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
        remedy = f"Here that is {want}: draw one head and two dimensions at a time."
        _errors.fail(ValueError, caller, f"{name} must have the shape {axes}", remedy, **{name: x})
    if finite and not np.isfinite(x).all():
        _errors.fail(ValueError, caller, f"{name} must be finite", "Leave out what is not a number.", **{name: x})
    if finite and np.abs(x).max(initial=0) > LARGEST:
        remedy = "Sums of larger numbers overflow: draw them in another unit."
        _errors.fail(ValueError, caller, f"{name} must be at most {LARGEST:g} in size", remedy, **{name: x})
    return x


def target(caller: str, name: str, file: Path) -> None:
    """Refuses a folder where a file is to be written, and makes the folder that the file lies in."""
    if file.is_dir():
        must, remedy = f"{name} must not name a folder", "Name a file in it, or beside it."
        _errors.fail(IsADirectoryError, caller, must, remedy, **{file.name or ".": "that is a folder"})
    file.parent.mkdir(parents=True, exist_ok=True)


def single(caller: str, name: str, x: np.ndarray) -> np.ndarray:
    """`x` in float32, which must hold each of its finite numbers."""
    if np.abs(x, where=np.isfinite(x), out=np.zeros_like(x)).max(initial=0) > np.finfo(np.float32).max:
        must, remedy = f"{name} must be finite in float32 where it is finite", "Draw it in another unit."
        _errors.fail(ValueError, caller, must, remedy, **{name: x})
    return x.astype(np.float32)


def block_states(caller: str, name: str, x: Any, shape: tuple[int | None, ...], axes: str) -> np.ndarray:
    """The block state of a mask for each tile."""
    states = numbers(caller, name, x, shape, axes)
    if not np.isin(states, (EMPTY, PARTIAL, FULL)).all():
        remedy = "These are EMPTY, PARTIAL and FULL, as mask.block_state says."
        _errors.fail(ValueError, caller, f"{name} must be 0, 1 or 2", remedy, **{name: states})
    return states


def equal_blocks(caller: str, mass: np.ndarray, T: int, S: int, *, most: int | None = None) -> None:
    """Refuses n × m blocks that T queries and S keys are not cut into."""
    for name, axis, n, tokens in (("n", "T", mass.shape[0], T), ("m", "S", mass.shape[1], S)):
        if not 1 <= n <= (most or n) or -(-tokens // -(-tokens // n)) != n:
            must = f"{name} must be how many equal blocks {axis} is cut into" + f", at most {most}" * bool(most)
            remedy = "Only the last block may be shorter."
            _errors.fail(ValueError, caller, must, remedy, **{"mass": mass, axis: str(tokens)})


def names(caller: str, name: str, given: Sequence[str], axis: str, n: int) -> list[str]:
    """The names as strings, one for each index of an axis."""
    try:
        length = None if isinstance(given, str) else len(given)
    except TypeError:
        length = None
    if length != n:
        got = repr(given) if isinstance(given, str) else f"of type {type(given).__name__}"
        got = got if length is None else f"of length {length}"
        _errors.fail(ValueError, caller, f"{name} must hold {axis} = {n} names", "Give a list of them.", **{name: got})
    return [str(x) for x in given]


def several(caller: str, name: str, given: Any) -> list[Any]:
    """A list of what was given, which must not be one text."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        got = {name: f"of type {type(given).__name__}"}
        _errors.fail(TypeError, caller, f"{name} must be a list", "Put one alone in brackets too.", **got)
    return list(given)


def mapping(caller: str, name: str, given: Any, of: str) -> dict[Any, Any]:
    """What a mapping holds; nothing if None."""
    if given is not None and not isinstance(given, Mapping):
        got = {name: f"of type {type(given).__name__}"}
        _errors.fail(TypeError, caller, f"{name} must map {of}", "Pass a mapping, or None.", **got)
    return dict(given or {})


def printable(text: str) -> str:
    """A text on one line: what would control a terminal, or be no character of a file, is an escape such as \\n."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def axes_of(x: Any) -> int:
    """How many axes `x` has; 0 if it has not one shape, which `numbers` refuses."""
    held = _errors.reals(x)
    return 0 if held is None else held.ndim


def four(caller: str, weights: Any) -> np.ndarray:
    """Weights of many heads as [L, H, T, S]; [H, T, S] is one layer, [T, S] one head of one layer."""
    x = array(caller, "weights", weights, "[T, S], [H, T, S] or [L, H, T, S]")
    if x.ndim not in (2, 3, 4):
        must = "weights must have the axes [T, S], [H, T, S] or [L, H, T, S]"
        _errors.fail(ValueError, caller, must, "Take the batch apart first.", weights=x)
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def entropy(weights: np.ndarray) -> np.ndarray:
    """−Σ w ln w over the last axis, in nats; 0 ln 0 is 0."""
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite has no entropy
        return np.asarray(0.0 - np.sum(weights * np.log(np.where(weights > 0, weights, 1)), axis=-1))  # 0.0 −: no −0


def fields(x: Any) -> dict[str, Any] | None:
    """What a mapping, a dataclass, a named tuple or a plain object holds, by name; None for an array or a number."""
    if isinstance(x, Mapping):
        return {str(name): y for name, y in x.items()}
    if dataclasses.is_dataclass(x):
        return {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
    if hasattr(x, "_asdict"):
        return dict(x._asdict())
    if hasattr(x, "__array__") or not hasattr(x, "__dict__"):
        return None
    return dict(vars(x))


def run(caller: str, given: Any, *, name: str = "run") -> Run:
    """The frames of a run, from a mapping or from any object with such attributes.

    It must hold q [F, D], k [F, S, D] (or [S, D], where the keys are frozen) and weights [F, S]; `steps` [F] numbers
    the frames 0, 1, … if it is not there. Any other field of shape [F] is a series; a field that itself has fields
    of shape [F], and all those that begin with `cos`, share a panel. Fields of other shapes are let pass. Of what has
    `at` and `seen` in their place, as a `flow.Trajectory` has, it is `seen` that holds them, and `at` its steps.
    """
    held = fields(given)
    if held is not None and "q" not in held and {"at", "seen"} <= held.keys():
        seen = fields(held["seen"])
        if seen is None or not {"q", "k", "weights"} <= seen.keys():
            remedy = "Run it with observe=flow.watch(…), or another that returns them by name."
            _refuse_run(caller, f"{name}.seen", held["seen"], seen, remedy)
        held = seen | {"steps": held["at"]}
    if held is None or not {"q", "k", "weights"} <= held.keys():
        _refuse_run(caller, name, given, held, "Pass a mapping, or an object with these attributes.")
    q = numbers(caller, f"{name}.q", held["q"], (None, None), "[F, D]", finite=False)
    F, D = q.shape
    if not F:
        _errors.fail(
            ValueError, caller, f"{name} must have at least one frame", "Record the start.", **{f"{name}.q": q}
        )
    frozen = axes_of(held["k"]) == 2
    shape, axes = ((None, D), "[S, D]") if frozen else ((F, None, D), "[F, S, D]")
    k = numbers(caller, f"{name}.k", held["k"], shape, axes, finite=False)
    k = np.broadcast_to(k, (F, *k.shape[-2:]))
    weights = numbers(caller, f"{name}.weights", held["weights"], (F, k.shape[1]), "[F, S]", finite=False)
    steps = held.get("steps", np.arange(F))
    steps = numbers(caller, f"{name}.steps", steps, (F,), "[F]")
    if (np.diff(steps) <= 0).any():
        got = {f"{name}.steps": "in another order"}
        _errors.fail(ValueError, caller, f"{name}.steps must increase", "Sort the frames by step.", **got)
    return Run(steps, q, k, weights, _series(held, F))


def _refuse_run(caller: str, name: str, given: Any, held: dict[str, Any] | None, remedy: str) -> NoReturn:
    got = {name: "of type " + type(given).__name__ + ("" if held is None else f" with {', '.join(held)}")}
    _errors.fail(TypeError, caller, f"{name} must hold q, k and weights", remedy, **got)


def _series(held: dict[str, Any], F: int) -> dict[str, dict[str, np.ndarray]]:
    panels: dict[str, dict[str, np.ndarray]] = {}
    for name, x in held.items():
        if name in ("q", "k", "weights", "steps"):
            continue
        inner = fields(x)
        for label, y in ({name: x} if inner is None else inner).items():
            y = _errors.reals(y)
            if y is not None and y.shape == (F,):
                panel = "cosines" if name.startswith("cos") else name
                panels.setdefault(panel, {})[label] = y
    first = [name for name in _ORDER if name in panels]
    return {name: panels[name] for name in [*first, *sorted(panels.keys() - set(first))]}


def pairs(caller: str, name: str, given: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Quantity → (predicted [F], measured [F]); a prediction that is one number holds for every frame."""
    held = fields(given)
    if not held:
        got = {name: f"of type {type(given).__name__}" if held is None else "empty"}
        must = f"{name} must map each quantity to (predicted, measured)"
        _errors.fail(TypeError, caller, must, "Pass a mapping.", **got)
    made = {}
    for label, both in held.items():
        place = f"{name}[{label!r}]"
        if not hasattr(both, "__len__") or len(both) != 2:
            got = {place: f"of type {type(both).__name__}"}
            _errors.fail(
                TypeError, caller, f"{place} must be (predicted, measured)", "Give both, in this order.", **got
            )
        measured = np.atleast_1d(array(caller, f"{place}[1]", both[1], "[F]"))
        measured = numbers(caller, f"{place}[1]", measured, (None,), "[F]", finite=False)
        predicted = array(caller, f"{place}[0]", both[0], "[F]")
        predicted = np.broadcast_to(predicted, measured.shape) if predicted.ndim == 0 else predicted
        made[label] = (
            numbers(caller, f"{place}[0]", predicted, measured.shape, "[F]", finite=False),
            measured,
        )
    return made


def hull(points: np.ndarray) -> np.ndarray:
    """The corners of the convex hull of points in the plane, [m, 2], counterclockwise (Andrew's monotone chain)."""
    ordered = np.unique(points, axis=0)
    if len(ordered) < 3:
        return ordered

    def half(chain: np.ndarray) -> list[np.ndarray]:
        made: list[np.ndarray] = []
        for p in chain:
            while len(made) > 1 and np.linalg.det(np.stack([made[-1] - made[-2], p - made[-2]])) <= 0:
                made.pop()
            made.append(p)
        return made[:-1]

    return np.array(half(ordered) + half(ordered[::-1]))
