"""What every walkthrough does alike: how it trains, refuses, what its help says, and its results as JSON."""

import contextlib
import importlib
import json
import sys
from pathlib import Path

import conftest
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "demos"))
cli = importlib.import_module("_cli")


@contextlib.contextmanager
def compiled_for_many_steps():
    """Between the two ways to compile: with no optimisation a training runs long, with all of it it compiles long."""
    with pytest.MonkeyPatch.context() as patch:
        if conftest.options:  # the test is marked `structure`, without --all
            patch.setitem(conftest.options, "xla_backend_optimization_level", 1)
        yield


def refusal(demo, argv, monkeypatch, capsys):
    """The one line on standard error with which a walkthrough ends, with status 2, where its arguments are bad."""
    monkeypatch.setattr(sys, "argv", [f"{demo.__name__}.py", *argv])
    with pytest.raises(SystemExit) as stopped:
        cli.run(demo.arguments(), demo.compute, demo.show)
    out, err = capsys.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 1)
    return err


def assert_help_begins_as_the_page(demo, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{demo.__name__}.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        cli.run(demo.arguments(), demo.compute, demo.show)
    assert stopped.value.code == 0
    assert demo.__doc__.splitlines()[0] in capsys.readouterr().out


def page_of(demo, results, monkeypatch, capsys):
    """What it prints of its results: at most 80 wide, nothing cut off, and as JSON the results themselves."""
    demo.show(cli.console(), results)
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    assert "…" not in page
    monkeypatch.setattr(sys, "argv", [f"{demo.__name__}.py", "--json"])
    cli.run(demo.arguments(), lambda args: results, demo.show)
    assert json.loads(capsys.readouterr().out) == results
    return page
