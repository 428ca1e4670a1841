"""The picture of real_bank.py: attention, its control, the masking, and what predicts a head's effect."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def draw(r: dict) -> Figure:
    """Attention of every head beside its control; the score under masking; two predictors against the effect."""
    figure = Figure(figsize=(12, 7.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1, 1.15))
    figure.suptitle(f"“{r['sentence']}”: {r['word']} → {r['clue']} in all-MiniLM-L6-v2", fontsize=12)
    attention, control = top.subplots(1, 2)
    image = grid(attention, np.array(r["attention"]), f"Attention from {r['word']} to {r['clue']}")
    if r["control"] is not None:
        grid(control, np.array(r["control"]), "Control: the same distance in sentences without them")
    else:
        control.set_axis_off()
    top.colorbar(image, ax=[attention, control], label="attention", pad=0.01)
    masking, by_attention, by_gradient = bottom.subplots(1, 3)
    mask(masking, r)
    effect = abs(np.array(r["effect"])).ravel()
    against(by_attention, np.array(r["attention"]).ravel(), effect, "attention", r["agreement"]["attention"], r)
    against(by_gradient, abs(np.array(r["estimate"])).ravel(), effect, "|gradient estimate|",
            r["agreement"]["gradient"], r)  # fmt: skip
    return figure


def grid(ax: Axes, x: np.ndarray, text: str) -> object:
    image = ax.imshow(x, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    for (layer, head), w in np.ndenumerate(x):
        if w >= 0.1:
            ink = "black" if w > 0.55 else "white"
            ax.text(head, layer, f"{w:.2f}", ha="center", va="center", fontsize=8, color=ink)
    ax.set_xticks(range(x.shape[1]))
    ax.set_yticks(range(x.shape[0]))
    ax.set(xlabel="head", ylabel="layer")
    ax.set_title(text, fontsize=10)
    return image


def mask(ax: Axes, r: dict) -> None:
    one, other = r["senses"]
    for level, text in ((1, one), (0, "undecided"), (-1, other)):
        ax.axhline(level, color="0.6", lw=0.8, ls="-" if level else "--", zorder=0)
        ax.annotate(text, (0, level), (3, 3), textcoords="offset points", ha="left", fontsize=8, color="0.35",
                    xycoords=("axes fraction", "data"))  # fmt: skip
    ax.plot(100 * np.array(r["taken"]), r["masked"], "o-", color="#0072B2", ms=4, lw=1.6)
    ax.set(
        xlabel=f"share of {r['word']} → {r['clue']} taken away, %",
        ylabel=f"sense of {r['word']}",
        ylim=(-1.6, 1.6),
        xlim=(-22, 105),
    )
    ax.set_xticks(range(0, 101, 25))
    ax.set_title("Masking in every head", fontsize=10)


def against(ax: Axes, guess: np.ndarray, effect: np.ndarray, text: str, rho: float | None, r: dict) -> None:
    least = 1e-6  # float32: an effect below is rounding
    layer = np.arange(len(guess)) // (len(guess) // len(r["attention"]))
    dots = ax.scatter(np.maximum(guess, least), np.maximum(effect, least), c=layer, cmap="plasma", s=20,
                      vmin=0, vmax=len(r["attention"]) - 0.2, zorder=3)  # fmt: skip
    top = np.array(r["attention"]).argmax()
    ax.plot(max(guess[top], least), max(effect[top], least), "o", mfc="none", mec="#B8006F", ms=11, mew=1.6, zorder=4)
    side = "right" if guess[top] > 0.3 * guess.max() else "left"  # a label at the right would leave the axes
    ax.annotate("attends most", (max(guess[top], least), max(effect[top], least)), (4, -10), color="#B8006F",
                textcoords="offset points", ha=side, va="top", fontsize=8, zorder=5)  # fmt: skip
    if "gradient" in text:
        ends = [least, max(guess.max(), effect.max(), 10 * least)]
        ax.plot(ends, ends, color="0.6", lw=0.8, zorder=0)
    ax.set(xscale="log", yscale="log", xlabel=text, ylabel="|effect of taking the head away|")
    ax.set_title(f"rank correlation {'–' if rho is None else f'{rho:.2f}'} over {len(guess)} heads", fontsize=10)
    if "gradient" in text:
        ax.figure.colorbar(dots, ax=ax, label="layer", pad=0.01, ticks=range(len(r["attention"])))
