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
# # Gradient flow, and the slogan that fails
#
# "Training moves the query of *bank* toward the key of *river*." With the keys frozen that is false, and one can
# say exactly where the query goes instead. With the keys free to learn, it is true. Each claim below is measured
# beside theory.

# %% tags=["install"]
# %pip install -q "jattn[figures]"

# %%
# %matplotlib inline
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jattn import figures, flow

jax.config.update("jax_enable_x64", True)
words = ["river", "money", "the"]
q = jnp.array([1.0, 0.0])  # the query of bank
k = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])
c = 1 / np.sqrt(2)

# %% [markdown]
# ## Frozen keys: toward the widest margin
#
# The loss is $-\log w_r$. Gradient *flow*, dq/dt = −∇L, is followed to t = 10¹²: the attention saturates, and q
# grows without end, like log t. Its direction tends to
# $u = \mathrm{argmax}_{|u|=1}\, \mathrm{min}_j u \cdot (k_r - k_j)$, and not to k_r (Soudry et al. 2018).
# `flow.max_margin` finds u and its margin γ exactly.


# %%
@jax.jit
def followed(k, target, times):
    """The flow of the query among keys that stand still, watched at the times given."""
    read, objective = lambda q: (q, k), flow.cross_entropy(target)
    return flow.integrate(flow.loss_of(read, objective), q, times, observe=flow.watch(read, objective, target))


times = np.concatenate([[0.0], np.logspace(-1, 12, 53)])
runs = {}
for target in (0, 1):
    runs[target] = followed(k, target, times)
    s, (u, gamma, _) = jax.tree.map(np.asarray, runs[target].seen), flow.max_margin(k, target)
    key = np.asarray(k[target] / jnp.linalg.norm(k[target]))
    print(f"attend {words[target]}: p = {s.p[-1]:.6f}")
    print(f"  cos(q, max margin) {s.cos_margin[-1]:.6f}, in theory 1")
    print(f"  cos(q, k_{words[target]}) {s.cos_key[-1]:.6f}, in theory {u @ key:.6f}")
    print(f"  t L                {times[-1] * s.loss[-1]:.4f}, in theory 1/(cγ)² = {1 / (c * gamma) ** 2:.4f}")
    assert s.cos_margin[-1] > 0.999
    assert abs(times[-1] * s.loss[-1] * (c * gamma) ** 2 - 1) < 0.01

# %% alt="Two cosines over logarithmic time: the one to the key of money falls at first, the other goes to 1"
s = jax.tree.map(np.asarray, runs[1].seen)
seen = {"q": s.q, "k": s.k, "weights": s.weights, "loss": s.loss, "steps": np.arange(len(times))}
seen |= {"cos(q, k_money)": s.cos_key, "cos(q, max margin)": s.cos_margin, "norm": s.norm}
figures.training(seen, words, title="To attend money (frame 0 is t = 0, frame 52 is t = 10¹²)")

# %% [markdown]
# ## The identities of the path
#
# `flow.check` holds the whole path to what theory says of it:

# %%
report = flow.check(runs[1], rate=1.0)
print(report)
assert report.passed

# %% [markdown]
# ## Free keys: the slogan holds
#
# Let the keys learn too. k_money comes to meet the query; the mean key stands still, because the pulls on the keys
# sum to zero; and |q|² − |K|² changes by the second-order term of each step alone.


# %%
def balance(w):
    return jnp.trace(flow.balance(*w))


read, objective = lambda w: w, flow.cross_entropy(1)
watch = flow.watch(read, objective, 1, conserved=balance)
path = flow.run(
    flow.loss_of(read, objective), (q, k), optax.sgd(0.5), 3000, observe=watch, track=balance,
    at=flow.log_steps(3000, per_decade=12),
)  # fmt: skip
s = jax.tree.map(np.asarray, path.seen)
moved = np.linalg.norm(s.k.mean(1) - s.k[0].mean(0), axis=1)
print(f"p {s.p[-1]:.4f}   cos(q, k_money) {s.cos_key[0]:.3f} -> {s.cos_key[-1]:.6f}   mean key moved {moved.max():.0e}")
assert s.cos_key[-1] > 0.999
assert moved.max() < 1e-12

# %% alt="Two panels of dots on lines: the mean key does not move, and the difference of squares drifts as predicted"
figures.conserved(
    {"mean key, moved by": (0.0, moved), "|q|² − |K|²": (s.conserved[0] + s.drift, s.conserved)}, steps=path.at
)

# %% [markdown]
# ## No direction at all
#
# If the target lies in the hull of the other keys no query prefers it: the margin is 0, q comes to rest, and the
# attention to it has a ceiling below 1, however long one trains.

# %%
inside = jnp.array([[0.1, 0.2], [1.0, 0.0], [-0.8, 0.4]])  # the target is the midpoint of the other two
s = followed(inside, 0, np.concatenate([[0.0], np.logspace(-1, 3, 53)])).seen
mean = s.weights[-1] @ inside
print(f"margin {flow.max_margin(inside, 0).margin:.0e}   |q| {s.norm[-1]:.3f}   p {s.p[0]:.4f} -> {s.p[-1]:.6f}")
print(f"the mean key {mean.round(6)} is the target's key {inside[0]}")
assert np.allclose(mean, inside[0], atol=1e-6)
assert s.p[-1] < 0.4

# %% [markdown]
# Eight more scenarios, among them other optimisers and losses on the output: `demos/gradient_flow.py --list`. The
# claims in words: [How attention learns](../learning.md).
