"""Doors: every error about a shape or a dtype is written here, in one voice.

    <function>: <what must hold>, got <name> <shape> and <name> <shape>. <what to do>

ValueError speaks of shapes and values, TypeError of dtypes and kinds, NotImplementedError of what
is planned. No message prints the contents of an array.
"""

import inspect
import math
import operator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np


def shape(x: Any) -> str:
    """A shape as it is spelled in every message: `[13, 5]`."""
    return "[" + ", ".join(str(n) for n in jnp.shape(x)) + "]"


def wide(*arrays: jax.Array) -> Any:
    """The dtype of arithmetic on these: float64 if one of them is, else float32. No promotion rule is asked."""
    return jnp.dtype(jnp.float64 if any(x.dtype.itemsize > 4 for x in arrays) else jnp.float32)


def fail(error: type[Exception], where: str, must: str, remedy: str, **got: Any) -> NoReturn:
    """Raises `error` with `<where>: <must>, got <name> <shape>, .... <remedy>`; a string is quoted as it is."""
    seen = " and ".join(f"{name} {x if isinstance(x, str) else shape(x)}" for name, x in got.items())
    raise error(f"{where}: {must}, got {seen}. {remedy}")


def array(where: str, name: str, x: Any) -> jax.Array:
    """`x` as a jax array, or a TypeError that names it. A Python number is moved explicitly, as transfer guards ask."""
    if isinstance(x, jax.Array):  # of a traced one jnp.asarray makes a copy, whose masked NaN jax.debug_nans would find
        return x
    try:
        return jax.device_put(x) if isinstance(x, bool | int | float) else jnp.asarray(x)
    except (TypeError, ValueError):
        got = {name: f"of type {type(x).__name__}"}
        fail(TypeError, where, f"{name} must be an array of numbers in one shape", "Pass a jax or NumPy array.", **got)


def kind(where: str, name: str, x: jax.Array, wanted: Any, remedy: str) -> None:
    """Refuses an array whose dtype is not of the kind `wanted` (`jnp.floating`, `jnp.integer`, `jnp.bool_`)."""
    if not jnp.issubdtype(x.dtype, wanted):
        what = {jnp.floating: "floating point", jnp.integer: "integer", jnp.bool_: "boolean"}[wanted]
        fail(TypeError, where, f"{name} must be {what}", remedy, **{name: f"{x.dtype}{shape(x)}"})


def floating(where: str, **arrays: jax.Array) -> None:
    """Refuses integer, boolean and complex arrays, each by its name."""
    for name, x in arrays.items():
        kind(where, name, x, jnp.floating, f"Convert it first: {name}.astype(jax.numpy.float32).")


def rank(where: str, n: int, axes: str, remedy: str, **arrays: jax.Array) -> None:
    """Refuses an array that has not exactly the `n` axes that `axes` spells."""
    for name, x in arrays.items():
        if x.ndim != n:
            fail(ValueError, where, f"{name} must have the axes {axes}", remedy, **{name: x})


def one_head(where: str, q: Any, k: Any, v: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The door of every one-head function: q [T, D], k [S, D], v [S, Dv], floating, D ≥ 1."""
    q, k, v = array(where, "q", q), array(where, "k", k), array(where, "v", v)
    more = "This function is one head without a batch: map it with jax.vmap, or call dot_product_attention."
    rank(where, 2, "[T, D]", more, q=q)
    rank(where, 2, "[S, D]", more, k=k)
    rank(where, 2, "[S, Dv]", more, v=v)
    floating(where, q=q, k=k, v=v)
    if q.shape[1] != k.shape[1]:
        remedy = "Project one of them to the width of the other."
        fail(ValueError, where, "q [T, D] and k [S, D] must agree in D", remedy, q=q, k=k)
    if k.shape[0] != v.shape[0]:
        remedy = "Each key needs its one value: give k and v the same number of rows."
        fail(ValueError, where, "k [S, D] and v [S, Dv] must agree in S", remedy, k=k, v=v)
    width(where, "D", q=q, k=k)
    return q, k, v


def broadcastable(where: str, name: str, x: jax.Array, to: tuple[int, ...], axes: str) -> None:
    """Refuses an array that does not broadcast to exactly the shape `to`."""
    try:
        fits = jnp.broadcast_shapes(x.shape, to) == to
    except ValueError:
        fits = False
    if not fits:
        target = "[" + ", ".join(map(str, to)) + "]"
        remedy = f"Give each axis its full length or 1: {axes} is {target} here."
        fail(ValueError, where, f"{name} must broadcast to {axes}", remedy, **{name: x})


def booleans(where: str, name: str, x: Any) -> jax.Array:
    """A boolean array that says which pairs meet."""
    x = array(where, name, x)
    kind(where, name, x, jnp.bool_, "True lets a pair meet. An additive mask is a bias: pass it as bias.")
    return x


def bias(where: str, x: Any) -> jax.Array:
    """A floating-point array that is added to the scores."""
    x = array(where, "bias", x)
    kind(where, "bias", x, jnp.floating, "To say which pairs meet, pass booleans as mask.")
    return x


def scalar(where: str, name: str, x: Any, remedy: str) -> jax.Array:
    """A real scalar, possibly traced; a Python int will do."""
    x = array(where, name, float(x) if type(x) is int else x)
    if x.ndim or not jnp.issubdtype(x.dtype, jnp.floating):
        fail(TypeError, where, f"{name} must be a real scalar", remedy, **{name: f"{x.dtype}{shape(x)}"})
    return x


def scale(where: str, x: Any) -> jax.Array:
    """What dot products are multiplied by: a real scalar, possibly traced, and finite where that is known."""
    if isinstance(x, float | np.floating) and not math.isfinite(x):
        fail(ValueError, where, "scale must be finite", "Leave it out for 1/√D.", scale=str(x))
    return scalar(where, "scale", x, "Map over several with jax.vmap.")


def width(where: str, axis: str, **arrays: jax.Array) -> None:
    """Refuses q and k without a column, whose scale 1/√D would be infinite, and a width that is a symbol."""
    D = next(iter(arrays.values())).shape[-1]
    if not isinstance(D, int):
        fail(ValueError, where, f"{axis} must be a number", "Export symbolic batches, heads and lengths.", **arrays)
    if D == 0:
        fail(ValueError, where, f"{axis} must be at least 1", "Give q and k at least one column.", **arrays)


def count(where: str, name: str, x: Any, *, least: int = 0) -> int:
    """A static whole number of at least `least`."""
    remedy = f"Pass a Python int of at least {least}."
    try:
        n = operator.index(x)
    except TypeError:
        fail(TypeError, where, f"{name} must be a whole number", remedy, **{name: f"of type {type(x).__name__}"})
    if isinstance(x, bool):
        fail(TypeError, where, f"{name} must be a whole number", remedy, **{name: "of type bool"})
    if n < least:
        fail(ValueError, where, f"{name} must be at least {least}", remedy, **{name: str(n)})
    return n


def positions(
    where: str, T: int, S: int, q_positions: Any, k_positions: Any, seekers: tuple[str, ...]
) -> tuple[jax.Array | None, jax.Array | None]:
    """Where each row of q and of k stands in the sequence, in tokens, or None: each at its row number."""
    both_positions(where, T, S, q_positions, k_positions, seekers)
    return _positions(where, "q", T, q_positions), _positions(where, "k", S, k_positions)


def both_positions(where: str, T: int, S: int, q_positions: Any, k_positions: Any, seekers: tuple[str, ...]) -> None:
    """Refuses positions that are missing where they matter.

    `seekers` names the arguments that compare the positions of q and k. With T ≠ S, or with only one side
    given, nothing tells them how the rows of the two align.
    """
    missing = [name for name, x in (("q_positions", q_positions), ("k_positions", k_positions)) if x is None]
    if seekers and missing and (T != S or len(missing) == 1):
        who = " and ".join(seekers) + (" looks" if len(seekers) == 1 else " look")
        remedy = (
            "Give both: q_positions=jax.numpy.arange(T) + (S - T) aligns the last rows, as in decoding, "
            "q_positions=jax.numpy.arange(T) the first; with k_positions=jax.numpy.arange(S)."
        )
        must = f"{who} at positions, so both sides must have them where T ≠ S or one side has"
        fail(ValueError, where, must, remedy, T=str(T), S=str(S), no=" and no ".join(missing))


def _positions(where: str, side: str, length: int, given: Any) -> jax.Array | None:
    if given is None:
        return None
    name, axis = f"{side}_positions", {"q": "T", "k": "S"}[side]
    x = array(where, name, given)
    kind(where, name, x, jnp.integer, "Positions count tokens: pass whole numbers.")
    if x.shape != (length,):
        remedy = f"Give one position to each row of {side}: {axis} is {length} here."
        fail(ValueError, where, f"{name} must have the shape [{axis}]", remedy, **{name: x})
    return x.astype(jnp.int32)  # signed: unsigned positions would wrap where two are subtracted


def takes(where: str, name: str, f: Any, n: int, remedy: str) -> None:
    """Refuses what is not a function of n scalars."""
    if not callable(f):
        fail(TypeError, where, f"{name} must be a function", remedy, **{name: f"of type {type(f).__name__}"})
    try:
        inspect.signature(f).bind(*range(n))
    except ValueError:  # some that are written in C do not say what they take
        return
    except TypeError:
        got = f"with the arguments {inspect.signature(f)}"
        words = {2: "two", 3: "three", 4: "four"}
        fail(TypeError, where, f"{name} must take {words[n]} scalars", remedy, **{name: got})


def score_looks_at_positions(where: str, score: Any, dtype: Any) -> bool:
    """Whether a score makes use of either position, read off its jaxpr; refuses what is not a score."""
    remedy = "Write f(score, q_position, k_position) -> score on scalars; the library maps it."
    takes(where, "score", score, 3, remedy)
    i, x = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), dtype)
    jaxpr = jax.make_jaxpr(score)(x, i, i)
    out = jaxpr.out_avals
    if len(out) != 1 or out[0].shape != () or not jnp.issubdtype(out[0].dtype, jnp.floating):
        got = " and ".join(f"{o.dtype}{list(o.shape)}" for o in out) or "nothing"
        fail(TypeError, where, "score must return one real scalar", remedy, score=f"returning {got}")
    used = {id(v) for e in jaxpr.jaxpr.eqns for v in e.invars} | {id(v) for v in jaxpr.jaxpr.outvars}
    return any(id(v) in used for v in jaxpr.jaxpr.invars[1:])
