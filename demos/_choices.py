"""Ways to choose n pages for each block of questions, and what attention is worth that reads the chosen ones alone."""

from functools import partial

import jax
import jax.numpy as jnp
from _indexer import (
    ASKS,
    BLOCKS,
    DI,
    LABELS,
    PAGES,
    SIZE,
    WIDTH,
    D,
    F,
    Text,
    drawn,
    head,
    index,
    mass,
    of_blocks,
    reads,
)
from jax import random

import jattn

ALL, LEARNED, MEANS, ATTENDED, LAST, RANDOM = CHOICES = [
    "all pages", "learned indexer", "mean of the keys (MoBA)", "most attended, of all", "last pages", "random pages",
]  # fmt: skip
TESTED = 32


def choose(w: dict, text: Text, n: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[CHOICES, BLOCKS, n] pages (all pages stand for the first n), and the mass [BLOCKS, PAGES] of all attention."""
    last = jnp.broadcast_to(jnp.arange(PAGES, dtype=jnp.int32), (BLOCKS, PAGES))
    p = mass(w, text, reads(last, jnp.asarray(True)))
    learned, _ = jattn.top_keys(*index(w, text), n)
    means, _ = jattn.top_keys(of_blocks(text.asked @ w["W_Q"]), of_blocks(text.x @ w["W_K"], SIZE), n)
    lot = random.uniform(key, (BLOCKS, PAGES), F)
    best = [jax.lax.top_k(x, n)[1].astype(jnp.int32) for x in (p, lot)]
    return jnp.stack([last[:, :n], learned, means, best[0], last[:, -n:], best[1]]), p


@partial(jax.jit, static_argnames="n")
def judge(w: dict, key: jax.Array, n: int) -> dict[str, jax.Array]:
    """What parameters do on TESTED new texts, by choice; and the pages chosen in the first."""
    everything = jnp.arange(len(CHOICES)) == 0

    def one(key: jax.Array) -> dict[str, jax.Array]:
        text = drawn(key)
        pages, p = choose(w, text, n, random.fold_in(key, 1))

        def right(x: tuple) -> jax.Array:
            return (head(w, text, reads(*x)).argmax(1).astype(jnp.int32) == text.label).mean(dtype=F)

        found = (pages == text.page[None, :, None]).any(2).mean(1, dtype=F)
        held = jnp.take_along_axis(p[None], pages, 2).sum(2).mean(1)
        share = {"right": jax.lax.map(right, (pages, everything))}
        return (
            share | {at: jnp.where(everything, 1, x) for at, x in (("found", found), ("held", held))} | {"pages": pages}
        )

    each = jax.lax.map(one, random.split(key, TESTED))
    return {name: x[0] if name == "pages" else x.mean(0) for name, x in each.items()}


def work(n: int) -> dict[str, int]:
    """Multiplications of one text: q·k and the weighted sum over all pages and over those chosen, and the indexer's."""
    keys, token = PAGES * SIZE, D + LABELS
    return {
        "all": BLOCKS * ASKS * keys * token, "chosen": BLOCKS * ASKS * n * SIZE * token,
        "scores": BLOCKS * PAGES * DI, "vectors": BLOCKS * ASKS * WIDTH * DI + keys * (WIDTH * (DI + 1) + DI),
        "qkv": BLOCKS * ASKS * WIDTH * D + keys * WIDTH * token,
    }  # fmt: skip
