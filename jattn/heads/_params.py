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
"""The parameters of a head: arrays by name."""
Initializer: TypeAlias = Callable[[jax.Array, tuple[int, int], DTypeLike], jax.Array]
"""initializer(key, (fan_in, fan_out), dtype) -> array, as those of jax.nn.initializers."""


TRAINED_IN = "Parameters are real numbers, as in dtype='bfloat16'."


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
        dtype = jnp.result_type(params[name])
        if jnp.issubdtype(dtype, jnp.complexfloating):
            must, got = f"params['{name}'] must be real numbers", {name: f"{dtype}{_errors.shape(params[name])}"}
            _errors.fail(TypeError, caller, must, f"Take the real part: params['{name}'].real.", **got)
    return lengths


def held(caller: str, params: Params, *names: str) -> None:
    """Refuses what is no mapping, or lacks one of these arrays."""
    remedy = "Make them with heads.init or heads.latent_init, or name what comes from elsewhere as they do."
    if not isinstance(params, Mapping):
        got = {"params": f"of type {type(params).__name__}"}
        _errors.fail(TypeError, caller, "params must be a mapping of arrays by name", remedy, **got)
    missing = [name for name in names if name not in params]
    if missing:
        has = ", ".join(sorted(map(str, params))) or "nothing"
        _errors.fail(ValueError, caller, f"params must hold {' and '.join(missing)}", remedy, params=f"with {has}")


def standard() -> Any:
    """Within it arrays of two dtypes promote to one, as in attention, with jax_numpy_dtype_promotion="strict" too."""
    return jax.numpy_dtype_promotion("standard")


def matrices(
    key: PRNGKey, shapes: Mapping[str, tuple[int, ...]], initializer: Initializer, dtype: DTypeLike
) -> dict[str, jax.Array]:
    """Each matrix by its name; it maps its first axis to the others, `out` its first two to the last."""
    made = {}
    for (name, shape), k in zip(shapes.items(), jax.random.split(key, len(shapes)), strict=True):
        fan_in = shape[0] * shape[1] if name == "out" else shape[0]
        made[name] = initializer(k, (fan_in, math.prod(shape) // fan_in), dtype).reshape(shape)
    return made
