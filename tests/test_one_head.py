"""What attention promises, whichever way it is computed: each promise in value, gradient and tangent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, Dv, S, T, assert_close, eps, normal, pairs, positions, qkv
from _oracles import bounds, definition, derivatives, inputs, ours, steps, weigh

import jattn
from jattn import masks, reference, scores
from jattn.engine import tuning


def alibi(x, t, s):
    return x - 0.3 * jnp.abs(t - s).astype(x.dtype)


# Exactness.


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("seen", ["all", "causal", "window, lengths, score"])
def test_in_float64_it_is_the_definition_to_second_order(seen):
    mask, score = {
        "all": (None, None),
        "causal": (masks.causal(), None),
        "window, lengths, score": (masks.window(4, 1) & ~masks.lengths(q=3) | masks.lengths(k=2), alibi),
    }[seen]
    places = positions()
    allowed = None if mask is None else jax.jit(lambda: masks.to_dense(mask, T, S, **places))()
    got = derivatives(ours(mask=mask, score=score, **places))(**inputs())
    want = derivatives(definition(mask=allowed, score=score, **places))(**inputs())
    assert_close(got["value"], want["value"], ulps=8)
    assert_close(got, want, ulps=64, scale=16)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "f", [jattn.attention, lambda *x, **how: jattn.statistics(*x[:2], **how).entropy], ids=["out", "entropy"]
)
def test_a_mask_may_be_made_of_what_is_differentiated(f):
    """Such as a router's logits: a comparison has the derivative 0, as of booleans in an array."""
    q, k, v = qkv()

    def both(dense):
        at = {"q_positions": np.arange(T), "k_positions": np.arange(S)}

        def total(w):
            routed = jnp.tanh(k @ w)
            few = (routed > -0.1)[None] | jnp.eye(T, S, dtype=bool)
            mask = few if dense else masks.where(lambda t, s: (routed[s] > -0.1) | (t == s))
            return jnp.sum(jnp.sin(f(q * w[None], k, v, mask=mask, **at)))

        return jax.jit(lambda w: (jax.grad(total)(w), jax.hessian(total)(w)))(np.linspace(0.5, 1.5, D))

    assert_close(both(dense=False), both(dense=True), ulps=64)


def test_a_rate_in_16_bits_drops_what_the_same_rate_in_32_bits_does():
    x, key = jnp.zeros((64, 1)), jax.random.key(0)
    for dtype in (jnp.bfloat16, jnp.float16):
        rate = jnp.asarray(0.1, dtype)
        got, want = (
            jattn.attention(x, x, jnp.eye(64), dropout_rate=r, dropout_key=key) for r in (rate, jnp.float32(rate))
        )
        np.testing.assert_array_equal(got, want)


@pytest.mark.usefixtures("x64")
def test_dropout_drops_the_same_pairs_in_every_dtype():
    def kept(dtype, rate):
        x, eye = jnp.zeros((64, 1), dtype), jnp.eye(64, dtype=dtype)
        return jattn.attention(x, x, eye, dropout_rate=rate, dropout_key=jax.random.key(0)) > 0

    with jax.enable_x64(False):
        want = kept("float32", 0.3)
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        for rate in (0.3, np.float32(0.3), np.float64(0.3)):
            np.testing.assert_array_equal(kept(dtype, rate), want)


@pytest.mark.parametrize(("rate", "wide"), [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64")])
def test_what_dropout_keeps_is_divided_in_the_dtype_of_the_arithmetic_whatever_that_of_the_rate(rate, wide):
    with jax.enable_x64(True):
        share, x = jnp.asarray(0.3, rate), jnp.zeros((32, 4), wide)
        kept = jattn.attention(x, x, jnp.eye(32, dtype=wide), dropout_rate=share, dropout_key=jax.random.key(0))
        want = 1 / (32 * (1 - np.float64(share)))
        assert abs(np.float64(kept.max()) / want - 1) <= 4 * np.finfo(wide).eps


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_the_derivative_of_a_rate_of_dropout_is_that_of_the_division():
    """Of f/(1 − r): f/(1 − r)², and of a rate beside q in what is differentiated."""
    q, k, v = qkv()

    def out(q, rate):
        return jnp.sum(jattn.attention(q, k, v, dropout_rate=rate, dropout_key=jax.random.key(0)))

    @jax.jit
    def found(q, rate):
        first = jax.grad(out, (0, 1))(q, rate)
        return out(q, rate), first, jax.jvp(out, (q, rate), (q, 1.0))[1], jax.grad(jax.grad(out, 1), 1)(q, rate)

    value, (dq, slope), tangent, second = found(q, 0.3)
    assert_close(slope, value / 0.7, ulps=8)
    assert_close(second, 2 * value / 0.49, ulps=8)
    assert_close(tangent, jnp.vdot(dq, q) + slope, ulps=16)
    fixed = jax.jit(jax.grad(lambda q: out(q, 0.3)))(q)
    assert_close(dq, fixed, ulps=8)  # two programs, which a GPU computes in an order of its own each


@pytest.mark.structure
@pytest.mark.parametrize("how", [{}, {"tile": (16, 16)}])
def test_values_without_a_width_leave_lse_and_its_gradient(how):
    q, k = (normal(2, 3, n, D, seed=n, dtype=np.float32) for n in (40, 24))

    def lse(v):
        one = lambda q, k, v: jattn.attention(q, k, v, return_lse=True, **how)  # noqa: E731
        each = jax.vmap(jax.vmap(one))
        return jax.jit(jax.value_and_grad(lambda q: jnp.sum(jnp.sin(each(q, k, v)[1]))))(q), each(q, k, v)[0].shape

    (got, shape), (want, _) = lse(k[..., :0]), lse(k)
    assert shape == (2, 3, 40, 0)
    assert_close(got, want, ulps=16)


def test_rows_of_the_weights_are_counted_from_the_end_where_they_are_negative():
    q, k, _ = qkv(dtype=np.float32)
    mask = masks.lengths(q=T - 1)
    lse = jattn.attention(q, k, k, mask=mask, return_lse=True)[1]
    got, want = (jattn.weights_of(q, k, lse, np.array(rows), mask=mask) for rows in ([-1, -2], [T - 1, T - 2]))
    np.testing.assert_array_equal(got, want)


@pytest.mark.structure
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_rows_of_the_weights_may_be_counted_in_a_narrow_dtype(dtype):
    q, k, _ = qkv(T=300, dtype=np.float32)
    lse = jattn.attention(q, k, k, return_lse=True)[1]
    rows = np.array([3, 100 if dtype == np.uint8 else -2], dtype)
    chosen = jax.jit(lambda q: jattn.weights_of(q, k, lse, rows))(q)  # which are known inside jit too
    np.testing.assert_allclose(chosen, jattn.weights_of(q, k, lse)[rows.astype(int)], rtol=1e-5)


@pytest.mark.structure
def test_a_traced_row_that_is_not_there_has_no_weights_of_another():
    q, k, _ = qkv(dtype=np.float32)
    lse = jattn.attention(q, k, k, return_lse=True)[1]
    rows = np.array([0, -1, T - 1, -T, T, -T - 1, -2 * T, 2**31 - 1])
    got = jax.jit(lambda rows: jattn.weights_of(q, k, lse, rows))(rows)
    np.testing.assert_allclose(got[:4], jattn.weights_of(q, k, lse, rows[:4]), rtol=1e-5)
    assert np.isnan(got[4:]).all()


@pytest.mark.structure
@pytest.mark.parametrize("rows", [None, np.zeros(0, np.int32)], ids=["all", "none"])
def test_without_queries_there_are_no_weights(rows):
    q, k, _ = qkv(dtype=np.float32)
    got = jattn.weights_of(q[:0], k, q[:0, 0], rows, mask=masks.lengths(k=3), bias=np.zeros((0, len(k)), np.float32))
    assert (got.shape, got.dtype) == ((0, len(k)), jnp.float32)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_the_weights_are_as_exact_as_their_lse():
    """Wider values make the arithmetic wider, and with it lse."""
    q, k, v = qkv()
    q, k = q.astype(np.float32), k.astype(np.float32)
    out, lse = jattn.attention(q, k, v, return_lse=True)
    with jax.numpy_dtype_promotion("strict"):
        weights = jattn.weights_of(q, k, lse)
    assert_close(weights @ v, out, ulps=64)


HALF = 2.0**-8
"""In bfloat16 two roundings of a number: of what is summed, and of the sum."""


@pytest.mark.structure
@pytest.mark.parametrize(
    ("score", "rows", "how"),
    [
        pytest.param(scores.distance_bias, 300, {"tile": (16, 16)}, id="a table"),
        pytest.param(scores.distance_bias, 300, {"implementation": "interpret"}, id="a table, in kernels"),
        pytest.param(
            lambda x: lambda score, t, s: score * x[3].astype(score.dtype), 1000, {"tile": (16, 16)}, id="any"
        ),
    ],
)
def test_the_gradient_of_what_a_score_captures_in_half_precision_is_summed_in_float32(score, rows, how):
    """Over tiles and distances. A sum in bfloat16 stands still where a term is less than 1/256 of it."""
    q, k, v = (jnp.asarray(normal(rows, 8, seed=n), jnp.bfloat16) for n in range(3))
    table = jnp.asarray(np.linspace(-1, 1, 11), jnp.bfloat16)

    def gradient(table):
        f = lambda table: jnp.sum(jattn.attention(q, k, v, score=score(table), **how).astype(jnp.float32) ** 2)  # noqa: E731
        return np.asarray(jax.jit(jax.grad(f))(table), np.float32)

    got, want = gradient(table), gradient(table.astype(jnp.float32))
    assert np.abs(got - want).max() <= HALF * np.abs(want).max()


@pytest.mark.structure
def test_a_sum_over_many_examples_in_half_precision_is_rounded_once(monkeypatch):
    """What examples share, where each is a group of its own: 300 times the cotangent of one."""
    monkeypatch.setattr(tuning, "group_bytes", lambda platform: 1)
    q, k = (jnp.asarray(normal(n, 8, seed=n), jnp.bfloat16) for n in (20, 24))
    every = jnp.broadcast_to(q, (300, *q.shape))

    def total(k, cap):
        one = lambda q: jattn.attention(q, k, k, score=scores.soft_cap(cap))  # noqa: E731
        return jnp.sum(jax.vmap(one)(every).astype(jnp.float32) ** 2)

    def slope(k, cap):
        return jax.grad(total)(k, cap).astype(jnp.float32).sum()

    cap = jnp.bfloat16(1.5)
    for gradient in (jax.grad(total, (0, 1)), jax.grad(slope, (0,))):
        wide = k.astype(jnp.float32), cap.astype(jnp.float32)
        for got, want in zip(jax.jit(gradient)(k, cap), jax.jit(gradient)(*wide), strict=True):
            got, want = (np.asarray(a, np.float32) for a in (got, want))
            assert np.abs(got - want).max() <= 2 * HALF * np.abs(want).max()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("dtype", "of_values", "of_gradients"),
    [(jnp.float64, 8, 8), (jnp.float32, 8, 8), (jnp.bfloat16, 0.75, 1), (jnp.float16, 0.75, 1)],
)
def test_the_error_is_a_few_roundings_and_of_half_precision_one(dtype, of_values, of_gradients):
    """Against float64, from inputs that the dtype holds exactly, in eps times the componentwise bound."""
    *x, dout = (a.astype(dtype) for a in (*qkv(), normal(T, Dv, seed=5)))

    @jax.jit
    def both(q, k, v):
        (out, lse), pull = jax.vjp(lambda *x: jattn.attention(*x, return_lse=True), q, k, v)
        return out, lse, pull((dout, jnp.zeros_like(lse)))

    out, lse, (dq, dk, dv) = both(*x)
    assert out.dtype == dtype
    assert lse.dtype == (jnp.float64 if dtype == jnp.float64 else jnp.float32)
    want, bound = bounds(*(np.asarray(a, np.float64) for a in (*x, dout)))
    assert_close(out, want["out"], ulps=of_values, scale=bound["out"])
    assert_close(lse, want["lse"], ulps=8, scale=bound["lse"])
    for name, got in {"q": dq, "k": dk, "v": dv}.items():
        assert got.dtype == dtype
        assert_close(got, want[name], ulps=of_gradients, scale=bound[name])


@pytest.mark.structure
def test_the_output_has_the_dtype_of_v():
    q, k, v = (jnp.asarray(x, jnp.float32) for x in qkv())
    for a in (jnp.float16, jnp.bfloat16, jnp.float32):
        for b in (jnp.float16, jnp.bfloat16, jnp.float32):
            f = lambda q, k, v: jattn.attention(q, k, v, return_lse=True)  # noqa: E731
            out, lse = jax.eval_shape(f, q.astype(a), k.astype(a), v.astype(b))
            assert (out.dtype, lse.dtype) == (b, jnp.float32)


# What is masked does not exist.


def hidden():
    """No query may attend keys 3 and 8, and query 5 no key; as booleans."""
    allowed = pairs()
    allowed[:, [3, 8]] = False
    allowed[5] = False
    return allowed


BY = {
    "booleans": hidden(),
    "dense": masks.dense(hidden()),
    "algebra": masks.dense(hidden()) & masks.lengths(k=S) & ~masks.lengths(q=0),
}


@pytest.mark.parametrize(
    ("by", "score"),
    [
        pytest.param("booleans", None, marks=pytest.mark.structure),
        pytest.param("dense", alibi, marks=pytest.mark.structure),
        ("algebra", alibi),
    ],
)
def test_a_nan_or_an_infinity_behind_a_mask_reaches_nothing(by, score):
    """In q, k, v and bias; to second order; and the hidden have no derivative."""
    clean = {name: np.asarray(x, np.float32) for name, x in inputs().items()}
    dirty = {name: x.copy() for name, x in clean.items()}
    for x in (clean, dirty):
        x["k"][[3, 8]] = x["v"][[3, 8]] = x["q"][5] = 0
        x["bias"] = np.where(hidden(), x["bias"], 0).astype(np.float32)
    dirty["k"][3], dirty["k"][8] = np.nan, np.inf
    dirty["v"][3, 1], dirty["v"][8] = -np.inf, np.nan
    dirty["q"][5, 2] = np.nan
    where = np.flatnonzero(~hidden())
    dirty["bias"].flat[where] = np.resize(np.float32([np.nan, np.inf, -np.inf, 3e38]), where.size)

    f = derivatives(ours(mask=BY[by], score=score, **positions()))
    got, want = f(**dirty), f(**clean)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(want))
    assert_close(got, want, ulps=8)
    for order in ("gradient", "tangent of the gradient", "gradient of the gradient"):
        d = got[order]
        for x in (d["k"][[3, 8]], d["v"][[3, 8]], d["q"][5], d["bias"][~hidden()]):
            np.testing.assert_array_equal(x, 0)


def test_a_nan_that_is_attended_stays_in_the_rows_that_attend_it():
    q, k, v = qkv(dtype=np.float32)
    allowed = pairs()
    f = jax.jit(lambda q, k, v: jax.jvp(lambda q: jattn.attention(q, k, v, mask=allowed), (q,), (q,)))
    want, want_dot = map(np.asarray, f(q, k, v))
    for which in ("k", "v"):
        x = {"q": q, "k": k.copy(), "v": v.copy()}
        x[which][4, 0] = np.nan
        out, out_dot = map(np.asarray, f(*x.values()))
        attend = allowed[:, 4]
        assert attend.any()
        assert not attend.all()
        assert np.isnan(out[attend]).any(1).all()
        assert_close((out[~attend], out_dot[~attend]), (want[~attend], want_dot[~attend]), ulps=8)


definition_of = jax.jit(reference.attention)


@pytest.mark.parametrize("nonfinite", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("how", ["one tile", "tiles", "few queries", "a mask that allows all", "bias"])
def test_what_is_not_finite_and_attended_makes_the_row_nan_whatever_the_tiles(how, which, nonfinite):
    x = dict(zip("qkv", qkv(T=40, S=40, dtype=np.float32), strict=True))
    x[which][3, 1] = nonfinite
    want = definition_of(*x.values())
    options = {
        "tiles": {"tile": (16, 16)},
        "a mask that allows all": {"mask": np.ones((40, 40), bool)},
        "bias": {"bias": np.zeros((40, 40), np.float32)},
    }.get(how, {})
    chosen = slice(2, 5) if how == "few queries" else slice(None)
    got = jattn.attention(x["q"][chosen], x["k"], x["v"], return_lse=True, **options)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b[chosen]))
    assert np.isnan(got[0]).any()


# Queries without keys, and lengths of nothing and of one.


@pytest.mark.parametrize(
    "how", ["bias", *(pytest.param(n, marks=pytest.mark.structure) for n in ("lengths", "booleans", "no keys"))]
)
def test_a_query_without_keys_gives_zeros_and_has_no_gradient(how):
    x = {name: np.asarray(a, np.float32) for name, a in inputs(S=0 if how == "no keys" else S).items()}
    del x["sink"]
    alone = np.arange(T) == 5
    mask = {"booleans": ~alone[:, None], "lengths": masks.lengths(q=5)}.get(how)
    dead = {"lengths": np.arange(T) >= 5, "no keys": np.ones(T, bool)}.get(how, alone)
    if how == "bias":
        x["bias"][alone] = -np.inf
    got = derivatives(ours(mask=mask))(**x)
    out, lse = got["value"]
    np.testing.assert_array_equal(out[dead], 0)
    np.testing.assert_array_equal(lse, np.where(dead, -np.inf, lse))
    assert np.isfinite(lse[~dead]).all()
    for out_or_lse in got["tangent"]:
        np.testing.assert_array_equal(out_or_lse[dead], 0)
    for order in ("gradient", "tangent of the gradient", "gradient of the gradient"):
        assert all(np.isfinite(d).all() for d in got[order].values())
        np.testing.assert_array_equal(got[order]["q"][dead], 0)
        np.testing.assert_array_equal(got[order]["bias"][dead], 0)
    if how != "no keys":
        assert (got["gradient"]["q"][~dead] != 0).any()  # the others are alive
    if dead.all():
        assert got["gradient"]["scale"] == 0


@pytest.mark.structure
@pytest.mark.parametrize("tile", [None, (16, 16)], ids=["one tile", "tiles"])
def test_a_bias_of_infinity_gives_its_keys_all_the_weight_in_equal_shares(tile):
    x = {name: np.asarray(a, np.float32) for name, a in inputs().items()}
    x["bias"][3, 2] = x["bias"][5, 0] = x["bias"][5, S - 1] = np.inf
    out, lse = ours(tile=tile)(**x)
    np.testing.assert_array_equal(out[3], x["v"][2])
    assert_close(out[5], (x["v"][0] + x["v"][-1]) / 2, ulps=4)
    np.testing.assert_array_equal(np.isposinf(lse), np.isin(np.arange(T), (3, 5)))
    got = jax.grad(lambda x: (ours(tile=tile)(**x)[0] ** 2).sum())(x)
    np.testing.assert_array_equal(got["bias"][3], 0)
    assert all(np.isfinite(d).all() for d in got.values())


@pytest.mark.structure
def test_a_query_with_a_sink_and_no_key_gives_zeros_and_the_sink():
    x = {name: np.asarray(a, np.float32) for name, a in inputs().items()}
    got = derivatives(ours(mask=np.zeros((1, 1), bool)))(**x)
    out, lse = got["value"]
    np.testing.assert_array_equal(out, 0)
    assert_close(lse, x["sink"], ulps=2)
    for name, d in got["gradient"].items():
        if name != "sink":
            np.testing.assert_array_equal(d, 0)
    assert_close(got["tangent"][1], np.cos(np.arange(T)), ulps=4)  # the tangent of the sink itself


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "shape",
    [
        {"S": 0},
        {"T": 0},
        {"T": 0, "S": 0},
        {"T": 1, "Dv": 1},
        {"S": 1},
        {"D": 1},
        {"T": 1, "S": 1, "D": 1, "Dv": 1},
    ],
    ids=str,
)
def test_every_size_has_an_answer_and_its_derivatives(shape):
    x = inputs(**shape)
    got, want = derivatives(ours())(**x), derivatives(definition())(**x)
    assert_close(got, want, ulps=64, scale=16)
    out, lse = got["value"]
    assert out.shape == (shape.get("T", T), shape.get("Dv", Dv))
    assert lse.shape == (shape.get("T", T),)


@pytest.mark.structure
def test_values_without_columns_give_an_output_without_columns():
    q, k, v = qkv(Dv=1, dtype=np.float32)
    out, lse = jax.jit(lambda *x: jattn.attention(*x, return_lse=True))(q, k, v[:, :0])
    assert out.shape == (T, 0)
    assert lse.shape == (T,)


# Huge logits.


def spelled(size, D, score, bias):
    """Whole-number logits times `size`: query 0 prefers key 2, query 1 keys 1 and 4 alike, query 2 key 0."""
    k = np.zeros((5, D), np.float32)
    k[:, 0] = [-3, 2, 3, 1, 2]
    q = np.zeros((3, D), np.float32)
    q[:, 0] = [1, 1, -1]
    if D > 1:
        k[2, 1] = 7
        q[1, 1] = -1
    else:
        k[2] = 0.5
        q[0] = 0.25
    winners = [[2], [1, 4], [0]] if D > 1 else [[1, 4], [1, 4], [0]]
    root = np.float32(np.sqrt(size / 16))
    fixed = {"score": score, "bias": None if bias is None else np.full((3, 5), bias, np.float32)}
    return q * root, k * root, normal(5, Dv, dtype=np.float32), winners, fixed


@pytest.mark.parametrize(
    ("size", "width", "kind"),
    [
        (1e10, 3, "bare"),
        (1e10, 3, "multiplying score"),
        (3e38, 1, "scale"),
        (3e38, 1, "bias"),
        (3e38, 1, "multiplying score"),
        pytest.param(1e10, 3, "scale", marks=pytest.mark.exhaustive),
        pytest.param(1e10, 3, "bias", marks=pytest.mark.exhaustive),
        pytest.param(3e38, 1, "bare", marks=pytest.mark.exhaustive),
    ],
)
def test_huge_logits_choose_their_key_jitted_and_not(size, width, kind):
    """XLA may fuse dot · scale − max into one multiply-add, and then the largest misses its own maximum."""
    score = {"multiplying score": lambda x, t, s: x * jnp.float32(0.7)}.get(kind)
    q, k, v, winners, fixed = spelled(size, width, score, 0.5 if kind == "bias" else None)
    dout = normal(3, Dv, seed=4, dtype=np.float32)
    scale = np.float32({"scale": 1.1}.get(kind, 0.9))

    def f(q, k, v, scale):
        scale = None if kind == "bare" else scale
        (out, lse), pull = jax.vjp(lambda *x: jattn.attention(*x, scale=scale, return_lse=True, **fixed), q, k, v)
        _, (out_dot, _) = jax.jvp(lambda v: jattn.attention(q, k, v, scale=scale, return_lse=True, **fixed), (v,), (v,))
        return out, out_dot, pull((dout, jnp.zeros_like(lse))), lse

    p = np.zeros((3, 5), np.float32)
    for t, s in enumerate(winners):
        p[t, s] = 1 / len(s)
    c = {"bare": width**-0.5, "multiplying score": 0.9 * 0.7}.get(kind, scale)
    logits = c * (q.astype(np.float64) @ k.T.astype(np.float64))
    assert 0.02 * size < np.abs(logits).max() < 3.4e38
    a = dout @ v.T
    ds = p * (a - (p * a).sum(1, keepdims=True))
    for g in (f, jax.jit(f)):
        out, out_dot, (dq, dk, dv), lse = g(q, k, v, scale)
        assert_close((out, out_dot), (p @ v, p @ v), ulps=8)
        assert_close(lse, logits.max(1), ulps=8)
        assert_close(dv, p.T @ dout, ulps=8)
        big = np.float32(c) * np.abs(k).max()
        assert_close(dq, c * (ds.astype(np.float64) @ k), ulps=16, scale=big)
        assert_close(dk, c * (ds.T.astype(np.float64) @ q), ulps=16, scale=big)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_logits_of_ten_thousand_in_every_dtype_jitted_and_not(dtype):
    q, k, v = (x.astype(dtype) for x in qkv())
    q, k = q * dtype(130), k * dtype(130)
    f = lambda q, k, v: jattn.attention(q, k, v, return_lse=True)  # noqa: E731
    with jax.enable_x64(True):
        (_, x, p, want), lse = steps(*(np.asarray(a, np.float64) for a in (q, k, v)))
        assert np.abs(x).max() > 1e4
        size = np.asarray(D**-0.5 * np.abs(np.asarray(q, np.float64)) @ np.abs(np.asarray(k, np.float64)).T)
        wrong = eps(jnp.float32) * size.max()  # of a logit, and so of a weight relative to itself
    for g in (f, jax.jit(f)):
        got, got_lse = g(q, k, v)
        unit = 0.75 * eps(dtype) + 8 * wrong
        assert_close(got, want, ulps=unit / eps(dtype), scale=np.asarray(p) @ np.abs(np.asarray(v, np.float64)))
        assert_close(got_lse, lse, ulps=8, scale=size.max())


def test_float16_to_its_limit_runs_under_jit():
    q, k, v = (x.astype(np.float16) for x in spelled(16.0, 3, None, None)[:3])
    q, k = (x / np.abs(x).max() * np.float16(6e4) for x in (q, k))

    @jax.jit
    def both(*x):
        out, pull = jax.vjp(jattn.attention, *x)
        return out, out.sum(), pull(jnp.ones_like(out))

    out, *others = both(q, k, v)
    np.testing.assert_array_equal(out[0], v[2])
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in jax.tree.leaves((out, others)))


# The order of things.


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_scale_then_score_then_bias_then_mask_then_sink():
    q, k, v = qkv(T=1, S=4, D=2, Dv=3)
    scale, bias, sink, mask = 1.7, np.array([[0.9, -0.4, 0.3, 2.0]]), 1.25, np.array([[True, True, True, False]])
    cap, hide = (lambda x: np.tanh(x)), (lambda x: np.where(mask, x, -np.inf))
    dot = q @ k.T

    def finish(logits, sink=sink):
        total = np.exp(logits).sum() + np.exp(sink)
        return np.exp(logits) / total @ v, np.log(total)[None]

    options = {"scale": scale, "bias": bias, "sink": sink, "mask": mask, "score": lambda x, t, s: jnp.tanh(x)}
    f = jax.jit(lambda q, k, v: jattn.attention(q, k, v, return_lse=True, **options))
    out, lse = f(q, k, v)
    assert_close((out, lse), finish(hide(cap(scale * dot) + bias)), ulps=8)
    others = {
        "score before scale": finish(hide(scale * cap(dot) + bias)),
        "bias before score": finish(hide(cap(scale * dot + bias))),
        "bias before scale": finish(hide(cap(scale * (dot + bias)))),
        "mask before score": finish(np.maximum(cap(hide(scale * dot)), -1) + bias),
        "no mask": finish(cap(scale * dot) + bias),
        "sink before score": finish(hide(cap(scale * dot) + bias), np.tanh(sink)),
        "sink scaled": finish(hide(cap(scale * dot) + bias), scale * sink),
        "no sink": finish(hide(cap(scale * dot) + bias), -np.inf),
    }
    for name, (other, other_lse) in others.items():
        assert np.abs(other - out).max() > 1e-3, name
        assert np.abs(other_lse - lse).max() > 1e-3, name


def test_the_scale_is_one_over_the_root_of_the_width_unless_given():
    q, k, v = qkv(dtype=np.float32)
    f = jax.jit(jattn.attention)
    assert_close(f(q, k, v), f(q, k, v, scale=np.float32(D**-0.5)), ulps=2)
    assert_close(f(q, k, v, scale=np.float32(1)), jax.jit(lambda *x: jattn.attention(*x, scale=1))(q, k, v), ulps=2)
    assert_close(f(q, k, v, scale=np.float32(0)), np.broadcast_to(v.mean(0), (T, Dv)), ulps=8)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_the_gradient_of_lse_is_the_weights():
    q, k, v = qkv()
    bias = normal(T, S, seed=7)
    dbias = jax.jit(jax.grad(lambda b: jattn.attention(q, k, v, bias=b, return_lse=True)[1].sum()))(bias)
    assert_close(dbias, jattn.explain(q, k, v, bias=bias).weights, ulps=8)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_a_score_may_close_over_arrays_and_has_its_gradient():
    q, k, v = qkv()
    places = positions()

    def dense_bias(table):
        t, s = places["q_positions"][:, None], places["k_positions"][None, :]
        return table[np.abs(t - s)]

    def by_score(table):
        score = lambda x, t, s: x + table[jnp.abs(t - s)]  # noqa: E731
        return weigh(*jattn.attention(q, k, v, score=score, return_lse=True, **places))

    def by_bias(table):
        return weigh(*reference.attention(q, k, v, bias=dense_bias(table)))

    table = jnp.asarray(normal(T + S, seed=3))
    got, want = (jax.jit(jax.value_and_grad(f))(table) for f in (by_score, by_bias))
    assert_close(got, want, ulps=32)


# Positions.


@pytest.mark.structure
def test_where_lengths_differ_positions_must_be_given_to_what_looks_at_them():
    q, k, v = qkv(dtype=np.float32)
    causal, score = {"mask": masks.causal()}, {"score": alibi}
    message = "looks? at positions, so both sides must have them"
    for looks in (causal, score, {"mask": ~masks.window(1) | masks.lengths(k=2)}):
        for given in ({}, {"q_positions": np.arange(T)}, {"k_positions": np.arange(S)}):
            with pytest.raises(ValueError, match=message):
                jattn.attention(q, k, v, **looks, **given)
            with pytest.raises(ValueError, match=message):
                jattn.explain(q, k, v, **looks, **given)
    with pytest.raises(ValueError, match=message):
        jattn.attention(q, k[:T], v[:T], q_positions=np.arange(T), **causal)  # one side only
    for blind in ({"mask": masks.lengths(k=3)}, {"mask": pairs()}, {"score": lambda x, t, s: jnp.tanh(x)}):
        assert jax.eval_shape(lambda *x, o=blind: jattn.attention(*x, **o), q, k, v).shape == (T, Dv)


@pytest.mark.structure
def test_where_lengths_agree_both_count_from_zero():
    q, k, v = qkv(S=T, dtype=np.float32)
    places = {"q_positions": np.arange(T), "k_positions": np.arange(T)}
    f = jax.jit(lambda **o: jattn.attention(q, k, v, mask=masks.causal(), score=alibi, **o))
    np.testing.assert_allclose(f(), f(**places), rtol=0, atol=8 * np.finfo(np.float32).eps)


def test_only_the_distance_of_positions_counts():
    q, k, v = qkv(dtype=np.float32)

    @jax.jit
    def f(shift):
        places = {name: x + shift for name, x in positions().items()}
        return jattn.attention(q, k, v, mask=masks.causal(), **places)

    np.testing.assert_array_equal(f(0), f(1000))


# Explain.


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_explain_is_attention_step_by_step():
    q, k, v = qkv()
    mask, bias = masks.causal() & masks.lengths(q=T - 1), normal(T, S, seed=7)
    options = {"mask": mask, "bias": bias, "scale": 0.6, **positions()}
    steps = jax.jit(lambda *x: jattn.explain(*x, **options))(q, k, v)
    allowed = np.asarray(masks.to_dense(options["mask"], T, S, **positions()))
    assert_close(steps.scores, q @ k.T, ulps=8)
    np.testing.assert_array_equal(np.isfinite(steps.scaled), allowed)
    assert_close(steps.scaled, np.where(allowed, 0.6 * (q @ k.T) + options["bias"], -np.inf), ulps=8)
    assert_close(steps.weights, jattn.softmax(steps.scaled), ulps=8)
    assert_close(steps.weights.sum(1), (np.arange(T) < T - 1).astype(float), ulps=8)
    assert_close(steps.out, steps.weights @ v, ulps=8)
    assert_close(steps.out, jax.jit(lambda *x: jattn.attention(*x, **options))(q, k, v), ulps=8)


@pytest.mark.structure
def test_explain_is_a_pytree_through_jit_vmap_and_grad():
    q, k, v = (np.stack(x) for x in zip(*(qkv(seed, dtype=np.float32) for seed in range(3)), strict=True))
    batch = jax.jit(jax.vmap(jattn.explain))(q, k, v)
    assert isinstance(batch, jattn.Steps)
    assert [x.shape for x in batch] == [(3, T, S)] * 3 + [(3, T, Dv)]
    assert_close(jax.tree.map(lambda x: x[1], batch), jax.jit(jattn.explain)(q[1], k[1], v[1]), ulps=8)
    pull = jax.jit(jax.grad(lambda q: -jnp.log(jattn.explain(q, k[0], v[0]).weights[0, 2])))(q[0])
    p = np.asarray(batch.weights[0, 0])
    # Cross-entropy on one weight pulls q toward that key minus the attention-weighted mean key.
    assert_close(-pull[0], D**-0.5 * (k[0][2] - p @ k[0]), ulps=16)
    np.testing.assert_array_equal(pull[1:], 0)


# Refusals; the words are in test_messages.


@pytest.mark.structure
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_, np.complex64])
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_only_real_numbers_attend(which, dtype):
    x = dict(zip("qkv", qkv(dtype=np.float32), strict=True))
    x[which] = x[which].astype(dtype)
    with pytest.raises(TypeError, match=f"attention: {which} must be floating point"):
        jattn.attention(**x)


@pytest.mark.structure
def test_boolean_is_mask_and_real_is_bias():
    q, k, v = qkv(dtype=np.float32)
    with pytest.raises(TypeError, match="bias must be floating point"):
        jattn.attention(q, k, v, bias=pairs())
    with pytest.raises(TypeError, match="mask must be boolean"):
        jattn.attention(q, k, v, mask=normal(T, S, dtype=np.float32))
    same = [jax.jit(lambda m: jattn.attention(q, k, v, mask=m))(m) for m in (pairs(), masks.dense(pairs()))]
    np.testing.assert_array_equal(*same)


@pytest.mark.structure
def test_masks_and_biases_and_sinks_broadcast():
    q, k, v = qkv(dtype=np.float32)
    bias, mask, sinks = normal(T, S, seed=7, dtype=np.float32), pairs(), normal(T, seed=9, dtype=np.float32)
    f = jax.jit(jattn.attention)
    rows, columns, row, one = np.s_[:1], np.s_[:, :1], np.s_[0], np.s_[0, 0]
    for of_mask, of_bias, of_sink in ((rows, columns, rows), (columns, row, row), (row, rows, row), (one, one, rows)):
        given = {"mask": mask[of_mask], "bias": bias[of_bias], "sink": sinks[of_sink]}
        full = {n: np.broadcast_to(x, (T,) if n == "sink" else (T, S)) for n, x in given.items()}
        assert_close(f(q, k, v, **given), f(q, k, v, **full), ulps=4)
