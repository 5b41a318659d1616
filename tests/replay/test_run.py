"""Replay of threads by unchanged and by changed graphs: nothing is called, and what differs is named.

Covers perdure.replay.answering, perdure.replay.comparison, perdure.replay.interception,
perdure.replay.recording, perdure.replay.step_saver.
"""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

import perdure
from perdure import admin
from perdure.errors import BadSetting, NotFound
from perdure.model.records import Partition
from perdure.replay import ReplayOptions, ReplayReport, record_calls, replay, replay_sync
from perdure.runtime import Agent, Runtime, effect
from tests.replay.agents import Parts, build, parts

THREAD, BARE = "thread-1", "bare"


@pytest.fixture(scope="module")
def lived() -> Iterator[perdure.SyncDatabase]:
    """Threads that have recorded their calls, and ``BARE``, which has not."""
    with perdure.connect_sync("memory://") as database:
        live(database, parts(), THREAD)
        live(database, parts(), BARE, is_recorded=False)
        yield database


@pytest.fixture
def db() -> Iterator[perdure.SyncDatabase]:
    with perdure.connect_sync("memory://") as database:
        yield database


def live(db: perdure.SyncDatabase, used: Parts, thread_id: str, *, is_recorded: bool = True) -> None:
    """Let a thread call tools, ask twice, go through branches, sent tasks and a subgraph, and go on."""
    graph = build(used).compile(checkpointer=db.checkpointer())
    graph = record_calls(graph) if is_recorded else graph
    config: Any = {"configurable": {"thread_id": thread_id}}
    graph.invoke({"messages": [("user", "look up tea and milk")]}, config)
    graph.invoke(Command(resume="yes"), config)
    graph.invoke(Command(resume="right"), config)
    graph.invoke({"messages": [("user", "again")]}, config)


def first(report: ReplayReport) -> tuple[str, int, str, tuple[str, ...]]:
    assert report.differences
    found = report.differences[0]
    return found.kind, found.step, found.node, found.namespace


def test_tools_questions_branches_and_subgraphs_replay_without_a_call(lived: perdure.SyncDatabase) -> None:
    others = parts()
    report = replay_sync(lived, build(others).compile(), THREAD)
    assert report.differences == ()
    assert (report.replayed, report.skipped, report.derived) == (12, (), 0)
    assert others.model.calls == []
    assert others.looked_up == []


def test_a_replay_changes_no_record_of_the_thread(lived: perdure.SyncDatabase) -> None:
    place = Partition("", THREAD)
    before, sizes = admin.digest_of(lived, place), lived.measure(THREAD)
    assert not replay_sync(lived, build(parts(), prompt="Be rude.").compile(), THREAD).is_same
    assert replay_sync(lived, build(parts()).compile(), THREAD).is_same
    assert admin.digest_of(lived, place) == before
    assert lived.measure(THREAD) == sizes
    assert lived.fsck(THREAD) == []
    assert {each.thread for each in admin.partitions(lived, "")} == {THREAD, BARE}


def test_a_changed_prompt_is_named_at_the_first_step_that_sends_it(lived: perdure.SyncDatabase) -> None:
    report = replay_sync(lived, build(parts(), prompt="Be rude.").compile(), THREAD)
    assert first(report) == ("prompt", 1, "agent", ())
    assert "differs: system" in report.differences[0].detail
    inside = replay_sync(lived, build(parts(), worker="Guess").compile(), THREAD)
    assert first(inside) == ("prompt", 7, "think", ("worker",))


def test_each_step_that_differs_is_found_on_request(lived: perdure.SyncDatabase) -> None:
    options = ReplayOptions(to_the_end=True)
    report = replay_sync(lived, build(parts(), prompt="Be rude.").compile(), THREAD, options=options)
    assert [each.step for each in report.differences] == [1, 3, 10]
    assert report.replayed == 12


def test_a_changed_question_is_named(lived: perdure.SyncDatabase) -> None:
    report = replay_sync(lived, build(parts(), question="Really?").compile(), THREAD)
    assert first(report) == ("interrupt", 5, "ask", ())


def test_a_changed_tool_is_named_by_its_schema_or_when_it_is_run_live(lived: perdure.SyncDatabase) -> None:
    other = parts("stands for")
    other.tool.name = "search"
    assert first(replay_sync(lived, build(other).compile(), THREAD))[:3] == ("prompt", 1, "agent")
    changed = parts("stands for")
    graph = build(changed).compile()
    assert replay_sync(lived, graph, THREAD).is_same
    report = replay_sync(lived, graph, THREAD, options=ReplayOptions(live_tools=["look_up"]))
    assert first(report) == ("write", 2, "tools", ())
    assert changed.looked_up == ["tea", "milk"] or sorted(changed.looked_up) == ["milk", "tea"]
    assert changed.model.calls == []


def test_without_recorded_calls_the_messages_answer_and_other_calls_are_refused_by_name(
    lived: perdure.SyncDatabase,
) -> None:
    others = parts()
    report = replay_sync(lived, build(others).compile(), BARE)
    # The agent's answers and the tool's are messages; those of `left` and `right` are not in the state.
    assert first(report)[:2] == ("unrecorded", 4)
    assert {each.node for each in report.differences} == {"left", "right"}
    assert report.derived == 3
    assert "'Counted'" in report.differences[0].detail
    assert others.model.calls == []
    assert others.looked_up == []


def simple(answer: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder


def converse(db: perdure.SyncDatabase, builder: Any) -> None:
    graph = record_calls(builder.compile(checkpointer=db.checkpointer()))
    graph.invoke({"messages": [("user", "hello")]}, {"configurable": {"thread_id": THREAD}})


@pytest.mark.parametrize("whole_process", [False, True])
def test_a_connection_is_refused_and_named(db: perdure.SyncDatabase, whole_process: bool) -> None:
    converse(db, simple(lambda state: {"messages": [AIMessage("hello")]}))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()

        def fetch(state: MessagesState) -> dict[str, Any]:
            urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/", timeout=60)
            return {}

        options = ReplayOptions(whole_process=whole_process)
        report = replay_sync(db, simple(fetch).compile(), THREAD, options=options)
        assert first(report) == ("unrecorded", 1, "answer", ())
        assert "opens no connection" in report.differences[0].detail
        # Afterwards the process may connect again.
        socket.create_connection(address).close()


def test_writes_routes_and_reducers_that_changed_are_named(db: perdure.SyncDatabase) -> None:
    converse(db, simple(lambda state: {"messages": [AIMessage("hello")]}))
    other = simple(lambda state: {"messages": [AIMessage("goodbye")]})
    report = replay_sync(db, other.compile(), THREAD)
    assert first(report) == ("write", 1, "answer", ())
    assert report.differences[0].channel == "messages"
    assert report.differences[0].found[0]["content"] == "goodbye"
    longer = simple(lambda state: {"messages": [AIMessage("hello")]})
    longer.add_node("more", lambda state: {})
    longer.add_edge("answer", "more")
    assert first(replay_sync(db, longer.compile(), THREAD)) == ("next", 1, "answer", ())
    renamed = StateGraph(MessagesState)
    renamed.add_node("reply", lambda state: {"messages": [AIMessage("hello")]})
    renamed.add_edge(START, "reply")
    assert first(replay_sync(db, renamed.compile(), THREAD))[:2] == ("next", 0)


def test_an_error_of_the_changed_graph_is_a_difference_and_a_recorded_one_is_not(
    db: perdure.SyncDatabase,
) -> None:
    def fail(state: MessagesState) -> dict[str, Any]:
        raise ValueError("no")

    converse(db, simple(lambda state: {"messages": [AIMessage("hello")]}))
    report = replay_sync(db, simple(fail).compile(), THREAD)
    assert first(report) == ("error", 1, "answer", ())
    assert report.differences[0].found == "ValueError('no')"
    graph = simple(fail).compile(checkpointer=db.checkpointer())
    with pytest.raises(ValueError, match="no"):
        graph.invoke({"messages": [("user", "hello")]}, {"configurable": {"thread_id": "failed"}})
    assert replay_sync(db, simple(fail).compile(), "failed").is_same


def test_an_update_that_was_refused_and_is_again_is_no_difference(db: perdure.SyncDatabase) -> None:
    def remove(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id="nobody")]}

    with pytest.raises(ValueError, match="nobody"):
        converse(db, simple(remove))
    assert replay_sync(db, simple(remove).compile(), THREAD).is_same
    report = replay_sync(db, simple(lambda state: {"messages": [AIMessage("hello")]}).compile(), THREAD)
    assert not report.is_same
    converse(db, simple(lambda state: {"messages": [AIMessage("hello")]}))
    assert not replay_sync(db, simple(remove).compile(), THREAD).is_same


def test_ignored_channels_and_noise_do_not_count(db: perdure.SyncDatabase) -> None:
    converse(db, simple(lambda state: {"messages": [AIMessage("hello")]}))
    again = simple(lambda state: {"messages": [AIMessage("goodbye")]}).compile()
    assert replay_sync(db, again, THREAD, options=ReplayOptions(ignore=["messages"])).is_same
    # The message of the user and the answer have new ids in every run.
    same = simple(lambda state: {"messages": [AIMessage("hello")]}).compile()
    assert replay_sync(db, same, THREAD).noise > 0


def test_the_latest_steps_alone_and_a_bad_number(lived: perdure.SyncDatabase) -> None:
    graph = build(parts()).compile()
    assert replay_sync(lived, graph, THREAD, options=ReplayOptions(last=4)).replayed == 4
    with pytest.raises(BadSetting, match="at least 1"):
        ReplayOptions(last=0)
    with pytest.raises(NotFound, match="there is no thread 'other'"):
        replay_sync(lived, graph, "other")


def test_steps_that_were_not_kept_are_skipped_with_the_reason(lived: perdure.SyncDatabase) -> None:
    saver, graph = lived.checkpointer(), build(parts()).compile()
    saver.copy_thread(THREAD, "pruned")
    lived.tag("pruned", "kept", lived.timeline("pruned")[-2].checkpoint_id)
    saver.prune(["pruned"], keep_last=3)
    report = replay_sync(lived, graph, "pruned")
    assert (report.is_same, report.replayed) == (True, 3)
    assert report.skipped == ((1, "the checkpoints between were not kept"),)
    saver.delete_thread("pruned")


def test_a_run_of_a_runtime_replays_its_effects_and_its_agent_records(tmp_path: Path) -> None:
    charged: list[int] = []

    async def charge(amount: int) -> int:
        charged.append(amount)
        return len(charged)

    async def pay(state: MessagesState) -> dict[str, Any]:
        number = await effect(charge, 7)
        answer = await used.model.ainvoke([("system", "Be kind."), *state["messages"]])
        return {"messages": [answer, AIMessage(f"receipt {number}")]}

    used = parts()

    async def run() -> None:
        async with perdure.connect(f"sqlite:///{tmp_path}/threads.db", migrate=True) as db:
            agent = Agent(simple(pay).compile(), record=True)
            async with Runtime(db, agent) as runtime:
                ticket = await runtime.accept(THREAD, "hello")
                await runtime.wait(ticket)
            assert charged == [7]
            report = await replay(db, agent, THREAD)
            assert report.differences == ()
            assert (report.derived, charged, len(used.model.calls)) == (0, [7], 1)

    asyncio.run(run())
