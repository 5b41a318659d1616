"""Steps of a thread, read from what real graphs stored.

Covers perdure.langgraph.reading.step_authors.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict
from unittest.mock import patch

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base import id as langgraph_ids
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.langgraph.reading import step_authors, thread_steps
from perdure.langgraph.reading.thread_calls import load_calls
from perdure.langgraph.reading.thread_steps import StepTask, ThreadStep, load_steps, show_step, way_of
from perdure.model.model_calls import Price, Prices, calls_in, dedupe_calls
from perdure.model.records import Partition

AT: Any = {"configurable": {"thread_id": "t"}}
PAUSE_S = 0.05


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]


@pytest.fixture
def database() -> Iterator[SyncDatabase]:
    with perdure.connect_sync("memory://") as opened:
        yield opened


def answer(name: str, into: int = 10, **more: Any) -> AIMessage:
    usage: Any = {"input_tokens": into, "output_tokens": 5, "total_tokens": into + 5}
    return AIMessage(
        f"answer {name}",
        id=name,
        usage_metadata=usage,
        response_metadata={"model_name": "large"},
        **more,
    )


def calling() -> StateGraph[Any, Any, Any, Any]:
    """A graph with a loop over a tool, tasks that ``Send`` starts, and a subgraph."""

    def agent(state: State) -> Any:
        turn = len(state["messages"])
        if isinstance(state["messages"][-1], HumanMessage):
            call = {"name": "search", "args": {}, "id": f"call {turn}"}
            return {"messages": [answer(f"call {turn}", tool_calls=[call])]}
        return {"messages": [answer(f"reply {turn}", 20)]}

    def tools(state: State) -> Any:
        called: Any = state["messages"][-1]
        return {"messages": [ToolMessage("found", tool_call_id=called.tool_calls[0]["id"])]}

    def spread(state: State) -> None:
        return None

    def check(state: Any) -> Any:
        time.sleep(PAUSE_S * state["times"])
        return {"notes": [str(state["times"])]}

    def write(state: MessagesState) -> Any:
        return {"messages": [answer(f"note {len(state['messages'])}", 1)]}

    def route(state: State) -> str:
        last: Any = state["messages"][-1]
        return "tools" if last.tool_calls else "spread"

    inner = StateGraph(MessagesState).add_node(write).add_edge(START, "write").compile()
    built = StateGraph(State)
    for node in (agent, tools, spread, check):
        built.add_node(node.__name__, node)
    built.add_node("research", inner)
    built.add_edge(START, "agent")
    built.add_conditional_edges("agent", route, ["tools", "spread"])
    built.add_edge("tools", "agent")
    sends = [Send("check", {"times": times}) for times in (1, 6)]
    built.add_conditional_edges("spread", lambda _: sends, ["check"])
    built.add_edge("check", "research")
    return built


def say(app: Any, text: str = "hello") -> None:
    app.invoke({"messages": [HumanMessage(text)], "notes": []}, AT)


def steps_of(database: SyncDatabase, thread: str = "t", limit: int = 50) -> list[ThreadStep]:
    """All steps of a thread, oldest first, read in pages of a size."""
    handle = handle_of(database)
    out: list[ThreadStep] = []
    before: int | None = None
    while True:
        page = handle.run(load_steps(Partition("", thread), handle.digest, before=before, limit=limit))
        out += page.steps
        before = page.cursor
        if before is None:
            return out[::-1]


def took(task: StepTask) -> float:
    assert task.began_at is not None
    assert task.ended_at is not None
    return (task.ended_at - task.began_at) / 1_000_000


def test_the_way_is_that_of_the_nodes(database: SyncDatabase) -> None:
    say(calling().compile(checkpointer=database.checkpointer()))
    assert way_of(steps_of(database)) == [
        ["agent"], ["tools"], ["agent"], ["spread"], ["check", "check"], ["research"],
    ]  # fmt: skip
    assert {task.state for step in steps_of(database) for task in step.tasks} == {"done"}


def test_each_task_has_its_own_time(database: SyncDatabase) -> None:
    say(calling().compile(checkpointer=database.checkpointer()))
    (checks,) = [step for step in steps_of(database) if step.nodes == ("check", "check")]
    short, long = map(took, checks.tasks)
    assert PAUSE_S <= short < 6 * PAUSE_S <= long
    assert all(step.ended_at is not None for step in steps_of(database))
    starts = [step.began_at for step in steps_of(database) if step.began_at is not None]
    assert starts == sorted(starts)


def test_without_times_a_task_has_that_of_its_step(database: SyncDatabase) -> None:
    say(calling().compile(checkpointer=database.checkpointer(task_times=False)))
    (checks,) = [step for step in steps_of(database) if step.nodes == ("check", "check")]
    assert [took(task) for task in checks.tasks] == [took(checks.tasks[0])] * 2
    assert took(checks.tasks[0]) >= 6 * PAUSE_S


def test_a_subgraphs_steps_are_below_the_task_that_called_it(database: SyncDatabase) -> None:
    say(calling().compile(checkpointer=database.checkpointer()))
    (task_,) = steps_of(database)[-1].tasks
    assert way_of(task_.steps) == [["write"]]
    assert not task_.is_cut
    assert [call.id for call in task_.all_calls] == ["note 4"]


def test_each_call_of_a_model_counts_at_the_step_that_made_it(database: SyncDatabase) -> None:
    app = calling().compile(checkpointer=database.checkpointer())
    say(app)
    say(app)
    expected = [
        ["call 1"],
        [],
        ["reply 3"],
        [],
        [],
        ["note 4"],
        ["call 6"],
        [],
        ["reply 8"],
        [],
        [],
        ["note 9"],
    ]
    for limit in (50, 7, 2, 1):
        steps = [step for step in steps_of(database, limit=limit) if step.nodes]
        assert [[call.id for call in step.calls] for step in steps] == expected, limit
    handle = handle_of(database)
    calls, after = [], None
    while True:
        part = handle.run(load_calls(Partition("", "t"), handle.digest, after, limit=3))
        calls += part.calls
        after = part.cursor
        if after is None:
            break
    assert {call.id for call in dedupe_calls(calls)} == {name for names in expected for name in names}


def test_a_question_takes_no_time_until_it_is_answered(database: SyncDatabase) -> None:
    def ask(state: State) -> Any:
        return {"notes": [interrupt("May I?")]}

    built = StateGraph(State).add_node("ask", ask).add_edge(START, "ask")
    app = built.compile(checkpointer=database.checkpointer())
    say(app)
    (asked,) = steps_of(database)[-1].tasks
    assert (asked.node, asked.state) == ("ask", "asked")
    assert asked.ended_at is not None
    assert steps_of(database)[-1].checkpoint_id is None
    time.sleep(10 * PAUSE_S)
    app.invoke(Command(resume="yes"), AT)
    (answered,) = steps_of(database)[-1].tasks
    assert answered.state == "done"
    assert took(answered) < 10 * PAUSE_S
    assert steps_of(database)[-1].checkpoint_id is not None


def test_a_question_of_a_node_that_was_never_done_has_its_name(database: SyncDatabase) -> None:
    def ask(state: Any) -> Any:
        return {"notes": [interrupt("May I?")]}

    built = StateGraph(State).add_node("plan", lambda _: {}).add_node("ask", ask).add_edge(START, "plan")
    sends = [Send("ask", {"notes": [], "messages": []}) for _ in range(2)]
    built.add_conditional_edges("plan", lambda _: sends, ["ask"])
    say(built.compile(checkpointer=database.checkpointer()))
    assert [(t.node, t.state) for t in steps_of(database)[-1].tasks] == [("ask", "asked")] * 2


def test_an_answer_by_hand_is_counted_by_neither(database: SyncDatabase) -> None:
    built = StateGraph(State).add_node("agent", lambda _: {"messages": [answer("own")]})
    app = built.add_edge(START, "agent").compile(checkpointer=database.checkpointer())
    say(app)
    app.update_state(AT, {"messages": [answer("by hand")]}, as_node="agent")
    calls = handle_of(database).run(load_calls(Partition("", "t"), handle_of(database).digest)).calls
    assert [call.id for call in calls] == ["own"]
    assert [call.id for step in steps_of(database) for call in step.calls] == ["own"]


def test_a_command_to_the_graph_above_ends_a_step(database: SyncDatabase) -> None:
    def leave(state: State) -> Command[Any]:
        return Command(goto="last", graph=Command.PARENT)

    inner = StateGraph(State).add_node("leave", leave).add_edge(START, "leave").compile()
    built = StateGraph(State).add_node("sub", inner, destinations=("last",))
    built.add_node("last", lambda _: {}).add_edge(START, "sub")
    say(built.compile(checkpointer=database.checkpointer()))
    (called,) = next(step for step in steps_of(database) if step.nodes == ("sub",)).tasks
    (left,) = called.steps[-1].tasks
    assert (called.state, left.node, left.state) == ("done", "leave", "done")


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_times_stay_right_when_another_writers_clock_differs(
    database: SyncDatabase, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    def ask(state: State) -> Any:
        given = interrupt("May I?")
        time.sleep(PAUSE_S)
        return {"notes": [given]}

    def work(state: State) -> Any:
        time.sleep(PAUSE_S)
        return {"notes": ["done"]}

    built = StateGraph(State).add_node("ask", ask).add_node("work", work)
    built.add_edge(START, "ask").add_edge(START, "work")
    say(built.compile(checkpointer=database.checkpointer()))
    true_ns, at = time.time_ns, langgraph_ids._last_v6_timestamp
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + ahead_s * 1_000_000_000)
    monkeypatch.setattr(langgraph_ids, "_last_v6_timestamp", None if ahead_s < 0 else at)
    built.compile(checkpointer=database.checkpointer()).invoke(Command(resume="yes"), AT)
    step = steps_of(database)[-1]
    assert {task.node for task in step.tasks} == {"ask", "work"}
    assert all(PAUSE_S <= took(task) < 10 * PAUSE_S for task in step.tasks)
    assert step.began_at is None or (step.ended_at or 0) >= step.began_at


def test_a_message_that_is_written_again_is_decoded_once(database: SyncDatabase) -> None:
    def whole(state: Any) -> Any:
        return {"messages": [*state["messages"], answer(f"reply {len(state['messages'])}")]}

    built = StateGraph(State).add_node("whole", whole).add_edge(START, "whole")
    built.add_conditional_edges("whole", lambda s: "whole" if len(s["messages"]) < 20 else END)
    app = built.compile(checkpointer=database.checkpointer())
    app.invoke({"messages": [HumanMessage("hello", id="first")], "notes": []}, AT)
    with patch.object(step_authors, "calls_in", wraps=calls_in) as decoded:
        steps = steps_of(database)
    assert decoded.call_count == 20
    assert [len(step.calls) for step in steps if step.tasks] == [1] * 19


def test_a_failed_task_is_named_beside_one_that_is_done(database: SyncDatabase) -> None:
    def good(state: State) -> Any:
        return {"notes": ["good"]}

    def bad(state: State) -> Any:
        time.sleep(PAUSE_S)
        raise ValueError("broken")

    built = StateGraph(State).add_node("good", good).add_node("bad", bad)
    built.add_edge(START, "good")
    built.add_edge(START, "bad")
    app = built.compile(checkpointer=database.checkpointer())
    with pytest.raises(ValueError, match="broken"):
        say(app)
    assert {task.node: task.state for task in steps_of(database)[-1].tasks} == {
        "good": "done",
        "bad": "failed",
    }


def test_what_comes_next_is_open(database: SyncDatabase) -> None:
    app = calling().compile(checkpointer=database.checkpointer(), interrupt_before=["tools"])
    say(app)
    (task_,) = steps_of(database)[-1].tasks
    assert (task_.node, task_.state, task_.ended_at) == ("tools", "open", None)


def test_a_channel_without_a_version_is_no_error(database: SyncDatabase) -> None:
    by_hand = empty_checkpoint()
    by_hand["channel_values"] = {"branch:to:ask": None}
    to: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    database.checkpointer().put(to, by_hand, {"source": "loop", "step": 1}, {})
    assert [step.checkpoint_id for step in steps_of(database)] == [by_hand["id"]]


def test_tasks_of_the_functional_api_have_names_and_callers(database: SyncDatabase) -> None:
    @task
    def one(value: int) -> int:
        return value + 1

    @task
    def two(value: int) -> Any:
        return one(value).result()

    @entrypoint(checkpointer=database.checkpointer())
    def flow(value: int) -> Any:
        return [one(value).result(), two(value).result()]

    assert flow.invoke(1, AT) == [2, 2]
    (step,) = [step for step in steps_of(database) if step.tasks]
    by_id = {task_.task_id: task_ for task_ in step.tasks}
    called = sorted((t.node, by_id[t.caller].node) for t in step.tasks if t.caller is not None)
    assert called == [("one", "flow"), ("one", "two"), ("two", "flow")]
    assert step.nodes == ("flow",)
    assert [t.began_at for t in step.tasks if t.is_call] == [None] * 3
    assert all(t.ended_at for t in step.tasks)


def test_a_run_that_stores_its_end_only_still_has_its_nodes(database: SyncDatabase) -> None:
    app = calling().compile(checkpointer=database.checkpointer())
    app.invoke({"messages": [HumanMessage("hello")], "notes": []}, AT, durability="exit")
    assert steps_of(database)[-1].source == "loop"
    app.update_state(AT, {"notes": ["by hand"]}, as_node="research")
    last = steps_of(database)[-1]
    assert (last.source, last.tasks, last.began_at) == ("update", (), None)


@pytest.mark.parametrize("task_times", [True, False])
def test_langgraph_is_given_what_a_stock_saver_gives(database: SyncDatabase, task_times: bool) -> None:
    def told(saver: Any) -> Any:
        app = calling().compile(checkpointer=saver)
        say(app)
        return [
            (
                each.metadata,
                each.checkpoint["channel_versions"].keys(),
                sorted((channel, str(value)[:20]) for _, channel, value in each.pending_writes or ()),
            )
            for each in saver.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
        ]

    assert told(database.checkpointer(task_times=task_times)) == told(InMemorySaver())


def test_a_copy_has_the_times_and_a_digest_that_tells_of_them(database: SyncDatabase) -> None:
    saver = database.checkpointer()
    say(calling().compile(checkpointer=saver))
    saver.copy_thread("t", "copy")
    assert [step.tasks for step in steps_of(database, "copy")] == [step.tasks for step in steps_of(database)]
    with perdure.connect_sync("memory://") as other:
        admin.move(database, Partition("", "t"), other)
        assert [s.tasks for s in steps_of(other)] == [s.tasks for s in steps_of(database)]
        assert other.digest("t") == database.digest("t")


def test_a_step_is_shown_with_its_costs(database: SyncDatabase) -> None:
    say(calling().compile(checkpointer=database.checkpointer()))
    shown = [show_step(step, Prices({"lar*": Price(1000.0, 0.0)})) for step in steps_of(database)]
    assert [each["usage"]["cost"] for each in shown if each["usage"]["calls"]] == [0.01, 0.02, 0.001]


def test_pages_of_steps_read_what_they_show(database: SyncDatabase) -> None:
    app = calling().compile(checkpointer=database.checkpointer())
    for _ in range(6):
        say(app)
    handle = handle_of(database)
    whole = steps_of(database)
    for limit in (1, 3, 10):
        assert [step.checkpoint_id for step in steps_of(database, limit=limit)] == [
            step.checkpoint_id for step in whole
        ]
    page = handle.run(load_steps(Partition("", "t"), handle.digest, limit=10))
    assert len(page.steps) == 10
    assert page.cursor is not None


def test_a_subgraph_without_end_is_cut(database: SyncDatabase) -> None:
    def count(state: State) -> Any:
        return {"notes": ["more"]}

    inner = StateGraph(State).add_node(count).add_edge(START, "count")
    inner.add_conditional_edges("count", lambda s: "count" if len(s["notes"]) < 70 else "__end__")
    built = StateGraph(State).add_node("inner", inner.compile()).add_edge(START, "inner")
    app = built.compile(checkpointer=database.checkpointer())
    config: Any = {**AT, "recursion_limit": 200}
    app.invoke({"messages": [], "notes": []}, config)
    (task_,) = steps_of(database)[-1].tasks
    assert (len(task_.steps), task_.is_cut) == (50, True)


def test_the_times_of_an_async_run_are_stored() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as database:
            app = calling().compile(checkpointer=database.checkpointer())
            await app.ainvoke({"messages": [HumanMessage("hello")], "notes": []}, AT)
            handle = handle_of(database)
            page = await handle.arun(load_steps(Partition("", "t"), handle.digest))
            (checks,) = [step for step in page.steps if step.nodes == ("check", "check")]
            assert took(checks.tasks[0]) < 6 * PAUSE_S <= took(checks.tasks[1])

    asyncio.run(main())


def test_steps_of_a_subgraph_that_keeps_its_state_are_with_the_calls_that_made_them(
    database: SyncDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_steps, "_KEPT_PAGES", 1)

    def note(state: State) -> Any:
        return {"notes": [f"note {len(state['notes'])}"]}

    inner = StateGraph(State).add_node("one", note).add_node("two", note)
    kept = inner.add_edge(START, "one").add_edge("one", "two").compile(checkpointer=True)

    def keeping(state: State) -> Any:
        kept.invoke({"messages": [], "notes": []})
        return {"notes": ["called"]}

    graph = StateGraph(State).add_node(keeping).add_edge(START, "keeping")
    app = graph.compile(checkpointer=database.checkpointer())
    for _ in range(20):
        app.invoke({"messages": [], "notes": []}, AT)
    handle = handle_of(database)
    calls: list[StepTask] = []
    cursor: int | None = None
    while True:
        page = handle.run(load_steps(Partition("", "t"), handle.digest, before=cursor, limit=20))
        calls += [each for step in page.steps for each in step.tasks if each.node == "keeping"]
        if page.cursor is None:
            break
        cursor = page.cursor
    assert len(calls) == 20
    shown = [each for each in calls if each.steps]
    # Those of long ago are not looked for.
    assert shown == calls[: len(shown)]
    assert 10 < len(shown) < 20
    made: list[str] = []
    for each in shown:
        assert each.namespaces == ("keeping",)
        assert [node for step in each.steps for node in step.nodes if node != START] == ["one", "two"]
        made += [step.checkpoint_id or "" for step in each.steps]
    assert len(set(made)) == len(made), "each step belongs to one call"
