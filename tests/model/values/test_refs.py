"""The grammar of references: what was written is read back, and what was cut short is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Corrupt
from perdure.model.values import refs
from perdure.model.values.chunks import DIGEST_SIZE

DIGESTS = st.binary(min_size=DIGEST_SIZE, max_size=DIGEST_SIZE)


@given(st.integers(0, 1 << 80), st.binary(max_size=8), st.binary(max_size=8))
def test_a_number_comes_back_with_the_place_after_it(value: int, before: bytes, after: bytes) -> None:
    packed = refs.encode_varint(value)
    assert refs.read_varint(before + packed + after, len(before)) == (value, len(before) + len(packed))


@given(st.integers(0, 1 << 80), st.data())
def test_a_number_cut_short_is_corrupt(value: int, data: st.DataObject) -> None:
    packed = refs.encode_varint(value)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(Corrupt):
        refs.read_varint(packed[:cut], 0)


@given(st.lists(st.binary(max_size=300)))
def test_entries_come_back(entries: list[bytes]) -> None:
    assert refs.read_entries(b"".join(map(refs.entry, entries))) == entries


@given(st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=200))))
def test_items_come_back(items: list[tuple[bytes, bytes]]) -> None:
    assert refs.read_dict_entries(b"".join(refs.encode_dict_entry(k, v) for k, v in items)) == items


@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1), st.data())
def test_a_node_cut_inside_an_entry_is_corrupt(entries: list[bytes], data: st.DataObject) -> None:
    last = refs.entry(entries[-1])
    cut = data.draw(st.integers(1, len(last) - 1))
    with pytest.raises(Corrupt):
        refs.read_entries(b"".join(map(refs.entry, entries[:-1])) + last[:cut])


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), min_size=1))
def test_a_key_without_a_value_is_corrupt(items: list[tuple[bytes, bytes]]) -> None:
    packed = b"".join(refs.encode_dict_entry(k, v) for k, v in items)
    with pytest.raises(Corrupt):
        refs.read_dict_entries(packed + refs.entry(b"key"))


@given(st.integers(0, 1 << 40), st.one_of(st.just(b""), DIGESTS), st.binary(max_size=64))
def test_a_tree_comes_back(count: int, upper: bytes, tail: bytes) -> None:
    assert refs.read_tree(refs.tree(refs.LIST, count, upper, tail)) == (count, upper, tail)


@given(st.integers(0, 1 << 40), st.one_of(st.just(b""), DIGESTS), st.data())
def test_a_tree_cut_short_is_corrupt(count: int, upper: bytes, data: st.DataObject) -> None:
    whole = refs.tree(refs.LIST, count, upper, b"")
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(Corrupt):
        refs.read_tree(whole[:cut])


@given(st.lists(DIGESTS), st.integers(1, DIGEST_SIZE - 1))
def test_a_run_of_digests_comes_back_and_a_partial_one_is_corrupt(found: list[bytes], missing: int) -> None:
    packed = b"".join(found)
    assert list(refs.digests(packed)) == found
    with pytest.raises(Corrupt):
        list(refs.digests(packed + bytes(missing)))
