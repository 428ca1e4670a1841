"""What is measured of each query: `statistics` of its weights and logits, `top_keys`, its best keys."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jattn import _errors, reference
from jattn._types import Array, ArrayLike, BoolOfPairs, Float, FloatOfPairs, Integer, Numeric, ScoreModifier
from jattn.arguments import options as arguments
from jattn.engine.attend import make_plan
from jattn.engine.batching import batched_call
from jattn.engine.forward import Forward
from jattn.engine.per_query import BestKeys, Deviation, LogitsAt
from jattn.engine.plan import Operands, Plan
from jattn.masks import Mask
from jattn.partials import merge_finished
from jattn.reference import Statistics


def statistics(
    q: Float[ArrayLike, "T D"],
    k: Float[ArrayLike, "S D"],
    *,
    mask: Mask | BoolOfPairs | None = None,
    score: ScoreModifier | None = None,
    bias: FloatOfPairs | None = None,
    sink: Numeric | None = None,
    scale: Numeric | None = None,
    q_positions: Integer[ArrayLike, " T"] | None = None,
    k_positions: Integer[ArrayLike, " S"] | None = None,
    groups: Integer[ArrayLike, " S"] | None = None,
    num_groups: int | None = None,
    tile: tuple[int, int] | None = None,
) -> Statistics:
    """What is measured of each query's logits and weights, without forming them all.

        max_logit_t = max_s l_ts          lse_t = log(Σ_s exp(l_ts) + exp(sink))
        mean_logit_t = Σ_s w_ts l_ts      entropy_t = −Σ_s w_ts log w_ts      effective_keys_t = exp(entropy_t)
        sink_weight_t = exp(sink − lse_t)      group_weights_tg = Σ_{s in g} exp(l_ts − lse_t)

    with the logits l of `attention`, and w_ts = exp(l_ts) / Σ_s' exp(l_ts'), the weights of the keys given that the
    sink is not taken: they sum to 1, and entropy and means are those of the row without its sink. (With the sink as
    one more outcome, of weight σ, the entropy is (1 − σ) · entropy − σ log σ − (1 − σ) log(1 − σ).)

    One head, no batch: map with jax.vmap.

    Args:
      q: [T, D]. k: [S, D].
      mask, score, bias, sink, scale, q_positions, k_positions, tile: as in `attention`.
      groups: integers [S], which of the groups 0 … num_groups − 1 each key is in; any other number is no group.
      num_groups: how many groups there are, a Python int; needed with `groups`.

    Returns:
      Statistics(max_logit, lse, entropy, mean_logit, effective_keys, sink_weight, group_weights), a named tuple of
      arrays [T] and group_weights [T, num_groups], in float32 or wider, differentiable to every order. Entropy is in
      nats. Where several keys have the largest logit, its derivative is that of the first. sink_weight is 0 without a
      sink, and group_weights [T, 0] without groups. A query that may attend no key has max_logit = mean_logit = −inf,
      lse = −inf or its sink, all else 0 but the weight of its sink, and no gradient. A NaN that is attended makes the
      row of its query NaN. The entropy is a sum of terms of one sign: it is at least 0, and its error is that of
      the logits, a few eps · (1 + Σ_d |scale · q_td k_sd|).

    Raises:
      TypeError, ValueError: as `attention`; or groups are not integers [S], or num_groups is not given.

    Memory: O(T + S), and (T + S) · num_groups for the groups, in first and second derivatives too. Under jax.jit what
      is not used is not computed: the maximum alone is one pass over the tiles without an exponential.

    Source: Shannon 1948, "A mathematical theory of communication", section 6; Zhai et al. 2023, "Stabilizing
      Transformer training by preventing attention entropy collapse"; Kimi Team 2025, "Kimi K2", section 2.1, QK-clip.

    Example:
      >>> import jax.numpy as jnp, jattn
      >>> bank = jnp.array([[1.0, 0.0]])
      >>> keys = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])    # river, money, the
      >>> found = jattn.statistics(bank, keys, groups=jnp.array([0, 0, 1]), num_groups=2)
      >>> print(found.effective_keys.round(2), (100 * found.group_weights).round())
      [2.85] [[76. 24.]]

      QK-clip: the largest logit of each head, and the factor of q and of k that brings it to 100:

      >>> import jax
      >>> q, k = 40 * jax.random.normal(jax.random.key(0), (2, 3, 7, 4))
      >>> largest = jax.vmap(lambda q, k: jattn.statistics(q, k).max_logit.max())
      >>> factor = jnp.sqrt(100 / jnp.maximum(100, largest(q, k)))[:, None, None]
      >>> print((largest(q, k) > 100).all(), largest(factor * q, factor * k).round())
      True [100. 100. 100.]
    """
    caller = "statistics"
    q, k, _ = arguments.qkv(caller, q, k, k)
    options = arguments.one_head(caller, q, k, k, mask, score, bias, sink, scale, q_positions, k_positions)
    groups, num_groups = _groups(caller, groups, num_groups, k.shape[0])
    sizes, dtype = arguments.tile(caller, tile), _errors.wide(q, k)
    T, S = q.shape[0], k.shape[0]
    if T == 0 or S == 0:  # no tile at all
        return reference.statistics(q, k, num_groups=num_groups, sink=options["sink"])
    members, none = _members(num_groups, dtype, S, groups)
    plan, x = _planned(q, k, members, options, sizes)
    leaves, tree = jax.tree.flatten(x)
    weights, m, log_sum = batched_call(Forward(plan, tree), *leaves)
    _, best = _best(q, k, 1, options, sizes)
    leaves, tree = jax.tree.flatten(x._replace(v=none))
    (deviation,) = batched_call(Deviation(plan, tree), *leaves, *jax.lax.stop_gradient((m, log_sum)))
    return _joined(num_groups, weights, m, log_sum, best, deviation, options["sink"])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _members(num_groups: int, dtype: Any, S: Any, groups: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Which group each of S keys is in, [S, num_groups], and that none is in any, [S, 1].

    One column at least: an array without any cannot be cut into groups of examples.
    """
    none = jnp.zeros((S, 1), dtype)
    return (none if groups is None else jax.nn.one_hot(groups, max(1, num_groups), dtype=dtype)), none


@partial(jax.jit, static_argnums=0)
def _joined(
    num_groups: int,
    weights: jax.Array,
    m: jax.Array,
    log_sum: jax.Array,
    best: jax.Array,
    deviation: jax.Array,
    sink: jax.Array | None,
) -> Statistics:
    """The statistics, of what the passes found; the deviation is Σ_s w_s (l_s − m) of each query."""
    T, dtype = m.shape[0], m.dtype
    deviation *= jnp.exp(jax.lax.stop_gradient(log_sum) - log_sum)  # a factor of 1: all that log_sum has to do with it
    entropy, lse = log_sum - deviation, m + log_sum  # Σ w (lse − l), apart from m, beside which log_sum may be lost
    # The weight of the sink is what comes of a value that it alone has: a partial like any other.
    found = jnp.concatenate([weights[:, :num_groups], jnp.zeros((T, 1), dtype)], 1)
    if sink is not None:
        z = jnp.broadcast_to(sink.astype(dtype), (T,))
        alone = jnp.zeros((T, num_groups + 1), dtype).at[:, -1].set(1)
        found, *both = merge_finished((found, m, log_sum), (alone, z, jnp.zeros_like(z)))
        lse = both[0] + both[1]
    return Statistics(
        max_logit=best[:, 0],
        lse=lse,
        entropy=entropy,
        mean_logit=m + deviation,
        effective_keys=jnp.where(m == -jnp.inf, 0, jnp.exp(entropy)),
        sink_weight=found[:, -1],
        group_weights=found[:, :-1],
    )


def top_keys(
    q: Float[ArrayLike, "T D"],
    k: Float[ArrayLike, "S D"],
    n: int,
    *,
    mask: Mask | BoolOfPairs | None = None,
    score: ScoreModifier | None = None,
    bias: FloatOfPairs | None = None,
    scale: Numeric | None = None,
    q_positions: Integer[ArrayLike, " T"] | None = None,
    k_positions: Integer[ArrayLike, " S"] | None = None,
    tile: tuple[int, int] | None = None,
) -> tuple[Integer[Array, "T n"], Float[Array, "T n"]]:
    """The n keys with the largest logits of each query, and these logits, found tile by tile.

        l_ts = score(scale · ⟨q_t, k_s⟩, t, s) + bias_ts     where mask_ts, −∞ elsewhere

    One head, no batch: map with jax.vmap.

    Args:
      q: [T, D]. k: [S, D].
      n: how many keys, a Python int of at least 1.
      mask, score, bias, scale, q_positions, k_positions, tile: as in `attention`.

    Returns:
      (indices [T, n] in int32, logits [T, n] in float32 or wider), best first; of equal logits the lower index is
      first. Where a query may attend fewer than n keys, the rest have the index S and the logit −inf: JAX drops such
      an index where it scatters, and clamps it where it gathers. A key or a query that is not finite and attended
      has the logit NaN and comes first. The logits are differentiable to every order; the indices are constants.

    Raises:
      TypeError, ValueError: as `attention`; or n is not a whole number of at least 1.

    Memory: O(T · n) and a tile, in first and second derivatives too. Tiles that the mask rules out are not visited.

    Source: Gupta et al. 2021, "Memory-efficient transformers via top-k attention", section 3.

    Example:
      Attention over the 2 best keys of each query is ordinary code, with gradients to q, k and v:

      >>> import jax, jax.numpy as jnp, jattn
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 5, 4))
      >>> causal = jattn.masks.causal()
      >>> def of_best(q, k, v):
      ...     indices, logits = jattn.top_keys(q, k, 2, mask=causal)
      ...     return (jattn.softmax(logits)[:, :, None] * v[indices]).sum(1)
      >>> indices, _ = jattn.top_keys(q, k, 2, mask=causal)
      >>> chosen = jnp.zeros((5, 5), bool).at[jnp.arange(5)[:, None], indices].set(True)
      >>> bool(jnp.allclose(of_best(q, k, v), jattn.attention(q, k, v, mask=chosen), atol=1e-6))
      True
      >>> print(indices[:2])  # the first query may attend one key alone
      [[0 5]
       [1 0]]
    """
    caller = "top_keys"
    q, k, _ = arguments.qkv(caller, q, k, k)
    n = _errors.count(caller, "n", n, least=1)
    options = arguments.one_head(caller, q, k, k, mask, score, bias, None, scale, q_positions, k_positions)
    return _best(q, k, n, options, arguments.tile(caller, tile))


def _best(
    q: jax.Array, k: jax.Array, n: int, options: dict[str, Any], tile: tuple[int, int] | None
) -> tuple[jax.Array, jax.Array]:
    """`top_keys`, of arguments that are validated."""
    T, S = q.shape[0], k.shape[0]
    if T == 0 or S == 0:
        return jnp.full((T, n), S, jnp.int32), jnp.full((T, n), -jnp.inf, _errors.wide(q, k))
    plan, x = _planned(q, k, jax.lax.stop_gradient(k), options, tile)  # values, which nothing looks at
    leaves, tree = jax.tree.flatten(x)
    indices, found = batched_call(BestKeys(plan, tree, n), *jax.lax.stop_gradient(leaves))
    (again,) = batched_call(LogitsAt(plan, tree), *leaves, indices)
    return indices, _with_slope(found, again)


@jax.jit
def _with_slope(found: jax.Array, again: jax.Array) -> jax.Array:
    """The logits as they were compared, in their order, with the derivatives of the logits computed again."""
    finite = jnp.where(jnp.isinf(again), 0, again)
    return jnp.where(jnp.isinf(again), again, found + (finite - jax.lax.stop_gradient(finite)))


def _planned(
    q: jax.Array, k: jax.Array, v: jax.Array, options: dict[str, Any], tile: tuple[int, int] | None
) -> tuple[Plan, Operands]:
    """The plan of one head without its sink. In loops: a kernel's products have other roundings than these passes."""
    given = {name: x for name, x in options.items() if name not in ("score", "sink")}
    return make_plan(Operands(q, k, v, **given), options["score"], tile, "loops")


def _groups(caller: str, groups: Any, num_groups: Any, S: int) -> tuple[jax.Array | None, int]:
    """The group of each key, and how many groups there are: none, if none are given."""
    if groups is None and num_groups is None:
        return None, 0
    if groups is None or num_groups is None:
        got = {"groups": "None"} if groups is None else {"num_groups": "None"}
        remedy = "The number of groups is part of a shape: pass it as a Python int, num_groups=4."
        _errors.fail(ValueError, caller, "groups and num_groups must be given together", remedy, **got)
    num_groups = _errors.count(caller, "num_groups", num_groups)
    groups = _errors.whole_numbers(caller, "groups", groups, "A group is a number: pass whole numbers.")
    if groups.shape != (S,):
        remedy = f"Give each key the number of its group: S is {S} here."
        _errors.fail(ValueError, caller, "groups must have the shape [S]", remedy, groups=groups)
    return groups, num_groups
