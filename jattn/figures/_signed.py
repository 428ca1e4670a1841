"""Signed things: the pulls that make up a gradient, and what theory says is conserved."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from jattn import _picture_inputs
from jattn._types import NumPyArrayLike
from jattn.figures import _canvas


def why(
    pulls: NumPyArrayLike,
    labels: Sequence[str],
    *,
    total: NumPyArrayLike | None = None,
    dimensions: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Why a gradient points where it does: the pull of each key, c·p_j(a_j − ā)k_j, stacked dimension by dimension.

    Args:
      pulls: [S, D], one pull for each key; they sum to −dL/dq.
      labels: S names of the keys.
      total: [D], the −dL/dq that was measured by other means, drawn as a line across each stack; the sum if None.
      dimensions: D names; 1, 2, 3, … if None.
      ax: where to draw; a figure of its own if None.
      title: what is to be seen.

    Returns:
      The figure drawn on. What pulls up is stacked above zero, what pulls down below; the line is what remains.
      Of more than nine keys, the eight with the largest pulls in one dimension are drawn, and the sum of the others.

    Raises:
      ValueError: a shape does not fit, or a number is not finite.

    Memory: as its inputs.

    Source: dL/ds_j = p_j (a_j − ā), the derivative of softmax, and the chain rule.

    Example:
      >>> from jattn import figures
      >>> figure = figures.why([[0.4, 0.0], [-0.1, -0.2]], ["river", "money"])
      >>> [text.get_text() for text in figure.axes[0].texts][-2:]
      ['+0.300', '-0.200']
    """
    x = _picture_inputs.numbers("why", "pulls", pulls, (None, None), "[S, D]")
    S, D = x.shape
    labels = _canvas.names("why", "labels", labels, "S", S)
    across = [str(d + 1) for d in range(D)] if dimensions is None else dimensions
    across = _canvas.names("why", "dimensions", across, "D", D)
    ends = x.sum(0) if total is None else _picture_inputs.numbers("why", "total", total, (D,), "[D]")
    x, labels = _canvas.strongest(x, labels)
    given = ax is not None
    figure, ax = _canvas.axes("why", ax, (3.4 + 0.9 * min(D, 12) + _canvas.more_than(1.2, labels, 9), 4.0))
    unit = _canvas.extent(ax)[0] / max(D + 0.5, 1) if given else 0.9 * 72  # of one dimension, in points
    most = max(np.maximum(x, 0).sum(0).max(initial=0), -np.minimum(x, 0).sum(0).min(initial=0), 1e-300)
    largest = max(most, abs(ends).max(initial=0))
    decimals = "+z.3f" if 0.01 <= largest < 1e4 or largest == 1e-300 else "+z.1e"  # no bar is +0.000
    wide = _canvas.width(f"{0:{decimals}}", 1.0)
    fits = min(9.0, 0.55 * unit / wide * 10 / matplotlib.rcParams["font.size"])
    legible = _canvas.points(fits) <= fits * matplotlib.rcParams["font.size"] / 10  # not below the least
    hatches = _canvas.HATCHES
    above, below = np.zeros(D), np.zeros(D)
    for s, (pull, label) in enumerate(zip(x, labels, strict=True)):
        base = np.where(pull >= 0, above, below)
        colour = _canvas.colour(s)
        ax.bar(
            range(D), pull, 0.62, bottom=base, color=colour, alpha=0.85, label=_canvas.in_legend(label),
            ec=_canvas.paper(), lw=0.8, hatch=hatches[s % len(hatches)],
        )  # fmt: skip
        for d in range(D):
            if abs(pull[d]) > 0.15 * most and D <= 8 and legible and unit >= 48:
                _canvas.write(ax, f"{pull[d]:{decimals}}", (d, base[d] + pull[d] / 2), -3, _canvas.pen(), fits)
        above, below = above + np.maximum(pull, 0), below + np.minimum(pull, 0)
    ax.axhline(0, color=matplotlib.rcParams["axes.edgecolor"], lw=0.8)
    for d, end in enumerate(ends):
        ax.plot([d - 0.42, d + 0.42], [end, end], color=_canvas.pen(), lw=2.2, solid_capstyle="butt", zorder=6)
    for d, end in enumerate(ends):
        if D <= 12 and legible:
            _canvas.write(ax, f"{end:{decimals}}", (d + 0.44, end), -3, _canvas.pen(), fits, ha="left", weight="bold")
    need = _canvas.longest(across, _canvas.points(8)) + 3 if given else 0
    _canvas.name_ticks(ax.xaxis, range(D), across, need)
    ax.set_xlim(-0.6, D - 0.1)
    ax.set_ylim(
        min(below.min(initial=0), ends.min(initial=0)) - 0.12 * most,
        max(above.max(initial=0), ends.max(initial=0)) + 0.12 * most,
    )
    ax.set_xlabel("dimension of q (line: the sum, −dL/dq)", fontsize=_canvas.points(9))
    ax.set_ylabel("pull on q", fontsize=_canvas.points(9))
    _canvas.bare(ax)
    if given and _canvas.is_narrow(ax):
        _canvas.legend_below(ax, labels, "the pull of")
    elif labels:
        beside: Any = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}
        ax.legend(fontsize=_canvas.points(9), title="the pull of", **beside)
    return _canvas.titled(figure, ax, title)


def conserved(
    quantities: Mapping[str, tuple[NumPyArrayLike, NumPyArrayLike]],
    *,
    steps: NumPyArrayLike | None = None,
    figure: Figure | SubFigure | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """What theory predicts of each quantity, as a line, and what was measured, as dots on it: a panel for each.

    Args:
      quantities: name → (predicted, measured), each [F]; a prediction that is one number holds for every frame.
      steps: [F], what the frames are numbered by; 0, 1, … if None.
      figure: where to draw; a figure of its own if None.
      ax: where to draw one quantity, in place of a figure.
      title: what is to be seen.

    Returns:
      The figure drawn on. Each panel is titled with the largest difference.

    Raises:
      TypeError: it is no such mapping. ValueError: two shapes do not agree, or `ax` is given
        for more than one quantity.

    Memory: as its inputs.

    Source: no published figure.

    Example:
      >>> from jattn import figures
      >>> figure = figures.conserved({"Σ dk": (0.0, [0.0, 1e-17, -1e-17])})
      >>> figure.axes[0].get_title()
      'Σ dk: off by at most 1.0e-17'
    """
    both = _picture_inputs.pairs("conserved", "quantities", quantities)
    root, grid = _canvas.panels("conserved", ax, figure, len(both), 3, (3.9, 2.5))
    for panel, (name, (predicted, measured)) in zip(grid, both.items(), strict=True):
        F = len(measured)
        at = np.arange(F) if steps is None else _picture_inputs.numbers("conserved", "steps", steps, (F,), "[F]")
        panel.plot(at, predicted, color="#B8006F", lw=1.6, label="predicted")
        every = max(1, F // 24)
        panel.plot(
            at[::every], measured[::every], "o", ms=4, mfc="none", mec="#0072B2", label="measured", clip_on=False
        )
        with np.errstate(invalid="ignore", over="ignore"):  # NaN, as of ∞ − ∞, is not conserved, and said
            off = float(np.max(abs(predicted - measured), initial=0))
        seen = np.array([0.0, *(x for x in (*predicted, *measured) if np.isfinite(x))][1:] or [0.0])
        low, high = seen.min(), seen.max()
        least = 1e-6 * max(1.0, abs(low), abs(high))  # rounding is not drawn as if it were a movement
        if high - low < least:
            panel.set_ylim((low + high - least) / 2, (low + high + least) / 2)
        panel.set_title(f"{_canvas.drawable(name)}: off by at most {off:.1e}", fontsize=_canvas.points(9))
        panel.set_xlabel("step", fontsize=_canvas.points(8))
        _canvas.bare(panel)
    if len(grid):
        grid[0].legend(fontsize=_canvas.points(8), frameon=False)
    if title and ax is not None:
        _canvas.set_title(ax, f"{title}\n{ax.get_title()}", 9)
    elif title:
        _canvas.set_title(root, title, 11)
    return root
