"""Records in one portable file, which an export writes and an import reads.

The file is a log of frames: a head with the format's version, a frame for each record in the order of
writing, and an end with the digest of all before it. An open archive is a backend: it performs the same
requests, for one process, one after the other. The file is written beside its final path and moved there when
it is complete; a file that ends early, was changed, or is of a newer format is refused before anything of it
is used.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from errno import ENOENT
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from threading import RLock
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import ormsgpack

from perdure.errors import BadArchive, NotAllowed, NotFound, Unavailable
from perdure.model.ops import (
    Commit,
    Committed,
    Delete,
    Drop,
    Fetch,
    Find,
    FindThreads,
    Get,
    IndexHit,
    Now,
    Op,
    Put,
    Range,
    Refused,
    Stage,
)
from perdure.model.program import Effect
from perdure.model.records import KINDS, Column, Key, Kind, Partition, Record
from perdure.storage import evaluation
from perdure.storage.layout_version import EXPORT_AND_IMPORT, name_release
from perdure.storage.port import Capabilities, CommitLimits

FORMAT = 4
"""The version of the file's layout that this release writes and reads."""

MAGIC = b"perdure threads\n"
"""First bytes of an archive."""
_LENGTH = Struct(">I")
_FRAME_MAX = 1 << 30
_HEAD, _PUT, _DELETE, _END = 0, 1, 2, 3
_KINDS = {kind.name: kind for kind in KINDS}

R = TypeVar("R")


class _Row(NamedTuple):
    """The position of a record's frame in the file, its size in bytes, and the record's version."""

    position: int
    size: int
    version: int


Tables = dict[Partition, dict[str, dict[Key, _Row]]]


class Archive:
    """An open archive. Made by ``create`` for writing, until ``finish``, or by ``read`` for reading."""

    def __init__(self, path: Path, file: BinaryIO, *, writing: bool) -> None:
        self._path = path
        self._file = file
        self._writing = writing
        self._size = 0
        self._sum = blake2b(digest_size=32, person=b"perdure.archive")
        self._tables: Tables = {}
        # The partition that was written last, and the size and the digest of the file before it.
        self._last_partition: tuple[Partition, int, blake2b] | None = None
        self._lock = RLock()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(is_read_only=not self._writing, is_archive=True)

    @property
    def limits(self) -> CommitLimits:
        return CommitLimits(ops=100_000, bytes=64 << 20)

    @classmethod
    def create(cls, path: Path) -> Archive:
        """Start a file beside ``path``; an unfinished one of an earlier attempt is replaced.

        Raises:
            NotAllowed: There is something at the path that is not a file.
            Unavailable: Another export to this path is under way, or the file cannot be written.
        """
        if path.exists() and not path.is_file():
            raise NotAllowed(f"{path} is a directory or a device; name a file")
        beside = _name_file_beside(path)
        try:
            # Only its owner may read it.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.fdopen(os.open(beside, flags, 0o600), "w+b")
        except OSError as error:
            raise _unwritable_error(path, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(file, beside):
                raise BlockingIOError
            os.fchmod(file.fileno(), 0o600)
            file.truncate(0)
        except BlockingIOError as error:
            file.close()
            raise Unavailable(
                f"another export to {path} is under way; wait for it, or name another file"
            ) from error
        except OSError as error:
            file.close()
            raise _unwritable_error(path, error) from error
        archive = cls(path, file, writing=True)
        archive._write(MAGIC)
        archive._write_frame([_HEAD, FORMAT])
        return archive

    @classmethod
    def read(cls, path: Path) -> Archive:
        """Open a complete file.

        Raises:
            BadArchive: It is not an archive, ends early, was changed, or is of another release's format.
            NotFound: There is no such file.
            Unavailable: The file cannot be read.
        """
        try:
            file = open(path, "rb")  # noqa: SIM115 - closed by close()
        except FileNotFoundError as error:
            raise NotFound(f"there is no file {path}") from error
        except OSError as error:
            raise Unavailable(f"{path} cannot be read: {error.strerror}") from error
        archive = cls(path, file, writing=False)
        try:
            archive._scan()
        except BaseException:
            file.close()
            raise
        return archive

    def finish(self) -> None:
        """Write the end, make everything durable, and move the file to its final path."""
        with self._lock:
            self._write_frame([_END, self._sum.digest()])
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
                if not _is_at(self._file, _name_file_beside(self._path)):
                    raise FileNotFoundError(ENOENT, "the unfinished file was removed by another program")
                os.replace(_name_file_beside(self._path), self._path)
                self._writing = False
                folder = os.open(self._path.absolute().parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
            except OSError as error:
                raise _unwritable_error(self._path, error) from error

    @property
    def is_in_place(self) -> bool:
        """True once the file is at its final path."""
        return self._path.exists() and _is_at(self._file, self._path)

    def close(self) -> None:
        """Close the file; an unfinished one is removed."""
        with self._lock:
            if self._file.closed:
                return
            if (
                self._writing
                and _name_file_beside(self._path).exists()
                and _is_at(self._file, _name_file_beside(self._path))
            ):
                # The lock is held, so the file at this path is our own.
                _name_file_beside(self._path).unlink(missing_ok=True)
            # Closing writes buffered data. If that fails, nothing is lost: the unfinished file was removed.
            with suppress(OSError) if self._writing else nullcontext():
                self._file.close()

    def perform(self, effect: Effect[R]) -> R:
        with self._lock:
            return cast(R, self._perform(effect))

    async def aperform(self, effect: Effect[R]) -> R:
        return self.perform(effect)

    def _perform(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Fetch):
            return tuple(tuple(self._fetch(effect.partition, item)) for item in effect.items)
        if isinstance(effect, Find):
            return self._find(effect)
        if isinstance(effect, Now):
            # An archive has one writer, whose clock need not agree with any other.
            return time.time_ns() // 1000
        if not self._writing:
            raise Unavailable(f"{self._path} is an export; it is read, not written to")
        if isinstance(effect, Commit):
            for op in effect.ops:
                row = self._get_table(effect.partition, op.kind).get(op.key)
                if not evaluation.meets(None if row is None else row.version, op.expect):
                    return Refused(op.kind, op.key)
            self._apply(effect.partition, effect.ops)
            return Committed()
        if isinstance(effect, Stage):
            self._apply(effect.partition, effect.puts)
            return None
        if isinstance(effect, Drop) and effect.if_empty:
            return Committed()
        if isinstance(effect, Drop) and not effect.checks:
            self._roll_back(effect.partition)
            return Committed()
        raise TypeError(f"not a request to an archive: {type(effect).__name__}")

    # Reading

    def _scan(self) -> None:
        if self._read_raw(len(MAGIC)) != MAGIC:
            raise self._foreign_error()
        frame_type, *head = self._read_frame()
        if frame_type != _HEAD or len(head) < 1 or type(head[0]) is not int or head[0] < 1:
            raise self._foreign_error()
        known = f"it has format {head[0]}, {name_release()} reads {FORMAT}"
        if head[0] > FORMAT:
            raise BadArchive(
                f"{self._path} was written by a newer perdure: {known}; upgrade perdure, then import it"
            )
        if head[0] < FORMAT:
            raise BadArchive(f"{self._path} was written by an earlier perdure: {known}. {EXPORT_AND_IMPORT}")
        while True:
            digest, position = self._sum.digest(), self._size
            frame_type, *frame = self._read_frame()
            if frame_type == _END:
                break
            self._note_frame(frame_type, frame, position)
        if frame != [digest] or self._file.read(1):
            raise BadArchive(f"{self._path} was changed since it was written; export the threads again")

    def _read_frame(self) -> list[Any]:
        (size,) = _LENGTH.unpack(self._read_raw(_LENGTH.size))
        frame = self._unpack(self._read_raw(min(size, _FRAME_MAX)))
        if not isinstance(frame, list) or not frame:
            raise self._changed_error()
        return frame

    def _read_raw(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be read: {error.strerror}") from error
        if len(data) < size:
            raise BadArchive(
                f"{self._path} ends early: it was not written to its end, or not copied whole; nothing of it "
                "was used. Export the threads again"
            )
        self._count(data)
        return data

    def _unpack(self, data: bytes) -> Any:
        try:
            return ormsgpack.unpackb(data)
        except ValueError as error:
            raise self._changed_error() from error

    def _note_frame(self, frame_type: Any, frame: list[Any], position: int) -> None:
        try:
            partition, record_kind, key, *rest = _decode_name(frame)
            is_sound = _have_types(record_kind.key, key) and (
                _is_sound(record_kind, *rest) if frame_type == _PUT else frame_type == _DELETE and not rest
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._changed_error() from error
        if not is_sound:
            raise self._changed_error()
        table = self._get_table(partition, record_kind)
        if frame_type == _PUT:
            table[key] = self._make_row(position, rest[1])
        else:
            table.pop(key, None)

    def _make_row(self, position: int, version: int) -> _Row:
        """Return the row of the record in the last frame so far, which begins at a position."""
        start = position + _LENGTH.size
        return _Row(start, self._size - start, version)

    def _foreign_error(self) -> BadArchive:
        return BadArchive(
            f"{self._path} is not an export of threads, as `perdure export --output` writes one"
        )

    def _changed_error(self) -> BadArchive:
        return BadArchive(f"{self._path} was changed since it was written; export the threads again")

    def _read_record(self, row: _Row) -> Record:
        try:
            self._file.seek(row.position)
            data = self._file.read(row.size)
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be read: {error.strerror}") from error
        try:
            # Another program may write into the file meanwhile.
            _, *frame = self._unpack(data)
            _, kind, key, fields, version, body = _decode_name(frame)
            values = _decode(kind.fields, fields)
            names = [column.name for column in kind.fields]
            return Record(kind, key, dict(zip(names, values, strict=True)), version, body)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._changed_error() from error

    def _get_table(self, partition: Partition, kind: Kind) -> dict[Key, _Row]:
        return self._tables.setdefault(partition, {}).setdefault(kind.name, {})

    def _fetch(self, partition: Partition, item: Get | Range) -> list[Record]:
        table = self._get_table(partition, item.kind)
        return evaluation.select(item, table, lambda key: self._read_record(table[key]))

    def _find(self, effect: Find) -> tuple[IndexHit, ...]:
        if not isinstance(effect, FindThreads):
            raise TypeError(f"not a request to an archive: {type(effect).__name__}")
        non_empty = (p for p, tables in self._tables.items() if any(tables.values()))
        return evaluation.select_threads(effect, non_empty)

    # Writing

    def _apply(self, partition: Partition, ops: Iterable[Op]) -> None:
        if self._last_partition is None or self._last_partition[0] != partition:
            self._last_partition = partition, self._size, self._sum.copy()
        for op in ops:
            table, name = self._get_table(partition, op.kind), _encode_name(partition, op)
            if isinstance(op, Put):
                fields = _encode(op.fields[c.name] for c in op.kind.fields)
                position = self._write_frame([_PUT, *name, fields, op.version, op.body])
                table[op.key] = self._make_row(position, op.version)
            elif isinstance(op, Delete):
                self._write_frame([_DELETE, *name])
                table.pop(op.key, None)

    def _roll_back(self, partition: Partition) -> None:
        """Cut off what was written of a thread, which has to be the last in the file."""
        if not any(self._tables.pop(partition, {}).values()):
            return
        if self._last_partition is None or self._last_partition[0] != partition:
            raise TypeError("an archive drops only the thread that was written last")
        _, self._size, self._sum = self._last_partition
        self._last_partition = None
        try:
            self._file.truncate(self._size)
        except OSError as error:
            raise _unwritable_error(self._path, error) from error

    def _write_frame(self, frame: list[Any]) -> int:
        """Append a frame and return its position."""
        position = self._size
        data = ormsgpack.packb(frame)
        self._write(_LENGTH.pack(len(data)) + data)
        return position

    def _write(self, data: bytes) -> None:
        try:
            self._file.seek(0, os.SEEK_END)
            self._file.write(data)
        except OSError as error:
            raise _unwritable_error(self._path, error) from error
        self._count(data)

    def _count(self, data: bytes) -> None:
        self._sum.update(data)
        self._size += len(data)


def _encode_name(partition: Partition, op: Op) -> list[Any]:
    return [_encode(partition), op.kind.name, _encode(op.key)]


def _decode_name(frame: list[Any]) -> list[Any]:
    """Return a frame with its partition, kind and key decoded."""
    names, kind_name, key, *rest = frame
    kind = _KINDS[kind_name]
    partition = Partition(*(name.decode("utf-8", "surrogatepass") for name in names))
    return [partition, kind, tuple(_decode(kind.key, key)), *rest]


def _encode(values: Iterable[Any]) -> list[Any]:
    """Return values in a form that can be packed, even if they are not well-formed Unicode."""
    return [v.encode("utf-8", "surrogatepass") if isinstance(v, str) else v for v in values]


def _decode(columns: tuple[Column, ...], values: list[Any]) -> list[Any]:
    return [
        value.decode("utf-8", "surrogatepass") if column.kind == "text" and value is not None else value
        for column, value in zip(columns, values, strict=True)
    ]


_TYPES: dict[str, type] = {"text": str, "integer": int, "bytes": bytes}


def _is_sound(kind: Kind, fields: list[Any], version: Any, body: Any) -> bool:
    """Return True if a frame holds a record as the kind declares it. The digest does not prove this, only
    that the file is as its writer left it."""
    return (
        _have_types(kind.fields, _decode(kind.fields, fields))
        and type(version) is int
        and type(body) is bytes
    )


def _have_types(columns: tuple[Column, ...], values: Sequence[Any]) -> bool:
    return all(
        type(value) is _TYPES[column.kind] or (value is None and column.nullable)
        for column, value in zip(columns, values, strict=True)
    )


def _name_file_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Return True if a path leads to the very file that is open."""
    opened, found = os.fstat(file.fileno()), os.lstat(path)
    return (opened.st_dev, opened.st_ino) == (found.st_dev, found.st_ino)


def _unwritable_error(path: Path, error: OSError) -> Unavailable:
    return Unavailable(f"{path} cannot be written: {error.strerror}; nothing of it was kept")
