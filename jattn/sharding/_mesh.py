"""A mesh and specs in place of a hand-written `jax.shard_map`; and the order of rows that balances causal work."""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, TypeVar, Unpack, cast, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jattn import _errors
from jattn._types import Array, ArrayLike, Float, Numeric, ScoreModifier
from jattn.arguments import options as arguments
from jattn.arguments.heads import sink_per_head
from jattn.masks import Mask
from jattn.sharding._blocks import SchemeOptions, leaf_axes, names_of, of_shards, validate_shapes
from jattn.sharding._schemes import Scheme, ring, tree, whole

RowsOf = TypeVar("RowsOf", jax.Array, np.ndarray)


@overload
def attention(
    q: Float[ArrayLike, "*B T H D"],
    k: Float[ArrayLike, "*B S Hkv D"],
    v: Float[ArrayLike, "*B S Hkv Dv"],
    *,
    mesh: Mesh,
    spec: PartitionSpec,
    scheme: Scheme = ...,
    return_lse: Literal[False] = ...,
    **options: Unpack[SchemeOptions],
) -> Float[Array, "*B T H Dv"]: ...
@overload
def attention(
    q: Float[ArrayLike, "*B T H D"],
    k: Float[ArrayLike, "*B S Hkv D"],
    v: Float[ArrayLike, "*B S Hkv Dv"],
    *,
    mesh: Mesh,
    spec: PartitionSpec,
    scheme: Scheme = ...,
    return_lse: Literal[True],
    **options: Unpack[SchemeOptions],
) -> tuple[Float[Array, "*B T H Dv"], Float[Array, "*B T H"]]: ...
def attention(
    q: Float[ArrayLike, "*B T H D"],
    k: Float[ArrayLike, "*B S Hkv D"],
    v: Float[ArrayLike, "*B S Hkv Dv"],
    *,
    mesh: Mesh,
    spec: PartitionSpec,
    scheme: Scheme = ring,
    mask: Mask | None = None,
    score: ScoreModifier | None = None,
    sink: ArrayLike | None = None,
    scale: Numeric | None = None,
    q_positions: ArrayLike | Sequence[int] | None = None,
    k_positions: ArrayLike | Sequence[int] | None = None,
    return_lse: bool = False,
) -> Float[Array, "*B T H Dv"] | tuple[Float[Array, "*B T H Dv"], Float[Array, "*B T H"]]:
    """Attention over global arrays that a mesh holds in pieces: `scheme` inside a `jax.shard_map` over `spec`.

    Args:
      q: [*B, T, H, D]. k: [*B, S, Hkv, D]. v: [*B, S, Hkv, Dv]. What is whole, or sharded otherwise than spec says, is
        resharded first.
      mesh: the devices.
      spec: how the axes [*B, T, H] are sharded, as in P("data", "seq", "heads"); k and v likewise. One mesh axis for
        the sequence, or for `ring_all_to_all` two; none, if it is whole on every device. Batch and heads may be sharded
        over any: this sends nothing.
      scheme: `ring`, `all_to_all`, `gather`, `ring_all_to_all`, or `tree`, whose q is whole on every device.
      mask, score, sink, scale, return_lse: as in `ring`; ids of a mask are those of all rows.
      q_positions: integers [T], where each row of q stands, in tokens; 0, 1, 2, … if None and T = S.
      k_positions: integers [S], likewise. As NumPy arrays, lists, or None, they are known before the program runs, and
        a distance at which the mask allows nothing is skipped.

    Returns:
      [*B, T, H, Dv] in pieces like q, or (that, lse [*B, T, H]).

    Raises:
      TypeError, ValueError: as the scheme; spec or scheme are none of those above; or a length, a batch axis or the
        heads of q or k are not a multiple of their devices. Nothing is padded: the message says by how much to pad.

    Memory: as the scheme.

    Source: that of the scheme.

    Example:
      >>> import jax, jax.numpy as jnp, jattn
      >>> from jax.sharding import PartitionSpec as P
      >>> mesh = jax.make_mesh((1,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> x = jax.random.normal(jax.random.key(0), (3, 1, 8, 2, 4))
      >>> out = jattn.sharding.attention(*x, mesh=mesh, spec=P(None, "seq"), mask=jattn.masks.causal())
      >>> bool(jnp.allclose(out, jattn.dot_product_attention(*x, is_causal=True), atol=1e-6))
      True
    """
    caller = "attention"
    return_lse = _errors.flag(caller, "return_lse", return_lse)
    q, k, v = (_errors.array(caller, name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    axes = ("[*B, T, H, D]", "[*B, S, Hkv, D]", "[*B, S, Hkv, Dv]")
    validate_shapes(caller, q, k, v, axes, "Give all three the same batch axes.")
    _validate_mesh(caller, mesh, spec)
    _validate_placed(caller, mesh, q, k, v)
    scheme = _without_partial(caller, scheme)
    if len(spec) > q.ndim - 1:
        must = "spec must have at most the axes [*B, T, H]"
        remedy = "Name a mesh axis for each that is sharded, as in P('data', 'seq', 'heads')."
        _errors.fail(ValueError, caller, must, remedy, spec=str(spec), q=q)
    *batch, rows, heads = [*spec] + [None] * (q.ndim - 1 - len(spec))
    names = _names(rows)
    scheme = scheme if names else whole
    q_rows = None if scheme is tree else rows
    _validate_split(caller, q, k, mesh, batch, q_rows, rows, heads)
    mask = None if mask is None else of_shards(caller, mask)
    dependents = arguments.position_dependents(caller, mask, score, _errors.wide(q, k, v))
    if mask is not None:
        mask.validate(caller, q.shape[-3], k.shape[-3], True)
    known, arrays = _positions(caller, q, k, q_positions, k_positions, dependents)
    if sink is not None:
        arrays["sink"] = arguments.sink_array(caller, sink)
        sink_per_head(caller, arrays["sink"], q.shape[-2])
    if scale is not None:
        arrays["scale"] = arguments.scale_array(caller, scale)
    sharded = {name for entry in spec for name in _names(entry)}
    for name, x in (("q", q), ("k", k), ("v", v)):
        _validate_explicit(caller, name, x, spec, sharded)

    axis_name: Any = names[0] if len(names) == 1 else names
    options = {"score": score, "return_lse": return_lse, "axis_name": axis_name} | known
    leaves, form = jax.tree.flatten(mask)
    leaves = [jnp.asarray(x, jnp.int32) if isinstance(x, int) else x for x in leaves]

    def here(q: Any, k: Any, v: Any, leaves: Any, arrays: dict[str, Any]) -> Any:
        return scheme(q, k, v, mask=jax.tree.unflatten(form, leaves), **arrays, **options)

    q_spec, kv_spec = PartitionSpec(*batch, q_rows, heads), PartitionSpec(*batch, rows, heads)
    of_side = {"q": PartitionSpec(q_rows), "k": PartitionSpec(rows), "": PartitionSpec()}
    of_arrays = {"q_positions": of_side["q"], "k_positions": of_side["k"], "scale": PartitionSpec(),
                 "sink": PartitionSpec(*[heads] * jnp.ndim(arrays.get("sink", 0)))}  # fmt: skip
    of_mask = [of_side[axes] for axes in leaf_axes(mask)]
    in_specs = q_spec, kv_spec, kv_spec, of_mask, {name: of_arrays[name] for name in arrays}
    operands = jax.tree.map(lambda x, spec: _cut(x, mesh, spec), (q, k, v, leaves, arrays), in_specs)
    out_specs = (q_spec, q_spec) if return_lse else q_spec
    return jax.shard_map(here, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=sharded)(*operands)


def _positions(
    caller: str, q: jax.Array, k: jax.Array, q_positions: Any, k_positions: Any, dependents: tuple[str, ...]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The positions that are known before the program runs, and those that each device is given its part of.

    None where nothing depends on them.
    """
    T, S = q.shape[-3], k.shape[-3]
    _errors.positions(caller, T, S, q_positions, k_positions, dependents)
    known: dict[str, np.ndarray] = {}
    given: dict[str, Any] = {}
    if dependents:
        for name, stand, n in (("q_positions", q_positions, T), ("k_positions", k_positions, S)):
            stand = np.arange(n, dtype=np.int32) if stand is None else stand
            order = np.asarray(stand) if isinstance(stand, list | tuple) else stand
            (known if isinstance(order, np.ndarray) else given)[name] = order
    return known, given


def _cut(x: Any, mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> Any:
    """The array in pieces as the spec says along axes that are explicit, where `jax.shard_map` asks for it so."""
    explicit = {n for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit}
    if not explicit:
        return x
    own = (tuple(n for n in _names(entry) if n in explicit) for entry in spec)
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*(names or None for names in own))))


def _validate_placed(caller: str, mesh: Any, *arrays: jax.Array) -> None:
    """Refuses a mesh that names no devices where nothing else does. Of a traced array that is not known."""
    alone = isinstance(mesh, AbstractMesh) and jax.sharding.get_abstract_mesh().empty
    if alone and _errors.known(*arrays) and not all(isinstance(x.sharding, NamedSharding) for x in arrays):
        must = "mesh must be one of devices, or q, k and v arrays that are sharded over one"
        remedy = "Pass what jax.make_mesh returns, or call it under jax.set_mesh."
        _errors.fail(ValueError, caller, must, remedy, mesh="of type AbstractMesh")


def _validate_explicit(caller: str, name: str, x: jax.Array, spec: Any, sharded: set[Any]) -> None:
    """Refuses an array whose type says that it is sharded over an axis that spec leaves out."""
    more = {n for entry in jax.typeof(x).sharding.spec for n in _names(entry)} - sharded
    if more:
        must = f"spec must name each explicit mesh axis that {name} is sharded over"
        remedy = "Name it in spec, or apply jax.sharding.reshard before."
        _errors.fail(ValueError, caller, must, remedy, **{name: str(jax.typeof(x))}, spec=str(spec))


def _names(entry: Any) -> tuple[Any, ...]:
    """The mesh axes that an entry of a spec names."""
    return () if entry is None else names_of(entry)


def _devices(mesh: Mesh, entry: Any) -> int:
    """How many devices lie along an axis of an array with this entry of the spec."""
    return math.prod(mesh.shape[name] for name in _names(entry))


def _validate_mesh(caller: str, mesh: Any, spec: Any) -> None:
    """Refuses what is no mesh, no spec, or a spec of other axes."""
    if not isinstance(mesh, Mesh | AbstractMesh):
        got = {"mesh": f"of type {type(mesh).__name__}"}
        _errors.fail(TypeError, caller, "mesh must be a mesh of devices", "Make one with jax.make_mesh.", **got)
    if not isinstance(spec, PartitionSpec | tuple):
        got = {"spec": f"of type {type(spec).__name__}"}
        remedy = "Name the mesh axis of each axis [*B, T, H], as in jax.sharding.PartitionSpec('data', 'seq')."
        _errors.fail(TypeError, caller, "spec must be a PartitionSpec", remedy, **got)
    if not all(isinstance(entry, Hashable) for entry in spec):
        must = "each entry of spec must be None, a mesh axis, or a tuple of them"
        _errors.fail(TypeError, caller, must, "Write several as ('a', 'b').", spec=str(spec))
    names = [name for entry in spec for name in _names(entry)]
    if len(names) > len(set(names)):
        remedy = "Give each axis one of its own."
        _errors.fail(ValueError, caller, "spec must name an axis once", remedy, spec=str(spec))
    if any(name not in mesh.shape for name in names):
        got = {"spec": str(spec), "mesh": f"of the axes {', '.join(map(repr, mesh.shape))}"}
        _errors.fail(ValueError, caller, "spec must name axes of the mesh", "Name one of these, or None.", **got)
    _validate_around(caller, mesh, spec, names)


def _validate_around(caller: str, mesh: Any, spec: Any, names: list[Any]) -> None:
    """Refuses axes of a surrounding `jax.shard_map`, and a mesh that is not the one in use."""
    around = jax.sharding.get_abstract_mesh()
    cut = [name for name in names if name in around.manual_axes]
    if cut:
        must = "spec must not name an axis of a surrounding jax.shard_map"
        remedy = (
            "Along it the arrays are blocks already: leave it out, or call a scheme there if it cuts the sequence, "
            f"as in jattn.sharding.ring(q, k, v, axis_name={cut[0]!r})."
        )
        _errors.fail(ValueError, caller, must, remedy, spec=str(spec))
    if not around.empty and mesh.abstract_mesh != around:
        must = "mesh must be that of the surrounding jax.shard_map or jax.set_mesh"
        got = {"mesh": f"{type(mesh).__name__} of {dict(mesh.shape)}"}
        _errors.fail(ValueError, caller, must, "Pass jax.sharding.get_abstract_mesh().", **got)


def _without_partial(caller: str, scheme: Any) -> Scheme:
    """The scheme that a functools.partial stands for. Options that it holds would be overwritten: it is refused."""
    remedy = "Pass one of jattn.sharding, such as ring or tree, and the options of attention itself."
    while isinstance(scheme, functools.partial):
        options = sorted(scheme.keywords.keys() - {"axis_name"})
        if scheme.args or options:
            got = {"scheme": f"with {', '.join(options) or 'arguments'}"}
            _errors.fail(TypeError, caller, "scheme must not hold options of its own", remedy, **got)
        scheme = scheme.func
    if not callable(scheme) or isinstance(scheme, type):
        got = {"scheme": f"the class {scheme.__name__}" if callable(scheme) else f"of type {type(scheme).__name__}"}
        _errors.fail(TypeError, caller, "scheme must be a function", remedy, **got)
    with contextlib.suppress(ValueError):  # some that are written in C do not say what they take
        signature = inspect.signature(scheme)
        try:
            signature.bind("q", "k", "v", mask=None, score=None, return_lse=False, axis_name="")
        except TypeError:
            got = {"scheme": f"with the arguments {', '.join(signature.parameters)}"}
            _errors.fail(TypeError, caller, "scheme must take q, k, v and the options of attention", remedy, **got)
    return cast(Scheme, scheme)


def _validate_split(
    caller: str, q: jax.Array, k: jax.Array, mesh: Mesh, batch: list[Any], q_rows: Any, k_rows: Any, heads: Any
) -> None:
    """Refuses rows, a batch or heads that their devices cannot share evenly."""
    (T, S), n, n_k = (q.shape[-3], k.shape[-3]), _devices(mesh, q_rows), _devices(mesh, k_rows)
    if T % n:
        remedy = f"Pad q by {-T % n} rows, and drop these of the result."
        _errors.fail(ValueError, caller, "T must be a multiple of the devices along it", remedy, q=q, devices=str(n))
    if S % n_k:
        more, none = f"Pad k and v by {-S % n_k} rows", f"mask=jattn.masks.where(lambda t, s: s < {S})"
        remedy = f"{more}, and let no query attend them, as with {none}."
        must = "S must be a multiple of the devices along it"
        _errors.fail(ValueError, caller, must, remedy, k=k, devices=str(n_k))
    for at, entry in enumerate(batch):
        n, B = _devices(mesh, entry), q.shape[at]
        if B % n:
            must = f"axis {at} of the batch must be a multiple of the devices along it"
            remedy = (
                f"Pad q, k and v by {-B % n} examples, and drop these of the result, or leave this axis whole in spec."
            )
            _errors.fail(ValueError, caller, must, remedy, q=q, devices=str(n))
    n, H, Hkv = _devices(mesh, heads), q.shape[-2], k.shape[-2]
    if H % n:
        remedy = "Shard the heads over fewer devices, or leave them whole in spec."
        _errors.fail(ValueError, caller, "H must be a multiple of the devices along it", remedy, q=q, devices=str(n))
    if Hkv % n:
        times = n // math.gcd(Hkv, n)
        remedy = f"Repeat the heads of k and v, jax.numpy.repeat(k, {times}, axis=-2), or leave heads whole in spec."
        _errors.fail(ValueError, caller, "Hkv must be a multiple of the devices along it", remedy, k=k, devices=str(n))


def zigzag(x: RowsOf, devices: int, *, axis: int = 0) -> RowsOf:
    """Rows in the order that balances causal work: device i gets the pieces i and 2P − 1 − i of 2P.

    Each device then has as many early rows, which attend few keys, as late ones, which attend many.

    Args:
      x: an array with a sequence axis; NumPy stays NumPy. `zigzag(numpy.arange(T), P)` are the positions.
      devices: P.
      axis: the sequence axis; a negative one is counted from the last.

    Returns:
      The array with its rows reordered.

    Raises:
      TypeError: x is not an array, or a number is not a whole one.
      ValueError: the length is not a multiple of 2P, or x has not that axis.

    Memory: that of x.

    Source: Zhu 2024, ring-flash-attention; Llama Team 2024, section 3.3.2.

    Example:
      >>> import numpy as np, jattn
      >>> jattn.sharding.zigzag(np.arange(8), 2)
      array([0, 1, 6, 7, 2, 3, 4, 5])
    """
    return _pieces("zigzag", x, devices, axis, _order)


def unzigzag(x: RowsOf, devices: int, *, axis: int = 0) -> RowsOf:
    """Rows in the order of the sequence again: undoes `zigzag`.

    Args:
      x, devices, axis: as in `zigzag`.

    Returns:
      The array with its rows in order.

    Raises:
      TypeError, ValueError: as `zigzag`.

    Memory: that of x.

    Example:
      >>> import numpy as np, jattn
      >>> jattn.sharding.unzigzag(np.array([0, 1, 6, 7, 2, 3, 4, 5]), 2)
      array([0, 1, 2, 3, 4, 5, 6, 7])
    """
    return _pieces("unzigzag", x, devices, axis, lambda n: np.argsort(_order(n)))


def _order(devices: int) -> np.ndarray:
    i = np.arange(devices)
    return np.stack([i, 2 * devices - 1 - i], 1).ravel()


def _pieces(caller: str, x: Any, devices: int, axis: int, order: Callable[[int], np.ndarray]) -> Any:
    devices = _errors.count(caller, "devices", devices, least=1)
    if not isinstance(x, np.ndarray | jax.Array):
        got = {"x": f"of type {type(x).__name__}"}
        _errors.fail(TypeError, caller, "x must be an array", "Pass a jax or NumPy array.", **got)
    axis = _errors.count(caller, "axis", axis, least=-x.ndim)
    _errors.index(caller, "axis", axis + x.ndim if axis < 0 else axis, x.ndim, "rank")
    n = x.shape[axis]
    if n % (2 * devices):
        remedy = f"Pad the sequence by {-n % (2 * devices)} rows first."
        must = "the sequence must be a multiple of twice the devices"
        _errors.fail(ValueError, caller, must, remedy, x=x, devices=str(devices))
    axis %= x.ndim
    split = x.reshape(*x.shape[:axis], 2 * devices, n // (2 * devices), *x.shape[axis + 1 :])
    return split.take(order(devices), axis=axis).reshape(x.shape)
