"""A thread that cannot be read is marked in a listing, and no other thread is affected by it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.database.opening import open_database
from tests.server.acceptance.saying import row, said
from tests.server.acceptance.serving import run
from tests.server.listening import place

BROKEN = "broken"
SOUND = ("sound one", "sound two")


DAMAGES: dict[str, str] = {
    "chunks gone": "DELETE FROM perdure_chunk WHERE t = :t",
    "chunks changed": "UPDATE perdure_chunk SET body = x'00ff00' WHERE t = :t",
    "checkpoints unreadable": "UPDATE perdure_checkpoint SET body = x'c1' WHERE t = :t",
    "head without its checkpoint": "DELETE FROM perdure_checkpoint WHERE t = :t",
    "thread document unreadable": "UPDATE perdure_document SET body = x'7b' WHERE t = :t",
    "run unreadable": "UPDATE perdure_run SET body = x'7b' WHERE t = :t",
    "catalogue entry unreadable": (
        f"UPDATE perdure_document SET body = x'7b' WHERE name = '{BROKEN}'"
        " AND t <> :t AND collection = 'threads'"
    ),
}
HARMLESS = ("catalogue entry unreadable",)
"""What is read from elsewhere too: the thread itself is sound."""


READABLE = ("thread document unreadable", "run unreadable")
"""The state is sound, and is shown."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'threads.db'}"


def damage(url: str, statement: str) -> None:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    (t,) = connection.execute(
        "SELECT pk FROM perdure_thread WHERE space = 'thread' AND thread = ?", (BROKEN,)
    ).fetchone()  # type: ignore[misc]
    connection.execute(statement, {"t": t})
    assert connection.changes() > 0
    connection.close()


async def _filled(client: Any) -> None:
    for name in (SOUND[0], BROKEN, SOUND[1]):
        await client.threads.create(thread_id=name, graph_id="chat", metadata={"name": name})
        await client.runs.wait(name, "chat", input=said("hello"))


@pytest.mark.parametrize("kind", DAMAGES)
@run
async def test_the_others_are_listed_whole_and_this_one_is_marked(url: str, kind: str) -> None:
    async with place(url) as here, here.client() as client:
        await _filled(client)
        before = {row["thread_id"]: row for row in await client.threads.search()}
        damage(url, DAMAGES[kind])
    async with place(url) as here, here.client() as client, here.http() as http:
        rows = {row["thread_id"]: row for row in await client.threads.search()}
        assert set(rows) == {BROKEN, *SOUND}
        for name in SOUND:
            assert rows[name] == before[name]
            assert (await client.threads.get(name))["values"] == before[name]["values"]
            assert len(await client.threads.get_history(name)) > 0
            values: Any = await client.runs.wait(name, "chat", input=said("again"))
            assert len(values["messages"]) == 4
        marked = row(rows[BROKEN])
        if kind in HARMLESS:
            assert marked["values"] == before[BROKEN]["values"]
            return
        assert marked["status"] == "error"
        if kind not in READABLE:
            assert marked["values"] is None
        assert repr(BROKEN) in marked["error"]["message"]
        assert "fsck" in marked["error"]["message"]
        assert row(await client.threads.get(BROKEN))["error"] == marked["error"]
        # Everything that reads more than one thread.
        titles = {"ids": [BROKEN, *SOUND], "extract": {"first": "values.messages[0].content"}}
        found = (await http.post("/threads/search", json=titles)).json()
        firsts = {row["thread_id"]: row["extracted"]["first"] for row in found}
        assert firsts == {BROKEN: "hello" if kind in READABLE else None} | dict.fromkeys(SOUND, "hello")
        wanted = {"messages": [{"content": "hello"}]}
        holding = {row["thread_id"] for row in await client.threads.search(values=wanted)}
        assert holding == {*SOUND, *([BROKEN] if kind in READABLE else [])}
        assert await client.threads.count() == 3
        assert {row["thread_id"] for row in await client.threads.search(sort_by="created_at")} == set(rows)
        pruned = await http.post(
            "/threads/prune", json={"thread_ids": [BROKEN, *SOUND], "strategy": "delete"}
        )
        assert pruned.json() == {"pruned_count": 3}
        assert await client.threads.search() == []


@pytest.mark.parametrize("kind", [k for k in DAMAGES if k not in HARMLESS])
def test_a_listing_by_id_goes_on_behind_a_thread_that_cannot_be_read(url: str, kind: str) -> None:
    async def fill() -> None:
        async with place(url) as here, here.client() as client:
            await _filled(client)

    asyncio.run(fill())
    damage(url, DAMAGES[kind])
    with perdure.connect_sync(url) as database:
        assert [thread.thread_id for thread in database.threads()] == [BROKEN, *SOUND]
    database = open_database(url)
    try:
        assert {finding.thread_id for finding in database.fsck()} == {BROKEN}
    finally:
        database.close()
