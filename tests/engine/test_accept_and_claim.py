"""A message that is accepted and claimed by one commit, beside the two commits of other messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.engine import accept_and_claim, subscribers
from perdure.engine.accept_and_claim import Begun
from perdure.engine.inbox import Accept
from perdure.engine.runs import Claim, RememberedInbox, closed_epoch
from perdure.model.messages import Message, dedupe_digest
from perdure.model.ops import Commit
from perdure.model.program import Effect
from perdure.model.queue import IN, Debounce, Lane
from perdure.model.records import DEDUPE, EPOCH, INBOX, LANE, RUN
from tests.engine.queues import HERE, TTL, Queue


def begin(
    queue: Queue,
    known: RememberedInbox,
    *,
    key: str = "",
    between: Callable[[Effect[Any]], None] | None = None,
    graph: str = "g",
) -> Begun:
    message = Message("new", "hello", graph, dedupe=dedupe_digest(key) if key else b"")
    accept = Accept(HERE, message, queue.now, Debounce(), "enqueue", 100, queue.fresh)
    claim = Claim(HERE, "w", ("g",), queue.now, TTL, 100, queue.fresh)
    planned = accept_and_claim.plan(accept, claim, known)
    begun: Begun = queue.run(accept_and_claim.begin(accept, planned, known), between)
    return begun


NEW = RememberedInbox(Lane(IN), 0)


def idle(queue: Queue) -> RememberedInbox:
    """A thread that has had a run."""
    queue.accept()
    held = queue.held()
    return RememberedInbox(queue.finish(held), closed_epoch(held.epoch))


def test_one_commit_stores_what_an_acceptance_and_a_claim_store() -> None:
    one, two = Queue(), Queue()
    commits: list[Effect[Any]] = []
    begun = begin(one, NEW, key="k", between=commits.append)
    assert begun.held is not None
    assert [type(effect) for effect in commits] == [Commit]
    accepted = two.accept(key="k", mode="enqueue")
    two.held(known=RememberedInbox(accepted.lane or Lane(IN), 0))
    for kind in (INBOX, RUN, DEDUPE, LANE, EPOCH):
        ours, theirs = one.rows(kind), two.rows(kind)
        assert len(ours) == len(theirs) == 1
        different = {"id", "run_id", "open_run", "epoch"}
        shown = [{n: v for n, v in row.fields.items() if n not in different} for row in (ours[0], theirs[0])]
        assert shown[0] == shown[1], kind
    assert (begun.held.run.first, begun.held.run.last) == (begun.accepted.seq, begun.accepted.seq) == (1, 1)
    assert one.lane() == begun.held.lane
    assert one.claim("another") is None
    one.finish(begun.held)
    assert one.lane().due_at is None


def test_a_thread_that_has_had_runs_goes_on_with_its_numbers_and_epochs() -> None:
    queue = Queue()
    known = idle(queue)
    begun = begin(queue, known)
    assert begun.held is not None
    assert begun.accepted.seq == 2
    assert begun.held.epoch > (known.epoch or 0)
    queue.now += TTL
    later = queue.held("another")
    assert later.run.id == begun.held.run.id == "new"
    assert (later.run.attempts, later.epoch > begun.held.epoch) == (2, True)


def accepted_by_another(queue: Queue) -> None:
    queue.accept("other")


def claimed_by_another(queue: Queue) -> None:
    queue.accept("other")
    queue.held("another")


def followed_by_another(queue: Queue) -> None:
    queue.run(subscribers.note(HERE, queue.now + 1000, queue.fresh))


@pytest.mark.parametrize("other", [accepted_by_another, claimed_by_another, followed_by_another])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_thread_that_is_not_as_it_is_remembered_gets_the_message_and_no_claim(
    other: Callable[[Queue], None], is_new: bool
) -> None:
    queue = Queue()
    known = NEW if is_new else idle(queue)
    before = len(queue.rows(INBOX))
    others: list[None] = []

    def between(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and not others:
            others.append(None)
            other(queue)

    begun = begin(queue, known, key="k", between=between)
    assert begun.held is None
    assert not begun.accepted.is_duplicate
    by_another = 0 if other is followed_by_another else 1
    assert begun.accepted.seq == before + by_another + 1
    assert len(queue.rows(INBOX)) == before + by_another + 1
    assert begun.accepted.lane == queue.lane()


def test_a_message_that_is_sent_again_is_not_claimed() -> None:
    queue = Queue()
    first = begin(queue, NEW, key="k")
    assert first.held is not None
    known = RememberedInbox(queue.finish(first.held), closed_epoch(first.held.epoch))
    again = begin(queue, known, key="k")
    assert again.held is None
    assert (again.accepted.seq, again.accepted.is_duplicate) == (1, True)
    assert queue.lane() == known.lane


def test_only_what_is_due_at_once_in_an_idle_thread_may_be_claimed_as_it_is_stored() -> None:
    queue = Queue()
    known = idle(queue)

    def may(
        known: RememberedInbox | None = known, mode: Any = "enqueue", graph: str = "g", quiet: int = 0
    ) -> bool:
        message = Message("new", "hello", graph, mode=mode)
        accept = Accept(HERE, message, queue.now, Debounce(quiet, quiet), "enqueue", 100, queue.fresh)
        return accept_and_claim.may_begin(accept, known, ("g",))

    assert may()
    assert may(NEW)
    assert not may(None)
    assert not may(mode="answer")
    assert not may(graph="other")
    assert not may(quiet=1)
    assert not may(known._replace(epoch=None))
    waiting = queue.accept().lane
    assert waiting is not None
    assert not may(known._replace(lane=waiting))
    assert not may(known._replace(lane=queue.held().lane))
