"""Servers that are paused: connections stay open, new ones are taken, and nothing answers.

Covers perdure.storage.postgres.liveness.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest

from perdure.errors import Unavailable
from perdure.model.ops import Commit, Committed, Drop, Fetch, FindThreads, Get, Now, Put, Stage
from perdure.model.program import Effect
from perdure.model.records import CHUNK, GC, Partition
from perdure.storage.outage import PATIENCE_S, Outage
from perdure.storage.port import Driver
from perdure.storage.url import open_driver
from tests.servers import d1, dynamodb, pgbouncer, valkey
from tests.servers.pausing import paused
from tests.servers.postgres import Postgres, empty

AT = Partition("", "thread")
PATIENCE = 2.0
ROOM_S = 2.0
"""Seconds for a busy machine, beyond the patience."""


class Place(NamedTuple):
    """A database and the process of its server."""

    url: str
    pid: int


def _number(process: Any) -> int:
    assert process is not None
    return int(process.pid)


@contextmanager
def _postgres() -> Iterator[Place]:
    # One connection that writes: the commit in doubt is sent on one that is open.
    with closing(Postgres()) as server, empty(server, pool=2) as url:
        yield Place(url, _number(server.process))


@contextmanager
def _redis() -> Iterator[Place]:
    server = valkey.started(*valkey.DURABLE)
    try:
        yield Place(f"{server.url}?prefix=p", _number(server.process))
    finally:
        server.stop()


@contextmanager
def _dynamodb() -> Iterator[Place]:
    with dynamodb.empty() as url:
        yield Place(url, _number(dynamodb.started()[0]))


@contextmanager
def _d1() -> Iterator[Place]:
    with d1.empty() as url:
        yield Place(url, d1.started().process.pid)


PLACES = {"postgres": _postgres, "redis": _redis, "dynamodb": _dynamodb, "d1": _d1}
EFFECTS: dict[str, Callable[[], Effect[Any]]] = {
    "fetch": lambda: Fetch(AT, (Get(GC, ()),)),
    "find": lambda: FindThreads(""),
    "stage": lambda: Stage(AT, (Put(CHUNK, (b"digest",), {"generation": 0}, b"x"),)),
    "drop": lambda: Drop(Partition("", "other")),
    "now": lambda: Now(),
    "commit": lambda: _step(2),
}


def _step(version: int) -> Commit:
    return Commit(AT, (Put(GC, (), expect=version - 1, version=version),))


def _version(driver: Driver) -> int:
    ((found,),) = driver.perform(Fetch(AT, (Get(GC, ()),)))
    return int(found.version)


def _wait_for(driver: Driver) -> int:
    """Wait until the server answers; the version that it has."""
    until = time.monotonic() + 30
    while True:
        try:
            return _version(driver)
        except Unavailable:
            assert time.monotonic() < until, "the server does not answer after the pause"
            time.sleep(0.1)


@pytest.fixture(params=[pytest.param(n, marks=() if n == "postgres" else pytest.mark.slow) for n in PLACES])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with PLACES[request.param]() as made:
        url = f"{made.url}{'&' if '?' in made.url else '?'}patience={PATIENCE:g}"
        # Without the short patience: what is started just now may be slow at first.
        with closing(open_driver(made.url, migrate=True)) as driver:
            assert driver.perform(Commit(AT, (Put(GC, (), version=1),))) == Committed()
        yield Place(url, made.pid)


def test_every_call_ends_within_the_patience_and_the_next_ones_after_the_pause_work(place: Place) -> None:
    with closing(open_driver(place.url)) as driver:
        for effect in EFFECTS.values():
            driver.perform(effect())
        with paused(place.pid):
            for name, effect in EFFECTS.items():
                began = time.monotonic()
                if name == "now":
                    # A service's time may be known without asking it.
                    _ends(driver, effect())
                else:
                    with pytest.raises(Unavailable):
                        driver.perform(effect())
                took = time.monotonic() - began
                assert took < PATIENCE + ROOM_S, f"{name} took {took:.1f} s"
        assert _wait_for(driver) == 2
        assert driver.perform(_step(3)) == Committed()


def _ends(driver: Driver, effect: Effect[Any]) -> None:
    try:
        driver.perform(effect)
    except Unavailable:
        return


def test_a_commit_without_an_answer_is_in_doubt_and_never_comes_after_a_later_one(place: Place) -> None:
    with closing(open_driver(place.url)) as driver:
        assert _version(driver) == 1
        driver.perform(Commit(AT, (Put(GC, (), expect=1, version=2),)))
        with paused(place.pid):
            began = time.monotonic()
            with pytest.raises(Unavailable, match=r"or not|is not known|whether"):
                driver.perform(_step(3))
            assert time.monotonic() - began < PATIENCE + ROOM_S
        found = _wait_for(driver)
        assert found in (2, 3)
        for version in range(found + 1, found + 4):
            assert driver.perform(_step(version)) == Committed()
        time.sleep(0.5)  # What a server finds in its sockets late must not undo it.
        assert _version(driver) == found + 3


def test_many_callers_are_told_at_once(place: Place) -> None:
    ats = [Partition("", f"t{n}") for n in range(40)]

    async def ask(driver: Driver) -> list[float]:
        async def one(at: Partition, is_write: bool) -> float:
            began = time.monotonic()
            effect: Effect[Any] = (
                Commit(at, (Put(GC, (), version=1),)) if is_write else Fetch(at, (Get(GC, ()),))
            )
            with pytest.raises(Unavailable):
                await driver.aperform(effect)
            return time.monotonic() - began

        return list(await asyncio.gather(*(one(at, n % 2 == 0) for n, at in enumerate(ats))))

    with closing(open_driver(place.url)) as driver:
        _version(driver)
        with paused(place.pid):
            assert max(asyncio.run(ask(driver))) < PATIENCE + ROOM_S


def test_the_default_is_five_seconds() -> None:
    assert Outage(PATIENCE_S).silence_s == 5.0
    assert Outage(0.0).silence_s == 2.0, "no server answers at once"


# On PostgreSQL


@pytest.mark.slow
def test_a_long_statement_of_a_server_that_is_there_is_waited_for() -> None:
    with _postgres() as made, psycopg.connect(made.url.partition("?")[0]) as other:
        schema = made.url.partition("schema=")[2].partition("&")[0]
        with closing(open_driver(f"{made.url}&patience=1", migrate=True)) as driver:
            assert driver.perform(Commit(AT, (Put(GC, (), version=1),))) == Committed()
            with ThreadPoolExecutor(1) as pool, other.transaction():
                other.execute(f"SELECT FROM {schema}.thread FOR UPDATE".encode())
                late = pool.submit(driver.perform, _step(2))
                time.sleep(4.5)
                assert not late.done()
            assert late.result(10) == Committed()
            assert _version(driver) == 2


@pytest.mark.slow
def test_a_server_that_is_paused_behind_a_pooler_is_silent_too() -> None:
    with (
        closing(Postgres()) as server,
        empty(server, notify="off") as url,
        pgbouncer.pooled(server) as pooler,
    ):
        open_driver(url, migrate=True).close()
        passed = url.replace(f":{server.port}/", f":{pooler.port}/") + f"&patience={PATIENCE:g}"
        with closing(open_driver(passed)) as driver:
            driver.perform(Commit(AT, (Put(GC, (), version=1),)))
            for pid in (_number(server.process), _number(pooler.process)):
                with paused(pid):
                    for effect in (_step(2), Fetch(AT, (Get(GC, ()),))):
                        began = time.monotonic()
                        with pytest.raises(Unavailable):
                            driver.perform(effect)
                        assert time.monotonic() - began < PATIENCE + ROOM_S
                _wait_for(driver)
