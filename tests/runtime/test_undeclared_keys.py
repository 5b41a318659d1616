"""Keys that no schema declares: reported once by a runtime, and an error for a strict agent."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from perdure.runtime import Agent, Logs
from tests.runtime.graphs import Heard, Storage, go, settings, working


def answer(state: MessagesState) -> Any:
    return {"messages": [AIMessage("hello")], "mood": "sunny"}


GRAPH = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


async def states(storage: Storage, agent: Agent, *observers: Any) -> list[str]:
    """How two runs on different threads ended."""
    options = {"settings": settings(attempts=1)}
    async with working(storage.database(), agent, observers=observers, **options) as runtime:
        runs = [await runtime.wait(await runtime.accept(thread, "hi")) for thread in ("ada", "bob")]
        return [run.state for run in runs]


def test_a_dropped_key_is_reported_once(memory: Storage, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    with caplog.at_level(logging.WARNING, "perdure.runtime"):
        ended = go(states(memory, Agent(GRAPH), heard, Logs()))
    assert ended == ["done", "done"]
    reported = [fields for name, fields in heard.events if name == "state.undeclared"]
    assert reported == [{"graph": "agent", "node": "answer", "key": "mood"}]
    lines = [record.getMessage() for record in caplog.records if "state.undeclared" in record.getMessage()]
    assert lines == ["state.undeclared graph=agent node=answer key=mood"]


def test_a_strict_agents_run_fails(memory: Storage) -> None:
    heard = Heard()
    ended = go(states(memory, Agent(GRAPH, strict=True), heard))
    assert ended == ["failed", "failed"]
    errors = [fields["error"] for name, fields in heard.events if name == "run.attempt_failed"]
    assert errors == ["UndeclaredKey", "UndeclaredKey"], ended
    assert [name for name, _ in heard.events if name == "state.undeclared"] == []
