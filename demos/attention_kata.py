"""Self-attention on "The cat sat on the bank" with random matrices, and the kata's three exercises.

Runs "Visualize Attention Weights" (Kata 9.1): embeddings, Q, K, V, scores, weights, outputs, the heatmap in four
characters, the top three tokens, the effect of dividing by 1, √d_k and d_k on one row and on many draws, and the
three hands-on questions, answered by computation. The kata draws from a generator that it does not show; here the
numbers are jax.random's, by --seed.
"""

import argparse

import _cli
import _exercises as ex
import jax
import jax.numpy as jnp
import numpy as np
from _cli import numbers, table, vector
from jax import random
from rich.console import Console
from rich.table import Table

import jattn
from jattn.console import bars, heatmap, vectors

WORDS, D_MODEL, D_K = ["The", "cat", "sat", "on", "the", "bank"], 8, 4
ENTRIES = len(WORDS) * D_MODEL + 3 * D_MODEL * D_K  # of E and of W_Q, W_K, W_V
VARIANCES = {"N(0, 1), as in the kata": 1.0, "N(0, 1/d_model)": 1 / D_MODEL}


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    # A draw in which all four characters and two verdicts occur; the tables over many draws say how rare that is.
    _cli.add_seed(parser, "the embeddings and matrices", default=6)
    return parser


def project(entries: jax.Array) -> dict[str, jax.Array]:
    """E and the matrices out of entries [ENTRIES] from N(0, 1), as the kata draws them; and q, k, v."""
    E = entries[: len(WORDS) * D_MODEL].reshape(len(WORDS), D_MODEL)
    W_Q, W_K, W_V = entries[len(WORDS) * D_MODEL :].reshape(3, D_MODEL, D_K)
    return {"E": E, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "q": E @ W_Q, "k": E @ W_K, "v": E @ W_V}


def cat_row(entries: jax.Array) -> jax.Array:
    """The raw scores of "cat"."""
    made = project(entries)
    return made["k"] @ made["q"][WORDS.index("cat")]


def compute(args: argparse.Namespace) -> dict:
    of_draws, of_noise, of_rows = random.split(random.key(args.seed), 3)
    draws = random.normal(of_draws, (1 + ex.DRAWS, ENTRIES))
    x = jax.jit(project)(draws[0])
    steps = jax.jit(jattn.explain)(x["q"], x["k"], x["v"])
    cat = steps.scores[WORDS.index("cat")]
    cats = jax.jit(jax.vmap(cat_row))(draws[1:])
    noise = random.normal(of_noise, (ex.DRAWS, ex.N, 1))
    rows = jax.jit(jax.vmap(ex.unit_rows))(random.split(of_rows, ex.DRAWS))
    return {
        "words": WORDS, **x, **steps._asdict(), "row_sums": steps.weights.sum(1),
        "cat": [jax.jit(ex.judge)(cat, divisor) for divisor in (1.0, D_K**0.5, float(D_K))],
        "draws": {name: ex.over_draws(variance * cats, D_K) for name, variance in VARIANCES.items()},
        "contexts": [ex.in_context(sentence) for sentence in ex.CONTEXTS],
        "matches": [ex.one_match(score, x["v"], noise) for score in ex.MATCHES],
        "widths": [row for d in ex.WIDTHS for row in ex.over_draws(rows[d], d)],
        "text_softmax": jattn.softmax(jnp.array([3.75, 6.25, 4.38])),
    }  # fmt: skip


def show(console: Console, r: dict) -> None:
    W, out, bank = np.array(r["weights"]), r["out"], WORDS.index("bank")
    for name, label in [("E", f"Embeddings E: d_model = {D_MODEL}"), ("q", "Queries q = E W_Q"),
                        ("k", "Keys k = E W_K"), ("v", "Values v = E W_V")]:  # fmt: skip
        _cli.title(console, label)
        console.print(vectors(WORDS, r[name]))
    for name, label in [("scores", "Raw scores q kᵀ"), ("scaled", f"Scaled scores q kᵀ / √{D_K}")]:
        _cli.title(console, label)
        console.print(vectors(WORDS, r[name], columns=WORDS))
    off = max(abs(total - 1) for total in r["row_sums"])
    _cli.title(console, f"Weights: softmax of each row; their sums are 1 within {off:.0e}")
    console.print(heatmap(W, WORDS, WORDS))
    _cli.title(console, "The same in four characters: . < 0.10 ≤ o < 0.18 ≤ O < 0.25 ≤ #")
    marks = [[".oO#"[i] for i in np.searchsorted([0.10, 0.18, 0.25], row, side="right")] for row in W]
    console.print(table(["query \\ key", *WORDS], [[w, *row] for w, row in zip(WORDS, marks, strict=True)]))
    _cli.title(console, "Outputs: weights × v")
    console.print(vectors(WORDS, out))
    console.print(f"v of bank      {vector(r['v'][bank])}\noutput of bank {vector(out[bank])}")
    console.print(f"They differ: only {W[bank, bank]:.1%} of the output is bank's own value.")
    _cli.title(console, "The three tokens that each word attends to most")
    for word, row in zip(WORDS, W, strict=True):
        top = np.argsort(-row, kind="stable")[:3]
        console.print(bars([WORDS[s] for s in top], row[top], title=f"{word}:"))

    _cli.title(console, "The effect of scaling on the row of cat")
    over = [f"over {c['divisor']:.0f}" for c in r["cat"]]
    console.print(vectors(over, [c["weights"] for c in r["cat"]], columns=WORDS))
    effects = [[f"over {c['divisor']:.0f}", *numbers([c["max"], c["min"], c["spread"], c["entropy"]]),
                ex.VERDICTS[c["verdict"]]] for c in r["cat"]]  # fmt: skip
    console.print()
    console.print(table(["weights", "max", "min", "spread", "entropy", "verdict"], effects))
    for name, rows in r["draws"].items():
        _cli.title(console, f"... and on {ex.DRAWS} draws of everything, the matrices from {name}")
        console.print(over_draws(rows))
    as_drawn, small = r["draws"].values()
    console.print(
        f"√d_k assumes entries of q and k with variance 1. The kata's have {D_MODEL}: divided by √d_k its scores keep "
        f"a std of {as_drawn[1]['std']:.1f} and {as_drawn[1]['shares'][1]:.0%} of its rows are 'good' (over d_k "
        f"{as_drawn[2]['shares'][1]:.0%}), against {small[1]['shares'][1]:.0%} with matrices of variance 1/d_model."
    )

    _cli.title(console, "Exercise 1: does bank attend differently in another context? Yes.")
    for c in r["contexts"]:
        console.print(vectors(["weights"], [c["weights"]], columns=c["words"]))
        console.print(f" bank {vector(ex.MEANING['bank'], 1)} (water, money) → {vector(c['out'])}\n")
    console.print("Same word, same vector, same rule; only the neighbours differ. Nothing was learned.")

    _cli.title(console, "Exercise 2: one scaled score grows, the other five stay 0")
    heads = [
        "score",
        "weight\np",
        "distance\nto its v",
        "distance\nto mean v",
        "gradient\ndp/ds",
        "gradient\nd log p/ds",
    ]
    heads += ["error of\naveraging", "error of\nlook-up"]
    names = ["weight", "to_value", "to_mean", "averaging", "look_up"]
    lines = [[f"{m['score']:.0f}", *numbers(m[name] for name in names)] for m in r["matches"]]
    for line, m in zip(lines, r["matches"], strict=True):
        line[4:4] = [f"{m['slope']:.1e}", f"{m['log_slope']:.1e}"]
    console.print(table(heads, lines))
    broad, sharp = r["matches"][0], r["matches"][-1]
    console.print(
        "The output becomes one value and the gradient p(1 − p) dies. Not always desirable: to average away the noise "
        f"of six noisy copies, broad wins (mean squared error {broad['averaging']:.3f}, in theory Σp² = 1/6; sharp "
        f"{sharp['averaging']:.3f}, in theory 1); to look up one value among unrelated ones, sharp wins "
        f"({sharp['look_up']:.3f}; broad {broad['look_up']:.3f}, in theory 5/6)."
    )

    _cli.title(console, f"Exercise 3: 1, √d_k and d_k on {ex.DRAWS} draws of a row, q and k from N(0, 1)")
    console.print(over_draws(r["widths"]))
    console.print(
        "Without scaling wide heads are one-hot, divided by d_k they are flat, with √d_k the width does not matter. "
        f"(The kata prints softmax([3.75, 6.25, 4.38]) as [0.06, 0.76, 0.18]; it is {vector(r['text_softmax'])}.)"
    )


def over_draws(rows: list[dict]) -> Table:
    heads = ["d_k", "over", "std of scores", *ex.VERDICTS, "mean spread", "mean entropy"]
    lines = [[str(x["d"]), f"{x['divisor']:.0f}", f"{x['std']:.3f}", *(f"{share:.1%}" for share in x["shares"]),
              *numbers([x["spread"], x["entropy"]])] for x in rows]  # fmt: skip
    return table(heads, lines)


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
