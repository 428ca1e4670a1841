"""The forward fold: a query tile meets its key tiles one after another, carrying (max, sum, weighted values).

Milakov and Gimelshein's online softmax, in the form of Rabe and Staats 2021: the monoid of `partials`, folded from
the left, with the division by the sum put off to the end.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jattn._numerics import below, finite_or_zero, nan_where_bad, set_aside
from jattn._walk import Walkable
from jattn.tiles import (
    CELL,
    Operands,
    Plan,
    dropped,
    meeting,
    over_keys,
    over_queries,
    padded,
    product,
    route,
    routes_differ,
    rows,
    tile_of,
    worth,
)

CHECKPOINT_NAMES = ("jattn_out", "jattn_max", "jattn_log_sum")
"""The names by which a policy of `jax.checkpoint` saves what attention returns, so that no gradient attends again:
`jax.checkpoint_policies.save_only_these_names(*jattn.CHECKPOINT_NAMES)`. out, and the two summands of lse."""


@dataclasses.dataclass(frozen=True)
class Fold(Walkable):
    """The leaves of the operands → (out [T, Dv], m [T], log_sum [T]), in the dtype of the arithmetic.

    lse = m + log_sum, kept apart because beside a logit of 1e8 the logarithm of a sum is lost. A row that met
    nothing has m = −inf, log_sum = 0, out = 0.
    """

    plan: Plan
    tree: Any

    @property
    def platform(self) -> str:
        return self.plan.platform

    def for_platform(self, platform: str) -> Walkable:
        return dataclasses.replace(self, plan=self.plan.for_platform(platform))

    @property
    def bytes(self) -> int:
        if self.platform == "cpu":  # where `_at_once` has no logits, the more heads in one kernel the better
            leaves = [0] * self.tree.num_leaves  # a placeholder for each: only what is there counts
            if _is_small_and_plain(self.plan, jax.tree.unflatten(self.tree, leaves)):
                return 0
        return self.plan.bytes

    def apart(self, mapped: tuple[bool, ...]) -> bool:
        return routes_differ(self.plan, jax.tree.unflatten(self.tree, mapped))

    def __call__(self, *leaves: jax.Array) -> list[jax.Array]:
        plan = self.plan
        x = padded(plan, jax.tree.unflatten(self.tree, leaves))
        if _is_small_and_plain(plan, x):
            return _at_once(plan, x)
        visits = route(plan, x)
        bad = _what_is_bad(plan, x)

        def row(_: Any, i: Any) -> Any:
            def step(carry: Any, j: Any, masked: bool) -> Any:
                m, total, acc = carry
                met = meeting(plan, x, i, j) if masked else None
                tile = tile_of(plan, x, i, j)
                products = product(tile, met)
                ell = worth(plan, x, i, j, met, tile, products, keys_first=False)
                v = rows(x.v, j, plan.k_tile).astype(plan.dtype)
                m_new = jnp.maximum(m, ell.max(1))
                if met is None:
                    m_new += bad(products, i, j)
                top = finite_or_zero(m_new)
                p = jnp.exp(below(ell, top[:, None]))
                kept = dropped(plan, x, i, j)
                shrink = jnp.exp(below(m, top))
                if met is not None:
                    v, v_bad = set_aside(v)
                    acc = jnp.where((met & v_bad[None, :]).any(1)[:, None], jnp.nan, acc)
                acc = acc * shrink[:, None] + (p if kept is None else p * kept) @ v
                return m_new, total * shrink + p.sum(1), acc

            sink = jnp.float32(-jnp.inf) if x.sink is None else rows(x.sink, i, plan.q_tile) if x.sink.ndim else x.sink
            m = jnp.broadcast_to(sink.astype(plan.dtype), (plan.q_tile,))
            carry = m, (m > -jnp.inf).astype(plan.dtype), jnp.zeros((plan.q_tile, x.v.shape[1]), plan.dtype)
            m, total, acc = over_keys(visits, i, step, carry)
            met_none = total == 0
            total = jnp.where(met_none, 1, total)
            out = acc / total[:, None]
            return None, (out + nan_where_bad(out)[:, None], jnp.where(met_none, -jnp.inf, m), jnp.log(total))

        _, ys = over_queries(plan, row, None)
        return [y[: plan.T] for y in ys]


def _what_is_bad(plan: Plan, x: Operands) -> Callable[..., jax.Array]:
    """Of a tile in which all meet: (products, i, j) → for each row 0, or NaN where it or any key is bad."""
    if plan.q_tile < CELL:  # without another look at all keys: an infinite product tells, one that is NaN is seen
        return lambda products, i, j: products.max(1) * 0 + products.min(1) * 0
    q, k = (nan_where_bad(a.astype(plan.dtype)) for a in (x.q, x.k))
    q, k = q.reshape(-1, plan.q_tile), k.reshape(-1, plan.k_tile)
    return lambda products, i, j: q[i] + k[j].sum()


def _is_small_and_plain(plan: Plan, x: Operands) -> bool:
    """One tile of at most 256 × 256 pairs that all meet, and nothing but scaled products in the logits."""
    others = x.mask, x.bias, x.sink, x.dropout, plan.score
    one = plan.nq == plan.nk == 1 and plan.q_tile * plan.k_tile <= 2**16
    return one and all(other is None for other in others)


def _at_once(plan: Plan, x: Operands) -> list[jax.Array]:
    """The same without a carry and without a choice, in what remains an unbroken chain of arithmetic.

    XLA makes one kernel of it on a CPU, with no array of logits: over many heads twice as fast as in four.
    """
    tile = tile_of(plan, x, 0, 0)
    ell = product(tile, None)
    bad = _what_is_bad(plan, x)
    m = ell.max(1) + bad(ell, 0, 0)
    top = jnp.maximum(m, jnp.finfo(plan.dtype).min)[:, None]  # where all are −∞ their weights are 0, not NaN
    minus = below if tile.q.shape[1] == 1 else jnp.subtract  # a sum of one product is a product
    p = jnp.exp(minus(ell, top))
    total = jnp.maximum(p.sum(1), jnp.finfo(plan.dtype).tiny)
    out = (p @ x.v.astype(plan.dtype)) / total[:, None]
    return [out + nan_where_bad(out)[:, None], m, jnp.where(m == -jnp.inf, 0, jnp.log(total))]
