"""What does it cost that a sequence gives the same bits in every batch?

    python benchmarks/what_determinism_costs.py          the whole of it
    python benchmarks/what_determinism_costs.py --quick  short sequences, one round; writes no file

Float32, causal, heads of 64, one call `dot_product_attention` for all examples beside the rule: `jax.lax.map` over
the batch, in tiles that are given. First both are compared with the reference in float64, and a row of the mapped
batch with that row alone, bit for bit; then they are timed in turns.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _measure import (
    RESULTS,
    TOLERANCE,
    Differs,
    derivatives,
    distance,
    header,
    say,
    side_by_side,
    table,
    times_as_fast,
    truth,
    write,
)

import jattn

D, PASSES = 64, ("forward", "gradient")
SIZES = [(64, 64, 8), (32, 256, 8), (8, 1024, 8), (2, 4096, 8)]  # examples, tokens, heads


def attend(tile: tuple[int, int] | None) -> Callable[..., Any]:
    return lambda q, k, v: jattn.dot_product_attention(q, k, v, is_causal=True, tile=tile)


def at_once(name: str) -> Callable[..., Any]:
    return lambda x, w: jax.tree.leaves(derivatives(attend(None))[name](x, w, None))


def by_rule(name: str, tile: tuple[int, int]) -> Callable[..., Any]:
    one = lambda x, w: jax.tree.leaves(derivatives(attend(tile))[name](x, w, None))  # noqa: E731
    return lambda x, w: jax.lax.map(lambda xw: one(*xw), (x, w))


def measure(B: int, T: int, H: int, name: str, rounds: int) -> dict[str, Any]:
    say(f"time      {name}, {B} × {T} tokens, {H} heads")
    *x, w = (np.random.default_rng(n).standard_normal((B, T, H, D), np.float32) for n in range(4))
    tile = (min(512, T // 2), min(512, T // 2))  # two tiles at least: so the rule has it
    ours, rule = jax.jit(at_once(name)), jax.jit(by_rule(name, tile))
    want = [np.swapaxes(a, 1, 2) for a in truth(tuple(np.swapaxes(a, 1, 2) for a in x), np.swapaxes(w, 1, 2), True)]
    x, w = jax.tree.map(jax.device_put, (tuple(x), w))
    got, mapped = ours(x, w), rule(x, w)
    off = max(distance(found, want[: len(found)]) for found in (got, mapped))
    alone = rule(*jax.tree.map(lambda a: a[-1:], (x, w)))
    same = all((np.asarray(a)[-1:] == np.asarray(b)).all() for a, b in zip(mapped, alone, strict=True))
    if not (off <= TOLERANCE and same):
        differs = f"jattn differs by {off:.1e} of the float64 reference; a row alone has the same bits: {same}"
        raise Differs(f"{name}, {B} × {T}: {differs}; nothing was timed.")
    calls = {
        "at once": lambda: jax.block_until_ready(ours(x, w)),
        "by the rule": lambda: jax.block_until_ready(rule(x, w)),
    }
    times = side_by_side(calls, rounds)
    alone = ours(*jax.tree.map(lambda a: a[-1:], (x, w)))
    differs = any((np.asarray(a)[-1:] != np.asarray(b)).any() for a, b in zip(got, alone, strict=True))
    return {"call": name, "B": B, "T": T, "H": H, "ratio": times_as_fast(times["at once"], times["by the rule"]),
            "differs": differs, "milliseconds": {n: t.milliseconds() for n, t in times.items()}}  # fmt: skip


def page(head: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    heads = ["call", "examples", "tokens", "at once", "by the rule", "time of the rule", "a row at once, and alone"]
    cells = [
        [r["call"], str(r["B"]), f"{r['T']:,}", *(f"{t['median']:.3g} ms" for t in r["milliseconds"].values()),
         f"{r['ratio']:.2f}", "other bits" if r["differs"] else "the same bits"]
        for r in rows
    ]  # fmt: skip
    return "\n".join(
        [
            "# What does it cost that a sequence gives the same bits in every batch?",
            "",
            *(f"- {name}: {x}" for name, x in head.items()),
            "",
            "`dot_product_attention`, causal, 8 heads of 64, all examples at once, beside `jax.lax.map` over the "
            "examples in given tiles, in turns.",
            "",
            table(heads, cells),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short sequences, one round; no file unless --out")
    parser.add_argument("--rounds", type=int, default=15, help="how often each pair takes turns (default: 15)")
    parser.add_argument("--out", type=Path, help=f"where to write (default: {RESULTS.name}/ beside this script)")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    sizes, rounds = ([(3, 64, 2)], 1) if args.quick else (SIZES, args.rounds)
    rows = [measure(*size, name, rounds) for size in sizes for name in PASSES]
    head, folder = header([]), args.out or (None if args.quick else RESULTS)
    write(folder, "what_determinism_costs", page(head, rows), {"header": head, "rows": rows})


if __name__ == "__main__":
    try:
        main()
    except Differs as finding:
        raise SystemExit(f"what_determinism_costs: {finding}") from None
