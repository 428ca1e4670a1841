"""Gradient descent on bank's attention, run and watched by jattn.flow, and the formulas that it is checked against."""

from collections import OrderedDict
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _bank_toy import BANK, W_K, W_O, W_Q, W_V, C, K, Q, V, X

import jattn
from jattn import flow

MOVERS = {  # what learns: where it starts, and how q_bank and the keys follow from it
    "q": (Q, lambda w: (w, jnp.asarray(K))),
    "q and K": ((Q, K), lambda w: w),
    "W_Q and W_K": ((W_Q, W_K), lambda w: (BANK @ w[0], X @ w[1])),
}


@partial(jax.jit, static_argnames=("mover", "steps"))
def descend(mover: str, target, steps: int, learning_rate) -> flow.Trajectory:
    """Plain gradient descent on −log p_target, with its diagnostics before each step and after the last."""
    start, read = MOVERS[mover]
    objective = flow.cross_entropy(target)
    balance = (lambda w: flow.balance(*w)) if mover == "q and K" else None
    return flow.run(
        flow.loss_of(read, objective),
        start,
        optax.sgd(learning_rate),
        steps,
        observe=flow.watch(read, objective, target, conserved=balance),
        track=balance,
        at=1,
    )


def cos(a, b):
    return a @ b / (jnp.linalg.norm(a) * jnp.linalg.norm(b))


def off(s: flow.Diagnostics, target: int) -> float:
    """The largest difference, at any step, of jax's dL/dq from the sum of the pulls and from −c (k_t − k̄)."""
    lead = s.k[:, target] - np.einsum("ts,tsd->td", s.weights, s.k)
    return max(abs(s.pulls.sum(1) + s.dq).max(), abs(C * lead + s.dq).max())


def story(path: flow.Trajectory, mover: str, target: int, rate: float) -> dict:
    """Some steps of a descent, its extremes, and the numbers of the theory beside those measured."""
    s, steps = path.seen, len(path.at) - 1
    shown = sorted({0, steps, *(t for n in range(5) for t in (10**n, 3 * 10**n) if t < steps)})
    scores = np.einsum("tsd,td->ts", s.k, s.q)
    series = {
        "weights": s.weights, "p": s.p, "loss": s.loss, "lead": s.lead, "cos": s.cos_key, "cos_widest": s.cos_margin,
        "norm": s.norm, "scores": scores, "pulls": s.pulls, "pull": -s.dq, "q": s.q, "k": s.k,
    }  # fmt: skip
    told = {"at": shown, **{name: x[shown] for name, x in series.items()}, "off": off(s, target)}
    extremes = {"max_cos": s.cos_key.argmax(), "min_cos": s.cos_key.argmin(), "min_score": scores[:, target].argmin()}
    for name, t in extremes.items():
        told[name] = {"at": t, "cos": s.cos_key[t], "p": s.p[t], "scores": scores[t]}
    if mover == "q":
        u, cg, tenth = s.direction[0], C * s.widest[0], steps // 10
        told |= {"widest": u, "margin": s.widest[0], "theory": {
            "cos(q,u)": [s.cos_margin[-1], 1.0],
            "cos(q,k_t)": [s.cos_key[-1], cos(u, K[target])],
            "gain in |q|": [s.norm[-1] - s.norm[tenth], np.log(steps / tenth) / cg],
            "η·t·loss": [rate * steps * s.loss[-1], 1 / cg**2],
        }}  # fmt: skip
    else:
        told["mean_key_moved"] = abs(s.k.mean(1) - s.k[0].mean(0)).max()
    if mover == "q and K":
        told["balance"] = [np.trace(s.conserved[-1] - s.conserved[0]), np.trace(s.drift[-1])]
    return told


def bank_loss(q, k, target=0):
    return flow.cross_entropy(target)(flow.attention_steps(q[None], k, k))


def tied() -> dict:
    """What one gradient step on bank's loss does to the queries of the other words, which share W_Q with it."""
    start, read = MOVERS["W_Q and W_K"]
    down = jax.jit(jax.grad(lambda w_q: -bank_loss(*read((w_q, start[1])))))(start[0])
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
    q, k, v, x = map(jnp.asarray, (Q, K, V, np.vstack([BANK, X])))
    p, goal = jattn.explain(q[None], k, v).weights[0], v[0]

    def miss(q, k, v):  # the other loss in use: bank's output should be v_river
        return flow.squared_error(goal)(flow.attention_steps(q[None], k, v))

    g = p @ v - goal  # dL/do
    a = -v @ g  # −dL/dp_j
    gained = p * (a - p @ a)  # −dL/ds_j
    dq, dk, dv = jax.grad(miss, (0, 1, 2))(q, k, v)
    k_p, v_c = p[:, None] * (k - (p @ k)[None]), v - (p @ v)[None]

    def sentence(w):  # four words, all attending to all, with every matrix
        return 0.5 * jnp.sum((jattn.attention(x @ w[0], x @ w[1], x @ w[2]) @ w[3] - goal[None]) ** 2)

    w = tuple(map(jnp.asarray, (W_Q, W_K, W_V, W_O)))
    dw = jax.grad(sentence)(w)
    q4, k4, v4 = (x @ m for m in w[:3])
    p4 = jattn.explain(q4, k4, v4).weights
    dy = p4 @ v4 @ w[3] - goal[None]
    dp4 = dy @ w[3].T @ v4.T
    ds4 = p4 * (dp4 - (p4 * dp4).sum(1, keepdims=True))

    return {
        ("dp/ds", "diag(p) − p pᵀ"): (jax.jacobian(jattn.softmax)(C * k @ q), jnp.diag(p) - jnp.outer(p, p)),
        ("L = −log p_r:     −dL/dq", "c (k_r − k̄)"): (-jax.grad(bank_loss)(q, k), C * (k[0] - p @ k)),
        ("                  d²L/dq²", "c² Cov_p(k)"): (jax.hessian(bank_loss)(q, k), C**2 * k_p.T @ k),
        ("L = ½|out − t|²:  −dL/dq", "c Cov_p(k, v) (t − out)"): (-dq, -C * k_p.T @ v_c @ g),
        ("                  −dL/dk_j", "c p_j (a_j − ā) q"): (-dk, C * jnp.outer(gained, q)),
        ("                  Σ_j dL/dk_j", "0"): (dk.sum(0), jnp.zeros(2)),
        ("                  dL/dv_j", "p_j dL/dout"): (dv, jnp.outer(p, g)),
        ("whole sentence:   dL/dW_Q", "Xᵀ dL/dQ"): (dw[0], x.T @ (C * ds4 @ k4)),
        ("                  dL/dW_K", "Xᵀ dL/dK"): (dw[1], x.T @ (C * ds4.T @ q4)),
        ("                  dL/dW_V", "Xᵀ dL/dV"): (dw[2], x.T @ (p4.T @ dy @ w[3].T)),
        ("                  dL/dW_O", "outᵀ dL/dY"): (dw[3], (p4 @ v4).T @ dy),
        ("                  W_Qᵀ dL/dW_Q", "(W_Kᵀ dL/dW_K)ᵀ"): (w[0].T @ dw[0], (w[1].T @ dw[1]).T),
    }  # fmt: skip
