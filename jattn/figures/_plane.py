"""The plane in which a query moves among its keys."""

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypedDict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.patches import Polygon

from jattn import _errors, _picture_inputs
from jattn._types import NumPyArrayLike
from jattn.figures import _canvas

Background: TypeAlias = tuple[NumPyArrayLike, NumPyArrayLike, NumPyArrayLike]
"""Filled contours behind a path: (x [nx], y [ny], values [ny, nx])."""
Field: TypeAlias = tuple[NumPyArrayLike, NumPyArrayLike, NumPyArrayLike, NumPyArrayLike]
"""Arrows (u, v) on a grid: (x [mx], y [my], u [my, mx], v [my, mx])."""


class PlaneOptions(TypedDict, total=False):
    """The options of `path` that are the same for each frame of a film."""

    background: Background | None
    field: Field | None
    rays: Mapping[str, NumPyArrayLike] | None
    hull: bool


_EXACT: Any = MappingProxyType({"angles": "xy", "scale_units": "xy", "scale": 1})
_CROWD = 24  # of more keys than this, names that find no place are left out


def path(
    points: NumPyArrayLike,
    keys: NumPyArrayLike,
    labels: Sequence[str],
    *,
    background: Background | None = None,
    field: Field | None = None,
    rays: Mapping[str, NumPyArrayLike] | None = None,
    hull: bool = False,
    arrows: NumPyArrayLike | None = None,
    marks: Mapping[int, str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """The path of a query among the keys, in the plane that both live in, with equal scales on both axes.

    Args:
      points: [n, 2], where the query was, first to last; n ≥ 1.
      keys: [S, 2], drawn as dots, or [n, S, 2], drawn with the way they went.
      labels: S names of the keys; an empty one is not written, nor, of more than 24, one that finds no place.
      background: (x [nx], y [ny], values [ny, nx]), a weight from 0 to 1 at each place, drawn in light bands with
        their borders labelled. Its extent becomes that of the axes.
      field: (x [mx], y [my], u [my, mx], v [my, mx]), an arrow at each place, such as −dL/dq of a query there. All
        are drawn to one scale, the longest as long as the places are apart.
      rays: name → direction [2], drawn from the origin to the edge of the axes and named in a legend.
      hull: whether the convex hull of the keys (where they are at last) is drawn.
      arrows: [S, 2], one for each key and in its colour, drawn from the first point.
      marks: index into `points` → text written beside a ring at that point.
      ax: where to draw; a figure of its own if None.
      title: what is to be seen.

    Returns:
      The figure drawn on.

    Raises:
      TypeError: `rays` or `marks` is no mapping, or `background` or `field` not such arrays. ValueError: a shape does
        not fit, a number is not finite, a ray has no direction, or a mark names no point.

    Memory: as its inputs.

    Source: the quiver of matplotlib; no published figure.

    Example:
      >>> from jattn import figures
      >>> keys = [[1.0, 0.0], [0.0, 0.1]]
      >>> figure = figures.path([[1.0, 0.0], [1.3, -0.1]], keys, ["river", "the"], marks={0: "start"})
      >>> [text.get_text() for text in figure.axes[0].texts]
      ['river', 'the', 'start']
    """
    caller = "path"
    q = _picture_inputs.numbers(caller, "points", points, (None, 2), "[n, 2]")
    moving = _picture_inputs.axes_of(keys) == 3
    shape, axes = ((len(q), None, 2), "[n, S, 2]") if moving else ((None, 2), "[S, 2]")
    ways = _picture_inputs.numbers(caller, "keys", keys, shape, axes)
    k = ways[-1] if moving and len(ways) else ways
    labels = _canvas.names(caller, "labels", labels, "S", ways.shape[-2])
    if not len(q):
        _errors.fail(ValueError, caller, "points must have at least one row", "Give the start of the path.", points=q)
    pulls = (
        np.zeros_like(k) if arrows is None else _picture_inputs.numbers(caller, "arrows", arrows, (len(k), 2), "[S, 2]")
    )
    figure, ax = _canvas.axes(caller, ax, (7.0, 4.5))
    inks = [_canvas.colour(s) for s in range(len(k))]
    ax.set_aspect("equal", adjustable="box")
    around = np.concatenate([q, ways.reshape(-1, 2), q[:1] + pulls, np.zeros((1, 2))])
    box = _extent(around) if background is None else _bands(caller, ax, background)
    ax.set_xlim(box[0], box[1])
    ax.set_ylim(box[2], box[3])
    if hull:
        ax.add_patch(
            Polygon(_picture_inputs.hull(k), closed=True, fc="#0072B2", ec="#0072B2", alpha=0.12, lw=1, zorder=1)
        )
    if field is not None:
        _field(caller, ax, field)
    _rays(caller, ax, rays, box)
    if arrows is not None:
        start = np.broadcast_to(q[0], pulls.shape)
        ax.quiver(*start.T, *pulls.T, color=inks, width=0.007, headwidth=4, headlength=4, zorder=4, **_EXACT)
    if moving:
        for s, (way, ink) in enumerate(zip(ways.swapaxes(0, 1), inks, strict=True)):
            ax.plot(*way.T, color=ink, ls=_canvas.DASHES[s % len(_canvas.DASHES)], lw=1, alpha=0.7, zorder=2.5)
    ax.plot(*q.T, color=_canvas.pen(), lw=1.4, zorder=3)
    dots = ax.scatter(k[:, 0], k[:, 1], c=inks, s=45, zorder=5, edgecolors=_canvas.paper())
    kinds = [MarkerStyle(_canvas.MARKERS[s % len(_canvas.MARKERS)]) for s in range(len(k))]
    dots.set_paths([kind.get_path().transformed(kind.get_transform()) for kind in kinds])
    crowd: dict[str, Any] = {"path_effects": None} if len(k) > _CROWD else {}  # a rim is four kilobytes a name
    for name, place, ink, above in zip(labels, k, inks, _heights(labels, k, box, ax), strict=True):
        if name and above is not None:
            _canvas.write(ax, name, place, above, ink, **crowd)
    _marks(caller, ax, q, marks)
    if rays:
        ax.legend(loc="best", fontsize=_canvas.points(8), framealpha=0.9)
    return _canvas.titled(figure, ax, title)


def _heights(
    labels: Sequence[str], k: np.ndarray, box: tuple[float, float, float, float], ax: Axes
) -> list[float | None]:
    """How far above its dot each name stands, in points, so that no two lie on each other; None without a place."""
    figure = _canvas.axes("path", ax, (1, 1))[0]
    wide, high = (float(n) * 72 / figure.dpi for n in ax.get_window_extent().size)
    scale = min(wide / max(box[1] - box[0], 1e-300), high / max(box[3] - box[2], 1e-300))
    taken: list[tuple[float, float, float]] = []  # centre, height, half a width
    chosen: list[float | None] = []
    for name, (x, y) in zip(labels, k * scale, strict=True):
        half = 3.2 * len(name)
        free = (
            up
            for up in (7.0, -16.0, 19.0, -28.0, 31.0, -40.0)
            if all(abs(x - cx) > half + w or abs(y + up - cy) > 11 for cx, cy, w in taken)
        )
        above = next(free, None if len(k) > _CROWD else 7.0)
        if name and above is not None:
            taken.append((x, y + above, half))
        chosen.append(above)
    return chosen


def _extent(around: np.ndarray) -> tuple[float, float, float, float]:
    low, high = around.min(0), around.max(0)
    room = 0.15 * ((high - low).max() or 1.0)
    return low[0] - room, high[0] + room, low[1] - room, high[1] + room


def _bands(caller: str, ax: Axes, background: Background) -> tuple[float, float, float, float]:
    """A weight at each place, in light bands; and the extent of the places."""
    _together(caller, "background", background, "(x, y, values)", 3)
    x, y = (_picture_inputs.numbers(caller, f"background[{i}]", background[i], (None,), "[n]") for i in (0, 1))
    values = _picture_inputs.numbers(caller, "background[2]", background[2], (len(y), len(x)), "[ny, nx]")
    if min(values.shape) < 2:
        must, remedy = "background must have at least two places along each axis", "A band lies between places."
        _errors.fail(ValueError, caller, must, remedy, **{"background[2]": values})
    bands = np.linspace(0, 1, 11)
    ax.contourf(x, y, values, bands, cmap="Greys_r" if _canvas.is_dark() else "Greys", vmin=0, vmax=2.2, zorder=0)
    inside = [level for level in bands if values.min() < level < values.max()]
    if inside:
        borders = ax.contour(x, y, values, inside, colors="0.4", linewidths=0.5, zorder=0.5)
        for level in ax.clabel(borders, inside[:: 1 + len(inside) // 5], fontsize=_canvas.points(7), fmt="%.1f"):
            place = (np.array(level.get_position()) - [x[0], y[0]]) / [x[-1] - x[0], y[-1] - y[0]]
            level.set_visible(bool((abs(place - 0.5) < 0.45).all()))  # none cut by the frame
    return x[0], x[-1], y[0], y[-1]


def _together(caller: str, name: str, given: Any, of: str, n: int) -> None:
    """Refuses what is not so many arrays together."""
    if not isinstance(given, (tuple, list)) or len(given) != n:
        got = f"of length {len(given)}" if isinstance(given, (tuple, list)) else f"of type {type(given).__name__}"
        _errors.fail(TypeError, caller, f"{name} must be {of}", "Give all of them, in this order.", **{name: got})


def _field(caller: str, ax: Axes, field: Field) -> None:
    _together(caller, "field", field, "(x, y, u, v)", 4)
    x, y = (_picture_inputs.numbers(caller, f"field[{i}]", field[i], (None,), "[n]") for i in (0, 1))
    u, v = (_picture_inputs.numbers(caller, f"field[{i}]", field[i], (len(y), len(x)), "[my, mx]") for i in (2, 3))
    apart = min((float(d) for z in (x, y) for d in np.diff(np.unique(z))), default=1.0)
    length = max(float(np.hypot(u, v).max(initial=0)), 1e-300) / apart
    look = {"color": "#8A3B00", "alpha": 0.75, "width": 0.003, "headwidth": 5, "zorder": 2, "pivot": "mid"}
    ax.quiver(x, y, u, v, angles="xy", scale_units="xy", scale=length, minlength=0.4, **look)  # type: ignore[arg-type]


def _rays(caller: str, ax: Axes, rays: Any, box: tuple[float, float, float, float]) -> None:
    rays = _picture_inputs.mapping(caller, "rays", rays, "names to directions")
    styles = itertools.cycle((("#B8006F", "--"), (_canvas.pen(), ":"), ("#3A5FA0", "-.")))
    for (name, direction), (ink, dashes) in zip(rays.items(), styles, strict=False):
        ray = f"rays[{name!r}]"
        u = _picture_inputs.numbers(caller, ray, direction, (2,), "[2]")
        if not u.any():
            _errors.fail(ValueError, caller, "a ray must have a direction", "Leave it out.", **{ray: "of length 0"})
        far = u / np.abs(u).max() * 2 * max(abs(b) for b in box)
        ax.plot(
            [0, far[0]], [0, far[1]], ls=dashes, lw=1.6, color=ink, label=_canvas.in_legend(_canvas.drawable(str(name)))
        )


def _marks(caller: str, ax: Axes, q: np.ndarray, marks: Any) -> None:
    for index, text in _picture_inputs.mapping(caller, "marks", marks, "indices of points to texts").items():
        if not isinstance(index, (int, np.integer)):
            got = {"marks": f"with an index of type {type(index).__name__}"}
            _errors.fail(TypeError, caller, "marks must map indices of points to texts", "Pass whole numbers.", **got)
        if not -len(q) <= index < len(q):
            _errors.fail(
                ValueError, caller, "a mark must name a point", "Marks are indices.", marks=str(index), points=q
            )
        ax.plot(*q[index], marker="o", ms=5, mfc=_canvas.paper(), mec=_canvas.pen(), zorder=6)
        if text:
            _canvas.write(ax, _canvas.drawable(str(text)), q[index], -14, _canvas.pen())
