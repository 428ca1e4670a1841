"""From raw scores to percentages: "Cat ate mouse" in two models, and the 40/20/40 that neither reaches untrained.

Runs "The Process: From Raw Scores to Percentages". Its prose and its code are two different models: the prose
states a query and keys, the code computes others from W_Q and W_K; both stand side by side here. Then the
similarity trio, and gradient descent to the 40 %, 20 %, 40 % that the text mentions and never computes: on the
query alone in the prose's model, on W_Q, as the text describes learning, in the code's.
"""

import argparse
from collections.abc import Callable

import _cli
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _cli import numbers, table, vector
from rich.console import Console

import jattn
from jattn import flow
from jattn.console import bars

WORDS, TARGET, SHOWN = ["Cat", "ate", "mouse"], [0.4, 0.2, 0.4], [0, 1, 10, 100, 1000, 10_000, 30_000]
E = [[0.2, 0.8, 0.3], [0.5, 0.4, 0.9], [0.1, 0.7, 0.6]]
PROSE_Q, PROSE_K = [[0.3, 0.6]], [[0.8, 0.2], [0.4, 0.7], [0.9, 0.1]]  # the prose gives no values
W_Q = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]
W_K = [[0.7, 0.8], [0.9, 0.1], [0.2, 0.3]]
W_V = [[0.4, 0.5], [0.6, 0.7], [0.8, 0.9]]
PERCENT_PRINTED = [32, 37, 31]  # by the prose
TRIO = {"A·B": [1.0, 0.0], "A·C": [0.0, 1.0], "A·D": [-1.0, 0.0], "A·(3, 3)": [3.0, 3.0]}  # A = [1, 0]


explain = jax.jit(jattn.explain)


def arguments() -> argparse.ArgumentParser:
    return _cli.parser(__doc__)


def excess(q: jax.Array, k: jax.Array) -> jax.Array:
    """Cross-entropy −Σ_s target_s log p_s of the weights that q [1, D] gives k, above its least value."""
    target = jnp.array(TARGET)
    scaled = jattn.explain(q, k, k).scaled[0]
    return target @ (jnp.log(target) - jattn.log_softmax(scaled))


def exact_query(k: jax.Array) -> jax.Array:
    """The q whose weights are the target: (k_s − k_Cat)·q / √d = log(target_s / target_Cat) for the other words s."""
    target = jnp.array(TARGET)
    return jnp.linalg.solve(k[1:] - k[:1], jnp.log(target[1:] / target[0]) * k.shape[1] ** 0.5)


def train(k: jax.Array, start: jax.Array, query: Callable[[jax.Array], jax.Array], rate: float) -> dict:
    """Gradient descent on the excess of query(x), from x = start: the queries and weights of some of its steps."""
    path = flow.run(lambda x: excess(query(x), k), start, optax.sgd(rate), SHOWN[-1], at=SHOWN)
    q = jax.vmap(query)(path.seen)[:, 0]
    exact = jax.jit(exact_query)(k)
    at_exact = explain(exact[None], k, k).weights[0]
    return {"rate": rate, "steps": SHOWN, "q": q, "weights": explain(q, k, k).weights, "excess": path.loss,
            "end": path.params, "exact_q": exact, "exact_weights": at_exact}  # fmt: skip


def compute(args: argparse.Namespace) -> dict:
    x, w_q, w_k, w_v = (jnp.array(m) for m in (E, W_Q, W_K, W_V))
    prose_q, prose_k = jnp.array(PROSE_Q), jnp.array(PROSE_K)
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    prose, code = explain(prose_q, prose_k, prose_k), explain(q, k, v)
    trained = train(k, w_q, lambda m: x[1:2] @ m, rate=60.0)
    return {
        "prose": {"q": prose_q, "k": prose_k, "scores": prose.scores, "scaled": prose.scaled,
                  "weights": prose.weights, "exps": jnp.exp(prose.scaled)},
        "code": {"q": q, "k": k, "v": v, **code._asdict(), "exps": jnp.exp(code.scaled)},
        "trio": {name: jnp.array([1.0, 0.0]) @ jnp.array(y) for name, y in TRIO.items()},
        "train_query": train(prose_k, prose_q, lambda q: q, rate=30.0),
        "train_W_Q": trained, "trained_rows": explain(x @ trained["end"], k, v).weights,
    }  # fmt: skip


def show(console: Console, r: dict) -> None:
    prose, code = r["prose"], r["code"]
    _cli.title(console, "Two models of one sentence: what the prose states, and what its code computes")
    both = [["query of ate", vector(prose["q"][0]), vector(code["q"][1])]]
    both += [[f"key of {w}", vector(a), vector(b)] for w, a, b in zip(WORDS, prose["k"], code["k"], strict=True)]
    both += [[f"value of {w}", "not given", vector(v)] for w, v in zip(WORDS, code["v"], strict=True)]
    console.print(table(["", "prose", "code"], both))
    console.print()
    names = ("scores", "scaled", "exps")
    columns = [*(prose[name][0] for name in names), *(code[name][1] for name in names)]
    cells = [[w, *numbers(x)] for w, x in zip(WORDS, np.array(columns).T, strict=True)]
    sums = [f"{sum(prose['exps'][0]):.3f}", "", "", f"{sum(code['exps'][1]):.3f}"]
    heads = [f"{who}\n{what}" for who in ("prose", "code") for what in ("q·k", "/ √2", "exp")]
    console.print(table(["", *heads], [*cells, ["sum", "", "", *sums]]))

    _cli.title(console, "Percentages: the attention of ate")
    weights = list(zip(WORDS, prose["weights"][0], PERCENT_PRINTED, code["weights"][1], TARGET, strict=True))
    lines = [[w, f"{a:.2%}", f"{printed}%", f"{b:.2%}", f"{t:.0%}"] for w, a, printed, b, t in weights]
    console.print(table(["", "prose", "prose prints", "code", "stated earlier"], lines))
    console.print(
        "The prose rounds the scaled scores and again the exponentials before it divides, which turns 36.46% into 37%."
    )
    console.print(bars(WORDS, code["weights"][1], title="\ncode"))
    console.print(f"new representation of ate: {vector(code['out'][1])}, a little of each value")

    _cli.title(console, "Why a dot product measures similarity: A = [1, 0]")
    console.print(table(["", "dot product", "cosine"], [[name, f"{x:.0f}", f"{x / np.linalg.norm(TRIO[name]):.3f}"]
                  for name, x in r["trio"].items()]))  # fmt: skip
    console.print("It measures length too: (3, 3) points 45° away from A, and scores three times as much as A itself.")

    for name, what in (("train_query", "the query, in the prose's model"), ("train_W_Q", "W_Q, in the code's model")):
        t = r[name]
        _cli.title(console, f"Learning 40/20/40: gradient descent on {what} (rate {t['rate']:.0f})")
        steps = zip(t["steps"], t["q"], t["weights"], t["excess"], strict=True)
        lines = [[f"{n:,}", vector(q), *(f"{w:.3%}" for w in p), f"{x:.1e}"] for n, q, p, x in steps]
        console.print(table(["step", "query of ate", *WORDS, "loss − least"], lines))
        exact = " / ".join(f"{w:.1%}" for w in t["exact_weights"])
        console.print(f"Solved: two equations, two unknowns, q = {vector(t['exact_q'])} gives {exact} exactly.")
    console.print(
        "Both are finite, for the differences of the keys span the plane; any positive weights can be reached. The "
        "prose's keys are nearly in one line, so its query must grow long, and descent needs thousands of steps."
    )
    rows = [[w, *(f"{x:.1%}" for x in a), *(f"{x:.1%}" for x in b)]
            for w, a, b in zip(WORDS, code["weights"], r["trained_rows"], strict=True)]  # fmt: skip
    _cli.title(console, "All words share W_Q: what ate has learned moves the others")
    console.print(table(["query", *(f"{w}\nbefore" for w in WORDS), *(f"{w}\nafter" for w in WORDS)], rows))


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
