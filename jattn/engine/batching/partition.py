"""Devices: a function over independent examples, kept on the devices where the examples are.

The compiler of a program over several devices cannot see that the steps of a loop over examples are independent:
where that axis is sharded, it gathers the examples at every step. `partitioned` tells it, with JAX's own means for this
(`custom_partitioning`): each device runs the function over the examples that it holds, and only what is a sum over
examples is exchanged.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jattn._jax import ArrayMapping, Primitive, SdyShardingRule, custom_partitioning, mlir
from jattn._numerics import Settings

Fun = Callable[..., list[jax.Array]]


class BatchLevels(NamedTuple):
    """How a function is mapped, level inside level: the leading axes of an array are those of the levels it has."""

    sizes: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    """The levels that each operand has, outermost first."""
    outputs: tuple[tuple[int, ...], ...]
    """Those of each output: it is a sum over the others."""
    inside: frozenset[tuple[int, int]] = frozenset()
    """(operand, level) where the examples of a level lay behind another axis of the operand, as heads in [S, H, D]."""

    def spread(self, x: jax.Array, own: Sequence[int], order: Sequence[int]) -> jax.Array:
        """An array whose leading axes are the levels `own`, with those of `order`, repeated along what it lacks."""
        kept = [level for level in order if level in own]
        x = jnp.moveaxis(x, [own.index(level) for level in kept], range(len(kept)))
        rest = x.shape[len(kept) :]
        x = x.reshape(*(self.sizes[level] if level in kept else 1 for level in order), *rest)
        return jnp.broadcast_to(x, (*(self.sizes[level] for level in order), *rest))

    def axes_of_one(self, own: Sequence[int]) -> tuple[int, ...]:
        """Of an array that has these levels, the axes of those of one example."""
        return tuple(axis for axis, level in enumerate(own) if self.sizes[level] == 1)

    def check(self, avals: Sequence[Any]) -> None:
        """Refuses, of a mesh whose axes are explicit, operands that are sharded along any other axis."""
        for aval, own in zip(avals, self.operands, strict=True):
            if any(name is not None for name in aval.sharding.spec[len(own) :]):
                raise ValueError(
                    f"attention: on an explicit mesh only batch and heads may be sharded, got an operand {aval}. "
                    "Use jattn.sharding.attention for a sharded sequence, or jax.sharding.reshard before."
                )

    def specs(self, avals: Sequence[Any]) -> list[PartitionSpec]:
        """Where the outputs lie on such a mesh, given where the operands do."""
        at: dict[int, Any] = {}
        for aval, own in zip(avals, self.operands, strict=True):
            at |= {level: name for level, name in zip(own, aval.sharding.spec, strict=False) if name is not None}
        return [PartitionSpec(*map(at.get, own)) for own in self.outputs]


def partitioned(of_sizes: Callable[..., Fun], levels: BatchLevels, context: Any) -> Fun:
    """The function `of_sizes(*levels.sizes)`, each device with its own share of each level.

    `context` is that of the module being lowered. On one device, inside `jax.shard_map`, where no mesh names the
    devices, or in a program to be exported, there is nothing to share out.
    """
    devices = getattr(context.axis_context, "device_assignment", None) or ()
    named = getattr(context.axis_context, "abstract_mesh", None)
    if len(devices) < 2 or named is None or context.lowering_parameters.for_export:
        return of_sizes(*levels.sizes)
    mesh = Mesh(np.array(devices).reshape(named.axis_sizes), named.axis_names)
    settings = Settings.here()

    def replicate_trailing_axes(x: jax.Array, own: Sequence[int]) -> jax.Array:
        """All other axes whole: the compiler may hand them over in parts, whatever the rule says."""
        spec = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * len(own))
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    def run(*xs: jax.Array) -> list[jax.Array]:
        into = [*map(_BitcastCodec.of, xs)]
        out = [*map(_BitcastCodec.of, jax.eval_shape(of_sizes(*levels.sizes), *xs))]

        def on_words(f: Fun) -> Fun:
            def g(*words: jax.Array) -> list[jax.Array]:
                ys = f(*(w.read(x) for w, x in zip(into, words, strict=True)))
                return [w.write(y) for w, y in zip(out, ys, strict=True)]

            return partial(with_settings_p.bind, fun=g, settings=settings)

        words = [replicate_trailing_axes(w.write(x), own) for w, x, own in zip(into, xs, levels.operands, strict=True)]
        whole = on_words(of_sizes(*levels.sizes))
        shared = custom_partitioning(whole)
        rule = _rule(levels, words, jax.eval_shape(whole, *words))
        partition = _partition(of_sizes, levels, devices, on_words)
        shared.def_partition(partition, decode_shardings=False, sharding_rule=rule)
        ys = map(replicate_trailing_axes, shared(*words), levels.outputs)
        return [w.read(y) for w, y in zip(out, ys, strict=True)]

    return run


class _BitcastCodec(NamedTuple):
    """How an array passes through the partitioner, which knows neither random keys nor, unless they are enabled for
    the whole program, 64 bits: it takes them for 32."""

    dtype: Any
    impl: Any
    """Of a random key, which is an array of words with a name."""

    @classmethod
    def of(cls, x: Any) -> "_BitcastCodec":
        return cls(x.dtype, jax.random.key_impl(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else None)

    @property
    def wide(self) -> bool:
        return self.dtype in (np.float64, np.int64, np.uint64)

    def write(self, x: jax.Array) -> jax.Array:
        if self.impl is not None:
            return jax.random.key_data(x)
        return jax.lax.bitcast_convert_type(x, np.uint32) if self.wide else x

    def read(self, x: jax.Array) -> jax.Array:
        if self.impl is not None:
            return jax.random.wrap_key_data(x, impl=self.impl)
        return jax.lax.bitcast_convert_type(x, self.dtype) if self.wide else x


@contextlib.contextmanager
def on_one_device(settings: Settings) -> Iterator[None]:
    """The settings of the caller, and none of its meshes."""
    with settings.hold(), jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        yield


# A function that is traced and lowered with the settings of the caller, in whatever thread that happens.
with_settings_p: Primitive = Primitive("as_set")
with_settings_p.multiple_results = True


def _abstract(*avals: Any, fun: Fun, settings: Settings) -> list[Any]:
    with on_one_device(settings):
        here = (aval.update(sharding=aval.sharding.update(mesh=AbstractMesh((), ()))) for aval in avals)
        return jax.make_jaxpr(fun)(*here).out_avals


with_settings_p.def_abstract_eval(_abstract)


@partial(mlir.register_lowering, with_settings_p)
def _lower(ctx: Any, *xs: Any, fun: Fun, settings: Settings) -> Any:
    with on_one_device(settings):
        return mlir.lower_fun(fun, multiple_results=True)(ctx, *xs)


def _rule(levels: BatchLevels, operands: Sequence[Any], outputs: Sequence[Any]) -> SdyShardingRule:
    """Each level is one factor; every other axis of every array is a factor of its own, and stays whole."""
    whole: list[str] = []

    def mapping(own: Sequence[int], x: Any) -> ArrayMapping:
        rest = [f"whole{len(whole) + n}" for n in range(len(x.shape) - len(own))]
        whole.extend(rest)
        return ArrayMapping(*(f"level{level}" for level in own), *rest)

    into = tuple(map(mapping, levels.operands, operands))
    out = tuple(map(mapping, levels.outputs, outputs))
    return SdyShardingRule(into, out, need_replication_factors=tuple(whole))


def _partition(
    of_sizes: Callable[..., Fun], levels: BatchLevels, devices: Sequence[Any], on_words: Callable[[Fun], Fun]
) -> Callable[..., Any]:
    """What one device does, given where the compiler wants the arrays.

    The compiler asks in a thread of its own, to which `with jax.enable_x64()` of the caller does not reach. It may have
    split an axis of the mesh (eight devices over 2 × 4 heads), so devices are told apart by what they hold.
    """
    mesh = Mesh(np.array(devices), ("devices",))

    def partition(_: Any, operands: Sequence[Any], outputs: Sequence[Any]) -> Any:
        begins: dict[int, list[list[int]]] = defaultdict(list)  # of each level: for each array, of each device
        for x, own in zip([*operands, *outputs], levels.operands + levels.outputs, strict=True):
            index = x.sharding.devices_indices_map(x.shape)
            for axis, level in enumerate(own):
                begins[level].append([index[device][axis].start or 0 for device in devices])
        held = [begins[level][0] for level in range(len(levels.sizes))]
        shares = [len(set(h)) for h in held]
        agreed = all(one == h for level, h in enumerate(held) for one in begins[level])
        if not agreed or any(n % share for n, share in zip(levels.sizes, shares, strict=True)):
            everywhere = NamedSharding(mesh, PartitionSpec())
            return mesh, on_words(of_sizes(*levels.sizes)), [everywhere] * len(outputs), (everywhere,) * len(operands)
        local = of_sizes(*(n // share for n, share in zip(levels.sizes, shares, strict=True)))

        def total(y: jax.Array, own: Sequence[int]) -> jax.Array:
            """Summed over the levels that an output lacks; devices that hold the same are in sums of their own."""
            if all(level in own or share == 1 for level, share in enumerate(shares)):
                return y
            copies: Counter[Any] = Counter()
            groups: dict[Any, list[int]] = defaultdict(list)
            for n, mine in enumerate(zip(*held, strict=True)):
                groups[*(mine[level] for level in own), copies[mine]].append(n)
                copies[mine] += 1
            return jax.lax.psum(y, "devices", axis_index_groups=list(groups.values()))

        def run(*xs: jax.Array) -> list[jax.Array]:
            return list(map(total, local(*xs), levels.outputs))

        return mesh, on_words(run), [y.sharding for y in outputs], tuple(x.sharding for x in operands)

    return partition
