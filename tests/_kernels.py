"""What the tests of kernels share: a program of the value and its derivatives, and the bound of its rounding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from _inputs import normal
from _oracles import weigh

import jattn
from jattn import masks, reference

CLOSE = 64 * float(np.finfo(np.float32).eps)


def by_distance(x):
    return lambda score, t, s: score * jnp.cos(x["c"]) + jnp.exp(-(x["c"] ** 2) * jnp.abs(t - s).astype(score.dtype))


def over_arrays(x):
    """What is looked up by query, by key and by neither."""
    table = x["table"]
    return lambda score, t, s: score * table[t % 32] + jnp.sin(x["c"] * table[s // 10]) + table[3] * table[t // 5]


def options(x, score):
    named = {"bias": x.get("bias"), "scale": x.get("scale"), "sink": x.get("sink", x.get("one sink"))}
    return {"score": None if score is None else score(x), **named}


def orders(f):
    """value, gradient and tangent of f(x) → (out, lse)."""

    @jax.jit
    def every(x, x_dot):
        value, tangent = jax.jvp(f, (x,), (x_dot,))
        return value, jax.grad(lambda x: weigh(*f(x)))(x), tangent

    return every


def cast(x, dtype):
    return {name: np.asarray(a, dtype) for name, a in x.items()}


def assert_close(got, want, where=""):
    for (path, g), w in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        g, w = np.asarray(g, np.float64), np.asarray(w)
        label = f"{where}{jax.tree_util.keystr(path)}"
        np.testing.assert_array_equal(np.isfinite(g), np.isfinite(w), err_msg=label)
        finite = np.isfinite(w)
        np.testing.assert_array_equal(g[~finite], w[~finite], err_msg=label)
        bound = CLOSE * max(1.0, np.abs(w[finite]).max(initial=0))
        assert np.abs(g[finite] - w[finite]).max(initial=0) <= bound, (
            label,
            np.abs(g[finite] - w[finite]).max(),
            bound,
        )


KEY, RATE = np.array([3, 2**31 + 5], np.uint32), np.float32(0.4)


def drop_by_definition(weights):
    """Weights after dropout, drawn in cells of 16 × 16 pairs, each from the key folded with its place."""

    def cell(a, b):
        here = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(KEY), a), b)
        return jax.random.bernoulli(here, 1 - RATE, (16, 16))

    T, S = weights.shape
    a, b = np.indices((-(-T // 16), -(-S // 16)), dtype=np.int32)
    kept = jax.vmap(jax.vmap(cell))(a, b).swapaxes(1, 2).reshape(16 * len(a), -1)[:T, :S]
    return jnp.where(kept, weights / (1 - RATE.astype(weights.dtype)), 0)


NEUTRAL = {"bias": np.zeros((1, 1)), "sink": np.full(1, -np.inf), "one sink": np.float64(-np.inf)}
"""What leaves attention as it is, where it is not active: one program of the definition serves many cases."""


@functools.partial(jax.jit, static_argnums=(0, 1))
def of_definition(score, dropout, x, x_dot, mask, at):
    """Value, gradient and tangent of the definition, under booleans, of a sink for all and one for each row."""

    def f(x):
        how = options(x, score) | {"sink": jnp.maximum(x["sink"], x["one sink"]), "mask": mask, **at}
        if not dropout:
            return reference.attention(x["q"], x["k"], x["v"], **how)
        weights, lse = reference.attention(x["q"], x["k"], jnp.eye(len(x["k"])), **how)
        return drop_by_definition(weights) @ x["v"], lse

    return orders(f)(x, x_dot)


def assert_as_defined(case, T, S, D, Dv, tile, *, dropout=False, how="interpret"):
    """The kernels of a case (what is active beside q, k and v; mask; score; positions) in float32 are the definition in
    float64. They are interpreted unless `how` says otherwise."""
    active, mask, score, at = case
    drops = {"dropout_rate": RATE, "dropout_key": KEY} if dropout else {}
    every = {
        "c": np.float32(0.5),
        "table": normal(32, seed=6),
        "bias": normal(T, S, seed=4),
        "one sink": np.float32(0.3),
        "sink": normal(T, seed=5),
        "scale": np.float32(0.4),
    }
    x = {"q": normal(T, D), "k": normal(S, D, seed=1), "v": normal(S, Dv, seed=2)} | {n: every[n] for n in active}
    x_dot = {name: np.cos(np.arange(np.size(a))).reshape(np.shape(a)) for name, a in x.items()}

    def kernels(x):
        more = {"mask": mask, "return_lse": True, "tile": tile, "implementation": how, **at, **drops}
        return jattn.attention(x["q"], x["k"], x["v"], **options(x, score), **more)

    got = orders(kernels)(cast(x, np.float32), cast(x_dot, np.float32))
    wide = NEUTRAL | {"scale": D**-0.5} | x
    wide_dot = {n: x_dot.get(n, np.zeros_like(a)) for n, a in wide.items()}
    allowed = np.ones((T, S), bool) if mask is None else jax.jit(lambda: masks.to_dense(mask, T, S, **at))()
    with jax.enable_x64(True):
        want = of_definition(score, dropout, cast(wide, np.float64), cast(wide_dot, np.float64), allowed, at)
        value, gradient, tangent = jax.tree.map(np.asarray, want)
    assert_close(got, (value, {n: gradient[n] for n in x}, tangent))


def batch(f):
    """dot_product_attention and its derivatives, of arrays alone."""

    @jax.jit
    def every(*x):
        (out, lse), pull = jax.vjp(f, *x)
        return (out, lse), pull((jnp.sin(out), jnp.cos(lse)))

    return every


def head(T=2048, S=2048, D=64, Dv=64, dtype=jnp.float32):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in ((T, D), (S, D), (S, Dv))]


def assert_scales_spoil_as_in_loops(how, sizes, tile):
    """Of four heads: one of a finite scale, two that it spoils or makes overflow, and one without keys."""
    T, S, D, Dv = sizes
    q, k, v = (normal(4, n, d, seed=d, dtype=np.float32) for n, d in ((T, D), (S, D), (S, Dv)))
    q[2, 9] *= 1e30
    bias = normal(4, T, S, seed=3, dtype=np.float32)
    scale, n = np.array([0.3, np.nan, 1e10, np.nan], np.float32), np.array([S, S, S, 0], np.int32)

    def of(how):
        def one(q, k, v, scale, bias, n):
            more = {"mask": masks.lengths(None, n), "tile": tile, "implementation": how}
            return jattn.attention(q, k, v, scale=scale, bias=bias, return_lse=True, **more)

        f = batch(lambda q, scale, bias: jax.vmap(one)(q, k, v, scale, bias, n))
        return jax.tree.map(np.asarray, f(q, scale, bias)[1])

    (got_q, got, got_bias), (want_q, want, want_bias) = of(how), of("loops")
    assert_close(got, want)
    np.testing.assert_array_equal(np.isnan(got), [False, True, True, False])
    assert_close((got_q[:3], got_bias), (want_q[:3], want_bias))


def assert_cotangents_may_be_mapped(how, sizes, tile, at):
    """As `jax.jacrev` maps them: operands that two cotangents share have a cotangent for each."""
    T, S, D, Dv = sizes
    x = {"q": normal(2, T, D), "k": normal(S, D, seed=1), "v": normal(S, Dv, seed=2), "bias": normal(T, S, seed=3)}
    x |= {"sink": normal(T, seed=4), "c": np.float32(0.5), "table": normal(32, seed=5)}
    x = {name: np.asarray(a, np.float32) for name, a in x.items()}

    def of(how):
        def one(x):
            more = {"mask": masks.causal(), "score": over_arrays(x), "bias": x["bias"], "sink": x["sink"], **at}
            return jattn.attention(x["q"], x["k"], x["v"], tile=tile, implementation=how, **more)

        def pulled(x, row):
            return jax.vjp(one, x)[1](row)[0]

        def every(x):
            rows = jnp.stack([jnp.sin(x["k"][:T] @ jnp.ones((D, Dv))), jnp.cos(x["v"][:T])])
            of_heads = jax.vmap(pulled, ({name: 0 if name == "q" else None for name in x}, None))
            return jax.vmap(of_heads, (None, 0))(x, rows)

        return jax.tree.map(np.asarray, jax.jit(every)(x))

    assert_close(of(how), of("loops"))
