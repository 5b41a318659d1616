"""Imports the items of a store, in batches by namespace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.engine.complete_reads import list_all_partitions
from perdure.engine.transfer.importing_items import ArrivingItem, put_items, read_keys
from perdure.errors import PerdureError, Unavailable
from perdure.imports.importer import ImportOptions
from perdure.imports.source import DamagedItem, SourceItem
from perdure.model.records import STORE, Partition
from perdure.model.store_items import labels_of, partition_of
from perdure.model.values.json_values import pack

_AT_ONCE = 50


@dataclass(slots=True)
class ItemCounts:
    """Counts of a store's items: written now; unchanged, as the target has them or newer ones; expired at the
    source; kept, as only the target has them; and the reasons of those that were skipped."""

    written: int = 0
    unchanged: int = 0
    expired: int = 0
    kept: int = 0
    skipped: list[str] = field(default_factory=list)


class ItemImporter:
    """Imports items into an open database.

    Args:
        database: The target.
        options: The options; only ``tenant`` and ``dry_run`` are used.
        now: The time in microseconds since 1970.
    """

    def __init__(self, database: SyncDatabase, options: ImportOptions, now: int) -> None:
        self._db = handle_of(database)
        self._options = options
        self._now = now
        self._budget = self._db.budget
        self._seen: dict[Partition, set[str]] = {}
        self.counts = ItemCounts()

    def run(self, items: Iterable[SourceItem | DamagedItem]) -> ItemCounts:
        """Import items; return the counts. An item that cannot be read or stored is skipped, and the others
        are imported. Raises ``Unavailable`` if the target does not answer."""
        counts = self.counts
        for labels, group in groupby(self._skip_damaged(items), key=lambda item: item.namespace):
            partition = partition_of(self._options.tenant, labels)
            batch: list[ArrivingItem] = []
            seen = self._seen.setdefault(partition, set())
            for item in group:
                seen.add(item.key)
                if item.expires_at is not None and item.expires_at <= self._now:
                    counts.expired += 1
                    continue
                try:
                    batch.append(_to_arriving(item, self._db.draw_version()))
                except PerdureError as error:
                    counts.skipped.append(str(error))
                if len(batch) == _AT_ONCE:
                    self._put(partition, batch)
                    batch = []
            if batch:
                self._put(partition, batch)
        for partition in self._db.run(list_all_partitions(self._options.tenant, STORE)):
            keys = self._db.run(read_keys(partition, self._now))
            counts.kept += len(keys.difference(self._seen.get(partition, ())))
        return counts

    def _skip_damaged(self, items: Iterable[SourceItem | DamagedItem]) -> Iterator[SourceItem]:
        for item in items:
            if isinstance(item, DamagedItem):
                self.counts.skipped.append(item.why)
            else:
                yield item

    def _put(self, partition: Partition, items: list[ArrivingItem]) -> None:
        program = put_items(partition, items, self._now, self._budget, dry_run=self._options.dry_run)
        try:
            written = self._db.run(program)
        except Unavailable:
            raise
        except PerdureError as error:
            if len(items) > 1:
                for item in items:
                    self._put(partition, [item])
                return
            where = f"item {items[0].key!r} of {labels_of(partition.thread)!r}"
            self.counts.skipped.append(f"{where}: {error}")
            return
        self.counts.written += written
        self.counts.unchanged += len(items) - written


def _to_arriving(item: SourceItem, version: int) -> ArrivingItem:
    where = f"item {item.key!r} of {item.namespace!r}: value"
    return ArrivingItem(
        item.key,
        pack(dict(item.value), where),
        item.created_at,
        item.updated_at,
        item.ttl,
        item.expires_at,
        version,
    )
