"""QK-clip: a training run whose attention logits grow until its loss rises again, and the same run with them clipped.

A small language model of letters is trained by Lion, an optimiser whose updates have one size whatever the gradient,
at a learning rate that is too large: the logits of attention grow and grow, until each query attends to a single key.
QK-clip scales W_q and W_k of a head whose largest logit is above a threshold τ, after each step. jattn.statistics
measures the logits and the entropy of each head at every step, in memory linear in the sequence. Beside both runs: the
same with attention that is held uniform, and all three at a smaller learning rate.
Kimi Team 2025, "Kimi K2", section 2.1; Zhai et al. 2023, "Stabilizing Transformer training by preventing attention
entropy collapse"; Chen et al. 2023, "Symbolic discovery of optimization algorithms", Lion.
"""

import argparse

import _cli
import jax
import jax.numpy as jnp
import numpy as np
from _cli import BadInput
from _qk_page import show
from _qk_picture import draw
from _qk_training import CAUSAL, UNCLIPPED, UNIFORM, Seen, train_seeds

import jattn
from jattn import figures, masks

RUNS, LONG, WIDTH = ("unclipped", "clipped", "uniform"), 4096, 64
LEAST, MOST = 1e-30, 3e38  # within float32, and so is the share of a logit that is LEAST


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--epochs", type=int, default=7, help="passes over the text, 2 to 50 (default: 7)")
    parser.add_argument("--seeds", type=int, default=5, help="how many, 1 to 64 (default: 5)")
    parser.add_argument("--rate", type=float, default=0.05, help="the large learning rate (default: 0.05)")
    parser.add_argument("--small-rate", type=float, default=0.01, help="the small one (default: 0.01)")
    parser.add_argument("--threshold", type=float, default=30.0, help="τ, of the largest logit (default: 30)")
    _cli.add_out(parser, "the picture")
    _cli.add_seed(parser, "the first run; the others have the next ones", default=0)
    return parser


def by_epoch(x: np.ndarray, epochs: int) -> np.ndarray:
    """[..., steps] → [..., epochs]: the mean over the whole text."""
    return x.reshape(*x.shape[:-1], epochs, -1).mean(-1)


def series(seen: Seen, epochs: int) -> dict[str, dict[str, np.ndarray]]:
    """Of each kind of run: largest logit and mean entropy of its heads [seeds, steps], loss [seeds, epochs]."""
    of = {"max_logit": seen.max_logit.max((-1, -2)), "entropy": seen.entropy.mean((-1, -2))}
    of["loss"] = by_epoch(seen.loss, epochs)
    return {run: {name: x[i] for name, x in of.items()} for i, run in enumerate(RUNS)}


def first(row: np.ndarray) -> int:
    """The first step of which it is true, and the number of steps if it is of none."""
    return int(row.argmax()) if row.any() else len(row)


def temporaries() -> dict[str, int]:
    """The bytes beside arguments and results that the statistics of LONG queries and keys take, as XLA plans them."""
    x = jax.ShapeDtypeStruct((LONG, WIDTH), jnp.float32)
    dense = masks.to_dense(CAUSAL, LONG, LONG)
    ways = {
        "statistics": lambda q, k: jattn.statistics(q, k, mask=CAUSAL)[:3],
        "reference": lambda q, k: jattn.reference.statistics(q, k, mask=dense)[:3],
    }
    return {name: jax.jit(f).lower(x, x).compile().memory_analysis().temp_size_in_bytes for name, f in ways.items()}


def compute(args: argparse.Namespace) -> dict:
    for name, low, high in (("epochs", 2, 50), ("seeds", 1, 64)):
        if not low <= getattr(args, name) <= high:
            raise BadInput(f"--{name} {getattr(args, name)}: must be from {low} to {high}. Leave it out.")
    for name, given in (("rate", args.rate), ("small-rate", args.small_rate), ("threshold", args.threshold)):
        if not LEAST <= given <= MOST:
            raise BadInput(f"--{name} {given:g}: must be from {LEAST:g} to {MOST:g}. Leave it out.")
    if args.small_rate >= args.rate:
        raise BadInput(f"--small-rate {args.small_rate:g}: must be below --rate {args.rate:g}. Give a smaller one.")
    seeds, rates = range(args.seed, args.seed + args.seeds), {"large": args.rate, "small": args.small_rate}
    with jax.enable_x64(False):
        thresholds = [UNCLIPPED, args.threshold, UNIFORM]
        seen = {name: train_seeds(seeds, thresholds, rate, args.epochs) for name, rate in rates.items()}
        bytes_taken = temporaries()
    for flag, name in (("--rate", "large"), ("--small-rate", "small")):
        if not all(np.isfinite(x).all() for x in seen[name]):
            raise BadInput(f"{flag} {rates[name]:g}: the training left what float32 can hold. Give a smaller rate.")
    large = seen["large"]
    steps = large.loss.shape[-1]
    over = {name: (s.max_logit > args.threshold).any((-1, -2)) for name, s in seen.items()}  # [runs, seeds, steps]
    differ = large.loss[0] != large.loss[1]
    results = {
        "epochs": args.epochs, "steps": steps, "threshold": args.threshold, "rates": rates, "seeds": list(seeds),
        "series": series(large, args.epochs),
        "end": {n: dict(zip(RUNS, by_epoch(s.loss, args.epochs)[..., -1], strict=True)) for n, s in seen.items()},
        "first_over": [first(row) for row in over["large"][0]], "first_apart": [first(row) for row in differ],
        "acted": {name: x[1].mean() for name, x in over.items()}, "bytes": bytes_taken, "long": LONG,
    }  # fmt: skip
    picture = args.out / "qk_clip"
    results["pictures"] = _cli.save(args.out, lambda: figures.save(draw(results), picture))
    return results


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
