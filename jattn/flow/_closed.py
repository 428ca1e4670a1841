"""Closed forms: attention with exact tails, the losses on its steps, and the Jacobian of softmax.

Every softmax here is jattn.softmax, so a saturated row keeps its tail in each derivative.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._numerics import nan_where, zero_nonfinite_rows
from jattn._softmax import log_softmax, softmax
from jattn._types import Array, ArrayLike, Float, Keys, Numeric, Queries, Values
from jattn.masks import Mask
from jattn.one_head import every_step
from jattn.reference import Steps

Objective: TypeAlias = Callable[[Steps], jax.Array]
"""A loss on any of the steps of attention: Steps(scores, scaled, weights, out) -> scalar."""


def attention_steps(
    q: Queries,
    k: Keys,
    v: Values,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: Numeric | None = None,
) -> Steps:
    """Every intermediate of attention, as `jattn.explain`, with derivatives that keep the tail of a saturated row.

        weights = softmax(scale · q kᵀ + bias),    out = weights v

    One head, no batch: map with jax.vmap.

    Args:
      q: [T, D]. k: [S, D]. v: [S, Dv].
      mask: booleans [T, S] or a value of `jattn.masks`.
      bias: added to the scores, broadcastable to [T, S].
      scale: what the dot products are multiplied by; 1/√D if None.

    Returns:
      Steps(scores, scaled, weights, out). A query that may attend no key has weights and output 0.

    Raises:
      TypeError, ValueError: as `jattn.explain`.

    Memory: T × S, several times.

    Source: Vaswani et al. 2017, eq. 1; jax issue 40344 for the tail.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> keys = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])  # river, money, the
      >>> print((100 * flow.attention_steps(keys[:1], keys, keys).weights).round())
      [[49. 28. 24.]]
    """
    return steps_of("attention_steps", q, k, v, mask, bias, scale)


def steps_of(
    caller: str,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale: Numeric | None = None,
) -> Steps:
    """`attention_steps`, for functions that errors are to name in its place."""
    scores, scaled, _, out = every_step(caller, q, k, v, mask, bias=bias, scale=scale)
    weights, mean = _with_tails(scaled, jnp.asarray(v))
    return Steps(scores, scaled, weights, mean.astype(out.dtype))


@jax.jit
def _with_tails(scaled: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    weights = softmax(scaled)
    return weights, weighted_mean(weights, scaled, v)


def weighted_mean(weights: jax.Array, scaled: jax.Array, v: jax.Array) -> jax.Array:
    """weights · v, where a NaN or an infinity in a value reaches those queries alone that may attend it."""
    finite, nonfinite = zero_nonfinite_rows(v.astype(weights.dtype))
    return nan_where((allowed(scaled) & nonfinite.T).any(1, keepdims=True), weights @ finite)


def allowed(scaled: jax.Array) -> jax.Array:
    """Which pairs the mask allows."""
    return scaled != -jnp.inf


def cross_entropy(target: ArrayLike) -> Objective:
    """The loss −Σ_s π_s log p_s, of weights that should be one key, or a distribution π over the keys.

        L = −log p_r,  or  −Σ_s π_s log p_s;    −dL/dq = c (k_r − k̄),  or  c (Σ_s π_s k_s − k̄)

    Args:
      target: the number of the key r, from 0 to S − 1, possibly traced; or π [S], floating point, which sums to 1.

    Returns:
      A function of Steps: the mean over the queries. It is right to rounding however small p_r is.

    Raises:
      TypeError: `target` is not an array of numbers.
      ValueError: `target` has another dtype or more than one axis, or is a known π that does not sum to 1, to rounding
      in its dtype, or has an entry below 0; or, when the loss is called, it is known and is no number of a key, or has
      not one entry a key.

    Memory: T × S.

    Source: the logarithm of the definition; Shannon 1948.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> print(flow.cross_entropy(0)(flow.attention_steps(jnp.zeros((1, 2)), jnp.eye(2), jnp.eye(2))).round(4))
      0.6931
    """
    goal = _errors.array("cross_entropy", "target", target)
    if goal.ndim > 1 or not jnp.issubdtype(goal.dtype, jnp.floating if goal.ndim else jnp.integer):
        remedy = "Pass the number of a key, as in cross_entropy(0), or weights [S] that sum to 1."
        must = "target must be a whole number or a distribution [S]"
        _errors.fail(ValueError, "cross_entropy", must, remedy, target=f"{goal.dtype}{_errors.shape(goal)}")
    if goal.ndim and _errors.known(given := target if hasattr(target, "dtype") else goal):
        _check_distribution(np.asarray(_errors.read(given), np.float64), float(jnp.finfo(goal.dtype).eps))

    def loss(steps: Steps) -> jax.Array:
        logs = log_softmax(steps.scaled)
        if not goal.ndim:
            _errors.index("cross_entropy", "target", target, logs.shape[1], "S")
            return _mean_entry(logs, goal)
        if len(goal) != logs.shape[1]:
            remedy = "Give each key a weight, 0 where it is not wanted."
            got = {"target": goal, "scores": logs}
            _errors.fail(ValueError, "cross_entropy", "target must be a distribution [S]", remedy, **got)
        return _mean_under(logs, goal.astype(logs.dtype))

    return loss


def _check_distribution(pi: np.ndarray, eps: float) -> None:
    """Refuses weights that are known and are none: a loss of them would have another least value and other pulls."""
    must = "target must be a distribution [S]"
    if not (pi >= 0).all():
        remedy = "Give each key a weight of 0 or more."
        got = f"{_errors.shape(pi)} with an entry that is not 0 or more"
        _errors.fail(ValueError, "cross_entropy", must, remedy, target=got)
    if not abs(pi.sum() - 1) <= 4 * eps * max(len(pi), 1) ** 0.5:
        got = f"{_errors.shape(pi)} that does not sum to 1"
        _errors.fail(ValueError, "cross_entropy", must, "Divide it by its sum.", target=got)


@jax.jit
def _mean_entry(logs: jax.Array, target: jax.Array) -> jax.Array:
    return -jnp.mean(logs[:, target])


@jax.jit
def _mean_under(logs: jax.Array, pi: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.sum(jnp.where(pi[None] == 0, 0, pi[None] * logs), 1))


def squared_error(goal: ArrayLike) -> Objective:
    """The loss ½ |out − goal|², summed over the output and averaged over the queries.

        −dL/dq = c Cov_p(k, v) (goal − out)

    Args:
      goal: what the output should be, broadcastable to [T, Dv].

    Returns:
      A function of Steps.

    Raises:
      TypeError: `goal` is not an array of real numbers.
      ValueError: when the loss is called, `goal` does not broadcast to [T, Dv].

    Memory: T × Dv.

    Source: calculus.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> print(flow.squared_error(jnp.zeros(2))(flow.attention_steps(jnp.zeros((1, 2)), jnp.eye(2), jnp.eye(2))))
      0.25
    """
    wanted = _errors.array("squared_error", "goal", goal)
    if jnp.issubdtype(wanted.dtype, jnp.complexfloating):  # whole numbers will do
        _errors.floating("squared_error", goal=wanted)

    def loss(steps: Steps) -> jax.Array:
        _errors.broadcastable("squared_error", "goal", wanted, steps.out.shape, "[T, Dv]")
        return _half_square(steps.out, wanted)

    return loss


@jax.jit
def _half_square(out: jax.Array, wanted: jax.Array) -> jax.Array:
    miss = out - jnp.broadcast_to(wanted, out.shape).astype(out.dtype)
    return 0.5 * jnp.mean(jnp.sum(miss**2, 1))


def softmax_jacobian(x: Float[Array, " n"]) -> Float[Array, "n n"]:
    """The derivative of the weights with respect to their logits, dp_i/dx_j.

        J = diag(p) − p pᵀ;  symmetric, ⪰ 0, J 1 = 0, trace 1 − |p|², largest eigenvalue ≤ ½

    Args:
      x: n logits. An entry of −inf has weight 0.

    Returns:
      [n, n], each entry right to rounding, whatever its size: 1 − p_i is the sum of the other weights.

    Raises:
      TypeError: `x` is not floating point. ValueError: `x` has not one axis.

    Memory: n × n.

    Source: calculus; the bound ½ is that of Gershgorin, 2 p_i (1 − p_i) in row i (Nair 2025, "Softmax is
      1/2-Lipschitz", has it in every norm).

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> print(flow.softmax_jacobian(jnp.zeros(2)))
      [[ 0.25 -0.25]
       [-0.25  0.25]]
    """
    x = _errors.array("softmax_jacobian", "x", x)
    _errors.floating("softmax_jacobian", x=x)
    _errors.rank("softmax_jacobian", 1, "[n]", "Map over rows with jax.vmap.", x=x)
    return _jacobian(x)


@jax.jit
def _jacobian(x: jax.Array) -> jax.Array:
    p = softmax(x)
    off = jnp.where(jnp.eye(len(x), dtype=bool), 0, jnp.outer(p, p))
    return jnp.diag(off.sum(1)) - off  # p_i (1 − p_i) = Σ_{j≠i} p_i p_j: nothing cancels


def jacobian_spectrum(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """The eigenvalues of the softmax Jacobian, smallest first.

        0 = λ_1 ≤ λ_2 ≤ … ≤ λ_n ≤ ½,    p_(i) ≤ λ_{i+1} ≤ p_(i+1),    Σ λ = 1 − |p|²

    with p_(1) ≤ p_(2) ≤ … the sorted weights: they interlace. Where λ_n nears 0, so does every gradient through them.

    Args:
      x: n logits.

    Returns:
      [n], to within eps of the largest, none below 0; the first is 0 by theory, and is set to it.

    Raises:
      TypeError: `x` is not floating point. ValueError: `x` has not one axis.

    Memory: n × n.

    Source: Golub 1973, "Some modified matrix eigenvalue problems", for the interlacing.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> print(flow.jacobian_spectrum(jnp.zeros(2)))
      [0.  0.5]
    """
    x = _errors.array("jacobian_spectrum", "x", x)
    _errors.floating("jacobian_spectrum", x=x)
    _errors.rank("jacobian_spectrum", 1, "[n]", "Map over rows with jax.vmap.", x=x)
    return _spectrum(x.astype(_errors.wide(x))).astype(x.dtype)  # eigvalsh takes no fewer bits


@jax.jit
def _spectrum(x: jax.Array) -> jax.Array:
    values = jnp.linalg.eigvalsh(_jacobian(x)).at[:1].set(0)
    return jnp.where(values < 0, 0, values)  # the smallest are rounding, of either sign
