"""SQLite: one writer thread that groups commits, and readers that never wait for it.

Commits that arrive while others are being written share the next transaction: one fsync, many callers, each
answered when its own write is on disk (WAL, ``synchronous=FULL``). Several processes may share the file.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

import apsw

from perdure.errors import BadUrl, Corrupt, PerdureError, Unavailable
from perdure.model.ops import (
    Commit,
    Committed,
    Delete,
    Drop,
    Expect,
    Fetch,
    Find,
    Get,
    Now,
    Op,
    Put,
    Refused,
    Stage,
)
from perdure.model.program import Effect
from perdure.model.records import KINDS, RESERVED, WRITE, Key, Kind, Partition
from perdure.storage.batching import Batcher, PendingRequest
from perdure.storage.port import Capabilities, CommitLimits
from perdure.storage.sql import checksums, migrations, schema
from perdure.storage.sql import compile as sql
from perdure.storage.sqlite import integrity, rows
from perdure.storage.sqlite.application_statements import (
    SqliteStatements,
    enforce_foreign_keys,
    execute_all,
)
from perdure.storage.sqlite.errors import translate_errors
from perdure.storage.sqlite.file_identity import FileWatch
from perdure.storage.sqlite.forks import CALLS
from perdure.storage.sqlite.host_clock import HostClock
from perdure.storage.sqlite.reader import SqliteReader, count_bytes, open_connection
from perdure.storage.sqlite.second_names import refuse_other_names

R = TypeVar("R")

SCHEMA_VERSION = schema.SCHEMA_VERSION

_BUSY_MS = 30_000
_CUT_MS = 5_000
_PAGE_BYTES = 1024
_LOG_BYTES = 4 << 20
_GROUP_MAX = 512
_ON_LOOP_MOST = 16
_ON_LOOP_S = 0.01
"""The time after which quick reads on an event loop let others have a turn."""


@dataclass(frozen=True, slots=True)
class _Settle(Effect[bool]):
    """Accept the records of a partition, as ``port.Examines.trust`` says: a request, as it has to be executed
    by the writer thread."""

    partition: Partition


class SqliteDriver:
    """One SQLite file. Opening it neither creates nor migrates the schema."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with translate_errors(path):
            self._writer = connect(path)
            try:
                self._clock = HostClock(self._writer)
                self._watch = FileWatch(path, self._writer)
            except BaseException:
                self._writer.close()
                raise
        self.limits = CommitLimits(ops=1_000_000, bytes=256 << 20)
        self._closed = False
        self._turn_left_at = time.monotonic()
        self._statements = SqliteStatements()
        self._written: dict[int, int] = {}
        self._readers: list[apsw.Connection] = []
        self._readers_lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="perdure-read")
        self._commits = Batcher(self._write_group, name=str(path), most=_GROUP_MAX, distant=False)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            has_listing=True,
            is_local=True,
            searches_items=True,
            keeps_fields=True,
            examiner=self,
            statements=self._statements,
            count_bytes=partial(count_bytes, self._path),
            cut_log=self._cut_log,
        )

    def perform(self, effect: Effect[R]) -> R:
        if isinstance(effect, Fetch | Find | Now):
            return cast(R, self._read(effect))
        return self._commits.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        if isinstance(effect, Fetch | Find | Now):
            if self._is_quick(effect):
                now = time.monotonic()
                if now - self._turn_left_at > _ON_LOOP_S:
                    self._turn_left_at = now
                    await asyncio.sleep(0)
                # A failed read is repeated in the pool, where the file is examined and the cause is found.
                with suppress(PerdureError):
                    return cast(R, self._read(effect, look=False))
            self._commits.refuse_when_closed()
            loop = asyncio.get_running_loop()
            return cast(R, await loop.run_in_executor(self._pool, self._read, effect))
        return await self._commits.aperform(effect)

    def close(self) -> None:
        if self._commits.is_inherited:
            self._commits.close()
            return  # the fork has closed the connections, and the inherited lock may never be released
        with self._readers_lock:
            if self._closed:
                return
            self._closed = True
        self._commits.close()
        self._pool.shutdown(wait=True)
        with translate_errors(self._path), self._readers_lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()
            self._writer.close()
        self._watch.close()

    def examine(self, partition: Partition | None) -> list[str]:
        """Return the damage found in the records of a partition, or, with ``None``, in the file."""
        if partition is None:
            try:
                with self._borrow_reader(None) as reader:
                    return integrity.examine_file(reader)
            except Corrupt as error:
                return [str(error)]
        with self._borrow_reader(partition) as reader:
            return integrity.examine_partition(reader, partition)

    def trust(self, partition: Partition) -> bool:
        """See ``port.Examines``."""
        return self._commits.perform(_Settle(partition))

    def _cut_log(self) -> bool:
        """See ``port.Capabilities.cut_log``."""
        self._commits.refuse_when_closed()
        # The writer may be in a transaction, in which SQLite does not copy the log.
        with translate_errors(self._path), closing(connect(self._watch.path)) as connection:
            connection.set_busy_timeout(_CUT_MS)
            ((is_busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return not is_busy

    # Writing

    def _write_group(self, group: Sequence[PendingRequest]) -> None:
        try:
            with translate_errors(self._path):
                self._transact(group, optimistic=True)
        except Exception:
            # One bad write must not fail the others: each gets a transaction of its own.
            for job in group:
                try:
                    with translate_errors(self._path, _partition_of(job.effect)):
                        self._transact([job], optimistic=False)
                        self._watch.after_commit()
                except Exception as error:
                    job.error = error
            return
        try:
            with translate_errors(self._path):
                self._watch.after_commit()
        except Exception as error:
            # The group was committed, perhaps to a wrong file. It is not repeated: that would be refused.
            for job in group:
                job.error = error

    def _transact(self, group: Sequence[PendingRequest], *, optimistic: bool) -> None:
        """Write a group in one transaction. With ``optimistic``, nothing is read for puts that expect no
        record: the table's constraint fails instead, the transaction is rolled back, and the caller repeats
        each write in a transaction of its own."""
        writer = self._writer
        self._watch.before_commit()
        has_statements = any(isinstance(job.effect, Commit) and job.effect.statements for job in group)
        with enforce_foreign_keys(writer) if has_statements else nullcontext():
            try:
                with migrations.write_transaction(writer):
                    migrations.check_again(writer, self._path)
                    self._watch.advance()
                    self._written.clear()
                    for job in group:
                        job.error = None
                        job.answer = self._apply(job.effect, optimistic)
            except Exception as error:
                # If the file was replaced, SQLite may raise any error: the replacement is reported instead.
                self._watch.explain(error)
                raise
            self._watch.note_commits(self._written)

    def _drop(self, thread: rows.CatalogueRow | None, effect: Drop) -> Committed | Refused:
        writer = self._writer
        existing: rows.Existing = {}
        if thread is not None:
            existing = rows.read_existing(writer, thread.pk, effect.checks, optimistic=False)
        for check in effect.checks:
            if not rows.holds(check, existing):
                return Refused(check.kind, check.key)
        if thread is None or (effect.if_empty and rows.has_records(writer, thread.pk)):
            return Committed()
        for kind in KINDS:
            writer.execute(sql.drop(kind), (thread.pk,))
        writer.execute(sql.THREAD_DROP, (thread.pk,))
        return Committed()

    def _apply(self, effect: Effect[Any], optimistic: bool) -> Any:
        writer = self._writer
        partition = _partition_of(effect) or RESERVED
        if isinstance(effect, _Settle):
            return integrity.settle_partition(writer, partition)
        thread = rows.look_up(writer, partition)
        if isinstance(effect, Drop):
            return self._drop(thread, effect)
        if not isinstance(effect, Commit | Stage):
            raise TypeError(f"not a storage request: {type(effect).__name__}")
        ops: tuple[Op, ...] = effect.ops
        existing = {} if thread is None else rows.read_existing(writer, thread.pk, ops, optimistic=optimistic)
        if thread is not None:
            self._watch.compare(thread.pk, thread.commits)
        if isinstance(effect, Commit):
            for op in ops:
                if not rows.holds(op, existing):
                    return Refused(op.kind, op.key)
        if thread is None:
            thread = rows.insert_thread(writer, partition)
        self._write(thread, partition, ops, existing)
        if isinstance(effect, Commit) and effect.statements:
            execute_all(writer, effect.statements)
        return Committed() if isinstance(effect, Commit) else None

    def _write(
        self,
        thread: rows.CatalogueRow,
        partition: Partition,
        ops: Sequence[Op],
        existing: rows.Existing,
    ) -> None:
        """Carry out operations whose expectations hold.

        Args:
            thread: The partition's row of the catalogue.
            partition: The partition.
            ops: The operations, at most one for each record.
            existing: The records that are overwritten, from ``rows.read_existing``.
        """
        writer, t, total, head = self._writer, thread.pk, thread.checksum_sum, thread.head_checksum
        puts: dict[tuple[Kind, bool], list[tuple[Any, ...]]] = {}
        deletes: dict[Kind, list[Key]] = {}
        sum_change = 0
        for op in ops:
            old_checksum = new_checksum = 0
            if isinstance(op, Put):
                stored = existing.get((op.kind, op.key))
                fields = sql.fields(op)
                if stored is not None:
                    old_checksum = checksums.read(stored[1])
                    rows.keep_field(fields, op, stored, partition)
                row = sql.row(op, fields, t, partition)
                new_checksum = row[-1]
                puts.setdefault((op.kind, op.expect is Expect.ABSENT), []).append(row)
            elif isinstance(op, Delete):
                deletes.setdefault(op.kind, []).append(op.key)
            else:
                continue
            if op.kind.grows is None:
                sum_change += new_checksum - old_checksum
            if (op.kind, op.key) == checksums.ROOT_HEAD:
                head = new_checksum
        for kind, keys in deletes.items():
            removed = rows.delete(writer, kind, t, keys)
            if kind.grows is None:
                sum_change -= sum(map(checksums.read, removed))
        for (kind, is_new), values in puts.items():
            rows.write(writer, kind, values, new=is_new)
        if not puts and not deletes:
            return
        commits = thread.commits + 1
        writer.execute(sql.THREAD_SUM, (checksums.add(total, sum_change), head, commits, t))
        self._written[t] = commits

    # Reading

    def _is_quick(self, effect: Fetch | Find | Now) -> bool:
        """Return True for a read that takes less time than passing it to a thread: of the clock, or of a few
        keys by an open connection, if the file was examined a moment ago."""
        if not self._watch.is_fresh():
            return False
        return isinstance(effect, Now) or (
            isinstance(effect, Fetch) and bool(self._readers) and _is_small(effect)
        )

    @contextmanager
    def _borrow_reader(self, partition: Partition | None, *, look: bool = True) -> Iterator[apsw.Connection]:
        self._commits.refuse_when_closed()
        with self._readers_lock:
            self._commits.refuse_when_closed()
            reader = self._readers.pop() if self._readers else None
        with translate_errors(self._path, partition):
            try:
                if reader is None:
                    # This opens the file that is at the path now, which has to be examined.
                    reader, look = connect(self._watch.path, read_only=True), True
                try:
                    yield reader
                except BaseException:
                    # After an interruption, such as Ctrl-C, a statement may be unfinished, and block closing.
                    reader.close(True)
                    raise
            except Exception as error:
                # If the file was replaced, SQLite may raise any error: the replacement is reported instead.
                if look:
                    self._watch.explain(error)
                raise
            self._put_back(reader)
            if look:
                self._watch.check()

    def _put_back(self, reader: apsw.Connection) -> None:
        with self._readers_lock:
            if self._closed:
                reader.close()
            else:
                self._readers.append(reader)

    def _read(self, effect: Fetch | Find | Now, *, look: bool = True) -> Any:
        """Return the result of an effect that reads; with ``look``, also examine the file, which may
        block."""
        if isinstance(effect, Now):
            self._commits.refuse_when_closed()
            if look:
                with translate_errors(self._path):
                    self._watch.check()
            return self._clock.now()
        with self._borrow_reader(_partition_of(effect), look=look) as reader:
            return rows.read(reader, effect)


def connect(path: Path, *, read_only: bool = False) -> apsw.Connection:
    """Open the file, which must exist, with the settings on which durability depends."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX
    connection = CALLS.add_connection(apsw.Connection(os.fspath(path), flags=flags))
    connection.set_busy_timeout(_BUSY_MS)
    if not read_only:
        # Takes effect on a new file only. A commit changes a row in each of about ten pages, and writes these
        # pages as a whole, so small pages are cheaper.
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        mode = _use_write_ahead_log(connection)
        if mode != ("wal",):
            connection.close()
            raise Unavailable(
                f"{path} cannot use write-ahead logging (journal mode {mode}); use a local disk"
            )
        connection.execute("PRAGMA synchronous = FULL")
        ((size,),) = connection.execute("PRAGMA page_size")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // int(str(size))}")
        # What is deleted is overwritten with zeros in the file. Its former pages are in the log, which is cut
        # when it begins anew: otherwise its end would keep them until it is as long again.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA journal_size_limit = 0")
    else:
        connection.execute("PRAGMA query_only = 1")
    connection.execute("PRAGMA cache_size = -16384")
    return connection


def _use_write_ahead_log(connection: apsw.Connection) -> object:
    """Switch to the write-ahead log. When several connections switch a new file at the same moment, SQLite
    takes some for deadlocked and refuses them without its usual wait: this function waits instead."""
    until = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            return connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.005)


def open_driver(url: str) -> SqliteDriver:
    """Open the file of a URL; it must exist and have this release's schema."""
    path = file_of(url)
    if not path.exists():
        raise BadUrl(
            f"{url}: there is no file {path}; check the path, or create it: run `perdure migrate "
            f"--db {shlex.quote(url)}`, or connect with migrate=True"
        )
    with translate_errors(path), closing(connect(path)) as connection:
        migrations.check(connection, path)
    return SqliteDriver(path)


def open_read_only(url: str) -> SqliteReader:
    """Open the file of a URL for reading, without changing it; it must have this release's schema."""
    path = file_of(url)
    if not path.exists():
        raise BadUrl(f"{url}: there is no file {path}")
    with translate_errors(path), closing(open_connection(path)) as connection:
        migrations.check(connection, path)
    return SqliteReader(path)


def schema_version(url: str) -> int:
    """Return the file's schema version, 0 when there is no file or no schema in it."""
    path = file_of(url)
    if not path.exists():
        return 0
    with translate_errors(path), closing(open_connection(path)) as connection:
        return migrations.version(connection)


def plan_migration(url: str) -> list[str]:
    """Return the statements that ``migrate`` would execute now."""
    return list(migrations.plan_file_migration(schema_version(url), file_of(url)))


def migrate(url: str) -> int:
    """Create or upgrade the schema, once for all concurrent callers; return the version that the file had."""
    path = file_of(url)
    with translate_errors(path):
        path.touch(exist_ok=True)
        with closing(connect(path)) as connection:
            return migrations.apply(connection, path)


def file_of(url: str) -> Path:
    """Return the file that a URL names; raise ``BadUrl`` if it cannot be a database."""
    parts = urlsplit(url)
    if parts.netloc:
        raise BadUrl(
            f"{url}: a SQLite URL has no host; write three slashes before a relative path and four before "
            f"an absolute one: sqlite:///{parts.netloc}{parts.path}"
        )
    if parts.query or parts.fragment:
        raise BadUrl(
            f"{url}: a SQLite URL takes no parameters; remove everything after the path, and write a ? or # "
            "that belongs to the path as %3F or %23"
        )
    try:
        name = unquote(parts.path, errors="strict").removeprefix("/")
        name.encode()
    except UnicodeError as error:
        raise BadUrl(
            f"{url!a}: the path is not UTF-8, and SQLite opens no others; rename the file or folder"
        ) from error
    if "\0" in name:
        raise BadUrl(f"{url}: no path has a NUL (%00); remove it")
    if name in ("", ":memory:"):
        raise BadUrl(f"{url}: a path is missing, e.g. sqlite:///threads.db; memory:// keeps nothing")
    path = Path(name)
    try:
        folder = path.absolute().parent
    except FileNotFoundError as error:
        raise BadUrl(
            f"{url}: {path} is relative to the working directory, which was removed; change to another one, "
            "or write an absolute path with four slashes"
        ) from error
    if path.is_dir():
        raise BadUrl(f"{url}: {path} is a directory; name a file in it")
    if path.exists() and not path.is_file():
        # Opening a FIFO waits for a process that writes into it.
        raise BadUrl(f"{url}: {path} is a device, a socket or a FIFO; name a file")
    if not folder.is_dir():
        raise BadUrl(f"{url}: there is no directory {folder}; create it first")
    refuse_other_names(url, path)
    return path


def _is_small(effect: Fetch) -> bool:
    return len(effect.items) <= _ON_LOOP_MOST and all(
        isinstance(i, Get) or i.kind is WRITE or (i.limit is not None and i.limit <= _ON_LOOP_MOST)
        for i in effect.items
    )


def _partition_of(effect: Effect[Any]) -> Partition | None:
    return getattr(effect, "partition", None)
