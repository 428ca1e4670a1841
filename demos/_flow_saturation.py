"""Scenarios of gradient_flow.py about the size of gradients: saturation in each dtype, and the scale of the scores."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _flow_common import lines

import jattn
from jattn import flow

DTYPES = {"float64": jnp.float64, "float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
D, S, DRAWS = 64, 16, 2000
TOLD = ("|dL/ds|", "|dL/dq|", "entropy", "saturation", "p of the target after 20 steps")


def dies(gradient, dtype):
    """The first gap between two logits, in eighths, at which a gradient is 0; the target is ahead."""
    gaps = jnp.arange(1, 8 * 760) / 8
    g = jax.jit(jax.vmap(gradient))(jnp.stack([gaps, jnp.zeros_like(gaps)], 1).astype(dtype))
    return float(gaps[jnp.argmax(g == 0)])


def last_gap(dtype):
    """The gap from which on e^−gap is 0: where it leaves the normal numbers, or, on a device that keeps the others as
    well (a GPU), where it is half of the smallest."""
    info = jnp.finfo(dtype)
    flushes = float(jax.jit(lambda x: x / 2)(jnp.array(info.tiny, dtype))) == 0
    return -np.log(float(info.tiny)) if flushes else np.log(2) - np.log(float(info.smallest_subnormal))


def saturation():
    gaps = jnp.linspace(-30, 30, 121)
    x = jnp.stack([gaps, jnp.zeros_like(gaps)], 1)
    entropy = lambda x: -jattn.log_softmax(x)[0]  # noqa: E731
    output = lambda x: 0.5 * (jattn.softmax(x)[0] - 1) ** 2  # noqa: E731  v = (1, 0), goal 1
    sizes = {n: abs(np.asarray(jax.jit(jax.vmap(jax.grad(f)))(x)[:, 0])) for n, f in (("CE", entropy), ("out", output))}
    p = np.asarray(1 / (1 + jnp.exp(-gaps)))
    rows = [
        ("dL/ds at gap −20, cross-entropy: 1 − p", sizes["CE"][20], 1 - p[20]),
        ("dL/ds at gap −20, output loss: p (1 − p)²", sizes["out"][20], p[20] * (1 - p[20]) ** 2),
    ]
    plain = lambda x: -jax.nn.log_softmax(x)[0]  # noqa: E731
    for name, dtype in DTYPES.items():
        # The plain rule: dead once 1 + e^−gap rounds to 1. (XLA on a CPU computes bfloat16 in float32.)
        eps = float(jnp.finfo(jnp.float32 if name == "bfloat16" else dtype).eps)
        # The exact tail: once e^−gap is below what the dtype, at the end, or float32, on the way, can hold.
        last = 25 * np.log(2) if name == "float16" else last_gap(dtype)
        rows += [
            (f"dies at the gap, {name}, jax.nn", dies(lambda x: jax.grad(plain)(x)[0], dtype), np.log(2 / eps)),
            (f"dies at the gap, {name}, jattn", dies(lambda x: jax.grad(entropy)(x)[0], dtype), last),
        ]
    return {
        "rows": rows,
        "says": "Attending the wrong key with gap 20, the loss on the output has a gradient of 2e-9 left, the "
        "cross-entropy on the weight 1: saturation kills the one, not the other. Attending the right key, the gradient "
        "of either should be tiny, not zero: with jattn it is there until e^−gap leaves the numbers of the dtype.",
        "panels": [
            lines(
                gaps,
                ylog=True,
                xlabel="gap of the logits",
                **{"cross-entropy on p": sizes["CE"], "½(out − 1)²": sizes["out"]},
            )
        ],
        "linear": True,
    }


def scale():
    q, k = jax.random.normal(jax.random.key(0), (DRAWS, D)), jax.random.normal(jax.random.key(1), (DRAWS, S, D))

    def one(q, k, c):
        objective = flow.cross_entropy(0)
        steps = flow.attention_steps(q[None], k, k, scale=c)
        loss = lambda q: objective(flow.attention_steps(q[None], k, k, scale=c))  # noqa: E731
        ds = steps.weights[0] - jax.nn.one_hot(0, S, dtype=q.dtype)
        after = flow.run(loss, q, optax.sgd(1.0), 20).params
        sizes = jnp.linalg.norm(ds), jnp.linalg.norm(jax.grad(loss)(q)), flow.entropy(steps.weights[0])
        return (
            jnp.var(steps.scaled, ddof=1),
            *sizes,
            flow.saturation(steps.weights[0]),
            flow.attention_steps(after[None], k, k, scale=c).weights[0, 0],
            steps.weights[0].max(),
        )

    rows, found, tops, each = [], {}, {}, jax.jit(jax.vmap(one, (0, 0, None)))
    for name, c in (("1", 1.0), ("√d", D**-0.5), ("d", 1 / D)):
        *measured, largest = each(q, k, c)
        var, ds, dq, entropy, full, learned = (float(x.mean()) for x in measured)
        tops[name] = [float((largest > least).mean()) for least in (0.9, 0.99)]
        found[name] = {"ds": ds, "dq": dq, "entropy": entropy, "saturation": full, "learned": learned}
        rows.append((f"over {name}: std of the logits", var**0.5, c * D**0.5))
        if name == "d":
            rows.append(("over d: |dL/ds|, of nearly equal weights", ds, (1 - 1 / S) ** 0.5))
            rows.append(("over d: |dL/dq|, of nearly equal weights", dq, (D * (1 - 1 / S)) ** 0.5 / D))
            rows.append(("over d: entropy", entropy, np.log(S)))
    of = {n: [found[m][n] for m in found] for n in found["d"]}
    return {
        "rows": rows,
        "found": found,
        "largest": tops,
        "says": "Means over 2,000 draws, d = 64, over 1, √d and d: "
        + "; ".join(f"{label} {a:.3f}, {b:.3f}, {c:.3f}" for label, (a, b, c) in zip(TOLD, of.values(), strict=True))
        + ". Over d the gradient of the logits is healthy, and what reaches q is small and nothing is selected; "
        f"over 1 one key has more than 0.9 of the weight in {tops['1'][0]:.0%} of the rows, and more than 0.99 in "
        f"{tops['1'][1]:.0%}, before anything is learned.",
        "panels": [
            lines([0, 1, 2], ylog=True, xlabel="divided by", **dict(zip(TOLD, of.values(), strict=True)))
            | {"ticks": ["1", "√d", "d"]}
        ],
        "linear": True,
    }
