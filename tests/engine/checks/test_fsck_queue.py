"""A queue that was damaged by hand is found out; a sound one never is, wherever it stands."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.engine.checks.fsck import check, repair
from perdure.engine.checks.fsck_queue import check_queue
from perdure.engine.checks.fsck_report import Damage, Finding
from perdure.engine.queue.outbox import DeliveryOutcome
from perdure.engine.transact import Budget
from perdure.errors import Contention
from perdure.model.ops import Commit, Committed, Delete, Fetch, FindDue, Get, Put, Range
from perdure.model.program import Effect
from perdure.model.records import EPOCH, INBOX, LANE, OUTBOX, RUN, Kind
from perdure.model.runs.messages import DEAD, SENT, WAITING
from perdure.model.values.chunks import Digester
from tests.engine.queue.queues import HERE, Queue


@pytest.fixture
def queue() -> Queue:
    return Queue()


def commit(queue: Queue, *ops: Any) -> None:
    assert queue.memory.perform(Commit(HERE, ops)) == Committed()


def changed(queue: Queue, kind: Kind, key: tuple[Any, ...], **fields: Any) -> Put:
    """A record as it is stored, but for some fields."""
    ((record,),) = queue.memory.perform(Fetch(HERE, (Get(kind, key),)))
    after = {**record.fields, **fields}
    return Put(kind, key, after, record.body, expect=record.version, version=record.version + 1)


def found(queue: Queue) -> list[str]:
    findings: list[Finding] = queue.run(check(HERE, Digester()))
    assert {finding.kind for finding in findings} <= {Damage.QUEUE, Damage.UNREADABLE}
    assert not any(finding.repairable for finding in findings)
    return [finding.detail for finding in findings]


def test_a_sound_queue_has_no_findings_wherever_it_stands(queue: Queue) -> None:
    assert found(queue) == []
    queue.accept(key="k")
    queue.accept(mode="enqueue")
    queue.accept(channel="post", mode="enqueue")
    assert found(queue) == []
    held = queue.held(most=1)
    assert found(queue) == []
    queue.finish(held)
    queue.finish(queue.held(most=1), state=WAITING, interrupts=[{"id": "i"}])
    assert queue.lane().waiting is not None
    assert found(queue) == []
    queue.finish(queue.held(), replies=["one", "two", "three"])
    assert found(queue) == []
    sending = queue.take(most=1)
    assert sending is not None
    assert found(queue) == []
    assert queue.settle(sending, DeliveryOutcome(DEAD, error="no")) is None
    sending = queue.take()
    assert sending is not None
    queue.settle(sending, DeliveryOutcome(SENT))
    assert found(queue) == []


def test_a_message_that_is_gone_is_found(queue: Queue) -> None:
    for _ in range(6):
        queue.accept(mode="enqueue")
    queue.finish(queue.held(most=1))
    commit(queue, Delete(INBOX, (1,)))
    assert found(queue) == [], "what is over may be forgotten"
    commit(queue, Delete(INBOX, (3,)))
    assert found(queue) == ["the inbox counts message 3, not stored; what comes after waits for it"]
    commit(queue, *(Delete(INBOX, (n,)) for n in (2, 4, 5)))
    assert found(queue) == [
        "the inbox counts message 2, 3, 4 and 1 more, not stored; what comes after waits for it"
    ]


def test_messages_that_no_inbox_counts_are_found(queue: Queue) -> None:
    queue.accept()
    queue.accept()
    commit(queue, changed(queue, LANE, ("inbox",), last=1))
    assert found(queue) == ["the inbox counts to 1, and beyond that is stored message 2"]
    commit(queue, Delete(LANE, ("inbox",)))
    assert found(queue) == ["the inbox counts to 0, and beyond that is stored message 1, 2"]


def test_a_queue_that_nobody_would_look_at_is_found(queue: Queue) -> None:
    queue.accept()
    commit(queue, changed(queue, LANE, ("inbox",), ready_at=None, due_at=None))
    assert found(queue) == ["the inbox has something to do, and no time at which it is due"]


def test_an_open_run_that_is_gone_is_found(queue: Queue) -> None:
    queue.accept()
    run = queue.held().run
    commit(queue, Delete(RUN, (run.id,), run.version))
    assert found(queue) == [f"the inbox has run {run.id} open, which is not stored"]


def test_a_run_that_the_inbox_takes_for_something_else_is_found(queue: Queue) -> None:
    queue.accept()
    run = queue.held().run
    commit(queue, changed(queue, RUN, (run.id,), state="done"))
    assert found(queue) == [f"the inbox has run {run.id} open, which is done"]


def test_an_open_run_that_no_inbox_knows_is_found(queue: Queue) -> None:
    queue.accept()
    held = queue.held()
    queue.finish(held)
    commit(queue, changed(queue, RUN, (held.run.id,), state="open"))
    assert found(queue) == [f"run {held.run.id} is open, and the inbox does not have it: no worker ends it"]
    commit(queue, Delete(INBOX, (1,)))
    assert f"the open run {held.run.id} took message 1, not stored" in found(queue)


def test_a_question_whose_run_is_gone_is_found(queue: Queue) -> None:
    queue.accept()
    held = queue.held()
    queue.finish(held, state=WAITING, interrupts=[])
    commit(queue, changed(queue, RUN, (held.run.id,), state="failed"))
    assert found(queue) == [], "it may have left a question"
    commit(queue, changed(queue, RUN, (held.run.id,), state="open"))
    assert f"the inbox has run {held.run.id} waiting for an answer, which is open" in found(queue)
    ((record,),) = queue.memory.perform(Fetch(HERE, (Get(RUN, (held.run.id,)),)))
    commit(queue, Delete(RUN, (held.run.id,), record.version))
    assert found(queue) == [f"the inbox has run {held.run.id} waiting for an answer, which is not stored"]


def test_an_epoch_that_is_held_for_another_run_is_found(queue: Queue) -> None:
    queue.accept()
    held = queue.held()
    commit(queue, Put(EPOCH, (), {"open_run": None}, expect=held.epoch, version=held.epoch + 1))
    assert found(queue) == [f"the epoch is held for run None, and the inbox has {held.run.id} open"]


def test_a_reply_that_is_gone_is_found(queue: Queue) -> None:
    queue.replied("one", "two")
    ((reply,),) = queue.memory.perform(Fetch(HERE, (Get(OUTBOX, (1,)),)))
    commit(queue, Delete(OUTBOX, (1,), reply.version))
    assert found(queue) == ["the outbox counts reply 1, not stored; what comes after waits for it"]


def test_what_does_not_open_is_found(queue: Queue) -> None:
    queue.accept()
    queue.accept()
    ((record,),) = queue.memory.perform(Fetch(HERE, (Get(INBOX, (1,)),)))
    commit(queue, Put(INBOX, (1,), record.fields, b"{", expect=record.version))
    assert found(queue) == ["message 1 cannot be read: Corrupt"]


def test_a_queue_that_moves_while_it_is_read_is_read_again(queue: Queue) -> None:
    """The lanes are read before the messages: a message of the time between is not damage."""
    queue.accept()
    moved: list[int] = []

    def between(effect: Effect[Any]) -> None:
        if isinstance(effect, Fetch) and effect.items[0] == Range(
            INBOX, limit=64, bodies=False, verify=False
        ):
            moved.append(queue.accept().seq)

    assert queue.run(check_queue(HERE), between) != []
    with pytest.raises(Contention):
        queue.run(check(HERE, Digester()), between)
    assert len(moved) > 3
    assert queue.run(check(HERE, Digester())) == []


def test_a_repair_leaves_a_queue_as_it_is(queue: Queue) -> None:
    queue.accept()
    commit(queue, Delete(INBOX, (1,)))
    repaired = queue.run(repair(HERE, Digester(), Budget(1000, 1 << 20)))
    assert repaired.fixed == ()
    assert [finding.kind for finding in repaired.left] == [Damage.QUEUE]
    assert queue.memory.perform(FindDue(None, until=queue.now + 1)) != ()
