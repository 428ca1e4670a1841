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
import jax.numpy as jnp
import numpy as np
from _zoo_weights import from_heads, params, separate, slopes, to_heads
from jax.tree_util import Partial
from rich.console import Console

from jattn.heads import latent_absorbed, latent_expanded, multi_head
from jattn.masks import causal, window
from jattn.positions import linear, llama3, longrope, rotary, yarn

LIMIT = 1e-5


def bert(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    q, k, v = (w[f"self.{name}.weight"] for name in ("query", "key", "value"))
    biases = {f"{name[0]}_bias": w[f"self.{name}.bias"] for name in ("query", "key", "value")}
    p = params(
        q, k, v, w["output.dense.weight"], heads=c.num_attention_heads, **biases, out_bias=w["output.dense.bias"]
    )
    return multi_head(p, x)


def gpt2(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    q, k, v = np.split(w["c_attn.weight"].T, 3)  # kept as [in, out]
    biases = dict(zip(("q_bias", "k_bias", "v_bias"), np.split(w["c_attn.bias"], 3), strict=True))
    p = params(q, k, v, w["c_proj.weight"].T, heads=c.n_head, **biases, out_bias=w["c_proj.bias"])
    return multi_head(p, x, mask=causal())


def t5(w: dict, c: Any, x: jax.Array, layer: int, one_way: bool = False) -> jax.Array:
    def learned(table: jax.Array, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        n, far = c.relative_attention_num_buckets // (1 if one_way else 2), c.relative_attention_max_distance
        away = jnp.maximum(t - s, 0) if one_way else jnp.abs(t - s)
        log = jnp.log(jnp.maximum(away, 1).astype(score.dtype) / (n // 2)) / np.log(far / (n // 2)) * (n - n // 2)
        bucket = jnp.where(away < n // 2, away, jnp.minimum(n // 2 + log.astype(jnp.int32), n - 1))
        return score + table[bucket if one_way else jnp.where(s > t, bucket + n, bucket)]

    p = params(*(w[f"{m}.weight"] for m in "qkvo"), heads=c.num_heads)
    own = {"score": Partial(learned, jnp.asarray(w["table"].T))}
    return multi_head(p, x, each=own, scale=1.0, mask=causal() if one_way else None)


def bloom(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    H, E = c.n_head, c.hidden_size  # q, k and v of a head stand together
    q, k, v = w["query_key_value.weight"].reshape(H, 3, -1, E).swapaxes(0, 1).reshape(3, E, E)
    biases = w["query_key_value.bias"].reshape(H, 3, -1).swapaxes(0, 1)
    more = dict(zip(("q_bias", "k_bias", "v_bias"), biases, strict=True))
    p = params(q, k, v, w["dense.weight"], heads=H, **more, out_bias=w["dense.bias"])
    return multi_head(p, x, mask=causal(), each={"score": Partial(alibi, slopes(H))})


def mpt(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    p = params(*np.split(w["Wqkv.weight"], 3), w["out_proj.weight"], heads=c.n_heads)
    return multi_head(p, x, mask=causal(), each={"score": Partial(alibi, slopes(c.n_heads))})


def alibi(slope: jax.Array, score: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
    return score - slope * (t - s).astype(score.dtype)


def gpt_neox(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    H, E, r = c.num_attention_heads, c.hidden_size, c.rope_parameters
    q, k, v = w["query_key_value.weight"].reshape(H, 3, -1, E).swapaxes(0, 1).reshape(3, E, E)
    biases = w["query_key_value.bias"].reshape(H, 3, -1).swapaxes(0, 1)
    more = dict(zip(("q_bias", "k_bias", "v_bias"), biases, strict=True))
    p = params(q, k, v, w["dense.weight"], heads=H, **more, out_bias=w["dense.bias"])
    turned = int(E // H * r["partial_rotary_factor"])
    return multi_head(p, x, mask=causal(), turn=partial(rotary, base=r["rope_theta"], width=turned))


def llama_3(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    r = c.rope_parameters
    longer = llama3(r["factor"], original=r["original_max_position_embeddings"], low=r["low_freq_factor"],
                    high=r["high_freq_factor"])  # fmt: skip
    return multi_head(separate(w, c), x, mask=causal(), turn=partial(rotary, base=r["rope_theta"], scaling=longer))


def mistral(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    near = window(left=c.sliding_window - 1, right=0)
    return multi_head(separate(w, c), x, mask=near, turn=partial(rotary, base=c.rope_parameters["rope_theta"]))


def qwen_3(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    p = separate(w, c, q_norm=w["q_norm.weight"], k_norm=w["k_norm.weight"])
    turn = partial(rotary, base=c.rope_parameters["rope_theta"])
    return multi_head(p, x, mask=causal(), turn=turn, eps=c.rms_norm_eps)


def gemma_2(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    local, cap = c.layer_types[layer] == "sliding_attention", c.attn_logit_softcapping
    return multi_head(
        separate(w, c), x, turn=partial(rotary, base=c.rope_parameters["rope_theta"]),
        mask=window(left=c.sliding_window - 1, right=0) if local else causal(),
        score=lambda score, t, s: cap * jnp.tanh(score / cap), scale=c.query_pre_attn_scalar**-0.5,
    )  # fmt: skip


def gemma_3(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    kind = c.layer_types[layer]
    local, r = kind == "sliding_attention", c.rope_parameters[kind]
    p = separate(w, c, q_norm=1 + w["q_norm.weight"], k_norm=1 + w["k_norm.weight"])
    return multi_head(
        p, x, turn=partial(rotary, base=r["rope_theta"], scaling=linear(r["factor"]) if "factor" in r else None),
        mask=window(left=c.sliding_window - 1, right=0) if local else causal(), scale=c.query_pre_attn_scalar**-0.5,
        eps=c.rms_norm_eps,
    )  # fmt: skip


def phi_3(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    H, Hkv, r = c.num_attention_heads, c.num_key_value_heads, c.rope_parameters
    D = c.head_dim
    q, k, v = np.split(w["qkv_proj.weight"], [H * D, (H + Hkv) * D])
    longer = longrope(r["short_factor"], r["long_factor"], factor=r["factor"],
                      original=r["original_max_position_embeddings"], length=len(x))  # fmt: skip
    p = params(q, k, v, w["o_proj.weight"], heads=H, kv_heads=Hkv)
    near, turn = window(left=c.sliding_window - 1, right=0), partial(rotary, base=r["rope_theta"], scaling=longer)
    return multi_head(p, x, mask=near, turn=turn)


def gpt_oss(w: dict, c: Any, x: jax.Array, layer: int) -> jax.Array:
    local, r = c.layer_types[layer] == "sliding_attention", c.rope_parameters
    longer = yarn(r["factor"], original=r["original_max_position_embeddings"], fast=r["beta_fast"], slow=r["beta_slow"],
                  truncate=r["truncate"])  # fmt: skip
    return multi_head(
        separate(w, c), x, turn=partial(rotary, base=r["rope_theta"], scaling=longer), each={"sink": w["sinks"]},
        mask=window(left=c.sliding_window - 1, right=0) if local else causal(),
    )  # fmt: skip


def deepseek_v3(w: dict, c: Any, x: jax.Array, layer: int, form: Any = latent_expanded) -> jax.Array:
    r, H, D = c.rope_parameters, c.num_attention_heads, c.qk_nope_head_dim
    down, k_turned = np.split(w["kv_a_proj_with_mqa.weight"].T, [c.kv_lora_rank], 1)
    k, v = np.split(to_heads(w["kv_b_proj.weight"], H), [D], 2)
    p = {"q_down": w["q_a_proj.weight"].T, "q_latent_norm": w["q_a_layernorm.weight"],
         "q": to_heads(w["q_b_proj.weight"], H), "kv_down": down, "kv_norm": w["kv_a_layernorm.weight"], "k": k, "v": v,
         "k_turned": k_turned, "out": from_heads(w["o_proj.weight"], H)}  # fmt: skip
    m, m_all = (1 + 0.1 * r[name] * np.log(r["factor"]) for name in ("mscale", "mscale_all_dim"))
    longer = yarn(r["factor"], original=r["original_max_position_embeddings"], fast=r["beta_fast"], slow=r["beta_slow"],
                  attention_factor=m / m_all)  # fmt: skip
    turn = partial(rotary, base=r["rope_theta"], scaling=longer, interleaved=True)
    return form(p, x, turn=turn, mask=causal(), scale=float(m_all**2 * (D + c.qk_rope_head_dim) ** -0.5))


RECIPES = {
    "BERT": bert, "GPT-2": gpt2, "T5 encoder": t5, "T5 decoder": partial(t5, one_way=True), "BLOOM": bloom, "MPT": mpt,
    "GPT-NeoX": gpt_neox, "Llama 3": llama_3, "Mistral": mistral, "Qwen 3": qwen_3, "Gemma 2": gemma_2,
    "Gemma 3": gemma_3, "Phi-3": phi_3, "gpt-oss": gpt_oss, "DeepSeek-V3": deepseek_v3,
    "DeepSeek-V3 absorbed": partial(deepseek_v3, form=latent_absorbed),
}  # fmt: skip
SHOWS = {
    "BERT": "all meet all, biases", "GPT-2": "causal, biases", "T5 encoder": "learned relative bias",
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


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    _cli.add_seed(parser, "the weights and tokens", default=0)
    parser.add_argument("--model", choices=list(zoo.CONFIGS), help="one model instead of all")
    return parser


def compute(args: argparse.Namespace) -> dict:
    if not (find_spec("torch") and find_spec("transformers")):
        raise _cli.BadInput("The models come from transformers and torch. Install them: pip install 'jattn[parity]'.")
    rows = []
    with jax.enable_x64(False):  # the models are float32, and so is what is claimed
        for model in [args.model] if args.model else zoo.CONFIGS:
            for layer in zoo.layers(model, args.seed):
                for name in [n for n in RECIPES if n in (layer.name, f"{layer.name} absorbed")]:
                    value, gradient = errors(layer, RECIPES[name])
                    rows.append(
                        {
                            "model": name,
                            "shows": SHOWS[name],
                            "layer": layer.index,
                            "value": value,
                            "gradient": gradient,
                        }
                    )
    return {"limit": LIMIT, "rows": rows}


def show(console: Console, r: dict) -> None:
    _cli.title(console, f"Layer by layer: the largest difference from transformers over the largest entry, T = {zoo.T}")
    lines = [[row["model"], row["shows"], str(row["layer"]), f"{row['value']:.1e}", f"{row['gradient']:.1e}"]
             for row in r["rows"]]  # fmt: skip
    console.print(_cli.table(["model", "its attention", "layer", "value", "input\ngradient"], lines, left=2))
    worst = max(max(row["value"], row["gradient"]) for row in r["rows"])
    console.print(f"The worst is {worst:.1e}; the claim is {r['limit']:.0e}, in float32.")


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
