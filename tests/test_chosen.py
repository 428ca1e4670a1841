"""A choice of keys: blocks that are named while the program runs, and attention over the best keys of each query."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, normal, qkv

import jattn
from jattn import masks, reference

pytestmark = pytest.mark.structure

T, SIZE, Q_SIZE, TILE = 83, 8, 4, (16, 32)  # tiles of several blocks, and of a part of the last
HEADS = 2
NAMED = np.random.default_rng(0).integers(-2, 12, (HEADS, -(-T // Q_SIZE), 3)).astype(np.int32)  # −1, and 11 beyond
NAMED[:, 4:8] = np.arange(3)  # a full tile
NAMED[0, 3] = -1  # queries that read nothing


def heads(attend):
    """(out, lse) and gradient, each head with a choice of its own."""

    def loss(x, named):
        out, lse = jax.vmap(attend)(*x, named)
        return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.where(lse == -jnp.inf, 0, jnp.sin(lse))), (out, lse)

    return jax.jit(jax.grad(loss, has_aux=True))


def booleans(named):
    """By NumPy, pair by pair."""
    allowed = np.zeros((HEADS, T, T), bool)
    for h, t, s in np.ndindex(allowed.shape):
        allowed[h, t, s] = s // SIZE in named[h, t // Q_SIZE]
    return allowed


@pytest.mark.usefixtures("x64")
def test_each_head_attends_the_blocks_that_its_indices_name():
    x = tuple(np.stack([a, b]) for a, b in zip(qkv(0, T=T, S=T), qkv(1, T=T, S=T), strict=True))

    def ours(q, k, v, named):
        mask = masks.chosen_blocks(named, SIZE, q_size=Q_SIZE)
        return jattn.attention(q, k, v, mask=mask, return_lse=True, tile=TILE)

    got = heads(ours)(x, NAMED)
    want = heads(lambda q, k, v, allowed: reference.attention(q, k, v, mask=allowed))(x, booleans(NAMED))
    assert_close(got, want, ulps=64)
    assert not got[1][0][0, 12:16].any()


def test_attention_over_the_best_keys_is_attention_under_their_mask():
    """The composition that the docstring of top_keys shows, with the gradients of q, k and v."""
    q, k, v = (x.astype(np.float32) for x in qkv(T=19, S=37))
    mask = masks.lengths(k=30)
    indices, _ = jattn.top_keys(q, k, 4, mask=mask, tile=(16, 16))
    chosen = np.zeros((19, 37), bool)
    chosen[np.arange(19)[:, None], indices] = True
    weights = normal(19, v.shape[1], dtype=np.float32)

    def gathered(q, k, v):
        indices, logits = jattn.top_keys(q, k, 4, mask=mask, tile=(16, 16))
        return jnp.sum(weights * (jattn.softmax(logits)[:, :, None] * v[indices]).sum(1))

    def masked(q, k, v):
        return jnp.sum(weights * reference.attention(q, k, v, mask=chosen)[0])

    assert_close(*(jax.jit(jax.value_and_grad(f, (0, 1, 2)))(q, k, v) for f in (gathered, masked)), ulps=32, scale=8)


@pytest.mark.usefixtures("x64")
def test_without_a_block_of_queries_nothing_is_chosen():
    q, k, v = qkv(T=5, S=11)
    at = {"q_positions": np.arange(5), "k_positions": np.arange(11)}
    nothing = masks.chosen_blocks(np.zeros((0, 2), np.int32), 2)
    for mask, allowed in ((nothing, np.zeros((5, 11), bool)), (~nothing, np.ones((5, 11), bool))):
        out = jattn.attention(q, k, v, mask=mask, return_lse=True, **at)
        assert_close(out, reference.attention(q, k, v, mask=allowed), ulps=16)
        np.testing.assert_array_equal(masks.to_dense(mask, 5, 11, **at), allowed)
