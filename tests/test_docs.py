"""The check of the site sees what is wrong with one; `make docs` runs it over the site that it built."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "docs" / "_check.py"
spec = importlib.util.spec_from_file_location("docs_check", FILE)
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)
RIGHT = (
    '<h2 id="jattn.attention">attention</h2><img src="a.png" alt="a head"><a href="https://example.org">elsewhere</a>'
)


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        (RIGHT, None),
        (RIGHT.replace("jattn.attention", "jattn.atention"), "jattn.attention has no place on the site"),
        (RIGHT.replace('alt="a head"', ""), "index.html: the picture a.png has no text"),
        (RIGHT + "<script src=https://a.org/x.js></script>", "index.html: asks a network for https://a.org/x.js"),
        (RIGHT + "<link rel=stylesheet href=//a.org/x.css>", "index.html: asks a network for //a.org/x.css"),
    ],
)  # fmt: skip
def test_a_fault_of_the_site_is_a_line(page, fault):
    assert list(check.faults({"index.html": page}, ["jattn.attention"])) == ([] if fault is None else [fault])


def test_the_names_are_those_of_the_package():
    import jattn

    assert check.public(None) == [f"jattn.{name}" for name in jattn.__all__]
    assert check.public("masks") == [f"jattn.masks.{name}" for name in jattn.masks.__all__]
