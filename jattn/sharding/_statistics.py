"""Statistics of keys that many devices hold in pieces, merged as partial attentions are."""

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._numerics import finite_or_zero
from jattn._types import ArrayLike, AxisName, Float
from jattn.arguments.options import sink_array
from jattn.partials import merge_devices
from jattn.reference import Statistics
from jattn.sharding._blocks import devices


def merge_statistics(
    found: Statistics, *, axis_name: AxisName, sink: Float[ArrayLike, "..."] | None = None
) -> Statistics:
    """The statistics of the same queries over the keys of all devices, from those over the keys of each.

        max_logit = max_j max_logit_j          lse = log(Σ_j exp(lse_j) + exp(sink))
        mean_logit = Σ_j p_j mean_logit_j      entropy = Σ_j p_j (entropy_j − log p_j)
        sink_weight = Σ_j exp(lse_j − lse) sink_weight_j + exp(sink − lse)
        group_weights = Σ_j exp(lse_j − lse) group_weights_j

    with p_j the share that the keys of device j have in the weights of all keys, and effective_keys = exp(entropy).
    Called inside `jax.shard_map`, on what `jattn.statistics` says of the queries, which every device of the axis has
    whole, and of the keys of this device. Under `jax.vmap(..., axis_name=...)` it merges the pieces of one device.

    Args:
      found: Statistics of arrays [*B, T], and group_weights [*B, T, G], with any axes *B, as heads and a batch.
      axis_name: the mesh axis that the keys are sharded over, or several.
      sink: a logit that joins the denominator, of a shape that broadcasts to [*B, T]: for one a head [H, 1]. Here it
        counts once. A sink that each device passed to `jattn.statistics` counts once for each.

    Returns:
      Statistics as of `jattn.statistics` on one device, to rounding, the same on every device, differentiable to every
      order. Entropy is in nats. Where several devices have the largest logit, its derivative is that of the first.
      A device without a key for a query changes nothing of it; a query without any key has what `jattn.statistics`
      documents. The error of the entropy is that of the log-sum-exps, a few eps · (1 + max_j |lse_j|).

    Raises:
      TypeError, ValueError: axis_name is not bound; found are not Statistics; sink does not fit.

    Memory: as its inputs. Sends maxima and sums over the devices, of *B · T · (G + 10) numbers in all; nothing of the
      size of q or k. Where the queries are sharded like the keys, gather them first, as the example does.

    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3, for the weights;
      Shannon 1948, "A mathematical theory of communication", section 6, property 3: a choice in two steps.

    Example:
      >>> import jax, jax.numpy as jnp, jattn
      >>> from jax.sharding import PartitionSpec as P
      >>> mesh = jax.make_mesh((1,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> q, k = jax.random.normal(jax.random.key(0), (2, 8, 4))
      >>> def measure(q, k):
      ...     own = jattn.statistics(jax.lax.all_gather(q, "seq", tiled=True), k)
      ...     return jattn.sharding.merge_statistics(own, axis_name="seq")
      >>> found = jax.jit(jax.shard_map(measure, mesh=mesh, in_specs=P("seq"), out_specs=P()))(q, k)
      >>> bool(jnp.allclose(found.entropy, jattn.statistics(q, k).entropy, atol=1e-6))
      True
    """
    caller = "merge_statistics"
    devices(caller, axis_name)
    if not isinstance(found, Statistics):
        got = {"found": f"of type {type(found).__name__}"}
        _errors.fail(TypeError, caller, "found must be Statistics", "Pass what jattn.statistics returns.", **got)
    lse, dtype = found.lse, found.lse.dtype
    alone = jnp.full(lse.shape, -jnp.inf, dtype)
    if sink is not None:
        sink = sink_array(caller, sink)
        _errors.broadcastable(caller, "sink", sink, lse.shape, "[*B, T]")
        alone = jnp.broadcast_to(sink.reshape((1,) * (lse.ndim - sink.ndim) + sink.shape).astype(dtype), lse.shape)

    # The weights of the groups and of the sink are the values of a partial attention; a sink alone is one too.
    weights = jnp.concatenate([found.group_weights, found.sink_weight[..., None]], -1)
    weights, merged = merge_devices(weights, lse, jnp.zeros_like(lse), axis_name, alone)
    sink_weight = weights[..., -1] + jnp.exp(alone - finite_or_zero(merged))

    # The log-sum-exp of the keys alone, also where each device had a sink. The maximum counts as a constant.
    keys = jnp.where(found.sink_weight == 0, lse, found.mean_logit + found.entropy)
    m = jax.lax.stop_gradient(jax.lax.pmax(jax.lax.stop_gradient(keys), axis_name))
    top, there = finite_or_zero(m), keys != -jnp.inf
    w = jnp.exp(keys - top)
    total = jax.lax.psum(w, axis_name)
    none = total == 0
    total = jnp.where(none, 1, total)
    p = w / total
    entropy = jnp.where(there, found.entropy + (top - keys) + jnp.log(total), 0)
    mean_logit = jnp.where(there, found.mean_logit, 0)
    entropy, mean_logit = jax.lax.psum((p * entropy, p * mean_logit), axis_name)
    return Statistics(
        max_logit=_of_first(found.max_logit, axis_name),
        lse=merged,
        entropy=entropy,
        mean_logit=jnp.where(none, -jnp.inf, mean_logit),
        effective_keys=jnp.where(none, 0, jnp.exp(entropy)),
        sink_weight=sink_weight,
        group_weights=weights[..., :-1],
    )


def _of_first(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """The largest of all devices, with the derivative of the first that has it; NaN if one of them is."""
    constant, here = jax.lax.stop_gradient(x), jax.lax.axis_index(axis_name)
    largest = constant == jax.lax.pmax(constant, axis_name)
    first = jax.lax.pmin(jnp.where(largest, here, jnp.iinfo(here.dtype).max), axis_name)
    return jax.lax.psum(jnp.where((here == first) | jnp.isnan(x), x, 0), axis_name)
