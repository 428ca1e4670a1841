"""Rotary position embedding (RoPE), applied to q and k; and sinusoidal positions, added to the embeddings."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._types import Array, ArrayLike, DTypeLike, Float, Integer
from jattn.positions._angles import angles
from jattn.positions._frequencies import Scaling, frequencies_of


def rotary(
    x: Float[ArrayLike, "T D"],
    positions: Integer[ArrayLike, " T"] | Integer[ArrayLike, "A T"],
    *,
    base: float = 10_000.0,
    scaling: Scaling | None = None,
    width: int | None = None,
    interleaved: bool = False,
    axes: Sequence[int] | None = None,
) -> Float[Array, "T D"]:
    """Turns the pairs of columns of q or of k, each by its frequency times the position.

        (x_i, x_j)_t → factor · (x_i cos θ − x_j sin θ, x_j cos θ + x_i sin θ),    θ = position_t · inv_i

    One head, no batch: map with jax.vmap, with in_axes (0, None) where heads share their positions.

    Args:
      x: [T, D], q or k.
      positions: integers [T], where each row stands, in tokens, |position| < 2³¹; with `axes`, [A, T]: where it
        stands on each of A axes.
      base: > 1; the frequencies are base^(−2 i / width) radians a token.
      scaling: a function from frequencies to frequencies: `linear`, `ntk`, `dynamic_ntk`, `yarn`, `llama3`,
        `longrope`, several of them by `compose`, or your own.
      width: R, how many leading columns turn, even; the others pass through. All of them, D, if None.
      interleaved: which columns are a pair. False: i and i + R/2 (GPT-NeoX, Llama in transformers). True: 2 i and
        2 i + 1 (RoFormer, Llama as released, GPT-J).
      axes: R/2 whole numbers below A, on which axis of `positions` each pair turns: M-RoPE is
        axes=sections(16, 24, 24), with positions in time, height and width.

    Returns:
      [T, D] in the dtype of x. Computed in float32 or wider, with one rounding at the end. An angle is within
      1e-6 radians of the exact product at every position, in float64 within 1e-15 + 4e-16 · |position · inv|; where
      a jax array holds the frequencies, the product with what it holds.

    Raises:
      TypeError: x is not floating point, or positions are not integers; base, scaling or axes are of another kind;
        interleaved is no bool.
      ValueError: shapes do not fit; width is odd or beyond D; base is not above 1; axes do not belong to the pairs or
        to the positions.

    Memory: a few times x.

    Source: Su et al. 2021, "RoFormer", eq. 34; Wang et al. 2024, "Qwen2-VL", section 2.1, for several axes.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jattn.positions import rotary
      >>> q, k = jax.random.normal(jax.random.key(0), (2, 1, 8))
      >>> at = lambda t, s: (rotary(q, jnp.array([t])) @ rotary(k, jnp.array([s])).T).item()
      >>> abs(at(5, 2) - at(1_000_005, 1_000_002)) < 1e-5  # the distance alone matters, a million tokens on
      True
    """
    caller = "rotary"
    x = _errors.array(caller, "x", x)
    _errors.rank(caller, 2, "[T, D]", "This function is one head without a batch: map it with jax.vmap.", x=x)
    _errors.floating(caller, x=x)
    interleaved = _errors.flag(caller, "interleaved", interleaved)
    T, D = x.shape
    width = D if width is None else _errors.count(caller, "width", width)
    if width > D:
        _errors.fail(ValueError, caller, "width must not exceed D", "Turn at most every column.", x=x, width=str(width))
    f = frequencies_of(caller, width, base, scaling)
    stand = _positions(caller, positions, T, width // 2, axes)

    dtype = _errors.wide(x)
    factor = f.factor.astype(dtype) if isinstance(f.factor, jax.Array) else np.asarray(f.factor, dtype)
    return _rotated(x, angles(stand, f.inv, dtype), jax.device_put(factor), interleaved)


@partial(jax.jit, static_argnums=3)
def _rotated(x: jax.Array, theta: jax.Array, factor: jax.Array, interleaved: bool) -> jax.Array:
    """The first columns of x turned by the angles theta [T, R/2], two each."""
    T, width, dtype = x.shape[0], 2 * theta.shape[1], theta.dtype
    cos, sin = jnp.cos(theta) * factor, jnp.sin(theta) * factor
    rotated = x[:, :width].astype(dtype)
    if interleaved:
        a, b = rotated[:, 0::2], rotated[:, 1::2]
        rotated = jnp.stack([a * cos - b * sin, b * cos + a * sin], 2).reshape(T, width)
    else:
        a, b = rotated[:, : width // 2], rotated[:, width // 2 :]
        rotated = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], 1)
    return jnp.concatenate([rotated.astype(x.dtype), x[:, width:]], 1)


def _positions(caller: str, positions: Any, T: int, pairs: int, axes: Sequence[int] | None) -> jax.Array:
    """[T, 1], or [T, R/2] where each pair turns on an axis of its own; int32."""
    _errors.in_int32(caller, "positions", positions)
    stand = _errors.array(caller, "positions", positions)
    _errors.kind(caller, "positions", stand, jnp.integer, "Positions count tokens: pass whole numbers.")
    if axes is None:
        if stand.shape != (T,):
            remedy = "Give one position to each row, or say by axes which of several axes each pair turns on."
            _errors.fail(ValueError, caller, f"positions must have the shape [T], here [{T}]", remedy, positions=stand)
        return stand.astype(jnp.int32)[:, None]
    if stand.ndim != 2 or stand.shape[1] != T:
        remedy = "Give one row of positions to each axis."
        _errors.fail(ValueError, caller, f"positions must have the shape [A, T], T = {T}", remedy, positions=stand)
    remedy = "Make them with sections(16, 24, 24): as many whole numbers as pairs of columns."
    if not np.iterable(axes):
        got = {"axes": f"of type {type(axes).__name__}"}
        _errors.fail(TypeError, caller, f"axes must name one axis for each of {pairs} pairs", remedy, **got)
    chosen = [_errors.count(caller, "axes", n) for n in axes]
    if len(chosen) != pairs:
        got = {"axes": f"of {len(chosen)} numbers"}
        _errors.fail(ValueError, caller, f"axes must name one axis for each of {pairs} pairs", remedy, **got)
    if max(chosen, default=-1) >= stand.shape[0]:
        remedy = "Axes are counted from 0."
        got = {"axes": f"up to {max(chosen)}", "positions": _errors.shape(stand)}
        _errors.fail(ValueError, caller, "axes must be axes of positions [A, T]", remedy, **got)
    return stand.astype(jnp.int32)[np.array(chosen, int)].T


def sections(*pairs: int) -> tuple[int, ...]:
    """The axis on which each pair of columns turns, where the pairs are assigned to the axes one after another.

    Args:
      pairs: how many pairs turn on the first axis, on the second, and so on.

    Returns:
      The `axes` of `rotary`, as many whole numbers as there are pairs.

    Raises:
      TypeError, ValueError: a number of pairs is not a whole number of at least 0.

    Memory: a number for each pair.

    Source: Wang et al. 2024, "Qwen2-VL", section 2.1.

    Example:
      >>> from jattn.positions import sections
      >>> sections(2, 3, 3)
      (0, 0, 1, 1, 1, 2, 2, 2)
    """
    return tuple(axis for axis, n in enumerate(pairs) for _ in range(_errors.count("sections", "pairs", n)))


def sinusoidal(
    positions: Integer[ArrayLike, " T"],
    width: int,
    *,
    base: float = 10_000.0,
    interleaved: bool = True,
    dtype: DTypeLike | None = None,
) -> Float[Array, "T D"]:
    """The sines and cosines of each position, to be added to the embeddings.

        pe_(t, 2i) = sin(t · base^(−2 i / D)),    pe_(t, 2i+1) = cos(t · base^(−2 i / D))

    Args:
      positions: integers [T], in tokens, |position| < 2³¹.
      width: D, even.
      base: > 1.
      interleaved: True: sine and cosine by turns, as in the paper. False: all sines, then all cosines, as in
        tensor2tensor and in diffusion models.
      dtype: of the result, floating point; float32 if None.

    Returns:
      [T, D]. Angles as exact as those of `rotary`.

    Raises:
      TypeError: positions are not integers, base is not a number, interleaved is no bool, or dtype is not floating
        point.
      ValueError: positions have not one axis; width is odd; base is not above 1.

    Memory: T × D, a few times.

    Source: Vaswani et al. 2017, "Attention is all you need", section 3.5.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn.positions import sinusoidal
      >>> print((100 * sinusoidal(jnp.arange(2), 4)).round())
      [[  0. 100.   0. 100.]
       [ 84.  54.   1. 100.]]
    """
    caller = "sinusoidal"
    _errors.in_int32(caller, "positions", positions)
    stand = _errors.array(caller, "positions", positions)
    _errors.rank(caller, 1, "[T]", "Map over a batch with jax.vmap.", positions=stand)
    stand = _positions(caller, stand, stand.shape[0], 0, None)
    interleaved = _errors.flag(caller, "interleaved", interleaved)
    remedy = "Sines are from -1 to 1: as whole numbers most would be 0."
    dtype = _errors.dtype(caller, jnp.float32 if dtype is None else dtype, remedy)
    theta = angles(stand, frequencies_of(caller, width, base, None).inv, _errors.wide(np.zeros(0, dtype)))
    return _waves(theta, interleaved).astype(dtype)


@partial(jax.jit, static_argnums=1)
def _waves(theta: jax.Array, interleaved: bool) -> jax.Array:
    """The sines and the cosines of angles [T, D/2]."""
    waves = jnp.sin(theta), jnp.cos(theta)
    return jnp.stack(waves, 2).reshape(theta.shape[0], -1) if interleaved else jnp.concatenate(waves, 1)
