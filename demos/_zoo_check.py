"""How far a recipe of model_zoo.py is from the layer of `transformers` that it reproduces, and the table of all."""

from typing import Any

import _cli
import _zoo_torch as zoo
import jax
import numpy as np
from rich.console import Console

LIMIT = 1e-5
SHOWS = {
    "BERT": "no mask, biases", "GPT-2": "causal, biases", "T5 encoder": "learned relative bias",
    "T5 decoder": "the same, one way", "BLOOM": "ALiBi", "MPT": "ALiBi", "GPT-NeoX": "partial rotary",
    "Llama 3": "grouped, scaled rotary", "Mistral": "window", "Qwen 3": "norm of q and k",
    "Gemma 2": "soft cap, windows by turns", "Gemma 3": "norm, two rotaries, windows", "Phi-3": "LongRoPE, window",
    "gpt-oss": "sinks, YaRN, windows", "DeepSeek-V3": "latent, expanded",
    "DeepSeek-V3 absorbed": "latent, absorbed",
}  # fmt: skip


def errors(layer: zoo.Layer, recipe: Any) -> tuple[float, float]:
    """Of the output and of the input's gradient, the largest difference from torch over the largest entry."""
    by = np.random.default_rng(0).standard_normal(layer.x.shape).astype(np.float32)

    @jax.jit
    def ours(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, pull = jax.vjp(lambda x: recipe(layer.weights, layer.config, x, layer.index), x)
        return out, pull(by)[0]

    pairs = zip(ours(layer.x), zoo.value_and_grad(layer, by), strict=True)
    found = [float(np.abs(np.asarray(a) - b).max() / np.abs(b).max()) for a, b in pairs]
    return found[0], found[1]


def check(model: str, recipes: dict[str, Any], seed: int) -> list[dict]:
    """A row for each layer of a model, and for each form of its recipe."""
    rows = []
    for layer in zoo.layers(model, seed):
        for name in recipes:
            if name in (layer.name, f"{layer.name} absorbed"):
                value, gradient = errors(layer, recipes[name])
                row = {"model": name, "shows": SHOWS[name], "layer": layer.index}
                rows.append({**row, "value": value, "gradient": gradient})
    return rows


def show(console: Console, r: dict) -> None:
    _cli.title(console, f"Layer by layer: the largest difference from transformers over the largest entry, T = {zoo.T}")
    lines = [[row["model"], row["shows"], str(row["layer"]), f"{row['value']:.1e}", f"{row['gradient']:.1e}"]
             for row in r["rows"]]  # fmt: skip
    console.print(_cli.table(["model", "its attention", "layer", "value", "input\ngradient"], lines, left=2))
    worst = max(max(row["value"], row["gradient"]) for row in r["rows"])
    console.print(f"The worst is {worst:.1e}; the claim is {r['limit']:.0e}, in float32.")
