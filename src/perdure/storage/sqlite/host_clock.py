"""The time of a database file, which advances evenly even if the host's clock is set.

SQLite has no clock of its own. If leases depended on the host's clock, setting it forward would take a lease
from its owner, and setting it back by an hour would make a lease outlive its owner by an hour. So the file
stores the offset of its time from the time since the host booted, which all processes of the host share and
which cannot be set. The first process that opens the file after a boot determines the offset, by the host's
clock.
"""

from __future__ import annotations

import time
from pathlib import Path

import apsw

from perdure.storage.sql.migrations import write_transaction
from perdure.storage.sql.schema import PREFIX

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_READ = f"SELECT boot, ahead FROM {PREFIX}clock WHERE one = 1"
_WRITE = f"INSERT OR REPLACE INTO {PREFIX}clock (boot, ahead, one) VALUES (?, ?, 1)"


class HostClock:
    """The clock of one file, for one driver. On hosts without a boot id, such as those without Linux, it is
    the host's clock."""

    def __init__(self, writer: apsw.Connection) -> None:
        boot = _read_boot_id()
        self._ahead_us: int | None = None
        if boot is not None:
            self._ahead_us = _find_offset(writer, boot)

    def now(self) -> int:
        """Return the time in microseconds since 1970."""
        if self._ahead_us is None:
            return time.time_ns() // 1000
        return _read_since_boot() + self._ahead_us


def _find_offset(writer: apsw.Connection, boot: str) -> int:
    """Return the offset, in microseconds, of the file's time from the time since ``boot``; store it if it is
    not stored yet."""
    if (known := _read_offset(writer, boot)) is not None:
        return known
    with write_transaction(writer):
        # Another process may have stored it meanwhile.
        offset = _read_offset(writer, boot)
        if offset is None:
            offset = time.time_ns() // 1000 - _read_since_boot()
            writer.execute(_WRITE, (boot, offset))
    return offset


def _read_offset(writer: apsw.Connection, boot: str) -> int | None:
    row = writer.execute(_READ).fetchone()
    if row is not None and row[0] == boot and isinstance(row[1], int):
        return row[1]
    return None


def _read_boot_id() -> str | None:
    """Return the host's boot id, ``None`` if it has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _read_since_boot() -> int:
    """Return the microseconds since the host booted, including the time for which it was suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
