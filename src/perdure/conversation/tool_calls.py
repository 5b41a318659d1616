"""Read and change the tool calls of a message, which LangChain keeps in up to four places in the message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage

_ID_IN_BLOCK = {
    "tool_use": "id",
    "tool_call": "id",
    "tool_call_chunk": "id",
    "invalid_tool_call": "id",
    "function_call": "call_id",
}
"""Types of content blocks that are calls for the caller's own tools, with the key of the call's id."""

_SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use", "server_tool_call"})
"""Types of content blocks that are calls for tools of the provider, whose results are in later blocks."""

_CALL_IN_RESULT = ("tool_use_id", "tool_call_id")

NewIds = Mapping[tuple[str, int], str]
"""Maps a call's id, and the call's number among the calls with this id in one message, to the new id. A call
that is absent is removed."""


def calls_of(message: AIMessage) -> list[tuple[str, str]]:
    """Return the id and the name of each call of a message, including calls whose arguments could not be
    parsed. A missing id or name is empty."""
    calls: Sequence[Any] = [*message.tool_calls, *message.invalid_tool_calls]
    return [(call.get("id") or "", call.get("name") or "") for call in calls]


def is_call(block: Mapping[str, Any]) -> bool:
    """Return True if a content block is a call for one of the caller's own tools."""
    return type_of(block) in _ID_IN_BLOCK


def find_server_call(block: Any) -> str | None:
    """Return the id of a content block that is a call for a tool that the provider runs, ``None`` for any
    other block. A call whose result is not a separate block does not count."""
    if not isinstance(block, dict) or type_of(block) not in _SERVER_CALLS:
        return None
    return str(block.get("id") or "")


def find_server_result(block: Any) -> str | None:
    """Return the id of the call whose result a content block is, if the provider ran the tool; ``None`` for
    any other block."""
    if not isinstance(block, dict) or not type_of(block).endswith("_tool_result"):
        return None
    return next((str(block[key]) for key in _CALL_IN_RESULT if block.get(key)), "")


def type_of(block: Mapping[str, Any]) -> str:
    """Return the type of a content block; empty if it has none."""
    kind = block.get("type")
    if isinstance(kind, str):
        return kind
    return ""


def with_ids(message: AIMessage, new_ids: NewIds) -> AIMessage:
    """Return a message whose calls have the new ids, in every place where the message contains them.

    The calls of a message are those in ``tool_calls`` and ``invalid_tool_calls``. Calls that are only in its
    content or in the provider's raw form are removed: a provider would receive them without a result.
    """
    if (
        isinstance(message.content, str)
        and "tool_calls" not in message.additional_kwargs
        and len(new_ids) == len(message.tool_calls) + len(message.invalid_tool_calls)
        and all(number == 0 and new == old for (old, number), new in new_ids.items())
    ):
        return message  # This is the case for most messages.
    fields: dict[str, Any] = {}
    count_by_id: Counter[str] = Counter()
    for name in ("tool_calls", "invalid_tool_calls"):
        fields[name] = _rename_ids(getattr(message, name), "id", new_ids, count_by_id)
    if "tool_calls" in message.additional_kwargs:
        raw_calls = _rename_ids(message.additional_kwargs["tool_calls"], "id", new_ids, Counter())
        fields["additional_kwargs"] = {**message.additional_kwargs, "tool_calls": raw_calls}
        if not raw_calls:
            del fields["additional_kwargs"]["tool_calls"]
    if isinstance(message.content, list):
        fields["content"] = _rename_blocks(message.content, new_ids)
    changed = {name: value for name, value in fields.items() if value != getattr(message, name)}
    if changed:
        return message.model_copy(update=changed)
    return message


def _rename_ids(calls: Sequence[Any], key: str, new_ids: NewIds, count_by_id: Counter[str]) -> list[Any]:
    kept = []
    for call in calls:
        call_id = call.get(key) or ""
        new_id = new_ids.get((call_id, count_by_id[call_id]))
        count_by_id[call_id] += 1
        if new_id is not None:
            kept.append(call if new_id == call.get(key) else {**call, key: new_id})
    return kept


def _rename_blocks(content: Sequence[Any], new_ids: NewIds) -> list[Any]:
    kept: list[Any] = []
    count_by_id: Counter[str] = Counter()
    for block in content:
        key = None
        if isinstance(block, dict):
            key = _ID_IN_BLOCK.get(type_of(block))
        if key is None:
            kept += [block]
        else:
            kept += _rename_ids([block], key, new_ids, count_by_id)
    return kept
