"""A page for your own attention: any sentence, any vectors, or a trajectory that you saved. It opens in any browser.

  --sentence "the river bank floods"   each word gets a vector drawn from N(0, 1); these attend to each other, with
                                       q = k = v = the vector, and learn. Beside them the page shows two layers of four
                                       heads with random matrices, which do not learn
  --word river=0.9,0.1 --word bank=1,0   your vectors (or --file words.json), which attend to each other and learn
  --trajectory run.npz                 what you recorded: q [F, D], k [F, S, D] or [S, D], weights [F, S] and, as far as
                                       there are any, steps [F], labels [S] and series [F] such as loss; .json, and
                                       .npy of flow.Recorder, as well

What learns of a sentence or of vectors is the query of one word, --query, which comes to attend another, --target, by
the loss and the optimiser that you choose; with --moves "q and K" the keys learn too.
"""

import argparse
from pathlib import Path

import _cli
import _saved
import _sentence
import jax
import numpy as np
from _record import MOVES, OPTIMISERS, loss, record, turned
from jax.scipy.special import entr
from rich.console import Console

import jattn
from jattn import console as terminal
from jattn import page

D, LAYERS, HEADS = 8, 2, 4
LEARNS = ("query", "target", "loss", "optimiser", "moves", "learning_rate", "steps", "seed")
DEFAULT = "the river bank floods every spring"
ENDS = ".,;:!?…\"'“”„‘’«»()[]¿¡–—"  # not part of the word at whose ends they stand


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument(
        "--sentence", help=f"words between spaces; punctuation at their ends is dropped (default: {DEFAULT!r})"
    )
    _sentence.add_arguments(parser)
    parser.add_argument("--trajectory", type=Path, metavar="FILE", help="a .npz, .npy or .json file")
    parser.add_argument("--query", help="the word that learns (default: the last but one; of two words the last)")
    parser.add_argument("--target", help="the word that it is to attend (default: the first)")
    parser.add_argument("--loss", choices=("weight", "output"), default="weight",
                        help="weight: −log p_target; output: ½|out − v_target|² (default: weight)")  # fmt: skip
    parser.add_argument("--optimiser", choices=OPTIMISERS, default="gradient descent",
                        help="what takes the steps (default: gradient descent)")  # fmt: skip
    parser.add_argument("--moves", choices=MOVES, default="q", help="what learns (default: q)")
    parser.add_argument("--learning-rate", type=float, default=0.3, help="size of a step, above 0 (default: 0.3)")
    parser.add_argument("--steps", type=int, default=3000, help="1 to 100000 (default: 3000)")
    parser.add_argument("--out", type=Path, default=Path("out/explore.html"),
                        help="the page (default: out/explore.html)")  # fmt: skip
    _cli.add_seed(parser, "the vectors of a sentence")
    return parser


def compute(args: argparse.Namespace) -> dict:
    if not 1 <= args.steps <= 100_000:
        raise _cli.BadInput(f"--steps {args.steps}: must be from 1 to 100000. Leave it out for 3000.")
    if not 0 < args.learning_rate < np.inf:
        raise _cli.BadInput(f"--learning-rate {args.learning_rate:g}: must be a number above 0. Leave it out for 0.3.")
    given = [f"--{name}" for name in ("sentence", "word", "file", "trajectory") if getattr(args, name) is not None]
    if len(given) > 1:
        raise _cli.BadInput(f"{' and '.join(given)}: the page is of one of them. Leave out all but one.")
    if args.trajectory and (unread := [f"--{x.replace('_', '-')}" for x in LEARNS if _given(args, x)]):
        raise _cli.BadInput(f"--trajectory and {' and '.join(unread)}: what is saved has been learned. Leave one out.")
    parts, told = _saved.read(args.trajectory) if args.trajectory else _learned(args)
    title = f"The attention of {told['query']}" if told["query"] != "q" else "A trajectory"
    note = told["note"] + told.get("beside", "")
    file = _cli.save(args.out, lambda: page.write(args.out, title, *parts, note=note), "file that can be written")
    return told | {"page": file, "bytes": file.stat().st_size}


def _given(args: argparse.Namespace, name: str) -> bool:
    return bool(getattr(args, name) != arguments().get_default(name))


def _learned(args: argparse.Namespace) -> tuple[list[page.Part], dict]:
    rng = np.random.default_rng(args.seed)
    given = args.word is not None or args.file is not None
    words = [w for word in (DEFAULT if args.sentence is None else args.sentence).split() if (w := word.strip(ENDS))]
    if not given and not words:
        raise _cli.BadInput(f"--sentence {args.sentence!r}: must have words. Write two or more, with spaces between.")
    known = {word: rng.standard_normal(D) for word in dict.fromkeys(words)}
    words = _sentence.read(args, [(word, list(known[word])) for word in words])
    if len(words) < 2:
        raise _cli.BadInput(f"{words[0][0]!r} is the only word, and has no other to attend. Give two or more.")
    names, x = _sentence.labels(words), np.array([vector for _, vector in words])
    last = names[-2 if len(names) > 2 else -1]
    query = _sentence.position("--query", last if args.query is None else args.query, names)
    target = _sentence.position("--target", names[0] if args.target is None else args.target, names)
    steps = jax.jit(jattn.explain)(x, x, x)
    weights = np.asarray(steps.weights)
    places = np.unravel_index(np.argsort(-weights, None, "stable")[:6], weights.shape)
    strongest = [(names[i], names[j], weights[i, j], entr(weights[i]).sum()) for i, j in zip(*places, strict=True)]
    gains = np.zeros_like(weights)  # −dL/dp of −log p_target, for each word as the query; NaN where p_target underflows
    gains[:, target] = 1 / np.where((goal := weights[:, target]) < np.finfo(goal.dtype).tiny, np.nan, goal)
    beside = "" if given else " The heads of every layer have random matrices, and do not learn."
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
    how = f"{args.optimiser} on {args.moves}, {args.steps:,} steps"
    note = f"“{names[query]}” learns to attend “{names[target]}”: {how}."
    return parts, {"query": names[query], "target": names[target], "words": names, "weights": weights,
                   "strongest": strongest, "beside": beside, "moves": args.moves,
                   "series": series, "pull": pull, "margin": r["widest_margin"], "note": note}  # fmt: skip


def show(console: Console, r: dict) -> None:
    _cli.title(console, r["note"])
    if "weights" in r:
        target = r["target"]
        others = " The page's random heads are not in this table." if r["beside"] else ""
        console.print(f"\nStrongest pairs at the start, with q = k = v = the word's vector.{others}")
        rows = [[query, key, *_cli.numbers(x)] for query, key, *x in r["strongest"]]
        console.print(_cli.table(["query", "key", "weight", "entropy"], rows, left=2))
        console.print(f"\n−dL/dq at the start: {_cli.vector(r['pull'])}.")
        within = "" if r["margin"] else ": it lies within the others, so no query can give it all the weight"
        console.print(f"Widest margin by which k_{target} can lead: {r['margin']:.3f}{within}.")
    console.print(terminal.sparklines(r["series"], title="\nWhat was recorded"))
    if "weights" in r:
        console.print(f"\n{turned(r['series']['cos'][f'k_{target}'], r['series']['p'], target, r['moves'])}")
    console.print(f"\nPage ({r['bytes'] / 1000:.0f} kB): {r['page']}", soft_wrap=True)


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
