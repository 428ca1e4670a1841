"""Document 001, walk near river bank: its numbers and its claims in words."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from _errata_verdicts import SLACK, Document, angle, cos, explain

import jattn

WORDS = ("walk", "near", "river", "bank")
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
    for t, word in enumerate(WORDS):
        terms = doc.prints(f"scores of {word}, their terms", TERMS[t], E[t] * E)
        raw.append(doc.prints(f"scores of {word}", SCORES[t], s.scores[t], by=lambda x: x.sum(1), of=[terms], times=2))
    doc.prints("highest score of bank, in words", "1.04", s.scores[3].max())
    root = doc.prints("√d_k", "1.414", math.sqrt(2), times=2)
    for t, word in enumerate(WORDS):
        divide = {"by": np.divide, "of": [raw[t], root]}
        scaled.append(doc.prints(f"scaled scores of {word}", SCALED[t], s.scaled[t], **divide, times=2))
    for t, word in enumerate(WORDS):
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
    for t, word in enumerate(WORDS[:3]):
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
