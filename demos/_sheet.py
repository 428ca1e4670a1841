"""The sheet that masks_and_scores.py writes: its masks and scores, and the figure."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from jattn import masks, scores
from jattn.masks import EMPTY, FULL

N, TILE = 128, 16
LEARNED = np.sin(np.arange(32) * 1.7)
"""A table such as training might leave."""


def document_causal(ids: np.ndarray) -> masks.Mask:
    return masks.segments(ids) & masks.causal()


def is_square(t: Any, s: Any) -> Any:
    away = abs(t - s)
    return jnp.sqrt(away.astype(jnp.float32)).round().astype(jnp.int32) ** 2 == away


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
        "sinks(4) | window(24, 0)": masks.sinks(4) | masks.window(24, 0),
        "ragged(starts)": masks.ragged([0, 20, 60, 100, 120]),
        "tree(parents)": masks.tree(np.where((at == 64) | (at == 96), 31, at - 1)),
        "neighbourhood((8, 16), 2)": masks.neighbourhood((8, 16), 2),
        "strided(32, 8)": masks.strided(32, 8),
        "dilated(4)": masks.dilated(4),
        "dilated(4) & window(63, 0)": masks.dilated(4) & masks.window(63, 0),
        "blocks(table, 16)": masks.blocks(table, 16),
        "chosen_blocks(indices, 16)": masks.chosen_blocks([[0, i // 2, i] for i in range(N // 16)], 16),
        "dense(array)": masks.dense(np.kron(table, np.ones((16, 16), bool))),
        "where(|t - s| is a square)": masks.where(is_square),
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
        "compose(alibi, soft_cap)": scores.compose(scores.alibi(0.05), scores.soft_cap(2.0)),
    }


CURVES = {"soft_cap(2)": scores.soft_cap(2.0), "temperature(2)": scores.temperature(2.0)}
COLOURS = ListedColormap(["#FFFFFF", "#D9E2EC", "#7FB0D6", "#0B4F8A"])
"""Not visited; visited and masked, where a pair is not allowed and where it is; not masked."""


def draw(rows: list[dict], made: dict[str, Any]) -> Figure:
    """A panel for each mask and each score, queries down and keys across."""
    figure = Figure(figsize=(10, 10), layout="constrained")
    figure.suptitle(
        f"Masks and scores of {N} queries (down) and keys (across), tiles of {TILE} × {TILE}. "
        "White: not visited. Grey: visited, ruled out\nby the mask. Blue: allowed; dark where the whole tile is and "
        "needs no mask.",
        fontsize=9,
    )
    panels = iter(figure.subplots(5, 6).ravel())
    for row in rows:
        ax, states = next(panels), np.kron(row["told"], np.ones((TILE, TILE), int))
        shade = np.where(states == EMPTY, 0, np.where(row["dense"], np.where(states == FULL, 3, 2), 1))
        ax.imshow(shade, cmap=COLOURS, vmin=0, vmax=3, interpolation="nearest")
        ax.set_title(f"{row['mask']}\n{row['visited']} of {np.size(row['told'])} tiles", fontsize=7)
    for code, x in made.items():
        ax = next(panels)
        most = np.abs(x).max()
        ax.imshow(x, cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
        ax.set_title(f"{code}\n{np.min(x):.2g} (blue) to {np.max(x):.2g}", fontsize=7)
    x = jnp.linspace(-5.0, 5.0, 181)
    for code, f in CURVES.items():
        ax = next(panels)
        ax.plot(x, x, color="#B0B0B0", linewidth=0.8)
        ax.plot(x, f(x, jnp.int32(0), jnp.int32(0)), color="#0B4F8A")
        ax.set_aspect("equal")
        ax.set_title(f"{code}\nscores from −5 to 5, in and out", fontsize=7)
    for ax in panels:
        ax.set_axis_off()
    for ax in figure.axes:
        ax.set_xticks([])
        ax.set_yticks([])
    return figure
