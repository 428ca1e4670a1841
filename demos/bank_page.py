"""One HTML page on bank and river: drag the query, move through training time, ask each key for its pull.

The runs on it: three losses (attend river, attend money, give back v_river), each learned by gradient descent, sign
descent and Adam on q_bank alone, and by gradient descent on q_bank and the keys together. The page opens from the disk
in any browser and needs no network, and begins with a story that is told on these runs, step by step. Beside it, the
field −dL/dq with the path of q_bank on it, and training time, as PNG and SVG.
"""

import argparse
from pathlib import Path

import _cli
import jax
import numpy as np
from _bank_story import story
from _bank_toy import BANK, W_K, W_Q, WORDS, C, K, Q, V, X
from _record import record
from matplotlib.figure import Figure
from rich.console import Console

import jattn
from jattn import console as terminal
from jattn import figures, page

LOSSES = {"−log p_river": 0, "−log p_money": 1, "½|out − v_river|²": 0}
LEARNERS = {  # name → optimiser, what moves, learning rate
    "gradient descent": ("gradient descent", "q", 1.0),
    "sign descent": ("sign descent", "q", 0.01),
    "Adam": ("Adam", "q", 0.01),
    "gradient descent, q and K": ("gradient descent", "q and K", 0.3),
}


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    _cli.add_out(parser, "what is written")
    return parser


def compute(args: argparse.Namespace) -> dict:
    parts, told, runs = [], [], {}
    for loss, target in LOSSES.items():
        output = {"values": V, "goal": V[0]} if "out" in loss else {}
        for name, (optimiser, moves, rate) in LEARNERS.items():
            r = record(Q, K, target, labels=WORDS, optimiser=optimiser, moves=moves, rate=rate, frames=80, **output)
            word, runs[loss, name] = WORDS[target], r
            rays = {"max margin": r["widest"], f"k_{word}": K[target]} if moves == "q" else {}
            parts.append(page.run(r, WORDS, target=target, rays=rays, conserved=r["conserved"], query="q",
                                  loss=loss, optimiser=name, **output))  # fmt: skip
            off = max(float(np.max(abs(np.subtract(*both)))) for both in r["conserved"].values())
            ends = [r["p"][0], r["p"][-1], *(r["cosines"][f"k_{word}"][[0, -1]]), r["norm"][-1], off]
            told.append({"loss": loss, "learner": name, "ends": ends})
    words = ("bank", *WORDS)
    q, k = np.vstack([BANK, X]) @ W_Q, X @ W_K
    steps = jax.jit(jattn.explain)(q, k, V)
    gains = np.eye(3)[:1] / np.asarray(steps.weights)  # −dL/dp of −log p_river
    parts.append(page.weights(steps.weights, words, WORDS, scores=steps.scores, scaled=steps.scaled, values=V,
                                out=steps.out, keys=k, gains=gains))  # fmt: skip
    rates = {name: rate for name, (_, _, rate) in LEARNERS.items()}
    tale = story(runs, steps, rates, parts)
    note = "Training moves the query of “bank”. Drag it, or press Play: where it goes is not simply toward the key."
    money = runs["−log p_money", "gradient descent"]
    least = money["cosines"]["k_money"].min()
    seen = f"To attend money q turns away from it on the way: cos(q, k_money) falls to −{-least:.2f} while p rises"

    def write() -> tuple[Path, list[Path]]:
        file = page.write(args.out / "bank_river.html", "How “bank” learns to attend", tale, note=note)
        field, training = draw(runs), figures.training(money, WORDS, log=True, title=seen)
        return file, [
            *figures.save(field, args.out / "bank_field"),
            *figures.save(training, args.out / "bank_training"),
        ]

    file, pictures = _cli.save(args.out, write)
    shown = runs["−log p_river", "gradient descent"]
    p = shown["weights"][0]
    pulls = C * (np.eye(3)[0] - p)[:, None] * K
    series = {name: shown[name] for name in ("loss", "p", "margin", "norm")} | {"cos": shown["cosines"]}
    return {"page": file, "bytes": file.stat().st_size, "pictures": pictures, "runs": told,
            "story": [step["title"] for step in tale.data["steps"]],
            "pulls": pulls, "pull": C * (K[0] - p @ K), "series": series}  # fmt: skip


def field(x: np.ndarray, y: np.ndarray, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p_target of a query at each place, and −dL/dq = c (k_t − k̄) there."""
    places = np.stack(np.meshgrid(x, y), -1)
    p = np.asarray(jax.jit(jattn.explain)(places.reshape(-1, 2), K, V).weights)
    u, v = (C * (K[target] - p @ K)).T.reshape(2, len(y), len(x))
    return p[:, target].reshape(len(y), len(x)), u, v


def draw(runs: dict) -> Figure:
    """A panel for each context: the whole path of q_bank, over −dL/dq, with the ray that its direction tends to."""
    figure = Figure(figsize=(11.4, 4.6), layout="constrained")
    boxes = ((-1.5, 15.6, -5.4, 5.6), (-28, 64, -24, 76))
    axes = figure.subplots(1, 2, width_ratios=(1.5, 1))
    for ax, target, (left, right, low, high) in zip(axes, (0, 1), boxes, strict=True):
        word, r = WORDS[target], runs[f"−log p_{WORDS[target]}", "gradient descent"]
        x, y = np.linspace(left, right, 141), np.linspace(low, high, 101)
        apart = (right - left) / 17
        few = np.arange(left + apart / 2, right, apart), np.arange(low + apart / 2, high, apart)
        marks = {0: "" if target == 0 else "start", -1: f"step {r['steps'][-1]:,}"}
        slogan = f"k_{word}: where the slogan sends it"
        rays = {"max margin: where q's direction tends": r["widest"], slogan: K[target]}
        names = WORDS if target == 0 else [""] * 3
        seen = f"To attend {word}: p_{word} goes from {r['p'][0]:.3f} to {r['p'][-1]:.3f}"
        figures.path(r["q"], K, names, background=(x, y, field(x, y, target)[0]), marks=marks, rays=rays,
                     field=(*few, *field(*few, target)[1:]), ax=ax, title=seen)  # fmt: skip
        ax.get_legend().set_loc("upper right" if target == 0 else "lower right")
        ax.set_xlabel(f"arrows: −dL/dq; grey: p_{word} of a query at that place")
    return figure


def show(console: Console, r: dict) -> None:
    _cli.title(console, "q_bank at its start in a river context: each key's pull, their sum, and −dL/dq")
    console.print(terminal.why(r["pulls"], WORDS, total=r["pull"], digits=4))
    _cli.title(console, "Its descent, 80 frames evenly spaced in log time")
    console.print(terminal.sparklines(r["series"]))
    _cli.title(console, "All runs: the target's weight p, cos(q, k_target), |q|; how far off theory is")
    heads = ["p first", "p last", "cos first", "cos last", "|q|", "off by"]
    for loss in LOSSES:
        ends = [(x["learner"], x["ends"]) for x in r["runs"] if x["loss"] == loss]
        rows = [[name, *_cli.numbers(e[:4]), f"{e[4]:.1f}", f"{e[5]:.0e}"] for name, e in ends]
        console.print(_cli.table([loss, *heads], rows))
        console.print()
    console.print("Theory: frozen keys keep their mean; with q and K, |q|² − |K|² drifts by η² Σ (|dq|² − |dK|²).")
    console.print(f"The page begins with a story in {len(r['story'])} steps: {', '.join(r['story'])}.")
    console.print(
        f"Page ({r['bytes'] / 1000:.0f} kB): {r['page']}\nPictures: {', '.join(r['pictures'])}", soft_wrap=True
    )


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
