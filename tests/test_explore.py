"""The demos that write a page: their descents against NumPy, their claims against their numbers, their refusals."""

import ast
import base64
import importlib
import json
import re
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from _browser import only_chromium, visits
from scipy.optimize import minimize

from jattn import flow

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, bank, explore, recorder, which, long = (
    importlib.import_module(n) for n in ("_cli", "bank_page", "explore", "_record", "which_tiles", "long_page")
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
    assert Path(results["page"]).stat().st_size == results["bytes"] < 330_000
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


NUMBER = re.compile(r"−?\d[\d,]*(?:\.\d+)?(?:e−\d+)?")


def test_no_number_of_the_story_is_typed():
    """No digit stands in the words of its source, but for what says how a number is written."""
    tree = ast.parse((FOLDER / "_bank_story.py").read_text(encoding="utf-8"))
    formats = {id(c) for f in ast.walk(tree) if isinstance(f, ast.FormattedValue) and f.format_spec
               for c in ast.walk(f.format_spec)}  # fmt: skip
    words = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
             and id(n) not in formats]  # fmt: skip
    assert len(words) > 50
    assert [w for w in words if re.search(r"\d", w)] == []
    named = r"\b(two|three|four|five|six|seven|eight|nine|ten|half|twice|double|hundred|thousand)\b"
    assert [w for w in words if re.search(named, w)] == []


def test_the_numbers_of_the_story_are_those_of_the_runs(results):
    page = data(results["page"])
    runs, steps = page["parts"], page["story"]["steps"]
    assert [s["title"] for s in steps] == ["Attend", "Why these weights", "The pull of each key", "One step",
        "The turn away from money", "Margin", "What Adam does", "Free keys"]  # fmt: skip

    def check(i, told):
        """The numbers in the text of step i are these, to half of their last decimal."""
        shown = [x.replace("−", "-").replace(",", "") for x in NUMBER.findall(steps[i]["text"])]
        units = [10.0 ** -len(x.partition(".")[2]) if "e" not in x else float(x) for x in shown]
        assert len(shown) == len(told)
        assert [x for x, unit, y in zip(shown, units, told, strict=True) if abs(float(x) - y) > 0.51 * unit] == []

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    part = [runs[s["part"]] for s in steps]
    ends = [part[i] and {n: np.array(part[i][n]) for n in ("q", "k", "weights", "steps")} for i in (0, 3, 4, 5, 6, 7)]
    start, one, turn, end, adam, free = ends
    e = np.exp(K @ Q / np.sqrt(2))
    p = e / e.sum()
    check(0, [1, 0, *100 * p, 100])
    exps = e / e.max()
    told = [*K @ Q, 2, *K @ Q / np.sqrt(2), *exps, exps.sum(), *p, *p @ V]
    check(1, told)
    pull = (K[0] - p @ K) / np.sqrt(2)
    along = (np.eye(3)[0] - p) * (K @ pull) / np.sqrt(2) / np.linalg.norm(pull)
    told = [-np.log(p[0]), *along, np.linalg.norm(pull), np.sqrt(0.5), *p @ K]
    check(2, told)
    after = Q + pull
    e = np.exp(K @ after / np.sqrt(2))
    told = [
        1,
        *Q,
        *after,
        -np.log(p[0]),
        -np.log(e[0] / e.sum()),
        100 * p[0],
        100 * e[0] / e.sum(),
        1,
        cosine(after, K[0]),
    ]
    check(3, told)
    assert steps[3]["frame"] == 1 == one["steps"][1]

    cos = np.array([cosine(q, K[1]) for q in turn["q"]])
    t, lost = cos.argmin(), (turn["q"][0] - turn["q"][cos.argmin()]) @ K.T
    assert steps[4]["frame"] == t
    assert 0 < lost[1] < lost[0], "money's score falls, and river's falls further"
    told = [turn["steps"][t], *100 * turn["weights"][[0, t], 1], cos[0], cos[t], lost[1], lost[0]]
    check(4, told)

    widest = {}
    for target in (0, 1):
        u = np.stack([np.cos(a := np.linspace(0, 2 * np.pi, 200_001)), np.sin(a)], 1)
        lead = ((K[target] - np.delete(K, target, 0)) @ u.T).min(0)
        widest[target] = u[lead.argmax()], lead.max()
    last = [x["q"][-1] for x in (end, start, adam, free)]
    size = [np.linalg.norm(q) for q in last]
    told = [widest[1][1], 10_000, cosine(last[0], widest[1][0]), cosine(last[0], K[1]), size[0],
            100 * end["weights"][-1, 1], widest[0][1], size[1], 100 * start["weights"][-1, 0]]  # fmt: skip
    check(5, told)
    u = widest[0][0]
    told = [*last[2], *last[1], 100 * adam["weights"][-1, 0], 100 * start["weights"][-1, 0],
            cosine(last[2], u), cosine(last[1], u), cosine(last[2], K[0]), cosine(last[1], K[0])]  # fmt: skip
    check(6, told)
    keys = free["k"][:, 1]
    drift = abs(free["k"].mean(1) - free["k"][0].mean(0)).max()
    told = [cosine(Q, K[1]), cosine(last[3], keys[-1]), size[3], size[0], *keys[0], *keys[-1], drift]
    check(7, told)
    with pytest.raises(AssertionError):
        check(7, [*told[:-2], told[-2] + 0.001, drift])
    assert np.dot(free["k"][-1, 0] - K[0], last[3]) < 0 > np.dot(free["k"][-1, 2] - K[2], last[3]), "pushed back"


def test_a_page_may_be_made_of_any_sentence(tmp_path):
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


UNDERFLOWS = ("--word", "a=100,0", "--word", "b=-100,0", "--word", "c=0,3", "--target", "a", "--steps", 3)


def test_a_weight_that_underflows_has_no_gain(tmp_path):
    _, head = data(compute(explore, *UNDERFLOWS, "--out", tmp_path / "u.html")["page"])["parts"]
    assert head["weights"][1][0] == 0
    assert head["gains"][:2] == [[1, 0, 0], [None, 0, 0]]
    np.testing.assert_allclose(head["gains"][2], [1 / head["weights"][2][0], 0, 0], rtol=1e-12)


@only_chromium
def test_the_page_says_which_query_has_no_gain(browser, tmp_path):
    compute(explore, *UNDERFLOWS, "--out", tmp_path / "u.html")
    with visits(browser, tmp_path) as go:
        view = go("u.html")
        for row, said in enumerate((False, True, False)):
            view.locator(f'[data-row="{row}"]').first.click()
            assert view.get_by_text("What this query gains is no number").is_visible() == said
        assert view.seen == []


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


def test_a_page_of_many_tokens_is_what_the_whole_array_gives(tmp_path, capsys, monkeypatch):
    T, n = 512, 32
    r = compute(long, "--tokens", T, "--out", tmp_path)
    page = data(r["page"])
    (part,) = page["parts"]
    q, k, _ = (x.astype(float) for x in long.head(T, 42))
    e = np.exp(q @ k.T - 24) * np.tri(T)
    w = e / e.sum(1, keepdims=True)
    tiles = w.reshape(n, T // n, n, T // n)

    def floats(text):
        return np.frombuffer(base64.b64decode(text), np.float32)

    np.testing.assert_allclose(floats(part["mass"]).reshape(n, n), tiles.sum(3).mean(1), atol=2e-5)
    np.testing.assert_allclose(floats(part["largest"]).reshape(n, n), tiles.max((1, 3)), atol=2e-5)
    np.testing.assert_allclose(floats(part["exact"]).reshape(-1, T), w[part["rows"]], atol=2e-5)
    np.testing.assert_allclose(r["mass"], 1, atol=1e-5)
    kept = np.tri(T, dtype=int).reshape(n, T // n, n, T // n)
    assert part["states"] == ["".join(map(str, line)) for line in kept.max((1, 3)) + kept.min((1, 3))]
    assert min(x for x, t in zip(r["back"], r["chosen"], strict=True) if t >= T // 2) > 0.99, "what it claims"
    assert r["memory"] < r["all"]
    again = [float(x.replace(",", "")) for x in re.findall(r"\d[\d,]*(?:\.\d+)?", page["story"]["steps"][0]["text"])]
    rows = page["story"]["steps"][1]["text"]
    assert f"one of them with {100 * w[T // 8].max():.1f}% of its weight" in rows
    assert again == [T // 2, T // 2 - 1, T - 1, round(100 * r["back"][-1], 1)]
    monkeypatch.setattr(sys, "argv", ["long_page.py"])
    cli.run(long.arguments(), lambda args: r, long.show)
    shown = capsys.readouterr().out
    assert r["page"] in shown
    assert max(len(line) for line in shown.splitlines() if "Pa" not in line and "Pi" not in line) <= 80
    assert [Path(x).name for x in r["pictures"]] == ["long.png", "long.svg"]
    with pytest.raises(cli.BadInput, match="--tokens 500: must be a multiple of 512"):
        compute(long, "--tokens", 500)


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
        (["--query", "fish"], "--query 'fish' is not one word of the sentence. Choose one of: the, river, bank"),
        (["--sentence", ""], "--sentence '': must have words. Write two or more, with spaces between."),
        (["--sentence", "?! ..."], "--sentence '?! ...': must have words. Write two or more"),
        (["--sentence", "a b", "--word", "a=1"], "--sentence and --word: the page is of one of them. Leave out all"),
        (["--file", "a.json", "--trajectory", "a.npz"], "--file and --trajectory: the page is of one of them. Leave"),
        (["--sentence", "By a bank.", "--query", "bank."], "not one word of the sentence. Choose one of: By, a, bank."),
        (["--sentence", "a bank – no bank", "--query", "bank"], ": a, bank(1), no, bank(2)."),
        (["--query", ""], "--query '' is not one word of the sentence. Choose one of: the, river"),
        (["--sentence", "river"], "'river' is the only word, and has no other to attend. Give two or more."),
        (["--steps", "0"], "--steps 0: must be from 1 to 100000. Leave it out for 3000."),
        (["--learning-rate", "0"], "--learning-rate 0: must be a number above 0. Leave it out for 0.3."),
        (["--learning-rate", "nan"], "--learning-rate nan: must be a number above 0. Leave it out for 0.3."),
        (["--learning-rate", "1e300", "--steps", "5"], "rate of 1e+300: the descent left what float64 holds. Use a"),
        (["--trajectory", "none.npz"], "--trajectory none.npz: [Errno 2] No such file"),
        (["--trajectory", "a.npz", "--query", "bank"], "--trajectory and --query: what is saved has been learned."),
        (["--trajectory", "a.npz", "--moves", "q and K", "--seed", "3"], "--trajectory and --moves and --seed: what"),
        (["--out", "/dev/null/x.html", "--steps", "1"], "--out /dev/null/x.html: File exists. Name a file that can"),
    ],
)  # fmt: skip
def test_what_the_program_cannot_do_is_refused_and_only_what_is_at_fault_is_named(argv, message):
    with pytest.raises(cli.BadInput) as caught:
        compute(explore, *argv)
    assert message in str(caught.value)
    assert "--steps" not in str(caught.value) or argv[0] == "--steps", "only what is at fault is named"


@pytest.mark.parametrize("damaged", [lambda x: x[:40], lambda x: x[:-30], lambda x: x[:60] + b"?" * 90 + x[150:]])
def test_a_file_of_which_a_part_is_there_is_refused(damaged, tmp_path):
    file = tmp_path / "run.npz"
    np.savez_compressed(file, q=Q[None], k=K, weights=np.ones((1, 3)) / 3)
    compute(explore, "--trajectory", file, "--out", tmp_path / "page.html")
    file.write_bytes(damaged(file.read_bytes()))
    with pytest.raises(cli.BadInput, match="It takes q, k and weights"):
        compute(explore, "--trajectory", file)


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({"q": Q[None], "k": K}, "is without weights; it has q, k. See --help."),
        ({"loss": np.ones(3)}, "is without q and k and weights; it has loss. See --help."),
        ({"q": Q[None], "k": K, "weights": np.ones((1, 5))}, "two dimensions at a time. It takes q, k and weights;"),
        ([1, 2], "is without q and k and weights; it has no arrays by name. See --help."),
    ],
    ids=["weights", "all", "of another shape", "a list"],
)
def test_what_a_file_lacks_is_named_in_whole_sentences(saved, said, tmp_path):
    file = tmp_path / ("run.npz" if isinstance(saved, dict) else "run.json")
    np.savez(file, **saved) if isinstance(saved, dict) else file.write_text(json.dumps(saved))
    with pytest.raises(cli.BadInput) as caught:
        compute(explore, "--trajectory", file)
    assert said in str(caught.value)
    assert ".." not in str(caught.value).replace(str(file), "")


def shown(r, monkeypatch, capsys):
    """What explore.py prints of its results, as one line."""
    monkeypatch.setattr(sys, "argv", ["explore.py"])
    cli.run(explore.arguments(), lambda args: r, explore.show)
    return " ".join(capsys.readouterr().out.split())


def test_the_strongest_pairs_are_those_of_the_vectors_and_no_head_of_the_page(tmp_path, capsys, monkeypatch):
    r = compute(explore, "--sentence", "the cat sees", "--steps", 2, "--out", tmp_path / "a.html")
    x = np.array(data(r["page"])["parts"][1]["values"])
    e = np.exp(x @ x.T / np.sqrt(8))
    w = e / e.sum(1, keepdims=True)
    want = sorted(((w[i, j], n, m) for i, n in enumerate(r["words"]) for j, m in enumerate(r["words"])), reverse=True)
    assert [(n, m) for n, m, *_ in r["strongest"]] == [(n, m) for _, n, m in want[:6]]
    n, m, weight, entropy = r["strongest"][0]
    row = w[r["words"].index(n)]
    assert (weight, entropy) == pytest.approx((want[0][0], -(row * np.log(row)).sum()))
    said = shown(r, monkeypatch, capsys)
    assert "at the start, with q = k = v = the word's vector. The page's random heads are not in this table." in said
    assert f"query key weight entropy {'─' * 29} {n} {m} {weight:.3f} {entropy:.3f} " in re.sub("─+", "─" * 29, said)
    assert "random matrices, and do not learn." in Path(r["page"]).read_text(encoding="utf-8")
    vectors = compute(explore, *TWO, "--steps", 2, "--out", tmp_path / "b.html")
    assert "random" not in shown(vectors, monkeypatch, capsys)


TWO = ["--word", "river=0.9,0.1", "--word", "bank=1,0"]


@pytest.mark.parametrize(
    ("argv", "query"),
    [
        (TWO, "bank"),
        (["--sentence", "a b"], "b"),
        (["--sentence", "a b c"], "b"),
        (["--sentence", "(By) 'the' bank."], "the"),
    ],
)
def test_the_query_by_default_is_no_target_and_words_have_no_punctuation(argv, query, tmp_path):
    r = compute(explore, *argv, "--steps", 2, "--out", tmp_path / "a.html")
    assert (r["query"], r["target"]) == (query, r["words"][0])
    assert "".join(r["words"]).isalpha()


def test_the_last_line_says_whether_q_turned_toward_the_key(tmp_path, capsys, monkeypatch):
    away = compute(explore, *TWO, "--out", tmp_path / "a.html")
    said = shown(away, monkeypatch, capsys)
    assert "cos(q, k_river) went from 0.994 to -0.597 while p rose from 0.482 to 0.886: q learned to attend" in said
    assert "q learned to attend river by turning away from k_river. Page" in said
    toward = compute(explore, *TWO, "--word", "money=-1,0", "--query", "money", "--out", tmp_path / "b.html")
    assert "q learned to attend river by turning toward k_river. Page" in shown(toward, monkeypatch, capsys)
    q = np.array(data(away["page"])["parts"][0]["q"])[[0, -1]]
    cos = q @ [0.9, 0.1] / np.linalg.norm(q, axis=1) / np.hypot(0.9, 0.1)
    assert cos == pytest.approx([0.994, -0.597], abs=5e-4)
    said = [recorder.turned([0.2, c], [0.4, p], "a", moves) for c, p, moves in ((0.1, 0.3, "q"), (0.1, 0.5, "q and K"))]
    assert said[0] == "cos(q, k_a) went from 0.200 to 0.100 while p went from 0.400 to 0.300."
    assert said[1] == "cos(q, k_a) went from 0.200 to 0.100 while p rose from 0.400 to 0.500: q and k_a turned apart."


def test_help_has_the_default_of_every_number_and_choice():
    said = " ".join(explore.arguments().format_help().split())
    for flag in ("loss", "optimiser", "moves", "learning-rate", "steps", "query", "target", "sentence", "out", "seed"):
        assert "(default: " in said.rpartition(f" --{flag} ")[2].partition(" --")[0], flag
    assert "two layers of four heads with random matrices, which do not learn" in said


def test_a_recorded_descent_moves_the_queries(x64):
    got = recorder.record(Q, K, 0, rate=0.3, steps=4, frames=3)
    assert jnp.abs(got["q"][-1] - Q).max() > 0.1
