"""Reads the tables of langgraph-checkpoint-postgres: checkpoints, blobs, pending writes, and the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import psycopg
from psycopg.rows import dict_row

from perdure.errors import BadUrl, Contention
from perdure.imports.payloads import ChannelCache, StockSerde, load, payload
from perdure.imports.postgres_rows import connect
from perdure.imports.source import (
    CheckpointEntry,
    DamagedItem,
    Outline,
    SourceCheckpoint,
    SourceItem,
    SourceWrite,
    StockSource,
    WriteSlot,
    translate_errors,
)
from perdure.imports.store_rows import read_item
from perdure.storage.url import redact

PACKAGE = "langgraph-checkpoint-postgres"
_TASKS = "__pregel_tasks"
_PAGE = 32
_CHECKPOINTS = frozenset(
    {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "checkpoint"}
)
_STORE = frozenset({"prefix", "key", "value"})
_reading = translate_errors(psycopg.Error)


class PostgresSource(StockSource):
    """A database of langgraph-checkpoint-postgres, opened for reading.

    All rows of a thread are read in the state of one moment: that of the call of ``outline``.

    Args:
        url: A ``postgresql://`` URL with libpq's parameters.

    Raises:
        BadUrl: The URL cannot be used, or there are no tables of the saver.
        Unavailable: The server does not answer.
    """

    package = PACKAGE

    def __init__(self, url: str) -> None:
        self.name, self._connection = redact(url), connect(url)
        self._has_threads = self._list_columns("checkpoints") >= _CHECKPOINTS
        self._has_store = self._list_columns("store") >= _STORE
        self._has_path = "task_path" in self._list_columns("checkpoint_writes")
        self._path = "task_path" if self._has_path else "''::text"
        if not self._has_threads and not self._has_store:
            self.close()
            raise BadUrl(
                f"{self.name} has no tables of {PACKAGE} on its search_path (checkpoints with checkpoint_id, "
                "or store with prefix); for another schema add ?options=-csearch_path%3Dname"
            )
        self.saver = self._open_stock_saver()
        self._cache = ChannelCache()

    def _open_stock_saver(self) -> Any:
        if find_spec("langgraph.checkpoint.postgres") is None or not self._has_path:
            return None
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver(self._connection, serde=StockSerde())

    def threads(self) -> Iterator[str]:
        """Yield the ids of the threads in order, including threads that have only writes."""
        last = ""
        while self._has_threads and (found := self._find_next_thread(last)) is not None:
            yield found
            last = found

    @_reading
    def _find_next_thread(self, last: str) -> str | None:
        rows = self._fetch_rows(
            "SELECT min(t) AS t FROM (VALUES "
            "((SELECT min(thread_id) FROM checkpoints WHERE thread_id > %s)), "
            "((SELECT min(thread_id) FROM checkpoint_writes WHERE thread_id > %s))) AS found (t)",
            last,
            last,
        )
        found: str | None = rows[0]["t"]
        return found

    @_reading
    def outline(self, thread: str) -> Outline:
        """Return the outline of a thread; its other rows are then read in the state of this moment."""
        self._connection.rollback()
        self._cache = ChannelCache()
        if not self._has_threads:
            return Outline()
        checkpoints = self._fetch_rows(
            "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = %s",
            thread,
        )
        writes = self._fetch_rows(
            "SELECT checkpoint_ns, checkpoint_id, task_id, idx FROM checkpoint_writes WHERE thread_id = %s",
            thread,
        )
        entries = [
            CheckpointEntry(row["checkpoint_ns"], row["checkpoint_id"], row["parent_checkpoint_id"] or None)
            for row in checkpoints
        ]
        return Outline(sorted(entries, key=lambda e: e.id), [WriteSlot(*row.values()) for row in writes])

    def checkpoints(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[SourceCheckpoint]:
        """Yield checkpoints in the given order."""
        for start in range(0, len(wanted), _PAGE):
            page = wanted[start : start + _PAGE]
            rows = self._read_page(thread, page)
            for entry in page:
                row = rows.get(entry[:2])
                if row is None:
                    raise Contention(f"checkpoint {entry.id} is gone from {self.name}")
                yield self._make_checkpoint(thread, entry, row)

    @_reading
    def _read_page(self, thread: str, page: Sequence[CheckpointEntry]) -> dict[tuple[str, str], Any]:
        rows = self._fetch_rows(
            "SELECT checkpoint_ns, checkpoint_id, checkpoint, metadata FROM checkpoints WHERE thread_id = %s "
            "AND (checkpoint_ns, checkpoint_id) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
            thread,
            [entry.namespace for entry in page],
            [entry.id for entry in page],
        )
        return {(row["checkpoint_ns"], row["checkpoint_id"]): row for row in rows}

    @_reading
    def _make_checkpoint(
        self, thread: str, entry: CheckpointEntry, row: Mapping[str, Any]
    ) -> SourceCheckpoint:
        checkpoint = dict(row["checkpoint"])
        versions = dict(checkpoint.get("channel_versions") or {})
        values = dict(checkpoint.get("channel_values") or {})
        read_blobs = partial(self._read_blobs, thread, entry.namespace)
        values.update(self._cache.read(entry.namespace, versions, read_blobs))
        if checkpoint.get("v", 0) < 4 and entry.parent_id is not None:
            sends = self._fetch_rows(
                "SELECT type, blob FROM checkpoint_writes "  # noqa: S608
                "WHERE thread_id = %s AND checkpoint_id = %s AND channel = %s "
                f"ORDER BY {self._path}, task_id, idx",
                thread,
                entry.parent_id,
                _TASKS,
            )
            if sends:
                # Before version 4, Sends were stored as writes of the parent.
                values[_TASKS] = [load(send["type"], send["blob"]) for send in sends]
                versions[_TASKS] = max(versions.values(), default=f"{1:032}.0")
        checkpoint |= {"channel_values": values, "channel_versions": versions}
        return SourceCheckpoint(entry, checkpoint, row["metadata"] or {})

    def _read_blobs(self, thread: str, namespace: str, wanted: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of channels, given with their versions, without those of empty channels."""
        rows = self._fetch_rows(
            "SELECT channel, type, blob FROM checkpoint_blobs "
            "WHERE thread_id = %s AND checkpoint_ns = %s "
            "AND (channel, version) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
            thread,
            namespace,
            list(wanted),
            list(wanted.values()),
        )
        return {r["channel"]: load(r["type"], r["blob"]) for r in rows if r["type"] != "empty"}

    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order."""
        for start in range(0, len(wanted), _PAGE):
            yield from self._read_writes(thread, wanted[start : start + _PAGE])

    @_reading
    def _read_writes(self, thread: str, page: Sequence[WriteSlot]) -> list[SourceWrite]:
        rows = self._fetch_rows(
            f"SELECT checkpoint_ns, checkpoint_id, task_id, idx, {self._path} AS task_path, "  # noqa: S608
            "channel, type, blob FROM checkpoint_writes WHERE thread_id = %s "
            "AND (checkpoint_ns, checkpoint_id, task_id, idx) IN "
            "(SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::int[]))",
            thread,
            *(list(column) for column in zip(*page, strict=True)),
        )
        found = {
            (
                slot := WriteSlot(row["checkpoint_ns"], row["checkpoint_id"], row["task_id"], row["idx"])
            ): SourceWrite(slot, row["task_path"], row["channel"], *payload(row["type"], row["blob"]))
            for row in rows
        }
        return [found[slot] for slot in page if slot in found]

    @_reading
    def slots_of(self, thread: str, entry: CheckpointEntry) -> list[WriteSlot]:
        """Return the slots of a checkpoint's pending writes."""
        rows = self._fetch_rows(
            "SELECT task_id, idx FROM checkpoint_writes "
            "WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
            thread,
            *entry[:2],
        )
        return [WriteSlot(*entry[:2], *row.values()) for row in rows]

    read_stock = _reading(StockSource.read_stock)

    def items(self) -> Iterator[SourceItem | DamagedItem]:
        """Yield the items of the store."""
        if not self._has_store:
            return
        last: tuple[str, str] | None = None
        has_ttl = "ttl_minutes" in self._list_columns("store")
        while rows := self._read_items(
            last, "expires_at, ttl_minutes" if has_ttl else "NULL AS e, NULL AS m"
        ):
            for row in rows:
                yield read_item(*row.values())
            last = rows[-1]["prefix"], rows[-1]["key"]

    @_reading
    def _read_items(self, last: tuple[str, str] | None, ttl: str) -> list[dict[str, Any]]:
        self._connection.rollback()
        where = ""
        if last is not None:
            where = "WHERE (prefix, key) > (%s, %s)"
        return self._fetch_rows(
            f"SELECT prefix, key, value, created_at, updated_at, {ttl} FROM store {where} "  # noqa: S608
            "ORDER BY prefix, key LIMIT 500",
            *(last or ()),
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _list_columns(self, table: str) -> set[str]:
        rows = self._fetch_rows(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0", table
        )
        return {row["attname"] for row in rows}

    def _fetch_rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        with self._connection.cursor(row_factory=dict_row, binary=True) as cursor:
            # The query's text comes from this module; values are bound.
            return cursor.execute(query.encode(), values).fetchall()
