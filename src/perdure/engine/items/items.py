"""Use cases of the store: write, read, renew, search, list and sweep items.

A namespace is a partition: a batch written to one is atomic as far as one commit holds it. A call reads only
the namespaces that it asks for, and no bodies for a listing or a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from perdure.engine.complete_reads import list_all_partitions, read_all
from perdure.engine.items import item_writes, search_index
from perdure.engine.items.item_writes import weigh_write, weight
from perdure.engine.items.known_generations import KnownGenerations
from perdure.engine.requests import read_records, try_commit
from perdure.engine.transact import Budget
from perdure.errors import TooLarge
from perdure.model.ops import (
    Bound,
    Delete,
    Drop,
    Fetch,
    FindExpired,
    FindItems,
    FindThreads,
    ItemPlace,
    Op,
    Put,
    Range,
)
from perdure.model.program import Program, ask
from perdure.model.records import ITEM, STORE, Key, Partition, Record
from perdure.model.store_items import (
    Condition,
    Labels,
    Write,
    common_prefix,
    is_over,
    labels_of,
    matches,
    name_after,
    name_of,
    partition_of,
    postpone_expiry,
)

_WHOLE = 64
_KEPT = 1000
_FOUND = 1000
_FOUND_MOST = 16_000
_FOUND_BYTES = 8 << 20
_HEADERS = 1000
_NAMES = 100
_EXPIRED = 500

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Hit(Generic[V]):
    """An item that a search found, the value decoded from its body, and in a search by meaning its score."""

    labels: Labels
    record: Record
    value: V
    score: float | None = None


def read(partition: Partition, keys: Sequence[str], now: int) -> Program[dict[str, Record]]:
    """Return the living items among the keys."""
    records = yield from read_records(partition, ITEM, [(key,) for key in keys])
    return {r.key[0]: r for r in records if not is_over(r, now)}


def write(
    partition: Partition,
    writes: Iterable[Write],
    budget: Budget,
    *,
    keeps: bool = False,
    known: KnownGenerations | None = None,
) -> Program[None]:
    """Put and delete items, at most one write for each key.

    An item that is put again keeps its creation time, unless it has expired. Of two writers the later commit
    wins; neither fails. ``keeps`` is the driver's ``keeps_fields``, ``known`` what this process knows of the
    search index. Raises ``TooLarge`` for an item that exceeds ``budget.bytes``.
    """

    def weigh(write: Write) -> tuple[int, int]:
        ops, size = weigh_write(write)
        if size > budget.bytes:
            raise TooLarge(
                f"item {write.key!r} of {labels_of(partition.thread)!r} has {size} bytes, the backend "
                f"takes {budget.bytes} at once; split it into several items"
            )
        return ops, size

    all_writes = list(writes)
    size = sum(len(w.body or b"") + len(w.entry or b"") for w in all_writes)
    # Most batches fit one commit at two operations a write; otherwise all are weighed before the first is
    # written.
    fits = size <= budget.bytes and 2 * len(all_writes) < budget.ops
    for batch in [all_writes] if fits and all_writes else list(split(all_writes, weigh, budget, reserve=1)):
        yield from item_writes.commit_writes(partition, batch, budget, keeps=keeps, known=known)


def split(
    parts: Iterable[V], weigh: Callable[[V], tuple[int, int]], budget: Budget, *, reserve: int = 0
) -> Iterator[list[V]]:
    """Split parts among commits that leave room for ``reserve`` further operations each; ``weigh`` returns
    the operations and bytes of a part."""
    batch: list[V] = []
    ops = size = 0
    for part in parts:
        more_ops, more_size = weigh(part)
        if batch and (size + more_size > budget.bytes or ops + more_ops > budget.ops - reserve):
            yield batch
            batch, ops, size = [], 0, 0
        batch.append(part)
        ops += more_ops
        size += more_size
    if batch:
        yield batch


def renew(
    partition: Partition, read_now: Iterable[tuple[Record, int]], now: int, budget: Budget
) -> Program[None]:
    """Postpone the expiry of items that were read, each under its new version. An item that was written or
    removed since is left as it is."""
    ops: list[tuple[Op, ...]] = []
    for record, version in read_now:
        later = postpone_expiry(record, now)
        if later is not None:
            fields = {**record.fields, "expires_at": later}
            put = Put(ITEM, record.key, fields, record.body, expect=record.version, version=version)
            ops.append((put,))
    yield from _commit_each(partition, ops, budget)


def find(
    tenant: str,
    prefix: Labels,
    judge: Callable[[Labels, Record], V | None],
    *,
    holding: tuple[tuple[bytes, ...], ...],
    bounds: tuple[Bound, ...],
    offset: int,
    limit: int,
    everything: bool,
    now: int,
) -> Program[list[Hit[V]]]:
    """Search where the database itself orders and filters items; arguments as for ``search``.

    With ``everything`` only the requested items are read. Otherwise all items that contain ``holding`` and
    keep ``bounds`` are read in portions, until enough are accepted. For each portion the database passes over
    all that comes after the portion before, so portions grow as long as bodies are small.
    """
    request = FindItems(tenant, name_of(prefix), until=now, holding=holding, bounds=bounds)
    out: list[Hit[V]] = []
    if not limit:
        return out
    seen: set[tuple[Partition, Key]] = set()
    skip = passed = 0
    most = _FOUND
    size = max(_WHOLE, offset + limit)
    if everything:
        skip = passed = offset
        size = limit
    last: ItemPlace | None = None
    while True:
        size = min(size, most)
        page = yield from ask(replace(request, skip=skip, limit=size, last=last))
        weight = 0
        for hit in page:
            record = hit.record
            if record is None:
                continue
            last = ItemPlace(record.fields["updated_at"], hit.partition.thread, record.key[0])
            weight += len(record.body)
            # An item that was found before may come again, if it was rewritten since with the time of another
            # clock.
            if (hit.partition, record.key) in seen:
                continue
            seen.add((hit.partition, record.key))
            labels = labels_of(hit.partition.thread)
            value = judge(labels, record)
            if value is None:
                continue
            if passed < offset:
                passed += 1
                continue
            out.append(Hit(labels, record, value))
            if len(out) == limit:
                return out
        if len(page) < size:
            return out
        skip = 0
        average = 1 + weight // len(page)
        most = min(_FOUND_MOST, max(_FOUND, _FOUND_BYTES // average))
        size *= 4
        if everything:
            size = limit - len(out)


def search(
    tenant: str,
    prefix: Labels,
    judge: Callable[[Labels, Record], V | None],
    *,
    offset: int,
    limit: int,
    everything: bool,
    now: int,
) -> Program[list[Hit[V]]]:
    """Return the living items within a namespace that ``judge`` accepts, last written first.

    The fields of all items within the namespace are read and kept, to order the items; bodies are read some
    at a time, and no more than fill the page.

    Args:
        judge: returns the value of an item, ``None`` to leave it out.
        everything: ``judge`` accepts all, so that those before ``offset`` need not be read.
        now: current time in microseconds.
    """
    out: list[Hit[V]] = []
    if not limit:
        return out
    bodies: dict[tuple[Partition, Key], Record] = {}
    heads: list[tuple[Partition, Record]] = []
    for partition in (yield from _list_within(tenant, prefix)):
        heads += yield from _read_headers(partition, bodies, now)
    heads.sort(key=_newest_first)
    skip = offset
    if everything:
        heads, skip = heads[offset : offset + limit], 0
    for at in range(0, len(heads), _WHOLE):
        some = heads[at : at + _WHOLE]
        wanted: dict[Partition, list[str]] = {}
        for partition, record in some:
            if (partition, record.key) not in bodies:
                wanted.setdefault(partition, []).append(record.key[0])
        for partition, keys in wanted.items():
            for key, record in (yield from read(partition, keys, now)).items():
                bodies[partition, (key,)] = record
        for partition, head in some:
            found = bodies.pop((partition, head.key), None)
            labels = labels_of(partition.thread)
            if found is None or (value := judge(labels, found)) is None:
                continue
            if skip:
                skip -= 1
            elif len(out) < limit:
                out.append(Hit(labels, found, value))
        if len(out) == limit:
            break
    return out


def read_namespaces(tenant: str | None, prefix: Labels) -> Program[list[Partition]]:
    """Return all namespaces within a prefix, of one tenant or of all; each may be empty."""
    return (yield from list_all_partitions(tenant, STORE, name_of(prefix)))


def count_within(
    tenant: str, is_wanted: Callable[[Labels], bool], now: int
) -> Program[dict[tuple[str, ...], int]]:
    """Return the number of living items in each namespace of a tenant that is wanted and has some; others are
    not read."""
    counts: dict[tuple[str, ...], int] = {}
    for partition in (yield from read_namespaces(tenant, ())):
        labels = labels_of(partition.thread)
        if is_wanted(labels):
            (found,) = yield from read_all(partition, Range(ITEM, bodies=False))
            if count := sum(not is_over(record, now) for record in found):
                counts[labels] = count
    return counts


def count_empty_names(tenant: str, is_wanted: Callable[[Labels], bool]) -> Program[int]:
    """Return the number of the names that ``remove_empty_names`` would remove."""
    count = 0
    for partition in (yield from _list_within(tenant, ())):
        if is_wanted(labels_of(partition.thread)):
            (found,) = yield from ask(Fetch(partition, (Range(ITEM, limit=1, bodies=False),)))
            count += not found
    return count


def remove_empty_names(
    tenant: str, prefix: Labels, is_wanted: Callable[[Labels], bool] = lambda _: True
) -> Program[None]:
    """Remove from the catalogue the names of namespaces within a prefix that hold nothing, as names may be
    personal data. A namespace that is written to meanwhile stays."""
    for partition in (yield from read_namespaces(tenant, prefix)):
        if is_wanted(labels_of(partition.thread)):
            yield from ask(Drop(partition, if_empty=True))


def _read_headers(
    partition: Partition, bodies: dict[tuple[Partition, Key], Record], now: int
) -> Program[list[tuple[Partition, Record]]]:
    """Return the living items of a namespace without their bodies. The first bodies are put into ``bodies``
    unless that has many already."""
    keeps = len(bodies) < _KEPT
    size = _HEADERS
    if keeps:
        size = _WHOLE
    (found,) = yield from ask(Fetch(partition, (Range(ITEM, limit=size, bodies=keeps),)))
    if keeps:
        bodies.update({(partition, record.key): record for record in found})
    records = [record._replace(body=b"") for record in found]
    while len(found) == size:
        size = _HEADERS
        more = Range(ITEM, after=found[-1].key, limit=size, bodies=False)
        (found,) = yield from ask(Fetch(partition, (more,)))
        records += found
    return [(partition, record) for record in records if not is_over(record, now)]


def _newest_first(place: tuple[Partition, Record]) -> tuple[int, str, Key]:
    partition, record = place
    return -record.fields["updated_at"], partition.thread, record.key


def list_namespaces(
    tenant: str, conditions: Sequence[Condition], *, depth: int | None, offset: int, limit: int, now: int
) -> Program[list[Labels]]:
    """Return the namespaces that meet the conditions and are not empty, in order, cut to ``depth`` labels."""
    prefix = common_prefix(conditions)
    out: list[Labels] = []
    cut: Labels | None = None
    after: Partition | None = None
    while len(out) < offset + limit:
        find = FindThreads(tenant, after=after, limit=_NAMES, space=STORE, prefix=name_of(prefix))
        page = [hit.partition for hit in (yield from ask(find))]
        if not page:
            break
        for partition in page:
            labels = labels_of(partition.thread)
            if labels[:depth] == cut or not matches(labels, conditions):
                continue
            if (yield from _is_inhabited(partition, now)):
                cut = labels[:depth]
                out.append(cut)
                if len(out) == offset + limit:
                    break
        after = page[-1]
        if cut and len(cut) == depth and labels_of(after.thread)[:depth] == cut:
            # All names within these labels are cut to the same: go on behind them. A namespace with fewer
            # labels is listed by itself, and those within it follow.
            after = Partition(tenant, max(after.thread, name_after(cut)), STORE)
    return out[offset:]


def sweep(tenant: str, now: int, budget: Budget) -> Program[int]:
    """Remove expired items and return their count. An item renewed or written meanwhile stays."""
    removed = 0
    while True:
        found = yield from ask(FindExpired(tenant, limit=_EXPIRED, until=now))
        due: dict[Partition, list[tuple[Op, ...]]] = {}
        for hint in found:
            if hint.record is not None and is_over(hint.record, now):
                key: Key = hint.record.key
                gone = Delete(ITEM, key, unchanged={"expires_at": hint.record.fields["expires_at"]})
                due.setdefault(hint.partition, []).append((gone, search_index.make_removal(key[0])))
        before = removed
        for partition, ops in due.items():
            removed += yield from _commit_each(partition, ops, budget, search_index.make_generation_removal())
        if len(found) < _EXPIRED or removed == before:
            return removed


def _commit_each(
    partition: Partition, parts: Sequence[tuple[Op, ...]], budget: Budget, *also: Op
) -> Program[int]:
    """Commit independent parts together, or one by one if that is refused, each commit with ``also``; return
    the number of committed parts."""
    committed = 0
    for batch in split(parts, weight, budget, reserve=len(also)):
        if (yield from try_commit(partition, (*(op for part in batch for op in part), *also))):
            committed += len(batch)
        elif len(batch) > 1:
            for part in batch:
                committed += yield from try_commit(partition, (*part, *also))
    return committed


def _list_within(tenant: str, prefix: Labels) -> Program[list[Partition]]:
    """Return the namespaces within a prefix. If none is listed, return the prefix itself: a database may list
    new namespaces a moment late."""
    found = yield from read_namespaces(tenant, prefix)
    if prefix and not found:
        return [partition_of(tenant, prefix)]
    return found


def _is_inhabited(partition: Partition, now: int) -> Program[bool]:
    after, limit = None, 1
    while True:
        page = Range(ITEM, after=after, limit=limit, bodies=False)
        (found,) = yield from ask(Fetch(partition, (page,)))
        if any(not is_over(record, now) for record in found):
            return True
        if len(found) < limit:
            return False
        after, limit = found[-1].key, _HEADERS
