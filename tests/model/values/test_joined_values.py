"""Joined pieces are the bytes that the serializer writes for the whole."""

from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Corrupt
from perdure.model.values import refs
from perdure.model.values.joined_values import (
    SNAPSHOT_EXT,
    join_tree,
    pack_array_header,
    pack_ext_header,
    pack_map_header,
    pack_tree,
)
from perdure.model.values.tree import EncodedDict, EncodedList, Payload, Snapshot, Tree

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30
)


def split(value: Any, draw: Any) -> Tree:
    """Any way of taking a value apart."""
    if draw(st.booleans()):
        if value is None:
            return Payload(refs.NULL, b"")
        if isinstance(value, bytes):
            return Payload(refs.BYTES, value)
        if isinstance(value, list):
            return EncodedList([b""] * len(value), [split(v, draw) for v in value])
        if isinstance(value, dict):
            return EncodedDict([(ormsgpack.packb(k), split(v, draw)) for k, v in value.items()])
    return Payload(refs.MSGPACK, ormsgpack.packb(value))


@given(VALUES, st.data())
def test_the_pieces_of_a_value_join_to_its_whole(value: Any, data: st.DataObject) -> None:
    assert pack_tree(split(value, data.draw)) == ormsgpack.packb(value)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 65535, 65536, 70000])
def test_headers_change_form_where_messagepack_says_so(count: int) -> None:
    assert pack_array_header(count) + b"\xc0" * count == ormsgpack.packb([None] * count)
    whole = ormsgpack.packb({str(i): None for i in range(count)})
    assert whole.startswith(pack_map_header(count))
    assert pack_array_header(count) != pack_map_header(count)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 255, 256, 65535, 65536])
def test_the_headers_of_bytes_and_of_snapshots_change_form_too(size: int) -> None:
    body = bytes(size)
    assert pack_tree(Payload(refs.BYTES, body)) == ormsgpack.packb(body)
    assert pack_ext_header(SNAPSHOT_EXT, size) + body == ormsgpack.packb(ormsgpack.Ext(SNAPSHOT_EXT, body))


@given(VALUES, st.data())
def test_a_snapshot_wraps_the_bytes_of_its_value(value: Any, data: st.DataObject) -> None:
    inner = ormsgpack.packb(value)
    assert pack_tree(Snapshot(split(value, data.draw))) == ormsgpack.packb(ormsgpack.Ext(SNAPSHOT_EXT, inner))


@given(st.sampled_from([refs.MSGPACK, refs.NULL, refs.BYTES, refs.BYTEARRAY]), st.binary())
def test_a_whole_payload_keeps_its_type(kind: int, body: bytes) -> None:
    assert join_tree(Payload(kind, body)) == (kind, body)


def test_a_payload_type_that_stands_only_alone_is_refused_inside() -> None:
    with pytest.raises(Corrupt):
        pack_tree(EncodedList([b""], [Payload(refs.BYTEARRAY, b"x")]))
