"""SQLite files that are only read: copies, backups, and files that this process may not write.

A file whose folder cannot be written, and which has no write-ahead log beside it, is opened as immutable:
otherwise SQLite would create files beside it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import quote

import apsw

from perdure.errors import Corrupt, NotAllowed, Unavailable
from perdure.model.ops import Fetch, Find, Now
from perdure.model.program import Effect
from perdure.model.records import Partition
from perdure.storage.port import Capabilities, CommitLimits
from perdure.storage.sqlite import integrity, rows
from perdure.storage.sqlite.errors import translate_errors
from perdure.storage.sqlite.forks import CALLS

R = TypeVar("R")

_BUSY_MS = 5_000
_READERS = 4


class SqliteReader:
    """One SQLite file, for reading: a driver of its own, without the writer. Its time is the host's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # The limits of a driver that writes: a write is refused because it is a write, not for its size.
        self.limits = CommitLimits(ops=1_000_000, bytes=256 << 20)
        self._free: list[apsw.Connection] = [open_connection(path)]
        self._lock = threading.Lock()
        self._closed = False
        self._pool = ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="perdure-read")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            has_listing=True,
            is_local=True,
            searches_items=True,
            examiner=self,
            count_bytes=partial(count_bytes, self._path),
        )

    def perform(self, effect: Effect[R]) -> R:
        if isinstance(effect, Now):
            return cast(R, time.time_ns() // 1000)
        if not isinstance(effect, Fetch | Find):
            raise NotAllowed(f"{self._path} is open for reading only; nothing was written")
        with self._borrow_connection(getattr(effect, "partition", None)) as connection:
            return cast(R, rows.read(connection, effect))

    async def aperform(self, effect: Effect[R]) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self.perform, effect)

    def examine(self, partition: Partition | None) -> list[str]:
        """Return the damage found in the records of a partition, or, with ``None``, in the file."""
        try:
            with self._borrow_connection(partition) as connection:
                if partition is None:
                    return integrity.examine_file(connection)
                return integrity.examine_partition(connection, partition)
        except Corrupt as error:
            return [str(error)]

    def trust(self, partition: Partition) -> bool:
        """Return False: nothing is written."""
        return False

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        with self._lock:
            self._closed = True
            while self._free:
                self._free.pop().close()

    @contextmanager
    def _borrow_connection(self, partition: Partition | None) -> Iterator[apsw.Connection]:
        with self._lock:
            if self._closed:
                raise Unavailable(f"{self._path} was closed")
            connection = self._free.pop() if self._free else None
        with translate_errors(self._path, partition):
            connection = connection or open_connection(self._path)
            try:
                yield connection
            except BaseException:
                connection.close(True)
                raise
        self._put_back(connection)

    def _put_back(self, connection: apsw.Connection) -> None:
        with self._lock:
            if self._closed:
                connection.close()
            else:
                self._free.append(connection)


def count_bytes(path: Path) -> int:
    """Return the bytes of a database's file and of the log beside it."""
    total = 0
    for file in (path, Path(f"{path}-wal")):
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def open_connection(path: Path) -> apsw.Connection:
    """Open the file to read, with the log beside it if there is one."""
    name = quote(os.fspath(path.absolute()))
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOMUTEX
    mode = "immutable=1" if _is_immutable(path) else "mode=ro"
    connection = CALLS.add_connection(apsw.Connection(f"file:{name}?{mode}", flags=flags))
    connection.set_busy_timeout(_BUSY_MS)
    connection.execute("PRAGMA query_only = 1")
    connection.execute("PRAGMA cache_size = -16384")
    return connection


def _is_immutable(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        return False
    return not os.access(path.absolute().parent, os.W_OK) or not os.access(path, os.W_OK)
