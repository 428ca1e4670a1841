"""Gradient descent on bank's attention: what to watch on the way, and the formulas of the gradient."""

from collections import OrderedDict
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _bank_toy import BANK, W_K, W_O, W_Q, W_V, C, K, Q, V, X

import jattn

MOVERS = {  # what learns: where it starts, and how q_bank and the keys follow from it
    "q": (Q, lambda w: (w, jnp.asarray(K))),
    "q and K": ((Q, K), lambda w: w),
    "W_Q and W_K": ((W_Q, W_K), lambda w: (BANK @ w[0], X @ w[1])),
}


def loss(q, k, target):
    """The cross-entropy of bank's attention: −log p_target."""
    return -jattn.log_softmax(jattn.explain(q[None], k, k).scaled[0])[target]


@partial(jax.jit, static_argnames=("mover", "steps"))
def descend(mover: str, target, steps: int, learning_rate) -> dict:
    """Plain gradient descent on −log p_target; what there is to see before each step and after the last."""
    start, bank_and_keys = MOVERS[mover]
    start = jax.tree.map(jnp.asarray, start)
    sgd = optax.sgd(learning_rate)

    def step(carry, _):
        w, state = carry
        updates, state = sgd.update(jax.grad(lambda w: loss(*bank_and_keys(w), target))(w), state)
        return (optax.apply_updates(w, updates), state), bank_and_keys(w)

    _, (q, k) = jax.lax.scan(step, (start, sgd.init(start)), length=steps + 1)
    return jax.vmap(look, (0, 0, None))(q, k, target)


def look(q, k, target) -> dict:
    """The numbers to watch at one step of a descent."""
    p = jattn.explain(q[None], k, k).weights[0]
    a = jnp.zeros(3).at[target].set(1 / p[target])  # −dL/dp_j: what a little more weight on j would gain
    pulls = C * (p * (a - p @ a))[:, None] * k
    dq, dk = jax.grad(loss, (0, 1))(q, k, target)
    lead, (u, margin) = k[target] - p @ k, widest(k, target)
    off = jnp.maximum(abs(pulls.sum(0) + dq).max(), abs(C * lead + dq).max())
    return {
        "q": q, "k": k, "weights": p, "loss": loss(q, k, target), "p": p[target], "lead": q @ lead,
        "cos": cos(q, k[target]), "cos_widest": cos(q, u), "norm": jnp.linalg.norm(q), "scores": k @ q,
        "pulls": pulls, "pull": -dq, "off": off, "widest": u, "margin": margin,
        "balance": q @ q - jnp.sum(k**2), "unbalance": dq @ dq - jnp.sum(dk**2),
    }  # fmt: skip


def cos(a, b):
    return a @ b / (jnp.linalg.norm(a) * jnp.linalg.norm(b))


def widest(k, target):
    """The direction in which the target's score outruns every rival's: max over |u| = 1 of min over j of u·(k_t − k_j).

    Returns u and that margin γ. With two rivals γu is the point of the segment between the two differences
    that lies nearest to 0 (the support vector machine's dual, solved by hand).
    """
    ahead = k[target] - jnp.roll(k, -target, axis=0)[1]
    along = k[target] - jnp.roll(k, -target, axis=0)[2] - ahead
    nearest = ahead + jnp.clip(-(ahead @ along) / (along @ along), 0.0, 1.0) * along
    return nearest / jnp.linalg.norm(nearest), jnp.linalg.norm(nearest)


def story(path: dict, mover: str, target: int, rate: float) -> dict:
    """What is told of a descent: some of its steps, its extremes, and theory's numbers beside the measured."""
    steps = len(path["p"]) - 1
    shown = sorted({0, steps, *(t for n in range(5) for t in (10**n, 3 * 10**n) if t < steps)})
    names = ("weights", "p", "loss", "lead", "cos", "cos_widest", "norm", "scores", "pulls", "pull", "q", "k")
    told = {"at": shown, **{name: path[name][shown] for name in names}, "off": path["off"].max()}
    extremes = {"max_cos": path["cos"].argmax(), "min_cos": path["cos"].argmin()}
    for name, t in (extremes | {"min_score": path["scores"][:, target].argmin()}).items():
        told[name] = {"at": t, **{what: path[what][t] for what in ("cos", "p", "scores")}}
    if mover == "q":
        u, cg, tenth = path["widest"][0], C * path["margin"][0], steps // 10
        told |= {"widest": u, "margin": path["margin"][0], "theory": {
            "cos(q,u)": [path["cos_widest"][-1], 1.0],
            "cos(q,k_t)": [path["cos"][-1], cos(u, K[target])],
            "gain in |q|": [path["norm"][-1] - path["norm"][tenth], np.log(steps / tenth) / cg],
            "η·t·loss": [rate * steps * path["loss"][-1], 1 / cg**2],
        }}  # fmt: skip
    else:
        told["mean_key_moved"] = np.abs(path["k"].mean(1) - path["k"][0].mean(0)).max()
    if mover == "q and K":
        told["balance"] = [path["balance"][-1] - path["balance"][0], rate**2 * path["unbalance"][:-1].sum()]
    return told


def tied() -> dict:
    """What one gradient step on bank's loss does to the queries of the other words, which share W_Q with it."""
    start, bank_and_keys = MOVERS["W_Q and W_K"]
    down = jax.grad(lambda w_q: -loss(*bank_and_keys((w_q, start[1])), 0))(start[0])
    return {
        "overlap": X @ BANK,
        "moved": X @ down,
        "theory": jnp.outer(X @ BANK, C * (K[0] - jattn.explain(Q[None], K, V).weights[0] @ K)),
    }


def formulas() -> list[tuple[str, str, jax.Array]]:
    """Each closed form of the gradient, and the largest difference from what jax's own differentiation gives."""
    largest = jax.jit(lambda: OrderedDict((n, abs(a - b).max()) for n, (a, b) in closed_forms().items()))
    return [(what, formula, off) for (what, formula), off in largest().items()]


def closed_forms() -> dict[tuple[str, str], tuple[jax.Array, jax.Array]]:
    """(What, formula) → (what differentiation gives, what the formula gives)."""
    q, k, v, x, target = *map(jnp.asarray, (Q, K, V, np.vstack([BANK, X]))), 0
    p, goal = jattn.explain(q[None], k, v).weights[0], v[target]

    def miss(q, k, v):  # the other loss in use: bank's output should be v_river
        return 0.5 * jnp.sum((jattn.attention(q[None], k, v)[0] - goal) ** 2)

    g = p @ v - goal  # dL/do
    a = v @ g  # dL/dp_j
    ds = p * (a - p @ a)
    dq, dk, dv = jax.grad(miss, (0, 1, 2))(q, k, v)
    k_p, v_c = p[:, None] * (k - (p @ k)[None]), v - (p @ v)[None]

    def sentence(w):  # four words, all attending to all, with every matrix
        return 0.5 * jnp.sum((jattn.attention(x @ w[0], x @ w[1], x @ w[2]) @ w[3] - goal[None]) ** 2)

    w = tuple(map(jnp.asarray, (W_Q, W_K, W_V, W_O)))
    dw = jax.grad(sentence)(w)
    q4, k4, v4 = (x @ m for m in w[:3])
    p4 = jattn.explain(q4, k4, v4).weights
    dy = p4 @ v4 @ w[3] - goal[None]
    da = dy @ w[3].T @ v4.T
    ds4 = p4 * (da - (p4 * da).sum(1, keepdims=True))

    return {
        ("dp/ds", "diag(p) − p pᵀ"): (jax.jacobian(jattn.softmax)(C * k @ q), jnp.diag(p) - jnp.outer(p, p)),
        ("L = −log p_r:     −dL/dq", "c (k_r − k̄)"): (-jax.grad(loss)(q, k, target), C * (k[target] - p @ k)),
        ("                  d²L/dq²", "c² Cov_p(k)"): (jax.hessian(loss)(q, k, target), C**2 * k_p.T @ k),
        ("L = ½|out − t|²:  −dL/dq", "c Cov_p(k, v) (t − out)"): (-dq, -C * k_p.T @ v_c @ g),
        ("                  dL/dk_j", "c p_j (a_j − ā) q"): (dk, C * jnp.outer(ds, q)),
        ("                  Σ_j dL/dk_j", "0"): (dk.sum(0), jnp.zeros(2)),
        ("                  dL/dv_j", "p_j dL/dout"): (dv, jnp.outer(p, g)),
        ("whole sentence:   dL/dW_Q", "Xᵀ dL/dQ"): (dw[0], x.T @ (C * ds4 @ k4)),
        ("                  dL/dW_K", "Xᵀ dL/dK"): (dw[1], x.T @ (C * ds4.T @ q4)),
        ("                  dL/dW_V", "Xᵀ dL/dV"): (dw[2], x.T @ (p4.T @ dy @ w[3].T)),
        ("                  dL/dW_O", "outᵀ dL/dY"): (dw[3], (p4 @ v4).T @ dy),
        ("                  W_Qᵀ dL/dW_Q", "(W_Kᵀ dL/dW_K)ᵀ"): (w[0].T @ dw[0], (w[1].T @ dw[1]).T),
    }  # fmt: skip
