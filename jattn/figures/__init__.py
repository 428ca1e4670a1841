"""Pictures: arrays in, a matplotlib Figure out. Nothing is computed here, and nothing in the library imports it.

A figure is made without pyplot, so no window opens and no state is shared: it shows itself in a notebook where
`%matplotlib inline` was said, and `save` writes it. Every function draws on an `ax` (or, where it needs several, a
`figure`) of yours instead where you give one. Needs the extra `figures`.
A number that must be finite must be at most 1e300 in size too, so that sums do not overflow.

On axes of 3.25 inches, a column of a paper, no text is below 6 points: names of ticks and numbers become smaller, then
fewer. Letters follow `matplotlib.rcParams`: `font.family`, and `font.size`, of which each text has a fixed share. So do
paper and pen, dark styles included (`axes.facecolor`, `text.color`): text stands out by 4.5 to 1. Files follow
`savefig.*`. What has a colour has a dash, a marker or a hatch too, but for the arrows of `path`, which begin at
one point; the sign of a score in `tiles` is told by colour alone, and is lost in greyscale.
"""

from jattn import _errors

try:
    import matplotlib  # noqa: F401
except ImportError:
    _errors.missing("figures", "matplotlib", "figures")

from jattn._picture_inputs import RunLike
from jattn.figures._effects import effects
from jattn.figures._plane import Background, Field, PlaneOptions, path
from jattn.figures._save import save
from jattn.figures._signed import conserved, why
from jattn.figures._tiles import blocks, tiles
from jattn.figures._time import animate, training
from jattn.figures._weights import arcs, heads, weights

__all__ = [
    "Background",
    "Field",
    "PlaneOptions",
    "RunLike",
    "animate",
    "arcs",
    "blocks",
    "conserved",
    "effects",
    "heads",
    "path",
    "save",
    "tiles",
    "training",
    "weights",
    "why",
]
