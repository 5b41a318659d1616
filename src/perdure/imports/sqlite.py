"""Reads the tables of langgraph-checkpoint-sqlite: checkpoints, pending writes, and the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perdure.errors import BadUrl, Contention, Corrupt
from perdure.imports.payloads import StockSerde, load, payload
from perdure.imports.source import (
    CheckpointEntry,
    DamagedItem,
    Outline,
    SourceCheckpoint,
    SourceItem,
    SourceWrite,
    StockSource,
    WriteSlot,
)
from perdure.imports.sqlite_rows import SqliteRows, has_columns, is_utf8
from perdure.imports.store_rows import read_item

PACKAGE = "langgraph-checkpoint-sqlite"


STOCK_TABLES = (
    ("checkpoints", {"checkpoint_ns", "parent_checkpoint_id"}),
    ("store", {"prefix", "key", "value"}),
)
"""Tables by which the package's databases are recognised, each with some of its columns."""


def is_stock(path: Path) -> bool:
    """Return True if a file is a database of langgraph-checkpoint-sqlite's saver or store."""
    return has_columns(path, STOCK_TABLES)


class SqliteSource(StockSource):
    """A file of langgraph-checkpoint-sqlite, opened for reading.

    All rows of a thread are read in the state of one moment: that of the call of ``outline``.

    Args:
        path: The file.

    Raises:
        BadUrl: The file does not exist, or does not have the saver's tables.
    """

    package = PACKAGE

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        if not path.is_file():
            raise BadUrl(f"{path} is not a file; pass the path of the SQLite database of the old saver")
        if not is_stock(path):
            raise BadUrl(
                f"{path} has no tables of {PACKAGE} (checkpoints with checkpoint_ns, or store with prefix); "
                "check the path, and use `perdure copy` for a database of Perdure's"
            )
        self._rows = SqliteRows(path)
        self._connection = self._rows.connection
        self._tables = {row[0] for row in self._rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        self._has_path = "task_path" in self._rows.columns("writes")
        try:
            self._refuse_other_ids()
        except BadUrl:
            self.close()
            raise
        self.saver = self._open_stock_saver()

    def _refuse_other_ids(self) -> None:
        for table in sorted({"checkpoints", "writes"} & self._tables):
            # SQLite orders numbers before all text and bytes after it, so an index finds both kinds.
            other = "thread_id IS NULL OR thread_id < '' OR thread_id >= x''"
            if self._rows(f"SELECT 1 FROM {table} WHERE {other} LIMIT 1"):  # noqa: S608 - a constant
                raise BadUrl(
                    f"{self.name} has threads whose ids are not text, which {PACKAGE} does not write; delete "
                    f"the rows of {table} with typeof(thread_id) <> 'text', or give them ids of text"
                )

    def _open_stock_saver(self) -> Any:
        if find_spec("langgraph.checkpoint.sqlite") is None or not self._has_path:
            return None
        from langgraph.checkpoint.sqlite import SqliteSaver

        saver = SqliteSaver(self._connection, serde=StockSerde())
        saver.is_setup = True  # its set-up would write
        return saver

    def threads(self) -> Iterator[str]:
        """Yield the ids of the threads in order, including threads that have only writes."""
        found = self._find_thread(">=", "")
        while found is not None:
            yield found
            found = self._find_thread(">", found)

    def _find_thread(self, sign: str, edge: str) -> str | None:
        """Return the first thread that is ``>=`` or ``>`` a text."""
        found: list[str] = []
        for table in {"checkpoints", "writes"} & self._tables:
            query = f"SELECT thread_id FROM {table} WHERE thread_id {sign} ? ORDER BY thread_id LIMIT 1"  # noqa: S608
            found += [row[0] for row in self._rows(query, edge)]
        # SQLite orders text by its bytes.
        return min(found, key=lambda name: name.encode("utf-8", "surrogateescape"), default=None)

    def outline(self, thread: str) -> Outline:
        """Return the outline of a thread; its other rows are then read in the state of this moment."""
        if not is_utf8(thread):
            raise Corrupt("its id is not UTF-8 text: the source is damaged")
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
            kind, body, metadata = self._read_row(
                "SELECT type, checkpoint, metadata FROM checkpoints "
                "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
                thread,
                entry.namespace,
                entry.id,
            )
            checkpoint = load(kind, body)
            if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("channel_values"), dict):
                raise Corrupt(
                    f"checkpoint {entry.id} is not a checkpoint of LangGraph's: the source is damaged"
                )
            yield SourceCheckpoint(entry, checkpoint, {} if metadata is None else json.loads(metadata))

    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order."""
        path = "task_path" if self._has_path else "''"
        for slot in wanted:
            task_path, channel, kind, body = self._read_row(
                f"SELECT {path}, channel, type, value FROM writes WHERE thread_id = ? "  # noqa: S608
                "AND checkpoint_ns = ? AND checkpoint_id = ? AND task_id = ? AND idx = ?",
                thread,
                *slot,
            )
            yield SourceWrite(slot, task_path, channel, *payload(kind, body))

    def slots_of(self, thread: str, entry: CheckpointEntry) -> list[WriteSlot]:
        """Return the slots of a checkpoint's pending writes."""
        rows = self._rows(
            "SELECT task_id, idx FROM writes WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            thread,
            *entry[:2],
        )
        return [WriteSlot(*entry[:2], *row) for row in rows]

    def items(self) -> Iterator[SourceItem | DamagedItem]:
        """Return the items of the store."""
        if "store" not in self._tables:
            return iter(())
        has_ttl = "ttl_minutes" in self._rows.columns("store")
        ttl = "expires_at, ttl_minutes" if has_ttl else "NULL, NULL"
        rows = self._rows.iterate(
            f"SELECT prefix, key, value, created_at, updated_at, {ttl} FROM store ORDER BY prefix, key"  # noqa: S608
        )
        return (read_item(*row) for row in rows)

    def close(self) -> None:
        """Close the file."""
        self._rows.close()

    def _read_row(self, query: str, *values: object) -> Any:
        rows = self._rows(query, *values)
        if not rows:
            raise Contention(f"a row of thread {values[0]!r} is gone from {self.name}")
        return rows[0]
