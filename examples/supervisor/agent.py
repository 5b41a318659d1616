"""A supervisor over two scripted models and a worker that looks up orders, or over models of your own."""

from __future__ import annotations

import os
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from perdure.runtime import Agent, Price, effect
from perdure.supervisor import Policy, RollingSummary, SupervisedWorker, route_with, supervisor

from .models import Scripted, rules, summarised, written

PRICES = {"small": Price(input=0.1, output=0.4), "large": Price(input=3.0, output=15.0)}
"""Dollars per million tokens."""


async def look_up(question: str) -> str:
    """Return what the shop's system knows, in place of a search for ``question``; recorded, so that no
    attempt at a run asks it twice."""
    return "Order 4711 left on Monday, and arrives on Wednesday."


async def orders(state: MessagesState) -> dict[str, Any]:
    """Find out about orders."""
    return {"messages": [AIMessage(await effect(look_up, state["messages"][-1].text))]}


def models() -> tuple[BaseChatModel, BaseChatModel]:
    """Return the cheap and the strong model: ``ROUTER_MODEL`` and ``WRITER_MODEL``, or scripted ones."""
    if "ROUTER_MODEL" not in os.environ:
        return Scripted(name="small", answer=rules), Scripted(name="large", answer=written)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=os.environ["ROUTER_MODEL"]), ChatOpenAI(model=os.environ["WRITER_MODEL"])


def agent(policy: Policy | None = None) -> Agent:
    """Return the supervisor as an agent. ``policy`` replaces the decision which model answers."""
    small, large = models()
    found = StateGraph(MessagesState).add_node(orders).add_edge(START, "orders").compile()
    workers = {"orders": SupervisedWorker(found, description="the state of orders and deliveries")}
    known = {name: worker.description for name, worker in workers.items()}
    summing = small if "ROUTER_MODEL" in os.environ else Scripted(name="small", answer=summarised)
    graph = supervisor(
        policy or route_with(small, known), large, workers, summary=RollingSummary(summing)
    ).compile()
    return Agent(graph, prices=PRICES)
