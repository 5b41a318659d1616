"""Order of the items of namespaces by a query: by vectors, by words, or by both.

The score of vectors is the likeness of an item's nearest vector. The score of words is Okapi BM25, divided by
the most that the query's words can give, so that it lies between 0 and 1 whatever the query. If both are
compared, the likeness is rescaled to the range from 0 to 1, and the two are added by weight. Counts of words
are those of the searched namespaces: what others store has no influence on a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.engine.items.nearest_items import Candidate
from perdure.langgraph.search.cache import NamespaceIndex, Part
from perdure.langgraph.search.segments import import_numpy
from perdure.model.records import Partition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Scores = NDArray[np.float32]

__all__ = ["RankedQuery", "rank"]

_SATURATION = 1.2
_LENGTH_SHARE = 0.75
_GROWTH = 8


class RankedQuery(NamedTuple):
    """A query as it is compared.

    Attributes:
        vector: Its vector, ``None`` for words alone.
        terms: Its terms with their counts, ``None`` for vectors alone.
        vector_weight: The share of the vectors in the score if both are given, from 0 to 1.
    """

    vector: Scores | None
    terms: Mapping[str, int] | None
    vector_weight: float = 0.0


class _Place(NamedTuple):
    partition: Partition
    part: Part


def rank(found: Mapping[Partition, NamespaceIndex], query: RankedQuery, least: int) -> Iterator[Candidate]:
    """Yield the items of namespaces in the order of their scores, the best first, equal ones by name.

    With a vector every item is yielded; without one those that share a word with the query.

    Args:
        found: The namespaces.
        query: The query.
        least: The number of items that are needed at least: further ones are sorted only when these are used
            up.
    """
    np = import_numpy()
    places = [_Place(partition, part) for partition, index in sorted(found.items()) for part in index.parts]
    if not places:
        return
    scores = _score_all(np, places, found, query)
    starts = np.cumsum([0, *(len(place.part.segment.keys) for place in places)])
    owner = np.searchsorted(starts, np.arange(starts[-1]), side="right") - 1
    shown = np.flatnonzero(~np.isnan(scores))
    for some in _sort_best_first(np, scores, shown, least):
        candidates = [
            Candidate(
                float(scores[position]),
                place.partition,
                place.part.segment.keys[position - starts[number]],
                place.part.segment.contents[position - starts[number]],
                found[place.partition].generation,
            )
            for position in some
            for number in (int(owner[position]),)
            for place in (places[number],)
        ]
        yield from sorted(candidates, key=lambda each: (-each.score, each.partition, each.key))


def _sort_best_first(np: Any, scores: Scores, shown: Any, least: int) -> Iterator[Any]:
    """Yield positions in parts that grow, the best first; equal scores are in one part."""
    size = max(1, least)
    while size < len(shown):
        known = scores[shown]
        is_best = known >= np.partition(known, len(known) - size)[len(known) - size]
        yield shown[is_best]
        shown = shown[~is_best]
        size *= _GROWTH
    yield shown


def _score_all(
    np: Any, places: list[_Place], found: Mapping[Partition, NamespaceIndex], query: RankedQuery
) -> Scores:
    """Return the score of each item of the parts, one part after the other, NaN for those not to be found."""
    if query.vector is None:
        likeness = None
    else:
        likeness = np.concatenate([place.part.segment.likeness(query.vector) for place in places])
    if query.terms is None and likeness is not None:
        return _drop_dead(np, places, likeness)
    words = _score_bm25(np, places, found, query.terms or {})
    if likeness is None:
        return _drop_dead(np, places, np.where(words > 0, words, np.nan))
    share = query.vector_weight
    both = share * _rescale(np, _drop_dead(np, places, likeness)) + (1 - share) * words
    return _drop_dead(np, places, np.where(np.isnan(likeness) & (words <= 0), np.nan, both))


def _rescale(np: Any, likeness: Scores) -> Scores:
    """Return the likeness on the scale from the least, 0, to the greatest, 1. Models differ in its range: the
    cosine of unrelated texts is 0.1 in one, and 0.8 in another."""
    known = likeness[~np.isnan(likeness)]
    if len(known):
        least, greatest = (float(known.min()), float(known.max()))
    else:
        least, greatest = (0.0, 0.0)
    if least == greatest:
        return np.zeros_like(likeness)  # type: ignore[no-any-return]
    return np.where(np.isnan(likeness), 0, (likeness - least) / (greatest - least))  # type: ignore[no-any-return]


def _drop_dead(np: Any, places: list[_Place], scores: Scores) -> Scores:
    parts = [place.part for place in places]
    if all(part.alive is None for part in parts):
        return scores
    flags = [np.ones(len(p.segment.keys), dtype=bool) if p.alive is None else p.alive for p in parts]
    return np.where(np.concatenate(flags), scores, np.nan)  # type: ignore[no-any-return]


def _score_bm25(
    np: Any, places: list[_Place], found: Mapping[Partition, NamespaceIndex], terms: Mapping[str, int]
) -> Scores:
    counts, totals = zip(*(index.texts for index in found.values()), strict=True)
    items, total = sum(counts), sum(totals)
    average = total / items if items else 1.0
    norms = [
        _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * place.part.segment.lengths / average)
        for place in places
    ]
    scores = [np.zeros(len(place.part.segment.keys), dtype=np.float32) for place in places]
    most = 0.0
    for term, times in terms.items():
        having = [place.part.segment.find_postings(term, place.part.alive) for place in places]
        number = sum(len(postings.places) for postings in having if postings is not None)
        weight = times * float(np.log1p((items - number + 0.5) / (number + 0.5)))
        most += weight * (_SATURATION + 1)
        for score, norm, postings in zip(scores, norms, having, strict=True):
            if postings is not None:
                count = postings.counts
                score[postings.places] += weight * (_SATURATION + 1) * count / (count + norm[postings.places])
    out = np.concatenate(scores)
    return out / most if most else out  # type: ignore[no-any-return]
