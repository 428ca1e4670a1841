"""Words: values that pass through `jit` and `vmap`, and functions of scalars made values.

A value is a frozen dataclass and a pytree: its arrays are leaves, everything else is structure, hashable, so that
equal structures are compiled once. A function becomes one when the arrays that it closes over are taken out of it:
two lambdas that compute the same are then equal, however often they are written. `separate` takes a function of scalars
apart: what it looks up for each query, for each key or for each distance is then looked up once a row, or once a
diagonal, and not once a pair, and a kernel, which cannot gather, has it as an operand.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from jattn._jax import ClosedJaxpr, Jaxpr, Literal, eval_jaxpr

C = TypeVar("C")


@dataclass_transform(frozen_default=True, eq_default=False)
def value(cls: Any) -> Any:
    """A frozen dataclass that is a pytree and says itself how it is shown.

    Two are equal, as static arguments of `jax.jit` are compared, where they have one structure, equal numbers and the
    very same arrays: what arrays hold is not looked at.
    """
    cls.__eq__ = lambda self, other: type(self) is type(other) and _identity(self) == _identity(other)
    cls.__hash__ = lambda self: hash(_identity(self))
    return pytree(dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls))


def _identity(x: Any) -> Any:
    """What two equal values have in common, hashable."""
    leaves, tree = jax.tree.flatten(x)
    return classes(x), tree, tuple(_parameter(a) if isinstance(a, int | float) else _Same(a) for a in leaves)


def pytree(cls: type[C]) -> type[C]:
    """Makes a dataclass a pytree: fields marked static are structure, all others are leaves.

    Not by `jax.tree_util.register_dataclass`: the structures that it makes (jax 0.10) are equal for two classes whose
    static fields are, so that `a & b` would be taken for `a | b` wherever programs are kept by structure. And what is
    put together from leaves is not initialised: leaves may be anything, arrays with more axes than the fields say too.
    """
    leaves, fixed = (
        [f.name for f in dataclasses.fields(cls) if bool(f.metadata.get("static")) is s]  # type: ignore[arg-type]
        for s in (False, True)
    )
    keys = [jax.tree_util.GetAttrKey(name) for name in leaves]

    def flatten(x: Any) -> Any:
        return [getattr(x, name) for name in leaves], tuple(getattr(x, name) for name in fixed)

    def with_keys(x: Any) -> Any:
        children, structure = flatten(x)
        return list(zip(keys, children, strict=True)), structure

    def unflatten(structure: Any, children: Any) -> Any:
        made = object.__new__(cls)
        made.__dict__.update(zip(leaves, children, strict=True))
        made.__dict__.update(zip(fixed, structure, strict=True))
        return made

    jax.tree_util.register_pytree_with_keys(cls, with_keys, unflatten, flatten)
    return cls


def classes(x: Any) -> tuple[type, ...]:
    """The classes of a pytree and of all that it is made of, in their order.

    Beside the structure, which JAX 0.10 takes for equal of two classes that `jax.tree_util.register_dataclass` knows.
    """
    found: list[type] = []

    def note(part: Any) -> bool:
        found.append(type(part))
        return False

    jax.tree.leaves(x, is_leaf=note)
    return tuple(found)


def static(**options: Any) -> Any:
    """A field that is structure: hashable, and compared where programs are compiled."""
    return dataclasses.field(metadata={"static": True}, **options)


def show(x: Any) -> str:
    """A number as itself, an array by dtype and shape: contents are never printed."""
    if hasattr(x, "dtype"):
        return f"{x.dtype}[{','.join(map(str, x.shape))}]"
    return repr(x)


def name_of(f: Any) -> str:
    """What a function is called where it was written."""
    return getattr(f, "__name__", type(f).__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Closed:
    """What a function computes of the arrays that it captured and of its arguments; equal where that is the same."""

    jaxpr: Any
    constants: tuple[Any, ...]
    """Arrays that are part of the function; None in the place of each that was captured."""
    mesh: Any = None
    """The mesh of `jax.set_mesh` or `jax.shard_map` that it was written under, if any."""

    def __call__(self, captured: Any, *xs: Any) -> list[Any]:
        consts = self.fill(captured)
        if self._varies:
            elsewhere = not any(jax.typeof(x).manual_axis_type.varying for x in (*consts, *xs))
        else:  # `eval_jaxpr` would go back to its mesh, as from inside a `jax.shard_map`
            elsewhere = bool(self.mesh) and self.mesh != jax.sharding.get_abstract_mesh()
        if elsewhere:
            return _on_one_device(self.jaxpr, consts, *xs)
        return eval_jaxpr(self.jaxpr, consts, *xs)

    def fill(self, captured: Any) -> list[Any]:
        """All arrays, the captured ones at their places among the constants."""
        given = iter(captured)
        return [next(given) if c is None else c for c in self.constants]

    @cached_property
    def _varies(self) -> bool:
        """Whether it was written inside `jax.shard_map` and captured an array that differs between devices."""
        return any(v.aval.manual_axis_type.varying for e in self.jaxpr.eqns for v in e.outvars)

    @cached_property
    def _signature(self) -> Any:
        return _signature(self.jaxpr), tuple(None if c is None else _parameter(np.asarray(c)) for c in self.constants)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Closed) and self._signature == other._signature

    def __hash__(self) -> int:
        return hash(self._signature)


def trace(f: Callable[..., Any], *arguments: Any) -> Any:
    """The jaxpr of `f`, traced anew: of one function JAX keeps the trace, and with it what the function closed over
    then, such as an attribute of an object that has another value by now."""
    return jax.make_jaxpr(lambda *xs: f(*xs))(*arguments)


def close(
    f: Callable[..., Any], *arguments: Any, constants: bool = False
) -> tuple[Closed, tuple[jax.Array, ...], list[Any]]:
    """`f` with the arrays that it closes over made its first argument; these arrays; and the avals of its outputs.

    `arguments` are shapes and dtypes. Nested pytrees of outputs come flat. With `constants`, NumPy arrays stay part of
    the function, so that it can be evaluated while a program is traced.
    """
    made = trace(f, *arguments)
    kept = tuple(c if constants and not isinstance(c, jax.Array) else None for c in made.consts)
    captured = tuple(jnp.asarray(c) for c, k in zip(made.consts, kept, strict=True) if k is None)
    mesh = jax.sharding.get_abstract_mesh()
    return Closed(_without_values(made), kept, None if mesh.empty else mesh), captured, made.out_avals


def _bind(eqn: Any, xs: Sequence[Any]) -> list[Any]:
    found = eqn.primitive.bind(*xs, **eqn.primitive.get_bind_params(eqn.params))
    return list(found) if eqn.primitive.multiple_results else [found]


def _on_one_device(jaxpr: Any, consts: Any, *xs: Any) -> list[Any]:
    """A jaxpr that was written for values that vary over devices, of the values that one of them has."""
    of = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *xs), strict=True))

    def read(atoms: Any) -> list[Any]:
        return [a.val if isinstance(a, Literal) else of[a] for a in atoms]

    for e in jaxpr.eqns:
        given = read(e.invars)
        if e.primitive.name == "pvary":
            found = given
        elif e.primitive.name == "jit":
            inner = e.params["jaxpr"]
            found = _on_one_device(inner.jaxpr, inner.consts, *given)
        else:
            found = _bind(e, given)
        of.update(zip(e.outvars, found, strict=True))
    return read(jaxpr.outvars)


class Table:
    """An array that entries are looked up in one by one, and that is never there as a whole."""

    def __getitem__(self, at: Any) -> Any:
        """The entry at an index, or at two. Each class has its own."""
        raise NotImplementedError


Alone: TypeAlias = int | tuple[int, int] | None
"""What a value depends on alone: the argument of this number, the difference of these two, or none."""


@dataclasses.dataclass(frozen=True, eq=False)
class Separated:
    """A function f(captured, *xs) in parts: `alone` finds values, of which `rest` makes f.

    Values are scalars, but for arrays of one or two axes that depend on no argument and whose entries `rest` looks up.
    """

    closed: Closed
    made: Any
    """Its jaxpr without calls of other functions, of all its arrays and of the xs."""
    between: Mapping[Alone, Sequence[Any]]
    """By what they depend on: the variables that stand between the parts."""

    def alone(self, n: Alone, captured: Sequence[Any], *x: Any) -> list[Any]:
        """The values that depend on arrays and on argument n, on a difference, or on no argument."""
        arrays = [*self.made.consts, *self.closed.fill(captured)]
        given = dict(zip([*self.made.jaxpr.constvars, *self.made.jaxpr.invars], arrays, strict=False))
        arguments = self.made.jaxpr.invars[len(self.closed.constants) :]
        if isinstance(n, tuple):  # of x[0] as well as of any other two that are as far apart
            given |= {arguments[n[0]]: x[0], arguments[n[1]]: jnp.zeros_like(x[0])}
        elif n is not None:
            given[arguments[n]] = x[0]
        return _evaluate(self.made.jaxpr.eqns, given, self.between[n])

    def rest(self, values: Mapping[Alone, Sequence[Any]], *xs: Any) -> list[Any]:
        """What f returns, given all values."""
        given = dict(zip(self.made.jaxpr.invars[len(self.closed.constants) :], xs, strict=True))
        for n, variables in self.between.items():
            given.update(zip(variables, values[n], strict=True))
        return _evaluate(self.made.jaxpr.eqns, given, self.made.jaxpr.outvars)


def separate(closed: Closed, *alone: Alone) -> Separated | None:
    """A function of scalars taken apart, or None where it asks an array for more than its entries: where one depends on
    an argument, has more than two axes, or is read as a whole.

    Args:
      alone: the arguments whose values are wanted on their own, and at most one pair (m, n) of them whose difference is
        to count as one argument more, where nothing else is asked of the two.
    """
    pairs = [some for some in alone if isinstance(some, tuple)]
    difference = pairs[0] if pairs else None
    n = len(closed.constants)  # from JAX 0.11 on they are among the invars
    given = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in (*closed.jaxpr.constvars, *closed.jaxpr.invars)]
    made = jax.make_jaxpr(lambda *given: _on_one_device(closed.jaxpr, given[:n], *given[n:]))(*given)
    arrays, arguments = [*made.jaxpr.constvars, *made.jaxpr.invars[:n]], made.jaxpr.invars[n:]
    # Of each variable: the arguments that it depends on, and whether on an array too.
    of = {v: (frozenset[Alone](), v.aval.shape != ()) for v in arrays}
    of |= {v: (frozenset[Alone]([i]), False) for i, v in enumerate(arguments)}
    offset_from: dict[Any, int] = {v: i for i, v in enumerate(arguments)}
    """The variables that are an argument plus what depends on none."""
    between: dict[Alone, dict[Any, None]] = {i: {} for i in (None, *alone)}
    looked_up: dict[Any, bool] = {}
    """Of each of the variables between them, whether nothing but its entries is read."""

    def of_one(found: tuple[frozenset[Alone], bool]) -> bool:
        return found[1] and found[0] <= set(alone) and len(found[0]) < 2

    def read_by_the_rest(atoms: Any, entry: bool = False) -> None:
        for n, a in enumerate(atoms):
            if not isinstance(a, Literal) and (a in arrays or of_one(of[a])):
                between[next(iter(of[a][0]), None)][a] = None
                looked_up[a] = looked_up.get(a, True) and entry and n == 0

    for e in made.jaxpr.eqns:
        read = [of[a] for a in e.invars if not isinstance(a, Literal)]
        found = frozenset[Alone]().union(*(some for some, _ in read)), any(asks for _, asks in read)
        if e.primitive.name in ("add", "sub"):
            begins = [None if isinstance(a, Literal) else offset_from.get(a) for a in e.invars]
            fixed = [isinstance(a, Literal) or not of[a][0] for a in e.invars]
            if difference and e.primitive.name == "sub" and set(begins) == set(difference):
                found = frozenset([difference]), found[1]
            for begin, other in zip(begins, reversed(fixed), strict=True):
                if begin is not None and other and (e.primitive.name == "add" or begin == begins[0]):
                    offset_from[e.outvars[0]] = begin
        of.update(dict.fromkeys(e.outvars, found))
        if not of_one(found):
            read_by_the_rest(e.invars, _is_entry(e))
    read_by_the_rest(made.jaxpr.outvars)
    whole = [(i, v) for i, variables in between.items() for v in variables if v.aval.shape]
    if any(i is not None or len(v.aval.shape) > 2 or not looked_up[v] for i, v in whole):
        return None
    return Separated(closed, made, MappingProxyType({i: tuple(found) for i, found in between.items()}))


def _is_entry(eqn: Any) -> bool:
    """Whether it reads one entry of an array."""
    return eqn.primitive.name == "dynamic_slice" and eqn.outvars[0].aval.size == 1


def _entry(table: Table, shape: tuple[int, ...], at: Sequence[Any]) -> jax.Array:
    """The slice [1, …] of a table of a shape, as `jax.lax.dynamic_slice` has it: indices beyond its ends are brought to
    them."""
    within = tuple(jnp.clip(i, 0, n - 1) for i, n in zip(at, shape, strict=True))
    return jnp.reshape(table[within], (1,) * len(shape))


def _evaluate(eqns: Sequence[Any], given: dict[Any, Any], wanted: Sequence[Any]) -> list[Any]:
    """The variables that are wanted, of those that are given, by the equations that it takes."""
    needed = {v for v in wanted if not isinstance(v, Literal)} - given.keys()
    chosen = []
    for e in reversed(eqns):
        if needed & set(e.outvars):
            chosen.append(e)
            needed |= {a for a in e.invars if not isinstance(a, Literal)} - given.keys()
    of = dict(given)

    def read(atoms: Any) -> list[Any]:
        return [a.val if isinstance(a, Literal) else of[a] for a in atoms]

    for e in reversed(chosen):
        xs = read(e.invars)
        entry = _is_entry(e) and isinstance(xs[0], Table)
        found = [_entry(xs[0], e.invars[0].aval.shape, xs[1:])] if entry else _bind(e, xs)
        of.update(zip(e.outvars, found, strict=True))
    return read(wanted)


def recomputed(f: Callable[[], Any]) -> Any:
    """f(), of which nothing but what it closes over is kept for the transpose, which computes it again.

    As `jax.checkpoint(f)()`, whose cache would keep alive whatever tracers `f` closes over: they are arguments here.
    """
    made, out = jax.make_jaxpr(f, return_shape=True)()
    closed = Closed(_without_values(made), (None,) * len(made.consts))
    return jax.tree.unflatten(jax.tree.structure(out), jax.checkpoint(closed)(made.consts))


def _without_values(made: Any) -> Any:
    """A jaxpr whose constants are variables: from jax 0.11 on their values are part of it, and would be kept alive."""
    return made.jaxpr.replace(constvars=made.jaxpr.constvars)


class _Same:
    """A thing that is equal to itself alone; kept, so that no other takes its address."""

    def __init__(self, thing: Any):
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def _signature(jaxpr: Any) -> Any:
    """A jaxpr as nested tuples without the names of its variables: equal only where the program is the same."""
    number: dict[Any, int] = {}

    def new(variables: Any) -> Any:
        for v in variables:
            number[v] = len(number)
        return tuple(v.aval for v in variables)

    def read(atoms: Any) -> Any:
        return tuple((*_parameter(a.val), a.aval) if isinstance(a, Literal) else number[a] for a in atoms)

    head = new(jaxpr.constvars), new(jaxpr.invars)
    body = tuple((e.primitive, _parameter(dict(e.params)), read(e.invars), new(e.outvars)) for e in jaxpr.eqns)
    return head, body, read(jaxpr.outvars)


def _parameter(p: Any) -> tuple[Any, ...]:
    """A parameter of an equation, hashable: what cannot be compared is equal to itself alone."""
    if isinstance(p, ClosedJaxpr):
        return "closed", _signature(p.jaxpr), tuple(map(_Same, p.consts))
    if isinstance(p, Jaxpr):
        return "jaxpr", _signature(p)
    if isinstance(p, dict):
        return "dict", tuple((name, _parameter(p[name])) for name in sorted(p))
    if isinstance(p, (tuple, list)):
        return type(p), tuple(map(_parameter, p))
    if isinstance(p, (float, complex, np.ndarray, np.generic)):
        x = np.asarray(p)  # by bits: 0.0 is not −0.0, and a NaN is itself
        return type(p), x.dtype, x.shape, x.tobytes() if x.dtype != object else _Same(p)
    try:
        hash(p)
    except TypeError:
        return "other", _Same(p)
    return type(p), p
