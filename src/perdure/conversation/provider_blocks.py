"""Convert calls and results that are content blocks of a provider to LangChain's tool calls and messages.

Histories that were not written by LangChain have such blocks: Anthropic's ``tool_use`` in an assistant's
content, and ``tool_result`` in a user's. Other providers refuse these blocks, and programs that read
``tool_calls`` do not see them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage

from perdure.conversation.tool_calls import calls_of, type_of


def find_answered_call(result: Mapping[str, Any]) -> str:
    """Return the id of the call that a content block answers; empty if the block names none."""
    return str(result.get("tool_use_id") or "")


def results_of(message: BaseMessage) -> list[dict[str, Any]]:
    """Return the content blocks of a user's message that are results of calls."""
    if not isinstance(message, HumanMessage) or isinstance(message.content, str):
        return []
    return [block for block in message.content if isinstance(block, dict) and _is_result(block)]


def with_calls(message: AIMessage, answered: Collection[str]) -> AIMessage:
    """Return an answer in which the calls in content blocks are tool calls, too, if their id is in
    ``answered``.

    A call that is in the content alone and has no result does not become a tool call: an application may have
    taken it back, by removing it from ``tool_calls`` alone.
    """
    if isinstance(message.content, str):
        return message
    known = {call_id for call_id, _ in calls_of(message)}
    calls: list[ToolCall] = []
    for block in message.content:
        if not isinstance(block, dict) or type_of(block) != "tool_use":
            continue
        call_id, name, given = str(block.get("id") or ""), block.get("name"), block.get("input")
        if call_id in answered and call_id not in known and isinstance(name, str) and isinstance(given, dict):
            known.add(call_id)
            calls.append(ToolCall(name=name, args=given, id=call_id, type="tool_call"))
    if calls:
        return message.model_copy(update={"tool_calls": [*message.tool_calls, *calls]})
    return message


def without_results(message: HumanMessage, results: Sequence[dict[str, Any]]) -> list[BaseMessage]:
    """Split a user's message with results into a message for each result, and one with the rest, if there is
    any. The last of these messages keeps the id."""
    rest = [block for block in message.content if not _is_result(block)]
    parts: list[BaseMessage] = []
    for number, block in enumerate(results):
        is_last = not rest and number == len(results) - 1
        parts.append(
            ToolMessage(
                block.get("content") or "",
                tool_call_id=find_answered_call(block),
                status="error" if block.get("is_error") else "success",
                id=message.id if is_last or not message.id else f"{message.id}-result-{number}",
            )
        )
    if rest:
        return [*parts, message.model_copy(update={"content": rest})]
    return parts


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and type_of(block) == "tool_result"
