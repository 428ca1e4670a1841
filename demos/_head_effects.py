"""Each head and the sense of a word: what the head attends, what a gradient says, what masking the head does.

The score of the word's last hidden state h is (h − m)·d / d·d, where m ± d are the means over sentences of the one
sense and of the other: +1 is the one, −1 the other. A share m of the attention of the word to its clue is taken away
by adding log(1 − m) to that logit; the rest of the row takes it over, as it does in any mask.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _bert import HEADS, LAYERS, Edit, encode
from _minilm import Read
from jaxtyping import ArrayLike
from scipy.stats import spearmanr

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
    every = jnp.zeros((len(ids), len(ids)), bool)
    pairs, none = every.at[at].set(clue), jnp.zeros((LAYERS, HEADS), axis.middle.dtype)
    of = lambda edit: score(p, axis, ids, n, at, edit)[0]  # noqa: E731
    seen = lambda bias: score(p, axis, ids, n, at, Edit(pairs, bias))  # noqa: E731
    (plain, row), slope = jax.value_and_grad(seen, has_aux=True)(none)
    attention = jnp.where(clue, row, 0).sum(-1)
    one_head = jnp.eye(LAYERS * HEADS, dtype=bool).reshape(-1, LAYERS, HEADS)
    gone = jax.lax.map(lambda h: of(Edit(pairs, jnp.where(h, -jnp.inf, none))), one_head, batch_size=12)
    shares = jnp.log1p(-jnp.array(TAKEN, none.dtype))
    return {
        "score": plain, "attention": attention,
        # With the bias b at the clue's logit, weights w and a score S(w): dS/db = w_c (S_c − S̄). Taking w_c away and
        # sharing it out moves w by −w_c (1_c − w) / (1 − w_c), so that S moves by −dS/db / (1 − w_c) at first order.
        "estimate": -slope / jnp.maximum(1 - attention, jnp.finfo(none.dtype).eps),
        "effect": gone.reshape(LAYERS, HEADS) - plain,
        "masked": jax.lax.map(lambda b: of(Edit(pairs, none + b)), shares),
        "hidden": of(Edit(every.at[:].set(clue[None, :]), none - jnp.inf)),
    }  # fmt: skip


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
    """Spearman's rank correlation over all heads; None where one side is constant."""
    if np.ptp(guess) == 0 or np.ptp(effect) == 0:
        return None
    return float(spearmanr(guess, effect, axis=None).statistic)
