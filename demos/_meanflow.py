"""A network with one head of attention, its MeanFlow loss, and the three derivatives that every_derivative.py takes.

With v = noise − data, z = (1 − t) data + t noise and a network u(z, r, t):

    loss = mean (u − u_tgt)²,    u_tgt = v − (t − r) (v·∂_z u + ∂_t u)

Geng et al. 2025, "Mean Flows for One-step Generative Modeling".
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from jax.flatten_util import ravel_pytree

C, W, R, T_NOW, NUDGE = 4, 32, 0.3, 0.8, 0.03
SHAPES = {"into": (C, W), "time": (2, W), "q": (W, W), "k": (W, W), "v": (W, W), "back": (W, W), "out": (W, C)}
STOPPED, FREE, HVP = WORK = ["gradient, target stopped", "gradient, nothing stopped", "Hessian-vector product"]


@partial(jax.jit, static_argnums=(1, 2))
def drawn(key: jax.Array, n: int, dtype: type) -> tuple[dict, jax.Array, jax.Array]:
    """The parameters, data [n, C] on a closed curve in four dimensions, and noise for each point."""
    *keys, a, b = random.split(key, len(SHAPES) + 2)
    p = {i: random.normal(k, s, dtype) / s[0] ** 0.5 for k, (i, s) in zip(keys, SHAPES.items(), strict=True)}
    angle = random.uniform(a, (n,), dtype, maxval=6.2831853)
    data = jnp.stack([jnp.cos(angle), jnp.sin(angle), jnp.cos(2 * angle), jnp.sin(2 * angle)], 1)
    return p, data, random.normal(b, (n, C), dtype)


def network(attention: Callable, p: dict, z: jax.Array, r: jax.Array, t: jax.Array) -> jax.Array:
    """u(z, r, t) at each of the points z [n, C]."""
    time = jnp.stack([r, t]) @ p["time"]
    h = jnp.tanh(z @ p["into"] + time[None])
    h = h + attention(h @ p["q"], h @ p["k"], h @ p["v"]) @ p["back"]
    return jnp.tanh(h) @ p["out"]


def meanflow(attention: Callable, stop: Callable, p: dict, data: jax.Array, noise: jax.Array) -> jax.Array:
    """The loss; `stop` is jax.lax.stop_gradient, or the identity where the gradient goes through the target too."""
    r, t = jnp.asarray(R, data.dtype), jnp.asarray(T_NOW, data.dtype)
    z, v = (1 - t) * data + t * noise, noise - data
    primals, tangents = (z, r, t), (v, jnp.zeros_like(r), jnp.ones_like(t))
    u, u_dot = jax.jvp(partial(network, attention, p), primals, tangents)  # u_dot = v·∂_z u + ∂_t u
    target = v - (t - r) * u_dot
    return jnp.mean((u - stop(target)) ** 2)


def matching(attention: Callable, p: dict, data: jax.Array, noise: jax.Array) -> jax.Array:
    """The same loss at r = t, where no jvp is left in it: that of flow matching."""
    t = jnp.asarray(T_NOW, data.dtype)
    z, v = (1 - t) * data + t * noise, noise - data
    return jnp.mean((network(attention, p, z, t, t) - v) ** 2)


def compiled(attention: Callable, *xs: object) -> dict[str, jax.stages.Compiled]:
    """Each derivative of WORK as a compiled function of (parameters, direction, data, noise), as `xs` are shaped."""
    stopped_loss = partial(meanflow, attention, jax.lax.stop_gradient)
    free_loss = partial(meanflow, attention, lambda target: target)
    gradient = jax.grad(partial(matching, attention))

    def stopped(p: dict, w: dict, data: jax.Array, noise: jax.Array) -> tuple[jax.Array, dict]:
        return jax.value_and_grad(stopped_loss)(p, data, noise)

    def free(p: dict, w: dict, data: jax.Array, noise: jax.Array) -> tuple[jax.Array, dict]:
        return jax.value_and_grad(free_loss)(p, data, noise)

    def hessian_vector(p: dict, w: dict, data: jax.Array, noise: jax.Array) -> tuple[dict, dict]:
        return jax.jvp(lambda p: gradient(p, data, noise), (p,), (w,))

    work = {STOPPED: stopped, FREE: free, HVP: hessian_vector}
    return {name: jax.jit(f).lower(*xs).compile() for name, f in work.items()}


def flat(tree: Any) -> jax.Array:
    """All entries of a pytree as one vector."""
    return ravel_pytree(tree)[0]


def by_difference(attention: Callable, p: dict, w: jax.Array, data: jax.Array, noise: jax.Array) -> jax.Array:
    """H w of the loss at r = t: a central difference of two gradients, NUDGE w to each side."""
    gradient = jax.jit(jax.grad(partial(matching, attention)))
    at, tree = ravel_pytree(p)
    plus, minus = gradient(tree(at + NUDGE * w), data, noise), gradient(tree(at - NUDGE * w), data, noise)
    return (flat(plus) - flat(minus)) / (2 * NUDGE)
