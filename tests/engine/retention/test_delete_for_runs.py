"""A run's checkpoints are removed from every thread, however many there are."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from perdure.database.base import handle_of
from perdure.engine.retention import checkpoint_removal
from perdure.engine.threads import tags
from perdure.engine.threads.thread_records import read
from perdure.model.ops import Fetch, Range
from perdure.model.records import WRITE, Partition
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance import Backend
from perdure.testing.conformance.backend import THREAD, at, latest


def test_a_run_of_more_checkpoints_than_a_page_is_removed_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_removal, "_PAGE", 4)
    backend = Backend(MemoryDriver())
    saver = backend.saver()
    for thread in ("t1", "t2", "t3"):
        for n in range(6):
            place = at(f"c{n - 1}" if n else None, thread=thread)
            stored(backend, place, f"c{n}", "run" if n else "other")
    saver.delete_for_runs(["run"])
    for thread in ("t1", "t2", "t3"):
        assert [c.checkpoint["id"] for c in saver.list(at(thread=thread))] == ["c0"]
        found = backend.saver().get_tuple(at(thread=thread))
        assert found is not None
        assert found.checkpoint["id"] == "c0"


def stored(backend: Backend, place: Any, checkpoint_id: str, run_id: str) -> Any:
    checkpoint: Any = {"v": 4, "id": checkpoint_id, "ts": "", "channel_values": {}, "versions_seen": {}}
    checkpoint["channel_versions"] = {}
    return backend.saver().put(place, checkpoint, {"run_id": run_id}, {})


@pytest.mark.parametrize("namespace", ["", "within"])
def test_what_a_tag_has_kept_of_a_run_goes_with_the_first_run_once_the_tag_is_gone(namespace: str) -> None:
    """Also in a subgraph that keeps its state, which the first run never entered."""
    backend = Backend(MemoryDriver())
    handle = handle_of(backend.database())
    here = Partition("", THREAD)
    stored(backend, at(), "a0", "first")
    stored(backend, at("a0"), "b0", "second")
    stored(backend, at(namespace="within"), "b1", "second")
    kept = "b1" if namespace else "b0"
    handle.run(tags.set_tag(here, "kept", namespace=namespace, checkpoint_id=kept))
    backend.saver().delete_for_runs(["second"])
    assert latest(backend.saver()) == "a0"
    handle.run(tags.remove_tag(here, "kept"))
    assert {c.id for c in handle.run(read(here)).checkpoints} == {"a0", kept}
    backend.saver().delete_for_runs(["first"])
    assert handle.run(read(here)).checkpoints == []
    assert backend.saver().get_tuple(at(namespace="within")) is None


def test_a_run_that_has_only_writes_is_removed() -> None:
    backend = Backend(MemoryDriver())
    fails = True

    class Noted(TypedDict, total=False):
        noted: Annotated[list[str], operator.add]

    def left(state: Noted) -> Noted:
        return {"noted": ["left"]}

    def right(state: Noted) -> Noted:
        answer = interrupt("go on?")
        if fails:
            raise RuntimeError("boom")
        return {"noted": [f"right {answer}"]}

    builder = StateGraph(Noted).add_node(left).add_node(right)
    builder.add_edge(START, "left").add_edge("left", "right")
    graph = builder.compile(checkpointer=backend.saver())

    def config(thread: str, run_id: str) -> Any:
        return {"configurable": {"thread_id": thread}, "metadata": {"run_id": run_id}}

    def writes(thread: str) -> list[tuple[str, ...]]:
        (found,) = backend.driver.perform(Fetch(Partition("", thread), (Range(WRITE),)))
        return [record.key for record in found]

    before: dict[str, list[tuple[str, ...]]] = {}
    for thread in ("t1", "t2"):
        graph.invoke({"noted": ["hello"]}, config(thread, f"asks {thread}"))
        before[thread] = writes(thread)
        with pytest.raises(RuntimeError):
            graph.invoke(Command(resume="yes"), config(thread, f"answers {thread}"))
        assert len(writes(thread)) > len(before[thread])
    backend.saver().delete_for_runs(["answers t1", "of nobody"])
    assert writes("t1") == before["t1"]
    assert len(writes("t2")) > len(before["t2"])
    # The question is open again.
    fails = False
    again = builder.compile(checkpointer=backend.saver())
    assert again.get_state(config("t1", "")).interrupts
    assert again.invoke(Command(resume="no"), config("t1", "other"))["noted"] == ["hello", "left", "right no"]
