"""Every number that the five source documents print, recomputed in float64 on jattn's functions.

A number is right when it is within half a unit of its last printed digit. One that is not gets its reason
by computation: it was *rounded too early* if the document's own step, applied to the rounded numbers that
it printed before, gives what it printed; else it is *wrong*. A number that is right may still be
*over-rounded*: it prints a weight that is not zero as zero, or a later number fails because of its rounding.
A claim in words is set beside the number that measures it; *over-claimed in words* is one that fails.

    python demos/errata.py            the table
    python demos/errata.py --write    writes it to demos/ERRATA.md
"""

import argparse
import contextlib
import functools
import itertools
import math
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _cli import BadInput, parser, run, title
from rich.console import Console
from rich.table import Table

import jattn

OVER_ROUNDED, TOO_EARLY, WRONG, WORDS = "over-rounded", "rounded too early", "wrong", "over-claimed in words"
TITLES = {
    "000": "Why “bank” gives high attention to “river”",
    "001": "walk near river bank",
    "002": "Visualize Attention Weights (Kata 9.1)",
    "003": "The Weighted Sum",
    "004": "From Raw Scores to Percentages",
}
PAGE = Path(__file__).with_name("ERRATA.md")
SLACK = 4 * np.finfo(np.float64).eps  # a document may print more digits than float64 can tell apart


# The engine: what a claim is, and how it is judged.


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
        half = np.reshape([0.5 * 10.0 ** -_decimals(text) for text in self.texts], self.exact.shape)
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
            # Right to its digits, and they were too few: with all else exact, its rounding alone gives the slip.
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


def _decimals(text: str) -> int:
    return len(text.partition(".")[2])


# The data: five documents.

TOY_K = np.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])  # river, money, the
TOY_V = np.array([[2.0, 0.0], [0.0, 3.0], [0.1, 0.1]])
TOY_Q = np.array([1.0, 0.0])  # bank


def why_bank(doc: Document) -> None:
    s = explain(TOY_Q[None], TOY_K, TOY_V)
    scores, scaled, weights, head = (x[0] for x in s)
    exps, parts = np.exp(scaled), weights[:, None] * TOY_V

    raw = doc.prints("raw scores", "1.0, 0.2, 0.0", scores, times=3)
    root = doc.prints("√d_k", "1.4142135624", math.sqrt(2))
    divide = {"by": lambda score, root: score / root, "of": [raw, root]}
    doc.prints("scaled scores", "0.70710678, 0.141421356, 0.0", scaled, **divide)
    small = doc.prints("scaled scores, as a vector", "0.70710678, 0.14142136, 0.0", scaled, **divide)
    e = doc.prints("exponentials", "2.0281149816474726, 1.1518489319246118, 1.0", exps, by=np.exp, of=[small])
    total = doc.prints("their sum", "4.179963913572085", exps.sum(), by=np.sum, of=[e])
    w = doc.prints("weights", "0.4853, 0.2755, 0.2392", weights, by=np.divide, of=[e, total], times=2)
    doc.prints("weight of river, in words", "0.485", weights[0], times=2)
    x = doc.prints("head_x, its terms", "0.9706, 0, 0.02392", parts[:, 0], by=lambda w: w * TOY_V[:, 0], of=[w])
    y = doc.prints("head_y, its terms", "0, 0.8265, 0.02392", parts[:, 1], by=lambda w: w * TOY_V[:, 1], of=[w])
    both = {"by": lambda x, y: np.array([x.sum(), y.sum()]), "of": [x, y]}
    doc.prints("head_x and head_y", "0.99452, 0.85042", head, **both)
    doc.prints("head", "0.9945, 0.8504", head, **both)

    lengths, cosine = np.linalg.norm(parts, axis=1), cos(TOY_Q, TOY_K[1])
    doc.says("weights that sum to 1", abs(weights.sum() - 1) < SLACK, f"they sum to {weights.sum():.15f}")
    doc.says(
        "river gets the largest weight, and contributes most",
        weights.argmax() == 0 and lengths.argmax() == 0,
        f"the terms of the head have lengths {lengths[0]:.3f}, {lengths[1]:.3f}, {lengths[2]:.3f}",
    )
    doc.says("Q_bank and K_river “closely aligned”", cos(TOY_Q, TOY_K[0]) > 0.99, f"cosine {cos(TOY_Q, TOY_K[0]):.4f}")
    doc.says(
        "larger score, “the more similar”",
        math.isclose(scores[1] / scores[0], cosine, rel_tol=0.1),
        f"a score is length times direction: money's is {scores[1] / scores[0]:.1f} of river's, yet its key points "
        f"only {angle(TOY_Q, TOY_K[1]):.1f}° away from the query (cosine {cosine:.3f}): it is short "
        f"({np.linalg.norm(TOY_K[1]):.3f})",
    )
    doc.says(
        "“river's value dominates”",
        weights[0] > 0.5,
        f"river has {weights[0]:.4f} of the weight, less than half; its term has length {lengths[0]:.3f}, money's "
        f"{lengths[1]:.3f}, and the head lies {angle(head, TOY_V[0]):.1f}° from v_river, {angle(head, TOY_V[1]):.1f}° "
        "from v_money",
    )

    def loss(q: jax.Array) -> jax.Array:
        return -jattn.log_softmax(jattn.explain(q[None], jnp.asarray(TOY_K), jnp.asarray(TOY_V)).scaled[0])[0]

    q = TOY_Q - np.asarray(jax.jit(jax.grad(loss))(jnp.asarray(TOY_Q)))
    lifted = explain(q[None], TOY_K, TOY_V).weights[0, 0]
    gaps = np.linalg.norm(TOY_Q - TOY_K[0]), np.linalg.norm(q - TOY_K[0])
    doc.says(
        "training moves Q_bank “closer” to K_river",
        cos(q, TOY_K[0]) > cos(TOY_Q, TOY_K[0]) or gaps[1] < gaps[0],
        "the pull is toward k_river minus the mean key: one step of gradient descent (rate 1, loss −log p_river) lifts "
        f"p_river from {weights[0]:.4f} to {lifted:.4f} while the cosine of q and k_river falls from "
        f"{cos(TOY_Q, TOY_K[0]):.0f} to {cos(q, TOY_K[0]):.4f} and their distance grows from {gaps[0]:.0f} to "
        f"{gaps[1]:.4f}",
    )


WORDS_001 = ("walk", "near", "river", "bank")
E = np.array([[0.1, 0.9], [0.5, 0.5], [0.8, 0.8], [0.8, 0.5]])
TERMS = (
    "0.01 0.81, 0.05 0.45, 0.08 0.72, 0.08 0.45",
    "0.05 0.45, 0.25 0.25, 0.40 0.40, 0.40 0.25",
    "0.08 0.72, 0.40 0.40, 0.64 0.64, 0.64 0.40",
    "0.08 0.45, 0.40 0.25, 0.64 0.40, 0.64 0.25",
)
SCORES = ("0.82, 0.50, 0.80, 0.53", "0.50, 0.50, 0.80, 0.65", "0.80, 0.80, 1.28, 1.04", "0.53, 0.65, 1.04, 0.89")
SCALED = ("0.58, 0.35, 0.57, 0.37", "0.35, 0.35, 0.57, 0.46", "0.57, 0.57, 0.91, 0.74", "0.37, 0.46, 0.74, 0.63")
EXPS = (
    "1.786, 1.419, 1.768, 1.448",
    "1.419, 1.419, 1.768, 1.584",
    "1.768, 1.768, 2.484, 2.096",
    "1.448, 1.584, 2.096, 1.878",
)
SUMS = ("6.421", "6.190", "8.116", "7.006")
WEIGHTS = (
    "0.278, 0.221, 0.275, 0.226",
    "0.229, 0.229, 0.286, 0.256",
    "0.218, 0.218, 0.306, 0.258",
    "0.207, 0.226, 0.299, 0.268",
)
OUTPUTS = ("0.528, 0.622", "0.553, 0.637", "0.634, 0.677", "0.587, 0.672")


def walk_near_river_bank(doc: Document) -> None:
    s = explain(E, E, E)
    doc.prints("Q = K = V", "0.1, 0.9, 0.5, 0.5, 0.8, 0.8, 0.8, 0.5", E @ np.eye(2))
    raw, scaled, weights = [], [], []
    for t, word in enumerate(WORDS_001):
        terms = doc.prints(f"scores of {word}, their terms", TERMS[t], E[t] * E)
        raw.append(doc.prints(f"scores of {word}", SCORES[t], s.scores[t], by=lambda x: x.sum(1), of=[terms], times=2))
    doc.prints("highest score of bank, in words", "1.04", s.scores[3].max())
    root = doc.prints("√d_k", "1.414", math.sqrt(2), times=2)
    for t, word in enumerate(WORDS_001):
        divide = {"by": np.divide, "of": [raw[t], root]}
        scaled.append(doc.prints(f"scaled scores of {word}", SCALED[t], s.scaled[t], **divide, times=2))
    for t, word in enumerate(WORDS_001):
        exact = np.exp(s.scaled[t])
        exps = doc.prints(f"exponentials of {word}", EXPS[t], exact, by=np.exp, of=[scaled[t]])
        total = doc.prints(f"sum of {word}", SUMS[t], exact.sum(), by=np.sum, of=[exps])
        divide = {"by": np.divide, "of": [exps, total]}
        weights.append(doc.prints(f"weights of {word}", WEIGHTS[t], s.weights[t], **divide, times=3 if t == 3 else 2))
    bank = weights[3]
    order = {"by": lambda w: w[[2, 3, 0]], "of": [bank]}
    doc.prints("weights of bank, in words", "0.299, 0.268, 0.207", s.weights[3][[2, 3, 0]], **order)
    percent = {"by": lambda w: 100 * w, "of": [bank]}
    doc.prints("weights of bank, in percent", "20.7, 22.6, 29.9, 26.8", 100 * s.weights[3], **percent)
    parts = s.weights[3][:, None] * E
    x = doc.prints("bank, x terms", "0.021, 0.113, 0.239, 0.214", parts[:, 0], by=lambda w: w * E[:, 0], of=[bank])
    y = doc.prints("bank, y terms", "0.186, 0.113, 0.239, 0.134", parts[:, 1], by=lambda w: w * E[:, 1], of=[bank])
    for t, word in enumerate(WORDS_001[:3]):
        doc.prints(f"output of {word}", OUTPUTS[t], s.out[t], by=lambda w: w @ E, of=[weights[t]])
    both = {"by": lambda x, y: np.array([x.sum(), y.sum()]), "of": [x, y]}
    doc.prints("output of bank", OUTPUTS[3], s.out[3], **both, times=4)

    mean, near, river, word = E.mean(0), *E[1:]  # word: that of bank
    moved, w = np.linalg.norm(s.out - E, axis=1), s.weights[3]
    before, after = np.linalg.norm(E - mean, axis=1), np.linalg.norm(s.out - mean, axis=1)
    off = np.abs(s.weights.sum(1) - 1).max()
    doc.says("each row sums to 1", off < SLACK, f"off by {off:.0e}")
    doc.says(
        "bank attends to river, then itself, least to walk",
        w[2] > w[3] > w[1] > w[0],
        f"weights {w[2]:.4f}, {w[3]:.4f}, {w[0]:.4f}",
    )
    doc.says("walk “moved toward center”", after[0] < before[0], f"{before[0]:.3f} to {after[0]:.3f} of the mean word")
    x, y = word[0] * E[2:, 0], word[1] * E[2:, 1]
    doc.says(
        "equal x “drives up” bank · river",
        x[0] > x[1],
        f"x gives {x[0]:.2f} to river and the same {x[1]:.2f} to bank itself; y decides, {y[0]:.2f} against {y[1]:.2f}",
    )
    ranks = [int((row > row[2]).sum()) + 1 for row in s.weights]
    doc.says(
        "“already learning”, “semantic work”",
        cos(word, river) > cos(word, near) + SLACK,
        "nothing was trained, the projections are the identity; near and river have the same direction (cosine with "
        f"bank {cos(word, near):.4f} and {cos(word, river):.4f}), and river gets {w[2]:.3f} against {w[1]:.3f} because "
        f"its vector is longer ({np.linalg.norm(river):.3f}, {np.linalg.norm(near):.3f}): it comes no. {ranks[0]} for "
        f"walk, {ranks[1]} for near, {ranks[2]} for river, {ranks[3]} for bank",
    )
    move, gaps = s.out[3] - word, [np.linalg.norm(at - river) for at in (word, s.out[3], mean)]
    doc.says(
        "bank “pulled significantly toward river”",
        angle(move, river - word) < 45,
        f"the move makes {angle(move, river - word):.1f}° with the direction of river and "
        f"{angle(move, mean - word):.1f}° with that of the mean word; the distance to river falls from {gaps[0]:.3f} "
        f"to {gaps[1]:.3f} (its x goes away, by {river[0] - s.out[3, 0]:.3f}), that to the mean from {before[3]:.3f} "
        f"to {after[3]:.3f}; equal weights would leave {gaps[2]:.3f} to river",
    )
    lost, (dx, dy) = 100 * (1 - after / before), s.out[1] - near
    doc.says(
        "“slight” shifts of near and river",
        max(moved[1:3] / before[1:3]) < 0.5,
        f"they move {moved[1]:.3f} and {moved[2]:.3f}, bank {moved[3]:.3f}, walk {moved[0]:.3f}; near's is up "
        f"({dx:+.3f}, {dy:+.3f}); of their distance to the mean word the four lose {lost[0]:.0f}, {lost[1]:.0f}, "
        f"{lost[2]:.0f} and {lost[3]:.0f} %: one story, not four",
    )
    gap = jnp.array([math.sqrt(512), 0.0])
    of_output = jax.jit(jax.grad(lambda z: jattn.softmax(z)[0]))(gap)[0]
    of_weight = jax.jit(jax.grad(lambda z: -jattn.log_softmax(z)[1]))(gap)[0]
    doc.says(
        "saturated: “gradients vanish”",
        of_weight < 1e-3,
        f"that of an output loss does: two keys one standard deviation (√512 = {gap[0]:.1f}) apart leave it p(1−p) = "
        f"{of_output:.1e}; that of −log p of the losing key is {of_weight:.4f}, as large as it gets",
    )


CAT_SAT = np.array(
    [
        [0.15, 0.10, 0.10, 0.10, 0.15, 0.40],
        [0.10, 0.20, 0.15, 0.05, 0.10, 0.40],
        [0.10, 0.30, 0.20, 0.10, 0.10, 0.20],
        [0.10, 0.10, 0.15, 0.15, 0.10, 0.40],
        [0.10, 0.10, 0.10, 0.10, 0.20, 0.40],
        [0.15, 0.15, 0.10, 0.10, 0.15, 0.35],
    ]
)
LARGE = np.array([30.0, 50.0, 35.0])
DRAWS = 10_000


def chance_above(x: float, d: int) -> float:
    """How often the dot product of two standard normal vectors of (even) width d exceeds x.

    It is distributed as X − Y, both Gamma(d/2): P(X > Y + x) = Σ_{k<d/2} E[(Y+x)^k e^{−(Y+x)}] / k!.
    """
    n = d // 2
    terms = (
        math.comb(k, j) * x ** (k - j) / math.factorial(k) * math.perm(n + j - 1, j) / 2 ** (n + j)
        for k in range(n)
        for j in range(k + 1)
    )
    return math.exp(-x) * math.fsum(terms)


@functools.cache
def too_peaked() -> tuple[np.ndarray, float]:
    """The program of document 002 (6 words, d_model 8, d_k 4, all entries standard normal), many times.

    The percentage of draws in which each of its three divisors (1, √d_k, d_k) leaves the row of "cat" with a spread
    over 0.8, which it calls too peaked, and the standard deviation of a score between two words after division by √d_k.
    """
    rng = np.random.RandomState(42)  # the one generator whose stream NumPy promises never to change
    x, w_q, w_k = (jnp.asarray(rng.standard_normal((DRAWS, *shape))) for shape in ((6, 8), (8, 4), (8, 4)))

    def row(x: jax.Array, w_q: jax.Array, w_k: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        s = jattn.explain((x @ w_q)[1:2], x @ w_k, x @ w_k, scale=scale)
        return s.weights.max() - s.weights.min(), s.scaled[0, 0]

    many = jax.vmap(jax.vmap(row, (0, 0, 0, None)), (None, None, None, 0))
    spread, scores = jax.jit(many)(x, w_q, w_k, 1 / jnp.array([1.0, 2.0, 4.0]))
    return np.asarray(100 * (spread > 0.8).mean(1)), float(scores[1].std())


def attention_kata(doc: Document) -> None:
    doc.prints("steps across a 100-word sentence", "99", 100 - 1)
    saturated = softmax(LARGE)
    doc.prints("softmax of the unscaled scores", "0.00, 1.00, 0.00", saturated)
    doc.prints("√64", "8", math.sqrt(64))
    scaled = doc.prints("scores / 8", "3.75, 6.25, 4.38", LARGE / 8)
    doc.prints("softmax of the scaled scores", "0.06, 0.76, 0.18", softmax(LARGE / 8), by=softmax, of=[scaled])
    doc.prints("√d_k of its program", "2.0", math.sqrt(4))

    off = np.abs(CAT_SAT.sum(1) - 1).max()
    doc.says("each row of the matrix sums to 1.0", off < SLACK, f"off by {off:.0e}")
    doc.says("“very high dot product”: nearly all the weight", saturated.max() > 0.99, f"{saturated.max():.7f}")
    rare = [1 / chance_above(x, 64) for x in (30, 50)]
    doc.says(
        "dot products “like 30-50” at d_k = 64",
        rare[1] < 1000,
        f"their standard deviation is {math.sqrt(64):.0f}, so 30 is {30 / 8} of them and 50 {50 / 8}: of standard "
        f"normal pairs one in {rare[0]:.0f} exceeds 30, one in {rare[1]:.1e} exceeds 50",
    )
    dv = jax.grad(lambda v: jattn.explain(jnp.ones((1, 1)), jnp.asarray(LARGE)[:, None], v, scale=1.0).out[0, 0])
    reach = np.asarray(jax.jit(dv)(jnp.zeros((3, 1))))[:, 0]
    doc.says(
        "“No gradients vanish” over distance",
        reach.min() > 1e-3,
        "distance does not matter, weight does: the gradient that reaches a value is multiplied by its weight, "
        f"{reach[0]:.1e} and {reach[2]:.1e} in its own saturated example",
    )
    peaked, std = too_peaked()
    doc.says(
        "dividing by √d_k “prevents softmax saturation”",
        peaked[1] < 5,
        f"not in its own program, whose W are not scaled by √d_model: scores have standard deviation {std:.1f} after "
        f"the division, not 1, and it calls {peaked[1]:.0f} % of the rows of “cat” too peaked ({peaked[0]:.0f} % "
        f"undivided, {peaked[2]:.0f} % divided by d_k; {DRAWS} draws)",
    )


HAND_V = np.eye(3)
HAND_W = np.array([0.7, 0.2, 0.1])


def weighted_sum(doc: Document) -> None:
    # softmax(log w) = w: the hand-made weights, through the definition.
    out = explain(np.ones((1, 1)), np.log(HAND_W)[:, None], HAND_V, scale=1.0).out[0]
    terms = doc.prints("the three terms", "0.7, 0.0, 0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 0.1", HAND_W[:, None] * HAND_V)
    doc.prints("their sum", "0.7, 0.2, 0.1", out, by=lambda x: x.reshape(3, 3).sum(0), of=[terms], times=2)

    itself, uniform = explain(E, E, E, mask=np.eye(4, dtype=bool)).out, explain(E, E, E, scale=0.0).out
    doc.says("attend to self: “exactly” the value", (itself == E).all(), f"off by {np.abs(itself - E).max():.0e}")
    off = np.abs(uniform - E.mean(0)).max()
    doc.says("uniform: the average of the values, for all", off < SLACK, f"off by {off:.0e}")
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
    pairs = explain(signs, signs, signs)
    raw, scaled = pairs.scores.var(), pairs.scaled.var()
    doc.says(
        "variance d, and 1 after division by √d",
        np.allclose((raw, scaled), (3, 1), rtol=1e-12),
        f"{raw:.4f} and {scaled:.4f} over all pairs of ±1 vectors of width 3",
    )
    # The relative standard error of a sample's standard deviation: √((kurtosis − 1) / 4n), kurtosis 3 + 6/d.
    error = 100 * max(math.sqrt((2 + 6 / d) / 40_000) for d in (3, 64, 256, 768))
    doc.says("10,000 trials track √d “closely”", error < 2, f"standard error at most {error:.1f} %")
    once = explain(E, E, E)
    twice = explain(once.out, once.out, once.out).out
    change = np.abs(twice - once.out).max()
    doc.says("a second pass changes the vectors", change > SLACK, f"by {change:.3f}")
    shifted = np.array([[0.0], [2.0]])
    product = explain(shifted, shifted, shifted).scores.var()
    doc.says(
        "variance 1 each, so “each product also has variance 1”",
        product == 1,
        f"only with mean 0: components that are 0 or 2, equally often, have variance {shifted.var():.0f}, "
        f"and their product {product:.0f}",
    )
    mean = pairs.scores.mean()
    doc.says(
        "scores “get larger on average”", mean > SLACK, f"their mean is {mean:.0f}, whatever d; only the spread grows"
    )
    low, the = 100 * once.weights[3].min(), 100 * explain(TOY_Q[None], TOY_K, TOY_V).weights[0, 2]
    doc.says(
        "“almost nothing” from words that scored low",
        low < 5,
        f"the word that scores lowest for bank still has {low:.1f} % of it in document 001, and {the:.1f} % in "
        "document 000, where its score is 0",
    )
    sizes = [diameter(x) for x in (E, once.out, twice)]
    doc.says(
        "a second pass: vectors “richer than the original”",
        sizes[2] >= sizes[0],
        f"a weighted mean cannot leave the hull: the four words of document 001 lie within {sizes[0]:.3f} of each "
        f"other, after one pass {sizes[1]:.3f}, after two {sizes[2]:.1e}; they become one word",
    )
    std = too_peaked()[1]
    doc.says(
        "scores “in the same range across all architectures”",
        abs(std - 1) < 0.1,
        "only if q and k have mean 0 and variance 1: in the program of document 002 the standard deviation after "
        f"division is {std:.1f}",
    )


X = np.array([[0.2, 0.8, 0.3], [0.5, 0.4, 0.9], [0.1, 0.7, 0.6]])  # Cat, ate, mouse
W_Q = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
W_K = np.array([[0.7, 0.8], [0.9, 0.1], [0.2, 0.3]])
PROSE_Q = np.array([0.3, 0.6])
PROSE_K = np.array([[0.8, 0.2], [0.4, 0.7], [0.9, 0.1]])


def cat_ate_mouse(doc: Document) -> None:
    q, k = X[1] @ W_Q, X @ W_K
    prose, code = explain(PROSE_Q[None], PROSE_K, PROSE_K), explain(q[None], k, k)
    own = {"note": "its own matrices give this; the prose and the program are two models"}
    doc.prints("“ate” × W_Q", "0.3, 0.6", q, **own)
    doc.prints("Cat, ate, mouse × W_K", "0.8, 0.2, 0.4, 0.7, 0.9, 0.1", k, **own)

    # From here on the prose is judged by the query and the keys that it states.
    exps = np.exp(prose.scaled[0])
    terms = doc.prints("scores, their terms", "0.24, 0.12, 0.12, 0.42, 0.27, 0.06", PROSE_Q * PROSE_K)
    raw = doc.prints("scores", "0.36, 0.54, 0.33", prose.scores[0], by=lambda x: x.sum(1), of=[terms], times=2)
    root = doc.prints("√d_k", "1.414", math.sqrt(2))
    scaled = doc.prints("scaled scores", "0.255, 0.382, 0.233", prose.scaled[0], by=np.divide, of=[raw, root])
    e = doc.prints("exponentials", "1.29, 1.47, 1.26", exps, by=np.exp, of=[scaled])
    total = doc.prints("their sum", "4.02", exps.sum(), by=np.sum, of=[e])
    w = doc.prints("weights", "0.32, 0.37, 0.31", prose.weights[0], by=np.divide, of=[e, total])
    percent = 100 * prose.weights[0]
    doc.prints("in percent", "32, 37, 31", percent, by=lambda w: 100 * w, of=[w])
    unit = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    doc.prints("A·B, A·C, A·D", "1, 0, -1", explain(unit[:1], unit, unit).scores[0])

    doc.says("percentages “that sum to 100%”", abs(percent.sum() - 100) < 1e-12, f"{percent.sum():.12f}")
    off, program = np.abs(percent - [40, 20, 40]).max(), 100 * code.weights[0]
    doc.says(
        "40 %, 20 %, 40 % “for clarity”",
        off < 1 or percent.argmin() == 1,
        f"it turns the order round: the calculation gives {percent[0]:.2f}, {percent[1]:.2f}, {percent[2]:.2f} %, most "
        f"to “ate” itself, which it put last; off by up to {off:.1f} points",
    )
    doc.says(
        "“ate” learns to attend “strongly to Cat”",
        min(percent[0], program[0]) > 100 / 3,
        f"nothing is trained here, and Cat gets less than an even share, {100 / 3:.2f} %: {percent[0]:.2f} % in the "
        f"prose, {program[0]:.2f} % in the program",
    )
    doc.says(
        "“NOT arbitrary”: from learned W_Q, W_K",
        np.abs(program - percent).max() < 0.5,
        f"the W it gives lead to {program[0]:.2f}, {program[1]:.2f}, {program[2]:.2f} %, not to those percentages",
    )
    cat, _, mouse = (cos(q, x) for x in k)
    doc.says(
        "the dot product “measures similarity”",
        (cat > mouse) == (code.scores[0, 0] > code.scores[0, 2]),
        f"of vectors of one length; in its own program “ate” scores Cat over mouse ({code.scores[0, 0]:.4f}, "
        f"{code.scores[0, 2]:.4f}) though mouse's key is the closer in direction (cosines {cat:.4f}, {mouse:.4f}): "
        "Cat's is longer",
    )


DOCUMENTS = {
    "000": why_bank,
    "001": walk_near_river_bank,
    "002": attention_kata,
    "003": weighted_sum,
    "004": cat_ate_mouse,
}


# The page.


def read(name: str) -> Document:
    """One document, judged."""
    doc = Document(name)
    DOCUMENTS[name](doc)
    return doc


def compute(args: argparse.Namespace) -> dict[str, Any]:
    documents = [read(name) for name in DOCUMENTS]
    results = {
        "counts": [count(doc) for doc in documents],
        "errata": [row for doc in documents for row in rows(doc)],
        "numbers": [
            {"document": doc.name, "place": x.place, "printed": x.texts, "exact": x.exact, "verdicts": x.verdicts}
            for doc in documents
            for x in doc.numbers
        ],
        "words": [claim for doc in documents for claim in doc.words],
    }
    if args.write:
        write(PAGE, page(results))
    return results


def count(doc: Document) -> dict[str, Any]:
    verdicts = [verdict for x in doc.numbers for verdict in x.verdicts * x.times]
    return {
        "document": doc.name,
        "numbers": len(verdicts),
        "right": sum(v in ("", OVER_ROUNDED) for v in verdicts),
        OVER_ROUNDED: verdicts.count(OVER_ROUNDED),
        TOO_EARLY: verdicts.count(TOO_EARLY),
        WRONG: sum(WRONG in v for v in verdicts),  # carried on or not
        "claims": len(doc.words),
        "hold": sum(claim["holds"] for claim in doc.words),
    }


def rows(doc: Document) -> list[dict[str, str]]:
    """What does not hold, a line for each array and each claim in words; a * marks the numbers concerned."""
    found = []
    for x in doc.numbers:
        if any(x.verdicts):
            marks = ["*" if verdict else "" for verdict in x.verdicts]
            printed = ", ".join(mark + text for mark, text in zip(marks, x.texts, strict=True))
            exact = ", ".join(digits(text, float(value)) for text, value in zip(x.texts, x.exact.ravel(), strict=True))
            reason = ", ".join(dict.fromkeys(v for v in x.verdicts if v)) + (f": {x.note}" if x.note else "")
            if WRONG in x.verdicts and x.by:
                given = zip(x.texts, x.verdicts, np.ravel(x.again()), strict=True)
                own = ", ".join(f"{value:.{min(_decimals(text), 12)}f}" for text, v, value in given if v == WRONG)
                reason += f": its own numbers give {own}"
            found.append({"document": doc.name, "prints": f"{x.place}: {printed}", "exact": exact, "reason": reason})
    for claim in doc.words:
        if not claim["holds"]:
            found.append({"document": doc.name, "prints": claim["phrase"], "exact": claim["finding"], "reason": WORDS})
    return found


def digits(text: str, exact: float) -> str:
    """The exact value to two digits more than printed, or to as many as show a difference that float64 has."""
    if abs(exact - float(text)) <= SLACK * abs(exact):
        return text
    if abs(exact) < 10.0 ** -(_decimals(text) + 2):
        return f"{exact:.2e}"
    places = min(_decimals(text) + 2, 12)
    while places < 12 and float(f"{exact:.{places}f}") == float(text) and abs(exact - float(text)) > SLACK:
        places += 1
    return f"{exact:.{places}f}"


def summary(results: dict[str, Any]) -> str:
    total = {name: sum(row[name] for row in results["counts"]) for name in results["counts"][0] if name != "document"}
    return (
        f"{total['numbers']} printed numbers were recomputed: {total['right']} are right to the digits printed "
        f"({total[OVER_ROUNDED]} of them over-rounded), {total['numbers'] - total['right']} are not "
        f"({total[TOO_EARLY]} rounded too early, {total[WRONG]} wrong). "
        f"Of {total['claims']} claims in words {total['hold']} hold, {total['claims'] - total['hold']} do not."
    )


def page(results: dict[str, Any]) -> str:
    """The table as Markdown."""
    names = ["numbers", "right", OVER_ROUNDED, TOO_EARLY, WRONG, "claims", "hold"]
    heads = ["numbers", "right", "of these over-rounded", TOO_EARLY, WRONG, "claims in words", "that hold"]
    lines = [
        "# Errata of the five source documents",
        "",
        summary(results),
        "Regenerate this page with `python demos/errata.py --write`; every entry is computed, and a test compares.",
        "",
        "Counted is each result, as often as it is printed; what a document starts from (its vectors and matrices, "
        "the number of trials) is taken as given. For document 004 that means the queries and keys of its prose; its "
        "program prints none.",
        "",
        "- **right**: within half a unit of the last printed digit (or of what float64 can tell apart).",
        "- **over-rounded**: right, yet a weight above zero is printed as zero, or a later number fails because of "
        "this rounding.",
        "- **rounded too early**: what the document's own step gives on the rounded numbers that it printed before.",
        "- **wrong**: neither; *carried on* if it follows from a wrong number before it.",
        "- **over-claimed in words**: a statement that the number beside it does not bear out.",
        "",
        "| document | title | " + " | ".join(heads) + " |",
        "|---|---|" + "---:|" * len(heads),
    ]
    for row in results["counts"]:
        lines.append(
            f"| {row['document']} | {TITLES[row['document']]} | " + " | ".join(str(row[n]) for n in names) + " |"
        )
    lines += [
        "",
        "An asterisk marks the numbers of an array that the reason speaks of.",
        "",
        "| document | what it prints | the exact value | the reason |",
        "|---|---|---|---|",
    ]
    for row in results["errata"]:
        lines.append("| " + " | ".join(row[name].replace("*", r"\*") for name in row) + " |")
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """The whole page, or nothing of it."""
    try:
        handle, made = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(made, 0o644)
            os.replace(made, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(made)
            raise
    except OSError as error:
        raise BadInput(f"{path.name} cannot be written ({error.strerror}). Make its folder writable.") from error


def show(paper: Console, results: dict[str, Any]) -> None:
    title(paper, "Errata of the five source documents", summary(results))
    for row in results["counts"]:
        name = row["document"]
        right = f"{row['right']} of {row['numbers']} numbers are right to the printed digits"
        title(paper, f"{name}  {TITLES[name]}", right)
        table = Table("what it prints", "the exact value", "the reason", show_lines=True)
        for found in results["errata"]:
            if found["document"] == name:
                table.add_row(found["prints"], found["exact"], found["reason"])
        paper.print(table)


def arguments() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.add_argument("--write", action="store_true", help="also write the table to demos/ERRATA.md")
    return made


if __name__ == "__main__":
    run(arguments(), compute, show)
