"""The documented rules of OpenAI's and Anthropic's requests, checked on the body that a client sends.

OpenAI, chat completions: there is a message; a message of the assistant has content or calls; a message with
``tool_calls`` is followed by one message of the role ``tool`` for each id, before any other, and such
messages stand nowhere else.

Anthropic, messages: turns of one role in a row count as one; the first is the user's; content is not empty
but for a last turn of the assistant, which does not end with white space; text is not blank; ids of
``tool_use`` are unique and of letters, digits, ``_`` and ``-``; the next turn begins with one ``tool_result``
for each ``tool_use``, and these stand nowhere else; a turn of the assistant does not end with thinking.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def openai_faults(body: Mapping[str, Any]) -> list[str]:
    """The rules of OpenAI that a request breaks."""
    faults = [] if body["messages"] else ["no messages"]
    waiting: list[str] = []
    for place, message in enumerate(body["messages"]):
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] not in waiting:
                faults.append(
                    f"{place}: a result without a call right before it: {message['tool_call_id']!r}"
                )
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            faults.append(f"{place}: calls without a result: {waiting}")
        waiting = []
        if role == "assistant":
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
            faults += [
                f"{place}: a call without a name"
                for call in message.get("tool_calls") or ()
                if not call["function"]["name"]
            ]
            if len(set(waiting)) < len(waiting) or not all(waiting):
                faults.append(f"{place}: calls whose ids are empty or the same: {waiting}")
        if not message.get("content") and not waiting and "function_call" not in message:
            faults.append(f"{place}: no content")
    return faults + ([f"end: calls without a result: {waiting}"] if waiting else [])


def anthropic_faults(body: Mapping[str, Any]) -> list[str]:
    """The rules of Anthropic that a request breaks."""
    faults = [f"system: {fault}" for fault in _text_faults(_blocks(body.get("system") or "-"))]
    turns = _turns(body["messages"])
    if not turns or turns[0][0] != "user":
        faults.append("the first turn is not the user's")
    used: set[str] = set()
    waiting: list[str] = []
    for place, (role, blocks) in enumerate(turns):
        is_last = place == len(turns) - 1
        if not blocks and not (is_last and role == "assistant"):
            faults.append(f"{place}: empty")
        faults += [f"{place}: {fault}" for fault in _text_faults(blocks)]
        results = [block for block in blocks if block["type"] == "tool_result"]
        if [block["type"] for block in blocks[: len(results)]] != ["tool_result"] * len(results):
            faults.append(f"{place}: results after other content")
        if sorted(block["tool_use_id"] for block in results) != sorted(waiting):
            faults.append(f"{place}: calls {waiting}, results {[block['tool_use_id'] for block in results]}")
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if role == "user" and waiting:
            faults.append(f"{place}: a call of the user's")
        for call_id in waiting:
            if call_id in used or not re.fullmatch(r"[a-zA-Z0-9_-]+", call_id or ""):
                faults.append(f"{place}: the id {call_id!r} is taken or of other characters")
            used.add(call_id)
        if role == "assistant" and blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            faults.append(f"{place}: ends with thinking")
        if is_last and role == "assistant" and blocks and blocks[-1].get("text", "").endswith((" ", "\n")):
            faults.append(f"{place}: ends with white space")
    return faults + ([f"end: calls without a result: {waiting}"] if waiting else [])


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    turns: list[tuple[str, list[Any]]] = []
    for message in messages:
        blocks = _blocks(message["content"])
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(blocks)
        else:
            turns.append((message["role"], blocks))
    return turns


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content)


def _text_faults(blocks: Sequence[Any]) -> list[str]:
    return ["blank text" for block in blocks if block["type"] == "text" and not block["text"].strip()]
