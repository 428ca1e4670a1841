"""Every scheme, on 2, 4 and 8 devices, against the definition on one: values and every derivative."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, normal
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jattn
from jattn import masks, scores, sharding

pytestmark = pytest.mark.structure
B, H, D, Dv = 1, 4, 3, 2
BOUND = 1e-11


def mesh_of(n, *names):
    shape = (n,) if len(names) == 1 else (n // 2, 2)
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names), devices=jax.devices()[:n])


def ids(T):
    """Three documents, whose borders lie inside shards."""
    return np.asarray(np.searchsorted([T // 3, T // 2], np.arange(T), side="right"), np.int32)


MASKS = {
    "none": lambda T, p: None,
    "causal": lambda T, p: masks.causal(),
    "window": lambda T, p: masks.window(left=T // 4 + 1, right=0),
    "segments": lambda T, p: masks.segments(ids(T)[p]) & masks.causal(),
    "prefix": lambda T, p: masks.prefix(T // 3) | masks.causal(),
}
SCORES = {
    "none": lambda table: None,
    "table": lambda table: lambda s, i, j: s + table[jnp.abs(i - j)],
    "capped": lambda table: scores.soft_cap(2.0),
    "alibi": lambda table: scores.alibi(0.3),
}
ORDERS = {
    "contiguous": lambda T, n: np.arange(T, dtype=np.int32),
    "zigzag": lambda T, n: sharding.zigzag(np.arange(T, dtype=np.int32), n),
    "striped": lambda T, n: np.arange(T, dtype=np.int32).reshape(-1, n).T.ravel(),
}
GG, GT = EVERY = "gradient of gradient", "gradient of tangent"
TG = "tangent of gradient"
# scheme, devices, Hkv, layout, mask, score, positions known before tracing, derivatives of second order (where there
# are some, the tangent of the gradient is one)
CASES = [
    ("ring", 8, 2, "zigzag", "causal", "table", False, (GG,)),
    ("ring", 4, 1, "contiguous", "segments", "capped", True, ()),
    ("ring", 2, 4, "striped", "causal", "alibi", True, ()),
    ("ring", 8, 2, "contiguous", "window", "none", True, ()),
    ("ring", 4, 2, "zigzag", "prefix", "alibi", True, ()),
    ("ring", 8, 4, "contiguous", "none", "none", True, ()),
    ("all_to_all", 4, 2, "zigzag", "prefix", "table", True, (GG,)),
    ("all_to_all", 2, 4, "contiguous", "segments", "capped", False, ()),
    ("all_to_all", 8, 2, "striped", "window", "alibi", True, ()),
    ("gather", 8, 2, "contiguous", "segments", "table", False, (GT,)),
    ("gather", 4, 1, "zigzag", "causal", "capped", True, ()),
    ("gather", 2, 2, "striped", "prefix", "alibi", True, ()),
    ("ring_all_to_all", 8, 2, "zigzag", "causal", "table", True, (TG,)),
    ("ring_all_to_all", 4, 1, "contiguous", "segments", "capped", False, ()),
    ("tree", 8, 2, "contiguous", "causal", "table", True, (GG,)),
    ("tree", 4, 1, "striped", "window", "capped", False, ()),
    ("tree", 2, 2, "zigzag", "prefix", "alibi", True, ()),
]
ALL_ORDERS = [(*case[:-1], EVERY) for case in CASES if case[-1] or case is CASES[1]]
"""The orders that are left out there."""


def problem(scheme, n, Hkv, layout, mask, score, known):
    """(the scheme, the definition), each a function of (q, k, v, sink, table); and where to look at them."""
    T, heads = 2 * n, max(H, n) if scheme == "all_to_all" else H
    order = ORDERS[layout](T, n)
    rows = order[[T // 2 - 1, T - 1]] if scheme == "tree" else order
    axes = ("seq",) if scheme != "ring_all_to_all" else ("ring", "heads")
    mesh = mesh_of(n, *axes)
    spec = P(None, axes[0] if len(axes) == 1 else axes)
    given = {"q_positions": rows, "k_positions": order}
    given = given if known else {name: jnp.asarray(x) for name, x in given.items()}

    def ours(q, k, v, sink, table):
        allowed = MASKS[mask](T, order)
        if scheme == "tree" and mask == "segments":
            allowed = masks.segments(ids(T)[rows], ids(T)[order])
        return sharding.attention(
            q, k, v, mesh=mesh, spec=spec, scheme=getattr(sharding, scheme), mask=allowed, score=SCORES[score](table),
            sink=sink, return_lse=True, **given,
        )  # fmt: skip

    def definition(q, k, v, sink, table):
        allowed = MASKS[mask](T, order)
        dense = None if allowed is None else masks.to_dense(allowed, len(rows), T, q_positions=rows, k_positions=order)
        value = SCORES[score](table)

        def one(q, k, v, sink):
            options = {"mask": dense, "score": value, "sink": sink, "q_positions": rows, "k_positions": order}
            return jattn.reference.attention(q, k, v, **options)

        k, v = (jnp.repeat(x, heads // Hkv, 2) for x in (k, v))
        return jax.vmap(jax.vmap(one, (1, 1, 1, 0), (1, 1)), (0, 0, 0, None))(q, k, v, sink)

    shapes = (B, len(rows), heads, D), (B, T, Hkv, D), (B, T, Hkv, Dv), (heads,), (T,)
    x = tuple(normal(*shape, seed=i) for i, shape in enumerate(shapes))
    x_dot = tuple(jnp.asarray(normal(*shape, seed=i + 9)) for i, shape in enumerate(shapes))
    return ours, definition, x, x_dot


def loss_and_value(f, x):
    """A loss that tells every entry of out and lse apart, and these."""
    out = f(*x)
    return sum(jnp.vdot(jnp.cos(jnp.arange(y.size)).reshape(y.shape), jnp.sin(y)) for y in out), out


def first(f):
    """x → (value, gradient)."""
    graded = jax.value_and_grad(lambda x: loss_and_value(f, x), has_aux=True)

    def both(x):
        (_, out), gradient = graded(x)
        return out, gradient

    return both


@functools.partial(jax.jit, static_argnums=0)
def orders_of_definition(f, x, x_dot):
    """Value and gradient, and the tangents of both: by symmetry the product of the Hessian and x_dot is one."""
    return jax.jvp(first(f), (x,), (x_dot,))


def off(got, want):
    got, want = (map(np.asarray, jax.tree.leaves(x)) for x in (got, want))
    return max(np.max(np.abs(a - b)) for a, b in zip(got, want, strict=True))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.exhaustive) for case in ALL_ORDERS)],
    ids=lambda c: "-".join([*map(str, c[:6]), *c[-1]]),
)
def test_a_scheme_equals_one_device(case):
    *what, second_orders = case
    f, definition, x, x_dot = problem(*what)
    if not second_orders:
        assert off(jax.jit(first(f))(x), jax.jit(first(definition))(x)) <= BOUND
        return
    want = orders_of_definition(definition, x, x_dot)
    (value, _), (_, second) = want

    def along_gradient(x):
        return sum(map(jnp.vdot, first(f)(x)[1], x_dot))

    def tangent(x):
        return jax.jvp(lambda x: loss_and_value(f, x)[0], (x,), (x_dot,))[1]

    alone, orders = jax.jit(lambda x: (f(*x), jax.jvp(first(f), (x,), (x_dot,))))(x)
    assert off(alone, value) <= BOUND
    assert off(orders, want) <= BOUND
    for name, slope in zip(EVERY, (along_gradient, tangent), strict=True):
        if name in second_orders:
            assert off(jax.jit(jax.grad(slope))(x), second) <= BOUND
    if case is CASES[0]:  # the control: one key moved by a billionth is seen
        x[1][0, 0, 0, 0] += 1e-9
        assert off(orders_of_definition(definition, x, x_dot)[0][0], value) > BOUND


@pytest.mark.parametrize("scheme", ["ring", "tree"])
def test_lists_of_positions_and_whole_numbers_are_taken_as_on_one_device(scheme):
    T = 8
    rows = [6, 1] if scheme == "tree" else list(range(T))
    q, k, v = normal(B, len(rows), 2, D), normal(B, T, 2, D, seed=1), normal(B, T, 2, Dv, seed=2)
    more = {"mask": masks.causal(), "sink": 0, "scale": 1, "q_positions": tuple(rows), "k_positions": list(range(T))}
    got = sharding.attention(
        q, k, v, mesh=mesh_of(2, "seq"), spec=P(None, "seq"), scheme=getattr(sharding, scheme), **more
    )
    arrays = {name: np.array(more[name]) for name in ("q_positions", "k_positions")}
    assert_close(got, jattn.dot_product_attention(q, k, v, **more | arrays), ulps=64)


def test_a_partial_of_a_scheme_is_the_scheme():
    """Of a tree, whose queries are whole on every device and of any number."""
    q, k, v = normal(B, 3, H, D), normal(B, 8, 2, D, seed=1), normal(B, 8, 2, Dv, seed=2)
    for scheme in (sharding.tree, functools.partial(functools.partial(sharding.tree), axis_name="seq")):
        got = sharding.attention(q, k, v, mesh=mesh_of(2, "seq"), spec=P(None, "seq"), scheme=scheme)
        assert_close(got, jattn.dot_product_attention(q, k, v), ulps=64)


def test_what_a_score_computes_in_a_narrower_dtype_has_its_gradient_through_a_ring():
    """0.1 of the captured table's dtype: the score does not take the table in the dtype of the arithmetic."""
    x, at = normal(3, B, 8, 1, D, dtype=np.float32), np.arange(8, dtype=np.int32)
    table, tenth = jnp.arange(8, dtype=jnp.bfloat16), jnp.asarray(0.1, jnp.bfloat16)

    def total(table, attend, **over):
        score = lambda s, t, j: s + jnp.sin(table[jnp.abs(t - j)] * tenth).astype(s.dtype)  # noqa: E731
        return jnp.vdot(attend(*x, score=score, q_positions=at, k_positions=at, **over), x[0])

    ring = functools.partial(sharding.attention, mesh=mesh_of(2, "seq"), spec=P(None, "seq"))
    got, want = (jax.jit(jax.grad(total), static_argnums=1)(table, f) for f in (ring, jattn.dot_product_attention))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (got, want)), atol=2.0**-7)


def test_a_ring_is_transposed_by_its_values_as_a_linear_solver_asks():
    q, k, v, cotangent = (normal(B, 8, H, D, seed=i, dtype=np.float32) for i in range(4))
    ring = functools.partial(sharding.attention, mesh=mesh_of(4, "seq"), spec=P(None, "seq"), scheme=sharding.ring)
    got, want = (
        jax.linear_transpose(lambda v, f=f: f(q, k, v), v)(cotangent)[0] for f in (ring, jax.nn.dot_product_attention)
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scheme", ["ring", "all_to_all", "gather", "tree"])
def test_an_empty_batch_has_an_empty_result(scheme):
    x = np.zeros((0, 4, 2, D), np.float32)
    f = functools.partial(
        sharding.attention, mesh=mesh_of(2, "seq"), spec=P(None, "seq"), scheme=getattr(sharding, scheme)
    )
    assert jax.grad(lambda q: f(q, x, x).sum())(jnp.asarray(x)).shape == f(x, x, x).shape == x.shape


@pytest.mark.parametrize("mask", [masks.full(), masks.causal()], ids=["full", "causal"])
@pytest.mark.parametrize("scheme", ["ring", "all_to_all", "gather", "tree"])
def test_a_length_that_is_padded_as_its_refusal_says_is_attended_as_it_was(scheme, mask):
    x = jax.random.normal(jax.random.key(7), (3, 13, H, D))
    f = functools.partial(sharding.attention, mesh=mesh_of(4, "seq"), spec=P("seq"), scheme=getattr(sharding, scheme))
    with pytest.raises(ValueError, match=r"3 rows, and let no query attend them, as with .* s < 13\)|Pad q by 3 rows"):
        f(*x)

    def padded(x):
        q, k, v = (jnp.pad(a, ((0, 3), (0, 0), (0, 0))) for a in x)
        return f(q, k, v, mask=mask & masks.where(lambda t, s: s < 13))[:13]

    def loss(attend):
        return lambda x: jnp.sin(attend(x)).sum()

    want = jax.value_and_grad(loss(lambda x: jattn.dot_product_attention(*x, mask=mask)))(x)
    for a, b in zip(*map(jax.tree.leaves, (jax.value_and_grad(loss(padded))(x), want)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_empty_batch_has_an_empty_result_where_a_ring_is_so_long_that_it_loops():
    x = jnp.zeros((3, 0, 8, 2, D))
    f = functools.partial(sharding.attention, mesh=mesh_of(8, "seq"), spec=P(None, "seq"))
    assert f(*x).shape == (0, 8, 2, D)
    assert jax.grad(lambda x: f(*x).sum())(x).shape == x.shape


def test_attention_takes_the_mesh_of_a_shard_map_over_other_axes():
    mesh = jax.make_mesh((2, 2), ("data", "seq"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    x = normal(3, 2, 4, 2, D, dtype=np.float32)

    def here(x):
        return sharding.attention(*x, mesh=jax.sharding.get_abstract_mesh(), spec=P(None, "seq"))

    over_data = jax.shard_map(here, mesh=mesh, in_specs=P(None, "data"), out_specs=P("data"), axis_names={"data"})
    assert_close(jax.jit(over_data)(x), jattn.dot_product_attention(*x), ulps=16)


def test_eager_gradients_on_an_explicit_mesh_need_it_set_as_jax_asks():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])
    x = jax.device_put(normal(2, 4, 2, D, dtype=np.float32), jax.NamedSharding(mesh, P("data")))
    plain = lambda x: jattn.dot_product_attention(x, x, x).sum()  # noqa: E731
    cut = lambda x: sharding.attention(x, x, x, mesh=mesh, spec=P("data")).sum()  # noqa: E731
    for f in (plain, cut, lambda x: (x * x).sum()):
        with pytest.raises(ValueError, match=r"jax\.set_mesh"):
            jax.grad(f)(x)
        in_jit = jax.jit(jax.grad(f))(x)
        with jax.set_mesh(mesh):
            assert_close(jax.grad(f)(x), in_jit, ulps=16)


def over_a_tree(q, k, v, **options):
    return sharding.attention(
        q, k, v, mesh=mesh_of(4, "seq"), spec=P(None, "seq"), scheme=sharding.tree, mask=masks.causal(),
        k_positions=np.arange(k.shape[1]), **options,
    )  # fmt: skip


def test_a_tree_rounds_once_as_one_device_does():
    """Where values cancel, partials that were rounded before they are merged are off by many ulps."""
    q, k, v = (jnp.asarray(normal(B, n, 2, 8, seed=n), jnp.bfloat16) for n in (3, 16, 20))
    v, at = v[:, :16], np.array([6, 11, 15])
    got = over_a_tree(q, k, v, q_positions=at)
    want = over_a_tree(*(x.astype(jnp.float32) for x in (q, k, v)), q_positions=at)
    assert got.dtype == jnp.bfloat16
    off = np.abs(np.asarray(got, np.float64) - np.asarray(want, np.float64)) / np.abs(np.asarray(want, np.float64))
    assert off.max() <= 0.5001 * jnp.finfo(jnp.bfloat16).eps


def test_a_tree_counts_keys_at_logits_beside_which_their_logarithm_is_lost():
    """Of five equal keys, four on the first device and one on the second: the mean of their values."""
    q, k = np.full((B, 1, 1, 1), 2.0**13, np.float32), np.full((B, 16, 1, 1), 2.0**13, np.float32)
    v = normal(B, 16, 1, Dv, dtype=np.float32)
    got = over_a_tree(q, k, v, q_positions=np.array([4]))
    np.testing.assert_allclose(got[0, 0, 0], v[0, :5, 0].mean(0), rtol=1e-6)


# What is measured of each query, over the keys of all devices

ASKED, OWN, G, DEVICES = 7, 3, 2, 8
GROUPS = np.arange(OWN * DEVICES, dtype=np.int32) % (G + 1) - 1  # a third of the keys in none
Q_AT = np.arange(ASKED, dtype=np.int32) * 4 - 1
"""The first query may attend no key, and most no key of the last devices."""


def measured_on_devices(q, k, own_sink, sink):
    """Of every query and the keys of each device, and then of all; `own_sink` is a sink of each device."""

    def here(q, k, groups, at):
        options = {"mask": masks.causal(), "q_positions": Q_AT, "k_positions": at}
        own = jattn.statistics(q, k, sink=own_sink, groups=groups, num_groups=G, **options)
        return sharding.merge_statistics(own, axis_name="seq", sink=sink)

    specs = (P(), P("seq"), P("seq"), P("seq"))
    f = jax.shard_map(here, mesh=mesh_of(DEVICES, "seq"), in_specs=specs, out_specs=P())
    return f(q, k, GROUPS, np.arange(len(k), dtype=np.int32))


def measured_in_pieces(q, k, own_sink, sink):
    """The keys of one device in as many pieces, under a vmap that names its axis; of each, the definition."""

    def here(k, groups, at):
        own = jattn.reference.statistics(
            q, k, mask=Q_AT[:, None] >= at[None], sink=own_sink, groups=groups, num_groups=G
        )
        return sharding.merge_statistics(own, axis_name="seq", sink=sink)

    x = (k, GROUPS, np.arange(len(k), dtype=np.int32))
    f = jax.vmap(here, out_axes=None, axis_name="seq")
    return f(*(a.reshape(DEVICES, OWN, *a.shape[1:]) for a in x))


def measured_at_once(q, k, own_sink, sink):
    sink = jnp.logaddexp(sink, own_sink + jnp.log(jnp.asarray(DEVICES, q.dtype)))
    at = np.arange(len(k), dtype=np.int32)
    mask = masks.to_dense(masks.causal(), len(q), len(k), q_positions=Q_AT, k_positions=at)
    return jattn.reference.statistics(q, k, mask=mask, sink=sink, groups=GROUPS, num_groups=G)


def first_of(f):
    """x → (statistics, gradient); −∞ has no part in the loss."""

    def loss(x):
        found = f(*x)
        finite = [jnp.where(jnp.isfinite(a), a, 0) for a in found]
        return loss_and_value(lambda _: finite, [None])[0], found

    def first_order(x):
        gradient, found = jax.grad(loss, has_aux=True)(x)
        return found, gradient

    return first_order


def second_of(f):
    """(x, x_dot) → (statistics, gradient), and the tangent of the gradient."""
    first_order = first_of(f)
    return lambda x, x_dot: (first_order(x), jax.jvp(lambda x: first_order(x)[1], (x,), (x_dot,))[1])


on_devices, at_once = (jax.jit(first_of(f)) for f in (measured_on_devices, measured_at_once))


def measured_arguments(**given):
    x = {"q": normal(ASKED, 5), "k": normal(DEVICES * OWN, 5, seed=1), "own": LOW,
         "sink": normal(ASKED, seed=2)} | given  # fmt: skip
    return tuple(map(jnp.asarray, x.values()))


def same_but_infinite(got, want):
    for a, b in zip(*(map(np.asarray, jax.tree.leaves(x)) for x in (got, want)), strict=True):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        there = np.isfinite(b)
        np.testing.assert_array_equal(a[~there], b[~there])
        assert np.max(np.abs(a[there] - b[there]), initial=0) <= BOUND


LOW = np.full(ASKED, -1e4)
"""As good as no sink."""


def sinks():
    """None on each device and one for all, one on each device, none at all."""
    own, one = normal(2, ASKED, seed=5)
    return [measured_arguments(own=a, sink=b) for a, b in ((LOW, one), (own, LOW), (LOW, LOW))]


@pytest.mark.usefixtures("x64")
def test_the_statistics_of_the_keys_of_devices_merge_into_those_of_all_keys():
    for x in sinks():
        got, want = on_devices(x), at_once(x)
        same_but_infinite(got, want)
        found, (dq, *_) = got
        assert found.max_logit[0] == found.mean_logit[0] == -np.inf
        assert not any(np.any(a[0]) for a in (found.entropy, found.effective_keys, found.group_weights, dq))
    moved = on_devices(measured_arguments(own=LOW, sink=LOW, k=np.asarray(x[1]) + 1e-9))
    assert off(moved[1], want[1]) > BOUND  # the control


@pytest.mark.usefixtures("x64")
def test_merged_statistics_have_their_derivatives_of_second_order():
    got, want = (jax.jit(second_of(f)) for f in (measured_in_pieces, measured_at_once))
    x_dot = measured_arguments(**{name: normal(n, seed=6) for name, n in (("own", ASKED), ("sink", ASKED))})
    for x in sinks():
        same_but_infinite(got(x, x_dot), want(x, x_dot))


@pytest.mark.usefixtures("x64")
def test_of_equal_maxima_on_several_devices_the_first_has_the_derivative_and_a_nan_is_kept():
    alike = measured_arguments(own=LOW, q=np.ones((ASKED, 5)), k=np.ones((DEVICES * OWN, 5)))
    same_but_infinite(on_devices(alike), at_once(alike))
    keys = normal(DEVICES * OWN, 5, seed=1)
    keys[10] = np.nan
    found, _ = on_devices(measured_arguments(own=LOW, k=keys))
    for a in found:
        np.testing.assert_array_equal(np.isnan(a).reshape(ASKED, -1).all(1), Q_AT >= 10)


@pytest.mark.usefixtures("x64")
def test_a_merged_entropy_is_known_as_well_as_the_log_sum_exps():
    q, k = np.zeros((ASKED, 5)), np.zeros((DEVICES * OWN, 5))
    q[:, 0], k[:, 0] = 1, 2.0**30  # each logit 2³⁰ / √5
    found, _ = on_devices(measured_arguments(q=q, k=k, own=LOW, sink=LOW))
    np.testing.assert_allclose(found.effective_keys, Q_AT + 1, rtol=1e-6)


def test_merging_statistics_sends_what_its_docstring_says():
    def numbers(f, *x):
        found = jax.make_jaxpr(f, axis_env=[("seq", DEVICES)])(*x).jaxpr.eqns
        sent = [e for e in found if e.primitive.name.startswith(("psum", "pmax", "pmin"))]
        return sum(v.aval.size for e in sent for v in e.invars)

    own = jattn.Statistics(*[jnp.zeros((H, ASKED))] * 6, jnp.zeros((H, ASKED, G)))
    assert numbers(lambda x: sharding.merge_statistics(x, axis_name="seq"), own) == H * ASKED * (G + 10)
    assert numbers(lambda x: jax.lax.psum(x, "seq"), jnp.zeros(3)) == 3  # the control


@pytest.mark.usefixtures("x64")
def test_a_partial_that_all_devices_share_has_its_whole_gradient_where_it_is_merged():
    shared, own = ((normal(n, Dv, seed=n), normal(n, seed=n + 1)) for n in (ASKED, ASKED * DEVICES))
    by = jnp.cos(jnp.arange(Dv, dtype=jnp.float64))[None]

    def loss(shared, own):
        out, lse = jattn.merge(shared, own)
        return jnp.sum(jnp.sin(out) * by) + jnp.sum(jnp.sin(lse))

    def on_devices(shared, own):
        f = lambda shared, own: jax.lax.psum(loss(shared, own), "seq")  # noqa: E731
        return jax.shard_map(f, mesh=mesh_of(DEVICES, "seq"), in_specs=(P(), P("seq")), out_specs=P())(shared, own)

    def at_once(shared, own):
        return loss(tuple(jnp.tile(x, (DEVICES,) + (1,) * (x.ndim - 1)) for x in shared), own)

    x = jax.tree.map(jnp.asarray, (shared, own))
    got, want = (jax.jit(jax.value_and_grad(f, (0, 1)))(*x) for f in (on_devices, at_once))
    assert off(got, want) <= BOUND


CUT = P(None, "seq")


def over_two(mask, kind, given=CUT, **how):
    """Attention over two devices along an axis of this kind, with the mesh set, and over one; the operands are given
    in pieces of this spec."""
    mesh = jax.make_mesh((2,), ("seq",), axis_types=(kind,), devices=jax.devices()[:2])
    x = [normal(1, 6, 2, D, seed=i, dtype=np.float32) for i in range(3)]
    cut = [jax.device_put(a, jax.NamedSharding(mesh, given)) for a in x]
    with jax.set_mesh(mesh):
        got = sharding.attention(*cut, mesh=mesh, spec=CUT, mask=mask(), scheme=sharding.gather, **how)
    return got, jattn.dot_product_attention(*x, mask=mask(), **how)


def test_a_function_as_a_mask_may_be_made_under_the_mesh_that_is_set():
    """It is asked inside `jax.shard_map`, and looks up an array."""
    begins = jnp.arange(6) // 4
    assert_close(*over_two(lambda: masks.where(lambda t, s: begins[t] == begins[s]), AxisType.Auto), ulps=16)


@pytest.mark.parametrize("given", [CUT, P(), P(None, None, "seq")], ids=["cut", "whole", "by heads"])
def test_on_an_explicit_mesh_what_is_whole_is_cut_as_the_spec_says(given):
    """Operands, ids of a mask, and positions that are arrays."""
    ids = jnp.arange(6) // 4
    mask = lambda: masks.segments(ids) & masks.causal()  # noqa: E731
    kind = AxisType.Explicit
    assert_close(*over_two(mask, kind, given, q_positions=ids + 1, k_positions=ids), ulps=16)


def test_heads_that_devices_share_are_exchanged_without_jit_beside_an_explicit_axis():
    """One key/value head for two devices, along an axis beside which the mesh has one that the spec leaves out."""
    mesh = jax.make_mesh((1, 2), ("data", "seq"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:2])
    q, k, v = (normal(1, 4, heads, D, seed=i, dtype=np.float32) for i, heads in enumerate((2, 1, 1)))
    got = sharding.attention(q, k, v, mesh=mesh, spec=CUT, scheme=sharding.all_to_all)
    assert_close(got, jattn.dot_product_attention(q, k, v), ulps=16)
