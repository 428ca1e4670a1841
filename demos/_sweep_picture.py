"""The picture of sweep.py."""

import numpy as np
from matplotlib.figure import Figure


def draw(of, steps, rates, words, file):
    """The rate of alignment over the learning rate, toward two words; `of` holds each optimiser's steps before."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for i, (axis, word) in enumerate(zip(axes, words, strict=False)):
        for name, x in of.items():
            low, middle, high = np.quantile(1 / np.maximum(x[..., i], 1), (0.1, 0.5, 0.9), axis=0)
            axis.plot(rates, middle, label=name)
            axis.fill_between(rates, low, high, alpha=0.2)
        axis.set(xscale="log", yscale="log", xlabel="learning rate", title=f"toward {word}")
        axis.axhline(1 / steps, color="0.6", lw=0.8, ls=":")
    axes[0].set_ylabel("rate of alignment: 1 / steps to 90 %")
    axes[0].legend(title="median, 10 to 90 %", frameon=False)
    figure.savefig(file, dpi=120)
