"""Times of schedules: by counting minutes where the clocks run evenly, by hand where they are changed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from datetime import time as clock
from zoneinfo import ZoneInfo

import pytest

from perdure.server.runs.cron_schedules import BadSchedule, Schedule


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


def times(expression: str, zone: str | None, begin: str, end: str) -> list[str]:
    """The times of a schedule between two moments, in its zone."""
    schedule, moment, found = Schedule(expression, zone, at(end)), at(begin), []
    while (moment := schedule.find_next_after(moment) or 0) != 0:
        found.append(datetime.fromtimestamp(moment / 1e6, ZoneInfo(zone or "UTC")).isoformat())
    return found


@pytest.mark.parametrize(
    ("expression", "zone", "begin", "end", "expected"),
    [
        # The clocks skip 02:00 to 03:00: due right after.
        (
            "30 2 * * *",
            "Europe/Paris",
            "2026-03-28T00:00+00:00",
            "2026-03-30T12:00+00:00",
            ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"],
        ),
        # 02:00 to 03:00 occurs twice: due once.
        (
            "30 2 * * *",
            "Europe/Paris",
            "2026-10-24T12:00+00:00",
            "2026-10-26T12:00+00:00",
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
        ),
        # Every half an hour that passes.
        (
            "*/30 * * * *",
            "Europe/Paris",
            "2026-10-25T00:10+00:00",
            "2026-10-25T02:10+00:00",
            [
                "2026-10-25T02:30:00+02:00",
                "2026-10-25T02:00:00+01:00",
                "2026-10-25T02:30:00+01:00",
                "2026-10-25T03:00:00+01:00",
            ],
        ),
        (
            "0 2 * * *",
            "America/New_York",
            "2026-03-07T12:00+00:00",
            "2026-03-09T12:00+00:00",
            ["2026-03-08T03:00:00-04:00", "2026-03-09T02:00:00-04:00"],
        ),
        (
            "15 1 * * *",
            "America/New_York",
            "2026-10-31T12:00+00:00",
            "2026-11-02T12:00+00:00",
            ["2026-11-01T01:15:00-04:00", "2026-11-02T01:15:00-05:00"],
        ),
        # As with five fields.
        (
            "*/30 30 2 * * *",
            "Europe/Paris",
            "2026-03-28T12:00+00:00",
            "2026-03-29T12:00+00:00",
            ["2026-03-29T03:00:00+02:00"],
        ),
        (
            "0 30 2 * * *",
            "Europe/Paris",
            "2026-10-24T12:00+00:00",
            "2026-10-25T12:00+00:00",
            ["2026-10-25T02:30:00+02:00"],
        ),
        # A day that the clocks skip as a whole.
        (
            "0 9 30 12 *",
            "Pacific/Apia",
            "2011-12-01T00:00+00:00",
            "2012-01-02T00:00+00:00",
            ["2011-12-31T00:00:00+14:00"],
        ),
        (
            "@daily",
            None,
            "2026-01-31T00:00+00:00",
            "2026-02-02T00:00+00:00",
            ["2026-02-01T00:00:00+00:00", "2026-02-02T00:00:00+00:00"],
        ),
        (
            "*/20 59 23 31 12 *",
            "UTC",
            "2026-12-31T23:00+00:00",
            "2027-01-01T00:00+00:00",
            ["2026-12-31T23:59:00+00:00", "2026-12-31T23:59:20+00:00", "2026-12-31T23:59:40+00:00"],
        ),
    ],
)
def test_the_clocks_are_changed(
    expression: str, zone: str | None, begin: str, end: str, expected: list[str]
) -> None:
    assert times(expression, zone, begin, end) == expected


def schedules(step: int, hour: int, minute: int) -> list[tuple[str, Callable[[datetime], bool]]]:
    """Return schedules, each with a predicate for the minutes at which it is due."""
    return [
        (f"*/{step} * * * *", lambda t: t.minute % step == 0),
        (f"{minute} * * * *", lambda t: t.minute == minute),
        (f"{minute} {hour} * * *", lambda t: (t.hour, t.minute) == (hour, minute)),
        (f"{minute} {hour} * * TUE", lambda t: (t.weekday(), t.hour, t.minute) == (1, hour, minute)),
    ]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris", "America/New_York", "Asia/Kolkata"])
def test_each_minute_that_matches_is_found_once(zone: str) -> None:
    dice, begin = random.Random(zone), datetime(2026, 6, 1, tzinfo=UTC)
    minutes = [begin + timedelta(minutes=n) for n in range(1, 2 * 1440 + 1)]
    for _ in range(25):
        step, hour, minute = dice.choice([7, 10, 25, 45]), dice.randrange(24), dice.randrange(60)
        expression, matches = dice.choice(schedules(step, hour, minute))
        local = [minute.astimezone(ZoneInfo(zone)) for minute in minutes]
        expected = [moment.isoformat() for moment in local if matches(moment)]
        assert times(expression, zone, begin.isoformat(), minutes[-1].isoformat()) == expected


_CHANGES = [
    ("Europe/Paris", "2026-03-29T01:00"),
    ("Europe/Paris", "2026-10-25T01:00"),
    ("America/St_Johns", "2026-11-01T04:30"),
    # By half an hour.
    ("Australia/Lord_Howe", "2026-04-04T15:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    # At midnight, or back to the day before.
    ("Africa/Cairo", "2026-04-23T22:00"),
    ("Africa/Cairo", "2026-10-29T21:00"),
    ("America/Havana", "2026-03-08T05:00"),
    ("America/Santiago", "2026-04-05T03:00"),
    ("Pacific/Chatham", "2026-09-26T14:00"),
]


@pytest.mark.parametrize(("zone", "change"), _CHANGES)
def test_around_a_change_a_schedule_with_a_star_is_due_at_each_minute_that_matches(
    zone: str, change: str
) -> None:
    begin = datetime.fromisoformat(f"{change}+00:00") - timedelta(hours=30)
    minutes = [begin + timedelta(minutes=n) for n in range(1, 60 * 60 + 1)]
    local = [minute.astimezone(ZoneInfo(zone)) for minute in minutes]
    for expression, matches in schedules_with_a_star():
        expected = [moment.isoformat() for moment in local if matches(moment)]
        assert times(expression, zone, begin.isoformat(), minutes[-1].isoformat()) == expected, expression


def schedules_with_a_star() -> Iterator[tuple[str, Callable[[datetime], bool]]]:
    for step in (15, 25, 30, 45):
        yield f"*/{step} * * * *", due(step=step)
    for minute in (0, 15, 45, 59):
        yield f"{minute} * * * *", due(minute=minute)
        yield f"{minute} */5 * * *", due(minute=minute, hours=range(0, 24, 5))
    for hour in (0, 1, 2, 3, 5, 23):
        yield f"*/30 {hour} * * *", due(step=30, hours=[hour])
        for day, name in enumerate(("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")):
            yield f"*/30 {hour} * * {name}", due(step=30, hours=[hour], days=[day])


def due(
    *,
    step: int = 1,
    minute: int | None = None,
    hours: Collection[int] = range(24),
    days: Collection[int] = range(7),
) -> Callable[[datetime], bool]:
    def matches(time: datetime) -> bool:
        is_minute = time.minute % step == 0 if minute is None else time.minute == minute
        return is_minute and time.hour in hours and time.weekday() in days

    return matches


@pytest.mark.parametrize(("zone", "change"), _CHANGES)
def test_around_a_change_a_time_of_day_is_due_once_a_day_and_never_in_the_past(
    zone: str, change: str
) -> None:
    here = ZoneInfo(zone)
    begin = datetime.fromisoformat(f"{change}+00:00") - timedelta(hours=30)
    for hour, minute in itertools.product((0, 1, 2, 3, 23), (0, 15, 30, 45)):
        schedule = Schedule(f"{minute} {hour} * * *", zone)
        days = [begin.astimezone(here).date() + timedelta(days=n) for n in range(-1, 6)]
        real = [first_real(datetime.combine(day, clock(hour, minute), here)) for day in days]
        for n in range(0, 60 * 60, 13):
            moment = begin + timedelta(minutes=n)
            expected = min(time for each in real if (time := each.astimezone(UTC)) > moment)
            found = schedule.find_next_after(round(moment.timestamp() * 1_000_000))
            assert found is not None
            assert datetime.fromtimestamp(found / 1e6, UTC) == expected, (hour, minute, moment)


def first_real(time: datetime) -> datetime:
    """Return a time, or that to which the clocks are moved if they skip it."""
    while time != time.astimezone(UTC).astimezone(time.tzinfo):
        time += timedelta(minutes=1)
    return time


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (Schedule("daily"), "'daily' is not a cron schedule"),
        (Schedule("61 * * * *"), "it has five fields"),
        (Schedule(""), "is not a cron schedule"),
        (Schedule("* * * * *", "Mars/Olympus"), "'Mars/Olympus' is not a time zone; use an IANA name"),
        (Schedule("* * * * *", "../../etc/passwd"), "is not a time zone"),
        (Schedule("* * * * *", "\0"), "is not a time zone"),
    ],
)
def test_what_is_no_schedule_is_refused_by_name(schedule: Schedule, text: str) -> None:
    with pytest.raises(BadSchedule, match=text):
        schedule.find_next_after(0)


def test_it_ends() -> None:
    end = at("2026-01-01T10:00+00:00")
    assert Schedule("0 * * * *", None, end).find_next_after(end - 1_000_000) == end
    assert Schedule("0 * * * *", None, end).find_next_after(end) is None
    assert Schedule("0 0 29 2 *").find_next_after(at("2026-01-01T00:00+00:00")) == at(
        "2028-02-29T00:00+00:00"
    )
