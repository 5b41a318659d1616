"""Power cuts of a SQLite file: what a disk may hold when the power goes at any moment of a run.

A VFS records every write, truncation and flush of the database and its log. A crash image has all that was
flushed; of what was written since, each sector by itself is there or is not, in any order. A witness around
the driver notes what was asked for and what was acknowledged.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import apsw

import perdure
from perdure.database.opening import open_database
from perdure.model.ops import Commit, Committed, Delete, Drop, Fetch, Put, Range, Stage
from perdure.model.program import Effect
from perdure.model.records import KINDS, Key, Kind, Partition
from perdure.model.values.compression import compress_body
from perdure.storage.port import Driver
from perdure.storage.sqlite.driver import SqliteDriver

R = TypeVar("R")

SECTOR = 512
LOG = "-wal"


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes written to a file, or its truncation to ``offset`` when there are none."""

    suffix: str
    offset: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Flushed:
    """A file was flushed: all that was written to it before is on the disk."""

    suffix: str


@dataclass(eq=False, slots=True)
class Asked:
    """A request to the driver, and its answer. ``at`` and ``done`` are places in the record."""

    effect: Commit | Stage | Drop
    at: int
    done: int | None = None
    stored: bool = False


@dataclass(slots=True)
class Recording:
    """What happened to the files of one database, in order, from what they held at the beginning."""

    path: Path
    events: list[Written | Flushed] = field(default_factory=list[Written | Flushed])
    asked: list[Asked] = field(default_factory=list[Asked])
    before: bytes = b""

    def suffix_of(self, name: str | apsw.URIFilename | None) -> str | None:
        text = name.filename() if isinstance(name, apsw.URIFilename) else name
        for suffix in ("", LOG):
            if text == f"{self.path}{suffix}":
                return suffix
        return None


class _Recorder(apsw.VFS):
    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        super().__init__("perdure-recorder", "", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self.recording, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        suffix = self.recording.suffix_of(filename)
        if suffix is not None:
            self.recording.events.append(Written(suffix, 0, None))


class _File(apsw.VFSFile):
    def __init__(self, recording: Recording, name: Any, flags: list[int]) -> None:
        self._events = recording.events
        self._suffix = recording.suffix_of(name)
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        if self._suffix is not None:
            self._events.append(Written(self._suffix, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        if self._suffix is not None:
            self._events.append(Written(self._suffix, newsize, None))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        if self._suffix is not None:
            self._events.append(Flushed(self._suffix))


class _Witness:
    """A driver that notes in the recording what it was asked for and what it acknowledged."""

    def __init__(self, inner: Driver, recording: Recording) -> None:
        self._inner = inner
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def perform(self, effect: Effect[R]) -> R:
        noted = self._note(effect)
        answer = self._inner.perform(effect)
        self._done(noted, answer)
        return answer

    async def aperform(self, effect: Effect[R]) -> R:
        noted = self._note(effect)
        answer = await self._inner.aperform(effect)
        self._done(noted, answer)
        return answer

    async def acommit_and_fetch(self, commit: Commit, fetch: Fetch) -> tuple[Any, None]:
        return await self.aperform(commit), None

    def _note(self, effect: Effect[Any]) -> Asked | None:
        if not isinstance(effect, Commit | Stage | Drop):
            return None
        noted = Asked(effect, len(self._recording.events))
        self._recording.asked.append(noted)
        return noted

    def _done(self, noted: Asked | None, answer: Any) -> None:
        if noted is not None:
            noted.stored = answer is None or isinstance(answer, Committed)
            noted.done = len(self._recording.events)


@contextmanager
def recorded(path: Path) -> Iterator[tuple[Recording, perdure.SyncDatabase]]:
    """A database in a new file, and what happens to its files until it is closed."""
    with perdure.connect_sync(f"sqlite:///{path}", migrate=True):
        pass
    recording = Recording(path, before=path.read_bytes())
    recorder = _Recorder(recording)
    try:
        with closing(
            open_database(f"sqlite:///{path}", wrap=lambda driver: _Witness(driver, recording))
        ) as db:
            yield recording, db
    finally:
        recorder.unregister()


def images(recording: Recording, points: set[int], seed: int) -> Iterator[tuple[int, dict[str, bytes]]]:
    """For each point, the files as a cut just before that event may leave them."""
    chance = random.Random(seed)
    flushed = {"": bytearray(recording.before), LOG: bytearray()}
    pending: dict[str, list[Written]] = {"": [], LOG: []}
    for place, event in enumerate([*recording.events, None]):
        if place in points:
            yield place, {suffix: _cut(flushed[suffix], pending[suffix], chance) for suffix in flushed}
        if isinstance(event, Written):
            pending[event.suffix].append(event)
        elif isinstance(event, Flushed):
            for written in pending[event.suffix]:
                _apply(flushed[event.suffix], written)
            pending[event.suffix].clear()


def _cut(flushed: bytearray, pending: list[Written], chance: random.Random) -> bytes:
    out = bytearray(flushed)
    share = chance.choice((0.0, 0.0, 0.5, 0.5, 0.9, 1.0))
    torn = chance.random() < 0.5
    for written in pending:
        if written.data is None or not torn:
            if chance.random() < share:
                _apply(out, written)
            continue
        start, end = written.offset, written.offset + len(written.data)
        for sector in range(start // SECTOR * SECTOR, end, SECTOR):
            if chance.random() < share:
                first, last = max(start, sector), min(end, sector + SECTOR)
                part = written.data[first - start : last - start]
                _apply(out, Written(written.suffix, first, part))
    return bytes(out)


def _apply(content: bytearray, written: Written) -> None:
    if written.data is None:
        del content[written.offset :]
        return
    end = written.offset + len(written.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[written.offset : end] = written.data


# What has to be in an image


Place = tuple[Partition, Kind, Key]
Value = tuple[Any, ...] | None


def _value(kind: Kind, fields: Any, version: int, body: bytes) -> Value:
    if kind.grows is not None:
        return (body,)
    return tuple(sorted(fields.items())), version if kind.versioned else 0, body if kind.body else b""


def lost(recording: Recording, point: int, image: Path) -> list[str]:
    """Acknowledged writes that are not in an image, and damage that is."""
    asked = [each for each in recording.asked if each.at <= point]
    changes: dict[Place, list[tuple[Asked, Value]]] = defaultdict(list)
    for each in asked:
        effect = each.effect
        if isinstance(effect, Drop):
            for place in list(changes):
                if place[0] == effect.partition:
                    changes[place].append((each, None))
            continue
        for op in effect.ops if isinstance(effect, Commit) else effect.puts:
            if isinstance(op, Put):
                value = _value(op.kind, op.fields, op.version, compress_body(op))
                changes[effect.partition, op.kind, op.key].append((each, value))
            elif isinstance(op, Delete):
                changes[effect.partition, op.kind, op.key].append((each, None))
    out: list[str] = []
    with closing(SqliteDriver(image)) as driver:
        stored: dict[Partition, dict[tuple[Kind, Key], Value]] = {}
        for partition in {place[0] for place in changes}:
            answers = driver.perform(Fetch(partition, tuple(Range(kind) for kind in KINDS)))
            stored[partition] = {
                (r.kind, r.key): _value(r.kind, r.fields, r.version, r.body) for a in answers for r in a
            }
            out += [f"{partition}: {line}" for line in driver.examine(partition)]
        out += driver.examine(None)
    for (partition, kind, key), history in changes.items():
        found = stored[partition].get((kind, key))
        if found not in _allowed(history, point):
            out.append(f"{partition.thread!r}: {kind.name} {key} is not what was acknowledged")
    with perdure.connect_sync(f"sqlite:///{image}") as db:
        out += [str(finding) for finding in db.fsck()]
    return out


def _allowed(history: list[tuple[Asked, Value]], point: int) -> list[Value]:
    """What a record may be: what was written by a request that nothing acknowledged came after, and nothing
    at all while no write was acknowledged."""

    def acknowledged(each: Asked) -> bool:
        return each.stored and each.done is not None and each.done <= point

    settled = [each for each, _ in history if acknowledged(each)]
    newest = max((each.at for each in settled), default=-1)
    out: list[Value] = [] if settled else [None]
    for each, value in history:
        refused = each.done is not None and not each.stored
        superseded = each.done is not None and acknowledged(each) and each.done < newest
        if not refused and not superseded:
            out.append(value)
    return out
