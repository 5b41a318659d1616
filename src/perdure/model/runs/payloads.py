"""Payloads of messages: their kinds, and which of them one run can take together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from perdure.model.arguments import require_mapping

MESSAGE, INPUT, RESUME, COMMAND = "message", "input", "resume", "command"
"""Kinds of payload: a message, a graph's whole input, an answer to an interrupt, or a LangGraph command with
its ``update``, ``goto`` and ``resume``."""

_MESSAGES = "messages"


def holds_anything(command: Mapping[str, Any]) -> bool:
    """Return True if a command has something to do: an answer, which may be ``None``, an update or a node to
    go to."""
    return RESUME in command or any(
        command.get(name) not in (None, "", [], {}, ()) for name in ("update", "goto")
    )


def check_command(command: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if the ``update`` or the ``goto`` of a command is not what a graph can apply, and
    ``TypeError`` if the command is not a mapping."""
    require_mapping("command", command)
    update, goto = command.get("update"), command.get("goto")
    if update is not None and not isinstance(update, Mapping) and not is_pairs(update):
        raise ValueError(
            "the update of a command is an object with values by their names, or a list of pairs of a name "
            "and a value"
        )
    if goto not in (None, "", {}) and not all(map(_is_destination, goto if _is_list(goto) else (goto,))):
        raise ValueError(
            "the goto of a command is the name of a node, an object with node and input, or a list of these"
        )


def is_pairs(update: Any) -> TypeGuard[Sequence[Sequence[Any]]]:
    """Return True if an update is a list of pairs of a name and a value, in place of a mapping."""
    return _is_list(update) and all(
        _is_list(pair) and len(pair) == 2 and isinstance(pair[0], str) for pair in update
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_destination(value: Any) -> bool:
    named = value.get("node") if isinstance(value, Mapping) else value
    return isinstance(named, str) and bool(named)


def are_alike(payload: Any, other: Any) -> bool:
    """Return True if two payloads are of one kind: mappings with the same keys, or both no mappings."""
    mine, its = (one.keys() if isinstance(one, Mapping) else None for one in (payload, other))
    return mine == its


def can_be_joined(before: Sequence[Any], payload: Any) -> bool:
    """Return True if a payload and those before it make one input in which nothing of them is lost.

    Messages can be joined, and so can inputs, by concatenating their lists. A graph may accumulate other
    values that it gets under one name, so inputs that both have such a value under a name are joined only if
    it is the same text, ``True``, ``False`` or ``None``, and not a message. A payload that removes messages
    is never joined: in a joined list it would also act on later messages, and fail if it names no message.
    """
    if not before:
        return True
    if removes(before[0]) or removes(payload):
        return False
    # A whole input and a single message make no common input.
    if not are_alike(before[0], payload):
        return False
    if not isinstance(payload, Mapping):
        return True
    if COMMAND in payload or RESUME in payload:
        return False
    return INPUT not in payload or all(_can_join_inputs(one[INPUT], payload[INPUT]) for one in before)


def removes(payload: Any) -> bool:
    """Return True if a payload has a message that removes others, in any form that LangChain reads."""
    if not isinstance(payload, Mapping):
        return False
    if MESSAGE in payload:
        return _is_removal(payload[MESSAGE])
    given = payload.get(INPUT)
    parts = given.values() if isinstance(given, Mapping) else (given,)
    return any(
        _is_removal(part) or (isinstance(part, list) and any(map(_is_removal, part))) for part in parts
    )


def _is_removal(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and value[0] == "remove"
    if not isinstance(value, Mapping):
        return False
    built = value.get("id") if value.get("lc") else None
    return "remove" in (value.get("type"), value.get("role")) or (
        isinstance(built, list) and built[-1:] == ["RemoveMessage"]
    )


def _can_join_inputs(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_can_join_values(name, one[name], value) for name, value in other.items() if name in one)
    return isinstance(one, list) and isinstance(other, list)


def _can_join_values(name: str, one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return True
    is_constant = other is None or isinstance(other, str | bool)
    return is_constant and type(one) is type(other) and one == other and name != _MESSAGES
