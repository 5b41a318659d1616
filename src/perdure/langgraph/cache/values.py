"""Translates channel values to references and back, reusing what this process knows already.

A value that is put is packed first, and everything after that uses the packed bytes: what is stored and what
is believed to be stored are the same, even if the value changes meanwhile. For each thread the cache holds
the digests that are stored, and for each list channel its elements as they were returned last: one that comes
back provably unchanged is neither packed nor hashed again. The cache can only save work: a value is
recognised by its reference, an element by its identity and its watch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from operator import eq, is_
from threading import Lock
from typing import Any, NamedTuple

from perdure.langgraph.cache.change_tracking import Template, Watch
from perdure.langgraph.cache.known_chunks import HeadRefs, KnownChunks, Reuse, WriteBasis, entered, proof
from perdure.langgraph.serde import Serde, is_snapshot
from perdure.model import refs
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.chunks import Digester
from perdure.model.lineage import ROOT
from perdure.model.ops import Check
from perdure.model.packing import (
    SNAPSHOT_EXT,
    array_header,
    ext_code,
    ext_header,
    joined,
    map_header,
    packed,
)
from perdure.model.records import Partition
from perdure.model.tree import Builder, EncodedList, Expansion, ListCuts, Tree

_SPLIT_ELEMENT = 4096
_DEPTH = 4
_KEY_MAX = 1024
_SLOTS_MAX = 256

Source = int | bytes
"""The source of an element's decoded form: its position among those of the last load, or its bytes."""


class Handed(NamedTuple):
    """A list's elements as a load returned them: the template that copies are made of, the bytes of the
    opaque ones by position, and the watch over the copies, if there is one."""

    template: Template
    opaque: dict[int, bytes]
    watch: Watch | None
    refs: list[bytes]
    sizes: list[int]


@dataclass(slots=True, eq=False)
class Elements:
    """A list's elements as they are stored: their references, packed sizes and sources, and the cuts of the
    list. ``handed`` is the load that positions among the sources refer to."""

    refs: list[bytes]
    sizes: list[int]
    sources: Sequence[Source]
    shape: ListCuts | None
    handed: Handed | None

    @property
    def size(self) -> int:
        """Packed size of the whole list in bytes."""
        return len(array_header(len(self.refs))) + sum(self.sizes)

    def bodies(self, serde: Serde) -> list[bytes]:
        """Return each element in packed form."""
        return [s if isinstance(s, bytes) else self._body(serde, s) for s in self.sources]

    def _body(self, serde: Serde, place: int) -> bytes:
        handed = self.handed
        if handed is None:
            raise ValueError("a place among the elements of a load that is not held")
        return handed.opaque[place] if place in handed.opaque else serde.pack(handed.template.values[place])


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
        return 0 if self.payload is None else len(self.payload[1])


@dataclass(slots=True, eq=False)
class ThreadCache:
    """The cached state of one thread in this process."""

    known: KnownChunks = field(default_factory=lambda: KnownChunks(-1, None))
    lock: Lock = field(default_factory=Lock)
    held: dict[tuple[str, str], KnownValue] = field(default_factory=dict)
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
        self.known = entered(self.known, generation, root, exactly=exactly)
        return self.known

    def forget_chunks(self, generation: int, root: str | None) -> None:
        """Forget which chunks are stored: a commit that relied on it was refused."""
        self.known = KnownChunks(generation, root)

    def see(self, namespace: str, seen: HeadRefs) -> None:
        """Remember a head. A thread's subgraphs come with ever new namespaces, so the oldest are dropped."""
        with self.lock:
            self.seen[namespace] = seen
            self.seen.move_to_end(namespace)
            while len(self.seen) > _SLOTS_MAX:
                self.seen.popitem(last=False)

    def is_of_head(self, slot: tuple[str, str], held: KnownValue, head: str | None) -> bool:
        """Return True if a value belongs to the head of its namespace.

        Args:
            slot: The namespace and the channel.
            held: The value.
            head: The checkpoint that is the head.
        """
        namespace, channel = slot
        seen = self.seen.get(namespace)
        return seen is not None and seen.checkpoint_id == head and seen.refs.get(channel) == held.ref

    def hold(self, held: Mapping[tuple[str, str], KnownValue]) -> None:
        """Remember values. A thread's subgraphs come with ever new namespaces, so the oldest are dropped."""
        with self.lock:
            for slot, value in held.items():
                self.held.pop(slot, None)
                self.held[slot] = value
            while len(self.held) > _SLOTS_MAX:
                del self.held[next(iter(self.held))]

    def sizes(self, namespace: str, references: Mapping[str, bytes]) -> dict[str, int]:
        """Return the size in bytes of each channel's value that is remembered under its reference."""
        found = ((channel, ref, self.held.get((namespace, channel))) for channel, ref in references.items())
        return {channel: held.size for channel, ref, held in found if held is not None and held.ref == ref}

    def weight(self) -> int:
        """Return roughly the number of elements that are held; a payload counts one for each 512 bytes."""
        weight = 8
        for held in list(self.held.values()):
            if held.elements is not None:
                handed = held.elements.handed
                weight += len(held.elements.refs) + (len(handed.refs) if handed else 0)
            weight += len(held.payload[1]) // 512 if held.payload else 0
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
        """Update the account of a thread's cache, and drop the least recently used threads over the bound."""
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


class Frozen(NamedTuple):
    """A value in packed form, as it was at one moment: a list's elements, or a whole value as payload."""

    elements: list[bytes] | None = None
    payload: tuple[int, bytes] = (refs.NULL, b"")

    @classmethod
    def of(cls, serde: Serde, value: Any) -> Frozen:
        """Pack a value as it is now.

        Raises:
            TypeNotAllowed: The value contains a type that is not allowed.
            Unserialisable: The value could not be read back.
        """
        if type(value) is list:
            return cls(elements=serde.pack_each(value))
        return cls(payload=serde.payload(value))


class PackedValue(NamedTuple):
    """A value's reference and its packed form."""

    ref: bytes
    body: bytes


class Encoding:
    """The encoding of one write: references by channel, and the chunks that are not stored yet.

    The cache is updated only by ``acknowledge``, after the chunks are durable.

    Args:
        serde: Packs the values.
        digest: Names the chunks.
        cache: The thread's cache.
        basis: The thread as the write is planned on it.
        reuse: The known chunks that may be left out.
    """

    def __init__(
        self,
        serde: Serde,
        digest: Digester,
        cache: ThreadCache,
        basis: WriteBasis,
        *,
        reuse: Reuse = Reuse.ALL,
    ) -> None:
        self._serde = serde
        self._cache = cache
        self._basis = basis
        self._known = cache.enter(basis.generation, basis.root, exactly=basis.guards_root)
        self._generation = basis.generation
        self._builder = Builder(
            digest,
            nodes=self._known.nodes,
            stored=frozenset() if reuse is Reuse.NONE else self._known.stored,
            recent=self._known.recent if reuse is Reuse.ALL else frozenset(),
        )
        self._held: dict[tuple[str, str], KnownValue] = {}

    @property
    def chunks(self) -> Mapping[bytes, bytes]:
        return self._builder.fresh

    def proof(self, room: int) -> tuple[Check, ...] | None:
        """Return the checks that prove the chunks that were left out, ``None`` for more than ``room``."""
        builder = self._builder
        relied = builder.relied - builder.fresh.keys()
        return proof(self._known, self._basis, relied, leans=builder.leans, room=room)

    def channel(self, namespace: str, channel: str, value: Any) -> bytes:
        """Return the reference of a channel's value; ``value`` may be frozen."""
        slot = (namespace, channel)
        if type(value) is list or (type(value) is Frozen and value.elements is not None):
            held = self._list(slot, value)
        else:
            ref, payload = self._other(value)
            held = KnownValue(ref, self._generation, payload=payload)
        self._held[slot] = held
        return held.ref

    def frozen(self) -> dict[tuple[str, str], Frozen]:
        """Return the values of the encoded channels as they were when they were encoded."""
        return {
            slot: Frozen(payload=held.payload or (refs.NULL, b""))
            if held.elements is None
            else Frozen(elements=held.elements.bodies(self._serde))
            for slot, held in self._held.items()
        }

    def _list(self, slot: tuple[str, str], value: list[Any] | Frozen) -> KnownValue:
        """Encode a list: what is provably stored already keeps its reference, the rest is packed."""
        before = self._current(slot, self._cache.held.get(slot))
        handed = None if before is None else before.handed
        found: list[bytes] = []
        sizes: list[int] = []
        sources: list[Source] = []
        if isinstance(value, Frozen):
            bodies = value.elements or []
            places: list[int | None] = [None] * len(bodies)
        else:
            places, bodies = self._packed(value, None if handed is None else handed.watch)
        known = 0
        if handed is not None and places:
            # Most lists start with the elements of the last load.
            known = _common(places, range(len(handed.refs)))
            found, sizes, sources = handed.refs[:known], handed.sizes[:known], list(range(known))
        new = iter(bodies)
        for place in places[known:]:
            if place is not None and handed is not None:
                found.append(handed.refs[place])
                sizes.append(handed.sizes[place])
                sources.append(place)
            else:
                part = self._element(next(new))
                found.append(part.ref)
                sizes.append(len(part.body))
                sources.append(part.body)
        shape, same = (before.shape, _common(found, before.refs)) if before is not None else (None, 0)
        ref, shape = self._builder.list_like(found, shape, same)
        return KnownValue(ref, self._generation, Elements(found, sizes, sources, shape, handed))

    def _packed(self, value: list[Any], watch: Watch | None) -> tuple[list[int | None], list[bytes]]:
        """Return for each element its position in the watch if it is unchanged, and the packed form of the
        others: all of one moment, as far as they are plain data."""
        if watch is not None:
            values = value.copy()
            places = list(map(watch.places.get, map(id, values)))
            rest = [item for item, place in zip(values, places, strict=True) if place is None]

            def holds() -> Iterator[bool]:
                return chain(
                    map(eq, map(len, (value,)), (len(values),)), map(is_, value, values), watch.unchanged()
                )

            bodies = self._serde.pack_each(rest, holds) if len(rest) < len(values) else None
            if bodies is not None:
                return places, bodies
        bodies = self._serde.pack_each(value) or []
        return [None] * len(bodies), bodies

    def _current(self, slot: tuple[str, str], held: KnownValue | None) -> Elements | None:
        """Return a held list's elements if the commit proves that their chunks are stored: it is refused
        when the generation or the head of the namespace has changed."""
        if held is None or held.elements is None or held.generation != self._generation:
            return None
        basis = self._basis
        return held.elements if basis.is_guarded and self._cache.is_of_head(slot, held, basis.head) else None

    def write(self, value: Any) -> bytes:
        """Return the reference of a pending write, which may be frozen; it shares chunks with the channel
        value that it becomes."""
        return self._other(value)[0]

    def _other(self, value: Any) -> tuple[bytes, tuple[int, bytes]]:
        """Return the reference and payload of a value whose elements are not cached."""
        kind, body = value.payload if type(value) is Frozen else self._serde.payload(value)
        if kind != refs.MSGPACK or not _may_be_split(body):
            return self._builder.payload(kind, body), (kind, body)
        part = self._split(self._serde.plain(body), 0)
        return part.ref, (kind, part.body)

    def acknowledge(self, record: CheckpointRecord | None = None) -> None:
        """Update the cache: the chunks are durable, and ``record``, if given, is the head to which the
        encoded channel values belong."""
        known, builder = self._known, self._builder
        known.nodes.update(builder.seen)
        if record is not None and record.namespace == ROOT:
            known.advance(record.id, record.replaced, chain(builder.fresh, builder.relied))
        else:
            known.recent.update(builder.fresh)
        self._cache.hold(self._held)
        if record is not None:
            self._cache.see(record.namespace, HeadRefs(record.id, record.refs))

    def _element(self, body: bytes) -> PackedValue:
        """Return the reference of a packed element, and its whole body."""
        if len(body) > _SPLIT_ELEMENT and _may_be_split(body):
            return self._split(self._serde.plain(body), 1)
        return PackedValue(self._builder.payload(refs.MSGPACK, body), body)

    def _split(self, value: Any, depth: int, *, always: bool = False) -> PackedValue:
        """Split a plain value into chunks. A container inside another is split only if its packed form is
        larger than 4096 bytes, or ``always`` is set."""
        kind = type(value)
        if depth < _DEPTH and (kind is list or (kind is dict and all(map(_is_short, value)))):
            if depth and not always and len(body := self._serde.pack(value)) <= _SPLIT_ELEMENT:
                return PackedValue(self._builder.payload(refs.MSGPACK, body), body)
            return self._split_list(value, depth) if kind is list else self._split_dict(value, depth)
        if is_snapshot(value):
            inner = self._split(value.value, depth)
            header = ext_header(SNAPSHOT_EXT, len(inner.body))
            return PackedValue(self._builder.snapshot_of(inner.ref), header + inner.body)
        body = self._serde.pack(value)
        return PackedValue(self._builder.payload(refs.MSGPACK, body), body)

    def _split_list(self, value: list[Any], depth: int) -> PackedValue:
        parts = [self._split(item, depth + 1) for item in value]
        body = array_header(len(parts)) + b"".join([part.body for part in parts])
        return PackedValue(self._builder.list_of([part.ref for part in parts]), body)

    def _split_dict(self, value: dict[str, Any], depth: int) -> PackedValue:
        keys = [self._serde.key(key) for key in value]
        # A list that is a channel's direct value is split like the channel that it may become.
        parts = [
            self._split(item, depth + 1, always=depth == 0 and type(item) is list) for item in value.values()
        ]
        body = map_header(len(parts)) + b"".join(
            chain.from_iterable((key, part.body) for key, part in zip(keys, parts, strict=True))
        )
        ref = self._builder.dict_of([(key, part.ref) for key, part in zip(keys, parts, strict=True)])
        return PackedValue(ref, body)


def _is_short(key: object) -> bool:
    """Return True if a dict's key may be part of a node: the size of a chunk is limited."""
    return type(key) is str and len(key) <= _KEY_MAX


def _may_be_split(body: bytes) -> bool:
    """Return True if packed bytes are a list, a dict, or a DeltaChannel's snapshot."""
    first = body[0]
    return 0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF or ext_code(body) == SNAPSHOT_EXT


def take(
    serde: Serde,
    cache: ThreadCache,
    namespace: str,
    trees: Mapping[str, Tree],
    expansion: Expansion,
    references: Mapping[str, bytes],
    *,
    generation: int,
    root: str | None,
    are_roots: bool,
) -> dict[str, Any]:
    """Return the values of trees that were read, and remember them for the next load and put.

    Args:
        serde: Unpacks the values.
        cache: The thread's cache.
        namespace: The namespace of the checkpoint.
        trees: The values that were read, by channel.
        expansion: The chunks and nodes that were read for them.
        references: The references of the checkpoint, by channel.
        generation: The thread's collection generation.
        root: The head of the thread's root.
        are_roots: True if all that was read belongs to that head.
    """
    out: dict[str, Any] = {}
    known = cache.enter(generation, root)
    # What the root's head refers to is present if the head is; pending writes and subgraphs come after it.
    (known.stored if are_roots else known.recent).update(expansion.used)
    known.nodes.update(expansion.nodes)
    for channel, tree in trees.items():
        slot = (namespace, channel)
        if isinstance(tree, EncodedList):
            bodies = [packed(item) for item in tree.items]
            elements = Elements(tree.refs, list(map(len, bodies)), bodies, None, None)
            out[channel], held = _handed_out(serde, elements, references[channel], generation)
        else:
            payload = joined(tree)
            held = KnownValue(references[channel], generation, payload=payload)
            out[channel] = serde.value(*payload)
        cache.hold({slot: held})
    return out


def recall(serde: Serde, held: KnownValue, generation: int) -> tuple[Any, KnownValue]:
    """Return a held value for a new owner, and the record that replaces ``held``.

    Call it under the cache's lock: it may return elements again to which only the cache refers.

    Args:
        serde: Unpacks the value.
        held: The value as it is cached.
        generation: The collection generation of the load.
    """
    if held.elements is not None:
        # Loading it proves that its chunks are stored in the generation of the load.
        return _handed_out(serde, held.elements, held.ref, generation)
    payload = held.payload or (refs.NULL, b"")
    return serde.value(*payload), held


def _handed_out(
    serde: Serde, elements: Elements, ref: bytes, generation: int
) -> tuple[list[Any], KnownValue]:
    """Build a list for a new owner, which shares nothing mutable with any other."""
    sources, before = elements.sources, elements.handed
    new = iter(_unpacked(serde, [source for source in sources if isinstance(source, bytes)]))
    template, opaque, start = Template(), dict[int, bytes](), 0
    if before is not None and _common(sources, range(len(before.refs))) == len(before.refs):
        template, opaque, start = before.template, before.opaque.copy(), len(before.refs)
    fresh: dict[int, Any] = {}
    rest: list[Any] = []
    for place, source in enumerate(sources[start:], start):
        if isinstance(source, bytes):
            opaque[place] = source
            fresh[place] = next(new)
            rest.append(fresh[place])
        elif before is not None:
            rest.append(before.template.values[source])

    def made(place: int) -> Any:
        return fresh[place] if place in fresh else serde.unpack(opaque[place])

    template = template.extended(rest)
    watch: Watch | None
    if start and before is not None and before.watch is not None and before.watch.is_free():
        added, more = Template.over(rest).copies(lambda place: made(start + place))
        values = before.watch.values + added
        watch = before.watch if more is None else before.watch.joined(more)
    else:
        values, watch = template.copies(made)
    bodies = {place: opaque[place] for place in template.opaque}
    handed = Handed(template, bodies, watch, elements.refs, elements.sizes)
    new_elements = Elements(elements.refs, elements.sizes, range(len(elements.refs)), elements.shape, handed)
    return values, KnownValue(ref, generation, new_elements)


def _unpacked(serde: Serde, bodies: list[bytes]) -> list[Any]:
    """Decode packed values in one call."""
    values: list[Any] = serde.unpack(array_header(len(bodies)) + b"".join(bodies)) if bodies else []
    return values


def _common(left: Sequence[object], right: Sequence[object]) -> int:
    """Count the elements that two sequences have in common at their start."""
    return sum(takewhile(bool, map(eq, left, right)))


class Pool:
    """Decoded elements shared by the checkpoints of one listing: each is decoded once and copied out."""

    def __init__(self, serde: Serde) -> None:
        self._serde = serde
        self._elements: dict[bytes, tuple[Any, bytes]] = {}

    def value(self, tree: Tree) -> Any:
        """Return the value of a tree, which shares nothing mutable with other values."""
        if not isinstance(tree, EncodedList):
            return self._serde.value(*joined(tree))
        known = self._elements
        new = {ref: packed(item) for ref, item in zip(tree.refs, tree.items, strict=True) if ref not in known}
        decoded = _unpacked(self._serde, list(new.values()))
        known.update(zip(new, zip(decoded, new.values(), strict=True), strict=True))
        template = Template.over(known[ref][0] for ref in tree.refs)
        return template.copies(lambda place: self._serde.unpack(known[tree.refs[place]][1]))[0]
