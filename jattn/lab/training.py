"""Training on samples that never come twice."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import optax
from jax import random

P = TypeVar("P")


def adam(loss: Callable[[P, jax.Array], jax.Array], p: P, key: jax.Array, *, steps: int, rate: float) -> P:
    """The parameters after `steps` of Adam on loss(p, key), each with a key of its own; the rate falls as a cosine."""
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def step(state: tuple[P, Any], key: jax.Array) -> tuple[tuple[P, Any], None]:
        p, memory = state
        with jax.numpy_dtype_promotion("standard"):  # optax divides by counts of its own
            updates, memory = optimizer.update(jax.grad(loss)(p, key), memory)
        return (optax.apply_updates(p, updates), memory), None

    return jax.lax.scan(step, (p, optimizer.init(p)), random.split(key, steps))[0][0]
