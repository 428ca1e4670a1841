"""What holds for every test: strict promotion, eight devices on a CPU, float32 arithmetic in float32."""

import collections
import functools
import gc
import importlib.util
import os
import re
import threading

import hypothesis
import jax
import pytest
from jax._src import compiler
from jax._src.interpreters import mlir

# Before any backend is used. On a machine with an accelerator the tests run there: JAX_PLATFORMS decides, as ever.
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Tolerances are multiples of eps: a GPU would otherwise multiply float32 matrices in fewer bits.
jax.config.update("jax_default_matmul_precision", "highest")
# Where an operation was written, which no test asks: a twentieth of the time.
jax.config.update("jax_traceback_in_locations_limit", 0)
# Where no programs are kept (`make test` does), no key of each is made to look for it.
jax.config.update("jax_enable_compilation_cache", jax.config.jax_compilation_cache_dir is not None)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="the exhaustive products too, every program fully optimised")
    parser.addoption(
        "--one-in", type=int, default=1, metavar="N", help="of the cases of each test the first of every N"
    )


def pytest_configure(config):
    config.pluginmanager.register(Compiling)  # the examples of jattn/ and README.md are none of this folder's
    config.option.loadscopereorder = False  # xdist would begin with the files of the most tests, not with the longest
    config.addinivalue_line(
        "markers", "exhaustive: repeats over a whole product what other tests cover; with --all only"
    )
    config.addinivalue_line(
        "markers",
        "structure: checks what is computed, not its last bits: compiled without expensive passes but for --all",
    )


def pytest_xdist_auto_num_workers(config):
    """As many as there are processors; of "auto" one more: some tests wait for a browser or another process."""
    more = 1 if config.option.numprocesses == "auto" else 0
    return more + len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


LONGEST = (
    "test_transforms", "test_kernels", "test_notebooks", "test_page", "test_benchmarks", "test_real_bank",
    "test_processes", "test_lab", "test_sharding_programs", "test_sharding", "test_story", "test_gradient_flow",
    "test_demos", "test_determinism", "test_one_head", "test_modes", "test_page_model", "test_sweeps", "test_cache",
    "test_explore", "test_flow", "test_bank_river", "test_hosts", "test_parity", "test_learns_which_blocks",
    "test_export", "test_tiles", "test_sharded_demos", "test_memory", "test_kernels_gpu", "test_figures",
    "test_page_arithmetic", "test_engine_details", "test_alive_page", "test_scores", "test_page_blocks",
    "test_many_heads", "test_notebook", "test_masks", "test_every_derivative",
)  # fmt: skip


def is_structure(item):
    return item.get_closest_marker("structure") is not None and not item.config.option.all


def in_browser(item):
    return item.callspec.params.get("browser", "") if hasattr(item, "callspec") else ""


@pytest.hookimpl(trylast=True)  # pytest's own order would start a browser several times
def pytest_collection_modifyitems(config, items):
    for item in items:
        if not isinstance(item, pytest.Function):
            item.add_marker("structure")  # what an example prints is rounded
        if item.path.name == "from_pytorch.md":
            needed = not all(map(importlib.util.find_spec, ("torch", "transformers")))
            item.add_marker(pytest.mark.skipif(needed, reason="the other side: pip install 'jattn[parity]'"))
            item.add_marker(pytest.mark.filterwarnings("default"))  # what torch warns of in its own code
    # The longest files first, so that no worker is alone with one of them in the end. In each file, what is compiled in
    # full before what is compiled cheaply: what a test forgets for its options, the next would compile anew. And one
    # browser after the other, each of which is started once.
    files = {path: at for at, path in enumerate(dict.fromkeys(item.path for item in items))}
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(
        key=lambda item: (ranks.get(item.path.stem, len(ranks)), files[item.path], is_structure(item), in_browser(item))
    )
    left_out = [] if config.option.all else [item for item in items if item.get_closest_marker("exhaustive")]
    cases = collections.Counter()
    for item in items:
        if item in left_out or not hasattr(item, "callspec"):
            continue
        test = item.path, item.originalname
        if cases[test] % config.option.one_in:
            left_out.append(item)
        cases[test] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish():
    """Tracing makes millions of small objects: modules are not searched for garbage again, the rest less often."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


class Compiling:
    """Around a whole test, its fixtures included; what modules compute as they are imported is compiled cheaply."""

    @staticmethod
    def pytest_collectstart(collector):
        if not (options or collector.config.option.all):
            compile_so(quick=True)

    @staticmethod
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item):
        compile_so(is_structure(item))
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """On one accelerator a test of a mesh is left out: `jax_num_cpu_devices` above speaks of CPUs alone."""
    try:
        return (yield)
    except ValueError as error:
        if jax.default_backend() == "cpu" or not re.search(r"Number of devices \d+ must be >= the product", str(error)):
            raise
        pytest.skip(f"it needs a mesh of more devices than the {jax.device_count()} that are here")


def compile_so(quick):
    if options and not quick:
        jax.clear_caches()  # nothing that was compiled cheaply is run where what users run is tested
    jax.config.update("jax_disable_most_optimizations", quick)
    options.clear()
    options.update(plain() if quick else {})


@functools.cache
def plain():
    """On a CPU compiling takes a quarter of the time with the older emitters of kernels and one LLVM module a program.

    Newer compilers have no older emitters: what this one does not know is left out.
    """

    def known(name, value):
        try:
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
        except jax.errors.JaxRuntimeError:
            return False
        return True

    both = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
    return {name: value for name, value in both.items() if known(name, value)}


options = {}  # of the test that runs
of_jax = compiler.get_compile_options


def compile_options(*args, env_options_overrides=None, **how):
    """Those of jax and ours. No public setting reaches every program of some tests (XLA_FLAGS is read once)."""
    return of_jax(*args, env_options_overrides=options | dict(env_options_overrides or {}), **how)


compiler.get_compile_options = compile_options


make_context = getattr(mlir, "make_ir_context", None)
shared_context = functools.cache(lambda: make_context())


def context():
    """One for all programs of a file: to make one takes as long as to lower a small program.

    What is lowered in the midst of another program has its own, for it must not be inserted there, and what is lowered
    on another thread.
    """
    try:
        within = mlir.ir.Context.current
    except ValueError:  # some versions raise where there is none
        within = None
    alone = within is None and threading.current_thread() is threading.main_thread()
    return shared_context() if alone else make_context()


if make_context is not None:
    mlir.make_ir_context = context


hypothesis.settings.register_profile("here", deadline=None, max_examples=25)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(scope="module", autouse=True)
def no_programs_of_other_files(request):
    """Some thousand compiled programs would take 6 GB in each process. Those of examples are small, and often alike."""
    yield
    if request.path.name.startswith("test_"):
        jax.clear_caches()
        shared_context.cache_clear()


@pytest.fixture
def x64():
    """float64 inside this test, and only there."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", params=["chromium", pytest.param("firefox", marks=pytest.mark.exhaustive)])
def browser(request):
    """A browser, which the tests of a file share. Firefox with --all, but for what `_browser.in_both` marks."""
    from _browser import launched  # which imports jattn: after the settings above

    with launched(request.param) as browser:
        yield browser
