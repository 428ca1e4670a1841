"""The laboratory: published results about attention, measured here beside an oracle that is not this library.

Each line is one quantity: what was measured, what theory or another library expects, and how far from that it may lie.
Nothing is downloaded; everything is computed from the seed, in a minute or two. Two of the oracles are scikit-learn and
SciPy, which the extra `lab` brings.
"""

import argparse
import dataclasses
import time

import _cli
from rich.console import Console

from jattn import lab

LOUD = 1e-3  # what is smaller is written with an exponent


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--only", choices=[f.__name__ for f in lab.RESULTS], help="reproduce one result (default: all)")
    _cli.add_seed(parser, "everything that is drawn", default=0)
    return parser


def compute(args: argparse.Namespace) -> dict:
    wanted = [f for f in lab.RESULTS if args.only in (None, f.__name__)]
    found = []
    with _cli.progress() as bar:
        for reproduce in bar.track(wanted, description="reproducing"):
            begun = time.perf_counter()
            r = reproduce(args.seed)
            spent = time.perf_counter() - begun
            found.append({"name": reproduce.__name__, "seconds": spent, **dataclasses.asdict(r), "holds": r.holds})
    return {"seed": args.seed, "results": found}


def number(x: float) -> str:
    """Four digits after the point, or an exponent; zero is 0."""
    return "0" if x == 0 else f"{x:.4f}" if abs(x) >= LOUD else f"{x:.1e}"


def lines(r: dict) -> list[list[str]]:
    """A row for each quantity: its name, measured, expected, the least and the most it may be, and the verdict."""
    made = []
    for name, (below, above) in r["tolerance"].items():
        measured, expected = r["measured"][name], r["expected"][name]
        spread = (
            f"± {below:.0e}" if below == above < LOUD else f"{number(expected - below)} … {number(expected + above)}"
        )
        made.append([name, number(measured), number(expected), spread, "yes" if r["holds"][name] else "NO"])
    return made


def show(console: Console, r: dict) -> None:
    for x in r["results"]:
        _cli.title(
            console, x["claim"], f"{x['source']}. Oracle: {x['oracle']}. Seed {r['seed']}, {x['seconds']:.0f} s."
        )
        console.print(_cli.table(["", "measured", "expected", "within", "holds"], lines(x)))
    names = {x["name"]: x["measured"] for x in r["results"]}
    _cli.title(console, "Where the popular story is wrong")
    if "attention_as_svm" in names:
        plain = names["attention_as_svm"]["cosine, jax.nn.softmax"]
        console.print(
            f"More training is not always better: with jax.nn.softmax the same steps end at a cosine of {plain:.2f} "
            "with the maximal margin, after they had been near it: its derivative loses the tail of a saturated row."
        )
    if "variance_of_dot_products" in names:
        spread = names["variance_of_dot_products"]["std of scaled, d = 768, mean 1"]
        console.print(
            "Entries of variance 1 do not suffice for √d: they need mean 0 as well. With mean 1 the scaled scores have "
            f"a deviation of {spread:.2f}, √3 in theory. And large d makes scores wider: their mean stays 0."
        )


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
