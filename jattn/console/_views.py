"""Pictures of a terminal beyond tables of weights: ranks, rows step by step, fields, lines, signs, tiles, promises."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from jattn import _errors, _picture_inputs
from jattn._types import NumPyArrayLike
from jattn.console import _grid
from jattn.masks import EMPTY, FULL, PARTIAL

_SPARKS = "▁▂▃▄▅▆▇█"
_ARROWS = "→↗↑↖←↙↓↘"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PLUS, _MINUS, _GOOD, _BAD = "#a8460b", "#2566ac", "green", "red"


def ranked(
    weights: NumPyArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    top: int = 10,
    title: str | None = None,
    width: int = 80,
) -> RenderableType:
    """The strongest pairs of all heads, in order: layer and head, query, key, weight, and the entropy of that row.

    Args:
      weights: [L, H, T, S], [H, T, S] or [T, S]; what is not finite comes last.
      rows: T names, of the queries.
      columns: S names, of the keys.
      top: how many, at least 1.
      title: a line above the table.
      width: the columns of the terminal. Below 56 names are cut shorter and the entropy is left out.

    Returns:
      A rich Table, or a Group where there is a title. Of equal weights the first comes first.

    Raises:
      ValueError: `weights` has other axes, or there are more or fewer names than queries and keys.

    Memory: that of its text.

    Example:
      >>> from rich.console import Console
      >>> from jattn import console
      >>> Console(width=60).print(console.ranked([[0.75, 0.25]], ["bank"], ["river", "money"], top=1))
        head   query   key     weight   entropy
       ─────────────────────────────────────────
        0.0    bank    river    0.750     0.562
    """
    x, top = _picture_inputs.four("ranked", weights), _errors.count("ranked", "top", top, least=1)
    width = _errors.count("ranked", "width", width, least=1)
    rows = _picture_inputs.names("ranked", "rows", rows, "T", x.shape[2])
    columns = _picture_inputs.names("ranked", "columns", columns, "S", x.shape[3])
    narrow = width < 56
    room = max(2, min(12, (width - 22) // 2)) if narrow else 12
    order = np.argsort(-np.where(np.isfinite(x), x, -np.inf), axis=None, kind="stable")[:top]
    lines = []
    for layer, head, t, s in zip(*np.unravel_index(order, x.shape), strict=True):
        row = x[layer, head, t]
        line = [f"{layer}.{head}", _grid.cut(rows[t], room), _grid.cut(columns[s], room), _grid.number(row[s], 3)]
        lines.append(line if narrow else [*line, _grid.number(_picture_inputs.entropy(row), 3)])
    heads = ["head", "query", "key", "weight", "entropy"]
    return _grid.titled(title, _grid.plain(heads[:4] if narrow else heads, lines, left=3))


def arrows(
    x: NumPyArrayLike,
    y: NumPyArrayLike,
    u: NumPyArrayLike,
    v: NumPyArrayLike,
    *,
    places: Mapping[str, NumPyArrayLike] | None = None,
    title: str | None = None,
) -> RenderableType:
    """A small grid of arrows, one for each place, bold where long; a dot where all is still; letters mark places.

    Args:
      x: [nx], from left to right, increasing.
      y: [ny], increasing; the last is the top line.
      u: [ny, nx], to the right, such as a coordinate of −dL/dq.
      v: [ny, nx], upward.
      places: name → [2]: each is marked in the cell nearest to it, by a capital letter that a line below explains.
        A later one covers an earlier one in the same cell, and the line says so.
      title: a line above the grid.

    Returns:
      A rich Group, 2 nx columns wide. Below it stand the places and the longest arrow.

    Raises:
      TypeError: `places` is no mapping. ValueError: a shape does not fit, a number is not finite, `x` or `y` does
        not increase, or there are more than 26 places.

    Memory: that of its text.

    Example:
      >>> from rich.console import Console
      >>> from jattn import console
      >>> grid = console.arrows([0, 1], [0, 1], [[1, 1], [0, 0]], [[0, 1], [0, -1]], places={"river": [1, 1]})
      >>> Console(width=40).print(grid)
      · A
      → ↗
      A river; longest arrow 1.41
    """
    x, y = (_picture_inputs.numbers("arrows", name, z, (None,), "[n]") for name, z in (("x", x), ("y", y)))
    u, v = (
        _picture_inputs.numbers("arrows", name, z, (len(y), len(x)), "[ny, nx]") for name, z in (("u", u), ("v", v))
    )
    for name, z in (("x", x), ("y", y)):
        if (np.diff(z) <= 0).any():
            got = {name: "in another order"}
            _errors.fail(ValueError, "arrows", f"{name} must increase", "Turn u and v with it.", **got)
    size = np.hypot(u, v)
    longest = float(size.max(initial=0))
    turn = np.round(np.arctan2(v, u) / (np.pi / 4)).astype(int) % 8
    signs = [
        [_ARROWS[k] if n > 1e-9 * longest else "·" for k, n in zip(*row, strict=True)]
        for row in zip(turn, size, strict=True)
    ]
    styles = [["bold" if n > 0.5 * longest else "dim" if n < 0.1 * longest else "" for n in row] for row in size]
    cells: dict[tuple[int, int], str] = {}
    said = []
    marked = _picture_inputs.mapping("arrows", "places", places, "names to places")
    if len(marked) > (len(_LETTERS) if size.size else 0):
        must, got = "places must be at most 26, and none of an empty grid", {"places": f"of length {len(marked)}"}
        _errors.fail(ValueError, "arrows", must, "Mark the others on a further grid.", **got, u=u)
    for letter, (name, place) in zip(_LETTERS, marked.items(), strict=False):
        at = _picture_inputs.numbers("arrows", f"places[{name!r}]", place, (2,), "[2]")
        cell = (int(abs(y - at[1]).argmin()), int(abs(x - at[0]).argmin()))
        said.append(
            f"{letter} {_picture_inputs.printable(str(name))}" + (f" (over {cells[cell]})" if cell in cells else "")
        )
        cells[cell] = letter
        signs[cell[0]][cell[1]], styles[cell[0]][cell[1]] = letter, "bold reverse"
    lines = []
    for row, looks in zip(signs[::-1], styles[::-1], strict=True):
        line = Text()
        for i, (sign, look) in enumerate(zip(row, looks, strict=True)):
            line.append(" " if i else "").append(sign, look)
        lines.append(line)
    foot = "; ".join([", ".join(said)] * bool(said) + [f"longest arrow {longest:.3g}"])
    return Group(*([Text(title, "bold")] if title else []), *lines, Text(foot))


def sparklines(series: object, *, title: str | None = None, digits: int = 3, width: int = 80) -> RenderableType:
    """Each series as a line of eight heights between its own least and largest, with its first and last numbers.

    Args:
      series: a mapping, or an object with such attributes: name → [F]. A field that itself has fields of shape [F] is
        written as one line for each; what has another shape is let pass, and so is `steps`, the numbers of the frames.
      title: a line above.
      digits: decimals, 0 or more.
      width: the columns of the terminal; longer series are thinned to fit, the first and the last always shown.

    Returns:
      A rich Table, or a Group where there is a title. What is not finite is a blank. A series that varies by no more
      than 1e-12, of 1 or of its largest number where that is more, is drawn flat: it may be rounding.

    Raises:
      TypeError: `series` holds nothing by name, or `digits` is not a whole number.

    Memory: that of its text.

    Source: Tufte 2006, "Beautiful evidence", for lines as small as words.

    Example:
      >>> from rich.console import Console
      >>> from jattn import console
      >>> Console(width=50).print(console.sparklines({"loss": [3.0, 2.0, 1.0, 0.5]}, digits=1))
               first          last
       ────────────────────────────
        loss     3.0   █▅▂▁    0.5
    """
    held, digits = _picture_inputs.fields(series), _errors.count("sparklines", "digits", digits)
    width = _errors.count("sparklines", "width", width, least=1)
    if held is None:
        got = {"series": f"of type {type(series).__name__}"}
        _errors.fail(TypeError, "sparklines", "series must map names to [F]", "Pass a mapping.", **got)
    flat = {}
    for name, y in held.items():
        if name == "steps":
            continue
        inner = _picture_inputs.fields(y)
        for label, z in ({name: y} if inner is None else {f"{name} {n}": z for n, z in inner.items()}).items():
            z = _errors.reals(z)
            if z is not None and z.ndim == 1 and len(z):
                flat[label] = z
    ends = {label: [_grid.number(z[i], digits) for i in (0, -1)] for label, z in flat.items()}
    taken = max(map(cell_len, map(_grid.cut, flat)), default=0) + 2 * max(
        (len(e) for pair in ends.values() for e in pair), default=5
    )
    room = max(8, width - taken - 13)
    lines: list[list[str | Text]] = []
    for label, z in flat.items():
        shown = z[np.unique(np.round(np.linspace(0, len(z) - 1, min(room, len(z)))).astype(int))]
        first, last = ends[label]
        lines.append([_grid.cut(label), first, Text(_sparks(shown), "blue"), last])
    return _grid.titled(title, _grid.plain(["", "first", "", "last"], lines, left=1, free=(2,)))


def _sparks(z: np.ndarray) -> str:
    seen = z[np.isfinite(z)]
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 0.0)
    half = high / 2 - low / 2  # high − low may be more than a float holds
    if half <= 0.5e-12 * max(1.0, abs(low), abs(high)):
        return "".join("▁" if np.isfinite(n) else " " for n in z)
    return "".join(_SPARKS[round(7 * ((n / 2 - low / 2) / half))] if np.isfinite(n) else " " for n in z)


def why(
    pulls: NumPyArrayLike,
    labels: Sequence[str],
    *,
    total: NumPyArrayLike | None = None,
    title: str | None = None,
    digits: int = 3,
    width: int = 80,
) -> RenderableType:
    """Why a gradient points where it does: the pull of each key, c·p_j(a_j − ā)k_j, with its signs, and their total.

    Args:
      pulls: [S, D], one pull for each key; they sum to −dL/dq.
      labels: S names of the keys.
      total: [D], the −dL/dq that was measured by other means, as a further line; left out if None.
      title: a line above.
      digits: decimals, 0 or more.
      width: the columns of the terminal. Dimensions that do not fit continue in a further table below.

    Returns:
      A rich Table, or a Group where there is a title or it does not fit. `along` is the pull in the direction of the
      total, 0 where the total has none.

    Raises:
      ValueError: a shape does not fit, or a number is not finite. TypeError: `digits` is not a whole number.

    Memory: that of its text.

    Source: dL/ds_j = p_j (a_j − ā), the derivative of softmax, and the chain rule.

    Example:
      >>> from rich.console import Console
      >>> from jattn import console
      >>> Console(width=40).print(console.why([[0.4, 0.0], [-0.1, 0.0]], ["river", "money"], digits=1))
               along      1      2
       ────────────────────────────
        river   +0.4   +0.4    0.0
        money   -0.1   -0.1    0.0
        total   +0.3   +0.3    0.0
    """
    digits, width = _errors.count("why", "digits", digits), _errors.count("why", "width", width, least=1)
    x = _picture_inputs.numbers("why", "pulls", pulls, (None, None), "[S, D]")
    names = _picture_inputs.names("why", "labels", labels, "S", len(x))
    rows, whole = [*x, x.sum(0)], x.sum(0)
    names = [*names, "total"]
    if total is not None:
        rows.append(_picture_inputs.numbers("why", "total", total, (x.shape[1],), "[D]"))
        names.append("measured")
    top = float(abs(whole).max(initial=0))
    unit = whole / top if top else whole  # of entries at most 1, whose squares are no infinity
    unit = unit / max(float(np.linalg.norm(unit)), 1.0)
    numbers = [[row @ unit, *row] for row in rows]
    cells = [
        [Text(f" {_signed(n, digits)} ", _PLUS if n > 0 else _MINUS if n < 0 else "") for n in row] for row in numbers
    ]
    return _grid.folded(cells, names, ["along", *(str(d + 1) for d in range(x.shape[1]))], title, width)


def _signed(x: float, digits: int) -> str:
    text = _grid.number(x, digits)
    return text if text.startswith(("-", "nan")) or not text.strip("0.") else "+" + text


def tiles(block_states: NumPyArrayLike, *, title: str | None = None, width: int = 80) -> RenderableType:
    """Which tiles of queries and keys a mask visits, a character each, and how many of each kind there are.

    Args:
      block_states: [I, J], for each tile 0 (EMPTY): not visited; 1 (PARTIAL): some of its pairs are allowed;
        2 (FULL): all are.
      title: a line above.
      width: the columns of the terminal; where the tiles are more, squares of tiles are drawn as one, which is
        visited if one of its tiles is, and whole if all are.

    Returns:
      A rich Group: █ FULL, ▒ PARTIAL, · EMPTY.

    Raises:
      ValueError: `block_states` has other axes or holds something else.

    Memory: that of its text.

    Example:
      >>> from rich.console import Console
      >>> from jattn import console
      >>> Console(width=60).print(console.tiles([[1, 0], [2, 1]]))
      ▒·
      █▒
      █ full: 1, ▒ partial: 2, · empty: 1
    """
    v = _picture_inputs.block_states("tiles", "block_states", block_states, (None, None), "[I, J]")
    width = _errors.count("tiles", "width", width, least=1)
    counts = [int((v == n).sum()) for n in (FULL, PARTIAL, EMPTY)]
    n = -(-v.shape[1] // width) if v.size else 1
    squares = [[v[i : i + n, j : j + n] for j in range(0, v.shape[1], n)] for i in range(0, len(v), n)]
    drawn = ["".join("█" if (s == FULL).all() else "▒" if (s != EMPTY).any() else "·" for s in row) for row in squares]
    foot = ", ".join(
        f"{sign} {words}: {c}" for sign, words, c in zip("█▒·", ("full", "partial", "empty"), counts, strict=True)
    )
    if n > 1:
        foot += f"; a character is {n} × {n} tiles"
    return Group(*([Text(title, "bold")] if title else []), *(Text(line, no_wrap=True) for line in drawn), Text(foot))


def conserved(
    quantities: Mapping[str, tuple[NumPyArrayLike, NumPyArrayLike]],
    *,
    tolerance: float = 1e-6,
    title: str | None = None,
) -> RenderableType:
    """A line for each quantity: whether what was measured is what theory predicts, and how far off it was at most.

    Args:
      quantities: name → (predicted, measured), each [F]; a prediction that is one number holds for every frame.
      tolerance: how far off it may be, in units of max(1, |predicted|).
      title: a line above.

    Returns:
      A rich Group. What is NaN on either side fails.

    Raises:
      TypeError: it is no such mapping. ValueError: two shapes do not agree.

    Memory: that of its text.

    Example:
      >>> from rich.console import Console
      >>> from jattn import console
      >>> Console(width=60).print(console.conserved({"Σ dk": (0.0, [0.0, 0.0]), "|q|²": (1.0, [1.0, 1.5])}))
      pass  Σ dk: off by at most 0.0e+00
      FAIL  |q|²: off by at most 5.0e-01
    """
    lines, tolerance = [], _errors.amount("conserved", "tolerance", tolerance)
    for name, (predicted, measured) in _picture_inputs.pairs("conserved", "quantities", quantities).items():
        with np.errstate(invalid="ignore", over="ignore"):  # ∞ − ∞ is NaN, which fails
            off = abs(predicted - measured)
        holds = bool((off <= tolerance * np.maximum(1.0, abs(predicted))).all())
        worst = float(np.max(off, initial=0))
        verdict = Text("pass" if holds else "FAIL", _GOOD if holds else f"bold {_BAD}")
        lines.append(Text.assemble(verdict, f"  {_picture_inputs.printable(name)}: off by at most {worst:.1e}"))
    return Group(*([Text(title, "bold")] if title else []), *lines)
