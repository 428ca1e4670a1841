"""Parts, and the one document they become: data escaped, styles and script inlined, nothing fetched."""

import base64
import dataclasses
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import Any

import numpy as np

_SCRIPTS = MappingProxyType({
    "core.js": None, "drawing.js": None, "plane.js": None, "panels.js": None, "heads.js": "head_table",
    "blocks.js": "blocks", "transformer.js": "model", "model.js": "model", "saving.js": None,
    "story.js": "story", "main.js": None,
})  # fmt: skip
"""In their order; the kind of part without which a page does not need it."""


@dataclasses.dataclass(frozen=True)
class Part:
    """What a page shows of one thing. In a notebook it shows itself."""

    kind: str
    data: Mapping[str, Any]

    def _repr_html_(self) -> str:
        names = {"weights": "The weights of a head", "heads": "Heads", "head_table": "Heads in numbers", "run": "A run"}
        names |= {"blocks": "Blocks of attention", "model": "A language model", "story": "A story"}
        name = names[self.kind]
        return frame(document(name, "", [self], heading=""), name)


def document(title: str, note: str, parts: Sequence[Part], heading: str | None = None) -> str:
    """One HTML document, with its title as its heading if no other is given.

    Its policy lets run what carries these hashes, and lets nothing be fetched from anywhere.
    """
    folder = resources.files("jattn.page")
    style = (folder / "page.css").read_text(encoding="utf-8")
    flat, story = laid_out(parts)
    kinds = {None, *(part.kind for part in (*parts, *flat))}
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name, kind in _SCRIPTS.items() if kind in kinds)
    script = f'(() => {{\n"use strict";\n{script}\n}})();\n'
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    filled = {"title": _escaped(title), "policy": policy, "style": style, "script": script}
    shown = {"title": title if heading is None else heading, "note": note}
    filled["data"] = _json(shown | {"parts": [{"kind": p.kind, **p.data} for p in flat], "story": story})
    filled["told"] = "" if story is None else _listed(story)
    template = (folder / "template.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda hole: filled[hole[1]], template)  # one pass: what is filled in is not read


def laid_out(parts: Sequence[Part]) -> tuple[list[Part], dict[str, Any] | None]:
    """The parts that are shown, each once, and the story, whose steps name their part by its place among these."""
    flat: list[Part] = []
    story = None
    for part in parts:
        told = part.data["parts"] if part.kind == "story" else (part,)
        for x in told:
            if part.kind != "story" or not any(x is y for y in (*flat, *parts)):
                flat.append(x)
        if part.kind == "story":
            story = part
    if story is None:
        return flat, None
    at = [next(i for i, y in enumerate(flat) if y is x) for x in story.data["parts"]]
    steps = [{**step, "part": at[step["part"]]} for step in story.data["steps"]]
    return flat, {"title": story.data["title"], "steps": steps}


def _listed(story: Mapping[str, Any]) -> str:
    """A story as a list, for a page whose script may not run."""
    told = f"<h2>{_escaped(story['title'])}</h2><ol>"
    for step in story["steps"]:
        tried = f" Try: {step['try']}" if step["try"] else ""
        told += f"<li><strong>{_escaped(step['title'])}.</strong> {_escaped(step['text'] + tried)}</li>"
    return told + "</ol>"


def _escaped(text: str) -> str:
    """A text as HTML; half a surrogate pair is no character of a file."""
    return html.escape(text).encode(errors="replace").decode()


def frame(page: str, name: str) -> str:
    """An HTML document within another, which it leaves alone; it makes itself as high as what it shows.

    In ASCII alone: read in another encoding than UTF-8 its script would be another one than its policy allows.
    """
    style = "width: 100%; height: 30rem; border: 0"
    frame = f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(name)}" style="{style}"></iframe>'
    return frame.encode("ascii", "xmlcharrefreplace").decode()


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
