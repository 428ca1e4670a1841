"""Batched calls: a function of one example whose batch is run in groups, as `jax.vmap` alone would not.

`jax.vmap` turns a loop over tiles into a loop over batched tiles. For attention that is the wrong loop
inside: the working set of one step grows by the size of the batch until no cache holds it, a `cond` that
skips a tile becomes a `select` that computes it, and bounds that differ between examples become the
largest of them. `batched_call(fun, *operands)` is `fun(*operands)` with one difference: mapped by vmap it
is a sequential vmap, a few examples at a time, one group after another, and a group of one is unbatched.

It has every derivative of `fun`, in both modes and to every order:

    jvp          one more batched call, of the tangent function, linear in the tangents
    transpose    one more batched call, of its transpose

both derived by JAX, or the ones that `fun` brings along.

This is the "linear map with an explicit transpose" that `jax.custom_derivatives.linear_call` offers, with
the batching rule and the higher orders that it lacks. The function is a hashable value (a frozen dataclass
with `__call__`), so that equal calls are compiled once.

    function       what is called: what a batched call asks of it, and what JAX derives of it
    primitive      the primitive and its lowering
    vmap           its batching rule: groups of examples
    partition      its partitioning rule: each device runs the examples that it holds
    derivatives    its derivatives, and the primitive of a call and its tangents in one program
"""

from jattn.engine.batching.derivatives import batched_jvp_p, one_after_the_other
from jattn.engine.batching.function import (
    BatchedFunction,
    FiniteKernel,
    ForFinite,
    Kernel,
    Linear,
    are_transposes,
    has_kernels,
    times,
)
from jattn.engine.batching.partition import BatchLevels
from jattn.engine.batching.primitive import batched_call, batched_call_p
from jattn.engine.batching.vmap import Example, Operand, Vmapped, slice_of

__all__ = [
    "BatchLevels",
    "BatchedFunction",
    "Example",
    "FiniteKernel",
    "ForFinite",
    "Kernel",
    "Linear",
    "Operand",
    "Vmapped",
    "are_transposes",
    "batched_call",
    "batched_call_p",
    "batched_jvp_p",
    "has_kernels",
    "one_after_the_other",
    "slice_of",
    "times",
]
