"""A thin supervisor for WhatsApp as its author wrote it: a router, a writer, and a worker that keeps nothing.

The state is messages, summary and route. The worker is a graph without checkpoints that a node calls; only
its distilled result comes back. Started as a program, it works on one message, and may die in the worker:
``python -m tests.systems.whatsapp_supervisor URL``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, RemoveMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages

import perdure
from examples.supervisor.models import Scripted
from perdure.langgraph.replaces import Replaces
from perdure.runtime import Agent, Runtime, Settings, effect, effect_key

KEEP = 4
THREAD = "whatsapp:ada"


class AgentState(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    summary: Annotated[str, Replaces]
    route: Annotated[str, Replaces]


def routed(messages: list[Any]) -> str:
    text = messages[-1].text.lower()
    return "chitchat" if text.startswith(("hi", "thanks")) else "orders" if "order" in text else "question"


def written(messages: list[Any]) -> str:
    asked: list[str] = []
    for message in messages[1:]:
        asked = [] if message.type == "ai" else [*asked, message.text]
    found = messages[0].text.partition("Found: ")[2]
    return f"To '{' '.join(asked)}': {found or 'nothing is known'}"


def summarised(messages: list[Any]) -> str:
    before = messages[0].text.partition("So far: ")[2]
    return " | ".join(filter(None, (before, *(m.text for m in messages[1:] if m.type == "human"))))


router_model = Scripted(name="small", answer=routed)
writer_model = Scripted(name="large", answer=written)
summary_model = Scripted(name="small", answer=summarised)


class Found(MessagesState):
    rows: list[str]


def note(key: str) -> None:
    if "SHOP" in os.environ:
        with Path(os.environ["SHOP"]).open("a") as journal:
            journal.write(f"{key}\n")


async def ask_shop(text: str, key: str) -> list[str]:
    """Ask the shop's system: a side effect that must happen once. It knows its callers by a key."""
    note(key)
    return ["order 4711", "left on Monday"]


async def fetch(state: Found) -> dict[str, Any]:
    rows = await effect(ask_shop, state["messages"][-1].text, effect_key("shop"))
    if "DIES" in os.environ:
        os._exit(9)
    return {"rows": rows}


async def distil(state: Found) -> dict[str, Any]:
    return {"messages": [AIMessage(" ".join(state["rows"]))]}


def worker() -> Any:
    builder = StateGraph(Found).add_node(fetch).add_node(distil)
    builder.add_edge(START, "fetch").add_edge("fetch", "distil")
    return builder.compile(checkpointer=False)


orders_worker = worker()


async def router(state: AgentState) -> dict[str, Any]:
    answer = await router_model.ainvoke(state["messages"][-1:])
    reply = [AIMessage("Hello!")] if answer.text == "chitchat" else []
    return {"route": answer.text, "messages": reply}


async def orders(state: AgentState) -> dict[str, Any]:
    after = await orders_worker.ainvoke({"messages": state["messages"][-1:], "rows": []})
    return {"route": f"orders: {after['messages'][-1].text}"}


async def writer(state: AgentState) -> dict[str, Any]:
    found = state["route"].partition("orders: ")[2]
    prompt = f"So far: {state.get('summary', '')}. Found: {found}"
    return {"messages": [await writer_model.ainvoke([SystemMessage(prompt), *state["messages"]])]}


async def update_summary(state: AgentState) -> dict[str, Any]:
    old = state["messages"][:-KEEP]
    answer = await summary_model.ainvoke([SystemMessage(f"So far: {state.get('summary', '')}"), *old])
    return {"summary": answer.text, "messages": [RemoveMessage(m.id) for m in old if m.id]}


def after_router(state: AgentState) -> str:
    return {"chitchat": END, "orders": "orders"}.get(state["route"], "writer")


def after_writer(state: AgentState) -> str:
    return "update_summary" if len(state["messages"]) > 2 * KEEP else END


def build() -> StateGraph[AgentState, Any, Any, Any]:
    builder = StateGraph(AgentState)
    for node in (router, orders, writer, update_summary):
        builder.add_node(node)
    builder.add_edge(START, "router")
    builder.add_conditional_edges("router", after_router, ["orders", "writer", END])
    builder.add_edge("orders", "writer")
    builder.add_conditional_edges("writer", after_writer, ["update_summary", END])
    return builder


graph = build().compile()


async def main(url: str) -> None:
    async with (
        perdure.connect(url) as database,
        Runtime(database, Agent(graph), settings=Settings(lease=1.0, poll=0.1)) as runtime,
    ):
        ticket = await runtime.accept(THREAD, "where is my order?", dedupe_key="wamid.1")
        run = await runtime.wait(ticket, 60)
        print(run.state, run.attempts)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
