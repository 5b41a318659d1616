"""What is asked of a run between its claim and its start: it is done as soon as the run starts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.model.messages import INTERRUPTED
from perdure.model.ops import Commit, Drop, Put
from perdure.model.program import Effect
from perdure.model.records import LANE
from perdure.runtime import Options, Runtime, StreamOptions
from tests.runtime.graphs import (
    Heard,
    Line,
    Storage,
    Talk,
    eventually,
    go,
    settings,
    spoken,
    vanish,
    working,
)
from tests.runtime.test_steering import Tools

LONG = settings(lease=600.0)
"""No renewal of a lease helps within the time of a test."""


class Opening:
    """Holds up each run of a runtime after its claim: ``begun`` is set, and it goes on with ``gate``."""

    def __init__(self, runtime: Runtime) -> None:
        self.begun, self.gate = asyncio.Event(), asyncio.Event()
        runner = runtime._worker.runner
        opened = runner._open_buffer

        async def late(held: object, options: object) -> None:
            self.begun.set()
            await self.gate.wait()
            await opened(held, options)  # type: ignore[arg-type]

        runner._open_buffer = late  # type: ignore[method-assign]


@pytest.mark.parametrize("is_known", [False, True], ids=["claimed later", "claimed at once"])
@pytest.mark.parametrize("is_far", [False, True], ids=["here", "elsewhere"])
def test_a_run_that_is_cancelled_before_it_starts_never_does(
    near: Storage, talk: Talk, is_known: bool, is_far: bool
) -> None:
    async def main() -> None:
        database = near.database()
        async with (
            working(database, talk.graph, settings=LONG) as runtime,
            working(near.database(), talk.graph, works=False) as front,
        ):
            if is_known:
                await runtime.wait(await runtime.accept("ada", "one"), 30)
            opening = Opening(runtime)
            ticket = await runtime.accept("ada", "hold two")
            await opening.begun.wait()
            assert await (front if is_far else runtime).cancel("ada", ticket.id)
            if is_far:
                # What a notification of the database does.
                runtime._worker.runner.leases.asked(lambda partition: partition.thread == "ada")
            opening.gate.set()
            assert (await runtime.wait(ticket, 30)).state == INTERRUPTED
        assert "echo: hold two" not in await spoken(database, talk.graph, "ada")
        if not is_far:
            assert "hold two" not in [text for _, text in talk.calls]

    go(main())


def test_a_message_that_steers_is_seen_by_a_run_that_has_not_started(near: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        async with working(near.database(), tools.graph, settings=LONG) as runtime:
            opening = Opening(runtime)
            gate = tools.hold("model", 1)
            first = await runtime.accept("ada", "one")
            await opening.begun.wait()
            second = await runtime.accept("ada", "two", strategy="steer")
            opening.gate.set()
            await eventually(lambda: tools.at("model", 1))
            (under_way,) = runtime._worker.runner.leases.working.values()
            steering = under_way.steering
            await eventually(lambda: steering.control.is_wanted or steering.taking.taken)
            gate.set()
            assert (await runtime.wait(second, 30)).id == first.id

    go(main())


def test_a_thread_that_is_followed_before_its_run_starts_is_heard_while_it_goes_on(
    near: Storage, talk: Talk
) -> None:
    async def main() -> None:
        streams = Options(stream=StreamOptions(modes=("values",), kept=False))
        async with (
            working(near.database(), talk.graph, settings=LONG, name="works") as runtime,
            working(near.database(), talk.graph, works=False) as looks,
        ):
            opening = Opening(runtime)
            said = {"messages": [("user", "hold on")]}
            ticket = await runtime.submit("ada", said, options=streams)
            await opening.begun.wait()
            events = looks.follow_thread("ada", after=0)
            first = asyncio.ensure_future(anext(events))
            await eventually(lambda: looks._context.subscriptions._noted)
            # What a notification of the database does.
            runtime._worker.runner.keep_buffers(lambda partition: partition.thread == "ada")
            opening.gate.set()
            await eventually(lambda: talk.under_way)
            assert (await asyncio.wait_for(first, 30)).name == "metadata"
            assert talk.under_way
            talk.gate.set()
            await runtime.wait(ticket, 30)
            await events.aclose()  # type: ignore[attr-defined]

    go(main())


def test_a_worker_that_is_stopped_releases_a_run_that_has_not_started(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        heard = Heard()
        brief = settings(lease=600.0, drain=0.0)
        async with working(near.database(), talk.graph, settings=brief, observers=[heard]) as runtime:
            opening = Opening(runtime)
            runner = runtime._worker.runner
            hand_over = runner.hand_over

            def handed_over() -> None:
                hand_over()
                opening.gate.set()

            runner.hand_over = handed_over  # type: ignore[method-assign]
            ticket = await runtime.accept("ada", "hold one")
            await opening.begun.wait()
        assert heard.count("run.handed_over") == 1
        assert heard.count("worker.left_behind") == 0
        talk.gate.set()
        async with working(near.database(), talk.graph) as runtime:
            assert (await runtime.wait(ticket, 30)).state == "done"

    go(main())


class Late:
    """Holds up the answer to the first request of a line that asks a run to stop, or drops its thread:
    ``stored`` is set when it is applied, and it goes on with ``gate``."""

    def __init__(self, line: Line) -> None:
        self.stored, self.gate = asyncio.Event(), asyncio.Event()
        perform = line.aperform

        async def late(effect: Effect[Any]) -> Any:
            answer = await perform(effect)
            if self._is_meant(effect) and not self.stored.is_set():
                self.stored.set()
                await self.gate.wait()
            return answer

        line.aperform = late  # type: ignore[method-assign]

    @staticmethod
    def _is_meant(effect: Effect[Any]) -> bool:
        if isinstance(effect, Drop):
            return True
        ops = effect.ops if isinstance(effect, Commit) else ()
        return any(isinstance(op, Put) and op.kind is LANE and op.fields.get("stop") for op in ops)


@pytest.mark.parametrize("is_started", [False, True], ids=["starting", "under way"])
@pytest.mark.parametrize("how", ["cancel", "interrupt", "delete"])
def test_a_request_to_stop_ends_no_later_run(memory: Storage, talk: Talk, how: str, is_started: bool) -> None:
    """A run is asked to stop, and the answer of the database comes when the next run has begun."""

    async def main() -> None:
        database, line = memory.open()
        async with working(database, talk.graph, settings=LONG) as runtime:
            first = await runtime.accept("ada", "hold one")
            await eventually(lambda: talk.under_way)
            late = Late(line)
            asking: asyncio.Task[Any] = asyncio.create_task(
                runtime.cancel("ada", first.id)
                if how == "cancel"
                else runtime.accept("ada", "hold two", strategy="interrupt")
                if how == "interrupt"
                else runtime.delete("ada")
            )
            await late.stored.wait()
            opening = Opening(runtime)
            talk.gate.set()
            if how != "delete":
                assert (await runtime.wait(first, 30)).state == "done"
            await eventually(lambda: not runtime._worker.runner.leases.working)
            talk.gate.clear()
            second = await runtime.accept("ada", "hold two") if how != "interrupt" else None
            await opening.begun.wait()
            if is_started:
                opening.gate.set()
                await eventually(lambda: talk.under_way)
            late.gate.set()
            second = second or await asking
            await asking
            opening.gate.set()
            talk.gate.set()
            assert (await runtime.wait(second, 30)).state == "done"
            assert not runtime._worker.runner.leases.starting

    go(main())


def test_the_runs_of_a_process_that_is_known_to_have_ended_continue_at_once(
    near: Storage, talk: Talk
) -> None:
    async def main() -> None:
        database, line = near.open()
        heard = Heard()
        ended = Runtime(database, talk.graph, settings=LONG, observers=[])
        await ended.__aenter__()
        ticket = await ended.accept("ada", "hold one")
        await eventually(lambda: talk.under_way == 1)
        vanish(ended, line)
        talk.gate.set()
        async with working(near.database(), talk.graph, settings=LONG, observers=[heard]) as runtime:
            assert await runtime.end_leases_of([runtime.name, "nobody"]) == 0
            assert heard.count("leases.ended") == 0
            assert await runtime.end_leases_of([ended.name]) == 1
            assert (await runtime.wait(ticket, 60)).state == "done"
            assert [fields for name, fields in heard.events if name == "leases.ended"] == [{"count": 1}]
        assert await spoken(near.database(), talk.graph, "ada") == ["hold one", "echo: hold one"]

    go(main())
