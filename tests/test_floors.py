"""The floors of the library: a module imports from lower floors only, and siblings never know each other."""

import ast
from pathlib import Path

import pytest

import jattn

FLOORS = {
    "_jax": -1,
    "_types": 0,
    "_checks": 0,
    "_numerics": 0,
    "_walk": 0,
    "_values": 0,
    "reference": 1,
    "_softmax": 1,
    "partials": 1,
    "masks": 1,
    "scores": 1,
    "positions": 1,
    "_asked": 2,
    "tiles": 2,
    "blockwise": 3,
    "derivatives": 3,
    "door": 4,
    "batch": 5,
    "heads": 5,
    "cache": 5,
    "sharding": 5,
    "hosts": 6,
    "flow": 6,
    "lab": 6,
    "_given": 6,
    "figures": 7,
    "console": 7,
    "page": 7,
    "__init__": 8,
    "__main__": 9,
}
PACKAGE = Path(jattn.__file__).parent


def modules(package):
    """The first name below the package of every module in it, and its file."""
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        yield parts[0], file


def imported(tree, package):
    """The first name below the package of each module that a file imports, wherever in the file it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root, *below = alias.name.split(".")
                if root == package:
                    yield node.lineno, below[0] if below else "__init__"
        elif isinstance(node, ast.ImportFrom):
            root, *below = (node.module or "").split(".")
            if node.level:
                below = [root, *below] if root else []
            elif root != package:
                continue
            yield from ((node.lineno, below[0] if below else alias.name) for alias in node.names)


def slips(package, floors=FLOORS):
    """Every arrow that does not point down, in words."""
    for module, file in modules(package):
        if module not in floors:
            yield f"{module} has no floor"
            continue
        for line, other in imported(ast.parse(file.read_text()), package.name):
            # `from package import name` names a module or, from the top, what the package re-exports.
            target = other if other in floors or (package / f"{other}.py").exists() else "__init__"
            if target == module and file.parent != package:
                continue  # inside a subpackage
            if target not in floors:
                yield f"{module}:{line} imports {target}, which has no floor"
            elif floors[target] >= floors[module]:
                direction = "up" if floors[target] > floors[module] else "sideways"
                yield f"{module}:{line} imports {direction}: {target}"


def test_every_arrow_points_down():
    assert list(slips(PACKAGE)) == []


def test_the_walk_sees_the_arrows_that_are_there():
    arrows = {(m, other) for m, file in modules(PACKAGE) for _, other in imported(ast.parse(file.read_text()), "jattn")}
    assert {("door", "reference"), ("batch", "door"), ("masks", "_checks"), ("__init__", "partials")} <= arrows


@pytest.mark.parametrize(
    ("module", "line", "slip"),
    [
        ("masks", "from jattn import door", "masks:1 imports up: door"),
        ("masks", "from jattn.partials import merge", "masks:1 imports sideways: partials"),
        ("masks", "import jattn.door as d", "masks:1 imports up: door"),
        ("masks", "from . import partials", "masks:1 imports sideways: partials"),
        ("masks", "from .door import attention", "masks:1 imports up: door"),
        ("masks", "import jattn", "masks:1 imports up: __init__"),
        ("masks", "from jattn import attention", "masks:1 imports up: __init__"),
        ("masks", "def f():\n    from jattn import reference", "masks:2 imports sideways: reference"),
        ("masks", "if True:\n    import jattn.batch", "masks:2 imports up: batch"),
        ("_checks", "from jattn import _types", "_checks:1 imports sideways: _types"),
        ("stray", "import jax", "stray has no floor"),
        ("masks", "from jattn import stray", "masks:1 imports stray, which has no floor"),
    ],
)
def test_a_planted_arrow_is_caught(tmp_path, module, line, slip):
    package = tmp_path / "jattn"
    package.mkdir()
    for name in ("__init__", "_checks", "_types", "partials", "reference", "door", "batch", "masks"):
        (package / f"{name}.py").write_text("import jax\n")
    if "stray" in line:
        (package / "stray.py").write_text("")
    assert list(slips(package)) == (["stray has no floor"] if "stray" in line else [])
    (package / f"{module}.py").write_text(line)
    assert slip in list(slips(package))


def test_what_is_allowed_is_let_through(tmp_path):
    package = tmp_path / "jattn"
    package.mkdir()
    (package / "_types.py").write_text("from collections.abc import Callable\nimport jax\n")
    (package / "masks.py").write_text("import jax.numpy as jnp\nfrom jattn._types import Array\nfrom . import _types\n")
    (package / "door.py").write_text("from jattn import masks\nfrom jattn.masks import causal\nimport jattn.masks\n")
    (package / "__init__.py").write_text("from jattn import masks\nfrom jattn.door import attention\n")
    assert list(slips(package)) == []
