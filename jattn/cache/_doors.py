"""What every function of a cache asks of its arguments."""

from typing import Any

import jax
import jax.numpy as jnp

from jattn import _checks
from jattn._types import Array, Int
from jattn.cache._store import Cache


def shape_of(where: str, cache: Any, name: str = "cache") -> tuple[int, int, int, int]:
    """(B, Hkv, D, Dv) of what must be a cache."""
    if not isinstance(cache, Cache):
        got = {name: f"of type {type(cache).__name__}"}
        remedy = "Make one with jattn.cache: contiguous, ring or paged."
        _checks.fail(TypeError, where, f"{name} must be a cache", remedy, **got)
    (_, Hkv, _, D), Dv = cache.store.k.shape, cache.store.v.shape[3]
    return cache.length.shape[0], Hkv, D, Dv


def per_row(where: str, name: str, x: Any, full: tuple[int, ...], axes: str, unit: str) -> Int[Array, "..."] | None:
    """Whole numbers of exactly this shape, or None."""
    if x is None:
        return None
    x = _checks.array(where, name, x)
    _checks.kind(where, name, x, jnp.integer, f"It counts {unit}: pass whole numbers.")
    if x.shape != full:
        target = "[" + ", ".join(map(str, full)) + "]"
        remedy = f"Give one whole number for each: {axes} is {target} here."
        _checks.fail(ValueError, where, f"{name} must have the shape {axes}", remedy, **{name: x})
    return x.astype(jnp.int32)


def rows_of(where: str, name: str, x: Any) -> Int[Array, " R"]:
    """Numbers of rows."""
    x = _checks.array(where, name, x)
    remedy = "Pass numbers of rows, as in jax.numpy.array([2])."
    _checks.kind(where, name, x, jnp.integer, remedy)
    _checks.rank(where, 1, "[R]", remedy, **{name: x})
    return x.astype(jnp.int32)


def known(*xs: jax.Array) -> bool:
    """Whether these have values that an error can depend on: outside jit, vmap and the like."""
    return not any(isinstance(x, jax.core.Tracer) for x in xs)
