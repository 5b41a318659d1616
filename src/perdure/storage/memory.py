"""A store in this process's memory: the model for the other drivers. Nothing is durable."""

from __future__ import annotations

import time
from collections.abc import Iterable
from operator import itemgetter
from threading import RLock
from typing import Any, TypeVar, cast

from perdure.errors import BadUrl, Unavailable
from perdure.model.ops import (
    Commit,
    Committed,
    Delete,
    Drop,
    Fetch,
    Find,
    FindRecords,
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
from perdure.model.records import RESERVED, Key, Kind, Partition, Record
from perdure.storage import evaluation
from perdure.storage.port import Capabilities, CommitLimits

SCHEMA_VERSION = 0
R = TypeVar("R")
Table = dict[Key, Record]


class MemoryDriver:
    """One dict for each partition and kind, behind one lock.

    It has none of the optional indexes (``"listed"``, ``"items"``, ``"nearest"``), so that the code which
    reads threads and items one by one instead is tested on this driver.
    """

    capabilities = Capabilities(is_kept=False, is_local=True, keeps_fields=True, statements="memory://")

    def __init__(self, limits: CommitLimits | None = None) -> None:
        self.limits = limits or CommitLimits(ops=100_000, bytes=1 << 30)
        self._partitions: dict[Partition, dict[str, Table]] = {}
        self._lock = RLock()
        self._closed = False
        # From here on the time advances evenly, even if the host's clock is set.
        self._ahead_us = (time.time_ns() - time.monotonic_ns()) // 1000

    def perform(self, effect: Effect[R]) -> R:
        with self._lock:
            if self._closed:
                raise Unavailable("memory:// is closed; open it again with perdure.connect")
            return cast(R, self._perform(effect))

    async def aperform(self, effect: Effect[R]) -> R:
        return self.perform(effect)

    def close(self) -> None:
        """Refuse further requests, as every other backend does, and forget everything."""
        with self._lock:
            self._closed = True
            self._partitions.clear()

    def _perform(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Fetch):
            return tuple(self._read(effect.partition, item) for item in effect.items)
        if isinstance(effect, Commit):
            return self._commit(effect.partition, effect.ops)
        if isinstance(effect, Stage):
            self._write(effect.partition, effect.puts)
            return None
        if isinstance(effect, Find):
            return tuple(self._find(effect))
        if isinstance(effect, Now):
            return time.monotonic_ns() // 1000 + self._ahead_us
        if isinstance(effect, Drop):
            return self._drop(effect)
        raise TypeError(f"not a storage request: {type(effect).__name__}")

    def _drop(self, effect: Drop) -> Committed | Refused:
        if effect.if_empty:
            return Committed()  # A partition without records is not found.
        for check in effect.checks:
            if not evaluation.holds(check, self._get_table(effect.partition, check.kind).get(check.key)):
                return Refused(check.kind, check.key)
        self._partitions.pop(effect.partition, None)
        return Committed()

    def _get_table(self, partition: Partition, kind: Kind) -> Table:
        return self._partitions.get(partition, {}).get(kind.name, {})

    def _read(self, partition: Partition, item: Get | Range) -> tuple[Record, ...]:
        table = self._get_table(partition, item.kind)
        return tuple(evaluation.select(item, table, table.__getitem__))

    def _commit(self, partition: Partition, ops: tuple[Op, ...]) -> Committed | Refused:
        for op in ops:
            if not evaluation.holds(op, self._get_table(partition, op.kind).get(op.key)):
                return Refused(op.kind, op.key)
        self._write(partition, ops)
        return Committed()

    def _write(self, partition: Partition, ops: Iterable[Op]) -> None:
        tables = self._partitions.setdefault(partition, {})
        for op in ops:
            table = tables.setdefault(op.kind.name, {})
            if isinstance(op, Delete):
                table.pop(op.key, None)
            elif isinstance(op, Put):
                fields = dict(op.fields)
                stored = table.get(op.key)
                if op.kind.grows is not None and stored is not None:
                    fields[op.kind.grows] = max(fields[op.kind.grows], stored.fields[op.kind.grows])
                if op.keep is not None and stored is not None and not _has_expired(stored, fields[op.keep]):
                    fields[op.keep] = stored.fields[op.keep]
                table[op.key] = Record(op.kind, op.key, fields, op.version, op.body)

    def _find(self, effect: Find) -> Iterable[IndexHit]:
        if isinstance(effect, FindThreads):
            non_empty = (p for p, tables in self._partitions.items() if any(tables.values()))
            return evaluation.select_threads(effect, non_empty)
        partitions = sorted(
            p for p in self._partitions if effect.tenant in (None, p.tenant) and p != RESERVED
        )
        if not isinstance(effect, FindRecords):
            raise TypeError(f"not a request to memory://: {type(effect).__name__}")
        low, high = effect.span
        out: list[tuple[Any, IndexHit]] = []
        for partition in partitions:
            for record in self._get_table(partition, effect.kind).values():
                value = record.fields[effect.kind.index or ""]
                if value is not None and value <= high and (low is None or value >= low):
                    hint = Record(record.kind, record.key, record.fields)
                    out.append((value, IndexHit(partition, hint)))
        out.sort(key=itemgetter(0))
        return [hit for _, hit in out[: effect.limit]]


def _has_expired(record: Record, now: int) -> bool:
    """Return True if a record has expired. Records of kinds that do not expire never have."""
    if not record.kind.expires:
        return False
    expires_at = record.fields[str(record.kind.index)]
    return expires_at is not None and expires_at <= now


def open_driver(url: str) -> MemoryDriver:
    """Return a new, empty driver at each call."""
    if url.partition("://")[2]:
        raise BadUrl("memory:// names no database, and keeps nothing; write memory:// alone")
    return MemoryDriver()


def schema_version(url: str) -> int:
    return SCHEMA_VERSION


def plan_migration(url: str) -> list[str]:
    return []


def migrate(url: str) -> int:
    raise BadUrl("memory:// has no schema to migrate; it is ready when it is opened")
