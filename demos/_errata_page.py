"""The errata as rows of a table, and as the Markdown page that errata.py writes."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _cli import BadInput
from _errata_verdicts import OVER_ROUNDED, SLACK, TOO_EARLY, WORDS, WRONG, Document, decimals

TITLES = {
    "000": "Why “bank” gives high attention to “river”",
    "001": "walk near river bank",
    "002": "Visualize Attention Weights (Kata 9.1)",
    "003": "The Weighted Sum",
    "004": "From Raw Scores to Percentages",
}


def count(doc: Document) -> dict[str, Any]:
    verdicts = [verdict for x in doc.numbers for verdict in x.verdicts * x.times]
    return {
        "document": doc.name,
        "numbers": len(verdicts),
        "right": sum(v in ("", OVER_ROUNDED) for v in verdicts),
        OVER_ROUNDED: verdicts.count(OVER_ROUNDED),
        TOO_EARLY: verdicts.count(TOO_EARLY),
        WRONG: sum(WRONG in v for v in verdicts),  # carried on or not
        "claims": len(doc.words),
        "hold": sum(claim["holds"] for claim in doc.words),
    }


def rows(doc: Document) -> list[dict[str, str]]:
    """What does not hold, a line for each array and each claim in words; a * marks the numbers concerned."""
    found = []
    for x in doc.numbers:
        if any(x.verdicts):
            marks = ["*" if verdict else "" for verdict in x.verdicts]
            printed = ", ".join(mark + text for mark, text in zip(marks, x.texts, strict=True))
            exact = ", ".join(digits(text, float(value)) for text, value in zip(x.texts, x.exact.ravel(), strict=True))
            reason = ", ".join(dict.fromkeys(v for v in x.verdicts if v)) + (f": {x.note}" if x.note else "")
            if WRONG in x.verdicts and x.by:
                given = zip(x.texts, x.verdicts, np.ravel(x.again()), strict=True)
                own = ", ".join(f"{value:.{min(decimals(text), 12)}f}" for text, v, value in given if v == WRONG)
                reason += f": its own numbers give {own}"
            found.append({"document": doc.name, "prints": f"{x.place}: {printed}", "exact": exact, "reason": reason})
    for claim in doc.words:
        if not claim["holds"]:
            found.append({"document": doc.name, "prints": claim["phrase"], "exact": claim["finding"], "reason": WORDS})
    return found


def digits(text: str, exact: float) -> str:
    """The exact value to two digits more than printed, or to as many as show a difference that float64 has."""
    if abs(exact - float(text)) <= SLACK * abs(exact):
        return text
    if abs(exact) < 10.0 ** -(decimals(text) + 2):
        return f"{exact:.2e}"
    places = min(decimals(text) + 2, 12)
    while places < 12 and float(f"{exact:.{places}f}") == float(text) and abs(exact - float(text)) > SLACK:
        places += 1
    return f"{exact:.{places}f}"


def summary(results: dict[str, Any]) -> str:
    total = {name: sum(row[name] for row in results["counts"]) for name in results["counts"][0] if name != "document"}
    return (
        f"{total['numbers']} printed numbers were recomputed: {total['right']} are right to the digits printed "
        f"({total[OVER_ROUNDED]} of them over-rounded), {total['numbers'] - total['right']} are not "
        f"({total[TOO_EARLY]} rounded too early, {total[WRONG]} wrong). "
        f"Of {total['claims']} claims in words {total['hold']} hold, {total['claims'] - total['hold']} do not."
    )


def page(results: dict[str, Any]) -> str:
    """The table as Markdown."""
    names = ["numbers", "right", OVER_ROUNDED, TOO_EARLY, WRONG, "claims", "hold"]
    heads = ["numbers", "right", "of these over-rounded", TOO_EARLY, WRONG, "claims in words", "that hold"]
    lines = [
        "# Errata of the five source documents",
        "",
        summary(results),
        "Regenerate this page with `python demos/errata.py --write`; every entry is computed, and a test compares.",
        "",
        "Counted is each result, as often as it is printed; what a document starts from (its vectors and matrices, "
        "the number of trials) is taken as given. For document 004 that means the queries and keys of its prose; its "
        "program prints none.",
        "",
        "- **right**: within half a unit of the last printed digit (or of what float64 can tell apart).",
        "- **over-rounded**: right, yet a weight above zero is printed as zero, or a later number fails because of "
        "this rounding.",
        "- **rounded too early**: what the document's own step gives on the rounded numbers that it printed before.",
        "- **wrong**: neither; *carried on* if it follows from a wrong number before it.",
        "- **over-claimed in words**: a statement that the number beside it does not bear out.",
        "",
        "| document | title | " + " | ".join(heads) + " |",
        "|---|---|" + "---:|" * len(heads),
    ]
    for row in results["counts"]:
        lines.append(
            f"| {row['document']} | {TITLES[row['document']]} | " + " | ".join(str(row[n]) for n in names) + " |"
        )
    lines += [
        "",
        "An asterisk marks the numbers of an array that the reason speaks of.",
        "",
        "| document | what it prints | the exact value | the reason |",
        "|---|---|---|---|",
    ]
    for row in results["errata"]:
        lines.append("| " + " | ".join(row[name].replace("*", r"\*") for name in row) + " |")
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """The whole page, or nothing of it."""
    try:
        handle, made = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(made, 0o644)
            os.replace(made, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(made)
            raise
    except OSError as error:
        raise BadInput(f"{path.name} cannot be written ({error.strerror}). Make its folder writable.") from error
