"""Score modifiers that look up a distance in a table, usually a learned one."""

from typing import Any

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._diagonals import of_distances
from jattn._types import Array, ArrayLike, Float, Integer
from jattn._values import show, static, value
from jattn.scores._pointwise import OfPairs, Score


class _OfDistance(Score):
    """A score plus a table's entry for the distance s − t."""

    looks_at_positions = True
    by_diagonals = True
    table: Float[Array, " n"]

    def entry(self, distance: jax.Array) -> jax.Array:
        """Which entry each distance has."""
        raise NotImplementedError

    def at_distances(self, distance: jax.Array) -> Score:
        return OfPairs(self.table[self.entry(distance)])

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        table = self.table.astype(score.dtype)
        if table.ndim == 2:  # as in a kernel of a TPU, which cannot gather: [entries, 1], or [entries, queries]
            entry = self.entry(s - t)
            return score + sum(jnp.where(entry == n, table[n : n + 1], 0) for n in range(table.shape[0]))
        in_kernel = jnp.shape(t) == jnp.shape(s)  # of a GPU, which reads an entry for each pair
        if in_kernel or jnp.ndim(score) != 2 or min(score.shape) < _FEW:
            return score + table[self.entry(s - t)]
        return score + of_distances(lambda d: table[self.entry(d)], t, s)


_FEW = 16


@value
class RelativeBias(_OfDistance):
    """See `relative_bias`."""

    table: Float[Array, " buckets"]
    max_distance: int = static()
    bidirectional: bool = static()

    def entry(self, distance: jax.Array) -> jax.Array:
        return bucket(distance, self.table.shape[0], max_distance=self.max_distance, bidirectional=self.bidirectional)

    def __repr__(self) -> str:
        rest = f"max_distance={self.max_distance}, bidirectional={self.bidirectional}"
        return f"relative_bias({show(self.table)}, {rest})"


@value
class DistanceBias(_OfDistance):
    """See `distance_bias`."""

    table: Float[Array, " n"]

    def entry(self, distance: jax.Array) -> jax.Array:
        m = self.table.shape[0] // 2
        return jnp.clip(distance, -m, m) + m

    def __repr__(self) -> str:
        return f"distance_bias({show(self.table)})"


def relative_bias(table: Float[ArrayLike, " n"], *, max_distance: int = 128, bidirectional: bool = True) -> Score:
    """Adds what a table holds for the distance, in the buckets of T5: near ones single, far ones by the logarithm.

        score + table[bucket(s − t)]

    Args:
      table: [buckets], floating point, usually learned; 32 in T5.
      max_distance: tokens; all that is farther shares the last bucket. T5 has 128.
      bidirectional: whether keys after the query have buckets of their own, half of them; else they share the one
        of distance 0, as in a decoder.

    Returns:
      A score.

    Raises:
      TypeError: the table is not floating point.
      ValueError: it has not one axis, too few buckets or, of a bidirectional one, an odd number; or max_distance does
        not go beyond the buckets of one distance.

    Memory: the table. Of a tile of q queries and k keys, where positions are consecutive, q + k entries are looked up.

    Source: Raffel et al. 2020, "Exploring the limits of transfer learning", section 2.1.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import scores
      >>> f = scores.relative_bias(jnp.arange(8.0), max_distance=8)
      >>> print(f(jnp.zeros((1, 9)), jnp.array([[4]]), jnp.arange(9)[None]))
      [[3. 2. 2. 1. 0. 5. 6. 6. 7.]]
    """
    caller = "relative_bias"
    table = _table(caller, table)
    far = _reach(caller, "table must have", table.shape[0], max_distance, bidirectional, table=table)
    return RelativeBias(table, far, bool(bidirectional))


def _reach(caller: str, must: str, n: int, max_distance: Any, bidirectional: bool, **got: Any) -> int:
    """max_distance as an int, where there can be so many buckets up to it; `got` is what said how many."""
    far = _errors.count(caller, "max_distance", max_distance)
    sides = 2 if bidirectional else 1
    if n % sides or n < 2 * sides:
        least = "an even number of buckets, at least 4" if bidirectional else "at least 2 buckets"
        _errors.fail(ValueError, caller, f"{must} {least}", "T5 has 32.", **got)
    if far <= n // sides // 2:
        must = "max_distance must be more than the distances that have a bucket of their own"
        _errors.fail(ValueError, caller, must, "T5 has 128 for 32 buckets.", **got, max_distance=str(far))
    return far


def distance_bias(table: Float[ArrayLike, " n"]) -> Score:
    """Adds what a table holds for the distance s − t itself; what lies beyond its ends has the entry at the end.

        score + table[clip(s − t, −m, m) + m]

    Args:
      table: [2m + 1], floating point, usually learned: from m tokens before the query to m tokens after it.

    Returns:
      A score.

    Raises:
      TypeError: the table is not floating point.
      ValueError: it has not one axis, or an even number of entries.

    Memory: the table. Of a tile of q queries and k keys, where positions are consecutive, q + k entries are looked up.

    Source: Shaw et al. 2018, "Self-attention with relative position representations", section 3.2, of scalars.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import scores
      >>> f = scores.distance_bias(jnp.array([-2.0, 0.0, 1.0]))
      >>> print(f(jnp.zeros((1, 5)), jnp.array([[2]]), jnp.arange(5)[None]))
      [[-2. -2.  0.  1.  1.]]
    """
    table = _table("distance_bias", table)
    if table.shape[0] % 2 == 0:
        remedy = "Give one entry to each distance from −m to m, 0 among them."
        _errors.fail(ValueError, "distance_bias", "table must have an odd number of entries", remedy, table=table)
    return DistanceBias(table)


def bucket(
    distance: Integer[ArrayLike, "..."], buckets: int, *, max_distance: int, bidirectional: bool
) -> Integer[Array, "..."]:
    """The bucket of T5 for each distance s − t, as `relative_bias` uses it.

    Of n buckets a side, the first n/2 hold one distance each; bucket b beyond them begins at the distance
    e·(max_distance / e)^((b − e) / (n − e)), e = ⌊n/2⌋, compared in whole numbers: no logarithm is rounded.

    Args:
      distance: integers of any shape, in tokens.
      buckets: how many there are, in all.
      max_distance: tokens. bidirectional: as in `relative_bias`.

    Returns:
      int32 of the same shape, from 0 to buckets − 1.

    Raises:
      TypeError: distances are not integers, or a number is not a whole one.
      ValueError: buckets and max_distance are none that `relative_bias` takes.

    Memory: a few times that of the distances.

    Source: Raffel et al. 2020, "Exploring the limits of transfer learning", section 2.1, and its code.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import scores
      >>> print(scores.bucket(jnp.array([-200, -16, -8, -1, 0, 1, 8]), 32, max_distance=128, bidirectional=True))
      [15 10  8  1  0 17 24]
    """
    # In int32: unsigned ones have no opposite, and narrow ones do not reach a far bucket.
    distance = _errors.whole_numbers("bucket", "distance", distance, "Distances count tokens: pass whole numbers.")
    buckets = _errors.count("bucket", "buckets", buckets)
    max_distance = _reach("bucket", "there must be", buckets, max_distance, bidirectional, buckets=str(buckets))
    n = buckets // 2 if bidirectional else buckets
    exact = n // 2
    begins = [_root(exact ** (n - exact - j) * max_distance**j, n - exact) for j in range(1, n - exact)]
    begins = [b for b in begins if b < 2**31]  # no distance reaches the others
    far = jnp.abs(distance) if bidirectional else jnp.maximum(-distance, 0)
    beyond = sum(((far >= b).astype(far.dtype) for b in begins), jnp.zeros_like(far))
    one_side = jnp.minimum(far, exact) + beyond
    return one_side + n * (distance > 0).astype(far.dtype) if bidirectional else one_side


def _root(x: int, n: int) -> int:
    """The least whole number whose n-th power is at least x, by halving: a float would not hold every x."""
    low, high = 0, 1 << -(-x.bit_length() // n)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if middle**n >= x else (middle, high)
    return high


def _table(caller: str, table: Any) -> jax.Array:
    x = _errors.array(caller, "table", table)
    _errors.floating(caller, table=x)
    _errors.rank(caller, 1, "[n]", "One table is one head: map over heads with jax.vmap.", table=x)
    return x
