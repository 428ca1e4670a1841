"""What a score is, and those of the logit and the distance alone; one after another."""

import functools
import math
from typing import Any, overload

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._types import Array, ArrayLike, Float, ScoreModifier
from jattn._values import show, value


class Score:
    """A score modifier. Called with scalars, or with a tile of scores and the positions of its rows.

    `score` is a scalar and `t`, `s` are; or it is a tile and they have its two axes, one of them of length 1.
    A class of one's own is registered as a pytree, as one of `masks.Mask` is; a function needs nothing.
    """

    looks_at_positions: bool = False
    """Whether the answer depends on either position."""

    by_diagonals: bool = False
    """Whether it finds out first if positions are consecutive, and then computes what it adds on the diagonals alone.

    Heads that have the same positions are asked together.
    """

    @property
    def largest(self) -> Any:
        """What no result exceeds in magnitude, of scores that are finite; None where nothing is known."""
        return None

    def at_distances(self, distance: jax.Array) -> "Score":
        """The same score with what it looks up for each of these distances s − t in the place of its tables.

        That is what a kernel takes which cannot gather, and spreads over the diagonals of a tile (`OfPairs`).
        """
        return self

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        remedy = "Return the new score, of one number and two positions or of a tile of them."
        got = {"score": f"of type {type(self).__name__}"}
        _errors.fail(TypeError, "score", "a class of scores must define __call__(self, score, t, s)", remedy, **got)


@value
class OfPairs(Score):
    """A score plus an entry of each pair."""

    entries: Float[Array, "..."]

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        return score + self.entries.astype(score.dtype)


@value
class SoftCap(Score):
    """See `soft_cap`."""

    cap: Float[Array, ""] | float

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        cap = jnp.asarray(self.cap, score.dtype)
        return cap * jnp.tanh(score / cap)

    @property
    def largest(self) -> Any:
        return self.cap

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


@value
class Composed(Score):
    """See `compose`."""

    scores: tuple[Any, ...]

    @property
    def looks_at_positions(self) -> bool:  # type: ignore[override]
        return any(f.looks_at_positions for f in self.scores)

    @property
    def by_diagonals(self) -> bool:  # type: ignore[override]
        return any(f.by_diagonals for f in self.scores)

    def at_distances(self, distance: jax.Array) -> "Composed":
        return Composed(tuple(f.at_distances(distance) for f in self.scores))

    def __call__(self, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        for f in self.scores:
            score = jnp.asarray(f(score, t, s))  # of a function it may be a number
        return score

    def __repr__(self) -> str:
        return f"compose({', '.join(map(repr, self.scores))})"


def soft_cap(cap: Float[ArrayLike, ""]) -> Score:
    """Bounds a score smoothly: c · tanh(score / c), which is the score itself where it is small.

    Args:
      cap: c > 0 and finite, in logits; a real scalar, possibly traced or learned.

    Returns:
      A score. It caps scale · ⟨q, k⟩, before bias and mask.

    Raises:
      TypeError: the cap is not a real scalar.
      ValueError: it is 0 or less, or not finite (of a traced one that is not asked).

    Memory: one number.

    Source: Gemma Team 2024, "Gemma 2", section 2.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import scores
      >>> here = jnp.int32(0)
      >>> print(scores.soft_cap(50.0)(jnp.array([1.0, 50.0, 1000.0]), here, here).round())
      [ 1. 38. 50.]
    """
    return SoftCap(_above_zero("soft_cap", "cap", cap))


def temperature(tau: Float[ArrayLike, ""]) -> Score:
    """Sharpens or flattens: score / τ; below 1 the largest weight grows, above 1 all become more alike.

    Args:
      tau: τ > 0 and finite; a real scalar, possibly traced or learned.

    Returns:
      A score.

    Raises:
      TypeError: tau is not a real scalar.
      ValueError: it is 0 or less, or not finite (of a traced one that is not asked).

    Memory: one number.

    Source: Hinton et al. 2015, "Distilling the knowledge in a neural network", eq. 1.

    Example:
      >>> from jattn import scores
      >>> scores.temperature(0.5)
      temperature(0.5)
    """
    return Temperature(_above_zero("temperature", "tau", tau))


def alibi(slope: Float[ArrayLike, ""]) -> Score:
    """Attention with linear biases: score − m·|t − s|, so that what stands farther away scores less.

    Args:
      slope: m, per token; a real scalar, possibly traced or learned. `alibi_slopes` has the published ones.

    Returns:
      A score. Symmetric: before a causal mask it is the published one.

    Raises:
      TypeError: the slope is not a real scalar.

    Memory: one number.

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

    Memory: H numbers.

    Source: Press et al. 2022, "Train short, test long", section 3 and the code that it refers to.

    Example:
      >>> from jattn import scores
      >>> print(scores.alibi_slopes(8)[:3], scores.alibi_slopes(3))
      [0.5   0.25  0.125] [0.0625     0.00390625 0.25      ]
    """
    H = _errors.count("alibi_slopes", "heads", heads, least=1)
    n = 2 ** int(math.log2(H))
    slopes = [2.0 ** (-8 * (h + 1) / n) for h in range(n)]
    between = [2.0 ** (-8 * (h + 1) / (2 * n)) for h in range(0, 2 * n, 2)]
    return jnp.asarray((slopes + between)[:H], jnp.float32)


@overload
def compose(*scores: Score) -> Score: ...
@overload
def compose(*scores: ScoreModifier) -> ScoreModifier: ...
def compose(*scores: ScoreModifier) -> ScoreModifier:
    """One score after another: the first is asked first.

    Args:
      scores: scores, or any functions (score, q_position, k_position) -> score.

    Returns:
      A score; of functions, a function. Of none, what leaves a score as it is.

    Raises:
      TypeError: one of them is not a function of three scalars.

    Memory: that of its parts.

    Example:
      >>> from jattn import scores
      >>> scores.compose(scores.soft_cap(50.0), scores.alibi(0.25))
      compose(soft_cap(50.0), alibi(0.25))
    """
    remedy = "Write f(score, q_position, k_position) -> score on scalars; the library maps it."
    for f in scores:
        for kind in (Score, ScoreModifier):
            _errors.called("compose", "score", kind, f, "score must take three scalars")
        _errors.takes("compose", "score", f, 3, remedy)
    made = Composed(scores)
    return made if all(isinstance(f, Score) for f in scores) else functools.partial(_of_functions, made)


def _of_functions(made: Composed, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
    """A composition as a function like any other, of whose parts nothing is known; pickled where they are."""
    return made(score, t, s)


def _real(caller: str, name: str, x: Any) -> Any:
    """A real scalar: a Python number as it is, else an array."""
    if type(x) in (int, float):
        return float(x)
    return _errors.scalar(caller, name, x, "Map over heads with jax.vmap.")


def _above_zero(caller: str, name: str, x: Any) -> Any:
    x = _real(caller, name, x)
    if _errors.known(x) and not 0 < (known := float(_errors.read(x))) < math.inf:
        must = f"{name} must be more than 0 and finite"
        _errors.fail(ValueError, caller, must, "Leave the score out instead.", **{name: str(known)})
    return x
