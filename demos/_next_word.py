"""A language model of two layers, trained to say the next word: attention of jattn.heads, an MLP, a norm before each.

    x ← x + multi_head(norm(x)),   x ← x + gelu(norm(x) mlp_in) mlp_out,   logits = norm(x) unembed

One sentence, no batch; jax.vmap does the rest. The same sentences as those of learns_from_text.py, and beside the model
a table of pairs: what comes after a word, whatever came before it.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from _corpus import Sentences
from jax import random

import jattn
from jattn import heads, masks

E, HEADS, LAYERS, MLP = 32, 2, 2, 64
Params = dict[str, Any]


class Seen(NamedTuple):
    """What a model makes of sentences, on average over the words that follow another."""

    loss: jax.Array
    right: jax.Array
    """The share of words that were held the most likely."""


def fresh(key: jax.Array, words: int, longest: int, dtype: Any) -> Params:
    """Parameters before any training, as `page.model` takes them."""
    keys = random.split(key, 3 + LAYERS)
    lecun = jax.nn.initializers.lecun_normal()

    def layer(key: jax.Array) -> Params:
        attend, into, out = random.split(key, 3)
        drawn = heads.init(attend, E, heads=HEADS, dtype=dtype)
        mlp = {"mlp_in": lecun(into, (E, MLP), dtype), "mlp_out": lecun(out, (MLP, E), dtype)}
        return drawn | mlp | {name: jnp.ones(E, dtype) for name in ("norm", "mlp_norm")}

    return {
        "embed": random.normal(keys[0], (words, E), dtype),
        "positions": random.normal(keys[1], (longest, E), dtype) / 2,
        "layers": [layer(key) for key in keys[3:]],
        "norm": jnp.ones(E, dtype),
        "unembed": lecun(keys[2], (E, words), dtype),
    }


def logits(w: Params, ids: jax.Array) -> jax.Array:
    """[T, V]: of each word, what may come next."""
    x = w["embed"][ids] + w["positions"][: len(ids)]
    for layer in w["layers"]:
        x = x + heads.multi_head(layer, heads.rms_norm(x, layer["norm"]), mask=masks.causal())
        x = x + jax.nn.gelu(heads.rms_norm(x, layer["mlp_norm"]) @ layer["mlp_in"]) @ layer["mlp_out"]
    return heads.rms_norm(x, w["norm"]) @ w["unembed"]


def has_next(text: Sentences) -> jax.Array:
    """[N, T − 1] booleans: whether another word follows, as none does the last."""
    return jnp.arange(1, text.ids.shape[1], dtype=text.n.dtype)[None] < text.n[:, None]


def seen(z: jax.Array, text: Sentences) -> Seen:
    """Of logits [N, T, V] of sentences."""
    follows, there = text.ids[:, 1:], has_next(text)
    log_p = jattn.log_softmax(z[:, :-1])
    of_next = jnp.take_along_axis(log_p, follows[..., None], -1)[..., 0]
    mean = lambda x: jnp.where(there, x, 0).sum() / there.sum().astype(z.dtype)  # noqa: E731
    return Seen(-mean(of_next), mean((z[:, :-1].argmax(-1) == follows).astype(z.dtype)))


def of_model(w: Params, text: Sentences) -> Seen:
    return seen(jax.vmap(logits, (None, 0))(w, text.ids), text)


def of_pairs(train: Sentences, text: Sentences, words: int) -> Seen:
    """What a table of pairs, counted in `train` with 0.1 for each that is not there, makes of `text`."""
    counts = (
        jnp.full((words, words), 0.1).at[train.ids[:, :-1], train.ids[:, 1:]].add(jnp.where(has_next(train), 1, 0.0))
    )
    return seen(jnp.log(counts)[text.ids], text)


@partial(jax.jit, static_argnames="steps")
def train(w: Params, text: Sentences, rate: float, *, steps: int) -> tuple[Params, jax.Array]:
    """AdamW, its rate falling to 0 along a cosine; the parameters and the loss before every step."""
    rule = optax.adamw(optax.cosine_decay_schedule(rate, steps), weight_decay=1.0)

    def step(carry: tuple, _: None) -> tuple:
        w, state = carry
        loss, slope = jax.value_and_grad(lambda w: of_model(w, text).loss)(w)
        with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic mixes floats and counts
            change, state = rule.update(slope, state, w)
        return (optax.apply_updates(w, change), state), loss

    (w, _), losses = jax.lax.scan(step, (w, rule.init(w)), length=steps)
    return w, losses
