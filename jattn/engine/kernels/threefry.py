"""Which pairs dropout keeps, computed of each pair by itself: a kernel cannot call jax.random on a cell.

The draws are those of `jax.random` for a key of threefry2x32, so that a pair has one lot on every platform.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jattn.engine.tuning import DROPOUT_CELL

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
Words = tuple[jax.Array, jax.Array]
"""Two words of 32 bits, in int32, whose sums wrap around just as those of uint32 do."""


def hashed(key: Words, counter: jax.Array) -> Words:
    """Threefry-2x32 of 20 rounds: the hash of (0, counter) under a key.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.
    """
    keys = *key, key[0] ^ key[1] ^ PARITY
    a, b = jnp.broadcast_arrays(keys[0], counter + keys[1])
    for group in range(5):
        for n in ROTATIONS[group % 2]:
            a = a + b
            b = (b << n | jax.lax.shift_right_logical(b, np.int32(32 - n))) ^ a
        a, b = a + keys[(group + 1) % 3], b + keys[(group + 2) % 3] + (group + 1)
    return a, b


def kept(
    key: Words, share: jax.Array, first: tuple[jax.Array, jax.Array], shape: tuple[int, int], *, transposed: bool
) -> jax.Array:
    """Which pairs of a tile are kept, [queries, keys], or transposed.

        bernoulli(fold_in(fold_in(key, t // 16), s // 16), share, (16, 16))[t % 16, s % 16]

    Args:
      share: of pairs that are kept, in float32.
      first: the numbers of the first query and of the first key, multiples of `DROPOUT_CELL`.
      shape: queries and keys, whole cells of keys.
    """
    (q, k), (queries, keys), cell = first, shape, jnp.int32(DROPOUT_CELL)

    def along(n: int, of_keys: bool) -> jax.Array:
        across = of_keys != transposed
        return jax.lax.broadcasted_iota(jnp.int32, (1, n) if across else (n, 1), int(across))

    t, s = q + along(queries, False), along(keys, True)
    cells = jax.lax.div(k, cell) + along(keys // DROPOUT_CELL, True)
    axis, (down, across) = (1, (keys, queries)) if transposed else (2, (queries, keys))

    def of_cell(word: jax.Array) -> jax.Array:
        """Each entry once for all keys of its cell."""
        apart = jnp.expand_dims(word, axis)
        shape = [*apart.shape]
        shape[axis] = DROPOUT_CELL
        return jnp.broadcast_to(apart, shape).reshape(down, across)

    high, low = map(of_cell, hashed(hashed(key, jax.lax.div(t, cell)), cells))
    a, b = hashed((high, low), jax.lax.rem(t, cell) * cell + jax.lax.rem(s, cell))
    # The 23 leading bits are the fraction of a uniform number, as jax.random.uniform has it in float32.
    return jax.lax.shift_right_logical(a ^ b, np.int32(9)).astype(jnp.float32) * 2**-23 < share
