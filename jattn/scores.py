"""Scores: *what* a meeting is worth.

A score is a function of one number and two positions, f(score, q_position, k_position) -> score. Any function will do,
closing over any arrays, which then have their gradients. Those that are made here are values besides: their arrays are
leaves, so that `vmap` gives each head its own, they print as the code that made them, and equal ones are compiled once.

    soft_cap(cap)                c · tanh(score / c)
    temperature(tau)             score / τ
    alibi(slope)                 score − m·|t − s|
    relative_bias(table)         score + table[bucket of s − t], the buckets of T5
    distance_bias(table)         score + table[s − t], the farthest entries for all that is farther
    compose(f, g, ...)           f first, then g

A score for each head is the same score, mapped:

    >>> import jax, jattn
    >>> from jattn import scores
    >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 8, 6, 4))      # 8 heads
    >>> head = lambda q, k, v, slope: jattn.attention(q, k, v, score=scores.alibi(slope))
    >>> jax.vmap(head)(q, k, v, scores.alibi_slopes(8)).shape
    (8, 6, 4)
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jattn import _checks
from jattn._types import Array, Float
from jattn._values import show, static, value


class Score:
    """What a meeting is worth. Called with scalars, or with a tile of scores and the positions of its rows.

    `score` is a scalar and `t`, `s` are; or it is a tile and they have its two axes, one of them of length 1.
    """

    looks_at_positions: bool = False
    """Whether the answer depends on either position."""

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        raise NotImplementedError


@value
class SoftCap(Score):
    """See `soft_cap`."""

    cap: Float[Array, ""] | float

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        cap = jnp.asarray(self.cap, score.dtype)
        return cap * jnp.tanh(score / cap)

    def __repr__(self) -> str:
        return f"soft_cap({show(self.cap)})"


@value
class Temperature(Score):
    """See `temperature`."""

    tau: Float[Array, ""] | float

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        return score / jnp.asarray(self.tau, score.dtype)

    def __repr__(self) -> str:
        return f"temperature({show(self.tau)})"


@value
class Alibi(Score):
    """See `alibi`."""

    looks_at_positions = True
    slope: Float[Array, ""] | float

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        return score - jnp.asarray(self.slope, score.dtype) * jnp.abs(t - s).astype(score.dtype)

    def __repr__(self) -> str:
        return f"alibi({show(self.slope)})"


class _OfDistance(Score):
    """A score plus a table's entry for the distance s − t."""

    looks_at_positions = True
    table: Float[Array, " n"]

    def entry(self, distance: jax.Array) -> jax.Array:
        """Which entry each distance has."""
        raise NotImplementedError

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        table = self.table.astype(score.dtype)
        if jnp.ndim(score) != 2 or min(score.shape) < _FEW:
            return score + table[self.entry(s - t)]
        return score + _of_distances(lambda d: table[self.entry(d)], t, s)


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


@value
class Composed(Score):
    """See `compose`."""

    scores: tuple[Any, ...]

    @property
    def looks_at_positions(self) -> bool:  # type: ignore[override]
        return any(f.looks_at_positions for f in self.scores)

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        for f in self.scores:
            score = f(score, t, s)
        return score

    def __repr__(self) -> str:
        return f"compose({', '.join(map(repr, self.scores))})"


def soft_cap(cap: Any) -> Score:
    """Bounds a score smoothly: c · tanh(score / c), which is the score itself where it is small.

    Args:
      cap: c > 0, in logits; a real scalar, possibly traced or learned.

    Returns:
      A score. It caps scale · ⟨q, k⟩, before bias and mask.

    Raises:
      TypeError: the cap is not a real scalar.
      ValueError: it is 0 or less (of a traced one that is not asked).

    Source: Gemma Team 2024, "Gemma 2", section 2.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import scores
      >>> print(scores.soft_cap(50.0)(jnp.array([1.0, 50.0, 1000.0]), 0, 0).round())
      [ 1. 38. 50.]
    """
    return SoftCap(_above_zero("soft_cap", "cap", cap))


def temperature(tau: Any) -> Score:
    """Sharpens or flattens: score / τ; below 1 the largest weight grows, above 1 all become more alike.

    Args:
      tau: τ > 0; a real scalar, possibly traced or learned.

    Returns:
      A score.

    Raises:
      TypeError: tau is not a real scalar.
      ValueError: it is 0 or less (of a traced one that is not asked).

    Source: Hinton et al. 2015, "Distilling the knowledge in a neural network", eq. 1.

    Example:
      >>> from jattn import scores
      >>> scores.temperature(0.5)
      temperature(0.5)
    """
    return Temperature(_above_zero("temperature", "tau", tau))


def alibi(slope: Any) -> Score:
    """Attention with linear biases: score − m·|t − s|, so that what stands farther away is worth less.

    Args:
      slope: m, per token; a real scalar, possibly traced or learned. `alibi_slopes` has the published ones.

    Returns:
      A score. Symmetric: before a causal mask it is the published one.

    Raises:
      TypeError: the slope is not a real scalar.

    Source: Press et al. 2022, "Train short, test long", section 3.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import scores
      >>> print(scores.alibi(0.5)(jnp.zeros((1, 4)), jnp.array([[3]]), jnp.arange(4)[None]))
      [[-1.5 -1.  -0.5  0. ]]
    """
    return Alibi(_real("alibi", "slope", slope))


def alibi_slopes(heads: int) -> Float[Array, " H"]:
    """The published slopes of `alibi`, one a head.

    For a power of two the geometric sequence from 2^(−8/H) on; else that of the next lower power of two, and then
    every second one of the next higher.

    Args:
      heads: H ≥ 1.

    Returns:
      [H] in float32.

    Raises:
      TypeError: H is not a whole number.
      ValueError: it is less than 1.

    Source: Press et al. 2022, "Train short, test long", section 3 and the code that it refers to.

    Example:
      >>> from jattn import scores
      >>> print(scores.alibi_slopes(8)[:3], scores.alibi_slopes(3))
      [0.5   0.25  0.125] [0.0625     0.00390625 0.25      ]
    """
    H = _checks.count("alibi_slopes", "heads", heads, least=1)
    n = 2 ** int(math.log2(H))
    slopes = [2.0 ** (-8 * (h + 1) / n) for h in range(n)]
    between = [2.0 ** (-8 * (h + 1) / (2 * n)) for h in range(0, 2 * n, 2)]
    return jnp.asarray((slopes + between)[:H], jnp.float32)


def relative_bias(table: Any, *, max_distance: int = 128, bidirectional: bool = True) -> Score:
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
    where = "relative_bias"
    table = _table(where, table)
    far = _checks.count(where, "max_distance", max_distance)
    sides = 2 if bidirectional else 1
    if table.shape[0] % sides or table.shape[0] < 2 * sides:
        least = "an even number of buckets, at least 4" if bidirectional else "at least 2 buckets"
        _checks.fail(ValueError, where, f"table must have {least}", "T5 has 32.", table=table)
    if far <= table.shape[0] // sides // 2:
        must = "max_distance must be more than the distances that have a bucket of their own"
        _checks.fail(ValueError, where, must, "T5 has 128 for 32 buckets.", table=table, max_distance=str(far))
    return RelativeBias(table, far, bool(bidirectional))


def distance_bias(table: Any) -> Score:
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
        _checks.fail(ValueError, "distance_bias", "table must have an odd number of entries", remedy, table=table)
    return DistanceBias(table)


def compose(*scores: Any) -> Any:
    """One score after another: the first is asked first.

    Args:
      scores: scores, or any functions (score, q_position, k_position) -> score.

    Returns:
      A score; of functions, a function. Of none, what leaves a score as it is.

    Raises:
      TypeError: one of them is not a function of three scalars.

    Example:
      >>> from jattn import scores
      >>> scores.compose(scores.soft_cap(50.0), scores.alibi(0.25))
      compose(soft_cap(50.0), alibi(0.25))
    """
    remedy = "Write f(score, q_position, k_position) -> score on scalars; the library maps it."
    for f in scores:
        _checks.takes("compose", "score", f, 3, remedy)
    made = Composed(scores)
    if all(isinstance(f, Score) for f in scores):
        return made
    return lambda score, t, s: made(score, t, s)


def bucket(distance: Any, buckets: int, *, max_distance: int, bidirectional: bool) -> jax.Array:
    """The bucket of T5 for each distance s − t, as `relative_bias` uses it.

    Of n buckets a side, the first n/2 hold one distance each; bucket b beyond them begins at the distance
    e·(max_distance / e)^((b − e) / (n − e)), e = ⌊n/2⌋, compared in whole numbers: no logarithm is rounded.

    Args:
      distance: integers of any shape, in tokens.
      buckets: how many there are.
      max_distance: tokens. bidirectional: as in `relative_bias`.

    Returns:
      Integers of the same shape, from 0 to buckets − 1.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import scores
      >>> print(scores.bucket(jnp.array([-200, -16, -8, -1, 0, 1, 8]), 32, max_distance=128, bidirectional=True))
      [15 10  8  1  0 17 24]
    """
    distance = jnp.asarray(distance)
    n = buckets // 2 if bidirectional else buckets
    exact = n // 2
    # Python ints throughout: they take the dtype of the distances.
    begins = [_root(exact ** (n - exact - j) * max_distance**j, n - exact) for j in range(1, n - exact)]
    far = jnp.abs(distance) if bidirectional else jnp.maximum(-distance, 0)
    beyond = sum(((far >= b).astype(far.dtype) for b in begins), jnp.zeros_like(far))
    one_side = jnp.minimum(far, exact) + beyond
    return one_side + n * (distance > 0).astype(far.dtype) if bidirectional else one_side


def _root(x: int, n: int) -> int:
    """The least whole number whose n-th power is at least x."""
    r = max(1, round(x ** (1 / n)) - 1)
    while r**n < x:
        r += 1
    return r


def _of_distances(f: Any, t: jax.Array, s: jax.Array) -> jax.Array:
    """f(s − t) of a tile, t and s along its two axes; where positions are consecutive, of its diagonals alone."""
    queries_down = t.shape[0] > 1
    n, m = (t.size, s.size) if queries_down else (s.size, t.size)
    consecutive = jnp.all(jnp.diff(t.ravel()) == 1) & jnp.all(jnp.diff(s.ravel()) == 1)

    def by_diagonals() -> jax.Array:
        along = jnp.arange(n + m - 1, dtype=jnp.int32) - (n - 1)
        return _toeplitz(f(s.ravel()[0] - t.ravel()[0] + (along if queries_down else -along)), n)

    return jax.lax.cond(consecutive, by_diagonals, lambda: f(s - t))


def _toeplitz(diagonals: jax.Array, n: int) -> jax.Array:
    """The matrix of n rows whose entry (i, j) is diagonals[j − i + n − 1]."""
    L = diagonals.shape[0] + 1
    first = jnp.roll(jnp.pad(diagonals, (0, 1)), -(n - 1))
    # Rows of L − 1 cut out of repetitions of L: each begins one entry earlier than the one above it.
    return jnp.broadcast_to(first, (n, L)).ravel()[: n * (L - 1)].reshape(n, L - 1)[:, : L - n]


def _table(where: str, table: Any) -> jax.Array:
    x = _checks.array(where, "table", table)
    _checks.floating(where, table=x)
    _checks.rank(where, 1, "[n]", "One table is one head: map over heads with jax.vmap.", table=x)
    return x


def _real(where: str, name: str, x: Any) -> Any:
    """A real scalar: a Python number as it is, else an array."""
    if type(x) in (int, float):
        return float(x)
    return _checks.scalar(where, name, x, "Map over heads with jax.vmap.")


def _above_zero(where: str, name: str, x: Any) -> Any:
    x = _real(where, name, x)
    if isinstance(x, float) and not x > 0:
        _checks.fail(ValueError, where, f"{name} must be more than 0", "Leave the score out instead.", **{name: str(x)})
    return x
