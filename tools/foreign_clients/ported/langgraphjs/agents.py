"""Two agents of langgraphjs' suites: a model and a tool in turn, and what they keep in the store. The model
costs nothing: its answer depends on what it is asked, and comes letter by letter."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import BaseStore
from langgraph.types import Send, interrupt


def _answer(messages: list[AnyMessage], last: str = "end") -> FakeListChatModel:
    """What answers ``last`` to what a tool returned and "begin" to all else, letter by letter."""
    return FakeListChatModel(
        responses=[last if messages and isinstance(messages[-1], ToolMessage) else "begin"]
    )


_SHARED = ("sharedState", "data")
_GIVEN = ("inputtedState", "data")


class _Output(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    sharedStateValue: str | None
    interrupt: bool
    keyOne: str | None
    keyTwo: str | None
    sleep: Any


class _State(_Output, total=False):
    sharedStateFromStoreConfig: dict[str, Any] | None


class _Model(TypedDict, total=False):
    model_name: str


def _user(config: RunnableConfig) -> Any:
    return config.get("configurable", {}).get("user_id")


async def _think(state: _State, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
    if state.get("interrupt"):
        interrupt("i want to interrupt")
    asked = state.get("sleep")
    if asked is not None and isinstance(state["messages"][-1], HumanMessage):
        if isinstance(asked, int | float):
            await asyncio.sleep(asked)
        else:
            write = get_stream_writer()
            for step in range(asked["steps"]):
                write({"type": "sleep", "step": step})
                await asyncio.sleep(asked["ms"] / 1000)
    answer = await _answer(state["messages"]).ainvoke(state["messages"])
    if not state.get("sharedStateFromStoreConfig"):
        await store.aput(_SHARED, "user_id", {"id": _user(config)})
    return {"interrupt": False, "messages": [answer]}


async def _use(state: _State, *, store: BaseStore) -> dict[str, Any]:
    held = await store.aget(_SHARED, "user_id")
    said = f"tool_call__{state['messages'][-1].content}"
    return {
        "messages": [ToolMessage(said, tool_call_id="tool_call_id")],
        "sharedStateFromStoreConfig": None if held is None else held.value,
    }


async def _check(state: _State, *, store: BaseStore) -> dict[str, Any]:
    held = await store.aget(_GIVEN, "my_key")
    if held is None or not held.value.get("isTrue"):
        raise ValueError("Value is not true")
    return {}


def _next(state: _State) -> str:
    first = state["messages"][0].content
    if first == "should_end":
        return END
    if first == "___check_state_value":
        return "checkSharedState"
    return END if state["messages"][-1].content == "end" else "tool"


def _agent() -> Any:
    builder = StateGraph(_State, context_schema=_Model, input_schema=_State, output_schema=_Output)
    builder.add_node("agent", _think)
    builder.add_node("tool", _use)
    builder.add_node("checkSharedState", _check)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", _next, ["tool", "checkSharedState", END])
    builder.add_edge("tool", "agent")
    builder.add_edge("checkSharedState", END)
    return builder.compile(name="agent")


agent = _agent()


class _Simple(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    key_one: str
    key_two: str
    sleep: float


async def _simply(state: _Simple, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
    configurable = config.get("configurable", {})
    if (header := configurable.get("x-configurable-header")) is not None:
        return {"messages": [("ai", f"end: {header}")]}
    user = configurable.get("langgraph_auth_user")
    namespace = (user["identity"] if user is not None else "ALL",)
    if await store.aget(namespace, "key_one") is None:
        await store.aput(namespace, "key_one", {"text": state["messages"][-1].content})
    model = _answer(state["messages"], last="end\u2028")
    return {"messages": [await model.ainvoke(state["messages"])]}


async def _simply_use(message: AnyMessage) -> dict[str, Any]:
    return {"messages": [ToolMessage(f"tool_call__{message.content}", tool_call_id="tool_call_id")]}


def _simply_next(state: _Simple) -> str | Send:
    last = state["messages"][-1]
    return END if str(last.content).startswith("end") else Send("tool", last)


def _agent_simple() -> Any:
    builder: Any = StateGraph(_Simple)
    builder.add_node("agent", _simply)
    builder.add_node("tool", _simply_use, input_schema=Any)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", _simply_next, ["tool", END])
    builder.add_edge("tool", "agent")
    return builder.compile(name="agent_simple")


agent_simple = _agent_simple()
