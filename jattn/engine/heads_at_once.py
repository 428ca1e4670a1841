"""Few queries of many heads whose keys lie side by side, [S, heads, D]: all heads of an example in one product.

With a product for each head, XLA on a CPU first copies the keys to [heads, S, D], which takes longer than to attend.
Here keys and values are read where they lie. Each query stands in the columns of its own head, with 0 in the others:

    [queries of all heads, heads · D] · [S, heads · D]ᵀ    the products of all queries
    [queries of all heads, S] · [S, heads · Dv]            of which each query keeps the columns of its own head

That is `heads` times the arithmetic, which is little beside reading the keys while the queries are few and no cache
holds the keys (`tuning.ROWS_AT_ONCE`, `tuning.BYTES_AT_ONCE`). Since 0 · NaN is NaN, a key that is not finite would
reach the other heads: where a result is not finite, the loops compute it (`FiniteKernel`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jattn._numerics import after
from jattn.engine import tile as tiles
from jattn.engine import tuning
from jattn.engine.batching import BatchLevels, FiniteKernel
from jattn.engine.forward import Forward, weighted
from jattn.engine.plan import Operands
from jattn.partials import SoftmaxState


def heads_at_once(fun: Forward, platform: str, levels: BatchLevels, avals: Sequence[Any]) -> FiniteKernel | None:
    """The forward pass over all heads in two products; None where it runs as loops."""
    plan, number = fun.plan, fun.leaf_numbers
    of_q, of_k, of_v = (levels.operands[i] for i in (number.q, number.k, number.v))
    inside = [level for level in of_k if {(number.k, level), (number.v, level)} <= levels.inside]
    if len(inside) != 1 or of_k != of_v or inside[0] not in of_q:
        return None
    if platform != "cpu" or plan.implementation is not None or plan.tile_given:
        return None
    if not plan.static_lengths or plan.q_tiles * plan.k_tiles != 1 or not all(isinstance(n, int) for n in levels.sizes):
        return None
    (heads,) = inside
    rows = plan.T * math.prod(n for level, n in enumerate(levels.sizes) if level == heads or level not in of_k)
    kept = sum(avals[i].size * avals[i].dtype.itemsize for i in (number.k, number.v))
    if levels.sizes[heads] == 1 or rows > tuning.ROWS_AT_ONCE or kept < rows * tuning.BYTES_AT_ONCE:
        return None

    def moved(xs: Sequence[jax.Array], source: int, destination: int) -> list[jax.Array]:
        """With an axis of the keys and of the values in another place."""
        return [jnp.moveaxis(x, source, destination) if i in (number.k, number.v) else x for i, x in enumerate(xs)]

    first, behind_rows = of_k.index(heads), len(of_k)

    return FiniteKernel(
        lambda *xs: attend_at_once(fun, levels, heads, xs),
        lambda xs, ys: _all_finite(*ys),
        in_memory_order=lambda xs: moved(xs, first, behind_rows),
        ordered=lambda xs: moved(xs, behind_rows, first),
    )


def _all_finite(out: jax.Array, m: jax.Array, log_sum: jax.Array) -> jax.Array:
    """And no infinity, but the −∞ of a query without a key."""
    return jnp.isfinite(out).all() & (m < jnp.inf).all() & jnp.isfinite(log_sum).all()


def attend_at_once(fun: Forward, levels: BatchLevels, heads: int, xs: Sequence[jax.Array]) -> list[jax.Array]:
    """(out, m, log_sum) of operands that are finite. `heads`: the level that keys and values have beside their rows."""
    plan, number, sizes = replace(fun.plan, finite=True), fun.leaf_numbers, levels.sizes
    of_k = levels.operands[number.k]
    batch = tuple(level for level in of_k if level != heads)
    group = tuple(level for level in range(len(sizes)) if level not in of_k)  # the query heads of one key head
    order = (*batch, heads, *group)
    outer, H = len(batch), sizes[heads]
    own = jnp.eye(H, dtype=bool)[:, None, :, None]

    def ordered(i: int, order: Sequence[int]) -> jax.Array:
        return levels.spread(xs[i], levels.operands[i], order)

    def columns(i: int) -> jax.Array:
        """[…, S, heads · D] of keys or values, as they lie in memory."""
        x = jnp.moveaxis(ordered(i, (*batch, heads)), outer, outer + 1).astype(plan.dtype)
        return x.reshape(*x.shape[: outer + 1], -1)

    def in_levels(x: jax.Array, *rest: int) -> jax.Array:
        """[batch, queries of all heads, …] with the levels in their order."""
        return levels.spread(x.reshape(*(sizes[level] for level in order), *rest), order, range(len(sizes)))

    def of_one(products: jax.Array, *leaves: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of one head, from its products: the weights in the place of out."""
        x: Operands = jax.tree.unflatten(fun.tree, leaves)
        tile = tiles.cut(plan, x._replace(q=None, k=None, v=None), 0, 0)
        allowed = None if tile.mask is None else tiles.tile_mask(plan, tile)
        logits = tiles.tile_logits(plan, tile, products, allowed, transposed=False)
        start = SoftmaxState.start(x.sink, (plan.T,), plan.S, plan.dtype)
        return start.absorb(logits, weighted(plan, tile, lambda p: p)).finish()

    q = ordered(number.q, order).astype(plan.dtype) * ordered(number.scale, order)[..., None, None]
    q = q.reshape(*q.shape[: outer + 1], -1, 1, q.shape[-1])
    q = jnp.where(own, q, 0).reshape(*q.shape[:outer], -1, H * q.shape[-1])
    if q.shape[-2] <= tuning.ROWS_ACROSS:
        # But for the addition XLA would fold the transposition into the product.
        products = after(q, jnp.einsum("...sc,...rc->...sr", columns(number.k), q)).swapaxes(-1, -2)
    else:
        products = jnp.einsum("...rc,...sc->...rs", q, columns(number.k))
    products = in_levels(products, plan.T, plan.S)
    mapped = [tuple(range(len(sizes))), *levels.operands]
    for level in reversed(range(len(sizes))):
        of_one = jax.vmap(of_one, [0 if level in levels_of else None for levels_of in mapped])
    weights, m, log_sum = of_one(products, *xs)
    weights = levels.spread(weights, tuple(range(len(sizes))), order).reshape(*q.shape[:-1], plan.S)
    out = jnp.einsum("...rs,...sc->...rc", weights, columns(number.v))
    out = jnp.where(own, out.reshape(*out.shape[:outer], H, -1, H, out.shape[-1] // H), 0).sum(-2)
    return [in_levels(out, plan.T, out.shape[-1]), m, log_sum]
