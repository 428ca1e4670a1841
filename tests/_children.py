"""The environment of the processes that tests start."""

import os

import jax


def environment():
    """They compile as this test does: without expensive passes where it is marked `structure`."""
    quick = jax.config.read("jax_disable_most_optimizations")
    return os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": str(int(quick))}
