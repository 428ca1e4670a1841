"""A recorder in two training loops of other people: what it kept is what the models did, and the loops do as before."""

import functools
import importlib
import inspect
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _demos import assert_help_begins_as_the_page, refusal
from jax import random
from matplotlib.image import imread

from jattn import flow, reference

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, demo, models, texts = (importlib.import_module(n) for n in ("_cli", "any_training_loop", "_two_models", "_corpus"))
STEPS = 32


@pytest.fixture(scope="module", params=["heads", "flax"])
def results(request, tmp_path_factory):
    argv = ["--model", request.param, "--steps", str(STEPS), "--out", str(tmp_path_factory.mktemp("recorded"))]
    return cli.evaluate(demo.compute, demo.arguments().parse_args(argv))


@pytest.fixture(scope="module")
def corpus():
    with jax.enable_x64(True):
        return texts.corpus(0)


def test_the_file_holds_a_training_that_learns(results):
    run = flow.Recorder(results["files"][0]).run()
    assert run["steps"].tolist() == [*flow.log_steps(STEPS)]
    assert np.array_equal(run["heads"]["weights"][:, results["head"]], results["run"]["weights"])
    assert abs(run["right"][0] - 0.5) < 0.2
    assert run["right"][-1] > 0.95
    assert run["loss"][-1] < 0.01
    np.testing.assert_allclose(run["heads"]["weights"].sum(-1), 1, atol=1e-6)
    assert 0 < results["off"] < 1e-6 < max(results["slope"])


@pytest.mark.filterwarnings("ignore:Using:DeprecationWarning")  # flax says so of its own sow too
def test_what_was_kept_first_is_what_the_model_did(results, corpus, x64):
    """Of the model on jattn.heads by the reference, of that of flax by its own `sow`."""
    (c, words), run = corpus, flow.Recorder(results["files"][0]).run()
    one = jax.tree.map(lambda x: x[0], c.story)
    n, t, longest = int(one.n), int(one.asks), c.train.ids.shape[1]
    found = run["heads"]["weights"][0]
    if results["model"] == "heads":
        w = models.fresh(random.key(0), len(words), longest)
        x = (w["E"][one.ids] + w["P"])[:n]
        q, k = (jnp.einsum("te,ehd->htd", x, w["attend"][name]) for name in "qk")
        want = jax.jit(jax.vmap(lambda q, k: reference.steps(q, k, k)[0].weights[t]))(q, k)
    else:
        from flax import nnx

        from jattn.hosts.flax import attention_fn

        model = models.flax_reader(0, len(words), longest)
        model.attend.attention_fn = functools.partial(attention_fn, rows=jnp.array([t]))
        graph, state = nnx.split(model)

        @jax.jit
        def sown(state):
            model = nnx.merge(graph, state)
            x = model.words(one.ids[:n]) + model.places(jnp.arange(n))
            model.attend(x[None], sow_weights=True)
            return nnx.pop(model, nnx.Intermediate)

        (kept,) = jax.tree.leaves(sown(state))
        want = kept[0, :, 0]
    np.testing.assert_allclose(found, np.array(want), rtol=0, atol=1e-6)
    assert np.ptp(found) > 1e-3


def test_each_loop_speaks_of_its_recorder_in_one_line():
    for train in (models.train, models.train_flax):
        (line,) = [line.strip() for line in inspect.getsource(train).splitlines() if "recorder(" in line]
        assert line.startswith("recorder(i, ")
        assert line.endswith("# the one line")


def test_the_page_fits_80_columns_and_its_files_are_there(results):
    paper = cli.console()
    with paper.capture() as captured:
        demo.show(paper, results)
    text = captured.get()
    assert max(len(line) for line in text.splitlines() if not line.startswith("Files:")) <= 80
    assert "…" not in text
    for what in ("the pulls sum to −dL/dq", "held out", "measured", "max_logit", "water"):
        assert what in text
    json.dumps(results, allow_nan=False)
    npy, png, svg, html = map(Path, results["files"])
    assert np.load(npy).dtype.names == ("steps", "heads", "loss", "right")
    assert imread(png)[..., :3].std() > 0.05
    assert svg.exists()
    assert "any_training_loop" in html.read_text(encoding="utf-8")


REFUSED = [
    (["--steps", "19"], "--steps 19: must be from 20 to 5000. Leave it out."),
    (["--rate", "nan"], "--rate nan: must be a number above 0. Leave it out for 0.01."),
    (["--out", __file__], f"--out {__file__}: is a file, or lies below one. Name a folder."),
]


@pytest.mark.parametrize(("argv", "says"), REFUSED, ids=[argv[0] for argv, _ in REFUSED])
def test_bad_input_is_one_line_and_status_2(argv, says, monkeypatch, capsys):
    assert refusal(demo, argv, monkeypatch, capsys) == f"any_training_loop.py: {says}\n"


def test_help_says_what_it_shows(monkeypatch, capsys):
    assert_help_begins_as_the_page(demo, monkeypatch, capsys)
