"""Every number that the five source documents print, recomputed in float64 on jattn's functions.

A number is right when it is within half a unit of its last printed digit. One that is not gets its reason
by computation: it was *rounded too early* if the document's own step, applied to the rounded numbers that
it printed before, gives what it printed; else it is *wrong*. A number that is right may still be
*over-rounded*: it prints a weight that is not zero as zero, or a later number fails because of its rounding.
A claim in words is set beside the number that measures it; *over-claimed in words* is one that fails.

    python demos/errata.py            the table
    python demos/errata.py --write    writes it to demos/ERRATA.md
"""

import argparse
from pathlib import Path
from typing import Any

from _cli import parser, run, title
from _errata_bank import why_bank
from _errata_cat import cat_ate_mouse
from _errata_kata import attention_kata
from _errata_page import TITLES, count, page, rows, summary, write
from _errata_sum import weighted_sum
from _errata_verdicts import Document
from _errata_walk import walk_near_river_bank
from rich.console import Console
from rich.table import Table

PAGE = Path(__file__).with_name("ERRATA.md")
DOCUMENTS = {
    "000": why_bank,
    "001": walk_near_river_bank,
    "002": attention_kata,
    "003": weighted_sum,
    "004": cat_ate_mouse,
}


def arguments() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.add_argument("--write", action="store_true", help="also write the table to demos/ERRATA.md")
    return made


def read(name: str) -> Document:
    """One document, judged."""
    doc = Document(name)
    DOCUMENTS[name](doc)
    return doc


def compute(args: argparse.Namespace) -> dict[str, Any]:
    documents = [read(name) for name in DOCUMENTS]
    results = {
        "counts": [count(doc) for doc in documents],
        "errata": [row for doc in documents for row in rows(doc)],
        "numbers": [
            {"document": doc.name, "place": x.place, "printed": x.texts, "exact": x.exact, "verdicts": x.verdicts}
            for doc in documents
            for x in doc.numbers
        ],
        "words": [claim for doc in documents for claim in doc.words],
    }
    if args.write:
        write(PAGE, page(results))
    return results


def show(paper: Console, results: dict[str, Any]) -> None:
    title(paper, "Errata of the five source documents", summary(results))
    for row in results["counts"]:
        name = row["document"]
        right = f"{row['right']} of {row['numbers']} numbers are right to the printed digits"
        title(paper, f"{name}  {TITLES[name]}", right)
        table = Table("what it prints", "the exact value", "the reason", show_lines=True)
        for found in results["errata"]:
            if found["document"] == name:
                table.add_row(found["prints"], found["exact"], found["reason"])
        paper.print(table)


if __name__ == "__main__":
    run(arguments(), compute, show)
