"""Errors of an update of a state whose values do not fit the graph."""

from __future__ import annotations

from langgraph.errors import InvalidUpdateError

_PLAIN = (InvalidUpdateError, ValueError, TypeError)


def describe_unfitness(error: Exception) -> str:
    """Describe the fault of the values, for their sender.

    Args:
        error: what LangGraph, or a reducer, raised for values that it does not take: any exception.
    """
    if isinstance(error, _PLAIN):
        return str(error)
    return f"{type(error).__name__}: {error}"
