"""One query of any attention: what a recorder keeps of it."""

from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._types import (
    Array,
    ArrayLike,
    BoolOfPairs,
    Float,
    FloatOfPairs,
    Integer,
    Keys,
    Numeric,
    Queries,
    ScoreModifier,
    Values,
)
from jattn.arguments.options import one_head, qkv
from jattn.masks import Mask
from jattn.one_head import attention, weights_of
from jattn.per_query import statistics


class MeasuredRow(NamedTuple):
    """One query among its keys, at one moment of a training: what the pictures of a run take."""

    q: Float[Array, " D"]
    k: Float[Array, "S D"]
    weights: Float[Array, " S"]
    max_logit: Float[Array, ""]
    entropy: Float[Array, ""]
    """In nats, as `jattn.statistics` has it."""
    pulls: Float[Array, "S D"]
    """What each key contributes to −dL/dq, in closed form."""
    dq: Float[Array, " D"]
    """dL/dq, by jax.vjp."""


class MeasuredRowOptions(TypedDict, total=False):
    """The options of `measure_row` but sink and scale."""

    mask: Mask | BoolOfPairs | None
    score: ScoreModifier | None
    bias: FloatOfPairs | None
    q_positions: Integer[ArrayLike, " T"] | None
    k_positions: Integer[ArrayLike, " S"] | None


def measure_row(
    q: Queries,
    k: Keys,
    v: Values,
    dout: Float[ArrayLike, "T Dv"],
    row: Integer[ArrayLike, ""],
    *,
    sink: Numeric | None = None,
    scale: Numeric | None = None,
    mask: Mask | BoolOfPairs | None = None,
    score: ScoreModifier | None = None,
    bias: FloatOfPairs | None = None,
    q_positions: Integer[ArrayLike, " T"] | None = None,
    k_positions: Integer[ArrayLike, " S"] | None = None,
) -> MeasuredRow:
    """What is measured of one query of a head in a model: its weights, their entropy, and the pull of each key.

        pull_s = −w_s (a_s − ā) dl_s/dq,    a_s = dL/dout · v_s,    ā = Σ_s w_s a_s,    dL/dq = −Σ_s pull_s

    with l_s the logit, so that dl_s/dq is scale · k_s without a score modifier. One head, no batch: map with jax.vmap.

    Args:
      q: [T, D]. k: [S, D]. v: [S, Dv], as the attention of the model takes them.
      dout: [T, Dv], dL/dout of whatever loss: jax.grad of what the model makes of the output of its attention.
      row: the number of the query, from 0 to T − 1, possibly traced.
      sink, scale, mask, score, bias, q_positions, k_positions: as in `attention`.

    Returns:
      MeasuredRow(q [D], k [S, D], weights [S], max_logit, entropy, pulls [S, D], dq [D]). A key that may not be
      attended pulls with 0. `dq` comes of a backward pass and the pulls of their formula, so each checks the other.

    Raises:
      TypeError, ValueError: as `attention`; or `dout` is not floating point or not [T, Dv], or `row` is not one whole
      number or, where it is known, not from 0 to T − 1.

    Memory: linear in T and S, and S × D.

    Source: the chain rule through the softmax, as in `pulls`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jattn import flow
      >>> keys = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])  # river, money, the
      >>> dout = jnp.array([[0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
      >>> found = jax.jit(flow.measure_row)(keys, keys, keys, dout, 1)
      >>> print((100 * found.weights).round(), (100 * found.pulls.sum(0)).round(), (100 * found.dq).round())
      [36. 32. 32.] [14. -1.] [-14.   1.]
    """
    caller = "measure_row"
    q, k, v = qkv(caller, q, k, v)
    dout, row = _errors.array(caller, "dout", dout), _errors.number_of(caller, "row", row, q.shape[0], "T")
    _errors.floating(caller, dout=dout)
    if dout.shape != (q.shape[0], v.shape[1]):
        remedy = "Pass dL/dout of every query, as jax.grad gives it."
        _errors.fail(ValueError, caller, "dout must have the shape [T, Dv]", remedy, q=q, v=v, dout=dout)
    one_head(caller, q, k, v, mask, score, bias, sink, scale, q_positions, k_positions)
    options: MeasuredRowOptions = {
        "mask": mask, "score": score, "bias": bias, "q_positions": q_positions, "k_positions": k_positions,
    }  # fmt: skip
    scale = q.shape[1] ** -0.5 if scale is None else scale
    found = statistics(q, k, sink=sink, scale=scale, **options)

    def weights(added: jax.Array) -> jax.Array:
        """The weights of this query, were so much [S] added to its dot products and lse the same."""
        wide = jnp.concatenate([q, jnp.ones_like(q[:, :1])], 1), jnp.concatenate([k, added[:, None]], 1)
        return weights_of(*wide, found.lse, row[None], scale=scale, **options)[0]

    nothing = jnp.zeros_like(k[:, 0])
    w, slope = jax.jvp(
        weights, (nothing,), (jnp.ones_like(nothing),)
    )  # each by its own dot product alone: w · dl/d⟨q, k⟩
    # What is not attended pulls with 0, whatever its key and value hold.
    k_there, v_there = (jnp.where((w == 0)[:, None], 0, x) for x in (k, v))
    a = (v_there @ dout[row].astype(v.dtype)).astype(w.dtype)
    # Measured from the largest weight, whose share would cancel the tail of a saturated row; the sink's value is 0.
    heaviest = jnp.argmax(jnp.append(w, found.sink_weight[row].astype(w.dtype)))
    top = jnp.append(a, jnp.zeros((), a.dtype))[heaviest]
    ahead = a - top
    mean = w @ ahead - found.sink_weight[row] * top
    pulled = (slope * (mean - ahead))[:, None] * k_there.astype(w.dtype)
    alone = jnp.zeros_like(dout).at[row].set(dout[row])
    out, pull_back = jax.vjp(lambda q: attention(q, k, v, sink=sink, scale=scale, **options), q)
    (dq,) = pull_back(alone.astype(out.dtype))
    return MeasuredRow(q[row], k, w, found.max_logit[row], found.entropy[row], pulled, dq[row])
