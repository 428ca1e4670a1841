"""What a head attends and what it does: scores beside the weights written out, effects beside their definitions."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, normal
from _jaxprs import formed
from scipy.stats import spearmanr

import jattn
from jattn import heads, masks

pytestmark = [pytest.mark.structure, pytest.mark.usefixtures("x64")]

T, E, H, HKV, D, DV, V = 13, 11, 6, 3, 4, 5, 17
LAYERS = 2
TOKENS = np.array([3, 1, 4, 1, 1, 3, 2, 4, 3, 2, 0, 1, 4], np.int32)
CAUSAL = np.tril(np.ones((T, T), bool))


def relations(tokens):
    """The keys that each score is about, as booleans [T, T], pair by pair from its definition."""
    made = {name: np.zeros((T, T), bool) for name in heads.HeadScores._fields[:4]}
    for t, s in np.ndindex(T, T):
        made["previous_token"][t, s] = s == t - 1
        made["duplicate_token"][t, s] = s < t and tokens[s] == tokens[t]
        made["induction"][t, s] = 1 <= s <= t and tokens[s - 1] == tokens[t]
        made["first_token"][t, s] = s == 0 < t
    return made


def by_reference(q, k, allowed, sink=None, slopes=None):
    """The scores of each head from its weights, all of them written out."""
    found = []
    for h in range(H):
        t, s = np.ogrid[:T, :T]
        logits = q[h] @ k[h // (H // HKV)].T / D**0.5 - (0 if slopes is None else slopes[h] * (t - s))
        logits = np.where(allowed, logits, -np.inf)
        if sink is None:  # or those above 700 would overflow
            logits = logits - np.maximum(logits.max(1, keepdims=True), -1e300)
        rest = 0 if sink is None else np.exp(sink[h])
        exps = np.exp(logits)
        weights = exps / np.maximum(exps.sum(1, keepdims=True) + rest, 1e-300)
        p = exps / np.maximum(exps.sum(1, keepdims=True), 1e-300)
        means = []
        for relation in relations(TOKENS).values():
            there = (allowed & relation).any(1)
            means.append((weights * relation).sum(1)[there].mean() if there.any() else 0)
        entropies = -(p * np.log(np.where(p > 0, p, 1))).sum(1)
        found.append([*means, entropies[allowed.any(1)].mean()])
    return np.array(found).T


def far(slope, score, t, s):
    return score - slope * (t - s).astype(score.dtype)


def test_head_scores_are_means_of_the_weights_with_their_gradient():
    q, k, by = normal(H, T, D), normal(HKV, T, D, seed=1), normal(5, H, seed=2)
    sink, slopes = normal(H, seed=3), np.linspace(0.1, 1, H)
    own = {"sink": sink, "score": jax.tree_util.Partial(far, slopes)}

    def loss(q, k):
        found = heads.head_scores(q, k, TOKENS, mask=masks.causal(), per_head=own)
        return (jnp.stack(found) * by).sum(), found

    slope, found = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(q, k)
    assert_close(np.stack(found), by_reference(q, k, CAUSAL, sink, slopes), ulps=64)
    step = normal(H, T, D, seed=4), normal(HKV, T, D, seed=5)
    of = lambda x: (by_reference(q + x * step[0], k + x * step[1], CAUSAL, sink, slopes) * by).sum()  # noqa: E731
    along = sum((a * b).sum() for a, b in zip(slope, step, strict=True))
    assert along == pytest.approx((of(1e-5) - of(-1e-5)) / 2e-5, rel=1e-7)


def test_head_scores_under_a_mask_of_booleans_count_who_may_attend():
    q, k = normal(H, T, D), normal(HKV, T, D, seed=1)
    allowed = np.random.default_rng(0).random((T, T)) < 0.7
    allowed[[2, 11]] = False  # who attend nobody
    of = jax.jit(lambda allowed: heads.head_scores(q, k, TOKENS, mask=allowed))
    assert_close(np.stack(of(allowed)), by_reference(q, k, allowed), ulps=64)
    assert_close(np.stack(of(np.zeros((T, T), bool))), np.zeros((5, H)), ulps=0)
    found = by_reference(q, k, np.ones((T, T), bool))
    assert np.abs(found - by_reference(q, k, allowed)).min(1).max() > 1e-3  # a mask that is left out would be seen


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32])
def test_head_scores_take_tokens_up_to_the_ends_of_their_dtype(dtype):
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    q, k = normal(2, 4, D), normal(1, 4, D, seed=1)
    of = lambda *tokens: np.stack(heads.head_scores(q, k, np.array(tokens, dtype), mask=masks.causal()))  # noqa: E731
    assert_close(of(least, 1, most, 1), of(2, 1, 3, 1), ulps=0)  # the token alone matters, not its number


@pytest.mark.parametrize("size", [1e2, 1e4, 1e7])
def test_head_scores_of_large_logits_are_right_to_the_rounding_of_these(size):
    """Ties included, which are split; and no score leaves [0, 1]."""
    q, k = np.float32(normal(H, T, D)), np.float32(normal(HKV, T, D, seed=1))
    k[:, 1::2] = k[:, :-1:2]
    q *= np.float32(D**0.5 * size / np.abs(np.einsum("htd,hsd->hts", q, np.repeat(k, H // HKV, 0))).max())
    found = np.stack(heads.head_scores(q, k, TOKENS, mask=masks.causal()))
    want = by_reference(np.float64(q), np.float64(k), CAUSAL)
    off = 4 * size * np.finfo(np.float32).eps
    assert np.abs(found - want)[:4].max() < min(off, 1)
    assert np.abs(found - want)[4].max() < off
    assert (found[:4] >= 0).all()
    assert (found[:4] <= 1).all()


def test_head_scores_of_no_tokens_are_0():
    found = heads.head_scores(np.zeros((2, 0, D)), np.zeros((1, 0, D)), np.zeros(0, np.int32))
    assert_close(np.stack(found), np.zeros((5, 2)), ulps=0)


def test_head_scores_form_no_array_of_pairs():
    n = 67
    q, tokens = normal(2, n, D), np.arange(n, dtype=np.int32) % 7
    of = lambda q, **options: sum(map(jnp.sum, heads.head_scores(q, q[:1], tokens, **options)))  # noqa: E731
    tiles = jax.make_jaxpr(partial(of, mask=masks.causal(), tile=(16, 16)))(q)
    assert max(math.prod(a.shape) for a in formed(tiles.jaxpr)) < n * n / 3
    whole = jax.make_jaxpr(partial(of, tile=(80, 80)))(q)
    assert max(math.prod(a.shape) for a in formed(whole.jaxpr)) >= n * n  # one that is formed would be seen


def model(params, tokens, gates=None, added=None):
    """A loss over two layers of heads, with a gate a head and something added to what each head writes."""
    x = params["embed"][tokens]
    for layer in range(LAYERS):
        p = jax.tree.map(lambda a, layer=layer: a[layer], params["layers"])
        out = heads.grouped(*heads.project(p, x), mask=masks.causal())
        y = jnp.einsum("htd,hde->hte", out, p["out"])
        y = y if gates is None else y * gates[layer][:, None, None]
        x = x + (y if added is None else y + added[layer]).sum(0)
    logits = jnp.tanh(x) @ params["unembed"]
    return -jnp.take_along_axis(jattn.log_softmax(logits)[:-1], tokens[1:, None], 1).mean()


@pytest.fixture(scope="module")
def trained():
    shapes = {"q": (E, H, D), "k": (E, HKV, D), "v": (E, HKV, DV), "out": (H, DV, E)}
    layers = {name: 0.25 * normal(LAYERS, *shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return {"embed": normal(5, E, seed=7), "unembed": normal(E, 5, seed=8), "layers": layers}


def test_each_effect_is_what_it_is_called(trained):
    params, ones = jax.tree.map(jnp.asarray, trained), np.ones((LAYERS, H))
    f = jax.jit(lambda gates: model(params, TOKENS, gates))
    all_of = jax.jit(lambda gates: heads.effects(partial(model, params, TOKENS), gates, batch_size=3))
    found = all_of(ones)
    of_params = jax.jit(lambda out: model({**params, "layers": {**params["layers"], "out": out}}, TOKENS))
    plain = of_params(trained["layers"]["out"])
    assert found.value == pytest.approx(float(plain), rel=1e-14)
    h = 5e-4
    for head in np.ndindex(LAYERS, H):
        out = trained["layers"]["out"].copy()
        out[head] = 0  # its rows of W_O
        assert found.knock_out[head] == pytest.approx(float(of_params(out) - plain), abs=1e-14)
        gate = np.arange(LAYERS * H).reshape(LAYERS, H) == head[0] * H + head[1]
        there = np.array([float(f(ones + n * h * gate)) for n in (-2, -1, 0, 1, 2)])
        slope, curvature = there @ [1, -8, 0, 8, -1] / (12 * h), there @ [-1, 16, -30, 16, -1] / (12 * h**2)
        assert found.first_order[head] == pytest.approx(-slope, abs=1e-7)
        assert found.second_order[head] - found.first_order[head] == pytest.approx(curvature / 2, rel=1e-6, abs=1e-7)
    assert np.abs(found.second_order - found.first_order).min() > 1e-5
    assert np.abs(found.first_order - found.knock_out).max() > 1e-2

    # Gradient × activation, of what each head writes.
    def written(added):
        return model(params, TOKENS, added=added)

    slope = jax.jit(jax.grad(written))(np.zeros((LAYERS, H, T, E)))
    x, dot = params["embed"][TOKENS], []
    for layer in range(LAYERS):
        p = jax.tree.map(lambda a, layer=layer: a[layer], params["layers"])
        y = jnp.einsum("htd,hde->hte", heads.grouped(*heads.project(p, x), mask=masks.causal()), p["out"])
        dot.append((slope[layer] * y).sum((1, 2)))
        x = x + y.sum(0)
    assert_close(found.first_order, -np.stack(dot), ulps=64)

    # A head that is already gone stays gone, and the others are judged without it.
    gone = np.where(np.arange(H) == 2, 0.0, ones)
    left = all_of(gone)
    assert_close([a[:, 2] for a in left[1:]], [np.zeros(LAYERS)] * 3, ulps=0)
    both = np.array(gone)
    both[1, 0] = 0
    assert left.knock_out[1, 0] == pytest.approx(float(f(both) - f(gone)), abs=1e-14)


@pytest.mark.parametrize("number", [3.0, np.float32(3)])
def test_heads_have_no_effect_on_a_number_that_no_gate_changes(number):
    value, *effects = heads.effects(lambda gates: number, np.ones(H))
    assert isinstance(value, jax.Array)
    assert (value, *map(np.count_nonzero, effects)) == (3, 0, 0, 0)


def test_agreement_is_that_of_ranks_with_ties():
    a = np.array([[0.1, -0.3, 0.2], [0.2, 0.0, -0.1]])
    b = np.array([[0.4, -0.1, -0.2], [0.3, 0.3, -0.5]])
    found = heads.agreement(a, b)
    assert found.rank_correlation == pytest.approx(spearmanr(a, b, axis=None).statistic, abs=1e-15)
    assert found.opposite_sign.tolist() == [[False, False, True], [False, False, False]]  # 0 has no sign
    assert_close(found.error, a - b, ulps=1)
    assert heads.agreement(a, -(a**3)).rank_correlation == pytest.approx(-1)
    assert np.isnan(heads.agreement(a, np.ones((2, 3))).rank_correlation)
    assert np.isnan(heads.agreement(a, np.where(b > 0, b, np.nan)).rank_correlation)


def test_effects_and_gradients_of_two_dtypes_promote_as_in_attention():
    half = lambda x: jnp.asarray(x, jnp.bfloat16)  # noqa: E731
    out, gradient, unembed = normal(H, T, DV), normal(H, DV, E, seed=1), normal(E, V, seed=2)
    got = heads.backward_lens(half(out), gradient, half(unembed))
    want = heads.backward_lens(np.float64(half(out)), gradient, np.float64(half(unembed)))
    assert_close((got.written, got.logits), (want.written, want.logits), ulps=64)
    assert heads.agreement(half(normal(H)), normal(H)).error.dtype == np.float64
    mixed = heads.head_scores(half(normal(H, T, D)), normal(HKV, T, D), TOKENS)
    assert {x.dtype for x in mixed} == {np.dtype(np.float64)}


def test_the_backward_lens_is_what_a_step_of_gradient_descent_adds():
    x, unembed, goal = normal(T, E, seed=1), normal(E, V, seed=2), np.arange(T, dtype=np.int32) % V
    params = {"q": normal(E, H, D), "k": 0.3 * normal(E, HKV, D, seed=4), "v": 0.3 * normal(E, HKV, DV, seed=5)}
    O = normal(H, DV, E, seed=3)  # noqa: E741 (as the formula has it)
    out = np.asarray(jax.jit(lambda p, x: heads.grouped(*heads.project(p, x), mask=masks.causal()))(params, x))

    def loss(O):  # noqa: E741
        logits = heads.output({"out": O}, out, x) @ unembed
        return -jnp.take_along_axis(jattn.log_softmax(logits), goal[:, None], 1).mean()

    value, gradient = jax.jit(jax.value_and_grad(loss))(O)
    lens = jax.jit(partial(heads.backward_lens, n=3))(out, gradient, unembed)
    rate = 1e-5
    added = np.einsum("htd,hde->hte", out, O - rate * np.asarray(gradient)) - np.einsum("htd,hde->hte", out, O)
    np.testing.assert_allclose(lens.written, added / rate, rtol=0, atol=1e-9)
    raised = np.einsum("hte,ev->htv", lens.written, unembed)
    np.testing.assert_array_equal(lens.tokens, np.argsort(-raised, axis=2)[:, :, :3])
    assert_close(lens.logits, -np.sort(-raised, axis=2)[:, :, :3], ulps=64)
    falls = [float(value - loss(np.where((np.arange(H) == h)[:, None, None], O - rate * gradient, O))) / rate
             for h in range(H)]  # fmt: skip
    np.testing.assert_allclose(lens.decrease, falls, rtol=1e-4)
    assert np.ptp(lens.decrease) > 1e-3 * np.max(lens.decrease)
