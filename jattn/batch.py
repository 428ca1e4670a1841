"""Attention over a batch of heads: the one-head function, mapped, under the signature of jax.nn."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jattn import _asked, _checks, door, masks
from jattn._types import ArrayLike, Numeric, Score
from jattn.masks import Mask

_WHERE = "dot_product_attention"


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
    implementation: Literal["xla", "cudnn"] | None = None,
    return_residual: bool = False,
    score: Score | None = None,
    sink: ArrayLike | None = None,
    q_positions: ArrayLike | None = None,
    k_positions: ArrayLike | None = None,
    dropout_rate: Numeric = 0.0,
    dropout_key: jax.Array | None = None,
    tile: tuple[int, int] | None = None,
) -> Any:
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
      is_causal: query t meets keys s ≤ t, counted from the first rows whatever T and S, as in jax.nn.
      query_seq_lengths: integers [B], how many rows of query are filled; the others give zeros.
      key_value_seq_lengths: integers [B], how many rows of key and value are filled.
      local_window_size: (left, right), or one number for both: how many tokens to each side are met.
      implementation: None is jattn's engine, everywhere. 'xla' and 'cudnn' hand the call to jax.nn and its dense or
        cuDNN path, with its semantics, memory and derivatives; never by themselves, and never as a fallback. The
        call is refused, with the reason, where they cannot do it. The cuDNN path has not been run by this project.
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
      differentiable; without B for unbatched input. It differs from jax.nn in three things: a query that meets
      nothing gives zeros and residual −inf, not the mean of all values; a NaN in a masked place stays there;
      the residual has its gradient and is not rounded to the dtype of key.

    Raises:
      TypeError: a dtype is of the wrong kind.
      ValueError: shapes do not fit; positions are missing where they matter; or an implementation that cannot do
        the call.

    Memory: linear in T and S, as `attention`; heads and examples are walked a few at a time.

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
    (B, T, N, H), (_, S, K, Hv) = query.shape, value.shape
    if implementation is not None:
        ours = {"score": score, "sink": sink, "q_positions": q_positions, "k_positions": k_positions, "tile": tile}
        ours["dropout_key"] = dropout_key
        reason = why_not(implementation, query, key, value, mask, [name for name, x in ours.items() if x is not None])
        if reason is not None:
            must = f"implementation must be able to do this call ({reason})"
            got = {"implementation": repr(implementation)}
            _checks.fail(ValueError, _WHERE, must, "Leave it out, or change what stands in its way.", **got)
        found = _theirs(
            query, key, value, bias, mask, query_seq_lengths, key_value_seq_lengths, scale=scale, is_causal=is_causal,
            local_window_size=local_window_size, implementation=implementation, return_residual=return_residual,
        )  # fmt: skip
        return jax.tree.map(lambda x: x[0], found) if unbatched else found

    per_head: dict[str, _Mapped] = {}
    shared = mask if isinstance(mask, Mask) else None
    if shared is not None:
        shared.fits(_WHERE, T, S, q_positions is not None or k_positions is not None)
    if mask is not None and shared is None:
        per_head["mask"] = _pairs("mask", _checks.booleans(_WHERE, "mask", mask), (B, N, T, S), K)
    if bias is not None:
        per_head["bias"] = _pairs("bias", _checks.bias(_WHERE, bias), (B, N, T, S), K)
    if sink is not None:
        per_head["sink"] = _sink(sink, N, K)
    for name, lengths in (("query_seq_lengths", query_seq_lengths), ("key_value_seq_lengths", key_value_seq_lengths)):
        if lengths is not None:
            per_head[name] = _per_row(name, lengths, (B,), "[B]", "rows")

    if scale is not None:
        scale = _checks.scale(_WHERE, scale)
    one_sided = is_causal or local_window_size is not None
    seekers = _asked.seekers(_WHERE, shared, score, _checks.wide(query, key, value))
    if seekers or (one_sided and (q_positions is None) != (k_positions is None)):
        _checks.both_positions(_WHERE, T, S, q_positions, k_positions, seekers or ("is_causal or local_window_size",))
    for name, given, axes, n in (("q_positions", q_positions, "T", T), ("k_positions", k_positions, "S", S)):
        if given is not None:  # without them both sides count from their first rows, as in jax.nn
            per_head[name] = _per_row(name, given, (B, n), f"[B, {axes}]", "tokens")
    dropout = _asked.dropout(_WHERE, dropout_rate, dropout_key)
    if dropout is not None:
        keys = jax.random.split(dropout[0], (B, K, N // K))
        per_head["dropout_key"] = _Mapped(keys, (0, 0, 0))

    sizes = _asked.tile_of(_WHERE, tile)
    if is_causal:
        shared = _and(shared, masks.causal())
    if local_window_size is not None:
        shared = _and(shared, _window(local_window_size))

    def head(q: jax.Array, k: jax.Array, v: jax.Array, own: dict[str, Any]) -> Any:
        allowed = shared
        if "mask" in own:
            allowed = _and(allowed, masks.dense(own.pop("mask")))
        filled = own.pop("query_seq_lengths", None), own.pop("key_value_seq_lengths", None)
        if any(n is not None for n in filled):
            allowed = _and(allowed, masks.lengths(*filled))
        if dropout is not None:
            own["dropout"] = (own.pop("dropout_key"), dropout[1])
        return door.attend(q, k, v, mask=allowed, score=score, scale=scale, tile=sizes, **own)

    # Outermost the batch, then key/value heads, then the query heads that share one; a key/value head is
    # never repeated in memory, and neither is an option that has one entry for all.
    f = head
    for level, kv in ((2, None), (1, 0), (0, 0)):
        f = jax.vmap(f, (0, kv, kv, {name: x.axes[level] for name, x in per_head.items()}))
    grouped = jnp.moveaxis(query.reshape(B, T, K, N // K, H), 1, 3)
    own = {name: x.array for name, x in per_head.items()}
    out, lse = f(grouped, jnp.moveaxis(key, 1, 2), jnp.moveaxis(value, 1, 2), own)
    out = jnp.moveaxis(out, 3, 1).reshape(B, T, N, Hv)
    lse = jnp.moveaxis(lse, 3, 1).reshape(B, T, N)
    if unbatched:
        out, lse = out[0], lse[0]
    return (out, lse) if return_residual else out


def why_not(
    implementation: Any, query: jax.Array, key: jax.Array, value: jax.Array, mask: Any, ours: Sequence[str] = ()
) -> str | None:
    """Why jax.nn cannot do this call with its implementation `'xla'` or `'cudnn'`, in words; None if it can.

    Args:
      implementation: what was asked for.
      query: [B, T, N, H]. key: [B, S, K, H]. value: [B, S, K, Hv].
      mask: as in `dot_product_attention`.
      ours: the names of the arguments in use that jax.nn does not have.
    """
    if implementation not in ("xla", "cudnn"):
        return "there are None, which is jattn's own, 'xla' and 'cudnn'"
    if ours:
        return f"jax.nn has no {' and no '.join(ours)}"
    if isinstance(mask, Mask):
        return "jax.nn takes booleans for a mask; masks.to_dense makes them"
    if not query.dtype == key.dtype == value.dtype:
        return "jax.nn wants query, key and value in one dtype"
    if key.shape != value.shape:
        return "jax.nn wants value as wide as key"
    if implementation == "cudnn" and jax.default_backend() != "gpu":
        return f"cuDNN runs on an NVIDIA GPU, and the backend is {jax.default_backend()}"
    if implementation == "cudnn" and query.dtype not in (jnp.bfloat16, jnp.float16):
        return f"cuDNN computes in bfloat16 and float16, not in {query.dtype}"
    return None


def _theirs(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: Any,
    mask: Any,
    q_lengths: Any,
    k_lengths: Any,
    **same: Any,
) -> Any:
    """The call handed to jax.nn, which wants its lengths in int32."""
    filled = {
        name: n if n is None else jnp.asarray(n, jnp.int32)
        for name, n in (("query_seq_lengths", q_lengths), ("key_value_seq_lengths", k_lengths))
    }
    theirs: Any = jax.nn.dot_product_attention
    return theirs(query, key, value, bias, mask, **filled, **same)


class _Mapped(NamedTuple):
    """An option, and its axis at each level: batch, key/value heads, query heads of one key/value head."""

    array: jax.Array
    axes: tuple[int | None, int | None, int | None]


def _heads(query: Any, key: Any, value: Any) -> tuple[jax.Array, jax.Array, jax.Array, bool]:
    """query [B, T, N, H], key [B, S, K, H], value [B, S, K, Hv], and whether the B had to be added."""
    axes = {"query": "[B, T, N, H]", "key": "[B, S, K, H]", "value": "[B, S, K, Hv]"}
    q, k, v = (_checks.array(_WHERE, name, x) for name, x in zip(axes, (query, key, value), strict=True))
    for x, (name, spelled) in zip((q, k, v), axes.items(), strict=True):
        if x.ndim not in (3, 4):
            must = f"{name} must have the axes {spelled}, or these without B"
            remedy = "For one head without a batch call attention; map over further axes with jax.vmap."
            _checks.fail(ValueError, _WHERE, must, remedy, **{name: x})
    if not q.ndim == k.ndim == v.ndim:
        remedy = "Give all three the axis B or none of them."
        _checks.fail(
            ValueError, _WHERE, "query, key and value must agree in their axes", remedy, query=q, key=k, value=v
        )
    _checks.floating(_WHERE, query=q, key=k, value=v)
    unbatched = q.ndim == 3
    if unbatched:
        q, k, v = q[None], k[None], v[None]
    (B, _, N, H), (B_k, _, K, H_k) = q.shape, k.shape
    if k.shape[:3] != v.shape[:3]:
        remedy = "Each key needs its one value."
        _checks.fail(ValueError, _WHERE, "key and value must agree in B, S and K", remedy, key=k, value=v)
    if B_k != B:
        remedy = "Repeat neither: give both the same batch, or map the smaller with jax.vmap."
        _checks.fail(ValueError, _WHERE, "query and key must agree in B", remedy, query=q, key=k)
    if H_k != H:
        remedy = "Project one of them to the width of the other."
        _checks.fail(ValueError, _WHERE, "query and key must agree in H", remedy, query=q, key=k)
    _checks.width(_WHERE, "H", query=q, key=k)
    if K == 0 or not isinstance(N % K, int) or N % K:  # the remainder of two symbols of jax.export is one
        remedy = "Each key/value head serves the same number of query heads."
        _checks.fail(
            ValueError, _WHERE, "the query heads N must be a multiple of the K key heads", remedy, query=q, key=k
        )
    return q, k, v, unbatched


def _pairs(name: str, x: jax.Array, full: tuple[int, int, int, int], K: int) -> _Mapped:
    """A bias or mask that broadcasts to [B, N, T, S], split into [B, K, N / K, T, S] where it has these axes."""
    _checks.broadcastable(_WHERE, name, x, full, "[B, N, T, S]")
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)  # axes that are missing are the leading ones, as in jax.nn
    one_batch, one_head = x.shape[0] == 1, x.shape[1] == 1
    if not one_head:
        x = x.reshape(x.shape[0], K, x.shape[1] // K, *x.shape[2:])
    x = x.squeeze(tuple(axis for axis, one in enumerate((one_batch, one_head)) if one))
    heads = None if one_head else 0
    return _Mapped(x, (None if one_batch else 0, heads, heads))


def _sink(x: Any, N: int, K: int) -> _Mapped:
    """A sink for all heads, or one a head."""
    x = _checks.array(_WHERE, "sink", float(x) if type(x) is int else x)
    _checks.floating(_WHERE, sink=x)
    if x.ndim == 0:
        return _Mapped(x, (None, None, None))
    if x.shape != (N,):
        remedy = f"Give one logit for all heads, or one a head: N is {N} here."
        _checks.fail(ValueError, _WHERE, "sink must have the shape [] or [N]", remedy, sink=x)
    return _Mapped(x.reshape(K, N // K), (None, 0, 0))


def _per_row(name: str, x: Any, full: tuple[int, ...], axes: str, unit: str) -> _Mapped:
    """Whole numbers with one entry for each row of the batch, or, but for lengths, one for all of it."""
    x = _checks.array(_WHERE, name, x)
    _checks.kind(_WHERE, name, x, jnp.integer, f"It counts {unit}: pass whole numbers.")
    if x.shape == full:
        return _Mapped(x, (0, None, None))
    if x.shape == full[1:] and len(full) > 1:
        return _Mapped(x, (None, None, None))
    target = "[" + ", ".join(map(str, full)) + "]"
    remedy = f"Give one whole number for each: {axes} is {target} here."
    _checks.fail(ValueError, _WHERE, f"{name} must have the shape {axes}", remedy, **{name: x})


def _and(a: Mask | None, b: Mask) -> Mask:
    return b if a is None else a & b


def _window(size: Any) -> Mask:
    """jax.nn's local_window_size: (left, right), or one number for both sides."""
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) != 2:
        got = {"local_window_size": f"of {len(sides)} numbers"}
        remedy = "Pass (left, right), or one number for both."
        _checks.fail(ValueError, _WHERE, "local_window_size must be two numbers of tokens", remedy, **got)
    left, right = (_checks.count(_WHERE, "local_window_size", x) for x in sides)
    return masks.window(left, right)
