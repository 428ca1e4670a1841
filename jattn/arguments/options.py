"""The options of one head, validated: what each error names is the caller's own argument."""

import contextlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors, masks, scores
from jattn._types import ScoreModifier
from jattn._values import trace
from jattn.masks import Mask


def qkv(caller: str, q: Any, k: Any, v: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q [T, D], k [S, D], v [S, Dv], floating point, D ≥ 1."""
    q, k, v = (_errors.array(caller, name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    more = "This function is one head without a batch: map it with jax.vmap, or call dot_product_attention."
    _errors.rank(caller, 2, "[T, D]", more, q=q)
    _errors.rank(caller, 2, "[S, D]", more, k=k)
    _errors.rank(caller, 2, "[S, Dv]", more, v=v)
    _errors.floating(caller, q=q, k=k, v=v)
    if q.shape[1] != k.shape[1]:
        remedy = "Project one of them to the width of the other."
        _errors.fail(ValueError, caller, "q [T, D] and k [S, D] must agree in D", remedy, q=q, k=k)
    if k.shape[0] != v.shape[0]:
        remedy = "Each key needs its one value: give k and v the same number of rows."
        _errors.fail(ValueError, caller, "k [S, D] and v [S, Dv] must agree in S", remedy, k=k, v=v)
    _errors.width(caller, "D", q=q, k=k)
    return q, k, v


def one_head(
    caller: str,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: Any,
    score: Any,
    bias: Any,
    sink: Any,
    scale: Any,
    q_positions: Any,
    k_positions: Any,
) -> dict[str, Any]:
    """The options of one head, in the form that the engine takes."""
    T, S = q.shape[0], k.shape[0]
    if mask is not None:
        if not isinstance(mask, Mask):
            allowed = booleans(caller, "mask", mask)
            _errors.broadcastable(caller, "mask", allowed, (T, S), "[T, S]")
            mask = masks.dense(jnp.atleast_2d(allowed))
        mask.validate(caller, T, S, q_positions is not None or k_positions is not None)
    if bias is not None:
        bias = bias_array(caller, bias)
        _errors.broadcastable(caller, "bias", bias, (T, S), "[T, S]")
        bias = jnp.atleast_2d(bias)
    if sink is not None:
        sink = sink_array(caller, sink)
        _errors.broadcastable(caller, "sink", sink, (T,), "[T]")
    if scale is not None:
        scale = scale_array(caller, scale)
    dependents = position_dependents(caller, mask, score, _errors.wide(q, k, v))
    q_pos, k_pos = _errors.positions(caller, T, S, q_positions, k_positions, dependents)
    positions = {"q_positions": q_pos, "k_positions": k_pos}
    return {"mask": mask, "score": score, "bias": bias, "sink": sink, "scale": scale, **positions}


def dense(T: int, S: int, options: dict[str, Any]) -> dict[str, Any]:
    """The options in the form that the reference takes: the mask and the positions written out."""
    q_pos, k_pos = (
        jnp.arange(n, dtype=jnp.int32) if options[name] is None else options[name]
        for n, name in ((T, "q_positions"), (S, "k_positions"))
    )
    mask = options["mask"]
    if mask is not None:
        mask = mask.tile(masks.Rows(0, q_pos), masks.Rows(0, k_pos))
    return {**options, "mask": mask, "q_positions": q_pos, "k_positions": k_pos}


def dropout(
    caller: str, rate: Any, key: Any, name: str = "dropout_rate", key_name: str = "dropout_key"
) -> tuple[jax.Array, jax.Array] | None:
    """(key, rate), or None where nothing is dropped."""
    if not drops(rate):
        return None
    rate = dropout_share(caller, rate, name)
    if key is None:
        must = f"{key_name} must be given where {name} is not 0"
        _errors.fail(ValueError, caller, must, _key_remedy(key_name), **{key_name: "None"})
    return one_key(caller, key, key_name), rate


def drops(rate: Any) -> bool:
    """Whether weights may be dropped at that rate: unless it is 0 and a number. A traced one may be anything."""
    return not (isinstance(rate, int | float | np.number) and rate == 0)


def dropout_share(caller: str, rate: Any, name: str = "dropout_rate") -> jax.Array:
    """The share of weights to drop, possibly traced; what is known of it is at least 0 and less than 1."""
    share = _errors.scalar(caller, name, rate, "Map over several with jax.vmap.")
    if _errors.known(share):
        n = rate if isinstance(rate, int | float | np.number) else float(_errors.read(share))
        if not 0 <= n < 1:
            must, remedy = (
                f"{name} must be at least 0 and less than 1",
                "Give the share of weights to drop; 0 drops none.",
            )
            _errors.fail(ValueError, caller, must, remedy, **{name: str(n)})
    return share


def _key_remedy(name: str) -> str:
    return f"Pass a key of jax.random: {name}=jax.random.key(0)."


def one_key(caller: str, key: Any, name: str = "dropout_key") -> jax.Array:
    """A key of dropout, of either style, as a key of the new style."""
    got = _errors.kind_of(key)
    with contextlib.suppress(TypeError):  # of what is no array of numbers
        key = _errors.array(caller, name, key)
        got = f"{key.dtype}{_errors.shape(key)}"
    if not isinstance(key, jax.Array):
        _errors.fail(TypeError, caller, f"{name} must be one key", _key_remedy(name), **{name: got})
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
        return key
    if key.dtype == jnp.uint32 and key.ndim == 1:  # of the old style, if it has as many numbers as a key
        with contextlib.suppress(TypeError):
            return jax.random.wrap_key_data(key)
    _errors.fail(TypeError, caller, f"{name} must be one key", _key_remedy(name), **{name: got})


def tile(caller: str, given: Any) -> tuple[int, int] | None:
    """(queries, keys) of a tile, or None for those that `tuning.tile_sizes` chooses."""
    if given is None:
        return None
    remedy = "Pass (queries, keys), multiples of 16, as in tile=(256, 512)."
    if not isinstance(given, tuple) or len(given) != 2:
        got = {"tile": f"of type {type(given).__name__}"}
        _errors.fail(TypeError, caller, "tile must be a pair of numbers of rows", remedy, **got)
    q, k = (_errors.count(caller, "tile", n, least=1) for n in given)
    if q % 16 or k % 16:
        _errors.fail(ValueError, caller, "tile must be multiples of 16", remedy, tile=f"({q}, {k})")
    return q, k


ENGINE = ("loops", "kernel", "interpret", "cudnn")
"""The ways to run the engine, by name."""


def implementation(caller: str, given: Any, *others: str) -> None:
    """None, or the name of one of the ways to run the engine, or of one of `others`."""
    names = (*ENGINE, *others)
    if given is None or (isinstance(given, str) and given in names):
        return
    must = f"implementation must be None, {', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
    remedy = "Leave it out for a kernel where there is one, and loops elsewhere."
    if not isinstance(given, str):
        _errors.fail(TypeError, caller, must, remedy, implementation=_errors.kind_of(given))
    _errors.fail(ValueError, caller, must, remedy, implementation=repr(given))


def row_numbers(caller: str, rows: Any, name: str = "rows") -> jax.Array:
    """Which rows of q are chosen: integers [R]."""
    rows = _errors.array(caller, name, rows)
    _errors.kind(caller, name, rows, jnp.integer, "Rows are numbers of queries: pass whole numbers.")
    remedy = f"Pass a list of row numbers, as in {name}=jax.numpy.array([2])."
    _errors.rank(caller, 1, "[R]", remedy, **{name: rows})
    return rows


def known_rows(caller: str, rows: jax.Array, T: Any, name: str = "rows", **of: Any) -> None:
    """Refuses numbers, as far as they are known, of rows that what `of` names has not; it has T."""
    wrong = T == 0 and rows.shape[0] != 0
    if isinstance(T, int) and _errors.known(rows):
        chosen = _errors.read(rows)  # by NumPy, which inside jit too says now what is so
        wrong = bool(((chosen < -T) | (chosen >= T)).any())
    if wrong:
        (side,) = of
        remedy = (
            f"Count from 0 to {T - 1}, or from the end, -1 the last." if T else f"Pass no rows where {side} has none."
        )
        _errors.fail(ValueError, caller, f"{name} must be rows of {side}", remedy, **of, **{name: rows})


def sink_array(caller: str, sink: Any, name: str = "sink") -> jax.Array:
    """A logit, or several, that join the denominator."""
    sink = _errors.array(caller, name, float(sink) if type(sink) is int else sink)
    _errors.floating(caller, **{name: sink})
    return sink


def bias_array(caller: str, bias: Any, name: str = "bias", mask: str = "mask") -> jax.Array:
    """A floating-point array that is added to the logits."""
    bias = _errors.array(caller, name, bias)
    _errors.kind(caller, name, bias, jnp.floating, f"To say which pairs are allowed, pass booleans as {mask}.")
    return bias


def scale_array(caller: str, scale: Any, name: str = "scale", axis: str = "D") -> jax.Array:
    """What dot products are multiplied by: a real scalar, possibly traced; one of Python or NumPy must be finite.
    `axis` is the letter that the caller has for the width of q and k."""
    of_numpy = isinstance(scale, np.ndarray) and scale.ndim == 0 and scale.dtype.kind == "f"
    if (of_numpy or isinstance(scale, float | np.floating)) and not math.isfinite(scale):
        _errors.fail(ValueError, caller, f"{name} must be finite", f"Leave it out for 1/√{axis}.", **{name: str(scale)})
    return _errors.scalar(caller, name, scale, "Map over several with jax.vmap.")


def booleans(caller: str, name: str, x: Any) -> jax.Array:
    """A boolean array that says which pairs are allowed."""
    if callable(x):
        remedy = f"Make a mask of a function of two positions: {name}=jattn.masks.where(f)."
        remedy = _errors.call_it(Mask, x, remedy, f"{name}=")
        must = f"{name} must be a mask or an array of booleans"
        _errors.fail(TypeError, caller, must, remedy, **{name: f"of type {type(x).__name__}"})
    x = _errors.array(caller, name, x)
    remedy = f"True allows a pair: of zeros and ones make {name} != 0. An additive mask is a bias: pass it as bias."
    _errors.kind(caller, name, x, jnp.bool_, remedy)
    return x


def mask_value(caller: str, mask: Any, remedy: str) -> Mask:
    """A value of `jattn.masks`, where booleans will not do."""
    if not isinstance(mask, Mask):
        remedy = _errors.call_it(Mask, mask, remedy, "mask=")
        _errors.fail(TypeError, caller, "mask must be a mask", remedy, mask=f"of type {type(mask).__name__}")
    _pytree(caller, "mask", mask)
    return mask


def _pytree(caller: str, name: str, x: Mask | scores.Score) -> None:
    """Refuses a mask or a score of a user's own class that JAX knows nothing of, and what is composed of one."""
    unknown = [leaf for leaf in jax.tree.leaves(x) if isinstance(leaf, Mask | scores.Score)]
    if unknown:
        remedy = (
            "Register the class: of a frozen dataclass that holds arrays with jax.tree_util.register_dataclass, "
            "of one that holds none with jax.tree_util.register_static."
        )
        got = {name: f"of type {type(unknown[0]).__name__}"}
        _errors.fail(TypeError, caller, f"{name} must be of classes that are pytrees", remedy, **got)


def position_dependents(caller: str, mask: Mask | None, score: Any, dtype: Any) -> tuple[str, ...]:
    """Which of the two arguments compare positions of q and k; refuses a score modifier that is none."""
    dependent = {"mask": mask is not None and mask.looks_at_positions}
    if mask is not None:
        _pytree(caller, "mask", mask)
    if isinstance(score, scores.Score):
        _pytree(caller, "score", score)
        dependent["score"] = score.looks_at_positions
    elif score is not None:
        dependent["score"] = _uses_positions(_score_jaxpr(caller, score, dtype))
    return tuple(name for name, compares in dependent.items() if compares)


def validate_score(caller: str, score: Any, dtype: Any) -> None:
    """Refuses what is not a function of three scalars that returns one."""
    if isinstance(score, scores.Score):
        _pytree(caller, "score", score)
    else:
        _score_jaxpr(caller, score, dtype)


def _score_jaxpr(caller: str, score: Any, dtype: Any) -> Any:
    remedy = "Write f(score, q_position, k_position) -> score on scalars; the library maps it."
    for made in (scores.Score, ScoreModifier):
        _errors.called(caller, "score", made, score, "score must take three scalars", "score=")
    _errors.takes(caller, "score", score, 3, remedy)
    i, x = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), dtype)
    with _errors.traced(caller, "score"):
        jaxpr = trace(score, x, i, i)
    out = jaxpr.out_avals
    if len(out) != 1 or out[0].shape != () or not jnp.issubdtype(out[0].dtype, jnp.floating):
        got = " and ".join(f"{o.dtype}{list(o.shape)}" for o in out) or "nothing"
        if len(out) == 1 and out[0].shape == ():
            remedy = "Convert what it returns: .astype(score.dtype)."
        _errors.fail(TypeError, caller, "score must return one real scalar", remedy, score=f"returning {got}")
    return jaxpr


def _uses_positions(jaxpr: Any) -> bool:
    """Whether either position is an input of an equation, or an output."""
    used = {id(v) for e in jaxpr.jaxpr.eqns for v in e.invars} | {id(v) for v in jaxpr.jaxpr.outvars}
    return any(id(v) in used for v in jaxpr.jaxpr.invars[1:])
