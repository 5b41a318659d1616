"""Threads of an older schema version: migrated when they are read, stored with the next checkpoint.

Covers perdure.langgraph.delta_channels, perdure.langgraph.migration.schema_values.
"""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

import perdure
from perdure.errors import SchemaTooNew
from perdure.schema import Schema, convert, drop, rename_channel, rename_node
from tests.langgraph.savers import opened


class Before(TypedDict, total=False):
    topic: str
    notes: str
    spare: str
    count: int


class After(TypedDict, total=False):
    subject: str
    notes: Annotated[list[str], operator.add]
    count: int


SCHEMA = Schema(
    2,
    [
        rename_channel(2, "topic", "subject"),
        convert(2, "notes", lambda note: [note]),
        drop(2, "spare"),
        rename_node(2, "ask", "question"),
    ],
)


def old_graph(db: perdure.SyncDatabase, *, asks: bool = True) -> Any:
    def ask(state: Before) -> Before:
        answer = interrupt("why?") if asks else ""
        return {"topic": state["topic"] + answer, "count": state.get("count", 0) + 1}

    builder = StateGraph(Before).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
    return builder.compile(checkpointer=db.checkpointer())


def new_graph(db: perdure.SyncDatabase, schema: Schema = SCHEMA, *, asks: bool = True) -> Any:
    def question(state: After) -> After:
        answer = interrupt("why?") if asks else ""
        return {"subject": state["subject"] + answer, "count": state.get("count", 0) + 1}

    builder = StateGraph(After).add_node("question", question)
    builder.add_edge(START, "question").add_edge("question", END)
    return builder.compile(checkpointer=db.checkpointer(schema=schema))


def config(thread: str = "t") -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def one_turn(graph: Any, thread: str = "t") -> None:
    graph.invoke({"topic": "x", "notes": "n", "spare": "s", "count": 0}, config(thread))
    graph.invoke(Command(resume="!"), config(thread))


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with opened("memory", tmp_path) as database:
        yield database


@pytest.mark.parametrize(
    "driver",
    ["sqlite", *(pytest.param(d, marks=pytest.mark.slow) for d in ("postgresql", "redis", "d1", "dynamodb"))],
)
def test_a_thread_goes_on_after_a_declared_change(driver: str, tmp_path: Path) -> None:
    with opened(driver, tmp_path) as db:
        one_turn(old_graph(db))
        graph = new_graph(db)
        expected = {"subject": "x!", "notes": ["n"], "count": 1}
        assert graph.get_state(config()).values == expected
        graph.invoke({"subject": "y", "notes": ["m"]}, config())
        assert graph.invoke(Command(resume="?"), config()) == {
            "subject": "y?",
            "notes": ["n", "m"],
            "count": 2,
        }
        states = [(s.values, s.next) for s in graph.get_state_history(config())]
        # The checkpoints of the older version are read under the present names too.
        assert (expected, ()) in states
        assert (
            {"subject": "x", "notes": ["n"], "count": 0},
            ("question",),
        ) in states
        assert db.fsck("t") == []


def test_a_thread_that_is_only_read_stays_byte_for_byte(db: perdure.SyncDatabase) -> None:
    one_turn(old_graph(db))
    before = db.digest("t")
    graph = new_graph(db)
    graph.get_state(config())
    list(graph.get_state_history(config()))
    assert db.digest("t") == before
    assert old_graph(db).get_state(config()).values["topic"] == "x!"


@pytest.mark.parametrize("by_id", [False, True])
def test_an_answer_arrives_in_a_renamed_node(db: perdure.SyncDatabase, by_id: bool) -> None:
    old = old_graph(db)
    old.invoke({"topic": "x", "notes": "n"}, config())
    graph = new_graph(db)
    state = graph.get_state(config())
    assert state.next == ("question",)
    assert [i.value for i in state.interrupts] == ["why?"]
    answer: Any = {state.interrupts[0].id: "!"} if by_id else "!"
    assert graph.invoke(Command(resume=answer), config())["subject"] == "x!"


def test_the_older_application_refuses_what_the_newer_one_has_stored(db: perdure.SyncDatabase) -> None:
    old = old_graph(db)
    one_turn(old)
    new_graph(db).invoke({"subject": "y", "notes": []}, config())
    for read in (
        old.get_state,
        lambda c: list(old.get_state_history(c)),
        lambda c: old.invoke({"topic": ""}, c),
    ):
        with pytest.raises(SchemaTooNew, match="schema version 2"):
            read(config())


def test_time_travel_into_an_older_version_forks_from_it(db: perdure.SyncDatabase) -> None:
    one_turn(old_graph(db))
    graph = new_graph(db)
    one = new_graph(db).invoke({"subject": "y"}, config())
    assert one["subject"] == "y"
    parked = next(s for s in graph.get_state_history(config()) if s.values.get("subject") == "x" and s.next)
    assert graph.invoke(None, parked.config)["subject"] == "x"
    assert graph.invoke(Command(resume="+"), config())["subject"] == "x+"
    assert db.fsck("t") == []


def test_time_travel_reaches_the_checkpoints_of_every_older_version(db: perdure.SyncDatabase) -> None:
    class First(TypedDict, total=False):
        topic: str

    class Second(TypedDict, total=False):
        subject: str

    class Third(TypedDict, total=False):
        titles: list[str]

    schema = Schema(
        3,
        [
            rename_channel(2, "topic", "subject"),
            rename_node(2, "ask", "question"),
            rename_channel(3, "subject", "titles"),
            convert(3, "titles", lambda title: [title]),
            rename_node(3, "question", "inquiry"),
        ],
    )

    def graph(version: int) -> Any:
        state: Any = (First, Second, Third)[version - 1]
        channel, node = (("topic", "ask"), ("subject", "question"), ("titles", "inquiry"))[version - 1]

        def ask(held: Any) -> Any:
            answer = interrupt("why?")
            return {channel: held[channel] + (answer if version < 3 else [answer])}

        builder: Any = StateGraph(state).add_edge(START, node)
        builder.add_node(node, ask)
        return builder.compile(checkpointer=db.checkpointer(schema=schema.at(version)))

    for version, given in enumerate(({"topic": "1"}, {"subject": "2"}, {"titles": ["3"]}), 1):
        graph(version).invoke(given, config())
        graph(version).invoke(Command(resume="!"), config())
    present = graph(3)
    history = list(present.get_state_history(config()))
    assert [(s.values, s.next) for s in history if s.values and s.next != ("__start__",)] == [
        ({"titles": ["3", "!"]}, ()),
        ({"titles": ["3"]}, ("inquiry",)),
        ({"titles": ["2!"]}, ()),
        ({"titles": ["2"]}, ("inquiry",)),
        ({"titles": ["1!"]}, ()),
        ({"titles": ["1"]}, ("inquiry",)),
    ]
    for parked in (state for state in history if state.next == ("inquiry",)):
        # Each is gone on from under the present names, and by the older application no more.
        assert "__interrupt__" in present.invoke(None, parked.config)
        assert present.invoke(Command(resume="?"), config()) == {"titles": [*parked.values["titles"], "?"]}
        with pytest.raises(SchemaTooNew):
            graph(2).get_state(config())
    assert db.fsck("t") == []
