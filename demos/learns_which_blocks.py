"""An indexer that learns which blocks to read: attention over 2 pages of 32, chosen for each block of questions.

A text has a few facts among much filler, and a question can be answered from one page alone, far from it. One head
learns to answer with all pages in sight; a light indexer (one short vector a page) learns beside it, from the
attention's own mass on each page. Then attention reads only the pages with the best scores, masks.chosen_blocks, and
both go on learning from these alone. Beside it, at equal work: pages chosen by the mean of the attention's keys, by the
attention itself (which had to read all), the last pages, and random ones.
DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", section 2; Lu et al. 2025, "MoBA"; Yuan et al. 2025, "Native sparse attention".
"""

import argparse

import _cli
import jax
import jax.numpy as jnp
import numpy as np
from _block_states import visited
from _choices import ALL, CHOICES, judge, work
from _indexer import ASKS, BLOCKS, FACTS, LABELS, PAGES, SIZE, reads, train
from jax import random
from rich.console import Console

PARTS, BATCH, RATE = 4, 8, 0.02  # parts of the training with all pages; after them one with the chosen


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--steps", type=int, default=50, help=f"a part of {PARTS + 1}, 1 to 5000 (default: 50)")
    parser.add_argument("--pages", type=int, default=2, help=f"how many are read, 1 to {PAGES} (default: 2)")
    parser.add_argument("--readers", type=int, default=3, help="trained, 1 to 16 (default: 3)")
    _cli.add_seed(parser, "the texts and the readers", default=0)
    return parser


def compute(args: argparse.Namespace) -> dict:
    for name, high in (("steps", 5000), ("pages", PAGES), ("readers", 16)):
        if not 1 <= getattr(args, name) <= high:
            raise _cli.BadInput(f"--{name} {getattr(args, name)}: must be from 1 to {high}. Leave it out.")
    n, (begin, test) = args.pages, random.split(random.key(args.seed))
    everything = jnp.broadcast_to(jnp.arange(PARTS + 1)[:, None] < PARTS, (PARTS + 1, args.steps))
    w, losses = train(random.split(begin, args.readers), everything, n=n, batch=BATCH, rate=RATE)
    looks = [[judge(jax.tree.map(lambda x, i=i, look=look: x[i, look], w), random.fold_in(test, i), n)
              for look in range(PARTS + 2)] for i in range(args.readers)]  # fmt: skip
    given = [reads(pages, jnp.asarray(i == 0)) for i, pages in enumerate(looks[0][PARTS]["pages"])]
    tiles = dict(zip(CHOICES, visited(given, BLOCKS * ASKS, PAGES * SIZE, (ASKS, SIZE)), strict=True))
    judged = {name: np.array([[x[name] for x in of] for of in looks]) for name in ("right", "found", "held")}
    return {
        "steps": args.steps,
        "pages": n,
        "choices": CHOICES,
        "losses": losses,
        "tiles": tiles,
        "work": work(n),
    } | judged


def show(console: Console, r: dict) -> None:
    n, right, found, held = r["pages"], *(np.array(r[name]) for name in ("right", "found", "held"))
    percent = lambda x: f"{100 * np.mean(x):.1f}"  # noqa: E731

    def table(look: int) -> None:
        rows = []
        for i, name in enumerate(CHOICES):
            each = 100 * right[:, look, i]
            rows.append([name, percent(right[:, look, i]), f"{each.min():.0f} to {each.max():.0f}",
                         percent(found[:, look, i]), percent(held[:, look, i]), str(r["tiles"][name])])  # fmt: skip
        heads = [
            "attention reads",
            "right,\n%",
            "over\nreaders",
            "page\nfound, %",
            "attention\nheld, %",
            "tiles\nvisited",
        ]
        console.print(_cli.table(heads, rows))

    _cli.title(console, f"1. {PAGES} pages of {SIZE} tokens, {FACTS} facts each; {BLOCKS} blocks of {ASKS} questions; "
                        f"{n} pages read")  # fmt: skip
    table(PARTS)
    chance, full = n / PAGES, right[:, PARTS, 0].mean()
    console.print(
        f"Theory for last and random pages: found {chance:.1%}, right {chance * full + (1 - chance) / LABELS:.1%}. "
        f'"Attention held" is the share of the attention to all pages that the chosen ones have.'
    )
    _cli.title(console, f"2. While they learn, every {r['steps']} steps: %, mean of {len(right)} readers")
    looks = range(PARTS + 1)
    rows = [["right, " + ALL, *(percent(right[:, i, 0]) for i in looks)],
            ["page found by the indexer", *(percent(found[:, i, 1]) for i in looks)],
            ["page found by the mean of the keys", *(percent(found[:, i, 2]) for i in looks)]]  # fmt: skip
    console.print(_cli.table(["steps", *(str(i * r["steps"]) for i in looks)], rows))
    _cli.title(console, f"3. After {r['steps']} more steps, in which attention read the chosen pages alone")
    table(PARTS + 1)
    _cli.title(console, "4. Work, in multiplications for each text")
    w = r["work"]
    console.print(
        f"Attention to all pages {w['all']:,}, to {n} pages {w['chosen']:,}: {w['chosen'] / w['all']:.1%}. The "
        f"indexer's scores of pages {w['scores']:,}; its vectors {w['vectors']:,}, beside {w['qkv']:,} for q, k and v: "
        "made once a token, however many questions come."
    )


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
