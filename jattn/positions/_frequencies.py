"""How fast each pair of columns turns: a value, and what a scaling makes of it."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors


class Frequencies(NamedTuple):
    """How fast each pair of columns turns, and how much longer it becomes."""

    inv: np.ndarray | jax.Array
    """[R/2], radians a token: a NumPy float64 array, or a jax array where it depends on something traced or learned."""
    base: float
    """The number whose powers they were before any scaling."""
    factor: float | jax.Array = 1.0
    """The attention factor: what rotated columns are multiplied by, in q and in k: scores have its square."""


_REMEDY = "Write a function Frequencies -> Frequencies, as in lambda f: f._replace(inv=f.inv / 2)."
Scaling: TypeAlias = Callable[[Frequencies], Frequencies]
"""What stretches a model's rotary beyond its training: frequencies to frequencies."""


def frequencies(width: int, *, base: float = 10_000.0, scaling: Scaling | None = None) -> Frequencies:
    """How fast `rotary` turns each of width / 2 pairs of columns.

        inv_i = base^(−2 i / width),    then the scaling

    Args:
      width: R, how many columns turn; even.
      base: > 1, what the slowest pair approaches: its period is almost 2π · base tokens.
      scaling: a function from frequencies to frequencies, as `linear(8.0)`; None for none.

    Returns:
      Frequencies, `inv` in NumPy's float64 unless the scaling made it a jax array.

    Raises:
      TypeError: base is not a number; or the scaling is not a function, or does not return Frequencies.
      ValueError: width is odd; base is not above 1, or not finite; or the scaling returns another number of
        frequencies.

    Memory: R/2 numbers.

    Source: Su et al. 2021, "RoFormer", section 3.2.2.

    Example:
      >>> from jattn import positions
      >>> positions.frequencies(4, base=100.0).inv.tolist()
      [1.0, 0.1]
      >>> positions.frequencies(4, base=100.0, scaling=positions.linear(2.0)).inv.tolist()
      [0.5, 0.05]
    """
    return frequencies_of("frequencies", width, base, scaling)


def frequencies_of(caller: str, width: int, base: float, scaling: Scaling | None) -> Frequencies:
    """`frequencies`, its errors in the name of `caller`."""
    width = _errors.count(caller, "width", width)
    if width % 2:
        _errors.fail(ValueError, caller, "width must be even", "Columns turn in pairs.", width=str(width))
    base = number(caller, "base", base)
    if not 1 < base < math.inf:
        _errors.fail(
            ValueError, caller, "base must be above 1 and finite", "Most models have 10_000.0.", base=str(base)
        )
    plain = Frequencies(base ** (-np.arange(0, width, 2) / max(width, 1)), base)
    if scaling is None:
        return plain
    scaled = checked_scaling(caller, scaling)(plain)
    if not isinstance(scaled, Frequencies):
        got = {"scaling": f"returning {type(scaled).__name__}"}
        _errors.fail(TypeError, caller, "scaling must return Frequencies", _REMEDY, **got)
    if jnp.shape(scaled.inv) != plain.inv.shape:
        got = {"inv": _errors.shape(scaled.inv)}
        _errors.fail(ValueError, caller, f"scaling must return {width // 2} frequencies", _REMEDY, **got)
    return scaled


def checked_scaling(caller: str, scaling: Any) -> Scaling:
    """Refuses what cannot be called, and what makes a scaling once it is."""
    _errors.function(caller, "scaling", scaling, _REMEDY)
    _errors.called(caller, "scaling", Scaling, scaling, "scaling must take Frequencies", "scaling=")
    return scaling


def number(caller: str, name: str, x: Any) -> Any:
    """A real number as a float of Python where it is known; a traced one as it is."""
    if not _errors.known(x):
        return x
    try:
        if not isinstance(x, str | bytes) and np.ndim(x) == 0:
            return float(_errors.read(x))
    except (TypeError, ValueError):  # what NumPy makes no array of, or has no real number in it
        pass
    got = {name: x if isinstance(x, jax.Array | np.ndarray) else f"of type {type(x).__name__}"}
    _errors.fail(TypeError, caller, f"{name} must be a real number", "Pass a number of Python or NumPy.", **got)
