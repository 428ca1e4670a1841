"""What attention visits, counted while it runs: no tile that is EMPTY, and no mask in one that is FULL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import normal

import jattn
from jattn import masks, scores
from jattn.masks import Mask

pytestmark = pytest.mark.structure

T, TILE = 80, 16
N = T // TILE


class Tally:
    """Counts how often it is reached, once for each example."""

    def __init__(self):
        self.count = 0

    def seen(self, x):
        self.count += 1
        return np.float32(0)

    def __call__(self, x):
        """0, as seen: for a derivative, a constant."""

        @jax.custom_jvp
        def zero(x):
            return jax.pure_callback(self.seen, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="sequential")

        zero.defjvp(lambda x, x_dot: (zero(*x), jnp.float32(0)))
        return zero(jax.lax.stop_gradient(x))


class Visits(scores.Score):
    """A score that counts the tiles which it is asked about."""

    def __init__(self, tally):
        self.tally = tally

    def __call__(self, score, t, s):
        return score + (self.tally(score[0, 0]) if jnp.ndim(score) == 2 else 0)


class Masked(Mask):
    """A mask that counts the tiles in which it is asked about pairs."""

    looks_at_positions = True

    def __init__(self, mask, tally):
        self.mask, self.tally = mask, tally

    def pairs(self, q, k):
        return self.mask.pairs(q, k) | (
            self.tally((q.positions.ravel()[0] * T + k.positions.ravel()[0]).astype(jnp.float32)) != 0
        )

    def block_state(self, q, k):
        return self.mask.block_state(q, k)

    def split_qk(self):
        return type(self)(self.mask.split_qk(), self.tally)

    def leaf_axes(self):
        return self.mask.leaf_axes()

    def padded(self, T, S):
        return Masked(self.mask.padded(T, S), self.tally)


jax.tree_util.register_pytree_node(Visits, lambda v: ((), v.tally), lambda tally, _: Visits(tally))
jax.tree_util.register_pytree_node(
    Masked, lambda m: ((m.mask,), m.tally), lambda tally, children: Masked(children[0], tally)
)


def counted(call, *mapped):
    """(tiles computed, tiles masked) in a run of call(score, wrap) over the arrays that are mapped."""
    visits, asked = Tally(), Tally()
    jax.block_until_ready(call(Visits(visits), lambda mask: Masked(mask, asked), *mapped))
    jax.effects_barrier()
    return visits.count, asked.count


def wanted(mask):
    """The same of a dense picture, for each pass over the tiles."""
    tiles = np.asarray(masks.to_dense(mask, T, T)).reshape(N, TILE, N, TILE)
    some, every = tiles.any((1, 3)), tiles.all((1, 3))
    return np.array([some.sum(), (some & ~every).sum()])


IDS = np.stack([np.arange(T) // n for n in (16, 40, 7)]).astype(np.int32)
LENGTHS = np.array([0, 33, 80], np.int32)
TABLES = np.random.default_rng(0).random((3, N, N)) < 0.4
STARTS = np.array([[0, 16, 16, 40, 80], [0, 80, 80, 80, 80], [7, 20, 21, 60, 75]], np.int32)
PARENTS = np.stack([np.arange(T) - 1, np.arange(T) // 40 * 40 - 1, np.arange(T) - 1]).astype(np.int32)
PARENTS[2, [32, 48, 64]] = 15  # in depth-first order
NAMED = np.random.default_rng(1).integers(-1, 10, (3, N, 3)).astype(np.int32)
MASKS = {  # of arrays that differ between the examples
    "segments": (lambda ids: masks.segments(ids), IDS),
    "documents": (lambda ids: masks.segments(ids) & masks.causal(), IDS),
    "lengths": (lambda n: masks.lengths(k=n), LENGTHS),
    "prefix": (lambda n: masks.prefix(n) | masks.causal(), LENGTHS),
    "blocks": (lambda table: masks.blocks(table, TILE), TABLES),
    "not blocks": (lambda table: ~masks.blocks(table, TILE) & masks.window(40), TABLES),
    "ragged": (lambda starts: masks.ragged(starts) & masks.causal(), STARTS),
    "tree": (lambda parents: masks.tree(parents), PARENTS),
    "dense": (lambda table: masks.dense(table.repeat(TILE, 0).repeat(TILE, 1)) & masks.causal(), TABLES),
    "chosen blocks": (lambda named: masks.chosen_blocks(named, 8, q_size=TILE), NAMED),
    "causal": (lambda _: masks.causal(), LENGTHS),
    "where": (lambda _: masks.where(lambda t, s: t * s < 999), LENGTHS),
    "neighbourhood": (lambda _: masks.neighbourhood((N, TILE), (1, 3)), LENGTHS),
    "sinks": (lambda _: masks.sinks(3) | masks.strided(40, 20), LENGTHS),
    "nothing": (lambda _: masks.full(), LENGTHS),
}

SHARED = ("causal", "where", "neighbourhood", "sinks")


@pytest.mark.parametrize("name", MASKS)
def test_no_empty_tile_is_computed_and_only_partial_tiles_are_masked(name):
    """Forward and backward, the arrays traced and different for each example under vmap."""
    make, arrays = MASKS[name]
    x = normal(3, T, 2, dtype=np.float32)

    def head(score, wrap, x, array):
        return jattn.attention(x, x, x, mask=wrap(make(array)), score=score, tile=(TILE, TILE)).sum()

    def forward(score, wrap):
        return jax.jit(jax.vmap(lambda x, a: head(score, wrap, x, a)))(x, arrays)

    def gradient(score, wrap):
        return jax.jit(jax.vmap(jax.grad(lambda x, a: head(score, wrap, x, a)), (0, 0)))(x, arrays)

    want = sum(wanted(make(jnp.asarray(a))) for a in arrays)
    if name in SHARED:
        want[1] //= len(arrays)  # one mask for all is asked once for those that run in one group
    np.testing.assert_array_equal(counted(forward), want)
    if name in ("documents", "not blocks", "causal", "chosen blocks"):
        np.testing.assert_array_equal(counted(gradient), 2 * want)


def test_what_is_measured_of_each_query_visits_no_other_tile():
    """Three passes: attention's, the deviation from the maximum, and the best keys; in its gradient the passes back."""
    make, arrays = MASKS["lengths"]
    x = normal(3, T, 2, dtype=np.float32)

    def head(score, wrap, x, array):
        found = jattn.statistics(x, x, mask=wrap(make(array)), score=score, tile=(TILE, TILE))
        return sum(jnp.sum(jnp.where(a == -jnp.inf, 0, a)) for a in found)

    def value(score, wrap):
        return jax.jit(jax.vmap(lambda x, a: head(score, wrap, x, a)))(x, arrays)

    def gradient(score, wrap):
        return jax.jit(jax.vmap(jax.grad(lambda x, a: head(score, wrap, x, a)), (0, 0)))(x, arrays)

    want = sum(wanted(make(jnp.asarray(a))) for a in arrays)
    np.testing.assert_array_equal(counted(value), 3 * want)
    np.testing.assert_array_equal(counted(gradient), 5 * want)


def test_a_visit_too_many_would_be_counted():
    class Vague(Masked):
        def block_state(self, q, k):
            return masks.PARTIAL

    jax.tree_util.register_pytree_node(Vague, lambda m: ((m.mask,), m.tally), lambda tally, c: Vague(c[0], tally))
    x, tally = normal(T, 2, dtype=np.float32), Tally()

    def call(score, _):
        return jattn.attention(x, x, x, mask=Vague(masks.causal(), tally), score=score, tile=(TILE, TILE))

    visits, _ = counted(call)
    assert (visits, tally.count) == (N * N, N * N)
    assert wanted(masks.causal()).tolist() == [N * (N + 1) // 2, N]
