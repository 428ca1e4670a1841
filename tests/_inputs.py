"""Inputs in distinct primes, so that no axis passes for another, and the ways to compare what comes out."""

import jax
import jax.numpy as jnp
import numpy as np

T, S, D, Dv, H = 13, 17, 5, 3, 2


def normal(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def qkv(seed=0, *, T=T, S=S, D=D, Dv=Dv, dtype=np.float64):
    """One head: q [T, D], k [S, D], v [S, Dv]."""
    shapes = ((T, D), (S, D), (S, Dv))
    return tuple(normal(*shape, seed=3 * seed + i, dtype=dtype) for i, shape in enumerate(shapes))


def pairs(seed=0, *, T=T, S=S, share=0.6):
    """Booleans [T, S] in which each query may attend at least one key."""
    allowed = np.random.default_rng(seed).random((T, S)) < share
    allowed[np.arange(T), np.arange(T) % S] = True
    return allowed


def positions(T=T, S=S):
    """The last rows of q and k aligned, as in decoding."""
    return {"q_positions": np.arange(T, dtype=np.int32) + (S - T), "k_positions": np.arange(S, dtype=np.int32)}


def eps(dtype):
    return float(jnp.finfo(dtype).eps)


def assert_close(got, want, *, ulps, dtype=None, scale=None):
    """|got − want| ≤ ulps · eps · scale in every leaf; eps of the dtype of `got`, scale by default max(1, |want|)."""
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        unit = eps(dtype or g.dtype)
        g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
        assert g.shape == w.shape, (g.shape, w.shape)
        assert (np.isfinite(g) == np.isfinite(w)).all(), "not finite in other places than it should be"
        there = np.isfinite(w)
        np.testing.assert_array_equal(g[~there], w[~there])
        bound = np.maximum(1, np.abs(w)) if scale is None else np.broadcast_to(np.asarray(scale, np.float64), w.shape)
        off = np.abs(g[there] - w[there])
        worst = np.max(off / np.maximum(unit * bound[there], 1e-300), initial=0)
        assert worst <= ulps, f"off by {worst:.3g} ulps, {ulps} allowed"


def assert_same(got, want):
    """Bit by bit, NaN by NaN."""
    jax.tree.map(np.testing.assert_array_equal, got, want)
