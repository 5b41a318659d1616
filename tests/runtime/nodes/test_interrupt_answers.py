"""Answers to questions of subgraphs: one reaches its question, also in a graph that keeps no checkpoints, and
no other.

Covers perdure.langgraph.reading.asking_tasks.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, cast

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy, interrupt

from perdure.langgraph.reading.shown_questions import aread_with_questions
from perdure.runtime import Runtime, ask, isolated_subgraph, sleep, wait_for
from tests.runtime.graphs import Storage, eventually_stored, go, settings, working


class Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]


def first(state: Notes) -> Notes:
    return {"notes": [interrupt("first?")]}


def second(state: Notes) -> Notes:
    return {"notes": [interrupt("second?")]}


def end(state: Notes) -> Notes:
    return {"notes": ["ended"]}


async def until_soon(state: Notes) -> Notes:
    return {"notes": [ask("soon?", within=0.2, default="late")]}


async def rest(state: Notes) -> Notes:
    await sleep(0.2)
    return {"notes": ["rested"]}


async def paid(state: Notes) -> Notes:
    return {"notes": [await wait_for("paid", within=0.2, default="unpaid")]}


async def nothing(state: Notes) -> Notes:
    return {"notes": [ask("nothing?", within=0.2, default=None)]}


def twice(state: Notes) -> Notes:
    return {"notes": [interrupt("first?"), ask("second?", within=0.2, default="late")]}


Node = Callable[[Any], Any]


def in_a_row(*nodes: Node) -> StateGraph[Any, Any, Any, Any]:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Notes)
    named: list[Any] = [(f"{n}", node) for n, node in enumerate(nodes)]
    return builder.add_sequence(named).add_edge(START, "0")


def isolated(*nodes: Node) -> Any:
    graph = in_a_row(*nodes).compile()
    return isolated_subgraph(graph, lambda state: {"notes": []}, lambda ended: {"notes": ended["notes"]})


def compiled_without(*nodes: Node) -> Any:
    return in_a_row(*nodes).compile(checkpointer=False)


async def states(runtime: Runtime) -> list[str]:
    return [run.state for run in reversed(await runtime.runs("ada"))]


async def begin(runtime: Runtime) -> None:
    assert (await runtime.wait(await runtime.submit("ada", {"notes": []}), 30)).state == "waiting"


@pytest.mark.parametrize("outer", [isolated, compiled_without])
@pytest.mark.parametrize(("node", "note"), [(until_soon, "late"), (rest, "rested"), (paid, "unpaid")])
def test_a_wait_of_a_graph_without_checkpoints_ends_once(
    near: Storage, outer: Callable[..., Any], node: Node, note: str
) -> None:
    async def main() -> None:
        graph = StateGraph(Notes).add_node("work", outer(node)).add_edge(START, "work").compile()
        async with working(near.database(), graph) as runtime:
            await begin(runtime)

            async def is_over() -> bool:
                return await states(runtime) == ["waiting", "done"]

            await eventually_stored(is_over)
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert state.values["notes"][-1] == note

    go(main())


@pytest.mark.parametrize("outer", [isolated, compiled_without])
@pytest.mark.parametrize(
    "nodes",
    [
        (first, first),
        (first, until_soon),
        (first, rest),
        (first, paid),
        (twice,),
        (until_soon, until_soon),
        (rest, rest),
        (nothing,),
    ],
    ids=lambda nodes: " ".join(node.__name__ for node in nodes),
)
def test_a_second_wait_of_a_graph_without_checkpoints_is_refused_by_name(
    memory: Storage, outer: Callable[..., Any], nodes: tuple[Node, ...]
) -> None:
    async def main() -> None:
        graph = StateGraph(Notes).add_node("work", outer(*nodes)).add_edge(START, "work").compile()
        async with working(memory.database(), graph) as runtime:
            await begin(runtime)
            if nodes[0] in (first, twice):
                await runtime.answer("ada", "one")

            async def is_over() -> bool:
                return (await states(runtime))[1:] == ["failed"]

            await eventually_stored(is_over)
            newest, *_ = await runtime.runs("ada")
            assert newest.attempts == 1
            assert newest.note["error"].startswith("NotAllowed: node 'work' waits again")
            await asyncio.sleep(0.6)
            assert await states(runtime) == ["waiting", "failed"], "a deadline does not begin it again"
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert len(state.interrupts) == 1, "what was asked first is asked again"

    go(main())


def test_graphs_without_checkpoints_in_nodes_of_their_own_wait_one_after_the_other(near: Storage) -> None:
    async def main() -> None:
        graph = in_a_row(isolated(first), isolated(until_soon), isolated(rest)).compile()
        async with working(near.database(), graph) as runtime:
            await begin(runtime)
            await runtime.answer("ada", "one")

            async def is_over() -> bool:
                return await states(runtime) == ["waiting"] * 3 + ["done"]

            await eventually_stored(is_over)
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert state.values["notes"] == ["one", "late", "rested"]

    go(main())


def functional(*calls: Any) -> Any:
    """A graph of tasks, each of which is called by the entrypoint."""

    @entrypoint()
    async def work(given: Any) -> list[Any]:
        return [await call() for call in calls]

    return work


def test_tasks_of_a_functional_graph_wait_one_after_the_other(near: Storage) -> None:
    @task
    async def several() -> list[Any]:
        return [interrupt("one?"), interrupt("two?"), ask("three?", within=0.2, default="late")]

    @task
    async def another() -> Any:
        return ask("four?", within=0.2, default="late")

    async def main() -> None:
        async with working(near.database(), functional(several, another)) as runtime:
            await begin(runtime)
            for word in ("one", "two"):
                assert (await runtime.wait(await runtime.answer("ada", word), 30)).state == "waiting"

            async def is_over() -> bool:
                return await states(runtime) == ["waiting"] * 4 + ["done"]

            await eventually_stored(is_over)

    go(main())


def test_a_second_wait_of_a_graph_that_a_functional_task_calls_is_refused(memory: Storage) -> None:
    inner = compiled_without(until_soon, until_soon)

    @task
    async def call() -> Any:
        return await inner.ainvoke({"notes": []})

    async def main() -> None:
        async with working(memory.database(), functional(call)) as runtime:
            await begin(runtime)

            async def is_over() -> bool:
                return (await states(runtime))[1:] == ["failed"]

            await eventually_stored(is_over)
            newest, *_ = await runtime.runs("ada")
            assert newest.note["error"].startswith("NotAllowed: node 'work' waits again")

    go(main())


@pytest.mark.parametrize("outer", [isolated, compiled_without])
def test_an_attempt_that_failed_after_the_answer_does_not_lose_it(
    near: Storage, outer: Callable[..., Any]
) -> None:
    failures = ["once", "twice"]

    def fail(state: Notes) -> Notes:
        if failures:
            raise RuntimeError(failures.pop())
        return {"notes": ["ended"]}

    async def main() -> None:
        graph = in_a_row(outer(first, fail)).compile()
        async with working(near.database(), graph) as runtime:
            await begin(runtime)
            ended = await runtime.wait(await runtime.answer("ada", "one"), 30)
            assert (ended.state, ended.attempts) == ("done", 3), ended.note
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert state.values["notes"] == ["one", "ended"]

    go(main())


def test_an_attempt_after_a_stored_answer_may_ask_the_next_question(near: Storage) -> None:
    failures = ["once"]

    def node(state: Notes) -> Notes:
        first = interrupt("first?")
        if failures:
            raise RuntimeError(failures.pop())
        return {"notes": [first, interrupt("second?")]}

    async def main() -> None:
        async with working(near.database(), in_a_row(node).compile()) as runtime:
            await begin(runtime)
            again = await runtime.wait(await runtime.answer("ada", "one"), 30)
            assert (again.state, again.attempts) == ("waiting", 2)

    go(main())


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("after", [second, end])
def test_an_attempt_after_a_subgraph_has_gone_on_gives_its_answer_to_no_other_question(
    near: Storage, after: Node, depth: int
) -> None:
    failures = ["once"]

    def fail(state: Notes) -> Notes:
        if failures:
            raise RuntimeError(failures.pop())
        return {"notes": []}

    async def main() -> None:
        graph = in_a_row(first, fail, after)
        for _ in range(depth):
            graph = in_a_row(cast(Any, graph.compile()))
        async with working(near.database(), graph.compile()) as runtime:
            await begin(runtime)
            run = await runtime.wait(await runtime.answer("ada", "one"), 30)
            if after is second:
                assert (run.state, run.attempts) == ("waiting", 2), run.note
                run = await runtime.wait(await runtime.answer("ada", "two"), 30)
            assert run.state == "done", run.note
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert state.values["notes"] == ["one", "two" if after is second else "ended"]

    go(main())


def test_an_answer_to_a_subgraph_that_a_policy_began_anew_reaches_no_other_question(memory: Storage) -> None:
    failures = ["once"]

    def fail(state: Notes) -> Notes:
        if failures:
            raise RuntimeError(failures.pop())
        return {"notes": []}

    async def main() -> None:
        policy = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=RuntimeError)
        builder = StateGraph(Notes).add_edge(START, "sub")
        builder.add_node("sub", in_a_row(first, fail, second).compile(), retry_policy=policy)
        async with working(memory.database(), builder.compile()) as runtime:
            await begin(runtime)
            for answer, state in (("one", "waiting"), ("again", "waiting"), ("two", "done")):
                run = await runtime.wait(await runtime.answer("ada", answer), 30)
                assert (run.state, run.attempts) == (state, 1), run.note
            found = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert found.values["notes"] == ["one", "two"]

    go(main())


def test_a_node_may_call_a_graph_with_checkpoints_before_one_without_that_asks(memory: Storage) -> None:
    kept, free = in_a_row(end).compile(), compiled_without(first)

    async def call_both(state: Notes) -> Notes:
        notes = (await kept.ainvoke({"notes": []}))["notes"]
        return {"notes": notes + (await free.ainvoke({"notes": []}))["notes"]}

    async def main() -> None:
        async with working(memory.database(), in_a_row(call_both).compile()) as runtime:
            await begin(runtime)
            ended = await runtime.wait(await runtime.answer("ada", "one"), 30)
            assert ended.state == "done", ended.note
            found = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert found.values["notes"] == ["ended", "one"]

    go(main())


def test_questions_of_graphs_without_checkpoints_side_by_side_are_refused(memory: Storage) -> None:
    async def main() -> None:
        builder = StateGraph(Notes).add_node("left", isolated(until_soon)).add_edge(START, "left")
        builder.add_node("right", isolated(first)).add_edge(START, "right")
        async with working(memory.database(), builder.compile()) as runtime:
            await begin(runtime)

            async def is_over() -> bool:
                return (await states(runtime))[1:] == ["failed"]

            await eventually_stored(is_over)
            await asyncio.sleep(0.6)
            assert await states(runtime) == ["waiting", "failed"]

    go(main())


def hidden(*graphs: StateGraph[Any, Any, Any, Any]) -> Node:
    """A node that calls graphs side by side which LangGraph does not find in it, as a tool does."""
    known = {"graphs": [graph.compile() for graph in graphs]}

    async def node(state: Notes) -> Notes:
        ended = await asyncio.gather(*(graph.ainvoke({"notes": []}) for graph in known["graphs"]))
        return {"notes": [note for each in ended for note in each["notes"]]}

    return node


def failing_once() -> Node:
    failures = ["once"]

    def fail(state: Notes) -> Notes:
        if failures:
            raise RuntimeError(failures.pop())
        return {"notes": []}

    return fail


async def answer_all(runtime: Runtime, *expected: str) -> list[Any]:
    """Answer the questions, each by its id and in this order, with their own text, and return the notes."""
    for number, question in enumerate(expected, 1):
        config: Any = {"configurable": {"thread_id": "ada"}}
        state = await aread_with_questions(runtime.graph("agent"), config)
        name = next(each.id for each in state.interrupts if each.value == question)
        run = await runtime.wait(await runtime.answer("ada", f"to {question}", interrupt_id=name), 30)
        assert run.state == ("done" if number == len(expected) else "waiting"), run.note
    state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
    if isinstance(state.values, dict):
        return list(state.values["notes"])
    return list(state.values)


def test_a_graph_with_checkpoints_that_a_node_calls_asks_as_often_as_it_likes(near: Storage) -> None:
    async def main() -> None:
        steps = first, failing_once(), second, first
        async with working(near.database(), in_a_row(hidden(in_a_row(*steps))).compile()) as runtime:
            await begin(runtime)
            notes = await answer_all(runtime, "first?", "second?", "first?")
            assert notes == ["to first?", "to second?", "to first?"]

    go(main())


@pytest.mark.parametrize("order", [("left?", "right?"), ("right?", "left?")])
@pytest.mark.parametrize("shape", ["nodes", "tasks"])
def test_questions_side_by_side_below_what_the_graph_shows_are_answered_one_by_one(
    near: Storage, shape: str, order: tuple[str, str]
) -> None:
    def asking(question: str) -> Node:
        return lambda state: {"notes": [interrupt(question)]}

    async def main() -> None:
        if shape == "nodes":
            builder = StateGraph(Notes)
            for name in ("left", "right"):
                node: Any = hidden(in_a_row(asking(f"{name}?")))
                builder.add_node(name, node).add_edge(START, name)
            graph: Any = builder.compile()
        else:

            @task
            async def call(question: str) -> Any:
                return interrupt(question)

            @entrypoint()
            async def graph(given: Any) -> list[Any]:
                return list(await asyncio.gather(call("left?"), call("right?")))

        async with working(near.database(), graph, settings=settings(attempts=1)) as runtime:
            await begin(runtime)
            assert await answer_all(runtime, *order) == ["to left?", "to right?"]

    go(main())


def test_a_task_that_failed_after_it_took_an_answer_asks_its_next_question(near: Storage) -> None:
    failures = ["once"]

    @task
    async def call() -> list[Any]:
        found = interrupt("first?")
        if failures:
            raise RuntimeError(failures.pop())
        return [found, interrupt("second?")]

    @entrypoint()
    async def graph(given: Any) -> list[Any]:
        return await call()

    async def main() -> None:
        async with working(near.database(), graph) as runtime:
            await begin(runtime)
            assert await answer_all(runtime, "first?", "second?") == ["to first?", "to second?"]

    go(main())


def test_an_answer_that_an_attempt_lost_is_given_to_no_earlier_question(memory: Storage) -> None:
    """LangGraph stores the answers that a failing try of a task has read, in place of more that it had."""
    failures = ["once", "twice"]

    def three(state: Notes) -> Notes:
        notes = [interrupt("one?")]
        if len(failures) == 1 or (failures and answered["count"] == 3):
            raise RuntimeError(failures.pop())
        return {"notes": [*notes, interrupt("two?"), interrupt("three?")]}

    answered = {"count": 0}

    async def main() -> None:
        async with working(memory.database(), in_a_row(three).compile()) as runtime:
            await begin(runtime)
            for question in ("one?", "two?", "three?", "two?", "three?"):
                answered["count"] += 1
                state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
                assert [each.value for each in state.interrupts] == [question]
                run = await runtime.wait(await runtime.answer("ada", f"to {question}"), 30)
            assert run.state == "done", run.note
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert state.values["notes"] == ["to one?", "to two?", "to three?"]

    go(main())


def test_an_answer_to_a_stop_before_a_node_reaches_no_second_question(near: Storage) -> None:
    async def main() -> None:
        sub = in_a_row(first, failing_once(), second)
        graph = in_a_row(end, hidden(sub)).compile(interrupt_before=["1"])
        async with working(near.database(), graph) as runtime:
            await begin(runtime)
            run = await runtime.wait(await runtime.answer("ada", "go"), 30)
            assert (run.state, run.attempts) == ("waiting", 2), run.note
            assert await answer_all(runtime, "second?") == ["ended", "go", "to second?"]

    go(main())
