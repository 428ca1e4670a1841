"""Multi-head latent attention: every head's keys and values are read off one short latent a token."""

from typing import Unpack

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._numerics import cut_as
from jattn._types import Array, ArrayLike, DTypeLike, Float, Integer, PRNGKey
from jattn.heads._multi import ROPE, Rope, grouped, output
from jattn.heads._norm import rms_norm
from jattn.heads._params import LECUN, TRAINED_IN, Initializer, Params, fit, held, matrices, standard
from jattn.heads._per_head import PerHead, has_own
from jattn.one_head import SharedOptions


def latent_init(
    key: PRNGKey,
    width: int,
    *,
    heads: int,
    head_dim: int,
    rope_dim: int,
    value_dim: int,
    kv_rank: int,
    q_rank: int | None = None,
    initializer: Initializer = LECUN,
    dtype: DTypeLike = jnp.float32,
) -> dict[str, jax.Array]:
    """The parameters of `latent_expanded` and `latent_absorbed`, drawn as in `init`: mean 0, variance 1 / fan_in.

    Args:
      key: a key of jax.random.
      width: E.
      heads: H.
      head_dim: D, of the part of q and k that positions leave alone.
      rope_dim: R, of the part that is rotated; the keys of all heads share it.
      value_dim: Dv.
      kv_rank: C, of the latent of keys and values.
      q_rank: of the latent of queries; None for none.
      initializer, dtype: as in `init`.

    Returns:
      q [E, H, D + R], or q_down [E, Q], q_latent_norm [Q] and q [Q, H, D + R]; kv_down [E, C], kv_norm [C],
      k [C, H, D], v [C, H, Dv]; k_rope [E, R]; out [H, Dv, E]. Norms are 1.

    Raises:
      TypeError: a size is not a whole number, or the dtype not floating point.
      ValueError: a size is below 1, or head_dim or rope_dim below 0.

    Memory: that of the parameters.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1 and appendix C.

    Example:
      >>> import jax
      >>> from jattn import heads
      >>> params = heads.latent_init(jax.random.key(0), 32, heads=4, head_dim=8, rope_dim=4, value_dim=8, kv_rank=6)
      >>> params["q"].shape, params["kv_down"].shape, params["k"].shape
      ((32, 4, 12), (32, 6), (6, 4, 8))
    """
    given = {"width": width, "heads": heads, "head_dim": head_dim, "rope_dim": rope_dim, "value_dim": value_dim}
    given |= {"kv_rank": kv_rank} | ({} if q_rank is None else {"q_rank": q_rank})
    for name, n in given.items():
        _errors.count("latent_init", name, n, least=0 if name in ("head_dim", "rope_dim") else 1)
    dtype = _errors.dtype("latent_init", dtype, TRAINED_IN)
    shapes: dict[str, tuple[int, ...]] = {
        "q": (q_rank or width, heads, head_dim + rope_dim),
        "kv_down": (width, kv_rank),
        "k": (kv_rank, heads, head_dim),
        "v": (kv_rank, heads, value_dim),
        "k_rope": (width, rope_dim),
        "out": (heads, value_dim, width),
    } | ({"q_down": (width, q_rank)} if q_rank else {})
    norms = {"kv_norm": jnp.ones(kv_rank, dtype)} | ({"q_latent_norm": jnp.ones(q_rank, dtype)} if q_rank else {})
    return matrices(key, shapes, initializer, dtype) | norms


def latents(
    params: Params,
    x: Float[ArrayLike, "T E"],
    *,
    positions: Integer[ArrayLike, " T"] | None = None,
    rope: Rope,
    eps: float = 1e-6,
) -> tuple[Float[Array, "H T D"], Float[Array, "H T R"], Float[Array, "T C"], Float[Array, "T R"]]:
    """What each token asks, and what is kept of it: the part that both forms of latent attention share.

    Args:
      params: as `latent_init` makes them.
      x: [T, E].
      positions: integers [T], in tokens; 0, 1, 2, … if None.
      rope: f(x [T, R], positions [T]) -> [T, R], as functools.partial(rotary, interleaved=True).
      eps: added to the mean square in the norms of the latents.

    Returns:
      q [H, T, D], and the part of it that is rotated [H, T, R]; the latent of keys and values [T, C] and the rotated
      part of the keys [T, R]: C + R numbers a token are all that a cache needs.

    Raises:
      TypeError: params are no mapping, or rope is no function.
      ValueError: x is not [T, E], E as wide as params take; or params lack a matrix or do not fit one another.

    Memory: T·(H·(D + R) + C + R) numbers.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", eq. 37 to 43.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jattn import heads, positions
      >>> params = heads.latent_init(jax.random.key(0), 32, heads=4, head_dim=8, rope_dim=4, value_dim=8, kv_rank=6)
      >>> [part.shape for part in heads.latents(params, jnp.ones((7, 32)), rope=positions.rotary)]
      [(4, 7, 8), (4, 7, 4), (7, 6), (7, 4)]
    """
    caller = "latents"
    kept = ("kv_down E C", "kv_norm C", "k C H D", "v C H Dv", "k_rope E R", "q_down E Q", "q_latent_norm Q")
    held(caller, params, "kv_down", "kv_norm", "k", "v", "k_rope", "q")
    if "q_down" in params:
        held(caller, params, "q_latent_norm")
    _errors.takes(caller, "rope", rope, 2, ROPE, "arguments")
    lengths = fit(caller, params, kept)
    lengths["D+R"] = params["k"].shape[2] + params["k_rope"].shape[1]
    fit(caller, params, (f"q {'Q' if 'q_down' in params else 'E'} H D+R",), **lengths)
    x = _errors.array(caller, "x", x)
    _errors.rank(caller, 2, "[T, E]", "No batch: map with jax.vmap, in_axes (None, 0).", x=x)
    if x.shape[1] != params["kv_down"].shape[0]:
        remedy = "Make params for this width: latent_init(key, width, ...)."
        _errors.fail(
            ValueError, caller, "x [T, E] must be as wide as params take", remedy, x=x, kv_down=params["kv_down"]
        )
    rows = jnp.arange(x.shape[0], dtype=jnp.int32)
    positions = rows if positions is None else _errors.array(caller, "positions", positions)
    with standard():
        asked = rms_norm(x @ params["q_down"], params["q_latent_norm"], eps=eps) if "q_down" in params else x
        q = jnp.einsum("te,ehd->htd", asked, params["q"])
        latent, k_rope = rms_norm(x @ params["kv_down"], params["kv_norm"], eps=eps), x @ params["k_rope"]
    D = params["k"].shape[2]
    q_rope = jax.vmap(rope, (0, None))(q[:, :, D:], positions)
    return q[:, :, :D], q_rope, latent, rope(k_rope, positions)


def latent_expanded(
    params: Params,
    x: Float[ArrayLike, "T E"],
    *,
    positions: Integer[ArrayLike, " T"] | None = None,
    rope: Rope,
    eps: float = 1e-6,
    per_head: PerHead | None = None,
    **options: Unpack[SharedOptions],
) -> Float[Array, "T E"]:
    """Multi-head latent attention with each head's keys and values written out: the form to train in.

        l_tsh = scale · (⟨q_th, c_s K_h⟩ + ⟨rotated q_th, rotated k_s⟩),    out_t = Σ_h Σ_s w_tsh (c_s V_h) · out_h

    No batch: map with jax.vmap, in_axes (None, 0).

    Args:
      params, x, positions, rope, eps: as in `latents`.
      per_head, **options: as in `multi_head`; scale is 1/√(D + R) if it is not given.

    Returns:
      [T, E].

    Raises:
      TypeError, ValueError: as `latents` and `attention`.

    Memory: linear in T; T · H · (D + R + Dv) for keys and values.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2.

    Example:
      >>> import jax, jax.numpy as jnp, jattn
      >>> from jattn import heads, positions
      >>> params = heads.latent_init(jax.random.key(0), 32, heads=4, head_dim=8, rope_dim=4, value_dim=8, kv_rank=6)
      >>> x = jax.random.normal(jax.random.key(1), (7, 32))
      >>> how = {"rope": positions.rotary, "mask": jattn.masks.causal()}
      >>> written_out, absorbed = heads.latent_expanded(params, x, **how), heads.latent_absorbed(params, x, **how)
      >>> bool(jnp.allclose(written_out, absorbed, atol=1e-5))
      True
    """
    q, q_rope, latent, k_rope = latents(params, x, positions=positions, rope=rope, eps=eps)
    with standard():
        k = jnp.einsum("sc,chd->hsd", latent, params["k"])
        v = jnp.einsum("sc,chd->hsd", latent, params["v"])
        k_rope = cut_as(k, jnp.broadcast_to(k_rope[None], (k.shape[0], *k_rope.shape)))
        q, k = jnp.concatenate([q, q_rope], 2), jnp.concatenate([k, k_rope], 2)
    out = grouped(q, k, v, per_head=per_head, q_positions=positions, k_positions=positions, **options)
    return output(params, out, x)


def latent_absorbed(
    params: Params,
    x: Float[ArrayLike, "T E"],
    *,
    positions: Integer[ArrayLike, " T"] | None = None,
    rope: Rope,
    eps: float = 1e-6,
    per_head: PerHead | None = None,
    **options: Unpack[SharedOptions],
) -> Float[Array, "T E"]:
    """The same as `latent_expanded`, with K_h absorbed into the queries and V_h into the output: the form to decode in.

        ⟨q_th, c_s K_h⟩ = ⟨q_th K_hᵀ, c_s⟩,    Σ_s w_tsh (c_s V_h) = (Σ_s w_tsh c_s) V_h

    Every head then reads one shared key, the latent beside its rotated part, and one shared value, the latent itself.
    No batch: map with jax.vmap, in_axes (None, 0).

    Args:
      params, x, positions, rope, eps: as in `latents`.
      per_head, **options: as in `latent_expanded`.

    Returns:
      [T, E].

    Raises:
      TypeError, ValueError: as `latents` and `attention`.

    Memory: linear in T; T · (C + R) for keys and values, whatever H.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2, where the matrices are absorbed in inference.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jattn import heads, positions
      >>> params = heads.latent_init(jax.random.key(0), 32, heads=4, head_dim=8, rope_dim=4, value_dim=8, kv_rank=6)
      >>> heads.latent_absorbed(params, jnp.ones((7, 32)), rope=positions.rotary).shape
      (7, 32)
    """
    q, q_rope, latent, k_rope = latents(params, x, positions=positions, rope=rope, eps=eps)
    if not has_own(per_head, "scale"):
        options = {"scale": (q.shape[2] + q_rope.shape[2]) ** -0.5} | options
    with standard():
        q = jnp.concatenate([jnp.einsum("htd,chd->htc", q, params["k"]), q_rope], 2)
        k = jnp.concatenate([latent, k_rope], 1)
    out = grouped(q, k[None], latent[None], per_head=per_head, q_positions=positions, k_positions=positions, **options)
    with standard():
        out = jnp.einsum("htc,chd->htd", out, params["v"])
    return output(params, out, x)
