"""What attention is measured against: the definition, its derivatives by name, and the bounds of rounding.

Inputs and comparisons are in `_inputs`, masks beside their booleans in `_mask_oracles`. No test file imports another:
what two of them need stands in a file with a leading underscore.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _inputs import D, normal, qkv

import jattn
from jattn import reference


def weigh(out, lse, seed=20):
    """A loss that tells every entry of out and lse apart; a query without a key has no part in it."""
    w_out, w_lse = normal(*out.shape, seed=seed), normal(*lse.shape, seed=seed + 1)
    lse = jnp.where(lse == -jnp.inf, 0, lse)
    return jnp.sum(jnp.sin(out) * w_out.astype(out.dtype)) + jnp.sum(jnp.sin(lse) * w_lse.astype(lse.dtype))


def derivatives(f):
    """f → (value, gradient, tangent, tangent of the gradient, gradient of the gradient), of all arguments by name."""

    @jax.jit
    def orders(x):
        x_dot = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape), x)
        first = jax.grad(lambda x: weigh(*f(**x)))
        value, tangent = jax.jvp(lambda x: f(**x), (x,), (x_dot,))
        gradient, second = jax.jvp(first, (x,), (x_dot,))
        inner = lambda x: sum(jnp.sum(g * d) for g, d in zip(*map(jax.tree.leaves, (first(x), x_dot)), strict=True))  # noqa: E731
        return {
            "value": value,
            "gradient": gradient,
            "tangent": tangent,
            "tangent of the gradient": second,
            "gradient of the gradient": jax.grad(inner)(x),
        }

    return lambda **x: jax.tree.map(np.asarray, orders({name: jnp.asarray(a) for name, a in x.items()}))


def ours(**fixed):
    return lambda q, k, v, **x: jattn.attention(q, k, v, return_lse=True, **fixed, **x)


def definition(**fixed):
    return lambda q, k, v, **x: reference.attention(q, k, v, **fixed, **x)


def inputs(**shape):
    """All that attention takes a derivative of."""
    q, k, v = qkv(**shape)
    bias, sink = normal(len(q), len(k), seed=7), normal(len(q), seed=9)
    return {"q": q, "k": k, "v": v, "bias": bias, "sink": sink, "scale": np.float64(0.6)}


steps = jax.jit(reference.steps, compiler_options={"xla_backend_optimization_level": 0})
"""In float64, so that no test looks at its last bits."""


def bounds(q, k, v, dout, **options):
    """The definition in float64, and what its terms amount to if none cancels another."""
    c = D**-0.5
    (_, x, p, out), lse = steps(q, k, v, **options)
    x, p = np.asarray(x), np.asarray(p)
    size = (
        1 + c * np.abs(q) @ np.abs(k).T + np.abs(0 if options.get("bias") is None else options["bias"])
    )  # a logit is known to eps times this
    a, mean = dout @ v.T, dout @ np.asarray(out).T
    ds = p * (a - np.diag(mean)[:, None])
    spread = p * size * (np.abs(dout) @ np.abs(v).T + (np.abs(dout) * (p @ np.abs(v))).sum(1)[:, None])
    want = {"out": out, "lse": lse, "q": c * ds @ k, "k": c * ds.T @ q, "v": p.T @ dout}
    bound = {
        "out": (p * size) @ np.abs(v),
        "lse": np.abs(lse) + (p * size).sum(1),
        "q": c * spread @ np.abs(k),
        "k": c * spread.T @ np.abs(q),
        "v": (p * size).T @ np.abs(dout),
    }
    return want, bound
