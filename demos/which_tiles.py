"""Which tiles of queries and keys a mask visits, and what a score adds where they meet.

Each mask is asked about every tile at once; the answer is set beside the pairs that really meet. No tile that holds a
pair is left out, and a mask that never looks at a whole tile's pairs costs nothing there.
"""

import argparse

import _cli
import jax
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from jattn import console as terminal
from jattn import figures, masks
from jattn.masks import Mask, Spans

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


def verdicts(mask: Mask) -> np.ndarray:
    """Of each tile 0: no pair meets, 1: some may, 2: all do; as the mask itself answers beforehand."""
    first = np.arange(0, T, TILE, dtype=np.int32)
    q, k = (Spans.at(first, first + TILE - 1, axis) for axis in (0, 1))
    may, must = mask.verdict(q, k)
    return np.broadcast_to(np.where(must, 2, np.where(may, 1, 0)), (len(first),) * 2)


def compute(args: argparse.Namespace) -> dict:
    told = {}
    for name, mask in MASKS.items():
        pairs = np.asarray(jax.jit(masks.to_dense, static_argnums=(1, 2))(mask, T, T))
        tiles = pairs.reshape(T // TILE, TILE, T // TILE, TILE)
        seen = np.where(tiles.all((1, 3)), 2, np.where(tiles.any((1, 3)), 1, 0))
        told[name] = {"verdicts": verdicts(mask), "seen": seen, "pairs": pairs}
    files = _cli.save(args.out, lambda: figures.save(draw(told), args.out / "which_tiles"))
    told = {
        name: {"verdicts": x["verdicts"], "seen": x["seen"], "pairs": x["pairs"].mean()} for name, x in told.items()
    }
    return {"masks": told, "pictures": files}


def draw(told: dict) -> Figure:
    """The pairs of two masks below their tiles, and what ALiBi adds to those of the second."""
    figure = Figure(figsize=(15, 5.2), layout="constrained")
    both = list(told.items())[:2]
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
        console.print(f"{x['pairs']:.0%} of the pairs meet, {visited:.0%} of the tiles are visited, "
                      f"{wrong} tiles judged otherwise than their pairs are.")  # fmt: skip
    console.print("\nPictures: " + ", ".join(r["pictures"]), soft_wrap=True)


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
