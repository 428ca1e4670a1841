"""A kernel as a program of the TPU: Pallas, compiled by Mosaic.

The grid is sequential in its last axis: the carry of a fold lies in scratch memory from step to step.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jattn._jax import ManualAxisType, tpu
from jattn._jax import pallas as pl
from jattn._numerics import in_kernel, remembered_transpose
from jattn.engine.kernels.distances import offsets_of_tile
from jattn.engine.kernels.grid import Grid
from jattn.engine.kernels.kernel import Kernel, Output
from jattn.engine.kernels.layout import Leaf, wide
from jattn.engine.plan import Plan
from jattn.engine.tuning import LANES
from jattn.masks import EMPTY, FULL, PARTIAL


def run(kernel: Kernel, *, interpret: bool | tpu.InterpretParams) -> list[jax.Array]:
    """The outputs of a kernel, [heads kept, ...]."""
    grid, states = kernel.grid, kernel.states
    nonfinite, fetch = kernel.call.nonfinite_tiles(kernel.rows), tiles_to_fetch(states, grid)
    leaves, tree = jax.tree.flatten(kernel.operands)
    leaves = [dataclasses.replace(x, array=x.array.reshape(-1)) if x.role == "" else transposed_leaf(x) for x in leaves]
    out = [output_in_memory(kernel, y) for y in kernel.outputs]

    def fetched(h: Any, a: Any, b: Any, states_ref: Any, fetch_ref: Any, *_: Any) -> Any:
        return fetch_ref[grid.place(states.own, h, a, b)]

    def stepped(h: Any, a: Any, b: Any, *_: Any) -> Any:
        return grid.inner_tile(b)

    def traced(*refs: Any) -> None:
        with in_kernel(), jax.default_matmul_precision(products_in()):
            step(kernel, states, nonfinite, leaves, tree, out, refs)

    found = pl.pallas_call(
        traced,
        name=kernel.name,
        out_shape=[y.array for y in out],
        grid_spec=tpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2 + len(nonfinite),
            grid=grid.steps,
            in_specs=[block_spec(kernel, x, fetched) for x in leaves],
            out_specs=[block_spec(kernel, y, stepped) for y in out],
            scratch_shapes=[tpu.VMEM(shape, kernel.call.plan.dtype) for shape in kernel.carry],
        ),
        compiler_params=tpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary" if kernel.of_offsets else "parallel", "arbitrary")
        ),
        interpret=interpret,
    )(
        jnp.asarray(states.array).reshape(-1),
        fetch.reshape(-1),
        *(x.array for x in nonfinite),
        *(x.array for x in leaves),
    )
    pairs = zip(found, out, kernel.outputs, strict=True)
    return [x if leaf.role == y.role else x.swapaxes(1, 2) for x, leaf, y in pairs]


def output_in_memory(kernel: Kernel, y: Output) -> Leaf:
    """The shape of an output for all heads, and its role, which is reversed where it is kept transposed."""
    local = {"manual_axis_type": ManualAxisType()}  # in jax.shard_map a kernel is lowered as one device sees it
    shape, role = (y.shape[::-1], y.role[::-1]) if is_transposed(y.role, y.shape) else (y.shape, y.role)
    return Leaf(jax.ShapeDtypeStruct((kernel.grid.steps[0], *shape), y.dtype, **local), kernel.grid.kept, role)


def tiles_to_fetch(states: Leaf, grid: Grid) -> jax.Array:
    """The inner tile whose blocks each step names. A tile that is not visited names the one that was visited before
    it, or if there is none the first that will be: its blocks are in fast memory already, so nothing is fetched."""
    visited = jnp.asarray(states.array != EMPTY)
    last = jax.lax.cummax(jnp.where(visited, jnp.arange(grid.inner, dtype=jnp.int32), -1), axis=2)
    return jnp.where(last < 0, jnp.argmax(visited, axis=2).astype(jnp.int32)[..., None], last)


def block_spec(kernel: Kernel, leaf: Leaf, inner: Callable[..., Any]) -> pl.BlockSpec:
    """The block of a leaf at a step of the grid: `inner` finds the tile along the inner axis."""
    grid, plan = kernel.grid, kernel.call.plan
    first = np.int32(0)  # a Python 0 is an int64 with jax_enable_x64, by which no block is found
    if leaf.role == "":
        return pl.BlockSpec(leaf.array.shape, lambda *_: first, memory_space=tpu.SMEM)

    def outer(h: Any, a: Any, b: Any, *_: Any) -> Any:
        return a

    sizes = {"q": plan.q_tile, "k": plan.k_tile}
    tile_of = {"q": inner, "k": outer} if grid.keys_outer else {"q": outer, "k": inner}
    letters = leaf.role if len(leaf.role) > 1 else "1" + leaf.role
    shape = [sizes.get(letter, n) for n, letter in zip(leaf.array.shape[1:], letters, strict=True)]
    axes = [tile_of.get(letter, lambda *_: first) for letter in letters]

    def index(h: Any, a: Any, b: Any, *tables: Any) -> Any:
        return grid.flat(leaf.own, h, b), *(f(h, a, b, *tables) for f in axes)

    return pl.BlockSpec((None, *shape), index)


class Refs(NamedTuple):
    """The blocks of memory that a step of the grid reads and writes."""

    states: Any
    nonfinite: Sequence[Any]
    ins: Sequence[Any]
    sums: Sequence[Any]
    """The outputs that `Kernel.finish` gives, one block an outer tile."""
    of_tile: Sequence[Any]
    of_offsets: Sequence[Any]
    carry: Sequence[Any]

    @classmethod
    def split(cls, kernel: Kernel, n_nonfinite: int, n_in: int, refs: Sequence[Any]) -> "Refs":
        """In the order in which Pallas gives them: prefetched tables, inputs, outputs, scratch memory."""
        rest = iter(refs)
        states, _ = itertools.islice(rest, 2)  # what to fetch is for the block specs
        n_sums = len(kernel.outputs) - kernel.of_tile - kernel.of_offsets
        counts = n_nonfinite, n_in, n_sums, kernel.of_tile, kernel.of_offsets
        nonfinite, ins, sums, of_tile, of_offsets = (list(itertools.islice(rest, n)) for n in counts)
        return cls(states, nonfinite, ins, sums, of_tile, of_offsets, list(rest))


def step(
    kernel: Kernel, states: Leaf, nonfinite: Sequence[Leaf], leaves: Sequence[Leaf], tree: Any, out: Sequence[Leaf],
    refs: Sequence[Any],
) -> None:  # fmt: skip
    """One step of the grid: the tile is visited in the form that it needs, if it is visited at all."""
    grid, at = kernel.grid, Refs.split(kernel, len(nonfinite), len(leaves), refs)
    h, a, b = (pl.program_id(axis) for axis in range(3))
    i, j = kernel.tile_at(a, b)
    offsets = offsets_of_tile(kernel.call.plan, i, j)
    state = at.states[grid.place(states.own, h, a, b)]
    finite = ~kernel.is_nonfinite(at.nonfinite, nonfinite, h, b, i, j)

    def load() -> Any:
        pairs = zip(leaves, at.ins, strict=True)
        return jax.tree.unflatten(
            tree, [read(kernel.call.plan, x, ref, grid.flat(x.own, h, b), offsets) for x, ref in pairs]
        )

    def visit(*, masked: bool, finite: bool) -> None:
        after, more = kernel.visit(load(), [ref[...] for ref in at.carry], i, j, masked, finite)
        store(at.carry, after)
        store(at.of_tile, more[: kernel.of_tile])
        for ref, part in zip(at.of_offsets, more[kernel.of_tile :], strict=True):
            ref[:, offsets] += part

    def finish() -> None:
        values = kernel.finish([ref[...] for ref in at.carry], None)
        transposed = (y.across != (leaf.role != y.role) for y, leaf in zip(kernel.outputs, out, strict=True))
        store(at.sums, [value.T if turn else value for value, turn in zip(values, transposed, strict=False)])

    for ref in at.of_offsets:
        pl.when((a == 0) & (b == 0))(lambda ref=ref: store([ref], [jnp.zeros_like(ref)]))
    pl.when(b == 0)(lambda: store(at.carry, kernel.start(load())))
    if may_occur(states, FULL):
        pl.when((state == FULL) & finite)(lambda: visit(masked=False, finite=True))
    if may_occur(states, PARTIAL):
        pl.when((state == PARTIAL) & finite)(lambda: visit(masked=True, finite=True))
    pl.when((state != EMPTY) & ~finite)(lambda: visit(masked=True, finite=False))
    if kernel.of_tile:
        pl.when(state == EMPTY)(lambda: store(at.of_tile, [jnp.zeros_like(ref) for ref in at.of_tile]))
    pl.when(b == grid.steps[2] - 1)(finish)


def may_occur(states: Leaf, state: int) -> bool:
    """Whether a tile may have this block state: unless the states are traced, whether one has."""
    return not isinstance(states.array, np.ndarray) or bool((states.array == state).any())


def products_in() -> str | None:
    """The precision of products that a kernel is asked for: the one that is set, or the next higher that Mosaic takes.

    That of jax 0.10 takes the lowest and the highest alone, and none takes an algorithm by its name.
    """
    config: Any = jax.config
    precision: str | None = config.jax_default_matmul_precision
    if precision in (None, "default", "bfloat16", "BF16_BF16_F32"):
        return "default"
    return "highest"


def is_transposed(role: str, shape: Sequence[int]) -> bool:
    """Whether an array of the role "qd" or "kd" is kept transposed, as a TPU keeps one of few columns.

    It fills the last axis of an array up to 128: [rows, 64] would be copied to a kernel, and in twice the bytes.
    """
    return role in ("qd", "kd") and shape[-1] % LANES != 0


def transposed_leaf(leaf: Leaf) -> Leaf:
    if not is_transposed(leaf.role, leaf.array.shape):
        return leaf
    return dataclasses.replace(leaf, array=leaf.array.swapaxes(1, 2), role=leaf.role[::-1])


def store(refs: Any, values: Any) -> None:
    for ref, value in zip(refs, values, strict=True):
        ref[...] = value.astype(ref.dtype)


def read(plan: Plan, leaf: Leaf, ref: Any, index: Any, offsets: Any) -> Any:
    """The block of a leaf, along its axes of a transposed tile."""
    if leaf.role == "o":
        return ref[:, offsets]
    value = ref[index] if leaf.role == "" else ref[...]
    if leaf.role in ("dq", "dk"):
        return remembered_transpose(wide(plan, value))
    value = value.astype(jnp.int32) if leaf.boolean else value
    value = value.T if leaf.role in ("k", "qk") else value
    return value != 0 if leaf.boolean else value
