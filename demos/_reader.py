"""A reader of one head: embeddings, W_Q, W_K, W_V from nothing, trained on what a word means in its sentence.

    z = u_word · attention(x_t W_Q, x W_K, x W_V),   loss = −log σ(±z),   x_s = E[word_s] + P[s]

One sentence, no batch; jax.vmap makes sentences, seeds and kinds of reader out of it.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from _corpus import BLANK, RELATIONS, Corpus, Sentences
from jax import random

import jattn
from jattn import masks

D = 16
KINDS = ["reader", "uniform", "positions"]


class Kind(NamedTuple):
    """What a reader is allowed."""

    scale: jax.Array
    """Of its logits: 1/√D, or 0 for a mean over the sentence."""
    blind: jax.Array
    """Whether every word but the query word is replaced by a blank: the reader sees positions alone."""


class Seen(NamedTuple):
    """What a reader does on some sentences."""

    loss: jax.Array
    right: jax.Array
    """[R] the share of sentences read rightly, for each of the four words."""
    on_clue: jax.Array
    """[R] the mean attention to the clues."""


def kinds() -> Kind:
    return Kind(jnp.array([D**-0.5, 0.0, D**-0.5]), jnp.array([False, False, True]))


def fresh(key: jax.Array, words: int, longest: int) -> dict[str, jax.Array]:
    """Parameters before any training: entries from N(0, 1/D), so that all attention is nearly uniform."""
    shapes = {"E": (words, D), "P": (longest, D), "W_Q": (D, D), "W_K": (D, D), "W_V": (D, D), "u": (len(RELATIONS), D)}
    keys = random.split(key, len(shapes))
    return {name: random.normal(k, s) * D**-0.5 for k, (name, s) in zip(keys, shapes.items(), strict=True)}


def project(w: dict, kind: Kind, s: Sentences) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The query [1, D] of the query word, the keys and the values [T, D]."""
    shown = jnp.where(kind.blind & (jnp.arange(len(s.ids), dtype=s.asks.dtype) != s.asks), BLANK, s.ids)
    x = w["E"][shown] + w["P"]
    return x[s.asks][None] @ w["W_Q"], x @ w["W_K"], x @ w["W_V"]


def read(w: dict, kind: Kind, s: Sentences) -> jax.Array:
    """z: above 0 means sense 1."""
    out = jattn.attention(*project(w, kind, s), mask=masks.lengths(k=s.n), scale=kind.scale)
    return out[0] @ w["u"][s.relation]


def look(w: dict, kind: Kind, s: Sentences, cut: jax.Array) -> tuple[jax.Array, jax.Array]:
    """z, and the attention [T] of the query word; with `cut` its clues are masked."""
    mask = masks.lengths(k=s.n) & masks.dense(~(s.clue & cut)[None])
    steps = jattn.explain(*project(w, kind, s), mask=mask, scale=kind.scale)
    return steps.out[0] @ w["u"][s.relation], steps.weights[0]


def loss(w: dict, kind: Kind, s: Sentences) -> jax.Array:
    z = jax.vmap(read, (None, None, 0))(w, kind, s)
    return optax.sigmoid_binary_cross_entropy(z, s.sense.astype(z.dtype)).mean()


def examine(w: dict, kind: Kind, s: Sentences, cut: bool = False) -> Seen:
    z, weights = jax.vmap(look, (None, None, 0, None))(w, kind, s, jnp.asarray(cut))
    mine = (s.relation[None] == jnp.arange(len(RELATIONS), dtype=s.relation.dtype)[:, None]).astype(z.dtype)
    each = lambda x: (mine @ x) / mine.sum(1)  # noqa: E731
    right = ((z > 0) == (s.sense == 1)).astype(z.dtype)
    losses = optax.sigmoid_binary_cross_entropy(z, s.sense.astype(z.dtype))
    return Seen(losses.mean(), each(right), each(jnp.where(s.clue, weights, 0).sum(1)))


def learn(
    key: jax.Array, kind: Kind, c: Corpus, words: int, steps: int, every: int, rate: jax.Array
) -> tuple[dict, dict]:
    """One reader's training, a single scan: its parameters, and what `observe` saw before every `every` steps."""
    adam = optax.adam(rate)

    def step(carry: tuple, _: None) -> tuple:
        w, state = carry
        slope = jax.grad(loss)(w, kind, c.train)
        with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic mixes floats and counts
            change, state = adam.update(slope, state)
        return (optax.apply_updates(w, change), state), None

    def observe(w: dict) -> dict:
        _, story = jax.vmap(look, (None, None, 0, None))(w, kind, c.story, jnp.asarray(False))
        return {"train": examine(w, kind, c.train).loss, "held": examine(w, kind, c.held), "story": story}

    def stretch(carry: tuple, _: None) -> tuple:
        return jax.lax.scan(step, carry, length=every)[0], observe(carry[0])

    w = fresh(key, words, c.train.ids.shape[1])
    (w, _), path = jax.lax.scan(stretch, (w, adam.init(w)), length=steps // every)
    return w, jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]]), path, observe(w))


def judge(w: dict, kind: Kind, c: Corpus) -> dict:
    """A trained reader on held-out sentences, on the same with the clues masked, and on sentences with unseen clues."""
    z, _ = jax.vmap(look, (None, None, 0, None))(w, kind, c.story, jnp.asarray(False))
    return {
        "train": examine(w, kind, c.train), "held": examine(w, kind, c.held), "cut": examine(w, kind, c.held, cut=True),
        "new": examine(w, kind, c.new), "story": jax.nn.sigmoid(-z),
    }  # fmt: skip


@partial(jax.jit, static_argnames=("words", "steps", "every"))
def train_all(keys: jax.Array, c: Corpus, rate: jax.Array, *, words: int, steps: int, every: int) -> tuple[dict, dict]:
    """(paths, verdicts) of every kind of reader from every key: leaves [kind, key, ...]."""

    def one(key: jax.Array, kind: Kind) -> tuple[dict, dict]:
        w, path = learn(key, kind, c, words, steps, every, rate)
        return path, judge(w, kind, c)

    return jax.vmap(jax.vmap(one, (0, None)), (None, 0))(keys, kinds())
