"""The schemes: ways for P devices, each with a piece of one sequence, to attend over all of it."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from jattn import _checks, door
from jattn._types import Score
from jattn._walk import walk
from jattn.masks import Mask
from jattn.sharding._blocks import Blocks, blocks, devices, sides, steps
from jattn.sharding._ring import EACH, Heads, Ring, Way
from jattn.tiles import Operands


def ring(
    q: Any,
    k: Any,
    v: Any,
    *,
    axis_name: Any,
    mask: Mask | None = None,
    score: Score | None = None,
    sink: Any = None,
    scale: Any = None,
    q_positions: Any = None,
    k_positions: Any = None,
    return_lse: bool = False,
) -> Any:
    """Attention over a sequence in P pieces: keys and values go round, each device adds a partial for its queries.

        (out, lse) = merge over the shards j of attention(q, k_j, v_j)

    Called inside `jax.shard_map`, on the local blocks. Batch axes are optional; jax.vmap maps over more.

    Args:
      q: [*B, T/P, H, D], floating point.
      k: [*B, S/P, Hkv, D]. v: [*B, S/P, Hkv, Dv]. H is a multiple of Hkv: each key/value head serves H / Hkv heads.
      axis_name: the mesh axis that T and S are sharded over, P devices long.
      mask: a value of `jattn.masks` that looks at positions, or at ids [T/P], [S/P] sharded like the rows, for every
        head. A device skips the tiles in which nothing meets.
      score: f(score, q_position, k_position) -> score on scalars, for every head; the gradient of what it closes over
        is summed over the devices.
      sink: a logit that joins the denominator, a scalar or one a query head [H].
      scale: what the dot products are multiplied by; 1/√D if None.
      q_positions: integers [T/P], where the rows of this device stand, in tokens, in any layout: contiguous, zigzag,
        striped. Or the order of all devices [T], as a NumPy array: then a distance at which the mask lets nothing
        meet is known before the program runs, and nothing is sent for it.
      k_positions: likewise of k. Both are needed where mask or score looks at them.
      return_lse: also return the log-sum-exp.

    Returns:
      [*B, T/P, H, Dv] in the dtype of v, or (that, lse [*B, T/P, H]), as `jattn.attention`, to rounding. A query that
      meets nothing on any device gives zeros and lse = −inf (or its sink).

    Raises:
      TypeError, ValueError: axis_name is not bound; blocks, positions or sink do not fit; the mask counts rows.

    Memory: per device O(T/P + S/P) for the value, grad, jvp and jvp-of-grad, whatever P; O(S) for grad-of-grad. Sends
      (P − 1)(K + V) for the value, 2(P − 1)(K + V) + (K + V) more for the gradient, in local shards.

    Source: Liu, Zaharia and Abbeel 2023, "Ring attention with blockwise transformers for near-infinite context".

    Example:
      >>> import functools, jax, jax.numpy as jnp, numpy as np, jattn
      >>> from jax.sharding import PartitionSpec as P
      >>> mesh = jax.make_mesh((1,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> x = jax.random.normal(jax.random.key(0), (3, 1, 8, 2, 4))
      >>> f = functools.partial(jattn.sharding.ring, axis_name="seq", mask=jattn.masks.causal(),
      ...                       q_positions=np.arange(8), k_positions=np.arange(8))
      >>> out = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P(None, "seq"), out_specs=P(None, "seq")))(*x)
      >>> bool(jnp.allclose(out, jattn.dot_product_attention(*x, is_causal=True), atol=1e-6))
      True
    """
    b = blocks("ring", q, k, v, axis_name, mask, score, sink, scale, q_positions, k_positions)
    return _given(b, *_ring(b, axis_name), return_lse)


def all_to_all(
    q: Any,
    k: Any,
    v: Any,
    *,
    axis_name: Any,
    mask: Mask | None = None,
    score: Score | None = None,
    sink: Any = None,
    scale: Any = None,
    q_positions: Any = None,
    k_positions: Any = None,
    return_lse: bool = False,
) -> Any:
    """Attention over a sequence in P pieces: heads are exchanged for rows, each device attends with H/P whole heads.

    Called inside `jax.shard_map`, on the local blocks.

    Args:
      q, k, v, axis_name, mask, score, sink, scale, q_positions, k_positions, return_lse: as in `ring`. H is a multiple
        of P; and Hkv is one, or P a multiple of Hkv: then P / Hkv devices get the same key/value head.

    Returns:
      As `ring`.

    Raises:
      TypeError, ValueError: as `ring`; or heads that cannot be dealt to the devices.

    Memory: per device O((T + S) · H/P): that of one device over P, but not less with a longer ring.

    Source: Jacobs et al. 2023, "DeepSpeed Ulysses".

    Example:
      >>> import functools, jax, jax.numpy as jnp, jattn
      >>> from jax.sharding import PartitionSpec as P
      >>> mesh = jax.make_mesh((1,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> x = jax.random.normal(jax.random.key(0), (3, 1, 8, 2, 4))
      >>> f = functools.partial(jattn.sharding.all_to_all, axis_name="seq")
      >>> out = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P(None, "seq"), out_specs=P(None, "seq")))(*x)
      >>> bool(jnp.allclose(out, jattn.dot_product_attention(*x), atol=1e-6))
      True
    """
    b = blocks("all_to_all", q, k, v, axis_name, mask, score, sink, scale, q_positions, k_positions)
    dealt = _dealt(b, axis_name)
    out, lse = (_back(dealt.rows(x), axis_name) for x in _whole(dealt))
    return _given(b, out, lse, return_lse)


def gather(
    q: Any,
    k: Any,
    v: Any,
    *,
    axis_name: Any,
    mask: Mask | None = None,
    score: Score | None = None,
    sink: Any = None,
    scale: Any = None,
    q_positions: Any = None,
    k_positions: Any = None,
    return_lse: bool = False,
) -> Any:
    """Attention over a sequence in P pieces: every device collects all keys and values for its queries.

    Called inside `jax.shard_map`, on the local blocks. One collective and any number of heads: the choice where K and V
    are small beside Q.

    Args:
      q, k, v, axis_name, mask, score, sink, scale, q_positions, k_positions, return_lse: as in `ring`.

    Returns:
      As `ring`.

    Raises:
      TypeError, ValueError: as `ring`.

    Memory: per device O(S).

    Source: Llama Team 2024, "The Llama 3 herd of models", section 3.3.2 (context parallelism).

    Example:
      >>> import functools, jax, jax.numpy as jnp, jattn
      >>> from jax.sharding import PartitionSpec as P
      >>> mesh = jax.make_mesh((1,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> x = jax.random.normal(jax.random.key(0), (3, 1, 8, 2, 4))
      >>> f = functools.partial(jattn.sharding.gather, axis_name="seq")
      >>> out = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P(None, "seq"), out_specs=P(None, "seq")))(*x)
      >>> bool(jnp.allclose(out, jattn.dot_product_attention(*x), atol=1e-6))
      True
    """
    b = blocks("gather", q, k, v, axis_name, mask, score, sink, scale, q_positions, k_positions)
    k, v = (_collected(x, axis_name, 2) for x in (b.k, b.v))
    here = b._replace(k=k, v=v, **_known(b, axis_name, queries=False))
    out, lse = _whole(here)
    return _given(b, b.rows(out), b.rows(lse), return_lse)


def tree(
    q: Any,
    k: Any,
    v: Any,
    *,
    axis_name: Any,
    mask: Mask | None = None,
    score: Score | None = None,
    sink: Any = None,
    scale: Any = None,
    q_positions: Any = None,
    k_positions: Any = None,
    return_lse: bool = False,
) -> Any:
    """Attention of the same few queries on every device over keys in P pieces: one merge of partials. For decoding.

        m = max_j lse_j,    out = Σ_j exp(lse_j − m) out_j / Σ_j exp(lse_j − m)

    Called inside `jax.shard_map`. One maximum and one sum over the devices, of B·T·H and B·T·H·(Dv + 1) numbers.

    Args:
      q: [*B, T, H, D], the same on every device of the axis.
      k, v, axis_name, mask, score, sink, scale, k_positions, return_lse: as in `ring`.
      q_positions: integers [T], the same on every device of the axis.

    Returns:
      [*B, T, H, Dv], or (that, lse [*B, T, H]), the same on every device.

    Raises:
      TypeError, ValueError: as `ring`; or a query that differs between the devices, as far as JAX knows (check_vma).

    Memory: per device O(S/P).

    Source: Shyam et al. 2024, "Tree attention: topology-aware decoding for long-context attention on GPU clusters".

    Example:
      >>> import functools, jax, jax.numpy as jnp, jattn
      >>> from jax.sharding import PartitionSpec as P
      >>> mesh = jax.make_mesh((1,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> x = jax.random.normal(jax.random.key(0), (3, 1, 8, 2, 4))
      >>> f = functools.partial(jattn.sharding.tree, axis_name="seq")
      >>> f = jax.shard_map(f, mesh=mesh, in_specs=(P(), P(None, "seq"), P(None, "seq")), out_specs=P())
      >>> out = jax.jit(f)(x[0, :, :1], x[1], x[2])
      >>> bool(jnp.allclose(out, jattn.dot_product_attention(x[0, :, :1], x[1], x[2]), atol=1e-6))
      True
    """
    where = "tree"
    devices(where, axis_name)
    if axis_name in jax.typeof(_checks.array(where, "q", q)).manual_axis_type.varying:
        remedy = "Leave the axis out of its spec; for queries that are sharded like the keys use ring."
        got = {"q": f"varying along {axis_name!r}"}
        _checks.fail(ValueError, where, "q must be the same on every device of the axis", remedy, **got)
    b = blocks(where, q, k, v, axis_name, mask, score, None, scale, q_positions, k_positions, q_whole=True)
    own, lse = _whole(b)
    sinks = None if sink is None else blocks(where, q, k, v, axis_name, None, None, sink, None, None, None).sink
    lowest = jnp.float32(-jnp.inf) if sinks is None else sinks[None, ..., None] if sinks.ndim else sinks
    lowest = jnp.broadcast_to(lowest, lse.shape).astype(lse.dtype)
    top = jnp.maximum(jax.lax.pmax(jax.lax.stop_gradient(lse), axis_name), jax.lax.stop_gradient(lowest))
    top = jnp.where(top == -jnp.inf, 0, top)
    w = jnp.exp(lse - top)
    out, total = jax.lax.psum((w[..., None] * own.astype(lse.dtype), w), axis_name)
    total = total + jnp.exp(lowest - top)
    met = total > 0
    total = jnp.where(met, total, 1)
    out = (out / total[..., None]).astype(own.dtype)
    return _given(b, b.rows(out), b.rows(jnp.where(met, top + jnp.log(total), -jnp.inf)), return_lse)


def ring_all_to_all(
    q: Any,
    k: Any,
    v: Any,
    *,
    axis_name: tuple[Any, Any],
    mask: Mask | None = None,
    score: Score | None = None,
    sink: Any = None,
    scale: Any = None,
    q_positions: Any = None,
    k_positions: Any = None,
    return_lse: bool = False,
) -> Any:
    """Attention over a sequence in R × U pieces: heads are exchanged for rows among U devices, keys go round R.

    Called inside `jax.shard_map`, on the local blocks of a sequence that is sharded over both axes.

    Args:
      q, k, v, mask, score, sink, scale, q_positions, k_positions, return_lse: as in `ring`, with P = R · U; heads as in
        `all_to_all`, with U for P.
      axis_name: the two mesh axes, (ring, heads), as in the spec P(None, (ring, heads)).

    Returns:
      As `ring`.

    Raises:
      TypeError, ValueError: as `ring` and `all_to_all`.

    Memory: per device O((T + S) / R · H/U).

    Source: Fang and Zhao 2024, "USP: a unified sequence parallelism approach for long context generative AI".

    Example:
      >>> import functools, jax, jax.numpy as jnp, jattn
      >>> from jax.sharding import PartitionSpec as P
      >>> mesh = jax.make_mesh((1, 1), ("ring", "heads"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
      >>> x = jax.random.normal(jax.random.key(0), (3, 1, 8, 2, 4))
      >>> f = functools.partial(jattn.sharding.ring_all_to_all, axis_name=("ring", "heads"))
      >>> spec = P(None, ("ring", "heads"))
      >>> out = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec))(*x)
      >>> bool(jnp.allclose(out, jattn.dot_product_attention(*x), atol=1e-6))
      True
    """
    where = "ring_all_to_all"
    if not isinstance(axis_name, tuple) or len(axis_name) != 2:
        remedy = "Name the axis of the ring and the axis of the heads, in this order."
        _checks.fail(TypeError, where, "axis_name must be a pair of mesh axes", remedy, axis_name=repr(axis_name))
    b = blocks(where, q, k, v, axis_name, mask, score, sink, scale, q_positions, k_positions)
    along, across = axis_name
    dealt = _dealt(b, across, all_axes=axis_name)
    out, lse = (_back(x, across) for x in _ring(dealt, along))
    return _given(b, out, lse, return_lse)


def whole(q: Any, k: Any, v: Any, *, axis_name: tuple[()], return_lse: bool, **options: Any) -> Any:
    """A sequence that every device holds whole: no scheme at all."""
    given = (options.get(name) for name in ("mask", "score", "sink", "scale", "q_positions", "k_positions"))
    b = blocks("attention", q, k, v, axis_name, *given)
    out, lse = _whole(b)
    return _given(b, b.rows(out), b.rows(lse), return_lse)


# What they share.


def _given(b: Blocks, out: jax.Array, lse: jax.Array, return_lse: bool) -> Any:
    out, lse = (x.reshape(*b.batch, *x.shape[-n:]) for x, n in ((out, 3), (lse, 2)))
    return (out, lse) if return_lse else out


def _operands(b: Blocks) -> tuple[Any, Operands]:
    """How one head is computed, and the operands of all of them."""
    one = Operands(
        b.q[0, 0, 0], b.k[0, 0], b.v[0, 0], None, None, b.scale, (), b.mask, b.q_positions, b.k_positions, None
    )
    plan, x = door.prepared(one, b.score, None)
    return plan, x._replace(q=b.q, k=b.k, v=b.v, sink=b.sink)


def _levels(b: Blocks, x: Operands) -> Operands:
    """Which of the operands each example, key/value head and query head has of its own, leaf by leaf."""
    none = jax.tree.map(lambda _: (False, False, False), x)
    own = (False, True, True) if b.sink is not None and b.sink.ndim else (False,) * 3
    keys = (True, True, False)
    return none._replace(q=EACH, k=keys, v=keys, sink=None if b.sink is None else own)


def _level(a: Any) -> bool:
    return type(a) is tuple and a[:1] in ((True,), (False,))


def _ring(b: Blocks, axis_name: Any) -> tuple[jax.Array, jax.Array]:
    """(out [B, T, H, Dv], lse [B, T, H]) of keys that go round."""
    plan, x = _operands(b)
    leaves, tree = jax.tree.flatten(x)
    levels = tuple(jax.tree.leaves(_levels(b, x), is_leaf=_level))
    places = jax.tree.unflatten(tree, range(len(leaves)))
    of_mask = [i for i, side in zip(jax.tree.leaves(places.mask), sides(b.mask), strict=True) if side == "k"]
    travels = tuple(sorted([places.k, places.v, *of_mask, *([] if b.k_positions is None else [places.k_positions])]))
    visited = steps(b.mask, b.orders, b.size)
    way = Way(axis_name, b.size, tuple(j - i for i, j in itertools.pairwise(visited)))
    heads = Heads(plan, tree, levels, (b.q.shape[0], b.q.shape[1], b.q.shape[2]), travels, places.sink)
    out, m, log_sum = walk(Ring(heads, way), *leaves)
    return b.rows(out).astype(b.v.dtype), b.rows(m + log_sum)


def _whole(b: Blocks) -> tuple[jax.Array, jax.Array]:
    """(out [B, Hkv, G, T, Dv], lse [B, Hkv, G, T]) of the keys that are here: the one-device engine, mapped."""
    sink = b.sink
    own = 0 if sink is not None and sink.ndim else None

    def head(q: jax.Array, k: jax.Array, v: jax.Array, sink: Any) -> Any:
        return door.attend(
            q, k, v, mask=b.mask, score=b.score, scale=b.scale, sink=sink,
            q_positions=b.q_positions, k_positions=b.k_positions,
        )  # fmt: skip

    f = head
    for kv, s in ((None, own), (0, own), (0, None)):
        f = jax.vmap(f, (0, kv, kv, s))
    return f(b.q, b.k, b.v, sink)


def _collected(x: jax.Array, axis_name: Any, axis: int) -> jax.Array:
    return jax.lax.all_gather(x, axis_name, axis=axis, tiled=True)


def _known(b: Blocks, axis_name: Any, *, queries: bool = True) -> dict[str, Any]:
    """Positions and mask of all keys, and of all queries, collected from the devices along an axis."""

    def all_of(x: Any) -> Any:
        return None if x is None else _collected(x, axis_name, 0)

    mask = b.mask
    if mask is not None:
        leaves, tree = jax.tree.flatten(mask)
        wanted = ("q", "k") if queries else ("k",)
        leaves = [all_of(x) if side in wanted else x for x, side in zip(leaves, sides(mask), strict=True)]
        mask = jax.tree.unflatten(tree, leaves)

    def places(x: Any, order: Any) -> Any:
        return all_of(x) if order is None or whole != b.size else jnp.asarray(order.reshape(-1))

    whole = jax.lax.axis_size(axis_name)
    q_pos = places(b.q_positions, b.orders[0]) if queries else b.q_positions
    return {"mask": mask, "q_positions": q_pos, "k_positions": places(b.k_positions, b.orders[1])}


def _dealt(b: Blocks, axis_name: Any, *, all_axes: Any = None) -> Blocks:
    """The blocks after heads were exchanged for rows: whole rows along the axis, 1/U of the heads."""
    U = jax.lax.axis_size(axis_name)
    _, Hkv, G, _, _ = b.q.shape
    if (Hkv * G) % U or (Hkv % U and U % Hkv):
        must = "the heads must be dealt evenly: H a multiple of the devices, and Hkv one, or the devices one of Hkv"
        remedy = "Use ring or gather, which take any number of heads, or fewer devices along this axis."
        got = {"H": str(Hkv * G), "Hkv": str(Hkv), "devices": str(U)}
        _checks.fail(ValueError, b.where, must, remedy, **got)
    copies = max(1, U // Hkv)
    here = Hkv * copies // U  # key/value heads on each device
    q = b.q.reshape(b.q.shape[0], Hkv * G, *b.q.shape[3:])
    swap = {"axis_name": axis_name, "split_axis": 1, "concat_axis": 2, "tiled": True}
    q = jax.lax.all_to_all(q, **swap)
    k, v = (jax.lax.all_to_all(jnp.repeat(x, copies, 1) if copies > 1 else x, **swap) for x in (b.k, b.v))
    q = q.reshape(q.shape[0], here, Hkv * G // U // here, *q.shape[2:])
    sink = b.sink
    if sink is not None and sink.ndim:
        mine = jax.lax.axis_index(axis_name)
        sink = jax.lax.dynamic_index_in_dim(sink.reshape(U, -1), mine, 0, keepdims=False).reshape(q.shape[1:3])
    orders = b.orders
    if all_axes is not None:
        orders = tuple(None if o is None else o.reshape(-1, U * o.shape[1]) for o in orders)
    size = b.size // U if all_axes is not None else 1
    known = _known(b, axis_name)
    return b._replace(q=q, k=k, v=v, sink=sink, orders=orders, size=size, batch=(q.shape[0],), **known)


def _back(x: jax.Array, axis_name: Any) -> jax.Array:
    """[B, T, H/U, ...] to [B, T/U, H, ...]."""
    return jax.lax.all_to_all(x, axis_name, split_axis=1, concat_axis=2, tiled=True)
