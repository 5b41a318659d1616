"""Reads from the table: fetches in one snapshot, and ranges in the port's order.

Every commit gives the partition's root item a new revision. A fetch that reads the revision, the records,
and then the same revision again has read one snapshot; nothing is locked, and nothing is read twice while
there are no writes. Reads are strongly consistent, unless a caller selects an index that cannot be.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from threading import Lock, RLock, local
from typing import Any, TypeVar

from perdure.errors import Contention
from perdure.model.bounded_cache import BoundedCache
from perdure.model.ops import Fetch, Get, Range
from perdure.model.records import ITEM, SESSIONS, WRITE, Key, Partition, Record
from perdure.storage.dynamodb import items, places
from perdure.storage.dynamodb.client import Client
from perdure.storage.dynamodb.items import Item, PartitionRoot
from perdure.storage.dynamodb.query_spans import Span, group_neighbours
from perdure.storage.evaluation import get_prefix
from perdure.storage.kv import keys as layout

A = TypeVar("A")
B = TypeVar("B")

_BATCH = 100
_ATTEMPTS = 24
_PATIENT_AFTER = 3
_SHARE = 4
"""Number of records that are read for each wanted one, where two kinds share a range of places."""
_ROOTS_MOST = 16_384
_STRIPES = 64
_pool_thread = local()


class TornRead(Exception):
    """Parts of one read belong to two moments."""


class Reader:
    """Reads of one table, and a cache of each partition's incarnation and revision. An outdated entry costs
    another read, never a wrong answer."""

    def __init__(self, client: Client, fan_out: ThreadPoolExecutor) -> None:
        self._client = client
        self._pool = fan_out
        self._roots: BoundedCache[Partition, PartitionRoot] = BoundedCache(_ROOTS_MOST)
        self._lock = Lock()
        self._stripes = tuple(RLock() for _ in range(_STRIPES))

    def get_commit_lock(self, partition: Partition) -> RLock:
        """Return a lock that orders this process's commits to a partition: concurrently they would only
        cancel each other."""
        return self._stripes[hash(partition) % _STRIPES]

    def spread(self, work: Callable[[A], B], over: Sequence[A]) -> list[B]:
        """Return the results of independent requests, made concurrently."""
        if len(over) < 2 or getattr(_pool_thread, "spread", False):
            return [work(one) for one in over]

        def work_in_pool(one: A) -> B:
            # An OS thread of the pool must not wait for another one of the pool.
            _pool_thread.spread = True
            return work(one)

        return list(self._pool.map(work_in_pool, over))

    # The root

    def load_root(self, partition: Partition) -> PartitionRoot:
        """Return the root from the cache, else from the table."""
        return self.get_cached(partition) or self.read_root(partition)

    def get_cached(self, partition: Partition) -> PartitionRoot | None:
        """Return the root from the cache, ``None`` when it is not there."""
        with self._lock:
            return self._roots.get(partition)

    def read_root(self, partition: Partition) -> PartitionRoot:
        """Return the root from the table."""
        key = items.make_root_key(partition)
        for _ in range(_ATTEMPTS):
            answer = self._client.call("get_item", TableName=self._client.table, Key=key, ConsistentRead=True)
            item = answer.get("Item", {})
            root = self.remember(partition, items.root_of(item))
            with suppress(TornRead):
                if not root.parts:
                    return root
                return self._add_body(partition, root, item)
        raise Contention(f"session {partition.thread!r} is written to without a pause; try again")

    def _add_body(self, partition: Partition, root: PartitionRoot, item: Item) -> PartitionRoot:
        """Return a root with the body of its session's head, which is stored in parts; raise ``TornRead`` if
        it was replaced meanwhile."""
        (body,) = self._load_bodies(partition, root.incarnation, [{**item, **item[ITEM.name]["M"]}])
        records = dict(root.records)
        head = records.pop(ITEM.name)
        if body is not None:
            records[ITEM.name] = head._replace(body=body)
        return root._replace(records=records)

    def remember(self, partition: Partition, root: PartitionRoot) -> PartitionRoot:
        """Put a root into the cache, or remove the cached one if the partition holds nothing; return the
        root."""
        with self._lock:
            if not root.incarnation:
                self._roots.pop(partition, None)
            else:
                cached = self._roots.get(partition)
                if cached is not None and cached.revision == root.revision and not root.stored:
                    root = root._replace(stored=cached.stored)
                # The cache never answers records, and those of sessions would take much memory.
                self._roots[partition] = root._replace(records={})
        return root

    # Fetch

    def fetch(self, effect: Fetch) -> tuple[tuple[Record, ...], ...]:
        partition = effect.partition
        wanted = [item for item in effect.items if not _is_embedded(partition, item)]
        if not wanted:
            return self._make_answers(effect, self.read_root(partition), {})
        are_independent = len(wanted) == len(effect.items) and _are_independent(partition, wanted)
        root = self.load_root(partition)
        for attempt in range(_ATTEMPTS):
            if not root.incarnation:
                return tuple(() for _ in effect.items)
            if attempt < _PATIENT_AFTER:
                later_root, by_item = self._attempt(partition, root, wanted, are_independent)
            else:
                time.sleep(random.uniform(0, 0.01 * attempt))  # noqa: S311 - spreads repetitions
                with self.get_commit_lock(partition):
                    # This process may have written since the last attempt, so the root is read again.
                    later_root, by_item = self.read_root(partition), None
                    if later_root.incarnation:
                        later_root, by_item = self._attempt(partition, later_root, wanted, are_independent)
            if not later_root.incarnation or by_item is not None:
                return self._make_answers(effect, later_root, by_item or {})
            root = later_root
        raise Contention(
            f"thread {partition.thread!r} is written to without a pause by other processes, and no moment of "
            "it could be read; try again"
        )

    def _attempt(
        self, partition: Partition, root: PartitionRoot, wanted: Sequence[Get | Range], are_independent: bool
    ) -> tuple[PartitionRoot, dict[int, tuple[Record, ...]] | None]:
        """Return the root as it is after the read, and the records, ``None`` if not of one moment."""
        try:
            if are_independent:
                gets = [item for item in wanted if isinstance(item, Get)]
                later_root, records = self._get_records(partition, root.incarnation, gets, with_root=True)
                by_item = {id(get): records.get((get.kind.name, get.key), ()) for get in gets}
            else:
                by_item = self._read(partition, root.incarnation, wanted)
                later_root = self.read_root(partition)
        except TornRead:
            return self.read_root(partition), None
        is_changed = not are_independent and later_root.revision != root.revision
        if is_changed or later_root.incarnation != root.incarnation:
            return later_root, None
        return later_root, by_item

    def _make_answers(
        self, effect: Fetch, root: PartitionRoot, by_item: dict[int, tuple[Record, ...]]
    ) -> tuple[tuple[Record, ...], ...]:
        """Return the answers in the order of the request. A root without an incarnation holds nothing."""
        if not root.incarnation:
            return tuple(() for _ in effect.items)
        out: list[tuple[Record, ...]] = []
        for item in effect.items:
            record = root.records.get(item.kind.name)
            embedded = () if record is None else (record,)
            if _is_embedded(effect.partition, item):
                out.append(_apply_range(item, embedded))
            elif embedded and isinstance(item, Range):
                out.append(_insert_least(item, embedded, by_item[id(item)]))
            else:
                out.append(by_item[id(item)])
        return tuple(out)

    def _read(
        self, partition: Partition, incarnation: bytes, wanted: Sequence[Get | Range]
    ) -> dict[int, tuple[Record, ...]]:
        """Return the records of each item, by its ``id``."""
        gets: dict[int, Get] = {}
        ranges: dict[int, Range] = {}
        groups: list[list[Span]] = []
        for group in group_neighbours(wanted):
            item = group[0].item
            if len(group) > 1:
                groups.append(group)
            elif isinstance(item, Get) or len(item.prefix) == len(item.kind.key):
                gets[id(item)] = Get(item.kind, get_prefix(item))
            else:
                ranges[id(item)] = item
        work: list[Callable[[], Any]] = [
            *(partial(self.read_range, partition, incarnation, item) for item in ranges.values()),
            *(partial(self._read_neighbours, partition, incarnation, group) for group in groups),
        ]
        if gets:
            work.append(partial(self._get_records, partition, incarnation, tuple(gets.values())))
        results = self.spread(lambda step: step(), work)
        by_item: dict[int, tuple[Record, ...]] = dict(zip(ranges, results, strict=False))
        for group_records in results[len(ranges) : len(ranges) + len(groups)]:
            by_item |= group_records
        for item in wanted:
            if (get := gets.get(id(item))) is not None:
                records = results[-1][1].get((get.kind.name, get.key), ())
                by_item[id(item)] = _apply_range(item, records)
        return by_item

    def _read_neighbours(
        self, partition: Partition, incarnation: bytes, group: Sequence[Span]
    ) -> dict[int, tuple[Record, ...]]:
        """Read with one query the items whose records follow each other. Items that the query does not reach,
        because of records in between or of a limit, are read separately."""
        pk, first = items.collection(partition, incarnation), group[0]
        # The checkpoint itself precedes the writes on it.
        low = first.start
        if first.item.kind is WRITE:
            low = items.make_lower_bound(low)
        rows = self.query(pk, low, layout.successor(group[-1].start))
        remaining = list(group)
        rows_of: dict[int, list[Item]] = {id(span.item): [] for span in group}
        for row in _sort_by_full_key(rows, "sk", items.place_in, reverse=False):
            place = items.place_in(row)
            remaining = [span for span in remaining if not span.ends_before(place)]
            if not remaining or not remaining[0].holds(place):
                break
            item_rows = rows_of[id(remaining[0].item)]
            if len(item_rows) == remaining[0].limit:
                remaining = remaining[1:]
                break
            item_rows.append(row)
        else:
            remaining = []
        read = group[: len(group) - len(remaining)]
        pairs = [(span.item, row) for span in read for row in rows_of[id(span.item)]]
        bodies = self._load_bodies(partition, incarnation, [row for _, row in pairs])
        records_of: dict[int, list[Record]] = {id(span.item): [] for span in read}
        for (item, row), body in zip(pairs, bodies, strict=True):
            if body is not None:
                records_of[id(item)].append(items.record_of(item.kind, row, body))
        complete = {name: tuple(records) for name, records in records_of.items()}
        return complete | self._read(partition, incarnation, [span.item for span in remaining])

    def _get_records(
        self, partition: Partition, incarnation: bytes, gets: Sequence[Get], *, with_root: bool = False
    ) -> tuple[PartitionRoot, dict[tuple[str, Key], tuple[Record, ...]]]:
        """Return records by kind and key, and the root if ``with_root``."""
        gets_by_place: dict[tuple[bytes, bytes], Get] = {}
        keys: list[Item] = []
        if with_root:
            keys.append(items.make_root_key(partition))
        for get in gets:
            key = items.key_of(partition, incarnation, get.kind, get.key)
            place = (key["pk"]["B"], key["sk"]["B"])
            if place not in gets_by_place:
                gets_by_place[place] = get
                keys.append(key)
        root = items.NO_ROOT
        pairs: list[tuple[Get, Item]] = []
        for item in self._get_items(keys):
            item_place = (bytes(item["pk"]["B"]), bytes(item["sk"]["B"]))
            if item_place in gets_by_place:
                pairs.append((gets_by_place[item_place], item))
            else:
                root = items.root_of(item)
        if with_root:
            self.remember(partition, root)
        bodies = self._load_bodies(partition, incarnation, [item for _, item in pairs])
        return root, {
            (get.kind.name, get.key): (items.record_of(get.kind, item, body),)
            for (get, item), body in zip(pairs, bodies, strict=True)
            if body is not None
        }

    def _get_items(self, keys: Sequence[Item]) -> Iterator[Item]:
        batches = [keys[at : at + _BATCH] for at in range(0, len(keys), _BATCH)]
        requests = [{"Keys": list(batch), "ConsistentRead": True} for batch in batches]
        for answers in self.spread(
            lambda r: self._client.request_batch("batch_get_item", r, "UnprocessedKeys"), requests
        ):
            yield from answers

    def _load_bodies(
        self, partition: Partition, incarnation: bytes, rows: Sequence[Item]
    ) -> Sequence[bytes | None]:
        """Return the bodies that are stored in parts, joined; empty for the others, ``None`` for records that
        have expired and are partly removed."""
        keys_of: list[list[Item]] = [[] for _ in rows]
        for keys, item in zip(keys_of, rows, strict=True):
            if (parts := items.parts_of(item)) is not None:
                keys += items.make_part_keys(partition, incarnation, *parts)
        if not any(keys_of):
            return [b""] * len(rows)
        found = self._get_items([key for keys in keys_of for key in keys])
        part_bodies = {(i["pk"]["B"], i["sk"]["B"]): bytes(i["b"]["B"]) for i in found}
        bodies: list[bytes | None] = []
        for keys, item in zip(keys_of, rows, strict=True):
            own_parts = [part_bodies.get((key["pk"]["B"], key["sk"]["B"])) for key in keys]
            pieces = [piece for piece in own_parts if piece is not None]
            if len(pieces) == len(own_parts):
                bodies.append(b"".join(pieces))
            elif items.is_expired(item, time.time()):
                # The service removes expired items one by one, in no order: the record will go as well.
                bodies.append(None)
            else:
                raise TornRead
        return bodies

    # Ranges

    def read_range(self, partition: Partition, incarnation: bytes, item: Range) -> tuple[Record, ...]:
        pk = items.collection(partition, incarnation)
        if item.by is not None:
            matching = self._query_by_field(pk, item)
        else:
            matching = self._query_by_key(pk, item)
        records: list[Record] = []
        missing = item.limit
        while rows := list(islice(matching, missing)):
            bodies: Sequence[bytes | None] = [b""] * len(rows)
            if item.bodies:
                bodies = self._load_bodies(partition, incarnation, rows)
            # Further records replace those that have expired: the caller takes a short page for the last one.
            records += [
                items.record_of(item.kind, row, body)
                for row, body in zip(rows, bodies, strict=True)
                if body is not None
            ]
            if item.limit is not None:
                missing = item.limit - len(records)
        return tuple(records)

    def _query_by_key(self, pk: bytes, item: Range) -> Iterator[Item]:
        kind = item.kind
        reverse = item.reverse != places.is_mirrored(kind)
        limit = item.limit
        if limit is not None and places.shares_place(kind):
            limit *= _SHARE
        starts = places.find_place_prefixes(kind, item.prefix)
        edge: bytes | None = None
        if item.after is not None:
            edge = places.place_of(kind, item.after)
        for start in reversed(starts) if item.reverse else starts:
            if edge is not None and len(starts) > 1 and not edge.startswith(start):
                # All records with this start come before the edge.
                continue
            rows = self.query_between(
                pk, start, edge, reverse=reverse, limit=limit, select=_make_projection(item)
            )
            for row in rows:
                place = items.place_in(row)
                if is_past(place, start, edge, reverse) and places.record_at(place)[0] is kind:
                    yield row
            edge = None

    def query_between(
        self,
        pk: bytes,
        prefix: bytes,
        edge: bytes | None,
        *,
        reverse: bool,
        limit: int | None,
        select: Item,
        full: Callable[[Item], bytes] = items.place_in,
        names: tuple[str, str] = ("pk", "sk"),
    ) -> Iterator[Item]:
        """Yield items in the order of their full keys, from about ``edge`` on; a few others may be included.

        Args:
            pk: The partition key.
            prefix: The prefix of the full keys.
            edge: The full key to start after.
            reverse: Descending order.
            limit: Maximum number of items that the caller needs.
            select: Further parameters of the query.
            full: Returns the full key of an item.
            names: The attributes of the partition key and the sort key.
        """
        start = items.sort_key(prefix)[: items.KEPT]
        low, high = start, layout.successor(start)
        if edge is not None and not reverse:
            low = max(low, items.make_lower_bound(edge))
        elif edge is not None:
            high = min(high, items.make_upper_bound(edge))
        rows = self.query(pk, low, high, reverse=reverse, limit=limit, select=select, names=names)
        return _sort_by_full_key(rows, names[1], full, reverse)

    def _query_by_field(self, pk: bytes, item: Range) -> Iterator[Item]:
        if item.by not in item.kind.by or len(item.prefix) != len(item.kind.key) - 1:
            raise ValueError(
                f"{item.kind.name} is ordered by {item.kind.by} under all but the last part of a key"
            )
        prefix = items.encode_order_prefix(item.kind, item.prefix)
        edge: bytes | None = None
        low, high = prefix, layout.successor(prefix)
        if item.after is not None:
            edge = prefix + layout.encode_integer(item.after)
            if item.reverse:
                high = edge
            else:
                low = edge + b"\x00"
        rows = self.query(
            pk,
            low,
            high,
            reverse=item.reverse,
            limit=item.limit,
            select={**_make_projection(item), "IndexName": items.BY_ORDER},
            names=("pk", "o"),
        )
        return (row for row in rows if is_past(bytes(row["o"]["B"]), prefix, edge, item.reverse))

    def query(
        self,
        pk: bytes,
        low: bytes,
        high: bytes,
        *,
        reverse: bool = False,
        limit: int | None = None,
        select: Item | None = None,
        names: tuple[str, str] = ("pk", "sk"),
    ) -> Iterator[Item]:
        """Yield the items of a collection from ``low`` to ``high``, both included, page by page.

        Args:
            pk: The partition key.
            low: The least sort key.
            high: The greatest sort key.
            reverse: Descending order.
            limit: Maximum number of items that the caller needs.
            select: Further parameters of the query.
            names: The attributes of the partition key and the sort key.
        """
        if low > high:
            return
        parameters: Item = {
            "TableName": self._client.table,
            "KeyConditionExpression": f"{names[0]} = :pk AND {names[1]} BETWEEN :low AND :high",
            "ExpressionAttributeValues": {":pk": {"B": pk}, ":low": {"B": low}, ":high": {"B": high}},
            "ScanIndexForward": not reverse,
            "ConsistentRead": True,
            **(select or {}),
        }
        if limit is not None:
            # One more than needed: the item at an edge may have to be left out.
            parameters["Limit"] = limit + 1
        while True:
            answer = self._client.call("query", **parameters)
            yield from answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            parameters["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def _make_projection(item: Range) -> Item:
    """Return the parameters that leave bodies out of the answer if they are not needed."""
    if item.bodies or not item.kind.body:
        return {}
    names = ["pk", "sk", "k", "v", "o", *(c.name for c in item.kind.fields)]
    return {
        "ProjectionExpression": ", ".join(f"#{name}" for name in names),
        "ExpressionAttributeNames": {f"#{name}": name for name in names},
    }


def _is_embedded(partition: Partition, item: Get | Range) -> bool:
    """Return True if an item reads a record in the root and no other."""
    return items.is_embedded(partition, Get(item.kind, get_prefix(item)))


def _insert_least(item: Range, least: tuple[Record, ...], others: tuple[Record, ...]) -> tuple[Record, ...]:
    """Return the answer of a range, with a record inserted that precedes all others of its kind."""
    if item.prefix or (item.after is not None and (not item.reverse or item.after <= least[0].key)):
        return others
    least = _apply_range(item._replace(after=None), least)
    return (others + least if item.reverse else least + others)[: item.limit]


def _apply_range(item: Get | Range, records: tuple[Record, ...]) -> tuple[Record, ...]:
    """Return the answer of an item that reads one key, given the record of this key, if any."""
    if isinstance(item, Get):
        return records
    if item.after is not None:
        return ()
    if item.bodies:
        return records
    return tuple(Record(r.kind, r.key, r.fields, r.version) for r in records)


def _are_independent(partition: Partition, wanted: Sequence[Get | Range]) -> bool:
    """Return True if the items may be read at different moments: one record, or immutable ones. All records
    of a session but its head are immutable."""
    are_gets = all(isinstance(item, Get) for item in wanted)
    are_immutable = partition.space == SESSIONS or all(item.kind.grows is not None for item in wanted)
    return are_gets and (len(wanted) == 1 or are_immutable)


def is_past(full: bytes, prefix: bytes, edge: bytes | None, reverse: bool) -> bool:
    """Return True if a full key is under the prefix and beyond the edge.

    Args:
        full: The full encoded key.
        prefix: The prefix.
        edge: The encoded key to start after, ``None`` for none.
        reverse: Descending order.
    """
    if not full.startswith(prefix):
        return False
    return edge is None or (full < edge if reverse else full > edge)


def _sort_by_full_key(
    rows: Iterable[Item], name: str, full: Callable[[Item], bytes], reverse: bool
) -> Iterator[Item]:
    """Yield rows in the order of their full keys: those with a shortened key are collected and sorted."""
    group: list[Item] = []
    stem = b""
    for row in rows:
        key = bytes(row[name]["B"])
        if group and key[: items.KEPT] != stem:
            yield from sorted(group, key=full, reverse=reverse)
            group = []
        if len(key) > items.KEPT:
            stem = key[: items.KEPT]
            group.append(row)
        elif not group:
            yield row
        else:
            # This key equals the stem, so it precedes all keys that were shortened to the stem.
            yield from sorted([*group, row], key=full, reverse=reverse)
            group = []
    yield from sorted(group, key=full, reverse=reverse)
