"""The pull of each key, in closed form.

With c the scale, p the weights, a_ts = −dL/dp_ts, what a little more weight would gain, and ā_t = Σ_s p_ts a_ts:

    −dL/ds_ts = p_ts (a_ts − ā_t)
    −dL/dq_t = Σ_s c p_ts (a_ts − ā_t) k_s
    −dL/dk_s = Σ_t c p_ts (a_ts − ā_t) q_t
    −dL/dv_s = Σ_t −p_ts dL/dout_t

A loss of the scores themselves adds −dL/dscores_ts k_s to each term of the second line, and −dL/dscores_ts q_t to each
of the third.

The softmax is jattn.softmax, so a saturated row keeps its tail in each of these.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._numerics import promoted
from jattn._softmax import softmax
from jattn._types import Array, ArrayLike, Float, Keys, Numeric, Queries, Values
from jattn._values import Closed, close
from jattn.arguments.options import qkv, scale_array
from jattn.flow._closed import Objective, allowed, steps_of, weighted_mean
from jattn.masks import Mask
from jattn.reference import Steps


class Pulls(NamedTuple):
    """What each pair of a query t and a key s contributes to a step downhill."""

    on_q: Float[Array, "T S D"]
    """Summed over the keys: −dL/dq."""
    on_k: Float[Array, "T S D"]
    """Summed over the queries: −dL/dk."""
    on_v: Float[Array, "T S Dv"]
    """Summed over the queries: −dL/dv."""


class ProjectionPulls(NamedTuple):
    """What each key contributes to a step downhill on the matrices that all words share."""

    W_Q: Float[Array, "S M D"]
    """Summed over the keys: −dL/dW_Q."""
    W_K: Float[Array, "S M D"]
    """Summed over the keys: −dL/dW_K."""
    W_V: Float[Array, "S M Dv"]
    """Summed over the keys: −dL/dW_V."""


def pulls(
    q: Queries,
    k: Keys,
    v: Values,
    loss: Objective,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: Numeric | None = None,
) -> Pulls:
    """What each pair of a query and a key contributes to −dL/dq, −dL/dk and −dL/dv.

        on_q_ts = c p_ts (a_ts − ā_t) k_s,    on_k_ts = c p_ts (a_ts − ā_t) q_t,    on_v_ts = −p_ts dL/dout_t

    with a_ts = −dL/dp_ts, what a little more weight would gain, through the output too, and ā_t its mean with the
    weights. A key that would gain more than this mean draws q_t to it, one that would gain less drives it off. What
    the loss sees of the scores themselves adds −dL/dscores_ts k_s to on_q_ts, and −dL/dscores_ts q_t to on_k_ts. One
    head, no batch: map with jax.vmap.

    Args:
      q: [T, D]. k: [S, D]. v: [S, Dv].
      loss: a function of Steps(scores, scaled, weights, out), such as `cross_entropy(0)`; it may use any of these.
        Compiled once, however often it is written anew, but for a bare `jax.custom_jvp`, as jax.nn.relu is: call
        `jax.jit(jax.nn.relu)`, made once.
      mask: booleans [T, S] or a value of `jattn.masks`.
      bias: added to the scores, broadcastable to [T, S].
      scale: what the dot products are multiplied by; 1/√D if None.

    Returns:
      Pulls(on_q [T, S, D], on_k [T, S, D], on_v [T, S, Dv]). A pair that is not allowed pulls with 0, but for
      what the loss sees of its score.

    Raises:
      TypeError: a dtype is of the wrong kind, or loss is not a function. ValueError: shapes do not fit, or the loss
        is not one real scalar.

    Memory: T × S × (2 D + Dv).

    Source: the chain rule through the softmax.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> keys = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])  # river, money, the
      >>> on_q = flow.pulls(keys[:1], keys, keys, flow.cross_entropy(0)).on_q[0]
      >>> print((100 * on_q).round(), (100 * on_q.sum(0)).round())  # river draws, the others drive off
      [[36.  0.]
       [-4. -2.]
       [-0. -2.]] [33. -4.]
    """
    return _pulls("pulls", q, k, v, loss, mask, bias, scale)


def _pulls(
    caller: str,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    loss: Objective,
    mask: Mask | ArrayLike | None,
    bias: ArrayLike | None,
    scale: Numeric | None,
) -> Pulls:
    q, k, v = qkv(caller, q, k, v)
    remedy = "Pass a loss of its Steps, as cross_entropy(0) or lambda steps: -steps.out.sum()."
    _errors.function(caller, "loss", loss, remedy)
    taken = steps_of(caller, q, k, v, mask, bias, scale)
    _errors.loss(caller, jax.eval_shape(loss, taken))
    closed, captured, _ = close(loss, taken)
    dtype = taken.scaled.dtype
    c = np.asarray(q.shape[1] ** -0.5, dtype) if scale is None else scale_array(caller, scale).astype(dtype)
    return _from_steps(closed, captured, q, k, v, taken, jax.device_put(c))


@partial(jax.jit, static_argnums=0)
def _from_steps(
    closed: Closed,
    captured: tuple[jax.Array, ...],
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    taken: Steps,
    scale: jax.Array,
) -> Pulls:
    def loss(steps: Steps) -> Any:
        return closed(captured, *steps)[0]

    def from_logits(scaled: jax.Array, values: jax.Array) -> Any:
        weights = softmax(scaled)
        out = weighted_mean(weights, scaled, values)
        return loss(Steps(taken.scores, scaled, weights, out.astype(v.dtype)))

    ds = scale * jax.grad(from_logits)(taken.scaled, v)
    on_scores, on_out = jax.grad(lambda scores, out: loss(taken._replace(scores=scores, out=out)), (0, 1))(
        taken.scores, taken.out
    )
    ds = ds + on_scores
    may = allowed(taken.scaled)[..., None]
    seen = may | (on_scores != 0)[..., None]
    k, q = (jnp.where(seen, x.astype(ds.dtype), 0) for x in (k[None], q[:, None]))
    on_out = jnp.where(may, on_out[:, None].astype(ds.dtype), 0)
    return Pulls(-ds[..., None] * k, -ds[..., None] * q, -taken.weights[..., None] * on_out)


def projection_pulls(
    x: Float[Array, "S M"],
    W_Q: Float[Array, "M D"],
    W_K: Float[Array, "M D"],
    W_V: Float[Array, "M Dv"],
    loss: Objective,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: Numeric | None = None,
) -> ProjectionPulls:
    """What each key contributes to −dL/dW_Q, −dL/dW_K and −dL/dW_V in self-attention.

        q = x W_Q, k = x W_K, v = x W_V;    W_Q_s = Σ_t x_t ⊗ on_q_ts,    W_K_s = x_s ⊗ Σ_t on_k_ts,
        W_V_s = x_s ⊗ Σ_t on_v_ts

    Args:
      x: embeddings [S, M], one a word; every word is a query and a key.
      W_Q: [M, D]. W_K: [M, D]. W_V: [M, Dv].
      loss: a function of Steps.
      mask, bias, scale: as in `pulls`.

    Returns:
      ProjectionPulls(W_Q [S, M, D], W_K [S, M, D], W_V [S, M, Dv]).

    Raises:
      TypeError, ValueError: as `pulls`; or the matrices do not fit x.

    Memory: S × S × (2 D + Dv) and S × M × (2 D + Dv).

    Source: dW_Q = Xᵀ dQ and its like.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> on = flow.projection_pulls(jnp.eye(2), jnp.eye(2), jnp.eye(2), jnp.eye(2), flow.cross_entropy(0))
      >>> print((1000 * on.W_Q.sum(0)).round())
      [[ 117. -117.]
       [ 237. -237.]]
    """
    caller, given = "projection_pulls", {"x": x, "W_Q": W_Q, "W_K": W_K, "W_V": W_V}
    arrays = {name: _errors.array(caller, name, a) for name, a in given.items()}
    _errors.floating(caller, **arrays)
    for name, a in arrays.items():
        axes = {"x": "[S, M]", "W_V": "[M, Dv]"}.get(name, "[M, D]")
        _errors.rank(caller, 2, axes, "This function is one head without a batch: map it with jax.vmap.", **{name: a})
        if name != "x" and len(a) != arrays["x"].shape[1]:
            must, remedy = f"x [S, M] and {name} {axes} must agree in M", "Give a row to each column of x."
            _errors.fail(ValueError, caller, must, remedy, **{"x": arrays["x"], name: a})
    dtype = promoted(*(a.dtype for a in arrays.values()))
    x, W_Q, W_K, W_V = (a.astype(dtype) for a in arrays.values())
    taken = _pulls(caller, x @ W_Q, x @ W_K, x @ W_V, loss, mask, bias, scale)
    return _on_matrices(x.astype(taken.on_q.dtype), taken)


@jax.jit
def _on_matrices(x: jax.Array, taken: Pulls) -> ProjectionPulls:
    return ProjectionPulls(
        jnp.einsum("tm,tsd->smd", x, taken.on_q),
        jnp.einsum("sm,tsd->smd", x, taken.on_k),
        jnp.einsum("sm,tsd->smd", x, taken.on_v),
    )
