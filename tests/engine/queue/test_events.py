"""The event log: pages of events are bounded by their size, however many records are stored."""

from __future__ import annotations

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.engine.queue import events
from perdure.engine.queue.events import Event, Page
from perdure.model.ops import Commit
from perdure.model.program import Program, ask
from perdure.model.records import Partition

AT = Partition("", "t")
RECORD = 128 * 1024


def stored(sizes: list[int]) -> Program[None]:
    """Store an event of each size in a record of its own."""
    for number, size in enumerate(sizes, 1):
        event = Event(number * 100, "run", "values", "x" * size)
        yield from ask(Commit(AT, tuple(events.puts("run", [event]))))


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ([100] * 250, RECORD),
        ([RECORD - 1] * 40, 3 * RECORD),
        ([100] * 10 + [RECORD - 1] * 40, 17 * RECORD),
        ([100, 10 * RECORD, 100], 11 * RECORD),
    ],
    ids=["small", "large", "larger within a page", "one of several records"],
)
def test_a_page_is_bounded_and_all_pages_have_each_event_once(sizes: list[int], most: int) -> None:
    with perdure.connect_sync("memory://") as database:
        run = handle_of(database).run
        run(stored(sizes))
        found: list[int] = []
        page = Page((), 0, False)
        while not page.is_last:
            page = run(events.read(AT, page.after, "run"))
            assert sum(len(event.data) for event in page.events) <= most
            found += [len(event.data) for event in page.events]
        assert found == sizes
