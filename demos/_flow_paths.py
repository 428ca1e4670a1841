"""Scenarios of gradient_flow.py in which one query learns whom to attend: where the slogan holds, and where it fails.

Each returns its numbers: `rows` of (what, measured, predicted), `says`, and `panels` for the picture.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _bank_toy import K, Q

from jattn import flow

C = 1 / np.sqrt(2.0)
TIMES = np.concatenate([[0.0], np.logspace(-1, 18, 77)])  # of the continuous flow, in learning rate × steps
INTERIOR = np.array([0.4, 0.2, 0.4])
SHADOWED = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 0.5]])  # the target, a longer key along it, another one
INSIDE = np.array([[0.2, 0.1], [1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])  # the target lies between the other three
CROSSED = np.array([[0.0, 0.3], [1.0, 0.0], [-1.0, 0.0]]), np.array([[1.0, 0.0], [1.2, 0.0], [-8.0, 0.0]])


def both(w):
    return flow.balance(*w)


def lines(x, ylog=False, xlabel="η t, by steps or by the flow", **named):
    """A panel of curves over logarithmic time."""
    return {"x": np.asarray(x), "lines": {n: np.asarray(y) for n, y in named.items()}, "ylog": ylog, "xlabel": xlabel}


def watched(at, s, cg, rate=1.0):
    """The numbers that belong side by side, and the limits beside them."""
    t = rate * np.asarray(at, float)
    degrees = {"to k_target": s.cos_key} | ({"to the max-margin": s.cos_margin} if cg else {})
    turned = {name: np.degrees(np.arccos(np.clip(cos, -1, 1))) for name, cos in degrees.items()}
    limit = {"η t L": t * s.loss, "its limit 1/(cγ)²": np.full(len(t), 1 / cg**2)} if cg else {"loss": s.loss}
    return [
        lines(t, **{"p of the target": s.p}),
        lines(t, **turned) | {"title": "angle of q, degrees"},
        lines(t, **{"|q|": s.norm, "lead q·(k_r − k̄)": s.lead, "q's margin": s.margin}),
        lines(t, ylog=bool(cg), **limit),
    ]


def frozen(k, target, q=Q, objective=None, times=TIMES):
    """The flow of q among frozen keys: its trajectory, its diagnostics, and the report."""
    k, objective = jnp.asarray(k), flow.cross_entropy(target) if objective is None else objective
    read = lambda q: (q, k)  # noqa: E731
    watch, loss = flow.watch(read, objective, target), flow.loss_of(read, objective)
    path = flow.integrate(loss, jnp.asarray(q), times, observe=watch, tolerance=1e-9)
    return path, jax.tree.map(np.asarray, path.seen), loss


def ends(s, k, target, path):
    """The limits for frozen keys and a target that can be separated."""
    cg, decade = C * s.widest[0], len(TIMES) - 1 - int(np.searchsorted(TIMES, TIMES[-1] / 10))
    u = s.direction[0]
    return [
        ("p of the target", s.p[-1], 1.0),
        ("cos(q, max-margin)", s.cos_margin[-1], 1.0),
        ("cos(q, k_target)", s.cos_key[-1], u @ k[target] / np.linalg.norm(k[target])),
        ("η t L", TIMES[-1] * s.loss[-1], 1 / cg**2),
        ("|q| gained in the last decade", s.norm[-1] - s.norm[-1 - decade], np.log(10) / cg),
    ]


def cosines(start, loss, key, rate=1.0, steps=300):
    """cos(q, key) before and after every step of plain gradient descent."""
    q = np.asarray(flow.run(loss, jnp.asarray(start), optax.sgd(rate), steps, at=1).seen)
    return q @ key / (np.linalg.norm(q, axis=1) * np.linalg.norm(key))


def river():
    path, s, learn = frozen(K, 0)
    cos = cosines(Q, learn, K[0])
    return {
        "rows": [*ends(s, K, 0, path), ("steps in which cos(q, k_river) rose", (np.diff(cos) > 0).sum(), 0)],
        "says": f"q learns to attend river by turning away from it: cos(q, k_river) goes from {s.cos_key[0]:.4f} to "
        f"{s.cos_key[-1]:.4f}, and at no step does it rise. Slogan: toward k_river. Theory: toward the widest margin.",
        "report": flow.check(path, rate=1.0),
        "panels": watched(TIMES, s, C * s.widest[0]),
        "cos": s.cos_key,
    }


def money_frozen():
    path, s, learn = frozen(K, 1)
    cos = cosines(Q, learn, K[1])
    low, high = int(cos.argmin()), int(cos.argmax())
    return {
        "rows": [
            *ends(s, K, 1, path),
            ("first pull · k_money", -s.dq[0] @ K[1], C * (K[1] - s.weights[0] @ K) @ K[1]),
            ("cos(q, k_money) before", cos[0], 2 / np.sqrt(5)),
        ],
        "says": f"The first pull lowers q·k_money. By steps, cos(q, k_money) rises from {cos[0]:.3f} to "
        f"{cos[high]:.3f} in step {high}, as q sweeps across, falls to {cos[low]:.3f} in step "
        f"{low} and then goes to {s.cos_key[-1]:.3f}: never back to where it was, while p_money rises to 1.",
        "report": flow.check(path, rate=1.0),
        "panels": watched(TIMES, s, C * s.widest[0]),
        "extremes": [high, cos[high], low, cos[low]],
    }


def money_free(rate=0.5, steps=3000):
    objective, read = flow.cross_entropy(1), lambda w: w
    watch, start = flow.watch(read, objective, 1, conserved=both), (jnp.asarray(Q), jnp.asarray(K))
    path = flow.run(
        flow.loss_of(read, objective),
        start,
        optax.sgd(rate),
        steps,
        observe=watch,
        track=both,
        at=flow.log_steps(steps, per_decade=12),
    )
    s, at = jax.tree.map(np.asarray, path.seen), np.asarray(path.at)
    return {
        "rows": [
            ("p of the target", s.p[-1], 1.0),
            ("cos(q, k_money)", s.cos_key[-1], 1.0),
            ("mean key moved", abs(s.k.mean(1) - s.k[0].mean(0)).max(), 0.0),
            ("|q|² − |K|² changed by", np.trace(s.conserved[-1] - s.conserved[0]), np.trace(s.drift[-1])),
        ],
        "says": "Let the keys learn as well and the slogan holds: k_money comes to meet q. The mean key stands still, "
        "because the pulls on the keys sum to zero.",
        "report": flow.check(path, keys="free"),
        "cos": s.cos_key,
        "panels": [
            lines(rate * at, **{"p of money": s.p, "cos(q, k_money)": s.cos_key}),
            lines(rate * at, **{"|q|": s.norm, "|k_money|": np.linalg.norm(s.k[:, 1], axis=1)}),
            lines(
                rate * at,
                **{"|q|² − |K|², change": np.trace((s.conserved - s.conserved[0]).T), "predicted": np.trace(s.drift.T)},
            ),
        ],
    }


def shadowed():
    path, s, _ = frozen(SHADOWED, 0)
    return {
        "rows": ends(s, SHADOWED, 0, path),
        "says": f"A longer key lies along the target's, so no q along k_target can prefer it. Attention comes all the "
        f"same, p = {s.p[-1]:.4f}, with q turned against its target: cos(q, k_target) = {s.cos_key[-1]:.3f}.",
        "report": flow.check(path, rate=1.0),
        "panels": watched(TIMES, s, C * s.widest[0]),
        "cos": s.cos_key,
    }


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
    p_dot = (float(flow.attend(step[None], k, v).weights[0, 0]) - s.p[i]) / 1e-5
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
