"""One function makes a logit: an ingredient that is added there is in every order of every path, and in no other way.

Every path of the library (a call of one tile, tiles with and without a mask, grouped heads, both ways through a cache,
keys from other devices) makes its logits by `jattn.engine.tile.logits_from_products`. A path that made its own would
pass every other test, and drop what somebody adds to that function next year.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, Dv, assert_close, normal
from _oracles import weigh
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jattn
from jattn import cache, reference, sharding
from jattn.engine import tile, tuning
from jattn.masks import causal

pytestmark = pytest.mark.structure
DEVICES = 4
AT = np.arange(3 * DEVICES, dtype=np.int32)  # 3 rows a device: an odd position may be an even row


def one_head(q, k, v, **options):
    return tuple(x[None, None] for x in jattn.attention(q[0, 0], k[0, 0], v[0, 0], return_lse=True, **options))


def grouped_heads(q, k, v):
    rows_first = [x.swapaxes(1, 2) for x in (q, k, v)]
    found = jattn.dot_product_attention(*rows_first, is_causal=True, return_residual=True, tile=(16, 16))
    return tuple(x.swapaxes(1, 2) for x in found)


def cached(q, k, v):
    """The last queries, as in decoding."""
    B, Hkv, S, _ = k.shape
    held = cache.append(cache.contiguous(B, Hkv, S + 2, D, Dv, dtype=k.dtype), k, v)
    return cache.attention(q, held, return_lse=True)


def over_devices(scheme, q, k, v):
    mesh = jax.make_mesh((DEVICES,), ("seq",), axis_types=(AxisType.Auto,), devices=jax.devices()[:DEVICES])
    rows_first = [x.swapaxes(1, 2) for x in (q, k, v)]
    found = sharding.attention(
        *rows_first, mesh=mesh, spec=P(None, "seq"), scheme=scheme, mask=causal(), q_positions=AT, k_positions=AT,
        return_lse=True,
    )  # fmt: skip
    return tuple(x.swapaxes(1, 2) for x in found)


PATHS = {  # f of q [B, H, T, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv] → (out, lse); (B, H, Hkv), (T, S); whether causal
    "one tile": (one_head, (1, 1, 1), (13, 17), False),
    "tiles": (functools.partial(one_head, tile=(16, 16)), (1, 1, 1), (37, 41), False),
    "causal tiles": (functools.partial(one_head, tile=(16, 16), mask=causal()), (1, 1, 1), (41, 41), True),
    "grouped heads": (grouped_heads, (2, 4, 2), (19, 19), True),
    "decode": (cached, (2, 4, 2), (3, 17), True),
    "prefill": (cached, (2, 4, 2), (3, 17), True),
    "ring": (functools.partial(over_devices, sharding.ring), (1, 2, 1), (AT.size, AT.size), True),
    "gather": (functools.partial(over_devices, sharding.gather), (1, 2, 1), (AT.size, AT.size), True),
}


def inputs(heads, rows):
    (B, H, Hkv), (T, S) = heads, rows
    shapes = {"q": (B, H, T, D), "k": (B, Hkv, S, D), "v": (B, Hkv, S, Dv)}
    return tuple({n: normal(*shape, seed=i + 9 * j) for i, (n, shape) in enumerate(shapes.items())} for j in range(2))


def definition(x, is_causal, added):
    """Each head by the definition, its key/value head repeated, with `added` in the logits of odd keys."""
    q, k, v = x["q"], *(jnp.repeat(x[name], x["q"].shape[1] // x["k"].shape[1], 1) for name in "kv")
    T, S = q.shape[2], k.shape[2]
    odd = np.broadcast_to(np.arange(S) % 2, (T, S)).astype(np.float64)
    allowed = np.tri(T, S, S - T, dtype=bool) if is_causal else None
    one = functools.partial(reference.attention, mask=allowed, bias=added * odd)
    return jax.vmap(jax.vmap(one))(q, k, v)


def orders(f, x, x_dot):
    """Value, gradient of a loss, and the tangents of both: the jvp, and the product of the Hessian and x_dot."""

    def value_and_gradient(x):
        def loss(x):
            found = f(x)
            return weigh(*found), found

        (_, found), gradient = jax.value_and_grad(loss, has_aux=True)(x)
        return found, gradient

    (value, gradient), (tangent, product) = jax.jvp(value_and_gradient, (x,), (x_dot,))
    return {"value": value, "gradient": gradient, "tangent": tangent, "Hessian times a vector": product}


@pytest.fixture
def planted(monkeypatch):
    """1 more in the logit of each allowed pair whose key stands at an odd position."""
    real = tile.logits_from_products

    def one_more(products, score, bias, allowed, nonfinite, q_positions, k_positions, *excluded):
        found = real(products, score, bias, allowed, nonfinite, q_positions, k_positions, *excluded)
        return found + (k_positions % 2).astype(found.dtype)  # the logit of an excluded pair remains what it is

    jax.clear_caches()  # programs are kept by what they compute, of which nobody says that it was exchanged
    monkeypatch.setattr(tile, "logits_from_products", one_more)
    yield
    monkeypatch.undo()
    jax.clear_caches()


@pytest.fixture
def path(request, monkeypatch):
    """The path of a name, forced where its name alone does not take it."""
    monkeypatch.setattr(tuning, "DECODE_ROWS", 0 if request.param == "prefill" else 64)
    f, heads, rows, is_causal = PATHS[request.param]
    return lambda x: f(x["q"], x["k"], x["v"]), *inputs(heads, rows), is_causal


def off(got, want, ulps=256):
    """The orders in which two differ."""
    different = []
    for name in want:
        try:
            assert_close(got[name], want[name], ulps=ulps, scale=16)
        except AssertionError:
            different.append(name)
    return different


@pytest.mark.usefixtures("x64", "planted")
@pytest.mark.parametrize("path", PATHS, indirect=True)
def test_what_is_planted_in_the_one_place_reaches_every_order(path):
    f, x, x_dot, is_causal = path
    got = jax.jit(lambda x, x_dot: orders(f, x, x_dot))(x, x_dot)
    defined = jax.jit(lambda x, x_dot, added: orders(lambda x: definition(x, is_causal, added), x, x_dot))
    want, without = defined(x, x_dot, np.float64(1)), defined(x, x_dot, np.float64(0))
    assert off(got, want) == []
    assert off(got, without) == list(want), "the control: it changes every order"


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("path", PATHS, indirect=True)
def test_nothing_is_planted_where_nothing_was(path):
    """The control of the test above: of no path is it the planted value that it gives by itself."""
    f, x, _, is_causal = path
    got, without, with_it = jax.jit(lambda x: (f(x), *(definition(x, is_causal, n) for n in (0.0, 1.0))))(x)
    assert_close(got, without, ulps=256, scale=16)
    with pytest.raises(AssertionError):
        assert_close(got, with_it, ulps=256, scale=16)
