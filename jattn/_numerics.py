"""Ground: the few numerical steps that every computation of attention shares."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jattn._jax import Primitive, ad, batching, lower_as, mlir
from jattn._taylor import has_series

HIDDEN = 0.5
"""What a score modifier is given for a score that is hidden. Roots, powers, logarithms and reciprocals have a
derivative there, and so have inverse sines and tangents: at 0, or at 1, some of them have none."""


def is_half(x: Any) -> bool:
    """Whether a type is of floating point in fewer than 32 bits."""
    return jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4


def promoted(*dtypes: Any) -> Any:
    """The dtype that these promote to, with jax_numpy_dtype_promotion="strict" too.

    Floats of 8 bits, which JAX promotes to nothing, promote to any wider dtype, and two unlike ones to bfloat16.
    """
    if len(set(dtypes)) > 1:
        dtypes = tuple(x for x in dtypes if jnp.dtype(x).itemsize > 1) or (jnp.bfloat16,)
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*dtypes)


def below(x: jax.Array, top: jax.Array) -> jax.Array:
    """x − top for x ≤ top, where the largest is exactly 0 by comparison; its derivative is that of x − top.

    Subtraction is not enough. Where x is itself a product, XLA may fuse the two into one multiply-add, and
    the largest entry misses its own rounded maximum, by 1e22 for a logit of 1e30: silent zeros, or NaN.
    """
    top = jnp.broadcast_to(top, x.shape)
    if _in_kernel.get() is not None:
        return _below(x, top)
    return below_p.bind(*match_varying_axes(x, top))  # its type is that of x


def match_varying_axes(*xs: jax.Array) -> list[jax.Array]:
    """Inside `jax.shard_map`: the arrays, each varying over all axes that any of them varies over.

    An operand that is the same on all devices has a cotangent that is a sum over them. Cast here, it is summed once and
    by all; cast where it is used, in a branch that only some devices take, the others would wait for ever.
    """
    types = [jax.typeof(x).manual_axis_type.varying for x in xs]
    every = frozenset().union(*types)
    missing = [tuple(sorted(every - t, key=str)) for t in types]
    return [jax.lax.pcast(x, m, to="varying") if m else x for x, m in zip(xs, missing, strict=True)]


def match_varying_trees(*trees: Any) -> list[Any]:
    """The same of all arrays of some pytrees, as the state of a loop must vary over what its body brings."""
    leaves, structure = jax.tree.flatten(trees)
    matched: list[Any] = list(jax.tree.unflatten(structure, match_varying_axes(*leaves)))
    return matched


def spec_of(x: Any) -> Any:
    """For each array of a pytree, along which explicit axes of a mesh it is cut."""
    return jax.tree.map(lambda x: jax.typeof(x).sharding.spec, x)


def on_automatic_axes(f: Callable[..., Any], out_specs: Any, *xs: Any) -> Any:
    """f(*xs); on an explicit mesh with its results cut as `out_specs` says, a pytree like theirs, and the compiler free
    to choose between: it takes slices along an axis that is cut, which types refuse."""
    return jax.sharding.auto_axes(f, out_sharding=out_specs)(*xs) if on_explicit_mesh() else f(*xs)


def cut_as(like: jax.Array, x: jax.Array) -> jax.Array:
    """x; on an explicit mesh cut along its axes as `like` along its own."""
    return jax.sharding.reshard(x, spec_of(like)) if on_explicit_mesh() else x


def on_explicit_mesh() -> bool:
    """Whether the types of arrays say along which axes of a mesh they are cut."""
    return jax.sharding.AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types


def _below(x: jax.Array, top: jax.Array) -> jax.Array:
    return jnp.where(x >= top, 0, x - top)


class _Kernel(NamedTuple):
    """While a kernel is traced: what its compiler would not see by itself."""

    exp: Callable[[jax.Array], jax.Array]
    transposes: dict[int, tuple[jax.Array, jax.Array]]
    """What `remembered_transpose` made, by its id, beside what it was made of."""
    sums: dict[int, tuple[jax.Array, jax.Array, jax.Array]]
    """What `sum_of` made, by its id, beside its terms."""


_in_kernel: ContextVar[_Kernel | None] = ContextVar("in_kernel", default=None)


@contextlib.contextmanager
def in_kernel(exp: Callable[[jax.Array], jax.Array] = jnp.exp) -> Iterator[None]:
    """While a kernel is traced: its compiler does not know the primitive of `below`, and nothing differentiates it.

    Args:
      exp: how it computes the weights.
    """
    token = _in_kernel.set(_Kernel(exp, {}, {}))
    try:
        yield
    finally:
        _in_kernel.reset(token)


def exp(x: jax.Array) -> jax.Array:
    """The exponential of how far a logit is below the maximum, as a kernel computes it where one is traced."""
    kernel = _in_kernel.get()
    return jnp.exp(x) if kernel is None else kernel.exp(x)


def sum_of(x: jax.Array, y: jax.Array) -> jax.Array:
    """x + y, of which a kernel remembers the terms."""
    found, kernel = x + y, _in_kernel.get()
    if kernel is not None:
        kernel.sums[id(found)] = found, x, y
    return found


def added(x: jax.Array, y: jax.Array) -> jax.Array:
    """x + y; in a kernel term by term, if `sum_of` made y.

    A product of matrices can then accumulate into x in place: Triton does so for x + a·b, and not for
    x + (a·b + c·d).
    """
    kernel = _in_kernel.get()
    if kernel is None or id(y) not in kernel.sums:
        return x + y
    _, first, second = kernel.sums[id(y)]
    return added(added(x, first), second)


def remembered_transpose(x: jax.Array) -> jax.Array:
    """The transpose of what a kernel reads, which remembers x.

    The compiler of a TPU computes every transpose in a program, also one that is undone, or that a product could do
    without: where x is wanted, `transpose` and `tile.dot` take x itself.
    """
    kernel = _in_kernel.get()
    assert kernel is not None
    found = x.T
    kernel.transposes[id(found)] = found, x
    return found


def untransposed(x: jax.Array) -> jax.Array | None:
    """What x is the transpose of, if `remembered_transpose` made it."""
    kernel = _in_kernel.get()
    return kernel.transposes[id(x)][1] if kernel is not None and id(x) in kernel.transposes else None


def transpose(x: jax.Array) -> jax.Array:
    found = untransposed(x)
    return x.T if found is None else found


def before_transpose(f: Callable[..., jax.Array], x: jax.Array, *others: jax.Array) -> jax.Array:
    """f(x, *others), entry by entry, computed of the transposes if x is one."""
    found = untransposed(x)
    return f(x, *others) if found is None else remembered_transpose(f(found, *map(transpose, others)))


class Settings(NamedTuple):
    """What JAX is set to where a function is called. Its program is lowered later, beyond a `with` of the caller."""

    x64: bool
    """Whether there is float64: `jax.enable_x64`."""
    precision: str | None
    """That of products: `jax.default_matmul_precision`."""
    partitionable: bool
    """How keys of threefry draw: `jax.threefry_partitionable`."""

    @classmethod
    def here(cls) -> "Settings":
        """Those that hold now."""
        config: Any = jax.config
        return cls(config.jax_enable_x64, config.jax_default_matmul_precision, config.jax_threefry_partitionable)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Inside it these hold."""
        precision, draws = jax.default_matmul_precision(self.precision), jax.threefry_partitionable(self.partitionable)
        with jax.enable_x64(self.x64), precision, draws:
            yield


# A primitive, since JAX forgets the rule of a jax.custom_jvp in the body of a scan that it takes apart to transpose:
# what remained would be the derivative of the comparison, 0 at the largest, and a wrong jvp of that transpose.
below_p = Primitive("below")
below_p.def_impl(jax.jit(_below))
below_p.def_abstract_eval(lambda x, top: x)
mlir.register_lowering(below_p, lower_as(below_p.impl))
ad.defjvp(below_p, lambda x_dot, x, top: x_dot, lambda top_dot, x, top: -top_dot)


def _below_batched(xs: Sequence[jax.Array], dims: Sequence[int | None]) -> tuple[jax.Array, int]:
    n = next(x.shape[d] for x, d in zip(xs, dims, strict=True) if d is not None)
    x, top = (
        jnp.broadcast_to(x, (n, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(xs, dims, strict=True)
    )
    return below_p.bind(x, top), 0


batching.primitive_batchers[below_p] = _below_batched
has_series(below_p)


def nonfinite_rows(x: jax.Array) -> jax.Array:
    """Which rows of [..., n, d] are non-finite, with a NaN or an infinity in them: [..., n, 1].

    A reduction of booleans on a CPU, since that of float32 first writes all that it adds up; the compilers of kernels
    have a sum alone.
    """
    finite = jnp.isfinite(x)
    return ~finite.all(-1, keepdims=True) if _in_kernel.get() is None else any_along(~finite, -1)


def any_along(x: jax.Array, axis: int) -> jax.Array:
    """Whether any of some booleans is true, with the axis kept: as a sum, which every compiler of kernels has.

    On a CPU a reduction of booleans takes two kernels, and longer to compile and to run than a sum of float32.
    """
    return jnp.sum(x.astype(jnp.float32), axis, keepdims=True) > 0


def zero_nonfinite_rows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows [n, d] with each non-finite one made zero, and which rows those are [n, 1].

    A product with zero would not be enough: 0 · NaN is NaN, in a sum over keys and in its transpose alike.
    """
    nonfinite = nonfinite_rows(x)
    return jnp.where(nonfinite, 0, x), nonfinite


def nan_if_nonfinite(x: jax.Array) -> jax.Array:
    """For each row 0, or NaN where it is non-finite: to be added to what must not hide it."""
    return jnp.sum(x * 0, 1)


def nan_where(condition: Any, x: jax.Array) -> jax.Array:
    """x, and NaN where a condition holds.

    Under `jax.disable_jit` it is ∞ − ∞ there and 0 elsewhere: `jax.debug_nans` would stop at a constant that is NaN.
    """
    nan: Any = jnp.nan
    config: Any = jax.config
    if config.jax_disable_jit:
        top = jnp.where(condition, jnp.inf, 0)
        nan = top - top
    return jnp.where(condition, nan, x)


def max_or_nan(x: jax.Array, axis: int | None = None, initial: float | None = None) -> jax.Array:
    """The maximum, and NaN where one is among the numbers.

    XLA leaves it out on a CPU: in its reductions by YNN, of 4,096 numbers and more (seen with jaxlib 0.10.2, 0.12.0.1).
    """
    return nan_where(jnp.isnan(x).any(axis), jnp.max(x, axis, initial=initial))


def how_many_up_to(x: jax.Array, bounds: jax.Array) -> jax.Array:
    """How many entries of x [n], which do not decrease, are at most each bound: integers, int32.

    By halving, in as many steps as the largest n needs, where n is a symbol of jax.export: JAX's own asks for a number.
    """
    n = x.shape[0]
    if isinstance(n, int):
        return jnp.searchsorted(x, bounds, side="right").astype(jnp.int32)

    def halve(_: Any, between: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = between
        middle = low + (high - low) // 2
        up = (low < high) & (x[jnp.minimum(middle, n - 1)] <= bounds)
        return jnp.where(up, middle + 1, low), jnp.where(up, high, middle)

    low = jnp.zeros_like(bounds, jnp.int32)
    return jax.lax.fori_loop(0, 32, halve, (low, jnp.full_like(low, n)))[0]


def norm(x: jax.Array) -> jax.Array:
    """√Σ x², which no magnitude exceeds; ∞ or NaN if a NaN or an infinity is among the numbers, or a square overflows.

    A maximum may miss a NaN (`max_or_nan`); a sum does not, and XLA's are as fast as reading, which a question for each
    number is not.
    """
    wide = x.astype(jnp.float32 if x.dtype.itemsize < 4 else x.dtype)
    return jnp.sqrt(jnp.sum(jnp.square(wide)))


def after(first: Any, x: jax.Array) -> jax.Array:
    """x, which XLA does not compute before the arrays of `first`, a pytree: x + 0 · (the sum of an entry of each).

    XLA's CPU compiler drops a `jax.lax.optimization_barrier` before it decides in which order to compute.
    """
    arrays = [a for a in jax.tree.leaves(first) if a.size]
    if not arrays:
        return x
    entry = sum(jax.lax.slice(a, [0] * a.ndim, [1] * a.ndim).reshape(()).astype(jnp.float32) for a in arrays)
    entry = jax.lax.stop_gradient(entry)
    return x + (0 * jnp.where(jnp.isfinite(entry), entry, 0)).astype(x.dtype)


def of_first_example(x: Any) -> Any:
    """x of the first example of each `jax.vmap` around: one for all examples. A constant to derivatives."""
    return jax.tree.map(lambda a: of_first_example_p.bind(jax.lax.stop_gradient(a)), x)


of_first_example_p = Primitive("of_first_example")
of_first_example_p.def_impl(lambda x: x)
of_first_example_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(of_first_example_p, lambda ctx, x: [x])
batching.primitive_batchers[of_first_example_p] = lambda xs, dims: (
    jax.lax.index_in_dim(xs[0], 0, dims[0], keepdims=False),
    None,
)


def unknown(like: jax.Array, *constants: Any) -> list[jax.Array]:
    """The constants as arrays of which XLA does not know the values, chosen by an entry of `like` that may be any.

    XLA compiles a kernel for each constant that it holds, and one for all values of an array.
    """
    entry = jax.lax.slice(of_first_example(like), [0] * like.ndim, [1] * like.ndim).reshape(())
    always = jnp.isfinite(entry).astype(jnp.int32) < 2
    arrays = list(map(jnp.asarray, constants))
    found: list[jax.Array] = jax.lax.cond(always, lambda: arrays, lambda: list(map(jnp.zeros_like, arrays)))
    return found


def finite_or_zero(top: jax.Array) -> jax.Array:
    """A maximum to subtract: the maximum of nothing, −inf, becomes 0."""
    return jnp.where(top == -jnp.inf, 0, top)
