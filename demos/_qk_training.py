"""A small language model of letters, trained plainly and with QK-clip, whose attention is measured at every step.

    γ_h = √(τ / max(τ, max_ts l_ts)),    W_q ← γ_h W_q,    W_k ← γ_h W_k        of each head h, after each step

with the largest logit that the step's own forward pass saw, as in the Kimi K2 report. One run is one function of a key
and a threshold; jax.vmap makes many runs out of it.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jattn
from jattn import heads, masks, positions

LAYERS, H, E, B, T, SYMBOLS = 2, 2, 16, 8, 32, 28
CAUSAL = masks.causal()
UNCLIPPED, UNIFORM = math.inf, 0.0
"""Thresholds: of plain training; and the one that makes W_q and W_k 0, so that attention is uniform from step 1 on."""


class Seen(NamedTuple):
    """What one step saw before it moved the weights."""

    loss: jax.Array
    """In nats a letter."""
    max_logit: jax.Array
    """[LAYERS, H] the largest of any query and key of the batch."""
    entropy: jax.Array
    """[LAYERS, H] the mean over the queries from the second on, as a share of the most that it can be."""


def letters() -> np.ndarray:
    """The text that the models learn, ERRATA.md: a to z are 0 to 25, a space is 26, all else 27."""
    text = (Path(__file__).parent / "ERRATA.md").read_text(encoding="utf-8").lower()
    places = {chr(ord("a") + i): i for i in range(26)} | {" ": 26}
    return np.array([places.get(letter, SYMBOLS - 1) for letter in text], np.int32)


def fresh(rng: np.random.Generator) -> dict[str, Any]:
    """Parameters before training, those of the layers [LAYERS, ...]: variance 1 / fan_in, for logits of size 1."""

    def normal(fan_in: int, *shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape) * fan_in**-0.5, np.float32)

    attend = {name: normal(E, LAYERS, E, H, E // H) for name in "qkv"} | {"out": normal(E, LAYERS, H, E // H, E)}
    layers = {"attend": attend, "up": normal(E, LAYERS, E, 4 * E), "down": normal(4 * E, LAYERS, 4 * E, E)}
    return {"embed": normal(E, SYMBOLS, E), "layers": layers}


def norm(x: jax.Array) -> jax.Array:
    return heads.rms_norm(x, jnp.ones(E, x.dtype))


def attend(w: dict[str, Any], x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Causal attention of one text x [T, E] to itself; the largest logit and the mean entropy of each head [H]."""
    q, k, v = heads.project(w, x, rope=positions.rotary)
    seen = jax.vmap(partial(jattn.statistics, mask=CAUSAL))(*jax.lax.stop_gradient((q, k)))
    share = seen.entropy[:, 1:] / jnp.log(jnp.arange(2, T + 1, dtype=x.dtype))[None]
    return heads.output(w, heads.grouped(q, k, v, mask=CAUSAL), x), seen.max_logit.max(1), share.mean(1)


def loss(params: dict[str, Any], text: jax.Array) -> tuple[jax.Array, Seen]:
    """Of the texts [B, T + 1]: the mean surprise at each next letter."""

    def layer(x: jax.Array, w: dict[str, Any]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        out, max_logit, entropy = jax.vmap(attend, (None, 0))(w["attend"], norm(x))
        x = x + out
        return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"], (max_logit.max(0), entropy.mean(0))

    x, measured = jax.lax.scan(layer, params["embed"][text[:, :-1]] * E**0.5, params["layers"])
    logits = norm(x) @ params["embed"].T
    value = optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()
    return value, Seen(value, *measured)


def clip(params: dict[str, Any], max_logit: jax.Array, threshold: jax.Array) -> dict[str, Any]:
    """The parameters with W_q and W_k of each head scaled so that its largest logit [LAYERS, H] becomes τ at most."""
    above = jnp.maximum(max_logit, jnp.finfo(max_logit.dtype).tiny)  # a threshold of 0 leaves W_q = W_k = 0
    factor = jnp.sqrt(jnp.where(max_logit >= threshold, threshold / above, 1))[:, None, :, None]
    w = params["layers"]["attend"]
    return params | {"layers": params["layers"] | {"attend": w | {name: w[name] * factor for name in "qk"}}}


@jax.jit
def train(params: dict[str, Any], thresholds: jax.Array, rate: jax.Array, text: jax.Array, starts: jax.Array) -> Seen:
    """What each step of each run saw: leaves [thresholds, seeds, steps, ...].

    Runs of one seed have the same parameters [seeds, ...] at first, and read the text at the same `starts`
    [seeds, steps, B].
    """
    rule = optax.lion(rate, weight_decay=0.0)  # each entry of each matrix moves by `rate`, up or down

    def run(params: dict[str, Any], starts: jax.Array, threshold: jax.Array) -> Seen:
        def step(carry: tuple, start: jax.Array) -> tuple:
            params, state = carry
            batch = text[start[:, None] + jnp.arange(T + 1, dtype=start.dtype)[None]]
            slope, seen = jax.grad(loss, has_aux=True)(params, batch)
            with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic mixes floats and counts
                change, state = rule.update(slope, state, params)
                params = optax.apply_updates(params, change)
            return (clip(params, seen.max_logit, threshold), state), seen

        return jax.lax.scan(step, (params, rule.init(params)), starts)[1]

    return jax.vmap(jax.vmap(run, (0, 0, None)), (None, None, 0))(params, starts, thresholds)


def train_seeds(seeds: range, thresholds: list[float], rate: float, epochs: int) -> Seen:
    """`train` from parameters that NumPy draws of each seed; each epoch is the whole text, in an order of its own."""
    text, drawn = letters(), []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        params, steps = fresh(rng), in_an_epoch(text)
        orders = [rng.permutation(steps * B).reshape(steps, B) for _ in range(epochs)]
        drawn.append((params, np.asarray(T * np.concatenate(orders), np.int32)))
    params, starts = jax.tree.map(lambda *x: np.stack(x), *drawn)
    of = np.asarray(thresholds, np.float32), np.float32(rate)
    return jax.tree.map(np.asarray, train(params, *of, text, starts))


def in_an_epoch(text: np.ndarray) -> int:
    """How many steps read the whole text once, but for less than a step's worth at its end."""
    return (len(text) - 1) // T // B
