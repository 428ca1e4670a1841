"""What every scheme starts from: local blocks that fit, where their rows stand, and what a mask knows of each side."""

import dataclasses
from collections.abc import Hashable
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._types import ArrayLike, Numeric, ScoreModifier
from jattn.arguments import heads, options
from jattn.masks import EMPTY, Mask, Spans

Positions = jax.Array | None


@dataclasses.dataclass(frozen=True)
class LocalBlocks:
    """The blocks of one device. q [B, Hkv, G, T, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv], H = Hkv · G."""

    caller: str
    q: jax.Array
    k: jax.Array
    v: jax.Array
    mask: Mask | None
    score: ScoreModifier | None
    sink: jax.Array | None
    """One logit, or one a query head [Hkv, G]."""
    scale: jax.Array | None
    q_positions: Positions
    k_positions: Positions
    orders: Any
    """Where the rows of all devices stand, [P, T] and [P, S], as far as that is known before tracing."""
    batch: tuple[int, ...]
    size: int
    """P, the devices along the axis."""

    def _replace(self, **new: Any) -> "LocalBlocks":
        return dataclasses.replace(self, **new)


class SchemeOptions(TypedDict, total=False):
    """The options that every scheme takes, as `ring` documents them."""

    mask: Mask | None
    score: ScoreModifier | None
    sink: ArrayLike | None
    scale: Numeric | None
    q_positions: ArrayLike | None
    k_positions: ArrayLike | None


def local_blocks(
    caller: str,
    q: Any,
    k: Any,
    v: Any,
    axis_name: Any,
    *,
    q_whole: bool = False,
    kv_whole: bool = False,
    **given: Unpack[SchemeOptions],
) -> LocalBlocks:
    """The arguments of a scheme, validated. `kv_whole`: no mesh axis is named, every device holds all keys."""
    unknown = given.keys() - SchemeOptions.__annotations__.keys()
    if unknown:
        remedy = f"It takes {', '.join(SchemeOptions.__annotations__)} and return_lse."
        _errors.fail(TypeError, caller, "each option must be known", remedy, option=", ".join(sorted(unknown)))
    mask, score, sink, scale = given.get("mask"), given.get("score"), given.get("sink"), given.get("scale")
    size = 1 if kv_whole else devices(caller, axis_name)
    q, k, v = (_errors.array(caller, name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    axes = ("[*B, T/P, H, D]", "[*B, S/P, Hkv, D]", "[*B, S/P, Hkv, Dv]")
    remedy = "Pass the local blocks that jax.shard_map hands its function, all three with the same batch axes."
    validate_shapes(caller, q, k, v, axes, remedy)
    *batch, T, H, D = q.shape
    *_, S, Hkv, _ = v.shape
    if T == 0 or S == 0:
        remedy = "Use fewer devices, or pad the sequence."
        _errors.fail(ValueError, caller, "each device must hold at least one query and one key", remedy, q=q, k=k)
    if mask is not None:
        mask = of_shards(caller, mask)
        mask.validate(caller, T, S, True)
    if sink is not None:
        sink = heads.sink_per_head(caller, sink, H)
        sink = heads.split_heads(sink, Hkv) if sink.ndim else sink
    if scale is not None:
        scale = options.scale_array(caller, scale)
    q_here, k_here, orders = _positions(
        caller, axis_name, size, (q, k), mask, score, (given.get("q_positions"), given.get("k_positions")), q_whole
    )
    flat = int(np.prod(batch, dtype=int))
    grouped = heads.heads_before_rows(q.reshape(flat, T, H, D), Hkv)
    k, v = (jnp.moveaxis(x.reshape(flat, S, Hkv, x.shape[-1]), 1, 2) for x in (k, v))
    return LocalBlocks(
        caller, grouped, k, v, mask, score, sink, scale, q_here, k_here, orders, tuple(batch), size
    )  # fmt: skip


def validate_shapes(
    caller: str, q: jax.Array, k: jax.Array, v: jax.Array, axes: tuple[str, str, str], remedy: str
) -> None:
    """Refuses q, k and v that have not these axes, in floating point, or do not fit each other."""
    for name, spelled, x in zip("qkv", axes, (q, k, v), strict=True):
        if x.ndim < 3 or x.ndim != q.ndim:
            _errors.fail(ValueError, caller, f"{name} must have the axes {spelled}", remedy, **{name: x})
    _errors.floating(caller, q=q, k=k, v=v)
    if k.shape[:-1] != v.shape[:-1] or (*k.shape[:-3], k.shape[-1]) != (*q.shape[:-3], q.shape[-1]):
        remedy = "Give q and k the same *B and D, k and v the same *B, S and Hkv."
        _errors.fail(ValueError, caller, "q, k and v must fit each other", remedy, q=q, k=k, v=v)
    _errors.width(caller, "D", q=q, k=k)
    heads.group_size(caller, q.shape[-2], k.shape[-2], "H must be a multiple of Hkv", q=q, k=k)


def names_of(axis_name: Any) -> tuple[Any, ...]:
    """The mesh axes that are named: one, or several in a tuple."""
    return axis_name if isinstance(axis_name, tuple) else (axis_name,)


def varying_along(x: jax.Array, axis_name: Any) -> list[Any]:
    """Those of the mesh axes along which JAX knows that the devices may differ in x."""
    return [name for name in names_of(axis_name) if name in jax.typeof(x).manual_axis_type.varying]


def devices(caller: str, axis_name: Any) -> int:
    """How many devices lie along an axis of the surrounding `jax.shard_map`."""
    if not isinstance(axis_name, Hashable):
        got = {"axis_name": f"of type {type(axis_name).__name__}"}
        remedy = "Write several as ('a', 'b')."
        _errors.fail(TypeError, caller, "axis_name must be a mesh axis, or a tuple of them", remedy, **got)
    names = names_of(axis_name)
    if not names:
        remedy = "Name the mesh axis that the keys are sharded over; keys that are whole need no scheme."
        _errors.fail(ValueError, caller, "axis_name must name a mesh axis", remedy, axis_name="()")
    if len(set(names)) < len(names):
        remedy = "Give each a mesh axis of its own."
        _errors.fail(ValueError, caller, "axis_name must name an axis once", remedy, axis_name=repr(axis_name))
    try:
        return jax.lax.axis_size(axis_name)
    except (NameError, TypeError, KeyError, ValueError):  # ValueError: JAX takes an int for an axis of an array
        remedy = "Call it inside jax.shard_map over a mesh with this axis, or use jattn.sharding.attention, which does."
        must = "axis_name must be an axis of a surrounding jax.shard_map"
        _errors.fail(ValueError, caller, must, remedy, axis_name=repr(axis_name))


def manual(caller: str, axis_name: Any) -> None:
    """Refuses an axis of `jax.vmap`, around whose examples the engine's one primitive sends nothing."""
    if not {*names_of(axis_name)} <= {*jax.sharding.get_abstract_mesh().manual_axes}:
        must = "axis_name must be an axis of a surrounding jax.shard_map, and none of jax.vmap"
        remedy = "Call it inside jax.shard_map over a mesh with this axis, or take gather, which vmap takes too."
        _errors.fail(ValueError, caller, must, remedy, axis_name=repr(axis_name))


def _positions(
    caller: str,
    axis_name: Any,
    size: int,
    qk: tuple[jax.Array, jax.Array],
    mask: Any,
    score: Any,
    given: tuple[Any, Any],
    q_whole: bool,
) -> tuple[Positions, Positions, Any]:
    """Where the rows here stand, and where those of all devices do, if that is known."""
    dependents = options.position_dependents(caller, mask, score, _errors.wide(*qk))
    missing = [f"{side}_positions" for side, x in zip("qk", given, strict=True) if x is None]
    if dependents and missing:
        who = " and ".join(dependents) + (" looks" if len(dependents) == 1 else " look")
        must = f"{who} at positions, so the rows of both sides must have them"
        remedy = (
            "A block does not know where it stands: shard jax.numpy.arange(T) like q and pass the local piece, "
            "or pass the whole order as a NumPy array."
        )
        _errors.fail(ValueError, caller, must, remedy, no=" and no ".join(missing))
    here: list[Any] = []
    orders: list[Any] = []
    for side, x, block in zip("qk", given, qk, strict=True):
        if x is None:
            continue
        name, n = f"{side}_positions", block.shape[-3]
        _errors.in_int32(caller, name, x)
        known = isinstance(x, (np.ndarray, list, tuple)) and _errors.reals(x) is not None
        order = np.asarray(x) if known else None
        if side == "q" and q_whole:  # the same rows on every device
            q_here = _errors.positions(caller, n, n, x, x, ())[0]
            here.append(q_here)
            orders.append(None)
            continue
        if order is not None and order.shape == (size * n,) and np.issubdtype(order.dtype, np.integer):
            orders.append(order.astype(np.int32).reshape(size, n))
            here.append(jnp.asarray(orders[-1])[jax.lax.axis_index(axis_name)])
            continue
        x = _errors.array(caller, name, x)
        _errors.kind(caller, name, x, jnp.integer, "Positions count tokens: pass whole numbers.")
        if x.shape != (n,) or (order is not None and size > 1):
            rows = {"q": "T", "k": "S"}[side]
            must = f"{name} must be the local piece [{rows}/P], or the whole order [{rows}] as a NumPy array"
            remedy = f"{rows}/P is {n} and {rows} is {size * n} here; shard the positions as {side} is sharded."
            _errors.fail(ValueError, caller, must, remedy, **{name: x})
        moves = varying_along(x, axis_name)
        same = [a for a in varying_along(block, axis_name) if a not in moves and jax.lax.axis_size(a) > 1]
        if same and dependents:
            must = f"{name} must be sharded like {side}"
            remedy = "The same positions on each device would place all shards at one spot: give them the same spec."
            _errors.fail(ValueError, caller, must, remedy, **{name: f"the same along {same[0]!r}"})
        orders.append(None)
        here.append(x.astype(jnp.int32))
    if not dependents:
        return None, None, (None, None)
    return here[0], here[1], tuple(orders)


# Masks.


def of_shards(caller: str, mask: Any) -> Mask:
    """The mask with what it knows of rows told apart by side; refuses one that counts the rows of an array."""
    remedy = "Make one with jattn.masks; an array of booleans would have to be sharded along both its axes."
    mask = options.mask_value(caller, mask, remedy)

    def one(mask: Mask) -> Mask:
        if mask.counts_rows:
            must = "mask must not count the rows of an array, of which each device holds a piece"
            by = "by positions, as masks.causal and masks.window do, or by ids that are sharded like the rows"
            _errors.fail(ValueError, caller, must, f"Say it {by}.", mask=type(mask).__name__.lower())
        return mask.split_qk()

    return mask.map_leaves(one)


def leaf_axes(mask: Mask | None) -> list[str]:
    """Of each leaf of a mask, whose rows it has an entry for (`Mask.leaf_axes`)."""
    return [] if mask is None else mask.leaf_axes()


def _of_whole(mask: Mask) -> Mask:
    """What is known of the mask over all shards: nothing, where it looks at rows."""
    return mask.map_leaves(lambda one: Mask() if any(one.leaf_axes()) else one)


def block_states(mask: Mask, orders: Any, least: int = 1) -> tuple[Any, int, int]:
    """The block state of each piece of each shard of queries against each of keys, and how many rows a piece has."""
    q, k = (pieces(o, least) for o in orders)
    spans = [Spans(*(*[np.expand_dims(a, 1 - i) for a in x[:4]], x[4])) for i, x in enumerate((q, k))]
    states = _of_whole(mask).block_state(*spans)
    if not isinstance(states, jax.Array):
        states = np.broadcast_to(np.asarray(states), (spans[0].first.size, spans[1].first.size))
    return states, q[4], k[4]


def hop_distances(mask: Mask | None, orders: Any, size: int) -> tuple[int, ...]:
    """How far keys must travel: each distance at which the mask allows some device a pair, 0 first, then ascending.

    A distance is left out only where the mask says before tracing that no pair of the shards is allowed at it.
    """
    every = tuple(range(size))
    if mask is None or any(o is None for o in orders):
        return every
    states, *_ = block_states(mask, orders)
    if isinstance(states, jax.Array):
        return every
    allowed = (states != EMPTY).reshape(size, states.shape[0] // size, size, -1).any((1, 3))
    return tuple(d for d in every if d == 0 or any(allowed[(j + d) % size, j] for j in every))


def pieces(order: np.ndarray, least: int = 1) -> Any:
    """Each shard in as many pieces of rows as shows where it has gaps: first, last, lowest, highest, each [P · n],
    and the rows of one."""
    P, rows = order.shape
    jumps = int((np.abs(np.diff(order, axis=1)) != 1).sum(1).max(initial=0)) + 1
    n = next(m for m in range(1, rows + 1) if rows % m == 0 and (m >= max(least, min(jumps, 32)) or m == rows))
    cut = order.reshape(P * n, rows // n)
    first = np.arange(P * n, dtype=np.int32) * (rows // n)
    return first, first + rows // n - 1, cut.min(1), cut.max(1), rows // n
