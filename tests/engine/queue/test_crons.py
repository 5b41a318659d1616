"""Crons over the memory driver: their queue record is due when the first of them is, whoever changes what.

Covers perdure.engine.retention.thread_removal.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from perdure.engine.queue import crons
from perdure.engine.queue.crons import MOST, Cron, Due
from perdure.engine.retention import thread_removal
from perdure.errors import Corrupt, QueueFull
from perdure.model.ops import Commit, Committed, Delete, Fetch, FindDue, Get, Put
from perdure.model.program import Effect, Program
from perdure.model.records import DOCUMENT, GC, LANE, Partition
from perdure.model.runs.queue import CRONS
from tests.engine.queue.queues import Queue

PLACE = crons.place("acme")


@pytest.fixture
def queue() -> Queue:
    return Queue()


def create(queue: Queue, name: str, due_at: int | None) -> Cron | None:
    made: Cron | None = queue.run(crons.create(PLACE, name, Due({"n": name}, due_at), queue.now, queue.fresh))
    return made


def move(queue: Queue, name: str, due_at: int | None, between: Any = None) -> Cron | None:
    program = crons.change(PLACE, name, lambda held: Due(held.body, due_at), queue.now, queue.fresh)
    changed: Cron | None = queue.run(program, between)
    return changed


def due_at(queue: Queue) -> int | None:
    """The time at which a worker finds the tenant's crons."""
    found = queue.memory.perform(FindDue(None, until=1 << 60))
    times = [hit.record.fields["due_at"] for hit in found if hit.record is not None]
    assert all(hit.partition == PLACE for hit in found)
    return times[0] if times else None


def test_the_first_cron_decides_when_a_worker_looks(queue: Queue) -> None:
    made = create(queue, "a", 50)
    assert made is not None
    assert (made.id, made.body, made.due_at, made.created_at) == ("a", {"n": "a"}, 50, queue.now)
    assert due_at(queue) == 50
    create(queue, "b", 20)
    assert due_at(queue) == 20
    create(queue, "c", None)
    assert due_at(queue) == 20
    move(queue, "b", 70)
    assert due_at(queue) == 50
    assert queue.run(crons.remove(PLACE, "a")) is True
    assert due_at(queue) == 70
    move(queue, "b", None)
    assert due_at(queue) is None
    move(queue, "c", 5)
    assert due_at(queue) == 5
    assert queue.run(crons.remove(PLACE, "a")) is False


def test_an_id_is_taken_once_and_a_missing_cron_is_not_changed(queue: Queue) -> None:
    assert create(queue, "a", 5) is not None
    assert create(queue, "a", 1) is None
    assert move(queue, "x", 5) is None
    assert queue.run(crons.get(PLACE, "x")) is None
    held = queue.run(crons.get(PLACE, "a"))
    assert held.due_at == 5
    same = queue.run(crons.change(PLACE, "a", lambda cron: None, queue.now, queue.fresh))
    assert same == held
    assert [cron.id for cron in queue.run(crons.read_all_crons(PLACE))] == ["a"]


def test_those_that_are_due_come_earliest_first(queue: Queue) -> None:
    for name, time in (("a", 30), ("b", 10), ("c", 20), ("d", 40), ("e", None)):
        create(queue, name, time)
    found = queue.run(crons.list_by_time(PLACE, 30, 10))
    assert [cron.id for cron in found.crons] == ["b", "c", "a"]
    assert found.fault is None
    assert found.next_since is None
    page = queue.run(crons.list_by_time(PLACE, 30, 2))
    assert ([cron.id for cron in page.crons], page.next_since) == (["b", "c"], 20)
    page = queue.run(crons.list_by_time(PLACE, 30, 2, page.next_since))
    assert ([cron.id for cron in page.crons], page.next_since) == (["c", "a"], 30)
    assert [cron.id for cron in queue.run(crons.list_by_time(PLACE, 99, 9, 31)).crons] == ["d"]
    assert queue.run(crons.list_by_time(PLACE, 5, 10)).crons == ()


def test_a_page_ends_between_two_times(queue: Queue) -> None:
    for number in range(20):
        create(queue, f"{number:02}", 10 if number < 9 else 20)
    first = queue.run(crons.list_by_time(PLACE, 30, 2))
    assert [cron.id for cron in first.crons] == [f"{number:02}" for number in range(20)]
    assert first.next_since is None
    first = queue.run(crons.list_by_time(PLACE, 30, 4))
    assert (len(first.crons), first.next_since) == (16, 20)
    assert len(queue.run(crons.list_by_time(PLACE, 30, 4, 20)).crons) == 11


@pytest.mark.parametrize("after", [70, None])
def test_one_that_another_process_starts_while_they_are_read_is_not_due(
    queue: Queue, after: int | None
) -> None:
    for name in "ab":
        create(queue, name, 10)
    seen = 0

    def between(effect: Effect[Any]) -> None:
        nonlocal seen
        seen += 1
        if seen == 2:
            move(queue, "a", after)

    found = queue.run(crons.list_by_time(PLACE, 30, 10), between)
    assert seen == 2
    assert [cron.id for cron in found.crons] == ["b"]
    assert found.next_since is None


def test_one_that_cannot_be_read_does_not_hide_the_others(queue: Queue) -> None:
    create(queue, "a", 10)
    create(queue, "b", 20)
    damaged = Put(DOCUMENT, ("cron", "a"), {"updated_at": 10}, b"{", version=queue.fresh)
    queue.memory.perform(Commit(PLACE, (damaged,)))
    found = queue.run(crons.list_by_time(PLACE, 30, 10))
    assert [cron.id for cron in found.crons] == ["b"]
    assert isinstance(found.fault, Corrupt)
    assert queue.run(crons.remove(PLACE, "a")) is True
    assert due_at(queue) == 20


THREAD = Partition("acme", "ada's")


def bind(queue: Queue, name: str, thread: str | None, tenant: str = "acme", due_at: int | None = 50) -> None:
    body = {"thread_id": thread, "payload": "a text of ada"}
    assert queue.run(crons.create(crons.place(tenant), name, Due(body, due_at), queue.now, queue.fresh))


def left(queue: Queue, tenant: str = "acme") -> list[str]:
    return [cron.id for cron in queue.run(crons.read_all_crons(crons.place(tenant)))]


@pytest.fixture
def bound(queue: Queue) -> Queue:
    """A thread with two crons, and crons that are not its own."""
    assert queue.memory.perform(Commit(THREAD, (Put(GC, (), version=1),))) == Committed()
    for name, thread in {"its": THREAD.thread, "other": "bob's", "none": None}.items():
        bind(queue, name, thread)
    bind(queue, "paused", THREAD.thread, due_at=None)
    bind(queue, "theirs", THREAD.thread, "globex", due_at=None)
    return queue


REMOVALS: dict[str, Callable[[], Program[Any]]] = {
    "delete": lambda: thread_removal.delete_thread(THREAD),
    "resting": lambda: thread_removal.remove_if_idle(THREAD),
}


@pytest.mark.parametrize("how", REMOVALS)
def test_crons_go_with_their_thread(bound: Queue, how: str) -> None:
    bound.run(REMOVALS[how]())
    assert left(bound) == ["none", "other"]
    assert left(bound, "globex") == ["theirs"]
    assert due_at(bound) == 50
    assert not bound.memory.perform(Fetch(THREAD, (Get(GC, ()),)))[0]


@pytest.mark.parametrize("how", REMOVALS)
def test_a_removal_that_is_cut_short_is_ended_by_the_next_one_or_by_the_cron(bound: Queue, how: str) -> None:
    """Before each of its effects, in turn."""
    stops = 0
    while True:
        program, effects = REMOVALS[how](), 0
        try:
            effect = next(program)
            while effects < stops:
                effects += 1
                effect = program.send(bound.memory.perform(effect))
        except StopIteration:
            break
        program.close()
        stops += 1
    assert stops > 2
    assert left(bound) == ["none", "other"]


def test_one_that_cannot_be_read_does_not_keep_a_thread(bound: Queue) -> None:
    damaged = Put(DOCUMENT, ("cron", "other"), {"updated_at": 10}, b"{", version=bound.fresh)
    bound.memory.perform(Commit(PLACE, (damaged,)))
    bound.run(thread_removal.delete_thread(THREAD))
    bound.run(crons.remove(PLACE, "other"))
    assert left(bound) == ["none"]


def test_concurrent_changes_never_leave_the_queue_record_late(queue: Queue) -> None:
    """At every effect of one change another process makes one, too."""
    dice = random.Random(7)
    times: dict[str, int | None] = {name: dice.choice([None, dice.randrange(100)]) for name in "abcd"}
    for name, time in times.items():
        create(queue, name, time)
    for _ in range(200):
        one, other = dice.sample("abcd", 2)
        wanted = {name: dice.choice([None, dice.randrange(100)]) for name in (one, other)}
        at, seen = dice.randrange(3), 0

        def between(
            effect: Effect[Any], other: str = other, wanted: dict[str, int | None] = wanted, at: int = at
        ) -> None:
            nonlocal seen
            seen += 1
            if seen == at + 1:
                move(queue, other, wanted[other])

        move(queue, one, wanted[one], between)
        if seen > at:
            times[other] = wanted[other]
        times[one] = wanted[one]
        assert due_at(queue) == min((time for time in times.values() if time is not None), default=None)


def test_a_copy_is_found_again(queue: Queue) -> None:
    create(queue, "a", 30)
    assert queue.run(crons.arm(PLACE, queue.fresh)) is False
    queue.memory.perform(Commit(PLACE, (Delete(LANE, (CRONS,)),)))
    assert due_at(queue) is None
    assert queue.run(crons.arm(PLACE, queue.fresh)) is True
    assert due_at(queue) == 30


def test_a_tenant_has_a_bounded_number_of_crons(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST == 1000
    monkeypatch.setattr(crons, "MOST", 3)
    for name in "abc":
        create(queue, name, None)
    with pytest.raises(QueueFull, match="there are 3 crons"):
        create(queue, "d", 5)
    assert due_at(queue) is None


def test_a_cron_changed_before_a_loss_has_no_version_of_one_since() -> None:
    lost, restored = Queue(), Queue()
    begun = [create(queue, "a", 50) for queue in (lost, restored)]
    assert begun[0] == begun[1]
    restored.now += 1
    before, since = move(lost, "a", 60), move(restored, "a", 70)
    assert before is not None
    assert since is not None
    assert before.version != since.version
