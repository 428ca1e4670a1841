"""Trees of tokens, as speculative decoding drafts them: a token sees itself and its ancestors."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._types import Array, ArrayLike, Bool, Integer
from jattn._values import show, value
from jattn.masks._algebra import Mask
from jattn.masks._counts import token_count
from jattn.masks._tiles import BlockState, Spans, TileAxis, block_state

EVERY = 2**31 - 1
"""More than any number of a token: a key that leaves after it is an ancestor of all."""


@value
class Tree(Mask):
    """See `tree`. Of each query its number in depth-first order; of each key the numbers that its subtree has."""

    number: Integer[Array, " T"]
    first: Integer[Array, " S"]
    after: Integer[Array, " S"]
    """One more than the last."""

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return (self.first <= self.number) & (self.number < self.after)

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        low, high = q.of(self.number, jnp.min), q.of(self.number, jnp.max)
        some = (k.of(self.first, jnp.min) <= high) & (low < k.of(self.after, jnp.max))
        return block_state(some, (k.of(self.first, jnp.max) <= low) & (high < k.of(self.after, jnp.min)))

    def validate(self, caller: str, T: int, S: int, placed: bool) -> None:
        if self.number.shape != (T,):
            remedy = f"Give each query its parent: T is {T} here."
            _errors.fail(ValueError, caller, "parents must have the shape [T]", remedy, parents=self.number)
        if self.first.shape != (S,):
            remedy = (
                f"Say how many keys come before those of the tree, and how many in all: tree(…, prefix=n, keys={S})."
            )
            got = {"keys": str(self.first.shape[0]), "S": str(S)}
            _errors.fail(ValueError, caller, "prefix + T, or keys, must be S", remedy, **got)

    def leaf_axes(self) -> list[str]:
        return ["q", "k", "k"]

    def padded(self, T: int, S: int) -> Mask:
        """Rows that pad: a query under every last token, a key without a subtree."""
        number, (first, after) = self.number, (self.first, self.after)
        number = jnp.pad(number, (0, T - number.shape[0]), mode="edge")
        more = (0, S - first.shape[0])
        return Tree(number, jnp.pad(first, more, constant_values=EVERY), jnp.pad(after, more))

    def __repr__(self) -> str:
        return f"tree({show(self.number)}, keys={self.first.shape[0]})"


@jax.jit
def intervals(parents: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The number of each node in depth-first order, and one more than the last number of its subtree.

    By doubling: after n rounds a node knows what lies within 2ⁿ − 1 steps of it, and its ancestor 2ⁿ steps above.
    """
    T = parents.shape[0]
    earlier = (parents >= 0) & (parents < jnp.arange(T, dtype=jnp.int32))
    parents = jnp.where(earlier, parents, T)  # row T: above all roots

    def one_more(x: jax.Array, last: int) -> jax.Array:
        return jnp.concatenate([x, jnp.full(1, last, jnp.int32)])

    def round_of(f: Any, start: jax.Array) -> jax.Array:
        def double(_: Any, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            found, above = x
            return f(found, above), above[above]

        return jax.lax.fori_loop(0, T.bit_length(), double, (start, one_more(parents, T)))[0]

    ones = one_more(jnp.ones(T, jnp.int32), 0)
    size = round_of(lambda n, above: (n + jnp.zeros_like(n).at[above].add(n)).at[T].set(0), ones)[:T]
    # Below its parent a node comes after the subtrees of its earlier siblings.
    order = jnp.argsort(parents, stable=True)
    before = jnp.cumsum(size[order], dtype=jnp.int32) - size[order]
    of_first = before[jnp.searchsorted(parents[order], parents[order])]
    siblings = jnp.zeros(T, jnp.int32).at[order].set(before - of_first)
    steps = one_more(siblings + (parents < T).astype(jnp.int32), 0)
    number = round_of(lambda n, above: n + n[above], steps)[:T]
    return number, number + size


@partial(jax.jit, static_argnums=2)
def _of_rows(parents: jax.Array, prefix: jax.Array, keys: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The leaves of `Tree`: every number lies below a key of the prefix, and none below one after the tree."""
    T = parents.shape[0]
    number, after = intervals(parents)
    s = jnp.arange(keys, dtype=jnp.int32)
    node = jnp.where(s >= prefix + T, T, s - prefix)  # the one after the last: none
    first, after = (jnp.append(x, jnp.int32(last))[node] for x, last in ((number, EVERY), (after, 0)))
    return number, jnp.where(s < prefix, 0, first), jnp.where(s < prefix, EVERY, after)


def tree(
    parents: Integer[ArrayLike, " T"] | Sequence[int], *, prefix: Integer[ArrayLike, ""] = 0, keys: int | None = None
) -> Mask:
    """A token attends itself and its ancestors in a tree: all drafts of speculative decoding in one call.

        query t may attend key s  ⟺  s is t, its parent, the parent of that, …  ⟺  first[s] ≤ number[t] < after[s]

    with the numbers of the tokens in depth-first order; first[s] to after[s] are those of the subtree of s.

    Args:
      parents: integers [T], the number of each token's parent, which precedes it; −1 for a root. Possibly traced.
      prefix: how many keys come before those of the tree, such as the tokens in a cache, attended by every query: a
        whole number or an integer scalar, possibly traced.
      keys: S, how many rows k has; prefix + T if None. Those after the tree are attended by none.

    Returns:
      A mask over the rows of the arrays, whatever the positions say: these may be the depths in the tree, which rotary
      embeddings and scores ask for. A number that is not that of an earlier token makes a root, as −1 does.

    Raises:
      TypeError: parents are not integers, prefix or keys not a whole number.
      ValueError: parents have not one axis, or one of a symbolic length; keys are fewer than prefix + T, or prefix is
        traced and `keys` is not given. That they belong to T queries and S keys is checked where the mask is used.

    Memory: three integers a token. Making them takes O(T log T) time and O(T) memory, traced or not.

    Source: Miao et al. 2023, "SpecInfer", the topology-aware causal mask of its section 4.2; Cai et al. 2024, "Medusa",
      tree attention.

    Example:
      >>> from jattn import masks
      >>> drafts = [-1, 0, 0, 1, 1, 2]  # two continuations of the first token, and continuations of these
      >>> print(masks.picture(masks.tree(drafts), 6))
      #·····
      ##····
      #·#···
      ##·#··
      ##··#·
      #·#··#

      After two tokens that are in a cache, and whose keys precede those of the drafts:

      >>> print(masks.picture(masks.tree(drafts[:4], prefix=2), 4, 6))
      ###···
      ####··
      ###·#·
      ####·#
    """
    remedy = "A parent is the number of a token: pass whole numbers, −1 for none."
    x = _errors.whole_numbers("tree", "parents", parents, remedy)
    _errors.rank("tree", 1, "[T]", "Map over a batch with jax.vmap.", parents=x)
    if not isinstance(x.shape[0], int):  # the rounds of doubling are counted by it
        remedy = "Export trees of one size; a batch may be symbolic."
        _errors.fail(ValueError, "tree", "T must be a number", remedy, parents=x)
    n = token_count("tree", "prefix", prefix, "rows of k")
    if keys is None:
        if not isinstance(n, int):
            remedy = "Give the number of rows of k: tree(parents, prefix=n, keys=k.shape[0])."
            _errors.fail(ValueError, "tree", "keys must be given where prefix is an array", remedy, keys="None")
        keys = n + x.shape[0]
    if isinstance(n, int) and _errors.count("tree", "keys", keys) < n + x.shape[0]:
        remedy = f"Every token has its key: give at least {n + x.shape[0]}, or leave keys out."
        _errors.fail(ValueError, "tree", "keys must be at least prefix + T", remedy, keys=str(keys), parents=x)
    return Tree(*_of_rows(x, _errors.array("tree", "prefix", n).astype(jnp.int32), _errors.count("tree", "keys", keys)))
