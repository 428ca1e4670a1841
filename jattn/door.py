"""The door: attention for one head.

What a caller may get wrong is caught at its threshold (`_asked`), by name; inside, shapes and dtypes are trusted. Here
the forward fold is married to its derivative, and both to the tiles that they walk.
"""

import dataclasses
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _asked, _checks, masks, reference, scores
from jattn._types import Array, ArrayLike, Bool, Float, Int, Numeric, Score
from jattn._values import Closed, close
from jattn._walk import walk
from jattn.blockwise import CHECKPOINT_NAMES, Fold
from jattn.derivatives import Tangents
from jattn.masks import Mask
from jattn.reference import Steps
from jattn.tiles import Operands, Plan, tile_sizes


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
    dropout_rate: Numeric = ...,
    dropout_key: Array | None = ...,
    tile: tuple[int, int] | None = ...,
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
    dropout_rate: Numeric = ...,
    dropout_key: Array | None = ...,
    tile: tuple[int, int] | None = ...,
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
    dropout_rate: Any = 0.0,
    dropout_key: Any = None,
    tile: tuple[int, int] | None = None,
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
      bias: added after the score, broadcastable to [T, S]. An entry of −inf gives a pair no weight (only
        a mask also hides a NaN behind it); a learned one has its gradient.
      sink: a logit that joins the denominator and brings no value, a scalar or [T].
      scale: what the dot products are multiplied by, a real scalar, possibly traced; 1/√D if None.
      q_positions: integers [T], where each query stands in the sequence, in tokens; 0, 1, 2, … if None.
      k_positions: integers [S], likewise. Both are needed where T ≠ S and `mask` or `score` looks at them.
      return_lse: also return the logarithm of each row's denominator, which makes the result a partial that
        `merge` can join.
      dropout_rate: the share of weights, 0 ≤ rate < 1, that are set to zero, the others divided by 1 − rate; lse is
        that of the whole row.
      dropout_key: a key of jax.random, needed where the rate is not 0. A pair's lot depends on the key and its two
        row numbers alone, so that it is the same in every derivative and for every tile.
      tile: how many queries and how many keys make a tile; chosen from the shapes if None (`jattn.tiles.tile_sizes`).

    Returns:
      out [T, Dv] in the dtype of v, or (out, lse [T]), lse in float32 or wider and differentiable.
      A query that meets nothing gives zeros, lse = −inf (or its sink) and no gradient. S = 0 is such a case
      for every query; T = 0 gives empty arrays. What is masked does not exist: a NaN or an infinity there
      reaches neither values nor derivatives. One that is met makes the row of its query NaN.

    Raises:
      TypeError: q, k, v or bias is not floating point; mask is not boolean; score is not a function.
      ValueError: shapes do not fit; or positions are missing where they matter.

    Memory: linear in T and S: the inputs, the outputs and a few tiles, for the value and for each derivative. A
      dense mask or bias is the caller's own T × S.

    Source: Vaswani et al. 2017, "Attention is all you need", eq. 1; Rabe and Staats 2021, "Self-attention does not
      need O(n²) memory"; Dao et al. 2022, "FlashAttention".

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
    options = _asked.options(where, q, k, v, mask, score, bias, sink, scale, q_positions, k_positions)
    dropping, sizes = _asked.dropout(where, dropout_rate, dropout_key), _asked.tile_of(where, tile)
    out, lse = attend(q, k, v, **options, dropout=dropping, tile=sizes)
    return (out, lse) if return_lse else out


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: Mask | None = None,
    score: Score | None = None,
    bias: jax.Array | None = None,
    sink: jax.Array | None = None,
    scale: jax.Array | None = None,
    q_positions: jax.Array | None = None,
    k_positions: jax.Array | None = None,
    dropout: tuple[jax.Array, jax.Array] | None = None,
    tile: tuple[int, int] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`attention` behind its checks: (out, lse) of arguments that fit. Positions that are not given are row numbers."""
    T, S = q.shape[0], k.shape[0]
    if T == 0 or S == 0:  # no tile at all: the definition is short enough
        allowed = None if mask is None else jnp.zeros((T, S), bool)
        return reference.attention(q, k, v, mask=allowed, sink=sink)
    x = Operands(q, k, v, bias, sink, scale, (), mask, q_positions, k_positions, dropout)
    plan, x = prepared(x, score, tile)
    leaves, tree = jax.tree.flatten(x)
    out, m, log_sum = walk(_Attend(plan, tree), *leaves)
    return out.astype(v.dtype), m + log_sum


def prepared(x: Operands, score: Score | None, tile: tuple[int, int] | None) -> tuple[Plan, Operands]:
    """How one head is computed, and its operands in the form that the engine wants."""
    T, S, dtype = x.q.shape[0], x.k.shape[0], _checks.wide(x.q, x.k, x.v)
    platform = jax.default_backend()  # of most programs; one that is lowered for another gets another tile
    q_tile, k_tile = tile or tile_sizes(T, S, backend=platform)
    if isinstance(T, int) and isinstance(S, int):
        q_tile, k_tile = min(q_tile, T), min(k_tile, S)
    closed, captured = (None, ()) if score is None else _close(score, dtype)
    # Lengths in Python ints: beside float64 they would become int64, and rows are counted in int32.
    mask = jax.tree.map(lambda n: jax.device_put(np.int32(n)) if isinstance(n, int) else n, x.mask)
    scale = jax.device_put(np.asarray(x.q.shape[1] ** -0.5, dtype)) if x.scale is None else x.scale
    sink = x.sink.reshape(()) if x.sink is not None and x.sink.shape != (T,) else x.sink
    x = x._replace(captured=captured, mask=mask, scale=scale, sink=sink)
    return Plan(T, S, q_tile, k_tile, dtype, closed, platform, tile is not None), x


@dataclasses.dataclass(frozen=True)
class _Attend(Fold):
    """The forward fold with its derivative.

    Of (out, m, log_sum), lse = m + log_sum, m counts as a constant, and log_sum carries the derivative of lse.
    """

    @property
    def constant(self) -> frozenset[int]:
        return frozenset({1})

    @property
    def names(self) -> tuple[str, ...]:
        return CHECKPOINT_NAMES

    def tangent(self, over: tuple[int, ...]) -> Tangents:
        return Tangents(self.plan, self.tree, over)


@dataclasses.dataclass(frozen=True)
class _Mapped:
    """A score that is any function of scalars, as one of what it captured and of a tile."""

    closed: Closed

    def __call__(self, captured: Any, tile: jax.Array, t: jax.Array, s: jax.Array, keys_first: bool) -> jax.Array:
        def score(x: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
            return self.closed(captured, x, t, s)[0].astype(x.dtype)

        inner, outer = ((0, None, 0), (0, 0, None)) if not keys_first else ((0, 0, None), (0, None, 0))
        return jax.vmap(jax.vmap(score, inner), outer)(tile, t, s)


@dataclasses.dataclass(frozen=True)
class _Whole:
    """A score of this library, without its arrays: it takes a tile as it is."""

    tree: Any

    def __call__(self, captured: Any, tile: jax.Array, t: jax.Array, s: jax.Array, keys_first: bool) -> jax.Array:
        t, s = (t[None, :], s[:, None]) if keys_first else (t[:, None], s[None, :])
        return jax.tree.unflatten(self.tree, captured)(tile, t, s).astype(tile.dtype)


def _close(score: Score, dtype: Any) -> tuple[Any, tuple[jax.Array, ...]]:
    """The score as a hashable function of the arrays that it closes over, and these, so that they have derivatives."""
    if isinstance(score, scores.Score):
        leaves, tree = jax.tree.flatten(score)
        return _Whole(tree), tuple(jax.device_put(x) if isinstance(x, float) else jnp.asarray(x) for x in leaves)
    i, x = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), dtype)
    closed, captured, _ = close(score, x, i, i)
    return _Mapped(closed), captured


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
    options = _asked.options("explain", q, k, v, mask, score, bias, None, scale, q_positions, k_positions)
    return reference.steps(q, k, v, **_asked.dense(q.shape[0], k.shape[0], options))[0]


def weights_of(
    q: Any,
    k: Any,
    lse: Any,
    rows: Any = None,
    *,
    mask: Any = None,
    score: Score | None = None,
    bias: Any = None,
    scale: Any = None,
    q_positions: Any = None,
    k_positions: Any = None,
) -> Float[Array, "R S"]:
    """The attention weights of chosen queries, recomputed from their log-sum-exp.

        w_rs = exp(l_rs − lse_r)

    One head, no batch: map with jax.vmap.

    Args:
      q: [T, D]. k: [S, D].
      lse: [T], as `attention(..., return_lse=True)` gave it for the same options, a sink's share included.
      rows: integers [R], which rows of q; all of them if None.
      mask, score, bias, scale, q_positions, k_positions: as in `attention`.

    Returns:
      [R, S], in float32 or wider. A query that met nothing has weights 0. Each weight carries the rounding error of
      its logit and of lse, |lse|·eps relative: where logits are as large as 1e6 in float32, use `explain`.

    Raises:
      TypeError, ValueError: as `attention`; or lse has not the shape [T], or rows are not integers [R].

    Memory: R · S.

    Source: Dao et al. 2022, "FlashAttention", section 3.1, where the backward pass recomputes its weights so.

    Example:
      >>> import jax, jax.numpy as jnp, jattn
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 6, 4))
      >>> out, lse = jattn.attention(q, k, v, return_lse=True)
      >>> w = jattn.weights_of(q, k, lse, jnp.array([2]))
      >>> bool(jnp.allclose((w @ v)[0], out[2], atol=1e-6))
      True
    """
    where = "weights_of"
    lse = _checks.array(where, "lse", lse)
    q, k, _ = _checks.one_head(where, q, k, k)
    options = _asked.options(where, q, k, k, mask, score, bias, None, scale, q_positions, k_positions)
    T, S = q.shape[0], k.shape[0]
    _checks.floating(where, lse=lse)
    if lse.shape != (T,):
        remedy = "Pass what attention(..., return_lse=True) returned for this q."
        _checks.fail(ValueError, where, "lse must have the shape [T]", remedy, q=q, lse=lse)
    rows = jnp.arange(T, dtype=jnp.int32) if rows is None else _checks.array(where, "rows", rows)
    _checks.kind(where, "rows", rows, jnp.integer, "Rows are numbers of queries: pass whole numbers.")
    _checks.rank(where, 1, "[R]", "Pass a list of row numbers, as in rows=jax.numpy.array([2]).", rows=rows)
    full = _asked.dense(T, S, {**options, "mask": None})

    def one(r: jax.Array) -> jax.Array:
        here = {**full, "mask": None, "sink": None, "q_positions": full["q_positions"][r][None]}
        if options["mask"] is not None:
            rows_k = masks.Rows(0, full["k_positions"])
            here["mask"] = options["mask"].pairs(masks.Rows(r, here["q_positions"]), rows_k)
        if options["bias"] is not None:
            here["bias"] = options["bias"] if options["bias"].shape[0] == 1 else options["bias"][r][None]
        logits = reference.steps(q[r][None], k, k[:, :0], **here)[0].scaled[0]
        return jnp.exp(jnp.where(logits == -jnp.inf, -jnp.inf, logits - jnp.where(lse[r] == -jnp.inf, 0, lse[r])))

    return jax.vmap(one)(rows)
