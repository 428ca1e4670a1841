"""The angle position · frequency, at every whole position as exact as at the first.

A float32 product loses what rotary needs: at position 2²⁰ it is off by up to 0.06 radians, at 2²⁴ by a radian. But
only the angle modulo a whole turn matters, and integer arithmetic is modular by nature: a frequency becomes a fraction
of a turn in 64-bit fixed point, the position multiplies it modulo 2⁶⁴, whole turns fall off the top, and what remains
is rounded once. It needs no float64, so it is the same on every device.
"""

from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._types import Array, Float, Integer

TURN = Fraction("6.28318530717958647692528676655900576839433879875021")  # 2π
PER_RADIAN = tuple(float(Fraction(int(2 ** (12 * i) / TURN) % 2**12, 2 ** (12 * i))) for i in range(1, 7))
"""1 / 2π in six pieces of 12 bits."""


class Turns(NamedTuple):
    """Turns a token, modulo 1, in units of 2⁻⁶⁴: the upper and the lower 32 bits."""

    high: Any
    low: Any


def turns(inv: Any) -> Turns:
    """Frequencies in radians a token as fixed point: rounded once where they are known, else as they are held."""
    if not isinstance(inv, jax.Array):
        whole = [round(Fraction(float(w)) / TURN * 2**64) % 2**64 for w in np.ravel(inv)]
        return Turns(
            np.array([n >> 32 for n in whole], np.uint32), np.array([n & 0xFFFFFFFF for n in whole], np.uint32)
        )
    size = jnp.abs(inv.astype(_errors.wide(inv)))
    if size.dtype == jnp.float64:
        high, low = _fixed_point(size / jnp.asarray(float(TURN), size.dtype))
    else:  # rounding size / 2π would be half a radian at position 2²⁴; products of 12 bits by 12 are exact
        bits = jax.lax.bitcast_convert_type(size, jnp.uint32) & jnp.uint32(0xFFFFF000)
        upper = jax.lax.bitcast_convert_type(bits, size.dtype)
        parts = jnp.stack([upper, size - upper])[:, None] * jnp.asarray(PER_RADIAN, size.dtype)[None, :, None]
        high, low = _sum(_fixed_point(parts.reshape(2 * len(PER_RADIAN), size.shape[0])))
    minus = ~high + (low == 0).astype(jnp.uint32), jnp.uint32(0) - low
    return Turns(*(jnp.where(inv < 0, a, b) for a, b in zip(minus, (high, low), strict=True)))


def _fixed_point(turns: jax.Array) -> Turns:
    """Numbers ≥ 0 as fractions of 64 bits."""
    high, rest = _split(turns - jnp.floor(turns))
    return Turns(high, _split(rest)[0])


def _sum(x: Turns) -> Turns:
    """Along the first axis, of fewer than 2¹⁶ entries, modulo 1."""
    half, low_bits = jnp.uint32(16), jnp.uint32(0xFFFF)
    least = jnp.sum(x.low & low_bits, 0, dtype=jnp.uint32)
    middle = jnp.sum(x.low >> half, 0, dtype=jnp.uint32) + (least >> half)
    high = jnp.sum(x.high, 0, dtype=jnp.uint32) + (middle >> half)
    return Turns(high, (middle << half) | (least & low_bits))


def _split(fraction: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first 32 bits of a fraction in [0, 1), and the fraction that is left. Each step is exact."""
    scaled = fraction * jnp.asarray(2.0**32, fraction.dtype)
    return jnp.floor(scaled).astype(jnp.uint32), scaled - jnp.floor(scaled)


def angles(positions: Integer[Array, "*B #R"], inv: Any, dtype: Any) -> Float[Array, "*B R"]:
    """positions · inv in radians, in [−π, π], within 4 π eps(dtype) of the exact product, for |position| < 2³¹.

    Args:
      positions: int32, of a shape that broadcasts with [R].
      inv: [R], radians a token, ≥ 0. A NumPy float64 array is taken as exact; a jax array as what its dtype holds,
        and it has its derivative.
      dtype: float32 or float64.
    """
    return _angles(positions, jax.device_put(turns(inv)), inv if isinstance(inv, jax.Array) else None, dtype)


@partial(jax.jit, static_argnums=3)
def _angles(positions: jax.Array, f: Turns, inv: jax.Array | None, dtype: Any) -> jax.Array:
    high, low = (jnp.asarray(x).reshape((1,) * (positions.ndim - 1) + (-1,)) for x in f)
    bits = jax.lax.bitcast_convert_type(positions, jnp.uint32)
    p = jnp.where(positions < 0, jnp.uint32(0) - bits, bits)
    of_turn = jax.lax.bitcast_convert_type(p * high + _upper_half(p, low), jnp.int32), p * low
    upper, lower = (x.astype(dtype) for x in of_turn)
    angle = upper * jnp.asarray(float(TURN) * 2.0**-32, dtype) + lower * jnp.asarray(float(TURN) * 2.0**-64, dtype)
    angle = jnp.where(positions < 0, -angle, angle)
    if inv is not None:  # no derivative passes through integers: the value 0, with the slope of the product
        zero = (inv - jax.lax.stop_gradient(inv)).astype(dtype).reshape(high.shape)
        angle = angle + positions.astype(dtype) * zero
    return angle


def _upper_half(a: jax.Array, b: jax.Array) -> jax.Array:
    """The upper 32 bits of the 64 of a · b, both uint32, from products of 16 bits."""
    half, low_bits = jnp.uint32(16), jnp.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & low_bits, b >> half, b & low_bits
    middle = a_high * b_low + (a_low * b_low >> half)  # at most (2¹⁶ − 1)² + 2¹⁶ − 1 < 2³²
    other = a_low * b_high + (middle & low_bits)
    return a_high * b_high + (middle >> half) + (other >> half)
