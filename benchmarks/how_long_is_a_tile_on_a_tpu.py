"""How long is one tile of each kernel on a TPU? Scheduled by its compiler, not run.

    .venv-compile/bin/python benchmarks/how_long_is_a_tile_on_a_tpu.py        (after `make compile`, which installs it)

A core of a TPU issues one bundle of instructions after another, in the order that its compiler chose; nothing is
guessed or reordered where it runs. So the bundles that the compiler writes for one tile are the cycles that the tile
takes at least: waiting for memory comes on top, and what a step of the grid costs beside its tile. They say which of
two forms of a kernel is shorter, and how far the products of matrices fill it, and no time.

Causal attention in bfloat16, tiles of 512 × 512. Of each kernel the three forms of a tile: every pair allowed; some
allowed; and one whose queries, keys or values hold what is not finite, which is looked for in that form alone.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import _compilers as compilers
from _measure import table

RESULTS = Path(__file__).parent / "results"
DEVICES, WIDTHS, TILE, T = ("TPU v5e", "TPU v5p", "TPU v6e"), (64, 128, 256), 512, 2048
KERNELS = "jattn_forward", "jattn_tangent", "jattn_backward_q", "jattn_backward_kv"
EXPONENTIALS = TILE * TILE // 1024
"""Of one tile: a register holds 8 × 128 numbers."""


class Region(NamedTuple):
    """Bundles that are issued one after another, without a jump."""

    first: int
    bundles: int
    exponentials: int


def regions(text: str) -> list[Region]:
    """Those of a kernel, read from its last bundles as the compiler writes them."""
    found, start, exponentials, at = [], 0, 0, 0
    for line in text.splitlines():
        bundle = re.match(r"\s*0x([0-9a-f]+)\s*(LH|LB|LE|PB|PF)?\s*:", line)
        if bundle is None:
            continue
        at = int(bundle[1], 16)
        if bundle[2] or "sbr.rel" in line:
            found.append(Region(start, at - start, exponentials))
            start, exponentials = at, 0
        exponentials += len(re.findall(r"= vpow2", line))
    return [*found, Region(start, at - start, exponentials)]


def tiles(text: str) -> list[Region]:
    """The forms of a tile: no other region has an exponential for each of its pairs."""
    return [region for region in regions(text) if region.exponentials >= EXPONENTIALS]


def filled(text: str, region: Region) -> float:
    """The share of what the units of matrix products could do in a region that they do."""
    capacities, rows = re.findall(r"(?m)^([A-Z:, ]+)\n([\d ]+)$", text), re.findall(r"(?m)^\d+(?: \d+)+$", text)
    ((names, numbers),) = ((names, numbers) for names, numbers in capacities if "MXU" in names)
    unit = [name.strip() for name in names.split(",")].index("MXU")
    busy = (int(row.split()[unit]) for row in rows[region.first : region.first + region.bundles])
    return sum(busy) / (int(numbers.split()[unit]) * region.bundles)


def scheduled(device: str, D: int) -> list[dict[str, Any]]:
    """The forms of a tile of every kernel for heads of width D."""
    with tempfile.TemporaryDirectory() as folder:
        labels = "final_bundles|final_hlo-static-per-bundle-utilization"
        flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex={labels}"
        env = compilers.environment("tpu") | {"LIBTPU_INIT_ARGS": flags}
        subprocess.run([sys.executable, __file__, "--worker", device, str(D)], env=env, check=True)
        found = []
        for kernel in KERNELS:
            written = sorted(Path(folder).glob(f"*-{kernel}.*-final_bundles.txt"))
            (bundles,) = (path.read_text() for path in written[:1] if "schedule-analysis" not in path.name)
            (used,) = sorted(Path(folder).glob(f"*-{kernel}.*-final_hlo-static-per-bundle-utilization.txt"))[:1]
            forms = tiles(bundles)
            row = {"device": device, "D": D, "kernel": kernel, "forms": [region.bundles for region in forms]}
            found.append(row | {"filled": filled(used.read_text(), forms[0])})
        return found


def worker(device: str, D: int) -> None:
    """Compiles a gradient and a tangent; the compiler writes what it does beside."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    import jattn

    here = SingleDeviceSharding(compilers.devices(device)[0])
    x = [jax.ShapeDtypeStruct((T, D), jnp.bfloat16, sharding=here)] * 3
    how: Any = {"mask": jattn.masks.causal(), "implementation": "kernel", "tile": (TILE, TILE)}
    f = lambda *x: jattn.attention(*x, **how)  # noqa: E731
    gradient = jax.grad(lambda *x: jnp.sum(jnp.sin(f(*x)).astype(jnp.float32)), (0, 1, 2))
    compilers.compile_for("tpu", gradient, *x)
    compilers.compile_for("tpu", lambda *x: jax.jvp(f, x, x), *x)


def page(rows: list[dict[str, Any]], numbers: dict[str, str]) -> str:
    heads = ["device", "width of heads", "kernel", "full", "masked", "not finite", "products, of a full tile"]
    lines = [
        [row["device"], str(row["D"]), row["kernel"], *(f"{n:,}" for n in row["forms"]), f"{row['filled']:.0%}"]
        for row in rows
    ]
    told = "\n".join(f"- {name}: {value}" for name, value in numbers.items())
    return f"""# How long is a tile on a TPU? Scheduled, not run

Bundles of instructions of one tile of 512 × 512, causal, bfloat16, as the compiler of the TPU schedules them: cycles,
without waiting for memory and without what a step of the grid costs. No TPU was there, and nothing was timed. The last
column: of what the units of matrix products could do in a full tile, what they do.

{told}

{table(heads, lines)}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="where to write (default: results/ beside this script)"
    )
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker[0], int(args.worker[1]))
        return
    if why := compilers.missing("tpu"):
        raise SystemExit(f"not run: {why}")
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    import jattn

    rows = [row for device in DEVICES for D in WIDTHS for row in scheduled(device, D)]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    numbers = {"date": today, "jattn": jattn.__version__, "jax": jax.__version__, **compilers.versions()}
    numbers = {name: numbers[name] for name in ("date", "jattn", "jax", "libtpu")}
    print(page(rows, numbers))
    name = Path(__file__).stem
    (args.out / f"{name}.md").write_text(page(rows, numbers) + "\n", encoding="utf-8")
    (args.out / f"{name}.json").write_text(json.dumps({"header": numbers, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
