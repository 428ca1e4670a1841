"""Attention learned from text: the corpus is fair, the readers are what they say, and the controls hold exactly."""

import importlib
import json
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _demos import compiled_for_many_steps, refusal
from jax import random
from matplotlib.image import imread
from rich.cells import cell_len

from jattn import reference

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, texts, reader, picture, demo = (
    importlib.import_module(name) for name in ("_cli", "_corpus", "_reader", "_text_picture", "learns_from_text")
)
EPS = np.finfo(np.float64).eps


def arguments(*argv):
    return demo.arguments().parse_args(list(map(str, argv)))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The numbers of a run with fewer readers than a reader of the page would start."""
    args = arguments("--readers", 3, "--steps", 120, "--out", tmp_path_factory.mktemp("t"))
    with compiled_for_many_steps():
        return cli.evaluate(demo.compute, args)


@pytest.fixture(scope="module")
def corpus():
    return texts.corpus(0)


def sentences(words, s):
    return [" ".join(words[i] for i in row[:n]) for row, n in zip(np.array(s.ids), np.array(s.n), strict=True)]


def test_twins_differ_in_their_clues_alone_and_are_held_out_together(corpus):
    (train, held, new, _), _ = corpus
    for part in (train, held, new):
        blanked = np.where(part.clue, texts.BLANK, part.ids)
        rows = {}
        for row, sense in zip(map(tuple, blanked), np.array(part.sense), strict=True):
            rows.setdefault(row, []).append(int(sense))
        assert all(senses.count(0) == senses.count(1) for senses in rows.values())


def test_no_sentence_is_learned_from_and_judged_by(corpus):
    parts, words = corpus
    train, held, new, story = (sentences(words, part) for part in parts)
    assert len(set(train) | set(held) | set(new)) == len(train) + len(held) + len(new) == 448
    assert len(held) == pytest.approx(0.25 * (len(train) + len(held)), abs=2)
    assert {*story[:2]} <= {*held}
    assert story[2] not in train
    seen = {word for text in train for word in text.split()}
    assert {word for text in held for word in text.split()} <= seen  # only their combination is new
    fresh = {words[i] for i in np.array(parts.new.ids)[np.array(parts.new.clue)]}
    assert fresh == {clues[6] for senses, _ in texts.RELATIONS.values() for clues in senses.values()}
    assert not fresh & seen
    assert sentences(words, texts.corpus(1)[0].held) != held


def test_each_sentence_has_one_word_that_asks_and_says_where_its_clues_are(corpus):
    asking = list(texts.RELATIONS)
    parts, vocabulary = corpus
    for part in parts:
        for i, text in enumerate(sentences(vocabulary, part)):
            words, r = text.split(), int(part.relation[i])
            assert words.count(asking[r]) == 1
            assert words[int(part.asks[i])] == asking[r]
            both = {w for clues in texts.RELATIONS[asking[r]][0].values() for w in clues}
            assert [j for j, w in enumerate(words) if w in both] == np.flatnonzero(part.clue[i]).tolist()


def test_a_reader_is_attention_over_the_words_that_exist(corpus, x64):
    parts, words = corpus
    longest = parts.train.ids.shape[1]
    w = {k: 4 * x for k, x in reader.fresh(random.key(1), len(words), longest).items()}
    kinds = reader.kinds()
    one = jax.tree.map(lambda x: x[5], parts.train)
    read, look = jax.jit(reader.read), jax.jit(reader.look)
    n, t = int(one.n), int(one.asks)
    assert n < longest
    for k, name in enumerate(reader.KINDS):
        ids = [int(i) if j == t or name != "positions" else texts.BLANK for j, i in enumerate(one.ids[:n])]
        x = w["E"][jnp.array(ids)] + w["P"][:n]
        scale = 0.0 if name == "uniform" else reader.D**-0.5
        steps, _ = jax.jit(reference.steps)(x[t][None] @ w["W_Q"], x @ w["W_K"], x @ w["W_V"], scale=scale)
        kind = jax.tree.map(lambda x, k=k: x[k], kinds)
        z, weights = look(w, kind, one, jnp.asarray(False))
        np.testing.assert_allclose(weights[:n], steps.weights[0], rtol=0, atol=100 * EPS)
        assert not np.any(weights[n:])
        assert float(z) == pytest.approx(float(steps.out[0] @ w["u"][one.relation]), abs=100 * EPS)
        assert float(read(w, kind, one)) == pytest.approx(float(z), abs=100 * EPS)
        cut = np.array(look(w, kind, one, jnp.asarray(True))[1])
        kept = np.where(np.array(one.clue[:n]), 0, steps.weights[0])
        np.testing.assert_allclose(cut[:n], kept / kept.sum(), rtol=0, atol=100 * EPS)


def test_readers_learn_to_attend_to_what_tells_them_the_sense(results):
    k = results["kinds"]["reader"]
    assert min(k["right"]["held"]["least"]) > 0.95  # every reader, every word
    on_clue, uniform = (np.array(results["kinds"][x]["on_clue"]["mean"]) for x in ("reader", "uniform"))
    np.testing.assert_allclose(on_clue[0], uniform[0], atol=0.02)  # before training attention is nearly uniform
    assert (on_clue[-1] > 3 * uniform[-1]).all()
    story = np.array(k["story"]["mean"])
    assert story[0, :2, [1, 4]].sum(0) == pytest.approx(2 / 9, abs=0.02)
    assert (story[-1, :2, [1, 4]].sum(0) > 0.6).all()  # river and water in the one, money and deposit in the other
    np.testing.assert_allclose(story.sum(2), 1, atol=1e-12)


def test_what_cannot_see_the_clues_is_right_of_exactly_one_in_two(results):
    k = results["kinds"]
    for kind, data in (("positions", "held"), ("reader", "cut"), ("uniform", "cut")):
        for key in ("mean", "least", "most"):
            assert k[kind]["right"][data][key] == [0.5] * 4
    assert k["positions"]["loss"]["train"]["least"] == pytest.approx(math.log(2), abs=1e-3)
    assert k["reader"]["loss"]["train"]["most"] < 1e-2


def test_attention_was_not_needed(results):
    """The popular story fails: held uniform, a reader is as often right, and equally right readers attend otherwise."""
    k = results["kinds"]
    assert min(k["uniform"]["right"]["held"]["least"]) > 0.95
    spread = np.array(k["reader"]["on_clue"]["most"])[-1] - np.array(k["reader"]["on_clue"]["least"])[-1]
    assert spread.max() > 0.1
    each = np.array(results["each_story"])[:, -1, 2]
    assert np.ptp(each[:, 1]) > 0.5  # river of a sentence that has a clue of either sense
    new = k["reader"]["right"]["new"]
    assert 0.3 < np.mean(new["mean"]) < 0.7  # however much it attends to a word it never learned


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU may multiply another number of readers otherwise")
def test_the_same_seed_gives_the_same_readers(results, x64):
    c, words = texts.corpus(0)
    seeds = np.array([0, 1, 0])  # of each reader: another seed in one call with the same one
    keys = jnp.stack([random.split(random.key(seed), 3)[i] for i, seed in enumerate(seeds)])
    path, _ = reader.train_all(keys, c, 0.01, words=len(words), steps=120, every=3)
    same = (np.array(path["story"][0]) == np.array(results["each_story"])).all((1, 2, 3))
    np.testing.assert_array_equal(same, seeds == 0)


def test_the_page_fits_80_columns_and_says_what_was_measured(results):
    paper = cli.console()
    with paper.capture() as captured:
        demo.show(paper, results)
    text = captured.get()
    assert max(cell_len(line) for line in text.splitlines() if not line.startswith("Pictures:")) <= 80
    assert "…" not in text
    for what in ("50% exactly: twins", "What attention does not show", "held uniform", "pronoun to its noun"):
        assert what in text
    json.dumps(results, allow_nan=False)


def test_a_share_of_0_is_written_without_a_sign(results, capsys):
    story = {key: np.array(x) for key, x in results["kinds"]["reader"]["story"].items()}
    story["mean"][:, 2, [1, 4]] = [0.5, 0.5 + 2**-52]  # the two clues, of which the sum rounds to more than 1
    kinds = {"reader": results["kinds"]["reader"] | {"story": story}}
    importlib.import_module("_text_page").one_story(cli.console(), results | {"kinds": kinds}, 2)
    (rest,) = [line for line in capsys.readouterr().out.splitlines() if "all other words" in line]
    assert rest.split()[3:] == ["0.00"] * 5


def test_what_takes_several_readers_is_not_said_of_one(results):
    of = importlib.import_module("_text_page").not_shown
    several, one = (" ".join(of(results | {"readers": n})) for n in (3, 1))
    right = results["kinds"]["reader"]["right"]["held"]
    assert f"Anything unique: readers that are right of {np.mean(right['mean']):.0%}" in several
    story = results["kinds"]["reader"]["story"]
    least, most = (np.array(story[name])[-1, 2, 1] for name in ("least", "most"))
    assert f"by the reader, river has from {least:.0%} to {most:.0%} of its attention." in several
    assert "one reader cannot show it: take --readers 2 or more." in one
    assert "by the reader" not in one
    story = dict(results["kinds"]["reader"]["story"])
    story["mean"] = np.array(story["mean"])
    sums = story["mean"][-1, :2, [1, 4]].sum(0)
    same = "Where it looks is much the same; what it finds there differs."
    assert (same in several) == (abs(sums[0] - sums[1]) < 0.25)
    story["mean"][-1, 0, [1, 4]] = 0
    apart = results["kinds"] | {"reader": results["kinds"]["reader"] | {"story": story}}
    assert "Where it looks differs as well." in " ".join(of(results | {"kinds": apart}))


def test_what_cutting_the_clues_off_costs_is_what_was_measured(results):
    of = importlib.import_module("_text_page").not_shown
    reader = results["kinds"]["reader"]
    untrained = reader | {"right": reader["right"] | {"held": reader["right"]["cut"]}}
    said = " ".join(of(results | {"kinds": results["kinds"] | {"reader": untrained}}))
    assert "With its clues cut off the reader is right of 50% in place of 50%" in said
    assert "did matter" not in said


def test_attention_is_said_to_help_only_where_it_did(results):
    of = importlib.import_module("_text_page").not_shown
    kinds = dict(results["kinds"])
    for kind, share in (("reader", 0.5), ("uniform", 0.98)):
        right = kinds[kind]["right"]
        held = right["held"] | {"mean": np.full(4, share)}
        kinds[kind] = kinds[kind] | {"right": right | {"held": held}}
    helped, hurt = (" ".join(of(r)) for r in (results, results | {"kinds": kinds}))
    reader, uniform = (np.mean(results["kinds"][kind]["right"]["held"]["mean"]) for kind in ("reader", "uniform"))
    assert ("attention makes the sum cleaner" in helped) == (reader > uniform)
    assert "is right of 98%, one that is free of 50%. Attention does not make the sum cleaner here." in hurt


def test_the_picture_shows_the_numbers(results):
    png, svg = map(Path, results["pictures"])
    assert svg.exists()
    image = imread(png)
    assert image.shape[0] > 900
    assert image[..., :3].std() > 0.1
    axes = picture.draw(results).axes
    assert len(axes) == len(texts.STORY) + len(texts.RELATIONS)
    shown = [line for line in axes[0].lines if line.get_label() == "river"]
    np.testing.assert_array_equal(shown[0].get_ydata(), np.array(results["kinds"]["reader"]["story"]["mean"])[:, 0, 1])


REFUSED = [
    (["--steps", "19"], "--steps 19: must be from 20 to 2000. Leave it out."),
    (["--readers", "65"], "--readers 65: must be from 1 to 64. Leave it out."),
    (["--rate", "nan"], "--rate nan: must be a number above 0. Leave it out for 0.01."),
    (["--rate", "-1"], "--rate -1: must be a number above 0. Leave it out for 0.01."),
    (["--out", __file__], f"--out {__file__}: is a file, or lies below one. Name a folder."),
    (["--steps", "many"], "argument --steps: invalid int value: 'many'. Run it with --help for what it takes."),
]


def test_help_says_what_it_shows_and_takes():
    said = demo.arguments().format_help()
    assert demo.__doc__.splitlines()[0] in said
    assert {"--steps", "--readers", "--rate", "--seed", "--out", "--json"} <= set(
        said.replace("[", " ").replace("]", " ").split()
    )


@pytest.mark.parametrize(("argv", "says"), REFUSED, ids=[" ".join(argv)[:15] for argv, _ in REFUSED])
def test_bad_input_is_one_line_and_status_2(argv, says, monkeypatch, capsys):
    assert refusal(demo, argv, monkeypatch, capsys) == f"learns_from_text.py: {says}\n"
