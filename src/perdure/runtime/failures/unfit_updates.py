"""Errors of values from outside that do not fit the graph: of an update of its state, or of an answer."""

from __future__ import annotations

from typing import NamedTuple

from langgraph.errors import InvalidUpdateError, is_invalid_resume
from pydantic import ValidationError

from perdure.langgraph.reading.open_interrupts import interrupt_id
from perdure.model.runs.messages import ANSWERS, Message, read_message, text_of_error
from perdure.runtime.failures.failure_traces import list_tasks

_ANSWERS_OF_TASK_MAX = 100
"""Number of questions of one task that are looked through for the one that an answer does not fit."""
_FAULTS_MAX = 5
_PLAIN = (InvalidUpdateError, ValueError, TypeError)


def describe_unfitness(error: Exception) -> str:
    """Describe the fault of the values, for their sender.

    Args:
        error: what LangGraph, or a reducer, raised for values that it does not take: any exception.
    """
    if isinstance(error, _PLAIN):
        return read_message(error)
    return text_of_error(error)


class UnfitAnswer(NamedTuple):
    """An answer that does not fit the schema of its question.

    Attributes:
        text: What is wrong with it, for the person who gave it.
        interrupt_id: The interrupt that it was to answer; ``None`` if that is not known.
        others: The number of answers that were given with it.
    """

    text: str
    interrupt_id: str | None
    others: int

    def explain(self, error: str, *, is_taken_back: bool) -> str:
        """Return the text of an error, for the note of the run, with what became of the answers."""
        if not self.others:
            return error
        which = f"the answer to {self.interrupt_id!r}" if self.interrupt_id else "one of the answers"
        if is_taken_back:
            rest = "none of those that were given with it was taken; give all of them again"
        else:
            rest = "of those that were given with it those that are not open any more were taken"
        return f"{which} does not fit its question, and {rest}: {error}"


def find_unfit_answer(error: BaseException, message: Message) -> UnfitAnswer | None:
    """Return the answer of a run's first message that does not fit the schema of its question; ``None`` for
    any other error."""
    if not is_invalid_resume(error) or not isinstance(error, ValidationError):
        return None
    faults = [": ".join((*map(str, each["loc"]), each["msg"])) for each in error.errors()]
    text = f"That answer does not fit the question. {'; '.join(faults[:_FAULTS_MAX])}."
    answered = list(message.options.get(ANSWERS, ()))
    place = "|".join(map(":".join, list_tasks(error)))
    of_task = (interrupt_id(place, number) for number in range(_ANSWERS_OF_TASK_MAX))
    found = next((name for name in of_task if name in answered), None)
    return UnfitAnswer(text, found, len(answered) - 1)
