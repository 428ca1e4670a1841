"""What the benchmarks share: the derivatives to measure, times side by side, the truth in float64, and tables.

A benchmark is a script whose file name is its question. It checks equality first, then measures, then writes
`results/<name>-<machine>.md` and the same numbers as `.json`.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jattn
from jattn import reference

RESULTS = Path(__file__).parent / "results"
TOLERANCE = 64 * float(np.finfo(np.float32).eps)
"""How far a float32 result may be from the float64 truth, as a share of the largest entry of the truth."""


class Differs(Exception):  # noqa: N818 - a finding, not a slip of the script
    """A result is not the one to be measured: there is nothing to time."""


def derivatives(f: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """`f(q, k, v)` and what is measured of it, each a function of x = (q, k, v), a cotangent w of out, and x_dot."""

    def gradient(x: Any, w: Any, x_dot: Any) -> Any:
        out, pull = jax.vjp(f, *x)
        return out, *pull(w)

    def slope(w: Any) -> Callable[..., Any]:
        return lambda *x: gradient(x, w, None)[1:]

    return {
        "forward": lambda x, w, x_dot: f(*x),
        "gradient": gradient,
        "jvp": lambda x, w, x_dot: jax.jvp(f, x, x_dot),
        "hvp": lambda x, w, x_dot: jax.jvp(slope(w), x, x_dot)[1],
        "gradient of gradient": lambda x, w, x_dot: jax.vjp(slope(w), *x)[1](x_dot),
    }


def truth(
    x: tuple[np.ndarray, ...], w: np.ndarray, causal: bool, x_dot: tuple[np.ndarray, ...] = (), block: int = 512
) -> list[np.ndarray]:
    """out, dq, dk, dv of [B, H, T, D], and the tangent of out along x_dot where it is given.

    By the reference in float64, some queries at a time so that it fits: each row of `out` is a function of its own
    query, and dk and dv are sums over the blocks.
    """
    T, S = x[0].shape[2], x[1].shape[2]
    with jax.enable_x64(True):

        def rows(start: jax.Array, w: jax.Array, x: Any, x_dot: Any) -> Any:
            mask = start + jnp.arange(w.shape[0])[:, None] >= jnp.arange(S) if causal else None
            f = lambda *x: reference.attention(*x, mask=mask)[0]  # noqa: E731
            out, pull = jax.vjp(f, *x)
            return out, *pull(w), *(jax.jvp(f, x, x_dot)[1:] if x_dot else ())

        rows = jax.jit(rows)
        found = [np.zeros(a.shape) for a in (w, *x, *([w] if x_dot else ()))]
        for head in np.ndindex(x[0].shape[:2]):
            dout, *wide = (a[head].astype(np.float64) for a in (w, *x, *x_dot))
            for start in range(0, T, block):
                some = slice(start, start + block)
                (q, k, v), dots = wide[:3], wide[3:]
                got = rows(start, dout[some], (q[some], k, v), tuple([dots[0][some], *dots[1:]] if dots else ()))
                for i, (total, part) in enumerate(zip(found, got, strict=True)):
                    total[head if i in (2, 3) else (*head, some)] += part
    return found


def distance(got: Iterable[Any], want: Iterable[Any]) -> float:
    """The largest |got − want| of any array, as a share of the largest |want| of that array; inf if not finite."""
    pairs = [(np.asarray(g, np.float64), np.asarray(w)) for g, w in zip(got, want, strict=True)]
    off = max(float(np.max(np.abs(g - w))) / float(np.max(np.abs(w))) for g, w in pairs)
    return off if np.isfinite(off) else float("inf")


class Times(NamedTuple):
    """Seconds of one call: the median over the rounds, the shortest call, and each round's own median."""

    median: float
    least: float
    rounds: list[float]

    def milliseconds(self) -> dict[str, Any]:
        return {name: [1e3 * t for t in x] if name == "rounds" else 1e3 * x for name, x in self._asdict().items()}


def side_by_side(calls: dict[str, Callable[[], Any]], rounds: int, turn: float = 0.06) -> dict[str, Times]:
    """Times each call, all of them in every round and in alternating order, so that a slow minute is slow for all.

    A turn is as many calls as fill `turn` seconds, after a pause and, for short ones, a call that is not counted:
    the threads of one library may still be spinning when the other begins. Where all of them together take long,
    there are fewer rounds, but three at least if that many were asked for.
    """

    def seconds(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    once = {name: min(seconds(call) for _ in range(2)) for name, call in calls.items()}
    rounds = min(rounds, max(3, int(90 / sum(once.values()))))
    taken: dict[str, list[list[float]]] = {name: [] for name in calls}
    for n in range(rounds):
        for name in list(calls)[:: -1 if n % 2 else 1]:
            time.sleep(0.02)
            if once[name] < turn:
                calls[name]()
            often = min(max(int(turn / once[name]), 1), 50)
            taken[name].append([seconds(calls[name]) for _ in range(often)])
    medians = {name: [statistics.median(t) for t in turns] for name, turns in taken.items()}
    return {name: Times(statistics.median(medians[name]), min(map(min, taken[name])), medians[name]) for name in calls}


def times_as_fast(ours: Times, theirs: Times) -> float:
    """Their time over ours: the median over the rounds of each round's own ratio."""
    return statistics.median(b / a for a, b in zip(ours.rounds, theirs.rounds, strict=True))


class Asked(NamedTuple):
    """What the command line asks of a benchmark of named cases; `folder` is None where no file is to be written."""

    cases: list[Any]
    rounds: int
    folder: Path | None
    quick: bool


def asked(doc: str | None, cases: Iterable[Any], quick: Iterable[str], *, platform: str | None = "cpu") -> Asked:
    """Reads the command line, and sets JAX to a platform (None: whatever it finds) and to no cache of programs."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small cases and two rounds; no file unless --out")
    parser.add_argument("--rounds", type=int, help="how often each is timed at most (default: 9)")
    parser.add_argument("--only", default="", help="the cases whose name contains this, e.g. 4096")
    parser.add_argument("--out", type=Path, help=f"where to write (default: {RESULTS.name}/ beside this script)")
    args, names = parser.parse_args(), set(quick)
    chosen = [c for c in cases if args.only in c.name and (c.name in names or not args.quick)]
    if not chosen:
        parser.error(f"no case contains {args.only!r}; there are: {'; '.join(c.name for c in cases)}")
    if platform is not None:
        jax.config.update("jax_platforms", platform)
    jax.config.update("jax_enable_compilation_cache", False)
    folder = args.out or (None if args.quick or args.only else RESULTS)
    return Asked(chosen, args.rounds or (2 if args.quick else 9), folder, args.quick)


def product(n: int = 2048) -> tuple[Callable[[], Any], float]:
    """A large matrix product in float32, and its number of operations: what the machine can do."""
    a = jax.random.normal(jax.random.key(0), (n, n))
    multiply = jax.jit(jnp.matmul)
    return lambda: multiply(a, a).block_until_ready(), 2.0 * n**3


def verdict(x: float, *, floor: float | None = None, limit: float | None = None) -> str:
    """`≥ 1.3 reached` and the like; nothing where nothing is asked."""
    if floor is not None:
        return f"≥ {floor:g} {'reached' if x >= floor else 'short'}"
    return "" if limit is None else f"≤ {limit:g} {'reached' if x <= limit else 'short'}"


def header(packages: Iterable[str]) -> dict[str, Any]:
    """On what, with what and when."""

    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    return {
        "machine": _model(),
        "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "dtype": "float32",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "jattn": jattn.__version__,  # of a checkout too, which is not installed
        **{name: version(name) for name in ("jax", "jaxlib", *packages)},
    }


def _model() -> str:
    """The name of the processor; of one that does not say which it is, as in some virtual machines, its family too."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = ""

    def said(what: str) -> str:
        found = re.search(rf"^{what}\s*:\s*(.+)$", info, re.MULTILINE)
        return found[1] if found else ""

    named = said("model name") or platform.processor() or platform.machine()
    if not re.search(r"\d", named) and said("cpu family"):
        named += f" family {said('cpu family')}"
    return " ".join(re.sub(r"\((?:R|TM)\)|\b(?:CPU|Processor)\b", " ", named).split())


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Markdown, its columns as wide as they must be."""
    wide = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [heads, ["-" * n for n in wide], *rows]
    return "\n".join("| " + " | ".join(c.ljust(n) for c, n in zip(line, wide, strict=True)) + " |" for line in lines)


def write(folder: Path | None, name: str, page: str, numbers: dict[str, Any]) -> None:
    """Prints the page, and keeps it with its numbers where a folder is given."""
    print(page)
    if folder is not None:
        head = numbers["header"]
        what = f"{head['machine']} {os.cpu_count()} cores" if head["device"] == "cpu" else head["device"]
        machine = re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-{machine}.md").write_text(page + "\n", encoding="utf-8")
        (folder / f"{name}-{machine}.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
        say(f"written: {folder / name}-{machine}.md and .json")


def say(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)
