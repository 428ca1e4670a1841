"""What the walkthroughs share: arguments in, one dict of numbers, then a page of text or JSON.

A walkthrough is three functions. `arguments()` returns a parser, `compute(args)` a dict of every number that
the page shows, `show(console, results)` writes the page and computes nothing. Its last line is `run(...)`.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

Made = TypeVar("Made")


class BadInput(Exception):  # noqa: N818 - an error of the user, not of the script
    """Input that cannot be used: `<what is wrong, naming the thing>. <remedy>`, on one line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(self.prog, BadInput(f"{message}. Run it with --help for what it takes."))


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser that describes the script by its docstring, with the flag that every walkthrough has."""
    made = _Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="print the same numbers as JSON")
    return made


def add_seed(parser: argparse.ArgumentParser, of: str, default: int = 42) -> None:
    def seed(text: str) -> int:
        if not text.isdecimal() or int(text.lstrip("0")[:11] or 0) >= 2**32:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2³² − 1")
        return int(text)

    parser.add_argument("--seed", type=seed, default=default, help=f"of {of} (default: {default})")


def add_out(parser: argparse.ArgumentParser, of: str) -> None:
    def folder(text: str) -> Path:
        check_folder(out := Path(text), "--out")
        return out

    parser.add_argument("--out", type=folder, default="out", help=f"folder of {of} (default: out)")


def check_folder(out: Path, flag: str) -> None:
    """Refuses what can never be a folder; called before a long computation."""
    try:
        taken = any(path.exists() and not path.is_dir() for path in (out, *out.absolute().parents))
    except OSError as error:  # a name too long, or a folder that may not be looked into
        raise BadInput(f"{flag} {out}: {error.strerror}. Name a folder.") from error
    if taken:
        raise BadInput(f"{flag} {out}: is a file, or lies below one. Name a folder.")


def save(out: Path, write: Callable[[], Made], what: str = "folder that can be written to") -> Made:
    """What `write()` returns; an OSError, as of a full disk, becomes bad input that names --out."""
    try:
        return write()
    except OSError as error:
        why = error.strerror or "a folder has the name of a file to write"  # jattn's own refusal, not the system's
        raise BadInput(f"--out {out}: {why}. Name a {what}.") from error


def console() -> Console:
    """Where the page is written: 80 columns, up to 100 on a wider terminal; colour only on a terminal."""
    seen = Console()
    width = min(max(seen.width, 80), 100) if seen.is_terminal else 80
    return Console(width=width, highlight=False, markup=False, emoji=False)


def progress() -> Progress:
    """A bar on the terminal, which goes when it is done; elsewhere nothing."""
    paper = Console(stderr=True)
    paper.quiet = not sys.stderr.isatty()  # rich before 14.3 ends a bar that is disabled with an empty line
    return Progress(console=paper, transient=True, disable=paper.quiet)


def plain(x: Any) -> Any:
    """`x` as JSON can hold it: arrays become nested lists, named tuples dicts, paths and the keys of dicts strings."""
    if hasattr(x, "_asdict"):
        return plain(x._asdict())
    if isinstance(x, dict):
        return {str(name): plain(y) for name, y in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(y) for y in x]
    if isinstance(x, Path):
        return str(x)
    return np.asarray(x).tolist() if isinstance(x, (np.ndarray, np.generic, jax.Array)) else x


def evaluate(compute: Callable[[argparse.Namespace], dict], args: argparse.Namespace) -> dict:
    """The numbers of a walkthrough, computed in float64."""
    with jax.enable_x64(True):
        return plain(compute(args))


def run(
    arguments: argparse.ArgumentParser,
    compute: Callable[[argparse.Namespace], dict],
    show: Callable[[Console, dict], None],
) -> None:
    """Parses, computes everything, and only then writes it, in one piece; bad input is one line and status 2."""
    try:
        try:
            args = arguments.parse_args()
            results = evaluate(compute, args)
        except BadInput as wrong:
            refuse(arguments.prog, wrong)
        if args.json:
            page = json.dumps(results, indent=1, allow_nan=False) + "\n"
        else:
            paper = console()
            with paper.capture() as captured:
                show(paper, results)
            page = captured.get()
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # an ASCII terminal shows ? for √
        sys.stdout.write(page)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refuse(prog: str, wrong: BadInput) -> NoReturn:
    """Says what is wrong, on one line of standard error."""
    line = " ".join(str(wrong).split())
    print(f"{prog}: {line}", file=sys.stderr)
    raise SystemExit(2)


def title(paper: Console, text: str, note: str = "") -> None:
    """A heading, with an empty line above it and perhaps a sentence below."""
    paper.print()
    paper.print(Text(text, style="bold"))
    if note:
        paper.print(note)


def table(heads: list[str], rows: list[list[str]], left: int = 1) -> Table:
    """A table of text, its first `left` columns flush left and the others, which are numbers, flush right.

    A heading may be broken over lines, at a line feed; a cell never is. Where there is no room for all of it, long text
    is cut, and no number.
    """
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for i, head in enumerate(heads):
        made.add_column(head, justify="left" if i < left else "right", no_wrap=i >= left, vertical="bottom")
    for row in rows:
        made.add_row(*(Text(x, no_wrap=True, overflow="ellipsis") if i < left else x for i, x in enumerate(row)))
    return made


def numbers(x: Any, digits: int = 3) -> list[str]:
    """Cells of a table."""
    return [f"{round(float(n), digits) + 0.0:.{digits}f}" for n in x]  # + 0.0: no −0.000


def vector(x: Any, digits: int = 3) -> str:
    """A vector on one line."""
    return f"[{', '.join(numbers(x, digits))}]"
