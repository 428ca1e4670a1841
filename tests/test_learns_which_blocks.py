"""The indexer that learns which blocks to read: its parts against the definition, and what its page claims."""

import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _demos import assert_help_begins_as_the_page, compiled_for_many_steps, page_of, refusal

pytestmark = pytest.mark.structure

NAMES = "_cli", "learns_which_blocks", "_indexer", "_choices"
FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, demo, parts, choices = (importlib.import_module(name) for name in NAMES)

PAGES, SIZE, ASKS, BLOCKS = parts.PAGES, parts.SIZE, parts.ASKS, parts.BLOCKS
READERS, READ = 2, 2


@pytest.fixture(scope="module")
def results():
    argv = ["--steps", "40", "--readers", str(READERS), "--pages", str(READ)]
    with compiled_for_many_steps():
        return cli.evaluate(demo.compute, demo.arguments().parse_args(argv))


@pytest.fixture(scope="module")
def drawn():
    text, w = jax.jit(lambda a, b: (parts.drawn(a), parts.fresh(b)))(jax.random.key(1), jax.random.key(2))
    return jax.tree.map(lambda x: np.array(x, np.int32 if x.dtype == jnp.int32 else np.float64), (text, w))


@pytest.fixture(scope="module")
def found(drawn):
    """By whether all pages are read: the mass of each, both losses, and the gradients of both; in float64."""

    def f(w, everything):
        text, _ = drawn
        both, back = jax.vjp(lambda w: parts.losses(w, text, READ, everything), w)
        pages, _ = choices.jattn.top_keys(*parts.index(w, text), READ)
        (answers,), (divergence,) = (back(one) for one in ((1.0, 0.0), (0.0, 1.0)))
        return parts.mass(w, text, parts.reads(pages, everything)), both, answers, divergence

    with jax.enable_x64(True):
        g = jax.jit(f)
        return {x: jax.tree.map(np.array, g(drawn[1], jnp.asarray(x))) for x in (True, False)}


def of(results, what, choice, look=demo.PARTS):
    """[readers] after the training with all pages, or at another look."""
    return np.array(results[what])[:, look, choices.CHOICES.index(choice)]


def test_a_question_is_answered_by_one_fact_of_its_page(drawn):
    text, _ = drawn
    cues, fact, label = text.x[:, : parts.CUE], text.x[:, -2] == 1, text.x[:, parts.CUE : -2].argmax(1)
    assert (fact.reshape(PAGES, SIZE).sum(1) == parts.FACTS).all()
    nearest = np.where(fact, text.asked[:, : parts.CUE] @ cues.T, -np.inf).argmax(1)
    own = nearest // SIZE == np.repeat(text.page, ASKS)
    assert own.mean() > 0.9
    np.testing.assert_array_equal(text.label[own], label[nearest[own]])
    assert (text.asked[:, parts.CUE : -1] == 0).all()  # a question shows no label


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("everything", [True, False])
def test_the_mass_of_pages_and_the_losses_are_those_of_the_dense_form_in_numpy(drawn, found, everything):
    text, w = drawn
    vectors = (text.x @ w["A_k"]) / (1 + np.exp(-text.x @ w["gate"]))[:, None]
    queries = (text.asked @ w["A_q"]).reshape(BLOCKS, ASKS, -1).mean(1)
    index = queries @ vectors.reshape(PAGES, SIZE, -1).sum(1).T / np.sqrt(parts.DI)
    allowed = np.argsort(np.argsort(-index, 1), 1) < (PAGES if everything else READ)
    pairs = np.repeat(np.repeat(allowed, ASKS, 0), SIZE, 1)
    weights = softmax(np.where(pairs, text.asked @ w["W_Q"] @ (text.x @ w["W_K"]).T / np.sqrt(parts.D), -np.inf))
    p = weights.reshape(BLOCKS, ASKS, PAGES, SIZE).sum(3).mean(1)
    right = softmax(weights @ text.x @ w["W_V"] @ w["W_O"])[np.arange(len(text.label)), text.label]
    guess = softmax(np.where(allowed, index, -np.inf))
    divergence = (p[allowed] * np.log(p[allowed] / guess[allowed])).sum() / BLOCKS
    mass, losses, *_ = found[everything]
    np.testing.assert_allclose(mass, p, atol=1e-12)
    np.testing.assert_allclose(losses, [-np.log(right).mean(), divergence], rtol=1e-9)
    assert divergence > 0.01


@pytest.mark.parametrize("everything", [True, False])
def test_the_indexer_learns_from_the_attention_and_leaves_it_alone(found, everything):
    *_, answers, divergence = found[everything]
    for name in parts.SHAPES:
        assert not divergence[name].any()
        assert np.abs(answers[name]).max() > 1e-5
    for name in parts.INDEXER:
        assert not answers[name].any()
        assert np.abs(divergence[name]).max() > 1e-3


def test_every_reader_answers_from_the_pages_that_its_indexer_chose(results):
    for look in (demo.PARTS, demo.PARTS + 1):
        full, learned = (of(results, "right", name, look) for name in (choices.ALL, choices.LEARNED))
        assert full.shape == (READERS,)
        assert (full > 0.95).all()
        assert (learned > full - 0.1).all()
        assert (of(results, "found", choices.LEARNED, look) > 0.88).all()
        assert (of(results, "right", choices.MEANS, look) < learned - 0.15).all()


def test_chosen_blindly_at_equal_work_the_page_is_found_by_chance(results):
    chance, blocks = READ / PAGES, choices.TESTED * BLOCKS
    for blind in (choices.LAST, choices.RANDOM):
        found = of(results, "found", blind)
        assert np.abs(found - chance).max() < 4 * np.sqrt(chance / blocks)
        right = found * of(results, "right", choices.ALL) + (1 - found) / parts.LABELS
        np.testing.assert_allclose(of(results, "right", blind), right, atol=0.05)
        assert (of(results, "held", blind) < 0.15).all()


def test_before_training_neither_reader_nor_indexer_is_right_and_the_loss_falls(results):
    assert (of(results, "found", choices.LEARNED, 0) < 0.3).all()
    assert (of(results, "right", choices.ALL, 0) < 0.3).all()
    assert np.array(results["losses"])[:, demo.PARTS - 1, 0].max() < 0.2


def test_only_the_tiles_of_the_chosen_pages_are_visited(results):
    assert results["tiles"] == dict.fromkeys(choices.CHOICES, BLOCKS * READ) | {choices.ALL: BLOCKS * PAGES}
    assert results["work"]["chosen"] * PAGES == results["work"]["all"] * READ


def test_the_page_is_80_wide_and_its_json_holds_the_same(results, monkeypatch, capsys):
    page = page_of(demo, results, monkeypatch, capsys)
    assert all(name in page for name in choices.CHOICES)


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--steps", "0"], "--steps 0: must be from 1 to 5000."),
        (["--pages", "33"], "--pages 33: must be from 1 to 32."),
        (["--readers", "0"], "--readers 0: must be from 1 to 16."),
        (["--seed", "x"], "is not a whole number from 0"),
    ],
)
def test_bad_input_is_one_line_and_status_2(argv, names, monkeypatch, capsys):
    assert names in refusal(demo, argv, monkeypatch, capsys)


def test_help_says_what_it_shows(monkeypatch, capsys):
    assert_help_begins_as_the_page(demo, monkeypatch, capsys)
