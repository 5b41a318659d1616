"""A transfer leaves the target's thread in place while messages are under way there, and puts it back if its
replacement cannot arrive."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.engine.queue.inbox import Accept
from perdure.engine.transfer.transfer_terms import State
from perdure.errors import Conflict, Corrupt, KeyMissing, PerdureError, TooLarge
from perdure.model.ops import Commit, Fetch, Put, Stage
from perdure.model.program import Effect
from perdure.model.records import GC, INBOX, LANE, Partition
from perdure.model.runs.messages import Message
from perdure.model.runs.queue import Debounce
from tests.backends import BACKENDS
from tests.engine.transfer.test_transfer import (
    Hooked,
    assert_sound,
    database,
    grow,
    in_memory,
    is_absent,
    opened,
    rows,
)
from tests.engine.transfer.test_transfer_replacement import grown, threads
from tests.engine.transfer.test_waiting_runs import asks, begin, only_asks, timers, wake, woken

HERE = Partition("", "t")


def accept(db: perdure.SyncDatabase) -> None:
    message = Message("id", {"input": 1}, "g")
    handle_of(db).run(Accept(HERE, message, 1, Debounce(), "enqueue", 10, 1 << 30).store(None))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_thread_with_accepted_messages_is_not_replaced(backend: str, is_waiting: bool) -> None:
    source = in_memory()
    if is_waiting:
        begin(source, only_asks)
    else:
        grow(source, "t", 1)
    with opened(backend) as target:
        grow(target, "t", 2)
        accept(target)
        before, lanes = admin.digest_of(target, HERE), rows(target, HERE, LANE)
        for dry_run in (True, False, False):
            with pytest.raises(Conflict, match=r"'t' has messages .* under way at the target.*not put in"):
                admin.move(source, HERE, target, replace=True, dry_run=dry_run)
        assert admin.digest_of(target, HERE) == before
        assert rows(target, HERE, LANE) == lanes
        assert threads(target) == [HERE]
        assert admin.move(source, HERE, target, dry_run=True).found is State.DIFFERENT


@pytest.mark.parametrize("is_waiting", [False, True])
def test_nothing_arrives_at_a_name_whose_first_message_was_accepted(is_waiting: bool) -> None:
    source, target = in_memory(), in_memory()
    if is_waiting:
        begin(source, only_asks)
    else:
        grow(source, "t", 1)
    accept(target)
    for dry_run in (True, False):
        with pytest.raises(Conflict, match="under way at the target"):
            admin.move(source, HERE, target, dry_run=dry_run)
    assert is_absent(target, HERE)
    assert len(rows(target, HERE, INBOX)) == 1


def arrives(effect: Effect[Any]) -> bool:
    """Return True for the commit that makes the thread visible."""
    return (
        isinstance(effect, Commit)
        and effect.partition == HERE
        and any(op.kind is GC and isinstance(op, Put) for op in effect.ops)
    )


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_thread_is_put_back_if_a_message_is_accepted_while_it_is_replaced(is_waiting: bool) -> None:
    source, target = grown()
    if is_waiting:
        source = in_memory()
        begin(source, only_asks)
    old = admin.digest_of(target, HERE)
    has_come = False

    def act(effect: Effect[Any]) -> None:
        nonlocal has_come
        if arrives(effect) and not has_come:
            has_come = True
            accept(target)

    with pytest.raises(Conflict, match="at the target"):
        admin.move(source, HERE, database(Hooked(handle_of(target).driver, act)), replace=True)
    assert has_come
    assert threads(target) == [HERE]
    assert admin.digest_of(target, HERE) == old
    assert len(rows(target, HERE, INBOX)) == 1
    assert_sound(target)


@pytest.mark.parametrize("error", [Corrupt, KeyMissing, TooLarge, Conflict])
def test_a_thread_is_put_back_wherever_its_replacement_is_refused(error: type[PerdureError]) -> None:
    reached = was_withdrawn = 0
    at = 0
    while reached == at:
        at += 1
        source, target = grown()
        old = admin.digest_of(target, HERE)
        count = 0

        def act(effect: Effect[Any], *, at: int = at, target: perdure.SyncDatabase = target) -> None:
            nonlocal count, reached, was_withdrawn
            count += isinstance(effect, Fetch | Stage | Commit)
            if count == at and reached < at:
                reached = at
                was_withdrawn += is_absent(target, HERE)
                raise error("refused")

        watched = database(Hooked(handle_of(source).driver, act))
        try:
            admin.move(watched, HERE, target, replace=True)
        except error:
            assert admin.digest_of(target, HERE) == old
            assert threads(target) == [HERE]
        assert_sound(target)
    assert was_withdrawn > 0


def test_a_thread_that_is_deleted_while_it_is_replaced_does_not_come_back_to_its_name() -> None:
    source, target = grown()
    is_deleted = False

    def act(effect: Effect[Any]) -> None:
        nonlocal is_deleted
        if arrives(effect) and not is_deleted:
            is_deleted = True
            target.checkpointer().delete_thread("t")

    with pytest.raises(Conflict, match=r"could not be put back.*'t \(replaced "):
        admin.move(source, HERE, database(Hooked(handle_of(target).driver, act)), replace=True)
    assert is_absent(target, HERE)


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "replaced"])
def test_the_source_gets_its_waits_back_if_the_arrival_is_refused(is_there: bool) -> None:
    source, target = in_memory(), in_memory()
    begin(source, asks)
    if is_there:
        grow(target, "t", 1)
    before = timers(source)
    has_come = False

    def act(effect: Effect[Any]) -> None:
        nonlocal has_come
        if arrives(effect) and not has_come:
            has_come = True
            assert not timers(source)
            accept(target)

    watched = database(Hooked(handle_of(target).driver, act))
    with pytest.raises(Conflict, match="at the target"):
        admin.move(source, HERE, watched, replace=True, hand_over=True)
    assert has_come
    assert [each.fields["due_at"] for each in timers(source)] == [each.fields["due_at"] for each in before]
    for _ in range(3):
        wake(source)
    assert woken(source) == [1]
    assert_sound(source)
