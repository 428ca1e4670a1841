"""Words: the few numerical moves that every computation of attention shares."""

import jax
import jax.numpy as jnp


@jax.custom_jvp
def below(x: jax.Array, top: jax.Array) -> jax.Array:
    """x − top for x ≤ top, where the largest is exactly 0 by comparison.

    Subtraction is not enough. Where x is itself a product, XLA may fuse the two into one multiply-add, and
    the largest entry misses its own rounded maximum, by 1e22 for a logit of 1e30: silent zeros, or NaN.
    """
    return jnp.where(x >= top, 0, x - top)


@below.defjvp
def _below_jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    return below(*primals), tangents[0] - tangents[1]


def set_aside(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows [n, d] with each row that holds a NaN or an infinity made zero, and which rows those are [n].

    A product with zero would not be enough: 0 · NaN is NaN, in a sum over keys and in its transpose alike.
    """
    bad = ~jnp.isfinite(x).all(1)
    return jnp.where(bad[:, None], 0, x), bad


def finite_or_zero(top: jax.Array) -> jax.Array:
    """A maximum to subtract: the maximum of nothing, −inf, becomes 0."""
    return jnp.where(top == -jnp.inf, 0, top)
