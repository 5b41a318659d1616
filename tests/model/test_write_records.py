"""Writes of a task share records, and each of them is what it would be in a record of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Corrupt
from perdure.model.checkpoint import PendingWrite, TaskSpan
from perdure.model.ops import Expect, Put
from perdure.model.records import WRITE, Key, Record
from perdure.model.values import refs
from perdure.model.write_records import (
    SHARED,
    group_by_record,
    make_new_puts,
    plan_partial_removal,
    plan_puts,
    put_over,
    read_by_record,
    read_writes,
    record_key,
)

NAMES = st.text(max_size=12)
SLOTS = st.integers(-5, 3 * SHARED)
WRITES = st.builds(
    PendingWrite,
    st.just(""),
    st.sampled_from("cd"),
    st.sampled_from("st"),
    SLOTS,
    NAMES | st.sampled_from(["messages", "branch:to:node", "__start__"]),
    NAMES,
    st.sampled_from(["", "one", "two.run"]),
    st.binary(max_size=70).map(lambda payload: refs.inline(refs.MSGPACK, payload)),
    version=st.just(1),
    record_version=st.just(0),
    span=st.none(),
)
SOME = st.lists(WRITES, max_size=40, unique_by=lambda write: write.key)


def stored(puts: Iterable[Put]) -> list[Record]:
    return [Record(WRITE, put.key, put.fields, put.version, put.body) for put in puts]


def plain(writes: Iterable[PendingWrite]) -> list[PendingWrite]:
    """Writes without the record that holds them, in order."""
    return sorted(write._replace(record_version=0) for write in writes)


def written(idx: int, nonce: str = "", channel: str = "x", ref: bytes = b"\x01w") -> PendingWrite:
    return PendingWrite("", "c", "t", idx, channel, "~path", nonce, ref)


class Store:
    """Records as a database holds them, and the same writes with one record each."""

    def __init__(self) -> None:
        self.records: dict[Key, Record] = {}

    def put(self, puts: Iterable[Put]) -> None:
        for put in puts:
            there = self.records.get(put.key)
            assert put.expect in ((Expect.ABSENT,) if there is None else (there.version,))
            assert put.version == 1 if there is None else put.version > there.version
            (self.records[put.key],) = stored([put])

    def writes(self) -> list[PendingWrite]:
        return read_writes(self.records.values())


@given(SOME)
def test_writes_come_back(writes: list[PendingWrite]) -> None:
    found = read_writes(stored(make_new_puts(writes, Expect.ABSENT)))
    assert plain(found) == plain(writes)
    assert {record_key(write) for write in found} == set(group_by_record(writes))


def test_the_writes_of_a_call_are_one_record_and_reserved_slots_have_their_own() -> None:
    writes = [written(0, channel="messages"), written(1), written(2, channel="branch:to:next"), written(-3)]
    puts = {put.key[3]: put for put in make_new_puts(writes, Expect.ABSENT)}
    assert set(puts) == {0, -3}
    assert {put.expect for put in puts.values()} == {Expect.ABSENT}
    # Each takes five bytes besides its reference and a channel's name that has no number.
    assert len(puts[0].body) == 2 + 3 * (len(b"\x01w") + 5) + len("x") + len("branch:to:next")
    assert [len(some) for some in group_by_record(map(written, range(2 * SHARED + 1))).values()] == [
        SHARED,
        SHARED,
        1,
    ]


def test_a_write_alone_is_stored_without_a_list() -> None:
    (put,) = make_new_puts([written(0, "one")])
    assert put.body == b"\x01w"
    assert dict(put.fields) == {"channel": "x", "task_path": "~path", "nonce": "one"}


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(1, 5))
def test_the_time_of_a_task_comes_back_with_each_of_its_writes(waited: int, took: int, count: int) -> None:
    span = TaskSpan(waited, took)
    writes = [written(idx)._replace(span=span) for idx in range(count)]
    found = read_writes(stored(make_new_puts(writes, Expect.ABSENT)))
    assert plain(found) == plain(writes)


def test_a_time_takes_few_bytes_and_the_last_call_counts() -> None:
    first, last = TaskSpan(0, 2_000_000), TaskSpan(3_600_000_000, 900_000)
    (put,) = make_new_puts([written(0)._replace(span=first)], Expect.ABSENT)
    assert len(put.body) == len(b"\x01w") + 5
    (more,) = plan_puts([written(1)._replace(span=last)], read_by_record(stored([put])))
    assert [write.span for write in read_writes(stored([more]))] == [last, last]
    (kept,) = stored([more])
    rest = plan_partial_removal(read_by_record([kept])[kept.key], [written(0)])
    assert rest is not None
    assert [(write.idx, write.span) for write in read_writes(stored([rest]))] == [(1, last)]


STEPS = st.lists(st.tuples(st.sampled_from(["add", "add", "over", "remove"]), SOME, st.randoms()), max_size=8)


@given(STEPS)
def test_any_order_of_calls_and_removals_leaves_what_records_of_their_own_would(
    steps: list[tuple[str, list[PendingWrite], Any]],
) -> None:
    store, slots = Store(), dict[Key, PendingWrite]()
    for step, writes, random in steps:
        there = {write.key: write for write in store.writes()}
        if step == "add":
            free = [write for write in writes if write.key not in there]
            store.put(plan_puts(free, read_by_record(store.records.values())))
            slots.update({write.key: write for write in free})
        elif step == "over":
            for write in [write for write in writes if write.idx < 0 and write.key in there]:
                over = put_over(write, there[write.key])
                store.put([over])
                slots[write.key] = write._replace(version=over.version)
        else:
            gone = [write for write in there.values() if random.random() < 0.5]
            for key, some in group_by_record(gone).items():
                kept = plan_partial_removal(group_by_record(there.values())[key], some)
                if kept is None:
                    del store.records[key]
                else:
                    store.put([kept])
            for write in gone:
                del slots[write.key]
        assert plain(store.writes()) == plain(slots.values())


@given(SOME, st.data())
def test_a_changed_record_is_read_or_corrupt_and_nothing_else(
    writes: list[PendingWrite], data: st.DataObject
) -> None:
    for put in make_new_puts(writes):
        body = bytearray(put.body)
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        try:
            read_writes(stored([put._replace(body=bytes(body))]))
        except Corrupt as error:
            assert put.key[2] in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize("body", [b"\x71", b"\x71\x80", b"\x71\x00", b"\x71\x00\xff\xff"])
def test_a_time_that_ends_early_is_corrupt(body: bytes) -> None:
    (put,) = make_new_puts([written(0)])
    with pytest.raises(Corrupt, match="writes of task t on c cannot be read"):
        read_writes(stored([put._replace(body=body)]))


def test_a_record_that_ends_early_is_corrupt() -> None:
    (put,) = make_new_puts([written(0), written(1)])
    with pytest.raises(Corrupt, match="writes of task t on c cannot be read"):
        read_writes(stored([put._replace(body=put.body[:-1])]))
