"""Sequences of any lengths one after another: each as it would be alone, in value and derivatives, and nothing else."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, Dv, assert_close, assert_same, normal
from _oracles import derivatives, weigh

import jattn
from jattn import masks, reference, scores

pytestmark = pytest.mark.structure

T, S, H, Hkv, TILE = 37, 41, 4, 2, (16, 16)
STARTS = {  # of the sequences in q and in k: rows before the first and after the last; no queries, no keys; neither
    "of their own": ([1, 4, 4, 21, 23, 23, 23], [0, 9, 14, 38, 38, 38, 40]),
    "the same": ([0, 3, 20, 20, 37], [0, 3, 20, 20, 37]),
}
OPTIONS = {
    "of their own": {"mask": masks.causal()},
    "the same": {"mask": masks.window(5, 2) | masks.prefix(2), "score": scores.alibi(np.float64(0.3))},
}


def inputs(dtype=np.float64):
    shapes = {"q": (T, H, D), "k": (S, Hkv, D), "v": (S, Hkv, Dv), "sink": (H,)}
    return {name: normal(*shape, seed=n, dtype=dtype) for n, (name, shape) in enumerate(shapes.items())}


def alone(starts, k_starts, mask=None, score=None):
    """The definition of each sequence, the last of its queries beside the last of its keys; and of nothing else."""

    def f(q, k, v, sink):
        found = jnp.zeros((T, H, Dv), q.dtype), jnp.broadcast_to(sink, (T, H))
        for a, b, c, d in zip(starts, starts[1:], k_starts, k_starts[1:], strict=False):
            n, m = b - a, d - c
            at = {"q_positions": np.arange(n, dtype=np.int32) + m - n, "k_positions": np.arange(m, dtype=np.int32)}
            allowed = None if mask is None else masks.to_dense(mask, n, m, **at)
            x = q[a:b], *(jnp.repeat(x[c:d], H // Hkv, 1) for x in (k, v))

            def head(q, k, v, sink, allowed=allowed, at=at):
                return reference.attention(q, k, v, mask=allowed, score=score, sink=sink, **at)

            here = jax.vmap(head, (1, 1, 1, 0), 1)(*x, sink) if n else (found[0][a:b], found[1][a:b])
            found = tuple(y.at[a:b].set(z) for y, z in zip(found, here, strict=True))
        return found

    return f


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", STARTS)
def test_each_sequence_is_attended_as_if_it_were_alone(name):
    (starts, k_starts), more = STARTS[name], OPTIONS[name]

    def ours(q, k, v, sink):
        of_keys = None if name == "the same" else k_starts
        k, v = (x if of_keys else x[:T] for x in (k, v))
        how = {"k_starts": of_keys, "return_lse": True, "tile": TILE, "sink": sink, **more}
        return jattn.ragged_attention(q, k, v, starts, **how)

    want = alone(starts, k_starts, **more)
    if name == "the same":
        assert_close(jax.jit(ours)(**inputs()), jax.jit(want)(**inputs()), ulps=8)
        return
    got, want = derivatives(ours)(**inputs()), derivatives(want)(**inputs())
    assert_close(got["value"], want["value"], ulps=8)
    assert_close(got, want, ulps=64, scale=16)


def test_what_is_in_no_sequence_gives_nothing_and_has_no_gradient():
    """Not even where it holds a NaN; the starts traced, and different for each example."""
    x = inputs(np.float32)
    for name, rows in (("q", slice(30, None)), ("k", slice(25, None)), ("v", slice(25, None))):
        x[name][rows] = np.nan
    starts, k_starts = np.array([[0, 20, 20], [2, 9, 30]]), np.array([[0, 25, 25], [1, 1, 25]])

    @jax.jit
    @jax.vmap
    def both(starts, k_starts):
        def f(x):
            how = {"k_starts": k_starts, "return_lse": True, "tile": TILE, "mask": masks.causal()}
            return jattn.ragged_attention(x["q"], x["k"], x["v"], starts, **how)

        return f(x), jax.grad(lambda x: weigh(*f(x)))(x)

    (out, lse), gradient = both(starts, k_starts)
    for n in range(2):
        there = np.zeros(T, bool)
        there[starts[n, 0] : starts[n, 2]] = True
        if n == 1:
            there[2:9] = False  # a sequence without keys
        np.testing.assert_array_equal(np.isfinite(lse[n]), np.broadcast_to(there[:, None], (T, H)))
        assert not np.asarray(out[n])[~there].any()
        assert not np.asarray(gradient["q"][n])[~there].any()
        for name in ("k", "v"):
            of_rows = np.asarray(gradient[name][n])
            assert np.isfinite(of_rows).all()
            assert of_rows[k_starts[n, 0] : 25].any((1, 2)).all()
            assert not of_rows[: k_starts[n, 0]].any()
            assert not of_rows[25:].any()


def test_positions_of_the_caller_and_options_reach_every_head():
    x, starts = inputs(np.float32), np.array([0, 20, 37])
    del x["sink"]
    x["k"], x["v"] = x["k"][:T], x["v"][:T]
    at = np.concatenate([np.arange(20), np.arange(17)]).astype(np.int32)
    how = {"mask": masks.causal(), "scale": 0.3, "tile": TILE}
    f = jax.jit(lambda **more: jattn.ragged_attention(**x, starts=starts, **how, **more))
    assert_same(f(q_positions=at, k_positions=at), f())
    assert_close(f(sink=np.float32(-1e30)), f(), ulps=4)
    dropped = f(dropout_rate=0.5, dropout_key=np.array([0, 1], np.uint32))
    assert (np.asarray(dropped) != np.asarray(f())).any((0, 2)).all()
    one = jattn.ragged_attention(*(a[:, :1] for a in x.values()), starts, **how)
    assert_close(one, f()[:, :1], ulps=4)


def test_positions_of_one_side_alone_are_refused_only_where_something_looks_at_them():
    """As `attention` takes them."""
    x, starts, at = inputs(np.float32), np.array([0, 20, 37]), np.arange(T, dtype=np.int32)
    x["k"], x["v"] = x["k"][:T], x["v"][:T]
    f = partial(jattn.ragged_attention, **x, starts=starts)
    assert_same(f(q_positions=at), f())
    for looks in ({"mask": masks.causal()}, {"score": lambda a, t, s: a + (t - s).astype(a.dtype)}):
        with pytest.raises(ValueError, match=r"looks at positions, so both sides must have them .* no k_positions"):
            f(q_positions=at, **looks)


def test_on_a_tpu_it_runs_as_kernels_and_so_does_a_ragged_mask():
    x = [jax.ShapeDtypeStruct((2048, heads, 64), jnp.float32) for heads in (4, 2, 2)]
    starts = jax.ShapeDtypeStruct((9,), jnp.int32)
    f = lambda *x: jattn.ragged_attention(*x, mask=masks.causal()).sum()  # noqa: E731
    found = jattn.implementations(jax.grad(f, (0, 1, 2)), *x, starts, platform="tpu")
    assert [(one.name, one.kernel) for one in found] == [("forward", True), ("backward", True)]
