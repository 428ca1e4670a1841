"""A score modifier in the form that a tile takes: a hashable function, apart from the arrays that it closes over."""

import dataclasses
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jattn import scores
from jattn._numerics import is_half
from jattn._types import ScoreModifier
from jattn._values import Closed, classes, close


@dataclasses.dataclass(frozen=True)
class ScalarScore:
    """A score modifier that is any function of scalars, as one of what it captured and of a tile."""

    closed: Closed
    by_diagonals: ClassVar[bool] = False

    def __call__(self, captured: Any, tile: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        def score(x: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
            return jax.lax.convert_element_type(self.closed(captured, x, t, s)[0], x.dtype)  # it may be a number

        return over_pairs(score, tile, t, s)

    def largest(self, captured: Any) -> None:
        """What no result exceeds in magnitude: not known."""


def over_pairs(f: Any, x: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
    """f of scalars, mapped over all axes of x; t and s are mapped where they have not one entry for all."""
    if x.ndim == 0:
        return f(x, t.reshape(()), s.reshape(()))
    t, s = (a.reshape((1,) * (x.ndim - a.ndim) + a.shape) for a in (t, s))
    axes = [None if a.shape[0] == 1 else 0 for a in (t, s)]
    t, s = (a if axis == 0 else a[0] for a, axis in zip((t, s), axes, strict=True))
    return jax.vmap(partial(over_pairs, f), (0, *axes))(x, t, s)


@dataclasses.dataclass(frozen=True)
class TileScore:
    """A score modifier of this library, without its arrays: it takes a tile as it is."""

    tree: Any
    classes: tuple[type, ...]
    by_diagonals: bool
    """See `scores.Score.by_diagonals`."""

    def __call__(self, captured: Any, tile: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        return jax.tree.unflatten(self.tree, captured)(tile, t, s).astype(tile.dtype)

    def largest(self, captured: Any) -> Any:
        """What no result exceeds in magnitude; None where nothing is known."""
        return jax.tree.unflatten(self.tree, captured).largest


def hoist_closure(score: ScoreModifier, dtype: Any) -> tuple[Any, tuple[jax.Array, ...]]:
    """A score modifier as a hashable function of the arrays that it closes over, and these, so that they have
    derivatives. Equal score modifiers are one program, however often they are written."""
    if isinstance(score, scores.Score):
        leaves, tree = jax.tree.flatten(score)
        arrays = (jax.device_put(x) if isinstance(x, float) else jnp.asarray(x) for x in leaves)
        # In half precision their cotangents would be rounded at every tile.
        captured = tuple(x.astype(dtype) if is_half(x) else x for x in arrays)
        return TileScore(tree, classes(score), score.by_diagonals), captured
    i, x = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), dtype)
    closed, captured, _ = close(score, x, i, i)
    return ScalarScore(closed), captured
