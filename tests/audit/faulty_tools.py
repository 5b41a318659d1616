"""Faulty graphs whose tools ask in parallel: answers to one question of a node reach another one's tool."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, tool
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from langgraph.types import Command, Send, interrupt

from tests.audit.building import Graph, finds, graph
from tests.audit.sound import ask_a_person, model, weather

TOOLS = "tools"


class Approval(BaseTool):
    name: str = "approve"
    description: str = "Ask for an approval."

    def _run(self, what: str) -> str:
        return str(interrupt(f"{what}?"))


class Desk:
    def clerk(self, what: str) -> str:
        """Ask the clerk."""
        return str(interrupt(f"{what}?"))

    def route(self, state: MessagesState) -> str:
        return TOOLS


def routed(route: Any, ends: Any = None, node: Any = None, chat: Any = None, start: str = "chat") -> Graph:
    """An agent whose tools are reached by a conditional edge."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("chat", chat or (lambda state: {"messages": [AIMessage("hello")]}))
    builder.add_node("tools", node or ToolNode([weather, ask_a_person]))
    builder.add_edge(START, "chat")
    if route is not None:
        builder.add_conditional_edges(start, route, ends)
    return builder.add_edge("tools", "chat").compile()


def whole(name: str = "tools") -> Callable[[Callable[[], Graph]], Callable[[], Graph]]:
    return finds("parallel-questions", name)


@whole()
def tools_behind_an_edge() -> Graph:
    return graph(MessagesState, tools=ToolNode([ask_a_person]))


@whole()
def tools_of_the_documentation() -> Graph:
    return routed(tools_condition)


@whole()
def tools_behind_a_mapping() -> Graph:
    return routed(lambda state: "continue" if state["messages"] else "end", {"continue": "tools", "end": END})


@whole()
def tools_behind_a_variable() -> Graph:
    def route(state: MessagesState) -> str:
        then = END
        if state["messages"]:
            then = TOOLS
        return then

    return routed(route)


@whole()
def tools_behind_a_helper() -> Graph:
    def route(state: Any) -> str:
        return tools_condition(state) if state["messages"] else END

    return routed(route)


@whole()
def tools_behind_a_method() -> Graph:
    return routed(Desk().route)


@whole()
def tools_behind_a_declared_destination() -> Graph:
    def route(state: Any) -> Literal["tools", "__end__"]:
        return state["messages"][-1].additional_kwargs["next"]

    return routed(route)


@whole()
def tools_behind_a_command() -> Graph:
    def chat(state: MessagesState) -> Any:
        return Command(goto="tools", update={"messages": []})

    return routed(None, chat=chat)


@whole()
def tools_that_are_sent_the_state() -> Graph:
    return routed(lambda state: [Send("tools", state)])


@whole()
def tools_joined_from_several_nodes() -> Graph:
    builder: Any = StateGraph(MessagesState)
    for name in ("first", "second"):
        builder.add_node(name, lambda state: {"messages": []}).add_edge(START, name)
    builder.add_node("tools", ToolNode([ask_a_person]))
    return builder.add_edge(["first", "second"], "tools").compile()


@whole()
def react_agent_of_the_first_version() -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_react_agent(model(), [weather, ask_a_person], version="v1")


@whole()
def tools_in_a_sequence() -> Graph:
    kept: RunnableLambda[Any, Any] = RunnableLambda(lambda state: state)
    return graph(MessagesState, tools=kept | ToolNode([ask_a_person]))


@whole()
def tools_that_a_function_calls() -> Graph:
    inner = ToolNode([ask_a_person])

    async def tools(state: MessagesState) -> Any:
        last = state["messages"][-1]
        return {"messages": await inner.ainvoke([last])}

    return graph(MessagesState, tools=tools)


@whole("work")
def tools_of_a_function_of_the_other_interface() -> Graph:
    inner = ToolNode([ask_a_person])

    @entrypoint()
    def work(messages: list[Any]) -> Any:
        return inner.invoke(messages)

    return work  # type: ignore[return-value]


@whole("inner/tools")
def tools_in_a_subgraph() -> Graph:
    return graph(MessagesState, inner=graph(MessagesState, tools=ToolNode([ask_a_person])))


@whole()
def asking_class_of_tools() -> Graph:
    return graph(MessagesState, tools=ToolNode([Approval()]))


@whole()
def asking_method_as_a_tool() -> Graph:
    return graph(MessagesState, tools=ToolNode([tool(Desk().clerk)]))


@whole()
def asking_before_each_call() -> Graph:
    def approved(request: Any, execute: Any) -> Any:
        interrupt({"run": request.tool_call["name"]})
        return execute(request)

    return graph(MessagesState, tools=ToolNode([weather], wrap_tool_call=approved))
