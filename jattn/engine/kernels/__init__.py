"""Kernels: the passes of the engine as single programs of an accelerator, from the same functions of a tile.

layout     the operands of all heads, in blocks by their roles, and the walk over tiles that a kernel takes
threefry   the draws of dropout, of each pair by itself
score      a user's score modifier, with what it looks up as operands
passes     the forward, tangent and backward pass, each as kernels: what they fold over tiles
tpu        a kernel as a program of the TPU (Pallas, Mosaic)
gpu        a kernel as a program of an NVIDIA GPU (Pallas, Triton)
support    what has a kernel on which platform, and in words why what has none has none
report     how each pass in a program would run on a platform

Compiled for TPU v5e, v5p and v6e and for an H200 by their compilers and interpreted on CPUs; run on none of them yet.
A kernel of the TPU is taken where there is one, a kernel of the GPU where implementation='kernel' asks for it.
"""
