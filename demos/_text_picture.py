"""The picture of learns_from_text.py: attention along training, small multiples on one scale."""

import numpy as np
from _corpus import RELATIONS, ROLES, STORY
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INKS = {"river": "#0072B2", "water": "#009E73", "money": "#D55E00", "deposit": "#B8006F"}


def draw(r: dict) -> Figure:
    """Above: bank's attention in three sentences. Below: each word's attention to its clues, beside the controls."""
    figure = Figure(figsize=(12, 6.8), layout="constrained")
    above, below = figure.subfigures(2, 1)
    n = r["readers"]
    who = f"{n} readers (thin lines, or a band) and their mean" if n > 1 else "1 reader"
    figure.suptitle(f"Attention along training, in sentences never trained on: {who}", fontsize=12)
    axes = above.subplots(1, len(STORY), sharey=True)
    for s, ax in enumerate(axes):
        story(ax, r, s)
    axes[0].set_ylabel("attention of bank")
    axes = below.subplots(1, len(RELATIONS), sharey=True)
    for i, (word, ax) in enumerate(zip(RELATIONS, axes, strict=True)):
        clues(ax, r, i)
        ax.set_title(f"{word}: {ROLES[word]}", fontsize=10)
        ax.set_xlabel("step")
    axes[0].set_ylabel("attention to the clues")
    axes[-1].legend(loc="center right", fontsize=8)
    return figure


def band(ax: Axes, at: list[int], x: dict, i: tuple, **style: object) -> None:
    mean, least, most = (np.array(x[key])[i] for key in ("mean", "least", "most"))
    ax.fill_between(at, least, most, color=style["color"], alpha=0.15, lw=0)
    ax.plot(at, mean, **style)


def story(ax: Axes, r: dict, s: int) -> None:
    seen, words = r["kinds"]["reader"]["story"], STORY[s].split()
    for j, word in enumerate(words):
        if word in INKS:
            ink = INKS[word]
            ax.plot(r["at"], np.array(r["each_story"])[:, :, s, j].T, color=ink, lw=0.7, alpha=0.6)
            ax.plot(r["at"], np.array(seen["mean"])[:, s, j], color=ink, label=word, lw=2.4)
    others = [j for j, word in enumerate(words) if word not in INKS]
    ax.plot(r["at"], np.array(seen["mean"])[:, s, others].sum(1), color="0.5", ls=":", label="all other words")
    ax.set_ylim(-0.02, 1.2)  # room for the legend
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.set_title(f"“{STORY[s]}”", fontsize=9)
    ax.legend(loc="upper center", ncols=3, fontsize=8, frameon=False)


def clues(ax: Axes, r: dict, i: int) -> None:
    looks = {"reader": ("#007A5E", "-"), "positions": ("#B8006F", "-."), "uniform": ("0.35", ":")}
    names = {"reader": "reader", "positions": "sees positions alone", "uniform": "held uniform"}
    for kind, (ink, dashes) in looks.items():
        band(ax, r["at"], r["kinds"][kind]["on_clue"], (slice(None), i), color=ink, ls=dashes, lw=1.6,
             label=names[kind])  # fmt: skip
    ax.set_ylim(-0.02, 1.02)
