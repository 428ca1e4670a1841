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
# # Hessian-vector products and MeanFlow at 16,384 tokens
#
# A Hessian-vector product is a jvp of a gradient. MeanFlow's loss holds a jvp of the network, so that its training
# step is a gradient of a jvp. In plain JAX both form arrays of 16,384 × 16,384 numbers, 1 GiB each. Here neither
# does, and there is nothing to turn on.

# %% tags=["install"]
# %pip install -q jattn

# %%
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import jattn

# %% [markdown]
# ## A network with one head of attention
#
# It learns the mean velocity u(z, r, t) that carries noise to a set of points. With v = noise − data and
# z = (1 − t) data + t noise,
#
# $$L = \frac{1}{n} \left\| u - u_\mathrm{tgt} \right\|^2$$
#
# $$u_\mathrm{tgt} = v - (t - r) \left(v \cdot \partial_z u + \partial_t u\right)$$
#
# (Geng et al. 2025, "Mean Flows for One-step Generative Modeling"). The bracket is one jvp of the network.

# %%
C, W = 4, 16
SHAPES = {"into": (C, W), "time": (2, W), "q": (W, W), "k": (W, W), "v": (W, W), "back": (W, W), "out": (W, C)}


def drawn(n, dtype=jnp.float32):
    """Parameters, points on a closed curve in four dimensions, and noise for each."""
    *keys, a, b = jax.random.split(jax.random.key(0), len(SHAPES) + 2)
    p = {i: jax.random.normal(key, s, dtype) / s[0] ** 0.5 for key, (i, s) in zip(keys, SHAPES.items(), strict=True)}
    angle = jax.random.uniform(a, (n,), dtype, maxval=6.2831853)
    data = jnp.stack([jnp.cos(angle), jnp.sin(angle), jnp.cos(2 * angle), jnp.sin(2 * angle)], 1)
    return p, data, jax.random.normal(b, (n, C), dtype)


def network(attention, p, z, r, t):
    h = jnp.tanh(z @ p["into"] + (jnp.stack([r, t]) @ p["time"])[None])
    h = h + attention(h @ p["q"], h @ p["k"], h @ p["v"]) @ p["back"]
    return jnp.tanh(h) @ p["out"]


def meanflow(attention, p, data, noise, r=0.3, t=0.8):
    r, t = jnp.asarray(r, data.dtype), jnp.asarray(t, data.dtype)
    z, v = (1 - t) * data + t * noise, noise - data
    u, u_dot = jax.jvp(lambda *x: network(attention, p, *x), (z, r, t), (v, jnp.zeros_like(r), jnp.ones_like(t)))
    return jnp.mean((u - jax.lax.stop_gradient(v - (t - r) * u_dot)) ** 2)


def matching(attention, p, data, noise):
    """The loss at r = t: that of flow matching, in which no jvp is left."""
    t = jnp.asarray(0.8, data.dtype)
    return jnp.mean((network(attention, p, (1 - t) * data + t * noise, t, t) - (noise - data)) ** 2)


def derivatives(attention):
    """MeanFlow's gradient, and the product of the Hessian of flow matching and a direction w, in one program."""

    def both(p, w, *x):
        gradient = jax.grad(lambda p: matching(attention, p, *x))
        return jax.grad(lambda p: meanflow(attention, p, *x))(p), jax.jvp(gradient, (p,), (w,))[1]

    return jax.jit(both)


def dense(q, k, v):
    return jattn.reference.attention(q, k, v)[0]


# %% [markdown]
# ## Right, on a few tokens
#
# Both derivatives against the definition in dense arrays, in several tiles:

# %%
p, *x = drawn(61)
ours = derivatives(lambda *qkv: jattn.attention(*qkv, tile=(32, 32)))(p, p, *x)
truth = derivatives(dense)(p, p, *x)
for name, a, b in zip(["MeanFlow's gradient", "Hessian-vector product"], ours, truth, strict=True):
    a, b = ravel_pytree(a)[0], ravel_pytree(b)[0]
    off = float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b))
    print(f"{name}: relative difference {off:.0e}")
    assert off < 1e-4

# %% [markdown]
# ## Memory, on 16,384 tokens
#
# What XLA's compiler plans for temporaries of both together; the dense form is compiled and never run.

# %% tags=["optimised"]
p, *x = drawn(16_384)
compiled = derivatives(jattn.attention).lower(p, p, *x).compile()
by_definition = derivatives(dense).lower(p, p, *x).compile()
ours, truth = (f.memory_analysis().temp_size_in_bytes / 2**20 for f in (compiled, by_definition))
print(f"jattn {ours:,.0f} MiB; the dense form {truth:,.0f} MiB")
assert 20 * ours < truth

# %% [markdown]
# ## Run
#
# The gradient of MeanFlow, and wᵀHw: the curvature of the loss of flow matching along a random direction w.

# %%
w, tree = ravel_pytree(drawn(1)[0])
w = jax.random.normal(jax.random.key(1), w.shape)
w = w / jnp.linalg.norm(w)
gradient, Hw = (ravel_pytree(d)[0] for d in compiled(p, tree(w), *x))
print(f"|gradient| {jnp.linalg.norm(gradient):.4f}   wᵀHw {w @ Hw:.4f}   |Hw| {jnp.linalg.norm(Hw):.4f}")
assert np.isfinite(gradient).all()
assert 0 < abs(w @ Hw) <= jnp.linalg.norm(Hw)

# %% [markdown]
# A longer run with training steps, with nothing stopped, and beside other libraries: `demos/every_derivative.py`. The
# rules behind it: [Every derivative](../derivatives.md).
