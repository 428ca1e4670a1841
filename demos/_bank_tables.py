"""The parts of bank_river.py's page: the toy, the flip of the weights, and each descent."""

import _cli
import numpy as np
from _bank_toy import WAYS, WORDS, K, Q
from rich.console import Console

from jattn.console import bars, vectors


def show_toy(console: Console, toy: dict) -> None:
    _cli.title(console, "1. The toy: the query of bank, q = [1, 0], and three keys")
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
        "On the way k_money = [0.2, 0.1] + a·u, by formula and by bisection of the weights for a up to 16:"
    )
    for name, way in flip["ways"].items():
        u = f"[{WAYS[name][0]:g}, {WAYS[name][1]:g}], {name}"
        found = "never: u ⊥ q" if way["formula"] is None else f"a = {way['formula']:.6f}"
        seen = "no flip" if way["measured"] is None else f"a = {way['measured']:.6f}"
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
        if shows(extreme["cos"]) not in (shows(s["cos"][0]), shows(s["cos"][-1])):
            moved += f", at {name} {extreme['cos']:.4f} in step {extreme['at']:,}"
    console.print(f"What moved: {moved}.")
    t, low, first = WORDS.index(word), s["min_score"], s["scores"][0]
    rival = max({0, 1, 2} - {t}, key=lambda j: first[j])
    fall, rival_fall = np.subtract(first, low["scores"])[[t, rival]]
    if shows(low["p"]) > shows(s["p"][0]) and 0 < shows(fall) < shows(rival_fall):
        console.print(
            f"By step {low['at']:,} even the dot product q·k_{word} had fallen, by {fall:.4f}. The attention to {word} "
            f"grew all the same, because q·k_{WORDS[rival]} fell by {rival_fall:.4f}."
        )
    if mover == "q":
        if shows(s["p"][-1]) > shows(s["p"][0]) and shows(s["cos"][-1]) < shows(s["cos"][0]):
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
            f"{number(s['balance'][0], 6)}; theory, η² Σ_t (|dL/dq|² − |dL/dK|²), says {number(s['balance'][1], 6)}."
        )
    else:
        off = np.abs(np.subtract(tied["moved"], tied["theory"])).max()
        shares = ", ".join(f"{name} {x:g}" for name, x in zip(WORDS, tied["overlap"], strict=True))
        console.print(
            "W_K is shared by all words, so the mean key is not held: it moved by up to "
            f"{number(s['mean_key_moved'])}. W_Q is shared too: a step on bank's loss moves the query of every word, "
            f"by x_i·x_bank times the pull on q_bank: {shares} (jax.grad agrees to {off:.0e})."
        )


def shows(x: float) -> float:
    """What four decimals show of a number: what the page says, it says of these."""
    return round(float(x), 4)


def number(x: float, digits: int = 4) -> str:
    """A number to so many decimals; a large one with an exponent in place of its zeros."""
    return f"{x:.{digits}f}" if abs(x) < 1e6 else f"{x:.{digits}e}"


def went(x: list[float]) -> str:
    first, last = f"{x[0]:.4f}", f"{x[-1]:.4f}"
    return f"stayed at {first}" if first == last else f"{'rose' if x[-1] > x[0] else 'fell'} from {first} to {last}"
