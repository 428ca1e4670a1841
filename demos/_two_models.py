"""Two readers of what a word means in its sentence, each with a training loop of its own: on jattn.heads, and of flax.

    z = u_word · attention(x)_t,    loss = −log σ(±z),    x_s = E[word_s] + P[s]

They know of no recorder but for one line in each loop. `observe_…` is what a recorder is given: the query word of one
sentence, in each head, among its keys.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from _corpus import RELATIONS, Sentences
from jax import random

from jattn import flow, heads, masks

E, HEADS = 16, 2


def surprise(z: jax.Array, s: Sentences) -> jax.Array:
    return optax.sigmoid_binary_cross_entropy(z, s.sense.astype(z.dtype)).mean()


def share_right(z: jax.Array, s: Sentences) -> jax.Array:
    return ((z > 0) == (s.sense == 1)).astype(z.dtype).mean()


def rows(q: jax.Array, k: jax.Array, v: jax.Array, dout: jax.Array, row: jax.Array) -> flow.MeasuredRow:
    """What is measured of one query in each head [HEADS, …]."""
    return jax.vmap(flow.measure_row, (0, 0, 0, 0, None))(q, k, v, dout, row)


# On jattn.heads: functions of a pytree, and a loop that is one jitted scan.


@partial(jax.jit, static_argnames=("words", "longest"))
def fresh(key: jax.Array, words: int, longest: int) -> dict[str, Any]:
    keys = random.split(key, 4)
    sizes = {"E": words, "P": longest, "u": len(RELATIONS)}
    drawn = {n: random.normal(k, (sizes[n], E)) * E**-0.5 for n, k in zip(sizes, keys[:3], strict=True)}
    return drawn | {"attend": heads.init(keys[3], E, heads=HEADS, dtype=drawn["E"].dtype)}


def embed(w: dict[str, Any], s: Sentences) -> jax.Array:
    return w["E"][s.ids] + w["P"][: len(s.ids)]


def read(w: dict[str, Any], s: Sentences) -> jax.Array:
    """z of one sentence: above 0 means sense 1."""
    out = heads.multi_head(w["attend"], embed(w, s), mask=masks.lengths(k=s.n))
    return out[s.asks] @ w["u"][s.relation]


def read_all(w: dict[str, Any], s: Sentences) -> jax.Array:
    return jax.vmap(read, (None, 0))(w, s)


@partial(jax.jit, static_argnames=("steps", "recorder"))
def train(w: dict[str, Any], text: Sentences, rate: float, *, steps: int, recorder: flow.Recorder) -> dict[str, Any]:
    rule = optax.adam(rate)

    def step(carry: tuple, i: jax.Array) -> tuple:
        w, state = carry
        recorder(i, w)  # the one line
        slope = jax.grad(lambda w: surprise(read_all(w, text), text))(w)
        with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic mixes floats and counts
            change, state = rule.update(slope, state)
        return (optax.apply_updates(w, change), state), None

    return jax.lax.scan(step, (w, rule.init(w)), jnp.arange(steps, dtype=jnp.int32))[0][0]


def observe(w: dict[str, Any], one: Sentences, held: Sentences) -> dict[str, Any]:
    x = embed(w, one)
    q, k, v = heads.project(w["attend"], x)

    def rest(out: jax.Array) -> jax.Array:
        """The loss of one sentence, of the output of its attention [HEADS, T, Dv]."""
        return surprise(heads.output(w["attend"], out, x)[one.asks] @ w["u"][one.relation], one)

    loss, dout = jax.value_and_grad(rest)(heads.grouped(q, k, v))
    return {"loss": loss, "right": share_right(read_all(w, held), held), "heads": rows(q, k, v, dout, one.asks)}


# Of flax: a module, and a loop in Python around a jitted step.


def flax_reader(seed: int, words: int, longest: int) -> Any:
    from flax import nnx

    from jattn.hosts.flax import attention_fn

    class Reader(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.words, self.places = nnx.Embed(words, E, rngs=rngs), nnx.Embed(longest, E, rngs=rngs)
            self.attend = nnx.MultiHeadAttention(HEADS, E, decode=False, rngs=rngs, attention_fn=attention_fn)
            self.senses = nnx.Embed(len(RELATIONS), E, rngs=rngs)

        def __call__(self, s: Sentences) -> jax.Array:
            """z of sentences [N]."""
            at = jnp.arange(s.ids.shape[-1])
            x = self.words(s.ids) + self.places(at)[None]
            x = self.attend(x, mask=(at[None] < s.n[:, None])[:, None, None])
            return jnp.einsum("ne,ne->n", x[jnp.arange(len(x)), s.asks], self.senses(s.relation))

    return Reader(nnx.Rngs(seed))


def train_flax(reader: Any, text: Sentences, rate: float, *, steps: int, recorder: flow.Recorder) -> Any:
    from flax import nnx

    rule = nnx.Optimizer(reader, optax.adam(rate), wrt=nnx.Param)

    @nnx.jit
    def step(reader: Any, rule: Any) -> None:
        slope = nnx.grad(lambda reader: surprise(reader(text), text))(reader)
        with jax.numpy_dtype_promotion("standard"):
            rule.update(reader, slope)

    for i in range(steps):
        recorder(i, reader)  # the one line
        step(reader, rule)
    return reader


def observe_flax(reader: Any, one: Sentences, held: Sentences) -> dict[str, Any]:
    """As `observe`: what the attention is given is taken where it is called, and dL/dout is the slope of a 0 added."""
    from flax import nnx

    from jattn.hosts.flax import attention_fn

    def loss(added: jax.Array) -> tuple[jax.Array, tuple]:
        taken, copy = [], nnx.clone(reader)

        def tapped(q: jax.Array, k: jax.Array, v: jax.Array, **how: Any) -> jax.Array:
            taken[:] = q[0], k[0], v[0]
            return attention_fn(q, k, v, **how) + added[None]

        copy.attend.attention_fn = tapped
        alone = jax.tree.map(lambda x: x[None], one)
        return surprise(copy(alone), alone), tuple(taken)

    nothing = jnp.zeros((len(one.ids), HEADS, E // HEADS), jnp.float32)
    (value, qkv), dout = jax.value_and_grad(loss, has_aux=True)(nothing)
    by_head = (jnp.moveaxis(x, 1, 0) for x in (*qkv, dout))
    return {"loss": value, "right": share_right(reader(held), held), "heads": rows(*by_head, one.asks)}
