"""Payloads of messages: their kinds, and which of them one run can take together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MESSAGE, INPUT, RESUME, COMMAND = "message", "input", "resume", "command"
"""Kinds of payload: a message, a graph's whole input, an answer to an interrupt, or a LangGraph command with
its ``update``, ``goto`` and ``resume``."""

_MESSAGES = "messages"


def are_alike(payload: Any, other: Any) -> bool:
    """Return True if two payloads are of one kind: mappings with the same keys, or none."""
    mine, its = (one.keys() if isinstance(one, Mapping) else None for one in (payload, other))
    return mine == its


def can_be_joined(before: Sequence[Any], payload: Any) -> bool:
    """Return True if a payload and those before it make one input in which nothing of them is lost.

    Messages do, and inputs do whose lists can be concatenated. Of other values under one name a graph may
    accumulate each, so inputs that both have one are joined only if it is the same text, ``True``, ``False``
    or ``None``, and not a message.
    """
    if not before:
        return True
    # A whole input and a single message make no common input.
    if not are_alike(before[0], payload):
        return False
    if not isinstance(payload, Mapping):
        return True
    if COMMAND in payload or RESUME in payload:
        return False
    return INPUT not in payload or all(_fit(one[INPUT], payload[INPUT]) for one in before)


def _fit(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_join(name, one[name], held) for name, held in other.items() if name in one)
    return isinstance(one, list) and isinstance(other, list)


def _join(name: str, one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return True
    is_constant = other is None or isinstance(other, str | bool)
    return is_constant and type(one) is type(other) and one == other and name != _MESSAGES
