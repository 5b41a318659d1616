"""The small graphs of langgraphjs' suites: one for each thing that a server has to be able to run."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, Literal, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from pydantic import BaseModel, Field


class CustomError(Exception):
    """The error that a suite looks for by this name."""


async def _fail(state: MessagesState) -> dict[str, Any]:
    await asyncio.sleep(1)
    raise CustomError("Boo!")


def _one(schema: Any, name: str, node: Any, **more: Any) -> Any:
    builder = StateGraph(schema, **more)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    return builder.compile()


error = _one(MessagesState, "error_node", _fail)


class _Delay(MessagesState):
    delay: float


async def _wait(state: _Delay) -> dict[str, Any]:
    await asyncio.sleep(state["delay"] / 1000)
    return {"messages": [f"finished after {state['delay']:g}ms"]}


delay = _one(_Delay, "long_running", _wait)


def _join(held: list[str], new: list[str] | str) -> list[str]:
    return [*held, *([new] if isinstance(new, str) else new)]


class _Dynamic(TypedDict, total=False):
    node: str
    messages: Annotated[list[str], _join]


def dynamic(config: RunnableConfig) -> Any:
    """A graph whose node has the name that the config gives."""
    name = config.get("configurable", {}).get("nodeName", "default")
    return _one(_Dynamic, name, lambda state: {"node": name, "messages": [name]})


class _Lines(TypedDict, total=False):
    messages: Annotated[list[str], operator.add]


class _Parent(_Lines, total=False):
    parent: Literal["parent_one", "parent_two"]


class _Child(_Lines, total=False):
    child: Literal["child_one", "child_two"]


def _pair(schema: Any, prefix: str, second: Any) -> Any:
    def enter(name: str) -> Any:
        return lambda state: {"messages": [f"Entered {name} node"]}

    builder = StateGraph(schema)
    builder.add_node(f"{prefix}_one", enter(f"{prefix}_one"))
    builder.add_node(f"{prefix}_two", second or enter(f"{prefix}_two"))
    builder.add_edge(START, f"{prefix}_one")
    builder.add_edge(f"{prefix}_one", f"{prefix}_two")
    builder.add_edge(f"{prefix}_two", END)
    return builder.compile()


nested = _pair(_Lines, "gp", _pair(_Parent, "p", _pair(_Child, "c", None)))


class _Weather(MessagesState):
    city: str


class _Route(MessagesState):
    route: Literal["weather", "other"]


def _weather() -> Any:
    inner = StateGraph(_Weather)
    inner.add_node("model_node", lambda state: {"city": "San Francisco"})
    inner.add_node("weather_node", lambda state: {"messages": [AIMessage(f"It's sunny in {state['city']}!")]})
    inner.add_edge(START, "model_node")
    inner.add_edge("model_node", "weather_node")
    inner.add_edge("weather_node", END)
    outer = StateGraph(_Route)
    outer.add_node("router_node", lambda state: {"route": "weather"})
    outer.add_node("normal_llm_node", lambda state: {"messages": [AIMessage("Hello")]})
    outer.add_node("weather_graph", inner.compile(interrupt_before=["weather_node"]))
    outer.add_edge(START, "router_node")
    outer.add_conditional_edges(
        "router_node",
        lambda state: "weather_graph" if state["route"] == "weather" else "normal_llm_node",
        ["weather_graph", "normal_llm_node"],
    )
    outer.add_edge("weather_graph", END)
    outer.add_edge("normal_llm_node", END)
    return outer.compile()


weather = _weather()

_Name = Literal["openai", "anthropic", "unknown"]


class _Named(TypedDict, total=False):
    message: str
    model: _Name


class _Context(TypedDict, total=False):
    model: _Name


def _use_context(state: _Named, runtime: Runtime[_Context]) -> dict[str, Any]:
    return {"model": (runtime.context or {}).get("model")}


simple_runtime = _one(_Named, "use_context", _use_context, context_schema=_Context)

_AS_MESSAGES: dict[str, Any] = {"langgraph_type": "messages"}


class _Counted(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = Field([], json_schema_extra=_AS_MESSAGES)
    count: int = 0


state_schema_graph = _one(
    _Counted,
    "process",
    lambda state: {"messages": [AIMessage(f"Response {state.count + 1}")], "count": state.count + 1},
)


class _Registered(BaseModel):
    messages: Annotated[list[str], _join] = Field([], json_schema_extra=_AS_MESSAGES)
    count: int = 0
    status: Literal["idle", "processing", "done"] = "idle"


zod_registry_graph = _one(
    _Registered,
    "process",
    lambda state: {
        "messages": f"Message {state.count + 1}",
        "count": state.count + 1,
        "status": "processing",
    },
)


class _Plain(BaseModel):
    items: list[str] = []
    counter: int = 0
    label: str | None = None


plain_zod_graph = _one(
    _Plain,
    "process",
    lambda state: {
        "items": [*state.items, f"Item {state.counter + 1}"],
        "counter": state.counter + 1,
        "label": "processed",
    },
)
