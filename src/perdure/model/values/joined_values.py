"""Joining of the pieces of a value into one packed value, which is decoded in one call.

In MessagePack an array is a header and the bytes of its elements, a map a header and the bytes of its keys
and values, so the joined parts of a split value are byte for byte what the serializer wrote for the whole
value. Source of the headers: the MessagePack specification, formats "array", "map", "bin" and "ext".
"""

from __future__ import annotations

from struct import pack

from perdure.errors import Corrupt
from perdure.model.values import refs
from perdure.model.values.tree import EncodedDict, EncodedList, Payload, Tree

SNAPSHOT_EXT = 7
"""Extension code of LangGraph's ``_DeltaSnapshot``."""


def join_tree(tree: Tree) -> tuple[int, bytes]:
    """Return the payload type and bytes of a whole value."""
    if isinstance(tree, Payload):
        return tree.type, tree.body
    return refs.MSGPACK, pack_tree(tree)


def pack_tree(tree: Tree) -> bytes:
    """Return the value as one packed MessagePack value."""
    if isinstance(tree, Payload):
        if tree.type == refs.MSGPACK:
            return tree.body
        if tree.type == refs.NULL:
            return b"\xc0"
        if tree.type == refs.BYTES:
            return _pack_bin_header(len(tree.body)) + tree.body
        raise Corrupt(f"a payload of type {tree.type} stands inside another value")
    if isinstance(tree, EncodedList):
        return pack_array_header(len(tree.items)) + b"".join(
            [i.body if type(i) is Payload and i.type == refs.MSGPACK else pack_tree(i) for i in tree.items]
        )
    if isinstance(tree, EncodedDict):
        parts = [pack_map_header(len(tree.items))]
        for key, value in tree.items:
            parts.append(key)
            parts.append(pack_tree(value))
        return b"".join(parts)
    inner = pack_tree(tree.inner)
    return pack_ext_header(SNAPSHOT_EXT, len(inner)) + inner


def pack_array_header(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return pack(">BH", 0xDC, count)
    return pack(">BI", 0xDD, count)


def pack_map_header(count: int) -> bytes:
    if count < 16:
        return bytes((0x80 | count,))
    if count < 1 << 16:
        return pack(">BH", 0xDE, count)
    return pack(">BI", 0xDF, count)


def pack_ext_header(code: int, size: int) -> bytes:
    fixed = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}.get(size)
    if fixed is not None:
        return pack(">Bb", fixed, code)
    if size < 1 << 8:
        return pack(">BBb", 0xC7, size, code)
    if size < 1 << 16:
        return pack(">BHb", 0xC8, size, code)
    return pack(">BIb", 0xC9, size, code)


def read_ext_code(body: bytes) -> int | None:
    """Return the code of a packed extension value; ``None`` for another value."""
    position = {0xC7: 2, 0xC8: 3, 0xC9: 5}.get(body[0], 1 if 0xD4 <= body[0] <= 0xD8 else None)
    if position is None:
        return None
    return body[position]


def _pack_bin_header(size: int) -> bytes:
    if size < 1 << 8:
        return pack(">BB", 0xC4, size)
    if size < 1 << 16:
        return pack(">BH", 0xC5, size)
    return pack(">BI", 0xC6, size)
