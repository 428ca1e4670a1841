"""How arrays and masks show themselves in a notebook: small tables, in colours that both themes can be read on."""

import html
from collections.abc import Mapping
from typing import Any

import numpy as np

MOST = 16
"""Rows and columns of an array that is shown in numbers."""
PLUS, MINUS = "214 106 16", "37 102 172"


def arrays(named: Mapping[str, Any]) -> str:
    """Arrays side by side, each in numbers where it has two short axes and by its shape where it has not."""
    shown = "".join(_table(name, np.asarray(x)) for name, x in named.items())
    return f'<div style="display: flex; flex-wrap: wrap; gap: 1.5em; align-items: flex-start">{shown}</div>'


def characters(allowed: Any) -> str:
    """Booleans [T, S] as T lines of S characters, `#` where they are true."""
    return "\n".join("".join(row) for row in np.where(np.asarray(allowed), "#", "·"))


def picture(name: str, allowed: Any, note: str = "") -> str:
    """The name of a mask above its pairs, queries down and keys across."""
    style = "line-height: 1; letter-spacing: .3em; display: inline-block"
    return f'<code>{html.escape(name)}</code>{html.escape(note)}<br><pre style="{style}">{characters(allowed)}</pre>'


def _table(name: str, x: np.ndarray) -> str:
    caption = f"<caption>{html.escape(name)} {list(x.shape)}, {x.dtype}</caption>"
    if x.ndim != 2 or max(x.shape) > MOST:  # of a batch too, as jax.vmap of explain gives it
        return f"<table>{caption}</table>"
    finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
    largest = np.abs(finite).max(initial=0) or 1.0
    rows = "".join(
        "<tr>" + "".join(_cell(n, at / largest) for n, at in zip(row, shares, strict=True)) + "</tr>"
        for row, shares in zip(x, finite, strict=True)
    )
    return f"<table>{caption}<tbody>{rows}</tbody></table>"


def _cell(x: Any, share: float) -> str:
    text = f"{float(x):z.3f}" if np.isfinite(x) else "NaN" if np.isnan(x) else "∞" if x > 0 else "−∞"
    colour = f"rgb({PLUS if share > 0 else MINUS} / {0.45 * abs(share):.2f})"
    return f'<td style="background: {colour}; font-variant-numeric: tabular-nums">{text.replace("-", "−")}</td>'
