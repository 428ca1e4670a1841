"""A page of a folder, opened in a browser that notes what goes wrong."""

import contextlib


@contextlib.contextmanager
def visits(chromium, folder):
    """Opens pages of the folder; what one asks of the network or complains about stands in `.seen`."""
    opened = []

    def go(name, *, at="", **how):
        context = chromium.new_context(**({"viewport": {"width": 1100, "height": 800}} | how))
        opened.append(context)
        view = context.new_page()
        view.set_default_timeout(8000)
        view.seen = []
        url = (folder / name).as_uri()
        view.on("request", lambda r: r.url.split("#")[0] in (url, "data:,") or view.seen.append(r.url))
        view.on("console", lambda m: view.seen.append(m.text))
        view.on("pageerror", lambda e: view.seen.append(str(e)))
        view.goto(url + at)
        return view

    yield go
    for context in opened:
        context.close()


def until(view, what):
    """Waits for an expression; a page under its policy lets nobody compile one inside it."""
    for _ in range(160):
        if view.evaluate(what):
            return
        view.wait_for_timeout(50)
    raise AssertionError(f"never came true: {what}")
