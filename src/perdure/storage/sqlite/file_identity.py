"""Checks that a driver's open files are still the files at its path.

SQLite continues to write into a file that was removed, moved or replaced, and after a restart nothing of that
is found. So the path is compared with the opened file before each commit, after it but before it is answered,
and for each read, except for a read on the event loop itself a moment after the last comparison. If the
content of the file was replaced, its name and inode are the same. This is recognised by the history that the
database keeps of itself (its id, and a number that only rises, once for each time that the log was copied
into the file), and by the number of commits of each thread.

Other processes may write at any time. So the log's size counts only within a transaction that writes, during
which no other process changes the log, and a strange state of the file only if it lasts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
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
_FRAME_HEADER = 24
_LOG_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")

_SIGNS = (DatabaseReplaced, Corrupt, apsw.CorruptError, apsw.NotADBError)

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
        ((page_size,),) = writer.execute("PRAGMA page_size").fetchall()
        self._frame_size = _FRAME_HEADER + int(str(page_size))
        # The log's size at the beginning of a transaction, and the least size that it is known to have after
        # the last one, unless it was begun anew.
        self._log_size = self._log_least = 0
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
        except BaseException:
            os.close(self._log)
            raise

    def close(self) -> None:
        os.close(self._log)

    def before_commit(self) -> None:
        """Raise ``DatabaseReplaced`` unless a commit would go into the files that the path names."""
        self.check()
        if not os.fstat(self._log).st_nlink:
            raise self._note_replaced("its log was removed or replaced")

    def advance(self) -> None:
        """Advance the history within a transaction that has written nothing yet, if this is the first one, or
        the first one since the file itself changed, or if the log is shorter than expected. Then it was begun
        anew, or raise ``DatabaseReplaced``."""
        # What a transaction before this one advanced may have been rolled back.
        self._advancing = self._advanced, self._state
        self._log_size = max(os.fstat(self._log).st_size, _LOG_HEADER)
        self._count_frames()
        is_log_whole = self._log_size >= self._log_least and self._has_log_header()
        if self._advanced == self._examined and is_log_whole:
            return
        examined = self._examined
        database_id, state = _read_history(self._writer.execute(_ADVANCE).fetchall())
        self._compare(database_id, state, self._state + 1)
        self._advancing = examined, state
        if not is_log_whole:
            self._prove_log()

    def _prove_log(self) -> None:
        """Raise ``DatabaseReplaced`` if the log has not all frames that SQLite has written into it.

        SQLite writes a frame behind the last one of which it knows, or begins the log anew. In both cases the
        log gets longer by that frame at most, unless others before it are missing.
        """
        self._writer.cache_flush()
        most = self._log_size + self._count_frames() * self._frame_size
        if os.fstat(self._log).st_size > most or not self._has_log_header():
            raise self._note_replaced("its log was cut short")

    def _count_frames(self) -> int:
        """Return how many frames the writer has written since the last call."""
        return self._writer.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, True)[0]

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
        self._note_transaction()
        self.check()
        log = _stat_file(self._log_path)
        if log is None or _identify_file(log) != self._files[1]:
            raise self._note_replaced("its log was removed or replaced", written=True)
        index = _stat_file(self._index_path)
        if index is None or _identify_file(index) != self._files[2]:
            raise self._note_replaced("the index of its log was removed or replaced", written=True)
        if not self._has_log_header():
            self._prove_checkpoint()

    def _note_transaction(self) -> None:
        self._advanced, self._state = self._advancing
        self._log_least = self._log_size + self._count_frames() * self._frame_size

    def _prove_checkpoint(self) -> None:
        """Raise ``DatabaseReplaced`` unless the log is empty because a checkpoint has copied it into the
        file. A further transaction shows it: only SQLite knows whether the log must have frames."""
        try:
            with write_transaction(self._writer):
                self.advance()
        except (apsw.Error, Corrupt, DatabaseReplaced) as error:
            if not (isinstance(error, _SIGNS) or _is_short_read(error)):
                raise
            raise self._note_replaced("its log was emptied", written=True) from error
        self._note_transaction()

    def is_fresh(self) -> bool:
        """Return True if the file was found to be the right one a moment ago. A read then may be answered as
        if it had come at that moment."""
        return self._error_text is None and time.monotonic() - self._checked_at < _FRESH_S

    def explain(self, error: Exception) -> None:
        """Raise ``DatabaseReplaced`` if that is the cause of an error of SQLite."""
        self.check()
        if _is_short_read(error):
            raise self._note_replaced("its log was cut short") from error

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
        """Examine a file that was written to: by a checkpoint of the log, or by another program. Another
        process may be in the middle of a checkpoint, or end one meanwhile."""
        with self._examine_lock:
            until = time.monotonic() + _PATIENCE_S
            while _change(file := os.stat(self.path)) != self._examined:
                stored = self._read_stored()
                difference = self._find_difference(file, stored)
                if difference is None:
                    # While the file is incomplete, the last known history stays valid.
                    self._stored = stored or self._stored
                    self._examined = _change(file)
                    return
                if time.monotonic() > until:
                    raise self._note_replaced(difference)
                time.sleep(0.01)

    def _find_difference(self, file: os.stat_result, stored: tuple[bytes, int] | None) -> str | None:
        if file.st_size < self._examined[0] and not self._has_pages_beyond(file.st_size):
            return "was cut short"
        if self._stored is None:
            return None
        if stored is None:
            return None if self._is_incomplete() else "was overwritten with something else"
        return self._find_other_history(*stored, self._stored[1])

    def _compare(self, database_id: bytes, state: int, least: int) -> None:
        if difference := self._find_other_history(database_id, state, least):
            raise self._note_replaced(difference)

    def _find_other_history(self, database_id: bytes, state: int, least: int) -> str | None:
        if database_id != self._id:
            return "was overwritten with another database"
        return "was brought back to an older state" if state < least else None

    def _read_stored(self) -> tuple[bytes, int] | None:
        """Return the history in the file itself, without the log; ``None`` if it cannot be read. The file is
        opened by SQLite only: closing it any other way would release the locks of this process."""
        try:
            uri = f"file:{quote(str(self.path))}?immutable=1"
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOMUTEX
            with closing(apsw.Connection(uri, flags=flags)) as connection:
                return _read_history(connection.execute(_HISTORY).fetchall())
        except (apsw.CantOpenError, apsw.NoMemError):
            # Of this the process is the cause, for example with too many open files.
            raise
        except (apsw.Error, Corrupt):
            return None

    def _is_incomplete(self) -> bool:
        """Return True if the file may be incomplete without its log: a checkpoint during reads leaves out
        pages of which the log has a later state. An incomplete file still has a database's header."""
        log = _stat_file(self._log_path)
        has_log = log is not None and log.st_size > 0 and _identify_file(log) == self._files[1]
        return has_log and self._read_header().startswith(_MAGIC)

    def _has_pages_beyond(self, size: int) -> bool:
        """Return True if the log has all pages that the file should have beyond a size: a checkpoint is under
        way, or its process was killed."""
        header = self._read_header()
        if len(header) < _HEADER:
            return False
        page_size = self._frame_size - _FRAME_HEADER
        have, promised = size // page_size, int.from_bytes(header[28:32], "big")
        pages = {page for page in self._read_logged_pages() if have < page <= promised}
        return len(pages) == max(promised - have, 0)

    def _read_logged_pages(self) -> Iterator[int]:
        """Yield the numbers of the pages in the log."""
        salt = os.pread(self._log, 8, 16)
        for offset in range(_LOG_HEADER, os.fstat(self._log).st_size, self._frame_size):
            frame = os.pread(self._log, _FRAME_HEADER, offset)
            if frame[8:16] == salt:
                yield int.from_bytes(frame[:4], "big")

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

    def _has_log_header(self) -> bool:
        return os.pread(self._log, len(_LOG_MAGIC[0]), 0) in _LOG_MAGIC

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


def _is_short_read(error: Exception) -> bool:
    """Return True if SQLite found the end of a file where it has written a frame of the log."""
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHORT_READ


def _stat_file(path: Path | str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _identify_file(file: os.stat_result) -> _File:
    return file.st_dev, file.st_ino


def _change(file: os.stat_result) -> _FileState:
    return file.st_size, file.st_mtime_ns, file.st_ctime_ns
