"""What every function of a cache asks of its arguments."""

from typing import Any

import jax.numpy as jnp

from jattn import _errors
from jattn._types import Array, Integer
from jattn._values import show
from jattn.cache._store import Cache, is_one


def shape_of(caller: str, cache: Any, name: str = "cache") -> tuple[int, int, int, int]:
    """(B, Hkv, D, Dv) of what must be a cache."""
    if not isinstance(cache, Cache):
        got = {name: f"of type {type(cache).__name__}"}
        remedy = "Make one with jattn.cache: contiguous, ring or paged."
        _errors.fail(TypeError, caller, f"{name} must be a cache", remedy, **got)
    if not is_one(cache):
        remedy = "Map over a stack of caches, as of layers, with jax.vmap or jax.lax.scan."
        got = {f"{name}.store.k": show(cache.store.k), f"{name}.length": show(cache.length)}
        _errors.fail(ValueError, caller, f"{name} must have the axes that it was made with", remedy, **got)
    (_, Hkv, _, D), Dv = cache.store.k.shape, cache.store.v.shape[3]
    return cache.length.shape[0], Hkv, D, Dv


def rows_of(caller: str, name: str, x: Any) -> Integer[Array, " R"]:
    """Numbers of rows."""
    x = _errors.array(caller, name, x)
    remedy = "Pass numbers of rows, as in jax.numpy.array([2])."
    _errors.kind(caller, name, x, jnp.integer, remedy)
    _errors.rank(caller, 1, "[R]", remedy, **{name: x})
    return x.astype(jnp.int32)
