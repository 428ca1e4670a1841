"""The arrays of a head by name: how they are drawn, and whether their shapes fit one another."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._types import DTypeLike, PRNGKey

LECUN = jax.nn.initializers.lecun_normal()
Params: TypeAlias = Mapping[str, jax.Array | np.ndarray]
"""Arrays by name."""
Initializer: TypeAlias = Callable[[jax.Array, tuple[int, int], DTypeLike], jax.Array]
"""f(key, (fan_in, fan_out), dtype), as those of jax.nn.initializers."""


def at_least_1(caller: str, name: str, n: int | None, otherwise: int) -> int:
    """A static whole number of at least 1, `otherwise` if None."""
    return otherwise if n is None else _errors.count(caller, name, n, least=1)


def fit(caller: str, params: Params, axes: Sequence[str], **known: Any) -> dict[str, Any]:
    """The length of each axis, where those arrays of `params` that there are agree in it; `axes` holds "name A B …".

    What is known beforehand is said by `known`. Nothing broadcasts: a head that serves for all is a mistake.
    """
    lengths = dict(known)
    for name, *letters in (line.split() for line in axes if line.split()[0] in params):
        found = jnp.shape(params[name])
        if len(found) == len(letters):
            for axis, n in zip(letters, found, strict=True):
                lengths.setdefault(axis, n)
        if found != tuple(lengths.get(axis) for axis in letters):
            spelled, here = (", ".join(x) for x in (letters, (str(lengths.get(axis, axis)) for axis in letters)))
            remedy = ("" if here == spelled else f"That is [{here}] here. ") + "Reshape what comes from elsewhere."
            _errors.fail(ValueError, caller, f"params['{name}'] must be [{spelled}]", remedy, **{name: params[name]})
    return lengths


def matrices(
    key: PRNGKey, shapes: Mapping[str, tuple[int, ...]], initializer: Initializer, dtype: DTypeLike
) -> dict[str, jax.Array]:
    """Each matrix by its name; it maps its first axis to the others, `out` its first two to the last."""
    made = {}
    for (name, shape), k in zip(shapes.items(), jax.random.split(key, len(shapes)), strict=True):
        fan_in = shape[0] * shape[1] if name == "out" else shape[0]
        made[name] = initializer(k, (fan_in, math.prod(shape) // fan_in), dtype).reshape(shape)
    return made
