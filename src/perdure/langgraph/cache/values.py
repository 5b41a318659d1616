"""Channel values to references and back, with what this process knows already.

A value that is put is packed first, and everything after that looks at the packed bytes: what is stored and
what is believed to be stored are the same, whatever becomes of the value meanwhile. For each thread the cache
holds the digests that are stored, and for each list channel its elements as they were handed out last: one
that comes back provably unchanged is neither packed nor hashed again. The cache can only save work: a value
is recognised by its reference, an element by its identity and its watch.
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
"""Where to take an element's decoded form from: its place among those that were handed out, or its bytes."""


class Handed(NamedTuple):
    """A list's elements as a load handed them out: what copies are made of, the bytes of the opaque ones by
    position, and the watch over the copies, if there is one."""

    template: Template
    opaque: dict[int, bytes]
    watch: Watch | None
    refs: list[bytes]
    sizes: list[int]


@dataclass(slots=True, eq=False)
class Elements:
    """A list's elements as they are stored: their references, packed sizes and sources, and how the list was
    cut. ``handed`` is the load that numbers among the sources refer to."""

    refs: list[bytes]
    sizes: list[int]
    sources: Sequence[Source]
    shape: ListCuts | None
    handed: Handed | None

    @property
    def size(self) -> int:
        """Packed bytes of the whole list."""
        return len(array_header(len(self.refs))) + sum(self.sizes)

    def bodies(self, serde: Serde) -> list[bytes]:
        """Each element in packed form."""
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
        """Bytes of the whole value, serialised; those that it shares with others count as well."""
        if self.elements is not None:
            return self.elements.size
        return 0 if self.payload is None else len(self.payload[1])


@dataclass(slots=True, eq=False)
class ThreadCache:
    """What this process remembers of one thread."""

    known: KnownChunks = field(default_factory=lambda: KnownChunks(-1, None))
    lock: Lock = field(default_factory=Lock)
    held: dict[tuple[str, str], KnownValue] = field(default_factory=dict)
    seen: OrderedDict[str, HeadRefs] = field(default_factory=OrderedDict)

    def enter(self, generation: int, root: str | None, *, exactly: bool = False) -> KnownChunks:
        """The chunks that are known of the thread as it is seen now. What is let go is let go as a whole, so
        that a caller who is still busy with it adds nothing to what replaces it; values stay."""
        self.known = entered(self.known, generation, root, exactly=exactly)
        return self.known

    def distrust(self, generation: int, root: str | None) -> None:
        """Forget which chunks are stored: a commit that relied on it was refused."""
        self.known = KnownChunks(generation, root)

    def see(self, namespace: str, seen: HeadRefs) -> None:
        """Remember a head. A thread's subgraphs come with ever new namespaces, so the oldest go."""
        with self.lock:
            self.seen[namespace] = seen
            self.seen.move_to_end(namespace)
            while len(self.seen) > _SLOTS_MAX:
                self.seen.popitem(last=False)

    def is_of_head(self, slot: tuple[str, str], held: KnownValue, head: str | None) -> bool:
        """Whether a value is one of this head of its namespace."""
        namespace, channel = slot
        seen = self.seen.get(namespace)
        return seen is not None and seen.checkpoint_id == head and seen.refs.get(channel) == held.ref

    def hold(self, held: Mapping[tuple[str, str], KnownValue]) -> None:
        """Remember values. A thread's subgraphs come with ever new namespaces, so the oldest go."""
        with self.lock:
            for slot, value in held.items():
                self.held.pop(slot, None)
                self.held[slot] = value
            while len(self.held) > _SLOTS_MAX:
                del self.held[next(iter(self.held))]

    def sizes(self, namespace: str, references: Mapping[str, bytes]) -> dict[str, int]:
        """Bytes of each channel's value, where it is remembered under the reference it has."""
        found = ((channel, ref, self.held.get((namespace, channel))) for channel, ref in references.items())
        return {channel: held.size for channel, ref, held in found if held is not None and held.ref == ref}

    def weight(self) -> int:
        """Roughly how many elements are held; a payload counts one for each half kilobyte."""
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


class Frozen(NamedTuple):
    """A value in packed form, as it was at one moment: a list's elements, or a whole value as payload."""

    elements: list[bytes] | None = None
    payload: tuple[int, bytes] = (refs.NULL, b"")

    @classmethod
    def of(cls, serde: Serde, value: Any) -> Frozen:
        """The value as it is now; ``TypeNotAllowed`` or ``Unserialisable`` when it would not come back."""
        if type(value) is list:
            return cls(elements=serde.pack_each(value))
        return cls(payload=serde.payload(value))


class PackedValue(NamedTuple):
    """A value's reference and its packed form."""

    ref: bytes
    body: bytes


class Encoding:
    """The encoding of one write: references by channel, and the chunks that are not stored yet.

    Nothing of it reaches the cache until ``acknowledge`` says that the chunks are durable.
    """

    def __init__(
        self,
        serde: Serde,
        digest: Digester,
        cache: ThreadCache,
        basis: WriteBasis,
        *,
        belief: Reuse = Reuse.ALL,
    ) -> None:
        self._serde = serde
        self._cache = cache
        self._basis = basis
        self._known = cache.enter(basis.generation, basis.root, exactly=basis.guards_root)
        self._generation = basis.generation
        self._builder = Builder(
            digest,
            nodes=self._known.nodes,
            stored=frozenset() if belief is Reuse.NONE else self._known.stored,
            recent=self._known.recent if belief is Reuse.ALL else frozenset(),
        )
        self._held: dict[tuple[str, str], KnownValue] = {}

    @property
    def chunks(self) -> Mapping[bytes, bytes]:
        return self._builder.fresh

    def proof(self, room: int) -> tuple[Check, ...] | None:
        """The checks that prove the chunks that were left out, ``None`` for more than ``room`` of them."""
        builder = self._builder
        relied = builder.relied - builder.fresh.keys()
        return proof(self._known, self._basis, relied, leans=builder.leans, room=room)

    def channel(self, namespace: str, channel: str, value: Any) -> bytes:
        """The reference of a channel's value; ``value`` may be frozen."""
        slot = (namespace, channel)
        if type(value) is list or (type(value) is Frozen and value.elements is not None):
            held = self._list(slot, value)
        else:
            ref, payload = self._other(value)
            held = KnownValue(ref, self._generation, payload=payload)
        self._held[slot] = held
        return held.ref

    def frozen(self) -> dict[tuple[str, str], Frozen]:
        """The values of channels that were encoded, as they were then."""
        return {
            slot: Frozen(payload=held.payload or (refs.NULL, b""))
            if held.elements is None
            else Frozen(elements=held.elements.bodies(self._serde))
            for slot, held in self._held.items()
        }

    def _list(self, slot: tuple[str, str], value: list[Any] | Frozen) -> KnownValue:
        """A list: what is provably stored already keeps its reference, the rest is packed."""
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
            # Most lists start with what was handed out.
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
        """For each element its place in the watch, if it is unchanged, and of the others the packed form: all
        as of one moment, as far as they are plain data."""
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
        """A held list's elements, if the commit proves that their chunks are stored: it is refused when this
        is not the generation, or the head of the namespace is another."""
        if held is None or held.elements is None or held.generation != self._generation:
            return None
        basis = self._basis
        return held.elements if basis.is_guarded and self._cache.is_of_head(slot, held, basis.head) else None

    def write(self, value: Any) -> bytes:
        """The reference of a pending write, which may be frozen; it shares chunks with the value that it
        becomes."""
        return self._other(value)[0]

    def _other(self, value: Any) -> tuple[bytes, tuple[int, bytes]]:
        """The reference and payload of a value that is not known by element."""
        kind, body = value.payload if type(value) is Frozen else self._serde.payload(value)
        if kind != refs.MSGPACK or not _may_be_split(body):
            return self._builder.payload(kind, body), (kind, body)
        part = self._split(self._serde.plain(body), 0)
        return part.ref, (kind, part.body)

    def acknowledge(self, record: CheckpointRecord | None = None) -> None:
        """The chunks are durable, and the encoded channel values are those of ``record``, the head."""
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
        """The reference of a packed element, and the bytes that it stands for."""
        if len(body) > _SPLIT_ELEMENT and _may_be_split(body):
            return self._split(self._serde.plain(body), 1)
        return PackedValue(self._builder.payload(refs.MSGPACK, body), body)

    def _split(self, value: Any, depth: int, *, always: bool = False) -> PackedValue:
        """A plain value in pieces. A container inside another is split only if it is large, or ``always``."""
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
    """Whether a dict's key may stand in a node: a chunk has a largest size."""
    return type(key) is str and len(key) <= _KEY_MAX


def _may_be_split(body: bytes) -> bool:
    """Whether packed bytes are a list, a dict, or a DeltaChannel's snapshot."""
    first = body[0]
    return 0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF or ext_code(body) == SNAPSHOT_EXT


def take(
    serde: Serde,
    cache: ThreadCache,
    namespace: str,
    trees: Mapping[str, Tree],
    expansion: Expansion,
    references: Mapping[str, bytes],
    generation: int,
    root: str | None,
    *,
    are_roots: bool,
) -> dict[str, Any]:
    """The values of trees that were read, remembered for the next load and put. ``root`` is the root's head;
    ``are_roots`` says that all that was read is part of it."""
    out: dict[str, Any] = {}
    known = cache.enter(generation, root)
    # What the root's head refers to is there whenever it is; pending writes and subgraphs come after it.
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
    """A held value for a new owner, and what stands for it now. Call it under the cache's lock: it hands
    elements out again that nobody else holds."""
    if held.elements is not None:
        # Loading it proves that its chunks are stored in the generation of the load.
        return _handed_out(serde, held.elements, held.ref, generation)
    payload = held.payload or (refs.NULL, b"")
    return serde.value(*payload), held


def _handed_out(
    serde: Serde, elements: Elements, ref: bytes, generation: int
) -> tuple[list[Any], KnownValue]:
    """A list made of what is stored, for a new owner who shares nothing mutable with anybody."""
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
    """Packed values decoded in one go."""
    values: list[Any] = serde.unpack(array_header(len(bodies)) + b"".join(bodies)) if bodies else []
    return values


def _common(left: Sequence[object], right: Sequence[object]) -> int:
    """How many elements two sequences have in common at their start."""
    return sum(takewhile(bool, map(eq, left, right)))


class Pool:
    """Decoded elements shared by the checkpoints of one listing: each is decoded once and copied out."""

    def __init__(self, serde: Serde) -> None:
        self._serde = serde
        self._elements: dict[bytes, tuple[Any, bytes]] = {}

    def value(self, tree: Tree) -> Any:
        """A value of its own for a tree."""
        if not isinstance(tree, EncodedList):
            return self._serde.value(*joined(tree))
        known = self._elements
        new = {ref: packed(item) for ref, item in zip(tree.refs, tree.items, strict=True) if ref not in known}
        decoded = _unpacked(self._serde, list(new.values()))
        known.update(zip(new, zip(decoded, new.values(), strict=True), strict=True))
        template = Template.over(known[ref][0] for ref in tree.refs)
        return template.copies(lambda place: self._serde.unpack(known[tree.refs[place]][1]))[0]
