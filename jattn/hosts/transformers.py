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

import math
from typing import Any

import jax
import jax.numpy as jnp

from jattn import _errors, masks, scores
from jattn._numerics import promoted
from jattn._types import AnyArray, Array, ArrayLike, Float, PRNGKey
from jattn.arguments import heads, options
from jattn.hosts._attend import attend_heads, folded

__all__ = ["attention_interface"]

_CALLER = "attention_interface"
_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens")
_PASSED_ON = (
    *("max_length_q", "max_length_k", "position_ids", "position_embeddings", "cache_position", "seq_idx"),
    *("past_key_values", "use_cache", "return_dict", "output_attentions", "output_hidden_states"),
    *("output_router_logits", "num_items_in_batch", "logits_to_keep", "deterministic", "kernel_options"),
)
"""What models hand through to their attention (TransformersKwargs, and what generates) that changes no number in it."""


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
    **passed_on: object,
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
      passed_on: what else models of transformers pass to every attention, such as use_cache, position_ids and
        output_attentions; none of it is looked at. Any other name is refused, unless it is None.

    Returns:
      (out [B, T, N, Hv], None): no weights.

    Raises:
      TypeError, ValueError: as `dot_product_attention`; or attention_mask holds whole numbers; or is_causal is no
        boolean; or there are more keys than sliding_window, and neither `is_causal` nor attention_mask; or softcap is 0
        or less; or an argument is not known.
      NotImplementedError: a head_mask; or starts of packed sequences, cu_seq_lens_q, without an attention_mask.

    Memory: linear in T and S; a mask of T × S is the caller's own.

    Source: transformers.AttentionInterface, for the signature.

    Example:
      >>> import jax
      >>> from jattn.hosts.transformers import attention_interface
      >>> query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 4, 5, 8))
      >>> attention_interface(None, query, key, value, None, sliding_window=3, is_causal=True)[0].shape
      (2, 5, 4, 8)
    """
    _known(passed_on, attention_mask)
    query, key, value, batch = _heads(query, key, value)
    (N, T), S = query.shape[1:3], key.shape[2]
    if sliding_window is not None:
        sliding_window = _errors.count(_CALLER, "sliding_window", sliding_window, least=1)
    bias: jax.Array | None = None
    if position_bias is not None:
        bias = options.bias_array(_CALLER, position_bias, "position_bias", "attention_mask")
        bias = _pairs("position_bias", bias, batch, N, T, S)
    mask: masks.Mask | jax.Array | None
    if attention_mask is None:
        causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        mask = _everywhere(causal, sliding_window, S)
    else:
        mask, bias = _with_bias(_attention_mask(attention_mask, batch, N, T, S), bias)
    given: dict[str, Any] = {"dropout_rate": dropout, "dropout_key": dropout_key, "score": _cap(softcap)}
    options.dropout(_CALLER, dropout, dropout_key, "dropout")
    given["scale"] = None if scaling is None else options.scale_array(_CALLER, scaling, "scaling", "H")
    given["sink"] = None if s_aux is None else heads.sink_per_head(_CALLER, s_aux, N, "N", "s_aux")
    given |= {"q_positions": jnp.arange(S - T, S, dtype=jnp.int32), "k_positions": jnp.arange(S, dtype=jnp.int32)}
    q, k, v = (jnp.moveaxis(x, 1, 2) for x in (query, key, value))
    return attend_heads(q, k, v, bias, mask, **given), None


def _known(passed_on: dict[str, Any], attention_mask: Any) -> None:
    """Refuses what would change the attention: a head_mask, packed sequences that no mask keeps apart, other names."""
    given = {name: x for name, x in passed_on.items() if x is not None}
    if "head_mask" in given:
        must, remedy = "head_mask must be None", "Multiply the heads of the output by it: out * head_mask[:, None]."
        _errors.fail(NotImplementedError, _CALLER, must, remedy, head_mask=_errors.kind_of(given["head_mask"]))
    for name in _PACKED:
        if name in given and attention_mask is None:
            must = f"{name} must come with an attention_mask that keeps the sequences apart"
            remedy = "Pass that mask, or call jattn.ragged_attention with starts."
            _errors.fail(NotImplementedError, _CALLER, must, remedy, attention_mask="None")
    unknown = sorted(given.keys() - {*_PACKED, *_PASSED_ON})
    if unknown:
        names = "scaling, dropout, sliding_window, softcap, s_aux, position_bias, is_causal and dropout_key"
        remedy = f"It takes {names}; leave out what changes nothing."
        _errors.fail(TypeError, _CALLER, "each argument must be known", remedy, argument=unknown[0])


def _heads(query: Any, key: Any, value: Any) -> tuple[jax.Array, jax.Array, jax.Array, tuple[int, ...]]:
    """query [B, N, T, H], key [B, K, S, H], value [B, K, S, Hv], and (B,), to which the batches broadcast."""
    axes = {"query": "[B, N, T, H]", "key": "[B, K, S, H]", "value": "[B, K, S, Hv]"}
    q, k, v = (_errors.array(_CALLER, name, x) for name, x in zip(axes, (query, key, value), strict=True))
    remedy = "Heads stand before tokens, and one example is a batch of 1."
    for x, (name, spelled) in zip((q, k, v), axes.items(), strict=True):
        _errors.rank(_CALLER, 4, spelled, remedy, **{name: x})
    _errors.floating(_CALLER, query=q, key=k, value=v)
    if k.shape[1:3] != v.shape[1:3]:
        remedy = "Each key needs its one value."
        _errors.fail(ValueError, _CALLER, "key and value must agree in K and S", remedy, key=k, value=v)
    if q.shape[3] != k.shape[3]:
        remedy = "Project one of them to the width of the other."
        _errors.fail(ValueError, _CALLER, "query and key must agree in H", remedy, query=q, key=k)
    _errors.width(_CALLER, "H", query=q, key=k)
    must = "the query heads N must be a multiple of the K key heads"
    heads.group_size(_CALLER, q.shape[1], k.shape[1], must, query=q, key=k)
    try:
        return q, k, v, jnp.broadcast_shapes(*(x.shape[:1] for x in (q, k, v)))
    except ValueError:
        must, remedy = "query, key and value must agree in B", "Give each its full length or 1."
        _errors.fail(ValueError, _CALLER, must, remedy, query=q, key=k, value=v)


def _everywhere(is_causal: Any, sliding_window: int | None, S: int) -> masks.Mask | None:
    """The mask of all heads where no attention_mask is given."""
    if _errors.flag(_CALLER, "is_causal", is_causal, "Pass a bool, or None for that of the module."):
        return masks.causal() if sliding_window is None else masks.window(left=sliding_window - 1, right=0)
    if sliding_window is not None and sliding_window < S:  # transformers itself means w or w − 1 on each side
        must, remedy = "a sliding_window is causal, or in a mask", "Pass is_causal=True, or the attention_mask."
        got = {"sliding_window": str(sliding_window), "S": str(S)}
        _errors.fail(ValueError, _CALLER, must, remedy, **got)
    return None


def _attention_mask(given: Any, batch: tuple[int, ...], N: int, T: int, S: int) -> jax.Array:
    """Booleans, or numbers to add, [B or 1, N or 1, T or 1, S or 1]."""
    x = _errors.array(_CALLER, "attention_mask", given)
    if x.shape == (*batch, S) and batch[0] not in (1, T):  # as a tokenizer makes it
        must, remedy = "attention_mask must broadcast to [B, N, T, S]", "Of one entry a token make one a pair: "
        _errors.fail(ValueError, _CALLER, must, remedy + "x[:, None, None, :].", attention_mask=x)
    if x.dtype != jnp.bool_ and not jnp.issubdtype(x.dtype, jnp.floating):
        # of whole numbers nothing tells those that are added from ones for allowed pairs
        must = "attention_mask must be boolean or floating point"
        remedy = "Of ones where a pair is allowed make booleans: attention_mask != 0."
        got = {"attention_mask": f"{x.dtype}{_errors.shape(x)}"}
        _errors.fail(TypeError, _CALLER, must, remedy, **got)
    return _pairs("attention_mask", x, batch, N, T, S)


def _pairs(name: str, x: jax.Array, batch: tuple[int, ...], *pairs: int) -> jax.Array:
    return folded(_CALLER, name, x, batch, pairs, "[B, N, T, S]")


def _with_bias(allowed: jax.Array, bias: jax.Array | None) -> tuple[jax.Array | None, jax.Array | None]:
    """(mask, bias); two biases are added, whatever their dtypes, where JAX promotes none too."""
    if allowed.dtype == jnp.bool_:
        return allowed, bias
    if bias is None:
        return None, allowed
    shape, dtype = jnp.broadcast_shapes(allowed.shape, bias.shape), promoted(allowed.dtype, bias.dtype)
    a, b = (jnp.broadcast_to(x.astype(dtype), shape) for x in (allowed, bias))
    return None, a + b


def _cap(softcap: Any) -> scores.Score | None:
    """`soft_cap`, refused by the name that transformers has for it."""
    if softcap is None:
        return None
    cap = _errors.scalar(_CALLER, "softcap", softcap, "Pass one number for all heads.")
    if _errors.known(cap) and not 0 < (known := float(_errors.read(cap))) < math.inf:
        must, remedy = "softcap must be more than 0 and finite", "Leave it out where nothing is capped."
        _errors.fail(ValueError, _CALLER, must, remedy, softcap=str(known))
    return scores.soft_cap(softcap)
