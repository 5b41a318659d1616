"""How long a server that is away is waited for: by all callers of a driver together, and by each call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from perdure.errors import BadUrl, Unavailable
from perdure.model.ops import Commit, Committed, Drop, Fetch, FindThreads, Get, Now, Put, Stage
from perdure.model.program import Effect
from perdure.model.records import CHUNK, GC, Partition
from perdure.storage import outage
from perdure.storage.outage import Outage, patience_of
from perdure.storage.url import open_driver
from tests.servers import postgres
from tests.servers.lossy import Lossy
from tests.servers.ports import free_port
from tests.storage.test_postgres_faults import through_lossy

AT = Partition("", "thread")


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(outage, "time", made)
    return made


def test_it_is_waited_for_from_the_first_failure_on(clock: Clock) -> None:
    error, away = Unavailable("away"), Outage(5.0)
    assert away.get_current_failure() is None
    assert away.note(error, 100.0) == 105.0
    clock.now = 104.0
    assert away.note(error, 103.9) == 105.0
    assert away.get_current_failure() is None
    clock.now = 105.1
    assert away.note(error, 105.0) == 105.0
    assert away.get_current_failure() is error
    clock.now = 106.0
    assert away.get_current_failure() is None, "another attempt is due"


def test_another_outage_has_a_patience_of_its_own(clock: Clock) -> None:
    error, away = Unavailable("away"), Outage(5.0)
    away.note(error, 100.0)
    clock.now = 103.0
    away.end()
    assert away.note(error, 103.0) == 108.0
    clock.now = 200.0
    assert away.note(error, 200.0) == 205.0, "nobody looked in between"


@pytest.mark.parametrize(("value", "seconds"), [(None, 5.0), ("0", 0.0), ("1.5", 1.5), ("3600", 3600.0)])
def test_a_patience_is_a_number_of_seconds(value: str | None, seconds: float) -> None:
    assert patience_of("db://x", value) == seconds


@pytest.mark.parametrize("value", ["", "-1", "x", "3601", "1e3", "nan", "inf", "\u0661"])
def test_another_value_is_refused_by_name(value: str) -> None:
    with pytest.raises(BadUrl, match="db://x: patience="):
        patience_of("db://x", value)


# On PostgreSQL


@pytest.fixture
def single() -> Iterator[str]:
    """A URL with one connection that writes and one that reads."""
    with postgres.empty(postgres.durable(), pool=2) as url:
        open_driver(url, migrate=True).close()
        yield url


EFFECTS: dict[str, Callable[[Partition], Effect[Any]]] = {
    "commit": lambda at: Commit(at, (Put(GC, (), version=1),)),
    "stage": lambda at: Stage(at, (Put(CHUNK, (b"digest",), {"generation": 0}, b"x"),)),
    "drop": lambda at: Drop(at),
    "fetch": lambda at: Fetch(at, (Get(GC, ()),)),
    "find": lambda _: FindThreads(""),
    "now": lambda _: Now(),
}


@pytest.mark.parametrize(
    ("what", "connected"),
    [
        pytest.param(
            what, connected, marks=() if what in ("commit", "fetch") and connected else pytest.mark.slow
        )
        for what in EFFECTS
        for connected in (True, False)
    ],
)
def test_a_call_waits_for_a_server_no_longer_than_the_patience_of_its_url(
    single: str, what: str, connected: bool
) -> None:
    patience = 1.5
    with through_lossy(f"{single}&patience={patience}") as (driver, relay):
        if connected:
            driver.perform(EFFECTS[what](AT))
        relay.close()
        began = time.monotonic()
        with pytest.raises(Unavailable):
            driver.perform(EFFECTS[what](AT))
        assert patience - 0.6 < time.monotonic() - began < 2 * patience
        began = time.monotonic()
        for effect in EFFECTS.values():
            with pytest.raises(Unavailable):
                driver.perform(effect(AT))
        assert time.monotonic() - began < patience, "a server that is known to be away is waited for again"


def test_a_server_that_comes_back_within_the_patience_fails_no_call(single: str) -> None:
    port = free_port()
    passed = single.replace(f":{postgres.durable().port}/", f":{port}/") + "&patience=30"
    relay = Lossy(postgres.durable().port, port)
    with closing(open_driver(passed)) as driver, ThreadPoolExecutor(2) as pool:
        driver.perform(EFFECTS["commit"](AT))
        relay.close()
        waiting = [pool.submit(driver.perform, EFFECTS[what](AT)) for what in ("drop", "fetch")]
        time.sleep(0.5)
        assert not any(each.done() for each in waiting)
        with closing(Lossy(postgres.durable().port, port)):
            assert waiting[0].result(30) == Committed()
            waiting[1].result(30)
