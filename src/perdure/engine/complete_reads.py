"""Complete reads of several ranges, whose first pages take one request, and of the list of partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perdure.model.ops import Fetch, FindThreads, Range
from perdure.model.program import Program, ask
from perdure.model.records import THREADS, Partition, Record

PAGE = 1000
"""Records of one range that a request asks for."""


def read_all(partition: Partition, *ranges: Range) -> Program[tuple[list[Record], ...]]:
    """Read all records of ranges, as one list for each range."""
    out: tuple[list[Record], ...] = tuple([] for _ in ranges)
    left = {n: each._replace(limit=PAGE) for n, each in enumerate(ranges)}
    while left:
        answers = yield from ask(Fetch(partition, tuple(left.values())))
        for n, records in zip(list(left), answers, strict=True):
            out[n].extend(records)
            page = left.pop(n)
            if len(records) == PAGE:
                left[n] = page._replace(after=_read_place(page, records[-1]))
    return out


def _read_place(page: Range, last: Record) -> Any:
    """Return where a range goes on behind a record."""
    if page.by is None:
        return last.key
    return last.fields[page.by]


def list_all_partitions(
    tenant: str | None, space: str = THREADS, prefix: str = ""
) -> Program[list[Partition]]:
    """Return every partition of a space, by default that of threads, of a tenant or of all tenants, whose
    name begins with ``prefix``, in order."""
    out: list[Partition] = []
    find = FindThreads(tenant, limit=PAGE, space=space, prefix=prefix)
    while True:
        found = yield from ask(find)
        out.extend(hit.partition for hit in found)
        if len(found) < PAGE:
            return out
        find = replace(find, after=out[-1])
