"""A thread takes its documents along, and leaves its events behind.

Covers perdure.engine.threads.thread_digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.database.handle import DatabaseHandle
from perdure.database.opening import open_database
from perdure.engine import documents, versioned_documents
from perdure.engine.checks.fsck_report import Repaired
from perdure.engine.transfer.transfer_terms import Exists, State
from perdure.errors import Unavailable
from perdure.model.ops import Commit, Expect, Fetch, Get, Put, Range
from perdure.model.records import CHECKPOINT, DOCUMENT, EVENT, OF_THREAD, SERVER, Kind, Partition, Record
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import CommitLimits
from perdure.testing.conformance import Narrow, rows
from perdure.testing.conformance.backend import at as place
from perdure.testing.conformance.backend import put
from perdure.testing.faults import WRITES, Fault, FaultyDriver, fail
from tests.engine.transfer.test_transfer import database

AT = Partition("", "ada")
KEY = bytes(range(32))
FRESH = count(1 << 30)
"""Versions of documents, each once."""


def opened(*, key: bytes | None = None) -> perdure.SyncDatabase:
    if key is not None:
        pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    return open_database("memory://", encryption_key=key)


def document(db: perdure.SyncDatabase, name: str, **body: Any) -> None:
    handle_of(db).run(documents.put(AT, "meta", name, body, 7, Expect.ANY, fresh=next(FRESH)))


def event(db: perdure.SyncDatabase, seq: int) -> None:
    handle_of(db).run(_commit(rows.event(seq)))


def _commit(*puts: Put) -> Any:
    yield Commit(AT, puts)


def held(db: perdure.SyncDatabase, kind: Kind) -> tuple[Record, ...]:
    def program() -> Any:
        return (yield Fetch(AT, (Range(kind),)))[0]

    found: tuple[Record, ...] = handle_of(db).run(program())
    return found


def said(db: perdure.SyncDatabase) -> dict[str, Any]:
    return {d.name: dict(d.body) for d in handle_of(db).run(documents.list_newest(AT, "meta", 100))}


def thread(db: perdure.SyncDatabase) -> None:
    put(db.checkpointer(), place(thread="ada"), "c1")
    document(db, "title", text="hello")
    document(db, "owner", text="x" * 10_000)
    event(db, 3)


@pytest.mark.parametrize("keys", [(None, None), (None, KEY), (KEY, None), (KEY, KEY)])
def test_documents_arrive_and_events_stay(keys: tuple[bytes | None, bytes | None]) -> None:
    source, target = opened(key=keys[0]), opened(key=keys[1])
    thread(source)
    moved = admin.move(source, AT, target)
    assert (moved.found, moved.digest.documents) == (State.ABSENT, 2)
    assert said(target) == said(source)
    assert [d.fields for d in held(target, DOCUMENT)] == [d.fields for d in held(source, DOCUMENT)]
    assert (len(held(source, EVENT)), held(target, EVENT)) == (1, ())
    assert admin.move(source, AT, target).found is State.SAME
    assert target.digest("ada") == source.digest("ada")
    assert source.fsck() == target.fsck() == []


def stopped_at_each_write(
    source: perdure.SyncDatabase, partition: Partition, ops: int = 6
) -> Iterator[tuple[perdure.SyncDatabase, bool]]:
    """Transfer a partition, stopped at its first write, at its second and so on, few records a commit, and
    yield the target each time, and whether it was stopped."""
    at, stopped = 0, True
    while stopped:
        at += 1
        inner = MemoryDriver()
        narrow = Narrow(inner, CommitLimits(ops=ops, bytes=40_000))
        broken = database(FaultyDriver(narrow, Fault(at, fail("unavailable")), counts=WRITES))
        try:
            admin.move(source, partition, broken)
            stopped = False
        except Unavailable:
            pass
        target = database(narrow)
        yield target, stopped
        admin.move(source, partition, target)
        assert admin.digest_of(target, partition).agrees(admin.digest_of(source, partition))
    assert at > 3


def test_a_threads_own_document_arrives_with_its_head() -> None:
    source = opened()
    thread(source)
    own: Any = documents.put(AT, *OF_THREAD, {"metadata": {}}, 7, Expect.ANY, fresh=1 << 30)
    handle_of(source).run(own)
    for target, stopped in stopped_at_each_write(source, AT):
        (found,) = handle_of(target).driver.perform(Fetch(AT, (Get(DOCUMENT, OF_THREAD),)))
        has_head = target.checkpointer().get_tuple(place(thread="ada")) is not None
        assert (bool(found), has_head) == (not stopped, not stopped)


def _numbered(n: int) -> Callable[[object], dict[str, Any]]:
    return lambda _: {"n": n}


def test_a_document_arrives_after_all_its_versions() -> None:
    source, partition = opened(), Partition("", "assistants", SERVER)
    handle = handle_of(source)
    for name in ("a", "b"):
        handle.run(versioned_documents.create(partition, "assistant", name, {"n": 0}, 7, 1 << 30))
        for n in range(1, 5):
            handle.run(versioned_documents.revise(partition, "assistant", name, _numbered(n), 7, n << 30))
    counts = set[int]()
    for target, stopped in stopped_at_each_write(source, partition, ops=2):
        there = handle_of(target)
        found = there.run(versioned_documents.read_all_current(partition, "assistant"))
        counts.add(len(found))
        assert stopped or len(found) == 2
        for each in found:
            past = there.run(versioned_documents.list_versions(partition, "assistant", each.name))
            assert [version.number for version in past] == [5, 4, 3, 2, 1]
    assert counts >= {0, 2}


def test_a_changed_an_added_and_a_missing_document_are_a_difference() -> None:
    source, target = opened(), opened()
    thread(source)
    admin.move(source, AT, target)
    for change in (
        lambda db: document(db, "title", text="bye"),
        lambda db: document(db, "more"),
        lambda db: handle_of(db).run(documents.remove(AT, "meta", "owner")),
    ):
        change(source)
        with pytest.raises(Exists, match="differs"):
            admin.move(source, AT, target)
        assert admin.move(source, AT, target, dry_run=True).found is State.DIFFERENT
        assert admin.move(source, AT, target, replace=True).found is State.DIFFERENT
        assert said(target) == said(source)
    assert set(said(target)) == {"title", "more"}


def test_a_thread_that_nobody_has_called_yet_moves_with_its_documents() -> None:
    source, target = opened(), opened()
    document(source, "title", text="hello")
    assert admin.move(source, AT, target, dry_run=True).found is State.ABSENT
    assert admin.move(source, AT, target).found is State.ABSENT
    assert said(target) == {"title": {"text": "hello"}}
    assert admin.move(source, AT, target).found is State.SAME
    put(target.checkpointer(), place(thread="ada"), "c1")
    assert target.fsck() == []


def test_documents_of_a_thread_at_the_target_are_not_lost_without_being_asked() -> None:
    source, target = opened(), opened()
    thread(source)
    document(target, "title", text="another")
    (read,) = held(target, DOCUMENT)
    assert admin.move(source, AT, target, dry_run=True).found is State.DIFFERENT
    with pytest.raises(Exists):
        admin.move(source, AT, target)
    assert said(target) == {"title": {"text": "another"}}
    admin.move(source, AT, target, replace=True)
    assert said(target) == said(source)
    assert admin.move(source, AT, target).found is State.SAME
    over = documents.put(AT, "meta", "title", {}, 8, read.version, fresh=1 << 31)
    assert handle_of(target).run(over) is None, "who read the one before overwrites what arrived"


def test_a_document_that_changes_while_the_thread_moves_arrives_as_it_is_then() -> None:
    source, target = opened(), opened()
    thread(source)
    changed: list[int] = []

    def between(number: int, effect: Any) -> None:
        if isinstance(effect, Commit) and any(op.kind is DOCUMENT for op in effect.ops) and not changed:
            changed.append(number)
            document(source, "title", text="changed")

    watched = perdure.SyncDatabase(
        DatabaseHandle(
            FaultyDriver(handle_of(target).driver, on_effect=between),
            tenant="",
            digest=handle_of(target).digest,
        )
    )
    admin.move(source, AT, watched)
    assert changed
    assert said(target) == said(source)
    assert said(target)["title"] == {"text": "changed"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_move_that_is_cut_short_anywhere_goes_on(when: Any) -> None:
    source = opened()
    thread(source)

    def attempt(*faults: Fault) -> tuple[perdure.SyncDatabase, FaultyDriver, bool]:
        target = opened()
        driver = FaultyDriver(handle_of(target).driver, *faults)
        try:
            admin.move(
                source,
                AT,
                perdure.SyncDatabase(DatabaseHandle(driver, tenant="", digest=handle_of(target).digest)),
            )
        except Unavailable:
            return target, driver, True
        return target, driver, False

    _, driver, cut = attempt()
    assert not cut
    for number in range(1, driver.count + 1):
        target, _, cut = attempt(Fault(number, fail("unavailable"), when))
        assert cut
        admin.move(source, AT, target)
        assert said(target) == said(source)
        assert admin.move(source, AT, target).found is State.SAME


def test_a_check_and_a_prune_leave_both_as_they_are() -> None:
    db = opened()
    thread(db)
    put(db.checkpointer(), place("c1", thread="ada"), "c2")
    assert db.fsck("ada") == []
    db.checkpointer().prune(["ada"])
    assert db.repair("ada") == Repaired((), ())
    assert (len(held(db, CHECKPOINT)), len(held(db, DOCUMENT)), len(held(db, EVENT))) == (1, 2, 1)
    assert db.fsck("ada") == []


def test_removing_a_thread_removes_both() -> None:
    db = opened()
    thread(db)
    db.checkpointer().delete_thread("ada")
    assert (held(db, DOCUMENT), held(db, EVENT), list(db.threads())) == ((), (), [])
