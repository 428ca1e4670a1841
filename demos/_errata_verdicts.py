"""What a claim of a source document is, and how it is judged; errata.py says what the verdicts mean."""

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jattn

OVER_ROUNDED, TOO_EARLY, WRONG, WORDS = "over-rounded", "rounded too early", "wrong", "over-claimed in words"
SLACK = 4 * np.finfo(np.float64).eps  # a document may print more digits than float64 can tell apart


@dataclass(eq=False)
class Number:
    """An array as printed, beside its exact value."""

    place: str
    texts: list[str]
    exact: np.ndarray
    by: Callable[..., Any] | None = None
    """The document's own step, from the numbers of `of` to these."""
    of: Sequence["Number"] = ()
    times: int = 1
    """How often the document prints the array."""
    note: str = ""
    verdicts: list[str] = field(default_factory=list)
    """One for each number: "" where it is right."""

    @property
    def printed(self) -> np.ndarray:
        return np.reshape([float(text) for text in self.texts], self.exact.shape)

    def agrees(self, value: Any) -> np.ndarray:
        """Whether each entry of `value`, rounded as the document rounds, is what it printed; a tie goes either way."""
        half = np.reshape([0.5 * 10.0 ** -decimals(text) for text in self.texts], self.exact.shape)
        return np.abs(value - self.printed) <= half * (1 + 1e-9) + SLACK * np.abs(value)

    def again(self, *rounded: "Number") -> Any:
        """The document's step on its printed numbers; on exact ones, `rounded` excepted, if any is named."""
        return self.by(*(x.printed if x in (rounded or self.of) else x.exact for x in self.of))

    def judge(self) -> None:
        right = self.agrees(self.exact)
        again = self.agrees(self.again()) if self.by else np.zeros_like(right)
        carried = any(WRONG in verdict for source in self.of for verdict in source.verdicts)
        reasons = np.where(again, f"{WRONG} (carried on)" if carried else TOO_EARLY, WRONG)
        zeros = (self.printed == 0) & (self.exact != 0)
        self.verdicts = [str(v) for v in np.where(right, np.where(zeros, OVER_ROUNDED, ""), reasons).ravel()]
        early = np.array(self.verdicts) == TOO_EARLY
        for source in self.of if early.any() else ():
            # A source that is right, but has too few digits: with all else exact, its rounding alone gives the error.
            spoilt = self.agrees(self.again(source)).ravel() & early
            if spoilt.any() and not any(source.verdicts):
                blamed = spoilt if source.exact.shape == self.exact.shape else np.ones(source.exact.size, bool)
                source.verdicts = [OVER_ROUNDED if b else "" for b in blamed]


class Document:
    """What one document says: its numbers and its claims in words."""

    def __init__(self, name: str):
        self.name = name
        self.numbers: list[Number] = []
        self.words: list[dict[str, Any]] = []

    def prints(self, place: str, printed: str, exact: Any, **more: Any) -> Number:
        exact = np.asarray(exact, np.float64)
        texts = re.findall(r"-?\d+(?:\.\d+)?", printed)
        self.numbers.append(Number(place, texts, exact, **more))
        self.numbers[-1].judge()
        return self.numbers[-1]

    def says(self, phrase: str, holds: Any, finding: str) -> None:
        self.words.append({"document": self.name, "phrase": phrase, "holds": bool(holds), "finding": finding})


_explain = jax.jit(jattn.explain)


def explain(q: Any, k: Any, v: Any, **options: Any) -> jattn.Steps:
    """jattn.explain on nested lists, its steps as NumPy arrays."""
    return jax.tree.map(np.asarray, _explain(*map(jnp.asarray, (q, k, v)), **options))


def softmax(x: Any) -> np.ndarray:
    return np.asarray(jattn.softmax(jnp.asarray(x)))


def cos(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def angle(a: np.ndarray, b: np.ndarray) -> float:
    """In degrees."""
    return math.degrees(math.acos(min(1.0, cos(a, b))))


def diameter(x: np.ndarray) -> float:
    return max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(x, 2))


def decimals(text: str) -> int:
    return len(text.partition(".")[2])
