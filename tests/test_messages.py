"""Every refusal, word for word: <function>: <what must hold>, got <name> <shape>. <what to do>"""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import ast
import dataclasses
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, Dv, S, T
from _messages_cache import CACHE
from _messages_flow import FLOW
from _messages_heads import HEADS, HOSTS, POSITIONS
from _messages_lab import LAB
from _messages_sharding import SHARDING

import jattn
from jattn import masks, scores

pytestmark = pytest.mark.structure


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def whole(*shape):
    return ones(*shape, dtype=np.int32)


Q, KEYS, V = ones(T, D), ones(S, D), ones(S, Dv)
B, N, K = 2, 4, 2
QUERY, KEY, VALUE = ones(B, T, N, D), ones(B, S, K, D), ones(B, S, K, Dv)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Remainders(masks.Mask):
    def pairs(self, q, k):
        return (q.positions - k.positions) % 4


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Stated(masks.Mask):
    """A class that answers one thing of all tiles."""

    state: Any

    def pairs(self, q, k):
        return q.positions >= k.positions

    def block_state(self, q, k):
        return self.state()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Flagged(masks.Mask):
    """A class that holds one array of entries a row, and says how many it holds."""

    flags: jax.Array
    axes: tuple[str, ...] = dataclasses.field(default=("q",), metadata={"static": True})

    def pairs(self, q, k):
        return self.flags

    def leaf_axes(self):
        return list(self.axes)


class Unknown(masks.Mask):
    """A class that is no pytree."""

    def pairs(self, q, k):
        return q.positions >= k.positions


class UnknownScore(scores.Score):
    """Likewise."""

    def __call__(self, score, t, s):
        return score


REGISTER = "Register the class: of a frozen dataclass that holds arrays with jax.tree_util.register_dataclass, of one that holds none with jax.tree_util.register_static."


def attend(**options):
    return lambda: jattn.attention(**({"q": Q, "k": KEYS, "v": V} | options))


def lowered(call):
    """A refusal where a program is lowered, for a CPU, without the note on tracebacks that JAX adds to it."""

    def alone():
        try:
            with jax.default_device(jax.devices("cpu")[0]):
                return call()
        except ValueError as refusal:
            refusal.__notes__ = []
            raise

    return alone


def many(**options):
    names = {"query": QUERY, "key": KEY, "value": VALUE}
    return lambda: jattn.dot_product_attention(**(names | options))


def ragged(**options):
    given = {"q": ones(T, N, D), "k": ones(S, K, D), "v": ones(S, K, Dv), "starts": whole(3), "k_starts": whole(3)}
    return lambda: jattn.ragged_attention(**(given | options))


def exported(shape):
    """Attention of arrays whose sizes are symbols of jax.export."""

    def call():
        as_ever = jax.config.jax_traceback_filtering
        jax.config.update("jax_traceback_filtering", "off")  # or JAX adds lines of its own to the message
        try:
            spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), np.float32)
            jax.export.export(jax.jit(lambda x: jattn.dot_product_attention(x, x, x)))(spec)
        finally:
            jax.config.update("jax_traceback_filtering", as_ever)

    return call


def rows_of(**given):
    return lambda: jattn.weights_of(**({"q": Q, "k": KEYS, "lse": ones(S)} | given))


def measure(**given):
    return lambda: jattn.statistics(**({"q": Q, "k": KEYS} | given))


def best(n, **given):
    return lambda: jattn.top_keys(**({"q": Q, "k": KEYS, "n": n} | given))


KEY_OF = np.array([0, 1], np.uint32)
ONE_HEAD = "This function is one head without a batch: map it with jax.vmap, or call dot_product_attention."
ALIGN = (
    "Give both: q_positions=jax.numpy.arange(T) + (S - T) aligns the last rows, as in decoding, "
    "q_positions=jax.numpy.arange(T) the first; with k_positions=jax.numpy.arange(S)."
)
IN_JAX = "Choose with jnp.where instead of if, and look arrays up in JAX: jnp.asarray(table)[t - s]."
SCORE = "Write f(score, q_position, k_position) -> score on scalars; the library maps it."
PREDICATE = "Write f(q_position, k_position) -> bool on integer scalars; the library maps it."
STARTS = "Give the start of each sequence and the end of the last; map over a batch with jax.vmap."
PAIR = "Pass the pair that attention(..., return_lse=True) returns."
CUDNN = (
    "cuDNN takes q, k and v in one dtype, bfloat16 or float16, not in float32"
    if jax.default_backend() == "gpu"
    else f"cuDNN runs on an NVIDIA GPU, and the platform is {jax.default_backend()}"
)
ELSE = "Leave it out, or change what stands in its way."
ONE_KEY = "Pass a key of jax.random: dropout_key=jax.random.key(0)."
TILE = "Pass (queries, keys), multiples of 16, as in tile=(256, 512)."
AXES = "For one head without a batch call attention; map over further axes with jax.vmap."


def without_notes(call):
    """What a call refuses, without the lines that JAX adds about its own frames."""

    def refused():
        try:
            call()
        except ValueError as refusal:
            refusal.__notes__ = []
            raise

    return refused


TABLE = [
    # attention
    (attend(q="river"), TypeError, "attention: q must be an array of numbers in one shape, got q of type str. Pass a jax or NumPy array."),
    (attend(k=[[1.0, 2.0], [3.0]]), TypeError, "attention: k must be an array of numbers in one shape, got k of type list. Pass a jax or NumPy array."),
    (attend(v=None), TypeError, "attention: v must be an array of numbers in one shape, got v of type NoneType. Pass a jax or NumPy array."),
    (attend(q=ones(2, T, D)), ValueError, f"attention: q must have the axes [T, D], got q [2, 13, 5]. {ONE_HEAD}"),
    (attend(k=ones(D)), ValueError, f"attention: k must have the axes [S, D], got k [5]. {ONE_HEAD}"),
    (attend(v=ones()), ValueError, f"attention: v must have the axes [S, Dv], got v []. {ONE_HEAD}"),
    (attend(q=whole(T, D)), TypeError, "attention: q must be floating point, got q int32[13, 5]. Convert it first: q.astype(jax.numpy.float32)."),
    (attend(v=ones(S, Dv, dtype=bool)), TypeError, "attention: v must be floating point, got v bool[17, 3]. Convert it first: v.astype(jax.numpy.float32)."),
    (attend(k=ones(S, D, dtype=np.complex64)), TypeError, "attention: k must be floating point, got k complex64[17, 5]. Take its real part: k.real."),
    (without_notes(lambda: jax.linear_transpose(lambda q: jattn.attention(q, KEYS, V), Q)(ones(T, Dv))), ValueError, "linear_transpose: attention must be linear in what it is transposed by, as it is in v alone, got operand 0 [13, 5]. Take the derivative at a point: jax.vjp."),
    (attend(k=ones(S, 4)), ValueError, "attention: q [T, D] and k [S, D] must agree in D, got q [13, 5] and k [17, 4]. Project one of them to the width of the other."),
    (attend(v=ones(16, Dv)), ValueError, "attention: k [S, D] and v [S, Dv] must agree in S, got k [17, 5] and v [16, 3]. Each key needs its one value: give k and v the same number of rows."),
    (attend(q=ones(T, 0), k=ones(S, 0)), ValueError, "attention: D must be at least 1, got q [13, 0] and k [17, 0]. Give q and k at least one column."),
    (attend(mask=ones(T, S)), TypeError, "attention: mask must be boolean, got mask float32[13, 17]. True allows a pair: of zeros and ones make mask != 0. An additive mask is a bias: pass it as bias."),
    (attend(mask=whole(T, S)), TypeError, "attention: mask must be boolean, got mask int32[13, 17]. True allows a pair: of zeros and ones make mask != 0. An additive mask is a bias: pass it as bias."),
    (attend(mask=lambda t, s: t >= s), TypeError, "attention: mask must be a mask or an array of booleans, got mask of type function. Make a mask of a function of two positions: mask=jattn.masks.where(f)."),
    (attend(mask=masks.full() & Unknown()), TypeError, f"attention: mask must be of classes that are pytrees, got mask of type Unknown. {REGISTER}"),
    (attend(score=scores.compose(scores.soft_cap(2.0), UnknownScore())), TypeError, f"attention: score must be of classes that are pytrees, got score of type UnknownScore. {REGISTER}"),
    (many(mask=Unknown()), TypeError, f"dot_product_attention: mask must be of classes that are pytrees, got mask of type Unknown. {REGISTER}"),
    (ragged(mask=Unknown()), TypeError, f"ragged_attention: mask must be of classes that are pytrees, got mask of type Unknown. {REGISTER}"),
    (lambda: pickle.dumps(masks.where(lambda t, s: t >= s)), TypeError, "where: a mask that is pickled must be of a function that can be imported, got function <lambda>. Define it by def outside of any function, or pickle what the mask is made of."),
    (attend(mask=ones(S, T, dtype=bool)), ValueError, "attention: mask must broadcast to [T, S], got mask [17, 13]. Give each axis its full length or 1: [T, S] is [13, 17] here."),
    (attend(mask=ones(1, T, S, dtype=bool)), ValueError, "attention: mask must broadcast to [T, S], got mask [1, 13, 17]. Give each axis its full length or 1: [T, S] is [13, 17] here."),
    (attend(mask=masks.dense(ones(S, T, dtype=bool))), ValueError, "attention: mask must broadcast to [T, S], got mask [17, 13]. Give each axis its full length or 1: [T, S] is [13, 17] here."),
    (attend(mask="causal"), TypeError, "attention: mask must be an array of numbers in one shape, got mask of type str. Pass a jax or NumPy array."),
    (attend(bias=ones(T, S, dtype=bool)), TypeError, "attention: bias must be floating point, got bias bool[13, 17]. To say which pairs are allowed, pass booleans as mask."),
    (attend(bias=ones(T, 4)), ValueError, "attention: bias must broadcast to [T, S], got bias [13, 4]. Give each axis its full length or 1: [T, S] is [13, 17] here."),
    (attend(sink=ones(S)), ValueError, "attention: sink must broadcast to [T], got sink [17]. Give each axis its full length or 1: [T] is [13] here."),
    (attend(sink=whole(T)), TypeError, "attention: sink must be floating point, got sink int32[13]. Convert it first: sink.astype(jax.numpy.float32)."),
    (attend(scale=ones(T)), TypeError, "attention: scale must be a real scalar, got scale float32[13]. Map over several with jax.vmap."),
    (attend(scale=True), TypeError, "attention: scale must be a real scalar, got scale bool[]. Pass it in floating point."),
    (attend(scale=jnp.int32(3)), TypeError, "attention: scale must be a real scalar, got scale int32[]. Pass it in floating point."),
    (attend(mask=masks.causal()), ValueError, f"attention: mask looks at positions, so both sides must have them where T ≠ S or one side has, got T 13 and S 17 and no q_positions and no k_positions. {ALIGN}"),
    (attend(mask=masks.causal(), score=lambda x, t, s: x * (t > 3).astype(x.dtype), q_positions=whole(T)), ValueError, f"attention: mask and score look at positions, so both sides must have them where T ≠ S or one side has, got T 13 and S 17 and no k_positions. {ALIGN}"),
    (attend(q_positions=ones(T)), TypeError, "attention: q_positions must be integer, got q_positions float32[13]. Positions count tokens: pass whole numbers."),
    (attend(q_positions=[2**31] * T), ValueError, "attention: q_positions must be numbers that int32 holds, got q_positions [13]. Count the tokens from one that is nearer."),
    (attend(q_positions=np.arange(T) + 2**31), ValueError, "attention: q_positions must be numbers that int32 holds, got q_positions [13]. Count the tokens from one that is nearer."),
    (attend(k_positions=whole(T)), ValueError, "attention: k_positions must have the shape [S], got k_positions [13]. Give one position to each row of k: S is 17 here."),
    (attend(score="cap"), TypeError, f"attention: score must be a function, got score of type str. {SCORE}"),
    (attend(score=scores.alibi), TypeError, "attention: score must take three scalars, got score of type function. Call it: score=jattn.scores.alibi(…)."),
    (attend(score=scores.compose), TypeError, "attention: score must take three scalars, got score of type function. Call it: score=jattn.scores.compose(…)."),
    (attend(score=scores.alibi_slopes), TypeError, f"attention: score must take three scalars, got score with the arguments {inspect.signature(scores.alibi_slopes)}. {SCORE}"),
    (attend(score=lambda x: x), TypeError, f"attention: score must take three scalars, got score with the arguments (x). {SCORE}"),
    (attend(score=lambda x, t, s: x + np.ones(30)[t - s]), TypeError, f"attention: score must be a function that JAX can trace, got score that asks for the value of a traced scalar (TracerArrayConversionError). {IN_JAX}"),
    (attend(score=lambda x, t, s: x if t > s else -x), TypeError, f"attention: score must be a function that JAX can trace, got score that asks for the value of a traced scalar (TracerBoolConversionError). {IN_JAX}"),
    (attend(score=lambda x, t, s: t), TypeError, "attention: score must return one real scalar, got score returning int32[]. Convert what it returns: .astype(score.dtype)."),
    (attend(score=lambda x, t, s: (x, x)), TypeError, f"attention: score must return one real scalar, got score returning float32[] and float32[]. {SCORE}"),
    (attend(score=lambda x, t, s: x + jnp.ones(3)), TypeError, f"attention: score must return one real scalar, got score returning float32[3]. {SCORE}"),
    (attend(score=lambda x, t, s: None), TypeError, f"attention: score must return one real scalar, got score returning nothing. {SCORE}"),
    (attend(dropout_rate=1.0), ValueError, "attention: dropout_rate must be at least 0 and less than 1, got dropout_rate 1.0. Give the share of weights to drop; 0 drops none."),
    (attend(dropout_rate=-0.1, dropout_key=KEY_OF), ValueError, "attention: dropout_rate must be at least 0 and less than 1, got dropout_rate -0.1. Give the share of weights to drop; 0 drops none."),
    (attend(dropout_rate=np.int64(3), dropout_key=KEY_OF), ValueError, "attention: dropout_rate must be at least 0 and less than 1, got dropout_rate 3. Give the share of weights to drop; 0 drops none."),
    (attend(dropout_rate=np.array(1.0, np.float32), dropout_key=KEY_OF), ValueError, "attention: dropout_rate must be at least 0 and less than 1, got dropout_rate 1.0. Give the share of weights to drop; 0 drops none."),
    (attend(dropout_rate=ones(T), dropout_key=KEY_OF), TypeError, "attention: dropout_rate must be a real scalar, got dropout_rate float32[13]. Map over several with jax.vmap."),
    (attend(dropout_rate=0.5), ValueError, f"attention: dropout_key must be given where dropout_rate is not 0, got dropout_key None. {ONE_KEY}"),
    (attend(dropout_rate=0.5, dropout_key=whole(2)), TypeError, f"attention: dropout_key must be one key, got dropout_key int32[2]. {ONE_KEY}"),
    (attend(dropout_rate=0.5, dropout_key=np.zeros(3, np.uint32)), TypeError, f"attention: dropout_key must be one key, got dropout_key uint32[3]. {ONE_KEY}"),
    (lambda: attend(dropout_rate=0.5, dropout_key=jax.random.split(jax.random.key(0)))(), TypeError, f"attention: dropout_key must be one key, got dropout_key key<fry>[2]. {ONE_KEY}"),
    (attend(dropout_rate=0.5, dropout_key="river"), TypeError, f"attention: dropout_key must be one key, got dropout_key of type str. {ONE_KEY}"),
    (attend(return_lse="no"), TypeError, "attention: return_lse must be True or False, got return_lse of type str. Pass a bool, static in jax.jit."),
    (ragged(return_lse="no"), TypeError, "ragged_attention: return_lse must be True or False, got return_lse of type str. Pass a bool, static in jax.jit."),
    (attend(tile=256), TypeError, f"attention: tile must be a pair of numbers of rows, got tile of type int. {TILE}"),
    (attend(tile=(16, 24)), ValueError, f"attention: tile must be multiples of 16, got tile (16, 24). {TILE}"),
    (attend(implementation="flash"), ValueError, "attention: implementation must be None, 'loops', 'kernel', 'interpret' or 'cudnn', got implementation 'flash'. Leave it out for a kernel where there is one, and loops elsewhere."),
    (attend(implementation=ones(3)), TypeError, "attention: implementation must be None, 'loops', 'kernel', 'interpret' or 'cudnn', got implementation of dtype float32. Leave it out for a kernel where there is one, and loops elsewhere."),
    (lowered(attend(implementation="kernel")), ValueError, "attention: implementation must be able to do this call (kernels are for the GPU and the TPU, and the platform is cpu), got implementation 'kernel'. Use implementation='loops'."),
    (lowered(ragged(implementation="kernel")), ValueError, "ragged_attention: implementation must be able to do this call (kernels are for the GPU and the TPU, and the platform is cpu), got implementation 'kernel'. Use implementation='loops'."),
    (lambda: jattn.implementations(ones(4, 3), ones(5, 3)), TypeError, "implementations: f must be a function, got f of type ndarray. Pass it and its arguments apart, as in implementations(jattn.attention, q, k, v)."),
    (lambda: jattn.implementations(jattn.attention, ones(4, 3), ones(5, 3), ones(5, 2), platform="cuda"), ValueError, "implementations: platform must be one of 'cpu', 'gpu', 'tpu', got platform 'cuda'. Leave it out for that of the default device."),
    (attend(tile=(0, 16)), ValueError, "attention: tile must be at least 1, got tile 0. Pass a Python int of at least 1."),
    (attend(tile=(16, 16.0)), TypeError, "attention: tile must be a whole number, got tile of type float. Pass a Python int of at least 1."),
    (lambda: jattn.explain(Q[0], KEYS, V), ValueError, f"explain: q must have the axes [T, D], got q [5]. {ONE_HEAD}"),
    *LAB,
    # weights_of
    (rows_of(), ValueError, "weights_of: lse must have the shape [T], got q [13, 5] and lse [17]. Pass what attention(..., return_lse=True) returned for this q."),
    (rows_of(lse=whole(T)), TypeError, "weights_of: lse must be floating point, got lse int32[13]. Convert it first: lse.astype(jax.numpy.float32)."),
    (rows_of(lse=ones(T), rows=ones(2)), TypeError, "weights_of: rows must be integer, got rows float32[2]. Rows are numbers of queries: pass whole numbers."),
    (rows_of(lse=ones(T), rows=2), ValueError, "weights_of: rows must have the axes [R], got rows []. Pass a list of row numbers, as in rows=jax.numpy.array([2])."),
    (rows_of(q=ones(0, 5), lse=ones(0), rows=whole(2)), ValueError, "weights_of: rows must be rows of q, got q [0, 5] and rows [2]. Pass no rows where q has none."),
    (rows_of(lse=ones(T), rows=np.array([2, T])), ValueError, "weights_of: rows must be rows of q, got q [13, 5] and rows [2]. Count from 0 to 12, or from the end, -1 the last."),
    (rows_of(lse=ones(T), rows=[-T - 1]), ValueError, "weights_of: rows must be rows of q, got q [13, 5] and rows [1]. Count from 0 to 12, or from the end, -1 the last."),
    (rows_of(k=ones(S, 4)), ValueError, "weights_of: q [T, D] and k [S, D] must agree in D, got q [13, 5] and k [17, 4]. Project one of them to the width of the other."),
    # chosen_blocks
    (lambda: masks.chosen_blocks(ones(4, 2), 8), TypeError, "chosen_blocks: indices must be integer, got indices float32[4, 2]. An index is the number of a block: pass whole numbers."),
    (lambda: masks.chosen_blocks(whole(4), 8), ValueError, "chosen_blocks: indices must have the axes [T / q_size, n], got indices [4]. Map over a batch or heads with jax.vmap."),
    (lambda: masks.chosen_blocks(whole(4, 2), 0), ValueError, "chosen_blocks: size must be at least 1, got size 0. Pass a Python int of at least 1."),
    (lambda: masks.chosen_blocks(whole(4, 2), 8, q_size=1.5), TypeError, "chosen_blocks: q_size must be a whole number, got q_size of type float. Pass a Python int of at least 1."),
    (attend(k=ones(T, D), v=ones(T, Dv), mask=masks.chosen_blocks(whole(4, 2), 8)), ValueError, "attention: indices must have the shape [T / q_size, n], got indices [4, 2]. One row for each 8 queries is 2 rows here; or say where the rows stand."),
    # statistics, top_keys
    (measure(k=ones(S, 4)), ValueError, "statistics: q [T, D] and k [S, D] must agree in D, got q [13, 5] and k [17, 4]. Project one of them to the width of the other."),
    (measure(groups=ones(S), num_groups=4), TypeError, "statistics: groups must be integer, got groups float32[17]. A group is a number: pass whole numbers."),
    (measure(groups=whole(T), num_groups=4), ValueError, "statistics: groups must have the shape [S], got groups [13]. Give each key the number of its group: S is 17 here."),
    (measure(groups=whole(S)), ValueError, "statistics: groups and num_groups must be given together, got num_groups None. The number of groups is part of a shape: pass it as a Python int, num_groups=4."),
    (measure(num_groups=4), ValueError, "statistics: groups and num_groups must be given together, got groups None. The number of groups is part of a shape: pass it as a Python int, num_groups=4."),
    (measure(groups=whole(S), num_groups=4.0), TypeError, "statistics: num_groups must be a whole number, got num_groups of type float. Pass a Python int of at least 0."),
    (measure(sink=ones(S)), ValueError, "statistics: sink must broadcast to [T], got sink [17]. Give each axis its full length or 1: [T] is [13] here."),
    (best(0), ValueError, "top_keys: n must be at least 1, got n 0. Pass a Python int of at least 1."),
    (best(2.0), TypeError, "top_keys: n must be a whole number, got n of type float. Pass a Python int of at least 1."),
    (best(2, q=Q[0]), ValueError, f"top_keys: q must have the axes [T, D], got q [5]. {ONE_HEAD}"),
    (best(2, tile=(16, 24)), ValueError, f"top_keys: tile must be multiples of 16, got tile (16, 24). {TILE}"),
    # dot_product_attention
    (many(implementation="flash"), ValueError, "dot_product_attention: implementation must be None, 'loops', 'kernel', 'interpret', 'cudnn' or 'xla', got implementation 'flash'. Leave it out for a kernel where there is one, and loops elsewhere."),
    (many(implementation=ones(3)), TypeError, "dot_product_attention: implementation must be None, 'loops', 'kernel', 'interpret', 'cudnn' or 'xla', got implementation of dtype float32. Leave it out for a kernel where there is one, and loops elsewhere."),
    (many(implementation="xla", value=KEY, dropout_rate=0.5), ValueError, f"dot_product_attention: implementation must be able to do this call (jax.nn has no dropout_rate), got implementation 'xla'. {ELSE}"),
    (many(implementation="xla", value=KEY, bias=ones(3, T, S)), ValueError, "dot_product_attention: bias must broadcast to [B, N, T, S], got bias [3, 13, 17]. Give each axis its full length or 1: [B, N, T, S] is [2, 4, 13, 17] here."),
    (many(implementation="xla", value=KEY, key_value_seq_lengths=ones(B)), TypeError, "dot_product_attention: key_value_seq_lengths must be integer, got key_value_seq_lengths float32[2]. It counts rows: pass whole numbers."),
    (many(implementation="xla", value=KEY, local_window_size=-1), ValueError, "dot_product_attention: local_window_size must be at least 0, got local_window_size -1. Pass a Python int of at least 0."),
    (many(implementation="xla"), ValueError, f"dot_product_attention: implementation must be able to do this call (jax.nn wants value as wide as key), got implementation 'xla'. {ELSE}"),
    (lowered(many(implementation="cudnn")), ValueError, f"dot_product_attention: implementation must be able to do this call ({CUDNN}), got implementation 'cudnn'. Use implementation='loops'."),
    (many(implementation="xla", value=KEY.astype(np.float16)), ValueError, f"dot_product_attention: implementation must be able to do this call (jax.nn wants query, key and value in one dtype), got implementation 'xla'. {ELSE}"),
    (many(implementation="xla", sink=ones(N), tile=(16, 16)), ValueError, f"dot_product_attention: implementation must be able to do this call (jax.nn has no sink and no tile), got implementation 'xla'. {ELSE}"),
    (many(implementation="xla", mask=masks.lengths(k=3)), ValueError, f"dot_product_attention: implementation must be able to do this call (jax.nn takes booleans for a mask; masks.to_dense makes them), got implementation 'xla'. {ELSE}"),
    (many(query=ones(T, D)), ValueError, f"dot_product_attention: query must have the axes [B, T, N, H], or these without B, got query [13, 5]. {AXES}"),
    (many(value=ones(1, B, S, K, Dv)), ValueError, f"dot_product_attention: value must have the axes [B, S, K, Hv], or these without B, got value [1, 2, 17, 2, 3]. {AXES}"),
    (many(key=ones(B, S, 0, D), value=ones(B, S, 0, Dv)), ValueError, "dot_product_attention: the query heads N must be a multiple of the K key heads, got query [2, 13, 4, 5] and key [2, 17, 0, 5]. Give keys and values at least one head."),
    (many(query=QUERY[0]), ValueError, "dot_product_attention: query, key and value must agree in their axes, got query [13, 4, 5] and key [2, 17, 2, 5] and value [2, 17, 2, 3]. Give all three the axis B or none of them."),
    (many(key=whole(B, S, K, D)), TypeError, "dot_product_attention: key must be floating point, got key int32[2, 17, 2, 5]. Convert it first: key.astype(jax.numpy.float32)."),
    (many(value=ones(B, S, 1, Dv)), ValueError, "dot_product_attention: key and value must agree in B, S and K, got key [2, 17, 2, 5] and value [2, 17, 1, 3]. Each key needs its one value."),
    (many(query=ones(3, T, N, D)), ValueError, "dot_product_attention: query and key must agree in B, got query [3, 13, 4, 5] and key [2, 17, 2, 5]. Repeat neither: give both the same batch, or map the smaller with jax.vmap."),
    (many(query=ones(B, T, N, 7)), ValueError, "dot_product_attention: query and key must agree in H, got query [2, 13, 4, 7] and key [2, 17, 2, 5]. Project one of them to the width of the other."),
    (many(query=ones(B, T, 3, D)), ValueError, "dot_product_attention: the query heads N must be a multiple of the K key heads, got query [2, 13, 3, 5] and key [2, 17, 2, 5]. Each key/value head serves the same number of query heads."),
    (many(mask=ones(S, T, dtype=bool)), ValueError, "dot_product_attention: mask must broadcast to [B, N, T, S], got mask [17, 13]. Give each axis its full length or 1: [B, N, T, S] is [2, 4, 13, 17] here."),
    (attend(mask=masks.causal), TypeError, "attention: mask must be a mask or an array of booleans, got mask of type function. Call it: mask=jattn.masks.causal(…)."),
    (attend(mask=masks.picture), TypeError, "attention: mask must be a mask or an array of booleans, got mask of type function. Make a mask of a function of two positions: mask=jattn.masks.where(f)."),
    (many(mask=lambda t, s: t >= s), TypeError, "dot_product_attention: mask must be a mask or an array of booleans, got mask of type function. Make a mask of a function of two positions: mask=jattn.masks.where(f)."),
    (many(mask=ones(B, N, T, S)), TypeError, "dot_product_attention: mask must be boolean, got mask float32[2, 4, 13, 17]. True allows a pair: of zeros and ones make mask != 0. An additive mask is a bias: pass it as bias."),
    (many(mask=masks.dense(ones(S, T, dtype=bool))), ValueError, "dot_product_attention: mask must broadcast to [T, S], got mask [17, 13]. Give each axis its full length or 1: [T, S] is [13, 17] here."),
    (many(mask=masks.causal()), ValueError, f"dot_product_attention: mask looks at positions, so both sides must have them where T ≠ S or one side has, got T 13 and S 17 and no q_positions and no k_positions. {ALIGN}"),
    (many(is_causal="no"), TypeError, "dot_product_attention: is_causal must be True or False, got is_causal of type str. Pass a bool, static in jax.jit."),
    (many(is_causal=None), TypeError, "dot_product_attention: is_causal must be True or False, got is_causal of type NoneType. Pass a bool, static in jax.jit."),
    (lambda: jax.jit(lambda flag: many(is_causal=flag)())(True), TypeError, "dot_product_attention: is_causal must be True or False, got is_causal traced. Pass a bool, static in jax.jit."),
    (many(return_residual="no"), TypeError, "dot_product_attention: return_residual must be True or False, got return_residual of type str. Pass a bool, static in jax.jit."),
    (many(is_causal=True, q_positions=whole(T)), ValueError, f"dot_product_attention: is_causal or local_window_size looks at positions, so both sides must have them where T ≠ S or one side has, got T 13 and S 17 and no k_positions. {ALIGN}"),
    (many(bias=ones(B, 3, T, S)), ValueError, "dot_product_attention: bias must broadcast to [B, N, T, S], got bias [2, 3, 13, 17]. Give each axis its full length or 1: [B, N, T, S] is [2, 4, 13, 17] here."),
    (many(sink=ones(T)), ValueError, "dot_product_attention: sink must have the shape [] or [N], got sink [13]. Give one logit for all heads, or one a head: N is 4 here."),
    (many(sink=whole(N)), TypeError, "dot_product_attention: sink must be floating point, got sink int32[4]. Convert it first: sink.astype(jax.numpy.float32)."),
    (many(scale="big"), TypeError, "dot_product_attention: scale must be an array of numbers in one shape, got scale of type str. Pass a jax or NumPy array."),
    (many(scale=ones(N)), TypeError, "dot_product_attention: scale must be a real scalar, got scale float32[4]. Map over several with jax.vmap."),
    (many(key_value_seq_lengths=whole(N)), ValueError, "dot_product_attention: key_value_seq_lengths must have the shape [B], got key_value_seq_lengths [4]. Give one whole number for each: [B] is [2] here."),
    (many(query_seq_lengths=ones(B)), TypeError, "dot_product_attention: query_seq_lengths must be integer, got query_seq_lengths float32[2]. It counts rows: pass whole numbers."),
    (many(q_positions=np.arange(T) + 2**31, k_positions=whole(S)), ValueError, "dot_product_attention: q_positions must be numbers that int32 holds, got q_positions [13]. Count the tokens from one that is nearer."),
    (many(key_value_seq_lengths=[2**32, 2**32]), ValueError, "dot_product_attention: key_value_seq_lengths must be numbers that int32 holds, got key_value_seq_lengths [2]. Count the tokens from one that is nearer."),
    (many(q_positions=whole(S), k_positions=whole(S)), ValueError, "dot_product_attention: q_positions must have the shape [B, T], got q_positions [17]. Give one whole number for each: [B, T] is [2, 13] here."),
    (many(local_window_size=(1, 2, 3)), ValueError, "dot_product_attention: local_window_size must be two numbers of tokens, got local_window_size of 3 numbers. Pass (left, right), or one number for both."),
    (many(local_window_size=-1), ValueError, "dot_product_attention: local_window_size must be at least 0, got local_window_size -1. Pass a Python int of at least 0."),
    (many(local_window_size=1.5), TypeError, "dot_product_attention: local_window_size must be a whole number, got local_window_size of type float. Pass a Python int of at least 0."),
    # cache
    *CACHE,
    # merge
    (lambda: jattn.merge(V, (V, V[:, 0])), TypeError, f"merge: a must be a pair (out, lse), got a of type ndarray. {PAIR}"),
    (lambda: jattn.merge((V, V[:, 0]), (V,)), TypeError, f"merge: b must be a pair (out, lse), got b of type tuple. {PAIR}"),
    (lambda: jattn.merge((V, V[:, 0]), (V, V)), ValueError, f"merge: lse_b must have the axes of out_b without the last, got out_b [17, 3] and lse_b [17, 3]. {PAIR}"),
    (lambda: jattn.merge((V, V[:, 0]), (V[1:], V[1:, 0])), ValueError, "merge: the two partials must have one shape, got out_a [17, 3] and out_b [16, 3]. Merge partials of the same queries: broadcast a shared one first."),
    (lambda: jattn.merge((V, whole(S)), (V, V[:, 0])), TypeError, "merge: lse_a must be floating point, got lse_a int32[17]. Convert it first: lse_a.astype(jax.numpy.float32)."),
    *POSITIONS,
    *HEADS,
    *HOSTS,
    # softmax
    (lambda: jattn.softmax(whole(3)), TypeError, "softmax: x must be floating point, got x int32[3]. Convert it first: x.astype(jax.numpy.float32)."),
    (lambda: jattn.log_softmax(ones(3, 2), axis=2), ValueError, "log_softmax: x must have the axis 2, got x [3, 2]. Choose an axis from -2 to 1."),
    (lambda: jattn.softmax(ones(3, 2), axis=(0, 1)), TypeError, "softmax: axis must be a whole number, got axis of type tuple. Join several axes first: x.reshape(…)."),
    (lambda: jattn.softmax(ones()), ValueError, "softmax: x must have the axis -1, got x []. Give x at least one axis."),
    # masks
    (lambda: bool(masks.causal()), TypeError, "mask: a mask has no truth value, got causal(). Combine masks with & | ~ (not with and, or, not), and compare with `mask is None`."),
    (lambda: masks.causal() & ones(T, S, dtype=bool), TypeError, "mask: both sides of & must be masks, got other of type ndarray. Wrap a boolean array first: masks.dense(array)."),
    (lambda: ones(T, S, dtype=bool) & masks.causal(), TypeError, "mask: both sides of & must be masks, got other of type ndarray. Wrap a boolean array first: masks.dense(array)."),
    (lambda: ones(T, S, dtype=bool) | masks.causal(), TypeError, "mask: both sides of | must be masks, got other of type ndarray. Wrap a boolean array first: masks.dense(array)."),
    (lambda: masks.causal() & masks.window, TypeError, "mask: both sides of & must be masks, got other of type function. Call it: jattn.masks.window(…)."),
    (lambda: masks.causal() & (lambda t, s: t > s), TypeError, "mask: both sides of & must be masks, got other of type function. Wrap a function first: masks.where(f)."),
    (lambda: masks.to_dense(~Remainders(), T, S), TypeError, "mask: pairs of Remainders must return booleans that broadcast to a tile, got pairs returning int32[13, 17]. Compare numbers, as in q.positions >= k.positions; the tile is [13, 17] here."),
    (attend(mask=~Flagged(ones(S))), ValueError, f"attention: flags of Flagged must have the shape [T], got flags [{S}]. Give each axis its full length or 1: [T] is [{T}] here."),
    (lambda: masks.to_dense(Flagged(ones(T), ("qk",)), T, S), ValueError, f"to_dense: flags of Flagged must have the shape [T, S], got flags [{T}]. Give each axis its full length or 1: [T, S] is [{T}, {S}] here."),
    (attend(mask=Flagged(ones(T), ("q", "k"))), ValueError, 'attention: leaf_axes of Flagged must name axes for each of its arrays, got leaf_axes of 2 for 1. Return "q", "k", "qk" or "" for each, in the order of jax.tree.leaves.'),
    (attend(mask=Flagged(ones(T), ("t",))), ValueError, """attention: leaf_axes of Flagged must be made of "q" and "k", got leaf_axes ['t']. Return "" for an array without an entry a row."""),
    (attend(mask=~Stated(lambda: "full"), tile=(16, 16)), TypeError, "mask: block_state of Stated must return block states that broadcast to the tiles, got block_state returning str. Return masks.block_state(some, every), or masks.PARTIAL; there are [1, 2] tiles here."),
    (attend(mask=~Stated(lambda: True), tile=(16, 16)), TypeError, "mask: block_state of Stated must return block states that broadcast to the tiles, got block_state returning bool. Return masks.block_state(some, every), or masks.PARTIAL; there are [1, 2] tiles here."),
    (attend(mask=~Stated(lambda: (True, False)), tile=(16, 16)), TypeError, "mask: block_state of Stated must return block states that broadcast to the tiles, got block_state returning tuple. Return masks.block_state(some, every), or masks.PARTIAL; there are [1, 2] tiles here."),
    (attend(mask=~Stated(lambda: ones(2, 1)), tile=(16, 16)), TypeError, "mask: block_state of Stated must return block states that broadcast to the tiles, got block_state returning float32[2, 1]. Return masks.block_state(some, every), or masks.PARTIAL; there are [1, 2] tiles here."),
    (attend(mask=~Stated(lambda: whole(3)), tile=(16, 16)), TypeError, "mask: block_state of Stated must return block states that broadcast to the tiles, got block_state returning int32[3]. Return masks.block_state(some, every), or masks.PARTIAL; there are [1, 2] tiles here."),
    (attend(mask=~Stated(lambda: 3), tile=(16, 16)), TypeError, "mask: block_state of Stated must return block states that broadcast to the tiles, got block_state returning int with [3]. Return masks.block_state(some, every), or masks.PARTIAL; there are [1, 2] tiles here."),
    (attend(mask=~Stated(lambda: -whole(1, 2)), tile=(16, 16)), TypeError, "mask: block_state of Stated must return block states that broadcast to the tiles, got block_state returning int32[1, 2] with [-1]. Return masks.block_state(some, every), or masks.PARTIAL; there are [1, 2] tiles here."),
    (attend(mask=~Stated(lambda: jnp.ones((2, 1), bool)), tile=(16, 16)), TypeError, "mask: block_state of Stated must return block states that broadcast to the tiles, got block_state returning bool[2, 1]. Return masks.block_state(some, every), or masks.PARTIAL; there are [1, 2] tiles here."),
    (lambda: masks.to_dense(masks.Mask(), T, S), TypeError, "mask: a class of masks must define pairs(self, q, k), got mask of type Mask. Return the booleans of one tile, as in q.positions >= k.positions."),
    (lambda: scores.Score()(1.0, 0, 0), TypeError, "score: a class of scores must define __call__(self, score, t, s), got score of type Score. Return the new score, of one number and two positions or of a tile of them."),
    (lambda: masks.causal() | None, TypeError, "mask: both sides of | must be masks, got other of type NoneType. Wrap a boolean array first: masks.dense(array)."),
    (lambda: masks.window(), ValueError, "window: left or right must be given, got left None and right None. Give a number of tokens to at least one side: window(left=3, right=0)."),
    (lambda: masks.window(left=-1), ValueError, "window: left must be at least 0, got left -1. Pass a Python int of at least 0."),
    (lambda: masks.window(right=1.0), TypeError, "window: right must be a whole number, got right of type float. Pass a Python int of at least 0."),
    (lambda: masks.window(right=True), TypeError, "window: right must be a whole number, got right of type bool. Pass a Python int of at least 0."),
    (lambda: masks.lengths(), ValueError, "lengths: q or k must be given, got q None and k None. Say how many rows are filled: lengths(k=5)."),
    (lambda: masks.lengths(k=whole(3)), ValueError, "lengths: k must be a scalar, got k [3]. Pass one; map over a batch of them with jax.vmap."),
    (lambda: masks.lengths(q=2.0), TypeError, "lengths: q must be integer, got q float32[]. It counts rows: pass a whole number."),
    (lambda: masks.dense(ones(T, S)), TypeError, "dense: array must be boolean, got array float32[13, 17]. True allows a pair: of zeros and ones make array != 0. An additive mask is a bias: attention(bias=...)."),
    (lambda: masks.dense(ones(S, dtype=bool)), ValueError, "dense: array must have the axes [T, S], got array [17]. Map over a batch or heads with jax.vmap."),
    (lambda: masks.to_dense(masks.causal, T, S), TypeError, "to_dense: mask must be a mask, got mask of type function. Call it: jattn.masks.causal(…)."),
    (lambda: masks.to_dense(ones(T, S, dtype=bool), T, S), TypeError, "to_dense: mask must be a mask, got mask of type ndarray. Make one with jattn.masks, or wrap a boolean array: masks.dense(array)."),
    (lambda: masks.picture(3, T), TypeError, "picture: mask must be a mask, got mask of type int. Make one with jattn.masks, or wrap a boolean array: masks.dense(array)."),
    (lambda: masks.to_dense(masks.causal(), -1, S), ValueError, "to_dense: T must be at least 0, got T -1. Pass a Python int of at least 0."),
    (lambda: masks.to_dense(~masks.dense(ones(2, 3, dtype=bool)), T, S), ValueError, "to_dense: mask must broadcast to [T, S], got mask [2, 3]. Give each axis its full length or 1: [T, S] is [13, 17] here."),
    (lambda: masks.to_dense(masks.causal(), T, S), ValueError, f"to_dense: mask looks at positions, so both sides must have them where T ≠ S or one side has, got T 13 and S 17 and no q_positions and no k_positions. {ALIGN}"),
    (lambda: jattn.reference.attention(Q, KEYS, V, mask=masks.causal()), TypeError, "reference: mask must be booleans, got mask of type Causal. Write a mask out: masks.to_dense(mask, T, S)."),
    (lambda: jattn.reference.attention(Q, KEYS, V, mask=ones(T, S)), TypeError, "reference: mask must be boolean, got mask float32[13, 17]. True allows a pair: of zeros and ones make mask != 0. An additive mask is a bias."),
    (lambda: jattn.reference.steps(Q, ones(S, 2), V), ValueError, "reference: q [T, D] and k [S, D] must agree in D, got q [13, 5] and k [17, 2]. Project one of them to the width of the other."),
    (lambda: jattn.reference.steps(ones(T, 0), ones(S, 0), V), ValueError, "reference: D must be at least 1, got q [13, 0] and k [17, 0]. Give q and k at least one column."),
    (lambda: jattn.reference.steps(Q, KEYS, whole(S, 3)), TypeError, "reference: v must be floating point, got v int32[17, 3]. Convert it first: v.astype(jax.numpy.float32)."),
    (lambda: jattn.reference.steps(ones(B, T, D), KEYS, V), ValueError, "reference: q must have the axes [T, D], got q [2, 13, 5]. No batch: map with jax.vmap."),
    (lambda: jattn.reference.statistics(Q, ones(B, S, D)), ValueError, "reference: k must have the axes [S, D], got k [2, 17, 5]. No batch: map with jax.vmap."),
    # masks and scores as values
    (lambda: masks.where(3), TypeError, f"where: predicate must be a function, got predicate of type int. {PREDICATE}"),
    (lambda: masks.where(lambda t: t > 1), TypeError, f"where: predicate must take two scalars, got predicate with the arguments (t). {PREDICATE}"),
    (lambda: masks.where(lambda t, s: jnp.sin(t.astype(jnp.float32))), TypeError, f"where: predicate must return one boolean, got predicate returning float32[]. {PREDICATE}"),
    (lambda: masks.where(lambda t, s: range(9)[t] > s), TypeError, f"where: predicate must be a function that JAX can trace, got predicate that asks for the value of a traced scalar (TracerIntegerConversionError). {IN_JAX}"),
    (lambda: masks.where(lambda t, s: jnp.ones(3, bool)), TypeError, f"where: predicate must return one boolean, got predicate returning bool[3]. {PREDICATE}"),
    (lambda: masks.where(lambda t, s: None), TypeError, f"where: predicate must return one boolean, got predicate returning nothing. {PREDICATE}"),
    (lambda: masks.where(lambda t, s: t > s, state=lambda a, b, c, d: a > b), TypeError, "where: state must return one block state, got state returning bool[]. Write f(q_lowest, q_highest, k_lowest, k_highest) -> block_state(some, every) on integer scalars; the library maps it."),
    (lambda: masks.prefix(2.0), TypeError, "prefix: n must be integer, got n float32[]. It counts tokens: pass a whole number."),
    (lambda: masks.prefix(-1), ValueError, "prefix: n must be at least 0, got n -1. Give a number of tokens."),
    (lambda: masks.sinks(np.int64(-3)), ValueError, "sinks: n must be at least 0, got n -3. Give a number of tokens."),
    (lambda: masks.prefix(whole(2)), ValueError, "prefix: n must be a scalar, got n [2]. Pass one; map over a batch of them with jax.vmap."),
    (lambda: masks.chunked(0), ValueError, "chunked: size must be at least 1, got size 0. Pass a Python int of at least 1."),
    (lambda: masks.dilated(-1), ValueError, "dilated: stride must be at least 1, got stride -1. Pass a Python int of at least 1."),
    (attend(scale=float("nan")), ValueError, "attention: scale must be finite, got scale nan. Leave it out for 1/√D."),
    (attend(scale=np.array(np.inf)), ValueError, "attention: scale must be finite, got scale inf. Leave it out for 1/√D."),
    (many(scale=-np.inf), ValueError, "dot_product_attention: scale must be finite, got scale -inf. Leave it out for 1/√H."),
    (many(query=ones(B, T, N, 0), key=ones(B, S, K, 0)), ValueError, "dot_product_attention: H must be at least 1, got query [2, 13, 4, 0] and key [2, 17, 2, 0]. Give q and k at least one column."),
    (exported("2, 3, 2, d"), ValueError, "dot_product_attention: H must be a number, got query [2, 3, 2, d] and key [2, 3, 2, d]. Export symbolic batches, heads and lengths."),
    (lambda: masks.blocks(ones(2, 2), 8), TypeError, "blocks: table must be boolean, got table float32[2, 2]. True allows a block."),
    (lambda: masks.blocks(ones(4, dtype=bool), 8), ValueError, "blocks: table must have the axes [T / size, S / size], got table [4]. Map over a batch or heads with jax.vmap."),
    (lambda: masks.blocks(ones(0, 2, dtype=bool), 8), ValueError, "blocks: table must have an entry, got table [0, 2]. For nothing to be allowed pass masks.empty()."),
    (lambda: masks.blocks(ones(2, 2, dtype=bool), 1.5), TypeError, "blocks: size must be a whole number, got size of type float. Pass a Python int of at least 1."),
    (attend(q=KEYS, mask=masks.blocks(ones(2, 2, dtype=bool), 8)), ValueError, "attention: table must have the shape [T / size, S / size], got table [2, 2]. One entry for each block of 8 tokens is [3, 3] here; or say where the rows stand."),
    (lambda: masks.segments(ones(3)), TypeError, "segments: q_ids must be integer, got q_ids float32[3]. An id is the number of a segment: pass whole numbers."),
    (lambda: masks.segments([0, 2**32]), ValueError, "segments: q_ids must be numbers that int32 holds, got q_ids [2]. Number the segments from 0, or enable 64 bits in JAX (jax_enable_x64)."),
    (lambda: masks.segments(whole(3), whole(2, 3)), ValueError, "segments: k_ids must have the axes [S], got k_ids [2, 3]. Map over a batch with jax.vmap."),
    (attend(mask=masks.segments(whole(T))), ValueError, "attention: k_ids must be given where T ≠ S, got T 13 and S 17. Say which segment each key is in: segments(q_ids, k_ids)."),
    (attend(mask=masks.segments(whole(T), whole(T)) & masks.full()), ValueError, "attention: k_ids must have the shape [S], got k_ids [13]. Give each row the number of its segment: S is 17 here."),
    (many(mask=masks.segments(whole(S), whole(S))), ValueError, "dot_product_attention: q_ids must have the shape [T], got q_ids [17]. Give each row the number of its segment: T is 13 here."),
    (lambda: masks.sinks(2.0), TypeError, "sinks: n must be integer, got n float32[]. It counts tokens: pass a whole number."),
    (lambda: masks.strided(0), ValueError, "strided: stride must be at least 1, got stride 0. Pass a Python int of at least 1."),
    (lambda: masks.strided(4, local=-1), ValueError, "strided: local must be at least 0, got local -1. Pass a Python int of at least 0."),
    (lambda: masks.ragged(ones(3)), TypeError, "ragged: starts must be integer, got starts float32[3]. Starts count rows: pass whole numbers."),
    (lambda: masks.ragged(whole(3), whole(2, 3)), ValueError, f"ragged: k_starts must have the axes [N + 1], got k_starts [2, 3]. {STARTS}"),
    (lambda: masks.ragged(whole(0)), ValueError, f"ragged: starts must have at least one entry, got starts [0]. {STARTS}"),
    (lambda: masks.ragged(whole(3), whole(4)), ValueError, "ragged: starts and k_starts must be equally many, got starts [3] and k_starts [4]. Each sequence has its queries and its keys: an empty one starts where the next does."),
    (lambda: masks.tree(ones(3)), TypeError, "tree: parents must be integer, got parents float32[3]. A parent is the number of a token: pass whole numbers, −1 for none."),
    (lowered(lambda: jax.eval_shape(masks.tree, jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), np.int32))), ValueError, "tree: T must be a number, got parents [n]. Export trees of one size; a batch may be symbolic."),
    (lambda: masks.tree(whole(2, 3)), ValueError, "tree: parents must have the axes [T], got parents [2, 3]. Map over a batch with jax.vmap."),
    (lambda: masks.tree(whole(3), prefix=jnp.int32(2)), ValueError, "tree: keys must be given where prefix is an array, got keys None. Give the number of rows of k: tree(parents, prefix=n, keys=k.shape[0])."),
    (lambda: masks.tree(whole(3), prefix=2, keys=4), ValueError, "tree: keys must be at least prefix + T, got keys 4 and parents [3]. Every token has its key: give at least 5, or leave keys out."),
    (attend(mask=masks.tree(whole(S))), ValueError, "attention: parents must have the shape [T], got parents [17]. Give each query its parent: T is 13 here."),
    (attend(mask=masks.tree(whole(T))), ValueError, "attention: prefix + T, or keys, must be S, got keys 13 and S 17. Say how many keys come before those of the tree, and how many in all: tree(…, prefix=n, keys=17)."),
    (lambda: masks.neighbourhood((2, 3, 4, 5), 1), ValueError, "neighbourhood: shape must have one to three axes, got shape (2, 3, 4, 5). Give the tokens along each axis, as in (height, width)."),
    (lambda: masks.neighbourhood((4, 5), (1, 1, 1)), ValueError, "neighbourhood: radius must have one entry an axis, got radius (1, 1, 1). Give one number for all axes, or one for each."),
    (lambda: masks.neighbourhood((4, 5), 1, dilation=0), ValueError, "neighbourhood: dilation must be at least 1, got dilation 0. Pass a Python int of at least 1."),
    (lambda: masks.neighbourhood((4, 5), 1, causal_axes=(2,)), ValueError, "neighbourhood: causal_axes must be axes of shape, got causal_axes (2,). Give the number of each causal axis, counted from 0, once."),
    (lambda: masks.neighbourhood((2**17, 2**17), 1), ValueError, "neighbourhood: shape must have at most 2³¹ − 1 tokens, got shape (131072, 131072). Cut the array in pieces that have fewer tokens."),
    (lambda: masks.neighbourhood((4, 5), 1, dilation=2, causal_axes=(1,)), ValueError, "neighbourhood: shape must be at least (2 · radius + 1) · dilation, got shape (4, 5) and radius (1, 1) and dilation (2, 2). Every query attends 2 · radius + 1 keys along an axis: it has to be at least (6, 1) here."),
    (attend(q=KEYS, mask=masks.neighbourhood((4, 4), 1)), ValueError, "attention: shape must be that of the T = S tokens, got shape (4, 4) and T 17 and S 17. The array of tokens has 16; or say where the rows stand in it."),
    # ragged_attention
    (ragged(q=ones(T, D)), ValueError, "ragged_attention: q must have the axes [T, H, D], got q [13, 5]. No batch: map with jax.vmap. One head is an axis of 1."),
    (ragged(q=whole(T, N, D)), TypeError, "ragged_attention: q must be floating point, got q int32[13, 4, 5]. Convert it first: q.astype(jax.numpy.float32)."),
    (ragged(v=ones(S, N, Dv)), ValueError, "ragged_attention: k and v must agree in S and Hkv, got k [17, 2, 5] and v [17, 4, 3]. Each key needs its one value."),
    (ragged(q=ones(T, N, 4)), ValueError, "ragged_attention: q and k must agree in D, got q [13, 4, 4] and k [17, 2, 5]. Project one of them to the width of the other."),
    (ragged(q=ones(T, 3, D)), ValueError, "ragged_attention: H must be a multiple of Hkv, got q [13, 3, 5] and k [17, 2, 5]. Each key/value head serves the same number of query heads."),
    (ragged(k_starts=None), ValueError, "ragged_attention: k_starts must be given where T ≠ S, got T 13 and S 17. Say where each sequence starts in k and v."),
    (ragged(starts=whole(4)), ValueError, "ragged_attention: starts and k_starts must be equally many, got starts [4] and k_starts [3]. Each sequence has its queries and its keys: an empty one starts where the next does."),
    (ragged(mask=ones(T, S, dtype=bool)), TypeError, "ragged_attention: mask must be a mask, got mask of type ndarray. Make one with jattn.masks, or wrap booleans: masks.dense(array)."),
    (ragged(mask=masks.causal(), q_positions=np.arange(T)), ValueError, f"ragged_attention: mask looks at positions, so both sides must have them where T ≠ S or one side has, got T 13 and S 17 and no k_positions. {ALIGN}"),
    (ragged(sink=ones(K)), ValueError, "ragged_attention: sink must have the shape [] or [H], got sink [2]. Give one logit for all heads, or one a head: H is 4 here."),
    (lambda: scores.soft_cap(0), ValueError, "soft_cap: cap must be more than 0 and finite, got cap 0.0. Leave the score out instead."),
    (lambda: scores.soft_cap(float("inf")), ValueError, "soft_cap: cap must be more than 0 and finite, got cap inf. Leave the score out instead."),
    (lambda: scores.soft_cap(np.float64("nan")), ValueError, "soft_cap: cap must be more than 0 and finite, got cap nan. Leave the score out instead."),
    (lambda: scores.soft_cap(jnp.float32(-1)), ValueError, "soft_cap: cap must be more than 0 and finite, got cap -1.0. Leave the score out instead."),
    (lambda: scores.temperature(np.int64(0)), ValueError, "temperature: tau must be more than 0 and finite, got tau 0.0. Leave the score out instead."),
    (lambda: scores.soft_cap(ones(2)), TypeError, "soft_cap: cap must be a real scalar, got cap float32[2]. Map over heads with jax.vmap."),
    (lambda: scores.temperature(-1.0), ValueError, "temperature: tau must be more than 0 and finite, got tau -1.0. Leave the score out instead."),
    (lambda: scores.alibi("steep"), TypeError, "alibi: slope must be an array of numbers in one shape, got slope of type str. Pass a jax or NumPy array."),
    (lambda: scores.alibi_slopes(0), ValueError, "alibi_slopes: heads must be at least 1, got heads 0. Pass a Python int of at least 1."),
    (lambda: scores.bucket(ones(3), 32, max_distance=128, bidirectional=True), TypeError, "bucket: distance must be integer, got distance float32[3]. Distances count tokens: pass whole numbers."),
    (lambda: scores.bucket(whole(3), 31, max_distance=128, bidirectional=True), ValueError, "bucket: there must be an even number of buckets, at least 4, got buckets 31. T5 has 32."),
    (lambda: scores.bucket(whole(3), 32.0, max_distance=128, bidirectional=True), TypeError, "bucket: buckets must be a whole number, got buckets of type float. Pass a Python int of at least 0."),
    (lambda: scores.bucket(whole(3), 32, max_distance=8, bidirectional=True), ValueError, "bucket: max_distance must be more than the distances that have a bucket of their own, got buckets 32 and max_distance 8. T5 has 128 for 32 buckets."),
    (lambda: scores.relative_bias(whole(32)), TypeError, "relative_bias: table must be floating point, got table int32[32]. Convert it first: table.astype(jax.numpy.float32)."),
    (lambda: scores.relative_bias(ones(2, 32)), ValueError, "relative_bias: table must have the axes [n], got table [2, 32]. One table is one head: map over heads with jax.vmap."),
    (lambda: scores.relative_bias(ones(31)), ValueError, "relative_bias: table must have an even number of buckets, at least 4, got table [31]. T5 has 32."),
    (lambda: scores.relative_bias(ones(1), bidirectional=False), ValueError, "relative_bias: table must have at least 2 buckets, got table [1]. T5 has 32."),
    (lambda: scores.relative_bias(ones(32), max_distance=8), ValueError, "relative_bias: max_distance must be more than the distances that have a bucket of their own, got table [32] and max_distance 8. T5 has 128 for 32 buckets."),
    (lambda: scores.distance_bias(ones(4)), ValueError, "distance_bias: table must have an odd number of entries, got table [4]. Give one entry to each distance from −m to m, 0 among them."),
    (lambda: scores.compose(scores.compose), TypeError, "compose: score must take three scalars, got score of type function. Call it: jattn.scores.compose(…)."),
    (lambda: scores.compose(scores.alibi), TypeError, "compose: score must take three scalars, got score of type function. Call it: jattn.scores.alibi(…)."),
    (lambda: scores.compose(scores.soft_cap(1.0), 3), TypeError, f"compose: score must be a function, got score of type int. {SCORE}"),
    (lambda: scores.compose(lambda score: score), TypeError, f"compose: score must take three scalars, got score with the arguments (score). {SCORE}"),
]  # fmt: skip
TABLE[1:1] = FLOW + SHARDING
NAMES = [message.split(", got")[0] for _, _, message in TABLE]


@pytest.mark.parametrize(("call", "error", "message"), TABLE, ids=NAMES)
def test_each_refusal_is_word_for_word(call, error, message):
    with pytest.raises(error) as caught:
        call()
    if str(caught.value).startswith("Number of devices"):
        raise caught.value  # too few for a mesh: where conftest.py leaves such a test out
    assert str(caught.value) == message
    assert caught.type is error


FORM = re.compile(r"^[a-z_][a-z_0-9]*: .+, got (?P<got>.+?)\. [A-Z].+\.$")


def test_each_refusal_has_the_form_and_shows_no_contents():
    for _, _, message in TABLE:
        assert FORM.match(message), message
        assert not re.search(r"array\(|1\., 1\.|True, True", FORM.match(message)["got"]), message
    assert not FORM.match("attention: q is wrong.")
    assert not FORM.match("q must be [T, D], got q [3]. Reshape it.")


def test_no_refusal_prints_the_contents_of_an_array():
    """Whatever is passed, 424242 is not in the message."""
    marked = np.full((T, D + 1), 424242.0, np.float32)
    for call in (
        attend(q=marked),
        attend(q=marked.astype(np.int32)),
        attend(bias=marked),
        attend(mask=marked),
        attend(scale=marked[0]),
        attend(sink=marked),
        lambda: jattn.merge((marked, marked), (marked, marked)),
        lambda: masks.lengths(k=marked),
        lambda: masks.causal() & marked,
        lambda: masks.to_dense(marked, T, S),
        lambda: bool(masks.dense(marked > 0) & masks.lengths(k=jnp.array(424242))),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert "4242" not in str(caught.value)
    with pytest.raises(TypeError, match="424242"):  # the control: a number of the caller's own writing is its name
        bool(masks.window(left=424242))


@pytest.mark.parametrize("name", ["q", "mask", "bias", "positions"])
def test_refusals_are_the_same_inside_jit_and_vmap(name):
    bad = {
        "q": {"q": ones(2, T, 4)},
        "mask": {"mask": ones(2, T, 4, dtype=bool)},
        "bias": {"bias": ones(2, T, 4)},
        "positions": {"q_positions": whole(2, T), "mask": masks.causal()},
    }[name]
    alone = {n: x if isinstance(x, masks.Mask) else x[0] for n, x in bad.items()}
    axes = {n: None if isinstance(x, masks.Mask) else 0 for n, x in bad.items()}
    with pytest.raises(ValueError, match=r"^attention: ") as want:
        attend(**alone)()
    mapped = jax.jit(jax.vmap(lambda x: attend(**x)(), (axes,)))
    with pytest.raises(ValueError, match=f"^{re.escape(str(want.value))}"):  # JAX may add a line of its own
        mapped(bad)


# Each place in the code that refuses is reached by a row of the table.

PACKAGE = Path(jattn.__file__).parent
PICTURES = {
    "_picture_inputs",
    "figures",
    "console",
    "page",
}  # they draw what they are given, and have tests of their own
NO_REFUSAL = {
    "raise NotImplementedError",
    "raise error(f'{caller}: {must}, got {seen}. {remedy}')",
    "raise AttributeError(f'module {__name__!r} has no attribute {name!r}')",
}  # abstract; fail itself; Python's own words for a name that a module does not have


def refusals(source, module):
    """The lines on which a module refuses something: a raise, or a call of `fail` or of what it is known as."""
    for node in ast.walk(ast.parse(source)):
        if (isinstance(node, ast.Call) and ast.unparse(node.func) in ("fail", "_errors.fail")) or (
            isinstance(node, ast.Raise) and ast.unparse(node) not in NO_REFUSAL
        ):
            yield module, range(node.lineno, node.end_lineno + 1)


def reached(call):
    """The lines of this package through which a refusal passed."""
    try:
        call()
    except Exception as refusal:
        trace = refusal.__traceback__
        while trace:
            file = Path(trace.tb_frame.f_code.co_filename)
            if PACKAGE in file.parents:
                yield file.stem, trace.tb_lineno
            trace = trace.tb_next


def unreached(sites, lines):
    return [(module, span.start) for module, span in sites if not any((module, line) in lines for line in span)]


@pytest.mark.skipif(jax.device_count() < 8, reason="some refuse on a mesh alone")
def test_each_place_that_refuses_is_in_the_table():
    files = [f for f in PACKAGE.rglob("*.py") if f.relative_to(PACKAGE).with_suffix("").parts[0] not in PICTURES]
    sites = [site for f in files for site in refusals(f.read_text(), f.stem)]
    assert len(sites) > 30
    found = [list(reached(call)) for call, _, _ in TABLE]
    assert unreached(sites, set().union(*found)) == []
    fewer = {line for lines in found[1:-1] for line in lines if line[0] != "partials"}
    assert {module for module, _ in unreached(sites, fewer)} == {"partials"}


def test_a_refusal_in_the_code_is_seen():
    source = "def f(x):\n    _errors.fail(\n        ValueError)\n    raise TypeError('x')\n    fail(x)\n"
    assert sorted((s.start, s.stop) for _, s in refusals(source, "new")) == [(2, 4), (4, 5), (5, 6)]
