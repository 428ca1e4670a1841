"""The schemes: ways for P devices, each with a piece of one sequence, to attend over all of it."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, Protocol, Unpack, cast, overload, runtime_checkable

import jax.numpy as jnp

from jattn import _errors
from jattn._types import Array, ArrayLike, AxisName, Float
from jattn.arguments.heads import rows_before_heads
from jattn.partials import merge_devices
from jattn.sharding._blocks import SchemeOptions, devices, local_blocks, varying_along
from jattn.sharding._exchange import (
    all_gather,
    attend_local,
    attend_local_unrounded,
    gather_metadata,
    heads_to_sequence,
    ring_attention,
    sequence_to_heads,
    unflatten_batch,
)


@runtime_checkable
class Scheme(Protocol):
    """What every scheme is, inside `jax.shard_map`: a function of local blocks, as `ring` documents it."""

    @overload
    def __call__(
        self,
        q: Float[ArrayLike, "*B T H D"],
        k: Float[ArrayLike, "*B S Hkv D"],
        v: Float[ArrayLike, "*B S Hkv Dv"],
        *,
        axis_name: AxisName,
        return_lse: Literal[False] = ...,
        **options: Unpack[SchemeOptions],
    ) -> Float[Array, "*B T H Dv"]: ...
    @overload
    def __call__(
        self,
        q: Float[ArrayLike, "*B T H D"],
        k: Float[ArrayLike, "*B S Hkv D"],
        v: Float[ArrayLike, "*B S Hkv Dv"],
        *,
        axis_name: AxisName,
        return_lse: Literal[True],
        **options: Unpack[SchemeOptions],
    ) -> tuple[Float[Array, "*B T H Dv"], Float[Array, "*B T H"]]: ...
    def __call__(
        self,
        q: Float[ArrayLike, "*B T H D"],
        k: Float[ArrayLike, "*B S Hkv D"],
        v: Float[ArrayLike, "*B S Hkv Dv"],
        *,
        axis_name: AxisName,
        return_lse: bool = False,
        **options: Unpack[SchemeOptions],
    ) -> Float[Array, "*B T H Dv"] | tuple[Float[Array, "*B T H Dv"], Float[Array, "*B T H"]]: ...


def _scheme(f: Callable[..., Any]) -> Scheme:
    return cast(Scheme, f)


@_scheme
def ring(
    q: Float[ArrayLike, "*B T H D"],
    k: Float[ArrayLike, "*B S Hkv D"],
    v: Float[ArrayLike, "*B S Hkv Dv"],
    *,
    axis_name: AxisName,
    return_lse: bool = False,
    **options: Unpack[SchemeOptions],
) -> Float[Array, "*B T H Dv"] | tuple[Float[Array, "*B T H Dv"], Float[Array, "*B T H"]]:
    """Attention over a sequence in P pieces: keys and values go round, each device adds a partial for its queries.

        (out, lse) = merge over the shards j of attention(q, k_j, v_j)

    Called inside `jax.shard_map`, on the local blocks. Batch axes are optional; jax.vmap maps over more.

    Args:
      q: [*B, T/P, H, D], floating point.
      k: [*B, S/P, Hkv, D]. v: [*B, S/P, Hkv, Dv]. H is a multiple of Hkv: each key/value head serves H / Hkv heads.
      axis_name: the mesh axis that T and S are sharded over, P devices long.
      mask: a value of `jattn.masks` that looks at positions, or at ids [T/P], [S/P] sharded like the rows, for every
        head. A device skips the tiles in which nothing is allowed.
      score: f(score, q_position, k_position) -> score on scalars, for every head; the gradient of what it closes over
        is summed over the devices.
      sink: a logit that joins the denominator, a scalar or one a query head [H].
      scale: what the dot products are multiplied by; 1/√D if None.
      q_positions: integers [T/P], where the rows of this device stand, in tokens, in any layout: contiguous, zigzag,
        striped. Or the order of all devices [T], as a NumPy array: then a distance at which the mask allows
        nothing is known before the program runs, and nothing is sent for it.
      k_positions: likewise of k. Both are needed where mask or score looks at them.
      return_lse: also return the log-sum-exp.

    Returns:
      [*B, T/P, H, Dv] in the dtype of v, or (that, lse [*B, T/P, H]), as `jattn.attention`, to rounding. A query that
      may attend no key on any device gives zeros and lse = −inf (or its sink).

    Raises:
      TypeError, ValueError: axis_name is not bound, or names an axis twice; blocks, positions or sink do not fit; the
        mask counts rows; or return_lse is no bool.

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
    b = local_blocks("ring", q, k, v, axis_name, **options)
    return unflatten_batch(b, *ring_attention(b, axis_name), return_lse)


@_scheme
def all_to_all(
    q: Float[ArrayLike, "*B T H D"],
    k: Float[ArrayLike, "*B S Hkv D"],
    v: Float[ArrayLike, "*B S Hkv Dv"],
    *,
    axis_name: AxisName,
    return_lse: bool = False,
    **options: Unpack[SchemeOptions],
) -> Float[Array, "*B T H Dv"] | tuple[Float[Array, "*B T H Dv"], Float[Array, "*B T H"]]:
    """Attention over a sequence in P pieces: heads are exchanged for rows, each device attends with H/P whole heads.

    Called inside `jax.shard_map`, on the local blocks.

    Args:
      q, k, v, axis_name, mask, score, sink, scale, q_positions, k_positions, return_lse: as in `ring`. H is a multiple
        of P; and Hkv is one, or P a multiple of Hkv: then P / Hkv devices get the same key/value head.

    Returns:
      As `ring`.

    Raises:
      TypeError, ValueError: as `ring`; or heads that cannot be divided among the devices.

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
    b = local_blocks("all_to_all", q, k, v, axis_name, **options)
    whole_rows = heads_to_sequence(b, axis_name)
    out, lse = (sequence_to_heads(rows_before_heads(x), axis_name) for x in attend_local(whole_rows))
    return unflatten_batch(b, out, lse, return_lse)


@_scheme
def gather(
    q: Float[ArrayLike, "*B T H D"],
    k: Float[ArrayLike, "*B S Hkv D"],
    v: Float[ArrayLike, "*B S Hkv Dv"],
    *,
    axis_name: AxisName,
    return_lse: bool = False,
    **options: Unpack[SchemeOptions],
) -> Float[Array, "*B T H Dv"] | tuple[Float[Array, "*B T H Dv"], Float[Array, "*B T H"]]:
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
    b = local_blocks("gather", q, k, v, axis_name, **options)
    k, v = (all_gather(x, axis_name, 2) for x in (b.k, b.v))
    here = b._replace(k=k, v=v, **gather_metadata(b, axis_name, queries=False))
    out, lse = attend_local(here)
    return unflatten_batch(b, rows_before_heads(out), rows_before_heads(lse), return_lse)


@_scheme
def tree(
    q: Float[ArrayLike, "*B T H D"],
    k: Float[ArrayLike, "*B S Hkv D"],
    v: Float[ArrayLike, "*B S Hkv Dv"],
    *,
    axis_name: AxisName,
    return_lse: bool = False,
    **options: Unpack[SchemeOptions],
) -> Float[Array, "*B T H Dv"] | tuple[Float[Array, "*B T H Dv"], Float[Array, "*B T H"]]:
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
    caller = "tree"
    devices(caller, axis_name)
    varying = varying_along(_errors.array(caller, "q", q), axis_name)
    if varying:
        remedy = "Leave the axis out of its spec; for queries that are sharded like the keys use ring."
        got = {"q": f"varying along {varying[0]!r}"}
        _errors.fail(ValueError, caller, "q must be the same on every device of the axis", remedy, **got)
    b = local_blocks(caller, q, k, v, axis_name, q_whole=True, **options)
    own, m, log_sum = attend_local_unrounded(dataclasses.replace(b, sink=None))  # it joins the denominator once
    lowest = jnp.float32(-jnp.inf) if b.sink is None else b.sink[None, ..., None] if b.sink.ndim else b.sink
    lowest = jnp.broadcast_to(lowest, m.shape).astype(m.dtype)
    out, lse = merge_devices(own, m, log_sum, axis_name, lowest)
    return unflatten_batch(b, rows_before_heads(out.astype(b.v.dtype)), rows_before_heads(lse), return_lse)


@_scheme
def ring_all_to_all(
    q: Float[ArrayLike, "*B T H D"],
    k: Float[ArrayLike, "*B S Hkv D"],
    v: Float[ArrayLike, "*B S Hkv Dv"],
    *,
    axis_name: tuple[AxisName, AxisName],
    return_lse: bool = False,
    **options: Unpack[SchemeOptions],
) -> Float[Array, "*B T H Dv"] | tuple[Float[Array, "*B T H Dv"], Float[Array, "*B T H"]]:
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
    caller = "ring_all_to_all"
    if not isinstance(axis_name, tuple) or len(axis_name) != 2:
        remedy = "Name the axis of the ring and the axis of the heads, in this order."
        _errors.fail(TypeError, caller, "axis_name must be a pair of mesh axes", remedy, axis_name=repr(axis_name))
    b = local_blocks(caller, q, k, v, axis_name, **options)
    along, across = axis_name
    whole_rows = heads_to_sequence(b, across, along)
    out, lse = (sequence_to_heads(x, across) for x in ring_attention(whole_rows, along))
    return unflatten_batch(b, out, lse, return_lse)


@_scheme
def whole(q: Any, k: Any, v: Any, *, axis_name: Any, return_lse: bool, **options: Unpack[SchemeOptions]) -> Any:
    """A sequence that every device holds whole: no scheme at all."""
    b = local_blocks("attention", q, k, v, axis_name, kv_whole=True, **options)
    out, lse = attend_local(b)
    return unflatten_batch(b, rows_before_heads(out), rows_before_heads(lse), return_lse)
