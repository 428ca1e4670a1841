"""What the site is made of beside docs/: files of the repository where their links expect them, and what is made here.

Notebooks are run, demos write their pages, the messages come from the table of the tests, and formulas are drawn.
"""

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import _kept  # noqa: E402
import _links  # noqa: E402
import _messages  # noqa: E402
import _notebooks  # noqa: E402

LIVE = _links.live((ROOT / "docs" / "live.md").read_text(encoding="utf-8"))
OUTPUT = re.compile(r'<div class="output" id="output-(\d+)"></div>')
outputs = {}  # page → the HTML of the outputs of its cells
SHOWN = ("CHANGELOG.md", "CONTRIBUTING.md", "demos/ERRATA.md", "demos/pictures/*.png", "benchmarks/results/*.md")
FORMULA = re.compile(r'<(div|span) class="arithmatex">\\([\[(])(.*?)\\[\])]</\1>', re.DOTALL)


def run_notebook(name):
    """A notebook with its outputs; without, where a package that it needs is not installed."""
    return _notebooks.read(name) if _notebooks.missing(name) else _notebooks.executed(name)


def run_demo(name):
    """The page that a demo writes, which opens alone."""

    def make(path):
        with tempfile.TemporaryDirectory() as folder:
            out = str(Path(folder, f"{name}.html")) if name == "explore" else folder
            environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
            command = [sys.executable, str(ROOT / "demos" / f"{name}.py"), "--json", "--out", out]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            shutil.copy(next(Path(folder).glob("*.html")), path)

    return _kept.kept(name, "html", make, "demos/*.py")


def on_files(files, config):
    """The pages and pictures that README.md and others link to, where a link relative to the root finds them."""
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    with ThreadPoolExecutor(2) as pool:
        demos = {name: pool.submit(run_demo, name) for name in LIVE}
        notebooks = {name: pool.submit(run_notebook, name) for name in _notebooks.names()}
        for name, made in demos.items():
            files.append(File.generated(config, f"live/{name}.html", abs_src_path=str(made.result())))
        for name, made in notebooks.items():
            where, notebook = f"notebooks/{name}", made.result()
            text, outputs[f"{where}.md"] = _notebooks.page(notebook, name)
            files.append(File.generated(config, f"{where}.md", content=text))
            shown = InclusionLevel.INCLUDED  # unlike an .ipynb of one's own, paired with the text
            files.append(File.generated(config, f"{where}.ipynb", content=nbformat.writes(notebook), inclusion=shown))
    files.append(File.generated(config, "messages.md", content=_messages.page()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Pages link to files of the repository as they lie there; the site has other names and places for some."""
    return _links.on_the_site(markdown, _notebooks.names(), "/" not in page.file.src_uri)


def on_page_content(content, page, config, files):
    """Formulas as MathML, which browsers draw by themselves, and the outputs of cells."""

    def drawn(found):
        display = "block" if found[2] == "[" else "inline"
        return convert(html.unescape(found[3]), display=display)

    made = outputs.get(page.file.src_uri, ())
    return OUTPUT.sub(
        lambda found: f'<div class="output" tabindex="0">{made[int(found[1])]}</div>', FORMULA.sub(drawn, content)
    )
