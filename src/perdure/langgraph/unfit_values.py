"""Errors of an update of a state whose values do not fit the graph."""

from __future__ import annotations

from langgraph.errors import InvalidUpdateError

_PLAIN = (InvalidUpdateError, ValueError, TypeError)

UNFIT = (*_PLAIN, LookupError, AttributeError, NotImplementedError)
"""Errors of LangGraph, and of reducers, for values that they do not take. ``add_messages`` raises
``NotImplementedError`` for what is no message."""


def unfitness(error: Exception) -> str:
    """Return what is wrong with the values, for those who sent them."""
    return str(error) if isinstance(error, _PLAIN) else f"{type(error).__name__}: {error}"
