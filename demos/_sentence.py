"""Words and their vectors, from the command line or a JSON file; what does not fit is refused by name."""

import argparse
import json
from typing import Any

from _cli import BadInput

Words = list[tuple[str, list[float]]]
JOINERS = str.maketrans("", "", "\u200c\u200d")  # within words of Persian and Hindi, and within emoji
LARGEST = 1e100  # the square of a larger one may not be a float64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--word", action="append", metavar="WORD=X,Y", help="a word and its vector; one flag a word")
    either.add_argument("--file", metavar="JSON", help="the words and vectors of a JSON file")


def read(args: argparse.Namespace, default: Words) -> Words:
    """The sentence: pairs of a word and its vector, all of one width and finite."""
    if args.file is not None:
        words = _from_file(args.file)
    else:
        words = default if args.word is None else [_from_text(text) for text in args.word]
    for word, x in words:
        first, width = words[0][0], len(words[0][1])
        if not (seen := word.translate(JOINERS)).strip() or not seen.isprintable():
            raise BadInput(f"the word {word!r} is empty or cannot be printed. Use letters.")
        if not x or len(x) != width:
            many = f"{word!r} has {len(x)} numbers and {first!r} has {width}"
            raise BadInput(f"{many}. Give every word as many, at least 1.")
        if not all(abs(n) <= LARGEST for n in x):
            raise BadInput(f"the vector of {word!r} holds NaN, infinity or more than {LARGEST:g}. Use smaller numbers.")
    return words


def labels(words: Words) -> list[str]:
    """The words, those that come more than once numbered: the(1), the(2)."""
    names = [word for word, _ in words]
    return [w if names.count(w) == 1 else f"{w}({names[: i + 1].count(w)})" for i, w in enumerate(names)]


def position(flag: str, word: str, among: list[str]) -> int:
    if word not in among:
        raise BadInput(f"{flag} {word!r} is not one word of the sentence. Choose one of: {', '.join(among)}.")
    return among.index(word)


def _from_text(text: str) -> tuple[str, list[float]]:
    word, _, numbers = text.rpartition("=")
    try:
        return word, [float(x) for x in numbers.split(",")]
    except ValueError:
        raise BadInput(f"--word {text!r} is not a word with its numbers. Write it as river=0.8,0.8.") from None


def _from_file(path: str) -> Words:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file, object_pairs_hook=tuple)  # pairs, so that a word that comes twice is seen
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}). Name a JSON file of words and vectors.") from None
    except (ValueError, RecursionError):
        raise BadInput(f'{path}: is not JSON. Write it as {{"walk": [0.1, 0.9], "near": [0.5, 0.5]}}.') from None
    if not isinstance(content, (tuple, list)):
        raise BadInput(f"{path}: holds neither an object nor a list. Write {{word: vector}} or [[word, vector], ...].")
    if not content:
        raise BadInput(f"{path}: the sentence is empty. Give at least one word with its vector.")
    words = [_from_entry(f"{path}: entry {i}", entry) for i, entry in enumerate(content, 1)]
    names = [word for word, _ in words]
    if isinstance(content, tuple) and len(set(names)) < len(names):
        twice = next(word for word in names if names.count(word) > 1)
        raise BadInput(f"{path}: {twice!r} comes twice in one object. To repeat a word, write [[word, vector], ...].")
    return words


def _from_entry(where: str, entry: Any) -> tuple[str, list[float]]:
    remedy = 'Write it as "river": [0.8, 0.8] or ["river", [0.8, 0.8]].'
    match entry:
        case [str(word), list(x)] if all(type(n) in (int, float) for n in x):
            try:
                return word, [float(n) for n in x]
            except OverflowError:
                raise BadInput(f"{where}: {word!r} has a number beyond float64. Use smaller ones.") from None
    raise BadInput(f"{where} is not a word with a list of numbers. {remedy}")
