"""The queue's use cases over the memory driver, with a clock that the test holds.

Covers perdure.engine.queue.claims, perdure.engine.queue.runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perdure.engine.queue import claims, effect_journal, inbox, runs
from perdure.engine.queue.claims import RememberedInbox
from perdure.engine.queue.inbox import Accepted
from perdure.engine.queue.outbox import DeliveryOutcome
from perdure.engine.queue.runs import Ending, HeldRun
from perdure.engine.retention.thread_removal import delete_thread
from perdure.errors import Corrupt, Fenced, NotFound, NotWaiting, QueueFull, RunInProgress, TooLarge
from perdure.model.ops import Check, Commit, Delete, FindDue, Put
from perdure.model.program import Effect
from perdure.model.records import (
    DEDUPE,
    EFFECT,
    EPOCH,
    HEAD,
    INBOX,
    LANE,
    OUTBOX,
    RUN,
)
from perdure.model.runs.messages import ANSWERS, DEAD, DONE, FAILED, INTERRUPTED, SENT, WAITING, Run
from perdure.model.runs.queue import IN, Lane
from tests.engine.queue.queues import BUDGET, HERE, TTL, Queue


@pytest.fixture
def queue() -> Queue:
    return Queue()


# ---------------------------------------------------------------- accepting


def test_numbers_are_given_without_a_gap(queue: Queue) -> None:
    known = None
    for number in range(1, 6):
        accepted = queue.accept(known=known)
        assert (accepted.seq, accepted.is_duplicate) == (number, False)
        known = accepted.lane
    assert [row.key for row in queue.rows(INBOX)] == [(n,) for n in range(1, 6)]
    assert queue.lane() == known


@pytest.mark.parametrize("knows", [False, True])
def test_a_key_is_accepted_once(queue: Queue, knows: bool) -> None:
    first = queue.accept(key="k")
    again = queue.accept("changed", key="k", known=first.lane if knows else None)
    assert (again.seq, again.id, again.is_duplicate) == (1, first.id, True)
    assert len(queue.rows(INBOX)) == len(queue.rows(DEDUPE)) == 1


def test_of_two_senders_at_once_one_is_first(queue: Queue) -> None:
    others: list[Accepted] = []

    def other(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and not others:
            others.append(queue.accept("other", key="k"))

    mine = queue.accept("mine", key="k", between=other)
    assert (mine.seq, mine.id, mine.is_duplicate) == (1, others[0].id, True)
    assert len(queue.rows(INBOX)) == 1


def test_what_is_remembered_wrongly_refuses_nobody(queue: Queue) -> None:
    known = Lane(IN, 5, last=200, run_id="gone")
    with_room = queue.accept(known=known, most=100, strategy="reject")
    assert with_room.seq == 1
    stale = Lane(IN, 5, last=3)
    assert queue.accept(known=stale).seq == 2


def test_a_full_queue_and_a_busy_thread(queue: Queue) -> None:
    for n in range(3):
        queue.accept(key=f"k{n}")
    before = queue.lane()
    with pytest.raises(QueueFull):
        queue.accept(most=3)
    with pytest.raises(RunInProgress):
        queue.accept(strategy="reject")
    assert queue.accept(key="k1", most=3, strategy="reject").seq == 2, "it was accepted before"
    assert queue.lane() == before
    held = queue.held()
    with pytest.raises(RunInProgress):
        queue.accept(strategy="reject")
    assert queue.accept(most=1).seq == 4, "those that a run has taken wait no more"
    queue.finish(held)


def test_debounce_is_the_databases_to_tell(queue: Queue) -> None:
    queue.accept("one", quiet=100, longest=250)
    queue.now += 99
    assert queue.claim() is None
    queue.accept("two", quiet=100, longest=250)
    queue.now += 99
    assert queue.claim() is None
    queue.accept("three", quiet=100, longest=250)
    assert queue.memory.perform(FindDue(None, until=1249)) == ()
    queue.now = 1249
    assert queue.claim() is None
    queue.now = 1250
    (found,) = queue.memory.perform(FindDue("acme", until=queue.now))
    assert found.partition == HERE
    assert [m.payload for m in queue.held().messages] == ["one", "two", "three"]


# ---------------------------------------------------------------- holding


def test_a_run_takes_what_goes_together(queue: Queue) -> None:
    for said, mode, graph, channel in (
        ("a", "coalesce", "g", "x"),
        ("b", "coalesce", "g", "x"),
        ("c", "coalesce", "g", "y"),
        ("d", "coalesce", "h", "y"),
        ("e", "enqueue", "h", "y"),
        ("f", "coalesce", "h", "y"),
    ):
        queue.accept(said, mode, graph=graph, channel=channel)  # type: ignore[arg-type]
    taken = []
    while (held := queue.claim(graphs=("g", "h"))) is not None:
        taken.append("".join(m.payload for m in held.messages))
        assert held.run.id == held.messages[0].id
        queue.finish(held)
    assert taken == ["ab", "c", "d", "e", "f"]
    assert queue.lane().due_at is None


def test_there_is_one_holder(queue: Queue) -> None:
    queue.accept()
    held = queue.held("one")
    assert queue.claim("two") is None
    queue.now += TTL - 1
    held = queue.run(runs.renew(held, queue.now, TTL))
    queue.now += TTL - 1
    assert queue.claim("two") is None
    queue.now += 1
    other = queue.held("two")
    assert (other.run.id, other.run.attempts, other.epoch > held.epoch) == (held.run.id, 2, True)
    for program in (
        runs.renew(held, queue.now, TTL),
        runs.postpone(held, queue.now, {}, queue.now),
        runs.finish(held, Ending(DONE, {}, ("late",)), queue.now, queue.fresh, BUDGET),
        runs.finish(held, Ending(DONE, {}), queue.now, queue.fresh, BUDGET),
        effect_journal.note(HERE, held.run.id, "pay", 0, b"{}", held.epoch),
    ):
        before = [queue.rows(kind) for kind in (LANE, RUN, OUTBOX, EPOCH, EFFECT)]
        with pytest.raises(Fenced):
            queue.run(program)
        assert [queue.rows(kind) for kind in (LANE, RUN, OUTBOX, EPOCH, EFFECT)] == before
    queue.finish(other)


def test_of_two_claims_at_once_one_holds(queue: Queue) -> None:
    queue.accept()
    others: list[HeldRun | None] = []

    def other(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and not others:
            others.append(queue.claim("other"))

    assert queue.claim("mine", between=other) is None
    (held,) = others
    assert held is not None
    assert len(queue.rows(RUN)) == 1


def test_a_message_that_comes_while_a_run_is_claimed_is_not_lost(queue: Queue) -> None:
    queue.accept("one")
    come: list[Any] = []

    def other(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and not come:
            come.append(queue.accept("two"))

    held = queue.held(between=other)
    assert [m.payload for m in held.messages] == ["one", "two"]
    queue.accept("three")
    lane = queue.finish(held)
    assert lane.is_due(queue.now)
    assert [m.payload for m in queue.held(known=RememberedInbox(lane)).messages] == ["three"]


@pytest.mark.parametrize("guess", ["right", "lane", "none", "old", "stale epoch", "fewer", "wrong"])
def test_what_is_remembered_of_a_queue_changes_nothing_that_a_run_takes(queue: Queue, guess: str) -> None:
    accepted = [queue.accept(str(n)) for n in range(3)]
    messages = tuple(a.message for a in accepted if a.message is not None)
    first = queue.held(most=2)
    queue.finish(first)
    epoch, lane, old = runs.compute_closed_epoch(first.epoch), queue.lane(), accepted[2].lane
    assert old is not None
    known = {
        "right": RememberedInbox(lane, epoch, messages[2:]),
        "lane": RememberedInbox(lane),
        "none": None,
        "old": RememberedInbox(old, 0, messages),
        "stale epoch": RememberedInbox(lane, first.epoch, messages[2:]),
        "fewer": RememberedInbox(lane, epoch),
        "wrong": RememberedInbox(Lane(IN, 3, last=9, bound=8, ready_at=0), epoch, messages[:1]),
    }[guess]
    held = queue.held(known=known)
    assert [m.payload for m in held.messages] == ["2"]
    assert (held.run.first, held.run.last, held.epoch > epoch) == (3, 3, True)
    assert queue.finish(held).due_at is None


def test_whoever_takes_over_has_all_the_messages_of_the_run(queue: Queue) -> None:
    """Also a worker that takes fewer at once than the one before."""
    for n in range(5):
        queue.accept(str(n))
    assert len(queue.held("one", most=5).messages) == 5
    queue.now += TTL
    assert [m.payload for m in queue.held("two", most=2).messages] == list("01234")


def test_a_run_of_another_graph_is_left_alone(queue: Queue) -> None:
    queue.accept(graph="other")
    assert queue.claim() == claims.Unserved("other")  # type: ignore[comparison-overlap]
    assert queue.rows(RUN) == queue.rows(EPOCH) == ()
    assert queue.held(graphs=("other",)).run.graph == "other"
    queue.now += TTL
    assert queue.claim() == claims.Unserved("other")  # type: ignore[comparison-overlap]


def test_a_run_that_is_handed_over_was_not_attempted(queue: Queue) -> None:
    queue.accept()
    held = queue.held()
    queue.run(runs.postpone(held, queue.now, {}, queue.now, counts=False))
    again = queue.held()
    assert again.run.attempts == 1
    assert again.epoch > held.epoch
    queue.run(runs.postpone(again, queue.now + 50, {"error": "boom"}, queue.now))
    assert queue.claim() is None
    queue.now += 50
    last = queue.held()
    assert (last.run.attempts, last.run.note) == (2, {"error": "boom"})
    with pytest.raises(Fenced):
        queue.run(runs.postpone(held, queue.now, {}, queue.now))


def test_a_run_has_the_version_of_its_latest_attempt(queue: Queue) -> None:
    queue.accept()
    held = queue.held(version="1")
    assert held.run.graph_version == "1"
    queue.run(runs.postpone(held, queue.now, {"error": "boom"}, queue.now))
    assert [Run.read(row).note for row in queue.rows(RUN)] == [{"error": "boom", "version": "1"}]
    held = queue.held(version="2")
    assert held.run.note == {"error": "boom", "version": "2"}
    queue.run(runs.excuse(held))
    queue.finish(held, state=FAILED, error="bang")
    assert [Run.read(row).note for row in queue.rows(RUN)] == [{"error": "bang", "version": "2"}]


def test_who_only_ends_a_run_leaves_its_version(queue: Queue) -> None:
    queue.accept()
    held = queue.held(version="1")
    queue.run(runs.stop(HERE, held.run.id, "interrupt", queue.now))
    queue.now += TTL
    queue.finish(queue.held(version="2"), state=INTERRUPTED)
    (row,) = queue.rows(RUN)
    assert Run.read(row).graph_version == "1"
    queue.accept()
    queue.finish(queue.held())
    assert Run.read(queue.rows(RUN)[-1]).graph_version is None


def test_a_run_ends_in_one_commit(queue: Queue) -> None:
    queue.accept(channel="post")
    held = queue.held()
    commits: list[Commit] = []

    def note(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit):
            commits.append(effect)

    ending = Ending(DONE, {}, ("a", "b"))
    queue.run(runs.finish(held, ending, queue.now, queue.fresh, BUDGET), note)
    (commit,) = commits
    written = {op.kind.name for op in commit.ops if not isinstance(op, Check)}
    assert written == {"epoch", "lane", "run", "outbox"}
    (epoch,) = queue.rows(EPOCH)
    assert (epoch.version, epoch.fields["open_run"]) == (runs.compute_closed_epoch(held.epoch), None)
    assert [row.fields["state"] for row in queue.rows(RUN)] == [DONE]


def test_more_replies_than_a_commit_takes_are_refused(queue: Queue) -> None:
    queue.accept(channel="post")
    with pytest.raises(TooLarge, match="20 replies"):
        queue.run(runs.finish(queue.held(), Ending(DONE, {}, ["x"] * 20), queue.now, queue.fresh, 20))
    assert queue.rows(OUTBOX) == ()


def test_a_stop_is_for_one_run(queue: Queue) -> None:
    queue.accept()
    held = queue.held()
    assert not queue.run(runs.stop(HERE, "another", "interrupt", queue.now))
    assert queue.run(runs.stop(HERE, held.run.id, "rollback", queue.now))
    assert queue.run(runs.stop(HERE, held.run.id, "interrupt", queue.now))
    assert queue.run(runs.renew(held, queue.now, TTL)).lane.stop == "rollback", "the first one counts"
    assert queue.finish(held).stop is None
    assert not queue.run(runs.stop(HERE, held.run.id, "rollback", queue.now))


def test_a_run_that_is_to_end_is_known_as_such_until_it_has(queue: Queue) -> None:
    queue.accept()
    held = queue.held()
    queue.accept()
    queue.run(runs.stop(HERE, held.run.id, "interrupt", queue.now))
    found = queue.run(inbox.find(HERE, held.run.id))
    assert found is not None
    assert (found.stop, found.is_over) == ("interrupt", False)
    assert [one.stop for one in queue.run(inbox.read_latest(HERE, 9))] == [None, "interrupt"]
    queue.finish(held)
    found = queue.run(inbox.find(HERE, held.run.id))
    assert found is not None
    assert (found.stop, found.is_over) == (None, True)


def test_a_message_may_end_a_run(queue: Queue) -> None:
    queue.accept(strategy="interrupt")
    assert queue.lane().stop is None, "there was no run"
    held = queue.held()
    accepted = queue.accept(strategy="rollback", known=held.lane)
    assert accepted.lane is not None
    assert accepted.lane.stop == "rollback"
    queue.run(runs.postpone(held, queue.now + 1000, {}, queue.now))
    queue.accept(strategy="interrupt")
    assert queue.claim() is not None, "nobody waits for the pause of a run that is to end"


def test_a_queue_that_lost_a_message_says_so(queue: Queue) -> None:
    queue.accept()
    queue.memory.perform(Commit(HERE, (Delete(INBOX, (1,)),)))
    with pytest.raises(Corrupt, match="message 1"):
        queue.claim()


def test_where_a_message_stands(queue: Queue) -> None:
    for n in range(4):
        queue.accept(str(n), "enqueue" if n == 2 else "coalesce")
    with pytest.raises(NotFound):
        queue.run(inbox.read_standing(HERE, 5, "id5"))
    assert queue.run(inbox.read_standing(HERE, 1, "id1")).run is None
    first = queue.held()
    queue.finish(first)
    second = queue.held()
    stand = [queue.run(inbox.read_standing(HERE, n, f"id{n}")).run for n in range(1, 5)]
    assert [r.id if r else None for r in stand] == [first.run.id, first.run.id, second.run.id, None]
    newest = queue.run(inbox.read_latest(HERE, 3))
    assert [(s.message.seq, s.run.id if s.run else None) for s in newest] == [
        (4, None),
        (3, second.run.id),
        (2, first.run.id),
    ]


# ---------------------------------------------------------------- answers


def test_one_answer_is_taken(queue: Queue) -> None:
    with pytest.raises(NotWaiting):
        queue.accept("yes", "answer")
    queue.accept("ask")
    queue.finish(queue.held(), WAITING, interrupts=[{"id": "i1"}, {"id": "i2"}])
    with pytest.raises(NotWaiting, match="'i1' and 'i2'"):
        queue.accept("yes", "answer", options={ANSWERS: ["i3"]})
    others: list[Accepted] = []

    def other(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and not others:
            others.append(queue.accept("other", "answer", options={ANSWERS: ["i2"]}))

    with pytest.raises(NotWaiting):
        queue.accept("mine", "answer", between=other, options={ANSWERS: ["i1"]})
    assert [m.payload for m in queue.held().messages] == ["other"]
    assert queue.rows(INBOX)[-1].key == (2,)


def test_a_run_that_begins_ends_the_waiting(queue: Queue) -> None:
    queue.accept("ask")
    queue.finish(queue.held(), WAITING, interrupts=[])
    queue.accept("something else")
    held = queue.held()
    with pytest.raises(NotWaiting):
        queue.accept("yes", "answer")
    queue.finish(held)
    with pytest.raises(NotWaiting):
        queue.accept("yes", "answer")


def test_a_holder_says_nothing_of_a_thread_that_came_after(queue: Queue) -> None:
    queue.accept()
    stale = queue.held("one")
    queue.run(delete_thread(HERE))
    queue.accept("new")
    current = queue.held("two")
    for program in (
        runs.renew(stale, queue.now, TTL),
        runs.finish(stale, Ending(DONE, {}, ("late",)), queue.now, queue.fresh, BUDGET),
        runs.postpone(stale, queue.now, {}, queue.now),
        effect_journal.note(HERE, stale.run.id, "pay", 0, b"{}", stale.epoch),
    ):
        with pytest.raises(Fenced):
            queue.run(program)
    assert queue.finish(current).due_at is None
    assert queue.rows(OUTBOX) == ()


# ---------------------------------------------------------------- side effects and forgetting


def test_a_side_effect_is_noted_once(queue: Queue) -> None:
    queue.accept()
    held = queue.held()
    assert queue.run(effect_journal.recall(HERE, held.run.id, "pay", 0)) is None
    for body in (b'"first"', b'"second"'):
        assert queue.run(effect_journal.note(HERE, held.run.id, "pay", 0, body, held.epoch)) == b'"first"'
    assert queue.run(effect_journal.recall(HERE, held.run.id, "pay", 0)) == b'"first"'


def test_a_later_run_recalls_what_an_earlier_one_noted(queue: Queue) -> None:
    queue.accept()
    first = queue.held()
    queue.run(effect_journal.note(HERE, first.run.id, "pay", 0, b"1", first.epoch))
    queue.finish(first, WAITING)
    queue.accept()
    later = queue.held()
    assert queue.run(effect_journal.recall(HERE, later.run.id, "pay", 0)) == b"1"
    assert queue.run(effect_journal.recall(HERE, later.run.id, "pay", 1)) is None
    assert queue.run(effect_journal.note(HERE, later.run.id, "pay", 0, b"2", later.epoch)) == b"1"


def test_what_is_given_up_is_found(queue: Queue) -> None:
    queue.accept(channel="post")
    held = queue.held()
    queue.finish(held, "failed", ("sorry", "once more"), error="boom")
    sending = queue.take()
    assert sending is not None
    sending = queue.settle(sending, DeliveryOutcome(DEAD, error="blocked"))
    assert sending is not None
    queue.settle(sending, DeliveryOutcome(SENT))
    found = queue.run(inbox.read_failures(HERE))
    assert [r.note for r in found.runs] == [{"error": "boom"}]
    assert [(r.payload, r.error) for r in found.replies] == [("sorry", "blocked")]


def test_a_run_begins_where_the_thread_stands(queue: Queue) -> None:
    queue.memory.perform(Commit(HERE, (Put(HEAD, ("",), {"checkpoint_id": "c9", "seq": 9}, version=1),)))
    queue.accept()
    held = queue.held()
    assert (held.run.base, held.head) == ("c9", "c9")
    queue.now += TTL
    queue.memory.perform(Commit(HERE, (Put(HEAD, ("",), {"checkpoint_id": "d1", "seq": 10}, version=2),)))
    adopted = queue.held()
    assert (adopted.run.base, adopted.head) == ("c9", "d1")
    assert replace(adopted.run, epoch=0, attempts=0, version=0) == replace(
        held.run, epoch=0, attempts=0, version=0, updated_at=queue.now
    )
