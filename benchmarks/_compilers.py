"""The compilers of TPU and GPU on a machine that has neither: described devices, and what a compiled program says.

A compiler comes as a Python package: libtpu, and the CUDA plugin of JAX with ptxas. `jax.experimental.topologies`
describes devices by name, and programs are compiled for them and never run. Environment variables must be set before
JAX is imported, so that each platform has a process of its own (`environment`).
"""

import importlib.metadata
import importlib.util
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

PLATFORMS = ("tpu", "cuda")
PACKAGES = {"tpu": ["libtpu"], "cuda": ["jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12"]}
TOPOLOGIES: dict[str, dict[int, str]] = {
    "TPU v5e": {1: "v5e:2x2", 8: "v5e:2x4", 64: "v5e:8x8", 256: "v5e:16x16"},
    "TPU v5p": {1: "v5p:2x2x1", 8: "v5p:2x2x2", 64: "v5p:4x4x4", 512: "v5p:8x8x8"},
    "TPU v6e": {1: "v6e:2x2", 8: "v6e:2x4", 64: "v6e:8x8", 256: "v6e:16x16"},
    "H200": {1: "1x1x1", 8: "1x1x8", 64: "1x8x8"},
}
"""Of each device, the name of a topology that has so many. Of the first, one device alone is used."""
H200 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }  device_memory_size: 151397597184  memory_bandwidth: 4800000000000
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98  l2_cache_size: 52428800
  threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  registers_per_block_limit: 65536  registers_per_core_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448  shared_memory_per_core: 233472
}
platform_name: "CUDA"  dnn_version_info { major: 9 minor: 10 }  runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H200 141GB HBM3e"
"""
"""What the CUDA driver reports of an H200, which the compiler asks for its limits."""
CUDNN = 91000
"""The version of cuDNN in that report, as the library itself would say it. It need not be installed: its calls stay
calls in a compiled program, and are made into kernels where they run."""


def least_effort() -> dict[str, Any]:
    """Compiles in a third of the time, with less effort for the speed and memory of what is compiled."""
    import jax

    by_number = hasattr(jax.config, "jax_exec_time_optimization_effort")  # up to jax 0.11
    return {"exec_time_optimization_effort": -1.0} if by_number else {"optimization_level": "O1"}


def platform_of(device: str) -> str:
    return "cuda" if device == "H200" else "tpu"


def missing(platform: str) -> str:
    """Which package of a platform's compiler is not installed; empty if all are."""
    found = []
    for name in PACKAGES[platform]:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found.append(name)
    return f"{' and '.join(found)} cannot be had here" if found else ""


def requirements(platform: str) -> list[str]:
    """What pip must install for the JAX that is here: libtpu as its extra `tpu` pins it, the plugin as old as JAX."""
    if platform == "tpu":
        pinned = (re.match(r"libtpu[^;]*", line) for line in importlib.metadata.requires("jax") or ())
        return [found[0].strip() for found in pinned if found]
    jax = importlib.metadata.version("jax")
    return [name if name.startswith("nvidia") else f"{name}=={jax}" for name in PACKAGES[platform]]


def versions() -> dict[str, str]:
    """Of every compiler that is installed."""
    names = [name for platform in PLATFORMS if not missing(platform) for name in PACKAGES[platform]]
    return {name: importlib.metadata.version(name) for name in names}


def environment(platform: str) -> dict[str, str]:
    """The environment of a process that compiles for a platform, without a device of it."""
    quiet = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_ENABLE_COMPILATION_CACHE": "0"}
    more = os.environ | quiet
    if platform == "tpu":
        return more | {
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",
            "TPU_LIBRARY_PATH": str(_folder("libtpu") / "libtpu.so"),
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
    nvcc = _folder("nvidia") / "cuda_nvcc"
    flags = f"--xla_gpu_cuda_data_dir={nvcc} --xla_gpu_autotune_level=0"
    return more | {"XLA_FLAGS": flags, "PATH": os.pathsep.join([str(nvcc / "bin"), more.get("PATH", "")])}


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.submodule_search_locations
    return Path(next(iter(found.submodule_search_locations)))


def devices(device: str, n: int = 1) -> list[Any]:
    """n devices that are described and not there."""
    from jax.experimental import topologies

    more: dict[str, Any] = {"topology": TOPOLOGIES[device][n], "target_config": H200}
    if platform_of(device) == "tpu":
        more = {"topology_name": TOPOLOGIES[device][n]}
    return list(topologies.get_topology_desc(platform=platform_of(device), **more).devices)[: None if n > 1 else 1]


def described(device: str) -> AbstractContextManager[Any]:
    """Within it kernels are written for this device: JAX asks which cuDNN there is, and Pallas, from jax 0.11 on, which
    GPU."""
    from jax import sharding

    from jattn import _jax
    from jattn._jax import gpu_is_known

    _jax.cudnn.check_cudnn_version = lambda: CUDNN
    if device != "H200" or gpu_is_known():
        return nullcontext()
    gpu = sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    mesh = sharding.AbstractMesh((1,), ("one",), (sharding.AxisType.Auto,), abstract_device=gpu)
    return sharding.use_abstract_mesh(mesh)


PRODUCT = 512
"""Multiply-adds of a thread in the text of a kernel, below which there is no product of matrices among them: that of
the smallest tile is 2¹⁶ of them on 256 threads, and stands in each of two loops."""
OF_EXPONENTIAL = 6
"""So many others stand beside each exponential, of those of weights and of tanh: with an H200 3 to 5 did."""
_TENSOR_CORES = re.compile(r"\b(?:wgmma\.mma_async|mma)\.sync\b")


def on_tensor_cores(ptx: str) -> dict[str, bool]:
    """Of each kernel of attention in the assembly of a GPU, whether its products are all made on tensor cores."""
    found = {}
    for text in ptx.split(".entry ")[1:]:
        if (name := text.partition("(")[0]).startswith("jattn"):
            others = text.count("fma.rn.f32") - OF_EXPONENTIAL * text.count("ex2.approx")
            found[name] = bool(_TENSOR_CORES.search(text)) and others < PRODUCT
    return found


_SPILLED = re.compile(r"Compiling entry function '(\w+)'(?:.*\n)+?.*?(\d+) bytes spill stores")


def spilled(ptx: str) -> dict[str, int]:
    """Of each kernel of attention, how many bytes of a thread its registers cannot hold and memory does, says ptxas."""
    found = {}
    ptxas = str(_folder("nvidia") / "cuda_nvcc" / "bin" / "ptxas")
    for module in re.split(r"(?m)^(?=\.version)", ptx):
        if ".entry jattn" in module:
            (target,) = re.findall(r"(?m)^\.target (\w+)", module)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "module.ptx"
                path.write_text(module)
                command = [ptxas, "-v", f"-arch={target}", str(path), "-o", str(path.with_suffix(".cubin"))]
                said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
            found |= {name: int(n) for name, n in _SPILLED.findall(said) if name.startswith("jattn")}
    return found


class Compiled(NamedTuple):
    """What a compiler said of one program."""

    seconds: float
    temporaries: int
    """Bytes on one device, beyond arguments and results."""
    float64: bool
    text: str
    program: int
    """Bytes of the program itself, constants included."""
    ptx: str
    """The assembly of a program of a GPU, where it is asked for."""


def compile_for(
    platform: str, f: Callable[..., Any], *args: Any, options: Any = None, ptx: bool = False, **jit: Any
) -> Compiled:
    """Traces, lowers and compiles f for arguments that lie on described devices; `ptx` asks for the assembly too."""
    import jax

    start = time.perf_counter()
    lowered = jax.jit(f, **jit).trace(*args).lower(lowering_platforms=(platform,))
    with tempfile.TemporaryDirectory() as folder:
        compiled = lowered.compile((options or {}) | ({"xla_dump_to": folder} if ptx else {}))
        assembly = "".join(path.read_text() for path in sorted(Path(folder).glob("*.ptx")))
    text, memory = compiled.as_text(), compiled.memory_analysis()
    return Compiled(
        time.perf_counter() - start,
        memory.temp_size_in_bytes,
        "f64[" in text,
        text,
        memory.generated_code_size_in_bytes,
        assembly,
    )


def reason(error: BaseException) -> str:
    """The compiler's own reason, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = lines[0] if lines else ""
    return f"{type(error).__name__}: {line}"[:240]


KERNELS = (
    'custom_call_target="tpu_custom_call"',
    'custom_call_target="__gpu$xla.gpu.triton"',
    'custom_call_target="__cudnn$fmha',
)


def kernels(text: str) -> int:
    """How many kernels a compiled program holds, and calls of cuDNN's attention."""
    return sum(map(text.count, KERNELS))


# What many devices send, read from the compiled text.

KINDS = ("collective-permute", "all-to-all", "all-gather", "all-reduce", "reduce-scatter")
_SHAPE = re.compile(r"(?P<type>pred|[a-z]+)(?P<bits>\d*)\[(?P<shape>[\d,]*)\]")
_LINE = re.compile(
    r"^\s+(?:ROOT )?%(?P<name>[\w.\-]+) = (?P<result>.*?) (?P<op>[a-z][a-z\-]*)\((?P<operands>[^)]*)\)(?P<rest>.*)$"
)
_CALLED = re.compile(r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")


class Sent(NamedTuple):
    """Of one kind of collective: how many, several arrays of one permute or gather counted each; and the bytes that
    one device sends at least."""

    arrays: int
    bytes: int


class Collectives(NamedTuple):
    kinds: dict[str, Sent]
    overlapped: int
    """Of the collective-permutes in the text, how many have a loop or a kernel between their start and their end."""
    permutes: int


def collectives(text: str, least: int = 16) -> Collectives:
    """What a compiled program sends: a loop's body counts by its trips; arrays of fewer bytes than `least` do not.

    The bytes are those of the operands: all of them (collective-permute), (n − 1)/n of them (all-to-all,
    reduce-scatter), n − 1 times them (all-gather) or 2(n − 1)/n of them (all-reduce), n being the devices of a group.
    """
    bodies, entry = _bodies(text)
    total: dict[str, list[float]] = {}
    overlap = [0, 0]

    def visit(name: str, times: int) -> None:
        lines, shapes = bodies[name]
        for i, line in enumerate(lines):
            kind = line["op"].removesuffix("-start")
            if kind == "all-reduce" and name.startswith("all-reduce-scatter"):  # a fusion of the TPU
                kind = "reduce-scatter"
            if kind in KINDS:
                n = _group(line["rest"])
                share = {"all-to-all": (n - 1) / n, "all-gather": n - 1, "all-reduce": 2 * (n - 1) / n,
                         "reduce-scatter": (n - 1) / n}.get(kind, 1.0)  # fmt: skip
                sizes = []
                for operand in re.findall(r"%([\w.\-]+)", line["operands"]):
                    size = _bytes(shapes[operand])
                    if size >= least:
                        sizes.append(size * share)
                if sizes:
                    found = total.setdefault(kind, [0, 0.0])
                    found[0] += times * (1 if kind == "all-reduce" else len(sizes))
                    found[1] += times * sum(sizes)
            if line["op"] == "collective-permute-start":
                ends = [j for j, other in enumerate(lines) if f"%{line['name']}" in other["operands"]]
                overlap[0] += any(map(_attends, lines[i : max(ends, default=i)]))
            overlap[1] += kind == "collective-permute"
            trips = _trips(line, bodies) if line["op"] == "while" else 1
            for called in _CALLED.findall(line["rest"]):
                if called in bodies:
                    visit(called, times * trips)

    visit(entry, 1)
    return Collectives({kind: Sent(int(n), round(size)) for kind, (n, size) in total.items()}, *overlap)


def _attends(line: Any) -> bool:
    """Whether a line is a loop over tiles, or a kernel."""
    return line["op"] in ("while", "call", "conditional") or kernels(line["rest"]) > 0


def _bodies(text: str) -> tuple[dict[str, Any], str]:
    """Of each computation its lines and the shapes of what they name, in the order of the schedule; and the entry."""
    bodies: dict[str, Any] = {}
    entry, here = "", None
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")):
            name = line.split()[line.startswith("ENTRY")].lstrip("%")
            entry = name if line.startswith("ENTRY") else entry
            here = bodies.setdefault(name, ([], {}))
        elif here is not None and (found := _LINE.match(re.sub(r"/\*.*?\*/", "", line))):
            here[0].append(found)
            here[1][found["name"]] = found["result"]
    return bodies, entry


def _trips(line: Any, bodies: dict[str, Any]) -> int:
    """How often a loop runs: as the compiler says, or as its condition does, `counter < constant`; once if neither."""
    if known := re.search(r'known_trip_count":\{"n":"(\d+)"', line["rest"]):
        return int(known[1])
    condition = re.search(r"condition=%?([\w.\-]+)", line["rest"])
    for other in bodies[condition[1]][0] if condition else ():
        if other["op"] == "constant" and other["result"].startswith("s32[]") and "constant(" in other.string:
            return int(re.search(r"constant\((-?\d+)\)", other.string)[1])  # type: ignore[index]
    return 1


def _group(rest: str) -> int:
    """How many devices take part in one collective together."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", rest):
        return len(listed[1].split(","))
    if named := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", rest):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    counted = re.search(r"replica_groups=\[\d+,(\d+)\]", rest)
    return int(counted[1]) if counted else 1


def _bytes(shape: str) -> int:
    found = _SHAPE.search(shape)
    assert found is not None, shape
    numbers = math.prod(int(n) for n in found["shape"].split(",") if n)
    return numbers * (int(found["bits"] or 8) // 8)


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
