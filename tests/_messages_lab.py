"""What `jattn.lab` refuses, word for word; a part of the table in test_messages."""

from jattn import lab
from jattn.lab.result import oracle

WHOLE = "Pass a Python int of at least 0."
LAB = [
    (lambda: lab.clustering("0"), TypeError, f"clustering: seed must be a whole number, got seed of type str. {WHOLE}"),
    (lambda: lab.rank_collapse(-1), ValueError, f"rank_collapse: seed must be at least 0, got seed -1. {WHOLE}"),
    (
        lambda: lab.entropy_bound(2**32),
        ValueError,
        "entropy_bound: seed must be less than 2**32, got seed 4294967296. Pass a Python int from 0 to 2**32 - 1.",
    ),
    (
        lambda: oracle("attention_as_svm", "no_such_library"),
        ModuleNotFoundError,
        "attention_as_svm: no_such_library must be installed, got no_such_library not found. "
        "Run: pip install 'jattn[lab]'.",
    ),
]
