"""How fast is attention, and each of its derivatives, beside PyTorch, jax.nn, flax and tokamax on a CPU?

    make bench                                            the whole of it, in an environment of its own
    python benchmarks/how_fast_is_attention.py --quick    two small cases and two rounds; writes no file

First every result is compared with the definition in float64; if ours differs, nothing is timed. Then each ratio
is measured side by side in one run, float32, all cores. JAX libraries get [B, T, H, D] and PyTorch contiguous
[B, H, T, D], the layout natural to each; in the decoding cases all get the layout that the case names: `[B, H, S, D]`
is `jattn.attention` under two `jax.vmap`, `[B, S, H, D]` is `jattn.dot_product_attention` and for PyTorch transposed
views. A peer that is not installed is left out.
"""

import statistics
import time
from typing import Any

import jax
from _measure import (
    TOLERANCE,
    Differs,
    asked,
    derivatives,
    distance,
    header,
    product,
    say,
    side_by_side,
    table,
    times_as_fast,
    truth,
    verdict,
    write,
)
from _peers import PEERS, Case, Contestant, contestants, ours

DECODING: dict[str, Any] = {"passes": ("forward",), "floors": {"PyTorch": (1.0, None), "jax.nn": (4, None)}}
SMALL = {"PyTorch": (0.9, 0.9), "jax.nn": (0.95, 0.95)}
CASES = (
    Case("1,8,1024,64 full", 1, 8, 1024, 1024, 64, False, {"PyTorch": (1.3, 1.2), "jax.nn": (2, 2)}),
    Case("1,8,1024,64 causal", 1, 8, 1024, 1024, 64, True, {"PyTorch": (1.3, 1.2), "jax.nn": (2, 2)}),
    Case("4,8,512,64 causal", 4, 8, 512, 512, 64, True, {"PyTorch": (1.2, 1.2), "jax.nn": (2, 2)}),
    Case("1,8,4096,64 causal", 1, 8, 4096, 4096, 64, True, {"PyTorch": (1.4, 1.2), "jax.nn": (5, 5)}),
    Case("1,4,8192,128 causal", 1, 4, 8192, 8192, 128, True, {"PyTorch": (1.5, 1.2), "jax.nn": (4, 4)}),
    Case("8,8,1×8192,64 [B,H,S,D]", 8, 8, 1, 8192, 64, False, **DECODING, heads_major=True),
    Case("8,8,1×8192,64 [B,S,H,D]", 8, 8, 1, 8192, 64, False, **DECODING, shared=True),
    Case("8,8,64,64 full", 8, 8, 64, 64, 64, False, SMALL),
    Case("8,8,256,64 full", 8, 8, 256, 256, 64, False, SMALL),
)
QUICK = ("8,8,64,64 full", "4,8,512,64 causal")
LIMITS = {"jvp / forward": 4.0, "hvp / gradient": 3.0, "compile, s": 4.0}
NAMES = {"forward": "forward", "gradient": "forward+backward"}
WORK = {"forward": 1.0, "gradient": 3.5}


def equality(case: Case, who: dict[str, Contestant]) -> dict[str, dict[str, Any]]:
    """How far each result is from the truth, or in words why there is none; raises if it is ours."""
    x, w, dots = case.arrays()
    want = truth(x, w, case.causal)
    found: dict[str, dict[str, Any]] = {name: {} for name in who}
    for name, one in who.items():
        for which in case.passes:
            try:
                got = one.back(one.calls[which](*one.given(x, w, dots)))
                off = distance(got, want[: len(got)])
                found[name][which] = off if off <= TOLERANCE else f"differs by {off:.1e}"
            except Exception as refusal:
                if name == "jattn":
                    raise
                found[name][which] = f"refuses: {' '.join(str(refusal).split()[:8])}"
    for which, off in found["jattn"].items():
        if isinstance(off, str):
            raise Differs(f"{case.name}, {NAMES[which]}: jattn {off} of the float64 reference; nothing was timed.")
    return found


def race(case: Case, who: dict[str, Contestant], equal: dict[str, dict[str, Any]], rounds: int) -> list[dict]:
    """One row a pass: the milliseconds of each, and how many times as fast ours is."""
    multiply, operations = product()
    given = {name: one.given(*case.arrays()) for name, one in who.items()}
    rows = []
    for n, which in enumerate(case.passes):
        running = [name for name in who if not isinstance(equal[name][which], str)]
        calls = {name: (lambda f=who[name].calls[which], x=given[name]: f(*x)) for name in running}
        times = side_by_side({"product": multiply, **calls}, rounds)
        rate = operations / times["product"].median
        reached = WORK[which] * case.operations / times["jattn"].median
        row = {"case": case.name, "pass": NAMES[which], "errors": {name: equal[name][which] for name in who}}
        row["milliseconds"] = {name: t.milliseconds() for name, t in times.items()}
        row |= {
            "product_gflops": rate / 1e9,
            "jattn_gflops": reached / 1e9,
            "fraction": None if case.T == 1 else reached / rate,
        }
        row["ratios"] = {name: times_as_fast(times["jattn"], times[name]) for name in running if name != "jattn"}
        row["floors"] = {name: floors[n] for name, floors in case.floors.items()}
        rows.append(row)
    return rows


def higher(case: Case, one: Contestant, rounds: int) -> dict[str, Any]:
    """What a jvp, a Hessian-vector product and the compilation of a gradient cost."""
    args = one.given(*case.arrays())
    calls = {name: (lambda f=one.calls[name]: f(*args)) for name in ("forward", "gradient", "jvp", "hvp")}
    times = side_by_side(calls, rounds)
    ratios = {f"{b} / {a}": times_as_fast(times[a], times[b]) for a, b in (("forward", "jvp"), ("gradient", "hvp"))}

    def compiling() -> float:
        jax.clear_caches()
        start = time.perf_counter()
        jax.jit(derivatives(ours(case))["gradient"]).lower(*args).compile()
        return time.perf_counter() - start

    ratios["compile, s"] = statistics.median(compiling() for _ in range(min(rounds, 3)))
    milliseconds = {name: t.milliseconds() for name, t in times.items()}
    return {"case": case.name, "milliseconds": milliseconds, "costs": ratios, "limits": LIMITS}


def page(head: dict[str, Any], rows: list[dict], costs: list[dict]) -> str:
    """The tables."""
    present = [name for name in PEERS if any(name in row["errors"] for row in rows)]
    first, times = [], []
    for row in rows:
        cells = [row["case"], row["pass"], "–" if row["fraction"] is None else f"{row['fraction']:.2f}"]
        for name in present:
            x = row["ratios"].get(name)
            said = str(row["errors"].get(name, "–")) if x is None else f"{x:.2f}×"
            said += "" if x is None else f" {verdict(x, floor=row['floors'].get(name))}"
            cells.append(said.strip())
        first.append(cells)
        shown = (row["milliseconds"].get(name) for name in ("jattn", *present))
        times.append([*cells[:2], *("–" if t is None else f"{t['median']:.2f} ({t['least']:.2f})" for t in shown)])
    second = [
        [c["case"], *(f"{c['costs'][k]:.2f} {verdict(c['costs'][k], limit=LIMITS[k])}" for k in LIMITS)] for c in costs
    ]
    return "\n\n".join(
        [
            "# How fast is attention?",
            "\n".join(f"- {name}: {x}" for name, x in head.items()),
            "How many times as fast jattn is (their time over ours, median over the rounds), beside the floor. "
            "Cases are B, H, T, D. *Of the product rate*: operations of attention a second, over those of a matrix "
            "product of 2048 × 2048 in the same round (forward 4·B·H·pairs·D, forward+backward 3.5 times that).",
            table(["case", "pass", "of the product rate", *present], first),
            "What a jvp costs in forwards, a Hessian-vector product in gradients (forward+backward), and how long the "
            "gradient takes to trace and compile.",
            table(["case", *LIMITS], second),
            "Milliseconds, the median over the rounds (the shortest call).",
            table(["case", "pass", "jattn", *present], times),
        ]
    )


def main() -> None:
    cases, rounds, folder, _ = asked(__doc__, CASES, QUICK)

    who = {case.name: contestants(case) for case in cases}
    equal = {}
    for case in cases:
        say(f"equality  {case.name}")
        equal[case.name] = equality(case, who[case.name])
    rows, costs = [], []
    for case in cases:
        say(f"time      {case.name}")
        rows += race(case, who[case.name], equal[case.name], rounds)
        if len(case.passes) > 1:
            costs.append(higher(case, who[case.name]["jattn"], rounds))
    head = header(["torch", "flax", "tokamax"]) | {"rounds": f"{rounds}, fewer where they take long"}
    head["large matrix product"] = f"{statistics.median(r['product_gflops'] for r in rows):.0f} GFLOP/s"
    write(folder, "how_fast_is_attention", page(head, rows, costs), {"header": head, "rows": rows, "costs": costs})


if __name__ == "__main__":
    try:
        main()
    except Differs as finding:
        raise SystemExit(f"how_fast_is_attention: {finding}") from None
