"""One tile: some queries against some keys. Its operands, which of its pairs are allowed, its logits, its dropout.

Every function here takes the operands of one tile, cut before it is called (`cut`), each laid along its own axis of
the tile. A tile has its queries down and its keys across, [q, k], or is transposed, [k, q]: then every operand that has
both axes is, and no function has to know.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jattn._numerics import (
    HIDDEN,
    after,
    before_transpose,
    below,
    is_half,
    nan_where,
    nonfinite_rows,
    of_first_example,
    sum_of,
    transpose,
    untransposed,
    zero_nonfinite_rows,
)
from jattn.engine.batching import slice_of
from jattn.engine.plan import ROLES, Operands, Plan
from jattn.engine.tuning import DROPOUT_CELL
from jattn.masks import Mask, Rows, TileAxis


class Tile(NamedTuple):
    """The operands of one tile, in the dtype of the arithmetic; q, k and v of a kernel of the GPU in 16 bits too
    (`dot`). Of tangents, any of them may be None."""

    q: Any
    k: Any
    v: Any
    bias: Any
    scale: Any
    captured: tuple[Any, ...]
    mask: Mask | None
    q_axis: TileAxis
    k_axis: TileAxis
    """The axes as the mask is asked; their numbers are those of dropout too."""
    positions: tuple[Any, Any]
    """Of the queries and of the keys, along their axes, as a score modifier is told them (`within`)."""
    dropout: Any
    """(key, rate); in a kernel, which draws them by itself, (the kept pairs, rate)."""


def cut(plan: Plan, x: Operands, i: Any, j: Any, *, transposed: bool = False, first: Any = ()) -> Tile:
    """The operands of tile (i, j), by their roles (`plan.ROLES`, `Mask.leaf_axes`).

    What is as large as the tile is not computed before the arrays of `first`: products of its queries, and what a score
    modifier makes of its positions.
    """
    rows, axes = {}, {}
    sides = ("q", i, plan.q_tile, x.q_positions, plan.T), ("k", j, plan.k_tile, x.k_positions, plan.S)
    for (letter, n, size, at, _), across in zip(sides, (transposed, not transposed), strict=True):
        start = n * size
        if at is None:  # rows stand at their own numbers
            numbers = start + jnp.arange(size, dtype=jnp.int32)
            rows[letter], along = Rows(start, numbers), jnp.expand_dims(numbers, 0 if across else 1)
            axes[letter] = TileAxis(along, along)
        else:
            rows[letter] = Rows(start, cut_rows(at, n, size))
            axes[letter] = rows[letter].along(int(across))

    def take(a: Any, role: str) -> Any:
        if a is None:
            return None
        starts: list[Any] = [0] * a.ndim
        sizes = list(a.shape)
        for axis, letter in enumerate(role):
            n = len(rows[letter].positions) if letter in rows else 1
            if n != 1 and a.shape[axis] != 1:
                starts[axis], sizes[axis] = rows[letter].start, n
        # Both axes at once: XLA would take a row of tiles out of a bias before the loop over its tiles.
        a = slice_of(a, starts, sizes)
        return (a.T if transposed and role == "qk" else a).astype(plan.dtype)

    if plan.score is not None:
        earlier = of_first_example(first) if plan.score.by_diagonals else first
        axes["q"] = axes["q"]._replace(positions=after(earlier, axes["q"].positions))
    told = [axes[letter].positions for letter in "qk"]
    if plan.score is not None:
        for side, (_, n, size, at, length) in enumerate(sides):
            if at is None and reaches_beyond(length, n, size):
                told[side] = within(told[side], length)
    return Tile(
        q=None if x.q is None else after(first, take(x.q, ROLES.q)),
        k=take(x.k, ROLES.k),
        v=take(x.v, ROLES.v),
        bias=take(x.bias, ROLES.bias),
        scale=take(x.scale, ROLES.scale),
        captured=x.captured,
        mask=None if x.mask is None else x.mask.cut(rows["q"], rows["k"], transposed=transposed),
        q_axis=axes["q"],
        k_axis=axes["k"],
        positions=(told[0], told[1]),
        dropout=x.dropout,
    )


def reaches_beyond(length: Any, n: Any, size: int) -> bool:
    """Whether tile n of so many rows may hold rows that pad the last one."""
    if isinstance(n, int) and isinstance(length, int):
        return (n + 1) * size > length
    return not isinstance(length, int) or length % size != 0


def within(numbers: jax.Array, length: Any) -> jax.Array:
    """Numbers of rows; for one that pads, that of the last. So a score modifier is asked of no place where none stands,
    where it may not be finite: times a weight of 0 that would reach its gradient."""
    return jnp.minimum(numbers, jnp.asarray(length - 1, numbers.dtype))


def cut_rows(x: jax.Array, i: Any, n: int) -> jax.Array:
    """Tile i of n rows; all of an array that has just one tile."""
    return x if x.shape[0] == n else jax.lax.dynamic_slice_in_dim(x, i * n, n, allow_negative_indices=False)


def tile_mask(plan: Plan, tile: Tile) -> jax.Array:
    """The allowed pairs of a tile; the rows that pad the last tile of keys do not exist."""
    allowed = jnp.ones((), bool) if tile.mask is None else tile.mask.pairs(tile.q_axis, tile.k_axis)
    if plan.k_rows != plan.S:
        allowed &= tile.k_axis.numbers < plan.S
    shape = jnp.broadcast_shapes(tile.q_axis.numbers.shape, tile.k_axis.numbers.shape)
    return jnp.broadcast_to(allowed, shape)


def dot(a: jax.Array, b: jax.Array, *, over: tuple[int, int] = (1, 0)) -> jax.Array:
    """The matrix product, summed over one axis of each, in the dtype of the arithmetic.

    A kernel of the GPU leaves what it reads in 16 bits as it is, for its tensor cores: the products of two such factors
    are exact in float32. A factor of float32 beside one of bfloat16 is the sum of two of bfloat16, of 8 bits each; as
    one in TF32 it would keep 11. `jax.default_matmul_precision("bfloat16")` makes it one of bfloat16.
    """
    a_source, b_source = untransposed(a), untransposed(b)
    if a_source is not None and over[0] == 0:
        a, over = a_source, (1, over[1])
    if b_source is not None:
        b, over = b_source, (over[0], 1 - over[1])
    dims = (((over[0],), (over[1],)), ((), ()))
    if a.dtype == b.dtype:
        return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32 if is_half(a) else None)
    config: Any = jax.config
    precision = config.jax_default_matmul_precision
    if jnp.bfloat16 not in (a.dtype, b.dtype) or precision in ("highest", "float32"):
        return jax.lax.dot_general(a.astype(jnp.float32), b.astype(jnp.float32), dims)
    if precision in ("bfloat16", "BF16_BF16_F32"):
        narrow = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
        return jax.lax.dot_general(*narrow, dims, preferred_element_type=jnp.float32)
    pairs = zip(_parts(a), _parts(b), strict=True)
    high, low = (jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32) for a, b in pairs)
    return sum_of(low, high)


def _parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two arrays of bfloat16, of which the sum is x; of bfloat16, x twice."""
    if x.dtype == jnp.bfloat16:
        return x, x
    high = x.astype(jnp.bfloat16)
    return high, (x - high.astype(x.dtype)).astype(jnp.bfloat16)


def products(q: jax.Array, k: jax.Array, scale: jax.Array, *, transposed: bool = False) -> jax.Array:
    """scale · ⟨q, k⟩ of each pair.

    Scaled before the dot: the products then end in a sum, not in a factor that XLA could fuse with "− max". In 16 bits
    a scaled query would be rounded, and kernels of the GPU compare before they subtract (`_numerics.below`).
    """
    if is_half(q):
        return (dot(k, q.T) if transposed else dot(q, k.T)) * scale
    scaled = before_transpose(lambda q: q * scale, q)
    return dot(k, transpose(scaled)) if transposed else dot(scaled, k.T)


def logits(
    plan: Plan,
    tile: Tile,
    allowed: jax.Array | None,
    *,
    transposed: bool = False,
    excluded: Any = -jnp.inf,
    nonfinite: jax.Array | None = None,
) -> jax.Array:
    """The logits of a tile, `excluded` where a pair is not `allowed` (None: all are)."""
    q, k = tile.q, tile.k
    if is_searched(plan, allowed, nonfinite):  # before the scale: 0 · NaN would reach its gradient
        q, k = zero_nonfinite_rows(q)[0], zero_nonfinite_rows(k)[0]
    found = products(q, k, tile.scale, transposed=transposed)
    return tile_logits(plan, tile, found, allowed, transposed=transposed, excluded=excluded, nonfinite=nonfinite)


def is_searched(plan: Plan, allowed: jax.Array | None, nonfinite: jax.Array | None) -> bool:
    """Whether a tile is searched for what is not finite: where a mask may hide it, and nothing is known of it."""
    return allowed is not None and nonfinite is None and not plan.finite


def tile_logits(
    plan: Plan,
    tile: Tile,
    products: jax.Array,
    allowed: jax.Array | None,
    *,
    transposed: bool,
    excluded: Any = -jnp.inf,
    nonfinite: jax.Array | None = None,
) -> jax.Array:
    """The logits of a tile, from its products. `nonfinite` as below, of operands that were made finite."""
    if is_searched(plan, allowed, nonfinite):
        of_q, of_k = nonfinite_rows(tile.q), nonfinite_rows(tile.k)
        nonfinite = of_k | of_q.T if transposed else of_q | of_k.T
    score = None if plan.score is None else partial(plan.score, tile.captured)
    return logits_from_products(products, score, tile.bias, allowed, nonfinite, *tile.positions, excluded)


def logits_from_products(
    products: jax.Array,
    score: Callable[..., jax.Array] | None,
    bias: jax.Array | None,
    allowed: jax.Array | None,
    nonfinite: Any,
    q_positions: jax.Array,
    k_positions: jax.Array,
    excluded: Any = -jnp.inf,
) -> jax.Array:
    """What scaled products become: score modifier, then bias, then mask. The one place where a logit is made.

    The forward pass, a call of one tile, both derivative passes and the cache all call it, so that an ingredient of
    attention that is added here is in the value and in every derivative of every path.

    Args:
      products: of any shape that ends in the two axes of a tile.
      score: f(products, q_positions, k_positions) on a whole tile, or None.
      bias: broadcasts to the products.
      allowed: likewise; None where every pair is.
      nonfinite: the pairs whose query or key holds a NaN or an infinity: NaN, without a derivative. None for none.
      q_positions: along the axis of the queries; k_positions: along that of the keys.
      excluded: the logit of a pair that is not allowed.
    """
    logits = products
    if score is not None:
        logits = score(logits if allowed is None else jnp.where(allowed, logits, HIDDEN), q_positions, k_positions)
    if bias is not None:
        logits = logits + (bias if allowed is None else jnp.where(allowed, bias, 0))
    if nonfinite is not None:
        logits = nan_where(nonfinite, logits)
    if allowed is None:
        return logits
    return jnp.where(allowed, logits, excluded)


def weights(plan: Plan, logits: jax.Array, m: jax.Array, width: int) -> jax.Array:
    """exp(logits − m) of all logits of a query at once, which are sums of as many products as queries are wide."""
    top = jnp.maximum(m, jnp.finfo(plan.dtype).min)[:, None]  # where all are −∞ their weights are 0, not NaN
    minus = below if width == 1 else jnp.subtract  # a sum of one product is a product
    return jnp.exp(minus(logits, top))


def dropout_factors(plan: Plan, tile: Tile, *, transposed: bool = False) -> jax.Array | None:
    """What dropout multiplies the weights of a tile by: 0, or 1 / (1 − rate); None without dropout."""
    if tile.dropout is None:
        return None
    key, rate = tile.dropout
    kept = key if key.dtype == jnp.bool_ else kept_pairs(plan, tile, key, rate, transposed=transposed)
    return jnp.where(kept, 1 / (1 - rate), 0)


def kept_pairs(plan: Plan, tile: Tile, key: jax.Array, rate: jax.Array, *, transposed: bool) -> jax.Array:
    """Which pairs of a tile dropout keeps.

    That depends on the key and on the two row numbers of a pair alone, never on the tiles nor on a dtype: it is drawn
    in float32, in cells of 16 × 16 pairs, each from the key folded with the place of the cell. `kernels.threefry` draws
    the same.
    """
    down, across = (-(-n // DROPOUT_CELL) for n in (plan.q_tile, plan.k_tile))
    share = 1 - rate.astype(jnp.float32)

    def cell(a: jax.Array, b: jax.Array) -> jax.Array:
        here = jax.random.fold_in(jax.random.fold_in(key, a), b)
        return jax.random.bernoulli(here, share, (DROPOUT_CELL, DROPOUT_CELL))

    a, b = (
        axis.numbers.ravel()[0] // DROPOUT_CELL + jnp.arange(n, dtype=jnp.int32)
        for axis, n in ((tile.q_axis, down), (tile.k_axis, across))
    )
    kept = jax.vmap(jax.vmap(cell, (None, 0)), (0, None))(a, b)
    kept = kept.swapaxes(1, 2).reshape(down * DROPOUT_CELL, across * DROPOUT_CELL)[: plan.q_tile, : plan.k_tile]
    return kept.T if transposed else kept
