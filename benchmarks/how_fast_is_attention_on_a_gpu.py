"""How fast is attention on a GPU, and its gradient and jvp, beside jax.nn, cuDNN, tokamax and PyTorch?

    python benchmarks/how_fast_is_attention_on_a_gpu.py            the whole of it, where JAX finds a GPU
    python benchmarks/how_fast_is_attention_on_a_gpu.py --quick    one small case and two rounds; writes no file

First the value, the gradient and the tangent of one head of keys, with all its heads of queries, are compared with
the definition in float64; if ours differ, nothing is timed. Then each ratio is measured side by side in one run. A turn
is as many calls as fill some milliseconds, sent one after another and waited for once: the GPU works through them while
Python sends the next. All get [B, T, H, D], PyTorch a transposed view of it. A peer that is not installed, or refuses a
case, is left out of it.
"""

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _measure import (
    Differs,
    Times,
    asked,
    derivatives,
    distance,
    header,
    say,
    table,
    times_as_fast,
    truth,
    write,
)
from _peers import theirs

import jattn

PASSES = {"forward": 1.0, "gradient": 3.5, "jvp": 2.5}
"""And how many times the products of the forward pass each makes at least (forward and backward; value and tangent)."""
NAMES = {"forward": "forward", "gradient": "forward+backward", "jvp": "jvp"}
OURS = ("jattn", "jattn loops", "jattn cuDNN")
PEERS = ("jax.nn", "jax.nn cuDNN", "tokamax", "PyTorch")
TOLERANCES = {"float32": 2.0**-8, "bfloat16": 2.0**-6}
"""How far a result may be from the truth, as a share of the largest entry: products of float32 are TF32 on a GPU."""
TURN = 0.02


class Case(NamedTuple):
    """Sizes, and the dtype of q, k and v. `T` queries and as many keys, in `H` heads that share `Hkv` of keys."""

    name: str
    B: int
    H: int
    Hkv: int
    T: int
    D: int
    causal: bool
    dtype: str = "bfloat16"

    @property
    def operations(self) -> float:
        """Of the two matrix products, over the allowed pairs."""
        pairs = self.T * (self.T + 1) / 2 if self.causal else self.T**2
        return 4.0 * self.B * self.H * pairs * self.D


CASES = (
    Case("4,16,1024,64 causal", 4, 16, 16, 1024, 64, True),
    Case("2,16,4096,64 full", 2, 16, 16, 4096, 64, False),
    Case("2,16,4096,64 causal", 2, 16, 16, 4096, 64, True),
    Case("2,16,4096,128 causal", 2, 16, 16, 4096, 128, True),
    Case("1,32/8,8192,128 causal", 1, 32, 8, 8192, 128, True),
    Case("2,16,4096,64 causal, float32", 2, 16, 16, 4096, 64, True, "float32"),
)
SMALL = (Case("2,2,64,16 causal", 2, 2, 2, 64, 16, True),)
Sent = Callable[[], Any]


class Contestant(NamedTuple):
    """`calls` send one call each, given the arrays of a case; `wait` waits for what was sent; `back` makes NumPy."""

    calls: dict[str, Sent]
    wait: Callable[[Any], Any]
    back: Callable[[Any], list[np.ndarray]]


def arrays(case: Case) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """(q, k, v), a cotangent and tangents, [B, T, heads, D], in float32, of numbers that the dtype of the case has."""
    rng = np.random.default_rng(case.T + case.D)
    long, short = ((case.B, case.T, n, case.D) for n in (case.H, case.Hkv))
    made = (rng.standard_normal(s, np.float32) for s in (long, short, short, long, long, short, short))
    q, k, v, w, *dots = (a.astype(jnp.dtype(case.dtype)).astype(np.float32) for a in made)
    return [q, k, v], w, dots


def of_jax(case: Case, f: Callable[..., Any], passes: Any, *given: Any) -> Contestant:
    f = partial(f, is_causal=case.causal)
    compiled = {}
    for name in passes:
        g = derivatives(f)[name]
        compiled[name] = jax.jit(g).lower(*given).compile()
    calls = {name: partial(program, *given) for name, program in compiled.items()}
    return Contestant(calls, jax.block_until_ready, lambda ys: [np.asarray(y, np.float32) for y in jax.tree.leaves(ys)])


def of_torch(case: Case, x: Any, w: Any) -> Contestant:
    import torch

    def there(a: np.ndarray) -> Any:
        return torch.tensor(a, dtype=getattr(torch, case.dtype), device=device).transpose(1, 2)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, w = [there(a).requires_grad_() for a in x], there(w)
    torch.backends.cuda.matmul.allow_tf32 = True
    attend = partial(
        torch.nn.functional.scaled_dot_product_attention, is_causal=case.causal, enable_gqa=case.Hkv != case.H
    )

    def forward() -> Any:
        with torch.no_grad():
            return (attend(*x),)

    def gradient() -> Any:
        out = attend(*x)
        return out, *torch.autograd.grad(out, x, w)

    def back(ys: Any) -> list[np.ndarray]:
        return [y.detach().transpose(1, 2).float().cpu().numpy() for y in ys]

    def wait(ys: Any) -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    return Contestant({"forward": forward, "gradient": gradient}, wait, back)


def contestants(case: Case, pool: Executor) -> dict[str, Future[Contestant | str]]:
    """Each, as it is being compiled, or in words why it is not there."""
    x, w, dots = arrays(case)
    given = jax.tree.map(lambda a: jnp.asarray(a, case.dtype), (tuple(x), w, tuple(dots)))
    ours = jattn.dot_product_attention
    first = ("forward", "gradient")
    makers: dict[str, Callable[[], Contestant]] = {
        "jattn": lambda: of_jax(case, ours, PASSES, *given),
        "jattn loops": lambda: of_jax(case, partial(ours, implementation="loops"), PASSES, *given),
        "jattn cuDNN": lambda: of_jax(case, partial(ours, implementation="cudnn"), first, *given),
        "jax.nn": lambda: of_jax(case, partial(theirs("jax.nn"), implementation="xla"), PASSES, *given),
        "jax.nn cuDNN": lambda: of_jax(case, partial(theirs("jax.nn"), implementation="cudnn"), first, *given),
    }
    if importlib.util.find_spec("tokamax"):
        makers["tokamax"] = partial(of_jax, case, theirs("tokamax"), first, *given)
    if importlib.util.find_spec("torch"):
        makers["PyTorch"] = partial(of_torch, case, x, w)

    def made(name: str) -> Contestant | str:
        try:
            return makers[name]()
        except Exception as refusal:
            if name == "jattn":
                raise
            return f"refuses: {' '.join(str(refusal).split()[:8])}"

    return {name: pool.submit(made, name) for name in makers}


def definition(case: Case) -> dict[str, list[np.ndarray]]:
    """Of the first example and head of keys, [T, its heads, D] in float64: out, dq, dk, dv; out and its tangent."""
    x, w, x_dot = arrays(case)

    def apart(*given: np.ndarray) -> tuple[np.ndarray, ...]:
        """Each head with keys of its own, [1, H, T, D]."""
        every = (np.broadcast_to(a, (len(a), case.H // case.Hkv, case.D)) for a in first_group(case, given))
        return tuple(a.swapaxes(0, 1)[None] for a in every)

    out, dq, dk, dv, out_dot = (a[0].swapaxes(0, 1) for a in truth(apart(*x), *apart(w), case.causal, apart(*x_dot)))
    return {"gradient": [out, dq, *(a.sum(1, keepdims=True) for a in (dk, dv))], "jvp": [out, out_dot]}


def first_group(case: Case, ys: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Of each [B, T, heads, D] the first example's first head of keys, or the heads of queries that share it."""
    return [y[0, :, : y.shape[2] // case.Hkv] for y in ys]


def equality(case: Case, who: dict[str, Contestant | str]) -> dict[str, Any]:
    """How far each is from the definition; of who is too far, in words. Ours must not be."""
    want, found = definition(case), {}
    for name, one in who.items():
        if isinstance(one, str):
            found[name] = one
            continue
        try:
            passes = [which for which in want if which in one.calls]
            got = {which: first_group(case, one.back(one.calls[which]())) for which in passes}
            off = max(distance(got[which], want[which]) for which in passes)
        except Exception as refusal:
            if name == "jattn":
                raise
            found[name] = f"refuses: {' '.join(str(refusal).split()[:8])}"
            continue
        found[name] = off if off <= TOLERANCES[case.dtype] else f"differs by {off:.1e}"
        if name in OURS and isinstance(found[name], str):
            raise Differs(f"{case.name}: {name} {found[name]} of the float64 reference; nothing was timed.")
    return found


def seconds(call: Sent, wait: Callable[[Any], Any], n: int) -> float:
    """Of one call, of n that are sent one after another."""
    start = time.perf_counter()
    for _ in range(n):
        sent = call()
    wait(sent)
    return (time.perf_counter() - start) / n


def race(case: Case, who: dict[str, Contestant | str], equal: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """One row a pass: the milliseconds of each, and how many times as fast ours is."""
    rows = []
    for which, work in PASSES.items():
        running: dict[str, Contestant] = {}
        for name, one in who.items():
            if not isinstance(one, str) and not isinstance(equal[name], str) and which in one.calls:
                running[name] = one
        once = {name: min(seconds(one.calls[which], one.wait, 1) for _ in range(2)) for name, one in running.items()}
        taken: dict[str, list[float]] = {name: [] for name in running}
        for n in range(rounds):
            for name in list(running)[:: -1 if n % 2 else 1]:
                often = min(max(int(TURN / once[name]), 1), 100)
                taken[name].append(seconds(running[name].calls[which], running[name].wait, often))
        times = {name: Times(statistics.median(t), min(t), t) for name, t in taken.items()}
        ratios = {name: times_as_fast(times["jattn"], t) for name, t in times.items() if name != "jattn"}
        median, least = ({name: 1e3 * getattr(t, of) for name, t in times.items()} for of in ("median", "least"))
        rate = {name: work * case.operations / (1e9 * t) for name, t in median.items()}
        row = {"case": case.name, "pass": NAMES[which], "milliseconds": median, "least": least}
        rows.append(row | {"ratios": ratios, "tflops": rate, "errors": equal})
    return rows


def page(head: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The tables."""
    present = [name for name in (*OURS, *PEERS) if any(name in row["errors"] for row in rows)]

    def cells(row: dict[str, Any], show: Callable[[str], str]) -> list[str]:
        return [row["case"], row["pass"], *(show(n) if n in row["milliseconds"] else "–" for n in present)]

    ratios = [cells(r, lambda n, r=r: "1" if n == "jattn" else f"{r['ratios'][n]:.2f}×") for r in rows]
    times = [cells(r, lambda n, r=r: f"{r['milliseconds'][n]:.3f} ({r['tflops'][n]:.0f})") for r in rows]
    errors = []
    for row in rows:
        if row["pass"] == NAMES["forward"]:
            said = (row["errors"].get(name, "–") for name in present)
            errors.append([row["case"], *(x if isinstance(x, str) else f"{x:.1e}" for x in said)])
    return "\n\n".join(
        [
            "# How fast is attention on a GPU?",
            "\n".join(f"- {name}: {x}" for name, x in head.items()),
            "How many times as fast jattn is as each (their time over ours, median over the rounds). Cases are B, H, "
            "T, D, of bfloat16 where nothing else is said; 32/8: 32 heads that share 8 of keys and values.",
            table(["case", "pass", *present], ratios),
            "Milliseconds, the median over the rounds (TFLOP/s: forward 4·B·H·pairs·D, forward+backward 3.5 times "
            "that, jvp 2.5 times).",
            table(["case", "pass", *present], times),
            "How far out, dq, dk, dv and the tangent of out of one head of keys, with its heads of queries, are from "
            "the definition in float64, as a share of the largest entry.",
            table(["case", *present], errors),
        ]
    )


def main() -> None:
    cases, rounds, folder, quick = asked(__doc__, (*CASES, *SMALL), [case.name for case in SMALL], platform=None)
    cases = cases if quick else [case for case in cases if case not in SMALL]
    with ThreadPoolExecutor() as pool:
        being_made = {case.name: contestants(case, pool) for case in cases}
    rows = []
    for case in cases:
        say(f"equality  {case.name}")
        who = {name: future.result() for name, future in being_made.pop(case.name).items()}
        equal = equality(case, who)
        say(f"time      {case.name}")
        rows += race(case, who, equal, rounds)
    head = header(["torch", "tokamax"]) | {"dtype": "bfloat16, and float32 with products in TF32", "rounds": rounds}
    write(folder, "how_fast_is_attention_on_a_gpu", page(head, rows), {"header": head, "rows": rows})


if __name__ == "__main__":
    try:
        main()
    except Differs as finding:
        raise SystemExit(f"how_fast_is_attention_on_a_gpu: {finding}") from None
