"""Masks: *whether* a query and a key meet.

A mask is a value. It asks about pairs, never about whole matrices: given some rows of q and some rows
of k it says which of them meet, so nobody has to form T × S booleans. Masks compose with `&`, `|` and
`~`, pass through `jit`, `vmap` and `grad` as pytrees (their arrays are leaves), and print as the code
that made them.

Two kinds of question are asked. `causal` and `window` look at *positions*: where a token stands in the
sequence, which the caller may state. `lengths` and `dense` look at *rows*: where an entry lies in the
arrays passed.
"""

import dataclasses
from typing import Any, NamedTuple, NoReturn, dataclass_transform

import jax
import jax.numpy as jnp

from jattn import _checks
from jattn._types import Allowed, Array, Bool, Int


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


class Mask:
    """Whether pairs of rows meet; closed under `&`, `|`, `~`."""

    looks_at_positions: bool = False
    """Whether the answer depends on how the positions of q and of k align."""

    def pairs(self, q: Rows, k: Rows) -> Bool[Array, "q k"]:
        """Which of these rows of q meet which of these rows of k."""
        raise NotImplementedError

    def verdict(self, q: Spans, k: Spans) -> tuple[Any, Any]:
        """Of each tile of q (down) against each tile of k (across): (some pair may meet, every pair meets).

        Never wrong, but allowed not to know: (True, False).
        """
        return True, False

    def fits(self, where: str, T: int, S: int) -> None:
        """Raises if the mask holds an array that does not belong to T queries and S keys."""

    def padded(self, T: int, S: int) -> "Mask":
        """The same mask over T queries and S keys, the new rows meeting nothing that it must not."""
        return self

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


@dataclass_transform(frozen_default=True, eq_default=False)
def _value(cls: Any) -> Any:
    """A frozen dataclass that is a pytree: fields marked static are structure, all others are leaves."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls))


def _static(**options: Any) -> Any:
    return dataclasses.field(metadata={"static": True}, **options)


def _show(x: Any) -> str:
    """A number as itself, an array by dtype and shape: contents are never printed."""
    if hasattr(x, "dtype"):
        return f"{x.dtype}[{','.join(map(str, x.shape))}]"
    return repr(x)


@_value
class Causal(Mask):
    """See `causal`."""

    looks_at_positions = True

    def pairs(self, q: Rows, k: Rows) -> Bool[Array, "q k"]:
        return q.positions[:, None] >= k.positions[None, :]

    def verdict(self, q: Spans, k: Spans) -> tuple[Any, Any]:
        return q.highest >= k.lowest, q.lowest >= k.highest

    def __repr__(self) -> str:
        return "causal()"


@_value
class Window(Mask):
    """See `window`."""

    looks_at_positions = True
    left: int | None = _static()
    right: int | None = _static()

    def pairs(self, q: Rows, k: Rows) -> Bool[Array, "q k"]:
        t, s = q.positions[:, None], k.positions[None, :]
        near = jnp.ones((t.shape[0], s.shape[1]), bool)
        if self.left is not None:
            near &= t - s <= self.left
        if self.right is not None:
            near &= s - t <= self.right
        return near

    def verdict(self, q: Spans, k: Spans) -> tuple[Any, Any]:
        may, must = True, True
        if self.left is not None:
            may, must = q.lowest - k.highest <= self.left, q.highest - k.lowest <= self.left
        if self.right is not None:
            may, must = may & (k.lowest - q.highest <= self.right), must & (k.highest - q.lowest <= self.right)
        return may, must

    def __repr__(self) -> str:
        return f"window(left={self.left}, right={self.right})"


@_value
class Lengths(Mask):
    """See `lengths`."""

    q: Int[Array, ""] | int | None
    k: Int[Array, ""] | int | None

    def pairs(self, q: Rows, k: Rows) -> Bool[Array, "q k"]:
        def filled(rows: Rows, n: Any) -> jax.Array:
            return jnp.ones(rows.positions.shape, bool) if n is None else rows.numbers < n

        return filled(q, self.q)[:, None] & filled(k, self.k)[None, :]

    def verdict(self, q: Spans, k: Spans) -> tuple[Any, Any]:
        may, must = True, True
        for tiles, n in ((q, self.q), (k, self.k)):
            if n is not None:
                may, must = (tiles.first < n) & may, (tiles.last < n) & must
        return may, must

    def __repr__(self) -> str:
        return f"lengths(q={_show(self.q)}, k={_show(self.k)})"


@_value
class Dense(Mask):
    """See `dense`."""

    array: Bool[Array, "T S"]

    def pairs(self, q: Rows, k: Rows) -> Bool[Array, "q k"]:
        here = k.of(q.of(self.array, 0), 1)
        return jnp.broadcast_to(here, (q.positions.shape[0], k.positions.shape[0]))

    def fits(self, where: str, T: int, S: int) -> None:
        _checks.broadcastable(where, "mask", self.array, (T, S), "[T, S]")

    def padded(self, T: int, S: int) -> Mask:
        more = [(0, 0 if have == 1 else want - have) for have, want in zip(self.array.shape, (T, S), strict=True)]
        return Dense(jnp.pad(self.array, more)) if any(n for _, n in more) else self

    def __repr__(self) -> str:
        return f"dense({_show(self.array)})"


@_value
class _Both(Mask):
    a: Mask
    b: Mask

    @property
    def looks_at_positions(self) -> bool:  # type: ignore[override]
        return self.a.looks_at_positions or self.b.looks_at_positions

    def fits(self, where: str, T: int, S: int) -> None:
        self.a.fits(where, T, S)
        self.b.fits(where, T, S)

    def padded(self, T: int, S: int) -> Mask:
        return type(self)(self.a.padded(T, S), self.b.padded(T, S))


@_value
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


@_value
class Or(_Both):
    """Pairs that meet in either."""

    def pairs(self, q: Rows, k: Rows) -> Bool[Array, "q k"]:
        return self.a.pairs(q, k) | self.b.pairs(q, k)

    def verdict(self, q: Spans, k: Spans) -> tuple[Any, Any]:
        (may_a, must_a), (may_b, must_b) = self.a.verdict(q, k), self.b.verdict(q, k)
        return may_a | may_b, must_a | must_b

    def __repr__(self) -> str:
        return f"{self.a!r} | {self.b!r}"


@_value
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

    def fits(self, where: str, T: int, S: int) -> None:
        self.a.fits(where, T, S)

    def __repr__(self) -> str:
        return f"~({self.a!r})" if isinstance(self.a, _Both) else f"~{self.a!r}"


def causal() -> Mask:
    """A query meets the keys that do not stand after it: position t ≥ position s.

    Returns:
      A mask. With T ≠ S the caller says how the rows align, by `q_positions` and `k_positions`.

    Source: Vaswani et al. 2017, "Attention is all you need", section 3.2.3.

    Example:
      >>> from jattn import masks
      >>> print(masks.to_dense(masks.causal(), 3, 3).astype(int))
      [[1 0 0]
       [1 1 0]
       [1 1 1]]
    """
    return Causal()


def window(left: int | None = None, right: int | None = None) -> Mask:
    """A query meets the keys at most `left` tokens before it and `right` tokens after it, itself included.

    Args:
      left: tokens, ≥ 0, or None for no bound. The token itself is not counted: `left=3` sees four.
      right: likewise.

    Returns:
      A mask. `window(left=3, right=0)` is a causal sliding window.

    Raises:
      TypeError: a bound is not a whole number.
      ValueError: a bound is negative, or neither is given.

    Source: Beltagy et al. 2020, "Longformer", section 3.1.

    Example:
      >>> from jattn import masks
      >>> masks.window(left=1, right=0)
      window(left=1, right=0)
      >>> print(masks.to_dense(masks.window(left=1, right=0), 3, 3).astype(int))
      [[1 0 0]
       [1 1 0]
       [0 1 1]]
    """
    remedy = "Give a number of tokens to at least one side: window(left=3, right=0)."
    if left is None and right is None:
        _checks.fail(ValueError, "window", "left or right must be given", remedy, left="None", right="None")
    sides = {"left": left, "right": right}
    return Window(**{n: x if x is None else _checks.count("window", n, x) for n, x in sides.items()})


def lengths(q: Any = None, k: Any = None) -> Mask:
    """Only the first `q` rows of q and the first `k` rows of k exist; the rest is padding.

    Counts rows of the arrays, whatever the positions say.

    Args:
      q: how many rows of q are filled: a whole number or an integer scalar, possibly traced (map over a
        batch of lengths with jax.vmap), or None for all.
      k: how many rows of k and v are filled, likewise.

    Returns:
      A mask. A length beyond the array means all of it; a length of 0 or less, nothing.

    Raises:
      TypeError: a length is not a scalar integer.
      ValueError: neither is given.

    Example:
      >>> from jattn import masks
      >>> print(masks.to_dense(masks.lengths(k=2), 2, 4).astype(int))
      [[1 1 0 0]
       [1 1 0 0]]
    """
    if q is None and k is None:
        remedy = "Say how many rows are filled: lengths(k=5)."
        _checks.fail(ValueError, "lengths", "q or k must be given", remedy, q="None", k="None")
    return Lengths(_length("q", q), _length("k", k))


def _length(name: str, n: Any) -> jax.Array | int | None:
    most = jnp.iinfo(jnp.int32).max
    if n is None:
        return None
    if type(n) is int:
        return max(0, min(n, most))
    x = _checks.array("lengths", name, n)
    _checks.kind("lengths", name, x, jnp.integer, "A length counts rows: pass a whole number.")
    if x.ndim:
        remedy = "Pass one length; map over a batch of them with jax.vmap."
        _checks.fail(ValueError, "lengths", f"{name} must be a scalar", remedy, **{name: x})
    return jnp.clip(x, 0, min(most, jnp.iinfo(x.dtype).max)).astype(jnp.int32)


def dense(array: Any) -> Mask:
    """The pairs that a boolean array marks True.

    Args:
      array: boolean, [T, S], or with 1 in place of either.

    Returns:
      A mask over the rows of the arrays, whatever the positions say.

    Raises:
      TypeError: the array is not boolean.
      ValueError: it has not two axes. That it belongs to T queries and S keys is checked where it is used.

    Memory: the array, which is the caller's own T × S.

    Example:
      >>> import numpy as np
      >>> from jattn import masks
      >>> masks.dense(np.eye(3, dtype=bool)) & masks.causal()
      dense(bool[3,3]) & causal()
    """
    x = _checks.array("dense", "array", array)
    _checks.kind(
        "dense", "array", x, jnp.bool_, "True lets a pair meet. An additive mask is a bias: attention(bias=...)."
    )
    _checks.rank("dense", 2, "[T, S]", "Map over a batch or heads with jax.vmap.", array=x)
    return Dense(x)


def to_dense(mask: Mask, T: int, S: int, *, q_positions: Any = None, k_positions: Any = None) -> Allowed:
    """Every pair that a mask speaks of, written out: to look at, or to hand to another library.

    Args:
      mask: a mask.
      T: how many queries.
      S: how many keys.
      q_positions: integers [T], where each query stands, in tokens; 0, 1, 2, … if not given.
      k_positions: integers [S], where each key stands, likewise.

    Returns:
      Booleans [T, S].

    Raises:
      TypeError: `mask` is not a mask, or T or S is not a whole number.
      ValueError: the mask looks at positions, T ≠ S and they are not given; or the mask holds an array
        that does not belong to T queries and S keys.

    Memory: T × S bytes, on request.

    Example:
      >>> from jattn import masks
      >>> import jax.numpy as jnp
      >>> decode = masks.to_dense(masks.causal(), 1, 4, q_positions=jnp.array([2]), k_positions=jnp.arange(4))
      >>> print(decode.astype(int))
      [[1 1 1 0]]
    """
    if not isinstance(mask, Mask):
        remedy = "Make one with jattn.masks, or wrap a boolean array: masks.dense(array)."
        _checks.fail(TypeError, "to_dense", "mask must be a mask", remedy, mask=f"of type {type(mask).__name__}")
    T, S = _checks.count("to_dense", "T", T), _checks.count("to_dense", "S", S)
    mask.fits("to_dense", T, S)
    seekers = ("mask",) if mask.looks_at_positions else ()
    q_pos, k_pos = _checks.positions("to_dense", T, S, q_positions, k_positions, seekers)
    q_pos = jnp.arange(T, dtype=jnp.int32) if q_pos is None else q_pos
    k_pos = jnp.arange(S, dtype=jnp.int32) if k_pos is None else k_pos
    return mask.pairs(Rows(0, q_pos), Rows(0, k_pos))
