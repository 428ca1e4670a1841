"""One HTML page with a language model in it that learned from text, alive: type a sentence, look into it, teach it.

Two layers of two heads, with MLPs, learn the next word of the sentences of learns_from_text.py. The page computes the
model itself: what comes next after any sentence of its words, where each head looks and what it puts in, the pull of
each key on q, and gradient steps that can be undone. "the river and the" wants "water": two words apart, so that a
table of pairs cannot say it. Beside all this stands what attention does not show.
"""

import argparse
import math

import _cli
import jax
import jax.numpy as jnp
import numpy as np
from _alive_story import STEPS
from _cli import BadInput, table, title
from _corpus import corpus
from _next_word import HEADS, LAYERS, fresh, logits, of_model, of_pairs, train
from jax import random
from rich.console import Console

from jattn import page

EXAMPLES = [
    ("the river and the", "water"),
    ("the money and the", "deposit"),
    ("they left the bank without the river or the", "water"),
    ("he broke the vase and the", "glass"),
    ("it was the dog or the", "horse"),
    ("bright were the lamp and the", "river"),
]


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--steps", type=int, default=400, help="of AdamW, 20 to 5000 (default: 400)")
    parser.add_argument("--rate", type=float, default=0.005, help="the learning rate at the start (default: 0.005)")
    _cli.add_out(parser, "the page")
    _cli.add_seed(parser, "the model and of what is held out", default=0)
    return parser


def compute(args: argparse.Namespace) -> dict:
    if not 20 <= args.steps <= 5000:
        raise BadInput(f"--steps {args.steps}: must be from 20 to 5000. Leave it out.")
    if not 0 < args.rate < math.inf:
        raise BadInput(f"--rate {args.rate:g}: must be a number above 0. Leave it out for 0.005.")
    c, words = corpus(args.seed)
    start = jax.jit(fresh, static_argnums=(1, 2, 3))(
        random.key(args.seed), len(words), c.train.ids.shape[1], jnp.float32
    )
    w, losses = jax.block_until_ready(train(start, c.train, args.rate, steps=args.steps))
    if not np.isfinite(losses).all():
        raise BadInput(f"--rate {args.rate:g}: the training left what floating point can hold. Give a smaller rate.")
    of = {"two layers": jax.jit(of_model), "pairs of words": lambda _, text: of_pairs(c.train, text, len(words))}
    judged = {name: {"train": f(w, c.train), "held": f(w, c.held)} for name, f in of.items()}
    said = []
    for sentence, follows in EXAMPLES:
        p = np.asarray(jax.nn.softmax(jax.jit(logits)(w, jnp.array([words.index(x) for x in sentence.split()]))[-1]))
        said.append(
            {"sentence": sentence, "next": follows, "p": p[words.index(follows)], "best": words[int(p.argmax())]}
        )
    held = judged["two layers"]["held"]
    note = (
        f"It learned the next word from {len(c.train.n)} short sentences on banks, things broken, animals and lamps. "
        f"Of {len(c.held.n)} that it has not seen it says {held.right:.0%} of the words right. It knows nothing else."
    )
    kept = [i for i, word in enumerate(words) if not word.startswith("<")]
    learned = w | {"embed": w["embed"][np.array(kept)], "unembed": w["unembed"][:, np.array(kept)]}
    part = page.model(learned, [words[i] for i in kept], examples=EXAMPLES)
    told = page.story(part, STEPS)
    write = lambda: page.write(args.out / "alive_page.html", "A language model, alive", told, note=note)  # noqa: E731
    file = _cli.save(args.out, write)
    numbers = len(part.data["numbers"])  # float32
    return {
        "page": file, "bytes": file.stat().st_size, "numbers": numbers,
        "base64": 4 * math.ceil(4 * numbers / 3), "words": len(kept),
        "sentences": {name: len(getattr(c, name).n) for name in ("train", "held")}, "steps": args.steps,
        "losses": losses, "judged": judged, "examples": said,
    }  # fmt: skip


def show(console: Console, r: dict) -> None:
    n = r["sentences"]
    title(console, f"The next word, learned from {n['train']} sentences; {n['held']} others are held out")
    rows = []
    for name, of in r["judged"].items():
        rows.append([name, *(f"{of[text]['loss']:.3f}" for text in ("train", "held"))])
        rows[-1] += [f"{of[text]['right']:.0%}" for text in ("train", "held")]
    console.print(table(["", "loss,\nlearned", "loss,\nheld out", "right,\nlearned", "right,\nheld out"], rows))
    console.print(
        f"{LAYERS} layers of {HEADS} heads and an MLP, {r['numbers']:,} numbers, {r['steps']} steps of AdamW."
    )
    title(console, "What comes next")
    rows = [[x["sentence"], x["next"], f"{x['p']:.3f}", x["best"]] for x in r["examples"]]
    console.print(table(["sentence", "asked", "p", "most likely"], rows, left=2))
    console.print(
        f"\nPage ({r['bytes'] / 1000:.0f} kB, of which {r['base64'] / 1000:.0f} kB are weights in base64): {r['page']}",
        soft_wrap=True,
    )


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
