"""What a head does to a loss: by its gradient, to second order, by a knock-out; and what its gradient would write."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.stats import rankdata

from jattn import _errors
from jattn._types import Array, ArrayLike, Bool, Float, Integer
from jattn._values import Closed, close
from jattn.heads._params import standard
from jattn.per_query import top_keys


class Effects(NamedTuple):
    """See `effects`. Each but the value has one entry a gate."""

    value: Float[Array, ""]
    first_order: Float[Array, "*H"]
    second_order: Float[Array, "*H"]
    knock_out: Float[Array, "*H"]


class Agreement(NamedTuple):
    """See `agreement`."""

    rank_correlation: Float[Array, ""]
    opposite_sign: Bool[Array, "*H"]
    error: Float[Array, "*H"]


class BackwardLens(NamedTuple):
    """See `backward_lens`."""

    written: Float[Array, "H T E"]
    tokens: Integer[Array, "H T n"]
    logits: Float[Array, "H T n"]
    decrease: Float[Array, " H"]


def effects(
    f: Callable[[jax.Array], jax.Array], gates: Float[ArrayLike, "*H"], *, batch_size: int | None = None
) -> Effects:
    """What taking each head away does to a value: as its gradient says, as its curvature adds, and as it is.

        knock_out_h = f(γ with γ_h = 0) − f(γ)        first_order_h = −γ_h ∂f/∂γ_h
        second_order_h = first_order_h + ½ γ_h² ∂²f/∂γ_h²

    with a gate γ_h that multiplies what head h writes, so that at γ = 1 the first order is gradient × activation,
    −Σ_t ⟨∂f/∂y_ht, y_ht⟩ with y_ht the part of head h in the result at t. Any function of any gates will do: those of a
    model on `multi_head` scale the rows of `params["out"]`, as the example does; with γ y + (1 − γ) m for a mean m of y
    over other texts, taking away means replacing by that mean.

    Args:
      f: a function of gates to one real number, a loss or a logit. What needs a pass a head is compiled once, however
        often f is written anew.
      gates: [...], floating point, where the model stands: ones of the shape [H], or [L, H] for layers of heads. Heads
        that are already 0 stay so.
      batch_size: how many heads are computed at a time, a Python int; one if None.

    Returns:
      Effects(value, first_order, second_order, knock_out), a named tuple: f(γ), and arrays of the shape of gates.

    Raises:
      TypeError: gates are not floating point, or f is no function or returns no real number.

    Memory: that of f and of its gradient; batch_size times that of f and its second tangent. Under jax.jit what is not
      used is not computed: the second order takes as long as a few knock-outs.

    Source: Michel et al. 2019, "Are sixteen heads really better than one?", for gates, gradients and knock-outs; Nanda
      2023, "Attribution patching", for where the first order fails; LeCun et al. 1990, "Optimal brain damage", for the
      second.

    Example:
      The four heads of a layer. Of a value that is linear in the gates all three say the same; of a square, the second
      order does, and the first has for one head the wrong sign:

      >>> import jax, jax.numpy as jnp
      >>> from jattn import heads
      >>> params = heads.init(jax.random.key(0), 32, heads=4)
      >>> x = jax.random.normal(jax.random.key(1), (7, 32))
      >>> def written(gates):
      ...     return heads.multi_head({**params, "out": gates[:, None, None] * params["out"]}, x)
      >>> linear = heads.effects(lambda gates: written(gates).sum(), jnp.ones(4))
      >>> bool(jnp.allclose(linear.first_order, linear.knock_out, atol=1e-4))
      True
      >>> square = heads.effects(lambda gates: (written(gates) ** 2).sum(), jnp.ones(4))
      >>> print(square.first_order.round(), square.second_order.round(), square.knock_out.round())
      [-36. -49. -10. -48.] [-17. -21.   6. -19.] [-17. -21.   6. -19.]
    """
    caller = "effects"
    gates = _errors.array(caller, "gates", gates)
    _errors.floating(caller, gates=gates)
    _errors.function(caller, "f", f, "Write f(gates) -> a loss or a logit.")
    out = jax.eval_shape(f, gates)
    if getattr(out, "shape", None) != () or not jnp.issubdtype(out.dtype, jnp.floating):
        got = f"{out.dtype}{_errors.shape(out)}" if hasattr(out, "dtype") else type(out).__name__
        remedy = "Sum a loss over tokens and examples."
        _errors.fail(TypeError, caller, "f must return one real number", remedy, f=f"returning {got}")
    value, slope = jax.value_and_grad(f)(gates)
    value = jnp.asarray(value)  # it may be a number
    closed, captured, _ = close(f, gates)
    curvature, gone = _of_each(closed, captured, gates, value, batch_size)
    first = (-gates * slope).astype(value.dtype)
    return Effects(value, first, first + curvature / 2, gone)


@partial(jax.jit, static_argnums=(0, 4))
def _of_each(
    closed: Closed, captured: tuple[jax.Array, ...], gates: jax.Array, value: jax.Array, batch_size: int | None
) -> tuple[jax.Array, jax.Array]:
    """γ_h² ∂²f/∂γ_h² and f(γ with γ_h = 0) − f(γ), compiled once for all functions that compute the same."""

    def f(gates: jax.Array) -> jax.Array:
        return closed(captured, gates)[0]

    def gone(here: jax.Array) -> jax.Array:
        return f(jnp.where(here, 0, gates)) - value

    def curvature(here: jax.Array) -> jax.Array:
        toward = jnp.where(here, gates, 0)
        return jax.jvp(lambda x: jax.jvp(f, (x,), (toward,))[1], (gates,), (toward,))[1]

    def of_each(what: Callable[[jax.Array], jax.Array]) -> jax.Array:
        numbers = jnp.arange(gates.size, dtype=jnp.int32)
        here = lambda i: (numbers == i).reshape(gates.shape)  # noqa: E731
        return jax.lax.map(lambda i: what(here(i)), numbers, batch_size=batch_size).reshape(gates.shape)

    return of_each(curvature), of_each(gone)


def agreement(estimate: Float[ArrayLike, "*H"], effect: Float[ArrayLike, "*H"]) -> Agreement:
    """How well an estimate of each head's effect ranks and signs the heads, and where it fails.

        rank_correlation = corr(rank(estimate), rank(effect)),      error_h = estimate_h − effect_h

    Args:
      estimate: [...], as `effects(...).first_order`.
      effect: of the same shape, as `effects(...).knock_out`. Their absolute values compare sizes alone.

    Returns:
      Agreement(rank_correlation, opposite_sign, error), a named tuple: Spearman's correlation over all entries, equal
      ones of which share their mean rank, NaN where one side is constant or holds a NaN; booleans, where the one is
      above 0 and the other below; and the error. Effects as small as rounding have any sign.

    Raises:
      ValueError: the shapes differ.

    Memory: linear in the number of heads.

    Source: Spearman 1904, "The proof and measurement of association between two things".

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import heads
      >>> found = heads.agreement(jnp.array([0.1, 0.2, -0.01, 0.9]), jnp.array([0.1, 0.3, 0.02, 4.0]))
      >>> print(found.rank_correlation.round(3), found.opposite_sign, found.error.argmin())
      1.0 [False False  True False] 3
    """
    estimate, effect = (_errors.array("agreement", n, x) for n, x in (("estimate", estimate), ("effect", effect)))
    if estimate.shape != effect.shape:
        must, remedy = "estimate and effect must have one shape", "Give both for the same heads."
        _errors.fail(ValueError, "agreement", must, remedy, estimate=estimate, effect=effect)
    dtype = _errors.wide(estimate, effect)
    ranks = (rankdata(x.ravel(), nan_policy="propagate").astype(dtype) for x in (estimate, effect))
    with standard():
        return Agreement(
            rank_correlation=jnp.corrcoef(*ranks)[0, 1],
            opposite_sign=jnp.sign(estimate) * jnp.sign(effect) < 0,
            error=estimate - effect,
        )


def backward_lens(
    out: Float[ArrayLike, "H T Dv"],
    gradient: Float[ArrayLike, "H Dv E"],
    unembed: Float[ArrayLike, "E V"],
    *,
    n: int = 5,
) -> BackwardLens:
    """What one step of gradient descent on the output matrix of each head would have it write, read as tokens.

        written_ht = −out_ht · ∂L/∂O_h = −Σ_t' ⟨out_ht, out_ht'⟩ ∂L/∂y_t'       (the rate of learning is 1)
        tokens_ht = the n tokens v with the largest ⟨written_ht, unembed_v⟩

    since ∂L/∂O_h = Σ_t' out_ht'ᵀ ∂L/∂y_t' is a sum of outer products: a later input that is like out_ht' has −∂L/∂y_t'
    added to what it writes to the next layer, y_t = Σ_h out_ht O_h. What would be written less is `backward_lens(-out,
    ...)`. No batch: map with jax.vmap.

    Args:
      out: [H, T, Dv], what `grouped` gives, times the head scale and the gate where there are such.
      gradient: [H, Dv, E], ∂L/∂O: `jax.grad(loss)(params)["out"]`.
      unembed: [E, V], from the residual stream to logits; a norm before it is left out, but for its weight, which may
        multiply the rows.
      n: how many tokens, a Python int of at least 1.

    Returns:
      BackwardLens(written [H, T, E], tokens [H, T, n] in int32, logits [H, T, n], decrease [H]), a named tuple: by how
      much the step raises the logits of these tokens, best first, were nothing in between; and how much it lowers the
      loss at first order, ‖∂L/∂O_h‖² = −Σ_t ⟨∂L/∂y_t, written_ht⟩. A rate of learning multiplies all but the tokens.

    Raises:
      TypeError, ValueError: as `top_keys`; or the shapes do not fit.

    Memory: O(H · T · (E + n)) and E · V: no array of T × V.

    Source: Katz et al. 2024, "Backward lens: projecting language model gradients into the vocabulary space", sections 3
      and 4.

    Example:
      A head that carries token 0 to the place of token 3, of which the loss expects token 7. Its gradient writes 7:

      >>> import jax, jax.numpy as jnp, jattn
      >>> from jattn import heads
      >>> unembed = jax.random.normal(jax.random.key(0), (16, 9)) / 4
      >>> def loss(O):
      ...     logits = jnp.einsum("htd,hde->te", out, O) @ unembed
      ...     return -jattn.log_softmax(logits)[0, 7]
      >>> out = unembed.T[None, :1]
      >>> lens = heads.backward_lens(out, jax.grad(loss)(jnp.zeros((1, 16, 16))), unembed, n=1)
      >>> print(lens.tokens)
      [[[7]]]
    """
    caller = "backward_lens"
    given = {"out": out, "gradient": gradient, "unembed": unembed}
    out, gradient, unembed = (_errors.array(caller, name, x) for name, x in given.items())
    _errors.floating(caller, out=out, gradient=gradient, unembed=unembed)
    no_batch = "No batch: map with jax.vmap."
    _errors.rank(caller, 3, "[H, T, Dv]", no_batch, out=out)
    _errors.rank(caller, 3, "[H, Dv, E]", no_batch, gradient=gradient)
    _errors.rank(caller, 2, "[E, V]", no_batch, unembed=unembed)
    if (out.shape[0], out.shape[2]) != gradient.shape[:2] or gradient.shape[2] != unembed.shape[0]:
        must = "out [H, T, Dv], gradient [H, Dv, E] and unembed [E, V] must agree in H, Dv and E"
        remedy = "Take all three of one layer."
        _errors.fail(ValueError, caller, must, remedy, out=out, gradient=gradient, unembed=unembed)
    with standard():
        written = -jnp.einsum("htd,hde->hte", out, gradient)
    # The tokens are keys: the n best of each place are found tile by tile.
    best = jax.vmap(lambda x: top_keys(x, unembed.T, n, scale=1.0))
    return BackwardLens(written, *best(written), decrease=jnp.sum(gradient**2, (1, 2)))
