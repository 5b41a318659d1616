"""Messages become neutral JSON and LangChain's messages again without loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from perdure.errors import Unserialisable
from perdure.history.neutral_messages import neutral, to_langchain, to_neutral

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
PART = (
    TEXT
    | st.builds(lambda text: {"type": "text", "text": text}, TEXT)
    | OBJECT.map(
        lambda more: {"type": "image_url", **{k: v for k, v in more.items() if k not in ("type", "index")}}
    )
)
CONTENT = TEXT | st.lists(PART, max_size=3)
NAMED = {
    "content": CONTENT,
    "id": st.none() | TEXT.filter(bool),
    "name": st.none() | TEXT,
    "additional_kwargs": st.just({})
    | st.lists(TEXT, min_size=1, max_size=2).map(lambda tags: {"tags": tags}),
}
CALL = st.builds(
    lambda name, args, call_id: {"name": name, "args": args, "id": call_id, "type": "tool_call"},
    TEXT,
    OBJECT,
    st.none() | TEXT,
)
MESSAGE: st.SearchStrategy[BaseMessage] = st.one_of(
    st.builds(HumanMessage, **NAMED),
    st.builds(SystemMessage, **NAMED),
    st.builds(AIMessage, tool_calls=st.lists(CALL, max_size=3), **NAMED),
    st.builds(ToolMessage, tool_call_id=TEXT, status=st.sampled_from(["success", "error"]), **NAMED),
)


@given(st.lists(MESSAGE, max_size=4))
def test_messages_come_back_equal_from_their_json(messages: list[BaseMessage]) -> None:
    stored = to_neutral(messages)
    again = to_langchain(json.loads(json.dumps(stored)))
    assert again == messages
    assert [type(m) for m in again] == [type(m) for m in messages]
    assert to_neutral(again) == stored


def test_a_conversation_with_tools_has_the_documented_form() -> None:
    messages = [
        SystemMessage("be brief"),
        HumanMessage([{"type": "text", "text": "weather?"}, {"type": "image_url", "image_url": "x"}]),
        AIMessage("", tool_calls=[{"name": "look", "args": {"at": "Rome"}, "id": "c1"}]),
        ToolMessage("sun", tool_call_id="c1", name="look"),
        AIMessage("sunny", id="a2"),
    ]
    assert to_neutral(messages, tags=["t"]) == [
        {"role": "system", "content": "be brief", "tags": ["t"]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "weather?"}, {"type": "image_url", "image_url": "x"}],
            "tags": ["t"],
        },
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "name": "look", "args": {"at": "Rome"}}],
            "tags": ["t"],
        },
        {"role": "tool", "content": "sun", "tool_call_id": "c1", "name": "look", "tags": ["t"]},
        {"role": "assistant", "content": "sunny", "id": "a2", "tags": ["t"]},
    ]


def test_legacy_pairs_and_tool_calls_of_openai_are_accepted() -> None:
    old: list[dict[str, Any]] = [
        {"role": "human", "content": "hi"},
        {"role": "ai", "content": "hello"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                {"id": "d", "type": "function", "function": {"name": "g", "arguments": ""}},
            ],
        },
    ]
    assert to_neutral(old) == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "name": "f", "args": {"a": 1}}, {"id": "d", "name": "g", "args": {}}],
        },
    ]
    assert [type(m) for m in to_langchain(old)] == [HumanMessage, AIMessage, AIMessage]


def test_rarer_messages_are_kept() -> None:
    broken = {"name": "f", "args": "{", "id": "c", "error": "no JSON", "type": "invalid_tool_call"}
    developer = SystemMessage("d", additional_kwargs={"__openai_role__": "developer"})
    messages = [FunctionMessage(content="1", name="f"), developer, AIMessage("", invalid_tool_calls=[broken])]
    assert to_langchain(to_neutral(messages)) == messages
    assert to_neutral([ChatMessage(content="x", role="user"), AIMessageChunk(content="y")]) == [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y"},
    ]


def test_a_neutral_message_shares_nothing_with_its_source() -> None:
    args = {"list": [1]}
    (stored,) = to_neutral([AIMessage("", tool_calls=[{"name": "f", "args": args, "id": "c"}])])
    args["list"].append(2)
    assert stored["tool_calls"][0]["args"] == {"list": [1]}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("secret", "has to be an object"),
        ({"content": "secret"}, "role"),
        ({"role": "asistant", "content": "secret"}, "role"),
        ({"role": "user", "content": 7}, "content"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": ["secret", 7]}, "content"),
        ({"role": "user", "content": "secret", "extra": 1}, "extra"),
        ({"role": "tool", "content": "secret"}, "tool_call_id"),
        ({"role": "user", "content": "secret", "tool_call_id": "c"}, "tool_call_id"),
        (
            {"role": "user", "content": "secret", "tool_calls": [{"id": "c", "name": "f", "args": {}}]},
            "assistant",
        ),
        ({"role": "assistant", "content": "secret", "tool_calls": [{"id": "c"}]}, "args"),
        ({"role": "assistant", "content": "secret", "tool_calls": {"id": "c"}}, "list"),
        (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": "secret"}}],
            },
            "not JSON",
        ),
        ({"role": "user", "content": "secret", "tags": "t"}, "tags"),
        ({"role": "user", "content": "secret", "name": 7}, "name"),
        ({"role": "user", "content": "secret", "status": "error"}, "status"),
        ({"role": "function", "content": "secret"}, "name"),
        ({"role": "user", "content": [{"x": float("nan")}]}, "plain JSON"),
        ({"role": "user", "content": [{7: "secret"}]}, "plain JSON"),
        ({"role": "user", "content": "\ud800"}, "plain JSON"),
        ({"role": "user", "content": [{"x": b"secret"}]}, "plain JSON"),
    ],
)
def test_what_is_no_message_is_refused_without_its_text(message: Any, reason: str) -> None:
    with pytest.raises(Unserialisable, match=reason) as refused:
        neutral(message, 3)
    assert "message 3" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("message", [RemoveMessage(id="a"), ChatMessage(content="x", role="critic")])
def test_a_langchain_message_without_a_neutral_form_is_refused(message: BaseMessage) -> None:
    with pytest.raises(Unserialisable, match="message 0"):
        to_neutral([message])
