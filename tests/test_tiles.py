"""Tiles: which are visited and which are not, what pads them, and dropout that does not know of them."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, S, T, assert_close, assert_same, normal, pairs, qkv
from _mask_oracles import k_places, q_places, trees
from hypothesis import given, settings
from hypothesis import strategies as st

import jattn
from jattn import masks, reference
from jattn.engine import schedule, tile, tuning
from jattn.engine.attend import make_plan
from jattn.engine.forward import Forward
from jattn.engine.plan import Operands, Plan, pad

lengths = st.integers(1, 5000)


@given(lengths, lengths, st.sampled_from(["cpu", "gpu", "tpu"]))
def test_tiles_are_even_and_pad_little(T, S, backend):
    q, k = tuning.tile_sizes(T, S, platform=backend)
    for n, size in ((T, q), (S, k)):
        count = -(-n // size)
        assert 1 <= size <= n + 15
        assert size % 16 == 0 or count == 1, "tiles begin at the cells in which dropout is drawn"
        assert count * size - n < 16 * count, "no more than is needed to round up"
    assert q * k * 4 <= 2**22, "a tile of float32 stays in a cache or two"
    assert tuning.tile_sizes(T, S) == tuning.tile_sizes(T, S, platform=jax.default_backend())


def test_a_small_call_is_one_tile_and_an_accelerator_has_larger_ones():
    assert tuning.tile_sizes(13, 17, platform="cpu") == (13, 17)
    cpu, gpu = (tuning.tile_sizes(8192, 8192, platform=b) for b in ("cpu", "gpu"))
    assert np.prod(cpu) < np.prod(gpu)


NARROW = {
    "a window": masks.window(200, 0),
    "on both sides": masks.window(90, 90),
    "two rules": masks.causal() & masks.chunked(128) | masks.window(20, 0),
    "a rule of its author": masks.where(lambda t, s: abs(t - s) < 99),
}
WIDE = {
    "no mask": {},
    "causal": {"mask": masks.causal()},
    "a wide window": {"mask": masks.window(700, 0)},
    "every tile": {"mask": masks.strided(100)},
    "arrays": {"mask": masks.segments(np.arange(2000, dtype=np.int32) // 50)},
    "positions": {"mask": masks.window(200, 0), "q_positions": np.arange(2000, dtype=np.int32)},
    "a given tile": {"mask": masks.window(200, 0), "tile": (512, 512)},
}


def tiles_on(platform, T=2000, tile=None, **options):
    """The tiles of a call on a platform."""
    x = Operands(*np.ones((3, T, 4), np.float32), **options)
    plan, x = make_plan(x, None, tile)
    plan = Forward(plan, jax.tree.structure(x)).for_platform(platform).for_platform(platform).plan
    return plan.q_tile, plan.k_tile


def test_a_narrow_mask_has_small_tiles_on_a_cpu():
    for name, mask in NARROW.items():
        assert tiles_on("cpu", mask=mask) == (128, 128), name
        assert tiles_on("gpu", mask=mask) == tuning.tile_sizes(2000, 2000, platform="gpu"), name
    for name, options in WIDE.items():
        assert tiles_on("cpu", **options) == tuning.tile_sizes(2000, 2000, platform="cpu"), name
    assert tiles_on("cpu", T=100, mask=masks.window(3, 0)) == (100, 100)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_small_tiles_are_the_definition_and_its_derivatives():
    mask, (q, k, v, w) = NARROW["a window"], normal(4, 1100, 4)
    assert tiles_on("cpu", T=1100, mask=mask) == (128, 128)
    booleans = masks.to_dense(mask, 1100, 1100)

    def every(f):
        def run(q, k, v):
            out, pullback = jax.vjp(f, q, k, v)
            return (
                out,
                pullback(w),
                jax.jvp(lambda *x: jax.grad(lambda *x: (f(*x) * w).sum())(*x), (q, k, v), (v, q, w)),
            )

        return jax.jit(run)(q, k, v)

    got = every(lambda q, k, v: jattn.attention(q, k, v, mask=mask))
    want = every(lambda q, k, v: reference.attention(q, k, v, mask=booleans)[0])
    assert_close(got, want, ulps=100)


def plan_and_operands(mask, q_tile, k_tile, *, T=T, S=S, at=None):
    at = at or (None, None)
    plan = Plan(T, S, q_tile, k_tile, jnp.dtype(jnp.float32), None)
    mask = None if mask is None else mask.split_qk()
    q, k, v = map(jnp.asarray, qkv(T=T, S=S, dtype=np.float32))
    return plan, pad(plan, Operands(q, k, v, None, None, jnp.float32(1), (), mask, *at))


def block_states(plan, lists, states):
    """Of a schedule, whichever of the two it holds."""
    if states is not None:
        return np.asarray(states)
    states = np.full((plan.q_tiles, plan.k_tiles), masks.EMPTY)
    for (state, _), places in zip(schedule.PASSES, lists, strict=True):
        states[tuple(np.asarray(places).T)] += state
    return states


sizes = st.tuples(st.sampled_from([4, 5, 13]), st.sampled_from([3, 8, 17]))


@pytest.mark.structure
@settings(max_examples=30)
@given(trees, sizes, st.booleans())
def test_the_block_state_of_a_tile_is_never_wrong(tree, sizes, placed):
    mask, booleans = tree
    at = (jnp.asarray(q_places), jnp.asarray(k_places)) if placed else (None, None)
    plan, x = plan_and_operands(mask, *sizes, at=at)

    @jax.jit
    def every_mask():
        visits = schedule.schedule(plan, x)
        numbered = mask.tile(*(masks.Rows(0, jnp.arange(n, dtype=jnp.int32)) for n in (T, S)))
        one = lambda i, j, **how: tile.tile_mask(plan, tile.cut(plan, x, i, j, **how))  # noqa: E731
        rows, columns = (jnp.arange(n, dtype=jnp.int32) for n in (plan.q_tiles, plan.k_tiles))
        both = lambda i, j: (one(i, j), one(i, j, transposed=True))  # noqa: E731
        tiles = jax.vmap(lambda i: jax.vmap(lambda j: both(i, j))(columns))(rows)
        return (visits.lists, visits.states), numbered, tiles

    visits, numbered, tiles = every_mask()
    states, (every, every_transposed) = block_states(plan, *visits), map(np.asarray, tiles)
    booleans = booleans if placed else np.asarray(numbered)
    for i in range(plan.q_tiles):
        for j in range(plan.k_tiles):
            here = booleans[i * plan.q_tile :, j * plan.k_tile :][: plan.q_tile, : plan.k_tile]
            if states[i, j] == masks.EMPTY:
                assert not here.any()
            if states[i, j] == masks.FULL:
                assert here.all()
                assert here.shape[1] == plan.k_tile, "a tile that holds padding is masked"
            allowed = every[i, j]
            np.testing.assert_array_equal(allowed[: here.shape[0], : here.shape[1]], here)
            assert not allowed[:, here.shape[1] :].any(), "no query may attend a row that pads"
            np.testing.assert_array_equal(every_transposed[i, j], allowed.T)


def before(t_low, t_high, s_low, s_high):
    """The block state of a causal mask, as its author would say it."""
    return masks.block_state(t_high >= s_low, t_low >= s_high)


EXACT = {
    "nothing": (None, lambda t, s: t >= 0 * s),
    "causal": (masks.causal(), lambda t, s: t >= s),
    "window": (masks.window(20, 3), lambda t, s: (t - s <= 20) & (s - t <= 3)),
    "not causal": (~masks.causal(), lambda t, s: t < s),
    "lengths": (masks.lengths(q=30, k=20), lambda t, s: (t < 30) & (s < 20)),
    "causal, lengths": (masks.causal() & masks.lengths(k=20), lambda t, s: (t >= s) & (s < 20)),
    "its author says": (masks.where(lambda t, s: t >= s, state=before), lambda t, s: t >= s),
}


@pytest.mark.structure
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("T", "S"), [(41, 53), (16, 37)], ids=["", "queries of one tile"])
@pytest.mark.parametrize("name", EXACT)
def test_each_tile_that_is_not_empty_is_visited_once_and_no_other(name, T, S, traced):
    """Those that are FULL without a mask; by both loops, and whether block states are known before tracing or not."""
    mask, rule = EXACT[name]
    t, s = np.arange(T)[:, None], np.arange(S)[None, :]
    at = (jnp.arange(T, dtype=jnp.int32), jnp.arange(S, dtype=jnp.int32)) if traced else None
    if traced and "lengths" in name:
        mask = (
            masks.lengths(q=np.int32(30), k=np.int32(20))
            if name == "lengths"
            else (masks.causal() & masks.lengths(k=np.int32(20)))
        )
    plan, x = plan_and_operands(mask, 16, 16, T=T, S=S, at=at)
    allowed = np.zeros((plan.q_tiles * 16, plan.k_tiles * 16), bool)
    allowed[:T, :S] = np.broadcast_to(rule(t, s), (T, S))
    by_tile = allowed.reshape(plan.q_tiles, 16, plan.k_tiles, 16).swapaxes(1, 2)
    real = np.ones((plan.q_tiles * 16, 1), bool)
    real[T:] = False
    rows = by_tile | ~real.reshape(plan.q_tiles, 1, 16, 1)  # queries that pad ask for no mask
    want = np.where(rows.all((2, 3)), 100, np.where(by_tile.any((2, 3)), 1, 0))
    visits = schedule.schedule(plan, x)
    assert (visits.states is None) == (not traced or name == "nothing"), "of arrays that are traced nothing is known"
    assert (visits.lists is None) == (visits.states is not None)

    def visit(counts, i, j, masked):
        return counts.at[i, j].add(1 if masked else 100)

    def by_rows():
        counts = jnp.zeros((plan.q_tiles, plan.k_tiles), jnp.int32)
        start, finish = (lambda counts, i: counts), (lambda counts: (counts, jnp.zeros((1,))))

        def step(counts, i, j, masked, first):
            return visit(counts, i, j, masked), ()

        return schedule.fold_rows(schedule.schedule(plan, x), counts, start, step, finish)[0]

    def by_tiles():
        return schedule.scan_tiles(
            schedule.schedule(plan, x), visit, jnp.zeros((plan.q_tiles, plan.k_tiles), jnp.int32)
        )

    np.testing.assert_array_equal(jax.jit(by_rows)(), want)
    np.testing.assert_array_equal(jax.jit(by_tiles)(), want)
    assert name == "nothing" or T == 16 or (want == 0).any()


@pytest.mark.parametrize(
    ("T", "S", "derivative", "value"),
    [(64, 64, 1, 1), (80, 64, 0, 1), (96, 96, 0, 1), (112, 96, 0, 0), (16, 64, 1, 1), (16, 80, 0, 0), (32, 80, 0, 0)],
)
def test_few_tiles_in_short_rows_are_visited_without_a_loop(T, S, derivative, value):
    """Up to 16 of a derivative and 36 of a value, no more in a row than 4 or than rows; of operands that are finite."""
    plan, x = plan_and_operands(None, 16, 16, T=T, S=S)
    for of_value, taken in enumerate((derivative, value)):
        visits = schedule.schedule(dataclasses.replace(plan, finite=True), x, of_value=bool(of_value))
        assert visits.written_out == bool(taken)
        assert not schedule.schedule(plan, x, of_value=bool(of_value)).written_out


@pytest.mark.structure
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="without a loop it is on a CPU")
@pytest.mark.parametrize("which", ["value", "gradient", "jvp"])
def test_tiles_that_are_visited_without_a_loop_share_their_kernels(which, monkeypatch):
    """XLA compiles as many for ten tiles as for six: none knows where its tile lies, or what came before."""
    monkeypatch.setattr(tuning, "FEW_PAIRS", 0)

    def f(q, k, v):
        return jattn.attention(q, k, v, mask=masks.causal())

    orders = {
        "value": f,
        "gradient": lambda *x: jax.grad(lambda *x: f(*x).sum(), (0, 1, 2))(*x),
        "jvp": lambda *x: jax.jvp(f, x, x),
    }

    def kernels(T):
        """Of whole tiles, without their names and the number of tiles."""
        x = [jax.ShapeDtypeStruct((T, 64), jnp.float32)] * 3
        text = jax.jit(orders[which]).lower(*x).compile().as_text()
        bodies = re.findall(r"^%?fused_computation\S* \((.*?)^}", text, re.M | re.S)
        tile = [re.sub(r"%[\w.-]+|\w+[.\d]*(?=:)|, metadata={.*?}", "", b) for b in bodies if "[512,512]" in b]
        return {re.sub(rf"\b({T}|{T // 512}|{n * (n + 1) // 2})\b", "n", b) for b in tile for n in [T // 512]}

    assert len(kernels(2048)) == len(kernels(1536))


@pytest.mark.structure
def test_a_tile_that_is_skipped_is_not_looked_at():
    """What would be an error of every pair in it, a NaN in its sum, does not come out."""
    q, k, v = qkv(T=41, S=41, dtype=np.float32)
    v[32:] = np.nan
    out = jax.jit(lambda *x: jattn.attention(*x, mask=masks.causal(), tile=(16, 16)))(q, k, v)
    assert np.isfinite(out[:32]).all()
    assert np.isnan(out[32:]).all()


# Dropout.

KEY = np.array([0, 7], np.uint32)


def pattern(rate, *, T=67, S=71, key=KEY, tile=None):
    """What dropout multiplies each weight by: equal weights, and of each value its own column."""
    zeros, options = jnp.zeros((T, D)), {"dropout_rate": rate, "dropout_key": key, "tile": tile}
    return np.asarray(jax.jit(lambda: jattn.attention(zeros, jnp.zeros((S, D)), jnp.eye(S), **options))()) * S


@pytest.mark.structure
def test_dropout_has_one_pattern_whatever_the_tile():
    want = pattern(0.4)
    for size in ((16, 16), (32, 16), (16, 48), (80, 80)):
        got = pattern(0.4, tile=size)
        np.testing.assert_array_equal(got > 0, want > 0)
        assert_close(got, want, ulps=8)
    smaller = pattern(0.4, T=19, S=23, tile=(16, 16))
    np.testing.assert_array_equal(smaller > 0, want[:19, :23] > 0)  # nor the lengths
    assert ((pattern(0.4, key=KEY + 1) > 0) != (want > 0)).mean() > 0.3


@pytest.mark.structure
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_makes_up_for_it(rate):
    found = pattern(rate)
    kept = found > 0
    spread = np.sqrt(rate * (1 - rate) / kept.size)
    assert abs(kept.mean() - (1 - rate)) < 4 * spread
    assert_close(found[kept], np.full(kept.sum(), 1 / (1 - rate)), ulps=16)
    for axis in (0, 1):  # no row and no column is all kept or all dropped
        assert kept.mean(axis).min() > 0 or rate > 0.8
        assert kept.mean(axis).max() < 1
    cells = kept[:64, :64].reshape(4, 16, 4, 16).swapaxes(1, 2).reshape(16, -1)
    assert len(np.unique(cells, axis=0)) == 16, "no two cells are drawn alike"


@pytest.mark.structure
def test_dropout_does_not_change_the_mean_nor_lse():
    q, k, v = qkv(T=19, S=23, dtype=np.float32)
    f = lambda key: jattn.attention(  # noqa: E731
        q, k, v, dropout_rate=0.3, dropout_key=key, return_lse=True, tile=(16, 16)
    )
    out, lse = jax.jit(jax.vmap(f))(jax.random.split(jax.random.key(0), 1000))
    want, want_lse = jax.jit(lambda: jattn.attention(q, k, v, return_lse=True))()
    error = np.asarray(out).std(0) / np.sqrt(1000)
    assert (np.abs(np.asarray(out).mean(0) - want) < 5 * error).all()
    assert out.std(0).min() > 0.01
    assert_close(lse, np.broadcast_to(want_lse, lse.shape), ulps=8)


@pytest.mark.structure
def test_a_rate_of_zero_drops_nothing():
    q, k, v = qkv(T=19, S=23, dtype=np.float32)
    want = jax.jit(jattn.attention)(q, k, v)
    assert_same(jattn.attention(q, k, v, dropout_rate=0.0), jattn.attention(q, k, v))
    got = jax.jit(lambda rate: jattn.attention(q, k, v, dropout_rate=rate, dropout_key=KEY))(np.float32(0))
    assert_close(got, want, ulps=4)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_each_derivative_drops_the_same_weights():
    """By linearity in the values, and by finite differences to second order."""
    T, S = 19, 23
    q, k, _ = qkv(T=T, S=S)
    options = {"dropout_rate": 0.4, "dropout_key": KEY, "tile": (16, 16), "mask": pairs(T=T, S=S)}
    kept = pattern(0.4, T=T, S=S)
    weights = np.asarray(jax.jit(lambda: reference.steps(q, k, np.eye(S), mask=options["mask"])[0].weights)())
    want = np.where(kept > 0, weights / 0.6, 0)

    @jax.jit
    def of_values(v):
        f = lambda v: jattn.attention(q, k, v, **options)  # noqa: E731
        out, pull = jax.vjp(f, v)
        return out, jax.jvp(f, (v,), (v,))[1], pull(jnp.eye(T, S))[0]

    out, out_dot, dv = of_values(jnp.eye(S))
    assert_close((out, out_dot, dv), (want, want, want.T @ np.eye(T, S)), ulps=32)
    x, w = (q, k, normal(S, 2, seed=3)), normal(T, 2, seed=4)
    x_dot = tuple(normal(*a.shape, seed=5 + i) for i, a in enumerate(x))
    dot = lambda a, b: sum(jnp.vdot(*ab) for ab in zip(a, b, strict=True))  # noqa: E731

    @jax.jit
    def orders(x):
        f = lambda *x: jattn.attention(*x, **options)  # noqa: E731
        g = lambda *x: jax.vjp(f, *x)[1](w)  # noqa: E731
        (value, tangent), (gradient, second) = jax.jvp(f, x, x_dot), jax.jvp(g, x, x_dot)
        return {
            "value": value,
            "gradient": gradient,
            "jvp": tangent,
            "jvp of jvp": jax.jvp(lambda *x: jax.jvp(f, x, x_dot)[1], x, x_dot)[1],
            "jvp of grad": second,
            "grad of grad": jax.grad(lambda x: dot(g(*x), x_dot))(x),
        }

    size = 1e-5
    at, after, before = (orders(tuple(a + h * d for a, d in zip(x, x_dot, strict=True))) for h in (0, size, -size))

    def slope(name):
        return jax.tree.map(lambda a, b: (np.asarray(a) - np.asarray(b)) / (2 * size), after[name], before[name])

    def close(got, want):
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-7, atol=1e-7), got, want)

    close(at["jvp"], slope("value"))
    np.testing.assert_allclose(dot(at["gradient"], x_dot), np.vdot(w, slope("value")), rtol=1e-7)
    close(at["jvp of jvp"], slope("jvp"))
    for name in ("jvp of grad", "grad of grad"):  # of a loss both are one product with its Hessian
        close(at[name], slope("gradient"))


@pytest.mark.structure
def test_each_head_and_each_example_has_a_pattern_of_its_own():
    query, key = jnp.zeros((2, 19, 4, D)), jnp.zeros((2, 23, 2, D))
    value = jnp.broadcast_to(jnp.eye(23)[:, None], (2, 23, 2, 23))
    f = jax.jit(lambda rng: jattn.dot_product_attention(query, key, value, dropout_rate=0.5, dropout_key=rng))
    kept = np.asarray(f(KEY) > 0).transpose(0, 2, 1, 3).reshape(8, -1)
    assert len(np.unique(kept, axis=0)) == 8
    assert_same(f(KEY), f(KEY))
