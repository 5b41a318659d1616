"""Translates channel values to references and chunks, leaving out what is stored already.

A value that is put is packed first, and everything after that uses the packed bytes: what is stored and what
is believed to be stored are the same, even if the value changes meanwhile. An element that comes back
provably unchanged is neither packed nor hashed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from operator import eq, is_
from typing import Any, NamedTuple

from perdure.langgraph.cache.change_tracking import Watch
from perdure.langgraph.cache.known_chunks import HeadRefs, Reuse, WriteBasis, proof
from perdure.langgraph.cache.thread_cache import Elements, KnownValue, Source, ThreadCache, count_common_start
from perdure.langgraph.values.serde import Serde, is_snapshot
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import ROOT
from perdure.model.ops import Check
from perdure.model.values import refs
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import (
    SNAPSHOT_EXT,
    pack_array_header,
    pack_ext_header,
    pack_map_header,
    read_ext_code,
)
from perdure.model.values.packs import place_of
from perdure.model.values.tree import Builder

_SPLIT_ELEMENT = 4096
_DEPTH = 4
_KEY_MAX = 1024


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
        basis: The state of the thread on which the write is planned.
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
            stored=frozenset() if reuse is Reuse.NONE else self._known.stored.keys(),
            recent=self._known.recent.keys() if reuse is Reuse.ALL else frozenset(),
        )
        self._encoded: dict[tuple[str, str], KnownValue] = {}

    @property
    def chunks(self) -> Mapping[bytes, bytes]:
        return self._builder.fresh

    def make_proof(self, room: int) -> tuple[Check, ...] | None:
        """Return the checks that prove the chunks that were left out, ``None`` for more than ``room``."""
        builder = self._builder
        relied = builder.used_recent - builder.fresh.keys()
        return proof(self._known, self._basis, relied, uses_stored=builder.uses_stored, room=room)

    def encode_channel(self, namespace: str, channel: str, value: Any) -> bytes:
        """Return the reference of a channel's value; ``value`` may be frozen."""
        slot = (namespace, channel)
        if type(value) is list or (type(value) is Frozen and value.elements is not None):
            held = self._encode_list(slot, value)
        else:
            ref, payload = self._encode_other(value)
            held = KnownValue(ref, self._generation, payload=payload)
        self._encoded[slot] = held
        return held.ref

    def freeze(self) -> dict[tuple[str, str], Frozen]:
        """Return the values of the encoded channels as they were when they were encoded."""
        return {
            slot: Frozen(payload=held.payload or (refs.NULL, b""))
            if held.elements is None
            else Frozen(elements=held.elements.pack_all(self._serde))
            for slot, held in self._encoded.items()
        }

    def _encode_list(self, slot: tuple[str, str], value: list[Any] | Frozen) -> KnownValue:
        """Encode a list: what is provably stored already keeps its reference, the rest is packed."""
        proved = self._find_proved_elements(slot, self._cache.values.get(slot))
        last_load = None if proved is None else proved.last_load
        sources: list[Source] = []
        kept, places = 0, list[int | None]()
        if isinstance(value, Frozen):
            bodies = value.elements or []
            places = [None] * len(bodies)
        else:
            kept, places, bodies = self._pack(value, None if last_load is None else last_load.watch)
        found: list[bytes] = [] if last_load is None else last_load.refs[:kept]
        sizes: list[int] = [] if last_load is None else last_load.sizes[:kept]
        new = iter(bodies)
        for place in places:
            if place is not None and last_load is not None:
                found.append(last_load.refs[place])
                sizes.append(last_load.sizes[place])
                sources.append(place)
            else:
                part = self._encode_element(next(new))
                found.append(part.ref)
                sizes.append(len(part.body))
                sources.append(part.body)
        if proved is not None:
            shape, same_count = (proved.shape, count_common_start(found, proved.refs))
        else:
            shape, same_count = (None, 0)
        ref, shape = self._builder.add_list_like(found, shape, same_count)
        return KnownValue(ref, self._generation, Elements(found, sizes, kept, sources, shape, last_load))

    def _pack(self, value: list[Any], watch: Watch | None) -> tuple[int, list[int | None], list[bytes]]:
        """Return the number of the first elements that are those of the watch, unchanged; for each further
        one its position in the watch if it is unchanged; and the packed form of the others: all as of one
        moment, as far as the elements are plain data."""
        if watch is not None:
            values = value.copy()
            kept = watch.count_common_start(values)
            rest = values[kept:]
            places: list[int | None] = [None] * len(rest)
            if kept < len(watch.values):
                places = watch.find_places(rest)
                rest = [item for item, place in zip(rest, places, strict=True) if place is None]

            def holds() -> Iterator[bool]:
                return chain(
                    map(eq, map(len, (value,)), (len(values),)),
                    map(is_, value, values),
                    watch.find_unchanged(),
                )

            if len(rest) < len(values):
                bodies = self._serde.pack_each(rest, holds)
            else:
                bodies = None
            if bodies is not None:
                return kept, places, bodies
        bodies = self._serde.pack_each(value) or []
        return 0, [None] * len(bodies), bodies

    def _find_proved_elements(self, slot: tuple[str, str], held: KnownValue | None) -> Elements | None:
        """Return a held list's elements if the commit proves that their chunks are stored: the commit is
        refused when the generation or the head of the namespace has changed."""
        if held is None or held.elements is None or held.generation != self._generation:
            return None
        basis = self._basis
        if basis.is_guarded and self._cache.is_of_head(slot, held, basis.head):
            return held.elements
        return None

    def encode_write(self, value: Any) -> bytes:
        """Return the reference of a pending write, which may be frozen; it shares chunks with the channel
        value that it becomes."""
        return self._encode_other(value)[0]

    def _encode_other(self, value: Any) -> tuple[bytes, tuple[int, bytes]]:
        """Return the reference and payload of a value whose elements are not cached."""
        if type(value) is Frozen:
            frozen = value
        else:
            frozen = Frozen.of(self._serde, value)
        if frozen.elements is not None:
            listed = self._list_of([self._encode_element(body) for body in frozen.elements])
            return listed.ref, (refs.MSGPACK, listed.body)
        kind, body = frozen.payload
        if kind != refs.MSGPACK or not _may_be_split(body):
            return self._builder.add_payload(kind, body), (kind, body)
        part = self._split(self._serde.unpack_plain(body), 0)
        return part.ref, (kind, part.body)

    def acknowledge(self, record: CheckpointRecord | None = None) -> None:
        """Update the cache: the chunks are durable, and ``record``, if given, is the head to which the
        encoded channel values belong."""
        known, builder = self._known, self._builder
        known.nodes.update(builder.seen)
        places = {name: place_of(name, body) for name, body in builder.fresh.items()}
        if record is not None and record.namespace == ROOT:
            relied = {name: known.recent[name] for name in builder.used_recent if name in known.recent}
            known.advance(record.id, record.replaced_head, relied | places)
        else:
            known.recent.update(places)
        known.note_end()
        self._cache.hold(self._encoded)
        if record is not None:
            self._cache.note_head(record.namespace, HeadRefs(record.id, record.refs))

    def _encode_element(self, body: bytes) -> PackedValue:
        """Return the reference of a packed element, and its packed form."""
        if len(body) > _SPLIT_ELEMENT and _may_be_split(body):
            return self._split(self._serde.unpack_plain(body), 1)
        return PackedValue(self._builder.add_payload(refs.MSGPACK, body), body)

    def _split(self, value: Any, depth: int, *, always: bool = False) -> PackedValue:
        """Split a plain value into chunks. A container inside another is split only if its packed form is
        larger than 4096 bytes, or ``always`` is set."""
        kind = type(value)
        if depth < _DEPTH and (kind is list or (kind is dict and all(map(_is_short, value)))):
            if depth and not always and len(body := self._serde.pack(value)) <= _SPLIT_ELEMENT:
                return PackedValue(self._builder.add_payload(refs.MSGPACK, body), body)
            if kind is list:
                return self._list_of([self._split(item, depth + 1) for item in value])
            return self._split_dict(value, depth)
        if is_snapshot(value):
            inner = self._split(value.value, depth)
            header = pack_ext_header(SNAPSHOT_EXT, len(inner.body))
            return PackedValue(self._builder.add_snapshot(inner.ref), header + inner.body)
        body = self._serde.pack(value)
        return PackedValue(self._builder.add_payload(refs.MSGPACK, body), body)

    def _list_of(self, parts: list[PackedValue]) -> PackedValue:
        body = pack_array_header(len(parts)) + b"".join([part.body for part in parts])
        return PackedValue(self._builder.add_list([part.ref for part in parts]), body)

    def _split_dict(self, value: dict[str, Any], depth: int) -> PackedValue:
        keys = [self._serde.pack_key(key) for key in value]
        # A list directly in a written dict, such as a run's input, is split like the channel that it may
        # become.
        parts = [
            self._split(item, depth + 1, always=depth == 0 and type(item) is list) for item in value.values()
        ]
        body = pack_map_header(len(parts)) + b"".join(
            chain.from_iterable((key, part.body) for key, part in zip(keys, parts, strict=True))
        )
        ref = self._builder.add_dict([(key, part.ref) for key, part in zip(keys, parts, strict=True)])
        return PackedValue(ref, body)


def _is_short(key: object) -> bool:
    """Return True if a dict's key may be part of a node: the size of a chunk is limited."""
    return type(key) is str and len(key) <= _KEY_MAX


def _may_be_split(body: bytes) -> bool:
    """Return True if packed bytes are a list, a dict, or a DeltaChannel's snapshot."""
    first = body[0]
    return 0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF or read_ext_code(body) == SNAPSHOT_EXT
