"""The value and the gradient by cuDNN's flash attention.

The calls that it takes are few (`refusal`), and it has no jvp: tangents and higher orders are the loops of the engine,
which start from its (out, lse). Its own backward pass drops the cotangent of lse. What that one lacks is attention
again, whose values are the keys: with g the cotangent of lse and c the scale,

    dq += c·g·attention(q, k, v=k),    dk += c·dv of the vjp of attention(q, k, v=k) for the cotangent g·q

Beside them the cotangent of a bias lacks g_t p_ts, one number a pair, which no attention returns: a backward pass whose
bias is active runs as loops where a cotangent of lse is not 0.

Operands that are not finite run as loops, and so does a bias where the logits of a query are so large that their
differences are not exact (`holds`).

Source: the gradient of lse_t = log Σ_s exp(c⟨q_t, k_s⟩ + b_ts) is c Σ_s p_ts k_s with respect to q_t, c p_ts q_t with
respect to k_s, and p_ts with respect to b_ts.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _jax, masks
from jattn.engine import tuning
from jattn.engine.backward import Backward
from jattn.engine.batching import BatchLevels, FiniteKernel
from jattn.engine.kernels.layout import Leaf
from jattn.engine.kernels.plans import repeated_for_cotangents
from jattn.engine.plan import Operands, Plan, all_finite, select_active
from jattn.engine.schedule import PlannedFunction
from jattn.engine.tangent import Tangent

PLATFORM = "gpu"
DTYPES = ("bfloat16", "float16")
MOST_WIDTH = 128
WIDE_GENERATION, WIDE = 9, 256
"""From this compute capability on, heads are up to so wide, as JAX has it of cuDNN."""


def refusal(fun: PlannedFunction, levels: BatchLevels, avals: Sequence[Any]) -> str | None:
    """Why cuDNN cannot do a pass, in words; None if it can. The arguments are those of `support.refusal`."""
    plan = fun.plan
    if isinstance(fun, Tangent):
        return "cuDNN has no jvp"
    if fun.platform != PLATFORM:
        return f"cuDNN runs on an NVIDIA GPU, and the platform is {fun.platform}"
    own = [jax.ShapeDtypeStruct(a.shape[len(axes) :], a.dtype) for a, axes in zip(avals, levels.operands, strict=True)]
    x: Operands = jax.tree.unflatten(fun.tree, own[: fun.tree.num_leaves])
    if not (plan.static_lengths and all(isinstance(n, int) for n in levels.sizes)):
        return "a length or the batch is a symbol"
    dtypes = {str(np.dtype(a.dtype)) for a in (x.q, x.k, x.v)}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        return f"cuDNN takes q, k and v in one dtype, {' or '.join(DTYPES)}, not in {' and '.join(sorted(dtypes))}"
    widths = x.q.shape[1], x.v.shape[1]
    most = WIDE if _jax.gpu_generation() >= WIDE_GENERATION else MOST_WIDTH
    if widths[0] != widths[1] or widths[0] % 8 or widths[0] > most:
        up_to = f"up to {MOST_WIDTH} ({WIDE} on a GPU of compute capability {WIDE_GENERATION})"
        return f"cuDNN takes heads of one width, a multiple of 8 {up_to}, not of {widths[0]} and {widths[1]}"
    options = {"score": plan.score, "sink": x.sink, "dropout": x.dropout}
    options |= {"positions": x.q_positions if x.k_positions is None else x.k_positions}
    given = [name for name, option in options.items() if option is not None]
    if given:
        return f"cuDNN has no {' and no '.join(given)}"
    return of_mask(plan, x) or of_bias(x) or of_lengths(fun, x)


def of_mask(plan: Plan, x: Operands) -> str | None:
    if x.mask is None:
        return None
    pattern = x.mask.pattern()
    if pattern is None:
        return "cuDNN knows full, causal, lengths, a window to the left, and no other mask"
    if pattern.left is not None and not pattern.causal:
        return "cuDNN bounds a window to the left where it is causal, as in window(left, right=0)"
    if pattern.left is not None and (pattern.q_lengths or pattern.k_lengths):
        return "cuDNN has no lengths beside a window"
    if pattern.causal and plan.T != plan.S:
        return "cuDNN aligns a causal mask by row numbers, and T and S differ"
    return None


def of_bias(x: Operands) -> str | None:
    if x.bias is None:
        return None
    if x.bias.dtype != x.q.dtype:
        return f"cuDNN takes a bias in the dtype of q, k and v, {np.dtype(x.q.dtype)}, not in {np.dtype(x.bias.dtype)}"
    if x.mask is not None and (pattern := x.mask.pattern()) is not None and pattern.left is not None:
        return "cuDNN has no bias beside a window"
    return None


def of_lengths(fun: PlannedFunction, x: Operands) -> str | None:
    """JAX hands cuDNN a gradient of even lengths only, whether there is a bias or not."""
    T, S = fun.plan.T, fun.plan.S
    if (x.bias is None and not isinstance(fun, Backward)) or T % 2 == S % 2 == 0:
        return None
    return f"cuDNN has a {'gradient' if x.bias is None else 'bias'} where T and S are even, and they are {T} and {S}"


def kernel(fun: PlannedFunction, levels: BatchLevels) -> FiniteKernel:
    """A forward or backward pass over all heads that nothing refuses."""

    def run(*xs: jax.Array) -> list[jax.Array]:
        call = Call(fun, *repeated_for_cotangents(fun, levels, xs))
        return call.backward(fun) if isinstance(fun, Backward) else call.forward()

    return FiniteKernel(run, partial(holds, fun, levels))


def holds(fun: PlannedFunction, levels: BatchLevels, xs: Sequence[jax.Array], ys: Sequence[jax.Array]) -> jax.Array:
    """Whether cuDNN's results are those of the definition, for a whole batch: if not, the loops run.

    A bias may hold any finite number where each query has an lse up to `tuning.LARGEST_SCORE` in magnitude, or attends
    to nothing: a large negative entry hides one pair, and a query of nothing else has differences that are not exact.
    """
    leaves = fun.tree.num_leaves
    x: Operands = jax.tree.unflatten(fun.tree, xs[:leaves])
    found = all_finite(fun.plan, x)
    if x.bias is None:
        return found
    m = xs[leaves + 1] if isinstance(fun, Backward) else ys[1]
    found &= jnp.isfinite(x.bias).all() & ((jnp.abs(m) <= tuning.LARGEST_SCORE) | (m == -jnp.inf)).all()
    if isinstance(fun, Backward) and select_active(fun.tree, fun.argnums, fun.argnums).bias is not None:
        found &= ~Call(fun, levels, xs).dlse().any()
    return found


class Call:
    """The operands of a pass as cuDNN takes them: [B, G, T, D] of queries, [B, 1, S, D] of keys, [B, G, T, S] of pairs.

    B are the levels of the batch that keys, values or lengths have, and G the others: the query heads of one key head.
    A bias that serves several queries, keys or heads is repeated for them in memory.
    """

    def __init__(self, fun: PlannedFunction, levels: BatchLevels, xs: Sequence[jax.Array]):
        self.plan: Plan = fun.plan
        self.levels: BatchLevels = levels
        n = fun.tree.num_leaves
        leaves = [
            Leaf(x.reshape(-1, *x.shape[len(own) :]), own, "") for x, own in zip(xs, levels.operands, strict=True)
        ]
        self.x: Operands = jax.tree.unflatten(fun.tree, leaves[:n])
        self.more: list[Leaf] = leaves[n:]
        pattern: Any = (masks.full() if self.x.mask is None else self.x.mask).pattern()  # its lengths are leaves here
        assert pattern is not None, "a mask that cuDNN does not know was refused before"
        self.causal: bool = pattern.causal
        self.left: int | None = pattern.left
        of_keys = self.x.k, self.x.v, *pattern.q_lengths, *pattern.k_lengths
        self.batch: tuple[int, ...] = tuple(sorted({level for leaf in of_keys for level in leaf.own}))
        self.group: tuple[int, ...] = tuple(n for n in range(len(levels.sizes)) if n not in self.batch)
        self.lengths: tuple[jax.Array, jax.Array] | None = None
        if pattern.q_lengths or pattern.k_lengths:
            self.lengths = self.least(pattern.q_lengths, self.plan.T), self.least(pattern.k_lengths, self.plan.S)
        self.own_scale: float = self.x.q.array.shape[-1] ** -0.5
        # cuDNN has its scale when it is compiled. Another one is a factor of q; of this one the factor is 1.
        self.factor: jax.Array = self.of_queries(self.x.scale)[..., None, None] / self.own_scale
        q = self.of_queries(self.x.q)
        self.q: jax.Array = (q.astype(self.plan.dtype) * self.factor).astype(q.dtype)
        self.k, self.v = (self.of_keys(leaf)[:, None] for leaf in (self.x.k, self.x.v))
        self.bias: jax.Array | None = None
        if self.x.bias is not None:
            bias = self.of_queries(self.x.bias)
            self.bias = jnp.broadcast_to(bias, (*bias.shape[:2], self.plan.T, self.plan.S))

    def spread(self, leaf: Leaf, levels: Sequence[int]) -> jax.Array:
        """A leaf with these levels in their order, repeated along those that it lacks."""
        x = leaf.array.reshape(*(self.levels.sizes[level] for level in leaf.own), *leaf.array.shape[1:])
        return self.levels.spread(x, leaf.own, levels)

    def count(self, levels: Sequence[int]) -> int:
        return int(np.prod([self.levels.sizes[level] for level in levels], dtype=int))

    def of_queries(self, leaf: Leaf) -> jax.Array:
        """[B, G, …]."""
        x = self.spread(leaf, (*self.batch, *self.group))
        return x.reshape(self.count(self.batch), self.count(self.group), *x.shape[len(self.levels.sizes) :])

    def of_keys(self, leaf: Leaf) -> jax.Array:
        """[B, …]."""
        x = self.spread(leaf, self.batch)
        return x.reshape(self.count(self.batch), *x.shape[len(self.batch) :])

    def gather(self, y: jax.Array, own: Sequence[int], *, grouped: bool) -> jax.Array:
        """[B, G, …], or [B, …] if not grouped → the levels `own`, summed over the others."""
        levels = (*self.batch, *self.group) if grouped else self.batch
        y = y.reshape(*(self.levels.sizes[level] for level in levels), *y.shape[2 if grouped else 1 :])
        y = y.sum(tuple(axis for axis, level in enumerate(levels) if level not in own))
        left = [level for level in levels if level in own]
        return jnp.moveaxis(y, [left.index(level) for level in own], range(len(own)))

    def least(self, lengths: Sequence[Leaf], rows: int) -> jax.Array:
        """How many rows of each example are filled, [B]."""
        found = jnp.full((self.count(self.batch),), rows, jnp.int32)
        for leaf in lengths:
            found = jnp.minimum(found, self.of_keys(leaf).astype(jnp.int32))
        return found

    def filled(self, rows: int, side: int) -> jax.Array:
        """Which rows of q (side 0) or of k (side 1) have a pair that is allowed, [B, 1, rows]."""
        if self.lengths is None:
            return jnp.ones((1, 1, rows), bool)
        here, there = self.lengths[side], self.lengths[1 - side]
        return ((jnp.arange(rows, dtype=jnp.int32)[None] < here[:, None]) & (there > 0)[:, None])[:, None]

    def allowed(self) -> jax.Array:
        """Which pairs are, [B, 1, T, S], where there is no window. cuDNN leaves open what it returns of the others."""
        T, S = self.plan.T, self.plan.S
        pairs = self.filled(T, 0)[..., None] & self.filled(S, 1)[..., None, :]
        return pairs & jnp.tri(T, S, dtype=bool)[None, None] if self.causal else pairs

    def dlse(self) -> jax.Array:
        """The cotangent of lse, [B, G, T], 0 of the queries that attend to nothing."""
        return jnp.where(self.filled(self.plan.T, 0), self.of_queries(self.more[-1]), 0)

    def attend(self, q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """(out [B, G, T, D], lse [B, G, T]) of cuDNN, which leaves open what the rows beyond a length hold."""
        lengths: dict[str, Any] = {}
        if self.lengths is not None:
            most = (self.plan.T, self.plan.S)
            q_seqlen, kv_seqlen = (jnp.clip(n, 1, rows) for n, rows in zip(self.lengths, most, strict=True))
            lengths = {"q_seqlen": q_seqlen, "kv_seqlen": kv_seqlen}
        kinds = _jax.cudnn.MaskType
        of_lengths = kinds.PADDING_CAUSAL if self.causal else kinds.PADDING
        without = kinds.CAUSAL if self.causal else kinds.NO_MASK
        out, lse = _jax.cudnn.dot_product_attention(
            q, k, v, bias, **lengths, scale=self.own_scale, mask_type=of_lengths if lengths else without,
            qkv_layout="BNTH", sliding_window_length=None if self.left is None else self.left + 1,
            return_residual=True,
        )  # fmt: skip
        return out, lse

    def forward(self) -> list[jax.Array]:
        """(out, m, log_sum)."""
        out, lse = self.attend(self.q, self.k, self.v, self.bias)
        filled, dtype = self.filled(self.plan.T, 0), self.plan.dtype
        out = jnp.where(filled[..., None], out.astype(dtype), 0)
        lse = jnp.where(filled, lse.astype(dtype), -jnp.inf)
        found = zip((out, lse, jnp.zeros_like(lse)), self.levels.outputs, strict=True)
        return [self.gather(y, own, grouped=True) for y, own in found]

    def backward(self, fun: Backward) -> list[jax.Array]:
        """The cotangents of the active operands: q, k, v, the bias or the scale."""
        active = select_active(fun.tree, fun.argnums, fun.argnums)
        q_filled, k_filled = self.filled(self.plan.T, 0), self.filled(self.plan.S, 1)[:, 0]
        dout, g = jnp.where(q_filled[..., None], self.of_queries(self.more[-2]), 0), self.dlse()
        (_, lse), pull = jax.vjp(self.attend, self.q, self.k, self.v, self.bias)
        *cotangents, dbias = pull((dout.astype(self.q.dtype), jnp.zeros_like(lse)))
        dq, dk, dv = (y.astype(self.plan.dtype) for y in cotangents)
        if active.bias is None:  # where the bias is active, g is 0 (`holds`)
            more_q, more_k = jax.lax.cond(
                (g != 0).any(), self.of_lse, lambda g: (jnp.zeros_like(dq), jnp.zeros_like(dk)), g
            )
            dq, dk = dq + more_q, dk + more_k
        dq = jnp.where(q_filled[..., None], dq, 0)
        dk, dv = (jnp.where(k_filled[..., None], y[:, 0], 0) for y in (dk, dv))
        found = {"q": dq * self.factor, "k": dk, "v": dv}
        out = {}
        for name, y in found.items():
            if (i := getattr(active, name)) is not None:
                out[i] = self.gather(y, getattr(self.x, name).own, grouped=name == "q")
        if active.scale is not None:
            q = self.of_queries(self.x.q).astype(self.plan.dtype)
            dscale = (q * dq).sum((2, 3)) / self.own_scale
            out[active.scale] = self.gather(dscale, self.x.scale.own, grouped=True)
        if active.bias is not None:
            dbias = jnp.where(self.allowed(), dbias.astype(self.plan.dtype), 0)
            repeated = tuple(axis for axis in (2, 3) if self.x.bias.array.shape[axis - 1] < dbias.shape[axis])
            dbias = dbias.sum(repeated, keepdims=True)
            out[active.bias] = self.gather(dbias, self.x.bias.own, grouped=True)
        leaves = jax.tree.leaves(self.x, is_leaf=lambda a: isinstance(a, Leaf))
        return [out[i].astype(leaves[i].array.dtype) for i in fun.argnums]

    def of_lse(self, g: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What dq and dk have beside cuDNN's own, of the cotangent g of lse, which is not all 0.

        It is brought to 1 before it is rounded: in float16 a small one would be 0.
        """
        dtype, largest = self.plan.dtype, jnp.max(jnp.abs(g))
        (mean, lse), pull = jax.vjp(lambda v: self.attend(self.q, self.k, v, self.bias), self.k)
        weighted = (g / largest)[..., None] * self.q.astype(dtype)
        (dv,) = pull((weighted.astype(self.q.dtype), jnp.zeros_like(lse)))
        return self.own_scale * g[..., None] * mean.astype(dtype), self.own_scale * largest * dv.astype(dtype)
