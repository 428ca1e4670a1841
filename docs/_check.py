"""Reads the built site: each public name of jattn has its place, each picture and frame a text; no page asks a network.

python docs/_check.py build/docs
"""

import ast
import html.parser
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = ("masks", "scores", "positions", "heads", "cache", "sharding", "flow", "lab", "figures", "console", "page")
FILES = ("reference", "hosts.flax", "hosts.equinox", "hosts.haiku", "hosts.transformers")
"""Public modules that are files."""
FETCHING = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(html.parser.HTMLParser):
    """The anchors of a page, its pictures and frames without a text, and what it would fetch from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.mute, self.fetched = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors.add(found.get("id"))
        if tag == "img" and not found.get("alt"):
            self.mute.append(f"picture {(found.get('src') or '')[:60]}")
        if tag == "iframe" and not found.get("title"):
            self.mute.append(f"frame {(found.get('src') or '')[:60]}")
        address = found.get(FETCHING.get(tag, ""), "") or ""
        if address.startswith(("http:", "https:", "//")) and found.get("rel") != "canonical":
            self.fetched.append(address)


def public(module):
    """The names in __all__ of a module, read and not imported."""
    path = ROOT.joinpath("jattn", *(module or "").split("."))
    file = path.with_suffix(".py") if module in FILES else path / "__init__.py"
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            return [".".join(filter(None, ("jattn", module, name))) for name in ast.literal_eval(node.value)]
    raise SystemExit(f"docs: {file} has no __all__")


def faults(pages, names):
    """What is wrong with a site of pages {address: text}, a line each."""
    read = {address: Page(text) for address, text in pages.items()}
    anchors = set().union(*(page.anchors for page in read.values()))
    yield from (f"{name} has no place on the site" for name in names if name not in anchors)
    for address, page in read.items():
        yield from (f"{address}: the {what} has no text" for what in page.mute)
        yield from (f"{address}: asks a network for {url}" for url in page.fetched)


def main():
    site = Path(sys.argv[1])
    pages = {str(p.relative_to(site)): p.read_text(encoding="utf-8") for p in sorted(site.rglob("*.html"))}
    names = [name for module in (None, *MODULES, *FILES) for name in public(module)]
    found = list(faults(pages, names))
    print("\n".join(found) or f"{len(pages)} pages, {len(names)} public names")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
