"""Neighbourhoods in arrays of tokens: lines, images and films, row after row."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._types import Array, Bool
from jattn._values import static, value
from jattn.masks._algebra import Mask
from jattn.masks._tiles import BlockState, Ends, Spans, TileAxis, block_state


@value
class Neighbourhood(Mask):
    """See `neighbourhood`. One entry for each axis of the array of tokens."""

    looks_at_positions = True
    shape: tuple[int, ...] = static()
    radius: tuple[int, ...] = static()
    dilation: tuple[int, ...] = static()
    causal_axes: tuple[int, ...] = static()

    @property
    def tokens(self) -> int:
        return int(np.prod(self.shape))

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        inside = [(x.positions >= 0) & (x.positions < self.tokens) for x in (q, k)]
        allowed = inside[0] & inside[1]
        for axis, (t, s) in enumerate(zip(self._coordinates(q.positions), self._coordinates(k.positions), strict=True)):
            first, last = self._window(axis, t)
            allowed &= (first <= s) & (s <= last)
            if self.dilation[axis] > 1:
                allowed &= t % self.dilation[axis] == s % self.dilation[axis]
        return allowed

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        """Of the smallest box of the array that holds the queries of a tile, and of that of its keys."""
        some: Ends | bool = True
        every: Ends | bool = True
        for x in (q, k):
            some = some & (x.lowest < self.tokens) & (x.highest >= 0)
            every = every & (x.lowest >= 0) & (x.highest < self.tokens)
        for axis, (of_q, of_k) in enumerate(zip(self._box(q), self._box(k), strict=True)):
            some_here, every_here = self._along(axis, *of_q, *of_k)
            some, every = some & some_here, every & every_here
        return block_state(some, every)

    def _window(self, axis: int, t: Any) -> tuple[Any, Any]:
        """The first and the last coordinate that queries at the coordinates t attend, along an axis."""
        n, step, size = self.shape[axis], self.dilation[axis], 2 * self.radius[axis] + 1
        group = t % step if step > 1 else 0  # those that a query can reach; of these, it is number i
        i = _quotient(t - group, step) if step > 1 else t
        if axis in self.causal_axes:
            first, last = _clip(i - (size - 1), 0, n), i
        else:
            first = _clip(i - self.radius[axis], 0, _quotient(n - 1 - group, step) + 1 - size)
            last = first + (size - 1)
        return first * step + group, last * step + group

    def _along(self, axis: int, t_low: Any, t_high: Any, s_low: Any, s_high: Any) -> tuple[Any, Any]:
        """Whether some pair, and whether every pair, of two intervals of coordinates is allowed along an axis."""
        step = self.dilation[axis]
        if step == 1:  # neither end of a window decreases from query to query
            (early, from_here), (late, up_to_here) = self._window(axis, t_low), self._window(axis, t_high)
            return (early <= s_high) & (s_low <= up_to_here), (late <= s_low) & (s_high <= from_here)
        # The same of each group: its first and its last coordinate in either interval.
        group = np.arange(step, dtype=np.int32).reshape(1, 1, step)
        t_first, s_first = (low[..., None] + (group - low[..., None]) % step for low in (t_low, s_low))
        t_last, s_last = (high[..., None] - (high[..., None] - group) % step for high in (t_high, s_high))
        reach = (self._window(axis, t_first)[0] <= s_last) & (s_first <= self._window(axis, t_last)[1])
        some = ((t_first <= t_last) & (s_first <= s_last) & reach).any(-1)
        return some, some & (t_low == t_high) & (s_low == s_high)

    def _coordinates(self, positions: Any) -> list[Any]:
        found, rest = [], _clip(positions, 0, self.tokens - 1)
        for n in self.shape[:0:-1]:
            found.append(rest % n)
            rest = _quotient(rest, n)
        return [rest, *reversed(found)]

    def _box(self, tiles: Spans) -> list[tuple[Any, Any]]:
        """The lowest and the highest coordinate of each tile along each axis."""
        found, one_line = [], True
        ends = zip(self._coordinates(tiles.lowest), self._coordinates(tiles.highest), strict=True)
        for n, (low, high) in zip(self.shape, ends, strict=True):
            # From one line to the next: all of a line is between.
            found.append((_where(one_line, low, 0), _where(one_line, high, n - 1)))
            one_line = one_line & (low == high)
        return found

    def validate(self, caller: str, T: int, S: int, placed: bool) -> None:
        if not placed and (self.tokens, self.tokens) != (T, S):
            remedy = f"The array of tokens has {self.tokens}; or say where the rows stand in it."
            got = {"shape": str(self.shape), "T": str(T), "S": str(S)}
            _errors.fail(ValueError, caller, "shape must be that of the T = S tokens", remedy, **got)

    def __repr__(self) -> str:
        more = f"radius={self.radius}, dilation={self.dilation}, causal_axes={self.causal_axes}"
        return f"neighbourhood({self.shape}, {more})"


def _quotient(x: Any, n: int) -> Any:
    """x // n, of what it divides or x ≥ 0; not by `//`, which asks a kernel which TPU there is (see `chunked`)."""
    return jax.lax.div(x, jnp.full_like(x, n)) if isinstance(x, jax.Array) else x // n


def _clip(x: Any, low: Any, high: Any) -> Any:
    xp = jnp if isinstance(x, jax.Array) else np
    return xp.minimum(xp.maximum(x, low), high)


def _where(choose: Any, x: Any, otherwise: int) -> Any:
    if choose is True:
        return x
    xp = jnp if isinstance(x, jax.Array) or isinstance(choose, jax.Array) else np
    return xp.where(choose, x, np.int32(otherwise))


def neighbourhood(
    shape: int | Sequence[int],
    radius: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    causal_axes: int | Sequence[int] = (),
) -> Mask:
    """A query attends the tokens around it in an array of one to three axes; near a border those next to the border.

        query t may attend key s  ⟺  along each axis, s is one of the 2 · radius + 1 tokens nearest to t

    so that every query attends equally many keys. With a dilation, of every dilation-th token, counted from the query
    itself. Along a causal axis, the 2 · radius + 1 tokens end with the query, and the first queries have fewer.

    Args:
      shape: tokens along each axis, as (height, width); token n of the sequence is the n-th of them in raster order,
        the last axis fastest.
      radius: ≥ 0, one number, or one for each axis; kernel_size = 2 · radius + 1 elsewhere.
      dilation: ≥ 1, likewise.
      causal_axes: numbers of axes, as (0,) for the frames of a film.

    Returns:
      A mask. Of a position beyond the array no pair is allowed.

    Raises:
      TypeError: a number is not a whole one.
      ValueError: the array has not one to three axes, has more than 2³¹ − 1 tokens, is shorter than
        (2 · radius + 1) · dilation along an axis that is not causal, or one of the numbers is out of its range. That it
        is the array of all T = S tokens is checked where the mask is used without positions.

    Memory: that of its numbers: no pair is written out.

    Source: Hassani et al. 2023, "Neighborhood attention transformer", section 3.1; Hassani and Shi 2022, "Dilated
      neighborhood attention transformer", section 3.1; Hassani et al. 2024, "Faster neighborhood attention", for
      causal axes. NATTEN is theirs.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.neighbourhood((6,), 1), 6))
      ###···
      ###···
      ·###··
      ··###·
      ···###
      ···###
      >>> print(masks.picture(masks.neighbourhood((6,), 1, dilation=2, causal_axes=(0,)), 6))
      #·····
      ·#····
      #·#···
      ·#·#··
      #·#·#·
      ·#·#·#
    """
    caller = "neighbourhood"
    sizes = tuple(_errors.count(caller, "shape", n, least=1) for n in _several(shape))
    if not 1 <= len(sizes) <= 3:
        remedy = "Give the tokens along each axis, as in (height, width)."
        _errors.fail(ValueError, caller, "shape must have one to three axes", remedy, shape=str(sizes))
    radii = _of_axes("radius", radius, len(sizes), 0)
    steps = _of_axes("dilation", dilation, len(sizes), 1)
    causal = tuple(_errors.count(caller, "causal_axes", axis) for axis in _several(causal_axes))
    if len(set(causal)) != len(causal) or any(axis >= len(sizes) for axis in causal):
        remedy = "Give the number of each causal axis, counted from 0, once."
        _errors.fail(ValueError, caller, "causal_axes must be axes of shape", remedy, causal_axes=str(causal))
    least = tuple(
        1 if axis in causal else (2 * r + 1) * step for axis, (r, step) in enumerate(zip(radii, steps, strict=True))
    )
    if math.prod(sizes) > _errors.MOST:
        remedy = "Cut the array in pieces that have fewer tokens."
        _errors.fail(ValueError, caller, "shape must have at most 2³¹ − 1 tokens", remedy, shape=str(sizes))
    if any(n < m for n, m in zip(sizes, least, strict=True)):
        remedy = f"Every query attends 2 · radius + 1 keys along an axis: it has to be at least {least} here."
        got = {"shape": str(sizes), "radius": str(radii), "dilation": str(steps)}
        _errors.fail(ValueError, caller, "shape must be at least (2 · radius + 1) · dilation", remedy, **got)
    # Along a causal axis they may be larger than it, and than what int32 holds: no more than all of it is reached.
    radii, steps = (
        tuple(min(x, most) for x, most in zip(given, far, strict=True))
        for given, far in ((radii, [n // 2 for n in sizes]), (steps, sizes))
    )
    return Neighbourhood(sizes, radii, steps, tuple(sorted(causal)))


def _several(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, tuple | list) else (x,)


def _of_axes(name: str, x: Any, axes: int, least: int) -> tuple[int, ...]:
    """A number for each axis."""
    numbers = tuple(_errors.count("neighbourhood", name, n, least=least) for n in _several(x))
    if len(numbers) not in (1, axes):
        remedy = "Give one number for all axes, or one for each."
        _errors.fail(ValueError, "neighbourhood", f"{name} must have one entry an axis", remedy, **{name: str(numbers)})
    return numbers * axes if len(numbers) == 1 else numbers
