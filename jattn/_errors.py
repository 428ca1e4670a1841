"""Ground: every error about a shape or a dtype is raised here, in one form.

    <function>: <what must hold>, got <name> <shape> and <name> <shape>. <what to do>

ValueError speaks of shapes and values, TypeError of dtypes and kinds, NotImplementedError of what
is planned. No message prints the contents of an array.
"""

import contextlib
import inspect
import operator
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

MOST = 2**31 - 1
"""The largest int32, in which rows and tokens are counted: no distance is larger."""

_LARGEST = float(np.finfo(np.float64).max)


def shape(x: Any) -> str:
    """A shape as it is spelled in every message: `[13, 5]`."""
    return "[" + ", ".join(str(n) for n in jnp.shape(x)) + "]"


def wide(*arrays: jax.Array | np.ndarray) -> Any:
    """The dtype of arithmetic on these: float64 if one of them is, else float32. No promotion rule is asked."""
    return jnp.dtype(jnp.float64 if any(x.dtype.itemsize > 4 for x in arrays) else jnp.float32)


def fail(error: type[Exception], caller: str, must: str, remedy: str, **got: Any) -> NoReturn:
    """Raises `error` with `<caller>: <must>, got <name> <shape>, .... <remedy>`; a string is quoted as it is."""
    seen = " and ".join(f"{name} {x if isinstance(x, str) else shape(x)}" for name, x in got.items())
    raise error(f"{caller}: {must}, got {seen}. {remedy}")


def missing(caller: str, package: str, extra: str) -> NoReturn:
    """Refuses what needs a package that is not installed, in the name of the extra that brings it."""
    must, remedy = f"{package} must be installed", f"Run: pip install 'jattn[{extra}]'."
    fail(ModuleNotFoundError, caller, must, remedy, **{package: "not found"})


def only_moved() -> AbstractContextManager[None]:
    """Around operations that move numbers and compute none: `jax.debug_nans`, which looks at what each eager operation
    returns, is not to find there the NaN that a mask hides."""
    config: Any = jax.config
    return jax.debug_nans(False) if config.jax_debug_nans else contextlib.nullcontext()


def array(caller: str, name: str, x: Any) -> jax.Array:
    """`x` as a jax array, or a TypeError that names it. A Python number is moved explicitly, as transfer guards ask."""
    if isinstance(x, jax.Array):  # of a traced one jnp.asarray makes a copy, whose masked NaN jax.debug_nans would find
        return x
    try:
        with only_moved():
            return jax.device_put(x) if isinstance(x, bool | int | float) else jnp.asarray(x)
    except (TypeError, ValueError):
        got = {name: f"of type {type(x).__name__}"}
        fail(TypeError, caller, f"{name} must be an array of numbers in one shape", "Pass a jax or NumPy array.", **got)


def leaves(caller: str, name: str, tree: Any, how: str) -> None:
    """Refuses a pytree, of what the loss of a run takes, with a leaf that is no array."""
    for x in jax.tree.leaves(tree):
        try:
            jax.eval_shape(lambda x: x, x)
        except TypeError:
            remedy, got = f"Let the loss hold what is no array: {how}.", f"of type {type(x).__name__}"
            fail(TypeError, caller, f"{name} must hold arrays", remedy, **{f"{name} with a leaf": got})


def whole_numbers(caller: str, name: str, x: Any, remedy: str) -> jax.Array:
    """Integers that count, as int32. What that does not hold, or not its opposite, is clipped: it would wrap."""
    if _on_host(x):
        with contextlib.suppress(TypeError, ValueError):  # of what is no array, which `array` refuses
            held = np.asarray(x)
            beyond = held.dtype == object and all(type(n) is int for n in held.flat)  # what int64 does not hold
            if beyond or (held.dtype.kind in "iu" and held.dtype.itemsize > 4):
                x = np.clip(held, -MOST, MOST).astype(np.int32)
    x = array(caller, name, x)
    kind(caller, name, x, jnp.integer, remedy)
    return x if x.dtype == jnp.int32 else _clipped_to_int32(x)


def _on_host(x: Any) -> bool:
    """Whether x is numbers of Python or NumPy, none of them on a device: these alone exceed what JAX holds."""
    given = isinstance(x, np.ndarray | np.integer | list | tuple | int)
    return given and not any(isinstance(a, jax.Array) for a in jax.tree.leaves(x))


@jax.jit
def _clipped_to_int32(x: jax.Array) -> jax.Array:
    """Compiled, since eagerly the bounds would be moved, which transfer guards refuse."""
    holds = jnp.iinfo(x.dtype)
    return jnp.clip(x, max(holds.min, -MOST), min(holds.max, MOST)).astype(jnp.int32)


def kind(caller: str, name: str, x: jax.Array, wanted: Any, remedy: str) -> None:
    """Refuses an array whose dtype is not of the kind `wanted` (`jnp.floating`, `jnp.integer`, `jnp.bool_`)."""
    if not jnp.issubdtype(x.dtype, wanted):
        what = {jnp.floating: "floating point", jnp.integer: "integer", jnp.bool_: "boolean"}[wanted]
        fail(TypeError, caller, f"{name} must be {what}", remedy, **{name: f"{x.dtype}{shape(x)}"})


def floating(caller: str, **arrays: jax.Array) -> None:
    """Refuses integer, boolean and complex arrays, each by its name."""
    for name, x in arrays.items():
        remedy = f"Convert it first: {name}.astype(jax.numpy.float32)."
        if jnp.issubdtype(x.dtype, jnp.complexfloating):  # whose conversion would leave half of it out
            remedy = f"Take its real part: {name}.real."
        kind(caller, name, x, jnp.floating, remedy)


def dtype(caller: str, given: Any, remedy: str, *others: Any) -> Any:
    """The dtype that was asked for by name or by type: floating point, or one of `others`."""
    must = " or ".join(("dtype must be floating point", *(jnp.dtype(other).name for other in others)))
    found = None
    if given is not None:  # NumPy would make float64 of it
        with contextlib.suppress(TypeError):
            found = jnp.dtype(given)
    if found is None or not (jnp.issubdtype(found, jnp.floating) or found in others):
        fail(TypeError, caller, must, remedy, dtype=repr(given) if found is None else str(found))
    return found


def rank(caller: str, n: int, axes: str, remedy: str, **arrays: jax.Array) -> None:
    """Refuses an array that has not exactly the `n` axes that `axes` spells."""
    for name, x in arrays.items():
        if x.ndim != n:
            fail(ValueError, caller, f"{name} must have the axes {axes}", remedy, **{name: x})


def broadcastable(caller: str, name: str, x: jax.Array, to: tuple[int, ...], axes: str) -> None:
    """Refuses an array that does not broadcast to exactly the shape `to`."""
    try:
        fits = jnp.broadcast_shapes(x.shape, to) == to
    except ValueError:
        fits = False
    if not fits:
        target = "[" + ", ".join(map(str, to)) + "]"
        remedy = f"Give each axis its full length or 1: {axes} is {target} here."
        fail(ValueError, caller, f"{name} must broadcast to {axes}", remedy, **{name: x})


def scalar(caller: str, name: str, x: Any, remedy: str) -> jax.Array:
    """A real scalar, possibly traced; an integer of Python or NumPy will do."""
    x = array(caller, name, float(x) if type(x) is int or isinstance(x, np.integer) else x)
    if x.ndim or not jnp.issubdtype(x.dtype, jnp.floating):
        remedy = remedy if x.ndim else "Pass it in floating point."
        fail(TypeError, caller, f"{name} must be a real scalar", remedy, **{name: f"{x.dtype}{shape(x)}"})
    return x


def width(caller: str, axis: str, **arrays: jax.Array) -> None:
    """Refuses q and k without a column, whose scale 1/√D would be infinite, and a width that is a symbol."""
    D = next(iter(arrays.values())).shape[-1]
    if not isinstance(D, int):
        fail(ValueError, caller, f"{axis} must be a number", "Export symbolic batches, heads and lengths.", **arrays)
    if D == 0:
        fail(ValueError, caller, f"{axis} must be at least 1", "Give q and k at least one column.", **arrays)


def count(caller: str, name: str, x: Any, *, least: int = 0) -> int:
    """A static whole number of at least `least`."""
    remedy = f"Pass a Python int of at least {least}."
    try:
        n = operator.index(x)
    except TypeError:
        fail(TypeError, caller, f"{name} must be a whole number", remedy, **{name: f"of type {type(x).__name__}"})
    if isinstance(x, bool):
        fail(TypeError, caller, f"{name} must be a whole number", remedy, **{name: "of type bool"})
    if n < least:
        fail(ValueError, caller, f"{name} must be at least {least}", remedy, **{name: str(n)})
    return n


def flag(caller: str, name: str, x: Any, remedy: str = "Pass a bool, static in jax.jit.") -> bool:
    """A bool of Python or NumPy, or an array of one that is known: any other object would count as true or false."""
    one = isinstance(x, jax.Array | np.ndarray) and x.dtype == np.bool_ and x.ndim == 0 and known(x)
    if not (isinstance(x, bool | np.bool_) or one):
        got = "traced" if not known(x) else kind_of(x)
        fail(TypeError, caller, f"{name} must be True or False", remedy, **{name: got})
    return bool(read(x)) if one else bool(x)


def reals(x: Any) -> np.ndarray | None:
    """`x` as float64, or None if it holds no real numbers of one shape, or is traced."""
    try:
        held = np.asarray(x)
        if held.dtype.kind == "O":  # whole numbers of Python may be past every float64
            held = np.where(held > _LARGEST, np.inf, np.where(held < -_LARGEST, -np.inf, held))
        return None if x is None or held.dtype.kind in "cmMSU" else np.asarray(held, np.float64)
    except (TypeError, ValueError):
        return None


def kind_of(x: Any) -> str:
    """What was given where numbers were asked for, as a message says it."""
    return f"of dtype {x.dtype}" if isinstance(x, (np.ndarray, np.generic)) else f"of type {type(x).__name__}"


def amount(
    caller: str, name: str, x: Any, *, above: float | None = None, remedy: str = "Pass a Python float."
) -> float:
    """A finite real number that is known, more than `above` if that is given."""
    held = reals(x)
    if held is None or held.ndim:
        got = {name: kind_of(x) if held is None else held}
        fail(TypeError, caller, f"{name} must be one number", remedy, **got)
    n, bound = float(held), "" if above is None else f" and more than {above:g}"
    if not np.isfinite(n) or (above is not None and n <= above):
        fail(ValueError, caller, f"{name} must be finite{bound}", remedy, **{name: f"{n:g}"})
    return n


def known(*xs: Any) -> bool:
    """Whether these have values that an error can depend on: outside jit, vmap and the like."""
    return not any(isinstance(x, jax.core.Tracer) for x in xs)


def read(x: Any) -> Any:
    """The values of what is `known`, fetched from its device explicitly, as jax.transfer_guard lets pass."""
    return jax.device_get(x)


def index(caller: str, name: str, x: Any, n: int, axis: str) -> None:
    """Refuses a number that is known and is none of the n of an axis: indexing would take another one."""
    if known(x) and isinstance(n, int) and not 0 <= (i := int(read(x))) < n:
        got = {name: str(i), axis: str(n)}
        fail(ValueError, caller, f"{name} must be from 0 to {axis} - 1", "Count from 0.", **got)


def number_of(caller: str, name: str, x: Any, n: int, axis: str) -> jax.Array:
    """The number of one of the n of an axis, possibly traced."""
    number = array(caller, name, x)
    kind(caller, name, number, jnp.integer, f"Pass a whole number from 0 to {axis} - 1.")
    rank(caller, 0, "[]", "Map over several with jax.vmap.", **{name: number})
    index(caller, name, x, n, axis)
    return number


def positions(
    caller: str, T: int, S: int, q_positions: Any, k_positions: Any, dependents: tuple[str, ...]
) -> tuple[jax.Array | None, jax.Array | None]:
    """Where each row of q and of k stands in the sequence, in tokens, or None: each at its row number."""
    both_positions(caller, T, S, q_positions, k_positions, dependents)
    return _positions(caller, "q", T, q_positions), _positions(caller, "k", S, k_positions)


def both_positions(
    caller: str, T: int, S: int, q_positions: Any, k_positions: Any, dependents: tuple[str, ...]
) -> None:
    """Refuses positions that are missing where they matter.

    `dependents` names the arguments that compare the positions of q and k. With T ≠ S, or with only one side
    given, nothing tells them how the rows of the two align.
    """
    missing = [name for name, x in (("q_positions", q_positions), ("k_positions", k_positions)) if x is None]
    if dependents and missing and (T != S or len(missing) == 1):
        who = " and ".join(dependents) + (" looks" if len(dependents) == 1 else " look")
        remedy = (
            "Give both: q_positions=jax.numpy.arange(T) + (S - T) aligns the last rows, as in decoding, "
            "q_positions=jax.numpy.arange(T) the first; with k_positions=jax.numpy.arange(S)."
        )
        must = f"{who} at positions, so both sides must have them where T ≠ S or one side has"
        fail(ValueError, caller, must, remedy, T=str(T), S=str(S), no=" and no ".join(missing))


def _positions(caller: str, side: str, length: int, given: Any) -> jax.Array | None:
    if given is None:
        return None
    name, axis = f"{side}_positions", {"q": "T", "k": "S"}[side]
    in_int32(caller, name, given)
    x = array(caller, name, given)
    kind(caller, name, x, jnp.integer, "Positions count tokens: pass whole numbers.")
    if x.shape != (length,):
        remedy = f"Give one position to each row of {side}: {axis} is {length} here."
        fail(ValueError, caller, f"{name} must have the shape [{axis}]", remedy, **{name: x})
    return x.astype(jnp.int32)  # signed: unsigned positions would wrap where two are subtracted


def in_int32(caller: str, name: str, given: Any, remedy: str = "Count the tokens from one that is nearer.") -> None:
    """Refuses what int32 does not hold of Python and NumPy: it would wrap. Numbers on a device are not asked."""
    held = reals(given) if _on_host(given) else None
    if held is not None and (held.min(initial=0) < -(2**31) or held.max(initial=0) >= 2**31):
        fail(ValueError, caller, f"{name} must be numbers that int32 holds", remedy, **{name: held})


def starts(caller: str, q: Any, k: Any = None) -> tuple[jax.Array, jax.Array]:
    """Where sequences of any lengths start in q and in k, as in q if None: int32 [N + 1] that do not decrease."""
    found = {}
    for name, given in (("starts", q), ("k_starts", q if k is None else k)):
        x = found[name] = whole_numbers(caller, name, given, "Starts count rows: pass whole numbers.")
        remedy = "Give the start of each sequence and the end of the last; map over a batch with jax.vmap."
        rank(caller, 1, "[N + 1]", remedy, **{name: x})
        if x.shape[0] == 0:
            fail(ValueError, caller, f"{name} must have at least one entry", remedy, **{name: x})
    if len({x.shape for x in found.values()}) > 1:
        remedy = "Each sequence has its queries and its keys: an empty one starts where the next does."
        fail(ValueError, caller, "starts and k_starts must be equally many", remedy, **found)
    first, second = found.values()
    return _ordered(first), _ordered(second)


@jax.jit
def _ordered(rows: jax.Array) -> jax.Array:
    """Row numbers that do not decrease, from 0 on."""
    return jax.lax.cummax(jnp.maximum(rows, 0))


def path(caller: str, name: str, x: Any) -> Path:
    """A path of a file or a folder, given as text or as a `pathlib.Path`."""
    if not isinstance(x, str | os.PathLike) or not isinstance(os.fspath(x), str):
        got = {name: f"of type {type(x).__name__}"}
        fail(TypeError, caller, f"{name} must be a path", "Pass a string or a pathlib.Path.", **got)
    text = os.fspath(x)
    if not text or "\0" in text:
        got = {name: "with a null character" if text else "empty"}
        fail(ValueError, caller, f"{name} must be a path", "Name a file or a folder.", **got)
    return Path(x)


def function(caller: str, name: str, f: Any, remedy: str) -> None:
    """Refuses what cannot be called."""
    if not callable(f):
        fail(TypeError, caller, f"{name} must be a function", remedy, **{name: f"of type {type(f).__name__}"})


def call_it(kind: Any, f: Any, remedy: str, option: str = "") -> str:
    """The remedy; where f is a function of jattn that returns what is asked for, such as a mask: to call it."""
    if getattr(f, "__annotations__", {}).get("return") is not kind or not f.__module__.startswith("jattn."):
        return remedy
    return f"Call it: {option}{f.__module__.rpartition('.')[0]}.{f.__name__}(…)."


def called(caller: str, name: str, kind: Any, f: Any, must: str, option: str = "") -> None:
    """Refuses a function of jattn that is passed in place of what it returns."""
    remedy = call_it(kind, f, "", option)
    if remedy:
        fail(TypeError, caller, must, remedy, **{name: f"of type {type(f).__name__}"})


def loss(caller: str, made: Any) -> None:
    """Refuses a loss by what `jax.eval_shape` says that it returns, where that is not one real number."""
    if not hasattr(made, "shape") or made.shape or not jnp.issubdtype(made.dtype, jnp.floating):
        got = f"{made.dtype}{shape(made)}" if hasattr(made, "shape") else f"of type {type(made).__name__}"
        remedy = "Reduce it to one number, by a sum or a mean."
        fail(ValueError, caller, "loss must return one real scalar", remedy, **{"loss returning": got})


def takes(caller: str, name: str, f: Any, n: int, remedy: str, what: str = "scalars") -> None:
    """Refuses what is not a function of n scalars, or of n of something else."""
    function(caller, name, f, remedy)
    try:
        inspect.signature(f).bind(*range(n))
    except ValueError:  # some that are written in C do not say what they take
        return
    except TypeError:
        got = f"with the arguments {inspect.signature(f)}"
        words = {2: "two", 3: "three", 4: "four"}
        fail(TypeError, caller, f"{name} must take {words[n]} {what}", remedy, **{name: got})


@contextlib.contextmanager
def traced(caller: str, name: str) -> Iterator[None]:
    """Refuses a function that, as it is traced within, asks for the value of a scalar that it was given."""
    try:
        yield
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        remedy = "Choose with jnp.where instead of if, and look arrays up in JAX: jnp.asarray(table)[t - s]."
        got = {name: f"that asks for the value of a traced scalar ({type(error).__name__})"}
        fail(TypeError, caller, f"{name} must be a function that JAX can trace", remedy, **got)
