"""What the schemes share: the ring of keys, heads exchanged for rows, gathering, and the engine on local blocks."""

from typing import Any

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn.arguments.heads import merge_heads, rows_before_heads, split_heads, vmap_heads
from jattn.engine.attend import attend_unrounded, make_plan
from jattn.engine.batching import batched_call
from jattn.engine.plan import Operands
from jattn.sharding._blocks import LocalBlocks, hop_distances, leaf_axes, manual
from jattn.sharding._ring import EACH, MappedHead, RingForward, RingSchedule


def unflatten_batch(b: LocalBlocks, out: jax.Array, lse: jax.Array, return_lse: bool) -> Any:
    """The result of a scheme, with the batch axes that its arguments had."""
    return_lse = _errors.flag(b.caller, "return_lse", return_lse)
    out, lse = (x.reshape(*b.batch, *x.shape[-n:]) for x, n in ((out, 3), (lse, 2)))
    return (out, lse) if return_lse else out


def _operands(b: LocalBlocks) -> tuple[Any, Operands]:
    """How one head is computed, and the operands of all of them."""
    q, k, v = (jnp.zeros(x.shape[n:], x.dtype) for x, n in ((b.q, 3), (b.k, 2), (b.v, 2)))  # of an empty batch too
    one = Operands(q, k, v, scale=b.scale, mask=b.mask)
    one = one._replace(q_positions=b.q_positions, k_positions=b.k_positions)
    plan, x = make_plan(one, b.score, None)
    return plan, x._replace(q=b.q, k=b.k, v=b.v, sink=b.sink)


def _levels(b: LocalBlocks, x: Operands) -> Operands:
    """Which of the operands each example, key/value head and query head has of its own, leaf by leaf."""
    none = jax.tree.map(lambda _: (False, False, False), x)
    own = (False, True, True) if b.sink is not None and b.sink.ndim else (False,) * 3
    keys = (True, True, False)
    return none._replace(q=EACH, k=keys, v=keys, sink=None if b.sink is None else own)


def _level(a: Any) -> bool:
    return type(a) is tuple and a[:1] in ((True,), (False,))


def ring_attention(b: LocalBlocks, axis_name: Any) -> tuple[jax.Array, jax.Array]:
    """(out [B, T, H, Dv], lse [B, T, H]) of keys that go round a ring."""
    if not b.q.shape[0]:  # an empty batch: arrays without a number, which nothing has to send
        out, lse = attend_local(b)
        return rows_before_heads(out), rows_before_heads(lse)
    manual(b.caller, axis_name)
    plan, x = _operands(b)
    leaves, tree = jax.tree.flatten(x)
    levels = tuple(jax.tree.leaves(_levels(b, x), is_leaf=_level))
    places = jax.tree.unflatten(tree, range(len(leaves)))
    of_mask = [i for i, axes in zip(jax.tree.leaves(places.mask), leaf_axes(b.mask), strict=True) if axes == "k"]
    travels = tuple(sorted([places.k, places.v, *of_mask, *([] if b.k_positions is None else [places.k_positions])]))
    schedule = RingSchedule.past(axis_name, b.size, hop_distances(b.mask, b.orders, b.size))
    heads = MappedHead(plan, tree, levels, (b.q.shape[0], b.q.shape[1], b.q.shape[2]), travels, places.sink)
    out, m, log_sum = batched_call(RingForward(heads, schedule), *leaves)
    return rows_before_heads(out).astype(b.v.dtype), rows_before_heads(m + log_sum)


def attend_local(b: LocalBlocks) -> tuple[jax.Array, jax.Array]:
    """(out [B, Hkv, G, T, Dv], lse [B, Hkv, G, T]) over the keys of this device."""
    out, m, log_sum = attend_local_unrounded(b)
    return out.astype(b.v.dtype), m + log_sum


def attend_local_unrounded(b: LocalBlocks) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(out, m, log_sum) over the keys of this device, in the dtype of the arithmetic: the one-device engine, mapped."""

    def head(q: jax.Array, k: jax.Array, v: jax.Array, sink: Any) -> Any:
        one = Operands(q, k, v, sink=sink, scale=b.scale, mask=b.mask)
        return attend_unrounded(one._replace(q_positions=b.q_positions, k_positions=b.k_positions), b.score)

    own = 0 if b.sink is not None and b.sink.ndim else None
    found: tuple[jax.Array, jax.Array, jax.Array] = vmap_heads(head, [None, own, own])(b.q, b.k, b.v, b.sink)
    return found


def all_gather(x: jax.Array, axis_name: Any, axis: int) -> jax.Array:
    return jax.lax.all_gather(x, axis_name, axis=axis, tiled=True)


def gather_metadata(b: LocalBlocks, axis_name: Any, along: Any = None, *, queries: bool = True) -> dict[str, Any]:
    """Positions and mask of all keys, and of all queries, gathered from the devices along an axis.

    `along` is the axis of the shards that these then form, if there are several. Nothing is sent of an order that was
    known before tracing.
    """
    shards = b.size // jax.lax.axis_size(axis_name)
    here = 0 if along is None else jax.lax.axis_index(along)

    def all_of(x: Any) -> Any:
        return None if x is None else all_gather(x, axis_name, 0)

    mask = b.mask
    if mask is not None:
        leaves, tree = jax.tree.flatten(mask)
        wanted = ("q", "k") if queries else ("k",)
        leaves = [all_of(x) if axes in wanted else x for x, axes in zip(leaves, leaf_axes(mask), strict=True)]
        mask = jax.tree.unflatten(tree, leaves)

    def places(x: Any, order: Any) -> Any:
        return all_of(x) if order is None else jnp.asarray(order.reshape(shards, -1))[here]

    q_pos = places(b.q_positions, b.orders[0]) if queries else b.q_positions
    return {"mask": mask, "q_positions": q_pos, "k_positions": places(b.k_positions, b.orders[1])}


def heads_to_sequence(b: LocalBlocks, axis_name: Any, along: Any = None) -> LocalBlocks:
    """The blocks after heads were exchanged for rows: all rows of the axis, 1/U of the heads.

    `along` is the axis of the larger shards of the sequence that these rows are, if there are several.
    """
    U = jax.lax.axis_size(axis_name)
    _, Hkv, G, _, _ = b.q.shape
    if (Hkv * G) % U or (Hkv % U and U % Hkv):
        must = "the heads must divide evenly: H a multiple of the devices, and Hkv one, or the devices one of Hkv"
        remedy = "Use ring or gather, which take any number of heads, or fewer devices along this axis."
        got = {"H": str(Hkv * G), "Hkv": str(Hkv), "devices": str(U)}
        _errors.fail(ValueError, b.caller, must, remedy, **got)
    copies = max(1, U // Hkv)
    here = Hkv * copies // U  # key/value heads on each device
    q = merge_heads(b.q, 1)
    swap = {"axis_name": axis_name, "split_axis": 1, "concat_axis": 2, "tiled": True}
    q = jax.lax.all_to_all(q, **swap)
    k, v = (jax.lax.all_to_all(_repeat_heads(x, copies), **swap) for x in (b.k, b.v))
    q = split_heads(q, here, 1)
    sink = b.sink
    if sink is not None and sink.ndim:
        mine = jax.lax.axis_index(axis_name)
        sink = jax.lax.dynamic_index_in_dim(sink.reshape(U, -1), mine, 0, keepdims=False).reshape(q.shape[1:3])
    orders = tuple(None if o is None else o.reshape(-1, U * o.shape[1]) for o in b.orders)
    found = gather_metadata(b, axis_name, along)
    return b._replace(q=q, k=k, v=v, sink=sink, orders=orders, size=b.size // U, batch=(q.shape[0],), **found)


def _repeat_heads(x: jax.Array, copies: int) -> jax.Array:
    """[B, Hkv, ...] → [B, Hkv · copies, ...], as jnp.repeat, which fails without jit where a mesh axis is explicit."""
    return merge_heads(jnp.broadcast_to(x[:, :, None], (*x.shape[:2], copies, *x.shape[2:])), 1)


def sequence_to_heads(x: jax.Array, axis_name: Any) -> jax.Array:
    """[B, T, H/U, ...] to [B, T/U, H, ...]."""
    return jax.lax.all_to_all(x, axis_name, split_axis=1, concat_axis=2, tiled=True)
