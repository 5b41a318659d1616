"""Reads the tables of langgraph-checkpoint-sqlite: checkpoints, pending writes, and the store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from perdure.errors import BadUrl, Contention, Corrupt, Unavailable
from perdure.imports.expected import as_tuple
from perdure.imports.payloads import SERDE, StockSerde, loaded, payload
from perdure.imports.source import (
    CheckpointEntry,
    Outline,
    SourceCheckpoint,
    SourceItem,
    SourceWrite,
    WriteSlot,
)
from perdure.imports.store_rows import item_of

PACKAGE = "langgraph-checkpoint-sqlite"


def is_stock(path: Path) -> bool:
    """Return True if a file is a database of langgraph-checkpoint-sqlite's saver or store."""
    if not path.is_file():
        return False
    try:
        with closing(_open(path)) as connection:
            return _columns(connection, "checkpoints") >= {"checkpoint_ns", "parent_checkpoint_id"} or (
                _columns(connection, "store") >= {"prefix", "key", "value"}
            )
    except sqlite3.Error:
        return False


class SqliteSource:
    """A file of langgraph-checkpoint-sqlite, opened for reading.

    A thread's rows are read from the state of one moment, which ``outline`` begins.

    Args:
        path: The file.

    Raises:
        BadUrl: There is no such file, or it has not the saver's tables.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        if not path.is_file():
            raise BadUrl(f"{path} is not a file; pass the path of the SQLite database of the old saver")
        if not is_stock(path):
            raise BadUrl(
                f"{path} has no tables of {PACKAGE} (checkpoints with checkpoint_ns, or store with prefix)"
            )
        self._connection = _open(path)
        self._tables = {
            row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        self._has_path = "task_path" in _columns(self._connection, "writes")
        self._saver = self._stock_saver()
        self.verifier = PACKAGE if self._saver is not None else self.name

    def _stock_saver(self) -> Any:
        if find_spec("langgraph.checkpoint.sqlite") is None or not self._has_path:
            return None
        from langgraph.checkpoint.sqlite import SqliteSaver

        saver = SqliteSaver(self._connection, serde=StockSerde())
        saver.is_setup = True  # its set-up would write
        return saver

    def count(self) -> int | None:
        """Return the number of threads."""
        return sum(1 for _ in self.threads())

    def threads(self) -> Iterator[str]:
        """Yield the ids of the threads in order, of those that have only writes as well."""
        last: str | None = None
        while (last := self._after(last)) is not None:
            yield last

    def _after(self, last: str | None) -> str | None:
        found: list[str] = []
        for table in {"checkpoints", "writes"} & self._tables:
            where = "" if last is None else "WHERE thread_id > ?"
            query = f"SELECT thread_id FROM {table} {where} ORDER BY thread_id LIMIT 1"  # noqa: S608
            found += [row[0] for row in self._rows(query, *(() if last is None else (last,)))]
        return min(found, default=None)

    def outline(self, thread: str) -> Outline:
        """Return what there is of a thread, and begin to read it from this moment's state."""
        if self._connection.in_transaction:
            self._connection.rollback()
        self._connection.execute("BEGIN")
        outline = Outline()
        if "checkpoints" in self._tables:
            outline.checkpoints = [
                CheckpointEntry(namespace, name, parent or None)
                for namespace, name, parent in self._rows(
                    "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints "
                    "WHERE thread_id = ? ORDER BY checkpoint_id",
                    thread,
                )
            ]
        if "writes" in self._tables:
            outline.writes = [
                WriteSlot(*row)
                for row in self._rows(
                    "SELECT checkpoint_ns, checkpoint_id, task_id, idx FROM writes WHERE thread_id = ?",
                    thread,
                )
            ]
        return outline

    def checkpoints(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[SourceCheckpoint]:
        """Yield checkpoints in the given order."""
        for entry in wanted:
            kind, body, metadata = self._row(
                "SELECT type, checkpoint, metadata FROM checkpoints "
                "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
                thread,
                entry.namespace,
                entry.id,
            )
            checkpoint = loaded(kind, body)
            if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("channel_values"), dict):
                raise Corrupt(
                    f"checkpoint {entry.id} is not a checkpoint of LangGraph's: the source is damaged"
                )
            yield SourceCheckpoint(entry, checkpoint, {} if metadata is None else json.loads(metadata))

    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order."""
        path = "task_path" if self._has_path else "''"
        for slot in wanted:
            task_path, channel, kind, body = self._row(
                f"SELECT {path}, channel, type, value FROM writes WHERE thread_id = ? "  # noqa: S608
                "AND checkpoint_ns = ? AND checkpoint_id = ? AND task_id = ? AND idx = ?",
                thread,
                *slot,
            )
            yield SourceWrite(slot, task_path, channel, *payload(kind, body))

    def expected(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[CheckpointTuple]:
        """Yield checkpoints as the stock saver returns them, or as they are read here without its package."""
        if self._saver is None:
            slots = self._slots(thread, wanted)
            for found in self.checkpoints(thread, wanted):
                yield as_tuple(thread, found, self.writes(thread, slots.get(found.entry[:2], ())), SERDE)
            return
        for entry in wanted:
            configurable = {
                "thread_id": thread,
                "checkpoint_ns": entry.namespace,
                "checkpoint_id": entry.id,
            }
            found = self._saver.get_tuple({"configurable": configurable})
            if found is None:
                raise Contention(f"checkpoint {entry.id} is gone from {self.name}")
            yield found

    def _slots(
        self, thread: str, wanted: Sequence[CheckpointEntry]
    ) -> dict[tuple[str, str], list[WriteSlot]]:
        return {
            entry[:2]: [
                WriteSlot(*entry[:2], *row)
                for row in self._rows(
                    "SELECT task_id, idx FROM writes "
                    "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
                    thread,
                    *entry[:2],
                )
            ]
            for entry in wanted
        }

    def latest(self, thread: str, namespace: str, outline: Outline) -> str:
        """Return the largest id: the stock saver's rule."""
        return max(entry.id for entry in outline.checkpoints if entry.namespace == namespace)

    def items(self) -> Iterator[SourceItem]:
        """Yield the items of the store."""
        if "store" not in self._tables:
            return
        has_ttl = "ttl_minutes" in _columns(self._connection, "store")
        ttl = "expires_at, ttl_minutes" if has_ttl else "NULL, NULL"
        for row in self._connection.execute(
            f"SELECT prefix, key, value, created_at, updated_at, {ttl} FROM store ORDER BY prefix, key"  # noqa: S608
        ):
            yield item_of(*row)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _rows(self, query: str, *values: object) -> list[Any]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise Unavailable(f"{self.name} cannot be read: {error}") from error

    def _row(self, query: str, *values: object) -> Any:
        rows = self._rows(query, *values)
        if not rows:
            raise Contention(f"a row of thread {values[0]!r} is gone from {self.name}")
        return rows[0]


def _open(path: Path) -> sqlite3.Connection:
    """Open a file for reading only."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=30)


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
