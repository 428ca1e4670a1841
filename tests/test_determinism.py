"""The same call gives the same bits; and by a rule, a sequence gives the same bits alone, in a batch, padded or packed.

The rule, on a CPU: examples by `jax.lax.map` instead of `jax.vmap`; a `tile` that is given, and arrays longer than one
tile; documents of a pack that begin at a multiple of the tile, the lone one under the same mask.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_same, normal

import jattn
from jattn import masks

ON_CPU = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the rule is measured on a CPU")
D, TILE = 32, (16, 16)


def example(T, dtype=jnp.float32, seed=0):
    """q, k, v and a cotangent of out."""
    return tuple(normal(T, D, seed=4 * seed + i).astype(dtype) for i in range(4))


def value_and_gradient(q, k, v, w, mask=None, tile=TILE):
    out, pull = jax.vjp(lambda *x: jattn.attention(*x, mask=mask, tile=tile), q, k, v)
    return out, *pull(w)


# One program for each shape and kind of mask, whatever is in the mask.
program = jax.jit(value_and_gradient, static_argnames="tile")


def differ(a, b):
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in zip(a, b, strict=True))


# The same call.


def derivatives(names, q, k, v, w):
    mask, bias = masks.causal() & masks.lengths(q=np.int32(31), k=np.int32(23)), normal(len(q), len(k), seed=7)
    options = {"mask": mask, "bias": bias.astype(q.dtype), "score": lambda score, t, s: 5 * jnp.tanh(score / 5)}
    f = lambda *x: jattn.attention(*x, tile=TILE, **options)  # noqa: E731
    gradient = lambda *x: jax.vjp(f, *x)[1](w)  # noqa: E731
    x, x_dot = (q, k, v), (v, q, k)
    every = {
        "value, jvp": lambda: jax.jvp(f, x, x_dot),
        "grad, jvp of grad": lambda: jax.jvp(gradient, x, x_dot),
        "grad of grad": lambda: jax.vjp(gradient, *x)[1](x_dot),
    }
    return [every[name]() for name in names]


@pytest.mark.parametrize(
    "names",
    [("value, jvp", "grad, jvp of grad"), pytest.param(("grad of grad",), marks=pytest.mark.exhaustive)],
    ids=", ".join,
)
def test_the_same_call_twice_is_the_same_bit_for_bit(names):
    """Every derivative, and compiled afresh; of masked rows and tiles, a bias and a score."""
    x = example(40)
    f = jax.jit(functools.partial(derivatives, names))
    first = f(*x)
    assert_same(f(*x), first)
    jax.clear_caches()
    assert_same(jax.jit(functools.partial(derivatives, names))(*x), first)


def test_on_several_threads_the_same_call_is_the_same_bit_for_bit():
    """Products large enough to be shared among cores."""
    x = tuple(jnp.asarray(normal(2, 1100, 3, D, seed=i), jnp.float32) for i in range(3))
    f = jax.jit(jax.value_and_grad(lambda *x: jattn.dot_product_attention(*x).sum(), (0, 1, 2)))
    first = f(*x)
    for _ in range(4):
        assert_same(f(*x), first)


# A sequence and its company.


def stacked(examples, B):
    """A batch of B, in which the examples take turns."""
    return tuple(np.stack([examples[b % len(examples)][i] for b in range(B)]) for i in range(4))


@ON_CPU
@pytest.mark.parametrize(
    ("dtype", "B"),
    [
        (jnp.float32, 7),
        (jnp.bfloat16, 64),
        pytest.param(jnp.float32, 64, marks=pytest.mark.exhaustive),
        pytest.param(jnp.bfloat16, 7, marks=pytest.mark.exhaustive),
    ],
)
def test_by_map_a_row_does_not_depend_on_its_batch(dtype, B):
    examples = [example(40, dtype, seed) for seed in range(3)]
    alone = [program(*x) for x in examples]
    mapped = jax.jit(lambda *x: jax.lax.map(lambda x: value_and_gradient(*x), x))
    got = mapped(*stacked(examples, B))
    for b in range(B):
        assert_same(tuple(np.asarray(a)[b] for a in got), alone[b % 3])


@ON_CPU
def test_under_vmap_the_bits_of_an_example_may_depend_on_its_batch():
    """The control: examples in one group, in another order of additions. In which sizes is a matter of XLA's."""

    def depends(T, tile, B):
        f, x = functools.partial(value_and_gradient, tile=tile), example(T)
        got = jax.jit(jax.vmap(f))(*stacked([x], B))
        return differ([np.asarray(a)[0] for a in got], program(*x, tile=tile))

    assert depends(80, (64, 64), 7) or depends(40, TILE, 64)


def placed(x, T, at=0):
    """An example among others of T rows in all; only its own cotangents count."""
    among = example(T, x[0].dtype, seed=9)
    among[3][:] = 0
    for a, b in zip(among, x, strict=True):
        a[at : at + len(b)] = b
    return among


def padded(x, T, mask=None, **how):
    """What an example gives of its own rows, with others behind it, which lengths hide."""
    n = len(x[0])
    lengths = masks.lengths(k=np.int32(n))
    return tuple(
        np.asarray(a)[:n] for a in program(*placed(x, T), mask=lengths if mask is None else mask & lengths, **how)
    )


@ON_CPU
@pytest.mark.parametrize(
    ("dtype", "mask"),
    [
        (jnp.float32, masks.causal()),
        pytest.param(jnp.bfloat16, masks.causal(), marks=pytest.mark.exhaustive),
        pytest.param(jnp.float32, None, marks=pytest.mark.exhaustive),
        pytest.param(jnp.bfloat16, None, marks=pytest.mark.exhaustive),
    ],
)
def test_in_given_tiles_a_row_does_not_depend_on_its_padding(dtype, mask):
    """40 rows are three tiles of 16, the last of them padded; as the first of 80 or of 160, they are the same three.

    Alone they have a mask too: without one, XLA may round a product and a sum once, which it rounds twice beside a
    choice. The sums of the rows of an array of 4,096 numbers and more it takes in another order.
    """
    x = example(40, dtype)
    alone = program(*x, mask=masks.lengths(k=np.int32(40)) if mask is None else mask)
    assert_same(padded(x, 80, mask), alone)
    assert_same(padded(x, 160, mask), alone)


@ON_CPU
def test_in_tiles_that_follow_the_length_it_may():
    """The control: 40 rows are one tile of 40; among 600, a part of one of 304."""
    x = example(40)
    assert differ(padded(x, 600, tile=None), padded(x, 40, tile=None))


@ON_CPU
@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.exhaustive)])
def test_packed_at_a_multiple_of_the_tile_a_document_is_as_alone(dtype):
    """Alone: a pack of one, with an id of its own for the rows that fill its last tile. The control: five rows on."""
    x = example(40, dtype)

    def packed(at, T):
        ids = np.full(T, 3, np.int32)
        ids[at : at + 40], ids[at + 40 : at + 48] = 1, 0
        got = program(*placed(x, T, at), mask=masks.segments(ids) & masks.causal())
        return tuple(np.asarray(a)[at : at + 40] for a in got)

    alone = packed(0, 48)
    assert_same(packed(32, 112), alone)
    if dtype == jnp.float32:
        assert differ(packed(37, 112), alone)
