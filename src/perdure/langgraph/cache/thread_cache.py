"""The memory of the threads that a process worked on last: chunks that are stored, heads, and channel values.

For each thread the cache holds the digests that are stored, and for each list channel its elements as they
were returned last. The cache can only save work: a value is recognised by its reference, an element by its
identity and its watch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from operator import eq
from threading import Lock
from typing import Any, NamedTuple

from perdure.langgraph.cache.change_tracking import Template, Watch
from perdure.langgraph.cache.known_chunks import HeadRefs, KnownChunks, enter_generation
from perdure.langgraph.values.serde import Serde
from perdure.model.records import Partition
from perdure.model.values.joined_values import (
    pack_array_header,
)
from perdure.model.values.tree import ListCuts

_SLOTS_MAX = 256
_MOST = 200_000
"""Maximum weight of all cached threads: about 100 MB."""
_EMPTY = 24
"""Weight of a thread without cached values."""
_UNIT = 512
"""Bytes that weigh 1, as each element does at least."""

Source = int | bytes
"""The source of an element's decoded form: its position among the elements of the last load, or its bytes."""


class LastLoad(NamedTuple):
    """A list's elements as a load returned them: the template that copies are made of, the bytes of the
    opaque ones by position, and the watch over the copies, if there is one. ``weight`` is that of the
    elements."""

    template: Template
    opaque: dict[int, bytes]
    watch: Watch | None
    refs: list[bytes]
    sizes: list[int]
    weight: int


@dataclass(slots=True, eq=False)
class Elements:
    """A list's elements as they are stored.

    Attributes:
        refs: their references.
        sizes: their packed sizes.
        kept: number of the first elements that are the first ones of the last load.
        sources: the sources of the further elements.
        shape: the cuts of the list.
        last_load: the load that ``kept`` and positions among the sources refer to.
        size: packed size of the whole list in bytes.
        weight: roughly the memory of the elements, in units of 512 bytes.
    """

    refs: list[bytes]
    sizes: list[int]
    kept: int
    sources: Sequence[Source]
    shape: ListCuts | None
    last_load: LastLoad | None
    size: int = field(init=False)
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        content = sum(self.sizes)
        self.size = len(pack_array_header(len(self.refs))) + content
        self.weight = len(self.sizes) + content // _UNIT

    def pack_all(self, serde: Serde) -> list[bytes]:
        """Return each element in packed form."""
        sources = chain(range(self.kept), self.sources)
        return [s if isinstance(s, bytes) else self._pack(serde, s) for s in sources]

    def _pack(self, serde: Serde, place: int) -> bytes:
        load = self.last_load
        if load is None:
            raise ValueError("a place among the elements of a load that is not held")
        if place in load.opaque:
            return load.opaque[place]
        return serde.pack(load.template.values[place])


@dataclass(slots=True, eq=False)
class KnownValue:
    """A channel's value as it is stored under ``ref``, its chunks known in one collection generation: the
    elements of a list, or the payload of another value."""

    ref: bytes
    generation: int
    elements: Elements | None = None
    payload: tuple[int, bytes] | None = None

    @property
    def size(self) -> int:
        """Serialised size of the whole value in bytes, including what it shares with other values."""
        if self.elements is not None:
            return self.elements.size
        if self.payload is None:
            return 0
        return len(self.payload[1])


@dataclass(slots=True, eq=False)
class ThreadCache:
    """The cached state of one thread in this process."""

    known: KnownChunks = field(default_factory=lambda: KnownChunks(-1, None))
    lock: Lock = field(default_factory=Lock)
    values: dict[tuple[str, str], KnownValue] = field(default_factory=dict)
    seen: OrderedDict[str, HeadRefs] = field(default_factory=OrderedDict)

    def enter(self, generation: int, root: str | None, *, exactly: bool = False) -> KnownChunks:
        """Return the chunks that are known of the thread in its present state.

        Knowledge of an earlier state is replaced as a whole, so that a caller that still uses it adds nothing
        to the new one; values stay.

        Args:
            generation: The thread's collection generation.
            root: The head of its root.
            exactly: Do not accept a head that this process has replaced.
        """
        self.known = enter_generation(self.known, generation, root, exactly=exactly)
        return self.known

    def forget_chunks(self, generation: int, root: str | None) -> None:
        """Forget which chunks are stored: a commit that relied on it was refused."""
        self.known = KnownChunks(generation, root)

    def note_head(self, namespace: str, seen: HeadRefs) -> None:
        """Remember a head. A thread's subgraphs come with ever new namespaces, so the oldest are dropped."""
        with self.lock:
            self.seen[namespace] = seen
            self.seen.move_to_end(namespace)
            while len(self.seen) > _SLOTS_MAX:
                self.seen.popitem(last=False)

    def is_of_head(self, slot: tuple[str, str], known_value: KnownValue, head: str | None) -> bool:
        """Return True if a value belongs to the head of its namespace.

        Args:
            slot: The namespace and the channel.
            held: The value.
            head: The checkpoint that is the head.
        """
        namespace, channel = slot
        seen = self.seen.get(namespace)
        return seen is not None and seen.checkpoint_id == head and seen.refs.get(channel) == known_value.ref

    def hold(self, values: Mapping[tuple[str, str], KnownValue]) -> None:
        """Remember values. A thread's subgraphs come with ever new namespaces, so the oldest are dropped."""
        with self.lock:
            for slot, value in values.items():
                self.values.pop(slot, None)
                self.values[slot] = value
            while len(self.values) > _SLOTS_MAX:
                del self.values[next(iter(self.values))]

    def sizes(self, namespace: str, references: Mapping[str, bytes]) -> dict[str, int]:
        """Return the size in bytes of each channel's value that is remembered under its reference."""
        sizes: dict[str, int] = {}
        for channel, ref in references.items():
            known_value = self.values.get((namespace, channel))
            if known_value is not None and known_value.ref == ref:
                sizes[channel] = known_value.size
        return sizes

    def weight(self) -> int:
        """Return roughly the memory that is held, in units of 512 bytes."""
        weight = _EMPTY + self.known.count // 8 + len(self.known.nodes) // 2
        for known_value in list(self.values.values()):
            if known_value.elements is not None:
                weight += known_value.elements.weight
                if (last_load := known_value.elements.last_load) is not None:
                    weight += last_load.weight
            if known_value.payload:
                weight += len(known_value.payload[1]) // _UNIT
        return weight


class Caches:
    """The threads that this process worked on last, bounded by the memory that they hold."""

    def __init__(self) -> None:
        self._threads: OrderedDict[Partition, ThreadCache] = OrderedDict()
        self._weights: dict[Partition, int] = {}
        self._total = 0
        self._lock = Lock()

    def of(self, partition: Partition) -> ThreadCache:
        with self._lock:
            cache = self._threads.get(partition)
            if cache is None:
                cache = self._threads[partition] = ThreadCache()
                self._weights[partition] = 0
            else:
                self._threads.move_to_end(partition)
            return cache

    def weigh(self, partition: Partition) -> None:
        """Update the weight of a thread's cache, and drop the least recently used threads over the bound."""
        with self._lock:
            cache = self._threads.get(partition)
            if cache is None:
                return
            weight = cache.weight()
            self._total += weight - self._weights[partition]
            self._weights[partition] = weight
            while self._total > _MOST and len(self._threads) > 1:
                oldest, _ = self._threads.popitem(last=False)
                self._total -= self._weights.pop(oldest)

    def forget(self, partition: Partition) -> None:
        with self._lock:
            if self._threads.pop(partition, None) is not None:
                self._total -= self._weights.pop(partition)


def count_common_start(left: list[Any], right: list[Any]) -> int:
    """Count the elements that two lists have in common at their start."""
    most = min(len(left), len(right))
    # Usually one list begins with the whole other one, which one comparison shows.
    if left[:most] == right[:most]:
        return most
    return sum(takewhile(bool, map(eq, left, right)))
