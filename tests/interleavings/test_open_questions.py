"""Whatever two processes do at once with a thread's question comes out as one after the other.

Answers, other messages, cancellations, edits, and the workers that end the runs of answers or repeat them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from perdure.database.opening import make_database
from perdure.engine.queue import questions
from perdure.engine.queue.claims import Claim
from perdure.engine.queue.retries import Retry
from perdure.engine.queue.runs import HeldRun
from perdure.errors import HeadConflict
from perdure.model.runs.messages import ANSWERS, FAILED, INTERRUPTED
from perdure.storage.port import Driver
from perdure.testing.conformance.backend import with_lease
from tests.interleavings import thread_queues
from tests.interleavings.explorer import Case, check
from tests.interleavings.queues import OPERATORS, SENDERS, SWEEPS, WORKERS
from tests.interleavings.thread_queues import FRESH, MOST, NOW, TTL, Thread
from tests.langgraph.session import config

Does = Callable[["Asking"], Any]


class Said(TypedDict):
    said: Annotated[list[str], operator.add]


def first(state: Said) -> Any:
    return {"said": [f"got {interrupt('first?')}"]}


def second(state: Said) -> Any:
    return {"said": [f"got {interrupt('second?')}"]}


class Asking(Thread):
    """A thread whose graph asks two questions, one after the other."""

    named = ""
    """The interrupt that was open when the world was set up, if any."""

    def _saver(self) -> Any:
        return make_database(self.driver, tenant=self.tenant).checkpointer()

    def graph(self) -> Any:
        builder = StateGraph(Said).add_node(first).add_node(second)
        return (
            builder.add_edge(START, "first").add_edge("first", "second").compile(checkpointer=self._saver())
        )

    def read_asked(self, checkpoint_id: str | None = None, /) -> Any:
        return self._saver().read_asked(self.here, checkpoint_id)

    def _accept(self, name: str, mode: Any = "coalesce", **options: Any) -> Any:
        return super()._accept(name, mode, read_asked=self.read_asked, **options)

    def answer_by_name(self) -> Any:
        """Accept an answer, under a key, to the question that was open when the world was set up."""
        accept = self._accept("d", "answer", key="answer")
        accept = replace(accept, message=replace(accept.message, options={ANSWERS: [self.named]}))
        accepted = self.run(accept.store(None))
        return accepted.seq, accepted.id, accepted.is_duplicate

    def step(self, held: HeldRun, given: Any) -> None:
        """Run the graph under a lease."""
        at: Any = {**with_lease(config("ada"), held.epoch), "metadata": {"run_id": held.run.id}}
        self.graph().invoke(given, at, durability="sync")

    def work(self, owner: str) -> Any:
        """Claim the next run and carry it out, as a worker does."""
        held = self.run(Claim(self.here, owner, ["g"], self.now, TTL, MOST, 8 * FRESH).take(None))
        if not isinstance(held, HeldRun):
            return held
        world: Asking = self.over(self.driver)
        world.held = held
        message = held.messages[0]
        if message.is_withdrawn or held.lane.stop is not None:
            return world.finish(INTERRUPTED)
        if message.mode == "answer":
            self.step(held, Command(resume=message.id))
        elif message.mode == "coalesce":
            self.step(held, {"said": [message.id]})
        is_asking = self.run(self.read_asked()).interrupts
        return world.ask_question() if is_asking else world.finish()

    def fail(self) -> Any:
        """End the run as failed; its answers are given back first."""
        held = self._holding()
        released = self.run(questions.release_answers(self.here, held.run, held.messages[0]))
        return released, self.finish(FAILED, error="x")

    def edit(self) -> None:
        for _ in range(3):
            try:
                self.graph().update_state(config("ada"), {"said": ["edited"]}, as_node="second")
                return
            except HeadConflict:
                continue

    def retry_run(self, name: str) -> Any:
        retry = Retry(self.here, name, self.now, MOST, 9 * FRESH, lambda: "again", self.read_asked)
        accepted = self.run(retry.store())
        return accepted.seq, accepted.id, accepted.is_duplicate


def read(world: Asking) -> Any:
    open_question = world.run(questions.find(world.here, world.read_asked))
    state = world.graph().get_state(config("ada"))
    asked = None if open_question is None else (len(open_question.interrupts), open_question.run is None)
    return {
        **thread_queues.read(world),
        "question": asked,
        "said": state.values.get("said"),
        "interrupts": [each.value for each in state.interrupts],
    }


def asks(driver: Driver) -> Asking:
    world = Asking(driver)
    world.accept("a", key="k")
    world.work("w")
    world.now = NOW
    (world.named,) = world.run(world.read_asked()).interrupts
    return world


def asks_last(driver: Driver) -> Asking:
    """Return a thread whose last question is open."""
    world = asks(driver)
    world.accept("b", "answer")
    world.work("w")
    (world.named,) = world.run(world.read_asked()).interrupts
    return world


def is_answered(driver: Driver) -> Asking:
    world = asks(driver)
    world.accept("b", "answer")
    return world


def is_at_work(driver: Driver) -> Asking:
    """Return a thread whose run has taken the answer, and has come to the second question."""
    world = is_answered(driver)
    world.held = world.hold("w")
    world.step(world.held, Command(resume="b"))
    return world


def has_failed(driver: Driver) -> Asking:
    world = is_answered(driver)
    world.held = world.hold("w")
    world.fail()
    world.held = None
    return world


USERS: Mapping[str, Does] = {
    **{name: SENDERS[name] for name in ("accept", "accept a key", "interrupt", "roll back all", "postpone")},
    **{name: OPERATORS[name] for name in ("cancel a", "cancel b", "roll back a", "delete", "delete at rest")},
    **{name: WORKERS[name] for name in ("claim", "bring", "send")},
    "forget what is finished": SWEEPS["forget what is finished"],
    "answer": lambda t: t.accept("c", "answer"),
    "answer otherwise": lambda t: t.accept("key", "answer"),
    "answer by name": lambda t: t.answer_by_name(),
    "edit": lambda t: t.edit(),
    "look": lambda t: t.run(questions.find(t.here, t.read_asked)) is not None,
}
HOLDERS: Mapping[str, Does] = {
    "finish": lambda t: t.finish(),
    "ask": lambda t: t.ask_question(),
    "fail": lambda t: t.fail(),
    "stop": lambda t: t.finish(INTERRUPTED),
    "renew": lambda t: t.renew(),
}
RETRIES: Mapping[str, Does] = {
    "run b again": lambda t: t.retry_run("b"),
    "run a again": lambda t: t.retry_run("a"),
}
SEQUENCES: Mapping[str, Does] = {
    "work": lambda t: t.work("v"),
    "answer and work": lambda t: (t.accept("c", "answer"), t.work("v")),
    "answer by name and work": lambda t: (t.answer_by_name(), t.work("v")),
    "accept and work": lambda t: (t.accept("c"), t.work("v")),
}
RETRIES_AND_WORK: Mapping[str, Does] = {
    "run b again and work": lambda t: (t.retry_run("b"), t.work("v")),
    "run a again and work": lambda t: (t.retry_run("a"), t.work("v")),
}
EXCUSED: Mapping[tuple[str, str], str] = {
    ("look", "delete"): "a question is shown once more of a thread that is deleted while it is looked at",
    ("run b again", "delete"): "it is refused as its question is gone, or as the run is gone",
}
TWO_STEPS = {
    (
        "edit",
        "answer and work",
    ): "LangGraph stores an edit in two steps: a run in between may take up the first"
}
CASES: Mapping[str, Case[Asking]] = {
    "asks": Case(asks, USERS, read, EXCUSED, SEQUENCES),
    "asks the last question": Case(asks_last, USERS, read, {**EXCUSED, **TWO_STEPS}, SEQUENCES),
    "is answered": Case(is_answered, USERS, read, EXCUSED, SEQUENCES),
    "is at work": Case(is_at_work, {**USERS, **HOLDERS}, read, EXCUSED),
    "has failed": Case(has_failed, {**USERS, **RETRIES}, read, EXCUSED, {**SEQUENCES, **RETRIES_AND_WORK}),
}
QUICK = 25
"""Pairs of a set-up that are explored in the quick run."""


@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting], size=QUICK)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("setting", CASES)
def test_all_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other_in_a_database(setting: str, stored: Driver) -> None:
    check(setting, CASES[setting], stored, size=QUICK)
