"""The bare tiles: attention in plain JAX with no more than the arithmetic of its tiles, to measure a library against.

One head after another in a `lax.map`; tiles of 512 × 512, of which the empty ones are left out. Up to eight rows of
tiles are written out one after another, without a loop; above, and where what is visited is known only when the program
runs, rows and tiles are loops of traced bounds. The first tile starts the softmax state. A tile on the diagonal has one
constant triangle. There is no care for NaN, infinities or queries without a key, lengths that are no whole number of
tiles, float16, or any transform but the three passes that are written here: value, gradient and tangents of (q, k, v).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

TILE = 512
WRITTEN_OUT = 8
"""Rows of tiles, at most, that are written out."""
MASKED = -1e30


class Kind(NamedTuple):
    """What a case does beside q·k: which tiles of a row are visited, and what becomes of their products.

    Each function takes `extra`, the arrays of the case for one head (lengths, segment ids, a bias, slopes).
    """

    visits: Callable[[int, int], list[tuple[int, bool]]] | None
    """(row, rows) → its tiles, and whether each is masked; None where only the running program knows."""
    bounds: Callable[[Any, Any, int], tuple[Any, Any, Any]] | None = None
    """(extra, row, tile) → the first tile, the first masked tile, the end."""
    allowed: Callable[[Any, Any, Any], Any] | None = None
    """(extra, t, s) → the pairs of a masked tile."""
    logits: Callable[[Any, Any, Any, Any], Any] | None = None
    """(extra, products, t, s) → logits."""


def written_out(T: int, tile: int) -> bool:
    return T // tile <= WRITTEN_OUT


def logits(kind: Kind, extra: Any, found: Any, i: Any, j: Any, tile: int, masked: bool) -> Any:
    """Of a tile, [queries, keys], from its products."""
    if kind.logits is not None:
        found = kind.logits(extra, found, *_numbers(jnp, i, j, tile))
    if masked:
        assert kind.allowed is not None
        constant = isinstance(i, int) and isinstance(j, int) and extra is None
        found = jnp.where(kind.allowed(extra, *_numbers(np if constant else jnp, i, j, tile)), found, MASKED)
    return found


def _numbers(numpy: Any, i: Any, j: Any, tile: int) -> tuple[Any, Any]:
    n = numpy.arange(tile, dtype=numpy.int32)
    return i * tile + n[:, None], j * tile + n[None, :]


def fold(kind: Kind, extra: Any, T: int, tile: int, i: Any, step: Callable[..., Any], carry: Any) -> Any:
    """`step(carry, j, masked)` over the tiles of a row. A carry of None is a state that has not begun."""
    if kind.visits is not None and isinstance(i, int):
        for j, masked in kind.visits(i, T // tile):
            carry = step(carry, j, masked)
        return carry
    if kind.visits is not None:  # the same tiles as loops, of a causal or a full case
        causal = kind.allowed is not None
        first, full, end = 0, (i if causal else T // tile), (i + 1 if causal else T // tile)
    else:
        assert kind.bounds is not None
        first, full, end = kind.bounds(extra, i, tile)
    carry = jax.lax.fori_loop(first, full, lambda j, c: step(c, j, False), carry)
    return jax.lax.fori_loop(full, end, lambda j, c: step(c, j, True), carry)


def rows(kind: Kind, T: int, tile: int, row: Callable[..., Any], carry: Any) -> Any:
    """`row(carry, i) → (carry, y)` over the rows of tiles; the y joined."""
    if written_out(T, tile):
        ys = []
        for i in range(T // tile):
            carry, y = row(carry, i)
            ys.append(y)
        return carry, jax.tree.map(lambda *y: jnp.concatenate(y), *ys)
    carry, ys = jax.lax.scan(row, carry, jnp.arange(T // tile, dtype=jnp.int32))
    return carry, jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:]), ys)


def cut(x: Any, n: Any, tile: int) -> Any:
    return jax.lax.dynamic_slice_in_dim(x, n * tile, tile)


def forward(kind: Kind, q: Any, k: Any, v: Any, extra: Any) -> Any:
    """(out, lse) of one head."""
    (T, D), Dv = q.shape, v.shape[1]
    tile = min(T, TILE)
    q = q * D**-0.5

    def row(_: Any, i: Any) -> Any:
        here = cut(q, i, tile)

        def step(state: Any, j: Any, masked: bool) -> Any:
            found = logits(kind, extra, here @ cut(k, j, tile).T, i, j, tile, masked)
            if state is None:
                m = found.max(1)
                p = jnp.exp(found - m[:, None])
                return m, p.sum(1), p @ cut(v, j, tile)
            before, total, acc = state
            m = jnp.maximum(before, found.max(1))
            p, shrink = jnp.exp(found - m[:, None]), jnp.exp(before - m)
            return m, total * shrink + p.sum(1), acc * shrink[:, None] + p @ cut(v, j, tile)

        loops = kind.visits is None or not isinstance(i, int)
        start = (jnp.full(tile, MASKED), jnp.zeros(tile), jnp.zeros((tile, Dv))) if loops else None
        m, total, acc = fold(kind, extra, T, tile, i, step, start)
        return None, (acc / total[:, None], m + jnp.log(total))

    return rows(kind, T, tile, row, None)[1]


def backward(kind: Kind, q: Any, k: Any, v: Any, extra: Any, out: Any, lse: Any, dout: Any) -> Any:
    """(dq, dk, dv): five products a tile."""
    T, D = q.shape
    tile = min(T, TILE)
    q = q * D**-0.5
    delta = jnp.sum(dout * out, 1)

    def row(sums: Any, i: Any) -> Any:
        here, do, top, mean = (cut(a, i, tile) for a in (q, dout, lse, delta))

        def step(carry: Any, j: Any, masked: bool) -> Any:
            dq, (dk, dv) = carry
            key, value = cut(k, j, tile), cut(v, j, tile)
            found, pull = jax.vjp(lambda x: logits(kind, extra, x, i, j, tile, masked), here @ key.T)
            p = jnp.exp(found - top[:, None])
            (dl,) = pull(p * (do @ value.T - mean[:, None]))
            more = dl @ key
            return more if dq is None else dq + more, (_add(dk, dl.T @ here, j), _add(dv, p.T @ do, j))

        loops = kind.visits is None or not isinstance(i, int)
        dq, sums = fold(kind, extra, T, tile, i, step, (jnp.zeros((tile, D)) if loops else None, sums))
        return sums, dq

    if kind.visits is not None and written_out(T, tile):  # sums of tiles that start with their first
        sums, dq = rows(kind, T, tile, row, ([None] * (T // tile), [None] * (T // tile)))
        dk, dv = (jnp.concatenate(a) for a in sums)
    else:
        (dk, dv), dq = rows(kind, T, tile, row, (jnp.zeros(k.shape), jnp.zeros(v.shape)))
    return dq * D**-0.5, dk, dv


def tangent(kind: Kind, q: Any, k: Any, v: Any, extra: Any, out: Any, lse: Any, dots: Any) -> Any:
    """The tangent of out: five products a tile."""
    (T, D), Dv = q.shape, v.shape[1]
    tile = min(T, TILE)
    q, q_dot = q * D**-0.5, dots[0] * D**-0.5

    def row(_: Any, i: Any) -> Any:
        here, here_dot, top, mean = (cut(a, i, tile) for a in (q, q_dot, lse, out))

        def step(carry: Any, j: Any, masked: bool) -> Any:
            key, value, key_dot, value_dot = (cut(a, j, tile) for a in (k, v, *dots[1:]))
            products_dot = here_dot @ key.T + here @ key_dot.T
            found, found_dot = jax.jvp(
                lambda x: logits(kind, extra, x, i, j, tile, masked), (here @ key.T,), (products_dot,)
            )
            p = jnp.exp(found - top[:, None])
            p_dot = p * found_dot
            a, total = p_dot @ value + p @ value_dot, p_dot.sum(1)
            return (a, total) if carry is None else (carry[0] + a, carry[1] + total)

        loops = kind.visits is None or not isinstance(i, int)
        start = (jnp.zeros((tile, Dv)), jnp.zeros(tile)) if loops else None
        a, total = fold(kind, extra, T, tile, i, step, start)
        return None, a - total[:, None] * mean

    return rows(kind, T, tile, row, None)[1]


def _add(total: Any, part: Any, j: Any) -> Any:
    if isinstance(total, list):
        return [*total[:j], part if total[j] is None else total[j] + part, *total[j + 1 :]]
    at = (j * part.shape[0], jnp.int32(0))
    return jax.lax.dynamic_update_slice(total, jax.lax.dynamic_slice(total, at, part.shape) + part, at)


def passes(kind: Kind, extra: Any = None, per_head: bool = True) -> dict[str, Callable[..., Any]]:
    """forward, gradient and jvp over [B, H, T, D], as functions of ((q, k, v), a cotangent, tangents).

    Args:
      kind: what the case does.
      extra: its arrays, [B, H, ...] where `per_head`, or one for all.
    """

    def over_heads(f: Callable[..., Any]) -> Callable[..., Any]:
        def mapped(x: Any, w: Any, x_dot: Any) -> Any:
            lead = x[0].shape[:2]
            flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), (x, w, x_dot, extra if per_head else None))
            ys = jax.lax.map(lambda one: f(*one[:3], one[3] if per_head else extra), flat)
            return jax.tree.map(lambda y: y.reshape(*lead, *y.shape[1:]), ys)

        return mapped

    def gradient(x: Any, w: Any, x_dot: Any, extra: Any) -> Any:
        out, lse = forward(kind, *x, extra)
        return out, *backward(kind, *x, extra, out, lse, w)

    def jvp(x: Any, w: Any, x_dot: Any, extra: Any) -> Any:
        out, lse = forward(kind, *x, extra)
        return out, tangent(kind, *x, extra, out, lse, x_dot)

    every = {"forward": lambda x, w, x_dot, extra: forward(kind, *x, extra)[0], "gradient": gradient, "jvp": jvp}
    return {name: over_heads(f) for name, f in every.items()}


def causal_visits(i: int, n: int) -> list[tuple[int, bool]]:
    return [(j, j == i) for j in range(i + 1)]


def below(extra: Any, t: Any, s: Any) -> Any:
    return t >= s


FULL = Kind(lambda i, n: [(j, False) for j in range(n)])
CAUSAL = Kind(causal_visits, allowed=below)
