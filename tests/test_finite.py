"""Operands that are found finite, once a call, are attended without a search of each tile for what is not."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, normal
from _oracles import definition, weigh

import jattn
from jattn import cache, flow, masks, scores
from jattn._numerics import below, max_or_nan
from jattn.engine import schedule, tuning
from jattn.engine.attend import make_plan
from jattn.engine.batching import batched_call
from jattn.engine.forward import Forward
from jattn.engine.kernels import support
from jattn.engine.plan import Operands, all_finite

pytestmark = pytest.mark.structure
T, S, D, TILE = 40, 40, 5, (16, 16)
Q, K, V = (normal(T, D, seed=n) for n in range(3))
SOME = np.random.default_rng(3).random((T, S)) < 0.2
SOME[5] = SOME[17] = False  # queries without a key
SOME[33, :32] = False  # a query whose first key is in the last tile
CASES = {
    "full": {},
    "causal": {"mask": masks.causal()},
    "a window": {"mask": masks.window(left=3, right=2)},
    "traced lengths": {"mask": masks.lengths(20, np.int32(21))},
    "any pairs": {"mask": masks.dense(SOME)},
    "a bias": {"mask": masks.causal(), "bias": normal(T, S, seed=4)},
    "a soft cap": {"mask": masks.dense(SOME), "score": scores.soft_cap(2.0)},
    "a score and a sink": {"mask": masks.dense(SOME), "score": scores.soft_cap(2.0), "sink": np.float64(0.3)},
}
FORMS = {"searched": (False, 0), "finite, in loops": (True, 0), "finite, written out": (True, 99)}
"""Whether the form for finite operands is taken, and how many tiles may be written out."""


def attend(q, k, v, *, mask=None, score=None, bias=None, sink=None, finite=False):
    """(out, lse) of one form: as `engine.attend`, with the choice made beforehand."""
    plan, x = make_plan(Operands(q, k, v, bias, sink, mask=mask), score, TILE)
    leaves, tree = jax.tree.flatten(x)
    out, m, log_sum = batched_call(Forward(dataclasses.replace(plan, finite=finite), tree), *leaves)
    return out, m + log_sum


def orders(f):
    @jax.jit
    def run(*x):
        value, tangent = jax.jvp(f, x, tuple(map(jnp.cos, x)))
        return value, tangent, jax.grad(lambda *x: weigh(*f(*x)), (0, 1, 2))(*x)

    return run


SOME_CASES = ("a window", "any pairs", "a bias", "a soft cap", "a score and a sink")


@pytest.mark.parametrize(
    "case", [c if c in SOME_CASES else pytest.param(c, marks=pytest.mark.exhaustive) for c in CASES]
)
def test_each_form_is_the_definition_and_so_are_its_derivatives(case, x64, monkeypatch):
    options = CASES[case]
    mask = None if "mask" not in options else masks.to_dense(options["mask"], T, S)
    x = tuple(map(jnp.asarray, (Q, K, V)))
    want = orders(definition(**options | {"mask": mask}))(*x)
    for finite, tiles in FORMS.values():
        jax.clear_caches()
        for of in ("WRITTEN_OUT_TILES", "WRITTEN_OUT_TILES_OF_VALUE"):
            monkeypatch.setattr(tuning, of, tiles)
        got = orders(lambda *x, finite=finite: attend(*x, **options, finite=finite))(*x)
        assert_close(got, want, ulps=512)


def test_one_example_that_is_not_finite_changes_no_other(monkeypatch):
    """One program, which searches the tiles of all examples, or of none."""
    monkeypatch.setattr(tuning, "FEW_PAIRS", 0)
    monkeypatch.setattr(tuning, "tile_sizes", lambda T, S, platform=None: TILE)
    mask = masks.causal() & masks.lengths(k=35)
    heads = [np.stack([a] * 3).astype(np.float32) for a in (Q, K, V)]
    ours = jax.jit(jax.vmap(lambda *x: jattn.attention(*x, mask=mask, return_lse=True)))
    theirs = jax.jit(jax.vmap(definition(mask=masks.to_dense(mask, T, S))))
    seen, hidden, huge = (1, 20, 2), (1, 37, 2), 1e30
    for which, at, value in (
        (None, None, None),
        (0, seen, np.nan),
        (1, seen, np.inf),
        (1, hidden, np.nan),
        (2, seen, np.nan),
        (2, hidden, -np.inf),
        (0, seen, huge),
        (2, seen, huge),
    ):
        x = [a.copy() for a in heads]
        if which is not None:
            x[which][at] = value
        (out, lse), (want, want_lse) = ours(*x), theirs(*x)
        unit = np.where(np.isfinite(want), np.maximum(1, np.abs(want).max(-1, keepdims=True)), 1)
        assert_close(out, want, ulps=64, scale=unit)
        assert_close(lse, want_lse, ulps=64)


@pytest.mark.parametrize("rows", [T, 1000], ids=["few", "many"])
def test_finite_is_no_nan_no_infinity_and_no_product_that_overflows(rows):
    """Of few numbers and of many, of whose maximum XLA leaves out a NaN."""
    plan, x = make_plan(Operands(*(normal(rows, D, seed=n, dtype=np.float32) for n in range(3))), None, TILE)
    finite = jax.jit(lambda x: all_finite(plan, x))
    assert finite(x)
    for name, value in (
        *((name, value) for name in ("q", "k", "v") for value in (np.nan, np.inf, -np.inf)),
        ("q", 3e38),
        ("k", -1e38),
        ("v", 1e37),
    ):
        changed = np.array(getattr(x, name))
        changed[7, 1] = value
        assert not finite(x._replace(**{name: changed})), (name, value)
    assert not finite(x._replace(scale=np.float32(np.nan)))


@pytest.mark.parametrize(("cap", "small"), [(30.0, True), (1e10, False)])
def test_a_soft_cap_is_small_or_logits_are_compared_with_their_maximum(cap, small):
    """Of a multiply-add that XLA makes of cap · tanh − max, 1e10 would miss its maximum by hundreds."""
    q, k, v = (normal(600, D, seed=n, dtype=np.float32) for n in range(3))
    x = np.float32(cap / 3) * q, k, v
    plan, operands = make_plan(Operands(*x), scores.soft_cap(np.float32(cap)), None)
    assert bool(jax.jit(partial(all_finite, plan))(operands)) == small
    f = jax.jit(lambda cap, *x: jattn.attention(*x, score=scores.soft_cap(cap), return_lse=True))
    (out, lse), (want, want_lse) = (g(*x) for g in (partial(f, cap), definition(score=scores.soft_cap(cap))))
    assert_close(out, want, ulps=4096)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5)


CUT = 17


@pytest.mark.parametrize("tile", [TILE, None], ids=["tiles", "one tile"])
@pytest.mark.parametrize("which", [0, 1], ids="qk")
def test_a_query_or_key_that_is_not_finite_has_the_gradients_of_the_definition(which, tile):
    """Its logits are constants: it passes no cotangent on, to no key and to no bias, whatever the tiles."""
    mask = masks.segments((np.arange(T) >= CUT).astype(np.int32))
    dense = masks.to_dense(mask, T, S)
    x = tuple(normal(T, n, seed=n, dtype=np.float32) for n in (D, D, D, S))
    w = normal(T, D, seed=5, dtype=np.float32), normal(T, seed=6, dtype=np.float32)

    def orders(f):
        pull = lambda *x: jax.vjp(lambda q, k, v, bias, scale: f(bias=bias, scale=scale)(q, k, v), *x)[1](w)  # noqa: E731
        return jax.jit(lambda *x: (pull(*x), jax.jvp(pull, x, tuple(map(jnp.cos, x)))[1]))

    ours = orders(lambda **how: partial(jattn.attention, mask=mask, tile=tile, return_lse=True, **how))
    theirs = orders(partial(definition, mask=dense))
    for row in (2, CUT, T - 1):
        for value in (np.nan, -np.inf):
            changed = list(map(np.array, x))
            changed[which][row, 1] = value
            got, want = (f(*changed, np.float32(0.4)) for f in (ours, theirs))
            assert_close(got, want, ulps=512)
            assert np.isfinite(want[0][0]).any()


OTHERS = {  # of a document, by (q, k, v) of both: what it must not depend on the other for
    "value": lambda f, x: f(*x),
    "gradient": lambda f, x: gradient(f, x),
    "jvp": lambda f, x: jax.jvp(f, x, x)[1],
    "hvp": lambda f, x: jax.jvp(lambda *x: gradient(f, x), x, tuple(map(jnp.cos, x)))[1],
    "gradient of jvp": lambda f, x: jax.grad(lambda x: sum(jnp.sum(a**2) for a in jax.jvp(f, x, x)[1]))(x),
    "gradient of gradient": lambda f, x: jax.grad(lambda x: sum(jnp.sum(a[CUT:] ** 2) for a in gradient(f, x)))(x),
}


def gradient(f, x):
    """Of a loss that has a NaN of its own for each row that is NaN."""
    return jax.grad(lambda x: jnp.sum(f(*x)[0] ** 2) + jnp.sum(jnp.sin(f(*x)[1])))(x)


@pytest.mark.parametrize(
    ("order", "rows", "options"),
    [
        *(pytest.param(order, T, {"tile": TILE}, id=order) for order in OTHERS),
        pytest.param("value", 600, {}, id="value of many"),
        pytest.param("gradient", 600, {}, id="gradient of many"),
        pytest.param("gradient", T, {"implementation": "interpret"}, id="gradient in kernels"),
    ],
)
def test_what_one_document_holds_reaches_no_other(order, rows, options):
    """A NaN in a query, key or value that its own document attends: the next, in the same tile, is as if alone."""
    x = tuple(normal(rows, 8, seed=n, dtype=np.float32) for n in range(3))
    mask = masks.segments((np.arange(rows) >= CUT).astype(np.int32))
    f = lambda *x: jattn.attention(*x, mask=mask, return_lse=True, **options)  # noqa: E731
    run = jax.jit(lambda x: OTHERS[order](f, x))
    want = run(x)
    for which, value in itertools.product(range(3), (np.nan, -np.inf)):
        changed = list(map(np.array, x))
        changed[which][CUT - 2, 3] = value
        got = run(tuple(changed))
        assert any(not np.isfinite(a[:CUT]).all() for a in got)
        assert_close([a[CUT:] for a in got], [a[CUT:] for a in want], ulps=64)


IN_KERNELS = {"implementation": "interpret"}


@pytest.mark.parametrize("options", [{"tile": TILE}, {}, IN_KERNELS], ids=["tiles", "one tile", "kernels"])
def test_a_tangent_or_cotangent_that_is_not_finite_goes_through_the_logits_to_its_own_document(options):
    x = tuple(normal(T, 8, seed=n, dtype=np.float32) for n in range(3))
    f = partial(jattn.attention, mask=masks.segments((np.arange(T) >= CUT).astype(np.int32)), **options)
    pull, push = jax.jit(lambda w: jax.vjp(f, *x)[1](w)[:2]), jax.jit(lambda *xd: (jax.jvp(f, x, xd)[1],))
    for run, inputs, changed in ((pull, 1, 0), (push, 3, 0), (push, 3, 1)):
        clean = [normal(T, 8, seed=4 + n, dtype=np.float32) for n in range(inputs)]
        dirty = [*map(np.array, clean)]
        dirty[changed][CUT - 2, 3] = np.nan
        got, want = run(*dirty), run(*clean)
        assert all(np.isnan(a[:CUT]).any() for a in got)
        assert_close([a[CUT:] for a in got], [a[CUT:] for a in want], ulps=64)


padded = pytest.mark.parametrize(
    ("rows", "options", "kernel"),
    [
        pytest.param(T, {"tile": TILE}, None, id="tiles"),
        pytest.param(600, {}, None, id="many"),
        pytest.param(150, {"tile": (128, 128), **IN_KERNELS}, "tpu", id="kernels of the TPU"),
        pytest.param(100, {"tile": (64, 64), **IN_KERNELS}, "gpu", id="kernels of the GPU"),
    ],
)
"""Sizes that no tile divides."""


@padded
def test_rows_that_pad_the_last_tile_of_queries_attend_nothing(rows, options, kernel, monkeypatch):
    """A key that is hidden from every query, and that rows after the last would attend, may hold a NaN."""
    monkeypatch.setattr(support, "INTERPRETED", kernel)
    mask = ~masks.window(left=rows - 10, right=rows)  # the last query attends the keys before the ninth
    f = partial(jattn.attention, mask=mask, return_lse=True, **options)
    clean = [normal(rows, 16, seed=n, dtype=np.float32) for n in range(3)]
    dirty = [*map(np.array, clean)]
    clean[1][9:14] = 0
    dirty[1][9:14] = np.nan
    run = jax.jit(jax.grad(lambda x: weigh(*f(*x))))
    got, want = run(dirty), run(clean)
    assert_close(got, want, ulps=64)
    assert not got[2][9:].any()


@padded
def test_a_score_is_asked_of_no_place_where_no_row_stands(rows, options, kernel, monkeypatch):
    """It may have what is finite only there: looked up by query, by key and by distance, or computed of both."""
    monkeypatch.setattr(support, "INTERPRETED", kernel)
    f, ends = partial(jattn.attention, return_lse=True, **options), jnp.full(rows, rows)

    def loss(f, x):
        def score(score, t, s):
            of_query, of_key, of_distance = (jnp.log((ends[n] - n).astype(score.dtype)) for n in (t, s, jnp.abs(t - s)))
            of_both = jnp.log(rows - (t + s).astype(score.dtype) / 2)
            return x[3] * score * of_query + of_distance + of_both / (of_key + 9)

        return weigh(*f(*x[:3], score=score))

    x = [*(normal(rows, 16, seed=n, dtype=np.float32) for n in range(3)), np.float32(0.3)]
    got = jax.jit(jax.grad(partial(loss, f)))(x)
    with jax.enable_x64(True):
        want = jax.jit(jax.grad(partial(loss, definition())))([a.astype(np.float64) for a in x])
        assert_close(got, jax.tree.map(np.asarray, want), ulps=2**10, dtype=np.float32)


@padded
def test_a_score_may_have_no_derivative_at_zero(rows, options, kernel, monkeypatch):
    """A root, and a logarithm with a factor of its own: no product of a query and a key is 0, nor what pads them."""
    monkeypatch.setattr(support, "INTERPRETED", kernel)
    causal = masks.causal()
    ours = partial(jattn.attention, mask=causal, return_lse=True, **options)
    theirs = definition(mask=masks.to_dense(causal, rows, rows))

    def loss(f, x):
        def score(score, t, s):
            root = jnp.sqrt(jnp.abs(score))
            return jnp.where(score > 0, root, -root) + x[3] * jnp.log(root)

        return weigh(*f(*x[:3], score=score))

    x = [*(normal(rows, 16, seed=n, dtype=np.float32) for n in range(3)), np.float32(0.3)]
    got = jax.jit(jax.grad(partial(loss, ours)))(x)
    with jax.enable_x64(True):
        want = jax.jit(jax.grad(partial(loss, theirs)))([a.astype(np.float64) for a in x])
        want = jax.tree.map(np.asarray, want)
        assert all(np.isfinite(a).all() for a in want)
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, ulps=2**12, dtype=np.float32, scale=np.abs(w).max())


def test_a_batch_is_asked_once_and_few_queries_or_pairs_not_at_all(monkeypatch):
    """Reading the keys is what few queries cost. One tile of all pairs has no search to be spared."""
    monkeypatch.setattr(schedule, "unknown", lambda like, *constants: constants)  # another choice than the question

    def questions(T, platform="cpu", batch=(3, 2), **options):
        q, k = (jax.ShapeDtypeStruct((*batch, n, D), jnp.float32) for n in (T, 600))
        f = jax.jit(jax.vmap(jax.vmap(lambda q, k: jattn.attention(q, k, k, **options))))
        return f.trace(q, k).lower(lowering_platforms=(platform,)).as_text().count("stablehlo.case")

    assert questions(600) == questions(600, mask=masks.causal()) == 1
    assert questions(600, tile=(512, 512)) == 0
    assert questions(600, "cuda") == questions(600, "tpu", implementation="loops") == 0
    assert questions(4) == questions(64) == 0
    assert questions(64, mask=masks.lengths(k=500)) == 1
    assert questions(24, mask=masks.lengths(k=500), batch=(1, 1)) == 0
    assert questions(24, mask=masks.lengths(k=500), batch=(1, 2)) == 1


@pytest.mark.parametrize("rows", [20, 1000])
def test_a_maximum_is_nan_where_one_is_among_the_numbers(rows):
    x = normal(rows, 7, dtype=np.float32)
    x[rows // 2, 3] = np.nan
    assert np.isnan(max_or_nan(jnp.asarray(x)))
    for axis in (0, 1):
        np.testing.assert_array_equal(max_or_nan(jnp.asarray(x), axis), x.max(axis))
    assert np.isnan(flow.max_logit(x, x))
    np.testing.assert_array_equal(np.isnan(cache.quantised(x)[1]), np.isnan(x).any(1))
    assert np.isnan(jattn.statistics(x, x).max_logit).all()


def test_the_derivative_of_a_difference_is_that_of_the_subtraction_in_both():
    """Also where it is exactly 0 by comparison."""
    x, top = jnp.asarray([1.0, -2.0, 3.0]), jnp.asarray([1.0, 5.0, 4.0])
    weights = jnp.asarray([2.0, 3.0, 5.0])
    dx, dtop = jax.grad(lambda x, top: weights @ below(x, top), (0, 1))(x, top)
    np.testing.assert_array_equal(dx, weights)
    np.testing.assert_array_equal(dtop, -weights)
    assert jax.jvp(lambda top: below(x, top), (top,), (weights,))[1].tolist() == (-weights).tolist()
