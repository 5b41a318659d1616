"""Repair: every list becomes one that providers take, and nothing is invented but results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from perdure.conversation import NO_RESULT, repair
from perdure.conversation.provider_blocks import results_of
from perdure.conversation.repair import is_synthetic
from tests.conversation.histories import Histories, anthropic_body, each, openai_body
from tests.conversation.rules import anthropic_faults, openai_faults


def call(call_id: str | None, name: str = "look") -> dict[str, Any]:
    return {"name": name, "args": {}, "id": call_id}


def asked(*ids: str | None, id: str = "a", content: Any = "") -> AIMessage:  # noqa: A002
    return AIMessage(content=content, tool_calls=[call(each) for each in ids], id=id)


def result(call_id: str, content: str = "ok", id: str | None = None) -> ToolMessage:  # noqa: A002
    return ToolMessage(content, tool_call_id=call_id, id=id or f"r-{call_id}")


def shape(messages: list[BaseMessage]) -> list[str | None]:
    return [m.tool_call_id if isinstance(m, ToolMessage) else m.id for m in messages]


HUMAN = HumanMessage("hi", id="h")


def test_a_whole_conversation_is_left_as_it_is() -> None:
    messages = [HUMAN, asked("1", "2"), result("2"), result("1"), AIMessage("done", id="b")]
    repaired = repair(messages)
    assert repaired.messages == messages
    assert repaired.changes == ()


def test_a_call_without_a_result_gets_one_right_after_it() -> None:
    repaired = repair([HUMAN, asked("1", "2"), result("1"), HumanMessage("and?", id="h2")])
    assert shape(repaired.messages) == ["h", "a", "1", "2", "h2"]
    added = repaired.messages[3]
    assert isinstance(added, ToolMessage)
    assert (added.content, added.status, added.name) == (NO_RESULT, "error", "look")
    assert [(change.kind, change.call_id) for change in repaired.changes] == [("result_added", "2")]


def test_results_move_to_their_call() -> None:
    repaired = repair([result("1"), HUMAN, asked("1", "2"), HumanMessage("x", id="h2"), result("2")])
    assert shape(repaired.messages) == ["h", "a", "1", "2", "h2"]
    assert [change.kind for change in repaired.changes] == ["result_moved", "result_moved"]


def test_results_of_interleaved_calls_move_to_their_own() -> None:
    repaired = repair([HUMAN, asked("1"), asked("2", id="b"), result("1"), result("2")])
    assert shape(repaired.messages) == ["h", "a", "1", "b", "2"]


def test_results_without_a_call_and_second_results_are_removed() -> None:
    repaired = repair([HUMAN, result("0"), asked("1"), result("1"), result("1", "other", id="x")])
    assert shape(repaired.messages) == ["h", "a", "1"]
    assert repaired.messages[-1].content == "ok"
    assert [change.kind for change in repaired.changes] == ["result_removed", "result_removed"]


def test_a_late_result_takes_the_place_of_an_added_one() -> None:
    first = repair([HUMAN, asked("1")]).messages
    repaired = repair([*first, HumanMessage("well?", id="h2"), result("1", "late")])
    assert shape(repaired.messages) == ["h", "a", "1", "h2"]
    assert repaired.messages[2].content == "late"


def test_ids_that_a_model_uses_again_are_told_apart() -> None:
    messages = [HUMAN, asked("c"), result("c", "one"), asked("c", id="b"), result("c", "two", id="r2")]
    repaired = repair(messages).messages
    ids = [m.tool_calls[0]["id"] for m in repaired if isinstance(m, AIMessage)]
    assert len(set(ids)) == 2
    results = {m.tool_call_id: m.content for m in repaired if isinstance(m, ToolMessage)}
    assert [results[str(each)] for each in ids] == ["one", "two"]


def test_calls_without_an_id_get_one_everywhere() -> None:
    block = {"type": "tool_use", "id": "", "name": "look", "input": {}}
    repaired = repair([HUMAN, asked("", content=[block])]).messages
    assert isinstance(repaired[1], AIMessage)
    new = repaired[1].tool_calls[0]["id"]
    assert new
    assert repaired[1].content[0]["id"] == new  # type: ignore[index]
    assert shape(repaired)[2] == new


def test_a_call_that_only_the_content_has_is_removed() -> None:
    block = {"type": "tool_use", "id": "gone", "name": "look", "input": {}}
    repaired = repair([HUMAN, AIMessage(["text", block], id="a"), result("gone")])
    assert repaired.messages[1].content == ["text"]
    assert shape(repaired.messages) == ["h", "a"]
    assert [change.kind for change in repaired.changes] == ["call_removed", "result_removed"]


def test_a_call_that_only_the_content_has_is_reported_beside_others() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "tool_use", "id": each, "name": "look", "input": {}} for each in ("1", "gone")
    ]
    repaired = repair([HUMAN, asked("1", content=blocks), result("1")])
    assert repaired.messages[1].content == blocks[:1]
    assert [change.kind for change in repaired.changes] == ["call_removed"]


def test_calls_whose_arguments_cannot_be_parsed_need_a_result_too() -> None:
    bad = {"name": "look", "args": "{", "id": "1", "error": None, "type": "invalid_tool_call"}
    repaired = repair([HUMAN, AIMessage("", invalid_tool_calls=[bad], id="a")])
    assert shape(repaired.messages) == ["h", "a", "1"]


@pytest.mark.parametrize(
    "empty",
    ["", " \n", [], [""], [{"type": "text", "text": " "}], [{"type": "thinking", "thinking": "hm"}]],
)
def test_empty_messages_are_removed(empty: str | list[str | dict[str, str]]) -> None:
    repaired = repair([HUMAN, AIMessage(empty, id="a"), HumanMessage("x", id="b")])
    assert shape(repaired.messages) == ["h", "b"]
    assert [change.kind for change in repaired.changes] == ["message_removed"]


@pytest.mark.parametrize("kind", ["thinking", "redacted_thinking", "reasoning"])
def test_a_message_does_not_end_with_reasoning(kind: str) -> None:
    reasoning, text = {"type": kind}, {"type": "text", "text": "so"}
    whole = AIMessage([reasoning, text], id="a")
    cut_off = AIMessage([reasoning, text, reasoning, reasoning], id="b")
    repaired = repair([HUMAN, whole, cut_off])
    assert repaired.messages[1:] == [whole, AIMessage([reasoning, text], id="b")]
    assert [(change.kind, change.message_id) for change in repaired.changes] == [("reasoning_removed", "b")]


def test_reasoning_before_a_call_stays() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    block = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    for content in ([thinking], [thinking, block]):
        messages = [HUMAN, asked("1", content=content), result("1")]
        assert repair(messages).messages == messages
    repaired = repair([HUMAN, asked("1", content=[thinking, block, thinking]), result("1")])
    assert repaired.messages[1].content == [thinking, block]


def test_a_call_without_text_is_not_empty() -> None:
    messages = [HUMAN, asked("1"), result("1", "")]
    assert repair(messages).messages == messages


def test_of_messages_with_one_id_the_last_counts() -> None:
    repaired = repair([HUMAN, AIMessage("x", id="a"), HumanMessage("corrected", id="h")])
    assert [message.content for message in repaired.messages] == ["corrected", "x"]


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(ValueError, match="number 1 of the list is a RemoveMessage"):
        repair([HUMAN, RemoveMessage(id="h")])
    with pytest.raises(ValueError, match="convert_to_messages"):
        repair([{"role": "user", "content": "hi"}])  # type: ignore[list-item]


def test_the_given_messages_are_not_changed() -> None:
    messages = [HUMAN, asked(None, None), asked("1", id="b", content=["", "x"]), SystemMessage("", id="s")]
    before = [message.model_copy(deep=True) for message in messages]
    repair(messages)
    assert messages == before


def searched(call_id: str, kind: str = "server_tool_use") -> dict[str, Any]:
    return {"type": kind, "id": call_id, "name": "web_search", "input": {}}


def found(call_id: str, kind: str = "web_search_tool_result") -> dict[str, Any]:
    key = "tool_call_id" if kind == "server_tool_result" else "tool_use_id"
    return {"type": kind, key: call_id, "content": []}


TEXT = {"type": "text", "text": "so"}


@pytest.mark.parametrize(
    ("call_kind", "result_kind"),
    [
        ("server_tool_use", "web_search_tool_result"),
        ("server_tool_use", "bash_code_execution_tool_result"),
        ("mcp_tool_use", "mcp_tool_result"),
        ("server_tool_call", "server_tool_result"),
    ],
)
def test_a_call_that_the_provider_did_not_answer_is_removed(call_kind: str, result_kind: str) -> None:
    whole = AIMessage([searched("s1", call_kind), found("s1", result_kind), TEXT], id="a")
    cut = AIMessage([TEXT, searched("s2", call_kind)], id="b")
    nothing = AIMessage([searched("s3", call_kind)], id="c")
    late = AIMessage([found("s2", result_kind), TEXT, found("s4", result_kind)], id="d")
    messages = [HUMAN, whole, HumanMessage("2", id="h2"), cut, HumanMessage("3", id="h3"), nothing]
    repaired = repair([*messages, HumanMessage("4", id="h4"), late])
    assert shape(repaired.messages) == ["h", "a", "h2", "b", "h3", "h4", "d"]
    assert [m.content for m in repaired.messages if isinstance(m, AIMessage)] == [
        whole.content,
        [TEXT],
        [TEXT],
    ]
    assert [(c.kind, c.message_id, c.call_id) for c in repaired.changes] == [
        ("call_removed", "b", "s2"),
        ("call_removed", "c", "s3"),
        ("result_removed", "d", "s2"),
        ("result_removed", "d", "s4"),
        ("message_removed", "c", None),
    ]
    assert repair(repaired.messages).changes == ()


def test_an_answer_that_the_provider_continues_is_left_as_it_is() -> None:
    paused = AIMessage([TEXT, searched("s1")], id="a")
    own = asked(
        "1", id="c", content=[searched("s2"), {"type": "tool_use", "id": "1", "name": "look", "input": {}}]
    )
    after = [AIMessage([found("s1"), TEXT], id="b"), own, result("1"), AIMessage([found("s2"), TEXT], id="d")]
    for end in range(len(after) + 1):
        messages = [HUMAN, paused, *after[:end]]
        if messages[-1] is not own:
            assert repair(messages).changes == (), end
    backwards = repair(
        [HUMAN, AIMessage([found("s1"), searched("s1"), TEXT], id="a"), HumanMessage("x", id="h2")]
    )
    assert backwards.messages[1].content == [TEXT]


def test_random_histories_are_repaired_once_and_for_all() -> None:
    each(300, 100_000, _repaired)


def _repaired(_number: int, histories: Histories) -> None:
    broken = histories.broken()
    repaired = repair(broken)
    again = repair(repaired.messages)
    assert again.messages == repaired.messages
    assert again.changes == ()
    assert (repaired.messages == broken) == (not repaired.changes)
    given = {id(message) for message in broken}
    contents = [message.content for message in broken]
    contents += [block["content"] for message in broken for block in results_of(message)]
    for message in repaired.messages:
        assert id(message) in given or is_synthetic(message) or _is_part(message.content, contents)
    if repaired.messages:
        assert not openai_faults(openai_body(repaired.messages))
        assert not anthropic_faults(anthropic_body(begun(repaired.messages)))


def begun(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages with a beginning that Anthropic takes, which a window gives them: a repair leaves system
    messages and the first one where they are."""
    heads = [message for message in messages if isinstance(message, SystemMessage)]
    rest = [message for message in messages if not isinstance(message, SystemMessage)]
    return [*heads, HumanMessage("begin"), *rest]


def _is_part(content: object, contents: Sequence[object]) -> bool:
    """Whether content is that of a given message, perhaps with less of it, or with other ids of calls."""
    if isinstance(content, str):
        return content == "" or content in contents
    kinds = [_kind(block) for block in content]  # type: ignore[attr-defined]
    return any(
        isinstance(other, list) and _within(kinds, [_kind(block) for block in other]) for other in contents
    )


def _kind(block: object) -> object:
    if isinstance(block, dict) and block.get("type") == "tool_use":
        return {name: value for name, value in block.items() if name != "id"}
    return block


def _within(part: list[object], whole: list[object]) -> bool:
    rest = iter(whole)
    return all(any(block == other for other in rest) for block in part)
