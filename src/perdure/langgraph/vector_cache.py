"""Vectors of namespaces that were searched, kept in memory and brought up to date by generation.

A search compares the query with every vector of its namespaces. That takes milliseconds for tens of thousands
of vectors in one matrix; reading them from the database takes far longer, so the matrices are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from perdure.engine.items import Candidate
from perdure.engine.search_index import IndexChanges
from perdure.errors import MissingExtra
from perdure.model.records import Partition
from perdure.storage.port import Driver

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

Mark = Callable[[tuple[str, ...] | None], bytes]
_NAMESPACE_BYTES = 1000
_ENTRY_BYTES = 300

MOST_BYTES = 256 << 20
"""Bytes of vectors that are kept at most; the namespaces searched longest ago are forgotten first."""


def numpy() -> Any:
    """Return the module; raise ``MissingExtra`` if it is not installed."""
    try:
        import numpy
    except ImportError as error:
        raise MissingExtra('a search index needs an extra: pip install "perdure[search]"') from error
    return numpy


@dataclass(frozen=True, slots=True)
class _Indexed:
    version: int
    content: bytes
    rows: Matrix


@dataclass(frozen=True, slots=True)
class NamespaceVectors:
    """The vectors of one namespace as of a generation.

    Attributes:
        generation: The generation.
        outdated: Keys of entries that another embedding model made.
        rows: The number of vectors.
    """

    generation: int | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    outdated: frozenset[str] = frozenset()
    _items: Mapping[str, _Indexed] = field(default_factory=dict)
    _keys: tuple[str, ...] = ()
    _matrix: Matrix | None = None
    _starts: Any = None

    @property
    def rows(self) -> int:
        return 0 if self._matrix is None else len(self._matrix)

    @property
    def size(self) -> int:
        """Bytes that are held, about: the vectors twice, alone, so that a change replaces few, and as one."""
        held = 0 if self._matrix is None else 2 * self._matrix.nbytes
        return _NAMESPACE_BYTES + _ENTRY_BYTES * len(self.versions) + held

    def changed(self, changes: IndexChanges, mark: Mark, dims: int) -> NamespaceVectors:
        """Return the vectors after some changes.

        Args:
            changes: The changes.
            mark: Returns the mark that entries with some paths have now.
            dims: The length of a vector.
        """
        np = numpy()
        versions, items, outdated = dict(self.versions), dict(self._items), set(self.outdated)
        for key in (*changes.removed, *changes.written):
            versions.pop(key, None)
            items.pop(key, None)
            outdated.discard(key)
        for key, (version, entry) in changes.written.items():
            versions[key] = version
            if entry.vectors and entry.model != mark(entry.paths):
                outdated.add(key)
            elif entry.vectors:
                rows = np.frombuffer(b"".join(entry.vectors), dtype="<f4").reshape(-1, dims)
                lengths = np.linalg.norm(rows, axis=1, keepdims=True)
                items[key] = _Indexed(version, entry.content, rows / np.where(lengths == 0, 1, lengths))
        keys = tuple(sorted(items))
        if not keys:
            return NamespaceVectors(changes.generation, versions, frozenset(outdated))
        matrix = np.concatenate([items[key].rows for key in keys])
        starts = np.cumsum([0, *(len(items[key].rows) for key in keys[:-1])])
        return NamespaceVectors(
            changes.generation, versions, frozenset(outdated), items, keys, matrix, starts
        )

    def scores(self, query: Matrix) -> Matrix | None:
        """Return the score of each item, the cosine of its nearest vector; ``None`` without items."""
        if self._matrix is None:
            return None
        # The vectors of an item are neighbours, so its best one is the largest of a stretch.
        best: Matrix = numpy().maximum.reduceat(self._matrix @ query, self._starts)
        return best

    def candidate(self, partition: Partition, item: int, score: float) -> Candidate:
        """Return an item by its position in ``scores``."""
        key = self._keys[item]
        return Candidate(score, partition, key, self._items[key].content)


class _Held:
    """The namespaces of one database, the ones searched longest ago first, and their bytes."""

    def __init__(self) -> None:
        self.namespaces: OrderedDict[Partition, NamespaceVectors] = OrderedDict()
        self.bytes = 0


class VectorCache:
    """The vectors of the namespaces of any number of databases; safe in many threads."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = Lock()
        self._held: WeakKeyDictionary[Driver, _Held] = WeakKeyDictionary()

    def get(self, driver: Driver, partition: Partition) -> NamespaceVectors:
        """Return what is kept of a namespace, at first nothing."""
        with self._lock:
            held = self._held.get(driver)
            found = None if held is None else held.namespaces.get(partition)
            if held is None or found is None:
                return NamespaceVectors()
            held.namespaces.move_to_end(partition)
            return found

    def put(self, driver: Driver, partition: Partition, vectors: NamespaceVectors) -> None:
        """Keep the vectors of a namespace."""
        with self._lock:
            held = self._held.setdefault(driver, _Held())
            before = held.namespaces.pop(partition, None)
            held.bytes += vectors.size - (0 if before is None else before.size)
            held.namespaces[partition] = vectors
            while held.bytes > self._most and len(held.namespaces) > 1:
                _, forgotten = held.namespaces.popitem(last=False)
                held.bytes -= forgotten.size


def ranked(found: Mapping[Partition, NamespaceVectors], query: Matrix, least: int) -> Iterator[Candidate]:
    """Yield the items of namespaces in the order of their scores, the best first, equal ones by name.

    Args:
        found: The namespaces.
        query: The query's vector.
        least: The number of items that are needed at least; only when they are used up the rest is sorted.
    """
    np = numpy()
    length = float(np.linalg.norm(query)) or 1.0
    query = (query / length).astype(np.float32)
    owners: list[tuple[Partition, int]] = []
    parts: list[Matrix] = []
    for partition, vectors in sorted(found.items()):
        scores = vectors.scores(query)
        if scores is not None:
            parts.append(scores)
            owners.append((partition, len(scores)))
    if not parts:
        return
    every: Matrix = np.concatenate(parts)
    starts = np.cumsum([0, *(count for _, count in owners)])
    for position in _descending(np, every, least):
        part = int(np.searchsorted(starts, position, side="right")) - 1
        partition, _ = owners[part]
        yield found[partition].candidate(partition, int(position - starts[part]), float(every[position]))


def _descending(np: Any, scores: Matrix, least: int) -> Iterator[Any]:
    """Yield positions by descending score, equal ones in their order: first the best ``least`` and those that
    equal the last of them, for which not all need be sorted."""
    if least < len(scores):
        bound = np.partition(scores, len(scores) - max(1, least))[len(scores) - max(1, least)]
        best = np.flatnonzero(scores >= bound)
        rest = np.flatnonzero(scores < bound)
    else:
        best, rest = np.arange(len(scores)), np.arange(0)
    for some in (best, rest):
        yield from some[np.lexsort((some, -scores[some]))]
