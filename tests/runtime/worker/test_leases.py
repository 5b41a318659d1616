"""What is asked of a run between its claim and its start is done as soon as the run starts; after its lease a
run begins nothing that another worker may have done."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from perdure.model.ops import Commit, Drop, Fetch, Put
from perdure.model.program import Effect
from perdure.model.records import HEAD, LANE
from perdure.model.runs.messages import INTERRUPTED
from perdure.runtime import Options, Runtime, StreamOptions, Ticket, effects, effects_sync
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
from tests.runtime.nodes.test_steering import Tools

LONG = settings(lease=600.0)
"""No renewal of a lease helps within the time of a test."""


class Opening:
    """Holds up each run of a runtime after its claim: ``begun`` is set, and it goes on with ``gate``."""

    def __init__(self, runtime: Runtime) -> None:
        self.begun, self.gate = asyncio.Event(), asyncio.Event()
        runner = runtime._worker.runner
        opened = runner.buffers.open

        async def late(held: object, options: object) -> None:
            self.begun.set()
            await self.gate.wait()
            await opened(held, options)  # type: ignore[arg-type]

        runner.buffers.open = late  # type: ignore[method-assign]


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
                runtime._worker.runner.leases.renew_now(lambda partition: partition.thread == "ada")
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
            runtime._worker.runner.buffers.start_storing(lambda partition: partition.thread == "ada")
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


def test_a_renewal_that_is_not_answered_delays_no_other_lease(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = near.open()
        aperform = line.aperform

        async def silent(effect: Effect[Any]) -> Any:
            is_renewal = isinstance(effect, Commit) and any(
                isinstance(op, Put) and op.kind is LANE for op in effect.ops
            )
            if is_renewal and talk.under_way == 2 and effect.partition.thread == "ada":  # type: ignore[attr-defined]
                await asyncio.Event().wait()
            return await aperform(effect)

        async with working(database, talk.graph, settings=settings(lease=1.5)) as runtime:
            leases = runtime._worker.runner.leases
            for thread in ("ada", "bob"):
                await runtime.accept(thread, "hold one")
            await eventually(lambda: talk.under_way == 2)
            line.aperform = silent  # type: ignore[method-assign]
            of_ada, of_bob = sorted(leases.working, key=lambda partition: partition.thread)
            # Twice as long as a lease lasts.
            await asyncio.sleep(3)
            assert not leases.is_confirmed(leases.working[of_ada].held)
            assert leases.is_confirmed(leases.working[of_bob].held)
            assert leases.working[of_bob].how == ""
            line.aperform = aperform  # type: ignore[method-assign]
            talk.gate.set()

    go(main())


class LateAnswers:
    """Holds up the answers to a line's requests once ``is_away``, as a database does that performs what it
    has received and is not heard: they come with ``answer``. Renewals of leases that are sent before then are
    not received at all."""

    def __init__(self, line: Line) -> None:
        self.is_away = False
        self.held = list[tuple[type[Effect[Any]], str]]()
        self._back, self._back_in_threads = asyncio.Event(), threading.Event()
        aperform, perform = line.aperform, line.perform

        async def alate(effect: Effect[Any]) -> Any:
            ops = effect.ops if isinstance(effect, Commit) and self._holds() else ()
            if any(isinstance(op, Put) and op.kind is LANE for op in ops):
                await asyncio.Event().wait()
            answer = await aperform(effect)
            if self._holds():
                self._hold(effect)
                await self._back.wait()
            return answer

        def late(effect: Effect[Any]) -> Any:
            answer = perform(effect)
            if self._holds():
                self._hold(effect)
                assert self._back_in_threads.wait(30)
            return answer

        line.aperform, line.perform = alate, late  # type: ignore[method-assign]

    async def wait(self, kind: type[Effect[Any]], thread: str = "ada") -> None:
        """Wait until the answer to a kind of request for a thread is held up."""
        await eventually(lambda: (kind, thread) in self.held)

    def _hold(self, effect: Effect[Any]) -> None:
        if isinstance(effect, Commit | Fetch):
            self.held.append((type(effect), effect.partition.thread))

    def _holds(self) -> bool:
        return self.is_away and not self._back.is_set()

    def answer(self) -> None:
        self._back.set()
        self._back_in_threads.set()

    async def go_away(self) -> None:
        self.is_away = True


class Steps(TypedDict):
    text: str


class TwoSteps:
    """A graph of two nodes. ``begun`` has the name of its process and of the node for each time that a node
    begins: once ``in_first`` is awaited, and where ``second`` calls the function that it is given."""

    def __init__(self, begun: list[str], name: str) -> None:
        self._begun, self._name = begun, name
        self.in_first: Callable[[], Awaitable[object]] = _nothing
        self.second: Callable[[Callable[[], None]], Awaitable[object] | None] = lambda begin: begin()
        self.is_plain = False

    async def _note(self, state: Steps) -> Steps:
        self._begin("note")
        await self.in_first()
        return {"text": "noted"}

    async def _answer(self, state: Steps) -> Steps:
        waiting = self.second(partial(self._begin, "answer"))
        if waiting is not None:
            await waiting
        return {"text": "answered"}

    def _plain_answer(self, state: Steps) -> Steps:
        self.second(partial(self._begin, "answer"))
        return {"text": "answered"}

    def _begin(self, node: str) -> None:
        self._begun.append(f"{self._name}: {node}")

    @property
    def graph(self) -> Any:
        builder = StateGraph(Steps).add_node("note", self._note)
        builder.add_node("answer", self._plain_answer if self.is_plain else self._answer)
        return builder.add_edge(START, "note").add_edge("note", "answer").compile()


async def _nothing() -> None:
    pass


SHORT = settings(lease=0.5, poll=0.05)


async def continued(
    near: Storage, runtime: Runtime, ticket: Ticket, begun: list[str], late: Callable[[], None]
) -> tuple[str, int]:
    """Let another worker end a run, then call ``late``; the run's state and attempts."""
    async with working(
        near.database(), TwoSteps(begun, "other").graph, settings=SHORT, name="other"
    ) as second:
        run = await second.wait(ticket, 30)
        late()
        leases = runtime._worker.runner.leases
        await eventually(lambda: not leases.working and not leases.starting)
    return run.state, run.attempts


def test_a_commit_that_is_answered_after_the_lease_begins_no_step_of_another_worker(near: Storage) -> None:
    """The database performs a step's commit, and answers when another worker has ended the run."""

    async def main() -> None:
        database, line = near.open()
        begun = list[str]()
        first, late = TwoSteps(begun, "first"), LateAnswers(line)
        first.in_first = late.go_away
        async with working(database, first.graph, settings=SHORT, name="first") as runtime:
            ticket = await runtime.submit("ada", {"text": "hello"})
            await late.wait(Commit)
            ended = await continued(near, runtime, ticket, begun, late.answer)
        assert (*ended, begun) == ("done", 2, ["first: note", "other: answer"])

    go(main())


def test_a_load_that_is_answered_after_the_lease_begins_no_step_of_another_worker(near: Storage) -> None:
    """The state from which a second attempt goes on comes when another worker has ended the run."""

    async def main() -> None:
        database, line = near.open()
        begun = list[str]()
        first, late = TwoSteps(begun, "first"), LateAnswers(line)
        async with working(database, first.graph, settings=SHORT, name="first") as runtime:
            opening = Opening(runtime)
            opening.gate.set()

            def fail(begin: Callable[[], None]) -> None:
                first.second = lambda begin: begin()
                opening.gate.clear()
                raise RuntimeError("once")

            first.second = fail
            ticket = await runtime.submit("ada", {"text": "hello"})
            await eventually(lambda: begun and not opening.gate.is_set())
            opening.begun.clear()
            await opening.begun.wait()
            loads = 0

            async def away_from_second(effect: Effect[Any]) -> None:
                nonlocal loads
                if isinstance(effect, Fetch) and any(item.kind is HEAD for item in effect.items):
                    loads += 1  # the first one is the worker's own, the second one the graph's
                    late.is_away = loads > 1

            line.before = away_from_second
            opening.gate.set()
            await late.wait(Fetch)
            ended = await continued(near, runtime, ticket, begun, late.answer)
        assert (*ended, begun) == ("done", 3, ["first: note", "other: answer"])

    go(main())


def test_a_run_that_starts_after_its_lease_begins_nothing(near: Storage) -> None:
    """The lease ends while a worker prepares the run that it has claimed."""

    async def main() -> None:
        begun = list[str]()
        first = TwoSteps(begun, "first").graph
        async with working(near.database(), first, settings=SHORT, name="first") as runtime:
            opening = Opening(runtime)
            ticket = await runtime.submit("ada", {"text": "hello"})
            await opening.begun.wait()
            ended = await continued(near, runtime, ticket, begun, opening.gate.set)
        assert (*ended, begun) == ("done", 2, ["other: note", "other: answer"])

    go(main())


def test_a_lease_lasts_from_its_claim_not_from_the_start_of_the_run(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph, settings=LONG) as runtime:
            opening, before = Opening(runtime), time.monotonic()
            ticket = await runtime.accept("ada", "hold one")
            await opening.begun.wait()
            claimed = time.monotonic()
            await asyncio.sleep(0.1)
            opening.gate.set()
            await eventually(lambda: talk.under_way)
            (under_way,) = runtime._worker.runner.leases.working.values()
            assert before - 0.05 <= under_way.confirmed_at <= claimed + 0.05
            talk.gate.set()
            await runtime.wait(ticket, 30)

    go(main())


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
def test_a_side_effect_is_not_called_if_another_worker_may_have(near: Storage, is_plain: bool) -> None:
    """The database answers that an effect has no record yet when another worker has ended the run."""

    async def main() -> None:
        database, line = near.open()
        heard, begun = Heard(), list[str]()
        first, late = TwoSteps(begun, "first"), LateAnswers(line)

        def called_late(begin: Callable[[], None]) -> Awaitable[object] | None:
            async def abegin() -> None:
                begin()

            late.is_away = True
            if is_plain:
                return effects_sync(begin, label="begin")()
            return effects(abegin, label="begin")()

        first.is_plain, first.second = is_plain, called_late
        observed: Any = {"settings": SHORT, "observers": [heard], "name": "first"}
        async with working(database, first.graph, **observed) as runtime:
            ticket = await runtime.submit("ada", {"text": "hello"})
            await late.wait(Fetch)
            ended = await continued(near, runtime, ticket, begun, late.answer)
        assert (*ended, begun) == ("done", 2, ["first: note", "other: answer"])
        assert (heard.count("run.lost"), heard.count("run.attempt_failed")) == (1, 0)

    go(main())


@pytest.mark.parametrize("how", ["answered late", "blocked"])
def test_a_run_that_nobody_took_goes_on_after_its_lease(near: Storage, how: str) -> None:
    """The only worker does not hear of a commit for longer than its lease, or its event loop stands still."""

    async def main() -> None:
        database, line = near.open()
        heard, begun = Heard(), list[str]()
        first, late = TwoSteps(begun, "first"), LateAnswers(line)

        async def blocked() -> None:
            time.sleep(3 * SHORT.lease)  # noqa: ASYNC251

        first.in_first = late.go_away if how == "answered late" else blocked
        observed: Any = {"settings": SHORT, "observers": [heard], "name": "first"}
        async with working(database, first.graph, **observed) as runtime:
            ticket = await runtime.submit("ada", {"text": "hello"})
            if how == "answered late":
                await late.wait(Commit)
                await asyncio.sleep(1.5 * SHORT.lease)
                late.answer()
            run = await runtime.wait(ticket, 30)
        assert (run.state, run.attempts, begun) == ("done", 1, ["first: note", "first: answer"])
        assert heard.count("run.lost") == 0

    go(main())
