"""The toy of bank, river and money: its vectors, its steps, and the variant in which k_money is moved."""

import jax
import jax.numpy as jnp
import numpy as np

import jattn

WORDS = ("river", "money", "the")
Q = np.array([1.0, 0.0])  # bank's query
K = np.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])
V = np.array([[2.0, 0.0], [0.0, 3.0], [0.1, 0.1]])
C = 1 / np.sqrt(2.0)  # 1/√d_k

# Embeddings, by the features water, finance and everyday, and projections that make exactly the vectors above.
BANK, X = np.array([0.5, 0.5, 0.5]), np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
W_Q = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
W_K = np.array([[1.0, -0.05], [0.2, 0.1], [0.0, 0.1]])
W_V, W_O = np.array([[1.95, -0.05], [0.0, 3.0], [0.1, 0.1]]), np.eye(2)

WAYS = {"toward q_bank": Q - K[1], "along itself": K[1], "across q_bank": np.array([0.0, 1.0])}  # k_money + a · way


def toy() -> dict:
    """Every step from q_bank to the output of bank."""
    scores, scaled, weights, out = (x[0] for x in jax.jit(jattn.explain)(Q[None], K, V))
    exps = jnp.exp(scaled)
    steps = {"scores": scores, "scaled": scaled, "exps": exps, "sum": exps.sum(), "weights": weights}
    return steps | {"terms": weights[:, None] * V, "out": out, "projected": out @ W_O}


def flip() -> dict:
    """The toy with k_money moved: where q·k_money = q·k_river by formula, and where the weights are seen to cross."""

    @jax.jit
    def moved(a, direction):
        return jattn.explain(Q[None], K + a * jnp.outer(np.eye(3)[1], direction), V)

    def crossing(direction, low=0.0, high=16.0):
        def leads(a):
            river, money, _ = moved(a, direction).weights[0]
            return money > river

        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if leads(middle) else (middle, high)
        return high if leads(high) else None

    need = Q @ (K[0] - K[1])
    ways = {n: {"formula": need / (Q @ u) if Q @ u > 0 else None, "measured": crossing(u)} for n, u in WAYS.items()}
    a = jnp.array([0.0, 0.5, 0.9, 1.0, 1.1, 1.5])
    along = jax.vmap(moved, (0, None))(a, WAYS["toward q_bank"])
    turned = np.linalg.norm(K[1]) * Q / np.linalg.norm(Q)
    table = {"a": a, "scores": along.scores[:, 0], "weights": along.weights[:, 0], "out": along.out[:, 0]}
    return {"ways": ways, "along": table, "turned": {"k": turned, "weights": moved(1.0, turned - K[1]).weights[0]}}
