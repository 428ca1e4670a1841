"""The norm of vectors: of q and k before they meet, and of a latent."""

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._types import Array, ArrayLike, Float


def rms_norm(x: Float[ArrayLike, "*B D"], weight: Float[ArrayLike, " D"], *, eps: float = 1e-6) -> Float[Array, "*B D"]:
    """Vectors brought to a root mean square of 1, each column times its weight.

        x_i · weight_i / √(mean_j x_j² + eps)

    Args:
      x: [..., D], floating point.
      weight: [D]; all 1/√D makes it the L2 norm.
      eps: ≥ 0, added to the mean square; a vector of zeros stays one, if eps > 0.

    Returns:
      [..., D] in the dtype of x, computed in float32 or wider.

    Raises:
      TypeError: x is not floating point.
      ValueError: x has no axis, or weight is not [D].

    Memory: that of x, in float32 or wider while it is computed.

    Source: Zhang and Sennrich 2019, "Root mean square layer normalization", eq. 4.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn.heads import rms_norm
      >>> print(rms_norm(jnp.array([3.0, -3.0]), jnp.array([1.0, 2.0]), eps=0.0))
      [ 1. -2.]
    """
    caller = "rms_norm"
    x, weight = _errors.array(caller, "x", x), _errors.array(caller, "weight", weight)
    _errors.floating(caller, x=x)
    if weight.shape != x.shape[-1:] or not x.ndim:
        must, remedy = "x must be [..., D] and weight [D]", "Give one weight to each column."
        _errors.fail(ValueError, caller, must, remedy, x=x, weight=weight)
    wide = x.astype(_errors.wide(x))
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)
    return (normed * weight.astype(wide.dtype).reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)
