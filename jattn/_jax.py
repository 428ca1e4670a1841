"""Ground: the names of JAX that are not among those it promises to keep, in one place.

Everything else in this library uses public names of JAX alone, and none of `jax.experimental`, `jax.extend`,
`jax.interpreters` and `jax.core`, of which the class `Tracer` is documented. `tests/test_jax_names.py` sees to that,
and says by name which of the names here is gone in a new release, and what hangs on it.

`jax.interpreters` and `jax.extend` are where JAX tells authors of primitives to look, without a promise of stability.
"""

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import jax
import jax.extend.core
from jax._src import dispatch
from jax._src.ad_checkpoint import name_p
from jax.core import eval_jaxpr
from jax.experimental import io_callback, jet
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.experimental.ode import odeint
from jax.extend.core import Jaxpr, Literal, Primitive, set_current_trace
from jax.interpreters import ad, batching, mlir, partial_eval
from jax.sharding import ManualAxisType

# One class with Jaxpr from jax 0.11 on, where its own name is kept for those who still ask for it.
ClosedJaxpr: Any = getattr(jax.extend.core, "ClosedJaxpr", Jaxpr)

WHY = MappingProxyType({
    "jax._src.dispatch.prim_requires_devices_during_lowering": (
        "the lowering of a batched call asks which devices there are, to keep sharded examples where they lie; "
        "there is no public way to say so"
    ),
    "jax._src.ad_checkpoint.name_p": "what names out and lse for policies of jax.checkpoint has no rule in Taylor mode",
    "jax._src.cudnn.fused_attention_stablehlo": (
        "attention by cuDNN with lse in float32; jax.nn.dot_product_attention rounds it to the dtype of the query"
    ),
    "jax.core.eval_jaxpr": "a score or mask of the user's own is kept as a jaxpr and evaluated inside a tile",
    "jax.experimental.custom_partitioning.custom_partitioning": (
        "tells the partitioner that examples are independent; jax.shard_map would need the mesh from the caller"
    ),
    "jax.experimental.custom_partitioning.SdyShardingRule": "the rule that goes with it",
    "jax.experimental.custom_partitioning.ArrayMapping": "the rule that goes with it",
    "jax.experimental.io_callback": (
        "a recorder called in a program writes its file in the order of the steps; jax.debug.callback may be left out"
    ),
    "jax.experimental.jet": "the rules of the primitives in Taylor mode",
    "jax.experimental.ode.odeint": "the continuous gradient flow; diffrax would be one more dependency",
    "jax.experimental.pallas": "the language of kernels",
    "jax.experimental.pallas.tpu": "its memory spaces, scratch and compiler parameters for the TPU",
    "jax.experimental.pallas.triton": (
        "its compiler parameters and one instruction for the GPU; deprecated since 0.11, compiled on 0.12"
    ),
    "jax.extend.core.Primitive": (
        "a batched call with a batching rule and derivatives of its own; custom_vjp has no forward mode, custom_jvp "
        "no transpose, and custom_batching.custom_vmap no derivative of higher order"
    ),
    "jax.extend.core.Jaxpr": "functions are compared by what they compute",
    "jax.extend.core.Literal": "functions are compared by what they compute",
    "jax.interpreters.ad": "the rules of the primitives: derivative and transpose",
    "jax.interpreters.batching": "the rule of the primitives under vmap",
    "jax.interpreters.partial_eval": "where operands are known and tangents not, a jvp is two calls again",
    "jax.extend.core.set_current_trace": "those calls are made where JAX takes them apart",
    "jax.interpreters.mlir": "how the primitives are lowered, for each platform",
    "jax.sharding.ManualAxisType": "the types of arrays inside jax.shard_map, which a rule has to state",
})  # fmt: skip


ON_FIRST_USE = MappingProxyType({
    "cudnn": "jax._src.cudnn.fused_attention_stablehlo",
    "pallas": "jax.experimental.pallas",
    "tpu": "jax.experimental.pallas.tpu",
    "triton": "jax.experimental.pallas.triton",
})  # fmt: skip


def __getattr__(name: str) -> Any:
    """Pallas and cuDNN, when a kernel first needs them: Pallas takes longer to import than all else here together."""
    if name in ON_FIRST_USE:
        return importlib.import_module(ON_FIRST_USE[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def gpu_is_known() -> bool:
    """Whether Pallas can write a kernel for a GPU: from jax 0.11 on it looks at the default device, or at that of
    `jax.sharding.use_abstract_mesh`."""
    try:
        looks = getattr(__getattr__("triton"), "is_gpu_device", None)
    except ImportError:  # it is to be removed from a later JAX
        return False
    return looks is None or looks()


def gpu_generation() -> int:
    """The compute capability of the default device, without its fraction: 9 of an H200; 0 of what is no NVIDIA GPU."""
    capability = str(getattr(jax.devices()[0], "compute_capability", ""))
    return int(capability.partition(".")[0]) if capability[:1].isdigit() else 0


@contextlib.contextmanager
def about_triton() -> Iterator[None]:
    """From jax 0.11 on it warns whom it lowers a kernel of the GPU for. That is said to us, and not to who attends."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
        yield


def asks_for_devices(primitive: Primitive) -> None:
    """The rule that lowers this primitive looks at the devices of the program."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def lower_as(function: Callable[..., jax.Array]) -> Any:
    """A rule that lowers to `function`, which has float64 where its operand has: its block may have been left."""
    rule = mlir.lower_fun(function, multiple_results=False)

    def lower(ctx: Any, *xs: Any, **params: Any) -> Any:
        with jax.enable_x64(ctx.avals_in[0].dtype.itemsize == 8):
            return rule(ctx, *xs, **params)

    return lower


__all__ = [
    "ON_FIRST_USE",
    "WHY",
    "ArrayMapping",
    "ClosedJaxpr",
    "Jaxpr",
    "Literal",
    "ManualAxisType",
    "Primitive",
    "SdyShardingRule",
    "about_triton",
    "ad",
    "asks_for_devices",
    "batching",
    "custom_partitioning",
    "eval_jaxpr",
    "gpu_generation",
    "gpu_is_known",
    "io_callback",
    "jet",
    "lower_as",
    "mlir",
    "name_p",
    "odeint",
    "partial_eval",
    "set_current_trace",
]
