"""Items of the store and a server's records that only the target has stay there.

Covers perdure.engine.transfer.transfer_documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.engine import documents, versioned_documents
from perdure.engine.queue import crons
from perdure.engine.transfer.transfer_terms import Exists, State
from perdure.errors import Conflict, NotFound
from perdure.model.ops import Commit, Expect
from perdure.model.program import Effect
from perdure.model.records import DOCUMENT, LANE, SERVER, STORE, Partition
from perdure.model.runs.queue import CRONS
from tests.backends import BACKENDS
from tests.engine.transfer.test_transfer import Hooked, database, in_memory, opened, rows

ASSISTANTS = Partition("", "assistants", SERVER)
FRESH = count(1 << 30)


def write(db: perdure.SyncDatabase, name: str, **body: Any) -> None:
    """Add a version of an assistant, or the first one."""
    handle, fresh = handle_of(db), next(FRESH)
    if handle.run(versioned_documents.create(ASSISTANTS, "assistant", name, body, 7, fresh)) is None:
        handle.run(versioned_documents.revise(ASSISTANTS, "assistant", name, lambda _: body, 7, fresh))


def read(db: perdure.SyncDatabase) -> dict[str, list[Mapping[str, Any]]]:
    """Return the bodies of all versions of each assistant, newest first."""
    run = handle_of(db).run
    found = run(versioned_documents.read_all_current(ASSISTANTS, "assistant"))
    return {
        each.name: [
            v.body for v in run(versioned_documents.list_versions(ASSISTANTS, "assistant", each.name))
        ]
        for each in found
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_records_of_both_databases_are_there_after_a_replacement(backend: str) -> None:
    source = in_memory()
    write(source, "ours", n=1)
    write(source, "both", n="new")
    with opened(backend) as target:
        write(target, "both", n="old")
        write(target, "both", n="older")
        write(target, "theirs/a", n=1)
        write(target, "theirs/a", n=2)
        source.store().put(("u",), "ours", {"n": 1})
        source.store().put(("u",), "both", {"n": "new"})
        target.store().put(("u",), "both", {"n": "old"})
        target.store().put(("u",), "theirs", {"n": 2})
        before = read(target)
        for partition in (Partition("", "u", STORE), ASSISTANTS):
            (partition,) = [p for p in admin.partitions(source, None) if p.space == partition.space]
            with pytest.raises(Exists):
                admin.move(source, partition, target)
            assert read(target) == before
            for dry_run in (True, False):
                moved = admin.move(source, partition, target, replace=True, dry_run=dry_run)
                assert (moved.found, moved.kept) == (State.DIFFERENT, 1)
            for replace in (False, True):
                assert admin.move(source, partition, target, replace=replace).found is State.SAME
        assert read(target) == {"both": [{"n": "new"}], "ours": [{"n": 1}], "theirs/a": [{"n": 2}, {"n": 1}]}
        items = {each.key: each.value["n"] for each in target.store().search(("u",))}
        assert items == {"ours": 1, "both": "new", "theirs": 2}
        assert target.fsck() == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_crons_of_both_databases_are_due_at_the_target(backend: str) -> None:
    source, place = in_memory(), crons.place("")

    def create(db: perdure.SyncDatabase, name: str, due_at: int | None) -> None:
        assert handle_of(db).run(crons.create(place, name, crons.Due({}, due_at), 1, next(FRESH)))

    create(source, "early", 10)
    create(source, "never", None)
    with opened(backend) as target:
        create(target, "late", 20)
        assert admin.move(source, place, target, replace=True).kept == 1
        due = handle_of(target).run(crons.list_by_time(place, 30, 9)).crons
        assert [cron.id for cron in due] == ["early", "late"]
        (lane,) = [row for row in rows(target, place, LANE) if row.key == (CRONS,)]
        assert lane.fields["due_at"] == 10
        # A cron that was started at the target is due later there than at the source: that is a difference.
        handle_of(target).run(crons.change(place, "early", lambda _: crons.Due({}, 40), 2, next(FRESH)))
        with pytest.raises(Exists):
            admin.move(source, place, target)


def test_a_record_that_is_written_at_the_target_meanwhile_is_not_overwritten() -> None:
    source, target = in_memory(), in_memory()
    write(source, "a", n="theirs")
    has_come = False

    def act(effect: Effect[Any]) -> None:
        nonlocal has_come
        if isinstance(effect, Commit) and not has_come:
            has_come = True
            write(target, "a", n="accepted")

    watched = database(Hooked(handle_of(target).driver, act))
    with pytest.raises(Conflict, match="list of assistants is written to at the target"):
        admin.move(source, ASSISTANTS, watched, replace=True)
    assert has_come
    assert read(target) == {"a": [{"n": "accepted"}]}


def test_a_record_that_is_removed_at_the_source_meanwhile_does_not_stay() -> None:
    source, target = in_memory(), in_memory()
    write(source, "a", n=1)
    write(source, "b", n=1)
    has_come = False

    def act(effect: Effect[Any]) -> None:
        nonlocal has_come
        if isinstance(effect, Commit) and not has_come:
            has_come = True
            handle_of(source).run(versioned_documents.remove(ASSISTANTS, "assistant", "a"))

    assert admin.move(source, ASSISTANTS, database(Hooked(handle_of(target).driver, act))).kept == 0
    assert has_come
    assert read(target) == read(source) == {"b": [{"n": 1}]}
    assert len(rows(target, ASSISTANTS, DOCUMENT)) == 2


def test_a_list_without_records_is_not_there() -> None:
    source, target = in_memory(), in_memory()
    handle_of(source).run(documents.put(ASSISTANTS, "assistant", "a", {}, 7, Expect.ANY, fresh=1 << 30))
    handle_of(source).run(documents.remove(ASSISTANTS, "assistant", "a"))
    with pytest.raises(NotFound, match="list of assistants"):
        admin.move(source, ASSISTANTS, target)
