"""The definition against a second one: NumPy, float64, one pair at a time."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, Dv, S, T, assert_close, normal, pairs, positions, qkv
from jax.test_util import check_grads

from jattn import reference

pytestmark = pytest.mark.structure

PLACES = positions()


def by_hand(q, k, v, *, mask=None, score=None, bias=None, sink=None, scale=None, q_positions=None, k_positions=None):
    """Attention as one would compute it with a pencil: lists of floats, exp and sum."""
    T, S, Dv = len(q), len(k), v.shape[1]
    t_at = range(T) if q_positions is None else q_positions
    s_at = range(S) if k_positions is None else k_positions
    allowed = np.ones((T, S), bool) if mask is None else np.broadcast_to(mask, (T, S))
    added = np.zeros((T, S)) if bias is None else np.broadcast_to(bias, (T, S))
    sinks = [None] * T if sink is None else np.broadcast_to(sink, (T,))
    scale = 1 / math.sqrt(q.shape[1]) if scale is None else scale
    scores, scaled, weights = np.full((T, S), np.nan), np.full((T, S), -np.inf), np.zeros((T, S))
    out, lse = np.zeros((T, Dv)), np.full(T, -np.inf)
    for t in range(T):
        for s in range(S):
            scores[t, s] = math.fsum(a * b for a, b in zip(q[t], k[s], strict=True))
            if allowed[t, s]:
                x = scale * scores[t, s]
                if score is not None:
                    x = score(x, t_at[t], s_at[s])
                scaled[t, s] = x + added[t, s]
        here = [*scaled[t], *([] if sinks[t] is None else [sinks[t]])]
        top = max(here, default=-math.inf)
        if top == -math.inf:
            continue
        total = math.fsum(math.exp(x - top) for x in here)
        lse[t] = top + math.log(total)
        for s in range(S):
            weights[t, s] = math.exp(scaled[t, s] - lse[t])
        for d in range(Dv):
            out[t, d] = math.fsum(weights[t] * v[:, d])
    return reference.Steps(scores, scaled, weights, out), lse


def slope(x, t, s):
    return x - 0.3 * abs(t - s)


ALIBI = lambda x, t, s: x - 0.3 * jnp.abs(t - s).astype(x.dtype)  # noqa: E731
OPTIONS = {
    "nothing": {},
    "mask": {"mask": pairs()},
    "mask for every query": {"mask": pairs()[:1]},
    "a query without keys": {"mask": pairs() & (np.arange(T) != 4)[:, None]},
    "no pair at all": {"mask": np.zeros((T, S), bool)},
    "score": {"score": (slope, ALIBI)},
    "score at positions": {"score": (slope, ALIBI), **PLACES},
    "bias": {"bias": normal(T, S, seed=7)},
    "bias for every key": {"bias": normal(T, 1, seed=8)},
    "bias of -inf": {"bias": np.where(pairs(), 0.5, -np.inf)},
    "sink": {"sink": 0.7},
    "sink for each query": {"sink": normal(T, seed=9)},
    "sink and nothing else": {"sink": 0.7, "mask": np.zeros((T, S), bool)},
    "scale": {"scale": 1.7},
    "scale 0": {"scale": 0.0},
    "negative scale": {"scale": -0.9},
    "all": {
        "mask": pairs(),
        "score": (slope, ALIBI),
        "bias": normal(T, S, seed=7),
        "sink": normal(T, seed=9),
        "scale": 1.7,
        **PLACES,
    },
}


def sides(options):
    """The options as the pencil takes them and as JAX does."""
    score = options.get("score", (None, None))
    return options | {"score": score[0]}, options | {"score": score[1]}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OPTIONS)
def test_every_step_is_what_a_pencil_gives(name):
    hand, machine = sides(OPTIONS[name])
    score = machine.pop("score")
    steps, lse = jax.jit(lambda *x, **o: reference.steps(*x, score=score, **o))(*qkv(), **machine)
    want, want_lse = by_hand(*qkv(), **hand)
    assert_close((steps, lse), (want, want_lse), ulps=16)


@pytest.mark.usefixtures("x64")
def test_attention_is_the_last_step():
    steps, lse = jax.jit(reference.steps)(*qkv(), sink=0.5)
    out, the_same = jax.jit(reference.attention)(*qkv(), sink=0.5)
    np.testing.assert_array_equal(out, steps.out)
    np.testing.assert_array_equal(lse, the_same)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", [(0, S), (T, 0), (0, 0), (1, S), (T, 1), (1, 1)])
def test_every_length_has_an_answer(shape):
    x = qkv(T=shape[0], S=shape[1])
    got = jax.jit(reference.steps)(*x)
    assert_close(got, by_hand(*x), ulps=16)


@pytest.mark.usefixtures("x64")
def test_the_gradients_are_the_closed_forms():
    q, k, v = qkv()
    dout = normal(T, Dv, seed=11)
    c = D**-0.5
    dq, dk, dv = jax.jit(jax.grad(lambda *x: (reference.attention(*x)[0] * dout).sum(), (0, 1, 2)))(q, k, v)
    p = by_hand(q, k, v)[0].weights
    a = dout @ v.T  # a_ts = dout_t · v_s
    ds = p * (a - (p * a).sum(1, keepdims=True))
    assert_close((dq, dk, dv), (c * ds @ k, c * ds.T @ q, p.T @ dout), ulps=32)
    # dL/dq_t = c Cov_p(k, v) dout_t
    mean_k, mean_v = p @ k, p @ v
    cov = np.einsum("ts,tsd,tse->tde", p, k - mean_k[:, None], v - mean_v[:, None])
    assert_close(dq, c * np.einsum("tde,te->td", cov, dout), ulps=32)
    # The mean key never moves.
    assert_close(dk.sum(0), np.zeros(D), ulps=64)


@pytest.mark.usefixtures("x64")
def test_the_gradient_of_lse_is_the_weights():
    q, k, v = qkv()
    bias, sink = np.zeros((T, S)), normal(T, seed=9)
    lse = jax.jit(lambda q, bias, sink: reference.attention(q, k, v, bias=bias, sink=sink)[1].sum())
    dq, dbias, dsink = jax.jit(jax.grad(lse, (0, 1, 2)))(q, bias, sink)
    (_, _, p, _), total = by_hand(q, k, v, sink=sink)
    assert_close((dq, dbias, dsink), (D**-0.5 * p @ k, p, np.exp(sink - total)), ulps=32)


@pytest.mark.usefixtures("x64")
def test_derivatives_agree_with_finite_differences_to_second_order():
    q, k, v = qkv(T=3, S=5, D=2, Dv=2)
    mask = pairs(T=3, S=5)
    mask[1] = False  # one query without keys

    def f(q, k, v, bias, sink, scale):
        out, lse = reference.attention(q, k, v, mask=mask, score=ALIBI, bias=bias, sink=sink, scale=scale)
        return out, lse

    args = (q, k, v, normal(3, 5, seed=7), normal(3, seed=9), np.float64(0.6))
    check_grads(jax.jit(f), args, order=2, modes=["rev"], atol=1e-5, rtol=1e-5, eps=1e-5)


def test_the_output_has_the_dtype_of_v_and_lse_at_least_float32():
    q, k, v = (jnp.asarray(x, jnp.float32) for x in qkv())
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        steps, lse = jax.eval_shape(reference.steps, q.astype(dtype), k, v.astype(dtype))
        assert steps.out.dtype == dtype
        assert {x.dtype for x in (*steps[:3], lse)} == {jnp.dtype(jnp.float32)}
    with jax.enable_x64(True):
        steps, lse = jax.eval_shape(reference.steps, q, k.astype(jnp.float64), v)
        assert steps.out.dtype == jnp.float32
        assert {x.dtype for x in (*steps[:3], lse)} == {jnp.dtype(jnp.float64)}
