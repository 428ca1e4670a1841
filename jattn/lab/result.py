"""What a reproduction hands back: numbers measured here beside the numbers of an oracle that is not this library."""

import dataclasses
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import SupportsFloat

from jattn import _errors
from jattn._values import pytree


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One published result: what was measured, what was expected, and who says so.

    `measured`, `expected` and `tolerance` have the same names in the same order; a tolerance is how far below and how
    far above its expected value a measured one may lie.
    """

    measured: dict[str, float]
    expected: dict[str, float]
    tolerance: dict[str, tuple[float, float]]
    claim: str = dataclasses.field(metadata={"static": True})
    oracle: str = dataclasses.field(metadata={"static": True})
    source: str = dataclasses.field(metadata={"static": True})

    @property
    def holds(self) -> dict[str, bool]:
        """Of each quantity, whether it was measured where it was expected; NaN never is."""
        return {
            name: self.expected[name] - below <= self.measured[name] <= self.expected[name] + above
            for name, (below, above) in self.tolerance.items()
        }


def result(
    claim: str, oracle: str, source: str, rows: Mapping[str, tuple[SupportsFloat, SupportsFloat, float, float]]
) -> Result:
    """A result out of rows of (measured, expected, how far below it may lie, how far above)."""
    return Result(
        measured={name: float(row[0]) for name, row in rows.items()},
        expected={name: float(row[1]) for name, row in rows.items()},
        tolerance={name: row[2:] for name, row in rows.items()},
        claim=claim,
        oracle=oracle,
        source=source,
    )


def seed_of(caller: str, seed: int) -> int:
    """A whole number from 0 to 2³² − 1, which is what both generators of random numbers take."""
    seed = _errors.count(caller, "seed", seed)
    if seed >= 2**32:
        remedy = "Pass a Python int from 0 to 2**32 - 1."
        _errors.fail(ValueError, caller, "seed must be less than 2**32", remedy, seed=str(seed))
    return seed


def oracle(caller: str, module: str) -> ModuleType:
    """A library that judges this one; it is imported where it is asked, so that importing jattn asks for none."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        _errors.missing(caller, module, "lab")
