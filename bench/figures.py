"""The three numbers that the tables are made of. Ratios are taken inside a round, then the median of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

__all__ = ["median", "median_ratio", "percentile"]


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: always a value that was measured."""
    if not values:
        raise ValueError("no values were measured")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """How many times ours theirs is, round by round; drift of the machine hits both halves of a pair."""
    pairs = [(mine, other) for mine, other in zip(ours, theirs, strict=False) if mine > 0]
    return median(other / mine for mine, other in pairs) if pairs else None
