"""Times of schedules: by counting minutes where the clocks run evenly, by hand where they are changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from perdure.server.cron_schedules import BadSchedule, Schedule


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


def times(expression: str, zone: str | None, begin: str, end: str) -> list[str]:
    """The times of a schedule between two moments, in its zone."""
    schedule, moment, found = Schedule(expression, zone, at(end)), at(begin), []
    while (moment := schedule.next_after(moment) or 0) != 0:
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


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (Schedule("daily"), "'daily' is no cron schedule"),
        (Schedule("61 * * * *"), "it has five fields"),
        (Schedule(""), "is no cron schedule"),
        (Schedule("* * * * *", "Mars/Olympus"), "'Mars/Olympus' is no time zone; use an IANA name"),
        (Schedule("* * * * *", "../../etc/passwd"), "is no time zone"),
        (Schedule("* * * * *", "\0"), "is no time zone"),
    ],
)
def test_what_is_no_schedule_is_refused_by_name(schedule: Schedule, text: str) -> None:
    with pytest.raises(BadSchedule, match=text):
        schedule.next_after(0)


def test_it_ends() -> None:
    end = at("2026-01-01T10:00+00:00")
    assert Schedule("0 * * * *", None, end).next_after(end - 1_000_000) == end
    assert Schedule("0 * * * *", None, end).next_after(end) is None
    assert Schedule("0 0 29 2 *").next_after(at("2026-01-01T00:00+00:00")) == at("2028-02-29T00:00+00:00")
