"""The schemes of `jattn.sharding` over described devices: programs, and what `plan` says of them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _compilers import Collectives
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jattn import masks, sharding

ROWS, D, DECODED = 1024, 128, 4
"""Tokens of a device; width of a head; queries of `tree`."""
SCHEMES = ("ring", "all_to_all", "gather", "tree", "ring_all_to_all")
MASKS = {"causal": masks.causal(), "window": masks.window(left=1535, right=0)}
TOGETHER = 2
"""Of ring × all-to-all, how many devices exchange heads."""


MOST_DEVICES = {"TPU v5p": 512}
"""Of each kind; of the others 64."""


def heads_of(scheme: str, kind: str) -> int:
    """As many for every number of devices of a kind, so that each holds the same; all_to_all needs one for each."""
    return MOST_DEVICES.get(kind, 64) if scheme == "all_to_all" else 8


def shapes_of(scheme: str, kind: str, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    H = heads_of(scheme, kind)
    return (1, DECODED if scheme == "tree" else ROWS * n, H, D), (1, ROWS * n, H, D)


def around(sides: Sequence[int]) -> np.ndarray:
    """Places [n, axes] of a grid, each next to the one before and the last next to the first: a ring through all.

    Down the first axis and back along the rest, which is walked to and fro as one line; all but the first of each line
    on the way, the first ones on the way back. The first side must be even.
    """
    line: list[list[int]] = [[]]
    for side in sides[1:]:
        line = [[*place, x] for i, place in enumerate(line) for x in (range(side), reversed(range(side)))[i % 2]]
    out = [(row, i) for row in range(sides[0]) for i in (range(1, len(line)), range(len(line) - 1, 0, -1))[row % 2]]
    back = [(row, 0) for row in reversed(range(sides[0]))]
    return np.array([[row, *line[i]] for row, i in [*out, *back]])


def in_a_ring(devices: list[Any]) -> list[Any]:
    """The devices in an order in which each is connected with the next: chips of a torus by their coordinates."""
    if not hasattr(devices[0], "coords"):
        return devices
    places = {tuple(d.coords): d for d in devices}
    return [places[tuple(place)] for place in around(np.max(list(places), axis=0) + 1)]


def program(
    scheme: str, kind: str, devices: list[Any], mask: str, layout: str, derivative: str
) -> tuple[Any, list[Any], Any]:
    """The function, its arguments on the devices, and the shardings of its results."""
    n, both = len(devices), scheme == "ring_all_to_all"
    axes = ("ring", "heads") if both else ("seq",)
    grid = np.array(in_a_ring(devices)).reshape((n // TOGETHER, TOGETHER) if both else (n,))
    mesh = Mesh(grid, axes, axis_types=(AxisType.Auto,) * len(axes))
    spec = P(None, axes if both else axes[0])
    whole, pieces = NamedSharding(mesh, P()), NamedSharding(mesh, spec)
    of_q, of_k = shapes_of(scheme, kind, n)
    order = np.arange(of_k[1], dtype=np.int32)
    order = sharding.zigzag(order, n) if layout == "zigzag" else order
    of_queries = whole if scheme == "tree" else pieces
    q = jax.ShapeDtypeStruct(of_q, jnp.bfloat16, sharding=of_queries)
    k = jax.ShapeDtypeStruct(of_k, jnp.bfloat16, sharding=pieces)
    attend: Callable[..., Any] = getattr(sharding, scheme)

    def f(*x: Any) -> Any:
        return sharding.attention(
            *x, mesh=mesh, spec=spec, scheme=attend, mask=MASKS[mask], q_positions=order[-of_q[1] :], k_positions=order
        )

    if derivative == "value":
        return f, [q, k, k], of_queries
    both_of = jax.value_and_grad(lambda *x: jnp.sum(jnp.sin(f(*x).astype(jnp.float32))), (0, 1, 2))
    return both_of, [q, k, k], (whole, (of_queries, pieces, pieces))


def planned(scheme: str, kind: str, n: int, mask: str, layout: str, derivative: str) -> tuple[dict[str, int], int]:
    """The arrays of each collective, and the bytes that one device sends, as `plan` says."""
    (_, T, H, _), (_, S, K, _) = shapes_of(scheme, kind, n)
    name = {"ring": f"ring, {layout}", "ring_all_to_all": f"ring_all_to_all, {n // TOGETHER} × {TOGETHER}"}
    costs = sharding.plan(
        T, S, heads=H, kv_heads=K, head_dim=D, dtype=jnp.bfloat16, devices=n, flops_per_second=1.0, bandwidth=1.0,
        mask=MASKS[mask],
    ).costs  # fmt: skip
    cost = next(c for c in costs if c.scheme == name.get(scheme, scheme))
    value = derivative == "value"
    kinds = cost.collectives if value else cost.gradient_collectives
    return {kind: c for kind, c in kinds.items() if c}, cost.sent + (0 if value else cost.gradient_sent)


def compared(
    found: Collectives, scheme: str, kind: str, n: int, mask: str, layout: str, derivative: str
) -> dict[str, Any]:
    """What was found in the text beside the plan."""
    kinds, sent = planned(scheme, kind, n, mask, layout, derivative)
    return {
        "collectives": {kind: x.arrays for kind, x in found.kinds.items()},
        "planned_collectives": kinds,
        "sent": sum(x.bytes for x in found.kinds.values()),
        "planned": sent,
        "permutes": found.permutes,
        "overlapped": found.overlapped,
    }
