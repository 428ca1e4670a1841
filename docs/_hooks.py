"""What the site is made of beside docs/: files of the repository where their links expect them, and drawn formulas."""

import html
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
SHOWN = ("CHANGELOG.md", "CONTRIBUTING.md", "demos/ERRATA.md", "demos/pictures/*.png", "benchmarks/results/*.md")
FORMULA = re.compile(r'<(div|span) class="arithmatex">\\([\[(])(.*?)\\[\])]</\1>', re.DOTALL)


def on_files(files, config):
    """The pages and pictures that README.md and others link to, where a link relative to the root finds them."""
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_content(content, page, config, files):
    """Formulas as MathML, which browsers draw by themselves."""

    def drawn(found):
        display = "block" if found[2] == "[" else "inline"
        return convert(html.unescape(found[3]), display=display)

    return FORMULA.sub(drawn, content)
