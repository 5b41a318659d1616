"""Errors of values from outside that do not fit the graph: of an update of its state, or of an answer."""

from __future__ import annotations

from langgraph.errors import InvalidUpdateError, is_invalid_resume
from pydantic import ValidationError

from perdure.model.runs.messages import read_message, text_of_error

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


def describe_unfit_answer(error: BaseException) -> str | None:
    """Return the text that tells a person what is wrong with an answer that does not fit the schema of its
    question; ``None`` for any other error."""
    if not is_invalid_resume(error) or not isinstance(error, ValidationError):
        return None
    faults = [": ".join((*map(str, each["loc"]), each["msg"])) for each in error.errors()]
    return f"That answer does not fit the question. {'; '.join(faults[:_FAULTS_MAX])}."
