"""Masks that look at positions: where a query and a key stand in the sequence."""

from typing import Any

import jax.numpy as jnp

from jattn import _errors
from jattn._types import Array, Bool, Int
from jattn._values import show, static, value
from jattn.masks._algebra import EMPTY, FULL, Mask, Spans, TileAxis, block_state, over_vectors, token_count


@value
class Causal(Mask):
    """See `causal`."""

    looks_at_positions = True

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return q.positions >= k.positions

    def block_state(self, q: Spans, k: Spans) -> Any:
        return block_state(q.highest >= k.lowest, q.lowest >= k.highest)

    def __repr__(self) -> str:
        return "causal()"


@value
class Prefix(Mask):
    """See `prefix`."""

    looks_at_positions = True
    n: Int[Array, ""] | int

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return k.positions < self.n

    def block_state(self, q: Spans, k: Spans) -> Any:
        return block_state(k.lowest < self.n, k.highest < self.n)

    def __repr__(self) -> str:
        return f"prefix({show(self.n)})"


@value
class Sinks(Mask):
    """See `sinks`."""

    looks_at_positions = True
    n: Int[Array, ""] | int

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return (k.positions < self.n) & (k.positions <= q.positions)

    def block_state(self, q: Spans, k: Spans) -> Any:
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

    def block_state(self, q: Spans, k: Spans) -> Any:
        some, every = True, True
        if self.left is not None:
            some, every = q.lowest - k.highest <= self.left, q.highest - k.lowest <= self.left
        if self.right is not None:
            some, every = some & (k.lowest - q.highest <= self.right), every & (k.highest - q.lowest <= self.right)
        return block_state(some, every)

    def __repr__(self) -> str:
        return f"window(left={self.left}, right={self.right})"


@value
class Chunked(Mask):
    """See `chunked`."""

    looks_at_positions = True
    size: int = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        # Rounded down without `//`, which asks which TPU there is, and fails where a program is only compiled for one.
        chunk_q, chunk_k = (x.positions - x.positions % self.size for x in (q, k))
        return chunk_q == chunk_k

    def block_state(self, q: Spans, k: Spans) -> Any:
        (low_q, high_q), (low_k, high_k) = ((x.lowest // self.size, x.highest // self.size) for x in (q, k))
        return block_state((low_q <= high_k) & (low_k <= high_q), (low_q == high_k) & (low_k == high_q))

    def __repr__(self) -> str:
        return f"chunked({self.size})"


@value
class Dilated(Mask):
    """See `dilated`."""

    looks_at_positions = True
    stride: int = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return q.positions % self.stride == k.positions % self.stride

    def block_state(self, q: Spans, k: Spans) -> Any:
        nearest, farthest = q.lowest - k.highest, q.highest - k.lowest
        some = farthest // self.stride * self.stride >= nearest  # a multiple of the stride lies between
        return block_state(some, some & ((nearest == farthest) | (self.stride == 1)))

    def __repr__(self) -> str:
        return f"dilated({self.stride})"


@value
class Strided(Mask):
    """See `strided`."""

    looks_at_positions = True
    stride: int = static()
    local: int = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        back = q.positions - k.positions
        return (back >= 0) & ((back <= self.local) | (back % self.stride == 0))

    def block_state(self, q: Spans, k: Spans) -> Any:
        nearest, farthest = q.lowest - k.highest, q.highest - k.lowest
        multiple = farthest // self.stride * self.stride  # the farthest
        some = (farthest >= 0) & ((nearest <= self.local) | (multiple >= nearest))
        one = (nearest == farthest) & (multiple == farthest)
        # All of those within reach, and perhaps one more.
        reach = self.local + 1 if (self.local + 1) % self.stride == 0 else self.local
        return block_state(some, (nearest >= 0) & ((farthest <= reach) | one | (self.stride == 1)))

    def __repr__(self) -> str:
        return f"strided({self.stride}, local={self.local})"


@value
class Blocks(Mask):
    """See `blocks`."""

    looks_at_positions = True
    table: Bool[Array, "Tb Sb"]
    size: int = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        (i, i_there), (j, j_there) = (self._of(x.positions, n) for x, n in zip((q, k), self.table.shape, strict=True))
        # Whole rows and then columns of the table: many times faster on a CPU than an entry for each pair.
        return over_vectors(lambda i, j: self.table[i][:, j], i, j) & i_there & j_there

    def _of(self, positions: Any, n: int) -> tuple[Any, Any]:
        """The block of each position among n, and whether there is one."""
        block = positions // self.size
        return jnp.clip(block, 0, n - 1), (block >= 0) & (block < n)

    def block_state(self, q: Spans, k: Spans) -> Any:
        # Sums over all blocks above and to the left: four of them give the sum over any rectangle.
        sums = jnp.pad(jnp.cumsum(jnp.cumsum(self.table, 0, jnp.int32), 1, jnp.int32), ((1, 0), (1, 0)))
        ends = [(x.lowest // self.size, x.highest // self.size + 1) for x in (q, k)]
        (a, b), (c, d) = ([jnp.clip(end, 0, n) for end in two] for two, n in zip(ends, self.table.shape, strict=True))
        allowed = sums[b, d] - sums[a, d] - sums[b, c] + sums[a, c]
        (low_q, high_q), (low_k, high_k) = ends
        inside = (a == low_q) & (b == high_q) & (c == low_k) & (d == high_k)
        return block_state(allowed > 0, inside & (allowed == (b - a) * (d - c)))

    def validate(self, caller: str, T: int, S: int, placed: bool) -> None:
        want = tuple(-(-n // self.size) for n in (T, S))
        if not placed and self.table.shape != want:
            remedy = (
                f"One entry for each block of {self.size} tokens is {list(want)} here; or say where the rows stand."
            )
            _errors.fail(ValueError, caller, "table must have the shape [T / size, S / size]", remedy, table=self.table)

    def __repr__(self) -> str:
        return f"blocks({show(self.table)}, {self.size})"


@value
class Constant(Mask):
    """See `full` and `empty`."""

    allowed: bool = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return jnp.full((), self.allowed)

    def block_state(self, q: Spans, k: Spans) -> Any:
        return FULL if self.allowed else EMPTY

    def __repr__(self) -> str:
        return "full()" if self.allowed else "empty()"


def causal() -> Mask:
    """A query attends the keys that do not stand after it: position t ≥ position s.

    Returns:
      A mask. With T ≠ S the caller says how the rows align, by `q_positions` and `k_positions`.

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
    return Window(**{n: x if x is None else _errors.count("window", n, x) for n, x in sides.items()})


def prefix(n: Any) -> Mask:
    """Every query attends the first n tokens of the sequence: the keys at positions below n.

    Args:
      n: tokens, ≥ 0: a whole number or an integer scalar, possibly traced (map over a batch with jax.vmap).

    Returns:
      A mask. `prefix(n) | causal()` reads a prompt in both directions and writes in one.

    Raises:
      TypeError: n is not a whole number.
      ValueError: n is not a scalar.

    Source: Raffel et al. 2020, "Exploring the limits of transfer learning", section 3.2.1.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.prefix(2) | masks.causal(), 4))
      ##··
      ##··
      ###·
      ####
    """
    return Prefix(token_count("prefix", "n", n, "tokens"))


def sinks(n: Any) -> Mask:
    """A query attends the first n tokens of the sequence, as far as they do not stand after it.

        query t may attend key s  ⟺  s < n and s ≤ t

    The keys that a sliding window must keep: a trained model puts there the weight that it has no use for.

    Args:
      n: tokens, ≥ 0: a whole number or an integer scalar, possibly traced (map over a batch with jax.vmap).

    Returns:
      A mask. `sinks(4) | window(left=1023, right=0)` is StreamingLLM's: the first four tokens and the last 1,024.

    Raises:
      TypeError: n is not a whole number.
      ValueError: n is not a scalar.

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
    return Sinks(token_count("sinks", "n", n, "tokens"))


def strided(stride: int, local: int | None = None) -> Mask:
    """A query attends the tokens just before it, and of all before it every stride-th, counted from itself.

        query t may attend key s  ⟺  0 ≤ t − s and (t − s ≤ local or stride divides t − s)

    Its parts, for heads that take one each: `window(left=local, right=0)` and `dilated(stride) & causal()`.

    Args:
      stride: tokens, ≥ 1; near √T it lets every token reach every earlier one in two layers, at O(√T) keys a query.
      local: how many tokens back all are attended, ≥ 0; `stride` if None.

    Returns:
      A mask.

    Raises:
      TypeError: the stride or `local` is not a whole number.
      ValueError: the stride is less than 1, or `local` is negative.

    Source: Child et al. 2019, "Generating long sequences with sparse transformers", section 4.2, the strided pattern.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.strided(3, local=1), 8))
      #·······
      ##······
      ·##·····
      #·##····
      ·#·##···
      ··#·##··
      #··#·##·
      ·#··#·##
    """
    n = _errors.count("strided", "stride", stride, least=1)
    return Strided(n, n if local is None else _errors.count("strided", "local", local))


def chunked(size: int) -> Mask:
    """A query attends the keys of its own chunk: the sequence is cut into chunks of `size` tokens, from position 0.

    Args:
      size: tokens, ≥ 1.

    Returns:
      A mask. `chunked(size) & causal()` is causal within each chunk.

    Raises:
      TypeError: the size is not a whole number.
      ValueError: it is less than 1.

    Source: Parmar et al. 2018, "Image transformer", section 3.3, where the blocks are chunks of this kind.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.chunked(2), 5))
      ##···
      ##···
      ··##·
      ··##·
      ····#
    """
    return Chunked(_errors.count("chunked", "size", size, least=1))


def dilated(stride: int) -> Mask:
    """A query attends every stride-th key, counted from itself: those at a distance that `stride` divides.

    Args:
      stride: tokens, ≥ 1; 1 allows all.

    Returns:
      A mask. `dilated(2) & window(left=8, right=0)` looks twice as far back at the cost of four keys.

    Raises:
      TypeError: the stride is not a whole number.
      ValueError: it is less than 1.

    Source: Child et al. 2019, "Generating long sequences with sparse transformers", section 4.2, the strided pattern.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.dilated(2), 4))
      #·#·
      ·#·#
      #·#·
      ·#·#
    """
    return Dilated(_errors.count("dilated", "stride", stride, least=1))


def blocks(table: Any, size: int) -> Mask:
    """Block-sparse: the table says of each block of `size` × `size` pairs whether it is allowed.

        query t may attend key s  ⟺  table[t // size, s // size]

    Args:
      table: boolean, [⌈T / size⌉, ⌈S / size⌉], possibly traced. With positions given, of the whole sequence.
      size: tokens a side, ≥ 1. Blocks as large as the engine's tiles, or larger, cost nothing where they are False.

    Returns:
      A mask. A position beyond the table is not allowed.

    Raises:
      TypeError: the table is not boolean, or the size not a whole number.
      ValueError: the table has not two axes or is empty, or the size is less than 1. That it covers T queries and
        S keys is checked where the mask is used.

    Memory: the table.

    Source: Child et al. 2019, "Generating long sequences with sparse transformers", section 5.5.

    Example:
      >>> import numpy as np
      >>> from jattn import masks
      >>> print(masks.picture(masks.blocks(np.array([[True, False], [True, True]]), 2), 4))
      ##··
      ##··
      ####
      ####
    """
    x = _errors.array("blocks", "table", table)
    _errors.kind("blocks", "table", x, jnp.bool_, "True allows a block.")
    _errors.rank("blocks", 2, "[T / size, S / size]", "Map over a batch or heads with jax.vmap.", table=x)
    return Blocks(x, _errors.count("blocks", "size", size, least=1))


def full() -> Mask:
    """Every pair is allowed.

    Returns:
      A mask: what `&` leaves as it is.

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

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.empty(), 2, 4))
      ····
      ····
    """
    return Constant(False)
