"""Document 004, From Raw Scores to Percentages: its numbers and its claims in words."""

import math

import numpy as np
from _errata_verdicts import Document, cos, explain

X = np.array([[0.2, 0.8, 0.3], [0.5, 0.4, 0.9], [0.1, 0.7, 0.6]])  # Cat, ate, mouse
W_Q = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
W_K = np.array([[0.7, 0.8], [0.9, 0.1], [0.2, 0.3]])
PROSE_Q = np.array([0.3, 0.6])
PROSE_K = np.array([[0.8, 0.2], [0.4, 0.7], [0.9, 0.1]])


def cat_ate_mouse(doc: Document) -> None:
    q, k = X[1] @ W_Q, X @ W_K
    prose, code = explain(PROSE_Q[None], PROSE_K, PROSE_K), explain(q[None], k, k)
    own = {"note": "its own matrices give this; the prose and the program are two models"}
    doc.prints("“ate” × W_Q", "0.3, 0.6", q, **own)
    doc.prints("Cat, ate, mouse × W_K", "0.8, 0.2, 0.4, 0.7, 0.9, 0.1", k, **own)

    # From here on the prose is judged by the query and the keys that it states.
    exps = np.exp(prose.scaled[0])
    terms = doc.prints("scores, their terms", "0.24, 0.12, 0.12, 0.42, 0.27, 0.06", PROSE_Q * PROSE_K)
    raw = doc.prints("scores", "0.36, 0.54, 0.33", prose.scores[0], by=lambda x: x.sum(1), of=[terms], times=2)
    root = doc.prints("√d_k", "1.414", math.sqrt(2))
    scaled = doc.prints("scaled scores", "0.255, 0.382, 0.233", prose.scaled[0], by=np.divide, of=[raw, root])
    e = doc.prints("exponentials", "1.29, 1.47, 1.26", exps, by=np.exp, of=[scaled])
    total = doc.prints("their sum", "4.02", exps.sum(), by=np.sum, of=[e])
    w = doc.prints("weights", "0.32, 0.37, 0.31", prose.weights[0], by=np.divide, of=[e, total])
    percent = 100 * prose.weights[0]
    doc.prints("in percent", "32, 37, 31", percent, by=lambda w: 100 * w, of=[w])
    unit = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    doc.prints("A·B, A·C, A·D", "1, 0, -1", explain(unit[:1], unit, unit).scores[0])

    doc.says("percentages “that sum to 100%”", abs(percent.sum() - 100) < 1e-12, f"{percent.sum():.12f}")
    off, program = np.abs(percent - [40, 20, 40]).max(), 100 * code.weights[0]
    doc.says(
        "40 %, 20 %, 40 % “for clarity”",
        off < 1 or percent.argmin() == 1,
        f"it turns the order round: the calculation gives {percent[0]:.2f}, {percent[1]:.2f}, {percent[2]:.2f} %, most "
        f"to “ate” itself, which it put last; off by up to {off:.1f} points",
    )
    doc.says(
        "“ate” learns to attend “strongly to Cat”",
        min(percent[0], program[0]) > 100 / 3,
        f"nothing is trained here, and Cat gets less than an even share, {100 / 3:.2f} %: {percent[0]:.2f} % in the "
        f"prose, {program[0]:.2f} % in the program",
    )
    doc.says(
        "“NOT arbitrary”: from learned W_Q, W_K",
        np.abs(program - percent).max() < 0.5,
        f"the W it gives lead to {program[0]:.2f}, {program[1]:.2f}, {program[2]:.2f} %, not to those percentages",
    )
    cat, _, mouse = (cos(q, x) for x in k)
    doc.says(
        "the dot product “measures similarity”",
        (cat > mouse) == (code.scores[0, 0] > code.scores[0, 2]),
        f"of vectors of one length; in its own program “ate” scores Cat over mouse ({code.scores[0, 0]:.4f}, "
        f"{code.scores[0, 2]:.4f}) though mouse's key is the closer in direction (cosines {cat:.4f}, {mouse:.4f}): "
        "Cat's is longer",
    )
