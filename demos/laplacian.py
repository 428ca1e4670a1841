"""The Laplacian of a wave function with attention: four ways to the kinetic energy of electrons, time and memory.

A neural wave function (FermiNet, Psiformer) needs Δ log|ψ| = Σ_i ∂²log|ψ| / ∂x_i² at every step of its training: with
n = 3 × electrons coordinates x, the kinetic energy of electrons at x is

    −½ Δψ / ψ = −½ (Δ log|ψ| + |∇ log|ψ||²)

Three ways lead through jattn.attention by jvp, which memory-saving attention mostly refuses: a jvp of a jvp or of the
gradient, along one coordinate after the other, and the forward Laplacian, in which each layer passes on its value, all
n first derivatives and its Laplacian. Beside them stands the trace of the Hessian of the dense form, and folx if it is
installed (jattn[laplacian]).
Li et al. 2024, "A computational framework for neural network-based variational Monte Carlo with forward Laplacian".
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import _cli
import jax
import jax.numpy as jnp
from _laplacians import FOLX, HESSIAN, NESTED, ways
from _wave_function import HEADS, WIDTH, drawn, energy, layers
from jax import random
from rich.console import Console

import jattn

WALKERS, MIXED, MOST = 3, 0.3, 64
NOT_RUN = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""How to compile a program for its memory alone, which is the same to the byte."""


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--electrons", type=int, default=20, help=f"2 to {MOST} (default: 20)")
    _cli.add_seed(parser, "the network and the positions")
    return parser


def kinetic(way: Callable, attention: Callable, p: dict, a: jax.Array, walkers: jax.Array) -> tuple[jax.Array, ...]:
    """(the kinetic energy, Δ log|ψ|) of each walker."""
    laplacian, squared = jax.vmap(partial(way, layers(attention, p, a)))(walkers)
    return -(laplacian + squared) / 2, laplacian


def reference(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jattn.reference.attention(q, k, v)[0]


def off(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(a - b) / jnp.abs(b))


def compute(args: argparse.Namespace) -> dict:
    n = args.electrons
    if not 2 <= n <= MOST:
        raise _cli.BadInput(f"--electrons {n}: must be from 2 to {MOST}. Leave it out for the default.")
    key, a, zero = random.key(args.seed), jnp.asarray(MIXED), jnp.zeros(())
    (p, x), (wider, more) = drawn(key, n, WALKERS), drawn(key, 2 * n, WALKERS)
    rows, found = {}, {}
    for name, way in ways().items():
        f = jax.jit(partial(kinetic, way, reference if name == HESSIAN else jattn.attention))
        made = f.lower(p, a, x).compile()
        twice = f.lower(wider, a, more).compile(NOT_RUN)
        found[name], seconds = made(p, a, x), []
        for _ in range(3):
            start = time.perf_counter()
            trapped, _ = jax.block_until_ready(made(p, zero, x))
            seconds.append((time.perf_counter() - start) / WALKERS)
        rows[name] = {
            "seconds": min(seconds), "free": trapped + (x**2).sum((1, 2)) / 2,
            "bytes": [g.memory_analysis().temp_size_in_bytes for g in (made, twice)],
        }  # fmt: skip
        if name == NESTED:
            swapped, _ = made(p, a, x[:, [1, 0, *range(2, n)]])
    for name, row in rows.items():
        row["error"] = off(found[name][1], found[HESSIAN][1])
    energies, _ = found[NESTED]
    return {"electrons": n, "ways": rows, "kinetic": energies, "swapped": off(swapped, energies),
            "local": energies + (x**2).sum((1, 2)) / 2, "ground": energy(n)}  # fmt: skip


def show(console: Console, r: dict) -> None:
    n, names = r["electrons"], list(r["ways"])
    _cli.title(console, f"1. {n} electrons, {3 * n} coordinates: {HEADS} heads of {WIDTH // HEADS}, float64")
    rows = [[name, "–" if name == HESSIAN else f"{w['error']:.0e}", f"{1000 * w['seconds']:.1f}",
             *(f"{b / 1e6:.2f}" for b in w["bytes"]), f"{w['bytes'][1] / w['bytes'][0]:.1f}"]
            for name, w in r["ways"].items()]  # fmt: skip
    heads = ["Δ log|ψ|", "relative\nerror", "ms a\nwalker", f"MB for\n{n}", f"MB for\n{2 * n}", "times"]
    console.print(_cli.table(heads, rows))
    console.print(
        "The errors are those beside the Hessian, which is that of the same function with jattn.reference's dense "
        f"attention. MB: temporaries as XLA plans them, of {WALKERS} walkers in one vmap, and how they grow with n. "
        f"The determinant is one of {n} × {n} numbers in each way; attention among so few is no larger."
    )
    if FOLX not in names:
        console.print("folx is not installed, so it is left out: pip install 'jattn[laplacian]'.")
    _cli.title(console, "2. What it means")
    free = [abs(e / r["ground"] - 1) for w in r["ways"].values() for e in w["free"]]
    console.print(f"Kinetic energy of {WALKERS} walkers, in ħω: {_cli.vector(r['kinetic'])}")
    console.print(f"With two electrons exchanged: the same to {r['swapped']:.0e}; only the sign of ψ changes.")
    console.print(f"With the potential ½ Σ r², the local energy: {_cli.vector(r['local'])}")
    console.print(
        f"With the network's part of ψ set to 0 it is that of {n} electrons of one spin in a trap, without their "
        f"repulsion, {r['ground']:g} wherever they are: found to within {max(free):.0e} by every way."
    )


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
