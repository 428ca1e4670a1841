"""A page: arrays in, one HTML file out that needs nothing else, no network, no server, not even this library.

`weights`, `heads`, `head_table`, `run` and `blocks` each make a part of a page from arrays, `model` one that computes
a small language model, and `story` tells of parts step by step; in a notebook a part shows itself. `write` puts parts
into one file:

    page.write("bank.html", "bank and river", page.run(run, ["river", "money", "the"], target=0))

The page computes what moves on it: while a query is dragged its weights follow, and the arrow at it is −dL/dq.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jattn import _errors, _picture_inputs
from jattn._picture_inputs import RunLike
from jattn._types import NumPyArrayLike
from jattn.page._blocks import blocks
from jattn.page._document import Part, document, laid_out
from jattn.page._head_table import head_table
from jattn.page._model import model
from jattn.page._story import Step, story

__all__ = [
    "Part",
    "RunLike",
    "Step",
    "blocks",
    "head_table",
    "heads",
    "html",
    "model",
    "run",
    "story",
    "weights",
    "write",
]


def weights(
    weights: NumPyArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    scores: NumPyArrayLike | None = None,
    scaled: NumPyArrayLike | None = None,
    values: NumPyArrayLike | None = None,
    out: NumPyArrayLike | None = None,
    keys: NumPyArrayLike | None = None,
    gains: NumPyArrayLike | None = None,
    scale: float | None = None,
) -> Part:
    """One head: its weights as a table in colours, and every step of the row of any query that is chosen there.

    Args:
      weights: [T, S], from 0 to 1; NaN is shown as such.
      rows: T names, of the queries.
      columns: S names, of the keys.
      scores: [T, S], q·k; with `scaled`, `values` and `out` the steps of a row can be walked, as `jattn.explain`
        gives them.
      scaled: [T, S], the logits, −inf where a pair is not allowed.
      values: [S, Dv].
      out: [T, Dv].
      keys: [S, D]; with `gains`, why −dL/dq of each query points where it does.
      gains: [T, S], a = −dL/dweights: what a little more weight would gain.
      scale: c, what a score is multiplied by; 1/√D if None.

    Returns:
      A part for `html` or `write`.

    Raises:
      TypeError, ValueError: an array has another shape, or there are more or fewer names than rows and columns.

    Memory: 5 to 20 bytes a number.

    Source: the pull of key j is c·p_j(a_j − ā)k_j, the derivative of softmax and the chain rule.

    Example:
      >>> from jattn import page
      >>> page.weights([[0.7, 0.3]], ["bank"], ["river", "money"]).kind
      'weights'
    """
    caller = "weights"
    w = _picture_inputs.numbers(caller, "weights", weights, (None, None), "[T, S]", finite=False)
    T, S = w.shape
    held: dict[str, Any] = {"weights": w}
    held["rows"] = _picture_inputs.names(caller, "rows", rows, "T", T)
    held["columns"] = _picture_inputs.names(caller, "columns", columns, "S", S)
    shapes: dict[str, tuple[Any, tuple[int | None, ...], str]] = {
        "scores": (scores, (T, S), "[T, S]"),
        "scaled": (scaled, (T, S), "[T, S]"),
        "values": (values, (S, None), "[S, Dv]"),
        "out": (out, (T, None), "[T, Dv]"),
        "keys": (keys, (S, None), "[S, D]"),
        "gains": (gains, (T, S), "[T, S]"),
    }
    for name, (x, shape, axes) in shapes.items():
        held[name] = None if x is None else _picture_inputs.numbers(caller, name, x, shape, axes, finite=False)
    held["scale"] = _scale(caller, scale, 1 if held["keys"] is None else held["keys"].shape[1])
    return Part("weights", held)


def heads(weights: NumPyArrayLike, rows: Sequence[str], columns: Sequence[str]) -> Part:
    """Every head of every layer at a glance, and the arcs, token to token, of the one that is chosen.

    Choose a query and a key, and the heads that attend this pair most are listed. The keys may be of another text.

    Args:
      weights: [L, H, T, S], [H, T, S] or [T, S]; kept in float32.
      rows: T names, of the queries.
      columns: S names, of the keys.

    Returns:
      A part for `html` or `write`.

    Raises:
      ValueError: `weights` has other axes or a finite number that float32 does not hold, or there are more or fewer
        names than queries and keys.

    Memory: 5.4 bytes a number.

    Source: the model view and the head view of Vig (2019), arXiv:1906.05714.

    Example:
      >>> import numpy as np
      >>> from jattn import page
      >>> page.heads(np.full((2, 3, 1, 2), 0.5), ["bank"], ["river", "money"]).data["shape"]
      [2, 3, 1, 2]
    """
    x = _picture_inputs.four("heads", weights)
    held = {"shape": list(x.shape), "weights": _picture_inputs.single("heads", "weights", x)}
    held["rows"] = _picture_inputs.names("heads", "rows", rows, "T", x.shape[2])
    held["columns"] = _picture_inputs.names("heads", "columns", columns, "S", x.shape[3])
    return Part("heads", held)


def run(
    run: RunLike,
    labels: Sequence[str],
    *,
    target: int,
    values: NumPyArrayLike | None = None,
    goal: NumPyArrayLike | None = None,
    scale: float | None = None,
    rays: Mapping[str, NumPyArrayLike] | None = None,
    conserved: Mapping[str, tuple[NumPyArrayLike, NumPyArrayLike]] | None = None,
    plane: NumPyArrayLike | None = None,
    query: str = "q",
    loss: str = "",
    optimiser: str = "",
) -> Part:
    """A descent, frame by frame: the path of q among the keys, the weights, every series, and the pulls behind them.

    Args:
      run: a mapping, or an object with these attributes: q [F, D], k [F, S, D] or [S, D], weights [F, S], steps [F]
        if the frames are not 0, 1, …; and any series [F], such as loss, margin, norm. Or a `flow.Trajectory`, which
        has seen them, as with `flow.watch`: its steps are those of `at`. A field that itself has fields
        of shape [F] makes one chart, and so do all whose name begins with `cos`.
      labels: S names of the keys.
      target: the key whose weight is the background of the plane; the loss is −log of that weight.
      values: [S, Dv]: with `goal`, the loss is ½|out − goal|² instead.
      goal: [Dv].
      scale: c, what a score is multiplied by; 1/√D if None.
      rays: name → direction, [D] or [F, D], drawn from the origin.
      conserved: quantity → (predicted [F] or one number, measured [F]).
      plane: [2, D], the two directions that span what is drawn; the first two principal axes of path and keys where
        D ≠ 2. Where D > 2 the page says what share of their variance over all frames the plane holds.
      query: the name of the query.
      loss: the name of the loss, and `optimiser` that of the optimiser: with several runs on a page the reader
        chooses by them.
      optimiser: see `loss`.

    Returns:
      A part for `html` or `write`. What is not finite is left out of its pictures, and conserved by nothing.

    Raises:
      TypeError, ValueError: a field is missing, a shape does not fit, or only one of `values` and `goal` is given.

    Memory: about 20 bytes a number.

    Source: −dL/dq = c Σ_j p_j (a_j − ā) k_j, with a = −dL/dp.

    Example:
      >>> from jattn import page
      >>> path = {"q": [[1.0, 0.0], [1.3, 0.0]], "k": [[1.0, 0.0], [0.0, 0.1]], "weights": [[0.6, 0.4], [0.7, 0.3]]}
      >>> page.run(path, ["river", "the"], target=0).data["frozen"]
      True
    """
    caller, r = "run", _picture_inputs.run("run", run)
    (F, S, D), frozen = r.k.shape, bool((r.k == r.k[:1]).all())
    target = _errors.count(caller, "target", target)
    if target >= S:
        _errors.fail(ValueError, caller, "target must name a key", "Count from 0.", target=str(target), S=str(S))
    if (values is None) != (goal is None):
        got = {"no": "goal" if goal is None else "values"}
        _errors.fail(ValueError, caller, "values and goal must be given together", "Give both or neither.", **got)
    v = None if values is None else _picture_inputs.numbers(caller, "values", values, (S, None), "[S, Dv]")
    t = None if goal is None or v is None else _picture_inputs.numbers(caller, "goal", goal, (v.shape[1],), "[Dv]")
    held: dict[str, Any] = {"labels": _picture_inputs.names(caller, "labels", labels, "S", S), "target": target}
    held |= {"query": str(query), "loss": str(loss), "optimiser": str(optimiser), "scale": _scale(caller, scale, D)}
    held |= {"values": v, "goal": t, "frozen": frozen, "steps": r.steps, "q": r.q, "k": r.k[0] if frozen else r.k}
    held |= {"weights": r.weights, "series": r.series, "rays": {}, "conserved": {}}
    for name, u in _picture_inputs.mapping(caller, "rays", rays, "names to directions").items():
        shape, axes = ((F, D), "[F, D]") if _picture_inputs.axes_of(u) == 2 else ((D,), "[D]")
        held["rays"][str(name)] = _picture_inputs.numbers(caller, f"rays[{name!r}]", u, shape, axes)
    for name, (predicted, measured) in (
        {} if conserved is None else _picture_inputs.pairs(caller, "conserved", conserved)
    ).items():
        _picture_inputs.numbers(caller, f"conserved[{name!r}][1]", measured, (F,), "[F]", finite=False)
        held["conserved"][name] = {"predicted": predicted, "measured": measured}
    points, held["principal"] = np.concatenate([r.q, r.k.reshape(-1, D)]), plane is None and D != 2
    if plane is not None:
        held["plane"] = _picture_inputs.numbers(caller, "plane", plane, (2, D), "[2, D]")
    else:
        held["plane"] = np.eye(2) if D == 2 else _principal(points)
    held["holds"] = _share(points, held["plane"])
    return Part("run", held)


def html(title: str, *parts: Part, note: str = "") -> str:
    """The page as text: one HTML document that refers to nothing outside itself.

    Args:
      title: what is to be seen.
      parts: what `weights`, `heads`, `head_table`, `run`, `blocks`, `model` and `story` made; any number of runs and at
        most one of each other kind. The parts that a story tells of need not be given again.
      note: a sentence below the title.

    Returns:
      The document. With no parts, a page that says so.

    Raises:
      TypeError: something else than a part. ValueError: two parts of a kind that is shown once.

    Memory: that of its text.

    Source: Content Security Policy Level 3, with hashes; `<` in data is written as an escape of JSON.

    Example:
      >>> from jattn import page
      >>> page.html("a page").splitlines()[0]
      '<!DOCTYPE html>'
    """
    for part in parts:
        if not isinstance(part, Part):
            got = {"parts": f"of type {type(part).__name__}"}
            remedy = "Make each with page.weights, heads, head_table, run, blocks, model or story."
            _errors.fail(TypeError, "html", "parts must be parts of a page", remedy, **got)
    for kind in ("story", "weights", "heads", "head_table", "blocks", "model"):
        if sum(part.kind == kind for part in (parts if kind == "story" else laid_out(parts)[0])) > 1:
            _errors.fail(ValueError, "html", f"a page shows {kind} once", "Write two pages.", parts=f"with two {kind}")
    return document(str(title), str(note), parts)


def write(file: str | os.PathLike[str], title: str, *parts: Part, note: str = "") -> Path:
    """Writes the page to a file, whole or not at all; it opens in any browser, from the disk, without a network.

    Args:
      file: where to; its folder is made if it is not there.
      title: what is to be seen.
      parts: as for `html`.
      note: a sentence below the title.

    Returns:
      The file.

    Raises:
      As `html`. TypeError: the file is no path. OSError: the folder cannot be written to, or the file is a folder.

    Memory: that of its text.

    Source: a temporary file beside the target, then `os.replace`, which POSIX and Windows make atomic.

    Example:
      >>> import tempfile
      >>> from jattn import page
      >>> row = page.weights([[0.7, 0.3]], ["bank"], ["river", "money"])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     page.write(folder + "/bank.html", "bank", row).name
      'bank.html'
    """
    file, text = _errors.path("write", "file", file), html(title, *parts, note=note)
    _picture_inputs.target("write", "file", file)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as folder:
        unfinished = Path(folder) / "new.html"
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, file)
    return file


def _scale(caller: str, scale: float | None, D: int) -> float:
    return _errors.amount(caller, "scale", scale) if scale is not None else 1 / float(np.sqrt(max(D, 1)))


def _principal(points: np.ndarray) -> np.ndarray:
    """The two directions in which points lie farthest apart; where there is but one, the other is empty."""
    axes = np.linalg.svd(_centred(points), full_matrices=False)[2][:2]
    return np.concatenate([axes, np.zeros((2 - len(axes), points.shape[1]))])


def _share(points: np.ndarray, plane: np.ndarray) -> float:
    """The share of the variance of points that lies in a plane, from 0 to 1; 1 where they do not vary."""
    seen = _centred(points)
    most = np.abs(seen).max(initial=0)
    if most == 0:
        return 1.0
    seen = seen / most  # no square overflows
    _, sizes, axes = np.linalg.svd(plane, full_matrices=False)
    axes = axes[sizes > 1e-12 * sizes.max(initial=0)]
    return float(min(1, ((seen @ axes.T) ** 2).sum() / (seen**2).sum()))


def _centred(points: np.ndarray) -> np.ndarray:
    """The points that are finite, and not so large that their sum is not, their mean at the origin."""
    seen = points[(np.abs(points) <= _picture_inputs.LARGEST).all(1)]
    return seen - seen.mean(0) if len(seen) else seen
