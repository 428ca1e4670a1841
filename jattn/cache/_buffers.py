"""One buffer a row: until it is full, or around and around."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._types import Array, Bool, DTypeLike, Integer
from jattn._values import static, value
from jattn.cache._store import Cache, empty, serialized

NEVER = int(jnp.iinfo(jnp.int32).min)
"""A position before all others."""


class _OnePage(Cache):
    """Each row has one page, and every page number means that one."""

    def pages(self, numbers: Integer[Array, "B J"]) -> Integer[Array, "B J"]:
        return jnp.broadcast_to(jnp.arange(numbers.shape[0], dtype=jnp.int32)[:, None], numbers.shape)


@serialized
@value
class Contiguous(_OnePage):
    """See `contiguous`."""

    def admit(self, n: Integer[Array, " B"]) -> tuple[Cache, Integer[Array, " B"]]:
        fits = self.length + n <= self.capacity
        return dataclasses.replace(self, full=self.full | ~fits), jnp.where(fits, n, 0)


@serialized
@value
class Ring(_OnePage):
    """See `ring`."""

    gone: Integer[Array, " B"]
    """The highest position of a token that each row has let go."""
    window: int = static()

    def admit(self, n: Integer[Array, " B"]) -> tuple[Cache, Integer[Array, " B"]]:
        return self, n

    def written(self, n: Integer[Array, " B"], positions: Integer[Array, "B T"]) -> Cache:
        C, T = self.store.C, positions.shape[1]
        held = jnp.minimum(self.length, C)
        leaving = jnp.clip(held + n - C, 0, held)  # the oldest of those that are held,
        slot = jnp.arange(C, dtype=jnp.int32)[None]
        age = (slot - (self.length - held)[:, None]) % C
        old = jnp.where(age < leaving[:, None], self.store.positions, NEVER).max(1)
        never_held = (
            jnp.arange(T, dtype=jnp.int32)[None] < (n - C)[:, None]
        )  # and what is too much for any ring at once
        new = jnp.where(never_held, positions, NEVER).max(1)
        return dataclasses.replace(self, gone=jnp.maximum(self.gone, jnp.maximum(old, new)))

    def lost(self, q_positions: Integer[Array, "B T"]) -> Bool[Array, "B T"] | None:
        return self.gone[:, None] > jnp.maximum(q_positions, NEVER + self.window) - self.window


def contiguous(
    B: int, Hkv: int, S: int, D: int, Dv: int | None = None, *, dtype: DTypeLike = jnp.float32, start: int = 0
) -> Contiguous:
    """An empty cache of one buffer a row: S tokens fit, and then it is full.

    Full: a row that has no room for all of its new tokens takes none of them, keeps what it holds, and raises its flag
    `full`; outside jit, `append` is an error instead.

    Args:
      B: rows of the batch, ≥ 1.
      Hkv: key/value heads, ≥ 1.
      S: tokens that fit into each row, ≥ 1.
      D: width of a key, ≥ 1.
      Dv: width of a value; D if None.
      dtype: floating point, or `jnp.int8` for bytes and one float32 scale per head and token.
      start: the position of the first token of each row, where rows follow on a prefix that is kept elsewhere.

    Returns:
      A `Contiguous`, a pytree with the fields length [B], next [B], full [B] and start.

    Raises:
      TypeError: a size is not a whole number, or the dtype is neither floating point nor int8.
      ValueError: a size is too small.

    Memory: B · Hkv · S · (D + Dv) numbers of `dtype`, and up to 13 bytes a token and head.

    Source: Shazeer 2019, "Fast Transformer Decoding", section 2.4, for decoding step by step.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jattn import cache
      >>> c = cache.contiguous(B=2, Hkv=1, S=8, D=4)
      >>> k, v = jax.random.normal(jax.random.key(0), (2, 2, 1, 5, 4))
      >>> c = cache.append(c, k, v, lengths=jnp.array([5, 3]))  # prefill: the rows differ
      >>> c
      Contiguous(B=2, Hkv=1, S=8, D=4, float32)
      >>> cache.attention(jnp.ones((2, 2, 1, 4)), c).shape  # two query heads share the one of the cache
      (2, 2, 1, 4)
      >>> print(c.length, c.full)
      [5 3] [False False]
    """
    caller = "contiguous"
    B, S = _errors.count(caller, "B", B, least=1), _errors.count(caller, "S", S, least=1)
    return Contiguous(empty(caller, B, S, Hkv, D, Dv, dtype), *_counters(caller, B, start))


def ring(
    B: int,
    Hkv: int,
    D: int,
    Dv: int | None = None,
    *,
    window: int,
    chunk: int = 1,
    dtype: DTypeLike = jnp.float32,
    start: int = 0,
) -> Ring:
    """An empty cache that keeps what a sliding window still sees: the newest window + chunk − 1 tokens of each row.

    A query attends no key `window` or more positions before it, whatever else the mask says. The buffer is written
    around, so it is never full. A query whose window reaches back to a token that was let go (it was appended together
    with more than `chunk` − 1 later ones, or asks about the past) gives NaN; outside jit it is an error.

    Args:
      B: rows of the batch, ≥ 1.
      Hkv: key/value heads, ≥ 1.
      D: width of a key, ≥ 1.
      Dv: width of a value; D if None.
      window: how many positions a query sees, its own included, ≥ 1: `masks.window(left=window - 1)`.
      chunk: how many tokens may be appended at once and still all be attended from, ≥ 1.
      dtype: floating point, or `jnp.int8` for bytes and one float32 scale per head and token.
      start: the position of the first token of each row.

    Returns:
      A `Ring`, a pytree with the fields length [B] (all tokens ever given), next [B], gone [B] and start.

    Raises:
      TypeError: a size is not a whole number, or the dtype is neither floating point nor int8.
      ValueError: a size is too small.

    Memory: as a contiguous cache of window + chunk − 1 tokens, however many are appended.

    Source: Beltagy et al. 2020, "Longformer", section 3.1, for the window; Jiang et al. 2023, "Mistral 7B", section 2,
      for the rolling buffer.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jattn import cache
      >>> c = cache.ring(B=1, Hkv=1, D=4, window=3)
      >>> for x in jax.random.normal(jax.random.key(0), (5, 1, 1, 1, 4)):
      ...     c = cache.append(c, x, x)
      >>> print(c, c.length, c.store.positions)  # the third slot holds the oldest
      Ring(B=1, Hkv=1, S=3, D=4, float32) [5] [[3 4 2]]
    """
    caller = "ring"
    B, window = _errors.count(caller, "B", B, least=1), _errors.count(caller, "window", window, least=1)
    C = window + _errors.count(caller, "chunk", chunk, least=1) - 1
    gone = jax.device_put(np.full(B, NEVER, np.int32))
    return Ring(empty(caller, B, C, Hkv, D, Dv, dtype), *_counters(caller, B, start), gone, window)


def _counters(caller: str, B: int, start: int) -> tuple[Array, Array, Array, Array]:
    """length, next, full and start of rows that hold nothing."""
    start = _errors.count(caller, "start", start)
    if start >= 2**31:
        must, remedy = "start must be a number that int32 holds", "Count the tokens from one that is nearer."
        _errors.fail(ValueError, caller, must, remedy, start=str(start))
    counters = np.zeros(B, np.int32), np.full(B, start, np.int32), np.zeros(B, bool), np.int32(start)
    length, following, full, first = jax.device_put(counters)
    return length, following, full, first
