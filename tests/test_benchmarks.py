"""The benchmarks run, say what they must, and time only what equals the definition. No speed is asserted."""

import importlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from _children import environment

import jattn

pytestmark = pytest.mark.structure
FOLDER = Path(__file__).parents[1] / "benchmarks"
FAST, MEMORY, WORK = "how_fast_is_attention", "how_much_memory", "how_much_work_is_skipped"
DECODING, DETERMINISM = "how_fast_is_decoding", "what_determinism_costs"
CLOSE, LAPLACIAN = "how_close_to_the_bare_tiles", "how_much_is_a_laplacian"
GPU = "how_fast_is_attention_on_a_gpu"

# Runs benchmarks one after another, as Python runs a script: for each its arguments, what it said and its status.
# Those after a "planted" find every result of ours a thousandth too large. A turn is short, and so is the product that
# says what the machine can do: no speed is asserted.
RUNS = """
import contextlib, functools, io, json, os, runpy, sys, jattn
sys.path.insert(0, sys.argv[1])
import _measure
_measure.side_by_side = functools.partial(_measure.side_by_side, turn=0.002)
_measure.product = functools.partial(_measure.product, 256)
found = []
for call in json.loads(sys.argv[2]):
    if call == ["planted"]:
        for where, name in ((jattn, "attention"), (jattn, "dot_product_attention"), (jattn.cache, "attention")):
            right = getattr(where, name)
            setattr(where, name, lambda *x, right=right, **how: 1.001 * right(*x, **how))
        continue
    sys.argv = call
    out, said, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            status = end.code or 0
            if isinstance(status, str):
                print(status, file=sys.stderr)
                status = 1
    found.append((status, out.getvalue(), said.getvalue()))
print(json.dumps(found), flush=True)
os._exit(0)  # nothing is left to do but to take the libraries down
"""
SMALL = {
    FAST: ("--only", "8,8,64,64", "--rounds", 1),
    WORK: ("--only", "chunked", "--rounds", 1),
    DECODING: ("--rounds", 1),
    DETERMINISM: ("--rounds", 1),
    CLOSE: ("--rounds", 1),
    LAPLACIAN: ("--rounds", 1),
    GPU: ("--rounds", 1),
}


def run(*command, **how):
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=900, check=False, **how
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of each kind, its folder and {benchmark: (its status, what it printed, its progress)}; all in one process."""
    planted = {name: how for name, how in SMALL.items() if name != GPU}  # a thousandth is less than bfloat16 shows
    wanted = {"right": SMALL, "planted": planted | {WORK: (), MEMORY: ()}}
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in wanted}

    def calls(kind):
        for name, more in wanted[kind].items():
            yield [str(x) for x in (FOLDER / f"{name}.py", "--quick", *more, "--out", folders[kind] / name)]

    given = json.dumps([*calls("right"), ["planted"], *calls("planted")])
    status, out, said = run("-c", RUNS, FOLDER, given, env=environment())
    assert status == 0, said
    found = iter(json.loads(out))
    return {kind: (folders[kind], {name: next(found) for name in wanted[kind]}) for kind in wanted}


@pytest.fixture
def right(runs):
    return runs["right"]


@pytest.fixture
def planted(runs):
    return runs["planted"]


def written(folder, name):
    (numbers,), (page,) = folder.glob(f"{name}-*.json"), folder.glob(f"{name}-*.md")
    return json.loads(numbers.read_text("utf-8")), page.read_text("utf-8")


def tables(page):
    """Each table as lists of cells, its heading first."""
    blocks = [b.splitlines() for b in page.split("\n\n") if b.startswith("| ")]
    return [[[c.strip() for c in line.strip("|").split("|")] for line in block] for block in blocks]


@pytest.mark.parametrize(
    ("name", "family", "known"),
    [
        ("AMD EPYC", 26, "AMD EPYC family 26"),  # as a virtual machine may call all of them
        ("AMD EPYC 9755 128-Core Processor", 26, "AMD EPYC 9755 128-Core"),
        ("Intel(R) Xeon(R) Processor @ 2.60GHz", 6, "Intel Xeon @ 2.60GHz"),
    ],
)
def test_a_processor_whose_name_tells_nothing_is_known_by_its_family(monkeypatch, name, family, known):
    monkeypatch.syspath_prepend(FOLDER)
    measure = importlib.import_module("_measure")
    monkeypatch.setattr(Path, "read_text", lambda path: f"cpu family\t: {family}\nmodel\t\t: 2\nmodel name\t: {name}\n")
    assert measure._model() == known


def test_the_header_has_the_version_of_a_checkout(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    measure = importlib.import_module("_measure")

    def version(name):
        if name == "jattn":
            raise importlib.metadata.PackageNotFoundError
        return "1.2.3"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = measure.header(["numpy"])
    assert (found["jattn"], found["jax"], found["numpy"]) == (jattn.__version__, "1.2.3", "1.2.3")


def test_how_fast_is_attention_writes_its_tables(right):
    folder, (status, out, progress) = right[0] / FAST, right[1][FAST]
    assert status == 0, progress
    said = [line.split()[0] for line in progress.splitlines()]
    assert said.index("time") > max(i for i, word in enumerate(said) if word == "equality")
    numbers, page = written(folder, FAST)
    assert page.strip() == out.strip()
    assert {"machine", "cores", "dtype", "date", "jax", "torch", "large matrix product"} <= set(numbers["header"])
    first, second, third = tables(page)
    assert len(first) == len(third) == 2 + len(numbers["rows"])
    assert len(second) == 2 + len(numbers["costs"])
    for row, cells in zip(numbers["rows"], first[2:], strict=True):
        assert len(cells) == len(first[0])
        assert row["milliseconds"]["jattn"]["median"] > 0
        said = dict(zip(first[0], cells, strict=True))["jax.nn"]
        word = "reached" if row["ratios"]["jax.nn"] >= row["floors"]["jax.nn"] else "short"
        assert said.endswith(f"≥ {row['floors']['jax.nn']:g} {word}")


def test_how_much_memory_writes_its_tables(tmp_path):
    """In a process of its own, which holds nothing else; with --all every program fully optimised, as users' are."""
    status, out, progress = run(FOLDER / f"{MEMORY}.py", "--quick", "--out", tmp_path, env=environment())
    assert status == 0, progress
    numbers, page = written(tmp_path, MEMORY)
    assert page.strip() == out.strip()
    first, second = tables(page)
    assert len(first) == 2 + len(numbers["growth"]) == 5
    assert all(row["dense_exponent"] > 1.5 > row["exponent"] for row in numbers["growth"])
    assert len(second) == 2 + len(numbers["longest"]) == 4
    assert [row[-1].split()[-1] for row in second[2:]] == ["equal", "equal"]


def test_how_much_work_is_skipped_writes_its_tables(right):
    folder, (status, out, progress) = right[0] / WORK, right[1][WORK]
    assert status == 0, progress
    numbers, page = written(folder, WORK)
    assert page.strip() == out.strip()
    first, _ = tables(page)
    assert [row["call"] for row in numbers["masks"]] == ["forward", "gradient"]
    assert all(row["share"] == 0.125 and row["milliseconds"]["masked"]["median"] > 0 for row in numbers["masks"])
    assert len(first) == 4
    assert numbers["memory"]["bytes"] > 0


def test_how_fast_is_decoding_writes_its_table(right):
    folder, (status, out, progress) = right[0] / DECODING, right[1][DECODING]
    assert status == 0, progress
    numbers, page = written(folder, DECODING)
    assert page.strip() == out.strip()
    (table,) = tables(page)
    assert {"jattn", "ring", "paged", "int8", "jax.nn", "cascade", "copies"} <= {cells[1] for cells in table}
    assert [row["ours"] for row in numbers["rows"]] == ["jattn", "cascade"]
    assert all(row["errors"][row["ours"]] < 1e-5 for row in numbers["rows"])


def test_how_fast_is_attention_on_a_gpu_writes_its_tables(right):
    """It runs on what JAX finds; where that is no GPU, cuDNN refuses, and a refusal is said and not timed."""
    folder, (status, out, progress) = right[0] / GPU, right[1][GPU]
    assert status == 0, progress
    numbers, page = written(folder, GPU)
    assert page.strip() == out.strip()
    ratios, times, errors = tables(page)
    assert len(ratios) == len(times) == 2 + len(numbers["rows"]) == 5
    for row in numbers["rows"]:
        assert {"jattn", "jattn loops", "jax.nn"} <= set(row["milliseconds"])
        assert set(row["ratios"]) == set(row["milliseconds"]) - {"jattn"}
        assert row["tflops"]["jattn"] > 0
        assert row["errors"]["jattn"] < 2.0**-6
    said = dict(zip(errors[0], errors[2], strict=True))
    assert jax.default_backend() == "gpu" or said["jattn cuDNN"].startswith(
        "refuses: dot_product_attention: implementation"
    )


def test_on_a_gpu_nothing_is_measured_where_a_result_differs(monkeypatch):
    """Of its value, of any gradient and of its tangent."""
    monkeypatch.syspath_prepend(FOLDER)
    measured = importlib.import_module(GPU)
    (case,) = measured.SMALL
    right = {
        which: [np.random.default_rng(i).random((case.T, 1, case.D)) for i in range(n)]
        for which, n in (("gradient", 4), ("jvp", 2))
    }
    monkeypatch.setattr(measured, "definition", lambda case: right)

    def contestant(factor=1.0, wrong=None):
        def results(which):
            factors = [factor if wrong in (None, (which, i)) else 1.0 for i in range(len(right[which]))]
            return [f * y[None].repeat(case.H, 2) for f, y in zip(factors, right[which], strict=True)]

        return measured.Contestant({which: lambda which=which: results(which) for which in right}, lambda _: None, list)

    who = {"jattn": contestant(1.01), "jax.nn": contestant(1.1)}
    assert measured.equality(case, who)["jax.nn"] == "differs by 1.0e-01"
    for wrong in (None, *((which, i) for which, ys in right.items() for i in range(len(ys)))):
        with pytest.raises(measured.Differs, match=r"jattn loops differs by 1.0e-01 of the float64 reference; nothing"):
            measured.equality(case, {"jattn": contestant(), "jattn loops": contestant(1.1, wrong)})


def test_what_determinism_costs_writes_its_table(right):
    folder, (status, out, progress) = right[0] / DETERMINISM, right[1][DETERMINISM]
    assert status == 0, progress
    numbers, page = written(folder, DETERMINISM)
    assert page.strip() == out.strip()
    assert [row["call"] for row in numbers["rows"]] == ["forward", "gradient"]
    assert all(row["milliseconds"]["by the rule"]["median"] > 0 for row in numbers["rows"])


def test_how_close_to_the_bare_tiles_writes_its_tables(right):
    folder, (status, out, progress) = right[0] / CLOSE, right[1][CLOSE]
    assert status == 0, progress
    numbers, page = written(folder, CLOSE)
    assert page.strip() == out.strip()
    ratios, _, first = tables(page)
    (row,) = numbers["rows"]
    assert max(row["errors"].values()) < 1e-5
    for cell, x in zip(ratios[2][1:], row["ratios"].values(), strict=True):
        assert cell == f"{x:.2f} ≤ {row['limit']:g} {'reached' if x <= row['limit'] else 'short'}"
    assert [cells[0] for cells in first[2:]] == ["jattn", "jax.nn"]


def test_how_much_is_a_laplacian_writes_its_tables(right):
    folder, (status, out, progress) = right[0] / LAPLACIAN, right[1][LAPLACIAN]
    assert status == 0, progress
    numbers, page = written(folder, LAPLACIAN)
    assert page.strip() == out.strip()
    memory, seconds = tables(page)
    (row,) = numbers["rows"]
    assert [cells[0] for cells in memory[2:]] == [cells[0] for cells in seconds[2:]] == list(row["bytes"])
    dense = row["bytes"]["trace of the Hessian"]
    assert all(row["bytes"][name] < dense / 10 for name in row["bytes"] if "jvp" in name)


@pytest.mark.parametrize("name", [FAST, MEMORY, WORK, DECODING, DETERMINISM, CLOSE, LAPLACIAN])
def test_nothing_is_measured_where_a_result_differs(planted, name):
    folder, (status, out, said) = planted[0] / name, planted[1][name]
    assert status == 1
    assert f"jattn differs by 1.0e-03 {'from the bare tiles' if name == CLOSE else 'of the float64 reference'}" in said
    assert out == ""
    assert not folder.exists()


def test_an_unknown_case_is_named():
    status, _, said = run(FOLDER / f"{FAST}.py", "--only", "777")
    assert status == 2
    assert "no case contains '777'; there are: 1,8,1024,64 full" in said


def test_the_longest_calls_are_checked_by_what_they_conserve(monkeypatch):
    """The control: one row of dv moved, or dk, is seen although no chosen query shows it."""
    monkeypatch.syspath_prepend(FOLDER)
    memory = __import__(MEMORY)
    rng = np.random.default_rng(0)
    x = list(rng.standard_normal((4, 1031, 64)).astype(np.float32))
    with memory.jax.enable_x64(True):
        f = memory.derivatives(memory.dense("causal"))["gradient"]
        q, k, v, w = (a.astype(np.float64) for a in x)
        right = [np.asarray(a) for a in f((q, k, v), w, None)]
    assert memory.rows_off("causal", x, right) < 1e-12
    for n in (2, 3):
        wrong = [a.copy() for a in right]
        wrong[n][7] *= 1.1
        assert memory.rows_off("causal", x, wrong) > memory.TOLERANCE
