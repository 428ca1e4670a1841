"""Attention over a batch of heads: the one-head function, mapped, under the signature of jax.nn."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp

from jattn import _errors, masks
from jattn._types import Array, ArrayLike, Float, Numeric, PRNGKey, ScoreModifier
from jattn.arguments import heads, options
from jattn.engine.attend import attend
from jattn.masks import Mask

_CALLER = "dot_product_attention"


class DotProductAttentionOptions(TypedDict, total=False):
    """The named options of `dot_product_attention` but return_residual."""

    scale: Numeric | None
    is_causal: bool
    query_seq_lengths: ArrayLike | None
    key_value_seq_lengths: ArrayLike | None
    local_window_size: int | tuple[int, int] | None
    implementation: Literal["loops", "kernel", "interpret", "xla", "cudnn"] | None
    score: ScoreModifier | None
    sink: ArrayLike | None
    q_positions: ArrayLike | None
    k_positions: ArrayLike | None
    dropout_rate: Numeric
    dropout_key: PRNGKey | None
    tile: tuple[int, int] | None


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = ...,
    mask: ArrayLike | Mask | None = ...,
    *,
    return_residual: Literal[False] = ...,
    **options: Unpack[DotProductAttentionOptions],
) -> Float[Array, "*B T N Hv"]: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = ...,
    mask: ArrayLike | Mask | None = ...,
    *,
    return_residual: Literal[True],
    **options: Unpack[DotProductAttentionOptions],
) -> tuple[Float[Array, "*B T N Hv"], Float[Array, "*B T N"]]: ...
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | Mask | None = None,
    *,
    scale: Numeric | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: Literal["loops", "kernel", "interpret", "xla", "cudnn"] | None = None,
    return_residual: bool = False,
    score: ScoreModifier | None = None,
    sink: ArrayLike | None = None,
    q_positions: ArrayLike | None = None,
    k_positions: ArrayLike | None = None,
    dropout_rate: Numeric = 0.0,
    dropout_key: PRNGKey | None = None,
    tile: tuple[int, int] | None = None,
) -> Float[Array, "*B T N Hv"] | tuple[Float[Array, "*B T N Hv"], Float[Array, "*B T N"]]:
    """Attention over a batch of heads, under the signature of jax.nn.dot_product_attention.

    `attention`, mapped with jax.vmap over batch and heads. Shapes are spelled in the letters of jax.nn:
    B batch, T queries, S keys and values, N query heads, K key/value heads, H width.

    Args:
      query: [B, T, N, H] or [T, N, H], floating point.
      key: [B, S, K, H] or [S, K, H], N a multiple of K: each key/value head serves N / K query heads.
      value: [B, S, K, Hv] or [S, K, Hv]; Hv may differ from H.
      bias: floating point, of any shape that broadcasts to [B, N, T, S].
      mask: booleans of the shapes of bias, or a value of `jattn.masks` that serves every head.
      scale: what the dot products are multiplied by, a real scalar, possibly traced; 1/√H if None.
      is_causal: query t attends keys s ≤ t, counted from the first rows whatever T and S, as in jax.nn.
      query_seq_lengths: integers [B], how many rows of query are filled; the others give zeros.
      key_value_seq_lengths: integers [B], how many rows of key and value are filled.
      local_window_size: (left, right), or one number for both: how many tokens to each side are attended.
      implementation: None, 'loops', 'kernel', 'interpret' and 'cudnn' are jattn's engine, as in `attention`. 'xla'
        hands the call to jax.nn and its dense path, with its semantics, memory and derivatives; never by itself, and
        never as a fallback. The call is refused, with the reason, where that cannot do it.
      return_residual: also return the log-sum-exp.
      score: f(score, q_position, k_position) -> score on scalars, for every head.
      sink: a logit that joins the denominator, a scalar or one a head [N].
      q_positions: integers [T] or [B, T], where each query stands, in tokens; 0, 1, 2, … if None.
      k_positions: integers [S] or [B, S], likewise. Both are needed where T ≠ S and `mask` or `score` looks at
        them; is_causal and local_window_size count from the first rows without them.
      dropout_rate: as in `attention`.
      dropout_key: a key of jax.random, split for each head of each example.
      tile: as in `attention`.

    Returns:
      [B, T, N, Hv] in the dtype of value, or with the residual (that, [B, T, N]), float32 or wider and
      differentiable; without B for unbatched input. It differs from jax.nn in three things: a query that may
      attend no key gives zeros and residual −inf, not the mean of all values; a NaN in a masked place stays there;
      the residual has its gradient and is not rounded to the dtype of key.

    Raises:
      TypeError: a dtype is of the wrong kind; is_causal or return_residual is no bool; or implementation is no string.
      ValueError: shapes do not fit; positions are missing where they matter; or an implementation that cannot do
        the call, as 'xla' with a dropout_rate that is not 0.

    Memory: linear in T and S, as `attention`; heads and examples are computed a few at a time.

    Source: the signature of jax.nn.dot_product_attention, JAX 0.10; Ainslie et al. 2023, "GQA", for grouped heads.

    Example:
      >>> import jax, jax.numpy as jnp, jattn
      >>> query = jax.random.normal(jax.random.key(0), (2, 7, 4, 8))
      >>> key, value = jax.random.normal(jax.random.key(1), (2, 2, 7, 2, 8))  # two heads serve four
      >>> ours = jattn.dot_product_attention(query, key, value, is_causal=True)
      >>> theirs = jax.nn.dot_product_attention(query, key, value, is_causal=True)
      >>> bool(jnp.allclose(ours, theirs, atol=1e-6))
      True
    """
    query, key, value, unbatched = _heads(query, key, value)
    is_causal = _errors.flag(_CALLER, "is_causal", is_causal)
    return_residual = _errors.flag(_CALLER, "return_residual", return_residual)
    (B, T, N, _), (_, S, K, _) = query.shape, value.shape
    options.implementation(_CALLER, implementation, "xla")
    shared = mask if isinstance(mask, Mask) else None
    pairs: dict[str, jax.Array] = {}
    if mask is not None and shared is None:
        pairs["mask"] = _of_pairs("mask", options.booleans(_CALLER, "mask", mask), (B, N, T, S))
    if bias is not None:
        pairs["bias"] = _of_pairs("bias", options.bias_array(_CALLER, bias), (B, N, T, S))
    lengths = {"query_seq_lengths": query_seq_lengths, "key_value_seq_lengths": key_value_seq_lengths}
    filled = {
        name: heads.per_row(_CALLER, name, n, (B,), "[B]", "rows") for name, n in lengths.items() if n is not None
    }
    scale = None if scale is None else options.scale_array(_CALLER, scale, axis="H")
    around = None if local_window_size is None else _window_sizes(_CALLER, local_window_size)
    if implementation == "xla":
        ours: Any = {"score": score, "sink": sink, "q_positions": q_positions, "k_positions": k_positions, "tile": tile}
        if options.drops(dropout_rate):  # a key of which nothing is drawn changes nothing
            ours |= {"dropout_rate": dropout_rate, "dropout_key": dropout_key}
        theirs = {"scale": scale, "is_causal": is_causal, "local_window_size": around, **filled, **pairs}
        found = _by_jax_nn(query, key, value, mask, ours, theirs | {"return_residual": return_residual})
        return jax.tree.map(lambda x: x[0], found) if unbatched else found

    own = {name: _by_head(x, K) for name, x in pairs.items()}
    own |= {name: _Option(x, (0, None, None)) for name, x in filled.items()}
    if shared is not None:
        shared.validate(_CALLER, T, S, q_positions is not None or k_positions is not None)
    if sink is not None:
        sink = jnp.broadcast_to(heads.sink_per_head(_CALLER, sink, N, "N"), (N,))
        own["sink"] = _Option(heads.split_heads(sink, K), (None, 0, 0))
    dependents = options.position_dependents(_CALLER, shared, score, _errors.wide(query, key, value))
    one_sided = is_causal or around is not None
    own |= _positions(B, T, S, q_positions, k_positions, dependents, one_sided)
    dropout = options.dropout(_CALLER, dropout_rate, dropout_key)
    if dropout is not None:
        keys = jax.random.split(dropout[0], (B, K, N // K))
        own["dropout_key"] = _Option(keys, (0, 0, 0))

    how: Any = {"tile": options.tile(_CALLER, tile), "implementation": implementation, "lse_is_read": return_residual}
    if is_causal:
        shared = _and(shared, masks.causal())
    if around is not None:
        shared = _and(shared, masks.window(*around))

    def head(q: jax.Array, k: jax.Array, v: jax.Array, own: dict[str, Any]) -> Any:
        allowed = shared
        if "mask" in own:
            allowed = _and(allowed, masks.dense(own.pop("mask")))
        filled = own.pop("query_seq_lengths", None), own.pop("key_value_seq_lengths", None)
        if any(n is not None for n in filled):
            allowed = _and(allowed, masks.lengths(*filled))
        if dropout is not None:
            own["dropout"] = (own.pop("dropout_key"), dropout[1])
        return attend(q, k, v, mask=allowed, score=score, scale=scale, caller=_CALLER, **how, **own)

    # A key/value head is never repeated in memory, and neither is an option that has one entry for all.
    f = heads.vmap_heads(head, [{name: x.axes[level] for name, x in own.items()} for level in range(3)], kv_axis=1)
    arrays = {name: x.array for name, x in own.items()}
    found = f(heads.heads_before_rows(query, K), key, value, arrays)
    out, lse = map(heads.rows_before_heads, found)
    if unbatched:
        out, lse = out[0], lse[0]
    return (out, lse) if return_residual else out


def _by_jax_nn(query: Any, key: Any, value: Any, mask: Any, ours: dict[str, Any], theirs: dict[str, Any]) -> Any:
    """The call as jax.nn makes it on its dense path, or an error with the reason why it cannot."""
    reason = unsupported_reason(query, key, value, mask, [name for name, x in ours.items() if x is not None])
    if reason is not None:
        must = f"implementation must be able to do this call ({reason})"
        remedy = "Leave it out, or change what stands in its way."
        _errors.fail(ValueError, _CALLER, must, remedy, implementation=repr("xla"))
    return jax.nn.dot_product_attention(query, key, value, implementation="xla", **theirs)


def unsupported_reason(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: Any, ours: Sequence[str] = ()
) -> str | None:
    """Why jax.nn cannot do this call with its implementation `'xla'`, in words; None if it can.

    Args:
      query: [B, T, N, H]. key: [B, S, K, H]. value: [B, S, K, Hv].
      mask: as in `dot_product_attention`.
      ours: the names of the arguments in use that jax.nn does not have.
    """
    if ours:
        return f"jax.nn has no {' and no '.join(ours)}"
    if isinstance(mask, Mask):
        return "jax.nn takes booleans for a mask; masks.to_dense makes them"
    if not query.dtype == key.dtype == value.dtype:
        return "jax.nn wants query, key and value in one dtype"
    if key.shape != value.shape:
        return "jax.nn wants value as wide as key"
    return None


class _Option(NamedTuple):
    """An option, and its axis at each level: batch, key/value heads, query heads of one key/value head."""

    array: jax.Array
    axes: tuple[int | None, int | None, int | None]


def _heads(query: Any, key: Any, value: Any) -> tuple[jax.Array, jax.Array, jax.Array, bool]:
    """query [B, T, N, H], key [B, S, K, H], value [B, S, K, Hv], and whether the B had to be added."""
    axes = {"query": "[B, T, N, H]", "key": "[B, S, K, H]", "value": "[B, S, K, Hv]"}
    q, k, v = (_errors.array(_CALLER, name, x) for name, x in zip(axes, (query, key, value), strict=True))
    for x, (name, spelled) in zip((q, k, v), axes.items(), strict=True):
        if x.ndim not in (3, 4):
            must = f"{name} must have the axes {spelled}, or these without B"
            remedy = "For one head without a batch call attention; map over further axes with jax.vmap."
            _errors.fail(ValueError, _CALLER, must, remedy, **{name: x})
    if not q.ndim == k.ndim == v.ndim:
        remedy = "Give all three the axis B or none of them."
        _errors.fail(
            ValueError, _CALLER, "query, key and value must agree in their axes", remedy, query=q, key=k, value=v
        )
    _errors.floating(_CALLER, query=q, key=k, value=v)
    unbatched = q.ndim == 3
    if unbatched:
        with _errors.only_moved():
            q, k, v = q[None], k[None], v[None]
    (B, _, N, H), (B_k, _, K, H_k) = q.shape, k.shape
    if k.shape[:3] != v.shape[:3]:
        remedy = "Each key needs its one value."
        _errors.fail(ValueError, _CALLER, "key and value must agree in B, S and K", remedy, key=k, value=v)
    if B_k != B:
        remedy = "Repeat neither: give both the same batch, or map the smaller with jax.vmap."
        _errors.fail(ValueError, _CALLER, "query and key must agree in B", remedy, query=q, key=k)
    if H_k != H:
        remedy = "Project one of them to the width of the other."
        _errors.fail(ValueError, _CALLER, "query and key must agree in H", remedy, query=q, key=k)
    _errors.width(_CALLER, "H", query=q, key=k)
    heads.group_size(_CALLER, N, K, "the query heads N must be a multiple of the K key heads", query=q, key=k)
    return q, k, v, unbatched


def _positions(
    B: int, T: int, S: int, q_positions: Any, k_positions: Any, dependents: tuple[str, ...], one_sided: bool
) -> dict[str, _Option]:
    """Those that are given. Without them both sides count from their first rows, as in jax.nn.

    `one_sided`: is_causal or local_window_size looks at them, which do without both, and not without one of them.
    """
    if dependents or (one_sided and (q_positions is None) != (k_positions is None)):
        dependents = dependents or ("is_causal or local_window_size",)
        _errors.both_positions(_CALLER, T, S, q_positions, k_positions, dependents)
    found = {}
    for name, given, axes, n in (("q_positions", q_positions, "T", T), ("k_positions", k_positions, "S", S)):
        if given is not None:
            x = heads.per_row(_CALLER, name, given, (B, n), f"[B, {axes}]", "tokens", shared=True)
            found[name] = _Option(x, (0 if x.ndim == 2 else None, None, None))
    return found


def _of_pairs(name: str, x: jax.Array, full: tuple[int, int, int, int]) -> jax.Array:
    """A bias or mask that broadcasts to [B, N, T, S], with four axes: those that are missing are the leading ones, as
    in jax.nn."""
    _errors.broadcastable(_CALLER, name, x, full, "[B, N, T, S]")
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def _by_head(x: jax.Array, K: int) -> _Option:
    """A bias or mask of four axes, split into [B, K, N / K, T, S] where it has these axes."""
    one_batch, one_head = x.shape[0] == 1, x.shape[1] == 1
    if not one_head:
        x = heads.split_heads(x, K, 1)
    x = x.squeeze(tuple(axis for axis, one in enumerate((one_batch, one_head)) if one))
    axis = None if one_head else 0
    return _Option(x, (None if one_batch else 0, axis, axis))


def _and(a: Mask | None, b: Mask) -> Mask:
    return b if a is None else a & b


def local_window(caller: str, size: Any) -> Mask:
    """jax.nn's local_window_size: (left, right), or one number for both sides."""
    return masks.window(*_window_sizes(caller, size))


def _window_sizes(caller: str, size: Any) -> tuple[int, int]:
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(sizes) != 2:
        got = {"local_window_size": f"of {len(sizes)} numbers"}
        remedy = "Pass (left, right), or one number for both."
        _errors.fail(ValueError, caller, "local_window_size must be two numbers of tokens", remedy, **got)
    left, right = (_errors.count(caller, "local_window_size", x) for x in sizes)
    return left, right
