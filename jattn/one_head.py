"""Attention of one head: `attention`, `explain`, `weights_of`. Arguments are validated here, and trusted below."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp

from jattn import _errors, masks, reference
from jattn._numerics import nan_where
from jattn._types import Array, ArrayLike, BoolOfPairs, Float, FloatOfPairs, Integer, Numeric, PRNGKey, ScoreModifier
from jattn._values import classes
from jattn.arguments import options as arguments
from jattn.engine.attend import attend, mask_leaf
from jattn.engine.score import hoist_closure
from jattn.masks import Mask
from jattn.reference import Steps

R = TypeVar("R")


class SharedOptions(TypedDict, total=False):
    """The options of `attention` but return_lse and positions, for functions that hand them on."""

    mask: Mask | BoolOfPairs | None
    score: ScoreModifier | None
    bias: FloatOfPairs | None
    sink: Numeric | None
    scale: Numeric | None
    dropout_rate: Numeric
    dropout_key: PRNGKey | None
    tile: tuple[int, int] | None
    implementation: Literal["loops", "kernel", "interpret", "cudnn"] | None


class AttentionOptions(SharedOptions, total=False):
    """The options of `attention` but return_lse."""

    q_positions: Integer[ArrayLike, " T"] | None
    k_positions: Integer[ArrayLike, " S"] | None


@overload
def attention(
    q: Float[ArrayLike, "T D"],
    k: Float[ArrayLike, "S D"],
    v: Float[ArrayLike, "S Dv"],
    *,
    return_lse: Literal[False] = ...,
    **options: Unpack[AttentionOptions],
) -> Float[Array, "T Dv"]: ...
@overload
def attention(
    q: Float[ArrayLike, "T D"],
    k: Float[ArrayLike, "S D"],
    v: Float[ArrayLike, "S Dv"],
    *,
    return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Float[Array, "T Dv"], Float[Array, " T"]]: ...
def attention(
    q: Float[ArrayLike, "T D"],
    k: Float[ArrayLike, "S D"],
    v: Float[ArrayLike, "S Dv"],
    *,
    mask: Mask | BoolOfPairs | None = None,
    score: ScoreModifier | None = None,
    bias: FloatOfPairs | None = None,
    sink: Numeric | None = None,
    scale: Numeric | None = None,
    q_positions: Integer[ArrayLike, " T"] | None = None,
    k_positions: Integer[ArrayLike, " S"] | None = None,
    return_lse: bool = False,
    dropout_rate: Numeric = 0.0,
    dropout_key: PRNGKey | None = None,
    tile: tuple[int, int] | None = None,
    implementation: Literal["loops", "kernel", "interpret", "cudnn"] | None = None,
) -> Float[Array, "T Dv"] | tuple[Float[Array, "T Dv"], Float[Array, " T"]]:
    """Attention of T queries over S keys: each output is a mean of the values, weighted by how well key matches query.

        out_t = Σ_s exp(l_ts − lse_t) v_s,    lse_t = log(Σ_s exp(l_ts) + exp(sink))
        l_ts = score(scale · ⟨q_t, k_s⟩, t, s) + bias_ts     where mask_ts, −∞ elsewhere

    One head, no batch: map with jax.vmap.

    Args:
      q: [T, D], floating point.
      k: [S, D].
      v: [S, Dv]; Dv may differ from D.
      mask: whether a pair is allowed: a value of `jattn.masks`, or booleans that broadcast to [T, S]. What a mask is
        made of counts as constant.
      score: what a score becomes before the softmax: f(score, q_position, k_position) -> score on scalars, closing over
        whatever arrays it likes, as they are at each call. It is evaluated at masked pairs too, with ½ for the score:
        what it captures has a gradient where its derivative is finite there. In half precision, convert an array that
        it indexes to float32 before it captures it: JAX sums the gradient of an indexed array in the dtype of that
        array.
      bias: added after the score, broadcastable to [T, S]. An entry of −inf gives a pair no weight (only
        a mask also hides a NaN behind it), one of +inf all the weight of its query, several in equal
        shares, and lse = +inf. A learned one has its gradient.
      sink: a logit that joins the denominator and brings no value, a scalar or [T].
      scale: what the dot products are multiplied by, a real scalar, possibly traced; 1/√D if None.
      q_positions: integers [T], where each query stands in the sequence, in tokens, less than 2³⁰ in magnitude;
        0, 1, 2, … if None.
      k_positions: integers [S], likewise. Both are needed where T ≠ S and `mask` or `score` looks at them.
      return_lse: also return the logarithm of each row's denominator, which makes the result a partial that
        `merge` can join.
      dropout_rate: the share of weights, 0 ≤ rate < 1, that are set to zero, the others divided by 1 − rate; lse is
        that of the whole row. The derivative with respect to a rate is that of the division: which weights are dropped
        counts as constant.
      dropout_key: a key of jax.random, needed where the rate is not 0. A pair's lot depends on the key and its two
        row numbers alone, so that it is the same in every derivative and for every tile.
      tile: how many queries and how many keys make a tile, multiples of 16; if None, chosen from the shapes by
        `jattn.engine.tuning.tile_sizes`, and smaller on a CPU for a narrow mask that holds no arrays.
      implementation: None takes a kernel on a TPU and on an NVIDIA H100 or H200 if it has one for this call, and loops
        elsewhere; "loops" never takes a kernel; "kernel" takes one, of the TPU or of an NVIDIA GPU (there products of
        float32 are TF32 unless jax.default_matmul_precision("highest") is set, and those of a weight and a value in
        bfloat16 keep more unless it is "bfloat16", which is faster), or says why there is none where the program is
        lowered;
        "interpret" runs the kernel of the TPU operation by operation on any platform, slowly, to test with. "cudnn"
        has the value and the gradient, that of lse included, of NVIDIA's library, for what it knows: q, k and v in
        bfloat16 or float16 and of one width up to 128 (256 on a GPU of compute capability 9); a bias in the same dtype,
        of even T and S; full and causal masks, lengths, and, without a bias, a window to the left of a causal one; any
        scale (q is rounded once more if it is not 1/√D); a gradient where T and S are even; or says why not where the
        program is lowered.
        Its jvp, its derivatives beyond the first and what is not finite are loops. In every case derivatives beyond
        the first are. Kernels of the GPU and cuDNN were run on an H200 and an H100; kernels of the TPU were compiled
        and interpreted so far, and not run.

    Returns:
      out [T, Dv] in the dtype of v, or (out, lse [T]), lse in float32 or wider and differentiable.
      A query that may attend no key gives zeros, lse = −inf (or its sink) and no gradient. S = 0 is such a case
      for every query; T = 0 gives empty arrays. What is masked does not exist: a NaN or an infinity there
      reaches neither values nor derivatives. One that is attended makes the row of its query NaN. A tangent of
      q or k, or a cotangent of out, that is not finite reaches, through the logits, only the pairs that the mask
      allows; a tangent of v reaches the outputs, and a cotangent of out the cotangents of v, of every tile that is
      visited with it: 0 · NaN in a matrix product is NaN.

    Raises:
      TypeError: q, k, v, bias or sink is not floating point; mask is not boolean; score is no function of three scalars
        that returns one; scale or dropout_rate is no real scalar; dropout_key is not one key; tile is no pair;
        return_lse is no bool.
      ValueError: shapes do not fit, or D is 0; positions are missing where they matter, or int32 does not hold them;
        scale is not finite; dropout_rate is not in [0, 1), or there is no dropout_key; tile is not of multiples of 16;
        implementation is unknown, or, where the program is lowered, cannot do the call.

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
    caller = "attention"
    return_lse = _errors.flag(caller, "return_lse", return_lse)
    q, k, v = arguments.qkv(caller, q, k, v)
    options = arguments.one_head(caller, q, k, v, mask, score, bias, sink, scale, q_positions, k_positions)
    dropped, sizes = arguments.dropout(caller, dropout_rate, dropout_key), arguments.tile(caller, tile)
    arguments.implementation(caller, implementation)
    how: Any = {"tile": sizes, "implementation": implementation, "lse_is_read": return_lse}
    out, lse = attend(q, k, v, **options, dropout=dropped, **how)
    return (out, lse) if return_lse else out


def explain(
    q: Float[ArrayLike, "T D"],
    k: Float[ArrayLike, "S D"],
    v: Float[ArrayLike, "S Dv"],
    *,
    mask: Mask | BoolOfPairs | None = None,
    score: ScoreModifier | None = None,
    bias: FloatOfPairs | None = None,
    scale: Numeric | None = None,
    q_positions: Integer[ArrayLike, " T"] | None = None,
    k_positions: Integer[ArrayLike, " S"] | None = None,
) -> Steps:
    """Every intermediate of `attention`, in the order in which it is computed.

        scores = q kᵀ  →  scaled = score(scale · scores) + bias, −∞ where masked  →  weights = softmax(scaled)  →  out

    One head, no batch: map with jax.vmap.

    Args:
      q: [T, D]. k: [S, D]. v: [S, Dv].
      mask, score, bias, scale, q_positions, k_positions: as in `attention`.

    Returns:
      Steps(scores [T, S], scaled [T, S], weights [T, S], out [T, Dv]), a named tuple and so a pytree: it
      passes through jit, vmap and grad. A query that may attend no key has weights and output 0.

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
    return every_step("explain", q, k, v, mask, score, bias, scale, q_positions, k_positions)


def every_step(
    caller: str,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: Mask | ArrayLike | None = None,
    score: ScoreModifier | None = None,
    bias: ArrayLike | None = None,
    scale: Numeric | None = None,
    q_positions: ArrayLike | None = None,
    k_positions: ArrayLike | None = None,
) -> Steps:
    """`explain`, for functions that errors are to name in its place."""
    q, k, v = arguments.qkv(caller, q, k, v)
    options = arguments.one_head(caller, q, k, v, mask, score, bias, None, scale, q_positions, k_positions)
    return _in_one_program(_steps, options, _errors.wide(q, k, v), q, k, v)


def weights_of(
    q: Float[ArrayLike, "T D"],
    k: Float[ArrayLike, "S D"],
    lse: Float[ArrayLike, " T"],
    rows: Integer[ArrayLike, " R"] | None = None,
    *,
    mask: Mask | BoolOfPairs | None = None,
    score: ScoreModifier | None = None,
    bias: FloatOfPairs | None = None,
    scale: Numeric | None = None,
    q_positions: Integer[ArrayLike, " T"] | None = None,
    k_positions: Integer[ArrayLike, " S"] | None = None,
) -> Float[Array, "R S"]:
    """The attention weights of chosen queries, recomputed from their log-sum-exp.

        w_rs = exp(l_rs − lse_r)

    One head, no batch: map with jax.vmap.

    Args:
      q: [T, D]. k: [S, D].
      lse: [T], as `attention(..., return_lse=True)` gave it for the same options, a sink's share included.
      rows: integers [R], which rows of q, from the end where they are negative; all of them if None. The weights of a
        traced one that q has not are NaN.
      mask, score, bias, scale, q_positions, k_positions: as in `attention`.

    Returns:
      [R, S], in float32 or wider. A query without an allowed key has weights 0. Each weight carries the rounding
      error of its logit and of lse, |lse|·eps relative: where logits are as large as 1e6 in float32, use `explain`.

    Raises:
      TypeError, ValueError: as `attention`; or lse has not the shape [T], or rows are not integers [R] or, where they
        are known, none of q.

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
    caller = "weights_of"
    lse = _errors.array(caller, "lse", lse)
    q, k, _ = arguments.qkv(caller, q, k, k)
    options = arguments.one_head(caller, q, k, k, mask, score, bias, None, scale, q_positions, k_positions)
    T, S = q.shape[0], k.shape[0]
    _errors.floating(caller, lse=lse)
    if lse.shape != (T,):
        remedy = "Pass what attention(..., return_lse=True) returned for this q."
        _errors.fail(ValueError, caller, "lse must have the shape [T]", remedy, q=q, lse=lse)
    if rows is None:
        rows = jnp.arange(T, dtype=jnp.int32)
    else:
        rows = arguments.row_numbers(caller, rows)
        arguments.known_rows(caller, rows, T, q=q)
        rows = rows.astype(jnp.int32)  # a narrow one may not hold T
    if rows.shape[0] == 0:  # of no query, and where there is none
        return jnp.zeros((0, S), _errors.wide(q, k, lse))
    dtype = _errors.wide(q, k, lse)  # as the values that were attended may be wider than q and k
    weights = _in_one_program(_weights, options, dtype, q.astype(dtype), k, lse.astype(dtype), rows)
    return weights if _errors.known(rows) else nan_where(((rows < -T) | (rows >= T))[:, None], weights)


def _in_one_program(f: Callable[..., R], options: dict[str, Any], dtype: Any, *xs: jax.Array) -> R:
    """f(validated options, *xs): one by one its operations take seconds to compile.

    Inside `jax.shard_map` they are traced already, and a score may have captured what differs between devices.
    """
    if jax.sharding.get_abstract_mesh().manual_axes:
        return f(options, *xs)
    score, captured = (None, ()) if options["score"] is None else hoist_closure(options["score"], dtype)
    mask = jax.tree.map(mask_leaf, options["mask"])
    return _compiled(f, score, classes(mask), {**options, "mask": mask, "score": captured}, *xs)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled(f: Callable[..., R], score: Any, _: Any, options: dict[str, Any], *xs: jax.Array) -> R:
    """The third is the classes of the mask: JAX may take one for another where their structures are equal."""
    captured = options["score"]
    return f({**options, "score": None if score is None else lambda x, t, s: score(captured, x, t, s)}, *xs)


def _steps(options: dict[str, Any], q: jax.Array, k: jax.Array, v: jax.Array) -> Steps:
    return reference.steps(q, k, v, **arguments.dense(q.shape[0], k.shape[0], options))[0]


def _weights(options: dict[str, Any], q: jax.Array, k: jax.Array, lse: jax.Array, rows: jax.Array) -> jax.Array:
    full = arguments.dense(q.shape[0], k.shape[0], {**options, "mask": None})
    rows = jnp.where(rows < 0, rows + q.shape[0], rows)

    def one(r: jax.Array) -> jax.Array:
        here = {**full, "mask": None, "sink": None, "q_positions": full["q_positions"][r][None]}
        if options["mask"] is not None:
            keys = masks.Rows(0, full["k_positions"])
            here["mask"] = options["mask"].tile(masks.Rows(r, here["q_positions"]), keys)
        if options["bias"] is not None:
            here["bias"] = options["bias"] if options["bias"].shape[0] == 1 else options["bias"][r][None]
        logits = reference.steps(q[r][None], k, k[:, :0], **here)[0].scaled[0]
        return jnp.exp(jnp.where(logits == -jnp.inf, -jnp.inf, logits - jnp.where(lse[r] == -jnp.inf, 0, lse[r])))

    return jax.vmap(one)(rows)
