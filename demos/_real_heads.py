"""What each head attends in the sentence, what it does to the sense as a whole, and what it would learn.

The effect of a head is that of a gate on all it writes. Beside its knock-out stand the first order, gradient ×
activation, and the second; and the words that one step of gradient descent on its output matrix, toward the sense that
the word has, would have it write there. The model has no head over words: those of its embeddings stand in.
"""

from pathlib import Path

import _head_effects as heads
import numpy as np
from _bert import HEADS, LAYERS
from _cli import table, title
from _minilm import Model, Read
from rich.console import Console

from jattn import figures, page

MANY, WORDS = 8, 3  # heads and words shown
NUMBERS = ("previous_token", "first_token", "entropy", "first_order", "second_order", "knock_out")


def compute(model: Model, read: Read, told_apart: tuple, weights: np.ndarray) -> dict:
    """Every number about the heads, [L, H], of one sentence; `told_apart`: parameters, axis, ids, n, at."""
    parameters, _, ids, n, _ = told_apart
    effects, attended = heads.whole(*told_apart), heads.attended(parameters, ids, n)
    made = {x: np.array(getattr(attended, x), np.float64) for x in ("previous_token", "first_token", "entropy")}
    made |= {x: np.array(getattr(effects, x), np.float64) for x in ("first_order", "second_order", "knock_out")}
    lens = heads.lens(*told_apart, np.sign(effects.value), WORDS)
    raised = [
        [model.tokenizer.id_to_token(int(t)) for t in tokens] for tokens in np.array(lens.tokens).reshape(-1, WORDS)
    ]
    orders = {x: heads.agreement(made[x], made["knock_out"]) for x in ("first_order", "second_order")}
    return made | {
        "raised": raised, "decrease": np.array(lens.decrease, np.float64), "weights": weights[:, :, : read.n, : read.n],
        "orders": orders, "opposite": int((made["first_order"] * made["knock_out"] < 0).sum()),
    }  # fmt: skip


def write(r: dict, tokens: list[str], out: Path) -> list[Path]:
    """The page with the table to sort, and the scatter."""
    columns = {x.replace("_", " ").replace("knock ", "knock-"): r[x] for x in NUMBERS} | {"gradient²": r["decrease"]}
    numbers = page.head_table(columns, across=("first order", "knock-out"))
    note = (
        "Of each head: its mean weight on the previous and on the first token; the entropy of its rows in nats; what "
    )
    note += "taking it away does to the sense; and what a gradient step on its output matrix would gain, gradient²."
    names = [f"{x}.{y}" for x, y in np.ndindex(LAYERS, HEADS)]
    figure = figures.effects(r["first_order"], r["knock_out"], second_order=r["second_order"], labels=names)
    figure.axes[-1].set_yticks(range(LAYERS))
    arcs = page.heads(r["weights"], tokens, tokens)
    made = page.write(out / "real_bank_heads.html", "Heads at a glance", numbers, arcs, note=note)
    return [made, *figures.save(figure, out / "real_bank_heads")]


def show(console: Console, r: dict, word: str) -> None:
    title(console, "Heads taken away whole: what they attend, what they do, what they would learn")
    x = {name: np.array(r[name]) for name in NUMBERS}
    rows = []
    for i in np.argsort(-abs(x["knock_out"]), axis=None)[:MANY]:
        h = np.unravel_index(i, (LAYERS, HEADS))
        seen = [f"{x[name][h]:.2f}" for name in NUMBERS[:3]]
        does = [f"{x[name][h]:+.3f}" for name in NUMBERS[3:]]
        rows.append([f"{h[0]}.{h[1]}", *seen, *does, " ".join(r["raised"][i][:2])])
    console.print(table(["", "before", "[CLS]", "nats", "gradient", "2nd", "effect", "would write"], rows))
    first, second = (r["orders"][name] for name in ("first_order", "second_order"))
    worst = np.unravel_index(abs(x["first_order"] - x["knock_out"]).argmax(), (LAYERS, HEADS))
    console.print(
        "before, [CLS]: the mean weight on the token before and on the first. gradient: −∂score/∂gate, gradient × "
        f"activation; Spearman's correlation with the effect {first:+.3f}, the sign wrong for {r['opposite']} of "
        f"{LAYERS * HEADS}. It errs most on {worst[0]}.{worst[1]}: {x['first_order'][worst]:+.3f} for a true "
        f"{x['knock_out'][worst]:+.3f}; to second order {x['second_order'][worst]:+.3f}, which over all heads has a "
        f"correlation of {second:+.3f}."
    )
    console.print(
        f"would write: what a gradient step on the head's output matrix, toward the sense of {word!r}, adds there: "
        "the nearest word embeddings. In the last layer that is one direction for all heads, since no other token's "
        "output counts any more: they differ in how much."
    )
