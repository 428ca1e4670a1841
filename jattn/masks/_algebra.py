"""What a mask is asked, and how masks compose: `&`, `|`, `~`, and the verdicts of these in three-valued logic."""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _checks
from jattn._types import Array, Bool, Int
from jattn._values import value


class Rows(NamedTuple):
    """Some consecutive rows of q or of k: where they begin in their array, and where they stand."""

    start: Int[Array, ""] | int
    positions: Int[Array, " n"]

    @property
    def numbers(self) -> Int[Array, " n"]:
        """The number of each row in its array."""
        return self.start + jnp.arange(self.positions.shape[0], dtype=jnp.int32)

    def of(self, x: jax.Array, axis: int) -> jax.Array:
        """These rows of an array that has one entry a row along `axis`, or one entry for all."""
        n = self.positions.shape[0]
        if x.shape[axis] in (1, n) and isinstance(self.start, int) and self.start == 0:
            return x
        return x if x.shape[axis] == 1 else jax.lax.dynamic_slice_in_dim(x, self.start, n, axis)


class Spans(NamedTuple):
    """The tiles of one axis: the rows that each holds, and the positions that these lie between, ends included.

    NumPy arrays where they are known before anything is traced, so that verdicts on them are too.
    """

    first: Any
    last: Any
    lowest: Any
    highest: Any
    size: int
    """Rows from the first of a tile to the last, but for tiles that the array ends in."""

    @classmethod
    def at(cls, first: Any, last: Any, axis: int) -> "Spans":
        """Tiles of rows that stand at their own numbers, laid down (axis 0) or across (axis 1)."""
        first, last = (np.expand_dims(np.asarray(n, np.int32), 1 - axis) for n in (first, last))
        return cls(first, last, first, last, int(np.max(last - first, initial=0)) + 1)

    def of(self, x: Any, reduce: Callable[..., Any]) -> Any:
        """`reduce(rows, axis=)` of each tile's rows of an array that has one entry a row."""
        n = self.first.size
        # Of a symbolic number of tiles each is whole, and nothing about them is known yet.
        whole = isinstance(self.first, jax.Array) or (self.first.ravel() == np.arange(n) * self.size).all()
        if n * self.size == x.shape[0] and whole:
            rows = x.reshape(n, self.size)
        else:
            rows = x[np.minimum(self.first.reshape(n, 1) + np.arange(self.size), self.last.reshape(n, 1))]
        return reduce(rows, axis=1).reshape(self.first.shape)


class Mask:
    """Whether pairs of rows meet; closed under `&`, `|`, `~`."""

    looks_at_positions: bool = False
    """Whether the answer depends on how the positions of q and of k align."""

    counts_rows: bool = False
    """Whether it tells rows by their number in the array, so that a piece of the array cannot be asked."""

    def pairs(self, q: Rows, k: Rows) -> Bool[Array, "q k"]:
        """Which of these rows of q meet which of these rows of k."""
        raise NotImplementedError

    def verdict(self, q: Spans, k: Spans) -> tuple[Any, Any]:
        """Of each tile of q (down) against each tile of k (across): (some pair may meet, every pair meets).

        Never wrong, but allowed not to know: (True, False).
        """
        return True, False

    def fits(self, where: str, T: int, S: int, placed: bool) -> None:
        """Raises if the mask holds an array that does not belong to T queries and S keys.

        `placed` tells whether the caller said where the rows stand; else each stands at its number.
        """

    def padded(self, T: int, S: int) -> "Mask":
        """The same mask over T queries and S keys, the new rows meeting nothing that it must not."""
        return self

    def of_parts(self, f: Callable[["Mask"], "Mask"]) -> "Mask":
        """The mask with `f` of each part in its place, where it is composed of parts; else `f` of it."""
        return f(self)

    def by_side(self) -> "Mask":
        """The same mask, with no array that speaks of the rows of q and of k at once."""
        return self

    def sides(self) -> list[str]:
        """Of each leaf of it by side, whose rows it has an entry for: "q", "k", or "" for neither."""
        return [""] * len(jax.tree.leaves(self))

    def __and__(self, other: "Mask") -> "Mask":
        return And(self, _mask("&", other))

    def __or__(self, other: "Mask") -> "Mask":
        return Or(self, _mask("|", other))

    def __invert__(self) -> "Mask":
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"mask: a mask has no truth value, got {self!r}. "
            "Combine masks with & | ~ (not with and, or, not), and compare with `mask is None`."
        )


def _mask(sign: str, x: Any) -> Mask:
    if isinstance(x, Mask):
        return x
    got = f"of type {type(x).__name__}"
    remedy = "Wrap a boolean array first: masks.dense(array)."
    _checks.fail(TypeError, "mask", f"both sides of {sign} must be masks", remedy, other=got)


@value
class _Both(Mask):
    a: Mask
    b: Mask

    @property
    def looks_at_positions(self) -> bool:  # type: ignore[override]
        return self.a.looks_at_positions or self.b.looks_at_positions

    def fits(self, where: str, T: int, S: int, placed: bool) -> None:
        self.a.fits(where, T, S, placed)
        self.b.fits(where, T, S, placed)

    def padded(self, T: int, S: int) -> Mask:
        return type(self)(self.a.padded(T, S), self.b.padded(T, S))

    def of_parts(self, f: Callable[[Mask], Mask]) -> Mask:
        return type(self)(self.a.of_parts(f), self.b.of_parts(f))

    def sides(self) -> list[str]:
        return self.a.sides() + self.b.sides()


@value
class And(_Both):
    """Pairs that meet in both."""

    def pairs(self, q: Rows, k: Rows) -> Bool[Array, "q k"]:
        return self.a.pairs(q, k) & self.b.pairs(q, k)

    def verdict(self, q: Spans, k: Spans) -> tuple[Any, Any]:
        (may_a, must_a), (may_b, must_b) = self.a.verdict(q, k), self.b.verdict(q, k)
        return may_a & may_b, must_a & must_b

    def __repr__(self) -> str:
        sides = (f"({side!r})" if isinstance(side, Or) else repr(side) for side in (self.a, self.b))
        return " & ".join(sides)


@value
class Or(_Both):
    """Pairs that meet in either."""

    def pairs(self, q: Rows, k: Rows) -> Bool[Array, "q k"]:
        return self.a.pairs(q, k) | self.b.pairs(q, k)

    def verdict(self, q: Spans, k: Spans) -> tuple[Any, Any]:
        (may_a, must_a), (may_b, must_b) = self.a.verdict(q, k), self.b.verdict(q, k)
        return may_a | may_b, must_a | must_b

    def __repr__(self) -> str:
        return f"{self.a!r} | {self.b!r}"


@value
class Not(Mask):
    """Pairs that do not meet."""

    a: Mask

    @property
    def looks_at_positions(self) -> bool:  # type: ignore[override]
        return self.a.looks_at_positions

    def pairs(self, q: Rows, k: Rows) -> Bool[Array, "q k"]:
        return ~self.a.pairs(q, k)

    def verdict(self, q: Spans, k: Spans) -> tuple[Any, Any]:
        may, must = self.a.verdict(q, k)
        return must ^ True, may ^ True  # ~ on a Python bool is an integer

    def padded(self, T: int, S: int) -> Mask:
        return Not(self.a.padded(T, S))

    def of_parts(self, f: Callable[[Mask], Mask]) -> Mask:
        return Not(self.a.of_parts(f))

    def sides(self) -> list[str]:
        return self.a.sides()

    def fits(self, where: str, T: int, S: int, placed: bool) -> None:
        self.a.fits(where, T, S, placed)

    def __repr__(self) -> str:
        return f"~({self.a!r})" if isinstance(self.a, _Both) else f"~{self.a!r}"


def count(where: str, name: str, n: Any, unit: str) -> jax.Array | int:
    """A whole number of rows or tokens, possibly traced: a leaf of a mask. Below 0 is 0."""
    most = jnp.iinfo(jnp.int32).max
    if type(n) is int:
        return max(0, min(n, most))
    x = _checks.array(where, name, n)
    _checks.kind(where, name, x, jnp.integer, f"It counts {unit}: pass a whole number.")
    if x.ndim:
        remedy = "Pass one; map over a batch of them with jax.vmap."
        _checks.fail(ValueError, where, f"{name} must be a scalar", remedy, **{name: x})
    return _clipped(x)


@jax.jit
def _clipped(n: jax.Array) -> jax.Array:
    """From 0 to the largest int32. Compiled, since eagerly the bounds would be moved, which transfer guards refuse."""
    return jnp.clip(n, 0, min(jnp.iinfo(jnp.int32).max, jnp.iinfo(n.dtype).max)).astype(jnp.int32)
