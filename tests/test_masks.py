"""Masks are an algebra of booleans that nobody has to write out, and values that pass through transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import S, T, assert_same, pairs, positions
from hypothesis import given
from hypothesis import strategies as st

import jattn
from jattn import masks

t, s = np.arange(T)[:, None], np.arange(S)[None, :]
q_places, k_places = np.arange(T, dtype=np.int32) * 2 % 11 - 3, np.arange(S, dtype=np.int32) * 5 % 13 - 4
here, there = q_places[:, None], k_places[None, :]
ALLOWED = pairs()

distances = st.one_of(st.none(), st.integers(0, 9))
bounds = st.one_of(st.none(), st.integers(0, 20))
leaves = st.one_of(
    st.just((masks.causal(), here >= there)),
    st.tuples(distances, distances)
    .filter(any)
    .map(
        lambda w: (
            masks.window(*w),
            (w[0] is None or here - there <= w[0]) & (w[1] is None or there - here <= w[1]) & np.ones((T, S), bool),
        )
    ),
    st.tuples(bounds, bounds)
    .filter(lambda n: n != (None, None))
    .map(lambda n: (masks.lengths(*n), (t < (T if n[0] is None else n[0])) & (s < (S if n[1] is None else n[1])))),
)
arrays = st.sampled_from([ALLOWED, ALLOWED[:1], ALLOWED[:, :1], ALLOWED[:1, :1]])
dense = arrays.map(lambda x: (masks.dense(x), np.broadcast_to(x, (T, S))))


def grow(children):
    """A mask of masks, beside the NumPy booleans that it stands for."""
    return st.one_of(
        st.tuples(children, children).map(lambda x: (x[0][0] & x[1][0], x[0][1] & x[1][1])),
        st.tuples(children, children).map(lambda x: (x[0][0] | x[1][0], x[0][1] | x[1][1])),
        children.map(lambda x: (~x[0], ~x[1])),
    )


written = st.recursive(leaves, grow, max_leaves=6)
trees = st.recursive(st.one_of(leaves, dense), grow, max_leaves=6)


def show(mask):
    return np.asarray(masks.to_dense(mask, T, S, q_positions=q_places, k_positions=k_places))


@given(trees)
def test_a_mask_is_the_booleans_it_stands_for(tree):
    mask, booleans = tree
    np.testing.assert_array_equal(show(mask), booleans)


@given(trees, trees)
def test_the_laws_of_de_morgan(x, y):
    (a, _), (b, _) = x, y
    np.testing.assert_array_equal(show(~(a & b)), show(~a | ~b))
    np.testing.assert_array_equal(show(~(a | b)), show(~a & ~b))
    np.testing.assert_array_equal(show(~~a), show(a))


@given(written)
def test_a_mask_prints_as_the_code_that_made_it(tree):
    mask, _ = tree
    made = eval(repr(mask), vars(masks))
    assert repr(made) == repr(mask)
    np.testing.assert_array_equal(show(made), show(mask))


def test_brackets_are_printed_where_they_are_needed():
    a, b, c = masks.causal(), masks.window(left=3), masks.lengths(k=5)
    assert repr(~(a | b) & c) == "~(causal() | window(left=3, right=None)) & lengths(q=None, k=5)"
    assert repr((a | b) & c) == "(causal() | window(left=3, right=None)) & lengths(q=None, k=5)"
    assert repr(a | b & c) == "causal() | window(left=3, right=None) & lengths(q=None, k=5)"
    assert repr(~a & ~~b) == "~causal() & ~~window(left=3, right=None)"


def test_arrays_are_printed_by_shape_not_by_content():
    assert repr(masks.dense(ALLOWED)) == f"dense(bool[{T},{S}])"
    assert repr(masks.lengths(k=jnp.array(5))) == "lengths(q=None, k=int32[])"


@given(trees)
def test_any_rows_of_a_mask_are_those_of_the_whole(tree):
    """A mask answers for some rows of q and some of k: that is how nobody has to write out the rest."""
    mask, booleans = tree
    for rows, columns in ((slice(0, 5), slice(3, 10)), (slice(4, T), slice(16, S))):
        q = masks.Rows(rows.start, jnp.asarray(q_places[rows]))
        k = masks.Rows(columns.start, jnp.asarray(k_places[columns]))
        np.testing.assert_array_equal(mask.pairs(q, k), booleans[rows, columns])


@given(trees)
def test_a_mask_is_a_pytree(tree):
    mask, booleans = tree
    leaves, structure = jax.tree.flatten(mask)
    assert type(jax.tree.unflatten(structure, leaves)) is type(mask)
    np.testing.assert_array_equal(show(jax.tree.unflatten(structure, leaves)), booleans)


def test_a_mask_passes_through_jit_and_vmap():
    def f(mask):
        return masks.to_dense(mask, T, S, q_positions=q_places, k_positions=k_places)

    def make(x, n):
        return (masks.dense(x) | ~masks.window(2, 1)) & masks.lengths(k=n) & masks.causal()

    arrays, filled = np.stack([pairs(seed) for seed in range(3)]), np.array([0, 7, 40], np.int32)
    alone = [f(make(x, n)) for x, n in zip(arrays, filled, strict=True)]
    assert_same(jax.jit(f)(make(arrays[1], filled[1])), alone[1])
    assert_same(jax.jit(jax.vmap(f))(jax.vmap(make)(arrays, filled)), jnp.stack(alone))
    assert_same(jax.vmap(lambda n: f(make(arrays[0], n)))(filled)[1], f(make(arrays[0], filled[1])))


def test_a_mask_is_closed_over_or_passed_alike():
    q = jnp.ones((T, 2))
    k = jnp.ones((S, 2))
    mask = masks.causal() & masks.lengths(k=jnp.array(9))
    f = jax.jit(lambda mask: jattn.attention(q, k, k, mask=mask, **positions()))
    assert_same(f(mask), jax.jit(lambda: jattn.attention(q, k, k, mask=mask, **positions()))())


def test_causal_and_window_look_at_positions_and_the_others_at_rows():
    for mask in (masks.causal(), masks.window(1), ~masks.causal(), masks.lengths(k=2) | masks.window(1)):
        assert mask.looks_at_positions
    for mask in (masks.lengths(k=2), masks.dense(ALLOWED), ~masks.dense(ALLOWED) & masks.lengths(q=1)):
        assert not mask.looks_at_positions
    shift = {"q_positions": np.arange(T) + 100, "k_positions": np.arange(S) + 100}
    same = masks.causal() & masks.window(4, 1)  # a common shift changes no distance
    np.testing.assert_array_equal(masks.to_dense(same, T, S, **shift), (t - s <= 4) & (t >= s))
    np.testing.assert_array_equal(masks.to_dense(masks.lengths(2, 3), T, S, **shift), (t < 2) & (s < 3))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.int8, np.int16, np.int32])
def test_positions_of_any_whole_number_dtype_count_the_same(dtype):
    """Unsigned ones too, whose differences would wrap."""
    places = {"q_positions": np.arange(T, dtype=dtype), "k_positions": np.arange(S, dtype=np.int32)}
    mask = masks.window(left=2, right=1)
    np.testing.assert_array_equal(masks.to_dense(mask, T, S, **places), (t - s <= 2) & (s - t <= 1))
    both = places | {"k_positions": np.arange(S, dtype=dtype)}
    np.testing.assert_array_equal(masks.to_dense(mask, T, S, **both), (t - s <= 2) & (s - t <= 1))


def test_lengths_of_any_whole_number_dtype_count_the_same():
    for n in (3, np.uint8(3), np.int16(3), np.uint32(3), jnp.array(3)):
        np.testing.assert_array_equal(masks.to_dense(masks.lengths(k=n), T, S), np.broadcast_to(s < 3, (T, S)))
    for n in (-1, np.int8(-1), -(2**40)):
        assert not masks.to_dense(masks.lengths(q=n), T, S).any()
    for n in (S, np.uint32(2**32 - 1), 2**40):
        assert masks.to_dense(masks.lengths(k=n), T, S).all()
    with jax.enable_x64(True):
        for n in (np.int64(2**40), np.uint64(2**64 - 1)):
            assert masks.to_dense(masks.lengths(k=n), T, S).all()


def test_a_decoding_step_sees_all_that_came_before():
    one = masks.to_dense(masks.causal(), 1, 5, q_positions=jnp.array([3]), k_positions=jnp.arange(5))
    np.testing.assert_array_equal(one, [[True, True, True, True, False]])


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: bool(m),
        lambda m: m and m,
        lambda m: m or m,
        lambda m: not m,
        lambda m: 1 if m else 0,
    ],
)
def test_a_mask_has_no_truth_value(ask):
    with pytest.raises(
        TypeError, match=r"^mask: a mask has no truth value, got causal\(\)\. Combine masks with & \| ~"
    ):
        ask(masks.causal())


def test_no_rows_and_no_keys():
    for mask in (masks.causal(), masks.window(1), masks.lengths(k=3), ~masks.dense(np.ones((1, 1), bool))):
        assert masks.to_dense(mask, 0, 0).shape == (0, 0)
    assert masks.to_dense(masks.lengths(k=3), T, 0).shape == (T, 0)
    assert masks.to_dense(masks.dense(np.ones((0, S), bool)), 0, S).shape == (0, S)
