"""Training time: what moved, frame by frame, as small multiples or as a film."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np
from matplotlib import animation
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure

from jattn import _errors, _picture_inputs
from jattn._picture_inputs import RunLike
from jattn.figures import _canvas
from jattn.figures._plane import PlaneOptions, path

_SHOWN = MappingProxyType({"norm": "|q|", "p_r": "p of the target", "p": "p of the target"})


def training(
    run: RunLike,
    labels: Sequence[str],
    *,
    log: bool = False,
    panels: Sequence[str] | None = None,
    figure: Figure | SubFigure | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Figure:
    """A run as small multiples over the same steps: the weights, the coordinates of q, and each series recorded.

    Args:
      run: a mapping, or an object with these attributes: q [F, D], k [F, S, D] or [S, D], weights [F, S], steps [F]
        if the frames are not 0, 1, …; and any series [F], such as loss, margin, norm. Or a `flow.Trajectory`, which
        has seen them, as with `flow.watch`: its steps are those of `at`. A field that itself has fields
        of shape [F] makes one panel, and so do all whose name begins with `cos`.
      labels: S names of the keys.
      log: whether the steps stand on a logarithmic axis, of 1 + step.
      panels: names of the panels that are drawn, in their order: weights, q, and the series; all if None.
      figure: where to draw; a figure of its own if None.
      ax: where to draw one panel, in place of a figure.
      title: what is to be seen.

    Returns:
      The figure drawn on. What is not finite is a gap in its line. Of more than nine keys, the weights of the eight
      that were largest at some step are drawn, and the sum of the others.

    Raises:
      TypeError: `run` has no q, k or weights. ValueError: a shape does not fit, the steps do not increase or, with
        `log`, the first is −1 or less, there is no such panel, or `ax` is given for more than one.

    Memory: as the series drawn.

    Source: small multiples, after Tufte.

    Example:
      >>> import numpy as np
      >>> from jattn import figures
      >>> run = {"q": np.zeros((3, 2)), "k": np.eye(2), "weights": np.full((3, 2), 0.5), "loss": [0.7, 0.7, 0.7]}
      >>> [ax.get_title() for ax in figures.training(run, ["river", "money"]).axes]
      ['weights', 'q', 'loss']
    """
    r = _picture_inputs.run("training", run)
    labels = _canvas.names("training", "labels", labels, "S", r.weights.shape[1])
    weights, names = _canvas.strongest(r.weights.T, labels)
    shown = {"weights": list(zip(names, weights, strict=True))}  # two keys may have one name
    if r.q.shape[1] <= 8:
        shown["q"] = [(f"q{d + 1}", x) for d, x in enumerate(r.q.T)]
    shown |= {panel: [(_canvas.drawable(name), y) for name, y in of.items()] for panel, of in r.series.items()}
    if panels is not None:
        panels = [str(asked) for asked in _picture_inputs.several("training", "panels", panels)]
        for asked in panels:
            if asked not in shown:
                remedy = f"There are {', '.join(shown)}."
                _errors.fail(
                    ValueError, "training", "panels must be names of what is shown", remedy, panels=repr(asked)
                )
        shown = {asked: shown[asked] for asked in panels}
    root, grid = _canvas.panels("training", ax, figure, len(shown), 3, (3.7, 2.2))
    if log and r.steps[0] <= -1:
        got = {"run.steps": "with one that is not"}
        _errors.fail(ValueError, "training", "run.steps must be above -1 with log", "Count them from 0.", **got)
    at = r.steps + 1 if log else r.steps
    dot: dict[str, Any] = {"marker": "o", "clip_on": False} if len(at) == 1 else {}  # a line through one point is none
    for axes, (panel, lines) in zip(grid, shown.items(), strict=True):
        colours = [_canvas.colour(i) for i in range(len(lines))]
        for i, (name, y) in enumerate(lines):
            axes.plot(at, y, color=colours[i], ls=_canvas.DASHES[i % len(_canvas.DASHES)], lw=1.6, label=name, **dot)
        if log:
            axes.set_xscale("log")
        axes.set_xlim(at[0], max(at[-1], at[0] + 1e-9 * max(abs(at[0]), 1)))
        if panel == "weights":
            axes.set_ylim(-0.02, 1.02)
        if len(lines) > 1 and len(lines) <= 9:
            _canvas.direct_labels(axes, [name for name, _ in lines], [y[-1] for _, y in lines], colours)
        alone = f": {lines[0][0]}" if len(lines) == 1 and lines[0][0] != panel else ""
        called = _SHOWN.get(panel, _canvas.drawable(panel.replace("_", " ")))
        axes.set_title(called + alone, fontsize=_canvas.points(10))
        axes.set_xlabel("1 + step" if log else "step", fontsize=_canvas.points(8))
        _canvas.bare(axes)
    if title and ax is not None:
        _canvas.set_title(ax, title, 10)
    elif title:
        _canvas.set_title(root, title, 11)
    return root


def animate(
    run: RunLike,
    labels: Sequence[str],
    file: str | os.PathLike[str],
    *,
    frames: Sequence[int] | None = None,
    seconds: float = 6.0,
    figure: Figure | SubFigure | None = None,
    title: str | None = None,
    **plane: Unpack[PlaneOptions],
) -> Path:
    """Writes a run as a film: the plane of q and the keys, and beside it the weights, one frame after the other.

    Args:
      run: as for `training`, with D = 2.
      labels: S names of the keys.
      file: `….gif`, written by Pillow, or `….mp4`, written by ffmpeg where that is installed.
      frames: which frames of the run are shown, in order; all if None.
      seconds: how long the film runs.
      figure: where to draw, cleared for each frame: of a SubFigure the film shows the whole figure, and what else is on
        it stands still. A figure of its own if None.
      title: what is to be seen; the step is added to it.
      plane: `background`, `field`, `rays` or `hull`, as `path` takes them.

    Returns:
      The file written, whole or not at all.

    Raises:
      ValueError: D is not 2, q or k is not finite, `frames` names none of the run, `seconds` is not more than 0, the
        file has another ending, or ffmpeg is not installed. TypeError: as for `training`, or the file is no path.
        OSError: the folder cannot be written to, or the file is a folder.

    Memory: one frame, and for a GIF all of them (8 bits a pixel).

    Source: the writers of matplotlib.animation.

    Example:
      >>> import tempfile
      >>> from jattn import figures
      >>> run = {"q": [[1.0, 0.0], [1.3, 0.0]], "k": [[1.0, 0.0], [0.0, 0.1]], "weights": [[0.6, 0.4], [0.7, 0.3]]}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     figures.animate(run, ["river", "the"], folder + "/way.gif", seconds=0.2).name
      'way.gif'
    """
    r, file = _picture_inputs.run("animate", run), _errors.path("animate", "file", file)
    labels = _canvas.names("animate", "labels", labels, "S", r.weights.shape[1])
    if r.q.shape[1] != 2:
        _errors.fail(
            ValueError, "animate", "run.q must be [F, 2]", "Project q and k to a plane first.", **{"run.q": r.q}
        )
    for name, x in (("run.q", r.q), ("run.k", r.k)):
        _picture_inputs.numbers("animate", name, x, x.shape, "[F, 2]" if name == "run.q" else "[F, S, 2]")
    shown = _frames(frames, len(r.q))
    writer = _writer(file, max(round(len(shown) / _errors.amount("animate", "seconds", seconds, above=0)), 1))
    if figure is None:
        figure = Figure(figsize=(8.6, 3.9), layout="constrained")
    root = figure.get_figure(root=True)
    assert root is not None
    _frame(figure, r, labels, shown[0], title, plane)  # a writer that closes without a frame would hide a refusal
    _picture_inputs.target("animate", "file", file)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as folder:
        unfinished = Path(folder) / f"new{file.suffix}"
        with writer.saving(root, str(unfinished), dpi=100):
            for f in shown:
                _frame(figure, r, labels, f, title, plane)
                writer.grab_frame()
        os.replace(unfinished, file)
    return file


def _frames(frames: Any, F: int) -> Sequence[int]:
    """The numbers of the frames that a film shows, at least one."""
    given = range(F) if frames is None else _picture_inputs.several("animate", "frames", frames)
    shown = [_errors.count("animate", "frames", f) for f in given]
    for f in shown or [F]:
        if f >= F:
            got = {"frames": str(f) if shown else "of length 0", "F": str(F)}
            _errors.fail(ValueError, "animate", "frames must name frames of the run", "Count from 0.", **got)
    return shown


def _writer(file: Path, fps: int) -> animation.AbstractMovieWriter:
    if file.suffix not in (".gif", ".mp4"):
        _errors.fail(ValueError, "animate", "file must end in .gif or .mp4", "Name one of them.", file=file.name)
    if file.suffix == ".gif":
        return animation.PillowWriter(fps=fps)
    if not animation.FFMpegWriter.isAvailable():
        _errors.fail(ValueError, "animate", "an MP4 needs ffmpeg", "Install it, or write a .gif.", ffmpeg="missing")
    return animation.FFMpegWriter(fps=fps, extra_args=["-pix_fmt", "yuv420p"])


def _frame(
    figure: Figure | SubFigure,
    r: _picture_inputs.Run,
    labels: list[str],
    f: int,
    title: str | None,
    plane: PlaneOptions,
) -> None:
    figure.clear()
    way, row = figure.subplots(1, 2, width_ratios=(2.4, 1))
    path(r.q[: f + 1], r.k[: f + 1], labels, marks={-1: "q"}, ax=way, **plane)
    if "background" not in plane:  # one extent for the whole film
        around = np.concatenate([r.q, r.k.reshape(-1, 2), np.zeros((1, 2))])
        low, high = around.min(0), around.max(0)
        room = 0.12 * ((high - low).max() or 1.0)
        way.set_xlim(low[0] - room, high[0] + room)
        way.set_ylim(low[1] - room, high[1] + room)
    colours = [_canvas.colour(s) for s in range(len(labels))]
    ends = np.clip(np.nan_to_num(r.weights[f], nan=0.0), 0, 1)
    row.barh(range(len(labels)), ends, 0.6, color=colours)
    for s, (w, end) in enumerate(zip(r.weights[f], ends, strict=True)):
        within = end > 0.7
        ink, side = (_canvas.ink(to_rgb(colours[s])), "right") if within else (_canvas.pen(), "left")
        at, number = end + (-0.03 if within else 0.03), _canvas.number(w, 3)
        row.text(at, s, number, va="center", ha=side, fontsize=_canvas.points(9), color=ink)
    row.set_yticks(range(len(labels)), labels)
    row.set_xlim(0, 1)
    row.invert_yaxis()
    row.set_title("attention", fontsize=_canvas.points(10))
    _canvas.bare(row)
    _canvas.set_title(figure, f"{title + ': ' if title else ''}step {r.steps[f]:,g}", 11)
