"""Channel values to references and back, with what this process knows already.

For each thread the cache holds the digests that are stored, and for each list channel its elements as they
were last handed out or put: an element that is provably unchanged is neither serialised nor hashed again,
and a value that is provably the one stored is copied instead of decoded. The cache can only save work: a
value is recognised by its reference, an element by its identity and its witness.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from perdure.langgraph import identity
from perdure.langgraph.serde import Serde
from perdure.model import refs
from perdure.model.chunks import Digester
from perdure.model.packing import array_header, joined, packed
from perdure.model.records import Partition
from perdure.model.tree import Builder, Expansion, Listed, Tree

_SPLIT_ELEMENT = 4096
_DEPTH = 4
_DIGESTS_MAX = 200_000


@dataclass(slots=True, eq=False)
class Element:
    """One element of a list channel: its reference, the object that stands for it, and what proves that
    the object is unchanged. ``body`` is kept where the object is not the decoded form of the stored bytes."""

    ref: bytes
    value: Any
    seen: identity.Witness | None
    body: bytes | None

    def unchanged(self) -> bool:
        return self.seen is not None and identity.is_unchanged(self.value, self.seen)


@dataclass(slots=True, eq=False)
class Held:
    """A channel's value as it is stored under ``ref``: the elements of a list, or the payload of another."""

    ref: bytes
    elements: list[Element] | None = None
    payload: tuple[int, bytes] | None = None
    by_id: dict[int, Element] | None = None

    def find(self, value: Any) -> Element | None:
        """The element that an object stands for, while it is unchanged."""
        if self.by_id is None:
            self.by_id = {id(e.value): e for e in self.elements or ()}
        element = self.by_id.get(id(value))
        return element if element is not None and element.unchanged() else None


@dataclass(slots=True, eq=False)
class ThreadCache:
    """What is known of one thread under one collection generation."""

    generation: int = -1
    stored: set[bytes] = field(default_factory=set)
    nodes: dict[bytes, bytes] = field(default_factory=dict)
    held: dict[tuple[str, str], Held] = field(default_factory=dict)
    recent: dict[tuple[str, str], Held] = field(default_factory=dict)

    def enter(self, generation: int) -> None:
        """Forget what another generation's chunks are; identities and values stay."""
        if generation != self.generation or len(self.stored) > _DIGESTS_MAX:
            self.generation = generation
            self.stored = set()
            self.nodes = {}

    def weight(self) -> int:
        """Roughly how many elements are held; a payload counts one for each half kilobyte."""
        weight = 8
        for held in self.held.values():
            weight += len(held.elements or ()) + (len(held.payload[1]) // 512 if held.payload else 0)
        return weight


class Caches:
    """The threads that this process worked on last, bounded by the elements that they hold."""

    def __init__(self, max_elements: int = 200_000) -> None:
        self._max = max_elements
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
        """Account for what a thread's cache holds now, and let the longest unused go."""
        with self._lock:
            cache = self._threads.get(partition)
            if cache is None:
                return
            weight = cache.weight()
            self._total += weight - self._weights[partition]
            self._weights[partition] = weight
            while self._total > self._max and len(self._threads) > 1:
                oldest, _ = self._threads.popitem(last=False)
                self._total -= self._weights.pop(oldest)

    def forget(self, partition: Partition) -> None:
        with self._lock:
            if self._threads.pop(partition, None) is not None:
                self._total -= self._weights.pop(partition)


class Encoding:
    """The encoding of one write: references by channel, and the chunks that are not stored yet.

    Nothing of it reaches the cache until ``acknowledge`` says that the chunks are durable.
    """

    def __init__(self, serde: Serde, digest: Digester, cache: ThreadCache, generation: int) -> None:
        cache.enter(generation)
        self._serde = serde
        self._cache = cache
        self._generation = generation
        self._builder = Builder(digest, nodes=cache.nodes, stored=cache.stored)
        self._held: dict[tuple[str, str], Held] = {}

    @property
    def chunks(self) -> Mapping[bytes, bytes]:
        return self._builder.fresh

    def channel(self, namespace: str, channel: str, value: Any) -> bytes:
        """The reference of a channel's value."""
        slot = (namespace, channel)
        if type(value) is list:
            known = [h for h in (self._cache.held.get(slot), self._cache.recent.get(slot)) if h is not None]
            elements = [self._element(item, known) for item in value]
            ref = self._builder.list_of([e.ref for e in elements])
            self._held[slot] = Held(ref, elements)
            return ref
        payload = self._serde.payload(value)
        split = type(value) is dict or isinstance(value, _DeltaSnapshot)
        ref = self._split(value, 0) if split else self._builder.payload(*payload)
        self._held[slot] = Held(ref, payload=payload)
        return ref

    def acknowledge_checkpoint(self) -> None:
        """The chunks are durable, and the encoded values are the channels' latest."""
        self._acknowledge_chunks()
        self._cache.held.update(self._held)
        for slot in self._held:
            self._cache.recent.pop(slot, None)

    def acknowledge_writes(self) -> None:
        """The chunks are durable; elements may turn up in the next value of their channel."""
        self._acknowledge_chunks()
        for slot, held in self._held.items():
            if held.elements:
                before = self._cache.recent.get(slot)
                merged = [*(before.elements or ()), *held.elements][-256:] if before else held.elements
                self._cache.recent[slot] = Held(held.ref, merged)

    def _acknowledge_chunks(self) -> None:
        if self._cache.generation == self._generation:
            self._cache.stored.update(self._builder.fresh)
            self._cache.nodes.update(self._builder.seen)

    def _element(self, value: Any, known: Sequence[Held]) -> Element:
        for held in known:
            element = held.find(value)
            if element is not None and self._is_stored(element.ref):
                return element
        body: bytes | None = None
        if type(value) in (list, dict):
            ref = self._split(value, 1)
        else:
            body = self._serde.pack(value)
            ref = self._builder.payload(refs.MSGPACK, body)
        return Element(ref, value, identity.witness(value), body)

    def _is_stored(self, ref: bytes) -> bool:
        tag = ref[0] & 0xF0
        if tag == refs.INLINE:
            return True
        return tag == refs.CHUNK and ref[1:] in self._cache.stored

    def _split(self, value: Any, depth: int) -> bytes:
        kind = type(value)
        if kind is list and depth < _DEPTH:
            if depth and len(body := self._serde.pack(value)) <= _SPLIT_ELEMENT:
                return self._builder.payload(refs.MSGPACK, body)
            return self._builder.list_of([self._split(item, depth + 1) for item in value])
        if kind is dict and depth < _DEPTH and all(type(k) is str for k in value):
            return self._split_dict(value, depth)
        if isinstance(value, _DeltaSnapshot):
            return self._builder.snapshot_of(self._split(value.value, depth))
        return self._builder.payload(refs.MSGPACK, self._serde.pack(value))

    def _split_dict(self, value: dict[str, Any], depth: int) -> bytes:
        if depth and len(body := self._serde.pack(value)) <= _SPLIT_ELEMENT:
            return self._builder.payload(refs.MSGPACK, body)
        items: list[tuple[bytes, bytes]] = []
        for key, item in value.items():
            if type(item) in (list, dict) and depth == 0:
                items.append((self._serde.pack(key), self._split_inside(item)))
            else:
                items.append((self._serde.pack(key), self._split(item, depth + 1)))
        return self._builder.dict_of(items)

    def _split_inside(self, value: Any) -> bytes:
        """A container that is a channel's direct value: split like the channel that it may become."""
        if type(value) is list:
            return self._builder.list_of([self._split(item, 2) for item in value])
        return self._split(value, 1)


def take(
    serde: Serde,
    cache: ThreadCache,
    namespace: str,
    trees: Mapping[str, Tree],
    expansion: Expansion,
    references: Mapping[str, bytes],
) -> dict[str, Any]:
    """The values of trees that were read, remembered for the next load and put."""
    out: dict[str, Any] = {}
    cache.stored.update(expansion.used)
    cache.nodes.update(expansion.nodes)
    for channel, tree in trees.items():
        slot = (namespace, channel)
        if isinstance(tree, Listed):
            bodies = [packed(item) for item in tree.items]
            values: list[Any] = serde.unpack(array_header(len(bodies)) + b"".join(bodies))
            cache.held[slot] = Held(references[channel], _elements(tree.refs, values, bodies))
            out[channel] = values
        else:
            payload = joined(tree)
            cache.held[slot] = Held(references[channel], payload=payload)
            out[channel] = serde.value(*payload)
    return out


def recall(serde: Serde, held: Held) -> tuple[Any, Held] | None:
    """A fresh copy of a held value and what stands for it now; ``None`` when it must be read again."""
    if held.payload is not None:
        return serde.value(*held.payload), held
    if held.elements is None:
        return None
    values: list[Any] = []
    elements: list[Element] = []
    copy, witness = identity.copy, identity.witness
    for element in held.elements:
        if element.body is not None:
            value = serde.unpack(element.body)
            seen = witness(value)
            body = None if seen is not None else element.body
        elif element.unchanged():
            value = copy(element.value)
            seen = witness(value)
            body = None
        else:
            return None
        values.append(value)
        elements.append(Element(element.ref, value, seen, body))
    return values, Held(held.ref, elements)


class Pool:
    """Decoded elements shared by the checkpoints of one listing: each is decoded once and copied out."""

    def __init__(self, serde: Serde) -> None:
        self._serde = serde
        self._elements: dict[bytes, Any] = {}

    def value(self, tree: Tree) -> Any:
        """A value of its own for a tree."""
        if not isinstance(tree, Listed):
            return self._serde.value(*joined(tree))
        known = self._elements
        new = [(ref, packed(item)) for ref, item in zip(tree.refs, tree.items, strict=True) if ref not in known]
        if new:
            values = self._serde.unpack(array_header(len(new)) + b"".join(body for _, body in new))
            for (ref, body), value in zip(new, values, strict=True):
                known[ref] = value if identity.witness(value) is not None else _Opaque(body)
        out: list[Any] = []
        for ref in tree.refs:
            value = known[ref]
            out.append(self._serde.unpack(value.body) if type(value) is _Opaque else identity.copy(value))
        return out


@dataclass(frozen=True, slots=True)
class _Opaque:
    """An element that cannot be copied, only decoded again."""

    body: bytes


def _elements(found: Iterable[bytes], values: Iterable[Any], bodies: Iterable[bytes]) -> list[Element]:
    out: list[Element] = []
    for ref, value, body in zip(found, values, bodies, strict=True):
        seen = identity.witness(value)
        out.append(Element(ref, value, seen, None if seen is not None else body))
    return out
