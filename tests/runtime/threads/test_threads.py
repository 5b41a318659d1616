"""A new thread comes into being with its first message: in one commit, and once."""

from __future__ import annotations

import time

import pytest

from perdure.errors import NotFound
from perdure.model.ops import Commit, Fetch
from perdure.model.records import DOCUMENT, INBOX
from perdure.model.retention_policy import ThreadTtl
from perdure.runtime.accepting import AlreadyCreated
from tests.runtime.graphs import HOUR_US, Storage, Talk, go, index_entry, spoken, working


def test_a_thread_and_its_first_message_are_one_commit(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = storage.open()
        async with working(database, talk.graph, works=False) as runtime:
            requests: list[object] = []

            async def note(effect: object) -> None:
                requests.append(effect)

            threads = runtime.threads
            line.before = note
            assert await threads.find("ada") is None
            draft = await threads.draft("ada", {"n": 1})
            assert storage.rows("ada") == []
            ticket = await runtime.submit(
                "ada", {"messages": []}, dedupe_key="once", precondition=draft.precondition
            )
            assert [type(effect) for effect in requests] == [Fetch, Commit]
            assert (ticket.number, ticket.is_duplicate) == (1, False)
            assert len(storage.rows("ada", DOCUMENT)) == len(storage.rows("ada", INBOX)) == 1
            found = await threads.get("ada")
            assert found.status == "busy"
            assert found._replace(status="idle") == draft.row
            # It is found before the index knows it, and afterwards.
            for _ in range(2):
                assert [row.thread_id async for row in threads.index.search(metadata={"n": 1})] == ["ada"]
                await threads.index_draft(draft)
            again = await runtime.submit(
                "ada", {"messages": []}, dedupe_key="once", precondition=draft.precondition
            )
            assert (again.id, again.is_duplicate) == (ticket.id, True)

    go(main())


@pytest.mark.parametrize("delay", [0.0, 60.0])
def test_of_two_that_create_a_thread_one_is_refused_and_stores_nothing(
    near: Storage, talk: Talk, delay: float
) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph, works=False) as runtime:
            threads = runtime.threads
            first, second = await threads.draft("ada", {"n": 1}), await threads.draft("ada", {"n": 2})
            await runtime.submit("ada", {"messages": []}, precondition=first.precondition, delay=delay)
            before = near.rows("ada")
            with pytest.raises(AlreadyCreated, match="'ada' was written meanwhile"):
                await runtime.submit("ada", {"messages": []}, precondition=second.precondition, delay=delay)
            assert near.rows("ada") == before
            assert (await threads.get("ada")).metadata == {"n": 1}

    go(main())


def test_a_thread_with_a_time_to_live_is_in_the_index_before_it_exists(near: Storage, talk: Talk) -> None:
    """A crash right after its creation must not hide it from the sweeper."""

    async def main() -> None:
        ttl = ThreadTtl(default_ttl=1)
        async with working(near.database(), talk.graph, works=False, thread_ttl=ttl) as runtime:
            threads = runtime.threads
            draft = await threads.draft("ada", {})
            entry = await index_entry(runtime, "ada")
            assert entry is not None
            assert entry.body["ttl"] == draft.row.ttl
            await threads.discard(draft)
            assert await index_entry(runtime, "ada") is None
            with pytest.raises(NotFound):
                await threads.get("ada")
            kept = await threads.draft("ada", {"owner": "ann"})
            other = await threads.draft("ada", {"owner": "bob"})
            await threads.discard(other)
            entry = await index_entry(runtime, "ada")
            assert entry is not None, "it is the other's entry"
            assert entry.body["metadata"] == kept.row.metadata

    go(main())


def test_a_message_to_a_thread_whose_time_to_live_is_over_starts_a_new_one(
    near: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever policies its database was opened with."""
    real = time.time_ns
    monkeypatch.setattr("langgraph.checkpoint.base.id._last_v6_timestamp", None)

    async def main() -> None:
        database, line = near.open()
        async with working(database, talk.graph, thread_ttl=ThreadTtl(default_ttl=30)) as runtime:
            threads = runtime.threads
            await threads.create("ada", {"owner": "ann"})
            await runtime.wait(await runtime.accept("ada", "ask me"), 30)
            assert (await threads.get("ada")).status == "interrupted"
            line.ahead_us = HOUR_US
            monkeypatch.setattr(time, "time_ns", lambda: real() + HOUR_US * 1000)
            runtime._context.clock._asked_at = None
            assert await threads.find("ada") is None
            assert [row async for row in threads.index.search()] == []
            await runtime.wait(await runtime.accept("ada", "hello"), 30)
            assert "owner" not in (await threads.get("ada")).metadata
            assert await spoken(database, talk.graph, "ada") == ["hello", "echo: hello"]

    go(main())
