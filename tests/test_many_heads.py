"""A batch of heads: jax.nn.dot_product_attention where that is right, and where it is not, the difference stated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, Dv, S, T, assert_close, assert_same, normal

import jattn
from jattn import masks, reference

B, N, K = 3, 4, 2  # three sequences, four query heads, two key/value heads
SHAPE = {"query": (B, T, N, D), "key": (B, S, K, D), "value": (B, S, K, D)}


def batch(dtype=np.float64, **shapes):
    return tuple(normal(*shape, seed=i, dtype=dtype) for i, shape in enumerate((SHAPE | shapes).values()))


def allowed(*shape, seed=5):
    """Booleans in which every query may attend at least the first key."""
    x = np.random.default_rng(seed).random(shape) < 0.6
    x[..., 0] = True
    return x


def both(x, gradients=True, **options):
    """What ours and theirs give, and the gradients of the same loss on each."""

    def values(f):
        def loss(*x):
            out = f(*x, **options)
            return jnp.sum(jnp.sin(out)), out

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True) if gradients else loss)(*x)

    return values(jattn.dot_product_attention), values(jax.nn.dot_product_attention)


FULL = (B, N, T, S)
CASES = {
    "nothing": {},
    "causal, T < S": {"is_causal": True},
    "bias": {"bias": normal(*FULL, seed=7)},
    "bias for all the batch": {"bias": normal(1, N, T, S, seed=7)},
    "bias for all heads": {"bias": normal(B, 1, T, S, seed=7)},
    "bias for all": {"bias": normal(1, 1, T, S, seed=7)},
    "bias for all queries": {"bias": normal(B, N, 1, S, seed=7)},
    "mask": {"mask": allowed(*FULL)},
    "mask for all heads": {"mask": allowed(B, 1, T, S)},
    "mask for all queries": {"mask": allowed(B, 1, 1, S)},
    "lengths of keys": {"key_value_seq_lengths": np.array([1, 9, S], np.int32)},
    "lengths of both": {
        "query_seq_lengths": np.array([2, T, 7], np.int32),
        "key_value_seq_lengths": np.array([1, 9, S], np.int32),
    },
    "window of one number": {"local_window_size": 6},
    "window of two": {"local_window_size": (3, 2)},
    "all": {
        "bias": normal(1, N, T, S, seed=7),
        "mask": allowed(B, 1, 1, S),
        "scale": 0.7,
        "is_causal": True,
        "local_window_size": (20, 3),
        "key_value_seq_lengths": np.array([S, 9, 4], np.int32),
    },
}


VALUES_ONLY = {"lengths of keys", "window of one number"} | {name for name in CASES if " for all " in name}


@pytest.mark.structure
@pytest.mark.parametrize("name", CASES)
def test_it_is_what_jax_nn_gives_and_so_is_its_gradient(name):
    """In float32: jax.nn takes its softmax in float32 even of float64."""
    options = {
        n: o.astype(np.float32) if getattr(o, "dtype", None) == np.float64 else o for n, o in CASES[name].items()
    }
    ours, theirs = both(batch(np.float32), gradients=name not in VALUES_ONLY, **options)
    assert_close(ours, theirs, ulps=32)


@pytest.mark.structure
@pytest.mark.parametrize("name", ["bias", "mask", "causal, T < S", "lengths of both", "window of two", "all"])
def test_xla_is_the_call_of_jax_nn_in_value_gradient_and_residual(name):
    """Handed on, and not computed here: bit by bit the same, the mean of all values for a query without a key too."""
    options = dict(CASES[name])
    lengths = {n: options.pop(n).astype(np.int64) for n in tuple(options) if n.endswith("lengths")}
    bias = options.pop("bias", np.zeros((1, 1, T, S))).astype(np.float32)
    without_keys = np.ones((1, 1, T, S), bool)
    without_keys[..., 4, :] = False
    options["mask"] = options.get("mask", without_keys) & without_keys

    def run(f, lengths):
        def loss(*x):
            out, residual = f(*x, **options, **lengths, implementation=implementation, return_residual=True)
            return jnp.sum(jnp.sin(out)), (out, residual)

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(*batch(np.float32), bias)

    implementation = "xla"
    got = run(jattn.dot_product_attention, lengths)
    assert_same(got, run(jax.nn.dot_product_attention, {n: x.astype(np.int32) for n, x in lengths.items()}))
    if name == "mask":
        implementation = None
        with pytest.raises(AssertionError):  # the control: jattn's own engine gives such a query zeros
            assert_close(run(jattn.dot_product_attention, lengths), got, ulps=2**20)


@pytest.mark.structure
def test_xla_takes_what_has_no_batch():
    x = batch(np.float32, query=(T, N, D), key=(S, K, D), value=(S, K, D))
    options = {"is_causal": True, "local_window_size": 6, "return_residual": True, "implementation": "xla"}
    got, want = (jax.jit(lambda *x, f=f: f(*x, **options))(*x) for f in (jattn.dot_product_attention, of_jax_nn))
    assert [a.shape for a in got] == [(T, N, D), (T, N)]
    assert_same(got, want)


@pytest.mark.structure
@pytest.mark.parametrize("rate", [0.5, np.float32(0.5), "traced"])
def test_xla_never_leaves_dropout_out(rate):
    """jax.nn has none: with a key and without one the call is refused."""
    x = batch(np.float32, query=(B, T, N, D), key=(B, S, K, D), value=(B, S, K, D))
    call = lambda rate, key=None: jattn.dot_product_attention(  # noqa: E731
        *x, implementation="xla", dropout_rate=rate, dropout_key=key
    )
    given, call_of = (0.5, jax.jit(call)) if rate == "traced" else (rate, call)
    for key in (None, jax.random.key(0)):
        with pytest.raises(ValueError, match=r"^dot_product_attention: .* \(jax\.nn has no dropout_rate"):
            call_of(given, key)
    assert_same(call(0.0), jax.nn.dot_product_attention(*x))  # the control
    assert_same(call(0.0, jax.random.key(0)), call(0.0))


def of_jax_nn(*x, **options):
    return tuple(a[0] for a in jax.nn.dot_product_attention(*(a[None] for a in x), **options))


OTHER = {
    "causal, T > S": {"query": (B, 19, N, D)},
    "one head each": {"query": (B, T, 1, D), "key": (B, S, 1, D), "value": (B, S, 1, D)},
    "one key head": {"query": (B, T, 3, D), "key": (B, S, 1, D), "value": (B, S, 1, D)},
    "unbatched": {"query": (T, N, D), "key": (S, K, D), "value": (S, K, D)},
    "decoding": {"query": (B, 1, N, D)},
}


@pytest.mark.structure
@pytest.mark.parametrize("name", OTHER)
def test_value_and_gradient_are_those_of_jax_nn_in_every_shape(name):
    ours, theirs = both(batch(np.float32, **OTHER[name]), is_causal="causal" in name, gradients="one" in name)
    assert_close(ours, theirs, ulps=32)


@pytest.mark.structure
def test_without_a_batch_every_option_gives_what_jax_nn_gives():
    x = batch(np.float32, query=(T, N, D), key=(S, K, D), value=(S, K, D))
    options = {"bias": normal(N, T, S, seed=7, dtype=np.float32), "mask": allowed(1, T, S), "local_window_size": 9}
    ours, theirs = both(x, gradients=False, **options)
    assert_close(ours, theirs, ulps=32)


@pytest.mark.structure
@pytest.mark.parametrize("lengths", [{}, {"query_seq_lengths": np.array([2, T, 7], np.int32)}])
def test_the_residual_is_that_of_jax_nn_where_a_key_is_allowed(lengths):
    x = batch(np.float32)
    options = {"is_causal": True, "return_residual": True, **lengths}
    (out, lse), (out_nn, lse_nn) = (
        jax.jit(lambda *x, f=f: f(*x, **options))(*x)
        for f in (jattn.dot_product_attention, jax.nn.dot_product_attention)
    )
    assert lse.shape == (B, T, N)
    filled = np.arange(T) < np.reshape(lengths.get("query_seq_lengths", [T] * B), (B, 1))
    assert_close(out, out_nn, ulps=32)
    assert_close(np.asarray(lse)[filled], np.asarray(lse_nn)[filled], ulps=32)
    assert (np.asarray(lse)[~filled] == -np.inf).all()


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_each_head_is_the_definition():
    """In float64, with all that jax.nn does not have: Dv ≠ D, sinks, scores, positions, masks as values."""
    q, k, v = batch(value=(B, S, K, Dv))
    bias, mask, sink = normal(1, N, T, S, seed=7), allowed(B, 1, T, S), normal(N, seed=9)
    q_positions = np.stack([np.arange(T) + shift for shift in range(B)])
    k_positions = np.arange(S)
    alibi = lambda x, t, s: x - 0.1 * jnp.abs(t - s).astype(x.dtype)  # noqa: E731
    options = {"score": alibi, "is_causal": True, "return_residual": True, "scale": 0.6}
    places = {"q_positions": q_positions, "k_positions": k_positions}
    f = jax.jit(lambda *x, **o: jattn.dot_product_attention(*x, **o, **options))
    out, lse = f(q, k, v, bias, mask, sink=sink, **places)
    assert out.shape == (B, T, N, Dv)
    one = jax.jit(lambda *x, **o: reference.attention(*x, score=alibi, scale=0.6, **o))
    for b in range(B):
        here = mask[b, 0] & (q_positions[b][:, None] >= k_positions)
        for n in range(N):
            h = n // (N // K)
            own = {"mask": here, "bias": bias[0, n], "sink": sink[n]} | places | {"q_positions": q_positions[b]}
            want = one(q[b, :, n], k[b, :, h], v[b, :, h], **own)
            assert_close((out[b, :, n], lse[b, :, n]), want, ulps=32)


@pytest.mark.structure
def test_a_mask_may_be_a_value():
    x = batch(np.float32)
    length = masks.lengths(k=9)
    f = jax.jit(lambda *x, **o: jattn.dot_product_attention(*x, **o))
    booleans = np.broadcast_to(np.arange(S) < 9, (1, 1, T, S))
    assert_close(f(*x, mask=length), f(*x, mask=booleans), ulps=8)
    places = {"q_positions": np.arange(T), "k_positions": np.arange(S)}
    assert_close(f(*x, mask=masks.causal() & length, **places), f(*x, mask=booleans & np.tri(T, S, dtype=bool)), ulps=8)


@pytest.mark.structure
def test_causal_counts_from_the_first_rows_unless_positions_are_given():
    x = batch(np.float32)
    f = jax.jit(lambda *x, **o: jattn.dot_product_attention(*x, is_causal=True, **o))
    assert_close(f(*x), f(*x, q_positions=np.arange(T), k_positions=np.arange(S)), ulps=2)
    last = f(*x, q_positions=np.arange(T) + S - T, k_positions=np.arange(S))
    want = jax.jit(jax.nn.dot_product_attention)(*x, mask=np.tri(T, S, S - T, dtype=bool)[None, None])
    assert_close(last, want, ulps=32)


@pytest.mark.structure
@pytest.mark.parametrize("dtype", [np.int16, np.uint8, np.uint32])
def test_positions_are_whole_numbers_of_any_dtype(dtype):
    """A function of scores and positions is given them in int32, and so a difference of them does not wrap."""
    x = batch(np.float32)

    def f(dtype):
        at = {"q_positions": np.arange(T, dtype=dtype), "k_positions": np.arange(S, dtype=dtype)}
        score = lambda s, t, j: s - 0.1 * jnp.abs(t - j).astype(s.dtype)  # noqa: E731
        return jattn.dot_product_attention(*x, mask=masks.causal(), score=score, **at)

    assert_same(f(dtype), f(np.int32))


@pytest.mark.structure
def test_a_sink_for_all_heads_or_one_a_head():
    x = batch(np.float32)
    f = jax.jit(jattn.dot_product_attention)
    same = f(*x, sink=np.full(N, 0.3, np.float32))
    assert_close(f(*x, sink=np.float32(0.3)), same, ulps=2)
    sinks = normal(N, seed=9, dtype=np.float32)
    one = f(x[0][:, :, 3:], x[1][:, :, 1:], x[2][:, :, 1:], sink=sinks[3])
    assert_close(f(*x, sink=sinks)[:, :, 3:], one, ulps=8)


@pytest.mark.structure
def test_dot_product_attention_may_be_mapped_over_more_axes():
    x = tuple(np.stack([a, a[::-1]]) for a in batch(np.float32))
    got = jax.jit(jax.vmap(jattn.dot_product_attention))(*x)
    assert_close(got[1], got[0][::-1], ulps=2)
    shared = jax.jit(jax.vmap(jattn.dot_product_attention, (0, None, None)))(x[0], x[1][0], x[2][0])
    assert_close(shared[0], got[0], ulps=8)
    sizes = np.array([0.3, 0.9], np.float32)
    scaled = jax.jit(jax.vmap(lambda scale: jattn.dot_product_attention(*batch(np.float32), scale=scale)))(sizes)
    assert_close(scaled[1], jax.jit(jattn.dot_product_attention)(*batch(np.float32), scale=sizes[1]), ulps=8)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_rounded_once(dtype):
    """jax.nn rounds the weights as well; ours is the float32 result, rounded."""
    x = batch(dtype)
    f = jax.jit(lambda *x: jattn.dot_product_attention(*x, is_causal=True, return_residual=True))
    out, lse = f(*x)
    assert out.dtype == dtype
    assert lse.dtype == jnp.float32
    wide, _ = f(*(a.astype(np.float32) for a in x))
    assert_close(out, wide, ulps=0.75, scale=np.abs(np.asarray(x[2], np.float64)).max())


# Where it differs from jax.nn.


@pytest.mark.structure
def test_a_query_without_keys_gives_zeros_where_jax_nn_gives_a_mean():
    x = batch(np.float32)
    mask = allowed(1, 1, T, S)
    mask[..., 4, :] = False
    ours, theirs = (
        jax.jit(lambda *x, f=f: f(*x, mask=mask, return_residual=True))(*x)
        for f in (jattn.dot_product_attention, jax.nn.dot_product_attention)
    )
    assert (ours[0][:, 4] == 0).all()
    assert (ours[1][:, 4] == -np.inf).all()
    mean = np.repeat(x[2].mean(1), N // K, axis=1)
    assert_close(theirs[0][:, 4], mean, ulps=32)
    rest = np.arange(T) != 4
    assert_close(ours[0][:, rest], theirs[0][:, rest], ulps=32)


@pytest.mark.structure
def test_a_nan_behind_the_lengths_stays_there_where_in_jax_nn_it_spreads():
    q, k, v = batch(np.float32)
    dirty = v.copy()
    dirty[:, 9:] = np.nan
    clean = np.where(np.isnan(dirty), 0, v)
    options = {"key_value_seq_lengths": np.full(B, 9, np.int32)}

    def run(f, v):
        return jax.jit(jax.value_and_grad(lambda *x: jnp.sum(jnp.sin(f(*x, **options))), (0, 1, 2)))(q, k, v)

    got = run(jattn.dot_product_attention, dirty)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))
    assert_close(got, run(jattn.dot_product_attention, clean), ulps=8)
    assert np.isnan(run(jax.nn.dot_product_attention, dirty)[0])


@pytest.mark.structure
def test_the_residual_has_its_gradient_where_jax_nn_stops_it():
    x = batch(np.float32)

    def gradient(f):
        return jax.jit(jax.grad(lambda q: f(q, *x[1:], return_residual=True)[1].sum()))(x[0])

    p = jax.jit(jax.vmap(jax.vmap(lambda q, k: jattn.explain(q, k, k).weights, 1), 0))(x[0], np.repeat(x[1], N // K, 2))
    want = D**-0.5 * np.einsum("bnts,bsnd->btnd", p, np.repeat(x[1], N // K, axis=2))
    assert_close(gradient(jattn.dot_product_attention), want, ulps=32)
    assert (gradient(jax.nn.dot_product_attention) == 0).all()


def test_a_key_head_is_not_repeated_in_memory():
    """No array of N heads of S keys stands in the jaxpr; in that of a repeating one it does."""
    x = batch(np.float32, query=(B, T, 14, D))

    def shapes(f):
        seen = set()

        def look(jaxpr):
            for e in jaxpr.eqns:
                seen.update(tuple(sorted(v.aval.shape)) for v in e.outvars)
                for sub in jax.tree.leaves(e.params, is_leaf=lambda p: hasattr(p, "jaxpr") or hasattr(p, "eqns")):
                    if hasattr(sub, "jaxpr") or hasattr(sub, "eqns"):
                        look(getattr(sub, "jaxpr", sub))

        look(jax.make_jaxpr(f)(*x).jaxpr)
        return seen

    def repeated(shapes):
        heads = [s for s in shapes if S in s and D in s and T not in s]
        return any(np.prod(s) >= B * S * 14 * D for s in heads)

    assert not repeated(shapes(jattn.dot_product_attention))
    assert repeated(shapes(lambda q, k, v: jattn.dot_product_attention(q, jnp.repeat(k, 7, 2), jnp.repeat(v, 7, 2))))
