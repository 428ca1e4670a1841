"""Numbers of rows and of tokens, which a mask holds as they are known: whole numbers, or traced."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors


def distance(caller: str, name: str, n: Any, *, least: int = 0) -> int:
    """A static number of tokens, as large as any distance between two of them can be."""
    return min(_errors.count(caller, name, n, least=least), _errors.MOST)


def first_tokens(caller: str, n: Any) -> jax.Array | int:
    """A number of tokens of at least 0, as far as it is known without a device; below 0 an array is 0."""
    if isinstance(n, int | np.integer) and n < 0:
        _errors.fail(ValueError, caller, "n must be at least 0", "Give a number of tokens.", n=str(n))
    return token_count(caller, "n", n, "tokens")


def token_count(caller: str, name: str, n: Any, unit: str) -> jax.Array | int:
    """A whole number of rows or tokens, possibly traced: a leaf of a mask. Below 0 is 0."""
    if type(n) is int:
        return max(0, min(n, _errors.MOST))
    x = _errors.whole_numbers(caller, name, n, f"It counts {unit}: pass a whole number.")
    if x.ndim:
        remedy = "Pass one; map over a batch of them with jax.vmap."
        _errors.fail(ValueError, caller, f"{name} must be a scalar", remedy, **{name: x})
    return _clipped(x)


@jax.jit
def _clipped(n: jax.Array) -> jax.Array:
    """At least 0. Compiled, since eagerly the bound would be moved, which transfer guards refuse."""
    return jnp.maximum(n, 0)
