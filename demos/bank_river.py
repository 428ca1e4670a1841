"""Why "bank" attends to "river", number by number, and what gradient descent then does to q_bank.

1. The toy: dot products, scale, exponentials, sum, weights, weighted sum, output projection.
2. The financial variant: k_money is moved until the weights flip, with the exact condition for the flip.
3. The formulas of the gradient, each against jax.grad.
4. Gradient descent with optax on q_bank alone, on q_bank and the keys, and on W_Q and W_K, in a river and in a
   money context: what moves where, and where the slogan "q_bank moves toward k_river" fails.

It leaves a picture of bank's attention and of q_bank's path among the keys, as PNG and as SVG.
"""

import argparse
import math
from pathlib import Path

import _cli
import jax
import numpy as np
from _bank_descent import MOVERS, descend, formulas, story, tied
from _bank_picture import draw
from _bank_toy import WAYS, WORDS, K, Q, flip, toy
from rich.console import Console

from jattn import figures
from jattn.console import bars, vectors

CONTEXTS = WORDS[:2]  # what bank should attend to in a river context, and in a money context


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("--steps", type=int, default=10_000, help="gradient steps, 10 to 100000 (default: 10000)")
    parser.add_argument("--learning-rate", type=float, default=1.0, help="size of a step, above 0 (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the pictures (default: out)")
    return parser


def compute(args: argparse.Namespace) -> dict:
    steps, rate = args.steps, args.learning_rate
    if not 10 <= steps <= 100_000:
        raise _cli.BadInput(f"--steps {steps}: must be from 10 to 100000. Leave it out for 10000.")
    if not 0 < rate < math.inf:
        raise _cli.BadInput(f"--learning-rate {rate:g}: must be a number above 0. Leave it out for 1.")
    if any(p.exists() and not p.is_dir() for p in (args.out, *args.out.absolute().parents)):
        raise _cli.BadInput(f"--out {args.out}: is a file, or lies below one. Name a folder.")

    results = {"steps": steps, "learning_rate": rate, "toy": toy(), "flip": flip(), "formulas": formulas()}
    results |= {"descents": {}, "tied": tied()}
    paths = {}
    for target, word in enumerate(CONTEXTS):
        of = {m: jax.tree.map(np.asarray, descend(m, target, steps, rate)) for m in MOVERS}
        if not all(np.isfinite(x).all() for x in jax.tree.leaves(of)):
            raise _cli.BadInput(
                f"--learning-rate {rate:g}: the descent left what float64 can hold. Use a smaller one, such as 1."
            )
        paths[word], results["descents"][word] = of["q"], {m: story(of[m], m, target, rate) for m in of}
    try:
        files = figures.save(draw(paths, rate), args.out / "bank_river")
    except OSError as error:
        raise _cli.BadInput(f"--out {args.out}: {error.strerror}. Name a folder that can be written to.") from error
    return results | {"pictures": [str(file) for file in files]}


def show(console: Console, r: dict) -> None:
    show_toy(console, r["toy"])
    show_flip(console, r["flip"])

    _cli.title(console, "3. The gradient: each formula beside jax.grad, and the largest difference")
    console.print("c = 1/√d_k, a_j = dL/dp_j, ā and k̄ are means with the weights p, Cov_p the covariance.")
    for what, formula, off in r["formulas"]:
        console.print(f" {what:<32} = {formula:<24} {off:.0e}")

    _cli.title(console, f"4. Gradient descent on −log p_target, learning rate {r['learning_rate']:g}")
    console.print(
        "The slogan: training moves q_bank toward k_river. The gradient: the pull on q_bank is c (k_t − k̄), toward "
        "the target's key k_t less the mean key k̄ that bank attends so far. With a_j = −dL/dp_j, what a little more "
        "weight on j would gain, it is a sum over the keys, c p_j (a_j − ā) k_j: the target pulls q along its key, "
        "every other key pushes q back along its own. So q goes where the target beats its rivals, and that need "
        "not be where the target is.\nIn the tables p_t is the target's weight, loss = −log p_t, lead = q·(k_t − k̄), "
        "cos k_t = cos(q, k_t), and cos u = cos(q, u) with u the direction in which the target's score outruns its "
        "nearest rival's by the widest margin γ: the largest over |u| = 1 of min_j u·(k_t − k_j)."
    )
    for word, of in r["descents"].items():
        for mover, told in of.items():
            show_descent(console, word, mover, told, r["tied"])

    _cli.title(console, "In short: does q_bank come to point along the key that it learns to attend?")
    for word, of in r["descents"].items():
        ends = [[s["p"][0], s["p"][-1], s["cos"][0], s["min_cos"]["cos"], s["cos"][-1]] for s in of.values()]
        columns = ["p first", "p last", "cos first", "cos least", "cos last"]
        heading = f"\nIn a {word} context: p_{word} and cos(q, k_{word})"
        console.print(vectors([m.replace(" and ", ", ") for m in of], ends, columns=columns, title=heading, digits=4))
    console.print("\nPictures: " + ", ".join(r["pictures"]), soft_wrap=True)


def show_toy(console: Console, toy: dict) -> None:
    _cli.title(console, "1. The toy: the query of bank, q = [1, 0], meets three keys")
    for word, k, score in zip(WORDS, K, toy["scores"], strict=True):
        console.print(f" q·k_{word:<5} = {Q[0]:g}×{k[0]:g} + {Q[1]:g}×{k[1]:g} = {score:g}")
    steps = np.column_stack([toy[name] for name in ("scores", "scaled", "exps", "weights")])
    console.print(vectors(WORDS, steps, columns=["q·k", "q·k/√2", "exp", "exp/sum"], digits=6))
    console.print(f"The sum of the exponentials is {toy['sum']:.6f}. Divided by it they are the weights.")
    console.print(bars(WORDS, toy["weights"], title="\nWhat bank attends to", digits=6, width=40))
    terms = [*toy["terms"], toy["out"], toy["projected"]]
    names = [*(f"p·v_{word}" for word in WORDS), "sum = out", "out W_O"]
    console.print(vectors(names, terms, columns=["x", "y"], title="\nThe weighted values, and W_O = I", digits=6))


def show_flip(console: Console, flip: dict) -> None:
    _cli.title(console, "2. The financial variant: k_money is moved until the weights flip")
    console.print(
        "p_money / p_river = exp((q·k_money − q·k_river)/√2), so money overtakes river exactly where q·k_money > "
        "q·k_river. With q = [1, 0] that is the half-plane x > 1: only the shadow of k_money on q counts. "
        "On the way k_money = [0.2, 0.1] + a·u, by formula and by bisection of the weights:"
    )
    for name, way in flip["ways"].items():
        u = f"[{WAYS[name][0]:g}, {WAYS[name][1]:g}], {name}"
        found = "never: u ⊥ q" if way["formula"] is None else f"a = {way['formula']:.6f}"
        seen = "none to 16" if way["measured"] is None else f"a = {way['measured']:.6f}"
        console.print(f" u = {u:<27} formula: {found:<13} bisection: {seen}")
    turned = flip["turned"]
    console.print(
        f"Turned to point exactly along q, at its own length {np.linalg.norm(turned['k']):.4f}, k_money loses as "
        f"well: {turned['weights'][1]:.4f} against {turned['weights'][0]:.4f}. Scores are alignment times length."
    )
    along = flip["along"]
    table = np.column_stack([np.array(along["scores"])[:, 1], along["weights"], along["out"]])
    columns = ["q·k_m", "p_river", "p_money", "p_the", "out x", "out y"]
    names = [f"a = {a:g}" for a in along["a"]]
    console.print(vectors(names, table, columns=columns, title="\nToward q_bank", digits=4))


def show_descent(console: Console, word: str, mover: str, s: dict, tied: dict) -> None:
    """Some steps of one descent, and what moved where."""
    _cli.title(console, f"In a {word} context, learning {mover}")
    decades = [i for i, t in enumerate(s["at"]) if str(t).strip("0") in ("", "1") or t == s["at"][-1]]
    rows = range(len(s["at"])) if mover == "q" else decades
    columns = ["p_t", "loss", "lead", "cos k_t", "cos u", "|q|"]
    table = np.column_stack([s[name] for name in ("p", "loss", "lead", "cos", "cos_widest", "norm")])[rows]
    console.print(vectors([f"{s['at'][i]:,}" for i in rows], table, columns=columns, digits=4))
    pulls = np.column_stack([np.reshape(s["pulls"], (-1, 6)), s["pull"]])
    seen = [i for i in decades if abs(pulls[i]).max() >= 5e-4]
    columns = [label for name in (*WORDS, "sum") for label in (name, "")]
    heading = "\nThe pulls of the keys on q, each x and y"
    console.print(vectors([f"{s['at'][i]:,}" for i in seen], pulls[seen], columns=columns, title=heading, digits=3))
    console.print(f"Their sum is −dL/dq: at no step is jax.grad further off than {s['off']:.0e}.\n")

    moved = f"p_{word} {went(s['p'])}, cos(q, k_{word}) {went(s['cos'])}"
    for name, extreme in ("most", s["max_cos"]), ("least", s["min_cos"]):
        if extreme["at"] not in (0, s["at"][-1]):
            moved += f", at {name} {extreme['cos']:.4f} in step {extreme['at']:,}"
    console.print(f"What moved: {moved}.")
    t, low, first = WORDS.index(word), s["min_score"], s["scores"][0]
    rival = max({0, 1, 2} - {t}, key=lambda j: first[j])
    fall, rival_fall = np.subtract(first, low["scores"])[[t, rival]]
    if low["p"] > s["p"][0] and 0 < fall < rival_fall:
        console.print(
            f"By step {low['at']:,} even the dot product q·k_{word} had fallen, by {fall:.4f}. The attention to {word} "
            f"grew all the same, because q·k_{WORDS[rival]} fell by {rival_fall:.4f}."
        )
    if mover == "q":
        if s["p"][-1] > s["p"][0] and s["cos"][-1] < s["cos"][0]:
            console.print(f"The slogan fails: q_bank learned to attend {word} by turning away from k_{word}.")
        (x, y), margin = s["widest"], s["margin"]
        console.print(
            f"Theory for frozen keys: the direction of q tends to u = [{x:.4f}, {y:.4f}], where γ = {margin:.4f}; |q| "
            "grows like log t without end, by ln 10/(cγ) in every tenfold of steps; the loss falls like 1/t, so that "
            "η·t·loss tends to 1/(cγ)², with learning rate η. It needs η·t far beyond 1/(cγ)². At the end here:"
        )
        console.print(vectors(list(s["theory"]), list(s["theory"].values()), columns=["measured", "limit"], digits=4))
    elif mover == "q and K":
        console.print(
            "The keys move too, by −dL/dk_j = c p_j (a_j − ā) q: the target's along q, the others' against it. These "
            f"moves sum to 0: the mean key moved by {s['mean_key_moved']:.0e} in all. |q|² − |K|² changed by "
            f"{s['balance'][0]:.6f}; theory, η² Σ_t (|dL/dq|² − |dL/dK|²), says {s['balance'][1]:.6f}."
        )
    else:
        off = np.abs(np.subtract(tied["moved"], tied["theory"])).max()
        shares = ", ".join(f"{name} {x:g}" for name, x in zip(WORDS, tied["overlap"], strict=True))
        console.print(
            "W_K is shared by all words, so the mean key is not held: it moved by up to "
            f"{s['mean_key_moved']:.4f}. W_Q is shared too: a step on bank's loss moves the query of every word, by "
            f"x_i·x_bank times the pull on q_bank: {shares} (jax.grad agrees to {off:.0e})."
        )


def went(x: list[float]) -> str:
    first, last = f"{x[0]:.4f}", f"{x[-1]:.4f}"
    return f"stayed at {first}" if first == last else f"{'rose' if x[-1] > x[0] else 'fell'} from {first} to {last}"


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
