"""The encoder of BERT on jattn's functions: one sentence in; its hidden states and every head's attention out.

    x ← LN(x + W_O · heads(x)),   x ← LN(x + W_2 gelu(W_1 x))        layer after layer, one `lax.scan`

A matrix of the file is [out, in], so that x @ W.T. Devlin et al. 2019, "BERT".
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jattn

LAYER = {  # the file's name within a layer → ours
    "attention.self.query": "q", "attention.self.key": "k", "attention.self.value": "v",
    "attention.output.dense": "o", "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up", "output.dense": "down", "output.LayerNorm": "mlp_norm",
}  # fmt: skip
LAYERS, HEADS, EPS = 6, 12, 1e-12


class Edit(NamedTuple):
    """What is added to the logits of some pairs, head by head: log(1 − m) takes the share m of their weight away."""

    pairs: jax.Array
    """[T, T] booleans: which pairs."""
    bias: jax.Array
    """[L, H]: by how much in each head; −∞ masks the pair."""


class Layers(NamedTuple):
    """What the heads of every layer, [L, H, ...], see and say."""

    q: jax.Array
    k: jax.Array
    out: jax.Array
    weights: jax.Array


def parameters(tensors: dict[str, np.ndarray], dtype: type = jnp.float32) -> dict:
    """The tensors of a checkpoint as a pytree, the layers stacked on a leading axis."""
    cast = lambda x: jnp.asarray(x, dtype)  # noqa: E731
    stack = lambda name: cast(np.stack([tensors[f"encoder.layer.{i}.{name}"] for i in range(LAYERS)]))  # noqa: E731
    return {
        "words": cast(tensors["embeddings.word_embeddings.weight"]),
        "places": cast(tensors["embeddings.position_embeddings.weight"]),
        "kind": cast(tensors["embeddings.token_type_embeddings.weight"][0]),
        "read": (cast(tensors["embeddings.LayerNorm.weight"]), cast(tensors["embeddings.LayerNorm.bias"])),
        "layers": {ours: (stack(f"{name}.weight"), stack(f"{name}.bias")) for name, ours in LAYER.items()},
    }


@partial(jax.vmap, in_axes=(0, None))
def norm(x: jax.Array, w: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Of one token: mean 0, variance 1, then a scale and a shift of its own for each feature."""
    return (x - x.mean()) * jax.lax.rsqrt(x.var() + EPS) * w[0] + w[1]


@partial(jax.vmap, in_axes=(0, None))
def dense(x: jax.Array, w: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Of one token."""
    return w[0] @ x + w[1]


def encode(p: dict, ids: jax.Array, n: jax.Array, edit: Edit | None = None) -> tuple[jax.Array, jax.Array]:
    """Of one sentence, tokens [T] of which the first n exist: hidden states [T, C] and attention [L, H, T, T]."""
    x, seen = run(p, ids, n, edit)
    return x, seen.weights


def run(
    p: dict, ids: jax.Array, n: jax.Array, edit: Edit | None = None, gates: jax.Array | None = None
) -> tuple[jax.Array, Layers]:
    """`encode`, with all that its heads see and say; what each says is multiplied by its gate [L, H].

    One sentence, no batch: map with jax.vmap. A row beyond n is padding and holds nothing of use.
    """
    T, dtype = len(ids), p["words"].dtype
    edit = edit or Edit(jnp.zeros((T, T), bool), jnp.zeros((LAYERS, HEADS), dtype))
    gates = jnp.ones_like(edit.bias) if gates is None else gates
    x = norm(p["words"][ids] + p["places"][:T] + p["kind"][None], p["read"])
    split = lambda y: y.reshape(T, HEADS, -1).swapaxes(0, 1)  # noqa: E731  [H, T, D]

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> jattn.Steps:
        added = jnp.where(edit.pairs, bias, 0).astype(dtype)
        return jattn.explain(q, k, v, mask=jattn.masks.lengths(k=n), bias=added)

    def layer(x: jax.Array, w: tuple[dict, jax.Array, jax.Array]) -> tuple[jax.Array, Layers]:
        w, bias, gate = w
        q, k, v = (split(dense(x, w[name])) for name in "qkv")
        steps = jax.vmap(attend)(q, k, v, bias)
        out = steps.out * gate[:, None, None]
        x = norm(x + dense(out.swapaxes(0, 1).reshape(T, -1), w["o"]), w["attention_norm"])
        x = norm(x + dense(jax.nn.gelu(dense(x, w["up"]), approximate=False), w["down"]), w["mlp_norm"])
        return x, Layers(q, k, out, steps.weights)

    return jax.lax.scan(layer, x, (p["layers"], edit.bias, gates))
