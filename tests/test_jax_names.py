"""What jattn uses of JAX beyond its public interface lies in one file, with a reason for each name."""

import ast
import importlib
from pathlib import Path

import jax
import pytest

import jattn
from jattn import _jax

PACKAGE = Path(jattn.__file__).parent
NOT_PROMISED = ("jax._src", "jax.core", "jax.experimental", "jax.extend", "jax.interpreters")
ALLOWED = {"jax.core", "jax.core.Tracer"}  # the class is documented, for isinstance


def gone(name):
    """A sentence for a name that the installed JAX does not have, else None."""
    module, _, attribute = name.rpartition(".")
    try:
        getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        try:
            importlib.import_module(name)
        except ImportError:
            return f"jax {jax.__version__} has no {name} any more. What hangs on it: {_jax.WHY[name]}."
    return None


@pytest.mark.parametrize("name", _jax.WHY)
def test_this_jax_has_the_name(name):
    assert gone(name) is None


def test_a_name_that_is_gone_is_a_sentence(monkeypatch):
    monkeypatch.setattr(_jax, "WHY", {"jax.interpreters.nowhere": "everything"})
    assert gone("jax.interpreters.nowhere").endswith("jax.interpreters.nowhere any more. What hangs on it: everything.")


def beyond(tree):
    """The names in a file that JAX does not promise to keep, as they are imported or spelled out."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        yield from (n for n in names if n not in ALLOWED and any(f"{n}.".startswith(f"{m}.") for m in NOT_PROMISED))


def test_no_other_file_uses_such_names():
    files = {f: set(beyond(ast.parse(f.read_text("utf-8")))) for f in PACKAGE.rglob("*.py") if f.name != "_jax.py"}
    assert {f.name: names - {n.rpartition(".")[0] for n in names} for f, names in files.items() if names} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "from jax._src import core",
        "import jax.interpreters.ad",
        "jax.extend.core.Primitive('a')",
        "jax.core.gensym()",
    ],
)
def test_such_a_name_elsewhere_would_be_seen(planted):
    assert list(beyond(ast.parse(planted)))


def test_each_name_of_the_file_has_its_reason():
    imported = {
        alias.name if alias.asname is None else alias.asname
        for node in ast.walk(ast.parse(Path(_jax.__file__).read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("jax")
        for alias in node.names
    }
    imported |= {name.rpartition(".")[2] for name in _jax.ON_FIRST_USE.values()}
    assert imported - {"dispatch"} == {name.rpartition(".")[2] for name in _jax.WHY} - {
        "prim_requires_devices_during_lowering"
    }
