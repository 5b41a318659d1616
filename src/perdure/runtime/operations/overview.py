"""How it is going: runs a minute, what waits and for how long, errors, latencies, tokens and cost, by graph,
user and model.

Its reads do not grow with the number of threads: the counts of ``runtime.activity``, a page of the queues
that are due, and a page of the threads that failed or wait for an answer, where the database lists them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.database.handle import DatabaseHandle
from perdure.engine.documents import Document
from perdure.engine.retention.old_counts import DAYS, HOUR_US, HOURS, MINUTES, partition_of
from perdure.errors import Corrupt
from perdure.model.ops import Fetch, FindDue, FindListed, Now, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT
from perdure.model.runs.queue import IN, LATER, OUT
from perdure.runtime.activity import (
    BOUNDS_S,
    LENGTHS,
    USAGE,
)
from perdure.runtime.threads.order import UNSURE
from perdure.runtime.threads.rows import load_row

_DUE_MAX = 1000
_LISTED_MAX = 1000
_READ_MAX = 100
"""Maximum number of threads that are read to find out which of them wait for a person."""
_AHEAD_US = 24 * HOUR_US
_PAGE = 200
_DOCUMENTS_MAX = 2000
_USERS_MAX = 20
_SLOTS: Mapping[str, int] = {MINUTES: 60, HOURS: 24, DAYS: 30}


async def read(database: DatabaseHandle, tenant: str) -> dict[str, Any]:
    """Return the state of a tenant's work as JSON data; times are microseconds since 1970, latencies seconds.

    Returns:
        ``now``, and:

        - ``minutes``, ``hours`` and ``days``: for each of the last 60 minutes, 24 hours and 30 days, the
          oldest first, the ``runs`` that ended in it, how many of them ``failed``, and the calls of models.
        - ``hour``, ``day`` and ``month``: sums of these, with the runs by ``graphs`` and ``users`` (a month
          has no users), the ``errors``, the calls by ``models``, the dearest first, and the latencies from
          the acceptance of a message to the ``end`` of its run and to the ``first`` token. A day also has the
          runs by ``versions`` of graphs, each ``since`` the hour in which it first ended a run, or the minute
          if that was in this hour or the one before.
        - ``queue``: the counts of threads that are ``due`` and ``under_way``, of ``replies`` and of
          ``scheduled`` messages, and since when the ``oldest`` is due.
        - ``threads``: the counts of those that ``failed`` or are ``interrupted``, ``None`` where only reading
          all threads would show that; and how many of the interrupted ones are ``asleep``, which wait for a
          time or a signal and for no answer, ``None`` if more than 100 are interrupted.
        - ``is_whole``: false if a count of threads ended at its limit of 1,000, or if there were too many
          processes to add up.

        Calls of models have the number of ``calls``, ``input_tokens``, ``output_tokens``, and the ``cost``,
        ``None`` if none of their models has a price.
    """
    now = await database.arun(ask(Now()))
    queue, is_queue_whole = await database.arun(_read_queue(tenant, now))
    documents = {
        name: await database.arun(_read_documents(tenant, name, _find_first(name, now), now))
        for name in (HOURS, DAYS)
    }
    # The minutes of this hour and the one before tell when a version began. They are kept for two hours.
    earlier = now - now % HOUR_US - HOUR_US
    minutes = await database.arun(_read_documents(tenant, MINUTES, earlier, now))
    first = _find_first(MINUTES, now)
    documents[MINUTES] = [counts for counts in minutes if counts["at"] >= first]
    threads: dict[str, int | None] = {"failed": None, "interrupted": None, "asleep": None}
    is_listed_whole = True
    if database.has_listing:
        listed = {
            status: await database.arun(ask(FindListed(tenant, status=status, limit=_LISTED_MAX)))
            for status in ("error", "interrupted", UNSURE)
        }
        unsure = [await database.arun(load_row(hit.partition)) for hit in listed[UNSURE][:_READ_MAX]]
        statuses = Counter(row.status for row in unsure if row is not None)
        interrupted = len(listed["interrupted"]) + statuses["interrupted"]
        threads |= {"failed": len(listed["error"]) + statuses["error"], "interrupted": interrupted}
        is_listed_whole = len(listed[UNSURE]) <= _READ_MAX and all(
            len(hits) < _LISTED_MAX for hits in listed.values()
        )
        if interrupted <= _READ_MAX:
            rows = [await database.arun(load_row(hit.partition)) for hit in listed["interrupted"]]
            threads["asleep"] = sum(row is not None and row.is_asleep for row in (*rows, *unsure))
    are_whole = all(len(found) < _DOCUMENTS_MAX for found in documents.values())
    return {
        "now": now,
        "minutes": _make_slots(documents[MINUTES], MINUTES, now),
        "hours": _make_slots(documents[HOURS], HOURS, now),
        "days": _make_slots(documents[DAYS], DAYS, now),
        "hour": _summarise(documents[MINUTES]),
        "day": {
            **_summarise(documents[HOURS]),
            "versions": _sum_versions(documents[HOURS], minutes),
        },
        "month": _summarise(documents[DAYS]),
        "queue": queue,
        "threads": threads,
        "is_whole": is_queue_whole and is_listed_whole and are_whole,
    }


def _read_queue(tenant: str, now: int) -> Program[tuple[dict[str, Any], bool]]:
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


def _read_documents(tenant: str, collection: str, first: int, now: int) -> Program[list[Mapping[str, Any]]]:
    """Read the counts by minute, hour or day from a time on; what cannot be read is left out."""
    found: list[Mapping[str, Any]] = []
    # The next page starts after a time, so a page has to contain all documents of that time.
    limit, after = _PAGE, None
    while len(found) < _DOCUMENTS_MAX:
        page = Range(DOCUMENT, (collection,), by="updated_at", reverse=True, after=after, limit=limit)
        (records,) = yield from ask(Fetch(partition_of(tenant), (page,)))
        times = [record.fields["updated_at"] for record in records]
        if len(records) == limit and times[0] == times[-1] and limit < _DOCUMENTS_MAX:
            limit = min(limit * 4, _DOCUMENTS_MAX)
            continue
        is_last = len(records) < limit or times[-1] < first
        complete = records if is_last else [r for r in records if r.fields["updated_at"] != times[-1]]
        for record in complete or records:
            # Counts of the future were made before the clock was set back.
            if first <= record.fields["updated_at"] <= now:
                try:
                    found.append(Document.read(record).body)
                except Corrupt:
                    continue  # `perdure fsck` reports it
        if is_last:
            break
        after = (complete or records)[-1].fields["updated_at"]
    return found


def _find_first(collection: str, now: int) -> int:
    """Return the beginning of the first minute, hour or day that is read."""
    length = LENGTHS[collection]
    return now - now % length - (_SLOTS[collection] - 1) * length


def _make_slots(found: Sequence[Mapping[str, Any]], collection: str, now: int) -> list[dict[str, Any]]:
    length, count = LENGTHS[collection], _SLOTS[collection]
    last = now - now % length
    slots: list[list[Mapping[str, Any]]] = [[] for _ in range(count)]
    for counts in found:
        place = count - 1 - (last - counts["at"]) // length
        if 0 <= place < count:
            slots[place].append(counts)
    return [{"at": last - (count - 1 - n) * length, **_sum_totals(slot)} for n, slot in enumerate(slots)]


def _sum_totals(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the runs, the failed ones, and the calls of models."""
    return {
        **_sum_states(graph["states"] for counts in found for graph in counts["graphs"].values()),
        **_sum_usage(model for counts in found for model in counts["models"].values()),
    }


def _sum_states(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    states: Counter[str] = Counter()
    for each in counts:
        states.update(each)
    return {"runs": states.total(), "failed": states["failed"]}


def _sum_usage(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    sums: Counter[str] = Counter()
    for entry in entries:
        sums.update({name: entry[name] for name in USAGE if name in entry})
    # The cost of a free model is known: 0.
    return {name: sums[name] if name in sums or name != "cost" else None for name in USAGE}


def _summarise(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    graphs, users, errors, models = (
        _group_by_name(found, part) for part in ("graphs", "users", "errors", "models")
    )
    graph_entries = [entry for entries in graphs.values() for entry in entries]
    return {
        **_sum_totals(found),
        "end": _estimate_latencies(entry["end"] for entry in graph_entries),
        "first": _estimate_latencies(entry["first"] for entry in graph_entries),
        "graphs": sorted((_sum_graph(*each) for each in graphs.items()), key=_by_runs),
        "users": sorted((_sum_user(*each) for each in users.items()), key=_by_tokens)[:_USERS_MAX],
        "errors": sorted(
            ({"kind": name or None, "runs": _sum(each, "runs")} for name, each in errors.items()),
            key=_by_runs,
        ),
        "models": sorted((_sum_model(*each) for each in models.items()), key=_by_cost),
    }


def _group_by_name(found: Sequence[Mapping[str, Any]], part: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return the entries of a part of the counts by their name."""
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for counts in found:
        for name, entry in counts[part].items():
            entries.setdefault(name, []).append(entry)
    return entries


def _by_runs(entry: Mapping[str, Any]) -> int:
    return -int(entry["runs"])


def _by_tokens(entry: Mapping[str, Any]) -> tuple[int, int]:
    return -int(entry["input_tokens"] + entry["output_tokens"]), -int(entry["runs"])


def _by_cost(entry: Mapping[str, Any]) -> tuple[float, int, int]:
    return -(entry["cost"] or 0), -int(entry["input_tokens"] + entry["output_tokens"]), -int(entry["calls"])


def _sum_graph(name: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "graph": name or None,
        **_sum_states(entry["states"] for entry in entries),
        "end": _estimate_latencies(entry["end"] for entry in entries),
        "first": _estimate_latencies(entry["first"] for entry in entries),
        **_sum_usage(entries),
    }


def _sum_versions(
    hours: Sequence[Mapping[str, Any]], minutes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the runs by version of their graph, the latest version first.

    Args:
        hours: The counts of hours.
        minutes: The counts of the minutes of the last two hours. A version that began in them has its minute,
            any other its hour.
    """
    finer = {name: entry["since"] for name, entry in _sum_by_version(minutes).items()}
    sums = _sum_by_version(hours)
    for name, entry in sums.items():
        if 0 <= (minute := finer.get(name, 0)) - entry["since"] < HOUR_US:
            entry["since"] = minute
    named = [
        {"graph": graph or None, "version": version or None, **entry}
        for (graph, version), entry in sums.items()
    ]
    return sorted(named, key=lambda each: (-each["since"], -each["runs"]))


def _sum_by_version(found: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, int]]:
    """Return sums of runs by graph and version, each ``since`` the first of its counts."""
    entries: dict[tuple[str, str], dict[str, int]] = {}
    for counts in found:
        for graph, by_graph in counts["graphs"].items():
            for version, by_version in by_graph.get("versions", {}).items():
                new = {"since": counts["at"], "runs": 0, "failed": 0}
                entry = entries.setdefault((graph, version), new)
                entry["since"] = min(entry["since"], counts["at"])
                for name in ("runs", "failed"):
                    entry[name] += by_version[name]
    return entries


def _sum_model(name: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"model": name or None, **_sum_usage(entries)}


def _sum_user(name: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "user": name or None,
        "runs": _sum(entries, "runs"),
        "failed": _sum(entries, "failed"),
        **_sum_usage(entries),
    }


def _sum(entries: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(entry[name] for entry in entries)


def _estimate_latencies(entries: Iterable[Mapping[str, int]]) -> dict[str, float | None] | None:
    """Return the median and the 95th percentile, each as the upper bound of its class in seconds, ``None``
    for one above the last bound; ``None`` without any latency."""
    classes: Counter[str] = Counter()
    for entry in entries:
        classes.update(entry)
    total = classes.total()
    if not total:
        return None
    return {"p50": _find_percentile(classes, total, 0.5), "p95": _find_percentile(classes, total, 0.95)}


def _find_percentile(classes: Mapping[str, int], total: int, part: float) -> float | None:
    passed = 0
    for place, bound in enumerate(BOUNDS_S):
        passed += classes.get(str(place), 0)
        if passed >= part * total:
            return float(bound)
    return None
