"""Masks with a stride: keys at equal distances, counted back from the query."""

from jattn import _errors
from jattn._types import Array, Bool
from jattn._values import static, value
from jattn.masks._algebra import Mask
from jattn.masks._counts import distance
from jattn.masks._tiles import BlockState, Spans, TileAxis, block_state


@value
class Dilated(Mask):
    """See `dilated`."""

    looks_at_positions = True
    stride: int = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return q.positions % self.stride == k.positions % self.stride

    def block_state(self, q: Spans, k: Spans) -> BlockState:
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

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        nearest, farthest = q.lowest - k.highest, q.highest - k.lowest
        multiple = farthest // self.stride * self.stride  # the farthest
        some = (farthest >= 0) & ((nearest <= self.local) | (multiple >= nearest))
        one = (nearest == farthest) & (multiple == farthest)
        # All of those within reach, and perhaps one more.
        reach = min(self.local + 1, _errors.MOST) if (self.local + 1) % self.stride == 0 else self.local
        return block_state(some, (nearest >= 0) & ((farthest <= reach) | one | (self.stride == 1)))

    def __repr__(self) -> str:
        return f"strided({self.stride}, local={self.local})"


def dilated(stride: int) -> Mask:
    """A query attends every stride-th key, counted from itself: those at a distance that `stride` divides.

    Args:
      stride: tokens, ≥ 1; 1 allows all.

    Returns:
      A mask. `dilated(2) & window(left=8, right=0)` looks twice as far back at the cost of four keys.

    Raises:
      TypeError: the stride is not a whole number.
      ValueError: it is less than 1.

    Memory: that of its numbers: no pair is written out.

    Source: Child et al. 2019, "Generating long sequences with sparse transformers", section 4.3, the strided pattern.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.dilated(2), 4))
      #·#·
      ·#·#
      #·#·
      ·#·#
    """
    return Dilated(distance("dilated", "stride", stride, least=1))


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

    Memory: that of its numbers: no pair is written out.

    Source: Child et al. 2019, "Generating long sequences with sparse transformers", section 4.3, the strided pattern.

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
    n = distance("strided", "stride", stride, least=1)
    return Strided(n, n if local is None else distance("strided", "local", local))
