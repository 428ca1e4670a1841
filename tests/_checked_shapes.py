"""The checker of annotations that the tests have jaxtyping use on the package: every type and shape is checked.

As a plugin of pytest (`-p _checked_shapes`), for the tests of what is refused: where an annotation does not hold, the
function is asked too. Its own error is raised; where it has none, that of the annotation.
"""

import functools
import inspect
import sys

import beartype
import jax
import jax.export
import jaxtyping

SIZE = beartype.FrozenDict({int: int | type(jax.export.symbolic_shape("n")[0])})
checked = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True, hint_overrides=SIZE))
"""As type checkers read annotations: an int is a float. And a size may be a symbol, which JAX says is an int."""

jaxtyped = jaxtyping.jaxtyped


def asked(function=None, *, typechecker):
    """`jaxtyping.jaxtyped`, for which what a function refuses itself is no fault of its annotations."""
    if function is None:
        return functools.partial(asked, typechecker=typechecker)
    typed = jaxtyped(function, typechecker=typechecker)
    if not inspect.isfunction(function):
        return typed

    @functools.wraps(typed)
    def call(*args, **named):
        try:
            return typed(*args, **named)
        except jaxtyping.TypeCheckError as error:
            if not getattr(error, "is_a_fault", False):
                function(*args, **named)
                error.is_a_fault = True
            raise

    return call


def pytest_configure(config):
    if "jattn" in sys.modules:
        raise RuntimeError("jattn was imported before its annotations could be checked")
    jaxtyping.jaxtyped = asked
    # beartype looks at one entry of a list, by chance.
    config.addinivalue_line("filterwarnings", "ignore:Do not use the `random` module inside strategies")
