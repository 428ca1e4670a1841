"""Many heads: which query head a key/value head serves, and options that have an entry a head or a row.

Grouped heads (Ainslie et al. 2023, "GQA"): query head h is served by key/value head ⌊h Hkv / H⌋, so that the axis H
splits into [Hkv, G], G = H / Hkv, and nothing is repeated in memory.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn.arguments.options import sink_array


def group_size(caller: str, H: Any, Hkv: Any, must: str, **got: Any) -> int:
    """G, how many query heads each key/value head serves."""
    if Hkv == 0 or not isinstance(H % Hkv, int) or H % Hkv:  # the remainder of two symbols of jax.export is one
        served = "Each key/value head serves the same number of query heads."
        remedy = "Give keys and values at least one head." if Hkv == 0 else served
        _errors.fail(ValueError, caller, must, remedy, **got)
    return H // Hkv


def split_heads(x: jax.Array, kv_heads: Any, axis: int = 0) -> jax.Array:
    """[..., H, ...] → [..., Hkv, G, ...], at `axis`."""
    return x.reshape(*x.shape[:axis], kv_heads, x.shape[axis] // kv_heads, *x.shape[axis + 1 :])


def merge_heads(x: jax.Array, axis: int = 0) -> jax.Array:
    """[..., Hkv, G, ...] → [..., H, ...], at `axis`."""
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def heads_before_rows(x: jax.Array, kv_heads: Any) -> jax.Array:
    """[B, T, H, ...] → [B, Hkv, G, T, ...]."""
    return jnp.moveaxis(split_heads(x, kv_heads, 2), 1, 3)


def rows_before_heads(x: jax.Array) -> jax.Array:
    """[B, Hkv, G, T, ...] → [B, T, H, ...]."""
    return merge_heads(jnp.moveaxis(x, 3, 1), 2)


def vmap_heads(f: Callable[..., Any], own_axes: Sequence[Any], kv_axis: int = 0) -> Callable[..., Any]:
    """f(q, k, v, own) of one head, mapped over query heads that share a key/value head, over these, over examples.

    Args:
      f: of q [T, D], k [S, D], v [S, Dv] and a pytree of what else differs.
      own_axes: in_axes of `own`, outermost first: of examples, key/value heads, query heads; or of the last two.
      kv_axis: of the heads in k and v of one example: 0 in [Hkv, S, D], 1 in [S, Hkv, D].

    Returns:
      f of q [B, Hkv, G, T, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv] and own, the heads of k and v at `kv_axis` of each
      example; without B where own_axes has two entries.
    """
    for kv, own in zip((None, kv_axis, 0), reversed(own_axes), strict=False):
        f = _vmap(f, (0, kv, kv, own))
    return f


def _vmap(f: Callable[..., Any], in_axes: tuple[Any, ...]) -> Callable[..., Any]:
    """jax.vmap, on an explicit mesh too, where it wants all that is mapped to lie on the devices in the same way: what
    is whole along the mapped axis is cut there as the others are."""

    def alike(*xs: Any) -> Any:
        leaves, tree = jax.tree.flatten(xs)
        own, structure = jax.tree.flatten(in_axes, is_leaf=lambda axis: axis is None)
        prefix: Any = structure
        parts = zip(own, prefix.flatten_up_to(xs), strict=True)
        axes = [axis for axis, part in parts for _ in jax.tree.leaves(part)]
        mapped = [(n, axis, jax.typeof(leaves[n]).sharding) for n, axis in enumerate(axes) if axis is not None]
        cut = [(n, sharding.spec[axis]) for n, axis, sharding in mapped if sharding.spec[axis] is not None]
        for n, axis, sharding in mapped if cut else ():
            if sharding.spec[axis] is None:
                like, name = cut[0]
                spec = jax.sharding.PartitionSpec(*sharding.spec[:axis], name, *sharding.spec[axis + 1 :])
                leaves[n] = _cut(leaves[n], leaves[like], spec)
        return jax.vmap(f, in_axes)(*jax.tree.unflatten(tree, leaves))

    return alike


@partial(jax.jit, static_argnums=2, keep_unused=True)
def _cut(x: jax.Array, like: jax.Array, spec: jax.sharding.PartitionSpec) -> jax.Array:
    """x, cut on the mesh of `like`. An argument, even unused, tells a program its devices where `jax.set_mesh` does
    not: a type names the axes of a mesh alone."""
    return jax.sharding.reshard(x, jax.typeof(like).sharding.update(spec=spec))


def sink_per_head(caller: str, sink: Any, heads: int, axis: str = "H", name: str = "sink") -> jax.Array:
    """A sink for all heads, [], or one a head, [H]."""
    sink = sink_array(caller, sink, name)
    if sink.shape not in ((), (heads,)):
        remedy = f"Give one logit for all heads, or one a head: {axis} is {heads} here."
        _errors.fail(ValueError, caller, f"{name} must have the shape [] or [{axis}]", remedy, **{name: sink})
    return sink


def per_row(
    caller: str, name: str, x: Any, full: tuple[int, ...], axes: str, unit: str, *, shared: bool = False
) -> jax.Array:
    """Whole numbers of the shape `full` in int32, or, where they may be `shared`, of that without its first axis."""
    _errors.in_int32(caller, name, x)
    x = _errors.array(caller, name, x)
    _errors.kind(caller, name, x, jnp.integer, f"It counts {unit}: pass whole numbers.")
    if x.shape != full and not (shared and x.shape == full[1:]):
        target = "[" + ", ".join(map(str, full)) + "]"
        remedy = f"Give one whole number for each: {axes} is {target} here."
        _errors.fail(ValueError, caller, f"{name} must have the shape {axes}", remedy, **{name: x})
    return x.astype(jnp.int32)  # signed: unsigned positions would wrap where two are subtracted
