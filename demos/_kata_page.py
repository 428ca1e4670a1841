"""The page of attention_kata.py: each step, the effect of scaling, and the three exercises."""

import _exercises as ex
import numpy as np
from _cli import numbers, table, title, vector
from rich.console import Console
from rich.table import Table

from jattn.console import bars, heatmap, vectors


def show(console: Console, r: dict) -> None:
    steps(console, r)
    scaling_of_cat(console, r)
    scaling_of_draws(console, r)
    contexts(console, r["contexts"])
    matches(console, r["matches"])
    title(console, f"Exercise 3: 1, √d_k and d_k on {ex.DRAWS} draws of a row, q and k from N(0, 1)")
    console.print(over_draws(r["widths"]))
    console.print(
        f"{of_width(r['widths'])} (The kata prints softmax([3.75, 6.25, 4.38]) as [0.06, 0.76, 0.18]; it is "
        f"{vector(r['text_softmax'])}.)"
    )


def of_width(rows: list[dict]) -> str:
    """What each divisor makes of narrow and of wide heads; `rows` are those of all widths, three divisors each."""
    plain, root, whole = ((rows[i], rows[i - 3]) for i in range(3))  # the narrowest and the widest
    return (
        f"Without scaling one key has more than {ex.ONE_HOT} of the weight in {plain[0]['one_hot']:.0%} of the rows at "
        f"d_k = {plain[0]['d']}, in {plain[1]['one_hot']:.0%} at {plain[1]['d']}. Divided by d_k the mean spread falls "
        f"from {whole[0]['spread']:.3f} to {whole[1]['spread']:.3f}, by √d_k it stays: {root[0]['spread']:.3f} and "
        f"{root[1]['spread']:.3f}."
    )


def steps(console: Console, r: dict) -> None:
    """From the embeddings to the three tokens that each word attends to most."""
    words, W, out, bank = r["words"], np.array(r["weights"]), r["out"], r["words"].index("bank")
    d_model, d_k = len(r["E"][0]), len(r["q"][0])
    for name, label in [("E", f"Embeddings E: d_model = {d_model}"), ("q", "Queries q = E W_Q"),
                        ("k", "Keys k = E W_K"), ("v", "Values v = E W_V")]:  # fmt: skip
        title(console, label)
        console.print(vectors(words, r[name]))
    for name, label in [("scores", "Raw scores q kᵀ"), ("scaled", f"Scaled scores q kᵀ / √{d_k}")]:
        title(console, label)
        console.print(vectors(words, r[name], columns=words))
    off = max(abs(total - 1) for total in r["row_sums"])
    title(console, f"Weights: softmax of each row; their sums are 1 within {off:.0e}")
    console.print(heatmap(W, words, words))
    title(console, "The same in four characters: . < 0.10 ≤ o < 0.18 ≤ O < 0.25 ≤ #")
    marks = [[".oO#"[i] for i in np.searchsorted([0.10, 0.18, 0.25], row, side="right")] for row in W]
    console.print(table(["query \\ key", *words], [[w, *row] for w, row in zip(words, marks, strict=True)]))
    title(console, "Outputs: weights × v")
    console.print(vectors(words, out))
    console.print(f"v of bank      {vector(r['v'][bank])}\noutput of bank {vector(out[bank])}")
    console.print(f"They differ: {W[bank, bank]:.1%} of the output is bank's own value.")
    title(console, "The three tokens that each word attends to most")
    for word, row in zip(words, W, strict=True):
        top = np.argsort(-row, kind="stable")[:3]
        console.print(bars([words[s] for s in top], row[top], title=f"{word}:"))


def scaling_of_cat(console: Console, r: dict) -> None:
    title(console, "The effect of scaling on the row of cat")
    over = [f"over {c['divisor']:.0f}" for c in r["cat"]]
    console.print(vectors(over, [c["weights"] for c in r["cat"]], columns=r["words"]))
    effects = [[label, *numbers([c["max"], c["min"], c["spread"], c["entropy"]]), ex.VERDICTS[c["verdict"]]]
               for label, c in zip(over, r["cat"], strict=True)]  # fmt: skip
    console.print()
    console.print(table(["weights", "max", "min", "spread", "entropy", "verdict"], effects))


def scaling_of_draws(console: Console, r: dict) -> None:
    for name, rows in r["draws"].items():
        title(console, f"... and on {ex.DRAWS} draws of everything, the matrices from {name}")
        console.print(over_draws(rows))
    as_drawn, small = r["draws"].values()
    console.print(
        f"√d_k assumes entries of q and k with variance 1. The kata's have {len(r['E'][0])}: divided by √d_k its "
        f"scores keep a std of {as_drawn[1]['std']:.1f} and {as_drawn[1]['shares'][1]:.0%} of its rows are 'good' "
        f"(over d_k {as_drawn[2]['shares'][1]:.0%}), against {small[1]['shares'][1]:.0%} with matrices of variance "
        "1/d_model."
    )


def contexts(console: Console, sentences: list[dict]) -> None:
    title(console, "Exercise 1: does bank attend differently in another context? Yes.")
    for c in sentences:
        console.print(vectors(["weights"], [c["weights"]], columns=c["words"]))
        console.print(f" bank {vector(ex.MEANING['bank'], 1)} (water, money) → {vector(c['out'])}\n")
    console.print("Same word, same vector, same rule; only the neighbours differ. Nothing was learned.")


def matches(console: Console, scores: list[dict]) -> None:
    title(console, "Exercise 2: one scaled score grows, the other five stay 0")
    heads = ["score", "weight\np", "distance\nto its v", "distance\nto mean v", "gradient\ndp/ds",
             "gradient\nd log p/ds", "error of\naveraging", "error of\nlook-up"]  # fmt: skip
    lines = []
    for m in scores:
        distances, errors = [m["weight"], m["to_value"], m["to_mean"]], [m["averaging"], m["look_up"]]
        slopes = [f"{m['slope']:.1e}", f"{m['log_slope']:.1e}"]
        lines.append([f"{m['score']:.0f}", *numbers(distances), *slopes, *numbers(errors)])
    console.print(table(heads, lines))
    broad, sharp = scores[0], scores[-1]
    console.print(
        "The output becomes one value and the gradient p(1 − p) dies. Not always desirable: to average away the noise "
        f"of six noisy copies, broad wins (mean squared error {broad['averaging']:.3f}, in theory Σp² = 1/6; sharp "
        f"{sharp['averaging']:.3f}, in theory 1); to look up one value among unrelated ones, sharp wins "
        f"({sharp['look_up']:.3f}; broad {broad['look_up']:.3f}, in theory 5/6)."
    )


def over_draws(rows: list[dict]) -> Table:
    heads = ["d_k", "over", "std of scores", *ex.VERDICTS, "mean spread", "mean entropy"]
    lines = [[str(x["d"]), f"{x['divisor']:.0f}", f"{x['std']:.3f}", *(f"{share:.1%}" for share in x["shares"]),
              *numbers([x["spread"], x["entropy"]])] for x in rows]  # fmt: skip
    return table(heads, lines)
