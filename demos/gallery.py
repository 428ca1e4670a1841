"""Every figure of jattn.figures as the example in its documentation draws it, in files.

The example of each public function is run as it stands; the figures that it makes are written as PNG, SVG and PDF,
and what it writes itself (a film, a saved figure) is kept.
"""

import argparse
import contextlib
import doctest
import inspect
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import _cli
from matplotlib.figure import Figure
from rich.console import Console

from jattn import figures


def draw(name: str, folder: Path) -> list[Path]:
    """The files that the example of one function gives, in a folder."""
    test = doctest.DocTestFinder(recurse=False).find(getattr(figures, name), name)[0]
    made: list[Figure] = []
    told: list[str] = []
    drawing, own = getattr(figures, name), folder / f"{name}_wrote"

    def kept(*args: Any, **options: Any) -> Any:
        result = drawing(*args, **options)
        if isinstance(result, Figure):
            made.append(result)
        return result

    library = tempfile.TemporaryDirectory

    def lasting(**options: Any) -> Any:  # the example's folder stays; the library's own are temporary
        return library(**options) if options else contextlib.nullcontext(str(own))

    with mock.patch.object(figures, name, kept), mock.patch.object(tempfile, "TemporaryDirectory", lasting):
        run = doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    if run.failed or not run.attempted:
        raise RuntimeError(f"the example of figures.{name} does not give what it says:\n{''.join(told)}")
    files = [path for figure in made for path in figures.save(figure, folder / name, ["png", "svg", "pdf"])]
    return files + sorted(own.glob("*"))


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    _cli.add_out(parser, "the figures")
    return parser


def compute(args: argparse.Namespace) -> dict:
    _cli.save(args.out, lambda: args.out.mkdir(parents=True, exist_ok=True))  # before an example fails for want of it
    names = [name for name in figures.__all__ if inspect.isfunction(getattr(figures, name))]  # and not the types
    drawn = {name: _cli.save(args.out, lambda name=name: draw(name, args.out)) for name in names}
    return {name: {str(path): path.stat().st_size for path in files} for name, files in drawn.items()}


def show(console: Console, r: dict) -> None:
    for name, files in r.items():
        for path, size in files.items():
            console.print(f"{name:10}{size / 1000:8.1f} kB  {path}", soft_wrap=True)


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
