"""A mask written out, for eyes and for other libraries."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jattn import _errors, _html
from jattn._types import Allowed, ArrayLike, Integer
from jattn.masks._algebra import Mask
from jattn.masks._tiles import Rows


def picture(
    mask: Mask,
    T: int,
    S: int | None = None,
    *,
    q_positions: Integer[ArrayLike, " T"] | Sequence[int] | None = None,
    k_positions: Integer[ArrayLike, " S"] | Sequence[int] | None = None,
) -> str:
    """A mask in characters: queries down, keys across, `#` where a pair is allowed.

    Args:
      mask: a mask.
      T: how many queries.
      S: how many keys; T if None.
      q_positions: integers [T], where each query stands, in tokens; 0, 1, 2, … if not given.
      k_positions: integers [S], where each key stands, likewise.

    Returns:
      T lines of S characters.

    Raises:
      TypeError, ValueError: as `to_dense`.

    Memory: T × S, on request.

    Example:
      >>> from jattn import masks
      >>> print(masks.picture(masks.causal() | masks.prefix(2), 4))
      ##··
      ##··
      ###·
      ####
    """
    return _html.characters(_dense("picture", mask, T, T if S is None else S, q_positions, k_positions))


def to_dense(
    mask: Mask,
    T: int,
    S: int,
    *,
    q_positions: Integer[ArrayLike, " T"] | Sequence[int] | None = None,
    k_positions: Integer[ArrayLike, " S"] | Sequence[int] | None = None,
) -> Allowed:
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
    return _dense("to_dense", mask, T, S, q_positions, k_positions)


def _dense(caller: str, mask: Mask, T: int, S: int, q_positions: Any, k_positions: Any) -> Allowed:
    """`to_dense`, its errors in the name of `caller`."""
    if not isinstance(mask, Mask):
        remedy = "Make one with jattn.masks, or wrap a boolean array: masks.dense(array)."
        remedy = _errors.call_it(Mask, mask, remedy)
        _errors.fail(TypeError, caller, "mask must be a mask", remedy, mask=f"of type {type(mask).__name__}")
    T, S = _errors.count(caller, "T", T), _errors.count(caller, "S", S)
    mask.validate(caller, T, S, not (q_positions is None and k_positions is None))
    dependents = ("mask",) if mask.looks_at_positions else ()
    q_pos, k_pos = _errors.positions(caller, T, S, q_positions, k_positions, dependents)
    q_pos = jnp.arange(T, dtype=jnp.int32) if q_pos is None else q_pos
    k_pos = jnp.arange(S, dtype=jnp.int32) if k_pos is None else k_pos
    return mask.tile(Rows(0, q_pos), Rows(0, k_pos))
