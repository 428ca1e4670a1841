"""The cases of a product of which `make test` runs covering pairs, and `--all` each."""

import itertools

import pytest


def covering(*axes):
    """Each case of the product; marked exhaustive but for some in which all pairs of values of two axes occur."""
    cases = list(itertools.product(*axes))
    axes_by_two = list(itertools.combinations(range(len(axes)), 2))
    places = dict(zip(cases, itertools.product(*(range(len(axis)) for axis in axes)), strict=True))

    def pairs(case):
        at = places[case]
        return {(a, at[a], b, at[b]) for a, b in axes_by_two}

    left, asked = set().union(*map(pairs, cases)), []
    while left:
        asked.append(max(cases, key=lambda case: len(pairs(case) & left)))  # of equals the first
        left -= pairs(asked[-1])
    names = {case: "-".join(map(str, case)) for case in cases}
    return [pytest.param(*c, id=names[c], marks=() if c in asked else pytest.mark.exhaustive) for c in cases]
