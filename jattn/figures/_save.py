"""A figure as files."""

import base64
import io
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure, FigureBase
from PIL import Image

from jattn import _errors, _picture_inputs


def save(figure: Figure, stem: str | os.PathLike[str], kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Writes a figure to `<stem>.<kind>` for each kind, each file whole or not at all, the same bytes every time.

    `matplotlib.rcParams["savefig.*"]` and `["svg.*"]` hold; where they leave it open, an inch has 150 dots. An image
    within an SVG is stored with a palette where it has at most 256 colours, the same pixels in a quarter of the bytes,
    and its paths to a thousandth of a point.

    Args:
      figure: the figure.
      stem: a path without an ending; its folder is made if it is not there.
      kinds: formats that matplotlib can write: png, svg, pdf, …

    Returns:
      The paths written, in the order of `kinds`.

    Raises:
      TypeError: the figure is none, or the stem is no path. ValueError: matplotlib knows no such format. OSError: the
        folder cannot be written to, or one of the files is a folder.

    Memory: that of one picture.

    Source: a temporary file beside the target, then `os.replace`, which POSIX and Windows make atomic.

    Example:
      >>> import tempfile
      >>> from jattn import figures
      >>> figure = figures.weights([[1.0]], ["bank"], ["river"])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     [path.name for path in figures.save(figure, folder + "/bank")]
      ['bank.png', 'bank.svg']
    """
    if not isinstance(figure, FigureBase):
        must, remedy = "figure must be a figure of matplotlib", "Pass what figures returned, or ax.figure."
        _errors.fail(TypeError, "save", must, remedy, figure=f"of type {type(figure).__name__}")
    stem, kinds = _errors.path("save", "stem", stem), _picture_inputs.several("save", "kinds", kinds)
    known = figure.canvas.get_supported_filetypes()
    for kind in kinds:
        if kind not in known:
            _errors.fail(ValueError, "save", "kinds must be formats of matplotlib", "Try png or svg.", kinds=repr(kind))
    if not stem.name:
        _picture_inputs.target("save", "stem", stem)
    targets = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    for target in targets:
        _picture_inputs.target("save", "stem", target)
    with tempfile.TemporaryDirectory(dir=stem.parent, prefix=".") as folder:
        for kind in kinds:
            new = Path(folder) / f"new.{kind}"
            chosen = matplotlib.rcParams
            dpi = 150 if chosen["savefig.dpi"] == "figure" else chosen["savefig.dpi"]
            with matplotlib.rc_context({"svg.hashsalt": chosen["svg.hashsalt"] or "jattn"}):
                undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
                figure.savefig(new, format=kind, dpi=dpi, metadata=undated)
            if kind == "svg":
                new.write_bytes(_IMAGE.sub(_with_palette, _OUTLINE.sub(_shorter, new.read_bytes())))
        for kind, target in zip(kinds, targets, strict=True):
            os.replace(Path(folder) / f"new.{kind}", target)
    return targets


_IMAGE = re.compile(rb"(?<=data:image/png;base64,)[A-Za-z0-9+/=\s]+")


_OUTLINE = re.compile(rb'(?<= d=")[^"]+')


def _shorter(found: re.Match[bytes]) -> bytes:
    """The outline of a path, to a thousandth of a point."""
    return re.sub(rb"(\.\d{3})\d+", rb"\1", found[0])


def _with_palette(found: re.Match[bytes]) -> bytes:
    """A PNG in base64, with a palette if it has at most 256 colours; as it was if not."""
    with Image.open(io.BytesIO(base64.b64decode(found[0]))) as image:
        pixels = np.ascontiguousarray(image.convert("RGBA"))
    packed, index = np.unique(pixels.view("<u4")[..., 0], return_inverse=True)
    if len(packed) > 256:
        return found[0]
    colours = packed.astype("<u4")[:, None].view(np.uint8)
    indexed = Image.fromarray(index.reshape(pixels.shape[:2]).astype(np.uint8))
    indexed.putpalette(colours[:, :3].tobytes())
    file = io.BytesIO()
    indexed.save(file, "png", optimize=True, transparency=colours[:, 3].tobytes())
    return base64.b64encode(file.getvalue())
