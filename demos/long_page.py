"""Attention over thousands of tokens on one page: blocks from the whole down to 16 tokens, and chosen rows, exact.

An induction head reads a text that begins again after half of its length: each token attends to what followed the same
token before. What the page shows is computed from lse, a block of rows at a time: there is never an array of T × T.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import _cli
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import jattn
from jattn import figures, masks, page
from jattn.masks import Spans

D, SHARP, CHUNK, MOST = 32, 24.0, 32, 256
MASK = masks.causal()


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--tokens", type=int, default=4096, help="a multiple of 512, up to 65536 (default: 4096)")
    _cli.add_seed(parser, "the text")
    _cli.add_out(parser, "the page")
    return parser


def head(T: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k, v of a head that looks for the token after the same token, in a text that begins again after T/2."""
    rng = np.random.default_rng(seed)
    words = rng.standard_normal((T // 2, D)).astype(np.float32)
    text = np.tile(words / np.linalg.norm(words, axis=1, keepdims=True), (2, 1))
    before = np.roll(text, 1, axis=0)
    before[0] = 0
    return SHARP * text, before, text


@partial(jax.jit, static_argnames=("n",))
def of_blocks(q: jax.Array, k: jax.Array, lse: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """Of n × n blocks of T/n tokens: the mean mass and the largest weight, a few rows [c, T] of weights at a time."""
    T = len(q)
    c = min(T // n, CHUNK)

    def some(start: jax.Array) -> tuple[jax.Array, jax.Array]:
        w = jattn.weights_of(q, k, lse, start + jnp.arange(c, dtype=jnp.int32), mask=MASK, scale=1.0)
        w = w.reshape(c, n, T // n)
        return w.sum(2).mean(0), w.max((0, 2))

    mass, largest = jax.lax.map(some, c * jnp.arange(T // c, dtype=jnp.int32))
    return mass.reshape(n, -1, n).mean(1), largest.reshape(n, -1, n).max(1)


def compute(args: argparse.Namespace) -> dict:
    T = args.tokens
    if not 512 <= T <= 65536 or T % 512:
        raise _cli.BadInput(f"--tokens {T}: must be a multiple of 512 up to 65536. Leave it out for 4096.")
    q, k, v = map(jnp.asarray, head(T, args.seed))
    n = MOST if T >= 4096 else T // 16
    begun = time.monotonic()
    _, lse = jax.jit(partial(jattn.attention, mask=MASK, scale=1.0, return_lse=True))(q, k, v)
    program = of_blocks.lower(q, k, lse, n).compile()
    mass, largest = map(np.asarray, program(q, k, lse))
    seconds = time.monotonic() - begun
    chosen = sorted({T // 8, T // 2, T // 2 + 1, 5 * T // 8, 3 * T // 4, T - 1})
    rows = np.asarray(jattn.weights_of(q, k, lse, jnp.array(chosen, jnp.int32), mask=MASK, scale=1.0))
    first = np.arange(0, T, T // n, dtype=np.int32)
    spans = (Spans.at(first, first + T // n - 1, axis) for axis in (0, 1))
    states = np.broadcast_to(MASK.block_state(*spans), (n, n))
    part = page.blocks(mass, largest, T=T, S=T, rows=dict(zip(chosen, rows, strict=True)), states=states)
    back = np.array([w[t - T // 2 + 1] if t >= T // 2 else 0.0 for t, w in zip(chosen, rows, strict=True)])
    told = page.story(part, story(T, chosen, back, rows[0].max()), title="What is to be seen")
    note = "An induction head over a text that begins again after half of its length."

    def write() -> tuple[Path, list[Path]]:
        file = page.write(args.out / "long.html", f"Attention over {T:,} tokens", told, note=note)
        drawn = figures.blocks(
            mass, T=T, S=T, states=states, title=f"{T:,} tokens; from the middle on, what came before"
        )
        return file, figures.save(drawn, args.out / "long")

    file, pictures = _cli.save(args.out, write)
    return {"page": file, "pictures": pictures, "bytes": file.stat().st_size, "tokens": T, "blocks": n,
            "chosen": chosen, "back": back, "memory": program.memory_analysis().temp_size_in_bytes,
            "all": 4 * T * T, "seconds": seconds,
            "mass": mass.sum(1), "states": np.bincount(states.ravel(), minlength=3)}  # fmt: skip


def story(T: int, rows: list[int], back: np.ndarray, most: float) -> list[page.Step]:
    again = f"""The text begins again at token {T // 2:,}. From there on the head attends to what followed the same
        token before, {T // 2 - 1:,} tokens back: the slanting line. Query {rows[-1]:,} gives that key
        {back[-1]:.1%} of its weight."""
    exact = f"""{len(rows)} rows of {T:,} are kept exact: all would be {T * T:,} weights. Query {rows[0]:,} stands in
        the first half, where its token has not come before: it attends keys that happen to be a little alike, one of
        them with {most:.1%} of its weight."""
    one = page.Step("The same text again", " ".join(again.split()), "blocks", row=rows[-1],
                    try_="Click on the line, then press + : the picture goes down to single blocks.")  # fmt: skip
    two = page.Step("Rows that are exact", " ".join(exact.split()), "row", row=rows[0],
                    try_=f"Type {rows[-2]:,} as the query.".replace(",", ""))  # fmt: skip
    return [one, two]


def show(console: Console, r: dict) -> None:
    T, n = r["tokens"], r["blocks"]
    _cli.title(console, f"Attention of {T:,} tokens to {T:,}, in {n} × {n} blocks of {T // n}")
    heads = ["tokens", "memory of the blocks", "T × T in float32", "seconds", "page"]
    row = [
        f"{T:,}",
        f"{r['memory'] / 1e6:.1f} MB",
        f"{r['all'] / 1e6:,.0f} MB",
        f"{r['seconds']:.1f}",
        f"{r['bytes'] / 1e6:.2f} MB",
    ]
    console.print(_cli.table(heads, [row], left=0))
    empty, partial_, full = r["states"]
    console.print(f"Of the blocks the causal mask leaves {empty:,} EMPTY, {partial_:,} PARTIAL and {full:,} FULL.")
    for t, w in zip(r["chosen"], r["back"], strict=True):
        where = f"token {t - T // 2 + 1:,} gets {w:.3f} of it" if t >= T // 2 else "its token has not come before"
        console.print(f"Row {t:>6,}, exact on the page: {where}.")
    console.print(f"Page: {r['page']}\nPictures: {', '.join(r['pictures'])}", soft_wrap=True)


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
