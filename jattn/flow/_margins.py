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
      has no rival (S = 1). NaN where a key or a difference is not finite. Where keys nearly lie in a plane the
      margin has an error of about the square root of rounding: 1e-7 of the keys' differences in float64, 1e-3 in
      float32. A direction that is not zero puts the target ahead of all others.

    Raises:
      TypeError: `keys` is not floating point, or `target` no whole number. ValueError: `keys` has not two axes, or
      `target` not one number, or is known and is no number of a key.

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
    target = _errors.number_of("max_margin", "target", target, len(keys), "S")
    keys = jax.lax.stop_gradient(keys.astype(_errors.wide(keys)))
    S = len(keys)
    rival = jnp.arange(S) != target
    d = keys[target][None] - keys
    size = jnp.max(jnp.abs(d), initial=0)
    d = jnp.where(rival[:, None], d / jnp.where(size == 0, 1, size), 0)
    support = _nearest(d, rival)
    x = support @ d
    length, none = jnp.linalg.norm(x), 64 * jnp.finfo(d.dtype).eps * S
    # Of keys that nearly lie in a plane the nearest point is found to fewer digits: does it separate at all?
    found = (length > none) & (jnp.min(jnp.where(rival, d @ x, jnp.inf), initial=jnp.inf) > 0)
    u, margin = jnp.where(found, x / jnp.where(found, length, 1), 0), jnp.where(found, size * length, 0)
    unknown = ~(jnp.isfinite(keys).all() & jnp.isfinite(d).all())
    return Margin(nan_where(unknown, u), nan_where(unknown, margin), nan_where(unknown, support))


def _nearest(d: jax.Array, rival: jax.Array) -> jax.Array:
    """Weights on the points d [S, D] where `rival` whose mean is the point of their hull nearest to 0."""
    S = len(d)
    gram = d @ d.T
    tiny = 8 * jnp.finfo(d.dtype).eps
    far = jnp.where(rival, jnp.diag(gram), jnp.inf)
    start = jax.nn.one_hot(jnp.argmin(far), S, dtype=d.dtype) * rival.astype(d.dtype)

    def affine(corral: jax.Array) -> jax.Array:
        """The weights, of any sign, of the point nearest to 0 in the plane through the corral."""
        both = corral[:, None] & corral[None, :]
        system = jnp.where(both, 1 + gram, 0) + jnp.diag(jnp.where(corral, 0, 1).astype(d.dtype))
        w = jnp.where(corral, jnp.linalg.solve(system, corral.astype(d.dtype)), 0)
        return w / jnp.where(corral.any(), w.sum(), 1)

    def unfinished(carry: tuple[Any, ...]) -> jax.Array:
        _, _, done, i = carry
        return ~done & (i < 8 * S)

    def move(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        w, corral, _, i = carry
        y = affine(corral)
        inside = jnp.all(jnp.where(corral, y > tiny, True))
        # Outside: go from w toward y until the first weight is 0, and let those at 0 leave.
        gap = jnp.where(corral & (y <= tiny), w - y, 1)
        step = jnp.min(jnp.where(corral & (y <= tiny), w / jnp.where(gap <= 0, 1, gap), 1), initial=1)
        cut = w + step * (y - w)
        stays = corral & (cut > tiny)
        cut = jnp.where(stays, cut, 0)
        cut = cut / cut.sum()
        # Inside: the nearest point of the corral's plane; is any other point nearer to 0 than that plane?
        lead = jnp.where(rival & ~corral, gram @ y, jnp.inf)
        other = jnp.argmin(lead)
        nearer = lead[other] < y @ gram @ y - tiny
        grown = corral | (jnp.arange(S) == other) & nearer
        w, corral = jnp.where(inside, y, cut), jnp.where(inside, grown, stays)
        return w, corral, inside & ~nearer, i + 1

    return jax.lax.while_loop(unfinished, move, (start, start > 0, start.sum() == 0, jnp.int32(0)))[0]
