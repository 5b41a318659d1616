"""Pages of the queue records that are due in a span of time, over many threads."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from perdure.model.ops import FindDue
from perdure.model.program import Program, ask
from perdure.model.records import Partition

PAGE = 1000


class DueQueue(NamedTuple):
    """A queue record: its thread, its name, and the time at which it is due."""

    partition: Partition
    name: str
    due_at: int


class DuePages:
    """The queue records of one tenant or of all that are due in a time: the earliest first, each once.

    ``is_last`` is true once the last page was read.
    """

    def __init__(self, tenant: str | None, *, until: int, since: int | None = None) -> None:
        self._find = FindDue(tenant, until=until, since=since, limit=PAGE)
        self._seen: set[tuple[Partition, str]] = set()
        self.is_last = False

    def read_next(self) -> Program[list[DueQueue]]:
        """Return the records of the next page."""
        page = yield from ask(self._find)
        found = [(hit.partition, hit.record) for hit in page if hit.record is not None]
        queues = {(partition, record.key[0]): record.fields["due_at"] for partition, record in found}
        new = [DueQueue(*place, due_at) for place, due_at in queues.items() if place not in self._seen]
        self._seen.update(queues)
        self.is_last = len(page) < self._find.limit or not found
        if not self.is_last:
            # The next page begins at the time at which this one ended. If all of this page has that time, the
            # next one is larger, to go beyond it.
            last, limit = found[-1][1].fields["due_at"], PAGE
            if last == self._find.since:
                limit = self._find.limit * 4
            self._find = replace(self._find, since=last, limit=limit)
        return new
