"""Messages that are set up without their constructor are those that the constructor would have made."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata

from perdure.langgraph.values import object_building
from perdure.langgraph.values.object_building import PYDANTIC_2, build

TEXT = st.text(max_size=5)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), TEXT)
JSON = st.recursive(
    SCALARS, lambda some: st.lists(some, max_size=2) | st.dictionaries(TEXT, some, max_size=2)
)
PROVIDER_CALL = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
KWARGS = st.one_of(
    st.dictionaries(TEXT, JSON, max_size=2),
    st.just({"refusal": None}),
    st.just({"tool_calls": [PROVIDER_CALL]}),
)
CONTENT = TEXT | st.lists(TEXT | st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), max_size=2)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"name": TEXT, "args": st.dictionaries(TEXT, JSON, max_size=2), "id": TEXT | st.none()}
    )
    | st.fixed_dictionaries({"name": TEXT, "args": st.just({}), "id": TEXT, "type": st.just("tool_call")}),
    max_size=2,
)
FAILED_CALLS = st.lists(
    st.fixed_dictionaries({"name": TEXT, "args": TEXT, "id": TEXT, "error": TEXT | st.none()}), max_size=1
)
COUNTS = st.just(UsageMetadata(input_tokens=1, output_tokens=2, total_tokens=3))
COMMON = {
    "content": CONTENT,
    "additional_kwargs": KWARGS,
    "response_metadata": st.dictionaries(TEXT, JSON, max_size=2),
    "name": TEXT | st.none(),
    "id": TEXT | st.none(),
}


@st.composite
def messages(draw: st.DrawFn) -> BaseMessage:
    cls = draw(st.sampled_from([AIMessage, HumanMessage, SystemMessage, ToolMessage]))
    fields = dict(COMMON)
    if cls is AIMessage:
        fields |= {
            "tool_calls": CALLS,
            "invalid_tool_calls": FAILED_CALLS,
            "usage_metadata": COUNTS | st.none(),
        }
    if cls is ToolMessage:
        fields |= {"tool_call_id": TEXT, "artifact": JSON, "status": st.sampled_from(["success", "error"])}
    given_fields = {
        name: draw(values) for name, values in fields.items() if name == "content" or draw(st.booleans())
    }
    if cls is ToolMessage:
        given_fields.setdefault("tool_call_id", "call")
    more = draw(st.dictionaries(st.sampled_from(["note", "rank"]), JSON, max_size=1))
    message: BaseMessage = cls(**given_fields, **more)
    return message


def state_of(message: Any) -> tuple[Any, ...]:
    return (
        type(message),
        list(message.__dict__.items()),
        message.__pydantic_fields_set__,
        message.__pydantic_extra__,
        message.__pydantic_private__,
    )


@given(messages())
def test_a_stored_message_is_built_as_its_constructor_builds_it(message: BaseMessage) -> None:
    stored = message.model_dump()
    expected = type(message)(**copy.deepcopy(stored))
    assert state_of(build(PYDANTIC_2, type(message), copy.deepcopy(stored))) == state_of(expected)


def test_common_messages_are_set_up_without_their_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"name": "search", "args": {"q": "1"}, "id": "c", "type": "tool_call"}
    stored = [
        (type(message), message.model_dump())
        for message in (
            HumanMessage("hello", id="1"),
            AIMessage("", id="2", tool_calls=[call], additional_kwargs={"refusal": None}),
            ToolMessage("found", id="3", tool_call_id="c"),
            AIMessage(
                "done", id="4", usage_metadata=UsageMetadata(input_tokens=1, output_tokens=1, total_tokens=2)
            ),
        )
    ]
    monkeypatch.setattr(object_building, "_build", None)
    assert [build(PYDANTIC_2, cls, fields).model_dump() for cls, fields in copy.deepcopy(stored)] == [
        fields for _, fields in stored
    ]


def test_such_a_message_can_be_changed_and_copied() -> None:
    message = build(PYDANTIC_2, HumanMessage, HumanMessage("hello", id="1").model_dump())
    message.content = "changed"
    message.note = "more"
    assert copy.deepcopy(message) == message == message.model_copy()
    assert message.model_dump()["note"] == "more"


@pytest.mark.parametrize(
    "change",
    [
        {"content": ["a", {"type": "text", "text": "b"}]},
        {"id": 7},
        {"additional_kwargs": {"tool_calls": [PROVIDER_CALL]}},
        {"tool_calls": [{"args": {}, "name": "search", "id": None, "extras": {}, "type": "tool_call"}]},
        {"usage_metadata": {"input_tokens": 1}},
        {"type": "human"},
        {"another": 1},
    ],
)
def test_a_message_that_was_changed_after_it_was_made_is_built_as_before(change: dict[str, Any]) -> None:
    stored = {**AIMessage("hello", id="1").model_dump(), **change}
    try:
        expected = AIMessage(**copy.deepcopy(stored))
    except ValueError:
        expected = AIMessage.model_construct(**copy.deepcopy(stored))
    assert build(PYDANTIC_2, AIMessage, copy.deepcopy(stored)) == expected
