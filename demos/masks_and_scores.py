"""Every mask and every score on one sheet, and how many tiles of the square each mask visits.

128 queries and keys in tiles of 16 × 16. A tile without an allowed pair need not be visited, and one whose pairs are
all allowed needs no mask. Theory: the tiles that hold an allowed pair, counted in the dense picture. Measured: the
tiles that attention computed, counted by a score that counts as it is called. It writes the sheet as PNG.
"""

import argparse

import _cli
import jax
import jax.numpy as jnp
import numpy as np
from _block_states import by_the_mask, by_the_pairs, visited
from _sheet import LEARNED, TILE, N, draw, every_mask, every_score
from rich.console import Console

from jattn import figures, masks
from jattn.masks import EMPTY, FULL


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    _cli.add_out(parser, "the sheet")
    return parser


def compute(args: argparse.Namespace) -> dict:
    rows = []
    dense = jax.jit(lambda given: {code: masks.to_dense(mask, N, N) for code, mask in given.items()})(every_mask())
    for code, mask in every_mask().items():
        pairs = np.asarray(dense[code])
        states = by_the_pairs(pairs, TILE)
        rows.append({"mask": code, "pairs": pairs.mean(), "hold": int((states != EMPTY).sum()),
                     "visited": visited([mask], N, N, (TILE, TILE))[0], "whole": int((states == FULL).sum()),
                     "told": by_the_mask(mask, N, TILE), "dense": pairs})  # fmt: skip
    at = np.arange(N, dtype=np.int32)
    made = {
        code: jax.jit(jax.vmap(jax.vmap(f, (None, None, 0)), (None, 0, None)))(jnp.zeros(()), at, at)
        for code, f in every_score().items()
    }
    sheet = args.out / "masks_and_scores"
    files = _cli.save(args.out, lambda: figures.save(draw(rows, made), sheet, kinds=("png",)))
    kept = [{name: x for name, x in row.items() if name != "dense"} for row in rows]
    return {"masks": kept, "tiles": (N // TILE) ** 2, "scores": {code: x[0] for code, x in made.items()},
            "table": LEARNED, "pictures": files}  # fmt: skip


def show(console: Console, r: dict) -> None:
    _cli.title(console, f"{N} queries and keys, {r['tiles']} tiles of {TILE} × {TILE}")
    rows = [[m["mask"], f"{m['pairs']:.1%}", str(m["hold"]), str(m["visited"]),
             str(m["whole"]), str(int((np.array(m["told"]) == FULL).sum()))] for m in r["masks"]]  # fmt: skip
    heads = ["mask", "allowed\npairs", "tiles that\nhold one", "visited", "tiles that\nare whole", "not\nmasked"]
    console.print(_cli.table(heads, rows))
    fine = next(m for m in r["masks"] if m["mask"].startswith("dilated"))
    console.print(
        f"A sparse mask is not yet a fast one: dilated(4) allows {fine['pairs']:.0%} of the pairs and visits "
        f"{fine['visited']} of {r['tiles']} tiles. What counts is where the allowed pairs lie. A dense array is read "
        "once in each pass to find its tiles; as blocks(...) the same pairs need a table alone."
    )
    _cli.title(console, "What each score makes of 0, for the query at position 0 and keys 0, 1, 2, 8, 64")
    picked = [[code, *_cli.numbers([x[s] for s in (0, 1, 2, 8, 64)], 2)] for code, x in r["scores"].items()]
    console.print(_cli.table(["score", "0", "1", "2", "8", "64"], picked))
    console.print("\nThe sheet: " + ", ".join(r["pictures"]), soft_wrap=True)


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
