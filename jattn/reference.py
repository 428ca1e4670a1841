"""Attention as it is defined: dense, one head, every pair written out.

    l_ts = score(scale · ⟨q_t, k_s⟩, t, s) + bias_ts     where mask_ts, −∞ elsewhere
    w_ts = exp(l_ts − lse_t),    lse_t = log(Σ_s exp(l_ts) + exp(sink))
    out_t = Σ_s w_ts v_s

This page is the subject, and what everything above it is measured against, in float64. It takes T × S memory and every
derivative of JAX. It shares four numerical steps with the engine (`_numerics`), so it is itself judged, in
`tests/test_reference.py`, by attention written out in NumPy, which shares nothing.

What is masked does not exist. A NaN or an infinity in a masked key, value, query or bias reaches neither
values nor derivatives; one that is *attended* makes the row of its query NaN. A query that may attend no key has
weights 0, output 0, and lse −∞ (its sink, if it has one).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jattn import _errors, _html
from jattn._numerics import HIDDEN, below, finite_or_zero, nan_where, zero_nonfinite_rows
from jattn._types import (
    Array,
    ArrayLike,
    BoolOfPairs,
    Float,
    FloatOfPairs,
    Integer,
    Keys,
    KPositions,
    Lse,
    Numeric,
    Out,
    Pairs,
    QPositions,
    Queries,
    ScoreModifier,
    Values,
)

__all__ = ["Statistics", "Steps", "attention", "statistics", "steps"]


class Steps(NamedTuple):
    """Every intermediate of attention for one head, in the order in which it is computed."""

    scores: Pairs
    """⟨q_t, k_s⟩, the raw dot products."""
    scaled: Pairs
    """What enters the softmax: scale, score, bias and mask applied; −∞ where a pair is not allowed."""
    weights: Pairs
    """Rows that sum to one (to zero where nothing is allowed, to less than one beside a sink)."""
    out: Out
    """Each query's weighted mean of the values."""

    def _repr_html_(self) -> str:
        return _html.arrays(self._asdict())


class Statistics(NamedTuple):
    """What is measured of each query's logits and weights."""

    max_logit: Float[Array, " T"]
    """The largest logit of a key."""
    lse: Lse
    """The logarithm of the row's denominator, the sink included: that of `attention`."""
    entropy: Float[Array, " T"]
    """In nats, of the weights of the keys, given that the sink is not taken: of the row without the sink."""
    mean_logit: Float[Array, " T"]
    """The mean of the logits under the same weights."""
    effective_keys: Float[Array, " T"]
    """exp(entropy): as many keys with equal weights have this entropy. 0 of a query without keys."""
    sink_weight: Float[Array, " T"]
    """The share of the sink in the denominator."""
    group_weights: Float[Array, "T G"]
    """The sum of the weights of each group of keys; with `sink_weight`, they sum to 1 if each key has a group."""


def steps(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    mask: BoolOfPairs | None = None,
    score: ScoreModifier | None = None,
    bias: FloatOfPairs | None = None,
    sink: Numeric | None = None,
    scale: Numeric | None = None,
    q_positions: QPositions | None = None,
    k_positions: KPositions | None = None,
) -> tuple[Steps, Lse]:
    """Each step from q, k, v to the output, and the log-sum-exp of each row.

    One head, no batch: map with jax.vmap.

    Args:
      q: [T, D]. k: [S, D]. v: [S, Dv].
      mask: booleans, broadcastable to [T, S], True where a pair is allowed, as `masks.to_dense` makes them of a mask;
        None allows all.
      score: f(score, q_position, k_position) -> score, on scalars.
      bias: added to the scores, broadcastable to [T, S].
      sink: a logit that joins the denominator and has no value, broadcastable to [T].
      scale: what the dot products are multiplied by; 1/√D if None.
      q_positions: integers [T]. k_positions: integers [S]. 0, 1, 2, … if None.

    Returns:
      (Steps, lse [T]). Float32 or wider, whatever the inputs; `out` has the dtype of `v`.

    Raises:
      TypeError: q, k or v is not floating point; mask is not booleans: it is a mask of `jattn.masks` that is not
        written out, or an additive one.
      ValueError: q, k or v has not two axes, or D is 0 or not one and the same.

    Memory: T × S, several times.

    Source: Vaswani et al. 2017, "Attention is all you need", eq. 1.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import reference
      >>> keys = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])  # river, money, the
      >>> s, lse = reference.steps(jnp.array([[1.0, 0.0]]), keys, keys)
      >>> print((100 * s.weights).round())
      [[49. 28. 24.]]
    """
    q, k, v = map(jnp.asarray, (q, k, v))
    for name, x, axes in (("q", q, "[T, D]"), ("k", k, "[S, D]"), ("v", v, "[S, Dv]")):
        _errors.floating("reference", **{name: x})
        _errors.rank("reference", 2, axes, "No batch: map with jax.vmap.", **{name: x})
    _errors.width("reference", "D", q=q, k=k)
    if q.shape[1] != k.shape[1]:
        must, remedy = "q [T, D] and k [S, D] must agree in D", "Project one of them to the width of the other."
        _errors.fail(ValueError, "reference", must, remedy, q=q, k=k)
    if not (mask is None or hasattr(mask, "dtype") or isinstance(mask, bool | list | tuple)):
        remedy = "Write a mask out: masks.to_dense(mask, T, S)."
        _errors.fail(TypeError, "reference", "mask must be booleans", remedy, mask=f"of type {type(mask).__name__}")
    if mask is not None:
        mask = jnp.asarray(mask)
        remedy = "True allows a pair: of zeros and ones make mask != 0. An additive mask is a bias."
        _errors.kind("reference", "mask", mask, jnp.bool_, remedy)
    T, S, D = *q.shape[:1], *k.shape
    dtype = _errors.wide(q, k, v)
    allowed = jnp.ones((T, S), bool) if mask is None else jnp.broadcast_to(mask, (T, S))
    (q, q_nonfinite), (k, k_nonfinite), (v_wide, v_nonfinite) = (
        zero_nonfinite_rows(x.astype(dtype)) for x in (q, k, v)
    )

    # Scaled before the dot: the products then end in a sum, not in a factor that XLA could fuse with "− max".
    scale = jnp.asarray(D**-0.5 if scale is None else scale, dtype)
    nonfinite = q_nonfinite | k_nonfinite.T
    scores = nan_where(nonfinite, q @ k.T)
    scaled = (q * scale) @ k.T
    if score is not None:
        t = jnp.arange(T) if q_positions is None else jnp.asarray(q_positions)
        s = jnp.arange(S) if k_positions is None else jnp.asarray(k_positions)
        over_keys = jax.vmap(score, (0, None, 0))
        scaled = jax.vmap(over_keys, (0, 0, None))(jnp.where(allowed, scaled, HIDDEN), t, s).astype(dtype)
    if bias is not None:
        scaled = scaled + jnp.where(allowed, jnp.asarray(bias, dtype), 0)
    scaled = jnp.where(allowed, nan_where(nonfinite, scaled), -jnp.inf)

    sinks = jnp.full((T,), -jnp.inf, dtype) if sink is None else jnp.broadcast_to(jnp.asarray(sink).astype(dtype), (T,))
    top = jax.lax.stop_gradient(jnp.maximum(scaled.max(1, initial=-jnp.inf), sinks))
    top = finite_or_zero(top)
    exps = jnp.exp(below(scaled, top[:, None]))
    total = exps.sum(1) + jnp.exp(below(sinks, top))
    empty = total == 0
    total = jnp.where(empty, 1, total)
    weights = jnp.where(allowed, exps / total[:, None], 0)  # in a row that is NaN too
    lse = jnp.where(empty, -jnp.inf, top + jnp.log(total))

    out = weights @ v_wide
    finite = jnp.isfinite(out).all(1, keepdims=True) & ~(allowed & v_nonfinite.T).any(1, keepdims=True)
    out = nan_where(~finite, out)
    return Steps(scores, scaled, weights, out.astype(v.dtype)), lse


def attention(q: Queries, k: Keys, v: Values, **options: object) -> tuple[Out, Lse]:
    """The output and the log-sum-exp of `steps`, with the same options: the pair that every fast path must equal.

    Returns:
      (out [T, Dv] in the dtype of v, lse [T] in float32 or wider).

    Raises:
      TypeError, ValueError: as `steps`.

    Memory: T × S, several times.

    Source: Vaswani et al. 2017, "Attention is all you need", eq. 1.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import reference
      >>> x = jnp.eye(2)
      >>> out, lse = reference.attention(x, x, x, scale=0.0)  # no score at all: the mean of the values
      >>> print(out[0], lse[0].round(4))
      [0.5 0.5] 0.6931
    """
    (_, _, _, out), lse = steps(q, k, v, **options)  # type: ignore[arg-type]
    return out, lse


def statistics(
    q: Queries, k: Keys, *, groups: Integer[ArrayLike, " S"] | None = None, num_groups: int = 0, **options: object
) -> Statistics:
    """What is measured of each query's logits and weights: the definition of `jattn.statistics`.

    Args:
      q: [T, D]. k: [S, D].
      groups: integers [S], which of the groups 0 … num_groups − 1 each key is in; any other number is no group.
      num_groups: how many groups there are.
      options: those of `steps`.

    Returns:
      Statistics of arrays [T], and group_weights [T, num_groups]. Where several keys have the largest logit, its
      derivative is that of the first.

    Raises:
      TypeError, ValueError: as `steps`.

    Memory: T × S, several times.

    Source: Shannon 1948, "A mathematical theory of communication", section 6.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import reference
      >>> x = jnp.eye(2)
      >>> print(reference.statistics(x, x, scale=0.0).effective_keys)  # no score at all: two keys, alike
      [2. 2.]
    """
    if k.shape[0] == 0:  # one key that no query may attend
        k, groups, options = jnp.zeros((1, k.shape[1]), k.dtype), None, {"sink": options.get("sink")}
        options["mask"] = jnp.zeros((1, 1), bool)
    (_, logits, weights, _), lse = steps(q, k, k[:, :0], **options)  # type: ignore[arg-type]
    (_, _, p, _), lse_of_keys = steps(q, k, k[:, :0], **{**options, "sink": None})  # type: ignore[arg-type]
    max_logit = jnp.take_along_axis(logits, logits.argmax(1, keepdims=True), 1)[:, 0]
    none, finite = max_logit == -jnp.inf, jnp.where(logits == -jnp.inf, 0, logits)
    entropy = jnp.sum(p * jnp.where(logits == -jnp.inf, 0, lse_of_keys[:, None] - finite), 1)
    mean_logit = jnp.where(none, -jnp.inf, jnp.sum(p * finite, 1))
    effective_keys = jnp.where(none, 0, jnp.exp(entropy))
    sink = jnp.asarray(-jnp.inf if options.get("sink") is None else options["sink"], lse.dtype)
    sink_weight = jnp.exp(sink - finite_or_zero(lse))
    groups = jnp.full(k.shape[0], -1, jnp.int32) if groups is None else jnp.asarray(groups)
    members = groups[:, None] == jnp.arange(num_groups, dtype=groups.dtype)[None]
    group_weights = weights @ members.astype(lse.dtype)
    return Statistics(max_logit, lse, entropy, mean_logit, effective_keys, sink_weight, group_weights)
