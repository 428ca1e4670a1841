"""Every public way to attend, and its derivatives, as functions of shapes: what `what_compiles.py` compiles."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jattn
from jattn import cache, heads, masks, scores
from jattn.positions import rotary

D, HEADS, KV_HEADS, WIDTH = 64, 4, 2, 128
Shape = jax.ShapeDtypeStruct
Made = tuple[Callable[[Any, Any], Any], Any, Any]
"""f, the shapes of what is differentiated, and those of the rest: out = f(active, rest)."""


class Way(NamedTuple):
    """One way to attend."""

    name: str
    uses: str
    """The public names that it is there for, as "masks.causal"."""
    make: Callable[[int, Any], Made]
    """Of T and the dtype of all that is floating point."""


NO_WAY = {
    "masks": "EMPTY FULL PARTIAL BlockState Mask Pattern Rows Spans TileAxis block_state picture to_dense",
    "scores": "Score ScoreModifier alibi_slopes bucket",
    "heads": "init latent_init effects agreement backward_lens Effects Agreement BackwardLens HeadScores "
    "HeadScoreOptions Initializer Params PerHead Rope",
    "cache": "Cache CacheAttentionOptions Contiguous Paged Ring Store free next_positions share",
}
"""Public names without a row: types, constants, initial parameters, and what takes no query, key or value."""

INT, BOOL = jnp.int32, jnp.bool_


def one_head(name: str, uses: str, options: Any = None, active: Any = None, rest: Any = None, D: int = D) -> Way:
    """One head of D; `options(active, rest)` of further arrays, whose shapes are `active(T)` and `rest(T)`."""

    def make(T: int, dtype: Any) -> Made:
        def f(active: Any, rest: Any) -> Any:
            q, k, v, *more = active
            return jattn.attention(q, k, v, **(options(*more, *rest) if callable(options) else options or {}))

        shapes = [Shape((T, D), dtype)] * 3 + ([Shape(active(T), dtype)] if active else [])
        return f, shapes, [rest(T)] if rest else []

    return Way(f"one head: {name}", uses, make)


def mask(name: str, use: str, value: Any, rest: Any = None) -> Way:
    return one_head(name, f"masks.{use}", (lambda x: {"mask": value(x)}) if rest else {"mask": value}, None, rest)


def score(name: str, use: str, value: Any, active: Any) -> Way:
    return one_head(name, f"scores.{use}", lambda x: {"score": value(x)}, active)


def of_user(captured: Any) -> Callable[..., Any]:
    return lambda x, t, s: x * jnp.cos(captured).astype(x.dtype) + jnp.tanh(x) / (1 + abs(t - s)).astype(x.dtype)


def of_array(captured: Any) -> Callable[..., Any]:
    return lambda x, t, s: x + (captured[t] * jnp.tanh(captured[s])).astype(x.dtype)


def of_pairs(captured: Any) -> Callable[..., Any]:
    return lambda x, t, s: x + (captured[t, s] * captured[5][t - s]).astype(x.dtype)


def of_distances(captured: Any) -> Callable[..., Any]:
    return lambda x, t, s: x + captured[jnp.clip(t - s, 0, captured.shape[0] - 1)].astype(x.dtype)


def several(table: Any) -> dict[str, Any]:
    """A mask that names blocks, and score modifiers that look up a table twice."""
    modifiers = scores.relative_bias(table), scores.distance_bias(table[:31]), scores.soft_cap(30.0)
    chosen = masks.chosen_blocks(jnp.arange(64, dtype=INT).reshape(32, 2) % 32, 128)
    return {"mask": chosen & CAUSAL, "score": scores.compose(*modifiers)}


def two_tables(table: Any) -> dict[str, Any]:
    """Score modifiers that look up a distance, on both sides of one that does not."""
    modifiers = scores.distance_bias(table), scores.soft_cap(30.0), scores.relative_bias(table[:32])
    return {"score": scores.compose(*modifiers)}


def kernel(name: str, options: Any = None, active: Any = None, rest: Any = None, D: int = D) -> Way:
    """One head, by its kernels and nothing else."""

    def given(*x: Any) -> dict[str, Any]:
        return {"mask": CAUSAL, "implementation": "kernel"} | (options(*x) if options else {})

    return one_head(name, "attention", given, active, rest, D)


def precise(way: Way) -> Way:
    """The same, every product of float32 in the precision of float32."""

    def make(T: int, dtype: Any) -> Made:
        f, active, rest = way.make(T, dtype)

        def call(active: Any, rest: Any) -> Any:
            with jax.default_matmul_precision("highest"):
                return f(active, rest)

        return call, active, rest

    return way._replace(name=f"{way.name}, highest precision", make=make)


def key_of_random(T: int) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def many_heads(name: str, kv_heads: int = HEADS, options: Any = None, active: Any = None, rest: Any = None) -> Way:
    def make(T: int, dtype: Any) -> Made:
        def f(active: Any, rest: Any) -> Any:
            q, k, v, *more = active
            given = options(*more, *rest) if callable(options) else options or {}
            return jattn.dot_product_attention(q, k, v, **given)

        shapes = [Shape((2, T, n, D), dtype) for n in (HEADS, kv_heads, kv_heads)]
        return f, shapes + ([Shape(active(T), dtype)] if active else []), [rest(T)] if rest else []

    return Way(f"many heads: {name}", "dot_product_attention", make)


def layer(name: str, uses: str, f: Callable[..., Any], init: Callable[..., Any], *tokens: int) -> Way:
    """f(params, x) of tokens of one width."""

    def make(T: int, dtype: Any) -> Made:
        params = jax.eval_shape(lambda: init(jax.random.key(0), WIDTH, dtype=dtype))
        return lambda active, rest: f(*active), [params, *[Shape((T, WIDTH), dtype)] * (tokens or (1,))[0]], []

    return Way(f"heads: {name}", uses, make)


def scored(params: Any, x: Any) -> Any:
    q, k, _ = heads.project(params, x)
    return heads.head_scores(q, k, jnp.arange(x.shape[0], dtype=INT) % 256, mask=CAUSAL)


MULTI = partial(heads.init, heads=HEADS, kv_heads=KV_HEADS)
FULL_MULTI = partial(MULTI, bias=True, qk_norm="rms", head_scale=True, gate=True)
LATENT = partial(heads.latent_init, heads=HEADS, head_dim=32, rope_dim=16, value_dim=32, kv_rank=64, q_rank=96)
CAUSAL = masks.causal()


def grouped(params: Any, x: Any) -> Any:
    q, k, v = heads.project(params, x, rope=rotary)
    return heads.output(params, heads.grouped(q, k, v, mask=CAUSAL), x)


def neighbours(T: int, dtype: Any) -> Made:
    """Lines of 64 tokens."""
    mask = masks.neighbourhood((T // 64, 64), (min(7, (T // 64 - 1) // 2), 7))
    return lambda active, rest: jattn.attention(*active, mask=mask), [Shape((T, D), dtype)] * 3, []


def ragged(T: int, dtype: Any) -> Made:
    """Eight sequences of any lengths, over grouped heads."""

    def f(active: Any, rest: Any) -> Any:
        return jattn.ragged_attention(*active, *rest, mask=CAUSAL)

    return f, [Shape((T, n, D), dtype) for n in (HEADS, KV_HEADS, KV_HEADS)], [Shape((9,), INT)]


CACHES: dict[str, tuple[str, Callable[[int, Any], Any]]] = {
    "contiguous": ("contiguous", lambda T, d: cache.contiguous(2, KV_HEADS, T, D, dtype=d)),
    "ring": ("ring", lambda T, d: cache.ring(2, KV_HEADS, D, window=T // 2, chunk=T // 2, dtype=d)),
    "paged": ("paged", lambda T, d: cache.paged(2, KV_HEADS, T, D, pages=T // 32, dtype=d)),
    "contiguous in int8": ("quantised", lambda T, d: cache.contiguous(2, KV_HEADS, T, D, dtype=jnp.int8)),
    "paged in int8": ("quantised", lambda T, d: cache.paged(2, KV_HEADS, T, D, pages=T // 32, dtype=jnp.int8)),
}  # fmt: skip


def cached(name: str, step: str, queries: int) -> Way:
    """A number of tokens appended, as it is, or attended from over the tokens in the cache."""
    uses, made = CACHES[name]

    def make(T: int, dtype: Any) -> Made:
        n = min(queries, T // 4)

        def append(active: Any, rest: Any) -> Any:
            held = cache.append(rest[0], *active)
            return held.store.k, held.store.v, held.store.k_scale, held.store.v_scale

        def attend(active: Any, rest: Any) -> Any:
            q, k, v = active
            return cache.attention(q, cache.append(rest[0], k, v))

        new = [Shape((2, KV_HEADS, n, D), dtype)] * 2
        held = jax.eval_shape(lambda: made(T, dtype))
        if step == "append":
            return append, new, [held]
        return attend, [Shape((2, HEADS, n, D), dtype), *new], [held]

    return Way(f"cache: {name}, {step}", f"cache.{uses} cache.append cache.attention", make)


def cascade(T: int, dtype: Any) -> Made:
    prefix, own = (jax.eval_shape(lambda B=B: cache.contiguous(B, KV_HEADS, T, D, dtype=dtype)) for B in (1, 2))
    return lambda active, rest: cache.cascade(active[0], *rest), [Shape((2, HEADS, 1, D), dtype)], [prefix, own]


def measured(name: str, f: Callable[..., Any]) -> Way:
    """What is measured of each query of one head, under a learned score and causal."""

    def make(T: int, dtype: Any) -> Made:
        def call(active: Any, rest: Any) -> Any:
            q, k, cap = active
            return f(q, k, mask=CAUSAL, score=scores.soft_cap(cap))

        return call, [Shape((T, D), dtype), Shape((T, D), dtype), Shape((), dtype)], []

    return Way(f"one head: {name}", name, make)


def grouped_statistics(q: Any, k: Any, **options: Any) -> Any:
    groups = jnp.arange(k.shape[0], dtype=INT) % 4
    return jattn.statistics(q, k, sink=jnp.float32(0), groups=groups, num_groups=4, **options)


WAYS = [
    one_head("full", "attention"),
    one_head("lse", "attention", {"return_lse": True, "mask": CAUSAL}),
    one_head("bias", "attention", lambda bias: {"bias": bias}, lambda T: (T, T)),
    one_head("sink", "attention", lambda sink: {"sink": sink, "mask": CAUSAL}, lambda T: (T,)),
    one_head("scale", "attention", lambda scale: {"scale": scale}, lambda T: ()),
    one_head("dropout", "attention", lambda key: {"dropout_rate": 0.1, "dropout_key": key}, None, key_of_random),
    one_head("positions", "attention", lambda at: {"mask": CAUSAL, "q_positions": at, "k_positions": at}, None,
             lambda T: Shape((T,), INT)),
    mask("causal()", "causal", CAUSAL),
    mask("window(1023, 0)", "window", masks.window(left=1023, right=0)),
    mask("prefix(n)", "prefix", masks.prefix, lambda T: Shape((), INT)),
    mask("chunked(512)", "chunked", masks.chunked(512)),
    mask("dilated(3)", "dilated", masks.dilated(3)),
    mask("sinks(4) | window(1023, 0)", "sinks", masks.sinks(4) | masks.window(left=1023, right=0)),
    mask("strided(64)", "strided", masks.strided(64)),
    Way("one head: neighbourhood((T / 64, 64), 7)", "masks.neighbourhood", neighbours),
    mask("ragged(starts) & causal()", "ragged", lambda x: masks.ragged(x) & CAUSAL, lambda T: Shape((9,), INT)),
    mask("tree(parents)", "tree", masks.tree, lambda T: Shape((T,), INT)),
    mask("blocks(table)", "blocks", lambda x: masks.blocks(x, 128), lambda T: Shape((T // 128, T // 128), BOOL)),
    mask("chosen_blocks(indices)", "chosen_blocks", lambda x: masks.chosen_blocks(x, 128) & CAUSAL,
         lambda T: Shape((T // 128, 4), INT)),
    mask("where(f)", "where", masks.where(lambda t, s: (t - s) * (t - s) < 9999)),
    mask("where(f) of arrays", "where", lambda ids: masks.where(lambda t, s: ids[t] == ids[s]) & CAUSAL,
         lambda T: Shape((T,), INT)),
    mask("lengths(q, k)", "lengths", lambda x: masks.lengths(x[0], x[1]), lambda T: Shape((2,), INT)),
    mask("segments(ids) & causal()", "segments", lambda x: masks.segments(x) & CAUSAL, lambda T: Shape((T,), INT)),
    mask("dense(array)", "dense", masks.dense, lambda T: Shape((T, T), BOOL)),
    mask("full()", "full", masks.full()),
    mask("empty()", "empty", masks.empty()),
    mask("prefix(99) | ~window(64, 64)", "prefix", masks.prefix(99) | ~masks.window(64, 64)),
    measured("statistics", grouped_statistics),
    measured("top_keys", lambda q, k, **options: jattn.top_keys(q, k, 8, **options)),
    score("soft_cap(c)", "soft_cap", scores.soft_cap, lambda T: ()),
    score("temperature(τ)", "temperature", scores.temperature, lambda T: ()),
    score("alibi(m)", "alibi", scores.alibi, lambda T: ()),
    score("relative_bias(table)", "relative_bias", scores.relative_bias, lambda T: (32,)),
    score("distance_bias(table)", "distance_bias", scores.distance_bias, lambda T: (129,)),
    score("compose(soft_cap(c), alibi(m))", "compose",
          lambda x: scores.compose(scores.soft_cap(x[0]), scores.alibi(x[1])), lambda T: (2,)),
    score("a user's function that captures", "compose", of_user, lambda T: ()),
    score("a user's function of an array", "compose", of_array, lambda T: (T,)),
    many_heads("causal", options={"is_causal": True}),
    many_heads("grouped, causal", KV_HEADS, {"is_causal": True}),
    many_heads("grouped, window and lengths", KV_HEADS,
               lambda n: {"local_window_size": (1023, 0), "key_value_seq_lengths": n},
               None, lambda T: Shape((2,), INT)),
    many_heads("bias, residual", HEADS, lambda b: {"bias": b, "return_residual": True}, lambda T: (HEADS, 1, T)),
    many_heads("dropout, soft cap, sink", HEADS,
               lambda sink, key: {"sink": sink, "score": scores.soft_cap(30.0),
                                  "dropout_rate": 0.1, "dropout_key": key},
               lambda T: (HEADS,), key_of_random),
    Way("ragged: grouped, causal", "ragged_attention", ragged),
    layer("multi_head", "heads.multi_head", partial(heads.multi_head, mask=CAUSAL, rope=rotary), MULTI),
    layer("multi_head, biases, norms, scale, gate", "heads.multi_head heads.rms_norm",
          partial(heads.multi_head, mask=CAUSAL), FULL_MULTI),
    layer("multi_head to a context", "heads.multi_head", heads.multi_head, partial(MULTI, qk_norm="l2"), 2),
    layer("project, grouped, output", "heads.project heads.grouped heads.output", grouped, MULTI),
    layer("head_scores", "heads.head_scores", scored, MULTI),
    layer("latent_expanded", "heads.latent_expanded heads.latents",
          partial(heads.latent_expanded, mask=CAUSAL, rope=rotary), LATENT),
    layer("latent_absorbed", "heads.latent_absorbed heads.latents",
          partial(heads.latent_absorbed, mask=CAUSAL, rope=rotary), LATENT),
    *(cached(name, step, n) for name in CACHES for step, n in (("append", 128), ("decode", 1), ("prefill", 512))),
    Way("cache: cascade, decode", "cache.cascade", cascade),
]  # fmt: skip

KERNELS = [
    kernel("full", lambda: {"mask": None}),
    kernel("causal()"),
    kernel("heads of 128, causal()", D=128),
    kernel("heads of 128, dropout", lambda key: {"dropout_rate": 0.1, "dropout_key": key}, None, key_of_random, 128),
    many_heads("grouped, window and lengths", KV_HEADS,
               lambda n: {"local_window_size": (1023, 0), "key_value_seq_lengths": n, "implementation": "kernel"},
               None, lambda T: Shape((2,), INT)),
    kernel("segments(ids) & causal()", lambda ids: {"mask": masks.segments(ids) & CAUSAL},
           None, lambda T: Shape((T,), INT)),
    kernel("where(f) of positions", lambda: {"mask": masks.where(lambda t, s: (t - s) * (t - s) < 9999)}),
    kernel("bias", lambda bias: {"bias": bias}, lambda T: (T, T)),
    kernel("sink", lambda sink: {"sink": sink}, lambda T: (T,)),
    kernel("scale", lambda scale: {"scale": scale}, lambda T: ()),
    kernel("dropout", lambda key: {"dropout_rate": 0.1, "dropout_key": key}, None, key_of_random),
    kernel("soft_cap(c)", lambda c: {"score": scores.soft_cap(c)}, lambda T: ()),
    kernel("alibi(m)", lambda m: {"score": scores.alibi(m)}, lambda T: ()),
    kernel("a user's function that captures", lambda c: {"score": of_user(c)}, lambda T: ()),
    kernel("blocks(table) & causal()", lambda x: {"mask": masks.blocks(x, 128) & CAUSAL},
           None, lambda T: Shape((T // 128, T // 128), BOOL)),
    kernel("chosen_blocks(indices) & causal()", lambda x: {"mask": masks.chosen_blocks(x, 128) & CAUSAL},
           None, lambda T: Shape((T // 128, 16), INT)),
    kernel("relative_bias(table), not active", lambda x: {"score": scores.relative_bias(x)},
           None, lambda T: Shape((32,), jnp.float32)),
    kernel("relative_bias(table)", lambda x: {"score": scores.relative_bias(x)}, lambda T: (32,)),
    kernel("heads of 128, distance_bias(table)", lambda x: {"score": scores.distance_bias(x)},
           lambda T: (1025,), D=128),
    kernel("dropout, distance_bias(table)",
           lambda x, key: {"score": scores.distance_bias(x), "dropout_rate": 0.1, "dropout_key": key},
           lambda T: (1025,), key_of_random),
    kernel("a user's function of a table by distance", lambda x: {"score": of_distances(x)}, lambda T: (1025,)),
]  # fmt: skip
"""What both devices have kernels for."""

GPU_KERNELS = [
    kernel("where(f) of an array of pairs", lambda x: {"mask": masks.where(lambda t, s: x[t - s]) & CAUSAL},
           None, lambda T: Shape((T,), BOOL)),
    kernel("a user's function of an array of pairs", lambda x: {"score": of_pairs(x)},
           None, lambda T: Shape((T, T), jnp.float32)),
    kernel("heads of 128, distance_bias(table), not active", lambda x: {"score": scores.distance_bias(x)},
           None, lambda T: Shape((1025,), jnp.float32), 128),
    kernel("heads of 128, chosen_blocks, two tables and soft_cap", several,
           None, lambda T: Shape((32,), jnp.float32), 128),
    kernel("heads of 128, dropout, relative_bias(table), not active",
           lambda x: {"score": scores.relative_bias(x), "dropout_rate": 0.1, "dropout_key": jax.random.key(0)},
           None, lambda T: Shape((32,), jnp.float32), 128),
]  # fmt: skip
"""What the GPU alone has kernels for, with an array that is looked up for each pair."""

TPU_KERNELS = [
    precise(kernel("causal()")),
    precise(kernel("heads of 128, soft_cap(c)", lambda c: {"score": scores.soft_cap(c)}, lambda T: (), D=128)),
    kernel("heads of 256, two tables and soft_cap", two_tables, lambda T: (1025,), D=256),
    kernel("where(f) of an array by distance", lambda x: {"mask": masks.where(lambda t, s: x[t - s]) & CAUSAL},
           None, lambda T: Shape((T,), BOOL)),
]  # fmt: skip
"""What the TPU alone has kernels for: wider heads, and an array that a mask looks up by distance; a GPU gathers."""

LIBRARY = {"implementation": "cudnn"}
CUDNN = [
    one_head("full", "attention", LIBRARY),
    one_head("causal(), and lse", "attention", {"mask": CAUSAL, "return_lse": True, **LIBRARY}),
    one_head("window(left, right)", "attention", {"mask": masks.window(1023, 0), **LIBRARY}),
    many_heads("grouped, causal, scale", KV_HEADS, lambda c: {"is_causal": True, "scale": c, **LIBRARY}, lambda T: ()),
    many_heads("lengths", HEADS, lambda n: {"query_seq_lengths": n, "key_value_seq_lengths": n, **LIBRARY},
               None, lambda T: Shape((2,), INT)),
    many_heads("grouped, causal, a bias of each head", KV_HEADS, lambda b: {"is_causal": True, "bias": b, **LIBRARY},
               lambda T: (HEADS, T, T)),
]  # fmt: skip
"""What cuDNN is asked for."""


def loss_of(f: Callable[..., Any]) -> Callable[..., Any]:
    """Σ sin of every floating-point result."""

    def loss(active: Any, rest: Any) -> Any:
        found = [x for x in jax.tree.leaves(f(active, rest)) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(jnp.sum(jnp.sin(x.astype(jnp.float32))) for x in found)

    return loss


def derivatives(f: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """f(active, rest) and its derivatives, along the arguments themselves."""
    gradient = jax.grad(loss_of(f))

    def along(active: Any, rest: Any) -> Any:
        parts = zip(*map(jax.tree.leaves, (gradient(active, rest), active)), strict=True)
        return sum(jnp.vdot(dx, x) for dx, x in parts)

    return {
        "value": f,
        "gradient": gradient,
        "jvp": lambda active, rest: jax.jvp(lambda x: f(x, rest), (active,), (active,)),
        "hvp": lambda active, rest: jax.jvp(lambda x: gradient(x, rest), (active,), (active,))[1],
        "gradient of gradient": jax.grad(along),
    }


DERIVATIVES = tuple(derivatives(len))


def rows_of_the_jacobian(f: Callable[..., Any]) -> Callable[..., Any]:
    """The pullback of f, mapped over two cotangents as `jax.jacrev` maps it, and the value."""

    def two_rows(active: Any, rest: Any) -> Any:
        out, pull = jax.vjp(lambda x: f(x, rest), active)
        return out, jax.vmap(pull)(jax.tree.map(lambda y: jnp.stack([y, jnp.cos(y)]), out))

    return two_rows
