"""A language model that learned from text, alive on a page: the page computes what jattn.heads does."""

import importlib
import json
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _browser import only_chromium, visits
from _demos import assert_help_begins_as_the_page, compiled_for_many_steps, refusal

pytestmark = pytest.mark.structure

sys.path.insert(0, str(Path(__file__).parents[1] / "demos"))
cli, demo, model, texts = (importlib.import_module(n) for n in ("_cli", "alive_page", "_next_word", "_corpus"))
STEPS = 80
SITE = (Path(__file__).parents[1] / "docs" / "live.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """What the demo says, and the parameters that it learned."""
    kept = []

    @compiled_for_many_steps()
    def train(*args, **sizes):
        kept.append(model.train(*args, **sizes))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(demo, "train", train)
        argv = ["--steps", str(STEPS), "--out", str(tmp_path_factory.mktemp("alive"))]
        return cli.evaluate(demo.compute, demo.arguments().parse_args(argv)), kept[0][0]


def test_it_learns_more_than_pairs_of_words(learned):
    r, _ = learned
    assert r["losses"][-1] < 0.3 * r["losses"][0]
    two, pairs = r["judged"]["two layers"], r["judged"]["pairs of words"]
    assert two["held"]["loss"] < pairs["held"]["loss"]
    assert two["held"]["right"] > pairs["held"]["right"] + 0.1


@only_chromium  # test_page_arithmetic compares the arithmetic in both
def test_the_page_computes_what_jattn_heads_does(learned, browser, x64):
    r, w = learned
    words = texts.corpus(0)[1]
    kept = np.array([not word.startswith("<") for word in words])
    w = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), w)
    with visits(browser, Path(r["page"]).parent) as go:
        view = go(Path(r["page"]).name)
        for x in r["examples"]:
            view.get_by_role("button", name=f"{x['sentence']} → {x['next']}", exact=True).click()
            ids = jnp.array([words.index(word) for word in x["sentence"].split()])
            want = np.asarray(jax.jit(model.logits)(w, ids)[-1])[kept]
            shown = json.loads(view.locator("[data-logits]").get_attribute("data-logits"))
            np.testing.assert_allclose(shown, want, rtol=0, atol=1e-5)
            assert float(view.locator("#model-loss").get_attribute("data-loss")) > 0
        assert view.seen == []


def test_the_weights_are_small_and_it_says_so(learned):
    r, _ = learned
    assert 4 * r["numbers"] <= 300_000
    assert Path(r["page"]).stat().st_size == r["bytes"] <= 300_000
    assert r["base64"] == max(map(len, re.findall(r"[A-Za-z0-9+/=]+", Path(r["page"]).read_text(encoding="utf-8"))))
    paper = cli.console()
    with paper.capture() as captured:
        demo.show(paper, r)
    text = captured.get()
    assert max(len(line) for line in text.splitlines() if not line.startswith("Page")) <= 80
    json.dumps(r, allow_nan=False)
    for what in (f"{r['numbers']:,} numbers", "pairs of words", "held out", "the river and the",
                 f"{r['base64'] / 1000:.0f} kB are weights in base64"):  # fmt: skip
        assert what in text


def test_the_site_says_what_does_not_depend_on_the_training(learned):
    r, _ = learned
    n, pairs = r["sentences"], r["judged"]["pairs of words"]["held"]
    for said in (
        f"{n['train']} sentences; {n['held']} others",
        f"a table of pairs of words: {pairs['loss']:.2f} |",
        f"a table of pairs of words: {100 * pairs['right']:.0f} % |",
        f"{r['numbers']:,} numbers, {4 * r['numbers'] / 1000:.0f} kB in float32",
    ):
        assert said in SITE


@pytest.mark.exhaustive
def test_the_site_says_what_a_whole_training_learned(tmp_path):
    r = cli.evaluate(demo.compute, demo.arguments().parse_args(["--out", str(tmp_path)]))
    held = r["judged"]["two layers"]["held"]
    (loss,) = re.findall(r"\| loss of the next word, held out \| (.*?);", SITE)
    (right,) = re.findall(r"\| next word right, held out \| (.*?) %;", SITE)
    (size,) = re.findall(r"\| the file \| (.*?) kB", SITE)
    # Processors round differently, and 400 steps of descent make more of it.
    assert float(loss) == pytest.approx(held["loss"], abs=0.05)
    assert float(right) == pytest.approx(100 * held["right"], abs=3)
    assert float(size) == pytest.approx(r["bytes"] / 1000, abs=1)


def test_the_model_of_pairs_predicts_by_what_it_counted():
    text = texts.Sentences(jnp.array([[2, 3, 2, 3, 0]]), jnp.array([4]), *[jnp.zeros(1, jnp.int32)] * 4)
    seen = model.of_pairs(text, text, 5)
    p = np.array([2.1 / 2.5, 1.1 / 1.5, 2.1 / 2.5])  # 0.1 for each of five words
    np.testing.assert_allclose(seen.loss, -np.log(p).mean(), rtol=1e-6)
    assert seen.right == 1


REFUSED = [
    (["--steps", "19"], "--steps 19: must be from 20 to 5000. Leave it out."),
    (["--rate", "nan"], "--rate nan: must be a number above 0. Leave it out for 0.005."),
    (["--out", __file__], f"--out {__file__}: is a file, or lies below one. Name a folder."),
]


@pytest.mark.parametrize(("argv", "says"), REFUSED, ids=[argv[0] for argv, _ in REFUSED])
def test_bad_input_is_one_line_and_status_2(argv, says, monkeypatch, capsys):
    assert refusal(demo, argv, monkeypatch, capsys) == f"alive_page.py: {says}\n"


def test_help_says_what_it_shows(monkeypatch, capsys):
    assert_help_begins_as_the_page(demo, monkeypatch, capsys)
