"""How much time and memory does Σ_i ∂²f/∂x_i² through attention take, for a real f?

    python benchmarks/how_much_is_a_laplacian.py          the whole of it
    python benchmarks/how_much_is_a_laplacian.py --quick  few tokens, two rounds; writes no file

f(x) = Σ w ⊙ attention(x W_Q, x W_K, x W_V) of T tokens of 4 numbers, n = 4T coordinates, in float64. The three ways
by jvp and folx go through jattn.attention; the trace of the Hessian is that of the dense definition, as the reference
has it. First each is compared with the trace; then they are timed in turns. Temporaries are what XLA plans, and are
asked for at lengths that nobody would wait for, too. folx is timed if it is installed: `pip install folx`.
Li et al. 2024, "A computational framework for neural network-based variational Monte Carlo with forward Laplacian".
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _measure import Differs, asked, distance, header, say, side_by_side, table, times_as_fast, write

import jattn

sys.path.append(str(Path(__file__).parents[1] / "demos"))
from _laplacians import GRADIENT, HESSIAN, NESTED, ways

D, EXACT = 4, 1e-10


class Case(NamedTuple):
    """A length, and what is asked of it: the dense form is out of reach before the others are."""

    tokens: int
    timed: bool = True
    all_ways: bool = True

    @property
    def name(self) -> str:
        return f"T {self.tokens}"


CASES = [Case(16), Case(64), Case(256), Case(1024, timed=False), Case(4096, timed=False, all_ways=False)]
LINEAR = (NESTED, GRADIENT)


def dense(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jattn.reference.attention(q, k, v)[0]


def function_of(way: str, w: dict[str, jax.Array]) -> list[Callable[[jax.Array], jax.Array]]:
    attend = dense if way == HESSIAN else jattn.attention
    return [lambda x: attend(x @ w["q"], x @ w["k"], x @ w["v"]), lambda out: jnp.sum(w["out"] * out)]


def measure(case: Case, rounds: int) -> dict[str, Any]:
    T = case.tokens
    say(f"{case.name}: {T * D} coordinates")
    draw = np.random.default_rng(T).standard_normal
    w = {name: jnp.asarray(draw((D, D))) for name in ("q", "k", "v")} | {"out": jnp.asarray(draw((T, D)))}
    x = jnp.asarray(draw((T, D)))
    made = {
        name: jax.jit(lambda w, x, way=way, name=name: way(function_of(name, w), x)).lower(w, x).compile()
        for name, way in ways().items()
        if case.all_ways or name in LINEAR
    }
    row: dict[str, Any] = {"T": T, "bytes": {n: f.memory_analysis().temp_size_in_bytes for n, f in made.items()}}
    if not case.timed:
        return row
    found = {name: f(w, x) for name, f in made.items()}
    row["errors"] = {name: distance(got[:1], found[HESSIAN][:1]) for name, got in found.items()}
    off = max(row["errors"].values())
    if not off <= EXACT:
        raise Differs(f"{case.name}: jattn differs by {off:.1e} of the float64 reference; nothing was timed.")
    times = side_by_side({n: partial(lambda f: jax.block_until_ready(f(w, x)), f) for n, f in made.items()}, rounds)
    row["milliseconds"] = {name: t.milliseconds() for name, t in times.items()}
    row["ratios"] = {name: times_as_fast(t, times[HESSIAN]) for name, t in times.items()}
    return row


def growth(rows: list[dict[str, Any]], name: str) -> float:
    """The power of n by which the temporaries grow between the last two lengths at which they are known."""
    before, last = [r for r in rows if name in r["bytes"]][-2:]
    return math.log(last["bytes"][name] / before["bytes"][name]) / math.log(last["T"] / before["T"])


def page(head: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    names = list(rows[0]["bytes"])
    memory = [
        [name, *(f"{r['bytes'][name] / 1e6:,.3f}" if name in r["bytes"] else "" for r in rows),
         *([f"n^{growth(rows, name):.1f}"] if len(rows) > 1 else [])]
        for name in names
    ]  # fmt: skip
    timed = [r for r in rows if "milliseconds" in r]
    seconds = [
        [name, *(f"{r['milliseconds'][name]['median']:,.3g} ms ({r['ratios'][name]:.2g})" for r in timed),
         "–" if name == HESSIAN else f"{max(r['errors'][name] for r in timed):.0e}"]
        for name in names
    ]  # fmt: skip
    lengths = lambda rows: [f"n = {r['T'] * D:,}" for r in rows]  # noqa: E731
    return "\n".join(
        [
            "# How much is a Laplacian through attention?",
            "",
            *(f"- {name}: {x}" for name, x in head.items()),
            "",
            f"One head, tokens of {D} numbers, n = {D}T coordinates. Temporaries in MB, and the power of n by which "
            "they grow at the end:",
            "",
            table(["way", *lengths(rows), *(["growth"] if len(rows) > 1 else [])], memory),
            "",
            "Time, and in brackets how many times as fast as the trace of the Hessian; then the largest relative "
            f"difference from it. “{NESTED}” is one scan over the coordinates.",
            "",
            table(["way", *lengths(timed), "error"], seconds),
        ]
    )


def main() -> None:
    how = asked(__doc__, CASES, ["T 16"])
    with jax.enable_x64(True):
        rows = [measure(case, how.rounds) for case in how.cases]
    head = header(["folx"]) | {"dtype": "float64"}
    write(how.folder, "how_much_is_a_laplacian", page(head, rows), {"header": head, "rows": rows})


if __name__ == "__main__":
    try:
        main()
    except Differs as finding:
        raise SystemExit(f"how_much_is_a_laplacian: {finding}") from None
