"""A session is written to, removed, swept or copied between any two requests of another such act: what comes
back and what is stored is as if one had come after the other, or one was refused; and an act that dies at any
request changes nothing that it was not allowed to, and leaves nothing that stays for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest

from perdure.engine import session_histories
from perdure.engine.items import items
from perdure.engine.session_histories import LEASE_US, Terms, Turn
from perdure.engine.transact import Budget
from perdure.engine.transfer import transfer_items
from perdure.engine.transfer.transfer_terms import OnSide, Side, TransferOptions
from perdure.errors import Conflict, Contention, Unavailable
from perdure.model.ops import Commit, Delete, Fetch, Range
from perdure.model.program import Effect
from perdure.model.records import ITEM, SESSIONS, Partition
from perdure.model.values.chunks import Digester
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Capabilities, CommitLimits, Driver, run
from perdure.testing.conformance import Narrow
from perdure.testing.faults import ALL, Fault, FaultyDriver, fail
from tests.pairwise import pairwise

R = TypeVar("R")

AT = Partition("acme", "s1", SESSIONS)
NOW = 1_700_000_000_000_000
HOUR = 3_600_000_000
LATER = NOW + 1000 * LEASE_US
WIDE = CommitLimits(ops=1000, bytes=1 << 20)
NARROW = CommitLimits(ops=3, bytes=2000)
LIMITS = {"wide": WIDE, "narrow": NARROW}
TTLS = {"for ever": None, "an hour": HOUR, "a day": 24 * HOUR}
_fresh = iter(range(1 << 24, 1 << 50, 1 << 24))


class World:
    """A database with one session, and another with what was copied from it."""

    def __init__(self, limits: CommitLimits) -> None:
        self.limits = limits
        self.here, self.there = MemoryDriver(), MemoryDriver()

    def restored(self, kept: Any) -> World:
        again = World(self.limits)
        for mine, tables in zip((again.here, again.there), kept, strict=True):
            mine._partitions = {p: {k: dict(t) for k, t in held.items()} for p, held in tables.items()}
        return again

    def kept(self) -> Any:
        return [
            {p: {k: dict(t) for k, t in held.items()} for p, held in driver._partitions.items()}
            for driver in (self.here, self.there)
        ]

    def drivers(self, wrap: Callable[[Driver], Driver] = lambda driver: driver) -> Drivers:
        return Drivers(*(wrap(Narrow(driver, self.limits)) for driver in (self.here, self.there)))


class Drivers:
    """Both databases as one act uses them."""

    capabilities = Capabilities()

    def __init__(self, here: Driver, there: Driver) -> None:
        self.here, self.there, self.limits = here, there, here.limits

    def perform(self, effect: Effect[R]) -> R:
        assert isinstance(effect, OnSide)
        answer: R = (self.here if effect.place is Side.SOURCE else self.there).perform(effect.effect)
        return answer

    async def aperform(self, effect: Effect[R]) -> R:
        return self.perform(effect)

    def close(self) -> None: ...


def budget(driver: Driver) -> Budget:
    return Budget(driver.limits.ops, driver.limits.bytes)


def texts(driver: Driver, now: int = NOW) -> list[str]:
    return [m["content"].rstrip(".") for m in run(session_histories.load(AT, now), driver).messages]


def add(driver: Driver, count: int, name: str, ttl: int | None) -> list[str] | None:
    held = run(session_histories.load(AT, NOW), driver)
    turn = Turn([{"role": "user", "content": f"{name} {n}" + "." * 60} for n in range(count)])
    terms = Terms(NOW, ttl, next(_fresh), budget(driver))
    after = run(session_histories.append(AT, held, turn, terms), driver)
    return None if after is None else [m["content"].rstrip(".") for m in after.messages]


def copy(drivers: Drivers, **options: Any) -> object:
    digest = Digester()
    terms = TransferOptions(digest, digest, budget(drivers.there), next(_fresh), **options)
    run(transfer_items.move_items(AT, AT, terms, lambda: NOW), drivers)
    return "copied"


Act = Callable[[Drivers], object]
ACTS: Mapping[str, Act] = {
    **{
        f"add {count} for {name}": lambda d, c=count, n=name, t=ttl: add(d.here, c, f"{n} {c}", t)  # type: ignore[misc]
        for name, ttl in TTLS.items()
        for count in (1, 7)
    },
    "remove": lambda d: run(session_histories.remove(AT), d.here),
    "read": lambda d: texts(d.here),
    "list": lambda d: [p.thread for p in run(session_histories.read_names("acme", None, NOW), d.here)[0]],
    "sweep": lambda d: run(session_histories.sweep(AT, NOW, budget(d.here)), d.here) >= 0,
    "copy": copy,
    "copy again": lambda d: copy(d, replace=True),
    "add there": lambda d: add(d.there, 7, "there", HOUR),
    "remove there": lambda d: run(session_histories.remove(AT), d.there),
    "sweep there": lambda d: run(session_histories.sweep(AT, NOW, budget(d.there)), d.there) >= 0,
}


def begun(name: str, limits: CommitLimits) -> World:
    """A session that was begun a day and more ago, so that what is loose is old enough to be swept."""
    world = World(limits)
    wide = Drivers(world.here, world.there)

    def earlier(driver: Driver, count: int, ttl: int | None, at: int) -> None:
        held = run(session_histories.load(AT, at), driver)
        turn = Turn([{"role": "user", "content": f"first {n}" + "." * 60} for n in range(count)])
        assert run(
            session_histories.append(AT, held, turn, Terms(at, ttl, next(_fresh), budget(driver))), driver
        )

    if name in TTLS:
        # Its segments would end before a head that is stored now.
        earlier(world.here, 6, TTLS[name], NOW - (TTLS[name] or 2 * LEASE_US) * 9 // 10)
    elif name == "expired":
        earlier(world.here, 6, HOUR, NOW - 2 * HOUR)
    elif name == "copied":
        earlier(world.here, 6, None, NOW - 2 * LEASE_US)
        copy(wide)
        earlier(world.here, 3, None, NOW - LEASE_US)
    elif name == "leftovers":
        earlier(world.here, 6, None, NOW - 2 * LEASE_US)
        world.here.perform(Commit(AT, (Delete(ITEM, ("",)),)))
    return world


STATES = ("absent", *TTLS, "expired", "copied", "leftovers")


def outcome(world: World, *results: object) -> object:
    """What acts returned, and what any later reader finds."""
    assert_sound(world)
    times = (NOW, NOW + HOUR, NOW + 24 * HOUR, LATER)
    return results, [[texts(driver, at) for at in times] for driver in (world.here, world.there)]


def assert_sound(world: World) -> None:
    """Demand that a session is whole or absent at any time, also where a backend removes what has expired by
    itself; and that nothing of it is left once it is over and was swept."""
    for driver in (later := world.restored(world.kept())).here, later.there:
        for at in (NOW, NOW + HOUR, NOW + 2 * HOUR, NOW + 24 * HOUR, NOW + 48 * HOUR, LATER):
            table = driver._partitions.get(AT, {}).get("item", {})
            for key in [k for k, r in table.items() if (r.fields["expires_at"] or LATER + 1) <= at]:
                del table[key]
            run(session_histories.load(AT, at), driver)
    for driver in (later := world.restored(world.kept())).here, later.there:
        run(items.sweep("acme", LATER, budget(driver)), driver)
        run(session_histories.sweep(AT, LATER, budget(driver)), driver)
        (stored,) = driver.perform(Fetch(AT, (Range(ITEM),)))
        whole = run(session_histories.read_records(AT, LATER), driver)
        assert sorted(r.key for r in stored) == sorted(r.key for r in whole)


REFUSED = "refused"


def tried(act: Act, drivers: Drivers) -> object:
    try:
        return REFUSED if (answer := act(drivers)) is None else answer
    except (Conflict, Contention):
        return REFUSED


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of two messages, so that short histories have several."""
    monkeypatch.setattr(session_histories, "TAIL", 250)


@pairwise(state=STATES, limits=LIMITS, name=ACTS)
def test_two_acts_at_once_are_as_one_after_the_other(state: str, limits: str, name: str) -> None:
    begin, act = begun(state, LIMITS[limits]), ACTS[name]
    kept = begin.kept()
    for beside, other in ACTS.items():
        expected = list[object]()
        for order in (1, -1):
            world = begin.restored(kept)
            results = [tried(each, world.drivers()) for each in (act, other)[::order]]
            expected.append(outcome(world, *results[::order]))
            if "copy" in name:
                # It was done when the target was written to, and is told so.
                expected.append(outcome(world, REFUSED, results[::order][1]))
        world = begin.restored(kept)
        expected.append(outcome(world, REFUSED, tried(other, world.drivers())))
        for at in range(1, 1000):
            world = begin.restored(kept)
            between: list[object] = []
            count = 0

            def interrupted(_: int, effect: Effect[Any]) -> None:
                nonlocal count
                count += 1
                if count == at:  # noqa: B023
                    between.append(tried(other, world.drivers()))  # noqa: B023

            drivers = world.drivers(lambda driver: FaultyDriver(driver, counts=ALL, on_effect=interrupted))
            answer = tried(act, drivers)
            if not between:
                break
            assert outcome(world, answer, between[0]) in expected, (beside, at)
        else:
            raise AssertionError("an act of a thousand requests")


@pairwise(state=STATES, limits=LIMITS, when=["before", "after"])
def test_an_act_that_dies_is_done_or_not_done(state: str, limits: str, when: Any) -> None:
    begin = begun(state, LIMITS[limits])
    kept = begin.kept()
    for name, act in ACTS.items():
        whole = begin.restored(kept)
        tried(act, whole.drivers())
        expected = [outcome(begin.restored(kept)), outcome(whole)]
        for at in range(1, 1000):
            world = begin.restored(kept)

            def dying(driver: Driver) -> Driver:
                return FaultyDriver(driver, Fault(at, fail("unavailable"), when))  # noqa: B023

            try:
                tried(act, world.drivers(dying))
                break
            except Unavailable:
                assert outcome(world) in expected, (name, at)
            # Repeated, it is done.
            tried(act, world.drivers())
            if "copy" in name:
                assert outcome(world) == outcome(whole), (name, at)
