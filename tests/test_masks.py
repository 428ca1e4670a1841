"""Masks are an algebra of booleans that nobody has to write out, and values that pass through transforms."""

import copy
import dataclasses
import functools
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import S, T, assert_same, pairs, positions
from _mask_oracles import (
    ALLOWED,
    KNOWN,
    PACKED,
    STARTS,
    ancestors,
    around,
    at,
    here,
    k_places,
    near,
    q_places,
    s,
    t,
    there,
    trees,
    written,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jattn
from jattn import masks, reference, scores

pytestmark = pytest.mark.structure


def show(mask):
    return np.asarray(masks.to_dense(mask, T, S, q_positions=q_places, k_positions=k_places))


@given(trees)
def test_a_mask_is_the_booleans_it_stands_for(tree):
    mask, booleans = tree
    np.testing.assert_array_equal(show(mask), booleans)


@given(trees, trees)
def test_masks_obey_the_laws_of_de_morgan(x, y):
    (a, _), (b, _) = x, y
    np.testing.assert_array_equal(show(~(a & b)), show(~a | ~b))
    np.testing.assert_array_equal(show(~(a | b)), show(~a & ~b))
    np.testing.assert_array_equal(show(~~a), show(a))


@given(trees, trees)
def test_absorption_and_what_is_neutral(x, y):
    (a, booleans), (b, _) = x, y
    for same in (a & (a | b), a | (a & b), a & masks.full(), a | masks.empty(), a & a, a | (b & ~b)):
        np.testing.assert_array_equal(show(same), booleans)
    assert not show(a & ~a).any()
    assert show(a | ~a).all()


bounds_of = {n: st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).map(sorted) for n in (T, S)}


def rectangle(first, last, places, axis):
    span = masks.Spans.at([first], [last], axis)
    return span._replace(lowest=span.of(places, np.min), highest=span.of(places, np.max))


@settings(max_examples=100)
@given(trees, bounds_of[T], bounds_of[S])
def test_the_block_state_of_a_rectangle_is_never_wrong(tree, rows, columns):
    mask, booleans = tree
    q, k = rectangle(*rows, q_places, 0), rectangle(*columns, k_places, 1)
    (state,) = np.ravel(mask.block_state(q, k))
    inside = booleans[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1]
    assert state in (masks.EMPTY, masks.PARTIAL, masks.FULL)
    assert state != masks.EMPTY or not inside.any()
    assert state != masks.FULL or inside.all()


def test_a_wrong_block_state_would_be_seen():
    wrong = masks.where(near, state=lambda *ends: jnp.int32(masks.FULL))
    check = test_the_block_state_of_a_rectangle_is_never_wrong.hypothesis.inner_test
    with pytest.raises(AssertionError):
        check((wrong, (here - there) % 3 < 2), [0, 5], [0, 5])


@pytest.mark.parametrize("name", KNOWN)
def test_of_consecutive_rows_the_block_state_is_exact(name):
    """Not only never wrong: of no pair it is EMPTY, of every pair FULL. (~ exchanges the two.)"""
    mask, rule = KNOWN[name]
    booleans = np.broadcast_to(rule(at[:, None], at[None, :]), (40, 40)).reshape(5, 8, 5, 8).swapaxes(1, 2)
    first = np.arange(0, 40, 8)
    q, k = masks.Spans.at(first, first + 7, 0), masks.Spans.at(first, first + 7, 1)
    for either, allowed in ((mask, booleans), (~mask, ~booleans)):
        state = np.broadcast_to(either.block_state(q, k), (5, 5))
        np.testing.assert_array_equal(state != masks.EMPTY, allowed.any((2, 3)))
        if name != "dilated":  # which calls no rectangle FULL but one pair, or with a stride of 1
            np.testing.assert_array_equal(state == masks.FULL, allowed.all((2, 3)))


def test_a_block_state_is_known_whatever_mesh_a_program_is_traced_for():
    """jax from 0.11 on compiles nothing for a mesh that has no devices."""
    first = np.arange(0, 40, 8)
    rows = [masks.Spans.at(first, first + 7, axis) for axis in (0, 1)]
    for state in (None, lambda *ends: jnp.int32(masks.PARTIAL)):
        mask = masks.where(lambda t, s: t - s < 9, state=state)
        want = mask.block_state(*rows)
        mask = masks.where(lambda t, s: t - s < 9, state=state)
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("x",))):
            np.testing.assert_array_equal(mask.block_state(*rows), want)


def test_the_block_state_of_whole_lines_of_an_image_is_exact():
    """Of the smallest box that holds a tile, which is then the tile; of other tiles it is never wrong."""
    mask = masks.neighbourhood((10, 4), (2, 1), (2, 1), (0,))
    booleans = around((10, 4), (2, 1), (2, 1), (0,), *np.meshgrid(at, at, indexing="ij"))
    fives = booleans.reshape(8, 5, 8, 5)
    state = mask.block_state(*(masks.Spans.at(at[::5], at[4::5], axis) for axis in (0, 1)))
    assert (state[fives.any((1, 3))] != masks.EMPTY).all()
    assert (state[~fives.all((1, 3))] != masks.FULL).all()
    assert (state == masks.EMPTY).sum() > 20
    lines = booleans.reshape(10, 4, 10, 4)
    spans = [masks.Spans.at(at[::4], at[3::4], axis) for axis in (0, 1)]
    want = masks.block_state(lines.any((1, 3)), lines.all((1, 3)))
    np.testing.assert_array_equal(mask.block_state(*spans), want)
    traced = jax.jit(lambda low: mask.block_state(spans[0]._replace(lowest=low), spans[1]))(spans[0].lowest)
    np.testing.assert_array_equal(traced, want)
    assert {masks.EMPTY, masks.PARTIAL} <= set(want.ravel())


def test_a_mask_of_any_tree_allows_each_node_its_ancestors():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        parents = np.array([rng.integers(-2, max(n, 1) + seed % 3) for n in range(23)])
        np.testing.assert_array_equal(masks.to_dense(masks.tree(parents), 23, 23), ancestors(parents))
    assert masks.to_dense(masks.tree(np.zeros(0, int), prefix=3), 0, 3).shape == (0, 3)
    both = jax.jit(jax.vmap(lambda x, n: masks.to_dense(masks.tree(x, prefix=n, keys=5), 3, 5)))
    got = both(np.array([[-1, 0, 0], [-1, 0, 1]], np.int8), np.array([0, 2]))
    np.testing.assert_array_equal(got[0], [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0]])
    np.testing.assert_array_equal(got[1], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])


def test_a_mask_in_rows_is_the_same():
    for starts in STARTS.values():
        mask = masks.ragged(*starts)
        np.testing.assert_array_equal(show(mask.in_rows(T, S)), show(mask))


def test_an_author_says_what_a_rectangle_holds():
    def before(t_low, t_high, s_low, s_high):
        return masks.block_state(t_high >= s_low, t_low >= s_high)

    asked = masks.where(lambda t, s: t >= s, state=before)
    assert repr(asked) == "where(<lambda>, state=before)"
    first = np.arange(0, 40, 8)
    q, k = masks.Spans.at(first, first + 7, 0), masks.Spans.at(first, first + 7, 1)
    got, want = asked.block_state(q, k), masks.causal().block_state(q, k)
    assert isinstance(got, np.ndarray), "known before anything is traced"
    np.testing.assert_array_equal(got, want)
    traced = jax.jit(lambda low: asked.block_state(q._replace(lowest=low), k))(q.lowest)
    np.testing.assert_array_equal(traced, want)


def test_what_a_predicate_captures_is_a_leaf():
    """Traced, mapped, and different for each head; equal predicates are one structure."""

    def make(table):
        return masks.where(lambda t, s: table[(t - s) % 3])

    tables = jnp.array([[True, False, False], [False, True, True]])
    got = jax.jit(jax.vmap(lambda table: masks.to_dense(make(table), T, T)))(tables)
    t, s = np.arange(T)[:, None], np.arange(T)[None, :]
    np.testing.assert_array_equal(got, np.asarray(tables)[:, (t - s) % 3])
    assert_same(jax.vmap(lambda mask: masks.to_dense(mask, T, T))(jax.vmap(make)(tables)), got)
    assert jax.tree.structure(make(tables[0])) == jax.tree.structure(make(tables[1]))
    assert hash(jax.tree.structure(make(tables[0]))) == hash(jax.tree.structure(make(tables[1])))
    assert jax.tree.structure(make(tables[0])) != jax.tree.structure(masks.where(lambda t, s: tables[0][t % 3]))
    assert jax.tree.leaves(masks.where(lambda t, s: jnp.asarray(np.ones(3, bool))[t % 3])) == [], "a constant"


def test_the_arrays_of_each_mask_are_leaves_and_the_rest_is_hashable():
    made = {
        1: [masks.segments(np.arange(3)), masks.blocks(np.ones((2, 2), bool), 4), masks.dense(np.ones((2, 2), bool)),
            masks.prefix(jnp.array(3)), masks.prefix(3), masks.lengths(k=3), masks.sinks(3)],
        0: [masks.causal(), masks.window(1), masks.chunked(3), masks.dilated(2), masks.full(), masks.where(near),
            masks.strided(3), masks.neighbourhood((3, 4), 1)],
        2: [masks.segments(np.arange(3), np.arange(4)), masks.lengths(1, 2), masks.ragged([0, 3], [0, 4])],
        3: [masks.tree(np.arange(3) - 1)],
    }  # fmt: skip
    for n, those in made.items():
        for mask in those:
            leaves, structure = jax.tree.flatten(mask)
            assert len(leaves) == n
            assert hash(structure) == hash(jax.tree.structure(mask))
    assert jax.tree.structure(masks.chunked(3)) != jax.tree.structure(masks.chunked(4))


def test_equal_masks_and_scores_are_one_static_argument():
    """Else a program with a mask among its static arguments would be compiled at every call."""
    ids, bare = jnp.arange(3), jnp.float32(2)
    make = {
        "a mask": lambda: masks.causal() & ~masks.window(left=2) | masks.prefix(3),
        "a function": lambda: masks.where(lambda t, s: (t - s) % 2 == 0),
        "an array": lambda: masks.segments(ids),
        "a score": lambda: scores.compose(scores.soft_cap(2.0), scores.alibi(bare)),
    }
    others = [masks.causal() & ~masks.window(left=2) | masks.prefix(4), masks.segments(+ids), scores.alibi(bare)]
    others += [masks.causal() | ~masks.window(left=2) | masks.prefix(3), masks.where(lambda t, s: (t - s) % 2 == 1)]
    found = [f() for f in make.values()]
    assert found == [f() for f in make.values()]
    every = [*found, *others]
    assert [[x == y for y in every] for x in every] == np.eye(len(every), dtype=bool).tolist()
    call = jax.jit(chex.assert_max_traces(lambda x, mask: jattn.attention(x, x, x, mask=mask), n=1), static_argnums=1)
    for _ in range(2):
        call(jnp.ones((3, 4)), make["a mask"]())
    with pytest.raises(AssertionError, match="traced > 1 times"):
        call(jnp.ones((3, 4)), others[0])


def test_a_mask_of_a_function_is_copied_and_pickled():
    table = jnp.arange(T)
    bare, captured = masks.causal() & ~masks.where(near), masks.where(lambda t, s: table[t] >= s)
    for mask, again in (
        (bare, pickle.loads(pickle.dumps(bare))),
        (bare, copy.deepcopy(bare)),
        (captured, copy.deepcopy(captured)),
    ):
        assert_same(show(again), show(mask))
        assert jax.tree.structure(again) == jax.tree.structure(mask)


def test_different_masks_have_different_structures():
    """Programs are kept by structure: of one that is taken for another, the result is wrong."""
    a, b = masks.causal(), masks.window(3, 3)
    one, two = masks.chunked(3), masks.dilated(3)
    made = [a, b, a & b, a | b, ~a, masks.full(), masks.empty(), one, two, masks.segments(np.arange(3))]
    made += [masks.prefix(1), masks.lengths(k=1), masks.dense(np.ones((1, 1), bool)), masks.where(near)]
    made += [masks.sinks(1), masks.strided(3), masks.strided(3, 1), masks.ragged([0, 3]), masks.tree(np.arange(3) - 1)]
    made += [masks.neighbourhood((4, 3), 1), masks.neighbourhood((3, 4), 1)]
    structures = [jax.tree.structure(mask) for mask in made]
    assert [[x == y for y in structures] for x in structures] == np.eye(len(made), dtype=bool).tolist()
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, T, 4)), jnp.float32)
    definition = jax.jit(lambda allowed: reference.attention(*x, mask=allowed)[0])
    for mask in (a & b, a | b, one, two):
        want = definition(masks.to_dense(mask, T, T))
        np.testing.assert_allclose(jattn.attention(*x, mask=mask), want, atol=1e-5)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["of_q", "of_k", "of_pairs"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class OfRows(masks.Mask):
    """A class of a user's own that has an entry for each query, for each key, and for each pair."""

    of_q: jax.Array
    of_k: jax.Array
    of_pairs: jax.Array

    def pairs(self, q, k):
        return (self.of_q <= self.of_k) & self.of_pairs

    def leaf_axes(self):
        return ["q", "k", "qk"]


@pytest.mark.parametrize("tile", [(16, 16), (32, 16), None])
def test_a_class_of_a_users_own_has_its_own_entry_for_each_row_where_the_last_tile_is_padded(tile):
    T, S = 37, 21
    rng = np.random.default_rng(0)
    mask = OfRows(rng.integers(0, 4, T), rng.integers(0, 4, S), rng.random((T, S)) < 0.7)
    allowed = (mask.of_q[:, None] <= mask.of_k[None]) & mask.of_pairs
    q, k, v = (jnp.asarray(rng.standard_normal((n, 4)), jnp.float32) for n in (T, S, S))
    for one, want in ((mask, allowed), (~mask, ~allowed), (mask & masks.full(), allowed)):
        ours = jax.vjp(lambda *x: jattn.attention(*x, mask=one, tile=tile), q, k, v)  # noqa: B023
        definition = jax.vjp(lambda *x: reference.attention(*x, mask=want)[0], q, k, v)  # noqa: B023
        np.testing.assert_allclose(ours[0], definition[0], atol=1e-5)
        for got, gradient in zip(ours[1](ours[0]), definition[1](ours[0]), strict=True):
            np.testing.assert_allclose(got, gradient, atol=1e-5)


def test_classes_of_a_users_own_are_told_apart():
    """JAX 0.10 has equal structures for two that `register_dataclass` knows: one program would serve both."""
    of_fields = functools.partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])

    @of_fields
    class Past(masks.Mask):
        def pairs(self, q, k):
            return k.positions <= q.positions

    @of_fields
    class Future(masks.Mask):
        def pairs(self, q, k):
            return k.positions >= q.positions

    @of_fields
    class Halved(scores.Score):
        def __call__(self, score, t, s):
            return score / 2

    @of_fields
    class Tripled(scores.Score):
        def __call__(self, score, t, s):
            return score * 3

    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, T, 4)), jnp.float32)
    for mask in (Past(), Future()):
        want = reference.attention(*x, mask=masks.to_dense(mask, T, T))[0]
        for found in (jattn.attention(*x, mask=mask), jattn.explain(*x, mask=mask).out):
            np.testing.assert_allclose(found, want, atol=1e-5)
    for score in (Halved(), Tripled()):
        want = reference.attention(*x, score=score)[0]
        for found in (jattn.attention(*x, score=score), jattn.explain(*x, score=score).out):
            np.testing.assert_allclose(found, want, atol=1e-5)


def test_each_example_and_each_head_has_arrays_of_its_own():
    ids = np.stack([np.arange(T) // n for n in (2, 5)])
    tables = np.random.default_rng(0).random((2, 3, 4, 4)) < 0.5
    several = jax.vmap(lambda i, b: jax.vmap(lambda table: masks.segments(i) & masks.blocks(table, 4))(b))(ids, tables)
    got = jax.jit(jax.vmap(jax.vmap(lambda mask: masks.to_dense(mask, T, T))))(several)
    t, s = np.arange(T)[:, None], np.arange(T)[None, :]
    want = (ids[:, :, None] == ids[:, None, :])[:, None] & tables[:, :, t // 4, s // 4]
    np.testing.assert_array_equal(got, want)


def test_ids_of_any_whole_number_dtype_count_the_same():
    for dtype in (np.uint8, np.int16, np.uint32):
        ids = (np.arange(T) // 4).astype(dtype)
        np.testing.assert_array_equal(masks.to_dense(masks.segments(ids, np.arange(S) // 4), T, S), t // 4 == s // 4)
    big = np.array([2**32 - 1, 2**31, 0], np.uint32)
    np.testing.assert_array_equal(masks.to_dense(masks.segments(big), 3, 3), np.eye(3))
    with jax.enable_x64(True):
        np.testing.assert_array_equal(masks.to_dense(masks.segments(np.array([0, 2**32])), 2, 2), np.eye(2))


@pytest.mark.parametrize("x64", [False, True])
def test_a_count_or_a_number_of_a_row_beyond_int32_is_the_last_one_and_does_not_wrap(x64):
    far = 2**32
    with jax.enable_x64(x64):
        assert masks.to_dense(masks.lengths(np.int64(far), np.uint64(2**64 - 1)), 3, 3).all()
        assert masks.to_dense(masks.prefix(np.int64(far)), 3, 3).all()
        assert not masks.to_dense(masks.lengths(k=np.int64(-far)), 3, 3).any()
        for starts in ([0, far], [0, 2**70], np.array([0, far]), np.array([-far, far]), jnp.array([0, 2**31 - 1])):
            assert masks.to_dense(masks.ragged(starts), 3, 3).all()
        roots = masks.to_dense(masks.tree(np.array([-1, far, 0])), 3, 3)
        np.testing.assert_array_equal(roots, masks.to_dense(masks.tree([-1, -1, 0]), 3, 3))
        named = masks.to_dense(masks.chosen_blocks(np.array([[far, 1], [far + 1, -far]]), 2), 4, 4)
        np.testing.assert_array_equal(named, [[False, False, True, True]] * 2 + [[False] * 4] * 2)
        if x64:
            there = jnp.array([[far, 1], [far + 1, -far]])
            np.testing.assert_array_equal(masks.to_dense(masks.chosen_blocks(there, 2), 4, 4), named)


def test_ids_that_int32_does_not_tell_apart_are_refused_without_64_bits():
    for ids in (np.array([0, 2**32]), [0, 2**32], np.array([0, 2**63], np.uint64)):
        with pytest.raises(ValueError, match="q_ids must be numbers that int32 holds"):
            masks.segments(ids)
        with pytest.raises(ValueError, match="k_ids must be numbers that int32 holds"):
            masks.segments([0, 1], ids)


def test_a_picture_has_a_line_for_each_query():
    assert masks.picture(masks.window(1, 0), 3, 3) == "#··\n##·\n·##"
    assert masks.picture(masks.lengths(k=1), 2, 3) == "#··\n#··"
    assert masks.picture(masks.causal(), 1, 3, q_positions=[1], k_positions=[0, 1, 2]) == "##·"
    assert masks.picture(masks.full(), 0) == ""


@given(written)
def test_a_mask_prints_as_the_code_that_made_it(tree):
    mask, _ = tree
    made = eval(repr(mask), vars(masks))
    assert repr(made) == repr(mask)
    np.testing.assert_array_equal(show(made), show(mask))


def test_arrays_in_a_mask_print_as_their_dtype_and_shape():
    rows = np.array([[0], [1]])
    assert repr(masks.dilated(3)) == "dilated(3)"
    assert repr(masks.blocks(np.eye(2, dtype=bool), 3)) == "blocks(bool[2,2], 3)"
    assert repr(masks.ragged([0, 2, 5])) == "ragged(int32[3])"
    assert repr(masks.ragged([0, 2], [0, 3])) == "ragged(int32[2], int32[2])"
    assert repr(masks.chosen_blocks(rows, 4)) == "chosen_blocks(int32[2,1], 4)"
    assert repr(masks.chosen_blocks(rows, 4, q_size=2)) == "chosen_blocks(int32[2,1], 4, q_size=2)"
    assert repr(masks.tree([-1, 0, 0])) == "tree(int32[3], keys=3)"


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
@example(PACKED)
@example((PACKED[0] & masks.dense(ALLOWED), PACKED[1] & ALLOWED))
def test_any_rows_of_a_mask_are_those_of_the_whole(tree):
    """A mask answers for some rows of q and some of k: that is how nobody has to write out the rest."""
    mask, booleans = tree
    rectangles = (slice(0, 5), slice(3, 10)), (slice(4, T), slice(16, S))

    @jax.jit
    def tiles(mask):
        rows_of = lambda places, at: masks.Rows(at.start, jnp.asarray(places[at]))  # noqa: E731
        sides = [(rows_of(q_places, rows), rows_of(k_places, columns)) for rows, columns in rectangles]
        return [(mask.tile(q, k), mask.tile(q, k, transposed=True)) for q, k in sides]

    for (rows, columns), (tile, transposed) in zip(rectangles, tiles(mask), strict=True):
        np.testing.assert_array_equal(tile, booleans[rows, columns])
        np.testing.assert_array_equal(transposed, booleans[rows, columns].T)


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
    for mask in (masks.prefix(2), masks.chunked(2), masks.dilated(2), masks.where(near), masks.blocks(ALLOWED, 2)):
        assert mask.looks_at_positions
    assert masks.sinks(2).looks_at_positions
    assert masks.strided(2).looks_at_positions
    assert masks.neighbourhood(9, 1).looks_at_positions
    for mask in (
        masks.full(),
        masks.segments(np.arange(T)),
        masks.ragged([0, T]),
        masks.tree(np.arange(T) - 1),
        masks.dense(ALLOWED),
        ~masks.dense(ALLOWED) & masks.lengths(q=1),
    ):
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


@pytest.mark.structure
@pytest.mark.parametrize(
    ("mask", "want"),
    [
        (masks.window(left=2**40, right=0), np.tri(40)),
        (masks.chunked(2**40), np.ones((40, 40))),
        (masks.blocks([[True]], 2**40), np.ones((40, 40))),
        (masks.chosen_blocks([[0]], 2**40), np.ones((40, 40))),
        (masks.dilated(2**40), np.eye(40)),
        (masks.strided(2**40, 3), np.tri(40) - np.tri(40, k=-4)),
        (masks.strided(3, 2**40), np.tri(40)),
        (masks.neighbourhood(40, 2**40, causal_axes=0), np.tri(40)),
        (masks.neighbourhood(40, 2**40, 2, causal_axes=0), np.tri(40) * (np.indices((40, 40)).sum(0) % 2 == 0)),
        (masks.neighbourhood(40, 1, 2**40, causal_axes=0), np.eye(40)),
    ],
    ids=lambda x: repr(x) if isinstance(x, masks.Mask) else "",
)
def test_a_mask_may_count_more_tokens_than_there_are(mask, want):
    np.testing.assert_array_equal(masks.to_dense(mask, 40, 40), want)
    x = np.ones((40, 2), np.float32)
    for places in ({}, {"q_positions": np.arange(40), "k_positions": np.arange(40)}):
        f = jax.jit(lambda x, places: jattn.attention(x, x, x, mask=mask, return_lse=True, tile=(16, 16), **places))
        np.testing.assert_allclose(f(x, places)[1], np.sqrt(2) + np.log(want.sum(1)), rtol=1e-6)


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


def test_a_mask_of_no_queries_or_no_keys_is_empty():
    for mask in (masks.causal(), masks.window(1), masks.lengths(k=3), ~masks.dense(np.ones((1, 1), bool))):
        assert masks.to_dense(mask, 0, 0).shape == (0, 0)
    assert masks.to_dense(masks.lengths(k=3), T, 0).shape == (T, 0)
    assert masks.to_dense(masks.dense(np.ones((0, S), bool)), 0, S).shape == (0, S)
