"""A conversation takes few bytes: what is stored for it, and the pages that a turn writes.

The figures of docs/decisions/0026-bytes-of-a-turn.md, with room for what a turn's text adds or saves.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import perdure
from bench.graphs import SCENARIOS
from perdure.model.values.compression import LONG_MARK, MARK
from perdure.storage.sqlite import driver

TURNS = 100
SAID = 1_190
"""Bytes that a turn adds to the serialised conversation."""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file after a conversation, with all that was written to it still in its log."""
    monkeypatch.setattr(driver, "_LOG_BYTES", 1 << 30)
    path = tmp_path / "threads.db"
    chat = SCENARIOS["chat"]

    async def talk() -> None:
        async with perdure.connect(f"sqlite:///{path}", migrate=True) as db:
            graph = chat.graph(sync=False).compile(checkpointer=db.checkpointer(warn_bytes=None))
            for said in chat.rehearse("ada", TURNS):
                await graph.ainvoke(said, {"configurable": {"thread_id": "ada"}}, durability="async")
            log = path.with_name(f"{path.name}-wal")
            path.with_name("log").write_bytes(log.read_bytes())

    asyncio.run(talk())
    return path


def test_a_conversation_takes_three_times_what_was_said_and_36_pages_a_turn(path: Path) -> None:
    with closing(driver.connect(path)) as connection:
        ((page,),) = connection.execute("PRAGMA page_size")
        ((pages,),) = connection.execute("PRAGMA page_count")
        tables = "SELECT count(*) FROM dbstat WHERE name NOT LIKE 'perdure_ch%' AND name NOT LIKE '%write'"
        ((fixed,),) = connection.execute(tables)
    assert isinstance(page, int)
    assert isinstance(pages, int)
    assert isinstance(fixed, int)
    assert (pages - fixed) * page / TURNS < 2.95 * SAID
    frames = (path.with_name("log").stat().st_size - 32) // (page + 24)
    assert frames / TURNS < 37


def test_the_listing_s_indexes_by_status_have_no_idle_thread(path: Path) -> None:
    with closing(driver.connect(path)) as connection:
        ((status, rows),) = connection.execute("SELECT status, count(*) FROM perdure_listing")
        assert (status, rows) == ("idle", 1)
        cells = "SELECT name, sum(ncell) FROM dbstat WHERE name GLOB 'perdure_listing_*' GROUP BY 1"
        assert dict(connection.execute(cells)) == {
            "perdure_listing_created": 1,
            "perdure_listing_updated": 1,
            "perdure_listing_status_created": 0,
            "perdure_listing_status_updated": 0,
        }


def test_messages_are_compressed_and_small_values_are_not(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        sizes = connection.execute(
            "SELECT substr(body, 1, 2), count(*), min(length(body)) FROM"
            " (SELECT body FROM perdure_chunk UNION ALL SELECT body FROM perdure_pack) GROUP BY 1"
        )
        found = {bytes(mark): (count, least) for mark, count, least in sizes}
    assert found.pop(MARK)[0] >= 5
    assert found.pop(LONG_MARK)[0] >= TURNS // 12
    assert min(least for _, least in found.values()) < 128
