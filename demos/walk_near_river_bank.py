"""Attention by hand on four words, "walk near river bank", or on words of your own.

Recomputes the walkthrough that begins 'The word "bank" is ambiguous': the embeddings E, the 16 scores written
out as sums, scaled scores, exponentials, weights, every output, and what moved where. Nothing is learned here:
W_q = W_k = W_v = I, so q = k = v = E.

  python demos/walk_near_river_bank.py
  python demos/walk_near_river_bank.py --word walk=0.1,0.9 --word near=0.5,0.5 --word home=0.9,0.1
  python demos/walk_near_river_bank.py --file words.json --focus bank --toward river

words.json: {"walk": [0.1, 0.9], "near": [0.5, 0.5]}, or [["walk", [0.1, 0.9]], ...] where a word may repeat.
"""

import argparse

import _cli
import _sentence
import numpy as np
from _walk_page import show

import jattn

SENTENCE = [("walk", [0.1, 0.9]), ("near", [0.5, 0.5]), ("river", [0.8, 0.8]), ("bank", [0.8, 0.5])]


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    _sentence.add_arguments(parser)
    parser.add_argument("--focus", metavar="WORD", help="the word to follow (default: the last)")
    parser.add_argument("--toward", metavar="WORD", help="what it may move toward (default: the word it attends most)")
    return parser


def compute(args: argparse.Namespace) -> dict:
    sentence = _sentence.read(args, SENTENCE)
    words = _sentence.labels(sentence)
    t = len(words) - 1 if args.focus is None else _sentence.position("--focus", args.focus, words)
    E = np.array([x for _, x in sentence])

    steps = jattn.explain(E, E, E)
    _, scaled, weights, out = (np.asarray(x) for x in steps)
    less = scaled.max(1) * (scaled.max() > 500)  # exponentials that may be beyond float64 are shown less the largest
    exps = np.exp(scaled - less[:, None])

    others = weights[t] - (np.arange(len(words)) == t)
    s = int(others.argmax()) if args.toward is None else _sentence.position("--toward", args.toward, words)
    to_mean = [distance(x, E.mean(0)) for x in (E, out)]
    to_toward = [distance(x, E[s]) for x in (E, out)]
    return {
        "claim": sentence == SENTENCE and (words[t], words[s]) == ("bank", "river"),
        "words": words, "focus": t, "toward": s, "E": E, **steps._asdict(),
        "exps": exps, "less": less, "sums": exps.sum(1), "terms": weights[t][:, None] * E,
        "mean": E.mean(0), "length": distance(E, 0), "shift": out - E, "moved": distance(out, E),
        "to_mean": to_mean, "to_toward": to_toward, "mean_to_toward": distance(E.mean(0), E[s]),
        "cos_mean": cos(out[t] - E[t], E.mean(0) - E[t]), "cos_toward": cos(out[t] - E[t], E[s] - E[t]),
    }  # fmt: skip


def distance(x: np.ndarray, y: np.ndarray | float) -> np.ndarray:
    return np.linalg.norm(x - y, axis=-1)


def cos(x: np.ndarray, y: np.ndarray) -> float | None:
    lengths = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / lengths) if lengths > 1e-12 else None  # no direction: nothing moved, or it is there already


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
