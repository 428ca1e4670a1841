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
# # The bank walk
#
# Why does "bank" attend to "river", and what does a gradient step then do to its query? Every number here is small
# enough to check by hand, and the popular answer to the second question, "the query moves toward the key", is
# wrong.

# %% tags=["install"]
# %pip install -q "jattn[figures]"

# %%
# %matplotlib inline
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jattn
from jattn import figures, flow, page

words = ["river", "money", "the"]
q = jnp.array([1.0, 0.0])  # the query of bank
k = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])
v = jnp.array([[2.0, 0.0], [0.0, 3.0], [0.1, 0.1]])

# %% [markdown]
# ## From the query to the output
#
# Dot products, divided by √2, through a softmax, as weights of the values. `explain` returns each of them, and in a
# notebook they show themselves. River has 49 % of the attention, and not all of it: its score is the largest by 0.8
# alone.

# %%
steps = jattn.explain(q[None], k, v)
steps

# %% [markdown]
# The same as a table to walk through: choose the query, and each step of its row is worked out below.

# %%
page.weights(steps.weights, ["bank"], words, scores=steps.scores, scaled=steps.scaled, values=v, out=steps.out)

# %% [markdown]
# ## The pull of each key
#
# To attend to river more, lower $L = -\log w_\mathrm{river}$. Its gradient is a difference of keys, and none of
# them alone:
#
# $$-\frac{\partial L}{\partial q} = \frac{1}{\sqrt 2} \left(k_\mathrm{river} - \sum_s w_s k_s\right)$$

# %%
objective = flow.cross_entropy(0)
pulls = flow.pulls(q[None], k, v, objective).on_q[0]
by_formula = (k[0] - steps.weights[0] @ k) / jnp.sqrt(2.0)
by_jax = -jax.grad(lambda q: objective(flow.attention_steps(q[None], k, v)))(q)
print("sum of the pulls", pulls.sum(0), "   formula", by_formula, "   jax.grad", by_jax)
assert np.allclose(pulls.sum(0), by_jax, atol=1e-6)
assert np.allclose(by_formula, by_jax, atol=1e-6)

# %% alt="The pull of river, money and the on the query, dimension by dimension, with their sum as a line"
figures.why(
    pulls, words, total=by_jax, title="River pulls along the first axis; every key together pulls down a little"
)

# %% [markdown]
# ## Ten thousand steps
#
# Gradient descent on the query alone, the keys frozen. The attention to river rises to 1, and meanwhile the query turns
# *away* from k_river, to which it was parallel at the start. Its direction tends to that of the widest margin.


# %%
@jax.jit
def descent(target):
    """10,000 steps of gradient descent on the query, watched at some of them."""
    read, objective = lambda q: (q, k), flow.cross_entropy(target)
    loss, watch = flow.loss_of(read, objective), flow.watch(read, objective, target)
    return flow.run(loss, q, optax.sgd(1.0), 10_000, observe=watch, at=flow.log_steps(10_000, per_decade=12))


river = descent(0)
s = river.seen
u, margin, _ = flow.max_margin(k, 0)
print(f"attention to river   {s.p[0]:.3f} -> {s.p[-1]:.4f}")
print(f"cos(q, k_river)      {s.cos_key[0]:.3f} -> {s.cos_key[-1]:.4f}")
print(f"cos(q, max margin)   {s.cos_margin[0]:.3f} -> {s.cos_margin[-1]:.4f}")
assert s.p[-1] > 0.999
assert s.cos_key[-1] < s.cos_key[0]
assert s.cos_margin[-1] > 0.9998

# %% alt="The path of the query among the three keys: it leaves along k_river and bends down to the max-margin ray"
rays = {"max margin": u, "k_river: where the slogan sends it": k[0]}
figures.path(
    s.q, k, words, rays=rays, marks={0: "start", -1: "step 10,000"}, title="The query of bank learns to attend river"
)

# %% [markdown]
# ## The other bank
#
# From the same start, attend *money*. The first step takes the query further from k_money, and still its attention to
# money rises, because the other keys lose more. Drag the query, or press Play.

# %%
money = descent(1)
s = money.seen
first = s.pulls[0].sum(0)
print(f"first step . k_money {first @ k[1]:.4f}; attention to money {s.p[0]:.3f} -> {s.p[1]:.3f}")
assert first @ k[1] < 0
assert s.p[1] > s.p[0]
run = {"q": s.q, "k": s.k, "weights": s.weights, "loss": s.loss, "cos(q, k_money)": s.cos_key, "steps": money.at}
rays = {"max margin": flow.max_margin(k, 1).direction, "k_money": k[1]}
page.run(run, words, target=1, rays=rays, loss="−log p_money", optimiser="gradient descent")

# %% [markdown]
# What makes the slogan true again: let the keys learn too. That is in [the notebook on gradient
# flow](gradient_flow.py).
