"""The environment of the processes that tests start."""

import os

import conftest
import jax


def environment():
    """They compile as this test does: without expensive passes where it is marked `structure`."""
    quick = jax.config.read("jax_disable_most_optimizations")
    flags = [f"--{name}={str(value).lower()}" for name, value in conftest.options.items()]
    return os.environ | {
        "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
        "JAX_ENABLE_COMPILATION_CACHE": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": str(int(quick)),
        "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *flags]),
    }
