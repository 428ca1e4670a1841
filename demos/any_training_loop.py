"""A recorder in anybody's training loop: two models learn from text, and one line in each loop keeps what they attend.

One model is functions on jattn.heads, trained in one jitted scan; the other (--model flax) a module of flax, trained in
a loop in Python. flow.Recorder measures the query "bank" in a sentence that neither was trained on, at logarithmic
steps: its weights in each head, their entropy, each key's pull and dL/dq. The file is whole at any moment of the
training, may be read while it goes on, and is what the pictures, the page and the terminal draw.
"""

import argparse
import math

import _cli
import jax
import numpy as np
from _cli import BadInput
from _corpus import STORY, corpus
from _sentence import labels
from _two_models import flax_reader, fresh, observe, observe_flax, train, train_flax
from jax import random
from rich.console import Console

from jattn import console as terminal
from jattn import figures, flow, page


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--model", choices=["heads", "flax"], default="heads", help="flax needs jattn[demo,hosts]")
    parser.add_argument("--steps", type=int, default=200, help="of Adam, 20 to 5000 (default: 200)")
    parser.add_argument("--rate", type=float, default=0.01, help="the learning rate (default: 0.01)")
    _cli.add_out(parser, "the recording, the picture and the page")
    _cli.add_seed(parser, "the model and of what is held out", default=0)
    return parser


def recorded(args: argparse.Namespace) -> tuple[flow.Recorder, list[str]]:
    """The recorder of a training, and the words of the sentence that was looked at."""
    c, words = corpus(args.seed)
    names = labels([(word, []) for word in STORY[0].split()])
    one = jax.tree.map(lambda x: x[0], c.story)
    one = one._replace(ids=one.ids[: len(names)], clue=one.clue[: len(names)])
    how = {"at": flow.log_steps(args.steps), "file": args.out / f"any_training_loop_{args.model}.npy"}
    size, more = (len(words), c.train.ids.shape[1]), {"rate": args.rate, "steps": args.steps + 1}
    if args.model == "heads":
        recorder = flow.Recorder(observe=lambda w: observe(w, one, c.held), **how)
        train(fresh(random.key(args.seed), *size), c.train, recorder=recorder, **more)
    else:
        try:
            from flax import nnx
        except ImportError as missing:
            raise BadInput("--model flax: flax is not installed. Run pip install 'jattn[hosts]'.") from missing
        recorder = flow.Recorder(observe=nnx.jit(lambda reader: observe_flax(reader, one, c.held)), **how)
        train_flax(flax_reader(args.seed, *size), c.train, recorder=recorder, **more)
    return recorder, names


def compute(args: argparse.Namespace) -> dict:
    if not 20 <= args.steps <= 5000:
        raise BadInput(f"--steps {args.steps}: must be from 20 to 5000. Leave it out.")
    if not 0 < args.rate < math.inf:
        raise BadInput(f"--rate {args.rate:g}: must be a number above 0. Leave it out for 0.01.")
    recorder, names = _cli.save(args.out, lambda: recorded(args))
    run = recorder.run()
    if not all(np.isfinite(x).all() for x in jax.tree.leaves(run)):
        raise BadInput(f"--rate {args.rate:g}: the training left what floating point can hold. Give a smaller rate.")
    river = names.index("river")
    on_clues = run["heads"]["weights"][:, :, [river, names.index("water")]].sum(-1)  # [F, heads]
    best = int(on_clues[-1].argmax())
    shown = {name: run[name] for name in ("steps", "loss", "right")} | {n: x[:, best] for n, x in run["heads"].items()}
    pulls, dq = run["heads"]["pulls"], run["heads"]["dq"]
    results = {
        "model": args.model, "names": names, "head": best, "on_clues": on_clues, "run": shown,
        "off": abs(pulls.sum(2) + dq).max(), "slope": np.linalg.norm(dq, axis=-1)[:, best],
    }  # fmt: skip
    name = args.out / f"any_training_loop_{args.model}"
    part = page.run(shown, names, target=river, query="bank", loss="field of −log w_river")
    note = "The path is that of the training. The field and the pulls drawn here are those of −log of river's weight."
    drawn = figures.training(shown, names, log=True, title=f"{name.name}: bank in “{STORY[0]}”, head {best}")
    files = _cli.save(
        args.out, lambda: [*figures.save(drawn, name), page.write(f"{name}.html", name.name, part, note=note)]
    )
    return results | {"files": [str(file) for file in (name.with_suffix(".npy"), *files)]}


def show(console: Console, r: dict) -> None:
    run, names = r["run"], r["names"]
    _cli.title(console, f"What was kept of the training of a model of {r['model']}: bank in “{STORY[0]}”")
    columns = [run["right"], run["loss"], *np.transpose(r["on_clues"]), run["entropy"], r["slope"]]
    heads = [f"clues,\nhead {h}" for h in range(len(r["on_clues"][0]))]
    rows = [[str(step), *_cli.numbers(row)] for step, row in zip(run["steps"], zip(*columns, strict=True), strict=True)]
    chosen = f"head {r['head']}"
    titles = ["step", "held out,\nright", "loss", *heads, f"entropy,\n{chosen}", f"|dL/dq|,\n{chosen}"]
    console.print(_cli.table(titles, rows))
    console.print("clues: the attention of bank to river and water. Loss, entropy, dL/dq: of this sentence.")
    series = {name: run[name] for name in ("loss", "right", "entropy", "max_logit")} | {"|dL/dq|": r["slope"]}
    console.print(terminal.sparklines(series, title="\nThe same, as lines"))
    steepest = int(np.argmax(r["slope"]))
    title = f"\nWhy the query of bank moves as it does at step {run['steps'][steepest]}, {chosen}: each key's pull"
    console.print(terminal.why(run["pulls"][steepest], names, total=-np.array(run["dq"][steepest]), title=title))
    console.print(f"\nAt every step and in each head the pulls sum to −dL/dq, to {r['off']:.0e}.")
    console.print("Files: " + ", ".join(r["files"]), soft_wrap=True)


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
