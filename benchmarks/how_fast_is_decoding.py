"""How fast is a step of decoding with a cache, beside PyTorch and jax.nn, and what does a shared prefix save?

    python benchmarks/how_fast_is_decoding.py            the whole of it
    python benchmarks/how_fast_is_decoding.py --quick    short caches and two rounds; writes no file
    python benchmarks/how_fast_is_decoding.py --gpu      on the GPU that JAX finds, a step of four times as many rows

A step puts one new token into each row's cache, in place, and attends from it to all that is held. First every result
is compared with the definition in float64; if one of ours differs, nothing is timed. Then each ratio is measured side
by side in one run, float32, all cores, each library on its own best layout: jattn and PyTorch contiguous
[B, H, S, D], jax.nn [B, S, H, D]. PyTorch is left out where it is not installed, and on a GPU, where products are asked
for in float32.
"""

import argparse
import dataclasses
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _measure import (
    RESULTS,
    TOLERANCE,
    Differs,
    distance,
    header,
    say,
    side_by_side,
    table,
    times_as_fast,
    verdict,
    write,
)

import jattn
from jattn import cache

H, D = 8, 64
BYTES = 0.05
"""What caches in int8 may be off by here, as a share of the largest entry; tests hold them to their bound."""
Call = Callable[[], Any]


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """By the definition in float64, one head at a time."""
    with jax.enable_x64(True):
        f = jax.jit(lambda *x: jattn.reference.attention(*x)[0])
        out = [f(*(x[at].astype(np.float64) for x in (q, k, v))) for at in np.ndindex(q.shape[:2])]
    return np.stack(out).reshape(*q.shape[:3], -1)


def stepping(c: cache.Cache, k: np.ndarray, v: np.ndarray, q: np.ndarray) -> Call:
    """A cache that holds all but the last token, and the step that appends it; the same step again each time."""
    c = jax.jit(cache.append)(c, k[:, :, :-1], v[:, :, :-1])
    keep = {"length": np.asarray(c.length), "next": np.asarray(c.next)}
    last = [jnp.asarray(x[:, :, -1:]) for x in (q, k, v)]

    def one(c: cache.Cache, keep: Any, q: Any, k: Any, v: Any) -> Any:
        c = cache.append(dataclasses.replace(c, **keep), k, v)
        return c, cache.attention(q, c)

    compiled, held = jax.jit(one, donate_argnums=0), [c]

    def call() -> jax.Array:
        held[0], out = compiled(held[0], keep, *last)
        return out.block_until_ready()

    return call


def stepping_jax(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Call:
    n = k.shape[2]
    last = [jnp.asarray(x[:, :, -1:].swapaxes(1, 2)) for x in (q, k, v)]
    held = [jnp.asarray(x.swapaxes(1, 2).copy()) for x in (k, v)]

    def one(k: Any, v: Any, q: Any, k_new: Any, v_new: Any) -> Any:
        k, v = (jax.lax.dynamic_update_slice_in_dim(x, new, n - 1, 1) for x, new in ((k, k_new), (v, v_new)))
        return k, v, jax.nn.dot_product_attention(q, k, v)

    compiled = jax.jit(one, donate_argnums=(0, 1))

    def call() -> jax.Array:
        *held[:], out = compiled(*held, *last)
        return jnp.swapaxes(out.block_until_ready(), 1, 2)

    return call


def stepping_torch(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Call:
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    q_last, k_all, v_all = (torch.tensor(x) for x in (q[:, :, -1:], k, v))
    k_new, v_new = k_all[:, :, -1].clone(), v_all[:, :, -1].clone()

    def call() -> Any:
        with torch.inference_mode():
            k_all[:, :, -1], v_all[:, :, -1] = k_new, v_new
            return torch.nn.functional.scaled_dot_product_attention(q_last, k_all, v_all)

    return call


def steps(B: int, S: int) -> tuple[dict[str, Call], np.ndarray]:
    """Everybody's step, and what it must give."""
    q, k, v = arrays((B, H, 1, D), (B, H, S, D), (B, H, S, D))
    page = min(256, S)
    calls = {
        "jattn": stepping(cache.contiguous(B, H, S, D), k, v, q),
        "ring": stepping(cache.ring(B, H, D, window=S), k, v, q),
        "paged": stepping(cache.paged(B, H, S, D, pages=B * -(-S // page), page=page), k, v, q),
        "int8": stepping(cache.contiguous(B, H, S, D, dtype=jnp.int8), k, v, q),
        "jax.nn": stepping_jax(q, k, v),
    }
    if importlib.util.find_spec("torch") and jax.default_backend() == "cpu":
        calls["PyTorch"] = stepping_torch(q, k, v)
    return calls, exact(q, k, v)


def prefixes(B: int, S: int, own: int = 16) -> tuple[dict[str, Call], np.ndarray]:
    """B rows that have a prefix of S tokens in common: read once, or as B copies."""
    q, k, v, k_own, v_own = arrays((B, H, 1, D), *[(1, H, S, D)] * 2, *[(B, H, own, D)] * 2)
    append, q_now = jax.jit(cache.append), jnp.asarray(q)
    prefix = append(cache.contiguous(1, H, S, D), k, v)
    mine = append(cache.contiguous(B, H, own, D, start=S), k_own, v_own)
    k, v = (np.concatenate([np.repeat(a, B, 0), b], 2) for a, b in ((k, k_own), (v, v_own)))
    copies = append(cache.contiguous(B, H, S + own, D), k, v)
    cascade, attention = jax.jit(cache.cascade), jax.jit(cache.attention)
    calls = {
        "cascade": lambda: cascade(q_now, prefix, mine).block_until_ready(),
        "copies": lambda: attention(q_now, copies).block_until_ready(),
    }
    return calls, exact(q, k, v)


def equal(calls: dict[str, Call], want: np.ndarray) -> dict[str, float]:
    """How far each result is from the truth; raises if one of ours is too far."""
    off = {}
    for name, call in calls.items():
        off[name] = distance([call()], [want])
        if name not in ("jax.nn", "PyTorch") and off[name] > (BYTES if name == "int8" else TOLERANCE):
            raise Differs(f"{name}: jattn differs by {off[name]:.1e} of the float64 reference; nothing was timed.")
    return off


def race(name: str, calls: dict[str, Call], off: dict[str, float], ours: str, floors: dict, rounds: int) -> dict:
    times = side_by_side(calls, rounds)
    ratios = {other: times_as_fast(times[ours], times[other]) for other in calls if other != ours}
    milliseconds = {who: t.milliseconds() for who, t in times.items()}
    return {"case": name, "errors": off, "ours": ours, "milliseconds": milliseconds, "ratios": ratios, "floors": floors}


def page(head: dict[str, Any], rows: list[dict]) -> str:
    cells = []
    for row in rows:
        for who, t in row["milliseconds"].items():
            ratio = row["ratios"].get(who)
            said = "–" if ratio is None else f"{ratio:.2f}× {verdict(ratio, floor=row['floors'].get(who))}".strip()
            cells.append([row["case"], who, f"{t['median']:.2f} ({t['least']:.2f})", said, f"{row['errors'][who]:.1e}"])
    return "\n\n".join(
        [
            "# How fast is decoding?",
            "\n".join(f"- {name}: {x}" for name, x in head.items()),
            "Milliseconds of one step, the median over the rounds (the shortest call). The ratio is their time over "
            "that of the first line of the case, the median over the rounds. The error is the largest difference from "
            "float64, as a share of the largest entry.",
            table(["case", "who", "ms", "times as fast", "error"], cells),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short caches and two rounds; no file unless --out")
    parser.add_argument("--rounds", type=int, help="how often each is timed at most (default: 9)")
    parser.add_argument("--out", type=Path, help=f"where to write (default: {RESULTS.name}/ beside this script)")
    parser.add_argument("--gpu", action="store_true", help="on a GPU")
    args = parser.parse_args()
    rounds, S = args.rounds or (2 if args.quick else 9), 192 if args.quick else 8192
    if args.gpu:
        jax.config.update("jax_default_matmul_precision", "highest")
    else:
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    rows = []
    more, floors = (4, [{}, {}]) if args.gpu else (1, [{"PyTorch": 1.3, "jax.nn": 8.0}, {"copies": 3.0}])
    for name, make, B, ours, asked in (
        (f"{8 * more} rows × {S} keys", steps, 8 * more, "jattn", floors[0]),
        (f"32 rows, one prefix of {S}", prefixes, 32, "cascade", floors[1]),
    ):
        say(f"equality  {name}")
        calls, want = make(B, S)
        off = equal(calls, want)
        say(f"time      {name}")
        rows.append(race(name, calls, off, ours, asked, rounds))
        del calls
    head = header([] if args.gpu else ["torch"]) | {
        "heads": H,
        "width": D,
        "rounds": f"{rounds}, fewer where they take long",
    }
    folder = args.out or (None if args.quick else RESULTS)
    write(folder, "how_fast_is_decoding", page(head, rows), {"header": head, "rows": rows})


if __name__ == "__main__":
    try:
        main()
    except Differs as finding:
        raise SystemExit(f"how_fast_is_decoding: {finding}") from None
