"""Schedules of crons: when the next time after a given one is, in a time zone and until an end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class BadSchedule(ValueError):
    """A schedule that cannot be used; the text says why."""


class Schedule(NamedTuple):
    """A cron expression of five fields, of six with seconds first, or a name such as ``@daily``.

    Around a change of the clocks it follows Debian's cron: a time that is skipped is due right after the
    change, one that occurs twice is due once; schedules of every hour or minute follow the elapsed time.

    Attributes:
        expression: The expression, such as ``"0 9 * * MON-FRI"``.
        timezone: The IANA name of its time zone; UTC without one.
        end: Time after which it is never due, in microseconds since 1970.
    """

    expression: str
    timezone: str | None = None
    end: int | None = None

    def next_after(self, moment: int) -> int | None:
        """Return the first time after a moment, both in microseconds since 1970; ``None`` if there is none.

        Raises:
            BadSchedule: The expression or the time zone is not valid.
        """
        zone = _zone(self.timezone)
        begin = datetime.fromtimestamp(moment // 1_000_000, UTC).astimezone(zone)
        try:
            following = next(CronSim(_NAMED.get(self.expression, self.expression), begin))
        except (CronSimError, ValueError) as error:
            raise BadSchedule(
                f"{self.expression!r} is no cron schedule ({error}); it has five fields, minute, hour, day, "
                "month and weekday, e.g. '0 9 * * MON-FRI'"
            ) from error
        except (StopIteration, OverflowError):
            return None
        time = round(following.timestamp()) * 1_000_000
        return None if self.end is not None and time > self.end else time


def _zone(name: str | None) -> ZoneInfo:
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadSchedule(f"{name!r} is no time zone; use an IANA name such as 'Europe/Paris'") from error
