"""Statements of nodes that leave their subgraph, run at once, fail, end early or do not run at all."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, TimeoutPolicy, interrupt

import perdure
from perdure.errors import NotAllowed, StatementRefused
from perdure.runtime import transaction
from perdure.runtime.nodes import transactions
from tests.own_tables import BOTH, notes, own_tables, query
from tests.runtime.nodes.test_transactions import Log, chain, config, note, run

WAYS = ["async", "sync"]


@pytest.fixture(params=BOTH)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with own_tables(request.param) as url:
        yield url


# Leaving a subgraph


def leaving() -> Any:
    """A subgraph whose second node leaves it by a command to the graph above."""

    def inside(state: Log) -> Log:
        note("inside")
        return {"log": ["inside"]}

    def leaves(state: Log) -> Any:
        note("leaves first")
        note("leaves next")
        return Command(graph=Command.PARENT, update={"log": ["left"]}, goto="after")

    return chain(inside, leaves).compile()


def above(called: Any) -> StateGraph[Log, Any, Any, Any]:
    """A graph that calls a subgraph, which leaves it to the node ``after``."""

    def after(state: Log) -> Log:
        note("then after")
        return {"log": ["after"]}

    return StateGraph(Log).add_node(after).add_node("called", called).add_edge(START, "called")


@pytest.mark.parametrize("way", WAYS)
def test_a_node_that_leaves_its_subgraph_takes_its_statements_along(url: str, way: str) -> None:
    graph = above(leaving())
    assert run(url, graph, {"log": []}, way) == {"log": ["left", "after"]}
    assert notes(url) == ["inside", "leaves first", "leaves next", "then after"]
    run(url, graph, None, way)
    assert len(notes(url)) == 4


@pytest.mark.parametrize("way", WAYS)
def test_a_command_goes_up_by_one_graph(url: str, way: str) -> None:
    def last(state: Log) -> Log:
        note("z")
        return {"log": ["last"]}

    outer = chain(above(leaving()).compile(), last)
    assert run(url, outer, {"log": []}, way) == {"log": ["left", "after", "last"]}
    assert notes(url) == ["inside", "leaves first", "leaves next", "then after", "z"]


@pytest.mark.parametrize("way", WAYS)
def test_what_the_caller_gave_comes_first(url: str, way: str) -> None:
    inner = leaving()

    def called(state: Log) -> Any:
        transaction().execute("INSERT INTO own_notes (id, note) VALUES (1, 'of the caller')")
        return inner.invoke(state)

    run(url, above(called), {"log": []}, way)
    assert notes(url) == ["inside", "leaves first", "leaves next", "of the caller", "then after"]


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_statement_of_a_node_that_leaves_fails_the_step_above(url: str, way: str) -> None:
    number = 1

    def leaves(state: Log) -> Any:
        note("twice", 1)
        note("again", number)
        return Command(graph=Command.PARENT, goto="after")

    graph = above(chain(leaves).compile())
    with pytest.raises(StatementRefused, match="own_notes"):
        run(url, graph, {"log": []}, way)
    assert notes(url) == []
    number = 2
    assert run(url, graph, None, way) == {"log": ["after"]}
    assert notes(url) == ["again", "then after", "twice"]


@pytest.mark.parametrize("way", WAYS)
def test_of_nodes_at_once_each_gives_with_its_own_writes(url: str, way: str) -> None:
    """LangGraph lets the others end before the command takes effect."""

    def quick(state: Log) -> Log:
        note("quick")
        return {"log": ["quick"]}

    def leaves(state: Log) -> Any:
        time.sleep(0.1)
        note("leaves")
        return Command(graph=Command.PARENT, goto="after")

    def slow(state: Log) -> Log:
        note("slow")
        time.sleep(0.3)
        return {"log": ["slow"]}

    inner = StateGraph(Log)
    for each in (quick, leaves, slow):
        inner.add_node(each).add_edge(START, each.__name__)
    run(url, above(inner.compile()), {"log": []}, way)
    assert notes(url) == ["leaves", "quick", "slow", "then after"]
    with perdure.connect_sync(url) as db:
        assert db.fsck("t") == []


@pytest.mark.parametrize("way", WAYS)
def test_a_tool_that_hands_over_gives_statements(url: str, way: str) -> None:
    class Messages(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    @tool
    def hand_over(text: str) -> Any:
        """Hand over to another agent."""
        note(text)
        return Command(graph=Command.PARENT, goto="other")

    def other(state: Messages) -> Any:
        return {"messages": [AIMessage("taken over")]}

    asked = AIMessage("", tool_calls=[{"name": "hand_over", "args": {"text": "handed"}, "id": "1"}])
    agent = StateGraph(Messages).add_node("tools", ToolNode([hand_over])).add_edge(START, "tools").compile()
    graph: Any = StateGraph(Messages).add_node("agent", agent).add_node(other).add_edge(START, "agent")
    found = run(url, graph, {"messages": [asked]}, way)
    assert found["messages"][-1].text == "taken over"
    assert notes(url) == ["handed"]


def test_what_cannot_be_passed_on_is_an_error_that_names_the_remedy(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(transactions, "_tasks_that_raised", lambda error: set())
        with pytest.raises(NotAllowed, match="give them in the node of the graph above"):
            run(url, above(leaving()), {"log": []})
    assert notes(url) == ["inside"]
    run(url, above(leaving()), None)
    assert notes(url) == ["inside", "leaves first", "leaves next", "then after"]


def test_a_caller_whose_steps_are_not_stored_is_an_error(url: str) -> None:
    async def called() -> None:
        async with perdure.connect(url) as db:
            own = chain(lambda state: Command(graph=Command.PARENT, goto="after"))
            own.nodes.clear()
            saver = db.checkpointer()

            def leaves(state: Log) -> Any:
                note("leaves")
                return Command(graph=Command.PARENT, goto="after")

            inner = chain(leaves).compile(checkpointer=saver)
            outer = above(inner).compile()
            with pytest.raises(NotAllowed, match="graph without checkpoints"):
                await outer.ainvoke({"log": []}, config())

    asyncio.run(called())
    assert notes(url) == []


# Attempts


@pytest.mark.parametrize("way", WAYS)
def test_the_attempt_that_succeeds_gives_and_those_before_it_do_not(url: str, way: str) -> None:
    tries: list[int] = []

    def node(state: Log) -> Log:
        tries.append(1)
        note(f"of attempt {len(tries)}")
        if len(tries) < 3:
            raise ValueError("again")
        return {"log": ["done"]}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False, retry_on=ValueError)
    run(url, chain(node, retry_policy=policy), {"log": []}, way)
    assert notes(url) == ["of attempt 3"]


def test_a_node_that_takes_too_long_gives_nothing_and_its_next_attempt_all(url: str) -> None:
    tries: list[int] = []
    late: list[Any] = []

    async def node(state: Log) -> Log:
        tries.append(1)
        number = len(tries)
        note(f"of attempt {number}")
        if number == 1:
            try:
                await asyncio.sleep(30)
            finally:
                with pytest.raises(NotAllowed, match="attempt of the node is over"):
                    note("too late")
                late.append(1)
        return {"log": ["done"]}

    policy = RetryPolicy(max_attempts=2, initial_interval=0.05, jitter=False, retry_on=Exception)
    graph = chain(node, timeout=TimeoutPolicy(run_timeout=0.3), retry_policy=policy)
    run(url, graph, {"log": []})
    assert notes(url) == ["of attempt 2"]
    assert late


def test_a_node_that_is_cancelled_gives_nothing(url: str) -> None:
    async def slow(state: Log) -> Log:
        note("slow")
        if is_broken:
            await asyncio.sleep(30)
        return {"log": ["slow"]}

    async def fails(state: Log) -> Log:
        await asyncio.sleep(0.1)
        if is_broken:
            raise ValueError("broken")
        return {"log": ["fails"]}

    graph = StateGraph(Log).add_node(slow).add_node(fails).add_edge(START, "slow").add_edge(START, "fails")
    is_broken = True
    with pytest.raises(ValueError, match="broken"):
        run(url, graph, {"log": []})
    assert notes(url) == []
    is_broken = False
    run(url, graph, None)
    assert notes(url) == ["slow"]


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_cancelled_gives_what_is_stored(url: str, way: str) -> None:
    begun = threading.Event()

    async def slow(state: Log) -> Log:
        note("slow")
        begun.set()
        await asyncio.sleep(30)
        return {"log": ["slow"]}

    async def cancelled() -> None:
        async with perdure.connect(url) as db:
            graph = chain(lambda state: note("first"), slow).compile(checkpointer=db.checkpointer())
            called = asyncio.create_task(graph.ainvoke({"log": []}, config(), durability="sync"))
            await asyncio.to_thread(begun.wait, 30)
            called.cancel()
            with pytest.raises(asyncio.CancelledError):
                await called

    asyncio.run(cancelled())
    assert notes(url) == ["first"]


@pytest.mark.parametrize("way", WAYS)
def test_a_question_after_statements_leaves_them_to_the_run_that_goes_on(url: str, way: str) -> None:
    def asks(state: Log) -> Log:
        note("of the node")
        answers = [interrupt("one?"), interrupt("two?")]
        note("of the end")
        return {"log": answers}

    graph = chain(asks)
    run(url, graph, {"log": []}, way)
    run(url, graph, Command(resume="yes"), way)
    assert notes(url) == []
    assert run(url, graph, Command(resume="no"), way) == {"log": ["yes", "no"]}
    assert notes(url) == ["of the end", "of the node"]


# Many at once, tasks, caches


@pytest.mark.parametrize("way", WAYS)
def test_each_task_of_a_fan_out_gives_its_own(url: str, way: str) -> None:
    def one(state: Any) -> Log:
        note(f"task {state:02}", state)
        if state == 3 and is_broken:
            raise ValueError("broken")
        return {"log": [f"{state}"]}

    builder = StateGraph(Log).add_node(one)
    builder.add_conditional_edges(START, lambda state: [Send("one", n) for n in range(8)])
    is_broken = True
    with pytest.raises(ValueError, match="broken"):
        run(url, builder, {"log": []}, way)
    assert "task 03" not in notes(url)
    is_broken = False
    assert sorted(run(url, builder, None, way)["log"]) == [f"{n}" for n in range(8)]
    assert notes(url) == [f"task {n:02}" for n in range(8)]


def test_tasks_of_the_functional_api_give_with_their_results(url: str) -> None:
    made: list[int] = []

    @task
    async def square(number: int) -> int:
        made.append(number)
        note(f"task {number}", number)
        return number * number

    async def called(given: Any) -> Any:
        async with perdure.connect(url) as db:

            @entrypoint(checkpointer=db.checkpointer())
            async def flow(numbers: list[int]) -> int:
                note("flow", 100)
                found = [square(number) for number in numbers]
                total = sum([await each for each in found])
                return total + int(interrupt("how many more?"))

            return await flow.ainvoke(given, config())

    asyncio.run(called([1, 2, 3]))
    assert notes(url) == ["task 1", "task 2", "task 3"], "the flow asks, and what it gave is dropped"
    assert asyncio.run(called(Command(resume="4"))) == 18
    assert sorted(made) == [1, 2, 3]
    assert notes(url) == ["flow", "task 1", "task 2", "task 3"]


def test_a_result_from_the_cache_gives_nothing_and_leaves_no_trace(url: str) -> None:
    async def called() -> list[Any]:
        async with perdure.connect(url) as db:
            builder = StateGraph(Log)
            builder.add_node("node", node, cache_policy=CachePolicy()).add_edge(START, "node")
            graph = builder.compile(checkpointer=db.checkpointer(), cache=InMemoryCache())
            found = [await graph.ainvoke({"log": []}, config(thread)) for thread in ("a", "b")]
            for thread in ("a", "b"):
                states = [each async for each in graph.aget_state_history(config(thread))]
                assert states[0].values == {"log": ["done"]}
                assert await db.fsck(thread) == []
            return found

    def node(state: Log) -> Log:
        note("made")
        return {"log": ["done"]}

    assert asyncio.run(called()) == [{"log": ["done"]}] * 2
    assert notes(url) == ["made"]


# Threads, and tasks that outlive their node


def test_a_thread_of_a_node_gives_with_it(url: str) -> None:
    async def node(state: Log) -> Log:
        await asyncio.to_thread(note, "in a thread")
        await asyncio.gather(*(asyncio.to_thread(note, f"in thread {n}", n) for n in range(8)))
        return {"log": ["done"]}

    run(url, chain(node), {"log": []})
    assert notes(url) == ["in a thread", *(f"in thread {n}" for n in range(8))]


def _after(node_ended: threading.Event, errors: list[Exception], is_called_first: bool) -> Callable[[], None]:
    held = transaction() if is_called_first else None

    def late() -> None:
        assert node_ended.wait(30)
        try:
            (held or transaction()).execute("INSERT INTO own_notes (id, note) VALUES (77, 'too late')")
        except Exception as error:
            errors.append(error)

    return late


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_called_first", [True, False])
@pytest.mark.parametrize("has_sibling", [True, False])
def test_what_outlives_its_node_is_part_of_its_step_or_hears_that_it_is_not(
    url: str, way: str, is_called_first: bool, has_sibling: bool
) -> None:
    errors: list[Exception] = []
    stored = threading.Event()
    threads: list[threading.Thread] = []

    def node(state: Log) -> Log:
        late = _after(stored, errors, is_called_first)
        threads.append(threading.Thread(target=contextvars.copy_context().run, args=(late,)))
        threads[0].start()
        return {"log": ["done"]}

    def next_one(state: Log) -> Log:
        stored.set()
        threads[0].join(30)
        return {"log": ["next"]}

    def sibling(state: Log) -> Log:
        # The step goes on while the writes of the node are stored already.
        time.sleep(0.5)
        stored.set()
        threads[0].join(30)
        return {"log": ["sibling"]}

    builder = StateGraph(Log).add_node(node).add_node(next_one)
    builder.add_edge(START, "node").add_edge("node", "next_one")
    if has_sibling:
        builder.add_node(sibling).add_edge(START, "sibling")
    run(url, builder, {"log": []}, way)
    # The step's commit may begin a moment after the step's end.
    is_made = is_called_first and notes(url) == ["too late"]
    assert is_made or notes(url) == []
    assert [type(error) for error in errors] == ([] if is_made else [NotAllowed])


def test_what_outlives_a_failed_attempt_gives_nothing_to_the_next(url: str) -> None:
    errors: list[Exception] = []
    second = threading.Event()
    threads: list[threading.Thread] = []

    def node(state: Log) -> Log:
        if not threads:
            late = _after(second, errors, is_called_first=True)
            threads.append(threading.Thread(target=contextvars.copy_context().run, args=(late,)))
            threads[0].start()
            raise ValueError("again")
        note("of the second attempt")
        second.set()
        threads[0].join(30)
        return {"log": ["done"]}

    policy = RetryPolicy(max_attempts=2, initial_interval=0.01, jitter=False, retry_on=ValueError)
    run(url, chain(node, retry_policy=policy), {"log": []})
    assert notes(url) == ["of the second attempt"]
    assert [type(error) for error in errors] == [NotAllowed]


# Constraints


@pytest.mark.parametrize("is_deferred", [False, True])
def test_foreign_keys_hold_for_the_tables_of_an_application(url: str, is_deferred: bool) -> None:
    when = "DEFERRABLE INITIALLY DEFERRED" if is_deferred else ""
    tables = (
        "CREATE TABLE IF NOT EXISTS own_parents (id INTEGER PRIMARY KEY)",
        "CREATE TABLE IF NOT EXISTS own_children "
        f"(id INTEGER PRIMARY KEY, parent INTEGER REFERENCES own_parents (id) ON DELETE CASCADE {when})",
    )
    for each in (*tables, "DELETE FROM own_children", "DELETE FROM own_parents"):
        query(url, each)
    given: list[str] = []

    def node(state: Log) -> None:
        for text in given:
            transaction().execute(text)

    graph = chain(node)
    try:
        given[:] = ["INSERT INTO own_children VALUES (1, 7)"]
        with pytest.raises(StatementRefused, match="deferred constraints" if is_deferred else "own_children"):
            run(url, graph, {"log": []})
        assert query(url, "SELECT * FROM own_children") == []
        # A key that is there at the end will do if the constraint is deferred.
        given[:] = ["INSERT INTO own_children VALUES (1, 7)", "INSERT INTO own_parents VALUES (7)"]
        if not is_deferred:
            given.reverse()
        run(url, graph, None)
        assert query(url, "SELECT * FROM own_children") == [(1, 7)]
        given[:] = ["DELETE FROM own_parents WHERE id = 7"]
        run(url, graph, {"log": []})
        assert query(url, "SELECT * FROM own_children") == []
        with perdure.connect_sync(url) as db:
            assert db.fsck("t") == []
    finally:
        for table in ("own_children", "own_parents"):
            query(url, f"DROP TABLE {table}")
