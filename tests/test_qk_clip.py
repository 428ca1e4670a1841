"""QK-clip: what the demo says of its runs holds of their numbers, and its measurements are those of the definition."""

import importlib
import json
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _demos import compiled_for_many_steps, refusal
from _inputs import assert_close
from matplotlib.image import imread
from rich.cells import cell_len

from jattn import heads, positions, reference

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, training, page, demo = (importlib.import_module(name) for name in ("_cli", "_qk_training", "_qk_page", "qk_clip"))


def arguments(*argv):
    return demo.arguments().parse_args(list(map(str, argv)))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Of a shorter run than a reader of the page would start: the loss turns later."""
    out = tmp_path_factory.mktemp("clip")
    with compiled_for_many_steps():
        return cli.evaluate(demo.compute, arguments("--seeds", 2, "--epochs", 4, "--out", out))


@pytest.fixture(scope="module")
def model():
    """Parameters whose first heads have logits far above one, and a few texts."""
    params = training.fresh(np.random.default_rng(3))
    params["layers"]["attend"]["q"][:, :, 0] *= np.float32(40)
    text = training.letters()[: 3 * (training.T + 1)].reshape(3, -1)
    return jax.tree.map(jnp.asarray, params), jnp.asarray(text)


def test_without_the_clip_the_logits_grow_and_attention_does_harm(results):
    assert page.counts(results)["broken"] == len(results["seeds"])
    s = {run: {name: np.array(x) for name, x in of.items()} for run, of in results["series"].items()}
    logits = s["unclipped"]["max_logit"]
    assert (logits[:, -1] > 30 * results["threshold"]).all()
    assert (s["unclipped"]["entropy"][:, -1] < 0.02).all()
    np.testing.assert_allclose(s["uniform"]["entropy"][:, 1:], 1, atol=1e-6)  # after its first clip


def test_with_the_clip_it_does_not_turn_and_the_logits_stay_near_the_threshold(results):
    of, n, tau = page.counts(results), len(results["seeds"]), results["threshold"]
    assert (of["rose_clipped"], of["better"]) == (0, n)
    most = np.max(results["series"]["clipped"]["max_logit"])
    assert tau < most < 3 * tau  # it acts after the step
    assert (np.array(results["series"]["clipped"]["entropy"])[:, -1] > 0.05).all()


def test_until_the_clip_first_acts_both_runs_are_the_same(results):
    for over, apart in zip(results["first_over"], results["first_apart"], strict=True):
        assert 0 < over < results["steps"] - 1
        assert apart == over + 1  # the step after
    assert 0.5 < results["acted"]["large"] < 1


def test_a_smaller_learning_rate_is_the_better_remedy(results):
    of, n = page.counts(results), len(results["seeds"])
    assert of["small_better"] == n
    assert results["acted"]["small"] < results["acted"]["large"]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU works on larger tiles, and on all heads at once")
def test_the_statistics_take_a_fraction_of_the_memory_of_the_dense_form(results):
    assert results["bytes"]["reference"] > 4 * demo.LONG**2
    assert results["bytes"]["statistics"] < results["bytes"]["reference"] / 20


@jax.jit
def dense_loss(params, text):
    """(loss, largest logits, entropies) with every pair of attention written out."""
    x, seen = params["embed"][text[:, :-1]] * training.E**0.5, []
    causal, most = np.tri(training.T, dtype=bool), np.log(np.arange(2, training.T + 1, dtype=np.float32))[None, None]
    for i in range(training.LAYERS):
        w, y = jax.tree.map(lambda a, i=i: a[i], params["layers"]), training.norm(x)
        q, k, v = jax.vmap(partial(heads.project, rope=positions.rotary), (None, 0))(w["attend"], y)
        steps, _ = jax.vmap(jax.vmap(partial(reference.steps, mask=causal)))(q, k, v)
        entropy = -jax.scipy.special.xlogy(steps.weights, steps.weights).sum(-1)[:, :, 1:] / most
        seen.append((steps.scaled.max((0, 2, 3)), entropy.mean((0, 2))))
        x = x + jax.vmap(heads.output, (None, 0, 0))(w["attend"], steps.out, y)
        x = x + jax.nn.gelu(training.norm(x) @ w["up"]) @ w["down"]
    logits = jax.nn.log_softmax(training.norm(x) @ params["embed"].T)
    value = -jnp.take_along_axis(logits, text[:, 1:, None], -1).mean()
    return value, *(jnp.stack(a) for a in zip(*seen, strict=True))


def test_what_a_step_sees_is_the_definition(model):
    assert_close(jax.jit(training.loss)(*model)[1], dense_loss(*model), ulps=256)


def test_the_clip_brings_each_head_to_the_threshold_and_leaves_the_others(model):
    params, text = model
    before = jax.jit(training.loss)(params, text)[1].max_logit
    threshold = np.float32(before[:, 1].max() + 1)
    assert before[0, 0] > threshold
    assert not (before[:, 1] > threshold).any()
    clipped = training.clip(params, before, threshold)
    after = jax.jit(training.loss)(clipped, text)[1].max_logit
    assert_close(after[0, 0], threshold, ulps=64)  # the second layer sees another input
    for name in "qk":
        old, new = params["layers"]["attend"][name], clipped["layers"]["attend"][name]
        np.testing.assert_array_equal(new[:, :, 1], old[:, :, 1])
        assert np.all(np.abs(new[0, :, 0]) < np.abs(old[0, :, 0]))
    low = training.clip(params, -jnp.ones_like(before), threshold)  # no root of a negative number
    jax.tree.map(np.testing.assert_array_equal, low, params)


def test_a_pass_over_the_text_reads_each_letter_once():
    text = training.letters()
    steps = training.in_an_epoch(text)
    assert 0 <= len(text) - 1 - steps * training.B * training.T < (training.B + 1) * training.T
    assert set(text) == set(range(training.SYMBOLS))


def test_the_page_fits_80_columns_and_says_what_was_measured(results):
    paper = cli.console()
    with paper.capture() as captured:
        demo.show(paper, results)
    text = captured.get()
    assert max(cell_len(line) for line in text.splitlines() if not line.startswith("Pictures:")) <= 80
    assert "…" not in text
    words = " ".join(text.split())
    for what in ("of 2 seeds, of the clipped run in 0. It is worse", "attention is held uniform in 2 of 2",
                 "Not true: that no logit is above τ", "at the last step of each pass"):  # fmt: skip
        assert what in words
    json.dumps(results, allow_nan=False)


def test_a_difference_that_rounds_to_0_is_written_without_a_sign(results):
    end = results["end"] | {"small": results["end"]["small"] | {"unclipped": [1.4999], "clipped": [1.5]}}
    said = " ".join(importlib.import_module("_qk_page").verdicts(results | {"end": end}))
    assert "ended lower in 0 of 2, by 0.000 in the mean" in said


def test_a_claim_that_no_seed_bears_out_is_not_made(results):
    verdicts = importlib.import_module("_qk_page").verdicts
    end = {"large": results["end"]["small"], "small": results["end"]["large"]}
    usual, other = (" ".join(verdicts(r)) for r in (results, results | {"end": end}))
    assert "Not true: that it replaces a smaller learning rate." in usual
    assert "Not refuted: that it replaces a smaller learning rate." in other
    assert "held uniform in 0 of 2: where it is, attention does harm." in other


def test_a_clip_that_never_acts_is_not_judged(results):
    page = importlib.import_module("_qk_page")
    quiet = jax.tree.map(lambda x: np.minimum(x, 20.0), results["series"]["clipped"]["max_logit"])
    series = results["series"] | {"clipped": results["series"]["clipped"] | {"max_logit": quiet}}
    never = " ".join(page.verdicts(results | {"series": series, "acted": {"large": 0.0, "small": 0.0}}))
    assert "Not tried: the clip. It acts on what is above τ alone, and the largest seen is 20.0, 0.7 times τ" in never
    for said in ("no logit is above", "changes the end"):
        assert said in " ".join(page.verdicts(results))
        assert said not in never


def test_the_picture_shows_the_numbers(results):
    png, svg = map(Path, results["pictures"])
    assert svg.exists()
    assert imread(png)[..., :3].std() > 0.1
    axes = importlib.import_module("_qk_picture").draw(results).axes
    shown = {line.get_label(): line.get_ydata() for line in axes[2].lines}
    for run, name in importlib.import_module("_qk_picture").NAMES.items():
        np.testing.assert_allclose(shown[name], np.mean(results["series"][run]["loss"], 0), rtol=1e-12)


FLOAT32 = "must be from 1e-30 to 3e+38. Leave it out."
REFUSED = [
    (["--epochs", "1"], "--epochs 1: must be from 2 to 50. Leave it out."),
    (["--seeds", "65"], "--seeds 65: must be from 1 to 64. Leave it out."),
    (["--rate", "0"], f"--rate 0: {FLOAT32}"),
    (["--rate", "1e300"], f"--rate 1e+300: {FLOAT32}"),
    (["--small-rate", "nan"], f"--small-rate nan: {FLOAT32}"),
    (["--threshold", "inf"], f"--threshold inf: {FLOAT32}"),
    (["--small-rate", "0.05"], "--small-rate 0.05: must be below --rate 0.05. Give a smaller one."),
    (["--out", __file__], f"--out {__file__}: is a file, or lies below one. Name a folder."),
]


@pytest.mark.parametrize(("argv", "says"), REFUSED, ids=[" ".join(argv)[:15] for argv, _ in REFUSED])
def test_bad_input_is_one_line_and_status_2(argv, says, monkeypatch, capsys):
    assert refusal(demo, argv, monkeypatch, capsys) == f"qk_clip.py: {says}\n"


@pytest.mark.parametrize("flag", ["--rate", "--small-rate"])
def test_a_training_that_leaves_float32_is_refused_at_either_rate(flag, monkeypatch, capsys):
    rates = {"--rate": "3e38", "--small-rate": "2e38"}

    def train_seeds(seeds, thresholds, rate, epochs):
        left = np.float32(np.nan if f"{rate:g}" == f"{float(rates[flag]):g}" else 1)
        return training.Seen(np.full((3, 1, 4), left), *np.ones((2, 3, 1, 4, 2, 2), np.float32))

    monkeypatch.setattr(demo, "train_seeds", train_seeds)
    monkeypatch.setattr(demo, "temporaries", dict)
    said = refusal(demo, [x for pair in rates.items() for x in pair], monkeypatch, capsys)
    number = rates[flag].replace("e", "e+")
    assert said == f"qk_clip.py: {flag} {number}: the training left what float32 can hold. Give a smaller rate.\n"
