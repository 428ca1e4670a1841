"""Kernels: the passes of the engine as single programs of an accelerator, from the same functions of a tile.

grid       the grid of a kernel: heads, tiles of one side, tiles of the other
plans      which tiles a kernel has, and its name
layout     the operands of all heads, in blocks by their roles
kernel     what a kernel is made of: a fold over the tiles that it visits
threefry   the draws of dropout, of each pair by itself
score      score modifiers, with what they look up as operands
distances  what a score modifier looks up by distance, over the diagonals of a tile
passes     the forward and the tangent pass, each as a kernel: what it folds over tiles
backward   the backward pass as two or three kernels
tpu        a kernel as a program of the TPU (Pallas, Mosaic)
gpu        a kernel as a program of an NVIDIA GPU (Pallas, Triton)
cudnn      what NVIDIA's own library computes in place of a kernel
support    what has a kernel on which platform, and in words why what has none has none
report     how each pass in a program would run on a platform

Compiled for TPU v5e, v5p and v6e and for an H200 by their compilers, interpreted on CPUs, and run on an H200 and an
H100; on no TPU yet. A kernel is taken where there is one: of the TPU on each, of the GPU on those that it was run on
(compute capability 9) and on others where implementation='kernel' asks for it.
"""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from jattn.engine.batching import BatchLevels, Kernel
    from jattn.engine.schedule import PlannedFunction


def choose_kernel(
    fun: "PlannedFunction", platform: str, levels: "BatchLevels", avals: Sequence[Any], *, exported: bool
) -> "Kernel | None":
    """The pass over all its heads as kernels, or None where it runs as loops (`support.choose`).

    What knows kernels is imported by the first call that may have one: on a CPU, one that asks for it.
    """
    if platform == "cpu" and fun.plan.implementation in (None, "loops"):
        return None
    with jax.ensure_compile_time_eval():  # the call may be traced: what a module computes of its own is not
        support = importlib.import_module("jattn.engine.kernels.support")
    kernel: Kernel | None = support.choose(fun, platform, levels, avals, exported=exported)
    return kernel
