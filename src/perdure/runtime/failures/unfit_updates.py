"""Errors of an update of a state whose values do not fit the graph."""

from __future__ import annotations

from langgraph.errors import InvalidUpdateError

_PLAIN = (InvalidUpdateError, ValueError, TypeError)


def unfitness(error: Exception) -> str:
    """Return what is wrong with the values, for those who sent them.

    Args:
        error: what LangGraph, or a reducer, raised for values that it does not take: any exception.
    """
    return str(error) if isinstance(error, _PLAIN) else f"{type(error).__name__}: {error}"
