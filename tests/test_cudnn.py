"""implementation='cudnn': the value and the gradient by cuDNN, tested with a stand-in that promises no more than it.

The stand-in is dense, drops the cotangent of lse, and leaves NaN in the rows beyond a length. That the calls are ones
that JAX makes of cuDNN is seen where they are lowered for a GPU; what its compiler makes of them, by `make compile`.
Where there is a GPU, cuDNN itself is asked too.
"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _covering import covering
from _inputs import normal
from _kernels import CLOSE, assert_close, batch, cast, head, orders

import jattn
from jattn import _jax, masks, reference
from jattn.engine.kernels import cudnn

pytestmark = pytest.mark.structure
T, D = 48, 16


@partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def dense(q, k, v, bias, q_seqlen, kv_seqlen, scale, causal, window):
    out, lse, _, filled, _ = steps(q, k, v, bias, q_seqlen, kv_seqlen, scale, causal, window)
    return jnp.where(filled[..., None], out, jnp.nan), jnp.where(filled, lse, jnp.nan)


def steps(q, k, v, bias, q_seqlen, kv_seqlen, scale, causal, window):
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    t, s = jnp.arange(q.shape[2])[:, None], jnp.arange(k.shape[2])[None]
    near = (s <= t) | (not causal)
    near &= t - s < (k.shape[2] + q.shape[2] if window is None else window)
    filled, of_keys = q_seqlen[:, None] > t.T, s < kv_seqlen[:, None]
    logits = scale * jnp.einsum("bgtd,bnsd->bgts", q, k)
    logits = logits if bias is None else logits + bias.astype(jnp.float32)
    logits = jnp.where(near[None, None] & of_keys[:, None, None], logits, -jnp.inf)
    lse = jax.nn.logsumexp(logits, -1)
    p = jnp.exp(logits - lse[..., None])
    out = jnp.einsum("bgts,bnsd->bgtd", p, v)
    return out, lse, p, filled[:, None], of_keys[:, None]


def dense_fwd(*operands_and_static):
    return dense(*operands_and_static), operands_and_static[:6]


def dense_bwd(scale, causal, window, saved, cotangents):
    q, k, v, dout = (x.astype(jnp.float32) for x in (*saved[:3], cotangents[0]))
    out, _, p, filled, of_keys = steps(*saved, scale, causal, window)
    ds = p * (jnp.einsum("bgtd,bnsd->bgts", dout, v) - (dout * out).sum(-1, keepdims=True))
    ds, p = (jnp.where(filled[..., None], a, 0) for a in (ds, p))
    dq = jnp.where(filled[..., None], scale * jnp.einsum("bgts,bnsd->bgtd", ds, k), jnp.nan)
    dk, dv = scale * jnp.einsum("bgts,bgtd->bsd", ds, q), jnp.einsum("bgts,bgtd->bsd", p, dout)
    dk, dv = (jnp.where(of_keys[..., None], a[:, None], jnp.nan) for a in (dk, dv))
    dbias = None if saved[3] is None else jnp.where(p > 0, ds, jnp.nan)  # where a pair is hidden it is open
    of_lengths = [np.zeros(n.shape, jax.dtypes.float0) for n in saved[4:]]
    found = zip((dq, dk, dv, dbias), saved, strict=False)
    return *(None if x is None else d.astype(x.dtype) for d, x in found), *of_lengths


dense.defvjp(dense_fwd, dense_bwd)


@pytest.fixture
def stand_in(monkeypatch):
    """cuDNN is a function of this file, and takes float32, on any platform."""
    kinds, calls = _jax.cudnn.MaskType, []

    def attention(q, k, v, bias, *, q_seqlen=None, kv_seqlen=None, scale, mask_type, sliding_window_length, **same):
        assert same == {"qkv_layout": "BNTH", "return_residual": True}
        assert (q_seqlen is not None) == (mask_type in (kinds.PADDING, kinds.PADDING_CAUSAL))
        calls.append(mask_type)
        if bias is not None:
            assert bias.shape == (*q.shape[:3], k.shape[2])
            assert bias.dtype == q.dtype
        full = jnp.full(len(q), q.shape[2]), jnp.full(len(q), k.shape[2])
        lengths = full if q_seqlen is None else (q_seqlen, kv_seqlen)
        causal = mask_type in (kinds.CAUSAL, kinds.PADDING_CAUSAL)
        out, lse = dense(q, k, v, bias, *lengths, scale, causal, sliding_window_length)
        return out.astype(q.dtype), lse

    found = SimpleNamespace(MaskType=kinds, dot_product_attention=attention)
    monkeypatch.setattr(_jax, "cudnn", found, raising=False)
    monkeypatch.setattr(cudnn, "PLATFORM", jax.default_backend())
    monkeypatch.setattr(cudnn, "DTYPES", ("float32", "bfloat16", "float16"))
    return calls


MASKS = {
    "full": None,
    "causal": masks.causal(),
    "window": masks.causal() & masks.window(left=7),
    "lengths": masks.lengths(np.int32(31), 40),
    "causal lengths": masks.lengths(k=40) & masks.causal() & masks.lengths(q=45, k=44),
    "no key": masks.lengths(k=0),
}


def test_cotangents_may_be_mapped_where_the_operands_are_not(stand_in):
    """As `jax.jacrev` maps them: operands that two cotangents share have a cotangent for each."""
    q, k, v = (normal(T, D, seed=i, dtype=np.float32) for i in range(3))

    def of(how):
        f = lambda *x: jattn.attention(*x[:3], scale=x[3], mask=masks.causal(), implementation=how)  # noqa: E731
        pull = jax.vjp(f, q, k, v, np.float32(0.3))[1]
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(pull))(jnp.stack([jnp.sin(v), jnp.cos(v)])))

    assert_close(of("cudnn"), of("loops"))
    assert stand_in


@pytest.mark.parametrize(("name", "scale"), [*((name, None) for name in MASKS), ("full", 0.4), ("causal lengths", 0.4)])
def test_value_and_derivatives_are_those_of_the_definition(name, scale, stand_in):
    """With the cotangent of lse, which cuDNN drops."""
    mask = MASKS[name]
    x = {"q": normal(T, D), "k": normal(T, D, seed=1), "v": normal(T, D, seed=2)}
    x |= {} if scale is None else {"scale": np.float64(scale)}
    x_dot = {name: np.cos(np.arange(np.size(a))).reshape(np.shape(a)) for name, a in x.items()}
    given = len(stand_in)

    def ours(x):
        return jattn.attention(**x, mask=mask, return_lse=True, implementation="cudnn")

    got = orders(ours)(cast(x, np.float32), cast(x_dot, np.float32))
    assert len(stand_in) > given
    with jax.enable_x64(True):
        allowed = np.ones((T, T), bool) if mask is None else np.asarray(masks.to_dense(mask, T, T))
        want = orders(lambda x: reference.attention(**x, mask=allowed))(cast(x, np.float64), cast(x_dot, np.float64))
        want = jax.tree.map(np.asarray, want)
    assert_close(got, want)


@pytest.mark.parametrize(
    ("name", "of", "rows"),
    covering([name for name in MASKS if name != "window"], ["out", "out and lse"], [(T, T), (1, T), (T, 1)]),
)
def test_value_and_derivatives_with_a_bias_are_those_of_the_definition(name, of, rows, stand_in):
    """Of out alone they are cuDNN's; with the cotangent of lse the gradient is that of the loops."""
    mask, kept = MASKS[name], of != "out"
    x = {"q": normal(T, D), "k": normal(T, D, seed=1), "v": normal(T, D, seed=2), "bias": normal(*rows, seed=3)}
    x_dot = {name: np.cos(np.arange(np.size(a))).reshape(np.shape(a)) for name, a in x.items()}
    given = len(stand_in)

    def both(f):
        return orders(lambda x: f(x) if kept else (f(x)[0], jax.lax.stop_gradient(f(x)[1])))

    ours = both(lambda x: jattn.attention(**x, mask=mask, return_lse=True, implementation="cudnn"))
    got = ours(cast(x, np.float32), cast(x_dot, np.float32))
    assert len(stand_in) > given
    with jax.enable_x64(True):
        allowed = np.ones((T, T), bool) if mask is None else np.asarray(masks.to_dense(mask, T, T))
        theirs = both(lambda x: reference.attention(**x, mask=allowed))
        want = jax.tree.map(np.asarray, theirs(cast(x, np.float64), cast(x_dot, np.float64)))
    assert_close(got, want)


SHAPES = [(3, 4, T, T), (4, 1, T), (3, 1, T, T), (T, T), (1, T)]


@pytest.mark.parametrize(("shape", "kept", "active"), covering(SHAPES, [True, False], [True, False]))
def test_a_bias_of_grouped_heads_and_one_that_serves_several(shape, kept, active, stand_in):
    """With and without a cotangent of lse, and with the bias as a constant."""
    shapes = (3, T, 4, D), (3, T, 2, D), (3, T, 2, D), shape
    *x, bias = (normal(*shape, seed=i, dtype=np.float32) for i, shape in enumerate(shapes))
    lengths = {"query_seq_lengths": np.array([T, 0, 9]), "key_value_seq_lengths": np.array([20, 30, 0])}

    def of(how):
        def f(*x):
            x, b = (x[:-1], x[-1]) if active else (x, bias)
            more = {"bias": b, "is_causal": True, "return_residual": True, **lengths}
            out, lse = jattn.dot_product_attention(*x, implementation=how, **more)
            lse = jnp.where(lse > -jnp.inf, lse, 0)
            return out, lse if kept else jax.lax.stop_gradient(lse)

        return batch(f)(*x, *([bias] if active else []))

    assert_close(of("cudnn"), of("loops"))


def test_a_bias_with_levels_in_any_order(stand_in):
    """Keys that differ where queries do not, and biases that differ where neither or both do."""
    q, k, v = (normal(*shape, seed=7, dtype=np.float32) for shape in ((3, T, D), (2, T, D), (2, T, D)))
    bias = normal(3, 4, 2, T, T, seed=8, dtype=np.float32)

    def of(how):
        one = partial(jattn.attention, implementation=how)
        over_q = jax.vmap(lambda q, k, v, b: one(q, k, v, bias=b), (0, None, None, 0))
        over_bias = jax.vmap(over_q, (None, None, None, 1))
        over_k = jax.vmap(over_bias, (None, 0, 0, 2))
        return batch(lambda *x: (over_k(*x), jnp.zeros(())))(q, k, v, bias)

    assert_close(of("cudnn"), of("loops"))


@pytest.mark.parametrize("kind", ["-inf", "a query of none", "hidden by a number", "a query of those", "large"])
def test_a_bias_that_hides_keys_gives_what_loops_give(kind, stand_in):
    """An entry of -inf runs as loops, and so do queries whose logits are all far from 0."""
    if kind != "hidden by a number" and jax.default_backend() != "cpu":
        pytest.skip("equal to the bit on a CPU; a GPU may compile loops that are chosen while they run otherwise")
    q, k, v = (normal(T, D, seed=i, dtype=np.float32) for i in range(3))
    bias = normal(T, T, seed=3, dtype=np.float32)
    rows = slice(None) if kind == "large" else slice(5, 6)
    columns = slice(9, 20) if kind in ("-inf", "hidden by a number") else slice(None)
    entry = -np.inf if kind in ("-inf", "a query of none") else 1e6 if kind == "large" else np.finfo(np.float32).min
    bias[rows, columns] = entry

    def of(how):
        def f(*x):
            out, lse = jattn.attention(*x, bias=bias, return_lse=True, implementation=how)
            return out, jnp.where(lse > -jnp.inf, lse, 0)

        return batch(f)(q, k, v)

    got, want = of("cudnn"), of("loops")
    if kind != "hidden by a number":
        jax.tree.map(np.testing.assert_array_equal, got, want)
    assert_close(got, want)


def test_a_bias_of_16_bits_has_its_cotangent_summed_before_it_is_rounded(stand_in):
    x = [jnp.asarray(normal(2, T, 2, D, seed=i), jnp.bfloat16) for i in range(3)]
    bias = jnp.asarray(normal(1, T, seed=3), jnp.bfloat16)

    def of(how):
        def loss(bias):
            return jattn.dot_product_attention(*x, bias, is_causal=True, implementation=how).astype(jnp.float32).sum()

        return jax.jit(jax.grad(loss))(bias)

    got, want = of("cudnn"), of("loops")
    assert got.dtype == want.dtype == jnp.bfloat16
    got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
    assert np.abs(got - want).max() <= 2**-6 * np.abs(want).max()


def test_grouped_heads_of_their_own_lengths(stand_in):
    shapes = (3, T, 4, D), (3, T, 2, D), (3, T, 2, D)
    x = [normal(*shape, seed=i, dtype=np.float32) for i, shape in enumerate(shapes)]
    lengths = {"query_seq_lengths": np.array([T, 0, 9]), "key_value_seq_lengths": np.array([20, 30, 0])}
    more = {"is_causal": True, "return_residual": True, **lengths}

    def of(how):
        return batch(lambda *x: jattn.dot_product_attention(*x, implementation=how, **more))(*x)

    assert_close(of("cudnn"), of("loops"))


def test_the_batch_axes_of_operands_may_come_in_any_order(stand_in):
    """Keys that differ where queries do not, and a scale of its own for each of them."""
    q, k, v = (normal(*shape, seed=7, dtype=np.float32) for shape in ((3, T, D), (2, T, D), (2, T, D)))
    scale = np.array([0.2, 0.5, 0.3], np.float32)

    def of(how):
        one = partial(jattn.attention, return_lse=True, implementation=how)
        over_q = jax.vmap(lambda q, k, v, c: one(q, k, v, scale=c), (0, None, None, 0))
        return batch(jax.vmap(over_q, (None, 0, 0, None)))(q, k, v, scale)

    assert_close(of("cudnn"), of("loops"))


def test_higher_orders_are_loops(stand_in):
    x = [normal(T, D, seed=i, dtype=np.float32) for i in range(3)]

    def of(how):
        def loss(*x):
            out, lse = jattn.attention(*x, mask=masks.causal(), return_lse=True, implementation=how)
            return jnp.sum(out**3) + jnp.sum(jnp.sin(lse))

        gradient = jax.grad(loss, (0, 1, 2))
        hvp = jax.jit(lambda *x: jax.jvp(gradient, x, x)[1])(*x)
        return hvp, jax.jit(jax.grad(lambda *x: sum(jnp.sum(g * a) for g, a in zip(gradient(*x), x, strict=True))))(*x)

    for got, want in zip(*map(jax.tree.leaves, (of("cudnn"), of("loops"))), strict=True):
        assert np.abs(got - want).max() <= 8 * CLOSE * np.abs(want).max()


def test_what_is_not_finite_runs_as_loops(stand_in):
    q, k, v = (normal(T, D, seed=i, dtype=np.float32) for i in range(3))
    k[40], v[41] = np.nan, np.inf

    def of(how):
        mask = masks.causal()
        return batch(lambda *x: jattn.attention(*x, mask=mask, return_lse=True, implementation=how))(q, k, v)

    got, want = of("cudnn"), of("loops")
    assert np.isfinite(got[0][0][:40]).all()
    assert np.isnan(got[0][0][41:]).all()
    assert_close(got, want)


def test_bfloat16_is_rounded_as_its_cotangents_are(stand_in):
    x = [jnp.asarray(normal(2, T, 2, D, seed=i), jnp.bfloat16) for i in range(3)]

    def of(how):
        options = {"is_causal": True, "return_residual": True, "implementation": how}
        return batch(lambda *x: jattn.dot_product_attention(*x, **options))(*x)

    for got, want in zip(*map(jax.tree.leaves, (of("cudnn"), of("loops"))), strict=True):
        assert got.dtype == want.dtype
        got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
        assert np.abs(got - want).max() <= 2**-6 * np.abs(want).max()


NO_OTHER = "cuDNN knows full, causal, lengths, a window to the left, and no other mask"
OTHER_DTYPE = "cuDNN takes q, k and v in one dtype, bfloat16 or float16, not in float32"
OTHER_WIDTH = "cuDNN takes heads of one width, a multiple of 8 up to 128 (256 on a GPU of compute capability 9), not of"
AT = {"q_positions": jnp.arange(2048), "k_positions": jnp.arange(2048)}


def test_a_small_cotangent_of_lse_is_not_lost_in_float16(stand_in):
    """That of one query is below what float16 has, that of a key to which all attend is not."""

    def of(dtype):
        q, k = jnp.ones((T, D), dtype), jnp.zeros((T, D), dtype).at[0].set(8)
        lse = lambda k: jattn.attention(q, k, k, return_lse=True, implementation="cudnn")[1]  # noqa: E731
        (dk,) = jax.jit(lambda k, g: jax.vjp(lse, k)[1](g))(k, jnp.full(T, 2.5e-8, jnp.float32))
        return np.asarray(dk, np.float32)

    got, want = of(jnp.float16), of(jnp.float32)
    assert want.max() > 2e-7
    assert np.abs(got - want).max() <= np.finfo(np.float16).smallest_subnormal


WITHOUT = {  # options; sizes; what is said
    "float32": ({}, {"dtype": jnp.float32}, OTHER_DTYPE),
    "width": ({}, {"D": 20, "Dv": 20}, f"{OTHER_WIDTH} 20 and 20"),
    "widths": ({}, {"Dv": 32}, f"{OTHER_WIDTH} 64 and 32"),
    "options": ({"score": lambda x, t, s: 2 * x, "sink": 1.0}, {}, "cuDNN has no score and no sink"),
    "bias of another dtype": (
        {"bias": jnp.zeros((1, 2048))}, {},
        "cuDNN takes a bias in the dtype of q, k and v, bfloat16, not in float32",
    ),
    "bias of odd lengths": (
        {"bias": jnp.zeros((1, 2047), jnp.bfloat16)}, {"S": 2047},
        "cuDNN has a bias where T and S are even, and they are 2048 and 2047",
    ),
    "window and bias": (
        {"mask": masks.window(3, 0), "bias": jnp.zeros((1, 2048), jnp.bfloat16)}, {},
        "cuDNN has no bias beside a window",
    ),
    "dropout": ({"dropout_rate": 0.5, "dropout_key": jax.random.key(0)}, {}, "cuDNN has no dropout"),
    "positions": ({"mask": masks.causal(), **AT}, {}, "cuDNN has no positions"),
    "prefix": ({"mask": masks.prefix(3) | masks.causal()}, {}, NO_OTHER),
    "nothing": ({"mask": masks.empty() & masks.causal()}, {}, NO_OTHER),
    "both sides": ({"mask": masks.window(3, 3)}, {}, NO_OTHER),
    "left": (
        {"mask": masks.window(3)}, {},
        "cuDNN bounds a window to the left where it is causal, as in window(left, right=0)",
    ),
    "window and lengths": (
        {"mask": masks.window(3, 0) & masks.lengths(k=9)}, {},
        "cuDNN has no lengths beside a window",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT)
def test_what_it_cannot_do_is_said_in_words(name):
    options, sizes, reason = WITHOUT[name]
    x = head(**{"dtype": jnp.bfloat16} | sizes)
    f = partial(jattn.attention, implementation="cudnn", **options)
    assert jattn.implementations(f, *x, platform="gpu")[0].reason == reason
    with pytest.raises(ValueError, match="implementation must be able to do this call"):
        jax.jit(f).trace(*x).lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize(("generation", "most"), [(0, 128), (8, 128), (9, 256), (12, 256)])
def test_wide_heads_are_taken_where_the_gpu_has_them(generation, most, monkeypatch):
    monkeypatch.setattr(_jax, "gpu_generation", lambda: generation)
    f = partial(jattn.attention, implementation="cudnn")
    for width in (128, 136, 256, 264):
        (found,) = jattn.implementations(f, *head(D=width, Dv=width, dtype=jnp.bfloat16), platform="gpu")
        assert found.kernel == (width <= most)
        assert found.kernel or found.reason == f"{OTHER_WIDTH} {width} and {width}"


def test_jax_lowers_wide_heads_where_the_gpu_has_them(monkeypatch):
    monkeypatch.setattr(_jax, "gpu_generation", lambda: 9)
    monkeypatch.setattr(_jax.cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(_jax.cudnn, "check_compute_capability", lambda capability: True)
    f = partial(jattn.attention, implementation="cudnn")
    traced = jax.jit(f).trace(*head(D=256, Dv=256, dtype=jnp.bfloat16))
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("__cudnn$fmhaSoftmax") == 1


@pytest.mark.parametrize(("T", "S"), [(7, 7), (8, 7), (7, 8)])
def test_a_gradient_of_odd_lengths_is_refused(T, S, monkeypatch):
    monkeypatch.setattr(_jax.cudnn, "check_cudnn_version", lambda: 91000)
    query, key = (jax.ShapeDtypeStruct((1, n, 1, 64), jnp.bfloat16) for n in (T, S))
    f = partial(jattn.dot_product_attention, implementation="cudnn")
    gradient = jax.grad(lambda *x: f(*x).astype(jnp.float32).sum())
    forward, backward = jattn.implementations(gradient, query, key, key, platform="gpu")
    assert forward.kernel
    assert backward.reason == f"cuDNN has a gradient where T and S are even, and they are {T} and {S}"
    with pytest.raises(ValueError, match="implementation must be able to do this call"):
        jax.jit(gradient).trace(query, key, key).lower(lowering_platforms=("cuda",))


def test_a_causal_mask_of_other_lengths_is_refused():
    query, key = (jax.ShapeDtypeStruct((1, n, 1, 64), jnp.bfloat16) for n in (100, 200))
    f = partial(jattn.dot_product_attention, is_causal=True, implementation="cudnn")
    found = jattn.implementations(f, query, key, key, platform="gpu")
    assert found[0].reason == "cuDNN aligns a causal mask by row numbers, and T and S differ"
    assert jattn.implementations(f, query, key, key, platform="tpu")[0].reason.endswith("and the platform is tpu")


def test_each_pass_says_how_it_runs():
    x = head(dtype=jnp.bfloat16)
    f = partial(jattn.attention, mask=masks.causal(), implementation="cudnn")
    loss = lambda *x: jnp.sum(f(*x).astype(jnp.float32))  # noqa: E731
    found = jattn.implementations(lambda *x: jax.jvp(jax.grad(loss), x, x), *x, platform="gpu")
    kinds = {one.name: one.kernel for one in found}
    assert kinds == {"forward": True, "tangent": False, "backward": True, "derived": False}


@pytest.mark.parametrize("name", MASKS)
def test_jax_lowers_it_for_a_gpu(name, monkeypatch):
    """Each call as its own, before a compiler shares what is the same: the value, and in a gradient it again."""
    monkeypatch.setattr(_jax.cudnn, "check_cudnn_version", lambda: 91000)  # which asks the library
    x = [jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16)] * 3
    many = jax.vmap(jax.vmap(partial(jattn.attention, mask=MASKS[name], implementation="cudnn"), 1, 1))
    text = jax.jit(many).trace(*x).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__cudnn$fmhaSoftmax") == 1
    gradient = jax.grad(lambda *x: many(*x).astype(jnp.float32).sum(), (0, 1, 2))
    text = jax.jit(gradient).trace(*x).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__cudnn$fmhaSoftmaxBackward") == 2  # that of out, and of lse where it has a cotangent


@pytest.mark.parametrize("name", [name for name in MASKS if name != "window"])
def test_jax_lowers_a_bias_for_a_gpu(name, monkeypatch):
    monkeypatch.setattr(_jax.cudnn, "check_cudnn_version", lambda: 91000)
    x = [*[jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16)] * 3, jax.ShapeDtypeStruct((4, 64, 64), jnp.bfloat16)]
    one = lambda q, k, v, bias: jattn.attention(q, k, v, bias=bias, mask=MASKS[name], implementation="cudnn")  # noqa: E731
    many = jax.vmap(jax.vmap(one, (1, 1, 1, 0), 1), (0, 0, 0, None))
    text = jax.jit(many).trace(*x).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__cudnn$fmhaScaleBiasSoftmax") == 1
    loss = lambda *x: many(*x).astype(jnp.float32).sum()  # noqa: E731
    for argnums, calls in ((0, 1, 2, 3), 1), ((0, 1, 2), 2):  # where the bias is active, loops have the part of lse
        text = jax.jit(jax.grad(loss, argnums)).trace(*x).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("__cudnn$fmhaScaleBiasSoftmaxBackward") == calls


ASKS_CUDNN = pytest.mark.skipif(jax.default_backend() != "gpu", reason="asks cuDNN itself, which needs an NVIDIA GPU")


@ASKS_CUDNN
@pytest.mark.parametrize("dtype", cudnn.DTYPES)
@pytest.mark.parametrize("name", MASKS)
def test_cudnn_itself_is_the_loops_within_the_rounding_of_its_weights(name, dtype):
    """Value and gradient, with the cotangent of lse; the loops round once, at the end."""
    shapes = (2, 256, 4, 64), (2, 256, 2, 64), (2, 256, 2, 64)
    x = [jnp.asarray(normal(*shape, seed=i), dtype) for i, shape in enumerate(shapes)]

    def of(how):
        one = partial(jattn.attention, mask=MASKS[name], return_lse=True, implementation=how)
        group = jax.vmap(jax.vmap(one, (1, None, None), (1, 1)), (1, 1, 1), (1, 1))  # the queries of one key head

        def heads(q, k, v):
            out, lse = jax.vmap(group)(q.reshape(2, 256, 2, 2, 64), k, v)
            return out, jnp.where(lse > -jnp.inf, lse, 0)

        return batch(heads)(*x)

    assert_within_its_weights(of("cudnn"), of("loops"))


def assert_within_its_weights(got, want):
    for g, w in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        g, w = np.asarray(g, np.float32), np.asarray(w, np.float32)
        assert np.abs(g - w).max() <= 2**-6 * max(np.abs(w).max(), 2**-6)


@ASKS_CUDNN
@pytest.mark.parametrize("dtype", cudnn.DTYPES)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("shape", [(2, 4, 256, 256), (4, 256, 256), (256, 256), (1, 256)], ids=str)
@pytest.mark.parametrize("name", ["causal", "lengths", "full"])
def test_cudnn_itself_has_the_bias_and_its_gradient(name, shape, kept, dtype):
    """Of each head, and of one that serves several. Without the cotangent of lse the gradient is cuDNN's."""
    shapes = (2, 256, 4, 64), (2, 256, 2, 64), (2, 256, 2, 64), shape
    x = [jnp.asarray(normal(*shape, seed=i), dtype) for i, shape in enumerate(shapes)]
    more = {"is_causal": name == "causal", "return_residual": True}
    if name == "lengths":
        more |= {"query_seq_lengths": np.array([256, 77]), "key_value_seq_lengths": np.array([100, 256])}

    def of(how):
        def f(*x):
            out, lse = jattn.dot_product_attention(*x, implementation=how, **more)
            lse = jnp.where(lse > -jnp.inf, lse, 0)
            return out, lse if kept else jax.lax.stop_gradient(lse)

        return batch(f)(*x)

    assert_within_its_weights(of("cudnn"), of("loops"))


@ASKS_CUDNN
@pytest.mark.skipif(_jax.gpu_generation() < 9, reason="wide heads need a GPU of compute capability 9")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("width", [136, 256])
def test_cudnn_itself_has_wide_heads(width, biased):
    shapes = (2, 256, 4, width), (2, 256, 2, width), (2, 256, 2, width), (4, 256, 256)
    x = [jnp.asarray(normal(*shape, seed=i), jnp.bfloat16) for i, shape in enumerate(shapes[: 4 if biased else 3])]

    def of(how):
        more = {"is_causal": True, "return_residual": True, "implementation": how}

        def f(*x):
            out, lse = jattn.dot_product_attention(*x, **more)
            return out, jax.lax.stop_gradient(lse) if biased else lse

        return batch(f)(*x)

    assert_within_its_weights(of("cudnn"), of("loops"))
