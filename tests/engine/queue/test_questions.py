"""A question is answered once, or closed by a run that goes past it, and its closing reply is sent then."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.engine.queue import inbox, questions, runs, scheduled
from perdure.engine.queue.runs import Ending
from perdure.engine.transact import Budget
from perdure.errors import Corrupt, NotWaiting
from perdure.model.ops import Commit, Put
from perdure.model.records import OUTBOX, RUN
from perdure.model.runs.messages import DONE, FAILED, INTERRUPTED, ROLLED_BACK, WAITING, Message, Reply
from tests.engine.queue.queues import BUDGET, HERE, Queue


@pytest.fixture
def queue() -> Queue:
    return Queue()


ASKED: dict[str, Any] = {"interrupts": [{"id": "q1", "value": "which?"}]}
INHERITED = {"webhook": "there", "notice_if_closed": True}


def asking(queue: Queue, *, leaves: bool = True) -> str:
    """A run that waits for an answer; the id of the run."""
    queue.accept(channel="post")
    held = queue.held()
    note = questions.with_closing_reply(ASKED, {"closed": True}, INHERITED) if leaves else ASKED
    queue.finish(held, WAITING, **note)
    return held.run.id


def replies(queue: Queue) -> list[tuple[str, str, Any]]:
    return [(one.run_id, one.channel, one.payload) for one in map(Reply.read, queue.rows(OUTBOX))]


def test_the_run_that_goes_past_a_question_stores_its_reply_with_its_own_end(queue: Queue) -> None:
    run_id = asking(queue)
    commits: list[Commit] = []

    def seen(effect: Any) -> None:
        if isinstance(effect, Commit):
            commits.append(effect)

    queue.accept({"input": 2})
    assert replies(queue) == [], "it may be withdrawn, or fail"
    held = queue.held()
    queue.run(runs.finish(held, Ending(DONE, {}), queue.now, queue.fresh, BUDGET), seen)
    assert replies(queue) == [(run_id, "post", {"closed": True})]
    (commit,) = commits
    assert {op.kind.name for op in commit.ops if isinstance(op, Put)} >= {"run", "outbox", "lane"}
    queue.accept({"input": 3})
    queue.finish(queue.held())
    assert len(replies(queue)) == 1, "it is closed already"
    sending = queue.take()
    assert sending is not None
    assert sending.reply.payload == {"closed": True}


def test_a_run_that_leaves_no_reply_sends_none(queue: Queue) -> None:
    asking(queue, leaves=False)
    queue.accept({"input": 2})
    assert replies(queue) == []


def test_an_answer_may_be_replaced_before_a_worker_has_passed_over_the_one_that_was_withdrawn(
    queue: Queue,
) -> None:
    asking(queue)
    first = queue.accept({"resume": 1}, mode="answer")
    with pytest.raises(NotWaiting):
        queue.accept({"resume": 2}, mode="answer")
    queue.run(inbox.withdraw(HERE, first.id, "interrupt", queue.now))
    queue.accept({"resume": 3}, mode="answer")
    held = queue.held()
    assert held.messages[0].is_withdrawn
    queue.finish(held, INTERRUPTED, begun=False)
    assert queue.held().messages[0].payload == {"resume": 3}


def test_an_answer_sends_none_and_inherits_what_the_question_left(queue: Queue) -> None:
    asking(queue)
    queue.accept({"resume": 1}, mode="answer")
    held = queue.held()
    assert replies(queue) == []
    assert held.run.channel == "post"
    assert {name: held.messages[0].options[name] for name in INHERITED} == INHERITED
    with pytest.raises(NotWaiting):
        queue.accept({"resume": 2}, mode="answer")


def test_an_answer_with_a_channel_of_its_own_inherits_nothing(queue: Queue) -> None:
    asking(queue)
    queue.accept({"resume": 1}, mode="answer", channel="other")
    assert "webhook" not in queue.held().messages[0].options


@pytest.mark.parametrize("state", [FAILED, INTERRUPTED, ROLLED_BACK])
def test_a_run_that_leaves_the_question_sends_none(queue: Queue, state: str) -> None:
    """A stop without an interrupt, as this thread has no checkpoint."""
    queue.accept(channel="post")
    note = questions.with_closing_reply({"interrupts": []}, {"closed": True}, INHERITED)
    held = queue.held()
    queue.finish(held, WAITING, **note)
    queue.accept({"input": 2})
    queue.finish(queue.held(), state)
    assert replies(queue) == []
    assert queue.lane().waiting == held.run.id


def test_a_postponed_message_closes_the_question_when_its_run_ends(queue: Queue) -> None:
    run_id = asking(queue)
    message = Message("later", {"input": 2}, "g", "", "enqueue")
    queue.run(scheduled.postpone(HERE, message, queue.now + 5, 10, queue.fresh, None))
    assert replies(queue) == []
    queue.now += 10
    queue.run(scheduled.bring(HERE, queue.now, Budget(BUDGET, 1 << 20), queue.fresh))
    assert replies(queue) == []
    queue.finish(queue.held())
    assert replies(queue) == [(run_id, "post", {"closed": True})]


def test_a_message_is_accepted_although_the_run_that_asked_is_damaged(queue: Queue) -> None:
    asking(queue)
    (row,) = queue.rows(RUN)
    queue.memory.perform(Commit(HERE, (Put(RUN, row.key, row.fields, b"{", version=row.version + 1),)))
    accepted = queue.accept({"input": 2})
    assert (accepted.seq, accepted.is_duplicate) == (2, False)
    with pytest.raises(Corrupt):
        queue.held()
    assert replies(queue) == []
