"""Encoding of a value as chunks such that writing a changed value costs only the change.

A list is a tree over the references of its elements, a dict one over its items in order. The content of a
node's last entry decides that the node ends there (a rolling boundary, as in a prolly tree), so the same run
of elements makes the same nodes at any position: appending, trimming the front and editing the middle leave
the other nodes as they are. The reference keeps the unfinished last node inline and names one small chunk
with the unfinished ends of the levels above, so an append writes the element and, once in a few appends,
a node. Small values are inline, large ones are cut into pieces.

The builder uses no storage: it takes the stored digests as sets and returns the chunks that are missing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from zlib import crc32

from perdure.errors import Corrupt
from perdure.model.values import refs
from perdure.model.values.chunks import Digester
from perdure.model.values.packs import Place
from perdure.model.values.pieces import cut

_LEAF_TARGET = 256
_NODE_MIN = 2
_NODE_MAX_BYTES = 4096
_FANOUT_MASK = 7


@dataclass(frozen=True, slots=True)
class ListCuts:
    """Boundaries of the nodes of one level of a list, and their digests. Lists with equal starts are cut
    alike there. ``above`` is the next level, ``None`` if this is the topmost."""

    ends: list[int]
    nodes: list[bytes]
    above: ListCuts | None = None

    @staticmethod
    def take_start(before: ListCuts | None, same: int) -> tuple[list[int], list[bytes]]:
        """Return the boundaries and digests of the nodes that end within the first ``same`` entries, which
        are those of an earlier list."""
        if before is None:
            return [], []
        whole = bisect_right(before.ends, same)
        return before.ends[:whole], before.nodes[:whole]


@dataclass(slots=True)
class Builder:
    """Collector of the chunks of one write.

    Attributes:
        nodes: digests of nodes met before, by body (saves hashing them again).
        stored: digests that need not be written.
        recent: further digests that need not be written.
        fresh: new chunks.
        seen: every node of this build.
        relied: those of ``recent`` that were left out.
        leans: true if one of ``stored`` was left out.
    """

    digest: Digester
    nodes: dict[bytes, bytes] = field(default_factory=dict)
    stored: AbstractSet[bytes] = frozenset()
    recent: AbstractSet[bytes] = frozenset()
    fresh: dict[bytes, bytes] = field(default_factory=dict)
    seen: dict[bytes, bytes] = field(default_factory=dict)
    relied: set[bytes] = field(default_factory=set)
    leans: bool = False

    def chunk(self, body: bytes) -> bytes:
        """Return the digest of a payload; the payload is queued unless it is stored."""
        digest = self.digest(body)
        self._queue(digest, body)
        return digest

    def node(self, body: bytes) -> bytes:
        """Return the digest of a node, queued likewise; the digest is remembered by the body."""
        digest = self.nodes.get(body)
        if digest is None:
            digest = self.digest(body)
        self.seen[body] = digest
        self._queue(digest, body)
        return digest

    def _queue(self, digest: bytes, body: bytes) -> None:
        if digest in self.stored:
            self.leans = True
        elif digest in self.recent:
            self.relied.add(digest)
        else:
            self.fresh[digest] = body

    def payload(self, payload_type: int, body: bytes) -> bytes:
        """Return the reference of one value that is not split: inline, a chunk, or several pieces."""
        if len(body) <= refs.INLINE_MAX:
            return refs.inline(payload_type, body)
        pieces = [self.chunk(piece) for piece in cut(body)]
        if len(pieces) == 1:
            return refs.chunk(payload_type, pieces[0])
        return self._shorten(refs.big(payload_type, pieces))

    def list_of(self, elements: list[bytes]) -> bytes:
        """Return the reference of a list, given the references of its elements."""
        return self.list_like(elements, None, 0)[0]

    def list_like(self, elements: list[bytes], before: ListCuts | None, same: int) -> tuple[bytes, ListCuts]:
        """Return the reference and the boundaries of a list that shares a prefix with an earlier one.

        Args:
            before: boundaries of the earlier list, whose nodes are stored.
            same: count of first elements that are the same.
        """
        ends, leaves = ListCuts.take_start(before, same)
        whole = len(leaves)
        first = start = ends[-1] if ends else 0
        new_ends: list[int] = []
        size = 0
        rest = elements[first:] if first else elements
        for position, ref in enumerate(rest, first):
            length = len(ref)
            size += length
            if ref[0] & 0xF0 == refs.CHUNK:
                hit = ref[1] < 64
            else:
                hit = (crc32(ref) & 0xFF) * _LEAF_TARGET < length << 8
            if (hit and position - start >= _NODE_MIN - 1) or size > _NODE_MAX_BYTES:
                new_ends.append(position + 1)
                start = position + 1
                size = 0
        entries = [refs.entry(ref) for ref in rest]
        at = 0
        for end in new_ends:
            leaves.append(self.node(b"".join(entries[at : end - first])))
            at = end - first
        ends += new_ends
        upper, above = self._build_upper(leaves, None if before is None else before.above, whole)
        ref = self._build_tree(refs.LIST, len(elements), upper, b"".join(entries[at:]))
        return ref, ListCuts(ends, leaves, above)

    def dict_of(self, items: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the reference of a dict from its packed keys and its values' references, in order."""
        entries = [refs.encode_dict_entry(key, ref) for key, ref in items]
        ends: list[int] = []
        start = 0
        size = 0
        for position, entry in enumerate(entries):
            length = len(entry)
            size += length
            hit = (crc32(entry) & 0xFF) * _LEAF_TARGET < length << 8
            if (hit and position - start >= _NODE_MIN - 1) or size > _NODE_MAX_BYTES:
                ends.append(position + 1)
                start = position + 1
                size = 0
        leaves: list[bytes] = []
        at = 0
        for end in ends:
            leaves.append(self.node(b"".join(entries[at:end])))
            at = end
        return self._build_tree(refs.DICT, len(entries), self._build_upper(leaves)[0], b"".join(entries[at:]))

    def snapshot_of(self, inner: bytes) -> bytes:
        return self._shorten(refs.snapshot(inner))

    def _build_tree(self, tag: int, count: int, upper: bytes, tail: bytes) -> bytes:
        return self._shorten(refs.tree(tag, count, self.node(upper) if upper else b"", tail))

    def _build_upper(
        self, level: list[bytes], before: ListCuts | None = None, same: int = 0
    ) -> tuple[bytes, ListCuts | None]:
        """Return the unfinished ends of the levels above the nodes of a level, topmost first, and the
        boundaries of the next of these levels, given those of an earlier list (see ``list_like``)."""
        if not level:
            return b"", None
        ends, nodes = ListCuts.take_start(before, same)
        whole = len(nodes)
        start = ends[-1] if ends else 0
        for position, digest in enumerate(level[start:], start):
            run = position - start + 1
            if (digest[1] & _FANOUT_MASK == 0 and run >= _NODE_MIN) or run >= 64:
                nodes.append(self.node(b"".join(level[start : position + 1])))
                start = position + 1
                ends.append(start)
        tops, above = self._build_upper(nodes, None if before is None else before.above, whole)
        return tops + refs.entry(b"".join(level[start:])), ListCuts(ends, nodes, above)

    def _shorten(self, ref: bytes) -> bytes:
        if len(ref) <= refs.REF_MAX:
            return ref
        return refs.wrap(self.node(ref))


@dataclass(slots=True)
class Leaf:
    """A payload that is not split."""

    type: int
    body: bytes


@dataclass(slots=True)
class EncodedList:
    """A list: the references of its elements, and the elements."""

    refs: list[bytes]
    items: list[Tree]


@dataclass(slots=True)
class EncodedDict:
    """A dict: packed keys and values, in order."""

    items: list[tuple[bytes, Tree]]


@dataclass(slots=True)
class Snapshot:
    """A DeltaChannel snapshot around a value."""

    inner: Tree


Tree = Leaf | EncodedList | EncodedDict | Snapshot

Bodies = dict[bytes, bytes]
Run = tuple[list[bytes], list[Tree]]


class Expansion:
    """Expansion of references into trees, in rounds: ``take_missing`` names chunks, ``feed`` supplies them.

    ``nodes`` collects the bodies and digests of the nodes on the way, ``used`` every digest, ``places`` where
    the chunks are stored, as far as that was said. With ``payloads=False`` only nodes are requested and
    leaves are empty: enough to find what is reachable.
    """

    def __init__(self, *, payloads: bool = True) -> None:
        self._payloads = payloads
        self._bodies: Bodies = {}
        self._wanted: set[bytes] = set()
        self._runs: dict[tuple[int, bytes], Run] = {}
        self.nodes: dict[bytes, bytes] = {}
        self.used: set[bytes] = set()
        self.places: dict[bytes, Place] = {}

    def feed(self, bodies: Bodies, places: Mapping[bytes, Place] | None = None) -> None:
        """Supply chunks, each of which matches its name, and where they are stored."""
        self._bodies.update(bodies)
        if places is not None:
            self.places.update((name, places[name]) for name in bodies)

    def try_expand(self, ref: bytes) -> Tree | None:
        """Return the tree of a reference, or ``None`` if chunks are missing (see ``take_missing``)."""
        return self._expand(ref)

    def take_missing(self) -> set[bytes]:
        """Return the digests requested since the last call."""
        wanted, self._wanted = self._wanted, set()
        return wanted

    def _find_body(self, digest: bytes, *, node: bool = False) -> bytes | None:
        self.used.add(digest)
        if not node and not self._payloads:
            return b""
        body = self._bodies.get(digest)
        if body is None:
            self._wanted.add(digest)
        elif node:
            self.nodes[body] = digest
        return body

    def _expand(self, ref: bytes) -> Tree | None:
        if not ref:
            raise Corrupt("an empty reference")
        tag = ref[0]
        family = tag & 0xF0
        if family == refs.INLINE:
            return Leaf(tag & 0x0F, ref[1:])
        if family == refs.CHUNK:
            body = self._find_body(ref[1:])
            if body is None:
                return None
            return Leaf(tag & 0x0F, body)
        if family == refs.BIG:
            pieces = [self._find_body(d) for d in refs.digests(ref[1:])]
            whole = [p for p in pieces if p is not None]
            if len(whole) == len(pieces):
                return Leaf(tag & 0x0F, b"".join(whole))
            return None
        if tag == refs.WRAPPED:
            body = self._find_body(ref[1:], node=True)
            if body is None:
                return None
            return self._expand(body)
        if tag == refs.SNAPSHOT:
            inner = self._expand(ref[1:])
            if inner is None:
                return None
            return Snapshot(inner)
        if tag in (refs.LIST, refs.DICT):
            return self._expand_tree(tag, ref)
        raise Corrupt(f"a reference with the unknown tag {tag:#04x}")

    def _expand_tree(self, tag: int, ref: bytes) -> Tree | None:
        count, upper, tail = refs.read_tree(ref)
        digests = self._list_leaf_digests(upper) if upper else []
        if digests is None:
            return None
        runs = [self._read_leaf(tag, digest) for digest in digests]
        runs.append(self._run(tag, tail))
        whole = [run for run in runs if run is not None]
        if len(whole) < len(runs):
            return None
        names = [name for run in whole for name in run[0]]
        items = [item for run in whole for item in run[1]]
        if len(items) != count:
            raise Corrupt(f"a list or dict names {count} entries and holds {len(items)}")
        if tag == refs.LIST:
            return EncodedList(names, items)
        return EncodedDict(list(zip(names, items, strict=True)))

    def _read_leaf(self, tag: int, digest: bytes) -> Run | None:
        """Return the entries of a leaf node; many trees share one, so it is decoded once."""
        run = self._runs.get((tag, digest))
        if run is None:
            body = self._find_body(digest, node=True)
            run = None if body is None else self._run(tag, body)
            if run is not None:
                self._runs[tag, digest] = run
        return run

    def _run(self, tag: int, data: bytes) -> Run | None:
        """Return a run of entries: their references (keys for a dict), and their trees."""
        if tag == refs.LIST:
            names = elements = refs.read_entries(data)
        else:
            pairs = refs.read_dict_entries(data)
            names, elements = [key for key, _ in pairs], [ref for _, ref in pairs]
        found = [self._expand(element) for element in elements]
        items = [item for item in found if item is not None]
        if len(items) == len(found):
            return (names, items)
        return None

    def _list_leaf_digests(self, upper: bytes) -> list[bytes] | None:
        """Return the digests of the leaf nodes, in order, or ``None`` while some level is missing."""
        body = self._find_body(upper, node=True)
        if body is None:
            return None
        level: list[bytes] = []
        for tail in refs.read_entries(body):
            nodes = [self._find_body(digest, node=True) for digest in level]
            whole = [node for node in nodes if node is not None]
            if len(whole) < len(nodes):
                return None
            below = [digest for node in whole for digest in refs.digests(node)]
            level = [*below, *refs.digests(tail)]
        return level
