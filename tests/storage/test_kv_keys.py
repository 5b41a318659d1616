"""The encoding of keys, partitions and records: injective, in order, and read back as it was written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import TooLarge
from perdure.model.records import CHECKPOINT, KINDS, Column, Key, Kind, Partition, Record
from perdure.storage.kv import keys as layout

# Short, and of the characters that encodings trip over, so that look-alikes are met often.
TEXT = st.text(st.sampled_from("\0\x01\x7fa\xff\u0100\uffff\U0001f600"), max_size=4) | st.text(max_size=8)
BYTES = st.lists(st.sampled_from([0, 1, 2, 97, 254, 255]), max_size=5).map(bytes)
INTEGERS = st.sampled_from([-(1 << 63), -1, 0, 1, 255, (1 << 53) + 1, (1 << 63) - 1]) | st.integers(-300, 300)
VALUES: dict[str, st.SearchStrategy[Any]] = {"text": TEXT, "bytes": BYTES, "integer": INTEGERS}
MIXED = Kind(
    "mixed",
    key=(Column("a", "text"), Column("b", "integer"), Column("c", "bytes"), Column("d", "text")),
)
ALL = (*KINDS, MIXED)


def keys(kind: Kind) -> st.SearchStrategy[Key]:
    return st.tuples(*(VALUES[c.kind] for c in kind.key))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Kind, Key, Key]:
    kind = draw(st.sampled_from(ALL))
    return kind, draw(keys(kind)), draw(keys(kind))


@st.composite
def records(draw: st.DrawFn) -> Record:
    kind = draw(st.sampled_from(KINDS))
    fields = {}
    for column in kind.fields:
        values = VALUES[column.kind]
        fields[column.name] = draw(st.none() | values if column.nullable else values)
    version = draw(st.integers(0, 1 << 62)) if kind.versioned else 0
    return Record(kind, draw(keys(kind)), fields, version, draw(BYTES) if kind.body else b"")


@given(pairs())
def test_encoded_keys_are_in_the_order_of_the_keys(pair: tuple[Kind, Key, Key]) -> None:
    kind, left, right = pair
    encoded = layout.encode_key(kind, left), layout.encode_key(kind, right)
    assert (encoded[0] < encoded[1], encoded[0] == encoded[1]) == (left < right, left == right)


@given(pairs())
def test_keys_are_read_back(pair: tuple[Kind, Key, Key]) -> None:
    kind, key, _ = pair
    assert layout.decode_key(kind, layout.encode_key(kind, key)) == key


@given(pairs(), st.integers(0, 3))
def test_a_prefix_covers_the_keys_that_begin_with_its_parts_and_no_others(
    pair: tuple[Kind, Key, Key], size: int
) -> None:
    kind, key, other = pair
    size = min(size, len(kind.key) - 1)
    if size < 0:
        return
    prefix = layout.encode_prefix(kind, key[:size])
    for each in (key, other, (*key[:size], *other[size:])):
        data = layout.encode_key(kind, each)
        inside = prefix <= data and (not layout.successor(prefix) or data < layout.successor(prefix))
        assert data.startswith(prefix) is inside is (each[:size] == key[:size])


@given(st.lists(st.builds(Partition, TEXT, TEXT, st.sampled_from(["thread", "store"])), max_size=6))
def test_partitions_are_told_apart_and_ordered_by_tenant_and_name(partitions: list[Partition]) -> None:
    encoded = {layout.encode_partition(p): p for p in partitions}
    assert len(encoded) == len(set(partitions))
    assert all(layout.decode_partition(data) == p for data, p in encoded.items())
    for space in ("thread", "store"):
        own = [p for _, p in sorted(encoded.items()) if p.space == space]
        assert own == sorted(own)


@given(records())
def test_records_are_read_back(record: Record) -> None:
    data = layout.find_layout(record.kind).pack(record.fields, record.version, record.body)
    assert layout.find_layout(record.kind).record(record.key, data) == record


@given(INTEGERS, INTEGERS)
def test_integers_are_in_the_order_of_the_numbers(left: int, right: int) -> None:
    assert (layout.encode_integer(left) < layout.encode_integer(right)) == (left < right)


def test_what_does_not_fit_is_too_large() -> None:
    shape = layout.find_layout(CHECKPOINT)
    fields = {"seq": 1, "parent_id": None, "run_id": None, "source": None, "step": None}
    for name in ("seq", "step"):
        with pytest.raises(TooLarge):
            shape.pack({**fields, name: 1 << 70}, 0, b"")


def test_a_kind_that_scripts_could_not_read_is_refused() -> None:
    columns = tuple(Column(f"c{n}", "integer") for n in range(17))
    layout.KindLayout(Kind("wide", key=(), fields=columns[:16], index="c3"))
    for fields, index in ((columns, "c3"), (columns[:16], None)):
        with pytest.raises(TypeError, match="at most 15"):
            layout.KindLayout(Kind("wide", key=(), fields=fields, index=index))


def test_a_bucket_is_the_same_in_every_process() -> None:
    at = layout.encode_partition(Partition("acme", "thread"))
    assert at == b"acme\x00\x01thread\x00\x01thread"
    assert layout.bucket_of(at, 256) == 156
