"""The door: attention for one head.

Everything a caller may get wrong is caught here, by name; inside, shapes and dtypes are trusted.
"""

from typing import Any, Literal, overload

import jax
import jax.numpy as jnp

from jattn import _checks, masks, reference
from jattn._types import Array, ArrayLike, Bool, Float, Int, Numeric, Score
from jattn.masks import Mask
from jattn.reference import Steps


@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: Mask | Bool[ArrayLike, "T S"] | None = ...,
    score: Score | None = ...,
    bias: Float[ArrayLike, "T S"] | None = ...,
    sink: Numeric | None = ...,
    scale: Numeric | None = ...,
    q_positions: Int[ArrayLike, " T"] | None = ...,
    k_positions: Int[ArrayLike, " S"] | None = ...,
    return_lse: Literal[False] = ...,
) -> Float[Array, "T Dv"]: ...
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: Mask | Bool[ArrayLike, "T S"] | None = ...,
    score: Score | None = ...,
    bias: Float[ArrayLike, "T S"] | None = ...,
    sink: Numeric | None = ...,
    scale: Numeric | None = ...,
    q_positions: Int[ArrayLike, " T"] | None = ...,
    k_positions: Int[ArrayLike, " S"] | None = ...,
    return_lse: Literal[True],
) -> tuple[Float[Array, "T Dv"], Float[Array, " T"]]: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    score: Score | None = None,
    bias: Any = None,
    sink: Any = None,
    scale: Any = None,
    q_positions: Any = None,
    k_positions: Any = None,
    return_lse: bool = False,
) -> Any:
    """Attention of T queries over S keys: each output is a mean of the values, weighted by how well key meets query.

        out_t = Σ_s exp(l_ts − lse_t) v_s,    lse_t = log(Σ_s exp(l_ts) + exp(sink))
        l_ts = score(scale · ⟨q_t, k_s⟩, t, s) + bias_ts     where mask_ts, −∞ elsewhere

    One head, no batch: map with jax.vmap.

    Args:
      q: [T, D], floating point.
      k: [S, D].
      v: [S, Dv]; Dv may differ from D.
      mask: whether a pair meets: a value of `jattn.masks`, or booleans that broadcast to [T, S].
      score: what a meeting is worth: f(score, q_position, k_position) -> score on scalars, closing over
        whatever arrays it likes.
      bias: added after the score, broadcastable to [T, S]. An entry of −inf hides a pair; a learned one has
        its gradient.
      sink: a logit that joins the denominator and brings no value, a scalar or [T].
      scale: what the dot products are multiplied by, a real scalar, possibly traced; 1/√D if None.
      q_positions: integers [T], where each query stands in the sequence, in tokens; 0, 1, 2, … if None.
      k_positions: integers [S], likewise. Both are needed where T ≠ S and `mask` or `score` looks at them.
      return_lse: also return the logarithm of each row's denominator, which makes the result a partial that
        `merge` can join.

    Returns:
      out [T, Dv] in the dtype of v, or (out, lse [T]), lse in float32 or wider and differentiable.
      A query that meets nothing gives zeros, lse = −inf (or its sink) and no gradient. S = 0 is such a case
      for every query; T = 0 gives empty arrays. What is masked does not exist: a NaN or an infinity there
      reaches neither values nor derivatives. One that is met makes the row of its query NaN.

    Raises:
      TypeError: q, k, v or bias is not floating point; mask is not boolean; score is not a function.
      ValueError: shapes do not fit; or positions are missing where they matter.

    Memory: T × S, several times.

    Source: Vaswani et al. 2017, "Attention is all you need", eq. 1.

    Example:
      >>> import jax, jax.numpy as jnp, jattn
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 5, 4))
      >>> jattn.attention(q, k, v, mask=jattn.masks.causal()).shape
      (5, 4)
      >>> heads = jax.vmap(jattn.attention)  # one head composes: a batch of 2, one call
      >>> heads(*jax.random.normal(jax.random.key(0), (3, 2, 5, 4))).shape
      (2, 5, 4)
    """
    where = "attention"
    q, k, v = _checks.one_head(where, q, k, v)
    options = _options(where, q, k, v, mask, score, bias, sink, scale, q_positions, k_positions)
    out, lse = reference.attention(q, k, v, **options)
    return (out, lse) if return_lse else out


def explain(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    score: Score | None = None,
    bias: Any = None,
    scale: Any = None,
    q_positions: Any = None,
    k_positions: Any = None,
) -> Steps:
    """Every intermediate of `attention`, in the order in which it is computed.

        scores = q kᵀ  →  scaled = score(scale · scores) + bias, −∞ where masked  →  weights = softmax(scaled)  →  out

    One head, no batch: map with jax.vmap.

    Args:
      q: [T, D]. k: [S, D]. v: [S, Dv].
      mask, score, bias, scale, q_positions, k_positions: as in `attention`.

    Returns:
      Steps(scores [T, S], scaled [T, S], weights [T, S], out [T, Dv]), a named tuple and so a pytree: it
      passes through jit, vmap and grad. A query that meets nothing has weights and output 0.

    Raises:
      TypeError, ValueError: as `attention`.

    Memory: T × S, several times: this one is for looking.

    Source: Vaswani et al. 2017, "Attention is all you need", eq. 1.

    Example:
      >>> import jax.numpy as jnp, jattn
      >>> bank = jnp.array([[1.0, 0.0]])
      >>> keys = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])    # river, money, the
      >>> values = jnp.array([[2.0, 0.0], [0.0, 3.0], [0.1, 0.1]])
      >>> steps = jattn.explain(bank, keys, values)
      >>> print((100 * steps.weights).round())  # river has 49 % of bank's attention
      [[49. 28. 24.]]
    """
    q, k, v = _checks.one_head("explain", q, k, v)
    options = _options("explain", q, k, v, mask, score, bias, None, scale, q_positions, k_positions)
    return reference.steps(q, k, v, **options)[0]


def _options(
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
        mask.fits(where, T, S)
    if bias is not None:
        bias = _checks.bias(where, bias)
        _checks.broadcastable(where, "bias", bias, (T, S), "[T, S]")
    if sink is not None:
        sink = _checks.array(where, "sink", sink)
        _checks.floating(where, sink=sink)
        _checks.broadcastable(where, "sink", sink, (T,), "[T]")
    if scale is not None:
        scale = _checks.scalar(where, "scale", scale, "Map over several with jax.vmap.")
    who = seekers(where, mask, score, _checks.wide(q, k, v))
    q_pos, k_pos = _checks.positions(where, T, S, q_positions, k_positions, who)
    if mask is not None:
        mask = mask.pairs(masks.Rows(0, q_pos), masks.Rows(0, k_pos))
    positions = {"q_positions": q_pos, "k_positions": k_pos}
    return {"mask": mask, "score": score, "bias": bias, "sink": sink, "scale": scale, **positions}


def seekers(where: str, mask: Mask | None, score: Score | None, dtype: Any) -> tuple[str, ...]:
    """Which of the two arguments compare positions of q and k; refuses a score that is not a score."""
    names = [] if mask is None or not mask.looks_at_positions else ["mask"]
    if score is not None and _checks.score_looks_at_positions(where, score, dtype):
        names.append("score")
    return tuple(names)
