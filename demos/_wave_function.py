"""A wave function of N electrons in a harmonic trap, built as the Psiformer is: attention, then a determinant.

    log|ψ(x)| = log|det Φ|,    Φ_ij = e^(−|r_i|² / 2) (p_j(r_i) + a (h_i W)_j)

r_i is the position of electron i, and h_i what layers of attention and of tanh make of all positions. p_j are the
monomials 1, z, y, x, z², … in order of degree. With a = 0 ψ is the ground state of electrons of one spin that do not
repel each other, whatever else the parameters are, and its local energy is Σ_j (3/2 + degree of p_j) everywhere.
von Glehn et al. 2023, "A self-attention ansatz for ab-initio quantum chemistry".
"""

import itertools
import math
from collections.abc import Callable
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from jattn import heads

WIDTH, HEADS, DEPTH = 32, 4, 1
Layer = Callable[[jax.Array], jax.Array]


def powers(n: int) -> np.ndarray:
    """[n, 3] the exponents of x, y and z in the first n monomials, in order of degree."""
    every = itertools.product(range(1 + math.ceil((6 * n) ** (1 / 3))), repeat=3)
    return np.array(sorted(every, key=lambda e: (sum(e), e))[:n])


def energy(n: int) -> float:
    """The energy of n electrons at a = 0, in units of the trap's ħω."""
    return float((1.5 + powers(n).sum(1)).sum())


def drawn(key: jax.Array, n: int, walkers: int) -> tuple[dict, jax.Array]:
    """The parameters, and positions [walkers, n, 3]."""
    into, out, at, *layers = random.split(key, 3 + 2 * DEPTH)
    normal = lambda key, *shape: random.normal(key, shape) * shape[0] ** -0.5  # noqa: E731
    p = {
        "into": normal(into, 4, WIDTH), "W": normal(out, WIDTH, n),
        "attention": [heads.init(k, WIDTH, heads=HEADS, dtype=jnp.float64) for k in layers[::2]],
        "tanh": [normal(k, WIDTH, WIDTH) for k in layers[1::2]],
    }  # fmt: skip
    return p, random.normal(at, (walkers, n, 3))


def layers(attention: Callable, p: dict, a: jax.Array) -> list[Layer]:
    """log|ψ| as a chain of functions: [n, 3] → [n, 3 + WIDTH], positions beside features → … → a number."""

    def embed(r: jax.Array) -> jax.Array:
        distance = jnp.sqrt(1 + (r**2).sum(1, keepdims=True))
        return jnp.concatenate([r, jnp.concatenate([r, distance], 1) @ p["into"]], 1)

    def residual(f: Layer) -> Layer:
        return lambda rh: rh + jnp.pad(f(rh[:, 3:]), ((0, 0), (3, 0)))

    def attend(w: dict) -> Layer:
        return lambda h: heads.output(w, jax.vmap(attention)(*heads.project(w, h)), h)

    def determinant(rh: jax.Array) -> jax.Array:
        r, h = rh[:, :3], rh[:, 3:]
        px, py, pz = powers(len(r)).T
        raised = jnp.stack([r**degree for degree in range(1 + pz.max())])
        polynomials = raised[px, :, 0] * raised[py, :, 1] * raised[pz, :, 2]  # [j, i]
        matrix = jnp.exp(-(r**2).sum(1, keepdims=True) / 2) * (polynomials.T + a * (h @ p["W"]))
        return jnp.linalg.slogdet(matrix)[1]

    through = [f for w, m in zip(p["attention"], p["tanh"], strict=True)
               for f in (attend(w), lambda h, m=m: jnp.tanh(h @ m))]  # fmt: skip
    return [embed, *map(residual, through), determinant]


def chained(functions: list[Layer]) -> Layer:
    return lambda x: reduce(lambda y, f: f(y), functions, x)
