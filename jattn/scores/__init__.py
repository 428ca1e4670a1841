"""Scores: score modifiers, *what* a score becomes before the softmax.

A score is a function of one number and two positions, f(score, q_position, k_position) -> score. Any function will do,
closing over any arrays, which then have their gradients. Those that are made here are values besides: their arrays are
leaves, so that `vmap` gives each head its own, they print as the code that made them, and equal ones are compiled once.

    soft_cap(cap)                c · tanh(score / c)
    temperature(tau)             score / τ
    alibi(slope)                 score − m·|t − s|
    relative_bias(table)         score + table[bucket of s − t], the buckets of T5
    distance_bias(table)         score + table[s − t], the farthest entries for all that is farther
    compose(f, g, ...)           f first, then g

A score for each head is the same score, mapped:

    >>> import jax, jattn
    >>> from jattn import scores
    >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 8, 6, 4))      # 8 heads
    >>> head = lambda q, k, v, slope: jattn.attention(q, k, v, score=scores.alibi(slope))
    >>> jax.vmap(head)(q, k, v, scores.alibi_slopes(8)).shape
    (8, 6, 4)
"""

from jattn._types import ScoreModifier
from jattn.scores._pointwise import OfPairs as OfPairs
from jattn.scores._pointwise import Score, alibi, alibi_slopes, compose, soft_cap, temperature
from jattn.scores._relative import bucket, distance_bias, relative_bias

__all__ = [
    "Score",
    "ScoreModifier",
    "alibi",
    "alibi_slopes",
    "bucket",
    "compose",
    "distance_bias",
    "relative_bias",
    "soft_cap",
    "temperature",
]
