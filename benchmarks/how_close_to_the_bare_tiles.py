"""How much more than the arithmetic of its tiles does attention cost on a CPU?

    make bench                                               the whole of it, in an environment of its own
    python benchmarks/how_close_to_the_bare_tiles.py --quick   one small case and two rounds; writes no file

The bare tiles (`_bare_tiles.py`) are the same tiles in plain JAX: products, exponentials and sums, with no care for
anything else. Both get [B, H, T, D] in float32. First each result is compared with that of the bare tiles; if one
differs, nothing is timed. Then the passes are measured side by side in one run, and the compilation of each at
T = 4,096; and how long a new process takes to its first result and its first gradient, beside jax.nn.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import _bare_tiles as bare
import jax
import jax.numpy as jnp
import numpy as np
from _measure import (
    TOLERANCE,
    Differs,
    asked,
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
from jattn import masks, scores

PASSES = ("forward", "gradient", "jvp")
COMPILED = ("forward", "gradient", "hvp")
WINDOW, CAP = 1024, 20.0


class Case(NamedTuple):
    """A shape; the bare tiles of its kind; and the options of `jattn.attention` from the arrays of one head."""

    name: str
    B: int
    H: int
    T: int
    D: int
    kind: bare.Kind
    options: Callable[[Any], dict[str, Any]]
    extra: Callable[["Case"], Any] | None = None
    """The arrays of the kind, [B, H, ...]."""

    @property
    def limit(self) -> float:
        return 1.1 if self.T >= bare.TILE else 1.3

    def arrays(self) -> tuple[Any, Any, Any, Any]:
        """(q, k, v), a cotangent, tangents, and the arrays of the kind."""
        rng = np.random.default_rng(self.T + self.D)
        q, k, v, w, *dots = (
            jnp.asarray(rng.standard_normal((self.B, self.H, self.T, self.D), np.float32)) for _ in range(7)
        )
        return (q, k, v), w, tuple(dots), None if self.extra is None else jnp.asarray(self.extra(self))

    def ours(self, extra: Any) -> dict[str, Callable[..., Any]]:
        def heads(*x: Any) -> Any:
            def one(*x: Any) -> Any:
                return jattn.attention(*x[:3], **self.options(x[3] if len(x) > 3 else None))

            return jax.vmap(jax.vmap(one))(*x, *(() if extra is None else (extra,)))

        return derivatives(heads)

    def theirs(self, extra: Any) -> dict[str, Callable[..., Any]]:
        return bare.passes(self.kind, extra)


def causal(_: Any) -> dict[str, Any]:
    return {"mask": masks.causal()}


# The kinds beside the full and the causal one. Their masks and scores are causal too, but for the lengths.

CUT = [0.13, 0.21, 0.5, 0.77]
"""Where documents end, as shares of the sequence."""


def documents(case: Case) -> np.ndarray:
    ids = np.searchsorted(np.array(CUT) * case.T, np.arange(case.T), side="right").astype(np.int32)
    return np.broadcast_to(ids, (case.B, case.H, case.T))


def lengths(case: Case) -> np.ndarray:
    return (case.T * np.linspace(0.3, 0.9, case.B * case.H)).astype(np.int32).reshape(case.B, case.H)


def biases(case: Case) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((case.B, case.H, case.T, case.T), np.float32)


def slopes(case: Case) -> np.ndarray:
    return np.broadcast_to(2.0 ** -np.arange(1.0, case.H + 1, dtype=np.float32), (case.B, case.H))


def window_visits(i: int, n: int) -> list[tuple[int, bool]]:
    reach = WINDOW // bare.TILE
    return [(j, j in (i, i - reach)) for j in range(max(0, i - reach), i + 1)]


def from_the_first_of_its_document(ids: Any, i: Any, tile: int) -> tuple[Any, Any, Any]:
    """Of traced ids that ascend: all tiles from that with the document's first token, each of them masked."""
    first = jnp.searchsorted(ids, jax.lax.dynamic_index_in_dim(ids, i * tile, keepdims=False)).astype(jnp.int32) // tile
    return first, first, i + 1


WINDOWED = bare.Kind(window_visits, allowed=lambda _, t, s: (t >= s) & (t - s < WINDOW))
SEGMENTED = bare.Kind(
    None,
    from_the_first_of_its_document,
    lambda ids, t, s: (ids[t] == ids[s]) & (t >= s),
)
CUT_OFF = bare.Kind(
    None,
    lambda n, i, tile: (jnp.int32(0), n // tile, -(-n // tile)),
    lambda n, t, s: s < n,
)
BIASED = bare.CAUSAL._replace(logits=lambda bias, x, t, s: x + jax.lax.dynamic_slice(bias, (t[0, 0], s[0, 0]), x.shape))
CAPPED = bare.CAUSAL._replace(logits=lambda _, x, t, s: CAP * jnp.tanh(x / CAP))
SLOPED = bare.CAUSAL._replace(logits=lambda slope, x, t, s: x - slope * (t - s).astype(jnp.float32))

CASES = (
    Case("1,8,1024,64 full", 1, 8, 1024, 64, bare.FULL, lambda _: {}),
    Case("1,8,1024,64 causal", 1, 8, 1024, 64, bare.CAUSAL, causal),
    Case("4,8,512,64 causal", 4, 8, 512, 64, bare.CAUSAL, causal),
    Case("1,8,2048,64 causal", 1, 8, 2048, 64, bare.CAUSAL, causal),
    Case("1,8,4096,64 causal", 1, 8, 4096, 64, bare.CAUSAL, causal),
    Case("1,4,8192,128 causal", 1, 4, 8192, 128, bare.CAUSAL, causal),
    Case("8,8,64,64 full", 8, 8, 64, 64, bare.FULL, lambda _: {}),
    Case("8,8,256,64 full", 8, 8, 256, 64, bare.FULL, lambda _: {}),
    Case("8,8,256,64 causal", 8, 8, 256, 64, bare.CAUSAL, causal),
    Case("1,8,4096,64 window", 1, 8, 4096, 64, WINDOWED, lambda _: {"mask": masks.window(WINDOW - 1, 0)}),
    Case(
        "1,8,4096,64 segments",
        *(1, 8, 4096, 64, SEGMENTED),
        lambda ids: {"mask": masks.segments(ids) & masks.causal()},
        documents,
    ),
    Case("1,8,4096,64 lengths", 1, 8, 4096, 64, CUT_OFF, lambda n: {"mask": masks.lengths(k=n)}, lengths),
    Case("1,8,2048,64 bias", 1, 8, 2048, 64, BIASED, lambda b: {"bias": b, "mask": masks.causal()}, biases),
    Case(
        "1,8,2048,64 soft cap",
        *(1, 8, 2048, 64, CAPPED),
        lambda _: {"score": scores.soft_cap(CAP), "mask": masks.causal()},
    ),
    Case(
        "1,8,2048,64 ALiBi",
        *(1, 8, 2048, 64, SLOPED),
        lambda slope: {"score": scores.alibi(slope), "mask": masks.causal()},
        slopes,
    ),
)
QUICK = ("8,8,64,64 full",)
COMPILE = ("1,8,4096,64 causal", "1,8,4096,64 window", "1,8,4096,64 segments", "1,8,4096,64 lengths")
LIMIT_OF_COMPILING = 1.5


def race(case: Case, rounds: int) -> dict[str, Any]:
    """Of each pass: how far the results are apart, and the milliseconds of both."""
    x, w, dots, extra = case.arrays()
    sides = {"jattn": case.ours(extra), "bare tiles": case.theirs(extra)}
    row: dict[str, Any] = {"case": case.name, "limit": case.limit, "errors": {}, "milliseconds": {}, "ratios": {}}
    calls = {}
    for which in PASSES:
        # The cotangent is an argument: as a constant in a scan of length 1, XLA made garbage of it.
        run = {name: partial(jax.jit(f[which]), x, w, dots) for name, f in sides.items()}
        got, want = (jax.tree.leaves(jax.device_get(f())) for f in run.values())
        off = distance(got, [np.asarray(a, np.float64) for a in want])
        if off > TOLERANCE:
            raise Differs(f"{case.name}, {which}: jattn differs by {off:.1e} from the bare tiles; it was not timed.")
        row["errors"][which] = off
        calls[which] = {name: partial(lambda f: jax.block_until_ready(f()), f) for name, f in run.items()}
    for which in PASSES:
        times = side_by_side(calls[which], rounds)
        row["milliseconds"][which] = {name: t.milliseconds() for name, t in times.items()}
        row["ratios"][which] = 1 / times_as_fast(times["jattn"], times["bare tiles"])
    return row


def compiling(case: Case, rounds: int) -> dict[str, Any]:
    """Seconds to trace and compile, of both, and their ratio: medians over rounds in turn."""
    x, w, dots, extra = case.arrays()

    def hvp(gradient: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, w, dots: jax.jvp(lambda *x: gradient(x, w, None)[1:], x, dots)[1]

    sides = {"jattn": case.ours(extra), "bare tiles": case.theirs(extra)}
    row: dict[str, Any] = {"case": case.name, "seconds": {}, "ratios": {}}
    for which in COMPILED:
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, f in sides.items():
                jax.clear_caches()
                start = time.perf_counter()
                jax.jit(hvp(f["gradient"]) if which == "hvp" else f[which]).lower(x, w, dots).compile()
                taken[name].append(time.perf_counter() - start)
        row["seconds"][which] = {name: statistics.median(t) for name, t in taken.items()}
        row["ratios"][which] = row["seconds"][which]["jattn"] / row["seconds"][which]["bare tiles"]
    return row


FIRST = """
import json, sys, time
start = time.perf_counter()
import chex, jax, jax.numpy as jnp, numpy as np, optax
imported = time.perf_counter()
if sys.argv[1] == "jattn":
    import jattn
    f = jattn.dot_product_attention
else:
    f = jax.nn.dot_product_attention
own = time.perf_counter()
x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 128, 4, 64), np.float32))
jax.block_until_ready(x)
made = time.perf_counter()
jax.block_until_ready(f(x, x, x))
result = time.perf_counter()
jax.block_until_ready(jax.grad(lambda x: f(x, x, x).sum())(x))
gradient = time.perf_counter()
found = {"jax, optax, chex": imported - start, "import": own - imported, "first result": result - made}
print(json.dumps(found | {"first gradient": gradient - result}))
"""
LIMITS_OF_FIRST = {"import": 0.15}


def first_calls(rounds: int) -> list[dict[str, Any]]:
    """Seconds of a new process, eager, [1, 128, 4, 64]: medians over rounds in turn."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [sys.executable, "-c", "import chex, jattn, jax, optax"], check=True, env=env
    )  # leaves their bytecode
    taken: dict[str, list[dict[str, float]]] = {"jattn": [], "jax.nn": []}
    for _ in range(rounds):
        for who, found in taken.items():
            command = [sys.executable, "-c", FIRST, who]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
            found.append(json.loads(done.stdout))
    return [
        {"who": who} | {name: statistics.median(f[name] for f in found) for name in found[0]}
        for who, found in taken.items()
    ]


def page(head: dict[str, Any], rows: list[dict], compiled: list[dict], first: list[dict]) -> str:
    """The tables."""

    def milliseconds(row: dict, which: str) -> str:
        both = (row["milliseconds"][which][name] for name in ("jattn", "bare tiles"))
        return " / ".join(f"{t['median']:.1f} ({t['least']:.1f})" for t in both)

    ratios = [
        [r["case"], *(f"{r['ratios'][p]:.2f} {verdict(r['ratios'][p], limit=r['limit'])}" for p in PASSES)]
        for r in rows
    ]
    parts = [
        "# How close to the bare tiles?",
        "\n".join(f"- {name}: {x}" for name, x in head.items()),
        "The time of jattn over that of the same tiles in plain JAX (`_bare_tiles.py`), the median over the rounds of "
        "each round's own ratio. Cases are B, H, T, D. Up to eight rows of tiles are written out there. Soft cap, bias "
        "and ALiBi are causal.",
        table(["case", *PASSES], ratios),
        "Milliseconds of jattn / of the bare tiles, the median over the rounds (the shortest call).",
        table(["case", *PASSES], [[r["case"], *(milliseconds(r, p) for p in PASSES)] for r in rows]),
    ]
    if compiled:
        cells = [
            [
                r["case"],
                *(
                    f"{r['seconds'][p]['jattn']:.1f} s / {r['seconds'][p]['bare tiles']:.1f} s = {r['ratios'][p]:.2f} "
                    f"{verdict(r['ratios'][p], limit=LIMIT_OF_COMPILING)}"
                    for p in COMPILED
                ),
            ]
            for r in compiled
        ]
        parts += ["Seconds to trace and compile, jattn / bare tiles.", table(["case", *COMPILED], cells)]
    names = [name for name in first[0] if name != "who"]
    cells = [
        [f["who"], *(f"{f[n]:.2f} {verdict(f[n], limit=LIMITS_OF_FIRST.get(n))}".strip() for n in names)] for f in first
    ]
    parts += [
        "Seconds of a new process, not the first, eager, [1, 128, 4, 64]: to import jax, optax and chex, and the "
        "library beyond them; then the first result, and the first gradient after it.",
        table(["", *names], cells),
    ]
    return "\n\n".join(parts)


def main() -> None:
    cases, rounds, folder, quick = asked(__doc__, CASES, QUICK)
    rows, compiled = [], []
    for case in cases:
        say(f"time      {case.name}")
        rows.append(race(case, rounds))
        jax.clear_caches()
    for case in cases:
        if case.name in COMPILE:
            say(f"compile   {case.name}")
            compiled.append(compiling(case, 3))
    say("first calls")
    first = first_calls(1 if quick else 5)
    head = header(["optax", "chex"]) | {"rounds": f"{rounds}, fewer where they take long"}
    numbers = {"header": head, "rows": rows, "compiled": compiled, "first": first}
    write(folder, "how_close_to_the_bare_tiles", page(head, rows, compiled, first), numbers)


if __name__ == "__main__":
    try:
        main()
    except Differs as finding:
        raise SystemExit(f"how_close_to_the_bare_tiles: {finding}") from None
