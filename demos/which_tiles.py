"""Which tiles of queries and keys a mask visits, and what a score modifier adds to the pairs in them.

The block state that each mask gives of every tile is set beside the pairs that the mask allows. No tile that holds an
allowed pair is left out, and in a tile that is allowed whole the mask costs nothing.
"""

import argparse

import _cli
import jax
import numpy as np
from _block_states import by_the_mask, by_the_pairs
from matplotlib.figure import Figure
from rich.console import Console

from jattn import console as terminal
from jattn import figures, masks

T, TILE, SLOPE = 96, 12, 0.125
MASKS = {
    "causal": masks.causal(),
    "causal, 30 tokens back": masks.causal() & masks.window(left=30),
    "within 20 tokens": masks.window(left=20, right=20),
    "causal, the first 40 keys alone": masks.causal() & masks.lengths(k=40),
}


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    _cli.add_out(parser, "the picture")
    return parser


def compute(args: argparse.Namespace) -> dict:
    states = {}
    for name, mask in MASKS.items():
        pairs = np.asarray(jax.jit(masks.to_dense, static_argnums=(1, 2))(mask, T, T))
        states[name] = {"verdicts": by_the_mask(mask, T, TILE), "seen": by_the_pairs(pairs, TILE), "pairs": pairs}
    files = _cli.save(args.out, lambda: figures.save(draw(states), args.out / "which_tiles"))
    shares = {name: x | {"pairs": x["pairs"].mean()} for name, x in states.items()}
    return {"masks": shares, "pictures": files}


def draw(states: dict) -> Figure:
    """The pairs of two masks below their tiles, and what ALiBi adds to those of the second."""
    figure = Figure(figsize=(15, 5.2), layout="constrained")
    both = list(states.items())[:2]
    distance = np.arange(T)[:, None] - np.arange(T)
    alibi = np.where(both[1][1]["pairs"], -SLOPE * distance, np.nan)
    shown = [(name, x, x["pairs"]) for name, x in both] + [(f"ALiBi of slope {SLOPE}", both[1][1], alibi)]
    for ax, (name, x, values) in zip(figure.subplots(1, 3), shown, strict=True):
        figures.tiles(
            x["verdicts"], values=values, shape=(TILE, TILE), ax=ax, title=f"{name}: tiles of {TILE} × {TILE}"
        )
    return figure


def show(console: Console, r: dict) -> None:
    for name, x in r["masks"].items():
        visited = np.mean(np.array(x["verdicts"]) > 0)
        console.print(terminal.tiles(x["verdicts"], title=f"\n{name}"))
        wrong = int((np.array(x["verdicts"]) != x["seen"]).sum())
        console.print(f"{x['pairs']:.0%} of the pairs are allowed, {visited:.0%} of the tiles are visited; "
                      f"the mask is wrong about {wrong} tiles.")  # fmt: skip
    console.print("\nPictures: " + ", ".join(r["pictures"]), soft_wrap=True)


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
