"""Attention that learns from text: bank, river and money; verbs and objects, pronouns and nouns, adjectives and nouns.

One head, with embeddings, W_Q, W_K and W_V from nothing, is trained to say what a word means in its sentence: a bank
of the river or of money, what was broke(n), what "it" is, what is bright. Nobody tells it where to look. Beside it
learn a reader whose attention is held uniform and one that sees positions alone; all are judged on sentences that none
was trained on. The sentences are the project's own, in twins that differ by their clues alone.
Wiegreffe and Pinter 2019, "Attention is not not explanation".
"""

import argparse
import math

import _cli
import jax
import numpy as np
from _cli import BadInput
from _corpus import corpus
from _reader import KINDS, train_all
from _text_page import show
from _text_picture import draw
from jax import random

from jattn import figures


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--steps", type=int, default=160, help="of Adam, 20 to 2000 (default: 160)")
    parser.add_argument("--readers", type=int, default=6, help="of each kind, 1 to 64 (default: 6)")
    parser.add_argument("--rate", type=float, default=0.01, help="the learning rate (default: 0.01)")
    _cli.add_out(parser, "the picture")
    _cli.add_seed(parser, "what is held out and of the readers", default=0)
    return parser


def over(x: jax.Array) -> dict[str, np.ndarray]:
    """Of a leaf [readers, ...]: the mean reader, the least and the most."""
    x = np.asarray(x)
    return {"mean": x.mean(0), "least": x.min(0), "most": x.max(0)}


def compute(args: argparse.Namespace) -> dict:
    for name, low, high in (("steps", 20, 2000), ("readers", 1, 64)):
        if not low <= getattr(args, name) <= high:
            raise BadInput(f"--{name} {getattr(args, name)}: must be from {low} to {high}. Leave it out.")
    if not 0 < args.rate < math.inf:
        raise BadInput(f"--rate {args.rate:g}: must be a number above 0. Leave it out for 0.01.")
    (c, words), every = corpus(args.seed), max(1, args.steps // 40)
    keys, size = random.split(random.key(args.seed), args.readers), {"words": len(words), "steps": args.steps}
    path, verdict = train_all(keys, c, args.rate, every=every, **size)
    if not all(np.isfinite(x).all() for x in jax.tree.leaves(verdict)):
        raise BadInput(f"--rate {args.rate:g}: the training left what floating point can hold. Give a smaller rate.")
    kinds = {}
    for k, kind in enumerate(KINDS):
        of = {name: seen for name, seen in verdict.items() if name != "story"}
        kinds[kind] = {
            "loss": {name: over(seen.loss[k]) for name, seen in of.items()},
            "right": {name: over(seen.right[k]) for name, seen in of.items()},
            "on_clue": over(path["held"].on_clue[k]), "learning": over(path["held"].right[k]),
            "story": over(path["story"][k]), "sense": over(verdict["story"][k]),
        }  # fmt: skip
    results = {
        "at": [every * i for i in range(len(path["train"][0, 0]))], "readers": args.readers, "rate": args.rate,
        "sentences": {name: len(getattr(c, name).n) for name in ("train", "held", "new")}, "kinds": kinds,
        "each_story": np.asarray(path["story"][0]),
    }  # fmt: skip
    picture = args.out / "learns_from_text"
    results["pictures"] = _cli.save(args.out, lambda: figures.save(draw(results), picture))
    return results


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
