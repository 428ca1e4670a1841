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


def nearest(n, radius, step, causal):
    """[n, n]: whether each token of a line is one of the 2 · radius + 1 nearest to another, of every step-th."""
    seen = np.zeros((n, n), bool)
    for i in range(n):
        reach = [j for j in range(n) if (j - i) % step == 0 and not (causal and j > i)]
        seen[i, sorted(reach, key=lambda j: abs(j - i))[: 2 * radius + 1]] = True
    return seen


def around(shape, radius, dilation, causal_axes, t, s):
    """Whether the tokens t and s of an array are neighbours along each axis."""
    inside = [(x >= 0) & (x < np.prod(shape)) for x in (t, s)]
    t, s = (np.unravel_index(np.clip(x, 0, np.prod(shape) - 1), shape) for x in (t, s))
    lines = enumerate(zip(shape, radius, dilation, strict=True))
    return inside[0] & inside[1] & np.all([nearest(*line, i in causal_axes)[t[i], s[i]] for i, line in lines], 0)


AROUND = [  # shape, radius, dilation, causal axes
    ((7,), (1,), (2,), ()),
    ((9,), (1,), (3,), (0,)),
    ((3, 4), (1, 1), (1, 1), ()),
    ((4, 2), (0, 2), (2, 1), (1,)),
    ((2, 3, 2), (0, 1, 0), (2, 1, 1), (0,)),
]


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
    st.integers(0, 9).map(lambda n: (masks.sinks(n), (there < n) & (there <= here))),
    st.tuples(st.integers(1, 6), st.integers(0, 6)).map(
        lambda n: (masks.strided(*n), (here >= there) & ((here - there <= n[1]) | ((here - there) % n[0] == 0)))
    ),
    st.sampled_from(AROUND).map(lambda n: (masks.neighbourhood(*n), around(*n, *np.broadcast_arrays(here, there)))),
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


STARTS = {  # of sequences in q and in k; the last is out of order, and ends beyond both
    "packed": ([0, 4, 4, 9, 11], [0, 4, 4, 9, 11]),
    "of their own": ([2, 5, 5, 12, 13], [0, 0, 3, 9, 17]),
    "out of order": ([0, 6, 4, 40], [3, 8, 7, 40]),
}


def in_sequences(q_starts, k_starts, t, s):
    """Whether rows t of q and s of k are in one sequence; a start below an earlier one counts as that one."""
    q_starts, k_starts = np.maximum.accumulate(q_starts), np.maximum.accumulate(k_starts)
    ends = zip(q_starts, q_starts[1:], k_starts, k_starts[1:], strict=False)
    return sum((a <= t) & (t < b) & (c <= s) & (s < d) for a, b, c, d in ends) > 0


def ancestors(parents):
    """Whether each token of a tree, across, is one of those above a token, down, or itself."""
    seen = np.eye(len(parents), dtype=bool)
    for n, parent in enumerate(parents):
        if 0 <= parent < n:
            seen[n] |= seen[parent]
    return seen


DRAFTS = np.array([-1, 0, 0, 2, 1, 1, 4, -1, 7, 3, 8, 30, 11])  # 30 is no earlier token: a root


def in_tree(prefix):
    """The pairs of T queries and S keys, of which `prefix` come before those of the drafts."""
    return np.concatenate([np.ones((T, prefix)), ancestors(DRAFTS), np.zeros((T, S))], 1)[:, :S] > 0


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
    st.sampled_from(sorted(STARTS)).map(lambda n: (masks.ragged(*STARTS[n]), in_sequences(*STARTS[n], t, s))),
    st.integers(0, S - T).map(lambda n: (masks.tree(DRAFTS, prefix=n, keys=S), in_tree(n))),
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
FIRST_DEPTH = [-1]  # a tree in depth-first order: each token below the one before it, or below one above that
for n in at[1:]:
    FIRST_DEPTH.append(n - 1)
    for _ in range(n * 5 % 4):
        FIRST_DEPTH[n] = FIRST_DEPTH[FIRST_DEPTH[n]] if FIRST_DEPTH[n] >= 0 else -1
RAGGED = [0, 3, 3, 11, 12, 20, 33, 33], [2, 2, 5, 13, 13, 24, 25, 40]
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
    "sinks": (masks.sinks(11), lambda t, s: (s < 11) & (s <= t)),
    "strided": (masks.strided(9, 4), lambda t, s: (t >= s) & ((t - s <= 4) | ((t - s) % 9 == 0))),
    "strided, one more": (masks.strided(9, 8), lambda t, s: (t >= s) & ((t - s <= 8) | ((t - s) % 9 == 0))),
    "strided by 4": (masks.strided(4, 3), lambda t, s: (t >= s) & ((t - s <= 3) | ((t - s) % 4 == 0))),
    "tree": (masks.tree(np.array(FIRST_DEPTH)), lambda t, s: ancestors(FIRST_DEPTH)[t, s]),
    "neighbourhood": (masks.neighbourhood(40, 4), lambda t, s: around((40,), (4,), (1,), (), t, s)),
    "neighbourhood, dilated": (masks.neighbourhood(40, 2, 7), lambda t, s: around((40,), (2,), (7,), (), t, s)),
    "neighbourhood, causal": (
        masks.neighbourhood(40, 1, 4, (0,)), lambda t, s: around((40,), (1,), (4,), (0,), t, s)
    ),
    "ragged": (masks.ragged(RAGGED[0]), lambda t, s: in_sequences(RAGGED[0], RAGGED[0], t, s)),
    "ragged, both": (masks.ragged(*RAGGED), lambda t, s: in_sequences(*RAGGED, t, s)),
    "where": (masks.where(lambda t, s: t * s < 99), lambda t, s: t * s < 99),
    "where, a table": (masks.where(lambda t, s: jnp.asarray(np.tri(40, dtype=bool))[t, s]), lambda t, s: t >= s),
    "lengths": (masks.lengths(13, 17), lambda t, s: (t < 13) & (s < 17)),
    "dense": (masks.dense(np.kron(np.eye(5), np.ones((8, 8))) > 0), lambda t, s: t // 8 == s // 8),
    "one row": (masks.dense(at[None] < 17), lambda t, s: s + 0 * t < 17),
    "one column": (masks.dense(at[:, None] < 17), lambda t, s: t + 0 * s < 17),
    "one entry": (masks.dense(np.ones((1, 1), bool)), lambda t, s: t + s >= 0),
    "full": (masks.full(), lambda t, s: t + s >= 0),
    "empty": (masks.empty(), lambda t, s: t + s < 0),
}  # fmt: skip
