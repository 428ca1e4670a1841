"""What the compiled programs contain: which collectives, how many, of what size, and how much memory."""

import contextlib
import functools
import math
import re
import signal
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _children import environment
from _inputs import normal
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jattn
from jattn import masks, sharding
from jattn.engine import tuning

KINDS = ("collective-permute", "all-to-all", "all-gather", "all-reduce", "reduce-scatter")
QUICK = {"xla_backend_optimization_level": 0}
"""What is read, and never run, needs no fast machine code; the collectives are the same."""
SHAPE = re.compile(r"(?P<type>[a-z]+)(?P<bits>\d+)\[(?P<shape>[\d,]*)\]")


def mesh_of(n, *names, shape=None):
    kinds = (AxisType.Auto,) * len(names)
    return jax.make_mesh(shape or (n,), names, axis_types=kinds, devices=jax.devices()[:n])


def collectives(compiled):
    """Of each kind: how often it runs, and the bytes that one device gets by it; a loop's body counts by its trips."""
    bodies, body = {}, None
    for line in compiled.as_text().splitlines():
        if line.startswith(("%", "ENTRY")):
            body = bodies.setdefault(line.split()[line.startswith("ENTRY")].lstrip("%"), [])
        elif body is not None:
            body.append(line)
    entry = next(line.split()[1].lstrip("%") for line in compiled.as_text().splitlines() if line.startswith("ENTRY"))
    total = {kind: [0, 0] for kind in KINDS}

    def visit(name, times):
        for line in bodies[name]:
            op = re.search(r" = (?P<result>.*?) (?P<kind>[a-z-]+?)(?:-start)?\(", line)
            if op and op["kind"] in KINDS:
                total[op["kind"]][0] += times
                shapes = [
                    (int(m["bits"]) // 8, *(int(n) for n in m["shape"].split(",") if n))
                    for m in SHAPE.finditer(op["result"])
                ]
                total[op["kind"]][1] += times * sum(map(math.prod, shapes))
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            for called in re.findall(r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)", line):
                if called in bodies:
                    visit(called, times * (int(trips[1]) if trips and f"body=%{called}" in line else 1))

    visit(entry, 1)
    return {kind: tuple(n) for kind, n in total.items() if n[0]}


def blocks(n, rows=4, H=8, Hkv=8, D=4, dtype=jnp.float32):
    T = rows * n
    return tuple(jax.ShapeDtypeStruct((1, T, h, D), dtype) for h in (H, Hkv, Hkv))


def program(scheme, n, *, gradient=False, mask=None, order=None, x=None, T=None):
    axes = ("seq",) if scheme is not sharding.ring_all_to_all else ("ring", "heads")
    mesh = mesh_of(n, *axes, shape=(n,) if len(axes) == 1 else (n // 2, 2))
    x = x or blocks(n)
    T = x[0].shape[1]
    order = np.arange(x[1].shape[1], dtype=np.int32) if order is None else order
    rows = order[-T:] if scheme is sharding.tree else order
    spec = P(None, axes[0] if len(axes) == 1 else axes)
    kept = NamedSharding(mesh, spec), NamedSharding(mesh, P())

    def f(*x):
        out = sharding.attention(
            *x, mesh=mesh, spec=spec, scheme=scheme, mask=mask, q_positions=rows, k_positions=order
        )
        return out

    both = jax.value_and_grad(lambda *x: jnp.sum(jnp.sin(f(*x))), (0, 1, 2))
    shardings = (kept[scheme is sharding.tree], kept[0], kept[0])
    if gradient:
        out = (kept[1], shardings)
        return jax.jit(both, in_shardings=shardings, out_shardings=out).lower(*x).compile(QUICK)
    return jax.jit(f, in_shardings=shardings, out_shardings=shardings[0]).lower(*x).compile(QUICK)


def planned(x, n, mask, scheme):
    (_, T, H, D), (_, S, Hkv, _) = x[0].shape, x[1].shape
    costs = sharding.plan(
        T,
        S,
        heads=H,
        kv_heads=Hkv,
        head_dim=D,
        dtype=x[0].dtype,
        devices=n,
        flops_per_second=1e11,
        bandwidth=1e9,
        mask=mask,
    ).costs
    return next(c for c in costs if c.scheme.startswith(scheme))


IDS = np.asarray(np.arange(32) // 11, np.int32)
MASKS = {
    "all": None,
    "causal": masks.causal(),
    "before": masks.window(left=5, right=0),  # a loop of two hops
    "around": masks.window(left=3, right=3),  # two hops of unlike length: value and gradient share them
    "uneven": masks.window(left=3, right=12),  # two such hops, and then a loop
    "packed": masks.segments(IDS) & masks.causal(),
    "two": masks.segments(IDS, IDS[::-1]),
}
ONCE = {
    "ring": ["all", "uneven", "packed"],
    "ring, zigzag": ["causal"],
    "all_to_all": ["packed"],
    "gather": ["packed"],
    "ring_all_to_all": ["around", "two"],
}
"""Each part of the plan's formula: hops of every kind, positions, ids that both sides share or not."""
AGAIN = {
    "ring": ["causal", "before", "around", "two"],
    "ring, zigzag": ["around"],
    "all_to_all": ["all", "around", "two"],
    "gather": ["all", "before"],
    "ring_all_to_all": ["all", "before"],
    "tree": ["all", "before"],
}
PLANNED = [
    *[(scheme, mask, {}) for scheme, some in ONCE.items() for mask in some],
    *[pytest.param(scheme, mask, {}, marks=pytest.mark.exhaustive) for scheme, some in AGAIN.items() for mask in some],
    # Fewer key heads than devices, in half precision (bfloat16 is sent as float32 by CPU devices).
    *[
        (s, "causal", {"Hkv": 2, "dtype": jnp.float16})
        for s in ("ring", "all_to_all", "gather", "ring_all_to_all", "tree")
    ],
]


def sent(found, group):
    """The bytes that each of `group` devices sends, where `found` tells what it gets; at their least."""
    parts = {"all-to-all": 1 / group, "all-gather": 1 / group, "all-reduce": 2 / group, "reduce-scatter": 1}
    return sum(n * (group - 1) * parts[kind] if kind in parts else n for kind, (_, n) in found.items())


@pytest.mark.structure
@pytest.mark.parametrize(("scheme", "mask", "of"), PLANNED, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_the_plan_is_what_is_compiled(scheme, mask, of):
    n, x, mask = 8, blocks(8, **of), MASKS[mask]
    T = x[0].shape[1]
    order = np.arange(T, dtype=np.int32)
    order = sharding.zigzag(order, n) if "zigzag" in scheme else order
    if scheme == "tree":
        x = (jax.ShapeDtypeStruct((1, 1, *x[0].shape[2:]), x[0].dtype), *x[1:])
    cost = planned(x, n, mask, {"ring_all_to_all": "ring_all_to_all, 4 × 2"}.get(scheme, scheme))
    f, group = getattr(sharding, scheme.split(",")[0]), 2 if scheme == "ring_all_to_all" else n
    bytes_of = {False: cost.sent, True: cost.sent + cost.gradient_sent}
    for gradient, kinds in ((False, cost.collectives), (True, cost.gradient_collectives)):
        found = collectives(program(f, n, gradient=gradient, mask=mask, order=order, x=x))
        if scheme != "tree":
            found.pop("all-reduce", None)  # the sum of the loss
        assert {kind: count for kind, (count, _) in found.items()} == {k: c for k, c in kinds.items() if c}
        assert sent(found, group) == bytes_of[gradient]


@pytest.mark.structure
def test_a_window_sends_to_neighbours_alone_and_a_mask_that_rules_out_all_sends_nothing():
    narrow = collectives(program(sharding.ring, 8, mask=masks.window(left=2, right=0)))
    assert narrow["collective-permute"][0] == 3  # k, v and positions, once
    assert "collective-permute" not in collectives(program(sharding.ring, 8, mask=masks.window(0, 0)))
    assert collectives(program(sharding.ring, 8, mask=masks.causal()))["collective-permute"][0] == 21
    both = masks.window(left=3, right=3)  # one device before, one after: no loop
    assert collectives(program(sharding.ring, 8, mask=both))["collective-permute"][0] == 6


def waiting(compiled):
    """Of the permutes in the bodies of loops, whether arithmetic of the same trip needs what they bring."""
    found = []
    for body in re.split(r"\n(?=%|ENTRY)", compiled.as_text()):
        for name in re.findall(r"%([\w.\-]+) = [^\n]* collective-permute\(", body) if body.startswith("%") else ():
            uses = [line for line in body.splitlines() if re.search(rf"[(,] ?%{re.escape(name)}[,)]", line)]
            found.append(not all("ROOT" in line for line in uses))
    return found


@pytest.mark.structure
def test_keys_of_the_next_stop_travel_while_this_one_computes():
    assert waiting(program(sharding.ring, 8, mask=masks.causal())) == [False] * 3  # k, v and positions
    # The control: what the gradient sums on the way is needed where it arrives.
    assert sorted(waiting(program(sharding.ring, 8, gradient=True, mask=masks.causal()))) == [False] * 6 + [True] * 2


@pytest.mark.structure
def test_decoding_is_one_maximum_and_one_sum():
    x = blocks(8)
    x = (jax.ShapeDtypeStruct((1, 1, 8, 4), jnp.float32), *x[1:])
    found = collectives(program(sharding.tree, 8, x=x))
    assert set(found) == {"all-reduce"}
    assert found["all-reduce"] == (2, 4 * 8 * (4 + 1 + 1))


def loss_of(f):
    return lambda *x: jnp.sum(jnp.sin(f(*x)))


plain = functools.partial(jattn.dot_product_attention, is_causal=True)
gradient = jax.grad(loss_of(plain), (0, 1, 2))


def twice(*x):
    """The gradient, and its derivative along x."""
    return jax.jvp(gradient, x, x)


ROWS = {"short": 48, "one by one": 40, "long": 600}
ONE_BY_ONE = ["one by one", pytest.param("long", marks=pytest.mark.exhaustive)]
"""Rows whose examples and heads run one by one: few as if they filled the caches, and so many that they do."""
BATCH, HEADS = P("x"), P(None, None, "x")


@pytest.fixture(name="T")
def rows(request, monkeypatch):
    if request.param == "one by one":
        monkeypatch.setattr(tuning, "group_bytes", lambda platform: 1)
    return ROWS[request.param]


@functools.cache
def of_one_device(f, shapes, dtype):
    """The arguments, and what one device makes of them."""
    x = tuple(normal(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes))
    return x, jax.tree.map(np.asarray, jax.jit(f)(*x))


def on_devices(f, x, at, out, want=None):
    """f compiled for arguments that lie at `at`: its collectives, and how far its results are from one device's."""
    mesh = mesh_of(8, "x")
    at, out = (jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs) for specs in (at, out))
    compiled = jax.jit(f, in_shardings=at, out_shardings=out).lower(*x).compile()
    got, want = compiled(*jax.device_put(x, at)), jax.jit(f)(*x) if want is None else want
    pairs = zip(*(map(np.asarray, jax.tree.leaves(y)) for y in (got, want)), strict=True)
    return collectives(compiled), max(float(np.max(np.abs(a - b))) for a, b in pairs)


@pytest.mark.structure
@pytest.mark.parametrize(
    ("spec", "T"),
    [
        pytest.param(BATCH, "short", id="batch-short"),
        pytest.param(HEADS, "one by one", id="heads-one by one"),
        pytest.param(BATCH, "one by one", id="batch-one by one", marks=pytest.mark.exhaustive),
        pytest.param(BATCH, "long", id="batch-long", marks=pytest.mark.exhaustive),
        pytest.param(HEADS, "short", id="heads-short", marks=pytest.mark.exhaustive),
        pytest.param(HEADS, "long", id="heads-long", marks=pytest.mark.exhaustive),
    ],
    indirect=["T"],
)
def test_sharded_batch_and_heads_need_no_collective(spec, T):
    """Where heads run one by one too: each device runs its own."""
    for f, out in ((plain, spec), (twice, ((spec,) * 3,) * 2)):
        x, want = of_one_device(f, ((8, T, 8, 4),) * 3, np.float32)
        sent, off = on_devices(f, x, (spec,) * 3, out, want)
        assert sent == {}
        assert off < 1e-4


@pytest.mark.structure
@pytest.mark.parametrize("T", ["short", pytest.param("long", marks=pytest.mark.exhaustive)], indirect=True)
@pytest.mark.parametrize("spec", [BATCH, HEADS], ids=["batch", "heads"])
def test_nor_do_they_where_no_axis_of_the_sequence_is_sharded(spec, T):
    """jattn.sharding.attention without a scheme."""
    manual = functools.partial(sharding.attention, mesh=mesh_of(8, "x"), spec=spec, mask=masks.causal())
    at = (spec,) * 3
    for f, g, out in ((plain, manual, spec), (gradient, jax.grad(loss_of(manual), (0, 1, 2)), at)):
        x, want = of_one_device(f, ((8, T, 8, 4),) * 3, np.float32)
        sent, off = on_devices(g, x, at, out, want)
        assert sent == {}
        assert off < 1e-4


@pytest.mark.structure
@pytest.mark.parametrize("spec", [BATCH, HEADS], ids=["batch", "heads"])
def test_nor_do_they_in_an_exported_program_where_a_plain_call_gathers(spec):
    pytest.importorskip("flatbuffers", reason="jax.export serializes with flatbuffers")
    mesh = mesh_of(8, "x")
    manual = functools.partial(sharding.attention, mesh=mesh, spec=spec, mask=masks.causal())
    x, want = of_one_device(gradient, ((8, 16, 8, 4),) * 3, np.float32)
    here = jax.device_put(x, NamedSharding(mesh, spec))

    def exported(f):
        saved = jax.export.export(jax.jit(jax.grad(loss_of(f), (0, 1, 2))))(*here).serialize()
        compiled = jax.jit(jax.export.deserialize(saved).call).lower(*here).compile()
        chex.assert_trees_all_close(compiled(*here), want, atol=1e-4)
        return {kind for kind in KINDS if f" {kind}" in compiled.as_text()}  # in any branch of it

    assert exported(manual) == set()
    assert "all-gather" in exported(plain)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("T", ONE_BY_ONE, indirect=True)
@pytest.mark.parametrize("spec", [pytest.param(BATCH, marks=pytest.mark.exhaustive), HEADS], ids=["batch", "heads"])
def test_sharded_batch_and_heads_need_no_collective_in_float64(spec, T):
    """The compiler asks in a thread of its own, where x64 is not enabled."""
    x, want = of_one_device(twice, ((8, T, 8, 4),) * 3, np.float64)
    sent, off = on_devices(twice, x, (spec,) * 3, ((spec,) * 3,) * 2, want)
    assert sent == {}
    assert off < 1e-11


@pytest.mark.structure
@pytest.mark.parametrize("T", ONE_BY_ONE, indirect=True)
def test_a_sharded_sequence_is_gathered_by_a_plain_call(T):
    """The control of the test above: here there is something to send."""
    x, at = tuple(normal(2, T, 2, 4, seed=i, dtype=np.float32) for i in range(3)), P(None, "x")
    for f, out in ((plain, at), (gradient, (at,) * 3)):
        sent, off = on_devices(f, x, (at,) * 3, out)
        assert sent
        assert off < 1e-4


@pytest.mark.structure
@pytest.mark.parametrize("T", ONE_BY_ONE, indirect=True)
def test_fewer_key_heads_than_devices_are_shared_where_queries_are_sharded_by_heads(T):
    """Eight devices over 2 × 4 heads: the compiler splits the axis of the mesh."""
    x = tuple(normal(2, T, heads, 4, seed=i, dtype=np.float32) for i, heads in enumerate((8, 2, 2)))
    at = P(None, None, "x"), P(), P()
    sent, off = on_devices(plain, x, at, at[0])
    assert sent == {}
    assert off < 1e-5
    _, off = on_devices(gradient, x, at, at)
    assert off < 1e-3


@pytest.mark.structure
@pytest.mark.parametrize("T", ONE_BY_ONE, indirect=True)
def test_what_is_one_for_all_examples_has_its_gradient_summed_once(T):
    x = (
        normal(1, T, T, seed=3, dtype=np.float32),
        *(normal(8, T, 1, 4, seed=i, dtype=np.float32) for i in range(3)),
    )
    grad = jax.grad(lambda bias, *x: loss_of(functools.partial(jattn.dot_product_attention, bias=bias))(*x))
    sent, off = on_devices(grad, x, (P(), *[P("x")] * 3), P())
    assert {kind: n for kind, (n, _) in sent.items()} == {"all-reduce": 1}
    assert off < 1e-4


@pytest.mark.structure
@pytest.mark.parametrize("T", ONE_BY_ONE, indirect=True)
@pytest.mark.parametrize("bits", [32, 64])
def test_lengths_and_dropout_of_sharded_examples_stay_where_they_are(bits, T):
    """In 64 bits the lengths are int64, and the numbers are drawn so."""
    with jax.enable_x64(bits == 64):
        lengths_and_dropout(f"float{bits}", T)


def lengths_and_dropout(dtype, T):
    x = tuple(normal(8, T, 2, 4, seed=i, dtype=dtype) for i in range(3))
    lengths = np.arange(8, dtype=np.int64 if dtype == "float64" else np.int32) * (T // 9) + 3

    def f(lengths, *x):
        dropping = {"dropout_rate": 0.3, "dropout_key": jax.random.key(0)}
        return jattn.dot_product_attention(*x, key_value_seq_lengths=lengths, **dropping)

    sent, off = on_devices(f, (lengths, *x), (P("x"),) * 4, P("x"))
    assert sent == {}
    assert off == 0


@pytest.mark.structure
@pytest.mark.parametrize("inside", [True, False], ids=["in jit", "around jit"])
def test_dropout_of_sharded_examples_draws_as_threefry_was_set_where_it_was_called(inside):
    """The compiler asks for each device's share in a thread of its own; the control: the other setting draws others."""
    x = tuple(normal(8, 24, 2, 4, seed=i) for i in range(3))

    @jax.grad
    def gradient(x):
        out = jattn.dot_product_attention(*x, dropout_rate=0.3, dropout_key=jax.random.key(0))
        return jnp.sum(jnp.sin(out))

    def set_to(partitionable, x):
        with jax.threefry_partitionable(partitionable):
            return gradient(x)

    draws = not jax.config.jax_threefry_partitionable
    of_other, want = set_to(not draws, x), set_to(draws, x)
    sharded = jax.device_put(x, NamedSharding(mesh_of(8, "x"), P("x")))
    with contextlib.nullcontext() if inside else jax.threefry_partitionable(draws):
        got = jax.jit(functools.partial(set_to, draws) if inside else gradient)(sharded)
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-5)
    assert max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(of_other, want, strict=True)) > 0.01


@pytest.mark.structure
@pytest.mark.parametrize("T", ONE_BY_ONE, indirect=True)
def test_an_explicit_mesh_carries_batch_and_heads_in_its_types(T):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    x = tuple(normal(8, T, 8, 4, seed=i, dtype=np.float32) for i in range(3))
    want, wanted = jax.jit(plain)(*x), jax.jit(gradient)(*x)
    with jax.set_mesh(mesh):
        for spec in (P("x", None, None, None), P(None, None, "x", None)):
            here = jax.device_put(x, NamedSharding(mesh, spec))
            out = plain(*here)
            assert jax.typeof(out).sharding.spec == spec
            np.testing.assert_allclose(out, want, atol=1e-6)
            for got, one in zip(jax.jit(gradient)(*here), wanted, strict=True):
                np.testing.assert_allclose(got, one, atol=1e-4)
        across = jax.device_put(x, NamedSharding(mesh, P(None, "x")))
        with pytest.raises(ValueError, match=r"only batch and heads .*, got .*Use jattn.sharding.attention"):
            plain(*across)


@pytest.mark.structure
def test_on_an_explicit_mesh_gradients_take_several_tiles_and_options_may_be_whole():
    mesh = jax.make_mesh((2, 4), ("batch", "heads"), axis_types=(AxisType.Explicit,) * 2)
    q, *kv = (normal(2, 20, n, 4, seed=i, dtype=np.float32) for i, n in enumerate((8, 4, 4)))
    how = {
        "bias": normal(2, 8, 20, 20, dtype=np.float32),
        "key_value_seq_lengths": np.array([13, 20]),
        "dropout_rate": 0.25,
        "dropout_key": jax.random.key(0),
        "tile": (16, 16),
    }

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2))
    def gradients(*x):
        return jnp.sum(jattn.dot_product_attention(*x, **how) ** 2)

    want = gradients(q, *kv)
    cut = P("batch", None, "heads")
    with jax.set_mesh(mesh):
        for of_q, of_kv in ((cut, cut), (cut, P("batch")), (P(None, None, "heads"), cut)):
            here = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((q, of_q), *((x, of_kv) for x in kv))]
            found = gradients(*here)
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found, want)


@pytest.mark.structure
def test_eagerly_arrays_on_an_explicit_mesh_take_whole_options_where_no_mesh_is_set():
    mesh = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[1:5])
    q, *kv = (normal(2, 5, n, 3, seed=i, dtype=np.float32) for i, n in enumerate((4, 2, 2)))
    here = jax.device_put((q, *kv), NamedSharding(mesh, P("batch", None, "heads")))
    drawn = {"dropout_rate": 0.5, "dropout_key": jax.random.key(0)}
    rows = jnp.stack([jnp.arange(5), jnp.arange(5)[::-1]])
    options = {
        "key_value_seq_lengths": jnp.array([3, 4]),
        "query_seq_lengths": np.array([3, 4]),
        "bias": jnp.asarray(normal(2, 4, 5, 5, dtype=np.float32)),
        "mask": jnp.asarray(normal(2, 1, 5, 5, dtype=np.float32)) > 0,
        "sink": jnp.arange(4.0),
    }
    positions = {"q_positions": rows, "k_positions": rows, "is_causal": True}
    for how in [{name: x} for name, x in options.items()] + [positions, drawn]:
        want, pulled = jax.vjp(lambda *x, how=how: jattn.dot_product_attention(*x, **how), q, *kv)
        got, pull = jax.vjp(lambda *x, how=how: jattn.dot_product_attention(*x, **how), *here)
        assert got.sharding.is_equivalent_to(here[0].sharding, 4)
        np.testing.assert_allclose(got, want, atol=1e-6)
        for one, wanted in zip(pull(got), pulled(want), strict=True):
            np.testing.assert_allclose(one, wanted, atol=1e-5)
    bias, sink = options["bias"], options["sink"]
    found = [
        jax.vjp(lambda b, s, x=x: jattn.dot_product_attention(*x, bias=b, sink=s), bias, sink) for x in (here, (q, *kv))
    ]
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), *(pull(out) for out, pull in found))


@pytest.mark.structure
def test_saved_names_spare_a_second_round():
    mesh, (x, *_) = mesh_of(8, "seq"), blocks(8)
    kept = NamedSharding(mesh, P(None, "seq"))

    def permutes(policy):
        def layer(h, _):
            return jnp.sin(sharding.attention(h, jnp.cos(h), 2 * h, mesh=mesh, spec=P(None, "seq"))), None

        layer = layer if policy is None else jax.checkpoint(layer, policy=policy)
        grad = jax.grad(lambda h: jnp.sum(jax.lax.scan(layer, h, length=3)[0]))
        return collectives(jax.jit(grad, in_shardings=kept, out_shardings=kept).lower(x).compile(QUICK))

    plain = permutes(None)["collective-permute"][0]
    assert plain == 3 * (7 * 2 + 7 * 4 + 2)
    named = jax.checkpoint_policies.save_only_these_names(*jattn.CHECKPOINT_NAMES)
    assert permutes(named)["collective-permute"][0] == plain
    assert (
        permutes(jax.checkpoint_policies.nothing_saveable)["collective-permute"][0] == plain + 3 * 6 * 2
    )  # the first hop serves both


def test_zigzag_balances_causal_work():
    """Counted pair by pair: each stop of the ring lasts as long as its busiest device."""
    n, T = 8, 64
    pairs = np.asarray(masks.to_dense(masks.causal(), T, T))
    found = {}
    for layout, order in (("contiguous", np.arange(T)), ("zigzag", sharding.zigzag(np.arange(T), n))):
        shards = order.reshape(n, -1)
        stops = [[pairs[np.ix_(shards[i], shards[(i - d) % n])].sum() for i in range(n)] for d in range(n)]
        found[layout] = n * sum(map(max, stops)) / pairs.sum()
        whole = np.sum(stops, 0)
        if layout == "zigzag":
            assert whole.max() / whole.mean() <= 1.05
        else:
            assert whole.max() / whole.mean() > 1.8
        cost = planned(blocks(n, rows=8), n, masks.causal(), f"ring, {layout}")
        assert cost.balance == pytest.approx(found[layout], rel=0.03)
    assert found["zigzag"] <= 1.05 < 1.8 < found["contiguous"]


MEMORY = """
import sys, jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P, NamedSharding, AxisType
jax.config.update("jax_num_cpu_devices", 32)
from jattn import sharding, masks
def measured(n, order, scheme=sharding.ring, rows=64):
    mesh = jax.make_mesh((n,), ("seq",), axis_types=(AxisType.Auto,), devices=jax.devices()[:n])
    kept = NamedSharding(mesh, P(None, "seq"))
    x = [jax.ShapeDtypeStruct((1, n * rows, 2, 16), jnp.float32)] * 3
    pos = jax.ShapeDtypeStruct((n * rows,), jnp.int32)
    def loss(p, *x):
        out = sharding.attention(*x, mesh=mesh, spec=P(None, "seq"), scheme=scheme, mask=masks.causal(),
                                 q_positions=p, k_positions=p)
        return jnp.sum(jnp.sin(out))
    def program(p, *x):
        g = jax.grad(lambda x: loss(p, *x))
        if order == "value": return loss(p, *x)
        if order == "grad": return g(x)
        if order == "jvp": return jax.jvp(lambda *x: loss(p, *x), x, x)
        if order == "hvp": return jax.jvp(g, (x,), (x,))[1]
        return jax.grad(lambda x: sum(map(jnp.vdot, g(x), x)))(x)
    whole = NamedSharding(mesh, P())
    one = {"value": whole, "jvp": (whole, whole)}.get(order, (kept,) * 3)
    at = NamedSharding(mesh, P("seq"))
    f = jax.jit(program, in_shardings=(at, kept, kept, kept), out_shardings=one)
    return f.lower(pos, *x).compile().memory_analysis().temp_size_in_bytes
for order in sys.argv[1:]:
    print(order, measured(8, order), measured(32, order), flush=True)
print("gather", measured(8, "value", sharding.gather), measured(32, "value", sharding.gather), flush=True)
"""


def child(source, *arguments, seconds=240):
    command = [sys.executable, "-c", source, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env=environment() | {"JAX_PLATFORMS": "cpu"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.structure
@pytest.mark.parametrize(
    "orders",
    [("value", "grad", "hvp"), pytest.param(("jvp", "gg"), marks=pytest.mark.exhaustive)],
    ids=" ".join,
)
def test_memory_does_not_grow_with_the_ring(orders):
    """What the derivative of a gradient along x needs, its tangent pass needs too."""
    found = {name: (int(a), int(b)) for name, a, b in (line.split() for line in child(MEMORY, *orders).splitlines())}
    for order in orders:
        few, many = found[order]
        assert many <= (4.2 * few if order == "gg" else 1.02 * few + 4096), (order, found)
    assert found["gather"][1] > 2 * found["gather"][0]  # the control: all keys on each device


DEADLOCK = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P, AxisType
jax.config.update("jax_num_cpu_devices", 4)
from jattn import sharding, masks
mesh = jax.make_mesh((4,), ("seq",), axis_types=(AxisType.Auto,))
q, kv = jnp.ones((1, 2, 2, 3)), jnp.linspace(0, 1, 1 * 16 * 2 * 3).reshape(1, 16, 2, 3)
t, s = jnp.array([3, 5]), jnp.arange(16)  # the last two devices hold no key that is allowed
for scheme in (sharding.tree, sharding.ring):
    def f(q, kv, t, s):
        out = scheme(q, kv, kv, axis_name="seq", mask=masks.causal(), q_positions=t, k_positions=s)
        return out if scheme is sharding.tree else jax.lax.pmean(out, "seq")
    for check in (True, False):
        g = jax.shard_map(f, mesh=mesh, in_specs=(P(), P(None, "seq"), P(), P("seq")), out_specs=P(), check_vma=check)
        d = jax.jit(jax.grad(lambda q, kv: jnp.sum(jnp.sin(g(q, kv, t, s))), (0, 1)))(q, kv)
        print(scheme.__name__, check, float(jnp.abs(d[0]).sum()), float(jnp.abs(d[1]).sum()), flush=True)
"""


WAITS = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
limits = {"warn_stuck": 1, "terminate": 2}
os.environ["XLA_FLAGS"] = " ".join(f"--xla_cpu_collective_call_{k}_timeout_seconds={n}" for k, n in limits.items())
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P, AxisType
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("seq",), axis_types=(AxisType.Auto,))
def f(q, kv):
    here = jax.lax.axis_index("seq") < 2
    return jax.lax.psum(jax.lax.cond(here, lambda kv: jnp.sin(q * kv), jnp.zeros_like, kv), "seq")
g = jax.shard_map(f, mesh=mesh, in_specs=(P(), P("seq")), out_specs=P())
print(f"value {float(jax.jit(g)(jnp.ones(1), jnp.ones(4))[0]):.3f}", flush=True)
print(jax.jit(jax.grad(lambda q, kv: jnp.sum(g(q, kv))))(jnp.ones(1), jnp.ones(4)), flush=True)
"""


def test_a_replicated_operand_of_a_branch_that_some_devices_take_is_waited_for():
    """The control of the test below: JAX alone, without the cast."""
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["value", "1.683"]
    assert done.returncode == -signal.SIGABRT
    assert "rendezvous" in done.stderr.lower()


@pytest.mark.structure
def test_a_replicated_query_over_a_sharded_cache_does_not_deadlock():
    found = [line.split() for line in child(DEADLOCK).splitlines()]
    assert [line[:2] for line in found] == [[s, c] for s in ("tree", "ring") for c in ("True", "False")]
    numbers = np.array([[float(x) for x in line[2:]] for line in found])
    np.testing.assert_allclose(numbers, np.broadcast_to(numbers[0], numbers.shape), rtol=1e-5)
    assert (numbers > 0).all()


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("scheme", ["ring", "all_to_all", "gather", "tree", "ring_all_to_all"])
def test_a_mapped_scheme_is_the_scheme_of_each(scheme):
    """jax.vmap over a scheme, with positions of each example's own; and a scheme inside a batch axis of its own."""
    axes = ("ring", "heads") if scheme == "ring_all_to_all" else ("seq",)
    mesh = mesh_of(4, *axes, shape=(2, 2) if len(axes) == 2 else None)
    name = axes[0] if len(axes) == 1 else axes
    x = tuple(normal(3, 1, 8, 4, 5, seed=i) for i in range(3))
    s = np.stack([np.arange(8), np.arange(8)[::-1], np.arange(8) * 2])
    spec, rows = P(None, name), P(name)
    t, q_spec, q_rows = s, spec, rows
    if scheme == "tree":
        x, t, q_spec, q_rows = (x[0][:, :, :2], *x[1:]), s[:, 3:5], P(), P()
    f = functools.partial(getattr(sharding, scheme), axis_name=name, mask=masks.causal())
    one = jax.shard_map(
        lambda q, k, v, t, s: f(q, k, v, q_positions=t, k_positions=s), mesh=mesh,
        in_specs=(q_spec, spec, spec, q_rows, rows), out_specs=q_spec, axis_names=set(axes),
    )  # fmt: skip
    graded = lambda g: jax.jit(jax.value_and_grad(lambda x, t, s: jnp.sum(jnp.sin(g(*x, t, s)))))  # noqa: E731
    got, each = graded(jax.vmap(one))(x, t, s), graded(one)
    value, gradients = zip(*(each(tuple(a[i] for a in x), t[i], s[i]) for i in range(3)), strict=True)
    np.testing.assert_allclose(got[0], sum(value), rtol=0, atol=1e-11)
    for a, *b in zip(got[1], *gradients, strict=True):
        np.testing.assert_allclose(a, np.stack(b), rtol=0, atol=1e-11)


@pytest.mark.structure
@pytest.mark.parametrize("scheme", ["ring", "all_to_all", "gather", "tree"])
def test_each_scheme_multiplies_in_the_precision_that_was_set_where_it_was_called(scheme):
    """A program is lowered when the block that set it has been left, and its gradient is taken beyond it too."""
    mesh, whole = mesh_of(2, "seq"), P(None, "seq")
    q_spec = P() if scheme == "tree" else whole

    @jax.jit
    @jax.grad
    def gradient(q, k, v):
        with jax.default_matmul_precision("default"):
            f = functools.partial(getattr(sharding, scheme), axis_name="seq")
            return jnp.sum(jax.shard_map(f, mesh=mesh, in_specs=(q_spec, whole, whole), out_specs=q_spec)(q, k, v))

    with jax.default_matmul_precision("highest"):
        text = gradient.lower(*normal(3, 1, 64, 4, 16, dtype=np.float32)).as_text()
    assert text.count("precision = [DEFAULT, DEFAULT]") == text.count("stablehlo.dot_general") > 0


@pytest.mark.structure
def test_a_ring_has_float64_where_it_was_enabled_around_the_call():
    x = normal(3, 1, 8, 2, 4, dtype=np.float32)
    spec = P(None, "seq")
    ring = jax.shard_map(
        functools.partial(sharding.ring, axis_name="seq"), mesh=mesh_of(2, "seq"), in_specs=spec, out_specs=spec
    )

    @jax.jit
    def gradient(x):
        with jax.enable_x64(True):
            return jax.grad(lambda x: jnp.var(ring(*x)))(x.astype(np.float64))

    with jax.enable_x64(True):
        exact = jax.grad(lambda x: jnp.var(jattn.dot_product_attention(*x)))(jnp.asarray(x, np.float64))
    np.testing.assert_allclose(gradient(x), exact, rtol=0, atol=1e-12)


def test_a_table_toward_a_million_tokens():
    for devices in (64, 256, 1024):
        p = sharding.plan(
            2**20, 2**20, heads=32, kv_heads=8, head_dim=128, dtype=jnp.bfloat16, devices=devices,
            flops_per_second=4e14, bandwidth=5e10, mask=masks.causal(),
        )  # fmt: skip
        costs = {c.scheme: c for c in p.costs}
        assert costs["ring, zigzag"].balance <= 1.05 < 1.9 < costs["ring, contiguous"].balance
        assert costs["all_to_all"].why_not == f"32 heads cannot be divided among {devices} devices"
        kv = 2**20 // devices * (8 * 2 * 128 * 2 + 4)  # and where they stand
        assert costs["ring, zigzag"].sent == (devices - 1) * kv
        assert f"{p.choice} " in next(line for line in str(p).splitlines() if "←" in line)
    odd = {"heads": 2, "kv_heads": 2, "head_dim": 4, "dtype": jnp.float32, "devices": 4}
    assert sharding.plan(7, 7, **odd, flops_per_second=1e9, bandwidth=1e9).choice == "none"


def test_a_plan_without_a_mask_has_any_length():
    """No array as long as the sequence is formed: it would be of 4 TiB."""
    sizes = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "devices": 64}
    short, long = (sharding.plan(T, T, **sizes, flops_per_second=4e14, bandwidth=5e10) for T in (2**20, 2**40))
    for one, other in zip(short.costs, long.costs, strict=True):
        assert (one.scheme, one.why_not, one.balance) == (other.scheme, other.why_not, other.balance)
        assert (2**20 * one.sent, 2**40 * one.work) == (other.sent, other.work)


def test_a_rate_may_be_a_whole_number_of_any_size():
    sizes = {"heads": 2, "kv_heads": 2, "head_dim": 4, "dtype": "float32", "devices": 2}
    of_int, of_float = (sharding.plan(8, 8, **sizes, flops_per_second=F, bandwidth=1) for F in (10**30, 1e30))
    assert of_int == of_float
    past, no_end = (sharding.plan(8, 8, **sizes, flops_per_second=1e9, bandwidth=W) for W in (10**400, np.inf))
    assert past == no_end


def test_unzigzag_undoes_zigzag():
    x = np.arange(48).reshape(2, 24)
    assert (sharding.unzigzag(sharding.zigzag(x, 4, axis=1), 4, axis=1) == x).all()
    assert (sharding.zigzag(jnp.asarray(x), 4, axis=-1) == sharding.zigzag(x, 4, axis=1)).all()
