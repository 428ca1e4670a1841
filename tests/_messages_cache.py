"""What a cache refuses, word for word: rows of the table of test_messages."""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import jax
import numpy as np

from jattn import cache, masks
from jattn.cache import append

B, Hkv, S, D, Dv, T = 2, 2, 7, 5, 3, 4


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def whole(*shape):
    return ones(*shape, dtype=np.int32)


def made(B=B, **more):
    return cache.contiguous(B, Hkv, S, D, Dv, **more)


def new(cache=None, **given):
    names = {"k": ones(B, Hkv, T, D), "v": ones(B, Hkv, T, Dv)} | given
    return lambda: append(made() if cache is None else cache, **names)


def ask(q=None, c=None, **given):
    return lambda: cache.attention(ones(B, 4, 1, D) if q is None else q, c or made(), **given)


def behind():
    c = cache.ring(B, Hkv, D, Dv, window=3)
    return cache.attention(ones(B, 4, T, D), cache.append(c, ones(B, Hkv, T, D), ones(B, Hkv, T, Dv)))


def crowded():
    c = cache.paged(2, 1, 4, 1, pages=2, page=2)
    x = ones(2, 1, 3, 1)
    return cache.share(cache.append(c, x, x, lengths=np.array([3, 0])), 0, np.array([1]))


def both(mask):
    return lambda: cache.cascade(ones(B, 4, 2, D), made(B=1), made(), mask=mask)


PAGED = cache.paged(B, Hkv, S, D, pages=3)
MAKE = "Make one with jattn.cache: contiguous, ring or paged."
K_MAJOR = "Heads stand before tokens: jax.numpy.swapaxes(x, 1, 2) turns [B, T, Hkv, D]."
Q_MAJOR = "Heads stand before tokens: jax.numpy.swapaxes(x, 1, 2) turns [B, T, H, D]."
PLACED = "Say it by positions, as masks.causal, masks.window and masks.where do."
ROWS = "Pass numbers of rows, as in jax.numpy.array([2])."

LAYERS = jax.tree.map(lambda x: np.stack([x] * 3), made())

CACHE = [
    (new(LAYERS), ValueError, "append: cache must have the axes that it was made with, got cache.store.k float32[3,2,2,7,5] and cache.length int32[3,2]. Map over a stack of caches, as of layers, with jax.vmap or jax.lax.scan."),
    (lambda: cache.contiguous(B, Hkv, S, D, start=2**31), ValueError, "contiguous: start must be a number that int32 holds, got start 2147483648. Count the tokens from one that is nearer."),
    (lambda: cache.contiguous(0, Hkv, S, D), ValueError, "contiguous: B must be at least 1, got B 0. Pass a Python int of at least 1."),
    (lambda: cache.ring(B, Hkv, D, window=2.0), TypeError, "ring: window must be a whole number, got window of type float. Pass a Python int of at least 1."),
    (lambda: cache.paged(B, Hkv, S, D, pages=0), ValueError, "paged: pages must be at least 1, got pages 0. Pass a Python int of at least 1."),
    (lambda: made(dtype="int9"), TypeError, "contiguous: dtype must be floating point or int8, got dtype 'int9'. Keep keys in one of these."),
    (lambda: made(dtype=np.int32), TypeError, "contiguous: dtype must be floating point or int8, got dtype int32. Keep keys in one of these."),
    (lambda: cache.quantised(whole(3)), TypeError, "quantised: x must be floating point, got x int32[3]. Convert it first: x.astype(jax.numpy.float32)."),
    (lambda: cache.quantised(ones()), ValueError, "quantised: x must have an axis, got x []. Pass vectors [*n, D]."),
    (new(cache=(1, 2)), TypeError, f"append: cache must be a cache, got cache of type tuple. {MAKE}"),
    (new(k=ones(Hkv, T, D)), ValueError, f"append: k must have the axes [B, Hkv, T, D], got k [2, 4, 5]. {K_MAJOR}"),
    (new(v=ones(Hkv, T, Dv)), ValueError, f"append: v must have the axes [B, Hkv, T, Dv], got v [2, 4, 3]. {K_MAJOR}"),
    (new(k=whole(B, Hkv, T, D)), TypeError, "append: k must be floating point, got k int32[2, 2, 4, 5]. Convert it first: k.astype(jax.numpy.float32)."),
    (new(k=ones(B, T, Hkv, D)), ValueError, f"append: k must have the B, Hkv and D of the cache, got k [2, 4, 2, 5] and cache [2, 2, 7, 5]. {K_MAJOR}"),
    (new(v=ones(B, Hkv, T, D)), ValueError, "append: v must have the B, Hkv and Dv of the cache, got v [2, 2, 4, 5] and cache [2, 2, 7, 3]. Make the cache for these shapes."),
    (new(v=ones(B, Hkv, T, Dv, dtype=np.float16)), TypeError, "append: v must have the dtype of the cache, got v float16 and cache float32. Convert it first, v.astype(...), or make the cache with this dtype."),
    (new(v=ones(B, Hkv, 3, Dv)), ValueError, "append: k and v must agree in T, got k [2, 2, 4, 5] and v [2, 2, 3, 3]. Each key needs its one value."),
    (new(lengths=ones(B)), TypeError, "append: lengths must be integer, got lengths float32[2]. It counts tokens: pass whole numbers."),
    (new(positions=[[2**31] * T] * B), ValueError, "append: positions must be numbers that int32 holds, got positions [2, 4]. Count the tokens from one that is nearer."),
    (new(positions=whole(T)), ValueError, "append: positions must have the shape [B, T], got positions [4]. Give one whole number for each: [B, T] is [2, 4] here."),
    (lambda: new(cache=new()())(), ValueError, "append: each row must have room for its new tokens, got k [2, 2, 4, 5] and cache [2, 2, 7, 5]. Make a longer cache or more pages, free rows, or use a ring where a window is enough."),
    (lambda: cache.next_positions(made(), -1), ValueError, "next_positions: T must be at least 0, got T -1. Pass a Python int of at least 0."),
    (lambda: cache.free(made(), ones(2)), TypeError, f"free: rows must be integer, got rows float32[2]. {ROWS}"),
    (lambda: cache.free(made(), 1), ValueError, f"free: rows must have the axes [R], got rows []. {ROWS}"),
    (lambda: cache.share(made(), 0, whole(1)), TypeError, "share: cache must be paged, got cache of type Contiguous. Only pages are shared: make it with cache.paged."),
    (lambda: cache.share(PAGED, 0.0, whole(1)), TypeError, "share: source must be integer, got source float32[]. Pass a whole number from 0 to B - 1."),
    (lambda: cache.share(PAGED, whole(1), whole(1)), ValueError, "share: source must have the axes [], got source [1]. Map over several with jax.vmap."),
    (lambda: cache.share(PAGED, -1, whole(1)), ValueError, "share: source must be from 0 to B - 1, got source -1 and B 2. Count from 0."),
    (crowded, ValueError, "share: each target must find a page for what the source has begun, got targets [1] and cache of 2 pages. Make the cache with more pages, or free rows."),
    (ask(q=ones(B, 1, D)), ValueError, f"attention: q must have the axes [B, H, T, D], got q [2, 1, 5]. {Q_MAJOR}"),
    (ask(q=whole(B, 4, 1, D)), TypeError, "attention: q must be floating point, got q int32[2, 4, 1, 5]. Convert it first: q.astype(jax.numpy.float32)."),
    (ask(q=ones(3, 4, 1, D)), ValueError, "attention: q must have the B and D of the cache, got q [3, 4, 1, 5] and cache [2, 2, 7, 5]. Make the cache for these."),
    (ask(q=ones(B, 3, 1, D)), ValueError, "attention: the heads of q must be a multiple of those of the cache, got q [2, 3, 1, 5] and cache [2, 2, 7, 5]. Each key/value head serves the same number of query heads."),
    (ask(mask=masks.causal), TypeError, "attention: mask must be a mask, got mask of type function. Call it: mask=jattn.masks.causal(…)."),
    (ask(mask=ones(1, S, dtype=bool)), TypeError, "attention: mask must be a mask, got mask of type ndarray. Make one with jattn.masks, such as masks.causal() & masks.window(left=3)."),
    (ask(sink=ones(3)), ValueError, "attention: sink must have the shape [] or [H], got sink [3]. Give one logit for all heads, or one a head: H is 4 here."),
    (ask(sink=whole(4)), TypeError, "attention: sink must be floating point, got sink int32[4]. Convert it first: sink.astype(jax.numpy.float32)."),
    (ask(scale=ones(4)), TypeError, "attention: scale must be a real scalar, got scale float32[4]. Map over several with jax.vmap."),
    (ask(score=2), TypeError, "attention: score must be a function, got score of type int. Write f(score, q_position, k_position) -> score on scalars; the library maps it."),
    (ask(lengths=whole(3)), ValueError, "attention: lengths must have the shape [B], got lengths [3]. Give one whole number for each: [B] is [2] here."),
    (ask(q_positions=whole(B)), ValueError, "attention: q_positions must have the shape [B, T], got q_positions [2]. Give one whole number for each: [B, T] is [2, 1] here."),
    (behind, ValueError, "attention: the ring must still hold what each query sees, got T 4 and cache of 3 tokens. Make the ring with chunk at least as large as the tokens that are appended and asked about at once."),
    (lambda: cache.cascade(ones(B, 4, 1, D), None, made()), TypeError, f"cascade: prefix must be a cache, got prefix of type NoneType. {MAKE}"),
    (ask(return_lse="no"), TypeError, "attention: return_lse must be True or False, got return_lse of type str. Pass a bool, static in jax.jit."),
    (lambda: cache.cascade(ones(B, 4, 1, D), made(), made(), return_lse="no"), TypeError, "cascade: return_lse must be True or False, got return_lse of type str. Pass a bool, static in jax.jit."),
    (lambda: cache.cascade(ones(B, 4, 1, D), made(), made()), ValueError, "cascade: prefix must have one row, got prefix of 2 rows. Make it with B=1: all rows share it."),
    (lambda: cache.cascade(ones(B, 4, 1, D), cache.contiguous(1, 1, S, D, Dv), made()), ValueError, "cascade: prefix and cache must agree in Hkv, D and Dv, got prefix [1, 1, 7, 5] of Dv 3 and cache [2, 2, 7, 5] of Dv 3. Make both for the same heads and widths."),
    (lambda: cache.cascade(ones(B, 4, 1, D), cache.contiguous(1, Hkv, S, D, 4), made()), ValueError, "cascade: prefix and cache must agree in Hkv, D and Dv, got prefix [1, 2, 7, 5] of Dv 4 and cache [2, 2, 7, 5] of Dv 3. Make both for the same heads and widths."),
    (both(masks.causal() & masks.dense(ones(2, S, dtype=bool))), ValueError, f"cascade: mask must not look at the rows of an array, of which prefix and cache hold a piece each, got mask dense. {PLACED}"),
    (both(masks.segments(whole(2), whole(S))), ValueError, f"cascade: mask must not look at the rows of an array, of which prefix and cache hold a piece each, got mask segments. {PLACED}"),
    (both(~masks.lengths(q=1)), ValueError, f"cascade: mask must not look at the rows of an array, of which prefix and cache hold a piece each, got mask lengths. {PLACED}"),
]  # fmt: skip
