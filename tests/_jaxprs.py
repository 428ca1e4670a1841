"""What a program forms, read off its jaxpr."""

import sys

import jax

from jattn.engine import batching


def within(eqn):
    """The jaxprs of which an equation is made; of a batched call, those of its function in each of its forms."""
    fun = None
    if eqn.primitive is batching.batched_call_p:
        fun = eqn.params["fun"]
    if eqn.primitive is batching.batched_jvp_p:
        fun = eqn.params["fun"].jvp_function(eqn.params["argnums"])
    if fun is not None:
        shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        finite = fun.for_finite(sys.maxsize)  # few examples have one form: what more of them would form
        for form in [fun] if finite is None else [finite.fun, finite.otherwise]:
            yield jax.make_jaxpr(form)(*shapes).jaxpr
    for leaf in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
        leaf = getattr(leaf, "jaxpr", leaf)
        if hasattr(leaf, "eqns"):
            yield leaf


def formed(jaxpr):
    """Every array that a program forms, in whatever is nested in it."""
    for eqn in jaxpr.eqns:
        yield from (v.aval for v in eqn.outvars)
        for inner in within(eqn):
            yield from formed(inner)
