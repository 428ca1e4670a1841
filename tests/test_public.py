"""The public face: the names, what is said about each, and what importing them leaves alone."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import types
import typing
from importlib import resources
from pathlib import Path

import jax
import jaxtyping
import numpy as np
import pytest
from _checked_shapes import checked
from _docstrings import flaws

import jattn

ALL = [
    "CHECKPOINT_NAMES",
    "AttentionOptions",
    "DotProductAttentionOptions",
    "Implementation",
    "RaggedAttentionOptions",
    "SharedOptions",
    "Statistics",
    "Steps",
    "attention",
    "cache",
    "dot_product_attention",
    "explain",
    "flow",
    "heads",
    "implementations",
    "log_softmax",
    "masks",
    "merge",
    "positions",
    "ragged_attention",
    "reference",
    "scores",
    "sharding",
    "softmax",
    "statistics",
    "top_keys",
    "weights_of",
]
CACHE = ["append", "attention", "cascade", "contiguous", "free", "next_positions", "paged", "quantised", "ring"]
CACHE += ["share"]
MASKS = ["block_state", "blocks", "causal", "chosen_blocks", "chunked", "dense", "dilated", "empty", "full", "lengths"]
MASKS += [
    "neighbourhood",
    "picture",
    "prefix",
    "ragged",
    "segments",
    "sinks",
    "strided",
    "to_dense",
    "tree",
    "where",
    "window",
]
SCORES = ["alibi", "alibi_slopes", "bucket", "compose", "distance_bias", "relative_bias", "soft_cap", "temperature"]
POSITIONS = ["compose", "dynamic_ntk", "frequencies", "linear", "llama3", "longrope", "ntk", "rotary", "sections"]
POSITIONS += ["sinusoidal", "yarn"]
HEADS = [
    "agreement",
    "backward_lens",
    "effects",
    "grouped",
    "head_scores",
    "init",
    "latent_absorbed",
    "latent_expanded",
    "latent_init",
    "latents",
    "multi_head",
    "output",
]
HEADS += ["project", "rms_norm"]
EXTRAS = ["matplotlib", "plotly", "rich", "torch", "orbax", "tokenizers", "safetensors", "scipy.optimize", "hypothesis"]
EXTRAS += ["flax", "equinox", "haiku", "transformers"]
DRAWING = ["lab", "figures", "console", "page"]


def modules():
    """jattn and every module in it."""
    names = [m.name for m in pkgutil.walk_packages(jattn.__path__, "jattn.")]
    return {name: importlib.import_module(name) for name in ["jattn", *names]}


def public_functions():
    """Each public function by the name under which it is found."""
    spaces = {"jattn": jattn} | {f"jattn.{n}": m for n in jattn.__all__ if inspect.ismodule(m := getattr(jattn, n))}
    for space, module in spaces.items():
        for name, f in vars(module).items():
            here = module is jattn or (getattr(f, "__module__", "") + ".").startswith(module.__name__ + ".")
            if inspect.isfunction(f) and here and not name.startswith("_"):
                yield f"{space}.{name}", f


FUNCTIONS = dict(public_functions())
SCHEMES = {f"jattn.sharding.{name}" for name in ("ring", "all_to_all", "gather", "tree", "ring_all_to_all")}


def test_the_public_names_are_those_of_this_list():
    assert jattn.__all__ == ALL
    assert all(hasattr(jattn, name) for name in ALL)


def test_the_functions_that_are_documented_are_all_of_them():
    wanted = {f"jattn.{n}" for n in ALL if inspect.isfunction(getattr(jattn, n))}
    wanted |= {f"jattn.flow.{n}" for n in jattn.flow.__all__ if inspect.isfunction(getattr(jattn.flow, n))}
    wanted |= {f"jattn.scores.{n}" for n in SCORES}
    wanted |= {f"jattn.masks.{n}" for n in MASKS} | {"jattn.reference.steps", "jattn.reference.attention"}
    wanted |= {"jattn.reference.statistics"}
    wanted |= {f"jattn.positions.{n}" for n in POSITIONS}
    wanted |= {f"jattn.heads.{n}" for n in HEADS}
    wanted |= {f"jattn.cache.{n}" for n in CACHE}
    wanted |= {f"jattn.sharding.{n}" for n in jattn.sharding.__all__ if inspect.isfunction(getattr(jattn.sharding, n))}
    assert set(FUNCTIONS) == wanted


def test_attention_has_the_arguments_that_it_promises():
    parameters = inspect.signature(jattn.attention).parameters
    assert list(parameters)[:3] == ["q", "k", "v"]
    keywords = {name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert keywords == set(parameters) - {"q", "k", "v"}, "everything after v is by keyword"
    positions = {"q_positions", "k_positions"}
    assert {"mask", "score", "bias", "sink", "scale", "return_lse"} | positions <= keywords
    assert {"dropout_rate", "dropout_key", "tile"} <= keywords
    assert list(inspect.signature(jattn.weights_of).parameters)[:4] == ["q", "k", "lse", "rows"]
    assert {"mask", "score", "bias", "scale"} <= set(inspect.signature(jattn.explain).parameters)
    assert list(inspect.signature(jattn.merge).parameters) == ["a", "b"]
    assert jattn.Steps._fields == ("scores", "scaled", "weights", "out")
    assert list(inspect.signature(jattn.top_keys).parameters)[:3] == ["q", "k", "n"]
    measured = ("max_logit", "lse", "entropy", "mean_logit", "effective_keys", "sink_weight", "group_weights")
    assert jattn.Statistics._fields == measured
    assert list(inspect.signature(jattn.masks.window).parameters) == ["left", "right"]
    assert list(inspect.signature(jattn.masks.lengths).parameters) == ["q", "k"]
    assert list(inspect.signature(jattn.masks.to_dense).parameters)[:3] == ["mask", "T", "S"]


def keywords_of(overload):
    """The names that an overload takes, those of its TypedDict among them."""
    for name, p in inspect.signature(overload).parameters.items():
        if p.kind is p.VAR_KEYWORD:
            for options in typing.get_args(p.annotation):
                yield from options.__annotations__
        elif name != "self":
            yield name


OVERLOADED = {
    name: overloads
    for name, f in FUNCTIONS.items()
    if (overloads := typing.get_overloads(jattn.sharding.Scheme.__call__ if name in SCHEMES else f))
}


@pytest.mark.parametrize("name", OVERLOADED)
def test_overloads_take_what_the_function_takes(name):
    for overload in OVERLOADED[name]:
        names = list(keywords_of(overload))
        assert len(names) == len(set(names))
        assert set(names) == set(keywords_of(FUNCTIONS[name])), overload


def test_the_functions_that_also_return_lse_are_overloaded():
    optional = {name for name, f in FUNCTIONS.items() if {"return_lse", "return_residual"} & {*keywords_of(f)}}
    assert optional <= set(OVERLOADED)


def test_an_annotated_shape_that_is_not_kept_is_noticed():
    """By what `make test` has check every function while the examples run."""

    @jaxtyping.jaxtyped(typechecker=checked)
    def transposed(x: jaxtyping.Float[jax.Array, "T D"]) -> jaxtyping.Float[jax.Array, "T D"]:
        return x.T

    transposed(np.zeros((3, 3)) + jax.numpy.zeros((3, 3)))
    with pytest.raises(jaxtyping.TypeCheckError, match="return value of"):
        transposed(jax.numpy.zeros((2, 3)))


def test_type_checkers_are_shown_every_public_name():
    """`make lint` has them check this file strictly."""
    tree = ast.parse((Path(__file__).parent / "typing" / "every_public_name.py").read_text("utf-8"))
    shown = {
        f"{n.value.id}.{n.attr}" for n in ast.walk(tree) if isinstance(n, ast.Attribute) and hasattr(n.value, "id")
    }
    spaces = [name for name, module in vars(jattn).items() if hasattr(module, "__all__") and name in ALL]
    wanted = {f"{space}.{name}" for space in spaces for name in getattr(jattn, space).__all__}
    wanted |= {f"{space}.{name}" for space in DRAWING for name in importlib.import_module(f"jattn.{space}").__all__}
    assert wanted <= shown
    assert {f"jattn.{name}" for name in ALL if name not in spaces and name != "reference"} <= shown


def test_dot_product_attention_begins_with_the_signature_of_jax_nn():
    theirs = inspect.signature(jax.nn.dot_product_attention).parameters
    ours = inspect.signature(jattn.dot_product_attention).parameters

    def calls(parameters):
        return [(p.name, p.kind, p.default) for p in parameters]

    assert calls(list(ours.values())[: len(theirs)]) == calls(theirs.values())
    further = list(ours.values())[len(theirs) :]
    ours_alone = {"score", "sink", "q_positions", "k_positions", "dropout_rate", "dropout_key", "tile"}
    assert ours_alone <= {p.name for p in further}
    assert all(p.kind is p.KEYWORD_ONLY and p.default in (None, 0.0, False) for p in further)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_says_what_it_does_and_shows_it(name):
    assert list(flaws(name, FUNCTIONS[name])) == []


@pytest.mark.parametrize(
    "name",
    [
        "attention",
        "explain",
        "dot_product_attention",
        "ragged_attention",
        "merge",
        "softmax",
        "log_softmax",
        "weights_of",
        "statistics",
        "top_keys",
        "implementations",
    ],
)
def test_each_function_on_arrays_says_its_memory_and_its_source(name):
    doc = inspect.getdoc(getattr(jattn, name))
    assert "\nMemory: " in doc
    assert "\nSource: " in doc


def test_a_poor_docstring_is_caught():
    def poor(x, y):
        """Does something"""
        if x:
            raise ValueError

    def silent(x):
        return x

    def dull(x):
        """One sentence.

        Args:
          x: a number.

        Returns:
          It.

        Example:
          >>> 1 + 1
          2
        """
        return x

    missing = {"no section Args", "no section Returns", "no section Example", "no section Raises"}
    assert missing | {"no example that shows a result"} < set(flaws("poor", poor))
    assert "no docstring" in set(flaws("silent", silent))
    assert list(flaws("dull", dull)) == []
    dull.__doc__ = dull.__doc__.replace("x: a number", "a number").replace(">>> ", "")
    assert set(flaws("dull", dull)) == {"does not speak of x", "no example that shows a result"}


def homonyms(package, loaded):
    """Modules that bear the name of a function the package re-exports: one of the two would hide the other."""
    functions = {n for n, x in vars(package).items() if callable(x)}
    return {name for name in loaded if name.rpartition(".")[2] in functions}


def test_no_module_bears_the_name_of_a_function():
    files = [f.name.removesuffix(".py") for f in resources.files("jattn").iterdir() if f.name.endswith(".py")]
    assert homonyms(jattn, [f"jattn.{name}" for name in files]) == set()
    assert homonyms(jattn, ["jattn.attention", "jattn.one_head"]) == {"jattn.attention"}  # such a one would be seen


def test_the_package_says_that_it_is_typed():
    assert resources.files("jattn").joinpath("py.typed").is_file()


SPACES = ["cache", "flow", "heads", "hosts", "lab", "page", "positions", "sharding"]
LATER = [f"jattn.{name}" for name in [*SPACES, "console", "figures"]] + ["jax.experimental.pallas"]
"""What is imported when it is first used."""
FRESH = f"""
import sys
before = set(sys.modules)
import jax
settings = dict(jax.config.values)
import jattn
changed = {{name for name, value in jax.config.values.items() if settings.get(name) != value}}
loaded = {{name for name in {EXTRAS + LATER!r} if name in sys.modules}}
print(jax.config.jax_enable_x64, sorted(changed), sorted(loaded), len(jax._src.xla_bridge._backends))
{{planted}}
print(jax.config.jax_enable_x64, sorted(name for name in {EXTRAS + LATER!r} if name in sys.modules))
"""


def test_importing_pulls_in_no_extra_and_changes_no_setting():
    planted = "import rich; jattn.cache; jax.config.update('jax_enable_x64', True)"
    code = FRESH.replace("{planted}", planted)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ours, control = done.stdout.splitlines()
    assert ours == "False [] [] 0", (
        "x64 off, no setting changed, no extra and nothing that attention does not need, no backend started"
    )
    assert control == "True ['jattn.cache', 'rich']"


@pytest.mark.parametrize("name", [*SPACES, "console", "figures"])
def test_each_module_is_an_attribute_of_the_package(name):
    """What lists the attributes, as help and completion do, asks for no extra."""
    assert jattn.__getattr__(name) is importlib.import_module(f"jattn.{name}")
    assert (name in jattn.__dir__()) == (name in SPACES or name in vars(jattn))


@pytest.mark.parametrize("name", ["jattn", "jattn._jax"])
def test_a_name_that_a_module_does_not_have_is_refused_as_python_does(name):
    with pytest.raises(AttributeError, match=f"^module '{name}' has no attribute 'atention'$"):
        importlib.import_module(name).atention  # noqa: B018


def mutable(module):
    """Names in a module that hold a thing which can be changed in place."""
    for name, x in vars(module).items():
        if name.startswith("__"):
            continue
        if isinstance(x, list | dict | set | bytearray | np.ndarray) or hasattr(x, "cache_clear"):
            yield name


def test_no_module_holds_mutable_state():
    assert {name: list(mutable(m)) for name, m in modules().items() if list(mutable(m))} == {}
    planted = types.ModuleType("planted")
    planted.cache, planted.seen, planted.table, planted.word = {}, [], np.zeros(2), "word"
    assert set(mutable(planted)) == {"cache", "seen", "table"}
