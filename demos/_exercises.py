"""What the three hands-on exercises of the attention kata ask for, as numbers."""

import jax
import jax.numpy as jnp
from jax import random

import jattn

N, DRAWS = 6, 4096  # keys in a row; rows
VERDICTS = ["Too peaked", "Good", "Too flat"]  # spread > 0.8, between, < 0.05

# Exercise 1: two features of a word, (water, money), set by hand; "bank" has both, and q = k = v.
MEANING = {"the": [0, 0], "cat": [0.1, 0], "sat": [0, 0.1], "on": [0, 0], "river": [2, 0],
           "bank": [1, 1], "approved": [0, 0.8], "loan": [0, 2]}  # fmt: skip
CONTEXTS = ["the cat sat on the river bank", "the bank approved the loan"]
# Exercise 2: the scaled score of one key, while the others stay at 0.
MATCHES = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
WIDTHS = [4, 16, 64, 256]  # exercise 3
ONE_HOT = 0.99  # a row of which one key has more


def in_context(sentence: str) -> dict:
    """Exercise 1: the weights and the output of "bank" in a sentence."""
    words = sentence.split()
    E = jnp.array([MEANING[word] for word in words], float)
    t = words.index("bank")
    steps = jax.jit(jattn.explain)(E, E, E)
    return {"words": words, "E": E, "weights": steps.weights[t], "out": steps.out[t]}


@jax.jit
def one_match(score: jax.Array, v: jax.Array, noise: jax.Array) -> dict:
    """Exercise 2: one score is high; the output, its gradient, and the errors of two uses of attention.

    `noise` [DRAWS, N, 1] is one feature of N words. To average, each word is the truth (0) and its noise; to look
    up, the first word is the truth and the others are unrelated.
    """
    row = lambda s: jnp.where(jnp.arange(N) == 0, s, 0.0)  # noqa: E731
    attend = lambda v: jattn.attention(jnp.ones((1, 1)), row(score)[:, None], v, scale=1.0)[0]  # noqa: E731
    p, slope = jax.value_and_grad(lambda s: jattn.softmax(row(s))[0])(score)
    blends = jax.vmap(attend)(noise)
    return {
        "score": score, "weight": p, "to_value": jnp.linalg.norm(attend(v) - v[0]),
        "to_mean": jnp.linalg.norm(attend(v) - v.mean(0)), "slope": slope,
        "log_slope": jax.grad(lambda s: jattn.log_softmax(row(s))[0])(score),
        "averaging": jnp.mean(blends**2), "look_up": jnp.mean((blends - noise[:, 0]) ** 2),
    }  # fmt: skip


def judge(scores: jax.Array, divisor: jax.Array) -> dict:
    """Spread and verdict of one row as in the kata, and the entropy of its weights in nats."""
    weights = jattn.softmax(scores / divisor)
    spread = weights.max() - weights.min()
    return {
        "divisor": divisor, "weights": weights, "max": weights.max(), "min": weights.min(), "spread": spread,
        "verdict": jnp.where(spread > 0.8, 0, jnp.where(spread < 0.05, 2, 1)),
        "entropy": -jnp.sum(jax.scipy.special.xlogy(weights, weights)),
    }  # fmt: skip


def unit_rows(key: jax.Array) -> dict[int, jax.Array]:
    """For each width, the raw scores [N] of one query and N keys, all entries from N(0, 1)."""
    x = random.normal(key, (1 + N, WIDTHS[-1]))
    return {d: x[1:, :d] @ x[0, :d] for d in WIDTHS}


def over_draws(scores: jax.Array, d: int) -> list[dict]:
    """Exercise 3: what 1, √d and d do to rows of scores: their std, the share of each verdict and of one-hot
    rows, mean spread and entropy.
    """
    divisors = jnp.array([1.0, d**0.5, d])
    columns = _over_draws(scores, divisors)
    return [{"d": d, **{name: column[i] for name, column in columns.items()}} for i in range(len(divisors))]


@jax.jit
def _over_draws(scores: jax.Array, divisors: jax.Array) -> dict[str, jax.Array]:
    each = jax.vmap(jax.vmap(judge, (0, None)), (None, 0))(scores, divisors)
    shares = jnp.stack([jnp.mean(each["verdict"] == i, 1) for i in range(3)], 1)
    one_hot = (each["max"] > ONE_HOT).mean(1)
    means = {name: each[name].mean(1) for name in ("spread", "entropy")}
    return {"divisor": divisors, "std": scores.std() / divisors, "shares": shares, "one_hot": one_hot, **means}
