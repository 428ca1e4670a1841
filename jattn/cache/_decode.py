"""Attention over a cache: few queries decode, chunk of tokens after chunk; many prefill, in the tiles of the engine."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jattn import masks
from jattn._numerics import match_varying_trees, nan_where, zero_nonfinite_rows
from jattn._types import Array, Bool, Float, Integer
from jattn.arguments.heads import merge_heads, vmap_heads
from jattn.cache._pages import Paged
from jattn.cache._store import Cache, Store, slots
from jattn.engine import tile, tuning
from jattn.engine.attend import attend_unrounded
from jattn.engine.plan import Operands
from jattn.masks import Mask
from jattn.partials import SoftmaxState

Unrounded = tuple[jax.Array, jax.Array, jax.Array]
"""(out, m, log_sum) in the dtype of the arithmetic; lse = m + log_sum."""


class CacheQueries(NamedTuple):
    """Queries in the heads of the cache, and their options."""

    q: Float[Array, "B Hkv G T D"]
    positions: Integer[Array, "B T"]
    filled: Bool[Array, "B T"] | None
    sink: Float[Array, "Hkv G"] | None
    scale: Float[Array, ""]
    mask: Mask | None
    captured: tuple[jax.Array, ...] = ()
    """What the score modifier closes over."""


class ChunkRow(NamedTuple):
    """One row of the batch in one chunk: what its queries and its tokens are, but for the heads."""

    q_positions: Integer[Array, " T"]
    k_positions: Integer[Array, " C"]
    allowed: Bool[Array, "T C"]


def attend_chunk(score: Any, row: ChunkRow, state: SoftmaxState, q: Any, kv: Store) -> SoftmaxState:
    """The state of one row and key/value head after one more chunk.

    q is [G, T, D], scaled, and which of them are not finite; k [C, D], v [C, Dv]. The G query heads are more rows of
    the one matrix product, so that no key is repeated.
    """
    q, q_nonfinite = q
    (G, T, D), C = q.shape, kv.k.shape[0]
    # Keys down: XLA multiplies few rows by a long transposed matrix three times as slowly, and would transpose it back.
    products = jax.lax.optimization_barrier(kv.k.astype(q.dtype) @ q.reshape(G * T, D).T).T
    if kv.k_scale is not None:
        products = products * kv.k_scale.astype(q.dtype)[None]
    nonfinite = q_nonfinite[..., None] | kv.nonfinite[None, None]
    logits = tile.logits_from_products(
        products.reshape(G, T, C), score, None, row.allowed[None], nonfinite,
        row.q_positions[None, :, None], row.k_positions[None, None],
    )  # fmt: skip

    def weighted_values(p: jax.Array) -> jax.Array:
        weights = p if kv.v_scale is None else p * kv.v_scale.astype(q.dtype)[None, None]
        return (weights.reshape(G * T, C) @ kv.v.astype(q.dtype)).reshape(G, T, kv.v.shape[1])

    return state.absorb(logits, weighted_values)


@partial(jax.jit, static_argnames="score")
def decode(x: CacheQueries, cache: Cache, score: Any) -> Unrounded:
    """Few queries: a chunk of the tokens of every row at a time, as far as the longest row goes."""
    B, Hkv, G, T, D = x.q.shape
    dtype = x.scale.dtype
    q, nonfinite = zero_nonfinite_rows(x.q.astype(dtype).reshape(-1, D))
    queries = (q * x.scale).reshape(x.q.shape), nonfinite.reshape(B, Hkv, G, T)
    n = chunk_size(cache, dtype)
    closed = None if score is None else partial(score, x.captured)
    of_heads = jax.tree.map(lambda x: 0 if x.ndim > 2 else None, cache.store)  # all but the positions
    heads_of_rows = jax.vmap(jax.vmap(partial(attend_chunk, closed), (None, 0, 0, of_heads)))

    @jax.checkpoint
    def step(state: SoftmaxState, j: jax.Array) -> SoftmaxState:
        some, start, fresh = load_chunk(cache, j, n)
        numbers = start + jnp.arange(n, dtype=jnp.int32)

        def allowed_pairs(t: jax.Array, s: jax.Array, length: jax.Array) -> jax.Array:
            held = jnp.broadcast_to((fresh & (numbers < length))[None], (T, n))
            return held if x.mask is None else held & x.mask.tile(masks.Rows(0, t), masks.Rows(start, s))

        allowed = jax.vmap(allowed_pairs)(x.positions, some.positions, cache.length)
        if x.filled is not None:
            allowed &= x.filled[..., None]
        rows = ChunkRow(x.positions, some.positions, allowed)
        return heads_of_rows(rows, state, queries, some)

    sink = None if x.sink is None else x.sink[..., None]
    start = SoftmaxState.start(sink, (B, Hkv, G, T), cache.store.v.shape[3], dtype)
    state, _ = match_varying_trees(start, (x, cache))
    steps = -(-cache.capacity // n)
    if steps == 1:
        state = step(state, jnp.int32(0))
    else:
        longest = cache.length.max(initial=0)

        def visit(state: SoftmaxState, j: jax.Array) -> tuple[SoftmaxState, None]:
            return jax.lax.cond(j * n < longest, step, lambda state, j: state, state, j), None

        state = jax.lax.scan(visit, state, jnp.arange(steps, dtype=jnp.int32))[0]
    return state.finish()


def chunk_size(cache: Cache, dtype: Any) -> int:
    """How many tokens of every row one step takes: a page, the whole of a buffer, or of narrow numbers as many as fill
    `tuning.CHUNK_BYTES` once they are wide. Of wide ones a slice would be copied first, which takes longer.
    """
    B, Hkv, C, D = cache.store.k.shape
    if isinstance(cache, Paged) or cache.store.k.dtype == cache.store.v.dtype == dtype:
        return C
    numbers = B * Hkv * (D + cache.store.v.shape[3])
    return min(C, max(64, tuning.CHUNK_BYTES // (4 * numbers) // 64 * 64))


def load_chunk(cache: Cache, j: jax.Array, n: int) -> tuple[Store, jax.Array, Bool[Array, " n"]]:
    """Chunk j of the tokens of all rows, [B, Hkv, n, ·]: (them, the number of the first, which are new in it)."""
    if isinstance(cache, Paged):
        at = jnp.maximum(cache.table[:, j], 0)
        return jax.tree.map(lambda x: x[at], cache.store), j * n, jnp.ones((n,), bool)
    start = jnp.minimum(j * n, cache.store.C - n)  # the last step may begin among tokens of the one before
    some = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, n, slots(x)), cache.store)
    return some, start, start + jnp.arange(n, dtype=jnp.int32) >= j * n


@partial(jax.jit, static_argnames="score")
def prefill(x: CacheQueries, cache: Cache, score: Any) -> Unrounded:
    """Many queries: the tiles of the engine, which skip what the mask rules out."""
    every = cache.store
    if isinstance(cache, Paged):
        table = jnp.maximum(cache.table, 0)

        def joined(a: jax.Array) -> jax.Array:
            """[N, Hkv, C, ·] → [B, Hkv, M · C, ·]"""
            axis = slots(a)
            return merge_heads(jnp.moveaxis(a[table], 1, axis), axis)

        every = jax.tree.map(joined, cache.store)
    dtype = x.scale.dtype

    def plain(a: jax.Array, scale: jax.Array | None) -> jax.Array:
        a = a if scale is None else a.astype(dtype) * scale.astype(dtype)[..., None]
        return nan_where(every.nonfinite[..., None], a)

    k, v = plain(every.k, every.k_scale), plain(every.v, every.v_scale)

    def head(q: jax.Array, k: jax.Array, v: jax.Array, own: dict[str, Any]) -> Unrounded:
        mask = masks.lengths(k=own["length"])
        mask = mask if x.mask is None else x.mask & mask
        mask = mask if own["filled"] is None else mask & masks.dense(own["filled"][:, None])
        closed = None if score is None else lambda ell, t, s: score(x.captured, ell, t, s)
        one = Operands(q, k, v, sink=own["sink"], scale=x.scale, mask=mask)
        return attend_unrounded(one._replace(q_positions=own["q_positions"], k_positions=own["k_positions"]), closed)

    own = {"length": cache.length, "filled": x.filled, "sink": x.sink, "q_positions": x.positions,
           "k_positions": every.positions}  # fmt: skip
    per_head: dict[str, Any] = dict.fromkeys(own) | {"sink": 0}
    per_row = dict.fromkeys(own, 0) | {"sink": None}
    found: Unrounded = vmap_heads(head, [per_row, per_head, per_head])(x.q, k, v, own)
    return found
