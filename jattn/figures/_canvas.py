"""What every figure needs: axes, colours and letters."""

import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cbook import is_math_text
from matplotlib.colors import to_hex, to_rgb, to_rgba
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter
from matplotlib.transforms import ScaledTranslation

from jattn import _errors, _picture_inputs

COLOURS = ("#0072B2", "#C25500", "#007A5E", "#9A4C85", "#7A6A00", "#3A7CA5", "#000000")
# One for each key in turn: after Okabe and Ito, dark enough for text on white. So some pairs are alike in grey or to
# the colour-blind, and what has a colour has a dash, a marker or a hatch too: 8 of each, so that 56 keys differ.
DASHES: tuple[Any, ...] = (
    "-", "--", ":", "-.", (0, (8, 2)), (0, (1, 3)), (0, (6, 2, 1, 2, 1, 2)), (0, (3, 3, 1, 3)),
)  # fmt: skip
MARKERS = "osD^vPXh"
HATCHES = ("", "//", ".", "\\\\", "xx", "--", "++", "||")
# With what is not finite no more than 256 colours, so that `save` can write a palette; of an odd number, one is zero's.
VIRIDIS, PUOR = (matplotlib.colormaps[name].resampled(255) for name in ("viridis", "PuOr"))


_SERIES = 9  # more keys than this are the strongest of them, and the others together


def strongest(x: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """The rows of x [S, n] with the largest entries, in order; of more than nine, the others are summed in one."""
    if len(x) <= _SERIES:
        return x, list(names)
    size = np.where(np.isfinite(x), np.abs(x), 0).max(axis=1, initial=0)
    kept = np.sort(np.argsort(-size, kind="stable")[: _SERIES - 1])
    others = np.delete(x, kept, axis=0)
    return np.vstack([x[kept], others.sum(0)]), [*(names[s] for s in kept), f"{len(others)} others"]


def names(caller: str, name: str, given: Sequence[str], axis: str, n: int) -> list[str]:
    """The names as they can be drawn: cut where very long, mathtext between two `$` unless it is none."""
    return [drawable(x) for x in _picture_inputs.names(caller, name, given, axis, n)]


def drawable(name: str) -> str:
    """One such name."""
    name = "\n".join(map(_picture_inputs.printable, name.split("\n")))
    return as_text(name if len(name) <= _CUT or is_math_text(name) else name[: _CUT - 1] + "…")


def as_text(text: str) -> str:
    """A text of which each line is drawn letter by letter if what lies between two `$` of it is no mathtext."""
    return "\n".join(line if _is_drawn(line) else line.replace("$", r"\$") for line in text.split("\n"))


def _is_drawn(line: str) -> bool:
    try:
        return not is_math_text(line) or bool(width(line, 10))
    except ValueError:
        return False


def more_than(inches: float, names: Sequence[str], size: float) -> float:
    """By how many inches the longest name is wider than so many."""
    return max(longest(names, points(size)) / 72 - inches, 0.0)


def in_legend(name: str) -> str:
    """A name that a legend shows: matplotlib leaves out those that are empty or begin with `_`."""
    return f" {name}" if name[:1] in ("", "_") else name


_CUT = 48  # a longer name is cut, with an ellipsis
LEAST = 6.0
"""No text is smaller, in points: what journals ask for."""


def points(size: float) -> float:
    """A size of letters where the usual one is 10, in points: it follows `rcParams["font.size"]`."""
    return max(LEAST, size * matplotlib.rcParams["font.size"] / 10)


def width(text: str, size: float) -> float:
    """How wide the widest line of a text is, in points."""
    return max(_width(line, size) for line in text.split("\n"))


def _width(line: str, size: float) -> float:
    if not line.strip():
        return 0.0
    try:
        return float(TextPath((0, 0), line, size=size, prop=FontProperties()).get_extents().width)
    except AttributeError:  # matplotlib makes no path of letters without an outline, as U+FEFF alone
        return 0.0


def number(x: float, digits: int) -> str:
    """Fixed decimals, or an exponent from 1000 on: a weight is from 0 to 1, and what is not shall be readable too."""
    return f"{x:z.{digits}f}" if abs(x) < 1000 else f"{x:.1e}"


def longest(names: Sequence[str], size: float) -> float:
    """How wide the longest of some names is, in points."""
    return width(max(names, key=len, default=""), size)


def extent(ax: Artist) -> tuple[float, float]:
    """How wide and high axes are before their labels are laid out, in points."""
    box, dpi = ax.get_window_extent(), ax.get_figure(root=True).dpi  # type: ignore[union-attr]
    return box.width * 72 / dpi, box.height * 72 / dpi


def is_narrow(ax: Axes) -> bool:
    """Whether axes are as narrow as a column of a paper."""
    return bool(extent(ax)[0] < 4.0 * 72)


class _Some(FixedLocator):
    """As many of some places as have room for their names when the figure is drawn: every one, every second, …"""

    def __init__(self, places: Sequence[float], need: float) -> None:
        super().__init__(places)
        self.places, self.need = np.asarray(places, float), need

    def tick_values(self, vmin: float, vmax: float) -> Any:
        across = extent(self.axis.axes)[self.axis.axis_name == "y"]  # type: ignore[union-attr]
        apart = self.places[1] - self.places[0] if len(self.places) > 1 else 1.0
        each = across * apart / max(abs(vmax - vmin), 1e-9)
        return self.places[:: max(1, math.ceil(self.need / max(each, 1e-9) - 1e-6))]

    def __call__(self) -> Any:
        return self.tick_values(*self.axis.get_view_interval())  # type: ignore[union-attr]


def name_ticks(axis: Axis, places: Sequence[float] | np.ndarray, names: Sequence[str], need: float) -> None:
    """Names at places, as many as fit if each needs so many points along the axis."""
    told = dict(zip(map(float, places), names, strict=True))
    axis.set_major_locator(_Some(list(told), need))
    axis.set_major_formatter(FuncFormatter(lambda x, _: told.get(float(x), "")))


def wrapped(text: str, size: float, room: float) -> str:
    """A text in lines no wider than so many points."""
    return textwrap.fill(text, max(8, int(len(text) * room / max(width(text, size), 1e-9))))


def legend_below(ax: Axes, labels: Sequence[str], title: str | None = None) -> None:
    """A legend under the name of the x axis, in as many columns as a column of a paper holds."""
    size = points(8)
    across = extent(ax)[0] / (longest(labels, size) + 3.4 * size)
    figure = ax.get_figure(root=True)
    lines = 2.0 + 1.2 * (ax.get_xlabel().count("\n") + bool(ax.get_xlabel()))
    under = ScaledTranslation(0, -lines * points(10) / 72, figure.dpi_scale_trans)  # type: ignore[union-attr]
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=ax.transAxes + under,
        ncols=max(1, min(len(labels), int(across))),
        fontsize=size,
        title_fontsize=size,
        frameon=False,
        columnspacing=1.0,
        handlelength=1.4,
        handletextpad=0.5,
        title=title,
    )


class _Ours(Figure):
    """A figure that was made here, and not given."""


def axes(caller: str, ax: Axes | None, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """The axes that a caller was given and their figure, or a new one of a size in inches."""
    if ax is None:
        ax = _Ours(figsize=size, layout="constrained").add_subplot()
    if not isinstance(ax, Axes):
        remedy = "Pass one of those that Figure.subplots makes."
        _errors.fail(TypeError, caller, "ax must be axes of matplotlib", remedy, ax=f"of type {type(ax).__name__}")
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure, ax


def panels(
    caller: str, ax: Axes | None, figure: Figure | SubFigure | None, n: int, across: int, size: tuple[float, float]
) -> tuple[Figure, Any]:
    """A root figure and an array of n axes in rows of at most `across`, each of a size in inches; or `ax` alone."""
    if ax is not None:
        if n != 1 or figure is not None:
            remedy = "Give figure for several panels."
            _errors.fail(ValueError, caller, "ax must be given for one panel and without figure", remedy, panels=str(n))
        return axes(caller, ax, size)[0], np.array([ax])
    if figure is not None:  # as many as stay readable
        across = max(1, min(across, int(figure.bbox.width / figure.dpi / (0.6 * size[0]))))
    across = min(max(n, 1), across)
    down = -(-n // across) or 1
    if figure is None:
        figure = _Ours(figsize=(across * size[0], 0.4 + down * size[1]), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for spare in grid[n:]:
        spare.set_axis_off()
    return figure.get_figure(root=True) or figure, grid[:n]  # type: ignore[return-value]


def luminance(colour: Sequence[float]) -> float:
    """How bright a colour of the screen is to the eye, from 0 to 1 (WCAG 2.2)."""
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def paper() -> str:
    """What is drawn on, as `matplotlib.rcParams` say."""
    given = (to_rgba(matplotlib.rcParams[name]) for name in ("axes.facecolor", "figure.facecolor"))
    return to_hex(next((colour for colour in given if colour[3] > 0), "white"))


def pen() -> str:
    """What stands out on the paper most: the colour of text."""
    return to_hex(matplotlib.rcParams["text.color"])


def is_dark() -> bool:
    """Whether white stands out more on the paper than black."""
    return ink(to_rgb(paper())) == "white"


def colour(i: int) -> str:
    """The colour of the key of number i; on dark paper half of it is white."""
    red, green, blue = to_rgb(COLOURS[i % len(COLOURS)])
    return to_hex(((1 + red) / 2, (1 + green) / 2, (1 + blue) / 2) if is_dark() else (red, green, blue))


def ink(colour: Sequence[float]) -> str:
    """Black or white, whichever stands out more on a colour."""
    return "black" if luminance(colour[:3]) > 0.179 else "white"  # where the one contrast equals the other


def write(ax: Axes, text: str, place: Any, above: float, colour: str, size: float = 9, **more: Any) -> None:
    """`text` above (or below) a place, by points of the page, with a rim of paper so that lines may pass behind."""
    at: dict[str, Any] = {"xytext": (0, above), "textcoords": "offset points", "ha": "center", "zorder": 7}
    at |= {"path_effects": [withStroke(linewidth=2.5, foreground=paper())]} | more
    at["fontsize"] = points(size)
    ax.annotate(text, (float(place[0]), float(place[1])), color=colour, annotation_clip=True, **at)


def direct_labels(ax: Axes, labels: Sequence[str], ends: Sequence[float], colours: Sequence[str]) -> None:
    """The name of each line at its right end, moved apart where two would overlap."""
    shown = [i for i, y in enumerate(ends) if np.isfinite(y)]
    if not shown:
        return
    transform = ax.transData + ax.transAxes.inverted()
    at = {i: float(transform.transform((0, ends[i]))[1]) for i in shown}
    room, last = min(max(0.11, 1.45 * points(8) / extent(ax)[1]), 0.3), -1.0
    for i in sorted(shown, key=at.__getitem__):
        last = at[i] = max(at[i], last + room)
    over = max(at.values()) - 1.02
    for i in shown:
        y = at[i] - max(over, 0.0) * (at[i] > 0.5)
        ax.annotate(
            labels[i],
            (1.02, y),
            xycoords="axes fraction",
            color=colours[i],
            fontsize=points(8),
            va="center",
            clip_on=False,
        )


def titled(figure: Figure, ax: Axes, title: str | None) -> Figure:
    if title:
        set_title(ax, title, 10)
    return figure


def set_title(on: Axes | Figure | SubFigure, title: str, size: float) -> None:
    """A title in as many lines as it takes: matplotlib breaks it between words where it is drawn, at the figure's edge.

    What it would not break, or in the wrong place, is broken here: a word too long, and a text with mathtext, which is
    kept together between two `$`. A figure of our own grows by these lines.
    """
    title = as_text("\n".join(map(_picture_inputs.printable, title.split("\n"))))
    figure, size = on.get_figure(root=True) or on, points(size)
    across = extent(figure)[0]
    room = min(0.7 * across, extent(on)[0])
    if isinstance(figure, _Ours):
        more = len(wrapped(title, size, 0.85 * across).split("\n")) - 1
        figure.set_figheight(figure.get_figheight() + more * 1.3 * size / 72)
    lines = title.split("\n")
    if is_math_text(title):
        lines = [line for long in lines for line in _filled(_atoms(long, size, room), size, room)]
    else:
        lines = [" ".join(wrapped(word, size, room) for word in line.split(" ")) for line in lines]
    put = on.set_title if isinstance(on, Axes) else on.suptitle
    put("\n".join(lines), fontsize=size, wrap=not is_math_text(title))


def _atoms(text: str, size: float, room: float) -> list[str]:
    """The words of a text, with what lies between two `$` in one; any other in parts, if it is wider than the room."""
    found = re.findall(r"(?:\$[^$]*\$|\S)+", text)
    return [part for word in found for part in ([word] if "$" in word else wrapped(word, size, room).split("\n"))]


def _filled(words: Sequence[str], size: float, room: float) -> list[str]:
    """Words in lines no wider than so many points, if each of them is not."""
    lines = [""]
    for word in words:
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width(longer, size) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def bare(ax: Axes) -> None:
    """No frame but the two axes that carry numbers."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=points(8))
