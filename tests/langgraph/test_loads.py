"""What a saver knows of a loop lives as long as somebody could still write in its name, and goes nowhere."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import perdure
from perdure.langgraph.loads import TOKEN, Loop
from tests.langgraph.files import THREAD, config, put
from tests.langgraph.graphs import asking, chain
from tests.langgraph.session import config as thread


@pytest.fixture
def database() -> Iterator[perdure.Database]:
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
def test_runs_that_are_over_leave_no_loops_behind(database: perdure.Database, mode: str) -> None:
    graph = chain(database.checkpointer())
    before = loops()
    for n in range(20):
        if mode == "sync":
            graph.invoke({"said": ["x"]}, thread(f"t{n % 4}"))
        else:
            asyncio.run(graph.ainvoke({"said": ["x"]}, thread(f"t{n % 4}")))
    # A thread's first load found nothing to carry a token, and is remembered by the thread's name.
    assert loops() - before == 4


def test_a_paused_run_and_the_snapshots_of_it_leave_none_either(database: perdure.Database) -> None:
    graph = asking(database.checkpointer())
    before = loops()
    graph.invoke({"said": ["x"]}, thread())
    assert loops() - before == 1, "of the thread that was not there"
    snapshots = [graph.get_state(thread()) for _ in range(5)]
    assert loops() - before == 6
    snapshots.clear()
    assert loops() - before == 1


def test_a_config_that_is_copied_stands_for_the_same_loop(database: perdure.Database) -> None:
    saver = database.checkpointer()
    put(saver, {"a": [1]})
    token = loaded(saver)[TOKEN]
    assert copy.copy(token) is copy.deepcopy(token) is token


@pytest.mark.parametrize("form", [json, pickle])
def test_a_config_that_was_written_down_still_says_what_was_loaded(
    database: perdure.Database, form: Any
) -> None:
    saver = database.checkpointer()
    put(saver, {"a": [1]})
    mine = loaded(saver)
    written = form.loads(form.dumps(mine))
    assert written == mine
    assert type(written[TOKEN]) is str
    put(saver, {"a": [1, 2]}, {"configurable": loaded(saver)}, name="c2")
    with pytest.raises(perdure.HeadConflict):
        put(saver, {"a": [1, 3]}, {"configurable": written}, name="c3")


def test_a_config_in_a_value_is_stored_as_what_it_says(database: perdure.Database) -> None:
    saver = database.checkpointer()
    put(saver, {"a": [1]})
    at = loaded(saver)
    put(saver, {"kept": [at, at[TOKEN]]}, {"configurable": at}, name="c2")
    found = saver.get_tuple(config())
    assert found is not None
    kept = found.checkpoint["channel_values"]["kept"]
    assert kept == [at, at[TOKEN]]
    assert type(kept[1]) is str


def test_what_a_lost_race_was_about_is_not_kept(database: perdure.Database) -> None:
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


def test_what_one_saver_knows_of_a_loop_is_nothing_to_another(database: perdure.Database) -> None:
    """Another database may have a thread and a checkpoint of these names, and a history of its own."""
    with perdure.connect_sync("memory://") as elsewhere:
        saver, other = database.checkpointer(), elsewhere.checkpointer()
        for each in (saver, other):
            put(each, {"a": [1]})
        put(other, {"a": [1, 2]}, {"configurable": loaded(saver)}, name="c2")
        found = other.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": [1, 2]}
