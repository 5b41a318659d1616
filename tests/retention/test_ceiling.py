"""A thread has a limit of storage however long it lives, and sweeps take nothing that live runs need."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

import perdure
from perdure import Retention
from perdure.database.base import handle_of
from perdure.engine.complete_reads import read_all
from perdure.model.ops import Range
from perdure.model.records import BLOB, CHECKPOINT, CHUNK, PACK, WRITE, Partition
from perdure.retention.sweeper import RetentionOptions
from tests.langgraph.session import config

FULL = os.environ.get("PERDURE_CHAOS") == "full"
TURNS = 10_000 if FULL else 150
LIVE_S = 600.0 if FULL else 1.5
KEPT = 50 if FULL else 20
AT_ONCE = RetentionOptions(share=1.0)


def last_ones(held: list[str], new: list[str]) -> list[str]:
    return (held + new)[-30:]


class Recent(TypedDict):
    said: Annotated[list[str], last_ones]
    count: int


def graph(saver: perdure.PerdureSaver) -> Any:
    def answer(state: Recent) -> dict[str, Any]:
        count = state.get("count", 0) + 1
        return {"said": [f"answer {count} " + f"{count:08}" * 40], "count": count}

    return StateGraph(Recent).add_node("answer", answer).add_edge(START, "answer").compile(checkpointer=saver)


def said(n: int) -> dict[str, list[str]]:
    return {"said": [f"message {n} " + "x" * 200]}


def stored(db: perdure.SyncDatabase, thread: str) -> tuple[list[int], int]:
    kinds = (CHECKPOINT, WRITE, CHUNK, BLOB, PACK)
    found = handle_of(db).run(read_all(Partition("", thread), *map(Range, kinds)))
    return [len(records) for records in found], sum(len(r.body) for records in found for r in records)


def test_storage_is_limited_by_the_live_state_and_not_by_the_turns() -> None:
    with perdure.connect_sync("memory://", retention=Retention(keep_last=KEPT)) as db:
        chat = graph(db.checkpointer())
        for n in range(TURNS):
            chat.invoke(said(n), config("old"))
            if n % 50 == 0:
                db.apply_retention(AT_ONCE)
        chat.invoke({"said": chat.get_state(config("old")).values["said"]}, config("fresh"))
        for n in range(KEPT):
            for thread in ("old", "fresh"):
                chat.invoke(said(TURNS + n), config(thread))
        assert db.apply_retention(AT_ONCE)
        (checkpoints, writes, *_), held = stored(db, "old")
        assert checkpoints == KEPT
        assert writes <= 2 * KEPT
        assert held <= 1.2 * stored(db, "fresh")[1]
        db.tag("old", "kept")
        for n in range(KEPT):
            chat.invoke(said(n), config("old"))
        db.apply_retention(AT_ONCE)
        assert stored(db, "old")[0][0] == KEPT + 1
        assert db.fsck() == []


def test_sweeps_beside_live_runs_take_nothing_that_is_needed(tmp_path: Path) -> None:
    until = time.monotonic() + LIVE_S
    with perdure.connect_sync(
        f"sqlite:///{tmp_path / 't.db'}", migrate=True, retention=Retention(keep_last=2)
    ) as db:
        chat = graph(db.checkpointer())
        tagged: dict[str, tuple[str, int]] = {}

        def live(thread: str) -> int:
            turns = 0
            while turns < 3 or time.monotonic() < until:
                turns += 1
                assert chat.invoke(said(turns), config(thread))["count"] == turns
                if turns == 2:
                    tagged[thread] = db.tag(thread, "second"), turns
            return turns

        swept: list[int] = []

        def sweep() -> None:
            while time.monotonic() < until or not swept:
                done = db.apply_retention(AT_ONCE)
                if done is not None and done.checkpoints:
                    swept.append(done.checkpoints)

        with ThreadPoolExecutor(6) as pool:
            runs = {f"t{n}": pool.submit(live, f"t{n}") for n in range(4)}
            sweeps = [pool.submit(sweep) for _ in range(2)]
            counts = {thread: run.result() for thread, run in runs.items()}
            for each in sweeps:
                each.result()
        assert db.apply_retention(AT_ONCE)
        for thread, turns in counts.items():
            assert chat.get_state(config(thread)).values["count"] == turns
            checkpoint, at = tagged[thread]
            past: Any = {"configurable": {"thread_id": thread, "checkpoint_id": checkpoint}}
            assert chat.get_state(past).values["count"] == at
            assert len(db.timeline(thread)) <= 2 + 1
        assert db.fsck() == []
