"""The picture of one scenario of gradient_flow.py: its panels side by side."""

import numpy as np
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#007A5E", "#9A4C85", "#7A6A00", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))


def draw(title: str, panels: list[dict], linear: bool) -> Figure:
    figure = Figure(figsize=(max(9.0, 4.1 * len(panels)), 3.9), layout="constrained")
    figure.suptitle(title)
    for ax, panel in zip(np.ravel(figure.subplots(1, len(panels))), panels, strict=True):
        shown = slice(None) if linear else panel["x"] > 0  # step 0 has no place on a logarithmic scale
        x = panel["x"][shown]
        for (name, y), colour, dash in zip(panel["lines"].items(), COLOURS, DASHES, strict=False):
            ax.plot(x, y[shown], color=colour, ls=dash, lw=1.6, label=name, marker="o" if len(x) < 5 else None)
        if not linear:
            ax.set_xscale("log")
        if panel["ylog"]:
            ax.set_yscale("log")
        if "ticks" in panel:
            ax.set_xticks(x, panel["ticks"])
        ax.set_xlabel(panel["xlabel"])
        ax.set_title(panel.get("title", ""), fontsize=10)
        ax.legend(fontsize=8, framealpha=0.9)
        ax.grid(alpha=0.25)
    return figure
