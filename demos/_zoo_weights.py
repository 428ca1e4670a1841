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


def joined(w: dict[str, np.ndarray], heads: int) -> dict[str, Any]:
    """Params of a layer in whose one matrix q, k and v of a head stand together, as in BLOOM and GPT-NeoX."""
    weight, biases = w["query_key_value.weight"], w["query_key_value.bias"].reshape(heads, 3, -1).swapaxes(0, 1)
    q, k, v = weight.reshape(heads, 3, -1, weight.shape[1]).swapaxes(0, 1).reshape(3, *w["dense.weight"].shape)
    named = dict(zip(("q_bias", "k_bias", "v_bias"), biases, strict=True))
    return params(q, k, v, w["dense.weight"], heads=heads, **named, out_bias=w["dense.bias"])


def latent(w: dict[str, np.ndarray], c: Any) -> dict[str, Any]:
    """Params of a layer of latent attention, as DeepSeek-V3 keeps them."""
    heads = c.num_attention_heads
    down, k_rope = np.split(w["kv_a_proj_with_mqa.weight"].T, [c.kv_lora_rank], 1)
    k, v = np.split(to_heads(w["kv_b_proj.weight"], heads), [c.qk_nope_head_dim], 2)
    return {
        "q_down": w["q_a_proj.weight"].T,
        "q_latent_norm": w["q_a_layernorm.weight"],
        "q": to_heads(w["q_b_proj.weight"], heads),
        "kv_down": down,
        "kv_norm": w["kv_a_layernorm.weight"],
        "k": k,
        "v": v,
        "k_rope": k_rope,
        "out": from_heads(w["o_proj.weight"], heads),
    }
