"""What the programs that were compiled amount to: what fails, the tables, and the closing line."""

import datetime
import fnmatch
import json
import math
from itertools import groupby
from pathlib import Path
from typing import Any

import _compilers as compilers
from _measure import table
from _refused import DIFFERS, GROWS, NOT_LINEAR, REFUSED
from _selection import CONTROL, LENGTHS, Job, held, title

EXPONENT, FLAT, CONTROL_EXPONENT = 1.1, 1.05, 1.5
"""Linear in T: T to at most this. Flat: at most so many times as much on more devices. And what is not linear."""
SPILLED = 1536
"""Bytes that a thread of a kernel of the GPU keeps in memory at most, since its registers cannot hold them. dq
beside a bias in float32 is near it: of the tiles that were measured on an H200 the fastest spill, and smaller ones that
do not took a fifth longer."""
MIB = 2**20


class Verdict:
    """What was found of all programs; `findings` are the lines that say what should not be."""

    def __init__(self, rows: list[Job], absent: dict[str, str], left: int = 0) -> None:
        self.absent, self.left = absent, left
        self.findings: list[str] = []
        self.rows = rows
        self.compiled = [row for row in rows if not row["refused"]]
        self.refused = [row for row in rows if row["refused"]]
        self.lengths = fitted([row for row in self.compiled if row["section"] == "lengths"])
        self.devices = grown([row for row in self.compiled if row["section"] == "devices"])
        self._match(REFUSED, "is refused by the compiler", [(r, r["refused"]) for r in self.refused], rows)
        for row in self.compiled:
            if row["float64"]:
                self.findings.append(f"{title(row)}: holds a float64")
        self.kernels = [row for row in self.compiled if held(row) is not None]
        for row in self.kernels:
            if row["kernels"] != held(row):
                said = f"holds {row['kernels']} kernels, and not {held(row)}"
                self.findings.append(f"{title(row)}: {said}")
            if row.get("on_tensor_cores", held(row)) != held(row):
                said = f"{row['on_tensor_cores']} kernels make every product on tensor cores, and not {held(row)}"
                self.findings.append(f"{title(row)}: {said}")
            for kernel, spilled in row.get("spilled", {}).items():
                if spilled > SPILLED:
                    said = f"a thread of {kernel} spills {spilled:,} bytes of registers, more than {SPILLED:,}"
                    self.findings.append(f"{title(row)}: {said}")
        controls, fits = ([f for f in self.lengths if (f["way"] == CONTROL) is one] for one in (True, False))
        for fit in controls:
            if fit["exponent"] < CONTROL_EXPONENT:
                self.findings.append(f"{title(fit)}: the control is linear: T^{fit['exponent']:.2f}")
        steep = [(fit, f"T^{fit['exponent']:.2f}") for fit in fits if not is_linear(fit)]
        self._match(NOT_LINEAR, "has temporaries that are not linear in T", steep, fits)
        several = [row for row in self.devices if row["growth"] is not None]
        growing = [(r, f"{r['growth']:.2f} times the temporaries") for r in several if r["growth"] > FLAT]
        self._match(GROWS, "grows with the devices", growing, several)
        unequal = [
            (r, f"sends {r['sent']:,} bytes, planned {r['planned']:,}") for r in self.devices if not as_planned(r)
        ]
        self._match(DIFFERS, "differs from the plan", unequal, self.devices)

    def _match(self, known: dict[str, str], what: str, found: list[tuple[Job, str]], among: list[Job]) -> None:
        for row, why in found:
            if not any(fnmatch.fnmatchcase(title(row), pattern) for pattern in known):
                self.findings.append(f"{title(row)}: {what}: {why}")
        for pattern in known:
            tried = [row for row in among if fnmatch.fnmatchcase(title(row), pattern)]
            if tried and not any(row in tried for row, _ in found):
                self.findings.append(f"{pattern}: is listed in _refused.py, and no longer {what}")

    def closing_line(self) -> str:
        """What was compiled for what, and what was not run."""
        line = ""
        if self.rows:
            kinds = [d for d in compilers.TOPOLOGIES if any(row["device"] == d for row in self.rows)]
            lengths = [fit for fit in self.lengths if fit["way"] != CONTROL]
            linear = sum(map(is_linear, lengths))
            parts = [f"{len(self.compiled)} programs compile", f"{len(self.refused)} are refused by name"]
            if self.kernels:
                parts.append(f"{len(self.kernels)} of them as kernels")
            if lengths:
                parts.append(f"temporaries linear in T ({linear} of {len(lengths)} that were fitted)")
            if self.devices:
                equal = sum(map(as_planned, self.devices))
                parts.append(
                    f"{equal} of {len(self.devices)} programs of many devices send what plan says, to the byte"
                )
            if self.findings:
                parts.append(f"{len(self.findings)} FINDINGS, above")
            line = f"{', '.join(kinds)}: {', '.join(parts)}"
        not_run = [f"not run: {name} ({why})" for name, why in self.absent.items()]
        not_run += [f"not run: {self.left} further programs"] * bool(self.left)
        return f"make compile: {'; '.join([line] * bool(line) + not_run)}"


def as_planned(row: Job) -> bool:
    return row["sent"] == row["planned"] and row["collectives"] == row["planned_collectives"]


def is_linear(fit: Job) -> bool:
    """By its exponent, or since the longest takes less than one bit a pair, in which no array of pairs can hide.

    A TPU's compiler puts what is short into the chip's own memory, which it does not count: temporaries begin at a T,
    and the exponent says nothing.
    """
    T, heads = max(fit["bytes"]), 8 if fit["way"].startswith("many heads") else 1
    return fit["exponent"] <= EXPONENT or fit["bytes"][T] < heads * T * T / 8


def fitted(rows: list[Job]) -> list[Job]:
    """One row for each way, derivative and device: the bytes at each T, and p of T^p by least squares of logarithms."""

    def of(row: Job) -> Any:
        return row["device"], row["way"], row["derivative"]

    found = []
    for _, some in groupby(rows, of):
        same = list(some)
        if len(same) < (2 if same[0]["way"] == CONTROL else len(LENGTHS)):
            continue
        x, y = ([math.log(max(row[name], 1)) for row in same] for name in ("T", "temporaries"))
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / (
            sum((a - mean_x) ** 2 for a in x) or 1
        )
        found.append(same[0] | {"bytes": {row["T"]: row["temporaries"] for row in same}, "exponent": slope})
    return found


def grown(rows: list[Job]) -> list[Job]:
    """Each with how many times the temporaries it has of the same on the fewest devices; None where it is that."""

    def fewest(row: Job) -> Job:
        same = ("device", "way", "mask", "layout", "derivative")
        return min((r for r in rows if all(r[s] == row[s] for s in same)), key=lambda r: r["devices"])

    return [
        row | {"growth": None if (few := fewest(row)) is row else row["temporaries"] / max(few["temporaries"], 1)}
        for row in rows
    ]


# Tables.


def of_ways(rows: list[Job], device: str, section: str = "ways") -> str:
    here = [row for row in rows if row["section"] == section and row["device"] == device]
    names, derivatives = (list(dict.fromkeys(row[key] for row in here)) for key in ("way", "derivative"))

    def cell(way: str, derivative: str) -> str:
        found = [row for row in here if (row["way"], row["derivative"]) == (way, derivative)]
        mark = {"float32": "", "bfloat16": " b"}

        def said(r: Job) -> str:
            spilled = f" / {max(r['spilled'].values(), default=0)}" if "spilled" in r else ""
            return "refused" if r["refused"] else f"{r['temporaries'] / MIB:.1f}{mark[r['dtype']]}{spilled}"

        return ", ".join(map(said, found))

    return table([device, *derivatives], [[way, *(cell(way, d) for d in derivatives)] for way in names])


def of_lengths(fits: list[Job]) -> str:
    lengths = sorted({T for fit in fits for T in fit["bytes"]})

    def line(fit: Job) -> list[str]:
        sizes = [f"{fit['bytes'][T] / MIB:.1f}" if T in fit["bytes"] else "–" for T in lengths]
        return [fit["device"], fit["way"], fit["derivative"], *sizes, f"{fit['exponent']:.2f}"]

    heads = ["device", "call", "derivative", *(f"T = {T}" for T in lengths), "exponent"]
    return table(heads, [line(fit) for fit in fits])


def of_devices(rows: list[Job]) -> str:
    heads = ["scheme", "mask", "layout", "", "devices", "T", "MiB", "times the fewest", "bytes sent"]

    def line(r: Job) -> list[str]:
        which = [r["way"], r["mask"], r["layout"], r["derivative"]]
        growth = f"{r['growth']:.2f}" if r["growth"] else ""
        planned = "equal" if as_planned(r) else f"planned {r['planned']:,}"
        overlapped = f"{r['overlapped']} of {r['permutes']}" if r["permutes"] else ""
        size = [f"{1024 * r['devices']:,}", f"{r['temporaries'] / MIB:.1f}", growth, f"{r['sent']:,}"]
        return [*which, f"{r['devices']} {r['device']}", *size, planned, overlapped]

    return table([*heads, "as planned", "overlapped"], [line(row) for row in rows])


NOT_RUN = """No device was there: the vendor's compiler made these programs for devices that were described to it, and
nothing in this table was executed, timed or compared with a reference."""
OF_LENGTHS = """MiB of temporaries that the compiler reserves, float32, one head of 64 (grouped: 2 × 4 heads), and the
fitted exponent of T; less than one bit a pair counts as linear, since a TPU holds what is short in its own memory.
jax.nn, whose memory is that of a dense matrix, is the control."""
EACH_HAS = """1,024 tokens on each device, width 128, bfloat16; 8 heads, for all_to_all 64{}. MiB of
temporaries of one device, and how many times those of the fewest devices of the kind; the bytes that one device sends,
and whether they and the number of collectives are those of `sharding.plan`; of the collective-permutes in the compiled
text, how many have a loop of tiles, or a kernel, between their start and their end. The contiguous causal ring is
compiled as the compiler does by itself, the others with its least effort{}."""
LEAST_EFFORT = ": with it\nnext to nothing is sent while a TPU computes"
OF_DEVICES = {"tpu": EACH_HAS.format(", and 512 on a v5p", LEAST_EFFORT), "cuda": EACH_HAS.format("", "")}
EACH_HOLDS = """MiB of temporaries with implementation='kernel' at T = 4,096, compiled with the compiler's least effort;
b: bfloat16, the others float32. Each value holds one kernel, each jvp two, and each gradient three, as do two rows of
the Jacobian with the value (`jax.vmap` of a pullback, as `jax.jacrev` calls it)"""
OF_KERNELS = {
    "tpu": f"""{EACH_HOLDS}. At the highest
precision every product is one of float32.""",
    "cuda": f"""{EACH_HOLDS}; in bfloat16
these hold five, of which three run. With the gradient of a learned table it is one more, in bfloat16 two. They make
their products of matrices on tensor cores alone, says the assembly; after a slash: bytes that a thread of the kernel
with the most keeps in memory for want of registers, says ptxas.""",
}
OF_CUDNN = """With implementation='cudnn', T = 4,096, bfloat16: calls of cuDNN, which become kernels where they run, and
loops beside them for operands that are not finite. A value and a jvp hold one call, a gradient two and two rows of
the Jacobian three; with lse both hold two more."""
OF_WAYS = "MiB of temporaries at T = 4,096, compiled with the compiler's least effort; b: bfloat16, the others float32."
KNOWN = {"refused": REFUSED, "not linear in T": NOT_LINEAR, "grows": GROWS, "differs from plan": DIFFERS}


def page(verdict: Verdict, platform: str, head: dict[str, str]) -> str:
    """Of one platform."""
    devices = [d for d in compilers.TOPOLOGIES if compilers.platform_of(d) == platform]

    def here(rows: list[Job]) -> list[Job]:
        return [row for row in rows if row["device"] in devices]

    refused = [f"- {title(row)}: {row['refused']}" for row in here(verdict.refused)]
    titles = list(map(title, here(verdict.rows)))
    known = [
        f"- {what} ({which}): {why}"
        for what, some in KNOWN.items()
        for which, why in some.items()
        if any(fnmatch.fnmatchcase(name, which) for name in titles)
    ]
    count = f"{len(here(verdict.compiled))} programs compile, {len(refused)} are refused; none holds a float64."
    if verdict.left:
        count += f" {verdict.left} further programs of `make compile-all`, over all platforms, were not compiled."
    parts = [
        f"# What compiles for {'a GPU' if platform == 'cuda' else 'TPUs'}? Compiled, not run",
        NOT_RUN,
        "\n".join(f"- {name}: {x}" for name, x in head.items()),
        count,
        "\n".join(refused),
        "## Kernels",
        OF_KERNELS[platform],
        *(of_ways(verdict.rows, device, "kernels") for device in devices),
        *([OF_CUDNN, of_ways(verdict.rows, "H200", "cudnn")] if "H200" in devices else []),
        "## Memory as T grows",
        OF_LENGTHS,
        of_lengths(here(verdict.lengths)),
        "## Many devices",
        OF_DEVICES[platform],
        of_devices(here(verdict.devices)),
        "Known not to hold:\n\n" + "\n".join(known) if known else "",
        "## Every way and derivative",
        OF_WAYS,
        *(of_ways(verdict.rows, device) for device in devices),
    ]
    return "\n\n".join(part for part in parts if part)


def write_tables(folder: Path, verdict: Verdict, versions: dict[str, str]) -> None:
    """A page and its numbers for each platform that was compiled for."""
    import platform as machine
    from importlib.metadata import version

    import jattn

    for platform in compilers.PLATFORMS:
        if platform in verdict.absent:
            continue
        head = {"devices": "described, none present", "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "python": machine.python_version(), "jattn": jattn.__version__,
                **{name: version(name) for name in ("jax", "jaxlib")},
                **{name: versions[name] for name in compilers.PACKAGES[platform]}}  # fmt: skip
        rows = [r for r in verdict.rows if compilers.platform_of(r["device"]) == platform]
        path = folder / f"what_compiles-{'gpu' if platform == 'cuda' else platform}"
        folder.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".md").write_text(page(verdict, platform, head) + "\n", encoding="utf-8")
        numbers = ",\n ".join(json.dumps(row) for row in rows)
        path.with_suffix(".json").write_text(
            f'{{"header": {json.dumps(head)}, "programs": [\n {numbers}]}}\n', encoding="utf-8"
        )
