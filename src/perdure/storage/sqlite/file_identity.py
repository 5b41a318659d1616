"""Checks that a driver's open files are still the files at its path.

SQLite continues to write into a file that was removed, moved or replaced, and after a restart nothing of that
is found. So the path is compared with the opened file before each commit, after it but before it is answered,
and for each read, except for a read on the event loop itself a moment after the last comparison. If the
content of the file was replaced, its name and inode are the same. This is recognised by the history that the
database keeps of itself (its id, and a number that only rises, once for each time that the log was copied
into the file), and by the number of commits of each thread.
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
from perdure.storage.sql.migrations import write_transaction
from perdure.storage.sql.schema import PREFIX

_HISTORY = f"SELECT id, state FROM {PREFIX}history WHERE one = 1"
_ADVANCE = f"UPDATE {PREFIX}history SET state = state + 1 WHERE one = 1 RETURNING id, state"
_PATIENCE_S = 2.0
_FRESH_S = 0.05
_HEADER = 100
_MAGIC = b"SQLite format 3\0"
_LOG_HEADER = 32
_LOG_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")

_KNOWN_MOST = 10_000

_File = tuple[int, int]
_FileState = tuple[int, int, int]


class FileWatch:
    """Watches the database, its log and the log's index for one driver. Once one of them was replaced, every
    call raises ``DatabaseReplaced``: the process's knowledge of the database may be wrong."""

    def __init__(self, path: Path, writer: apsw.Connection) -> None:
        self._given = path
        # A relative path names another file after a change of directory.
        self.path = Path(os.path.abspath(path))
        self._writer = writer
        # This first read makes SQLite open the log and its index.
        self._id, self._state = _read_history(writer.execute(_HISTORY).fetchall())
        self._log_path = writer.filename_wal
        self._index_path = f"{writer.filename}-shm"
        self._log = os.open(self._log_path, os.O_RDONLY)
        self._examine_lock = threading.Lock()
        self._error_text: str | None = None
        self._checked_at = 0.0
        self._known_commits: dict[int, int] = {}
        # The file's state when the history was last advanced, and the values to remember after the commit.
        self._advanced: _FileState | None = None
        self._advancing: tuple[_FileState | None, int] = None, self._state
        try:
            file = os.stat(self.path)
            self._files = (
                _identify_file(file),
                _identify_file(os.stat(self._log_path)),
                _identify_file(os.stat(self._index_path)),
            )
            self._examined = _change(file)
            self._stored = self._read_stored()
            self._log_after_commit = b"", 0
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
        if log.st_size < self._log_after_commit[1] and self._log_header() == self._log_after_commit[0]:
            raise self._note_replaced("its log was cut short")

    def advance(self) -> None:
        """Advance the history within a transaction, if this is the first one, or the first one since the file
        itself changed."""
        if self._advanced == self._examined:
            return
        examined = self._examined
        database_id, state = _read_history(self._writer.execute(_ADVANCE).fetchall())
        self._compare(database_id, state, self._state + 1)
        self._advancing = examined, state

    def compare(self, thread: int, commits: int) -> None:
        """Raise ``DatabaseReplaced`` if a thread has fewer commits than the driver knows. Called within a
        transaction that writes.

        Args:
            thread: The thread's number.
            commits: Its commits as stored.
        """
        if commits < self._known_commits.get(thread, 0):
            raise self._note_replaced("was brought back to an older state")

    def note_commits(self, commits: Mapping[int, int]) -> None:
        """Remember how many commits the threads have that were written to."""
        if len(self._known_commits) > _KNOWN_MOST:
            self._known_commits.clear()
        self._known_commits.update(commits)

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
        # The header was read before the size: if a log is started in between, its header is not the one that
        # is kept, and it is not taken for a log that was cut short.
        self._log_after_commit = header, os.fstat(self._log).st_size

    def _prove_checkpoint(self) -> None:
        """Raise ``DatabaseReplaced`` unless the log is empty because a checkpoint has copied it into the
        file.

        After a checkpoint SQLite starts a new log. So a further transaction is written. It comes after the
        commit, wherever that is stored, and gives the log a header. If the log is empty even then, another
        checkpoint must have copied it: the file itself must have the history of this transaction.
        """
        try:
            with write_transaction(self._writer):
                database_id, state = _read_history(self._writer.execute(_ADVANCE).fetchall())
        except apsw.BusyError:
            raise
        except (apsw.Error, Corrupt) as error:
            raise self._note_replaced("its log was emptied", written=True) from error
        self._compare(database_id, state, self._state + 1)
        self._state = state
        if self._log_header()[:4] in _LOG_MAGIC:
            return
        stored = self._read_stored()
        if stored is None or stored[0] != self._id or stored[1] < state:
            raise self._note_replaced("its log was emptied", written=True)

    def is_fresh(self) -> bool:
        """Return True if the file was found to be the right one a moment ago. A read then may be answered as
        if it had come at that moment."""
        return self._error_text is None and time.monotonic() - self._checked_at < _FRESH_S

    def check(self) -> None:
        """Raise ``DatabaseReplaced`` if the path does not name the file that is open, or if its content is
        that of another database or an older state."""
        if self._error_text is not None:
            raise DatabaseReplaced(self._error_text)
        now = time.monotonic()
        file = _stat_file(self.path)
        if file is None:
            raise self._note_replaced("was removed or moved away")
        if _identify_file(file) != self._files[0]:
            raise self._note_replaced("was replaced by another file")
        if _change(file) != self._examined:
            self._examine_change()
        self._checked_at = now

    def _examine_change(self) -> None:
        """Examine a file that was written to: by a checkpoint of the log, or by another program."""
        with self._examine_lock:
            file = os.stat(self.path)
            if _change(file) == self._examined:
                return
            if file.st_size < self._examined[0] and self._read_promised_size() > file.st_size:
                raise self._note_replaced("was cut short")
            stored = self._read_stored()
            if self._stored is not None:
                # Another process may be in the middle of a checkpoint, or have ended it since.
                until = time.monotonic() + _PATIENCE_S
                while stored is None and not self._is_incomplete():
                    if time.monotonic() > until:
                        raise self._note_replaced("was overwritten with something else")
                    time.sleep(0.01)
                    stored = self._read_stored()
                if stored is not None:
                    self._compare(*stored, self._stored[1])
            # While the file is incomplete, the last known history stays valid.
            self._stored = stored or self._stored
            self._examined = _change(file)

    def _compare(self, database_id: bytes, state: int, least: int) -> None:
        if database_id != self._id:
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

    def _is_incomplete(self) -> bool:
        """Return True if the file may be incomplete without its log: a checkpoint during reads leaves out
        pages of which the log has a later state. An incomplete file still has a database's header."""
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
        self._error_text = (
            f"{self._given} {what} while it was open; nothing more is read from it or written to it. Stop "
            "every process that uses it, see which file is the right one, and open it again"
        )
        if written:
            return DatabaseReplaced(
                f"{self._error_text}. This write went into the replaced file: repeat it then"
            )
        return DatabaseReplaced(self._error_text)


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


def _identify_file(file: os.stat_result) -> _File:
    return file.st_dev, file.st_ino


def _change(file: os.stat_result) -> _FileState:
    return file.st_size, file.st_mtime_ns, file.st_ctime_ns
