"""Calls and results that are Anthropic's own blocks: they are read as LangChain's, whole and in part."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage, convert_to_messages

from perdure.conversation import NO_RESULT, repair
from tests.conversation.histories import anthropic_body, openai_body
from tests.conversation.rules import anthropic_faults, openai_faults


def used(call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {"at": call_id}, **more}


def result(call_id: str, content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def repaired(*turns: tuple[str, Any]) -> list[BaseMessage]:
    given = convert_to_messages([{"role": role, "content": content} for role, content in turns])
    found = repair(given).messages
    assert not anthropic_faults(anthropic_body(found))
    assert not openai_faults(openai_body(found))
    again = repair(found)
    assert (again.messages, again.changes) == (found, ()), "a second repair changes something"
    return found


def test_a_call_and_its_result_become_langchain_s() -> None:
    text = {"type": "text", "text": "I look."}
    found = repaired(
        ("user", "hi"), ("assistant", [text, used("1")]), ("user", [result("1")]), ("assistant", "There.")
    )
    asked, answered = found[1:3]
    assert isinstance(asked, AIMessage)
    assert [(call["id"], call["name"], call["args"]) for call in asked.tool_calls] == [
        ("1", "look", {"at": "1"})
    ]
    assert asked.content == [text, used("1")]
    assert isinstance(answered, ToolMessage)
    assert (answered.tool_call_id, answered.content, answered.status) == ("1", "ok", "success")


def test_text_beside_results_stays_a_message_of_the_user() -> None:
    failed = result("2", [{"type": "text", "text": "no"}], is_error=True)
    more = {"type": "text", "text": "and hurry"}
    found = repaired(
        ("user", "hi"), ("assistant", [used("1"), used("2")]), ("user", [failed, result("1"), more])
    )
    assert [type(message) for message in found[2:]] == [ToolMessage, ToolMessage, HumanMessage]
    assert [getattr(message, "status", None) for message in found[2:]] == ["error", "success", None]
    assert found[4].content == [more]


def test_ids_are_of_the_message_that_had_the_results() -> None:
    history = [HumanMessage("hi", id="h"), AIMessage([used("1"), used("2")], id="a")]
    text = {"type": "text", "text": "so"}
    cases: list[tuple[Any, list[str]]] = [
        ([result("1"), result("2")], ["r-result-0", "r"]),
        ([result("1"), result("2"), text], ["r-result-0", "r-result-1", "r"]),
    ]
    for blocks, ids in cases:
        found = repair([*history, HumanMessage(blocks, id="r")])
        assert [message.id for message in found.messages] == ["h", "a", *ids]
        assert [(change.kind, change.message_id) for change in found.changes] == [
            ("call_converted", "a"),
            ("result_converted", "r"),
        ]


@pytest.mark.parametrize(
    "asked",
    [used("2"), used("1", input="{"), used("1", name=None), {"type": "tool_use"}],
    ids=["another", "unread", "nameless", "empty"],
)
def test_a_result_without_a_call_is_removed(asked: dict[str, Any]) -> None:
    found = repaired(
        ("user", "hi"), ("assistant", ["I look.", asked]), ("user", [result("1")]), ("user", "so?")
    )
    assert [type(message) for message in found] == [HumanMessage, AIMessage, HumanMessage]
    assert not getattr(found[1], "tool_calls", None)


def test_a_call_that_was_taken_back_stays_taken_back() -> None:
    history = [HumanMessage("hi"), AIMessage([{"type": "text", "text": "I look."}, used("1")])]
    found = repair([*history, HumanMessage("so?")])
    assert [change.kind for change in found.changes] == ["call_removed"]


def test_a_call_of_langchain_s_may_have_its_result_in_a_block() -> None:
    call = {"name": "look", "args": {}, "id": "1"}
    found = repair([HumanMessage("hi"), AIMessage("", tool_calls=[call]), HumanMessage([result("1")])])
    assert [message.content for message in found.messages] == ["hi", "", "ok"]
    assert NO_RESULT not in [message.content for message in found.messages]
