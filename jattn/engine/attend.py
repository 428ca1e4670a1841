"""The one entrance: options of one head → (out, lse), with every derivative."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors, reference, scores
from jattn._types import ScoreModifier
from jattn._values import Closed, close
from jattn.engine import tuning
from jattn.engine.backward import Backward
from jattn.engine.batching import are_transposes, batched_call
from jattn.engine.forward import Forward
from jattn.engine.plan import Operands, Plan
from jattn.engine.tangent import Tangent
from jattn.masks import Mask

are_transposes(Tangent, Backward)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: Mask | None = None,
    score: ScoreModifier | None = None,
    bias: jax.Array | None = None,
    sink: jax.Array | None = None,
    scale: jax.Array | None = None,
    q_positions: jax.Array | None = None,
    k_positions: jax.Array | None = None,
    dropout: tuple[jax.Array, jax.Array] | None = None,
    tile: tuple[int, int] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """(out, lse) of one head, of arguments that are validated. Positions that are not given are row numbers."""
    T, S = q.shape[0], k.shape[0]
    if T == 0 or S == 0:  # no tile at all: the definition is short enough
        allowed = None if mask is None else jnp.zeros((T, S), bool)
        return reference.attention(q, k, v, mask=allowed, sink=sink)
    plan, x = make_plan(Operands(q, k, v, bias, sink, scale, (), mask, q_positions, k_positions, dropout), score, tile)
    leaves, tree = jax.tree.flatten(x)
    out, m, log_sum = batched_call(Forward(plan, tree), *leaves)
    return out.astype(v.dtype), m + log_sum


def make_plan(x: Operands, score: ScoreModifier | None, tile: tuple[int, int] | None) -> tuple[Plan, Operands]:
    """The plan of one head, and its operands in the form that the engine takes."""
    T, S, dtype = x.q.shape[0], x.k.shape[0], _errors.wide(x.q, x.k, x.v)
    platform = jax.default_backend()  # of most programs; one that is lowered for another gets another tile
    q_tile, k_tile = tile or tuning.tile_sizes(T, S, platform=platform)
    if isinstance(T, int) and isinstance(S, int):
        q_tile, k_tile = min(q_tile, T), min(k_tile, S)
    closed, captured = (None, ()) if score is None else hoist_closure(score, dtype)
    mask = None if x.mask is None else x.mask.split_qk()
    # Lengths in Python ints: beside float64 they would become int64, and rows are counted in int32.
    mask = jax.tree.map(lambda n: jax.device_put(np.int32(n)) if isinstance(n, int) else n, mask)
    scale = jax.device_put(np.asarray(x.q.shape[1] ** -0.5, dtype)) if x.scale is None else x.scale
    sink = x.sink.reshape(()) if x.sink is not None and x.sink.shape != (T,) else x.sink
    x = x._replace(captured=captured, mask=mask, scale=scale, sink=sink)
    return Plan(T, S, q_tile, k_tile, dtype, closed, platform, tile is not None), x


@dataclasses.dataclass(frozen=True)
class ScalarScore:
    """A score modifier that is any function of scalars, as one of what it captured and of a tile."""

    closed: Closed

    def __call__(self, captured: Any, tile: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        def score(x: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
            return self.closed(captured, x, t, s)[0].astype(x.dtype)

        return over_pairs(score, tile, t, s)


def over_pairs(f: Any, x: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
    """f of scalars, mapped over all axes of x; t and s are mapped where they have more than one entry."""
    if x.ndim == 0:
        return f(x, t.reshape(()), s.reshape(()))
    t, s = (a.reshape((1,) * (x.ndim - a.ndim) + a.shape) for a in (t, s))
    axes = [0 if a.shape[0] > 1 else None for a in (t, s)]
    t, s = (a if axis == 0 else a[0] for a, axis in zip((t, s), axes, strict=True))
    return jax.vmap(partial(over_pairs, f), (0, *axes))(x, t, s)


@dataclasses.dataclass(frozen=True)
class TileScore:
    """A score modifier of this library, without its arrays: it takes a tile as it is."""

    tree: Any

    def __call__(self, captured: Any, tile: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        return jax.tree.unflatten(self.tree, captured)(tile, t, s).astype(tile.dtype)


def hoist_closure(score: ScoreModifier, dtype: Any) -> tuple[Any, tuple[jax.Array, ...]]:
    """A score modifier as a hashable function of the arrays that it closes over, and these, so that they have
    derivatives. Equal score modifiers are one program, however often they are written."""
    if isinstance(score, scores.Score):
        leaves, tree = jax.tree.flatten(score)
        return TileScore(tree), tuple(jax.device_put(x) if isinstance(x, float) else jnp.asarray(x) for x in leaves)
    i, x = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), dtype)
    closed, captured, _ = close(score, x, i, i)
    return ScalarScore(closed), captured
