"""Products of parameters, of which the quick run takes as many tests as show each pair of values."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest


def pairwise(**parameters: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with the product of three or more parameters. In the quick run each two values of
    two parameters meet in a test; the rest of the product is slow."""
    names = tuple(parameters)
    every = list(product(*parameters.values()))
    quick = meeting_pairs(every)
    return pytest.mark.parametrize(
        names,
        [pytest.param(*values, marks=[] if values in quick else [pytest.mark.slow]) for values in every],
    )


def meeting_pairs(every: Iterable[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """Return a part of a product, always the same, in which all pairs of the whole occur: first what brings
    the most new pairs."""
    left = [(values, set(combinations(enumerate(values), 2))) for values in every]
    shown = set[Any]()
    chosen = set[tuple[Any, ...]]()
    for new in range(max((len(pairs) for _, pairs in left), default=0), 0, -1):
        for values, pairs in left:
            if len(pairs - shown) >= new:
                chosen.add(values)
                shown |= pairs
    return chosen
