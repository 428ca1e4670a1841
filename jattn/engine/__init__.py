"""The engine: exact attention of one head at linear memory, and its derivatives, a tile at a time.

attend      the one entrance: options of one head → (out, lse), the forward pass with its derivatives
plan        the operands, their roles, and the sizes of tiles;  tuning: every machine constant
tile        what one tile is: its operands, its mask, its logits (the one place), its dropout
schedule    which tiles are visited, by the block states of the mask, and the loops over them
forward     the forward pass
tangent     the tangent (jvp) pass
backward    the backward (vjp) pass, its transpose
jvp         the forward and the tangent pass at once
heads_at_once  the forward pass of few queries of many heads, in one product
per_query   passes for statistics and top_keys;  score: a score modifier, apart from the arrays that it closes over
batching    batched calls: how a pass is mapped over batch and heads, on one device and on several
kernels     the same passes as kernels of a TPU or a GPU
"""
