"""A text in pages with a few facts among filler, questions on one page each, and an indexer that learns which to read.

A token of the text is (cue, label, whether it is a fact, 1); a question is the cue of a fact, blurred, and asks its
label. Attention answers; the indexer scores pages g for each block b of questions:

    I_bg = ⟨mean_t x_t A_q, Σ_s σ(x_s · gate) x_s A_k⟩ / √DI,    t in block b, s on page g

It learns from the attention itself: KL(p_b ‖ softmax_g I_bg), p_bg the attention's mean mass on page g.
DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", section 2.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import jattn
from jattn import masks

PAGES, SIZE, FACTS = 32, 16, 4  # pages of SIZE tokens, of which FACTS are facts
BLOCKS, ASKS = 4, 16  # blocks of questions, ASKS each
CUE, LABELS, D, DI, BLUR, ALIKE = 24, 8, 24, 12, 0.5, 6.0
F = jnp.float32
WIDTH = CUE + LABELS + 2
SHAPES = {"W_Q": (WIDTH, D), "W_K": (WIDTH, D), "W_V": (WIDTH, LABELS), "W_O": (LABELS, LABELS)}
INDEXER = {"A_q": (WIDTH, DI), "A_k": (WIDTH, DI), "gate": (WIDTH,)}
PLACES = {
    "q_positions": np.arange(BLOCKS * ASKS, dtype=np.int32),
    "k_positions": np.arange(PAGES * SIZE, dtype=np.int32),
}
SECTIONS = np.cumsum([PAGES * SIZE, PAGES * FACTS, BLOCKS])
PAGE_OF = PLACES["k_positions"] // SIZE


class Text(NamedTuple):
    x: jax.Array
    """[PAGES · SIZE, WIDTH] its tokens."""
    asked: jax.Array
    """[BLOCKS · ASKS, WIDTH] the questions."""
    label: jax.Array
    """[BLOCKS · ASKS] their answers."""
    page: jax.Array
    """[BLOCKS] the page that each block of questions is on."""


def unit(x: jax.Array) -> jax.Array:
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def drawn(key: jax.Array) -> Text:
    """A text of which every token and every question is new; one fact in each FACTS-th of a page."""
    tokens, asks, part = PAGES * SIZE, BLOCKS * ASKS, SIZE // FACTS
    directions, lots = random.split(key)
    cue, blur = jnp.split(unit(random.normal(directions, (tokens + asks, CUE), F)), [tokens])
    lots = jnp.split(random.uniform(lots, (tokens + PAGES * FACTS + BLOCKS + asks,), F), SECTIONS)
    counts = LABELS, part, PAGES, FACTS
    label, place, page, which = ((n * x).astype(jnp.int32) for n, x in zip(counts, lots, strict=True))
    facts = part * jnp.arange(PAGES * FACTS, dtype=jnp.int32) + place
    is_fact = jnp.zeros((tokens, 1), F).at[facts].set(1)
    x = jnp.concatenate([cue, jax.nn.one_hot(label, LABELS, dtype=F), is_fact, jnp.ones_like(is_fact)], 1)
    at = facts[FACTS * jnp.repeat(page, ASKS) + which]
    asked = jnp.pad(cue[at] + BLUR * blur, ((0, 0), (0, LABELS + 2))).at[:, -1].set(1)
    return Text(x, asked, label[at], page)


def fresh(key: jax.Array) -> dict[str, jax.Array]:
    """Parameters before any training. W_K begins as W_Q: the head begins as a vague search for what is alike."""
    shapes = SHAPES | INDEXER
    keys = random.split(key, len(shapes))
    w = {n: random.normal(k, s, F) * s[0] ** -0.5 for k, (n, s) in zip(keys, shapes.items(), strict=True)}
    return w | {"W_Q": ALIKE * w["W_Q"], "W_K": ALIKE * w["W_Q"]}


def head(w: dict, text: Text, mask: masks.Mask) -> jax.Array:
    """[BLOCKS · ASKS, LABELS] what the head answers if it attends what the mask allows."""
    q, k, v = text.asked @ w["W_Q"], text.x @ w["W_K"], text.x @ w["W_V"]
    return jattn.attention(q, k, v, mask=mask, **PLACES) @ w["W_O"]


def mass(w: dict, text: Text, mask: masks.Mask) -> jax.Array:
    """[BLOCKS, PAGES] the share of the attention that each page has, of what the mask allows: a constant."""
    q, k = jax.lax.stop_gradient((text.asked @ w["W_Q"], text.x @ w["W_K"]))
    found = jattn.statistics(q, k, mask=mask, groups=PAGE_OF, num_groups=PAGES, **PLACES)
    return of_blocks(found.group_weights)


def of_blocks(x: jax.Array, size: int = ASKS) -> jax.Array:
    """The means of blocks of rows."""
    return x.reshape(-1, size, x.shape[1]).mean(1)


def index(w: dict, text: Text) -> tuple[jax.Array, jax.Array]:
    """The indexer's query of each block [BLOCKS, DI] and its key of each page [PAGES, DI]."""
    gate = jax.nn.sigmoid(text.x @ w["gate"])[:, None]
    return of_blocks(text.asked @ w["A_q"]), SIZE * of_blocks(gate * (text.x @ w["A_k"]), SIZE)


def reads(pages: jax.Array, everything: jax.Array) -> masks.Mask:
    """Each block of questions attends its pages [BLOCKS, n], or all pages where `everything` is true; both traced."""
    return masks.chosen_blocks(pages, SIZE, q_size=ASKS) | masks.prefix(
        jnp.where(everything, jnp.int32(PAGES * SIZE), 0)
    )


def losses(w: dict, text: Text, n: int, everything: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of the answers, and of the indexer. Unless it reads everything the head attends the indexer's n best pages alone,
    and the indexer learns from that.
    """
    q, k = index(w, text)
    pages, _ = jattn.top_keys(q, k, n)
    allowed = everything | (pages[:, :, None] == PAGE_OF[None, None, ::SIZE]).any(1)
    p, score = mass(w, text, reads(pages, everything)), jnp.where(allowed, q @ k.T / DI**0.5, -jnp.inf)
    divergence = jax.scipy.special.xlogy(p, p) - jnp.where(allowed, p * jax.nn.log_softmax(score), 0)
    answers = head(w, text, reads(pages, everything))
    return optax.softmax_cross_entropy_with_integer_labels(answers, text.label).mean(), divergence.sum(1).mean()


@partial(jax.jit, static_argnames=("n", "batch"))
def train(
    keys: jax.Array, everything: jax.Array, *, n: int, batch: int, rate: float
) -> tuple[dict[str, jax.Array], jax.Array]:
    """A reader from each key, trained on texts that are each seen once.

    Args:
      everything: [parts, steps] booleans, in which steps all pages are read.

    Returns:
      (parameters [readers, 1 + parts, ...] before any training and after each part, losses [readers, parts, 2] of the
      answers and of the indexer in the last step of each part).
    """
    adam = optax.adam(rate)

    def reader(key: jax.Array) -> tuple[dict, jax.Array]:
        def step(carry: tuple, x: tuple) -> tuple:
            (w, state), (key, everything) = carry, x
            texts = jax.vmap(drawn)(random.split(key, batch))

            def loss(w: dict) -> tuple:
                both = jnp.stack(jax.vmap(lambda text: losses(w, text, n, everything))(texts)).mean(1)
                return both.sum(), both

            slope, both = jax.grad(loss, has_aux=True)(w)
            with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic mixes floats and counts
                change, state = adam.update(slope, state)
            return (optax.apply_updates(w, change), state), both

        def part(carry: tuple, x: tuple) -> tuple:
            carry, both = jax.lax.scan(step, carry, x)
            return carry, (carry[0], both[-1])

        w = fresh(key)
        keys = random.split(random.fold_in(key, 1), everything.shape)
        _, (path, both) = jax.lax.scan(part, (w, adam.init(w)), (keys, everything))
        return jax.tree.map(lambda first, x: jnp.concatenate([first[None], x]), w, path), both

    return jax.lax.map(reader, keys)
