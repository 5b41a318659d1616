"""Transfer of a namespace of the store, or of a session: its living items, compared by content on arrival.

A store's items are independent, so they arrive page by page, with their entries in the search index, and can
be read as they arrive. Of a session, only the segments that its head names are transferred, and the head
last: until then the target has the session as it was, or none. An item that expires during the transfer is on
neither side afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import ormsgpack

from perdure.engine import session_histories
from perdure.engine.items import search_index
from perdure.engine.items.item_writes import weight
from perdure.engine.items.items import split
from perdure.engine.requests import read_records, try_commit
from perdure.engine.threads.thread_digest import ATTEMPTS, Digest, Report, report_nothing
from perdure.engine.transfer.same_database import refuse_same_database
from perdure.engine.transfer.transfer_terms import (
    Exists,
    State,
    TransferOptions,
    TransferResult,
    run_at_source,
    run_at_target,
)
from perdure.errors import Conflict, Contention, Corrupt
from perdure.model.ops import Check, Delete, Expect, Fetch, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import ITEM, SESSIONS, Key, Partition, Record
from perdure.model.store_items import is_over, labels_of

MARGIN = 5_000_000
"""Tolerance in microseconds. An item that expires this soon after a comparison may be missing: some backends
remove expired items themselves, and two clocks differ a little."""

_PAGE = 200

Now = Callable[[], int]
"""Clock: returns the time in microseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An item in memory: its record without the body, and the digest and size of the body."""

    record: Record
    digest: bytes
    size: int

    @classmethod
    def of(cls, record: Record) -> _Item:
        digest = blake2b(record.body, digest_size=32, person=b"perdure.item").digest()
        return cls(record._replace(body=b""), digest, len(record.body))


Items = dict[Key, _Item]


def name(partition: Partition) -> str:
    """Return the name of a namespace of the store, or of a session's history, for messages."""
    if partition.space == SESSIONS:
        return f"history of session {partition.thread!r}"
    return f"store namespace {'/'.join(map(repr, labels_of(partition.thread)))}"


def compare_items(
    partition: Partition, target: Partition, terms: TransferOptions, now: Now
) -> Program[TransferResult]:
    """Compare a namespace with the target's; nothing is changed."""
    source_items = yield from run_at_source(_survey(partition, now(), terms.report))
    target_items = yield from run_at_target(_survey(target, now()))
    return _compare(partition, source_items, target_items, now())


def move_items(
    partition: Partition, target: Partition, terms: TransferOptions, now: Now
) -> Program[TransferResult]:
    """Transfer a namespace's living items to the target; those that only the target has stay. A session is
    transferred as a whole.

    Raises as ``move_thread`` does, except that a namespace without items is not an error.
    """
    first: TransferResult | None = None
    written = 0
    sent: dict[Key, int] = {}
    arrived_now: set[Key] = set()
    for _ in range(ATTEMPTS):
        source_items = yield from run_at_source(_survey(partition, now(), terms.report))
        # Read before the comparison, so that writes to the target in between are refused.
        stored = yield from run_at_target(_read_stored(target))
        target_items = yield from run_at_target(_find_living(target, stored, now()))
        compared = _compare(partition, source_items, target_items, now())
        if first is None:
            first = compared
            sent = {key: item.record.version for key, item in target_items.items()}
            if compared.found is State.DIFFERENT and not terms.replace:
                raise Exists(
                    f"{name(target)} is at the target already and has other items than the source; it was "
                    "left as it is. Pass --replace to bring it up to date"
                )
            if compared.found is State.DIFFERENT:
                yield from refuse_same_database(partition, target, terms)
        elif _has_foreign_items(partition, source_items, target_items, sent, now()):
            raise _busy_target_error(target)
        # What arrived before, and was removed at the source since.
        stale = {key for key in arrived_now if key in stored and key not in source_items}
        if compared.found is State.SAME and not stale:
            return TransferResult(first.found, compared.digest, written, compared.kept)
        if partition.space == SESSIONS:
            stale = stored.keys() - source_items.keys()
        sides = stored, target_items
        written += yield from _send(partition, target, source_items, sides, terms, sent, stale=stale)
        arrived_now |= source_items.keys() & sent.keys()
        arrived = yield from run_at_target(_survey(target, now()))
        edge = now() + MARGIN
        lasting = {k: i.record.version for k, i in source_items.items() if not is_over(i.record, edge)}
        present = yield from run_at_source(_survey(partition, now(), bodies=False))
        if {k: i.record.version for k, i in present.items() if not is_over(i.record, edge)} != lasting:
            continue
        settled = _compare(partition, source_items, arrived, now())
        if settled.found is not State.SAME:
            if _is_altered(source_items, arrived, sent):
                raise Corrupt(f"{name(target)}: what arrived is not what was sent; copy it again")
            raise _busy_target_error(target)
        return TransferResult(first.found, settled.digest, written, settled.kept)
    raise Contention(f"{name(partition)} keeps being written to; stop its writers, or move it later")


def compute_items_digest(partition: Partition, now: int, report: Report = report_nothing) -> Program[Digest]:
    """Compute the digest of the namespace's items that live for more than ``MARGIN``."""
    return _compute_digest((yield from _survey(partition, now, report)), now + MARGIN)


def _survey(
    partition: Partition, now: int, report: Report = report_nothing, *, bodies: bool = True
) -> Program[Items]:
    """Return the living items, in the order in which they are to arrive."""
    if partition.space == SESSIONS:
        records = yield from session_histories.read_records(partition, now)
        for record in records:
            report(len(record.body))
        return {record.key: _Item.of(record) for record in records}
    return (
        yield from _find_living(partition, (yield from _read_stored(partition, report, bodies=bodies)), now)
    )


def _find_living(partition: Partition, stored: Items, now: int) -> Program[Items]:
    """Return the stored items that a reader would find."""
    if partition.space == SESSIONS:
        return (yield from _survey(partition, now))
    return {key: item for key, item in stored.items() if not is_over(item.record, now)}


def _read_stored(
    partition: Partition, report: Report = report_nothing, *, bodies: bool = True
) -> Program[Items]:
    """Return everything that is stored: also what has expired, and segments that no head names."""
    out: Items = {}
    page = Range(ITEM, limit=_PAGE, bodies=bodies)
    while True:
        (records,) = yield from ask(Fetch(partition, (page,)))
        for record in records:
            report(len(record.body))
            out[record.key] = _Item.of(record)
        if len(records) < _PAGE:
            return out
        page = page._replace(after=records[-1].key)


def _compare(partition: Partition, source_items: Items, target_items: Items, now: int) -> TransferResult:
    edge = now + MARGIN
    digest = _compute_digest(source_items, edge)
    kept = 0
    if partition.space != SESSIONS:
        # Items are independent of each other: those that only the target has do not count.
        kept = sum(
            key not in source_items and not is_over(item.record, edge) for key, item in target_items.items()
        )
        target_items = {key: item for key, item in target_items.items() if key in source_items}

    def agrees(one: Items, other: Items) -> bool:
        return all(
            _is_same(other.get(key), item) or (key not in other and is_over(item.record, edge))
            for key, item in one.items()
        )

    if not agrees(target_items, source_items):
        return TransferResult(State.DIFFERENT, digest, kept=kept)
    if agrees(source_items, target_items) and not any(
        _ends_early(target_items.get(key), i) for key, i in source_items.items()
    ):
        return TransferResult(State.SAME, digest, kept=kept)
    if target_items:
        return TransferResult(State.PARTIAL, digest, kept=kept)
    return TransferResult(State.ABSENT, digest, kept=kept)


def _ends_early(target_item: _Item | None, item: _Item) -> bool:
    """Return True if the target's item expires before the source's, which was renewed since it was copied."""
    if target_item is None or item.record.fields["expires_at"] is None:
        return False
    ends: int | None = target_item.record.fields["expires_at"]
    return ends is not None and ends < item.record.fields["expires_at"]


def _has_foreign_items(
    partition: Partition, source_items: Items, target_items: Items, sent: dict[Key, int], now: int
) -> bool:
    """Return True if the target has items that others have written in the place of the source's, or, of a
    session, any that neither the source has nor this transfer has sent."""
    if partition.space != SESSIONS:
        target_items = {key: item for key, item in target_items.items() if key in source_items or key in sent}
    return any(
        sent.get(key) != item.record.version
        and not is_over(item.record, now + MARGIN)
        and not _is_same(source_items.get(key), item)
        for key, item in target_items.items()
    )


def _is_altered(source_items: Items, arrived: Items, sent: dict[Key, int]) -> bool:
    """Return True if an item arrived with a content other than the source's, and was not written since."""
    return any(
        key in source_items and sent.get(key) == item.record.version and not _is_same(source_items[key], item)
        for key, item in arrived.items()
    )


def _send(
    partition: Partition,
    target: Partition,
    source_items: Items,
    at_target: tuple[Items, Items],
    terms: TransferOptions,
    sent: dict[Key, int],
    *,
    stale: Collection[Key],
) -> Program[int]:
    """Write the items that are missing or differ, then remove the stale ones.

    Args:
        partition: the namespace.
        target: its name at the target.
        source_items: its items.
        at_target: everything that is stored at the target, and what a reader finds there.
        terms: the options.
        sent: the versions at the target that this transfer has read or written, which is changed.
        stale: the items to remove from the target.
    """
    target_items, living = at_target
    is_session = partition.space == SESSIONS
    written = 0
    wanted = [
        key
        for key, item in source_items.items()
        if not _is_same(target_items.get(key), item) or _ends_early(target_items[key], item)
    ]
    for keys in _pages(partition, wanted):
        records = yield from run_at_source(read_records(partition, ITEM, keys))
        if is_session and [r.version for r in records] != [source_items[key].record.version for key in keys]:
            # The session has changed. Its head may arrive only with the segments that it names: read the
            # session again.
            return written
        found = [r.key[0] for r in records if not is_session]
        entries = yield from run_at_source(search_index.make_copies(partition, found))
        puts: list[list[Op]] = []
        for record in records:
            held_version, version = 0, record.version
            if record.key in target_items:
                held_version = target_items[record.key].record.version
            if held_version >= version:
                version = successor(held_version, version)
            expect = held_version or Expect.ABSENT
            ops: list[Op] = [Put(ITEM, record.key, record.fields, record.body, expect, version)]
            if record.key[0] in entries:
                ops.append(entries[record.key[0]])
            elif held_version and not is_session:
                # An existing entry at the target belongs to another value.
                ops.append(search_index.make_removal(record.key[0]))
            puts.append(ops)
            sent[record.key] = version
            written += len(record.body)
        if is_session and keys == [session_histories.HEAD]:
            puts[0] += _check_segments(source_items, target_items, living, sent)
        yield from run_at_target(_commit(target, puts, terms))
    extra: list[list[Op]] = [
        [Delete(ITEM, key, item.record.version)] for key, item in target_items.items() if key in stale
    ]
    if not is_session:
        extra = [[gone, search_index.make_removal(gone.key[0])] for (gone,) in extra]
    yield from run_at_target(_commit(target, extra, terms))
    return written


def _pages(partition: Partition, keys: list[Key]) -> Iterator[list[Key]]:
    """Yield keys in portions that are sent together; a session's head is one of its own."""
    alone = [key for key in keys if partition.space == SESSIONS and key == session_histories.HEAD]
    others = [key for key in keys if key not in alone]
    yield from (others[start : start + _PAGE] for start in range(0, len(others), _PAGE))
    if alone:
        yield alone


def _check_segments(
    source_items: Items, target_items: Items, living: Items, sent: dict[Key, int]
) -> list[Op]:
    """Return the check that the target still has the segments that a session's new head names. The first one
    is enough: if a removal takes any of them, it takes the first, too."""
    loose = min(
        (key for key in source_items if key != session_histories.HEAD and key not in living), default=None
    )
    if loose is None:
        return []
    return [Check(ITEM, loose, sent.get(loose) or target_items[loose].record.version)]


def _commit(target: Partition, parts: list[list[Op]], terms: TransferOptions) -> Program[None]:
    """Write parts, each within one commit: an item with its entry in the search index, or the removal of
    both."""
    for batch in split(parts, weight, terms.budget, reserve=1):
        ops = [op for part in batch for op in part]
        if any(op.kind is not ITEM for op in ops):
            ops.append(search_index.make_generation_removal())
        if not (yield from try_commit(target, ops)):
            raise _busy_target_error(target)


def _busy_target_error(target: Partition) -> Conflict:
    return Conflict(f"{name(target)} is written to at the target while it arrives; move it again")


def _sign_item(item: _Item) -> bytes:
    """Return an item's content for comparison, without its expiry, which a read may postpone."""
    key = [part.encode("utf-8", "surrogatepass") for part in item.record.key]
    fields = item.record.fields
    times = [fields[column] for column in ("created_at", "updated_at", "ttl")]
    return ormsgpack.packb([key, times, fields["expires_at"] is None, item.digest])


def _is_same(one: _Item | None, other: _Item) -> bool:
    """Return True if there is an item, with the content of the other."""
    return one is not None and _sign_item(one) == _sign_item(other)


def _compute_digest(items: Items, edge: int) -> Digest:
    digest = blake2b(digest_size=32, person=b"perdure.items")
    count = size = 0
    for _, item in sorted(items.items()):
        if not is_over(item.record, edge):
            digest.update(_sign_item(item))
            count += 1
            size += item.size
    return Digest(digest.digest(), items=count, bytes=size)
