"""Answers to a replayed step's calls: tools that ask, errors, and files of recorded threads."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

import perdure
from perdure import admin
from perdure.errors import PerdureError
from perdure.langgraph.call_records import CallRecord
from perdure.model.records import Partition
from perdure.replay import ReplayOptions, record_calls, replay, replay_sync
from perdure.replay.answering import Answering
from perdure.replay.recording import TaskRecord
from perdure.testing.recorded_threads import from_export
from tests.replay.agents import Counted, build, parts
from tests.replay.test_run import THREAD, first, live

MADE: list[str] = []


class Guarded(ConnectionError):
    """An error with code of its own, which a stored row must not run."""

    def __new__(cls, *args: Any) -> Any:
        MADE.append("new")
        return super().__new__(cls, *args)


def rebuilt(place: str) -> BaseException:
    """Return the error that a replay raises for a recorded one of this class."""
    task = TaskRecord(((1, "path"),), "node")
    task.calls[0] = [CallRecord("tool", "t", {"input": "1"}, error=(place, "no"), is_over=True)]
    answers = Answering({task.key: task})
    answers.places.learn(
        {"langgraph_checkpoint_ns": "node:1", "langgraph_path": ("path",), "langgraph_step": 1}
    )
    task.key = answers.places.key("node:1")
    answers.tasks = {task.key: task}
    with pytest.raises(Exception) as caught:  # noqa: PT011
        answers.answer(CallRecord("tool", "t", {"input": "1"}, place="node:1"))
    return caught.value


def test_a_stored_name_of_an_error_imports_and_runs_nothing() -> None:
    found = rebuilt(f"{__name__}:Guarded")
    assert (type(found), found.args, MADE) == (Guarded, ("no",), [])
    assert type(rebuilt("builtins:ValueError")) is ValueError
    for other in (
        "this:Missing", "os:system", "builtins:ExceptionGroup", "builtins:KeyboardInterrupt", ":", "perdure:",
        "langgraph.errors:GraphInterrupt",
    ):  # fmt: skip
        found = rebuilt(other)
        assert (type(found), str(found)) == (RuntimeError, "no")
    assert "this" not in sys.modules
    assert type(rebuilt("perdure.errors:PerdureError")) is PerdureError


def asking(used: Counted, question: str = "Sure?") -> Any:
    """Return a builder of a graph whose tool asks a person, twice."""

    @tool
    def look_up(word: str) -> str:
        """Look a word up."""
        return f"{word} {interrupt(['Buy?', word])} {interrupt(question)}"

    return with_tools(used, look_up)


def delegating(used: Counted) -> Any:
    """Return a builder of a graph whose tool calls a graph that asks a person."""
    inner: Any = StateGraph(MessagesState)
    inner.add_node("ask", lambda state: {"messages": [("ai", interrupt("Right?"))]})
    graph = inner.add_edge(START, "ask").compile()

    @tool
    def look_up(word: str) -> str:
        """Look a word up."""
        return f"{word} {graph.invoke({'messages': []})['messages'][-1].content}"

    return with_tools(used, look_up)


def with_tools(used: Counted, one: BaseTool) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [used.bind_tools([one]).invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([one]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder


@pytest.mark.parametrize("words", ["tea", "tea and milk"])
def test_tools_that_ask_replay_while_they_wait_and_when_they_are_answered(words: str) -> None:
    async def run() -> None:
        config: Any = {"configurable": {"thread_id": THREAD}}
        async with perdure.connect("memory://") as db:
            graph = record_calls(asking(Counted()).compile(checkpointer=db.checkpointer()))
            out = await graph.ainvoke({"messages": [("user", f"look up {words}")]}, config)
            answers = 0
            while "__interrupt__" in out:
                report = await replay(db, asking(Counted()).compile(), THREAD)
                assert (report.differences, report.derived) == ((), 0)
                answers += 1
                out = await graph.ainvoke(Command(resume=f"yes {answers}"), config)
            assert answers == 2 * len(words.split(" and "))
            others = Counted()
            report = await replay(db, asking(others).compile(), THREAD)
            assert (report.differences, report.replayed, others.calls) == ((), 4, [])
            # What the tool asks is its own, and seen when it is run.
            options = ReplayOptions(live_tools=["look_up"])
            report = await replay(db, asking(Counted(), "Really?").compile(), THREAD, options=options)
            assert first(report) == ("interrupt", 2, "tools", ())

    asyncio.run(run())


def test_a_graph_inside_a_tool_may_ask() -> None:
    config: Any = {"configurable": {"thread_id": THREAD}}
    with perdure.connect_sync("memory://") as db:
        graph = record_calls(delegating(Counted()).compile(checkpointer=db.checkpointer()))
        assert "__interrupt__" in graph.invoke({"messages": [("user", "look up tea")]}, config)
        assert replay_sync(db, delegating(Counted()).compile(), THREAD).differences == ()
        graph.invoke(Command(resume="yes"), config)
        assert replay_sync(db, delegating(Counted()).compile(), THREAD).differences == ()


def test_a_tool_that_asked_is_no_difference_where_messages_answer() -> None:
    config: Any = {"configurable": {"thread_id": THREAD}}
    with perdure.connect_sync("memory://") as db:
        graph = asking(Counted()).compile(checkpointer=db.checkpointer())
        graph.invoke({"messages": [("user", "look up tea")]}, config)
        graph.invoke(Command(resume="yes"), config)
        graph.invoke(Command(resume="sure"), config)
        report = replay_sync(db, asking(Counted()).compile(), THREAD)
        assert (report.differences, report.derived) == ((), 3)


def test_the_threads_of_an_export_replay_with_their_calls(tmp_path: Path) -> None:
    path, key = tmp_path / "thread.perdure", b"k" * 32
    place = f"sqlite:///{tmp_path}/threads.db"
    with perdure.connect_sync(place, migrate=True, encryption_key=key, tenant="acme") as db:
        live(db, parts(), THREAD)
        with admin.new_archive(path, encryption_key=key) as archive:
            admin.move(db, Partition("acme", THREAD), archive)
    with from_export(path, encryption_key=key) as db:
        others = parts()
        report = replay_sync(db, build(others).compile(), THREAD)
        assert (report.differences, report.replayed, report.derived) == ((), 12, 0)
        assert (others.model.calls, others.looked_up) == ([], [])
        changed = replay_sync(db, build(parts(), prompt="Be rude.").compile(), THREAD)
        assert first(changed) == ("prompt", 1, "agent", ())
