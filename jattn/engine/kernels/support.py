"""What has a kernel on which platform, and in words why what has none has none.

The answer depends on structure, dtypes and sizes; and for a GPU on whether it is one that the kernels were run on.
"""

import dataclasses
import importlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jattn import _errors
from jattn._jax import about_triton, gpu_generation, gpu_is_known
from jattn.engine import tuning
from jattn.engine.backward import Backward
from jattn.engine.batching import BatchLevels, Kernel
from jattn.engine.forward import Forward
from jattn.engine.kernels import backward, cudnn, passes
from jattn.engine.kernels.distances import in_order
from jattn.engine.kernels.plans import (
    BACKWARD_KV,
    BACKWARD_Q,
    BACKWARD_TABLE,
    FORWARD,
    differentiates_tables,
    kernel_plan,
    score_at_distances,
    with_levels_of_cotangents,
)
from jattn.engine.kernels.score import SeparatedScore, by_distance, has_values, is_float
from jattn.engine.plan import Operands, Plan, select_active
from jattn.engine.schedule import PlannedFunction
from jattn.engine.score import ScalarScore, TileScore
from jattn.engine.tangent import DerivativePass, Tangent
from jattn.masks import Mask

Pass = Callable[..., list[jax.Array]]
PASSES: Mapping[type, Pass] = MappingProxyType(
    {
        Forward: passes.forward,
        Tangent: passes.tangent,
        Backward: backward.backward,
    }
)
PLATFORMS = ("tpu", "gpu")
"""Those that have kernels."""
LOWERED = MappingProxyType({"tpu": "tpu", "gpu": "cuda"})
INTERPRETED = "tpu"
"""The platform whose kernels implementation='interpret' runs."""
logger: logging.Logger = logging.getLogger("jattn")


def choose(
    fun: PlannedFunction, platform: str, levels: BatchLevels, avals: Sequence[Any], *, exported: bool = False
) -> Kernel | None:
    """The pass over all its heads as kernels, or None where it runs as loops, as `implementation` allows."""
    implementation = fun.plan.implementation
    if implementation == "loops":
        return None
    fun = for_kernels(fun, platform)
    if implementation == "cudnn" and isinstance(fun, Tangent):
        return None  # cuDNN has none: tangents are loops beside it
    reason = refusal(fun, levels, avals, exported=exported)
    if reason is None and implementation == "cudnn":
        return cudnn.kernel(fun, levels)
    if reason is None:
        run = partial(_run_on(fun.platform), interpret=implementation == "interpret")
        return partial(PASSES[type(fun)], fun, levels, run)
    if implementation is not None:
        must, remedy = f"implementation must be able to do this call ({reason})", "Use implementation='loops'."
        _errors.fail(ValueError, fun.plan.caller, must, remedy, implementation=repr(implementation))
    return None


def _run_on(platform: str) -> Callable[..., list[jax.Array]]:
    """What runs kernels on a platform. Imported, with Pallas, by the first call that has one."""
    with jax.ensure_compile_time_eval():  # which may be traced: what a module computes of its own is not
        run: Callable[..., list[jax.Array]] = importlib.import_module(f"jattn.engine.kernels.{platform}").run
    return run


def for_kernels(fun: PlannedFunction, platform: str) -> PlannedFunction:
    """A pass as it is planned for a platform, or for the one whose kernels are to be interpreted."""
    platform = INTERPRETED if fun.plan.implementation == "interpret" else platform
    return dataclasses.replace(fun, plan=in_whole_tiles(fun.plan.for_platform(platform)))


def in_whole_tiles(plan: Plan) -> Plan:
    """The plan with a tile that holds all rows, as a caller's that was longer does, in a size of kernels."""
    if not (plan.tile_given and plan.static_lengths):
        return plan

    def of_kernels(tile: int, rows: int) -> int:
        if tile < rows:
            return tile
        if plan.platform == "gpu":
            return next((size for size in tuning.GPU_TILE_SIZES if size >= rows), tile)
        return -(-rows // tuning.LANES) * tuning.LANES

    return dataclasses.replace(plan, q_tile=of_kernels(plan.q_tile, plan.T), k_tile=of_kernels(plan.k_tile, plan.S))


def refusal(fun: PlannedFunction, levels: BatchLevels, avals: Sequence[Any], *, exported: bool = False) -> str | None:
    """Why there is no kernel for a pass on the platform that it is planned for, in words; None if there is one.

    Args:
      levels: how it is mapped.
      avals: the types of its operands, with the axes of all levels.
      exported: whether the program is to be read again, perhaps by another JAX.
    """
    platform = fun.platform
    if fun.plan.implementation == "cudnn":
        return cudnn.refusal(fun, levels, avals)
    if platform not in PLATFORMS:
        return f"kernels are for the GPU and the TPU, and the platform is {platform}"
    plan = fun.plan
    own = [jax.ShapeDtypeStruct(a.shape[len(axes) :], a.dtype) for a, axes in zip(avals, levels.operands, strict=True)]
    x: Operands = jax.tree.unflatten(fun.tree, own[: fun.tree.num_leaves])
    of_kernels = with_levels_of_cotangents(fun, levels)
    found = of_sizes(plan, x, of_kernels) or of_options(plan, x)
    if found is None and platform == "tpu":
        found = of_tpu_scalars(fun, x, of_kernels)
    if found is None and isinstance(fun, Backward):
        found = of_bias_gradient(fun, plan, x, of_kernels)
    if found is None and isinstance(fun, DerivativePass):
        found = of_table_derivative(fun, x, of_kernels)
    if found is None and platform == "gpu" and plan.implementation is None:
        if exported:  # jax.export refuses it
            return "JAX does not promise to read a kernel of the GPU again, which is what an export is for"
        if plan.tile_given:  # a large one may not fit
            return "of a given tile the GPU kernel is taken where implementation='kernel' asks for it"
        if gpu_generation() != tuning.GPU_GENERATION:
            capability = f"an NVIDIA GPU of compute capability {tuning.GPU_GENERATION}"
            return f"the GPU kernel was run on {capability}; elsewhere implementation='kernel' asks for it"
        if isinstance(fun, DerivativePass) and differentiates_tables(fun, x):
            what = "the derivative with respect to a table was not run in the GPU kernel"
            return f"{what}: implementation='kernel' asks for it"
    unknown = platform == "gpu" and not gpu_is_known()
    if found is None and unknown and plan.implementation != "interpret":
        return (
            "Pallas writes a kernel with Triton, from jax 0.11 on for a GPU that is there, and one of them is missing"
        )
    if found is None and not unknown and of_user(plan.score, x.mask):
        found = of_lowering(fun, levels, tuple((a.shape, a.dtype) for a in avals))
    return found


def of_sizes(plan: Plan, x: Operands, levels: BatchLevels) -> str | None:
    if not (plan.static_lengths and all(isinstance(n, int) for n in levels.sizes)):
        return "a length or the batch is a symbol"
    if np.dtype(plan.dtype) != np.float32:
        return f"the kernel computes in float32, not in {np.dtype(plan.dtype)}"
    if plan.T < tuning.FEW_QUERIES:
        return f"with fewer than {tuning.FEW_QUERIES} queries reading the keys is all there is to do"
    return of_gpu_sizes(plan, x, levels) if plan.platform == "gpu" else of_tpu_sizes(plan, x, levels)


def schedule_bytes(
    plan: Plan, x: Operands, levels: BatchLevels, itemsize: int, kernel: str = BACKWARD_KV
) -> tuple[int, str]:
    """Bytes of one number for each tile that a kernel lists, and how many tiles these are, in words.

    The kernel of dk and dv has the smallest tiles but for that of tables, which lists them by diagonals.
    """
    plan = kernel_plan(plan, x, kernel)
    heads = math.prod(levels.sizes) if jax.tree.leaves((x.mask, x.q_positions, x.k_positions)) else 1
    listed = plan.q_tiles + plan.k_tiles - 1 if kernel == BACKWARD_TABLE else plan.q_tiles
    return itemsize * heads * listed * plan.k_tiles, f"{heads} × {listed} × {plan.k_tiles} tiles"


def of_tpu_sizes(plan: Plan, x: Operands, levels: BatchLevels) -> str | None:
    if plan.tile_given and (plan.q_tile % tuning.LANES or plan.k_tile % tuning.LANES):
        return f"tile={plan.tile_given} is not of multiples of {tuning.LANES}"
    if max(x.q.shape[1], x.v.shape[1]) > tuning.KERNEL_MOST_WIDTH:
        return f"a head is wider than {tuning.KERNEL_MOST_WIDTH}"
    if x.v.shape[1] == 0:
        return "the values have no width"
    size, tiles = schedule_bytes(plan, x, levels, 4)
    if size > tuning.KERNEL_SCHEDULE_BYTES:
        return f"the block states of {tiles} do not fit into its memory of scalars"
    return None


def of_tpu_scalars(fun: PlannedFunction, x: Operands, levels: BatchLevels) -> str | None:
    """Of what lies in the memory of scalars: two numbers for each tile of the schedule, one for each tile of q, of k
    and of v (`Call.nonfinite_tiles`), and the scalars of each head, with their tangents."""
    plan, heads = kernel_plan(fun.plan, x, BACKWARD_KV), math.prod(levels.sizes)
    leaves = jax.tree.leaves(x)
    counts = [math.prod(levels.sizes[level] for level in own) for own in levels.operands[: len(leaves)]]
    of: Operands = jax.tree.unflatten(fun.tree, counts)
    numbers = heads * plan.q_tiles + (of.k + of.v) * plan.k_tiles
    each = 2  # a number and its tangent, or the two words of a key
    numbers += sum(each * n for leaf, n in zip(leaves, counts, strict=True) if leaf.ndim == 0)
    if has_values(plan.score):
        numbers += each * plan.score.roles.count("") * max(of.captured, default=1)
    size = 2 * schedule_bytes(plan, x, levels, 4)[0] + 4 * numbers
    if size <= tuning.KERNEL_SCALAR_BYTES:
        return None
    return f"what it is told of {heads} heads, {size >> 10} KiB, does not fit into its memory of scalars"


def of_gpu_sizes(plan: Plan, x: Operands, levels: BatchLevels) -> str | None:
    if plan.tile_given and not {plan.q_tile, plan.k_tile} <= set(tuning.GPU_TILE_SIZES):
        return f"tile={plan.tile_given} is not of powers of two from 16 to 128"
    for width in (x.q.shape[1], x.v.shape[1]):
        if width not in tuning.GPU_WIDTHS:
            return f"a head of width {width} is not one of 16, 32, 64 and 128"
    for leaf, own in zip(jax.tree.leaves(x), levels.operands, strict=False):
        entries = math.prod(levels.sizes[level] for level in own) * math.prod(map(_in_tiles, leaf.shape))
        if leaf.dtype.itemsize == 1 and entries > tuning.GPU_ENTRIES_OF_A_BYTE:
            return f"an array of {entries} entries of one byte each has more than the kernel finds by 32 bits"
    return of_gpu_schedule(plan, x, levels)


def _in_tiles(n: int) -> int:
    """So many rows in whole tiles of the largest size; one row for all is not repeated."""
    most = max(tuning.GPU_TILE_SIZES)
    return n if n == 1 else -(-n // most) * most


def of_gpu_schedule(plan: Plan, x: Operands, levels: BatchLevels, kernel: str = BACKWARD_KV) -> str | None:
    size, tiles = schedule_bytes(plan, x, levels, 2, kernel)
    return f"the list of {tiles} would take {size >> 20} MiB" if size > tuning.GPU_SCHEDULE_BYTES else None


def of_options(plan: Plan, x: Operands) -> str | None:
    if x.dropout is not None:
        key, _ = x.dropout
        config: Any = jax.config
        threefry = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype
        if key.dtype != threefry or not config.jax_threefry_partitionable:
            return "the kernel draws dropout as keys of threefry2x32 do, with jax_threefry_partitionable, and no others"
    kernel = kernel_plan(plan, x, FORWARD)
    score = kernel.score if isinstance(kernel.score, SeparatedScore) else None
    if isinstance(plan.score, ScalarScore) and (score is None or (plan.platform == "tpu" and score.tables)):
        return (
            "the score modifier looks up an array for each pair, which a kernel cannot gather from "
            "(by t − s alone, of rows without positions, it could)"
        )
    parts = [] if x.mask is None else parts_of(mask_by_rows(kernel, x))
    if plan.platform == "tpu" and (long := of_64_bits(score, x, parts)):
        return f"the mask or the score modifier holds {long}, and a TPU computes in 32 bits"
    looked_up = [] if score is None else [score.roles]
    looked_up += [part.leaf_axes() for part in parts if part.asks_users_function]
    if any(roles.count(side) > tuning.KERNEL_ROWS for roles in looked_up for side in ("q", "k")):
        return f"more than {tuning.KERNEL_ROWS} arrays are looked up for each query or for each key"
    tables = [] if isinstance(plan.score, ScalarScore) else [c for c in x.captured if c.ndim]
    longest = max((c.shape[0] for c in tables), default=0)
    if longest > tuning.KERNEL_TABLE and plan.platform == "tpu" and not by_distance(kernel.score):
        return (
            f"the score modifier has a table of {longest} entries, and the kernel looks through {tuning.KERNEL_TABLE} "
            f"(of rows without positions it holds {tuning.KERNEL_OFFSETS} offsets, whatever the table)"
        )
    if tables and plan.platform == "gpu" and of_user(plan.score, None):
        return "a score modifier of your own looks up a table, which is not in the GPU kernel"
    values = [kernel.score.roles if has_values(kernel.score) else (), *(part.leaf_axes() for part in parts)]
    offsets = (kernel.q_rows + kernel.k_rows) * sum(roles.count("o") for roles in values)
    if offsets > tuning.KERNEL_OFFSETS:
        return f"{offsets} entries are looked up by distance, and the kernel holds {tuning.KERNEL_OFFSETS}"
    return next((found for part in parts if (found := of_mask(plan, part)) is not None), None)


def of_64_bits(score: SeparatedScore | None, x: Operands, parts: Sequence[Mask]) -> str:
    """The dtype of something of 64 bits or more, such as a PRNG key, that a tile would take as it is; empty if none is.

    The floating scalars and tables of this library are rounded before (`Call.rounded`).
    """
    of_score = [a for a in x.captured if not is_float(a)]
    if score is not None:
        of_score = [v.aval for variables in score.parts.between.values() for v in variables]
    held = (*of_score, *jax.tree.leaves(parts))
    return next((str(a.dtype) for a in held if a.dtype.itemsize > 4), "")


def of_mask(plan: Plan, part: Mask) -> str | None:
    """Of one of the masks that a mask is composed of, in the form that a kernel takes it."""
    limited = plan.platform == "tpu"  # a GPU gathers from memory
    leaves = list(zip(jax.tree.leaves(part), part.leaf_axes(), strict=True))
    for chosen in (leaf.shape[0] for leaf, role in leaves if role == "nq"):
        if limited and chosen > tuning.KERNEL_TABLE:
            return f"each query chooses {chosen} blocks, and the kernel looks through {tuning.KERNEL_TABLE}"
    for table in (leaf for leaf, role in leaves if not role and leaf.ndim):
        held = table.ndim == 2 and table.dtype == np.bool_ and not part.asks_users_function
        if not (held if limited else part.reads_entries):
            return "the mask looks up a table, which a kernel cannot gather from"
        entries = math.prod(-(-n // tuning.LANES) * tuning.LANES for n in table.shape)
        if limited and entries > tuning.KERNEL_BLOCKS:
            n, m = table.shape
            return f"the mask has a table of {n} × {m} blocks, and the kernel holds {tuning.KERNEL_BLOCKS}"
    return None


def mask_by_rows(plan: Plan, x: Operands) -> Mask:
    """The mask in the form that a kernel takes it, of the types of its arrays."""
    rows = (jax.ShapeDtypeStruct((n,), np.int32) for n in (plan.T, plan.S))
    at = [n if given is None else given for n, given in zip(rows, (x.q_positions, x.k_positions), strict=True)]
    if in_order(plan, x):
        at.append(jax.ShapeDtypeStruct((plan.q_rows + plan.k_rows,), np.int32))
    found: Mask = jax.eval_shape(lambda mask, *at: mask.map_leaves(lambda part: part.by_rows(*at)), x.mask, *at)
    return found


def of_bias_gradient(fun: Backward, plan: Plan, x: Operands, levels: BatchLevels) -> str | None:
    active = select_active(fun.tree, fun.argnums, fun.argnums)
    if active.bias is None:
        return None
    if x.bias.shape != (plan.T, plan.S) or len(levels.operands[active.bias]) != len(levels.sizes):
        return "a bias that serves several rows or heads has its gradient in loops"
    return None


def of_table_derivative(fun: DerivativePass, x: Operands, levels: BatchLevels) -> str | None:
    active = select_active(fun.tree, fun.argnums, fun.argnums)
    captured = [c for a, c in zip(active.captured, x.captured, strict=True) if a is not None]
    if fun.platform == "gpu":
        return of_gpu_table(fun, x, levels)
    score = kernel_plan(fun.plan, x, BACKWARD_Q).score
    if has_values(score) or not any(c.ndim for c in captured):
        return None
    if isinstance(fun, Tangent) or np.dtype(x.q.dtype) == np.float32:
        return None
    return (
        f"the gradient of a table in {np.dtype(x.q.dtype)} does not fit into vector memory where rows have positions "
        "(TPU v5; of float32 it does)"
    )


def of_gpu_table(fun: DerivativePass, x: Operands, levels: BatchLevels) -> str | None:
    if not differentiates_tables(fun, x):
        return None
    if score_at_distances(fun.plan, x) is None:
        what = "what stands beside an array that is" if isinstance(fun.plan.score, ScalarScore) else "a table that is"
        otherwise = "looked up for each pair, and not by t − s of rows without positions"
        return f"{what} {otherwise}, has no derivative in the kernel"
    return of_gpu_schedule(fun.plan, x, levels, BACKWARD_TABLE) if isinstance(fun, Backward) else None


def parts_of(mask: Mask) -> list[Any]:
    """The masks that a mask is composed of."""
    parts: list[Any] = []

    def collect(part: Mask) -> Mask:
        parts.append(part)
        return part

    mask.map_leaves(collect)
    return parts


def of_user(score: Any, mask: Mask | None) -> bool:
    """Whether a tile evaluates what a user wrote: a function, or a class of masks or score modifiers of their own."""
    parts: list[Any] = [] if mask is None else parts_of(mask)
    if isinstance(score, TileScore):
        parts.append(jax.tree.unflatten(score.tree, [0.0] * score.tree.num_leaves))
        parts.extend(getattr(parts[-1], "scores", ()))
    theirs = (getattr(x, "asks_users_function", False) or type(x).__module__.split(".")[0] != "jattn" for x in parts)
    return isinstance(score, ScalarScore) or any(theirs)


def of_lowering(fun: PlannedFunction, levels: BatchLevels, avals: tuple[Any, ...]) -> str | None:
    """Why what the user wrote cannot be lowered in a kernel, found by trying; logged at debug level."""
    kernel = jax.jit(partial(PASSES[type(fun)], fun, levels, partial(_run_on(fun.platform), interpret=False)))
    try:
        with about_triton():
            kernel.trace(*(jax.ShapeDtypeStruct(*a) for a in avals)).lower(lowering_platforms=(LOWERED[fun.platform],))
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        logger.debug("attention runs as loops: %s", reason)
        return f"what the score modifier or mask computes cannot be lowered there ({reason})"
    return None
