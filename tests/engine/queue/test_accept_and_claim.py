"""A message that is accepted and claimed by one commit, beside the two commits of other messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.engine.queue import accept_and_claim, subscribers
from perdure.engine.queue.accept_and_claim import NEW, Begun
from perdure.engine.queue.claims import Claim, RememberedInbox
from perdure.engine.queue.inbox import Accept
from perdure.engine.queue.runs import compute_closed_epoch
from perdure.model.ops import Commit, Fetch, Refused
from perdure.model.program import Effect, ask
from perdure.model.records import DEDUPE, EPOCH, INBOX, LANE, RUN, Record
from perdure.model.runs.messages import Message, dedupe_digest
from perdure.model.runs.queue import IN, Debounce, Lane
from tests.engine.queue.queues import HERE, TTL, Queue


def begin(
    queue: Queue,
    known: RememberedInbox,
    *,
    key: str = "",
    between: Callable[[Effect[Any]], None] | None = None,
) -> Begun | Refused:
    accept = message(queue, key)
    claim = Claim(HERE, "w", ("g",), queue.now, TTL, 100, queue.fresh)
    planned = accept_and_claim.plan(accept, claim, known)
    begun: Begun | Refused = queue.run(accept_and_claim.begin(accept, planned, known), between)
    return begun


def message(queue: Queue, key: str = "") -> Accept:
    new = Message("new", "hello", "g", dedupe=dedupe_digest(key) if key else b"")
    return Accept(HERE, new, queue.now, Debounce(), "enqueue", 100, queue.fresh)


def read(queue: Queue) -> RememberedInbox:
    """The inbox as it is read when a claim was refused."""
    found: tuple[tuple[Record, ...], ...] = queue.run(ask(Fetch(HERE, accept_and_claim.GETS)))
    return accept_and_claim.read(found)


def idle(queue: Queue) -> RememberedInbox:
    """A thread that has had a run."""
    queue.accept()
    held = queue.held()
    return RememberedInbox(queue.finish(held), compute_closed_epoch(held.epoch))


def test_one_commit_stores_what_an_acceptance_and_a_claim_store() -> None:
    one, two = Queue(), Queue()
    commits: list[Effect[Any]] = []
    begun = begin(one, NEW, key="k", between=commits.append)
    assert isinstance(begun, Begun)
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
    assert isinstance(begun, Begun)
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
def test_in_a_thread_that_is_not_as_it_is_remembered_nothing_is_stored(
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

    refused = begin(queue, known, key="k", between=between)
    assert isinstance(refused, Refused)
    is_followed = other is followed_by_another
    assert accept_and_claim.is_of_inbox(refused) is not is_followed
    assert len(queue.rows(INBOX)) == before + (not is_followed)
    assert not queue.rows(DEDUPE)
    # What is read then is enough to store it without a claim.
    accepted = queue.run(message(queue, "k").store(read(queue).lane))
    assert (accepted.seq, accepted.is_duplicate) == (before + (not is_followed) + 1, False)
    assert accepted.lane == queue.lane()


def test_an_idle_thread_that_was_taken_for_a_new_one_is_claimed_as_it_is_read_then() -> None:
    queue = Queue()
    known = idle(queue)
    refused = begin(queue, NEW)
    assert isinstance(refused, Refused)
    assert accept_and_claim.is_of_inbox(refused)
    assert read(queue) == known
    begun = begin(queue, read(queue))
    assert isinstance(begun, Begun)
    assert begun.accepted.seq == 2


def test_the_inbox_of_a_thread_that_does_not_exist_is_read_as_a_new_one() -> None:
    assert read(Queue()) == NEW


def test_a_message_that_is_sent_again_is_not_claimed() -> None:
    queue = Queue()
    first = begin(queue, NEW, key="k")
    assert isinstance(first, Begun)
    known = RememberedInbox(queue.finish(first.held), compute_closed_epoch(first.held.epoch))
    refused = begin(queue, known, key="k")
    assert isinstance(refused, Refused)
    assert not accept_and_claim.is_of_inbox(refused)
    again = queue.run(message(queue, "k").store(None))
    assert (again.seq, again.is_duplicate) == (1, True)
    assert queue.lane() == known.lane


def test_only_what_is_due_at_once_in_an_idle_thread_may_be_claimed_as_it_is_stored() -> None:
    queue = Queue()
    known = idle(queue)

    def may(known: RememberedInbox = known, mode: Any = "enqueue", graph: str = "g", quiet: int = 0) -> bool:
        message = Message("new", "hello", graph, mode=mode)
        accept = Accept(HERE, message, queue.now, Debounce(quiet, quiet), "enqueue", 100, queue.fresh)
        return accept_and_claim.may_begin(accept, known, ("g",))

    assert may()
    assert may(NEW)
    assert not may(mode="answer")
    assert not may(graph="other")
    assert not may(quiet=1)
    assert not may(known._replace(epoch=None))
    waiting = queue.accept().lane
    assert waiting is not None
    assert not may(known._replace(lane=waiting))
    assert not may(known._replace(lane=queue.held().lane))
