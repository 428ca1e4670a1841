"""Scenarios of gradient_flow.py about what else decides: the optimiser, discrete steps, shared matrices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _bank_toy import BANK, W_K, W_Q, C, K, Q, X
from _flow_common import both, lines

from jattn import flow


def widest_linf(k, target):
    """The direction of the widest margin over |u|∞ = 1, in the plane: a corner, or where two margins tie."""
    d = k[target] - np.delete(k, target, 0)
    places = [np.array(c, float) for c in itertools.product((-1, 1), repeat=2)]
    for (a, b), side, axis in itertools.product(itertools.combinations(d, 2), (-1.0, 1.0), (0, 1)):
        if (slope := (a - b)[1 - axis]) != 0 and abs(other := -side * (a - b)[axis] / slope) <= 1:
            places.append(np.array([side, other]) if axis == 0 else np.array([other, side]))
    return max(places, key=lambda u: (d @ u).min())


def rest(k, target, decay, steps=100):
    """Where −log p_target + ½ decay |q|² is least, by NumPy's Newton."""
    q = np.zeros(2)
    for _ in range(steps):
        p = np.exp(C * k @ q)
        p /= p.sum()
        d = k - p @ k
        q = q - np.linalg.solve(C**2 * (p[:, None] * d).T @ d + decay * np.eye(2), C * (p @ k - k[target]) + decay * q)
    return q


def optimisers(steps=20_000, decay=1e-3):
    read, objective = lambda q: (q, jnp.asarray(K)), flow.cross_entropy(0)
    loss, at = flow.loss_of(read, objective), flow.log_steps(steps)
    slow = lambda t: 0.1 / jnp.sqrt(1 + t)  # noqa: E731
    rules = {
        "SGD": optax.sgd(1.0),
        "momentum": optax.sgd(1.0, momentum=0.9),
        "sign descent": optax.sign_sgd(slow),
        "Adam": optax.adam(slow, eps=1e-16),
        "AdamW": optax.adamw(0.01, weight_decay=0.1, eps=1e-16),
        "SGD with decay": optax.chain(optax.add_decayed_weights(decay), optax.sgd(1.0)),
    }
    ways = {n: np.asarray(flow.run(loss, jnp.asarray(Q), r, steps, at=at).seen) for n, r in rules.items()}
    size = {n: np.linalg.norm(q, axis=1) for n, q in ways.items()}
    round_, square = np.asarray(flow.max_margin(jnp.asarray(K), 0).direction), widest_linf(K, 0) / np.sqrt(2)
    ball = {n: q @ round_ / size[n] for n, q in ways.items()}
    corner = {n: q @ square / size[n] for n, q in ways.items()}
    still = rest(K, 0, decay)
    rows = [(f"{n}: cos(q, l2 max-margin)", ball[n][-1], 1.0) for n in ("SGD", "momentum")]
    rows += [(f"{n}: cos(q, l∞ max-margin)", corner[n][-1], 1.0) for n in ("sign descent", "Adam")]
    rows += [
        ("cos of the two max-margins", square @ round_, 0.9 / np.sqrt(1.3)),
        ("SGD with decay: q, first entry", ways["SGD with decay"][-1, 0], still[0]),
        ("SGD with decay: q, second entry", ways["SGD with decay"][-1, 1], still[1]),
        ("AdamW: |q|∞ above 1/decay by", max(abs(ways["AdamW"][-1]).max() - 10, 0.0), 0.0),
    ]
    t = np.asarray(at)
    return {
        "rows": rows,
        "corner": {n: c[-1] for n, c in corner.items()},
        "says": "One loss, one start, six rules: SGD and momentum end along the l2 max-margin direction, sign descent "
        f"and Adam along the l∞ one, {np.degrees(np.arccos(square @ round_)):.0f} degrees away; decay "
        f"stops SGD at |q| = {np.linalg.norm(still):.2f}, AdamW at {size['AdamW'][-1]:.2f}, within |q|∞ ≤ 10. "
        "Where q ends is the optimiser's choice as much as the loss's.",
        "panels": [
            lines(t, xlabel="steps", **ball) | {"title": "cos(q, l2 max-margin)"},
            lines(t, xlabel="steps", **corner) | {"title": "cos(q, l∞ max-margin)"},
            lines(t, xlabel="steps", ylog=True, **size) | {"title": "|q|"},
        ],
    }


def balancedness(rate=0.1, steps=400, decay=0.02):
    start, read, objective = (jnp.asarray(Q), jnp.asarray(K)), lambda w: w, flow.cross_entropy(1)
    loss, time = flow.loss_of(read, objective), rate * steps
    look = lambda now: (both(now.params), now.sums)  # noqa: E731

    def drift(optimizer, n):
        kept, sums = flow.run(loss, start, optimizer, n, observe=look, track=both, at=n // 100).seen
        kept, sums = np.asarray(kept), np.asarray(sums)
        return np.trace((kept - kept[0]).T), np.trace(sums.T)

    kept = flow.integrate(loss, start, np.linspace(0, time, 101), observe=lambda now: both(now.params), tolerance=1e-10)
    moved = np.trace((np.asarray(kept.seen) - np.asarray(kept.seen[0])).T)
    sgd, half, quarter = (drift(optax.sgd(rate / n), n * steps) for n in (1, 2, 4))
    heavy, adam = drift(optax.sgd(rate / 10, momentum=0.9), steps), drift(optax.adam(rate / 10), steps)
    shrink = lambda w: loss(w) + decay / 2 * sum(jnp.sum(x**2) for x in w)  # noqa: E731
    decayed = flow.integrate(shrink, start, jnp.array([time]), observe=lambda now: both(now.params)).seen[0]
    first = Q @ Q - (K**2).sum()
    steps_of = {f"η = {rate / n:g}": path[0] for n, path in ((1, sgd), (2, half), (4, quarter))}
    return {
        "rows": [
            ("flow: |q|² − |K|² changed by", moved[-1], 0.0),
            (f"steps of {rate:g}: changed by", sgd[0][-1], sgd[1][-1]),
            (f"steps of {rate / 2:g}: changed by", half[0][-1], half[1][-1]),
            ("halving the step divides the drift by", half[0][-1] / quarter[0][-1], 2.0),
            (f"flow, decay {decay:g}: what is left", np.trace(decayed) / first, np.exp(-2 * decay * time)),
        ],
        "breaks": {"momentum": [heavy[0][-1], heavy[1][-1]], "Adam": [adam[0][-1], adam[1][-1]]},
        "says": "Flow keeps |q|² − |K|²; steps move it by η² Σ (|dq|² − |dK|²), exactly. Momentum and Adam do not: "
        f"momentum moves it by {heavy[0][-1]:.3f} where that sum says {heavy[1][-1]:.4f}, Adam by {adam[0][-1]:.3f} "
        f"where it says {adam[1][-1]:.4f}.",
        "panels": [
            lines(np.linspace(0, time, 101), flow=moved, **steps_of) | {"title": "change of |q|² − |K|²"},
            lines(
                np.linspace(0, 1, 101),
                xlabel="share of the run",
                **{"momentum": heavy[0], "its sum": heavy[1], "Adam": adam[0], "Adam's sum": adam[1]},
            ),
        ],
        "linear": True,
    }


def tied(rate=0.5, steps=2000):
    k, words = jnp.asarray(X @ W_K), np.vstack([BANK, X])
    read = lambda w: (jnp.asarray(BANK) @ w, k)  # noqa: E731
    objective = flow.cross_entropy(0)
    path = flow.run(flow.loss_of(read, objective), jnp.asarray(W_Q), optax.sgd(rate), steps, at=flow.log_steps(steps))
    q = np.einsum("im,tmd->tid", words, np.asarray(path.seen))
    moved, share = np.linalg.norm(q - q[:1], axis=2), words @ BANK / (BANK @ BANK)
    on_river = jax.vmap(jax.vmap(lambda q: flow.attention_steps(q[None], k, k).weights[0, 0]))
    p = np.asarray(jax.jit(on_river)(jnp.asarray(q)))
    names = ("bank", "river", "money", "the")
    return {
        "rows": [
            *(
                (f"{n}: moved, as a share of bank's", moved[-1, i] / moved[-1, 0], share[i])
                for i, n in enumerate(names)
            ),
            ("largest deviation in direction", abs(q - q[:1] - share[:, None] * (q - q[:1])[:, :1]).max(), 0.0),
        ],
        "says": "Only bank's loss is trained, and every query moves, by x_i·x_bank of bank's pull: "
        + ", ".join(
            f"{n} now attends river with {a:.2f}, before {b:.2f}" for n, a, b in zip(names, p[-1], p[0], strict=True)
        )
        + ".",
        "panels": [
            lines(rate * np.asarray(path.at), **dict(zip(names, moved.T, strict=True)))
            | {"title": "how far each query has moved"},
            lines(rate * np.asarray(path.at), **dict(zip(names, p.T, strict=True)))
            | {"title": "each word's attention to river"},
        ],
    }
