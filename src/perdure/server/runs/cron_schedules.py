"""Schedules of crons: the next time after a given one, in a time zone and until an end."""

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
    """A schedule cannot be used; the text gives the reason."""


class Schedule(NamedTuple):
    """A cron expression of five fields, of six with seconds first, or a name such as ``@daily``.

    When the clocks change, it behaves like Debian's cron: a time that is skipped is due right after the
    change, and a time that occurs twice is due once. If the field of the minute or the hour begins with
    ``*``, the schedule follows the elapsed time: a skipped time is not due, and a time that occurs twice is
    due twice.

    Attributes:
        expression: The expression, such as ``"0 9 * * MON-FRI"``.
        timezone: The IANA name of its time zone; UTC without one.
        end: Time after which it is never due, in microseconds since 1970.
    """

    expression: str
    timezone: str | None = None
    end: int | None = None

    def find_next_after(self, moment: int) -> int | None:
        """Return the first time after a moment, both in microseconds since 1970; ``None`` if there is none.

        Raises:
            BadSchedule: The expression or the time zone is not valid.
        """
        zone = _find_zone(self.timezone)
        begin = datetime.fromtimestamp(moment // 1_000_000, UTC).astimezone(zone)
        try:
            times = _Times(_NAMED.get(self.expression, self.expression), begin)
            # When the clocks repeat an hour, cronsim yields past times of the first one during the second.
            following = next(time for time in times if time.timestamp() > begin.timestamp())
        except (CronSimError, ValueError) as error:
            raise BadSchedule(
                f"{self.expression!r} is not a cron schedule ({error}); it has five fields, minute, hour, "
                "day, month and weekday, e.g. '0 9 * * MON-FRI'"
            ) from error
        except (StopIteration, OverflowError):
            return None
        time = round(following.timestamp()) * 1_000_000
        if self.end is not None and time > self.end:
            return None
        return time


class _Times(CronSim):
    """Times of an expression after a moment.

    Unlike in cronsim itself, a field of seconds makes no difference when the clocks change, and clocks may
    change by a part of an hour, or at midnight.
    """

    def __init__(self, expression: str, begin: datetime) -> None:
        super().__init__(expression, begin)
        if not self.parts[1].startswith("*") and not self.parts[2].startswith("*"):
            self.fixup_tz = begin.tzinfo
            self.dt = self.dt.replace(tzinfo=None)

    def advance_month(self) -> None:
        super().advance_month()
        self._leave_gap()

    def advance_day(self) -> bool:
        is_moved = super().advance_day()
        self._leave_gap()
        return is_moved

    def advance_hour(self) -> bool:
        if self.dt.hour in self.hours:
            return False
        day = self.dt.day
        while self.dt.hour not in self.hours and self.dt.day == day:
            self.tick(3600 - 60 * self.dt.minute - self.dt.second)
        return True

    def advance_minute(self) -> bool:
        if self.dt.minute in self.minutes:
            return False
        hour = self.dt.hour
        while self.dt.minute not in self.minutes and self.dt.hour == hour:
            self.tick(60 - self.dt.second)
        return True

    def _leave_gap(self) -> None:
        """Move a midnight that the clocks skip to the end of the skipped time."""
        if self.dt.tzinfo is not None:
            self.dt = self.dt.astimezone(UTC).astimezone(self.dt.tzinfo)


def _find_zone(name: str | None) -> ZoneInfo:
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadSchedule(f"{name!r} is not a time zone; use an IANA name such as 'Europe/Paris'") from error
