"""Runtimes in several processes that tell each other: what is due begins, ends and stops long before anybody
would look, and nothing is said that tells who it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.handle import DatabaseHandle
from perdure.database.opening import open_database
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester
from perdure.runtime import Runtime
from perdure.runtime import notifications as tuning
from perdure.runtime import tenant as runtimes
from perdure.runtime.notifications import ENDED, STORED, Notifications, PollDelay
from perdure.storage.memory import MemoryDriver
from tests.runtime.graphs import WITHIN_S, Post, Talk, eventually, go, settings, working
from tests.servers import postgres, valkey

KEY = bytes(range(32))
BOUND_S = WITHIN_S
"""Long before anybody looks, and no promise."""
SELDOM = {"poll": 600.0, "lease": 600.0}
EMPTY: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "postgresql": postgres.empty,
    "redis": valkey.empty,
}


class Place:
    """A database that each process opens for itself."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: list[SyncDatabase] = []

    def database(self, **options: Any) -> SyncDatabase:
        bell = options.pop("notify", "on")
        database = open_database(f"{self.url}&notify={bell}", migrate=not self._opened, **options)
        self._opened.append(database)
        return database

    def close(self) -> None:
        for database in self._opened:
            database.close()


@pytest.fixture(params=EMPTY)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with EMPTY[request.param]() as url:
        place = Place(url)
        try:
            yield place
        finally:
            place.close()


@contextmanager
def seldom(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever waits for a run looks twice and then hardly ever."""
    with monkeypatch.context() as patch:
        patch.setattr(runtimes, "_WAIT_S", (600.0, 600.0))
        yield


async def listening(*databases: SyncDatabase) -> None:
    """Wait until every one of them hears all others. A listener that connects misses what was rung before."""
    for hearing in databases:
        heard: set[str] = set()
        stop = handle_of(hearing).listen(heard.add)
        for other in databases:
            word = f"ready:{id(other)}"
            async with asyncio.timeout(BOUND_S):
                while word not in heard:
                    handle_of(other).notify(word)
                    await asyncio.sleep(0.05)
        stop()


@pytest.mark.parametrize("quiet", [0.0, 0.4])
def test_a_message_begins_in_another_process_long_before_it_looks(
    place: Place, talk: Talk, quiet: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        here, there = place.database(), place.database()
        rare = settings(**SELDOM)
        async with (
            working(here, talk.graph, settings=rare, works=False) as front,
            working(there, talk.graph, settings=rare),
        ):
            await listening(here, there)
            for thread in ("ada", "bob"):
                for text in ("one", "two"):
                    ticket = await front.accept(thread, text, debounce=quiet)
                run = await front.wait(ticket, BOUND_S)
                assert run.state == "done"
                assert run.last == 2

    with seldom(monkeypatch):
        go(main())


def test_without_notifications_it_waits_for_the_next_look(place: Place, talk: Talk) -> None:
    async def main() -> None:
        here, there = place.database(), place.database(notify="off")
        rare = settings(**SELDOM)
        async with (
            working(here, talk.graph, settings=rare, works=False) as front,
            working(there, talk.graph, settings=rare) as back,
        ):
            await asyncio.sleep(0.2)
            ticket = await front.accept("ada", "one")
            with pytest.raises(TimeoutError):
                await front.wait(ticket, 2.0)
            assert talk.calls == []
            back._worker.dispatch._wake.set()
            assert (await front.wait(ticket, BOUND_S)).state == "done"

    go(main())


@pytest.mark.slow
def test_a_run_of_another_process_is_stopped_long_before_its_lease_is_renewed(
    place: Place, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        here, there = place.database(), place.database()
        rare = settings(**SELDOM)
        async with (
            working(here, talk.graph, settings=rare, works=False) as front,
            working(there, talk.graph, settings=rare),
        ):
            await listening(here, there)
            for thread, end in (("ada", "stop"), ("bob", "message"), ("eve", "delete")):
                ticket = await front.accept(thread, "hold on")
                await eventually(partial(talk.running.__getitem__, thread))
                if end == "stop":
                    assert await front.stop(thread, ticket.id)
                    run = await front.wait(ticket, BOUND_S)
                elif end == "message":
                    await front.accept(thread, "instead", strategy="interrupt")
                    run = await front.wait(ticket, BOUND_S)
                else:
                    await front.delete(thread)
                    async with asyncio.timeout(BOUND_S):
                        await eventually(lambda: not talk.under_way)
                    continue
                assert run.state == "interrupted"

    with seldom(monkeypatch):
        go(main())


def test_what_a_stopping_worker_hands_over_begins_elsewhere(
    place: Place, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        databases = [place.database() for _ in range(3)]
        rare = settings(**SELDOM, drain=0.0)
        other = Talk()
        async with working(databases[0], talk.graph, settings=rare, works=False) as front:
            async with working(databases[1], talk.graph, settings=rare):
                await listening(*databases[:2])
                ticket = await front.accept("ada", "hold on")
                await eventually(lambda: talk.under_way)
                second = Runtime(databases[2], other.graph, settings=rare, observers=[])
                await second.__aenter__()
                await listening(*databases)
            await eventually(lambda: other.under_way)
            other.gate.set()
            assert (await front.wait(ticket, BOUND_S)).state == "done"
            await second.__aexit__(None, None, None)

    with seldom(monkeypatch):
        go(main())


def test_what_is_due_in_a_moment_by_the_own_clock_is_found_in_a_moment(
    place: Place, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes read the time of the database a little differently."""

    async def main() -> None:
        here, there = place.database(), place.database()
        rare = settings(**SELDOM)
        async with (
            working(here, talk.graph, settings=rare, works=False) as front,
            working(there, talk.graph, settings=rare) as behind,
        ):
            await listening(here, there)
            clock = behind._context.clock
            await clock.now()
            clock._offset_us -= 400_000
            ticket = await front.accept("ada", "hello")
            assert (await front.wait(ticket, BOUND_S)).state == "done"

    with seldom(monkeypatch):
        go(main())


def test_a_worker_that_has_no_room_lets_others_know(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        here, there = place.database(), place.database()
        rare = settings(**SELDOM, concurrency=1)
        mine, theirs = Talk(), Talk()
        async with (
            working(here, mine.graph, settings=rare) as front,
            working(there, theirs.graph, settings=rare),
        ):
            await listening(here, there)
            first = await front.accept("ada", "hold")
            await eventually(lambda: mine.under_way)
            assert (await front.wait(await front.accept("bob", "hello"), BOUND_S)).state == "done"
            assert [thread for thread, _ in theirs.calls] == ["bob"]
            mine.gate.set()
            assert (await front.wait(first, BOUND_S)).state == "done"

    with seldom(monkeypatch):
        go(main())


def test_whoever_waits_for_events_hears_that_some_are_stored(place: Place) -> None:
    async def main() -> None:
        here, there = place.database(), place.database()
        teller, hearer = Notifications(handle_of(here), ""), Notifications(handle_of(there), "")
        thread, other = Partition("", "ada"), Partition("", "bob")
        hearer.listen()
        await listening(here, there)
        stored = hearer.expect(STORED, thread)
        ended = hearer.expect(ENDED, thread)
        others = hearer.expect(STORED, other)
        teller.notify(STORED, thread)
        await stored.wait(BOUND_S)
        assert stored.is_set
        assert not ended.is_set
        after = hearer.expect(STORED, thread)
        assert after is not stored
        teller.notify(ENDED, thread)
        await ended.wait(BOUND_S)
        await after.wait(BOUND_S)  # the last events are stored with the run's end
        assert ended.is_set
        assert after.is_set
        assert not others.is_set
        hearer.close()
        teller.close()

    go(main())


@pytest.mark.parametrize("key", [None, KEY], ids=["clear", "sealed"])
def test_words_tell_nothing_of_whom_they_are_about(place: Place, talk: Talk, key: bytes | None) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"tenant": "Canary Bank", "encryption_key": key}
        here, there = place.database(**options), place.database(**options)
        heard: list[str] = []
        post = Post()
        handle_of(there).listen(heard.append)
        async with (
            working(here, talk.graph, works=False, channels={"chat": post.channel()}) as front,
            working(there, talk.graph, channels={"chat": post.channel()}),
        ):
            await listening(here, there)
            await front.wait(await front.accept("canary thread", "canary text", channel="chat"))
            ticket = await front.accept("canary thread", "hold")
            await eventually(lambda: talk.under_way)
            await front.stop("canary thread", ticket.id)
            await front.wait(ticket)
            await eventually(lambda: {"in", "run", "stop"} <= {word.partition(":")[0] for word in heard})
        words = [word for word in heard if not word.startswith("ready:")]
        for word in words:
            kind, _, digest = word.partition(":")
            assert kind in ("in", "run", "stop", "ev")
            assert len(digest) == 16
            assert not set(digest) - set("0123456789abcdef")
        guess = DatabaseHandle(MemoryDriver(), tenant="", digest=Digester()).alias(
            "Canary Bank", "canary thread"
        )
        assert any(guess in word for word in words) is (key is None)

    go(main())


# ---------------------------------------------------------------- in one process


def test_names_do_not_run_into_each_other() -> None:
    database = DatabaseHandle(MemoryDriver(), tenant="", digest=Digester())
    aliases = {database.alias(*names) for names in (("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), ())}
    assert len(aliases) == 5
    assert database.alias("\ud800") == database.alias("\ud800")


class Told(DatabaseHandle):
    """A database whose bell is in its hand."""

    def __init__(self) -> None:
        super().__init__(MemoryDriver(), tenant="", digest=Digester())
        self.rung: list[str] = []
        self.tell: Callable[[str], None] = lambda word: None

    def notify(self, *words: str) -> None:
        self.rung += words

    def listen(self, heard: Callable[[str], None]) -> Callable[[], None]:
        self.tell = heard
        return lambda: None


def test_a_worker_is_roused_by_what_is_due_for_its_tenant() -> None:
    async def main() -> None:
        mine, everybody = Told(), Told()
        due: list[str] = []
        one, two = Notifications(mine, "acme"), Notifications(everybody, None)
        one.serve(lambda: due.append("one"), lambda is_meant: None, lambda is_meant: None)
        two.serve(lambda: due.append("two"), lambda is_meant: None, lambda is_meant: None)
        for tenant in ("acme", "other"):
            two.notify_due(Partition(tenant, "ada"))
        for word in everybody.rung:
            mine.tell(word)
            everybody.tell(word)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert due == ["one", "two", "two"]

    asyncio.run(main())


def test_what_is_due_later_is_told_when_it_is_due_and_once() -> None:
    async def main() -> None:
        told = Told()
        signals = Notifications(told, "")
        at = Partition("", "ada")
        for _ in range(5):
            signals.notify_due(at, 0.05)
        assert told.rung == []
        await eventually(lambda: told.rung)
        # By now, the other four would be due as well.
        await asyncio.sleep(0.1)
        assert len(told.rung) == 1
        signals.notify_due(at, 0.05)
        signals.close()
        await asyncio.sleep(0.1)
        assert len(told.rung) == 1

    asyncio.run(main())


class Timers:
    """The part of an event loop that a delay uses, with a time that passes when a test lets it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._calls: list[tuple[float, Callable[[], None], Mock]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Mock:
        timer = Mock()
        self._calls.append((self.now + delay, call, timer))
        return timer

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while ready := [c for c in self._calls if c[0] <= until and not c[2].cancel.called]:
            self.now, call, _ = item = min(ready, key=lambda c: c[0])
            self._calls.remove(item)
            call()
        self.now = until


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr(tuning, "spread", lambda: 1.0)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    return timers


def test_a_summoned_worker_looks_soon_and_seldom_and_later_after_it_came_in_vain(timers: Timers) -> None:
    looks: list[float] = []
    summons = PollDelay(lambda: looks.append(timers.now))
    for _ in range(300):
        summons.schedule_now()
        timers.advance(0.001)
    assert 14 <= len(looks) <= 15, "a look every 20 ms"
    summons.cancel()
    summons.note_look(in_vain=False)
    pauses: list[float] = []
    for in_vain in (True, True, True, True, True, True, False, False):
        timers.advance(1.0)
        asked = timers.now
        summons.schedule_now()
        timers.advance(1.0)
        pauses.append(looks[-1] - asked)
        summons.note_look(in_vain=in_vain)
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25, 0.02])
    summons.note_look(in_vain=True)
    assert summons._spread == tuning._SOON_S, "a look of its own accord says nothing"


def test_a_summoned_worker_looks_again_when_the_next_queue_is_due(timers: Timers) -> None:
    looks: list[float] = []
    summons = PollDelay(lambda: looks.append(timers.now))
    summons.schedule_now()
    timers.advance(1.0)
    summons.note_look(in_vain=True, due_in=0.4)
    seen = timers.now
    timers.advance(1.0)
    assert looks[1:] == [pytest.approx(seen + 0.4)]
    summons.note_look(in_vain=False)
    timers.advance(1.0)
    summons.note_look(in_vain=True, due_in=0.4)
    timers.advance(1.0)
    assert len(looks) == 2, "a look of its own accord is followed by none"
