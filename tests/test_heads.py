"""Heads: what one line of each says, checked against the reference head by head in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, assert_same, normal
from jax.sharding import PartitionSpec as P
from jax.tree_util import Partial

from jattn import heads, masks, reference
from jattn.positions import rotary

T, S, E, C, H, HKV, D, DV = 13, 17, 11, 7, 6, 3, 4, 5
CAUSAL = np.tril(np.ones((T, T), bool))
attention, rotated = jax.jit(reference.attention), jax.jit(rotary, static_argnames="base")
causal = jax.jit(partial(heads.multi_head, mask=masks.causal()))


def init(key, width, of=heads.init, **options):
    """Parameters, drawn in one program."""
    return jax.tree.map(np.asarray, jax.jit(partial(of, width=width, **options))(key))


def drawn(seed=0, **options):
    """Parameters in float64, every array of them away from its initial value."""
    sizes = {"heads": H, "head_dim": D, "value_dim": DV, "initializer": jax.nn.initializers.zeros}
    made = init(jax.random.key(seed), E, **sizes | options)
    return {
        name: normal(*w.shape, seed=i) * 0.3 + np.asarray(w, np.float64) for i, (name, w) in enumerate(made.items())
    }


def by_reference(params, x, context=None, rope=lambda x: x, per_head=lambda h: {}, **options):
    """Attention of every head, one by one, in NumPy and the dense reference."""
    context, p = x if context is None else context, params
    group = p["q"].shape[1] // p["k"].shape[1]

    def unit(x):
        return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6 * x.shape[-1])

    total = 0
    for h in range(p["q"].shape[1]):
        q = x @ p["q"][:, h] + p.get("q_bias", np.zeros((H, 1)))[h]
        k = context @ p["k"][:, h // group] + p.get("k_bias", np.zeros((H, 1)))[h // group]
        v = context @ p["v"][:, h // group] + p.get("v_bias", np.zeros((H, 1)))[h // group]
        if "q_norm" in p:
            q, k = unit(q) * D**0.5 * p["q_norm"], unit(k) * D**0.5 * p["k_norm"]
        if "temperature" in p:
            q, k, options = unit(q) * p["temperature"][h], unit(k), {"scale": 1.0} | options
        out = np.asarray(attention(rope(q), rope(k), v, **options, **per_head(h))[0])
        if "head_scale" in p:
            out = out * p["head_scale"][h]
        if "gate" in p:
            out = out / (1 + np.exp(-(x @ p["gate"][:, h])))
        total = total + out @ p["out"][h]
    return total + p.get("out_bias", 0)


FORMS = {
    "multi-head": {},
    "grouped": {"kv_heads": HKV},
    "multi-query": {"kv_heads": 1},
    "biases": {"bias": True, "kv_heads": HKV},
    "RMS norm of q and k": {"qk_norm": "rms"},
    "L2 norm of q and k": {"qk_norm": "l2"},
    "a scale a head": {"head_scale": True, "kv_heads": HKV},
    "a gate": {"gate": True},
    "all at once": {"kv_heads": HKV, "bias": True, "qk_norm": "rms", "head_scale": True, "gate": True},
}


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", FORMS)
def test_multi_head_is_attention_in_every_head(form):
    params, x = drawn(**FORMS[form]), normal(T, E, seed=50)
    got = causal(params, x)
    assert_close(got, by_reference(params, x, mask=CAUSAL), ulps=64)
    if form != "multi-head":  # the control: each form is its own
        plain = {name: params[name] for name in ("q", "k", "v", "out")}
        others = plain if set(params) != set(plain) else {**plain, "k": plain["k"] * 1.1}
        assert np.abs(got - causal(others, x)).max() > 1e-3


LATENT = partial(heads.latent_init, rope_dim=2, value_dim=4, kv_rank=6)


@pytest.mark.structure
@pytest.mark.parametrize(
    ("made", "layer"),
    [
        (partial(heads.init, kv_heads=2, bias=True, gate=True), heads.multi_head),
        (LATENT, partial(heads.latent_expanded, rope=rotary)),
        (LATENT, partial(heads.latent_absorbed, rope=rotary)),
    ],
    ids=["grouped", "latent, written out", "latent, absorbed"],
)
def test_on_an_explicit_mesh_each_device_has_some_of_the_heads_and_their_sum_is_whole(made, layer):
    params = init(jax.random.key(0), E, made, heads=4, head_dim=D)
    x = normal(2, T, E, seed=50, dtype=np.float32)
    mapped = jax.vmap(partial(layer, mask=masks.causal()), (None, 0))
    gradient = jax.jit(jax.grad(lambda params, x: jnp.sum(mapped(params, x) ** 2)))
    want = gradient(params, x)
    mesh = jax.make_mesh((2, 2), ("examples", "heads"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        first, second = {"out", "q_bias", "k_bias", "v_bias"}, {"q", "k", "v", "gate"}
        spec = {name: P("heads") if name in first else P(None, "heads") if name in second else P() for name in params}
        cut = {name: jax.device_put(w, spec[name]) for name, w in params.items()}
        got = gradient(cut, jax.device_put(x, P("examples")))
    assert all(got[name].sharding.is_equivalent_to(w.sharding, w.ndim) for name, w in cut.items())
    assert_close(got, want, ulps=64, scale=max(np.abs(w).max() for w in want.values()))


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_cross_attention_asks_a_context_of_another_width():
    params, x, context = drawn(context_width=C, bias=True), normal(T, E, seed=50), normal(S, C, seed=51)
    assert_close(jax.jit(heads.multi_head)(params, x, context), by_reference(params, x, context), ulps=64)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_turning_comes_after_the_norm_and_sees_the_positions_of_each_side():
    params, x, context = drawn(qk_norm="rms"), normal(T, E, seed=50), normal(S, E, seed=51)
    stand, there = np.arange(T, dtype=np.int32) + 4, np.arange(S, dtype=np.int32)
    rope = lambda x: np.asarray(rotated(x, stand if len(x) == T else there, base=50.0))  # noqa: E731
    block = jax.jit(partial(heads.multi_head, rope=partial(rotary, base=50.0), mask=masks.causal()))
    got = block(params, x, context, q_positions=stand, k_positions=there)
    want = by_reference(params, x, context, rope, mask=stand[:, None] >= there[None])
    assert_close(got, want, ulps=64)
    # the distance alone matters, so that positions of self-attention may begin anywhere
    alone = jax.jit(partial(heads.multi_head, rope=rotary))
    shifted = [alone(params, x, q_positions=stand + np.int32(n)) for n in (0, 1000)]
    assert_close(*shifted, ulps=1e5)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_each_head_has_its_own_sink_bias_and_score():
    params, x = drawn(kv_heads=HKV), normal(T, E, seed=50)
    sinks, biases, slopes = normal(H, seed=51), normal(H, T, T, seed=52), np.linspace(0.1, 1, H)

    def far(slope, score, t, s):
        return score - slope * (t - s).astype(score.dtype)

    got = causal(params, x, per_head={"sink": sinks, "bias": biases, "score": Partial(far, slopes)})
    own = lambda h: {"sink": sinks[h], "bias": biases[h], "score": Partial(far, slopes[h])}  # noqa: E731
    assert_close(got, by_reference(params, x, per_head=own, mask=CAUSAL), ulps=64)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_heads_may_have_their_own_scale_and_positions_in_place_of_what_is_left_out():
    """A learned temperature has a scale of its own, 1, and positions that are left out are none."""
    params, x = drawn(qk_norm="l2"), normal(T, E, seed=50)
    scales, stand = np.linspace(0.5, 2, H), np.arange(T, dtype=np.int32) + 3 * np.arange(H, dtype=np.int32)[:, None]
    there = np.broadcast_to(np.arange(T, dtype=np.int32), (H, T))
    given = {"scale": scales, "q_positions": stand, "k_positions": there}
    q, k, v = heads.project(params, x)
    allowed = stand[:, :, None] >= there[:, None]
    each = jax.vmap(lambda q, k, v, mask, scale: attention(q, k, v, mask=mask, scale=scale)[0])
    want = heads.output(params, each(q, k, v, allowed, scales), x)
    assert_close(causal(params, x, per_head=given), want, ulps=64)


@pytest.mark.structure
def test_a_scale_of_each_head_stands_for_that_of_the_form_and_none_for_none():
    """A learned temperature has the scale 1, absorbed latent attention that of the width before it was absorbed."""
    params, x = drawn(qk_norm="l2"), normal(T, E, seed=50, dtype=np.float32)
    latent = heads.latent_init(jax.random.key(0), E, heads=H, head_dim=8, rope_dim=4, value_dim=8, kv_rank=6)
    for f, own in (
        (lambda **more: heads.multi_head(params, x, **more), 1.0),
        (lambda **more: heads.latent_absorbed(latent, x, rope=rotary, **more), 12**-0.5),
    ):
        assert_same(f(per_head={"scale": None}), f())
        assert_close(f(per_head={"scale": np.full(H, own, np.float32)}), f(), ulps=8)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_the_gradient_of_every_parameter_is_that_of_the_reference():
    params, x = drawn(**FORMS["all at once"]), normal(T, E, seed=50)

    def dense(params, x):  # the same heads around the reference
        q, k, v = heads.project(params, x)
        k, v = (jnp.repeat(a, H // HKV, 0) for a in (k, v))
        out = jax.vmap(partial(reference.attention, mask=CAUSAL))(q, k, v)[0]
        return heads.output(params, out, x)

    by = normal(T, E, seed=60)
    grads = [jax.jit(jax.grad(lambda p, x, f=f: (f(p, x) * by).sum(), (0, 1)))(params, x)
             for f in (partial(heads.multi_head, mask=masks.causal()), dense)]  # fmt: skip
    assert_close(*grads, ulps=512)


@pytest.mark.structure
def test_dropout_draws_anew_for_each_head():
    q = k = np.zeros((H, T, D), np.float32)
    v = np.broadcast_to(np.eye(T, dtype=np.float32), (H, T, T))
    made = jax.jit(partial(heads.grouped, dropout_rate=0.5))(q, k, v, dropout_key=jax.random.key(3))
    dropped = np.asarray(made) == 0
    assert 0.4 < dropped.mean() < 0.6
    assert (dropped[0] != dropped[1]).mean() > 0.3


INITIALIZERS = {
    "lecun_normal": (jax.nn.initializers.lecun_normal(), lambda fan_in, fan_out: 1 / fan_in),
    "glorot_uniform": (jax.nn.initializers.glorot_uniform(), lambda fan_in, fan_out: 2 / (fan_in + fan_out)),
    "normal(0.02)": (jax.nn.initializers.normal(0.02), lambda fan_in, fan_out: 0.0004),
}


@pytest.mark.structure
@pytest.mark.parametrize("name", INITIALIZERS)
def test_the_mean_and_variance_of_every_matrix_are_as_documented(name):
    initializer, variance = INITIALIZERS[name]
    made = init(jax.random.key(0), 96, heads=4, kv_heads=2, head_dim=40, value_dim=24, context_width=64,
                gate=True, initializer=initializer)  # fmt: skip
    latent = init(jax.random.key(1), 96, heads.latent_init, heads=4, head_dim=40, rope_dim=16, value_dim=24,
                  kv_rank=32, q_rank=48, initializer=initializer)  # fmt: skip
    for params in (made, {n: w for n, w in latent.items() if "norm" not in n}):
        for which, w in params.items():
            fan_in = w.shape[0] * w.shape[1] if which == "out" else w.shape[0]
            want, n = variance(fan_in, w.size // fan_in), w.size
            assert abs(w.mean()) < 4 * (want / n) ** 0.5, which  # four standard errors
            assert abs(w.var() / want - 1) < 4 * (2 / n) ** 0.5, which
    drawn = [np.ravel(w)[:8] for w in made.values()]
    assert all(np.abs(a - b).max() > 1e-3 for i, a in enumerate(drawn) for b in drawn[:i]), "no two are alike"


@pytest.mark.structure
def test_what_is_not_a_matrix_begins_where_it_changes_nothing():
    made = init(jax.random.key(0), E, heads=H, head_dim=D, bias=True, qk_norm="rms", head_scale=True)
    for name, w in made.items():
        if name.endswith("bias"):
            assert_close(w, np.zeros(w.shape), ulps=0)
        if name.endswith("norm") or name == "head_scale":
            assert_close(w, np.ones(w.shape), ulps=0)
    l2 = init(jax.random.key(0), E, heads=H, head_dim=D, qk_norm="l2", dtype=jnp.bfloat16)
    assert_close(l2["temperature"], np.full(H, D**0.5), ulps=1)
    assert {w.dtype for w in l2.values()} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.structure
def test_unit_tokens_stay_unit_and_scores_have_variance_one():
    params = init(jax.random.key(0), 256, heads=8, head_dim=32)
    q, k, v = map(np.asarray, jax.jit(heads.project)(params, normal(64, 256, dtype=np.float32)))
    assert {round(float(a.var()), 1) for a in (q, k, v)} == {1.0}
    scores = np.einsum("htd,hsd->hts", q, k) * 32**-0.5
    off_diagonal = scores[:, ~np.eye(64, dtype=bool)]
    assert 0.9 < off_diagonal.var() < 1.1


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("q_rank", [None, 9])
def test_latent_attention_expanded_is_absorbed_and_both_are_the_definition(q_rank):
    made = init(jax.random.key(0), E, heads.latent_init, heads=H, head_dim=D, rope_dim=2, value_dim=DV, kv_rank=C,
                q_rank=q_rank, initializer=jax.nn.initializers.zeros)  # fmt: skip
    p = {name: normal(*w.shape, seed=i) * 0.3 + np.asarray(w, np.float64) for i, (name, w) in enumerate(made.items())}
    x, stand, by = normal(T, E, seed=50), np.arange(T, dtype=np.int32) + 5, normal(T, E, seed=51)
    rope, options = partial(rotary, base=30.0), {"mask": masks.causal(), "per_head": {"sink": normal(H, seed=9)}}
    forms = [partial(f, positions=stand, rope=rope, **options) for f in (heads.latent_expanded, heads.latent_absorbed)]

    def loss(p, x, f):
        out = f(p, x)
        return (out * by).sum(), out

    grad = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), static_argnums=2)
    ((value, out), slopes), ((other, _), others) = (grad(p, x, f) for f in forms)
    assert_close((value, slopes), (other, others), ulps=2048)
    rope = partial(rotated, base=30.0)

    def rms(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight

    latent, k_rotated = rms(x @ p["kv_down"], p["kv_norm"]), rope(x @ p["k_rope"], stand)
    asked = rms(x @ p["q_down"], p["q_latent_norm"]) if q_rank else x
    total = 0
    for h in range(H):
        q = asked @ p["q"][:, h]
        q = np.concatenate([q[:, :D], rope(q[:, D:], stand)], 1)
        k = np.concatenate([latent @ p["k"][:, h], k_rotated], 1)
        sink = options["per_head"]["sink"][h]
        total = total + attention(q, k, latent @ p["v"][:, h], mask=CAUSAL, sink=sink)[0] @ p["out"][h]
    assert_close(out, total, ulps=256)


@pytest.mark.structure
def test_params_and_tokens_of_two_dtypes_promote_as_in_attention():
    """With strict promotion too; a part of params may be wider than the rest."""
    latent = init(jax.random.key(0), E, heads.latent_init, heads=H, head_dim=D, rope_dim=2, value_dim=DV, kv_rank=C,
                  q_rank=C, dtype=jnp.bfloat16)  # fmt: skip
    x = normal(T, E).astype(np.float32)
    forms = [(heads.multi_head, drawn_in_half(form)) for form in (FORMS["all at once"], FORMS["L2 norm of q and k"])]
    forms += [(partial(f, rope=rotary), latent) for f in (heads.latent_expanded, heads.latent_absorbed)]
    for f, params in forms:
        wide = jax.tree.map(lambda w: w.astype(np.float32), params)
        program = jax.jit(f)
        got = program(params, x)
        assert got.dtype == jnp.float32
        assert_close(got, program(wide, x), ulps=2**6)
        for name in ("k_rope", "out"):
            some = params | {name: wide[name]} if name in params else params
            jax.eval_shape(f, some, x.astype(jnp.bfloat16))


def drawn_in_half(form):
    return init(jax.random.key(0), E, heads=H, head_dim=D, dtype=jnp.bfloat16, **form)


def test_a_batch_is_a_vmap_and_low_precision_stays_low():
    params = init(jax.random.key(0), E, heads=H, head_dim=D, kv_heads=HKV, dtype=jnp.bfloat16)
    x = normal(2, T, E).astype(jnp.bfloat16)
    got = jax.jit(jax.vmap(causal, (None, 0)))(params, x)
    assert got.dtype == jnp.bfloat16
    assert_close(got[1], causal(params, x[1]), ulps=4)
