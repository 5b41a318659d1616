"""Delivering replies, over the memory driver, with a clock that the test holds."""

from __future__ import annotations

import pytest

from perdure.engine.queue import outbox
from perdure.engine.queue.claims import Unserved
from perdure.engine.queue.outbox import DeliveryOutcome
from perdure.engine.retention.thread_removal import delete_thread
from perdure.errors import Conflict, Fenced, NotFound
from perdure.model.records import (
    OUTBOX,
)
from perdure.model.runs.messages import DEAD, READY, SENT, UNKNOWN
from perdure.model.runs.queue import OUT
from tests.engine.queue.queues import HERE, TTL, Queue


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_replies_go_in_order_and_one_at_a_time(queue: Queue) -> None:
    queue.replied("a", "b")
    queue.replied("c")
    sending = queue.take("one")
    assert sending is not None
    assert queue.take("two") is None
    sent = []
    while sending is not None:
        assert not sending.in_doubt
        assert [r.fields["state"] for r in queue.rows(OUTBOX)].count("sending") == 1
        sent.append((sending.reply.id, sending.reply.payload))
        sending = queue.settle(sending, DeliveryOutcome(SENT, f"p{len(sent)}"))
    assert [text for _, text in sent] == ["a", "b", "c"]
    assert sent[0][0] == "id1:0"
    assert sent[1][0] == "id1:1"
    assert sent[2][0] == "id2:0"
    assert queue.lane(OUT).due_at is None
    assert [r.fields["provider_id"] for r in queue.rows(OUTBOX)] == ["p1", "p2", "p3"]


def test_a_reply_that_pauses_keeps_those_behind_it(queue: Queue) -> None:
    queue.replied("a", "b")
    sending = queue.take()
    assert sending is not None
    assert queue.settle(sending, DeliveryOutcome(READY, error="busy", again_at=queue.now + 50)) is None
    queue.replied("c")
    assert queue.take() is None
    queue.now += 50
    sending = queue.take()
    assert sending is not None
    assert (sending.reply.payload, sending.reply.attempts, sending.in_doubt) == ("a", 2, False)
    for state in (DEAD, UNKNOWN):
        sending = queue.settle(sending, DeliveryOutcome(state, error="no"))
        assert sending is not None
    assert sending.reply.payload == "c"


def test_what_was_being_sent_is_in_doubt(queue: Queue) -> None:
    queue.replied("a", "b")
    gone = queue.take("one")
    assert gone is not None
    queue.now += TTL
    sending = queue.take("two")
    assert sending is not None
    assert (sending.in_doubt, sending.reply.attempts) == (True, 1)
    for program in (
        outbox.record_outcome(gone, DeliveryOutcome(SENT), ("post",), queue.now, TTL),
        outbox.send_again(gone, queue.now, TTL),
    ):
        with pytest.raises(Fenced):
            queue.run(program)
    sending = queue.run(outbox.send_again(sending, queue.now, TTL))
    assert (sending.in_doubt, sending.reply.attempts) == (False, 2)
    assert queue.settle(sending, DeliveryOutcome(SENT)) is not None


def test_a_reply_for_another_senders_channel_is_left_alone(queue: Queue) -> None:
    queue.replied("a")
    assert queue.take(channels=("chat",)) == Unserved("post")  # type: ignore[comparison-overlap]
    assert queue.take(channels=("chat", "post")) is not None


def test_replies_that_come_while_others_are_sent_are_sent_next(queue: Queue) -> None:
    queue.replied("a")
    sending = queue.take()
    assert sending is not None
    queue.replied("b")
    assert queue.settle(sending, DeliveryOutcome(SENT)) is None
    sending = queue.take()
    assert sending is not None
    assert sending.reply.payload == "b"


def test_a_reply_that_was_given_up_is_sent_again_under_its_key(queue: Queue) -> None:
    queue.replied("a", "b")
    sending = queue.take()
    assert sending is not None
    with pytest.raises(Conflict):
        queue.run(outbox.retry(HERE, 1, queue.now))
    sending = queue.settle(sending, DeliveryOutcome(DEAD, error="blocked"))
    assert sending is not None
    again = queue.run(outbox.retry(HERE, 1, queue.now))
    assert (again.id, again.seq, again.state, again.attempts, again.error) == ("id1:0", 3, READY, 0, None)
    with pytest.raises(NotFound):
        queue.run(outbox.retry(HERE, 1, queue.now))
    assert queue.settle(sending, DeliveryOutcome(SENT)) is None
    sending = queue.take()
    assert sending is not None
    assert (sending.reply.id, sending.in_doubt) == ("id1:0", False)


def test_a_reply_that_is_sent_again_does_not_hurry_those_before_it(queue: Queue) -> None:
    queue.replied("a", "b")
    sending = queue.take()
    assert sending is not None
    sending = queue.settle(sending, DeliveryOutcome(DEAD, error="blocked"))
    assert sending is not None
    queue.settle(sending, DeliveryOutcome(READY, error="busy", again_at=queue.now + 50))
    queue.run(outbox.retry(HERE, 1, queue.now))
    assert queue.take() is None


def test_a_sender_says_nothing_of_a_thread_that_came_after(queue: Queue) -> None:
    """The thread was deleted while it sent, and made again; numbers and versions begin anew."""
    queue.replied("old")
    stale = queue.take("one")
    assert stale is not None
    queue.run(delete_thread(HERE))
    queue.replied("new")
    current = queue.take("two")
    assert current is not None
    with pytest.raises(Fenced):
        queue.settle(stale, DeliveryOutcome(SENT, "p-old"))
    assert queue.settle(current, DeliveryOutcome(SENT, "p-new")) is None
    (reply,) = queue.run(outbox.read_replies(HERE, 10))
    assert (reply.payload, reply.provider_id) == ("new", "p-new")
