"""Bank and river: the demo's numbers against the reference and against NumPy, and where the slogan fails."""

import importlib
import json
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _children import environment
from matplotlib.image import imread
from rich.cells import cell_len
from scipy.integrate import solve_ivp
from scipy.optimize import minimize

import jattn
from jattn import figures, flow, reference

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, demo, toy, descent, picture = (
    importlib.import_module(name) for name in ("_cli", "bank_river", "_bank_toy", "_bank_descent", "_bank_picture")
)

EXACT = 1e-12
STEPS, RATE = 300, 0.7  # of the run that NumPy repeats
Q, K, V = np.array([1.0, 0.0]), np.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]]), np.array([[2, 0], [0, 3], [0.1, 0.1]])
CONTEXTS, MOVERS = {"river": 0, "money": 1}, ["q", "q and K", "W_Q and W_K"]
RUNS = [(word, mover) for word in CONTEXTS for mover in MOVERS]


def run(*argv, **more):
    env = {k: v for k, v in environment().items() if k not in ("FORCE_COLOR", "COLUMNS", "NO_COLOR")} | more
    command = [sys.executable, "-W", "error", str(FOLDER / "bank_river.py"), *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=env, timeout=900, check=False)


def arguments(*argv):
    return demo.arguments().parse_args(list(map(str, argv)))


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """The numbers of a short run in this process, under strict promotion."""
    out = tmp_path_factory.mktemp("short") / "new" / "folder"
    return cli.evaluate(demo.compute, arguments("--steps", STEPS, "--learning-rate", RATE, "--out", out))


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """The numbers of the run that a reader starts, as JSON, and the folder of its pictures."""
    out = tmp_path_factory.mktemp("full")
    made = run("--json", "--out", out)
    assert (made.returncode, made.stderr) == (0, "")
    return json.loads(made.stdout), out


def by_hand(q, k):
    """Bank's weights, independently: Python's own floats, one key at a time."""
    exps = [math.exp(sum(a * b for a, b in zip(q, row, strict=True)) / math.sqrt(2)) for row in k]
    return np.array([e / sum(exps) for e in exps])


def descend_by_hand(target, mover, steps, rate):
    """The same descent from the formulas alone; yields q, k, the weights and −dL/dq before each step."""
    q, k, bank, x = Q.copy(), K.copy(), toy.BANK, toy.X
    w_q, w_k = toy.W_Q.copy(), toy.W_K.copy()
    for _ in range(steps + 1):
        if mover == "W_Q and W_K":
            q, k = bank @ w_q, x @ w_k
        p = by_hand(q, k)
        up = ((np.arange(3) == target) - p) / math.sqrt(2)  # −dL/d(q·k_j)
        yield q, k, p, up @ k
        dq, dk = up @ k, np.outer(up, q)
        if mover == "W_Q and W_K":
            w_q, w_k = w_q + rate * np.outer(bank, dq), w_k + rate * x.T @ dk
        else:
            q, k = q + rate * dq, k + rate * dk * (mover == "q and K")


def cos(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def widest_by_candidates(k, target):
    """The widest margin lies along one difference, or at right angles to what tells the two apart."""
    d = k[target] - np.delete(k, target, 0)
    (x, y), some = d[0] - d[1], [*d]
    some += [np.array([-y, x]), np.array([y, -x])]
    return max((u / np.linalg.norm(u) for u in some), key=lambda u: (d @ u).min())


def widest_by_angle(k, target):
    """The direction of the widest margin among very many, and that margin."""
    angle = np.linspace(0, 2 * np.pi, 400_001)
    u = np.stack([np.cos(angle), np.sin(angle)], 1)
    margin = (u @ (k[target] - np.delete(k, target, 0)).T).min(1)
    return u[margin.argmax()], margin.max()


def test_the_toy_is_the_reference_and_the_hand(short, x64):
    t = short["toy"]
    steps, _ = reference.steps(*map(jnp.asarray, (Q[None], K, V)))
    for name in ("scores", "scaled", "weights", "out"):
        np.testing.assert_allclose(t[name], getattr(steps, name)[0], rtol=0, atol=EXACT)
    p = by_hand(Q, K)
    np.testing.assert_allclose(t["scores"], [1.0, 0.2, 0.0], rtol=0, atol=EXACT)
    np.testing.assert_allclose(t["scaled"], np.array([1.0, 0.2, 0.0]) / math.sqrt(2), rtol=0, atol=EXACT)
    np.testing.assert_allclose(t["exps"], [math.exp(s / math.sqrt(2)) for s in (1.0, 0.2, 0.0)], rtol=0, atol=EXACT)
    np.testing.assert_allclose(t["sum"], sum(t["exps"]), rtol=0, atol=EXACT)
    np.testing.assert_allclose(t["weights"], p, rtol=0, atol=EXACT)
    np.testing.assert_allclose(t["terms"], [[w * v for v in row] for w, row in zip(p, V, strict=True)], atol=EXACT)
    np.testing.assert_allclose(t["out"], [2 * p[0] + 0.1 * p[2], 3 * p[1] + 0.1 * p[2]], rtol=0, atol=EXACT)
    assert t["projected"] == t["out"]


def test_the_projections_make_exactly_the_toy():
    np.testing.assert_array_equal(toy.BANK @ toy.W_Q, Q)
    np.testing.assert_array_equal(toy.X @ toy.W_K, K)
    np.testing.assert_allclose(toy.X @ toy.W_V, V, rtol=0, atol=1e-16)
    np.testing.assert_array_equal(toy.Q, Q)
    np.testing.assert_array_equal(toy.K, K)
    np.testing.assert_array_equal(toy.V, V)


def test_the_weights_flip_exactly_where_the_condition_says(short, x64):
    ways = short["flip"]["ways"]
    expected = {"toward q_bank": 1.0, "along itself": 4.0, "across q_bank": None}
    for name, a in expected.items():
        for found in ("formula", "measured"):
            assert ways[name][found] == (a if a is None else pytest.approx(a, rel=4e-16, abs=0)), (name, found)
    along = short["flip"]["along"]
    for a, p, out in zip(along["a"], along["weights"], along["out"], strict=True):
        k = K + a * np.outer([0, 1, 0], Q - K[1])
        np.testing.assert_allclose(p, by_hand(Q, k), rtol=0, atol=EXACT)
        np.testing.assert_allclose(out, by_hand(Q, k) @ V, rtol=0, atol=EXACT)
        assert (p[1] > p[0]) == (a > 1)
    moved = np.random.default_rng(0).uniform(-3, 3, (200, 2))
    keys = np.stack([K * [[1], [0], [1]] + np.outer([0, 1, 0], m) for m in moved])
    wins = jax.jit(jax.vmap(jattn.explain, (None, 0, None)))(Q[None], keys, V).weights[:, 0]
    np.testing.assert_array_equal(wins[:, 1] > wins[:, 0], moved[:, 0] > 1)  # the half-plane x > 1, whatever y
    assert {True, False} == set(moved[:, 0] > 1)
    turned = short["flip"]["turned"]
    assert cos(np.array(turned["k"]), Q) == 1
    assert np.linalg.norm(turned["k"]) == pytest.approx(np.linalg.norm(K[1]), rel=1e-15)
    np.testing.assert_allclose(turned["weights"], by_hand(Q, [K[0], turned["k"], K[2]]), rtol=0, atol=EXACT)
    assert turned["weights"][1] < turned["weights"][0]


def test_every_formula_of_the_gradient_agrees_with_jax(short, x64, monkeypatch):
    assert len(short["formulas"]) == 12
    assert all(off <= EXACT for *_, off in short["formulas"])
    monkeypatch.setattr(descent, "C", 0.5)  # 1/d_k for 1/√d_k: this check can fail
    wrong = {name.split()[-1] for name, _, off in descent.formulas() if off > 1e-3}
    assert {"−dL/dq", "d²L/dq²", "−dL/dk_j", "dL/dW_Q", "dL/dW_K"} <= wrong


def test_a_is_what_more_weight_would_gain_wherever_it_is_printed(short, x64, capsys):
    """a_j = −dL/dp_j in both formulas: the pull on q of each descent, and the printed −dL/dk_j of ½|out − v_river|²."""
    p = by_hand(Q, K)
    a = -V @ (p @ V - V[0])
    forms = {what.split()[-1]: sides for (what, formula), sides in descent.closed_forms().items() if "a_j" in formula}
    assert list(forms) == ["−dL/dk_j"]
    for side in forms["−dL/dk_j"]:
        np.testing.assert_allclose(side, np.outer(p * (a - p @ a), Q) / math.sqrt(2), rtol=0, atol=EXACT)
    demo.show(cli.console(), short)
    said = " ".join(capsys.readouterr().out.split())
    assert re.findall(r"a_j = (\S+),", said) == ["−dL/dp_j"]
    assert set(re.findall(r"\S+ \S+ c p_j \(a_j − ā\) \S", said)) == {
        "keys of c p_j (a_j − ā) k",
        "−dL/dk_j = c p_j (a_j − ā) q",
    }


@pytest.mark.parametrize(("word", "mover"), RUNS)
def test_each_descent_is_that_of_numpy(short, word, mover):
    told, target = short["descents"][word][mover], CONTEXTS[word]
    way = list(descend_by_hand(target, mover, STEPS, RATE))
    assert told["at"] == [0, 1, 3, 10, 30, 100, 300]
    for i, t in enumerate(told["at"]):
        q, k, p, pull = way[t]
        u = widest_by_candidates(k, target)
        expected = {
            "q": q, "k": k, "weights": p, "p": p[target], "loss": -math.log(p[target]), "pull": pull, "scores": k @ q,
            "norm": math.hypot(*q), "cos": cos(q, k[target]), "cos_widest": cos(q, u), "lead": q @ (k[target] - p @ k),
            "pulls": [((j == target) - p[j]) / math.sqrt(2) * k[j] for j in range(3)],
        }  # fmt: skip
        for name, want in expected.items():
            np.testing.assert_allclose(told[name][i], want, rtol=0, atol=EXACT, err_msg=f"{name} at step {t}")
    cosines = np.array([cos(q, k[target]) for q, k, *_ in way])
    assert told["min_cos"]["at"] == cosines.argmin()
    assert told["max_cos"]["cos"] == pytest.approx(cosines.max(), abs=EXACT)
    assert told["off"] <= EXACT


@pytest.mark.parametrize("target", CONTEXTS.values(), ids=CONTEXTS)
def test_the_pull_is_jax_grad_of_the_reference(target, x64):
    @jax.jit
    def slope(q):
        return jax.grad(lambda q: -jnp.log(reference.steps(q[None], K, K)[0].weights[0, target]))(q)

    seen = jax.tree.map(lambda x: x[0], descent.descend("q", target, 1, RATE).seen)
    np.testing.assert_allclose(seen.pulls.sum(0), -slope(Q), rtol=0, atol=EXACT)
    np.testing.assert_allclose(-seen.dq, (K[target] - by_hand(Q, K) @ K) / math.sqrt(2), rtol=0, atol=EXACT)
    assert abs(np.asarray(-seen.dq) - K[target] / math.sqrt(2)).max() > 0.05  # the slogan's pull is another


@pytest.mark.parametrize("target", CONTEXTS.values(), ids=CONTEXTS)
def test_the_widest_margin_is_that_of_a_solver_and_of_a_search(target, x64):
    rng = np.random.default_rng(1)
    widest = jax.jit(partial(flow.max_margin, target=target))
    for k in (K, *rng.normal(size=(4, 3, 2))):
        u, margin, _ = map(np.asarray, widest(k))
        d = k[target] - np.delete(k, target, 0)
        best, most = widest_by_angle(k, target)
        if most <= 1e-3:  # the target lies between its rivals: no direction prefers it
            continue
        np.testing.assert_allclose(u, best, atol=2e-5)
        np.testing.assert_allclose(margin, most, atol=1e-5)
        beats = {"type": "ineq", "fun": lambda w, d=d: d @ w - 1}
        w = minimize(lambda w: w @ w, best / most, constraints=beats, tol=1e-14).x  # the usual support vector machine
        np.testing.assert_allclose(w / np.linalg.norm(w), u, atol=1e-6)
        assert 1 / np.linalg.norm(w) == pytest.approx(margin, rel=1e-6)


def test_alone_q_turns_away_from_river_toward_the_widest_margin(full):
    told = full[0]["descents"]["river"]["q"]
    assert told["cos"][0] == 1
    assert np.all(np.diff(told["cos"]) < 0)  # it only ever falls
    assert told["cos"][-1] == pytest.approx(0.99409, abs=1e-5)
    assert np.all(np.diff(told["cos_widest"]) > 0)
    assert told["cos_widest"][-1] > 0.9998
    u, margin = widest_by_angle(K, 0)
    np.testing.assert_allclose(told["widest"], u, atol=2e-5)
    assert told["margin"] == pytest.approx(margin, abs=1e-5)
    assert told["margin"] == pytest.approx(math.sqrt(0.65), abs=EXACT)
    assert np.all(np.diff(told["norm"]) > 0)
    assert told["p"][-1] > 0.999
    for measured, limit in told["theory"].values():
        assert measured == pytest.approx(limit, rel=0.07)


def test_alone_q_turns_away_from_money_before_it_learns_it(full):
    told = full[0]["descents"]["money"]["q"]
    assert told["pull"][0] @ K[1] < 0  # the first pull lowers q·k_money
    assert told["min_score"]["scores"][1] < 0 < told["scores"][0][1]
    assert told["min_score"]["p"] > told["p"][0]  # and yet money gains
    assert told["cos"][0] == pytest.approx(2 / math.sqrt(5), abs=1e-15)
    assert (told["max_cos"]["at"], told["min_cos"]["at"]) == (4, 22)  # q sweeps across k_money's direction first
    assert told["max_cos"]["cos"] > 0.98
    assert told["min_cos"]["cos"] == pytest.approx(-0.705783, abs=1e-6)
    assert told["cos"][-1] < told["cos"][0]
    assert told["cos_widest"][-1] > 0.999
    assert told["theory"]["cos(q,k_t)"][1] == pytest.approx(0.12 / math.sqrt(1.01 * 0.05), abs=EXACT)
    assert told["theory"]["η·t·loss"][1] == pytest.approx(5050, rel=1e-12)


def test_when_keys_move_too_the_cosine_is_cured_and_the_mean_key_stays(full):
    for word, mover in RUNS:
        told = full[0]["descents"][word][mover]
        if mover == "q":
            continue
        assert told["cos"][-1] > 0.999
        assert told["min_cos"]["cos"] >= min(told["cos"][0], 0.999)  # money: never below where it began
        assert told["p"][-1] > 0.9999
        if mover == "q and K":
            assert told["mean_key_moved"] < EXACT
            measured, theory = told["balance"]
            assert measured == pytest.approx(theory, abs=EXACT)
            assert abs(theory) > 0.1
        else:
            assert told["mean_key_moved"] > 0.1  # W_K ties the keys


def test_the_drift_of_the_balance_halves_with_the_learning_rate(x64):
    drift = []
    for rate, steps in ((0.1, 200), (0.05, 400)):
        (q, k), *_, (q1, k1) = [(q, k) for q, k, *_ in descend_by_hand(0, "q and K", steps, rate)]
        drift.append((q1 @ q1 - (k1**2).sum()) - (q @ q - (k**2).sum()))
    assert drift[0] / drift[1] == pytest.approx(2, rel=0.05)


def test_learning_rate_times_steps_times_loss_tends_to_its_limit(full):
    """Far out, where only a solver of the gradient flow reaches: dq/dt = −dL/dq, in the time log t."""
    for word, target in CONTEXTS.items():
        limit = full[0]["descents"][word]["q"]["theory"]["η·t·loss"][1]
        d = (K[target] - np.delete(K, target, 0)) / math.sqrt(2)

        def flow(log_time, q, d=d):
            behind = np.exp(-d @ q)
            return math.exp(log_time) * (behind @ d) / (1 + behind.sum())

        far = solve_ivp(flow, np.log([1e-6, 1e18]), Q, method="LSODA", rtol=1e-9, atol=1e-9)
        assert far.success
        assert 1e18 * np.log1p(np.exp(-d @ far.y[:, -1]).sum()) == pytest.approx(limit, rel=1e-3)
    ways = [list(descend_by_hand(0, "q", int(400 / rate), rate))[-1] for rate in (0.5, 2.0)]
    half, double = (-math.log(p[0]) * 400 for _, _, p, _ in ways)
    assert half == pytest.approx(double, rel=0.01)  # it is η·t that counts, not t


def test_a_step_for_bank_moves_every_query(short, x64):
    tied = short["tied"]
    assert tied["overlap"] == [0.75, 0.5, 0.5]
    np.testing.assert_allclose(tied["moved"], tied["theory"], rtol=0, atol=EXACT)
    rate, way = 0.7, list(descend_by_hand(0, "W_Q and W_K", 1, 0.7))
    np.testing.assert_allclose(way[1][0] - way[0][0], rate * (toy.BANK @ toy.BANK) * way[0][3], rtol=0, atol=EXACT)
    np.testing.assert_allclose(tied["moved"], np.outer(toy.X @ toy.BANK, way[0][3]), rtol=0, atol=EXACT)


def test_pictures_are_there_whole_and_show_the_numbers(full, x64):
    results, out = full
    assert sorted(os.listdir(out)) == ["bank_river.png", "bank_river.svg"]
    assert results["pictures"] == [str(out / "bank_river.png"), str(out / "bank_river.svg")]
    image = imread(out / "bank_river.png")
    assert image.shape[0] > 1000
    assert image[..., :3].std() > 0.1
    svg = ET.parse(out / "bank_river.svg").getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"

    paths = {w: jax.tree.map(np.asarray, descent.descend("q", i, STEPS, RATE)).seen for w, i in CONTEXTS.items()}
    figure = picture.draw(paths, RATE)
    for axes, (word, path) in zip(np.reshape(figure.axes, (3, 2)).T, paths.items(), strict=True):
        row, first, whole = axes
        shown = [float(text.get_text()) for text in row.texts]
        np.testing.assert_allclose(shown, path.weights[[0, -1]].ravel(), atol=5e-4)
        (way,) = (line for line in whole.lines if len(line.get_xdata()) == STEPS + 1)
        np.testing.assert_array_equal(way.get_xydata(), path.q)
        assert word in row.get_title()
        assert f"{path.cos_key[-1]:.3f}" in whole.get_title()
        (start,) = (text for text in first.texts if text.get_text() == "step 0")
        assert start.xy == (1, 0)
        assert {"river", "money", "the"} <= {text.get_text() for text in first.texts}
        spot = picture.field(np.array([0.3]), np.array([-0.2]), CONTEXTS[word])
        assert spot[0, 0] == pytest.approx(by_hand([0.3, -0.2], K)[CONTEXTS[word]], abs=EXACT)


@pytest.mark.parametrize("made", ["short", "full"])
def test_the_page_fits_80_columns_and_says_what_was_measured(made, request):
    results = request.getfixturevalue(made)
    results = results[0] if made == "full" else results
    paper = cli.console()
    with paper.capture() as captured:
        demo.show(paper, results)
    page = captured.get()
    assert max(map(cell_len, page.split("Pictures:")[0].splitlines())) <= 80
    assert "\x1b" not in page
    assert not re.search(r"\bnan\b", page.lower())
    for what in ("0.485192", "4.180025", "half-plane x > 1", "The slogan fails: q_bank learned to attend river"):
        assert what in " ".join(page.split())


def page_of(*argv):
    paper = cli.console()
    with paper.capture() as captured:
        demo.show(paper, cli.evaluate(demo.compute, arguments(*argv)))
    return " ".join(captured.get().split())


def test_what_four_decimals_do_not_show_is_not_said(tmp_path):
    """With tiny steps nothing moves, to four decimals: no slogan fails, and nothing fell or rose."""
    page = page_of("--steps", 10, "--learning-rate", 1e-9, "--out", tmp_path)
    assert page.count(" stayed at ") == 12
    for said in ("The slogan fails", "had fallen", "fell by", " rose from ", " fell from ", "at least ", "at most "):
        assert said not in page


def test_numbers_of_steps_that_are_too_long_have_an_exponent(tmp_path):
    page = page_of("--steps", 30, "--learning-rate", 300, "--out", tmp_path)
    assert re.search(r"changed by [0-9.]+e\+\d+; theory", page)
    assert not re.search(r"\d{13}", page)


def asked(monkeypatch, capsys, *argv):
    """Status, output and errors of the demo, in this process."""
    monkeypatch.setattr(sys, "argv", ["bank_river.py", *map(str, argv)])
    with pytest.raises(SystemExit) as stopped:
        cli.run(demo.arguments(), demo.compute, demo.show)
    return stopped.value.code, *capsys.readouterr()


def test_help_says_what_it_takes(monkeypatch, capsys):
    code, out, err = asked(monkeypatch, capsys, "--help")
    assert (code, err) == (0, "")
    assert {"--steps", "--learning-rate", "--out", "--json"} <= set(out.split())


REFUSED = [
    (["--steps", "0"], "--steps 0: must be from 10"),
    (["--steps", "100001"], "--steps 100001: must be"),
    (["--learning-rate", "nan"], "--learning-rate nan: must be a number above 0"),
    (["--learning-rate", "-1"], "--learning-rate -1: must be"),
    (["--learning-rate", "inf"], "--learning-rate inf: must be"),
    (["--learning-rate", "1e300", "--steps", str(STEPS)], "the descent left what float64 can hold"),
]


@pytest.mark.parametrize(("argv", "message"), REFUSED, ids=[" ".join(argv) for argv, _ in REFUSED])
def test_bad_numbers_are_refused_and_nothing_is_written(argv, message, tmp_path):
    with pytest.raises(cli.BadInput, match=message) as refusal:
        cli.evaluate(demo.compute, arguments(*argv, "--out", tmp_path / "out"))
    assert "\n" not in str(refusal.value)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(cli.BadInput, match="is a file, or lies below one"):
            cli.evaluate(demo.compute, arguments("--out", out))

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figures, "save", full_disk)
    with pytest.raises(cli.BadInput, match=r"No space left on device\. Name a folder"):
        cli.evaluate(demo.compute, arguments("--steps", STEPS, "--learning-rate", RATE, "--out", tmp_path))


@pytest.mark.parametrize("argv", [["--steps", "9"], ["--steps", "many"], ["--learning-rate", "0"], ["--ou"]])
def test_bad_input_is_one_line_and_status_2(argv, tmp_path, monkeypatch, capsys):
    code, out, err = asked(monkeypatch, capsys, *argv, *(["--out", tmp_path] if argv != ["--ou"] else []))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("bank_river.py: ")
    assert os.listdir(tmp_path) == []


def test_bad_input_as_the_reader_sees_it(tmp_path):
    made = run("--steps", "9", "--out", tmp_path)
    assert (made.returncode, made.stdout) == (2, "")
    assert len(made.stderr.splitlines()) == 1
    assert made.stderr.startswith("bank_river.py: ")
    assert "Traceback" not in made.stderr
    assert os.listdir(tmp_path) == []
