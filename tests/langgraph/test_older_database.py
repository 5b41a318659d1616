"""A database comes back older than it was while a process lives on: what the process acknowledges from then
on can be read by everybody, and what it knew of the lost part is believed no longer."""

from __future__ import annotations

import operator
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from perdure.database.blocking import SyncDatabase
from perdure.database.opening import open_database
from perdure.errors import PerdureError
from perdure.storage.port import Driver
from tests.backends import EMPTY
from tests.langgraph.graphs import appended
from tests.langgraph.session import config
from tests.rewinding import Rewinding, capture, restore

FULL = os.environ.get("PERDURE_CHAOS") == "full"
TURNS = 4
PAGES = [{"page": n, "text": f"page {n} " * 40} for n in range(12)]


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    pages: list[Any]
    facts: dict[str, Any]
    log: Annotated[list[str], operator.add]


def talking(saver: Any) -> Any:
    """A graph whose channels share chunks over turns, tasks and namespaces: it returns lists as a whole,
    hands its state to a subgraph that is stored, and repeats itself."""

    def look(state: State) -> Any:
        seen = len(state["messages"])
        return {"messages": [AIMessage("the same answer each time " * 20, id=f"inner {seen}")]}

    inner = StateGraph(State).add_node(look).add_edge(START, "look").compile()

    def collect(state: State) -> Any:
        return {"pages": [*state.get("pages", []), *PAGES], "log": ["collected"]}

    def learn(state: State) -> Any:
        return {"facts": {**(state.get("facts") or {}), "pages": PAGES}, "log": ["learned"]}

    def answer(state: State) -> Any:
        said = len(state["messages"])
        return {"messages": [AIMessage("and this is what I think of it " * 20, id=f"answer {said}")]}

    graph = StateGraph(State).add_node(collect).add_node(learn).add_node("inner", inner).add_node(answer)
    graph.add_edge(START, "collect").add_edge(START, "learn").add_edge(["collect", "learn"], "inner")
    graph.add_edge("inner", "answer")
    return graph.compile(checkpointer=saver)


class Replayed(TypedDict):
    messages: Annotated[list[Any], add_messages]
    said: Annotated[list[str], DeltaChannel(appended)]


def replaying(saver: Any) -> Any:
    """A graph whose state is replayed from the writes of tasks, some at the same time, in a subgraph too."""

    def speak(name: str) -> Any:
        return lambda state: {"said": [f"{name} after {len(state['said'])} " * 20]}

    def answer(state: Replayed) -> Any:
        count = len(state["messages"])
        return {"messages": [AIMessage("an answer", id=f"answer {count}")], "said": [f"answer {count}"]}

    inner = StateGraph(Replayed).add_node("within", speak("within")).add_edge(START, "within").compile()
    graph = StateGraph(Replayed).add_node("left", speak("left")).add_node("right", speak("right"))
    graph.add_node("inner", inner).add_node(answer)
    graph.add_edge(START, "left").add_edge(START, "right").add_edge(["left", "right"], "inner")
    graph.add_edge("inner", "answer")
    return graph.compile(checkpointer=saver)


@contextmanager
def living(backend: str, at: int = 0, to: int = 0) -> Iterator[tuple[SyncDatabase, Rewinding]]:
    """A database that comes back older."""
    drivers: list[Rewinding] = []

    def wrap(driver: Driver) -> Driver:
        drivers.append(Rewinding(driver, at, to))
        return drivers[0]

    with EMPTY[backend]() as url:
        db = open_database(url, migrate=True, wrap=wrap)
        try:
            yield db, drivers[0]
        finally:
            db.close()


def converse(db: SyncDatabase, driver: Rewinding, durability: Any) -> int:
    """Converse in one process that lives on; the number of turns that were acknowledged. Whatever it
    acknowledges before the loss or after is read by another process that knows nothing; of the turn in which
    the loss happens only that the thread can be read."""
    graph = talking(driver.watched(db.checkpointer()))
    acknowledged = 0
    for turn in range(TURNS):
        was_over = driver.is_over
        message = HumanMessage("tell me more about this, please " * 20, id=f"question {turn % 2} of {turn}")
        try:
            state = graph.invoke({"messages": [message]}, config(), durability=durability)
        except PerdureError:
            state = None
        fresh = talking(db.checkpointer()).get_state(config()).values
        if state is not None:
            acknowledged += 1
            assert fresh == state or driver.is_over != was_over
        assert [str(f) for f in db.fsck()] == []
    # And from here on all is as ever.
    driver.finish()
    state = graph.invoke({"messages": [HumanMessage("are you there?", id="last")]}, config())
    assert talking(db.checkpointer()).get_state(config()).values == state
    for kept in talking(db.checkpointer()).get_state_history(config()):
        assert kept.values is not None
    assert db.fsck() == []
    return acknowledged


def moments(durability: str, count: int) -> list[tuple[int, int]]:
    """When the database comes back, and as of when: before each commit, as after each one before it."""
    with living("memory") as (db, driver):
        converse(db, driver, durability)
        commits = driver.commits
    every = [(at, to) for at in range(2, commits + 1) for to in range(at)]
    near = [(at, to) for at, to in every if at - to <= 3]
    chance = random.Random(commits)
    return every if FULL else sorted({*chance.sample(every, count), *chance.sample(near, count)})


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("count", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_what_is_acknowledged_after_a_loss_can_be_read(durability: str, count: int) -> None:
    broken: list[tuple[int, int, str]] = []
    for at, to in moments(durability, count):
        with living("memory", at, to) as (db, driver):
            try:
                converse(db, driver, durability)
            except (AssertionError, PerdureError) as error:
                broken.append((at, to, f"{type(error).__name__}: {str(error)[:150]}"))
    assert not broken, "\n".join(map(str, broken))


def asking(saver: Any, *, keeps: bool | None) -> Any:
    """A graph that asks a person, in a subgraph whose state ``keeps`` says is kept, and by itself."""

    def look(state: State) -> Any:
        return {"log": [f"looked at {len(state['messages'])}"]}

    def ask(state: State) -> Any:
        answer = interrupt({"question": "is this what you meant? " * 20})
        return {"messages": [HumanMessage(str(answer), id=f"answer {len(state['messages'])}")]}

    inner = StateGraph(State).add_node(look).add_node(ask).add_edge(START, "look").add_edge("look", "ask")
    graph = StateGraph(State).add_node(look).add_node(ask)
    graph.add_node("inner", inner.compile(checkpointer=keeps))
    graph.add_edge(START, "look").add_edge("look", "inner").add_edge("inner", "ask")
    return graph.compile(checkpointer=saver)


def ask_and_answer(db: SyncDatabase, driver: Rewinding, keeps: bool | None, durability: Any) -> None:
    """A turn with two questions. Each call that is acknowledged is read by another process as it was, also
    the one in which the loss happens: a commit came after it."""
    graph = asking(driver.watched(db.checkpointer()), keeps=keeps)
    given: Any = {"messages": [HumanMessage("look at this " * 20, id="question")]}
    for _ in range(3):
        try:
            out = graph.invoke(given, config(), durability=durability)
        except PerdureError:
            assert driver.is_over
            return
        asked = [question.value for question in out.pop("__interrupt__", ())]
        fresh = asking(db.checkpointer(), keeps=keeps).get_state(config())
        assert (fresh.values, [question.value for question in fresh.interrupts]) == (out, asked)
        assert db.fsck() == []
        given = Command(resume="yes, go on " * 20)


@pytest.mark.parametrize("keeps", [None, True])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_question_that_is_acknowledged_can_be_answered(durability: str, keeps: bool | None) -> None:
    with living("memory") as (db, driver):
        ask_and_answer(db, driver, keeps, durability)
        commits = driver.commits
    every = [(at, to) for at in range(2, commits + 1) for to in range(at) if FULL or at - to == 2]
    broken: list[tuple[int, int, str]] = []
    for at, to in every:
        with living("memory", at, to) as (db, driver):
            try:
                ask_and_answer(db, driver, keeps, durability)
            except AssertionError as error:
                broken.append((at, to, str(error)[:150]))
    assert not broken, "\n".join(map(str, broken))


def replay(db: SyncDatabase, driver: Rewinding, durability: Any) -> int:
    """Two turns of a graph whose state is replayed; the number of commits of the first. What is acknowledged
    is read by another process as it was, also of the turn in which the loss happens."""
    graph = replaying(driver.watched(db.checkpointer()))
    first = 0
    for turn in range(2):
        first = driver.commits if turn else 0
        given: Any = {"messages": [HumanMessage("go on", id=f"question {turn}")], "said": [f"turn {turn}"]}
        try:
            out = graph.invoke(given, config(), durability=durability)
        except PerdureError:
            assert driver.is_over
            return first
        fresh = replaying(db.checkpointer())
        assert fresh.get_state(config()).values == out
        for kept in fresh.get_state_history(config()):
            assert kept.values is not None
        assert db.fsck() == []
    return first


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_writes_that_a_state_is_replayed_from_are_there_or_it_is_refused(durability: str) -> None:
    with living("memory") as (db, driver):
        first = replay(db, driver, durability)
        commits = driver.commits
    every = [(at, to) for at in range(first + 1, commits + 1) for to in range(at - 1)]
    broken: list[tuple[int, int, str]] = []
    for at, to in every if FULL else [(at, to) for at, to in every if at - to <= 3]:
        with living("memory", at, to) as (db, driver):
            try:
                replay(db, driver, durability)
            except AssertionError as error:
                broken.append((at, to, str(error)[:150]))
    assert not broken, "\n".join(map(str, broken))


def prune_after_two_turns(db: SyncDatabase, driver: Rewinding) -> int:
    """The number of commits before the prune. Whatever becomes of the prune, the thread can be read."""
    graph = talking(db.checkpointer())
    for turn in range(2):
        graph.invoke({"messages": [HumanMessage("tell me more " * 40, id=f"question {turn}")]}, config())
    before = driver.commits
    db.checkpointer().prune(["t"])
    assert db.fsck() == []
    return before


def test_a_prune_deletes_nothing_that_an_older_database_needs() -> None:
    with living("memory") as (db, driver):
        before = prune_after_two_turns(db, driver)
        commits = driver.commits
    assert commits > before + 1, "chunks are deleted after the commit that removes checkpoints"
    broken: list[tuple[int, int, str]] = []
    for at, to in product(range(before + 2, commits + 1), range(before - 8, before + 1)):
        with living("memory", at, to) as (db, driver):
            try:
                prune_after_two_turns(db, driver)
            except AssertionError as error:
                broken.append((at, to, str(error)[:150]))
    assert not broken, "\n".join(map(str, broken))


@pytest.mark.parametrize("noticed_by", ["a load", "a put", "the writes of a task"])
def test_a_loss_is_reported_once_with_the_thread(noticed_by: str, caplog: pytest.LogCaptureFixture) -> None:
    with living("memory") as (db, driver):
        saver = db.checkpointer()
        graph = replaying(saver)
        graph.invoke({"messages": [HumanMessage("secret", id="1")], "said": ["secret"]}, config())
        past = capture(driver)
        assert caplog.records == []
        if noticed_by == "a load":
            graph.update_state(config(), {"said": ["more"]}, as_node="answer")
            restore(driver, past)
            graph.get_state(config())
        else:
            found = saver.get_tuple(config())
            assert found is not None
            saver.put_writes(found.config, [("said", ["one"])], "task 1")
            if noticed_by == "a put":
                saver.put(found.config, {**found.checkpoint, "id": "next"}, {"source": "loop"}, {})
                found.config["configurable"]["checkpoint_id"] = "next"
            restore(driver, past)
            metadata: Any = {"source": "loop", "counters_since_delta_snapshot": {"said": (1, 1)}}
            with pytest.raises(PerdureError):
                saver.put(found.config, {**found.checkpoint, "id": "last"}, metadata, {})
        graph.get_state(config())
    (record,) = caplog.records
    assert (record.name, record.levelname, record.args) == ("perdure.langgraph", "WARNING", ("t",))
    assert "secret" not in record.getMessage()


def test_what_others_do_to_a_thread_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    with living("memory") as (db, _):
        saver, other = db.checkpointer(), db.checkpointer()
        graph = replaying(saver)
        for turn in range(3):
            at: Any = {**config(), "metadata": {"run_id": f"run {turn}"}}
            graph.invoke({"messages": [HumanMessage("hello", id=f"{turn}")], "said": ["hello"]}, at)
        for change in (
            lambda: other.delete_for_runs(["run 2"]),
            lambda: other.prune(["t"]),
            lambda: other.delete_thread("t"),
            lambda: replaying(other).invoke({"messages": [HumanMessage("anew", id="n")]}, config()),
        ):
            change()
            graph.get_state(config())
        graph.invoke({"messages": [HumanMessage("hello", id="again")]}, config())
    assert caplog.records == []


def put_as(saver: Any, name: str, at: Any, values: dict[str, Any], version: int = 1) -> Any:
    """Put a checkpoint under an id of the caller's choice."""
    versions = dict.fromkeys(values, version)
    checkpoint = {**empty_checkpoint(), "id": name, "channel_values": values, "channel_versions": versions}
    return saver.put(at, checkpoint, {"source": "loop"}, versions)


@pytest.mark.parametrize("knows_by", ["storing", "loading"])
@pytest.mark.parametrize("first", ["", "sub"])
def test_a_head_proves_nothing_of_another_namespace_where_both_have_one_id(first: str, knows_by: str) -> None:
    """Two namespaces have a checkpoint of the same id each, the later of which brought a value; a database
    that has come back to the time in between has only the other one."""
    second = "" if first else "sub"
    value = ["a value that is stored once " * 200]
    with living("memory") as (db, driver):
        saver = db.checkpointer()
        put_as(saver, "1", config(checkpoint_ns=first), {"pages": ["small"]})
        past = capture(driver)
        put_as(saver, "1", config(checkpoint_ns=second), {"pages": value})
        if knows_by == "loading":
            saver = db.checkpointer()
        found = [saver.get_tuple(config(checkpoint_ns=namespace)) for namespace in (second, first)]
        assert found[1] is not None
        restore(driver, past)
        put_as(saver, "2", found[1].config, {"pages": value}, 2)
        stored = db.checkpointer().get_tuple(config(checkpoint_ns=first))
        assert stored is not None
        assert stored.checkpoint["channel_values"] == {"pages": value}
        assert db.fsck() == []
