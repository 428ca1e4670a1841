"""Every public name, used as a user would, for type checkers: `make lint` reads it, nothing runs it.

Strict mypy and strict pyright must pass, and `assert_type` says what a call is to be worth to them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from matplotlib.figure import Figure
from rich.console import Console

import jattn
from jattn import cache, console, figures, flow, heads, lab, masks, page, positions, reference, scores, sharding
from jattn.hosts.equinox import MaskOfHeads, Measured, MultiheadAttention, ProcessHeads
from jattn.hosts.flax import Sows, attention_fn
from jattn.hosts.haiku import MultiHeadAttention
from jattn.hosts.transformers import attention_interface

Array = jax.Array
LABELS = ("river", "money", "the")


def cap(score: Array, t: Array, s: Array) -> Array:
    del t, s
    return 30 * jnp.tanh(score / 30)


def shared(q: Array, k: Array, v: Array, **options: Unpack[jattn.SharedOptions]) -> Array:
    return jattn.attention(q, k, v, **options)


def first(q: Array, k: Array, v: Array, **options: Unpack[jattn.AttentionOptions]) -> Array:
    return jattn.attention(q, k, v, return_lse=True, **options)[0]


def batch(q: Array, k: Array, v: Array, **options: Unpack[jattn.DotProductAttentionOptions]) -> Array:
    return jattn.dot_product_attention(q, k, v, **options)


def packed(q: Array, k: Array, v: Array, starts: Array, **options: Unpack[jattn.RaggedAttentionOptions]) -> Array:
    return jattn.ragged_attention(q, k, v, starts, **options)


def one_head(q: Array, k: Array, v: Array, key: Array) -> Array:
    assert_type(jattn.attention(q, k, v), Array)
    assert_type(jattn.attention(q, k, v, return_lse=True), tuple[Array, Array])
    partial = jattn.attention(q, k, v, mask=masks.causal(), score=cap, bias=np.zeros((4, 4)), sink=0.5, scale=0.1,
                              q_positions=np.arange(4), k_positions=np.arange(4), dropout_rate=0.1, dropout_key=key,
                              tile=(128, 128), implementation="loops", return_lse=True)  # fmt: skip
    out, lse = jattn.merge(partial, jattn.attention(q, k, v, return_lse=True))
    steps = jattn.explain(q, k, v, mask=masks.full())
    assert_type(steps, jattn.Steps)
    rows = jattn.weights_of(q, k, lse, np.array([0, 1]))
    found = jattn.statistics(q, k, groups=np.zeros(4, np.int32), num_groups=1)
    assert_type(found, jattn.Statistics)

    def loss(q: Array) -> Array:
        return jattn.attention(q, k, v).var()

    best, logits = jattn.top_keys(q, k, 2)
    save = jax.checkpoint_policies.save_only_these_names(*jattn.CHECKPOINT_NAMES)
    how: tuple[jattn.Implementation, ...] = jattn.implementations(loss, q, platform="tpu")
    print(save, [row.reason for row in how], best.shape)
    more = jattn.softmax(steps.scores) + jattn.log_softmax(steps.scaled, axis=-1) + steps.weights
    defined: reference.Steps = reference.steps(q, k, v)[0]
    measured: reference.Statistics = reference.statistics(q, k)
    more += defined.weights + measured.entropy
    return out + rows.sum() + logits.sum() + more.sum() + found.entropy.sum() + reference.attention(q, k, v)[0]


def many_heads(query: Array, key: Array, value: Array, starts: Array) -> Array:
    assert_type(jattn.dot_product_attention(query, key, value, return_residual=True), tuple[Array, Array])
    assert_type(jattn.ragged_attention(query[0], key[0], value[0], starts, return_lse=True), tuple[Array, Array])
    of_documents = packed(query[0], key[0], value[0], starts, mask=masks.causal())
    out = jattn.dot_product_attention(query, key, value, is_causal=True, local_window_size=(8, 0), sink=np.zeros(2))
    return assert_type(out, Array) + assert_type(of_documents, Array)


class EveryOther(masks.Mask):
    """A mask of one's own is a subclass with a rule for pairs."""

    def pairs(self, q: masks.TileAxis, k: masks.TileAxis) -> Array:
        return (q.positions - k.positions) % 2 == 0

    def block_state(self, q: masks.Spans, k: masks.Spans) -> masks.BlockState:
        some = (q.last > q.first) | (k.last > k.first) | ((q.first - k.first) % 2 == 0)
        return masks.block_state(some, False)


def every_mask(ids: Array) -> masks.Mask:
    def near(t: Array, s: Array) -> Array:
        return abs(t - s) < 3

    def state(q_low: Array, q_high: Array, k_low: Array, k_high: Array) -> masks.BlockState:
        return jnp.where((q_low > k_high + 3) | (k_low > q_high + 3), masks.EMPTY, masks.PARTIAL)

    made = masks.causal() & masks.window(left=8, right=0) | ~masks.prefix(4)
    made &= masks.segments(ids) | masks.ragged(ids) | masks.lengths(k=ids) | masks.tree(np.array([-1, 0, 0]))
    made |= masks.chunked(4) & masks.dilated(2) & masks.strided(4) & masks.sinks(2) & EveryOther()
    made |= masks.neighbourhood((4, 4), 1, causal_axes=(True, False)) & masks.chosen_blocks(ids[None], 2)
    made &= masks.blocks(np.ones((2, 2), bool), 4) | masks.dense(np.ones((8, 8), bool)) | masks.empty() | masks.full()
    made |= masks.where(near) | masks.where(near, state=state)
    known: masks.Pattern | None = made.pattern()
    print(known, masks.picture(made, 8), masks.to_dense(made, 8, 8).sum(), masks.FULL, isinstance(ids, masks.Rows))
    return made


def every_score(table: Array) -> Callable[[Array, Array, Array], Array]:
    slopes = scores.alibi_slopes(8)
    print(scores.bucket(np.arange(4), 32, max_distance=128, bidirectional=True))
    of_a_score: scores.ScoreModifier = cap
    capped: scores.Score = scores.soft_cap(30.0)
    return scores.compose(capped, of_a_score, scores.temperature(2.0), scores.alibi(slopes[0]),
                          scores.distance_bias(table), scores.relative_bias(table, max_distance=128))  # fmt: skip


def every_position(x: Array) -> Array:
    scaling: positions.Scaling = positions.compose(positions.linear(2.0), positions.ntk(2.0))
    others = [positions.yarn(4.0, original=4096), positions.llama3(8.0, original=8192),
              positions.dynamic_ntk(2.0, original=4096, length=8192),
              positions.longrope(np.ones(2), np.ones(2), factor=2.0, original=4096, length=8192)]  # fmt: skip
    found: positions.Frequencies = positions.frequencies(4, scaling=scaling)
    print(others, found.inv, positions.sections(2, 2))
    return positions.rotary(x, np.arange(4), scaling=scaling) + positions.sinusoidal(np.arange(4), 4)


def every_layer(key: Array, x: Array) -> Array:
    initializer: heads.Initializer = jax.nn.initializers.lecun_normal()
    params: heads.Params = heads.init(key, 8, heads=2, kv_heads=1, initializer=initializer)
    rope: heads.Rope = positions.rotary
    q, k, v = heads.project(params, x, rope=rope)
    per_head: heads.PerHead = {"scale": np.ones(2)}
    out = heads.output(params, heads.grouped(q, k, v, mask=masks.causal(), per_head=per_head), x)
    assert_type(heads.grouped(q, k, v, return_lse=True), tuple[Array, Array])
    out += heads.multi_head(params, x, mask=masks.causal(), rope=positions.rotary)
    latent = heads.latent_init(key, 8, heads=2, head_dim=4, rope_dim=2, value_dim=4, kv_rank=4)
    print([a.shape for a in heads.latents(latent, x, rope=positions.rotary)])
    out += heads.latent_absorbed(latent, x, rope=positions.rotary)
    return heads.rms_norm(out + heads.latent_expanded(latent, x, rope=positions.rotary), np.ones(8))


def cached(q: Array, held: cache.Cache, **options: Unpack[cache.CacheAttentionOptions]) -> Array:
    return cache.attention(q, held, **options)


def every_cache(q: Array, k: Array, v: Array) -> Array:
    held = cache.append(cache.contiguous(1, 2, 16, 4), k, v)
    assert_type(held, cache.Contiguous)
    paged = cache.free(cache.share(cache.paged(1, 2, 16, 4, pages=8, page=4), 0, np.array([1])), np.array([0]))
    assert_type(paged, cache.Paged)
    ring: cache.Ring = cache.ring(1, 2, 4, window=8)
    held_by: cache.Cache = ring
    numbers, scale = cache.quantised(k)
    print(cache.next_positions(held_by, 4), numbers.dtype, scale.shape)
    store: cache.Store = held.store
    out = cached(q, held, mask=masks.causal(), score=cap) + store.k.sum()
    out, lse = cache.attention(q, held, return_lse=True)
    return assert_type(cache.cascade(q, held, paged), Array) + out + lse.sum()


def by(scheme: sharding.Scheme, q: Array, **options: Unpack[sharding.SchemeOptions]) -> Array:
    return scheme(q, q, q, axis_name="seq", **options)


def every_scheme(q: Array, k: Array, v: Array, mesh: Mesh, spec: PartitionSpec) -> Array:
    out = by(sharding.ring, q, mask=masks.causal())
    out, lse = sharding.gather(q, k, v, axis_name="seq", return_lse=True)
    out += sharding.all_to_all(q, k, v, axis_name="seq") + sharding.tree(q, k, v, axis_name="seq") + lse.sum()
    out += sharding.ring_all_to_all(q, k, v, axis_name=("ring", "heads"))
    out += sharding.attention(q, k, v, mesh=mesh, spec=spec)
    found = sharding.merge_statistics(jattn.statistics(q[0, :, 0], k[0, :, 0]), axis_name="seq")
    told: sharding.Comparison = sharding.plan(1024, 1024, heads=8, kv_heads=8, head_dim=64, dtype=jnp.bfloat16,
                                              devices=8, flops_per_second=1e15, bandwidth=1e12)  # fmt: skip
    costs: tuple[sharding.Cost, ...] = told.costs
    link: sharding.Link = sharding.LINKS["TPU v5e"]
    print([cost.scheme for cost in costs], link.bytes_per_second, found.lse)
    return sharding.unzigzag(sharding.zigzag(out, 8), 8)


def previous(q: Array, k: Array, tokens: Array, **options: Unpack[heads.HeadScoreOptions]) -> heads.HeadScores:
    return heads.head_scores(q, k, tokens, mask=masks.causal(), **options)


def every_effect(params: dict[str, Array], q: Array, k: Array, tokens: Array, out: Array) -> Array:
    def loss(gates: Array) -> Array:
        return jnp.sum(gates * params["out"])

    found: heads.Effects = heads.effects(loss, np.ones(2), batch_size=2)
    close: heads.Agreement = heads.agreement(found.first_order, found.knock_out)
    looks: heads.HeadScores = previous(q, k, tokens, scale=0.1)
    lens: heads.BackwardLens = heads.backward_lens(out, params["out"], params["unembed"], n=3)
    return close.rank_correlation + looks.entropy.sum() + lens.decrease.sum()


def last(q: Array, k: Array, v: Array, **options: Unpack[flow.MeasuredRowOptions]) -> flow.MeasuredRow:
    return flow.measure_row(q, k, v, q, 0, **options)


class Toy(dict[str, Array]):
    """Parameters of a type of one's own."""


def every_flow(q: Array, k: Array, params: Toy, folder: Path) -> None:
    def read(params: Toy) -> tuple[Array, Array]:
        return params["q"], params["k"]

    def grads(now: flow.Now) -> Any:
        return now.grads

    def balanced(params: Toy) -> Array:
        return flow.balance(params["q"], params["k"])

    objective: flow.Objective = flow.cross_entropy(0)
    reads: flow.Read = read
    loss: flow.Loss = flow.loss_of(reads, objective)
    track: flow.Track = balanced
    observe: flow.Observe = flow.watch(reads, objective, 0, conserved=track)
    path = flow.run(loss, params, optax.sgd(0.1), 100, observe=observe, at=flow.log_steps(100))
    assert_type(path, flow.Trajectory[Toy])
    assert_type(path.kept().params, Toy)
    flow.run_in_parts(loss, params, optax.sgd(0.1), 100, every=10, folder=folder)
    flow.integrate(loss, params, [0.0, 1.0], observe=grads)
    seen: flow.Diagnostics = path.seen
    report: flow.Report = flow.check(path)
    checks: tuple[flow.Check, ...] = report.checks
    margin: flow.Margin = flow.max_margin(k, 0)
    steps = flow.attention_steps(q, k, k)
    pulled: flow.Pulls = flow.pulls(q, k, k, flow.squared_error(np.zeros(4)))
    projected: flow.ProjectionPulls = flow.projection_pulls(q, k, k, k, objective)
    numbers = [flow.entropy(steps.weights), flow.max_logit(q, k), flow.saturation(steps.weights), margin.margin,
               flow.jacobian_spectrum(q[0]), flow.softmax_jacobian(q[0]), flow.rollout(steps.weights)]  # fmt: skip
    row: flow.MeasuredRow = last(q, k, k, mask=masks.causal())
    recorder: flow.Recorder = flow.Recorder(folder / "run.npy", at=flow.log_steps(100), limit=50)
    recorder(0, loss=row.entropy)
    print(sorted(recorder.run()))
    print(numbers, checks[0].identity, seen.margin, pulled.on_q.shape, projected.W_Q)


def every_result() -> list[bool]:
    found = [f(seed=0) for f in lab.RESULTS]
    found += [lab.attention_as_svm(), lab.attention_as_nuclear_svm(), lab.one_step_of_descent(), lab.rank_collapse()]
    found += [lab.clustering(), lab.entropy_bound(), lab.induction_heads(), lab.variance_of_dot_products()]
    rooms = (lab.collapse, lab.dot_products, lab.entropies, lab.induction, lab.regression, lab.selection, lab.sphere)
    result: lab.Result = found[0]
    print(rooms, result.claim)
    return [all(r.holds.values()) for r in found]


def film(run: figures.RunLike, file: Path, **plane: Unpack[figures.PlaneOptions]) -> Path:
    return figures.animate(run, LABELS, file, **plane)


def every_figure(weights: np.ndarray, run: flow.Diagnostics, folder: Path) -> list[Path]:
    x = weights[0]
    heights: figures.Background = (x, x, weights)
    field: figures.Field = (x, x, weights, weights)
    drawn = [figures.weights(weights, LABELS, LABELS), figures.arcs(weights, LABELS, LABELS), figures.heads(weights),
             figures.training(run, LABELS), figures.why(weights, LABELS), figures.conserved({"q": (weights, weights)}),
             figures.path(weights, weights, LABELS, background=heights, field=field),
             figures.effects(weights[0], weights[1]),
             figures.blocks(weights, T=4096, S=4096), figures.tiles(np.zeros((2, 2), int))]  # fmt: skip
    assert_type(drawn, list[Figure])
    return [film(run, folder / "run.gif", hull=True), *figures.save(drawn[0], folder / "weights")]


def every_view(weights: np.ndarray, folder: Path) -> Path:
    out = Console()
    for view in (console.bars(LABELS, weights[0]), console.heatmap(weights, LABELS, LABELS),
                 console.ranked(weights, LABELS, LABELS), console.sparklines({"p": weights[0]}),
                 console.tiles(np.zeros((2, 2), int)), console.vectors(LABELS, weights),
                 console.why(weights, LABELS), console.conserved({"q": (0.0, weights[0])}),
                 console.arrows(weights[0], weights[0], weights, weights)):  # fmt: skip
        out.print(view)
    with console.progress("steps") as word:
        word(1, 2)
    return console.save(console.bars(LABELS, weights[0]), folder / "bars.svg")


def descent(run: page.RunLike) -> page.Part:
    return page.run(run, LABELS, target=0)


def every_page(weights: np.ndarray, run: flow.Diagnostics, folder: Path) -> Path:
    parts: list[page.Part] = [page.weights(weights, LABELS, LABELS), page.heads(weights[None], LABELS, LABELS),
                              descent(run), page.head_table({"entropy": weights})]  # fmt: skip
    parts += [page.blocks(weights, weights, T=4096, S=4096), page.story(parts[0], [page.Step("Start", "A row.")])]
    layer = {"q": weights, "k": weights, "v": weights, "out": weights}
    params = {"embed": weights, "positions": weights, "layers": [layer], "unembed": weights}
    parts.append(page.model(params, LABELS, examples=[("the river", "bank")], rate=0.1))
    print(len(page.html("bank", *parts)))
    return page.write(folder / "bank.html", "bank", *parts)


def opposite(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return -q, -k, v


def sown(module: Sows, x: Array) -> Array:
    return attention_fn(x, x, x, dtype=jnp.float32, precision="highest", module=module, rows=[0], is_causal=True)


def every_host(layer: MultiheadAttention, other: MultiHeadAttention, x: Array) -> Array:
    mask: MaskOfHeads = masks.causal()
    turned: ProcessHeads = opposite
    out, measured = layer(x, x, x, mask, process_heads=turned, measure=[0, 2])
    assert_type(measured, Measured)
    print(measured.statistics.entropy, other(x, x, x, measure=np.array([1]))[1].weights)
    out += assert_type(layer(x, x, x), Array) + assert_type(other(x, x, x), Array)
    out += attention_fn(x, x, x)
    return out + attention_interface(None, x, x, x, None, is_causal=True)[0]
