"""Kernels of the GPU: value, gradient and tangent as defined, and as programs of it. They run where there is a GPU, and
are interpreted elsewhere.

Each case is one program, in tiles of 64 × 64, so that full tiles, masked tiles, tiles that are passed over and tiles
that pad all occur. That the kernels compile for a GPU is asked of its compiler by `make compile`.
"""

import dataclasses
import functools
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import normal
from _jaxprs import formed
from _kernels import (
    CLOSE,
    KEY,
    assert_as_defined,
    assert_close,
    assert_cotangents_may_be_mapped,
    assert_scales_spoil_as_in_loops,
    batch,
    by_distance,
    head,
    over_arrays,
)

import jattn
from jattn import _jax, masks, reference, scores
from jattn.engine import tuning
from jattn.engine.attend import attend_unrounded
from jattn.engine.kernels import backward, gpu, plans, support
from jattn.engine.plan import Operands

T, S, D, Dv = 100, 180, 16, 32
TILE = (64, 64)
AT = {"q_positions": np.arange(T, dtype=np.int32) + (S - T), "k_positions": np.arange(S, dtype=np.int32)}
IDS = np.minimum(np.arange(T) // 40, 3).astype(np.int32), np.minimum(np.arange(S) // 50, 3).astype(np.int32)
# The first key stands before the sequence, where no block is.
BEFORE = {**AT, "k_positions": np.where(AT["k_positions"] == 0, -1, AT["k_positions"])}
TABLE, CHOSEN = np.random.default_rng(1).random((6, 5)) < 0.7, np.random.default_rng(2).integers(-1, 15, (24, 7))
LEARNED = normal(201, seed=9, dtype=np.float32)
OF_PAIRS, SOME = jnp.asarray(normal(T, S, seed=3, dtype=np.float32)), jnp.asarray(TABLE)
TRITON = "__gpu$xla.gpu.triton"
HOW = "kernel" if jax.default_backend() == "gpu" else "interpret"
# From jax 0.11 on Pallas asks which GPU there is before it lowers a kernel for one.
LOWERED = jax.__version_info__ < (0, 11) or jax.default_backend() == "gpu"
is_lowered = pytest.mark.skipif(not LOWERED, reason="from jax 0.11 on a kernel is lowered for a GPU that is there")

CASES = {  # what is active beside q, k and v; a mask; a score modifier, of what is active; positions
    "nothing": ((), None, None, {}),
    "lengths": ((), masks.lengths(71, np.int32(130)), None, {}),
    "rows without a key": ((), masks.window(30, 0), None, {**AT, "q_positions": AT["q_positions"] + 60}),
    "dense": ((), masks.dense(np.random.default_rng(1).random((T, S)) < 0.3), None, {}),
    "soft cap": (("c", "one sink"), masks.causal(), lambda x: scores.soft_cap(x["c"] ** 2 + 1), AT),
    "blocks": (
        (),
        masks.blocks(TABLE, 30) | masks.chosen_blocks(CHOSEN, 16, q_size=7) | masks.chosen_blocks(CHOSEN, 1),
        None,
        BEFORE,
    ),
    "tables": (
        ("c",),
        masks.causal(),
        lambda x: scores.compose(
            scores.distance_bias(LEARNED), scores.relative_bias(LEARNED[:32]), scores.alibi(x["c"])
        ),
        AT,
    ),
    "arrays of pairs": (
        (),
        masks.where(lambda t, s: SOME[t % 6, s - t] | (SOME[2][s % 5])),  # beyond its ends an index is brought to them
        lambda x: (
            lambda score, t, s: score + (OF_PAIRS[t - (S - T), s] * jnp.asarray(LEARNED)[t - s]).astype(score.dtype)
        ),
        AT,
    ),
    "everything": (("c", "bias", "sink", "scale"), masks.segments(*IDS) & masks.causal(), by_distance, AT),
}


@pytest.fixture(scope="module")
def interpreted():
    """implementation='interpret' runs the kernels of the GPU."""
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as m:
        m.setattr(support, "INTERPRETED", "gpu")
        yield
    jax.clear_caches()


@pytest.mark.structure
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_are_the_definition_and_its_derivatives(name, interpreted):
    assert_as_defined(CASES[name], T, S, D, Dv, TILE, how=HOW)


@pytest.mark.structure
def test_dropout_is_drawn_as_jax_random_draws_it_beside_a_mask_and_a_score_over_arrays(interpreted):
    of = jnp.asarray(IDS[1])
    mask = masks.where(lambda t, s: of[t] == of[s]) & masks.lengths(71, None)
    assert_as_defined((("c", "table"), mask, over_arrays, AT), T, S, D, Dv, TILE, dropout=True, how=HOW)


@pytest.mark.structure
@pytest.mark.parametrize("width", [32, 128])
def test_each_kernel_has_tiles_that_its_registers_hold(width, interpreted, monkeypatch):
    """Those of dk and dv are no larger, and those of wide heads smaller; what they compute is the same."""
    tiles, run = {}, gpu.run

    def spied(kernel, **how):
        tiles[kernel.name] = kernel.call.plan.q_tile, kernel.call.plan.k_tile
        return run(kernel, **how)

    monkeypatch.setattr(gpu, "run", spied)
    of = jnp.asarray(IDS[1])
    mask = masks.where(lambda t, s: of[t] == of[s]) & masks.lengths(71, None)
    assert_as_defined((("c", "table"), mask, over_arrays, AT), T, S, D, width, None, how=HOW)
    of_all = {name: of_float32[width > 64] for name, (_, of_float32) in tuning.GPU_TILES.items()}
    assert tiles == {name: tile for name, tile in of_all.items() if name != plans.BACKWARD_TABLE}
    assert np.prod(tiles["jattn_backward_kv"]) <= np.prod(tiles["jattn_forward"])


@pytest.mark.structure
def test_heads_that_share_their_keys_and_rows_of_their_own_lengths(interpreted):
    """dk and dv are summed over the heads of a group inside the kernel, and rounded once."""
    shapes = (2, T, 4, D), (2, T, 2, D), (2, T, 2, Dv)
    x = [jnp.asarray(normal(*shape, seed=i), jnp.bfloat16) for i, shape in enumerate(shapes)]
    more = {"is_causal": True, "key_value_seq_lengths": np.array([60, 100], np.int32), "return_residual": True}

    def of(how):
        f = functools.partial(jattn.dot_product_attention, tile=TILE, implementation=how, **more)

        @jax.jit
        def value_and_pullback(x, dout, dlse):
            (out, lse), pull = jax.vjp(f, *x)
            return out, lse, *pull((dout, dlse))

        # The same cotangents for both: those of a rounded result would differ where it is rounded the other way.
        dout, dlse = (np.cos(np.arange(2 * T * n, dtype=np.float32)).reshape(2, T, 4, -1) for n in (4 * Dv, 4))
        return value_and_pullback(x, jnp.asarray(dout, jnp.bfloat16), dlse[..., 0])

    for g, w in zip(of(HOW), of("loops"), strict=True):
        assert g.dtype == w.dtype
        g, w = np.asarray(g, np.float32), np.asarray(w, np.float32)
        assert (np.abs(g - w) <= np.abs(w) * 2**-7 + CLOSE * max(1, np.abs(w).max())).all()


@pytest.mark.parametrize(
    ("T", "S", "heads", "kernel"),
    [
        (2**16, 2**15, None, True),
        (2**16, 2**15 + 1, None, False),
        (2**16, 49152, None, False),
        (2**13, 2**12, 64, True),
        (2**13, 2**13, 64, False),
    ],
)
def test_a_dense_mask_of_more_pairs_than_an_int32_counts_runs_as_loops(T, S, heads, kernel):
    """Pallas finds its entries by an int32 up to 2³² bytes of it: those beyond 2³¹ would lie before its beginning."""
    lead = () if heads is None else (heads,)
    q, k = (jax.ShapeDtypeStruct((*lead, n, 64), jnp.bfloat16) for n in (T, S))
    x = q, k, k, jax.ShapeDtypeStruct((*lead, T, S), bool)
    f = lambda q, k, v, m: jattn.attention(q, k, v, mask=masks.dense(m), implementation="kernel")  # noqa: E731
    found = jattn.implementations(f if heads is None else jax.vmap(f), *x, platform="gpu")
    refused = ["entries of one byte each has more than" in str(one.reason) for one in found]
    assert refused == [not kernel]


@pytest.mark.structure
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_whether_a_cotangent_fits_into_16_bits_is_asked_of_its_bits(dtype):
    kind = jnp.finfo(dtype)
    eps, largest, smallest = map(float, (kind.eps, kind.max, kind.smallest_subnormal))
    fitting = [0, -0.0, 1, -1.5, 1 + eps, largest, float(kind.smallest_normal)]
    others = [1 / 3, 1 + eps / 2, jnp.inf, jnp.nan, largest * (1 + eps / 4)]
    if dtype == jnp.float16:  # those of bfloat16 are 0 to XLA
        fitting, others = [*fitting, 3 * smallest], [*others, 2.5 * smallest]
    fits = jax.jit(functools.partial(backward.fits, dtype=dtype))
    assert [bool(fits(jnp.full(3, x, jnp.float32).at[1].set(1))) for x in fitting] == [True] * len(fitting)
    assert [bool(fits(jnp.full(3, x, jnp.float32).at[1].set(1))) for x in others] == [False] * len(others)
    # XLA leaves out a cast there and back on a GPU, so that everything would fit.
    assert jnp.finfo(dtype).dtype not in {x.dtype for x in formed(fits.trace(jnp.ones(3)).jaxpr)}


@pytest.mark.structure
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("rounded", [True, False], ids=["rounded", "unrounded"])
def test_of_16_bits_every_result_is_rounded_once_at_the_end(rounded, dtype, interpreted):
    """Products of two of 16 bits are exact, and of one and a weight they keep more than a result can show.

    So is the cotangent of a rounded result; that of an unrounded one, as of a part of a ring, is float32.
    """
    shapes = (T, 32), (S, 32), (S, 64), (T, 64), (T, 32), (S, 32), (S, 64)
    q, k, v, dout, *dots = (jnp.asarray(normal(*shape, seed=i), dtype) for i, shape in enumerate(shapes))
    wide = [np.asarray(x, np.float64) for x in (q, k, v, dout, *dots)]
    mask, eps = masks.causal(), float(jnp.finfo(dtype).eps)

    def all_of(f, x, dout, dots):
        (out, lse), pull = jax.vjp(f, *x)
        return out, lse, *pull((dout, jnp.cos(lse))), *jax.jvp(f, x, dots)[1]

    def kernels(*x):
        if rounded:
            return jattn.attention(*x, mask=mask, return_lse=True, tile=TILE, implementation=HOW, **AT)
        at = {name: jnp.asarray(a) for name, a in AT.items()}
        out, m, log_sum = attend_unrounded(Operands(*x, mask=mask, **at), None, TILE, HOW)
        return out, m + log_sum

    if not rounded:
        wide[3] = np.float64(normal(T, 64, seed=3, dtype=np.float32))
        dout = jnp.asarray(wide[3], jnp.float32)
    with jax.default_matmul_precision(None):
        got = jax.jit(functools.partial(all_of, kernels))((q, k, v), dout, tuple(dots))
    with jax.enable_x64(True):
        allowed = masks.to_dense(mask, T, S, **AT)
        definition = lambda *x: reference.attention(*x, mask=allowed)  # noqa: E731
        want = all_of(definition, tuple(map(jnp.asarray, wide[:3])), jnp.asarray(wide[3]), tuple(wide[4:]))
        want = [np.asarray(y) for y in want]
    # A product of two that are not of 16 bits is TF32 on a GPU: of the weights and a cotangent of float32.
    for name, g, w in zip(("out", "lse", "dq", "dk", "dv", "out_dot", "lse_dot"), got, want, strict=True):
        rounding = eps / 2 if g.dtype == dtype else 0
        sums = 2.0**-11 if HOW == "kernel" and ((name == "dv" and not rounded) or dtype == jnp.float16) else 2.0**-15
        off = np.abs(np.asarray(g, np.float64) - w) - rounding * np.abs(w)
        assert off.max() <= sums * np.abs(w).max(), (name, off.max(), np.abs(w).max())


@pytest.mark.structure
@pytest.mark.parametrize(
    "dtypes", [("bfloat16", "float32", "float16"), ("float32", "bfloat16", "bfloat16")], ids=" ".join
)
def test_operands_of_unlike_dtypes_are_those_of_the_loops(dtypes, interpreted):
    shapes = (T, D), (S, D), (S, Dv)
    x = [
        jnp.asarray(normal(*shape, seed=i), dtype) for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    dout = jnp.asarray(np.cos(np.arange(T * Dv)).reshape(T, Dv), dtypes[2])

    def of(how):
        def f(*x):
            return jattn.attention(*x, mask=masks.causal(), scale=0.3, tile=TILE, implementation=how, **AT)

        @jax.jit
        def every(*x):
            out, pull = jax.vjp(f, *x)
            return out, *pull(dout), jax.jvp(f, x, x)[1]

        return every(*x)

    for g, w in zip(of(HOW), of("loops"), strict=True):
        assert g.dtype == w.dtype
        rounding = float(jnp.finfo(g.dtype).eps) if g.dtype.itemsize < 4 else CLOSE
        g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
        assert (np.abs(g - w) <= rounding * np.abs(w) + CLOSE * np.abs(w).max()).all()


def table_grids(monkeypatch):
    """The grids of the kernels of tables that run from now on."""
    grids, run = [], gpu.run

    def spied(kernel, **how):
        if kernel.name == plans.BACKWARD_TABLE:
            grids.append(kernel.grid)
        return run(kernel, **how)

    monkeypatch.setattr(gpu, "run", spied)
    return grids


def tables_and_scalars(x):
    first = scores.distance_bias(jnp.tile(x["table"], 5)[:129])
    second = scores.relative_bias(x["table"] * x["c"], max_distance=128)
    return scores.compose(first, scores.soft_cap(3.0), second, scores.alibi(x["c"]))


def tables_of_a_function(x):
    """By distance, and by query and by key, beside a scalar."""
    table = jnp.tile(x["table"], 5)

    def score(x_, t, s):
        far = table[jnp.clip((s + 3) - (t - 61), 0, 128)]
        return x_ * jnp.cos(far * x["c"]) + table[t % 9] * jnp.sin(far) - table[s % 5] + x["c"]

    return score


@pytest.mark.structure
@pytest.mark.parametrize(("score", "tile"), [(tables_and_scalars, (32, 64)), (tables_of_a_function, (64, 64))])
def test_the_gradient_of_a_table_is_summed_along_the_diagonals_of_square_tiles(score, tile, interpreted, monkeypatch):
    squares = table_grids(monkeypatch)
    assert_as_defined((("table", "c"), masks.window(70, 20), score, {}), 150, 150, D, Dv, tile, how=HOW)
    found = {(grid.plan.q_tile, grid.plan.k_tile, grid.outer) for grid in squares}
    assert found == {(64, 64, 5) if tile == (64, 64) else (32, 32, 9)}


@pytest.mark.structure
@pytest.mark.parametrize("own", [True, False])
def test_heads_with_tables_of_their_own_and_heads_that_share_one(own, interpreted, monkeypatch):
    """Those that share one add to it one after another, or apart where there are few programs. One head holds a NaN
    behind its mask, and is searched; dropout is drawn; the sums are those of the loops."""
    rows = 90
    q, k, v = (normal(2, 3, rows, d, seed=d, dtype=np.float32) for d in (D, D, Dv))
    k[1, 2, 80] = np.nan
    learned = normal(*([3] * own), 181, seed=9, dtype=np.float32)
    n = np.array([[90] * 3, [70] * 3], np.int32)

    def heads(how):
        def one(q, k, v, n, learned):
            drops = {"dropout_rate": np.float32(0.2), "dropout_key": KEY}
            more = {"mask": masks.lengths(None, n) & masks.causal(), "score": scores.distance_bias(learned), **drops}
            return jattn.attention(q, k, v, return_lse=True, tile=TILE, implementation=how, **more)

        f = jax.vmap(jax.vmap(one, (0, 0, 0, 0, 0 if own else None)), (0, 0, 0, 0, None))
        return lambda q, v, learned: f(q, k, v, n, learned)

    def tangent(how):
        f, x = heads(how), (q, v, learned)
        return jax.jit(lambda *x: jax.jvp(f, x, tuple(map(jnp.cos, x)))[1])(*x)

    assert_close(tangent(HOW), jax.tree.map(np.asarray, tangent("loops")))
    want = jax.tree.map(np.asarray, batch(heads("loops"))(q, v, learned))
    grids = table_grids(monkeypatch)
    for programs in (1, 2**30):
        monkeypatch.setattr(tuning, "GPU_PROGRAMS", programs)
        assert_close(batch(heads(HOW))(q, v, learned), want)
    assert [grid.kept for grid in grids] == [(1,) if own else (), (0, 1)]


@pytest.mark.structure
@pytest.mark.parametrize("ours", [True, False])
def test_tables_that_differ_from_head_to_head_are_found_by_their_index(ours, interpreted):
    """Those of a score, of blocks, of chosen blocks and of functions, also in dk and dv, which visit all heads of a
    group."""
    q, k, v = (normal(*shape, seed=len(shape), dtype=np.float32) for shape in ((3, T, D), (S, D), (S, Dv)))
    learned = normal(3, 201, seed=9, dtype=np.float32)
    tables, chosen = np.stack([TABLE, ~TABLE, TABLE[::-1]]), np.stack([CHOSEN, CHOSEN[::-1], CHOSEN + 1])

    def of(how):
        def one(q, k, v, learned, table, chosen):
            mask = masks.blocks(table, 30) & masks.chosen_blocks(chosen, 16, q_size=7) | masks.window(2, 0)
            mask |= masks.where(lambda t, s: table[t % 6, s % 5])
            score = scores.distance_bias(learned) if ours else lambda x, t, s: x * learned[t - s]
            more = {"mask": mask, "score": score, "return_lse": True, **AT}
            return jattn.attention(q, k, v, tile=TILE, implementation=how, **more)

        heads = jax.vmap(one, (0, None, None, 0, 0, 0))
        return jax.tree.map(np.asarray, batch(lambda *x: heads(*x, learned, tables, chosen))(q, k, v))

    assert_close(of(HOW), of("loops"))


@pytest.mark.structure
def test_cotangents_may_be_mapped_where_the_operands_are_not(interpreted):
    assert_cotangents_may_be_mapped(HOW, (T, S, D, Dv), TILE, AT)


@pytest.mark.structure
def test_what_is_not_finite_stays_where_it_is_masked_and_spoils_the_rows_that_meet_it(interpreted):
    q, k, v = (normal(2, n, d, seed=d, dtype=np.float32) for n, d in ((T, D), (S, D), (S, Dv)))
    k[:, 70], v[:, 71] = np.nan, np.inf
    n = np.array([70, 150], np.int32)  # masked in the first head, met in the second, in a tile that is full

    def of(how):
        def one(q, k, v, n):
            mask = masks.lengths(None, n)
            return jattn.attention(q, k, v, mask=mask, return_lse=True, tile=TILE, implementation=how)

        return jax.tree.map(np.asarray, batch(lambda *x: jax.vmap(one)(*x, n))(q, k, v))

    (got, got_gradient), (want, want_gradient) = of(HOW), of("loops")
    assert_close(got, want)
    for g, w, own in zip(got_gradient, want_gradient, (None, 70, 71), strict=True):
        assert np.isfinite(g[0]).all()
        assert_close(g[0], w[0])
        spoiled = np.isnan(w[1]).any(1)
        if own is not None:  # nothing passes to a row that is not finite, whatever the tile that it lies in
            assert (g[1, own] == 0).all()
            spoiled[own] = False
        np.testing.assert_array_equal(np.isnan(g[1]).any(1), spoiled)


@pytest.mark.structure
def test_a_scale_that_is_not_finite_has_no_gradient_that_is_a_number_unless_no_query_attends(interpreted):
    assert_scales_spoil_as_in_loops(HOW, (T, S, D, Dv), TILE)


@pytest.mark.structure
@pytest.mark.parametrize("name", ["k", "v", "scale"])
def test_what_overflows_behind_a_mask_reaches_nothing(name, interpreted):
    x = {"q": normal(T, D, seed=0), "k": normal(S, D, seed=1), "v": normal(S, Dv, seed=2)}
    x = {name: jnp.asarray(a, jnp.float32) for name, a in x.items()} | {"scale": jnp.float32(0.3)}
    x[name] = jnp.float32(3e38) if name == "scale" else x[name].at[150].set(3e38)

    def of(how):
        def f(q, k, v):
            more = {"scale": x["scale"], "mask": masks.lengths(None, 150), "tile": TILE}
            return jattn.attention(q, k, v, return_lse=True, implementation=how, **more)

        value, gradient = batch(f)(x["q"], x["k"], x["v"])
        return value if name == "scale" else (value, gradient)

    want = jax.tree.map(np.asarray, of("loops"))
    assert_close(of(HOW), want)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(want)) or name == "scale"


@pytest.mark.structure
@pytest.mark.parametrize(
    ("large", "dtype"),
    [(1e3, "float32"), (1e15, "float32"), (1e25, "float32"), (1e3, "bfloat16"), (1e15, "bfloat16")],
)
def test_logits_of_any_size_are_those_of_the_loops(large, dtype, interpreted):
    """Up to 2²² a difference from the maximum is a subtraction; beyond it, and where logits are infinite, a comparison
    comes first."""
    shapes, sizes = ((T, D), (S, D), (S, Dv)), (large, min(large, 1e15), 1)
    q, k, v = (
        jnp.asarray(n * normal(*shape, seed=i), dtype) for i, (shape, n) in enumerate(zip(shapes, sizes, strict=True))
    )

    def of(how):
        f = lambda *x: jattn.attention(*x, mask=masks.causal(), tile=TILE, implementation=how, return_lse=True, **AT)  # noqa: E731
        return [np.asarray(y, np.float32) for y in jax.jit(f)(q, k, v)]

    for got, want in zip(of(HOW), of("loops"), strict=True):
        np.testing.assert_allclose(
            got, want, rtol=max(CLOSE, float(jnp.finfo(dtype).eps)), atol=CLOSE * np.abs(v).max()
        )


@pytest.mark.structure
def test_of_16_bits_heads_that_share_their_keys_may_have_scales_of_their_own(interpreted):
    shapes = (3, T, D), (S, D), (S, Dv)
    q, k, v = (jnp.asarray(normal(*shape, seed=i), jnp.bfloat16) for i, shape in enumerate(shapes))
    scale, dout = jnp.asarray([0.2, 0.7, 1.3], jnp.float32), jnp.asarray(normal(3, T, Dv, seed=5), jnp.bfloat16)

    def of(how):
        one = functools.partial(jattn.attention, mask=masks.causal(), tile=TILE, implementation=how, **AT)
        heads = jax.vmap(lambda q, k, v, scale: one(q, k, v, scale=scale), (0, None, None, 0))
        pull = jax.jit(lambda *x: jax.vjp(lambda *x: heads(*x, scale), *x)[1](dout))
        return [np.asarray(dx, np.float32) for dx in pull(q, k, v)]

    for got, want in zip(of(HOW), of("loops"), strict=True):
        np.testing.assert_allclose(got, want, rtol=2**-7, atol=CLOSE * np.abs(want).max())


@pytest.mark.structure
@pytest.mark.parametrize("precision", ["bfloat16", "BF16_BF16_F32"])
def test_products_asked_for_in_bfloat16_take_a_weight_in_one_part(precision, interpreted):
    shapes = (T, D), (S, D), (S, Dv), (T, Dv)
    *x, dout = (jnp.asarray(normal(*shape, seed=i), jnp.bfloat16) for i, shape in enumerate(shapes))

    def all_of(*x):
        out, pull = jax.vjp(lambda *x: jattn.attention(*x, tile=TILE, implementation=HOW), *x)
        return out, *pull(dout)

    def of(precision):
        with jax.default_matmul_precision(precision):
            lowered = jax.jit(all_of).lower(*x)
            return lowered.as_text().count("dot_general"), lowered.compile()(*x)

    (many, exact), (few, rounded) = of(None), of(precision)
    assert few < many or HOW == "kernel"  # whose text holds no product
    for a, b in zip(exact, rounded, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert 0 < np.abs(a - b).max() <= 2**-6 * np.abs(a).max()


@pytest.mark.structure
@pytest.mark.parametrize(("heads", "crowded"), [(2, {False, True}), (4, {True})])
def test_dk_and_dv_have_room_where_no_heads_share_their_keys(heads, crowded, interpreted, monkeypatch):
    """And where the cotangent of out is of 16 bits: a gradient holds the kernels of both."""
    said, stages = set(), tuning.gpu_stages

    def spied(kernel, width, **how):
        said.update({how["crowded"]} if kernel == "jattn_backward_kv" else ())
        return stages(kernel, width, **how)

    monkeypatch.setattr(tuning, "gpu_stages", spied)
    x = [jnp.asarray(normal(1, T, n, D, seed=n), jnp.bfloat16) for n in (heads, 2, 2)]
    f = lambda *x: jattn.dot_product_attention(*x, implementation=HOW).astype(jnp.float32).sum()  # noqa: E731
    jax.jit(jax.grad(f, (0, 1, 2))).lower(*x)
    assert said == crowded
    assert stages("jattn_backward_kv", 128, half=True, crowded=False) == 3
    assert stages("jattn_backward_kv", 128, half=True, crowded=True) == 2


def test_a_weight_is_out_by_a_rounding_of_its_logit():
    x = -np.geomspace(1e-6, 87, 1000).astype(np.float32)
    want = np.exp(x.astype(np.float64))
    x = jax.device_put(x, jax.devices("cpu")[0])
    assert (np.abs(np.asarray(gpu._exp(x), np.float64) / want - 1) <= (1.5 * np.abs(x) + 4) * 2.0**-24).all()
    assert (np.asarray(gpu._exp(jnp.float32([0, -np.inf]))) == [1, 0]).all()


def test_of_16_bits_a_query_that_met_a_nan_passes_nothing_to_values_that_it_may_not_attend(interpreted):
    """Its cotangent is finite, and would be read as it is; so are those of queries that attend to nothing."""
    q, k, v = (jnp.asarray(normal(*shape, seed=i), jnp.bfloat16) for i, shape in enumerate([(T, D), (S, D), (S, Dv)]))
    k = k.at[3].set(jnp.nan)
    t, s = np.arange(T)[:, None], np.arange(S)
    mask = masks.dense(jnp.asarray(np.where(t == 5, s < 20, (s > 3) & (t < 90))))

    def of(how):
        f = lambda *x: jattn.attention(*x, mask=mask, tile=TILE, implementation=how)  # noqa: E731
        pull = jax.jit(lambda *x: jax.vjp(f, *x)[1](jnp.ones((T, Dv), jnp.bfloat16)))
        return [np.asarray(dx, np.float32) for dx in pull(q, k, v)]

    *_, dv = of("loops")
    assert np.isnan(dv[:20]).all()
    assert np.isfinite(dv[20:]).all()
    for got, want in zip(of(HOW), of("loops"), strict=True):
        largest = np.abs(want[np.isfinite(want)]).max(initial=0)
        np.testing.assert_allclose(got, want, rtol=0, atol=2**-7 * largest)


def test_of_16_bits_an_infinite_cotangent_is_that_of_the_loops_in_values(interpreted):
    """The two parts of a weight, times infinity, would be infinities of both signs."""
    q, k, v = (jnp.asarray(normal(*shape, seed=i), jnp.bfloat16) for i, shape in enumerate([(T, D), (S, D), (S, Dv)]))
    dout = jnp.ones((T, Dv), jnp.bfloat16).at[5, 3].set(jnp.inf)

    def of(how):
        f = lambda v: jattn.attention(q, k, v, tile=TILE, implementation=how)  # noqa: E731
        with jax.default_matmul_precision(None):
            return np.asarray(jax.jit(lambda v: jax.vjp(f, v)[1](dout)[0])(v), np.float32)

    got, want = of(HOW), of("loops")
    assert (want[:, 3] == np.inf).all()
    np.testing.assert_allclose(got, want, rtol=0, atol=2**-7 * np.abs(want[np.isfinite(want)]).max())


def programs(**options):
    f = lambda *x: jattn.attention(*x, return_lse=True, **options)  # noqa: E731
    loss = lambda *x: jnp.sum(f(*x)[0] ** 2)  # noqa: E731
    return {1: f, 3: jax.grad(loss, (0, 1, 2)), 2: lambda *x: jax.jvp(f, x, x)}


def kernels_in(f, *x):
    return jax.jit(f).trace(*x).lower(lowering_platforms=("cuda",)).as_text().count(TRITON)


@is_lowered
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_value_is_one_kernel_a_gradient_three_and_a_tangent_two(dtype):
    x = head(dtype=dtype)
    for n, program in programs(mask=masks.causal(), implementation="kernel").items():
        # Of 16 bits a gradient holds both forms of its backward pass, and runs one.
        assert kernels_in(program, *x) == n + 2 * (n == 3 and dtype == jnp.bfloat16)


@is_lowered
def test_what_jax_says_of_triton_is_not_said_to_who_attends(monkeypatch):
    """From jax 0.11 on it warns while a kernel is lowered; here the kernel does so itself."""
    run = gpu.run

    def warning(kernel, **how):
        warnings.warn("The Pallas Triton backend is deprecated and will be removed", DeprecationWarning, stacklevel=2)
        return run(kernel, **how)

    monkeypatch.setattr(gpu, "run", warning)
    jax.clear_caches()
    assert kernels_in(asked, *head()) == 1  # every warning is an error here
    with pytest.raises(DeprecationWarning):  # the control
        warning(None)


def test_where_pallas_has_no_triton_any_more_attention_runs_as_loops(monkeypatch):
    monkeypatch.setattr(_jax, "ON_FIRST_USE", {**_jax.ON_FIRST_USE, "triton": "jax.experimental.pallas.gone"})
    monkeypatch.setattr(support, "gpu_generation", lambda: 9)
    (found,) = jattn.implementations(jattn.attention, *head(), platform="gpu")
    assert not found.kernel
    assert "one of them is missing" in found.reason


@pytest.mark.parametrize(("said", "generation"), [("9.0", 9), ("12.1", 12), ("gfx90a", 0), (None, 0)])
def test_the_generation_of_a_gpu_is_its_compute_capability(said, generation, monkeypatch):
    device = types.SimpleNamespace() if said is None else types.SimpleNamespace(compute_capability=said)
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert _jax.gpu_generation() == generation


@is_lowered
@pytest.mark.parametrize("mask", [~masks.empty(), ~masks.full() | masks.causal()], ids=["full", "causal"])
def test_a_constant_mask_that_is_negated_is_lowered(mask):
    f = lambda *x: jattn.attention(*x, mask=mask, implementation="kernel")  # noqa: E731
    assert kernels_in(f, *head(T=S, S=S)) == 1


@is_lowered
@pytest.mark.parametrize("name", ["dropout", "tables"])
def test_with_x64_the_kernels_are_lowered(name, x64):
    """Beside numbers of float64, which a tile rounds."""
    x = normal(S, D, dtype=np.float32), normal(S, D, seed=1, dtype=np.float32), normal(S, Dv, seed=2, dtype=np.float32)
    options = {
        "dropout": {"dropout_rate": np.float32(0.4), "dropout_key": KEY, "scale": 0.5, "sink": 0.5},
        "tables": {"score": scores.compose(scores.distance_bias(LEARNED), scores.soft_cap(3.0))},
    }[name]
    for n, program in programs(implementation="kernel", mask=masks.causal(), **options).items():
        assert kernels_in(program, *x) == n


@pytest.mark.structure
def test_with_x64_the_kernels_are_the_loops_without(interpreted):
    x = normal(S, D, dtype=np.float32), normal(S, D, seed=1, dtype=np.float32), normal(S, Dv, seed=2, dtype=np.float32)
    options = {"score": scores.soft_cap(3.0), "dropout_rate": np.float32(0.4), "dropout_key": KEY, "scale": 0.5}

    def of(how):
        return batch(lambda *x: jattn.attention(*x, return_lse=True, implementation=how, tile=TILE, **options))(*x)

    want = jax.tree.map(np.asarray, of("loops"))
    with jax.enable_x64(True):
        assert_close(of(HOW), want)


@is_lowered
def test_a_program_of_three_platforms_is_exported_without_the_kernel_of_the_gpu(monkeypatch):
    """A program to be kept must not hold what JAX promises nothing of, whatever GPU is there."""
    monkeypatch.setattr(support, "gpu_generation", lambda: 9)
    f = jax.grad(lambda *x: jnp.sum(jattn.attention(*x, mask=masks.causal())), (0, 1, 2))
    exported = jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(*head(T=100, S=100))
    assert exported.mlir_module().count(TRITON) == 0


with_a_table = functools.partial(jax.tree_util.register_dataclass, data_fields=["table"], meta_fields=[])


@with_a_table
@dataclasses.dataclass(frozen=True)
class ScoreOfTable(scores.Score):
    table: jax.Array

    def __call__(self, score, t, s):
        return score + self.table[jnp.abs(t - s) % 9]


@with_a_table
@dataclasses.dataclass(frozen=True)
class MaskOfTable(masks.Mask):
    table: jax.Array

    def pairs(self, q, k):
        return self.table[q.positions % 9, k.positions % 9]


WITHOUT = {  # what has no kernel there: options, sizes, and what is said
    "a table of a class of your own": (
        {"score": ScoreOfTable(np.zeros(9, np.float32))}, {},
        "a score modifier of your own looks up a table, which is not in the GPU kernel",
    ),
    "a mask of a class of your own": (
        {"mask": masks.blocks(np.eye(32, dtype=bool), 64) & MaskOfTable(np.ones((9, 9), bool))}, {},
        "the mask looks up a table, which a kernel cannot gather from",
    ),
    "what cannot be lowered": (
        {"score": lambda x, t, s: x + jax.lax.sort(jnp.stack([x, -x]))[0]},
        {},
        "what the score modifier or mask computes cannot be lowered there",
    ),
    "few queries": ({}, {"T": 4}, "with fewer than 16 queries reading the keys is all there is to do"),
    "a width": ({}, {"D": 80, "Dv": 80}, "a head of width 80 is not one of 16, 32, 64 and 128"),
    "a wide head": ({}, {"Dv": 256}, "a head of width 256 is not one of 16, 32, 64 and 128"),
    "tiles": ({"tile": (48, 64)}, {}, "tile=(48, 64) is not of powers of two from 16 to 128"),
    "a schedule": ({"mask": masks.causal()}, {"T": 2**19, "S": 2**19}, "the list of 1 × "),
}  # fmt: skip


@is_lowered
@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_kernel_says_why(name):
    options, sizes, said = WITHOUT[name]
    f = lambda *x: jattn.attention(*x, implementation="kernel", **options)  # noqa: E731
    (found,) = jattn.implementations(f, *head(**sizes), platform="gpu")
    assert not found.kernel
    assert found.reason.startswith(said), found.reason
    with pytest.raises(ValueError, match=r"able to do this call \(.*\), got .* Use implementation='loops'\."):
        kernels_in(f, *head(**sizes))


@is_lowered
def test_the_derivative_with_respect_to_a_table_is_kernels_where_rows_have_no_positions(monkeypatch):
    """That with respect to q, k and v, under its table, is kernels wherever they stand."""

    def passes_of(which, derivative):
        f = lambda table, *x: jattn.attention(*x, score=score(table), implementation=how, **at).sum()  # noqa: E731
        x = (jax.ShapeDtypeStruct((201,), jnp.float32), *head())
        found = jattn.implementations(derivative(f, which), *x, platform="gpu")
        return {one.name: one.kernel or one.reason for one in found}

    def tangent(f, which):
        return lambda *x: jax.jvp(lambda one: f(*x[:which], one, *x[which + 1 :]), (x[which],), (x[which],))

    score, at, how = scores.distance_bias, {}, "kernel"
    assert passes_of(0, jax.grad) == {"forward": True, "backward": True}
    monkeypatch.setattr(support, "gpu_generation", lambda: 9)
    how = None
    assert "was not run in the GPU kernel: implementation='kernel' asks for it" in passes_of(0, jax.grad)["backward"]
    assert passes_of(1, jax.grad) == {"forward": True, "backward": True}
    how = "kernel"
    assert passes_of(0, tangent) == {"forward": True, "tangent": True}

    of_own = lambda table: lambda x, t, s: x + table[t - s]  # noqa: E731
    positions = {name: np.arange(2048, dtype=np.int32) for name in ("q_positions", "k_positions")}
    twice = lambda table: lambda x, t, s: x + table[(t + s) % 201]  # noqa: E731
    score = of_own
    assert passes_of(0, jax.grad) == {"forward": True, "backward": True}
    assert passes_of(0, tangent) == {"forward": True, "tangent": True}
    which = "looked up for each pair, and not by t − s of rows without positions, has no derivative in the kernel"
    for what, score, at in (  # noqa: B007
        ("a table that is", scores.distance_bias, positions),
        ("what stands beside an array that is", of_own, positions),
        ("what stands beside an array that is", twice, {}),
    ):
        said = f"{what} {which}"
        assert passes_of(0, jax.grad) == {"forward": True, "backward": said}
        assert passes_of(0, tangent) == {"forward": True, "tangent": said}
        assert passes_of(1, jax.grad) == {"forward": True, "backward": True}
        assert passes_of(1, tangent) == {"forward": True, "tangent": True}


def asked(*x):
    return jattn.attention(*x, implementation="kernel")


def test_the_kernel_of_the_gpu_is_taken_where_it_was_run_or_is_asked_for(monkeypatch):
    for generation in (9, 8, 0):
        monkeypatch.setattr(support, "gpu_generation", lambda generation=generation: generation)
        (unasked,) = jattn.implementations(jattn.attention, *head(), platform="gpu")
        assert unasked.kernel == (generation == 9 and LOWERED)
        assert generation == 9 or "elsewhere implementation='kernel' asks for it" in unasked.reason
        (tiled,) = jattn.implementations(lambda *x: jattn.attention(*x, tile=(512, 512)), *head(), platform="gpu")
        assert not tiled.kernel
        if LOWERED:
            jax.clear_caches()
            assert kernels_in(jattn.attention, *head()) == unasked.kernel
    (found,) = jattn.implementations(asked, *head(), platform="gpu")
    assert found.kernel == LOWERED
    if not LOWERED:
        assert "for a GPU that is there" in found.reason
        with pytest.raises(ValueError, match="for a GPU that is there"):
            kernels_in(asked, *head())
