"""Reads the plain layout of home-made savers, in a SQLite file or in Cloudflare D1:

``checkpoints(thread_id, checkpoint_id, parent_id, state, created_at)`` and, if it is there,
``writes(thread_id, checkpoint_id, task_id, idx, channel, value)``. ``state`` is a JSON object as text, or
LangGraph's MessagePack as bytes: a whole checkpoint of LangGraph's, or the values by channel. ``value`` is
JSON as text or MessagePack as bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

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

_CHECKPOINTS = {"thread_id", "checkpoint_id", "parent_id", "state", "created_at"}
_WRITES = {"thread_id", "checkpoint_id", "task_id", "idx", "channel", "value"}
_WHOLE = {"channel_values", "channel_versions"}
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")


class PlainRows(Protocol):
    """Runs a query with parameters ``?1``, ``?2``…, all of them text. Text that is no UTF-8 comes as lone
    surrogates, and is taken so."""

    def __call__(self, query: str, *parameters: str) -> Sequence[Sequence[Any]]: ...


class _Held:
    """A thread's outline, with what follows from it: each checkpoint's depth, and its writes."""

    def __init__(self, thread: str, outline: Outline) -> None:
        self.thread = thread
        self.depths = _depths(outline)
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
        found = self._columns("writes")
        if found and (missing := _WRITES - found):
            raise BadUrl(
                f"{name} has not the plain layout: its table writes lacks {', '.join(sorted(missing))}"
            )
        self._has_writes = bool(found)
        other = "typeof(thread_id) <> 'text' OR typeof(checkpoint_id) <> 'text' OR thread_id = ''"
        if self._rows(f"SELECT 1 FROM checkpoints WHERE {other} LIMIT 1"):  # noqa: S608 - a constant
            raise BadUrl(
                f"{name} has threads or checkpoints whose ids are no text, or empty; give them as text, e.g. "
                "with a view that has CAST(thread_id AS TEXT) AS thread_id"
            )

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
        if self._has_writes:
            slots = self._rows(
                "SELECT checkpoint_id, task_id, CAST(idx AS TEXT) FROM writes WHERE thread_id = ?1", thread
            )
            outline.writes = [WriteSlot("", name, task, int(idx)) for name, task, idx in slots]
        self._held = _Held(thread, outline)
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
        for entry in wanted:
            if not _HEX.fullmatch(entry.id.replace("-", "")):
                raise Unserialisable(
                    f"checkpoint {entry.id!r} is not named by hexadecimal digits, as LangGraph's are, which "
                    "could not go on from it; rename it to a UUID at the source"
                )
            rows = self._rows(
                "SELECT typeof(state), CASE typeof(state) WHEN 'blob' THEN hex(state) ELSE state END, "
                "CAST(created_at AS TEXT) FROM checkpoints WHERE thread_id = ?1 AND checkpoint_id = ?2",
                thread,
                entry.id,
            )
            if not rows:
                raise Contention(f"checkpoint {entry.id} is gone from {self.name}")
            kind, text, created = rows[0]
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
                "ts": _time(created),
                "id": entry.id,
                "channel_values": state,
                "channel_versions": dict.fromkeys(state, step + 2),
                "versions_seen": {},
                "updated_channels": None,
            }
            yield SourceCheckpoint(entry, checkpoint, metadata)

    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order."""
        for slot in wanted:
            rows = self._rows(
                "SELECT channel, typeof(value), "
                "CASE typeof(value) WHEN 'blob' THEN hex(value) ELSE value END "
                "FROM writes WHERE thread_id = ?1 AND checkpoint_id = ?2 AND task_id = ?3 AND idx = "
                "CAST(?4 AS INTEGER)",
                thread,
                slot.checkpoint_id,
                slot.task_id,
                str(slot.idx),
            )
            if not rows:
                raise Contention(f"a write of checkpoint {slot.checkpoint_id} is gone from {self.name}")
            channel, kind, text = rows[0]
            yield SourceWrite(slot, "", channel, *payload(*_stored(kind, text)))

    def expected(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[CheckpointTuple]:
        """Yield checkpoints as they are read here: no saver is known for this layout."""
        slots = self._held_of(thread).slots
        for found in self.checkpoints(thread, wanted):
            yield as_tuple(thread, found, self.writes(thread, slots.get(found.entry.id, [])), SERDE)

    def latest(self, thread: str, namespace: str, outline: Outline) -> str:
        """Return the checkpoint that was created last, of several the one with the largest id."""
        rows = self._rows(
            "SELECT checkpoint_id FROM checkpoints WHERE thread_id = ?1 "
            "ORDER BY created_at DESC, checkpoint_id DESC",
            thread,
        )
        # Rows that came since the outline was read are of the next import.
        known = {entry.id for entry in outline.checkpoints}
        found = next((name for (name,) in rows if name in known), None)
        if found is None:
            raise Contention(f"thread {thread!r} was removed from {self.name} during the import")
        return str(found)

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


def _time(created: str | None) -> str:
    """Return a time in ISO 8601: of text, or of seconds or milliseconds since 1970."""
    text = created or "0"
    try:
        number = float(text)
    except ValueError:
        return text
    return datetime.fromtimestamp(number / 1000 if number > 1e11 else number, UTC).isoformat()
