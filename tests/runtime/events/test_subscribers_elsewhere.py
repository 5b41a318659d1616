"""Followers of a thread in another process than the one that works on its runs, which keep nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from perdure.database.base import handle_of
from perdure.database.opening import open_database
from perdure.engine import documents
from perdure.engine.queue import subscribers
from perdure.engine.queue.events import END, Event
from perdure.model.ops import Expect
from perdure.model.records import EVENT, LANE, OF_THREAD, Partition
from perdure.model.runs.queue import FOLLOWED
from perdure.runtime import Options, Runtime, StreamOptions, Ticket
from perdure.runtime.events import subscription
from tests.runtime.graphs import Heard, Storage, Talk, eventually, eventually_stored, go, settings, working
from tests.runtime.test_notifications import listening
from tests.servers import postgres

UNKEPT = StreamOptions(modes=("values", "updates"), kept=False, by="works")


async def say(runtime: Runtime, text: str, how: StreamOptions | None) -> Ticket:
    given = {"messages": [{"role": "user", "content": text}]}
    return await runtime.submit("ada", given, options=Options(stream=how, attempts=1))


async def until(events: AsyncIterator[Event], ends: int) -> list[Event]:
    heard: list[Event] = []
    async for event in events:
        heard.append(event)
        ends -= event.name == END
        if not ends:
            return heard
    raise AssertionError("a thread was followed to an end")


def is_followed(storage: Storage) -> bool:
    return any(record.key == (FOLLOWED,) for record in storage.rows("ada", LANE))


@pytest.mark.parametrize("how", [UNKEPT, None], ids=["streamed", "silent"])
def test_a_follower_who_was_there_before_hears_the_whole_run(
    near: Storage, talk: Talk, how: StreamOptions | None
) -> None:
    async def main() -> None:
        here, there = near.database(), near.database()
        async with (
            working(here, talk.graph, name="works") as works,
            working(there, talk.graph, works=False) as looks,
        ):
            # One that is known to this process alone: its claims read nothing.
            await works.wait(await say(works, "before", how))
            ear = asyncio.create_task(until(looks.follow_thread("ada", after=0), 2))
            await eventually_stored(lambda: _followed(near))
            for text in ("one", "boom"):
                await works.wait(await say(works, text, how))
            heard = await ear
        assert [event.name for event in heard if event.name in ("metadata", END)] == ["metadata", END] * 2
        assert "values" in {event.name for event in heard}
        assert [json.loads(e.data)["state"] for e in heard if e.name == END] == ["done", "failed"]

    go(main())


async def _followed(storage: Storage) -> bool:
    return is_followed(storage)


@pytest.mark.parametrize("how", [UNKEPT, None], ids=["streamed", "silent"])
def test_a_follower_who_comes_in_the_middle_hears_the_end(
    near: Storage, talk: Talk, how: StreamOptions | None
) -> None:
    async def main() -> None:
        here, there = near.database(), near.database()
        async with (
            working(here, talk.graph, name="works") as works,
            working(there, talk.graph, works=False) as looks,
        ):
            ticket = await say(works, "hold on", how)
            await eventually(lambda: talk.under_way)
            ears = [
                asyncio.create_task(until(one.follow_thread("ada", after=await one.latest_event("ada")), 1))
                for one in (looks, works)
            ]
            await eventually(lambda: all(one._context.subscriptions._noted for one in (looks, works)))
            talk.gate.set()
            await works.wait(ticket)
            for heard in await asyncio.gather(*ears):
                assert (heard[-1].name, heard[-1].run_id) == (END, ticket.id)
                assert json.loads(heard[-1].data)["state"] == "done"
                assert [event.seq for event in heard] == sorted({event.seq for event in heard})

    go(main())


def test_what_a_run_streams_is_heard_by_who_came_in_the_middle_while_it_goes_on(talk: Talk) -> None:
    async def main(url: str) -> None:
        here, there = open_database(url, migrate=True), open_database(url)
        async with (
            working(here, talk.graph, name="works") as works,
            working(there, talk.graph, works=False) as looks,
        ):
            await listening(here, there)
            ticket = await say(works, "hold on", UNKEPT)
            await eventually(lambda: talk.under_way)
            events = looks.follow_thread("ada", after=0)
            assert (await anext(events)).name == "metadata"
            assert talk.under_way
            talk.gate.set()
            assert (await until(events, 1))[-1].run_id == ticket.id
        here.close()
        there.close()

    with postgres.empty() as url:
        go(main(url))


def test_a_thread_that_nobody_follows_any_more_stores_nothing(
    near: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_FOLLOWED_S", 3.0)

    async def main() -> None:
        here, there = near.database(), near.open()
        async with working(here, talk.graph, name="works") as works:
            looks = Runtime(there[0], talk.graph, works=False)
            ear = asyncio.create_task(until(looks.follow_thread("ada", after=0), 1))
            await eventually_stored(lambda: _followed(near))
            # Longer than one record of it lasts, it is followed, and that is known.
            await asyncio.sleep(3.5)
            assert is_followed(near)
            await works.wait(await say(works, "one", UNKEPT))
            await ear
            # The process ends as a crash ends it.
            there[1].is_dead = True
            await eventually_stored(lambda: _unfollowed(near))
            stored = near.rows("ada", EVENT)
            assert stored
            await works.wait(await say(works, "two", UNKEPT))
            assert near.rows("ada", EVENT) == stored
            looks._context.subscriptions.close()

    go(main())


async def _unfollowed(storage: Storage) -> bool:
    return not is_followed(storage)


@pytest.mark.packs_late
def test_a_run_of_a_thread_that_nobody_follows_makes_no_more_requests(memory: Storage, talk: Talk) -> None:
    """Two runs after the first: one commit accepts and claims, one ends, and neither reads."""

    async def main() -> None:
        database, line = memory.open()
        seldom, noted = settings(poll=600.0), Heard()
        # No poll of the database falls among the requests of a run, and none of one who waits for it.
        async with working(database, talk.graph, name="works", settings=seldom, observers=[noted]) as works:
            await works.wait(await say(works, "one", None))
            counts: list[tuple[int, int]] = []
            for text in ("two", "three"):
                before = line.count, line.commits
                await say(works, text, None)
                await eventually(lambda: noted.count("run.done") == len(counts) + 2)
                counts.append((line.count - before[0], line.commits - before[1]))
            assert counts == [COST] * 2

    go(main())


COST = (6, 5)
"""Requests and commits of one run, with the commits of its graph."""


def test_a_follower_record_that_was_renewed_is_not_removed(near: Storage) -> None:
    database = near.database()
    at = Partition("", "ada")
    handle_of(database).run(subscribers.note(at, 100, handle_of(database).draw_version()))
    handle_of(database).run(subscribers.note(at, 200, handle_of(database).draw_version()))
    assert handle_of(database).run(subscribers.forget(at, 150)) is False
    assert is_followed(near)
    handle_of(database).run(subscribers.forget(at, 200))
    assert not is_followed(near)


def test_a_deleted_thread_stays_deleted_while_it_is_followed(
    near: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_FOLLOWED_S", 0.9)

    async def main() -> None:
        async with (
            working(near.database(), talk.graph, name="works") as works,
            working(near.database(), talk.graph, works=False) as looks,
        ):
            await works.wait(await say(works, "one", None))
            ended = set[str]()

            async def listen() -> None:
                async for event in looks.follow_thread("ada", after=0):
                    ended.update([event.run_id] if event.name == END else [])

            ear = asyncio.create_task(listen())
            await eventually_stored(lambda: _followed(near))
            await works.delete("ada")
            noted = looks._context.subscriptions._noted
            await eventually(lambda: list(noted.values()) == [-subscription._FOLLOWED_S])
            await asyncio.sleep(0.5)
            assert near.rows("ada") == []
            # A thread of its name is followed again.
            await works.wait(await say(works, "two", None))
            await eventually_stored(lambda: _followed(near))
            ticket = await say(works, "three", None)
            await eventually(lambda: ticket.id in ended)
            ear.cancel()

    go(main())


def test_a_record_is_renewed_where_its_thread_is(near: Storage) -> None:
    handle = handle_of(near.database())
    at = Partition("", "ada")

    def renew(until: int) -> bool:
        return handle.run(subscribers.renew(at, until, handle.draw_version()))

    assert not renew(100)
    assert near.rows("ada") == []
    handle.run(subscribers.note(at, 100, handle.draw_version()))
    assert renew(200)
    handle.run(subscribers.forget(at, 150))
    assert is_followed(near)
    handle.run(subscribers.forget(at, 200))
    assert not renew(300)
    handle.run(documents.put(at, *OF_THREAD, {}, 0, Expect.ABSENT, fresh=1 << 24))
    assert renew(300)
    assert is_followed(near)
