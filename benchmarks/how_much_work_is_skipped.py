"""How much work do masks skip, and what does a score cost?

    make bench                                             the whole of it
    python benchmarks/how_much_work_is_skipped.py --quick  short sequences, one round; writes no file

Float32, heads of 64. First each mask and score is compared with the definition in float64, on shorter sequences and
smaller tiles. Then each masked call is timed beside the same call without a mask, which visits the full square, in
turns: the time over that of the full square, beside the share of allowed pairs. Then each score beside the same
call without one, and beside PyTorch where it is given the same bias written out, [H, T, T]. The gradient is that of
q, k, v and of a learned table; PyTorch's then that of the bias. Last, the temporaries that XLA reserves for the
gradient of a learned table, beside the dense form.
"""

import argparse
import importlib.util
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _measure import (
    RESULTS,
    TOLERANCE,
    Differs,
    Times,
    derivatives,
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
from jattn import masks, reference, scores

D, HEADS, PASSES = 64, 8, ("forward", "gradient")
DOCUMENTS, MEMORY, MIB = 16, 16, 2**20


class Work(NamedTuple):
    """A mask of T tokens for each row of a batch, and the most of the full square's time that it may take."""

    name: str
    T: int
    mask: Callable[[int, int], masks.Mask]
    limit: float | None
    rows: int = 1
    tile: tuple[int, int] | None = None


def documents(T: int, row: int) -> masks.Mask:
    """Packed documents of equal length; in the second row they begin half a document later, in another order."""
    length = T // DOCUMENTS
    ids = (np.arange(T) + row * length // 2) // length
    order = np.random.default_rng(row).permutation(DOCUMENTS + 1) if row else np.arange(DOCUMENTS)
    return masks.segments(order[ids].astype(np.int32)) & masks.causal()


def sparse(T: int, row: int, size: int = 512) -> masks.Mask:
    """Blocks, of which one in eight meets, each row of them at least once."""
    n = -(-T // size)
    at = np.random.default_rng(n).permuted(np.tile(np.arange(n) % 8 == 0, (n, 1)), axis=1)
    return masks.blocks(at, size)


def sequences(T: int, row: int) -> masks.Mask:
    """Eight sequences, the longest of a quarter of all tokens."""
    lengths = np.array([4, 1, 2, 3, 1, 2, 2, 1]) * T // 16
    return masks.ragged(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def drafts(T: int, row: int) -> masks.Mask:
    """Eight continuations of a common quarter, each in depth-first order."""
    at, trunk, branch = np.arange(T), T // 4, -(-3 * T // 32)
    first = (at >= trunk) & ((at - trunk) % branch == 0)
    return masks.tree(np.where(first, trunk - 1, at - 1).astype(np.int32))


def image(T: int, row: int) -> masks.Mask:
    """15 × 15 tokens around each of an image that is 128 wide."""
    return masks.neighbourhood((T // 128, 128), (min(7, (T // 128 - 1) // 2), 7))


def written_out(T: int, row: int) -> masks.Mask:
    """The table of `sparse` as an array of all pairs."""
    return masks.dense(masks.to_dense(sparse(T, row), T, T))


def chosen(T: int, row: int, size: int = 512) -> masks.Mask:
    """One key block in eight, named for each block of queries."""
    n = -(-T // size)
    order = np.random.default_rng(n).permuted(np.tile(np.arange(n, dtype=np.int32), (n, 1)), axis=1)
    return masks.chosen_blocks(order[:, : -(-n // 8)], size)


WORK = [
    Work("causal()", 8192, lambda T, row: masks.causal(), 0.62),
    Work("window(511, 0)", 16384, lambda T, row: masks.window(min(511, T // 8), 0), 0.09),
    Work("window(127, 0)", 16384, lambda T, row: masks.window(min(127, T // 8), 0), None),
    Work("segments(ids) & causal()", 16384, documents, 0.10, rows=2),
    Work("prefix(1024) | causal()", 8192, lambda T, row: masks.prefix(T // 8) | masks.causal(), 0.68),
    Work("blocks(table, 512)", 8192, sparse, 0.20),
    Work("blocks(table, 128)", 8192, partial(sparse, size=128), None, tile=(128, 128)),
    Work("dense(the same)", 8192, written_out, 0.30),
    Work("sinks(4) | window(511, 0)", 16384, lambda T, row: masks.sinks(4) | masks.window(min(511, T // 8), 0), 0.12),
    Work("strided(128)", 8192, lambda T, row: masks.strided(128), None),
    Work("ragged(starts)", 8192, sequences, 0.25),
    Work("tree(parents)", 8192, drafts, 0.40),
    Work("neighbourhood((64, 128), 7)", 8192, image, None),
    Work("chosen_blocks(indices, 512)", 8192, chosen, 0.20),
    Work("where(t >= s)", 8192, lambda T, row: masks.where(lambda t, s: t >= s), None),
    Work("chunked(1024)", 8192, lambda T, row: masks.chunked(T // 8), None),
]
SCORES = {  # of a learned array for each head; (limit of time, can a bias say the same, is it learned)
    "soft_cap": (lambda a: scores.soft_cap(30.0), lambda H: np.zeros((H, 1)), 2.0, False, False),
    "alibi": (lambda a: scores.alibi(a[0]), lambda H: np.asarray(scores.alibi_slopes(H))[:, None], 2.0, True, False),
    "relative_bias": (lambda a: scores.relative_bias(a), lambda H: rng(H).standard_normal((H, 32)), 4.0, True, True),
    "distance_bias": (lambda a: scores.distance_bias(a), lambda H: rng(H).standard_normal((H, 257)), 4.0, True, True),
    "any function": (lambda a: lambda x, t, s: x + a[jnp.clip(s - t, -128, 128) + 128],
                     lambda H: rng(H).standard_normal((H, 257)), None, True, True),
}  # fmt: skip
LENGTHS = {False: (2048, 4096), True: (256,)}


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def arrays(*shape: int) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """(q, k, v) and a cotangent."""
    *x, w = (jnp.asarray(rng(n).standard_normal(shape, np.float32)) for n in range(4))
    return tuple(x), w


def stacked(case: Work, T: int) -> masks.Mask:
    """The masks of the rows as one, whose arrays have a leading axis; without arrays, as it is."""
    return jax.tree.map(lambda *a: jnp.stack([jnp.asarray(x) for x in a]), *(case.mask(T, r) for r in range(case.rows)))


def of_masks(mask: masks.Mask | None, tile: tuple[int, int] | None, call: str) -> Callable[..., Any]:
    """What is measured of attention under a mask, as a function of x, w and the mask's arrays."""

    def f(x: Any, w: Any, mask: Any) -> Any:
        one = lambda q, k, v, m: jattn.attention(q, k, v, mask=m, tile=tile)  # noqa: E731
        return derivatives(lambda *x: jax.vmap(one)(*x, mask))[call](x, w, None)

    return f


def equality_of_masks(case: Work, T: int = 1024) -> None:
    x, w = arrays(case.rows, T, D)
    mask = stacked(case, T)
    got = jax.tree.leaves(jax.jit(of_masks(mask, (64, 64), "gradient"))(x, w, mask))
    allowed = jnp.stack([masks.to_dense(case.mask(T, r), T, T) for r in range(case.rows)])
    with jax.enable_x64(True):

        def definition(q: Any, k: Any, v: Any) -> Any:
            return jax.vmap(lambda q, k, v, m: reference.attention(q, k, v, mask=m)[0])(q, k, v, allowed)

        want = jax.tree.leaves(jax.jit(derivatives(definition)["gradient"])(*jax.tree.map(np.float64, (x, w)), None))
    differs(case.name, distance(got, want), T)


def differs(name: str, off: float, T: int) -> None:
    if not off <= TOLERANCE:
        raise Differs(f"{name}: jattn differs by {off:.1e} of the float64 reference at T = {T}.")


def work(case: Work, rounds: int) -> list[dict]:
    """Each pass beside the full square."""
    T = case.T
    x, w = arrays(case.rows, T, D)
    mask = stacked(case, T)
    share = float(np.mean([share_of(case.mask(T, r), T) for r in range(case.rows)]))
    rows = []
    for name in PASSES:
        say(f"time      {case.name}, {name}")
        ours, full = (jax.jit(of_masks(m, tile, name)) for m, tile in ((mask, case.tile), (None, None)))
        calls = {"masked": lambda f=ours: jax.block_until_ready(f(x, w, mask)),
                 "full": lambda f=full: jax.block_until_ready(f(x, w, None))}  # fmt: skip
        times = side_by_side(calls, rounds)
        rows.append({"mask": case.name, "call": name, "T": T, "rows": case.rows, "share": share, "limit": case.limit,
                     "ratio": times_as_fast(times["full"], times["masked"]),
                     "milliseconds": {n: t.milliseconds() for n, t in times.items()}})  # fmt: skip
    return rows


def share_of(mask: masks.Mask, T: int, step: int = 2048) -> float:
    """The share of allowed pairs, some queries at a time."""
    s = jnp.arange(T, dtype=jnp.int32)
    some = jax.jit(lambda start: mask.tile(masks.Rows(start, start + s[: min(step, T)]), masks.Rows(0, s)).mean())
    return float(np.mean([some(start) for start in range(0, T, step)]))


def of_scores(make: Callable[[Any], Any] | None, call: str, learned: bool) -> Callable[..., Any]:
    """[H, T, D] and an array for each head; the gradient is that of the array too where it is learned."""

    def head(q: Any, k: Any, v: Any, a: Any) -> Any:
        return jattn.attention(q, k, v, score=None if make is None else make(a))

    if not learned:
        return lambda x, w, a: derivatives(lambda *x: jax.vmap(head)(*x, a))[call](x, w, None)
    return lambda x, w, a: derivatives(lambda *x: jax.vmap(head)(*x))[call]((*x, a), w, None)


def bias_of(make: Callable[[Any], Any], a: jax.Array, T: int) -> jax.Array:
    """What a score adds, written out: [H, T, T]."""
    t = jnp.arange(T, dtype=jnp.int32)
    one = lambda a: jax.vmap(lambda t, s: make(a)(jnp.float32(0), t, s), (None, 0))  # noqa: E731
    return jax.jit(jax.vmap(lambda a: jax.lax.map(lambda i: one(a)(i, t), t)))(a)


def equality_of_scores(name: str, T: int = 257) -> None:
    make, array, _, _, learned = SCORES[name]
    x, w = arrays(2, T, D)
    a = jnp.asarray(array(2), jnp.float32)
    got = jax.tree.leaves(jax.jit(of_scores(make, "gradient", learned))(x, w, a))
    with jax.enable_x64(True):

        def definition(q: Any, k: Any, v: Any, a: Any) -> Any:
            return jax.vmap(lambda q, k, v, a: reference.attention(q, k, v, score=make(a))[0])(q, k, v, a)

        x64, w64 = jax.tree.map(np.float64, ((*x, a), w))
        want = jax.tree.leaves(jax.jit(derivatives(definition)["gradient"])(x64, w64, None))
    differs(name, distance(got, want if learned else want[: len(got)]), T)


def torch_calls(x: Any, w: Any, bias: jax.Array, learned: bool) -> dict[str, Callable[[], Any]]:
    """PyTorch, given the bias; its gradient is that of the bias too where it is learned."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    own = [torch.tensor(np.asarray(a))[None].requires_grad_() for a in (*x, bias)]
    own[3].requires_grad_(learned)
    dout = torch.tensor(np.asarray(w))[None]
    attend = torch.nn.functional.scaled_dot_product_attention

    def forward() -> Any:
        with torch.inference_mode():
            return attend(*own[:3], attn_mask=own[3])

    def gradient() -> Any:
        out = attend(*own[:3], attn_mask=own[3])
        return torch.autograd.grad(out, own if learned else own[:3], dout)

    return {"forward": forward, "gradient": gradient}


def costs(name: str, T: int, rounds: int) -> list[dict]:
    """Each pass with a score, beside the same without it and PyTorch."""
    make, array, limit, additive, learned = SCORES[name]
    x, w = arrays(HEADS, T, D)
    a = jnp.asarray(array(HEADS), jnp.float32)
    theirs = torch_calls(x, w, bias_of(make, a, T), learned) if additive and importlib.util.find_spec("torch") else {}
    rows = []
    for call in PASSES:
        say(f"time      {name}, T = {T}, {call}")
        ours, bare = (jax.jit(of_scores(f, call, learned and f is make)) for f in (make, None))
        calls = {"jattn": lambda f=ours: jax.block_until_ready(f(x, w, a)),
                 "no score": lambda f=bare: jax.block_until_ready(f(x, w, a))}  # fmt: skip
        if call in theirs:
            calls["PyTorch"] = theirs[call]
        times: dict[str, Times] = side_by_side(calls, rounds)
        row = {"score": name, "call": call, "T": T, "limit": limit,
               "ratio": times_as_fast(times["no score"], times["jattn"]),
               "milliseconds": {n: t.milliseconds() for n, t in times.items()}}  # fmt: skip
        rows.append(row | ({"PyTorch": times_as_fast(times["jattn"], times["PyTorch"])} if call in theirs else {}))
    return rows


def memory(T: int) -> dict[str, Any]:
    """The temporaries of the gradient of one head with a learned table, and of the dense form."""
    one, a = jax.ShapeDtypeStruct((T, D), jnp.float32), jax.ShapeDtypeStruct((32,), jnp.float32)

    def dense(q: Any, k: Any, v: Any, a: Any) -> Any:
        return reference.attention(q, k, v, score=scores.relative_bias(a))[0]

    def reserved(f: Callable[..., Any]) -> int:
        g = lambda x, w: derivatives(f)["gradient"](x, w, None)  # noqa: E731
        return jax.jit(g).lower((one, one, one, a), one).compile().memory_analysis().temp_size_in_bytes

    ours = lambda q, k, v, a: jattn.attention(q, k, v, score=scores.relative_bias(a))  # noqa: E731
    say(f"compiling the gradient of a learned table, T = {T}")
    return {"T": T, "limit_mib": MEMORY, "bytes": reserved(ours), "dense_bytes": reserved(dense)}


def page(head: dict[str, Any], skipped: list[dict], cost: list[dict], reserved: dict[str, Any]) -> str:
    """The tables."""
    first = [[r["mask"], f"{r['T']:,}" + (f" × {r['rows']}" if r["rows"] > 1 else ""), r["call"], f"{r['share']:.3f}",
              f"{r['ratio']:.3f} {verdict(r['ratio'], limit=r['limit'])}",
              *(f"{r['milliseconds'][n]['median']:.1f}" for n in ("masked", "full"))] for r in skipped]  # fmt: skip
    second = [[r["score"], f"{r['T']:,}", r["call"], f"{r['ratio']:.2f} {verdict(r['ratio'], limit=r['limit'])}",
               f"{r['PyTorch']:.2f} {verdict(r['PyTorch'], floor=1)}" if "PyTorch" in r else "–",
               *(f"{r['milliseconds'][n]['median']:.1f}" if n in r["milliseconds"] else "–"
                 for n in ("jattn", "no score", "PyTorch"))] for r in cost]  # fmt: skip
    mib = reserved["bytes"] / MIB
    return "\n\n".join(
        [
            "# How much work do masks skip, and what does a score cost?",
            "\n".join(f"- {name}: {x}" for name, x in head.items()),
            "One head of 64: the share of allowed pairs, and the time over that of the full square.",
            table(["mask", "T", "call", "share", "time / full", "masked, ms", "full, ms"], first),
            f"{HEADS} heads of 64: the time over that without it, and PyTorch's over ours, the same bias written out.",
            table(["score", "T", "call", "time / none", "PyTorch / jattn", "jattn, ms", "none, ms", "PyTorch, ms"],
                  second),
            f"The gradient of one head with relative_bias at T = {reserved['T']:,} reserves {mib:.1f} MiB of "
            f"temporaries ({verdict(mib, limit=MEMORY)}), the dense form {reserved['dense_bytes'] / MIB:,.0f}.",
        ]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an eighth of the length, one round; no file unless --out")
    parser.add_argument("--rounds", type=int, default=15, help="how often each pair takes turns (default: 15)")
    parser.add_argument("--only", help="masks and scores whose name contains this; no file unless --out")
    parser.add_argument("--out", type=Path, help=f"where to write (default: {RESULTS.name}/ beside this script)")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    only, rounds = args.only or "", 1 if args.quick else args.rounds
    chosen, named = [c for c in WORK if only in c.name], [n for n in SCORES if only in n]
    if not chosen and not named:
        parser.error(f"no mask or score contains {only!r}; there are: {', '.join([c.name for c in WORK] + [*SCORES])}")
    for case in chosen:
        say(f"equality  {case.name}")
        equality_of_masks(case)
    for name in named:
        say(f"equality  {name}")
        equality_of_scores(name)
    if args.quick:
        chosen = [c._replace(T=c.T // 8, limit=None) for c in chosen]  # what is asked, is asked of the whole
    skipped = [row for c in chosen for row in work(c, rounds)]
    cost = [row for T in LENGTHS[args.quick] for name in named for row in costs(name, T, rounds)]
    head, reserved = header(["torch"]), memory(512 if args.quick else 8192)
    folder = args.out or (None if args.quick or only else RESULTS)
    numbers = {"header": head, "masks": skipped, "scores": cost, "memory": reserved}
    write(folder, "how_much_work_is_skipped", page(head, skipped, cost, reserved), numbers)


if __name__ == "__main__":
    try:
        main()
    except Differs as finding:
        raise SystemExit(f"how_much_work_is_skipped: {finding}") from None
