"""Words: a function whose batch is walked.

`jax.vmap` turns a loop over tiles into a loop over batched tiles. For attention that is the wrong loop
inside: the working set of one step grows by the size of the batch until no cache holds it, a `cond` that
skips a tile becomes a `select` that computes it, and bounds that differ between examples are all the
largest. `walk(fun)(*operands)` is `fun(*operands)` with one difference: mapped by vmap it runs a few
examples at a time, one group after another, and inside a group of one everything is as it was.

Nothing else changes. It has every derivative of `fun`, in both modes and to every order:

    jvp          one more walk, of the tangent function, linear in the tangents
    transpose    one more walk, of its transpose

both derived by JAX, or the ones that `fun` brings along.

This is the "linear map with an explicit transpose" that `jax.custom_derivatives.linear_call` offers, with
the batching rule and the higher orders that it lacks. A function to be walked is a hashable value (a frozen
dataclass with `__call__`), so that equal calls are compiled once.
"""

from jattn._walk._mapped import Mapped
from jattn._walk._primitive import Walkable, alike, walk, walk_p

__all__ = ["Mapped", "Walkable", "alike", "walk", "walk_p"]
