"""Work without a running worker: a thread is worked on in one call, and no lease outlives it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import NotFound, Unavailable
from perdure.model.records import LANE
from perdure.model.runs.messages import DONE, Reply
from perdure.model.runs.queue import IN, Lane
from perdure.runtime import Runtime, Ticket
from tests.runtime.graphs import Post, Storage, Talk, eventually, go, settings, spoken, stored, working


def lane(storage: Storage, thread: str) -> Lane:
    found = tuple(r for r in storage.rows(thread, LANE) if r.key == (IN,))
    return Lane.read(IN, found)


def test_a_thread_is_worked_on_until_it_is_idle(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        post = Post()
        database = storage.database()
        async with working(database, talk.graph, works=False, channels={"c": post.channel()}) as runtime:
            assert await runtime.run_until_idle("t") is None
            tickets = [await runtime.accept("t", f"m{n}", channel="c", coalesce=False) for n in range(3)]
            await runtime.accept("other", "x")
            assert talk.calls == []
            assert await runtime.run_until_idle("t", within=60) is None
            assert [(await runtime.look(ticket)).run.state for ticket in tickets] == [DONE] * 3  # type: ignore[union-attr]
            assert post.texts == ["echo: m0", "echo: m1", "echo: m2"]
            assert {thread for thread, _ in talk.calls} == {"t"}
            assert lane(storage, "t").owner is None
            assert await spoken(database, talk.graph, "t") == [
                text for n in range(3) for text in (f"m{n}", f"echo: m{n}")
            ]

    go(main())


def test_what_is_due_later_is_waited_for_within_the_time_and_told_otherwise(
    memory: Storage, talk: Talk
) -> None:
    async def main() -> None:
        async with working(memory.database(), talk.graph, works=False) as runtime:
            await runtime.accept("t", "debounced", debounce=3.0)
            later = await runtime.run_until_idle("t")
            assert later is not None
            assert 0 < later <= 3.0
            assert talk.calls == []
            await runtime.submit("t", {"messages": [("user", "in an hour")]}, delay=3600)
            later = await runtime.run_until_idle("t", within=30)
            assert later is not None
            assert 3000 < later <= 3600
            assert [said for _, said in talk.calls] == ["debounced"]

    go(main())


def test_a_run_that_takes_too_long_is_released_for_the_next_call(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        graph = talk.graph
        async with working(near.database(), graph, works=False) as first:
            ticket = await first.accept("t", "hold on")
            with pytest.raises(TimeoutError):
                await first.run_until_idle("t", within=1.5)
            held = lane(near, "t")
            assert (held.run_id, held.owner) == (ticket.id, None), "open, and nobody's"
            waiting = asyncio.create_task(first.run_until_idle("t"))
            await eventually(lambda: talk.under_way)
            assert lane(near, "t").owner is not None
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert lane(near, "t").owner is None
            talk.gate.set()
            assert await first.run_until_idle("t") is None
            run = (await first.look(ticket)).run
            assert run is not None
            assert (run.state, run.attempts) == (DONE, 1), "attempts that were released do not count"

    go(main())


def test_a_lease_is_renewed_during_a_long_run(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        brief = settings(lease=3.0)
        database = memory.database()
        async with working(database, talk.graph, works=False, settings=brief) as one:
            await one.accept("t", "hold on")
            long = asyncio.create_task(one.run_until_idle("t"))
            await eventually(lambda: talk.under_way)
            first = lane(memory, "t").lease_until
            assert first is not None
            await eventually(lambda: (lane(memory, "t").lease_until or 0) > first)
            talk.gate.set()
            await long
        assert len(talk.calls) == 1

    go(main())


def test_a_missing_graph_and_a_worker_are_named(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = memory.database()
        async with working(database, {"a": talk.graph}, works=False) as runtime:
            await runtime.accept("t", "x")
        async with working(database, {"b": talk.graph}, works=False) as runtime:
            with pytest.raises(NotFound, match="graph 'a'"):
                await runtime.run_until_idle("t")
            with pytest.raises(RuntimeError, match="works=True"):
                await runtime.work_off(1)
        async with working(database, talk.graph) as runtime:
            with pytest.raises(RuntimeError, match="works=False"):
                await runtime.run_until_idle("t")

    go(main())


def test_a_paused_runtime_holds_nothing_and_works_again_when_resumed(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        post = Post()
        async with working(near.database(), talk.graph, channels={"c": post.channel()}) as runtime:
            await runtime.accept("t", "m1", channel="c")
            assert await runtime.pause(60)
            assert post.texts == ["echo: m1"], "the reply was sent as well"
            await runtime.accept("t", "m2", channel="c")
            await asyncio.sleep(0.1)
            assert len(talk.calls) == 1
            await runtime.resume()
            await runtime.accept("t", "hold on", channel="c", coalesce=False)
            await eventually(lambda: talk.under_way)
            assert not await runtime.pause(0.05)
            assert lane(near, "t").owner is None
            assert talk.under_way == 0
            talk.gate.set()
            await runtime.resume(polls=True)
            assert await runtime.work_off(60)
            assert post.texts == ["echo: m1", "echo: m2", "echo: hold on"]

    go(main())


def test_a_database_that_is_away_after_a_pause_is_noticed(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = memory.open()
        async with Runtime(database, talk.graph, settings=settings(), observers=[]) as runtime:
            await runtime.pause(1)
            away = [True]
            line.failing = lambda number: away[0]
            with pytest.raises(Unavailable):
                await runtime.resume()
            away[0] = False
            await runtime.resume()
            ticket = await runtime.accept("t", "hi")
            assert (await runtime.wait(ticket, 30)).state == DONE

    go(main())


class SlowPost(Post):
    """A provider that is being called for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = 0

    async def send(self, thread: str, reply: Reply) -> str:
        self.under_way += 1
        try:
            await asyncio.sleep(0.03)
            return await super().send(thread, reply)
        finally:
            self.under_way -= 1


def assert_at_rest(storage: Storage, post: SlowPost, talk: Talk) -> None:
    """Nothing of the thread is under way, and nobody holds a lease of it."""
    owners = {record.key[0]: record.fields["owner"] for record in storage.rows("t", LANE)}
    assert (set(owners.values()), post.under_way, talk.under_way) == ({None}, 0, 0), owners


@pytest.mark.parametrize("by", ["this process", "another"])
def test_what_is_accepted_at_any_moment_of_it_is_done_when_it_returns(by: str, talk: Talk) -> None:
    """Before each request of the call in turn, a message is accepted."""

    async def once(at: int) -> bool:
        with stored("memory") as storage:
            database, line = storage.open()
            count, later, post = 0, list[Ticket](), SlowPost()
            options: Any = {"works": False, "channels": {"c": post.channel()}}
            async with (
                working(database, talk.graph, **options) as runtime,
                working(storage.database(), talk.graph, **options) as other,
            ):
                speaker = runtime if by == "this process" else other
                tickets = [await speaker.accept("t", f"m{n}", channel="c", coalesce=False) for n in range(2)]

                async def reached(_: Any) -> None:
                    nonlocal count
                    count += 1
                    if count == at:
                        later.append(await speaker.accept("t", "late", channel="c", coalesce=False))
                    await asyncio.sleep(0.001)

                line.before = reached
                left = await runtime.run_until_idle("t", within=20)
                assert_at_rest(storage, post, talk)
                line.before = None
                await asyncio.sleep(0.01)
                assert_at_rest(storage, post, talk)
                assert post.texts[:2] == ["echo: m0", "echo: m1"]
                assert [(await runtime.look(t)).run.state for t in tickets] == [DONE, DONE]  # type: ignore[union-attr]
                # What came after the last look is told, or found at once.
                assert left is None or left < 1
                await runtime.run_until_idle("t")
                assert_at_rest(storage, post, talk)
                assert post.texts[2:] == ["echo: late"] * len(later)
            return bool(later)

    async def main() -> None:
        at = 1
        while await once(at):
            at += 1
        assert at > 10

    go(main())


def test_of_two_calls_at_once_neither_returns_while_this_process_works_on_the_thread(
    memory: Storage, talk: Talk
) -> None:
    async def main() -> None:
        async with working(memory.database(), talk.graph, works=False) as runtime:
            await runtime.accept("t", "hold on")
            first = asyncio.create_task(runtime.run_until_idle("t", within=60))
            await eventually(lambda: talk.under_way)
            second = asyncio.create_task(runtime.run_until_idle("t"))
            with pytest.raises(TimeoutError):
                await runtime.run_until_idle("t", within=0.2)
            assert talk.under_way == 1, "the other call's work goes on"
            assert not second.done()
            talk.gate.set()
            assert (await first, await second) == (None, None)
            assert lane(memory, "t").owner is None

    go(main())


def test_no_message_of_many_leaves_its_reply_to_be_sent_later(memory: Storage, talk: Talk) -> None:
    """What is out of date is removed after some of the runs, while their replies are due."""

    async def main() -> None:
        post = SlowPost()
        database, line = memory.open()
        brief = settings(keep=1)

        async def slowly(_: Any) -> None:
            await asyncio.sleep(0.001)

        async with working(
            database, talk.graph, works=False, channels={"c": post.channel()}, settings=brief
        ) as runtime:
            for n in range(24):
                await runtime.accept("t", f"m{n}", channel="c")
                line.before = slowly
                assert await asyncio.wait_for(runtime.run_until_idle("t", within=60), 20) is None
                assert_at_rest(memory, post, talk)
                assert len(post.texts) == n + 1

    go(main())
