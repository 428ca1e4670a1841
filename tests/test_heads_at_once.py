"""Few queries of many heads whose keys lie side by side take them in one product; nothing else differs."""

import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, normal
from _oracles import weigh

import jattn
from jattn import masks, reference, scores
from jattn.engine import tuning

pytestmark = [
    pytest.mark.structure,
    pytest.mark.usefixtures("of_any_size"),
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="it is a matter of the caches of a CPU"),
]
B, T, S, K, G, D, Dv = 3, 2, 40, 4, 2, 5, 3
SOME = np.random.default_rng(1).random((B, K * G, T, S)) < 0.4
SOME[1, 3] = False  # queries without a key


@pytest.fixture
def of_any_size(monkeypatch):
    """However few bytes the keys have."""
    monkeypatch.setattr(tuning, "BYTES_AT_ONCE", 0)


def inputs(dtype=np.float32, B=B, T=T, S=S, K=K, G=G):
    shapes = (B, T, K * G, D), (B, S, K, D), (B, S, K, Dv)
    return tuple(jnp.asarray(normal(*shape, seed=i), dtype) for i, shape in enumerate(shapes))


def at_once(f, *x):
    """Whether a program has a second form, for results that are not finite. Few queries have no other."""
    return jax.jit(f).lower(*x).as_text().count("stablehlo.case") == 1


def heads(**options):
    return partial(jattn.dot_product_attention, return_residual=True, **options)


def definition(**each):
    """Of options with an entry for each head, [N], or for each head of each example, [B, N, …]."""

    def f(q, k, v):
        k, v = (jnp.repeat(x, G, axis=2) for x in (k, v))
        own = {name: jnp.broadcast_to(x, (B, K * G, *x.shape[2:])) for name, x in each.items()}
        of_one = jax.vmap(lambda q, k, v, own: reference.attention(q, k, v, **own), (1, 1, 1, 0), (1, 1))
        return jax.vmap(of_one)(q, k, v, own)

    return f


def orders(f):
    def run(*x):
        x_dot = tuple(map(jnp.cos, x))
        gradient = jax.grad(lambda *x: weigh(*f(*x)), (0, 1, 2))
        return jax.jvp(f, x, x_dot), gradient(*x), jax.jvp(gradient, x, x_dot)[1]

    return jax.jit(run)


SINK = normal(K * G, seed=5)
BIAS = normal(B, K * G, T, S, seed=4)


@pytest.mark.parametrize(
    ("options", "dense", "across"),
    [
        ({}, {}, 16),
        ({"mask": SOME, "sink": SINK}, {"mask": SOME, "sink": SINK}, 16),
        ({"mask": SOME, "sink": SINK}, {"mask": SOME, "sink": SINK}, 15),
        ({"bias": BIAS, "scale": np.float64(0.6)}, {"bias": BIAS, "scale": np.full(K * G, 0.6)}, 16),
    ],
    ids=["nothing", "a mask and sinks", "a mask and sinks, queries down", "a bias and a scale"],
)
def test_value_and_derivatives_are_those_of_the_definition(options, dense, across, monkeypatch, x64):
    monkeypatch.setattr(tuning, "ROWS_ACROSS", across)
    x = inputs(np.float64)
    assert at_once(heads(**options), *x)
    assert_close(orders(heads(**options))(*x), orders(definition(**dense))(*x), ulps=1e4)


LENGTHS = {"query_seq_lengths": np.array([2, 1, 0]), "key_value_seq_lengths": np.array([40, 7, 0])}
POSITIONS = {"q_positions": np.arange(T) + 30, "k_positions": np.arange(S)}


@pytest.mark.parametrize(
    "options",
    [
        LENGTHS,
        {"is_causal": True, "local_window_size": (9, 0), **POSITIONS},
        {"dropout_rate": 0.4, "dropout_key": jax.random.key(1)},
        {"score": scores.compose(scores.soft_cap(2.0), scores.alibi(0.3)), "mask": masks.strided(7, 2), **POSITIONS},
        {"bias": normal(1, 1, T, S, seed=4).astype(np.float32), "sink": np.float32(0.3)},
    ],
    ids=["lengths", "a window", "dropout", "a score and a mask", "what all heads share"],
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_option_means_what_it_means_in_loops(options, dtype):
    x = inputs(dtype)
    assert at_once(heads(**options), *x)
    got, want = jax.jit(heads(**options))(*x), jax.jit(heads(implementation="loops", **options))(*x)
    assert [y.dtype for y in got] == [y.dtype for y in want]
    assert_close(got[0], want[0], ulps=16 if dtype == jnp.float32 else 1)
    assert_close(got[1], want[1], ulps=16)


@pytest.mark.parametrize(("which", "value"), [("q", np.nan), ("k", np.inf), ("k", np.nan), ("v", np.nan), ("k", 3e38)])
@pytest.mark.parametrize("attended", [True, False])
def test_what_is_not_finite_reaches_no_other_head(which, value, attended):
    q, k, v = (np.array(x) for x in inputs())
    {"q": q, "k": k, "v": v}[which][1, 1 if which == "q" else 30, 0] = value
    lengths = {} if attended else {"query_seq_lengths": np.full(B, 1), "key_value_seq_lengths": np.full(B, 30)}
    got, want = (jax.jit(heads(implementation=how, **lengths))(q, k, v) for how in (None, "loops"))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
        assert np.isnan(w[1]).any() == (attended and (which != "v" or w.ndim == 4))
        there = np.isfinite(w)
        assert_close(g[there], w[there], ulps=64)


def one_head(q, k, v):
    return jattn.attention(q, k, v, return_lse=True)


def test_heads_that_jax_vmap_finds_beside_the_rows_are_taken_so_too():
    q, k, v = inputs(G=1)
    f = jax.vmap(jax.vmap(one_head, (1, 1, 1), (1, 1)))
    assert at_once(f, q, k, v)
    assert_close(f(q, k, v), heads()(q, k, v), ulps=8)
    example_last = jax.vmap(jax.vmap(one_head, (1, 1, 1)), -1)
    assert_close(example_last(*(jnp.moveaxis(x, 0, -1) for x in (q, k, v)))[1], f(q, k, v)[1].swapaxes(1, 2), ulps=8)


def test_over_further_axes_and_in_a_scan():
    x = tuple(jnp.stack([x, x / 2]) for x in inputs())
    f = jax.vmap(heads(**LENGTHS))
    want = jax.vmap(heads(implementation="loops", **LENGTHS))(*x)
    assert at_once(f, *x)
    assert_close(f(*x), want, ulps=8)
    scanned = jax.jit(lambda *x: jax.lax.scan(lambda c, x: (c, heads(**LENGTHS)(*x)), 0, x)[1])
    assert_close(scanned(*x), want, ulps=8)


def test_each_device_takes_its_own_heads_at_once_without_a_collective():
    mesh = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch", None, "heads"))
    x = inputs(B=4)
    program = jax.jit(heads()).lower(*(jax.device_put(a, place) for a in x)).compile()
    assert not any(word in program.as_text() for word in ("all-gather", "all-to-all"))
    assert_close(program(*(jax.device_put(a, place) for a in x)), heads()(*x), ulps=8)


def test_it_is_a_matter_of_layout_length_and_platform(monkeypatch):
    x = inputs()
    assert at_once(heads(), *x)
    bytes_of_keys = x[1].nbytes + x[2].nbytes
    for rows, taken in ((T * K * G, True), (T * K * G - 1, False)):
        monkeypatch.setattr(tuning, "BYTES_AT_ONCE", bytes_of_keys / rows)
        assert at_once(lambda *x: heads()(*x), *x) == taken
    monkeypatch.setattr(tuning, "BYTES_AT_ONCE", 0)
    assert not at_once(heads(implementation="loops"), *x)
    assert not at_once(heads(tile=(16, 16)), *x)  # which promises the same bits in any company
    heads_first = jax.vmap(jax.vmap(one_head))
    assert not at_once(heads_first, *(jnp.moveaxis(a, 1, 2) for a in inputs(G=1)))
    assert not at_once(heads(), *inputs(K=1))  # one head, which lies as it should
    assert at_once(heads(), *inputs(T=tuning.ROWS_AT_ONCE // (K * G)))
    assert not at_once(heads(), *inputs(T=tuning.ROWS_AT_ONCE // (K * G) + 1))
    for platform in ("cuda", "tpu"):
        text = jax.jit(heads()).trace(*x).lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.case" not in text
    (batch,) = jax.export.symbolic_shape("b")
    symbolic = [jax.ShapeDtypeStruct((batch, *a.shape[1:]), a.dtype) for a in x]
    exported = jax.export.export(jax.jit(heads()))(*symbolic)
    assert_close(exported.call(*x), heads()(*x), ulps=8)


def test_keys_and_values_are_read_where_they_lie():
    """No array as large as all keys or all values is made, but where a result is not finite."""
    x = inputs(T=1, S=512)  # each of another number of entries, and than the logits

    def made(f):
        text = jax.jit(f).lower(*x).compile().as_text()
        entry = text[text.index("ENTRY") :]
        found = re.findall(r"= f32\[([\d,]+)\]\S* (\S+)\(", entry)
        copies = [op for shape, op in found if math.prod(map(int, shape.split(","))) in (x[1].size, x[2].size)]
        return [op for op in copies if op not in ("parameter", "bitcast")]

    assert len(made(heads(implementation="loops"))) == 2
    assert not made(heads())


def test_few_queries_stand_across_in_their_product_with_the_keys():
    """And XLA does not fold the transposition that follows into it. More of them stand down."""
    for T, shape in ((1, "512,8"), (1 + tuning.ROWS_ACROSS // (K * G), "24,512")):
        text = jax.jit(heads()).lower(*inputs(T=T, S=512)).compile().as_text()
        assert re.search(rf"= f32\[{B},{shape}\]\S* dot\(", text)
