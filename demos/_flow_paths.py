"""Scenarios of gradient_flow.py in which a query learns one key: where the slogan holds, and where it fails."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _bank_toy import C, K, Q
from _flow_common import TIMES, both, cosines, frozen, limits, lines, watched

from jattn import flow

SHADOWED = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 0.5]])  # the target, a longer key along it, another one


def river():
    path, s, learn = frozen(K, 0)
    cos = cosines(Q, learn, K[0])
    return {
        "rows": [*limits(s, K, 0), ("steps in which cos(q, k_river) rose", (np.diff(cos) > 0).sum(), 0)],
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
            *limits(s, K, 1),
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
        "rows": limits(s, SHADOWED, 0),
        "says": f"A longer key lies along the target's, so no q along k_target can prefer it. Attention comes all the "
        f"same, p = {s.p[-1]:.4f}, with q turned against its target: cos(q, k_target) = {s.cos_key[-1]:.3f}.",
        "report": flow.check(path, rate=1.0),
        "panels": watched(TIMES, s, C * s.widest[0]),
        "cos": s.cos_key,
    }
