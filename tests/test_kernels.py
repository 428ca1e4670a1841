"""Kernels of the TPU, interpreted: masks × scores × derivatives as defined, and what has no kernel says why.

Each case is one program: the value, the gradient and the tangent, of everything that is active, in tiles of 128 × 128,
so that full tiles, masked tiles, tiles that are passed over and tiles that pad all occur. The definition is computed in
float64. That the kernels compile for a TPU is asked of its compiler by `make compile`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import normal
from _jaxprs import formed, within
from _kernels import (
    CLOSE,
    KEY,
    RATE,
    assert_as_defined,
    assert_close,
    assert_cotangents_may_be_mapped,
    assert_scales_spoil_as_in_loops,
    batch,
    by_distance,
    head,
    orders,
    over_arrays,
)
from jax.experimental import pallas
from jax.experimental.pallas import tpu as pallas_tpu
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

import jattn
from jattn import masks, scores
from jattn.engine.attend import make_plan
from jattn.engine.backward import Backward
from jattn.engine.batching import BatchLevels
from jattn.engine.forward import Forward
from jattn.engine.kernels import backward, passes, support, tpu
from jattn.engine.kernels.score import by_distance as looks_up_distances
from jattn.engine.kernels.score import kernel_score
from jattn.engine.plan import Operands

T, S, D, Dv = 150, 300, 16, 24
TILE = (128, 128)
AT = {"q_positions": np.arange(T, dtype=np.int32) + (S - T), "k_positions": np.arange(S, dtype=np.int32)}
IDS = np.minimum(np.arange(T) // 40, 3).astype(np.int32), np.minimum(np.arange(S) // 70, 3).astype(np.int32)
PARENTS = np.arange(T) * 2 // 3 - 1
OF, ODD = jnp.asarray(np.minimum(np.arange(S) // 70, 3)), np.arange(S) % 7 == 1
PATTERN = jnp.asarray(np.random.default_rng(3).random(600) < 0.5)
SOME, BY_ROW = np.random.default_rng(1).random((T, S)) < 0.3, jnp.asarray(normal(S, seed=8, dtype=np.float32))
CHOSEN = np.random.default_rng(2).integers(-1, 26, (40, 5))
# The first key stands nowhere: no block that is chosen holds it.
NOWHERE = {**AT, "k_positions": np.where(AT["k_positions"] == 0, np.iinfo(np.int32).min, AT["k_positions"])}


CASES = {  # what is active beside q, k and v; a mask; a score modifier, of what is active; positions
    "nothing": ((), None, None, {}),
    "causal": ((), masks.causal(), None, AT),
    "window": ((), masks.window(60, 20), None, AT),
    "segments & causal": ((), masks.segments(*IDS) & masks.causal(), None, AT),
    "prefix | ~window": ((), masks.prefix(7) | ~masks.window(80, 80), None, AT),
    "dilated | chunked": ((), masks.dilated(3) | masks.chunked(32), None, AT),
    "sinks | strided, or neighbours": (
        (),
        masks.sinks(5) | masks.strided(64, 9) & ~masks.neighbourhood((15, 20), (2, 3), (1, 2), (0,)),
        None,
        AT,
    ),
    "masks of every shape": (
        (),
        masks.prefix(7) & ~masks.window(80, 80)
        | masks.dilated(3) & masks.chunked(32)
        | (masks.sinks(5) | masks.strided(64, 9)) & ~masks.neighbourhood((15, 20), (2, 3), (1, 2), (0,)),
        None,
        AT,
    ),
    "ragged | tree": ((), masks.ragged([0, 30, 140], [9, 90, 170]) | masks.tree(PARENTS, prefix=S - T), None, {}),
    "lengths": ((), masks.lengths(101, np.int32(170)), None, {}),
    "dense": ((), masks.dense(SOME), None, {}),
    "one row for all": ((), masks.dense(SOME[:1]), None, {}),
    "blocks & causal": ((), masks.blocks(SOME[:7, :7], 47) & masks.causal(), None, AT),
    "chosen blocks & causal": ((), masks.chosen_blocks(CHOSEN, 16, q_size=7) & masks.causal(), None, NOWHERE),
    "where": ((), masks.where(lambda t, s: (t * s) % 3 < 2), None, AT),
    "where, over arrays": ((), masks.where(lambda t, s: (OF[t] == OF[s]) | jnp.asarray(ODD)[t]), None, AT),
    "empty": ((), masks.empty(), None, {}),
    "rows without a key": ((), masks.causal(), None, {**AT, "q_positions": AT["q_positions"] - S + T - 60}),
    "soft cap": (("c",), masks.causal(), lambda x: scores.soft_cap(x["c"] ** 2 + 1), AT),
    "alibi": (("c",), masks.causal(), lambda x: scores.alibi(x["c"]), AT),
    "composed": (("c",), None, lambda x: scores.compose(scores.soft_cap(3.0), scores.alibi(x["c"])), AT),
    "the user's own": (("c",), masks.causal(), by_distance, AT),
    "a user's, over arrays": (("c", "table"), masks.causal(), over_arrays, AT),
    "a user's, over an array by query and by key": (
        (),
        masks.causal(),
        lambda x: lambda score, t, s: score + (BY_ROW[t] * BY_ROW[s]).astype(score.dtype),
        AT,
    ),
    "distance bias": (("table",), masks.causal(), lambda x: scores.distance_bias(x["table"][:9]), AT),
    "relative bias": (("table",), None, lambda x: scores.relative_bias(x["table"], max_distance=128), AT),
    "bias": (("bias",), masks.causal(), None, AT),
    "one sink": (("one sink",), masks.causal(), None, AT),
    "sinks": (("sink",), masks.window(5, 0), None, AT),
    "scale": (("scale",), masks.causal(), None, AT),
    "everything": (("c", "bias", "sink", "scale"), masks.segments(*IDS) & ~masks.window(9, 9), by_distance, AT),
}


AGAIN = {"window", "segments & causal", "one row for all", "sinks", "soft cap", "alibi", "bias", "scale"}
AGAIN |= {"prefix | ~window", "dilated | chunked", "sinks | strided, or neighbours"}
"""What other cases hold together with more."""


@pytest.mark.structure
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive) if name in AGAIN else name for name in CASES]
)
def test_the_kernels_are_the_definition_and_its_derivatives(name):
    assert_as_defined(CASES[name], T, S, D, Dv, TILE)


@pytest.mark.structure
def test_heads_that_fill_the_registers_lie_the_other_way_round():
    """Those of q and k do, of 128; those of v do not."""
    assert_as_defined(CASES["everything"], T, S, 128, Dv, TILE)


def two_tables(x):
    """Of more entries than a kernel compares with, between what depends on them."""
    table = jnp.tile(x["table"], 5)
    first, second = scores.distance_bias(table[:129]), scores.relative_bias(table[:96] * x["c"], max_distance=128)
    return scores.compose(first, scores.soft_cap(3.0), second, scores.alibi(x["c"]))


def own_tables(x):
    """Numbers and booleans by distance, and a number by query, in a function of a user's."""
    table, last = jnp.tile(x["table"], 5)[:129], jnp.asarray(np.arange(11) % 3 == 0)

    def score(x, t, s):
        far = table[jnp.clip((s + 3) - (t - 61), 0, 128)]
        return x * jnp.where(last[(t - s) % 11] & (s > 4), far, 0.5) + table[t % 9] * jnp.sin(far)

    return score


@pytest.mark.structure
@pytest.mark.parametrize(("score", "tile"), [(two_tables, (128, 256)), (own_tables, (256, 128))])
def test_where_rows_stand_in_order_a_table_of_any_size_is_looked_up_by_distance(score, tile):
    active, mask = ("table", "bias", "scale"), masks.window(150, 30)
    if score is two_tables:
        active = *active, "c"
    else:
        mask |= masks.where(lambda t, s: PATTERN[s - t] & jnp.asarray(ODD)[t])
    assert_as_defined((active, mask, score, {}), 300, 300, D, Dv, tile)


@pytest.mark.structure
def test_the_diagonals_of_a_tile_are_those_of_its_table_and_of_its_head():
    """Heads with a table each, and examples that share them; the gradient adds up all that is looked up."""
    q, k, v = (jnp.asarray(normal(2, 3, S, D, seed=n), jnp.float32) for n in range(3))
    tables = jnp.asarray(normal(3, 129, seed=3), jnp.float32)

    def f(q, k, v, tables, implementation):
        def one(q, k, v, table):
            how = {"mask": masks.causal(), "score": scores.distance_bias(table), "return_lse": True, "tile": TILE}
            return jattn.attention(q, k, v, implementation=implementation, **how)

        return jax.vmap(jax.vmap(one), (0, 0, 0, None))(q, k, v, tables)

    got, want = (batch(lambda *x, i=i: f(*x, i))(q, k, v, tables) for i in ("interpret", "loops"))
    assert_close(got, jax.tree.map(np.asarray, want))


@functools.partial(jax.tree_util.register_dataclass, data_fields=["table"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class OfRows(scores.Score):
    """Looks up no distance."""

    table: np.ndarray

    def __call__(self, score, t, s):
        return score + self.table[t % 9] * self.table[s % 9]


def test_a_distance_is_looked_up_where_nothing_else_decides_and_rows_stand_in_order():
    ours, own, table = scores.distance_bias(LEARNED), OfRows(LEARNED), jnp.asarray(LEARNED)

    def roles(score, platform="tpu", **positions):
        q = np.zeros((2048, 8), np.float32)
        plan, x = make_plan(Operands(q, q, q, **positions), score, None)
        found = kernel_score(plan.for_platform(platform), x)
        return found.roles if looks_up_distances(found) else None

    assert roles(scores.compose(ours, scores.alibi(0.5))) == ("o", "")
    for score in (own, scores.compose(ours, own), scores.alibi(0.5)):
        assert roles(score) is None
    for index in (
        lambda t, s: t - s,
        lambda t, s: s - t,
        lambda t, s: jnp.abs(5 + t - (s - table.shape[0])) % 9,
        lambda t, s: (t - s) * (3 - (s - t)),
    ):
        assert roles(lambda x, t, s, i=index: x * table[i(t, s)]) == ("o",)
    for index in (
        lambda t, s: t + s,
        lambda t, s: (3 - t) - s,
        lambda t, s: t - 2 * s,
        lambda t, s: (t - s) + t,
        lambda t, s: jnp.maximum(t, s) - s,
    ):
        assert roles(lambda x, t, s, i=index: x * table[i(t, s)]) is None
    by_both = lambda x, t, s: x * table[t - s] + table[s] * table[t - s + t]  # noqa: E731
    assert roles(by_both) == ("", "k", "o")
    for score in (ours, lambda x, t, s: x + table[t - s]):
        assert roles(score) is not None
        assert roles(score, **ROWS) is roles(score, "gpu") is None


@pytest.mark.structure
def test_dropout_is_drawn_as_jax_random_draws_it():
    """Of everything at once: the value, the gradient and the tangent, tiles that are cut and that pad among them."""
    assert_as_defined(CASES["everything"], T, S, D, Dv, TILE, dropout=True)


def grouped(dtype=np.float32, N=4, K=2, B=2):
    shapes = (B, T, N, D), (B, S, K, D), (B, S, K, Dv)
    return [jnp.asarray(normal(*shape, seed=i), dtype) for i, shape in enumerate(shapes)]


def many(implementation, **more):
    def f(q, k, v):
        return jattn.dot_product_attention(
            q, k, v, return_residual=True, tile=TILE, implementation=implementation, **more
        )

    return f


@pytest.mark.structure
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_heads_that_share_their_keys_and_rows_of_their_own_lengths(dtype):
    """dk and dv are summed over the heads of a group inside the kernel, and rounded once."""
    more = {
        "is_causal": True,
        "key_value_seq_lengths": np.array([100, 150], np.int32),
        "sink": np.arange(4.0, dtype=np.float32),
    }
    x = grouped(dtype)
    got, want = (batch(many(how, **more))(*x) for how in ("interpret", "loops"))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.dtype == w.dtype
        g, w = np.asarray(g, np.float32), np.asarray(w, np.float32)
        one_rounding = np.abs(w) * 2**-7 if dtype == jnp.bfloat16 else 0
        assert (np.abs(g - w) <= one_rounding + CLOSE * max(1, np.abs(w).max())).all()


@pytest.mark.structure
def test_what_differs_from_head_to_head_is_found_by_its_index():
    slopes, ids = normal(3, seed=7, dtype=np.float32), np.stack([IDS[0], np.arange(T, dtype=np.int32) // 100])
    q, k, v = (normal(2, 3, T, n, seed=n, dtype=np.float32) for n in (D, D, Dv))
    tables, keys = SOME[: 2 * 5, : 3 * 5].reshape(2, 5, 3, 5).swapaxes(1, 2), jax.random.split(jax.random.key(0), 3)

    def f(how):
        def one(q, k, v, slope, ids, table, key):
            mask = masks.segments(ids) & masks.causal() & masks.blocks(table, 31)
            more = {"tile": TILE, "implementation": how, "dropout_rate": 0.3, "dropout_key": key}
            return jattn.attention(q, k, v, mask=mask, score=scores.alibi(slope), **more)

        heads = jax.vmap(jax.vmap(one, (0, 0, 0, 0, None, 0, 0)), (0, 0, 0, None, 0, 0, None))
        loss = lambda q, k, v, slopes: jnp.sum(jnp.sin(heads(q, k, v, slopes, ids, tables, keys)))  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))(q, k, v, slopes)

    assert_close(f("interpret"), jax.tree.map(np.asarray, f("loops")))


@pytest.mark.structure
def test_cotangents_may_be_mapped_where_the_operands_are_not():
    assert_cotangents_may_be_mapped("interpret", (T, S, D, Dv), TILE, AT)


@pytest.mark.structure
def test_arrays_that_a_mask_and_a_score_look_up_may_differ_from_head_to_head():
    """The value, and gradient and tangent in what the score captured: some arrays of each head, some of all."""
    q, k, v = (normal(2, n, d, seed=d, dtype=np.float32) for n, d in ((T, D), (S, D), (S, Dv)))
    rows, keys = normal(2, T, seed=7, dtype=np.float32), normal(S, seed=8, dtype=np.float32)
    ids = np.stack([IDS[0], np.arange(T, dtype=np.int32) // 100])

    def of(how):
        def one(q, k, v, rows, ids, keys):
            mask = masks.where(lambda t, s: (ids[t - (S - T)] == OF[s]) | (s < 5))
            score = lambda x, t, s: x + rows[t - (S - T)] * jnp.tanh(keys[s] * x)  # noqa: E731
            return jattn.attention(q, k, v, mask=mask, score=score, tile=TILE, implementation=how, **AT)

        def f(q, rows, keys):
            return jax.vmap(one, (0, 0, 0, 0, 0, None))(q, k, v, rows, jnp.asarray(ids), keys)

        x = q, jnp.asarray(rows), jnp.asarray(keys)
        gradient = jax.grad(lambda *x: jnp.sum(jnp.sin(f(*x))), (0, 1, 2))
        return jax.jit(lambda *x: (gradient(*x), jax.jvp(f, x, tuple(map(jnp.cos, x)))))(*x)

    assert_close(of("interpret"), jax.tree.map(np.asarray, of("loops")))


@pytest.mark.structure
@pytest.mark.parametrize("where", ["masked", "met", "met everywhere", "met by one document"])
def test_what_is_not_finite_stays_where_it_is_masked_and_spoils_the_rows_that_meet_it(where):
    q, k, v = (normal(n, d, seed=d, dtype=np.float32) for n, d in ((T, D), (S, D), (S, Dv)))
    k[200], v[201] = np.nan, np.inf
    mask = {
        "masked": masks.lengths(None, 200),
        "met": masks.causal(),
        "met everywhere": None,
        "met by one document": masks.segments(*IDS),  # beside others in one tile of queries, whose keys are in the next
    }[where]

    def of(how):
        f = lambda *x: jattn.attention(*x, mask=mask, return_lse=True, tile=TILE, implementation=how, **AT)  # noqa: E731
        return jax.tree.map(np.asarray, batch(f)(q, k, v))

    (got, got_gradient), (want, want_gradient) = of("interpret"), of("loops")
    assert_close(got, want)
    if where == "masked":
        assert all(np.isfinite(g).all() for g in got_gradient)
        assert_close(got_gradient, want_gradient)
    else:
        for g, w, own in zip(got_gradient, want_gradient, (None, 200, 201), strict=True):
            spoiled = np.isnan(w).any(1)
            if own is not None:  # nothing passes to a row that is not finite, whatever the tile that it lies in
                assert (g[own] == 0).all()
                assert mask is None or (w[own] == 0).all()
                spoiled[own] = False
            np.testing.assert_array_equal(np.isnan(g).any(1), spoiled)


@pytest.mark.structure
def test_a_scale_that_is_not_finite_has_no_gradient_that_is_a_number_unless_no_query_attends():
    assert_scales_spoil_as_in_loops("interpret", (T, S, D, Dv), TILE)


@pytest.mark.structure
@pytest.mark.parametrize("name", ["k", "v", "scale"])
def test_what_overflows_behind_a_mask_reaches_nothing(name):
    """A product that is infinite, beside a bias that a mask makes −∞: of one key, or by the scale all of them."""
    x = {"q": normal(T, D, seed=0), "k": normal(S, D, seed=1), "v": normal(S, Dv, seed=2), "bias": normal(T, S, seed=3)}
    x = {name: jnp.asarray(a, jnp.float32) for name, a in x.items()} | {"scale": jnp.float32(0.3)}
    x[name] = jnp.float32(3e38) if name == "scale" else x[name].at[200].set(3e38)

    def of(how):
        def f(x):
            more = {"bias": x["bias"], "scale": x["scale"], "mask": masks.lengths(None, 200), "tile": TILE}
            return jattn.attention(x["q"], x["k"], x["v"], return_lse=True, implementation=how, **more)

        return orders(f)(x, jax.tree.map(jnp.cos, x))

    got, want = of("interpret"), jax.tree.map(np.asarray, of("loops"))
    if name == "scale":  # its own derivative, and those that it multiplies, are beyond what float32 holds
        got, want = got[0], want[0]
    assert_close(got, want)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(want)) or name == "scale"


@pytest.mark.structure
def test_kernels_of_logits_as_large_as_a_million_give_what_loops_give():
    q, k, v = (normal(n, d, seed=d, dtype=np.float32) for n, d in ((T, D), (S, D), (S, Dv)))
    of = lambda how: jattn.attention(1e3 * q, 1e3 * k, v, return_lse=True, tile=TILE, implementation=how)  # noqa: E731
    assert_close(of("interpret"), jax.tree.map(np.asarray, of("loops")))


@pytest.mark.structure
@pytest.mark.parametrize(
    "order",
    [
        "tangent of the gradient",
        pytest.param("gradient of the tangent", marks=pytest.mark.exhaustive),
        "gradient of the gradient",
    ],
)
def test_higher_orders_are_those_of_the_loops(order):
    x = [normal(n, d, seed=d, dtype=np.float32) for n, d in ((T, D), (S, D), (S, Dv))]

    def of(how):
        def loss(*x):
            out, lse = jattn.attention(*x, score=scores.soft_cap(3.0), return_lse=True, tile=TILE, implementation=how)
            return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(lse))

        first = jax.grad(loss, (0, 1, 2))
        return jax.jit({
            "tangent of the gradient": lambda *x: jax.jvp(first, x, x)[1],
            "gradient of the tangent": jax.grad(lambda *x: jax.jvp(loss, x, tuple(map(jnp.cos, x)))[1], (0, 1, 2)),
            "gradient of the gradient": jax.grad(lambda *x: sum(jnp.sum(jnp.sin(g)) for g in first(*x)), (0, 1, 2)),
        }[order])(*x)  # fmt: skip

    assert_close(of("interpret"), jax.tree.map(np.asarray, of("loops")))


def kernels_in(lowered):
    return lowered.as_text().count("tpu_custom_call")


X = jax.ShapeDtypeStruct((2048, 64), jnp.float32)


def test_a_value_is_one_kernel_a_gradient_three_and_a_tangent_two():
    f = lambda *x: jattn.attention(*x, mask=masks.causal(), return_lse=True)  # noqa: E731
    loss = lambda *x: jnp.sum(f(*x)[0] ** 2)  # noqa: E731
    programs = {1: f, 3: jax.grad(loss, (0, 1, 2)), 2: lambda *x: jax.jvp(f, x, x)}
    for n, program in programs.items():
        lowered = jax.jit(program).trace(X, X, X).lower(lowering_platforms=("tpu",))
        assert kernels_in(lowered) == n
    assert kernels_in(jax.jit(f).trace(X, X, X).lower(lowering_platforms=("cpu",))) == 0


def of_floats(x, dtype):
    """Everything of the dtype of a Python float, beside q, k and v of float32."""
    c = x["c"].astype(dtype)
    score = scores.compose(scores.alibi(c), scores.distance_bias(x["table"].astype(dtype)), scores.temperature(c))
    drops = {"dropout_rate": x["rate"], "dropout_key": KEY}
    return {"scale": c, "sink": c * jnp.ones(S, dtype), "bias": c * jnp.ones((S, S), dtype), "score": score, **drops}


WITH_X64 = {  # a mask, and further options, of float32 numbers c, table and rate
    "nothing": (None, lambda x: {}),
    "causal": (masks.causal(), lambda x: {"sink": x["c"], "scale": x["c"]}),
    "window, and a soft cap": (masks.window(60, 20), lambda x: {"score": scores.soft_cap(3.0), "scale": 0.5}),
    "a table by distance": (None, lambda x: {"score": scores.distance_bias(x["table"])}),
    "a table by distance, and a soft cap": (
        masks.causal(),
        lambda x: {"score": scores.compose(scores.relative_bias(x["table"][:30]), scores.soft_cap(3.0))},
    ),
    "a user's, by distance": (
        masks.where(lambda t, s: jnp.asarray(ODD)[t - s]),
        lambda x: {"score": lambda score, t, s: score + x["table"][t - s]},
    ),
    "dropout": (masks.blocks(SOME[:5, :5], 60), lambda x: {"dropout_rate": x["rate"], "dropout_key": KEY}),
    "everything of float64": (
        masks.segments(np.arange(S, dtype=np.int32) // 70),
        lambda x: of_floats(x, jnp.result_type(float)),
    ),
}


def with_x64(name, implementation=None):
    """Value, gradient and tangent of a case of `WITH_X64`, and their arguments."""
    mask, more = WITH_X64[name]
    q, k, v = (jnp.asarray(normal(S, D, seed=n), jnp.float32) for n in range(3))
    x = {"q": q, "k": k, "v": v, "c": jnp.float32(0.4), "table": jnp.asarray(normal(31, seed=6), jnp.float32)}

    def f(x):
        how = {
            "mask": mask,
            "return_lse": True,
            "implementation": implementation,
            **more(x | {"rate": RATE}),
        }
        return jattn.attention(x["q"], x["k"], x["v"], **how)

    return orders(f), (x, jax.tree.map(jnp.cos, x))


def of_64_bits(jaxpr):
    """What a kernel computes, or finds its blocks by, in 64 bits."""
    kernels = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "pallas_call"]
    assert len(kernels) == 1
    maps = [block.index_map_jaxpr.jaxpr for block in kernels[0].params["grid_mapping"].block_mappings]
    held = [v.aval for v in kernels[0].invars] + [v.aval for found in maps for v in found.outvars]
    held += formed(kernels[0].params["jaxpr"])
    return [a for a in held if hasattr(a, "dtype") and a.dtype.itemsize > 4]


@pytest.fixture
def kernels_that_are_lowered(monkeypatch):
    """The jaxprs of the kernels that are made within a test, each of one `pallas_call`."""
    found, pallas_call = [], pallas.pallas_call

    def spied(*args, **options):
        call = pallas_call(*args, **options)

        def run(*xs):
            found.append(jax.make_jaxpr(call)(*xs).jaxpr)
            return call(*xs)

        return run

    monkeypatch.setattr(pallas, "pallas_call", spied)
    return found


@pytest.mark.parametrize("name", WITH_X64)
def test_with_x64_a_kernel_of_the_tpu_holds_nothing_of_64_bits(name, x64, kernels_that_are_lowered):
    """Its compiler takes none: not as an operand, not to find a block by, not to rotate a row by."""
    f, x = with_x64(name)
    assert kernels_in(f.trace(*x).lower(lowering_platforms=("tpu",))) == 5
    assert len(kernels_that_are_lowered) >= 4
    assert [of_64_bits(jaxpr) for jaxpr in kernels_that_are_lowered] == [[]] * len(kernels_that_are_lowered)


@pytest.mark.parametrize(("mask", "visits"), [(masks.causal(), 3), (None, 2), (masks.window(100, 0), 2)])
def test_one_form_of_a_tile_alone_looks_for_what_is_not_finite(mask, visits, kernels_that_are_lowered):
    """Of three, or of those that occur: of a full tile, of a masked one, and of one that holds such an entry."""
    x = [jax.ShapeDtypeStruct((1024, 64), jnp.float32)] * 3
    f = lambda *x: jnp.sum(jattn.attention(*x, mask=mask, tile=(256, 256)) ** 2)  # noqa: E731
    jax.jit(jax.grad(f, (0, 1, 2))).trace(*x).lower(lowering_platforms=("tpu",))
    assert len(kernels_that_are_lowered) == 3
    for jaxpr in kernels_that_are_lowered:
        (kernel,) = (eqn.params["jaxpr"] for eqn in jaxpr.eqns if eqn.primitive.name == "pallas_call")
        branches = [primitives(branch) for branch in conditional(kernel)]
        tiles = [names for names in branches if names.count("dot_general") > 1]
        assert len(tiles) == visits
        assert sum("is_finite" in names for names in tiles) == 1


def conditional(jaxpr):
    return [branch.jaxpr for eqn in jaxpr.eqns if eqn.primitive.name == "cond" for branch in eqn.params["branches"]]


def primitives(jaxpr):
    return [
        name for eqn in jaxpr.eqns for name in (eqn.primitive.name, *(n for x in within(eqn) for n in primitives(x)))
    ]


@pytest.mark.parametrize(("D", "shape"), [(64, (1, 64, 1024)), (128, (1, 1024, 128))])
def test_operands_lie_as_a_tpu_keeps_them(D, shape, kernels_that_are_lowered):
    """Of columns that do not fill its registers it makes rows; a kernel that takes those has nothing copied to it."""
    x = [jax.ShapeDtypeStruct((1024, D), jnp.float32)] * 3
    f = lambda *x: jnp.sum(jattn.attention(*x) ** 2)  # noqa: E731
    jax.jit(jax.grad(f, (0, 1, 2))).trace(*x).lower(lowering_platforms=("tpu",))
    for jaxpr in kernels_that_are_lowered:
        wide = [v.aval.shape for v in (*jaxpr.invars, *jaxpr.outvars) if len(v.aval.shape) == 3 and D in v.aval.shape]
        assert len(wide) >= 4
        assert set(wide) == {shape}


HIGHEST, LOWEST = jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT


def precisions(jaxpr):
    """Those of all products of matrices, in whatever is nested in it."""
    found = set()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            found |= {*(eqn.params["precision"] or (LOWEST,))}
        found = found.union(*map(precisions, within(eqn)))
    return found


@pytest.mark.parametrize(
    ("precision", "taken"),
    [
        (None, LOWEST),
        ("default", LOWEST),
        ("bfloat16", LOWEST),
        ("BF16_BF16_F32", LOWEST),
        ("high", HIGHEST),
        ("tensorfloat32", HIGHEST),
        ("BF16_BF16_F32_X3", HIGHEST),
        ("highest", HIGHEST),
        ("F32_F32_F32", HIGHEST),
    ],
)
def test_a_kernel_of_the_tpu_has_no_lower_precision_than_is_asked_for(precision, taken, kernels_that_are_lowered):
    """Its compiler knows the lowest and the highest on every JAX, and no algorithm by its name."""
    loss = jax.jit(jax.grad(lambda *x: jnp.sum(jattn.attention(*x)), (0, 1, 2)))
    with jax.default_matmul_precision(precision):
        assert kernels_in(loss.trace(*head(T=256, S=256)).lower(lowering_platforms=("tpu",))) == 3
    assert [precisions(jaxpr) for jaxpr in kernels_that_are_lowered] == [{taken}] * 3


@pytest.mark.parametrize(("set_there", "taken"), [("default", LOWEST), ("highest", HIGHEST)])
def test_products_have_the_precision_that_was_set_where_attention_was_called(
    set_there, taken, kernels_that_are_lowered
):
    """A program is lowered when the block that set it has been left, and its gradient is taken beyond it too."""

    def heads(how):
        def f(*x):
            with jax.default_matmul_precision(set_there):
                return jax.vmap(lambda *x: jattn.attention(*x, implementation=how))(*x)

        return jax.jit(jax.grad(lambda *x: jnp.sum(f(*x)), (0, 1, 2)))

    x = [jax.ShapeDtypeStruct((2, 256, 64), jnp.float32)] * 3
    with jax.default_matmul_precision("highest" if set_there == "default" else "default"):
        assert kernels_in(heads(None).trace(*x).lower(lowering_platforms=("tpu",))) == 3
        text = heads("loops").trace(*x).lower(lowering_platforms=("tpu",)).as_text()
    assert [precisions(jaxpr) for jaxpr in kernels_that_are_lowered] == [{taken}] * 3
    products = text.count("stablehlo.dot_general")
    assert products >= 7
    assert text.count(f"precision = [{taken.name}, {taken.name}]") == products


@pytest.mark.structure
def test_with_x64_the_kernels_are_the_loops_without():
    without, x = with_x64("everything of float64", "loops")
    want = without(*x)
    with jax.enable_x64(True):
        f, x = with_x64("everything of float64", "interpret")
        assert_close(f(*x), jax.tree.map(np.asarray, want))


@pytest.mark.parametrize("of", [np.arange(S) // 70, np.arange(S) / 70], ids=["int64", "float64"])
def test_what_is_of_64_bits_in_a_mask_or_a_score_runs_as_loops(of, x64):
    mine = jnp.asarray(of)
    options = (
        {"mask": masks.where(lambda t, s: mine[t] == mine[s])},
        {"score": lambda x, t, s: jnp.where(mine[t] == mine[s], x, 0 * x)},
    )
    x = [jax.ShapeDtypeStruct((S, D), np.float32)] * 3
    for more in options:
        (found,) = jattn.implementations(lambda *x, more=more: jattn.attention(*x, **more), *x, platform="tpu")
        assert not found.kernel
        assert found.reason == f"the mask or the score modifier holds {of.dtype}, and a TPU computes in 32 bits"


@pytest.mark.structure
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_a_mask_or_a_score_that_draws_with_a_key_runs_as_loops(impl):
    dice = jax.random.key(0, impl=impl)

    def drawn(t, s):
        return jax.random.bernoulli(jax.random.fold_in(jax.random.fold_in(dice, t), s))

    x = [jax.ShapeDtypeStruct((S, D), np.float32)] * 3
    for more in ({"mask": masks.where(drawn)}, {"score": lambda x, t, s: jnp.where(drawn(t, s), x, 0 * x)}):
        f = functools.partial(jattn.attention, **more)
        (found,) = jattn.implementations(f, *x, platform="tpu")
        assert not found.kernel
        assert found.reason.startswith(f"the mask or the score modifier holds {dice.dtype}")
        assert "tpu_custom_call" not in jax.export.export(jax.jit(f), platforms=("tpu",))(*x).mlir_module()


@pytest.mark.structure
def test_one_exported_program_holds_the_form_of_each_platform():
    f = jax.grad(lambda *x: jnp.sum(jattn.attention(*x, mask=masks.causal())), (0, 1, 2))
    small = jax.ShapeDtypeStruct((T, D), jnp.float32)
    exported = jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(small, small, small)
    assert exported.mlir_module().count("tpu_custom_call") == 3
    x = [jnp.asarray(normal(T, D, seed=n), jnp.float32) for n in range(3)]
    assert_close(exported.call(*x), jax.tree.map(np.asarray, jax.jit(f)(*x)))


@pytest.mark.structure
def test_the_report_is_of_the_settings_where_attention_was_called():
    """Drawn otherwise dropout has no kernel; the control: as it is drawn without the block, it has one."""

    def drawn(partitionable, *x):
        with jax.threefry_partitionable(partitionable):
            return jattn.attention(*x, dropout_rate=0.1, dropout_key=jax.random.key(0))

    for partitionable in (True, False):
        f = functools.partial(drawn, partitionable)
        (found,) = jattn.implementations(f, *head(), platform="tpu")
        assert found.kernel == partitionable
        program = jax.export.export(jax.jit(f), platforms=("tpu",))(*head()).mlir_module()
        assert ("tpu_custom_call" in program) == partitionable


ROWS = {"q_positions": np.arange(2048, dtype=np.int32), "k_positions": np.arange(2048, dtype=np.int32)}
LEARNED, ARRAYS = np.zeros(9, np.float32), jnp.zeros((3, T))
WITHOUT = {  # what has no kernel: options, sizes, and what is said
    "dropout of other keys": (
        {"dropout_rate": 0.1, "dropout_key": jax.random.key(0, impl="rbg")},
        {},
        "the kernel draws dropout as keys of threefry2x32 do, with jax_threefry_partitionable, and no others",
    ),
    "many blocks": (
        {"mask": masks.blocks(np.eye(512, dtype=bool), 4)},
        {},
        "the mask has a table of 512 × 512 blocks, and the kernel holds 65536",
    ),
    "many chosen blocks": (
        {"mask": masks.chosen_blocks(np.zeros((32, 65), np.int32), 64)},
        {},
        "each query chooses 65 blocks, and the kernel looks through 64",
    ),
    "an array of pairs": (
        {"mask": masks.where(lambda t, s: OF[jnp.abs(t - 2 * s) % S] == 1)},
        {},
        "the mask looks up a table, which a kernel cannot gather from",
    ),
    "many arrays": (
        {"score": lambda x, t, s: x + ARRAYS[0][t] + ARRAYS[1][t] * x + ARRAYS[2][t] * x**2},
        {},
        "more than 2 arrays are looked up for each query or for each key",
    ),
    "a long table": (
        {"score": scores.distance_bias(np.zeros(129, np.float32)), **ROWS},
        {},
        "the score modifier has a table of 129 entries, and the kernel looks through 64",
    ),
    "a long table, and many rows": (
        {"score": scores.distance_bias(np.zeros(129, np.float32))},
        {"T": 2**16, "S": 2**16},
        "the score modifier has a table of 129 entries, and the kernel looks through 64 "
        "(of rows without positions it holds 65536 offsets",
    ),
    "too many distances": (
        {"score": scores.distance_bias(LEARNED), "mask": masks.where(lambda t, s: OF[jnp.abs(t - s) % S] == 1)},
        {"T": 2**15, "S": 2**15},
        "131072 entries are looked up by distance, and the kernel holds 65536",
    ),
    "an array of scores": (
        {"score": lambda x, t, s: x + jnp.asarray(LEARNED)[t * s % 9]},
        {},
        "the score modifier looks up an array for each pair, which a kernel cannot gather from",
    ),
    "what cannot be lowered": (
        {"score": lambda x, t, s: x + jax.lax.sort(jnp.stack([x, -x]))[0]},
        {},
        "what the score modifier or mask computes cannot be lowered there",
    ),
    "few queries": ({}, {"T": 4}, "with fewer than 16 queries reading the keys is all there is to do"),
    "a wide head": ({}, {"D": 512}, "a head is wider than 256"),
    "tiles": ({"tile": (48, 64)}, {}, "tile=(48, 64) is not of multiples of 128"),
    "a tile longer than the keys": (
        {"tile": (48, 128)}, {"T": 200, "S": 50}, "tile=(48, 128) is not of multiples of 128",
    ),
    "a schedule": (
        {"mask": masks.causal()},
        {"T": 2**19, "S": 2**19},
        "the block states of 1 × 1024 × 1024 tiles do not fit into its memory of scalars",
    ),
    "loops asked for": ({"implementation": "loops"}, {}, "implementation='loops' was asked for"),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_kernel_says_why_and_runs_as_loops(name):
    options, sizes, said = WITHOUT[name]
    x = head(**sizes)
    f = lambda *x: jattn.attention(*x, **options)  # noqa: E731
    (found,) = jattn.implementations(f, *x, platform="tpu")
    assert not found.kernel
    assert found.reason.startswith(said), found.reason
    assert kernels_in(jax.jit(f).trace(*x).lower(lowering_platforms=("tpu",))) == 0


@pytest.mark.parametrize("name", sorted(WITHOUT.keys() - {"loops asked for"}))
def test_a_kernel_that_is_asked_for_and_not_there_is_refused_with_the_reason(name):
    options, sizes, said = WITHOUT[name]
    f = jax.jit(lambda *x: jattn.attention(*x, implementation="kernel", **options))
    with pytest.raises(ValueError, match=r"able to do this call \(.*\), got .* Use implementation='loops'\.") as e:
        f.trace(*head(**sizes)).lower(lowering_platforms=("tpu",))
    assert said in str(e.value)


@pytest.mark.parametrize(("heads", "kernel"), [(2380 * 32, True), (2400 * 32, False), (2**17, False)])
def test_more_heads_than_its_memory_of_scalars_holds_run_as_loops(heads, kernel):
    """Three numbers of each lie there, as of the windows of an image: a TPU v5e, v5p and v6e compiles the first, and no
    kernel of the last."""
    x = [jax.ShapeDtypeStruct((heads, 49, 32), jnp.bfloat16)] * 3
    (found,) = jattn.implementations(jax.vmap(lambda *x: jattn.attention(*x)), *x, platform="tpu")
    assert found.kernel == kernel
    said = f"what it is told of {heads} heads, {12 * heads + 12 >> 10} KiB, does not fit into its memory of scalars"
    assert kernel or found.reason == said


def test_the_scalars_of_each_head_count_beside_what_is_known_of_its_tiles():
    def heads(dropped, own):
        def one(q, k, v, c, key):
            drops = {"dropout_rate": np.float32(0.1), "dropout_key": key} if dropped else {}
            score = (lambda x, t, s: x * c + jnp.sin(c) * (t - s).astype(x.dtype)) if own else None
            return jattn.attention(q, k, v, score=score, **drops)

        return jax.vmap(one, (0, 0, 0, 0, 0))

    n = 60_000
    x = [jax.ShapeDtypeStruct((n, 49, 32), jnp.bfloat16)] * 3
    more = jax.ShapeDtypeStruct((n,), jnp.float32), jax.eval_shape(lambda: jax.random.split(jax.random.key(0), n))
    found = {}
    for dropped in (False, True):
        for own in (False, True):
            (of_one,) = jattn.implementations(heads(dropped, own), *x, *more, platform="tpu")
            found[dropped, own] = of_one.kernel
    assert found == {(False, False): True, (True, False): False, (False, True): False, (True, True): False}


@pytest.mark.usefixtures("x64")
def test_dropout_of_every_rate_has_a_kernel():
    def drawn(rate, *x):
        return jattn.attention(*x, dropout_rate=rate, dropout_key=jax.random.key(0))

    for rate in (0.1, jnp.bfloat16(0.1), np.float32(0.1), np.float64(0.1)):
        (found,) = jattn.implementations(functools.partial(drawn, rate), *head(), platform="tpu")
        assert found.kernel


def test_float64_and_lengths_that_are_symbols_run_as_loops(x64):
    f = lambda *x: jattn.attention(*x)  # noqa: E731
    (found,) = jattn.implementations(f, *head(dtype=jnp.float64), platform="tpu")
    assert found.reason == "the kernel computes in float32, not in float64"
    (T,) = jax.export.symbolic_shape("T")
    (found,) = jattn.implementations(f, *head(T=T, S=T), platform="tpu")
    assert found.reason == "a length or the batch is a symbol"


def test_on_a_platform_without_kernels_every_pass_is_loops():
    loss = jax.grad(lambda *x: jnp.sum(jattn.attention(*x)), (0, 1, 2))
    found = jattn.implementations(jax.jit(loss), *head(), platform="cpu")
    assert [(x.name, x.kernel, x.reason) for x in found] == [
        (name, False, "kernels are for the GPU and the TPU, and the platform is cpu")
        for name in ("forward", "backward")
    ]


def test_derivatives_of_higher_order_are_derived_and_run_as_loops():
    first = jax.grad(lambda *x: jnp.sum(jnp.sin(jattn.attention(*x))), (0, 1, 2))
    found = jattn.implementations(lambda *x: jax.jvp(first, x, x), *head(), platform="tpu")
    assert {x.name for x in found if x.kernel} == {"forward", "tangent", "backward"}
    assert {x.reason for x in found if x.name == "derived"} == {
        "derivatives that JAX derives of the passes run as loops"
    }


def test_a_bias_that_serves_every_row_has_its_gradient_in_loops():
    loss = lambda bias, *x: jnp.sum(jattn.attention(*x, bias=bias))  # noqa: E731
    row = jax.ShapeDtypeStruct((1, 2048), jnp.float32)
    forward, backward = jattn.implementations(jax.grad(loss), row, *head(), platform="tpu")
    assert forward.kernel
    assert backward.reason == "a bias that serves several rows or heads has its gradient in loops"


@pytest.mark.structure
def test_over_devices_each_runs_the_kernels_of_its_own_heads():
    mesh = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = jax.sharding.PartitionSpec("batch", None, "heads")
    x = grouped(N=4, K=2, B=2)
    want = batch(many("loops", is_causal=True))(*x)
    placed = [jax.device_put(a, jax.sharding.NamedSharding(mesh, spec)) for a in x]
    program = batch(many("interpret", is_causal=True))
    assert_close(program(*placed), jax.tree.map(np.asarray, want))
    assert "all-gather" not in program.lower(*placed).compile().as_text()
    each = jax.shard_map(many("interpret", is_causal=True), mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    assert_close(batch(each)(*x), jax.tree.map(np.asarray, want))


@pytest.mark.structure
@pytest.mark.parametrize("mask", [None, masks.window(60, 20)], ids=["full", "window"])
def test_a_kernel_reads_what_was_written_and_nothing_else(mask, capfd):
    """Under JAX's interpreter of the TPU: memory holds NaN until it is written, and accesses are watched for races."""
    params = pallas_tpu.InterpretParams(detect_races=True, uninitialized_memory="nan", out_of_bounds_reads="raise")
    run = functools.partial(tpu.run, interpret=params)
    q, k, v = (np.asarray(normal(*shape, seed=i), np.float32) for i, shape in enumerate([(2, T, D), (S, D), (S, Dv)]))
    options = Operands(q[0], k, v, mask=mask, **{name: jnp.asarray(a) for name, a in AT.items()})
    plan, x = make_plan(options, None, TILE)
    leaves, tree = jax.tree.flatten(x)
    heads = ((0,), *[()] * (len(leaves) - 1))  # two heads of queries over the same keys
    every = lambda *x: jattn.attention(*x, mask=mask, return_lse=True, tile=TILE, implementation="loops", **AT)  # noqa: E731

    @jax.jit
    def kernels(q, *leaves):
        one = BatchLevels((2,), heads, ((0,),) * 3)
        out, m, log_sum = passes.forward(Forward(plan, tree), one, run, q, *leaves)
        both = BatchLevels((2,), heads + ((0,),) * 5, heads[:3])
        cotangents = jnp.sin(out), jnp.cos(m + log_sum)
        x = q, *leaves, out, m, log_sum, *cotangents
        return (out, m + log_sum), backward.backward(Backward(plan, tree, (0, 1, 2)), both, run, *x)

    with jax.default_device(jax.devices("cpu")[0]):  # the interpreter's memory is the host's
        value, gradient = batch(jax.vmap(every, (0, None, None)))(q, k, v)
        assert_close(kernels(q, *leaves[1:]), jax.tree.map(np.asarray, (value, list(gradient))))
    assert "RACE" not in "".join(capfd.readouterr())


@pytest.mark.structure
def test_splash_attention_has_the_same_values_and_gradients():
    """JAX's own kernel of the TPU, where it applies: causal, no empty row, nothing that is not finite."""
    n, H, width = 256, 2, 128
    q, k, v = (normal(H, n, width, seed=i, dtype=np.float32) for i in range(3))
    sizes = splash.BlockSizes(block_q=128, block_kv=128, block_kv_compute=128, block_q_dkv=128, block_kv_dkv=128,
                              block_kv_dkv_compute=128, block_q_dq=128, block_kv_dq=128)  # fmt: skip
    mask = splash_mask.MultiHeadMask([splash_mask.CausalMask((n, n)) for _ in range(H)])
    theirs = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1, block_sizes=sizes, interpret=True)
    scaled = lambda q, k, v: theirs(q * width**-0.5, k, v)  # noqa: E731
    ours = jax.vmap(lambda *x: jattn.attention(*x, mask=masks.causal(), tile=TILE, implementation="interpret"))
    loss = lambda f: lambda *x: jnp.sum(jnp.sin(f(*x)))  # noqa: E731
    got, want = (jax.jit(jax.value_and_grad(loss(f), (0, 1, 2)))(q, k, v) for f in (ours, scaled))
    assert_close(got, jax.tree.map(np.asarray, want))


def test_each_stop_of_a_ring_runs_as_a_kernel_of_its_device():
    mesh = jax.make_mesh((4,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
    spec, at = jax.sharding.PartitionSpec(None, "seq"), np.arange(1024)
    ring = functools.partial(jattn.sharding.ring, axis_name="seq", mask=masks.causal(), q_positions=at, k_positions=at)
    f = jax.jit(jax.shard_map(lambda *x: ring(*x), mesh=mesh, in_specs=spec, out_specs=spec))
    x = jax.ShapeDtypeStruct((1, 1024, 2, 64), jnp.float32)
    (found,) = jattn.implementations(f, x, x, x, platform="tpu")
    assert found == ("ringforward", False, "a ring asks for each device's share where it is lowered")
    assert kernels_in(f.trace(x, x, x).lower(lowering_platforms=("tpu",))) > 0
    assert kernels_in(f.trace(x, x, x).lower(lowering_platforms=("cpu",))) == 0


def test_a_class_of_masks_of_a_users_own_is_tried_and_runs_as_loops_where_it_cannot_be_lowered():
    class Sorted(masks.Mask):
        def pairs(self, q, k):
            return jax.lax.sort(jnp.broadcast_to(q.positions - k.positions, (128, 128))) >= 0

    Sorted = jax.tree_util.register_static(Sorted)
    f = lambda *x: jattn.attention(*x, mask=Sorted() & masks.causal(), tile=TILE)  # noqa: E731
    (found,) = jattn.implementations(f, *head(), platform="tpu")
    assert found.reason.startswith("what the score modifier or mask computes cannot be lowered there"), found


@pytest.mark.structure
@pytest.mark.parametrize(("platform", "tile"), [("tpu", (128, 256)), ("gpu", (64, 128))])
def test_a_tile_longer_than_all_rows_is_a_tile_of_the_kernels(platform, tile, monkeypatch):
    """Of loops it is as long as the rows; of kernels as the next of their sizes. A length that is no size and less than
    the rows has no kernel."""
    x = head(T=50, S=120, D=16, Dv=16)
    f = lambda *x, tile=tile: jattn.attention(*x, tile=tile, implementation="kernel")  # noqa: E731
    monkeypatch.setattr(support, "gpu_is_known", lambda: True)
    assert jattn.implementations(f, *x, platform=platform) == (("forward", True, ""),)
    (found,) = jattn.implementations(functools.partial(f, tile=(48, 128)), *x, platform=platform)
    assert found.reason.startswith("tile=(48, 128) is not of")


@pytest.mark.structure
def test_the_gradient_of_a_table_in_bfloat16_is_kernels_where_rows_stand_in_order():
    """Compared with each entry, the compiler of v5e and v5p has no room for it in bfloat16; in float32 it has."""

    def passes_of(dtype, which, **positions):
        q, k, v = (jax.ShapeDtypeStruct((512, 64), dtype) for _ in range(3))
        table = jax.ShapeDtypeStruct((32,), jnp.float32)

        def f(table, *x):
            return jattn.attention(*x, score=scores.relative_bias(table), **positions).astype(jnp.float32).sum()

        found = jattn.implementations(jax.grad(f, which), table, q, k, v, platform="tpu")
        return {one.name: one.kernel for one in found}

    both, at = {"forward": True, "backward": True}, np.arange(512, dtype=np.int32)
    given = {"q_positions": at, "k_positions": at}
    assert passes_of(jnp.bfloat16, 0) == both
    assert passes_of(jnp.bfloat16, 0, **given) == {"forward": True, "backward": False}
    assert passes_of(jnp.bfloat16, 1, **given) == passes_of(jnp.float32, 0, **given) == both
