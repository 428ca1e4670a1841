"""Sequences of any lengths one after another, without padding: attention within each, over heads."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp

from jattn import _errors, masks
from jattn._numerics import how_many_up_to
from jattn._types import Array, ArrayLike, Float, Integer, Numeric, PRNGKey, ScoreModifier
from jattn.arguments import heads, options
from jattn.engine.attend import attend
from jattn.masks import Mask

_CALLER = "ragged_attention"


class RaggedAttentionOptions(TypedDict, total=False):
    """The options of `ragged_attention` but return_lse."""

    k_starts: Integer[ArrayLike, " ends"] | Sequence[int] | None
    mask: Mask | None
    score: ScoreModifier | None
    sink: Float[ArrayLike, "#H"] | Numeric | None
    scale: Numeric | None
    q_positions: Integer[ArrayLike, " T"] | None
    k_positions: Integer[ArrayLike, " S"] | None
    dropout_rate: Numeric
    dropout_key: PRNGKey | None
    tile: tuple[int, int] | None
    implementation: Literal["loops", "kernel", "interpret", "cudnn"] | None


@overload
def ragged_attention(
    q: Float[ArrayLike, "T H D"],
    k: Float[ArrayLike, "S Hkv D"],
    v: Float[ArrayLike, "S Hkv Dv"],
    starts: Integer[ArrayLike, " ends"] | Sequence[int],
    *,
    return_lse: Literal[False] = ...,
    **options: Unpack[RaggedAttentionOptions],
) -> Float[Array, "T H Dv"]: ...
@overload
def ragged_attention(
    q: Float[ArrayLike, "T H D"],
    k: Float[ArrayLike, "S Hkv D"],
    v: Float[ArrayLike, "S Hkv Dv"],
    starts: Integer[ArrayLike, " ends"] | Sequence[int],
    *,
    return_lse: Literal[True],
    **options: Unpack[RaggedAttentionOptions],
) -> tuple[Float[Array, "T H Dv"], Float[Array, "T H"]]: ...
def ragged_attention(
    q: Float[ArrayLike, "T H D"],
    k: Float[ArrayLike, "S Hkv D"],
    v: Float[ArrayLike, "S Hkv Dv"],
    starts: Integer[ArrayLike, " ends"] | Sequence[int],
    *,
    k_starts: Integer[ArrayLike, " ends"] | Sequence[int] | None = None,
    mask: Mask | None = None,
    score: ScoreModifier | None = None,
    sink: Float[ArrayLike, "#H"] | Numeric | None = None,
    scale: Numeric | None = None,
    q_positions: Integer[ArrayLike, " T"] | None = None,
    k_positions: Integer[ArrayLike, " S"] | None = None,
    return_lse: bool = False,
    dropout_rate: Numeric = 0.0,
    dropout_key: PRNGKey | None = None,
    tile: tuple[int, int] | None = None,
    implementation: Literal["loops", "kernel", "interpret", "cudnn"] | None = None,
) -> Float[Array, "T H Dv"] | tuple[Float[Array, "T H Dv"], Float[Array, "T H"]]:
    """Attention within each of many sequences of any lengths, which lie one after another in q, k and v.

        out[starts[n] : starts[n + 1]] = attention(q[starts[n] : starts[n + 1]], k[…], v[…])     of each sequence n

    with k_starts for k and v: what a padded batch gives, without its padding. `attention` under `masks.ragged`, mapped
    over heads. No batch: map with jax.vmap.

    Args:
      q: [T, H, D], floating point; T queries of all sequences.
      k: [S, Hkv, D], H a multiple of Hkv: each key/value head serves H / Hkv query heads.
      v: [S, Hkv, Dv].
      starts: integers [N + 1], where each of N sequences starts in q and where the last ends: `cu_seqlens` elsewhere.
        Possibly traced.
      k_starts: likewise in k and v; as `starts` if None.
      mask: a value of `jattn.masks`, beside that of the sequences: `masks.causal()`, `masks.window(…)`.
      score: f(score, q_position, k_position) -> score on scalars, for every head.
      sink: a logit that joins the denominator, a scalar or one a head [H].
      scale: what the dot products are multiplied by, a real scalar, possibly traced; 1/√D if None.
      q_positions: integers [T], where each query stands in its sequence, in tokens. If None, keys are counted from the
        start of their sequence, and queries so that the last query stands beside the last key: a step of decoding,
        and with equal lengths both from 0. Queries without such a key stand before position 0.
      k_positions: integers [S], likewise: both or neither, where `mask` or `score` looks at them.
      return_lse: also return the log-sum-exp.
      dropout_rate: as in `attention`.
      dropout_key: a key of jax.random, split for each head.
      tile, implementation: as in `attention`.

    Returns:
      out [T, H, Dv] in the dtype of v, or (out, lse [T, H]), lse in float32 or wider. Queries before the first start or
      after the last, and those of a sequence without a key, give zeros, lse = −∞ (or their sink) and no gradient; keys
      that are in no sequence have no gradient. A start below an earlier one counts as that one.

    Raises:
      TypeError: a dtype is of the wrong kind, the mask is not a value of `jattn.masks`, or return_lse is no bool.
      ValueError: shapes do not fit; T ≠ S without k_starts; or one of q_positions and k_positions is missing where
        `mask` or `score` looks at them.

    Memory: linear in T and S, as `attention`. Work: the tiles that hold a pair of one sequence, Σ_n T_n · S_n pairs and
      at most a tile at each end of a sequence: give a smaller `tile` where sequences are shorter than one. There is no
      bias, which would be T × S: say it as a score.

    Source: Dao et al. 2022, "FlashAttention": its variable-length interface, whose causal mask is aligned likewise;
      Krell et al. 2021, "Efficient sequence packing without cross-contamination", section 3.2.

    Example:
      >>> import jax, jattn
      >>> q = jax.random.normal(jax.random.key(0), (7, 4, 8))
      >>> k, v = jax.random.normal(jax.random.key(1), (2, 7, 2, 8))  # two heads serve four
      >>> out = jattn.ragged_attention(q, k, v, jax.numpy.array([0, 5, 7]), mask=jattn.masks.causal())
      >>> last = jattn.dot_product_attention(q[5:], k[5:], v[5:], is_causal=True)
      >>> bool(jax.numpy.allclose(out[5:], last, atol=1e-6))
      True
    """
    return_lse = _errors.flag(_CALLER, "return_lse", return_lse)
    q, k, v = _operands(q, k, v)
    (T, H, _), (S, Hkv, _) = q.shape, k.shape
    if k_starts is None and T != S:
        remedy = "Say where each sequence starts in k and v."
        _errors.fail(ValueError, _CALLER, "k_starts must be given where T ≠ S", remedy, T=str(T), S=str(S))
    of_q, of_k = _errors.starts(_CALLER, starts, k_starts)
    allowed: Mask = masks.ragged(of_q) if k_starts is None else masks.ragged(of_q, of_k)
    if mask is not None:
        mask = options.mask_value(_CALLER, mask, "Make one with jattn.masks, or wrap booleans: masks.dense(array).")
        mask.validate(_CALLER, T, S, placed=True)
        allowed = allowed & mask
    own: dict[str, Any] = {}
    if sink is not None:
        own["sink"] = jnp.broadcast_to(heads.sink_per_head(_CALLER, sink, H), (H,))
    dropout = options.dropout(_CALLER, dropout_rate, dropout_key)
    if dropout is not None:
        own["dropout_key"] = jax.random.split(dropout[0], H)
    dependents = options.position_dependents(_CALLER, mask, score, _errors.wide(q, k, v))
    places: tuple[Any, Any]
    if q_positions is None and k_positions is None:
        places = _positions(of_q, of_k, T, S) if dependents else (None, None)
    else:
        places = _errors.positions(_CALLER, T, S, q_positions, k_positions, dependents)
    options.implementation(_CALLER, implementation)
    shared: dict[str, Any] = {
        "score": score,
        "scale": None if scale is None else options.scale_array(_CALLER, scale),
        "tile": options.tile(_CALLER, tile),
        "implementation": implementation,
        "caller": _CALLER,
    }

    def head(q: jax.Array, k: jax.Array, v: jax.Array, own: dict[str, Any]) -> Any:
        dropped = None if dropout is None else (own.pop("dropout_key"), dropout[1])
        at: Any = dict(zip(("q_positions", "k_positions"), places, strict=True))
        return attend(q, k, v, mask=allowed, dropout=dropped, **shared, **at, **own)

    axes = dict.fromkeys(own, 0)
    f = heads.vmap_heads(head, [axes, axes])
    with _errors.only_moved():
        q, k, v = jnp.moveaxis(heads.split_heads(q, Hkv, 1), 0, 2), k.swapaxes(0, 1), v.swapaxes(0, 1)
    found = f(q, k, v, {name: heads.split_heads(x, Hkv) for name, x in own.items()})
    out, lse = (heads.merge_heads(jnp.moveaxis(x, 2, 0), 1) for x in found)
    return (out, lse) if return_lse else out


def _operands(q: Any, k: Any, v: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q [T, H, D], k [S, Hkv, D], v [S, Hkv, Dv]."""
    axes = {"q": "[T, H, D]", "k": "[S, Hkv, D]", "v": "[S, Hkv, Dv]"}
    q, k, v = (_errors.array(_CALLER, name, x) for name, x in zip(axes, (q, k, v), strict=True))
    for (name, spelled), x in zip(axes.items(), (q, k, v), strict=True):
        _errors.rank(_CALLER, 3, spelled, "No batch: map with jax.vmap. One head is an axis of 1.", **{name: x})
    _errors.floating(_CALLER, q=q, k=k, v=v)
    if k.shape[:2] != v.shape[:2]:
        _errors.fail(ValueError, _CALLER, "k and v must agree in S and Hkv", "Each key needs its one value.", k=k, v=v)
    if q.shape[2] != k.shape[2]:
        remedy = "Project one of them to the width of the other."
        _errors.fail(ValueError, _CALLER, "q and k must agree in D", remedy, q=q, k=k)
    _errors.width(_CALLER, "D", q=q, k=k)
    heads.group_size(_CALLER, q.shape[1], k.shape[1], "H must be a multiple of Hkv", q=q, k=k)
    return q, k, v


@partial(jax.jit, static_argnums=(2, 3))
def _positions(starts: jax.Array, k_starts: jax.Array, T: int, S: int) -> tuple[jax.Array, jax.Array]:
    """Keys counted from the start of their sequence; queries so that its last query stands beside its last key."""
    rows = [jnp.arange(n, dtype=jnp.int32) for n in (T, S)]
    of_q, of_k = (
        jnp.clip(how_many_up_to(x, n) - 1, 0, x.shape[0] - 1) for x, n in zip((starts, k_starts), rows, strict=True)
    )
    following = jnp.minimum(of_q + 1, starts.shape[0] - 1)
    behind = starts[following] - rows[0]  # how many queries of its sequence are left, itself included
    return k_starts[following] - k_starts[of_q] - behind, rows[1] - k_starts[of_k]
