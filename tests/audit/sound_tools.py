"""Sound graphs with tools that ask, or that could be taken to ask: each call has a question of its own."""

from __future__ import annotations

import warnings
from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langgraph.graph import END, MessagesState
from langgraph.prebuilt import ToolNode, create_react_agent
from langgraph.types import Command, Send, interrupt

from tests.audit.building import graph
from tests.audit.faulty_tools import TOOLS, routed
from tests.audit.sound import Graph, ask_a_person, model, sound, weather


class Approved(AgentMiddleware):
    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        interrupt({"run": request.tool_call["name"]})
        return handler(request)


@sound
def agent_of_langchain() -> Graph:
    return create_agent(model(), [weather, ask_a_person])


@sound
def agent_of_langchain_with_middleware() -> Graph:
    middleware: Any = [Approved(), HumanInTheLoopMiddleware({"weather": True})]
    return create_agent(model(), [weather, ask_a_person], middleware=middleware)


@sound
def react_agent_with_a_hook_after_the_model() -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_react_agent(
            model(), [ask_a_person], version="v2", post_model_hook=lambda state: {"messages": []}
        )


@sound
def each_call_sent_on_its_own() -> Graph:
    def route(state: Any) -> list[Send] | Literal["__end__"]:
        return [Send(TOOLS, [call]) for call in state["messages"][-1].tool_calls] or "__end__"

    return routed(route, ["tools", END])


@sound
def each_call_sent_from_a_list() -> Graph:
    def route(state: Any) -> Any:
        sends = []
        for call in state["messages"][-1].tool_calls:
            if call["name"] != "weather":
                sends.append(Send("tools", [call]))  # noqa: PERF401
        return sends

    return routed(route, ["tools"])


def each_call(state: Any) -> Any:
    return [Send("tools", [call]) for call in state["messages"][-1].tool_calls]


@sound
def each_call_sent_by_a_helper() -> Graph:
    def route(state: Any) -> Any:
        return each_call(state) if state["messages"] else END

    return routed(route, ["tools", END])


@sound
def each_call_sent_by_a_command() -> Graph:
    def chat(state: Any) -> Command[Literal["tools"]]:
        return Command(goto=each_call(state))

    return routed(None, chat=chat)


@sound
def tools_one_after_another() -> Graph:
    inner = ToolNode([ask_a_person])

    def tools(state: Any) -> Any:
        results: list[Any] = []
        for call in state["messages"][-1].tool_calls:
            results += inner.invoke([call])["messages"]
        return {"messages": results}

    return graph(MessagesState, tools=tools)


@sound
def tools_that_do_not_ask_behind_an_edge() -> Graph:
    return graph(MessagesState, tools=ToolNode([weather]))
