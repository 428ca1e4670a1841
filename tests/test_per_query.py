"""What is measured of each query, and its best keys: in value and every derivative, against the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, assert_same, normal, pairs, positions, qkv
from _oracles import derivatives, weigh

import jattn
from jattn import masks, reference, scores

T, S, G, N = 19, 37, 3, 5  # several tiles each way
TILE = (16, 16)
GROUPS = np.arange(S, dtype=np.int32) * 5 % (G + 1) - 1  # a fourth of the keys in none
PLACES = positions(T, S)


def learned(table):
    return lambda x, t, s: x + table[jnp.abs(t - s) % 7]


def some_empty():
    """Query 4 may attend no key, query 5 two alone, query 6 just key 20."""
    allowed = pairs(T=T, S=S)
    allowed[4:7] = False
    allowed[5, [3, 30]] = allowed[6, 20] = True
    return allowed


BIAS, TABLE, SINK = normal(T, S, seed=7), normal(7, seed=4), normal(T, seed=9)
CASES = {  # the mask, and what is differentiated beside q and k
    "causal, sink, scale": (masks.causal(), {"sink": SINK, "scale": np.float64(0.7)}),
    "traced and some empty, score, bias, one sink": (
        masks.lengths(k=jnp.array(30)) & masks.dense(some_empty()),
        {"bias": BIAS, "table": TABLE, "sink": np.float64(0.3)},
    ),
    "all": (None, {}),
    "window, score, bias for all queries": (masks.window(9, 4), {"bias": BIAS[:1], "table": TABLE}),
}


def dense_top_keys(q, k, n, **options):
    """The n largest of the dense logits, by a stable sort."""
    logits = reference.steps(q, k, k[:, :0], **options)[0].scaled
    order = jnp.argsort(-jax.lax.stop_gradient(logits), axis=1, stable=True)[:, :n].astype(jnp.int32)
    found = jnp.take_along_axis(logits, order, 1)
    return jnp.where(found == -jnp.inf, jnp.int32(logits.shape[1]), order), found


def measured(statistics, top_keys, mask, **more):
    """f(active arrays) → (all that is measured, [T, ·], with 0 for −inf, and lse)."""

    def f(q, k, table=None, **options):
        options |= {"mask": mask, "score": None if table is None else learned(table), **PLACES, **more}
        found = statistics(q, k, groups=GROUPS, num_groups=G, **options)
        options.pop("sink", None)
        _, logits = top_keys(q, k, N, **options)
        found = found._replace(effective_keys=found.effective_keys / S)  # of the size of the others
        out = jnp.concatenate([x[:, None] if x.ndim == 1 else x for x in found] + [logits], 1)
        return jnp.where(out == -jnp.inf, 0, out), found.lse

    return f


def both(name):
    mask, active = CASES[name]
    q, k, _ = qkv(T=T, S=S)
    allowed = None if mask is None else masks.to_dense(mask, T, S, **PLACES)
    got = measured(jattn.statistics, jattn.top_keys, mask, tile=TILE)
    return got, measured(reference.statistics, dense_top_keys, allowed), {"q": q, "k": k, **active}


def first_and_second(f):
    """f → (value, gradient) and their tangents, in one program."""

    def orders(x):
        x_dot = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape), x)
        return jax.jvp(lambda x: (f(**x), jax.grad(lambda x: weigh(*f(**x)))(x)), (x,), (x_dot,))

    return orders


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_in_float64_they_are_the_definition_to_second_order():
    ours, definition, x = both("causal, sink, scale")
    x = jax.tree.map(jnp.asarray, x)
    got, want = (jax.jit(first_and_second(f))(x) for f in (ours, definition))
    assert_close(got, want, ulps=64, scale=16)
    assert_close(got[0][0], want[0][0], ulps=16)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CASES)
def test_in_float64_they_are_the_definition_in_every_order_of_both_modes(name):
    got, want, x = both(name)
    assert_close(derivatives(got)(**x), derivatives(want)(**x), ulps=64, scale=16)


def whole(*shape, seed=0):
    """Small whole numbers, whose products are exact and often equal, in float32."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


ALONE = {"scale": np.float32(1), "tile": TILE}


@pytest.mark.structure
@pytest.mark.parametrize("n", [1, 5, S + 2])
def test_the_best_keys_are_those_of_a_stable_sort(n):
    """Of many equal logits the lowest index first, whatever is visited first; fewer than n keys have the index S."""
    lengths = np.array([S, 30, 3, 0], np.int32)
    q, k = whole(4, T, 3), whole(4, S, 3, seed=1)

    def head(q, k, length):
        return jattn.top_keys(q, k, n, mask=masks.lengths(k=length) & ~masks.prefix(2), **PLACES, **ALONE)

    def definition(q, k, length):
        allowed = masks.to_dense(masks.lengths(k=length) & ~masks.prefix(2), T, S, **PLACES)
        indices, logits = dense_top_keys(q, k, n, mask=allowed, scale=np.float32(1))
        fewer = ((0, 0), (0, n - logits.shape[1]))
        return jnp.pad(indices, fewer, constant_values=S), jnp.pad(logits, fewer, constant_values=-jnp.inf)

    got = jax.jit(jax.vmap(head))(q, k, lengths)
    assert got[0].dtype == jnp.int32
    assert got[0].shape == got[1].shape == (4, T, n)
    assert_same(got, jax.jit(jax.vmap(definition))(q, k, lengths) if n <= S else jax.vmap(definition)(q, k, lengths))
    alone = jax.jit(head)(q[1], k[1], lengths[1])
    assert_same(alone, jax.tree.map(lambda a: a[1], got))


@pytest.mark.structure
def test_zeros_of_either_sign_are_equal_logits():
    indices, logits = jattn.top_keys(np.zeros((1, 1), np.float32), np.float32([[-1], [1], [1]]), 2)  # −0, 0, 0
    assert_same((indices, logits), (np.int32([[0, 1]]), np.zeros((1, 2), np.float32)))


@pytest.mark.structure
def test_a_sink_has_its_share_at_logits_beside_which_their_logarithm_is_lost():
    large, groups = np.full((5, 1), 2.0**13, np.float32), np.array([0, 1, 1, 1, 0])  # five logits of 2²⁶
    found = jattn.statistics(large[:1], large, sink=2.0**26, groups=groups, num_groups=2)
    np.testing.assert_allclose(found.sink_weight, [1 / 6], rtol=1e-6)
    np.testing.assert_allclose(found.group_weights, [[2 / 6, 3 / 6]], rtol=1e-6)


@pytest.mark.structure
def test_the_derivative_of_an_equal_maximum_is_that_of_the_first():
    q, k = np.ones((1, 2), np.float32), np.float32([[0, 0], [1, 0], [0, 1], [1, 0]])
    for f in (jattn.statistics, reference.statistics):
        largest, gradient = jax.jit(jax.value_and_grad(lambda k, f=f: f(q, k, scale=np.float32(1)).max_logit[0]))(k)
        assert largest == 1
        assert_same(gradient, np.float32([[0, 0], [1, 1], [0, 0], [0, 0]]))


def test_the_entropy_does_not_know_of_a_common_shift():
    """Beside logits of 2²⁰ the difference lse − mean_logit would keep three bits of it."""
    q, k = whole(T, 3), whole(S, 3, seed=1)

    @jax.jit
    def both(bias):
        return jattn.statistics(q, k, bias=bias[None, None], groups=GROUPS, num_groups=G, **ALONE)

    here, there = both(np.float32(0)), both(np.float32(2**20))
    for name in ("entropy", "effective_keys", "group_weights"):
        assert_same(getattr(here, name), getattr(there, name))
    assert_same(here.max_logit + 2**20, there.max_logit)
    assert (np.abs((there.lse - there.mean_logit) - there.entropy) > 1e-3).any()  # the control


@pytest.mark.usefixtures("x64")
def test_the_error_is_a_few_roundings_of_the_logits():
    """In float32 against float64, of logits from 1 to 1000, by the largest logit of any key."""
    q, k, _ = (x.astype(np.float32) for x in qkv(T=T, S=S))

    @jax.jit
    def measured(scale):
        return jattn.statistics(q, k, scale=scale, tile=TILE, groups=GROUPS, num_groups=G)

    @jax.jit
    def definition(scale):
        return reference.statistics(*map(np.float64, (q, k)), scale=scale, groups=GROUPS, num_groups=G)

    for scale in np.float32([0.4, 10, 300]):
        want = definition(np.float64(scale))
        size = 1 + float(scale) * (np.abs(q) @ np.abs(k).T).max(1).astype(np.float64)
        got = measured(scale)
        for name in ("max_logit", "lse", "mean_logit", "entropy", "group_weights"):
            row = size[:, None] if name == "group_weights" else size
            assert_close(getattr(got, name), getattr(want, name), ulps=8, scale=row)
        assert (got.entropy >= 0).all()
        assert_close(got.effective_keys, want.effective_keys, ulps=8, scale=size * want.effective_keys)


def all_of(statistics, top_keys, allow, **more):
    """All that is measured of one head, and the gradients, in which −inf and NaN have no part."""

    def measured(q, k, groups, n, allowed, table, bias, sink):
        def f(q, k, table, bias, sink):
            score = scores.distance_bias(table)
            options = {"mask": allow(n, allowed), "score": score, "bias": bias, **PLACES, **more}
            found = statistics(q, k, sink=sink, groups=groups, num_groups=G, **options)
            best = top_keys(q, k, 2, **options)
            loss = [jnp.where(jnp.isfinite(x), jnp.sin(x), 0) for x in (*found[:4], *found[5:], best[1])]
            return sum(map(jnp.sum, loss)), (found, best)

        (_, found), gradients = jax.value_and_grad(f, (0, 1, 2, 3, 4), has_aux=True)(q, k, table, bias, sink)
        return found, gradients

    return measured


ours = all_of(jattn.statistics, jattn.top_keys, lambda n, x: masks.lengths(k=n) & masks.dense(x), tile=TILE)
one_head, many_heads = jax.jit(ours), jax.jit(jax.vmap(ours))
dense_heads = jax.vmap(
    all_of(reference.statistics, dense_top_keys, lambda n, x: (jnp.arange(S, dtype=jnp.int32)[None] < n) & x)
)


def of_head(seed=0, **given):
    q, k, _ = (x.astype(np.float32) for x in qkv(seed, T=T, S=S))
    x = {"q": q, "k": k, "groups": np.roll(GROUPS, seed), "n": np.int32(S - 16 * seed), "allowed": some_empty()}
    x |= {"table": normal(7, seed=seed, dtype=np.float32), "bias": normal(T, S, seed=seed + 7, dtype=np.float32)}
    x |= {"sink": np.float32(2 - seed)} | given
    return tuple(x.values())


def test_a_number_beyond_int32_is_no_group():
    groups = np.array([2**32, 0, -(2**32), 2**32 + 1])
    found = jattn.statistics(np.ones((2, 3), np.float32), np.ones((4, 3), np.float32), groups=groups, num_groups=2)
    np.testing.assert_allclose(found.group_weights, [[0.25, 0]] * 2)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_each_example_has_groups_a_mask_and_a_score_of_its_own():
    x = of_head(0), of_head(1, allowed=np.tri(T, S, 9, dtype=bool))
    stacked = [np.stack(a) for a in zip(*x, strict=True)]
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in stacked]
    want, got = jax.jit(dense_heads)(*wide), many_heads(*stacked)
    assert_same(got[0][1][0], want[0][1][0])  # the indices
    for one in (got, jax.tree.map(lambda *a: jnp.stack(a), *(one_head(*a) for a in x))):
        assert_close(one, want, ulps=32, scale=16, dtype=np.float32)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_a_query_without_keys_has_what_is_documented_and_no_gradient():
    (found, best), (dq, *rest) = one_head(*of_head())
    assert_same([x[4] for x in found[:6]], list(np.float32([-np.inf, 2, 0, -np.inf, 0, 1])))
    assert_same([x[4] for x in best], [np.full(2, S, np.int32), np.full(2, -np.inf, np.float32)])
    assert not found.group_weights[4].any()
    assert not dq[4].any()
    assert dq[5].any()
    assert all(np.isfinite(d).all() for d in (dq, *rest))
    assert_same([x[6] for x in (found.entropy, found.effective_keys)], [np.float32(0), np.float32(1)])
    no_sink, _ = one_head(*of_head(sink=np.float32(-np.inf)))
    assert_same([x[4] for x in no_sink[0][:6]], list(np.float32([-np.inf, -np.inf, 0, -np.inf, 0, 0])))


@pytest.mark.structure
def test_of_no_keys_or_no_queries_the_result_is_that_of_queries_without_keys():
    q, k, groups, *_ = of_head()

    @jax.jit
    def measure(q, k, groups):
        return jattn.statistics(q, k, sink=np.float32(2), groups=groups, num_groups=G), jattn.top_keys(q, k, 2)

    found, best = measure(q, k[:0], groups[:0])
    for x, want in zip(found, np.float32([-np.inf, 2, 0, -np.inf, 0, 1, 0]), strict=True):
        assert_same(x, np.full((T,) if x.ndim == 1 else (T, G), want))
    assert_same(best, (np.zeros((T, 2), np.int32), np.full((T, 2), -np.inf, np.float32)))
    found, best = measure(q[:0], k, groups)
    assert [x.shape for x in (*found, *best)] == [(0,)] * 6 + [(0, G), (0, 2), (0, 2)]


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_a_nan_that_is_attended_makes_its_row_nan_and_one_that_is_masked_does_not_exist():
    allowed = np.ones((T, S), bool)
    allowed[:9, 30] = False  # the first queries do not see it
    _, k, *_ = of_head()
    dirty = k.copy()
    dirty[30] = np.nan
    got, _ = one_head(*of_head(k=dirty, allowed=allowed))
    want, _ = one_head(*of_head(allowed=allowed))
    assert_close(*(jax.tree.map(lambda x: x[:9], x) for x in (got, want)), ulps=8, dtype=np.float32)
    found, (indices, logits) = got
    assert all(np.isnan(x[9:]).all() for x in found)
    assert (indices[9:, 0] == 30).all()
    assert np.isnan(logits[9:, 0]).all()
    allowed[:, 30] = False
    assert_close(
        one_head(*of_head(k=dirty, allowed=allowed)), one_head(*of_head(allowed=allowed)), ulps=8, dtype=np.float32
    )


@pytest.mark.structure
def test_the_dtypes_are_wide_and_the_indices_int32():
    x = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((T, 5), (S, 5))]
    for wide in (False, True):
        with jax.enable_x64(wide):
            found = jax.eval_shape(lambda q, k: jattn.statistics(q, k, groups=GROUPS, num_groups=G), *x)
            assert [a.dtype for a in found] == [jnp.float32] * 7
            assert [a.dtype for a in jax.eval_shape(lambda q, k: jattn.top_keys(q, k, 3), *x)] == [
                jnp.int32,
                jnp.float32,
            ]
            gradient = jax.eval_shape(jax.grad(lambda q, k: jattn.top_keys(q, k, 3)[1].sum()), *x)
            assert gradient.dtype == jnp.bfloat16
