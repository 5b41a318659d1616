"""Crons by two servers that are killed, with wrong clocks, over a change of the clocks in two time zones:
each time that is due starts one run, however often a server dies."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

import perdure
from tests.backends import EMPTY
from tests.chaos import noting
from tests.chaos.clocked import ClockedServer, SharedClock
from tests.chaos.figures import publish

FULL = os.environ.get("PERDURE_CHAOS") == "full"
ZONES = ("Europe/Paris", "Asia/Beirut")
"""Zones that change their clocks in the same night: one at two or three o'clock, the other at midnight."""
CHANGES = {"spring": datetime(2026, 3, 28, 12, tzinfo=UTC), "autumn": datetime(2026, 10, 24, 12, tzinfo=UTC)}
DAYS, DAILY, HOURLY = 3, 160, 40
KILL_EACH = 12
"""One of so many moments is that of a kill."""
SKEWS_S = (3600.0, -3600.0)
WITHIN_S = 120.0


class Job(NamedTuple):
    """A schedule, and the times at which it is due, in microseconds."""

    expression: str
    zone: str
    due: tuple[int, ...]


def local_times(zone: ZoneInfo, hour: int, minute: int, begin: datetime, end: datetime) -> Iterator[int]:
    """Yield when a clock of a zone first shows a time of the day, or the first time after it if the clock
    skips it."""
    day = begin.astimezone(zone).date() - timedelta(days=1)
    while day <= end.astimezone(zone).date():
        shown = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
        moment = shown.astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None) != shown.replace(tzinfo=None):
            # It is skipped: due is the first minute that the clock shows after the change.
            offset = shown.utcoffset()
            while (moment - timedelta(minutes=1)).astimezone(zone).utcoffset() != offset:
                moment -= timedelta(minutes=1)
        if begin < moment <= end:
            yield round(moment.timestamp()) * 1_000_000
        day += timedelta(days=1)


def hourly(minute: int, begin: datetime, end: datetime) -> Iterator[int]:
    moment = begin.replace(minute=minute)
    while moment <= end:
        if moment > begin:
            yield round(moment.timestamp()) * 1_000_000
        moment += timedelta(hours=1)


def jobs(chance: random.Random, begin: datetime) -> list[Job]:
    """Daily schedules of which each other one is due in the night of the change, and hourly ones."""
    end, out = begin + timedelta(days=DAYS), list[Job]()
    for n in range(DAILY):
        zone = ZONES[n // 2 % len(ZONES)]
        hour, minute = chance.randrange(4) if n % 2 else chance.randrange(24), chance.choice((0, 7, 30, 45))
        due = tuple(local_times(ZoneInfo(zone), hour, minute, begin, end))
        out.append(Job(f"{minute} {hour} * * *", zone, due))
    for n in range(HOURLY):
        minute = chance.choice((0, 30))
        out.append(Job(f"{minute} * * * *", ZONES[n % 2], tuple(hourly(minute, begin, end))))
    return out


def started(folder: Path) -> Counter[str]:
    """Return the number of runs by cron."""
    notes = folder / noting.NOTES.name
    lines = set(notes.read_text().splitlines()) if notes.exists() else set[str]()
    return Counter(line.split()[0] for line in lines)


async def drive(
    servers: Sequence[ClockedServer], clock: SharedClock, expected: dict[str, Job], chance: random.Random
) -> int:
    """Set the clock to each time that is due, kill servers there, and wait for the runs; return the kills."""
    folder, kills, due = servers[0]._folder, 0, Counter[str]()
    times = sorted((moment, cron) for cron, job in expected.items() for moment in job.due)
    for number, (moment, group) in enumerate(groupby(times, key=lambda each: each[0])):
        due.update(cron for _, cron in group)
        clock.set(max(moment, clock.now()))
        if number % KILL_EACH == 1:
            victim = chance.choice(servers)
            await asyncio.sleep(chance.choice((0.0, 0.02, 0.1)))
            victim.kill()
            victim.start()
            kills += 1
        until = time.monotonic() + WITHIN_S
        while (found := started(folder)) != due:
            wrong = {cron: (found[cron], due[cron]) for cron in found if found[cron] > due[cron]}
            assert not wrong, f"at {moment} more runs than times that were due: {wrong}"
            assert time.monotonic() < until, f"at {moment} times lack: {due - found}"
            await asyncio.sleep(0.02)
    return kills


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not FULL, reason="a battery of its own: PERDURE_CHAOS=full")
@pytest.mark.parametrize("season", list(CHANGES))
def test_each_time_that_is_due_starts_one_run(season: str, tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    chance, begin = random.Random(seed), CHANGES[season]
    wanted = jobs(chance, begin)
    clock = SharedClock(tmp_path / "clock")
    clock.set(round(begin.timestamp()) * 1_000_000)
    shutil.copy(noting.__file__, tmp_path / "agents.py")

    async def scenario(url: str) -> int:
        servers = [ClockedServer(f"server-{n}", url, tmp_path, skew_s) for n, skew_s in enumerate(SKEWS_S)]
        for server in servers:
            server.start()
        try:
            for server in servers:
                await server.ready()
            expected: dict[str, Job] = {}
            async with servers[0].client() as client:
                for job in wanted:
                    thread = (await client.threads.create())["thread_id"]
                    made: Any = await client.crons.create_for_thread(
                        thread, "agent", schedule=job.expression, timezone=job.zone, input={"said": "tick"}
                    )
                    expected[made["cron_id"]] = job
            # Making them took time, which is not to count.
            assert clock.now() < min(each for job in wanted for each in job.due)
            kills = await drive(servers, clock, expected, chance)
            clock.set(clock.now() + 5_000_000)
            for server in servers:
                await server.ready()
                assert await server.stop() == 0
            assert started(tmp_path) == {cron: len(job.due) for cron, job in expected.items() if job.due}
            return kills
        finally:
            for server in servers:
                server.kill()

    with EMPTY["sqlite"]() as url:
        with perdure.connect_sync(url, migrate=True):
            """Only its schema is wanted."""
        kills = asyncio.run(scenario(url))
        with perdure.connect_sync(url) as database:
            assert [str(each) for each in database.fsck()] == []
    times = sum(len(job.due) for job in wanted)
    figures = {"season": season, "seed": seed, "schedules": len(wanted), "times": times, "kills": kills}
    publish("crons", figures)
    assert kills > 0
