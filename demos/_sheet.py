"""The sheet that masks_and_scores.py leaves: what there is to draw, and how."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from jattn import masks, scores

N, TILE = 128, 16
LEARNED = np.sin(np.arange(32) * 1.7)
"""A table such as training might leave."""


def document_causal(ids: np.ndarray) -> masks.Mask:
    return masks.segments(ids) & masks.causal()


def every_mask() -> dict[str, masks.Mask]:
    at = np.arange(N)
    ids = np.searchsorted([20, 60, 100], at, side="right")
    table = np.random.default_rng(1).permuted(np.tile(np.arange(8) < 2, (8, 1)), axis=1)
    return {
        "causal()": masks.causal(),
        "window(24, 0)": masks.window(24, 0),
        "prefix(40) | causal()": masks.prefix(40) | masks.causal(),
        "segments(ids)": masks.segments(ids),
        "segments(ids) & causal()": document_causal(ids),
        "lengths(q=90, k=70)": masks.lengths(q=90, k=70),
        "chunked(32)": masks.chunked(32),
        "dilated(4)": masks.dilated(4),
        "dilated(4) & window(63, 0)": masks.dilated(4) & masks.window(63, 0),
        "blocks(table, 16)": masks.blocks(table, 16),
        "dense(array)": masks.dense(np.kron(table, np.ones((16, 16), bool))),
        "where(|t - s| is a square)": masks.where(
            lambda t, s: jnp.round(jnp.sqrt(abs(t - s) * 1.0)) ** 2 == abs(t - s)
        ),
        "where(t * s < 2000)": masks.where(lambda t, s: t * s < 2000),
        "~window(16) | prefix(4)": ~masks.window(16) | masks.prefix(4),
        "full()": masks.full(),
        "empty()": masks.empty(),
    }


def every_score() -> dict[str, Any]:
    return {
        "alibi(0.05)": scores.alibi(0.05),
        "relative_bias(table)": scores.relative_bias(jnp.asarray(LEARNED)),
        "distance_bias(table)": scores.distance_bias(jnp.asarray(LEARNED[:31])),
        "compose(alibi(0.05), soft_cap(2))": scores.compose(scores.alibi(0.05), scores.soft_cap(2.0)),
    }


CURVES = {"soft_cap(30)": scores.soft_cap(30.0), "temperature(2)": scores.temperature(2.0)}
COLOURS = ListedColormap(["#FFFFFF", "#D9E2EC", "#7FB0D6", "#0B4F8A"])
"""Not visited; visited and masked, where no pair meets and where one does; not masked."""


def draw(rows: list[dict], made: dict[str, Any]) -> Figure:
    """A panel for each mask and each score, queries down and keys across."""
    figure = Figure(figsize=(11.5, 10.2), layout="constrained")
    figure.suptitle(
        f"Masks and scores of {N} queries (down) and keys (across), tiles of {TILE} × {TILE}. "
        "White: not visited. Grey: visited, ruled out\nby the mask. Blue: meets; dark where the whole tile does and "
        "needs no mask.",
        fontsize=10,
    )
    panels = iter(figure.subplots(4, 6).ravel())
    for row in rows:
        ax, told = next(panels), np.kron(row["told"], np.ones((TILE, TILE), int))
        shade = np.where(told == 0, 0, np.where(row["dense"], np.where(told == 2, 3, 2), 1))
        ax.imshow(shade, cmap=COLOURS, vmin=0, vmax=3, interpolation="nearest")
        ax.set_title(f"{row['mask']}\n{row['visited']} of {np.size(row['told'])} tiles", fontsize=8)
    most = max(np.abs(x).max() for code, x in made.items() if "bias" in code)
    for code, x in made.items():
        ax = next(panels)
        ax.imshow(x, cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
        ax.set_title(code.replace(", ", ",\n") + ("" if "," in code else "\n"), fontsize=8)
    for ax in figure.axes[: len(rows) + len(made)]:
        ax.set_xticks([])
        ax.set_yticks([])
    x = jnp.linspace(-90.0, 90.0, 181)
    for code, f in CURVES.items():
        ax = next(panels)
        ax.plot(x, x, color="#B0B0B0", linewidth=0.8)
        ax.plot(x, f(x, jnp.int32(0), jnp.int32(0)), color="#0B4F8A")
        ax.set_aspect("equal")
        ax.tick_params(labelsize=6)
        ax.set_title(f"{code}\nscore in, score out", fontsize=8)
    for ax in panels:
        ax.set_axis_off()
    return figure
