"""The walkthroughs: their numbers against the reference and against NumPy, their pages, and how they refuse.

A new walkthrough is one line of DEMOS: its name, and what in its results is one attention (q, k, v and the
steps that the page shows for them). What else it claims is checked below, in a test of its own.
"""

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _children import environment
from matplotlib.figure import Figure

import jattn
from jattn import figures, reference

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli = importlib.import_module("_cli")

EXACT = 1e-12
HIDDEN = {"FORCE_COLOR", "COLUMNS", "NO_COLOR", "TTY_COMPATIBLE"}
DEMOS = {
    "walk_near_river_bank": lambda r: [{"q": r["E"], "k": r["E"], "v": r["E"], **r}],
    "attention_kata": lambda r: [r, *({"q": c["E"], "k": c["E"], "v": c["E"], "row": c["words"].index("bank"), **c}
                                      for c in r["contexts"])],
    "weighted_sum": lambda r: [r, {"q": r["E"], "k": r["E"], "v": r["E"], **r["unprojected"]}],
    "cat_ate_mouse": lambda r: [r["code"], {"v": r["prose"]["k"], **r["prose"]}],
}  # fmt: skip


def arguments(*argv: str) -> argparse.Namespace:
    return importlib.import_module("walk_near_river_bank").arguments().parse_args(argv)


@pytest.fixture(scope="module")
def results() -> dict[str, dict]:
    """The numbers of every walkthrough, computed once, in this process."""
    made = {}
    for name in DEMOS:
        demo = importlib.import_module(name)
        made[name] = cli.evaluate(demo.compute, demo.arguments().parse_args([]))
    return made


def started(*command: object, **more: str) -> subprocess.CompletedProcess:
    """Python as a reader starts it, its output piped."""
    env = {key: value for key, value in environment().items() if key not in HIDDEN} | more
    how = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 900}
    return subprocess.run([sys.executable, *map(str, command)], env=env, check=False, **how)


def run(*argv: str) -> subprocess.CompletedProcess:
    """The first walkthrough as a reader runs it."""
    return started(FOLDER / "walk_near_river_bank.py", *argv)


def by_numpy(q, k, v) -> dict[str, np.ndarray]:
    """Attention, independently: float64 loops over queries and keys."""
    q, k, v = (np.array(x, np.float64) for x in (q, k, v))
    scores = np.array([[sum(a * b for a, b in zip(x, y, strict=True)) for y in k] for x in q])
    scaled = scores / np.sqrt(k.shape[1])
    exps = np.exp(scaled)
    sums = np.array([sum(row) for row in exps])
    weights = np.array([row / total for row, total in zip(exps, sums, strict=True)])
    out = np.array([sum(w * y for w, y in zip(row, v, strict=True)) for row in weights])
    return {"scores": scores, "scaled": scaled, "exps": exps, "sums": sums, "weights": weights, "out": out}


def close(a, b, tolerance: float = EXACT) -> None:
    np.testing.assert_allclose(np.array(a, np.float64), np.array(b, np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", DEMOS)
def test_numbers_agree_with_the_reference_and_with_numpy(name, results, x64):
    for shown in DEMOS[name](results[name]):
        q, k, v = (np.array(shown[x], np.float64) for x in "qkv")
        steps, _ = jax.jit(reference.steps)(q, k, v)
        for oracle in (steps._asdict(), by_numpy(q, k, v)):
            compared = [field for field in oracle if field in shown]
            assert "weights" in compared
            for field in compared:
                close(shown[field], oracle[field][shown["row"]] if "row" in shown else oracle[field])


def test_a_wrong_number_would_be_seen(results):
    r = results["walk_near_river_bank"]
    with pytest.raises(AssertionError, match="Not equal"):
        close(np.array(r["weights"]) + 1e-11, by_numpy(r["E"], r["E"], r["E"])["weights"])


@pytest.mark.parametrize("name", DEMOS)
def test_json_holds_the_same_numbers(name, results, monkeypatch, capsys):
    demo = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--json"])
    cli.run(demo.arguments(), lambda args: results[name], demo.show)
    assert json.loads(capsys.readouterr().out) == results[name]


def test_json_is_alone_on_stdout_and_holds_the_same_numbers(results):
    done = run("--json")
    assert (done.returncode, done.stderr) == (0, "")
    made, expected = json.loads(done.stdout), results["walk_near_river_bank"]
    assert made.keys() == expected.keys()
    close(made["out"], expected["out"])


def is_plain_and_80_wide(page):
    assert len(page.splitlines()) > 10
    assert "\x1b" not in page
    assert "…" not in page  # a cell that was cut
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize("name", DEMOS)
def test_a_page_that_no_terminal_shows_is_plain_and_80_wide(name, results, monkeypatch, capsys):
    demo = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    monkeypatch.setenv("COLUMNS", "200")
    for hidden in HIDDEN - {"COLUMNS"}:
        monkeypatch.delenv(hidden, raising=False)
    cli.run(demo.arguments(), lambda args: results[name], demo.show)
    is_plain_and_80_wide(capsys.readouterr().out)


def test_a_piped_page_is_plain_and_80_wide():
    done = started(FOLDER / "cat_ate_mouse.py", COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, "")
    is_plain_and_80_wide(done.stdout)


def test_colour_is_seen_where_it_is_asked_for_and_not_under_no_color(results, monkeypatch, capsys):
    demo, seen = importlib.import_module("walk_near_river_bank"), []
    monkeypatch.setattr(sys, "argv", ["walk_near_river_bank.py"])
    for these in ({"COLORTERM": "truecolor"}, {"NO_COLOR": "1"}):
        with monkeypatch.context() as patch:
            for name in HIDDEN:
                patch.delenv(name, raising=False)
            for name, value in ({"FORCE_COLOR": "1", "TERM": "xterm"} | these).items():
                patch.setenv(name, value)
            cli.run(demo.arguments(), lambda args: results["walk_near_river_bank"], demo.show)
            seen.append(capsys.readouterr().out)
    coloured, uncoloured = seen
    assert "\x1b[38;2;" in coloured
    assert "[38;" not in uncoloured
    assert "[48;" not in uncoloured


@pytest.mark.parametrize("name", DEMOS)
def test_help_says_what_it_shows(name, monkeypatch, capsys):
    demo = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        cli.run(demo.arguments(), demo.compute, demo.show)
    said = capsys.readouterr().out
    assert stopped.value.code == 0
    assert demo.__doc__.splitlines()[0] in said
    assert "--json" in said


def test_a_reader_that_stops_reading_is_no_error():
    program = f"{sys.executable} {FOLDER / 'walk_near_river_bank.py'} | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""


FILES = {
    "ragged.json": '{"river": [0.8, 0.8], "bank": [0.8]}',
    "nan.json": '{"river": [0.8, NaN]}',
    "huge.json": '{"river": [1e101, 1.0]}',
    "beyond.json": '{"river": [1' + 400 * "0" + "]}",
    "twice.json": '{"the": [1, 2], "the": [2, 1]}',
    "empty.json": "[]",
    "number.json": "3",
    "text.json": "walk near river bank",
    "strings.json": '{"river": ["0.8", "0.8"]}',
    "nested.json": '{"river": {"x": 0.8}}',
    "truth.json": '{"river": [true, false]}',
}


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--word", "river=0.8,0.8", "--word", "bank=0.8"], "'bank' has 1 numbers and 'river' has 2"),
        (["--word", "river=0.8,nan"], "the vector of 'river' holds NaN"),
        (["--word", "river=0.8,-inf"], "the vector of 'river' holds NaN, infinity"),
        (["--word", "river"], "--word 'river' is not a word with its numbers"),
        (["--word", "river=0.8,x"], "--word 'river=0.8,x' is not a word with its numbers"),
        (["--word", "=0.8,0.8"], "the word '' is empty"),
        (
            ["--focus", "money"],
            "--focus 'money' is not one word of the sentence. Choose one of: walk, near, river, bank",
        ),
        (["--toward", "money"], "--toward 'money' is not one word of the sentence"),
        (["--file", "missing.json"], "missing.json: cannot be read"),
        (["--file", "."], ".: cannot be read"),
        (["--file", "ragged.json"], "'bank' has 1 numbers and 'river' has 2"),
        (["--file", "nan.json"], "the vector of 'river' holds NaN"),
        (["--file", "huge.json"], "the vector of 'river' holds NaN, infinity or more than 1e+100"),
        (["--file", "beyond.json"], "entry 1: 'river' has a number beyond float64"),
        (["--file", "twice.json"], "twice.json: 'the' comes twice in one object"),
        (["--file", "empty.json"], "empty.json: the sentence is empty"),
        (["--file", "number.json"], "number.json: holds neither an object nor a list"),
        (["--file", "text.json"], "text.json: is not JSON"),
        (["--file", "strings.json"], "strings.json: entry 1 is not a word with a list of numbers"),
        (["--file", "nested.json"], "nested.json: entry 1 is not a word with a list of numbers"),
        (["--file", "truth.json"], "truth.json: entry 1 is not a word with a list of numbers"),
        (["--file", "text.json", "--word", "a=1"], "not allowed with argument"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_bad_input_is_one_line_and_status_2(argv, names, tmp_path, monkeypatch, capsys):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    demo = importlib.import_module("walk_near_river_bank")
    monkeypatch.setattr(sys, "argv", ["walk_near_river_bank.py", *argv])
    with pytest.raises(SystemExit) as stopped:
        cli.run(demo.arguments(), demo.compute, demo.show)
    out, err = capsys.readouterr()
    assert (stopped.value.code, out) == (2, "")
    assert err.startswith("walk_near_river_bank.py: ")
    assert names in err
    assert err.count("\n") == 1
    assert err.rstrip().endswith(".")


def test_a_long_word_is_cut_and_no_number_beside_it(tmp_path):
    page = run("--word", "incomprehensibilities" * 3 + "=-1000,0.25", "--word", "to=0.5,0").stdout
    table = page[page.index("in full") : page.index("The shift")]
    assert all(
        number in table for number in ("weight", "value x", "weighted y", "-1000.000", "[-1000.000, 0.250]", "moved by")
    )


def test_where_one_exponential_is_beyond_float64_each_is_less_the_largest_of_its_row():
    demo = importlib.import_module("walk_near_river_bank")
    r = cli.evaluate(demo.compute, arguments("--word", "far=1000,0", "--word", "near=0.5,0.5"))
    close(np.max(r["exps"], 1), [1.0, 1.0])
    close(r["less"], np.max(r["scaled"], 1))


def test_a_product_of_zero_is_written_without_a_sign():
    assert importlib.import_module("_walk_page").written_out([-1.0, 0.0], [0.0, 2.0]) == "-1×0 + 0×2 = 0.00 + 0.00"


def test_bad_input_as_the_reader_sees_it():
    done = run("--word", "river=0.8,0.8", "--word", "bank=0.8")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name", [file.stem for file in FOLDER.glob("[a-z]*.py") if "_cli.add_out(" in file.read_text()]
)
def test_a_folder_that_is_a_file_is_refused_before_anything_is_computed(name, tmp_path):
    (tmp_path / "file").write_text("")
    parser = importlib.import_module(name).arguments()
    with pytest.raises(cli.BadInput, match=r"is a file, or lies below one\. Name a folder"):
        parser.parse_args(["--out", str(tmp_path / "file" / "below")])


def test_a_folder_whose_name_is_too_long_is_refused(tmp_path):
    with pytest.raises(cli.BadInput, match=r"File name too long\. Name a folder\."):
        cli.check_folder(tmp_path / (300 * "a"), "--out")


@pytest.mark.parametrize("seed", ["-1", "x", "4294967296", "1" * 30, "0" * 20 + "1" * 12])
def test_a_seed_is_a_whole_number(seed, capsys):
    with pytest.raises(SystemExit):
        importlib.import_module("weighted_sum").arguments().parse_args(["--seed", seed])
    assert "is not a whole number from 0" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['{"a": [1, 2, 3], "b": [0, -1, 2.5]}', '[["the", [1]], ["end", [2]], ["the", [3]]]'])
def test_any_sentence_agrees_with_numpy(text, tmp_path):
    demo, path = importlib.import_module("walk_near_river_bank"), tmp_path / "words.json"
    path.write_text(text)
    r = cli.evaluate(demo.compute, arguments("--file", str(path)))
    for field, expected in by_numpy(r["E"], r["E"], r["E"]).items():
        close(r[field], expected)
    assert len(set(r["words"])) == len(r["words"])
    demo.show(cli.console(), r)


@pytest.mark.parametrize("word", ["می\u200cروم", "👩\u200d🏫"])
def test_joiners_within_words_and_emoji_are_letters_of_them(word):
    demo = importlib.import_module("walk_near_river_bank")
    r = cli.evaluate(demo.compute, arguments(f"--word={word}=1,0", "--word=b=0,1"))
    assert r["words"] == [word, "b"]
    with pytest.raises(cli.BadInput, match="is empty or cannot be printed"):
        cli.evaluate(demo.compute, arguments("--word=\u200d=1,0"))


def test_a_folder_where_a_picture_is_to_lie_is_named_as_such(tmp_path):
    (tmp_path / "bank.png").mkdir()
    with pytest.raises(cli.BadInput, match="a folder has the name of a file to write"):
        cli.save(tmp_path, lambda: figures.save(Figure(), tmp_path / "bank"))


@pytest.mark.parametrize("vectors", [["solo=3"], ["a=1,0", "b=1,0"], ["a=0,0"], ["a=1e99,1", "b=-1e99,2"],
                                     [f"w{i}={i},0,1,2,3,4,5" for i in range(20)]])  # fmt: skip
def test_degenerate_sentences_still_have_a_page(vectors, capsys):
    demo = importlib.import_module("walk_near_river_bank")
    r = cli.evaluate(demo.compute, arguments(*(f"--word={v}" for v in vectors)))
    json.dumps(r, allow_nan=False)
    demo.show(cli.console(), r)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_attention_moves_bank_toward_river_and_next_to_the_mean(results):
    r = results["walk_near_river_bank"]
    E, out = np.array(r["E"]), np.array(r["out"])
    bank, river = 3, 2
    close(r["to_toward"][1][bank], np.linalg.norm(out[bank] - E[river]))
    close(r["to_mean"][1][bank], np.linalg.norm(out[bank] - E.mean(0)))
    assert r["to_mean"][1][bank] < 0.04 < 0.24 < r["to_toward"][1][bank] < r["to_toward"][0][bank]


def test_every_number_of_the_kata_follows_from_its_matrices_and_scores(results):
    r = results["attention_kata"]
    for x, W in (("q", "W_Q"), ("k", "W_K"), ("v", "W_V")):
        close(r[x], np.array(r["E"]) @ np.array(r[W]))
    close(r["row_sums"], np.ones(6))
    for c in r["cat"]:
        weights = np.exp(np.array(r["scores"][1]) / c["divisor"])
        weights /= weights.sum()
        close(c["weights"], weights)
        close([c["max"], c["min"], c["spread"]], [weights.max(), weights.min(), np.ptp(weights)])
        close(c["entropy"], -(weights * np.log(weights)).sum())
        assert c["verdict"] == (0 if c["spread"] > 0.8 else 2 if c["spread"] < 0.05 else 1)
    for m in r["matches"]:
        u = 5 * np.exp(-m["score"])
        p = 1 / (1 + u)
        close([m["weight"], m["slope"] / (u * p**2), m["log_slope"] / (u * p)], [p, 1, 1])
        others = ((1 - p) / 5) ** 2 * 5
        assert m["averaging"] == pytest.approx(p**2 + others, rel=0.1)
        assert m["look_up"] == pytest.approx((1 - p) ** 2 + others, rel=0.1)
    for row in r["widths"]:
        assert sum(row["shares"]) == pytest.approx(1)
        assert row["std"] == pytest.approx(row["d"] ** 0.5 / row["divisor"], rel=0.05)


def test_the_kata_counts_the_rows_that_are_one_hot_without_scaling(results, capsys):
    r, rng = results["attention_kata"], np.random.default_rng(0)
    importlib.import_module("_kata_page").show(cli.console(), r)
    page = " ".join(capsys.readouterr().out.split())
    for d, row in zip((4, 256), (r["widths"][0], r["widths"][-3]), strict=True):
        scores = np.einsum("nd,nsd->ns", rng.standard_normal((4096, d)), rng.standard_normal((4096, 6, d)))
        e = np.exp(scores - scores.max(1, keepdims=True))
        counted = (e.max(1) / e.sum(1) > 0.99).mean()
        assert row["one_hot"] == pytest.approx(counted, abs=0.04)  # four standard errors
        assert f"{row['one_hot']:.0%}" in page.split("Without scaling")[1]
    assert "wide heads are one-hot" not in page  # a third of the rows are not


def test_the_kata_says_as_much_of_a_bank_that_attends_mostly_itself(results, capsys):
    r = results["attention_kata"]
    weights = np.array(r["weights"])
    weights[-1, -1] = 0.997  # as --seed 14 has it
    importlib.import_module("_kata_page").steps(cli.console(), r | {"weights": weights})
    assert "They differ: 99.7% of the output is bank's own value." in capsys.readouterr().out


def test_every_number_of_the_weighted_sum_is_that_of_numpy(results):
    r = results["weighted_sum"]
    close(r["hand"]["out"], [0.7, 0.2, 0.1])
    for row in r["variance"]:
        assert row["raw"] == pytest.approx(row["d"] ** 0.5, rel=0.04)
        assert row["scaled"] == pytest.approx(1, rel=0.04)
    for x, W in (("q", "W_Q"), ("k", "W_K"), ("v", "W_V")):
        close(r[x], np.array(r["E"]) @ np.array(r[W]))
    v = np.array(r["v"])
    assert r["self"]["identity"] == r["self"]["window"] == r["v"]
    close(r["uniform"]["out"], np.broadcast_to(v.mean(0), v.shape))
    matrices = [np.array(r[name]) for name in ("W_Q", "W_K", "W_V")]
    x = np.array(r["E"])
    for n in range(5):
        if n in r["passes"]:
            away = np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x)
            close(r["repeats"]["plain"]["away"][r["passes"].index(n)], away)
        x = by_numpy(*(x @ W for W in matrices))["out"]
        if n == 1:
            close(r["twice"], x)
    assert r["repeats"]["plain"]["away"][3] < 1e-3 < 1e-2 < r["repeats"]["skip"]["away"][3]


def test_the_weighted_sum_compares_its_formula_with_attention_itself(monkeypatch):
    demo, attention = importlib.import_module("weighted_sum"), jattn.attention
    monkeypatch.setattr(jattn, "attention", lambda *args, **options: attention(*args, **options) + 0.5)
    assert cli.evaluate(demo.compute, demo.arguments().parse_args([]))["formula_differs"] == pytest.approx(0.5)


def test_what_the_weighted_sum_answers_follows_its_numbers(results):
    answers, r = importlib.import_module("_sum_page").answers, results["weighted_sum"]
    _, _, bank, *_ = r["weights"]
    plain, skip = (r["repeats"][name] for name in ("plain", "skip"))

    def told(least, end):
        weights = [*r["weights"][:2], [*bank[:-1], least], *r["weights"][3:]]
        repeats = {"plain": plain, "skip": skip | {"away": [*skip["away"][:-1], end]}}
        first, *_, last = answers(r | {"weights": weights, "repeats": repeats})
        return first, last

    first, last = told(0.06, 0.3)
    assert "do not contribute 'almost nothing' here" in first
    assert "they do so more slowly: after 16, 0.3." in last
    first, last = told(0.009, 0.98)  # as --seed 34 has it, and --seed 17
    assert "Low scores contribute 'almost nothing' here" in first
    assert "they do not: after 16, 0.98." in last


def test_training_of_cat_ate_mouse_reaches_the_weights_that_it_asks_for(results):
    r = results["cat_ate_mouse"]
    close(r["prose"]["weights"][0], [0.321053640736, 0.364631565749, 0.314314793515], 1e-11)
    assert r["trio"] == {"A·B": 1.0, "A·C": 0.0, "A·D": -1.0, "A·(3, 3)": 3.0}
    for name, k in (("train_query", r["prose"]["k"]), ("train_W_Q", r["code"]["k"])):
        t = r[name]
        close(by_numpy([t["exact_q"]], k, k)["weights"][0], [0.4, 0.2, 0.4])
        close(t["exact_weights"], [0.4, 0.2, 0.4])
        close(t["weights"], by_numpy(t["q"], k, k)["weights"])
        close(t["weights"][-1], [0.4, 0.2, 0.4], 1e-6)
        assert all(0 <= b <= a for a, b in zip(t["excess"][:-2], t["excess"][1:-1], strict=True))
    close(r["trained_rows"][1], r["train_W_Q"]["weights"][-1])


def test_it_takes_both_roundings_of_the_prose_to_turn_36_percent_into_37(results):
    def percent(scaled, exps):
        """The weight of "ate", where scaled scores and exponentials are rounded to so many digits."""
        e = np.round(np.exp(np.round(results["cat_ate_mouse"]["prose"]["scaled"][0], scaled)), exps)
        return round(100 * e[1] / e.sum())

    assert [percent(*digits) for digits in ((15, 15), (15, 2), (3, 15), (3, 2))] == [36, 36, 36, 37]


def test_plain_turns_every_array_into_lists():
    tree = {"x": jnp.ones((1, 2)), 3: (np.float64(1.5), [jnp.array(True)]), "s": reference.Steps(1.0, 2.0, 3.0, 4.0)}
    made = cli.plain(tree)
    steps = {"scores": 1.0, "scaled": 2.0, "weights": 3.0, "out": 4.0}
    assert made == {"x": [[1.0, 1.0]], "3": [1.5, [True]], "s": steps}
    assert not jax.config.jax_enable_x64
