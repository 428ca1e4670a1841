"""The refusals of positions, heads and hosts, word for word; test_messages checks them with all others."""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import numpy as np
from _inputs import T

from jattn import positions
from jattn.positions import Frequencies, rotary


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def turn(**options):
    return lambda: rotary(**({"x": ones(T, 6), "positions": ones(T, dtype=np.int32)} | options))


SCALING = "Write a function Frequencies -> Frequencies, as in lambda f: f._replace(inv=f.inv / 2)."
AXES = "Make them with sections(16, 24, 24): as many whole numbers as pairs of columns."
ON_AXES = ones(3, T, dtype=np.int32)

POSITIONS = [
    (turn(x=ones(2, T, 6)), ValueError, "rotary: x must have the axes [T, D], got x [2, 13, 6]. This function is one head without a batch: map it with jax.vmap."),
    (turn(x=ones(T, 6, dtype=np.int32)), TypeError, "rotary: x must be floating point, got x int32[13, 6]. Convert it first: x.astype(jax.numpy.float32)."),
    (turn(x=ones(T, 5)), ValueError, "rotary: width must be even, got width 5. Columns turn in pairs."),
    (turn(width=8), ValueError, "rotary: width must not exceed D, got x [13, 6] and width 8. Turn at most every column."),
    (turn(base=1.0), ValueError, "rotary: base must be above 1, got base 1.0. Most models have 10_000.0."),
    (turn(positions=ones(T)), TypeError, "rotary: positions must be integer, got positions float32[13]. Positions count tokens: pass whole numbers."),
    (turn(positions=ON_AXES), ValueError, "rotary: positions must have the shape [T], here [13], got positions [3, 13]. Give one position to each row, or say by axes which of several axes each pair turns on."),
    (turn(axes=(0, 1, 2)), ValueError, "rotary: positions must have the shape [A, T], T = 13, got positions [13]. Give one row of positions to each axis."),
    (turn(positions=ON_AXES, axes=(0, 1)), ValueError, f"rotary: axes must name one axis for each of 3 pairs, got axes of 2 numbers. {AXES}"),
    (turn(positions=ON_AXES, axes=(0, 1, 3)), ValueError, "rotary: axes must be axes of positions [A, T], got axes up to 3 and positions [3, 13]. Axes are counted from 0."),
    (turn(scaling=lambda f: f.inv), TypeError, f"rotary: scaling must return Frequencies, got scaling returning ndarray. {SCALING}"),
    (turn(scaling=lambda f: Frequencies(f.inv[1:], f.base)), ValueError, f"rotary: scaling must return 3 frequencies, got inv [2]. {SCALING}"),
    (turn(scaling=positions.longrope((1.0,), (1.0, 1.0, 1.0), factor=2.0, original=8, length=4)), ValueError, "longrope: short must hold 3 numbers, got short of 1. Give a divisor to each pair of columns that turns: half the width."),
    (lambda: positions.frequencies(3), ValueError, "frequencies: width must be even, got width 3. Columns turn in pairs."),
    (lambda: positions.sections(16, -1), ValueError, "sections: pairs must be at least 0, got pairs -1. Pass a Python int of at least 0."),
    (lambda: positions.sinusoidal(ones(2, T, dtype=np.int32), 4), ValueError, "sinusoidal: positions must have the axes [T], got positions [2, 13]. Map over a batch with jax.vmap."),
]  # fmt: skip
