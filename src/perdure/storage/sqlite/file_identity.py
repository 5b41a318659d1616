"""Checks that a driver's open files are still the files at its path.

SQLite continues to write into a file that was removed, moved or replaced, and after a restart nothing of that
is found. So the path is compared with the opened file before each commit, after it and before it is answered,
and for each read, except for a read by the event loop itself a moment after the last comparison. A file of
the same name and inode with replaced content is recognised by the history that the database keeps of itself:
its id, and a number that only rises, once for each time that the log was copied into the file; and by the
number of commits of each thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from perdure.errors import Corrupt, DatabaseReplaced
from perdure.storage.sql.checksums import ADVICE
from perdure.storage.sql.schema import PREFIX

_HISTORY = f"SELECT id, state FROM {PREFIX}history WHERE one = 1"
_ADVANCE = f"UPDATE {PREFIX}history SET state = state + 1 WHERE one = 1 RETURNING id, state"
_PATIENCE_S = 2.0
_FRESH_S = 0.01
_HEADER = 100
_MAGIC = b"SQLite format 3\0"
_LOG_HEADER = 32
_LOG_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")

_KNOWN_MOST = 10_000

_File = tuple[int, int]
_Change = tuple[int, int, int]


class FileWatch:
    """Watches the database, its log and the log's index for one driver. Once one of them was replaced, every
    call raises ``DatabaseReplaced``: the process's knowledge of the database may be wrong."""

    def __init__(self, path: Path, writer: apsw.Connection) -> None:
        self._given = path
        # A relative path names another file after a change of directory.
        self.path = Path(os.path.abspath(path))
        self._writer = writer
        # The first read opens the log and its index.
        self._id, self._state = _read_history(writer.execute(_HISTORY).fetchall())
        self._log_path = writer.filename_wal
        self._index_path = f"{writer.filename}-shm"
        self._log = os.open(self._log_path, os.O_RDONLY)
        self._looking = threading.Lock()
        self._lost: str | None = None
        self._looked_at = 0.0
        self._known: dict[int, int] = {}
        self._advanced: _Change | None = None
        self._advancing: tuple[_Change | None, int] = None, self._state
        try:
            found = os.stat(self.path)
            self._files = (
                _identify_file(found),
                _identify_file(os.stat(self._log_path)),
                _identify_file(os.stat(self._index_path)),
            )
            self._seen = _change(found)
            self._stored = self._read_stored()
            self._log_seen = b"", 0
        except BaseException:
            os.close(self._log)
            raise

    def close(self) -> None:
        os.close(self._log)

    def before_commit(self) -> None:
        """Raise ``DatabaseReplaced`` unless a commit would go into the files that the path names."""
        self.check()
        log = os.fstat(self._log)
        if not log.st_nlink:
            raise self._note_replaced("its log was removed or replaced")
        # A log that SQLite has truncated itself is empty, or has a new header.
        if log.st_size < self._log_seen[1] and self._log_header() == self._log_seen[0]:
            raise self._note_replaced("its log was cut short")

    def advance(self) -> None:
        """Write history within a transaction: the first, and the first since the file itself changed."""
        if self._advanced == self._seen:
            return
        seen = self._seen
        found, state = _read_history(self._writer.execute(_ADVANCE).fetchall())
        self._compare(found, state, self._state + 1)
        self._advancing = seen, state

    def compare(self, thread: int, commits: int) -> None:
        """Raise ``DatabaseReplaced`` if a thread has fewer commits than the driver knows. Called within a
        transaction that writes.

        Args:
            thread: The thread's number.
            commits: Its commits as stored.
        """
        if commits < self._known.get(thread, 0):
            raise self._note_replaced("was brought back to an older state")

    def note_commits(self, commits: Mapping[int, int]) -> None:
        """Remember the numbers of commits of threads that were written to."""
        if len(self._known) > _KNOWN_MOST:
            self._known.clear()
        self._known.update(commits)

    def after_commit(self) -> None:
        """Raise ``DatabaseReplaced`` if the commit may not be in the files that the path names."""
        self._advanced, self._state = self._advancing
        self.check()
        log = _stat_file(self._log_path)
        if log is None or _identify_file(log) != self._files[1]:
            raise self._note_replaced("its log was removed or replaced", written=True)
        index = _stat_file(self._index_path)
        if index is None or _identify_file(index) != self._files[2]:
            raise self._note_replaced("the index of its log was removed or replaced", written=True)
        header = self._log_header()
        if header[:4] not in _LOG_MAGIC:
            self._prove_checkpoint()
            header = self._log_header()
        # In this order: a log that is started in between has another header than the one that is kept.
        self._log_seen = header, os.fstat(self._log).st_size

    def _prove_checkpoint(self) -> None:
        """Raise ``DatabaseReplaced`` unless an empty log is one that a checkpoint has copied into the file.

        SQLite then starts a new log. So a further transaction is written: it gives the log a header, and
        comes after the commit, wherever that is stored. If the log is empty again after that, the commit is
        in the file itself.
        """
        writer = self._writer
        try:
            writer.execute("BEGIN IMMEDIATE")
            try:
                found, state = _read_history(writer.execute(_ADVANCE).fetchall())
                writer.execute("COMMIT")
            finally:
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
        except apsw.BusyError:
            raise
        except (apsw.Error, Corrupt) as error:
            raise self._note_replaced("its log was emptied", written=True) from error
        self._compare(found, state, self._state + 1)
        self._state = state
        if self._log_header()[:4] in _LOG_MAGIC:
            return
        stored = self._read_stored()
        if stored is None or stored[0] != self._id or stored[1] < state:
            raise self._note_replaced("its log was emptied", written=True)

    def is_fresh(self) -> bool:
        """Return True if the file was found to be the right one a moment ago. A read then may be answered as
        if it had come at that moment."""
        return self._lost is None and time.monotonic() - self._looked_at < _FRESH_S

    def check(self) -> None:
        """Raise ``DatabaseReplaced`` if the path does not name the file that is open, or its content is that
        of another database or an older one."""
        if self._lost is not None:
            raise DatabaseReplaced(self._lost)
        now = time.monotonic()
        found = _stat_file(self.path)
        if found is None:
            raise self._note_replaced("was removed or moved away")
        if _identify_file(found) != self._files[0]:
            raise self._note_replaced("was replaced by another file")
        if _change(found) != self._seen:
            self._look_again()
        self._looked_at = now

    def _look_again(self) -> None:
        """Examine a file that was written to: by a checkpoint of the log, or by another program."""
        with self._looking:
            found = os.stat(self.path)
            if _change(found) == self._seen:
                return
            if found.st_size < self._seen[0] and self._read_promised_size() > found.st_size:
                raise self._note_replaced("was cut short")
            stored = self._read_stored()
            if self._stored is not None:
                # Another process may be in the middle of a checkpoint, or have ended it since.
                until = time.monotonic() + _PATIENCE_S
                while stored is None and not self._is_in_parts():
                    if time.monotonic() > until:
                        raise self._note_replaced("was overwritten with something else")
                    time.sleep(0.01)
                    stored = self._read_stored()
                if stored is not None:
                    self._compare(*stored, self._stored[1])
            # For a file in parts the last known history stays valid, until a checkpoint completes the file.
            self._stored = stored or self._stored
            self._seen = _change(found)

    def _compare(self, found: bytes, state: int, least: int) -> None:
        if found != self._id:
            raise self._note_replaced("was overwritten with another database")
        if state < least:
            raise self._note_replaced("was brought back to an older state")

    def _read_stored(self) -> tuple[bytes, int] | None:
        """Return the history in the file itself, without the log; ``None`` if it cannot be read. The file is
        opened by SQLite only: closing it any other way would release the locks of this process."""
        try:
            uri = f"file:{quote(str(self.path))}?immutable=1"
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOMUTEX
            with closing(apsw.Connection(uri, flags=flags)) as connection:
                return _read_history(connection.execute(_HISTORY).fetchall())
        except (apsw.Error, Corrupt):
            return None

    def _is_in_parts(self) -> bool:
        """Return True if the file may be incomplete without its log: a checkpoint beside readers leaves out
        the pages that the log has in a later state. The file then has a database's header."""
        log = _stat_file(self._log_path)
        has_log = log is not None and log.st_size > 0 and _identify_file(log) == self._files[1]
        return has_log and self._read_header().startswith(_MAGIC)

    def _read_promised_size(self) -> int:
        """Return the size that the file's own header states; without a header, more than any file has."""
        header = self._read_header()
        if len(header) < _HEADER:
            return 1 << 62
        page = int.from_bytes(header[16:18], "big")
        return (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")

    def _read_header(self) -> bytes:
        """Return the file's header, empty if it cannot be read."""
        flags = [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0]
        file = apsw.VFSFile("", str(self.path), flags)
        try:
            return file.xRead(_HEADER, 0)
        except apsw.IOError:
            return b""
        finally:
            file.xClose()

    def _log_header(self) -> bytes:
        return os.pread(self._log, _LOG_HEADER, 0)

    def _note_replaced(self, what: str, *, written: bool = False) -> DatabaseReplaced:
        self._lost = (
            f"{self._given} {what} while it was open; nothing more is read from it or written to it. Stop "
            "every process that uses it, see which file is the right one, and open it again"
        )
        if written:
            return DatabaseReplaced(f"{self._lost}. This write went into the replaced file: repeat it then")
        return DatabaseReplaced(self._lost)


def _read_history(rows: list[Any]) -> tuple[bytes, int]:
    match rows:
        case [(bytes(found), int(state))]:
            return found, state
        case _:
            raise Corrupt(f"the database has no history of itself; {ADVICE}")


def _stat_file(path: Path | str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _identify_file(found: os.stat_result) -> _File:
    return found.st_dev, found.st_ino


def _change(found: os.stat_result) -> _Change:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
