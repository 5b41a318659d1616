"""A database named in two ways is not taken for two, where that would cost a thread."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.engine.transfer.transfer_terms import State
from perdure.errors import Conflict
from perdure.model.program import Effect
from perdure.model.records import STORE, Partition
from tests.backends import BACKENDS
from tests.engine.transfer.test_transfer import Hooked, assert_sound, database, grow, in_memory, opened
from tests.engine.transfer.test_waiting_runs import HERE, begin, naps, timers, wake, woken

REFUSED = "same database, named in two ways"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_thread_that_wakes_is_not_handed_over_to_itself(backend: str) -> None:
    with opened(backend) as one:
        begin(one, naps)
        with pytest.raises(Conflict, match=REFUSED):
            admin.move(one, HERE, one, hand_over=True)
        assert timers(one)
        wake(one)
        assert woken(one) == [1]
        assert_sound(one)


def write_late(one: perdure.SyncDatabase, at: int, write: Any) -> perdure.SyncDatabase:
    """The same database as a target, written to by others before one of the requests to it."""
    requests: list[int] = []

    def act(effect: Effect[Any]) -> None:
        requests.append(1)
        if len(requests) == at:
            write()

    return database(Hooked(handle_of(one).driver, act))


def test_a_thread_that_others_write_to_is_not_replaced_by_itself() -> None:
    one, other = in_memory(), in_memory()
    grow(one, "t", 2)
    same = write_late(one, 2, lambda: grow(one, "t", 1))
    with pytest.raises(Conflict, match=REFUSED):
        admin.move(one, HERE, same, replace=True)
    grow(other, "t", 2)
    grow(other, "t", 1)
    assert admin.digest_of(one, HERE).checkpoints == admin.digest_of(other, HERE).checkpoints
    assert admin.partitions(one, None) == [HERE]
    assert_sound(one)


def test_items_that_others_write_are_not_replaced_by_themselves() -> None:
    one = in_memory()
    store = one.store()
    store.put(("notes",), "a", {"text": "old"})
    (space,) = [each for each in admin.partitions(one, None) if each.space == STORE]
    same = write_late(one, 1, lambda: store.put(("notes",), "a", {"text": "new"}))
    with pytest.raises(Conflict, match=REFUSED):
        admin.move(one, space, same, replace=True)
    item = store.get(("notes",), "a")
    assert item is not None
    assert item.value == {"text": "new"}


def test_a_thread_is_replaced_under_another_name_of_its_database() -> None:
    one = in_memory()
    grow(one, "t", 2)
    grow(one, "u", 1)
    moved = admin.move(one, HERE, one, into=Partition("", "u"), replace=True)
    assert moved.found is State.DIFFERENT
    assert admin.digest_of(one, Partition("", "u")).hex == moved.digest.hex
