"""What public functions and classes say of their arguments, results and fields: a type, wherever one can be said."""

import dataclasses
import importlib
import inspect
import typing
from typing import Any

import numpy as np

ON_REQUEST = ["console", "figures", "lab", "page", "hosts.equinox", "hosts.flax", "hosts.haiku", "hosts.transformers"]
"""What is imported by its own name."""
EXCEPTIONS = {
    "jattn.flow.Recorder.run: return": "arrays by name, nested as they were observed",
    "jattn.page.Part.data": "what a picture on the page is made of, whatever JSON can hold",
}
OF_DTYPES = (np.ndarray, np.dtype, type)
"""Generic types whose parameter is a dtype, of which `Any` says that each will do."""


def public_things(module, name):
    """Each function and class that a module makes public, by the name that users write, and those of its modules."""
    for inner in getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]:
        thing, known_as = getattr(module, inner), f"{name}.{inner}"
        if inspect.ismodule(thing):
            if thing.__name__ == known_as:
                yield from public_things(thing, known_as)
        elif hasattr(module, "__all__") or getattr(thing, "__module__", "") == module.__name__:
            yield known_as, thing


def everything():
    for name in ["jattn", *(f"jattn.{inner}" for inner in ON_REQUEST)]:
        yield from public_things(importlib.import_module(name), name)


def annotations_of(f):
    """What is said of each argument and of the result; of a function with overloads, by each of these."""
    for form in typing.get_overloads(f) or [f]:
        signature = inspect.signature(form)
        yield from ((p.name, p.annotation) for p in signature.parameters.values())
        yield "return", signature.return_annotation


def said(things):
    """The annotations of functions, and of the fields and public methods of classes, by their names."""
    for name, thing in things:
        if inspect.isclass(thing):
            yield from ((f"{name}.{field}", x) for field, x in inspect.get_annotations(thing).items())
            for method, f in vars(thing).items():
                own = "__call__" if dataclasses.is_dataclass(thing) else ("__init__", "__call__")
                if inspect.isfunction(f) and (not method.startswith("_") or method in own):
                    yield from ((f"{name}.{method}: {of}", x) for of, x in annotations_of(f))
        elif inspect.isfunction(thing):
            yield from ((f"{name}: {of}", x) for of, x in annotations_of(thing))


def holds_any(x):
    """Whether `Any` is somewhere in an annotation."""
    if typing.is_typeddict(x):
        return any(map(holds_any, x.__annotations__.values()))
    if isinstance(x, list):  # of the arguments of a Callable
        return any(map(holds_any, x))
    return x is Any or (typing.get_origin(x) not in OF_DTYPES and any(map(holds_any, typing.get_args(x))))


def vague(things):
    return {name for name, x in said(things) if holds_any(x)}


def parts(x):
    """An annotation and whatever it is made of."""
    if isinstance(x, list):  # of the arguments of a Callable
        yield from (part for one in x for part in parts(one))
    else:
        yield x
        yield from (part for one in typing.get_args(x) for part in parts(one))


def nameless(things, package="jattn."):
    """The classes of jattn in annotations that have no public name, by themselves or in a public alias."""
    named = {id(x) for _, thing in things for x in ([thing] if inspect.isclass(thing) else parts(thing))}
    found = {x for _, said_of in said(things) for x in parts(said_of) if inspect.isclass(x)}
    return {x.__name__ for x in found if x.__module__.startswith(package) and id(x) not in named}


def test_each_type_that_a_public_function_takes_or_returns_has_a_public_name():
    assert nameless(list(everything())) == set()


def test_a_type_without_a_public_name_is_found_wherever_it_stands():
    class Options(typing.TypedDict):
        n: int

    class Row(typing.NamedTuple):
        n: int

    class Seen(typing.NamedTuple):
        n: int

    def f(x: list[Row], **options: typing.Unpack[Options]) -> typing.Callable[[Seen], int]: ...

    assert nameless([("f", f)], __name__) == {"Options", "Row", "Seen"}
    assert nameless([("f", f), ("Row", Row), ("Alias", dict[str, Seen] | None)], __name__) == {"Options"}


def test_a_type_is_said_wherever_one_can_be():
    assert vague(everything()) == set(EXCEPTIONS)


def test_what_is_said_of_every_public_name_is_looked_at():
    names = {name for name, _ in said(everything())}
    seen = {"jattn.attention: q", "jattn.merge: return", "jattn.masks.Mask.pairs: q", "jattn.flow.Now.data"}
    seen |= {"jattn.hosts.flax.attention_fn: module", "jattn.lab.collapse.residual: x", "jattn.page.run: run"}
    seen |= {"jattn.hosts.equinox.MultiheadAttention.__call__: query", "jattn.positions.Frequencies.inv"}
    assert seen <= names


def test_any_is_found_wherever_it_stands():
    class Options(typing.TypedDict):
        mask: Any

    class Kept:
        field: dict[str, Any]

        def method(self, f: typing.Callable[[Any], int]) -> None: ...

    def f(x: Any, y: int | list[Any], z: np.ndarray[Any, Any], **options: typing.Unpack[Options]) -> int: ...

    places = {"f: x", "f: y", "f: options", "Kept.field", "Kept.method: f"}
    assert vague([("f", f), ("Kept", Kept)]) == places
