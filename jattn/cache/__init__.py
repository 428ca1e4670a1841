"""Cache: keys and values that stay from step to step, for a batch of rows of different lengths.

A cache is a frozen pytree. `append` gives a new one that also holds the new tokens, `attention` attends over
them:

    contiguous   one buffer a row, until it is full
    ring         one buffer a row that is written around and around: what a window still sees
    paged        pages that rows take as they grow, share and give back
    cascade      rows with one common prefix, which is read once, through `merge`

Every token carries its position, so that masks and scores are right wherever it lies in the buffer. Buffers are heads
major, [B, Hkv, S, D], the order in which a matrix product reads them without a transpose. With `dtype=jnp.int8` each
of them keeps bytes and one scale per head and token (`quantised` says how far that may be off); a gradient reaches k
and v through these scales alone, since rounding has none. Under `jax.jit` with `donate_argnums` for the cache,
appending writes in place.
"""

from jattn.cache._append import append, free, next_positions
from jattn.cache._attention import CacheAttentionOptions, attention, cascade
from jattn.cache._buffers import Contiguous, Ring, contiguous, ring
from jattn.cache._pages import Paged, paged, share
from jattn.cache._store import Cache, Store, quantised

__all__ = [
    "Cache",
    "CacheAttentionOptions",
    "Contiguous",
    "Paged",
    "Ring",
    "Store",
    "append",
    "attention",
    "cascade",
    "contiguous",
    "free",
    "next_positions",
    "paged",
    "quantised",
    "ring",
    "share",
]
