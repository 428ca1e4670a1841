"""Each head and the sense of a word: what the head attends, what a gradient says, what masking the head does.

The score of the word's last hidden state h is (h − m)·d / d·d, where m ± d are the means over sentences of the one
sense and of the other: +1 is the one, −1 the other. A share m of the attention of the word to its clue is taken away
by adding log(1 − m) to that logit; the rest of the row takes it over, as it does in any mask.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _bert import HEADS, LAYERS, Edit, encode, run
from _minilm import Read
from jaxtyping import ArrayLike

from jattn import heads, masks
from jattn.heads import BackwardLens

TAKEN = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0]


class Axis(NamedTuple):
    """From the midpoint of two senses to the first: the score of h is (h − middle)·toward / toward·toward."""

    middle: ArrayLike
    toward: ArrayLike

    def __call__(self, h: ArrayLike) -> ArrayLike:
        return (h - self.middle) @ self.toward / (self.toward @ self.toward)


def between(one: ArrayLike, other: ArrayLike) -> Axis:
    a, b = one.mean(0), other.mean(0)
    return Axis((a + b) / 2, (a - b) / 2)


@jax.jit
def encode_all(p: dict, ids: jax.Array, n: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Hidden states [B, T, C] and attention [B, L, H, T, T] of sentences, one after another."""
    return jax.lax.map(lambda x: encode(p, *x), (ids, n))


def left_out(one: np.ndarray, other: np.ndarray) -> list[np.ndarray]:
    """The score of each sentence by the axis of all the others, + meaning its own sense."""
    own = [between(np.delete(one, i, 0), other)(one[i]) for i in range(len(one))]
    return [np.array(own), -np.array([between(one, np.delete(other, i, 0))(other[i]) for i in range(len(other))])]


def score(p: dict, axis: Axis, ids: jax.Array, n: jax.Array, at: jax.Array, edit: Edit) -> tuple[jax.Array, jax.Array]:
    """The sense of the word at a place, and that word's attention [L, H, T]."""
    x, weights = encode(p, ids, n, edit)
    return axis(x[at]), weights[:, :, at]


@jax.jit
def effects(p: dict, axis: Axis, ids: jax.Array, n: jax.Array, at: jax.Array, clue: jax.Array) -> dict[str, jax.Array]:
    """What each change of the attention from the word at `at` to its clue (booleans [T]) does to the score."""
    every, none = jnp.zeros((len(ids), len(ids)), bool), jnp.zeros((LAYERS, HEADS), axis.middle.dtype)
    pairs, least = every.at[at].set(clue), jnp.finfo(none.dtype).eps
    of = lambda edit: score(p, axis, ids, n, at, edit)  # noqa: E731
    plain, row = of(Edit(pairs, none))
    attention = jnp.where(clue, row, 0).sum(-1)

    def left(share: jax.Array) -> jax.Array:
        """The score with such a share [L, H] of the attention to the clue left: w becomes share · w, by this bias."""
        rest = lambda w: jnp.log(jnp.maximum(1 - w, least))  # noqa: E731
        return of(Edit(pairs, jnp.log(share) + rest(attention) - rest(share * attention)))[0]

    found = heads.effects(left, jnp.ones_like(none), batch_size=12)
    shares = jnp.log1p(-jnp.array(TAKEN, none.dtype))
    return {
        "score": plain, "attention": attention, "estimate": found.first_order, "effect": found.knock_out,
        "masked": jax.lax.map(lambda b: of(Edit(pairs, none + b))[0], shares),
        "hidden": of(Edit(every.at[:].set(clue[None, :]), none - jnp.inf))[0],
    }  # fmt: skip


@jax.jit
def whole(p: dict, axis: Axis, ids: jax.Array, n: jax.Array, at: jax.Array) -> heads.Effects:
    """What taking each head away does to the score: all that it writes, not its attention to one word alone."""
    of = lambda gates: axis(run(p, ids, n, gates=gates)[0][at])  # noqa: E731
    return heads.effects(of, jnp.ones((LAYERS, HEADS), axis.middle.dtype), batch_size=12)


@jax.jit
def attended(p: dict, ids: jax.Array, n: jax.Array) -> heads.HeadScores:
    """What each head attends in a sentence: the scores of `heads.head_scores`, [L, H]."""
    _, seen = run(p, ids, n)
    return jax.vmap(lambda q, k: heads.head_scores(q, k, ids, mask=masks.lengths(q=n, k=n)))(seen.q, seen.k)


@partial(jax.jit, static_argnums=6)
def lens(p: dict, axis: Axis, ids: jax.Array, n: jax.Array, at: jax.Array, sign: jax.Array, many: int) -> BackwardLens:
    """What a step of gradient descent on each head's output matrix, toward a score of this sign, writes at the word."""
    w, bias = p["layers"]["o"]  # [L, C, H · D]

    def loss(w: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, seen = run({**p, "layers": {**p["layers"], "o": (w, bias)}}, ids, n)
        return -sign * axis(x[at]), seen.out[:, :, at][:, :, None]

    slope, out = jax.grad(loss, has_aux=True)(w)
    slope = slope.swapaxes(1, 2).reshape(LAYERS, HEADS, -1, w.shape[1])
    # One layer after another: their places share the words.
    return jax.lax.map(lambda x: heads.backward_lens(*x, p["words"].T, n=many), (out, slope))


@jax.jit
def without(p: dict, axis: Axis, ids: jax.Array, n: jax.Array, at: jax.Array) -> jax.Array:
    """The score [T] where the word at `at` cannot attend, in any head, to each token in turn."""
    away, every = jnp.full((LAYERS, HEADS), -jnp.inf, axis.middle.dtype), jnp.zeros((len(ids), len(ids)), bool)
    tokens = jnp.eye(len(ids), dtype=bool)
    return jax.lax.map(lambda t: score(p, axis, ids, n, at, Edit(every.at[at].set(t), away))[0], tokens)


def positional(weights: np.ndarray, reads: list[Read], offsets: np.ndarray) -> np.ndarray | None:
    """What each head attends at the same distance in other sentences: [places, L, H], from all words; None if too far.

    Args:
      weights: [B, L, H, T, T], of sentences without the word and its clue.
      offsets: where the clue's tokens stand, counted from the word.
    """
    places = []
    for w, read in zip(weights, reads, strict=True):
        for t in range(1, read.n - 1):
            s = t + offsets
            if s.min() >= 1 and s.max() < read.n - 1:  # words alone, not [CLS] and [SEP]
                places.append(w[:, :, t, s].sum(-1))
    return np.array(places) if places else None


def agreement(guess: np.ndarray, effect: np.ndarray) -> float | None:
    """The rank correlation over all heads; None where one side is constant."""
    rho = float(heads.agreement(guess, effect).rank_correlation)
    return None if np.isnan(rho) else rho
