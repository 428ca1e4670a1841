"""Why "bank" attends to "river", number by number, and what gradient descent then does to q_bank.

1. The toy: dot products, scale, exponentials, sum, weights, weighted sum, output projection.
2. The financial variant: k_money is moved until the weights flip, with the exact condition for the flip.
3. The formulas of the gradient, each against jax.grad.
4. Gradient descent with optax on q_bank alone, on q_bank and the keys, and on W_Q and W_K, in a river and in a
   money context: what moves where, and where the slogan "q_bank moves toward k_river" fails.

It writes a picture of bank's attention and of q_bank's path among the keys, as PNG and as SVG.
"""

import argparse
import math

import _cli
import jax
import numpy as np
from _bank_descent import MOVERS, descend, formulas, story, tied
from _bank_picture import draw
from _bank_tables import show_descent, show_flip, show_toy
from _bank_toy import WORDS, flip, toy
from rich.console import Console

from jattn import figures
from jattn.console import vectors
from jattn.flow import Diagnostics

CONTEXTS = WORDS[:2]  # what bank should attend to in a river context, and in a money context


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--steps", type=int, default=10_000, help="gradient steps, 10 to 100000 (default: 10000)")
    parser.add_argument("--learning-rate", type=float, default=1.0, help="size of a step, above 0 (default: 1)")
    _cli.add_out(parser, "the pictures")
    return parser


def compute(args: argparse.Namespace) -> dict:
    steps, rate = args.steps, args.learning_rate
    if not 10 <= steps <= 100_000:
        raise _cli.BadInput(f"--steps {steps}: must be from 10 to 100000. Leave it out for 10000.")
    if not 0 < rate < math.inf:
        raise _cli.BadInput(f"--learning-rate {rate:g}: must be a number above 0. Leave it out for 1.")

    results = {"steps": steps, "learning_rate": rate, "toy": toy(), "flip": flip(), "formulas": formulas()}
    results |= {"descents": {}, "tied": tied()}
    paths = {}
    for target, word in enumerate(CONTEXTS):
        of = {m: jax.tree.map(np.asarray, descend(m, target, steps, rate)) for m in MOVERS}
        if not all(path.broke < 0 and finite(path.seen) for path in of.values()):
            raise _cli.BadInput(
                f"--learning-rate {rate:g}: the descent left what float64 can hold. Use a smaller one, such as 1."
            )
        paths[word] = of["q"].seen
        results["descents"][word] = {m: story(path, m, target, rate) for m, path in of.items()}
    pictures = _cli.save(args.out, lambda: figures.save(draw(paths, rate), args.out / "bank_river"))
    return results | {"pictures": pictures}


def finite(seen: Diagnostics) -> bool:
    return all(np.isfinite(x).all() for x in jax.tree.leaves(seen))


def show(console: Console, r: dict) -> None:
    show_toy(console, r["toy"])
    show_flip(console, r["flip"])

    _cli.title(console, "3. The gradient: each formula beside jax.grad, and the largest difference")
    console.print(
        "c = 1/√d_k; a_j = −dL/dp_j, what a little more weight on j would gain; ā and k̄ are means with the weights p, "
        "Cov_p the covariance."
    )
    for what, formula, off in r["formulas"]:
        console.print(f" {what:<32} = {formula:<24} {off:.0e}")

    _cli.title(console, f"4. Gradient descent on −log p_target, learning rate {r['learning_rate']:g}")
    console.print(
        "The slogan: training moves q_bank toward k_river. The gradient: the pull on q_bank is c (k_t − k̄), toward "
        "the target's key k_t less the mean key k̄ that bank attends so far. It is the sum over the keys of "
        "c p_j (a_j − ā) k_j, with a_j as in 3: the target pulls q along its key, every other key pushes q back along "
        "its own. So q goes where the target beats its rivals, and that need "
        "not be where the target is.\nIn the tables p_t is the target's weight, loss = −log p_t, lead = q·(k_t − k̄), "
        "cos k_t = cos(q, k_t), and cos u = cos(q, u) with u the direction in which the target's score outruns its "
        "nearest rival's by the widest margin γ: the largest over |u| = 1 of min_j u·(k_t − k_j)."
    )
    for word, of in r["descents"].items():
        for mover, told in of.items():
            show_descent(console, word, mover, told, r["tied"])

    _cli.title(console, "In short: does q_bank come to point along the key that it learns to attend?")
    for word, of in r["descents"].items():
        ends = [[s["p"][0], s["p"][-1], s["cos"][0], s["min_cos"]["cos"], s["cos"][-1]] for s in of.values()]
        columns = ["p first", "p last", "cos first", "cos least", "cos last"]
        heading = f"\nIn a {word} context: p_{word} and cos(q, k_{word})"
        console.print(vectors([m.replace(" and ", ", ") for m in of], ends, columns=columns, title=heading, digits=4))
    console.print("\nPictures: " + ", ".join(r["pictures"]), soft_wrap=True)


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
