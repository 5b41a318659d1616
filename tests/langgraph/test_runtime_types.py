"""Objects of classes that are made while the program runs are stored as plain data, as with the stock savers,
and with a warning; strict mode refuses them."""

from __future__ import annotations

import dataclasses
import logging
from collections import namedtuple
from enum import Enum
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, create_model
from typing_extensions import TypedDict

import perdure
from perdure.errors import TypeNotAllowed, Unserialisable
from perdure.langgraph.values import serde as serde_module

CONFIG: Any = {"configurable": {"thread_id": "t"}}


@dataclasses.dataclass
class Box:
    """A class of the program, around an object of a class that is made later."""

    inside: Any


def _objects() -> dict[str, tuple[Any, Any]]:
    class Local(BaseModel):
        city: str
        more: Any = None

    @dataclasses.dataclass
    class Data:
        city: str

    class Kind(Enum):
        OLD = "old"

    made: Any = create_model("Made", city=(str, ...))
    Pair = namedtuple("Pair", "left right")
    pair: Any = Pair
    porto = {"city": "Porto"}
    return {
        "model": (Local(city="Porto"), {**porto, "more": None}),
        "made": (made(city="Porto"), porto),
        "data class": (Data("Porto"), porto),
        "nested": (Local(city="Porto", more=[made(city="Rome")]), {**porto, "more": [{"city": "Rome"}]}),
        "in a list": ([{"a": made(city="Porto")}], [{"a": porto}]),
        "in a class of the program": (Box(made(city="Porto")), Box(porto)),
        "in a message": (AIMessage("x", additional_kwargs={"parsed": made(city="Porto")}), None),
        "enum": (Kind.OLD, "old"),
        "named tuple": (pair(1, 2), {"left": 1, "right": 2}),
    }


def _graph(saver: Any, value: Any) -> Any:
    class State(TypedDict, total=False):
        kept: Any
        paid: bool

    builder = StateGraph(State)
    builder.add_node("answer", lambda state: {"kept": value, "paid": True})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("name", _objects())
def test_it_is_stored_as_plain_data_with_a_warning(
    tmp_path: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    value, plain = _objects()[name]
    serde_module._warned.clear()
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with perdure.connect_sync(url, migrate=True) as database, caplog.at_level(logging.WARNING):
        assert _graph(database.checkpointer(), value).invoke({}, CONFIG)["paid"]
    # LangChain dumps what a message holds itself.
    if name != "in a message":
        assert "made while the program runs" in caplog.text
        assert "Porto" not in caplog.text
    with perdure.connect_sync(url) as database:
        kept = _graph(database.checkpointer(), None).get_state(CONFIG).values["kept"]
        if isinstance(value, AIMessage):
            assert kept.additional_kwargs == {"parsed": {"city": "Porto"}}
        else:
            assert kept == plain
    stock = _graph(InMemorySaver(), value)
    stock.invoke({}, CONFIG)
    theirs = stock.get_state(CONFIG).values["kept"]
    if name in ("model", "made", "data class", "named tuple"):
        assert theirs == kept


@pytest.mark.parametrize("name", ["model", "made", "data class", "nested", "enum"])
def test_strict_mode_refuses_it(name: str) -> None:
    value, _ = _objects()[name]
    with perdure.connect_sync("memory://", migrate=True) as database:
        graph = _graph(database.checkpointer(allow="listed"), value)
        with pytest.raises((TypeNotAllowed, Unserialisable), match="not allowed"):
            graph.invoke({}, CONFIG)


def test_an_agent_with_a_response_format_of_a_function_answers_and_goes_on() -> None:
    def formatted() -> Any:
        class Weather(BaseModel):
            city: str

        return Weather

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

    call = {"name": "Weather", "args": {"city": "Porto"}, "id": "1"}
    answers = iter([AIMessage("", tool_calls=[call]), AIMessage("", tool_calls=[{**call, "id": "2"}])])
    with perdure.connect_sync("memory://", migrate=True) as database:
        agent: Any = create_agent(
            Model(messages=answers), [], response_format=formatted(), checkpointer=database.checkpointer()
        )
        for _ in range(2):
            found = agent.invoke({"messages": [("user", "weather?")]}, CONFIG)
            assert found["structured_response"].city == "Porto"
        assert agent.get_state(CONFIG).values["structured_response"]
