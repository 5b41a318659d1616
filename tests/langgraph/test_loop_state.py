"""What a saver knows of a loop lives as long as somebody could still write in its name, and goes nowhere."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import ormsgpack
import pytest
import yaml
from langgraph.graph import END, START, StateGraph
from langgraph.types import Durability, interrupt

import perdure
from perdure.errors import HeadConflict, NotFound
from perdure.langgraph.loop_state import Loop, ThreadId, without_loop
from tests.langgraph.files import THREAD, config, put
from tests.langgraph.graphs import STATES, asking, chain
from tests.langgraph.session import config as thread


@pytest.fixture
def database() -> Iterator[perdure.SyncDatabase]:
    with perdure.connect_sync("memory://") as database:
        yield database


def loaded(saver: perdure.PerdureSaver) -> dict[str, Any]:
    """The config of a load, as a loop would hand it to its puts."""
    found = saver.get_tuple(config())
    assert found is not None
    return dict(found.config["configurable"])


def loops() -> int:
    gc.collect()
    return sum(type(each) is Loop for each in gc.get_objects())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_runs_that_are_over_leave_no_loops_behind(database: perdure.SyncDatabase, mode: str) -> None:
    graph = chain(database.checkpointer())
    before = loops()
    for n in range(20):
        if mode == "sync":
            graph.invoke({"said": ["x"]}, thread(f"t{n % 4}"))
        else:
            asyncio.run(graph.ainvoke({"said": ["x"]}, thread(f"t{n % 4}")))
    # A thread's first load found nothing to carry a token, and is remembered by the thread's name.
    assert loops() - before == 4


def test_a_paused_run_and_the_snapshots_of_it_leave_none_either(database: perdure.SyncDatabase) -> None:
    graph = asking(database.checkpointer())
    before = loops()
    graph.invoke({"said": ["x"]}, thread())
    assert loops() - before == 1, "of the thread that was not there"
    snapshots = [graph.get_state(thread()) for _ in range(5)]
    assert loops() - before == 6
    snapshots.clear()
    assert loops() - before == 1


def test_a_config_that_is_copied_stands_for_the_same_loop(database: perdure.SyncDatabase) -> None:
    saver = database.checkpointer()
    put(saver, {"a": [1]})
    thread = loaded(saver)["thread_id"]
    assert type(thread) is ThreadId
    assert copy.copy(thread) is copy.deepcopy(thread) is str(thread) is thread


FORMS: dict[str, Callable[[Any], Any]] = {
    "json": lambda value: json.loads(json.dumps(value)),
    "orjson": lambda value: orjson.loads(orjson.dumps(value)),
    "msgpack": lambda value: ormsgpack.unpackb(ormsgpack.packb(value)),
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),  # noqa: S301 - its own bytes
    "yaml": lambda value: yaml.safe_load(yaml.safe_dump(value)),
    "unsafe yaml": lambda value: yaml.safe_load(yaml.dump(value)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_a_config_that_was_written_down_is_plain_text_and_nothing_of_a_load(
    database: perdure.SyncDatabase, form: Callable[[Any], Any]
) -> None:
    saver = database.checkpointer()
    put(saver, {"a": [1]})
    mine = loaded(saver)
    written = form(mine)
    assert written == mine
    assert {type(value) for value in written.values()} == {str}
    assert repr(mine["thread_id"]) == repr(THREAD) == repr(f"{mine['thread_id']}")
    put(saver, {"a": [1, 2]}, {"configurable": loaded(saver)}, name="c2")
    # No load preceded it as far as can be seen: as with the stock savers it makes a fork.
    put(saver, {"a": [1, 3]}, {"configurable": written}, name="c3")
    with pytest.raises(perdure.HeadConflict):
        put(saver, {"a": [1, 3]}, {"configurable": mine}, name="c4")


def test_a_config_of_the_id_alone_is_nothing_of_a_load(database: perdure.SyncDatabase) -> None:
    saver = database.checkpointer()
    put(saver, {"a": [1]})
    late = loaded(saver)
    put(saver, {"a": [1, 2]}, {"configurable": loaded(saver)}, name="c2")
    with pytest.raises(perdure.HeadConflict):
        put(saver, {"a": [1, 3]}, {"configurable": late}, name="c3")
    saver.delete_thread(late["thread_id"])
    put(saver, {"a": [2]}, config(late["thread_id"]), name="d1")
    assert loaded(saver)["checkpoint_id"] == "d1"


def test_a_config_in_a_value_is_stored_as_what_it_says(database: perdure.SyncDatabase) -> None:
    saver = database.checkpointer()
    put(saver, {"a": [1]})
    at = loaded(saver)
    put(saver, {"kept": [at, at["thread_id"]]}, {"configurable": at}, name="c2")
    found = saver.get_tuple(config())
    assert found is not None
    kept = found.checkpoint["channel_values"]["kept"]
    assert kept == [at, THREAD]
    assert type(kept[1]) is str


def test_what_a_lost_race_was_about_is_not_kept(database: perdure.SyncDatabase) -> None:
    class Big(str):
        """A value of which it can be asked whether it is still there."""

    saver = database.checkpointer()
    put(saver, {"a": [1]})
    late = loaded(saver)
    put(saver, {"a": [1, 2]}, {"configurable": loaded(saver)}, name="c2")
    for name in ("c3", "c4"):
        value = Big("big")
        there = weakref.ref(value)
        with pytest.raises(perdure.HeadConflict) as raised:
            put(saver, {"a": [value]}, {"configurable": late}, name=name)
        del value, raised
        gc.collect()
        assert there() is None, name
    assert [type(error) for error in saver.conflicts(THREAD)] == [perdure.HeadConflict]


def test_what_one_saver_knows_of_a_loop_is_nothing_to_another(database: perdure.SyncDatabase) -> None:
    """Another database may have a thread and a checkpoint of these names, and a history of its own."""
    with perdure.connect_sync("memory://") as elsewhere:
        saver, other = database.checkpointer(), elsewhere.checkpointer()
        for each in (saver, other):
            put(each, {"a": [1]})
        put(other, {"a": [1, 2]}, {"configurable": loaded(saver)}, name="c2")
        found = other.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": [1, 2]}


STATE_KEYS = {"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map"}


def keys_in(value: Any, found: set[str]) -> set[str]:
    """Every key of every dict in a value."""
    if isinstance(value, dict):
        for key, held in value.items():
            found.add(str(key))
            keys_in(held, found)
    elif isinstance(value, list | tuple):
        for held in value:
            keys_in(held, found)
    return found


def parent(saver: perdure.PerdureSaver) -> Any:
    """A graph with a subgraph that keeps its own state, and a question in it."""
    builder = StateGraph(STATES["plain"])
    builder.add_node("ask", lambda state: {"said": [interrupt("which?")]})
    inner = builder.add_edge(START, "ask").add_edge("ask", END).compile(checkpointer=True)
    outer = StateGraph(STATES["plain"]).add_node("before", lambda state: {"said": ["before"]})
    outer.add_node("inner", inner).add_edge(START, "before").add_edge("before", "inner")
    return outer.compile(checkpointer=saver)


def test_users_see_no_key_of_ours(database: perdure.SyncDatabase) -> None:
    graph = parent(database.checkpointer())
    modes = ["debug", "checkpoints", "tasks", "values", "updates"]
    parts = list(graph.stream({"said": ["x"]}, thread(), stream_mode=modes, subgraphs=True))
    seen = keys_in(parts, set())
    paused = graph.get_state(thread(), subgraphs=True)
    forked = graph.update_state(paused.config, {"said": ["edit"]}, as_node="before")
    parts += list(graph.stream(None, forked, stream_mode=modes, subgraphs=True))
    for state in [paused, paused.tasks[0].state, graph.get_state(forked), *graph.get_state_history(thread())]:
        for place in (state.config, state.parent_config or {"configurable": {}}):
            assert set(place["configurable"]) <= STATE_KEYS
        keys_in(state.metadata, seen)
    keys_in(parts, seen)
    assert [key for key in seen if key.startswith("__p")] == []
    assert [key for key in seen if "perdure" in key] == []
    assert set(forked["configurable"]) <= STATE_KEYS


class _AnyText(str):
    """Text that is equal to every text, as LangGraph's own tests use it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str)

    __hash__ = str.__hash__


def test_an_id_that_carries_something_compares_as_its_plain_text_does() -> None:
    carrying = ThreadId.of("t")
    for other in ("t", "u", ThreadId.of("t"), ThreadId.of("u"), _AnyText(""), b"t", None):
        plain = "t"
        assert (carrying == other) == (plain == other)
        assert (other == carrying) == (other == plain)
        assert (carrying != other) == (plain != other)
    numbers: dict[str, int] = {carrying: 1}
    assert numbers["t"] == 1
    assert hash(carrying) == hash("t")


def test_the_id_of_a_loop_that_a_listing_begins_has_all_of_its_run_but_the_loop() -> None:
    async def confirm() -> None:
        raise NotImplementedError

    whole = ThreadId.of("ada", loop=object.__new__(Loop), epoch=3, journal=object(), confirm=confirm)
    found = without_loop(whole)
    assert found is not None
    assert found.loop is None
    assert found.keeper is None
    assert (found.epoch, found.journal, found.confirm) == (3, whole.journal, confirm)
    assert whole.loop is not None
    assert without_loop(ThreadId.of("ada")) is None


@pytest.mark.parametrize("turns_before", [0, 1])
@pytest.mark.parametrize("durability", ["async", "sync"])
def test_a_run_stores_nothing_after_its_saver_removed_the_thread(
    database: perdure.SyncDatabase, durability: Durability, turns_before: int
) -> None:
    saver = database.checkpointer()
    removes = False

    def first(state: Any) -> Any:
        return {"said": ["first"]}

    def second(state: Any) -> Any:
        if removes:
            saver.delete_thread("t")
        return {"said": ["second"]}

    builder: Any = StateGraph(STATES["plain"]).add_node("first", first).add_node("second", second)
    builder.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    app = builder.compile(checkpointer=saver)
    for _ in range(turns_before):
        app.invoke({"said": ["hello"]}, thread(), durability="sync")
    removes = True
    with pytest.raises((HeadConflict, NotFound)):
        app.invoke({"said": ["hello"]}, thread(), durability=durability)
    assert saver.get_tuple(thread()) is None
    removes = False
    assert app.invoke({"said": ["again"]}, thread())["said"] == ["again", "first", "second"]
    assert database.fsck() == []
