"""Attention over a sequence that many devices hold in pieces, on JAX's own runtime.

Called inside `jax.shard_map` with the name of a mesh axis, like `jax.lax.psum`:

ring                keys and values go round; memory per device does not grow with their number
all_to_all          heads are exchanged for rows
gather              every device collects all keys and values
tree                one merge of partials, for decoding
ring_all_to_all     heads among some devices, a ring through the others

attention           any of them over global arrays, given a mesh and a spec
merge_statistics    what `jattn.statistics` says of the keys of all devices, from what it says of those of each
zigzag, unzigzag    the order of rows that balances causal work
plan                what each would send, hold and compute, and which to take; LINKS: how fast devices are connected

Partial attentions are a monoid: a ring is a fold over devices, with the masks, scores, sinks and derivatives of one.
"""

from jattn.sharding._blocks import SchemeOptions
from jattn.sharding._mesh import attention, unzigzag, zigzag
from jattn.sharding._plan import LINKS, Comparison, Cost, Link, plan
from jattn.sharding._schemes import Scheme, all_to_all, gather, ring, ring_all_to_all, tree
from jattn.sharding._statistics import merge_statistics

__all__ = [
    "LINKS",
    "Comparison",
    "Cost",
    "Link",
    "Scheme",
    "SchemeOptions",
    "all_to_all",
    "attention",
    "gather",
    "merge_statistics",
    "plan",
    "ring",
    "ring_all_to_all",
    "tree",
    "unzigzag",
    "zigzag",
]
