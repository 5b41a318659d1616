"""Indexes in memory of the namespaces that were searched, brought up to date by generation.

Reading a namespace's vectors and texts from the database takes far longer than comparing them, so they are
held, up to a number of bytes; the namespaces searched longest ago are forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from perdure.langgraph.search.segments import Distance, IndexedItem, IndexSegment, build, import_numpy, join
from perdure.model.records import Partition
from perdure.storage.port import Driver

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]

_NAMESPACE_BYTES = 1000
_VERSION_BYTES = 100

MOST_BYTES = 256 << 20
"""Bytes that are held at most for an index."""


class Part(NamedTuple):
    """A segment, and which of its items are still indexed as it has them; ``None`` if all are."""

    segment: IndexSegment
    alive: Flags | None

    @property
    def living_count(self) -> int:
        """The number of items that are still indexed so."""
        if self.alive is None:
            return len(self.segment.keys)
        return int(self.alive.sum())


@dataclass(frozen=True, eq=False)
class NamespaceIndex:
    """The index of one namespace as of a generation.

    Attributes:
        generation: The generation, ``None`` before anything was read.
        versions: The versions of the entries that were read, by the keys of their items.
        outdated: Keys of entries that another embedding model made.
        parts: The items.
    """

    generation: int | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    outdated: frozenset[str] = frozenset()
    parts: tuple[Part, ...] = ()

    @cached_property
    def rows(self) -> int:
        """The number of vectors and texts that a search compares, at most."""
        return sum(max(len(part.segment.matrix), len(part.segment.keys)) for part in self.parts)

    @cached_property
    def size(self) -> int:
        """Bytes that are held, about."""
        segment_bytes = sum(part.segment.size for part in self.parts)
        return _NAMESPACE_BYTES + _VERSION_BYTES * len(self.versions) + segment_bytes

    @cached_property
    def texts(self) -> tuple[int, float]:
        """The number of items with terms, and the number of terms of all."""
        count, total = 0, 0.0
        for segment, alive in self.parts:
            if alive is None:
                lengths = segment.lengths
            else:
                lengths = segment.lengths[alive]
            count += int((lengths > 0).sum())
            total += float(lengths.sum())
        return count, total

    def apply(self, change: IndexUpdate, dims: int, distance: Distance = "cosine") -> NamespaceIndex:
        """Return the index after a change; the length of a vector is ``dims``."""
        gone = {*change.removed, *change.versions}
        versions = {key: version for key, version in self.versions.items() if key not in gone}
        parts = [_drop_items(part, gone) for part in self.parts]
        if change.items:
            parts.append(Part(build(change.items, dims, distance), None))
        return NamespaceIndex(
            change.generation,
            {**versions, **change.versions},
            (self.outdated - gone) | frozenset(change.outdated),
            tuple(_join_parts(part for part in parts if part.living_count)),
        )


class IndexUpdate(NamedTuple):
    """Change of a namespace's index: the generation after it, the versions of the entries that were written,
    the keys of the removed ones, the items to be found, and the keys of entries of another model."""

    generation: int
    versions: Mapping[str, int]
    removed: Sequence[str]
    items: Sequence[IndexedItem]
    outdated: Iterable[str]


def _drop_items(part: Part, gone: set[str]) -> Part:
    places = part.segment.places
    dead = [places[key] for key in gone if key in places]
    if not dead:
        return part
    np = import_numpy()
    if part.alive is None:
        alive = np.ones(len(places), dtype=bool)
    else:
        alive = part.alive.copy()
    alive[dead] = False
    return Part(part.segment, alive)


def _join_parts(parts: Iterable[Part]) -> list[Part]:
    """Join each part with the one before it unless the one before is more than twice as large, so that the
    sizes of the parts fall quickly. Drop the lost items of a part that has lost more than half of its
    items."""
    out: list[Part] = []
    for part in parts:
        out.append(part)
        while len(out) > 1 and out[-2].living_count <= 2 * out[-1].living_count:
            last = out.pop()
            out.append(Part(join([out.pop(), last]), None))
        if 2 * out[-1].living_count < len(out[-1].segment.keys):
            out.append(Part(join([out.pop()]), None))
    return out


class _DatabaseIndexes:
    """The namespaces of one database, the ones searched longest ago first, and their bytes."""

    def __init__(self) -> None:
        self.namespaces: OrderedDict[Partition, NamespaceIndex] = OrderedDict()
        self.bytes = 0


class IndexCache:
    """The indexes of the namespaces of any number of databases; safe in many OS threads."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = Lock()
        self._by_driver: WeakKeyDictionary[Driver, _DatabaseIndexes] = WeakKeyDictionary()

    def get(self, driver: Driver, partition: Partition) -> NamespaceIndex:
        """Return the index of a namespace in memory, empty at first."""
        with self._lock:
            driver_indexes = self._by_driver.get(driver)
            if driver_indexes is None:
                found = None
            else:
                found = driver_indexes.namespaces.get(partition)
            if driver_indexes is None or found is None:
                return NamespaceIndex()
            driver_indexes.namespaces.move_to_end(partition)
            return found

    def put(self, driver: Driver, partition: Partition, index: NamespaceIndex) -> None:
        """Hold the index of a namespace."""
        with self._lock:
            driver_indexes = self._by_driver.setdefault(driver, _DatabaseIndexes())
            before = driver_indexes.namespaces.pop(partition, None)
            driver_indexes.bytes += index.size - (0 if before is None else before.size)
            driver_indexes.namespaces[partition] = index
            while driver_indexes.bytes > self._most and len(driver_indexes.namespaces) > 1:
                _, forgotten = driver_indexes.namespaces.popitem(last=False)
                driver_indexes.bytes -= forgotten.size
