"""Use cases of the store: write, read, renew, search, list and sweep items.

A namespace is a partition: what is written to one at once is all or nothing as far as one commit holds it.
Nothing is read from a namespace that a call does not ask for, and no body for a listing or a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from perdure.engine.retention import batches
from perdure.engine.transact import Budget
from perdure.errors import TooLarge
from perdure.model.items import (
    Condition,
    Labels,
    Write,
    by_age,
    common_prefix,
    expiry,
    is_over,
    labels_of,
    matches,
    name_after,
    name_of,
    partition_of,
    renewed,
)
from perdure.model.ops import Commit, Committed, Delete, Expect, Fetch, Find, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import ITEM, STORE, Partition, Record

EXACT = 8
"""How often a write is planned anew so that it keeps the creation time; after that the last write wins."""

_WHOLE = 64
_HEADERS = 1000
_NAMES = 100
_EXPIRED = 500

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Hit(Generic[V]):
    """An item that a search found, and what its body was read as."""

    labels: Labels
    record: Record
    value: V


def read(partition: Partition, keys: Sequence[str], now: int) -> Program[dict[str, Record]]:
    """The living items among the keys."""
    if not keys:
        return {}
    answers = yield from ask(Fetch(partition, tuple(Get(ITEM, (key,)) for key in keys)))
    return {r.key[0]: r for answer in answers for r in answer if not is_over(r, now)}


def write(partition: Partition, writes: Iterable[Write], budget: Budget) -> Program[None]:
    """Put and delete items, at most one write a key. An item that is put again stays as old as it was, unless
    it was over. Of two writers the later commit wins; neither fails."""
    known = list(writes)
    for w in known:
        if w.body is not None and len(w.body) > budget.bytes:
            raise TooLarge(
                f"item {w.key!r} of {labels_of(partition.thread)!r} has {len(w.body)} bytes, the backend "
                f"takes {budget.bytes} at once; split it into several items"
            )
    plan: list[Op] = [Put(ITEM, (w.key,), body=w.body or b"") for w in known]
    done = 0
    for batch in batches(plan, budget):
        yield from _write(partition, known[done : done + len(batch)])
        done += len(batch)


def renew(
    partition: Partition, read_now: Iterable[tuple[Record, int]], now: int, budget: Budget
) -> Program[None]:
    """Move on the end of items that were read, each under its new version. One that was written or removed
    since it was read is left as it is."""
    ops: list[Op] = []
    for record, version in read_now:
        later = renewed(record, now)
        if later is not None:
            fields = {**record.fields, "expires_at": later}
            ops.append(Put(ITEM, record.key, fields, record.body, expect=record.version, version=version))
    yield from _each(partition, ops, budget)


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
    """The living items within a namespace that ``judge`` makes something of: namespaces in the order of their
    labels, items by age. ``everything`` says that it accepts all, so that those before ``offset`` need not
    be read. It ends as soon as the page is full."""
    out: list[Hit[V]] = []
    after: Partition | None = None
    skip = offset
    pages = [[partition_of(tenant, prefix)]] if prefix else []
    while len(out) < limit:
        if pages:
            page = pages.pop()
        else:
            page = yield from _names(tenant, prefix, after)
            if not page:
                break
        for partition in page:
            if len(out) >= limit:
                break
            labels = labels_of(partition.thread)
            shelf = Shelf(partition, now)
            yield from shelf.load()
            if everything:
                passed = min(skip, len(shelf.headers))
                shelf.headers, skip = shelf.headers[passed:], skip - passed
            while shelf.headers and len(out) < limit:
                records = yield from shelf.next(limit - len(out) if everything else _WHOLE)
                for record in records:
                    value = judge(labels, record)
                    if value is None:
                        continue
                    if skip:
                        skip -= 1
                    elif len(out) < limit:
                        out.append(Hit(labels, record, value))
        after = page[-1]
    return out


class Shelf:
    """The living items of one namespace, by age: a small one is read whole, of a large one first the clear
    parts and then the bodies that are asked for."""

    def __init__(self, partition: Partition, now: int) -> None:
        self._partition = partition
        self._now = now
        self._bodies: dict[str, Record] = {}
        self.headers: list[Record] = []

    def load(self) -> Program[None]:
        (found,) = yield from ask(Fetch(self._partition, (Range(ITEM, limit=_WHOLE),)))
        self._bodies = {record.key[0]: record for record in found}
        records = list(found)
        page = found if len(found) == _WHOLE else ()
        while page:
            more = Range(ITEM, after=page[-1].key, limit=_HEADERS, bodies=False)
            (page,) = yield from ask(Fetch(self._partition, (more,)))
            records += page
            if len(page) < _HEADERS:
                break
        self.headers = by_age(r for r in records if not is_over(r, self._now))

    def next(self, count: int) -> Program[list[Record]]:
        """The next items with their bodies; fewer when some were removed meanwhile."""
        count = min(count, _WHOLE)
        page, self.headers = self.headers[:count], self.headers[count:]
        keys = [record.key[0] for record in page]
        missing = [key for key in keys if key not in self._bodies]
        bodies = {**self._bodies, **(yield from read(self._partition, missing, self._now))}
        return [bodies[key] for key in keys if key in bodies]


def list_namespaces(
    tenant: str,
    conditions: Sequence[Condition],
    *,
    depth: int | None,
    offset: int,
    limit: int,
    now: int,
) -> Program[list[Labels]]:
    """The namespaces that hold a living item and meet the conditions, in order, cut to ``depth`` labels."""
    prefix = common_prefix(conditions)
    out: list[Labels] = []
    cut: Labels | None = None
    after: Partition | None = None
    while len(out) < offset + limit:
        page = yield from _names(tenant, prefix, after)
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
        if depth is not None and cut and labels_of(after.thread)[:depth] == cut:
            # All that is cut to the same labels was seen; the next name is beyond it.
            after = Partition(tenant, max(after.thread, name_after(cut)), STORE)
    return out[offset:]


def sweep(tenant: str, now: int, budget: Budget) -> Program[int]:
    """Remove what is over; how many. What was read or written meanwhile has another end, and stays."""
    removed = 0
    while True:
        found = yield from ask(Find("expired", tenant, limit=_EXPIRED, until=now))
        due: dict[Partition, list[Op]] = {}
        for hint in found:
            if hint.record is not None and is_over(hint.record, now):
                unchanged = {"expires_at": hint.record.fields["expires_at"]}
                due.setdefault(hint.partition, []).append(Delete(ITEM, hint.record.key, unchanged=unchanged))
        before = removed
        for partition, ops in due.items():
            removed += yield from _each(partition, ops, budget)
        if len(found) < _EXPIRED or removed == before:
            return removed


def _write(partition: Partition, writes: Sequence[Write]) -> Program[None]:
    attempt = 0
    while True:
        headers = tuple(Range(ITEM, (w.key,), bodies=False) for w in writes)
        answers = yield from ask(Fetch(partition, headers))
        stored = {record.key[0]: record for answer in answers for record in answer}
        ops = _plan(writes, stored, exact=attempt < EXACT)
        if not ops or isinstance((yield from ask(Commit(partition, ops))), Committed):
            return
        attempt += 1


def _plan(writes: Iterable[Write], stored: Mapping[str, Record], *, exact: bool) -> tuple[Op, ...]:
    ops: list[Op] = []
    for w in writes:
        before = stored.get(w.key)
        if w.body is None:
            if before is not None:
                ops.append(Delete(ITEM, (w.key,)))
            continue
        living = before is not None and not is_over(before, w.at)
        fields = {
            "created_at": before.fields["created_at"] if before is not None and living else w.at,
            "updated_at": w.at,
            "ttl": w.ttl,
            "expires_at": expiry(w.ttl, w.at),
        }
        seen = Expect.ABSENT if before is None else before.version
        ops.append(
            Put(ITEM, (w.key,), fields, w.body, expect=seen if exact else Expect.ANY, version=w.version)
        )
    return tuple(ops)


def _each(partition: Partition, ops: Sequence[Op], budget: Budget) -> Program[int]:
    """Commit operations that do not depend on each other: together, and one by one where that is refused;
    how many held."""
    held = 0
    for batch in batches(ops, budget):
        outcome = yield from ask(Commit(partition, tuple(batch)))
        if isinstance(outcome, Committed):
            held += len(batch)
            continue
        for op in batch if len(batch) > 1 else ():
            held += isinstance((yield from ask(Commit(partition, (op,)))), Committed)
    return held


def _names(tenant: str, prefix: Labels, after: Partition | None) -> Program[list[Partition]]:
    """A page of the namespaces within a prefix; each may be empty."""
    name = name_of(prefix)
    find = Find("threads", tenant, after=after, limit=_NAMES, space=STORE, prefix=name)
    return [found.partition for found in (yield from ask(find))]


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
