"""A thread that is replaced is kept at the target until its replacement has arrived."""

from __future__ import annotations

import itertools

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.engine.transfer.transfer_terms import State
from perdure.errors import Unavailable
from perdure.model.ops import FindThreads
from perdure.model.records import Partition
from perdure.testing.faults import ALL, Fault, FaultyDriver, fail
from tests.engine.transfer.test_transfer import assert_sound, database, grow, in_memory, is_absent

HERE = Partition("", "t")


def threads(db: perdure.SyncDatabase) -> list[Partition]:
    found = handle_of(db).driver.perform(FindThreads(None))
    return [hit.partition for hit in found if not is_absent(db, hit.partition)]


def contents(db: perdure.SyncDatabase) -> list[str]:
    return [admin.digest_of(db, partition).hex for partition in threads(db)]


def grown() -> tuple[perdure.SyncDatabase, perdure.SyncDatabase]:
    """A source, and a target that went on by itself."""
    source, target = in_memory(), in_memory()
    grow(source, "t", 2)
    admin.move(source, HERE, target)
    grow(target, "t", 1)
    grow(source, "t", 2)
    return source, target


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_it_is_kept_wherever_a_replacement_is_cut_short(step: int) -> None:
    source, target = grown()
    counting = FaultyDriver(handle_of(target).driver, counts=ALL)
    assert admin.move(source, HERE, database(counting), replace=True).found is State.DIFFERENT
    assert contents(target) == contents(source)
    was_absent = 0
    for at in range(step, counting.count + 1, step):
        source, target = grown()
        old, wanted = (admin.digest_of(db, HERE).hex for db in (target, source))
        fault = Fault(at, fail("unavailable"))
        cut = FaultyDriver(handle_of(target).driver, fault, counts=ALL)
        with pytest.raises(Unavailable):
            admin.move(source, HERE, database(cut), replace=True)
        held = contents(target)
        assert old in held or (wanted in held and HERE in threads(target)), at
        was_absent += is_absent(target, HERE)
        admin.move(source, HERE, target, replace=True)
        assert threads(target) == [HERE]
        assert contents(target) == [wanted]
        assert_sound(target)
    assert was_absent >= 10 // step


def test_a_thread_that_began_meanwhile_at_the_name_is_kept_too() -> None:
    source, target = grown()
    for at in itertools.count(4):
        source, target = grown()
        cut = FaultyDriver(handle_of(target).driver, Fault(at, fail("unavailable")), counts=ALL)
        with pytest.raises(Unavailable):
            admin.move(source, HERE, database(cut), replace=True)
        if is_absent(target, HERE):
            break
    old = contents(target)[0]
    grow(target, "t", 1)
    assert len(threads(target)) == 2
    assert old in contents(target)
    admin.move(source, HERE, target, replace=True)
    assert contents(target) == [admin.digest_of(source, HERE).hex]


def test_threads_whose_names_begin_like_a_copy_s_are_kept() -> None:
    source, target = grown()
    others = ["t (replaced by u)", "t (replaced 0123456789abcdef) again"]
    for name in others:
        grow(target, name, 1)
    admin.move(source, HERE, target, replace=True)
    assert sorted(at.thread for at in threads(target)) == sorted(["t", *others])
    admin.move(source, HERE, target, replace=True)
    assert sorted(at.thread for at in threads(target)) == sorted(["t", *others])
