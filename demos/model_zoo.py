"""The attention of fourteen real models, a recipe each, checked against `transformers`.

A recipe takes the weights `w` of one self-attention layer under the names they have in `transformers`, the config `c`
of its model, tokens x [T, E] and the number of the layer. Copy the one that you need. The table builds each model tiny,
with random weights, runs it, and compares every layer: its output, and the gradient of its input.
"""

import argparse
from functools import partial
from importlib.util import find_spec
from typing import Any

import _cli
import _zoo_torch as zoo
import jax
import numpy as np
from _zoo_check import LIMIT, check, show
from _zoo_weights import joined, latent, params, separate

from jattn.heads import latent_absorbed, latent_expanded, multi_head
from jattn.masks import causal, window
from jattn.positions import linear, llama3, longrope, rotary, yarn
from jattn.scores import alibi, alibi_slopes, relative_bias, soft_cap


def bert(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    names = ("query", "key", "value")
    biases = {f"{name[0]}_bias": w[f"self.{name}.bias"] for name in names} | {"out_bias": w["output.dense.bias"]}
    q, k, v = (w[f"self.{name}.weight"] for name in names)
    return multi_head(params(q, k, v, w["output.dense.weight"], heads=c.num_attention_heads, **biases), x)


def gpt2(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    q, k, v = np.split(w["c_attn.weight"].T, 3)  # kept as [in, out]
    biases = dict(zip(("q_bias", "k_bias", "v_bias"), np.split(w["c_attn.bias"], 3), strict=True))
    p = params(q, k, v, w["c_proj.weight"].T, heads=c.n_head, **biases, out_bias=w["c_proj.bias"])
    return multi_head(p, x, mask=causal())


def t5(w: dict, c: Any, x: jax.Array, layer: int, one_way: bool = False) -> jax.Array:
    p = params(*(w[f"{m}.weight"] for m in "qkvo"), heads=c.num_heads)
    bias = partial(relative_bias, max_distance=c.relative_attention_max_distance, bidirectional=not one_way)
    own = {"score": jax.vmap(bias)(w["table"].T)}  # a table of biases for each head
    return multi_head(p, x, per_head=own, scale=1.0, mask=causal() if one_way else None)


def bloom(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    own = {"score": jax.vmap(alibi)(alibi_slopes(c.n_head))}
    return multi_head(joined(w, c.n_head), x, mask=causal(), per_head=own)


def mpt(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    p = params(*np.split(w["Wqkv.weight"], 3), w["out_proj.weight"], heads=c.n_heads)
    return multi_head(p, x, mask=causal(), per_head={"score": jax.vmap(alibi)(alibi_slopes(c.n_heads))})


def gpt_neox(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    H, r = c.num_attention_heads, c.rope_parameters
    width = int(c.hidden_size // H * r["partial_rotary_factor"])
    return multi_head(joined(w, H), x, mask=causal(), rope=partial(rotary, base=r["rope_theta"], width=width))


def llama_3(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    r = c.rope_parameters
    longer = llama3(r["factor"], original=r["original_max_position_embeddings"], low=r["low_freq_factor"],
                    high=r["high_freq_factor"])  # fmt: skip
    return multi_head(separate(w, c), x, mask=causal(), rope=partial(rotary, base=r["rope_theta"], scaling=longer))


def mistral(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    near = window(left=c.sliding_window - 1, right=0)
    return multi_head(separate(w, c), x, mask=near, rope=partial(rotary, base=c.rope_parameters["rope_theta"]))


def qwen_3(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    p = separate(w, c, q_norm=w["q_norm.weight"], k_norm=w["k_norm.weight"])
    rope = partial(rotary, base=c.rope_parameters["rope_theta"])
    return multi_head(p, x, mask=causal(), rope=rope, eps=c.rms_norm_eps)


def gemma_2(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    mask = window(left=c.sliding_window - 1, right=0) if c.layer_types[layer] == "sliding_attention" else causal()
    rope = partial(rotary, base=c.rope_parameters["rope_theta"])
    cap, scale = soft_cap(c.attn_logit_softcapping), c.query_pre_attn_scalar**-0.5
    return multi_head(separate(w, c), x, mask=mask, rope=rope, score=cap, scale=scale)


def gemma_3(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    kind = c.layer_types[layer]
    mask = window(left=c.sliding_window - 1, right=0) if kind == "sliding_attention" else causal()
    r = c.rope_parameters[kind]
    rope = partial(rotary, base=r["rope_theta"], scaling=linear(r["factor"]) if "factor" in r else None)
    p = separate(w, c, q_norm=1 + w["q_norm.weight"], k_norm=1 + w["k_norm.weight"])
    return multi_head(p, x, mask=mask, rope=rope, scale=c.query_pre_attn_scalar**-0.5, eps=c.rms_norm_eps)


def phi_3(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    H, Hkv, D = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    q, k, v = np.split(w["qkv_proj.weight"], [H * D, (H + Hkv) * D])
    p = params(q, k, v, w["o_proj.weight"], heads=H, kv_heads=Hkv)
    r = c.rope_parameters
    longer = longrope(r["short_factor"], r["long_factor"], factor=r["factor"],
                      original=r["original_max_position_embeddings"], length=len(x))  # fmt: skip
    rope = partial(rotary, base=r["rope_theta"], scaling=longer)
    return multi_head(p, x, mask=window(left=c.sliding_window - 1, right=0), rope=rope)


def gpt_oss(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    mask = window(left=c.sliding_window - 1, right=0) if c.layer_types[layer] == "sliding_attention" else causal()
    r = c.rope_parameters
    longer = yarn(r["factor"], original=r["original_max_position_embeddings"], fast=r["beta_fast"], slow=r["beta_slow"],
                  truncate=r["truncate"])  # fmt: skip
    rope = partial(rotary, base=r["rope_theta"], scaling=longer)
    return multi_head(separate(w, c), x, mask=mask, per_head={"sink": w["sinks"]}, rope=rope)


def deepseek_v3(w: dict, c: Any, x: jax.Array, layer: int, form: Any = latent_expanded) -> jax.Array:
    r, D = c.rope_parameters, c.qk_nope_head_dim + c.qk_rope_head_dim
    m, m_all = (1 + 0.1 * r[name] * np.log(r["factor"]) for name in ("mscale", "mscale_all_dim"))
    longer = yarn(r["factor"], original=r["original_max_position_embeddings"], fast=r["beta_fast"], slow=r["beta_slow"],
                  attention_factor=m / m_all)  # fmt: skip
    rope = partial(rotary, base=r["rope_theta"], scaling=longer, interleaved=True)
    return form(latent(w, c), x, rope=rope, mask=causal(), scale=float(m_all**2 * D**-0.5))


RECIPES = {
    "BERT": bert, "GPT-2": gpt2, "T5 encoder": t5, "T5 decoder": partial(t5, one_way=True), "BLOOM": bloom, "MPT": mpt,
    "GPT-NeoX": gpt_neox, "Llama 3": llama_3, "Mistral": mistral, "Qwen 3": qwen_3, "Gemma 2": gemma_2,
    "Gemma 3": gemma_3, "Phi-3": phi_3, "gpt-oss": gpt_oss,
    "DeepSeek-V3": deepseek_v3, "DeepSeek-V3 absorbed": partial(deepseek_v3, form=latent_absorbed),
}  # fmt: skip


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    _cli.add_seed(parser, "the weights and tokens", default=0)
    parser.add_argument("--model", choices=list(zoo.CONFIGS), help="one model instead of all")
    return parser


def compute(args: argparse.Namespace) -> dict:
    if not (find_spec("torch") and find_spec("transformers")):
        raise _cli.BadInput("The models come from transformers and torch. Install them: pip install 'jattn[parity]'.")
    models = [args.model] if args.model else zoo.CONFIGS
    with jax.enable_x64(False):  # the models are float32, and so is what is claimed
        return {"limit": LIMIT, "rows": [row for model in models for row in check(model, RECIPES, args.seed)]}


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
