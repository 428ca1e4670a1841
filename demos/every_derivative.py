"""Every derivative: attention under a gradient of a jvp and a Hessian-vector product, at 16,384 tokens.

A network u(z, r, t) with one head of attention learns the mean velocity that carries noise to a set of points. Its
loss holds a derivative of the network itself, so that a step of training is a gradient of a jvp (MeanFlow): with
v = noise − data and z = (1 − t) data + t noise,

    loss = mean (u − u_tgt)²,    u_tgt = v − (t − r) (v·∂_z u + ∂_t u)

The paper stops the gradient at u_tgt; the steps here stop it nowhere, which asks for more. At r = t the loss is that
of flow matching; Hessian-vector products (jvp of gradient) feel for its largest curvature. The same with the dense
form of attention is compiled, for the memory that it would take, and not run.
Geng et al. 2025, "Mean Flows for One-step Generative Modeling".
"""

import argparse
import resource
import sys
import time
from functools import partial
from typing import Any

import _cli
import jax
import jax.numpy as jnp
import optax
from _meanflow import FREE, HVP, NUDGE, WORK, W, by_difference, compiled, drawn, flat
from jax import random
from jax.flatten_util import ravel_pytree
from rich.console import Console

import jattn

LONGEST, SMALL = 65536, 61


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--length", type=int, default=16384, help=f"tokens, 64 to {LONGEST} (default: 16384)")
    parser.add_argument("--steps", type=int, default=2, help="of training and of curvature, 1 to 100 (default: 2)")
    _cli.add_seed(parser, "the network, the points and the noise")
    return parser


def dense(*qkv: jax.Array) -> jax.Array:
    return jattn.reference.attention(*qkv)[0]


def temporaries(made: dict[str, jax.stages.Compiled]) -> dict[str, int]:
    return {name: f.memory_analysis().temp_size_in_bytes for name, f in made.items()}


def off(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.linalg.norm(a - b) / jnp.linalg.norm(b)


def resident() -> int:
    """The most bytes that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def exact(key: jax.Array) -> dict[str, jax.Array]:
    """The relative error of each derivative against jattn.reference: SMALL tokens in float64, two tiles."""
    p, *x = drawn(key, SMALL, jnp.float64)
    ours = compiled(partial(jattn.attention, tile=(64, 32)), p, p, *x)
    truth = compiled(dense, p, p, *x)
    return {name: off(flat(ours[name](p, p, *x)), flat(truth[name](p, p, *x))) for name in WORK}


def compute(args: argparse.Namespace) -> dict:
    length, steps, key = args.length, args.steps, random.key(args.seed)
    for name, given, least, most in (("length", length, 64, LONGEST), ("steps", steps, 1, 100)):
        if not least <= given <= most:
            raise _cli.BadInput(f"--{name} {given}: must be from {least} to {most}. Leave it out for the default.")

    errors = exact(key)
    p, *x = drawn(key, length, jnp.float32)
    engine, before = compiled(jattn.attention, p, p, *x), resident()
    losses, curvatures, seconds = [], [], {FREE: [], HVP: []}
    with _cli.progress() as bar:
        task = bar.add_task("", total=2 * steps)

        def timed(name: str, *given: Any) -> tuple:
            bar.update(task, description=name)
            start = time.perf_counter()
            made = jax.block_until_ready(engine[name](*given, *x))
            seconds[name].append(time.perf_counter() - start)
            bar.advance(task)
            return made

        descent = optax.sgd(0.1)
        state = descent.init(p)
        for _ in range(steps):
            loss, g = timed(FREE, p, p)
            updates, state = descent.update(g, state)
            p = optax.apply_updates(p, updates)
            losses.append(loss)
        Hw, tree = ravel_pytree(g)
        for _ in range(steps):  # power iteration, from the last gradient
            w = Hw / jnp.linalg.norm(Hw)
            _, Hw_tree = timed(HVP, p, tree(w))
            Hw = flat(Hw_tree)
            curvatures.append(w @ Hw)

    return {
        "length": length, "errors": errors, "losses": losses, "curvatures": curvatures,
        "witness": off(Hw, by_difference(jattn.attention, p, w, *x)), "seconds": seconds, "resident": resident(),
        "resident_before": before, "bytes": temporaries(engine),
        "dense_bytes": temporaries(compiled(dense, p, p, *x)),
    }  # fmt: skip


def show(console: Console, r: dict) -> None:
    T, mega = r["length"], lambda n: f"{n / 1e6:,.1f}"
    _cli.title(console, f"1. Exact: {SMALL} tokens in float64, two tiles, against jattn.reference")
    console.print(_cli.table(["", "relative error"], [[name, f"{r['errors'][name]:.0e}"] for name in WORK]))

    _cli.title(console, f"2. Memory: {T:,} tokens, one head of {W}, float32")
    rows = [[n, *map(mega, (r["bytes"][n], r["dense_bytes"][n])), f"{r['dense_bytes'][n] / (4 * T * T):.1f}",
             f"{min(r['seconds'][n]):.1f}" if n in r["seconds"] else ""] for n in WORK]  # fmt: skip
    heads = ["temporaries", "jattn,\nMB", "reference,\nMB", "that in\nT × T arrays", "jattn,\nseconds"]
    console.print(_cli.table(heads, rows))
    console.print(
        "Temporaries as XLA's compiler plans them (memory_analysis); the reference is compiled and never run. "
        f"Measured: the process held {mega(r['resident'])} MB at most, {mega(r['resident_before'])} MB before step 1."
    )
    _cli.title(console, "3. What they give")
    console.print(f"MeanFlow loss before each step: {_cli.vector(r['losses'], 4)}")
    console.print(f"wᵀH w of the loss at r = t, by power iteration: {_cli.vector(r['curvatures'], 4)}")
    console.print(
        "The largest curvature is at least the largest of these. A central difference of two gradients gives the last "
        f"H w to within {r['witness']:.0e}; 1e-02 is what float32 and {NUDGE} w to each side may cost."
    )
    _cli.title(console, "4. Who else")
    console.print(
        "jax.nn's dense attention has these derivatives too, at the dense form's kind of memory. What keeps memory "
        "low refuses; tried on a CPU: tokamax 0.0.12 (xla_chunked) no jvp, so no MeanFlow, and no gradient of a "
        "gradient, though the jvp of a gradient runs; PyTorch 2.13, flash kernel of SDPA: no jvp and no second "
        "derivative, so neither of the two; FlexAttention: no backward at all."
    )


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
