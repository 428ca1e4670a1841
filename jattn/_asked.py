"""What a caller asks of attention, checked by name: the options of one head, and what they look at."""

from typing import Any

import jax
import jax.numpy as jnp

from jattn import _checks, masks, scores
from jattn._types import Score
from jattn.masks import Mask


def options(
    where: str,
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
    """The options of one head, checked and in the form that the reference takes."""
    T, S = q.shape[0], k.shape[0]
    if mask is not None:
        if not isinstance(mask, Mask):
            allowed = _checks.booleans(where, "mask", mask)
            _checks.broadcastable(where, "mask", allowed, (T, S), "[T, S]")
            mask = masks.dense(jnp.atleast_2d(allowed))
        mask.fits(where, T, S, q_positions is not None or k_positions is not None)
    if bias is not None:
        bias = _checks.bias(where, bias)
        _checks.broadcastable(where, "bias", bias, (T, S), "[T, S]")
        bias = jnp.atleast_2d(bias)
    if sink is not None:
        sink = _checks.array(where, "sink", float(sink) if type(sink) is int else sink)
        _checks.floating(where, sink=sink)
        _checks.broadcastable(where, "sink", sink, (T,), "[T]")
    if scale is not None:
        scale = _checks.scale(where, scale)
    who = seekers(where, mask, score, _checks.wide(q, k, v))
    q_pos, k_pos = _checks.positions(where, T, S, q_positions, k_positions, who)
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
        mask = mask.pairs(masks.Rows(0, q_pos), masks.Rows(0, k_pos))
    return {**options, "mask": mask, "q_positions": q_pos, "k_positions": k_pos}


def dropout(where: str, rate: Any, key: Any) -> tuple[jax.Array, jax.Array] | None:
    """(key, rate), or None where nothing is dropped."""
    if isinstance(rate, (int, float)) and not 0 <= rate < 1:
        remedy = "Give the share of weights to drop; 0 drops none."
        _checks.fail(
            ValueError, where, "dropout_rate must be at least 0 and less than 1", remedy, dropout_rate=str(rate)
        )
    if isinstance(rate, (int, float)) and rate == 0:
        return None
    rate = _checks.scalar(where, "dropout_rate", rate, "Map over several with jax.vmap.")
    remedy = "Pass a key of jax.random: dropout_key=jax.random.key(0)."
    if key is None:
        _checks.fail(
            ValueError, where, "dropout_key must be given where dropout_rate is not 0", remedy, dropout_key="None"
        )
    key = _checks.array(where, "dropout_key", key)
    old_style = key.dtype == jnp.uint32 and key.ndim == 1
    if not (old_style or (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0)):
        got = {"dropout_key": f"{key.dtype}{_checks.shape(key)}"}
        _checks.fail(TypeError, where, "dropout_key must be one key", remedy, **got)
    return (jax.random.wrap_key_data(key) if old_style else key), rate


def tile_of(where: str, tile: Any) -> tuple[int, int] | None:
    """Two sizes, or None for those that `tile_sizes` chooses."""
    if tile is None:
        return None
    remedy = "Pass (queries, keys), multiples of 16, as in tile=(256, 512)."
    if not isinstance(tile, tuple) or len(tile) != 2:
        got = {"tile": f"of type {type(tile).__name__}"}
        _checks.fail(TypeError, where, "tile must be a pair of numbers of rows", remedy, **got)
    q, k = (_checks.count(where, "tile", n, least=1) for n in tile)
    if q % 16 or k % 16:
        _checks.fail(ValueError, where, "tile must be multiples of 16", remedy, tile=f"({q}, {k})")
    return q, k


def seekers(where: str, mask: Mask | None, score: Score | None, dtype: Any) -> tuple[str, ...]:
    """Which of the two arguments compare positions of q and k; refuses a score that is not a score."""
    names = [] if mask is None or not mask.looks_at_positions else ["mask"]
    if isinstance(score, scores.Score):
        looks = score.looks_at_positions
    else:
        looks = score is not None and _checks.score_looks_at_positions(where, score, dtype)
    if looks:
        names.append("score")
    return tuple(names)
