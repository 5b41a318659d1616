"""Any state under any chain of steps: lazily is eagerly, a crash leaves one version or the other, and two
versions of an application side by side never misread a thread."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointTuple, empty_checkpoint

import perdure
from perdure.errors import Conflict, SchemaTooNew, Unavailable
from perdure.schema import Schema, convert, drop, rename_channel
from perdure.testing.faults import Fault, fail, faulty
from tests.langgraph.migration.test_schema_migration import SCHEMA, new_graph, old_graph
from tests.langgraph.migration.test_schema_migration import config as config_of

FULL = os.environ.get("PERDURE_CHAOS") == "full"
EXAMPLES = 300 if FULL else 12
NAMES = ("a", "b", "c", "d", "e")
FUNCTIONS: dict[str, Any] = {
    "listed": lambda value: [value],
    "held": lambda value: {"was": value},
    "text": str,
    "nothing": lambda _: None,
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("xyz", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("kl", max_size=2), inner, max_size=2),
    max_leaves=6,
)
STATES = st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1)


@st.composite
def chains(draw: Any) -> Schema:
    """A schema of four versions, whose steps rename, convert and drop channels."""
    there, gone = set(NAMES), set[str]()
    steps: list[Any] = []
    for version in (2, 3, 4):
        for _ in range(draw(st.integers(0, 3))):
            name = draw(st.sampled_from(sorted(there)))
            kind = draw(st.sampled_from(("rename", "convert", "drop")))
            if kind == "convert":
                function = FUNCTIONS[draw(st.sampled_from(sorted(FUNCTIONS)))]
                steps.append(convert(version, name, function, allow_none=True))
                continue
            if kind == "drop" and len(there) == 1:
                continue
            there.remove(name)
            gone.add(name)
            if kind == "drop":
                steps.append(drop(version, name))
            else:
                new = f"n{len(steps)}"
                there.add(new)
                steps.append(rename_channel(version, name, new))
    return Schema(4, steps)


def modelled(state: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """What the steps make of a state."""
    state = dict(state)
    for step in schema.steps:
        words = str(step).partition("(")[0]
        if words == "rename_channel" and step.old in state:  # type: ignore[union-attr]
            state[step.new] = state.pop(step.old)  # type: ignore[union-attr]
        elif words == "convert" and step.channel in state:  # type: ignore[union-attr]
            state[step.channel] = step.value(state[step.channel])  # type: ignore[union-attr]
        elif words == "drop":
            state.pop(step.channel, None)  # type: ignore[union-attr]
    return state


def stored(db: perdure.SyncDatabase, state: dict[str, Any]) -> None:
    """A thread of version 1."""
    versions: ChannelVersions = dict.fromkeys(state, 1)
    checkpoint: Checkpoint = {
        **empty_checkpoint(),
        "channel_values": state,
        "channel_versions": versions,
    }
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    db.checkpointer().put(config, checkpoint, {"source": "input", "step": -1}, versions)


def read(db: perdure.SyncDatabase, schema: Schema) -> CheckpointTuple:
    found = db.checkpointer(schema=schema).get_tuple(config_of("t"))
    assert found is not None
    return found


def step_on(db: perdure.SyncDatabase, schema: Schema) -> None:
    """Load the thread and store the next checkpoint, with one more channel."""
    saver = db.checkpointer(schema=schema)
    found = saver.get_tuple(config_of("t"))
    assert found is not None
    held = found.checkpoint
    checkpoint: Checkpoint = {
        **held,
        "id": empty_checkpoint()["id"],
        "channel_values": {**held["channel_values"], "turn": schema.version},
        "channel_versions": {**held["channel_versions"], "turn": schema.version},
    }
    new: ChannelVersions = {"turn": schema.version}
    saver.put(found.config, checkpoint, {"source": "loop", "step": schema.version}, new)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@settings(max_examples=EXAMPLES, deadline=None)
@given(state=STATES, schema=chains())
def test_lazily_is_eagerly(state: dict[str, Any], schema: Schema) -> None:
    expected = modelled(state, schema)
    with perdure.connect_sync("memory://") as lazy, perdure.connect_sync("memory://") as eager:
        for db in (lazy, eager):
            stored(db, state)
        before = lazy.digest("t")
        assert read(lazy, schema).checkpoint["channel_values"] == expected
        assert lazy.digest("t") == before
        for version in (2, 3, 4):
            step_on(eager, schema.at(version))
        step_on(lazy, schema)
        for db in (lazy, eager):
            assert read(db, schema).checkpoint["channel_values"] == {**expected, "turn": 4}
            assert db.fsck("t") == []
            # Every older checkpoint is read under the present names, too.
            for found in db.checkpointer(schema=schema).list(config_of("t")):
                values = dict(found.checkpoint["channel_values"])
                values.pop("turn", None)
                assert values == expected


@pytest.mark.slow
@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(state=STATES, schema=chains(), when=st.sampled_from(("before", "after")))
def test_a_fault_at_any_effect_leaves_one_version_or_the_other(
    state: dict[str, Any], schema: Schema, when: Any
) -> None:
    expected = modelled(state, schema)
    at, is_disturbed = 0, True
    while is_disturbed:
        at, is_disturbed = at + 1, False
        with folder() as place:
            url = f"sqlite:///{place / 'threads.db'}"
            with perdure.connect_sync(url, migrate=True) as db:
                stored(db, state)
                before = db.digest("t")
            with faulty(url, Fault(at, fail("unavailable"), when)) as (db, driver):
                try:
                    step_on(db, schema)
                except Unavailable:
                    is_disturbed = True
                assert is_disturbed or driver.count < at
            with perdure.connect_sync(url) as db:
                values = dict(read(db, schema).checkpoint["channel_values"])
                is_stored = "turn" in values
                values.pop("turn", None)
                assert values == expected
                assert db.fsck("t") == []
                if is_stored:
                    with pytest.raises(SchemaTooNew):
                        read(db, schema.at(1))
                else:
                    assert db.digest("t") == before
                    assert read(db, schema.at(1)).checkpoint["channel_values"] == state
                step_on(db, schema)
    assert at > 2


def test_two_versions_side_by_side_misread_nothing() -> None:
    turns = 500 if FULL else 120
    draw = random.Random(7)
    with perdure.connect_sync("memory://") as db:
        old, new = old_graph(db, asks=False), new_graph(db, SCHEMA, asks=False)
        counts: dict[str, int] = {}
        notes: dict[str, list[str]] = {}
        migrated: set[str] = set()
        refused = 0
        for turn in range(turns):
            thread = f"t{draw.randrange(12)}"
            # The newer version takes over little by little.
            is_new = draw.random() < turn / turns
            try:
                if is_new:
                    given: Any = {"subject": f"s{turn}", "notes": [f"n{turn}"]}
                    notes[thread] = [*notes.get(thread, []), f"n{turn}"]
                    migrated.add(thread)
                    done = new.invoke(given, config_of(thread))
                    assert done["notes"] == notes[thread]
                    assert done["subject"] == f"s{turn}"
                else:
                    done = old.invoke({"topic": f"s{turn}", "notes": f"n{turn}"}, config_of(thread))
                    assert thread not in migrated
                    assert (done["topic"], done["notes"]) == (f"s{turn}", f"n{turn}")
                    notes[thread] = [f"n{turn}"]
            except SchemaTooNew:
                assert thread in migrated
                refused += 1
                continue
            counts[thread] = counts.get(thread, 0) + 1
            assert done["count"] == counts[thread]
        assert refused > turns // 20
        for thread in migrated:
            for found in new.get_state_history(config_of(thread)):
                assert set(found.values) <= {"subject", "notes", "count"}
            assert db.fsck(thread) == []


def test_of_two_versions_that_race_one_wins() -> None:
    with perdure.connect_sync("memory://") as db:
        stored(db, {"a": 1})
        old, new = db.checkpointer(), db.checkpointer(schema=Schema(2, [rename_channel(2, "a", "b")]))
        loaded = old.get_tuple(config_of("t"))
        other = new.get_tuple(config_of("t"))
        assert loaded is not None
        assert other is not None
        new.put_writes(other.config, [("b", 2)], "task")
        with suppress(Conflict):
            old.put_writes(loaded.config, [("a", 3)], "task")
        with pytest.raises(SchemaTooNew):
            old.get_tuple(config_of("t"))
        again = new.get_tuple(config_of("t"))
        assert again is not None
        assert again.pending_writes == [("task", "b", 2)]
