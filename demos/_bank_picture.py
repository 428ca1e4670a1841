"""The picture that bank_river.py writes: bank's attention, and the path of q_bank among the frozen keys."""

import jax
import numpy as np
from _bank_toy import WORDS, K, V
from matplotlib.figure import Figure

import jattn
from jattn import figures, flow


def draw(paths: dict[str, flow.Diagnostics], rate: float) -> Figure:
    """A column for each context: bank's attention before and after, q_bank's first steps, and its whole way."""
    figure = Figure(figsize=(12, 8.9), layout="constrained")
    grid = figure.subplots(3, len(paths), height_ratios=(1.3, 1.9, 3.5))
    figure.suptitle(f"Gradient descent on q_bank alone, keys frozen, learning rate {rate:g}")
    for (row, first, whole), (word, path) in zip(grid.T, paths.items(), strict=True):
        target, q, w, steps = WORDS.index(word), path.q, path.weights[[0, -1]], len(path.q) - 1
        seen = f"{word} context: p_{word} goes from {w[0, target]:.3f} to {w[1, target]:.3f} in {steps:,} steps"
        figures.weights(w, ["before", "after"], WORDS, ax=row, title=seen)

        x, y = np.linspace(-0.8, 1.9, 136), np.linspace(-0.4, 0.5, 46)
        few = q[: 1 + int((abs(q - [0.55, 0.05]) > [1.35, 0.45]).any(1).argmax() or steps)]
        marks = {t: f"step {t}" for t in (0, 1, 10) if t < len(few) - 1}
        figures.path(few, K, WORDS, background=(x, y, field(x, y, target)), arrows=2 * path.pulls[0], marks=marks,
                     ax=first, title="The first steps. Arrows: each key's pull on q, at twice its length")  # fmt: skip

        low, high = np.minimum(q.min(0), 0), np.maximum(q.max(0), 0)
        (x, y), half = (low + high) / 2, 0.62 * max(high[1] - low[1], (high[0] - low[0]) / 1.6)
        x, y = np.linspace(x - 1.6 * half, x + 1.6 * half, 161), np.linspace(y - half, y + half, 101)
        rays = {
            "widest margin: where q's direction tends": path.direction[0],
            f"k_{word}: where the slogan sends it": K[target],
        }
        marks = {
            t: f"step {t:,}"
            for t in {10, 100, 1000, 10_000, steps}
            if (t <= steps / 2 or t == steps) and abs(q[t]).max() > half / 6
        }
        seen = f"The whole way: cos(q, k_{word}) goes from {path.cos_key[0]:.3f} to {path.cos_key[-1]:.3f}"
        figures.path(
            q, K, [""] * 3, background=(x, y, field(x, y, target)), rays=rays, marks=marks, ax=whole, title=seen
        )
        for ax in (first, whole):
            ax.set_xlabel(f"grey: p_{word} of a query at that place")
    return figure


def field(x: np.ndarray, y: np.ndarray, target: int) -> np.ndarray:
    """p_target of a query at each place of a grid, keys frozen: every place is a query, so it is one call."""
    places = np.stack(np.meshgrid(x, y), -1)
    return np.asarray(jax.jit(jattn.explain)(places.reshape(-1, 2), K, V).weights[:, target]).reshape(len(y), len(x))
