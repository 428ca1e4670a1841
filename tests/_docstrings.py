"""What a public docstring must have."""

import doctest
import inspect
import re


def flaws(name, f):
    """What STYLE asks of a public docstring and this one has not."""
    doc = inspect.getdoc(f) or ""
    paragraphs = doc.split("\n\n")
    sections = {line.split(":")[0] for line in doc.splitlines() if line and not line.startswith(" ") and ":" in line}
    if not doc:
        yield "no docstring"
    if "\n" in paragraphs[0] or not paragraphs[0].endswith("."):
        yield "does not begin with one sentence on one line"
    asked = {"Returns", "Example"}
    parameters = inspect.signature(f).parameters.values()
    if any(p.kind is not p.VAR_KEYWORD for p in parameters) and name != "jattn.reference.attention":
        asked.add("Args")
    source = inspect.getsource(f)
    if re.search(r"_errors\.(?!wide\b)|\braise ", source):
        asked.add("Raises")
    yield from (f"no section {section}" for section in sorted(asked - sections))
    if "Args" in asked & sections:
        listed = doc.split("Args:")[1].split("\n\n")[0]
        yield from (
            f"does not speak of {p.name}" for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in listed
        )
    if not any(e.want for e in doctest.DocTestParser().get_examples(doc)):
        yield "no example that shows a result"
