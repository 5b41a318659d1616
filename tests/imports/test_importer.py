"""Imports of long threads, and of many rows."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

import perdure
from perdure.imports.importer import Importer, ImportOptions
from perdure.imports.sqlite import SqliteSource
from tests.imports import parity, threads
from tests.imports.histories.test_conversations import chat


@pytest.mark.slow
def test_a_long_thread_takes_what_was_said(tmp_path: Path) -> None:
    path, turns = tmp_path / "old.db", 1000 if parity.FULL else 150
    with (
        SqliteSaver.from_conn_string(str(path)) as stock,
        perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db,
    ):
        graph = chat(stock)
        for n in range(turns):
            graph.invoke({"messages": [HumanMessage(f"{n} " + "word " * 60)]}, threads.config("long"))
        source = SqliteSource(path)
        (report,) = parity.imported(source, db)
        source.close()
        assert (report.state, report.verified) == ("imported", report.checkpoints)
        here, there = (chat(s).get_state(threads.config("long")) for s in (db.checkpointer(), stock))
        assert here.values == there.values
        assert db.fsck("long") == []
        digest = db.digest("long")
    # Each checkpoint of the stock saver holds all messages; here each message is stored about once.
    assert digest.bytes < path.stat().st_size / (turns / 8)


def rows(path: Path, count: int, each: int) -> None:
    """Write many small threads in the stock saver's layout."""
    serde = JsonPlusSerializer()
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.setup()
        words: list[Any] = [HumanMessage("hello", id="h"), AIMessage("hi", id="a")]
        with closing(sqlite3.connect(path)) as connection, connection:
            for thread in range(count // each):
                batch = []
                for n in range(each):
                    name = f"{n:08x}-0000-6000-8000-{thread:012x}"
                    version = f"{n + 1:032}.0.5"
                    checkpoint = {
                        "v": 4,
                        "ts": "2026-01-01T00:00:00+00:00",
                        "id": name,
                        "channel_values": {"messages": words, "turn": n},
                        "channel_versions": {"messages": version, "turn": version},
                        "versions_seen": {},
                        "updated_channels": None,
                    }
                    parent = f"{n - 1:08x}-0000-6000-8000-{thread:012x}" if n else None
                    metadata = json.dumps({"source": "loop", "step": n, "parents": {}})
                    batch.append(
                        (f"t{thread:06}", "", name, parent, *serde.dumps_typed(checkpoint), metadata)
                    )
                connection.executemany("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", batch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path) -> None:
    path, count, each = tmp_path / "old.db", 1_000_000 if parity.FULL else 20_000, 500
    rows(path, count, each)
    source = SqliteSource(path)
    with perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db:
        importer = Importer(source, db, ImportOptions())
        peaks: list[int] = []
        tracemalloc.start()
        done = 0
        for thread in source.threads():
            report = importer.import_thread(thread)
            assert report.state == "imported"
            done += report.checkpoints
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.reset_peak()
        tracemalloc.stop()
        assert done == count
    source.close()
    early = max(peaks[: len(peaks) // 4])
    assert max(peaks[-len(peaks) // 4 :]) < 1.3 * early + 1_000_000
