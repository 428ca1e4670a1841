"""A jvp is one pass over the tiles, wherever JAX does not take value and tangent apart; and then it is two."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, normal, pairs
from _jaxprs import formed
from _oracles import definition, derivatives, ours

import jattn
from jattn import masks
from jattn.engine import batching, tuning

pytestmark = pytest.mark.structure
T, S, D, Dv = 40, 40, 5, 3
SOME = pairs(T=T, S=S, share=0.3)
SOME[5] = False  # a query without a key
SOME[33, :32] = False  # one whose first key is in the last tile
CAUSAL = np.tril(np.ones((T, S), bool))


@pytest.fixture(autouse=True)
def _no_pairs_are_few(monkeypatch):
    monkeypatch.setattr(tuning, "FEW_PAIRS", 0)


@pytest.fixture(params=[0, 99, None], ids=["in loops", "written out", "one tile"])
def small_tiles(request, monkeypatch):
    """Of 16 × 16 where the caller gives none: several of them, with padding in the last. Or one tile of all pairs."""
    if request.param is None:
        return
    monkeypatch.setattr(tuning, "tile_sizes", lambda T, S, platform=None: (min(T, 16), min(S, 16)))
    for of in ("WRITTEN_OUT_TILES", "WRITTEN_OUT_TILES_OF_VALUE"):
        monkeypatch.setattr(tuning, of, request.param)


def inputs(*names):
    every = {
        "q": normal(T, D, seed=1), "k": normal(S, D, seed=2), "v": normal(S, Dv, seed=3), "bias": normal(T, S, seed=4),
        "sink": normal(T, seed=5), "scale": np.float64(0.6), "table": normal(7, seed=6),
    }  # fmt: skip
    return {name: every[name] for name in ("q", "k", "v", *names)}


def learned(table):
    return lambda score, t, s: 2 * jnp.tanh(score * table[0] / 2) + table[jnp.abs(t - s) % 7]


def with_table(f):
    def scored(*, table=None, **x):
        return f(score=None if table is None else learned(table))(**x)

    return scored


DROPOUT = {"dropout_rate": 0.3, "dropout_key": np.array([0, 1], np.uint32)}
CASES = {
    "nothing": ((), {}, {}),
    "causal": ((), {"mask": masks.causal()}, {"mask": CAUSAL}),
    "any pairs and a sink": (("sink",), {"mask": masks.dense(SOME)}, {"mask": SOME}),
    "traced lengths, a bias and a scale": (
        ("bias", "scale"),
        {"mask": masks.lengths(q=np.int32(37), k=np.int32(23))},
        {"mask": np.outer(np.arange(T) < 37, np.arange(S) < 23)},
    ),
    "a learned score": (("table",), {"mask": masks.causal()}, {"mask": CAUSAL}),
}


def both(f, **fixed):
    return with_table(lambda **how: f(**fixed, **how))


def tangents(f, x):
    return jax.jit(lambda x: jax.jvp(lambda x: f(**x), (x,), (jax.tree.map(jnp.cos, x),)))(x)


@pytest.mark.parametrize("name", CASES)
def test_value_and_tangent_are_those_of_the_definition(name, small_tiles, x64):
    names, fixed, dense = CASES[name]
    x = inputs(*names)
    assert_close(tangents(both(ours, **fixed), x), tangents(both(definition, **dense), x), ulps=1e5)  # 2e-11


def test_every_derivative_of_it_is_that_of_the_definition(monkeypatch, x64):
    monkeypatch.setattr(tuning, "tile_sizes", lambda T, S, platform=None: (min(T, 16), min(S, 16)))
    x = inputs("bias", "sink", "table")
    found = derivatives(both(ours, mask=masks.dense(SOME)))(**x)
    assert_close(found, derivatives(both(definition, mask=SOME))(**x), ulps=1e5)


def test_it_drops_the_weights_that_the_value_drops(small_tiles, x64):
    x = tuple(inputs().values())
    f = partial(jattn.attention, mask=masks.causal(), **DROPOUT)
    value, tangent = jax.jit(lambda *x: jax.jvp(f, x, x))(*x)
    assert_close((value, tangent), (f(*x), jax.linearize(f, *x)[1](*x)), ulps=1e4)
    assert np.abs(tangent - jax.jvp(partial(jattn.attention, mask=masks.causal()), x, x)[1]).max() > 0.1


@pytest.mark.parametrize("active", [(0,), (1,), (2,), (0, 2)], ids=["q", "k", "v", "q and v"])
def test_with_respect_to_some_operands_alone(active, small_tiles, x64):
    x = tuple(inputs().values())

    def tangent(f):
        def of(*some):
            return f(*(some[active.index(i)] if i in active else a for i, a in enumerate(x)))

        some = tuple(x[i] for i in active)
        return jax.jit(lambda *some: jax.jvp(of, some, tuple(map(jnp.cos, some)))[1])(*some)

    dense = lambda *x: definition(mask=SOME)(*x)[0]  # noqa: E731
    assert_close(tangent(partial(jattn.attention, mask=masks.dense(SOME))), tangent(dense), ulps=1e5)


def test_in_float32_value_and_tangent_are_those_of_two_passes_to_a_few_roundings(small_tiles):
    x = tuple(a.astype(np.float32) for a in inputs().values())
    f = partial(jattn.attention, mask=masks.dense(SOME), return_lse=True)
    value, tangent = jax.jit(lambda *x: jax.jvp(f, x, x))(*x)
    assert_close(value, jax.jit(f)(*x), ulps=16)
    assert_close(tangent, jax.jit(lambda *x: jax.linearize(f, *x)[1](*x))(*x), ulps=200)


# Where it is one pass, and where two.


def passes(f, *x):
    """How often each pass is in a program, in whatever is nested in it."""
    found = {"jvp": 0, "Forward": 0, "Tangent": 0, "Backward": 0}

    def look(jaxpr):
        for eqn in jaxpr.eqns:
            found["jvp"] += eqn.primitive is batching.batched_jvp_p
            if eqn.primitive is batching.batched_call_p:
                fun = eqn.params["fun"]
                while isinstance(fun, batching.Vmapped):
                    fun = fun.fun
                found[type(fun).__name__] += 1
            for leaf in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
                leaf = getattr(leaf, "jaxpr", leaf)
                if hasattr(leaf, "eqns"):
                    look(leaf)

    look(jax.make_jaxpr(f)(*x).jaxpr)
    return {name: n for name, n in found.items() if n}


X = tuple(a.astype(np.float32) for a in inputs().values())


def tangent_of(f):
    return lambda *x: jax.jvp(f, x, x)[1]


def gradient_of(f):
    return jax.grad(lambda *x: jnp.sum(f(*x) ** 2), (0, 1, 2))


def scanned(f):
    return lambda *x: jax.lax.scan(lambda q, _: (f(q, *x[1:]) @ jnp.ones((Dv, D), q.dtype), None), x[0], length=2)[0]


def of_pairs(f):
    return lambda *x: jax.vmap(jax.vmap(f))(*(jnp.stack([jnp.stack([a, a])] * 3) for a in x))


@pytest.mark.parametrize(
    ("transformed", "found"),
    [
        (tangent_of(jattn.attention), {"jvp": 1}),
        (tangent_of(jax.jit(jattn.attention)), {"jvp": 1}),
        (tangent_of(jax.checkpoint(jattn.attention)), {"jvp": 1}),
        (tangent_of(scanned(jattn.attention)), {"jvp": 1}),
        (tangent_of(of_pairs(jattn.attention)), {"jvp": 1}),
        (tangent_of(partial(jattn.attention, tile=(16, 16))), {"Forward": 1, "Tangent": 1}),
        (tangent_of(partial(jattn.attention, implementation="interpret")), {"Forward": 1, "Tangent": 1}),
        (tangent_of(lambda q, k, v: jattn.attention(q[:3], k, v)), {"Forward": 1, "Tangent": 1}),
        (gradient_of(jattn.attention), {"Forward": 1, "Backward": 1}),
        (gradient_of(scanned(jattn.attention)), {"Forward": 1, "Backward": 1}),
        (gradient_of(jax.checkpoint(jattn.attention)), {"Forward": 2, "Backward": 1}),  # attends again, as it is asked
        (gradient_of(of_pairs(jattn.attention)), {"Forward": 1, "Backward": 1}),
        (lambda *x: jax.linearize(jattn.attention, *x)[1](*x), {"Forward": 1, "Tangent": 1}),
        (jax.jacfwd(jattn.attention), {"Forward": 1, "Tangent": 1}),  # one value, and many tangents
    ],
    ids=[
        "jvp", "of jit", "of checkpoint", "of a scan", "of a vmap", "given tiles", "kernels", "few queries", "grad",
        "grad of a scan", "grad of checkpoint", "grad of a vmap", "linearize", "jacfwd",
    ],
)  # fmt: skip
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="it is one pass on a CPU")
def test_it_is_one_pass_where_nothing_is_transposed(transformed, found):
    assert passes(transformed, *X) == found


def test_no_pass_forms_an_array_of_pairs():
    T = 2200
    x = tuple(jax.ShapeDtypeStruct((T, n), jnp.float32) for n in (4, 4, 2))
    assert max(a.size for a in formed(jax.make_jaxpr(tangent_of(jattn.attention))(*x).jaxpr)) < T * T / 2


# Under every transform, against the same transform of the definition, whose jvp is JAX's own.


def loss(f):
    """Of a jvp: what a gradient then takes apart."""
    return lambda *x: jnp.sum(jnp.sin(jax.jvp(f, x, tuple(map(jnp.cos, x)))[1]))


def cond_and_while(f):
    def g(q, k, v):
        out = jax.lax.cond(q[0, 0] < 9, lambda: f(q, k, v), lambda: jnp.zeros((T, Dv), q.dtype))
        return jax.lax.fori_loop(0, jnp.int32(jnp.abs(q[0, 0]) + 2), lambda _, o: jnp.tanh(o + f(q, k, v)), out)

    return g


def saved(f):
    policy = jax.checkpoint_policies.save_only_these_names(*jattn.CHECKPOINT_NAMES)
    return jax.checkpoint(f, policy=policy)


TRANSFORMS = {
    "grad of jvp": lambda f: jax.grad(loss(f), (0, 1, 2)),
    "jvp of jvp": lambda f: tangent_of(lambda *x: jax.jvp(f, x, tuple(map(jnp.sin, x)))),
    "grad of checkpoint of jvp": lambda f: jax.grad(jax.checkpoint(loss(f)), (0, 1, 2)),
    "grad of checkpoint by name of jvp": lambda f: jax.grad(saved(loss(f)), (0, 1, 2)),
    "jvp of grad of checkpoint by name": lambda f: tangent_of(gradient_of(saved(f))),
    "grad of a scan of jvps": lambda f: gradient_of(scanned(lambda *x: f(*x) + tangent_of(f)(*x))),
    "jvp of cond and while": lambda f: lambda *x: jax.jvp(cond_and_while(f), x, x),
    "jacfwd of jacrev": lambda f: jax.jacfwd(jax.jacrev(lambda q, k, v: partial(f, mask=None)(q, k[:2], v[:2]).sum(0))),
    "jacfwd of vmap": lambda f: (
        lambda q, k, v: jax.jacfwd(jax.vmap(partial(f, mask=None), (None, 0, 0)))(
            q, jnp.stack([k, v @ jnp.ones((Dv, D))])[:, :3], jnp.stack([v, -v])[:, :3]
        )
    ),
    "vmap over tangents and some operands": lambda f: (
        lambda q, k, v: jax.vmap(lambda k, w: jax.jvp(lambda q, v: f(q, k, v), (q, v), (w * q, w * v)))(
            jnp.stack([k, k[::-1]]), jnp.arange(2.0)
        )
    ),
    "vmap over operands alone": lambda f: (
        lambda q, k, v: jax.vmap(lambda k: jax.jvp(lambda k: f(q, k, v), (k,), (jnp.cos(v) @ jnp.ones((Dv, D)),)))(
            jnp.stack([k, k[::-1]])
        )
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_under_every_transform_it_is_that_of_the_definition(name, monkeypatch, x64):
    monkeypatch.setattr(tuning, "tile_sizes", lambda T, S, platform=None: (min(T, 16), min(S, 16)))
    x = tuple(inputs().values())
    dense = lambda *x, mask=CAUSAL: definition(mask=mask)(*x)[0]  # noqa: E731
    got, want = (jax.jit(TRANSFORMS[name](f))(*x) for f in (partial(jattn.attention, mask=masks.causal()), dense))
    assert_close(got, want, ulps=1e5)


@pytest.mark.parametrize("mask", [None, masks.dense(SOME)], ids=["full", "any pairs"])
def test_what_is_not_finite_has_the_tangents_of_two_passes(mask, small_tiles):
    f = partial(jattn.attention, mask=mask, return_lse=True)
    in_one = jax.jit(lambda *x: jax.jvp(f, x, X))
    in_two = jax.jit(lambda *x: (f(*x), jax.linearize(f, *x)[1](*X)))
    for bad, which in ((np.nan, 0), (np.inf, 1), (np.nan, 2), (3e38, 0), (3e38, 2)):
        x = [np.array(a) for a in X]
        x[which][7, 1] = bad
        one, two = ([np.asarray(y) for y in jax.tree.leaves(g(*x))] for g in (in_one, in_two))
        assert [np.isnan(y).tolist() for y in one] == [np.isnan(y).tolist() for y in two]
        there = [np.isfinite(y) & np.isfinite(z) for y, z in zip(one, two, strict=True)]
        assert_close(*([y[i] for y, i in zip(found, there, strict=True)] for found in (one, two)), ulps=200)


@pytest.mark.parametrize("size", [1, 1e4], ids=["small", "huge"])
def test_value_and_tangent_of_queries_of_width_one_are_those_of_the_definition(size, small_tiles, x64):
    x = (normal(T, 1, seed=1) * size, normal(S, 1, seed=2), normal(S, Dv, seed=3))
    got, want = (jax.jit(lambda *x, f=f: jax.jvp(f, x, tuple(map(jnp.cos, x))))(*x) for f in (ours(), definition()))
    assert_close(got, want, ulps=1e5 * size)


@pytest.mark.parametrize("several", [False, True], ids=["operands", "tangents alone"])
def test_over_the_devices_of_shard_map_and_of_a_sharded_batch(several):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    batch = tuple(jnp.stack([a, a[::-1]]) for a in X)
    of_batch, shared = spec("x"), spec()

    def one(q, k, v, w):
        f = partial(jattn.attention, mask=masks.causal())
        return jax.jvp(f, (q[0], k[0], v[0]), (w[0], k[0], v[0]))[1][None]

    first = tuple(a[:1] for a in batch) if several else batch
    where = (shared,) * 3 if several else (of_batch,) * 3
    got = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=(*where, of_batch), out_specs=of_batch))(*first, batch[0])
    want = [one(*(a[:1] if several else a[i : i + 1] for a in batch), batch[0][i : i + 1])[0] for i in range(2)]
    assert_close(got, jnp.stack(want), ulps=64)
    if not several:
        sharded = [jax.device_put(a, jax.sharding.NamedSharding(mesh, of_batch)) for a in batch]
        program = jax.jit(jax.vmap(tangent_of(jattn.attention))).lower(*sharded).compile()
        assert not any(word in program.as_text() for word in ("all-gather", "all-reduce", "all-to-all"))
        assert_close(program(*sharded), jax.vmap(tangent_of(jattn.attention))(*batch), ulps=64)


def test_outputs_vary_over_devices_as_the_operands_and_not_as_the_tangents():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    def one(q, k, v, w):
        out, tangent = jax.jvp(lambda q: jattn.attention(q, k, v), (q,), (w[0],))
        return out, tangent[None]  # shard_map refuses an output as shared that varies

    program = jax.shard_map(one, mesh=mesh, in_specs=(spec(),) * 3 + (spec("x"),), out_specs=(spec(), spec("x")))
    out, tangent = jax.jit(program)(*X, jnp.stack([X[0], -X[0]]))
    assert_close(out, jattn.attention(*X), ulps=64)
    assert_close(tangent[0], -tangent[1], ulps=0)


def test_without_jit_and_for_several_platforms():
    with jax.disable_jit():
        eager = tangent_of(jattn.attention)(*X)
    assert_close(eager, tangent_of(jattn.attention)(*X), ulps=64)
    exported = jax.export.export(jax.jit(tangent_of(jattn.attention)), platforms=["cpu", "cuda", "tpu"])(*X)
    assert_close(exported.call(*X), eager, ulps=64)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="it is one pass on a CPU")
def test_what_runs_is_reported():
    found = jattn.implementations(tangent_of(jattn.attention), *X)
    assert [(x.name, x.kernel) for x in found] == [("jvp", False)]
    found = jattn.implementations(tangent_of(jattn.attention), *X, platform="tpu")
    assert [x.name for x in found] == ["forward", "tangent"]
