"""Multi-head, grouped and multi-query attention, of a sequence to itself or to another."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, Unpack, overload

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._numerics import on_explicit_mesh
from jattn._types import AnyArray, Array, ArrayLike, DTypeLike, Float, Integer, PRNGKey
from jattn.arguments.heads import group_size
from jattn.heads._norm import rms_norm
from jattn.heads._params import LECUN, TRAINED_IN, Initializer, Params, at_least_1, fit, held, matrices, standard
from jattn.heads._per_head import PER_HEAD, PerHead, has_own, in_every_head, own_options
from jattn.one_head import AttentionOptions, SharedOptions, attention

ROPE = "Write rope(x [T, D], positions [T]) -> [T, D], as jattn.positions.rotary."
Rope: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]
"""`rope(x [T, D], positions [T]) -> [T, D]`, as functools.partial(rotary, base=500_000.0)."""


def init(
    key: PRNGKey,
    width: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    context_width: int | None = None,
    bias: bool = False,
    qk_norm: Literal["rms", "l2"] | None = None,
    head_scale: bool = False,
    gate: bool = False,
    initializer: Initializer = LECUN,
    dtype: DTypeLike = jnp.float32,
) -> dict[str, jax.Array]:
    """The parameters of `multi_head`, drawn: a plain dict of arrays.

    Each matrix is drawn as a map of fan_in = (what it sums over) to fan_out: mean 0, and with the default variance
    1 / fan_in, so that a unit variance stays one. Biases are 0; norms, head scales 1; temperatures √D.

    Args:
      key: a key of jax.random.
      width: E, of the tokens that ask and of the result.
      heads: H. kv_heads: Hkv, which divides H; H if None.
      head_dim: D, of q and k; E / H if None. value_dim: Dv; D if None.
      context_width: C, of the tokens that are asked; E if None.
      bias: q_bias, k_bias, v_bias and out_bias too.
      qk_norm: 'rms' adds q_norm and k_norm; 'l2' adds temperature.
      head_scale: add head_scale. gate: add gate.
      initializer: f(key, (fan_in, fan_out), dtype), as those of jax.nn.initializers: `glorot_uniform()` has variance
        2 / (fan_in + fan_out), as PyTorch and Vaswani et al.; `normal(0.02)` 0.0004, as GPT-2.
      dtype: of every array.

    Returns:
      q [E, H, D], k [C, Hkv, D], v [C, Hkv, Dv], out [H, Dv, E]; and, where asked for, q_bias [H, D], k_bias [Hkv, D],
      v_bias [Hkv, Dv], out_bias [E]; q_norm [D], k_norm [D]; temperature [H]; head_scale [H]; gate [E, H, Dv].

    Raises:
      TypeError: a size is not a whole number, or the dtype not floating point.
      ValueError: a size is less than 1; kv_heads does not divide heads; heads does not divide width and head_dim is
        not given; or qk_norm is none of these.

    Memory: that of the parameters.

    Source: LeCun et al. 1998, "Efficient BackProp", section 4.6, for the variance.

    Example:
      >>> import jax
      >>> from jattn import heads
      >>> params = heads.init(jax.random.key(0), 32, heads=4, kv_heads=2)
      >>> {name: w.shape for name, w in params.items()}
      {'q': (32, 4, 8), 'k': (32, 2, 8), 'v': (32, 2, 8), 'out': (4, 8, 32)}
    """
    width, heads = (_errors.count("init", name, n, least=1) for name, n in (("width", width), ("heads", heads)))
    kv_heads = at_least_1("init", "kv_heads", kv_heads, heads)
    context_width = at_least_1("init", "context_width", context_width, width)
    must = "heads must be a multiple of kv_heads"
    group_size("init", heads, kv_heads, must, heads=str(heads), kv_heads=str(kv_heads))
    if head_dim is None and width % heads:
        got = {"width": str(width), "heads": str(heads)}
        _errors.fail(ValueError, "init", "width must be a multiple of heads", "Or say how wide: head_dim=64.", **got)
    if qk_norm not in (None, "rms", "l2"):
        must, remedy = "qk_norm must be None, 'rms' or 'l2'", "Leave it out for q and k without a norm."
        _errors.fail(ValueError, "init", must, remedy, qk_norm=repr(qk_norm))
    dtype = _errors.dtype("init", dtype, TRAINED_IN)
    D = at_least_1("init", "head_dim", head_dim, width // heads)
    Dv = at_least_1("init", "value_dim", value_dim, D)
    shapes = {"q": (width, heads, D), "k": (context_width, kv_heads, D), "v": (context_width, kv_heads, Dv)}
    params = matrices(key, shapes | {"out": (heads, Dv, width)} | ({"gate": (width, heads, Dv)} if gate else {}),
                      initializer, dtype)  # fmt: skip
    if bias:
        params |= {f"{name}_bias": jnp.zeros(shapes[name][1:], dtype) for name in shapes}
        params["out_bias"] = jnp.zeros(width, dtype)
    if qk_norm == "rms":
        params |= {"q_norm": jnp.ones(D, dtype), "k_norm": jnp.ones(D, dtype)}
    if qk_norm == "l2":
        params["temperature"] = jnp.full(heads, D**0.5, dtype)
    return params | ({"head_scale": jnp.ones(heads, dtype)} if head_scale else {})


def multi_head(
    params: Params,
    x: Float[ArrayLike, "T E"],
    context: Float[ArrayLike, "S C"] | None = None,
    *,
    q_positions: Integer[ArrayLike, " T"] | None = None,
    k_positions: Integer[ArrayLike, " S"] | None = None,
    rope: Rope | None = None,
    eps: float = 1e-6,
    per_head: PerHead | None = None,
    **options: Unpack[SharedOptions],
) -> Float[Array, "T E"]:
    """Attention of tokens to themselves, or to a context: project, attend in every head, join the heads.

        out_t = Σ_h γ_h g_th ⊙ attention(q_h, k_⌊h Hkv/H⌋, v_⌊h Hkv/H⌋)_t · params["out"]_h

    No batch: map with jax.vmap, in_axes (None, 0). What is not in `params` is left out: the biases, the norms of q and
    k (RMS with q_norm and k_norm, L2 with temperature), the head scale γ and the gate g = σ(x · params["gate"]).

    Args:
      params: as `init` makes them: q [E, H, D], k [C, Hkv, D], v [C, Hkv, Dv], out [H, Dv, E] or any width, and more.
      x: [T, E], the tokens that ask.
      context: [S, C], the tokens that are asked; x if None.
      q_positions: integers [T], where each token of x stands, in tokens; 0, 1, 2, … if None.
      k_positions: integers [S], likewise for the context; those of x if there is none. Both are needed beside a
        context where something looks at them: `rope`, a mask or a score.
      rope: what positions do to q and k of each head, after their norm: f(x [T, D], positions [T]) -> [T, D], as
        functools.partial(rotary, base=500_000.0).
      eps: added to the mean square in the norms of q and k.
      per_head: options of `attention` that have one entry a head, as {"sink": [H], "bias": [H, T, S],
        "score": a pytree that is a function, with a leading axis H in its leaves}; none that all heads share too.
      **options: options of `attention` that all heads share: mask, score, bias, sink, scale, dropout_rate, tile; and
        dropout_key, which is split over the heads.

    Returns:
      [T, E], in the dtype that x and params have together. A token that may attend no other gives 0, or its out_bias.

    Raises:
      TypeError, ValueError: as `attention`; params lack a matrix or do not fit x, the context, or one another;
      positions are missing; rope is no function; an option in per_head is unknown or given for all heads too.

    Memory: linear in T and S, as `attention`; a key/value head is never repeated.

    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023, "GQA"; Henry et al. 2020, "Query-key normalization
      for transformers"; Shleifer et al. 2021, "NormFormer", for γ; Qiu et al. 2025, "Gated attention for large language
      models", for g.

    Example:
      >>> import jax, jattn
      >>> from jattn import heads
      >>> params = heads.init(jax.random.key(0), 32, heads=4, kv_heads=2)
      >>> x = jax.random.normal(jax.random.key(1), (3, 7, 32))
      >>> block = lambda params, x: heads.multi_head(params, x, mask=jattn.masks.causal())
      >>> jax.vmap(block, (None, 0))(params, x).shape
      (3, 7, 32)
    """
    x = _errors.array("multi_head", "x", x)
    k_positions = q_positions if context is None and k_positions is None else k_positions
    missing = [n for n, p in (("q_positions", q_positions), ("k_positions", k_positions)) if p is None]
    if rope is not None and missing and (context is not None or len(missing) == 1):
        where, remedy = "where one side has", "Give q_positions alone: those of the keys are the same."
        if context is not None:
            where, told = "beside a context", "Say where the tokens of x and of the context stand"
            remedy = f"{told}, or leave rope out: cross attention has mostly none."
        must = f"rope looks at positions, so both sides must have them {where}"
        _errors.fail(ValueError, "multi_head", must, remedy, no=" and no ".join(missing))
    q, k, v = project(params, x, context, q_positions=q_positions, k_positions=k_positions, rope=rope, eps=eps)
    if "temperature" in params and not has_own(per_head, "scale"):
        options = {"scale": 1.0} | options
    out = grouped(q, k, v, per_head=per_head, q_positions=q_positions, k_positions=k_positions, **options)
    return output(params, out, x)


def project(
    params: Params,
    x: Float[ArrayLike, "T E"],
    context: Float[ArrayLike, "S C"] | None = None,
    *,
    q_positions: Integer[ArrayLike, " T"] | None = None,
    k_positions: Integer[ArrayLike, " S"] | None = None,
    rope: Rope | None = None,
    eps: float = 1e-6,
) -> tuple[Float[Array, "H T D"], Float[Array, "Hkv S D"], Float[Array, "Hkv S Dv"]]:
    """The q, k and v of every head, normed and rotated: the first third of `multi_head`.

    Args:
      params, x, context, q_positions, k_positions, rope, eps: as in `multi_head`; positions that are None are row
        numbers.

    Returns:
      q [H, T, D], k [Hkv, S, D], v [Hkv, S, Dv]: what a cache keeps is k and v. With a temperature, q holds it.

    Raises:
      TypeError: params are no mapping, or rope is no function.
      ValueError: params lack a matrix or do not fit x, the context, or one another.

    Memory: H·T·D + Hkv·S·(D + Dv) numbers.

    Source: Vaswani et al. 2017, section 3.2.2.

    Example:
      >>> import jax
      >>> from jattn import heads
      >>> params = heads.init(jax.random.key(0), 32, heads=4, kv_heads=1)
      >>> q, k, v = heads.project(params, jax.random.normal(jax.random.key(1), (7, 32)))
      >>> q.shape, k.shape, v.shape
      ((4, 7, 8), (1, 7, 8), (1, 7, 8))
    """
    caller = "project"
    biases, norms = ("q_bias H D", "k_bias Hkv D", "v_bias Hkv Dv"), ("q_norm D", "k_norm D", "temperature H")
    held(caller, params, "q", "k", "v")
    if "q_norm" in params or "k_norm" in params:
        held(caller, params, "q_norm", "k_norm")
    fit(caller, params, ("q E H D", "k C Hkv D", "v C Hkv Dv", *biases, *norms))
    x = _errors.array(caller, "x", x)
    context = x if context is None else _errors.array(caller, "context", context)
    for name, tokens, axes in (("q", x, "[T, E]"), ("k", context, "[S, C]"), ("v", context, "[S, C]")):
        said = "x" if name == "q" else "context"
        _errors.rank(caller, 2, axes, "No batch: map with jax.vmap, in_axes (None, 0).", **{said: tokens})
        if tokens.shape[1] != params[name].shape[0]:
            must = f"{said} {axes} must be as wide as params['{name}'] takes"
            remedy = "Make params for this width: init(key, width, context_width=...)."
            _errors.fail(ValueError, caller, must, remedy, **{said: tokens, name: params[name]})

    def of(name: str, tokens: jax.Array) -> jax.Array:
        with standard():
            made = jnp.einsum("te,ehd->htd", tokens, params[name])
            return made + params[f"{name}_bias"][:, None, :] if f"{name}_bias" in params else made

    q, k, v = of("q", x), of("k", context), of("v", context)
    if "q_norm" in params:
        q, k = rms_norm(q, params["q_norm"], eps=eps), rms_norm(k, params["k_norm"], eps=eps)
    if "temperature" in params:  # L2: a root mean square of 1/√D is a length of 1
        unit = jnp.full(q.shape[-1], q.shape[-1] ** -0.5, q.dtype)
        with standard():
            q, k = rms_norm(q, unit, eps=eps) * params["temperature"][:, None, None], rms_norm(k, unit, eps=eps)
    if rope is not None:
        _errors.takes(caller, "rope", rope, 2, ROPE, "arguments")
        q_positions, k_positions = (
            jnp.arange(n, dtype=jnp.int32) if p is None else _errors.array(caller, name, p)
            for name, n, p in (("q_positions", q.shape[1], q_positions), ("k_positions", k.shape[1], k_positions))
        )
        rotate = jax.vmap(rope, (0, None))
        q, k = rotate(q, q_positions), rotate(k, k_positions)
    return q, k, v


@overload
def grouped(
    q: Float[ArrayLike, "H T D"],
    k: Float[ArrayLike, "Hkv S D"],
    v: Float[ArrayLike, "Hkv S Dv"],
    *,
    per_head: PerHead | None = ...,
    return_lse: Literal[False] = ...,
    **options: Unpack[AttentionOptions],
) -> Float[Array, "H T Dv"]: ...
@overload
def grouped(
    q: Float[ArrayLike, "H T D"],
    k: Float[ArrayLike, "Hkv S D"],
    v: Float[ArrayLike, "Hkv S Dv"],
    *,
    per_head: PerHead | None = ...,
    return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Float[Array, "H T Dv"], Float[Array, "H T"]]: ...
def grouped(
    q: Float[ArrayLike, "H T D"],
    k: Float[ArrayLike, "Hkv S D"],
    v: Float[ArrayLike, "Hkv S Dv"],
    *,
    per_head: PerHead | None = None,
    return_lse: bool = False,
    **options: Unpack[AttentionOptions],
) -> Float[Array, "H T Dv"] | tuple[Float[Array, "H T Dv"], Float[Array, "H T"]]:
    """`attention` in every head, H / Hkv query heads to each key/value head: the middle third of `multi_head`.

    Args:
      q: [H, T, D]. k: [Hkv, S, D]. v: [Hkv, S, Dv].
      per_head, **options: as in `multi_head`.
      return_lse: also return the log-sum-exp.

    Returns:
      [H, T, Dv], or (that, lse [H, T]).

    Raises:
      TypeError, ValueError: as `attention`; or the heads do not fit.

    Memory: linear in T and S, as `attention`; no key/value head is repeated.

    Source: Ainslie et al. 2023, "GQA", section 2.2.

    Example:
      >>> import jax
      >>> from jattn import heads
      >>> q = jax.random.normal(jax.random.key(0), (4, 5, 8))
      >>> k, v = jax.random.normal(jax.random.key(1), (2, 2, 7, 8))
      >>> heads.grouped(q, k, v).shape
      (4, 5, 8)
    """

    shared: dict[str, Any] = {**options, "return_lse": _errors.flag("grouped", "return_lse", return_lse)}
    key = shared.pop("dropout_key", None)

    def head(q: jax.Array, k: jax.Array, v: jax.Array, own: dict[str, Any]) -> Any:
        return attention(q, k, v, **(shared | own))

    beside = shared | {"dropout_key": key}
    return in_every_head("grouped", head, q, k, v, own_options("grouped", per_head, PER_HEAD, beside), key)


def output(params: Params, out: Float[AnyArray, "H T Dv"], x: Float[ArrayLike, "T E"]) -> Float[Array, "T E"]:
    """The heads scaled, gated and joined: the last third of `multi_head`.

    Args:
      params, x: as in `multi_head`; x is what the gate looks at.
      out: [H, T, Dv].

    Returns:
      [T, E].

    Raises:
      TypeError, ValueError: params are no mapping, lack `out`, or do not fit out, x, or one another.

    Memory: T·E numbers, and H·T·Dv of `out` beside its gate.

    Source: Vaswani et al. 2017, section 3.2.2.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jattn import heads
      >>> params = heads.init(jax.random.key(0), 32, heads=4)
      >>> heads.output(params, jnp.ones((4, 7, 8)), jnp.ones((7, 32))).shape
      (7, 32)
    """
    caller = "output"
    out = _errors.array(caller, "out", out)
    _errors.rank(caller, 3, "[H, T, Dv]", "No batch: map with jax.vmap.", out=out)
    H, T, Dv = out.shape
    held(caller, params, "out")
    if "gate" in params:
        x = _errors.array(caller, "x", x)
        _errors.rank(caller, 2, "[T, E]", "No batch: map with jax.vmap, in_axes (None, 0).", x=x)
        if x.shape[0] != T:
            remedy = "The gate looks at the token that asks: pass the x that made q."
            _errors.fail(ValueError, caller, "out [H, T, Dv] and x [T, E] must have one T", remedy, out=out, x=x)
        fit(caller, params, ("gate E H Dv",), E=x.shape[1], H=H, Dv=Dv)
    fit(caller, params, ("out H Dv E", "head_scale H", "out_bias E"), H=H, Dv=Dv)
    with standard():
        if "head_scale" in params:
            out = out * params["head_scale"][:, None, None]
        if "gate" in params:
            out = out * jax.nn.sigmoid(jnp.einsum("te,ehd->htd", x, params["gate"]))
        # Where each device of an explicit mesh has some of the heads, their sum is whole on all of them.
        whole = jax.sharding.PartitionSpec(None, None) if on_explicit_mesh() else None
        joined = jnp.einsum("htd,hde->te", out, params["out"], out_sharding=whole)
        return joined + params["out_bias"][None] if "out_bias" in params else joined
