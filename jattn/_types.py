"""Words: the letters that name axes, and the aliases that carry them.

    T    queries (targets)            D    width of q and k
    S    keys and values (sources)    Dv   width of v
    H    query heads                  Hkv  key/value heads
    *B   batch axes                   P    devices

T and S differ even in self-attention: they name roles, not lengths. jax.nn writes N for our H and
H for our D; only `jattn.dot_product_attention`, which keeps its signature, is documented in its letters.

Indices: `t` runs over queries, `s` over keys. Tangents end in `_dot` (`q_dot`), cotangents begin
with `d` (`dq`, `dout`). A partial attention is always the pair `(out, lse)`, in this order.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

if TYPE_CHECKING:  # chex has no py.typed: of its names, checkers would know nothing
    Numeric: TypeAlias = jax.Array | np.ndarray[Any, Any] | np.generic | float
    PRNGKey: TypeAlias = jax.Array
else:
    from chex import Numeric, PRNGKey

ArrayTree: TypeAlias = Any
"""A pytree of arrays, for which JAX has no type."""

Queries: TypeAlias = Float[Array, "T D"]
Keys: TypeAlias = Float[Array, "S D"]
Values: TypeAlias = Float[Array, "S Dv"]
Out: TypeAlias = Float[Array, "T Dv"]
Lse: TypeAlias = Float[Array, " T"]
Pairs: TypeAlias = Float[Array, "T S"]
Allowed: TypeAlias = Bool[Array, "T S"]
QPositions: TypeAlias = Int[Array, " T"]
KPositions: TypeAlias = Int[Array, " S"]
Partial: TypeAlias = tuple[Float[Array, "*B Dv"], Float[Array, "*B"]]

ScoreModifier: TypeAlias = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""`score(score, q_position, k_position) -> score`, each a scalar: what a score becomes before the softmax."""

__all__ = [
    "Allowed",
    "Array",
    "ArrayLike",
    "ArrayTree",
    "Bool",
    "Float",
    "Int",
    "KPositions",
    "Keys",
    "Lse",
    "Numeric",
    "Out",
    "PRNGKey",
    "Pairs",
    "Partial",
    "QPositions",
    "Queries",
    "ScoreModifier",
    "Values",
]
