"""Tiny models of `transformers` with random weights, and what each of their self-attention layers does.

The whole model runs once, and what reaches each attention layer is kept: its hidden states, its mask, its rotary
tables. A layer is then run again alone, for its value and the gradient of its input.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded: every weight is drawn here

T, E, HEADS = 19, 32, 4
TINY = {"vocab_size": 29, "hidden_size": E, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
GROUPED = TINY | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5}
ALTERNATING = GROUPED | {"layer_types": ["sliding_attention", "full_attention"]}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "beta_fast": 8.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 32}  # fmt: skip
LONGROPE = {"rope_type": "longrope", "rope_theta": 500.0, "original_max_position_embeddings": 16, "factor": 4.0,
            "short_factor": [1.0, 1.0, 1.1, 1.2], "long_factor": [1.0, 1.5, 2.5, 4.0]}  # fmt: skip
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
          "first_k_dense_replace": 2, "num_key_value_heads": HEADS}  # fmt: skip

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT": ("Bert", TINY),
    "GPT-2": ("GPT2", {"vocab_size": 29, "n_embd": E, "n_layer": 2, "n_head": HEADS, "n_positions": 64}),
    "T5": ("T5", {"vocab_size": 29, "d_model": E, "d_kv": 6, "d_ff": 16, "num_layers": 2, "num_heads": HEADS,
                  "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16}),
    "BLOOM": ("Bloom", {"vocab_size": 29, "hidden_size": E, "n_layer": 2, "n_head": HEADS, "hidden_dropout": 0.0}),
    "MPT": ("Mpt", {"vocab_size": 29, "d_model": E, "n_layers": 2, "n_heads": HEADS, "max_seq_len": 64}),
    "GPT-NeoX": ("GPTNeoX", TINY | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0,
                                                         "partial_rotary_factor": 0.5}}),
    "Llama 3": ("Llama", GROUPED | {"rope_parameters": LLAMA3}),
    "Mistral": ("Mistral", GROUPED),
    "Qwen 3": ("Qwen3", GROUPED),
    "Gemma 2": ("Gemma2", ALTERNATING | {"query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0}),
    "Gemma 3": ("Gemma3Text", ALTERNATING | {"query_pre_attn_scalar": 12, "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0}}}),
    "Phi-3": ("Phi3", GROUPED | {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16}),
    "gpt-oss": ("GptOss", ALTERNATING | {"num_local_experts": 2, "num_experts_per_tok": 1, "attention_bias": True,
                                          "rope_parameters": YARN | {"truncate": False}}),
    "DeepSeek-V3": ("DeepseekV3", TINY | LATENT | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}),
}  # fmt: skip


class Layer(NamedTuple):
    """One self-attention layer, as its model calls it."""

    name: str
    index: int
    config: Any
    weights: dict[str, np.ndarray]
    x: np.ndarray
    run: Callable[[Any], Any]


NOT_SELF = ("EncDec", " T5Layer")  # cross attention, and the wrappers around both kinds


def layers(model_name: str, seed: int = 0) -> Iterator[Layer]:
    """Every self-attention layer of a tiny model, in order."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    kind, options = CONFIGS[model_name]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**options, attn_implementation="eager", use_cache=False)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    with torch.no_grad():  # away from the values at which training begins: a weight of 0.02 would hide a slip
        for name, p in model.named_parameters():
            spread = p.shape[-1] ** -0.5 if p.ndim > 1 and "relative" not in name else 0.3
            p.copy_(torch.randn(p.shape) * spread + (1.0 if "norm" in name.lower() or "ln_" in name else 0.0))

    seen: list[tuple[str, Any, tuple, dict]] = []
    for name, module in model.named_modules():
        path = f"{name} {type(module).__name__}"
        if path.endswith("BertAttention" if kind == "Bert" else "Attention") and not any(n in path for n in NOT_SELF):
            keep = lambda m, args, kwargs, name=name: seen.append((name, m, args, kwargs))  # noqa: E731
            module.register_forward_pre_hook(keep, with_kwargs=True)
    ids = torch.randint(1, 29, (1, T))
    with torch.no_grad():
        model(input_ids=ids, **({"decoder_input_ids": ids.flip(1)} if kind == "T5" else {}))
    for _, module, _, _ in seen:
        module._forward_pre_hooks.clear()
    for n, (name, module, args, kwargs) in enumerate(seen):
        weights = {key: p.detach().numpy() for key, p in module.state_dict().items()}
        stack = getattr(model, name.split(".")[0]) if kind == "T5" else None
        if stack is not None:  # one table of biases a stack, in its first layer
            table = stack.block[0].layer[0].SelfAttention.relative_attention_bias
            weights |= {"table": table.weight.detach().numpy()}
        x = args[0] if args else kwargs["hidden_states"]
        label = model_name if stack is None else f"{model_name} {name.split('.')[0]}"
        settings = config if stack is None else stack.config
        yield Layer(label, n % 2, settings, weights, x[0].numpy(), _alone(module, kwargs))


def _alone(module: Any, kwargs: dict) -> Callable[[Any], Any]:
    """The layer as a function of its input, what else its model gave it held; without residual streams."""
    import torch

    held = {name: x for name, x in kwargs.items() if name != "hidden_states"}
    match type(module).__name__:
        case "BloomAttention":
            return lambda x: module(x[None], **held | {"residual": torch.zeros_like(x[None])})[0][0]
        case "BertAttention":
            return lambda x: module.output.dense(module.self(x[None])[0])[0]
        case _:
            return lambda x: module(x[None], **held)[0][0]


def value_and_grad(layer: Layer, by: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The output [T, E] of a layer, and the gradient of ⟨output, by⟩ with respect to its input."""
    import torch

    x = torch.tensor(layer.x, requires_grad=True)
    out = layer.run(x)
    (out * torch.tensor(by)).sum().backward()
    return out.detach().numpy(), x.grad.numpy()
