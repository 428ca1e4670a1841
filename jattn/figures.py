"""Pictures: arrays in, a matplotlib Figure out. Nothing is computed here, and nothing in the library imports it.

A figure is made without pyplot, so no window opens and no state is shared: show it in a notebook as it is, or
`save` it. Every function draws on an `ax` of yours instead where you give one. Needs the extra `figures`.
"""

import itertools
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jattn import _checks

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke
except ImportError as missing:
    raise ImportError("jattn.figures draws with matplotlib: pip install 'jattn[figures]'") from missing

__all__ = ["path", "save", "weights"]

_COLOURS = ("#0072B2", "#D55E00", "#007A5E", "#9A4C85", "#7A6A00", "#3A7CA5", "#000000")
# One for each key in turn: after Okabe and Ito, so told apart by the colour-blind, and dark enough for text on white.


def weights(
    weights: Any, rows: Sequence[str], columns: Sequence[str], *, ax: Axes | None = None, title: str | None = None
) -> Figure:
    """A heatmap of attention weights whose cells carry their numbers: dark is 0, bright is 1.

    Args:
      weights: [T, S], from 0 to 1; anything that NumPy can read.
      rows: T names, of the queries, from top to bottom.
      columns: S names, of the keys, from left to right.
      ax: where to draw; a figure of its own if None.
      title: what is to be seen.

    Returns:
      The figure drawn on. T = 0 or S = 0 gives empty axes.

    Raises:
      ValueError: `weights` has not two axes, is not finite, or has not one name to each row and column.

    Memory: as `weights`, a few times.

    Source: the colour map is viridis, which is even in lightness and safe for the colour-blind.

    Example:
      >>> from jattn import figures
      >>> figure = figures.weights([[0.49, 0.28, 0.24]], ["bank"], ["river", "money", "the"])
      >>> [cell.get_text() for cell in figure.axes[0].texts]
      ['0.490', '0.280', '0.240']
    """
    x = _numbers("weights", "weights", weights, (None, None), "[T, S]")
    _names("weights", "rows", rows, "T", len(x))
    _names("weights", "columns", columns, "S", x.shape[1])
    figure, ax = _axes(ax, (1.4 + 0.8 * x.shape[1], 0.9 + 0.5 * len(x)))
    colours, scale = matplotlib.colormaps["viridis"], Normalize(0, 1)
    if x.size:
        ax.imshow(x, cmap=colours, norm=scale, aspect="auto")
    for (t, s), w in np.ndenumerate(x):
        light = _luminance(colours(scale(w))[:3])
        ink = "black" if light > 0.179 else "white"  # where contrast with the one equals contrast with the other
        ax.text(s, t, f"{w:.3f}", ha="center", va="center", color=ink)
    ax.set_xticks(range(x.shape[1]), list(columns))
    ax.set_yticks(range(len(x)), list(rows))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return _titled(figure, ax, title)


def path(
    points: Any,
    keys: Any,
    labels: Sequence[str],
    *,
    background: tuple[Any, Any, Any] | None = None,
    rays: Mapping[str, Any] | None = None,
    arrows: Any = None,
    marks: Mapping[int, str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """The path of a query among the keys, in the plane that both live in, with equal scales on both axes.

    Args:
      points: [n, 2], where the query was, first to last; n ≥ 1.
      keys: [S, 2], drawn as dots.
      labels: S names of the keys; an empty one is not written.
      background: (x [nx], y [ny], values [ny, nx]), a weight from 0 to 1 at each place, drawn in light bands with
        their borders labelled. Its extent becomes that of the axes.
      rays: name → direction [2], drawn from the origin to the edge of the axes and named in a legend.
      arrows: [S, 2], one for each key and in its colour, drawn from the first point.
      marks: index into `points` → text written beside a ring at that point.
      ax: where to draw; a figure of its own if None.
      title: what is to be seen.

    Returns:
      The figure drawn on.

    Raises:
      ValueError: a shape does not fit, a number is not finite, a ray has no direction, or a mark names no point.

    Memory: as its inputs.

    Source: the quiver of matplotlib; no published figure.

    Example:
      >>> from jattn import figures
      >>> keys = [[1.0, 0.0], [0.0, 0.1]]
      >>> figure = figures.path([[1.0, 0.0], [1.3, -0.1]], keys, ["river", "the"], marks={0: "start"})
      >>> [text.get_text() for text in figure.axes[0].texts]
      ['river', 'the', 'start']
    """
    where = "path"
    q = _numbers(where, "points", points, (None, 2), "[n, 2]")
    k = _numbers(where, "keys", keys, (None, 2), "[S, 2]")
    _names(where, "labels", labels, "S", len(k))
    if not len(q):
        _checks.fail(ValueError, where, "points must have at least one row", "Give the start of the path.", points=q)
    pulls = np.zeros_like(k) if arrows is None else _numbers(where, "arrows", arrows, (len(k), 2), "[S, 2]")
    figure, ax = _axes(ax, (7.0, 4.5))
    inks = [_COLOURS[s % len(_COLOURS)] for s in range(len(k))]
    ax.set_aspect("equal", adjustable="box")

    if background is not None:
        x, y = (_numbers(where, f"background[{i}]", background[i], (None,), "[n]") for i in (0, 1))
        values = _numbers(where, "background[2]", background[2], (len(y), len(x)), "[ny, nx]")
        bands = np.linspace(0, 1, 11)
        ax.contourf(x, y, values, bands, cmap="Greys", vmin=0, vmax=2.2, zorder=0)
        inside = [level for level in bands if values.min() < level < values.max()]
        if inside:
            borders = ax.contour(x, y, values, inside, colors="0.55", linewidths=0.5, zorder=0.5)
            for level in ax.clabel(borders, inside[:: 1 + len(inside) // 5], fontsize=7, fmt="%.1f"):
                place = (np.array(level.get_position()) - [x[0], y[0]]) / [x[-1] - x[0], y[-1] - y[0]]
                level.set_visible(bool((abs(place - 0.5) < 0.45).all()))  # none cut by the frame
        box = (x[0], x[-1], y[0], y[-1])
    else:
        everything = np.concatenate([q, k, q[:1] + pulls, np.zeros((1, 2))])
        low, high = everything.min(0), everything.max(0)
        room = 0.15 * max((high - low).max(), 1e-9)
        box = (low[0] - room, high[0] + room, low[1] - room, high[1] + room)
    ax.set_xlim(box[0], box[1])
    ax.set_ylim(box[2], box[3])

    styles = itertools.cycle((("#B8006F", "--"), ("0.2", ":"), ("#3A5FA0", "-.")))
    for (name, direction), (ink, dashes) in zip((rays or {}).items(), styles, strict=False):
        ray = f"rays[{name!r}]"
        u = _numbers(where, ray, direction, (2,), "[2]")
        if not u.any():
            _checks.fail(ValueError, where, "a ray must have a direction", "Leave it out.", **{ray: "of length 0"})
        far = u / np.abs(u).max() * 2 * max(abs(b) for b in box)
        ax.plot([0, far[0]], [0, far[1]], ls=dashes, lw=1.6, color=ink, label=name)
    if arrows is not None:
        start = np.broadcast_to(q[0], pulls.shape)
        exact: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1}
        ax.quiver(*start.T, *pulls.T, color=inks, width=0.007, headwidth=4, headlength=4, zorder=4, **exact)
    ax.plot(*q.T, color="black", lw=1.4, zorder=3)
    ax.scatter(k[:, 0], k[:, 1], c=inks, s=45, zorder=5, edgecolors="white")
    for name, place, ink in zip(labels, k, inks, strict=True):
        if name:
            _write(ax, name, place, 7, ink)
    for index, text in (marks or {}).items():
        if not -len(q) <= index < len(q):
            _checks.fail(
                ValueError, where, "a mark must name a point", "Marks are indices.", marks=str(index), points=q
            )
        ax.plot(*q[index], marker="o", ms=5, mfc="white", mec="black", zorder=6)
        if text:
            _write(ax, text, q[index], -14, "black")
    if rays:
        ax.legend(loc="best", fontsize=8, framealpha=0.9)
    return _titled(figure, ax, title)


def save(figure: Figure, stem: str | os.PathLike[str], kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Writes a figure to `<stem>.<kind>` for each kind, each file whole or not at all, the same bytes every time.

    Args:
      figure: the figure.
      stem: a path without an ending; its folder is made if it is not there.
      kinds: formats that matplotlib can write.

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
            _checks.fail(ValueError, "save", "kinds must be formats of matplotlib", "Try png or svg.", kinds=repr(kind))
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory(dir=stem.parent, prefix=".") as folder:
        for kind in kinds:
            with matplotlib.rc_context({"svg.hashsalt": "jattn"}):
                undated = {"Date": None} if kind == "svg" else None
                figure.savefig(Path(folder) / f"new.{kind}", format=kind, dpi=150, metadata=undated)
        for kind in kinds:
            target = stem.with_name(f"{stem.name}.{kind}")
            os.replace(Path(folder) / f"new.{kind}", target)
            written.append(target)
    return written


def _numbers(where: str, name: str, x: Any, shape: tuple[int | None, ...], axes: str) -> np.ndarray:
    """`x` as float64 of the shape asked for (None: any length), finite throughout."""
    try:
        x = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError):
        got = {name: f"of type {type(x).__name__}"}
        _checks.fail(
            TypeError, where, f"{name} must be an array of numbers {axes}", "Pass one shape throughout.", **got
        )
    if x.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, x.shape, strict=True)):
        want = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
        remedy = f"Here that is {want}: draw one head and two dimensions at a time."
        _checks.fail(ValueError, where, f"{name} must have the shape {axes}", remedy, **{name: x})
    if not np.isfinite(x).all():
        _checks.fail(ValueError, where, f"{name} must be finite", "Leave out what is not a number.", **{name: x})
    return x


def _names(where: str, name: str, names: Sequence[str], axis: str, n: int) -> None:
    if isinstance(names, str) or len(names) != n:
        got = {name: repr(names) if isinstance(names, str) else f"of length {len(names)}"}
        _checks.fail(ValueError, where, f"{name} must hold {axis} = {n} names", "Give a list of them.", **got)


def _axes(ax: Axes | None, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """The caller's axes and their figure, or a new one of a size in inches."""
    if ax is None:
        ax = Figure(figsize=size, layout="constrained").add_subplot()
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure, ax


def _luminance(colour: Sequence[float]) -> float:
    """How bright a colour of the screen is to the eye, from 0 to 1 (WCAG 2.2)."""
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _write(ax: Axes, text: str, place: np.ndarray, above: float, ink: str) -> None:
    """`text` above (or below) a place, by points of the page, with a rim of white so that lines may pass behind."""
    at: dict[str, Any] = {"xytext": (0, above), "textcoords": "offset points", "ha": "center", "zorder": 7}
    rim = [withStroke(linewidth=2.5, foreground="white")]
    ax.annotate(text, tuple(place), color=ink, fontsize=9, annotation_clip=True, path_effects=rim, **at)


def _titled(figure: Figure, ax: Axes, title: str | None) -> Figure:
    if title:
        ax.set_title(title, fontsize=10)
    return figure
