"""A thread that is handed over by a file sleeps at its source only once the file is in its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from perdure import admin
from perdure.database.base import handle_of
from perdure.engine.transfer.transfer_terms import State
from perdure.errors import Conflict, NotFound, Unavailable
from perdure.model.records import Partition
from perdure.testing.faults import WRITES, Fault, FaultyDriver, fail
from tests.backends import BACKENDS
from tests.engine.transfer.test_transfer import assert_sound, database, grow, in_memory, opened
from tests.engine.transfer.test_waiting_runs import HERE, asks, begin, give, timers, waits, wake, woken


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "t.perdure"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_the_waits_are_given_back_if_the_file_is_not_put_in_its_place(
    backend: str, error: BaseException, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: object, target: object) -> None:
        assert not timers(source_database)
        raise error

    with opened(backend) as source_database:
        begin(source_database, asks)
        before = [each.fields["due_at"] for each in timers(source_database)]
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", refuse)
            with pytest.raises((Unavailable, KeyboardInterrupt)), admin.new_archive(file) as archive:
                assert admin.move(source_database, HERE, archive, hand_over=True).found is State.ABSENT
        assert not file.exists()
        assert [each.fields["due_at"] for each in timers(source_database)] == before
        with admin.new_archive(file) as archive:
            admin.move(source_database, HERE, archive, hand_over=True)
            assert timers(source_database)
        assert not timers(source_database)
        target = in_memory()
        with admin.open_archive(file) as archive:
            admin.move(archive, HERE, target)
        for _ in range(3):
            wake(source_database)
            wake(target)
        assert woken(source_database, target) == [0, 1]
        assert_sound(source_database)


def test_nothing_is_taken_if_a_later_thread_is_refused(file: Path) -> None:
    source = in_memory()
    begin(source, asks)
    before = timers(source)

    def export() -> None:
        with admin.new_archive(file) as archive:
            for name in ("t", "gone"):
                admin.move(source, Partition("", name), archive, hand_over=True)

    with pytest.raises(NotFound):
        export()
    assert timers(source) == before
    assert not file.exists()


@pytest.mark.parametrize("change", [wake, lambda db: give(db, 7), lambda db: grow(db, "t", 1)])
def test_a_thread_that_changes_while_the_file_is_written_goes_on_where_it_is(change: Any, file: Path) -> None:
    first, source = in_memory(), in_memory()
    begin(first, asks)
    begin(source, asks, waits)

    def export() -> None:
        with admin.new_archive(file) as archive:
            admin.move(first, HERE, archive, Partition("", "first"), hand_over=True)
            admin.move(source, HERE, archive, hand_over=True)
            change(source)

    with pytest.raises(Conflict, match="'t' was written to"):
        export()
    assert not file.exists()
    assert timers(source) or change is wake
    for _ in range(3):
        wake(first)
    assert woken(first) == [1]


def test_a_thread_whose_waits_cannot_be_given_back_is_named(file: Path) -> None:
    source = in_memory()
    begin(source, asks)
    broken = database(
        FaultyDriver(handle_of(source).driver, Fault(1, fail("unavailable"), "after"), counts=WRITES)
    )
    with pytest.raises(Unavailable), admin.new_archive(file) as archive:
        admin.move(broken, HERE, archive, hand_over=True)
    # The answer to the commit was lost, not the commit.
    assert timers(source)
    assert not file.exists()
