"""A page for your own attention: any sentence, any vectors, or a trajectory that you saved. It opens in any browser.

  --sentence "the river bank floods"   each word gets a vector drawn from N(0, 1), and two layers of four heads
  --word river=0.9,0.1 --word bank=1,0   your vectors (or --file words.json), which attend to each other
  --trajectory run.npz                 what you recorded: q [F, D], k [F, S, D] or [S, D], weights [F, S] and, as far as
                                       there are any, steps [F], labels [S] and series [F] such as loss; .json, and
                                       .npy of flow.Recorder, as well

Of a sentence or of vectors it also learns: --query comes to attend --target, with the loss and optimiser you choose.
"""

import argparse
import json
from pathlib import Path

import _cli
import _sentence
import jax
import numpy as np
from _record import MOVES, OPTIMISERS, loss, record
from rich.console import Console

import jattn
from jattn import console as terminal
from jattn import flow, page

D, LAYERS, HEADS = 8, 2, 4
DEFAULT = "the river bank floods every spring"


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--sentence", help=f"words between spaces (default: {DEFAULT!r})")
    _sentence.add_arguments(parser)
    parser.add_argument("--trajectory", type=Path, metavar="FILE", help="a .npz, .npy or .json file")
    parser.add_argument("--query", help="the word that learns (default: the last but one)")
    parser.add_argument("--target", help="the word that it is to attend (default: the first)")
    parser.add_argument("--loss", choices=("weight", "output"), default="weight", help="−log p, or ½|out − v_target|²")
    parser.add_argument("--optimiser", choices=OPTIMISERS, default="gradient descent")
    parser.add_argument("--moves", choices=MOVES, default="q", help="what learns (default: q)")
    parser.add_argument("--learning-rate", type=float, default=0.3)
    parser.add_argument("--steps", type=int, default=3000, help="1 to 100000 (default: 3000)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/explore.html"), help="the page (default: out/explore.html)"
    )
    _cli.add_seed(parser, "the vectors of a sentence")
    return parser


def compute(args: argparse.Namespace) -> dict:
    if not 1 <= args.steps <= 100_000 or not 0 < args.learning_rate < np.inf:
        raise _cli.BadInput("--steps must be from 1 to 100000, and --learning-rate above 0. Leave them out.")
    parts, told = _saved(args.trajectory) if args.trajectory else _learned(args)
    title = f"The attention of {told['query']}" if told["query"] != "q" else "A trajectory"
    write = lambda: page.write(args.out, title, *parts, note=told["note"])  # noqa: E731
    file = _cli.save(args.out, write, "file that can be written")
    return told | {"page": file, "bytes": file.stat().st_size}


def _learned(args: argparse.Namespace) -> tuple[list[page.Part], dict]:
    rng = np.random.default_rng(args.seed)
    given = args.word is not None or args.file is not None
    words = (args.sentence or DEFAULT).split()
    if not given and not words:
        raise _cli.BadInput("--sentence is empty. Give it at least one word.")
    known = {word: rng.standard_normal(D) for word in dict.fromkeys(words)}
    words = _sentence.read(args, [(word, list(known[word])) for word in words])
    if len(words) < 2:
        raise _cli.BadInput(f"{words[0][0]!r} is the only word, and has no other to attend. Give two or more.")
    names, x = _sentence.labels(words), np.array([vector for _, vector in words])
    query = _sentence.position("--query", args.query or names[-2], names)
    target = _sentence.position("--target", args.target or names[0], names)
    steps = jax.jit(jattn.explain)(x, x, x)
    weights = np.asarray(steps.weights)
    gains = np.eye(len(x))[target] / weights  # −dL/dp of −log p_target, for each word as the query
    parts = [page.weights(weights, names, names, scores=steps.scores, scaled=steps.scaled, values=x, out=steps.out,
                            keys=x, gains=gains)]  # fmt: skip
    if not given:
        w = rng.standard_normal((LAYERS, HEADS, 2, D, D // 2)) / D**0.5
        every = jax.jit(jax.vmap(jax.vmap(lambda w: jattn.explain(x @ w[0], x @ w[1], x).weights)))(w)
        parts.append(page.heads(every, names, names))
    output = {"values": x, "goal": x[target]} if args.loss == "output" else {}
    r = record(x[query], x, target, labels=names, optimiser=args.optimiser, moves=args.moves, rate=args.learning_rate,
               steps=args.steps, **output)  # fmt: skip
    formula = f"½|out − v_{names[target]}|²" if output else f"−log p_{names[target]}"
    leads = args.moves == "q" and r["widest"].any()
    rays = ({"max margin": r["widest"]} if leads else {}) | {f"k_{names[target]}": x[target]}
    parts.insert(0, page.run(r, names, target=target, rays=rays, conserved=r["conserved"], query="q",
                             loss=formula, optimiser=args.optimiser, **output))  # fmt: skip
    pull = -jax.jit(jax.grad(loss))(x[query], x, target, output.get("values"), output.get("goal"))
    series = {name: r[name] for name in ("loss", "p", "margin", "norm")} | {"cos": r["cosines"]}
    note = (
        f"“{names[query]}” learns to attend “{names[target]}”: {args.optimiser} on {args.moves}, {args.steps:,} steps."
    )
    return parts, {"query": names[query], "target": names[target], "words": names, "weights": weights, "series": series,
                   "pull": pull, "margin": r["widest_margin"], "note": note}  # fmt: skip


def _saved(file: Path) -> tuple[list[page.Part], dict]:
    try:
        if file.suffix == ".npy":
            held = flow.Recorder(file).run()
        else:
            held = dict(np.load(file)) if file.suffix == ".npz" else json.loads(file.read_text(encoding="utf-8"))
        labels = [str(x) for x in held.pop("labels", range(np.shape(held["weights"])[1]))]
        target = int(np.argmax(np.asarray(held["weights"])[-1]))
        parts = [page.run(held, labels, target=target)]
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise _cli.BadInput(f"--trajectory {file}: {error}. It takes q, k and weights; see --help.") from error
    flat = {name: x for name, x in held.items() if np.ndim(x) == 1 and name != "steps"}
    note = f"{len(held['q'])} frames from {file.name}; the target is the key with most weight at the end."
    return parts, {"query": "q", "target": labels[target], "words": labels, "series": flat, "note": note}


def show(console: Console, r: dict) -> None:
    _cli.title(console, r["note"])
    if "weights" in r:
        words, target = r["words"], r["target"]
        console.print(terminal.ranked(r["weights"], words, words, top=6, title="Strongest pairs at the start"))
        console.print(f"\n−dL/dq at the start: {_cli.vector(r['pull'])}.")
        within = "" if r["margin"] else ": it lies within the others, so no query can give it all the weight"
        console.print(f"Widest margin by which k_{target} can lead: {r['margin']:.3f}{within}.")
    console.print(terminal.sparklines(r["series"], title="\nWhat was recorded"))
    console.print(f"\nPage ({r['bytes'] / 1000:.0f} kB): {r['page']}", soft_wrap=True)


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
