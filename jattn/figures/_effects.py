"""What each head does: the estimate of a gradient beside the knock-out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jattn import _errors, _picture_inputs
from jattn._types import NumPyArrayLike
from jattn.figures import _canvas

_NAMED = 6
"""How many heads are named: those of the largest errors."""


def effects(
    estimate: NumPyArrayLike,
    knock_out: NumPyArrayLike,
    *,
    second_order: NumPyArrayLike | None = None,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """The effect of each head by its gradient, across, against that of taking it away, up: on the line both agree.

    Args:
      estimate: [L, H], or [H] for one layer, as `heads.effects(...).first_order`.
      knock_out: of the same shape, as `heads.effects(...).knock_out`.
      second_order: of the same shape; from each dot a thin line leads to this estimate of the same head.
      labels: L · H names, layer after layer; layer.head, counted from 0, if None.
      ax: where to draw; a figure of its own if None.
      title: what is to be seen.

    Returns:
      The figure drawn on. The colour is the layer; heads of which the two have opposite signs are crosses, counted in
      the legend; those of the six largest errors are named.

    Raises:
      ValueError: the shapes differ, a number is not finite, or there are not as many names as heads.

    Memory: as its inputs.

    Source: Nanda 2023, "Attribution patching: activation patching at industrial scale", for the scatter.

    Example:
      >>> from jattn import figures
      >>> figure = figures.effects([[0.1, -0.1], [0.4, 0.0]], [[0.1, 0.2], [0.9, 0.0]])
      >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
      ['same sign', 'opposite sign: 1 of 4']
    """
    caller = "effects"
    x = _per_head(caller, "estimate", estimate)
    y = _per_head(caller, "knock_out", knock_out, x.shape)
    further = None if second_order is None else _per_head(caller, "second_order", second_order, x.shape)
    L, H = x.shape
    if labels is None:
        labels = [f"{layer}.{head}" for layer, head in np.ndindex(L, H)]
    labels = _canvas.names(caller, "labels", labels, "L · H", L * H)
    given = ax is not None
    figure, ax = _canvas.axes(caller, ax, (5.6, 4.8))
    ends = np.concatenate([x.ravel(), y.ravel(), [] if further is None else further.ravel()])
    low, high = ends.min(initial=0), ends.max(initial=0)
    room = (0.16 if given and _canvas.is_narrow(ax) else 0.08) * (high - low) or 1.0
    limits = (low - room, high + room)
    ax.plot(limits, limits, color="0.6", lw=0.8, zorder=0)
    for at in (ax.axhline, ax.axvline):
        at(0, color="0.85", lw=0.8, zorder=0)
    layers = np.broadcast_to(np.arange(L)[:, None], (L, H))
    opposite = np.sign(x) * np.sign(y) < 0
    if further is not None:
        for a, b, c in zip(x.ravel(), further.ravel(), y.ravel(), strict=True):
            ax.plot([a, b], [c, c], color="0.55", lw=0.8, zorder=1)
    counted = f"opposite sign: {opposite.sum()} of {x.size}"
    look: Any = {
        "cmap": "viridis",
        "vmin": 0,
        "vmax": max(L - 0.5, 1),
        "s": 30,
        "ec": _canvas.paper(),
        "lw": 0.5,
        "zorder": 3,
    }
    for some, marker, text in ((~opposite, "o", "same sign"), (opposite, "X", counted)):
        dots = ax.scatter(x[some], y[some], c=layers[some], marker=marker, label=text, **look)
    _name_the_largest_errors(ax, x.ravel(), y.ravel(), labels, limits)
    ax.set(xlim=limits, ylim=limits, aspect="equal")
    size = _canvas.points(9)
    told = (
        "gradient × activation" + ("" if further is None else " (line: to second order)"),
        "knock-out: the value without the head, less that with it",
    )
    if given:
        told = tuple(_canvas.wrapped(t, size, 0.85 * n) for t, n in zip(told, _canvas.extent(ax), strict=True))  # type: ignore[assignment]
    ax.set_xlabel(told[0], fontsize=size)
    ax.set_ylabel(told[1], fontsize=size)
    _canvas.bare(ax)
    if given and _canvas.is_narrow(ax):
        _canvas.legend_below(ax, ["same sign", counted])
    else:
        ax.legend(fontsize=_canvas.points(8), frameon=False, loc="upper left")
    legend = ax.get_legend()
    assert legend is not None
    for handle in legend.legend_handles:  # the marker alone tells
        handle.set(array=None, facecolor="0.4")  # type: ignore[union-attr]
    if L > 1:
        figure.colorbar(dots, ax=ax, label="layer", shrink=0.8, ticks=range(L))
    return _canvas.titled(figure, ax, title)


def _name_the_largest_errors(
    ax: Axes, x: np.ndarray, y: np.ndarray, labels: Sequence[str], limits: tuple[float, float]
) -> None:
    """Writes the labels of the `_NAMED` dots that are farthest from the line, each beside its dot."""
    worst = np.argsort(-np.abs(x - y), kind="stable")[:_NAMED]
    named: list[int] = []
    for i in worst[np.abs(x - y)[worst] > 0]:
        # Of two that would cover each other the larger error is named.
        near = [abs(a[i] - a[j]) / (limits[1] - limits[0]) for j in named for a in (x, y)]
        if any(across < 0.12 and up < 0.04 for across, up in zip(near[::2], near[1::2], strict=True)):
            continue
        named.append(i)
        across, up = x[i], y[i]
        left = (across - limits[0]) / (limits[1] - limits[0]) * min(_canvas.extent(ax))  # of the dot, in points
        right = across > up or left < _canvas.width(labels[i], _canvas.points(9)) + 7  # away from the line, if it fits
        side, ha = (7, "left") if right else (-7, "right")
        placed: Any = {"xytext": (side, -3), "ha": ha, "in_layout": False}
        _canvas.write(ax, labels[i], (across, up), -3, _canvas.pen(), **placed)


def _per_head(caller: str, name: str, x: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """[L, H] of [L, H] or [H], finite."""
    if _picture_inputs.axes_of(x) == 1:
        x = np.asarray(x)[None]
    found = _picture_inputs.numbers(caller, name, x, (None, None), "[L, H] or [H]")
    if shape is not None and found.shape != shape:
        must, remedy = f"{name} must have the shape of estimate", "Give both for the same heads."
        _errors.fail(ValueError, caller, must, remedy, **{name: found, "estimate": np.empty(shape)})
    return found
