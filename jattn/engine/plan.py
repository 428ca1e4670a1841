"""What attention of one head is a function of: the operands, each with its role, and the plan of its computation."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jattn._numerics import Settings, norm
from jattn.engine import tuning
from jattn.masks import Mask


class Operands(NamedTuple):
    """Everything that attention is a function of, for one head; None where an option is not given."""

    q: Any
    k: Any
    v: Any
    bias: Any = None
    sink: Any = None
    scale: Any = None
    captured: tuple[Any, ...] = ()
    """The arrays that the score modifier closes over."""
    mask: Mask | None = None
    q_positions: Any = None
    k_positions: Any = None
    dropout: tuple[Any, Any] | None = None
    """(key, rate)."""


ROLES = Operands("qd", "kd", "kd", "qk", "q", "", ("",), None, "q", "k", ("", ""))
"""Which axes of each operand are rows of q, rows of k, or a width. A tile has its rows of what has rows of q or k, and
all of what has none ("": scalars, tables). The leaves of a mask say so themselves (`Mask.leaf_axes`)."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What does not change from call to call: sizes, dtype, the score modifier closed, the classes of the mask."""

    T: int
    S: int
    q_tile: int
    k_tile: int
    dtype: Any
    score: Any
    mask_classes: tuple[type, ...] = ()
    """`_values.classes` of the mask."""
    platform: str = "cpu"
    tile_given: tuple[int, int] | None = None
    """The tile that the caller chose, before it is cut to T and S: then it is the same on every platform."""
    implementation: str | None = None
    """None for kernels where they are taken unasked, "loops", "kernel", "interpret" or "cudnn"."""
    settings: Settings = dataclasses.field(default_factory=Settings.here)
    """Those of JAX where attention was called."""
    finite: bool = False
    """Whether `all_finite` found the operands finite: then no tile is searched for non-finite entries."""
    all_masked: bool = False
    """Whether the mask is applied to all tiles, even to those it rules nothing out of: one loop instead of two."""
    caller: str = dataclasses.field(default="attention", compare=False)
    """The public function that was called, which errors name."""
    summed: bool = False
    """Whether cotangents are summed over examples before they are rounded to the dtypes of the operands."""

    def cotangent_dtype(self, dtype: Any) -> Any:
        """The dtype of the cotangent of an operand."""
        short = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < np.dtype(self.dtype).itemsize
        return self.dtype if self.summed and short else dtype

    def for_platform(self, platform: str) -> "Plan":
        """The same plan with the tile that suits a platform."""
        if platform == self.platform or self.tile_given:
            return dataclasses.replace(self, platform=platform)
        q_tile, k_tile = tuning.tile_sizes(self.T, self.S, platform=platform)
        return dataclasses.replace(self, q_tile=q_tile, k_tile=k_tile, platform=platform)

    def type_of_rows(self, *width: int) -> jax.ShapeDtypeStruct:
        """The type of an array with a row for each query, in the dtype of the arithmetic."""
        return jax.ShapeDtypeStruct((self.T, *width), self.dtype)

    @property
    def static_lengths(self) -> bool:
        """Whether T and S are numbers. In a program to be exported they may be symbols, and tiles have fixed sizes."""
        return isinstance(self.T, int) and isinstance(self.S, int)

    @property
    def q_tiles(self) -> int:
        return -(-self.T // self.q_tile)

    @property
    def k_tiles(self) -> int:
        return -(-self.S // self.k_tile)

    @property
    def q_rows(self) -> int:
        """T, rounded up to whole tiles."""
        return self.q_tiles * self.q_tile

    @property
    def k_rows(self) -> int:
        """S, rounded up to whole tiles."""
        return self.k_tiles * self.k_tile

    @property
    def working_set_bytes(self) -> int | None:
        """The working set of one tile: its logits and its weights; None, for no limit, with few queries.

        As much as a group may have where a group is to be one example, which is traced and compiled faster: in the form
        for what is not finite, which is rare, and for many large tiles, whose two forms then share their kernels.
        """
        if self.q_tile < tuning.FEW_QUERIES:
            return None
        tile = 2 * self.q_tile * self.k_tile * np.dtype(self.dtype).itemsize
        return tuning.group_bytes(self.platform) if self.all_masked or self._many_large_tiles(tile) else tile

    def _many_large_tiles(self, tile: int) -> bool:
        large = self.platform == "cpu" and self.static_lengths and tile >= tuning.LARGE_TILE_BYTES
        return large and self.q_tiles > 1 and self.q_tiles * self.k_tiles > tuning.WRITTEN_OUT_TILES

    def pad_rows(self, x: jax.Array, value: Any = 0) -> jax.Array:
        """[T, ...] with rows added until whole tiles cover it."""
        return jnp.pad(x, [(0, self.q_rows - self.T)] + [(0, 0)] * (x.ndim - 1), constant_values=value)


def all_finite(plan: Plan, x: Operands) -> jax.Array:
    """Whether q, k and v hold no NaN and no infinity, and nothing that is made of them can overflow.

    Asked once for a whole batch, whose operands may have leading axes. The bound of a score, if it is known, is to be
    small.
    """
    q, k, v, scale = (norm(a).astype(plan.dtype) for a in (x.q, x.k, x.v, x.scale))
    largest = jnp.stack([q * scale, q * scale * k, v * jnp.asarray(plan.S, plan.dtype)])  # ⟨q, k⟩ ≤ ‖q‖ ‖k‖
    finite = (largest < jnp.finfo(plan.dtype).max / 16).all()  # no comparison with a NaN is true
    bound = None if plan.score is None else plan.score.largest(x.captured)
    return finite if bound is None else finite & (norm(bound) <= tuning.LARGEST_SCORE)


def fits_one_tile(plan: Plan, x: Operands) -> bool:
    """One tile of few pairs, all of them allowed, and nothing but scaled products in the logits."""
    return x.mask is None and fits_one_masked_tile(plan, x)


def fits_one_masked_tile(plan: Plan, x: Operands) -> bool:
    """The same, of pairs that a mask may rule out."""
    others = x.bias, x.sink, x.dropout, plan.score
    one = plan.q_tiles == plan.k_tiles == 1 and plan.q_tile * plan.k_tile <= tuning.SINGLE_TILE_PAIRS
    return one and all(other is None for other in others)


def pad(plan: Plan, x: Operands) -> Operands:
    """The operands with rows added until whole tiles cover them."""
    T, S = plan.q_rows, plan.k_rows
    if (T, S) == (plan.T, plan.S):
        return x

    def more(a: Any, role: str, **how: Any) -> Any:
        if a is None:
            return None
        widths = [(0, 0)] * a.ndim
        for axis, (have, want) in enumerate({"q": (plan.T, T), "k": (plan.S, S)}.get(r, (0, 0)) for r in role):
            if axis < a.ndim and want and a.shape[axis] == have:  # else it is one entry for all
                widths[axis] = (0, want - have)
        return jnp.pad(a, widths, **how) if any(n for _, n in widths) else a

    return x._replace(
        q=more(x.q, ROLES.q),
        k=more(x.k, ROLES.k),
        v=more(x.v, ROLES.v),
        bias=more(x.bias, ROLES.bias),
        sink=more(x.sink, ROLES.sink),
        mask=None if x.mask is None else x.mask.padded(T, S),
        q_positions=more(x.q_positions, ROLES.q_positions, mode="edge"),
        k_positions=more(x.k_positions, ROLES.k_positions, mode="edge"),
    )


def repeat_last(x: jax.Array, n: Any) -> jax.Array:
    """[..., rows, width], of which n are not padding: those that are hold row n − 1, as constants."""
    there = (jnp.arange(x.shape[-2], dtype=jnp.int32) < n).reshape(*[1] * (x.ndim - 2), -1, 1)
    last = jax.lax.dynamic_slice_in_dim(x, jnp.asarray(n - 1, jnp.int32), 1, axis=x.ndim - 2)
    return jnp.where(there, x, jax.lax.stop_gradient(last))


def select_active(tree: Any, argnums: tuple[int, ...], xs: Any) -> Operands:
    """Operands that hold `xs` at the leaves `argnums`, those that are differentiated, and None elsewhere."""
    leaves: list[Any] = [None] * tree.num_leaves
    for i, x in zip(argnums, xs, strict=True):
        leaves[i] = x
    return jax.tree.unflatten(tree, leaves)._replace(mask=None)
