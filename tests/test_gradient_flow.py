"""The scenarios of gradient_flow.py: measured is predicted, and each place where the slogan fails."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from _children import environment
from matplotlib.image import imread
from rich.cells import cell_len
from scipy.optimize import linprog

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, demo, rules = (importlib.import_module(name) for name in ("_cli", "gradient_flow", "_flow_rules"))

# How far measured may be from predicted: the identities to rounding, the limits as far as the path went.
WITHIN = {
    "river": 1e-3, "money-frozen": 1e-3, "money-free": 1e-4, "shadowed": 1e-3, "inside": 1e-8, "interior": 1e-6,
    "output": 1e-5, "saturation": 0.13, "scale": 0.08, "optimisers": 5e-4, "balance": 3e-3, "tied": 1e-13,
}  # fmt: skip


def run(*argv):
    env = {k: v for k, v in environment().items() if k not in ("FORCE_COLOR", "COLUMNS", "NO_COLOR")}
    command = [sys.executable, "-W", "error", str(FOLDER / "gradient_flow.py"), *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=env, timeout=900, check=False)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every scenario, once, in this process, under strict promotion."""
    out = tmp_path_factory.mktemp("flow")
    return cli.evaluate(demo.compute, demo.arguments().parse_args(["--all", "--out", str(out)]))


def row(r, start):
    """(measured, predicted) of the row whose name begins so."""
    (found,) = ((a, b) for what, a, b in r["rows"] if what.startswith(start))
    return found


@pytest.mark.parametrize("name", demo.SCENARIOS)
def test_measured_is_predicted_and_every_identity_holds(name, results):
    r = results[name]
    for what, measured, predicted in r["rows"]:
        assert measured == pytest.approx(predicted, rel=WITHIN[name], abs=WITHIN[name]), what
    assert all(passed for *_, passed in r["checks"]), r["checks"]
    (file,) = r["pictures"]
    image = imread(file)
    assert min(image.shape[:2]) > 400
    assert image[..., :3].std() > 0.05


def test_toward_river_is_not_toward_k_river(results):
    r = results["river"]
    assert r["cos"][0] == 1
    assert r["cos"][-1] < 0.993
    assert row(r, "steps in which")[0] == 0  # plain descent: it never rises
    assert row(r, "p of the target")[0] == pytest.approx(1, abs=1e-15)


def test_money_is_learned_by_turning_away_and_cured_by_letting_the_keys_learn(results):
    frozen, free = results["money-frozen"], results["money-free"]
    high, most, low, least = frozen["extremes"]
    assert (high, low) == (4, 22)
    assert most == pytest.approx(0.990, abs=1e-3)
    assert least == pytest.approx(-0.706, abs=1e-3)
    assert row(frozen, "first pull")[0] < -0.04
    assert row(frozen, "cos(q, k_target)")[0] < 0.54 < row(frozen, "cos(q, k_money) before")[0]
    assert free["cos"][-1] > 0.9999
    assert min(free["cos"]) == free["cos"][0]


def test_a_shadowed_key_is_attended_from_behind(results):
    r = results["shadowed"]
    assert row(r, "p of the target")[0] > 0.999999
    assert row(r, "cos(q, k_target)")[0] < -0.2


def test_inside_the_hull_attention_has_a_ceiling(results):
    r = results["inside"]
    assert row(r, "p of the target")[0] < 0.26
    assert row(r, "largest p over 1,000 starts")[0] <= row(r, "p of the target")[1] + 1e-12


def test_40_20_40_is_reached(results):
    r = results["interior"]
    np.testing.assert_allclose([row(r, f"p of {w}")[0] for w in ("river", "money", "the")], [0.4, 0.2, 0.4], atol=1e-9)


def test_a_perfect_output_can_cost_the_attention(results):
    r = results["output"]
    assert row(r, "loss at the end")[0] < 1e-20
    assert r["p"][0] == pytest.approx(1 / 3)
    assert r["p"][-1] < 0.14
    assert row(r, "dp_r/dt")[0] < -0.1


def test_saturation_kills_the_output_loss_and_the_plain_rule(results):
    r = results["saturation"]
    assert row(r, "dL/ds at gap −20, output")[0] < 1e-8 < 0.99 < row(r, "dL/ds at gap −20, cross")[0]
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        assert row(r, f"dies at the gap, {dtype}, jattn")[0] > 2 * row(r, f"dies at the gap, {dtype}, jax.nn")[0]


def test_dividing_by_d_keeps_ds_and_loses_dq_and_selection(results):
    found = results["scale"]["found"]
    assert found["d"]["ds"] > 0.9 * found["√d"]["ds"]
    assert found["d"]["dq"] < 0.15 * found["√d"]["dq"]
    assert found["d"]["learned"] < 0.1 < 0.9 < found["√d"]["learned"]
    assert found["1"]["saturation"] > 0.7 > 0.1 > found["√d"]["saturation"]


def test_over_1_one_key_takes_most_of_the_weight_in_many_rows_and_not_in_each(results):
    """The shares are those of other draws, to their scatter, and the sentence says them."""
    r = results["scale"]
    draw = np.random.default_rng(0)
    scores = np.einsum("nd,nsd->ns", draw.normal(size=(20000, 64)), draw.normal(size=(20000, 16, 64)))
    for name, c in (("1", 1), ("√d", 64**-0.5)):
        largest = 1 / np.exp(c * (scores - scores.max(1, keepdims=True))).sum(1)
        for least, share in zip((0.9, 0.99), r["largest"][name], strict=True):
            p = (largest > least).mean()
            assert share == pytest.approx(p, abs=5 * (max(p * (1 - p), 1e-4) / 2000) ** 0.5)
    assert r["largest"]["1"][1] < 0.5
    assert "each row is one-hot" not in r["says"]
    assert f"more than 0.9 of the weight in {r['largest']['1'][0]:.0%} of the rows" in r["says"]


def test_sign_descent_and_adam_end_elsewhere(results):
    corner = results["optimisers"]["corner"]
    assert min(corner["sign descent"], corner["Adam"]) > 0.999
    assert max(corner["SGD"], corner["momentum"]) < 0.8
    for seed in range(20):  # the l∞ direction, against a linear program
        k = np.random.default_rng(seed).normal(size=(4, 2))
        u, d = rules.widest_linf(k, 0), k[0] - k[1:]
        best = linprog([0, 0, -1], np.c_[-d, np.ones(3)], np.zeros(3), bounds=[(-1, 1), (-1, 1), (None, None)])
        if best.x[2] > 0:
            assert (d @ u).min() == pytest.approx(best.x[2], abs=1e-9)
            assert abs(u).max() == pytest.approx(1)


def test_momentum_and_adam_do_not_keep_the_balance(results):
    for moved, said in results["balance"]["breaks"].values():
        assert abs(moved) > 10 * abs(said)


def test_the_page_says_where_the_slogan_fails_and_fits_80_columns(results):
    paper = cli.console()
    with paper.capture() as captured:
        demo.show(paper, results)
    page = captured.get()
    assert max(cell_len(line) for line in page.splitlines() if not line.startswith("Picture")) <= 80
    assert "nan" not in page.lower().split()
    for what in ("turning away from it", "identities hold", "Attention to it cannot exceed 0.2594", "38 degrees away"):
        assert what in " ".join(page.split())


def test_a_scenario_runs_as_a_reader_runs_it(tmp_path):
    made = run("tied", "--json", "--out", tmp_path / "new")
    assert (made.returncode, made.stderr) == (0, "")
    assert set(json.loads(made.stdout)) == {"tied"}
    assert os.listdir(tmp_path / "new") == ["flow_tied.png"]


def test_list_names_every_scenario_and_another_name_is_one_line(tmp_path):
    with jax.enable_x64(True):
        listed = demo.compute(demo.arguments().parse_args(["--list"]))
    assert list(listed["list"]) == list(demo.SCENARIOS) == list(WITHIN)
    refused = {
        "a scenario must be named": [], "bank: is no scenario": ["bank"], "river and --all: one of": ["river", "--all"],
        "tied and --list: one of": ["tied", "--list"], "--list and --all: one of": ["--all", "--list"],
    }  # fmt: skip
    for what, argv in refused.items():
        with pytest.raises(cli.BadInput, match=what):
            demo.compute(demo.arguments().parse_args([*argv, "--out", str(tmp_path)]))
    (tmp_path / "file").write_text("")
    with pytest.raises(cli.BadInput, match="--out"), jax.enable_x64(True):
        demo.compute(demo.arguments().parse_args(["tied", "--out", str(tmp_path / "file")]))
