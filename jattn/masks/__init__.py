"""Masks: *which* pairs of a query and a key are allowed.

A mask is a value. It asks about pairs, never about whole matrices: given some rows of q and some rows
of k it says which of their pairs are allowed, so nobody has to form T × S booleans. Masks compose with `&`, `|` and
`~`, pass through `jit`, `vmap` and `grad` as pytrees (their arrays are leaves), and print as the code
that made them.

Two kinds of question are asked. `causal`, `window`, `prefix`, `sinks`, `dilated`, `strided`, `chunked`,
`neighbourhood`, `blocks`, `chosen_blocks` and `where` look at *positions*: where a token stands in the sequence, which
the caller may state; a step of decoding, a part of a ring and a packed row differ in nothing else. `lengths`,
`segments`, `ragged`, `tree` and `dense` look at *rows*: where an entry lies in the arrays passed.

Of a rectangle of pairs a mask says its block state: EMPTY, PARTIAL or FULL, whether none, some or all of them are
allowed; `&`, `|`, `~` combine block states. A tile that is EMPTY is not visited, and one that is FULL is not masked,
whether the mask is written in the program or traced, and differs between the examples that vmap maps over.

    causal()  window(left, right)  prefix(n)  sinks(n)          in the order of the sequence
    chunked(size)  dilated(stride)  strided(stride, local)  blocks(table, size)
    neighbourhood(shape, radius, dilation)                      in an array of one to three axes
    chosen_blocks(indices, size)                                which blocks, named for each block of queries
    where(predicate)                                            any function of two positions
    segments(q_ids, k_ids)  ragged(starts, k_starts)  tree(parents)  lengths(q, k)  dense(array)
    full()  empty()

Documents that are packed into one row, each causal, are a composition:

    >>> import jax.numpy as jnp
    >>> from jattn import masks
    >>> def document_causal(ids):
    ...     return masks.segments(ids) & masks.causal()
    >>> print(masks.picture(document_causal(jnp.array([0, 0, 0, 1, 1])), 5))
    #····
    ##···
    ###··
    ···#·
    ···##
"""

from jattn.masks._algebra import Mask, Pattern
from jattn.masks._blocks import blocks, chunked
from jattn.masks._by_position import causal, empty, full, prefix, sinks, window
from jattn.masks._by_row import dense, lengths, ragged, segments
from jattn.masks._chosen import chosen_blocks
from jattn.masks._dense_form import picture, to_dense
from jattn.masks._neighbourhood import neighbourhood
from jattn.masks._strided import dilated, strided
from jattn.masks._tiles import EMPTY, FULL, PARTIAL, BlockState, Rows, Spans, TileAxis, block_state
from jattn.masks._tree import tree
from jattn.masks._where import where

__all__ = [
    "EMPTY",
    "FULL",
    "PARTIAL",
    "BlockState",
    "Mask",
    "Pattern",
    "Rows",
    "Spans",
    "TileAxis",
    "block_state",
    "blocks",
    "causal",
    "chosen_blocks",
    "chunked",
    "dense",
    "dilated",
    "empty",
    "full",
    "lengths",
    "neighbourhood",
    "picture",
    "prefix",
    "ragged",
    "segments",
    "sinks",
    "strided",
    "to_dense",
    "tree",
    "where",
    "window",
]
