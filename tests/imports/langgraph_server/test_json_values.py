"""Values out of the JSON of a server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel
from typing_extensions import TypedDict

from perdure.errors import Unserialisable
from perdure.imports.langgraph_server.json_values import coerce, revive

MESSAGES: list[BaseMessage] = [
    HumanMessage([{"type": "text", "text": "ž"}], id="1", name="ada"),
    AIMessage(
        "", tool_calls=[{"name": "t", "args": {"x": [1]}, "id": "c"}], response_metadata={"model": "m"}
    ),
    AIMessageChunk(content="part", id="2"),
    ToolMessage("42", tool_call_id="c", artifact={"a": 1}, status="error"),
    SystemMessage("be kind"),
    FunctionMessage(content="f", name="f"),
    ChatMessage(content="c", role="critic"),
    RemoveMessage(id="3"),
]


@dataclass
class Point:
    x: int
    y: int = 0


class Model(BaseModel):
    when: datetime


class Map(TypedDict):
    points: list[Point]


def sent(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda held: held.model_dump(mode="json")))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.type)
def test_a_message_comes_back_as_it_was_at_any_depth(message: BaseMessage) -> None:
    found = revive(sent({"messages": [message], "deep": [{"one": message}]}))
    assert found == {"messages": [message], "deep": [{"one": message}]}
    assert type(found["messages"][0]) is type(message)


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": "hello"},
        {"type": "human", "content": "a row of a table"},
        {"type": "none", "content": "", "additional_kwargs": {}, "response_metadata": {}},
        {"type": ["human"], "content": "", "additional_kwargs": {}, "response_metadata": {}},
        {"type": "tool", "content": "", "additional_kwargs": {}, "response_metadata": {}},
        None,
        [1, "text", {"a": None}],
    ],
)
def test_what_is_not_a_message_stays(value: Any) -> None:
    assert revive(value) == value


@pytest.mark.parametrize(
    ("value", "expected", "typed"),
    [
        (["b", "a"], set[str], {"a", "b"}),
        ([1, "x"], tuple[int, str], (1, "x")),
        ("2026-01-02T03:04:05", datetime, datetime(2026, 1, 2, 3, 4, 5)),
        (1.5, timedelta, timedelta(seconds=1.5)),
        ("AP8=", bytes, b"\x00\xff"),
        ({"x": 1}, Point, Point(1)),
        ({"when": "2026-01-02T03:04:05"}, Model, Model(when=datetime(2026, 1, 2, 3, 4, 5))),
        ({"points": [{"x": 1, "y": 2}]}, Map, {"points": [Point(1, 2)]}),
        (MESSAGES[:1], list[AnyMessage], MESSAGES[:1]),
        (MESSAGES[:1], list[BaseMessage], MESSAGES[:1]),
        (None, int, None),
        ({"any": 1}, "Nowhere", {"any": 1}),
    ],
)
def test_a_value_gets_the_type_of_its_channel(value: Any, expected: Any, typed: Any) -> None:
    found = coerce("channel", value, expected)
    assert (found, type(found)) == (typed, type(typed))


def test_a_value_of_another_type_is_refused_without_its_text() -> None:
    with pytest.raises(Unserialisable, match="channel 'when' does not fit") as failed:
        coerce("when", "my secret", datetime)
    assert "secret" not in str(failed.value)
