"""The steps of a run at which it is looked at."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from jattn import _errors


def log_steps(steps: int, *, per_decade: int = 8) -> tuple[int, ...]:
    """Logarithmically spaced steps to look at: 0, 1, …, `steps`.

    Args:
      steps: the last, 0 or more.
      per_decade: how many between 10ⁿ and 10ⁿ⁺¹, at most; 1 or more.

    Returns:
      Whole numbers, increasing, the first 0 and the last `steps`.

    Raises:
      TypeError, ValueError: a number is not whole, or too small.

    Memory: at most per_decade · log₁₀(steps) + 3 numbers.

    Example:
      >>> from jattn import flow
      >>> flow.log_steps(1000, per_decade=2)
      (0, 1, 3, 10, 32, 100, 316, 1000)
    """
    steps = _errors.count("log_steps", "steps", steps)
    per_decade = _errors.count("log_steps", "per_decade", per_decade, least=1)
    per_decade = min(per_decade, 3 * max(steps, 1))  # steps · (10^(1 / per_decade) − 1) < 1: already every step
    grid = 10 ** (np.arange(int(per_decade * math.log10(max(steps, 1))) + 1) / per_decade)
    return tuple(sorted({0, steps, *(round(float(t)) for t in grid if round(float(t)) <= steps)}))


def looks_at(caller: str, steps: int, at: int | Sequence[int] | None) -> tuple[int, ...]:
    """The steps at which to look, increasing."""
    steps = _errors.count(caller, "steps", steps)
    if steps >= 2**31:
        remedy = "Steps of a jitted loop are int32: take it in several runs, each from the state of the last."
        _errors.fail(ValueError, caller, "steps must be below 2147483648", remedy, steps=str(steps))
    if at is None:
        return (0, steps) if steps else (0,)
    if np.ndim(at) == 0:
        return (*range(0, steps, _errors.count(caller, "at", at, least=1)), steps)
    looks = tuple(_errors.count(caller, "at", t) for t in at)  # type: ignore[union-attr]
    if not looks or looks[-1] > steps or any(b <= a for a, b in itertools.pairwise(looks)):
        got = {"at": f"of {len(looks)} steps", "steps": str(steps)}
        remedy = "Give them sorted, without repeats, as flow.log_steps(steps) does."
        _errors.fail(ValueError, caller, "at must be increasing steps from 0 to steps", remedy, **got)
    return looks
