"""Partial attentions form a monoid, and merging them is attention over the union of their keys."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import Dv, S, assert_close, assert_same, eps, normal, qkv
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

import jattn

ROWS = 7
EMPTY = (np.zeros((ROWS, Dv), np.float32), np.full(ROWS, -np.inf, np.float32))
merge = jax.jit(jattn.merge)

some = st.one_of(st.just(-np.inf), st.floats(-90, 90, width=32, allow_subnormal=False))
any_size = st.one_of(some, st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False))


@st.composite
def partials(draw, lse=some):
    """ROWS queries, some of which have no key at all."""
    out = normal(ROWS, Dv, seed=draw(st.integers(0, 99)), dtype=np.float32)
    lse = np.array(draw(st.lists(lse, min_size=ROWS, max_size=ROWS)), np.float32)
    return np.where((lse == -np.inf)[:, None], 0, out).astype(np.float32), lse


def assert_equal_partials(x, y, *sources, ulps):
    """Equal to rounding: a weight is exp of a difference of log-sum-exps, each known to half an ulp of itself."""
    size = np.max([np.abs(out).max(1) for out, _ in sources], 0)
    near = np.max([np.where(np.isfinite(lse), np.abs(lse), 0) for _, lse in sources], 0)
    assert_close(x[0], y[0], ulps=ulps, scale=((1 + near) * size)[:, None])
    assert_close(x[1], y[1], ulps=ulps)


@given(partials(any_size))
def test_the_partial_of_no_keys_changes_nothing(a):
    assert_same(merge(a, EMPTY), a)
    assert_same(merge(EMPTY, a), a)


@given(partials(any_size), partials(any_size))
def test_the_order_does_not_matter(a, b):
    (out, lse), (swapped, the_same) = merge(a, b), merge(b, a)
    np.testing.assert_array_equal(lse, the_same)
    assert_close(out, swapped, ulps=2, scale=(np.abs(a[0]).max(1) + np.abs(b[0]).max(1))[:, None])


@given(partials(), partials(), partials())
def test_the_grouping_does_not_matter(a, b, c):
    assert_equal_partials(merge(merge(a, b), c), merge(a, merge(b, c)), a, b, c, ulps=4)


@given(partials(any_size), partials(any_size))
def test_what_comes_out_lies_between_what_went_in(a, b):
    out, lse = map(np.asarray, merge(a, b))
    dead = (a[1] == -np.inf) & (b[1] == -np.inf)
    np.testing.assert_array_equal(lse == -np.inf, dead)
    assert (out[dead] == 0).all()
    assert (lse >= np.maximum(a[1], b[1])).all()
    both = np.stack([np.where((x[1] == -np.inf)[:, None], y[0], x[0]) for x, y in ((a, b), (b, a))])
    slack = 2 * eps(jnp.float32) * np.abs(both).max(0)
    assert (out >= both.min(0) - slack).all()
    assert (out <= both.max(0) + slack).all()


cuts = st.lists(st.integers(0, S), max_size=4).map(lambda c: [0, *sorted(c), S])


@pytest.fixture(scope="module")
def by_masks():
    """Attention over some of the keys: the others are masked, so that every share of them is one trace."""
    q, k, v = qkv(dtype=np.float32)
    return jax.jit(lambda here: jattn.attention(q, k, v, mask=here[None], return_lse=True))


@given(cuts=cuts, data=st.data())
def test_attention_over_the_union_is_the_merge_in_any_order(by_masks, cuts, data):
    s = np.arange(S)
    pages = [by_masks((s >= a) & (s < b)) for a, b in itertools.pairwise(cuts)]  # some have no keys
    whole = by_masks(np.ones(S, bool))
    while len(pages) > 1:
        i, j = data.draw(st.permutations(range(len(pages))))[:2]
        pages = [x for n, x in enumerate(pages) if n not in (i, j)] + [merge(pages[i], pages[j])]
    assert_close(pages[0], whole, ulps=8)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_the_derivative_of_the_merge_is_that_of_attention_over_the_union():
    q, k, v = qkv()
    weigh = (normal(13, Dv, seed=5), normal(13, seed=6))

    def loss(partial):
        return sum(jnp.sum(x * w) for x, w in zip(partial, weigh, strict=True))

    def whole(q, k, v):
        return loss(jattn.attention(q, k, v, return_lse=True))

    def pages(q, k, v):
        parts = [jattn.attention(q, k[i], v[i], return_lse=True) for i in (slice(0, 6), slice(6, 7), slice(7, S))]
        return loss(jattn.merge(parts[0], jattn.merge(parts[1], parts[2])))

    def derivatives(f):
        first = jax.grad(f, (0, 1, 2))
        return jax.jit(lambda *x: jax.jvp(first, x, tuple(jnp.cos(y) for y in x)))(q, k, v)

    assert_close(derivatives(pages), derivatives(whole), ulps=64)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_derivatives_agree_with_finite_differences_to_second_order():
    args = ((normal(2, 3), normal(2, seed=1)), (normal(2, 3, seed=2), normal(2, seed=3)))
    check_grads(jax.jit(jattn.merge), args, order=2, atol=1e-6, rtol=1e-6, eps=1e-4)


@jax.jit
def orders_of_the_merge(*x):
    """Value, tangent, gradient, tangent of the gradient, gradient of the square of the gradient."""

    def f(a_out, a_lse, b_out, b_lse):
        out, lse = jattn.merge((a_out, a_lse), (b_out, b_lse))
        return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.where(lse == -jnp.inf, 0, jnp.sin(lse)))

    pairs, x_dot = (x[:2], x[2:]), tuple(jnp.ones_like(y) for y in x)
    first = jax.grad(f, (0, 1, 2, 3))
    pulled = jax.grad(lambda *x: sum(jnp.sum(y * y) for y in first(*x)), (0, 1, 2, 3))
    value, value_dot = jax.jvp(jattn.merge, pairs, (x_dot[:2], x_dot[2:]))
    return value, value_dot, first(*x), jax.jvp(first, x, x_dot)[1], pulled(*x)


@pytest.mark.parametrize("junk", [0.0, np.nan, np.inf])
def test_a_partial_of_no_keys_has_no_derivative_and_may_hold_anything(junk):
    """To second order, in both modes; the other rows and the other partial do not notice."""
    a_out, b_out = normal(3, Dv, dtype=np.float32), normal(3, Dv, seed=1, dtype=np.float32)
    a_lse, b_lse = np.array([-np.inf, 0.5, -np.inf], np.float32), np.array([0.25, 0.75, -np.inf], np.float32)
    a_out[a_lse == -np.inf] = junk
    b_out[b_lse == -np.inf] = junk

    (out, lse), value_dot, *orders = jax.tree.map(np.asarray, orders_of_the_merge(a_out, a_lse, b_out, b_lse))
    np.testing.assert_array_equal(out[0], b_out[0])
    np.testing.assert_array_equal(out[2], 0)
    np.testing.assert_array_equal(lse[[0, 2]], [0.25, -np.inf])
    for da_out, da_lse, db_out, db_lse in orders:
        for x in (da_out, da_lse, db_out, db_lse):
            assert np.isfinite(x).all()
        for x in (da_out[0], da_out[2], db_out[2], da_lse[0], da_lse[2], db_lse[2]):
            assert (x == 0).all()
    assert all(np.isfinite(x).all() for x in value_dot)
    np.testing.assert_array_equal(value_dot[0][0], 1)  # row 0 is b's own
    np.testing.assert_array_equal(value_dot[1][0], 1)


def test_a_nan_that_was_attended_stays_however_small_its_weight():
    nan = np.full((2, Dv), np.nan, np.float32)
    ones, zeros = np.ones((2, Dv), np.float32), np.zeros(2, np.float32)
    out, lse = merge((nan, np.array([-500, -np.inf], np.float32)), (ones, zeros))
    assert np.isnan(out[0]).all()
    assert (out[1] == 1).all()
    np.testing.assert_array_equal(lse, 0)


def test_merge_keeps_the_dtypes_and_takes_batch_axes():
    out, lse = normal(2, 3, Dv), normal(2, 3, seed=1)
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        a = jnp.asarray(out, dtype), jnp.asarray(lse, jnp.float32)
        got_out, got_lse = merge(a, a)
        assert (got_out.dtype, got_lse.dtype) == (dtype, jnp.float32)
        np.testing.assert_array_equal(got_out, a[0])
        assert_close(got_lse, a[1] + jnp.log(jnp.float32(2)), ulps=4)
    mapped = jax.jit(jax.vmap(jattn.merge, (0, None)))(a, (a[0][0], a[1][0]))
    assert_close(mapped[0][1], jattn.merge((a[0][1], a[1][1]), (a[0][0], a[1][0]))[0], ulps=4)
    assert merge((a[0], a[1].astype(jnp.bfloat16)), a)[1].dtype == jnp.float32
    assert merge((a[0].astype(jnp.float8_e4m3fn), a[1]), a)[0].dtype == jnp.float32


def test_a_sink_is_a_partial_without_a_value():
    q, k, v = qkv(dtype=np.float32)
    sink = normal(13, seed=4, dtype=np.float32)
    want = jax.jit(lambda: jattn.attention(q, k, v, sink=sink, return_lse=True))()
    bare = jax.jit(lambda: jattn.attention(q, k, v, return_lse=True))()
    assert_close(merge(bare, (np.zeros((13, Dv), np.float32), sink)), want, ulps=8)
