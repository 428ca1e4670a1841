"""What the terminal shows, as a file."""

import os
import re
import tempfile
from pathlib import Path

from rich.console import Console, RenderableType

from jattn import _errors, _picture_inputs

_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # no characters of a file


def save(renderable: RenderableType, file: str | os.PathLike[str], *, title: str = "jattn", width: int = 80) -> Path:
    """Writes what the terminal would show to a file that refers to nothing outside itself, in colour.

    Args:
      renderable: what any function here returns.
      file: `….svg` or `….html`; its folder is made if it is not there.
      title: what stands in the frame of the SVG.
      width: the columns of the terminal.

    Returns:
      The file, whole or not at all.

    Raises:
      TypeError: the file is no path. ValueError: it has another ending. OSError: the folder cannot be
        written to, or the file is a folder.

    Memory: that of its text, a few times.

    Source: a temporary file beside the target, then `os.replace`, which POSIX and Windows make atomic.

    Example:
      >>> import tempfile
      >>> from jattn import console
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     console.save(console.bars(["river"], [0.5]), folder + "/row.svg").name
      'row.svg'
    """
    file, width = _errors.path("save", "file", file), _errors.count("save", "width", width, least=1)
    if file.suffix not in (".svg", ".html"):
        _errors.fail(ValueError, "save", "file must end in .svg or .html", "Name one of them.", file=file.name)
    with open(os.devnull, "w", encoding="utf-8", errors="replace") as nowhere:
        paper = Console(width=width, record=True, file=nowhere, force_terminal=True, color_system="truecolor")
        paper.print(renderable)
    if file.suffix == ".html":
        text = paper.export_html(inline_styles=True)
    else:  # rich's own frame asks a server for its font: the reader's monospace will do
        text = re.sub(r"@font-face \{.*?\}", "", paper.export_svg(title=title, unique_id="jattn"), flags=re.DOTALL)
        text = text.replace("Fira Code, monospace", "'Fira Code', 'DejaVu Sans Mono', Menlo, Consolas, monospace")
    text = _NO_XML.sub("\ufffd", text)
    _picture_inputs.target("save", "file", file)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as folder:
        unfinished = Path(folder) / "new"
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, file)
    return file
