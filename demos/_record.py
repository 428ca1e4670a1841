"""A descent of one query among its keys, recorded: what the pictures take, for any vectors, loss and optimiser."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _cli import BadInput

import jattn

OPTIMISERS = {
    "gradient descent": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "sign descent": optax.sign_sgd if hasattr(optax, "sign_sgd") else optax.signSGD,
    "Adam": optax.adam,
}
MOVES = ("q", "q and K")


def objective(q, k, target, values, goal):
    """−log p_target; or, where there are values and a goal, ½|out − goal|²."""
    if values is None:
        return -jattn.log_softmax(jattn.explain(q[None], k, k).scaled[0])[target]
    return 0.5 * jnp.sum((jattn.attention(q[None], k, values)[0] - goal) ** 2)


def record(q, k, target, *, labels=None, values=None, goal=None, optimiser="gradient descent", moves="q", rate=1.0,
           steps=10_000, frames=120) -> dict:  # fmt: skip
    """The run as the pictures take it: q [F, D], k [F, S, D], weights [F, S], steps [F], and the series to watch."""
    at = np.unique(np.round(np.geomspace(1, steps + 1, frames) - 1).astype(int))
    q, k = jnp.asarray(q), jnp.asarray(k)
    with jax.numpy_dtype_promotion("standard"):  # Adam of optax raises a float to an integer power
        path = _descend(q, k, target, values, goal, jnp.asarray(rate, q.dtype), optimiser, moves, steps)
    path = jax.tree.map(np.asarray, path)
    if not all((abs(x) < 1e100).all() for x in path.values()):
        raise BadInput(f"a learning rate of {rate:g}: the descent left what float64 holds. Use a smaller one.")
    seen = jax.tree.map(lambda x: x[at], path)
    u, margin = widest(np.asarray(k, np.float64), target)
    norm = np.linalg.norm(seen["q"], axis=1)
    cosines = {f"k_{labels[target] if labels else target}": _cos(seen["q"], seen["k"][:, target])}
    if moves == "q" and margin > 0:
        cosines["max margin"] = seen["q"] @ u / np.maximum(norm, 1e-300)
    ahead = seen["k"][:, target, None] - np.delete(seen["k"], target, axis=1)
    made = {name: seen[name] for name in ("q", "k", "weights", "loss")} | {"steps": at, "cosines": cosines}
    made |= {"p": seen["weights"][:, target], "norm": norm}
    lead = np.einsum("fd,fsd->fs", seen["q"], ahead).min(1)
    made["margin"] = lead / np.maximum(norm, 1e-300)  # by how much q's direction lets the target's score lead
    return made | {"widest": u, "widest_margin": margin, "conserved": _conserved(path, at, rate, optimiser, moves)}


@partial(jax.jit, static_argnames=("optimiser", "moves", "steps"))
def _descend(q, k, target, values, goal, rate, optimiser, moves, steps):
    """Every step of the descent, and what it adds to |q|² − |K|²."""
    opt = OPTIMISERS[optimiser](rate)
    loss = jax.value_and_grad(lambda w: objective(*w, target, values, goal))

    def step(carry, _):
        w, state = carry
        value, (dq, dk) = loss(w)
        dk = dk if moves == "q and K" else jnp.zeros_like(dk)
        seen = {"q": w[0], "k": w[1], "loss": value, "weights": jattn.explain(w[0][None], w[1], w[1]).weights[0]}
        seen |= {"dq2": dq @ dq, "dk2": jnp.sum(dk**2), "dk": dk.sum(0)}
        updates, state = opt.update((dq, dk), state, w)
        return (optax.apply_updates(w, updates), state), seen

    return jax.lax.scan(step, ((q, k), opt.init((q, k))), length=steps + 1)[1]


def _conserved(path: dict, at: np.ndarray, rate: float, optimiser: str, moves: str) -> dict:
    """What theory says does not change, or by how much: the mean key, and |q|² − |K|² under plain descent."""
    mean = np.linalg.norm(path["k"].mean(1) - path["k"][0].mean(0), axis=1)
    told = {"mean key, moved by": (np.zeros(len(at)), mean[at])}
    if optimiser == "gradient descent" and moves == "q and K":
        balance = (path["q"] ** 2).sum(1) - (path["k"] ** 2).sum((1, 2))
        drift = rate**2 * np.concatenate([[0.0], np.cumsum(path["dq2"] - path["dk2"])[:-1]])
        told["|q|² − |K|²"] = (balance[0] + drift[at], balance[at])
    return told


def _cos(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.maximum(np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1), 1e-300)


def widest(k: np.ndarray, target: int, rounds: int = 20_000) -> tuple[np.ndarray, float]:
    """The max-margin direction, max over |u| = 1 of min over j of u·(k_t − k_j), and that margin.

    The point of the hull of the differences that lies nearest to 0 (the support vector machine's dual), by
    Frank-Wolfe with away steps. Where 0 lies in the hull the margin is 0, and no direction leads.
    """
    z = k[target] - np.delete(k, target, axis=0)
    share = np.eye(len(z))[np.argmin((z**2).sum(1))]
    for _ in range(rounds):
        x = share @ z
        to, off = np.argmin(z @ x), np.argmax(np.where(share > 0, z @ x, -np.inf))
        if x @ x < 1e-14 or x @ x - z[to] @ x <= 1e-14 * x @ x:
            break
        toward = x @ x - z[to] @ x >= z[off] @ x - x @ x or share[off] == 1
        way = np.eye(len(z))[to] - share if toward else share - np.eye(len(z))[off]
        most = 1.0 if toward else share[off] / (1 - share[off])
        slope = way @ z
        share = share + min(most, -(x @ slope) / max(slope @ slope, 1e-300)) * way
        share = np.maximum(share, 0) / np.maximum(share, 0).sum()
    x = share @ z
    margin = float(np.linalg.norm(x))
    return (x / margin, margin) if margin > 1e-6 else (np.zeros_like(x), 0.0)
