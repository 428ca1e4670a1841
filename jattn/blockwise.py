"""The forward fold: a query tile meets its key tiles one after another, carrying (max, sum, weighted values).

Milakov and Gimelshein's online softmax, in the form of Rabe and Staats 2021: the monoid of `partials`, folded from
the left, with the division by the sum put off to the end.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jattn._numerics import below, finite_or_zero, set_aside
from jattn._walk import Walkable
from jattn.tiles import (
    Plan,
    dropped,
    logits,
    meeting,
    over_keys,
    over_queries,
    padded,
    route,
    routes_differ,
    rows,
    tile_of,
)


@dataclasses.dataclass(frozen=True)
class Fold(Walkable):
    """The leaves of the operands → (out [T, Dv], m [T], log_sum [T]), in the dtype of the arithmetic.

    lse = m + log_sum, kept apart because beside a logit of 1e8 the logarithm of a sum is lost. A row that met
    nothing has m = −inf, log_sum = 0, out = 0.
    """

    plan: Plan
    tree: Any

    @property
    def bytes(self) -> int:
        return self.plan.bytes

    def apart(self, mapped: tuple[bool, ...]) -> bool:
        return routes_differ(self.plan, jax.tree.unflatten(self.tree, mapped))

    def __call__(self, *leaves: jax.Array) -> list[jax.Array]:
        plan = self.plan
        x = padded(plan, jax.tree.unflatten(self.tree, leaves))
        visits = route(plan, x)

        def row(_: Any, i: Any) -> Any:
            def step(carry: Any, j: Any, masked: bool) -> Any:
                m, total, acc = carry
                met = meeting(plan, x, i, j) if masked else None
                ell = logits(plan, x, i, j, met, tile_of(plan, x, i, j))
                v = rows(x.v, j, plan.k_tile).astype(plan.dtype)
                m_new = jnp.maximum(m, ell.max(1))
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
            return None, (acc / total[:, None], jnp.where(met_none, -jnp.inf, m), jnp.log(total))

        _, ys = over_queries(plan, row, None)
        return [y[: plan.T] for y in ys]
