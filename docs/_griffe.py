"""Docstrings as griffe has to see them: an example is a section of code, and a table of names keeps its columns."""

import re

import griffe

COLUMNS = re.compile(r"^(?=\S[^\n]*? {2,}\S)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """`Example:` becomes `Examples:`, whose doctests are drawn as code; lines in columns are drawn as they are."""

    def on_instance(self, *, obj, **_):
        if obj.docstring is None:
            return
        obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
        if obj.is_module:
            obj.docstring.value = COLUMNS.sub("    ", obj.docstring.value)
