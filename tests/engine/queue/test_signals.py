"""Signals over the memory driver: early, late, twice, to one wait or to all."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.engine.queue.signals import EARLY_MOST, Signal, Signalled, signal_key
from perdure.engine.queue.waits import read_early_signals
from perdure.errors import NotFound, QueueFull, TooLarge
from perdure.model.ops import Commit
from perdure.model.program import Effect
from perdure.model.records import DEDUPE, DOCUMENT, RUN
from perdure.model.runs.messages import INTERRUPTED, ROLLED_BACK, WAITING, Run
from perdure.model.runs.waits import Wait, with_waits
from tests.engine.queue.queues import HERE, Queue
from tests.engine.queue.test_waits import asking, asks, messages, timer, wake


@pytest.fixture
def queue() -> Queue:
    return Queue()


def send(
    queue: Queue,
    name: str = "paid",
    value: Any = 1,
    key: str = "",
    *,
    to_all: bool = True,
    between: Any = None,
) -> Signalled:
    queue._count += 1
    digest = signal_key(name, key) if key else b""
    signal = Signal(
        HERE, name, value, digest, to_all, f"s{queue._count}", queue.now, queue.fresh, queue.read_asked
    )
    signalled: Signalled = queue.run(signal.store(), between)
    return signalled


def for_signal(name: str = "paid", until: int | None = None) -> Wait:
    return Wait("signal", until, (None,) if until else (), name=name)


def given(queue: Queue) -> list[Any]:
    return [each.payload["resume"] for each in messages(queue) if each.mode == "answer"]


def test_a_signal_is_the_answer_of_the_waits_of_its_name(queue: Queue) -> None:
    asking(queue, a=for_signal(), b=for_signal("other"), c=for_signal())
    assert send(queue, value={"sum": 5}).accepted is not None
    assert given(queue) == [{"a": {"sum": 5}, "c": {"sum": 5}}]


def test_a_signal_to_one_ends_the_first_wait(queue: Queue) -> None:
    asking(queue, a=for_signal(), c=for_signal())
    send(queue, to_all=False)
    assert given(queue) == [{"a": 1}]


def test_an_early_signal_is_kept_until_a_wait_for_it_has_begun(queue: Queue) -> None:
    queue.accept()
    assert send(queue).accepted is None
    held = queue.held()
    assert send(queue, "other").accepted is None
    begun = {"a": for_signal()}
    queue.finish(held, WAITING, **with_waits({"interrupts": [{"id": "a"}]}, begun))
    assert timer(queue) == queue.now, "it may have come already"
    assert wake(queue).signal == "paid"
    assert given(queue) == [{"a": 1}]
    assert len(queue.rows(DOCUMENT)) == 1, "the other is still kept"


def test_without_an_early_signal_the_wait_looks_once(queue: Queue) -> None:
    asking(queue, a=for_signal())
    assert wake(queue).message is None
    assert timer(queue) is None, "a signal wakes it, and no time"
    asking_again = send(queue)
    assert asking_again.accepted is not None


def test_a_signal_that_comes_while_the_run_ends_is_not_lost(queue: Queue) -> None:
    queue.accept()
    held = queue.held()
    ended: list[int] = []

    def ends(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and not ended:
            ended.append(1)
            begun = {"a": for_signal()}
            queue.finish(held, WAITING, **with_waits({"interrupts": [{"id": "a"}]}, begun))
            assert wake(queue).message is None

    assert send(queue, between=ends).accepted is not None
    assert given(queue) == [{"a": 1}]


@pytest.mark.parametrize("is_early", [True, False])
def test_a_signal_with_a_key_counts_once(queue: Queue, is_early: bool) -> None:
    if not is_early:
        asking(queue, a=for_signal())
    else:
        queue.accept()
    assert not send(queue, key="k").is_duplicate
    assert send(queue, key="k").is_duplicate
    assert not send(queue, "other", key="k").is_duplicate, "the key is one of the name"
    if is_early:
        begun = {"a": for_signal()}
        queue.finish(queue.held(), WAITING, **with_waits({"interrupts": [{"id": "a"}]}, begun))
        wake(queue)
    again = send(queue, key="k")
    assert again.is_duplicate
    assert again.accepted is not None
    assert again.accepted.id == messages(queue)[-1].id
    assert given(queue) == [{"a": 1}]
    assert len(queue.rows(DEDUPE)) == 1


def test_early_signals_are_given_in_the_order_in_which_they_came(queue: Queue) -> None:
    queue.accept()
    for value in (1, 2):
        send(queue, value=value)
    for value in (1, 2):
        begun = {f"a{value}": for_signal()}
        queue.finish(queue.held(), WAITING, **with_waits({"interrupts": [{"id": f"a{value}"}]}, begun))
        assert wake(queue).signal == "paid"
    assert given(queue) == [{"a1": 1}, {"a2": 2}]
    assert queue.rows(DOCUMENT) == ()


def test_a_thread_keeps_a_bounded_number_of_signals_and_bytes(queue: Queue) -> None:
    queue.accept()
    for _ in range(EARLY_MOST):
        send(queue)
    with pytest.raises(QueueFull, match="100 signals"):
        send(queue)
    other = Queue()
    other.accept()
    send(other, value="x" * 200_000)
    with pytest.raises(QueueFull, match="bytes of signals"):
        send(other, value="x" * 200_000)
    third = Queue()
    third.accept()
    with pytest.raises(TooLarge):
        send(third, value="x" * 300_000)


def test_there_is_no_signal_for_a_thread_that_does_not_exist(queue: Queue) -> None:
    with pytest.raises(NotFound, match="no thread 'ada'"):
        send(queue)
    assert queue.rows(DOCUMENT) == ()


def test_a_signal_and_its_deadline_give_one_answer(queue: Queue) -> None:
    asking(queue, a=for_signal(until=50))
    wake(queue)
    queue.now += 50

    def sent(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and not given(queue):
            send(queue)

    assert wake(queue, sent).message is None
    assert given(queue) == [{"a": 1}]
    queue.finish(queue.held())
    assert send(queue).accepted is None, "a late one is kept for the next wait"


@pytest.mark.parametrize("is_kept_first", [False, True])
def test_a_signal_whose_run_was_rolled_back_is_kept_before_later_ones(
    queue: Queue, is_kept_first: bool
) -> None:
    if is_kept_first:
        queue.accept()
        send(queue, value=1, key="k", to_all=False)
        begun = {"a": for_signal()}
        queue.finish(queue.held(), WAITING, **with_waits({"interrupts": [{"id": "a"}]}, begun))
        wake(queue)
    else:
        asking(queue, a=for_signal())
        send(queue, value=1, key="k", to_all=False)
    held = queue.held()
    send(queue, value=2)
    queue.finish(held, ROLLED_BACK)
    (document,) = queue.rows(DOCUMENT)
    kept = [(one.value, one.to_all) for one in read_early_signals((document,))]
    assert kept == [(1, False), (2, True)]
    assert queue.rows(DEDUPE) == ()
    again = send(queue, value=1, key="k")
    assert (again.accepted, again.is_duplicate) == (None, True), "its sender's repetition has no effect"
    queue.accept()
    asks(queue, b=for_signal())
    assert wake(queue).signal == "paid"
    assert given(queue)[-1] == {"b": 1}
    assert send(queue, value=1, key="k").accepted is not None


def test_a_signal_whose_run_was_not_rolled_back_is_used_up(queue: Queue) -> None:
    asking(queue, a=for_signal())
    send(queue, key="k")
    queue.finish(queue.held(), INTERRUPTED)
    assert queue.rows(DOCUMENT) == ()
    assert send(queue, key="k").is_duplicate


def test_a_signal_that_a_thread_has_no_room_to_keep_again_is_in_the_note_of_its_run(queue: Queue) -> None:
    asking(queue, a=for_signal())
    send(queue, value="x" * 200_000)
    held = queue.held()
    send(queue, "other", value="x" * 200_000)
    queue.finish(held, ROLLED_BACK)
    (document,) = queue.rows(DOCUMENT)
    assert [one.name for one in read_early_signals((document,))] == ["other"]
    run = next(run for run in map(Run.read, queue.rows(RUN)) if run.state == ROLLED_BACK)
    assert run.note["not_given_back"].startswith("paid: ")
