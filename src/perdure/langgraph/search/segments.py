"""Immutable parts of a namespace's index: vectors as one matrix, terms as lists of the items that have them.

A change adds a part with the items that changed, and these items are skipped in older parts. Small parts are
joined to larger ones, so that a namespace of n items has about log n of them, and a change costs as much as
the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from perdure.errors import MissingExtra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]
    Flags = NDArray[np.bool_]
    Numbers = NDArray[np.int64]

__all__ = ["Distance", "IndexSegment", "IndexedItem", "Postings", "build", "import_numpy", "join"]

Distance = Literal["cosine", "l2", "inner_product"]
"""The distance by which vectors are compared, as LangGraph's ``PostgresIndexConfig`` names it."""

_ITEM_BYTES = 300
_TERM_BYTES = 120
_ROWS_AT_ONCE = 4096


def import_numpy() -> Any:
    """Return the module; raise ``MissingExtra`` if it is not installed."""
    try:
        import numpy
    except ImportError as error:
        raise MissingExtra('a search index needs an extra: pip install "perdure[search]"') from error
    return numpy


class IndexedItem(NamedTuple):
    """An item that a search can find.

    Attributes:
        key: Its key.
        content: Digest of the value that was indexed.
        vectors: Its vectors, 32-bit floats; none if it is found by its words only.
        terms: The terms of its texts with their counts; none if it is found by its vectors only.
    """

    key: str
    content: bytes
    vectors: tuple[bytes, ...]
    terms: Mapping[str, int]


class Postings(NamedTuple):
    """The items that have a term, by their places in a segment, and how often each has it."""

    places: Numbers
    counts: Matrix


@dataclass(frozen=True, eq=False)
class IndexSegment:
    """Items that were indexed together.

    Attributes:
        keys: The keys of the items.
        contents: The digests of their values.
        distance: The distance by which vectors are compared.
        matrix: All vectors, those of an item next to each other; for cosines they are of length 1.
        owners: For each item with vectors its place in ``keys``.
        starts: For each item with vectors its first row in ``matrix``.
        vocabulary: The number of each term.
        offsets: By a term's number, where its postings start; one more at the end.
        postings: The places and counts of all terms, one term after the other.
        lengths: For each item the number of its terms.
    """

    keys: tuple[str, ...]
    contents: tuple[bytes, ...]
    distance: Distance
    matrix: Matrix
    owners: Numbers
    starts: Numbers
    vocabulary: Mapping[str, int] = field(repr=False)
    offsets: Numbers
    postings: Postings
    lengths: Matrix

    @property
    def size(self) -> int:
        """Bytes that are held, about."""
        arrays = (self.matrix, self.owners, self.starts, self.offsets, *self.postings, self.lengths)
        array_bytes = sum(int(array.nbytes) for array in arrays)
        return array_bytes + _ITEM_BYTES * len(self.keys) + _TERM_BYTES * len(self.vocabulary)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each key."""
        return {key: place for place, key in enumerate(self.keys)}

    def likeness(self, query: Matrix) -> Matrix:
        """Return for each item the score of its vector nearest to the query, NaN for one without vectors: the
        cosine, the inner product, or the negative Euclidean distance, as in LangGraph's ``PostgresStore``."""
        np = import_numpy()
        out: Matrix = np.full(len(self.keys), np.nan, dtype=np.float32)
        if len(self.owners):
            scores = self._scores(query)
            # The vectors of an item are neighbours, so its best score is the maximum of a stretch.
            has_one_each = len(self.owners) == len(scores)
            if has_one_each:
                out[self.owners] = scores
            else:
                out[self.owners] = np.maximum.reduceat(scores, self.starts)
        return out

    def _scores(self, query: Matrix) -> Matrix:
        """Return the score of each vector."""
        np = import_numpy()
        if self.distance == "l2":
            # Part by part, as the difference from the query is as large as the matrix.
            scores: Matrix = np.empty(len(self.matrix), dtype=np.float32)
            for start in range(0, len(scores), _ROWS_AT_ONCE):
                some = slice(start, start + _ROWS_AT_ONCE)
                scores[some] = -np.linalg.norm(self.matrix[some] - query, axis=1)
            return scores
        if self.distance == "cosine":
            query = (query / (float(np.linalg.norm(query)) or 1.0)).astype(np.float32)
        return self.matrix @ query

    def find_postings(self, term: str, alive: Flags | None) -> Postings | None:
        """Return the items that have a term and are ``alive``; ``None`` if there are none."""
        number = self.vocabulary.get(term)
        if number is None:
            return None
        span = slice(self.offsets[number], self.offsets[number + 1])
        places, counts = self.postings.places[span], self.postings.counts[span]
        if alive is None:
            return Postings(places, counts)
        kept = alive[places]
        if kept.any():
            return Postings(places[kept], counts[kept])
        return None


def build(items: Sequence[IndexedItem], dims: int, distance: Distance = "cosine") -> IndexSegment:
    """Return a segment of items whose vectors have ``dims`` numbers."""
    np = import_numpy()
    rows = np.frombuffer(b"".join(chain.from_iterable(item.vectors for item in items)), dtype="<f4")
    rows = rows.reshape(-1, max(1, dims))
    if distance == "cosine":
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / np.where(lengths == 0, 1, lengths)
    counts = np.array([len(item.vectors) for item in items], dtype=np.int64)
    owners = np.flatnonzero(counts)
    starts = (np.cumsum(counts) - counts)[owners]
    vocabulary: dict[str, int] = {}
    terms: list[int] = []
    places: list[int] = []
    times: list[int] = []
    for place, item in enumerate(items):
        for term, count in item.terms.items():
            terms.append(vocabulary.setdefault(term, len(vocabulary)))
            places.append(place)
            times.append(count)
    offsets, postings = _group_by_term(
        np.array(terms, dtype=np.int64), np.array(places), np.array(times), len(vocabulary)
    )
    return IndexSegment(
        keys=tuple(item.key for item in items),
        contents=tuple(item.content for item in items),
        distance=distance,
        matrix=rows.astype(np.float32),
        owners=owners,
        starts=starts,
        vocabulary=vocabulary,
        offsets=offsets,
        postings=postings,
        lengths=np.array([sum(item.terms.values()) for item in items], dtype=np.float32),
    )


def join(parts: Sequence[tuple[IndexSegment, Flags | None]]) -> IndexSegment:
    """Return one segment of several, without the items that are not alive."""
    np = import_numpy()
    keys: list[str] = []
    contents: list[bytes] = []
    vocabulary: dict[str, int] = {}
    arrays: dict[str, list[Any]] = {name: [] for name in _JOINED}
    rows = 0
    for segment, flags in parts:
        if flags is None:
            alive = np.ones(len(segment.keys), dtype=bool)
        else:
            alive = flags
        moved = np.cumsum(alive) - 1 + len(keys)
        per_item = np.diff(np.append(segment.starts, len(segment.matrix)))
        kept = alive[segment.owners]
        kept_counts = per_item[kept]
        arrays["matrix"].append(segment.matrix[np.repeat(kept, per_item)])
        arrays["owners"].append(moved[segment.owners[kept]])
        arrays["starts"].append(np.cumsum(kept_counts) - kept_counts + rows)
        rows += int(kept_counts.sum())
        is_kept = alive[segment.postings.places]
        terms = np.repeat(np.arange(len(segment.vocabulary)), np.diff(segment.offsets))[is_kept]
        # Terms that no remaining item has are forgotten: a changing text would fill the memory with them.
        remain = (np.bincount(terms, minlength=len(segment.vocabulary)) > 0).tolist()
        numbers = np.array(
            [
                vocabulary.setdefault(term, len(vocabulary)) if remains else -1
                for term, remains in zip(segment.vocabulary, remain, strict=True)
            ],
            dtype=np.int64,
        )
        arrays["terms"].append(numbers[terms])
        arrays["places"].append(moved[segment.postings.places[is_kept]])
        arrays["counts"].append(segment.postings.counts[is_kept])
        arrays["lengths"].append(segment.lengths[alive])
        keys += _keep_alive(segment.keys, alive)
        contents += _keep_alive(segment.contents, alive)
    combined = {name: np.concatenate(found) for name, found in arrays.items()}
    offsets, postings = _group_by_term(
        combined["terms"], combined["places"], combined["counts"], len(vocabulary)
    )
    return IndexSegment(
        keys=tuple(keys),
        contents=tuple(contents),
        distance=parts[0][0].distance,
        matrix=combined["matrix"],
        owners=combined["owners"],
        starts=combined["starts"],
        vocabulary=vocabulary,
        offsets=offsets,
        postings=postings,
        lengths=combined["lengths"],
    )


_JOINED = ("matrix", "owners", "starts", "terms", "places", "counts", "lengths")


def _keep_alive(values: Iterable[Any], alive: Flags) -> list[Any]:
    return [value for value, kept in zip(values, alive.tolist(), strict=True) if kept]


def _group_by_term(terms: Any, places: Any, counts: Any, number: int) -> tuple[Numbers, Postings]:
    """Return where each term's postings start, and the postings in the order of terms."""
    np = import_numpy()
    order = np.argsort(terms, kind="stable")
    offsets = np.zeros(number + 1, dtype=np.int64)
    np.cumsum(np.bincount(terms, minlength=number), out=offsets[1:])
    return offsets, Postings(places[order].astype(np.int64), counts[order].astype(np.float32))
