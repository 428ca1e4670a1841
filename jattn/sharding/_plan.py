"""What each scheme would cost, before anything runs."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from jattn import _errors
from jattn._types import DTypeLike
from jattn.arguments.heads import group_size
from jattn.masks import FULL, Mask
from jattn.sharding._blocks import block_states, hop_distances, leaf_axes, of_shards
from jattn.sharding._mesh import zigzag
from jattn.sharding._ring import RingSchedule


class Link(NamedTuple):
    """How fast one device is connected to others, as its vendor states; not measured."""

    bytes_per_second: float
    """Of all links of the device together, both ways."""
    links: int
    """Of a torus of chips two for each of its axes; one into a switch."""
    source: str

    @property
    def bandwidth(self) -> float:
        """Bytes per second over one link, one way: what a ring can send."""
        return self.bytes_per_second / self.links / 2


LINKS: Mapping[str, Link] = MappingProxyType(
    {
        "TPU v5e": Link(400e9, 4, "https://docs.cloud.google.com/tpu/docs/v5e"),
        "TPU v5p": Link(1200e9, 6, "https://docs.cloud.google.com/tpu/docs/v5p"),
        "TPU v6e": Link(800e9, 4, "https://docs.cloud.google.com/tpu/docs/v6e"),
        "H200": Link(900e9, 1, "https://www.nvidia.com/en-us/data-center/h200/"),
    }
)
"""Of each device, its connections within one slice (TPU, ICI) or behind one switch (H200, NVLink)."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """One scheme, per device. Bytes are sent; memory is held at once; seconds are a model."""

    scheme: str
    why_not: str
    """Why it is not possible; empty where it is."""
    collectives: dict[str, int]
    """How many of each kind the compiled value contains, loops counted by their trips."""
    gradient_collectives: dict[str, int]
    """Likewise the value and gradient."""
    sent: int
    gradient_sent: int
    memory: int
    work: float
    """Floating-point operations of the forward pass, of the busiest device."""
    balance: float
    """Busiest over mean, each stop as long as its busiest device."""
    seconds: float
    """Value and gradient, sending hidden behind arithmetic where the scheme lets it."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `plan` found: the cost of each scheme, and the choice."""

    costs: tuple[Cost, ...]
    choice: str

    def __str__(self) -> str:
        head = f"{'scheme':24}{'sent':>10}{'+ gradient':>12}{'memory':>10}{'balance':>9}{'seconds':>10}"
        lines = [
            f"{c.scheme:24}{c.why_not}"
            if c.why_not
            else f"{c.scheme:24}{_size(c.sent):>10}{_size(c.gradient_sent):>12}{_size(c.memory):>10}{c.balance:>9.2f}"
            f"{c.seconds:>10.3g}{'  ←' if c.scheme == self.choice else ''}"
            for c in self.costs
        ]
        return "\n".join([head, *lines])


def plan(
    T: int,
    S: int,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: DTypeLike,
    devices: int,
    flops_per_second: float,
    bandwidth: float,
    mask: Mask | None = None,
) -> Comparison:
    """What each scheme sends, holds and computes on one device for one layer of one example, and which to take.

        KV = (S/P)·Hkv·2D·e,   Q = (T/P)·H·D·e,   h stops beyond the first,   e, acc = bytes of dtype, of arithmetic
        ring          h·(KV + I), for the gradient (h − f)·(KV + I) + h·KV·acc/e + KV more
                      h = P − 1, fewer where a mask rules out; I = 4·S/P, if it looks at positions, and 4·S/P for ids
        all_to_all    (P − 1)/P·(2·Q + c·KV), that again for the gradient; c = max(1, P/Hkv) copies
        gather        (P − 1)·KV, that again for the gradient
        tree          2(P − 1)/P·T·H·(D + 2)·acc: one maximum and one sum; 2(P − 1)/P·T·H·D·e more: the gradient of q
        memory        2·Q + 2·KV (ring), 2·Q + P·KV (gather), 2·Q + c·KV (all_to_all), + lse: the value alone
        work          4·D·H·pairs; the gradient 2.5 times that more
        seconds       max(work/F, sent/W) for a ring, their sum else

    f is how many hops value and gradient share: the first, and those before the first three of one length in a row. The
    second and third of these are a loop; before it the compiler sees that both send the same. all_to_all and gather
    collect the ids of a mask once, for value and gradient; positions are taken to be known before the program runs.
    That is what the compiled programs contain, to the byte; but CPU devices compute bfloat16 in float32 and send it so,
    in twice as many, and the compiler of many TPU chips makes all-reduces of what gather sends, which is up to twice
    that (`benchmarks/results/what_compiles-tpu.md`, of programs that were compiled and not run).

    Args:
      T: queries. S: keys. heads: H. kv_heads: Hkv. head_dim: D, also of the values. dtype: of q, k and v.
      devices: P.
      flops_per_second: F, of one device, as achieved: peak × efficiency.
      bandwidth: W, bytes per second over one link, one way: as measured, or what the vendor states,
        `LINKS["TPU v5e"].bandwidth`; there are "TPU v5e", "TPU v5p", "TPU v6e" and "H200".
      mask: which pairs are allowed; work and balance follow its block states on pieces of shards (PARTIAL counts half).

    Returns:
      Comparison(costs, choice); `print` shows a table. The choice is the least seconds among what is possible.

    Raises:
      TypeError, ValueError: a size is not a whole number from 1 to 2**53, kv_heads does not divide heads, the dtype is
        not floating point, a rate is not a number above zero, or the mask is not one that a sequence in pieces can
        have, or T or S is more than 2**31 with a mask.

    Memory: with a mask 4 bytes for each query and key and about 2,048² block states, else none; q, k and v are not
      formed.

    Source: Liu, Zaharia and Abbeel 2023 (when a ring hides what it sends); Jacobs et al. 2023.

    Example:
      >>> import jattn
      >>> p = jattn.sharding.plan(2**20, 2**20, heads=32, kv_heads=8, head_dim=128, dtype="bfloat16", devices=64,
      ...                         flops_per_second=4e14, bandwidth=5e10, mask=jattn.masks.causal())
      >>> p.choice
      'ring, zigzag'
      >>> jattn.sharding.LINKS["TPU v5e"].bandwidth  # 400 GB/s, over four links, both ways
      50000000000.0
    """
    sizes = {"T": T, "S": S, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "devices": devices}
    T, S, H, Hkv, D, P = (_errors.count("plan", name, n, least=1) for name, n in sizes.items())
    for name, n in sizes.items():
        if n > 2**53:  # beyond it the figures, which are products of these, would leave the range of float64
            remedy = "Plan what a machine can hold."
            got = {name: f"a number of {int(n).bit_length()} bits"}
            _errors.fail(ValueError, "plan", f"{name} must be at most 2**53", remedy, **got)
    group_size("plan", H, Hkv, "heads must be a multiple of kv_heads", heads=str(H), kv_heads=str(Hkv))
    e = _errors.dtype("plan", dtype, "Give the dtype of q, k and v, as in dtype='bfloat16'.").itemsize
    F, W = _rate("flops_per_second", flops_per_second), _rate("bandwidth", bandwidth)
    if mask is not None:
        mask = of_shards("plan", mask)
        for name, n in (("T", T), ("S", S)):
            if n - 1 > _errors.MOST:
                must = f"{name} must be at most 2**31 with a mask, whose positions are int32"
                _errors.fail(
                    ValueError, "plan", must, "Plan a shorter sequence, or leave the mask out.", **{name: str(n)}
                )
        mask.validate("plan", T, S, True)
    layer = _Layer(T, S, H, Hkv, D, P, e, F, W, mask)
    costs = [*_rings(layer), _all_to_all(layer), _gather(layer), *_tree(layer), *_rings_of_all_to_all(layer)]
    possible = [c for c in costs if not c.why_not]
    return Comparison(tuple(costs), min(possible, key=lambda c: c.seconds).scheme if possible else "none")


@dataclasses.dataclass(frozen=True, eq=False)
class _Layer:
    """What `plan` is asked about, in the letters of its formulas. Arrays are in bytes, as one device holds them."""

    T: int
    S: int
    H: int
    Hkv: int
    D: int
    P: int
    e: int
    """Bytes of the dtype."""
    F: float
    """Floating-point operations per second."""
    W: float
    """Bytes per second over one link, one way."""
    mask: Mask | None

    @property
    def acc(self) -> int:
        """Bytes of the dtype of the arithmetic."""
        return max(4, self.e)

    @property
    def kv(self) -> int:
        return -(-self.S // self.P) * self.Hkv * 2 * self.D * self.e

    @property
    def q(self) -> int:
        return -(-self.T // self.P) * self.H * self.D * self.e

    @property
    def lse(self) -> int:
        return -(-self.T // self.P) * self.H * self.acc

    @property
    def k_ids(self) -> int:
        """An int32 for each key."""
        return -(-self.S // self.P) * 4

    @property
    def leaf_axes(self) -> list[tuple[int, str]]:
        """The leaves of the mask with an entry a row, by identity, and whether the rows are queries or keys."""
        pairs = zip(jax.tree.leaves(self.mask), leaf_axes(self.mask), strict=True)
        return [(id(leaf), side) for leaf, side in pairs if side]

    @property
    def of_keys(self) -> int:
        """How many leaves of the mask have an entry a key."""
        return sum(side == "k" for _, side in self.leaf_axes)

    @property
    def ids(self) -> list[int]:
        """Of each leaf of the mask with an entry a row; what q and k share is collected once."""
        rows = {"q": -(-self.T // self.P) * 4, "k": self.k_ids}
        return list({leaf: rows[side] for leaf, side in self.leaf_axes}.values())

    @property
    def uneven(self) -> str:
        """Why the sequences cannot be divided among the devices; empty where they can."""
        return "" if self.T % self.P == 0 and self.S % self.P == 0 else f"T and S must be multiples of {self.P}"

    @property
    def every_pair(self) -> "_Share":
        return _Share(float(self.T) * self.S, 1.0)

    def share(self, P: int, *, synchronous: bool = True) -> "_Share":
        """Of P contiguous shards; where there are none, as if every pair were allowed."""
        if self.uneven or self.mask is None:
            return self.every_pair
        return _work(self.mask, self.orders(P), P, synchronous=synchronous)

    def orders(self, P: int, name: str = "contiguous") -> Any:
        """Where the rows of P shards stand, which a mask asks for: None without one, at any length."""
        if self.mask is None:
            return None, None
        orders = (np.arange(n, dtype=np.int32) for n in (self.T, self.S))
        if name == "zigzag":
            orders = (zigzag(o, P) for o in orders)
        q, k = (o.reshape(P, -1) for o in orders)
        return q, k

    def cost(
        self, scheme: str, why_not: str, traffic: "_Traffic", memory: int, share: "_Share", *, hidden: bool
    ) -> Cost:
        """With `hidden`, sending takes place behind arithmetic."""
        value, gradient, sent, gradient_sent = traffic
        work = 4 * self.D * self.H * share.pairs / self.P * share.balance
        once, more = work / self.F, 2.5 * work / self.F
        link, link_back = sent / self.W, gradient_sent / self.W
        seconds = max(once, link) + max(more, link_back) if hidden else once + more + link + link_back
        return Cost(scheme, why_not, value, gradient, sent, gradient_sent, memory, work, share.balance, seconds)


class _Share(NamedTuple):
    """How many pairs are computed, and busiest over mean."""

    pairs: float
    balance: float


class _Traffic(NamedTuple):
    """What one device sends: collectives of the value, of value and gradient; bytes of the value, more of the
    gradient."""

    collectives: dict[str, int]
    gradient_collectives: dict[str, int]
    sent: int
    gradient_sent: int


def _rate(name: str, rate: float) -> float:
    """A number above zero."""
    remedy = "Measure one step on one device, and one transfer between two."
    held = _errors.reals(rate)
    if held is None or held.ndim or np.asarray(rate).dtype == np.bool_:
        _errors.fail(
            TypeError, "plan", f"{name} must be a real number", remedy, **{name: f"of type {type(rate).__name__}"}
        )
    if not held > 0:
        _errors.fail(ValueError, "plan", f"{name} must be above zero", remedy, **{name: str(rate)})
    return float(held)


def _ring_traffic(layer: _Layer, R: int, orders: Any, kv: int) -> _Traffic:
    """Of a ring of R devices, around which `kv` bytes of keys and values travel."""
    ring = RingSchedule.past(None, R, hop_distances(layer.mask, orders, R))
    h = len(ring.strides)
    shared = min(h, 1 + len(list(itertools.takewhile(lambda run: run[1] == 1, ring.runs))))  # f of the formula
    ids = (layer.mask is not None and layer.mask.looks_at_positions) + layer.of_keys
    hop, home = kv + ids * layer.k_ids * (layer.P // R), int(h > 0)
    permutes = h * (2 + ids), (2 * h - shared) * (2 + ids) + 2 * (h + home)
    value, gradient = ({"collective-permute": n} for n in permutes)
    return _Traffic(value, gradient, h * hop, (h - shared) * hop + h * (kv * layer.acc // layer.e) + home * kv)


def _rings(layer: _Layer) -> Iterator[Cost]:
    T, S, P = layer.T, layer.S, layer.P
    for name in ("contiguous", "zigzag") if layer.mask is not None else ("contiguous",):
        halves = name == "zigzag" and (T % (2 * P) or S % (2 * P))
        why = layer.uneven or ("T and S must be multiples of twice the devices" if halves else "")
        orders = (None, None) if why else layer.orders(P, name)
        share = layer.every_pair if why or layer.mask is None else _work(layer.mask, orders, P)
        traffic, memory = _ring_traffic(layer, P, orders, layer.kv), 2 * layer.q + 2 * layer.kv + layer.lse
        yield layer.cost(f"ring, {name}", why, traffic, memory, share, hidden=True)


def _all_to_all(layer: _Layer) -> Cost:
    P, kv = layer.P, max(1, layer.P // layer.Hkv) * layer.kv
    swapped = (P - 1) * (2 * layer.q + kv) // P
    value, gradient = ({"all-to-all": n, "all-gather": len(layer.ids)} for n in (4, 8))
    traffic = _Traffic(value, gradient, swapped + (P - 1) * sum(layer.ids), swapped)
    why = layer.uneven or _cannot_divide(layer.H, layer.Hkv, P)
    share = _Share(layer.share(P).pairs, 1.0)  # every device has all rows of its heads
    return layer.cost("all_to_all", why, traffic, 2 * layer.q + kv + layer.lse, share, hidden=False)


def _gather(layer: _Layer) -> Cost:
    P, kv = layer.P, layer.kv
    value, gradient = ({"all-gather": 2 + layer.of_keys, "reduce-scatter": n} for n in (0, 2))
    traffic = _Traffic(value, gradient, (P - 1) * (kv + layer.of_keys * layer.k_ids), (P - 1) * kv)
    share, memory = layer.share(P, synchronous=False), 2 * layer.q + P * kv + layer.lse
    return layer.cost("gather", layer.uneven, traffic, memory, share, hidden=False)


def _tree(layer: _Layer) -> Iterator[Cost]:
    """For queries so few that they are on every device."""
    T, H, D, P = layer.T, layer.H, layer.D, layer.P
    if T < P:
        sent, more = (2 * (P - 1) * T * H * n // P for n in ((D + 2) * layer.acc, D * layer.e))
        traffic = _Traffic({"all-reduce": 2}, {"all-reduce": 3}, sent, more)
        why = "" if layer.S % P == 0 else f"S must be a multiple of {P}"
        yield layer.cost("tree", why, traffic, 2 * T * H * D * layer.e + layer.kv, layer.every_pair, hidden=False)


def _rings_of_all_to_all(layer: _Layer) -> Iterator[Cost]:
    """P = R·u: a ring of R groups, in each of which u devices exchange sequence for heads."""
    P = layer.P
    for u in range(2, P):
        if P % u or layer.uneven or _cannot_divide(layer.H, layer.Hkv, u):
            continue
        R, kv = P // u, layer.kv * max(1, u // layer.Hkv)
        swapped = (u - 1) * (2 * layer.q + kv) // u
        ring = _ring_traffic(layer, R, layer.orders(R), kv)
        traffic = _Traffic(
            {"all-to-all": 4} | ring.collectives | {"all-gather": len(layer.ids)},
            {"all-to-all": 8} | ring.gradient_collectives | {"all-gather": len(layer.ids)},
            swapped + ring.sent + (u - 1) * sum(layer.ids),
            swapped + ring.gradient_sent,
        )
        memory = 2 * layer.q + 2 * kv + layer.lse
        yield layer.cost(f"ring_all_to_all, {R} × {u}", "", traffic, memory, layer.share(R), hidden=True)


def _cannot_divide(H: int, K: int, P: int) -> str:
    if H % P:
        return f"{H} heads cannot be divided among {P} devices"
    return f"{K} key/value heads cannot be divided among {P} devices" if K % P and P % K else ""


def _work(mask: Mask, orders: Any, P: int, *, synchronous: bool = True) -> _Share:
    """The allowed pairs, and busiest over mean: of a ring, whose every stop waits for all, or of whole devices."""
    states, q_rows, k_rows = block_states(mask, orders, max(2, min(16, 2048 // P)))
    share = np.asarray(states) / FULL
    allowed = share.reshape(P, share.shape[0] // P, P, -1).sum((1, 3)) * (q_rows * k_rows)
    total = allowed.sum()
    if total == 0:
        return _Share(0.0, 1.0)
    i = np.arange(P)
    stops = allowed[i, (i - i[:, None]) % P]  # at stop d each device has the shard d before its own
    busiest = stops.max(1).sum() if synchronous else allowed.sum(1).max()
    return _Share(float(total), float(busiest * P / total))


def _size(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"
