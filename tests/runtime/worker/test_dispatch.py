"""A worker among threads that it cannot serve or that fail each time serves the others, and does not spin.

Covers perdure.runtime.worker.worker.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterator

import pytest

from perdure.errors import Unavailable
from perdure.model.ops import Commit, Put
from perdure.model.records import DOCUMENT, EPOCH, Partition
from perdure.model.runs.messages import Message
from perdure.model.runs.queue import IN, LATER
from perdure.runtime import Runtime
from perdure.runtime.worker.backlog import Foreign, Limited
from perdure.runtime.worker.dispatch import Dispatch
from perdure.testing.conformance import rows
from tests.runtime.graphs import Heard, Storage, Talk, eventually, go, settings, stored, working

pytestmark = pytest.mark.usefixtures("each_loop")

FULL = os.environ.get("PERDURE_CHAOS") == "full"
POISONED = 40


@pytest.fixture(params=["memory", "sqlite"])
def near(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


def lane(name: str, **fields: object) -> Put:
    """A lane that is due since long."""
    put = rows.lane(name, 1)
    base = {
        "last": 1,
        "bound": 0,
        "since": 1,
        "ready_at": 1,
        "run_id": None,
        "owner": None,
        "lease_until": None,
    }
    empty = {"retry_at": None, "waiting": None, "stop": None, "epoch": 0}
    return put._replace(fields={**put.fields, **base, **empty, **fields})


def poison(storage: Storage, n: int) -> None:
    """A thread that fails in one of several ways each time that it is looked at."""
    message = Message("m", {"message": {"role": "user", "content": "x"}}, "agent", seq=1).put()
    ways: tuple[tuple[Put, ...], ...] = (
        (lane("inbox"),),
        (lane("inbox"), message._replace(body=b"\xff")),
        (lane("inbox", run_id="gone", retry_at=1), message),
        (lane("outbox"),),
        (lane("unknown"),),
        (lane("inbox"), message._replace(body=b'{"id": "m", "payload": {}, "options": {"odd": 1}}')),
        (lane(LATER), Put(DOCUMENT, (LATER, "x"), {"updated_at": 1}, b"\xff", version=1)),
        (lane("inbox"), message, Put(EPOCH, (), {"open_run": "other"}, version=(1 << 53) - 1)),
    )
    ops = ways[n % len(ways)]
    storage.driver.perform(Commit(Partition("", f"poisoned{n:02}"), ops))


def test_threads_that_fail_each_time_hold_up_nobody_and_do_not_spin(near: Storage, talk: Talk) -> None:
    heard = Heard()

    async def main() -> None:
        for n in range(POISONED):
            poison(near, n)
        database, line = near.open()
        few = settings(concurrency=4, poll=0.05)
        async with working(near.database(), talk.graph, works=False) as front:
            healthy = [await front.accept(f"healthy{n}", "hello") for n in range(10)]
            async with working(database, talk.graph, settings=few, observers=[heard]) as worker:
                for ticket in healthy:
                    assert (await front.wait(ticket, 30)).state == "done"
                # Each is tried again at growing intervals: the requests of one look are few by then.
                late = await front.accept("late", "hello")
                assert (await front.wait(late, 30)).state == "done"
                before = line.count
                ticket = await worker.accept("told", "hello")
                await worker.wait(ticket, 30)
                assert line.count - before < 4 * POISONED
        failed = {fields["thread"] for name, fields in heard.events if name == "worker.error"}
        assert len(failed) >= POISONED // 2, "each is reported by its name"
        counts = {
            (fields["lane"], fields["error"]): fields["threads"]
            for name, fields in heard.events
            if name == "worker.failing_threads"
        }
        assert counts["unknown", "KeyError"] == POISONED // 8
        assert counts["inbox", "Corrupt"] > 0
        assert heard.count("worker.failing") == len(counts), "each is warned of at once, and once a minute"

    go(main())


@pytest.mark.parametrize("foreign", [500, 10_000 if FULL else 1_200])
@pytest.mark.parametrize("what", ["graph", "channel"])
def test_threads_of_other_workers_hold_up_nobody_and_are_reported(
    near: Storage, talk: Talk, foreign: int, what: str
) -> None:
    heard = Heard()

    async def main() -> None:
        message = Message("m", {"message": {"role": "user", "content": "x"}}, "of others", seq=1).put()
        reply = rows.reply(1)
        fields = {**reply.fields, "channel": "of others", "state": "ready"}
        reply = reply._replace(fields=fields, body=b'{"payload": {}, "error": null}')
        for n in range(foreign):
            ops = (lane("inbox"), message) if what == "graph" else (lane("outbox"), reply)
            near.driver.perform(Commit(Partition("", f"foreign{n}"), ops))
        async with working(near.database(), talk.graph, works=False) as front:
            first = await front.accept("ada", "hello")
            few = settings(concurrency=4, poll=0.05)
            async with working(near.database(), talk.graph, settings=few, observers=[heard]):
                assert (await front.wait(first, 30)).state == "done"
                second = await front.accept("bob", "hello")
                assert (await front.wait(second, 30)).state == "done"
        counts = [fields for name, fields in heard.events if name == "worker.unserved_threads"]
        assert counts[-1]["threads"] > foreign // 2
        assert counts[-1][what] == "of others"
        assert heard.count("worker.unserved") == 1, "it is told once a minute"
        rest = [row for n in range(0, foreign, 97) for row in near.rows(f"foreign{n}")]
        assert len(rest) == 2 * len(range(0, foreign, 97))

    go(main())


def test_a_worker_that_stops_waits_for_what_was_claimed_while_its_queue_was_served(
    memory: Storage, talk: Talk
) -> None:
    async def main() -> None:
        begun: list[asyncio.Event] = []

        async def serve(partition: Partition) -> bool:
            begun.append(asyncio.Event())
            await begun[-1].wait()
            return False

        dispatch = Dispatch(Runtime(memory.database(), talk.graph)._context)
        dispatch.start({IN: serve})
        due = (Partition("", "ada"), IN)
        assert dispatch.reserve(due)
        dispatch.serve_soon(due)
        dispatch.serve_reserved(due)
        await eventually(lambda: len(begun) == 1)
        dispatch.stop()
        idle = asyncio.create_task(dispatch.wait_until_idle(60))
        await asyncio.sleep(0)
        begun[0].set()
        await eventually(lambda: len(begun) == 2)
        assert await dispatch.wait_until_idle(0) == 1
        assert not idle.done()
        begun[1].set()
        assert await idle == 0

    go(main())


def test_what_was_claimed_while_a_caller_had_its_queue_served_is_served_after_a_failure(
    memory: Storage, talk: Talk
) -> None:
    async def main() -> None:
        dispatch = Dispatch(Runtime(memory.database(), talk.graph)._context)
        due, begun = (Partition("", "ada"), IN), list[Partition]()

        async def serve(partition: Partition) -> bool:
            begun.append(partition)
            if len(begun) == 1:
                dispatch.serve_reserved(due)
                raise Unavailable("the database is away")
            return False

        dispatch.start({IN: serve})
        assert dispatch.reserve(due)
        with pytest.raises(Unavailable):
            await dispatch.serve(due, lambda: None, None)
        await eventually(lambda: len(begun) == 2)
        assert await dispatch.wait_until_idle(60) == 0

    go(main())


def test_what_comes_as_a_thread_was_served_waits_for_no_poll(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph, settings=settings(poll=3600.0)) as runtime:
            dispatch, go_on = runtime._worker.dispatch, asyncio.Event()
            serve = dispatch._work[IN]

            async def end_late(partition: Partition) -> bool | Foreign | Limited | None:
                more = await serve(partition)
                await go_on.wait()
                return more

            dispatch._work = {**dispatch._work, IN: end_late}
            await runtime.wait(await runtime.accept("ada", "one"))
            second = await runtime.accept("ada", "two")
            dispatch._backlog.looked_at = -math.inf
            go_on.set()
            assert (await runtime.wait(second, 30)).state == "done"

    go(main())


def test_a_runtime_that_was_not_entered_accepts_without_a_try_to_work(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        heard = Heard()
        database = memory.database()
        runtime = Runtime(database, talk.graph, observers=[heard])
        ticket = await runtime.accept("ada", "one")
        dispatch = runtime._worker.dispatch
        assert await dispatch.wait_until_idle(30) == 0
        assert heard.count("worker.error") == 0
        async with working(database, talk.graph) as worker:
            assert (await worker.wait(ticket, 30)).state == "done"

    go(main())


@pytest.mark.parametrize("delay", [1e-9, 0.0001, 0.0004, 0.0006, 0.0014])
def test_a_message_that_is_due_in_a_moment_is_served_then_and_delays_no_later_one(
    near: Storage, talk: Talk, delay: float
) -> None:
    heard = Heard()

    async def main() -> None:
        seldom = settings(poll=3600.0)
        async with working(near.database(), talk.graph, settings=seldom, observers=[heard]) as runtime:
            first = await runtime.submit("ada", {"messages": [("user", "one")]}, delay=delay)
            assert (await runtime.wait(first, 30)).state == "done"
            second = await runtime.submit("bob", {"messages": [("user", "two")]}, delay=0.05)
            assert (await runtime.wait(second, 30)).state == "done"
            third = await runtime.accept("eve", "three", debounce=0.05)
            assert (await runtime.wait(third, 30)).state == "done"
        assert heard.count("worker.error") == 0

    go(main())


def test_only_timers_that_have_not_ended_are_kept(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        served: list[str] = []

        async def serve(partition: Partition) -> bool:
            served.append(partition.thread)
            return False

        dispatch = Dispatch(Runtime(memory.database(), talk.graph)._context)
        dispatch.start({IN: serve})
        for delay in (0.0, 0.0001, 0.001, 0.002):
            dispatch.serve_later((Partition("", f"after {delay}"), IN), delay)
        dispatch.serve_later((Partition("", "late"), IN), 3600.0)
        await eventually(lambda: len(served) == 4)
        assert len(dispatch._timers) == 1
        dispatch.stop()
        assert not dispatch._timers
        assert "late" not in served

    go(main())
