"""Heads at a glance: numbers of every head in a table to sort, as small pictures, and two against each other."""

from collections.abc import Mapping, Sequence

import numpy as np

from jattn import _errors, _picture_inputs
from jattn._types import NumPyArrayLike
from jattn.page._document import Part


def head_table(columns: Mapping[str, NumPyArrayLike], *, across: Sequence[str] | None = None) -> Part:
    """Numbers of every head: a table to sort, layers × heads in small pictures, and two columns against each other.

    A head that is chosen in one of them is marked in all, and its arcs are drawn where `heads` is on the page.

    Args:
      columns: name → [L, H], or [H] for one layer; NaN is shown as such and sorted last.
      across: the names of two columns in one unit, as an estimate and what it estimates: the scatter begins with them,
        with the line on which they are equal. The last two, without it, if None.

    Returns:
      A part for `html` or `write`.

    Raises:
      TypeError, ValueError: columns is no mapping, is empty, or the shapes differ; across does not name two of them.

    Memory: about 20 bytes a number.

    Source: Vig 2019, arXiv:1906.05714, for heads at a glance; no published figure.

    Example:
      >>> from jattn import page
      >>> part = page.head_table({"entropy": [[0.1, 1.2]], "knock-out": [[0.0, -0.3]]})
      >>> part.data["shape"], part.data["names"]
      ([1, 2], ['entropy', 'knock-out'])
    """
    caller = "head_table"
    held = _picture_inputs.fields(columns)
    if not held:
        got = {"columns": f"of type {type(columns).__name__}" if held is None else "empty"}
        remedy = 'Pass a mapping, as in {"entropy": entropy}.'
        _errors.fail(TypeError, caller, "columns must map names to numbers of heads", remedy, **got)
    made: list[np.ndarray] = []
    for name, x in held.items():
        x = np.asarray(x)[None] if _picture_inputs.axes_of(x) == 1 else x
        shape, axes = (None, None) if not made else made[0].shape, "[L, H] or [H]"
        made.append(_picture_inputs.numbers(caller, f"columns[{name!r}]", x, shape, axes, finite=False))
    if not made[0].size:
        remedy = "Give a number to each head."
        _errors.fail(ValueError, caller, "columns must hold at least one head", remedy, columns=made[0])
    names = list(held)
    given = names[-2:] if across is None else _picture_inputs.several(caller, "across", across)
    chosen = [str(name) for name in given]
    if across is not None and (len(chosen) != 2 or not set(chosen) <= set(names)):
        remedy = f"There are {', '.join(map(repr, names))}."
        _errors.fail(ValueError, caller, "across must name two columns", remedy, across=repr(across))
    data = {"shape": list(made[0].shape), "names": names, "values": [x.ravel() for x in made]}
    return Part("head_table", data | {"across": [chosen[0], chosen[-1]], "equal": across is not None})
