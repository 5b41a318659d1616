"""Running: one open run a thread, many threads at once, and another worker's turn when one is gone.

Covers perdure.runtime.worker.run_buffers.
"""

from __future__ import annotations

import asyncio

import pytest

from perdure.errors import Corrupt
from perdure.model.ops import Commit, Committed, Put
from perdure.model.records import INBOX, RUN, Partition
from perdure.model.runs.messages import OPEN
from perdure.runtime import Runtime, Ticket
from tests.runtime.graphs import (
    HOUR_US,
    Heard,
    Storage,
    Talk,
    deafen,
    eventually,
    go,
    settings,
    spoken,
    vanish,
    working,
)


def test_one_run_a_thread_and_many_threads_at_once(storage: Storage, talk: Talk) -> None:
    threads = [f"t{n}" for n in range(20 if storage.is_near else 6)]

    async def main() -> None:
        database = storage.database()
        async with working(database, talk.graph) as runtime:
            await asyncio.gather(*(runtime.accept(thread, "hold one") for thread in threads))
            await eventually(lambda: talk.under_way == len(threads))
            seconds = await asyncio.gather(*(runtime.accept(thread, "hold two") for thread in threads))
            more = await asyncio.gather(*(runtime.accept(t, "three", coalesce=False) for t in threads))
            for thread in threads:
                (run,) = await runtime.runs(thread)
                assert (run.state, run.first, run.last) == (OPEN, 1, 1)
            talk.gate.set()
            for ticket in (*seconds, *more):
                assert (await runtime.wait(ticket, 40)).state == "done"
        assert (talk.most, talk.most_on_one) == (len(threads), 1)
        said = await spoken(database, talk.graph, threads[0])
        assert said == ["hold one", "echo: hold one", "hold two", "echo: hold two", "three", "echo: three"]

    go(main())


def test_concurrency_is_kept_to(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph, settings=settings(concurrency=3)) as runtime:
            tickets = [await runtime.accept(f"t{n}", "hold") for n in range(8)]
            await eventually(lambda: talk.under_way == 3)
            talk.gate.set()
            for ticket in tickets:
                await runtime.wait(ticket, 30)
        assert talk.most == 3

    go(main())


def test_a_run_may_take_longer_than_its_lease(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        short = settings(lease=3, poll=0.05)
        heard = Heard()
        async with (
            working(near.database(), talk.graph, settings=short, observers=[heard]) as one,
            working(near.database(), talk.graph, settings=short, observers=[heard]),
        ):
            ticket = await one.accept("ada", "hold")
            await eventually(lambda: talk.under_way)
            await asyncio.sleep(3.8)
            talk.gate.set()
            run = await one.wait(ticket, 30)
        assert (run.state, run.attempts) == ("done", 1)
        assert talk.calls == [("ada", "hold")]
        assert (heard.count("run.claimed"), heard.count("run.done")) == (1, 1)

    go(main())


def test_three_workers_keep_the_order_of_every_thread(storage: Storage, talk: Talk) -> None:
    threads, each = (20, 10) if storage.is_near else (4, 5)

    async def main() -> None:
        databases = [storage.database() for _ in range(3)]
        async with (
            working(databases[0], talk.graph) as one,
            working(databases[1], talk.graph) as two,
            working(databases[2], talk.graph) as three,
        ):
            runtimes = (one, two, three)

            async def speak(thread: str) -> list[Ticket]:
                tickets = []
                for n in range(each):
                    runtime = runtimes[(n + len(thread)) % 3]
                    ticket = await runtime.accept(thread, f"{thread} {n}", coalesce=n % 2 == 0)
                    tickets.append(ticket)
                return tickets

            names = [f"thread{'x' * n}" for n in range(threads)]
            for tickets in await asyncio.gather(*map(speak, names)):
                assert [ticket.number for ticket in tickets] == list(range(1, each + 1))
                for ticket in tickets:
                    assert (await one.wait(ticket, 50)).state == "done"
        assert talk.most_on_one == 1
        for name in names:
            said = [t for t in await spoken(databases[0], talk.graph, name) if not t.startswith("echo")]
            assert said == [f"{name} {n}" for n in range(each)]
            answered = " + ".join(text for thread, text in talk.calls if thread == name)
            assert answered == " + ".join(said), "each was heard in one run"

    go(main())


def test_another_worker_takes_over_and_the_first_stores_nothing_more(storage: Storage) -> None:
    first, second, heard = Talk("first"), Talk("second"), Heard()
    second.gate.set()

    async def main() -> None:
        database = storage.database()
        short = settings(lease=1.0, poll=0.05)
        async with working(database, first.graph, settings=short, observers=[heard]) as deaf:
            deafen(deaf)
            ticket = await deaf.accept("ada", "hold", channel="post")
            await eventually(lambda: first.under_way)
            async with working(storage.database(), second.graph, settings=short) as other:
                run = await other.wait(ticket, 30)
                assert (run.state, run.attempts) == ("done", 2)
                first.gate.set()
                await eventually(lambda: heard.count("run.write_refused"))
                assert heard.count("run.done") == 0
                assert await spoken(database, second.graph, "ada") == ["hold", "second: hold"]
                assert [reply.payload["content"] for reply in await other.replies("ada")] == ["second: hold"]
                (stored_run,) = await other.runs("ada")
                assert (stored_run.state, stored_run.epoch) == ("done", run.epoch)
        assert database.fsck("ada") == []

    go(main())


def test_the_run_of_a_worker_that_ended_goes_on_where_it_was(storage: Storage) -> None:
    first, second = Talk("first"), Talk("second")
    second.gate.set()

    async def main() -> None:
        database, line = storage.open()
        async with working(database, first.graph) as gone:
            ticket = await gone.accept("ada", "hold")
            await eventually(lambda: first.under_way)
            later = await gone.accept("ada", "later")
            vanish(gone, line)
        after, line = storage.open()
        line.ahead_us = HOUR_US
        async with working(after, second.graph) as other:
            run = await other.wait(ticket, 30)
            assert (run.state, run.attempts) == ("done", 2)
            await other.wait(later, 30)
            said = ["hold", "second: hold", "later", "second: later"]
            assert await spoken(after, second.graph, "ada") == said
        # The step that was committed was not taken again.
        app = second.graph.copy(update={"checkpointer": after.checkpointer()})
        state = await app.aget_state({"configurable": {"thread_id": "ada"}})
        assert state.values["heard"] == ["hold", "later"]

    go(main())


def test_a_run_is_not_taken_before_its_lease_is_over(near: Storage) -> None:
    first, second = Talk("first"), Talk("second")

    async def main() -> None:
        database, line = near.open()
        async with working(database, first.graph) as gone:
            ticket = await gone.accept("ada", "hold")
            await eventually(lambda: first.under_way)
            vanish(gone, line)
        async with working(near.database(), second.graph, settings=settings(poll=0.02)) as other:
            # What comes later on other threads is done first; the run that is held waits.
            for n in range(5):
                await other.wait(await other.accept(f"t{n}", "hello"), 30)
            assert (await other.look(ticket)).run.state == OPEN  # type: ignore[union-attr]
            assert "ada" not in {thread for thread, _ in second.calls}

    go(main())


def test_what_a_process_only_accepts_another_works_on(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with (
            working(storage.database(), talk.graph, works=False) as front,
            working(storage.database(), talk.graph),
        ):
            ticket = await front.accept("ada", "hello")
            run = await front.wait(ticket, 30)
            assert (run.state, run.id) == ("done", ticket.id)
            with pytest.raises(TimeoutError):
                await front.wait(await front.accept("ada", "hello", debounce=600, max_wait=600), 0.1)

    go(main())


def test_whoever_accepts_within_a_run_starts_another_run(near: Storage, talk: Talk) -> None:
    """A node may speak to other threads: nothing of its own run gets into theirs."""

    async def main() -> None:
        runtime: Runtime
        tickets: list[Ticket] = []

        async def answer(said: list[str]) -> str:
            if said == ["tell bob"]:
                tickets.append(await runtime.accept("bob", "from ada"))
            return " + ".join(said)

        talk._answer = answer  # type: ignore[method-assign, assignment]
        database = near.database()
        async with working(database, talk.graph) as runtime:
            first = await runtime.accept("ada", "tell bob")
            assert (await runtime.wait(first, 30)).state == "done"
            assert (await runtime.wait(tickets[0], 30)).state == "done"
        assert await spoken(database, talk.graph, "bob") == ["from ada"] * 2
        assert await spoken(database, talk.graph, "ada") == ["tell bob"] * 2

    go(main())


def test_threads_of_graphs_that_others_have_keep_no_worker_from_its_own(memory: Storage, talk: Talk) -> None:
    """They are due all the time, for whoever has their graph."""
    other = Talk("other")

    async def main() -> None:
        graphs = {"mine": talk.graph, "other": other.graph}
        few = settings(concurrency=2, poll=0.02)
        async with working(memory.database(), graphs, works=False) as front:
            for n in range(2):
                await front.accept(f"t{n}", "hello", graph="other")
            ticket = await front.accept("ada", "hello", graph="mine")
            async with working(memory.database(), {"mine": talk.graph}, settings=few):
                assert (await front.wait(ticket, 4)).state == "done"
        assert other.calls == []

    go(main())


def test_replies_that_nobody_here_sends_keep_no_worker_from_its_runs(memory: Storage, talk: Talk) -> None:
    """Replies whose channel is another process's, or nobody's because people look at them, are due always."""

    async def main() -> None:
        few = settings(concurrency=2, poll=0.02)
        async with working(memory.database(), talk.graph, settings=few) as runtime:
            for n in range(2):
                await runtime.wait(await runtime.accept(f"t{n}", "hello", channel="web"), 30)
        async with working(memory.database(), talk.graph, works=False) as front:
            ticket = await front.accept("ada", "hello", channel="web")
            async with working(memory.database(), talk.graph, settings=few):
                assert (await front.wait(ticket, 4)).state == "done"

    go(main())


def test_whoever_waits_for_a_run_that_ended_waits_for_no_other(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        brief = settings(drain=0.1)
        async with working(memory.database(), talk.graph, settings=brief) as runtime:
            tickets = [await runtime.accept("ada", f"m{n}", coalesce=False) for n in range(3)]
            for ticket in reversed(tickets):
                await runtime.wait(ticket, 30)
            await runtime.accept("ada", "hold")
            await eventually(lambda: talk.under_way)
            for ticket in tickets:
                assert (await runtime.wait(ticket, 60)).id == ticket.id
            talk.gate.set()

    go(main())


def test_a_thread_with_much_to_say_leaves_rows_for_each_message(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph) as runtime:
            tickets = [await runtime.accept("ada", f"m{n}") for n in range(30)]
            for ticket in tickets:
                await runtime.wait(ticket, 30)
            spans = [(r.first, r.last) for r in reversed(await runtime.runs("ada"))]
        assert [n for first, last in spans for n in range(first, last + 1)] == list(range(1, 31))
        assert len(near.rows("ada", INBOX)) == 30
        assert len(near.rows("ada", RUN)) == len(spans) == len(talk.calls)

    go(main())


@pytest.mark.parametrize("body", [b"{", b"[]"])
def test_a_message_that_cannot_be_read_holds_up_its_own_thread_alone(
    near: Storage, talk: Talk, body: bytes
) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph, works=False) as front:
            await front.accept("damaged", "lost")
        (record,) = near.rows("damaged", INBOX)
        put = Put(INBOX, record.key, record.fields, body)
        assert near.driver.perform(Commit(Partition("", "damaged"), (put,))) == Committed()
        heard = Heard()
        async with working(near.database(), talk.graph, observers=[heard]) as runtime:
            for n in range(3):
                assert (await runtime.wait(await runtime.accept(f"sound {n}", "hello"))).state == "done"
            await eventually(lambda: heard.count("worker.error") > 0)
            errors = [fields for name, fields in heard.events if name == "worker.error"]
            assert {(fields["thread"], fields["error"]) for fields in errors} == {("damaged", "Corrupt")}
            ticket = Ticket("damaged", 1, "", False, "")
            with pytest.raises(Corrupt, match="thread 'damaged': inbox '1'"):
                await runtime.look(ticket)
            assert {finding.thread_id for finding in database.fsck()} == {"damaged"}

    go(main())
