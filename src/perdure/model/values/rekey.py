"""Renaming of a thread's references under another digest key, and the digest of their content.

Names of chunks are digests, keyed if there is an encryption key, and nodes hold the names of other chunks. A
thread that moves between keys is therefore renamed from the leaves up: a node whose children got other names
has other bytes, and so another name too. If no name changes, every byte stays as it is.

The content digest of a reference depends neither on a key nor on how a list was cut: equal values have equal
content digests in every database.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from perdure.errors import Corrupt
from perdure.model.values import refs
from perdure.model.values.chunks import Digester

_CONTENT_SIZE = 16
_LEVEL_MAX = 64


class Named(NamedTuple):
    """A chunk or reference at the target: its name there, and its content digest."""

    name: bytes
    content: bytes


class _Role(NamedTuple):
    """Format of a node's bytes: entries of a list or dict (``height`` 0), names of the nodes one level lower
    (above 0), the names on each upper level that form no node yet (-1), or a whole reference (``tag``
    WRAPPED)."""

    tag: int
    height: int


_WRAPPED = _Role(refs.WRAPPED, 0)


class ReferenceRenaming:
    """Renaming of one thread's references from ``source`` to ``target`` digests.

    First call ``explore`` for every reference, in rounds, and ``feed`` the nodes that ``take_missing`` names,
    until it returns True for all; then call ``arrive`` with every payload. After that ``reference`` returns
    the new reference and its content digest. ``payloads`` has the source names of the chunks that are not
    nodes; ``fresh`` collects the nodes under their names at the target.
    """

    def __init__(self, source: Digester, target: Digester) -> None:
        self.source = source
        self._target = target
        self._nodes: dict[bytes, bytes] = {}
        self._wanted: set[bytes] = set()
        self._explored: set[tuple[_Role, bytes]] = set()
        self._arrived: dict[bytes, Named] = {}
        self._renamed: dict[tuple[_Role, bytes], Named] = {}
        self.payloads: set[bytes] = set()
        self.fresh: dict[bytes, bytes] = {}

    @property
    def names(self) -> set[bytes]:
        """Names at the target of all payloads that have arrived, and of the renamed nodes."""
        return {named.name for named in self._arrived.values()} | set(self.fresh)

    # Exploration

    def feed(self, bodies: dict[bytes, bytes]) -> None:
        """Supply nodes; each must match its name."""
        for digest, body in bodies.items():
            self._verify_name(digest, body)
        self._nodes.update(bodies)

    def take_missing(self) -> set[bytes]:
        """Return the names of the nodes requested since the last call."""
        wanted, self._wanted = self._wanted, set()
        return wanted

    def explore(self, ref: bytes) -> bool:
        """Return True if all nodes below a reference were fed; otherwise ``take_missing`` returns missing
        ones."""
        if not ref:
            raise Corrupt("an empty reference")
        tag, family = ref[0], ref[0] & 0xF0
        if family == refs.INLINE:
            return True
        if family in (refs.CHUNK, refs.BIG):
            self.payloads.update(refs.digests(ref[1:]))
            return True
        if tag == refs.WRAPPED:
            return self._explore_node(_WRAPPED, ref[1:])
        if tag == refs.SNAPSHOT:
            return self.explore(ref[1:])
        if tag in (refs.LIST, refs.DICT):
            _, upper, tail = refs.read_tree(ref)
            are_entries_known = self._explore_entries(tag, tail)
            return (not upper or self._explore_node(_Role(tag, -1), upper)) and are_entries_known
        raise Corrupt(f"a reference with the unknown tag {tag:#04x}")

    def _explore_node(self, role: _Role, digest: bytes) -> bool:
        if (role, digest) in self._explored:
            return True
        body = self._nodes.get(digest)
        if body is None:
            self._wanted.add(digest)
            return False
        if role is _WRAPPED:
            is_known = self.explore(body)
        elif role.height == 0:
            is_known = self._explore_entries(role.tag, body)
        else:
            children = [(child_role, name) for child_role, run in _list_children(role, body) for name in run]
            is_known = not [name for child_role, name in children if not self._explore_node(child_role, name)]
        if is_known:
            self._explored.add((role, digest))
        return is_known

    def _explore_entries(self, tag: int, data: bytes) -> bool:
        return not [ref for _, ref in _read_entries(tag, data) if not self.explore(ref)]

    # Renaming

    def arrive(self, digest: bytes, body: bytes) -> bytes:
        """Register a payload, which must match its name; return its name at the target."""
        self._verify_name(digest, body)
        new = self._target(body)
        self._arrived[digest] = Named(new, _digest_content(b"payload", body))
        return new

    def rename(self, ref: bytes) -> Named:
        """Return the reference at the target and its content digest; its nodes are added to ``fresh``."""
        tag, family = ref[0], ref[0] & 0xF0
        if family == refs.INLINE:
            return Named(
                ref, _digest_content(b"leaf", bytes((tag & 0x0F,)), _digest_content(b"payload", ref[1:]))
            )
        if family in (refs.CHUNK, refs.BIG):
            pieces = [self._arrived[digest] for digest in refs.digests(ref[1:])]
            content = _digest_content(b"leaf", bytes((tag & 0x0F,)), *(p.content for p in pieces))
            return Named(ref[:1] + b"".join(p.name for p in pieces), content)
        if tag == refs.WRAPPED:
            name, content = self._rename_node(_WRAPPED, ref[1:])
            return Named(refs.wrap(name), content)
        if tag == refs.SNAPSHOT:
            inner, content = self.rename(ref[1:])
            return Named(refs.snapshot(inner), _digest_content(b"snapshot", content))
        count, upper, tail = refs.read_tree(ref)
        entries = b""
        if upper:
            upper, entries = self._rename_node(_Role(tag, -1), upper)
        end, last = self._rename_entries(tag, tail)
        entries += last
        per_entry = _CONTENT_SIZE * (1 if tag == refs.LIST else 2)
        if len(entries) != count * per_entry:
            raise Corrupt(f"a list or dict names {count} entries and holds {len(entries) // per_entry}")
        content = _digest_content(b"list" if tag == refs.LIST else b"dict", entries)
        return Named(refs.tree(tag, count, upper, end), content)

    def _rename_node(self, role: _Role, digest: bytes) -> Named:
        """Return a node's name at the target, and the content digests of the entries below it, in order."""
        renamed = self._renamed.get((role, digest))
        if renamed is not None:
            return renamed
        body = self._nodes[digest]
        if role is _WRAPPED:
            new, content = self.rename(body)
        elif role.height == 0:
            new, content = self._rename_entries(role.tag, body)
        else:
            runs = [
                [self._rename_node(child_role, child) for child in run]
                for child_role, run in _list_children(role, body)
            ]
            content = b"".join(named.content for run in runs for named in run)
            names = [b"".join(named.name for named in run) for run in runs]
            if role.height < 0:
                new = b"".join(map(refs.entry, names))
            else:
                new = names[0]
        name = self._target(new)
        self.fresh[name] = new
        self._renamed[role, digest] = Named(name, content)
        return self._renamed[role, digest]

    def _rename_entries(self, tag: int, data: bytes) -> tuple[bytes, bytes]:
        entries: list[bytes] = []
        contents: list[bytes] = []
        for key, ref in _read_entries(tag, data):
            name, content = self.rename(ref)
            if tag == refs.LIST:
                entries.append(refs.entry(name))
            else:
                entries.append(refs.encode_dict_entry(key, name))
                contents.append(_digest_content(b"key", key))
            contents.append(content)
        return b"".join(entries), b"".join(contents)

    def _verify_name(self, digest: bytes, body: bytes) -> None:
        if not self.source.matches_name(digest, body):
            raise Corrupt(f"chunk {digest.hex()} does not hold the bytes that its name says")


def _read_entries(tag: int, data: bytes) -> Iterable[tuple[bytes, bytes]]:
    """Return the entries of a run: packed key (empty for a list) and reference."""
    if tag == refs.LIST:
        return [(b"", ref) for ref in refs.read_entries(data)]
    return refs.read_dict_entries(data)


def _list_children(role: _Role, body: bytes) -> list[tuple[_Role, list[bytes]]]:
    """Return the nodes that a node names with their roles, in the order of their content."""
    if role.height > 0:
        return [(_Role(role.tag, role.height - 1), list(refs.digests(body)))]
    tails = refs.read_entries(body)
    if len(tails) > _LEVEL_MAX:
        raise Corrupt(f"a list or dict of {len(tails)} levels")
    heights = range(len(tails) - 1, -1, -1)
    return [(_Role(role.tag, h), list(refs.digests(tail))) for h, tail in zip(heights, tails, strict=True)]


def _digest_content(kind: bytes, *parts: bytes) -> bytes:
    digest = blake2b(digest_size=_CONTENT_SIZE, person=b"perdure." + kind)
    for part in parts:
        digest.update(part)
    return digest.digest()
