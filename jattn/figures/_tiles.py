"""Attention by tiles: a head over thousands of tokens block by block, and which tiles a mask visits."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from jattn import _errors, _picture_inputs
from jattn._types import NumPyArrayLike
from jattn.figures import _canvas
from jattn.masks import EMPTY, FULL, PARTIAL


def blocks(
    mass: NumPyArrayLike,
    *,
    T: int,
    S: int,
    states: NumPyArrayLike | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """A head over thousands of tokens by blocks of queries and keys, with what a mask makes of each block.

    Args:
      mass: [n, m], of each block the mean over its queries of the weight on its keys, or its largest weight.
      T: how many queries; block i holds those from i·⌈T/n⌉ on. S: how many keys, likewise.
      states: [n, m], the block state of a mask: 0 (EMPTY) is hatched; 1 (PARTIAL) and 2 (FULL) are drawn
        alike, and counted in the legend, as it is.
      ax: where to draw; a figure of its own if None.
      title: what is to be seen.

    Returns:
      The figure drawn on. Colours follow the square root of `mass`, so that faint blocks are seen; NaN is left blank.

    Raises:
      TypeError, ValueError: a shape does not fit, n or m is not what T and S are cut into, or `states` holds something
        else than 0, 1 and 2.

    Memory: as its inputs, a few times; no array of T × S.

    Source: no published figure; `page.blocks` shows the same, and rows.

    Example:
      >>> from jattn import figures
      >>> figure = figures.blocks([[1.0, 0.0], [0.4, 0.6]], T=4096, S=4096, states=[[1, 0], [2, 1]])
      >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
      ['full: 1 of 4', 'partial: 2 of 4', 'empty: 1 of 4']
    """
    x = _picture_inputs.numbers("blocks", "mass", mass, (None, None), "[n, m]", finite=False)
    T, S = _errors.count("blocks", "T", T, least=1), _errors.count("blocks", "S", S, least=1)
    _picture_inputs.equal_blocks("blocks", x, T, S)
    given = ax is not None
    figure, ax = _canvas.axes("blocks", ax, (6.4, 5.4))
    high, wide = (-(-tokens // n) for tokens, n in ((T, x.shape[0]), (S, x.shape[1])))
    box = (0.0, float(wide * x.shape[1]), float(high * x.shape[0]), 0.0)
    top = float(np.nanmax(x, initial=0)) or 1.0
    picture = ax.imshow(x, cmap=_canvas.VIRIDIS, norm=PowerNorm(0.5, 0, top), extent=box, interpolation="none")
    figure.colorbar(picture, ax=ax, label="mass of a block", shrink=0.8)
    if states is not None:
        v = _picture_inputs.block_states("blocks", "states", states, x.shape, "[n, m]")
        ax.imshow(np.where(v == EMPTY, 1.0, np.nan), cmap=ListedColormap(["0.9"]), extent=box, interpolation="none")
        for i, line in enumerate(v == EMPTY):  # hatched, so that it needs no colour
            ends = np.flatnonzero(np.diff([False, *line, False]))
            for start, stop in zip(ends[::2], ends[1::2], strict=True):
                place = (wide * float(start), high * float(i))
                ax.add_patch(
                    Rectangle(place, wide * float(stop - start), high, fill=False, lw=0, ec="0.45", hatch="xx")
                )
        for state, words in ((FULL, "full"), (PARTIAL, "partial"), (EMPTY, "empty")):
            label = f"{words}: {(v == state).sum()} of {v.size}"
            sign: Any = {"ec": "0.45", "hatch": "xx"} if state == EMPTY else {"ec": "none"}  # no sign that none bears
            ax.add_patch(Rectangle((0, 0), 0, 0, fill=False, label=label, **sign))
        if given and _canvas.is_narrow(ax):
            _canvas.legend_below(ax, [f"partial: {v.size} of {v.size}"] * 3)
        else:
            ax.legend(loc="upper right", fontsize=_canvas.points(8.33))
    ax.set(xlim=(0, S), ylim=(T, 0), xlabel="keys", ylabel="queries")
    return _canvas.titled(figure, ax, title)


def _rows_of_a_tile(shape: Any) -> tuple[int, int]:
    """(queries, keys) of one tile."""
    if not isinstance(shape, (tuple, list)) or len(shape) != 2:
        got = {"shape": f"of length {len(shape)}" if isinstance(shape, (tuple, list)) else _errors.kind_of(shape)}
        _errors.fail(TypeError, "tiles", "shape must be (queries, keys) of one tile", "As in shape=(128, 128).", **got)
    high, wide = (_errors.count("tiles", f"shape[{i}]", n, least=1) for i, n in enumerate(shape))
    return high, wide


def tiles(
    block_states: NumPyArrayLike,
    *,
    values: NumPyArrayLike | None = None,
    shape: tuple[int, int] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """Which tiles of queries and keys a mask visits, over the allowed pairs or over the values of a score.

    Args:
      block_states: [I, J], for each tile of queries and of keys 0 (EMPTY): none of its pairs is allowed, and it is not
        visited; 1 (PARTIAL): some are; 2 (FULL): all are, and it needs no mask.
      values: [T, S], drawn below the tiles: booleans, whether a pair is allowed, or real numbers, what a score adds.
        Zero is paper; what is not finite is left blank.
      shape: (queries, keys) of one tile; as fits `values` if None.
      ax: where to draw; a figure of its own if None.
      title: what is to be seen.

    Returns:
      The figure drawn on. Its legend counts the tiles.

    Raises:
      TypeError: `shape` is no pair of whole numbers. ValueError: `block_states` holds something else, or its tiles do
        not cover `values`.

    Memory: as its inputs, a few times.

    Source: no published figure.

    Example:
      >>> from jattn import figures
      >>> figure = figures.tiles([[1, 0], [2, 1]], shape=(128, 128))
      >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
      ['full: 1 of 4', 'partial: 2 of 4', 'empty: 1 of 4']
    """
    v = _picture_inputs.block_states("tiles", "block_states", block_states, (None, None), "[I, J]")
    x = (
        None
        if values is None
        else _picture_inputs.numbers("tiles", "values", values, (None, None), "[T, S]", finite=False)
    )
    if shape is None and x is not None:  # an axis without tiles covers no values
        shape = (-(-x.shape[0] // max(len(v), 1)) or 1, -(-x.shape[1] // max(v.shape[1], 1)) or 1)
    high, wide = (1, 1) if shape is None else _rows_of_a_tile(shape)
    T, S = (len(v) * high, v.shape[1] * wide) if x is None else x.shape
    if x is not None and (-(-T // high), -(-S // wide)) != v.shape:
        remedy = "Give the queries and keys of one tile as shape."
        _errors.fail(
            ValueError, "tiles", "the tiles must cover values", remedy, values=x, block_states=v, shape=str(shape)
        )
    given = ax is not None
    figure, ax = _canvas.axes("tiles", ax, (6.4, 5.0))
    if x is not None:
        _draw_values(ax, x)
    _draw_states(ax, v, (high, wide), (T, S), over_values=x is not None)
    ax.set_xlim(0, S)
    ax.set_ylim(T, 0)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    ax.set_aspect("auto")
    if given and _canvas.is_narrow(ax):
        _canvas.legend_below(ax, [f"partial: {v.size} of {v.size}"] * 3)
    else:
        ax.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.12),
            ncols=3,
            fontsize=_canvas.points(8),
            frameon=False,
            columnspacing=1.1,
            handlelength=1.4,
            handletextpad=0.5,
        )
    return _canvas.titled(figure, ax, title)


def _draw_values(ax: Axes, x: np.ndarray) -> None:
    """The allowed pairs, or what a score adds, with a colour bar."""
    T, S = x.shape
    low, top = (float(f(np.where(np.isfinite(x), x, 0), initial=0)) for f in (np.min, np.max))
    far = max(-low, top, 1e-9)
    plain = np.isin(x, (0, 1)).all()
    colours: Any = ListedColormap([_canvas.paper(), "#9db8cf"]) if plain else _canvas.PUOR
    box = (0.0, float(S), float(T), 0.0)
    picture = ax.imshow(
        x, cmap=colours, vmin=0 if plain else -far, vmax=1 if plain else far, extent=box, interpolation="none"
    )
    if not plain:
        ax.figure.colorbar(picture, ax=ax, label="what the score adds", shrink=0.8)


def _draw_states(ax: Axes, v: np.ndarray, shape: tuple[int, int], of: tuple[int, int], *, over_values: bool) -> None:
    """A rectangle for each tile of `shape` over [T, S], in the look of its state, and the three in the legend."""
    (high, wide), (T, S) = shape, of
    looks = {
        FULL: ("#1f4e79", None, "full"),
        PARTIAL: ("#2f6da4", "..", "partial"),
        EMPTY: ("0.45", "xx", "empty"),
    }
    for state, (colour, hatch, words) in looks.items():
        found = np.argwhere(v == state)
        style: dict[str, Any] = {
            "fill": not over_values and state != EMPTY,
            "hatch": hatch if state == EMPTY or not over_values else None,
        }
        style |= {"fc": "#4a7fb0" if state == FULL else "#cfe0ee", "ec": colour, "lw": 0.8 + 0.6 * (state == FULL)}
        label = f"{words}: {len(found)} of {v.size}"
        for n, (i, j) in enumerate(found):
            corner, size = (j * wide, i * high), (min(wide, S - j * wide), min(high, T - i * high))
            ax.add_patch(Rectangle(corner, *size, **style, label=label if n == 0 else None))
        if not len(found):
            ax.add_patch(Rectangle((0, 0), 0, 0, **style, label=label))
