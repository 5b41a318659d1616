"""Life of a thread, of its runs and of its questions, as tables: the states, and what each event makes of
them.

A *question* is what the latest checkpoint asks: an interrupt without an answer, or a stop before or after a
node. Whether there is one follows from the checkpoint alone. Whether it may be answered follows from the
queue: not while a run is open or a message waits, as either may answer or replace it. Only questions that may
be answered are shown, so every view asks here.

This module only decides. It reads nothing: the callers gather the facts, and carry out the decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal, NamedTuple

from perdure.model.runs.messages import DONE, FAILED, INTERRUPTED, OPEN, ROLLED_BACK, WAITING
from perdure.model.runs.queue import ROLLBACK

PENDING = "pending"
"""State of a run whose message waits in the queue; there is no record of it yet."""


class RunEvent(Enum):
    """Event in the life of a run."""

    CLAIM = "a worker takes it, or takes it over"
    PUT_OFF = "an attempt failed, and there is another"
    RETURN = "the graph came to its end"
    ASK = "the graph stopped at a question"
    FAIL = "the last attempt failed"
    STOP = "it was stopped, and what it stored stays"
    TAKE_BACK = "it was stopped or removed, and what it stored is removed"


RUNS: Mapping[str, Mapping[RunEvent, str]] = {
    PENDING: {RunEvent.CLAIM: OPEN, RunEvent.STOP: INTERRUPTED, RunEvent.TAKE_BACK: ROLLED_BACK},
    OPEN: {
        RunEvent.CLAIM: OPEN,
        RunEvent.PUT_OFF: OPEN,
        RunEvent.RETURN: DONE,
        RunEvent.ASK: WAITING,
        RunEvent.FAIL: FAILED,
        RunEvent.STOP: INTERRUPTED,
        RunEvent.TAKE_BACK: ROLLED_BACK,
    },
    WAITING: {},
    DONE: {},
    FAILED: {},
    INTERRUPTED: {},
    ROLLED_BACK: {},
}
"""State that follows on an event, by the state before it. A run that has ended stays as it is: an answer, and
a repetition of what failed, are runs of their own."""


def run_after(state: str, event: RunEvent) -> str:
    """Return the state of a run after an event; ``ValueError`` if that state has no such event."""
    after = RUNS[state].get(event)
    if after is None:
        raise ValueError(f"a run that is {state} has no further event, and so not this one: {event.value}")
    return after


def may_retry(state: str) -> bool:
    """Return True if a run in this state may be run again. Its record stays as it is."""
    return state == FAILED


class Facts(NamedTuple):
    """Facts that decide a thread's state, read in one moment.

    Attributes:
        is_busy: a run is open, or a message waits that was not withdrawn.
        is_asking: the latest checkpoint has a question.
        has_failed: the latest run that was not taken back has failed.
    """

    is_busy: bool
    is_asking: bool
    has_failed: bool = False


Status = Literal["idle", "busy", "interrupted", "error"]
"""State of a thread, in the terms of LangGraph's API."""


def decide_thread_status(facts: Facts) -> Status:
    """Return the status of a thread. A failed run is shown rather than an open question, which may still
    be answered."""
    if facts.is_busy:
        return "busy"
    if facts.has_failed:
        return "error"
    if facts.is_asking:
        return "interrupted"
    return "idle"


class QuestionState(Enum):
    """State of a thread's question."""

    OPEN = "it is shown, and may be answered"
    HELD = "a message was accepted that answers or replaces it: it is not shown, and takes no answer"
    CLOSED = "there is none"


class QuestionEvent(Enum):
    """Event in the life of a question."""

    ACCEPT = "a message is accepted: an answer, or another"
    WITHDRAW = "the last message that waits is withdrawn"
    END_UNMOVED = "a run ended and left the question: it failed, was stopped or taken back, or asked again"
    END_MOVED = "a run ended beyond the question"
    EDIT = "the thread was edited or forked beside it"


QUESTIONS: Mapping[QuestionState, Mapping[QuestionEvent, QuestionState]] = {
    QuestionState.OPEN: {QuestionEvent.ACCEPT: QuestionState.HELD, QuestionEvent.EDIT: QuestionState.CLOSED},
    QuestionState.HELD: {
        QuestionEvent.ACCEPT: QuestionState.HELD,
        QuestionEvent.WITHDRAW: QuestionState.OPEN,
        QuestionEvent.END_UNMOVED: QuestionState.OPEN,
        QuestionEvent.END_MOVED: QuestionState.CLOSED,
    },
    QuestionState.CLOSED: {},
}
"""State of a question after an event, by the state before it. A closed question is opened again only by a
rollback of the run that closed it, which makes the checkpoint with the question the latest one."""


def decide_question_state(facts: Facts) -> QuestionState:
    """Return the state of a thread's question."""
    if not facts.is_asking:
        return QuestionState.CLOSED
    if facts.is_busy:
        return QuestionState.HELD
    return QuestionState.OPEN


class Left(NamedTuple):
    """Facts about the latest checkpoint of a thread whose run ends.

    Attributes:
        is_unmoved: the checkpoint was not stored by the run.
        has_interrupt: the checkpoint has an interrupt without an answer.
        was_paused: the run that asked before this one began had stopped without an interrupt.
    """

    is_unmoved: bool
    has_interrupt: bool
    was_paused: bool = False


def find_waiting_run(
    state: str, run_id: str, before: str | None, left: Left | None, *, has_begun: bool = True
) -> str | None:
    """Return the run that asked the thread's question, after a run has ended; ``None`` if it has no question.

    Args:
        state: the state in which it ended.
        run_id: the run.
        before: the run that asked the thread's question when this run began.
        left: facts on the latest checkpoint; ``None`` for a run that asked or came to its end, as its state
            suffices.
        has_begun: false for the run of a message that was withdrawn while it waited.
    """
    if not has_begun:
        return before
    if state == WAITING:
        return run_id
    if left is None:
        return None
    if left.has_interrupt:
        if left.is_unmoved and before is not None:
            return before
        return run_id
    if left.is_unmoved and left.was_paused:
        return before
    return None


def decide_stopped_state(how: str, *, is_kept: bool) -> str:
    """Return the state of an open run that was stopped; ``is_kept`` if a rollback was not possible."""
    if how == ROLLBACK and not is_kept:
        return run_after(OPEN, RunEvent.TAKE_BACK)
    return run_after(OPEN, RunEvent.STOP)
