"""The items of the store move each as it is, and what others write meanwhile is not lost."""

from __future__ import annotations

import time
from typing import Any

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.engine.items import search_index
from perdure.engine.transfer.transfer_terms import Exists, State
from perdure.errors import Unavailable
from perdure.langgraph.store import Clock, PerdureStore
from perdure.model.ops import Fetch, Range
from perdure.model.program import Effect
from perdure.model.records import ITEM, STORE
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import CommitLimits
from perdure.testing.conformance import Narrow
from perdure.testing.conformance.meaning import new_index
from perdure.testing.faults import WRITES, Fault, FaultyDriver, fail
from tests.engine.transfer.test_transfer import KEY_A, Hooked, database, in_memory, rows

MINUTE = 60_000_000
"""In microseconds."""


def test_items_move_and_those_that_differ_are_left_alone() -> None:
    source, target = in_memory(), in_memory(KEY_A)
    space = ("users", "ada")
    for n in range(450):
        source.store().put(space, f"key {n}", {"n": n, "text": "x" * 100})
    (partition,) = admin.partitions(source, None)
    assert partition.space == STORE
    assert admin.move(source, partition, target, dry_run=True).found is State.ABSENT
    assert admin.partitions(target, None) == []
    assert admin.move(source, partition, target).found is State.ABSENT
    assert admin.move(source, partition, target).found is State.SAME
    target.store().put(space, "key 1", {"n": "other"})
    target.store().put(space, "extra", {})
    with pytest.raises(Exists, match="'users'/'ada'"):
        admin.move(source, partition, target)
    assert target.store().get(space, "extra") is not None
    moved = admin.move(source, partition, target, replace=True)
    assert (moved.found, moved.kept) == (State.DIFFERENT, 1)
    found = {i.key: i.dict() for i in target.store().search(space, limit=1000)}
    assert found.pop("extra")["value"] == {}
    assert found == {i.key: i.dict() for i in source.store().search(space, limit=1000)}


def test_items_are_found_by_meaning_where_they_arrive() -> None:
    source, target = in_memory(), in_memory(KEY_A)
    store, other = source.store(index=new_index()), target.store(index=new_index())
    for n in range(250):
        store.put(("a",), f"key {n}", {"text": f"tea {n}"}, index=None if n % 2 else False)
    other.put(("a",), "key 3", {"text": "milk"})
    assert [item.key for item in other.search(("a",), query="tea 7")] == ["key 3"]
    (partition,) = admin.partitions(source, None)
    admin.move(source, partition, target, replace=True)
    found = [(item.key, item.score) for item in other.search(("a",), query="tea 7", limit=200)]
    assert sorted(found) == sorted(
        (item.key, item.score) for item in store.search(("a",), query="tea 7", limit=200)
    )
    assert len(found) == 125
    store.put(("a",), "key 7", {"text": "coffee"})
    admin.move(source, partition, target, replace=True)
    assert other.search(("a",), query="coffee", limit=1)[0].key == "key 7"
    # An entry of an earlier value does not stay where the source has none.
    source.store().put(("a",), "key 7", {"text": ""}, index=False)
    admin.move(source, partition, target, replace=True)
    assert "key 7" not in handle_of(target).run(search_index.read(partition, ["key 7", "key 9"]))
    assert "key 9" in handle_of(target).run(search_index.read(partition, ["key 7", "key 9"]))


def test_an_item_arrives_with_its_vectors_or_not_at_all() -> None:
    source = in_memory()
    store = source.store(index=new_index())
    for n in range(60):
        store.put(("a",), f"key {n}", {"text": f"tea {n}"})
    (partition,) = admin.partitions(source, None)
    narrow = Narrow(MemoryDriver(), CommitLimits(ops=21, bytes=1 << 20))
    broken = FaultyDriver(narrow, Fault(3, fail("unavailable")), counts=WRITES)
    with pytest.raises(Unavailable):
        admin.move(source, partition, database(broken))
    target = database(narrow)

    def by_meaning() -> list[str]:
        fresh = target.store(index=new_index())
        return sorted(item.key for item in fresh.search(("a",), query="tea", limit=99))

    arrived = sorted(item.key for item in target.store().search(("a",), limit=99))
    assert 0 < len(arrived) < 60
    assert by_meaning() == arrived
    admin.move(source, partition, target)
    assert len(by_meaning()) == 60


def test_items_that_are_half_there_are_finished() -> None:
    source = in_memory()
    for n in range(450):
        source.store().put(("a",), f"key {n}", {"n": n})
    (partition,) = admin.partitions(source, None)
    target = in_memory(wrap=lambda driver: FaultyDriver(driver, Fault(2, fail("unavailable")), counts=WRITES))
    with pytest.raises(Unavailable):
        admin.move(source, partition, target)
    assert admin.move(source, partition, target).found is State.PARTIAL
    assert admin.digest_of(target, partition).agrees(admin.digest_of(source, partition))


def test_an_item_that_ends_does_not_move() -> None:
    source, target = in_memory(), in_memory()
    source.store().put(("a",), "long", {"n": 1}, ttl=60)
    source.store().put(("a",), "short", {"n": 2}, ttl=0.000001)
    (partition,) = admin.partitions(source, None)
    admin.move(source, partition, target)
    assert target.store().get(("a",), "short") is None
    found = target.store().get(("a",), "long")
    assert found is not None
    assert admin.move(source, partition, target).found is State.SAME


def test_an_item_that_was_renewed_since_ends_as_late_at_the_target() -> None:
    source, target = in_memory(), in_memory()
    written = time.time_ns() // 1000 - 50 * MINUTE
    PerdureStore(handle_of(source).driver, clock=Clock(lambda: written)).put(("a",), "key", {"n": 1}, ttl=60)
    (partition,) = admin.partitions(source, None)
    admin.move(source, partition, target)
    assert source.store().get(("a",), "key", refresh_ttl=True) is not None
    (renewed,) = rows(source, partition, ITEM)
    assert admin.move(source, partition, target, dry_run=True).found is State.PARTIAL
    assert admin.move(source, partition, target).found is State.PARTIAL
    (arrived,) = rows(target, partition, ITEM)
    assert arrived.fields["expires_at"] == renewed.fields["expires_at"] > written + 100 * MINUTE
    assert admin.move(source, partition, target).found is State.SAME


def test_an_item_that_is_written_at_the_target_meanwhile_stays() -> None:
    source = in_memory()
    for n in range(3):
        source.store().put(("a",), f"key {n}", {"n": n})
    (partition,) = admin.partitions(source, None)
    surveys = 0

    def act(effect: Effect[Any]) -> None:
        nonlocal surveys
        if isinstance(effect, Fetch) and effect.items == (Range(ITEM, limit=200),):
            surveys += 1
            if surveys == 2:  # what was sent is read back
                source.store().put(("a",), "key 1", {"n": "newer"})
                clean.store().put(("a",), "mine", {"n": "acknowledged"})

    store = MemoryDriver()
    clean, target = database(store), database(Hooked(store, act))
    assert admin.move(source, partition, target).kept == 1
    assert surveys >= 2
    found = clean.store().get(("a",), "mine")
    assert found is not None
    assert found.value == {"n": "acknowledged"}
    assert clean.store().get(("a",), "key 1") == source.store().get(("a",), "key 1")


@pytest.mark.parametrize("replaced", [False, True], ids=["new", "replaced"])
def test_a_session_is_as_it_was_until_its_head_arrives(replaced: bool) -> None:
    def texts(db: perdure.SyncDatabase) -> list[str]:
        return [str(m["content"])[:2] for m in db.history().load("s1").messages]

    source = in_memory()
    histories = source.history()
    old: list[str] = []
    at, stopped = 0, True
    for n in range(40):
        row = {"role": "user", "content": f"{n:02}" * 20_000}
        histories.commit(histories.load("s1"), [row])
    (partition,) = admin.partitions(source, None)
    while stopped:
        at += 1
        inner = MemoryDriver()
        target = database(Narrow(inner, CommitLimits(ops=3, bytes=300_000)))
        if replaced:
            target.history().commit(target.history().load("s1"), [{"role": "user", "content": "at"}])
            old = ["at"]
        broken = database(
            FaultyDriver(
                Narrow(inner, CommitLimits(ops=3, bytes=300_000)),
                Fault(at, fail("unavailable")),
                counts=WRITES,
            )
        )
        try:
            admin.move(source, partition, broken, replace=replaced)
            stopped = False
        except Unavailable:
            assert texts(target) == old
        admin.move(source, partition, target, replace=replaced)
        assert texts(target) == texts(source)
    assert at > 5
