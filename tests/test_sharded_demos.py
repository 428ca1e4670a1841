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

pytestmark = pytest.mark.structure
DEMOS = Path(__file__).parent.parent / "demos"
sys.path.insert(0, str(DEMOS))
cli, sweep = importlib.import_module("_cli"), importlib.import_module("sweep")
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
