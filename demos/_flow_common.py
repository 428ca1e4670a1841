"""What the scenarios of gradient_flow.py share: a flow among frozen keys, its limits, and the panels of its picture.

A scenario returns its numbers: `rows` of (what, measured, predicted), `says`, and `panels` for the picture.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _bank_toy import C, Q

from jattn import flow

TIMES = np.concatenate([[0.0], np.logspace(-1, 18, 77)])  # of the continuous flow, in learning rate × steps


def both(w):
    return flow.balance(*w)


def lines(x, ylog=False, xlabel="η t, by steps or by the flow", **named):
    """A panel of curves over logarithmic time."""
    return {"x": np.asarray(x), "lines": {n: np.asarray(y) for n, y in named.items()}, "ylog": ylog, "xlabel": xlabel}


def watched(t, s, cg):
    """The panels of a flow over its times t: its diagnostics, and the limit of η t L where there is one (cγ > 0)."""
    degrees = {"to k_target": s.cos_key} | ({"to the max-margin": s.cos_margin} if cg else {})
    turned = {name: np.degrees(np.arccos(np.clip(cos, -1, 1))) for name, cos in degrees.items()}
    limit = {"η t L": t * s.loss, "its limit 1/(cγ)²": np.full(len(t), 1 / cg**2)} if cg else {"loss": s.loss}
    return [
        lines(t, **{"p of the target": s.p}),
        lines(t, **turned) | {"title": "angle of q, degrees"},
        lines(t, **{"|q|": s.norm, "lead q·(k_r − k̄)": s.lead, "q's margin": s.margin}),
        lines(t, ylog=bool(cg), **limit),
    ]


def frozen(k, target, times=TIMES):
    """The flow of q_bank among frozen keys on −log p_target: its trajectory, its diagnostics, and its loss."""
    k, objective = jnp.asarray(k), flow.cross_entropy(target)
    read = lambda q: (q, k)  # noqa: E731
    watch, loss = flow.watch(read, objective, target), flow.loss_of(read, objective)
    path = flow.integrate(loss, jnp.asarray(Q), times, observe=watch, tolerance=1e-9)
    return path, jax.tree.map(np.asarray, path.seen), loss


def limits(s, k, target):
    """Where theory says that the flow tends, for frozen keys and a target that can be separated."""
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
