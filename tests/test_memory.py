"""No T × S array is formed, for any mask, score and derivative: read off the jaxpr, where nothing is optimized away."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import normal, pairs, qkv
from _jaxprs import formed
from _oracles import weigh

import jattn
from jattn import masks, reference, scores
from jattn.engine import backward, batching, tile, tuning

T, S = 67, 71
TILE = (16, 16)
FEW = T * S // 3  # entries: more than any input or row of tiles here, less than anything that grows with T × S
WHOLE = {(T, S), (80, S), (80, 80)}  # of a bias or a dense mask, as given and with the rows that pad
PLACES = {"q_positions": np.arange(T, dtype=np.int32) + 4, "k_positions": np.arange(S, dtype=np.int32)}
LENGTH = masks.lengths(k=np.int32(50))


def learned(table):
    return lambda score, t, s: score + table[jnp.abs(t - s) % 7]


# Inputs: options, and what is differentiated beside q, k and v.
CASES = {
    "nothing": {},
    "causal": {"mask": masks.causal(), "S": T},
    "causal, positions": {"mask": masks.causal(), **PLACES},
    "window": {"mask": masks.window(20, 5), "S": T},
    "lengths": {"mask": masks.lengths(q=50, k=60)},
    "lengths, traced": {"mask": LENGTH},
    "algebra": {"mask": masks.window(30, 3) & ~masks.causal() | LENGTH, **PLACES},
    "dense": {"mask": masks.dense(pairs(T=T, S=S))},
    "dense in one row": {"mask": np.arange(S) < 50},
    "prefix": {"mask": masks.prefix(9) | masks.causal(), "S": T},
    "segments": {"mask": masks.segments(np.arange(T) // 20, np.arange(S) // 20)},
    "chunked": {"mask": masks.chunked(20), "S": T},
    "dilated": {"mask": masks.dilated(3), "S": T},
    "blocks": {"mask": masks.blocks(np.eye(5, dtype=bool), 16), "S": T},
    "where": {"mask": masks.where(lambda t, s: t * s < 99), "S": T},
    "soft cap": {"score": lambda score, t, s: 3 * jnp.tanh(score / 3)},
    "alibi": {"score": scores.alibi(0.1), **PLACES},
    "relative bias": {"score": scores.relative_bias, "table": normal(32), **PLACES},
    "distance bias": {"score": scores.distance_bias, "table": normal(7), **PLACES},
    "composed": {"score": scores.compose(scores.soft_cap(3.0), scores.temperature(2.0))},
    "learned score": {"score": learned, "table": normal(7), "mask": masks.causal(), **PLACES},
    "bias": {"bias": normal(T, S)},
    "bias for all queries": {"bias": normal(1, S)},
    "sink": {"sink": normal(T), "mask": masks.lengths(k=50)},
    "scale": {"scale": np.float64(0.3)},
    "dropout": {"dropout_rate": 0.3, "dropout_key": np.array([0, 1], np.uint32)},
}
GROUPS = np.arange(S, dtype=np.int32) % 4
ACTIVE = {"bias", "sink", "scale", "table"}


def split(name):
    """The active inputs, and the others."""
    given = {n: o for n, o in CASES[name].items() if n != "S"}
    active = dict(zip("qkv", qkv(T=T, S=CASES[name].get("S", S)), strict=True))
    active |= {n: o for n, o in given.items() if n in ACTIVE}
    active = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), active)
    return active, {n: o for n, o in given.items() if n not in ACTIVE}


def in_tiles(x, constant):
    score = constant.get("score")
    options = {n: a for n, a in x.items() if n != "table"} | constant
    options["score"] = score(x["table"]) if "table" in x else score
    return jattn.attention(return_lse=True, tile=TILE, **options)


def dense(x, constant):
    return reference.attention(x["q"], x["k"], x["v"])


def loss(f):
    return lambda x: weigh(*f(x))


def dot(a, b):
    return sum(jnp.sum(x * y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


TRANSFORMS = {
    "value": lambda f, x: f(x),
    "grad": lambda f, x: jax.grad(loss(f))(x),
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,)),
    "jvp of grad": lambda f, x: jax.jvp(jax.grad(loss(f)), (x,), (x,)),
    "grad of jvp": lambda f, x: jax.grad(loss(lambda y: jax.jvp(f, (y,), (x,))[1]))(x),
    "grad of grad": lambda f, x: jax.grad(lambda y: dot(jax.grad(loss(f))(y), x))(x),
}


def large(transform, f, x, constant, allowed=()):
    """The arrays of many entries that a transform forms."""
    jaxpr = jax.make_jaxpr(lambda x, constant: transform(lambda x: f(x, constant), x))(x, constant)
    return {a for a in formed(jaxpr.jaxpr) if math.prod(a.shape) > FEW and a.shape not in allowed}


def assert_none_formed(name, transforms):
    x, constant = split(name)
    fixed = {n: o for n, o in constant.items() if n in ("score", "dropout_rate") or isinstance(o, masks.Mask)}
    constant = {n: o for n, o in constant.items() if n not in fixed}
    allowed = WHOLE if name in ("bias", "dense") else ()  # the caller's own
    for transform in transforms:
        found = large(TRANSFORMS[transform], lambda x, constant: in_tiles(x, constant | fixed), x, constant, allowed)
        assert not found, transform


FIRST, SECOND = list(TRANSFORMS)[:3], list(TRANSFORMS)[3:]
EVERY = {"nothing", "lengths, traced", "bias", "learned score", "dropout"}
ONE = {
    name: "grad" if given.keys() <= {"mask", "S", *PLACES} else SECOND[i % 3]
    for i, (name, given) in enumerate(CASES.items())
}
"""A mask is booleans to any order: of one alone the first is asked."""


@pytest.mark.parametrize("name", CASES)
def test_no_array_of_pairs_is_formed(name):
    """What a derivative is derived of is in its program too: of the second order one is asked, or each of the three."""
    assert_none_formed(name, SECOND if name in EVERY else [ONE[name]])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_in_no_transform_of_any_case_an_array_of_pairs_is_formed(name):
    assert_none_formed(name, FIRST if name in EVERY else [n for n in TRANSFORMS if n != ONE[name]])


def measured(x, constant):
    """Statistics and best keys of one head, [T, ·], and lse."""
    x = {n: a for n, a in x.items() if n != "v"}
    score = {"score": learned(x.pop("table"))} if "table" in x else {}
    options = x | constant | score | {"tile": TILE}
    found = jattn.statistics(groups=GROUPS, num_groups=3, **options)
    options.pop("sink", None)
    logits = jattn.top_keys(n=5, **options)[1]
    return jnp.concatenate([a[:, None] if a.ndim == 1 else a for a in (*found, logits)], 1), found.lse


@pytest.mark.parametrize("name", ["lengths, traced", "learned score", "sink"])
def test_what_is_measured_of_each_query_forms_no_array_of_pairs(name):
    x, constant = split(name)
    masked = {"mask": constant.pop("mask")}
    constant.pop("score", None)
    for transform in SECOND[1:] if name == "learned score" else SECOND[:1]:
        assert not large(TRANSFORMS[transform], lambda x, c: measured(x, c | masked), x, constant), transform


def test_an_array_of_pairs_would_be_seen():
    x, _ = split("nothing")
    for name, transform in TRANSFORMS.items():
        assert (T, S) in {a.shape for a in large(transform, dense, x, {})}, name
    x, _ = split("bias")
    assert {a.shape for a in large(TRANSFORMS["grad"], in_tiles, x, {})} <= WHOLE
    assert large(TRANSFORMS["grad"], in_tiles, x, {})


def test_an_array_of_pairs_would_be_seen_wherever_it_hides():
    """In a loop, a branch, a checkpoint, a batched call, and what a loop keeps of all its steps."""

    class Outer(batching.BatchedFunction):
        def __call__(self, a, b):
            return [jnp.outer(a, b).sum()]

    a, b = np.ones(T, np.float32), np.ones(S, np.float32)
    kept = lambda a, b: jax.lax.scan(lambda c, t: (c, t * b), 0, a)[1].sum()  # noqa: E731
    hiding = {
        "plain": lambda a, b: jnp.outer(a, b).sum(),
        "scan": lambda a, b: jax.lax.scan(lambda c, _: (c + jnp.outer(a, b).sum(), None), 0.0, None, length=2)[0],
        "while": lambda a, b: jax.lax.while_loop(lambda c: c < 3, lambda c: c + jnp.outer(a, b).sum(), 0.0),
        "cond": lambda a, b: jax.lax.cond(a[0] > 0, lambda: jnp.outer(a, b).sum(), lambda: a[0]),
        "jit": jax.jit(lambda a, b: jnp.outer(a, b).sum()),
        "checkpoint": jax.checkpoint(lambda a, b: jnp.outer(a, b).sum()),
        "a batched call": lambda a, b: batching.batched_call(Outer(), a, b)[0],
        "kept": kept,
    }
    for name, f in hiding.items():
        jaxpr = jax.make_jaxpr(f)(a, b)
        assert any(math.prod(v.shape) > FEW for v in formed(jaxpr.jaxpr)), name
    assert not any(math.prod(v.shape) > FEW for v in formed(jax.make_jaxpr(lambda a, b: a.sum() + b.sum())(a, b).jaxpr))


@pytest.mark.structure
@pytest.mark.parametrize("name", ["grad", "jvp of grad", "grad of grad"])
def test_compiled_memory_is_linear(name):
    """A second witness: what XLA sets aside, for sequences of two lengths; nothing is executed."""

    def temporaries(f, n):
        x = dict.fromkeys("qkv", jax.ShapeDtypeStruct((n, 16), jnp.float32))
        return jax.jit(lambda x: TRANSFORMS[name](f, x)).lower(x).compile().memory_analysis().temp_size_in_bytes

    def exponent(f, short, long):
        return math.log(temporaries(f, long) / temporaries(f, short)) / math.log(long / short)

    def ours(x):
        return jattn.attention(x["q"], x["k"], x["v"], mask=masks.causal(), return_lse=True)

    assert exponent(ours, 4096, 16384) <= 1.1
    if name == "grad":
        assert exponent(lambda x: dense(x, {}), 1024, 2048) > 1.8


def test_what_a_mask_may_hide_is_looked_for_without_a_copy_of_the_operands():
    """In whole arrays [T, D] the gradient holds the output, the cotangent of what attended, and a few tiles."""
    T, D = 16384, 64
    x = [jax.ShapeDtypeStruct((T, D), jnp.float32)] * 4

    def gradient(q, k, v, dout):
        return jax.vjp(lambda *x: jattn.attention(*x, mask=masks.causal()), q, k, v)[1](dout)

    held = jax.jit(gradient).lower(*x).compile().memory_analysis().temp_size_in_bytes
    assert held < 4 * T * D * 4


def by_heads(*x):
    return jax.vmap(lambda *x: jattn.attention(*x, mask=masks.causal()))(*x)


def under_the_signature_of_jax_nn(q, k, v):
    return jattn.dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there heads are attended one after the other")
@pytest.mark.parametrize(("f", "axis", "copies"), [(by_heads, 0, 0), (under_the_signature_of_jax_nn, 1, 3)])
@pytest.mark.parametrize(("which", "own"), [("grad", 1), ("jvp", 0)])
def test_heads_are_read_where_they_lie_one_after_the_other(f, axis, copies, which, own):
    """What more heads hold, in arrays like q: the gradient the output; where heads lie inside, one for q, k and v."""
    T, D, heads = 512, 64, (8, 16)

    def held(n):
        shape = [T, D]
        shape.insert(axis, n)
        x = [jax.ShapeDtypeStruct(shape, jnp.float32)] * 3
        derivative = {
            "grad": jax.grad(lambda *x: jnp.sin(f(*x)).sum(), (0, 1, 2)),
            "jvp": lambda *x: jax.jvp(f, x, x),
        }[which]
        return jax.jit(derivative).lower(*x).compile().memory_analysis().temp_size_in_bytes

    few, many = map(held, heads)
    assert (many - few) / ((heads[1] - heads[0]) * T * D * 4) < own + copies + 0.5


@pytest.mark.structure
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="without a loop it is on a CPU")
@pytest.mark.parametrize("which", ["value", "gradient", "jvp"])
def test_without_a_loop_two_tiles_are_held_at_a_time(which, monkeypatch):
    """With what a score makes of their positions; the control, in which none waits for another, holds all sixteen."""
    monkeypatch.setattr(tuning, "FEW_PAIRS", 0)
    x = [jax.ShapeDtypeStruct((4, 2048, 64), jnp.float32)] * 3 + [jax.ShapeDtypeStruct((4,), jnp.float32)]

    def value(q, k, v, slopes):
        return jax.vmap(lambda q, k, v, slope: jattn.attention(q, k, v, score=scores.alibi(slope)))(q, k, v, slopes)

    def held():
        jax.clear_caches()
        return jax.jit(orders[which]).lower(*x).compile().memory_analysis().temp_size_in_bytes

    orders = {
        "value": lambda *x: value(*x),
        "gradient": lambda *x: jax.grad(lambda *x: value(*x).sum(), (0, 1, 2, 3))(*x),
        "jvp": lambda *x: jax.jvp(value, x, x),
    }
    waiting = held()
    for module in (tile, backward):
        monkeypatch.setattr(module, "after", lambda first, x: x)
    assert waiting < held() / 3
