"""The demos that write a page: their descents against NumPy, their claims against their numbers, their refusals."""

import importlib
import json
import re
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from jattn import flow

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, bank, explore, recorder, which = (
    importlib.import_module(n) for n in ("_cli", "bank_page", "explore", "_record", "which_tiles")
)

Q, K, V = np.array([1.0, 0.0]), np.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]]), np.array([[2, 0], [0, 3], [0.1, 0.1]])


def data(file):
    """What a page holds."""
    text = Path(file).read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def compute(demo, *argv):
    return cli.evaluate(demo.compute, demo.arguments().parse_args([str(x) for x in argv]))


@pytest.mark.parametrize("moves", ["q", "q and K"])
@pytest.mark.parametrize("loss", ["weight", "output"])
def test_the_recorded_descent_is_the_one_that_numpy_takes(moves, loss, x64):
    rate, steps, target = 0.3, 40, 1
    output = {"values": V, "goal": V[0]} if loss == "output" else {}
    got = recorder.record(Q, K, target, moves=moves, rate=rate, steps=steps, frames=12, **output)
    q, k, ways = Q, K, []
    for _ in range(steps + 1):
        e = np.exp(k @ q / np.sqrt(2))
        p = e / e.sum()
        a = -V @ (p @ V - V[0]) if output else np.eye(3)[target] / p  # −dL/dp
        value = 0.5 * np.sum((p @ V - V[0]) ** 2) if output else -np.log(p[target])
        ways.append((q, k, p, value))
        ds = p * (a - p @ a) / np.sqrt(2)
        q, k = q + rate * ds @ k, k + (moves == "q and K") * rate * np.outer(ds, q)
    for name, i in (("q", 0), ("k", 1), ("weights", 2), ("loss", 3)):
        np.testing.assert_allclose(got[name], [ways[t][i] for t in got["steps"]], rtol=1e-12, atol=1e-14)
    assert got["steps"][0] == 0
    assert got["steps"][-1] == steps
    for predicted, measured in got["conserved"].values():
        np.testing.assert_allclose(predicted, measured, rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", range(3))
def test_the_widest_margin_is_what_an_optimiser_finds(seed, x64):
    k = np.random.default_rng(seed).normal(size=(5, 4))
    u, margin, _ = map(np.asarray, flow.max_margin(jnp.asarray(k), 2))
    z = k[2] - np.delete(k, 2, axis=0)
    rows = [{"type": "ineq", "fun": lambda w, r=row: w @ r - 1, "jac": lambda w, r=row: r} for row in z]
    best = minimize(lambda w: w @ w, u / margin + 0.1, jac=lambda w: 2 * w, constraints=rows, method="SLSQP", tol=1e-14)
    assert margin == pytest.approx(1 / np.sqrt(best.fun), rel=1e-6)
    assert (z @ u).min() == pytest.approx(margin, rel=1e-6)


def test_a_key_within_the_others_has_no_margin(x64):
    k = jnp.array([[0.1, 0.1], [1.0, 0.0], [-1.0, 0.5], [0.0, -1.0], [0.0, 1.0]])
    assert flow.max_margin(k, 0).margin == 0.0
    assert flow.max_margin(k, 1).margin > 0.1


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bank")
    return compute(bank, "--out", folder / "new" / "out")


def test_the_bank_page_holds_its_runs_and_says_where_it_is(results, capsys, monkeypatch):
    parts = data(results["page"])["parts"]
    runs = [part for part in parts if part["kind"] == "run"]
    assert [(r["loss"], r["optimiser"]) for r in runs] == [(x["loss"], x["learner"]) for x in results["runs"]]
    assert len(runs) == 12
    for part, told in zip(runs, results["runs"], strict=True):
        p = np.array(part["weights"])[:, part["target"]]
        np.testing.assert_allclose([p[0], p[-1]], told["ends"][:2])
        assert told["ends"][5] < 1e-9, "what theory conserves"
    assert all(Path(x).stat().st_size > 10_000 for x in results["pictures"])
    assert Path(results["page"]).stat().st_size == results["bytes"] < 320_000
    monkeypatch.setattr(sys, "argv", ["bank_page.py"])
    cli.run(bank.arguments(), lambda args: results, bank.show)
    shown = capsys.readouterr().out
    assert results["page"] in shown
    assert "…" not in shown.replace("cos max mar…", "")
    assert max(len(line) for line in shown.splitlines() if "age" not in line and "icture" not in line) <= 80


def test_what_the_bank_page_claims_is_so(results):
    ends = {(x["loss"], x["learner"]): x["ends"] for x in results["runs"]}
    assert ends["−log p_money", "gradient descent"][3] < 0.6, "q ends far from k_money"
    assert ends["−log p_money", "gradient descent, q and K"][3] > 0.999, "unless the keys move too"
    assert ends["−log p_river", "sign descent"][3] == pytest.approx(np.sqrt(0.5), abs=0.01), "the corner of a square"
    money = data(results["page"])["parts"][list(ends).index(("−log p_money", "gradient descent"))]
    assert min(money["series"]["cosines"]["k_money"]) < -0.7, "q turns away from money on the way"
    assert (np.diff(money["series"]["p"]["p"]) > 0).all(), "while its weight rises"
    e = np.exp(K @ Q / np.sqrt(2))
    pull = (K[0] - e @ K / e.sum()) / np.sqrt(2)
    np.testing.assert_allclose(results["pull"], pull, atol=1e-12)
    np.testing.assert_allclose(np.sum(results["pulls"], axis=0), pull, atol=1e-12)


def test_a_page_for_any_sentence(tmp_path):
    r = compute(explore, "--sentence", "the cat sees the mouse", "--query", "sees", "--target", "the(2)", "--steps", 30,
                "--out", tmp_path / "a.html")  # fmt: skip
    run, head, heads = data(r["page"])["parts"]
    assert run["labels"] == head["rows"] == heads["rows"] == ["the(1)", "cat", "sees", "the(2)", "mouse"]
    assert heads["shape"] == [2, 4, 5, 5]
    assert run["target"] == 3
    x = np.array(head["values"])
    np.testing.assert_array_equal(x[0], x[3])
    e = np.exp(x @ x[2] / np.sqrt(8))
    np.testing.assert_allclose(run["weights"][0], e / e.sum(), rtol=1e-12)
    np.testing.assert_allclose(r["pull"], (x[3] - e @ x / e.sum()) / np.sqrt(8), atol=1e-12)
    assert r["margin"] == 0.0, "the same word stands there twice"


def test_a_page_for_your_vectors_with_another_loss(tmp_path, capsys, monkeypatch):
    vectors = ["--word", "river=0.9,0.1", "--word", "bank=1,0.2", "--word", "money=0.1,0.8"]
    r = compute(explore, *vectors, "--query", "bank", "--target", "river", "--loss", "output", "--optimiser", "Adam",
                "--steps", 20, "--out", tmp_path / "b.html")  # fmt: skip
    run, head = data(r["page"])["parts"]
    assert run["goal"] == [0.9, 0.1]
    assert head["keys"] == [[0.9, 0.1], [1, 0.2], [0.1, 0.8]]
    assert run["optimiser"] == "Adam"
    assert not np.allclose(run["q"][0], run["q"][-1])
    monkeypatch.setattr(sys, "argv", ["explore.py"])
    cli.run(explore.arguments(), lambda args: r, explore.show)
    assert str(tmp_path / "b.html") in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["npz", "json", "npy"])
def test_a_page_for_a_saved_trajectory(kind, tmp_path):
    rng = np.random.default_rng(0)
    saved = {
        "q": rng.normal(size=(5, 3)),
        "k": rng.normal(size=(4, 3)),
        "loss": np.arange(5.0),
        "steps": np.arange(5) * 10,
    }
    saved |= {"weights": np.full((5, 4), 0.25), "labels": np.array(list("abcd"))}
    file = tmp_path / f"run.{kind}"
    if kind == "npz":
        np.savez(file, **saved)
    elif kind == "npy":
        recorder = flow.Recorder(file, at=10)
        for f in range(5):
            recorder(10 * f, q=saved["q"][f], k=saved["k"], weights=saved["weights"][f], loss=saved["loss"][f])
    else:
        file.write_text(json.dumps({name: x.tolist() for name, x in saved.items()}))
    (run,) = data(compute(explore, "--trajectory", file, "--out", tmp_path / "c.html")["page"])["parts"]
    np.testing.assert_array_equal(run["q"], saved["q"])
    assert run["labels"] == list("0123" if kind == "npy" else "abcd")
    assert run["steps"] == [0, 10, 20, 30, 40]
    assert run["series"]["loss"]["loss"] == [0, 1, 2, 3, 4]


def test_no_tile_that_holds_a_pair_is_left_out(tmp_path, capsys, monkeypatch):
    r = compute(which, "--out", tmp_path)
    t = np.arange(96)
    causal, back = t[:, None] >= t, t[:, None] - t
    pairs = [causal, causal & (back <= 30), abs(back) <= 20, causal & (t < 40)]
    for (name, x), allowed in zip(r["masks"].items(), pairs, strict=True):
        tiles = allowed.reshape(8, 12, 8, 12)
        assert x["pairs"] == pytest.approx(allowed.mean()), name
        np.testing.assert_array_equal(np.array(x["verdicts"]), tiles.any((1, 3)).astype(int) + tiles.all((1, 3)))
    assert [Path(p).name for p in r["pictures"]] == ["which_tiles.png", "which_tiles.svg"]
    monkeypatch.setattr(sys, "argv", ["which_tiles.py"])
    cli.run(which.arguments(), lambda args: r, which.show)
    assert "56% of the tiles are visited" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--query", "fish"], "--query 'fish' is not in the sentence. Choose one of: the, river, bank"),
        (["--sentence", " "], "--sentence is empty. Give it at least one word."),
        (["--sentence", "river"], "'river' is the only word, and has no other to attend. Give two or more."),
        (["--steps", "0"], "--steps must be from 1 to 100000, and --learning-rate above 0. Leave them out."),
        (["--learning-rate", "1e300", "--steps", "5"], "rate of 1e+300: the descent left what float64 holds. Use a"),
        (["--trajectory", "none.npz"], "--trajectory none.npz: [Errno 2] No such file"),
        (["--out", "/dev/null/x.html", "--steps", "1"], "--out /dev/null/x.html: File exists. Name a file that can"),
    ],
)  # fmt: skip
def test_refusals(argv, message):
    with pytest.raises(cli.BadInput) as caught:
        compute(explore, *argv)
    assert message in str(caught.value)


def test_the_control_of_the_descent(x64):
    got = recorder.record(Q, K, 0, rate=0.3, steps=4, frames=3)
    assert jnp.abs(got["q"][-1] - Q).max() > 0.1
