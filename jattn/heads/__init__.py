"""Heads: tokens in, tokens out. Projections as pure functions of a plain dict of arrays, around `attention`.

A head's shape says everything: there is no configuration. `params["q"]` [E, H, D] and `params["k"]` [C, Hkv, D] make
it multi-head (Hkv = H), grouped (Hkv divides H) or multi-query (Hkv = 1); a `q_bias` adds a bias because it is there.

    multi_head = project → grouped → output          multi-head, grouped, multi-query; self and cross
    latent_expanded = latent_absorbed                multi-head latent attention, in its two forms
    head_scores                                      what a head attends: the token before, duplicates, induction, …
    effects, agreement, backward_lens                what a head does: by its gradient, a knock-out, what it would learn

No batch: map with jax.vmap, in_axes (None, 0).
"""

from jattn.heads._effects import Agreement, BackwardLens, Effects, agreement, backward_lens, effects
from jattn.heads._latent import latent_absorbed, latent_expanded, latent_init, latents
from jattn.heads._multi import Rope, grouped, init, multi_head, output, project
from jattn.heads._norm import rms_norm
from jattn.heads._params import Initializer, Params
from jattn.heads._per_head import PerHead
from jattn.heads._scores import HeadScoreOptions, HeadScores, head_scores

__all__ = [
    "Agreement",
    "BackwardLens",
    "Effects",
    "HeadScoreOptions",
    "HeadScores",
    "Initializer",
    "Params",
    "PerHead",
    "Rope",
    "agreement",
    "backward_lens",
    "effects",
    "grouped",
    "head_scores",
    "init",
    "latent_absorbed",
    "latent_expanded",
    "latent_init",
    "latents",
    "multi_head",
    "output",
    "project",
    "rms_norm",
]
