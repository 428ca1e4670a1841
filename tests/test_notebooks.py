"""The notebooks of docs/notebooks: each is run whole, shows something, and its pictures say what they show."""

import sys
from pathlib import Path

import pytest
from _children import environment

pytest.importorskip("jupytext", reason="reads the notebooks: pip install 'jattn[dev]'")
pytest.importorskip("nbclient", reason="runs the notebooks: pip install 'jattn[dev]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import _kept as kept
import _notebooks as notebooks
import jupytext
from nbclient.exceptions import CellExecutionError

pytestmark = pytest.mark.structure


def shown(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def kinds(outputs):
    return {kind for output in outputs if output.output_type != "stream" for kind in output.data}


@pytest.mark.parametrize("name", notebooks.names())
def test_a_notebook_runs_and_shows_what_it_says(name, monkeypatch):
    if missing := notebooks.missing(name):
        pytest.skip(f"{', '.join(missing)} not installed: pip install 'jattn[pretrained]'; make test adds the weights")
    if not any(map(notebooks.optimised, notebooks.read(name).cells)):
        monkeypatch.setenv("XLA_FLAGS", environment()["XLA_FLAGS"])
    notebook = notebooks.executed(name)
    outputs = shown(notebook)
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    assert outputs
    text, made = notebooks.page(notebook, name)
    assert text.count('<div class="output"') == len(made) > 0
    assert "<img src" not in "".join(made), "a picture without alt"
    if name not in ("hvp_and_meanflow", "eight_devices"):  # figures, parts, steps and masks show themselves
        assert kinds(outputs) & {"image/png", "text/html"}


def test_a_notebook_is_run_again_when_what_it_is_made_of_changes(tmp_path, monkeypatch):
    """And only then: what `make docs` ran is not run again here, nor there what is run here."""
    runs = []
    monkeypatch.setattr(kept, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "run", lambda notebook: runs.append(notebook) or notebook)
    files = [tmp_path / name for name in ("jattn/engine/a.py", "docs/_notebooks.py", "docs/notebooks/bank_walk.py")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")

    def ran():
        before = len(runs)
        found = [[cell.source for cell in get("bank_walk").cells] for get in (notebooks.executed, notebooks.read)]
        assert found[0] == found[1]
        assert len(list((tmp_path / "kept").iterdir())) == 1
        return len(runs) - before

    assert (ran(), ran()) == (1, 0)
    for file in files:
        file.write_text("2")
        assert (ran(), ran()) == (1, 0)
    files[0].rename(files[0].with_name("b.py"))
    assert (ran(), ran()) == (1, 0)
    (tmp_path / "README.md").write_text("no part of it")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "where make test keeps programs, and make docs does not")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    assert ran() == 0
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert (ran(), ran()) == (1, 0)
    for change in (["jax 99.0"], []):
        monkeypatch.setattr(kept, "versions", lambda change=change: change)
        assert (ran(), ran()) == (1, 0)


@pytest.mark.parametrize("name", notebooks.names())
def test_a_notebook_is_installed_by_one_line_and_begins_with_its_name(name):
    notebook = notebooks.read(name)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[0].source.startswith("# ")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    installs = ["install" in cell.metadata.get("tags", ()) for cell in code]
    assert installs == [True] + [False] * (len(code) - 1)
    assert len(code[0].source.splitlines()) == 1
    assert "pip install" in code[0].source


@pytest.mark.parametrize("name", notebooks.names())
def test_a_published_notebook_opens_in_colab(name, monkeypatch):
    notebook = notebooks.read(name)
    monkeypatch.delenv("JATTN_REPOSITORY", raising=False)
    assert "in Colab where it is uploaded" in notebooks.page(notebook, name)[0]
    monkeypatch.setenv("JATTN_REPOSITORY", "https://github.com/someone/jattn")
    at = f"https://colab.research.google.com/github/someone/jattn/blob/gh-pages/notebooks/{name}.ipynb"
    assert f"[in Colab]({at})" in notebooks.page(notebook, name)[0]


def test_six_notebooks_are_found():
    assert len(notebooks.names()) == 6


def test_a_notebook_whose_packages_are_not_installed_says_so_on_its_page(monkeypatch):
    notebook = notebooks.read("bank_walk")
    assert "was not run" not in notebooks.page(notebook, "bank_walk")[0]
    monkeypatch.setitem(notebooks.NEEDS, "bank_walk", ("jattn", "no_such_package"))
    assert notebooks.missing("bank_walk") == ["no_such_package"]
    text, outputs = notebooks.page(notebook, "bank_walk")
    assert "It was not run where this site was built: no_such_package not installed." in text
    assert outputs == []


def test_what_a_notebook_asserts_fails_it_and_a_picture_without_alt_is_seen():
    """The controls, in one kernel: a picture without a name, then an assertion that does not hold."""
    notebook = notebooks.read("bank_walk")
    drawn = "# %%\n# %matplotlib inline\nfrom matplotlib.figure import Figure\nFigure().subplots().figure\n\n"
    notebook.cells = jupytext.reads(drawn + "# %%\nassert 1 > 2\n", fmt="py:percent").cells
    with pytest.raises(CellExecutionError, match="assert 1 > 2"):
        notebooks.run(notebook)
    picture = shown(notebook)[0]
    assert kinds([picture]) >= {"image/png"}
    assert notebooks.shown(picture, None).startswith("<img src")
    assert notebooks.shown(picture, "a head").startswith('<img alt="a head"')
