"""What a mask answers, and how masks and their block states compose with `&`, `|`, `~`."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors, _html
from jattn._types import Array, ArrayLike, Bool, Integer
from jattn._values import value
from jattn.masks._tiles import EMPTY, FULL, PARTIAL, BlockState, Rows, Spans, TileAxis

SHOWN = 24
"""How many queries and keys a notebook shows of a mask."""


class Pattern(NamedTuple):
    """Pairs of a query t and a key s of which all of this is true."""

    causal: bool = False
    """s ≤ t."""
    left: int | None = None
    """t − s ≤ left."""
    q_lengths: tuple[Integer[ArrayLike, ""], ...] = ()
    """The row of t is below each of these."""
    k_lengths: tuple[Integer[ArrayLike, ""], ...] = ()
    """The row of s is below each of these."""


def _booleans_of_a_tile(pairs: Callable[..., Any]) -> Callable[..., Any]:
    """`pairs` of a user's class, which refuses what is not booleans of one tile: of numbers `~` and `&` are bitwise."""

    @functools.wraps(pairs)
    def checked(self: "Mask", q: TileAxis, k: TileAxis) -> Any:
        found = pairs(self, q, k)
        tile = jnp.broadcast_shapes(q.numbers.shape, k.numbers.shape)
        try:
            fits = found.dtype == jnp.bool_ and jnp.broadcast_shapes(found.shape, tile) == tile
        except (AttributeError, TypeError, ValueError):
            fits = isinstance(found, bool)
        if not fits:
            must = f"pairs of {type(self).__name__} must return booleans that broadcast to a tile"
            remedy = f"Compare numbers, as in q.positions >= k.positions; the tile is {list(tile)} here."
            _errors.fail(TypeError, "mask", must, remedy, pairs=f"returning {_what(found)}")
        return jnp.asarray(found)

    return checked


def _states_of_tiles(block_state: Callable[..., Any]) -> Callable[..., Any]:
    """`block_state` of a user's class, which refuses what is not one state for all tiles, or one of each."""

    @functools.wraps(block_state)
    def checked(self: "Mask", q: Spans, k: Spans) -> Any:
        found = block_state(self, q, k)
        grid = jnp.broadcast_shapes(q.first.shape, k.first.shape)
        is_integer = isinstance(found, int) and not isinstance(found, bool)
        try:
            is_integer = is_integer or bool(jnp.issubdtype(found.dtype, jnp.integer))
            fits = is_integer and jnp.broadcast_shapes(np.shape(found), grid) == grid
        except (AttributeError, TypeError, ValueError):
            fits = False
        what = _what(found)
        if fits and not isinstance(found, jax.Array):
            unknown = np.setdiff1d(found, (EMPTY, PARTIAL, FULL))
            fits, what = unknown.size == 0, f"{what} with {unknown[:1]}"
        if not fits:
            must = f"block_state of {type(self).__name__} must return block states that broadcast to the tiles"
            remedy = f"Return masks.block_state(some, every), or masks.PARTIAL; there are {list(grid)} tiles here."
            _errors.fail(TypeError, "mask", must, remedy, block_state=f"returning {what}")
        return found

    return checked


def _what(found: Any) -> str:
    """A dtype with its shape, or the name of a type that has none."""
    return f"{found.dtype}{_errors.shape(found)}" if hasattr(found, "dtype") else f"{type(found).__name__}"


class Mask:
    """Which pairs of a query and a key are allowed; closed under `&`, `|`, `~`.

    A class of one's own has `pairs`, which returns booleans; says `looks_at_positions = True` if it compares positions
    of queries with those of keys; has `leaf_axes` if an array that it holds has an entry a row; and is a pytree: where
    it is hashable by `jax.tree_util.register_static`, where it is a frozen dataclass that holds arrays by
    `jax.tree_util.register_dataclass`.
    """

    looks_at_positions: bool = False
    """Whether the answer depends on how the positions of q and of k align."""

    asks_users_function: bool = False
    """Whether a function that a user wrote says which pairs are allowed."""

    reads_entries: bool = False
    """Whether nothing but entries is read of the tables that it holds, as a kernel of a GPU can: table[i] or
    table[i, j], of indices that are never beyond the ends."""

    counts_rows: bool = False
    """Whether it tells rows by their number in the array, so that a piece of the array cannot be asked."""

    __array_ufunc__ = None
    """Of `array & mask` NumPy asks the mask, not each of its own entries."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("jattn."):
            return
        if "pairs" in cls.__dict__:
            cls.pairs = _booleans_of_a_tile(cls.pairs)  # type: ignore[method-assign]
        if "block_state" in cls.__dict__:
            cls.block_state = _states_of_tiles(cls.block_state)  # type: ignore[method-assign]

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        """Which pairs of one tile are allowed: booleans that broadcast to it.

        The leaves are those of this tile: each was cut and laid along the axes that `leaf_axes` gives it.
        """
        remedy = "Return the booleans of one tile, as in q.positions >= k.positions."
        got = {"mask": f"of type {type(self).__name__}"}
        _errors.fail(TypeError, "mask", "a class of masks must define pairs(self, q, k)", remedy, **got)

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        """EMPTY, PARTIAL or FULL, for each tile of q (down) against each tile of k (across).

        Never wrong, but allowed not to know: PARTIAL.
        """
        return PARTIAL

    def validate(self, caller: str, T: int, S: int, placed: bool) -> None:
        """Raises if the mask holds an array that does not belong to T queries and S keys.

        `placed` tells whether positions were given; else each row stands at its number.
        """
        _fits_rows(caller, self.split_qk(), T, S)

    def padded(self, T: int, S: int) -> "Mask":
        """The same mask over T queries and S keys, after `split_qk`: what has an entry a row repeats the last.

        Which pairs of the new rows are allowed is asked of no mask.
        """
        sizes = {"q": T, "k": S}

        def more(x: Any, axes: str) -> Any:
            widths = [(0, 0 if n == 1 else sizes[axis] - n) for axis, n in zip(axes, jnp.shape(x), strict=False)]
            return jnp.pad(x, widths, mode="edge") if any(n for _, n in widths) else x

        leaves, tree = jax.tree.flatten(self)
        found: Mask = jax.tree.unflatten(tree, map(more, leaves, self.leaf_axes())) if leaves else self
        return found

    def map_leaves(self, f: Callable[["Mask"], "Mask"]) -> "Mask":
        """The mask with `f` of each mask that it is composed of; else `f` of it."""
        return f(self)

    def in_rows(self, T: int, S: int) -> "Mask":
        """The same mask over T queries and S keys, with an entry a row for what rows would be looked up in."""
        return self

    def split_qk(self) -> "Mask":
        """The same mask, with no array that serves the rows of q and of k at once."""
        return self

    def by_rows(self, q_positions: jax.Array, k_positions: jax.Array, distances: jax.Array | None = None) -> "Mask":
        """The same mask of all rows, with an entry a row for what it looks up in arrays, if it can: as kernels take it.

        Its block states are asked of the mask itself.

        Args:
          distances: t − s at each offset between two rows, where one entry for each of them can be taken too.
        """
        return self

    def pattern(self) -> Pattern | None:
        """The mask as a library of kernels is told it; None if it is none of those that can be."""
        return None

    def leaf_axes(self) -> list[str]:
        """Of each leaf, after `split_qk`, whose rows it has an entry for: "q", "k", "qk" (both), or "" (neither).

        After `by_rows` also "nq": n entries for each query, [n, T]; and "o": one for each offset.
        """
        return [""] * len(jax.tree.leaves(self))

    def cut(self, q: Rows, k: Rows, *, transposed: bool = False) -> "Mask":
        """The mask of one tile, after `split_qk`: each leaf cut to its rows, and laid along the axes that it has."""
        down = 1 if transposed else 0

        def of_tile(x: Any, axes: str) -> Any:
            if axes == "q":
                return jnp.expand_dims(q.cut(x, 0), 1 - down)
            if axes == "k":
                return jnp.expand_dims(k.cut(x, 0), down)
            if axes == "qk":
                x = k.cut(q.cut(x, 0), 1)
                return x.T if transposed else x
            return x

        leaves, tree = jax.tree.flatten(self)
        return (
            jax.tree.unflatten(tree, [of_tile(x, axes) for x, axes in zip(leaves, self.leaf_axes(), strict=True)])
            if leaves
            else self
        )

    def tile(self, q: Rows, k: Rows, *, transposed: bool = False) -> Bool[Array, "q k"]:
        """The allowed pairs of some rows of q (down) and some of k (across), or transposed."""
        mask = self.split_qk().cut(q, k, transposed=transposed)
        allowed = mask.pairs(q.along(1), k.along(0)) if transposed else mask.pairs(q.along(0), k.along(1))
        shape = tuple(x.positions.shape[0] for x in ((k, q) if transposed else (q, k)))
        return jnp.broadcast_to(allowed, shape)

    def _repr_html_(self) -> str:
        """Its pairs, of as many rows as its arrays have, or of the first few."""
        found = {"q": SHOWN, "k": SHOWN}
        mask = self.split_qk()
        for x, axes in zip(jax.tree.leaves(mask), mask.leaf_axes(), strict=True):
            found |= {letter: n for letter, n in zip(axes, jnp.shape(x), strict=False) if n != 1}
        T, S = (min(n, SHOWN) for n in found.values())
        rows = (Rows(0, jnp.arange(n, dtype=jnp.int32)) for n in (T, S))
        of = f": the first {T} queries and {S} keys" if max(found.values()) > SHOWN else f": {T} queries, {S} keys"
        return _html.picture(repr(self), self.tile(*rows), of)

    def __and__(self, other: "Mask") -> "Mask":
        return And(self, _mask("&", other))

    def __or__(self, other: "Mask") -> "Mask":
        return Or(self, _mask("|", other))

    def __rand__(self, other: Any) -> "Mask":
        return _mask("&", other) & self

    def __ror__(self, other: Any) -> "Mask":
        return _mask("|", other) | self

    def __invert__(self) -> "Mask":
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"mask: a mask has no truth value, got {self!r}. "
            "Combine masks with & | ~ (not with and, or, not), and compare with `mask is None`."
        )


def _fits_rows(caller: str, mask: Mask, T: int, S: int) -> None:
    """Refuses a mask, after `split_qk`, whose arrays have not an entry for each row that `leaf_axes` says, or one."""
    leaves, axes, name = jax.tree_util.tree_leaves_with_path(mask), mask.leaf_axes(), type(mask).__name__
    if any(isinstance(x, Mask) for _, x in leaves):
        return  # of a class that is no pytree, which is refused elsewhere
    if len(leaves) != len(axes):
        must, got = f"leaf_axes of {name} must name axes for each of its arrays", f"of {len(axes)} for {len(leaves)}"
        remedy = 'Return "q", "k", "qk" or "" for each, in the order of jax.tree.leaves.'
        _errors.fail(ValueError, caller, must, remedy, leaf_axes=got)
    if any(set(letters) - {"q", "k"} for letters in axes):
        must = f'leaf_axes of {name} must be made of "q" and "k"'
        remedy = 'Return "" for an array without an entry a row.'
        _errors.fail(ValueError, caller, must, remedy, leaf_axes=repr(axes))
    for (path, x), letters in zip(leaves, axes, strict=True):
        want = [{"q": T, "k": S}[letter] for letter in letters]
        fits = len(want) == jnp.ndim(x) and all(n in (1, m) for n, m in zip(jnp.shape(x), want, strict=True))
        if want and not fits:
            shape = ", ".join(letters).replace("q", "T").replace("k", "S")
            remedy = f"Give each axis its full length or 1: [{shape}] is [{', '.join(map(str, want))}] here."
            field = jax.tree_util.keystr(path).lstrip(".")
            _errors.fail(ValueError, caller, f"{field} of {name} must have the shape [{shape}]", remedy, **{field: x})


def _mask(sign: str, x: Any) -> Mask:
    if isinstance(x, Mask):
        return x
    got = f"of type {type(x).__name__}"
    made = "a function first: masks.where(f)." if callable(x) else "a boolean array first: masks.dense(array)."
    remedy = _errors.call_it(Mask, x, f"Wrap {made}")
    _errors.fail(TypeError, "mask", f"both sides of {sign} must be masks", remedy, other=got)


@value
class _Both(Mask):
    a: Mask
    b: Mask

    @property
    def looks_at_positions(self) -> bool:  # type: ignore[override]
        return self.a.looks_at_positions or self.b.looks_at_positions

    def validate(self, caller: str, T: int, S: int, placed: bool) -> None:
        self.a.validate(caller, T, S, placed)
        self.b.validate(caller, T, S, placed)

    def padded(self, T: int, S: int) -> Mask:
        return type(self)(self.a.padded(T, S), self.b.padded(T, S))

    def map_leaves(self, f: Callable[[Mask], Mask]) -> Mask:
        return type(self)(self.a.map_leaves(f), self.b.map_leaves(f))

    def split_qk(self) -> Mask:
        return type(self)(self.a.split_qk(), self.b.split_qk())

    def leaf_axes(self) -> list[str]:
        return self.a.leaf_axes() + self.b.leaf_axes()


@value
class And(_Both):
    """Pairs that both allow."""

    def pattern(self) -> Pattern | None:
        a, b = self.a.pattern(), self.b.pattern()
        if a is None or b is None:
            return None
        left = min((side for side in (a.left, b.left) if side is not None), default=None)
        return Pattern(a.causal or b.causal, left, a.q_lengths + b.q_lengths, a.k_lengths + b.k_lengths)

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return self.a.pairs(q, k) & self.b.pairs(q, k)

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        return _elementwise("minimum", self.a.block_state(q, k), self.b.block_state(q, k))

    def __repr__(self) -> str:
        parts = (f"({part!r})" if isinstance(part, Or) else repr(part) for part in (self.a, self.b))
        return " & ".join(parts)


@value
class Or(_Both):
    """Pairs that either allows."""

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return self.a.pairs(q, k) | self.b.pairs(q, k)

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        return _elementwise("maximum", self.a.block_state(q, k), self.b.block_state(q, k))

    def __repr__(self) -> str:
        return f"{self.a!r} | {self.b!r}"


@value
class Not(Mask):
    """Pairs that the other does not allow."""

    a: Mask

    @property
    def looks_at_positions(self) -> bool:  # type: ignore[override]
        return self.a.looks_at_positions

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        return ~self.a.pairs(q, k)

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        state = self.a.block_state(q, k)
        return (FULL if isinstance(state, int) else np.int32(FULL)) - state

    def padded(self, T: int, S: int) -> Mask:
        return Not(self.a.padded(T, S))

    def map_leaves(self, f: Callable[[Mask], Mask]) -> Mask:
        return Not(self.a.map_leaves(f))

    def split_qk(self) -> Mask:
        return Not(self.a.split_qk())

    def leaf_axes(self) -> list[str]:
        return self.a.leaf_axes()

    def validate(self, caller: str, T: int, S: int, placed: bool) -> None:
        self.a.validate(caller, T, S, placed)

    def __repr__(self) -> str:
        return f"~({self.a!r})" if isinstance(self.a, _Both) else f"~{self.a!r}"


def _elementwise(name: str, a: Any, b: Any) -> Any:
    """The minimum or maximum of two block states; NumPy where both are known before anything is traced."""
    traced = [isinstance(x, jax.Array) for x in (a, b)]
    a, b = (x if is_traced else np.int32(x) for x, is_traced in zip((a, b), traced, strict=True))
    return getattr(jnp if any(traced) else np, name)(a, b)
