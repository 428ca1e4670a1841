"""The story that alive_page.py begins with: from a sentence to a gradient step, and what attention does not show."""

from jattn import page

STEPS = [
    page.Step(
        "Ask",
        "The model has read “the river and the” and says of each word how likely it comes next. It begins a sentence "
        "that goes on with “water”, and that was not among those it learned from. “And the” does not tell: it is "
        "“river”, two words before, that goes with “water”.",
        ["next", "sentence"],
        try_="Choose another sentence, or type one from the words of the list.",
    ),
    page.Step(
        "Look",
        "To carry “river” to where it is needed, a head compares the query of the last word with the key of each word "
        "up to it. Their weights p sum to 1 in each row.",
        "heads",
        try_="Choose another head, and another query.",
    ),
    page.Step(
        "Put in",
        "What a word takes up is not p but Σ p·v·W_O. So beside p stands the length of each share, and how much the "
        "loss changes without it. The three need not agree on which key matters most.",
        "output",
        try_="Look for a head in which another key is first by weight than by Δ loss.",
    ),
    page.Step(
        "Pull",
        "The loss says how well “water” was predicted. Its slope −dL/dq says where the query would go, and is a sum of "
        "pulls along the keys: toward those whose weight should grow, away from those whose weight should shrink.",
        ["pulls", "step"],
        try_="Choose a key to see its pull written out.",
    ),
    page.Step(
        "Step",
        "A gradient step moves the weights of the model a little, and q, the keys and what comes next follow. What "
        "the slope promised and what the step did stand side by side.",
        ["step", "next"],
        try_="Press One gradient step twice. Undo, let this q alone move, and compare how much p(water) gains.",
    ),
    page.Step(
        "Not shown",
        "Weights show where a head looks. They do not show what difference that makes, what the residual stream "
        "carries past the head, or what earlier layers have added to the vector that a key is computed from.",
        "limits",
        try_="Compare the heads with the MLPs: which loss would suffer most?",
    ),
]
