"""Score modifiers: the published formulas, values that are mapped, and exact gradients."""

import math
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, Dv, S, T, assert_close, assert_same, normal, positions, qkv
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

import jattn
from jattn import masks, reference, scores
from jattn._diagonals import toeplitz
from jattn.engine import batching
from jattn.engine.forward import Forward
from jattn.engine.kernels.score import SeparatedScore
from jattn.engine.score import hoist_closure

TABLE, DISTANCES = normal(8, seed=3), normal(7, seed=4)
t, s = np.arange(T)[:, None], np.arange(S)[None, :]
x = normal(T, S, seed=5)


def t5(distance, n, most, both):
    """The bucket of T5 as it is published, in float64, nudged off the boundaries on which a logarithm may round."""
    n, side = (n // 2, n // 2 * (distance > 0)) if both else (n, 0)
    far = abs(distance) if both else max(-distance, 0)
    if far < n // 2:
        return side + far
    return side + min(n - 1, n // 2 + int(math.log(far / (n // 2)) / math.log(most / (n // 2)) * (n - n // 2) + 1e-9))


def buckets(n, most, both):
    return np.vectorize(lambda d: t5(int(d), n, most, both))(s - t)


# Each score, and what it makes of x: a new score is one line.
FORMULAS = {
    "soft_cap": (lambda: scores.soft_cap(3.0), lambda: 3 * np.tanh(x / 3)),
    "temperature": (lambda: scores.temperature(0.5), lambda: x / 0.5),
    "alibi": (lambda: scores.alibi(0.25), lambda: x - 0.25 * abs(t - s)),
    "relative_bias": (lambda: scores.relative_bias(TABLE, max_distance=9), lambda: x + TABLE[buckets(8, 9, True)]),
    "relative_bias, one side": (
        lambda: scores.relative_bias(TABLE, max_distance=11, bidirectional=False),
        lambda: x + TABLE[buckets(8, 11, False)],
    ),
    "distance_bias": (lambda: scores.distance_bias(DISTANCES), lambda: x + DISTANCES[np.clip(s - t, -3, 3) + 3]),
    "compose": (
        lambda: scores.compose(scores.alibi(1.0), scores.soft_cap(2.0)),
        lambda: 2 * np.tanh((x - abs(t - s)) / 2),
    ),
}


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", FORMULAS)
def test_a_score_is_its_formula_of_scalars_and_of_a_tile(name):
    """Of a tile of consecutive positions, of a transposed one, and of positions in no order."""
    score, formula = FORMULAS[name]
    score = jax.jit(jax.tree.map(jnp.asarray, score()))  # as its arrays arrive inside
    want = formula()
    by_pair = jax.jit(jax.vmap(jax.vmap(score, (0, None, 0)), (0, 0, None)))(x, t[:, 0], s[0])
    assert_close(by_pair, want, ulps=8)
    down, across = t.astype(np.int32), s.astype(np.int32)
    wide = np.concatenate([x, x]), np.concatenate([want, want])
    for (a, b), (rows, columns) in (
        ((x, want), (down, across)),
        ((x, want), (down[::-1], across[:, ::-1])),
        (wide, (np.concatenate([down, down]), across)),
    ):
        if rows.shape == down.shape and rows[0, 0] > 0:
            a, b = a[::-1, ::-1], b[::-1, ::-1]
        assert_close(score(a, rows, columns), b, ulps=8)
        assert_close(score(a.T, rows.T, columns.T), b.T, ulps=8)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("n", "m"), [(1, 5), (5, 1), (3, 4), (17, 16)])
def test_a_matrix_of_equal_diagonals_and_its_transpose(n, m):
    def matrix(diagonals):
        return toeplitz(diagonals, n)

    i, j = np.arange(n)[:, None], np.arange(m)[None, :]
    np.testing.assert_array_equal(matrix(jnp.arange(n + m - 1)), j - i + n - 1)
    x = normal(n, m)
    _, transpose = jax.vjp(matrix, np.zeros(n + m - 1))
    sums = np.array([np.trace(x, d) for d in range(1 - n, m)])
    assert_close(transpose(x)[0], sums, ulps=8)
    check_grads(lambda d: jax.vmap(matrix)(d) ** 3, (normal(2, n + m - 1),), order=3)


@pytest.mark.structure
@given(st.integers(1, 64), st.integers(1, 300), st.booleans())
def test_the_buckets_are_those_of_t5(n, more, both):
    n *= 4 if both else 2
    most = (n // 2 if both else n) // 2 + more
    distances = np.arange(-700, 700)
    got = np.asarray(scores.bucket(distances, n, max_distance=most, bidirectional=both))
    np.testing.assert_array_equal(got, [t5(int(d), n, most, both) for d in distances])
    assert set(got.tolist()) <= set(range(n))


@pytest.mark.structure
@pytest.mark.parametrize(("n", "most"), [(1000, 2**15), (256, 10**6), (32, 2**62)])
def test_buckets_of_t5_may_be_many_and_far(n, most):
    """Powers of their distances are beyond every float, or the distances beyond int32."""
    distances = np.array([*range(-700, 700, 7), 2**15 - 1, 2**15, -(10**6)])
    got = scores.bucket(distances, n, max_distance=most, bidirectional=True)
    np.testing.assert_array_equal(got, [t5(int(d), n, most, True) for d in distances])


def test_a_distance_beyond_int32_is_in_the_last_bucket_of_its_side():
    far = np.array([-(2**40), -(2**31), 2**31, 2**40])
    found = scores.bucket(far, 32, max_distance=128, bidirectional=True)
    np.testing.assert_array_equal(found, [15, 15, 31, 31])


@pytest.mark.structure
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("both", [True, False])
def test_the_buckets_of_narrow_and_unsigned_distances_are_those_of_their_values(dtype, both):
    distances = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    got = scores.bucket(distances, 32, max_distance=200, bidirectional=both)
    np.testing.assert_array_equal(got, [t5(int(d), 32, 200, both) for d in distances])


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [1 / 256]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (3, [1 / 16, 1 / 256, 1 / 4]),
        (12, [*(2.0**-h for h in range(1, 9)), *(2.0 ** -(h + 0.5) for h in range(4))]),
    ],
)
def test_the_slopes_are_the_published_ones(heads, slopes):
    np.testing.assert_allclose(scores.alibi_slopes(heads), slopes, rtol=1e-6)
    assert scores.alibi_slopes(heads).dtype == jnp.float32


def loss(f):
    return lambda *x: jnp.sum(jnp.sin(f(*x)))


MADE = {  # a score inside a function of what it learns
    "cap": (scores.soft_cap, np.float64(1.5)),
    "tau": (scores.temperature, np.float64(0.7)),
    "slope": (scores.alibi, np.float64(0.3)),
    "table": (lambda w: scores.relative_bias(w, max_distance=9), TABLE),
    "distances": (scores.distance_bias, DISTANCES),
    "several": (lambda w: scores.compose(scores.soft_cap(w[0] ** 2), scores.distance_bias(w)), DISTANCES),
    "a function": (lambda w: lambda score, t, s: score * w[0] + jnp.sin(w[(t - s) % 7]) * score**2, DISTANCES),
}


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.exhaustive) if n in ("tau", "slope", "distances") else n for n in MADE],
)
def test_a_gradient_of_a_function_that_builds_the_score_inside(name):
    """To what it captures, under jit and vmap; and one order further. (test_transforms has all orders.)"""
    make, w = MADE[name]
    q, k, v = qkv(T=41, S=41)

    def ours(w, q):
        return jattn.attention(q, k, v, score=make(w), mask=masks.causal(), tile=(16, 16))

    def dense(w, q):
        return reference.attention(q, k, v, score=make(w), mask=np.tri(41, dtype=bool))[0]

    def every(f):
        g = jax.grad(loss(f), (0, 1))
        several = jax.tree.map(lambda a: jnp.stack([a, a * 1.25]), w)
        return jax.jit(lambda: (jax.vmap(g, (0, None))(several, q), jax.jvp(g, (w, q), (w / 3, q / 3))))()

    assert_close(every(ours), every(dense), ulps=256, scale=30)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_numbers_agree_with_differences():
    q, k, v = qkv(T=T, S=T)
    f = jax.jit(lambda w: jattn.attention(q, k, v, score=scores.distance_bias(w)))
    check_grads(f, (DISTANCES,), order=2, atol=1e-5, rtol=1e-5, eps=1e-5)


def test_a_score_of_each_head_is_the_same_score_mapped():
    q, k, v = (normal(8, n, d, seed=i, dtype=np.float32) for i, (n, d) in enumerate(((T, D), (T, D), (T, Dv))))
    slopes = scores.alibi_slopes(8)
    head = lambda q, k, v, m: jattn.attention(q, k, v, score=scores.alibi(m))  # noqa: E731
    got = jax.vmap(head)(q, k, v, slopes)
    values = jax.vmap(lambda q, k, v, f: jattn.attention(q, k, v, score=f))(q, k, v, jax.vmap(scores.alibi)(slopes))
    assert_same(got, values)
    assert_close(got, jnp.stack([head(*x) for x in zip(q, k, v, slopes, strict=True)]), ulps=8)


@pytest.mark.structure
def test_heads_that_share_a_table_look_it_up_together():
    """On diagonals: what a head would be asked alone, if tiles follow its own, is computed of all pairs and unused."""
    x, table = jax.ShapeDtypeStruct((4, 1024, 8), np.float32), jax.ShapeDtypeStruct((9,), np.float32)

    def heads(x, table):
        return jax.vmap(lambda x: jattn.attention(x, x, x, score=scores.distance_bias(table)))(x)

    for f in (heads, jax.grad(lambda *a: heads(*a).sum(), (0, 1))):
        lines = jax.jit(f).lower(x, table).as_text().splitlines()
        found = [line for line in lines if "gather" in line and "512x512" in line]
        assert found
        assert not any("x512x512" in line for line in found)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_where_positions_have_gaps_the_far_path_is_taken():
    """Packed rows begin again in the middle of a tile."""
    q, k, v = qkv(T=41, S=41)
    at = np.arange(41, dtype=np.int32) % 23
    where = {"q_positions": at, "k_positions": at}
    for score in (scores.relative_bias(TABLE, max_distance=9), scores.distance_bias(DISTANCES)):
        got = jattn.attention(q, k, v, score=score, tile=(16, 16), **where)
        want = jax.jit(lambda score: reference.attention(q, k, v, score=score, **where)[0])(score)
        assert_close(got, want, ulps=64)


def test_scores_print_as_the_code_that_made_them():
    for score in (scores.soft_cap(30.0), scores.temperature(0.5), scores.alibi(0.25)):
        assert repr(eval(repr(score), vars(scores))) == repr(score)
    both = scores.compose(scores.soft_cap(2.0), scores.relative_bias(jnp.zeros(32)))
    assert repr(both) == "compose(soft_cap(2.0), relative_bias(float32[32], max_distance=128, bidirectional=True))"
    assert repr(scores.distance_bias(jnp.zeros(3))) == "distance_bias(float32[3])"


def test_a_score_is_a_pytree_whose_structure_is_hashable():
    for made in (scores.soft_cap, scores.alibi, scores.temperature):
        assert len(jax.tree.leaves(made(2.0))) == 1
        assert hash(jax.tree.structure(made(2.0))) == hash(jax.tree.structure(made(3.0)))
    one_number = [jax.tree.structure(made(2.0)) for made in (scores.soft_cap, scores.alibi, scores.temperature)]
    assert [[x == y for y in one_number] for x in one_number] == np.eye(3, dtype=bool).tolist()
    near, far = (scores.relative_bias(jnp.zeros(32), max_distance=n) for n in (100, 128))
    assert jax.tree.structure(near) != jax.tree.structure(far)


@pytest.mark.structure
def test_which_scores_look_at_positions():
    looks = [
        scores.alibi(1.0),
        scores.distance_bias(DISTANCES),
        scores.compose(scores.soft_cap(1.0), scores.alibi(1.0)),
    ]
    for score in looks:
        with pytest.raises(ValueError, match=r"^attention: score looks at positions"):
            jattn.attention(*qkv(), score=score)
        assert jattn.attention(*qkv(dtype=np.float32), score=score, **positions()).shape == (T, Dv)
    for score in (
        scores.soft_cap(1.0),
        scores.compose(),
        scores.compose(scores.temperature(2.0), scores.soft_cap(1.0)),
    ):
        assert jattn.attention(*qkv(dtype=np.float32), score=score).shape == (T, Dv)


@pytest.mark.structure
def test_functions_compose_with_scores():
    double = lambda score, t, s: 2 * score  # noqa: E731
    q, k, v = qkv(dtype=np.float32)
    got = jattn.attention(q, k, v, score=scores.compose(double, scores.soft_cap(1.0)))
    want = jax.jit(lambda *x: reference.attention(*x, score=lambda a, t, s: jnp.tanh(2 * a))[0])(q, k, v)
    assert_close(got, want, ulps=32)
    assert_same(jattn.attention(q, k, v, score=scores.compose()), jattn.attention(q, k, v))


def doubled(score, t, s):
    return 2 * score


@pytest.mark.structure
def test_functions_that_are_composed_are_pickled_as_each_of_them_is():
    q, k, v = qkv(dtype=np.float32)
    score = scores.compose(doubled, scores.compose(doubled), scores.soft_cap(1.0))
    got = jattn.attention(q, k, v, score=pickle.loads(pickle.dumps(score)))
    assert_same(got, jattn.attention(q, k, v, score=score))


@pytest.mark.structure
def test_a_score_may_return_a_python_number():
    """Alone, before another score, and as a kernel takes it: every weight is the same."""
    x = qkv(dtype=np.float32)
    one = lambda score, t, s: 1.0  # noqa: E731
    want = jax.jit(lambda *x: reference.attention(*x, score=one))(*x)
    for score in (one, scores.compose(one, scores.temperature(1.0))):
        assert_close(jattn.attention(*x, score=score, return_lse=True), want, ulps=8)
    at, tile = jnp.zeros((2, 3), jnp.int32), jnp.zeros((2, 3), jnp.float32)
    assert_same(SeparatedScore.of(hoist_closure(one, np.float32)[0])((), tile, at, at), tile + 1)


def compiled(call, *args):
    """How many programs calls of the engine compile."""
    call(*args[:1])
    before = batching.primitive._compiled._cache_size()
    for a in args[1:]:
        call(a)
    return batching.primitive._compiled._cache_size() - before


@pytest.mark.structure
@pytest.mark.parametrize(
    "make",
    [
        scores.soft_cap,
        lambda c: scores.alibi(c * 0.1),
        lambda c: scores.relative_bias(c * jnp.ones(8), max_distance=9),
        lambda c: scores.compose(scores.soft_cap(c), scores.temperature(c)),
        lambda c: lambda score, t, s: 3 * jnp.tanh(score / 3),
        lambda c: (lambda w: lambda score, t, s: score + w[(t - s) % 5])(c * jnp.ones(5)),
        lambda c: lambda score, t, s: jax.nn.softplus(score) * jax.lax.cond(t > s, jnp.sin, jnp.cos, jnp.float32(2)),
        lambda c: (lambda f: lambda score, t, s: f(score, t, s))(scores.alibi(jnp.float32(c))),
    ],
)
def test_a_score_that_is_written_anew_is_not_compiled_anew(make):
    q, k, v = qkv(T=T, S=T, dtype=np.float32)
    assert compiled(lambda c: jattn.attention(q, k, v, score=make(c)), 2.0, 3.0, 4.0) == 0
    assert compiled(lambda c: jax.grad(lambda q: jattn.attention(q, k, v, score=make(c)).sum())(q), 2.0, 3.0) == 0


def sloping(slope):
    return lambda score, t, s: score - slope * (t - s).astype(jnp.float32)


class Slope:
    """A function whose slope may be set: one object, another score."""

    a = 0.5

    def __call__(self, score, t, s):
        return sloping(self.a)(score, t, s)


@pytest.mark.structure
@pytest.mark.parametrize("jit", [lambda f: f, lambda f: jax.jit(lambda: f())], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "of",
    [
        lambda x, score: jattn.attention(*x, score=score),
        lambda x, score: jattn.statistics(*x[:2], score=score).lse,
        lambda x, score: jattn.top_keys(*x[:2], 2, score=score)[1],
        lambda x, score: jattn.attention(*x, mask=masks.where(lambda t, s: score(jnp.float32(1), t, s) > 0)),
        lambda x, score: jattn.attention(*x, score=scores.compose(score, scores.soft_cap(9.0))),
    ],
    ids=["attention", "statistics", "top keys", "mask", "composed"],
)
def test_one_function_may_mean_another_score_at_each_call(of, jit):
    x, kept = qkv(T=T, S=T, dtype=np.float32), Slope()
    for slope in (0.5, 5.0):
        kept.a = slope
        assert_close(jit(lambda: of(x, kept))(), of(x, sloping(slope)), ulps=8)


@pytest.mark.structure
def test_what_one_function_closes_over_has_the_gradient_of_each_call():
    """After an eager call too, and twice: no tracer of the first gradient is kept."""
    x, kept = qkv(T=T, S=T, dtype=np.float32), Slope()

    def loss(slope, score):
        kept.a = slope
        return jnp.sum(jattn.attention(*x, score=score) ** 2)

    loss(1.0, kept)
    want = jax.grad(loss)(2.0, lambda *at: kept(*at))
    assert want != 0
    for _ in range(2):
        assert_same(jax.grad(loss)(2.0, kept), want)


@pytest.mark.structure
def test_eager_attention_with_a_score_written_anew_is_not_traced_anew(monkeypatch):
    """Three calls trace the engine as often as one: for its program, and in some versions of JAX for its types too."""
    q, k, v = qkv(T=T, S=T, dtype=np.float32)
    forward, traced = Forward.__call__, []

    def call(cap):
        by = jnp.float32(cap)
        jattn.attention(q, k, v, score=lambda score, t, s: by * jnp.tanh(score / by))

    monkeypatch.setattr(Forward, "__call__", lambda self, *xs: traced.append(1) or forward(self, *xs))
    jax.clear_caches()
    call(2.0)
    jax.clear_caches()
    chex.clear_trace_counter()
    monkeypatch.setattr(Forward, "__call__", chex.assert_max_traces(forward, n=len(traced)))
    for cap in (2.0, 3.0, 4.0):
        call(cap)
    with pytest.raises(
        AssertionError, match=f"traced > {len(traced)} times"
    ):  # the control: another is another program
        jattn.attention(q, k, v, score=lambda score, t, s: jnp.tanh(score))


@pytest.mark.structure
@pytest.mark.parametrize(
    "make",
    [
        lambda c: lambda score, t, s: score * c,  # a number of the code, not an array
        lambda c: lambda score, t, s: score ** int(c),  # a parameter of an operation
        lambda c: lambda score, t, s: score + jnp.ones(int(c))[t % 2],
        lambda c: lambda score, t, s: jnp.sin(score) if c > 2 else jnp.cos(score),
        lambda c: lambda score, t, s: score + (t if c > 2 else s).astype(score.dtype),
        lambda c: scores.relative_bias(jnp.ones(8), max_distance=int(9 + c)),
    ],
)
def test_another_score_is_another_program(make):
    """The control: what differs in anything but the contents of arrays."""
    q, k, v = qkv(T=T, S=T, dtype=np.float32)
    assert compiled(lambda c: jattn.attention(q, k, v, score=make(c)), 2.0, 3.0) == 1
    results = [jattn.attention(q, k, v, score=make(c)) for c in (2.0, 3.0)]
    want = jax.jit(lambda: [reference.attention(q, k, v, score=make(c))[0] for c in (2.0, 3.0)])()
    assert_close(results, want, ulps=64)
