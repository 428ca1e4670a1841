"""Runs over a mesh: equal to runs on one device, kept in shards, resumed on other devices after a kill."""

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from _children import environment
from _demos import refusal

pytestmark = pytest.mark.structure
DEMOS = Path(__file__).parent.parent / "demos"
sys.path.insert(0, str(DEMOS))
cli, sweep, mesh = map(importlib.import_module, ("_cli", "sweep", "train_on_a_mesh"))
FEW = ("--steps", 40, "--parts", 4)


def command(script, *arguments):
    return [sys.executable, str(DEMOS / script), *map(str, arguments)]


def numbers(script, *arguments):
    started = command(script, *arguments, "--json")
    done = subprocess.run(started, capture_output=True, text=True, timeout=240, env=environment())
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def here(*arguments):
    """What the sweep computes in this process, which has eight devices."""
    with jax.numpy_dtype_promotion("standard"):  # optax mixes floats and counts
        return cli.evaluate(sweep.compute, sweep.arguments().parse_args(list(map(str, arguments))))


def same(a, b):
    for name in ("before", "sum", "squares"):
        for optimiser in a[name]:
            np.testing.assert_allclose(a[name][optimiser], b[name][optimiser], rtol=1e-12)


def test_a_sharded_sweep_equals_one_device_and_goes_on_after_a_kill(tmp_path):
    one = here(*FEW, "--devices", 1)
    many = here(*FEW, "--devices", 8, "--picture", tmp_path / "sweep.png")
    assert (one["runs"], many["devices"], many["steps"]) == (4096, 8, 40)
    assert many["bytes_of_q_on_each_device"] == [many["bytes_of_q"] // 8]
    assert one["bytes_of_q_on_each_device"] == [many["bytes_of_q"]]
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    same(many, one)

    folder = tmp_path / "kept"
    killed = subprocess.Popen(
        command("sweep.py", *FEW, "--parts", 40, "--devices", 4, "--folder", folder),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not any(p.name.isdigit() for p in folder.glob("*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    resumed = numbers("sweep.py", *FEW, "--parts", 40, "--devices", 8, "--folder", folder)
    assert 0 < resumed["begun"] < resumed["steps"] == 40
    same(resumed, one)
    stopped = here(*FEW, "--stop-after", 1)  # the control: an earlier end is seen
    assert stopped["sum"] != one["sum"]


def test_a_language_model_trains_on_a_mesh_as_on_one_device():
    found = numbers("train_on_a_mesh.py", "--steps", 12)
    assert found["off"] <= 1e-5
    assert found["many"][-1] < found["many"][0] - 0.5


REFUSED = [
    (sweep, "--devices 3", "--devices 3: must divide 2048, as 1, 2, 4 and 8 do. Leave it out for 8."),
    (sweep, "--devices 0", "--devices 0: must divide 2048"),
    (sweep, "--devices 4096", "--devices 4096: must divide 2048"),
    (sweep, "--steps 0", "--steps 0: must be at least 1. Leave it out for 400."),
    (sweep, "--parts 0", "--parts 0: must be from 1 to --steps, here 400. Give one of these."),
    (sweep, "--parts 1000", "--parts 1000: must be from 1 to --steps, here 400. Give one of these."),
    (sweep, "--stop-after 0", "--stop-after 0: must be at least 1. Leave it out to run to the end."),
    (sweep, f"--folder {__file__}", "test_sharded_demos.py: is a file, or lies below one. Name a folder."),
    (mesh, "--data 3", "--data 3: must divide the batch of 4. Use one of 1, 2, 4."),
    (mesh, "--data 0", "--data 0: must divide the batch of 4. Use one of 1, 2, 4."),
    (mesh, "--seq 3", "--seq 3: twice as many must divide the 128 tokens, for zigzag order. Use one of 1, 2, 4, 8,"),
    (mesh, "--seq 128", "--seq 128: twice as many must divide the 128 tokens, for zigzag order."),
    (mesh, "--steps 0", "--steps 0: must be at least 1. Leave it out for 30."),
    (mesh, "--data 4 --seq 4", "--data 4 × --seq 4: need 16 devices of 8. Use fewer."),
]


@pytest.mark.parametrize(("demo", "argv", "message"), REFUSED, ids=[f"{d.__name__} {a}" for d, a, _ in REFUSED])
def test_what_cannot_be_run_is_refused_in_one_line(demo, argv, message, monkeypatch, capsys):
    assert message in refusal(demo, argv.split(), monkeypatch, capsys)


@pytest.mark.parametrize(("script", "argv"), [("sweep.py", "--devices 0"), ("train_on_a_mesh.py", "--data 0")])
def test_no_devices_as_the_reader_sees_it(script, argv):
    done = subprocess.run(
        command(script, *argv.split()), capture_output=True, text=True, timeout=240, env=environment()
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"{script}: {argv}: must divide")


def test_only_checkpoints_need_orbax(tmp_path, monkeypatch, capsys):
    for name in ("orbax", "orbax.checkpoint"):
        monkeypatch.setitem(sys.modules, name, None)
    said = refusal(sweep, ["--folder", str(tmp_path)], monkeypatch, capsys)
    assert said == "sweep.py: --folder needs orbax. Run: pip install 'jattn[train]', or leave --folder out.\n"
    assert here("--steps", 1, "--parts", 1)["steps"] == 1
