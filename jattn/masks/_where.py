"""Any function of two positions as a mask."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from jattn import _errors
from jattn._types import Array, ArrayLike, Bool
from jattn._values import Closed, Separated, close, name_of, separate, static, value
from jattn.masks._algebra import Mask
from jattn.masks._tiles import PARTIAL, BlockState, Spans, TileAxis, block_state, over_vectors


@contextlib.contextmanager
def computed_now() -> Iterator[None]:
    """What is computed within is known while a program is traced, whatever mesh the program is for."""
    no_mesh = jax.sharding.use_abstract_mesh(AbstractMesh((), ()))
    with jax.ensure_compile_time_eval(), no_mesh:
        yield


class PairRule:
    """A function of scalar positions as a value, with what it found of rectangles whose positions are static."""

    def __init__(self, closed: Closed, name: str, made_of: tuple[Any, ...] | None = None):
        self.closed, self.name, self.made_of = closed, name, made_of
        self.found: dict[Any, np.ndarray] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PairRule) and (self.closed, self.name) == (other.closed, other.name)

    def __hash__(self) -> int:
        return hash((self.closed, self.name))

    def __call__(self, captured: Any, *positions: Any) -> Any:
        return self.closed(captured, *positions)

    def __deepcopy__(self, memo: Any) -> "PairRule":
        return self  # nothing of it changes

    def __reduce__(self) -> Any:
        if self.made_of is None:
            remedy = "Define it by def outside of any function, or pickle what the mask is made of."
            must = "a mask that is pickled must be of a function that can be imported"
            _errors.fail(TypeError, "where", must, remedy, function=self.name)
        return _rule_again, self.made_of

    def of_pairs(self, captured: Any, t: Any, s: Any) -> Any:
        """Whether each pair of the positions [t] and [s] is allowed: [t, s]."""
        of_row = jax.vmap(lambda t, s: self(captured, t, s)[0], (None, 0))
        return jax.vmap(of_row, (0, None))(t, s)

    def search(self, q: Spans, k: Spans) -> np.ndarray:
        """The block state of each rectangle, by asking about every pair of it once, a row of tiles at a time."""
        asked = tuple(np.asarray(a).tobytes() for x in (q, k) for a in x)
        if asked not in self.found:
            with computed_now():
                ends = (np.stack([np.asarray(x.lowest).ravel(), np.asarray(x.highest).ravel()]) for x in (q, k))
                some, every = (np.asarray(a) for a in _search(self, q.size, k.size, *ends))
                self.found[asked] = np.asarray(block_state(some, every))
        return self.found[asked]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _search(rule: PairRule, q_size: int, k_size: int, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
    def stand(ends: jax.Array, size: int) -> jax.Array:
        """The positions of the rows of a tile; the last one again where there are fewer."""
        return jnp.minimum(ends[0] + jnp.arange(size, dtype=jnp.int32), ends[1])

    def row(ends: jax.Array) -> tuple[jax.Array, jax.Array]:
        t, s = stand(ends, q_size), jax.vmap(lambda ends: stand(ends, k_size))(k.T)
        allowed = rule.of_pairs((), t, s.ravel()).reshape(q_size, *s.shape)
        return allowed.any((0, 2)), allowed.all((0, 2))

    return jax.lax.map(row, q.T)


@value
class Where(Mask):
    """See `where`."""

    looks_at_positions = True
    asks_users_function = True
    captured: tuple[jax.Array, ...]
    state_captured: tuple[jax.Array, ...]
    rule: PairRule = static()
    state_rule: PairRule | None = static()

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        t, s = q.positions, k.positions
        if t.shape == s.shape:  # as in a kernel: each laid out over the whole tile
            return jax.vmap(jax.vmap(lambda t, s: self.rule(self.captured, t, s)[0]))(t, s)
        return over_vectors(lambda t, s: self.rule.of_pairs(self.captured, t, s), t, s)

    def by_rows(self, q_positions: jax.Array, k_positions: jax.Array, distances: jax.Array | None = None) -> Mask:
        at: dict[Any, jax.Array] = {0: q_positions, 1: k_positions}
        if distances is not None:
            at[0, 1] = distances
        parts = separate(self.rule.closed, *at)
        if parts is None or not any(parts.between.values()):
            return self
        of_q, of_k, *of_offsets = (
            jax.vmap(lambda x, n=n: tuple(parts.alone(n, self.captured, x)))(every) for n, every in at.items()
        )
        of_neither = tuple(parts.alone(None, self.captured))
        return WhereByRows(of_q, of_k, of_offsets[0] if of_offsets else (), of_neither, parts)

    def block_state(self, q: Spans, k: Spans) -> BlockState:
        ends = q.lowest, q.highest, k.lowest, k.highest
        known = not any(isinstance(x, jax.Array) for x in (*ends, *self.state_captured))
        if self.state_rule is None:
            # Rows that stand at their own numbers: every position of a tile is known.
            numbered = known and q.lowest is q.first and k.lowest is k.first
            return self.rule.search(q, k) if numbered and not self.captured else PARTIAL
        if not known:
            return self._ask(self.state_rule, ends)
        with computed_now():
            return np.asarray(self._ask(self.state_rule, ends))

    def _ask(self, rule: PairRule, ends: tuple[Any, ...]) -> jax.Array:
        one = lambda *ends: rule(self.state_captured, *ends)[0]  # noqa: E731
        across = jax.vmap(one, (None, None, 0, 0))
        return jax.vmap(across, (0, 0, None, None))(*map(jnp.ravel, ends))

    def __repr__(self) -> str:
        more = "" if self.state_rule is None else f", state={self.state_rule.name}"
        return f"where({self.rule.name}{more})"


@value
class WhereByRows(Mask):
    """`Where` in a kernel, with what the function says of each query, of each key and of each offset alone."""

    asks_users_function = True
    reads_entries = True
    of_q: tuple[jax.Array, ...]
    of_k: tuple[jax.Array, ...]
    of_offsets: tuple[jax.Array, ...]
    of_neither: tuple[jax.Array, ...]
    parts: Separated = static()

    def leaf_axes(self) -> list[str]:
        roles = {"q": self.of_q, "k": self.of_k, "o": self.of_offsets, "": self.of_neither}
        return [role for role, leaves in roles.items() for _ in leaves]

    def pairs(self, q: TileAxis, k: TileAxis) -> Bool[Array, "..."]:
        def pair(t: jax.Array, s: jax.Array, of_q: Any, of_k: Any, of_offset: Any) -> jax.Array:
            found = {0: of_q, 1: of_k, (0, 1): of_offset, None: self.of_neither}
            allowed: jax.Array = self.parts.rest(found, t, s)[0]
            return allowed

        return jax.vmap(jax.vmap(pair))(q.positions, k.positions, self.of_q, self.of_k, self.of_offsets)


def where(
    predicate: Callable[[jax.Array, jax.Array], ArrayLike],
    *,
    state: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], BlockState] | None = None,
) -> Mask:
    """The pairs of which any function of two positions says so.

        query t may attend key s  ⟺  predicate(t, s)

    Args:
      predicate: f(q_position, k_position) -> bool on integer scalars, in JAX; the library maps it. It may close over
        arrays, which become leaves of the mask; NumPy arrays stay constants.
      state: the block state of a rectangle of positions: f(q_lowest, q_highest, k_lowest, k_highest), ends included,
        returning `block_state(some, every)`: an integer EMPTY, PARTIAL or FULL. PARTIAL is always right; EMPTY and FULL
        must hold for every pair between the ends.

    Returns:
      A mask. Without `state` it is asked about every pair once, when the program is traced, to find the tiles that
      need no visit; where positions are given or arrays captured, every tile is visited and masked. It can be pickled
      where its functions can be imported: where they are defined in no other function, and by def.

    Raises:
      TypeError: not a function of two (four) scalars that JAX can trace, or it does not return one boolean (two).

    Memory: a row of tiles, while the program is traced.

    Source: Dong et al. 2024, "Flex Attention: a programming model for generating optimized attention kernels", whose
      mask_mod is such a function.

    Example:
      >>> from jattn import masks
      >>> def same_parity(t, s):
      ...     return (t - s) % 2 == 0
      >>> masks.where(same_parity) & masks.causal()
      where(same_parity) & causal()
      >>> print(masks.picture(masks.where(lambda t, s: t * s < 4), 4))
      ####
      ####
      ##··
      ##··

      A table that is captured is not looked at while a program is traced; its author may know its block states:

      >>> import jax.numpy as jnp
      >>> begins = jnp.array([0, 0, 2, 2])  # where the sentence of each token begins
      >>> sentence = masks.where(lambda t, s: (begins[t] <= s) & (s <= t),
      ...                        state=lambda t0, t1, s0, s1: masks.block_state((s0 <= t1) & (begins[t0] <= s1), False))
      >>> print(masks.picture(sentence, 4))
      #···
      ##··
      ··#·
      ··##
    """
    rule, captured = _rule("predicate", predicate, 2, "f(q_position, k_position) -> bool")
    if state is None:
        return Where(captured, (), rule, None)
    form = "f(q_lowest, q_highest, k_lowest, k_highest) -> block_state(some, every)"
    state_rule, state_captured = _rule("state", state, 4, form)
    return Where(captured, state_captured, rule, state_rule)


def _rule(name: str, f: Any, n: int, form: str) -> tuple[PairRule, tuple[jax.Array, ...]]:
    remedy = f"Write {form} on integer scalars; the library maps it."
    _errors.takes("where", name, f, n, remedy)
    with _errors.traced("where", name):
        closed, captured, out = close(f, *[jax.ShapeDtypeStruct((), jnp.int32)] * n, constants=True)
    one = len(out) == 1 and out[0].shape == ()
    if not one or not jnp.issubdtype(out[0].dtype, jnp.bool_ if n == 2 else jnp.integer):
        got = " and ".join(f"{o.dtype}{_errors.shape(o)}" for o in out) or "nothing"
        must = f"{name} must return one boolean" if n == 2 else f"{name} must return one block state"
        _errors.fail(TypeError, "where", must, remedy, **{name: f"returning {got}"})
    # Kept to be pickled, by its name, where it closes over nothing that would be kept with it.
    alone = getattr(f, "__closure__", None) is None and getattr(f, "__self__", None) is None
    importable = alone and "<" not in getattr(f, "__qualname__", "<")
    return PairRule(closed, name_of(f), (name, f, n, form) if importable else None), captured


def _rule_again(name: str, f: Any, n: int, form: str) -> PairRule:
    return _rule(name, f, n, form)[0]
