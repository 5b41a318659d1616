"""Leaving: runs end or are handed over, threads are deleted, and tenants have nothing of each other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import NotFound
from perdure.model.ops import Commit
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, LANE, OUTBOX
from perdure.model.runs.messages import Reply
from perdure.runtime import Channel, Ticket
from tests.runtime.graphs import (
    Heard,
    Post,
    Storage,
    Talk,
    deafen,
    eventually,
    go,
    settings,
    spoken,
    working,
)


def test_a_run_may_end_while_its_worker_leaves(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph) as runtime:
            ticket = await runtime.accept("ada", "hold")
            await eventually(lambda: talk.under_way)
            later = await runtime.accept("ada", "later")
            asyncio.get_running_loop().call_later(0.2, talk.gate.set)
        assert talk.calls == [("ada", "hold")], "nothing new is begun"
        async with working(near.database(), talk.graph, works=False) as front:
            run = (await front.look(ticket)).run
            assert run is not None
            assert (run.state, run.attempts) == ("done", 1)
            assert (await front.look(later)).run is None

    go(main())


def test_a_run_that_takes_longer_is_handed_over(storage: Storage) -> None:
    first, second, heard = Talk("first"), Talk("second"), Heard()
    second.gate.set()

    async def main() -> None:
        brief = settings(drain=0.1)
        async with working(storage.database(), first.graph, settings=brief, observers=[heard]) as leaving:
            ticket = await leaving.accept("ada", "hold", channel="post")
            await eventually(lambda: first.under_way)
        assert first.under_way == 0
        assert heard.count("run.handed_over") == 1
        database = storage.database()
        async with working(database, second.graph) as other:
            # Its lease would have gone on for longer than this waits.
            run = await other.wait(ticket, 25)
            assert (run.state, run.attempts) == ("done", 1)
            assert len(await other.replies("ada")) == 1
        assert await spoken(database, second.graph, "ada") == ["hold", "second: hold"]

    go(main())


def test_a_worker_that_is_cancelled_while_it_leaves_hands_over_its_runs(near: Storage) -> None:
    """Its caller has no more time, for instance by ``asyncio.timeout``: a run that went on behind it would
    renew its lease for as long as the process lives."""
    first, second, heard = Talk("first"), Talk("second"), Heard()
    second.gate.set()

    async def main() -> None:
        async def leave() -> Ticket:
            async with working(near.database(), first.graph, observers=[heard]) as runtime:
                ticket = await runtime.accept("ada", "hold")
                tickets.append(ticket)
                await eventually(lambda: first.under_way)
                left.set()
            return ticket

        tickets: list[Ticket] = []
        left = asyncio.Event()
        others = asyncio.all_tasks()
        leaving = asyncio.create_task(leave())
        await left.wait()
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled()
        assert first.under_way == 0
        assert heard.count("run.handed_over") == 1
        await eventually(lambda: asyncio.all_tasks() == others)
        async with working(near.database(), second.graph) as other:
            # Its lease would have gone on for longer than this waits.
            run = await other.wait(tickets[0], 25)
            assert (run.state, run.attempts) == ("done", 1)

    go(main())


def test_a_run_that_is_claimed_while_its_worker_leaves_does_not_keep_it(memory: Storage, talk: Talk) -> None:
    """The claim is on its way when the time for leaving is over: the run that it brings is not begun, or is
    handed over."""
    heard = Heard()

    async def main() -> None:
        database, line = memory.open()
        asked, answered = asyncio.Event(), asyncio.Event()

        async def slowly(effect: Effect[Any]) -> None:
            if isinstance(effect, Commit) and any(op.kind.name == "run" for op in effect.ops):
                asked.set()
                await answered.wait()

        brief = settings(drain=0)
        async with working(memory.database(), talk.graph, works=False) as front:
            ticket = await front.accept("ada", "hold")
        line.before = slowly
        async with working(database, talk.graph, settings=brief, observers=[heard]):
            await asked.wait()
            asyncio.get_running_loop().call_later(0.1, answered.set)
        assert talk.under_way == 0
        assert heard.count("worker.left_behind") == 0
        talk.gate.set()
        async with working(memory.database(), talk.graph) as other:
            run = await other.wait(ticket, 20)
            assert (run.state, run.attempts) == ("done", 1)

    go(main())


def test_whoever_leaves_twice_as_many_runs_leaves_them_all(near: Storage) -> None:
    first, second = Talk("first"), Talk("second")
    second.gate.set()

    async def main() -> None:
        brief = settings(drain=0.1)
        async with working(near.database(), first.graph, settings=brief) as leaving:
            tickets = [await leaving.accept(f"t{n}", "hold") for n in range(10)]
            await eventually(lambda: first.under_way == 10)
        async with working(near.database(), second.graph) as other:
            runs = [await other.wait(ticket, 20) for ticket in tickets]
        assert {(run.state, run.attempts) for run in runs} == {("done", 1)}
        assert len(second.calls) == 10

    go(main())


# ---------------------------------------------------------------- deleting


@pytest.mark.packs_late
def test_a_thread_that_is_deleted_in_the_middle_of_a_run_is_gone(storage: Storage, talk: Talk) -> None:
    heard = Heard()

    async def main() -> None:
        database = storage.database()
        channels = {"post": Post().channel()}
        async with (
            working(database, talk.graph, observers=[heard], channels=channels) as holder,
            working(storage.database(), talk.graph, works=False) as other,
        ):
            deafen(holder)
            await holder.wait(await holder.accept("ada", "hello", channel="post", dedupe_key="k"), 30)
            ticket = await holder.accept("ada", "hold", channel="post")
            await eventually(lambda: talk.under_way)
            await holder.accept("ada", "waiting")
            await eventually(lambda: storage.rows("ada", OUTBOX))
            kinds = {record.kind.name for record in storage.rows("ada")}
            assert kinds >= {
                "head",
                "epoch",
                "checkpoint",
                "chunk",
                "lane",
                "inbox",
                "dedupe",
                "run",
                "outbox",
            }
            # By another process: the holder hears of it from the database only.
            await other.delete("ada")
            assert storage.rows("ada") == []
            talk.gate.set()
            await eventually(lambda: heard.count("run.lost"))
            assert storage.rows("ada") == []
            with pytest.raises(NotFound):
                await other.look(ticket)
            # Who speaks there again speaks on another thread of that name.
            again = await other.accept("ada", "hello", channel="post", dedupe_key="k")
            assert (again.number, again.is_duplicate) == (1, False)
            assert (await holder.wait(again, 30)).state == "done"
            assert await spoken(database, talk.graph, "ada") == ["hello", "echo: hello"]

    go(main())


def test_whoever_deletes_a_thread_ends_its_run_here_at_once(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph) as runtime:
            await runtime.accept("ada", "hold")
            await eventually(lambda: talk.under_way)
            await runtime.delete("ada")
            await eventually(lambda: talk.under_way == 0)
            assert near.rows("ada") == []
            again = await runtime.accept("ada", "hello")
            assert (await runtime.wait(again, 30)).state == "done"
        assert len(near.rows("ada", LANE)) == 1

    go(main())


def test_a_reply_on_its_way_says_nothing_of_the_thread_that_came_after(near: Storage, talk: Talk) -> None:
    """Its thread was deleted while it was being sent, and made again: what becomes of it is nobody's."""
    heard = Heard()
    old, new = asyncio.Event(), asyncio.Event()

    async def send_old(thread: str, reply: Reply) -> str | None:
        await old.wait()
        return "old"

    async def send_new(thread: str, reply: Reply) -> str | None:
        await new.wait()
        return "new"

    async def main() -> None:
        options: dict[str, Any] = {"channels": {"post": Channel(send_old)}, "observers": [heard]}
        async with working(near.database(), talk.graph, **options) as first:
            await first.wait(await first.accept("ada", "old", channel="post"), 30)
            await eventually(lambda: _owner(near))
            first._worker.dispatch.is_stopping = True  # it takes nothing more
            async with working(near.database(), talk.graph, channels={"post": Channel(send_new)}) as second:
                await second.delete("ada")
                again = await second.accept("ada", "new", channel="post")
                await second.wait(again, 30)
                await eventually(lambda: _owner(near))
                old.set()
                await eventually(lambda: heard.count("reply.lost") or heard.count("reply.sent"))
                await eventually(lambda: not first._worker.dispatch._serving)
                (reply,) = await second.replies("ada")
                assert (reply.run_id, reply.payload["content"]) == (again.id, "echo: new")
                assert reply.state == "sending"
                new.set()
                await eventually(lambda: not _owner(near) and _due(near) is None)
                (reply,) = await second.replies("ada")
                assert (reply.state, reply.provider_id) == ("sent", "new")

    go(main())


def _outbox(storage: Storage) -> dict[str, Any]:
    return next((dict(r.fields) for r in storage.rows("ada", LANE) if r.key == ("outbox",)), {})


def _owner(storage: Storage) -> str | None:
    return _outbox(storage).get("owner")


def _due(storage: Storage) -> int | None:
    return _outbox(storage).get("due_at")


# ---------------------------------------------------------------- tenants


def test_tenants_have_threads_of_their_own(storage: Storage, talk: Talk) -> None:
    post = Post()

    async def main() -> None:
        async with (
            working(storage.database(tenant="acme"), talk.graph, channels={"post": post.channel()}) as acme,
            working(storage.database(tenant="beta"), talk.graph, works=False) as beta,
        ):
            one = await acme.accept("ada", "from acme", dedupe_key="k", channel="post")
            two = await beta.accept("ada", "from beta", dedupe_key="k", channel="post")
            assert (one.number, two.number, two.is_duplicate) == (1, 1, False)
            assert one.id != two.id
            await acme.wait(one, 30)
            await eventually(lambda: post.sent)
            assert (await acme.wait(await acme.accept("bob", "hello"), 30)).state == "done"
            assert (await beta.look(two)).run is None, "that worker is another tenant's"
            assert await beta.runs("ada") == ()
            assert await beta.replies("ada") == ()
            async with working(storage.database(), talk.graph, all_tenants=True):
                assert (await beta.wait(two, 30)).state == "done"
            await acme.delete("ada")
            assert storage.rows("ada", tenant="acme") == []
            assert storage.rows("ada", CHECKPOINT, tenant="beta")
        database = storage.database(tenant="beta")
        assert await spoken(database, talk.graph, "ada") == ["from beta", "echo: from beta"]
        assert post.texts == ["echo: from acme"]

    go(main())
