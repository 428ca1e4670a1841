"""What belongs to a distance, on the diagonals of a tile; and its transpose, the sums along them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jattn._jax import Primitive, ad, batching, lower_as, mlir
from jattn._taylor import has_series


def of_distances(f: Callable[[jax.Array], jax.Array], t: jax.Array, s: jax.Array) -> jax.Array:
    """f(s − t) of a tile, t and s along its two axes; where positions are consecutive, of its diagonals alone."""
    queries_down = t.shape[0] > 1
    n, m = (t.size, s.size) if queries_down else (s.size, t.size)
    consecutive = jnp.all(jnp.diff(t.ravel()) == 1) & jnp.all(jnp.diff(s.ravel()) == 1)

    def by_diagonals() -> jax.Array:
        along = jnp.arange(n + m - 1, dtype=jnp.int32) - (n - 1)
        return toeplitz(f(s.ravel()[0] - t.ravel()[0] + (along if queries_down else -along)), n)

    return jax.lax.cond(consecutive, by_diagonals, lambda: f(s - t))


def toeplitz(diagonals: jax.Array, n: int) -> jax.Array:
    """The matrix of n rows whose entry (i, j) is diagonals[j − i + n − 1]."""
    made: jax.Array = toeplitz_p.bind(diagonals, n=n)
    return made


def diagonal_sums(matrix: jax.Array) -> jax.Array:
    """The transpose of `toeplitz`: of n rows, entry d is the sum of all matrix[i, j] with j − i + n − 1 = d."""
    sums: jax.Array = diagonal_sums_p.bind(matrix, n=matrix.shape[-2])
    return sums


def _toeplitz(diagonals: jax.Array, *, n: int) -> jax.Array:
    batch, L = diagonals.shape[:-1], diagonals.shape[-1] + 1
    first = jnp.roll(_pad(diagonals, 0, 1), -(n - 1), -1)
    # Rows of L − 1 cut out of repetitions of L: each begins one entry earlier than the one above it.
    repeated = jnp.broadcast_to(first[..., None, :], (*batch, n, L)).reshape(*batch, n * L)
    return repeated[..., : n * (L - 1)].reshape(*batch, n, L - 1)[..., : L - n]


def _diagonal_sums(matrix: jax.Array, *, n: int) -> jax.Array:
    """Of n rows: entry d is the sum of all matrix[i, j] with j − i + n − 1 = d.

    Rows are added in pairs, the second as many places further left as rows were added in one.
    """
    apart = 1
    while matrix.shape[-2] > 1:
        first, second = matrix[..., 0::2, :], matrix[..., 1::2, :]
        if second.shape[-2] < first.shape[-2]:
            second = jnp.concatenate([second, jnp.zeros_like(first[..., :1, :])], -2)
        matrix = _pad(first, apart, 0) + _pad(second, 0, apart)
        apart *= 2
    return matrix[..., 0, apart - n :]


def _pad(x: jax.Array, before: int, after: int) -> jax.Array:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)])


def _aval(x: Any, *shape: int) -> Any:
    """The type of x with other axes in the place of as many, the last ones; they lie on no axis of a mesh."""
    kept = x.ndim - (3 - len(shape))
    spec = jax.sharding.PartitionSpec(*x.sharding.spec[:kept], *(None for _ in shape))
    return x.update(shape=(*x.shape[:kept], *shape), sharding=x.sharding.update(spec=spec))


# Primitives, each the transpose of the other: what JAX makes of `_toeplitz` takes up to five times as long on a CPU as
# these sums, and jax.custom_derivatives.linear_call has no rule under vmap.
toeplitz_p = Primitive("toeplitz")
diagonal_sums_p = Primitive("diagonal_sums")
toeplitz_p.def_abstract_eval(lambda x, *, n: _aval(x, n, x.shape[-1] + 1 - n))
diagonal_sums_p.def_abstract_eval(lambda x, *, n: _aval(x, n + x.shape[-1] - 1))


def _declare(primitive: Primitive, function: Callable[..., jax.Array], transpose: Primitive) -> None:
    def batched(xs: Any, dims: Any, *, n: int) -> tuple[jax.Array, int]:
        return primitive.bind(jnp.moveaxis(xs[0], dims[0], 0), n=n), 0

    primitive.def_impl(jax.jit(function, static_argnames="n"))
    mlir.register_lowering(primitive, lower_as(function))
    ad.deflinear2(primitive, lambda cotangent, x, *, n: [transpose.bind(cotangent, n=n)])
    batching.primitive_batchers[primitive] = batched
    has_series(primitive)


_declare(toeplitz_p, _toeplitz, diagonal_sums_p)
_declare(diagonal_sums_p, _diagonal_sums, toeplitz_p)
