"""A run's checkpoints are removed from every thread, however many there are."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from perdure.engine import removal
from perdure.model.ops import Fetch, Range
from perdure.model.records import WRITE, Partition
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance import Backend
from perdure.testing.conformance.backend import at


def test_a_run_of_more_checkpoints_than_a_page_is_removed_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "_PAGE", 4)
    backend = Backend(MemoryDriver())
    saver = backend.saver()
    for thread in ("t1", "t2", "t3"):
        for n in range(6):
            place = at(f"c{n - 1}" if n else None, thread=thread)
            run_id = "run" if n else "other"
            checkpoint: Any = {
                "v": 4,
                "id": f"c{n}",
                "ts": "",
                "channel_values": {},
                "channel_versions": {},
                "versions_seen": {},
            }
            saver.put(place, checkpoint, {"run_id": run_id}, {})
    saver.delete_for_runs(["run"])
    for thread in ("t1", "t2", "t3"):
        assert [c.checkpoint["id"] for c in saver.list(at(thread=thread))] == ["c0"]
        found = backend.saver().get_tuple(at(thread=thread))
        assert found is not None
        assert found.checkpoint["id"] == "c0"


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
