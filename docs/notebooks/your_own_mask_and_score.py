# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Write your own mask and score
#
# A mask says which pairs of a query and a key are allowed; a score modifier says what a score becomes before the
# softmax. Both are ordinary functions of scalars. They compose, are differentiated, and never become a T × S array.

# %% tags=["install"]
# %pip install -q "jattn[figures]"

# %%
# %matplotlib inline
import jax
import jax.numpy as jnp
import numpy as np

import jattn
from jattn import figures, masks, scores

# %% [markdown]
# ## A mask that is there already
#
# Masks compose by `&`, `|` and `~`, and show themselves:

# %%
(masks.causal() & masks.window(left=6)) | masks.sinks(2)

# %% [markdown]
# ## A mask of your own
#
# `masks.where` takes any function of two positions. This one is the comb of a sparse transformer: the last eight
# tokens, and every eighth.

# %%
comb = masks.where(lambda t, s: (t - s < 8) | (s % 8 == 7)) & masks.causal()
comb

# %% [markdown]
# ## It is checked against the definition
#
# `jattn.reference` is attention on one page, in dense arrays. Whatever you write, compare the value and the
# gradient once:

# %%
q, k, v = jax.random.normal(jax.random.key(0), (3, 64, 16))
dense = masks.to_dense(comb, 64, 64)


def ours(q, k, v):
    return jattn.attention(q, k, v, mask=comb)


def definition(q, k, v):
    return jattn.reference.attention(q, k, v, mask=dense)[0]


def loss(f):
    return lambda *qkv: jnp.sin(f(*qkv)).sum()


off = [np.abs(ours(q, k, v) - definition(q, k, v)).max()]
for ours_d, truth in zip(*(jax.grad(loss(f), (0, 1, 2))(q, k, v) for f in (ours, definition)), strict=True):
    off.append(np.abs(ours_d - truth).max())
print("largest difference of out, dq, dk, dv:", *(f"{x:.0e}" for x in off))
assert max(off) < 1e-5

# %% [markdown]
# ## Which tiles it visits
#
# Attention works tile by tile, and a tile without an allowed pair is not visited. A predicate of positions alone is
# asked about every pair once, while the program is traced. One that captures an array cannot be: its author says
# with `state=` what a rectangle of pairs holds, from the lowest to the highest position of its queries and of its
# keys.

# %%
begins = jnp.repeat(jnp.arange(0, 64, 16), 16)  # where the sentence of each token begins


def sentence(t, s):
    return (begins[t] <= s) & (s <= t)


def state(t_low, t_high, s_low, s_high):
    some = (s_low <= t_high) & (begins[t_low] <= s_high)
    every = (s_high <= t_low) & (begins[t_high] <= s_low)
    return masks.block_state(some, every)


sentences = masks.where(sentence, state=state)
pairs = np.asarray(masks.to_dense(sentences, 64, 64))
tiles = pairs.reshape(8, 8, 8, 8)
held = masks.block_state(tiles.any((1, 3)), tiles.all((1, 3)))  # what the tiles of 8 x 8 hold, by their pairs
at = np.arange(0, 64, 8)
told = np.array([[state(t, t + 7, s, s + 7) for s in at] for t in at])
print("tiles that hold a pair:", int((held != masks.EMPTY).sum()), "of 64; told of:", int((told != masks.EMPTY).sum()))
assert (told == held).all()

# %% alt="Four sentences as triangles below the diagonal, each of three tiles; the other 52 tiles are empty"
figures.tiles(told, values=pairs, shape=(8, 8), title="Each token attends its own sentence: 12 of 64 tiles are visited")

# %% [markdown]
# ## A score of your own
#
# A score modifier is a function of three scalars: the score, and the positions of its query and key. What it closes
# over is differentiated like any argument; here a slope for recency is *learned*, by its gradient through
# attention.


# %%
def attend(slope):
    recent = lambda score, t, s: score - jnp.exp(slope) * (t - s).astype(score.dtype)  # noqa: E731
    return jattn.attention(q, k, v, mask=masks.causal(), score=recent)


wanted = attend(jnp.log(0.25))  # as if a slope of 1/4 had made the data


@jax.jit
def step(slope, _):
    error, gradient = jax.value_and_grad(lambda slope: ((attend(slope) - wanted) ** 2).sum())(slope)
    return slope - 0.01 * gradient, error


slope, errors = jax.lax.scan(step, jnp.log(2.0), length=100)
print(f"slope {jnp.exp(slope):.4f}, error {errors[0]:.3g} -> {errors[-1]:.1e}")
assert abs(jnp.exp(slope) - 0.25) < 1e-3

# %% [markdown]
# The named ones compose with yours. What it does to the scores can be drawn from the same function:

# %% alt="The pairs of a causal mask in colour: zero on the diagonal, down to minus two at a distance of eight and more"
capped = scores.compose(scores.alibi(0.25), lambda score, t, s: jnp.maximum(score, -2.0))
at = jnp.arange(24)
added = jax.vmap(jax.vmap(capped, (None, None, 0)), (None, 0, None))(jnp.zeros(()), at, at)
seen = jnp.where(masks.to_dense(masks.causal(), 24, 24), added, -jnp.inf)
figures.tiles(
    np.ones((3, 3), int), values=seen, shape=(8, 8), title="What ALiBi of slope 1/4, stopped at −2, adds to each pair"
)

# %% [markdown]
# More: [Masks and scores](../masks_and_scores.md), and every mask and score on one sheet by
# `demos/masks_and_scores.py`.
