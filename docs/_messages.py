"""The page of all messages, from the table that tests/test_messages.py holds each refusal to."""

import html
import re
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
FORM = re.compile(r"^(?P<who>[a-z_][a-z_0-9]*): (?P<must>.+?), got (?P<got>.+?)\. (?P<remedy>[A-Z].+\.)$", re.DOTALL)
HEAD = """# Error messages

Every refusal is one line: `<function>: <what must hold>, got <what it got>. <what to do>`. A wrong shape or value is a
ValueError, a wrong dtype or kind a TypeError. What an array holds is never printed. Inside `jit` and `vmap` the line is
the same, with the shapes of one example. What is wrong with *data*, such as a query without a key, is no error: its
result is [defined](what_holds.md).

Below is each of them as the tests provoke it, {count} in all, of {functions} functions; the names and sizes after "got"
are those of the test. Not listed: `figures`, `console` and `page`, which say it in the same form.
"""


def table():
    """(call, type of the error, message) of each refusal."""
    sys.path.insert(0, str(TESTS))
    try:
        import test_messages
    finally:
        sys.path.remove(str(TESTS))
    return test_messages.TABLE


def cell(text):
    """Text of a cell of a table, with nothing in it read as Markdown."""
    return "".join(f"&#{ord(c)};" if c in "|*_`[]<>\\{}" else html.escape(c) for c in text)


def page(rows=None):
    """The page in Markdown: a table for each function, one line for each thing that must hold and its remedy."""
    found = {}
    for _, error, message in table() if rows is None else rows:
        said = FORM.match(message)
        lines = found.setdefault(said["who"], {})
        lines.setdefault((said["must"], said["remedy"]), (error.__name__, said["got"]))
    count = sum(map(len, found.values()))
    text = [HEAD.format(count=count, functions=len(found))]
    for who in sorted(found):
        text.append(f"\n## {who}\n\n| what must hold, and what it got | error | what to do |\n|---|---|---|")
        for (must, remedy), (error, got) in found[who].items():
            text.append(f"| {cell(must)}, got {cell(got)} | {error} | {cell(remedy)} |")
    return "\n".join(text) + "\n"
