"""Calls of a message, in every place where it holds them."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage

from perdure.conversation.tool_calls import calls_of, find_server_call, find_server_result, with_ids


def message() -> AIMessage:
    raw = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return AIMessage(
        [{"type": "text", "text": "so"}, {"type": "tool_use", "id": "1", "name": "look", "input": {}}],
        tool_calls=[{"name": "look", "args": {}, "id": "1"}],
        invalid_tool_calls=[
            {"name": "save", "args": "{", "id": "2", "error": None, "type": "invalid_tool_call"}
        ],
        additional_kwargs={"tool_calls": [raw], "other": 1},
    )


def test_parsed_and_unparsed_calls_are_calls() -> None:
    assert calls_of(message()) == [("1", "look"), ("2", "save")]


def test_an_id_changes_everywhere() -> None:
    changed = with_ids(message(), {("1", 0): "a", ("2", 0): "b"})
    assert calls_of(changed) == [("a", "look"), ("b", "save")]
    assert changed.content[1]["id"] == "a"  # type: ignore[index]
    assert changed.additional_kwargs["tool_calls"][0]["id"] == "a"
    assert message().tool_calls[0]["id"] == "1"


def test_a_call_that_is_removed_is_removed_everywhere() -> None:
    changed = with_ids(message(), {})
    assert calls_of(changed) == []
    assert changed.content == [{"type": "text", "text": "so"}]
    assert changed.additional_kwargs == {"other": 1}


def test_ids_that_stay_leave_the_message_as_it_is() -> None:
    same = message()
    assert with_ids(same, {("1", 0): "1", ("2", 0): "2"}) is same


def test_calls_of_one_id_are_told_apart_by_their_number() -> None:
    call = {"name": "look", "args": {}, "id": "1"}
    block = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    twice = AIMessage([block, block], tool_calls=[call, call])
    changed = with_ids(twice, {("1", 0): "1", ("1", 1): "x"})
    assert calls_of(changed) == [("1", "look"), ("x", "look")]
    assert [part["id"] for part in changed.content] == ["1", "x"]  # type: ignore[index]


def test_calls_of_one_id_are_told_apart_in_a_message_of_text() -> None:
    call = {"name": "look", "args": {}, "id": "1"}
    changed = with_ids(AIMessage("so", tool_calls=[call, call]), {("1", 0): "1", ("1", 1): "x"})
    assert calls_of(changed) == [("1", "look"), ("x", "look")]


@pytest.mark.parametrize(
    ("block", "call", "result"),
    [
        ({"type": "server_tool_use", "id": "s"}, "s", None),
        ({"type": "web_fetch_tool_result", "tool_use_id": "s"}, None, "s"),
        ({"type": "server_tool_result", "tool_call_id": "s"}, None, "s"),
        # A result of the caller's own tool, a call without a result of its own, and what is not a block.
        ({"type": "tool_result", "tool_use_id": "s"}, None, None),
        ({"type": "web_search_call", "id": "s"}, None, None),
        ({"type": ["server_tool_use"]}, None, None),
        ("server_tool_use", None, None),
    ],
)
def test_calls_and_results_of_the_provider_are_told_apart(
    block: object, call: str | None, result: str | None
) -> None:
    assert (find_server_call(block), find_server_result(block)) == (call, result)
