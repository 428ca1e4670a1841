"""Taylor mode, `jax.experimental.jet`: the same derivatives as nested `jax.jvp`, at linear memory."""

import math

import chex
import jax
import jax.numpy as jnp
import pytest
from jax.experimental import jet

import jattn

T, D = 9, 4
Q, K, V, *SERIES = jax.random.normal(jax.random.key(0), (12, T, D))
BIAS = jax.random.normal(jax.random.key(1), (T, T))


def two_heads(x):
    return jnp.stack([x, jnp.sin(x)], axis=1)


CASES = {
    "attention": jattn.attention,
    "a mask in tiles": lambda q, k, v: jattn.attention(q, k, v, mask=jattn.masks.window(3), tile=(16, 16)),
    "lse": lambda q, k, v: jattn.attention(q, k, v, mask=jattn.masks.lengths(5), sink=0.3, return_lse=True),
    "a score and a bias": lambda q, k, v: jattn.attention(
        q, k, v, bias=BIAS, score=lambda s, i, j: jnp.tanh(s) * BIAS[j, i]
    ),
    "distances": lambda q, k, v: jattn.attention(q, k, v, score=jattn.scores.distance_bias(BIAS[0])),
    "heads under vmap": lambda q, k, v: jax.vmap(
        lambda c: jattn.dot_product_attention(two_heads(q), two_heads(c * k), two_heads(v))
    )(jnp.arange(1.0, 3)),
    "gradient": jax.grad(lambda q, k, v: (jattn.attention(q, k, v) ** 2).sum(), argnums=(0, 1, 2)),
    "jvp": lambda q, k, v: jax.jvp(lambda k: jattn.attention(q, k, v), (k,), (v,)),
    "a linear call": lambda q, k, v: jattn.attention(Q, K, v),
    "steps": jattn.explain,
    "statistics": lambda q, k, v: jattn.statistics(q, k),
    "top_keys": lambda q, k, v: jattn.top_keys(q, k, 3)[1],
}  # fmt: skip


def curves(order):
    return [SERIES[i::3][:order] for i in range(3)]


def by_nested_jvp(f, order):
    """The derivatives of f along the curve at 0, from the value on."""

    def at(t):
        powers = [t**n / math.factorial(n) for n in range(1, order + 1)]
        moved = [sum(p * c for p, c in zip(powers, s, strict=True)) for s in curves(order)]
        return f(*(x + m for x, m in zip((Q, K, V), moved, strict=True)))

    def derivative(g):
        return lambda t: jax.jvp(g, (t,), (1.0,))[1]

    orders = [at]
    for _ in range(order):
        orders.append(derivative(orders[-1]))
    return [g(0.0) for g in orders]


@pytest.mark.structure
@pytest.mark.parametrize(("case", "order"), [*((case, 2) for case in CASES), ("attention", 3)])
def test_the_series_along_a_curve_is_that_of_nested_jvps(case, order):
    f = CASES[case]
    value, series = jax.jit(lambda: jet.jet(f, (Q, K, V), curves(order)))()
    chex.assert_trees_all_equal_shapes_and_dtypes(value, jax.eval_shape(f, Q, K, V))
    leaves, kind = jax.tree.flatten(value)
    derivatives = [leaves, *zip(*kind.flatten_up_to(series), strict=True)]
    for found, wanted in zip(derivatives, jax.jit(lambda: by_nested_jvp(f, order))(), strict=True):
        for x, y in zip(found, jax.tree.leaves(wanted), strict=True):
            if y.dtype != jax.dtypes.float0:
                chex.assert_trees_all_close(x, y, rtol=1e-4, atol=1e-5 * max(1, float(jnp.abs(y).max(initial=0))))


def test_examples_of_a_batch_have_their_own_series():
    def of_one(scale):
        return jet.jet(jattn.attention, (scale * Q, K, V), curves(2))[1][1]

    scales = jnp.array([0.5, 2.0])
    chex.assert_trees_all_close(
        jax.jit(jax.vmap(of_one))(scales), jnp.stack([*map(of_one, scales)]), rtol=1e-3, atol=1e-4
    )


@pytest.mark.structure
def test_the_memory_of_a_series_is_linear_in_the_number_of_tokens():
    def planned(T):
        x = jax.ShapeDtypeStruct((T, 16), "float32")
        series = jax.jit(lambda x: jet.jet(jattn.attention, (x, x, x), [[x, x]] * 3))
        return series.lower(x).compile().memory_analysis().temp_size_in_bytes

    short = planned(4096)
    assert short < 4096 * 4096  # a quarter of the weights
    assert planned(8192) < 2.2 * short
