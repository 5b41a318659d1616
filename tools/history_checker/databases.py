"""The databases of recorded deployments, each of its own, and what can happen to them from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.servers import postgres, valkey

Backend = Literal["sqlite", "postgresql", "redis"]
BACKENDS: tuple[Backend, ...] = ("sqlite", "postgresql", "redis")

_HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)
connection.execute("BEGIN IMMEDIATE")
time.sleep(float(sys.argv[2]))
connection.execute("ROLLBACK")
"""
_CHECKPOINT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)
connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
"""


class Database(ABC):
    """A database under a URL that can be away for a while."""

    url: str

    @abstractmethod
    def begin_outage(self) -> None:
        """Make it unusable; what it has acknowledged stays."""

    @abstractmethod
    def end_outage(self) -> None:
        """Make it usable again."""

    def disturb(self) -> str | None:
        """Do what another program may do to it; return a name for it, or ``None`` if there is nothing."""
        return None


class _Sqlite(Database):
    def __init__(self, folder: Path) -> None:
        self._file = folder / "threads.db"
        self.url = f"sqlite:///{self._file}"
        self._holder: subprocess.Popen[bytes] | None = None

    def begin_outage(self) -> None:
        # A file has no server: that nobody can write is what comes nearest.
        self._holder = subprocess.Popen([sys.executable, "-c", _HOLD, str(self._file), "60"])

    def end_outage(self) -> None:
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()

    def disturb(self) -> str | None:
        subprocess.run([sys.executable, "-c", _CHECKPOINT, str(self._file)], timeout=60, check=False)
        return "checkpoint of the log by another program"


class _Postgres(Database):
    def __init__(self, server: postgres.Postgres) -> None:
        self._server = server
        self.url = server.url(pool=8, patience=1)

    def begin_outage(self) -> None:
        self._server.stop(signal.SIGQUIT)

    def end_outage(self) -> None:
        self._server.start()


class _Redis(Database):
    def __init__(self, server: valkey.Server) -> None:
        self._server = server
        self.url = server.url

    def begin_outage(self) -> None:
        self._server.kill()

    def end_outage(self) -> None:
        self._server.start()


@contextmanager
def open_database(backend: Backend) -> Iterator[Database]:
    """Start a database; it is removed afterwards."""
    if backend == "sqlite":
        with tempfile.TemporaryDirectory(prefix="perdure-history-") as folder:
            yield _Sqlite(Path(folder))
    elif backend == "postgresql":
        server = postgres.Postgres(durable=True)
        try:
            yield _Postgres(server)
        finally:
            server.close()
    else:
        cache = valkey.Server(*valkey.DURABLE)
        try:
            yield _Redis(cache)
        finally:
            cache.stop()
