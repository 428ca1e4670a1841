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

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
import numpy.typing as npt
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float, Integer

if TYPE_CHECKING:  # chex has no py.typed: of its names, checkers would know nothing
    Numeric: TypeAlias = jax.Array | np.ndarray[Any, Any] | np.generic | float
    ArrayTree: TypeAlias = Any  # checkers know no pytrees
    FloatOfPairs: TypeAlias = ArrayLike
    BoolOfPairs: TypeAlias = ArrayLike
else:
    from chex import Numeric
    from jaxtyping import PyTree as ArrayTree

    # What broadcasts to [T, S]: to checkers one and the same array.
    FloatOfPairs = Float[ArrayLike, ""] | Float[ArrayLike, "#S"] | Float[ArrayLike, "#T #S"]
    BoolOfPairs = Bool[ArrayLike, ""] | Bool[ArrayLike, "#S"] | Bool[ArrayLike, "#T #S"]

AnyArray: TypeAlias = Array | np.ndarray
"""An array of JAX or of NumPy, unlike ArrayLike no number."""

Queries: TypeAlias = Float[AnyArray, "T D"]
Keys: TypeAlias = Float[AnyArray, "S D"]
Values: TypeAlias = Float[AnyArray, "S Dv"]
Out: TypeAlias = Float[Array, "T Dv"]
Lse: TypeAlias = Float[Array, " T"]
Pairs: TypeAlias = Float[Array, "T S"]
Allowed: TypeAlias = Bool[Array, "T S"]
QPositions: TypeAlias = Integer[ArrayLike, " T"]
KPositions: TypeAlias = Integer[ArrayLike, " S"]
Partial: TypeAlias = tuple[Float[Array, "*B Dv"], Float[Array, "*B"]]

NumPyArrayLike: TypeAlias = npt.ArrayLike
"""Whatever NumPy reads as an array: one of NumPy, JAX or PyTorch, a number, or nested sequences of these."""
PRNGKey: TypeAlias = AnyArray
"""A key of jax.random: typed, or two numbers of uint32."""
AxisName: TypeAlias = Hashable
"""Of a mesh axis, or a tuple of them, as jax.lax.psum takes it."""

ScoreModifier: TypeAlias = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""`score(score, q_position, k_position) -> score`, each a scalar: what a score becomes before the softmax."""

__all__ = [
    "Allowed",
    "AnyArray",
    "Array",
    "ArrayLike",
    "ArrayTree",
    "AxisName",
    "Bool",
    "BoolOfPairs",
    "DTypeLike",
    "Float",
    "FloatOfPairs",
    "Integer",
    "KPositions",
    "Keys",
    "Lse",
    "NumPyArrayLike",
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
