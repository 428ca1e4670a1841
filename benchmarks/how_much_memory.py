"""How much memory do attention and its derivatives take as sequences grow, and do the longest ones run?

    make bench                                      the whole of it
    python benchmarks/how_much_memory.py --quick    short sequences; writes no file

One head of 64, float32. First each derivative is compared with the definition in float64. Then each is compiled,
not run, at growing T: the temporary memory that XLA reserves, and the exponent p of T^p fitted to it, beside that of
the dense definition; likewise `statistics` and `top_keys`. Then the two longest calls run, each in a process of its
own: the peak of resident memory beyond what the process held before and beyond the inputs (so that outputs and the
compiler's own memory count), and the time. Their results are then compared with chosen rows of the definition in
float64 and, where all of dk and dv is too much for that, with what must hold of them: Σ_s dv_s = Σ_t dout_t and
Σ_s ⟨k_s, dk_s⟩ = Σ_t ⟨q_t, dq_t⟩.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _measure import RESULTS, TOLERANCE, Differs, derivatives, distance, header, say, table, verdict, write

import jattn
from jattn import masks, reference

D, WINDOW = 64, 1024
WINDOWS = {"full": (math.inf, math.inf), "causal": (math.inf, 0), "window": (WINDOW - 1, 0)}
MASKS = {"full": None, "causal": masks.causal(), "window": masks.window(*WINDOWS["window"])}
MEASURED = ("statistics", "gradient of statistics", "top_keys", "gradient of top_keys")
NAMES = {False: (*derivatives(len), *MEASURED), True: ("forward", "gradient", "gradient of statistics")}
KEYS = 8
"""How many `top_keys` finds."""
GROWING = {False: (4096, 8192, 16384, 32768, 65536), True: (1024, 2048)}
LONGEST = {False: (("gradient", "full", 65_536), ("forward", "window", 1_048_576)),
           True: (("gradient", "full", 4_099), ("forward", "window", 16_411))}  # fmt: skip
EXPONENT, GIB = 1.1, 1.5
LONG = ["call", "mask", "T", "GiB beyond the inputs", "inputs, GiB", "seconds", "compile, s", "error"]


def attend(mask: str) -> Any:
    return partial(jattn.attention, mask=MASKS[mask])


def dense(mask: str) -> Any:
    """The definition: T × S, several times."""

    def f(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        allowed = None if MASKS[mask] is None else masks.to_dense(MASKS[mask], q.shape[0], k.shape[0])
        return reference.attention(q, k, v, mask=allowed)[0]

    return f


def calls(mask: str, *, ours: bool) -> dict[str, Any]:
    """Each call to measure, by its name: a function of x = (q, k, v), a cotangent w of out, and x_dot."""

    def numbers(what: str, q: jax.Array, k: jax.Array) -> jax.Array:
        """[T, 5] or [T, KEYS], what is said of each query; 0 for keys that are not there."""
        allowed = None if MASKS[mask] is None or ours else masks.to_dense(MASKS[mask], q.shape[0], k.shape[0])
        if what == "statistics":
            f = partial(jattn.statistics, mask=MASKS[mask]) if ours else partial(reference.statistics, mask=allowed)
            return jnp.stack(f(q, k)[:5], 1)
        if ours:
            found = jattn.top_keys(q, k, KEYS, mask=MASKS[mask])[1]
        else:
            logits = q @ k.T / math.sqrt(D)
            found = jax.lax.top_k(logits if allowed is None else jnp.where(allowed, logits, -jnp.inf), KEYS)[0]
        return jnp.where(found == -jnp.inf, 0, found)

    def measured(what: str) -> Any:
        return lambda x, w, x_dot: numbers(what, *x[:2])

    def gradient(what: str) -> Any:
        def total(q: jax.Array, k: jax.Array, w: jax.Array) -> jax.Array:
            x = numbers(what, q, k)
            return jnp.sum(x * w[:, : x.shape[1]])

        return lambda x, w, x_dot: jax.grad(total, (0, 1))(*x[:2], w)

    found = derivatives(attend(mask) if ours else dense(mask))
    for what in ("statistics", "top_keys"):
        found |= {what: measured(what), f"gradient of {what}": gradient(what)}
    return found


def equality(mask: str, names: Iterable[str], T: int = 1031) -> None:
    """Compares with the truth; raises where one is too far from it."""
    x, w, *dots = (np.random.default_rng(T + n).standard_normal((3, T, D), np.float32) for n in range(3))
    args = tuple(x), w[0], tuple(dots[0])
    for name in names:
        got = jax.tree.leaves(jax.jit(calls(mask, ours=True)[name])(*args))
        with jax.enable_x64(True):
            want = jax.tree.leaves(jax.jit(calls(mask, ours=False)[name])(*jax.tree.map(np.float64, args)))
        if not (off := distance(got, want)) <= TOLERANCE:
            raise Differs(f"{name}, {mask}: jattn differs by {off:.1e} of the float64 reference at T = {T}.")


def reserved(f: Any, T: int) -> int:
    """The bytes of temporaries of one compiled call."""
    one = jax.ShapeDtypeStruct((T, D), jnp.float32)
    return jax.jit(f).lower((one, one, one), one, (one, one, one)).compile().memory_analysis().temp_size_in_bytes


def exponent(lengths: tuple[int, ...], sizes: list[int]) -> float:
    """p of the power law T^p, by least squares of the logarithms."""
    return float(np.polyfit(np.log(lengths), np.log(np.maximum(sizes, 1)), 1)[0])


def growth(mask: str, names: Iterable[str], lengths: tuple[int, ...]) -> list[dict]:
    rows = []
    for name in names:
        say(f"compiling {name}, {mask}")
        sizes = [reserved(calls(mask, ours=True)[name], T) for T in lengths]
        dense_sizes = [reserved(calls(mask, ours=False)[name], T) for T in lengths[:2]]
        row = {"call": name, "mask": mask, "lengths": lengths, "bytes": sizes, "exponent": exponent(lengths, sizes)}
        rows.append(row | {"dense_bytes": dense_sizes, "dense_exponent": exponent(lengths[:2], dense_sizes)})
    return rows


def peak() -> int:
    """The most that this process has held, in bytes."""
    try:  # of this program alone: Linux lets ru_maxrss begin at the peak of the process that started this one
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most


def child(call: str, mask: str, T: int) -> dict[str, Any]:
    """Runs one long call: what it took, and how far its result is from the truth."""
    jnp.zeros(1).block_until_ready()  # the backend is there
    before = peak()
    shapes = [(T, D)] * 3 + [(T, D) if call == "gradient" else ()]
    q, k, v, w = (jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate(shapes))
    args = jax.block_until_ready(((q, k, v), w, None))
    inputs = sum(a.nbytes for a in jax.tree.leaves(args))
    start = time.perf_counter()
    compiled = jax.jit(derivatives(attend(mask))[call]).lower(*args).compile()
    compiling = time.perf_counter() - start
    got = jax.block_until_ready(jax.tree.leaves(compiled(*args)))
    taken = time.perf_counter() - start - compiling
    beyond = peak() - before - inputs
    off = rows_off(mask, *([np.asarray(a) for a in arrays] for arrays in ((q, k, v, w), got)))
    return {"call": call, "mask": mask, "T": T, "beyond_bytes": beyond, "inputs_bytes": inputs, "seconds": taken,
            "compile_seconds": compiling, "error": off}  # fmt: skip


def rows_off(mask: str, x: list[np.ndarray], got: list[np.ndarray]) -> float:
    """How far `got` (out, or out, dq, dk, dv) is from the truth: chosen queries, and what dk and dv conserve."""
    T = len(x[0])
    chosen = np.array([0, 1, WINDOW, T // 3, T // 2, T - 2, T - 1])
    q, k, v, w = (a.astype(np.float64) for a in x)
    with jax.enable_x64(True):
        left, right = WINDOWS[mask]
        ahead = np.arange(T) - chosen[:, None]
        allowed = (ahead >= -left) & (ahead <= right)

        def rows(q: jax.Array, k: jax.Array, v: jax.Array, w: jax.Array | None, allowed: jax.Array) -> Any:
            out, pull = jax.vjp(lambda q: reference.attention(q, k, v, mask=allowed)[0], q)
            return out, *(() if w is None else pull(w))

        want = jax.jit(rows)(q[chosen], k, v, w[chosen] if len(got) > 1 else None, allowed)
    off = distance([a[chosen] for a in got[:2]], want)
    if len(got) > 1:
        dq, dk, dv = (a.astype(np.float64) for a in got[1:])
        same = abs((k * dk).sum() - (q * dq).sum()) / np.abs(q * dq).sum()
        off = max(off, distance([dv.sum(0)], [w.sum(0)]), same)
    return float(off)


def longest(call: str, mask: str, T: int) -> dict[str, Any]:
    say(f"running   {call}, {mask}, T = {T:,}")
    command = [sys.executable, __file__, "--child", call, mask, str(T)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"call": call, "mask": mask, "T": T, "failed": f"ended with status {done.returncode}"}
    return json.loads(done.stdout)


def page(head: dict[str, Any], rows: list[dict], runs: list[dict]) -> str:
    """The tables."""
    mib = 2**20
    first = [[r["call"], r["mask"], *(f"{b / mib:.1f}" for b in r["bytes"]),
              f"{r['exponent']:.2f} {verdict(r['exponent'], limit=EXPONENT)}",
              *(f"{b / mib:,.0f}" for b in r["dense_bytes"]), f"{r['dense_exponent']:.2f}"] for r in rows]  # fmt: skip
    lengths = rows[0]["lengths"]
    second = [[r["call"], r["mask"], f"{r['T']:,}", r["failed"], *"––––"] if "failed" in r else
              [r["call"], r["mask"], f"{r['T']:,}",
               f"{r['beyond_bytes'] / 2**30:.2f} {verdict(r['beyond_bytes'] / 2**30, limit=GIB)}",
               f"{r['inputs_bytes'] / 2**30:.2f}", f"{r['seconds']:.1f}", f"{r['compile_seconds']:.1f}",
               f"{r['error']:.1e} {'equal' if r['error'] <= TOLERANCE else 'differs'}"] for r in runs]  # fmt: skip
    return "\n\n".join(
        [
            "# How much memory does attention take?",
            "\n".join(f"- {name}: {x}" for name, x in head.items()),
            "MiB of temporaries that XLA reserves at each T, one head of 64, and the fitted exponent of T; then "
            "those of the dense definition.",
            table(["call", "mask", *(f"T = {T}" for T in lengths), "exponent", *(f"dense {T}" for T in lengths[:2]),
                   "dense exponent"], first),
            "Resident memory beyond the inputs, outputs and compiler included, of calls that run to the end; the "
            f"error is a share of the largest entry, and may be {TOLERANCE:.1e}.",
            table(LONG, second),
        ]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="short sequences, one mask, no higher derivative; no file unless --out"
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often each long call runs; the worst counts")
    parser.add_argument("--only", choices=["full", "causal"], help="the growth under one mask; no file unless --out")
    parser.add_argument("--out", type=Path, help=f"where to write (default: {RESULTS.name}/ beside this script)")
    parser.add_argument("--child", nargs=3, metavar=("CALL", "MASK", "T"), help="one long call, its numbers as JSON")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    if args.child:
        call, mask, T = args.child
        print(json.dumps(child(call, mask, int(T))))
        return
    growing = [args.only] if args.only else ["causal"] if args.quick else ["full", "causal"]
    names, lengths = NAMES[args.quick], GROWING[args.quick]
    for mask, which in [
        *((mask, names) for mask in growing),
        *((mask, [call]) for call, mask, _ in LONGEST[args.quick]),
    ]:
        say(f"equality  {mask}")
        equality(mask, which)
    runs = [max((longest(*which) for _ in range(args.rounds)), key=lambda r: r.get("beyond_bytes", np.inf))
            for which in LONGEST[args.quick]]  # fmt: skip
    rows = [row for mask in growing for row in growth(mask, names, lengths)]
    head = header([])
    folder = args.out or (None if args.quick or args.only else RESULTS)
    write(folder, "how_much_memory", page(head, rows, runs), {"header": head, "growth": rows, "longest": runs})


if __name__ == "__main__":
    try:
        main()
    except Differs as finding:
        raise SystemExit(f"how_much_memory: {finding}") from None
