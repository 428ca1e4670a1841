"""A story: steps through what a page shows, validated against the parts that they tell of."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from jattn import _errors
from jattn.page._document import Part

_ARGUMENTS = MappingProxyType(
    {
        "run": ("frame", "key"),
        "weights": ("row", "key"),
        "heads": ("head",),
        "head_table": ("head",),
        "blocks": ("row",),
        "model": ("head", "row", "key"),
    }
)


class Step(NamedTuple):
    """One step of a story: what is said, and what is shown while it is said."""

    title: str
    """A few words: the name of the link to the step."""
    text: str
    """What is to be seen; an empty line begins a new paragraph."""
    highlight: str | Sequence[str] = ()
    """What is outlined, by name: "plane", "weights", "pulls", "training", "conserved" or a series of a run; "weights",
    "steps" or "pulls" of a head; "overview" or "arcs" of heads; "table", "scatter" or "pictures" of a table of heads;
    "blocks" or "row" of blocks; "sentence", "next", "heads", "output", "step", "pulls" or "limits" of a model. The page
    scrolls to the first."""
    frame: int | None = None
    """Of a run, from 0 to F − 1; the first if None."""
    try_: str = ""
    """What the reader may try."""
    part: int = 0
    """Which of the parts, from 0."""
    key: int | None = None
    """The key, from 0 to S − 1, whose pull is written out."""
    row: int | None = None
    """Of a head or of blocks: the query, from 0 to T − 1, whose row is shown; the first if None. Of a model: a word of
    its first example; what the reader chose if None."""
    head: tuple[int, int] | None = None
    """Of heads: (layer, head); the first if None. Of a model: what the reader chose if None."""


def story(part: Part | Sequence[Part], steps: Step | Sequence[Step], *, title: str = "Step by step") -> Part:
    """A part, or several, told in steps: each shows its frame, outlines what it speaks of and says what to try.

    The reader goes on with a button, with ← and → while the story has the focus, or by a link to a step: `#step-3`
    after the address of the page opens the third. Each step is read out where a screen reader runs, and all are listed
    in print and where scripts are not allowed. With reduced motion nothing glides.

    Args:
      part: what it tells of, made by `weights`, `heads`, `head_table`, `run`, `blocks` or `model`. The page shows these
        parts too, each once, even if it is also given to `html`.
      steps: each a `Step`, in their order; or one.
      title: of the story.

    Returns:
      A part for `html` or `write`.

    Raises:
      TypeError: something else than parts or steps. ValueError: no parts or no steps, a step without a title, or one
        that shows a frame, key, row, head or view that its part has not.

    Memory: that of its text and its parts.

    Source: live regions of WAI-ARIA 1.2; the arrow keys belong to the story only while it has the focus, as WCAG 2.2
      asks of character keys (2.1.4).

    Example:
      >>> from jattn import page
      >>> path = {"q": [[1.0, 0.0], [1.3, 0.0]], "k": [[1.0, 0.0], [0.0, 0.1]], "weights": [[0.6, 0.4], [0.7, 0.3]]}
      >>> run = page.run(path, ["river", "the"], target=0)
      >>> told = page.story(run, [page.Step("Start", "q stands at its start.", "plane", frame=0)])
      >>> told.kind, told.data["steps"][0]["highlight"]
      ('story', ['plane'])
    """
    parts = (part,) if isinstance(part, Part) else tuple(part) if isinstance(part, (list, tuple)) else (part,)
    for x in parts:
        kind = x.kind if isinstance(x, Part) else f"of type {type(x).__name__}"
        if kind not in _ARGUMENTS:
            remedy = "Make it with page.weights, heads, head_table, run, blocks or model."
            _errors.fail(TypeError, "story", "part must be a part of a page", remedy, part=kind)
    listed = (steps,) if isinstance(steps, Step) or not isinstance(steps, (list, tuple)) else tuple(steps)
    for name, given in (("part", parts), ("steps", listed)):
        if not given:
            remedy = "Give at least one."
            _errors.fail(ValueError, "story", f"{name} must not be empty", remedy, **{name: "of length 0"})
    return Part(
        "story", {"title": str(title), "parts": parts, "steps": [_step(i, x, parts) for i, x in enumerate(listed)]}
    )


def views(part: Part) -> tuple[str, ...]:
    """The names of what a step can outline."""
    held = part.data
    if part.kind == "blocks":
        return "blocks", *["row"] * bool(held["rows"])
    if part.kind == "model":
        return "sentence", "next", "heads", "output", "step", "pulls", "limits"
    if part.kind == "heads":
        return "overview", "arcs"
    if part.kind == "head_table":
        return "table", "scatter", "pictures"
    if part.kind == "weights":
        whole = all(held[x] is not None for x in ("scores", "scaled", "values", "out"))
        causes = held["keys"] is not None and held["gains"] is not None
        return "weights", *["steps"] * whole, *["pulls"] * causes
    return "plane", "weights", "pulls", "training", *["conserved"] * bool(held["conserved"]), *held["series"]


def _step(i: int, step: Any, parts: Sequence[Part]) -> dict[str, Any]:
    """A step as the page reads it, with every default written out."""
    place = f"steps[{i}]"
    if not isinstance(step, Step):
        remedy, got = "Make each with page.Step(title, text).", {place: f"of type {type(step).__name__}"}
        _errors.fail(TypeError, "story", "steps must hold page.Step", remedy, **got)
    for name in ("title", "text", "try_"):
        x = getattr(step, name)
        if not isinstance(x, str):
            got = {f"{place}.{name}": f"of type {type(x).__name__}"}
            _errors.fail(TypeError, "story", f"{place}.{name} must be text", "Pass a string.", **got)
    if not step.title.strip():
        must, got = f"{place}.title must name the step", {f"{place}.title": "with no letter"}
        _errors.fail(ValueError, "story", must, "The link to the step bears this name.", **got)
    at = _index(f"{place}.part", step.part, len(parts), "a part")
    part = parts[at]
    made: dict[str, Any] = {"title": step.title, "text": step.text, "try": step.try_, "part": at}
    for name in ("frame", "key", "row", "head"):
        if name not in _ARGUMENTS[part.kind] and getattr(step, name) is not None:
            owners = " or ".join(f"page.{kind}" for kind, has in _ARGUMENTS.items() if name in has)
            must, remedy = f"{place}.{name} must be None of page.{part.kind}", f"Only a part of {owners} has one."
            _errors.fail(ValueError, "story", must, remedy, **{f"{place}.{name}": "given"})
    shape, kept = _shape(part), part.kind == "model"
    if kept:
        made |= {"head": None, "row": None}
    if "head" in _ARGUMENTS[part.kind] and not (kept and step.head is None):
        head = (0, 0) if step.head is None else step.head
        if not isinstance(head, (list, tuple)) or len(head) != 2:
            remedy, got = "Count both from 0.", {f"{place}.head": f"of type {type(head).__name__}"}
            _errors.fail(TypeError, "story", f"{place}.head must be (layer, head)", remedy, **got)
        layer = _index(f"{place}.head[0]", head[0], shape["layers"], "a layer")
        made["head"] = [layer, _index(f"{place}.head[1]", head[1], shape["heads"], "a head")]
    if part.kind == "run":
        made["frame"] = _index(f"{place}.frame", 0 if step.frame is None else step.frame, shape["frames"], "a frame")
    elif "row" in _ARGUMENTS[part.kind] and not (kept and step.row is None):
        made["row"] = _index(f"{place}.row", 0 if step.row is None else step.row, shape["rows"], "a query")
    made["key"] = None if step.key is None else _index(f"{place}.key", step.key, shape["keys"], "a key")
    made["highlight"] = [step.highlight] if isinstance(step.highlight, str) else step.highlight
    if not isinstance(made["highlight"], (list, tuple)):
        got = {f"{place}.highlight": f"of type {type(step.highlight).__name__}"}
        _errors.fail(TypeError, "story", f"{place}.highlight must be names", "Pass a string, or a list of them.", **got)
    known = views(part)
    for n, name in enumerate(made["highlight"]):
        if name not in known:
            must, got = f"{place}.highlight must name views of its part", {f"{place}.highlight[{n}]": repr(name)}
            _errors.fail(ValueError, "story", must, f"Here these are {', '.join(known)}.", **got)
    return made


def _shape(part: Part) -> dict[str, int]:
    if part.kind == "run":
        return {"frames": len(part.data["q"]), "keys": len(part.data["labels"])}
    if part.kind == "blocks":
        return {"rows": part.data["T"]}
    if part.kind == "model":
        n = len(part.data["examples"][0]["words"])
        return {"layers": part.data["layers"], "heads": part.data["heads"], "rows": n, "keys": n}
    if "head" in _ARGUMENTS[part.kind]:
        return {"layers": part.data["shape"][0], "heads": part.data["shape"][1]}
    return {"rows": len(part.data["rows"]), "keys": len(part.data["columns"])}


def _index(place: str, x: Any, n: int, of: str) -> int:
    at = _errors.count("story", place, x)
    if at >= n:
        got = {place: str(at), "of these": str(n)}
        _errors.fail(ValueError, "story", f"{place} must name {of}", "Count from 0.", **got)
    return at
