"""The self-attention of real models, from their weights, by the recipes of demos/model_zoo.py."""

import importlib
import inspect
import json
import re
import runpy
import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs the models: pip install 'jattn[parity]'")
pytest.importorskip("transformers", reason="has the models: pip install 'jattn[parity]'")
FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
zoo, check = importlib.import_module("model_zoo"), importlib.import_module("_zoo_check")
# What transformers and torch warn of in their own code is not ours to mend.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.structure]

LAYERS = {model: 4 if model == "T5" else 2 for model in zoo.zoo.CONFIGS}


@pytest.mark.parametrize("model", zoo.zoo.CONFIGS)
def test_each_layer_is_reproduced_with_the_gradient_of_its_input(model):
    rows = zoo.compute(zoo.arguments().parse_args(["--model", model]))["rows"]
    forms = 2 if model == "DeepSeek-V3" else 1  # expanded and absorbed
    assert len(rows) == forms * LAYERS[model]
    for row in rows:
        assert row["value"] <= 1e-5, row
        assert row["gradient"] <= 1e-5, row


@pytest.mark.parametrize(
    ("model", "slip"),
    [
        ("Llama 3", zoo.mistral),  # the rotary not scaled
        ("Qwen 3", lambda w, c, x, layer: zoo.qwen_3({**w, "q_norm.weight": 0 * w["q_norm.weight"] + 1}, c, x, layer)),
        ("gpt-oss", zoo.mistral),  # no sinks
        ("Gemma 2", zoo.mistral),  # no soft cap
        ("T5", partial(zoo.t5, one_way=True)),  # an encoder that sees one way
        ("GPT-2", lambda w, c, x, layer: zoo.gpt2(w, c, x[::-1], layer)[::-1]),  # causal from the wrong end
    ],
    ids=["Llama 3", "Qwen 3", "gpt-oss", "Gemma 2", "T5", "GPT-2"],
)
def test_a_recipe_that_leaves_something_out_is_seen(model, slip):
    value, gradient = check.errors(next(zoo.zoo.layers(model)), slip)
    assert min(value, gradient) > 1e-3


def test_each_recipe_is_at_most_a_dozen_lines_and_uses_public_names():
    recipes = {f.func if isinstance(f, partial) else f for f in zoo.RECIPES.values()}
    assert len(recipes) == len(LAYERS)
    assert {name for name, f in inspect.getmembers(zoo, inspect.isfunction) if f in recipes} == {
        r.__name__ for r in recipes
    }
    for recipe in recipes:
        lines = [line for line in inspect.getsource(recipe).splitlines()[1:] if line.strip()]
        assert len(lines) <= 12, recipe.__name__
    used = re.findall(r"^from (jattn\S*) import", (FOLDER / "model_zoo.py").read_text(), re.M)
    assert used
    assert not any("_" in module for module in used)


def test_the_page_shows_every_layer_and_its_errors(monkeypatch, capsys):
    """The numbers of the file run as a script, and the page of these numbers."""
    argv = ["model_zoo.py", "--model", "GPT-2"]
    monkeypatch.setattr(sys, "argv", [*argv, "--json"])
    runpy.run_path(str(FOLDER / argv[0]), run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    rows = found["rows"]
    monkeypatch.setattr(sys, "argv", argv)
    zoo._cli.run(zoo.arguments(), lambda args: found, zoo.show)
    page = capsys.readouterr().out
    assert len(rows) == 2
    for row in rows:
        assert row["model"] in page
        assert f"{row['gradient']:.1e}" in page
    console = zoo._cli.console()
    with console.capture() as captured:
        zoo.show(
            console, {"limit": 1e-5, "rows": [rows[0] | {"model": n, "shows": check.SHOWS[n]} for n in zoo.RECIPES]}
        )
    assert "…" not in captured.get()
    assert zoo.LIMIT == 1e-5
