"""Under every mode that people debug JAX with attention runs, and each mode sees what it is there to see."""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import functools
import gc
import logging
import re
import warnings
import weakref

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, assert_close, normal, qkv
from jax.experimental import checkify

import jattn
from jattn import flow, heads, masks, scores
from jattn.engine import tangent, tile
from jattn.engine.batching import batched_call_p

T, TILE = 29, (16, 16)
structure = pytest.mark.structure  # of all but what depends on which operations XLA fuses


OF_TWO = pytest.mark.skipif(jax.device_count() < 2, reason="it needs a mesh of two devices")


def arguments(dtype=np.float32):
    """What attention is a function of, a learned score and sink among it."""
    q, k, v = qkv(T=T, S=T, dtype=dtype)
    x = {"q": q, "k": k, "v": v, "table": normal(T, seed=11, dtype=dtype), "sink": normal(T, seed=9, dtype=dtype)}
    return jax.tree.map(jnp.asarray, x)


def attend(x, mask=masks.causal()):  # noqa: B008 - a value
    """Over several tiles, with a score that captures an array."""
    table = x["table"]
    return jattn.attention(
        x["q"], x["k"], x["v"], mask=mask, sink=x["sink"], tile=TILE, return_lse=True,
        score=lambda score, t, s: score + table[jnp.abs(t - s)],
    )  # fmt: skip


def loss(x):
    out, lse = attend(x)
    return jnp.sum(out * out) + jnp.sum(lse * lse)


def total(tree):
    return sum(jnp.sum(a) for a in jax.tree.leaves(tree))


def twice(x):
    return jax.tree.map(lambda a: jnp.stack([a, a + a]), x)


def scanned(x):
    def step(q, _):
        out, _ = attend(x | {"q": q})
        return q + jnp.sum(out) / 100, None

    return jax.lax.scan(step, x["q"], length=2)[0]


TRANSFORMS = {
    "value": attend,
    "grad": jax.grad(loss),
    "jvp": lambda x: jax.jvp(attend, (x,), (x,)),
    "jvp of grad": lambda x: jax.jvp(jax.grad(loss), (x,), (x,)),
    "grad of grad": jax.grad(lambda x: total(jax.grad(loss)(x))),
    "vmap": lambda x: jax.vmap(attend)(twice(x)),
    "vmap of grad": lambda x: jax.vmap(jax.grad(loss))(twice(x)),
    "scan": scanned,
    "grad of scan": jax.grad(lambda x: total(scanned(x))),
}


# jax.disable_jit


@structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "names",
    [
        ("value", "grad", "jvp", "jvp of grad", "grad of grad"),
        pytest.param(("vmap", "vmap of grad"), marks=pytest.mark.exhaustive),  # the heads below are mapped
    ],
    ids=["plain", "mapped"],
)
def test_without_jit_the_results_are_those_of_the_program(names):
    x = arguments(np.float64)
    every = lambda x: {name: TRANSFORMS[name](x) for name in names}  # noqa: E731
    want = jax.jit(every)(x)
    with jax.disable_jit():
        got = every(x)
    assert_close(got, want, ulps=2**12)


@structure
@pytest.mark.usefixtures("x64")
def test_without_jit_many_heads_are_those_of_the_program():
    x = arguments(np.float64)["q"][None, :, None]
    f = lambda x: jattn.dot_product_attention(x, x, x, is_causal=True, tile=TILE)  # noqa: E731
    want = jax.jit(f)(x)
    with jax.disable_jit():
        assert_close(f(x), want, ulps=2**12)


@structure
@pytest.mark.usefixtures("x64")
def test_without_jit_what_a_tile_computes_can_be_printed(monkeypatch):
    """Logits of the forward pass, weights of the backward pass: arrays; the control: in a program they are not."""
    seen = {"logits": [], "weights": []}

    def looking(f, kind):
        def look(*args, **kwargs):
            y = f(*args, **kwargs)
            seen[kind].append(y)
            return y

        return look

    def arrays(kind):
        return [y for y in seen[kind] if not isinstance(y, jax.core.Tracer)]

    monkeypatch.setattr(tile, "logits_from_products", looking(tile.logits_from_products, "logits"))
    monkeypatch.setattr(tangent.Recomputed, "probabilities", looking(tangent.Recomputed.probabilities, "weights"))
    x = arguments(np.float64)
    with jax.disable_jit():
        jax.grad(loss)(x)
    for kind in seen:
        assert len(arrays(kind)) == 3, "causal: one full tile below the diagonal, two on it"
        assert all(y.shape == TILE and "[[" in str(y) for y in arrays(kind))
        seen[kind].clear()
    jax.clear_caches()
    jax.jit(jax.grad(loss)).lower(x)
    for kind in seen:
        assert seen[kind]
        assert not arrays(kind)


# jax.checking_leaks


@pytest.mark.parametrize("name", ["value", "jvp", "jvp of grad", "vmap of grad", "grad of grad", "grad of scan"])
def test_no_tracer_outlives_its_program(name):
    """A table that a score captures is where one would be kept."""
    jax.clear_caches()
    with jax.checking_leaks():
        jax.jit(TRANSFORMS[name]).lower(arguments())


@structure
def test_no_tracer_outlives_an_eager_derivative():
    jax.clear_caches()
    with jax.checking_leaks():
        TRANSFORMS["grad of grad"](arguments())


def test_no_tracer_outlives_a_shard_map():
    x = arguments()
    mesh = jax.make_mesh((2,), ("b",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    several = jax.shard_map(
        jax.vmap(jax.grad(loss)), mesh=mesh, in_specs=jax.P("b"), out_specs=jax.P("b")
    )  # fmt: skip
    jax.clear_caches()
    with jax.checking_leaks():
        jax.jit(several).lower(twice(x))


def test_a_tracer_that_is_kept_is_noticed():
    """The control, by a score that keeps what it is given."""
    x, kept = arguments(), []

    def f(q):
        def keep(score, t, s):
            kept.append(score)
            return score

        return jattn.attention(q, x["k"], x["v"], score=keep, tile=TILE)

    with jax.checking_leaks(), pytest.raises(Exception, match="Leaked"):
        jax.jit(f).lower(x["q"])


@structure
def test_no_program_keeps_an_array_that_a_score_captured_alive():
    x = arguments()

    def call(x, table):
        f = lambda q: attend(x | {"q": q, "table": table})[0]  # noqa: E731
        return f(x["q"]), jax.grad(lambda q: total(f(q)))(x["q"])

    table = x["table"] + 1
    gone, held = weakref.ref(table), jax.jit(lambda y: y + table)
    call(x, table)
    held(x["table"])
    del table
    gc.collect()
    assert gone() is not None, "the control: a program that has it as a constant keeps it"
    del held
    gc.collect()
    assert gone() is None


# jax.debug_nans and jax.debug_infs


HIDDEN = masks.lengths(q=23, k=25)


def with_nan(x, where, what=np.nan):
    """One row of q, k and v is NaN."""
    return x | {n: x[n].at[where].set(what) for n in "qkv"}


def plain(x):
    return jattn.attention(x["q"], x["k"], x["v"], mask=HIDDEN, tile=TILE)


def plain_loss(x):
    return jnp.sum(plain(x) ** 2)


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_debug_nans_stops_only_at_a_nan_that_is_attended(jit):
    """Masked NaNs and queries without keys pass, in value and gradient; the control: one that is attended does not."""
    x = arguments()
    hidden, attended = with_nan(x, 27), with_nan(x, 3)
    value, gradient = jit(plain), jit(jax.grad(plain_loss))
    with jax.debug_nans(True):
        want = value(x), gradient(x)
        got = value(hidden), gradient(hidden)
        for f in (value, gradient):
            with pytest.raises(FloatingPointError, match="nan"):
                f(attended)
    assert_close(got, want, ulps=0)


@structure
@pytest.mark.parametrize(
    "f",
    [
        lambda q, k, mask: jax.vmap(lambda q, k: jattn.attention(q, k, k, mask=mask), (1, 1))(q, k),
        lambda q, k, mask: jattn.ragged_attention(q, k, k, [0, len(q)], mask=mask),
        lambda q, k, mask: jattn.dot_product_attention(q, k, k, mask=mask),
    ],
    ids=["mapped", "ragged", "many heads"],
)
def test_debug_nans_passes_masked_nans_of_many_heads(f):
    """Outside jit their axes are moved; the control: a NaN that is attended."""
    q, k = normal(7, 3, D, seed=1), normal(7, 3, D, seed=2)
    k[4] = np.nan
    total = lambda q, mask: f(q, k, mask).sum()  # noqa: E731
    with jax.debug_nans(True):
        jax.grad(total)(q, masks.lengths(k=4))
        with pytest.raises(FloatingPointError, match="nan"):
            f(q, k, masks.lengths(k=5))


@structure
@pytest.mark.parametrize(
    "measure",
    [
        lambda q, k: jattn.statistics(q, k, mask=HIDDEN).entropy,
        lambda q, k: jattn.top_keys(q, k, 2, mask=HIDDEN)[1],
        lambda q, k: jattn.explain(q, k, k, mask=HIDDEN).weights,
        lambda q, k: flow.pulls(q, k, k, flow.squared_error(k[0]), mask=HIDDEN).on_q,
    ],
    ids=["statistics", "top_keys", "explain", "pulls"],
)
def test_debug_nans_passes_what_is_measured_of_queries_without_keys(measure):
    x = arguments()
    total = lambda q, k: jnp.sum(jnp.where((found := measure(q, k)) == -jnp.inf, 0, found))  # noqa: E731
    with jax.debug_nans(True):
        jax.grad(total, (0, 1))(x["q"], x["k"])


@structure
def test_debug_nans_passes_without_jit_too():
    """A jvp of masked heads, and the definition; the control: a NaN that is attended is found."""
    x = arguments()
    attended = with_nan(x, 3)
    heads = lambda x: jattn.dot_product_attention(*[x["q"][None, :, None]] * 3, is_causal=True)  # noqa: E731
    with jax.disable_jit(), jax.debug_nans(True):
        jax.jvp(heads, (x,), (x,))
        jattn.explain(x["q"], x["k"], x["v"], mask=masks.causal())
        with pytest.raises(FloatingPointError, match="nan"):
            heads(attended)


def test_debug_nans_names_the_operation_that_made_a_nan():
    """A NaN is born in a score: the program runs again operation by operation, and the logarithm is named."""
    x = arguments()
    log = lambda score, t, s: jnp.log(score)  # noqa: E731
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="in log"):
        jattn.attention(x["q"], x["k"], x["v"], score=log)


@structure
def test_debug_infs_and_a_query_without_keys():
    """lse = −∞ is its right value. It raises where it is returned, and where the passes of an eager call hand it on.

    Three ways out: no such query; a program that returns out, or a finite lse; a sink, which is then the lse.
    """
    x = arguments()

    def both(x, mask=HIDDEN, sink=None):
        return jattn.attention(x["q"], x["k"], x["v"], mask=mask, sink=sink, return_lse=True, tile=TILE)

    want = both(x)
    assert np.isneginf(want[1][23:]).all()
    with jax.debug_infs(True):
        for f in (both, jax.jit(both), plain):
            with pytest.raises(FloatingPointError, match="inf"):
                f(x)
        both(x, masks.causal())
        jax.grad(lambda x: total(both(x, masks.causal())))(x)
        out = jax.jit(plain)(x)
        jax.jit(jax.grad(plain_loss))(x)
        lse = jax.jit(lambda x: jnp.maximum(both(x)[1], -1e30))(x)
        sunk = both(x, sink=-1e30)
        jax.grad(lambda x: total(both(x, sink=-1e30)[0] ** 2))(x)
    finite = jnp.maximum(want[1], -1e30)
    assert_close((out, lse, *sunk), (want[0], finite, want[0], finite), ulps=4)


# Strict promotion, and 64 bits.


@structure
def test_no_rank_and_no_dtype_is_promoted():
    x = arguments()
    mixed = x | {"q": x["q"].astype(jnp.bfloat16), "k": x["k"].astype(jnp.float16)}
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        for name in ("value", "grad", "jvp of grad", "vmap"):
            jax.eval_shape(TRANSFORMS[name], mixed)
        with pytest.raises(ValueError, match="rank_promotion"):
            jnp.ones(3) + jnp.ones((2, 3))
        with pytest.raises(Exception, match="promotion"):
            mixed["q"] + mixed["k"]


def numbered(x):
    """Value and gradient, given Python numbers."""
    f = lambda x: jattn.attention(**x, scale=0.3, sink=1.0, mask=masks.lengths(k=9), return_lse=True)  # noqa: E731
    return f(x), jax.grad(lambda x: total(f(x)))(x)


@structure
@pytest.mark.parametrize("wide", [True, False])
def test_64_bits_are_those_of_the_inputs(wide):
    """float64 stays so where it is allowed; float32 beside it stays float32, whatever Python numbers it is given."""
    for dtype in (np.float64, np.float32):
        with jax.enable_x64(wide):
            x = arguments(dtype)
            found = jax.eval_shape(numbered, {n: x[n] for n in "qkv"})
            want = dtype if wide else np.float32
            assert {a.dtype for a in jax.tree.leaves(found)} == {np.dtype(want)}


# What is compiled, and when.


def compiled_by(caplog, f, *args):
    """What a call compiles."""
    caplog.clear()
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        f(*args)
    return [r.getMessage() for r in caplog.records if "Compiling" in r.getMessage()]


IN_A_BLOCK = {
    "attention": lambda x: attend(x),
    "gradient": jax.grad(loss),
    "Hessian-vector product": lambda x: jax.jvp(jax.grad(loss), (x,), (x,))[1],
    "heads under vmap": jax.vmap(lambda x: attend(x)[0]),
    "steps": lambda x: jattn.explain(x["q"], x["k"], x["v"]),
    "merged": lambda x: jattn.merge(attend(x), attend(x)),
    "a table of distances": jax.grad(
        lambda x: total(jattn.attention(x["q"], x["k"], x["v"], score=scores.distance_bias(x["table"])))
    ),
}


@structure
@pytest.mark.parametrize("name", IN_A_BLOCK)
def test_float64_that_is_enabled_around_a_call_holds_where_its_program_is_lowered(name):
    """The program is lowered when the block has been left."""
    x = arguments()

    @jax.jit
    def wide(x):
        with jax.enable_x64(True):
            x = jax.tree.map(lambda a: a.astype(np.float64), x)
            return IN_A_BLOCK[name](twice(x) if "vmap" in name else x)

    with jax.enable_x64(True):
        exact = jax.tree.map(lambda a: jnp.asarray(a, np.float64), arguments())
        wanted = IN_A_BLOCK[name](twice(exact) if "vmap" in name else exact)
    chex.assert_trees_all_close(wide(x), wanted, rtol=1e-9, atol=1e-9)
    assert {a.dtype for a in jax.tree.leaves(wide(x))} == {np.dtype(np.float64)}


@structure
def test_a_second_call_compiles_nothing(caplog):
    """Eager and jitted, with scores and masks that are written anew; the control: another length does compile."""
    jax.clear_caches()

    def call(x, n):
        return jattn.attention(x["q"], x["k"], x["v"], score=lambda a, t, s: a * 2, mask=masks.lengths(k=n))

    compiled = functools.partial(compiled_by, caplog)
    chex.clear_trace_counter()
    jitted = jax.jit(chex.assert_max_traces(call, n=1))
    x, shorter = arguments(), jax.tree.map(lambda a: a[:23], arguments())
    other = jax.tree.map(lambda a: a + 1, x)
    for f in (call, jitted):
        assert compiled(f, x, jnp.int32(7))
        assert not compiled(f, other, jnp.int32(30))
    assert compiled(call, shorter, jnp.int32(7))
    with pytest.raises(AssertionError, match="traced > 1 times"):
        jitted(shorter, jnp.int32(7))


@structure
def test_effects_of_a_function_that_is_written_anew_compile_nothing_and_see_what_it_closes_over(caplog):
    """The control: another function does compile."""
    params = {}

    def effects(size, power=2):
        params["by"] = size * jnp.arange(4.0)
        return heads.effects(lambda gates: jnp.sum(gates**power * params["by"]), jnp.ones(4)).knock_out

    compiled = functools.partial(compiled_by, caplog)
    assert compiled(effects, 1.0)
    for size in (2.0, 3.0):
        assert not compiled(effects, size)
        assert effects(size).tolist() == [0, -size, -2 * size, -3 * size]
    assert compiled(effects, 2.0, 3)


@structure
def test_a_bare_custom_jvp_in_a_score_compiles_anew(caplog):
    """Its derivative is a function that cannot be compared, and what a score that is kept closes over may have changed.
    The ways out: relu is jitted, once; the call is jitted."""
    q, relu = jnp.ones((3, 2)), jax.jit(jax.nn.relu)
    jitted = jax.jit(lambda q: jattn.attention(q, q, q, score=lambda a, t, s: jax.nn.relu(a)))

    def compiles(score):
        def call():
            jattn.attention(q, q, q, score=score())

        call()
        return compiled_by(caplog, call)

    assert compiles(lambda: lambda a, t, s: jax.nn.relu(a))
    assert not compiles(lambda: lambda a, t, s: relu(a))
    jitted(q)
    assert not compiled_by(caplog, jitted, q)


@structure
def test_donated_buffers_are_used():
    """The gradient of q, k and v takes their places; the control: of a donated lse nobody can make use."""
    x = {n: jnp.copy(a) for n, a in arguments().items() if n in "qkv"}  # NumPy's own memory could not be given away
    f = jax.grad(lambda x: jnp.sum(jattn.attention(**x, tile=TILE) ** 2))
    want, pointers = jax.jit(f)(x), sorted(a.unsafe_buffer_pointer() for a in x.values())
    got = jax.jit(f, donate_argnums=0)(x)
    assert all(a.is_deleted() for a in x.values())
    assert sorted(a.unsafe_buffer_pointer() for a in got.values()) == pointers
    assert_close(got, want, ulps=0)
    with pytest.warns(UserWarning, match="not usable"):
        jax.jit(lambda x: jattn.attention(**x).sum(), donate_argnums=0)(jax.tree.map(jnp.copy, got))


@structure
def test_what_is_lowered_and_compiled_ahead_of_time_gives_the_same():
    """eval_shape and make_jaxpr compute nothing; what lower and compile make runs, and says what it costs."""
    x = arguments()
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), x)
    f = jax.jit(jax.value_and_grad(loss))
    want = f(x)
    abstract = jax.eval_shape(f, shapes)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), abstract) == jax.tree.map(lambda a: (a.shape, a.dtype), want)
    jaxpr = jax.make_jaxpr(f)(shapes)
    assert [v.shape for v in jaxpr.out_avals] == [a.shape for a in jax.tree.leaves(want)]
    assert str(jaxpr).count("batched_call[") == 2, "the forward pass, and the backward pass"
    assert all(word in str(jaxpr) for word in ("Forward(", "Backward("))
    program = f.lower(shapes).compile()
    assert_close(program(x), want, ulps=0 if jax.default_backend() == "cpu" else 8)  # a GPU may choose other products
    assert program.cost_analysis()["flops"] > 4 * 5 * T * T / 2, "more than the products of half a square"
    assert program.memory_analysis().temp_size_in_bytes > 0
    with pytest.raises(TypeError):
        program(jax.tree.map(lambda a: a[:23], x))


# jax.checkpoint


def forward_passes(jaxpr):
    """The forward passes in a jaxpr and in whatever is nested in it, but for those of a loop's body once."""
    count = 0
    for eqn in jaxpr.eqns:
        count += eqn.primitive is batched_call_p and "Forward(" in str(eqn.params["fun"])
        for leaf in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(leaf, "jaxpr", leaf)
            count += forward_passes(inner) if hasattr(inner, "eqns") else 0
    return count


def layer(w, x):
    return jnp.tanh(jattn.attention(x @ w, x, x, tile=TILE))


def mapped(w, x):
    return jnp.tanh(jax.vmap(jattn.attention)((x @ w)[None], x[None], x[None]))[0]


@structure
@pytest.mark.parametrize("f", [layer, mapped], ids=["plain", "vmap"])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_policy_by_name_attends_once(f, layers):
    """Saved by jattn.CHECKPOINT_NAMES, no gradient attends again, in a scan over layers too; the control: unsaved."""
    policies = jax.checkpoint_policies
    w, x = jnp.eye(5), arguments()["q"]
    ws = jnp.stack([w] * layers)

    def gradient(policy):
        body = jax.checkpoint(f, policy=policy)

        def model(ws):
            if layers == 1:
                return total(body(ws[0], x))
            return total(jax.lax.scan(lambda x, w: (body(w, x), None), x, ws)[0])

        return jax.grad(model)

    saving, nothing = policies.save_only_these_names(*jattn.CHECKPOINT_NAMES), policies.nothing_saveable
    assert forward_passes(jax.make_jaxpr(gradient(saving))(ws).jaxpr) == 1
    assert forward_passes(jax.make_jaxpr(gradient(nothing))(ws).jaxpr) == 2
    assert_close(gradient(saving)(ws), gradient(nothing)(ws), ulps=16)


# jax.transfer_guard


KEY = jax.random.key(0)


def through_pages(q):
    x, first, second = jnp.stack([q[None]] * 2), *map(jax.device_put, (np.int32(0), np.ones(1, np.int32)))
    made = jattn.cache.paged(B=2, Hkv=1, S=64, D=q.shape[1], pages=9, page=16)
    held = jattn.cache.free(jattn.cache.append(made, x, x), second)
    return jattn.cache.share(held, first, second), jattn.cache.quantised(q)


GUARDED = {
    "plain": lambda q: jattn.attention(q, q, q),
    "scale": lambda q: jattn.attention(q, q, q, scale=0.3),
    "masks": lambda q: jattn.attention(q, q, q, mask=masks.lengths(k=7) & masks.window(3, 0) | masks.prefix(2)),
    "score": lambda q: jattn.attention(q, q, q, score=scores.compose(scores.alibi(0.5), scores.soft_cap(3.0))),
    "any score": lambda q: jattn.attention(q, q, q, score=lambda a, t, s: jnp.where(t > s, a, 2 * a)),
    "sink": lambda q: jattn.attention(q, q, q, sink=1, return_lse=True),
    "dropout": lambda q: jattn.attention(q, q, q, dropout_rate=0.1, dropout_key=KEY),
    "heads": lambda q: jattn.dot_product_attention(
        *[q[:, None]] * 3, is_causal=True, local_window_size=3, scale=0.3, sink=0.0
    ),
    "vjp": lambda q: jax.vjp(jattn.attention, q, q, q)[1](q),
    "jvp": lambda q: jax.jvp(jattn.attention, (q, q, q), (q, q, q)),
    "explain": lambda q: jattn.explain(
        q, q, q, mask=masks.lengths(k=7), score=lambda a, t, s: jnp.where(t > s, a, 2 * a), scale=0.3
    ),
    "weights": lambda q: jattn.weights_of(q, q, jattn.attention(q, q, q, return_lse=True)[1]),
    "rows": lambda q: jattn.weights_of(q, q, jattn.attention(q, q, q, return_lse=True)[1], jnp.arange(2)),
    "statistics": lambda q: jattn.statistics(q, q),
    "top keys": lambda q: jattn.top_keys(q, q, 2),
    "softmax": lambda q: jattn.log_softmax(jattn.softmax(q)),
    "merge": lambda q: jattn.merge(*[jattn.attention(q, q, q, return_lse=True)] * 2),
    "pulls": lambda q: jattn.flow.pulls(q, q, q, lambda steps: jattn.flow.cross_entropy(0)(steps) + steps.out.sum()),
    "matrices": lambda q: jattn.flow.projection_pulls(q @ q.T, q, q, q, jattn.flow.squared_error(q)),
    "measures": lambda q: (jattn.flow.entropy(q), jattn.flow.saturation(q), jattn.flow.max_logit(q, q)),
    "rollout": lambda q: jattn.flow.rollout((q @ q.T)[None]),
    "margin": lambda q: jattn.flow.max_margin(q, 0),
    "jacobian": lambda q: jattn.flow.jacobian_spectrum(jattn.statistics(q, q).lse),
    "rotary": lambda q: jattn.positions.rotary(q, jnp.arange(q.shape[0]), width=4),
    "sinusoidal": lambda q: jattn.positions.sinusoidal(jnp.arange(q.shape[0]), 4),
    "pages": through_pages,
}


@structure
def test_an_eager_call_moves_nothing_unasked():
    """Python numbers are moved explicitly; the control: jax.nn moves its scale implicitly."""
    q = arguments()["q"]
    batched = q[None, :, None]
    with jax.transfer_guard("disallow"):
        for f in GUARDED.values():
            f(q)
        with pytest.raises(Exception, match="isallowed"):
            jax.nn.dot_product_attention(batched, batched, batched)


READS = {
    "dropout": lambda q: jattn.attention(q, q, q, dropout_rate=jnp.float32(0.1), dropout_key=KEY),
    "soft cap": lambda q: jattn.attention(q, q, q, score=scores.soft_cap(jnp.float32(3))),
    "rotary": lambda q: jattn.positions.rotary(q, jnp.arange(q.shape[0]), width=4, base=jnp.float32(100)),
    "ring": lambda q: jattn.cache.attention(q[None, None, :2], through_ring(q)),
}


def through_ring(q):
    made = jattn.cache.ring(B=1, Hkv=1, D=q.shape[1], window=16, chunk=4)
    return jattn.cache.append(made, *[q[None, None, :2]] * 2)


@pytest.mark.parametrize("name", GUARDED | READS)
def test_an_eager_call_reads_nothing_back_unasked(name, monkeypatch):
    """What a check has to know is fetched explicitly: of a CPU nothing is fetched, so that its guard says nothing."""

    def unasked(self):
        raise RuntimeError("read back unasked")

    q = arguments()["q"]
    for python_number in ("__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(type(q), python_number, unasked)
    with pytest.raises(RuntimeError, match="unasked"):
        bool(q[0, 0] > 0)
    (GUARDED | READS)[name](q)


@structure
@pytest.mark.parametrize("name", GUARDED)
def test_no_eager_call_compiles_again(name, caplog):
    """Whatever of it is written anew; the control: other shapes do compile."""
    q = arguments()["q"]
    GUARDED[name](q)
    other, shorter = q + 1, q[:23]
    assert not compiled_by(caplog, GUARDED[name], other)
    assert compiled_by(caplog, GUARDED[name], shorter)


def by_table(table):
    return lambda a, t, s: a + table[jnp.abs(t - s)]


WRITTEN_OUT = {
    "explain": lambda q, table: jattn.explain(q, q, q, mask=masks.causal(), score=by_table(table)).out,
    "weights": lambda q, table: jattn.weights_of(q, q, table, score=by_table(table)),
    "statistics": lambda q, table: jattn.statistics(q, q, score=by_table(table)).entropy,
    "top keys": lambda q, table: jattn.top_keys(q, q, 2, score=by_table(table))[1],
    "pulls": lambda q, table: jattn.flow.pulls(q, q, q, lambda steps: (steps.out.sum(1) * table).sum()).on_q,
    "rollout": lambda q, table: jattn.flow.rollout(jattn.softmax(q @ q.T)[None], residual=jnp.tanh(table[0])),
    "margin": lambda q, table: jattn.flow.max_margin(q * table[1], 0).direction,
}


@structure
@OF_TWO
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_what_differs_between_devices_may_be_captured(name):
    """Inside shard_map, as mapped over the same examples on one device; and its gradient."""
    f, q, table = WRITTEN_OUT[name], normal(2, 6, 4, seed=1), normal(2, 6, seed=2)

    def gradient(q, table):
        return jax.grad(lambda q: jnp.sum(jnp.sin(f(q, table))))(q)

    def on_each(q, table):
        return jax.tree.map(lambda x: x[None], (f(q[0], table[0]), gradient(q[0], table[0])))

    mesh = jax.make_mesh((2,), ("b",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    got = jax.jit(jax.shard_map(on_each, mesh=mesh, in_specs=jax.P("b"), out_specs=jax.P("b")))(q, table)
    want = jax.jit(jax.vmap(lambda *x: (f(*x), gradient(*x))))(q, table)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


# jax.debug.print


@structure
def test_a_score_can_print(capfd):
    """Once for each pair and pass: eager, in a program, and in its gradient, where the backward pass scores again."""
    y = jnp.ones((2, 1))

    def f(y):
        def show(score, t, s):
            jax.debug.print("pair {} {}", t, s)
            return score

        return jattn.attention(y, y, y, score=show)

    def printed(f):
        jax.block_until_ready(f(y))
        jax.effects_barrier()
        return sorted(line for line in capfd.readouterr().out.splitlines() if line.startswith("pair"))

    once = ["pair 0 0", "pair 0 1", "pair 1 0", "pair 1 1"]
    assert printed(f) == once
    assert printed(jax.jit(f)) == once
    assert printed(jax.jit(jax.grad(lambda y: total(f(y))))) == sorted(once * 2)


# What is refused by name.


def zeros(*shape):
    return jnp.zeros(shape)


def sharded(x, **options):
    mesh = jax.make_mesh((2,), ("s",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    ring = functools.partial(jattn.sharding.ring, axis_name="s", **options)
    return jax.shard_map(ring, mesh=mesh, in_specs=jax.P(None, "s"), out_specs=jax.P(None, "s"))(x, x, x)


def cached(**options):
    return jattn.cache.attention(zeros(1, 2, 1, 3), jattn.cache.contiguous(1, 2, 4, 3, 3), **options)


LEAVE = "Leave it out for 1/√D."
WIDEN = "Give q and k at least one column."
REFUSED = [
    (lambda: jattn.attention(zeros(3, 0), zeros(5, 0), zeros(5, 2)), f"attention: D must be at least 1, got q [3, 0] and k [5, 0]. {WIDEN}"),
    (lambda: jattn.explain(zeros(3, 0), zeros(5, 0), zeros(5, 2)), f"explain: D must be at least 1, got q [3, 0] and k [5, 0]. {WIDEN}"),
    (lambda: jattn.dot_product_attention(zeros(1, 3, 2, 0), zeros(1, 5, 2, 0), zeros(1, 5, 2, 4)), f"dot_product_attention: H must be at least 1, got query [1, 3, 2, 0] and key [1, 5, 2, 0]. {WIDEN}"),
    (lambda: jattn.attention(zeros(3, 2), zeros(3, 2), zeros(3, 2), scale=float("nan")), f"attention: scale must be finite, got scale nan. {LEAVE}"),
    (lambda: jattn.attention(zeros(3, 2), zeros(3, 2), zeros(3, 2), scale=np.float32("inf")), f"attention: scale must be finite, got scale inf. {LEAVE}"),
    pytest.param(lambda: sharded(zeros(1, 4, 2, 0)), f"ring: D must be at least 1, got q [1, 2, 2, 0] and k [1, 2, 2, 0]. {WIDEN}", marks=OF_TWO),
    pytest.param(lambda: sharded(zeros(1, 4, 2, 2), scale=float("nan")), f"ring: scale must be finite, got scale nan. {LEAVE}", marks=OF_TWO),
    (lambda: cached(scale=float("inf")), f"attention: scale must be finite, got scale inf. {LEAVE}"),
    (lambda: jattn.explain(zeros(3, 2), zeros(3, 2), zeros(3, 2), scale=-float("inf")), f"explain: scale must be finite, got scale -inf. {LEAVE}"),
    (lambda: jattn.dot_product_attention(zeros(3, 2, 2), zeros(3, 2, 2), zeros(3, 2, 2), scale=float("nan")), "dot_product_attention: scale must be finite, got scale nan. Leave it out for 1/√H."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_no_column_and_no_finite_scale_are_refused(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call()


@structure
def test_a_traced_scale_may_be_anything():
    """The control: what is not known cannot be refused, and gives NaN, as the definition does."""
    q = arguments()["q"]
    assert np.isnan(jax.jit(lambda c: jattn.attention(q, q, q, scale=c))(jnp.float32(np.nan))).all()


def test_a_warning_fails_a_test():
    """Without it several of these tests could not fail."""
    with pytest.raises(UserWarning):
        warnings.warn("seen", UserWarning, stacklevel=1)


@pytest.mark.structure
def test_checkify_goes_around_a_call_and_not_inside_a_score():
    q = jnp.asarray(normal(6, 4), jnp.float32)

    def checked(x, t, s):
        checkify.check(x < 1e9, "too large")
        return x

    error, out = checkify.checkify(jattn.attention, errors=checkify.float_checks)(q, q, q)
    assert error.get() is None
    np.testing.assert_array_equal(out, jattn.attention(q, q, q))
    assert "nan" in checkify.checkify(jattn.attention, errors=checkify.float_checks)(q * jnp.nan, q, q)[0].get()
    with pytest.raises(ValueError, match="not functionalized"):
        checkify.checkify(lambda q: jattn.attention(q, q, q, score=checked))(q)
