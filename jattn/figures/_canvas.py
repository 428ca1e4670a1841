"""What every figure needs: axes, colours, letters, and files."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patheffects import withStroke

from jattn import _errors

COLOURS = ("#0072B2", "#D55E00", "#007A5E", "#9A4C85", "#7A6A00", "#3A7CA5", "#000000")
# One for each key in turn: after Okabe and Ito, so told apart by the colour-blind, and dark enough for text on white.


def save(figure: Figure, stem: str | os.PathLike[str], kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Writes a figure to `<stem>.<kind>` for each kind, each file whole or not at all, the same bytes every time.

    Args:
      figure: the figure.
      stem: a path without an ending; its folder is made if it is not there.
      kinds: formats that matplotlib can write: png, svg, pdf, …

    Returns:
      The paths written, in the order of `kinds`.

    Raises:
      ValueError: matplotlib knows no such format. OSError: the folder cannot be written to.

    Memory: that of one picture.

    Source: a temporary file beside the target, then `os.replace`, which POSIX and Windows make atomic.

    Example:
      >>> import tempfile
      >>> from jattn import figures
      >>> figure = figures.weights([[1.0]], ["bank"], ["river"])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     [path.name for path in figures.save(figure, folder + "/bank")]
      ['bank.png', 'bank.svg']
    """
    stem = Path(stem)
    known = figure.canvas.get_supported_filetypes()
    for kind in kinds:
        if kind not in known:
            _errors.fail(ValueError, "save", "kinds must be formats of matplotlib", "Try png or svg.", kinds=repr(kind))
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory(dir=stem.parent, prefix=".") as folder:
        for kind in kinds:
            with matplotlib.rc_context({"svg.hashsalt": "jattn", "svg.fonttype": "path"}):
                undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
                figure.savefig(Path(folder) / f"new.{kind}", format=kind, dpi=150, metadata=undated)
        for kind in kinds:
            target = stem.with_name(f"{stem.name}.{kind}")
            os.replace(Path(folder) / f"new.{kind}", target)
            written.append(target)
    return written


def axes(ax: Axes | None, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """The caller's axes and their figure, or a new one of a size in inches."""
    if ax is None:
        ax = Figure(figsize=size, layout="constrained").add_subplot()
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure, ax


def panels(figure: Figure | SubFigure | None, n: int, across: int, size: tuple[float, float]) -> tuple[Figure, Any]:
    """A root figure and an array of n axes in rows of at most `across`, each of a size in inches."""
    across = min(max(n, 1), across)
    down = -(-n // across) or 1
    if figure is None:
        figure = Figure(figsize=(across * size[0], 0.4 + down * size[1]), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for spare in grid[n:]:
        spare.set_axis_off()
    return figure.get_figure(root=True) or figure, grid[:n]  # type: ignore[return-value]


def luminance(colour: Sequence[float]) -> float:
    """How bright a colour of the screen is to the eye, from 0 to 1 (WCAG 2.2)."""
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink(colour: Sequence[float]) -> str:
    """Black or white, whichever stands out more on a colour."""
    return "black" if luminance(colour[:3]) > 0.179 else "white"  # where the one contrast equals the other


def write(ax: Axes, text: str, place: Any, above: float, colour: str, **more: Any) -> None:
    """`text` above (or below) a place, by points of the page, with a rim of white so that lines may pass behind."""
    at: dict[str, Any] = {"xytext": (0, above), "textcoords": "offset points", "ha": "center", "zorder": 7} | more
    rim = [withStroke(linewidth=2.5, foreground="white")]
    ax.annotate(
        text, (float(place[0]), float(place[1])), color=colour, fontsize=9, annotation_clip=True, path_effects=rim, **at
    )


def direct_labels(ax: Axes, labels: Sequence[str], ends: Sequence[float], colours: Sequence[str]) -> None:
    """The name of each line at its right end, moved apart where two would overlap."""
    shown = [i for i, y in enumerate(ends) if np.isfinite(y)]
    if not shown:
        return
    transform = ax.transData + ax.transAxes.inverted()
    at = {i: float(transform.transform((0, ends[i]))[1]) for i in shown}
    room, last = 0.11, -1.0
    for i in sorted(shown, key=at.__getitem__):
        last = at[i] = max(at[i], last + room)
    over = max(at.values()) - 1.02
    for i in shown:
        y = at[i] - max(over, 0.0) * (at[i] > 0.5)
        ax.annotate(
            labels[i], (1.02, y), xycoords="axes fraction", color=colours[i], fontsize=8, va="center", clip_on=False
        )


def titled(figure: Figure, ax: Axes, title: str | None) -> Figure:
    if title:
        ax.set_title(title, fontsize=10)
    return figure


def bare(ax: Axes) -> None:
    """No frame but the two axes that carry numbers."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
