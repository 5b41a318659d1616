"""Complete reads of several ranges, whose first pages take one request, and of the list of partitions."""

from __future__ import annotations

from perdure.model.ops import Fetch, FindThreads, Range
from perdure.model.program import Program, ask
from perdure.model.records import THREADS, Partition, Record

PAGE = 1000
"""Records of one range that a request asks for."""


def read_all(partition: Partition, *ranges: Range) -> Program[tuple[list[Record], ...]]:
    """Read all records of ranges that are ordered by key, as one list for each range."""
    out: tuple[list[Record], ...] = tuple([] for _ in ranges)
    longer = list(range(len(ranges)))
    while longer:
        items = tuple(
            ranges[n]._replace(limit=PAGE, after=out[n][-1].key if out[n] else None) for n in longer
        )
        answers = yield from ask(Fetch(partition, items))
        for n, records in zip(longer, answers, strict=True):
            out[n].extend(records)
        longer = [n for n, records in zip(longer, answers, strict=True) if len(records) == PAGE]
    return out


def list_all_partitions(tenant: str | None, space: str = THREADS) -> Program[list[Partition]]:
    """Return every partition of a space, by default that of threads, of a tenant or of all tenants, in
    order."""
    out: list[Partition] = []
    while True:
        after = out[-1] if out else None
        found = yield from ask(FindThreads(tenant, after=after, limit=PAGE, space=space))
        out.extend(hit.partition for hit in found)
        if len(found) < PAGE:
            return out
