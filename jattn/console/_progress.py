"""A bar for what takes long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress(title: str, *, console: Console | None = None) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for as long as the context lasts.

    Args:
      title: what is under way.
      console: where to draw; standard error if None, so that a page on standard output stays whole.

    Returns:
      A context whose value is on_progress(done, total), as `jattn.flow.run_in_parts` calls it. It is drawn on a
      terminal alone: in a file there is one line at the end.

    Memory: that of its line.

    Source: the progress bar of rich.

    Example:
      >>> from rich.console import Console
      >>> from jattn.console import progress
      >>> with progress("river", console=Console(width=60)) as on_progress:
      ...     on_progress(4, 4)
      river ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 100% 0:00:00
    """
    with Progress(console=console or Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
