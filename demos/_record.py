"""A descent of one query among its keys, run and watched by jattn.flow: what the pictures take, for any vectors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _cli import BadInput, numbers

from jattn import flow

OPTIMISERS = {  # by learning rate
    "gradient descent": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "sign descent": optax.sign_sgd if hasattr(optax, "sign_sgd") else optax.signSGD,
    "Adam": optax.adam,
}
MOVES = ("q", "q and K")


def loss(q, k, target, values=None, goal=None):
    """−log p_target; or, where there are values and a goal, ½|out − goal|²."""
    objective = flow.cross_entropy(target) if goal is None else flow.squared_error(goal)
    return objective(flow.attention_steps(q[None], k, k if values is None else values))


def record(q, k, target, *, labels=None, values=None, goal=None, optimiser="gradient descent", moves="q", rate=1.0,
           steps=10_000, frames=120) -> dict:  # fmt: skip
    """The run as the pictures take it: q [F, D], k [F, S, D], weights [F, S], steps [F], and the series to watch."""
    at = np.unique(np.round(np.geomspace(1, steps + 1, frames) - 1).astype(int))
    q, k = jnp.asarray(q), jnp.asarray(k)
    path = _descend(q, k, target, values, goal, jnp.asarray(rate, q.dtype), optimiser, moves, tuple(at.tolist()))
    s = jax.tree.map(np.asarray, path.seen)
    if path.broke >= 0 or not all((abs(x) < 1e100).all() for x in jax.tree.leaves(s)):
        raise BadInput(f"a learning rate of {rate:g}: the descent left what float64 holds. Use a smaller one.")
    cosines = {f"k_{labels[target] if labels else target}": s.cos_key}
    if moves == "q" and s.widest[0] > 0:
        cosines["max margin"] = s.cos_margin
    return {
        "q": s.q, "k": s.k, "weights": s.weights, "loss": s.loss, "steps": at, "cosines": cosines, "p": s.p,
        "norm": s.norm, "margin": s.margin, "widest": s.direction[0], "widest_margin": float(s.widest[0]),
        "conserved": _conserved(s),
    }  # fmt: skip


@partial(jax.jit, static_argnames=("optimiser", "moves", "at"))
def _descend(q, k, target, values, goal, rate, optimiser, moves, at):
    """The descent, watched at the steps `at`, and what plain descent on q and K adds to |q|² − |K|²."""
    objective = flow.cross_entropy(target) if goal is None else flow.squared_error(goal)
    v = () if values is None else (jnp.asarray(values),)
    start, read = (q, lambda q: (q, k, *v)) if moves == "q" else ((q, k), lambda w: (*w, *v))
    plain = optimiser == "gradient descent" and moves == "q and K"
    balance = (lambda w: jnp.trace(flow.balance(*w))) if plain else None
    watch = flow.watch(read, objective, target, conserved=balance)
    rule = OPTIMISERS[optimiser](rate)
    return flow.run(flow.loss_of(read, objective), start, rule, at[-1], observe=watch, track=balance, at=at)


def _conserved(s: flow.Diagnostics) -> dict:
    """What theory says of a quantity at each frame, and what was measured: the mean key, and |q|² − |K|²."""
    moved = np.linalg.norm(s.k.mean(1) - s.k[0].mean(0), axis=1)
    told = {"mean key, moved by": (np.zeros(len(moved)), moved)}
    if s.conserved is not None:
        told["|q|² − |K|²"] = (s.conserved[0] + s.drift, s.conserved)
    return told


def turned(cos: list[float], p: list[float], target: str, moves: str) -> str:
    """Whether q turned toward the target's key as it learned to attend it, in one sentence."""
    (c, d), (a, b) = ([numbers(x)[i] for i in (0, -1)] for x in (cos, p))
    went = f"cos(q, k_{target}) went from {c} to {d} while p went from {a} to {b}"
    if a == b or c == d or p[-1] < p[0]:
        return f"{went}."
    went = f"cos(q, k_{target}) went from {c} to {d} while p rose from {a} to {b}"
    away = cos[-1] < cos[0]
    if moves == "q":
        return f"{went}: q learned to attend {target} by turning {'away from' if away else 'toward'} k_{target}."
    return f"{went}: q and k_{target} turned {'apart' if away else 'toward each other'}."
