"""Which programs `what_compiles.py` compiles: the covering selection of every change, and the whole of it."""

from collections.abc import Iterator, Sequence
from typing import Any

import _compilers as compilers

Job = dict[str, Any]
"""One program, as JSON: its section, device, derivative and what else its section needs."""
LENGTH, LENGTHS, CONTROL = 4096, (4096, 16384, 65536), "jax.nn"
TYPES = ("float32", "bfloat16")
ROWS = "rows of the Jacobian"
BACKWARD = ("gradient", ROWS)
HOLDS = {"value": 1, "gradient": 3, "jvp": 2, ROWS: 3}
"""How many kernels a program of each derivative holds: the forward pass; the backward pass of dq and that of dk and dv;
the tangent pass. In 16 bits one of a GPU holds the backward pass twice, and runs one of them."""
CUDNN_HOLDS = {"value": 1, "gradient": 2, "jvp": 1, ROWS: 3}
"""How many calls of cuDNN: its forward and its backward pass. A backward pass with lse has each once more, one of
several cotangents a forward pass of its own over repeated operands, and the tangent pass is loops."""
TPUS = [device for device in compilers.TOPOLOGIES if compilers.platform_of(device) == "tpu"]
CAUSAL, GROUPED = "one head: causal()", "many heads: grouped, causal"
RINGS = [("ring", mask, layout) for mask in ("causal", "window") for layout in ("contiguous", "zigzag")]
OTHERS = [(scheme, "causal", "contiguous") for scheme in ("all_to_all", "gather", "tree", "ring_all_to_all")]


def of_ways(ways: Sequence[str], derivatives: Sequence[str], everything: bool) -> Iterator[Job]:
    """Each way × derivative × device, the dtypes by turns.

    Or each way once on a TPU and once on a GPU: five derivatives, three TPUs and two dtypes are by turns, and have no
    common divisor, so that thirty ways in a row hold each triple of them once.
    """
    for i, way in enumerate(ways):
        for j, derivative in enumerate(derivatives):
            for d, device in enumerate(compilers.TOPOLOGIES):
                mine = i % len(derivatives) == j and d == i % len(TPUS)
                mine = mine or (device == "H200" and (i + 2) % len(derivatives) == j)
                if everything or mine:
                    yield {"section": "ways", "device": device, "way": way, "derivative": derivative,
                           "dtype": TYPES[(i + j + d) % 2], "T": LENGTH}  # fmt: skip


def of_kernels(
    kernels: Sequence[str], gpu_kernels: Sequence[str], tpu_kernels: Sequence[str], everything: bool
) -> Iterator[Job]:
    """What asks for kernels: each × the derivatives of `HOLDS` × device; or each once on a TPU and once on a GPU.

    What one platform alone has kernels for, on it alone.
    """
    for i, way in enumerate([*kernels, *gpu_kernels, *tpu_kernels]):
        for j, derivative in enumerate(HOLDS):
            for d, device in enumerate(compilers.TOPOLOGIES):
                if way in (tpu_kernels if device == "H200" else gpu_kernels):
                    continue
                mine = (i + j) % len(HOLDS) == 0 and (device == "H200" or d == i // len(HOLDS) % len(TPUS))
                if everything or mine:
                    yield {"section": "kernels", "device": device, "way": way, "derivative": derivative,
                           "dtype": TYPES[(i + d) % 2], "T": LENGTH}  # fmt: skip


def of_cudnn(ways: Sequence[str], everything: bool) -> Iterator[Job]:
    """What asks for cuDNN: each × the derivatives of `CUDNN_HOLDS`; or each once, by turns."""
    for i, way in enumerate(ways):
        for j, derivative in enumerate(CUDNN_HOLDS):
            if everything or (i + j) % len(CUDNN_HOLDS) == 1:
                yield {"section": "cudnn", "device": "H200", "way": way, "derivative": derivative,
                       "dtype": "bfloat16", "T": LENGTH}  # fmt: skip


def held(job: Job) -> int | None:
    """How many kernels, or calls of cuDNN, a program must hold; None if it may hold any number."""
    if job["section"] == "cudnn":
        of_lse = job["derivative"] in BACKWARD and "lse" in job["way"]
        return CUDNN_HOLDS[job["derivative"]] + (2 if of_lse else 0)
    if job["section"] != "kernels":
        return None
    if job["device"] != "H200" or job["derivative"] not in BACKWARD:
        return HOLDS[job["derivative"]]
    of_tables = any(kind in job["way"] for kind in ("_bias(table)", "table by distance"))
    of_backward = HOLDS["gradient"] - HOLDS["value"] + (of_tables and "not active" not in job["way"])
    return HOLDS["value"] + of_backward * (2 if job["dtype"] == "bfloat16" else 1)


def of_lengths(derivatives: Sequence[str], everything: bool) -> Iterator[Job]:
    """Programs whose temporaries are fitted over three lengths, and the control over two."""
    chosen = [
        (CAUSAL, device, name)
        for device, name in zip(["TPU v5e", "H200"] * 2, ("value", "value", "gradient", "gradient"), strict=True)
    ]
    if everything:
        chosen = [(CAUSAL, device, name) for device in ("TPU v5e", "H200") for name in derivatives]
        chosen += [(CAUSAL, device, name) for device in ("TPU v5p", "TPU v6e") for name in ("value", "gradient")]
        chosen += [(GROUPED, "TPU v5e", name) for name in ("value", "gradient")]
        chosen += [(GROUPED, "H200", name) for name in derivatives]
    controls = [(CONTROL, device, "value") for device in (compilers.TOPOLOGIES if everything else ("TPU v5e", "H200"))]
    for way, device, derivative in [*chosen, *controls]:
        for T in LENGTHS[: 2 if way == CONTROL else None]:
            yield {
                "section": "lengths",
                "device": device,
                "way": way,
                "derivative": derivative,
                "dtype": "float32",
                "T": T,
            }


def of_devices(everything: bool) -> Iterator[Job]:
    """The schemes over few and many devices of one kind."""
    if everything:
        sizes = [(device, n) for device in ("TPU v5e", "TPU v6e", "H200") for n in (8, 64)]
        sizes += [("TPU v5p", 64), ("TPU v5p", 512)]
        chosen = [(*x, *size, name) for size in sizes for x in [*RINGS, *OTHERS] for name in ("value", "gradient")]
    else:
        chosen = [(*RINGS[0], "TPU v5e", n, "value") for n in (8, 64)]
        chosen += [(*x, "H200", n, "gradient") for x in (RINGS[1], *OTHERS) for n in (8, 64)]
        chosen += [(*RINGS[3], "TPU v5p", 512, "value"), (*OTHERS[2], "TPU v5p", 512, "gradient")]
    for scheme, mask, layout, device, n, derivative in chosen:
        yield {"section": "devices", "device": device, "way": scheme, "mask": mask, "layout": layout, "devices": n,
               "derivative": derivative}  # fmt: skip


def chosen(
    ways: Sequence[str],
    kernels: Sequence[str],
    gpu_kernels: Sequence[str],
    tpu_kernels: Sequence[str],
    cudnn: Sequence[str],
    derivatives: Sequence[str],
    everything: bool,
) -> list[Job]:
    """All programs. Those that are compared over T, and one ring, are compiled with the compiler's own effort: with
    less, a TPU's sends nothing while it computes."""
    found = [*of_ways(ways, derivatives, everything), *of_kernels(kernels, gpu_kernels, tpu_kernels, everything)]
    found += [*of_cudnn(cudnn, everything)]
    found += [*of_lengths(derivatives, everything), *of_devices(everything)]
    found.sort(key=lambda job: job["section"] == "ways" and derivatives.index(job["derivative"]))

    def fast(job: Job) -> bool:
        if job["section"] == "devices":
            return (job["way"], job["mask"], job["layout"]) != RINGS[0]
        return job["section"] in ("ways", "kernels", "cudnn")

    return [job | {"fast": fast(job)} for job in found]


def title(job: Job) -> str:
    """Its name in `_refused.py`, and in what is printed."""
    if job["section"] == "devices":
        return f"{job['way']}, {job['mask']}, {job['layout']}, {job['derivative']}, {job['devices']} × {job['device']}"
    way = {"kernels": "kernels of ", "cudnn": "cuDNN for "}.get(job["section"], "") + job["way"]
    return f"{way}, {job['derivative']}, {job['dtype']}, T = {job['T']}, {job['device']}"
