"""Scenarios of gradient_flow.py in which the query comes to rest: inside the hull, at 40/20/40, at a right output."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _bank_toy import C, K, Q
from _flow_common import frozen, lines, watched

from jattn import flow

INTERIOR = np.array([0.4, 0.2, 0.4])
INSIDE = np.array([[0.2, 0.1], [1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])  # the target lies between the other three
CROSSED = np.array([[0.0, 0.3], [1.0, 0.0], [-1.0, 0.0]]), np.array([[1.0, 0.0], [1.2, 0.0], [-8.0, 0.0]])


def newton(keys, mean, steps=60):
    """The weights of maximal entropy among those with a given mean key, by NumPy's Newton on their dual."""
    x, d = np.zeros(keys.shape[1]), keys - mean
    for _ in range(steps):
        p = np.exp(d @ x)
        p /= p.sum()
        x = x - np.linalg.solve((p[:, None] * d).T @ d - np.outer(p @ d, p @ d), p @ d)
    return p, x / C


def inside():
    times = np.concatenate([[0.0], np.logspace(-1, 3, 41)])
    path, s, loss = frozen(INSIDE, 0, times=times)
    p, q = newton(INSIDE, INSIDE[0])
    starts = jax.random.normal(jax.random.key(0), (1000, 2)) * 3
    many = jax.jit(jax.vmap(lambda q: flow.run(loss, q, optax.sgd(2.0), 2000).loss[-1]))(starts)
    return {
        "rows": [
            ("p of the target", s.p[-1], p[0]),
            ("q, first entry", s.q[-1, 0], q[0]),
            ("q, second entry", s.q[-1, 1], q[1]),
            ("|k̄ − k_target|", np.linalg.norm(s.weights[-1] @ INSIDE - INSIDE[0]), 0.0),
            ("largest p over 1,000 starts, run as one call", float(jnp.exp(-many.min())), p[0]),
            ("γ, as max_margin finds it", s.widest[0], 0.0),
        ],
        "says": f"The target lies in the hull of the other keys. q comes to rest at a finite point, where the mean key "
        f"is k_target and the weights have the largest entropy that allows it. Attention to it cannot exceed "
        f"{p[0]:.4f}.",
        "report": flow.check(path),
        "panels": [
            *watched(times, s, 0)[:3],
            lines(
                times[1:], ylog=True, **{"|k̄ − k_target|": np.linalg.norm(s.weights @ INSIDE - INSIDE[0], axis=1)[1:]}
            ),
        ],
    }


def interior(rate=12.0, steps=60_000):
    read, objective = lambda q: (q, jnp.asarray(K)), flow.cross_entropy(INTERIOR)
    path = flow.run(
        flow.loss_of(read, objective),
        jnp.asarray(Q),
        optax.sgd(rate),
        steps,
        observe=flow.watch(read, objective, 0),
        at=flow.log_steps(steps),
    )
    s, t = jax.tree.map(np.asarray, path.seen), rate * np.asarray(path.at)
    q = np.linalg.solve(C * (K[:2] - K[2]), np.log(INTERIOR[:2] / INTERIOR[2]))
    words = ("river", "money", "the")
    return {
        "rows": [
            *((f"p of {w}", s.weights[-1, i], INTERIOR[i]) for i, w in enumerate(words)),
            ("q, first entry", s.q[-1, 0], q[0]),
            ("q, second entry", s.q[-1, 1], q[1]),
            ("loss", s.loss[-1], -INTERIOR @ np.log(INTERIOR)),
        ],
        "says": f"A target of 40/20/40 is reached, at a finite query of length {np.linalg.norm(q):.2f} that solves "
        "c q·(k_i − k_j) = log π_i/π_j. Nothing grows without end here, and no key is the one to point to.",
        "report": flow.check(path),
        "panels": [
            lines(t, **dict(zip(words, s.weights.T, strict=True))),
            lines(t, **{"|q|": s.norm}),
            lines(t, ylog=True, **{"loss − entropy of π": np.maximum(s.loss + INTERIOR @ np.log(INTERIOR), 1e-17)}),
        ],
    }


def output_loss():
    k, v = map(jnp.asarray, CROSSED)
    objective, read = flow.squared_error(v[0]), lambda q: (q, k, v)
    watch, loss = flow.watch(read, objective, 0), flow.loss_of(read, objective)
    times = np.concatenate([[0.0], np.logspace(-2, 3, 61)])
    path = flow.integrate(loss, jnp.zeros(2), times, observe=watch, tolerance=1e-9)
    s = jax.tree.map(np.asarray, path.seen)
    i = int(np.gradient(s.p, times).argmin())
    step = flow.integrate(loss, s.q[i], [0.0, 1e-5], tolerance=1e-12).params
    p_dot = (float(jax.jit(flow.attention_steps)(step[None], k, v).weights[0, 0]) - s.p[i]) / 1e-5
    mean, out = s.weights[i] @ CROSSED[0], s.weights[i] @ CROSSED[1]
    pull = C * (s.weights[i][:, None] * (CROSSED[0] - mean)).T @ (CROSSED[1] - out) @ (CROSSED[1][0] - out)
    return {
        "rows": [
            ("loss at the end", s.loss[-1], 0.0),
            ("dp_r/dt at its steepest fall", p_dot, C * s.p[i] * (CROSSED[0][0] - mean) @ pull),
            ("output at the end, first entry", s.weights[-1] @ CROSSED[1][:, 0], CROSSED[1][0, 0]),
        ],
        "says": f"The output should be v_r, and comes to be v_r exactly: loss {s.loss[-1]:.0e}. But p_r falls from "
        f"{s.p[0]:.3f} to {s.p[-1]:.3f}: other values, mixed, make the same output. A loss on the output says nothing "
        "about whom to attend; −dL/dq = c Cov_p(k, v)(t − out).",
        "report": flow.check(path),
        "p": s.p,
        "panels": [
            lines(times, **{"p_r": s.p, "p_a": s.weights[:, 1], "p_b": s.weights[:, 2]}),
            lines(times[1:], ylog=True, loss=s.loss[1:] + 1e-17),
            lines(times, **{"cos(q, k_r)": s.cos_key, "lead": s.lead}),
        ],
    }
