"""Several processes start the crons of one database, are killed, and their clocks jump: each due time is
started under one key."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from perdure.engine.queue import crons
from perdure.errors import Corrupt, QueueFull, Unavailable
from perdure.model.ops import Commit, Delete, Put
from perdure.model.program import ask
from perdure.model.records import DOCUMENT, LANE
from perdure.model.runs.queue import CRONS
from perdure.runtime import Runtime
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.crons import Crons, Due
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.worker.backlog import Foreign
from perdure.runtime.worker.cron_service import CronService, Fired, Firing
from perdure.runtime.worker.dispatch import Dispatch
from perdure.server.runs.cron_schedules import BadSchedule, Schedule
from tests.runtime.graphs import Talk, stored

SECOND = 1_000_000
BEGIN = datetime(2026, 3, 27, 22, 30, tzinfo=UTC)
ZONES = ("Europe/Paris", "America/New_York", "UTC")


class SetClock(DatabaseClock):
    """A clock that shows what the test sets."""

    def __init__(self) -> None:
        self.time = round(BEGIN.timestamp()) * SECOND

    async def now(self) -> int:
        return self.time

    def estimate(self) -> int:
        return self.time


class Killed(Exception):
    """The process is gone."""


class World:
    """A database and the processes that start its crons."""

    def __init__(self, context: RuntimeContext, seed: int) -> None:
        self.clock = SetClock()
        self.context = replace(context, clock=self.clock, works=False)
        self.dice = random.Random(seed)
        self.accepted: Counter[str] = Counter()
        self.starts: Counter[str] = Counter()
        self.killed = 0

    def service(self) -> CronService:
        """A process's service; only the test starts what is due."""
        dispatch = Dispatch(self.context)
        dispatch.stop()
        return CronService(self.context, dispatch)

    def crons(self, tenant: str = "") -> Crons:
        return Crons(self.context, Dispatch(self.context), tenant)

    async def is_behind(self) -> bool:
        found = await self.context.database.arun(crons.list_by_time(crons.place(""), self.clock.time, 1))
        return bool(found.crons)

    async def fire(self, firing: Firing) -> Fired:
        """Accept as the inbox does: once for each key. Dies before, or after."""
        self._dies()
        await asyncio.sleep(0)
        self.starts[firing.key] += 1
        self.accepted[firing.key] = 1
        self._dies()
        schedule = Schedule(**firing.cron.body["schedule"])
        return Fired(Due(firing.cron.body, schedule.find_next_after(firing.cron.due_at or 0)))

    def _dies(self) -> None:
        if self.dice.random() < 0.01:
            self.killed += 1
            raise Killed

    async def process(self, tenant: str = "") -> None:
        """A process that starts all that is due, or is killed at it."""
        service = self.service()
        service.serve(self.fire, lambda cron: True)
        try:
            while await service.start_due(crons.place(tenant)):
                pass
        except Killed:
            return


@pytest.fixture
def world() -> Iterator[World]:
    with stored("memory") as storage:
        yield World(Runtime(storage.database(), Talk().graph)._context, 11)


def expected(schedule: Schedule, until: datetime) -> set[int]:
    """The times of a schedule of the kinds below, found by looking at each minute."""
    minute, hour, *_ = schedule.expression.split()
    zone, found, moment = ZoneInfo(schedule.timezone or "UTC"), set[int](), BEGIN
    while (moment := moment + timedelta(minutes=1)) <= until:
        local = moment.astimezone(zone)
        is_minute = local.minute % int(minute[2:]) == 0 if minute[0] == "*" else local.minute == int(minute)
        if is_minute and hour in ("*", str(local.hour)):
            found.add(round(moment.timestamp()) * SECOND)
    return found


async def _three_days(world: World, count: int) -> None:
    end, wanted = BEGIN + timedelta(days=3), dict[str, set[int]]()
    for _ in range(count):
        # Between two and three o'clock the clocks are changed: see the tests of the schedules.
        hour, minute = world.dice.choice([0, 1, *range(4, 24)]), world.dice.randrange(60)
        expression = world.dice.choice([f"*/{minute % 4 * 5 + 15} * * * *", f"{minute} {hour} * * *"])
        schedule = Schedule(expression, world.dice.choice(ZONES))
        made = await world.crons().create(
            {"schedule": schedule._asdict()}, schedule.find_next_after(world.clock.time)
        )
        wanted[made.id] = expected(schedule, end)
    steady = world.clock.time
    while steady < round(end.timestamp()) * SECOND:
        steady += world.dice.randrange(1, 40) * 60 * SECOND
        # The host's clock is an hour ahead or behind for a while: ahead starts early, and nothing twice.
        world.clock.time = steady - world.dice.choice([0, 0, 0, 3600]) * SECOND
        await asyncio.gather(*(world.process() for _ in range(world.dice.choice([1, 2, 3]))))
    world.clock.time = round(end.timestamp()) * SECOND
    while await world.is_behind():
        # The claims of those that were killed expire.
        world.clock.time += 40 * SECOND
        await world.process()
    started = {name: set[int]() for name in wanted}
    for key in world.accepted:
        _, name, time = key.split()
        started[name].add(int(time))
    beyond = round(end.timestamp()) * SECOND
    assert {name: {t for t in times if t <= beyond} for name, times in started.items()} == wanted
    assert world.killed > count // 4
    assert max(world.starts.values()) > 1
    assert world.starts.total() - len(world.starts) <= world.killed


def test_each_due_time_has_one_key_whatever_happens(world: World) -> None:
    asyncio.run(_three_days(world, 8))


@pytest.mark.slow
def test_200_crons_over_three_days(world: World) -> None:
    asyncio.run(_three_days(world, 200))


def test_of_processes_that_are_there_together_one_starts_a_cron(world: World) -> None:
    async def main() -> None:
        world.dice.random = lambda: 1.0  # type: ignore[method-assign]
        schedule = Schedule("* * * * *")
        for _ in range(10):
            first = schedule.find_next_after(world.clock.time)
            await world.crons().create({"schedule": schedule._asdict()}, first)
        for _ in range(20):
            world.clock.time += 60 * SECOND
            await asyncio.gather(*(world.process() for _ in range(4)))
        assert set(world.starts.values()) == {1}
        assert len(world.starts) == 200

    asyncio.run(main())


def test_a_cron_of_another_process_waits_for_it_and_delays_no_other(world: World) -> None:
    async def main() -> None:
        world.dice.random = lambda: 1.0  # type: ignore[method-assign]
        schedule = Schedule("* * * * *")._asdict()
        theirs = await world.crons().create({"schedule": schedule, "graph": "theirs"}, world.clock.time)
        ours = await world.crons().create({"schedule": schedule, "graph": "ours"}, world.clock.time)
        service = world.service()
        service.serve(world.fire, lambda cron: cron.body["graph"] == "ours")
        assert await service.start_due(crons.place("")) == Foreign("service", CRONS)
        assert [key.split()[1] for key in world.accepted] == [ours.id]
        assert (await world.crons().get(theirs.id)).version == theirs.version

    asyncio.run(main())


@pytest.mark.parametrize("staying", ["foreign", "failing", "claimed"])
def test_crons_that_stay_due_keep_no_other_from_its_start(world: World, staying: str) -> None:
    async def main() -> None:
        world.dice.random = lambda: 1.0  # type: ignore[method-assign]
        schedule, now = Schedule("* * * * *")._asdict(), world.clock.time
        for number in range(70):
            body = {
                "schedule": {"expression": "often"} if staying == "failing" else schedule,
                "graph": staying,
            }
            made = await world.crons().create(body, now - 1 - number % 3)
            if staying == "claimed":
                await world.crons().change(made.id, lambda held: Due(held.body, held.due_at, now + SECOND))
        ours = await world.crons().create({"schedule": schedule, "graph": "ours"}, now)
        service = world.service()
        service.serve(world.fire, lambda cron: cron.body["graph"] != "foreign")
        try:
            await service.start_due(crons.place(""))
        except BadSchedule:
            assert staying == "failing"
        assert [key.split()[1] for key in world.accepted if key.split()[1] == ours.id] == [ours.id]

    asyncio.run(main())


def test_a_cron_is_on_time_while_others_put_the_queue_off(world: World) -> None:
    async def main() -> None:
        world.dice.random = lambda: 1.0  # type: ignore[method-assign]
        schedule, now = Schedule("* * * * *")._asdict(), world.clock.time
        await world.crons().create({"schedule": schedule, "graph": "theirs"}, now - 1)
        await world.crons().create({"schedule": schedule, "graph": "theirs"}, now + 5 * SECOND)
        await world.crons().create({"schedule": schedule, "graph": "ours"}, now + 40 * SECOND)
        scheduled: list[int | None] = []
        dispatch = Dispatch(world.context)
        dispatch.schedule = lambda partition, lane, now: scheduled.append(lane.due_at)  # type: ignore[method-assign,assignment,misc]
        service = CronService(world.context, dispatch)
        service.serve(world.fire, lambda cron: cron.body["graph"] == "ours")
        assert await service.start_due(crons.place("")) == Foreign("service", CRONS)
        assert scheduled == [now + 40 * SECOND]
        world.clock.time -= 30 * SECOND
        assert await service.start_due(crons.place("")) is False
        assert len(scheduled) == 1

    asyncio.run(main())


def test_a_page_of_crons_that_others_start_is_not_read_again_at_once(world: World) -> None:
    async def main() -> None:
        schedule = Schedule("* * * * *")._asdict()
        for _ in range(40):
            one = await world.crons().create({"schedule": schedule}, world.clock.time)
            claimed = Due(one.body, one.due_at, world.clock.time + SECOND)
            await world.context.database.arun(
                crons.change(crons.place(""), one.id, lambda _, to=claimed: to, world.clock.time, 1)  # type: ignore[misc]
            )
        service = world.service()
        service.serve(world.fire, lambda cron: True)
        assert await service.start_due(crons.place("")) is False
        world.dice.random = lambda: 1.0  # type: ignore[method-assign]
        world.clock.time += SECOND
        assert await service.start_due(crons.place("")) is True
        assert len(world.accepted) == 32

    asyncio.run(main())


def test_one_that_fails_delays_no_other_and_is_reported(world: World) -> None:
    async def main() -> None:
        world.dice.random = lambda: 1.0  # type: ignore[method-assign]
        bad = await world.crons().create({"schedule": {"expression": "often"}}, world.clock.time - 1)
        good = await world.crons().create({"schedule": Schedule("* * * * *")._asdict()}, world.clock.time)
        service = world.service()
        service.serve(world.fire, lambda cron: True)
        with pytest.raises(BadSchedule):
            await service.start_due(crons.place(""))
        assert (await world.crons().get(good.id)).due_at != good.due_at
        assert (await world.crons().get(bad.id)).due_at == bad.due_at

    asyncio.run(main())


def test_a_process_without_a_starter_leaves_them_to_others(world: World) -> None:
    async def main() -> None:
        service = world.service()
        assert await service.start_due(crons.place("")) == Foreign("service", CRONS)

    asyncio.run(main())


def test_a_change_during_a_start_stands(world: World) -> None:
    async def main() -> None:
        made = await world.crons().create({"n": 1}, world.clock.time)

        async def fire(firing: Firing) -> Fired:
            await world.crons().change(made.id, lambda held: Due({"n": 2}, None))
            return Fired(Due({"n": 1}, 5))

        service = world.service()
        service.serve(fire, lambda cron: True)
        await service.start_due(crons.place(""))
        held = await world.crons().get(made.id)
        assert (held.body, held.due_at) == ({"n": 2}, None)

    asyncio.run(main())


def test_a_start_that_did_not_reach_the_database_is_tried_again(world: World) -> None:
    async def main() -> None:
        made = await world.crons().create({}, world.clock.time)

        async def fire(firing: Firing) -> Fired:
            raise Unavailable("away")

        service = world.service()
        service.serve(fire, lambda cron: True)
        with pytest.raises(Unavailable):
            await service.start_due(crons.place(""))
        held = await world.crons().get(made.id)
        assert (held.due_at, held.updated_at) == (made.due_at, made.updated_at)
        # The claim delays the next try by the length of a lease.
        assert await service.start_due(crons.place("")) is False
        world.clock.time = held.claimed_until
        with pytest.raises(Unavailable):
            await service.start_due(crons.place(""))

    asyncio.run(main())


def test_a_start_that_found_no_room_is_tried_again_without_the_length_of_a_lease(world: World) -> None:
    async def main() -> None:
        made = await world.crons().create({}, world.clock.time)
        starts = 0

        async def fire(firing: Firing) -> Fired:
            nonlocal starts
            starts += 1
            if starts < 3:
                raise QueueFull("full")
            return Fired(None)

        service = world.service()
        service.serve(fire, lambda cron: True)
        for _ in range(2):
            with pytest.raises(QueueFull):
                await service.start_due(crons.place(""))
        held = await world.crons().get(made.id)
        assert (held.due_at, held.updated_at) == (made.due_at, made.updated_at)
        assert await service.start_due(crons.place("")) is False
        assert starts == 3

    asyncio.run(main())


def test_one_that_cannot_be_read_is_reported_after_the_others_were_started(world: World) -> None:
    async def main() -> None:
        world.dice.random = lambda: 1.0  # type: ignore[method-assign]
        schedule = Schedule("* * * * *")._asdict()
        one = await world.crons().create({"schedule": schedule}, world.clock.time)
        other = await world.crons().create({"schedule": schedule}, world.clock.time + 1)
        world.clock.time += 2
        damaged = Put(DOCUMENT, ("cron", one.id), {"updated_at": world.clock.time}, b"{", version=9)
        await world.context.database.arun(ask(Commit(crons.place(""), (damaged,))))
        with pytest.raises(Corrupt):
            await world.process()
        assert [key.split()[1] for key in world.accepted] == [other.id]

    asyncio.run(main())


def test_crons_that_came_with_a_copy_are_found_at_the_start(world: World) -> None:
    async def main() -> None:
        await world.crons("acme").create({}, world.clock.time)
        drop = Delete(LANE, (CRONS,))
        await world.context.database.arun(ask(Commit(crons.place("acme"), (drop,))))
        service = CronService(replace(world.context, tenant=None), Dispatch(world.context))
        await service.arm()
        assert await world.context.database.arun(crons.arm(crons.place("acme"), 1 << 40)) is True
        await world.context.database.arun(ask(Commit(crons.place("acme"), (drop,))))
        service.serve(world.fire, lambda cron: True)
        await service.arm()
        assert await world.context.database.arun(crons.arm(crons.place("acme"), 1 << 41)) is False

    asyncio.run(main())
