"""Sentences that say what a word means, and sentences that say nothing of it; written for this project."""

import json
from pathlib import Path

from _cli import BadInput

SENSES = {
    "bank": {
        "river": [
            "Reeds grew along the bank of the stream.",
            "The otter slid down the bank into the water.",
            "We moored the boat and climbed up the bank.",
            "Willows lean over the bank where the river bends.",
            "After the flood the bank was covered with mud.",
            "The angler stood on the bank and cast his line.",
            "They walked along the bank to the old mill.",
            "A heron waited by the bank of the lake.",
            "The ferry left us on the far bank at noon.",
            "Frogs were calling from the muddy bank.",
        ],
        "money": [
            "The bank raised its interest rates in spring.",
            "She opened an account at the bank in town.",
            "The bank refused to give them a loan.",
            "He works for a bank that lends to farmers.",
            "My salary is paid into the bank every month.",
            "The bank closed its branch on the high street.",
            "They owed the bank more than the house was worth.",
            "A clerk at the bank counted the notes.",
            "Investors sold shares of the bank after the report.",
            "The robbers fled from the bank with the cash.",
        ],
    },
    "bat": {
        "animal": [
            "A bat flew out of the cave at dusk.",
            "The bat hung upside down from the beam.",
            "We saw a bat hunting moths over the pond.",
            "The bat folded its wings and slept.",
            "A tiny bat lives in the hollow tree.",
            "The bat hears the echo of its own call.",
            "One bat had young ones under the roof.",
            "The owl caught a bat in the dark.",
        ],
        "club": [
            "He swung the bat and hit the ball.",
            "The bat broke when the ball struck it.",
            "She bought a new bat for the season.",
            "The batter gripped the bat and waited for the pitch.",
            "A wooden bat leaned against the dugout.",
            "He scored fifty runs with a borrowed bat.",
            "The coach handed the bat to the next player.",
            "Her bat met the ball with a crack.",
        ],
    },
}
PLAIN = [  # for the positional control: what a head attends at the same distance without these words
    "He read the letter in the kitchen and smiled.",
    "The old clock struck nine as we left.",
    "She painted her garden chair a bright green.",
    "My brother plays the piano every evening after dinner.",
    "They stood in the school yard and talked.",
    "The baker sells fresh bread and apple cakes.",
    "I forgot my umbrella on the morning train.",
    "Our neighbour repairs bicycles in a small shed.",
    "The children drew a large yellow sun on the wall.",
    "We met at the station hall before noon.",
    "A cat was asleep on the window sill.",
    "He wore the same grey winter coat for years.",
    "The teacher wrote two long words on the board.",
    "Nobody had told them that the shop was closed.",
    "You should call your mother on Sunday.",
    "The soup was too hot to eat at once.",
    "She laughed at the story about the blue elephant.",
    "In the attic we found a box of toy soldiers.",
    "The dentist asked him to open his mouth.",
    "Somebody left a leather glove on the kitchen table.",
]


def senses(word: str, file: Path | None) -> dict[str, list[str]]:
    """Two senses of a word, each with its sentences: from a JSON file, or from those above."""
    if file is None:
        if word not in SENSES:
            known = ", ".join(SENSES)
            raise BadInput(f"--word {word!r}: no sentences say what it can mean; they do for: {known}. Try --senses.")
        return SENSES[word]
    try:
        made = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not JSON"
        raise BadInput(f"--senses {file}: cannot be read ({why}). Give an object of two lists of sentences.") from error
    lists = list(made.values()) if isinstance(made, dict) else []
    strings = all(isinstance(some, list) and len(some) > 1 and all(isinstance(s, str) for s in some) for some in lists)
    if len(lists) != 2 or not strings:
        raise BadInput(
            f"--senses {file}: must be an object of two lists of two or more sentences. See demos/_senses.py."
        )
    return made
