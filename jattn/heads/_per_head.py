"""Options that each head has of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jattn import _errors
from jattn._types import ArrayLike, ArrayTree, PRNGKey
from jattn.arguments.heads import group_size, merge_heads, split_heads, vmap_heads
from jattn.arguments.options import one_key

PerHead: TypeAlias = Mapping[str, ArrayTree]
"""Options of `attention` with a leading axis H in their leaves."""
PER_HEAD = ("mask", "score", "bias", "sink", "scale", "q_positions", "k_positions", "dropout_rate", "dropout_key")
"""Which of them a head of `attention` may have of its own."""


def has_own(per_head: PerHead | None, name: str) -> bool:
    """Whether each head has such an option of its own."""
    return isinstance(per_head, Mapping) and per_head.get(name) is not None


def own_options(
    caller: str, per_head: PerHead | None, known: Sequence[str], shared: Mapping[str, Any]
) -> dict[str, ArrayTree]:
    """The options that each head has of its own, `known` ones that are not among the `shared`; None is not given."""
    if not isinstance(per_head or {}, Mapping):
        remedy, got = 'Write {"sink": [H]}.', {"per_head": f"of type {type(per_head).__name__}"}
        _errors.fail(TypeError, caller, "per_head must be a mapping of options by name", remedy, **got)
    own = {name: x for name, x in (per_head or {}).items() if x is not None}
    for name in own:
        if name not in known:
            remedy = f"A head may have its own {', '.join(known)}."
            _errors.fail(TypeError, caller, "each option in per_head must be known", remedy, option=str(name))
        if shared.get(name) is not None:
            remedy = f"Leave out one of {name} and per_head[{name!r}]."
            _errors.fail(
                TypeError, caller, f"{name} must be given once", remedy, **{name: "for all heads and for each"}
            )
    return own


def in_every_head(
    caller: str,
    head: Callable[..., Any],
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    own: dict[str, ArrayTree],
    dropout_key: PRNGKey | None = None,
) -> Any:
    """`head`(q [T, D], k [S, D], v [S, Dv], own) in each of H heads, which share k and v in groups: leaves [H, …].

    Of a dropout_key each head has its own in `own`.
    """
    no_batch = "No batch: map with jax.vmap."
    q, k, v = (_errors.array(caller, name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    _errors.rank(caller, 3, "[H, T, D]", no_batch, q=q)
    _errors.rank(caller, 3, "[Hkv, S, D]", no_batch, k=k, v=v)
    H, Hkv = q.shape[0], k.shape[0]
    must = "H must be a multiple of Hkv, in k and v alike"
    numbers = (H, Hkv) if v.shape[0] == Hkv else (1, 2)  # where k and v differ, numbers that do not divide
    group_size(caller, *numbers, must, q=q, k=k, v=v)
    for leaf in jax.tree.leaves(own):
        if jnp.shape(leaf)[:1] != (H,):
            remedy = "What all heads share goes beside it, as an option of its own."
            _errors.fail(ValueError, caller, f"per_head must have one entry a head, H = {H}", remedy, per_head=leaf)
    if dropout_key is not None:
        own = own | {"dropout_key": jax.random.split(one_key(caller, dropout_key), H)}
    own = jax.tree.map(lambda a: split_heads(jnp.asarray(a), Hkv), own)
    return jax.tree.map(merge_heads, vmap_heads(head, [0, 0])(split_heads(q, Hkv), k, v, own))
