"""The direction in which one key's score outruns every other's by the widest margin: where a query tends."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._numerics import nan_where
from jattn._types import Array, Float, Integer, Keys


class Margin(NamedTuple):
    """The solution of max over |u| = 1 of min over j ≠ r of u·(k_r − k_j)."""

    direction: Float[Array, " D"]
    """u, of length 1; zeros where no direction prefers the target."""
    margin: Float[Array, ""]
    """γ, in the units of the keys; 0 where the target lies in the hull of the others."""
    support: Float[Array, " S"]
    """The dual: weights ≥ 0 on the rivals, summing to one, with γ u = Σ_j support_j (k_r − k_j)."""


def max_margin(keys: Keys, target: Integer[Array, ""] | int) -> Margin:
    """The direction that separates one key from all others by the widest margin.

        u = argmax over |u| = 1 of γ(u) = min_{j≠r} u·(k_r − k_j)
        γ u = the point nearest to 0 of the hull of {k_r − k_j}

    Solved exactly, in finitely many steps, each a small linear system: Wolfe's algorithm on that nearest point, which
    is the dual of the hard-margin support vector machine. Not differentiable: its gradient is stopped.

    Args:
      keys: [S, D]. target: r, from 0 to S − 1, possibly traced.

    Returns:
      Margin(direction, margin, support). Zeros for direction and margin where k_r lies in the hull of the others, or
      has no rival (S = 1). NaN where a key or a difference is not finite. The margin has an error of about
      rounding, relative to the keys' largest difference, where keys nearly lie in a plane too; one as small as that may
      be found to be 0. A direction that is not zero puts the target ahead of all others.

    Raises:
      TypeError: `keys` is not floating point, or `target` no whole number. ValueError: `keys` has not two axes
      or no row, or `target` is not one number, or is known and is no number of a key.

    Memory: S × S.

    Source: Wolfe 1976, "Finding the nearest point in a polytope"; Soudry et al. 2018, "The implicit bias of gradient
      descent on separable data", for why gradient descent tends there.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> keys = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])  # river, money, the
      >>> u, margin, support = flow.max_margin(keys, 0)
      >>> print(u.round(4), (margin**2).round(4))  # not along k_river
      [ 0.9923 -0.124 ] 0.65
    """
    keys = _errors.array("max_margin", "keys", keys)
    _errors.floating("max_margin", keys=keys)
    _errors.rank("max_margin", 2, "[S, D]", "One row a key; map over a batch with jax.vmap.", keys=keys)
    if not len(keys):
        _errors.fail(ValueError, "max_margin", "keys must have at least one row", "Give the target its key.", keys=keys)
    target = _errors.number_of("max_margin", "target", target, len(keys), "S").astype(jnp.int32)
    return _widest(jax.lax.stop_gradient(keys.astype(_errors.wide(keys))), target)


@jax.jit
def _widest(keys: jax.Array, target: jax.Array) -> Margin:
    S = len(keys)
    rival = jnp.arange(S, dtype=jnp.int32) != target
    d = keys[target][None] - keys
    size = jnp.max(jnp.abs(d), initial=0)
    unit = jnp.where(size > 1, 2.0**-8, 1).astype(d.dtype)  # XLA divides by 1 / size, too small where size is huge
    d = jnp.where(rival[:, None], d * unit / jnp.where(size == 0, 1, size * unit), 0)
    support, u = _nearest(d, rival)
    # Certified: every rival is behind by more than the rounding of a dot product.
    found = jnp.min(jnp.where(rival, d @ u, jnp.inf), initial=jnp.inf) > 8 * jnp.finfo(d.dtype).eps
    found &= rival.any()
    u = jnp.where(found, u, 0)
    margin = size * (support @ d @ u)
    unknown = ~(jnp.isfinite(keys).all() & jnp.isfinite(d).all())
    return Margin(nan_where(unknown, u), nan_where(unknown, margin), nan_where(unknown, support))


def _nearest(d: jax.Array, rival: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights on the points d [S, D] where `rival`, whose mean x is nearest to 0 in their hull, and x / |x|."""
    S, D = d.shape
    tiny = 8 * jnp.finfo(d.dtype).eps
    far = jnp.where(rival, jnp.sum(d * d, 1), jnp.inf)
    start = jax.nn.one_hot(jnp.argmin(far), S, dtype=d.dtype) * rival.astype(d.dtype)
    lifted = jnp.concatenate([d.T, jnp.ones((1, S), d.dtype)])
    top = jnp.zeros(D + 1 + S, d.dtype).at[D].set(1)

    def affine(corral: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The weights, of any sign, of the point x nearest to 0 in the plane through the corral, x / |x|, and |x|.

        Up to a factor, the weights that bring Σ w (d, 1) nearest to (0, 1), by QR: the products of the points with one
        another would square how nearly they lie in a plane. What is left, (−x, |x|²) up to a factor, is made orthogonal
        once more: of a short x the first time leaves a direction of few digits.
        """
        others = jnp.diag(jnp.where(corral, 0, 1).astype(d.dtype))
        Q, R = jnp.linalg.qr(jnp.concatenate([jnp.where(corral[None], lifted, 0), others]))
        along = top @ Q
        w = jnp.where(corral, jax.scipy.linalg.solve_triangular(R, along), 0)
        left = top - Q @ along
        left = left - Q @ (left @ Q)
        length = jnp.linalg.norm(left[:D])
        toward = jnp.where(length > tiny, left / jnp.where(length == 0, 1, length), 0)  # a plane through 0 leaves noise
        return w / jnp.where(corral.any(), w.sum(), 1), -toward[:D], toward[D]

    def unfinished(carry: tuple[Any, ...]) -> jax.Array:
        *_, done, i = carry
        return ~done & (i < 8 * S)

    def move(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        w, corral, _, _, i = carry
        y, toward, length = affine(corral)
        inside = jnp.all(jnp.where(corral, y > tiny, True))
        # Outside: go from w toward y until the first weight is 0, and let those at 0 leave.
        gap = jnp.where(corral & (y <= tiny), w - y, 1)
        step = jnp.min(jnp.where(corral & (y <= tiny), w / jnp.where(gap <= 0, 1, gap), 1), initial=1)
        cut = w + step * (y - w)
        stays = corral & (cut > tiny)
        cut = jnp.where(stays, cut, 0)
        cut = cut / cut.sum()
        # Inside: the nearest point of the corral's plane; is any other point nearer to 0 than that plane?
        lead = jnp.where(rival & ~corral, d @ toward, jnp.inf)
        other = jnp.argmin(lead)
        nearer = (length > tiny) & (lead[other] < length - tiny)
        grown = corral | (jnp.arange(S) == other) & nearer
        w, corral = jnp.where(inside, y, cut), jnp.where(inside, grown, stays)
        return w, corral, toward, inside & ~nearer, i + 1

    begin = start, start > 0, jnp.zeros_like(d[0]), start.sum() == 0, jnp.int32(0)
    w, _, toward, *_ = jax.lax.while_loop(unfinished, move, begin)
    return w, toward
