"""The story that the page of bank and river tells, in the order in which it is best met.

Every number in it is formatted from what was computed, and every frame is found in it: the words below hold no digit.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
from _bank_toy import WORDS, C, K, V

import jattn
from jattn import page

RIVER, MONEY = WORDS.index("river"), WORDS.index("money")
TO_RIVER, TO_MONEY = "−log p_river", "−log p_money"


def story(
    runs: dict[tuple[str, str], dict], row: jattn.Steps, rates: dict[str, float], parts: Sequence[page.Part]
) -> page.Part:
    """The story of parts: the runs by (loss, learner), in their order, and last the steps of one row of attention."""
    places = list(runs)
    of = {name: (runs[name], places.index(name)) for name in places}
    plain, money = of[TO_RIVER, "gradient descent"], of[TO_MONEY, "gradient descent"]
    told = [
        attend(*plain), why(row, len(runs)), pulls(*plain), one_step(*plain, rates["gradient descent"]), turn(*money),
        margin(*money, plain[0]), adam(*of[TO_RIVER, "Adam"], plain[0]),
        free_keys(*of[TO_MONEY, "gradient descent, q and K"], money[0]),
    ]  # fmt: skip
    return page.story(parts, told, title="The story, step by step")


def attend(r: dict, part: int) -> page.Step:
    p = r["weights"][0]
    text = f"""How far “bank” attends to each word is decided by its query, q = {vector(r["q"][0])}, and by a key for
        each word. The weights say how much of each word flows into bank: {each(p, percent)}. Together they are
        {percent(p.sum(), 0)}."""
    try_ = "In the plane, drag the ring at q, or move it with the arrow keys: the weights follow."
    return page.Step("Attend", joined(text), ("weights", "plane"), 0, try_, part)


def why(row: jattn.Steps, part: int) -> page.Step:
    scores, scaled, p = (np.asarray(x)[0] for x in (row.scores, row.scaled, row.weights))
    exps = np.exp(scaled - scaled.max())
    text = f"""A weight begins as a dot product of the query and a key, q·k: {each(scores)}. It is divided by
        √{K.shape[1]} ({each(scaled)}). The exponential of its difference from the largest makes it positive
        ({each(exps)}), and dividing by their sum, {number(exps.sum())}, makes it a share: {each(p)}. The values of the
        words, in these shares, add up to what bank becomes: {vector(p @ V)}."""
    try_ = "Press “From the start” in that panel, and build the row up column by column."
    return page.Step("Why these weights", joined(text), "steps", try_=try_, part=part, row=0)


def pulls(r: dict, part: int) -> page.Step:
    p, mean = r["weights"][0], r["weights"][0] @ K
    pull = C * (K[RIVER] - mean)
    along = C * (np.eye(len(p))[RIVER] - p) * (K @ pull) / np.linalg.norm(pull)
    text = f"""Let bank learn to attend to river: the loss L = −log p_river is {number(r["loss"][0])}, and q goes
        downhill, along −dL/dq. Each key pulls on q, along itself or against itself. Measured along the way that q goes
        these pulls are: {each(along, signed)}; together {number(np.linalg.norm(pull))}.

        The sum of the pulls is c (k_river − k̄), with c = {number(C)}: not toward river’s key, but toward it less the
        mean key k̄ = {vector(mean)}, which bank attends to already."""
    try_ = "Choose “money” in the table: its pull is written out below it."
    return page.Step("The pull of each key", joined(text), ("pulls", "plane"), 0, try_, part, RIVER)


def one_step(r: dict, part: int, rate: float) -> page.Step:
    p, cos, loss = r["p"], r["cosines"]["k_river"], r["loss"]
    text = f"""One step of gradient descent, of learning rate {rate:g}, takes q from {vector(r["q"][0])} to
        {vector(r["q"][1])}. The loss falls from {number(loss[0])} to {number(loss[1])}, and the weight of river rises
        from {percent(p[0])} to {percent(p[1])}. Yet q no longer points at river’s key: cos(q, k_river) goes from
        {number(cos[0], 4)} to {number(cos[1], 4)}."""
    try_ = "Press ▶ in the bar at the bottom: it takes the next step."
    return page.Step("One step", joined(text), ("plane", "loss", "cosines"), 1, try_, part)


def turn(r: dict, part: int) -> page.Step:
    cos, p, scores = r["cosines"]["k_money"], r["p"], np.einsum("fsd,fd->fs", r["k"], r["q"])
    t = int(cos.argmin())
    fell = scores[0] - scores[t]
    text = f"""Now bank is to attend to money instead. After {r["steps"][t]:,} steps its weight has risen from
        {percent(p[0])} to {percent(p[t])}, and q has turned away from money’s key: cos(q, k_money) went from
        {number(cos[0])} to {number(cos[t])}. A weight grows not by its own score but by its lead: the score of money,
        q·k_money, fell by {number(fell[MONEY])}, but that of river, whose key is longer, by {number(fell[RIVER])}."""
    try_ = "Press Play, and watch which way q sets out and which way it ends."
    return page.Step("The turn away from money", joined(text), ("plane", "cosines"), t, try_, part, MONEY)


def margin(r: dict, part: int, river: dict) -> page.Step:
    cos, size = r["cosines"], r["norm"][-1]
    text = f"""Where does q go in the end? Its direction tends to u, the dashed line: there money’s score leads that of
        its nearest rival by the widest margin, {number(r["widest_margin"], 4)} for each unit of |q|. After
        {r["steps"][-1]:,} steps cos(q, u) is {number(cos["max margin"][-1], 4)}, but cos(q, k_money) is
        {number(cos["k_money"][-1])}. So narrow a margin asks for a long query: |q| is {number(size, 1)}, and money’s
        weight only {percent(r["p"][-1])}. For river the margin is {number(river["widest_margin"], 4)}: there |q| of
        {number(river["norm"][-1], 1)} gives {percent(river["p"][-1], 2)}."""
    try_ = f"Choose “{TO_RIVER}” as the loss, in the line above the plane, and compare the scales."
    return page.Step("Margin", joined(text), ("plane", "margin", "norm"), len(r["q"]) - 1, try_, part, MONEY)


def adam(r: dict, part: int, plain: dict) -> page.Step:
    widest, key = ([x["cosines"][name][-1] for x in (r, plain)] for name in ("max margin", "k_river"))
    p, there = r["p"][-1], plain["p"][-1]
    text = f"""Back to river, with Adam. Adam divides each coordinate of the gradient by its own recent size, so that
        all coordinates move at nearly the same pace: q ends at {vector(r["q"][-1], 1)}, where gradient descent ended at
        {vector(plain["q"][-1], 1)}. The weight of river is {percent(p, 2)} here and {percent(there, 2)} there; but
        cos(q, u) is {number(widest[0])}, not {number(widest[1])}, and cos(q, k_river) is {number(key[0])}, not
        {number(key[1])}. The loss does not say where a query ends: the optimiser does."""
    try_ = "Choose “sign descent” as the optimiser, above the plane: its steps are equally long in every coordinate."
    return page.Step("What Adam does", joined(text), ("plane", "cosines"), len(r["q"]) - 1, try_, part)


def free_keys(r: dict, part: int, frozen: dict) -> page.Step:
    cos, k, mean = r["cosines"]["k_money"], r["k"][:, MONEY], r["k"].mean(1)
    text = f"""So far the keys stood still. Let them learn as well, and to attend to money q does come to point at its
        key: cos(q, k_money) goes from {number(cos[0])} to {number(cos[-1], 5)}, with |q| = {number(r["norm"][-1], 1)}
        instead of {number(frozen["norm"][-1], 1)}. The key came to meet it, from {vector(k[0])} to {vector(k[-1])}; the
        others were pushed back, and the mean of all keys stayed where it was, to {about(np.abs(mean - mean[0]).max())}.

        “The query moves toward the key” holds where the key may move too."""
    try_ = "Press Play: the keys part, and q follows one of them."
    return page.Step("Free keys", joined(text), ("plane", "conserved"), len(r["q"]) - 1, try_, part, MONEY)


def joined(text: str) -> str:
    """The text with its lines joined; an empty line still parts paragraphs."""
    return "\n\n".join(re.sub(r"[ \n]+", " ", part).strip() for part in text.split("\n\n"))


def number(x: float, digits: int = 3) -> str:
    return f"{round(float(x), digits) + 0.0:.{digits}f}".replace("-", "−")


def signed(x: float) -> str:
    return ("+" if x > 0 else "") + number(x)


def percent(x: float, digits: int = 1) -> str:
    return f"{x:.{digits}%}".replace("%", "\N{NO-BREAK SPACE}%")


def about(x: float) -> str:
    return f"{x:.0e}".replace("-", "−")


def vector(x: np.ndarray, digits: int = 3) -> str:
    return f"({', '.join(number(y, digits) for y in x)})"


def each(x: np.ndarray, write: Callable[[float], str] = number) -> str:
    return ", ".join(f"{word} {write(y)}" for word, y in zip(WORDS, x, strict=True))
