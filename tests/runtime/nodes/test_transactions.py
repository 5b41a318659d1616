"""Statements on the application's own tables that nodes give: made with the node's writes, or not at all.

Covers perdure.langgraph.task_statements, perdure.storage.sqlite.application_statements,
perdure.storage.postgres.application_statements.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, TimeoutPolicy, interrupt

import perdure
from perdure.errors import NotAllowed, StatementRefused, TooLarge, Unavailable
from perdure.langgraph import task_statements
from perdure.runtime import Agent, Runtime, Transaction, isolated_subgraph, transaction
from perdure.testing.faults import Fault, fail, faulty
from tests.own_tables import ADD, BOTH, notes, own_tables, query


def _join(left: list[str], right: list[str]) -> list[str]:
    return left + right


class Log(TypedDict):
    log: Annotated[list[str], _join]


pytestmark = pytest.mark.each_backend  # a database's own statements
THREADS = 2_000 if os.environ.get("PERDURE_CHAOS") == "full" else 30

Node = Callable[[Log], Any]


@pytest.fixture(params=BOTH)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with own_tables(request.param) as url:
        yield url


def note(text: str, number: int | None = None) -> None:
    number = abs(hash(text)) % 1_000_000 if number is None else number
    transaction().execute(ADD, {"id": number, "note": text, "thread": None})


def chain(*nodes: Any, **options: Any) -> StateGraph[Log, Any, Any, Any]:
    builder = StateGraph(Log)
    before = START
    for number, node in enumerate(nodes):
        name = f"n{number}"
        builder.add_node(name, node, **options)
        builder.add_edge(before, name)
        before = name
    return builder


def config(thread: str = "t") -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def run(url: str, builder: StateGraph[Log, Any, Any, Any], given: Any, way: str = "async") -> Any:
    """The result of one call of a graph with the saver alone."""

    async def called() -> Any:
        async with perdure.connect(url) as db:
            return await builder.compile(checkpointer=db.checkpointer()).ainvoke(given, config())

    if way == "async":
        return asyncio.run(called())
    with perdure.connect_sync(url) as db:
        return builder.compile(checkpointer=db.checkpointer()).invoke(given, config())


@pytest.mark.parametrize("way", ["async", "sync"])
def test_what_nodes_give_is_made_once_also_by_one_that_returns_nothing(url: str, way: str) -> None:
    def first(state: Log) -> Log:
        note("first")
        note("first again")
        return {"log": ["first"]}

    def second(state: Log) -> None:
        note("second")

    assert run(url, chain(first, second), {"log": []}, way) == {"log": ["first"]}
    assert notes(url) == ["first", "first again", "second"]
    assert run(url, chain(first, second), None, way) == {"log": ["first"]}
    assert notes(url) == ["first", "first again", "second"]


@pytest.mark.parametrize("way", ["async", "sync"])
def test_an_attempt_replaces_what_the_one_before_gave(url: str, way: str) -> None:
    tries: list[int] = []

    def fails_once(state: Log) -> Log:
        tries.append(1)
        if len(tries) == 1:
            note("of the failed attempt")
            raise ValueError("again")
        if len(tries) == 2:
            note("of the second attempt")
            raise ValueError("again")
        return {"log": ["done"]}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False, retry_on=ValueError)
    run(url, chain(fails_once, retry_policy=policy), {"log": []}, way)
    assert len(tries) == 3
    assert notes(url) == []


def test_nothing_is_made_of_a_node_that_fails_and_all_when_it_is_called_again(url: str) -> None:
    broken = True

    def node(state: Log) -> Log:
        note("done")
        if broken:
            raise ValueError("not yet")
        return {"log": ["done"]}

    with pytest.raises(ValueError, match="not yet"):
        run(url, chain(node), {"log": []})
    assert notes(url) == []
    broken = False
    assert run(url, chain(node), None) == {"log": ["done"]}
    assert notes(url) == ["done"]


def test_a_question_drops_what_was_given_before_it(url: str) -> None:
    def node(state: Log) -> Log:
        note(f"asked {len(asked)}")
        asked.append(1)
        return {"log": [interrupt("well?")]}

    asked: list[int] = []
    run(url, chain(node), {"log": []})
    assert notes(url) == []
    assert run(url, chain(node), Command(resume="yes")) == {"log": ["yes"]}
    assert notes(url) == ["asked 1"]


@pytest.mark.parametrize("way", ["async", "sync"])
def test_a_refused_statement_fails_the_step_and_changes_nothing(url: str, way: str) -> None:
    number = 1

    def before(state: Log) -> Log:
        note("before", 1)
        return {"log": ["before"]}

    def refused(state: Log) -> Log:
        note("beside", 3)
        note("a secret", number)
        return {"log": ["refused"]}

    graph = chain(before, refused)
    with pytest.raises(StatementRefused, match="INSERT INTO own_notes") as caught:
        run(url, graph, {"log": []}, way)
    assert "secret" not in str(caught.value)
    name = type(caught.value.__cause__).__name__
    assert name in ("ConstraintError", "UniqueViolation")
    assert name in str(caught.value)
    assert notes(url) == ["before"]
    with perdure.connect_sync(url) as db:
        state = graph.compile(checkpointer=db.checkpointer()).get_state(config())
    assert state.values == {"log": ["before"]}
    assert state.next == ("n1",)
    number = 2
    assert run(url, graph, None, way) == {"log": ["before", "refused"]}
    assert notes(url) == ["a secret", "before", "beside"]


def test_a_sibling_of_a_refused_task_is_stored_with_what_it_gave(url: str) -> None:
    def good(state: Log) -> Log:
        note("good", 1)
        return {"log": ["good"]}

    async def bad(state: Log) -> Log:
        await asyncio.sleep(0.05)
        note("bad", number)
        return {"log": ["bad"]}

    builder = StateGraph(Log).add_node(good).add_node(bad)
    builder.add_edge(START, "good").add_edge(START, "bad")
    number = 1
    with pytest.raises(StatementRefused):
        run(url, builder, {"log": []})
    assert notes(url) == ["good"]
    number = 2
    assert sorted(run(url, builder, None)["log"]) == ["bad", "good"]
    assert notes(url) == ["bad", "good"]


def test_a_refused_statement_of_one_thread_does_not_fail_others(url: str) -> None:
    async def node(state: Log) -> Log:
        await asyncio.sleep(0)
        number = int(state["log"][0])
        note(f"note {number:04}", 0 if number % 5 == 0 else number)
        return {"log": ["done"]}

    async def all_of_them() -> list[Any]:
        async with perdure.connect(url) as db:
            graph = chain(node).compile(checkpointer=db.checkpointer())
            calls = (graph.ainvoke({"log": [f"{n}"]}, config(f"t{n}")) for n in range(THREADS))
            return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(all_of_them())
    refused = [n for n, each in enumerate(found) if isinstance(each, BaseException)]
    assert {type(found[n]) for n in refused} == {StatementRefused}
    assert len(refused) == THREADS // 5 - 1
    assert set(refused) < set(range(0, THREADS, 5))
    assert notes(url) == sorted(f"note {n:04}" for n in range(THREADS) if n not in refused)
    with perdure.connect_sync(url) as db:
        graph = chain(node).compile(checkpointer=db.checkpointer())
        for number in refused:
            state = graph.get_state(config(f"t{number}"))
            assert (state.values, state.next) == ({"log": [f"{number}"]}, ("n0",))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_commit_that_fails_or_whose_answer_is_lost_is_made_at_most_once(
    url: str, when: Any, durability: Any
) -> None:
    calls: list[int] = []

    def node(state: Log) -> Log:
        calls.append(1)
        note(f"call {len(calls)}", len(calls))
        return {"log": ["done"]}

    graph = chain(node, node)
    at, is_struck = 0, True
    while is_struck:
        at += 1
        thread = config(f"{when}-{durability}-{at}")
        query(url, "DELETE FROM own_notes")
        with faulty(url, Fault(at, fail("unavailable"), when)) as (db, driver):
            app = graph.compile(checkpointer=db.checkpointer())
            with suppress(Unavailable):
                app.invoke({"log": []}, thread, durability=durability)
            is_struck = driver.count >= at
        with perdure.connect_sync(url) as db:
            app = graph.compile(checkpointer=db.checkpointer())
            state = app.get_state(thread)
            if state.values != {"log": ["done", "done"]}:
                app.invoke({"log": []} if state.created_at is None else None, thread)
            assert app.get_state(thread).values == {"log": ["done", "done"]}
        assert len(notes(url)) == 2, (at, notes(url))
    assert at > 4


def test_a_subgraph_gives_statements_with_its_own_steps(url: str) -> None:
    def node(state: Log) -> Log:
        note("inside")
        return {"log": ["inside"]}

    assert run(url, chain(chain(node).compile()), {"log": []}) == {"log": ["inside"]}
    assert notes(url) == ["inside"]


def test_a_node_with_a_timeout_gives_statements(url: str) -> None:
    async def node(state: Log) -> Log:
        note("in time")
        return {"log": ["done"]}

    run(url, chain(node, timeout=TimeoutPolicy(run_timeout=5)), {"log": []})
    assert notes(url) == ["in time"]


def test_where_no_step_is_stored_nothing_is_taken() -> None:
    def node(state: Log) -> Log:
        transaction()
        return {"log": []}

    unsaved = chain(node).compile(checkpointer=False)

    def calls(state: Log) -> Log:
        unsaved.invoke({"log": []})
        return {"log": []}

    alone: Any = isolated_subgraph(chain(node).compile(), lambda state: {"log": []}, lambda found: found)
    with perdure.connect_sync("memory://") as db:
        for builder in (chain(calls), chain(alone)):
            with pytest.raises(NotAllowed, match="graph without checkpoints"):
                builder.compile(checkpointer=db.checkpointer()).invoke({"log": []}, config())
        with pytest.raises(NotAllowed, match='durability="exit"'):
            chain(node).compile(checkpointer=db.checkpointer()).invoke(
                {"log": []}, config(), durability="exit"
            )
        with pytest.raises(NotAllowed, match="memory:// cannot include"):
            chain(node).compile(checkpointer=db.checkpointer()).invoke({"log": []}, config())
    with pytest.raises(NotAllowed, match="graph without checkpoints"):
        chain(node).compile().invoke({"log": []})
    with pytest.raises(NotAllowed, match="inside a node"):
        transaction()


def test_an_agent_that_declares_it_does_not_start_on_another_database() -> None:
    graph = chain(lambda state: {"log": []}).compile()
    with (
        perdure.connect_sync("memory://") as db,
        pytest.raises(ValueError, match=r"\['notes'\].*memory://.*PostgreSQL or SQLite"),
    ):
        Runtime(db, {"notes": Agent(graph, transactions=True), "other": graph})


def test_a_task_gives_only_so_many_statements(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_statements, "STATEMENTS_MAX", 2)
    monkeypatch.setattr(task_statements, "BYTES_MAX", 1000)

    def many(state: Log) -> Log:
        note("one")
        note("two")
        with pytest.raises(TooLarge, match="2 statements of 1000 bytes"):
            note("three")
        return {"log": []}

    def large(state: Log) -> Log:
        with pytest.raises(TooLarge, match="1000 bytes"):
            note("x" * 1000)
        return {"log": []}

    run(url, chain(many, large), {"log": []})
    assert notes(url) == ["one", "two"]


def test_after_its_node_a_transaction_takes_nothing(url: str) -> None:
    held: list[Transaction] = []

    def node(state: Log) -> Log:
        held.append(transaction())
        held[0].execute(ADD, {"id": 1, "note": "in time", "thread": None})
        return {"log": ["done"]}

    run(url, chain(node), {"log": []})
    with pytest.raises(NotAllowed):
        held[0].execute(ADD, {"id": 2, "note": "too late", "thread": None})
    assert notes(url) == ["in time"]


def test_bad_statements_are_refused_where_they_are_given(url: str) -> None:
    def node(state: Log) -> Log:
        given = transaction()
        with pytest.raises(TypeError, match="a statement is text"):
            given.execute(7)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no value"):
            given.execute(ADD, {"id": 1})
        with pytest.raises(ValueError, match="begins and ends the transaction"):
            given.execute("COMMIT")
        with pytest.raises(TypeError, match="parameter 'note'"):
            given.execute(ADD, {"id": 1, "note": object(), "thread": None})
        return {"log": ["done"]}

    assert run(url, chain(node), {"log": []}) == {"log": ["done"]}
    assert notes(url) == []


def test_no_statement_ends_the_transaction_or_takes_long(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.storage.sqlite.application_statements.TIME_S", 0.2)
    monkeypatch.setattr(
        "perdure.storage.postgres.connection.BEGIN", b"BEGIN; SET LOCAL statement_timeout = '200ms'"
    )
    for text in (
        "INSERT INTO own_notes (id, note) VALUES (1, 'x'); COMMIT",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "INSERT INTO own_notes (id) SELECT x FROM n",
    ):

        def node(state: Log, text: str = text) -> Log:
            transaction().execute(text)
            return {"log": ["done"]}

        with pytest.raises(StatementRefused):
            run(url, chain(node), {"log": []})
        assert notes(url) == []
    run(url, chain(lambda state: note("later")), {"log": []})
    assert notes(url) == ["later"]


def test_threads_of_a_node_may_give_statements(url: str) -> None:
    def node(state: Log) -> Log:
        given = transaction()
        some = [
            threading.Thread(target=given.execute, args=(ADD, {"id": n, "note": f"{n}", "thread": None}))
            for n in range(8)
        ]
        for each in some:
            each.start()
        for each in some:
            each.join()
        return {"log": []}

    run(url, chain(node), {"log": []})
    assert notes(url) == [f"{n}" for n in range(8)]
