"""Tables of numbers, shaded and folded to the width of a terminal; and what the other pictures of a terminal share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jattn import _errors, _picture_inputs
from jattn._types import NumPyArrayLike

_LABEL = 12  # a longer label is cut, with an ellipsis
_PAPER, _MIDDLE, _INK = (247, 251, 255), (66, 146, 198), (8, 48, 107)  # the blues of small, middling, large weights


def heatmap(
    weights: NumPyArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    entropy: bool = False,
    title: str | None = None,
    digits: int = 3,
    width: int = 80,
) -> RenderableType:
    """A table of weights whose cells are the darker the larger they are, and carry their numbers.

    The colour runs evenly from 0 to the largest entry of the whole table.

    Args:
      weights: [T, S], real. What is not finite is written but has no colour.
      rows: T labels, one a query.
      columns: S labels, one a key.
      entropy: whether a last column says the entropy of each row, in nats.
      title: a line above the table.
      digits: decimals, 0 or more.
      width: the columns of the terminal. Keys that do not fit continue in a further table below.

    Returns:
      A rich Table, or a Group where there is a title or the keys do not fit into one table. T = 0 or S = 0
      gives a table without such cells.

    Raises:
      TypeError: `weights` is not an array of real numbers, or `digits` is not a whole number.
      ValueError: `weights` has not T rows and S columns.

    Memory: that of its text.

    Example:
      >>> from rich.console import Console
      >>> from jattn import console
      >>> table = console.heatmap([[0.75, 0.25]], rows=["bank"], columns=["river", "money"], digits=2)
      >>> Console(width=40).print(table)
               river  money
       ──────────────────────
        bank    0.75   0.25
    """
    digits = _errors.count("heatmap", "digits", digits)
    width = _errors.count("heatmap", "width", width, least=1)
    rows, columns = labels_of("heatmap", "rows", rows), labels_of("heatmap", "columns", columns)
    x = _labelled("heatmap", "weights", _reals("heatmap", "weights", weights), rows, columns)
    top = max((float(w) for w in x[np.isfinite(x)]), default=0.0)
    cells = [[Text(f" {number(w, digits)} ", _shade(float(w), top)) for w in row] for row in x]
    if entropy:
        cells = [
            [*row, Text(f" {number(h, digits)} ")] for row, h in zip(cells, _picture_inputs.entropy(x), strict=True)
        ]
        columns = [*columns, "entropy"]
    return folded(cells, rows, columns, title, width)


def vectors(
    labels: Sequence[str],
    x: NumPyArrayLike,
    *,
    columns: Sequence[str] | None = None,
    title: str | None = None,
    digits: int = 3,
    width: int = 80,
) -> RenderableType:
    """A table of numbers, one labelled vector a row, the decimal points below each other.

    Args:
      labels: n labels, one a vector.
      x: [n, D], real.
      columns: D labels; 1, 2, 3, … if None.
      title: a line above the table.
      digits: decimals, 0 or more.
      width: the columns of the terminal. What does not fit continues in a further table below.

    Returns:
      A rich Table, or a Group where there is a title or the numbers do not fit into one table. n = 0 or D = 0
      gives a table without such cells.

    Raises:
      TypeError: `x` is not an array of real numbers.
      ValueError: `x` has not one row for each label, or not one column for each of `columns`.

    Memory: that of its text.

    Example:
      >>> from rich.console import Console
      >>> from jattn import console
      >>> Console(width=40).print(console.vectors(["river", "money"], [[1.0, 0.0], [0.2, -0.1]], digits=1))
                  1      2
       ────────────────────
        river   1.0    0.0
        money   0.2   -0.1
    """
    digits = _errors.count("vectors", "digits", digits)
    width = _errors.count("vectors", "width", width, least=1)
    numbers, labels = _reals("vectors", "x", x), labels_of("vectors", "labels", labels)
    D = numbers.shape[-1] if numbers.ndim else 0
    names = [str(d + 1) for d in range(D)] if columns is None else labels_of("vectors", "columns", columns)
    numbers = _labelled("vectors", "x", numbers, labels, names)
    cells = [[Text(f" {number(entry, digits)} ") for entry in row] for row in numbers]
    return folded(cells, labels, names, title, width)


def bars(
    labels: Sequence[str],
    weights: NumPyArrayLike,
    *,
    title: str | None = None,
    digits: int = 3,
    width: int = 30,
) -> RenderableType:
    """A bar of ⌊weight · width⌋ marks beside each number.

    Args:
      labels: n labels.
      weights: [n], each in [0, 1]; a larger one is drawn as 1, a negative one or NaN as 0.
      title: a line above the bars.
      digits: decimals, 0 or more.
      width: the marks of a weight of 1, at least 1.

    Returns:
      A rich Table without a header, one row a label; with a title, a Group.

    Raises:
      TypeError: `weights` is not an array of real numbers.
      ValueError: `weights` has not one entry for each label.

    Memory: that of its text.

    Example:
      >>> from rich.console import Console
      >>> from jattn import console
      >>> Console(width=40).print(console.bars(["river", "money"], [0.75, 0.25], digits=2, width=12))
        river  0.75  #########
        money  0.25  ###
    """
    digits = _errors.count("bars", "digits", digits)
    width = _errors.count("bars", "width", width, least=1)
    x, labels = _reals("bars", "weights", weights), labels_of("bars", "labels", labels)
    x = _labelled("bars", "weights", x[:, None] if x.ndim == 1 else x, labels, [""])
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for label, (w,) in zip(labels, x, strict=True):
        marks = int(width * min(max(0.0, float(w)), 1.0))
        table.add_row(Text(cut(label)), Text(number(w, digits)), Text("#" * marks, "blue"))
    return titled(title, table)


def _reals(caller: str, name: str, x: Any) -> np.ndarray:
    """`x` as real numbers, of any shape."""
    numbers = _errors.reals(x)
    if numbers is None:
        got = {name: _errors.kind_of(x)}
        remedy = "Pass a NumPy or jax array, or nested lists of one shape."
        _errors.fail(TypeError, caller, f"{name} must be an array of real numbers", remedy, **got)
    return numbers


def labels_of(caller: str, name: str, given: Any) -> list[str]:
    """The labels of rows or of columns; a text is one label a letter."""
    try:
        return [str(label) for label in given]
    except TypeError:
        got = {name: f"of type {type(given).__name__}"}
        _errors.fail(TypeError, caller, f"{name} must be a list of labels", "Label each.", **got)


def _labelled(caller: str, name: str, numbers: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> np.ndarray:
    """Numbers with one row a label and one column a label."""
    if numbers.shape != (len(rows), len(columns)) and numbers.size + len(rows) * len(columns):
        labels = f"for {len(rows)} rows and {len(columns)} columns"
        must = f"{name} must have one row and one column for each label"
        _errors.fail(ValueError, caller, must, "Label every row and every column.", **{name: numbers, "labels": labels})
    return numbers.reshape(len(rows), len(columns))


def number(x: Any, digits: int) -> str:
    """Fixed decimals, or an exponent and at least three digits where those would be too many characters."""
    x = float(x)
    text = f"{x:.{digits}f}" if abs(x) < 1e5 or not np.isfinite(x) else f"{x:.{max(digits, 3)}g}"
    return text.removeprefix("-") if not text.strip("-0.") else text  # no −0.000


def _shade(weight: float, top: float) -> str:
    """A shade between paper and ink, and the letters, black or white, that stand out more on it."""
    if not np.isfinite(weight) or top <= 0:
        return ""
    share = 2 * min(max(0.0, weight / top), 1.0)
    ends, within = ((_PAPER, _MIDDLE), share) if share < 1 else ((_MIDDLE, _INK), share - 1)
    red, green, blue = (round(a + within * (b - a)) for a, b in zip(*ends, strict=True))
    return f"{'#000000' if share < 1.25 else '#ffffff'} on #{red:02x}{green:02x}{blue:02x}"


def cut(label: str, width: int = _LABEL) -> str:
    text = Text(_picture_inputs.printable(str(label)))
    text.truncate(width, overflow="ellipsis")
    return text.plain


def titled(title: str | None, *tables: Table) -> RenderableType:
    """One renderable. (A rich Table would fold its own title to its own width.)"""
    if title is None and len(tables) == 1:
        return tables[0]
    return Group(*([] if title is None else [Text(title, "bold")]), *tables)


def folded(
    cells: list[list[Text]], rows: Sequence[str], columns: Sequence[str], title: str | None, width: int
) -> RenderableType:
    """One table, or as many below each other as it takes for each to fit into `width`."""
    names, heads = [f" {cut(row)} " for row in rows], [f" {cut(column)} " for column in columns]
    each = max([cell.cell_len for row in cells for cell in row] + [cell_len(head) for head in heads], default=0)
    fit = max(1, (width - max(map(cell_len, names), default=0)) // (each + 1))
    tables = []
    for start in range(0, max(len(heads), 1), fit):
        table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
        table.add_column(no_wrap=True)
        for head in heads[start : start + fit]:
            table.add_column(Text(head), justify="right", no_wrap=True)
        for name, row in zip(names, cells, strict=True):
            table.add_row(Text(name), *row[start : start + fit])
        tables.append(table)
    return titled(title, *tables)


def plain(
    heads: Sequence[str], rows: Sequence[Sequence[str | Text]], *, left: int, free: tuple[int, ...] = ()
) -> Table:
    """A table of text: the first `left` columns and those that are `free` flush left, the others flush right."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    for i, head in enumerate(heads):
        table.add_column(Text(f" {head} "), justify="left" if i < left or i in free else "right", no_wrap=True)
    for row in rows:
        cells = (x if isinstance(x, Text) else Text(x) for x in row)
        table.add_row(*(Text.assemble(" ", x, " ") for x in cells))
    return table
