"""In place of what people already use: each host's own attention, value and gradient, decode and dropout."""

import subprocess
import sys
import types
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, normal
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jattn import dot_product_attention, masks

pytestmark = pytest.mark.structure

T, S, E, H, D, B = 7, 11, 12, 3, 4, 2
CAUSAL = np.tril(np.ones((T, T), bool))
HOSTS = {"flax": "flax", "equinox": "equinox", "haiku": "haiku"}


def near(got, want, ulps=64):
    assert_close(
        got, want, ulps=ulps, scale=np.maximum(1, np.abs(np.asarray(want)).max()) if hasattr(want, "shape") else None
    )


def same_with_gradient(ours, theirs, x):
    """Value, and the gradient of everything in x, of two functions of a pytree."""
    by = None
    found = []
    for f in (ours, theirs):
        out, pull = jax.vjp(jax.jit(f), x)
        by = normal(*out.shape, seed=9, dtype=np.float32) if by is None else by
        found.append((out, pull(by)[0]))
    jax.tree.map(partial(near, ulps=128), *found)


# flax.nnx


def nnx_pair(**options):
    from flax import nnx

    from jattn.hosts.flax import attention_fn

    make = lambda **more: nnx.MultiHeadAttention(  # noqa: E731
        H, E, rngs=nnx.Rngs(0), **({"decode": False} | options | more)
    )
    return make(attention_fn=attention_fn), make()


@pytest.mark.parametrize("call", [{}, {"mask": CAUSAL[None, None]}, {"is_causal": True}], ids=["all", "mask", "causal"])
def test_nnx_takes_it_as_its_attention_fn(call):
    from flax import nnx

    ours, theirs = nnx_pair()
    x = normal(B, T, E, dtype=np.float32)
    fs = []
    for layer in (ours, theirs):
        graph, state = nnx.split(layer)
        fs.append(lambda both, graph=graph: nnx.merge(graph, both[0])(both[1], **call))
        both = (state, x)
    same_with_gradient(*fs, both)


def test_nnx_decodes_with_it_step_by_step():
    ours, theirs = nnx_pair(decode=True)
    x = normal(B, T, E, dtype=np.float32)
    for layer in (ours, theirs):
        layer.init_cache((B, T, E))
    for t in range(3):
        near(ours(x[:, t : t + 1]), theirs(x[:, t : t + 1]))
    full = nnx_pair()[0](x[:, :3], mask=CAUSAL[None, None, :3, :3])
    ours.init_cache((B, T, E))
    steps = [ours(x[:, t : t + 1]) for t in range(3)]
    near(jnp.concatenate(steps, 1), full)


@pytest.mark.filterwarnings("ignore:Using:DeprecationWarning")  # flax says so of its own sow too
def test_nnx_keeps_the_weights_when_asked():
    from flax import nnx

    x, kept = normal(B, T, E, dtype=np.float32), []
    for layer in nnx_pair():
        layer(x, mask=CAUSAL[None, None], sow_weights=True)
        kept += jax.tree.leaves(nnx.pop(layer, nnx.Intermediate))
    assert kept[0].shape == (B, H, T, T)
    near(*kept)


@pytest.mark.parametrize("alike", [True, False])
def test_flax_dropout_drops_its_share_alike_or_for_each(alike):
    from jattn.hosts.flax import attention_fn

    query = key = jnp.zeros((B, 31, H, D))
    value = jnp.broadcast_to(jnp.eye(31)[None, :, None], (B, 31, H, 31))
    options = {"dropout_rng": jax.random.key(1), "dropout_rate": 0.25, "broadcast_dropout": alike}
    kept, plain = (
        jax.jit(partial(attention_fn, **options, deterministic=still))(query, key, value) for still in (False, True)
    )
    dropped = kept == 0
    assert 0.2 < dropped.mean() < 0.3
    near(kept[~dropped], np.full(int((~dropped).sum()), 1 / 31 / 0.75, np.float32))
    heads_alike = bool((dropped[0, :, 0] == dropped[0, :, 1]).all() and (dropped[0] == dropped[1]).all())
    assert heads_alike is alike
    near(plain, np.full((B, 31, H, 31), 1 / 31, np.float32))


def test_dropped_alike_with_grouped_heads_masks_and_biases():
    from jattn.hosts.flax import attention_fn

    query, key, value = normal(2, 3, T, 4, D, dtype=np.float32), *normal(2, 2, 3, T, 2, D, dtype=np.float32)
    mask, bias = CAUSAL[None, None, None], normal(2, 1, 4, T, T, dtype=np.float32)

    @jax.jit
    def both(*x):
        same = partial(attention_fn, *x, mask)
        dropping = {"deterministic": False, "dropout_rng": jax.random.key(0), "dropout_rate": 1e-7}  # as good as none
        return same(deterministic=True), same(**dropping)

    want, got = both(query, key, value, bias)
    assert got.shape == (2, 3, T, 4, D)
    near(got, want)


def test_heads_on_several_devices_of_an_explicit_mesh_are_dropped_alike():
    from jattn.hosts.flax import attention_fn

    dropped = partial(attention_fn, dropout_rate=0.5, dropout_rng=jax.random.key(0))
    x = [normal(2, T, heads, D, seed=heads, dtype=np.float32) for heads in (4, 2, 2)]
    want = dropped(*x)
    mesh = jax.make_mesh((2, 2), ("data", "model"), (AxisType.Explicit,) * 2, devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        got = jax.jit(dropped)(*jax.device_put(x, P("data", None, "model")))
    assert jax.typeof(got).sharding.spec == P("data", None, "model", None)
    near(got, want)


# flax.linen


@pytest.mark.parametrize("masked", [False, True])
def test_linen_takes_it_as_its_attention_fn(masked):
    import flax.linen as nn

    from jattn.hosts.flax import attention_fn

    ours, theirs = (
        nn.MultiHeadDotProductAttention(H, qkv_features=E, **f) for f in ({"attention_fn": attention_fn}, {})
    )
    x, y = normal(B, T, E, dtype=np.float32), normal(B, S, E, seed=1, dtype=np.float32)
    mask = (normal(B, 1, T, S) > 0) | (np.arange(S) == 0) if masked else None
    params = jax.jit(theirs.init)(jax.random.key(0), x, y)
    same_with_gradient(
        *(lambda both, f=f: f.apply(both[0], *both[1], mask=mask) for f in (ours, theirs)), (params, (x, y))
    )


@pytest.mark.parametrize("how", ["scan", "scan of remat", "vmap"])
def test_linen_s_own_transforms_take_it(how):
    """Three layers one after another, or one layer with parameters of its own for each of three inputs."""
    import flax.linen as nn

    from jattn.hosts.flax import attention_fn

    def model(**f):
        class Layer(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                more = nn.MultiHeadDotProductAttention(H, qkv_features=E, name="attention", **f)
                return x + more(x, mask=CAUSAL[None, None]), None

        layer = nn.remat(Layer, prevent_cse=False) if how == "scan of remat" else Layer
        split = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        if how == "vmap":
            return nn.vmap(layer, in_axes=(0, None), axis_size=3, **split)()
        return nn.scan(layer, length=3, **split)()

    ours, theirs = model(attention_fn=attention_fn), model()
    x = normal(*((3, B) if how == "vmap" else (B,)), T, E, dtype=np.float32)
    params = jax.jit(theirs.init)(jax.random.key(0), x, None)
    same_with_gradient(*(lambda both, f=f: f.apply(*both, None)[0] for f in (ours, theirs)), (params, x))


@pytest.mark.parametrize("split", [True, False])
def test_inputs_that_linen_maps_with_split_keys_are_dropped_each_in_its_own_way(split):
    import flax.linen as nn

    from jattn.hosts.flax import attention_fn

    layer = partial(nn.MultiHeadDotProductAttention, dropout_rate=0.5, deterministic=False, attention_fn=attention_fn)
    mapped = nn.vmap(
        layer, variable_axes={"params": None}, split_rngs={"params": False, "dropout": split}, in_axes=0, axis_size=2
    )(H, qkv_features=E)
    x = np.stack([normal(B, T, E, dtype=np.float32)] * 2)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    out = jax.jit(lambda x: mapped.init_with_output(keys, x)[0])(x)
    assert (np.abs(out[0] - out[1]).max() > 1e-3) == split


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_mean_of_many_draws_of_dropout_is_the_attention_without_it(kv_heads, alike):
    """Values and gradients under 400 keys: their mean is within 5 of its standard errors."""
    from jattn.hosts.flax import attention_fn

    query, (key, value) = normal(B, 5, 4, D), normal(2, B, 5, kv_heads, D, seed=1)
    by = normal(B, 5, 4, D, seed=2)

    def with_gradient(dropout_rng, **options):
        f = partial(attention_fn, query, key, mask=CAUSAL[:5, :5], dropout_rng=dropout_rng, **options)
        out, pull = jax.vjp(lambda value: f(value=value), value)
        return out, pull(by)[0]

    @jax.jit
    def both(keys):
        drop = partial(with_gradient, dropout_rate=0.25, broadcast_dropout=alike)
        return jax.vmap(drop)(keys), with_gradient(None, deterministic=True)

    for draws, want in zip(*both(jax.random.split(jax.random.key(0), 400)), strict=True):
        error = draws.std(0) / 20
        assert error.min() > 0
        assert (np.abs(draws.mean(0) - want) / error).max() < 5
        assert (np.abs(0.9 * draws.mean(0) - want) / error).max() > 5, "the control"


def test_linen_decodes_drops_and_keeps_its_weights():
    import flax.linen as nn

    from jattn.hosts.flax import attention_fn

    x = normal(B, T, E, dtype=np.float32)
    made = [
        partial(nn.MultiHeadDotProductAttention, H, qkv_features=E, **f) for f in ({"attention_fn": attention_fn}, {})
    ]
    caching = [f(decode=True) for f in made]
    variables = [f.init(jax.random.key(0), x) for f in caching]
    for t in range(2):
        steps = [f.apply(v, x[:, t : t + 1], mutable=["cache"]) for f, v in zip(caching, variables, strict=True)]
        near(steps[0][0], steps[1][0])
        variables = [v | new for v, (_, new) in zip(variables, steps, strict=True)]
    params = {"params": variables[0]["params"]}
    kept = [f().apply(params, x, sow_weights=True, mutable=["intermediates"])[1] for f in made]
    near(*(k["intermediates"]["attention_weights"][0] for k in kept))
    dropping = made[0](dropout_rate=0.5, deterministic=False)
    draw = jax.jit(lambda n: dropping.apply(params, x, rngs={"dropout": jax.random.key(n)}))
    draws = [draw(n) for n in (0, 0, 1)]
    near(draws[0], draws[1])
    assert np.abs(draws[0] - draws[2]).max() > 1e-3


@pytest.mark.filterwarnings("ignore:Using:DeprecationWarning")  # flax says so of its own sow too
@pytest.mark.parametrize("alike", [True, False])
def test_a_layer_of_flax_takes_a_mask_as_a_value_where_it_drops_and_keeps_its_weights_too(alike):
    from flax import nnx

    options = {"dropout_rate": 0.5, "broadcast_dropout": alike, "deterministic": False}
    x = normal(B, T, E, dtype=np.float32)

    def run(mask):
        layer = nnx_pair(**options)[0]
        return layer(x, mask=mask, sow_weights=True), jax.tree.leaves(nnx.pop(layer, nnx.Intermediate))

    jax.tree.map(near, run(masks.causal()), run(CAUSAL[None, None]))


def test_an_einsum_of_one_s_own_is_refused_and_not_left_out():
    import flax.linen as nn

    from jattn.hosts.flax import attention_fn

    own = {f"{name}_einsum_cls": lambda: jnp.einsum for name in ("qk_attn_weights", "attn_weights_value")}
    layer = nn.MultiHeadDotProductAttention(H, qkv_features=E, attention_fn=attention_fn, **own)
    with pytest.raises(NotImplementedError, match=r"^hosts: qk_attn_weights_einsum must be None, got"):
        layer.init(jax.random.key(0), normal(B, T, E, dtype=np.float32))


def test_flax_in_low_precision_and_other_shapes():
    import flax.linen as nn

    from jattn.hosts.flax import attention_fn

    query, key, value = normal(3, 2, 3, T, H, D, dtype=np.float32)
    ours, theirs = (jax.jit(partial(f, precision="highest")) for f in (attention_fn, nn.dot_product_attention))
    near(ours(query, key, value), theirs(query, key, value))
    near(ours(query[0, 0], key[0, 0], value[0, 0]), theirs(query[0, 0], key[0, 0], value[0, 0]))
    assert attention_fn(query, key, value, dtype=jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("precision", "name"),
    [
        ("default", "DEFAULT"),
        ("highest", "HIGHEST"),
        *((x, x.name) for x in jax.lax.Precision),
        ((jax.lax.Precision.HIGHEST, "default"), "HIGHEST"),
    ],
)
def test_the_precision_that_flax_asks_for_is_that_of_the_products(precision, name):
    from jattn.hosts.flax import attention_fn

    f = jax.jit(partial(attention_fn, precision=precision))
    with jax.default_matmul_precision("highest" if name == "DEFAULT" else "default"):
        text = f.lower(*normal(3, 2, 40, H, D, dtype=np.float32)).as_text()
    assert text.count(f"precision = [{name}, {name}]") == text.count("stablehlo.dot_general") > 0


@pytest.mark.parametrize("how", ["plain", "dropped alike", "measured"])
@pytest.mark.parametrize(("batch", "t", "s"), [((0,), T, S), ((2, 2), 0, S), ((), T, 0)])
def test_without_examples_queries_or_keys_flax_gets_nothing_or_zeros(batch, t, s, how):
    from jattn.hosts.flax import attention_fn

    query, (key, value) = np.ones((*batch, t, 4, D), np.float32), np.ones((2, *batch, s, 2, D), np.float32)
    kept = {}
    options = {
        "plain": {},
        "dropped alike": {"dropout_rng": jax.random.key(0), "dropout_rate": 0.5},
        "measured": {"module": types.SimpleNamespace(sow=lambda kind, name, x: kept.update({name: x}))},
    }[how]
    mask = np.ones((*batch, 1, t, s), bool)
    np.testing.assert_array_equal(attention_fn(query, key, value, None, mask, **options), np.zeros_like(query))
    assert how != "measured" or kept["attention_weights"].shape == (*batch, 4, t, s)


@pytest.mark.parametrize("batch", [(2, 3), (1, 3), (3,), ()])
def test_batch_axes_broadcast_and_examples_are_never_paired_by_their_number(batch):
    from jattn.hosts._attend import attend_broadcast_dropout, attend_heads, measure_heads

    query, (key, value) = normal(2, 3, T, 2, D, dtype=np.float32), normal(2, *batch, S, 2, D, dtype=np.float32)
    drop = {"dropout_rate": 1e-7, "dropout_key": jax.random.key(0)}  # as good as none

    @jax.jit
    def every(q, k, v):
        measured = measure_heads(q, k, rows=jnp.arange(T)).weights
        return attend_heads(q, k, v), attend_broadcast_dropout(q, k, v, None, None, **drop), measured

    weights = of_logits(dense_logits(query, key, np.float32(0), True, np.float32(D**-0.5)))[2]
    want = jnp.einsum("...nts,...snh->...tnh", weights, value)
    for got, one in zip(every(query, key, value), (want, want, weights), strict=True):
        near(got, one)


# equinox


@pytest.mark.parametrize("which", ["all", "mask", "a mask a head", "a mask as a value", "turned"])
def test_equinox_is_replaced_weight_for_weight(which):
    import equinox as eqx

    from jattn.hosts.equinox import MultiheadAttention

    options = {"num_heads": H, "query_size": E, "key_size": 5, "value_size": 6, "vo_size": 7, "use_output_bias": True}
    ours, theirs = (kind(**options, key=jax.random.key(0)) for kind in (MultiheadAttention, eqx.nn.MultiheadAttention))
    x = normal(T, E, dtype=np.float32), normal(T, 5, seed=1, dtype=np.float32), normal(T, 6, seed=2, dtype=np.float32)
    heads = (normal(H, T, T) > 0) | np.eye(T, dtype=bool)
    turn = lambda q, k, v: (q[::-1], 2 * k, v)  # noqa: E731
    call, other = {
        "all": ({}, {}), "mask": ({"mask": CAUSAL}, {"mask": CAUSAL}),
        "a mask a head": ({"mask": heads}, {"mask": heads}),
        "a mask as a value": ({"mask": masks.causal()}, {"mask": CAUSAL}),
        "turned": ({"process_heads": turn}, {"process_heads": turn}),
    }[which]  # fmt: skip
    params, rest = zip(*(eqx.partition(m, eqx.is_array) for m in (ours, theirs)), strict=True)
    weights = jax.tree.leaves(params[0])
    fs = [
        lambda both, p=p, r=r, call=call: eqx.combine(jax.tree.unflatten(jax.tree.structure(p), both[0]), r)(
            *both[1], **call
        )
        for p, r, call in zip(params, rest, (call, other), strict=True)
    ]
    same_with_gradient(*fs, (weights, x))


def test_equinox_drops_where_it_is_not_inferring():
    from jattn.hosts.equinox import MultiheadAttention

    layer = MultiheadAttention(H, E, dropout_p=0.5, key=jax.random.key(0))
    x = normal(T, E, dtype=np.float32)
    draw = jax.jit(lambda n: layer(x, x, x, key=jax.random.key(n)))
    draws = [draw(n) for n in (0, 0, 1)]
    near(draws[0], draws[1])
    assert np.abs(draws[0] - draws[2]).max() > 1e-3
    near(layer(x, x, x, inference=True), MultiheadAttention(H, E, key=jax.random.key(0))(x, x, x))


def test_a_share_that_equinox_holds_as_an_array_is_dropped_under_jit_and_not_trained():
    import equinox as eqx

    from jattn.hosts.equinox import MultiheadAttention

    plain = MultiheadAttention(H, E, key=jax.random.key(0))
    x = normal(T, E, dtype=np.float32)

    def of(share):
        layer = MultiheadAttention(H, E, dropout_p=0.5, key=jax.random.key(0))
        return eqx.tree_at(lambda layer: layer.dropout.p, layer, share)

    @eqx.filter_jit
    def run(layer):
        loss = lambda layer: (out := layer(x, x, x, key=jax.random.key(1))).sum() + out[0, 0]  # noqa: E731
        return layer(x, x, x, key=jax.random.key(1)), eqx.filter_grad(loss)(layer).dropout.p

    none, half, number = (run(of(share))[0] for share in (jnp.zeros(()), jnp.asarray(0.5), 0.5))
    near(none, plain(x, x, x))
    near(half, number)
    assert np.abs(half - none).max() > 1e-3
    assert run(of(jnp.asarray(0.5)))[1] == 0


def test_deterministic_is_equinox_s_deprecated_word_for_inference():
    import equinox as eqx

    from jattn.hosts.equinox import MultiheadAttention

    x = normal(T, E, dtype=np.float32)
    for kind in (MultiheadAttention, eqx.nn.MultiheadAttention):
        layer = kind(H, E, dropout_p=0.5, key=jax.random.key(0))
        with pytest.warns(UserWarning, match=r"deterministic.*inference"):
            got = layer(x, x, x, deterministic=True)
        near(got, layer(x, x, x, inference=True))


def test_what_processes_the_heads_of_equinox_may_put_keys_of_a_cache_before_them():
    from jattn.hosts.equinox import MultiheadAttention

    layer = MultiheadAttention(H, E, key=jax.random.key(0))
    x = normal(T, E, dtype=np.float32)
    heads = []
    layer(x, x, x, process_heads=lambda *qkv: heads.append(qkv) or qkv)
    _, k, v = heads[0]
    before = lambda q, new_k, new_v: (q, jnp.concatenate([k[:3], new_k]), jnp.concatenate([v[:3], new_v]))  # noqa: E731
    near(layer(x[3:], x[3:], x[3:], process_heads=before), layer(x, x, x)[3:])


def test_equinox_without_keys_gives_the_bias_of_its_output():
    from jattn.hosts.equinox import MultiheadAttention

    layer = MultiheadAttention(H, E, use_output_bias=True, key=jax.random.key(0))
    x = normal(T, E, dtype=np.float32)
    near(layer(x, x[:0], x[:0]), jnp.broadcast_to(layer.output_proj.bias, (T, E)))
    assert layer(x[:0], x, x).shape == (0, E)


# haiku


@pytest.mark.parametrize("masked", [False, True])
def test_haiku_is_replaced_parameter_for_parameter(masked):
    import haiku as hk

    from jattn.hosts.haiku import MultiHeadAttention

    draw = hk.initializers.VarianceScaling(1.0)
    mask = (normal(B, 1, T, S) > 0) | (np.arange(S) == 0) if masked else None
    ours, theirs = (
        hk.without_apply_rng(hk.transform(lambda x, y, kind=kind: kind(H, D, value_size=5, w_init=draw)(x, y, y, mask)))
        for kind in (MultiHeadAttention, hk.MultiHeadAttention)
    )
    x = normal(B, T, E, dtype=np.float32), normal(B, S, E, seed=1, dtype=np.float32)
    params = jax.jit(ours.init)(jax.random.key(0), *x)
    assert jax.tree.structure(params) == jax.tree.structure(jax.eval_shape(theirs.init, jax.random.key(0), *x))
    same_with_gradient(*(lambda both, f=f: f.apply(both[0], *both[1]) for f in (ours, theirs)), (params, x))


def test_haiku_lets_examples_share_keys_and_does_without_them():
    import haiku as hk

    from jattn.hosts.haiku import MultiHeadAttention

    draw = hk.initializers.VarianceScaling(1.0)
    ours, theirs = (
        hk.without_apply_rng(hk.transform(lambda x, y, kind=kind: kind(H, D, w_init=draw, name="a")(x, y, y)))
        for kind in (MultiHeadAttention, hk.MultiHeadAttention)
    )
    x, y = jnp.asarray(normal(B, T, E, dtype=np.float32)), jnp.asarray(normal(S, E, seed=1, dtype=np.float32))
    params = jax.jit(theirs.init)(jax.random.key(0), x, y)
    near(ours.apply(params, x, y), theirs.apply(params, x, y))
    near(ours.apply(params, x, y[:0]), np.zeros((B, T, H * D), np.float32))
    assert ours.apply(params, x[:, :0], y).shape == (B, 0, H * D)


# The signature of transformers


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mask", ["additive", "boolean", "none", "window"])
def test_the_signature_of_transformers_gives_what_its_layers_compute(mask):
    torch = pytest.importorskip("torch", reason="pip install 'jattn[parity]'")
    gemma2 = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    from jattn.hosts.transformers import attention_interface

    q, (k, v) = normal(B, 4, T, D, dtype=np.float32), normal(2, B, 2, S, D, seed=1, dtype=np.float32)
    last = np.arange(S)[None] <= np.arange(T)[:, None] + S - T
    near_too = last & (np.arange(S)[None] > np.arange(T)[:, None] + S - T - 3)
    allowed = {"none": last, "window": near_too}.get(mask, (normal(B, 1, T, S) > 0) | (np.arange(S) == 0))
    additive = np.where(allowed, 0, np.finfo(np.float32).min).astype(np.float32)
    given = {"additive": additive, "boolean": allowed}.get(mask)
    more = {"sliding_window": 3} if mask == "window" else {}
    module = types.SimpleNamespace(num_key_value_groups=2, training=False, is_causal=True)
    tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    added = torch.tensor(np.broadcast_to(additive, (B, 1, T, S)).copy())
    want, _ = gemma2.eager_attention_forward(module, *tensors, added, dropout=0.0, scaling=0.3, softcap=2.0)
    by = normal(*want.shape, seed=5, dtype=np.float32)
    (want * torch.tensor(by)).sum().backward()
    ours = lambda *x: attention_interface(module, *x, given, scaling=0.3, softcap=2.0, **more)[0]  # noqa: E731
    out, pull = jax.vjp(jax.jit(ours), q, k, v)
    near(out, want.detach().numpy())
    for ours, theirs in zip(pull(by), tensors, strict=True):
        near(ours, theirs.grad.numpy(), ulps=128)


@pytest.mark.structure
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kept", [None, "static"], ids=["dynamic", "static"])
def test_a_model_of_transformers_generates_what_it_does_by_its_own_attention(kept, monkeypatch):
    """Gemma 2, one layer with a window and one without, soft-capped, of two examples the first padded on the left.

    The mask is that of eager_mask: sdpa_mask makes none for a prompt without padding, in a longer static cache either.
    """
    torch = pytest.importorskip("torch", reason="pip install 'jattn[parity]'")
    models = pytest.importorskip("transformers", reason="pip install 'jattn[parity]'")
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask, sdpa_mask

    from jattn.hosts.transformers import attention_interface

    def ours(module, query, key, value, mask, scaling, dropout=0.0, *, softcap, sliding_window=None, **_):
        arrays = (None if x is None else x.numpy() for x in (query, key, value, mask))
        more = {"softcap": softcap, "sliding_window": sliding_window}
        out, weights = attention_interface(module, *arrays, scaling, dropout, **more)
        return torch.tensor(np.asarray(out)), weights

    monkeypatch.setitem(models.modeling_utils.ALL_ATTENTION_FUNCTIONS._global_mapping, "ours", ours)
    config = models.Gemma2Config(
        vocab_size=37, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, query_pre_attn_scalar=4, sliding_window=4, attn_logit_softcapping=2.0,
        max_position_embeddings=32, initializer_range=0.5, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = models.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    prompt = torch.arange(2, 16).reshape(2, 7)

    def scores(attention, mask_of, padded):
        monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "ours", mask_of)
        model.set_attn_implementation(attention)
        held = torch.ones_like(prompt)
        held[0, :padded] = 0
        found = model.generate(
            prompt, attention_mask=held, max_new_tokens=2, do_sample=False, cache_implementation=kept,
            disable_compile=True, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        return np.stack([x.numpy() for x in found.scores])

    for padded in (3, 0):
        near(scores("ours", eager_mask, padded), scores("eager", eager_mask, padded))
    far = np.abs(scores("ours", sdpa_mask, 0) - scores("eager", eager_mask, 0)).max()
    assert (far > 1e-3) == (kept == "static")


@pytest.mark.filterwarnings("default")
def test_the_dropout_and_the_sinks_of_transformers_layers_in_training(monkeypatch):
    """Which weights were dropped is seen at values that are unit vectors, and handed to the layer of transformers."""
    torch = pytest.importorskip("torch", reason="pip install 'jattn[parity]'")
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    from jattn.hosts.transformers import attention_interface

    q, (k, v) = normal(B, 4, T, D, dtype=np.float32), normal(2, B, 2, S, D, seed=1, dtype=np.float32)
    sinks = normal(4, seed=2, dtype=np.float32)
    padded = np.arange(S) >= np.array([3, 0])[:, None]  # on the left
    allowed = padded[:, None, None] & (np.arange(S)[None] <= np.arange(T)[:, None] + S - T)
    additive = np.where(allowed, 0, np.finfo(np.float32).min).astype(np.float32)

    @jax.jit
    def ours(q, k, v, sinks):
        drop = {"dropout": 0.25, "dropout_key": jax.random.key(0)}
        return attention_interface(None, q, k, v, allowed, scaling=0.3, s_aux=sinks, **drop)[0]

    units = np.broadcast_to(np.eye(S, dtype=np.float32), (B, 2, S, S))
    kept = np.moveaxis(np.asarray(ours(q, k, units, sinks)), 1, 2) != 0
    assert 0.15 < 1 - kept[np.broadcast_to(allowed, kept.shape)].mean() < 0.35
    share = torch.tensor(kept / np.float32(0.75))
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, p, training: x * share if training else x)
    tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v, sinks)]
    module = types.SimpleNamespace(num_key_value_groups=2, training=True, sinks=tensors[3])
    want, _ = gpt_oss.eager_attention_forward(module, *tensors[:3], torch.tensor(additive), scaling=0.3, dropout=0.25)
    by = normal(*want.shape, seed=5, dtype=np.float32)
    (want * torch.tensor(by)).sum().backward()
    out, pull = jax.vjp(ours, q, k, v, sinks)
    near(out, want.detach().numpy())
    for got, tensor in zip(pull(by), tensors, strict=True):
        near(got, tensor.grad.numpy(), ulps=128)


def test_the_signature_of_transformers_has_sinks_position_biases_and_dropout():
    from jattn.hosts.transformers import attention_interface

    q, k, v = normal(3, B, H, T, D, dtype=np.float32)
    sinks, more = normal(H, dtype=np.float32), normal(1, H, T, T, seed=1, dtype=np.float32)
    bias = normal(H, T, T, seed=2, dtype=np.float16)  # in another dtype, and one for all examples
    got, none = attention_interface(None, q, k, v, more, s_aux=sinks, position_bias=bias, use_cache=False)
    tokens_first = (np.moveaxis(x, 1, 2) for x in (q, k, v))
    near(got, dot_product_attention(*tokens_first, bias.astype(np.float32)[None] + more, sink=sinks))
    assert none is None
    dropped = attention_interface(None, q, k, v, None, dropout=0.5, dropout_key=jax.random.key(0))[0]
    assert np.abs(dropped - attention_interface(None, q, k, v, None)[0]).max() > 1e-3


def test_what_models_of_transformers_pass_to_every_attention_changes_nothing():
    from jattn.hosts.transformers import attention_interface

    q, k, v = normal(3, B, H, T, D, dtype=np.float32)
    allowed = np.tri(T, dtype=bool)
    generic = pytest.importorskip("transformers.utils.generic", reason="pip install 'jattn[parity]'")
    every = {name: np.arange(T) for name in generic.TransformersKwargs.__annotations__ if name != "is_causal"}
    every |= {"use_cache": False, "cache_position": np.arange(T), "a_name_of_no_model": None}
    got = attention_interface(None, q, k, v, allowed, **every)[0]
    np.testing.assert_array_equal(got, attention_interface(None, q, k, v, allowed)[0])


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_a_layer_of_flax_refuses_to_drop_a_share_of_weights_below_zero(kind):
    from jattn.hosts.flax import attention_fn

    linen, nnx = pytest.importorskip("flax.linen"), pytest.importorskip("flax.nnx")
    x, more = np.ones((B, T, 2 * D), np.float32), {"dropout_rate": -0.5, "attention_fn": attention_fn}
    if kind == "nnx":
        layer = nnx.MultiHeadAttention(2, 2 * D, decode=False, deterministic=False, rngs=nnx.Rngs(0), **more)
    else:
        of_linen = linen.MultiHeadDotProductAttention(2, deterministic=False, **more)
        layer = lambda x: of_linen.init(jax.random.key(0), x)  # noqa: E731
    with pytest.raises(ValueError, match="dropout_rate must be at least 0 and less than 1"):
        layer(x)


# What is measured of each head


@jax.jit
def dense_logits(query, key, bias, allowed, scale):
    """[*B, N, T, S], each key head repeated."""
    key = jnp.repeat(key, query.shape[-2] // key.shape[-2], -2)
    logits = jnp.einsum("...tnh,...snh->...nts", query, key) * scale + bias
    return jnp.where(allowed, logits, -jnp.inf)


@jax.jit
def of_logits(logits):
    """The largest logit and the entropy of each query that may attend a key, and the weights."""
    weights = jax.nn.softmax(logits, -1)
    return logits.max(-1), -jax.scipy.special.xlogy(weights, weights).sum(-1), weights


def assert_measured(found, weights, logits, rows, **how):
    max_logit, entropy, every = of_logits(logits)
    for got, want in ((found.max_logit, max_logit), (found.entropy, entropy), (weights, every[..., rows, :])):
        near(got, want, **how)


ROWS = np.array([0, 4], np.int32)


@pytest.mark.parametrize("shape", ["one for all", "a head", "each"])
def test_flax_keeps_statistics_and_the_weights_of_chosen_rows(shape):
    from jattn.hosts.flax import attention_fn

    query, key, value = normal(2, 3, T, 4, D, dtype=np.float32), *normal(2, 2, 3, S, 2, D, dtype=np.float32)
    axes = {"one for all": (1, 1, 1), "a head": (1, 1, 4), "each": (2, 3, 4)}[shape]
    mask = (normal(*axes, T, S) > 0) | (np.arange(S) == 0)
    bias = (
        normal(*axes[::-1], 1, S, seed=3, dtype=np.float32)
        if shape == "one for all"
        else np.zeros((1, 1, 1, 1, 1), np.float32)
    )
    kept = {}
    module = types.SimpleNamespace(sow=lambda kind, name, x: kept.update({(kind, name): x}))

    @partial(jax.jit, static_argnames="causal")
    def keep(query, key, value, causal):
        kept.clear()
        f = partial(attention_fn, rows=ROWS, statistics=True)
        f(query, key, value, bias, mask, is_causal=causal, module=module)
        return dict(kept)

    for causal in (False, True)[: 2 if shape == "each" else 1]:
        found = keep(query, key, value, causal)
        assert {*found} == {("intermediates", f"attention_{name}") for name in ("statistics", "weights")}
        allowed = mask & (np.tri(T, S, dtype=bool) | (not causal))
        logits = dense_logits(query, key, bias, allowed, np.float32(D**-0.5))
        assert_measured(found["intermediates", "attention_statistics"], found["intermediates", "attention_weights"],
                        logits, ROWS)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using:DeprecationWarning")  # flax says so of its own sow too
def test_layers_of_flax_keep_what_is_measured_where_they_are_asked():
    import flax.linen as nn
    from flax import nnx

    from jattn.hosts.flax import attention_fn

    x = normal(B, T, E, dtype=np.float32)
    f = partial(attention_fn, rows=ROWS, statistics=True)
    layer = nn.MultiHeadDotProductAttention(H, qkv_features=E, attention_fn=f)
    params = jax.jit(layer.init)(jax.random.key(0), x)

    @jax.jit
    def both(params, x):
        return [layer.apply(params, x, sow_weights=asked, mutable=["intermediates"]) for asked in (True, False)]

    (out, kept), (plain, none) = both(params, x)
    kept = kept["intermediates"]
    assert {name: jax.tree.leaves(a)[0].shape for name, a in kept.items()} == {
        "attention_statistics": (B, H, T), "attention_weights": (B, H, len(ROWS), T)
    }  # fmt: skip
    near(out, plain)
    assert "intermediates" not in none
    f = partial(attention_fn, rows=(), statistics=True)
    layer = nnx.MultiHeadAttention(H, E, decode=False, rngs=nnx.Rngs(0), attention_fn=f)
    graph, state = nnx.split(layer)

    @jax.jit
    def kept_by(state, x):
        layer = nnx.merge(graph, state)
        layer(x, sow_weights=True)
        return nnx.pop(layer, nnx.Intermediate)

    assert {*kept_by(state, x)} == {"attention_statistics"}


@pytest.mark.parametrize("name", ["equinox", "haiku"])
def test_a_layer_returns_what_is_measured_of_each_head(name):
    more = {"mask": masks.causal(), "scale": 0.3, "sink": 0.5, "tile": (16, 16)}
    if name == "equinox":
        from jattn.hosts.equinox import MultiheadAttention

        layer = MultiheadAttention(H, E, key=jax.random.key(0))
        x = normal(T, E, dtype=np.float32)
        run = lambda x: (layer(x, x, x, **more), layer(x, x, x, measure=ROWS, **more))  # noqa: E731
        out, (got, (found, weights)) = jax.jit(run)(x)
        q, k = (jax.vmap(f)(x).reshape(T, H, -1) for f in (layer.query_proj, layer.key_proj))
    else:
        import haiku as hk

        from jattn.hosts.haiku import MultiHeadAttention

        x = normal(B, T, E, dtype=np.float32)
        draw = hk.initializers.VarianceScaling(1.0)
        of = lambda measure: hk.without_apply_rng(  # noqa: E731
            hk.transform(lambda x: MultiHeadAttention(H, D, w_init=draw)(x, x, x, measure=measure, **more))
        )
        params = jax.jit(of(None).init)(jax.random.key(0), x)
        out, (got, (found, weights)) = jax.jit(lambda p, x: [of(m).apply(p, x) for m in (None, ROWS)])(params, x)
        q, k = ((x @ params[f"multi_head_attention/{side}"]["w"]).reshape(B, T, H, D) for side in ("query", "key"))
    near(got, out)
    logits = dense_logits(q, k, np.float32(0), CAUSAL, np.float32(0.3))
    lse = jnp.logaddexp(jax.nn.logsumexp(logits, -1), np.float32(0.5))
    near(found.lse, lse)
    near(found.sink_weight, jnp.exp(np.float32(0.5) - lse))
    near(weights, jnp.exp(logits - lse[..., None])[..., ROWS, :])
    near(found.entropy, of_logits(logits)[1])


@pytest.mark.parametrize("name", ["equinox", "haiku"])
def test_a_bias_is_added_to_the_logits_of_a_layer(name):
    """Beside a mask: as the score that adds it, with its gradient."""
    x, bias = normal(T, E, dtype=np.float32), normal(T, T, seed=1, dtype=np.float32)
    if name == "equinox":
        from jattn.hosts.equinox import MultiheadAttention

        run = partial(MultiheadAttention(H, E, key=jax.random.key(0)), x, x, x)
    else:
        import haiku as hk

        from jattn.hosts.haiku import MultiHeadAttention

        draw = hk.initializers.VarianceScaling(1.0)
        of = lambda **options: hk.without_apply_rng(  # noqa: E731
            hk.transform(lambda x: MultiHeadAttention(H, D, w_init=draw)(x, x, x, **options))
        )
        params = jax.jit(of().init)(jax.random.key(0), x)
        run = lambda **options: of(**options).apply(params, x)  # noqa: E731
    added = lambda bias: run(mask=masks.causal(), bias=bias)  # noqa: E731
    scored = lambda bias: run(mask=masks.causal(), score=lambda score, t, s: score + bias[t, s])  # noqa: E731
    same_with_gradient(added, scored, bias)
    assert np.abs(added(bias) - run(mask=masks.causal())).max() > 1e-2, "the control"


OPTIONS = {
    "a sink a head": lambda b, t, s: {"sink": np.array([-5, 0, 5, 10], np.float32)},
    "positions of each example": lambda b, t, s: {
        "mask": masks.window(2, 1), "sink": 0.5, "k_positions": np.arange(s, dtype=np.int32),
        "q_positions": np.arange(t, dtype=np.int32) + np.arange(b, dtype=np.int32)[:, None],
    },
    "positions of all": lambda b, t, s: {
        "is_causal": True, "q_positions": np.arange(t) + s - t, "k_positions": np.arange(s)
    },
    "lengths and a window": lambda b, t, s: {
        "query_seq_lengths": t - np.arange(b), "key_value_seq_lengths": s - 2 - np.arange(b),
        "local_window_size": (3, 1),
    },
    "causal within a width": lambda b, t, s: {"is_causal": True, "local_window_size": 2, "k_positions": None},
    "a bias a head": lambda b, t, s: {"bias": normal(4, t, s, seed=7, dtype=np.float32), "sink": 0.5},
    "nothing, by name": lambda b, t, s: {
        "bias": None,
        "sink": None, "local_window_size": None, "key_value_seq_lengths": None, "query_seq_lengths": None,
        "score": None, "scale": None, "implementation": None, "tile": None, "dropout_rate": 0.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ["equinox", "haiku"])
@pytest.mark.parametrize("which", OPTIONS)
@pytest.mark.parametrize(("t", "s"), [(4, 4), (T, S)])
def test_what_a_layer_measures_is_of_the_attention_that_it_computes(name, which, t, s):
    """Four queries of four heads are among them: of a sink, one entry a head is not one a query."""
    b, rows = 1 if name == "equinox" else B, np.array([0, 3], np.int32)
    x, y = normal(b, t, 16, dtype=np.float32), normal(b, s, 16, seed=1, dtype=np.float32)
    options, kept = OPTIONS[which](b, t, s), {}
    mask = options.pop("mask", None)
    if name == "equinox":
        from jattn.hosts.equinox import MultiheadAttention

        def both(x, y):
            q, k, v = (z[0] for z in (x, y, y))
            keep = lambda *qkv: kept.update(zip("qk", (z[None] for z in qkv[:2]), strict=True)) or qkv  # noqa: E731
            layer = MultiheadAttention(4, 16, key=jax.random.key(0))
            _, found = layer(q, k, v, mask, measure=rows, process_heads=keep, **options)
            return jax.tree.map(lambda z: z[None], found), dict(kept)
    else:
        import haiku as hk

        from jattn.hosts.haiku import MultiHeadAttention

        draw = hk.initializers.VarianceScaling(1.0)
        layer = hk.without_apply_rng(
            hk.transform(lambda x, y: MultiHeadAttention(4, D, w_init=draw)(x, y, y, mask, measure=rows, **options))
        )

        def both(x, y):
            params = layer.init(jax.random.key(0), x, y)
            q, k = (z @ params[f"multi_head_attention/{side}"]["w"] for side, z in (("query", x), ("key", y)))
            return layer.apply(params, x, y)[1], {"q": q.reshape(b, t, 4, D), "k": k.reshape(b, s, 4, D)}

    (found, weights), of = jax.jit(both)(x, y)
    units = jnp.broadcast_to(jnp.eye(s)[:, None], (b, s, 4, s))
    every, lse = dot_product_attention(of["q"], of["k"], units, mask=mask, return_residual=True, **options)
    near(found.lse, jnp.moveaxis(lse, -1, -2))
    near(weights, jnp.moveaxis(every, -2, -3)[..., rows, :])
    sink = options.get("sink")
    sink = np.broadcast_to(np.float32(-np.inf if sink is None else sink), 4)[None, :, None]
    near(found.sink_weight, jnp.where(np.isfinite(sink), jnp.exp(sink - found.lse), 0))


# What is not there


@pytest.mark.parametrize("name", HOSTS)
def test_a_host_that_is_not_installed_is_named_with_the_remedy(name, monkeypatch):
    for module in [m for m in sys.modules if m == name or m.startswith((f"{name}.", f"jattn.hosts.{name}"))]:
        monkeypatch.delitem(sys.modules, module)

    monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    said = f"^hosts: {name} must be installed, got {name} not found. "
    said += r"Run: pip install 'jattn\[hosts\]'\.$"
    with pytest.raises(ImportError, match=said):
        __import__(f"jattn.hosts.{name}")


def test_importing_hosts_imports_none_of_them():
    code = "import sys, jattn.hosts, jattn.hosts.transformers; print([m for m in sys.argv[1:] if m in sys.modules])"
    names = [*HOSTS, "torch", "transformers"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    code = code.replace("import sys,", "import sys, haiku,")
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert "haiku" in done.stdout, "the control"
