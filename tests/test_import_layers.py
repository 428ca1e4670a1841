"""The layers of the library: a module imports from lower layers only, never from one of its own layer."""

import ast
import inspect
import shutil
from pathlib import Path

import pytest

import jattn
from jattn import one_head, reference

LAYERS = {
    "_jax": -2,
    "_taylor": -1,
    "_diagonals": 0,
    "_types": 0,
    "_errors": 0,
    "_html": 0,
    "_numerics": 0,
    "_values": 0,
    "reference": 1,
    "_softmax": 1,
    "partials": 1,
    "masks": 1,
    "scores": 1,
    "positions": 1,
    "_picture_inputs": 2,
    "arguments": 2,
    "engine": 2,
    "one_head": 3,
    "many_heads": 3,
    "ragged": 3,
    "per_query": 3,
    "cache": 3,
    "sharding": 3,
    "heads": 4,
    "hosts": 4,
    "flow": 4,
    "lab": 4,
    "figures": 4,
    "console": 4,
    "page": 4,
    "__init__": 5,
}
LAYERS_WITHIN = {  # of each package, the layers of its files and folders, lowest first; __init__ is above them all
    "arguments": [["options"], ["heads"]],
    "cache": [["_store"], ["_buffers", "_validate"], ["_pages"], ["_append", "_decode"], ["_attention"]],
    "console": [["_grid", "_progress", "_save"], ["_views"]],
    "engine": [
        ["tuning"],
        ["batching", "plan"],
        ["schedule", "score", "tile"],
        ["tangent"],
        ["backward", "forward"],
        ["heads_at_once", "jvp", "kernels", "per_query"],
        ["attend"],
    ],
    "engine.batching": [["partition"], ["function"], ["primitive"], ["vmap"], ["derivatives"]],
    "engine.kernels": [
        ["distances", "grid", "threefry"],
        ["score"],
        ["layout", "plans"],
        ["kernel"],
        ["cudnn", "gpu", "passes", "tpu"],
        ["backward"],
        ["support"],
        ["report"],
    ],
    "figures": [["_canvas", "_save"], ["_effects", "_plane", "_signed", "_tiles", "_weights"], ["_time"]],
    "flow": [
        ["_closed", "_looks", "_margins", "_measures"],
        ["_paths", "_pulls"],
        ["_continuous", "_diagnosis", "_long", "_recorder", "_rows"],
    ],
    "heads": [["_norm", "_params", "_per_head"], ["_multi", "_effects"], ["_latent", "_scores"]],
    "hosts": [["_attend"], ["equinox", "flax", "haiku", "transformers"]],
    "lab": [
        ["result", "training"],
        ["collapse", "dot_products", "entropies", "induction", "regression", "selection", "sphere"],
    ],
    "masks": [
        ["_tiles", "_counts"],
        ["_algebra"],
        [
            "_blocks",
            "_by_position",
            "_by_row",
            "_chosen",
            "_dense_form",
            "_neighbourhood",
            "_strided",
            "_tree",
            "_where",
        ],
    ],
    "page": [["_document"], ["_blocks", "_head_table", "_model", "_story"]],
    "positions": [["_angles", "_frequencies"], ["_rotary", "_scalings"]],
    "scores": [["_pointwise"], ["_relative"]],
    "sharding": [["_blocks", "_ring"], ["_exchange", "_statistics"], ["_schemes"], ["_mesh"], ["_plan"]],
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


def violations(package, layers=LAYERS):
    """Every import that is not from a lower layer, in words."""
    for module, file in modules(package):
        if module not in layers:
            yield f"{module} has no layer"
            continue
        for line, other in imported(ast.parse(file.read_text()), package.name):
            # `from package import name` names a module or, from the top, what the package re-exports.
            target = other if other in layers or (package / f"{other}.py").exists() else "__init__"
            if target == module and file.parent != package:
                continue  # inside a subpackage
            if target not in layers:
                yield f"{module}:{line} imports {target}, which has no layer"
            elif layers[target] >= layers[module]:
                direction = "up" if layers[target] > layers[module] else "sideways"
                yield f"{module}:{line} imports {direction}: {target}"


def violations_within(package, layers_within=LAYERS_WITHIN):
    """Every import inside a package of the library that is not from a lower layer, in words."""
    found = {".".join(f.parent.relative_to(package).parts) for f in package.rglob("__init__.py")} - {""}
    yield from (f"{name} has no table of layers" for name in sorted(found - layers_within.keys()))
    for name, order in layers_within.items():
        layers = {file: n for n, files in enumerate(order) for file in files} | {"__init__": len(order)}
        folder = package.joinpath(*name.split("."))
        for file in sorted(folder.rglob("*.py")):
            module = file.relative_to(folder).with_suffix("").parts[0]
            if module not in layers:
                yield f"{name}.{module} has no layer"
                continue
            for line, other in names_imported(file, f"{package.name}.{name}"):
                target = other if other in layers else "__init__"
                if layers[target] >= layers[module] and target != module:
                    yield f"{name}.{module}:{line} imports {target}"


def names_imported(file, dotted):
    """The first name below the package `dotted` of each import of a file."""
    prefix = dotted + "."
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (
                (node.lineno, a.name[len(prefix) :].split(".")[0]) for a in node.names if a.name.startswith(prefix)
            )
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "a relative import"
        elif isinstance(node, ast.ImportFrom) and node.module == dotted:
            yield from ((node.lineno, a.name) for a in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(prefix):
            yield node.lineno, node.module[len(prefix) :].split(".")[0]


def private_imports(package):
    """Imports of what a leading underscore makes private to the folder that it lies in, from outside of it."""
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(package.name):
                continue
            for alias in node.names:
                parts = f"{node.module}.{alias.name}".split(".")
                for i, part in enumerate(parts):
                    home = package.parent.joinpath(*parts[:i])
                    a_file = (home / f"{part}.py").exists() or (home / part).is_dir()
                    if part.startswith("_") and a_file and not file.is_relative_to(home):
                        yield f"{file.relative_to(package)}:{node.lineno} imports {'.'.join(parts[: i + 1])}"


def test_every_module_imports_from_lower_layers_only():
    assert list(violations(PACKAGE)) == []


def test_inside_each_package_every_file_imports_from_lower_layers_only():
    assert list(violations_within(PACKAGE)) == []


def test_what_has_a_leading_underscore_is_private_to_its_folder():
    assert list(private_imports(PACKAGE)) == []


def test_the_definition_imports_nothing_that_it_judges():
    def sources(module):
        for x in vars(module).values():
            name = x.__name__ if inspect.ismodule(x) else getattr(x, "__module__", None)
            if isinstance(name, str) and name.startswith("jattn") and name != module.__name__:
                yield name.split(".")[1]

    assert {LAYERS[name] for name in sources(reference)} <= {0}
    assert {LAYERS[name] for name in sources(one_head)} > {0}  # one that imports more would be seen


def other_tests(folder):
    """Each import of one test file by another, in words: what two of them need stands in a file of its own."""
    for file in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from (f"{file.name}:{node.lineno} imports {name}" for name in names if name.startswith("test_"))


def test_no_test_file_imports_another(tmp_path):
    assert list(other_tests(Path(__file__).parent)) == []
    (tmp_path / "test_b.py").write_text("import _inputs\nfrom test_a import x\n\ndef f():\n    import test_a\n")
    assert list(other_tests(tmp_path)) == ["test_b.py:2 imports test_a", "test_b.py:5 imports test_a"]


def planted(tmp_path, file, line):
    """A copy of the library with one more line at the end of a file."""
    copy = tmp_path / "jattn"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / file).open("a") as f:
        f.write(f"\n{line}\n")
    return copy


@pytest.mark.parametrize(
    ("file", "line", "violation"),
    [
        ("engine/tile.py", "from jattn.engine.forward import Forward", "imports forward"),
        ("engine/forward.py", "from jattn.engine import backward", "imports backward"),
        ("engine/batching/partition.py", "from jattn.engine.batching.vmap import Vmapped", "imports vmap"),
        ("engine/tuning.py", "import jattn.engine.plan", "imports plan"),
        ("masks/_algebra.py", "from jattn.masks import causal", "imports __init__"),
        ("cache/_store.py", "def f():\n    from jattn.cache._append import append", "imports _append"),
    ],
)
def test_an_upward_import_planted_inside_a_package_is_caught(tmp_path, file, line, violation):
    (found,) = violations_within(planted(tmp_path, file, line))
    assert found.endswith(violation)


def test_a_file_or_a_package_without_a_layer_is_caught(tmp_path):
    copy = planted(tmp_path, "engine/stray.py", "import jax")
    (copy / "attic").mkdir()
    (copy / "attic" / "__init__.py").write_text("")
    assert list(violations_within(copy)) == ["attic has no table of layers", "engine.stray has no layer"]


def test_a_planted_import_of_a_private_file_is_caught(tmp_path):
    copy = planted(tmp_path, "one_head.py", "from jattn.masks._algebra import Mask\nfrom jattn.cache import _store")
    assert [found.split(" imports ")[1] for found in private_imports(copy)] == [
        "jattn.masks._algebra",
        "jattn.cache._store",
    ]


def test_the_search_sees_the_imports_that_are_there():
    pairs = {(m, other) for m, file in modules(PACKAGE) for _, other in imported(ast.parse(file.read_text()), "jattn")}
    assert {
        ("one_head", "reference"),
        ("many_heads", "arguments"),
        ("masks", "_errors"),
        ("__init__", "partials"),
    } <= pairs


@pytest.mark.parametrize(
    ("module", "line", "violation"),
    [
        ("masks", "from jattn import one_head", "masks:1 imports up: one_head"),
        ("masks", "from jattn.partials import merge", "masks:1 imports sideways: partials"),
        ("masks", "import jattn.one_head as d", "masks:1 imports up: one_head"),
        ("masks", "from . import partials", "masks:1 imports sideways: partials"),
        ("masks", "from .one_head import attention", "masks:1 imports up: one_head"),
        ("masks", "import jattn", "masks:1 imports up: __init__"),
        ("masks", "from jattn import attention", "masks:1 imports up: __init__"),
        ("masks", "def f():\n    from jattn import reference", "masks:2 imports sideways: reference"),
        ("masks", "if True:\n    import jattn.many_heads", "masks:2 imports up: many_heads"),
        ("_errors", "from jattn import _types", "_errors:1 imports sideways: _types"),
        ("stray", "import jax", "stray has no layer"),
        ("masks", "from jattn import stray", "masks:1 imports stray, which has no layer"),
    ],
)
def test_a_planted_import_that_is_not_from_a_lower_layer_is_caught(tmp_path, module, line, violation):
    package = tmp_path / "jattn"
    package.mkdir()
    for name in ("__init__", "_errors", "_types", "partials", "reference", "one_head", "many_heads", "masks"):
        (package / f"{name}.py").write_text("import jax\n")
    if "stray" in line:
        (package / "stray.py").write_text("")
    assert list(violations(package)) == (["stray has no layer"] if "stray" in line else [])
    (package / f"{module}.py").write_text(line)
    assert violation in list(violations(package))


def test_imports_from_lower_layers_are_let_through(tmp_path):
    package = tmp_path / "jattn"
    package.mkdir()
    (package / "_types.py").write_text("from collections.abc import Callable\nimport jax\n")
    (package / "masks.py").write_text("import jax.numpy as jnp\nfrom jattn._types import Array\nfrom . import _types\n")
    (package / "one_head.py").write_text(
        "from jattn import masks\nfrom jattn.masks import causal\nimport jattn.masks\n"
    )
    (package / "__init__.py").write_text("from jattn import masks\nfrom jattn.one_head import attention\n")
    assert list(violations(package)) == []
