"""For code in the shape of transformers: `attention_interface`, which its attention layers call, for JAX arrays.

transformers itself runs on torch alone since version 5; models ported to JAX often keep this signature. Nothing of it
is imported.

    >>> import jax
    >>> from jattn.hosts.transformers import attention_interface
    >>> query = jax.random.normal(jax.random.key(0), (2, 4, 5, 8))
    >>> key, value = jax.random.normal(jax.random.key(1), (2, 2, 2, 5, 8))  # two heads serve four
    >>> out, weights = attention_interface(None, query, key, value, None, is_causal=True)
    >>> out.shape
    (2, 5, 4, 8)
"""

from typing import Any

import jax
import jax.numpy as jnp

from jattn import _errors, masks, scores
from jattn._numerics import promoted
from jattn._types import AnyArray, Array, ArrayLike, Float, PRNGKey
from jattn.hosts._attend import attend_heads

__all__ = ["attention_interface"]


def attention_interface(
    module: object,
    query: Float[AnyArray, "B N T H"],
    key: Float[AnyArray, "B K S H"],
    value: Float[AnyArray, "B K S Hv"],
    attention_mask: ArrayLike | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Float[ArrayLike, " N"] | None = None,
    position_bias: ArrayLike | None = None,
    is_causal: bool | None = None,
    dropout_key: PRNGKey | None = None,
    **ignored: object,
) -> tuple[Float[Array, "B T N Hv"], None]:
    """Attention under the signature of transformers' AttentionInterface.

    Args:
      module: looked at for `is_causal` alone, where the argument is None; may be None.
      query: [B, N, T, H]. key: [B, K, S, H]. value: [B, K, S, Hv], N a multiple of K.
      attention_mask: booleans, or floating-point numbers to add, of a shape that broadcasts to [B, N, T, S]. Where it
        is given it says everything: `is_causal` and `sliding_window` are those of a call without one.
      scaling: what the dot products are multiplied by; 1/√H if None.
      dropout: the share of weights to drop. dropout_key: a key of jax.random, which torch has no need of.
      sliding_window: how many tokens a query attends at most, itself included, where `is_causal`.
      softcap: c of c · tanh(score / c), before any mask.
      s_aux: sinks, [N].
      position_bias: added to the scores, of a shape that broadcasts to [B, N, T, S].
      is_causal: query t attends keys s ≤ t, counted from the last rows, as a decoder with a cache needs. transformers'
        own sdpa_attention_forward counts T > 1 queries from the first rows, and sdpa_mask makes no mask for a prompt in
        a static cache that is longer: pass the attention_mask there, as eager_mask makes it.
      ignored: what else transformers passes on.

    Returns:
      (out [B, T, N, Hv], None): no weights.

    Raises:
      TypeError, ValueError: as `dot_product_attention`; or attention_mask holds whole numbers;
        or there are more keys than sliding_window, and neither `is_causal` nor attention_mask; or softcap is 0 or less.

    Memory: linear in T and S; a mask of T × S is the caller's own.

    Source: transformers.AttentionInterface, for the signature.

    Example:
      >>> import jax
      >>> from jattn.hosts.transformers import attention_interface
      >>> query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 4, 5, 8))
      >>> attention_interface(None, query, key, value, None, sliding_window=3, is_causal=True)[0].shape
      (2, 5, 4, 8)
    """
    caller = "attention_interface"
    query, key, value = (
        _four_axes(caller, *x) for x in (("query", query, "T, H"), ("key", key, "S, H"), ("value", value, "S, Hv"))
    )
    T, S = query.shape[2], key.shape[2]
    if sliding_window is not None:
        sliding_window = _errors.count(caller, "sliding_window", sliding_window, least=1)
    mask: Any = None
    bias = None if position_bias is None else _errors.array(caller, "position_bias", position_bias)
    if attention_mask is None:
        is_causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        if is_causal and sliding_window is not None:
            mask = masks.window(left=sliding_window - 1, right=0)
        elif is_causal:
            mask = masks.causal()
        elif sliding_window is not None and sliding_window < S:  # transformers itself means w or w − 1 on each side
            must, remedy = "a sliding_window is causal, or in a mask", "Pass is_causal=True, or the attention_mask."
            got = {"sliding_window": str(sliding_window), "S": str(S)}
            _errors.fail(ValueError, caller, must, remedy, **got)
    else:
        allowed = _errors.array(caller, "attention_mask", attention_mask)
        if allowed.shape == (B := query.shape[0], S) and B not in (1, T):  # as a tokenizer makes it
            must, remedy = "attention_mask must broadcast to [B, N, T, S]", "Of one entry a token make one a pair: "
            _errors.fail(ValueError, caller, must, remedy + "x[:, None, None, :].", attention_mask=allowed)
        if allowed.dtype == jnp.bool_:
            mask = allowed
        elif jnp.issubdtype(allowed.dtype, jnp.floating):
            bias = allowed if bias is None else _sum(caller, attention_mask=allowed, position_bias=bias)
        else:  # of whole numbers nothing tells those that are added from ones for allowed pairs
            must = "attention_mask must be boolean or floating point"
            remedy = "Of ones where a pair is allowed make booleans: attention_mask != 0."
            got = {"attention_mask": f"{allowed.dtype}{_errors.shape(allowed)}"}
            _errors.fail(TypeError, caller, must, remedy, **got)
    stand = {"q_positions": jnp.arange(S - T, S, dtype=jnp.int32), "k_positions": jnp.arange(S, dtype=jnp.int32)}
    cap = None if softcap is None else scores.soft_cap(softcap)
    q, k, v = (jnp.moveaxis(x, 1, 2) for x in (query, key, value))
    out = attend_heads(
        q,
        k,
        v,
        bias,
        mask,
        scale=scaling,
        score=cap,
        sink=s_aux,
        dropout_rate=dropout,
        dropout_key=dropout_key,
        **stand,
    )
    return out, None


def _four_axes(caller: str, name: str, x: Any, last: str) -> jax.Array:
    """A batch of heads."""
    x = _errors.array(caller, name, x)
    remedy = "Heads stand before tokens, and one example is a batch of 1."
    _errors.rank(caller, 4, f"[B, {'N' if name == 'query' else 'K'}, {last}]", remedy, **{name: x})
    return x


def _sum(caller: str, **biases: jax.Array) -> jax.Array:
    """The sum of two biases, whatever their dtypes and missing axes, where JAX promotes none too."""
    try:
        shape = jnp.broadcast_shapes(*(x.shape for x in biases.values()))
    except ValueError:
        must, remedy = f"{' and '.join(biases)} must broadcast", "Give each axis its full length or 1."
        _errors.fail(ValueError, caller, must, remedy, **biases)
    dtype = promoted(*(x.dtype for x in biases.values()))
    a, b = (jnp.broadcast_to(x.astype(dtype), shape) for x in biases.values())
    return a + b
