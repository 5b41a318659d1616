"""The power goes at any moment of a run with a runtime, a prune and a store: what was acknowledged is there.

Some dozens of moments are looked at by default, 2,000 with ``PERDURE_CHAOS=full``.
"""

from __future__ import annotations

import asyncio
import operator
import os
import random
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.runtime import Runtime
from tests.chaos import power

FULL = os.environ.get("PERDURE_CHAOS") == "full"
POINTS = 2000 if FULL else 40
MESSAGES = 12 if FULL else 4
SEED = 20

pytestmark = pytest.mark.timeout(3600 if FULL else 300)


class State(TypedDict):
    messages: Annotated[list[Any], operator.add]


def builder() -> StateGraph[State]:
    def think(state: State) -> dict[str, Any]:
        return {"messages": [f"thought {len(state['messages'])} " * 40]}

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_node("answer", think)
    graph.add_edge(START, "think")
    graph.add_edge("think", "answer")
    graph.add_edge("answer", END)
    return graph


async def live(db: perdure.SyncDatabase) -> None:
    """Messages to several threads, pruned and deleted in between, and items of the store."""
    saver, store = db.checkpointer(), db.store()
    async with Runtime(db, builder().compile()) as runtime:
        for number in range(MESSAGES):
            tickets = [
                await runtime.accept(f"thread {thread}", f"hello {number}", dedupe_key=f"{thread} {number}")
                for thread in range(3)
            ]
            await asyncio.gather(*(runtime.wait(ticket, 60) for ticket in tickets))
            await store.aput(("memories", str(number % 3)), f"item {number % 5}", {"number": number})
            if number % 3 == 2:
                await saver.aprune([f"thread {number % 2}"], strategy="keep_latest")
                await store.adelete(("memories", "0"), "item 0")
            if number % 4 == 3:
                await saver.adelete_thread("thread 2")


def test_what_was_acknowledged_survives_a_power_cut_at_any_moment(tmp_path: Path) -> None:
    with power.recorded(tmp_path / "threads.db") as (recording, db):
        inner: Any = handle_of(db).driver
        inner._inner._inner._writer.execute("PRAGMA wal_autocheckpoint = 40")
        asyncio.run(live(db))
    acknowledged = [each for each in recording.asked if each.stored]
    assert len(acknowledged) > 15 * MESSAGES
    checkpoints = sum(isinstance(e, power.Flushed) and e.suffix == "" for e in recording.events)
    assert checkpoints > MESSAGES // 2, "the log was hardly ever taken over into the file"
    count = len(recording.events)
    points = set(random.Random(SEED).sample(range(count + 1), min(POINTS, count + 1)))
    lost: dict[int, list[str]] = {}
    image = tmp_path / "image.db"
    for point, files in power.images(recording, points, SEED):
        for stale in tmp_path.glob("image.db*"):
            stale.unlink()
        for suffix, content in files.items():
            image.with_name(image.name + suffix).write_bytes(content)
        if found := power.lost(recording, point, image):
            lost[point] = found
    assert lost == {}


def test_a_flush_that_does_not_happen_is_found_out(tmp_path: Path) -> None:
    """The test above can fail: where the log is never flushed, acknowledged writes are not there."""
    with power.recorded(tmp_path / "threads.db") as (recording, db):
        inner: Any = handle_of(db).driver
        inner._inner._inner._writer.execute("PRAGMA synchronous = OFF")
        db.store().put(("memories",), "a", {"likes": "tea"})
        db.store().put(("memories",), "b", {"likes": "cake"})
        last = len(recording.events)
    image = tmp_path / "image.db"
    found = []
    for seed in range(10):
        for point, files in power.images(recording, {last}, seed):
            for stale in tmp_path.glob("image.db*"):
                stale.unlink()
            for suffix, content in files.items():
                image.with_name(image.name + suffix).write_bytes(content)
            found += power.lost(recording, point, image)
    assert any("item" in line for line in found)
