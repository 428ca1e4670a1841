"""Kernels: the passes of the engine as single programs of an accelerator, from the same functions of a tile.

layout     the operands of all heads, in blocks by their roles, and the walk over tiles that a kernel takes
tpu        the forward, tangent and backward pass for the TPU (Pallas, Mosaic)
support    what has a kernel on which platform, and in words why what has none has none

Compiled for TPU v5e, v5p and v6e by their compiler and interpreted on CPUs; run on no TPU yet.
"""
