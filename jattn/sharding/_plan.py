"""What each scheme would cost, before anything runs."""

import dataclasses
import itertools
from collections.abc import Mapping
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
      TypeError, ValueError: a size is not a whole number of at least 1, kv_heads does not divide heads, the dtype is
        not floating point, a rate is not a number above zero, or the mask is not one that a sequence in pieces can
        have.

    Memory: 4 bytes for each query and key, and with a mask about 2,048² block states; q, k and v are not formed.

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
    T, S, H, K, D, P = (_errors.count("plan", name, n, least=1) for name, n in sizes.items())
    group_size("plan", H, K, "heads must be a multiple of kv_heads", heads=str(H), kv_heads=str(K))
    e = _errors.dtype("plan", dtype, "Give the dtype of q, k and v, as in dtype='bfloat16'.").itemsize
    for name, rate in (("flops_per_second", flops_per_second), ("bandwidth", bandwidth)):
        remedy = "Measure one step on one device, and one transfer between two."
        if np.ndim(rate) or np.asarray(rate).dtype.kind not in "iuf":
            got = {name: f"of type {type(rate).__name__}"}
            _errors.fail(TypeError, "plan", f"{name} must be a real number", remedy, **got)
        if not rate > 0:
            _errors.fail(ValueError, "plan", f"{name} must be above zero", remedy, **{name: str(rate)})
    acc = max(4, e)
    kv, q = -(-S // P) * K * 2 * D * e, -(-T // P) * H * D * e
    lse = -(-T // P) * H * acc
    if mask is not None:
        mask = of_shards("plan", mask)
        mask.validate("plan", T, S, True)
    rows = {"q": -(-T // P) * 4, "k": -(-S // P) * 4}
    of_rows = [(id(x), axes) for x, axes in zip(jax.tree.leaves(mask), leaf_axes(mask), strict=True) if axes]
    ids = {x: rows[side] for x, side in of_rows}  # what q and k share is collected once
    of_keys = sum(side == "k" for _, side in of_rows)
    whole = T % P == 0 and S % P == 0
    uneven = "" if whole else f"T and S must be multiples of {P}"
    flop = 4 * D * H

    def cost(
        scheme: str, why: str, sent: float, back: float, memory: int, kinds: Any, share: Any, hidden: bool
    ) -> Cost:
        pairs, balance = share
        work = flop * pairs / P * balance
        once, more = work / flops_per_second, 2.5 * work / flops_per_second
        link, link_back = sent / bandwidth, back / bandwidth
        seconds = max(once, link) + max(more, link_back) if hidden else once + more + link + link_back
        return Cost(scheme, why, kinds[0], kinds[1], int(sent), int(back), memory, work, balance, seconds)

    def around(R: int, orders: Any, kv: int) -> tuple[tuple[int, int], int, int]:
        """Of a ring of R: permutes of the value, and with its gradient; bytes of the value, more of the gradient."""
        ring = RingSchedule.past(None, R, hop_distances(mask, orders, R))
        h, alone = len(ring.strides), itertools.takewhile(lambda run: run[1] == 1, ring.runs)
        f = min(h, 1 + len(list(alone)))
        few = (mask is not None and mask.looks_at_positions) + of_keys
        keys, home = kv + few * rows["k"] * (P // R), int(h > 0)
        counts = h * (2 + few), (2 * h - f) * (2 + few) + 2 * (h + home)
        return counts, h * keys, (h - f) * keys + h * (kv * acc // e) + home * kv

    def contiguous(P: int, synchronous: bool = True) -> tuple[float, float]:
        return _work(mask, _orders("contiguous", T, S, P), P, synchronous=synchronous) if whole else (float(T) * S, 1.0)

    costs: list[Cost] = []
    kinds: Any
    for name in ("contiguous", "zigzag") if mask is not None else ("contiguous",):
        halves = name == "zigzag" and (T % (2 * P) or S % (2 * P))
        why = uneven or ("T and S must be multiples of twice the devices" if halves else "")
        orders = (None, None) if why else _orders(name, T, S, P)
        share = (float(T) * S, 1.0) if why else _work(mask, orders, P)
        permutes, sent, back = around(P, orders, kv)
        kinds = [{"collective-permute": n} for n in permutes]
        costs.append(cost(f"ring, {name}", why, sent, back, 2 * q + 2 * kv + lse, kinds, share, True))
    even = contiguous(P)[0], 1.0
    copies = max(1, P // K)
    swapped = (P - 1) * (2 * q + copies * kv) // P
    kinds = [{"all-to-all": n, "all-gather": len(ids)} for n in (4, 8)]
    memory, sent = 2 * q + copies * kv + lse, swapped + (P - 1) * sum(ids.values())
    costs.append(cost("all_to_all", uneven or _cannot_divide(H, K, P), sent, swapped, memory, kinds, even, False))
    kinds = [{"all-gather": 2 + of_keys, "reduce-scatter": n} for n in (0, 2)]
    back, sent = (P - 1) * kv, (P - 1) * (kv + of_keys * rows["k"])
    costs.append(cost("gather", uneven, sent, back, 2 * q + P * kv + lse, kinds, contiguous(P, False), False))
    if T < P:
        sent, back = (2 * (P - 1) * T * H * n // P for n in ((D + 2) * acc, D * e))
        why = "" if S % P == 0 else f"S must be a multiple of {P}"
        kinds = {"all-reduce": 2}, {"all-reduce": 3}
        costs.append(cost("tree", why, sent, back, 2 * T * H * D * e + kv, kinds, (float(T) * S, 1.0), False))
    for u in [u for u in range(2, P) if P % u == 0 and not uneven and not _cannot_divide(H, K, u)]:
        R, more = P // u, max(1, u // K)
        swapped, hop = (u - 1) * (2 * q + more * kv) // u, kv * more
        permutes, sent, back = around(R, _orders("contiguous", T, S, R), hop)
        kinds = [
            {"all-to-all": n, "collective-permute": m, "all-gather": len(ids)}
            for n, m in zip((4, 8), permutes, strict=True)
        ]
        name, sent = f"ring_all_to_all, {R} × {u}", swapped + sent + (u - 1) * sum(ids.values())
        costs.append(cost(name, "", sent, swapped + back, 2 * q + 2 * hop + lse, kinds, contiguous(R), True))
    able = [c for c in costs if not c.why_not]
    return Comparison(tuple(costs), min(able, key=lambda c: c.seconds).scheme if able else "none")


def _cannot_divide(H: int, K: int, P: int) -> str:
    if H % P:
        return f"{H} heads cannot be divided among {P} devices"
    return f"{K} key/value heads cannot be divided among {P} devices" if K % P and P % K else ""


def _orders(name: str, T: int, S: int, P: int) -> tuple[np.ndarray, np.ndarray]:
    orders = (np.arange(n, dtype=np.int32) for n in (T, S))
    if name == "zigzag":
        orders = (zigzag(o, P) for o in orders)
    q, k = (o.reshape(P, -1) for o in orders)
    return q, k


def _work(mask: Mask | None, orders: Any, P: int, *, synchronous: bool = True) -> tuple[float, float]:
    """The allowed pairs, and busiest over mean: of a ring, whose every stop waits for all, or of whole devices."""
    T, S = (float(o.size) for o in orders)
    if mask is None:
        return T * S, 1.0
    states, q_rows, k_rows = block_states(mask, orders, max(2, min(16, 2048 // P)))
    share = np.asarray(states) / FULL
    allowed = share.reshape(P, share.shape[0] // P, P, -1).sum((1, 3)) * (q_rows * k_rows)
    total = allowed.sum()
    if total == 0:
        return 0.0, 1.0
    i = np.arange(P)
    stops = allowed[i, (i - i[:, None]) % P]  # at stop d each device has the shard d before its own
    busiest = stops.max(1).sum() if synchronous else allowed.sum(1).max()
    return float(total), float(busiest * P / total)


def _size(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"
