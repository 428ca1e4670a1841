"""The sheet of masks and scores: its counts against the dense picture, its page, and how it refuses."""

import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from jattn import masks

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, demo, sheet = (importlib.import_module(name) for name in ("_cli", "masks_and_scores", "_sheet"))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("sheet")
    return cli.evaluate(demo.compute, demo.arguments().parse_args(["--out", str(out)]))


def test_each_mask_visits_the_tiles_that_hold_a_pair(results):
    for m in results["masks"]:
        told = np.array(m["told"])
        assert m["visited"] == (told > 0).sum(), m["mask"]
        assert m["visited"] == m["hold"], m["mask"]
        assert m["whole"] == (told == 2).sum()
        assert m["hold"] >= m["pairs"] * 64
    assert {m["mask"] for m in results["masks"]} == set(sheet.every_mask())


def test_each_mask_of_jattn_is_on_the_sheet():
    makes = {name for name in masks.__all__ if inspect.isfunction(getattr(masks, name))} - {"picture", "to_dense"}
    shown = set(re.findall(r"(\w+)\(", " ".join(sheet.every_mask())))
    assert makes - {"block_state"} <= shown


def test_the_scores_are_their_formulas(results):
    np.testing.assert_allclose(results["scores"]["alibi(0.05)"], -0.05 * np.arange(128), rtol=1e-6)
    table = np.array(results["table"])
    far = np.minimum(np.arange(128), 15) + 15
    np.testing.assert_allclose(results["scores"]["distance_bias(table)"], table[:31][far], rtol=1e-6)
    assert results["scores"]["relative_bias(table)"][127] == pytest.approx(table[31])


def test_the_sheet_has_a_panel_for_each_and_is_there_whole(results):
    (path,) = results["pictures"]
    assert Path(path).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    rows = [m | {"dense": np.zeros((128, 128), bool)} for m in results["masks"]]
    figure = sheet.draw(rows, {code: np.zeros((128, 128)) for code in sheet.every_score()})
    titles = [ax.get_title().splitlines()[0] for ax in figure.axes if ax.get_title()]
    assert titles == [*sheet.every_mask(), *sheet.every_score(), *sheet.CURVES]


def test_the_page_is_80_wide_and_its_json_holds_the_same(results, monkeypatch, capsys):
    demo.show(cli.console(), results)
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines()[:-1])) <= 80  # the last line is a path
    assert "…" not in page
    assert "64 of 64 tiles" in page
    monkeypatch.setattr(sys, "argv", ["masks_and_scores.py", "--json"])
    cli.run(demo.arguments(), lambda args: results, demo.show)
    assert json.loads(capsys.readouterr().out) == results


def test_a_folder_that_is_a_file_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "out").write_text("")
    monkeypatch.setattr(demo, "every_mask", dict)
    monkeypatch.setattr(demo, "draw", lambda rows, made: sheet.Figure())
    monkeypatch.setattr(sys, "argv", ["masks_and_scores.py", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stopped:
        cli.run(demo.arguments(), demo.compute, demo.show)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("masks_and_scores.py: --out ")


def test_help_says_what_it_shows(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["masks_and_scores.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        cli.run(demo.arguments(), demo.compute, demo.show)
    assert stopped.value.code == 0
    assert demo.__doc__.splitlines()[0] in capsys.readouterr().out
