"""What a head attends: scores that name previous-token, duplicate-token and induction heads, and sinks."""

from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp

from jattn import _errors, masks
from jattn._types import Array, ArrayLike, BoolOfPairs, Float, FloatOfPairs, Integer, Numeric, ScoreModifier
from jattn.heads._per_head import PerHead, in_every_head, own_options
from jattn.masks import Mask
from jattn.one_head import attention
from jattn.per_query import statistics

PER_HEAD = ("score", "bias", "sink", "scale", "q_positions", "k_positions")
"""Which options a head may have of its own."""


class HeadScores(NamedTuple):
    """See `head_scores`. Each has one entry a head."""

    previous_token: Float[Array, " H"]
    duplicate_token: Float[Array, " H"]
    induction: Float[Array, " H"]
    first_token: Float[Array, " H"]
    entropy: Float[Array, " H"]


class HeadScoreOptions(TypedDict, total=False):
    """The options of `head_scores` that all heads share, but the mask."""

    score: ScoreModifier | None
    bias: FloatOfPairs | None
    sink: Numeric | None
    scale: Numeric | None
    q_positions: Integer[ArrayLike, " T"] | None
    k_positions: Integer[ArrayLike, " T"] | None
    tile: tuple[int, int] | None


def head_scores(
    q: Float[ArrayLike, "H T D"],
    k: Float[ArrayLike, "Hkv T D"],
    tokens: Integer[ArrayLike, " T"],
    *,
    mask: Mask | BoolOfPairs | None = None,
    per_head: PerHead | None = None,
    **options: Unpack[HeadScoreOptions],
) -> HeadScores:
    """The weight that each head gives, on average, to keys that stand in some relation to the query.

        score = mean_t Σ_{s in R(t)} w_ts = mean_t exp(lse_t(R) − lse_t)      over the queries t with a key in R(t)

        previous_token    R(t) = {t − 1}
        duplicate_token   R(t) = {s < t: token_s = token_t}
        induction         R(t) = {s ≤ t: token_{s−1} = token_t}, the keys after earlier occurrences
        first_token       R(t) = {0}, t > 0, the attention sink of many models
        entropy           mean_t −Σ_s w_ts log w_ts, in nats

    with lse_t(R) that of the keys in R(t) that the mask allows: a second mask, beside which no weights are needed. No
    batch: map with jax.vmap. What a head that looks at nothing would have is `head_scores(0 * q, k, tokens, ...)`.

    Args:
      q: [H, T, D]. k: [Hkv, T, D], both as `project` makes them, of one sequence that attends itself.
      tokens: integers [T], the token at each place.
      mask: as in `attention`.
      per_head, **options: as in `multi_head`; options of `attention` but dropout: score, bias, sink, scale, positions.

    Returns:
      HeadScores(previous_token, duplicate_token, induction, first_token, entropy), a named tuple of arrays [H], in
      float32 or wider, differentiable to every order. Weights are from 0 to 1; where no query has such a key, a score
      is 0. Each weight is right to the rounding of the logits of its row, about eps · max |logit|. A query that may
      attend no key counts nowhere. `t − 1` and `s < t` speak of positions where these are given, `s − 1` of the row
      before. With a sink, weights are those beside it, and the entropy that without it.

    Raises:
      TypeError, ValueError: as `attention`; tokens are not integers [T], or q and k not of T rows; heads do not fit.

    Memory: O(H · T), as that of `attention`: five passes over the tiles, of which those for the previous and for the
      first token visit few.

    Source: Olsson et al. 2022, "In-context learning and induction heads"; Wang et al. 2023, "Interpretability in the
      wild", section 3, for duplicate tokens; Xiao et al. 2023, "Efficient streaming language models with attention
      sinks".

    Example:
      Of two heads the first attends the key before each query, the second nothing in particular:

      >>> import jax, jax.numpy as jnp, jattn
      >>> from jattn import heads
      >>> tokens = jnp.array([5, 3, 5, 3, 5, 3])
      >>> places = jnp.eye(6)
      >>> q = jnp.stack([100 * jnp.roll(places, -1, axis=1), 0 * places])
      >>> found = heads.head_scores(q, places[None], tokens, mask=jattn.masks.causal())
      >>> print((100 * jnp.stack(found)).round())  # in per cent: previous, duplicate, induction, first; entropy
      [[100.  29.]
       [  0.  33.]
       [100.  33.]
       [ 20.  29.]
       [  0. 110.]]
    """
    caller, remedy = "head_scores", "Pass the tokens of one sequence, and what `project` makes of it."
    tokens = _errors.array(caller, "tokens", tokens)
    q, k = (_errors.array(caller, name, x) for name, x in (("q", q), ("k", k)))
    _errors.kind(caller, "tokens", tokens, jnp.integer, "A token is a number: pass whole numbers.")
    if tokens.ndim != 1 or tokens.shape != q.shape[1:2] or tokens.shape != k.shape[1:2]:
        must = "q, k and tokens must have one row for each token"
        _errors.fail(ValueError, caller, must, remedy, q=q, k=k, tokens=tokens)
    if mask is not None and not isinstance(mask, masks.Mask):
        mask = masks.dense(jnp.atleast_2d(_errors.array(caller, "mask", mask)))
    earlier = ~masks.window(left=0)
    relations = {
        "previous_token": masks.window(left=1) & earlier,
        "duplicate_token": masks.segments(tokens) & earlier,
        "induction": masks.segments(tokens, jnp.roll(tokens, 1)) & ~masks.lengths(k=1) & masks.causal(),
        "first_token": masks.lengths(k=1) & earlier,
    }

    def head(q: jax.Array, k: jax.Array, _: jax.Array, own: dict[str, Any]) -> HeadScores:
        given = {**options, **own}
        whole = statistics(q, k, mask=mask, **given)
        without_sink = {name: x for name, x in given.items() if name != "sink"}
        v = jnp.zeros((k.shape[0], 1), k.dtype)

        def score(relation: masks.Mask) -> jax.Array:
            allowed = relation if mask is None else mask & relation
            lse = attention(q, k, v, mask=allowed, return_lse=True, **without_sink)[1].astype(whole.lse.dtype)
            there = lse > -jnp.inf
            # Where there is no such key no difference of two infinities is formed, nor its derivative.
            weight = jnp.exp(jnp.where(there, lse, 0) - jnp.where(there, whole.lse, 0))
            return _mean(weight, there)

        of_keys = {name: score(relation) for name, relation in relations.items()}
        return HeadScores(**of_keys, entropy=_mean(whole.entropy, whole.max_logit > -jnp.inf))

    own = own_options(caller, per_head, PER_HEAD, {"mask": mask, **options})
    return in_every_head(caller, head, q, k, k, own)


def _mean(x: jax.Array, counted: jax.Array) -> jax.Array:
    """The mean of what is counted; 0 where nothing is."""
    n = jnp.sum(counted, dtype=x.dtype)
    return jnp.sum(jnp.where(counted, x, 0)) / jnp.maximum(n, 1)
