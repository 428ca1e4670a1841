"""From the weights of `transformers` to the params of jattn.heads: torch keeps a matrix as [out, in], heads joined."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def to_heads(weight: np.ndarray, heads: int) -> np.ndarray:
    """[H · D, E] → [E, H, D]."""
    return weight.reshape(heads, -1, weight.shape[1]).transpose(2, 0, 1)


def from_heads(weight: np.ndarray, heads: int) -> np.ndarray:
    """[E, H · Dv] → [H, Dv, E]."""
    return weight.reshape(weight.shape[0], heads, -1).transpose(1, 2, 0)


def params(q: Any, k: Any, v: Any, out: Any, *, heads: int, kv_heads: int | None = None, **more: Any) -> dict[str, Any]:
    """Four matrices as torch has them, and `q_bias`, `k_bias`, `v_bias` [H · D], `out_bias` or anything else beside."""
    kv_heads = kv_heads or heads
    made = {
        "q": to_heads(q, heads),
        "k": to_heads(k, kv_heads),
        "v": to_heads(v, kv_heads),
        "out": from_heads(out, heads),
    }
    for name in ("q", "k", "v"):
        if f"{name}_bias" in more:
            more[f"{name}_bias"] = more[f"{name}_bias"].reshape(made[name].shape[1:])
    return {name: jnp.asarray(w) for name, w in (made | more).items()}


def separate(w: dict[str, np.ndarray], c: Any, **more: Any) -> dict[str, Any]:
    """Params of a layer that keeps its matrices apart, as Llama and those after it do; biases where it has them."""
    named = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj"}
    matrices = {name: w[f"{theirs}.weight"] for name, theirs in named.items()}
    biases = {f"{name}_bias": w[f"{theirs}.bias"] for name, theirs in named.items() if f"{theirs}.bias" in w}
    return params(**matrices, heads=c.num_attention_heads, kv_heads=c.num_key_value_heads, **biases, **more)


def slopes(heads: int) -> np.ndarray:
    """The slopes of ALiBi for a power of two heads, one a head."""
    return (2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)).astype(np.float32)
