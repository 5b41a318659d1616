"""Reads the tables of home-made savers in a SQL database, the kind "plain" of an import:

``checkpoints(thread_id, checkpoint_id, parent_id, state, created_at)`` and, if it is there,
``writes(thread_id, checkpoint_id, task_id, idx, channel, value)``; ``created_at``, ``task_id`` and ``idx``
may be missing. ``state`` is a JSON object as text, or LangGraph's MessagePack as bytes: a whole checkpoint of
LangGraph's, or the values by channel. ``value`` is JSON as text or MessagePack as bytes. Everything
particular to a database, including the names of its tables, is in the ``Dialect`` that its module provides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, NamedTuple, Protocol
from uuid import UUID, uuid5

from perdure.errors import BadUrl, Contention, Corrupt, Unserialisable
from perdure.imports.payloads import load, payload
from perdure.imports.source import (
    CheckpointEntry,
    Outline,
    Source,
    SourceCheckpoint,
    SourceWrite,
    WriteSlot,
)
from perdure.imports.sqlite_rows import is_utf8

CHECKPOINT_COLUMNS = {"thread_id", "checkpoint_id", "parent_id", "state"}
"""Columns that a table of checkpoints has."""
_WRITES = {"thread_id", "checkpoint_id", "channel", "value"}
_TASKS = UUID("8a5b4b0e-4a0f-5c0b-9c9e-2f6a1d0f7c31")
"""Namespace of the task ids that are made where a table of writes has none."""
_CHECKPOINT_FIELDS = {"channel_values", "channel_versions"}
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")
_SECONDS_MAX = 1e11
"""Numbers up to this one are seconds since 1970, up to the year 5138; greater ones have a smaller unit."""


class PlainRows(Protocol):
    """The rows of a database."""

    def __call__(self, query: str, *parameters: str) -> Sequence[Sequence[Any]]:
        """Return the rows of a query with parameters ``?1``, ``?2``…, all of them text. Text that is not
        UTF-8 has lone surrogates, in rows and in parameters."""
        ...

    def begin(self) -> None:
        """Let the following queries read the state at the moment of the first one, if the database can."""
        ...

    def close(self) -> None:
        """Release the database."""
        ...


class Dialect(NamedTuple):
    """SQL for the two tables of a database, in which columns have the names of the layout.

    Attributes:
        checkpoints: The table, as SQL.
        writes: The table, as SQL; empty if there is none.
        text: A template that makes text of a column.
        state: Two expressions, the form of a state (``text``, ``blob`` or ``null``) and its text; bytes are
            text of hexadecimal digits.
        value: The same of a write's value.
        time: The text of a checkpoint's time, in ISO 8601 or a number since 1970; ``NULL`` if there are no
            times.
        newest: The order of checkpoints, the newest first.
        task, idx: The text of a write's task and of its index; ``NULL`` if there are none.
        order: The order in which writes came, as far as the database knows it.
        odd: A condition for checkpoints whose ids cannot be read as text.
        can_hold: Returns False for a thread id that no row can have.
    """

    checkpoints: str
    writes: str
    text: str
    state: str
    value: str
    time: str
    newest: str
    task: str
    idx: str
    order: str
    odd: str
    can_hold: Callable[[str], bool] = lambda name: True


class _Row(NamedTuple):
    """Key of a row of writes: ``place`` is its position among equal rows."""

    checkpoint_id: str
    channel: str
    task: str | None
    idx: str | None
    place: int = 0


class _OutlineFacts:
    """Facts derived from a thread's outline: each checkpoint's depth, and its writes with their rows."""

    def __init__(self, thread: str, outline: Outline, rows: Sequence[_Row]) -> None:
        self.thread = thread
        self.depths = _count_ancestors(outline)
        self.rows = dict(zip(outline.writes, rows, strict=True))
        self.slots: dict[str, list[WriteSlot]] = {}
        for slot in outline.writes:
            self.slots.setdefault(slot.checkpoint_id, []).append(slot)


class PlainSource(Source):
    """Tables of the plain layout; closing the source closes ``rows``.

    Args:
        name: The source's name for messages.
        rows: The database's rows.
        dialect: The SQL of its tables.

    Raises:
        BadUrl: The ids are not text.
    """

    def __init__(self, name: str, rows: PlainRows, dialect: Dialect) -> None:
        self.name = name
        self._rows, self._sql = rows, dialect
        self._facts: _OutlineFacts | None = None
        self._opened_at = datetime.now(UTC).isoformat()
        if self._rows(f"SELECT 1 FROM {dialect.checkpoints} WHERE {dialect.odd} LIMIT 1"):  # noqa: S608 - a dialect's
            raise BadUrl(
                f"{name} has threads or checkpoints whose ids are empty or not text; give them as text, e.g. "
                "with a view that has CAST(thread_id AS TEXT) AS thread_id"
            )

    def count(self) -> int | None:
        """Return the number of threads."""
        query = f"SELECT CAST(count(DISTINCT thread_id) AS TEXT) FROM {self._sql.checkpoints}"  # noqa: S608 - a dialect's
        return int(self._rows(query)[0][0])

    def threads(self) -> Iterator[str]:
        """Yield the ids of the threads in order."""
        name = self._sql.text.format("thread_id")
        query, first = f"SELECT {name} FROM {self._sql.checkpoints}", "ORDER BY thread_id LIMIT 1"  # noqa: S608 - a dialect's
        found = self._rows(f"{query} {first}")
        while found:
            yield found[0][0]
            found = self._rows(f"{query} WHERE thread_id > ?1 {first}", found[0][0])

    def outline(self, thread: str) -> Outline:
        """Return the outline of a thread."""
        if not is_utf8(thread):
            raise Corrupt("its id is not UTF-8 text: the source is damaged")
        sql = self._sql
        if not sql.can_hold(thread):
            return Outline()
        self._rows.begin()
        names = ", ".join(map(sql.text.format, ("checkpoint_id", "parent_id")))
        rows = self._rows(f"SELECT {names} FROM {sql.checkpoints} WHERE thread_id = ?1", thread)  # noqa: S608 - a dialect's
        outline = Outline(
            [CheckpointEntry("", name, parent or None) for name, parent in sorted(rows, key=itemgetter(0))]
        )
        write_rows: list[_Row] = []
        if sql.writes:
            # D1 returns rows by the names of columns, so two columns must not have the same name.
            columns = f"{sql.text.format('checkpoint_id')}, channel, {sql.task} AS task, {sql.idx} AS idx"
            order = f"WHERE thread_id = ?1 ORDER BY {sql.order}"
            equal_rows: Counter[_Row] = Counter()
            task_counts: Counter[tuple[str, str]] = Counter()
            for name, channel, task, idx in self._rows(f"SELECT {columns} FROM {sql.writes} {order}", thread):  # noqa: S608 - a dialect's
                if not isinstance(channel, str):
                    raise Unserialisable(f"a write of checkpoint {name} names no channel, but {channel!r}")
                # Without task ids, a channel's writes are one task: a later row changes no other's id.
                if task is None:
                    task_id = str(uuid5(_TASKS, f"{name} {channel}"))
                else:
                    task_id = task
                if idx is None:
                    number = task_counts[name, task_id]
                else:
                    number = int(idx)
                outline.writes.append(WriteSlot("", name, task_id, number))
                row = _Row(name, channel, task, idx)
                write_rows.append(row._replace(place=equal_rows[row]))
                task_counts[name, task_id] += 1
                equal_rows[row] += 1
        self._facts = _OutlineFacts(thread, outline, write_rows)
        return outline

    def _load_facts(self, thread: str) -> _OutlineFacts:
        """Return the facts of a thread's outline; it is read only if the last outline was of another
        thread."""
        if self._facts is None or self._facts.thread != thread:
            self.outline(thread)
        if self._facts is None:
            raise AssertionError("an outline is held")
        return self._facts

    def checkpoints(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[SourceCheckpoint]:
        """Yield checkpoints in the given order. A checkpoint that has only values is completed so that
        LangGraph can go on from it, with versions that count from the thread's first checkpoint and no task
        to run."""
        depths = self._load_facts(thread).depths
        query = f"SELECT {self._sql.state}, {self._sql.time} FROM {self._sql.checkpoints}"  # noqa: S608 - a dialect's
        for entry in wanted:
            if not _HEX.fullmatch(entry.id.replace("-", "")):
                raise Unserialisable(
                    f"checkpoint {entry.id!r} is not named by hexadecimal digits, as LangGraph's are, which "
                    "could not go on from it; rename it to a UUID at the source"
                )
            rows = self._rows(f"{query} WHERE thread_id = ?1 AND checkpoint_id = ?2", thread, entry.id)
            if not rows:
                raise Contention(f"checkpoint {entry.id} is gone from {self.name}")
            kind, text, created = rows[0]
            with _name_row(f"the state of checkpoint {entry.id}"):
                state = load(*_read_column(kind, text))
            if not isinstance(state, dict):
                raise Unserialisable(f"the state of checkpoint {entry.id} is not an object")
            # The step as LangGraph counts it: the ids of tasks, by which it finds writes, are made from it.
            step = depths[entry.id] - 1
            source = "input" if step < 0 else "loop"
            metadata: dict[str, Any] = {"source": source, "step": step, "parents": {}}
            if state.keys() >= _CHECKPOINT_FIELDS:
                yield SourceCheckpoint(entry, {**state, "id": entry.id}, metadata)
                continue
            checkpoint: dict[str, Any] = {
                "v": 4,
                "ts": self._opened_at if created is None else _format_time(created),
                "id": entry.id,
                "channel_values": state,
                "channel_versions": dict.fromkeys(state, step + 2),
                "versions_seen": {},
                "updated_channels": None,
            }
            yield SourceCheckpoint(entry, checkpoint, metadata)

    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order. In a table without tasks, writes belong to no task that
        LangGraph would run: they can only be read."""
        rows_by_slot, sql = self._load_facts(thread).rows, self._sql
        for slot in wanted:
            row = rows_by_slot[slot]
            key_columns = {"channel": row.channel, sql.task: row.task, sql.idx: row.idx}
            values = {name: value for name, value in key_columns.items() if value is not None}
            same = "".join(f" AND {name} = ?{number}" for number, name in enumerate(values, 4))
            rows = self._rows(
                f"SELECT channel, {sql.value} FROM {sql.writes} "  # noqa: S608 - a dialect's
                f"WHERE thread_id = ?1 AND checkpoint_id = ?2{same} "
                f"ORDER BY {sql.order} LIMIT 1 OFFSET CAST(?3 AS INTEGER)",
                thread,
                slot.checkpoint_id,
                str(row.place),
                *values.values(),
            )
            if not rows:
                raise Contention(f"a write of checkpoint {slot.checkpoint_id} is gone from {self.name}")
            channel, kind, text = rows[0]
            with _name_row(f"the write of checkpoint {slot.checkpoint_id} to {channel!r}"):
                found = payload(*_read_column(kind, text))
            yield SourceWrite(slot, "", channel, *found)

    def slots_of(self, thread: str, entry: CheckpointEntry) -> Sequence[WriteSlot]:
        """Return the slots of a checkpoint's pending writes."""
        return self._load_facts(thread).slots.get(entry.id, ())

    def latest(self, thread: str, namespace: str, outline: Outline) -> str:
        """Return the checkpoint that was created last. If several were, or there are no times, return the
        largest id among those that are not another's parent."""
        sql = self._sql
        query = f"SELECT {sql.text.format('checkpoint_id')}, {sql.time} FROM {sql.checkpoints}"  # noqa: S608 - a dialect's
        rows = self._rows(f"{query} WHERE thread_id = ?1 ORDER BY {sql.newest}", thread)
        # Rows that came since the outline was read are left to the next import.
        outlined_ids = {entry.id for entry in outline.checkpoints}
        found = [(name, created) for name, created in rows if name in outlined_ids]
        if not found:
            raise Contention(f"thread {thread!r} was removed from {self.name} during the import")
        newest = [name for name, created in found if created == found[0][1]]
        parents = {entry.parent_id for entry in outline.checkpoints}
        return str(max([name for name in newest if name not in parents] or newest))

    def close(self) -> None:
        """Release the source."""
        self._rows.close()


def open_tables(name: str, rows: PlainRows, dialect_of: Callable[[], Dialect]) -> PlainSource:
    """Return the source of a database; close its rows if it does not have the layout.

    Raises:
        BadUrl: There are no such tables.
    """
    try:
        return PlainSource(name, rows, dialect_of())
    except BaseException:
        rows.close()
        raise


def write_optional(columns: Collection[str], column: str, sql: str) -> str:
    """Return the SQL of a column, ``NULL`` if the table does not have it."""
    if column in columns:
        return sql
    return "NULL"


def refuse_missing(name: str, checkpoints: Collection[str], writes: Collection[str]) -> None:
    """Raise ``BadUrl`` if tables lack columns of the layout; the error names the columns.

    Args:
        name: The source's name.
        checkpoints: The columns of the table of checkpoints.
        writes: The columns of the table of writes, empty if there is no such table.
    """
    for table, columns, layout in (
        ("checkpoints", checkpoints, CHECKPOINT_COLUMNS),
        ("writes", writes, _WRITES),
    ):
        missing = sorted(column for column in layout if column not in columns)
        if missing and (table == "checkpoints" or columns):
            raise BadUrl(
                f"{name} has not the plain layout: its table {table} lacks {', '.join(missing)}; "
                "name the columns so, e.g. with a view"
            )


@contextmanager
def _name_row(row: str) -> Iterator[None]:
    """Add the name of a row to the error if it cannot be read."""
    try:
        yield
    except Unserialisable as error:
        raise Unserialisable(f"{row}: {error}") from error


def _read_column(kind: str, text: Any) -> tuple[str, bytes]:
    """Return a column's form and bytes: text is JSON, bytes are MessagePack, or the bytes of JSON."""
    if kind == "text":
        return "json", str(text).encode()
    raw = bytes.fromhex(text or "")
    if not raw:
        return "null", b""  # LangGraph's serialiser writes no bytes for None
    # In MessagePack, a first byte below 0x80 is a whole value: if further bytes follow, they are JSON.
    return ("json" if len(raw) > 1 and raw[0] < 0x80 else "msgpack"), raw


def _count_ancestors(outline: Outline) -> dict[str, int]:
    """Return the number of each checkpoint's existing ancestors. In a circle of parents, counting ends
    where the circle closes; the importer refuses such a thread."""
    parents = {entry.id: entry.parent_id for entry in outline.checkpoints}
    depths: dict[str, int] = {}
    for name in parents:
        path: dict[str, None] = {}
        ancestor: str | None = name
        while ancestor in parents and ancestor not in depths and ancestor not in path:
            path[ancestor] = None
            ancestor = parents[ancestor]
        depth = depths.get(ancestor, -1) if ancestor is not None else -1
        for passed in reversed(path):
            depth += 1
            depths[passed] = depth
    return depths


def _format_time(created: str) -> str:
    """Return a time in ISO 8601. A number is of seconds, milli-, micro- or nanoseconds since 1970; other text
    is returned as it is."""
    try:
        number = float(created)
    except ValueError:
        return created
    while _SECONDS_MAX < number < _SECONDS_MAX * 1e9:
        number /= 1000
    return datetime.fromtimestamp(number, UTC).isoformat()
