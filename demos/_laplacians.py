"""Ways to Δf = Σ_i ∂²f / ∂x_i² and |∇f|², for f a chain of functions: each is given the chain and x.

Li et al. 2024, "A computational framework for neural network-based variational Monte Carlo with forward Laplacian";
Pfau et al. 2020, "Ab initio solution of the many-electron Schrödinger equation with deep neural networks" (FermiNet).
"""

import importlib.util
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from _wave_function import Layer, chained

Sums = tuple[jax.Array, jax.Array]
"""Δf and |∇f|² at one place."""


def along(f: Layer, x: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first and the second derivative of f at x along u: a jvp of a jvp."""
    return jax.jvp(lambda x: jax.jvp(f, (x,), (u,))[1], (x,), (u,))


def one_by_one(derivatives: Callable[[jax.Array], Sums], x: jax.Array) -> Sums:
    """The sums over all coordinates of (∂²f, (∂f)²), given (∂f, ∂²f) along a direction: one at a time."""

    def add(sums: Sums, i: jax.Array) -> tuple[Sums, None]:
        first, second = derivatives(jnp.zeros(x.size, x.dtype).at[i].set(1).reshape(x.shape))
        return (sums[0] + second, sums[1] + first**2), None

    zero = jnp.zeros((), x.dtype)
    return jax.lax.scan(add, (zero, zero), jnp.arange(x.size, dtype=jnp.int32))[0]


def jvp_of_jvp(functions: list[Layer], x: jax.Array) -> Sums:
    return one_by_one(partial(along, chained(functions), x), x)


def jvp_of_gradient(functions: list[Layer], x: jax.Array) -> Sums:
    """FermiNet's way: the gradient is linearized once."""
    g, hessian = jax.linearize(jax.grad(chained(functions)), x)
    return one_by_one(lambda u: (jnp.vdot(u, g), jnp.vdot(u, hessian(u))), x)


def forward_laplacian(functions: list[Layer], x: jax.Array) -> Sums:
    """Of y = f(x): ∂_i y = Df ∂_i x and Δy = Df Δx + Σ_i D²f [∂_i x, ∂_i x], for each function of the chain in turn."""
    dx, lap = jnp.eye(x.size, dtype=x.dtype).reshape(-1, *x.shape), jnp.zeros_like(x)
    for f in functions:

        def add(curved: jax.Array, u: jax.Array, f: Layer = f, x: jax.Array = x) -> tuple[jax.Array, jax.Array]:
            first, second = along(f, x, u)
            return curved + second, first

        x, carried = jax.jvp(f, (x,), (lap,))
        curved, dx = jax.lax.scan(add, jnp.zeros_like(x), dx)
        lap = carried + curved
    return lap, (dx**2).sum()


def trace_of_hessian(functions: list[Layer], x: jax.Array) -> Sums:
    f = chained(functions)
    return jnp.trace(jax.hessian(f)(x).reshape(x.size, x.size)), (jax.grad(f)(x) ** 2).sum()


def by_folx(functions: list[Layer], x: jax.Array) -> Sums:
    import folx

    found = folx.forward_laplacian(chained(functions))(x)
    return found.laplacian, (found.jacobian.dense_array**2).sum()


NESTED, GRADIENT = "jvp of jvp, one coordinate at a time", "jvp of gradient, likewise"
HESSIAN, FOLX = "trace of the Hessian", "folx.forward_laplacian"
WAYS = {
    NESTED: jvp_of_jvp,
    GRADIENT: jvp_of_gradient,
    "forward Laplacian, layer by layer": forward_laplacian,
    HESSIAN: trace_of_hessian,
}


def ways() -> dict[str, Callable[[list[Layer], jax.Array], Sums]]:
    return WAYS | ({FOLX: by_folx} if importlib.util.find_spec("folx") else {})
