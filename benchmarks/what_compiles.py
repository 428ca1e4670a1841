"""What compiles for TPU and GPU, in how much memory, and what do many of them send? Compiled, not run.

    make compile                       a covering selection, in minutes; writes no file
    make compile-all                   the whole of it, and the tables in results/

The compilers of both vendors run on a machine that has no device of theirs. Each public way to attend (`_ways.py`) and
its derivatives are compiled at T = 4,096; where `implementation='kernel'` asks for kernels, a value must hold one, a
gradient or rows of the Jacobian three, and a jvp two, none of which may make a product of matrices beside the tensor
cores of a GPU, or spill many more registers than the kernels that were fastest on one (`_verdicts.SPILLED`); where
'cudnn' is asked for, one, two and one call of it; the temporaries of chosen ones at T = 4,096, 16,384 and 65,536 give
the exponent of T, beside jax.nn as the control; and the schemes of `jattn.sharding` are compiled for up to 512 devices
(`_many_devices.py`), their collectives and bytes compared with `sharding.plan`. No program may hold a float64. What
fails must be in `_refused.py`, with its reason, and what is there must fail.

Programs whose exponent is asked for, and the causal ring, are compiled as the compiler does by itself, all others with
its least effort for speed and memory, which takes a third of the time.
"""

import argparse
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _compilers as compilers
from _selection import CONTROL, ROWS, Job, chosen, title
from _verdicts import Verdict, write_tables

RESULTS = Path(__file__).parent / "results"
MOST_SECONDS = 400
"""Of one program: a compiler that has not ended by then is stopped, and the program counts as refused."""
BATCH = 8
"""Programs of one process: few enough that both processors have work to the end."""


def say(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)


# In a process of its own, with the environment of one platform.


def worker(jobs: list[Job]) -> None:
    """Compiles each; prints what was found, one line of JSON for each."""
    for job in jobs:
        try:
            found = compile_devices(job) if job["section"] == "devices" else compile_way(job)
        except Exception as error:
            found = {"refused": compilers.reason(error)}
        print(json.dumps(found), flush=True)


def compile_way(job: Job) -> dict[str, Any]:
    import _ways
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    here = SingleDeviceSharding(compilers.devices(job["device"])[0])
    T, dtype = job["T"], jnp.dtype(job["dtype"])
    if job["way"] == CONTROL:
        one = jax.ShapeDtypeStruct((1, T, 1, _ways.D), dtype)
        f: Callable[..., Any] = lambda active, rest: jax.nn.dot_product_attention(*active, is_causal=True)  # noqa: E731
        active, rest = [one] * 3, []
    else:
        kernels = [*_ways.KERNELS, *_ways.GPU_KERNELS, *_ways.TPU_KERNELS]
        ways = {"kernels": kernels, "cudnn": _ways.CUDNN}.get(job["section"], _ways.WAYS)
        f, active, rest = next(way for way in ways if way.name == job["way"]).make(T, dtype)
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), (active, rest))
    with compilers.described(job["device"]):
        asked = _ways.derivatives(f) | {ROWS: _ways.rows_of_the_jacobian(f)}
        return facts(job, asked[job["derivative"]], *args)[0]


def compile_devices(job: Job) -> dict[str, Any]:
    import _many_devices

    devices = compilers.devices(job["device"], job["devices"])
    which = job["mask"], job["layout"], job["derivative"]
    f, args, out = _many_devices.program(job["way"], job["device"], devices, *which)
    found, text = facts(job, f, *args, out_shardings=out)
    sent = compilers.collectives(text)
    return found | _many_devices.compared(sent, job["way"], job["device"], job["devices"], *which)


def facts(job: Job, f: Callable[..., Any], *args: Any, **how: Any) -> tuple[dict[str, Any], str]:
    options = compilers.least_effort() if job["fast"] else {}
    gpu_kernels = job["section"] == "kernels" and compilers.platform_of(job["device"]) == "cuda"
    if gpu_kernels:
        how["ptx"] = True
    compiled = compilers.compile_for(compilers.platform_of(job["device"]), f, *args, options=options, **how)
    said = compiled._asdict()
    found = {name: said[name] for name in ("seconds", "temporaries", "program", "float64")}
    found["kernels"] = compilers.kernels(compiled.text)
    if gpu_kernels:
        found["on_tensor_cores"] = sum(compilers.on_tensor_cores(compiled.ptx).values())
        found["spilled"] = compilers.spilled(compiled.ptx)
    return found, compiled.text


# The process that starts them.


def batches(jobs: list[Job]) -> list[list[Job]]:
    """Programs of one platform and section together, the sections and platforms in turn."""
    found: dict[Any, list[list[Job]]] = {}
    for job in jobs:
        kind = found.setdefault((job["section"], compilers.platform_of(job["device"])), [[]])
        if len(kind[-1]) == BATCH:
            kind.append([])
        kind[-1].append(job)
    return [batch for some in itertools.zip_longest(*found.values()) for batch in some if batch]


def run(jobs: list[Job]) -> Generator[dict[str, Any], None, None]:
    """What each program's compiler said, in order. One that ends its process is refused, and the rest go on."""
    while jobs:
        command = [sys.executable, __file__, "--worker"]
        how: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        env = compilers.environment(compilers.platform_of(jobs[0]["device"]))
        with subprocess.Popen(command, text=True, env=env, **how) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(jobs))
            process.stdin.close()
            done = 0
            try:
                for _ in jobs:
                    timer = threading.Timer(MOST_SECONDS, process.kill)
                    timer.start()
                    line = process.stdout.readline()
                    timer.cancel()
                    if not line.startswith("{"):
                        break
                    done += 1
                    yield json.loads(line)
            except GeneratorExit:  # nobody asks for the rest
                process.kill()
                raise
            status = process.wait()
        if done < len(jobs):
            name = signal.Signals(-status).name if status < 0 else f"status {status}"
            yield {"refused": f"the compiler's process ended with {name} (limit: {MOST_SECONDS} s)"}
            done += 1
        jobs = jobs[done:]


def measured(jobs: list[Job], processes: int, log: Path | None, minutes: float) -> list[Job]:
    """All programs with what was found; what the log has is not compiled again. After `minutes` none is begun."""
    end = time.monotonic() + 60 * minutes
    wanted = {name_of(job): job for job in jobs}
    known = [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    rows = {name_of(row): row for row in known if name_of(row) in wanted}

    def one(batch: list[Job]) -> None:
        answers = run(batch)
        for job in batch:
            if time.monotonic() > end:
                answers.close()
                return
            found = next(answers)
            row = rows[name_of(job)] = {"refused": ""} | job | found
            said = row["refused"] or f"{found['seconds']:.1f} s"
            say(f"{len(rows):4} of {len(jobs)}  {title(job)}: {said}")
            if log:
                with log.open("a") as file:
                    file.write(json.dumps(row) + "\n")

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(one, batches([job for job in jobs if name_of(job) not in rows])))
    return [rows[name] for name in wanted if name in rows]


def name_of(job: Job) -> str:
    return f"{job['section']}: {title(job)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every way × derivative × device, and write the tables")
    parser.add_argument("--only", default="", help="programs whose title contains this; no table unless --out")
    parser.add_argument("--out", type=Path, help="where to write (default with --all: results/ beside this script)")
    parser.add_argument("--log", type=Path, help="keep what was found here; what it has is not compiled again")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no program later than this")
    parser.add_argument(
        "--section", default="", help="ways, kernels, cudnn, lengths or devices alone; no table unless --out"
    )
    parser.add_argument("--processes", type=int, default=2, help="how many compilers at once")
    parser.add_argument("--worker", action="store_true", help="compile what standard input lists, as JSON")
    args = parser.parse_args()
    if args.worker:
        worker(json.load(sys.stdin))
        return
    absent = {platform: why for platform in compilers.PLATFORMS if (why := compilers.missing(platform))}
    os.environ["JAX_PLATFORMS"] = "cpu"
    import _ways

    lists = _ways.WAYS, _ways.KERNELS, _ways.GPU_KERNELS, _ways.TPU_KERNELS, _ways.CUDNN
    jobs = chosen(*([way.name for way in ways] for ways in lists), _ways.DERIVATIVES, args.all)
    jobs = [j for j in jobs if args.only in title(j) and args.section in j["section"]]
    jobs = [j for j in jobs if compilers.platform_of(j["device"]) not in absent]
    rows = measured(jobs, args.processes, args.log, args.minutes)
    verdict = Verdict(rows, absent, left=len(jobs) - len(rows))
    folder = args.out or (RESULTS if args.all and not (args.only or args.section) else None)
    if folder is not None:
        write_tables(folder, verdict, compilers.versions())
    for line in verdict.findings:
        print(line)
    print(verdict.closing_line())
    if verdict.findings:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
