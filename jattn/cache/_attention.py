"""Queries against what a cache holds, and what they may ask."""

from functools import partial
from typing import Any, Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jattn import _errors, masks
from jattn._numerics import nan_where, on_automatic_axes, promoted, spec_of
from jattn._types import Array, ArrayLike, Float, Integer, Numeric, ScoreModifier
from jattn.arguments import heads, options
from jattn.cache._buffers import Ring
from jattn.cache._decode import CacheQueries, Unrounded, decode, prefill
from jattn.cache._store import Cache
from jattn.cache._validate import shape_of
from jattn.engine import tuning
from jattn.engine.score import hoist_closure
from jattn.masks import Mask
from jattn.partials import merge_finished


class CacheAttentionOptions(TypedDict, total=False):
    """The options of `attention` and of `cascade` but return_lse."""

    mask: Mask | None
    score: ScoreModifier | None
    sink: Float[ArrayLike, "*H"] | None
    scale: Numeric | None
    lengths: Integer[ArrayLike, " B"] | None
    q_positions: Integer[ArrayLike, "B T"] | None


@overload
def attention(
    q: Float[ArrayLike, "B H T D"],
    cache: Cache,
    *,
    return_lse: Literal[False] = ...,
    **options: Unpack[CacheAttentionOptions],
) -> Float[Array, "B H T Dv"]: ...
@overload
def attention(
    q: Float[ArrayLike, "B H T D"],
    cache: Cache,
    *,
    return_lse: Literal[True],
    **options: Unpack[CacheAttentionOptions],
) -> tuple[Float[Array, "B H T Dv"], Float[Array, "B H T"]]: ...
def attention(
    q: Float[ArrayLike, "B H T D"],
    cache: Cache,
    *,
    mask: Mask | None = masks.causal(),  # noqa: B008 - a frozen value
    score: ScoreModifier | None = None,
    sink: Float[ArrayLike, "*H"] | None = None,
    scale: Numeric | None = None,
    lengths: Integer[ArrayLike, " B"] | None = None,
    q_positions: Integer[ArrayLike, "B T"] | None = None,
    return_lse: bool = False,
) -> Float[Array, "B H T Dv"] | tuple[Float[Array, "B H T Dv"], Float[Array, "B H T"]]:
    """Attention of T queries in each row over the tokens that the row holds.

        out_t = Σ_s exp(l_ts − lse_t) v_s,    l_ts = score(scale · ⟨q_t, k_s⟩, t, s)     where s is held and mask_ts

    As `jattn.attention` for each row and head, over all tokens that `append` was given. Append first, then attend.

    Args:
      q: [B, H, T, D], floating point, heads major; H a multiple of Hkv: a key/value head serves H / Hkv query heads.
      cache: of any kind; a ring adds its window to the mask.
      mask: a value of `jattn.masks`, asked with the positions that the cache keeps; None allows all (cross
        attention). `masks.dense` and `masks.lengths` speak of places in the buffer, not of positions.
      score: f(score, q_position, k_position) -> score on scalars, for every head.
      sink: a logit that joins the denominator and brings no value, a scalar or [H].
      scale: what the dot products are multiplied by, a real scalar; 1/√D if None.
      lengths: integers [B], how many of the T queries exist, 0 ≤ n ≤ T, as was said to `append`; the others give zeros.
      q_positions: integers [B, T], in tokens. If None the queries are those of the last tokens that were appended:
        the position of the last one is that of the newest token, and the others precede it one by one.
      return_lse: also return the logarithm of each denominator, so that `merge` can join other keys.

    Returns:
      out [B, H, T, Dv] in the dtype of the cached values (of q where they are bytes), or (out, lse [B, H, T]), lse in
      float32 or wider. A query that may attend no key gives zeros, and −inf or its sink. A row that is `full`, a query
      whose window reaches back to what a ring let go, and one that attends a NaN or infinity, in k or in v, give NaN in
      both.

    Raises:
      TypeError: `cache` is not a cache, mask not a mask, return_lse no bool, or a dtype is of the wrong kind.
      ValueError: shapes do not fit; or, outside jit, the window of a query reaches back to what a ring let go.

    Memory: linear in T and S. Few queries read a buffer once and whole, and pages or bytes a part at a time, no
      further than the longest row; more than 64 rows of q for one key/value head go through the tiles of
      `jattn.attention`, after a copy of pages and of bytes.

    Source: Shazeer 2019, "Fast Transformer Decoding", section 2.4; Milakov and Gimelshein 2018, "Online normalizer
      calculation for softmax", for the fold.

    Example:
      >>> import jax, jax.numpy as jnp, jattn
      >>> from jattn import cache
      >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 2, 6, 4))
      >>> c = cache.append(cache.contiguous(B=1, Hkv=2, S=8, D=4), k[:, :, :5], v[:, :, :5])  # prefill
      >>> c = cache.append(c, k[:, :, 5:], v[:, :, 5:])  # one step
      >>> last = cache.attention(q[:, :, 5:], c)
      >>> whole = jax.vmap(jax.vmap(lambda *x: jattn.attention(*x, mask=jattn.masks.causal())))(q, k, v)
      >>> bool(jnp.allclose(last, whole[:, :, 5:], atol=1e-6))
      True
    """
    return_lse = _errors.flag("attention", "return_lse", return_lse)
    x = _queries("attention", q, mask, sink, scale, lengths, q_positions, cache)
    out, m, log_sum = _partial("attention", x, cache, score)
    out = out.astype(_dtype_of_out(x, cache))
    return (out, m + log_sum) if return_lse else out


@overload
def cascade(
    q: Float[ArrayLike, "B H T D"],
    prefix: Cache,
    cache: Cache,
    *,
    return_lse: Literal[False] = ...,
    **options: Unpack[CacheAttentionOptions],
) -> Float[Array, "B H T Dv"]: ...
@overload
def cascade(
    q: Float[ArrayLike, "B H T D"],
    prefix: Cache,
    cache: Cache,
    *,
    return_lse: Literal[True],
    **options: Unpack[CacheAttentionOptions],
) -> tuple[Float[Array, "B H T Dv"], Float[Array, "B H T"]]: ...
def cascade(
    q: Float[ArrayLike, "B H T D"],
    prefix: Cache,
    cache: Cache,
    *,
    mask: Mask | None = masks.causal(),  # noqa: B008 - a frozen value
    score: ScoreModifier | None = None,
    sink: Float[ArrayLike, "*H"] | None = None,
    scale: Numeric | None = None,
    lengths: Integer[ArrayLike, " B"] | None = None,
    q_positions: Integer[ArrayLike, "B T"] | None = None,
    return_lse: bool = False,
) -> Float[Array, "B H T Dv"] | tuple[Float[Array, "B H T Dv"], Float[Array, "B H T"]]:
    """Attention of B rows over one prefix that all have in common, and over what each has of its own.

        merge(attention of all B · T queries over the prefix, attention of each row over its own tokens)

    The prefix is kept once and read once, whatever B: its keys and the queries of all rows are in one matrix product.
    What is merged is not rounded before.

    Args:
      q: [B, H, T, D], as in `attention`.
      prefix: a cache of one row, B = 1.
      cache: the rows' own tokens, made with `start` = the length of the prefix, so that positions go on.
      mask, score, sink, scale, lengths, q_positions, return_lse: as in `attention`.

    Returns:
      As `attention` over prefix and own tokens together. Either one may be of any kind, in bytes or not.

    Raises:
      TypeError, ValueError: as `attention`; or the prefix has more than one row, or has not the heads and widths of the
        cache; or the mask counts rows, or holds an entry for each, as `masks.dense` and `masks.segments` do.

    Memory: as `attention` of both; the prefix is not copied.

    Source: Juravsky et al. 2024, "Hydragen", section 3.2; Ye et al. 2024, "Cascade Inference" (FlashInfer).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jattn import cache
      >>> k, v = jax.random.normal(jax.random.key(0), (2, 1, 2, 5, 4))
      >>> prefix = cache.append(cache.contiguous(B=1, Hkv=2, S=5, D=4), k, v)
      >>> own = cache.contiguous(B=3, Hkv=2, S=8, D=4, start=5)
      >>> q, k, v = jax.random.normal(jax.random.key(1), (3, 3, 2, 1, 4))
      >>> cache.cascade(q, prefix, cache.append(own, k, v)).shape
      (3, 2, 1, 4)
    """
    caller = "cascade"
    return_lse = _errors.flag(caller, "return_lse", return_lse)
    if shape_of(caller, prefix, "prefix")[0] != 1:
        got = {"prefix": f"of {prefix.length.shape[0]} rows"}
        _errors.fail(ValueError, caller, "prefix must have one row", "Make it with B=1: all rows share it.", **got)
    x = _queries(caller, q, mask, sink, scale, lengths, q_positions, cache, prefix)
    both = {"prefix": prefix, "cache": cache}
    if len({shape_of(caller, c)[1:] for c in both.values()}) > 1:
        remedy = "Make both for the same heads and widths."
        got = {name: f"{shape_in_words(c)} of Dv {c.store.v.shape[3]}" for name, c in both.items()}
        _errors.fail(ValueError, caller, "prefix and cache must agree in Hkv, D and Dv", remedy, **got)
    B, Hkv, G, T, D = x.q.shape

    x = x._replace(mask=None if x.mask is None else x.mask.map_leaves(_of_both))
    x = x._replace(mask=seen(cache, x.mask))  # the window of a ring reaches into the prefix

    def together(a: jax.Array) -> jax.Array:
        return a.reshape(1, B * T)

    folded = x._replace(
        q=x.q.transpose(1, 2, 0, 3, 4).reshape(1, Hkv, G, B * T, D),
        positions=together(x.positions),
        filled=None if x.filled is None else together(x.filled),
        sink=None,  # it joins the denominator once
    )
    common = [a.reshape(Hkv * G, B, T, *a.shape[3:]).swapaxes(0, 1) for a in _partial(caller, folded, prefix, score)]
    out, m, log_sum = merge_finished(common, _partial(caller, x, cache, score))
    out = out.astype(promoted(_dtype_of_out(x, prefix), _dtype_of_out(x, cache)))
    return (out, m + log_sum) if return_lse else out


def _of_both(mask: Mask) -> Mask:
    """Refuses what tells rows by their number in one array: those of prefix and cache would have the same."""
    if mask.counts_rows or any(mask.split_qk().leaf_axes()):
        must = "mask must not look at the rows of an array, of which prefix and cache hold a piece each"
        remedy = "Say it by positions, as masks.causal, masks.window and masks.where do."
        _errors.fail(ValueError, "cascade", must, remedy, mask=type(mask).__name__.lower())
    return mask


def _dtype_of_out(x: CacheQueries, cache: Cache) -> Any:
    return cache.store.v.dtype if cache.store.v_scale is None else x.q.dtype


def seen(cache: Cache, mask: Mask | None) -> Mask | None:
    """The mask with the window of a ring."""
    if not isinstance(cache, Ring):
        return mask
    window = masks.window(left=cache.window - 1)
    return window if mask is None else mask & window


def shape_in_words(cache: Cache) -> str:
    B, Hkv, D, _ = shape_of("", cache)
    return f"[{B}, {Hkv}, {cache.capacity}, {D}]"


def _queries(
    caller: str, q: Any, mask: Any, sink: Any, scale: Any, lengths: Any, q_positions: Any, cache: Any, *prefix: Cache
) -> CacheQueries:
    """The arguments of `attention` and `cascade`, validated. The scale has the dtype of the arithmetic."""
    B, Hkv, D, _ = shape_of(caller, cache)
    q = _errors.array(caller, "q", q)
    remedy = "Heads stand before tokens: jax.numpy.swapaxes(x, 1, 2) turns [B, T, H, D]."
    _errors.rank(caller, 4, "[B, H, T, D]", remedy, q=q)
    _errors.floating(caller, q=q)
    H, T = q.shape[1:3]
    if (q.shape[0], q.shape[3]) != (B, D):
        got = {"q": q, "cache": shape_in_words(cache)}
        _errors.fail(ValueError, caller, "q must have the B and D of the cache", "Make the cache for these.", **got)
    must = "the heads of q must be a multiple of those of the cache"
    heads.group_size(caller, H, Hkv, must, q=q, cache=shape_in_words(cache))
    if mask is not None:
        options.mask_value(caller, mask, "Make one with jattn.masks, such as masks.causal() & masks.window(left=3).")
    if sink is not None:
        sink = heads.sink_per_head(caller, sink, H)
        sink = heads.split_heads(jnp.broadcast_to(sink, (H,)), Hkv)
    dtype = _errors.wide(q, *(x for c in (cache, *prefix) for x in (c.store.k, c.store.v)))
    scale = D**-0.5 if scale is None else options.scale_array(caller, scale)
    n = positions = None
    if lengths is not None:
        n = heads.per_row(caller, "lengths", lengths, (B,), "[B]", "rows").clip(0, T)
    if q_positions is not None:
        positions = heads.per_row(caller, "q_positions", q_positions, (B, T), "[B, T]", "tokens")
    t = jnp.arange(T, dtype=jnp.int32)[None]
    if positions is None:
        positions = (cache.next - (T if n is None else n))[:, None] + t
    filled = None if n is None else t < n[:, None]
    return CacheQueries(heads.split_heads(q, Hkv, 1), positions, filled, sink, jnp.asarray(scale, dtype), mask)


def _partial(caller: str, x: CacheQueries, cache: Cache, score: ScoreModifier | None) -> Unrounded:
    """(out [B, H, T, Dv], m [B, H, T], log_sum [B, H, T]) of the queries over one cache."""
    B, _, G, T, _ = x.q.shape
    x = x._replace(mask=seen(cache, x.mask))
    if x.mask is not None:
        x.mask.validate(caller, T, cache.capacity, True)
    closed = None
    if score is not None:
        options.validate_score(caller, score, x.scale.dtype)
        closed, captured = hoist_closure(score, x.scale.dtype)
        x = x._replace(captured=captured)
    wrong = jnp.broadcast_to(cache.full[:, None], (B, T))
    lost = cache.lost(x.positions)
    if lost is not None:
        lost = lost if x.filled is None else lost & x.filled
        if _errors.known(lost) and _errors.read(lost.any()):
            remedy = (
                "Make the ring with chunk at least as large as the tokens that are appended and asked about at once."
            )
            got = {"T": str(T), "cache": f"of {cache.capacity} tokens"}
            _errors.fail(ValueError, caller, "the ring must still hold what each query sees", remedy, **got)
        wrong = wrong | lost
    rows = spec_of(x.q)[:4]
    specs = PartitionSpec(*rows, None), PartitionSpec(*rows), PartitionSpec(*rows)
    few = isinstance(G * T, int) and G * T <= tuning.DECODE_ROWS  # a symbol of jax.export is as many as it likes
    attend = decode if few else prefill
    out, m, log_sum = on_automatic_axes(partial(attend, score=closed), specs, x, cache)
    wrong = wrong[:, None, None]
    out, m = nan_where(wrong[..., None], out), nan_where(wrong, m)
    return heads.merge_heads(out, 1), heads.merge_heads(m, 1), heads.merge_heads(log_sum, 1)
