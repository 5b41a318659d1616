"""What is due of a thread's waits, over the memory driver: each once, and whole beside an answer."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from perdure.engine.checks.fsck import check
from perdure.engine.queue import runs, waits
from perdure.engine.queue.events import Event, read
from perdure.engine.queue.runs import Ending
from perdure.engine.queue.waits import REMINDER, EarlySignal, Wake, Woken, make_early_put
from perdure.engine.transact import Budget
from perdure.errors import NotWaiting, TooLarge
from perdure.model.ops import Commit
from perdure.model.program import Effect
from perdure.model.records import INBOX, LANE, OUTBOX, RUN
from perdure.model.runs.messages import ANSWERS, DONE, FAILED, WAITING, Message, Reply, Run
from perdure.model.runs.queue import WAITS
from perdure.model.runs.waits import BY_WAIT, EXPIRED, Wait, with_waits
from perdure.model.values.chunks import Digester
from tests.engine.queue.queues import HERE, Queue

LIMITS = Budget(1000, 1 << 20)
_ids = count()


@pytest.fixture
def queue() -> Queue:
    return Queue()


def asking(queue: Queue, channel: str = "", **begun: Wait) -> str:
    """A run that ends at questions, with these waits; their times count from now."""
    queue.accept(channel=channel, options={"config": {"tags": ["u"]}, "stream": {"modes": ["values"]}})
    return asks(queue, **begun)


def asks(queue: Queue, **begun: Wait) -> str:
    held = queue.held()
    queue.finish(held, WAITING, **with_waits({"interrupts": [{"id": name} for name in begun]}, begun))
    return held.run.id


def wake(queue: Queue, between: Any = None, budget: Budget = LIMITS) -> Woken:
    program = Wake(HERE, queue.now, 1000, queue.fresh, budget, lambda: f"timer{next(_ids)}", queue.read_asked)
    woken: Woken = queue.run(program.run(), between)
    return woken


def messages(queue: Queue) -> list[Message]:
    return [Message.read(row) for row in queue.rows(INBOX)]


def timer(queue: Queue) -> int | None:
    return queue.lane(WAITS).due_at


def test_a_deadline_gives_the_default_as_the_answer_of_the_run_that_asked(queue: Queue) -> None:
    asking(queue, channel="post", q=Wait("question", 50, ("no",)))
    assert timer(queue) == queue.now + 50
    queue.now += 49
    assert wake(queue) == Woken(due_at=queue.now + 1)
    queue.now += 1
    woken = wake(queue)
    assert woken.expired == 1
    (_, answer) = messages(queue)
    assert (answer.payload, answer.mode, answer.graph, answer.channel) == (
        {"resume": {"q": "no"}},
        "answer",
        "g",
        "post",
    )
    assert answer.options == {"config": {"tags": ["u"]}, ANSWERS: ["q"], BY_WAIT: True}
    assert wake(queue) == Woken(), "it is done once"
    with pytest.raises(NotWaiting):
        queue.accept({"resume": "yes"}, "answer")
    queue.finish(queue.held())
    assert (timer(queue), len(messages(queue))) == (None, 2)


def test_without_a_default_the_node_is_told(queue: Queue) -> None:
    asking(queue, q=Wait("question", 50))
    queue.now += 50
    wake(queue)
    assert messages(queue)[-1].payload == {"resume": {"q": EXPIRED}}


def test_an_answer_ends_the_deadline_with_its_run(queue: Queue) -> None:
    asking(queue, q=Wait("question", 50, ("no",)))
    queue.accept({"resume": "yes"}, "answer")
    queue.finish(queue.held())
    assert timer(queue) is None
    queue.now += 100
    assert wake(queue) == Woken()
    assert len(messages(queue)) == 2


def test_of_an_answer_and_a_deadline_at_once_the_first_commit_wins(queue: Queue) -> None:
    asking(queue, q=Wait("question", 50, ("no",)))
    queue.now += 50

    def answered(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and len(messages(queue)) == 1:
            queue.accept({"resume": "yes"}, "answer")

    woken = wake(queue, answered)
    assert woken.message is None
    assert [each.payload for each in messages(queue)[1:]] == [{"resume": "yes"}]


def test_a_deadline_that_passes_while_an_answer_runs_counts_if_that_fails(queue: Queue) -> None:
    asking(queue, q=Wait("question", 50, ("no",)), other=Wait("question"))
    queue.accept({"resume": {"other": 1}}, "answer", options={ANSWERS: ["other"]})
    held = queue.held()
    queue.now += 60
    assert wake(queue) == Woken()
    assert timer(queue) == queue.now + 1_000_000, "the run may end it"
    # It asks again what it has not answered, which keeps its deadline.
    begun = {"q": Wait("question", 50, ("no",))}
    queue.finish(held, WAITING, **with_waits({"interrupts": [{"id": "q"}]}, begun))
    assert timer(queue) == 1050
    assert wake(queue).expired == 1


def test_a_default_whose_run_fails_is_not_given_again(queue: Queue) -> None:
    asking(queue, q=Wait("question", 50, ("no",)))
    queue.now += 50
    wake(queue)
    # This thread has no checkpoint, so that the question is open again only as a stop.
    queue.finish(queue.held(), FAILED)
    assert wake(queue) == Woken()
    (spent,) = (run.note["waits"]["q"] for run in map(Run.read, queue.rows(RUN)) if "waits" in run.note)
    assert spent["is_spent"]


def test_several_deadlines_at_once_are_one_answer(queue: Queue) -> None:
    asking(queue, a=Wait("question", 50, ("no",)), b=Wait("sleep", 40), c=Wait("question", 90, (1,)))
    queue.now += 60
    assert wake(queue).expired == 2
    assert messages(queue)[-1].payload == {"resume": {"a": "no", "b": EXPIRED}}
    assert timer(queue) == 1090


def test_a_message_that_goes_past_a_question_ends_its_waits(queue: Queue) -> None:
    asking(queue, q=Wait("question", 50, ("no",)))
    queue.accept({"input": 1})
    queue.finish(queue.held())
    assert timer(queue) is None


def test_nobody_answers_a_sleep(queue: Queue) -> None:
    asking(queue, q=Wait("sleep", 50))
    for options in ({}, {ANSWERS: ["q"]}):
        with pytest.raises(NotWaiting, match="sleeps or waits for a signal"):
            queue.accept({"resume": 1}, "answer", options=options)
    assert len(messages(queue)) == 1


def test_the_only_question_beside_a_sleep_needs_no_name(queue: Queue) -> None:
    asking(queue, q=Wait("sleep", 50), asked=Wait("question", 50))
    queue.accept({"resume": 1}, "answer")
    assert messages(queue)[-1].options[ANSWERS] == ["asked"]


def test_reminders_are_replies_and_events_and_the_deadline_follows(queue: Queue) -> None:
    run_id = asking(
        queue, channel="post", q=Wait("question", 50, ("no",), (10, 20), replies=({"text": "?"},))
    )
    queue.now += 10
    assert wake(queue) == Woken(reminded=1, has_replies=True, due_at=queue.now + 10)
    assert wake(queue).reminded == 0
    queue.now += 10
    assert wake(queue) == Woken(reminded=1, has_replies=True, due_at=queue.now + 30)
    sent = [Reply.read(row) for row in queue.rows(OUTBOX)]
    assert [(each.run_id, each.channel, each.payload) for each in sent] == [
        (run_id, "post", {"text": "?"})
    ] * 2
    assert len({each.id for each in sent}) == 2
    events: tuple[Event, ...] = queue.run(read(HERE, 0)).events
    told = {"run_id": run_id, "interrupts": [{"id": "q", "until": 1050}]}
    assert [(each.name, each.run_id, json.loads(each.data)) for each in events] == [
        (REMINDER, run_id, told)
    ] * 2
    queue.now += 30
    assert wake(queue).expired == 1
    assert queue.lane().pending == 1


def test_more_reminders_than_a_commit_takes_come_one_after_another(queue: Queue) -> None:
    begun = {f"q{n}": Wait("question", 50, (1,), (10,), replies=({"n": n},)) for n in range(20)}
    asking(queue, channel="post", **begun)
    queue.now += 10
    passes = 0
    while wake(queue, budget=Budget(16, 1 << 20)).reminded:
        passes += 1
    sent = [Reply.read(row) for row in queue.rows(OUTBOX)]
    assert sorted(each.payload["n"] for each in sent) == list(range(20))
    assert len({each.id for each in sent}) == 20
    assert passes == 3


def test_waits_of_a_question_that_was_edited_away_end(queue: Queue) -> None:
    asking(queue, q=Wait("question", 50, ("no",)))
    lane = queue.lane()
    queue.memory.perform(Commit(HERE, (lane._replace(waiting=None).put(0),)))
    queue.now += 50
    assert wake(queue) == Woken()
    assert (timer(queue), len(messages(queue))) == (None, 1)


def test_a_look_again_sets_what_a_rollback_opened(queue: Queue) -> None:
    asking(queue, q=Wait("question", 50, ("no",)))
    queue.memory.perform(Commit(HERE, tuple(waits._timer(queue.lane(WAITS), None, queue.fresh))))
    queue.run(waits.make_due(HERE, queue.now, queue.fresh))
    assert timer(queue) == queue.now
    assert wake(queue) == Woken(due_at=1050)
    assert timer(queue) == 1050


def test_a_lost_time_is_damage(queue: Queue) -> None:
    asking(queue, q=Wait("question", 50, ("no",)))
    assert [finding.detail for finding in queue.run(check(HERE, Digester()))] == []
    queue.memory.perform(Commit(HERE, tuple(waits._timer(queue.lane(WAITS), None, queue.fresh))))
    (detail,) = [finding.detail for finding in queue.run(check(HERE, Digester()))]
    assert "no time at which it is due" in detail


def test_a_run_without_waits_reads_and_writes_nothing_of_them(queue: Queue) -> None:
    queue.accept()
    held = queue.held()
    seen: list[Effect[Any]] = []
    queue.run(runs.finish(held, Ending(DONE, {}), queue.now, queue.fresh, 1000), seen.append)
    (commit,) = seen
    assert isinstance(commit, Commit)
    assert [op.key for op in commit.ops if op.kind is LANE] == [("inbox",), ("followed",)]


def test_what_could_not_be_given_at_a_deadline_fails_the_run_that_asks(queue: Queue) -> None:
    """A run's config and a default fit a message each, and not together."""
    queue.accept(options={"config": {"tags": ["u" * 210_000]}})
    default = Wait("question", 100, ("d" * 60_000,))
    with pytest.raises(TooLarge, match=r"its config and context.*Make them smaller"):
        asks(queue, a=default)


def test_a_kept_signal_that_does_not_fit_keeps_no_thread_from_its_deadline(queue: Queue) -> None:
    queue.accept(options={"config": {"tags": ["u" * 200_000]}})
    held = queue.held()
    early = EarlySignal("paid", "v" * 100_000, True, "")
    queue.memory.perform(
        Commit(HERE, (make_early_put([early, replace(early, value=7)], (), queue.now, queue.fresh),))
    )
    note = with_waits({"interrupts": [{"id": "a"}]}, {"a": Wait("signal", 100, (None,), name="paid")})
    queue.finish(held, WAITING, **note)
    assert wake(queue).signal == "paid"
    assert messages(queue)[-1].payload == {"resume": {"a": 7}}
    queue.finish(queue.held(), DONE)
    queue.accept(options={"config": {"tags": ["u" * 200_000]}})
    asks(queue, a=Wait("signal", 100, (None,), name="paid"))
    woken = wake(queue)
    assert (woken.message, woken.unfit) == (None, ("paid",))
    queue.now += 100
    woken = wake(queue)
    assert (woken.expired, woken.unfit) == (1, ("paid",))
