"""The fold of attention over a cache: some tokens of every row at a time, or the tiles of the engine."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jattn import door, masks
from jattn._numerics import below, finite_or_zero, set_aside
from jattn._types import Array, Bool, Float, Int, Partial, Score
from jattn._values import Closed
from jattn.cache._pages import Paged
from jattn.cache._store import Cache, Store, slots
from jattn.masks import Mask

FEW = 64
"""Up to so many query rows for one key/value head, reading the keys is what costs; above, the engine's tiles are."""
STEP = 2**23
"""Bytes of keys and values that one step of the fold makes wide: they stay in the caches of a CPU."""


class Queries(NamedTuple):
    """Queries in the heads of the cache, and what is asked of them."""

    q: Float[Array, "B Hkv G T D"]
    positions: Int[Array, "B T"]
    filled: Bool[Array, "B T"] | None
    sink: Float[Array, "Hkv G"] | None
    scale: Float[Array, ""]
    mask: Mask | None
    captured: tuple[jax.Array, ...] = ()
    """What the score closes over."""


class Row(NamedTuple):
    """One row: what its queries and some of its tokens are, but for the heads."""

    q_positions: Int[Array, " T"]
    k_positions: Int[Array, " C"]
    met: Bool[Array, "T C"]


def scored(x: Queries, score: Closed | None) -> Score | None:
    """The score as a function of three scalars again; closed, it is one program however often it is written anew."""
    return None if score is None else lambda ell, t, s: score(x.captured, ell, t, s)[0].astype(ell.dtype)


def meet(score: Score | None, row: Row, carry: Any, q: Any, kv: Store) -> Any:
    """One row and key/value head meets some more tokens: q [G, T, D] (and which are bad), k [C, D], v [C, Dv].

    The G query heads are more rows of the one matrix product, so that no key is repeated.
    """
    m, total, acc = carry
    q, q_bad = q
    G, T, D = q.shape
    # Keys first: XLA multiplies few rows by a long transposed matrix three times as slowly, and would turn it back.
    ell = jax.lax.optimization_barrier(kv.k.astype(q.dtype) @ q.reshape(G * T, D).T).T
    if kv.k_scale is not None:
        ell = ell * kv.k_scale.astype(q.dtype)[None]
    ell = ell.reshape(G, T, -1)
    if score is not None:
        over = jax.vmap(jax.vmap(jax.vmap(score, (0, None, 0)), (0, 0, None)), (0, None, None))
        ell = over(jnp.where(row.met[None], ell, 0), row.q_positions, row.k_positions).astype(q.dtype)
    q_lift, k_lift = (jnp.where(bad, jnp.nan, 0).astype(q.dtype) for bad in (q_bad, kv.bad))
    ell = jnp.where(row.met[None], ell + q_lift[..., None] + k_lift[None, None], -jnp.inf)
    m_new = jnp.maximum(m, ell.max(2))
    top = finite_or_zero(m_new)
    p = jnp.exp(below(ell, top[..., None]))
    shrink = jnp.exp(below(m, top))
    weights = p if kv.v_scale is None else p * kv.v_scale.astype(q.dtype)[None, None]
    more = (weights.reshape(G * T, -1) @ kv.v.astype(q.dtype)).reshape(G, T, -1)
    return m_new, total * shrink + p.sum(2), acc * shrink[..., None] + more


@partial(jax.jit, static_argnames="score")
def few(x: Queries, cache: Cache, score: Closed | None) -> Partial:
    """Few queries: some tokens of every row at a time, as far as the longest row goes."""
    B, Hkv, G, T, D = x.q.shape
    dtype = x.scale.dtype
    q, q_bad = set_aside(x.q.astype(dtype).reshape(-1, D))
    queries = (q * x.scale).reshape(x.q.shape), q_bad.reshape(B, Hkv, G, T)
    n = step_size(cache, dtype)
    over = jax.vmap(jax.vmap(partial(meet, scored(x, score)), (None, 0, 0, 0)))  # heads, then rows

    @jax.checkpoint
    def step(carry: Any, j: jax.Array) -> Any:
        some, start, fresh = taken(cache, j, n)
        numbers = start + jnp.arange(n, dtype=jnp.int32)

        def meets(t: jax.Array, s: jax.Array, length: jax.Array) -> jax.Array:
            met = jnp.broadcast_to((fresh & (numbers < length))[None], (T, n))
            return met if x.mask is None else met & x.mask.pairs(masks.Rows(0, t), masks.Rows(start, s))

        met = jax.vmap(meets)(x.positions, some.positions, cache.length)
        if x.filled is not None:
            met &= x.filled[..., None]
        rows = Row(x.positions, some.positions, met)
        heads = dataclasses.replace(some, positions=None)  # type: ignore[arg-type]
        return over(rows, carry, queries, heads)

    sink = jnp.full((Hkv, G), -jnp.inf, dtype) if x.sink is None else x.sink.astype(dtype)
    m = jnp.broadcast_to(sink[..., None], (B, Hkv, G, T))
    carry = m, (m > -jnp.inf).astype(dtype), jnp.zeros((B, Hkv, G, T, cache.store.v.shape[3]), dtype)
    steps = -(-cache.capacity // n)
    if steps == 1:
        carry = step(carry, jnp.int32(0))
    else:
        longest = cache.length.max(initial=0)

        def visit(carry: Any, j: jax.Array) -> Any:
            return jax.lax.cond(j * n < longest, step, lambda carry, j: carry, carry, j), None

        carry = jax.lax.scan(visit, carry, jnp.arange(steps, dtype=jnp.int32))[0]
    m, total, acc = carry
    none = total == 0
    total = jnp.where(none, 1, total)
    return acc / total[..., None], jnp.where(none, -jnp.inf, m + jnp.log(total))


def step_size(cache: Cache, dtype: Any) -> int:
    """How many tokens of every row one step of the fold takes: a page, the whole of a buffer, or of narrow numbers
    as many as fill `STEP` once they are wide. Of wide ones a slice would be copied first, which takes longer.
    """
    B, Hkv, C, D = cache.store.k.shape
    if isinstance(cache, Paged) or cache.store.k.dtype == cache.store.v.dtype == dtype:
        return C
    numbers = B * Hkv * (D + cache.store.v.shape[3])
    return min(C, max(64, STEP // (4 * numbers) // 64 * 64))


def taken(cache: Cache, j: jax.Array, n: int) -> tuple[Store, jax.Array, Bool[Array, " n"]]:
    """Step j of the tokens of all rows, [B, Hkv, n, ·]: (them, the number of the first, which are not seen before)."""
    if isinstance(cache, Paged):
        at = jnp.maximum(cache.table[:, j], 0)
        return jax.tree.map(lambda x: x[at], cache.store), j * n, jnp.ones((n,), bool)
    start = jnp.minimum(j * n, cache.store.C - n)  # the last step may begin among tokens of the one before
    some = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, n, slots(x)), cache.store)
    return some, start, start + jnp.arange(n, dtype=jnp.int32) >= j * n


@partial(jax.jit, static_argnames="score")
def many(x: Queries, cache: Cache, score: Closed | None) -> Partial:
    """Many queries: the tiles of the engine, which skip what the mask rules out."""
    every = cache.store
    if isinstance(cache, Paged):
        table = jnp.maximum(cache.table, 0)

        def joined(a: jax.Array) -> jax.Array:
            """[N, Hkv, C, ·] → [B, Hkv, M · C, ·]"""
            axis = slots(a)
            a = jnp.moveaxis(a[table], 1, axis)
            return a.reshape(*a.shape[:axis], -1, *a.shape[axis + 2 :])

        every = jax.tree.map(joined, cache.store)
    dtype = x.scale.dtype

    def plain(a: jax.Array, scale: jax.Array | None) -> jax.Array:
        a = a if scale is None else a.astype(dtype) * scale.astype(dtype)[..., None]
        return jnp.where(every.bad[..., None], jnp.nan, a)

    k, v = plain(every.k, every.k_scale), plain(every.v, every.v_scale)

    def head(q: jax.Array, sink: Any, k: jax.Array, v: jax.Array, t: Any, s: Any, length: Any, filled: Any) -> Partial:
        mask = masks.lengths(k=length)
        mask = mask if x.mask is None else x.mask & mask
        mask = mask if filled is None else mask & masks.dense(filled[:, None])
        return door.attend(
            q, k, v, mask=mask, score=scored(x, score), sink=sink, scale=x.scale, q_positions=t, k_positions=s
        )

    f: Any = head
    one = (None,) * 4
    f = jax.vmap(f, (0, 0, None, None, *one))
    f = jax.vmap(f, (0, 0, 0, 0, *one))
    f = jax.vmap(f, (0, None, 0, 0, 0, 0, 0, 0))
    return f(x.q, x.sink, k, v, x.positions, every.positions, cache.length, x.filled)
