"""Kernels: the passes of the engine as single programs of an accelerator, from the same functions of a tile.

layout     the operands of all heads, in blocks by their roles, and the walk over tiles that a kernel takes
passes     the forward, tangent and backward pass, each as kernels: what they fold over tiles
tpu        a kernel as a program of the TPU (Pallas, Mosaic)
support    what has a kernel on which platform, and in words why what has none has none
report     how each pass in a program would run on a platform

Compiled for TPU v5e, v5p and v6e by their compiler and interpreted on CPUs; run on no TPU yet.
"""
