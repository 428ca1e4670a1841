"""What `make compile` compiles and how it judges; nothing is compiled for a device here."""

import json
import os
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jattn
from jattn import sharding

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import _compilers as compilers
import _many_devices
import _selection
import _verdicts
import _ways
import how_long_is_a_tile_on_a_tpu as tile_on_a_tpu
import what_compiles

LENGTHS = _selection.LENGTHS
NAMES = [way.name for way in _ways.WAYS]
KERNELS = [way.name for way in _ways.KERNELS]
GPU_KERNELS = [way.name for way in _ways.GPU_KERNELS]
TPU_KERNELS = [way.name for way in _ways.TPU_KERNELS]
CUDNN = [way.name for way in _ways.CUDNN]
WAYS = NAMES, KERNELS, GPU_KERNELS, TPU_KERNELS, CUDNN


@pytest.mark.parametrize("module", ["masks", "scores", "heads", "cache"])
def test_every_public_name_has_a_row_or_is_named_as_no_way(module):
    public = set(getattr(jattn, module).__all__)
    rows = set(re.findall(rf"{module}\.(\w+)", " ".join(way.uses for way in _ways.WAYS)))
    none = set(_ways.NO_WAY[module].split())
    assert rows | none == public
    assert not rows & none


def test_each_row_is_one_and_names_what_there_is():
    assert len(set(NAMES)) == len(NAMES)
    options = " ".join(NAMES)
    for word in ("lse", "bias", "sink", "scale", "dropout", "positions", "grouped", "append", "decode", "prefill"):
        assert word in options


@pytest.mark.parametrize("way", _ways.WAYS[::7], ids=lambda way: way.name)
def test_a_way_has_every_derivative_and_no_float64(way):
    f, active, rest = way.make(256, jnp.bfloat16)
    for derivative in _ways.derivatives(f).values():
        for x in jax.tree.leaves(jax.eval_shape(derivative, active, rest)):
            assert x.dtype != jnp.float64


@pytest.mark.parametrize("way", [_ways.KERNELS[1], _ways.CUDNN[1]], ids=["kernel", "cudnn, and lse"])
def test_rows_of_the_jacobian_are_the_value_and_a_cotangent_of_each_operand_twice(way):
    f, active, rest = way.make(256, jnp.bfloat16)
    out, rows = jax.eval_shape(_ways.rows_of_the_jacobian(f), active, rest)
    assert jax.tree.map(jnp.shape, out) == jax.tree.map(jnp.shape, jax.eval_shape(f, active, rest))
    (cotangents,) = rows
    assert [x.shape for x in cotangents] == [(2, *x.shape) for x in active]


def test_the_quick_selection_holds_every_way_and_every_triple():
    quick = [job for job in _selection.chosen(*WAYS, _ways.DERIVATIVES, False) if job["section"] == "ways"]
    for tpu in (True, False):
        some = [job for job in quick if (job["device"] != "H200") == tpu]
        assert {job["way"] for job in some} == set(NAMES)
        triples = {(job["derivative"], job["device"], job["dtype"]) for job in some}
        assert len(triples) == 5 * 2 * (3 if tpu else 1)
    assert len({_selection.title(job) for job in quick}) == len(quick)


def test_the_whole_selection_is_every_way_derivative_and_device():
    whole = [job for job in _selection.chosen(*WAYS, _ways.DERIVATIVES, True) if job["section"] == "ways"]
    assert len(whole) == len(NAMES) * len(_ways.DERIVATIVES) * len(compilers.TOPOLOGIES)


def test_what_asks_for_kernels_is_compiled_for_each_kind_of_device():
    quick, whole = (
        [job for job in _selection.chosen(*WAYS, _ways.DERIVATIVES, x) if job["section"] == "kernels"]
        for x in (False, True)
    )
    tpus = len(compilers.TOPOLOGIES) - 1
    assert len(whole) == 4 * (len(KERNELS + GPU_KERNELS) + tpus * len(KERNELS + TPU_KERNELS))
    assert [job["way"] for job in quick if job["device"] == "H200"] == KERNELS + GPU_KERNELS
    assert [job["way"] for job in quick if job["device"] != "H200"] == KERNELS + TPU_KERNELS
    assert {job["device"] for job in quick} == set(compilers.TOPOLOGIES)
    assert {job["derivative"] for job in quick} == set(_selection.HOLDS)
    assert compilers.kernels(TEXT) == 0
    assert compilers.kernels(f"{TEXT}  %a = f32[] custom-call(%b), {compilers.KERNELS[0]}\n" * 2) == 2


def test_the_assembly_of_a_kernel_of_a_gpu_is_asked_for(monkeypatch):
    given = []

    def compile_for(platform, f, *args, options=None, ptx=False):
        given.append((options, ptx))
        return compilers.Compiled(0.0, 0, False, TEXT, 0, PTX if ptx else "")

    monkeypatch.setattr(compilers, "compile_for", compile_for)
    monkeypatch.setattr(compilers, "spilled", lambda ptx: {"jattn_forward": len(ptx)})
    jobs = [("kernels", "H200"), ("kernels", "TPU v5e"), ("ways", "H200")]
    found = [what_compiles.facts({"section": x, "device": y, "fast": False}, None)[0] for x, y in jobs]
    assert given == [({}, True), ({}, False), ({}, False)]
    assert [x.get("on_tensor_cores") for x in found] == [1, None, None]
    assert [x.get("spilled") for x in found] == [{"jattn_forward": len(PTX)}, None, None]


def test_what_registers_cannot_hold_is_read_from_the_report_of_ptxas(monkeypatch, tmp_path):
    """Of each module by itself, for the device that it names, and of kernels of attention alone."""
    ptxas = tmp_path / "cuda_nvcc" / "bin" / "ptxas"
    ptxas.parent.mkdir(parents=True)
    ptxas.write_text("""#!/bin/sh
grep -q sm_90a "$3" || exit 1
for name in $(sed -n 's/.*entry \\([a-z_]*\\).*/\\1/p' "$3"); do
  echo "ptxas info    : Compiling entry function '$name' for 'sm_90a'" >&2
  echo "ptxas info    : Function properties for $name" >&2
  echo "    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads" >&2
done
""")
    ptxas.chmod(0o755)
    monkeypatch.setattr(compilers, "_folder", lambda package: tmp_path)
    modules = [
        f".version 8.8\n.target {target}\n{text}" for target, text in (("sm_90a", PTX), ("sm_80", "// nothing\n"))
    ]
    assert compilers.spilled("".join(modules)) == {"jattn_forward": 12}


PTX = """\
.visible .entry jattn_forward(.param .u64 .ptr) {
  wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%r1}, %rd1, %rd2;
  fma.rn.f32 %r2, %r3, %r4, %r5;
}
.visible .entry loop_add_fusion(.param .u64 .ptr) {
  fma.rn.f32 %r2, %r3, %r4, %r5;
}
"""


def test_a_product_beside_the_tensor_cores_is_seen_in_the_assembly():
    assert compilers.on_tensor_cores(PTX) == {"jattn_forward": True}
    some = PTX.replace(
        "  fma.rn.f32 %r2", "  fma.rn.f32 %r2, %r3, %r4, %r5;\n" * compilers.PRODUCT + "  fma.rn.f32 %r2"
    )
    assert compilers.on_tensor_cores(some) == {"jattn_forward": False}
    of_tanh = some.replace("  wgmma", "  ex2.approx.ftz.f32 %r6, %r7;\n" * (compilers.PRODUCT // 5) + "  wgmma", 1)
    assert compilers.on_tensor_cores(of_tanh) == {"jattn_forward": True}
    none = PTX.replace("wgmma.mma_async.sync", "wgmma.fence.sync")
    assert compilers.on_tensor_cores(none) == {"jattn_forward": False}


def test_cudnn_is_asked_for_each_way_and_counted():
    quick, whole = (
        [job for job in _selection.chosen(*WAYS, _ways.DERIVATIVES, x) if job["section"] == "cudnn"]
        for x in (False, True)
    )
    assert len(whole) == 4 * len(CUDNN)
    assert [job["way"] for job in quick] == CUDNN
    assert {job["derivative"] for job in quick} == set(_selection.CUDNN_HOLDS)
    of_lse = {job["derivative"]: _selection.held(job) for job in whole if "lse" in job["way"]}
    assert of_lse == {"value": 1, "gradient": 4, "jvp": 1, _selection.ROWS: 5}
    calls = ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward")
    assert compilers.kernels("".join(f'custom_call_target="{call}"' for call in calls)) == 2


TEXT = """\
HloModule jit_f, is_scheduled=true

%body (p: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %p = (s32[], bf16[8,4]{1,0}) parameter(0)
  %x = bf16[8,4]{1,0:T(8,128)(2,1)} get-tuple-element(%p), index=1
  %start = (bf16[8,4]{1,0}, bf16[8,4]{1,0}, u32[]) collective-permute-start(%x), source_target_pairs={{0,1},{1,0}}
  %tiles = bf16[8,4]{1,0} while(%x), condition=%twice, body=%empty
  %done = bf16[8,4]{1,0} collective-permute-done(%start)
  ROOT %t = (s32[], bf16[8,4]{1,0}) tuple(%p, %done)
}

%twice (c: s32[]) -> pred[] {
  %c = s32[] parameter(0)
  %most = s32[]{:T(128)} constant(2)
  ROOT %lt = pred[] compare(%c, %most), direction=LT
}

%seven (c: s32[]) -> pred[] {
  %c = s32[] parameter(0)
  %most = s32[] constant(7)
  ROOT %lt = pred[] compare(%c, %most), direction=LT
}

%empty (e: bf16[8,4]) -> bf16[8,4] {
  ROOT %e = bf16[8,4]{1,0} parameter(0)
}

%all-reduce-scatter (i: f32[16]) -> f32[2] {
  %i = f32[16]{0} parameter(0)
  %sum = f32[16]{0} all-reduce(%i), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%empty
  ROOT %cut = f32[2]{0} dynamic-slice(%sum, %i), dynamic_slice_sizes={2}
}

ENTRY %main (a: bf16[8,4], b: f32[16]) -> f32[] {
  %a = bf16[8,4]{1,0} parameter(0)
  %b = f32[16]{0} parameter(1)
  %loop = (s32[], bf16[8,4]{1,0}) while(%a), condition=%seven, body=%body
  %all = (bf16[16,4]{1,0}, f32[32]{0}) all-gather(%a, %b), replica_groups=[4,2]<=[8], dimensions={0}
  %heads = f32[16]{0} all-to-all(%b), replica_groups=mesh['x'=2,'y'=4] {'y'}, dimensions={0}
  %part = f32[2]{0} fusion(%b), kind=kCustom, calls=%all-reduce-scatter
  ROOT %loss = f32[] all-reduce(%b0), replica_groups={{0,1}}, to_apply=%empty
  %b0 = f32[] constant(0)
}
"""


def test_collectives_are_read_from_the_text():
    found = compilers.collectives(TEXT)
    assert found.kinds == {
        "collective-permute": (7, 7 * 64),
        "all-gather": (2, 64 + 64),
        "all-to-all": (1, 48),
        "reduce-scatter": (1, 56),
    }
    assert (found.overlapped, found.permutes) == (1, 1)
    kernel = TEXT.replace(
        "while(%x), condition=%twice, body=%empty", 'custom-call(%x), custom_call_target="tpu_custom_call"'
    )
    assert compilers.collectives(kernel).overlapped == 1
    late = TEXT.replace("while(%x), condition=%twice, body=%empty", "copy(%x)")
    assert compilers.collectives(late).overlapped == 0


def row(**of):
    job = {"device": "TPU v5e", "way": "one head: full", "derivative": "value", "dtype": "float32", "T": 4096}
    found = {"refused": "", "seconds": 1.0, "temporaries": 2**20, "program": 0, "float64": False}
    return {"section": "ways"} | job | found | of


def of_devices(n, **of):
    more = {"section": "devices", "way": "ring", "mask": "causal", "layout": "zigzag", "devices": n, "sent": 8}
    found = {"planned": 8, "collectives": {"all-gather": 2}, "planned_collectives": {"all-gather": 2}}
    return row(**(more | found | {"permutes": 0, "overlapped": 0} | of))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(refused="RuntimeError: no")], "is refused by the compiler: RuntimeError: no"),
        ([row(float64=True)], "holds a float64"),
        ([row(section="kernels", derivative="gradient", kernels=0)], "holds 0 kernels, and not 3"),
        ([row(section="kernels", kernels=1, on_tensor_cores=0)], "0 kernels make every product on tensor cores"),
        (
            [row(section="kernels", kernels=1, spilled={"jattn_forward": 2000})],
            "a thread of jattn_forward spills 2,000 bytes of registers, more than 1,536",
        ),
        ([row(section="lengths", T=T, temporaries=T**2) for T in LENGTHS], r"not linear in T: T\^2\.00"),
        ([row(section="lengths", T=T, temporaries=T * T // 8) for T in LENGTHS], r"not linear in T: T\^2\.00"),
        ([row(section="lengths", way="jax.nn", T=T, temporaries=T) for T in (4096, 16384)], "the control is linear"),
        ([of_devices(8), of_devices(64, temporaries=2**21)], "2.00 times the temporaries"),
        ([of_devices(8, sent=9)], "sends 9 bytes, planned 8"),
        ([of_devices(8, collectives={"all-gather": 3})], "differs from the plan"),
        ([of_devices(n, way="gather", layout="contiguous") for n in (8, 64)], "is listed in _refused.py"),
    ],
)
def test_what_should_not_be_is_a_finding(rows, said):
    (finding,) = _verdicts.Verdict(rows, {}).findings
    assert re.search(said, finding)


def test_the_closing_line_counts_and_says_what_was_not_run():
    rows = [row(), row(way="one head: lse"), *(row(section="lengths", T=T, temporaries=T) for T in LENGTHS)]
    verdict = _verdicts.Verdict(
        [*rows, of_devices(8), of_devices(64)], {"cuda": "jax-cuda12-plugin cannot be had here"}
    )
    assert verdict.findings == []
    assert verdict.closing_line() == (
        "make compile: TPU v5e: 7 programs compile, 0 are refused by name, "
        "temporaries linear in T (1 of 1 that were fitted), "
        "2 of 2 programs of many devices send what plan says, to the byte; "
        "not run: cuda (jax-cuda12-plugin cannot be had here)"
    )
    nothing = _verdicts.Verdict([], {"tpu": "libtpu cannot be had here", "cuda": "x"})
    assert nothing.closing_line() == "make compile: not run: tpu (libtpu cannot be had here); not run: cuda (x)"


STUB = """
import json, os, signal, sys
for n, job in enumerate(json.load(sys.stdin)):
    if job["way"] == "aborts":
        os.kill(os.getpid(), signal.SIGABRT)
    print(json.dumps({"temporaries": n}), flush=True)
"""


def test_a_compiler_that_ends_its_process_has_refused_one_program(tmp_path, monkeypatch):
    stub = tmp_path / "stub.py"
    stub.write_text(STUB)
    monkeypatch.setattr(what_compiles, "__file__", str(stub))
    monkeypatch.setattr(compilers, "environment", lambda platform: dict(os.environ))
    jobs = [row(way=way, device="H200") for way in ("first", "aborts", "third")]
    first, second, third = what_compiles.run(jobs)
    assert (first, third) == ({"temporaries": 0},) * 2
    assert "SIGABRT" in second["refused"]
    answers = what_compiles.run(jobs)
    assert next(answers) == first
    answers.close()


def test_tables_say_that_nothing_was_run(tmp_path):
    verdict = _verdicts.Verdict(
        [row(), *(row(section="lengths", T=T, temporaries=T) for T in LENGTHS), of_devices(8)], {"cuda": "x"}
    )
    _verdicts.write_tables(tmp_path, verdict, {"libtpu": "1"})
    (page,) = tmp_path.glob("*.md")
    assert page.name == "what_compiles-tpu.md"
    assert "Compiled, not run" in page.read_text()
    assert len(json.loads(page.with_suffix(".json").read_text())["programs"]) == 5


def test_a_page_says_what_concerns_its_platform():
    rows = [of_devices(64, device=device, way="gather", layout="contiguous") for device in ("TPU v5p", "H200")]
    verdict = _verdicts.Verdict(rows, {})
    tpu, gpu = (_verdicts.page(verdict, platform, {}) for platform in ("tpu", "cuda"))
    for page in (tpu, gpu):
        assert "- grows (gather, *): " in page
    assert "- differs from plan (gather, * × TPU v5p): " in tpu
    assert "tensor cores" not in tpu
    assert "tensor cores" in gpu
    assert "TPU" not in gpu.replace("since a TPU holds what is short in its own memory", "")


def test_versions_are_those_that_jax_pins():
    (libtpu,) = compilers.requirements("tpu")
    assert re.fullmatch(r"libtpu==[\d.]+\*", libtpu)
    plugin, pjrt, ptxas = compilers.requirements("cuda")
    assert plugin.endswith(jax.__version__)
    assert pjrt.endswith(jax.__version__)
    assert ptxas == "nvidia-cuda-nvcc-cu12"


def test_many_devices_are_planned_by_the_same_names():
    for scheme in _many_devices.SCHEMES:
        for derivative in ("value", "gradient"):
            kinds, sent = _many_devices.planned(scheme, "TPU v5e", 64, "causal", "contiguous", derivative)
            assert kinds
            assert sent > 0


@pytest.mark.parametrize("sides", [(2, 4), (8, 8), (4, 4, 4), (8, 8, 8)])
def test_a_ring_goes_from_neighbour_to_neighbour(sides):
    order = _many_devices.around(sides)
    assert sorted(map(tuple, order)) == sorted(np.ndindex(*sides))
    steps = np.abs(np.roll(order, -1, 0) - order)
    assert (steps.sum(1) == 1).all()


def test_links_are_what_the_vendors_state():
    """Both ways over all links of a device: 1,600 Gbit/s of v5e are 200 GB/s one way."""
    assert {name: link.bandwidth for name, link in sharding.LINKS.items()} == {
        "TPU v5e": 50e9, "TPU v5p": 100e9, "TPU v6e": 100e9, "H200": 450e9
    }  # fmt: skip
    assert set(sharding.LINKS) == set(compilers.TOPOLOGIES)
    sizes = {"heads": 8, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "devices": 64, "flops_per_second": 1e16}
    slow, fast = (
        sharding.plan(2**16, 2**16, **sizes, bandwidth=sharding.LINKS[name].bandwidth).costs[0].seconds
        for name in ("TPU v5e", "H200")
    )
    assert slow == pytest.approx(9 * fast)


def test_the_forms_of_a_tile_are_read_from_what_the_compiler_schedules():
    """A region ends at a jump and where one may arrive; that of a tile has an exponential for each register."""
    exponential = "{ %v1 = vpow2.f32 %v0  ;;  %v2 = vadd.f32 %v0, %v0 }"
    n = tile_on_a_tpu.EXPONENTIALS
    bodies = ["{ nop }"] * 3, [exponential] * n + ["{ nop }"], ["{ nop }"] * 5, [exponential] * (2 * n), [exponential]
    lines, at = ["LB: loop body"], 0
    for body in bodies:
        lines += [f"  0x{at + i:x} {'PF' if i == 0 else '  '} : > {line} /* 0x7 */" for i, line in enumerate(body)]
        at += len(body)
    text = "\n".join(lines)
    assert [region.bundles for region in tile_on_a_tpu.regions(text)][1:-1] == [len(body) for body in bodies[:-1]]
    first, second = tile_on_a_tpu.tiles(text)
    assert (first.first, first.bundles, second.bundles) == (3, n + 1, 2 * n)
    used = [f"1 {4 if first.first <= i < first.first + n else 0} 9" for i in range(at)]
    said = "\n".join(["== CAPACITY:", "XLU, MXU, VLOAD:FILL", "    3     4     3", "== UTILIZATION:", *used])
    assert tile_on_a_tpu.filled(said, first) == n / (n + 1)
    assert tile_on_a_tpu.filled(said, second) == 0
