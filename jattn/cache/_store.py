"""Where the tokens of every cache lie: numbered pages of C slots, and how a run of tokens is written into them.

A contiguous cache has one page a row, a ring one page a row that follows upon itself, a paged cache many. Token
number n of a row lies in slot n mod C of the row's page n div C, whichever of these it is.
"""

import json
from functools import partial
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax import export

from jattn import _errors
from jattn._numerics import max_or_nan
from jattn._types import AnyArray, Array, Bool, Float, Integer
from jattn._values import show, value

C = TypeVar("C")


def serialized(cls: type[C]) -> type[C]:
    """Lets programs of `jax.export` that take or return such values be saved: their structure is sizes alone."""
    export.register_pytree_node_serialization(
        cls,
        serialized_name=f"jattn.cache.{cls.__name__}",
        serialize_auxdata=lambda sizes: json.dumps(sizes).encode(),
        deserialize_auxdata=lambda saved: tuple(json.loads(saved)),
    )
    return cls


@serialized
@value
class Store:
    """N pages of C slots, or, with rows and tokens in their place, B · T tokens to be written there."""

    k: Float[Array, "N Hkv C D"] | Integer[Array, "N Hkv C D"]
    v: Float[Array, "N Hkv C Dv"] | Integer[Array, "N Hkv C Dv"]
    k_scale: Float[Array, "N Hkv C"] | None
    """What the bytes of k are multiplied by; None where k is not kept in bytes."""
    v_scale: Float[Array, "N Hkv C"] | None
    nonfinite: Bool[Array, "N Hkv C"]
    """Which tokens had in k or v a NaN, an infinity, or what no scale of bytes reaches: kept as zeros, they make the
    queries that attend them NaN."""
    positions: Integer[Array, "N C"]

    @property
    def C(self) -> int:  # noqa: N802
        return self.k.shape[2]


@value
class Cache:
    """What all caches have in common. `length`, `next`, `full` and `start` are there to be read."""

    store: Store
    length: Integer[Array, " B"]
    """How many tokens each row was given."""
    next: Integer[Array, " B"]
    """The position of the token that comes next."""
    full: Bool[Array, " B"]
    """Rows that were refused tokens inside jit, for want of room. Attention of such a row is NaN."""
    start: Integer[Array, ""]
    """The position of the first token of a row; where one that is emptied begins again."""

    def pages(self, numbers: Integer[Array, "B J"]) -> Integer[Array, "B J"]:
        """Where the pages with these numbers lie in the store."""
        raise NotImplementedError

    def admit(self, n: Integer[Array, " B"]) -> tuple["Cache", Integer[Array, " B"]]:
        """Makes room for n more tokens in each row; (the cache, how many each row may write: n or 0)."""
        raise NotImplementedError

    def written(self, n: Integer[Array, " B"], positions: Integer[Array, "B T"]) -> "Cache":
        """Takes note of tokens that will be lost when n tokens with these positions are written."""
        return self

    def lost(self, q_positions: Integer[Array, "B T"]) -> Bool[Array, "B T"] | None:
        """Which queries should see tokens that are no longer there; None where that cannot be."""
        return None

    @property
    def capacity(self) -> int:
        """The most tokens that a row can hold."""
        return self.store.C

    def __repr__(self) -> str:
        name, k = type(self).__name__, cast(Any, getattr(self.store, "k", self.store))
        if not is_one(self):
            return f"{name}(k={show(k)}, length={show(self.length)})"
        return f"{name}(B={self.length.shape[0]}, Hkv={k.shape[1]}, S={self.capacity}, D={k.shape[3]}, {k.dtype})"


def is_one(cache: Cache) -> bool:
    """Whether the leaves have the axes that the fields say: those of a stack of caches have more, and `in_axes`, specs
    and shardings, which come in the structure of a cache, none.
    """
    k, table = getattr(cache.store, "k", None), getattr(cache, "table", None)
    axes = [(k, 4), (cache.length, 1), *([] if table is None else [(table, 2)])]
    return all(len(getattr(x, "shape", ())) == n for x, n in axes)


def empty(caller: str, N: int, C: int, Hkv: Any, D: Any, Dv: Any, dtype: Any) -> Store:
    """Pages that hold nothing."""
    Hkv, D = _errors.count(caller, "Hkv", Hkv, least=1), _errors.count(caller, "D", D, least=1)
    Dv = D if Dv is None else _errors.count(caller, "Dv", Dv)
    dtype = _errors.dtype(caller, dtype, "Keep keys in one of these.", jnp.int8)
    return _zeros(N, C, Hkv, D, Dv, jax.dtypes.canonicalize_dtype(dtype))


@partial(jax.jit, static_argnums=range(6))
def _zeros(N: int, C: int, Hkv: int, D: int, Dv: int, dtype: Any) -> Store:
    scale = jnp.zeros((N, Hkv, C), jnp.float32) if dtype == jnp.int8 else None
    k, v = jnp.zeros((N, Hkv, C, D), dtype), jnp.zeros((N, Hkv, C, Dv), dtype)
    return Store(k, v, scale, scale, jnp.zeros((N, Hkv, C), bool), jnp.zeros((N, C), jnp.int32))


def quantised(x: Float[AnyArray, "*n D"]) -> tuple[Integer[Array, "*n D"], Float[Array, "*n"]]:
    """Vectors as whole numbers from −127 to 127 and one scale each, as caches in int8 keep them.

        scale = max_i |x_i| / 127,    |x_i − scale · bytes_i| ≤ scale / 2

    What becomes of attention: the logit of query t and key s moves by at most δ_ts = α · ‖q_t‖₁ · k_scale_s / 2,
    with α the scale of attention. With δ the largest of them over the keys that t attends, the weights move by at most
    2 tanh(δ/2) in sum, since no set of keys can gain more than tanh(δ/2), and so

        |out_ti − exact| ≤ tanh(δ/2) · (max_s v_si − min_s v_si) + max_s v_scale_s / 2,    |lse_t − exact| ≤ δ

    over the keys that t attends; a sink counts as one of value 0. A score of slope more than 1 multiplies δ by it.

    Args:
      x: [*n, D], floating point, less than 4.3e40 in magnitude: beyond, no scale in float32 is finite.

    Returns:
      (bytes [*n, D] in int8, scale [*n] in float32). Rounding has no derivative: a gradient reaches x through the scale
      alone, at the largest entry of each vector.

    Raises:
      TypeError: x is not floating point.
      ValueError: x has no axis.

    Memory: a quarter of x in float32, and 4 bytes a vector.

    Source: symmetric quantisation, one scale per token and head: Xiao et al. 2023, "SmoothQuant", section 2.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import cache
      >>> bytes_, scale = cache.quantised(jnp.array([0.5, -1.0, 0.25]))
      >>> print(bytes_, (scale * bytes_.astype(scale.dtype)).round(3))
      [  64 -127   32] [ 0.504 -1.     0.252]
    """
    x = _errors.array("quantised", "x", x)
    _errors.floating("quantised", x=x)
    if x.ndim == 0:
        _errors.fail(ValueError, "quantised", "x must have an axis", "Pass vectors [*n, D].", x=x)
    return _quantised(x)


@jax.jit
def _quantised(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    wide = x.astype(_errors.wide(x))
    tiny = float(jnp.finfo(jnp.float32).tiny)  # a vector of zeros keeps a scale that one can divide by
    scale = jnp.maximum(max_or_nan(jnp.abs(wide), -1, initial=0) / 127, tiny).astype(jnp.float32)
    steps = jnp.round(wide / scale.astype(wide.dtype)[..., None])
    return jnp.clip(steps, -127, 127).astype(jnp.int8), scale


def tokens(store: Store, k: jax.Array, v: jax.Array, positions: jax.Array) -> Store:
    """New tokens [B, Hkv, T, ·] in the form in which the store keeps them."""
    # In bytes, what has a scale: one of float64 may be finite and its scale in float32 infinite.
    kept = [x if store.k_scale is None else (x / 127).astype(jnp.float32) for x in (k, v)]
    finite = jnp.isfinite(kept[0]).all(-1) & jnp.isfinite(kept[1]).all(-1)
    k, v = (jnp.where(finite[..., None], x, 0) for x in (k, v))
    if store.k_scale is None:
        return Store(k, v, None, None, ~finite, positions)
    (k, k_scale), (v, v_scale) = quantised(k), quantised(v)
    return Store(k, v, k_scale, v_scale, ~finite, positions)


@jax.jit
def write(
    store: Store,
    new: Store,
    pages: Integer[Array, "B J"],
    first: Integer[Array, " B"],
    begin: Integer[Array, " B"],
    stop: Integer[Array, " B"],
) -> Store:
    """The store with the tokens of numbers begin ≤ n < stop in place; `new` holds those from `first` on.

    `pages` are the ones that number begin falls into and those that follow. One row and one page after another, each
    a slice that is read, filled in and put back: where buffers are donated nothing else is copied or touched. As a
    single scatter XLA would do the same, more slowly.
    """
    C, T, (B, J) = store.C, new.positions.shape[1], pages.shape
    n = min(T, C) if isinstance(T, int) else C  # as many slots hold what falls into any one page

    def one(store: Store, step: jax.Array) -> tuple[Store, None]:
        b, j = step // J, step % J
        start = (begin[b] // C + j) * C  # the number of the page's first slot
        offset = jnp.clip(begin[b] - start, 0, C - n)
        numbers = start + offset + jnp.arange(n, dtype=jnp.int32)
        valid = (numbers >= begin[b]) & (numbers < stop[b])
        source = jnp.clip(numbers - first[b], 0, T - 1)

        def put(x: jax.Array, tokens: jax.Array) -> jax.Array:
            axis = slots(x)
            at = [pages[b, j], *[jnp.int32(0)] * (x.ndim - 1)]
            at[axis] = offset
            size = tuple(1 if i == 0 else n if i == axis else s for i, s in enumerate(x.shape))
            fresh = jnp.take(jax.lax.dynamic_slice_in_dim(tokens, b, 1, 0), source, axis, mode="clip")
            keep = jnp.expand_dims(valid, [i for i in range(x.ndim) if i != axis])
            return jax.lax.dynamic_update_slice(x, jnp.where(keep, fresh, jax.lax.dynamic_slice(x, at, size)), at)

        return jax.tree.map(put, store, new), None

    return jax.lax.scan(one, store, jnp.arange(B * J, dtype=jnp.int32))[0]


def slots(x: jax.Array) -> int:
    """The axis of a leaf of the store along which its slots lie."""
    return min(2, x.ndim - 1)
