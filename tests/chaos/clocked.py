"""Servers as processes: a test sets the clock of their database, and the clocks of their hosts are wrong.

The clock goes on as real time does from where the test put it, so that leases expire; the test sets it ahead
to the next moment that it wants to see.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from pathlib import Path
from typing import Any, TypeVar

from perdure.model.ops import Now
from perdure.model.program import Effect
from perdure.runtime.clock import DatabaseClock
from perdure.storage.port import Driver, WrappingDriver
from perdure.storage.url import backend_of
from tests.chaos import fleet
from tests.chaos.child_processes import skew

R = TypeVar("R")
_FORM = struct.Struct("<qq")


class SharedClock:
    """Time in microseconds since 1970, the same for all processes that have the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def now(self) -> int:
        """Return the time."""
        base, since = _FORM.unpack(os.pread(self._file, _FORM.size, 0))
        return int(base + (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - since) // 1000)

    def set(self, moment: int) -> None:
        """Let it be ``moment``, and go on from there."""
        os.pwrite(self._file, _FORM.pack(moment, time.clock_gettime_ns(time.CLOCK_MONOTONIC)), 0)


class _Clocked(WrappingDriver):
    """Driver of a database with the shared clock."""

    def __init__(self, inner: Driver, clock: SharedClock) -> None:
        super().__init__(inner)
        self._clock = clock

    def perform(self, effect: Effect[R]) -> R:
        if isinstance(effect, Now):
            now: Any = self._clock.now()
            return now
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        if isinstance(effect, Now):
            now: Any = self._clock.now()
            return now
        return await self._inner.aperform(effect)


def _live(words: tuple[str, ...], place: tuple[str, str, str], database: str, skew_s: float) -> None:
    """Be ``perdure`` with a command line, on a host whose clock is ``skew_s`` ahead.

    Args:
        words: The command line.
        place: The folder, the log and the file of the clock.
        database: The database that has the shared clock.
        skew_s: Seconds.
    """
    folder, log, file = place
    backend: Any = backend_of(database)
    opened, clock = backend.open_driver, SharedClock(Path(file))
    backend.open_driver = lambda url: _Clocked(opened(url), clock)
    # The clock is set ahead: its answers may not be remembered.
    defaults: Any = DatabaseClock.__init__.__kwdefaults__
    defaults["refresh_s"] = -1.0
    os.environ.update(
        PERDURE_RUNTIME_LEASE="1.5", PERDURE_RUNTIME_POLL="0.1", PERDURE_RUNTIME_MISSED_CRONS="all"
    )
    skew(skew_s)
    fleet.live(words, folder, log)


class ClockedServer(fleet.Server):
    """A server that starts crons and works on what they start."""

    def __init__(self, name: str, database: str, folder: Path, skew_s: float) -> None:
        super().__init__(name, database, folder)
        graph = f"{fleet.GRAPH}=./agents.py:graph"
        self._words = ("serve", graph, "--db", database, "--port", str(self.port))
        self._database, self._skew_s = database, skew_s

    def start(self) -> None:
        self._heard = len(self._log.read_text()) if self._log.exists() else 0
        self.gone = asyncio.Event()
        place = (str(self._folder), str(self._log), str(self._folder / "clock"))
        arguments = (self._words, place, self._database, self._skew_s)
        self._process = fleet.processes().Process(target=_live, args=arguments, daemon=True)
        self._process.start()
