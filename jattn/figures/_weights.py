"""Who attends to whom: one head as a heatmap or as arcs, and all heads at once."""

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from jattn import _errors, _picture_inputs
from jattn._types import NumPyArrayLike
from jattn.figures import _canvas

_LEGIBLE = 2304  # more cells than this have a colour bar instead of numbers
_LARGEST = 12.0  # a figure of its own, in inches, where cells have no numbers
_ARCS, _STEPS = 400, 32  # more arcs than this are drawn in so many steps of weight from 0 to 1


def weights(
    weights: NumPyArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    entropy: bool = False,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """A heatmap of attention weights whose cells carry their numbers: dark is 0, bright is 1.

    Args:
      weights: [T, S], from 0 to 1; anything that NumPy can read.
      rows: T names, of the queries, from top to bottom.
      columns: S names, of the keys, from left to right.
      entropy: whether the entropy of each row, in nats, stands at its right end.
      ax: where to draw; a figure of its own if None.
      title: what is to be seen.

    Returns:
      The figure drawn on. T = 0 or S = 0 gives empty axes. Above 2,304 cells, a colour bar for the numbers.

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
    x = _picture_inputs.numbers("weights", "weights", weights, (None, None), "[T, S]")
    rows = _canvas.names("weights", "rows", rows, "T", len(x))
    columns = _canvas.names("weights", "columns", columns, "S", x.shape[1])
    given, few, crowd = ax is not None, x.shape[1] <= 12, x.size > _LEGIBLE
    wide, high = (0.18, 0.18) if crowd else (0.8, 0.5) if few else (0.5, 0.36)
    upright = max(map(len, columns), default=0) * 0.09 > wide
    whole = (1.4 + wide * x.shape[1] + 0.8 * entropy + _canvas.more_than(1.2, rows, 10),
             0.9 + high * len(x) + upright * _canvas.more_than(0.8, columns, 10))  # fmt: skip
    figure, ax = _canvas.axes("weights", ax, (min(whole[0], _LARGEST), min(whole[1], _LARGEST)) if crowd else whole)
    usual = matplotlib.rcParams["font.size"]
    letters = usual
    if given:
        across, down = _canvas.extent(ax)
        down -= 0.7 * _canvas.longest(columns, usual)
        across -= 0.5 * _canvas.longest(rows, usual) + (3 * usual if entropy else 0)
        wide, high = across / max(x.shape[1], 1) / 72, down / max(len(x), 1) / 72
        letters = max(_canvas.LEAST, min(usual, 72 * min(wide, high) / 1.3))
    most, size = (3, 10.0) if few else (2, 8.0)
    for digits in range(most, 1, -1):  # numbers no wider and higher than a cell
        fits = 72 * min(0.88 * wide / _canvas.width(f"{0:.{digits}f}", 1.0), 0.8 * high)
        if fits >= _canvas.LEAST:
            break
    crowd = crowd or fits < _canvas.LEAST
    colours, scale = matplotlib.colormaps["viridis"], Normalize(0, 1)
    picture = ax.imshow(x, cmap=colours, norm=scale, aspect="auto", interpolation="none") if x.size else None
    if not crowd:
        for (t, s), w in np.ndenumerate(x):
            ink = _canvas.ink(colours(scale(w)))
            number = min(_canvas.points(size), fits)
            ax.text(s, t, _canvas.number(w, digits), ha="center", va="center", color=ink, fontsize=number)
    elif picture is not None:
        figure.colorbar(picture, ax=ax, label="weight", shrink=0.8)
    broad = _canvas.longest(columns, letters)
    long = broad + 3 > 72 * wide if given else upright
    line = 1.25 * letters if given or crowd else 0.0
    ax.tick_params(axis="x", rotation=90 if long else 0)
    _canvas.name_ticks(ax.xaxis, range(x.shape[1]), columns, line if long or not line else broad + 3)
    _canvas.name_ticks(ax.yaxis, range(len(x)), rows, line)
    ax.tick_params(length=0)
    if given:
        ax.tick_params(labelsize=letters)
    ax.spines[:].set_visible(False)
    if entropy and len(x):
        side = ax.secondary_yaxis("right")
        _canvas.name_ticks(side.yaxis, range(len(x)), [_canvas.number(h, 3) for h in _picture_inputs.entropy(x)], line)
        side.tick_params(length=0, **({"labelsize": letters} if given else {}))
        side.spines[:].set_visible(False)
        side.set_ylabel("entropy [nats]", fontsize=_canvas.points(9))
    return _canvas.titled(figure, ax, title)


def heads(weights: NumPyArrayLike, *, ax: Axes | None = None, title: str | None = None) -> Figure:
    """Every head of every layer at once, each a small heatmap: layers from top to bottom, heads from left to right.

    Args:
      weights: [L, H, T, S], or [H, T, S] for one layer; from 0 to 1.
      ax: where to draw; a figure of its own if None.
      title: what is to be seen.

    Returns:
      The figure drawn on. The image holds NaN, which is drawn as paper, between the heads.

    Raises:
      ValueError: `weights` has other axes, or one of length 0.

    Memory: as `weights`, a few times.

    Source: the "model view" of Vig (2019), arXiv:1906.05714, without its lines.

    Example:
      >>> import numpy as np
      >>> from jattn import figures
      >>> figure = figures.heads(np.full((2, 3, 4, 4), 0.25))
      >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
      ['layer 0', 'layer 1']
    """
    x = _picture_inputs.four("heads", weights)
    if not x.size:
        must = "weights must have at least one head, query and key"
        _errors.fail(ValueError, "heads", must, "Draw nothing instead.", weights=x)
    L, H, T, S = x.shape
    gap = max(1, round(0.12 * max(T, S)))
    mosaic = np.full((L * (T + gap) - gap, H * (S + gap) - gap), np.nan)
    for layer, head in np.ndindex(L, H):
        mosaic[layer * (T + gap) :, head * (S + gap) :][:T, :S] = x[layer, head]
    given = ax is not None
    figure, ax = _canvas.axes("heads", ax, (1.9 + 0.85 * H, 0.9 + 0.85 * L * T / max(S, 1)))
    picture = ax.imshow(mosaic, cmap=_canvas.VIRIDIS, vmin=0, vmax=1, interpolation="nearest")
    letters = _canvas.points(8)
    across = [f"head {h}" for h in range(H)]
    if H >= 9 or (given and H * (3 + _canvas.longest(across, letters)) > 0.75 * _canvas.extent(ax)[0]):
        across = [str(h) for h in range(H)]
        ax.set_xlabel("head", fontsize=letters)
    room = 3 + _canvas.longest(across, letters)
    _canvas.name_ticks(ax.xaxis, (S + gap) * np.arange(H) + (S - 1) / 2, across, room)
    down = [f"layer {i}" for i in range(L)]
    _canvas.name_ticks(ax.yaxis, (T + gap) * np.arange(L) + (T - 1) / 2, down, 1.25 * letters)
    ax.tick_params(length=0, labelsize=letters)
    ax.spines[:].set_visible(False)
    figure.colorbar(picture, ax=ax, label="weight", shrink=0.8, aspect=30)
    return _canvas.titled(figure, ax, title)


def arcs(
    weights: NumPyArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    least: float = 0.05,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """One head as arcs from each query, on the left, to the keys, on the right: the heavier, the thicker and darker.

    Args:
      weights: [T, S], from 0 to 1.
      rows: T names, of the queries.
      columns: S names, of the keys.
      least: smaller weights are not drawn. The heaviest arc of each query carries its number.
      ax: where to draw; a figure of its own if None.
      title: what is to be seen.

    Returns:
      The figure drawn on. With no weight of `least` or more, names alone. Above 400 arcs their widths and shades
      follow the weight in steps of 1/32; where names have no room, every second, third, … is
      written, and no numbers.

    Raises:
      ValueError: `weights` has not two axes, is not finite, or has not one name to each row and column.

    Memory: one path for each arc that is drawn.

    Source: the "head view" of Vig (2019), arXiv:1906.05714.

    Example:
      >>> from jattn import figures
      >>> figure = figures.arcs([[0.9, 0.1]], ["bank"], ["river", "the"], least=0.2)
      >>> [(text.get_text()) for text in figure.axes[0].texts]
      ['bank', 'river', 'the', '0.90']
    """
    x = _picture_inputs.numbers("arcs", "weights", weights, (None, None), "[T, S]")
    rows = _canvas.names("arcs", "rows", rows, "T", len(x))
    columns = _canvas.names("arcs", "columns", columns, "S", x.shape[1])
    n, least = max(len(x), x.shape[1], 1), _errors.amount("arcs", "least", least)
    wide = 5.6 + _canvas.more_than(1.2, rows, 9) + _canvas.more_than(1.2, columns, 9)
    figure, ax = _canvas.axes("arcs", ax, (wide, min(0.9 + 0.3 * n, _LARGEST)))
    (across, down), usual = _canvas.extent(ax), matplotlib.rcParams["font.size"]
    letters = max(_canvas.LEAST, min(_canvas.points(9), down / n / 1.2))
    every = math.ceil(1.2 * letters * n / down)
    beside = max(_canvas.longest(rows, letters), _canvas.longest(columns, letters)) / across
    beside = max(0.45, beside / max(1 - 2 * beside, 0.2) + 0.04)  # of the width between the names
    for side, names, align in ((0.0, rows, "right"), (1.0, columns, "left")):
        for i, name in list(enumerate(names))[::every]:
            ax.text(side + (0.02 if side else -0.02), i, name, ha=align, va="center", fontsize=letters)
    shades = matplotlib.colormaps["viridis" if _canvas.is_dark() else "viridis_r"]
    thick = min(1.0, 0.5 * down / n / 5)  # no thicker than half of a line of names
    drawn = [pair for pair in sorted(np.ndindex(*x.shape), key=lambda pair: float(x[pair])) if x[pair] >= least]
    if len(drawn) > _ARCS:  # arcs of about one weight are one path: a tenth of the bytes
        steps = [round(_STEPS * float(x[pair])) / _STEPS for pair in drawn]
        groups = [(w, [p for p, near in zip(drawn, steps, strict=True) if near == w]) for w in sorted(set(steps))]
    else:
        groups = [(float(x[pair]), [pair]) for pair in drawn]
    for w, pairs in groups:  # the heaviest on top
        curve = Path(
            [corner for t, s in pairs for corner in ((0, t), (0.5, t), (0.5, s), (1, s))],
            [Path.MOVETO, *[Path.CURVE4] * 3] * len(pairs),
        )
        shade = shades(0.15 + 0.85 * min(w, 1.0))
        ax.add_patch(PathPatch(curve, fill=False, lw=thick * (0.6 + 5 * min(w, 1.0)), ec=shade, capstyle="butt"))
    at = max(0.1, (0.5 * _canvas.width("0.00", letters) + 4) * (1 + 2 * beside) / across)
    for t, row in enumerate(x):
        if every == 1 and row.size and row.max() >= least:  # on its arc, as far as that leads within its own row
            along = t + min(max((row.argmax() - t) * 0.04, -0.2), 0.2)
            _canvas.write(ax, _canvas.number(row.max(), 2), (at, along), -3, _canvas.pen(), 10 * letters / usual)
    ax.set_xlim(-beside, 1 + beside)
    ax.set_ylim(n - 0.5, -0.5)
    ax.set_axis_off()
    return _canvas.titled(figure, ax, title)
