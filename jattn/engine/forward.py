"""The forward pass: each query tile visits its key tiles one after another, carrying a softmax state.

Flash attention (Rabe and Staats 2021, Dao et al. 2022): the monoid of `partials`, folded from the left.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jattn._numerics import any_along, nan_if_nonfinite, nan_where, zero_nonfinite_rows
from jattn.engine import tile as tiles
from jattn.engine import tuning
from jattn.engine.batching import BatchedFunction, ForFinite, Operand
from jattn.engine.plan import Operands, Plan, fits_one_masked_tile, fits_one_tile, pad
from jattn.engine.schedule import PlannedFunction, entry, fold_rows, has_forms, schedule
from jattn.engine.tangent import Tangent
from jattn.engine.tile import Tile
from jattn.partials import SoftmaxState, excluded

CHECKPOINT_NAMES = ("jattn_out", "jattn_max", "jattn_log_sum")
"""The names by which a policy of `jax.checkpoint` saves what attention returns, so that no gradient attends again:
`jax.checkpoint_policies.save_only_these_names(*jattn.CHECKPOINT_NAMES)`. out, and the two summands of lse."""


class ReturnsPartial(BatchedFunction):
    """A function to (out, m, log_sum). m counts as a constant, and log_sum carries the derivative of lse."""

    @property
    def constant_outputs(self) -> frozenset[int]:
        return frozenset({1})

    @property
    def checkpoint_names(self) -> tuple[str, ...]:
        return CHECKPOINT_NAMES


@dataclasses.dataclass(frozen=True)
class Forward(PlannedFunction, ReturnsPartial):
    """The leaves of the operands → (out [T, Dv], m [T], log_sum [T]), in the dtype of the arithmetic.

    lse = m + log_sum, kept apart because beside a logit of 1e8 the logarithm of a sum is lost. A query without a key
    has m = −inf, log_sum = 0, out = 0.
    """

    mask_in_chain: bool = False
    """Whether a mask may be in the chain of `single_tile`: out is all that is read, and the mask is `of_scalars`."""

    together: ClassVar[Callable[..., PlannedFunction]]
    """The pass of the function and its tangent at once, which `attend` declares."""

    def with_residuals(self) -> "Forward":
        return dataclasses.replace(self, mask_in_chain=False)

    def _is_one_chain(self, x: Operands) -> bool:
        """Whether it is computed by `single_tile`, with a mask only where the operands are finite."""
        masked = self.mask_in_chain and self.plan.finite
        return (fits_one_masked_tile if masked else fits_one_tile)(self.plan, x)

    def output_types(self, *types: Any) -> list[Any]:
        plan = self.plan
        v: Any = jax.tree.unflatten(self.tree, types).v
        return [plan.type_of_rows(v.shape[1]), plan.type_of_rows(), plan.type_of_rows()]

    @property
    def working_set_bytes(self) -> int | None:
        # Where `single_tile` has no logits, the more heads in one kernel the better.
        if self.platform == "cpu" and self._is_one_chain(self.leaf_numbers):
            return None
        return self.plan.working_set_bytes

    def for_finite(self, examples: int = 1) -> ForFinite | None:
        return None if fits_one_tile(self.plan, self.leaf_numbers) else super().for_finite(examples)

    @property
    def jointly_linear(self) -> tuple[frozenset[int], ...]:
        return (frozenset({self.leaf_numbers.v}),)  # out = p·v, and lse does not depend on it

    def tangent_function(self, argnums: tuple[int, ...]) -> Tangent:
        return Tangent(self.plan, self.tree, argnums)

    def jvp_function(self, argnums: tuple[int, ...]) -> BatchedFunction | None:
        loops = self.plan.implementation in (None, "loops") and has_forms(self.plan)  # kernels run one after the other
        return self.together(self.plan, self.tree, argnums) if loops else None

    def __call__(self, *leaves: Operand) -> list[jax.Array]:
        plan = self.plan
        x = pad(plan, jax.tree.unflatten(self.tree, leaves))
        if self._is_one_chain(x):
            return single_tile(plan, x)
        visits = schedule(plan, x, of_value=True)
        nan_rows = (lambda *tile: None) if plan.finite else nan_rows_of(plan, x)
        exact = plan.finite and exact_logits(plan, x)

        def start(_: Any, i: Any) -> SoftmaxState | None:
            if exact and visits.written_out:
                return None  # the first tile makes the state
            return before_keys(plan, x, i)

        def step(state: SoftmaxState | None, i: Any, j: Any, masked: bool, first: Any) -> tuple[SoftmaxState, Any]:
            tile = tiles.cut(plan, x, i, j, first=first)
            if masked:
                state = forward_masked_tile(plan, state, tile, exact=exact)
            else:
                state = forward_full_tile(plan, state, tile, lambda products: nan_rows(products, i, j), exact=exact)
            return state, ()

        def finish(state: SoftmaxState | None) -> tuple[None, tuple[jax.Array, ...]]:
            out, m, log_sum = (before_keys(plan, x, 0) if state is None else state).finish(exact=exact)
            return None, (out if exact else out + nan_if_nonfinite(out)[:, None], m, log_sum)

        _, ys = fold_rows(visits, None, start, step, finish, SoftmaxState.once)
        return [y[: plan.T] for y in ys]


def before_keys(plan: Plan, x: Operands, i: Any) -> SoftmaxState:
    """The state of query tile i that has seen no key, with its sinks."""
    sink = x.sink if x.sink is None or x.sink.ndim == 0 else tiles.cut_rows(x.sink, i, plan.q_tile)
    return SoftmaxState.start(sink, (plan.q_tile,), x.v.shape[1], plan.dtype)


def forward_full_tile(
    plan: Plan,
    state: SoftmaxState | None,
    tile: Tile,
    nan_rows: Callable[[jax.Array], jax.Array | None],
    *,
    transposed: bool = False,
    exact: bool = False,
    plain: bool = False,
) -> SoftmaxState:
    """The state after a tile of which every pair is allowed. A state of None is that before any key."""
    products = tiles.products(tile.q, tile.k, tile.scale, transposed=transposed)
    logits = tiles.tile_logits(plan, tile, products, None, transposed=transposed)
    values = weighted_values(plan, tile, tile.v, transposed)
    if state is None:
        return SoftmaxState.of(logits, values)
    return state.absorb(logits, values, nan_rows(products), transposed=transposed, exact=exact, plain=plain)


def forward_masked_tile(
    plan: Plan,
    state: SoftmaxState | None,
    tile: Tile,
    *,
    transposed: bool = False,
    exact: bool = False,
    plain: bool = False,
) -> SoftmaxState:
    """The state after a tile of which some pairs are allowed: what is not allowed is not looked at."""
    allowed = tiles.tile_mask(plan, tile)
    if plan.finite and plan.score is None and tile.bias is not None:
        # A choice among the logits XLA makes once more beside each exponential, and reads the bias twice.
        hidden = tile._replace(bias=jnp.where(allowed, tile.bias, -jnp.inf))
        logits = tiles.logits(plan, hidden, None, transposed=transposed)
    else:
        least = excluded(plan.dtype) if exact else -jnp.inf
        logits = tiles.logits(plan, tile, allowed, transposed=transposed, excluded=least)
    v, nonfinite = (tile.v, None) if plan.finite else zero_nonfinite_rows(tile.v)
    values = weighted_values(plan, tile, v, transposed)
    if state is None:
        return SoftmaxState.of(logits, values)
    if nonfinite is not None:
        met = any_along(allowed & (nonfinite if transposed else nonfinite.T), 0 if transposed else 1)
        state = state._replace(acc=nan_where(met, state.acc))
    return state.absorb(logits, values, transposed=transposed, exact=exact, plain=plain)


def exact_logits(plan: Plan, x: Operands) -> bool:
    """Whether logits of operands that are finite are so too, and stored as they are compared, or small: sums of
    products, and scores whose bound is known.

    What another score, a bias or a sink brings was not looked at when the operands were found finite.
    """
    bounded = plan.score is None or plan.score.largest(x.captured) is not None
    return bounded and x.bias is None and x.sink is None and x.q.shape[1] > 1


def weighted_values(plan: Plan, tile: Tile, v: jax.Array, transposed: bool) -> Callable[[jax.Array], jax.Array]:
    """p → p·v, [queries, Dv], with what dropout does to p; transposed, [Dv, queries]."""
    if transposed:
        return weighted(plan, tile, lambda p: tiles.dot(v, p, over=(0, 0)), transposed=True)
    return weighted(plan, tile, lambda p: tiles.dot(p, v))


def weighted(
    plan: Plan, tile: Tile, values: Callable[[jax.Array], jax.Array], *, transposed: bool = False
) -> Callable[[jax.Array], jax.Array]:
    """`values` of the weights that dropout leaves."""
    factors = tiles.dropout_factors(plan, tile, transposed=transposed)
    return values if factors is None else lambda p: values(p * factors)


def nan_rows_of(plan: Plan, x: Operands) -> Callable[..., jax.Array]:
    """For a full tile, (products, i, j) → for each query 0, or NaN where it or any of the keys is not finite."""
    if plan.q_tile < tuning.FEW_QUERIES:  # without a second look at all keys: a product tells
        return lambda products, i, j: products.max(1) * 0 + products.min(1) * 0
    q, k = (nan_if_nonfinite(a.astype(plan.dtype)) for a in (x.q, x.k))
    q, k = q.reshape(-1, plan.q_tile), k.reshape(-1, plan.k_tile).sum(1)
    return lambda products, i, j: entry(q, i) + entry(k, j)


def single_tile(plan: Plan, x: Operands) -> list[jax.Array]:
    """The same without a carry and without a choice, in what remains an unbroken chain of arithmetic.

    XLA makes one kernel of it on a CPU, with no array of logits (`tuning.SINGLE_TILE_PAIRS`).
    """
    tile = tiles.cut(plan, x, 0, 0)
    products = tiles.products(tile.q, tile.k, tile.scale)
    logits = tiles.tile_logits(plan, tile, products, None, transposed=False)
    if x.mask is not None:
        return _single_masked_tile(plan, tile, logits)
    p, m, total, log_sum = single_softmax(plan, logits, nan_rows_of(plan, x)(products, 0, 0), tile.q.shape[1])
    out = (p @ tile.v) / total[:, None]
    return [out + nan_if_nonfinite(out)[:, None], m, log_sum]


def _single_masked_tile(plan: Plan, tile: Tile, logits: jax.Array) -> list[jax.Array]:
    """Of logits that are finite. A choice among them would break the chain; their minimum with a number that is above
    or below all of them does not."""
    allowed = tiles.tile_mask(plan, tile)
    above = jnp.asarray(jnp.finfo(plan.dtype).max, plan.dtype)
    logits = jnp.minimum(logits, jnp.where(allowed, above, excluded(plan.dtype)))
    p, m, total, log_sum = single_softmax(plan, logits, jnp.zeros((), plan.dtype), tile.q.shape[1])
    nonempty = any_along(allowed, 1)
    out = (p @ tile.v) / total[:, None] * nonempty.astype(plan.dtype)
    return [out, *(jnp.where(nonempty[:, 0], y, none) for y, none in ((m, -jnp.inf), (log_sum, 0)))]


def single_softmax(plan: Plan, logits: jax.Array, nan_rows: jax.Array, width: int) -> tuple[jax.Array, ...]:
    """(exp(logits − m), m, its sum, log_sum) of all logits at once, of queries and keys of this width."""
    m = logits.max(1) + nan_rows
    p = tiles.weights(plan, logits, m, width)
    total = jnp.maximum(p.sum(1), jnp.finfo(plan.dtype).tiny)
    return p, m, total, jnp.where(m == -jnp.inf, 0, jnp.log(total))
