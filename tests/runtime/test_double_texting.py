"""A message for a thread whose run is under way: it waits, is refused, or ends the run."""

from __future__ import annotations

import pytest

from perdure.errors import RunInProgress
from perdure.model.records import INBOX
from perdure.model.runs.messages import OPEN
from tests.runtime.graphs import (
    HOUR_US,
    Heard,
    Storage,
    Talk,
    eventually,
    go,
    settings,
    spoken,
    values,
    vanish,
    working,
)


def test_it_waits_for_its_turn(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph) as runtime:
            first = await runtime.accept("ada", "hold one")
            await eventually(lambda: talk.under_way)
            second = await runtime.accept("ada", "two")
            third = await runtime.accept("ada", "three")
            alone = await runtime.accept("ada", "four", coalesce=False)
            talk.gate.set()
            runs = [await runtime.wait(t, 30) for t in (first, second, third, alone)]
        assert [(run.first, run.last) for run in runs] == [(1, 1), (2, 3), (2, 3), (4, 4)]
        assert [text for _, text in talk.calls] == ["hold one", "two + three", "four"]

    go(main())


def test_it_is_refused(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph) as runtime:
            first = await runtime.accept("ada", "hold one", strategy="reject", dedupe_key="k")
            await eventually(lambda: talk.under_way)
            with pytest.raises(RunInProgress, match="nothing of this message was stored"):
                await runtime.accept("ada", "two", strategy="reject")
            # Somebody else's process, which has never seen the thread.
            async with working(storage.database(), talk.graph, works=False) as front:
                with pytest.raises(RunInProgress):
                    await front.accept("ada", "two", strategy="reject", dedupe_key="k2")
                again = await front.accept("ada", "hold one", strategy="reject", dedupe_key="k")
                assert again.is_duplicate
            assert len(storage.rows("ada", INBOX)) == 1
            talk.gate.set()
            await runtime.wait(first, 30)
            late = await runtime.accept("ada", "two", strategy="reject", dedupe_key="k2")
            assert (late.number, late.is_duplicate) == (2, False)
            assert (await runtime.wait(late, 30)).state == "done"

    go(main())


def test_it_is_refused_while_others_wait(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph, works=False) as front:
            await front.accept("ada", "one")
            with pytest.raises(RunInProgress):
                await front.accept("ada", "two", strategy="reject")
            assert len(near.rows("ada", INBOX)) == 1

    go(main())


def test_it_interrupts_and_what_was_stored_stays(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = storage.database()
        async with working(database, talk.graph) as runtime:
            first = await runtime.accept("ada", "hold one", channel="post")
            await eventually(lambda: talk.under_way)
            second = await runtime.accept("ada", "two", strategy="interrupt")
            assert (await runtime.wait(first, 30)).state == "interrupted"
            assert (await runtime.wait(second, 30)).state == "done"
            assert await runtime.replies("ada") == (), "a run that was ended has no reply"
        state = await values(database, talk.graph, "ada")
        assert [m.text for m in state["messages"]] == ["hold one", "two", "echo: hold one + two"]
        assert state["heard"] == ["hold one", "hold one + two"]
        assert database.fsck("ada") == []

    go(main())


def test_it_takes_back_what_was_stored(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = storage.database()
        async with working(database, talk.graph) as runtime:
            await runtime.wait(await runtime.accept("ada", "zero"), 30)
            before = database.export("ada")
            first = await runtime.accept("ada", "hold one")
            await eventually(lambda: talk.under_way)
            assert "hold one" in await spoken(database, talk.graph, "ada")
            third = await runtime.accept("ada", "hold two", strategy="rollback")
            assert (await runtime.wait(first, 30)).state == "rolled_back"
            await eventually(lambda: len(talk.calls) == 3)
            assert await runtime.stop("ada", third.id, rollback=True)
            assert (await runtime.wait(third, 30)).state == "rolled_back"
            assert database.export("ada") == before
            last = await runtime.accept("ada", "three")
            assert (await runtime.wait(last, 30)).state == "done"
        state = await values(database, talk.graph, "ada")
        assert [m.text for m in state["messages"]] == ["zero", "echo: zero", "three", "echo: three"]
        assert state["heard"] == ["zero", "three"]
        assert database.fsck("ada") == []

    go(main())


def test_the_first_run_of_a_thread_is_taken_back(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph) as runtime:
            first = await runtime.accept("ada", "hold one")
            await eventually(lambda: talk.under_way)
            second = await runtime.accept("ada", "two", strategy="rollback")
            assert (await runtime.wait(first, 30)).state == "rolled_back"
            assert (await runtime.wait(second, 30)).state == "done"
        assert await spoken(database, talk.graph, "ada") == ["two", "echo: two"]
        assert database.fsck("ada") == []

    go(main())


def test_a_thread_without_a_run_has_nothing_to_end(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph) as runtime:
            for strategy in ("interrupt", "rollback"):
                ticket = await runtime.accept("ada", strategy, strategy=strategy)
                assert (await runtime.wait(ticket, 30)).state == "done"
            assert not await runtime.stop("ada", ticket.id), "that run is over"
            assert not await runtime.stop("nobody", "nothing")

    go(main())


@pytest.mark.parametrize("rollback", [False, True])
def test_a_run_is_stopped(near: Storage, talk: Talk, rollback: bool) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph) as runtime:
            ticket = await runtime.accept("ada", "hold")
            await eventually(lambda: talk.under_way)
            assert await runtime.stop("ada", ticket.id, rollback=rollback)
            run = await runtime.wait(ticket, 30)
            assert run.state == ("rolled_back" if rollback else "interrupted")
            assert talk.under_way == 0
            assert await spoken(database, talk.graph, "ada") == ([] if rollback else ["hold"])
            after = await runtime.accept("ada", "after")
            assert (await runtime.wait(after, 30)).state == "done"
        assert database.fsck("ada") == []

    go(main())


@pytest.mark.slow
@pytest.mark.parametrize("rollback", [False, True])
def test_a_run_that_another_worker_holds_is_stopped_by_its_next_renewal(
    storage: Storage, talk: Talk, rollback: bool
) -> None:
    async def main() -> None:
        heard = Heard()
        short = settings(lease=3.0)
        async with working(storage.database(), talk.graph, settings=short, observers=[heard]) as holder:
            ticket = await holder.accept("ada", "hold")
            await eventually(lambda: talk.under_way)
            async with working(storage.database(), talk.graph, works=False) as other:
                assert await other.stop("ada", ticket.id, rollback=rollback)
                state = "rolled_back" if rollback else "interrupted"
                assert (await other.wait(ticket, 30)).state == state
                assert (heard.count("run.claimed"), heard.count(f"run.{state}")) == (1, 1)

    go(main())


def test_a_stop_that_its_worker_did_not_live_to_see_holds_for_the_next(near: Storage) -> None:
    first, second = Talk("first"), Talk("second")

    async def main() -> None:
        database, line = near.open()
        async with working(database, first.graph) as gone:
            ticket = await gone.accept("ada", "hold")
            await eventually(lambda: first.under_way)
            async with working(near.database(), first.graph, works=False) as front:
                assert await front.stop("ada", ticket.id, rollback=True)
                assert (await front.look(ticket)).run.state == OPEN  # type: ignore[union-attr]
            vanish(gone, line)
        after, line = near.open()
        line.ahead_us = HOUR_US
        async with working(after, second.graph) as other:
            assert (await other.wait(ticket, 30)).state == "rolled_back"
        assert second.calls == []
        assert await spoken(after, second.graph, "ada") == []

    go(main())


def test_a_run_that_waits_for_its_next_attempt_is_stopped_at_once(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        slow = settings(backoff=600, max_backoff=600)
        heard = Heard()
        async with working(near.database(), talk.graph, settings=slow, observers=[heard]) as runtime:
            ticket = await runtime.accept("ada", "boom")
            await eventually(lambda: heard.count("run.attempt_failed"))
            second = await runtime.accept("ada", "two", strategy="rollback")
            assert (await runtime.wait(ticket, 30)).state == "rolled_back"
            assert (await runtime.wait(second, 30)).state == "done"
        assert [text for _, text in talk.calls] == ["boom", "two"]

    go(main())
