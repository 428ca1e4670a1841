"""Details of the tiles and their derivatives that no other test would miss, each with what makes it matter."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, S, T, assert_close, normal, pairs, qkv
from _jaxprs import within
from _mask_oracles import KNOWN, at

import jattn
from jattn import masks
from jattn.engine import batching, tuning
from jattn.engine.jvp import Jvp


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_a_tangent_that_is_nan_behind_a_mask_reaches_nothing(which):
    """As along the operand itself, where that holds a NaN."""
    allowed = pairs()
    allowed[:, 3] = False
    allowed[5] = False
    clean = dict(zip("qkv", qkv(dtype=np.float32), strict=True))
    row = 5 if which == "q" else 3
    clean[which][row] = 0
    dirty = clean | {which: clean[which].copy()}
    dirty[which][row, 1] = np.nan

    @jax.jit
    def along_itself(x):
        return jax.jvp(lambda x: jattn.attention(**x, mask=allowed, return_lse=True), (x,), (x,))

    want = along_itself(clean)
    assert all(np.isfinite(a[np.arange(T) != 5]).all() for a in jax.tree.leaves(want))
    assert_close(along_itself(dirty), want, ulps=8)


def test_partials_of_any_size_merge_without_an_overflow():
    """Both denominators are beyond the largest float, and so is their sum; or below the smallest."""
    lse = np.array([300, -300, 1e30, -1e30], np.float32)
    out_a, out_b = normal(4, S, dtype=np.float32), normal(4, S, seed=1, dtype=np.float32)
    out, merged = jax.jit(jattn.merge)((out_a, lse), (out_b, lse))
    assert_close(out, (out_a + out_b) / 2, ulps=4)
    assert_close(merged, lse + np.log(np.float32(2)), ulps=2)


TABLE = np.random.default_rng(0).random((5, 5)) < 0.6
EXACT = KNOWN | {"blocks at random": (masks.blocks(TABLE, 8), lambda t, s: TABLE[t // 8, s // 8])}


@pytest.mark.structure
@pytest.mark.parametrize("name", EXACT)
def test_the_block_state_is_exact_of_tiles_that_begin_and_end_anywhere(name):
    """Tiles of equal sides have no corner on the diagonal: what is off by one row there shows in others."""
    mask, rule = EXACT[name]
    booleans = np.broadcast_to(rule(at[:, None], at[None, :]), (40, 40))
    tiles = (1, 1), (1, 8), (5, 3), (8, 1), (16, 24)

    @jax.jit
    def states():
        sides = [
            [masks.Spans.at(at[::n], np.minimum(at[::n] + n, 40) - 1, axis) for axis, n in enumerate(x)] for x in tiles
        ]
        return [mask.block_state(q, k) for q, k in sides]

    for (down, across), state in zip(tiles, states(), strict=True):
        state = np.broadcast_to(state, (len(at[::down]), len(at[::across])))
        allowed, hidden = (
            np.add.reduceat(np.add.reduceat(a, at[::down], 0), at[::across], 1) for a in (1 * booleans, 1 * ~booleans)
        )
        np.testing.assert_array_equal(state != masks.EMPTY, allowed > 0)
        np.testing.assert_array_equal(state == masks.FULL, hidden == 0)


def kinds(base):
    """The classes of functions in the engine that say what their outputs are."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith("jattn.engine") and "output_types" in vars(kind):
            yield kind
        yield from kinds(kind)


def calls(jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive is batching.batched_call_p:
            yield eqn.params["fun"], [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars]
        elif eqn.primitive is batching.batched_jvp_p:
            fun = eqn.params["fun"].jvp_function(eqn.params["argnums"])
            yield fun, [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars]
        else:
            for inner in within(eqn):
                yield from calls(inner)


@pytest.mark.structure
def test_what_a_function_says_of_its_outputs_is_what_it_returns():
    q, k, v = (jnp.asarray(normal(2, n, D, seed=n), jnp.bfloat16) for n in (17, 11, 11))
    bias = jnp.zeros((17, 11), jnp.float16)

    def loss(q, k, v, bias):
        out, lse = jattn.attention(q, k, v[:, :2], bias=bias, return_lse=True)
        found = *jattn.statistics(q, k, bias=bias), jattn.top_keys(q, k, 3, bias=bias)[1]
        return out.astype(jnp.float32).sum() + lse.sum() + sum(jnp.sum(x) for x in found)

    def every_order(*x):
        gradient = jax.vmap(jax.grad(loss, (0, 1, 2, 3)), (0, 0, 0, None))
        hvp = jax.jvp(gradient, x, x)[1]
        few = jax.jvp(lambda q: jattn.attention(q[0, :3], k[0], v[0]), x[:1], x[:1])
        return hvp, jax.vjp(gradient, *x)[1](hvp), few

    seen = set()
    for fun, operands, outputs in calls(jax.make_jaxpr(every_order)(q, k, v, bias).jaxpr):
        traced = jax.eval_shape(fun, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands))
        assert [(x.shape, x.dtype) for x in outputs] == [(x.shape, x.dtype) for x in traced], fun
        while fun is not None:
            seen.add(type(fun))
            fun = getattr(fun, "fun", None)
    elsewhere = set() if jax.default_backend() == "cpu" else {Jvp}  # which is a pass of CPUs
    assert seen >= set(kinds(batching.BatchedFunction)) - elsewhere


def in_both_orders(f, *x):
    """Value, tangent, gradient and Hessian-vector product."""
    value, tangent = jax.jvp(f, x, x)
    gradient = jax.grad(lambda *x: jnp.sum(jnp.sin(f(*x))), tuple(range(len(x))))
    return value, tangent, *jax.jvp(gradient, x, x)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("axes", "of_keys", "group"),
    [
        *[((0, 0), 0, 1), ((0, 0), 0, 2), ((0, 0), None, 2), ((0, 0), None, 24)],
        *[((1, None), 0, 24), ((1, None), None, 8), ((None, 0), 0, 8)],
    ],
)
def test_a_bias_that_differs_between_examples_is_read_where_it_lies(axes, of_keys, group, monkeypatch):
    """Whole tiles, so that the bias of no example is copied. Mapped over a batch and heads, or one of them; one example
    at a time, in groups of some with what is left over, or all at once."""
    monkeypatch.setattr(tuning, "group_bytes", lambda _: group * 2 * 16 * 16 * 8)
    rows = 32
    shape = {(0, 0): (2, 3, rows, rows), (1, None): (rows, 2, rows), (None, 0): (3, rows, rows)}[axes]
    q, k, v = (normal(2, 3, rows, D, seed=n) for n in range(3))
    k, v = (x if of_keys == 0 else x[:, 0] for x in (k, v))
    bias, allowed = normal(*shape, seed=3), np.tri(rows, dtype=bool)

    def over_heads(f, with_bias):
        def heads(q, k, v, bias):
            over_heads = jax.vmap(f, (0, of_keys, of_keys, axes[1]))
            return jax.vmap(over_heads, (0, 0, 0, axes[0]))(q, k, v, bias)

        return jax.jit(lambda *x: in_both_orders(heads if with_bias else lambda *x: heads(*x, bias), *x))

    def ours(q, k, v, bias):
        return jattn.attention(q, k, v, mask=masks.causal(), bias=bias, tile=(16, 16))

    def theirs(q, k, v, bias):
        return jattn.reference.attention(q, k, v, mask=allowed, bias=bias)[0]

    for with_bias in (False, True) if axes == (0, 0) and group == 2 else (False,):
        x = (q, k, v, bias) if with_bias else (q, k, v)
        program = over_heads(ours, with_bias).lower(*x).compile()
        assert_close(program(*x), over_heads(theirs, with_bias)(*x), ulps=512)
        if not with_bias:
            assert " gather(" not in program.as_text()


@pytest.mark.structure
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU works on all heads at once")
def test_a_bias_that_differs_between_heads_is_not_copied():
    """A tile of it is cut, not one of its heads; where rows are added to it, it is."""

    def temporaries(rows):
        x = jax.ShapeDtypeStruct((4, rows, 8), jnp.float32)
        bias = jax.ShapeDtypeStruct((4, rows, rows), jnp.float32)

        def f(q, k, v, bias):
            return jax.vmap(lambda q, k, v, b: jattn.attention(q, k, v, bias=b, tile=(64, 64)))(q, k, v, bias)

        compiled = jax.jit(jax.grad(lambda *x: f(*x).sum(), (0, 1, 2))).lower(x, x, x, bias).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(1024) < 1024 * 1024 * 4 < temporaries(1023)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="XLA's products are library calls on a GPU")
def test_of_few_pairs_value_and_gradient_compute_the_weights_once():
    """Six products instead of seven; of more pairs the weights would take memory between the two passes."""

    def products(rows):
        x = jax.ShapeDtypeStruct((2, rows, 64), jnp.float32)
        attend = jax.vmap(jattn.attention)
        gradient = jax.jit(lambda q, k, v, w: jax.vjp(attend, q, k, v)[1](w))
        return gradient.lower(x, x, x, x).compile().as_text().count(" dot(")

    assert (products(64), products(80)) == (6, 7)


@pytest.mark.parametrize(
    ("T", "S", "tile", "examples"),
    [(4096, 4096, "512x512xf32", ""), (1024, 1024, "512x512xf32", "4x"), (64, 131072, "64x4096xf32", "4x")],
)
def test_in_loops_over_rows_of_large_tiles_a_cpu_has_one_example_in_a_group_and_elsewhere_several(T, S, tile, examples):
    q, k = (jax.ShapeDtypeStruct((8, n, 24), jnp.float32) for n in (T, S))
    program = jax.jit(jax.vmap(jattn.attention)).trace(q, k, k).lower(lowering_platforms=("cpu",)).as_text()
    logits = re.findall(rf"<((?:\d+x)*){tile}>", program)
    assert max(logits, key=len) == examples
