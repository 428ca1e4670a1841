"""jattn: attention as pure functions in JAX.

attention               one head: [T, D] × [S, D] × [S, Dv] → [T, Dv]; map it with jax.vmap
dot_product_attention   batch and heads, under the signature of jax.nn
ragged_attention        sequences of any lengths one after another, without padding
explain                 every intermediate: scores → scaled → weights → out
weights_of              chosen rows of the weights, recomputed from lse
statistics, top_keys    what is measured of each query: entropy, maximum, …; its best keys
merge                   the monoid of partial attentions (out, lse)
softmax, log_softmax    with derivatives that keep the tail of a saturated row
cache                   keys and values from step to step: contiguous, ring, paged; in bytes too
flow                    the gradient: closed forms, paths of optimisers, what they obey
heads                   tokens in, tokens out: multi-head, grouped, latent
positions               where a token stands: rotary and its scalings, sinusoidal
masks                   which pairs of a query and a key are allowed
scores                  what a score becomes before the softmax
sharding                many devices: ring, all-to-all, gather, tree inside jax.shard_map
reference               the definition, dense, on one page
lab                     published results as functions of a seed, each with its oracle
figures, console, page  what a head does: a matplotlib figure, terminal text, one HTML file
hosts                   this attention in the layers of Flax, Equinox, Haiku and transformers
implementations         how each attention in a program runs on a platform: as a kernel, or as loops and why
CHECKPOINT_NAMES        what a policy of jax.checkpoint saves, so that a gradient does not attend again
"""

import importlib
from typing import TYPE_CHECKING, Any

from jattn import masks, reference, scores
from jattn._softmax import log_softmax, softmax
from jattn.engine.forward import CHECKPOINT_NAMES
from jattn.many_heads import DotProductAttentionOptions, dot_product_attention
from jattn.one_head import AttentionOptions, SharedOptions, attention, explain, weights_of
from jattn.partials import merge
from jattn.per_query import statistics, top_keys
from jattn.ragged import RaggedAttentionOptions, ragged_attention
from jattn.reference import Statistics, Steps

if TYPE_CHECKING:
    from jattn import cache, flow, heads, positions, sharding
    from jattn import console as console
    from jattn import figures as figures
    from jattn import hosts as hosts
    from jattn import lab as lab
    from jattn import page as page
    from jattn.engine.kernels.report import Implementation, implementations

__version__ = "0.1.0"

__all__ = [
    "CHECKPOINT_NAMES",
    "AttentionOptions",
    "DotProductAttentionOptions",
    "Implementation",
    "RaggedAttentionOptions",
    "SharedOptions",
    "Statistics",
    "Steps",
    "attention",
    "cache",
    "dot_product_attention",
    "explain",
    "flow",
    "heads",
    "implementations",
    "log_softmax",
    "masks",
    "merge",
    "positions",
    "ragged_attention",
    "reference",
    "scores",
    "sharding",
    "softmax",
    "statistics",
    "top_keys",
    "weights_of",
]

_ON_FIRST_USE = frozenset({"cache", "flow", "heads", "hosts", "lab", "page", "positions", "sharding"})
"""What `attention` does not need; nor, where nothing runs as a kernel, what knows kernels."""
_WITH_EXTRAS = frozenset({"console", "figures"})
"""The same, where rich and matplotlib are installed."""
_OF_KERNELS = frozenset({"Implementation", "implementations"})
"""The same, of one module."""


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE | _WITH_EXTRAS:
        return importlib.import_module(f"jattn.{name}")
    if name in _OF_KERNELS:
        found = globals()[name] = getattr(importlib.import_module("jattn.engine.kernels.report"), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ON_FIRST_USE})
