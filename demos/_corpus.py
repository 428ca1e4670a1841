"""Sentences of the project's own, in which one word means two things: templates × clues, the same for both senses.

Every sentence has a twin that differs in its clues alone, and twins are held out together. So a template says nothing
about the sense, and a reader that cannot see the clues is right in exactly one sentence of two.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

PEOPLE, PAD, BLANK, UNSEEN = ["he", "she", "they", "we"], 0, 1, 6  # the clue of number 6 is never trained on
RELATIONS = {  # the query word → its two senses, their clues, and templates: {a}, {b} clues, {p} a person
    "bank": (
        {
            "river": ["river", "water", "stream", "boat", "fish", "reeds", "brook"],
            "money": ["money", "deposit", "loan", "cash", "account", "cheque", "salary"],
        },
        [
            "the {a} and the {b} were near the bank",
            "{p} saw the {a} near the bank",
            "the bank had no {a} that day",
            "{p} went to the bank with the {a}",
            "the {a} at the bank was good",
            "{p} spoke of the {a} at the bank",
            "at the bank {p} found the {a}",
            "{p} left the bank without the {a} or the {b}",
        ],
    ),
    "broke": (
        {
            "shattered": ["vase", "glass", "window", "plate", "cup", "mirror", "bottle"],
            "betrayed": ["law", "promise", "rule", "treaty", "oath", "pact", "vow"],
        },
        [
            "{p} broke the {a} and the {b}",
            "{p} broke the {a}",
            "{p} broke the old {a} on monday",
            "the {a} that {p} broke was new",
            "it was the {a} {p} broke",
            "nobody broke the {a} that day",
            "why {p} broke the {a} is unknown",
            "the {a} is what {p} broke last",
        ],
    ),
    "it": (
        {
            "animal": ["dog", "horse", "cat", "cow", "goat", "sheep", "mule"],
            "machine": ["car", "engine", "clock", "pump", "radio", "lorry", "drill"],
        },
        [
            "it was the {a} or the {b} that {p} heard",
            "the {a} stopped because it was tired",
            "{p} sold the {a} because it was old",
            "because it was loud {p} moved the {a}",
            "{p} liked the {a} though it was slow",
            "when it stopped the {a} was near",
            "the {a} was small but it was good",
            "{p} heard the {a} and it was near",
        ],
    ),
    "bright": (
        {
            "light": ["lamp", "star", "sun", "torch", "candle", "screen", "beacon"],
            "mind": ["student", "child", "pupil", "girl", "boy", "lawyer", "nurse"],
        },
        [
            "bright were the {a} and the {b}",
            "the bright {a} was there",
            "{p} saw a bright {a}",
            "the {a} was bright",
            "{p} found the {a} very bright",
            "how bright the {a} was",
            "a {a} so bright is rare",
            "the {a} near {p} was bright",
        ],
    ),
}
STORY = ["the river and the water were near the bank", "the money and the deposit were near the bank",
         "the river and the deposit were near the bank"]  # fmt: skip
ROLES = {"bank": "noun to its clue", "broke": "verb to its object", "it": "pronoun to its noun",
         "bright": "adjective to its noun"}  # fmt: skip


class Sentences(NamedTuple):
    """N sentences, padded to T tokens."""

    ids: jax.Array
    """[N, T] words by number."""
    n: jax.Array
    """[N] how many words exist."""
    asks: jax.Array
    """[N] the position of the query word, whose sense is asked."""
    clue: jax.Array
    """[N, T] booleans: the positions of the clues."""
    relation: jax.Array
    """[N] 0 to 3: which of RELATIONS the query word is."""
    sense: jax.Array
    """[N] 0 or 1."""


class Corpus(NamedTuple):
    train: Sentences
    held: Sentences
    """Sentences of the same words and templates, none of which was trained on."""
    new: Sentences
    """Sentences with clues that no training sentence has."""
    story: Sentences
    """STORY: two of `held`, and one with a clue of either sense."""


def rows() -> list[tuple]:
    """Every sentence: (text, clues, relation, sense, the cell of the twins, whether its clues are trained)."""
    made = []
    for r, (senses, templates) in enumerate(RELATIONS.values()):
        for sense, clues in enumerate(senses.values()):
            for t, template in enumerate(templates):
                for i in range(UNSEEN + 1):
                    a, b = (clues[i], clues[(i + 1) % UNSEEN]) if i < UNSEEN else (clues[i], clues[i])
                    text = template.format(a=a, b=b, p=PEOPLE[(t + i) % len(PEOPLE)])
                    made.append((text, {a, b}, r, sense, (r, t, i), i < UNSEEN))
    return made


def corpus(seed: int, share: float = 0.25) -> tuple[Corpus, list[str]]:
    """The sentences, and the words by number; a share of the twins, drawn anew for each seed, is held out."""
    every = rows()
    words = ["<pad>", "<blank>", *sorted({word for text, *_ in every for word in text.split()})]
    longest = max(len(text.split()) for text, *_ in every)
    cells = sorted({cell for *_, cell, trained in every if trained})
    drawn = np.random.default_rng(seed).permutation(len(cells))[: round(share * len(cells))]
    held = {cells[i] for i in drawn} | {(0, 0, 0)}  # and those of STORY
    asking, by_text = list(RELATIONS), {text: row for text, *row in every}

    def packed(some: list[tuple]) -> Sentences:
        tokens = [text.split() for text, *_ in some]
        ids = np.array([[words.index(w) for w in ws] + [PAD] * (longest - len(ws)) for ws in tokens])
        clue = np.array([[w in row[1] for w in ws] + [False] * (longest - len(ws))
                         for ws, row in zip(tokens, some, strict=True)])  # fmt: skip
        relation, sense = (np.array([row[i] for row in some]) for i in (2, 3))
        asks = np.array([ws.index(asking[r]) for ws, r in zip(tokens, relation, strict=True)])
        n = np.array([len(ws) for ws in tokens])
        return Sentences(*map(jnp.asarray, (ids, n, asks, clue, relation, sense)))

    story = [(text, *by_text.get(text, ({"river", "deposit"}, 0, 0))) for text in STORY]
    return Corpus(
        packed([row for row in every if row[5] and row[4] not in held]),
        packed([row for row in every if row[5] and row[4] in held]),
        packed([row for row in every if not row[5]]),
        packed(story),
    ), words
