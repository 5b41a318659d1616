"""What is stored is accepted, whatever fails in this process after the commit.

Covers perdure.runtime.accepting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from perdure.errors import Unavailable
from perdure.runtime import Runtime, Ticket
from perdure.runtime.crons import Due
from perdure.runtime.notifications import Notifications
from perdure.runtime.worker.dispatch import Dispatch
from perdure.runtime.worker.runner import Runner
from tests.runtime.graphs import Heard, Storage, Talk, go, settings, working


async def accept(runtime: Runtime) -> Ticket:
    return await runtime.accept("ada", "hello")


async def debounce(runtime: Runtime) -> Ticket:
    return await runtime.accept("ada", "hello", debounce=0.02)


async def postpone(runtime: Runtime) -> Ticket:
    return await runtime.submit("ada", {"messages": [("user", "hello")]}, delay=0.02)


def fail(*_: object, **__: object) -> None:
    raise AttributeError("a defect")


async def be_away(*_: object, **__: object) -> None:
    raise Unavailable("the database is away")


def errors(heard: Heard) -> list[tuple[object, object]]:
    return [(fields["thread"], fields["error"]) for name, fields in heard.events if name == "worker.error"]


@pytest.mark.parametrize(
    ("way", "failing"),
    [
        (accept, "serve_reserved"),
        (debounce, "serve_later"),
        (debounce, "schedule"),
        (postpone, "serve_later"),
        (postpone, "schedule"),
    ],
)
def test_a_stored_message_is_accepted_though_its_run_cannot_be_scheduled(
    near: Storage,
    talk: Talk,
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[Runtime], Awaitable[Ticket]],
    failing: str,
) -> None:
    heard = Heard()

    async def main() -> None:
        quick = settings(poll=0.05, lease=1.0)
        async with working(near.database(), talk.graph, settings=quick, observers=[heard]) as runtime:
            with monkeypatch.context() as patched:
                patched.setattr(Dispatch, failing, fail)
                ticket = await way(runtime)
            assert errors(heard) == [("ada", "AttributeError")]
            assert (await runtime.wait(ticket, 30)).state == "done"
            assert talk.calls == [("ada", "hello")]

    go(main())


@pytest.mark.parametrize("way", [accept, debounce, postpone])
def test_a_stored_message_is_accepted_though_the_workers_cannot_be_notified(
    near: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch, way: Callable[[Runtime], Awaitable[Ticket]]
) -> None:
    heard = Heard()

    async def main() -> None:
        async with working(near.database(), talk.graph, works=False, observers=[heard]) as runtime:
            with monkeypatch.context() as patched:
                patched.setattr(Notifications, "notify_due", fail)
                ticket = await way(runtime)
            assert errors(heard) == [("ada", "AttributeError")]
            async with working(near.database(), talk.graph):
                assert (await runtime.wait(ticket, 30)).state == "done"

    go(main())


def test_a_stored_cron_is_created_though_it_cannot_be_scheduled(
    memory: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()

    async def main() -> None:
        async with working(memory.database(), talk.graph, observers=[heard]) as runtime:
            with monkeypatch.context() as patched:
                patched.setattr(Dispatch, "schedule", fail)
                cron = await runtime.crons.create({}, 1)
                await runtime.crons.change(cron.id, lambda held: Due(held.body, 2))
            assert [held.id for held in await runtime.crons.read_all()] == [cron.id]
            assert len(errors(heard)) == 2

    go(main())


def test_a_message_that_is_claimed_as_the_worker_stops_is_accepted_though_the_claim_cannot_be_released(
    memory: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()

    async def main() -> None:
        database, line = memory.open()
        async with working(database, talk.graph, observers=[heard]) as runtime:
            dispatch = runtime._worker.dispatch
            line.on_commit = lambda number, when: setattr(dispatch, "is_stopping", True)
            monkeypatch.setattr(Runner, "hand_back", be_away)
            ticket = await runtime.accept("ada", "hello")
            assert (await runtime.look(ticket)).message.id == ticket.id
        assert errors(heard) == [("ada", "Unavailable")]

    go(main())
