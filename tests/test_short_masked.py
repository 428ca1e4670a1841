"""The value of short sequences with a mask, over many heads: one chain of arithmetic, as without one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, normal
from _oracles import definition

import jattn
from jattn import masks
from jattn.engine import tile, tuning
from jattn.engine.attend import make_plan
from jattn.engine.batching import batched_call
from jattn.engine.forward import Forward
from jattn.engine.plan import Operands

T, S, D, HEADS = 20, 24, 5, 6
CASES = {
    "causal": masks.causal(),
    "beyond a window": ~masks.window(left=2, right=S),
    "every third query without a key": masks.where(lambda t, s: (s <= t) & (t % 3 > 0)),
    "no pair": masks.empty(),
    "all pairs": masks.full(),
}


@pytest.fixture(autouse=True)
def many_pairs(monkeypatch):
    """As where there are many pairs, with a second form for what is not finite."""
    monkeypatch.setattr(tuning, "FEW_PAIRS", 0)


def heads(*shape, seed):
    return jnp.asarray(normal(HEADS, *shape, seed=seed))


def in_one_chain(mask, q, k, v):
    """(out, lse) of one head, of operands that are finite."""
    plan, x = make_plan(Operands(q, k, v, mask=mask), None, None)
    leaves, tree = jax.tree.flatten(x)
    out, m, log_sum = batched_call(Forward(dataclasses.replace(plan, finite=True), tree, mask_in_chain=True), *leaves)
    return out, m + log_sum


@pytest.mark.structure
@pytest.mark.parametrize("name", CASES)
def test_a_chain_with_a_mask_is_the_definition(name, x64):
    mask, x = CASES[name], (heads(T, D, seed=0), heads(S, D, seed=1), heads(S, 3, seed=2))
    placed = {"q_positions": np.arange(T), "k_positions": np.arange(S)}
    want = jax.vmap(definition(mask=masks.to_dense(mask, T, S, **placed)))(*x)
    assert_close(jax.jit(jax.vmap(lambda *x: in_one_chain(mask, *x)))(*x), want, ulps=64)


@pytest.mark.structure
@pytest.mark.parametrize("name", ["every third query without a key", "lengths"])
def test_attention_without_lse_is_the_definition_and_so_are_its_derivatives(name, x64):
    x, n = (heads(T, D, seed=0), heads(T, D, seed=1), heads(T, 3, seed=2)), jnp.arange(HEADS, dtype=jnp.int32) * 4

    def mask(n):
        return masks.lengths(k=n) if name == "lengths" else CASES[name]

    def ours(*x):
        return jax.vmap(lambda q, k, v, n: jattn.attention(q, k, v, mask=mask(n)))(*x, n)

    def wanted(*x):
        pairs = jnp.stack([masks.to_dense(mask(length), T, T) for length in n])
        return jax.vmap(lambda q, k, v, pairs: definition(mask=pairs)(q, k, v)[0])(*x, pairs)

    def orders(f):
        dots = tuple(map(jnp.cos, x))
        return jax.jit(lambda *x: (*jax.jvp(f, x, dots), jax.grad(lambda *x: (f(*x) ** 3).sum(), (0, 1, 2))(*x)))(*x)

    assert_close(orders(ours), orders(wanted), ulps=256)


@pytest.mark.structure
def test_what_is_added_where_logits_are_made_is_in_the_chain(monkeypatch, x64):
    real, x = tile.logits_from_products, (heads(T, D, seed=0), heads(T, D, seed=1), heads(T, 3, seed=2))
    odd = np.broadcast_to(np.arange(T) % 2, (T, T)).astype(np.float64)
    want = jax.vmap(definition(mask=np.tri(T, dtype=bool), bias=odd))(*x)
    monkeypatch.setattr(tile, "logits_from_products", lambda products, *rest: real(products, *rest) + odd)
    jax.clear_caches()
    assert_close(jax.jit(jax.vmap(lambda *x: in_one_chain(masks.causal(), *x)))(*x), want, ulps=64)


def test_the_largest_finite_logits_choose_their_key_also_beside_larger_ones_that_are_hidden():
    q = jnp.full((HEADS, T, D), 1e17, jnp.float32)
    k = q * jnp.arange(1, T + 1, dtype=jnp.float32)[None, :, None]  # each key is nearer than the one before
    v = heads(T, D, seed=1).astype(jnp.float32)
    out = jax.jit(jax.vmap(lambda *x: jattn.attention(*x, mask=masks.causal())))(q, k, v)
    np.testing.assert_array_equal(out, v)


def test_a_nan_or_an_infinity_behind_the_mask_reaches_nothing():
    q, k, v = (heads(T, D, seed=n).astype(jnp.float32) for n in range(3))
    f = jax.jit(jax.vmap(lambda *x: jattn.attention(*x, mask=masks.causal())))
    bad = f(q, k.at[:, 12].set(jnp.nan), v.at[:, 15].set(jnp.inf))
    np.testing.assert_allclose(bad[:, :12], f(q, k, v)[:, :12], rtol=2e-5, atol=1e-6)
    assert np.isnan(bad[:, 15:]).all()


def by_heads(*x, return_lse):
    head = functools.partial(jattn.attention, mask=masks.causal(), return_lse=return_lse)
    return jax.vmap(jax.vmap(head))(*x)


def by_lengths(*x, return_lse):
    def head(q, k, v, n):
        return jattn.attention(q, k, v, mask=masks.lengths(k=n), return_lse=return_lse)

    n = jnp.arange(64, dtype=jnp.int32).reshape(8, 8)
    return jax.vmap(jax.vmap(head))(*x, n)


def under_the_signature_of_jax_nn(*x, return_lse):
    x = [a.reshape(8, 256, 8, 64) for a in x]
    return jattn.dot_product_attention(*x, is_causal=True, return_residual=return_lse)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a kernel of XLA's compiler for CPUs")
@pytest.mark.parametrize("f", [by_heads, by_lengths, under_the_signature_of_jax_nn])
def test_the_value_of_short_heads_holds_no_logits(f):
    """With lse, the control, XLA makes several kernels, and holds the logits of some of the 64 heads between them."""
    x = [jax.ShapeDtypeStruct((8, 8, 256, 64), jnp.float32)] * 3

    def held(return_lse):
        run = jax.jit(functools.partial(f, return_lse=return_lse))
        return run.lower(*x).compile().memory_analysis().temp_size_in_bytes

    logits, heads_first = 4 * 256 * 256, 5 * 4 * 8 * 8 * 256 * 64 if f is under_the_signature_of_jax_nn else 0
    assert held(False) < heads_first + 4 * logits < heads_first + 16 * logits < held(True) < heads_first + 64 * logits
