"""Channel values to references and back, with what this process knows already.

For each thread the cache holds the digests that are stored, and for each list channel its elements as they
were last handed out or put: an element that is provably unchanged is neither serialised nor hashed again,
and one that was read is copied as it was then instead of decoded. The cache can only save work: a value is
recognised by its reference, an element by its identity and its watch.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from operator import is_
from threading import Lock
from typing import Any, NamedTuple

from perdure.langgraph import identity
from perdure.langgraph.identity import Watch
from perdure.langgraph.serde import Serde, is_snapshot
from perdure.model import refs
from perdure.model.chunks import Digester
from perdure.model.packing import SNAPSHOT_EXT, array_header, ext_header, joined, map_header, packed
from perdure.model.records import Partition
from perdure.model.tree import Builder, Expansion, Listed, Shape, Tree

_SPLIT_ELEMENT = 4096
_DEPTH = 4
_KEY_MAX = 1024
_DIGESTS_MAX = 200_000
_SLOTS_MAX = 256


class Spare(NamedTuple):
    """Objects that stood for a list's first elements one load earlier. Who keeps the state of the last turn
    while the next one runs has let go of these by then."""

    refs: list[bytes]
    watch: Watch


@dataclass(slots=True, eq=False)
class Elements:
    """A list's elements as they are stored: their references, a watch over the objects that stand for them,
    and how the list was cut. ``ends`` says how many packed bytes the elements up to each one come to.
    ``bodies`` has the packed form of those elements whose object is not the decoded form of what is stored,
    or is opaque, by position. ``spare`` is the set of objects before."""

    refs: list[bytes]
    ends: array[int]
    watch: Watch
    bodies: dict[int, bytes]
    shape: Shape | None
    spare: Spare | None = None
    _places: dict[int, int] | None = None

    @property
    def size(self) -> int:
        """Packed bytes of the whole list."""
        return len(array_header(len(self.refs))) + (self.ends[-1] if self.ends else 0)

    def start_of(self, values: list[Any]) -> int:
        """How many elements a list starts with: all of them, unchanged and none opaque, or 0."""
        known = self.watch.values
        if len(values) < len(known) or not all(map(is_, values, known)):
            return 0
        return len(known) if None not in self.watch.recipes and self.watch.is_unchanged() else 0

    def place(self, value: Any) -> int | None:
        """Where an object stands in the list, if it is one of the elements that are watched."""
        if self._places is None:
            self._places = {id(v): i for i, v in enumerate(self.watch.values)}
        at = self._places.get(id(value))
        return at if at is not None and self.watch.is_given(at) else None


@dataclass(slots=True, eq=False)
class Held:
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
class Known:
    """The chunks that are known to be stored in one collection generation, and nodes with their digests."""

    generation: int
    stored: set[bytes] = field(default_factory=set)
    nodes: dict[bytes, bytes] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ThreadCache:
    """What this process remembers of one thread."""

    known: Known = field(default_factory=lambda: Known(-1))
    lock: Lock = field(default_factory=Lock)
    held: dict[tuple[str, str], Held] = field(default_factory=dict)

    def enter(self, generation: int) -> Known:
        """What is known in a generation. Another generation's is let go as a whole, so that a caller who is
        still busy in the old one adds nothing to the new; identities and values stay."""
        known = self.known
        if generation != known.generation or len(known.stored) > _DIGESTS_MAX:
            known = self.known = Known(generation)
        return known

    def hold(self, held: Mapping[tuple[str, str], Held]) -> None:
        """Remember values. A thread's subgraphs come with ever new namespaces, so the oldest go."""
        for slot, value in held.items():
            self.held.pop(slot, None)
            self.held[slot] = value
        while len(self.held) > _SLOTS_MAX:
            self.held.pop(next(iter(self.held)), None)

    def sizes(self, namespace: str, references: Mapping[str, bytes]) -> dict[str, int]:
        """Bytes of each channel's value, where it is remembered under the reference it has."""
        found = ((channel, ref, self.held.get((namespace, channel))) for channel, ref in references.items())
        return {channel: held.size for channel, ref, held in found if held is not None and held.ref == ref}

    def weight(self) -> int:
        """Roughly how many elements are held; a payload counts one for each half kilobyte."""
        weight = 8
        for held in list(self.held.values()):
            if held.elements is not None:
                weight += len(held.elements.refs) + len(
                    held.elements.spare.refs if held.elements.spare else ()
                )
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


class Part(NamedTuple):
    """A value's reference and its packed form."""

    ref: bytes
    body: bytes


class Encoding:
    """The encoding of one write: references by channel, and the chunks that are not stored yet.

    Nothing of it reaches the cache until ``acknowledge`` says that the chunks are durable.
    """

    def __init__(self, serde: Serde, digest: Digester, cache: ThreadCache, generation: int) -> None:
        self._serde = serde
        self._cache = cache
        self._known = cache.enter(generation)
        self._generation = generation
        self._builder = Builder(digest, nodes=self._known.nodes, stored=self._known.stored)
        self._held: dict[tuple[str, str], Held] = {}

    @property
    def chunks(self) -> Mapping[bytes, bytes]:
        return self._builder.fresh

    def channel(self, namespace: str, channel: str, value: Any) -> bytes:
        """The reference of a channel's value."""
        slot = (namespace, channel)
        if type(value) is list:
            held = self._list(slot, value)
        else:
            ref, payload = self._other(value)
            held = Held(ref, self._generation, payload=payload)
        self._held[slot] = held
        return held.ref

    def _list(self, slot: tuple[str, str], value: list[Any]) -> Held:
        """A list: what is provably stored already keeps its reference, the rest is packed."""
        values = value.copy()
        before = self._current(self._cache.held.get(slot))
        same = 0 if before is None else before.start_of(values)
        # What is watched first and compared or packed then is seen to change, whenever its holder changes it.
        if before is not None and same:
            found, ends, bodies = before.refs.copy(), before.ends[:], before.bodies.copy()
            watch = before.watch.extended(values) if len(values) > same else before.watch
        else:
            found, ends, bodies, watch = [], array("Q"), {}, Watch.over(values)
        # What is appended to known elements is new; elsewhere an element may have moved.
        moved, unchanged = None if same else before, None
        end = ends[-1] if ends else 0
        for position in range(same, len(values)):
            item = values[position]
            at = None if moved is None or watch.recipes[position] is None else moved.place(item)
            if at is not None and moved is not None and unchanged is None:
                unchanged = moved.watch.is_unchanged()
            if moved is None or at is None or not unchanged:
                ref, body = self._element(item)
                bodies[position] = body
                end += len(body)
            else:
                ref = moved.refs[at]
                end += moved.ends[at] - (moved.ends[at - 1] if at else 0)
                if at in moved.bodies:
                    bodies[position] = moved.bodies[at]
            found.append(ref)
            ends.append(end)
        shape = None
        if before is not None:
            shape, same = before.shape, same or _alike(found, before.refs)
        ref, shape = self._builder.list_like(found, shape, same)
        spare = None if before is None else before.spare
        return Held(ref, self._generation, Elements(found, ends, watch, bodies, shape, spare))

    def _current(self, held: Held | None) -> Elements | None:
        """A held list's elements, if its chunks are stored in this generation."""
        if held is None or held.elements is None or held.generation != self._generation:
            return None
        return held.elements

    def write(self, value: Any) -> bytes:
        """The reference of a pending write; it shares chunks with the value that it becomes."""
        return self._other(value)[0]

    def _other(self, value: Any) -> tuple[bytes, tuple[int, bytes]]:
        """The reference and payload of a value that is not watched by element."""
        if type(value) in (list, dict) or is_snapshot(value):
            part = self._split(value, 0)
            return part.ref, (refs.MSGPACK, part.body)
        payload = self._serde.payload(value)
        return self._builder.payload(*payload), payload

    def acknowledge(self) -> None:
        """The chunks are durable, and the encoded channel values are the latest."""
        self._known.stored.update(self._builder.fresh)
        self._known.nodes.update(self._builder.seen)
        self._cache.hold(self._held)

    def _element(self, value: Any) -> tuple[bytes, bytes]:
        """An element's reference and packed form."""
        body = self._serde.pack(value)
        if len(body) > _SPLIT_ELEMENT and type(value) in (list, dict):
            return self._split(value, 1).ref, body
        return self._builder.payload(refs.MSGPACK, body), body

    def _split(self, value: Any, depth: int, *, always: bool = False) -> Part:
        """A value in pieces. A container inside another is split only when it is large, or ``always``."""
        kind = type(value)
        if depth < _DEPTH and (kind is list or (kind is dict and all(map(_is_short, value)))):
            if depth and not always and len(body := self._serde.pack(value)) <= _SPLIT_ELEMENT:
                return Part(self._builder.payload(refs.MSGPACK, body), body)
            return self._split_list(value, depth) if kind is list else self._split_dict(value, depth)
        if is_snapshot(value):
            inner = self._split(value.value, depth)
            header = ext_header(SNAPSHOT_EXT, len(inner.body))
            return Part(self._builder.snapshot_of(inner.ref), header + inner.body)
        body = self._serde.pack(value)
        return Part(self._builder.payload(refs.MSGPACK, body), body)

    def _split_list(self, value: list[Any], depth: int) -> Part:
        parts = [self._split(item, depth + 1) for item in value]
        body = array_header(len(parts)) + b"".join([part.body for part in parts])
        return Part(self._builder.list_of([part.ref for part in parts]), body)

    def _split_dict(self, value: dict[str, Any], depth: int) -> Part:
        keys = [self._serde.key(key) for key in value]
        # A list that is a channel's direct value is split like the channel that it may become.
        parts = [
            self._split(item, depth + 1, always=depth == 0 and type(item) is list) for item in value.values()
        ]
        body = map_header(len(parts)) + b"".join(
            chain.from_iterable((key, part.body) for key, part in zip(keys, parts, strict=True))
        )
        ref = self._builder.dict_of([(key, part.ref) for key, part in zip(keys, parts, strict=True)])
        return Part(ref, body)


def _is_short(key: object) -> bool:
    """Whether a dict's key may stand in a node: a chunk has a largest size."""
    return type(key) is str and len(key) <= _KEY_MAX


def take(
    serde: Serde,
    cache: ThreadCache,
    namespace: str,
    trees: Mapping[str, Tree],
    expansion: Expansion,
    references: Mapping[str, bytes],
    generation: int,
) -> dict[str, Any]:
    """The values of trees that were read, remembered for the next load and put."""
    out: dict[str, Any] = {}
    known = cache.enter(generation)
    known.stored.update(expansion.used)
    known.nodes.update(expansion.nodes)
    for channel, tree in trees.items():
        slot = (namespace, channel)
        if isinstance(tree, Listed):
            bodies = [packed(item) for item in tree.items]
            values: list[Any] = serde.unpack(array_header(len(bodies)) + b"".join(bodies))
            watch = Watch.over(values)
            opaque = {i: bodies[i] for i, recipe in enumerate(watch.recipes) if recipe is None}
            ends = array("Q", accumulate(map(len, bodies)))
            elements = Elements(tree.refs, ends, watch, opaque, None)
            # In hand before it is held: another thread's load would take what nobody else has for its own.
            out[channel] = values.copy()
            cache.hold({slot: Held(references[channel], generation, elements)})
        else:
            payload = joined(tree)
            cache.hold({slot: Held(references[channel], generation, payload=payload)})
            out[channel] = serde.value(*payload)
    return out


def recall(serde: Serde, held: Held, generation: int) -> tuple[Any, Held] | None:
    """A held value for a new owner and what stands for it now; ``None`` when it must be read. Call it under
    the cache's lock: it hands elements out again that nobody else holds, and copies of all others, made from
    what was seen of them, not from what their holders do to them meanwhile."""
    if held.payload is not None:
        return serde.value(*held.payload), held
    elements = held.elements
    if elements is None:
        return None
    bodies, watched = elements.bodies, elements.watch

    def made(at: int) -> Any:
        return serde.unpack(bodies[at])

    count = len(watched.recipes)
    # Elements that were put, not read, are decoded once, so that a value is the same however it is read.
    start = min((i for i in bodies if watched.recipes[i] is not None), default=count)
    spare = elements.spare
    if watched.is_alone() and watched.is_unchanged():
        watch, spare = watched.part(0, start), None
    elif spare is not None and _is_free(spare, elements.refs):
        front = len(spare.refs)
        watch, spare, start = spare.watch, _spare(elements, start), front
    else:
        watch, spare = watched.copies(start, made), _spare(elements, start)
    if start < count:
        rest = watched.part(start, count).copies(count - start, lambda at: made(start + at)).values
        for at in bodies:
            if at >= start and watched.recipes[at] is not None:
                rest[at - start] = made(at)
        watch = watch.extended(watch.values + rest)
    opaque = {i: bodies[i] for i in bodies if watch.recipes[i] is None}
    new = Elements(elements.refs, elements.ends, watch, opaque, elements.shape, spare)
    # Loading it proves that its chunks are stored in the generation of the load.
    return watch.values.copy(), Held(held.ref, generation, new)


def _is_free(spare: Spare, references: list[bytes]) -> bool:
    """Whether spare objects still stand for a list's first elements and are in nobody's hands."""
    return (
        spare.refs == references[: len(spare.refs)] and spare.watch.is_alone() and spare.watch.is_unchanged()
    )


def _spare(elements: Elements, count: int) -> Spare | None:
    """The first elements' objects, for the load after next; none where one of them is opaque."""
    if None in elements.watch.recipes[:count]:
        return None
    return Spare(elements.refs[:count], elements.watch.part(0, count))


def _alike(left: list[bytes], right: list[bytes]) -> int:
    """How many references two lists have in common at their start."""
    for position, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return position
    return min(len(left), len(right))


class Pool:
    """Decoded elements shared by the checkpoints of one listing: each is decoded once and copied out."""

    def __init__(self, serde: Serde) -> None:
        self._serde = serde
        self._elements: dict[bytes, Callable[[], Any]] = {}

    def value(self, tree: Tree) -> Any:
        """A value of its own for a tree."""
        if not isinstance(tree, Listed):
            return self._serde.value(*joined(tree))
        known = self._elements
        new = [
            (ref, packed(item)) for ref, item in zip(tree.refs, tree.items, strict=True) if ref not in known
        ]
        if new:
            values = self._serde.unpack(array_header(len(new)) + b"".join(body for _, body in new))
            for (ref, body), value in zip(new, values, strict=True):
                known[ref] = identity.copier(value) or partial(self._serde.unpack, body)
        return [known[ref]() for ref in tree.refs]
