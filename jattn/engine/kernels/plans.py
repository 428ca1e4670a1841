"""The plan of each kernel: its name, its tiles, and the score modifier in the form that it can compute."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from jattn._numerics import is_half
from jattn.engine import tuning
from jattn.engine.backward import Backward
from jattn.engine.batching import BatchLevels, Operand
from jattn.engine.kernels.score import DistanceScore, KernelScore, SeparatedScore, is_float, kernel_score
from jattn.engine.plan import Operands, Plan, select_active
from jattn.engine.schedule import PlannedFunction
from jattn.engine.score import ScalarScore, TileScore
from jattn.engine.tangent import DerivativePass

FORWARD, TANGENT, BACKWARD_Q, BACKWARD_KV = "jattn_forward", "jattn_tangent", "jattn_backward_q", "jattn_backward_kv"
BACKWARD_TABLE = "jattn_backward_table"
"""The names of the kernels, by which a profile shows them."""


def kernel_plan(
    plan: Plan, x: Operands, kernel: str, *, float32_dout: bool = False, at_distances: bool = False
) -> Plan:
    """The plan with the tiles of a kernel for some operands, and a score modifier that it can compute.

    Args:
      float32_dout: whether the cotangent of out does not fit into the 16 bits of the operands.
      at_distances: whether what the score modifier looks up by distance is an operand (`score_at_distances`).
    """
    if not plan.tile_given:
        score = SeparatedScore.of(plan.score) if isinstance(plan.score, ScalarScore) else plan.score
        width, draws = max(x.q.shape[-1], x.v.shape[-1]), x.dropout is not None
        gathers = bool(score.tables) if isinstance(score, SeparatedScore) else any(c.ndim for c in x.captured)
        half = all(map(is_half, (x.q, x.k, x.v)))
        q_tile, k_tile = tuning.kernel_tile_sizes(
            plan.T, plan.S, plan.platform, kernel=kernel, width=width, half=half, draws=draws, gathers=gathers,
            float32_dout=float32_dout,
        )  # fmt: skip
        plan = dataclasses.replace(plan, q_tile=q_tile, k_tile=k_tile)
    if kernel == BACKWARD_TABLE:  # the pairs of a diagonal of squares lie at the same distances
        side = min(plan.q_tile, plan.k_tile)
        plan = dataclasses.replace(plan, q_tile=side, k_tile=side)
    return dataclasses.replace(plan, score=score_at_distances(plan, x) if at_distances else kernel_score(plan, x))


def plan_of(
    fun: PlannedFunction,
    levels: BatchLevels,
    xs: Sequence[Operand],
    kernel: str,
    *,
    float32_dout: bool = False,
    at_distances: bool = False,
) -> Plan:
    """The plan of a pass for one of its kernels."""
    x = of_one(fun, levels, xs)
    plan = kernel_plan(fun.plan, x, kernel, float32_dout=float32_dout, at_distances=at_distances)
    assert (plan.score is None) == (fun.plan.score is None), "a score modifier that no kernel takes was refused before"
    return plan


def of_one(fun: PlannedFunction, levels: BatchLevels, xs: Sequence[Any]) -> Operands:
    """The types of the operands of one example, of all arguments of a pass or of their types."""
    own = [jax.ShapeDtypeStruct(x.shape[len(axes) :], x.dtype) for x, axes in zip(xs, levels.operands, strict=True)]
    x: Operands = jax.tree.unflatten(fun.tree, own[: fun.tree.num_leaves])
    return x


def with_levels_of_cotangents(fun: PlannedFunction, levels: BatchLevels) -> BatchLevels:
    """The levels with those of its cotangent for each active operand: examples that share one have a cotangent each
    where the cotangents of out are mapped and the operand is not, as in `jax.jacrev`."""
    own = dict(zip(fun.argnums, levels.outputs, strict=True)) if isinstance(fun, Backward) else {}
    return levels._replace(operands=tuple(own.get(i, axes) for i, axes in enumerate(levels.operands)))


def repeated_for_cotangents(
    fun: PlannedFunction, levels: BatchLevels, xs: Sequence[jax.Array]
) -> tuple[BatchLevels, list[jax.Array]]:
    """These levels, and the operands with an axis for each: what examples share is repeated for them."""
    more = with_levels_of_cotangents(fun, levels)
    pairs = zip(xs, levels.operands, more.operands, strict=True)
    return more, [x if own == axes else levels.spread(x, own, axes) for x, own, axes in pairs]


def score_at_distances(plan: Plan, x: Operands) -> KernelScore | None:
    """The score modifier with all that it looks up by distance as an operand, where rows have no positions; None where
    it looks up more than that for a pair."""
    rows = (plan.q_rows, plan.k_rows), (plan.T, plan.S)
    if x.q_positions is not None or x.k_positions is not None:
        return None
    if isinstance(plan.score, TileScore):
        return DistanceScore.of(plan.score, x.captured, rows)
    found = SeparatedScore.of(plan.score, rows) if isinstance(plan.score, ScalarScore) else None
    return None if found is None or found.tables else found


def differentiates_tables(fun: DerivativePass, x: Operands) -> bool:
    """Whether a pass takes, on a GPU, the derivative of a score modifier with respect to a table that it looks up for
    each pair, or to what stands beside one in a user's function."""
    score, active = fun.plan.score, select_active(fun.tree, fun.argnums, fun.argnums).captured
    captured = [c for c, i in zip(x.captured, active, strict=True) if i is not None]
    if fun.plan.platform != "gpu":
        return False
    if isinstance(score, ScalarScore):
        separated = SeparatedScore.of(score)
        return bool(captured) and separated is not None and any(map(is_float, separated.tables))
    return any(c.ndim for c in captured)
