"""The exact tail: each entry of softmax and of its derivatives is right relative to itself, however small it is."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, eps, normal
from jax.test_util import check_grads

import jattn

OURS = {"softmax": jattn.softmax, "log_softmax": jattn.log_softmax}
THEIRS = {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax}
N = 7
GAPS = np.arange(10.0, 81.0, 10.0)


def saturated(gap):
    """Logits whose third entry leads the others by `gap` and more."""
    x = np.linspace(-1.0, 0.0, N)
    x[2] = gap
    return x


ROWS = np.stack([saturated(gap) for gap in GAPS]).astype(np.float32)
TANGENTS = normal(*ROWS.shape, seed=1, dtype=np.float32)


def others(x):
    """Of each row: which entry is largest, and Σ exp(x_j − max) over the rest, in extended precision."""
    x = np.asarray(x, np.longdouble)
    top = x.argmax(-1)
    e = np.exp(x - x.max(-1, keepdims=True))
    rest = np.where(np.arange(x.shape[-1]) == top[:, None], 0, e)
    return top, e, rest


def truth_softmax(x, x_dot):
    """p and its tangent, measured from the tangent of the largest entry: no term cancels another."""
    top, e, _ = others(x)
    p = e / e.sum(-1, keepdims=True)
    m = np.asarray(x_dot, np.longdouble) - np.take_along_axis(np.asarray(x_dot, np.longdouble), top[:, None], -1)
    return p, p * (m - (p * m).sum(-1, keepdims=True))


def truth_log_softmax(x, x_dot):
    top, _, rest = others(x)
    p, _ = truth_softmax(x, x_dot)
    x = np.asarray(x, np.longdouble)
    value = x - x.max(-1, keepdims=True) - np.log1p(rest.sum(-1, keepdims=True))
    m = np.asarray(x_dot, np.longdouble) - np.take_along_axis(np.asarray(x_dot, np.longdouble), top[:, None], -1)
    return value, m - (p * m).sum(-1, keepdims=True)


TRUTH = {"softmax": truth_softmax, "log_softmax": truth_log_softmax}


def relative(got, want):
    """The largest error of an entry relative to that entry, in eps of float32."""
    want = np.asarray(want, np.longdouble)
    return float(np.max(np.abs(np.asarray(got, np.longdouble) - want) / np.abs(want)) / eps(jnp.float32))


def forward(f):
    return jax.jit(lambda x, x_dot: jax.jvp(f, (x,), (x_dot,)))(ROWS, TANGENTS)


@pytest.mark.parametrize("name", OURS)
def test_the_tail_of_a_saturated_row_is_right_in_every_entry(name):
    value, tangent = TRUTH[name](ROWS, TANGENTS)
    got, got_dot = forward(OURS[name])
    # exp rounds its argument: a gap of g costs g/2 eps relative, and twice that where two such are added.
    allowed = 1.5 * (GAPS.max() + 1)
    assert relative(got, value) <= allowed
    assert relative(got_dot, tangent) <= allowed
    theirs, theirs_dot = forward(THEIRS[name])
    assert max(relative(theirs, value), relative(theirs_dot, tangent)) > 1000 * allowed, "the control keeps the tail"


def test_the_gradient_of_the_leading_weight_is_right_in_every_entry():
    def gradient(f):
        return jax.jit(jax.grad(lambda x: f(x)[:, 2].sum()))(ROWS)

    _, e, rest = others(ROWS)
    p = e / e.sum(-1, keepdims=True)
    tail = rest.sum(-1, keepdims=True) / e.sum(-1, keepdims=True)  # 1 − p_2
    want = np.where(np.arange(N) == 2, p * tail, -p * p[:, 2:3])
    allowed = 1.5 * (GAPS.max() + 1)
    assert relative(gradient(jattn.softmax), want) <= allowed
    assert relative(gradient(jax.nn.softmax), want) > 1000 * allowed


def test_the_second_derivative_of_a_saturated_row_is_right():
    """p = 1/(1 + e^−x): p'' = p (1 − p) (1 − 2p), here with p within rounding of 1."""

    def second(f):
        first = jax.grad(lambda x: f(jnp.stack([x, jnp.zeros_like(x)]))[0])
        return jax.jit(jax.vmap(jax.grad(first)))(jnp.asarray(GAPS, jnp.float32))

    p = 1 / (1 + np.exp(-GAPS.astype(np.longdouble)))
    q = np.exp(-GAPS.astype(np.longdouble)) * p
    want = p * q * (q - p)
    assert relative(second(jattn.softmax), want) <= 1.5 * (GAPS.max() + 1)
    assert relative(second(jax.nn.softmax), want) > 1e5


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OURS)
def test_derivatives_agree_with_finite_differences_in_both_modes_to_second_order(name):
    check_grads(jax.jit(OURS[name]), (normal(2, 3),), order=2, atol=1e-6, rtol=1e-6, eps=1e-4)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OURS)
def test_where_nothing_is_saturated_it_is_jax_nn(name):
    x, x_dot = normal(3, 5, 7), normal(3, 5, 7, seed=1)

    def over_each_axis(f):
        along = (partial(f, axis=axis) for axis in (0, 1, -1))
        return jax.jit(lambda x, x_dot: [jax.jvp(g, (x,), (x_dot,)) for g in along])(x, x_dot)

    assert_close(over_each_axis(OURS[name]), over_each_axis(THEIRS[name]), ulps=16)
    shapes = {jax.eval_shape(partial(OURS[name], axis=axis), x).shape for axis in range(-3, 3)}
    assert shapes == {x.shape}


@pytest.mark.parametrize("name", OURS)
def test_tangents_of_a_row_sum_to_zero(name):
    p, p_dot = forward(jattn.softmax)
    _, l_dot = forward(jattn.log_softmax)
    weighted = {"softmax": p_dot, "log_softmax": p * l_dot}[name]
    size = np.abs(np.asarray(weighted, np.float64)).sum(-1)
    assert (np.abs(np.asarray(weighted, np.float64).sum(-1)) <= 4 * eps(jnp.float32) * size).all()


@pytest.mark.parametrize("name", OURS)
def test_an_entry_of_minus_infinity_does_not_exist(name):
    f = jax.jit(lambda x, x_dot: jax.jvp(OURS[name], (x,), (x_dot,)))
    x, x_dot = normal(3, N, dtype=np.float32), normal(3, N, seed=1, dtype=np.float32)
    here = np.arange(N) != 4
    hidden = np.where(here, x, -np.inf).astype(np.float32)
    got, got_dot = f(hidden, np.where(here, x_dot, np.nan).astype(np.float32))  # its tangent is not looked at
    want, want_dot = f(x[:, here], x_dot[:, here])
    assert_close((got[:, here], got_dot[:, here]), (want, want_dot), ulps=4)
    assert (got[:, 4] == (0 if name == "softmax" else -np.inf)).all()
    assert (got_dot[:, 4] == 0).all()
    dx = jax.jit(jax.grad(lambda x: jnp.sum(jnp.where(x == -jnp.inf, 0, OURS[name](x)) * x_dot)))(hidden)
    assert np.isfinite(dx).all()
    assert (dx[:, 4] == 0).all()


@pytest.mark.parametrize("name", OURS)
def test_a_row_of_nothing_has_no_weight_and_no_derivative(name):
    nothing = 0.0 if name == "softmax" else -np.inf
    dead = np.full((2, N), -np.inf, np.float32)
    dead[1] = 0.5
    got, got_dot = jax.jit(lambda x: jax.jvp(OURS[name], (x,), (jnp.ones_like(x),)))(dead)
    assert (got[0] == nothing).all()
    assert np.isfinite(got[1]).all()
    assert (got_dot == 0).all()

    def total(x):
        y = OURS[name](x)
        return jnp.where(y == -jnp.inf, 0, y).sum()

    dx, ddx = jax.jit(lambda x: jax.jvp(jax.grad(total), (x,), (jnp.ones_like(x),)))(dead)
    assert (dx[0] == 0).all()
    assert (ddx[0] == 0).all()
    assert OURS[name](jnp.zeros((3, 0))).shape == (3, 0)
    assert OURS[name](jnp.zeros((3, 0)), axis=0).shape == (3, 0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", OURS)
def test_half_precision_is_rounded_once(name, dtype):
    x = jnp.asarray(normal(3, N), dtype)
    got = jax.jit(OURS[name])(x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, jax.jit(OURS[name])(x.astype(jnp.float32)).astype(dtype))


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("size", [1e4, 1e10, 1.7e38])  # twice the last is the limit: differences must exist too
def test_logits_up_to_the_limit_of_the_dtype(name, size):
    """Also where they are products, which XLA may fuse with the subtraction of the maximum."""
    size = np.float32(size)
    b = normal(5, N, seed=2, dtype=np.float32)
    b = b / np.abs(b).max()
    b[:, 0] = b[:, 3]  # two equals, which may be the largest
    b[0, 0] = b[0, 3] = 1

    def derivative(x):
        value, pull = jax.vjp(OURS[name], x)
        return value, pull(jnp.ones_like(value).at[:, 1].set(0))[0]

    x = b * size
    want = derivative(x)
    assert np.isfinite(want[0][:, 3]).all()
    got = jax.jit(derivative)(x)
    fused = jax.jit(lambda b, size: derivative(b * size))(b, size)
    dot = jax.jit(lambda b, size: derivative((b[..., None, :] @ jnp.eye(N))[:, 0] * size))(b, size)
    for other in (got, fused, dot):
        # Logits are known to half an ulp, and so are their logarithms.
        assert_close(other, want, ulps=4, scale=1 + (np.abs(x) if name == "log_softmax" else 0))
    p = got[0] if name == "softmax" else np.exp(got[0])
    assert_close(p.sum(-1), np.ones(5), ulps=8)
    np.testing.assert_array_equal(p[:, 0], p[:, 3])


def test_a_nan_makes_its_own_row_nan():
    x = normal(3, N, dtype=np.float32)
    x[1, 2] = np.nan
    for f in OURS.values():
        bad = np.isnan(jax.jit(f)(x))
        assert bad[1].all()
        assert not bad[[0, 2]].any()
