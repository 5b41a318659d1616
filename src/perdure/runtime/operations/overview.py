"""How it is going: runs a minute, what waits and for how long, errors and latencies, by graph and user.

What it reads does not grow with the number of threads: the counts of ``runtime.activity``, a page of the
queues that are due, and a page of the threads that failed or wait for an answer, where the database lists
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.database.handle import DatabaseHandle
from perdure.engine.documents import Document
from perdure.errors import Corrupt
from perdure.model.ops import Fetch, FindDue, FindListed, Now, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT
from perdure.model.runs.queue import IN, LATER, OUT
from perdure.runtime.activity import (
    BOUNDS_S,
    HOUR_US,
    HOURS,
    LENGTHS,
    MINUTES,
    OTHER,
    partition_of,
)

_DUE_MAX = 1000
_LISTED_MAX = 1000
_AHEAD_US = 24 * HOUR_US
_PAGE = 200
_DOCUMENTS_MAX = 2000
_USERS_MAX = 20
_SLOTS: Mapping[str, int] = {MINUTES: 60, HOURS: 24}


async def read(database: DatabaseHandle, tenant: str) -> dict[str, Any]:
    """Return the state of a tenant's work as JSON data; times are microseconds since 1970, latencies seconds.

    Returns:
        ``now``; ``minutes`` and ``hours``, the ``runs`` that ended in each of the last 60 minutes and 24
        hours and how many ``failed``, the oldest first; ``hour`` and ``day``, sums with the runs by
        ``graphs`` and ``users``, the ``errors``, and the latencies from the acceptance of a message to the
        ``end`` and to the ``first`` token; ``queue``, with the counts of threads that are ``due`` and
        ``under_way``, of replies and scheduled messages, and since when the ``oldest`` is due; ``threads``
        that failed or wait for an answer, ``None`` where only reading all threads would tell. Counts of
        threads end at 1,000; ``is_whole`` is false if one did, or if there were too many processes to add up.
    """
    now = await database.arun(ask(Now()))
    queue, is_queue_whole = await database.arun(_queue(tenant, now))
    documents = {name: await database.arun(_documents(tenant, name, now)) for name in LENGTHS}
    threads: dict[str, int | None] = {"failed": None, "interrupted": None}
    is_listed_whole = True
    if database.has_listing:
        for name, status in (("failed", "error"), ("interrupted", "interrupted")):
            hits = await database.arun(ask(FindListed(tenant, status=status, limit=_LISTED_MAX)))
            threads[name] = len(hits)
            is_listed_whole = is_listed_whole and len(hits) < _LISTED_MAX
    are_whole = all(len(found) < _DOCUMENTS_MAX for found in documents.values())
    return {
        "now": now,
        "minutes": _slots(documents[MINUTES], MINUTES, now),
        "hours": _slots(documents[HOURS], HOURS, now),
        "hour": _summary(documents[MINUTES]),
        "day": _summary(documents[HOURS]),
        "queue": queue,
        "threads": threads,
        "is_whole": is_queue_whole and is_listed_whole and are_whole,
    }


def _queue(tenant: str, now: int) -> Program[tuple[dict[str, Any], bool]]:
    hits = yield from ask(FindDue(tenant, until=now + _AHEAD_US, limit=_DUE_MAX))
    due = [(hit.record.key[0], hit.record.fields["due_at"]) for hit in hits if hit.record is not None]
    waiting = [at for name, at in due if name == IN and at <= now]
    names = Counter(name for name, _ in due)
    return {
        "due": len(waiting),
        "oldest": min(waiting, default=None),
        "under_way": names[IN] - len(waiting),
        "replies": names[OUT],
        "scheduled": names[LATER],
    }, len(hits) < _DUE_MAX


def _documents(tenant: str, collection: str, now: int) -> Program[list[Mapping[str, Any]]]:
    """Read the counts of the last hour by minute, or of the last day by hour; what cannot be read is left
    out."""
    length = LENGTHS[collection]
    first = now - now % length - (_SLOTS[collection] - 1) * length
    found: list[Mapping[str, Any]] = []
    # A range by time goes on after a time, so a page has to hold all that have the same one.
    limit, after = _PAGE, None
    while len(found) < _DOCUMENTS_MAX:
        page = Range(DOCUMENT, (collection,), by="updated_at", reverse=True, after=after, limit=limit)
        (records,) = yield from ask(Fetch(partition_of(tenant), (page,)))
        times = [record.fields["updated_at"] for record in records]
        if len(records) == limit and times[0] == times[-1] and limit < _DOCUMENTS_MAX:
            limit = min(limit * 4, _DOCUMENTS_MAX)
            continue
        is_last = len(records) < limit or times[-1] < first
        whole = records if is_last else [r for r in records if r.fields["updated_at"] != times[-1]]
        for record in whole or records:
            # What lies ahead was counted before the clock was set back.
            if first <= record.fields["updated_at"] <= now:
                try:
                    found.append(Document.read(record).body)
                except Corrupt:
                    continue  # `perdure fsck` reports it
        if is_last:
            break
        after = (whole or records)[-1].fields["updated_at"]
    return found


def _slots(found: Sequence[Mapping[str, Any]], collection: str, now: int) -> list[dict[str, int]]:
    length, count = LENGTHS[collection], _SLOTS[collection]
    last = now - now % length
    slots = [{"at": last - (count - 1 - n) * length, "runs": 0, "failed": 0} for n in range(count)]
    for counts in found:
        place = count - 1 - (last - counts["at"]) // length
        if 0 <= place < count:
            for graph in counts["graphs"].values():
                slots[place]["runs"] += sum(graph["states"].values())
                slots[place]["failed"] += graph["states"].get("failed", 0)
    return slots


def _summary(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    graphs: dict[str, dict[str, Counter[str]]] = {}
    users: dict[str, Counter[str]] = {}
    errors: Counter[str] = Counter()
    for counts in found:
        for name, each in counts["graphs"].items():
            into = graphs.setdefault(name, {part: Counter() for part in ("states", "end", "first")})
            for part, counter in into.items():
                counter.update(each[part])
        for name, each in counts["users"].items():
            users.setdefault(name, Counter()).update(each)
        for name, each in counts["errors"].items():
            errors[name] += each["runs"]
    every = {part: sum((each[part] for each in graphs.values()), Counter()) for part in ("end", "first")}
    return {
        "runs": sum(each["states"].total() for each in graphs.values()),
        "failed": sum(each["states"]["failed"] for each in graphs.values()),
        "end": _latencies(every["end"]),
        "first": _latencies(every["first"]),
        "graphs": [
            {
                "graph": name or None,
                "runs": each["states"].total(),
                "failed": each["states"]["failed"],
                "end": _latencies(each["end"]),
                "first": _latencies(each["first"]),
            }
            for name, each in sorted(graphs.items(), key=lambda entry: -entry[1]["states"].total())
        ],
        "users": [
            {"user": name if name != OTHER else None, "runs": each["runs"], "failed": each["failed"]}
            for name, each in sorted(users.items(), key=lambda each: -each[1]["runs"])[:_USERS_MAX]
        ],
        "errors": [{"kind": name or None, "runs": count} for name, count in errors.most_common()],
    }


def _latencies(classes: Mapping[str, int]) -> dict[str, float | None] | None:
    """Return the median and the 95th percentile, each as the upper bound of its class in seconds, ``None``
    for one above the last bound; ``None`` without any latency."""
    total = sum(classes.values())
    if not total:
        return None
    return {"p50": _percentile(classes, total, 0.5), "p95": _percentile(classes, total, 0.95)}


def _percentile(classes: Mapping[str, int], total: int, part: float) -> float | None:
    passed = 0
    for place, bound in enumerate(BOUNDS_S):
        passed += classes.get(str(place), 0)
        if passed >= part * total:
            return float(bound)
    return None
