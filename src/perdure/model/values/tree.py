"""Encoding of a value as chunks such that writing a changed value costs only the change.

A list becomes a tree over the references of its elements, a dict a tree over its items in order. A node ends
at the first entry whose content says so (a rolling boundary, as in a prolly tree), so the same run of
elements makes the same nodes at any position: appending, trimming the front and editing the middle leave the
other nodes as they are. The entries after the last finished node of each level form no node yet: those of the
lowest level are inline in the reference, and those of all levels above are together in one small chunk, which
the reference names. So an append writes the element and, once in a few appends, a node. Values other
than lists and dicts are inline if they are small, and cut into pieces if they are large.

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
    """Boundaries (``ends``) and digests (``nodes``) of the finished nodes of one level of a list. Lists that
    start with the same elements have the same boundaries within them. ``above`` is the level above this one,
    ``None`` if this is the topmost."""

    ends: list[int]
    nodes: list[bytes]
    above: ListCuts | None = None

    @staticmethod
    def take_start(before: ListCuts | None, same: int) -> tuple[list[int], list[bytes]]:
        """Return the boundaries and digests of the nodes that a list shares with an earlier one.

        Args:
            before: the cuts of the earlier list, ``None`` if there is none.
            same: number of first entries that both lists have in common.
        """
        if before is None:
            return [], []
        count = bisect_right(before.ends, same)
        return before.ends[:count], before.nodes[:count]


@dataclass(slots=True)
class Builder:
    """Collector of the chunks of one write.

    Attributes:
        nodes: digests of nodes of earlier builds, by body (saves hashing them again).
        stored: digests of chunks that are not written again: they are stored if the thread's last known root
            checkpoint is.
        recent: digests of further chunks that are not written again: the commit checks each of them.
        fresh: chunks to write.
        seen: digests of all nodes of this build, by body.
        used_recent: those of ``recent`` that this build refers to.
        uses_stored: true if this build refers to one of ``stored``.
    """

    digest: Digester
    nodes: dict[bytes, bytes] = field(default_factory=dict)
    stored: AbstractSet[bytes] = frozenset()
    recent: AbstractSet[bytes] = frozenset()
    fresh: dict[bytes, bytes] = field(default_factory=dict)
    seen: dict[bytes, bytes] = field(default_factory=dict)
    used_recent: set[bytes] = field(default_factory=set)
    uses_stored: bool = False

    def add_chunk(self, body: bytes) -> bytes:
        """Return the digest of a payload, which is added to ``fresh`` unless it is stored."""
        digest = self.digest(body)
        self._add_unless_stored(digest, body)
        return digest

    def add_node(self, body: bytes) -> bytes:
        """Return the digest of a node, which is added to ``seen``, and to ``fresh`` unless it is stored."""
        digest = self.nodes.get(body)
        if digest is None:
            digest = self.digest(body)
        self.seen[body] = digest
        self._add_unless_stored(digest, body)
        return digest

    def _add_unless_stored(self, digest: bytes, body: bytes) -> None:
        if digest in self.stored:
            self.uses_stored = True
        elif digest in self.recent:
            self.used_recent.add(digest)
        else:
            self.fresh[digest] = body

    def add_payload(self, payload_type: int, body: bytes) -> bytes:
        """Return the reference of a value that is not split into parts: inline, one chunk, or several
        pieces."""
        if len(body) <= refs.INLINE_MAX:
            return refs.inline(payload_type, body)
        pieces = [self.add_chunk(piece) for piece in cut(body)]
        if len(pieces) == 1:
            return refs.chunk(payload_type, pieces[0])
        return self._shorten(refs.big(payload_type, pieces))

    def add_list(self, elements: list[bytes]) -> bytes:
        """Return the reference of a list, given the references of its elements."""
        return self.add_list_like(elements, None, 0)[0]

    def add_list_like(
        self, elements: list[bytes], before: ListCuts | None, same: int
    ) -> tuple[bytes, ListCuts]:
        """Return the reference and the cuts of a list that starts like an earlier list.

        Args:
            before: the cuts of the earlier list, whose nodes are stored, ``None`` if there is none.
            same: number of first elements that both lists have in common.
        """
        ends, leaves = ListCuts.take_start(before, same)
        shared = len(leaves)
        rest_start = node_start = ends[-1] if ends else 0
        new_ends: list[int] = []
        size = 0
        rest = elements[rest_start:] if rest_start else elements
        for position, ref in enumerate(rest, rest_start):
            length = len(ref)
            size += length
            if ref[0] & 0xF0 == refs.CHUNK:
                is_boundary = ref[1] < 64
            else:
                is_boundary = (crc32(ref) & 0xFF) * _LEAF_TARGET < length << 8
            if (is_boundary and position - node_start >= _NODE_MIN - 1) or size > _NODE_MAX_BYTES:
                new_ends.append(position + 1)
                node_start = position + 1
                size = 0
        rest_entries = [refs.entry(ref) for ref in rest]
        node_start_in_rest = 0
        for end in new_ends:
            leaves.append(self.add_node(b"".join(rest_entries[node_start_in_rest : end - rest_start])))
            node_start_in_rest = end - rest_start
        ends += new_ends
        upper, above = self._build_upper(leaves, None if before is None else before.above, shared)
        ref = self._build_tree(refs.LIST, len(elements), upper, b"".join(rest_entries[node_start_in_rest:]))
        return ref, ListCuts(ends, leaves, above)

    def add_dict(self, items: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the reference of a dict from its packed keys and its values' references, in order."""
        entries = [refs.encode_dict_entry(key, ref) for key, ref in items]
        ends: list[int] = []
        node_start = 0
        size = 0
        for position, entry in enumerate(entries):
            length = len(entry)
            size += length
            is_boundary = (crc32(entry) & 0xFF) * _LEAF_TARGET < length << 8
            if (is_boundary and position - node_start >= _NODE_MIN - 1) or size > _NODE_MAX_BYTES:
                ends.append(position + 1)
                node_start = position + 1
                size = 0
        leaves: list[bytes] = []
        leaf_start = 0
        for end in ends:
            leaves.append(self.add_node(b"".join(entries[leaf_start:end])))
            leaf_start = end
        return self._build_tree(
            refs.DICT, len(entries), self._build_upper(leaves)[0], b"".join(entries[leaf_start:])
        )

    def add_snapshot(self, inner: bytes) -> bytes:
        return self._shorten(refs.snapshot(inner))

    def _build_tree(self, tag: int, count: int, upper: bytes, tail: bytes) -> bytes:
        return self._shorten(refs.tree(tag, count, self.add_node(upper) if upper else b"", tail))

    def _build_upper(
        self, level: list[bytes], before: ListCuts | None = None, same: int = 0
    ) -> tuple[bytes, ListCuts | None]:
        """Build the levels above a level, given the digests of that level's nodes.

        Args:
            level: the digests of the nodes below.
            before: the cuts of the lowest level to build, from an earlier list (see ``add_list_like``).
            same: number of first digests that the earlier list has in common.

        Returns:
            The digests that form no node yet, one entry for each level, topmost first; and the cuts of the
            lowest of the new levels.
        """
        if not level:
            return b"", None
        ends, nodes = ListCuts.take_start(before, same)
        shared = len(nodes)
        node_start = ends[-1] if ends else 0
        for position, digest in enumerate(level[node_start:], node_start):
            length = position - node_start + 1
            if (digest[1] & _FANOUT_MASK == 0 and length >= _NODE_MIN) or length >= 64:
                nodes.append(self.add_node(b"".join(level[node_start : position + 1])))
                node_start = position + 1
                ends.append(node_start)
        tops, above = self._build_upper(nodes, None if before is None else before.above, shared)
        return tops + refs.entry(b"".join(level[node_start:])), ListCuts(ends, nodes, above)

    def _shorten(self, ref: bytes) -> bytes:
        if len(ref) <= refs.REF_MAX:
            return ref
        return refs.wrap(self.add_node(ref))


@dataclass(slots=True)
class Payload:
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


Tree = Payload | EncodedList | EncodedDict | Snapshot

Bodies = dict[bytes, bytes]
Entries = tuple[list[bytes], list[Tree]]
"""Successive entries of a list or dict: references (of a dict: keys), and trees."""


class Expansion:
    """Expansion of references into trees, in rounds: ``take_missing`` names chunks, ``feed`` supplies them.

    ``nodes`` maps the body of each node that was passed to its digest, ``used`` has the digests of all chunks
    that the references need, ``places`` where chunks are stored, if ``feed`` was given that. With
    ``payloads=False`` only nodes are requested and leaves are empty: enough to find all reachable chunks.
    """

    def __init__(self, *, payloads: bool = True) -> None:
        self._payloads = payloads
        self._bodies: Bodies = {}
        self._wanted: set[bytes] = set()
        self._leaf_entries: dict[tuple[int, bytes], Entries] = {}
        self.nodes: dict[bytes, bytes] = {}
        self.used: set[bytes] = set()
        self.places: dict[bytes, Place] = {}

    def feed(self, bodies: Bodies, places: Mapping[bytes, Place] | None = None) -> None:
        """Supply chunks by digest, and where they are stored. The caller has verified the digests."""
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

    def _request_body(self, digest: bytes, *, node: bool = False) -> bytes | None:
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
            return Payload(tag & 0x0F, ref[1:])
        if family == refs.CHUNK:
            body = self._request_body(ref[1:])
            if body is None:
                return None
            return Payload(tag & 0x0F, body)
        if family == refs.BIG:
            pieces = [self._request_body(d) for d in refs.digests(ref[1:])]
            found_pieces = [p for p in pieces if p is not None]
            if len(found_pieces) == len(pieces):
                return Payload(tag & 0x0F, b"".join(found_pieces))
            return None
        if tag == refs.WRAPPED:
            body = self._request_body(ref[1:], node=True)
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
        leaves = self._find_leaf_digests(upper) if upper else []
        if leaves is None:
            return None
        parts = [self._read_leaf(tag, digest) for digest in leaves]
        parts.append(self._read_entries(tag, tail))
        found_parts = [part for part in parts if part is not None]
        if len(found_parts) < len(parts):
            return None
        names = [name for part in found_parts for name in part[0]]
        items = [item for part in found_parts for item in part[1]]
        if len(items) != count:
            raise Corrupt(f"a list or dict names {count} entries and holds {len(items)}")
        if tag == refs.LIST:
            return EncodedList(names, items)
        return EncodedDict(list(zip(names, items, strict=True)))

    def _read_leaf(self, tag: int, digest: bytes) -> Entries | None:
        """Return the entries of a leaf node, decoded only once, as many trees share a leaf."""
        entries = self._leaf_entries.get((tag, digest))
        if entries is None:
            body = self._request_body(digest, node=True)
            entries = None if body is None else self._read_entries(tag, body)
            if entries is not None:
                self._leaf_entries[tag, digest] = entries
        return entries

    def _read_entries(self, tag: int, data: bytes) -> Entries | None:
        """Decode successive entries; ``None`` if chunks are missing."""
        if tag == refs.LIST:
            names = elements = refs.read_entries(data)
        else:
            pairs = refs.read_dict_entries(data)
            names, elements = [key for key, _ in pairs], [ref for _, ref in pairs]
        expanded = [self._expand(element) for element in elements]
        items = [item for item in expanded if item is not None]
        if len(items) == len(expanded):
            return (names, items)
        return None

    def _find_leaf_digests(self, upper: bytes) -> list[bytes] | None:
        """Return the digests of the leaf nodes, in order; ``None`` if nodes of a level above are missing."""
        body = self._request_body(upper, node=True)
        if body is None:
            return None
        level: list[bytes] = []
        for unfinished in refs.read_entries(body):
            nodes = [self._request_body(digest, node=True) for digest in level]
            found_nodes = [node for node in nodes if node is not None]
            if len(found_nodes) < len(nodes):
                return None
            children = [digest for node in found_nodes for digest in refs.digests(node)]
            level = [*children, *refs.digests(unfinished)]
        return level
