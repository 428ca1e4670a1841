"""A kernel as a program of the TPU: Pallas, compiled by Mosaic.

The grid is sequential in its last axis: the carry of a fold lies in scratch memory from step to step.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jattn._jax import ManualAxisType, tpu
from jattn._jax import pallas as pl
from jattn._numerics import in_kernel, standing
from jattn.engine.kernels.distances import offsets_of_tile
from jattn.engine.kernels.kernel import Kernel
from jattn.engine.kernels.layout import Leaf, wide
from jattn.engine.plan import Plan
from jattn.engine.tuning import LANES
from jattn.masks import EMPTY, FULL, PARTIAL


def run(kernel: Kernel, *, interpret: bool | tpu.InterpretParams) -> list[jax.Array]:
    """The outputs of a kernel, [heads kept, ...]."""
    plan, grid = kernel.call.plan, kernel.grid
    states, nonfinite = kernel.states, kernel.call.nonfinite_tiles(kernel.rows)
    known = isinstance(states.array, np.ndarray)
    occurs = lambda state: not known or bool((states.array == state).any())  # noqa: E731
    # A tile that is passed over names the one before it, which is there already, so that nothing is fetched.
    visited = jnp.asarray(states.array != EMPTY)
    last = jax.lax.cummax(jnp.where(visited, jnp.arange(grid.inner, dtype=jnp.int32), -1), axis=2)
    fetch = jnp.where(last < 0, jnp.argmax(visited, axis=2).astype(jnp.int32)[..., None], last)

    def inner(h: Any, a: Any, b: Any, states_ref: Any, fetch_ref: Any, *_: Any) -> Any:
        return fetch_ref[grid.place(states.own, h, a, b)]

    def outer(h: Any, a: Any, b: Any, *_: Any) -> Any:
        return a

    def stepped(h: Any, a: Any, b: Any, *_: Any) -> Any:
        return grid.inner_tile(b)

    first = np.int32(0)  # a Python 0 is an int64 with jax_enable_x64, by which no block is found
    sizes = {"q": plan.q_tile, "k": plan.k_tile}

    def spec(leaf: Leaf, inner: Any) -> pl.BlockSpec:
        """The block of a leaf at a step of the grid: `inner` finds the tile along the inner axis."""
        if leaf.role == "":
            return pl.BlockSpec(leaf.array.shape, lambda *_: first, memory_space=tpu.SMEM)
        tile_of = {"q": inner, "k": outer} if grid.keys_outer else {"q": outer, "k": inner}
        letters = leaf.role if len(leaf.role) > 1 else "1" + leaf.role
        shape = [sizes.get(letter, n) for n, letter in zip(leaf.array.shape[1:], letters, strict=True)]
        axes = [tile_of.get(letter, lambda *_: first) for letter in letters]

        def index(h: Any, a: Any, b: Any, *tables: Any) -> Any:
            return grid.flat(leaf.own, h, b), *(f(h, a, b, *tables) for f in axes)

        return pl.BlockSpec((None, *shape), index)

    leaves, tree = jax.tree.flatten(kernel.operands)
    leaves = [dataclasses.replace(x, array=x.array.reshape(-1)) if x.role == "" else lain(x) for x in leaves]
    n_in, n_out = len(leaves), len(kernel.outputs)
    n_of_heads = n_out - kernel.of_offsets
    n_sums = n_of_heads - kernel.of_tile

    def body(states_ref: Any, fetch_ref: Any, *refs: Any) -> None:
        flags, refs = refs[:3], refs[3:]
        ins, outs, carry = refs[:n_in], refs[n_in : n_in + n_out], refs[n_in + n_out :]
        h, a, b = (pl.program_id(axis) for axis in range(3))
        i, j = kernel.tile_at(a, b)
        offsets = offsets_of_tile(plan, i, j)
        state = states_ref[grid.place(states.own, h, a, b)]
        finite = ~kernel.is_nonfinite(flags, nonfinite, h, b, i, j)

        def load() -> Any:
            return jax.tree.unflatten(
                tree, [read(plan, x, ref, grid.flat(x.own, h, b), offsets) for x, ref in zip(leaves, ins, strict=True)]
            )

        def visit(*, masked: bool, finite: bool) -> None:
            after, more = kernel.visit(load(), [ref[...] for ref in carry], i, j, masked, finite)
            store(carry, after)
            store(outs[n_sums:n_of_heads], more[: kernel.of_tile])
            for ref, part in zip(outs[n_of_heads:], more[kernel.of_tile :], strict=True):
                ref[:, offsets] += part

        for ref in outs[n_of_heads:]:
            pl.when((a == 0) & (b == 0))(lambda ref=ref: store([ref], [jnp.zeros_like(ref)]))
        pl.when(b == 0)(lambda: store(carry, kernel.start(load())))
        if occurs(FULL):
            pl.when((state == FULL) & finite)(lambda: visit(masked=False, finite=True))
        if occurs(PARTIAL):
            pl.when((state == PARTIAL) & finite)(lambda: visit(masked=True, finite=True))
        pl.when((state != EMPTY) & ~finite)(lambda: visit(masked=True, finite=False))
        if kernel.of_tile:
            of_tile = outs[n_sums:n_of_heads]
            pl.when(state == EMPTY)(lambda: store(of_tile, [jnp.zeros_like(ref) for ref in of_tile]))

        def finish() -> None:
            values = kernel.finish([ref[...] for ref in carry], None)
            turned = (y.across != (leaf.role != y.role) for y, leaf in zip(kernel.outputs, out, strict=True))
            store(outs[:n_sums], [value.T if turn else value for value, turn in zip(values, turned, strict=False)])

        pl.when(b == grid.steps[2] - 1)(finish)

    def traced(*refs: Any) -> None:
        with in_kernel(), jax.default_matmul_precision(products_in()):
            body(*refs)

    # Inside jax.shard_map a kernel is asked how its outputs vary: it is lowered as one device sees it.
    local = {"manual_axis_type": ManualAxisType()}
    heads = grid.steps[0]
    out = [
        Leaf(jax.ShapeDtypeStruct((heads, *shape), y.dtype, **local), grid.kept, role)
        for y in kernel.outputs
        for role, shape in [(y.role[::-1], y.shape[::-1]) if lies_across(y.role, y.shape) else (y.role, y.shape)]
    ]
    found = list(
        pl.pallas_call(
            traced,
            name=kernel.name,
            out_shape=[y.array for y in out],
            grid_spec=tpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=5,
                grid=grid.steps,
                in_specs=[spec(x, inner) for x in leaves],
                out_specs=[spec(y, stepped) for y in out],
                scratch_shapes=[tpu.VMEM(shape, plan.dtype) for shape in kernel.carry],
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
    )
    pairs = zip(found, out, kernel.outputs, strict=True)
    return [x if leaf.role == y.role else x.swapaxes(1, 2) for x, leaf, y in pairs]


def products_in() -> str | None:
    """The precision of products that a kernel is asked for: the one that is set, or the next higher that Mosaic takes.

    That of jax 0.10 takes the lowest and the highest alone, and none takes an algorithm by its name.
    """
    config: Any = jax.config
    precision: str | None = config.jax_default_matmul_precision
    if precision in (None, "default", "bfloat16", "BF16_BF16_F32"):
        return "default"
    return "highest"


def lies_across(role: str, shape: Sequence[int]) -> bool:
    """Whether an array of the role "qd" or "kd" is kept the other way round, as a TPU keeps one of few columns.

    It fills the last axis of an array up to 128: [rows, 64] would be copied to a kernel, and in twice the bytes.
    """
    return role in ("qd", "kd") and shape[-1] % LANES != 0


def lain(leaf: Leaf) -> Leaf:
    if not lies_across(leaf.role, leaf.array.shape):
        return leaf
    return dataclasses.replace(leaf, array=leaf.array.swapaxes(1, 2), role=leaf.role[::-1])


def store(refs: Any, values: Any) -> None:
    for ref, value in zip(refs, values, strict=True):
        ref[...] = value.astype(ref.dtype)


def read(plan: Plan, leaf: Leaf, ref: Any, index: Any, offsets: Any) -> Any:
    """The block of a leaf, laid along its axes of a transposed tile."""
    if leaf.role == "o":
        return ref[:, offsets]
    value = ref[index] if leaf.role == "" else ref[...]
    if leaf.role in ("dq", "dk"):
        return standing(wide(plan, value))
    value = value.astype(jnp.int32) if leaf.boolean else value
    value = value.T if leaf.role in ("k", "qk") else value
    return value != 0 if leaf.boolean else value
