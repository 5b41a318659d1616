"""Reads the plain layout of home-made savers, in a SQLite file or in Cloudflare D1:

``checkpoints(thread_id, checkpoint_id, parent_id, state, created_at)`` and, if it is there,
``writes(thread_id, checkpoint_id, task_id, idx, channel, value)``, either without its time, its task or its
index. ``state`` is a JSON object as text, or LangGraph's MessagePack as bytes: a whole checkpoint of
LangGraph's, or the values by channel. ``value`` is JSON as text or MessagePack as bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import UUID, uuid5

from langgraph.checkpoint.base import CheckpointTuple

from perdure.errors import BadUrl, Contention, Corrupt, Unavailable, Unserialisable
from perdure.imports.expected_tuples import as_tuple
from perdure.imports.payloads import SERDE, loaded, payload
from perdure.imports.source import (
    CheckpointEntry,
    Outline,
    SourceCheckpoint,
    SourceItem,
    SourceWrite,
    WriteSlot,
)
from perdure.imports.sqlite_rows import SqliteRows, is_utf8

_CHECKPOINTS = {"thread_id", "checkpoint_id", "parent_id", "state"}
_WRITES = {"thread_id", "checkpoint_id", "channel", "value"}
_TASKS = UUID("8a5b4b0e-4a0f-5c0b-9c9e-2f6a1d0f7c31")
"""Namespace of the ids of tasks that a table of writes does not name."""
_WHOLE = {"channel_values", "channel_versions"}
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")


class PlainRows(Protocol):
    """Runs a query with parameters ``?1``, ``?2``…, all of them text. Text that is no UTF-8 comes as lone
    surrogates, and is taken so."""

    def __call__(self, query: str, *parameters: str) -> Sequence[Sequence[Any]]: ...


class _Row(NamedTuple):
    """A row of writes by what it is found with: ``place`` is its place among those that are alike."""

    checkpoint_id: str
    channel: str
    task: str | None
    idx: str | None
    place: int = 0


class _Held:
    """What follows from a thread's outline: each checkpoint's depth, and its writes with their rows."""

    def __init__(self, thread: str, outline: Outline, rows: Sequence[_Row]) -> None:
        self.thread = thread
        self.depths = _depths(outline)
        self.rows = dict(zip(outline.writes, rows, strict=True))
        self.slots: dict[str, list[WriteSlot]] = {}
        for slot in outline.writes:
            self.slots.setdefault(slot.checkpoint_id, []).append(slot)


class PlainSource:
    """Tables of the plain layout.

    Args:
        name: The source's name for messages.
        rows: Runs a query.
        close: Releases the source.

    Raises:
        BadUrl: There are no such tables.
    """

    def __init__(self, name: str, rows: PlainRows, close: Callable[[], None]) -> None:
        self.name = self.verifier = name
        self._rows, self._close = rows, close
        self._held: _Held | None = None
        missing = _CHECKPOINTS - self._columns("checkpoints")
        if missing:
            raise BadUrl(
                f"{name} has not the plain layout: its table checkpoints lacks {', '.join(sorted(missing))}; "
                "name the columns so, e.g. with a view"
            )
        self._has_times = "created_at" in self._columns("checkpoints")
        self._opened_at = datetime.now(UTC).isoformat()
        found = self._columns("writes")
        if found and (missing := _WRITES - found):
            raise BadUrl(
                f"{name} has not the plain layout: its table writes lacks {', '.join(sorted(missing))}"
            )
        self._has_writes = bool(found)
        self._task = "task_id" if "task_id" in found else "NULL"
        self._index = "idx" if "idx" in found else "NULL"
        self._order = "rowid" if found and self._has_row_ids("writes") else "channel, value"
        other = "typeof(thread_id) <> 'text' OR typeof(checkpoint_id) <> 'text' OR thread_id = ''"
        if self._rows(f"SELECT 1 FROM checkpoints WHERE {other} LIMIT 1"):  # noqa: S608 - a constant
            raise BadUrl(
                f"{name} has threads or checkpoints whose ids are no text, or empty; give them as text, e.g. "
                "with a view that has CAST(thread_id AS TEXT) AS thread_id"
            )

    def _has_row_ids(self, table: str) -> bool:
        """Return True if a table has SQLite's numbers of rows, which grow with each row; a view has none."""
        rows = self._rows("SELECT type, sql FROM sqlite_master WHERE name = ?1", table)
        return any(kind == "table" and "WITHOUT ROWID" not in str(sql).upper() for kind, sql in rows)

    def _columns(self, table: str) -> set[str]:
        return {row[0] for row in self._rows("SELECT name FROM pragma_table_info(?1)", table)}

    def count(self) -> int | None:
        """Return the number of threads."""
        return int(self._rows("SELECT CAST(count(DISTINCT thread_id) AS TEXT) FROM checkpoints")[0][0])

    def threads(self) -> Iterator[str]:
        """Yield the ids of the threads in order."""
        last = ""
        query = "SELECT min(thread_id) FROM checkpoints WHERE thread_id > ?1"
        while (found := self._rows(query, last)[0][0]) is not None:
            yield found
            last = found

    def outline(self, thread: str) -> Outline:
        """Return what there is of a thread."""
        if not is_utf8(thread):
            raise Corrupt("its id is no UTF-8 text: the source is damaged")
        rows = self._rows(
            "SELECT checkpoint_id, parent_id FROM checkpoints WHERE thread_id = ?1 ORDER BY checkpoint_id",
            thread,
        )
        outline = Outline([CheckpointEntry("", name, parent or None) for name, parent in rows])
        slots: list[_Row] = []
        if self._has_writes:
            columns = f"checkpoint_id, channel, {self._task}, CAST({self._index} AS TEXT)"
            order = f"WHERE thread_id = ?1 ORDER BY {self._order}"
            alike: Counter[_Row] = Counter()
            of_task: Counter[tuple[str, str]] = Counter()
            for name, channel, task, idx in self._rows(f"SELECT {columns} FROM writes {order}", thread):  # noqa: S608 - constants
                if not isinstance(channel, str):
                    raise Unserialisable(f"a write of checkpoint {name} names no channel, but {channel!r}")
                # A channel's writes are a task of their own: what is added later changes no other's name.
                task_id = str(uuid5(_TASKS, f"{name} {channel}")) if task is None else task
                number = of_task[name, task_id] if idx is None else int(idx)
                outline.writes.append(WriteSlot("", name, task_id, number))
                row = _Row(name, channel, task, idx)
                slots.append(row._replace(place=alike[row]))
                of_task[name, task_id] += 1
                alike[row] += 1
        self._held = _Held(thread, outline, slots)
        return outline

    def _held_of(self, thread: str) -> _Held:
        """Return what the last outline of a thread was, so that a page of it does not read it all again."""
        if self._held is None or self._held.thread != thread:
            self.outline(thread)
        if self._held is None:
            raise AssertionError("an outline is held")
        return self._held

    def checkpoints(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[SourceCheckpoint]:
        """Yield checkpoints in the given order. One that has only values gets what LangGraph needs to go on:
        versions that count from the thread's first checkpoint, and no task to run."""
        depths = self._held_of(thread).depths
        time = "CAST(created_at AS TEXT)" if self._has_times else "NULL"
        for entry in wanted:
            if not _HEX.fullmatch(entry.id.replace("-", "")):
                raise Unserialisable(
                    f"checkpoint {entry.id!r} is not named by hexadecimal digits, as LangGraph's are, which "
                    "could not go on from it; rename it to a UUID at the source"
                )
            rows = self._rows(
                "SELECT typeof(state), CASE typeof(state) WHEN 'blob' THEN hex(state) ELSE state END, "  # noqa: S608 - constants
                f"{time} FROM checkpoints WHERE thread_id = ?1 AND checkpoint_id = ?2",
                thread,
                entry.id,
            )
            if not rows:
                raise Contention(f"checkpoint {entry.id} is gone from {self.name}")
            kind, text, created = rows[0]
            with _naming(f"the state of checkpoint {entry.id}"):
                state = loaded(*_stored(kind, text))
            if not isinstance(state, dict):
                raise Unserialisable(f"the state of checkpoint {entry.id} is not an object")
            # As LangGraph counts: the ids of tasks, by which writes are found again, depend on it.
            step = depths[entry.id] - 1
            source = "input" if step < 0 else "loop"
            metadata: dict[str, Any] = {"source": source, "step": step, "parents": {}}
            if state.keys() >= _WHOLE:
                yield SourceCheckpoint(entry, {**state, "id": entry.id}, metadata)
                continue
            checkpoint: dict[str, Any] = {
                "v": 4,
                "ts": self._opened_at if created is None else _time(created),
                "id": entry.id,
                "channel_values": state,
                "channel_versions": dict.fromkeys(state, step + 2),
                "versions_seen": {},
                "updated_channels": None,
            }
            yield SourceCheckpoint(entry, checkpoint, metadata)

    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order. Those of a table that names no tasks belong to none that
        LangGraph would run: they are there to be read."""
        known = self._held_of(thread).rows
        for slot in wanted:
            row = known[slot]
            known_by = {"channel": row.channel, "task_id": row.task, "CAST(idx AS TEXT)": row.idx}
            values = {name: value for name, value in known_by.items() if value is not None}
            same = "".join(f" AND {name} = ?{number}" for number, name in enumerate(values, 4))
            rows = self._rows(
                "SELECT channel, typeof(value), "  # noqa: S608 - constants
                "CASE typeof(value) WHEN 'blob' THEN hex(value) ELSE value END "
                f"FROM writes WHERE thread_id = ?1 AND checkpoint_id = ?2{same} "
                f"ORDER BY {self._order} LIMIT 1 OFFSET CAST(?3 AS INTEGER)",
                thread,
                slot.checkpoint_id,
                str(row.place),
                *values.values(),
            )
            if not rows:
                raise Contention(f"a write of checkpoint {slot.checkpoint_id} is gone from {self.name}")
            channel, kind, text = rows[0]
            with _naming(f"the write of checkpoint {slot.checkpoint_id} to {channel!r}"):
                found = payload(*_stored(kind, text))
            yield SourceWrite(slot, "", channel, *found)

    def expected(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[CheckpointTuple]:
        """Yield checkpoints as they are read here: no saver is known for this layout."""
        slots = self._held_of(thread).slots
        for found in self.checkpoints(thread, wanted):
            yield as_tuple(thread, found, self.writes(thread, slots.get(found.entry.id, [])), SERDE)

    def latest(self, thread: str, namespace: str, outline: Outline) -> str:
        """Return the checkpoint that was created last; where several were, or there are no times, the one
        with the largest id of those that are no other's parent."""
        time = "created_at" if self._has_times else "NULL"
        query = f"SELECT checkpoint_id, CAST({time} AS TEXT) FROM checkpoints WHERE thread_id = ?1"  # noqa: S608 - constants
        rows = self._rows(f"{query} ORDER BY {time} DESC", thread)
        # Rows that came since the outline was read are of the next import.
        known = {entry.id for entry in outline.checkpoints}
        found = [(name, created) for name, created in rows if name in known]
        if not found:
            raise Contention(f"thread {thread!r} was removed from {self.name} during the import")
        newest = [name for name, created in found if created == found[0][1]]
        parents = {entry.parent_id for entry in outline.checkpoints}
        return str(max([name for name in newest if name not in parents] or newest))

    def items(self) -> Iterator[SourceItem]:
        """Return nothing: the layout has no store."""
        return iter(())

    def close(self) -> None:
        """Release the source."""
        self._close()


def of_file(path: Path) -> PlainSource:
    """Open a SQLite file of the plain layout; raise ``BadUrl`` if it is none."""
    if not path.is_file():
        raise BadUrl(f"{path} is not a file; pass a SQLite file, or d1://account/database")
    rows = SqliteRows(path)
    return _opened(str(path), rows, rows.close)


def of_d1(url: str) -> PlainSource:
    """Open a D1 database of the plain layout; raise ``BadUrl`` if it is none."""
    from perdure.storage.d1.rest import AnswerLost, Rejected
    from perdure.storage.d1.url import D1Url

    target = D1Url.of(url)
    transport = target.connect()

    def rows(query: str, *parameters: str) -> Sequence[Sequence[Any]]:
        try:
            return transport.batch([(query, parameters)])[0]
        except (AnswerLost, Rejected) as error:
            raise Unavailable(f"{target.name} cannot be read: {error}") from error

    return _opened(target.name, rows, transport.close)


def _opened(name: str, rows: PlainRows, close: Callable[[], None]) -> PlainSource:
    try:
        return PlainSource(name, rows, close)
    except BaseException:
        close()
        raise


@contextmanager
def _naming(row: str) -> Iterator[None]:
    """Name a row in the reason why it cannot be read."""
    try:
        yield
    except Unserialisable as error:
        raise Unserialisable(f"{row}: {error}") from error


def _stored(kind: str, text: Any) -> tuple[str, bytes]:
    """Return a column's form and bytes: text is JSON, bytes are MessagePack."""
    if kind == "blob" and text:
        return "msgpack", bytes.fromhex(text)
    if kind in ("blob", "null"):
        return "null", b""  # LangGraph's serialiser writes no bytes for None
    return "json", str(text).encode()


def _depths(outline: Outline) -> dict[str, int]:
    """Return the number of each checkpoint's ancestors that are there. Those in a circle count up to where it
    closes; the importer refuses them."""
    parents = {entry.id: entry.parent_id for entry in outline.checkpoints}
    depths: dict[str, int] = {}
    for name in parents:
        path: list[str] = []
        at: str | None = name
        on_path: set[str] = set()
        while at is not None and at in parents and at not in depths and at not in on_path:
            path.append(at)
            on_path.add(at)
            at = parents[at]
        depth = depths.get(at, -1) if at is not None else -1
        for passed in reversed(path):
            depth += 1
            depths[passed] = depth
    return depths


def _time(created: str) -> str:
    """Return a time in ISO 8601: of text, or of seconds or milliseconds since 1970."""
    try:
        number = float(created)
    except ValueError:
        return created
    return datetime.fromtimestamp(number / 1000 if number > 1e11 else number, UTC).isoformat()
