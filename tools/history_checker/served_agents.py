"""The project that a recorded deployment serves: a graph that writes down what it was told and what it did,
and who its users are. Copied into the folder of the deployment."""

from __future__ import annotations

import asyncio
import operator
import random
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from langgraph_sdk import Auth

VERSION = 1
"""Raised by each deployment."""
PAUSES_S = (0.0, 0.01, 0.05, 0.2, 0.6)
FAILS, ASKS = "!", "?"
"""How an element ends whose run may fail, and one whose run asks a question for each mark."""
FAILING = 0.7

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> Auth.types.MinimalUserDict:
    tenant, _, user = (authorization or "").removeprefix("Bearer ").partition("/")
    if not tenant or not user:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Log in first.")
    return {"identity": user, "org_id": tenant}  # type: ignore[typeddict-unknown-key]


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def _step(config: RunnableConfig, name: str) -> str:
    return f"s:{config.get('metadata', {})['run_id']}:{name}"


def _element(state: Log) -> str:
    """Return the message that the thread was told last."""
    return next(entry for entry in reversed(state["log"]) if entry.startswith("m:"))[2:]


async def hear(state: Log, config: RunnableConfig) -> dict[str, Any]:
    await asyncio.sleep(random.choice(PAUSES_S))
    return {"log": [_step(config, "hear")]}


async def work(state: Log, config: RunnableConfig) -> dict[str, Any]:
    await asyncio.sleep(random.choice(PAUSES_S))
    if _element(state).endswith(FAILS) and random.random() < FAILING:
        raise RuntimeError("this message fails")
    return {"log": [_step(config, "work")]}


def ask(state: Log, config: RunnableConfig) -> dict[str, Any]:
    element = _element(state)
    questions = [f"{element}:{n}" for n in range(len(element) - len(element.rstrip(ASKS)))]
    answers = [f"a:{question}={interrupt(question)}" for question in questions]
    return {"log": [*answers, _step(config, "ask")]}


async def close(state: Log, config: RunnableConfig) -> dict[str, Any]:
    await asyncio.sleep(random.choice(PAUSES_S))
    return {"log": [_step(config, f"close {VERSION}")]}


builder = StateGraph(Log)
builder.add_sequence([("hear", hear), ("work", work), ("ask", ask), ("close", close)])
builder.add_edge(START, "hear")
graph = builder.compile()
