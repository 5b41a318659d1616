"""Removal of what is finished of a queue, over the memory driver, with a clock that the test holds."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.engine import documents
from perdure.engine.checks.fsck_queue import check_queue
from perdure.engine.queue import effect_journal, inbox
from perdure.engine.queue.inbox import Accepted
from perdure.engine.queue.outbox import DeliveryOutcome
from perdure.engine.retention import queue_retention
from perdure.model.ops import Commit, Delete, Expect
from perdure.model.program import Effect
from perdure.model.records import DEDUPE, DOCUMENT, EFFECT, INBOX, OUTBOX, REQUESTS, RUN
from perdure.model.runs.messages import DEAD, DONE, SENT, WAITING, Run
from tests.engine.queue.queues import BUDGET, HERE, Queue


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.mark.parametrize("standing", ["queued", "open", "waiting", "done"])
def test_effects_stay_while_an_unfinished_run_may_repeat_their_step(queue: Queue, standing: str) -> None:
    queue.accept()
    first = queue.held()
    queue.run(effect_journal.note(HERE, first.run.id, "pay", 0, b"1", first.epoch))
    queue.finish(first, WAITING)
    queue.accept()
    if standing != "queued":
        later = queue.held()
        if standing != "open":
            queue.finish(later, WAITING if standing == "waiting" else DONE)
    queue.now += 100
    queue.run(queue_retention.forget(HERE, queue.now, BUDGET))
    kept = queue.run(effect_journal.recall(HERE, "another run", "pay", 0))
    assert kept == (None if standing == "done" else b"1")
    assert len(queue.rows(EFFECT)) == (0 if standing == "done" else 2)


def test_effects_stay_however_many_runs_repeat_their_step(queue: Queue) -> None:
    queue.accept()
    first = queue.held()
    queue.run(effect_journal.note(HERE, first.run.id, "pay", 0, b"1", first.epoch))
    queue.finish(first, WAITING)
    for _ in range(2 * queue_retention.BATCH_MAX):
        queue.accept()
        queue.finish(queue.held(), WAITING)
    queue.now += 100
    queue.run(queue_retention.forget(HERE, queue.now, BUDGET))
    assert queue.run(effect_journal.recall(HERE, "another run", "pay", 0)) == b"1"
    queue.accept()
    queue.finish(queue.held(), DONE)
    queue.now += 100
    while queue.run(queue_retention.forget(HERE, queue.now, BUDGET)):
        pass
    assert queue.rows(EFFECT) == ()


def test_only_what_is_over_is_forgotten(queue: Queue) -> None:
    for n in range(3):
        queue.accept(str(n), "enqueue", key=f"k{n}", channel="post")
    held = queue.held()
    queue.run(effect_journal.note(HERE, held.run.id, "pay", 0, b"{}", held.epoch))
    queue.finish(held, replies=("a",))
    opened = queue.held()
    forget = queue_retention.forget(HERE, queue.now, BUDGET)
    assert queue.run(forget) == 0, "it is not old enough"
    queue.now += 100
    queue.run(queue_retention.forget(HERE, queue.now, BUDGET))
    assert [row.key for row in queue.rows(INBOX)] == [(2,), (3,)]
    assert [row.key for row in queue.rows(RUN)] == [(opened.run.id,)]
    assert len(queue.rows(DEDUPE)) == 2
    assert queue.rows(EFFECT) == ()
    assert len(queue.rows(OUTBOX)) == 1, "nobody has it yet"
    queue.finish(opened)
    sending = queue.take()
    assert sending is not None
    queue.settle(sending, DeliveryOutcome(SENT))
    queue.now += 100
    queue.run(queue_retention.forget(HERE, queue.now, BUDGET))
    assert queue.rows(OUTBOX) == ()
    assert [row.key for row in queue.rows(INBOX)] == [(2,), (3,)], "the newest run, and what is pending"
    assert [m.payload for m in queue.held().messages] == ["2"]
    assert not queue.accept(key="k0").is_duplicate


@pytest.mark.parametrize("messages", [1, 3])
def test_a_thread_is_tidied_although_its_next_messages_come_meanwhile(queue: Queue, messages: int) -> None:
    for text in ("old", "newest"):
        queue.accept(text)
        queue.finish(queue.held())
    queue.now += 100

    def between(effect: Effect[Any]) -> None:
        nonlocal messages
        if isinstance(effect, Commit) and messages:
            messages -= 1
            queue.accept("next", "enqueue")

    queue.run(queue_retention.forget(HERE, queue.now, BUDGET), between)
    assert messages == 0
    assert next(row.key for row in queue.rows(INBOX)) == (2,)
    assert len(queue.rows(RUN)) == 1


@pytest.mark.parametrize("budget", [5, 7, 10, 97])
def test_all_is_forgotten_however_little_goes_at_once(queue: Queue, budget: int) -> None:
    for n in range(40):
        queue.accept(mode="enqueue" if n % 3 else "coalesce", key=f"k{n}", channel="post")
    while (held := queue.claim()) is not None:
        queue.run(effect_journal.note(HERE, held.run.id, "pay", 0, b"{}", held.epoch))
        queue.finish(held, replies=["a"])
    while (sending := queue.take(most=1)) is not None:
        queue.settle(sending, DeliveryOutcome(SENT))
    queue.now += 1
    for _ in range(200):
        if queue.run(queue_retention.forget(HERE, queue.now, budget)) == 0:
            break
    rest = {kind: len(queue.rows(kind)) for kind in (INBOX, DEDUPE, RUN, EFFECT, OUTBOX)}
    assert rest == {INBOX: 1, DEDUPE: 1, RUN: 1, EFFECT: 0, OUTBOX: 1}, "the newest run stays"
    assert not any(queue.accept(key=f"k{n}").is_duplicate for n in range(39))


def test_replies_that_stay_keep_no_sent_one(queue: Queue) -> None:
    for n in range(300):
        queue.accept(key=f"k{n}", channel="post")
        queue.finish(queue.held(), replies=["a"])
    for n in range(300):
        sending = queue.take(most=1)
        assert sending is not None
        queue.settle(sending, DeliveryOutcome(DEAD if n < 260 else SENT))
    queue.now += 1
    for at in (0.0, 0.5, 0.99):
        queue.run(queue_retention.forget(HERE, queue.now, BUDGET, at=at))
    assert [row.key for row in queue.rows(OUTBOX)] == [(n,) for n in range(1, 261)]


@pytest.mark.parametrize("budget", [5, 7, 97])
@pytest.mark.parametrize("noted", [0, 1, 2 * queue_retention.BATCH_MAX])
def test_a_run_that_is_removed_takes_its_own_along_and_nothing_else(
    queue: Queue, budget: int, noted: int
) -> None:
    for n in range(6):
        queue.accept(mode="coalesce", key=f"k{n}")
    held = queue.held()
    for n in range(noted):
        queue.run(effect_journal.note(HERE, held.run.id, "pay", n, b"{}", held.epoch))
    queue.finish(held)
    queue.accept(key="later")
    queue.finish(queue.held())
    removed, kept = sorted(map(Run.read, queue.rows(RUN)), key=lambda run: run.first)
    for run in (removed, kept):
        queue.run(documents.put(HERE, REQUESTS, run.id, {}, queue.now, Expect.ABSENT, fresh=queue.fresh))
    assert queue.run(queue_retention.remove(HERE, removed, budget))
    assert queue.rows(EFFECT) == ()
    assert [row.key for row in queue.rows(DOCUMENT)] == [(REQUESTS, kept.id)]
    assert [row.key for row in queue.rows(INBOX)] == [(7,)]
    assert [row.key for row in queue.rows(RUN)] == [(kept.id,)]
    assert queue.accept(key="later").is_duplicate
    assert not queue.accept(key="k3").is_duplicate
    assert not queue.run(queue_retention.remove(HERE, removed, budget)), "it is gone"


@pytest.mark.parametrize("budget", [5, 97])
def test_an_inbox_does_not_name_a_waiting_run_that_is_removed(queue: Queue, budget: int) -> None:
    for n in range(6):
        queue.accept(mode="coalesce", key=f"k{n}")
    held = queue.held()
    queue.finish(held, WAITING)
    (run,) = map(Run.read, queue.rows(RUN))
    assert queue.lane().waiting == run.id
    assert queue.run(queue_retention.remove(HERE, run, budget))
    assert queue.lane().waiting is None
    assert queue.run(check_queue(HERE)) == []


def half_removed(queue: Queue, run: Run) -> None:
    """A removal that ends after its first commit."""

    def ended(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and (1,) not in [row.key for row in queue.rows(INBOX)]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.run(queue_retention.remove(HERE, run, 5), ended)


def test_a_run_that_is_half_removed_is_found_and_removed_again(queue: Queue) -> None:
    for n in range(4):
        queue.accept(mode="coalesce", key=f"k{n}")
    queue.finish(queue.held())
    (run,) = (Run.read(row) for row in queue.rows(RUN))
    half_removed(queue, run)
    assert 0 < len(queue.rows(INBOX)) < 4
    found = queue.run(inbox.find(HERE, run.id))
    assert found is not None
    assert found.run == run
    assert queue.run(queue_retention.remove(HERE, run, 5))
    assert queue.rows(INBOX) == queue.rows(RUN) == queue.rows(DEDUPE) == ()


def test_a_key_that_was_given_to_another_message_meanwhile_stays(queue: Queue) -> None:
    for n in range(4):
        queue.accept(mode="coalesce", key=f"k{n}")
    queue.finish(queue.held())
    (run,) = (Run.read(row) for row in queue.rows(RUN))
    again: list[Accepted] = []

    def meanwhile(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and not again:
            half_removed(queue, run)
            again.append(queue.accept(key="k0"))

    assert queue.run(queue_retention.remove(HERE, run, 5), meanwhile)
    assert not again[0].is_duplicate
    assert queue.accept(key="k0").is_duplicate
    assert [row.key for row in queue.rows(INBOX)] == [(again[0].seq,)]


def test_a_run_whose_last_message_is_gone_is_removed_with_the_others(queue: Queue) -> None:
    for n in range(3):
        queue.accept(mode="coalesce", key=f"k{n}")
    queue.finish(queue.held())
    (run,) = (Run.read(row) for row in queue.rows(RUN))
    queue.memory.perform(Commit(HERE, (Delete(INBOX, (3,)),)))
    assert queue.run(queue_retention.remove(HERE, run, 5))
    assert queue.rows(INBOX) == queue.rows(RUN) == ()


def test_what_ended_just_now_is_not_forgotten_however_long_it_waited(queue: Queue) -> None:
    """Its sender may still ask what became of it."""
    for _ in range(2):
        queue.accept(mode="enqueue")
    queue.now += 100
    for _ in range(2):
        queue.finish(queue.held())
    assert queue.run(queue_retention.forget(HERE, queue.now, BUDGET)) == 0
    queue.now += 1
    assert queue.run(queue_retention.forget(HERE, queue.now, BUDGET)) > 0


def test_a_question_is_not_forgotten_however_long_it_waits(queue: Queue) -> None:
    queue.accept()
    queue.finish(queue.held(), WAITING, interrupts=[{"id": "i"}])
    queue.now += 1000
    assert queue.run(queue_retention.forget(HERE, queue.now, BUDGET)) == 0
    queue.accept("yes", "answer")
    queue.finish(queue.held())
    queue.now += 1
    assert queue.run(queue_retention.forget(HERE, queue.now, BUDGET)) > 0


@pytest.mark.parametrize("is_waiting", [False, True])
def test_the_reply_that_shows_a_question_stays_while_it_waits(queue: Queue, is_waiting: bool) -> None:
    for n, state in enumerate((DONE, WAITING)):
        queue.accept(str(n), channel="post")
        queue.finish(queue.held(), state, replies=("a",))
        sending = queue.take()
        assert sending is not None
        queue.settle(sending, DeliveryOutcome(SENT))
    if not is_waiting:
        queue.accept("over")
        queue.finish(queue.held())
    queue.now += 100
    queue.run(queue_retention.forget(HERE, queue.now, BUDGET))
    assert [row.key for row in queue.rows(OUTBOX)] == ([(2,)] if is_waiting else [])
