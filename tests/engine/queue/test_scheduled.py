"""Postponed messages over the memory driver: their keys, their way into the inbox, and taking them back."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.engine.checks.fsck import check
from perdure.engine.checks.fsck_report import Damage, Finding
from perdure.engine.queue import inbox, scheduled
from perdure.engine.queue.inbox import Accepted
from perdure.engine.queue.scheduled import Brought
from perdure.engine.transact import ATTEMPTS, Budget
from perdure.errors import Contention
from perdure.model.ops import Commit, Committed, FindDue, Put
from perdure.model.program import Effect
from perdure.model.records import DOCUMENT, INBOX, RUN
from perdure.model.runs.messages import MESSAGE_MAX, WAITING, Message, dedupe_digest
from perdure.model.runs.queue import IN, LATER, ROLLBACK
from perdure.model.values.chunks import Digester
from tests.engine.queue.queues import HERE, Queue

BUDGET = Budget(1000, 1 << 20)


@pytest.fixture
def queue() -> Queue:
    return Queue()


def postpone(queue: Queue, name: str, due: int, *, key: str = "", said: Any = "later") -> Accepted:
    dedupe = dedupe_digest(key) if key else b""
    message = Message(name, said, "g", dedupe=dedupe)
    accepted: Accepted = queue.run(scheduled.postpone(HERE, message, due, 1000, queue.fresh, None))
    return accepted


def bring(queue: Queue, budget: Budget = BUDGET) -> Brought:
    brought: Brought = queue.run(scheduled.bring(HERE, queue.now, budget, queue.fresh))
    return brought


def entered(queue: Queue) -> list[str]:
    return [Message.read(row).id for row in queue.rows(INBOX)]


def test_a_key_is_accepted_once_whichever_comes_first(queue: Queue) -> None:
    late = postpone(queue, "late", 2000, key="k")
    assert (late.seq, late.is_duplicate) == (0, False)
    now = queue.accept(key="k")
    assert (now.seq, now.id, now.is_duplicate) == (0, "late", True)
    again = postpone(queue, "another", 9000, key="k")
    assert (again.id, again.is_duplicate) == ("late", True)
    queue.now = 2000
    assert bring(queue) == Brought(False)
    for accepted in (queue.accept(key="k"), postpone(queue, "another", 9000, key="k")):
        assert (accepted.seq, accepted.id, accepted.is_duplicate) == (1, "late", True)
    assert entered(queue) == ["late"]
    first = queue.accept(key="other")
    after = postpone(queue, "third", 9000, key="other")
    assert (after.seq, after.id, after.is_duplicate) == (first.seq, first.id, True)
    assert queue.rows(DOCUMENT) == ()


def test_a_key_is_found_among_many_that_are_due_at_one_moment(queue: Queue) -> None:
    for n in range(100):
        postpone(queue, f"m{n:02}", 2000, key=f"k{n}")
    assert [queue.accept(key=f"k{n}").id for n in (0, 50, 99)] == ["m00", "m50", "m99"]


def test_a_message_that_enters_while_its_key_is_looked_up_is_found(queue: Queue) -> None:
    postpone(queue, "late", 1000, key="k")
    seen: list[Effect[Any]] = []

    def between(effect: Effect[Any]) -> None:
        seen.append(effect)
        if len(seen) == 2:
            bring(queue)

    accepted = queue.accept(key="k", between=between)
    assert (accepted.seq, accepted.id, accepted.is_duplicate) == (1, "late", True)


def test_a_key_that_was_taken_meanwhile_holds_up_nobody(queue: Queue) -> None:
    """However a key came to name another message, the postponed ones enter, and can be taken back."""
    for name in ("a", "b", "c"):
        postpone(queue, name, 1000, key=name)
    queue.memory.perform(Commit(HERE, (dedupe_row("a", 7), dedupe_row("b", 8))))
    assert queue.run(scheduled.withdraw(HERE, "b", ROLLBACK, queue.now, queue.fresh))
    assert bring(queue) == Brought(False)
    assert entered(queue) == ["b", "a", "c"]
    assert queue.lane(LATER).version == 0


def dedupe_row(key: str, seq: int) -> Put:
    from perdure.model.records import DEDUPE

    return Put(DEDUPE, (dedupe_digest(key),), {"seq": seq})


def test_a_message_that_cannot_be_read_is_set_aside_and_the_others_enter(queue: Queue) -> None:
    for n in range(40):
        postpone(queue, f"m{n:02}", 1000 + n, key=f"k{n}")
    rows = {row.key[1]: row for row in queue.rows(DOCUMENT)}
    spoilt = [f"m{n:02}" for n in (0, *range(2, 30))]
    for name in spoilt:
        row = rows[name]
        queue.memory.perform(
            Commit(HERE, (Put(DOCUMENT, row.key, row.fields, b"\xff not JSON", version=row.version),))
        )
    queue.now = 2000
    aside: list[str] = []
    while (brought := bring(queue)).has_more:
        aside += brought.unreadable
    aside += brought.unreadable
    assert aside == spoilt
    assert entered(queue) == ["m01", *(f"m{n}" for n in range(30, 40))]
    kept = [row for row in queue.rows(DOCUMENT) if row.key[0] == scheduled.UNREADABLE]
    assert [(row.key[1], row.body) for row in kept] == [(name, b"\xff not JSON") for name in spoilt]
    assert queue.lane(LATER).version == 0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff not JSON", "Corrupt"),
        (b"{}", "KeyError"),
        (
            b'{"id": "m0", "payload": 1, "graph": "g", "channel": "", "mode": "", "options": {}, '
            b'"dedupe": "not hexadecimal"}',
            "ValueError",
        ),
    ],
)
def test_a_check_names_postponed_messages_that_cannot_be_read(queue: Queue, body: bytes, why: str) -> None:
    def found() -> list[str]:
        findings: list[Finding] = queue.run(check(HERE, Digester()))
        assert {finding.kind for finding in findings} <= {Damage.UNREADABLE}
        return [finding.detail for finding in findings]

    postpone(queue, "m0", 1000)
    postpone(queue, "m1", 1001)
    assert found() == []
    (spoilt,) = [row for row in queue.rows(DOCUMENT) if row.key[1] == "m0"]
    put = Put(DOCUMENT, spoilt.key, spoilt.fields, body, version=spoilt.version)
    assert queue.memory.perform(Commit(HERE, (put,))) == Committed()
    assert found() == [f"postponed message m0 cannot be read: {why}"]
    queue.now = 2000
    assert bring(queue).unreadable == ("m0",)
    assert found() == [f"postponed message, set aside when it was due: m0 cannot be read: {why}"]
    (aside,) = [row for row in queue.rows(DOCUMENT) if row.key[0] == scheduled.UNREADABLE]
    put = Put(DOCUMENT, aside.key, aside.fields, spoilt.body, version=aside.version)
    assert queue.memory.perform(Commit(HERE, (put,))) == Committed()
    assert found() == ["postponed message, set aside when it was due: m0 has not entered the inbox"]


def test_no_more_enters_at_once_than_a_commit_carries(queue: Queue) -> None:
    large = "x" * (MESSAGE_MAX - 1000)
    for n in range(20):
        postpone(queue, f"m{n:02}", 1000 + n, said=large)
    queue.now = 2000
    sizes: list[int] = []

    def between(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit):
            sizes.append(sum(len(op.body) for op in effect.ops if isinstance(op, Put)))

    has_more = True
    while has_more:
        program = scheduled.bring(HERE, queue.now, BUDGET, queue.fresh)
        has_more = queue.run(program, between).has_more
    assert len(sizes) > 1
    assert max(sizes) <= BUDGET.bytes
    assert entered(queue) == [f"m{n:02}" for n in range(20)]


def test_bringing_ends_however_often_others_win(queue: Queue) -> None:
    postpone(queue, "late", 1000)
    commits = 0

    def other(effect: Effect[Any]) -> None:
        nonlocal commits
        if isinstance(effect, Commit):
            commits += 1
            queue.accept()

    with pytest.raises(Contention):
        queue.run(scheduled.bring(HERE, queue.now, BUDGET, queue.fresh), other)
    assert commits == ATTEMPTS
    bring(queue)
    assert "late" in entered(queue)


@pytest.mark.parametrize("how", ["interrupt", "rollback"])
def test_one_that_is_taken_back_leaves_its_thread_idle_at_once(queue: Queue, how: Any) -> None:
    postpone(queue, "late", 9000, key="k")
    assert queue.run(scheduled.withdraw(HERE, "late", how, queue.now, queue.fresh))
    assert queue.lane().due_at is None
    assert queue.lane().pending == 0
    assert queue.memory.perform(FindDue(None, until=1 << 60)) == ()
    (run,) = queue.rows(RUN)
    assert (run.key, run.fields["state"]) == (("late",), {"interrupt": "interrupted"}.get(how, "rolled_back"))
    assert queue.accept(key="k").is_duplicate
    assert [queue.accept().id, *(m.id for m in queue.held().messages)] == ["id2", "id2"]


def test_one_message_that_waits_for_more_and_is_taken_back_leaves_its_thread_idle(queue: Queue) -> None:
    first = queue.accept(quiet=5000, longest=9000)
    assert queue.run(inbox.withdraw(HERE, first.id, "interrupt", queue.now))
    assert (queue.lane().due_at, queue.lane().pending) == (None, 0)
    one, two = (queue.accept(quiet=5000, longest=9000) for _ in range(2))
    assert queue.run(inbox.withdraw(HERE, one.id, "interrupt", queue.now))
    assert queue.lane().due_at == queue.now + 5000, "the other one still waits for more"
    assert queue.run(inbox.withdraw(HERE, two.id, "interrupt", queue.now))
    assert (queue.lane().due_at, queue.lane().pending) == (None, 0), "no worker is needed"
    assert {row.fields["state"] for row in queue.rows(RUN)} == {"interrupted"}
    # Of one with a channel the end is to be told: a worker ends its run.
    three, four = (queue.accept(quiet=5000, longest=9000, channel="post") for _ in range(2))
    for message in (four, three):
        assert queue.run(inbox.withdraw(HERE, message.id, "interrupt", queue.now))
    assert queue.lane().due_at == queue.now
    for _ in range(2):
        held = queue.held()
        assert held.messages[0].is_withdrawn
        queue.finish(held, "interrupted")
    assert (queue.lane().due_at, queue.lane().pending) == (None, 0)


@pytest.mark.parametrize("is_busy", [False, True])
def test_taking_back_leaves_a_question_open(queue: Queue, is_busy: bool) -> None:
    queue.accept()
    asked = queue.held()
    queue.finish(asked, WAITING, interrupts=[{"id": "i"}])
    postpone(queue, "late", 9000)
    if is_busy:
        # Its end is to be told, so a worker ends its run.
        queue.run(scheduled.withdraw(HERE, "late", "interrupt", queue.now, queue.fresh))
        postpone(queue, "later", 9000)
        queue.accept(mode="answer", key="x")
        answer = entered(queue)[-1]
        postpone(queue, "last", 9000)
        queue.run(scheduled.withdraw(HERE, "last", "interrupt", queue.now, queue.fresh))
        assert queue.run(inbox.withdraw(HERE, answer, "interrupt", queue.now))
        while (held := queue.claim()) is not None:
            assert held.messages[0].is_withdrawn
            queue.finish(held, "interrupted")
    else:
        assert queue.run(scheduled.withdraw(HERE, "late", "interrupt", queue.now, queue.fresh))
    assert queue.lane(IN).waiting == asked.run.id
    assert queue.accept(mode="answer").seq
