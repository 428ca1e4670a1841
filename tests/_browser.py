"""Real browsers, and a page of a folder opened in one that notes what goes wrong."""

import contextlib
import functools
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from jattn.page import _document

EXECUTABLES = {
    "chromium": ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"),  # the first takes half
    "firefox": ("firefox-esr", "firefox"),
}
only_chromium = pytest.mark.parametrize("browser", ["chromium"], indirect=True)
in_both = pytest.mark.parametrize("browser", list(EXECUTABLES), indirect=True)
"""Of what the engines may do differently; all other tests of a page run in Firefox with --all alone."""
in_firefox_with_all = functools.partial(pytest.param, "firefox", marks=pytest.mark.exhaustive)


def browsers_and(name, *pairs):
    """Without a scope pytest would start a browser for each of these tests."""
    return pytest.mark.parametrize(("browser", name), pairs, indirect=["browser"], scope="module")


def of_each(name, values, in_firefox=()):
    """Each value in Chromium; in Firefox those of `in_firefox`, and with --all the others."""
    firefox = (pytest.param("firefox", x) if x in in_firefox else in_firefox_with_all(x) for x in values)
    return browsers_and(name, *(("chromium", x) for x in values), *firefox)


in_both_colours = browsers_and(  # they are the same in either browser: one looks at the dark ones
    "scheme", ("chromium", "light"), ("chromium", "dark"), in_firefox_with_all("light")
)


class Firefox:
    """A stock Firefox, driven by WebDriver BiDi. What it cannot set for a context is a preference of a process."""

    def __init__(self, firefox, executable):
        self._firefox, self._executable, self._processes = firefox, executable, {}
        self._folder = tempfile.TemporaryDirectory()
        self.downloads = Path(self._folder.name)

    def new_context(self, *, color_scheme="light", reduced_motion="no-preference", **how):
        wanted = {
            "layout.css.prefers-color-scheme.content-override": ["dark", "light"].index(color_scheme),
            "ui.prefersReducedMotion": int(reduced_motion == "reduce"),
        }
        process = tuple(wanted.values())
        if process not in self._processes:
            self._processes[process] = self._firefox.launch(
                channel="moz-firefox",
                executable_path=self._executable,
                downloads_path=self.downloads,
                firefox_user_prefs=wanted,
            )
        return self._processes[process].new_context(**how)

    def close(self):
        for process in self._processes.values():
            process.close()
        self._folder.cleanup()


@contextlib.contextmanager
def launched(name):
    """A browser by its name; where it is not installed the test is skipped, and fails where changes are tested."""
    executable = next(filter(None, map(shutil.which, EXECUTABLES[name])), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if sync_playwright is None or executable is None:
        wanting, package = ("playwright",) * 2 if sync_playwright is None else (name, EXECUTABLES[name][0])
        if os.environ.get("CI"):
            pytest.fail(f"{wanting} must be installed where the changes are tested")
        pytest.skip(f"{wanting} is not installed and could not be: apt-get install {package}; pip install -e '.[dev]'")
    with sync_playwright() as driver:
        if name == "firefox":
            browser = Firefox(driver.firefox, executable)
        else:
            browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def visits(browser, folder):
    """Opens pages of the folder; what one asks of the network or complains about stands in `.seen`."""
    opened = []

    def go(name, *, at="", **how):
        context = browser.new_context(**({"viewport": {"width": 1100, "height": 800}} | how))
        opened.append(context)
        view = context.new_page()
        view.set_default_timeout(30_000)
        view.seen, view.downloads = [], getattr(browser, "downloads", None)
        url = (folder / name).as_uri()
        view.on("request", lambda r: r.url.split("#")[0] in (url, "data:,") or view.seen.append(r.url))
        view.on("console", lambda m: view.seen.append(m.text))
        view.on("pageerror", lambda e: view.seen.append(str(e)))
        view.goto(url + at)
        return view

    yield go
    for context in opened:
        context.close()


def planted(folder, name, old, new):
    """The name of a page with one piece of its script replaced by another, which its policy lets run as the first."""
    text = (folder / name).read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    assert script.count(old) == 1
    changed = script.replace(old, new)
    text = text.replace(script, changed).replace(_document._hash(script), _document._hash(changed))
    (folder / "planted.html").write_text(text, encoding="utf-8")
    return "planted.html"


def axe(view, *rules):
    """The rules of axe that the page breaks, of these or of all, and its report."""
    if not os.environ.get("CI"):
        pytest.importorskip("axe_playwright_python")
    from axe_playwright_python.sync_playwright import Axe

    options = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    found = Axe().run(view, options=options)
    return {violation["id"] for violation in found.response["violations"]}, found.generate_report()


def until(view, what):
    """Waits for an expression; a page under its policy lets nobody compile one inside it."""
    soon(view, lambda: view.evaluate(what), what)


def soon(view, holds, what="what was waited for"):
    """What is true now or within thirty seconds: an event reaches the test after what caused it."""
    for _ in range(600):
        if found := holds():
            return found
        view.wait_for_timeout(50)
    raise AssertionError(f"never came true: {what}")


def hears(view, words):
    """Waits for a request or a complaint with these words."""
    return soon(view, lambda: any(words in seen for seen in view.seen), words)


def type_over(place, text):
    """Types as a reader does; of a field for numbers, BiDi's `fill` does not know what is selected."""
    place.press("ControlOrMeta+a")
    place.press_sequentially(text)


def saved(view, act):
    """The text of the file that an act saves. Of a blob, Firefox names no download: it lies in the folder for them."""
    if view.downloads is None:
        with view.expect_download() as caught:
            act()
        return caught.value.path().read_text(encoding="utf-8")
    act()

    def whole():
        files = list(view.downloads.iterdir())
        return files[0] if len(files) == 1 and files[0].suffix != ".part" and files[0].stat().st_size else None

    file = soon(view, whole, "a file that is saved")
    text = file.read_text(encoding="utf-8")
    file.unlink()
    return text
