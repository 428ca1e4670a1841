"""Document 000, Why “bank” gives high attention to “river”: its numbers and its claims in words."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from _bank_toy import K, Q, V
from _errata_verdicts import SLACK, Document, angle, cos, explain

import jattn


def why_bank(doc: Document) -> None:
    s = explain(Q[None], K, V)
    scores, scaled, weights, head = (x[0] for x in s)
    exps, parts = np.exp(scaled), weights[:, None] * V

    raw = doc.prints("raw scores", "1.0, 0.2, 0.0", scores, times=3)
    root = doc.prints("√d_k", "1.4142135624", math.sqrt(2))
    divide = {"by": lambda score, root: score / root, "of": [raw, root]}
    doc.prints("scaled scores", "0.70710678, 0.141421356, 0.0", scaled, **divide)
    small = doc.prints("scaled scores, as a vector", "0.70710678, 0.14142136, 0.0", scaled, **divide)
    e = doc.prints("exponentials", "2.0281149816474726, 1.1518489319246118, 1.0", exps, by=np.exp, of=[small])
    total = doc.prints("their sum", "4.179963913572085", exps.sum(), by=np.sum, of=[e])
    w = doc.prints("weights", "0.4853, 0.2755, 0.2392", weights, by=np.divide, of=[e, total], times=2)
    doc.prints("weight of river, in words", "0.485", weights[0], times=2)
    x = doc.prints("head_x, its terms", "0.9706, 0, 0.02392", parts[:, 0], by=lambda w: w * V[:, 0], of=[w])
    y = doc.prints("head_y, its terms", "0, 0.8265, 0.02392", parts[:, 1], by=lambda w: w * V[:, 1], of=[w])
    both = {"by": lambda x, y: np.array([x.sum(), y.sum()]), "of": [x, y]}
    doc.prints("head_x and head_y", "0.99452, 0.85042", head, **both)
    doc.prints("head", "0.9945, 0.8504", head, **both)

    lengths, cosine = np.linalg.norm(parts, axis=1), cos(Q, K[1])
    doc.says("weights that sum to 1", abs(weights.sum() - 1) < SLACK, f"they sum to {weights.sum():.15f}")
    doc.says(
        "river gets the largest weight, and contributes most",
        weights.argmax() == 0 and lengths.argmax() == 0,
        f"the terms of the head have lengths {lengths[0]:.3f}, {lengths[1]:.3f}, {lengths[2]:.3f}",
    )
    doc.says("Q_bank and K_river “closely aligned”", cos(Q, K[0]) > 0.99, f"cosine {cos(Q, K[0]):.4f}")
    doc.says(
        "larger score, “the more similar”",
        math.isclose(scores[1] / scores[0], cosine, rel_tol=0.1),
        f"a score is length times direction: money's is {scores[1] / scores[0]:.1f} of river's, yet its key points "
        f"only {angle(Q, K[1]):.1f}° away from the query (cosine {cosine:.3f}): it is short "
        f"({np.linalg.norm(K[1]):.3f})",
    )
    doc.says(
        "“river's value dominates”",
        weights[0] > 0.5,
        f"river has {weights[0]:.4f} of the weight, less than half; its term has length {lengths[0]:.3f}, money's "
        f"{lengths[1]:.3f}, and the head lies {angle(head, V[0]):.1f}° from v_river, {angle(head, V[1]):.1f}° "
        "from v_money",
    )

    def loss(q: jax.Array) -> jax.Array:
        return -jattn.log_softmax(jattn.explain(q[None], jnp.asarray(K), jnp.asarray(V)).scaled[0])[0]

    q = Q - np.asarray(jax.jit(jax.grad(loss))(jnp.asarray(Q)))
    lifted = explain(q[None], K, V).weights[0, 0]
    gaps = np.linalg.norm(Q - K[0]), np.linalg.norm(q - K[0])
    doc.says(
        "training moves Q_bank “closer” to K_river",
        cos(q, K[0]) > cos(Q, K[0]) or gaps[1] < gaps[0],
        "the pull is toward k_river minus the mean key: one step of gradient descent (rate 1, loss −log p_river) lifts "
        f"p_river from {weights[0]:.4f} to {lifted:.4f} while the cosine of q and k_river falls from "
        f"{cos(Q, K[0]):.0f} to {cos(q, K[0]):.4f} and their distance grows from {gaps[0]:.0f} to "
        f"{gaps[1]:.4f}",
    )
