"""The one entrance: options of one head → (out, lse), with every derivative."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors, reference
from jattn._types import ScoreModifier
from jattn._values import classes
from jattn.engine import tuning
from jattn.engine.backward import Backward
from jattn.engine.batching import are_transposes, batched_call, has_kernels
from jattn.engine.forward import Forward
from jattn.engine.heads_at_once import heads_at_once
from jattn.engine.jvp import Jvp
from jattn.engine.kernels import choose_kernel
from jattn.engine.plan import Operands, Plan
from jattn.engine.score import hoist_closure
from jattn.engine.tangent import Tangent
from jattn.masks import Mask

Forward.together = Jvp
are_transposes(Tangent, Backward)
for _kind in (Tangent, Backward):
    has_kernels(_kind, choose_kernel)
# Few queries on a CPU, or a kernel.
has_kernels(Forward, lambda *call, exported: heads_at_once(*call) or choose_kernel(*call, exported=exported))


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
    implementation: str | None = None,
    caller: str = "attention",
    lse_is_read: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """(out, lse) of one head, of arguments that are validated. Positions that are not given are row numbers."""
    T, S = q.shape[0], k.shape[0]
    if T == 0 or S == 0:  # no tile at all: the definition is short enough
        allowed = None if mask is None else jnp.zeros((T, S), bool)
        return reference.attention(q, k, v, mask=allowed, sink=sink)
    x = Operands(q, k, v, bias, sink, scale, (), mask, q_positions, k_positions, dropout)
    out, m, log_sum = attend_unrounded(x, score, tile, implementation, caller, lse_is_read=lse_is_read)
    if dropout is not None and isinstance(dropout[1], jax.core.Tracer):
        out *= _as_constant(1 - dropout[1]).astype(out.dtype)
    return out.astype(v.dtype), m + log_sum


def attend_unrounded(
    x: Operands,
    score: ScoreModifier | None,
    tile: tuple[int, int] | None = None,
    implementation: str | None = None,
    caller: str = "attention",
    lse_is_read: bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(out, m, log_sum) of one head with queries and keys, in the dtype of the arithmetic; lse = m + log_sum."""
    plan, x = make_plan(x, score, tile, implementation, caller)
    leaves, tree = jax.tree.flatten(x)
    out, m, log_sum = batched_call(Forward(plan, tree, mask_in_chain=not lse_is_read and of_scalars(x.mask)), *leaves)
    return out, m, log_sum


def of_scalars(mask: Mask | None) -> bool:
    """Whether a mask holds no array of more than a number: what it allows is then made where it is used."""
    return all(jnp.ndim(x) == 0 for x in jax.tree.leaves(mask))


def mask_leaf(x: Any) -> Any:
    """A leaf of a mask. A mask is booleans, and what they are made of has no derivative through them."""
    # Lengths in Python ints: beside float64 they would become int64, and rows are counted in int32.
    return jax.device_put(np.int32(x)) if isinstance(x, int) else jax.lax.stop_gradient(x)


def _dropout(key: jax.Array, rate: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Key and rate of dropout as constants, the rate in the dtype of the arithmetic, in which the engine divides."""
    return jax.lax.stop_gradient(key), jax.lax.stop_gradient(rate).astype(dtype)


def _as_constant(x: jax.Array) -> jax.Array:
    """The share of what is kept, over itself: 1, with the derivative of what is divided by a traced one.

    The engine counts the rate as a constant.
    """
    return jax.lax.stop_gradient(x) / x


def make_plan(
    x: Operands,
    score: ScoreModifier | None,
    tile: tuple[int, int] | None,
    implementation: str | None = None,
    caller: str = "attention",
) -> tuple[Plan, Operands]:
    """The plan of one head, and its operands in the form that the engine takes."""
    T, S, dtype = x.q.shape[0], x.k.shape[0], _errors.wide(x.q, x.k, x.v)
    platform = jax.default_backend()  # of most programs; one that is lowered for another gets another tile
    q_tile, k_tile = tile or tuning.tile_sizes(T, S, platform=platform)
    if isinstance(T, int) and isinstance(S, int):
        q_tile, k_tile = min(q_tile, T), min(k_tile, S)
    closed, captured = (None, ()) if score is None else hoist_closure(score, dtype)
    mask = None if x.mask is None else x.mask.map_leaves(lambda m: m.in_rows(T, S)).split_qk()
    mask = jax.tree.map(mask_leaf, mask)
    scale = jax.device_put(np.asarray(x.q.shape[1] ** -0.5, dtype)) if x.scale is None else x.scale
    sink = x.sink.reshape(()) if x.sink is not None and x.sink.shape != (T,) else x.sink
    dropout = None if x.dropout is None else _dropout(*x.dropout, dtype)
    x = x._replace(captured=captured, mask=mask, scale=scale, sink=sink, dropout=dropout)
    return Plan(T, S, q_tile, k_tile, dtype, closed, classes(mask), platform, tile, implementation, caller=caller), x
