"""Taylor mode: what `jax.experimental.jet` asks of a primitive."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jattn._jax import Primitive, jet, name_p


def has_series(primitive: Primitive, constants: Callable[[Any], frozenset[int]] = lambda params: frozenset()) -> None:
    """Gives a primitive that has a jvp of every order its rule of Taylor mode.

    `constants` tells, of its parameters, the operands that never move: JAX gives them terms of 0.
    """
    jet.jet_rules[primitive] = partial(_series, primitive, constants)


def _series(
    primitive: Primitive, constants: Any, xs: Sequence[Any], terms: Sequence[Sequence[Any]], **params: Any
) -> Any:
    """The outputs at xs, and their Taylor coefficients along the curve that `terms` are the Taylor coefficients of.

    With x⁽ᵏ⁾ the derivatives of the curve, the first derivative of an output is f₁(x, x⁽¹⁾) = its jvp at x along x⁽¹⁾,
    and fₖ₊₁(x, …, x⁽ᵏ⁺¹⁾) is the jvp of fₖ at (x, …, x⁽ᵏ⁾) along (x⁽¹⁾, …, x⁽ᵏ⁺¹⁾).
    """
    moved = [i for i, x in enumerate(xs) if jnp.issubdtype(x.dtype, jnp.inexact) and i not in constants(params)]
    orders = range(1, len(terms[0]) + 1)
    curve = [[xs[i] for i in moved], *([math.factorial(k) * terms[i][k - 1] for i in moved] for k in orders)]

    def value(at: list[Any]) -> tuple[list[Any], list[Any]]:
        given = list(xs)
        for i, x in zip(moved, at, strict=True):
            given[i] = x
        ys = primitive.bind(*given, **params)
        return (ys if primitive.multiple_results else [ys]), []

    derivative = value
    for _ in orders:
        derivative = partial(_next_order, derivative)
    last, before = derivative(*curve)
    ys, *derivatives = [*before, last]
    series = [[_term(k, d[i], y) for k, d in zip(orders, derivatives, strict=True)] for i, y in enumerate(ys)]
    return (ys, series) if primitive.multiple_results else (ys[0], series[0])


def _term(k: int, derivative: jax.Array, y: jax.Array) -> jax.Array:
    return derivative / math.factorial(k) if jnp.issubdtype(y.dtype, jnp.inexact) else jnp.zeros_like(y)


def _next_order(derivative: Any, *curve: list[Any]) -> tuple[list[Any], list[Any]]:
    """The derivative of the next order, and those of all orders below it, of the value the 0th."""
    y, y_dot, before = jax.jvp(derivative, curve[:-1], curve[1:], has_aux=True)
    return y_dot, [*before, y]


def _named(primals_in: Any, series_in: Any, **params: Any) -> Any:
    return name_p.bind(*primals_in, **params), *series_in


jet.jet_rules.setdefault(name_p, _named)  # JAX has none
