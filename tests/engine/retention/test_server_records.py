"""Whatever a server stores outside of threads goes, although its tenant, its chat or its user is silent."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.channels.addresses import ChatAddress
from perdure.channels.sessions import Sessions
from perdure.database.base import handle_of
from perdure.engine.retention import server_records
from perdure.engine.retention.old_counts import ACTIVITY
from perdure.model.ops import Commit, FindThreads, Put
from perdure.model.records import (
    BLOB,
    CHAT_SESSIONS,
    CHECKPOINT,
    CHUNK,
    DEDUPE,
    DOCUMENT,
    EFFECT,
    EPOCH,
    EVENT,
    GC,
    HEAD,
    INBOX,
    ITEM,
    KINDS,
    LANE,
    LISTED,
    OUTBOX,
    PACK,
    RUN,
    SEAL,
    SERVER,
    TAG,
    WRITE,
    Partition,
)
from perdure.model.runs.queue import CRONS
from perdure.retention.sweeper import RetentionOptions
from perdure.runtime import Runtime
from tests.backends import BACKENDS
from tests.runtime.graphs import Storage, Talk, go, settings, stored

PACKAGE = Path(perdure.__file__).parent

SWEEP = "a sweep: server_records"
PLACES = {
    "*LISTED": (SWEEP, LISTED[0]),
    "CRONS": (SWEEP, CRONS),
    "ACTIVITY": (SWEEP, ACTIVITY),
    "f'{CHAT_SESSIONS}{name}'": (SWEEP, f"{CHAT_SESSIONS}telegram:42::"),
    "prefix_of(alias, limit) + of_key": ("workers, as its queue record is due: engine.limits", "limit:a:b"),
    "name": ("no one: a cursor, where nothing is stored", "limit:"),
    "'ready'": ("no one: a health check, which stores nothing", "ready"),
    "'limits'": ("the operator, one for each limit that the application names", "limits"),
    "'audit'": ("its writers: the newest are kept, by number", "audit"),
    "f'polling:{bot}'": ("no one: one for each bot", "polling:bot"),
    "'assistants'": ("users, or their removal: operations.user_removal", "assistants"),
    "f'{_ASSISTANT}s'": ("the same", "assistants"),
    "f'{kind}s'": ("the same", "assistants"),
}
"""Partitions of a server's data, as the code names them, with who removes what is there if their tenant, chat
or user is silent, and an example of a name."""

WITH_THREAD = "a sweep, with the thread"
RECORDS = {
    **dict.fromkeys((HEAD, GC, EPOCH, TAG, SEAL), WITH_THREAD),
    **dict.fromkeys((CHECKPOINT, WRITE, CHUNK, BLOB, PACK), "a sweep, by the policy"),
    **dict.fromkeys((INBOX, DEDUPE, RUN, OUTBOX, EFFECT), "a sweep, once ended: queue_retention"),
    **dict.fromkeys((LANE, EVENT), "workers, as the queue record is due"),
    ITEM: "a sweep, by its time to live: items, session_histories",
    DOCUMENT: "that of its partition",
}
"""Kinds of records with who removes them if their thread is silent."""


def list_server_partitions() -> Iterator[str]:
    """Yield the expressions that name a partition in the space ``SERVER``."""
    for path in PACKAGE.rglob("*.py"):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Partition" and len(node.args) > 1:
                last = ast.unparse(node.args[-1])
                if last in ("SERVER", "*LISTED"):
                    yield ast.unparse(node.args[1])


def test_every_place_names_who_removes_what_is_there() -> None:
    assert set(list_server_partitions()) == set(PLACES)
    assert set(RECORDS) == set(KINDS)
    with stored("memory") as storage:
        put = Put(DOCUMENT, ("a", "b"), {"updated_at": 1}, b"{}", version=1)
        for _, name in PLACES.values():
            storage.driver.perform(Commit(Partition("gone", name, SERVER), (put,)))
        found = handle_of(storage.database()).run(server_records.list_places(None))
        assert {at.thread for at in found} == {name for by, name in PLACES.values() if by == SWEEP}


@pytest.mark.parametrize("on", BACKENDS)
def test_sessions_of_chats_without_threads_are_removed(on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(storage: Storage) -> None:
        database = storage.database()
        handle = handle_of(database)

        def sweep() -> list[str]:
            database.apply_retention(RetentionOptions(share=1.0, all_tenants=True))
            found = handle.driver.perform(FindThreads("", space=SERVER, prefix=CHAT_SESSIONS))
            return [hit.partition.thread.removeprefix(CHAT_SESSIONS) for hit in found]

        async with Runtime(database, Talk().graph, settings=settings(), observers=()) as runtime:
            sessions = Sessions(runtime, "", "chat")
            for chat in ("4", "47", "471"):
                assert await sessions.begin(chat, "", 5, 5)
            kept = ChatAddress("chat", "47", "", "5").thread_id
            for thread in (kept, ChatAddress("chat", "4").thread_id):
                await runtime.wait(await runtime.accept(thread, "hello"), 30)
            await runtime.threads.remove(ChatAddress("chat", "4").thread_id)
            assert len(sweep()) == 3, "a message may be delivered again"
            monkeypatch.setattr(server_records, "SESSIONS_KEPT_US", -60_000_000)
            assert sweep() == [ChatAddress("chat", "47").thread_id]
            await runtime.threads.remove(kept)
            assert sweep() == []

    with stored(on) as storage:
        go(main(storage))
