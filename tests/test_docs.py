"""The check of the site sees what is wrong with one; `make docs` runs it over the site that it built.

What the site says of messages and extras, and the recipe for conda, follow what they are made from.
"""

import importlib.util
import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

import jattn

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]


def load(file):
    spec = importlib.util.spec_from_file_location(Path(file).stem.strip("_"), ROOT / file)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


check, links, messages = load("docs/_check.py"), load("docs/_links.py"), load("docs/_messages.py")
extras = load("benchmarks/how_large_is_each_extra.py")
RIGHT = (
    '<h2 id="jattn.attention">attention</h2><img src="a.png" alt="a head"><a href="https://example.org">elsewhere</a>'
)


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        (RIGHT, None),
        (RIGHT.replace("jattn.attention", "jattn.atention"), "jattn.attention has no place on the site"),
        (RIGHT.replace('alt="a head"', ""), "index.html: the picture a.png has no text"),
        (RIGHT + "<iframe src=x.html></iframe>", "index.html: the frame x.html has no text"),
        (RIGHT + '<iframe src="x.html" title="a page"></iframe>', None),
        (RIGHT + "<script src=https://a.org/x.js></script>", "index.html: asks a network for https://a.org/x.js"),
        (RIGHT + "<link rel=stylesheet href=//a.org/x.css>", "index.html: asks a network for //a.org/x.css"),
    ],
)  # fmt: skip
def test_a_fault_of_the_site_is_a_line(page, fault):
    assert list(check.faults({"index.html": page}, ["jattn.attention"])) == ([] if fault is None else [fault])


def test_the_names_are_those_of_the_package():
    assert check.public(None) == [f"jattn.{name}" for name in jattn.__all__]
    assert check.public("masks") == [f"jattn.masks.{name}" for name in jattn.masks.__all__]


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
PAGES = [file for pattern in ("*.md", "docs/**/*.md", "demos/*.md") for file in sorted(ROOT.glob(pattern))] + NOTEBOOKS


def lost_links(text, folder):
    """What a page links to or shows and the repository does not have."""
    text = re.sub(r"`[^`]*`", "", text)
    for link in re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'\b(?:src|href)="([^"#]+)', text):
        if not link.startswith("http") and not (folder / link).exists():
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_links_to_what_is_there(page):
    assert list(lost_links(page.read_text(encoding="utf-8"), page.parent)) == []


def test_a_lost_link_is_seen():
    text = """[a](attention.md), [b](gone.md), [c](notebooks/bank_walk.py#x), [d](notebooks/bank_walk.md), [e](#here),
    [f](https://example.org), <iframe src="live/explore.html"></iframe>, `[g](gone.md)`"""
    assert list(lost_links(text, ROOT / "docs")) == ["gone.md", "notebooks/bank_walk.md", "live/explore.html"]


def test_on_the_site_a_link_leads_to_what_the_build_makes_of_a_file():
    def on_the_site(text, top=True):
        return links.on_the_site(text, ["bank_walk"], top)

    assert on_the_site("[a](notebooks/bank_walk.py), [b](../x.md)") == "[a](notebooks/bank_walk.md), [b](x.md)"
    assert on_the_site("[a](bank_walk.py), [b](../x.md)", top=False) == "[a](bank_walk.md), [b](../x.md)"
    assert on_the_site("[a](notebooks/another.py), [b](x.md)") == "[a](notebooks/another.py), [b](x.md)"
    shown = on_the_site("<!-- live explore: A sentence: its heads -->")
    assert "[Alone in a window](live/explore.html)" in shown
    assert '<iframe src="live/explore.html" title="A sentence: its heads"' in shown


def test_a_live_page_is_that_of_a_demo_named_above_it():
    text = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")
    assert len(links.live(text)) > 1
    for section in text.split("\n## ")[1:]:
        for name in links.live(section):
            assert (ROOT / "demos" / f"{name}.py").exists()
            assert f"`python demos/{name}.py`" in section


def test_a_message_is_a_line_of_its_function_once():
    rows = [
        (None, ValueError, "attention: q must be [T, D], got q [3]. Map a batch | with jax.vmap."),
        (None, ValueError, "attention: q must be [T, D], got q [7]. Map a batch | with jax.vmap."),
        (None, TypeError, "merge: a must be a pair, got a of type int. Pass a pair."),
    ]
    page = messages.page(rows)
    assert "2 in all, of 2 functions" in page
    assert page.count("| ValueError |") == page.count("| TypeError |") == 1
    assert page.index("## attention") < page.index("q &#91;3&#93;") < page.index("## merge")
    assert "batch &#124; with" in page
    assert "q &#91;7&#93;" not in page


def test_every_message_of_the_table_is_on_the_page():
    table = messages.table()
    assert len(table) > 200
    page, lines = messages.page(), {messages.FORM.match(m).group("who", "must", "remedy") for *_, m in table}
    assert f"{len(lines)} in all, of {len({who for who, *_ in lines})} functions" in page
    for who, must, remedy in lines:
        section = page.split(f"\n## {who}\n")[1].split("\n## ")[0]
        assert f"| {messages.cell(must)}, got " in section
        assert f"| {messages.cell(remedy)} |" in section


def test_all_is_every_extra_of_a_user_and_each_has_its_size():
    own, rows = PROJECT["optional-dependencies"], list(extras.MEANT)
    assert set(rows) == set(own) - {"bench", "compile"}
    assert own["all"] == [f"jattn[{','.join(sorted(rows[: rows.index('all')]))}]"]
    told = (ROOT / "benchmarks" / "results" / "how_large_is_each_extra.md").read_text(encoding="utf-8")
    assert re.findall(r"`jattn\[(\w+)\]` \| .* \| \d+ \| \d+ \|", told) == rows


def test_an_extra_brings_what_its_requirements_bring_and_says_what_is_not_installed():
    own = {"a": ["jaxtyping", "jattn[b]"], "b": ["no-such-package"]}
    found, missing = extras.needs(["jattn[a]"], own, [])
    assert missing == {"no-such-package"}
    assert {"jaxtyping", "wadler-lindig"} <= set(found)
    assert extras.size(found) > 10_000


def test_the_recipe_for_conda_asks_for_what_the_package_asks_for():
    yaml = pytest.importorskip("yaml", reason="reads the recipe; jupytext brings it")
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    run = [line.replace(" ", "") for line in recipe["requirements"]["run"]]
    assert run[0] == "python>=${{python_min}}"
    assert PROJECT["requires-python"] == f">={recipe['context']['python_min']}"
    assert run[1:] == PROJECT["dependencies"]
    assert recipe["context"]["version"] == jattn.__version__
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert recipe["about"]["license"] == PROJECT["license"]


def test_what_the_tests_read_is_in_the_sdist():
    texts = "".join(file.read_text(encoding="utf-8") for file in ROOT.glob("tests/*.py"))
    read = {*re.findall(r'(?:ROOT|parents\[1\]) / "([\w.]+)"', texts), *(page.name for page in ROOT.glob("*.md"))}
    assert {"benchmarks", "conda", "constraints", "demos", "docs", "CONTRIBUTING.md"} <= read
    assert read - set(SETTINGS["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]) == {"pyproject.toml"}


def test_the_readme_of_a_release_links_to_its_tag(monkeypatch):
    interface = types.SimpleNamespace(MetadataHookInterface=object)  # hatchling is where the package is built, not here
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    hook = load("hatch_build.py").Addresses()
    hook.root, text = ROOT, (ROOT / "README.md").read_text(encoding="utf-8")

    def readme(repository):
        monkeypatch.setenv("JATTN_REPOSITORY", repository)
        made = {"version": "1.2.3"}
        hook.update(made)
        return made["readme"]["text"], made.get("urls", {}).get("Source")

    assert readme("") == (text, None)
    found, source = readme("https://github.com/someone/jattn")
    assert source == "https://github.com/someone/jattn"
    links, was = (re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", x) for x in (found, text))
    assert links == [(mark, f"{source}/{'raw' if mark else 'blob'}/v1.2.3/{at}") for mark, at in was]
    assert found.replace(f"{source}/raw/v1.2.3/", "").replace(f"{source}/blob/v1.2.3/", "") == text
