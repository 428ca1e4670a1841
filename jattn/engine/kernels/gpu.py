"""A kernel as a program of an NVIDIA GPU: Pallas, in the form that Triton compiles.

Each program of the grid has one outer tile, and loops over the inner tiles that it visits: first those without a mask,
then those with one, from a table that lists them; where a head holds what is not finite, all as tiles that are searched
for it. The carry of the fold are values of that loop, held in registers.
Products are on tensor cores: of two factors in 16 bits exactly, of one in two parts (`tile.dot`), of float32 in TF32;
jax.default_matmul_precision("highest") makes them float32, and slow, "bfloat16" one part.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jattn._jax import ManualAxisType, triton
from jattn._jax import pallas as pl
from jattn._numerics import in_kernel, is_half
from jattn._values import Table
from jattn.engine import tuning
from jattn.engine.kernels.kernel import Kernel
from jattn.engine.kernels.layout import Leaf
from jattn.masks import EMPTY, FULL

LARGEST_LOGIT = 2.0**22
"""Where logits are no larger, their difference from a maximum is a subtraction. A derivative pass computes them again:
by the order of up to 128 summands, or a multiply-add of scaling and subtraction, they are up to 64 off the maximum that
the forward pass found, and no weight overflows. Beyond, some could."""


class Visits(NamedTuple):
    """What each outer tile visits. The first three have the levels of the mask, and are flat."""

    own: tuple[int, ...]
    order: Any
    """The inner tiles of each outer tile: the FULL ones, then the PARTIAL ones, then the EMPTY ones."""
    full: Any
    """How many of them are FULL."""
    visited: Any
    """How many are not EMPTY."""
    nonfinite: jax.Array
    """Whether q, k or v of a head is one of `Call.nonfinite_heads`: then every tile is searched for what is not finite,
    as a masked one."""

    @classmethod
    def of(cls, kernel: Kernel) -> "Visits":
        states, grid = kernel.states, kernel.grid
        xp = np if isinstance(states.array, np.ndarray) else jnp
        order = xp.argsort(FULL - states.array, axis=2, stable=True)
        counts = [found.sum(2).astype(np.int32) for found in (states.array == FULL, states.array != EMPTY)]
        flags = []
        for leaf in kernel.call.nonfinite_heads(kernel.rows, LARGEST_LOGIT):
            flags.append(kernel.call.spread(dataclasses.replace(leaf, array=leaf.array > 0)))
        nonfinite = jnp.broadcast_to(flags[0] | flags[1] | flags[2], grid.sizes).any(grid.shared)
        small = np.int16 if grid.inner < 2**15 else np.int32
        order, full, visited = (jnp.asarray(x).reshape(-1) for x in (order.astype(small), *counts))
        return cls(states.own, order, full, visited, nonfinite.astype(jnp.int32).reshape(-1))


def run(kernel: Kernel, *, interpret: bool) -> list[jax.Array]:
    """The outputs of a kernel, [heads kept, ...]."""
    visits = Visits.of(kernel)
    leaves, tree = jax.tree.flatten(kernel.operands)
    leaves = [dataclasses.replace(x, array=x.array.reshape(-1)) if x.role == "" else x for x in leaves]

    def traced(order: Any, full: Any, visited: Any, nonfinite: Any, *refs: Any) -> None:
        of_refs = Visits(visits.own, order, full, visited, nonfinite)
        with in_kernel(_exp if interpret else _exp_by_instruction):
            Program(kernel, of_refs, leaves, tree, refs[: len(leaves)], refs[len(leaves) :]).run()

    # Inside jax.shard_map a kernel is asked how its outputs vary: it is lowered as one device sees it.
    local, heads = {"manual_axis_type": ManualAxisType()}, kernel.grid.steps[0]
    return list(
        pl.pallas_call(
            traced,
            name=kernel.name,
            grid=kernel.grid.steps[:2],
            out_shape=[jax.ShapeDtypeStruct((heads, *y.shape), y.dtype, **local) for y in kernel.outputs],
            compiler_params=triton.CompilerParams(*_warps_and_stages(kernel)),
            interpret=interpret,
        )(visits.order, visits.full, visits.visited, visits.nonfinite, *(x.array for x in leaves))
    )


class Program(NamedTuple):
    """One program of the grid: the fold of an outer tile over the inner tiles that it visits."""

    kernel: Kernel
    visits: Visits
    """Where its tables are in memory."""
    leaves: Sequence[Leaf]
    tree: Any
    """The structure of the operands, whose leaves they are."""
    ins: Sequence[Any]
    outs: Sequence[Any]
    """In memory: first the outputs that `Kernel.finish` gives, then those of each tile."""

    def run(self) -> None:
        kernel, grid = self.kernel, self.kernel.grid
        h, a = pl.program_id(0), pl.program_id(1)
        if not grid.keys_outer:  # the last queries first: beneath a causal mask they take longest
            a = grid.outer - 1 - a
        fixed = self.load(True, h, jnp.int32(0), *kernel.tile_at(a, jnp.int32(0)))

        def of_head(r: Any, carry: Any) -> Any:
            return self.fold_head(fixed, h, a, r, carry)

        carry = tuple(kernel.start(jax.tree.unflatten(self.tree, fixed)))
        heads = grid.count(grid.shared)
        if heads == 1:
            carry = of_head(jnp.int32(0), carry)
        else:
            carry = jax.lax.fori_loop(jnp.int32(0), jnp.int32(heads), of_head, carry)
        values = kernel.finish(carry, jax.tree.unflatten(self.tree, fixed))
        for ref, y, value in zip(self.outs, kernel.outputs, values, strict=False):
            self.store(ref, y.role, h, a, a, value.T if y.across else value)

    def fold_head(self, fixed: Sequence[Any], h: Any, a: Any, r: Any, carry: Any) -> Any:
        """The fold over the tiles of head r of those that share outer tile a. `fixed`: what was loaded before."""
        kernel, grid, visits = self.kernel, self.kernel.grid, self.visits
        b = r * grid.inner
        place = grid.flat(visits.own, h, b) * grid.outer + a

        def loop(begin: Any, end: Any, step: Callable[..., Any], carry: Any) -> Any:
            def numbered(n: Any, carry: Any) -> Any:
                inner = visits.order[place * grid.inner + n].astype(jnp.int32)
                return step(carry, *grid.tile(a, inner))

            return jax.lax.fori_loop(begin, end, numbered, carry)

        def visit(masked: bool, finite: bool) -> Callable[..., Any]:
            def step(carry: Any, i: Any, j: Any) -> Any:
                more = self.load(False, h, b, i, j)
                blocks = [y if x is None else x for x, y in zip(fixed, more, strict=True)]
                after, of_tile = kernel.visit(jax.tree.unflatten(self.tree, blocks), carry, i, j, masked, finite)
                for (ref, role), value in zip(self.of_tile, of_tile, strict=True):
                    self.store(ref, role, h, i, j, value)
                return tuple(after)

            return step

        def nothing(carry: Any, i: Any, j: Any) -> Any:
            for ref, role in self.of_tile:
                self.store(ref, role, h, i, j, jnp.zeros(_block(kernel, role, ref.shape[1:]), ref.dtype))
            return carry

        end = visits.visited[place]
        finite = visits.nonfinite[h] == 0
        unmasked, masked = jnp.where(finite, visits.full[place], 0), jnp.where(finite, end, 0)
        carry = loop(jnp.int32(0), unmasked, visit(False, True), carry)
        carry = loop(unmasked, masked, visit(True, True), carry)
        carry = loop(masked, end, visit(True, False), carry)
        return loop(end, jnp.int32(grid.inner), nothing, carry) if kernel.of_tile else carry

    @property
    def of_tile(self) -> list[tuple[Any, str]]:
        """The outputs of which each tile has its own block, with their roles."""
        outputs = list(zip(self.outs, (y.role for y in self.kernel.outputs), strict=True))
        return outputs[len(outputs) - self.kernel.of_tile :]

    def load(self, fixed: bool, h: Any, b: Any, i: Any, j: Any) -> list[Any]:
        """The blocks of the leaves that are the same at every step, or of those that are not; None for the others."""
        flat = self.kernel.grid.flat
        return [
            _read(self.kernel, x, ref, flat(x.own, h, b), i, j) if _is_fixed(self.kernel, x) == fixed else None
            for x, ref in zip(self.leaves, self.ins, strict=True)
        ]

    def store(self, ref: Any, role: str, h: Any, i: Any, j: Any, value: Any) -> None:
        ref[(h, *_slices(self.kernel, role, ref.shape[1:], i, j))] = value.astype(ref.dtype)


LOG2_E = 1.4426950408889634


def _exp(x: jax.Array) -> jax.Array:
    """e^x, as 2^(x·log₂e): x ≤ 0 is a difference of logits, and weights are out by up to 1.5·|x|·2⁻²⁴ of themselves."""
    return jnp.exp2(x * LOG2_E)


def _exp_by_instruction(x: jax.Array) -> jax.Array:
    """The same, by one instruction, to 2⁻²² of itself, and 0 below 2⁻¹²⁶. That of CUDA's library takes ten."""
    y = jax.ShapeDtypeStruct(x.shape, x.dtype)
    asm, args = "ex2.approx.ftz.f32 $0, $1;", [x * LOG2_E]
    found: Sequence[jax.Array] = triton.elementwise_inline_asm(
        asm, args=args, constraints="=f,f", pack=1, result_shape_dtypes=[y]
    )
    return found[0]


def _warps_and_stages(kernel: Kernel) -> tuple[int, int]:
    call = kernel.call
    x, plan = call.x, call.plan
    width, half = max(x.q.array.shape[2], x.v.array.shape[2]), all(is_half(leaf.array) for leaf in (x.q, x.k, x.v))
    looks_up = any(leaf.role.startswith("n") or leaf.role == "o" for leaf in x.captured)
    warps = tuning.gpu_warps(plan.q_tile, plan.k_tile, width, busy=x.dropout is not None or looks_up)
    rows_of_heads = [leaf for leaf in jax.tree.leaves(kernel.operands) if leaf.role in ("qd", "kd")]
    crowded = kernel.grid.count(kernel.grid.shared) > 1 or not all(is_half(leaf.array) for leaf in rows_of_heads)
    return warps, tuning.gpu_stages(kernel.name, width, half=half, crowded=crowded)


def _is_fixed(kernel: Kernel, leaf: Leaf) -> bool:
    """Whether the block of a leaf is the same at every step of the fold."""
    grid = kernel.grid
    varies = "qk" if grid.diagonals else "qo" if grid.keys_outer else "ko"
    return not set(varies) & set(leaf.role) and not set(leaf.own) & set(grid.shared)


def _letters(role: str) -> str:
    return role if len(role) > 1 else "1" + role


def _block(kernel: Kernel, role: str, shape: Sequence[int]) -> tuple[int, ...]:
    sizes = {"q": kernel.call.plan.q_tile, "k": kernel.call.plan.k_tile}
    return tuple(sizes.get(letter, n) for letter, n in zip(_letters(role), shape, strict=True))


def _slices(kernel: Kernel, role: str, shape: Sequence[int], i: Any, j: Any) -> tuple[Any, ...]:
    """The rows of tile (i, j) in an array of a role."""
    at = {"q": i, "k": j}
    block = _block(kernel, role, shape)
    return tuple(pl.ds(at[x] * n if x in at else 0, n) for x, n in zip(_letters(role), block, strict=True))


@dataclasses.dataclass(frozen=True, eq=False)
class InMemory(Table):
    """An array that stays in memory, and that a kernel looks up entries in: of the role "nm" by two indices, "n1" by
    one, and "nq" by one for a row of the tile's queries."""

    leaf: Leaf
    ref: Any
    index: Any
    rest: tuple[Any, ...]
    """What is read along the last axis, where there is no index for it."""
    transposed: bool
    """Whether what a query has is a row of the tile, and not a column."""
    dtype: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.leaf.array.shape[1:]
        return shape[: len(shape) - len(self.rest)]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def astype(self, dtype: Any) -> "InMemory":
        return dataclasses.replace(self, dtype=dtype)

    def __getitem__(self, at: Any) -> Any:
        if self.leaf.role == "nq":
            at = pl.ds(at, 1)
        value = self.ref[(self.index, *(at if isinstance(at, tuple) else (at,)), *self.rest)]
        value = value if self.leaf.role != "nq" or self.transposed else value.T
        if self.leaf.boolean:
            return value != 0
        return value if self.dtype is None else value.astype(self.dtype)


def _offsets(kernel: Kernel, i: Any, j: Any) -> jax.Array:
    """The offset of each pair of tile (i, j): where `distances` has its distance."""
    call = kernel.call
    plan, of_q = call.plan, int(call.transposed)
    shape = (plan.k_tile, plan.q_tile) if call.transposed else (plan.q_tile, plan.k_tile)
    t, s = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (of_q, 1 - of_q))
    return (plan.k_rows + i * plan.q_tile - j * plan.k_tile) + (t - s)


def _read(kernel: Kernel, leaf: Leaf, ref: Any, index: Any, i: Any, j: Any) -> Any:
    """The block of a leaf, laid along its axes of a tile; of a table, what reads it."""
    if leaf.role == "":
        value = ref[index]
        return value != 0 if leaf.boolean else value
    if leaf.role == "o":
        return ref[(index, jnp.int32(0), _offsets(kernel, i, j))]
    at = _slices(kernel, leaf.role, leaf.array.shape[1:], i, j)
    if leaf.role.startswith("n"):
        rest: dict[str, tuple[Any, ...]] = {"nm": (), "n1": (jnp.int32(0),), "nq": at[1:]}
        return InMemory(leaf, ref, index, rest[leaf.role], kernel.call.transposed)
    value = ref[(index, *at)]
    value = value.astype(jnp.int32) if leaf.boolean else value
    value = value.T if leaf.role in (("k", "qk") if kernel.call.transposed else ("q",)) else value
    return value != 0 if leaf.boolean else value
