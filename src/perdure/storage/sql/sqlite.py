"""SQLite: one writer thread that gathers commits, readers that never wait for it.

Commits that arrive while one is being written join the next: one transaction, one fsync, many callers, each
answered when its own write is on disk (WAL, ``synchronous=FULL``). Several processes may share the file.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

import apsw

from perdure.errors import BadUrl, Corrupt, PerdureError, TooLarge, Unavailable
from perdure.model.ops import (
    Commit,
    Committed,
    Delete,
    Drop,
    Expect,
    Fetch,
    Find,
    Found,
    Get,
    Now,
    Op,
    Put,
    Refused,
    Stage,
)
from perdure.model.program import Effect
from perdure.model.records import KINDS, WRITE, Key, Partition, Record
from perdure.storage.gather import Gatherer, Job
from perdure.storage.port import Limits
from perdure.storage.sql import compile as sql
from perdure.storage.sql import migrations, schema

R = TypeVar("R")

SCHEMA_VERSION = schema.SCHEMA_VERSION

_BUSY_MS = 30_000
_GROUP_MAX = 512
_INLINE_ITEMS = 16


class SqliteDriver:
    """One SQLite file. Opening it neither creates nor migrates the schema."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with translated(path):
            self._writer = connect(path)
        self._limits = Limits(ops=1_000_000, bytes=256 << 20)
        self._closed = False
        self._readers: list[apsw.Connection] = []
        self._reading = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="perdure-read")
        self._commits = Gatherer(self._write_group, name=str(path), most=_GROUP_MAX, distant=False)

    @property
    def limits(self) -> Limits:
        return self._limits

    def perform(self, effect: Effect[R]) -> R:
        if isinstance(effect, Fetch | Find | Now):
            return cast(R, self._read(effect))
        return self._commits.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        if isinstance(effect, Fetch | Find | Now):
            # A handful of keys is read in microseconds; a thread would cost more than it saves.
            if isinstance(effect, Now) or (isinstance(effect, Fetch) and _is_small(effect)):
                return cast(R, self._read(effect))
            self._commits.refuse_when_closed()
            loop = asyncio.get_running_loop()
            return cast(R, await loop.run_in_executor(self._pool, self._read, effect))
        return await self._commits.aperform(effect)

    def close(self) -> None:
        with self._reading:
            if self._closed:
                return
            self._closed = True
        self._commits.close()
        self._pool.shutdown(wait=True)
        with self._reading:
            for reader in self._readers:
                reader.close()
            self._readers.clear()
        self._writer.close()

    # Writing

    def _write_group(self, group: Sequence[Job]) -> None:
        try:
            self._transact(group, trusting=True)
        except Exception:
            # One bad write must not fail its neighbours: each gets a transaction of its own.
            for job in group:
                try:
                    self._transact([job], trusting=False)
                except Exception as error:
                    job.error = _translate(error, self._path)

    def _transact(self, group: Sequence[Job], *, trusting: bool) -> None:
        """Write a group in one transaction. ``trusting`` leaves it to the tables that what a put expects
        to be absent is absent; where it is not, everything is rolled back and looked at one by one."""
        writer = self._writer
        writer.execute("BEGIN IMMEDIATE")
        try:
            for job in group:
                job.error = None
                job.answer = self._apply(job.effect, trusting)
            writer.execute("COMMIT")
        except BaseException:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            raise

    def _apply(self, effect: Effect[Any], trusting: bool) -> Any:
        writer = self._writer
        if isinstance(effect, Drop):
            t = _pk(writer, effect.partition)
            if t is not None:
                for kind in KINDS:
                    writer.execute(sql.drop(kind), (t,))
                writer.execute(sql.THREAD_DROP, (t,))
            return None
        if not isinstance(effect, Commit | Stage):
            raise TypeError(f"not a storage request: {type(effect).__name__}")
        t = _pk(writer, effect.partition)
        ops: tuple[Op, ...] = effect.ops if isinstance(effect, Commit) else effect.puts
        if isinstance(effect, Commit):
            for op in ops:
                if not (trusting and _is_new(op)) and not _holds(writer, t, op):
                    return Refused(op.kind, op.key)
        if t is None:
            writer.execute(sql.THREAD_NEW, effect.partition)
            t = writer.last_insert_rowid()
        for op in ops:
            if isinstance(op, Put):
                writer.execute(*sql.put(op, t))
            elif isinstance(op, Delete):
                writer.execute(*sql.delete(op, t))
        return Committed() if isinstance(effect, Commit) else None

    # Reading

    @contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        with self._reading:
            self._commits.refuse_when_closed()
            reader = self._readers.pop() if self._readers else None
        with translated(self._path):
            reader = reader or connect(self._path, read_only=True)
            try:
                yield reader
            except BaseException:
                # Cut short, by Ctrl-C say, it may be in the middle of a statement, and would not close.
                reader.close(True)
                raise
            self._put_back(reader)

    def _put_back(self, reader: apsw.Connection) -> None:
        with self._reading:
            if self._closed:
                reader.close()
            else:
                self._readers.append(reader)

    def _read(self, effect: Fetch | Find | Now) -> Any:
        with self._reader() as reader:
            reader.execute("BEGIN")
            try:
                if isinstance(effect, Fetch):
                    return _fetch(reader, effect)
                if isinstance(effect, Now):
                    return reader.execute(sql.NOW).fetchall()[0][0]
                return tuple(_find(reader, effect))
            finally:
                reader.execute("COMMIT")


def connect(path: Path, *, read_only: bool = False) -> apsw.Connection:
    """Open the file with the settings that durability rests on. It must exist."""
    connection = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX)
    connection.set_busy_timeout(_BUSY_MS)
    if not read_only:
        mode = _write_ahead(connection)
        if mode != ("wal",):
            connection.close()
            raise Unavailable(
                f"{path} cannot use write-ahead logging (journal mode {mode}); use a local disk"
            )
        connection.execute("PRAGMA synchronous = FULL")
    else:
        connection.execute("PRAGMA query_only = 1")
    connection.execute("PRAGMA cache_size = -16384")
    return connection


def _write_ahead(connection: apsw.Connection) -> object:
    """Switch to the write-ahead log. Of those that switch a new file at the same moment SQLite takes some for
    deadlocked, and refuses them without the wait that it grants elsewhere."""
    patience = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            return connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except apsw.BusyError:
            if time.monotonic() > patience:
                raise
            time.sleep(0.005)


def open_driver(url: str) -> SqliteDriver:
    """Open the file of a URL; it must exist and have this release's schema."""
    path = file_of(url)
    if not path.exists():
        raise BadUrl(
            f"{url}: there is no file {path}; run `perdure migrate {url}` to create it, "
            "or connect with migrate=True"
        )
    with translated(path), closing(connect(path)) as connection:
        migrations.check(connection, path)
    return SqliteDriver(path)


def schema_version(url: str) -> int:
    """The file's schema version, 0 when there is no file or no schema in it."""
    path = file_of(url)
    if not path.exists():
        return 0
    with translated(path), closing(connect(path, read_only=True)) as connection:
        return migrations.version(connection)


def pending(url: str) -> list[str]:
    """The statements that ``migrate`` would execute now."""
    return list(migrations.pending(schema_version(url)))


def migrate(url: str) -> int:
    """Create or upgrade the schema, once, however many processes ask; the version before."""
    path = file_of(url)
    with translated(path):
        path.touch(exist_ok=True)
        with closing(connect(path)) as connection:
            return migrations.apply(connection, path)


def file_of(url: str) -> Path:
    """The file that a URL names."""
    parts = urlsplit(url)
    if parts.netloc:
        raise BadUrl(
            f"{url}: a SQLite URL has no host; write three slashes before a relative path and four before "
            f"an absolute one: sqlite:///{parts.netloc}{parts.path}"
        )
    if parts.query or parts.fragment:
        raise BadUrl(f"{url}: a SQLite URL takes no parameters; remove everything after the path")
    name = unquote(parts.path).removeprefix("/")
    if name in ("", ":memory:"):
        raise BadUrl(f"{url}: a path is missing, e.g. sqlite:///threads.db; memory:// keeps nothing")
    path = Path(name)
    if path.is_dir():
        raise BadUrl(f"{url}: {path} is a directory; name a file in it")
    if not path.absolute().parent.is_dir():
        raise BadUrl(f"{url}: there is no directory {path.absolute().parent}; create it first")
    return path


def _is_small(effect: Fetch) -> bool:
    return len(effect.items) <= _INLINE_ITEMS and all(
        isinstance(i, Get) or i.kind is WRITE or (i.limit is not None and i.limit <= _INLINE_ITEMS)
        for i in effect.items
    )


def _pk(connection: apsw.Connection, partition: Partition) -> int | None:
    row = connection.execute(sql.THREAD_PK, partition).fetchone()
    return None if row is None else cast(int, row[0])


def _is_new(op: Op) -> bool:
    return isinstance(op, Put) and op.expect is Expect.ABSENT


def _holds(connection: apsw.Connection, t: int | None, op: Op) -> bool:
    if isinstance(op, Delete) and op.unchanged:
        names = tuple(op.unchanged)
        row = connection.execute(sql.select_fields(op.kind, names), (t, *op.key)).fetchone()
        if row is None or row != tuple(op.unchanged.values()):
            return False
    if op.expect is Expect.ANY:
        return True
    row = None if t is None else connection.execute(sql.select_version(op.kind), (t, *op.key)).fetchone()
    if op.expect is Expect.ABSENT:
        return row is None
    return row is not None and op.expect in (Expect.PRESENT, row[0])


def _fetch(connection: apsw.Connection, effect: Fetch) -> tuple[tuple[Record, ...], ...]:
    t = _pk(connection, effect.partition)
    if t is None:
        return tuple(() for _ in effect.items)
    if len(effect.items) > _INLINE_ITEMS and len({i.kind.name for i in effect.items}) == 1:
        gets = [i for i in effect.items if isinstance(i, Get)]
        if len(gets) == len(effect.items):
            return _fetch_many(connection, t, gets)
    out: list[tuple[Record, ...]] = []
    for item in effect.items:
        if isinstance(item, Get):
            rows = connection.execute(sql.select_one(item.kind), (t, *item.key))
            out.append(tuple(sql.record(item.kind, row) for row in rows))
        else:
            rows = connection.execute(*sql.select_range(item, t))
            out.append(tuple(sql.record(item.kind, row, bodies=item.bodies) for row in rows))
    return tuple(out)


def _fetch_many(connection: apsw.Connection, t: int, gets: list[Get]) -> tuple[tuple[Record, ...], ...]:
    kind = gets[0].kind
    rows = connection.executemany(sql.select_one(kind), [(t, *get.key) for get in gets])
    found: dict[Key, Record] = {}
    for row in rows:
        record = sql.record(kind, row)
        found[record.key] = record
    return tuple((found[get.key],) if get.key in found else () for get in gets)


def _find(connection: apsw.Connection, effect: Find) -> Iterable[Found]:
    if effect.index == "threads":
        return [Found(Partition(*row)) for row in connection.execute(*sql.select_threads(effect))]
    kind, statement = sql.select_indexed(effect)
    own = len(Partition._fields)
    return [
        Found(Partition(*row[:own]), sql.record(kind, row[own:], bodies=False, versions=False))
        for row in connection.execute(*statement)
    ]


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """The one place where SQLite's exceptions become Perdure's."""
    try:
        yield
    except (apsw.Error, OSError, OverflowError) as error:
        raise _translate(error, path) from error


def _translate(error: Exception, path: Path) -> Exception:
    if isinstance(error, PerdureError):
        return error
    if isinstance(error, apsw.FullError):
        new: PerdureError = Unavailable(
            f"{path}: the disk is full; nothing of this write was stored. Free space and try again"
        )
    elif isinstance(error, apsw.ReadOnlyError):
        new = Unavailable(f"{path} is read-only; make it writable for this process and try again")
    elif isinstance(error, apsw.BusyError):
        new = Unavailable(
            f"{path} was locked by another process for {_BUSY_MS // 1000} s; end the long transaction there"
        )
    elif isinstance(error, apsw.NotADBError):
        new = Corrupt(f"{path} is not a SQLite database; check the path, or move the file away")
    elif isinstance(error, apsw.CorruptError):
        new = Corrupt(f"{path} is damaged ({error}); restore it from a backup")
    elif isinstance(error, apsw.CantOpenError | OSError):
        new = Unavailable(
            f"{path} cannot be opened: {error}; check that it exists and may be read and written"
        )
    elif isinstance(error, apsw.TooBigError | OverflowError):
        new = TooLarge(f"{path}: a value is too large for SQLite: {error}")
    elif isinstance(error, apsw.Error):
        new = Unavailable(f"{path}: SQLite failed: {error}")
    else:
        return error
    new.__cause__ = error
    return new
