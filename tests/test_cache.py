"""A cache decodes what the whole sequence gives at once: of every kind, at every step, whatever is appended when."""

import dataclasses
import functools

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, normal

import jattn
from jattn import cache, masks, scores
from jattn.engine import tuning

B, Hkv, G, D, Dv = 2, 2, 3, 5, 3
H, WINDOW, MOST = Hkv * G, 4, 3  # at most three tokens at once
LONGEST = 23


def kinds(dtype, **more):
    """One of each, of sizes that wrap around, cross pages and end in the midst of one."""
    how = {"dtype": dtype, **more}
    return {
        "contiguous": cache.contiguous(B, Hkv, LONGEST, D, Dv, **how),
        "ring": cache.ring(B, Hkv, D, Dv, window=WINDOW, chunk=MOST, **how),
        "paged": cache.paged(B, Hkv, LONGEST, D, Dv, pages=11, page=5, **how),
    }


KINDS = ["contiguous", "ring", "paged"]
# Compiled once for each shape; outside jit they are called where an error or a flag is looked at.
empty = jax.jit(kinds, static_argnames=("dtype", "start"))
append, free, share, cascade = map(jax.jit, (cache.append, cache.free, cache.share, cache.cascade))
attention = jax.jit(cache.attention, static_argnames=("score", "return_lse"))


def mask_of(kind):
    return masks.causal() & masks.window(left=WINDOW - 1) if kind == "ring" else masks.causal()


def sequences(dtype, seed=0, n=LONGEST):
    """q [B, H, n, D], k [B, Hkv, n, D], v [B, Hkv, n, Dv]."""
    shapes = ((B, H, n, D), (B, Hkv, n, D), (B, Hkv, n, Dv))
    return tuple(normal(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes))


def whole(q, k, v, mask, sink=None):
    """Every head of every row by the definition, its key/value head repeated."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    return jax.tree.map(np.asarray, definition(q, k, v, mask, sink))


@jax.jit
def definition(q, k, v, mask, sink):
    allowed = None if mask is None else masks.to_dense(mask, q.shape[2], k.shape[2])
    one = lambda q, k, v, sink: jattn.reference.attention(q, k, v, mask=allowed, sink=sink)  # noqa: E731
    return jax.vmap(jax.vmap(one), (0, 0, 0, None))(q, k, v, sink)


@functools.partial(jax.jit, static_argnames=("score",))
def step(c, q, k, v, n, score=None, sink=None):
    """A step of decoding as a model makes it: append, then attend from what was appended."""
    c = cache.append(c, k, v, lengths=n)
    return c, cache.attention(q, c, lengths=n, score=score, sink=sink, return_lse=True)


def chunks(xs, at, n):
    """Up to MOST tokens of each row from its own place on, padded with what must leave no trace."""
    out = []
    for x in xs:
        part = np.full((*x.shape[:2], MOST, x.shape[3]), np.nan, x.dtype)
        for b in range(B):
            part[b, :, : n[b]] = x[b, :, at[b] : at[b] + n[b]]
        out.append(part)
    return out


def decode(c, xs, steps):
    """Runs the steps; (the cache, out and lse gathered where each query stands, how far each row came)."""
    q, _, v = xs
    out, lse = np.zeros((*q.shape[:3], v.shape[3]), v.dtype), np.zeros(q.shape[:3], v.dtype)
    at = np.zeros(B, np.int32)
    for n in steps:
        n = np.minimum(np.array(n, np.int32), LONGEST - at)
        c, (o, ell) = step(c, *chunks(xs, at, n), n)
        o, ell = np.asarray(o), np.asarray(ell)
        for b in range(B):
            here = slice(at[b], at[b] + n[b])
            out[b, :, here], lse[b, :, here] = o[b, :, : n[b]], ell[b, :, : n[b]]
            assert not o[b, :, n[b] :].any(), "padding gives zeros"
        at += n
    return c, out, lse, at


APPENDS = st.lists(st.tuples(*[st.integers(0, MOST)] * B), min_size=1, max_size=12)


@pytest.mark.parametrize("kind", KINDS)
@hypothesis.settings(max_examples=12)
@hypothesis.given(steps=APPENDS)
def test_every_step_equals_the_whole_sequence_in_float32(kind, steps):
    xs = sequences(np.float32)
    _, out, lse, at = decode(empty(np.float32)[kind], xs, steps)
    with jax.enable_x64(True):
        want = whole(*(x.astype(np.float64) for x in xs), mask_of(kind))
    for b in range(B):
        for got, exact in zip((out, lse), want, strict=True):
            np.testing.assert_allclose(got[b, :, : at[b]], exact[b, :, : at[b]], rtol=1e-6, atol=1e-6)


@pytest.mark.structure
@pytest.mark.parametrize("kind", KINDS)
@hypothesis.settings(max_examples=8)
@hypothesis.given(steps=APPENDS)
def test_every_step_equals_the_whole_sequence_in_float64(kind, steps):
    with jax.enable_x64(True):
        xs = sequences(np.float64)
        c, out, lse, at = decode(empty(np.float64)[kind], xs, steps)
        want = whole(*xs, mask_of(kind))
    np.testing.assert_array_equal(c.length, at)
    np.testing.assert_array_equal(c.next, at)
    for b in range(B):
        for got, exact in zip((out, lse), want, strict=True):
            np.testing.assert_allclose(got[b, :, : at[b]], exact[b, :, : at[b]], rtol=1e-12, atol=1e-12)


def bound(q, k, v, allowed, scale):
    """What `quantised` allows out and lse to be off by; one head, float64."""
    k_scale, v_scale = (np.abs(x).max(-1) / 127 * (1 + 1e-6) for x in (k, v))
    delta = np.where(allowed, scale * np.abs(q).sum(-1)[:, None] * k_scale / 2, 0).max(1)
    spread = np.where(allowed[..., None], v, -np.inf).max(1) - np.where(allowed[..., None], v, np.inf).min(1)
    return np.tanh(delta / 2)[:, None] * spread + np.where(allowed, v_scale, 0).max(1)[:, None] / 2, delta


@pytest.mark.structure
@pytest.mark.parametrize("kind", KINDS)
@hypothesis.settings(max_examples=8)
@hypothesis.given(steps=APPENDS, size=st.sampled_from([0.01, 1.0, 30.0]))
def test_bytes_stay_within_their_bound(kind, steps, size):
    with jax.enable_x64(True):
        xs = tuple(size * x for x in sequences(np.float64))
        _, out, lse, at = decode(empty(jnp.int8)[kind], xs, steps)
        want_out, want_lse = whole(*xs, mask_of(kind))
    before = np.arange(LONGEST)[:, None] - np.arange(LONGEST)
    allowed = (before >= 0) & (before < (WINDOW if kind == "ring" else LONGEST))
    q, k, v = xs
    for b in range(B):
        for h in range(H):
            by_out, by_lse = bound(q[b, h], k[b, h // G], v[b, h // G], allowed, D**-0.5)
            n = at[b]
            off = np.abs(out[b, h] - want_out[b, h])
            assert (off <= by_out * (1 + 1e-9))[:n].all()
            assert (np.abs(lse[b, h] - want_lse[b, h]) <= by_lse * (1 + 1e-9))[:n].all()
            if n == LONGEST and size == 1:
                assert off.max() > 1e-4, "the control: they are bytes"


@pytest.mark.structure
@pytest.mark.parametrize("of", ["k", "v"])
def test_what_no_scale_of_bytes_reaches_is_nan_to_the_queries_that_attend_it_alone(of):
    """5e40 is finite in float64, and a 127th of it is not in float32."""
    with jax.enable_x64(True):
        x = dict(zip("qkv", normal(3, 1, 1, 3, 2), strict=True))
        x[of][..., 2, 0] = 5e40
        held = append(cache.contiguous(1, 1, 3, 2, dtype=jnp.int8), x["k"], x["v"])
        out, lse = attention(x["q"], held, return_lse=True)
    assert np.isfinite(out[..., :2, :]).all()
    assert np.isfinite(lse[..., :2]).all()
    assert np.isnan(out[..., 2, :]).all()
    assert np.isnan(lse[..., 2]).all()


def test_a_bound_that_is_too_small_by_a_tenth_of_a_step_fails():
    """Nine tenths of the half step are not enough: the bound of a value is reached."""
    v = np.array([[127.0, 0.5], [127.0, 1.5]], np.float32)
    got, scale = map(np.asarray, cache.quantised(v))
    off = np.abs(scale[:, None] * got - v).max()
    assert 0.45 * float(scale.max()) < off <= 0.5 * float(scale.max())


@pytest.mark.structure
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float32", "contiguous"),
        ("float32", "ring"),
        ("int8", "paged"),
        *(pytest.param(*x, marks=pytest.mark.exhaustive) for x in zip(["int8", "int8", "float32"], KINDS, strict=True)),
    ],
)
def test_nothing_is_compiled_again_from_step_to_step(kind, dtype):
    xs = sequences(np.float32)
    chex.clear_trace_counter()
    own = jax.jit(chex.assert_max_traces(step.__wrapped__, n=1))
    c = empty(jnp.dtype(dtype))[kind]
    for i in range(5):
        n = np.array([i % (MOST + 1), 1], np.int32)
        c, _ = own(c, *chunks(xs, np.array([0, i]), n), n)
    assert own._cache_size() == 1
    other = (sequences(np.float16), n) if dtype == "int8" else (xs, n.astype(np.int16))
    with pytest.raises(AssertionError, match="traced > 1 times"):  # the control: another dtype is another program
        jax.eval_shape(own, c, *chunks(other[0], np.array([0, 0]), n), other[1])


@pytest.mark.structure
def test_a_score_written_anew_at_each_step_is_the_same_program():
    x = normal(B, Hkv, 1, D, dtype=np.float32)
    c = cache.append(cache.contiguous(B, Hkv, 3, D), x, x)
    cache._decode.decode.clear_cache()
    for cap in (2.0, 3.0):
        by = jnp.float32(cap)
        got = cache.attention(x, c, score=lambda ell, t, s: by * jnp.tanh(ell / by))  # noqa: B023
    assert cache._decode.decode._cache_size() == 1
    assert_close(got, x, ulps=4)
    cache.attention(x, c, score=lambda ell, t, s: ell)
    assert cache._decode.decode._cache_size() == 2, "the control: another score is another program"


@pytest.mark.structure
@pytest.mark.parametrize("kind", KINDS)
def test_prefill_and_a_scan_of_steps_give_attention_over_the_whole(kind):
    """A prompt, then one token after another inside one lax.scan: many rows of q through the tiles of the engine."""
    n, prompt = 53, 29
    with jax.enable_x64(True):
        q, k, v = sequences(np.float64, n=n)
        made = {
            "contiguous": lambda: cache.contiguous(B, Hkv, n, D, Dv, dtype=np.float64),
            "ring": lambda: cache.ring(B, Hkv, D, Dv, window=WINDOW, chunk=prompt, dtype=np.float64),
            "paged": lambda: cache.paged(B, Hkv, n, D, Dv, pages=29, page=4, dtype=np.float64),
        }[kind]

        def one(c, x):
            q, k, v = (a[:, :, None] for a in x)
            c = cache.append(c, k, v)
            return c, cache.attention(q, c)[:, :, 0]

        @jax.jit
        def run(q, k, v):
            c = cache.append(made(), k[:, :, :prompt], v[:, :, :prompt])
            first = cache.attention(q[:, :, :prompt], c)
            assert G * prompt > tuning.DECODE_ROWS
            rest = jax.lax.scan(one, c, tuple(jnp.moveaxis(x[:, :, prompt:], 2, 0) for x in (q, k, v)))[1]
            return jnp.concatenate([first, jnp.moveaxis(rest, 0, 2)], 2)

        assert_close(run(q, k, v), whole(q, k, v, mask_of(kind))[0], ulps=64)


@pytest.mark.structure
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float64", "contiguous"),
        ("float64", "ring"),
        ("int8", "paged"),
        *(pytest.param(*x, marks=pytest.mark.exhaustive) for x in zip(["int8", "int8", "float64"], KINDS, strict=True)),
    ],
)
def test_many_queries_and_few_give_the_same(dtype, kind, monkeypatch):
    """Decoding and the tiles are two ways to one result, scores, sinks and tokens that are not finite included."""
    with jax.enable_x64(True):
        q, k, v = sequences(np.float64)
        k[0, 1, 7] = np.inf
        sink, lengths = normal(H, seed=9), np.array([MOST, 1])
        cap = lambda x, t, s: 2 * jnp.tanh(x / 2) - 0.1 * (t - s).astype(x.dtype)  # noqa: E731
        c = empty(jnp.dtype(dtype))[kind]
        for i in range(0, 4 * MOST, MOST):
            c = append(c, k[:, :, i : i + MOST], v[:, :, i : i + MOST])

        def asked():
            f = jax.jit(lambda q, c: cache.attention(q, c, score=cap, sink=sink, lengths=lengths, return_lse=True))
            return jax.tree.map(np.asarray, f(q[:, :, :MOST], c))

        few = asked()
        with monkeypatch.context() as m:
            m.setattr(tuning, "DECODE_ROWS", 0)
            many = asked()
        filled = np.arange(MOST) < lengths[:, None, None]
        sees = np.zeros((B, H, MOST), bool)
        sees[0, G:] = [True, True, kind != "ring"]  # the last is four tokens from the infinite one
        np.testing.assert_array_equal(np.isnan(few[1]), sees & filled)
        assert_close(few[0], many[0], ulps=64)
        there = np.broadcast_to(filled, few[1].shape)
        assert_close(few[1][there], many[1][there], ulps=64)


@pytest.mark.structure
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_narrow_numbers_are_made_wide_some_at_a_time_and_the_last_may_overlap(dtype, monkeypatch):
    monkeypatch.setattr(tuning, "CHUNK_BYTES", 1)
    n = 64 * 2 + 7  # three steps of 64, or one of all
    xs = sequences(np.float32, n=n)
    with jax.enable_x64(True):
        q, k, v = (x.astype(dtype) if i else x.astype(np.float64) for i, x in enumerate(xs))
        c = append(cache.contiguous(B, Hkv, n, D, Dv, dtype=dtype), k, v, lengths=np.array([n, 70]))
        assert cache._decode.chunk_size(c, np.dtype(np.float64)) == (64 if dtype == "float32" else n)
        want = whole(*(x.astype(np.float64) for x in xs), masks.causal())[0]
        got = np.asarray(jax.jit(lambda *x: cache.attention(*x))(np.stack([q[0, :, -1:], q[1, :, 69:70]]), c))
        assert_close(got[0], want[0, :, -1:], ulps=64)
        assert_close(got[1], want[1, :, 69:70], ulps=64)


# Positions.


def rotated(x, positions):
    """A rotary embedding of one pair of numbers in each vector; positions [B, T]."""
    angle = positions[:, None].astype(np.float64) * 0.7
    a, b = x[..., 0], x[..., 1]
    pair = jnp.stack([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1)
    return jnp.concatenate([pair, x[..., 2:]], -1)


@pytest.mark.structure
@pytest.mark.parametrize("kind", KINDS)
def test_rotary_and_masks_are_right_after_the_buffer_wraps(kind):
    with jax.enable_x64(True):
        q, k, v = sequences(np.float64)
        at = np.broadcast_to(np.arange(LONGEST), (B, LONGEST))
        even = masks.causal() & masks.window(left=2)
        rope = jax.jit(rotated)
        want = whole(*(np.asarray(rope(x, at)) for x in (q, k)), v, mask_of(kind) & even)[0]

        @jax.jit
        def one(c, q, k, v):
            at = cache.next_positions(c, 1)
            c = cache.append(c, rotated(k, at), v)
            return c, cache.attention(rotated(q, at), c, mask=even)

        c = empty(np.float64)[kind]
        for t in range(LONGEST):
            c, out = one(c, *(x[:, :, t : t + 1] for x in (q, k, v)))
            assert_close(out, want[:, :, t : t + 1], ulps=64)
        if kind == "ring":
            assert c.capacity < LONGEST // 3, "it has wrapped around three times"
            assert set(np.asarray(c.store.positions)[0]) == set(range(LONGEST - c.capacity, LONGEST))


@pytest.mark.structure
def test_a_cache_attends_by_the_positions_that_the_caller_gives():
    """Rows that begin elsewhere, and leave gaps: a query sees what its distance allows."""
    with jax.enable_x64(True):
        q, k, v = sequences(np.float64, n=3)
        at = np.array([[5, 6, 9], [0, 7, 8]], np.int32)
        c = append(cache.ring(B, Hkv, D, Dv, window=3, chunk=3, dtype=np.float64), k, v, positions=at)
        np.testing.assert_array_equal(c.next, [10, 9])
        got = np.asarray(attention(q, c, q_positions=at))
        for b in range(B):
            near = (at[b][:, None] >= at[b]) & (at[b][:, None] - at[b] < 3)
            assert_close(got[b], whole(*(x[b : b + 1] for x in (q, k, v)), masks.dense(near))[0][0], ulps=64)


@pytest.mark.structure
def test_cross_attention_attends_all_that_is_held():
    with jax.enable_x64(True):
        q, k, v = sequences(np.float64)
        c = append(empty(np.float64)["contiguous"], k, v)
        assert_close(attention(q[:, :, :2], c, mask=None), whole(q[:, :, :2], k, v, None)[0], ulps=64)


@pytest.mark.structure
def test_a_tree_over_a_cache_with_room_left_is_told_of_all_keys_and_keeps_its_prefix():
    """What the message of a tree without `keys` says to do is what is right."""
    drafts, n = [-1, 0, 0, 1, 2], 6
    q, k, v = sequences(np.float32)
    q, k, v = (x[:, :, : n + 5] for x in (q, k, v))
    c = append(empty("float32")["contiguous"], k, v)
    with pytest.raises(ValueError, match=rf"how many in all: tree\(…, prefix=n, keys={LONGEST}\)"):
        attention(q[:, :, n:], c, mask=masks.tree(drafts, prefix=n))
    got = attention(q[:, :, n:], c, mask=masks.tree(drafts, prefix=n, keys=LONGEST))
    assert_close(got, whole(q[:, :, n:], k, v, masks.tree(drafts, prefix=n))[0], ulps=64)


# Derivatives.


@pytest.mark.structure
@pytest.mark.parametrize("kind", ["ring", "paged"])
def test_gradients_through_a_cache_are_those_of_attention(kind):
    """With respect to q, k and v, through append and attend, the wrong tokens of other rows out of sight."""
    n = 3 * MOST  # a ring of six tokens has wrapped around
    with jax.enable_x64(True):
        q, k, v = sequences(np.float64, n=n)
        w = normal(B, H, 2, Dv, seed=5)

        def through(q, k, v):
            parts = (jnp.moveaxis(x.reshape(B, Hkv, 3, MOST, -1), 2, 0) for x in (k, v))
            c, _ = jax.lax.scan(lambda c, new: (cache.append(c, *new), None), kinds(np.float64)[kind], tuple(parts))
            return (w * cache.attention(q[:, :, n - 2 :], c)).sum()

        def plain(q, k, v):
            heads = jax.vmap(jax.vmap(lambda *x: jattn.attention(*x, mask=mask_of(kind))))
            return (w * heads(q, jnp.repeat(k, G, 1), jnp.repeat(v, G, 1))[:, :, n - 2 :]).sum()

        got, want = (jax.jit(jax.grad(f, (0, 1, 2)))(q, k, v) for f in (through, plain))
        assert_close(got, want, ulps=256)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_a_gradient_does_not_ask_which_logit_was_the_largest():
    """A logit that XLA computes twice, once with a multiply-add, need not equal the maximum. At 17 of these 32 factors,
    compiled without expensive passes, none of some query did: its jvp and second order were 0 / 0."""
    q, k, v = sequences(np.float64, n=9)
    c, q = append(empty(np.float64)["contiguous"], k, v), q[:, :, -2:]
    at = {"q_positions": np.arange(7, 9, dtype=np.int32), "k_positions": np.arange(9, dtype=np.int32)}

    def scored(factor):
        return lambda x, t, s: x * factor + (t - s).astype(x.dtype)

    def cached(q, factor, sink):
        return cache.attention(q, c, mask=None, score=scored(factor), sink=sink, return_lse=True)

    def defined(q, factor, sink):
        one = functools.partial(jattn.reference.attention, score=scored(factor), sink=sink, **at)
        return jax.vmap(jax.vmap(one))(q, *(np.repeat(x, G, 1) for x in (k, v)))

    def derivatives(f, *x):
        loss = lambda *x: sum(jnp.sin(y).sum() for y in f(*x))  # noqa: E731
        return jax.jvp(f, x, x), jax.jvp(jax.grad(loss, (0, 1, 2)), x, x)

    got, want = (jax.jit(functools.partial(derivatives, f)) for f in (cached, defined))
    for factor in np.linspace(0.3, 1.7, 32):
        x = q, factor, np.float64(0.3)
        assert_close(got(*x), want(*x), ulps=4096)


@pytest.mark.structure
def test_what_no_query_attends_has_no_part_even_in_gradients():
    """A NaN in a later token, in padding or behind the window leaves value and gradient of q alone."""
    with jax.enable_x64(True):
        q, k, v = sequences(np.float64)
        clean, at = None, np.full((B, 1), 3, np.int32)
        f = jax.jit(jax.value_and_grad(lambda q, c, mask: cache.attention(q, c, mask=mask, q_positions=at).sum()))
        for spoilt in (False, True):
            if spoilt:
                k[:, :, 4], v[:, :, 4], k[:, :, 0] = np.nan, np.inf, np.nan
            c = append(cache.contiguous(B, Hkv, 9, D, Dv, dtype=np.float64), k[:, :, :5], v[:, :, :5])
            got = f(q[:, :, :1], c, masks.causal() & masks.window(left=2))
            clean = got if clean is None else clean
        assert_close(got, clean, ulps=0)
        assert np.isnan(f(q[:, :, :1], c, masks.causal())[0]), "the control: a query that attends it gives NaN"


# Full caches.


@pytest.mark.structure
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_a_full_row_keeps_what_it_holds_and_says_so(kind):
    x = normal(B, Hkv, 2, D, dtype=np.float32)
    c = {
        "contiguous": lambda: cache.contiguous(B, Hkv, 3, D),
        "paged": lambda: cache.paged(B, Hkv, 3, D, pages=4, page=1),
    }[kind]()
    c = append(c, x, x, lengths=np.array([2, 1]))
    with pytest.raises(ValueError, match="must have room"):
        cache.append(c, x, x)
    after = append(c, x, x)
    if kind == "contiguous":
        np.testing.assert_array_equal(after.full, [True, False])
        np.testing.assert_array_equal(after.length, [2, 3])
    else:  # the first row's table is too short, the second finds but one page
        np.testing.assert_array_equal(after.full, [True, True])
        np.testing.assert_array_equal(after.length, [2, 1])
    out, lse = map(np.asarray, attention(x[:, :, :1], after, return_lse=True))
    np.testing.assert_array_equal(np.isnan(out).all((1, 2, 3)), after.full)
    np.testing.assert_array_equal(np.isnan(lse).all((1, 2)), after.full)
    c, after = (jax.tree.map(np.asarray, a) for a in (c, after))
    for a, b in ((c.store.k, after.store.k), (c.store.v, after.store.v)):
        np.testing.assert_array_equal(a[0, :, :2], b[0, :, :2])
    np.testing.assert_array_equal(after.next, c.next + (after.length - c.length))
    emptied = jax.tree.map(np.asarray, free(after, np.array([0, 7])))
    np.testing.assert_array_equal(emptied.full[0], False)
    np.testing.assert_array_equal(emptied.length, [0, after.length[1]])
    again = append(emptied, x, x, lengths=np.array([2, 0]))
    assert np.isfinite(np.asarray(attention(x[:, :, :1], again))[0]).all()


@pytest.mark.structure
def test_a_ring_says_when_a_window_is_gone():
    x = normal(B, Hkv, 5, D, dtype=np.float32)
    c = append(cache.ring(B, Hkv, D, window=3, chunk=2), x, x, lengths=np.array([5, 2]))
    with pytest.raises(ValueError, match="must still hold"):
        cache.attention(x, c, lengths=np.array([5, 2]))
    out = np.asarray(attention(x, c, lengths=np.array([5, 2])))
    np.testing.assert_array_equal(np.isnan(out[0]).any((0, 2)), [True, True, True, False, False])
    assert np.isfinite(out[1]).all()
    want = whole(x, x, x, masks.causal() & masks.window(left=2))[0]
    assert_close(out[0, :, 3:], want[0, :, 3:], ulps=8)


@pytest.mark.structure
def test_an_emptied_row_of_a_ring_has_lost_nothing():
    x = normal(B, Hkv, 5, D, dtype=np.float32)
    lost = append(cache.ring(B, Hkv, D, window=3, chunk=2), x, x, lengths=np.array([5, 2]))
    new, q = x[:, :, :3], x[:, :, 1:4]
    again = append(free(lost, np.array([0])), new, new, lengths=np.array([3, 0]))
    out = np.asarray(attention(q, again, lengths=np.array([3, 0])))
    assert_close(out[0], whole(q, new, new, masks.causal() & masks.window(left=2))[0][0], ulps=8)
    kept = append(lost, new, new, lengths=np.array([3, 0]))  # the control: what is not emptied goes on
    assert int(kept.next[0]) == 8 != int(again.next[0])


@pytest.mark.structure
@pytest.mark.parametrize("kind", KINDS)
def test_an_emptied_row_starts_where_the_cache_does(kind):
    """And so a cascade of it over a prefix is that of a row that held nothing before."""
    x, n = normal(B, Hkv, 1, D, dtype=np.float32), 7
    v, q = x[..., :Dv], normal(B, H, 1, D, dtype=np.float32)
    p = normal(1, Hkv, n, D, dtype=np.float32)
    prefix = append(cache.contiguous(1, Hkv, n, D, Dv), p, p[..., :Dv])
    new = empty(np.float32, start=n)[kind]
    emptied = free(append(append(new, x, v), x, v), np.array([1]))
    np.testing.assert_array_equal(emptied.next, [n + 2, n])
    assert jax.tree.structure(emptied) == jax.tree.structure(new)
    want, got = (np.asarray(cascade(q, prefix, append(c, x, v))) for c in (new, emptied))
    np.testing.assert_array_equal(got[1], want[1])
    assert not np.array_equal(got[0], want[0])  # the control: what is not emptied goes on


@pytest.mark.structure
@pytest.mark.parametrize("kind", KINDS)
def test_each_device_fills_and_reads_a_cache_of_its_own_rows(kind):
    """Made, filled, emptied and attended inside `jax.shard_map`, with the gradient of what was put in."""
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    q, k, v = (normal(2 * B, n, 5, width, seed=width, dtype=np.float32) for n, width in ((H, D), (Hkv, D), (Hkv, Dv)))

    def local(q, k, v):
        c = append(append(empty(np.float32)[kind], k, v), k[:, :, :1], v[:, :, :1])
        c = append(free(c, np.array([1])), k[:, :, :2], v[:, :, :2], lengths=np.array([0, 2] + [0] * (B - 2)))
        return attention(q[:, :, :1], c)

    def graded(f):
        return jax.jit(jax.value_and_grad(lambda *x: jnp.sum(jnp.sin(f(*x))), (0, 1, 2)))(q, k, v)

    spec = jax.sharding.PartitionSpec("rows")
    got = graded(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec))
    want = graded(lambda *x: jnp.concatenate([local(*(a[:B] for a in x)), local(*(a[B:] for a in x))]))
    assert np.isfinite(got[0])
    assert_close(got, want, ulps=64)


@pytest.mark.structure
@pytest.mark.parametrize("kind", KINDS)
def test_on_an_explicit_mesh_a_cache_lies_as_it_lay_and_what_is_read_as_its_queries(kind):
    mesh = jax.make_mesh((2, 2), ("rows", "heads"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    q, k, v = (normal(B, n, 3, width, seed=width, dtype=np.float32) for n, width in ((H, D), (Hkv, D), (Hkv, Dv)))

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(1, 2, 3), has_aux=True)
    def graded(c, q, k, v):
        c = free(append(append(c, k, v), k[:, :, :1], v[:, :, :1]), np.array([1]))
        c = append(c, k[:, :, :2], v[:, :, :2], lengths=np.array([0, 2]))
        out = attention(q[:, :, :1], c)
        return jnp.sum(jnp.sin(out)), (out, c)

    (value, (of_one, c_of_one)), cotangents = graded(empty(np.float32)[kind], q, k, v)
    with jax.set_mesh(mesh):
        cut = jax.sharding.PartitionSpec("rows", "heads")
        (total, (out, c)), found = graded(empty(np.float32)[kind], *(jax.device_put(x, cut) for x in (q, k, v)))
    assert out.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, cut), out.ndim)
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(c))
    chex.assert_trees_all_equal(c, c_of_one)
    assert_close((total, out, found), (value, of_one, cotangents), ulps=64)


def test_no_tokens_leave_a_cache_as_it_is():
    c = cache.contiguous(B, Hkv, 3, D)
    none = np.zeros((B, Hkv, 0, D), np.float32)
    assert cache.append(c, none, none) is c
    shown = repr(c)
    assert shown == f"Contiguous(B={B}, Hkv={Hkv}, S=3, D={D}, float32)"


@pytest.mark.structure
@pytest.mark.parametrize("kind", KINDS)
def test_no_queries_have_no_results(kind):
    c, q = empty(np.float32)[kind], np.zeros((B, H, 0, D), np.float32)
    prefix = cache.contiguous(1, Hkv, 2, D, Dv)
    for score in (None, scores.soft_cap(3.0), lambda x, t, s: jnp.where(t < s, x / 2, x)):
        for caches, f in (((c,), cache.attention), ((prefix, c), cache.cascade)):
            out, lse = f(q, *caches, score=score, return_lse=True)
            assert (out.shape, lse.shape) == ((B, H, 0, Dv), (B, H, 0))


@pytest.mark.structure
def test_values_without_a_column_leave_the_sums_of_many_queries(monkeypatch):
    q, k, v = (x[:, :, :3] for x in sequences(np.float32))
    bare, full = cache.paged(B, Hkv, 3, D, 0, pages=4, page=2), empty(np.float32)["contiguous"]
    c, full = append(bare, k, v[..., :0]), append(full, k, v)
    monkeypatch.setattr(tuning, "DECODE_ROWS", 0)
    (out, lse), (_, want) = (cache.attention(q, c, return_lse=True) for c in (c, full))
    assert out.shape == (B, H, 3, 0)
    assert_close(lse, want, ulps=8)


@pytest.mark.structure
@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_that_a_compiled_function_closes_over_is_filled_there(kind):
    c, (_, k, v) = empty(np.float32)[kind], sequences(np.float32, n=MOST)
    np.testing.assert_array_equal(jax.jit(lambda k, v: cache.append(c, k, v).length)(k, v), [MOST] * B)


@pytest.mark.structure
def test_a_stack_of_caches_and_what_has_their_structure_are_shown():
    """Layers, in_axes, shardings and prefixes of a tree: what JAX puts into its messages too."""
    c = cache.paged(B, Hkv, 4, D, pages=3, page=2)
    assert repr(c) == f"Paged(B={B}, Hkv={Hkv}, S=4, D={D}, float32)"
    assert repr(jax.eval_shape(lambda: c)) == repr(c)
    layers = jax.tree.map(lambda x: jnp.stack([x] * 3), c)
    assert repr(layers) == f"Paged(k=float32[3,3,{Hkv},2,{D}], length=int32[3,{B}])"
    axes = jax.tree.map(lambda x: 0, c)
    assert repr(axes) == "Paged(k=0, length=0)"
    assert repr(jax.tree.map(lambda x: None, c)) == "Paged(k=None, length=None)"
    assert repr(dataclasses.replace(axes, store=None)) == "Paged(k=None, length=0)"
    assert repr(dataclasses.replace(c, table=0)) == f"Paged(k=float32[3,{Hkv},2,{D}], length=int32[{B}])"
    shown = jax.vmap(lambda c: [c, print(c)][0], in_axes=(axes,))(layers)
    assert repr(shown) == repr(layers)


@pytest.mark.structure
def test_a_row_that_has_ended_is_left_alone():
    """Rows that append nothing are never full and give zeros."""
    x = normal(B, Hkv, 1, D, dtype=np.float32)
    c = cache.contiguous(B, Hkv, 2, D)
    for n in ([1, 1], [1, 0], [0, 1], [0, 0]):
        c = cache.append(c, x, x, lengths=np.array(n))
    out = cache.attention(x, c, lengths=np.array([0, 1]))
    assert not c.full.any()
    assert not np.asarray(out)[0].any()
    assert np.asarray(out)[1].any()


@pytest.mark.structure
def test_lengths_beyond_the_new_tokens_are_all_of_them_and_below_0_none():
    """As `append` takes them."""
    q, k, v = (x[:, :, :3] for x in sequences(np.float32))
    for c in kinds(np.float32).values():
        far, c = np.array([7, -2]), append(c, k, v)
        np.testing.assert_array_equal(append(c, k, v, lengths=far).length, [6, 3])
        got, want = (np.asarray(attention(q, c, lengths=n)) for n in (far, np.array([3, 0])))
        np.testing.assert_array_equal(got, want)
        assert got[0].any()


# Pages.


@pytest.mark.structure
def test_pages_are_shared_freed_and_taken_again():
    with jax.enable_x64(True):
        n, C = 3, 4  # rows, slots of a page
        q, k, v = (normal(n, h, 19, w, seed=h + w) for h, w in ((H, D), (Hkv, D), (Hkv, Dv)))
        for x in (k, v):
            x[1, :, :11] = x[0, :, :11]  # one prompt of 11 tokens for two rows: two whole pages and a begun one
        c = cache.paged(n, Hkv, 19, D, Dv, pages=9, page=C, dtype=np.float64)
        c = append(c, k[:, :, :11], v[:, :, :11], lengths=np.array([11, 0, 5]))
        c = share(c, 0, np.array([1]))
        table = np.asarray(c.table)
        np.testing.assert_array_equal(table[0, :2], table[1, :2])
        assert table[0, 2] != table[1, 2], "both go on writing"
        want = whole(q, k, v, masks.causal())[0]
        for t in range(11, 19):  # eight steps: 5 + 5 + 4 pages but for the two in common, and nine there are
            at = np.array([t, t, t - 6])
            take = lambda x: np.stack([x[b, :, at[b]][:, None] for b in range(n)])  # noqa: E731, B023
            c = append(c, take(k), take(v), lengths=np.array([1, 1, 0]))
            if t == 15:
                c = free(c, np.array([2]))
            out = np.asarray(attention(take(q), c, lengths=np.array([1, 1, 0])))
            assert_close(out[:2], want[:2, :, t : t + 1], ulps=64)
        assert not c.full.any()
        users = np.bincount(np.asarray(c.table)[np.asarray(c.table) >= 0], minlength=9)
        np.testing.assert_array_equal(np.sort(users), [0, 1, 1, 1, 1, 1, 1, 2, 2])
        c = free(c, np.array([0]))
        out = np.asarray(attention(q[:, :, 18:], c, lengths=np.array([0, 1, 0])))
        assert_close(out[1], want[1, :, 18:], ulps=64)


@pytest.mark.structure
@hypothesis.settings(max_examples=10)
@hypothesis.given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.tuples(*[st.integers(0, 3)] * 3)),
            st.tuples(st.just("free"), st.integers(0, 2)),
            st.tuples(st.just("share"), st.tuples(st.integers(0, 2), st.integers(0, 2))),
        ),
        max_size=14,
    )
)
def test_pages_hold_what_each_row_was_given_whatever_is_done(moves):
    """Against plain lists: every row reads back its own tokens, and no page is begun by two."""
    C, N, M, counter = 2, 7, 4, 0
    lists, c = [[], [], []], cache.paged(3, 1, C * M, 1, pages=N, page=C)
    for what, how in moves:
        if what == "append":
            x = (counter + np.arange(9, dtype=np.float32)).reshape(3, 1, 3, 1)
            counter += 9
            c = append(c, x, x, lengths=np.array(how))
            full = np.asarray(c.full)
            for b in range(3):
                if not full[b]:
                    lists[b] += list(x[b, 0, : how[b], 0])
        elif what == "free":
            c, lists[how] = free(c, np.array([how])), []
        else:
            source, target = how
            c = share(c, source, np.array([target]))
            if source != target:
                length = np.asarray(c.length)
                lists[target] = list(lists[source]) if length[target] == length[source] else []
        table, length, stored = map(np.asarray, (c.table, c.length, c.store.k))
        for b in range(3):
            assert length[b] == len(lists[b])
            assert (table[b] >= 0).sum() == -(-len(lists[b]) // C)
            held = stored[table[b][table[b] >= 0], 0, :, 0].reshape(-1)[: len(lists[b])]
            np.testing.assert_array_equal(held, lists[b])
        begun = [table[b, len(lists[b]) // C] for b in range(3) if len(lists[b]) % C]
        assert all((table == page).sum() == 1 for page in begun)
        c = dataclasses.replace(c, full=jnp.zeros(3, bool))


@functools.partial(jax.jit, static_argnames=("pages", "together"))
def grown(held, asked, pages, together=False):
    """(full, length, table) after rows of a new cache took `held` and then `asked` tokens: in a batch of its own."""

    def one(held, asked):
        x = jnp.ones((len(asked), 1, 7, 1), jnp.float32)
        c = cache.append(cache.paged(len(asked), 1, 9, 1, pages=pages, page=2), x, x, lengths=held)
        c = cache.append(c, x, x, lengths=asked)
        return c.full, c.length, c.table

    return jax.vmap(one)(held, asked) if together else one(held, asked)


def served(wanted, pages):
    """The same of plain lists: rows in their order, each of which takes all that it asks for or nothing."""
    rows, full, pool = [0] * 5, [False] * 5, pages
    for asked in wanted:
        for b, n in enumerate(asked):
            need = -(-(rows[b] + n) // 2) - -(-rows[b] // 2)
            fits = need <= pool and rows[b] + n <= 10
            pool, rows[b], full[b] = pool - fits * need, rows[b] + fits * n, full[b] or not fits
    return full, rows


FIVE = st.tuples(*[st.integers(0, 7)] * 5)


@pytest.mark.structure
@hypothesis.settings(max_examples=60)
@hypothesis.given(held=FIVE, asked=FIVE, pages=st.sampled_from([3, 7, 11]))
@hypothesis.example(held=(0, 0, 0, 0, 0), asked=(7, 2, 6, 4, 1), pages=3)
def test_a_row_that_finds_no_pages_takes_none_of_those_behind_it(held, asked, pages):
    wanted = np.array([held, asked], np.int32)
    alone = [np.asarray(x) for x in grown(*wanted, pages)]
    both = grown(*np.stack([wanted, wanted[:, ::-1]], 1), pages, together=True)
    for rows, (full, length, table) in (
        (wanted, alone),
        *((w, [np.asarray(x[i]) for x in both]) for i, w in enumerate((wanted, wanted[:, ::-1]))),
    ):
        want_full, want_length = served(rows.tolist(), pages)
        np.testing.assert_array_equal(full, want_full)
        np.testing.assert_array_equal(length, want_length)
        np.testing.assert_array_equal((table >= 0).sum(1), -(-length // 2))
        used = table[table >= 0]
        assert len(set(used.tolist())) == len(used), "no page has two rows"


@pytest.mark.structure
def test_an_oversized_row_leaves_the_pages_to_the_others():
    x = np.ones((2, 1, 6, D), np.float32)
    c = cache.paged(2, 1, 6, D, pages=2, page=2)
    with pytest.raises(ValueError, match="must have room"):
        cache.append(c, x, x, lengths=np.array([6, 2]))
    c = append(c, x, x, lengths=np.array([6, 2]))
    np.testing.assert_array_equal(c.full, [True, False])
    np.testing.assert_array_equal(c.length, [0, 2])
    out = np.asarray(attention(x[:, :, :1], c))
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1]).all()


@pytest.mark.structure
def test_sharing_without_a_page_left_raises_the_flag():
    x = np.ones((2, 1, 3, 1), np.float32)
    c = append(cache.paged(2, 1, 4, 1, pages=2, page=2), x, x, lengths=np.array([3, 0]))
    with pytest.raises(ValueError, match="must find a page"):
        cache.share(c, 0, np.array([1]))
    c = share(c, 0, np.array([1]))
    np.testing.assert_array_equal(c.full, [False, True])
    np.testing.assert_array_equal(c.length, [3, 0])
    np.testing.assert_array_equal(c.next, [3, 0])


# One prefix for all.


@pytest.mark.structure
@pytest.mark.parametrize("kind", KINDS)
def test_a_cascade_is_attention_over_prefix_and_own_tokens(kind):
    with jax.enable_x64(True):
        q, k, v = sequences(np.float64)
        n = 13
        for x in (k, v):
            x[1, :, :n] = x[0, :, :n]
        sink = normal(H, seed=9)
        prefix = append(cache.contiguous(1, Hkv, n, D, Dv, dtype=np.float64), k[:1, :, :n], v[:1, :, :n])
        c = empty(np.float64, start=n)[kind]
        c = append(c, k[:, :, n : n + 3], v[:, :, n : n + 3], lengths=np.array([3, 1]))
        got = np.asarray(cascade(q[:, :, n : n + 3], prefix, c, sink=sink, lengths=np.array([3, 1])))
        want = whole(q, k, v, mask_of(kind), sink)[0]
        assert_close(got[0], want[0, :, n : n + 3], ulps=64)
        assert_close(got[1, :, :1], want[1, :, n : n + 1], ulps=64)
        assert not got[1, :, 1:].any()


def cascaded(q, k, v, n):
    """Every row's first n tokens are those of row 0, in a prefix; the others its own."""
    dtype, (_, heads, S, width) = k.dtype, k.shape
    prefix = cache.contiguous(1, heads, n, width, v.shape[3], dtype=dtype)
    own = cache.contiguous(len(k), heads, S - n, width, v.shape[3], dtype=dtype, start=n)
    prefix = append(prefix, k[:1, :, :n], v[:1, :, :n])
    return cascade(q, prefix, append(own, k[:, :, n:], v[:, :, n:]))


@pytest.mark.structure
def test_a_cascade_rounds_once_as_one_cache_does():
    """Where values cancel, partials that were rounded before they are merged are off by many ulps."""
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in sequences(np.float32))
    got = cascaded(q[:, :, -2:], k, v, 13)
    want = cascaded(*(x.astype(jnp.float32) for x in (q[:, :, -2:], k, v)), 13)
    assert got.dtype == jnp.bfloat16
    off = np.abs(np.asarray(got, np.float64) - np.asarray(want, np.float64)) / np.abs(np.asarray(want, np.float64))
    assert off.max() <= 0.5001 * jnp.finfo(jnp.bfloat16).eps


@pytest.mark.structure
def test_a_cascade_counts_keys_at_logits_beside_which_their_logarithm_is_lost():
    """Of five equal keys, four in the prefix and one of each row: the mean of their values."""
    q, k = np.full((B, 1, 1, 1), 2.0**13, np.float32), np.full((B, 1, 5, 1), 2.0**13, np.float32)
    v = np.broadcast_to(normal(1, 1, 5, Dv, dtype=np.float32), (B, 1, 5, Dv))
    got = cascaded(q, k, v, 4)
    np.testing.assert_allclose(got[:, 0, 0], v[:, 0].mean(1), rtol=1e-6)


@pytest.mark.structure
@pytest.mark.parametrize("dtype", [np.int8, np.float16])
def test_a_prefix_and_own_tokens_may_be_of_different_dtypes(dtype):
    """The result is in what they promote to, with strict promotion too: bytes count as the dtype of the queries."""
    q, k, v = sequences(np.float32)
    kept = np.float32 if dtype == np.int8 else dtype
    prefix = append(cache.contiguous(1, Hkv, 13, D, Dv, dtype=dtype), *(x[:1, :, :13].astype(kept) for x in (k, v)))
    own = cache.contiguous(B, Hkv, LONGEST - 13, D, Dv, dtype=jnp.bfloat16, start=13)
    own = append(own, *(jnp.asarray(x[:, :, 13:], jnp.bfloat16) for x in (k, v)))
    got = cascade(q[:, :, -2:], prefix, own)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, cascaded(q[:, :, -2:], k, v, 13), atol=2**-5)


def test_floats_of_8_bits_beside_others_give_the_wider_dtype():
    q = sequences(np.float32, n=2)[0]
    narrow = {x: cache.contiguous(B, Hkv, 2, D, Dv, dtype=x, start=2) for x in (jnp.float8_e4m3fn, jnp.float8_e5m2)}
    for of_prefix, of_own, want in (
        (jnp.int8, jnp.float8_e5m2, np.float32),
        (np.float16, jnp.float8_e4m3fn, np.float16),
        (jnp.float8_e5m2, jnp.float8_e4m3fn, jnp.bfloat16),
        (jnp.float8_e5m2, jnp.float8_e5m2, jnp.float8_e5m2),
    ):
        prefix = cache.contiguous(1, Hkv, 2, D, Dv, dtype=of_prefix)
        assert jax.eval_shape(cache.cascade, q, prefix, narrow[of_own]).dtype == want
