"""Masks by the order of the sequence: before or after the query, near it, or among the first tokens."""

import jax.numpy as jnp

from jattn import _errors
from jattn._types import Array, ArrayLike, Bool, Integer
from jattn._values import show, static, value
from jattn.masks._algebra import Mask, Pattern
from jattn.masks._counts import distance, first_tokens
from jattn.masks._tiles import EMPTY, FULL, BlockState, Ends, Spans, TileAxis, block_state


@value
class Causal(Mask):
    """See `causal`."""

    looks_at_positions = True

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return q.positions >= k.positions

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        return block_state(q.highest >= k.lowest, q.lowest >= k.highest)

    def pattern(self) -> Pattern:
        return Pattern(causal=True)

    def __repr__(self) -> str:
        return "causal()"


@value
class Prefix(Mask):
    """See `prefix`."""

    looks_at_positions = True
    n: Integer[Array, ""] | int

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return k.positions < self.n

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        return block_state(k.lowest < self.n, k.highest < self.n)

    def __repr__(self) -> str:
        return f"prefix({show(self.n)})"


@value
class Sinks(Mask):
    """See `sinks`."""

    looks_at_positions = True
    n: Integer[Array, ""] | int

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return (k.positions < self.n) & (k.positions <= q.positions)

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        some = (k.lowest < self.n) & (k.lowest <= q.highest)
        return block_state(some, (k.highest < self.n) & (k.highest <= q.lowest))

    def __repr__(self) -> str:
        return f"sinks({show(self.n)})"


@value
class Window(Mask):
    """See `window`."""

    looks_at_positions = True
    left: int | None = static()
    right: int | None = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        t, s = q.positions, k.positions
        near = jnp.ones((), bool)
        if self.left is not None:
            near &= t - s <= self.left
        if self.right is not None:
            near &= s - t <= self.right
        return near

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        some: Ends | bool = True
        every: Ends | bool = True
        if self.left is not None:
            some, every = q.lowest - k.highest <= self.left, q.highest - k.lowest <= self.left
        if self.right is not None:
            some, every = some & (k.lowest - q.highest <= self.right), every & (k.highest - q.lowest <= self.right)
        return block_state(some, every)

    def pattern(self) -> Pattern | None:
        return None if self.right else Pattern(self.right == 0, self.left)

    def __repr__(self) -> str:
        return f"window(left={self.left}, right={self.right})"


@value
class Constant(Mask):
    """See `full` and `empty`."""

    allowed: bool = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return jnp.full(q.numbers.shape, self.allowed)  # Triton negates no literal

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        return FULL if self.allowed else EMPTY

    def pattern(self) -> Pattern | None:
        return Pattern() if self.allowed else None

    def __repr__(self) -> str:
        return "full()" if self.allowed else "empty()"


def causal() -> Mask:
    """A query attends the keys that do not stand after it: position t ≥ position s.

    Returns:
      A mask. With T ≠ S the caller says how the rows align, by `q_positions` and `k_positions`.

    Memory: that of its numbers: no pair is written out.

    Source: Vaswani et al. 2017, "Attention is all you need", section 3.2.3.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.causal(), 4))
      #···
      ##··
      ###·
      ####
    """
    return Causal()


def window(left: int | None = None, right: int | None = None) -> Mask:
    """A query attends the keys at most `left` tokens before it and `right` tokens after it, itself included.

    Args:
      left: tokens, ≥ 0, or None for no bound. The token itself is not counted: `left=3` sees four.
      right: likewise.

    Returns:
      A mask. `window(left=3, right=0)` is a causal sliding window.

    Raises:
      TypeError: a bound is not a whole number.
      ValueError: a bound is negative, or neither is given.

    Memory: that of its numbers: no pair is written out.

    Source: Beltagy et al. 2020, "Longformer", section 3.1.

    Example:
      >>> from jattn import masks
      >>> masks.window(left=1, right=0)
      window(left=1, right=0)
      >>> print(masks.picture(masks.window(left=1, right=0), 4))
      #···
      ##··
      ·##·
      ··##
    """
    remedy = "Give a number of tokens to at least one side: window(left=3, right=0)."
    if left is None and right is None:
        _errors.fail(ValueError, "window", "left or right must be given", remedy, left="None", right="None")
    sides = {"left": left, "right": right}
    return Window(**{n: x if x is None else distance("window", n, x) for n, x in sides.items()})


def prefix(n: Integer[ArrayLike, ""]) -> Mask:
    """Every query attends the first n tokens of the sequence: the keys at positions below n.

    Args:
      n: tokens, ≥ 0: a whole number or an integer scalar, possibly traced (map over a batch with jax.vmap). An array
        below 0 counts as 0.

    Returns:
      A mask. `prefix(n) | causal()` reads a prompt in both directions and writes in one.

    Raises:
      TypeError: n is not a whole number.
      ValueError: n is not a scalar, or is a number below 0.

    Memory: that of its numbers: no pair is written out.

    Source: Raffel et al. 2020, "Exploring the limits of transfer learning", section 3.2.1.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.prefix(2) | masks.causal(), 4))
      ##··
      ##··
      ###·
      ####
    """
    return Prefix(first_tokens("prefix", n))


def sinks(n: Integer[ArrayLike, ""]) -> Mask:
    """A query attends the first n tokens of the sequence, as far as they do not stand after it.

        query t may attend key s  ⟺  s < n and s ≤ t

    The keys that a sliding window must keep: a trained model puts there the weight that it has no use for.

    Args:
      n: tokens, ≥ 0: a whole number or an integer scalar, possibly traced (map over a batch with jax.vmap). An array
        below 0 counts as 0.

    Returns:
      A mask. `sinks(4) | window(left=1023, right=0)` is StreamingLLM's: the first four tokens and the last 1,024.

    Raises:
      TypeError: n is not a whole number.
      ValueError: n is not a scalar, or is a number below 0.

    Memory: that of its numbers: no pair is written out.

    Source: Xiao et al. 2023, "Efficient streaming language models with attention sinks", section 3.2.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.sinks(1) | masks.window(left=1, right=0), 5))
      #····
      ##···
      ###··
      #·##·
      #··##
    """
    return Sinks(first_tokens("sinks", n))


def full() -> Mask:
    """Every pair is allowed.

    Returns:
      A mask: what `&` leaves as it is.

    Memory: that of its numbers: no pair is written out.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.full(), 2, 4))
      ####
      ####
    """
    return Constant(True)


def empty() -> Mask:
    """No pair is allowed: every query gives zeros and lse = −∞.

    Returns:
      A mask: what `|` leaves as it is.

    Memory: that of its numbers: no pair is written out.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.empty(), 2, 4))
      ····
      ····
    """
    return Constant(False)
