"""The refusals of positions, heads and hosts, word for word; test_messages checks them with all others."""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import inspect

import jax
import numpy as np
from _inputs import S, T

from jattn import heads, masks, positions
from jattn.hosts import _attend, transformers
from jattn.positions import Frequencies, rotary


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def rope(**options):
    return lambda: rotary(**({"x": ones(T, 6), "positions": ones(T, dtype=np.int32)} | options))


SCALING = "Write a function Frequencies -> Frequencies, as in lambda f: f._replace(inv=f.inv / 2)."
TRAINED = "The configuration of a model holds what it was trained with."
AXES = "Make them with sections(16, 24, 24): as many whole numbers as pairs of columns."
ON_AXES = ones(3, T, dtype=np.int32)

POSITIONS = [
    (rope(x=ones(2, T, 6)), ValueError, "rotary: x must have the axes [T, D], got x [2, 13, 6]. This function is one head without a batch: map it with jax.vmap."),
    (rope(x=ones(T, 6, dtype=np.int32)), TypeError, "rotary: x must be floating point, got x int32[13, 6]. Convert it first: x.astype(jax.numpy.float32)."),
    (rope(x=ones(T, 5)), ValueError, "rotary: width must be even, got width 5. Columns turn in pairs."),
    (rope(width=8), ValueError, "rotary: width must not exceed D, got x [13, 6] and width 8. Turn at most every column."),
    (rope(base=1.0), ValueError, "rotary: base must be above 1 and finite, got base 1.0. Most models have 10_000.0."),
    (rope(positions=np.arange(T) + 2**31), ValueError, "rotary: positions must be numbers that int32 holds, got positions [13]. Count the tokens from one that is nearer."),
    (rope(positions=ones(T)), TypeError, "rotary: positions must be integer, got positions float32[13]. Positions count tokens: pass whole numbers."),
    (rope(positions=ON_AXES), ValueError, "rotary: positions must have the shape [T], here [13], got positions [3, 13]. Give one position to each row, or say by axes which of several axes each pair turns on."),
    (rope(axes=(0, 1, 2)), ValueError, "rotary: positions must have the shape [A, T], T = 13, got positions [13]. Give one row of positions to each axis."),
    (rope(positions=ON_AXES, axes=(0, 1)), ValueError, f"rotary: axes must name one axis for each of 3 pairs, got axes of 2 numbers. {AXES}"),
    (rope(positions=ON_AXES, axes=(0, 1, 3)), ValueError, "rotary: axes must be axes of positions [A, T], got axes up to 3 and positions [3, 13]. Axes are counted from 0."),
    (rope(scaling=lambda f: f.inv), TypeError, f"rotary: scaling must return Frequencies, got scaling returning ndarray. {SCALING}"),
    (rope(scaling=lambda f: Frequencies(f.inv[1:], f.base)), ValueError, f"rotary: scaling must return 3 frequencies, got inv [2]. {SCALING}"),
    (rope(scaling=positions.longrope((1.0,), (1.0, 1.0, 1.0), factor=2.0, original=8, length=4)), ValueError, "longrope: short must hold 3 numbers, got short of 1. Give a divisor to each pair of columns that turns: half the width."),
    (rope(base="10000"), TypeError, "rotary: base must be a real number, got base of type str. Pass a number of Python or NumPy."),
    (rope(scaling=positions.linear), TypeError, "rotary: scaling must take Frequencies, got scaling of type function. Call it: scaling=jattn.positions.linear(…)."),
    (rope(scaling=positions.yarn), TypeError, "rotary: scaling must take Frequencies, got scaling of type function. Call it: scaling=jattn.positions.yarn(…)."),
    (lambda: positions.compose(positions.linear(2.0), positions.llama3), TypeError, "compose: scaling must take Frequencies, got scaling of type function. Call it: scaling=jattn.positions.llama3(…)."),
    (rope(scaling=8.0), TypeError, f"rotary: scaling must be a function, got scaling of type float. {SCALING}"),
    (rope(positions=ON_AXES, axes=1), TypeError, f"rotary: axes must name one axis for each of 3 pairs, got axes of type int. {AXES}"),
    (lambda: positions.compose(positions.linear(2.0), None), TypeError, f"compose: scaling must be a function, got scaling of type NoneType. {SCALING}"),
    (lambda: positions.linear(ones(3)), TypeError, "linear: factor must be a real number, got factor [3]. Pass a number of Python or NumPy."),
    (lambda: positions.dynamic_ntk(2.0, original=8, length=None), TypeError, "dynamic_ntk: length must be a real number, got length of type NoneType. Pass a number of Python or NumPy."),
    (lambda: positions.sinusoidal(ones(T, dtype=np.int32), 4, dtype="float9"), TypeError, "sinusoidal: dtype must be floating point, got dtype 'float9'. Sines are from -1 to 1: as whole numbers most would be 0."),
    (lambda: positions.sinusoidal(ones(T, dtype=np.int32), 4, dtype=np.int32), TypeError, "sinusoidal: dtype must be floating point, got dtype int32. Sines are from -1 to 1: as whole numbers most would be 0."),
    (lambda: positions.linear(0.0), ValueError, f"linear: factor must be above 0 and finite, got factor 0.0. {TRAINED}"),
    (lambda: positions.ntk(jax.numpy.int32(-2)), ValueError, f"ntk: factor must be above 0 and finite, got factor -2.0. {TRAINED}"),
    (lambda: positions.dynamic_ntk(float("nan"), original=8, length=4), ValueError, f"dynamic_ntk: factor must be above 0 and finite, got factor nan. {TRAINED}"),
    (lambda: positions.yarn(4.0, original=0), ValueError, f"yarn: original must be above 0 and finite, got original 0.0. {TRAINED}"),
    (lambda: positions.yarn(4.0, original=64, fast=1.0, slow=32.0), ValueError, f"yarn: fast must be above 32 and finite, got fast 1.0. {TRAINED}"),
    (lambda: positions.llama3(8.0, original=64, low=4.0), ValueError, f"llama3: high must be above 4 and finite, got high 4.0. {TRAINED}"),
    (lambda: positions.longrope((1.0, 0.0), (1.0, 1.0), factor=2.0, original=8, length=4), ValueError, f"longrope: short must be above 0 and finite, got short 0.0. {TRAINED}"),
    (lambda: positions.longrope((1.0,), (1.0,), factor=2.0, original=1, length=4), ValueError, f"longrope: original must be above 1 and finite, got original 1.0. {TRAINED}"),
    (lambda: positions.longrope((1.0,), (1.0,), factor=2.0, original=8, length=4, attention_factor="river"), TypeError, "longrope: attention_factor must be a real number, got attention_factor of type str. Pass a number of Python or NumPy."),
    (lambda: positions.frequencies(3), ValueError, "frequencies: width must be even, got width 3. Columns turn in pairs."),
    (lambda: positions.sections(16, -1), ValueError, "sections: pairs must be at least 0, got pairs -1. Pass a Python int of at least 0."),
    (rope(interleaved="no"), TypeError, "rotary: interleaved must be True or False, got interleaved of type str. Pass a bool, static in jax.jit."),
    (rope(interleaved=0), TypeError, "rotary: interleaved must be True or False, got interleaved of type int. Pass a bool, static in jax.jit."),
    (rope(interleaved=ones(2)), TypeError, "rotary: interleaved must be True or False, got interleaved of dtype float32. Pass a bool, static in jax.jit."),
    (lambda: positions.sinusoidal(ones(T, dtype=np.int32), 4, interleaved=None), TypeError, "sinusoidal: interleaved must be True or False, got interleaved of type NoneType. Pass a bool, static in jax.jit."),
    (lambda: positions.sinusoidal(ones(2, T, dtype=np.int32), 4), ValueError, "sinusoidal: positions must have the axes [T], got positions [2, 13]. Map over a batch with jax.vmap."),
]  # fmt: skip


# Made where they are asked for: every worker of the tests reads this table.


def params():
    return heads.init(jax.random.key(0), 8, heads=4, kv_heads=2)


def latent():
    return heads.latent_init(jax.random.key(0), 8, heads=2, head_dim=4, rope_dim=2, value_dim=4, kv_rank=3)


MAPPED = "No batch: map with jax.vmap, in_axes (None, 0)."
MADE = "Make them with heads.init or heads.latent_init, or name what comes from elsewhere as they do."
ROPE = "Write rope(x [T, D], positions [T]) -> [T, D], as jattn.positions.rotary."
NORM = "Leave it out for q and k without a norm."
REAL = "Parameters are real numbers, as in dtype='bfloat16'."
SHARE = "Each key/value head serves the same number of query heads."


def attend(x=None, context=None, more=(), **options):
    return lambda: heads.multi_head(params() | dict(more), ones(T, 8) if x is None else x, context, **options)


def group(H=4, Hkv=2, **options):
    return lambda: heads.grouped(ones(H, T, 6), ones(Hkv, S, 6), ones(2, S, 6), **options)


def scored(**options):
    return lambda: heads.head_scores(
        **({"q": ones(4, T, 6), "k": ones(2, T, 6), "tokens": ones(T, dtype=np.int32)} | options)
    )


def lens(**options):
    return lambda: heads.backward_lens(
        **({"out": ones(4, T, 6), "gradient": ones(4, 6, 8), "unembed": ones(8, 9)} | options)
    )


HEADS = [
    (lambda: heads.init(jax.random.key(0), 8, heads=4, kv_heads=3), ValueError, f"init: heads must be a multiple of kv_heads, got heads 4 and kv_heads 3. {SHARE}"),
    (lambda: heads.init(jax.random.key(0), 8, heads=4, kv_heads=2.0), TypeError, "init: kv_heads must be a whole number, got kv_heads of type float. Pass a Python int of at least 1."),
    (lambda: heads.init(jax.random.key(0), 8, heads=4, dtype="bf16"), TypeError, f"init: dtype must be floating point, got dtype 'bf16'. {REAL}"),
    (lambda: heads.latent_init(jax.random.key(0), 8, heads=2, head_dim=4, rope_dim=2, value_dim=4, kv_rank=3, dtype=int), TypeError, f"latent_init: dtype must be floating point, got dtype int64. {REAL}"),
    (lambda: heads.latent_init(jax.random.key(0), 8, heads=2, head_dim=4, rope_dim=-2, value_dim=4, kv_rank=3), ValueError, "latent_init: rope_dim must be at least 0, got rope_dim -2. Pass a Python int of at least 0."),
    (lambda: heads.init(jax.random.key(0), 8, heads=3), ValueError, "init: width must be a multiple of heads, got width 8 and heads 3. Or say how wide: head_dim=64."),
    (lambda: heads.init(jax.random.key(0), 8, heads=2, qk_norm="RMS"), ValueError, f"init: qk_norm must be None, 'rms' or 'l2', got qk_norm 'RMS'. {NORM}"),
    (lambda: heads.init(jax.random.key(0), 8, heads=2, qk_norm=True), ValueError, f"init: qk_norm must be None, 'rms' or 'l2', got qk_norm True. {NORM}"),
    (lambda: heads.init(jax.random.key(0), 8, heads=0), ValueError, "init: heads must be at least 1, got heads 0. Pass a Python int of at least 1."),
    (lambda: heads.init(jax.random.key(0), 8, heads=4, kv_heads=0), ValueError, "init: kv_heads must be at least 1, got kv_heads 0. Pass a Python int of at least 1."),
    (lambda: heads.init(jax.random.key(0), 8, heads=4, head_dim=2.5), TypeError, "init: head_dim must be a whole number, got head_dim of type float. Pass a Python int of at least 1."),
    (attend(more={"q": ones(8, 8)}), ValueError, "project: params['q'] must be [E, H, D], got q [8, 8]. Reshape what comes from elsewhere."),
    (attend(more={"q_bias": ones(1, 2)}), ValueError, "project: params['q_bias'] must be [H, D], got q_bias [1, 2]. That is [4, 2] here. Reshape what comes from elsewhere."),
    (attend(more={"out": ones(1, 2, 8)}), ValueError, "output: params['out'] must be [H, Dv, E], got out [1, 2, 8]. That is [4, 2, 8] here. Reshape what comes from elsewhere."),
    (attend(more={"out": ones(8, 8)}), ValueError, "output: params['out'] must be [H, Dv, E], got out [8, 8]. That is [4, 2, E] here. Reshape what comes from elsewhere."),
    (lambda: heads.output(params(), ones(T, 2), ones(T, 8)), ValueError, "output: out must have the axes [H, T, Dv], got out [13, 2]. No batch: map with jax.vmap."),
    (lambda: heads.output(params() | {"gate": ones(8, 4, 2)}, ones(4, 1, 2), ones(T, 8)), ValueError, "output: out [H, T, Dv] and x [T, E] must have one T, got out [4, 1, 2] and x [13, 8]. The gate looks at the token that asks: pass the x that made q."),
    (lambda: heads.output(params() | {"gate": ones(8, 4, 2)}, ones(4, T, 2), ones(8)), ValueError, f"output: x must have the axes [T, E], got x [8]. {MAPPED}"),
    (lambda: heads.latents(latent() | {"q": ones(8, 4, 2)}, ones(T, 8), rope=rotary), ValueError, "latents: params['q'] must be [E, H, D+R], got q [8, 4, 2]. That is [8, 2, 6] here. Reshape what comes from elsewhere."),
    (lambda: heads.rms_norm(ones(T, 6, dtype=np.int32), ones(6)), TypeError, "rms_norm: x must be floating point, got x int32[13, 6]. Convert it first: x.astype(jax.numpy.float32)."),
    (lambda: heads.rms_norm(ones(T, 6), ones(1)), ValueError, "rms_norm: x must be [..., D] and weight [D], got x [13, 6] and weight [1]. Give one weight to each column."),
    (attend(x="river"), TypeError, "multi_head: x must be an array of numbers in one shape, got x of type str. Pass a jax or NumPy array."),
    (attend(x=ones(2, T, 8)), ValueError, f"project: x must have the axes [T, E], got x [2, 13, 8]. {MAPPED}"),
    (attend(x=ones(T, 7)), ValueError, "project: x [T, E] must be as wide as params['q'] takes, got x [13, 7] and q [8, 4, 2]. Make params for this width: init(key, width, context_width=...)."),
    (attend(context=ones(S, 7)), ValueError, "project: context [S, C] must be as wide as params['k'] takes, got context [17, 7] and k [8, 2, 2]. Make params for this width: init(key, width, context_width=...)."),
    (attend(context=ones(S, 8), rope=rotary, q_positions=ones(T, dtype=np.int32)), ValueError, "multi_head: rope looks at positions, so both sides must have them beside a context, got no k_positions. Say where the tokens of x and of the context stand, or leave rope out: cross attention has mostly none."),
    (attend(rope=rotary, k_positions=ones(T, dtype=np.int32)), ValueError, "multi_head: rope looks at positions, so both sides must have them where one side has, got no q_positions. Give q_positions alone: those of the keys are the same."),
    (attend(per_head={"sink": ones(2)}), ValueError, "grouped: per_head must have one entry a head, H = 4, got per_head [2]. What all heads share goes beside it, as an option of its own."),
    (group(return_lse="no"), TypeError, "grouped: return_lse must be True or False, got return_lse of type str. Pass a bool, static in jax.jit."),
    (group(H=3), ValueError, f"grouped: H must be a multiple of Hkv, in k and v alike, got q [3, 13, 6] and k [2, 17, 6] and v [2, 17, 6]. {SHARE}"),
    (group(Hkv=4), ValueError, f"grouped: H must be a multiple of Hkv, in k and v alike, got q [4, 13, 6] and k [4, 17, 6] and v [2, 17, 6]. {SHARE}"),
    (lambda: heads.grouped(np.float32(1), ones(2, S, 6), ones(2, S, 6), dropout_rate=0.1, dropout_key=jax.random.key(0)), ValueError, "grouped: q must have the axes [H, T, D], got q []. No batch: map with jax.vmap."),
    (group(dropout_rate=0.1, dropout_key=ones(2)), TypeError, "grouped: dropout_key must be one key, got dropout_key float32[2]. Pass a key of jax.random: dropout_key=jax.random.key(0)."),
    (lambda: heads.grouped(ones(T, 6), ones(2, S, 6), ones(2, S, 6)), ValueError, "grouped: q must have the axes [H, T, D], got q [13, 6]. No batch: map with jax.vmap."),
    (lambda: heads.latent_expanded(latent(), ones(T, 7), rope=rotary), ValueError, "latents: x [T, E] must be as wide as params take, got x [13, 7] and kv_down [8, 3]. Make params for this width: latent_init(key, width, ...)."),
    (scored(tokens=ones(T)), TypeError, "head_scores: tokens must be integer, got tokens float32[13]. A token is a number: pass whole numbers."),
    (scored(tokens=ones(S, dtype=np.int32)), ValueError, "head_scores: q, k and tokens must have one row for each token, got q [4, 13, 6] and k [2, 13, 6] and tokens [17]. Pass the tokens of one sequence, and what `project` makes of it."),
    (attend(per_head={"sink": ones(4)}, sink=1.0), TypeError, "grouped: sink must be given once, got sink for all heads and for each. Leave out one of sink and per_head['sink']."),
    (attend(per_head={"sinks": ones(4)}), TypeError, "grouped: each option in per_head must be known, got option sinks. A head may have its own mask, score, bias, sink, scale, q_positions, k_positions, dropout_rate, dropout_key."),
    (attend(per_head=[ones(4)]), TypeError, "grouped: per_head must be a mapping of options by name, got per_head of type list. Write {\"sink\": [H]}."),
    (scored(per_head={"mask": ones(4, T, T, dtype=bool)}), TypeError, "head_scores: each option in per_head must be known, got option mask. A head may have its own score, bias, sink, scale, q_positions, k_positions."),
    (scored(per_head={"sink": ones(4)}, sink=1.0), TypeError, "head_scores: sink must be given once, got sink for all heads and for each. Leave out one of sink and per_head['sink']."),
    (scored(per_head={"sink": ones(2)}), ValueError, "head_scores: per_head must have one entry a head, H = 4, got per_head [2]. What all heads share goes beside it, as an option of its own."),
    (lambda: heads.effects(jax.numpy.sum, ones(4, dtype=np.int32)), TypeError, "effects: gates must be floating point, got gates int32[4]. Convert it first: gates.astype(jax.numpy.float32)."),
    (lambda: heads.effects(lambda gates: gates, ones(4)), TypeError, "effects: f must return one real number, got f returning float32[4]. Sum a loss over tokens and examples."),
    (lambda: heads.effects(lambda gates: (gates, gates), ones(4)), TypeError, "effects: f must return one real number, got f returning tuple. Sum a loss over tokens and examples."),
    (lambda: heads.agreement(ones(4), ones(2, 2)), ValueError, "agreement: estimate and effect must have one shape, got estimate [4] and effect [2, 2]. Give both for the same heads."),
    (lens(out=ones(T, 6)), ValueError, "backward_lens: out must have the axes [H, T, Dv], got out [13, 6]. No batch: map with jax.vmap."),
    (lens(unembed=ones(7, 9)), ValueError, "backward_lens: out [H, T, Dv], gradient [H, Dv, E] and unembed [E, V] must agree in H, Dv and E, got out [4, 13, 6] and gradient [4, 6, 8] and unembed [7, 9]. Take all three of one layer."),
    (lambda: heads.multi_head(None, ones(T, 8)), TypeError, f"project: params must be a mapping of arrays by name, got params of type NoneType. {MADE}"),
    (lambda: heads.multi_head(params() | {"out": ones(4, 2, 8) * 1j}, ones(T, 8)), TypeError, "output: params['out'] must be real numbers, got out complex64[4, 2, 8]. Take the real part: params['out'].real."),
    (lambda: heads.multi_head({"q": ones(8, 4, 2)}, ones(T, 8)), ValueError, f"project: params must hold k and v, got params with q. {MADE}"),
    (attend(more={"q_norm": ones(2)}), ValueError, f"project: params must hold k_norm, got params with k, out, q, q_norm, v. {MADE}"),
    (lambda: heads.output({}, ones(4, T, 2), ones(T, 8)), ValueError, f"output: params must hold out, got params with nothing. {MADE}"),
    (lambda: heads.latents(params(), ones(T, 8), rope=rotary), ValueError, f"latents: params must hold kv_down and kv_norm and k_rope, got params with k, out, q, v. {MADE}"),
    (lambda: heads.latents(latent() | {"q_down": ones(8, 3)}, ones(T, 8), rope=rotary), ValueError, f"latents: params must hold q_latent_norm, got params with k, k_rope, kv_down, kv_norm, out, q, q_down, v. {MADE}"),
    (attend(rope=10_000.0), TypeError, f"project: rope must be a function, got rope of type float. {ROPE}"),
    (attend(rope=lambda x: x), TypeError, f"project: rope must take two arguments, got rope with the arguments (x). {ROPE}"),
    (attend(rope=positions.linear(2.0)), TypeError, f"project: rope must take two arguments, got rope with the arguments {inspect.signature(positions.linear(2.0))}. {ROPE}"),
    (lambda: heads.latents(latent(), ones(T, 8), rope=lambda x: x), TypeError, f"latents: rope must take two arguments, got rope with the arguments (x). {ROPE}"),
    (lambda: heads.latents(latent(), ones(T, 8), rope=None), TypeError, f"latents: rope must be a function, got rope of type NoneType. {ROPE}"),
    (lambda: heads.effects(None, ones(4)), TypeError, "effects: f must be a function, got f of type NoneType. Write f(gates) -> a loss or a logit."),
    (lambda: heads.latent_absorbed(latent(), ones(2, T, 8), rope=rotary), ValueError, f"latents: x must have the axes [T, E], got x [2, 13, 8]. {MAPPED}"),
]  # fmt: skip


def measured(**options):
    return lambda: _attend.measure_heads(ones(T, 4, 6), ones(S, 2, 6), **({"rows": ()} | options))


def interface(attention_mask, query=None, **options):
    x = ones(2, 4, T, 6)
    options = {"query": x if query is None else query, "key": x, "value": x, **options}
    return lambda: transformers.attention_interface(None, attention_mask=attention_mask, **options)


def dropping(host, key=None):
    """Dropout without a key, or with one that is none, under the name that the host has for it."""

    def call():
        if host == "flax":
            from jattn.hosts.flax import attention_fn

            return attention_fn(*(ones(2, T, 4, 6),) * 3, dropout_rate=0.5, dropout_rng=key)
        from jattn.hosts.equinox import MultiheadAttention

        return MultiheadAttention(2, 4, dropout_p=0.5, key=jax.random.key(0))(*(ones(T, 4),) * 3, key=key)

    return call


def equinox_drops(share=0.5, **options):
    def call():
        from jattn.hosts.equinox import MultiheadAttention

        layer = MultiheadAttention(2, 4, dropout_p=share, key=jax.random.key(0))
        return layer(*(ones(T, 4),) * 3, key=jax.random.key(1), **options)

    return call


def of_equinox(query=(T, 4), key_=(S, 4), value=(S, 4), **options):
    def call():
        from jattn.hosts.equinox import MultiheadAttention

        return MultiheadAttention(2, 4, key=jax.random.key(0))(ones(*query), ones(*key_), ones(*value), **options)

    return call


def of_haiku(**options):
    def call():
        import haiku as hk

        from jattn.hosts.haiku import MultiHeadAttention

        draw = hk.initializers.VarianceScaling(1.0)
        layer = hk.transform(lambda x: MultiHeadAttention(2, 4, w_init=draw)(x, x, x, **options))
        return layer.init(jax.random.key(0), ones(T, 4))

    return call


def of_flax(**options):
    def call():
        from jattn.hosts.flax import attention_fn

        return attention_fn(
            **({"query": ones(2, T, 4, 6), "key": ones(2, T, 4, 6), "value": ones(2, T, 4, 6)} | options)
        )

    return call


def of_rngs():
    from flax import nnx

    of_flax(dropout_rate=0.5, dropout_rng=nnx.Rngs(0))()


def alike(**options):
    """Dropout that is one draw for all, over two examples."""
    shapes = {"query": (2, T, 4, 6), "key": (2, S, 2, 6), "value": (2, S, 2, 6), "bias": None, "mask": None} | options
    return lambda: _attend.attend_broadcast_dropout(**{name: x and ones(*x) for name, x in shapes.items()})


HOSTS = [
    (alike(query=(T, 6)), ValueError, "hosts: query must have the axes [*B, tokens, heads, width], got query [13, 6]. Give one head an axis: x[:, None]."),
    (alike(query=(2, 3, T, 4, 6), key=(3, 2, S, 2, 6), value=(3, 2, S, 2, 6)), ValueError, "hosts: the batch axes, those before the last three, must broadcast, got query [2, 3, 13, 4, 6] and key [3, 2, 17, 2, 6] and value [3, 2, 17, 2, 6]. Give each its full length or 1."),
    (alike(value=(2, S, 3, 6)), ValueError, "hosts: the query heads N must be a multiple of the value heads, got query [2, 13, 4, 6] and key [2, 17, 2, 6] and value [2, 17, 3, 6]. Each key/value head serves the same number of query heads."),
    (alike(mask=(2, 3, T, S)), ValueError, "hosts: mask must broadcast to [*B, N, T, S], got mask [2, 3, 13, 17]. Give each axis its full length or 1: [*B, N, T, S] is [2, 4, 13, 17] here."),
    (alike(bias=(3, 1, T, S)), ValueError, "hosts: bias must broadcast to [*B, N, T, S], got bias [3, 1, 13, 17]. Give each axis its full length or 1: [*B, N, T, S] is [2, 4, 13, 17] here."),
    (interface(ones(2, 1, T, T, dtype=np.int32)), TypeError, "attention_interface: attention_mask must be boolean or floating point, got attention_mask int32[2, 1, 13, 13]. Of ones where a pair is allowed make booleans: attention_mask != 0."),
    (interface(ones(2, T, dtype=bool)), ValueError, "attention_interface: attention_mask must broadcast to [B, N, T, S], got attention_mask [2, 13]. Of one entry a token make one a pair: x[:, None, None, :]."),
    (dropping("flax"), ValueError, "hosts: dropout_rng must be given where weights are dropped, got dropout_rng None. Pass a key of jax.random, dropout_rng=jax.random.key(0), or deterministic=True."),
    (dropping("equinox"), ValueError, "hosts: key must be given where weights are dropped, got key None. Pass a key of jax.random, key=jax.random.key(0), or inference=True."),
    (of_equinox(query=(2, T, 4)), ValueError, "hosts: query must have the axes [tokens, query_size], got query [2, 13, 4]. Map a batch of examples with jax.vmap."),
    (of_equinox(key_=(S, 3)), ValueError, "hosts: key_ must have key_size columns, got key_ [17, 3] and key_size 4. Make the layer with key_size=3, or project key_."),
    (of_equinox(value=(T, 4)), ValueError, "hosts: key_ and value must agree in their number of rows, got key_ [17, 4] and value [13, 4]. Each key needs its one value."),
    (of_equinox(process_heads=lambda q, k, v: (q, k)), TypeError, "hosts: process_heads must return query, key and value, got process_heads 2 of them. Return all three: (q, k, v)."),
    (of_equinox(process_heads=lambda q, k, v: None), TypeError, "hosts: process_heads must return query, key and value, got process_heads of type NoneType. Return all three: (q, k, v)."),
    (of_equinox(process_heads=lambda q, k, v: (q[:3], k, v)), ValueError, "hosts: process_heads must leave q [13, 2, 2], and v 2 wide, got q [3, 2, 2] and v [17, 2, 2]. Return heads of the same shapes."),
    (of_flax(dtype="float99"), TypeError, "hosts: dtype must be floating point, got dtype 'float99'. Pass one of jax.numpy, as in dtype=jax.numpy.float32."),
    (of_flax(dtype=np.int32), TypeError, "hosts: dtype must be floating point, got dtype int32. Pass one of jax.numpy, as in dtype=jax.numpy.float32."),
    (of_flax(precision="lowest"), ValueError, "hosts: precision must be known to JAX, got precision 'lowest'. Pass one of jax.lax.Precision, as in precision='highest'."),
    (of_flax(precision=("high", "high", "high")), ValueError, "hosts: precision must be known to JAX, got precision ('high', 'high', 'high'). Pass one of jax.lax.Precision, as in precision='highest'."),
    (of_flax(dropout_rate=-0.5), ValueError, "hosts: dropout_rate must be at least 0 and less than 1, got dropout_rate -0.5. Give the share of weights to drop; 0 drops none."),
    (of_flax(dropout_rate=-0.5, deterministic=True), ValueError, "hosts: dropout_rate must be at least 0 and less than 1, got dropout_rate -0.5. Give the share of weights to drop; 0 drops none."),
    (dropping("flax", 0), TypeError, "hosts: dropout_rng must be one key, got dropout_rng of type int. Pass a key of jax.random, dropout_rng=jax.random.key(0), or deterministic=True."),
    (of_rngs, TypeError, "hosts: dropout_rng must be one key, got dropout_rng of type Rngs. Pass a key of jax.random, dropout_rng=jax.random.key(0), or deterministic=True."),
    (of_flax(dropout_rate=0.5, dropout_rng=ones(2)), TypeError, "hosts: dropout_rng must be one key, got dropout_rng float32[2]. Pass a key of jax.random: dropout_rng=jax.random.key(0)."),
    (lambda: of_flax(dropout_rate=0.5, dropout_rng=jax.random.split(jax.random.key(0)))(), TypeError, "hosts: dropout_rng must be one key, got dropout_rng key<fry>[2]. Pass a key of jax.random: dropout_rng=jax.random.key(0)."),
    (of_flax(query=ones(2, 3, T, 4, 6), key=ones(2, 3, S, 2, 5), value=ones(2, 3, S, 2, 6)), ValueError, "hosts: query and key must agree in their width, got query [2, 3, 13, 4, 6] and key [2, 3, 17, 2, 5]. Project one of them to the width of the other."),
    (of_flax(query=ones(2, 3, T, 4, 6), key=ones(2, 3, S, 2, 6), value=ones(2, 3, T, 2, 6)), ValueError, "hosts: key and value must agree in their tokens and heads, got key [2, 3, 17, 2, 6] and value [2, 3, 13, 2, 6]. Each key needs its one value."),
    (alike(value=(2, S, 4, 6)), ValueError, "hosts: key and value must agree in their tokens and heads, got key [2, 17, 2, 6] and value [2, 17, 4, 6]. Each key needs its one value."),
    (of_flax(query=ones(2, 3, T, 4, 0), key=ones(2, 3, T, 4, 0), value=ones(2, 3, T, 4, 6)), ValueError, "hosts: the width of query and key must be at least 1, got query [2, 3, 13, 4, 0] and key [2, 3, 13, 4, 0]. Give q and k at least one column."),
    (of_flax(query=ones(2, 3, T, 4, 6) * 1j, key=ones(2, 3, T, 4, 6), value=ones(2, 3, T, 4, 6)), TypeError, "hosts: query must be floating point, got query complex64[2, 3, 13, 4, 6]. Take its real part: query.real."),
    (of_flax(bias=ones(T, T, dtype=np.int32)), TypeError, "hosts: bias must be floating point, got bias int32[13, 13]. To say which pairs are allowed, pass booleans as mask."),
    (of_flax(mask=masks.causal), TypeError, "hosts: mask must be a mask or an array, got mask of type function. Call it: mask=jattn.masks.causal(…)."),
    (of_flax(is_causal="no"), TypeError, "hosts: is_causal must be True or False, got is_causal of type str. Pass a bool, static in jax.jit."),
    (of_flax(deterministic="no", dropout_rate=0.5), TypeError, "hosts: deterministic must be True or False, got deterministic of type str. Pass a bool, static in jax.jit."),
    (of_flax(broadcast_dropout=None, dropout_rate=0.5, dropout_rng=jax.random.key(0)), TypeError, "hosts: broadcast_dropout must be True or False, got broadcast_dropout of type NoneType. Pass a bool, static in jax.jit."),
    (of_flax(dropout_rate=ones(2), dropout_rng=jax.random.key(0)), TypeError, "hosts: dropout_rate must be a real scalar, got dropout_rate float32[2]. Map over several with jax.vmap."),
    (of_flax(dropout_rate=1), ValueError, "hosts: dropout_rate must be at least 0 and less than 1, got dropout_rate 1. Give the share of weights to drop; 0 drops none."),
    (of_flax(statistics="yes"), TypeError, "hosts: statistics must be True or False, got statistics of type str. Pass a bool, static in jax.jit."),
    (of_equinox(mask=ones(S, dtype=bool)), ValueError, "hosts: mask must have the axes [T, S] or [N, T, S], got mask [17]. Of one entry a key make one a pair: mask[None]; map a batch of examples with jax.vmap."),
    (of_equinox(mask=ones(1, 2, T, S, dtype=bool)), ValueError, "hosts: mask must have the axes [T, S] or [N, T, S], got mask [1, 2, 13, 17]. Of one entry a key make one a pair: mask[None]; map a batch of examples with jax.vmap."),
    (of_equinox(process_heads=3), TypeError, "hosts: process_heads must be a function, got process_heads of type int. Write f(q, k, v) -> (q, k, v) of [tokens, heads, width]."),
    (of_equinox(process_heads=lambda q, k, v: (q, k[:3], v)), ValueError, "hosts: key and value must agree in their tokens and heads, got key [3, 2, 2] and value [17, 2, 2]. Each key needs its one value."),
    (equinox_drops(1), ValueError, "hosts: dropout_p must be at least 0 and less than 1, got dropout_p 1. Give the share of weights to drop; 0 drops none."),
    (equinox_drops(dropout_rate=0.1), ValueError, "hosts: dropout_rate must be left out where the layer drops by its dropout_p, and in inference, got dropout_rate of type float. Make the layer with dropout_p, and pass its key."),
    (equinox_drops(0, dropout_rate=0.1, inference=True), ValueError, "hosts: dropout_rate must be left out where the layer drops by its dropout_p, and in inference, got dropout_rate of type float. Make the layer with dropout_p, and pass its key."),
    (equinox_drops(inference="no"), TypeError, "hosts: inference must be True or False, got inference of type str. Pass a bool, static in jax.jit."),
    (of_flax(module=3), TypeError, "hosts: module must be one of flax, which has sow, got module of type int. Leave it out where nothing is to be kept."),
    (of_flax(rows=ones(2)), TypeError, "hosts: rows must be integer, got rows float32[2]. Rows are numbers of queries: pass whole numbers."),
    (dropping("equinox", 0), TypeError, "hosts: key must be one key, got key of type int. Pass a key of jax.random, key=jax.random.key(0), or inference=True."),
    (of_flax(qk_attn_weights_einsum=np.einsum), NotImplementedError, "hosts: qk_attn_weights_einsum must be None, got qk_attn_weights_einsum of type _ArrayFunctionDispatcher. Leave it out, or keep the attention of flax for this layer."),
    (interface(None, query=ones(4, T, 6)), ValueError, "attention_interface: query must have the axes [B, N, T, H], got query [4, 13, 6]. Heads stand before tokens, and one example is a batch of 1."),
    (interface(None, query="river"), TypeError, "attention_interface: query must be an array of numbers in one shape, got query of type str. Pass a jax or NumPy array."),
    (interface(None, sliding_window=2.5, is_causal=True), TypeError, "attention_interface: sliding_window must be a whole number, got sliding_window of type float. Pass a Python int of at least 1."),
    (interface(None, head_mask=ones(4)), NotImplementedError, "attention_interface: head_mask must be None, got head_mask of dtype float32. Multiply the heads of the output by it: out * head_mask[:, None]."),
    (interface(None, sliding_windw=3, is_causal=True), TypeError, "attention_interface: each argument must be known, got argument sliding_windw. It takes scaling, dropout, sliding_window, softcap, s_aux, position_bias, is_causal and dropout_key; leave out what changes nothing."),
    (interface(None, cu_seq_lens_q=ones(3)), NotImplementedError, "attention_interface: cu_seq_lens_q must come with an attention_mask that keeps the sequences apart, got attention_mask None. Pass that mask, or call jattn.ragged_attention with starts."),
    (interface(None, softcap=0.0), ValueError, "attention_interface: softcap must be more than 0 and finite, got softcap 0.0. Leave it out where nothing is capped."),
    (interface(ones(T, T), position_bias=ones(3, 3)), ValueError, "attention_interface: position_bias must broadcast to [B, N, T, S], got position_bias [3, 3]. Give each axis its full length or 1: [B, N, T, S] is [2, 4, 13, 13] here."),
    (interface(ones(2, 1, T, S, dtype=bool)), ValueError, "attention_interface: attention_mask must broadcast to [B, N, T, S], got attention_mask [2, 1, 13, 17]. Give each axis its full length or 1: [B, N, T, S] is [2, 4, 13, 13] here."),
    (interface(ones(2, 1, T, S)), ValueError, "attention_interface: attention_mask must broadcast to [B, N, T, S], got attention_mask [2, 1, 13, 17]. Give each axis its full length or 1: [B, N, T, S] is [2, 4, 13, 13] here."),
    (interface(None, position_bias=ones(3, T, T)), ValueError, "attention_interface: position_bias must broadcast to [B, N, T, S], got position_bias [3, 13, 13]. Give each axis its full length or 1: [B, N, T, S] is [2, 4, 13, 13] here."),
    (interface(None, position_bias=ones(T, T, dtype=bool)), TypeError, "attention_interface: position_bias must be floating point, got position_bias bool[13, 13]. To say which pairs are allowed, pass booleans as attention_mask."),
    (interface(None, scaling="river"), TypeError, "attention_interface: scaling must be an array of numbers in one shape, got scaling of type str. Pass a jax or NumPy array."),
    (interface(None, scaling=ones(4)), TypeError, "attention_interface: scaling must be a real scalar, got scaling float32[4]. Map over several with jax.vmap."),
    (interface(None, scaling=float("inf")), ValueError, "attention_interface: scaling must be finite, got scaling inf. Leave it out for 1/√H."),
    (interface(None, s_aux=ones(3)), ValueError, "attention_interface: s_aux must have the shape [] or [N], got s_aux [3]. Give one logit for all heads, or one a head: N is 4 here."),
    (interface(None, s_aux=ones(4, dtype=np.int32)), TypeError, "attention_interface: s_aux must be floating point, got s_aux int32[4]. Convert it first: s_aux.astype(jax.numpy.float32)."),
    (interface(None, dropout=-0.5), ValueError, "attention_interface: dropout must be at least 0 and less than 1, got dropout -0.5. Give the share of weights to drop; 0 drops none."),
    (interface(None, dropout=ones(2)), TypeError, "attention_interface: dropout must be a real scalar, got dropout float32[2]. Map over several with jax.vmap."),
    (interface(None, dropout=0.5), ValueError, "attention_interface: dropout_key must be given where dropout is not 0, got dropout_key None. Pass a key of jax.random: dropout_key=jax.random.key(0)."),
    (interface(None, dropout=0.5, dropout_key=3), TypeError, "attention_interface: dropout_key must be one key, got dropout_key int32[]. Pass a key of jax.random: dropout_key=jax.random.key(0)."),
    (interface(None, is_causal="no"), TypeError, "attention_interface: is_causal must be True or False, got is_causal of type str. Pass a bool, or None for that of the module."),
    (interface(None, softcap=ones(4)), TypeError, "attention_interface: softcap must be a real scalar, got softcap float32[4]. Pass one number for all heads."),
    (interface(None, query=ones(2, 4, T, 6, dtype=np.int32)), TypeError, "attention_interface: query must be floating point, got query int32[2, 4, 13, 6]. Convert it first: query.astype(jax.numpy.float32)."),
    (interface(None, query=ones(2, 6, T, 6)), ValueError, "attention_interface: the query heads N must be a multiple of the K key heads, got query [2, 6, 13, 6] and key [2, 4, 13, 6]. Each key/value head serves the same number of query heads."),
    (interface(None, query=ones(3, 4, T, 6)), ValueError, "attention_interface: query, key and value must agree in B, got query [3, 4, 13, 6] and key [2, 4, 13, 6] and value [2, 4, 13, 6]. Give each its full length or 1."),
    (interface(None, query=ones(2, 4, T, 5)), ValueError, "attention_interface: query and key must agree in H, got query [2, 4, 13, 5] and key [2, 4, 13, 6]. Project one of them to the width of the other."),
    (interface(None, value=ones(2, 4, S, 6)), ValueError, "attention_interface: key and value must agree in K and S, got key [2, 4, 13, 6] and value [2, 4, 17, 6]. Each key needs its one value."),
    (interface(None, key=ones(2, 4, T, 0), query=ones(2, 4, T, 0)), ValueError, "attention_interface: H must be at least 1, got query [2, 4, 13, 0] and key [2, 4, 13, 0]. Give q and k at least one column."),
    (lambda: _attend.attend_heads(*(ones(2, T, 2, 6),) * 3, mask=lambda t, s: t >= s), TypeError, "hosts: mask must be a mask or an array, got mask of type function. Make a mask of a function: jattn.masks.where(f)."),
    (interface(None, sliding_window=5), ValueError, "attention_interface: a sliding_window is causal, or in a mask, got sliding_window 5 and S 13. Pass is_causal=True, or the attention_mask."),
    (of_equinox(return_residual=True), TypeError, "hosts: each option of a layer must be known, got option return_residual. Pass measure=[]: the residual is lse of the statistics that are then returned."),
    (of_haiku(return_residual=True), TypeError, "hosts: each option of a layer must be known, got option return_residual. Pass measure=[]: the residual is lse of the statistics that are then returned."),
    (of_equinox(window=3), TypeError, "hosts: each option of a layer must be known, got option window. Beside mask, bias and measure there are is_causal, local_window_size, score, scale, sink, q_positions, k_positions, query_seq_lengths, key_value_seq_lengths, dropout_rate, dropout_key, tile, implementation."),
    (of_equinox(bias=ones(T, T)), ValueError, "hosts: bias must broadcast to [*B, N, T, S], got bias [13, 13]. Give each axis its full length or 1: [*B, N, T, S] is [2, 13, 17] here."),
    (of_haiku(bias=ones(T, T, dtype=bool)), TypeError, "hosts: bias must be floating point, got bias bool[13, 13]. To say which pairs are allowed, pass booleans as mask."),
    (of_equinox(measure=[T]), ValueError, "hosts: measure must be rows of query, got query [1, 13, 2, 2] and measure [1]. Count from 0 to 12, or from the end, -1 the last."),
    (measured(rows=[-T - 1]), ValueError, "hosts: rows must be rows of query, got query [1, 13, 4, 6] and rows [1]. Count from 0 to 12, or from the end, -1 the last."),
    (measured(sink=ones(T)), ValueError, "hosts: sink must have the shape [] or [N], got sink [13]. Give one logit for all heads, or one a head: N is 4 here."),
    (measured(key_value_seq_lengths=ones(2, dtype=np.int32)), ValueError, "hosts: key_value_seq_lengths must have the shape [B], got key_value_seq_lengths [2]. Give one whole number for each: [B] is [1] here."),
    (measured(local_window_size=(1, 2, 3)), ValueError, "hosts: local_window_size must be two numbers of tokens, got local_window_size of 3 numbers. Pass (left, right), or one number for both."),
    (measured(rows=ones(2)), TypeError, "hosts: rows must be integer, got rows float32[2]. Rows are numbers of queries: pass whole numbers."),
    (measured(rows=ones(2, 2, dtype=np.int32)), ValueError, "hosts: rows must have the axes [R], got rows [2, 2]. Pass a list of row numbers, as in rows=jax.numpy.array([2])."),
    (lambda: _attend.host("abacus"), ModuleNotFoundError, "hosts: abacus must be installed, got abacus not found. Run: pip install 'jattn[hosts]'."),
]  # fmt: skip
