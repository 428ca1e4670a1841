"""A language model of random weights, and the part of a page that computes it; some of its words are hostile."""

import numpy as np

from jattn import page

V, N, E, H, D, Dv, M, L = 23, 11, 7, 3, 5, 2, 13, 2
RNG = np.random.default_rng(0)
WORDS = [
    "the",
    "river",
    "bank",
    "Fluß",
    "שלום",
    "<b>loud</b>",
    "👩‍👩‍👧",
    "\u202e-",
    *(f"word{i}" for i in range(V - 8)),
]


def drawn(*shape):
    return RNG.normal(size=shape).astype(np.float32) / np.float32(np.sqrt(shape[0])) * 2


def layer(**more):
    return {"q": drawn(E, H, D), "k": drawn(E, H, D), "v": drawn(E, H, Dv), "out": drawn(H, Dv, E)} | more


MLP = {"mlp_norm": 1 + drawn(E) / 8, "mlp_in": drawn(E, M), "mlp_out": drawn(M, E)}
PARAMS = {
    "embed": drawn(V, E) * 4, "positions": drawn(N, E), "norm": 1 + drawn(E) / 8, "unembed": drawn(E, V),
    "layers": [layer(norm=1 + drawn(E) / 8, **MLP), layer()],
}  # fmt: skip
EXAMPLES = [("the river", "bank"), ("word1 the word2 the river the", "word3")]
PART = page.model(PARAMS, WORDS, examples=EXAMPLES)
