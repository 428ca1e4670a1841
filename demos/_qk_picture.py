"""The picture of qk_clip.py: the largest logit, the entropy and the loss along training, each seed a thin line."""

import numpy as np
from matplotlib.figure import Figure

INKS = {"unclipped": "#D55E00", "clipped": "#0072B2", "uniform": "0.45"}
NAMES = {"unclipped": "plain training", "clipped": "with QK-clip", "uniform": "attention held uniform"}
PANELS = {
    "max_logit": "the largest logit of any head",
    "entropy": "entropy of attention, as a share of the most",
    "loss": "loss, nats a letter, mean of each pass over the text",
}


def draw(r: dict) -> Figure:
    figure = Figure(figsize=(13, 4.4), layout="constrained")
    figure.suptitle(
        f"Lion at a learning rate of {r['rates']['large']:g}, {len(r['seeds'])} seeds (thin) and their mean (thick)"
    )
    for ax, (name, what) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for run, ink in INKS.items():
            if name != "loss" and run == "uniform":
                continue  # no logits, and all the entropy
            x = np.array(r["series"][run][name])
            at = np.linspace(0, r["steps"], x.shape[1], endpoint=False)
            at = at + (r["steps"] / r["epochs"] / 2 if name == "loss" else 0)  # the middle of each pass
            ax.plot(at, x.T, color=ink, lw=0.6, alpha=0.4)
            mean = np.exp(np.log(x).mean(0)) if name == "max_logit" else x.mean(0)
            ax.plot(at, mean, color=ink, lw=2.4, label=NAMES[run])
        ax.set_title(what, fontsize=10)
        ax.set_xlabel("step")
        if name == "max_logit":
            ax.set_yscale("log")
            ax.axhline(r["threshold"], color="black", ls=":", lw=1.2, label=f"τ = {r['threshold']:g}")
        ax.legend(fontsize=8)
    return figure
