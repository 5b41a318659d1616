"""Steps of SQLite on its files, in this process or in a child of it that is ended at one of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from perdure.model.ops import Commit, Expect, Put
from perdure.model.records import DOCUMENT, Partition
from perdure.storage.sqlite.driver import SqliteDriver

Step = tuple[str, str, int]
"""What SQLite does to a file: ``log`` or ``file``, the call, and the offset or size."""


class Disk(apsw.VFS):
    """SQLite's own files; calls ``before`` with each step of writing."""

    def __init__(self) -> None:
        self.before: Callable[[Step], None] = lambda _step: None
        super().__init__("perdure-steps", "", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return File(self, name, flags)


class File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        self._which = "log" if path.endswith("-wal") else "file"
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.before((self._which, "write", offset))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.before((self._which, "sync", 0))
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._disk.before((self._which, "cut", size))
        super().xTruncate(size)


def commit(driver: SqliteDriver, thread: str, number: int, size: int = 10) -> Any:
    """Write a document of a thread, with a body of so many bytes."""
    put = Put(DOCUMENT, ("d", str(number)), {"updated_at": 1}, os.urandom(size), Expect.ANY, 1)
    return driver.perform(Commit(Partition("", thread), (put,)))


def checkpoint(path: Path, mode: str = "PASSIVE") -> None:
    with closing(apsw.Connection(str(path))) as other:
        ((busy, frames, copied),) = other.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
    assert (busy, frames) == (0, copied)
