"""Parts, and the one document they become: data escaped, styles and script inlined, nothing fetched."""

import base64
import dataclasses
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

_SCRIPTS = ("core.js", "drawing.js", "plane.js", "panels.js", "heads.js", "saving.js", "main.js")


@dataclasses.dataclass(frozen=True)
class Part:
    """What a page shows of one thing. In a notebook it shows itself."""

    kind: str
    data: Mapping[str, Any]

    def _repr_html_(self) -> str:
        names = {"weights": "The weights of a head", "heads": "Heads", "head_table": "Heads in numbers", "run": "A run"}
        name = names[self.kind]
        return frame(document(name, "", [self], heading=""), name)


def document(title: str, note: str, parts: Sequence[Part], heading: str | None = None) -> str:
    """One HTML document, with its title as its heading if no other is given.

    Its policy lets run what carries these hashes, and lets nothing be fetched from anywhere.
    """
    folder = resources.files("jattn.page")
    style = (folder / "page.css").read_text(encoding="utf-8")
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}\n}})();\n'
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    filled = {"title": html.escape(title), "policy": policy, "style": style, "script": script}
    shown = {"title": title if heading is None else heading, "note": note}
    filled["data"] = _json(shown | {"parts": [{"kind": p.kind, **p.data} for p in parts]})
    template = (folder / "template.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda hole: filled[hole[1]], template)  # one pass: what is filled in is not read


def frame(page: str, name: str) -> str:
    """An HTML document within another, which it leaves alone; it makes itself as high as what it shows."""
    style = "width: 100%; height: 30rem; border: 0"
    return f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(name)}" style="{style}"></iframe>'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(x: Any) -> str:
    """JSON in ASCII in which nothing can end a script element: no `<`, `>` or `&` is left."""
    text = json.dumps(_plain(x), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(x: Any) -> Any:
    """What JSON can hold: NaN is null, ±inf a string, float32 its bytes in base 64."""
    if isinstance(x, Mapping):
        return {name: _plain(y) for name, y in x.items()}
    if isinstance(x, np.ndarray):
        if x.dtype == np.float32:
            return base64.b64encode(x.astype("<f4").tobytes()).decode()
        return _plain(x.tolist())
    if isinstance(x, (list, tuple)):
        return [_plain(y) for y in x]
    if isinstance(x, float) and not np.isfinite(x):
        return None if np.isnan(x) else "Infinity" if x > 0 else "-Infinity"
    return int(x) if isinstance(x, float) and x.is_integer() and abs(x) < 2**53 else x
