"""Masks beside the booleans that they stand for, written in NumPy: some by name, and any composition of them."""

import jax.numpy as jnp
import numpy as np
from _inputs import S, T, pairs
from hypothesis import strategies as st

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
    st.integers(0, 9).map(lambda n: (masks.prefix(n), (there < n) & (t == t))),
    st.integers(1, 6).map(lambda n: (masks.chunked(n), here // n == there // n)),
    st.integers(1, 6).map(lambda n: (masks.dilated(n), (here - there) % n == 0)),
    st.sampled_from([(masks.full(), (t == t) & (s == s)), (masks.empty(), (t != t) & (s == s))]),
)
TABLES = {size: np.random.default_rng(size).random((-(-T // size), -(-S // size))) < 0.5 for size in (1, 3, 7)}
IDS = {
    "packed": (np.arange(T) // 4, np.arange(S) // 5),
    "in no order": (np.arange(T) * 5 % 3, np.arange(S) * 7 % 4),
    "far apart": (np.arange(T) // 6 * 2**20 - 7, np.arange(S) // 8 * 2**20 - 7),
}
PACKED = masks.segments(*IDS["packed"]), IDS["packed"][0][:, None] == IDS["packed"][1][None, :]


def in_blocks(size):
    i, j = here // size, there // size
    n, m = TABLES[size].shape
    return (i >= 0) & (i < n) & (j >= 0) & (j < m) & TABLES[size][i.clip(0, n - 1), j.clip(0, m - 1)]


CHOSEN = {  # size, q_size: which key blocks each block of queries names, some of them twice or none
    of: np.random.default_rng(of[0]).integers(-2, 5, (-(-T // of[1]), 4)) for of in ((1, 1), (3, 5), (7, 1), (2, 7))
}


def among_chosen(size, q_size):
    i, j, rows = here // q_size, there // size, CHOSEN[size, q_size]
    named = (rows[i.clip(0, len(rows) - 1)] == j[..., None]).any(-1)
    return (i >= 0) & (i < len(rows)) & (j >= 0) & named


def near(t, s):
    return (t - s) % 3 < 2


def ends(t_low, t_high, s_low, s_high):
    """Every pair before position 0 is allowed; of the rest nothing is known."""
    return masks.block_state(True, (t_high < 0) & (s_high < 0))


holders = st.one_of(
    st.sampled_from(sorted(TABLES)).map(lambda size: (masks.blocks(TABLES[size], size), in_blocks(size))),
    st.sampled_from(sorted(CHOSEN)).map(
        lambda of: (masks.chosen_blocks(CHOSEN[of], of[0], q_size=of[1]), among_chosen(*of))
    ),
    st.sampled_from(sorted(IDS)).map(lambda n: (masks.segments(*IDS[n]), IDS[n][0][:, None] == IDS[n][1][None, :])),
    st.just((masks.where(near), (here - there) % 3 < 2)),
    st.just((masks.where(lambda t, s: near(t, s) | ((t < 0) & (s < 0)), state=ends),
             ((here - there) % 3 < 2) | ((here < 0) & (there < 0)))),
    st.just((masks.where(lambda t, s: jnp.asarray(ALLOWED)[t % T, s % S]), ALLOWED[here % T, there % S])),
)  # fmt: skip
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
trees = st.recursive(st.one_of(leaves, dense, holders), grow, max_leaves=6)
at = np.arange(40)
ROWS = np.array([[0, 0, -1], [2, 1, 2], [0, 4, 9], [4, -1, 3], [1, 2, 3]])
KNOWN = {  # each mask, and the pairs of 40 positions that it stands for
    "causal": (masks.causal(), lambda t, s: t >= s),
    "window": (masks.window(9, 3), lambda t, s: (t - s <= 9) & (s - t <= 3)),
    "prefix": (masks.prefix(11), lambda t, s: s + 0 * t < 11),
    "chunked": (masks.chunked(7), lambda t, s: t // 7 == s // 7),
    "dilated": (masks.dilated(9), lambda t, s: (t - s) % 9 == 0),
    "blocks": (masks.blocks(np.eye(5, dtype=bool)[::-1], 8), lambda t, s: t // 8 + s // 8 == 4),
    "chosen blocks": (masks.chosen_blocks(ROWS, 8), lambda t, s: (ROWS[t // 8] == (s // 8)[..., None]).any(-1)),
    "segments": (masks.segments(at // 9), lambda t, s: t // 9 == s // 9),
    "segments in no order": (masks.segments((at // 9) * 7 % 5), lambda t, s: t // 9 == s // 9),
    "where": (masks.where(lambda t, s: t * s < 99), lambda t, s: t * s < 99),
    "where, a table": (masks.where(lambda t, s: jnp.asarray(np.tri(40, dtype=bool))[t, s]), lambda t, s: t >= s),
    "lengths": (masks.lengths(13, 17), lambda t, s: (t < 13) & (s < 17)),
    "one row": (masks.dense(at[None] < 17), lambda t, s: s + 0 * t < 17),
    "one column": (masks.dense(at[:, None] < 17), lambda t, s: t + 0 * s < 17),
    "one entry": (masks.dense(np.ones((1, 1), bool)), lambda t, s: t + s >= 0),
    "full": (masks.full(), lambda t, s: t + s >= 0),
    "empty": (masks.empty(), lambda t, s: t + s < 0),
}  # fmt: skip
