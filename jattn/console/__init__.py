"""Terminal text: arrays in, something that `rich` prints out; nothing here computes.

Each picture says the same in numbers as in colour, so it can be read without colour, in a file and at 80 columns.
"""

from jattn import _errors

try:
    import rich  # noqa: F401
except ImportError:
    _errors.missing("console", "rich", "console")

from jattn.console._grid import bars, heatmap, vectors
from jattn.console._progress import progress
from jattn.console._save import save
from jattn.console._views import arrows, conserved, ranked, sparklines, tiles, why

__all__ = [
    "arrows",
    "bars",
    "conserved",
    "heatmap",
    "progress",
    "ranked",
    "save",
    "sparklines",
    "tiles",
    "vectors",
    "why",
]
