"""Under every strictness that JAX offers, at the limits of every dtype, at every size: over several tiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, Dv, assert_close, assert_same, normal, pairs, qkv
from _jaxprs import formed
from _oracles import definition, derivatives, inputs, ours, weigh

import jattn
from jattn import masks, reference
from jattn.engine import batching

T, S = 37, 41
TILE = (16, 16)
PLACES = {"q_positions": np.arange(T, dtype=np.int32) + 4, "k_positions": np.arange(S, dtype=np.int32)}


def arguments(dtype=np.float32, **shape):
    q, k, v = qkv(**({"T": T, "S": S} | shape), dtype=dtype)
    return {"q": q, "k": k, "v": v, "bias": normal(len(q), len(k), seed=7, dtype=dtype)}


def attend(x, length=23):
    """Masked rows, masked tiles, a bias and a score."""
    mask = masks.causal() & masks.lengths(q=np.int32(31), k=jnp.asarray(length, jnp.int32))
    cap = lambda score, t, s: 5 * jnp.tanh(score / 5)  # noqa: E731
    return jattn.attention(**x, mask=mask, score=cap, tile=TILE, return_lse=True, **PLACES)


def loss(x):
    out, lse = attend(x)
    return weigh(out.astype(lse.dtype), lse)


def value_and_gradient(x):
    return attend(x), jax.grad(loss)(x)


@jax.jit
def compiled(x):
    return value_and_gradient(x)


# Strictness.


@pytest.mark.parametrize(
    "f",
    [jax.jit(value_and_gradient), pytest.param(value_and_gradient, marks=pytest.mark.structure)],
    ids=["jit", "eager"],
)
def test_no_intermediate_value_is_nan(f):
    x = arguments()
    with jax.debug_nans(True):
        jax.block_until_ready(f(x))
        with pytest.raises(FloatingPointError):
            f(x | {"q": x["q"] * np.float32(np.nan)})


@pytest.mark.structure
def test_no_transform_leaks_a_tracer():
    with jax.checking_leaks():
        jax.jit(lambda x: jax.jvp(value_and_gradient, (x,), (x,))).lower(arguments())
        jax.jit(jax.vmap(value_and_gradient)).lower(jax.tree.map(lambda a: np.stack([a, a]), arguments()))
        kept = []
        with pytest.raises(Exception, match=r"[Ll]eaked"):  # the control: a score that keeps its argument is seen
            jax.jit(lambda x: jattn.attention(**x, score=lambda x, t, s: kept.append(x) or x)).lower(arguments())


@pytest.mark.structure
def test_nothing_is_moved_between_host_and_device_unasked():
    x = jax.device_put(arguments())
    want = compiled(x)
    with jax.transfer_guard("disallow"):
        got = compiled(x)
        with pytest.raises(Exception, match=r"[Dd]isallowed"):
            compiled(arguments())
    assert_same(got, want)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtypes", ["fff", "bfh", "hbf", "fhb"])
def test_no_dtype_is_promoted_unasked(dtypes, wide):
    """Each of q, k, v in its own, with 64 bits allowed and not: gradients come back as what they belong to."""
    names = {"f": jnp.float32, "b": jnp.bfloat16, "h": jnp.float16}
    with jax.enable_x64(wide):
        x = {n: jnp.asarray(a, names[c]) for (n, a), c in zip(list(arguments().items())[:3], dtypes, strict=True)}
        (out, lse), gradient = jax.eval_shape(value_and_gradient, x)
        assert (out.dtype, lse.dtype) == (names[dtypes[2]], jnp.float32)
        assert {n: g.dtype for n, g in gradient.items()} == {n: a.dtype for n, a in x.items()}
        jax.eval_shape(lambda x: jax.jvp(value_and_gradient, (x,), (x,)), x)


@pytest.mark.structure
def test_what_is_donated_is_used_and_nothing_else_changes():
    want = compiled(arguments())[1]
    x = jax.device_put(arguments())
    got = jax.jit(jax.grad(loss), donate_argnums=0)(x)
    assert all(a.is_deleted() for a in jax.tree.leaves(x))
    assert_close(got, want, ulps=8)


# Compilation.


@pytest.mark.structure
def test_a_shape_is_traced_once():
    runs = []

    @jax.jit
    def f(x, length):
        runs.append(1)
        return jax.grad(lambda x: weigh(*attend(x, length)))(x)

    for seed in range(3):
        f(arguments() | {"q": normal(T, D, seed=seed, dtype=np.float32)}, np.int32(seed * 10))
    assert len(runs) == 1
    jax.eval_shape(f, arguments(D=7), np.int32(3))
    assert len(runs) == 2, "the control: another shape is traced"


@pytest.mark.structure
def test_eager_calls_are_compiled_once():
    cap = lambda score, t, s: 5 * jnp.tanh(score / 5)  # noqa: E731

    def f(q, k, v, bias):
        return jattn.attention(q, k, v, bias=bias, score=cap, mask=masks.causal(), tile=TILE, **PLACES)

    def both(x):
        jax.block_until_ready((f(**x), jax.grad(lambda x: f(**x).sum())(x)))
        return batching.primitive._compiled._cache_size()

    first = both(arguments())
    assert both({n: a + 1 for n, a in arguments().items()}) == first
    f(**arguments(D=7))
    assert batching.primitive._compiled._cache_size() > first  # another shape is seen


@pytest.mark.exhaustive
def test_twice_the_same_is_bitwise_the_same():
    f = jax.jit(lambda x: jax.jvp(value_and_gradient, (x,), (x,)))
    first = f(arguments())
    assert_same(f(arguments()), first)
    jax.clear_caches()
    assert_same(jax.jit(lambda x: jax.jvp(value_and_gradient, (x,), (x,)))(arguments()), first)


# Huge logits.


def huge(dtype, size):
    """Whole-number logits times `size`, so that each row has its winners: one, or several in other tiles."""
    rng = np.random.default_rng(0)
    k = np.zeros((S, 1), np.float32)
    k[:, 0] = rng.integers(-2, 3, S)
    k[[3, 20, 40], 0] = 3  # three winners where q > 0, in three tiles
    k[17, 0] = -4  # one where q < 0
    q = np.where(rng.random((T, 1)) < 0.5, 1, -1).astype(np.float32)
    root = np.float32(np.sqrt(size / 16))
    return (q * root).astype(dtype), (k * root).astype(dtype), normal(S, Dv, dtype=dtype)


KINDS = ("all", "masked", "multiplying score")
HUGE = {"float32": (1e10, 3e38), "bfloat16": (3e38,), "float16": (4e9,)}
EVERY = [(d, n, kind, jitted) for d, sizes in HUGE.items() for n in sizes for kind in KINDS for jitted in (True, False)]
SOME = [
    ("float32", 3e38, "multiplying score", True),
    ("float32", 3e38, "masked", False),
    ("float32", 1e10, "masked", True),
    ("bfloat16", 3e38, "multiplying score", True),
    ("float16", 4e9, "all", True),
]


@pytest.mark.parametrize(
    ("dtype", "size", "kind", "jitted"),
    [*SOME, *(pytest.param(*x, marks=pytest.mark.exhaustive) for x in EVERY if x not in SOME)],
)
def test_huge_logits_choose_their_keys_over_several_tiles_jitted_and_not(dtype, size, kind, jitted):
    dtype = jnp.dtype(dtype)
    q, k, v = huge(dtype, size)
    dout = normal(T, Dv, seed=4, dtype=dtype)
    allowed = np.ones((T, S), bool)
    if kind == "masked":
        allowed = pairs(T=T, S=S)
        allowed[:, 3], allowed[:, 20], allowed[5] = True, False, False
    options = {"mask": allowed if kind == "masked" else None, "scale": 0.9, "tile": TILE}
    if kind == "multiplying score":
        options["score"] = lambda x, t, s: x * jnp.float32(0.7)

    def f(q, k, v):
        g = lambda *x: jattn.attention(*x, return_lse=True, **options)  # noqa: E731
        (out, lse), pull = jax.vjp(g, q, k, v)
        return out, lse, jax.jvp(g, (q, k, v), (q, jnp.zeros_like(k), v))[1], pull((dout, jnp.zeros_like(lse)))

    wide_q, wide_k, wide_v, wide_dout = (np.asarray(a, np.float64) for a in (q, k, v, dout))
    c = 0.63 if kind == "multiplying score" else 0.9
    logits = np.where(allowed, c * wide_q @ wide_k.T, -np.inf)
    top = logits.max(1, keepdims=True)
    lives = np.isfinite(top[:, 0])
    p = np.where(np.isfinite(top), np.abs(logits - np.where(np.isfinite(top), top, 0)) < 1e-3 * np.abs(top), 0)
    p = p / np.maximum(p.sum(1, keepdims=True), 1)
    want = p @ wide_v
    assert kind != "masked" or not lives.all()
    out, lse, (out_dot, lse_dot), (dq, dk, dv) = (jax.jit(f) if jitted else f)(q, k, v)
    assert_close(out, want, ulps=8)
    assert_close(lse, top[:, 0], ulps=8, dtype=jnp.float32)
    assert_close(dv, p.T @ wide_dout, ulps=8, scale=np.maximum(1, p.T @ np.abs(wide_dout)))
    # Winners of a tie are one key in several places: q and k feel nothing but what is rounded.
    big = c * np.abs(wide_k).max()
    assert_close(dq, np.zeros((T, 1)), ulps=64, scale=big, dtype=jnp.float32)
    assert np.isfinite(np.asarray(dk, np.float32)).all()
    assert np.isfinite(np.asarray(out_dot, np.float32)).all()
    assert_close(lse_dot, np.where(lives, top[:, 0], 0), ulps=16, dtype=jnp.float32)


# What is masked does not exist; every size.


@pytest.mark.structure
@pytest.mark.parametrize("how", ["lengths", "dense"])
def test_a_nan_or_an_infinity_behind_a_mask_reaches_nothing_in_any_tile(how):
    """In tiles that are skipped and in tiles that are masked; to second order."""
    keys, queries = ([23, 31, 40], [30, 36]) if how == "lengths" else ([3, 20, 40], [5, 36])
    allowed = pairs(T=T, S=S)
    allowed[:, keys], allowed[queries] = False, False
    mask = masks.lengths(q=30, k=np.int32(23)) if how == "lengths" else allowed
    if how == "lengths":
        allowed = (np.arange(T)[:, None] < 30) & (np.arange(S) < 23)
    clean = arguments() | {"scale": np.float32(0.4)}
    clean["k"][keys] = clean["v"][keys] = clean["q"][queries] = 0
    clean["bias"] = np.where(allowed, clean["bias"], 0).astype(np.float32)
    dirty = {name: np.array(x) for name, x in clean.items()}
    dirty["k"][keys], dirty["v"][keys], dirty["q"][queries] = np.inf, np.nan, -np.inf
    dirty["bias"].flat[np.flatnonzero(~allowed)] = np.nan
    f = derivatives(ours(mask=mask, tile=TILE))
    got, want = f(**dirty), f(**clean)
    assert all(np.isfinite(g).all() for order in got if order != "value" for g in jax.tree.leaves(got[order]))
    assert_close(got, want, ulps=8)


SIZES = [{"S": 0}, {"T": 0}, {"T": 1}, {"S": 1}, {"D": 1, "Dv": 1}, {"T": 16, "S": 32}, {"T": 17, "S": 33}]


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_every_size_has_an_answer_in_tiles_too(shape):
    x = inputs(**({"T": T, "S": S} | shape))

    def orders(f):
        def g(x):
            gradient = jax.grad(lambda x: weigh(*f(**x)))(x)
            return gradient, jax.jvp(lambda x: f(**x), (x,), (jax.tree.map(jnp.cos, x),))

        return jax.jit(g)(x)

    assert_close(orders(ours(tile=TILE)), orders(definition()), ulps=64, scale=16)


# Chosen rows of the weights.

ROWS = np.array([36, 0, 5, 5], np.int32)
WEIGHTS = {
    "nothing": {},
    "mask": {"mask": pairs(T=T, S=S) & (np.arange(T) != 5)[:, None]},
    "causal": {"mask": masks.causal(), **PLACES},
    "score": {"score": lambda x, t, s: 3 * jnp.tanh(x / 3) - 0.1 * jnp.abs(t - s).astype(x.dtype), **PLACES},
    "bias": {"bias": normal(T, S, seed=7), "scale": 0.3},
    "bias for all queries": {"bias": normal(1, S, seed=7)},
    "sink": {"sink": normal(T, seed=9)},
    "all": {
        "mask": masks.causal() & masks.lengths(k=np.int32(30)),
        "score": lambda x, t, s: 3 * jnp.tanh(x / 3),
        "bias": normal(T, S, seed=7),
        "sink": normal(T, seed=9),
        **PLACES,
    },
}


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", WEIGHTS)
def test_chosen_rows_of_the_weights_are_those_of_the_definition(name):
    options = WEIGHTS[name]
    q, k, v = qkv(T=T, S=S)
    without_sink = {n: o for n, o in options.items() if n != "sink"}

    @jax.jit
    def three(q, k, v):
        dense = dict(options)
        if isinstance(options.get("mask"), masks.Mask):
            dense["mask"] = masks.to_dense(options["mask"], T, S, **PLACES)
        _, lse = jattn.attention(q, k, v, return_lse=True, tile=TILE, **options)
        want = reference.steps(q, k, v, **dense)[0].weights
        return jattn.weights_of(q, k, lse, ROWS, **without_sink), jattn.weights_of(q, k, lse, **without_sink), want

    chosen, every, want = map(np.asarray, three(q, k, v))
    assert_close(chosen, want[ROWS], ulps=32)
    assert_close(every, want, ulps=32)
    if name == "mask":
        assert (chosen[2:] == 0).all()


def test_chosen_rows_are_mapped_and_take_no_more_than_their_own_memory():
    q, k, _ = qkv(T=T, S=S, dtype=np.float32)
    lse = normal(T, dtype=np.float32)
    one = np.asarray(jax.jit(jattn.weights_of)(q, k, lse, ROWS))
    mapped = jax.jit(jax.vmap(jattn.weights_of))
    many = mapped(*(np.stack([a, a]) for a in (q, k, lse)), np.stack([ROWS, ROWS[::-1]]))
    assert_close(many, np.stack([one, one[::-1]]), ulps=8)

    def most(rows):
        long = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((1009, 2), (1013, 2), (1009,))]
        f = lambda *x: jattn.weights_of(*x, rows, mask=masks.lengths(k=1000))  # noqa: E731
        return max(a.size for a in formed(jax.make_jaxpr(f)(*long).jaxpr))

    assert most(ROWS[:2]) <= 4 * 1013
    assert most(None) >= 1009 * 1013
