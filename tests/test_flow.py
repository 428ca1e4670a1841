"""Gradient flow: closed forms against jax.grad, paths against loops, limits against theory, and what must fail."""

import dataclasses
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _inputs import D, Dv, S, T, assert_same, normal, qkv
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy.optimize import nnls
from scipy.special import wrightomega

import jattn
from jattn import flow

EXACT = 1e-12
TOY = np.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])  # the keys of river, money, the
SEEDS, SIZES = st.integers(0, 2**31), st.floats(0.1, 6.0)


def attended(q, k, v, mask=None, bias=None):
    """Attention in four lines, from nothing of flow's."""
    x = q @ k.T / math.sqrt(k.shape[1]) + (0 if bias is None else bias)
    x = x if mask is None else jnp.where(mask, x, -1e300)
    p = jnp.exp(x - jax.scipy.special.logsumexp(x, axis=1, keepdims=True))
    return p, p @ v


def anything(steps):
    """A loss on weights and output together."""
    return jnp.sum(jnp.sin(3 * steps.out)) + jnp.sum(steps.weights**3) + 0.3 * jnp.sum(jnp.cos(steps.out)[:, 0])


def small(x, scale=1.0):
    return float(np.max(np.abs(x)) / scale)


# The closed forms


@jax.jit
def of_pulls(q, k, v, mask, bias):
    """The sums of the pulls less the gradients, each relative to the largest of that gradient; 0 in theory."""
    found = flow.pulls(q, k, v, anything, mask=mask, bias=bias)

    def loss(q, k, v):
        p, out = attended(q, k, v, mask, bias)
        return jnp.sum(jnp.sin(3 * out)) + jnp.sum(p**3) + 0.3 * jnp.sum(jnp.cos(out)[:, 0])

    wanted = jax.grad(loss, (0, 1, 2))(q, k, v)
    sums = found.on_q.sum(1), found.on_k.sum(0), found.on_v.sum(0)
    return jnp.stack([jnp.max(jnp.abs(a + b)) for a, b in zip(sums, wanted, strict=True)])


@pytest.mark.structure
@given(seed=SEEDS, size=SIZES)
def test_the_pulls_sum_to_the_gradient_of_any_loss(seed, size):
    with jax.enable_x64(True):
        q, k, v = qkv(seed % 1000)
        mask = np.random.default_rng(seed).random((T, S)) < 0.7
        mask[:, 0] = True
        off = of_pulls(size * q, k, v, mask, normal(T, S, seed=seed))
        assert small(off, 1 + size) < EXACT


@pytest.mark.structure
@pytest.mark.parametrize("masked", [False, True])
def test_a_loss_of_the_scores_themselves_pulls_too(masked, x64):
    """Of a pair that is not allowed too, whose score is a step like any other."""
    options = {"mask": np.arange(S)[None] % 3 != np.arange(T)[:, None] % 3, "scale": 0.7} if masked else {}

    def loss(steps):
        return jnp.mean(jnp.sin(steps.scores)) + jnp.sum(steps.weights**3) + flow.squared_error(1.0)(steps)

    @jax.jit
    def off(q, k, v):
        found = flow.pulls(q, k, v, loss, **options)
        wanted = jax.grad(lambda *qkv: loss(flow.attention_steps(*qkv, **options)), (0, 1, 2))(q, k, v)
        sums = found.on_q.sum(1), found.on_k.sum(0), found.on_v.sum(0)
        return jnp.stack([jnp.max(jnp.abs(a + b)) for a, b in zip(sums, wanted, strict=True)])

    assert small(off(*qkv())) < EXACT


def test_the_check_on_pulls_can_fail(x64):
    @jax.jit
    def off(q, k, v):
        found = flow.pulls(q, k, v, anything, scale=1 / D)  # 1/D for 1/√D
        return found.on_q.sum(1) + jax.grad(lambda q: anything(flow.attention_steps(q, k, v)))(q)

    assert small(off(*qkv())) > 1e-2


@jax.jit
def of_projections(x, W_Q, W_K, W_V, W_O):
    def loss(W_Q, W_K, W_V, bias):
        p, out = attended(x @ W_Q, x @ W_K + bias, x @ W_V)
        return jnp.sum(jnp.tanh(out @ W_O)) + jnp.sum(p**2)

    dQ, dK, dV, dbias = jax.grad(loss, (0, 1, 2, 3))(W_Q, W_K, W_V, jnp.zeros((1, D)))
    objective = lambda s: jnp.sum(jnp.tanh(s.out @ W_O)) + jnp.sum(s.weights**2)  # noqa: E731
    on = flow.projection_pulls(x, W_Q, W_K, W_V, objective)
    gaps = [on.W_Q.sum(0) + dQ, on.W_K.sum(0) + dK, on.W_V.sum(0) + dV, W_Q.T @ dQ - (W_K.T @ dK).T, dbias]
    return jnp.stack([jnp.max(jnp.abs(gap)) for gap in gaps]), jnp.max(jnp.abs(dQ))


@pytest.mark.structure
@given(seed=SEEDS)
def test_the_pulls_on_matrices_sum_to_their_gradients_and_these_balance(seed):
    """And a bias on all keys has no gradient."""
    with jax.enable_x64(True):
        shapes = ((S, 7), (7, D), (7, D), (7, Dv), (Dv, Dv))
        off, size = of_projections(*(normal(*s, seed=seed + i) / 2 for i, s in enumerate(shapes)))
        assert small(off, 1 + size) < EXACT


@pytest.mark.structure
def test_the_pulls_on_matrices_of_halves_are_those_of_their_values():
    given = [normal(*shape, seed=i).astype(jnp.bfloat16) for i, shape in enumerate(((S, 7), (7, D), (7, D), (7, Dv)))]
    pulls = jax.jit(lambda *given: flow.projection_pulls(*given, flow.cross_entropy(0)))
    for found, want in zip(pulls(*given), pulls(*(x.astype(np.float32) for x in given)), strict=True):
        assert small(found - want) < 0.1 * (1 + small(want))


@jax.jit
def of_one_query(q, k, v, goal, target):
    c = 1 / math.sqrt(D)
    p, out = attended(q[None], k, v)
    p, out, mean = p[0], out[0], p[0] @ k
    cross = lambda q, k: -jnp.log(attended(q[None], k, v)[0][0, target])  # noqa: E731
    miss = lambda q: 0.5 * jnp.sum((attended(q[None], k, v)[1] - goal[None]) ** 2)  # noqa: E731
    apart = k - mean[None]
    dk = jax.grad(cross, 1)(q, k)
    ours = flow.cross_entropy(target)(flow.attention_steps(q[None], k, v))
    gaps = [
        jax.grad(cross)(q, k) + c * (k[target] - mean),
        jax.hessian(cross)(q, k) - c**2 * (p[:, None] * apart).T @ apart,
        jax.grad(miss)(q) + c * (p[:, None] * apart).T @ (v - out[None]) @ (goal - out),
        jax.grad(lambda q: flow.squared_error(goal)(flow.attention_steps(q[None], k, v)))(q) - jax.grad(miss)(q),
        dk.sum(0),
        dk - c * jnp.outer(p - jax.nn.one_hot(target, S, dtype=p.dtype), q),
        ours - cross(q, k),
        flow.softmax_jacobian(c * k @ q) - jax.jacobian(jax.nn.softmax)(c * k @ q),
    ]
    return jnp.stack([jnp.max(jnp.abs(gap)) for gap in gaps])


@pytest.mark.structure
@given(seed=SEEDS, target=st.integers(0, S - 1))
def test_the_closed_forms_of_one_query_are_those_of_jax(seed, target):
    with jax.enable_x64(True):
        q, k, v, goal = (normal(*s, seed=seed + i) for i, s in enumerate(((D,), (S, D), (S, Dv), (Dv,))))
        assert small(of_one_query(q, k, v, goal, target), 20) < EXACT


def test_the_pull_of_each_key_has_the_sign_that_theory_says(x64):
    """With a_j = −dL/dp_j, the terms are c p_j (a_j − ā) k_j; with +dL/dp_j they would sum to +dL/dq."""

    @jax.jit
    def pulled(q, k):
        return flow.attention_steps(q, k, k).weights[0], flow.pulls(q, k, k, flow.cross_entropy(0)).on_q[0]

    q, k = np.array([[1.0, 0.0]]), TOY
    p, on_q = map(np.asarray, pulled(q, k))
    a = np.array([1 / p[0], 0, 0])
    np.testing.assert_allclose(on_q, (p * (a - p @ a))[:, None] * k / math.sqrt(2), atol=EXACT)
    assert on_q[0] @ k[0] > 0 > on_q[1] @ k[1]  # river draws, money drives off
    assert small(on_q.sum(0) / np.linalg.norm(on_q.sum(0)) - k[0]) > 0.1  # and the sum does not point to river


def test_a_distribution_as_target_is_a_mixture_of_its_keys(x64):

    @jax.jit
    def losses(q, k, v, pi):
        of = lambda target: lambda q: flow.cross_entropy(target)(flow.attention_steps(q, k, v))  # noqa: E731
        weights, one_hot = flow.attention_steps(q, k, v).weights[0], jax.nn.one_hot(3, S)
        return weights, *jax.value_and_grad(of(pi))(q), of(one_hot)(q), of(3)(q)

    q, k, v = qkv(T=1)
    pi = np.random.default_rng(0).dirichlet(np.ones(S))
    weights, of_pi, dq, of_one, of_key = map(np.asarray, losses(q, k, v, pi))
    np.testing.assert_allclose(of_pi, -pi @ np.log(weights), rtol=1e-14)
    np.testing.assert_allclose(of_one, of_key, rtol=1e-14)
    np.testing.assert_allclose(-dq[0], (pi @ k - weights @ k) / math.sqrt(D), atol=EXACT)


@pytest.mark.structure
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_masked_pulls_with_nothing_whatever_it_holds(bad):
    """Of a query that may attend it the output is NaN."""
    q, k, v = (x.astype(np.float32) for x in qkv())
    mask = np.ones((T, S), bool)
    mask[:, -1] = False

    def found(q, k, v):
        steps = flow.attention_steps(q, k, v, mask=mask)
        slope = jax.grad(lambda v: anything(flow.attention_steps(q, k, v, mask=mask)))(v)
        return steps.weights, steps.out, slope, flow.pulls(q, k, v, anything, mask=mask)

    want = jax.block_until_ready(jax.jit(found)(q, k, v))  # which may read the arrays where they lie
    k[-1], v[-1] = bad, bad
    assert_same(jax.jit(found)(q, k, v), want)
    mask[0, -1] = True
    out = flow.attention_steps(q, np.nan_to_num(k), v, mask=mask).out
    np.testing.assert_array_equal(np.isnan(out).all(1), np.arange(T) == 0)


def test_pulls_keep_the_tail_of_a_saturated_row():
    """p_other = e⁻⁶⁰: 1 − p_river is 0 in float32, and yet every pull is right to rounding."""

    @jax.jit
    def both(q, k):
        ours = flow.pulls(q, k, k, flow.cross_entropy(0), scale=1.0).on_q[0, :, 0]
        return ours, jax.grad(lambda x: -jax.nn.log_softmax(x)[0])((k @ q[0]).ravel())

    made, plain = both(np.float32([[60]]), np.float32([[1], [0], [-0.1]]))
    exact = np.exp(np.array([0.0, -60.0, -66.0]))
    exact = np.array([exact[1:].sum(), -exact[1], -exact[2]]) * np.array([1.0, 0.0, -0.1])
    np.testing.assert_allclose(made, exact, rtol=1e-5)
    assert plain[0] == 0 != made[0]  # the plain rule has lost it


# The Jacobian and the measures


@jax.jit
def of_softmax(x):
    return jax.nn.softmax(x), flow.softmax_jacobian(x), flow.jacobian_spectrum(x)


@given(seed=SEEDS, size=st.floats(0, 30), n=st.sampled_from([2, 3, 7]))
def test_the_spectrum_of_the_jacobian_is_where_theory_says(seed, size, n):
    with jax.enable_x64(True):
        p, J, eigenvalues = map(np.asarray, of_softmax(size * normal(n, seed=seed)))
        p = np.sort(p)
        assert small(J - J.T) == 0
        assert small(J.sum(1)) < 1e-16 * 8
        assert eigenvalues[0] == 0
        assert eigenvalues[-1] <= 0.5 + 1e-15
        assert eigenvalues.sum() == pytest.approx(1 - p @ p, abs=1e-14)
        assert np.all(p[:-1] - 1e-15 <= eigenvalues[1:])
        assert np.all(eigenvalues[1:] <= p[1:] + 1e-15)
        np.testing.assert_allclose(eigenvalues, np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)), atol=1e-14)


def test_the_bound_on_the_jacobian_is_attained_by_two_equal_keys():
    assert [len(x) for x in of_softmax(np.zeros(0, np.float32))] == [0, 0, 0]
    assert of_softmax(np.float32([0, 0, -np.inf]))[2][-1] == pytest.approx(0.5)
    half = jax.jit(flow.jacobian_spectrum)(np.zeros(2, jnp.bfloat16))
    assert (half.dtype, half.tolist()) == (jnp.bfloat16, [0, 0.5])
    _, J, _ = of_softmax(np.float32([100, 0, -np.inf]))
    assert J[0, 0] == pytest.approx(math.exp(-100), rel=1e-5)  # p(1 − p), where 1 − p is 0 in float32


def test_entropy_and_saturation_run_from_uniform_to_one_hot():

    @jax.jit
    def measures(p):
        return flow.entropy(p), flow.saturation(p), jax.grad(lambda p: flow.entropy(p).sum())(p)

    entropies, saturations, slopes = measures(np.float32([[0.25] * 4, [1, 0, 0, 0], [0] * 4]))
    np.testing.assert_allclose(entropies, [math.log(4), 0, 0], rtol=1e-6)
    np.testing.assert_allclose(saturations[:2], [0, 1], atol=1e-6)
    assert jax.jit(flow.saturation)(np.ones((2, 1), np.float32)).tolist() == [1, 1]
    assert np.isfinite(slopes).all()
    assert np.isnan(jax.jit(flow.entropy)(np.float32([[np.nan, 1]]))).all()  # not 0, as of a row that is one-hot
    for n in (1, 3):  # 0, and not −0, of a row that is one-hot
        assert not np.signbit(jax.jit(flow.entropy)(np.eye(n, dtype=np.float32))).any()
    p, J, _ = of_softmax(normal(7, seed=2, dtype=np.float32))
    trace = 1 - jax.jit(flow.saturation)(p)
    assert trace * (1 - 1 / 7) == pytest.approx(float(np.trace(J)), rel=1e-5)


def test_rounding_takes_no_eigenvalue_and_no_saturation_below_zero():
    """Of rows that are nearly uniform, and of weights down to e⁻¹⁰⁰."""
    x = np.stack([size * normal(11, seed=seed, dtype=np.float32) for seed in range(20) for size in (1e-2, 3, 30)])
    eigenvalues = np.asarray(jax.vmap(flow.jacobian_spectrum)(x))
    assert (np.diff(eigenvalues) >= 0).all()
    assert (flow.saturation(jax.nn.softmax(jnp.asarray(x))) >= 0).all()
    assert flow.saturation(jnp.full((3, 11), 1 / 11)).tolist() == pytest.approx([0] * 3, abs=1e-6)


def test_max_logit_is_the_largest_scaled_score(x64):
    q, k, v = qkv()
    assert flow.max_logit(q, k) == pytest.approx(float(jax.jit(jattn.explain)(q, k, v).scaled.max()), rel=1e-14)
    assert flow.max_logit(q[:0], k) == -np.inf
    q, k = q.astype(jnp.bfloat16), k.astype(np.float32)  # rounded once each, and no further
    largest = (np.float64(q) @ np.float64(k).T).max() / q.shape[1] ** 0.5
    assert flow.max_logit(q, k) == pytest.approx(largest, rel=1e-6)


def test_rollout_multiplies_the_layers(x64):
    A = np.random.default_rng(0).dirichlet(np.ones(5), (3, 5))
    half = [0.5 * a + 0.5 * np.eye(5) for a in A]
    np.testing.assert_allclose(flow.rollout(A), half[2] @ half[1] @ half[0], atol=1e-15)
    np.testing.assert_allclose(flow.rollout(A, residual=0.0), A[2] @ A[1] @ A[0], atol=1e-15)
    assert_same(flow.rollout(A[:0]), np.eye(5))


# The widest margin


def svm(d):
    """min |w|² where each w·d_j ≥ 1, by SciPy; None where there is none."""
    # Lawson and Hanson's way from this problem of least distance to one of nonnegative least squares.
    goal = np.r_[np.zeros(d.shape[1]), 1]
    both = np.c_[d, np.ones(len(d))].T
    rest = both @ nnls(both, goal)[0] - goal
    return None if np.linalg.norm(rest) < 1e-9 else -rest[:-1] / rest[-1]


@pytest.mark.structure
@pytest.mark.parametrize("size", [1e-30, 1.0, 8e37, 9e37, 1.5e38])
def test_the_widest_margin_of_keys_of_any_size_is_that_of_small_ones_scaled(size):
    """One over the keys' largest difference would be too small for float32 above 8.5e37."""
    keys = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])
    small, found = (flow.max_margin(jnp.float32(s) * keys, 0) for s in (1, size))
    np.testing.assert_allclose(found.direction, small.direction, rtol=1e-5)
    np.testing.assert_allclose(found.support, small.support, rtol=1e-5)
    np.testing.assert_allclose(found.margin, np.float32(size) * small.margin, rtol=1e-5)


def test_the_max_margin_direction_is_that_of_scipy_and_of_the_dual(x64):
    k = normal(40, 8, 3, seed=5)
    found = jax.jit(jax.vmap(flow.max_margin))(k, jnp.arange(40) % 8)
    separable = 0
    for i in range(40):
        u, margin, support = (np.asarray(x[i]) for x in found)
        r = i % 8
        d = k[i, r] - np.delete(k[i], r, 0)
        w = svm(d)
        assert (w is None) == (margin == 0)
        assert support[r] == 0
        assert support.min() >= 0
        assert support.sum() == pytest.approx(1, abs=1e-14)
        np.testing.assert_allclose(support @ (k[i, r] - k[i]), margin * u, atol=1e-13)  # the dual certifies it
        if w is not None:
            separable += 1
            assert (d @ u).min() == pytest.approx(margin, abs=1e-13)
            assert margin == pytest.approx(1 / np.linalg.norm(w), rel=1e-6)
            np.testing.assert_allclose(u, w / np.linalg.norm(w), atol=1e-5)
    assert 5 < separable < 40


def test_keys_that_nearly_lie_in_a_plane_or_a_line_are_separated_to_rounding(x64):
    """In float32 the margin is found to the rounding of float32, not to half of its digits."""
    widest = jax.jit(flow.max_margin)
    rng, eps = np.random.default_rng(2), float(np.finfo(np.float32).eps)
    for i in range(60):
        (S, D), h = ((3, 2), (6, 3), (8, 5))[i % 3], 10.0 ** -(1 + i // 3 % 4)
        k = np.outer(rng.normal(size=S), rng.normal(size=D)) + h * rng.normal(size=(S, D))
        k, r = np.float32(k), i % S
        d = np.float64(k[r]) - np.delete(np.float64(k), r, 0)
        w, size = svm(d), np.abs(d).max()
        gamma = 0 if w is None else 1 / np.linalg.norm(w)
        found = widest(k, r)
        u = np.float64(found.direction)
        assert abs(float(found.margin) - gamma) < 64 * eps * size
        if gamma > 64 * eps * size:
            assert (d @ u).min() > gamma - 64 * eps * size
            assert np.linalg.norm(u) == pytest.approx(1, abs=8 * eps)


def test_a_key_that_nothing_prefers_has_no_direction(x64):
    widest = jax.jit(flow.max_margin)
    square = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1], [0.3, -0.2]])
    assert widest(square, 4).margin == 0
    assert widest(square, 4).direction.tolist() == [0, 0]
    assert widest(square[:1], 0).margin == 0
    twins = np.array([[1.0, 0], [0, 1], [0, 1], [0, 1], [0, 1]])
    assert widest(twins, 0).margin == pytest.approx(math.sqrt(2))
    assert widest(1e-30 * twins, 0).margin == pytest.approx(math.sqrt(2) * 1e-30)
    assert widest(twins, 1).margin == 0  # it has a twin: no direction prefers it
    # Nearly in a line, and between two others: the point nearest to 0 is found to half of the digits.
    thin = [[1.0773, 1.0765], [-0.9391, -0.9369], [1.9519, 1.9503], [-0.8971, -0.8973], [0.0, 0.0]]
    assert widest(np.array(thin), 0).direction.tolist() == [0, 0]
    for bad in (np.nan, np.inf):
        assert all(np.isnan(x).all() for x in widest(np.array([*twins[:4], [bad, 0]]), 0))
    toy = widest(TOY, 0)
    assert toy.margin == pytest.approx(math.sqrt(0.65), rel=1e-15)


# Runs


def quadratic(x, scale):
    return 0.5 * jnp.sum(scale * jnp.cos(x) + x**2)


@pytest.mark.structure
def test_without_jit_a_run_is_that_of_the_program():
    x, scale = jnp.array([1.0, -2.0]), jnp.array([0.3, 0.7])
    loss = lambda x, scale: jnp.sum(quadratic(x, scale))  # noqa: E731
    run = lambda at: flow.run(loss, x, optax.adam(0.1), 3, data=(scale,), at=at).seen  # noqa: E731
    looks = None, 2, (1, 3)
    want = [run(at) for at in looks]
    with jax.disable_jit():
        got = [run(at) for at in looks]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), got, want)


@pytest.mark.structure
def test_sharpness_aware_steps_are_given_the_gradient_that_they_ask_for():
    """Two ways of optax to take them: of two gradients a step each, or in one step of two. The loss falls."""
    x, adversary = jnp.array([2.0, -1.0]), optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    loss = lambda x: jnp.sum((x - 1) ** 2) + jnp.sum(x**4)  # noqa: E731
    ways = {opaque: optax.contrib.sam(optax.sgd(0.1), adversary, opaque_mode=opaque) for opaque in (False, True)}
    runs = {opaque: flow.run(loss, x, way, 4 if opaque else 8) for opaque, way in ways.items()}
    np.testing.assert_allclose(runs[False].params, runs[True].params, rtol=1e-5)
    assert runs[True].loss[1] < runs[True].loss[0] / 4


SOPHIA = getattr(optax.contrib, "sophia", None)


@pytest.mark.structure
@pytest.mark.parametrize(
    ("optimizer", "more"),
    [
        (optax.lbfgs(), {"value", "grad", "value_fn"}),
        (optax.chain(optax.sgd(0.1), optax.scale_by_backtracking_linesearch(10)), {"value", "grad", "value_fn"}),
        (optax.polyak_sgd(), {"value"}),
        (optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1)), {"value"}),
        pytest.param(
            SOPHIA and SOPHIA(0.1, update_interval=2),
            {"obj_fn"},
            marks=pytest.mark.skipif(SOPHIA is None, reason="optax has it from 0.2.5 on"),
        ),
    ],
    ids=["L-BFGS", "backtracking", "Polyak", "plateau", "Sophia"],
)
def test_an_optimiser_that_asks_for_the_loss_is_given_it(optimizer, more):
    """As in the loop that optax documents for it, which passes what it asks for and no more."""
    x, scale = jnp.array([1.0, -2.0]), jnp.array([0.3, 0.7])
    path = flow.run(quadratic, x, optimizer, 4, data=(scale,), at=1)
    value_fn = lambda x: quadratic(x, scale)  # noqa: E731

    @jax.jit
    def step(x, state):
        loss, grads = jax.value_and_grad(value_fn)(x)
        given = {"value": loss, "grad": grads, "value_fn": value_fn, "obj_fn": value_fn}
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(grads, state, x, **{name: given[name] for name in more})
            return optax.apply_updates(x, updates), state

    state = optimizer.init(x)
    for seen in path.seen[1:]:
        x, state = step(x, state)
        np.testing.assert_allclose(seen, x, rtol=1e-5)
    assert path.loss[-1] < path.loss[0]


@pytest.mark.structure
def test_a_run_is_the_loop_that_one_would_write():
    x, scale, adam = jnp.array([1.0, -2.0]), jnp.array([0.3, 0.7]), optax.adam(0.1)
    look = lambda now: {"x": now.params, "t": now.step, "g": now.grads, "sum": now.sums}  # noqa: E731
    path = flow.run(quadratic, x, adam, 7, data=(scale,), observe=look, at=(1, 2, 6), track=lambda u: jnp.abs(u).sum())

    @jax.jit
    def step(x, state):
        loss, grads = jax.value_and_grad(quadratic)(x, scale)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes floats and counts
            updates, state = adam.update(grads, state, x)
        return loss, grads, updates, state, optax.apply_updates(x, updates)

    state, total = adam.init(x), 0.0
    for t in range(8):
        loss, grads, updates, state, after = step(x, state)
        if t in (1, 2, 6):
            i = (1, 2, 6).index(t)
            shown = {"x": x, "t": t, "g": grads, "sum": total}
            jax.tree.map(
                partial(np.testing.assert_allclose, rtol=1e-5), jax.tree.map(lambda s, i=i: s[i], path.seen), shown
            )
            assert path.loss[i] == pytest.approx(float(loss), rel=1e-6)
        if t == 6:
            break
        x, total = after, total + np.abs(updates).sum()
    assert path.at.tolist() == [1, 2, 6]
    assert path.broke == -1
    assert flow.run(quadratic, x, adam, 7, data=(scale,), at=3).at.tolist() == [0, 3, 6, 7]
    assert flow.run(quadratic, x, adam, 0, data=(scale,)).at.tolist() == [0]
    numbers = flow.run(lambda x: 1.0, x, optax.sgd(0.1), 2, observe=lambda now: {"rate": 0.1})  # of Python
    np.testing.assert_allclose([numbers.loss, numbers.seen["rate"]], [[1, 1], [0.1, 0.1]], rtol=1e-6)


@pytest.mark.structure
def test_a_run_ends_where_its_steps_end_and_goes_on_from_its_state(x64):
    x, scale, adam = jnp.array([1.0, -2.0]), jnp.ones(2), optax.adam(0.1)
    whole = flow.run(quadratic, x, adam, 9, data=(scale,))
    half = flow.run(quadratic, x, adam, 4, data=(scale,))
    rest = flow.run(quadratic, half.params, adam, 5, data=(scale,), state=half.state)
    jax.tree.map(
        partial(np.testing.assert_allclose, atol=1e-15), (rest.params, rest.state), (whole.params, whole.state)
    )
    fresh = flow.run(quadratic, half.params, adam, 5, data=(scale,))
    assert small(fresh.params - whole.params) > 1e-3  # the state matters


@pytest.mark.structure
def test_a_state_that_an_update_widens_is_wide_from_the_beginning():
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(3)}
    loss = lambda p: sum(jnp.sum((x.astype(jnp.float32) - 0.3) ** 2) for x in p.values())  # noqa: E731
    total = lambda updates: {name: jnp.sum(u**2) for name, u in updates.items()}  # noqa: E731
    wide = partial(optax.inject_hyperparams, hyperparam_dtype=jnp.float32)  # the rates, which widen the moments of a
    adam = wide(optax.adam)(0.01)

    @jax.jit
    def loop(params):
        state, sums = adam.init(params), {"a": 0.0, "b": 0.0}
        for _ in range(2):
            updates, state = adam.update(jax.grad(loss)(params), state, params)
            params, sums = optax.apply_updates(params, updates), jax.tree.map(jnp.add, sums, total(updates))
        return params, sums, state

    with jax.numpy_dtype_promotion("standard"):
        want = loop(params)
    with jax.numpy_dtype_promotion("strict"):
        path = flow.run(loss, params, adam, 2, track=total)
    found = path.params, path.sums, path.state
    assert [x.dtype for x in jax.tree.leaves(found)] == [x.dtype for x in jax.tree.leaves(want)]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-2), found, want)


def toy_loss(q, k, target):
    return flow.cross_entropy(target)(flow.attention_steps(q[None], k, k))


@pytest.mark.structure
def test_thousands_of_runs_are_one_call():
    """Over seeds, targets, learning rates and momenta at once; each is the run by itself."""
    injected = optax.inject_hyperparams(optax.sgd)(learning_rate=1.0, momentum=0.5)
    q, k = normal(5, 2, dtype=np.float32), jnp.asarray(TOY, jnp.float32)
    rates, momenta = jnp.linspace(0.1, 1, 20), jnp.linspace(0, 0.9, 10)

    def one(q, target, rate, momentum):
        state = injected.init(q)
        state = state._replace(hyperparams=state.hyperparams | {"learning_rate": rate, "momentum": momentum})
        return flow.run(toy_loss, q, injected, 30, data=(k, target), state=state, at=10)

    many = one
    for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        many = jax.vmap(many, axes)
    found = jax.jit(many)(q, jnp.arange(3), rates, momenta)
    assert found.loss.shape == (5, 3, 20, 10, 4)  # 3,000 runs
    assert np.isfinite(found.loss).all()
    slope, ends = jax.jit(jax.grad(toy_loss)), np.asarray(found.params)
    for i in ((0, 0, 0, 0), (4, 2, 19, 9), (2, 1, 7, 3)):
        x, rolling = q[i[0]], np.float32(0)
        for _ in range(30):
            rolling = np.asarray(slope(x, k, i[1])) + np.asarray(momenta)[i[3]] * rolling
            x = x - np.asarray(rates)[i[2]] * rolling
        np.testing.assert_allclose(ends[i], x, rtol=2e-5, atol=2e-6)


@pytest.mark.structure
def test_runs_spread_over_devices_are_the_same_runs():
    """By the placement of their inputs, and inside shard_map, some of them breaking."""
    mesh = jax.make_mesh((8,), ("runs",), axis_types=(AxisType.Auto,))
    q, k = normal(16, 2, seed=3, dtype=np.float32), jnp.asarray(TOY, jnp.float32)
    q[5] = np.nan

    def one(q):
        observe = flow.watch(lambda q, k, _: (q, k), flow.cross_entropy(0), 0)
        return flow.run(toy_loss, q, optax.adam(0.1), 20, data=(k, 0), at=5, track=lambda u: u, observe=observe)

    each = jax.jit(jax.vmap(one))
    alone = each(q)
    placed = each(jax.device_put(q, NamedSharding(mesh, P("runs"))))
    assert len(placed.params.sharding.device_set) == 8
    inside = jax.jit(jax.shard_map(jax.vmap(one), mesh=mesh, in_specs=P("runs"), out_specs=P("runs")))(q)
    assert alone.broke.tolist() == [-1] * 5 + [0] + [-1] * 10
    for found in (placed, inside):
        assert found.broke.tolist() == alone.broke.tolist()
        found, want = (jax.tree.map(lambda x: np.delete(x, 5, 0), path) for path in (found, alone))  # it is NaN
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, want)


@pytest.mark.structure
def test_one_run_on_data_that_is_spread_over_devices_averages_over_all_of_it():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = normal(16, 3, seed=1, dtype=np.float32)

    def mean_square(w, x):
        return jnp.mean((x - w[None]) ** 2)

    def within(w, x):
        return jax.lax.pmean(mean_square(w, x), "data")

    alone = flow.run(mean_square, jnp.zeros(3), optax.sgd(0.5), 9, data=(x,), at=3)
    spread = jax.device_put(x, NamedSharding(mesh, P("data")))
    placed = flow.run(mean_square, jnp.zeros(3), optax.sgd(0.5), 9, data=(spread,), at=3)
    one = lambda w, x: flow.run(within, w, optax.sgd(0.5), 9, data=(x,), at=3)  # noqa: E731
    shard = jax.shard_map(one, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    for found in (placed, shard(jnp.zeros(3), x)):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found.seen, alone.seen)


def test_the_end_of_a_run_can_be_differentiated(x64):
    def end(rate):
        return flow.run(quadratic, jnp.array([1.0, -2.0]), optax.sgd(rate), 6, data=(jnp.ones(2),), at=2).loss[-1]

    end = jax.jit(end)
    slope = (end(0.1 + 1e-6) - end(0.1 - 1e-6)) / 2e-6
    assert jax.jit(jax.grad(end))(0.1) == pytest.approx(float(slope), rel=1e-6)
    assert jax.jvp(end, (0.1,), (1.0,))[1] == pytest.approx(float(slope), rel=1e-6)


@pytest.mark.parametrize("at", [(6,), 4])
def test_a_run_is_differentiated_in_reverse_wherever_at_says_every_so_many_steps_or_once(at, x64):
    def end(rate, at=at):
        return flow.run(quadratic, jnp.array([1.0, -2.0]), optax.sgd(rate), 6, data=(jnp.ones(2),), at=at).loss[-1]

    assert jax.grad(end)(0.1) == pytest.approx(float(jax.jvp(end, (0.1,), (1.0,))[1]), rel=1e-12)
    with pytest.raises(ValueError, match="Reverse-mode"):  # the control: looks that are spread at will are one loop
        jax.grad(partial(end, at=(0, 1, 3, 6)))(0.1)


def test_a_run_takes_all_its_steps_wherever_the_last_look_is():
    args = (lambda x: 0.5 * x**2, jnp.float32(1), optax.sgd(0.5), 10)
    for run in (flow.run, partial(flow.run_in_parts, every=3)):
        for at in ((0,), (2, 3, 7), (0, 10)):
            path = run(*args, at=at, track=lambda u: u)
            assert (path.at.tolist(), path.params, path.sums) == (list(at), 0.5**10, 0.5**10 - 1)
            np.testing.assert_array_equal(path.seen, 0.5 ** np.array(at))
        assert run(cliff, jnp.float32(0), optax.sgd(1.0), 20, at=(0, 2)).broke == 4, "after the last look"


def cliff(x):
    """Well until x passes 1, then NaN: with x_t = 0.3 t the step that finds it is number 4."""
    return jnp.where(x > 1, jnp.nan, -0.3 * x)


def test_a_nan_ends_the_run_at_its_step_and_keeps_what_came_before():
    path = flow.run(cliff, jnp.float32(0), optax.sgd(1.0), 20, at=1, track=lambda u: u)
    assert path.broke == 4
    kept = path.kept()
    assert kept.at.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(kept.seen, [0, 0.3, 0.6, 0.9, 1.2], rtol=1e-6)
    assert path.params == pytest.approx(1.2)  # the last that is finite
    assert path.sums == pytest.approx(1.2)
    many = jax.vmap(lambda rate: flow.run(cliff, jnp.float32(0), optax.sgd(rate), 20, at=5))(jnp.array([0.1, 1.0]))
    assert many.broke.tolist() == [-1, 4]
    assert many.params[0] == pytest.approx(0.6)
    blown = flow.run(lambda x: -(x**2), jnp.float32(1), optax.sgd(1e30), 9, at=1)
    assert blown.broke == 1  # the parameter itself would be infinite
    assert np.isfinite(blown.seen).all()
    assert flow.run(cliff, jnp.float32(0), optax.sgd(0.1), 5).kept().at.tolist() == [0, 5]


def test_steps_beyond_64_bits_are_spaced_too():
    assert flow.log_steps(10**20, per_decade=1)[-3:] == (10**18, 10**19, 10**20)


@pytest.mark.parametrize("steps", [0, 1, 2, 50, 999])
def test_more_looks_a_decade_than_steps_are_every_step(steps):
    every = tuple(range(steps + 1))
    assert flow.log_steps(steps, per_decade=3 * steps + 1) == flow.log_steps(steps, per_decade=10**12) == every


# Long runs


@pytest.mark.structure
def test_a_run_in_parts_is_the_run(tmp_path):
    args = (quadratic, jnp.array([1.0, -2.0]), optax.adam(0.1), 23)
    more = {"data": (jnp.ones(2),), "at": flow.log_steps(23), "track": lambda u: u}
    told = []
    whole = flow.run(*args, **more)
    parts = flow.run_in_parts(*args, every=5, folder=tmp_path / "a", on_progress=lambda *x: told.append(x), **more)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), parts, whole)
    assert told == [(5, 23), (10, 23), (15, 23), (20, 23), (23, 23)]
    again = flow.run_in_parts(*args, every=5, folder=tmp_path / "a", on_progress=lambda *x: told.append(x), **more)
    assert_same(again, parts)
    assert len(told) == 5, "there was nothing left to do"


def test_a_run_in_parts_stops_at_a_nan(tmp_path):
    told = []
    args = (cliff, jnp.float32(0), optax.sgd(1.0), 20)
    for _ in range(2):  # and again, from its checkpoints
        more = {"every": 2, "folder": tmp_path, "on_progress": lambda *x: told.append(x)}
        path = flow.run_in_parts(*args, at=1, **more)
        assert (path.broke, path.at.tolist()) == (4, [0, 1, 2, 3, 4])
        np.testing.assert_allclose(path.seen, [0, 0.3, 0.6, 0.9, 1.2], rtol=1e-6)
    assert told[:3] == [(2, 20), (4, 20), (4, 20)]
    assert flow.run_in_parts(*args, every=3, at=(10, 20)).at.tolist() == [4]


def test_an_array_without_entries_passes_through_a_checkpoint(tmp_path):
    params = {"none": jnp.ones((0, 3)), "x": jnp.array([1.0, -2.0])}
    args = (lambda p: quadratic(p["x"], jnp.ones(2)), params, optax.adam(0.1), 5)
    for _ in range(2):  # and again, from its checkpoint
        path = flow.run_in_parts(*args, every=2, folder=tmp_path)
        assert_same(path, flow.run_in_parts(*args, every=2))


def test_a_run_in_parts_takes_its_steps_as_a_number_of_numpy(tmp_path):
    path = flow.run_in_parts(cliff, jnp.float32(0), optax.sgd(1.0), np.int64(3), every=2, folder=tmp_path)
    assert path.at.tolist() == [0, 3]


@pytest.mark.parametrize("lost", ["told/metadata", "arrays/_METADATA", "told", "arrays", ""])
def test_a_damaged_checkpoint_is_named_and_without_it_the_run_goes_on_from_the_one_before(lost, tmp_path):
    args, more = (quadratic, jnp.array([1.0, -2.0]), optax.adam(0.1), 6), {"every": 2, "at": 2, "data": (jnp.ones(2),)}
    whole = flow.run_in_parts(*args, folder=tmp_path, **more)
    damaged = tmp_path / "6" / lost
    if damaged.is_dir():
        shutil.rmtree(damaged)
        damaged.mkdir()
    else:
        damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    with pytest.raises(ValueError, match="run_in_parts: folder must hold checkpoints that can be read") as error:
        flow.run_in_parts(*args, folder=tmp_path, **more)
    assert "with a damaged one, 6. Remove 6 from the folder" in str(error.value)
    shutil.rmtree(tmp_path / "6")
    told = []
    assert_same(flow.run_in_parts(*args, folder=tmp_path, on_progress=lambda *x: told.append(x), **more), whole)
    assert told == [(6, 6)], "only the rest was computed"


LONG = """
import os, signal, sys
import jax, jax.numpy as jnp, optax
from jattn import flow
jax.config.update("jax_num_cpu_devices", 8)

def loss(x, scale):
    return jnp.sum(scale * jnp.cos(x) + x**2 / 2)

def go(folder, rate=0.05, on_progress=None):
    x = jnp.linspace(-2, 2, 37)
    return flow.run_in_parts(loss, x, optax.adamw(rate), 700, every=100, folder=folder, on_progress=on_progress,
                             data=(jnp.linspace(0, 3, 37),), at=flow.log_steps(700), track=lambda u: u**2)

def die(done, steps):
    if done == 400:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_kill_a_run_ends_where_it_would_have_ended_bit_for_bit(tmp_path):
    code = LONG + f"\ngo({str(tmp_path / 'killed')!r}, on_progress=die)\n"
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(int(name) for name in os.listdir(tmp_path / "killed") if name.isdecimal()) == [300, 400]
    space, told = {}, []
    exec(LONG, space)
    whole = space["go"](None)
    resumed = space["go"](tmp_path / "killed", on_progress=lambda *x: told.append(x))
    assert told == [(500, 700), (600, 700), (700, 700)], "only the rest was computed"
    assert_same(resumed, whole)
    with pytest.raises(AssertionError):  # the control: another learning rate is another end
        assert_same(space["go"](None, rate=0.0501), whole)


@pytest.mark.parametrize("way", ["optimiser", "schedule", "loss", "observe"])
def test_what_a_mapped_function_closes_over_leaks_no_tracer(way):
    """And what closes over none is compiled once."""

    def of(rate):
        loss = lambda x: 0.5 * (rate if way == "loss" else 0.1) * x**2  # noqa: E731
        more = {"observe": lambda now: now.params * rate} if way == "observe" else {}
        steps = {"optimiser": rate, "schedule": optax.linear_schedule(rate, 0.0, 5)}.get(way, 0.1)
        return flow.run(loss, jnp.float32(1), optax.sgd(steps), 4, **more).seen

    rates = jnp.array([0.5, 0.1])
    want = [of(np.float32(rate)) for rate in rates]
    with jax.checking_leaks():
        got = jax.vmap(of)(rates)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    times, optimizer = itertools.count(), optax.sgd(0.1)
    loss = lambda x: next(times) * 0 + x**2  # noqa: E731
    mapped = jax.vmap(lambda x: flow.run(loss, x, optimizer, 4).params)
    before, _, between, _, after = next(times), mapped(rates), next(times), mapped(rates), next(times)
    assert after - between == 1 < between - before  # it was traced by the first call alone


# The continuous flow


@pytest.mark.structure
@pytest.mark.parametrize("tolerance", [1e-5, 1e-9])
def test_two_keys_follow_the_exact_solution_to_the_tolerance(tolerance, x64):
    """m + eᵐ grows as c²|d|² t: with two keys the lead m of the target is the log of the Wright omega function."""
    k, q = jnp.array([[1.0, 0.3], [0.1, -0.2]]), jnp.array([0.4, -0.1])
    d = np.asarray(k[0] - k[1])
    times = np.concatenate([[0.0], np.logspace(-2, 15, 18)])
    path = flow.integrate(toy_loss, q, times, data=(k, 0), tolerance=tolerance)
    m = d @ np.asarray(q) / math.sqrt(2)
    lead = np.log(wrightomega(m + np.exp(m) + d @ d / 2 * times))
    exact = np.asarray(q) + np.outer(lead - m, d) * math.sqrt(2) / (d @ d)
    np.testing.assert_allclose(path.seen, exact, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(path.loss, np.log1p(np.exp(-lead)), rtol=100 * tolerance)
    if tolerance == 1e-5:
        with pytest.raises(AssertionError):  # the control: it is no better than it has to be
            np.testing.assert_allclose(path.seen, exact, rtol=1e-10, atol=1e-10)


@pytest.mark.structure
def test_a_flow_that_is_looked_at_from_its_start_on_has_a_gradient(x64):
    """To time t, x = x_0 exp(−a t): where odeint divides by the length of a step that was not taken there is no NaN."""

    def looked(times):
        end = lambda x, a: flow.integrate(lambda x, a: a * x**2 / 2, x, times, data=(a,)).seen @ np.arange(1.0, 3.0)  # noqa: E731
        return jax.grad(end, (0, 1))(jnp.float64(3), jnp.float64(0.5))

    np.testing.assert_allclose(looked(jnp.array([0.0, 2.0])), [1 + 2 / np.e, -12 / np.e], rtol=1e-7)
    np.testing.assert_allclose(
        looked(jnp.array([1.0, 2.0])), [np.e**-0.5 + 2 / np.e, -3 * np.e**-0.5 - 12 / np.e], rtol=1e-7
    )


@pytest.mark.structure
@pytest.mark.parametrize(
    ("dtype", "times"),
    [
        (np.float64, np.float32([0, 1])),  # less precise than the parameters
        (np.float32, jnp.array([0, 1], jnp.bfloat16)),
        (jnp.bfloat16, (0, 1)),  # whole numbers, beside parameters in which no clock would go on
    ],
)
def test_times_may_have_another_dtype_than_the_parameters(dtype, times, x64):
    path = flow.integrate(lambda x: 0.5 * jnp.sum(x**2), jnp.ones(2, dtype), times, tolerance=1e-4)
    assert path.params.dtype == dtype
    np.testing.assert_allclose(np.float64(path.params), np.exp(-1), rtol=max(1e-4, 2 * float(jnp.finfo(dtype).eps)))


@pytest.mark.structure
@pytest.mark.parametrize(
    "dtypes",
    [
        (jnp.bfloat16, np.float32, np.float32),
        (np.float32, np.float64, np.float32),
        (np.float32, np.float32, np.float64),
    ],
)
def test_a_flow_of_several_dtypes_is_differentiated_in_reverse_by_parameters_and_data(dtypes, x64):
    """To time 1, x = exp(−a), dx/dx_0 = exp(−a), dx/da = −exp(−a); no dtype is promoted."""
    x, t, a = (np.ones((), dtype) for dtype in dtypes)
    loss = lambda x, a: a.astype(x.dtype) * x**2 / 2  # noqa: E731
    end = lambda x, a: flow.integrate(loss, x, jnp.stack([0 * t, t]), data=(a,), tolerance=1e-5).params  # noqa: E731
    slopes = jax.grad(end, (0, 1))(jnp.asarray(x), jnp.asarray(a))
    assert [slope.dtype for slope in slopes] == [dtypes[0], dtypes[2]]
    off = 2 * float(jnp.finfo(dtypes[0]).eps) + 1e-4
    np.testing.assert_allclose(np.float64(slopes), [np.exp(-1), -np.exp(-1)], rtol=off)


@pytest.mark.structure
def test_the_flow_conserves_what_it_should_and_says_where_it_broke(x64):
    start = (np.array([1.0, 0.0]), TOY)
    path = flow.integrate(lambda w: toy_loss(*w, 1), start, np.logspace(-1, 4, 6), tolerance=1e-9)
    kept = jax.jit(jax.vmap(flow.balance))(*path.seen)
    first = np.outer(start[0], start[0]) - start[1].T @ start[1]
    np.testing.assert_allclose(kept, np.broadcast_to(first, kept.shape), atol=1e-8)
    assert path.broke == -1
    blown = flow.integrate(lambda x: -(x**3) / 3, jnp.float64(1.0), jnp.array([0.5, 0.9]))
    np.testing.assert_allclose(blown.seen, [2, 10], rtol=1e-7)  # x = 1 / (1 − t)
    assert flow.integrate(lambda x: jnp.nan * x, jnp.float64(1.0), jnp.array([0.0, 1.0])).broke == 1


@pytest.mark.structure
@pytest.mark.parametrize(
    ("loss", "times", "exact", "broke"),
    [
        (lambda x: -(x**3) / 3, [0.5, 0.9, 2.0, 3.0], lambda t: 1 / (1 - t), 2),  # infinite at t = 1
        (lambda x: 2 * jnp.sqrt(x), [0.1, 0.2, 3.0, 4.0], lambda t: (1 - 1.5 * t) ** (2 / 3), 2),  # 0 at t = 2/3
        (lambda x: 2 * jnp.sqrt(x), [3.0, 4.0], None, 0),
    ],
    ids=["a parameter", "the loss", "by the first time"],
)
def test_a_flow_ends_at_the_last_time_before_something_is_not_finite(loss, times, exact, broke, x64):
    path = flow.integrate(loss, jnp.float64(1), times)
    assert path.broke == broke
    kept = path.kept()
    assert kept.at.tolist() == times[:broke]
    want = [1.0, *(exact(t) for t in times[:broke])]
    np.testing.assert_allclose([1.0, *kept.seen], want, rtol=1e-7)
    np.testing.assert_allclose(path.params, want[-1], rtol=1e-7)


@pytest.mark.structure
def test_a_band_without_a_gradient_ends_a_flow_unless_it_is_passed_unseen_and_then_harmlessly(x64):
    """x = exp(−t) through bands below many places, all of one program: what is kept is exact."""
    times = np.array([0.5, 0.8, 1.0, 2.0, 3.0])
    top, width = (x.ravel() for x in np.meshgrid(np.linspace(0.06, 0.9, 30), [1e-5, 1e-2, 5e-2, 0.2]))

    @jax.jit
    @jax.vmap
    def followed(top, width):
        loss = lambda x, top, width: x**2 / 2 * jnp.where((top - width < x) & (x < top), jnp.nan, 1)  # noqa: E731
        path = flow.integrate(loss, jnp.ones_like(top), times, data=(top, width), tolerance=1e-5)
        return path.seen, path.broke

    seen, broke = followed(top, width)
    kept = np.arange(5) < np.where(broke < 0, 5, broke)[:, None]
    np.testing.assert_allclose(np.where(kept, seen, np.exp(-times)), np.broadcast_to(np.exp(-times), kept.shape), 1e-4)
    before = np.exp(-times) > top[:, None]
    assert kept[before].all()  # the band was not yet reached
    assert (broke[width == 0.2] >= 0).all()
    assert (broke[width == 1e-5] < 0).any()


# Diagnostics and the report


@pytest.fixture(scope="module")
def free():
    """q and K together on the toy, plain gradient descent, every step; and the same with momentum."""
    with jax.enable_x64(True):
        objective, start = flow.cross_entropy(1), (jnp.array([1.0, 0.0]), jnp.asarray(TOY))
        both = lambda w: flow.balance(*w)  # noqa: E731
        read = lambda w: w  # noqa: E731
        seen = {"observe": flow.watch(read, objective, 1, conserved=both), "track": both, "at": 50}
        loss = flow.loss_of(read, objective)
        run = jax.jit(lambda momentum: flow.run(loss, start, optax.sgd(0.5, momentum), 200, **seen))
        return {None: run(0.0), 0.9: run(0.9)}


@pytest.mark.structure
def test_diagnostics_are_what_they_say(free, x64):
    s = jax.tree.map(np.asarray, free[None].seen)
    for i in range(len(s.p)):
        q, k = s.q[i], s.k[i]
        p = np.exp(k @ q / math.sqrt(2))
        p /= p.sum()
        ahead = k[1] - k[[0, 2]]
        w = svm(ahead)
        np.testing.assert_allclose(s.weights[i], p, atol=1e-14)
        np.testing.assert_allclose(s.direction[i], w / np.linalg.norm(w), atol=1e-6)
        want = {
            "loss": -np.log(p[1]), "p": p[1], "lead": q @ (k[1] - p @ k), "norm": np.linalg.norm(q),
            "cos_key": q @ k[1] / np.linalg.norm(q) / np.linalg.norm(k[1]), "widest": 1 / np.linalg.norm(w),
            "margin": (ahead @ q).min() / np.linalg.norm(q), "cos_margin": q @ s.direction[i] / np.linalg.norm(q),
        }  # fmt: skip
        for name, value in want.items():
            assert getattr(s, name)[i] == pytest.approx(value, abs=1e-6 if name == "widest" else EXACT), name
        np.testing.assert_allclose(s.pulls[i].sum(0), (k[1] - p @ k) / math.sqrt(2), atol=EXACT)
        np.testing.assert_allclose(s.dk[i].sum(0), 0, atol=EXACT)
    np.testing.assert_allclose(s.conserved - s.conserved[0], s.drift, atol=EXACT)
    assert abs(s.drift[-1]).max() > 0.01


@pytest.mark.structure
def test_a_key_without_a_rival_has_no_margin():
    watch = flow.watch(lambda q: (q, jnp.ones((1, 2))), flow.cross_entropy(0), 0)
    seen = jax.jit(lambda q: watch(flow.Now(jnp.int32(0), q, q[0], q, None, None, ())))(jnp.ones(2))
    assert (seen.margin, seen.widest) == (0, 0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_the_report_is_held_to_the_rounding_of_the_queries_and_keys(dtype):
    """Their weights and their loss are float32."""
    keys, read, objective = jnp.asarray(normal(5, 3), dtype), lambda q, k: (q, k), flow.cross_entropy(1)
    loss, watch = flow.loss_of(read, objective), flow.watch(read, objective, 1)
    path = flow.run(loss, jnp.ones(3, dtype), optax.sgd(0.5), 20, data=(keys,), observe=watch, at=5)
    assert path.loss.dtype == jnp.float32
    report = flow.check(path)
    assert report.passed, report
    wrong = path.seen.pulls.at[:, 1].multiply(-1)  # the control: a sign of the pull of the target
    broken = flow.check(dataclasses.replace(path, seen=dataclasses.replace(path.seen, pulls=wrong)))
    assert [c.identity for c in broken.checks if not c.passed] == ["Σ_s pull_s + dL/dq = 0"]


def test_a_target_that_is_traced_is_not_asked_for_its_number():
    keys = jnp.asarray(TOY, jnp.float32)
    best = jax.jit(flow.max_margin)(keys, 1)
    assert_same(best, flow.max_margin(keys, 1))
    losses = jax.vmap(lambda r: flow.cross_entropy(r)(flow.attention_steps(keys[:1], keys, keys)))(jnp.arange(3))
    assert losses.shape == (3,)


@pytest.mark.structure
def test_the_report_passes_what_obeys_and_fails_what_does_not(free, x64):
    report = flow.check(free[None], keys="free")
    assert report.passed, report
    assert "ok   Σ_s p_s = 1" in str(report)
    slipped = flow.check(free[0.9], keys="free")
    assert [c.identity for c in slipped.checks if not c.passed] == ["conserved: drift as predicted"]  # momentum
    assert "FAIL conserved" in str(slipped)
    assert abs(slipped["conserved: drift as predicted"].measured) > 0.5


@pytest.mark.structure
@pytest.mark.parametrize(
    ("field", "identity"),
    [
        ("weights", "Σ_s p_s = 1"),
        ("pulls", "Σ_s pull_s + dL/dq = 0"),
        ("dk", "Σ_s dL/dk_s = 0"),
        ("dk", "dL/dk_s across q = 0"),
        ("margin", "margin above γ = 0"),
        ("k", "mean key moved = 0"),
        ("conserved", "conserved: drift as predicted"),
    ],
)
def test_each_line_of_the_report_can_fail(field, identity, free, x64):
    seen = free[None].seen
    x = getattr(seen, field)
    wrong = x.at[(-1,) + (0,) * (x.ndim - 1)].add(1e-9 if field != "margin" else 10)
    broken = dataclasses.replace(free[None], seen=dataclasses.replace(seen, **{field: wrong}))
    assert not flow.check(broken, keys="free")[identity].passed
    nan = dataclasses.replace(seen, **{field: jnp.full_like(x, jnp.nan)})
    assert not flow.check(dataclasses.replace(free[None], seen=nan), keys="free").passed


# What is said of keys that learn: the mean of free ones, and the balance.
TOGETHER = ("Σ_s dL/dk_s = 0", "mean key moved = 0", "conserved: drift as predicted")


def watched(objective, start, read=lambda w: w, **options):
    both = lambda w: flow.balance(*w[:2])  # noqa: E731
    observe = flow.watch(read, objective, 0, conserved=both)
    run = flow.run(flow.loss_of(read, objective), start, optax.sgd(0.1), 100, observe=observe, track=both, at=10)
    return flow.check(run, keys="free", **options)


@pytest.mark.structure
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_the_report_holds_a_run_to_no_line_that_its_loss_does_not_promise(dtype, x64):
    k, q, v = (jnp.array(x, dtype) for x in ([[1, 0.2], [-0.3, 0.5], [0.2, -0.8]], [0.3, 0.4], [[1.0], [2.0], [4.0]]))
    cross, miss = flow.cross_entropy(0), flow.squared_error(jnp.array([0.6, 0.1], dtype))
    large = lambda s: cross(s) + 0.1 * jnp.mean(jax.nn.logsumexp(s.scaled, axis=-1) ** 2)  # noqa: E731
    raw = lambda s: cross(s) + jnp.mean(s.scores**2)  # noqa: E731
    tied, apart = (q, k), (q, k, v)
    promised = {
        "weights": (cross, tied, TOGETHER), "output": (flow.squared_error(3.0), apart, TOGETHER),
        "output of the keys": (miss, tied, TOGETHER[:1]), "logits": (large, tied, TOGETHER[2:]),
        "scores": (raw, apart, TOGETHER[2:]), "both": (lambda s: raw(s) + miss(s), tied, ()),
    }  # fmt: skip
    for name, (objective, start, lines) in promised.items():
        report = watched(objective, start)
        assert report.passed, (name, report)
        assert tuple(c.identity for c in report.checks if c.identity in TOGETHER) == lines, name


@pytest.mark.structure
def test_values_returned_as_keys_are_the_keys():
    k = jnp.array([[1, 0.2], [-0.3, 0.5], [0.2, -0.8]])
    report = watched(flow.squared_error(jnp.ones(2)), (jnp.ones(2), k), lambda w: (*w, w[1]))
    assert report.passed, report


@pytest.mark.structure
def test_a_saturated_run_is_held_to_every_line(x64):
    """A shift of the logits is seen against the pulls of the tail, not against weights near 1."""
    report = watched(flow.cross_entropy(0), (jnp.array([40.0, 0.0]), jnp.asarray(TOY)))
    assert report.passed, report
    assert {c.identity for c in report.checks} >= set(TOGETHER)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64])
def test_what_sums_to_one_to_the_rounding_of_its_dtype_is_a_distribution(dtype, x64):
    for n in (1, 3, 100, 5000):
        pi = np.random.default_rng(n).dirichlet(np.ones(n)).astype(dtype)
        flow.cross_entropy(pi)
        flow.cross_entropy(jax.nn.softmax(jnp.asarray(normal(n), dtype)))
    jax.vmap(lambda pi: flow.cross_entropy(pi)(flow.attention_steps(*qkv()[:2], qkv()[2])))(jnp.ones((2, S)))  # traced


@pytest.mark.structure
def test_the_report_sees_a_broken_run_moved_keys_and_missed_limits(free, x64):
    assert not flow.check(dataclasses.replace(free[None], broke=jnp.int32(200)), keys="free").passed
    assert not flow.check(free[None], keys="frozen")["keys moved = 0"].passed
    assert not flow.check(free[None], keys="projected", rate=0.5)["η t L → 1/(cγ)²"].passed  # for frozen keys alone


@pytest.mark.structure
def test_the_growth_of_a_query_is_held_to_theory_where_two_looks_show_it():
    """One look showed that it gained 0 in no time, which any path does."""
    read, objective = (lambda q: (q, jnp.eye(2, 3))), flow.cross_entropy(0)
    for at in ((100,), (0, 100), (1, 100), (0, 10, 100)):
        observe = flow.watch(read, objective, 0)
        path = flow.run(flow.loss_of(read, objective), jnp.ones(3), optax.sgd(0.1), 100, at=at, observe=observe)
        report = flow.check(path, rate=0.1)
        if at[-2:-1] in ((), (0,)):
            assert not report["two looks at η t > 0, so that |q| has a rate"].passed
        else:
            assert report["|q| gains ln 10/(cγ) a decade"].predicted == pytest.approx(
                math.log(100 / at[-2]) * 1.5**0.5, rel=1e-5
            )


@pytest.mark.structure
def test_a_run_of_no_steps_has_no_limits():
    read, objective = lambda q: (q, jnp.eye(2)), flow.cross_entropy(0)
    watch = flow.watch(read, objective, 0)
    path = flow.run(flow.loss_of(read, objective), jnp.ones(2), optax.sgd(0.1), 0, observe=watch)
    report = flow.check(path, rate=0.1)
    assert [(c.identity, c.measured) for c in report.checks if not c.passed] == [
        ("η t > 0, so that there are limits", 0)
    ]
    assert flow.check(path).passed


# What is conserved


def sentence(w, x):
    """A layer with every matrix: the words' outputs should be the next word's embedding."""
    W_Q, W_K, W_V, W_O = w
    out = flow.attention_steps(x @ W_Q, x @ W_K, x @ W_V).out @ W_O
    return jnp.mean((out[:-1] - x[1:]) ** 2)


def balances(w):
    return flow.balance(w[0], w[1]), flow.balance(w[2], w[3].T)


@pytest.mark.structure
def test_gradient_descent_moves_the_balance_exactly_as_predicted_and_others_do_not(x64):
    x = normal(7, 5, seed=1)
    w = tuple(normal(*s, seed=i) / 2 for i, s in enumerate([(5, 3), (5, 3), (5, 3), (3, 5)]))
    look = lambda now: (balances(now.params), now.sums)  # noqa: E731

    def drift(optimizer, steps):
        kept, sums = flow.run(sentence, w, optimizer, steps, data=(x,), observe=look, track=balances).seen
        ends = jax.tree.map(np.asarray, list(zip(kept, sums, strict=True)))
        return [(small(k[-1] - k[0]), small(k[-1] - k[0] - s[-1])) for k, s in ends]

    coarse, fine = drift(optax.sgd(0.01), 200), drift(optax.sgd(0.005), 400)
    for (moved, off), (half, half_off) in zip(coarse, fine, strict=True):
        assert max(off, half_off) < EXACT
        assert moved > 1e-4
        assert moved / half == pytest.approx(2, rel=0.05)  # at the same time it halves with the rate
    for optimizer in (optax.sgd(0.01, momentum=0.9), optax.adam(0.01)):
        assert all(off > 1e-3 for _, off in drift(optimizer, 100))


@pytest.mark.structure
def test_the_balance_of_halves_is_rounded_once():
    """The two squares are nearly equal: rounded first, their difference would have no digits."""
    a = jnp.asarray(10 * normal(3, 5, seed=1), jnp.float16)
    b = a.at[0, 0].multiply(1 + 2.0**-8)
    want = np.float64(a).T @ np.float64(a) - np.float64(b).T @ np.float64(b)
    found = flow.balance(a, b)
    assert found.dtype == jnp.float16
    np.testing.assert_allclose(np.float64(found), want, rtol=2.0**-11, atol=1e-4)


@pytest.mark.structure
def test_no_dtype_is_promoted_of_what_is_measured(x64):
    half, keys = jnp.ones(2, jnp.bfloat16), jnp.eye(2, dtype=jnp.float32)
    read, objective = (lambda w: w), flow.cross_entropy(0)
    for target in (0, jnp.int32(0), np.int64(0), np.uint8(0)):
        observe = flow.watch(read, objective, target, conserved=lambda w: flow.balance(*w))
        now = flow.Now(jnp.int32(0), (half, keys), jnp.zeros(()), (half, keys), None, None, ())
        with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
            seen = jax.eval_shape(observe, now)
            jax.eval_shape(lambda k, r=target: flow.max_margin(k, r), keys)
        assert (seen.q.dtype, seen.margin.dtype, seen.conserved.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)


@pytest.mark.structure
def test_weight_decay_shrinks_the_balance(x64):
    """θ ← (1 − ηλ) θ − η g: the balance shrinks by (1 − ηλ)² a step, which is e^{−2λt} in the limit of small steps."""
    x, rate, decay = normal(7, 5, seed=1), 0.002, 0.5
    w = tuple(normal(*s, seed=i) / 2 for i, s in enumerate([(5, 3), (5, 3), (5, 3), (3, 5)]))
    optimizer = optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate))
    look = lambda now: (balances(now.params), balances(jax.tree.map(lambda g: rate * g, now.grads)))  # noqa: E731
    kept, pushed = flow.run(sentence, w, optimizer, 500, data=(x,), observe=look, at=1).seen
    for k, push in jax.tree.map(np.asarray, list(zip(kept, pushed, strict=True))):
        said = k[0]
        for p in push[:-1]:
            said = (1 - rate * decay) ** 2 * said + p
        np.testing.assert_allclose(k[-1], said, atol=EXACT)
        np.testing.assert_allclose(k[-1], k[0] * math.exp(-2 * decay * rate * 500), atol=0.01 * small(k[0]))
        assert small(k[-1]) < 0.7 * small(k[0])


@pytest.mark.structure
@pytest.mark.parametrize("mapped", [(0, 0), (None, 0), (0, None)], ids=["starts and rates", "rates", "starts"])
def test_runs_are_mapped_over_an_explicit_mesh(mapped):
    """Whatever differs between runs, from the start or only through the optimiser: none of it is known to the loop."""
    mesh = jax.make_mesh((4,), ("runs",), axis_types=(AxisType.Explicit,))
    start, rates = normal(4, 3, dtype=np.float32), np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    given = [x if axis == 0 else x[0] for x, axis in zip((start, rates), mapped, strict=True)]

    @jax.jit
    @partial(jax.vmap, in_axes=mapped)
    def runs(x, rate):
        path = flow.run(lambda x: jnp.sum(x**2) / 2, x, optax.adam(rate), 5, at=2, track=lambda update: update)
        return path.params, path.loss, path.sums, path.broke

    want = runs(*given)
    with jax.set_mesh(mesh):
        found = runs(*(jax.device_put(x, P("runs")) if axis == 0 else x for x, axis in zip(given, mapped, strict=True)))
    assert found[0].sharding.is_equivalent_to(NamedSharding(mesh, P("runs")), 2)
    assert_same(found, want)
