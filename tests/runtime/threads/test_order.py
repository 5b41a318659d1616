"""Threads are found by what they are now, in order, and those that are passed over are not read."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from perdure.model.ops import Fetch, FindListed
from perdure.model.runs.lifecycle import Status
from perdure.runtime import Runtime
from perdure.runtime.threads.order import Order, SortBy
from perdure.runtime.threads.threads import THERE, Threads
from tests.runtime.graphs import Storage, Talk, eventually, go, settings, stored, working

STATUSES: tuple[Status, ...] = get_args(Status)


async def _filled(runtime: Runtime, threads: Threads, talk: Talk) -> None:
    """Threads of every status, some of which came to it by an edit."""
    for name in ("empty", "talked", "failed", "edited", "edited to go on", "asks", "busy"):
        await threads.create(name, {"name": name})
    for name in ("talked", "edited", "edited to go on"):
        await runtime.wait(
            await runtime.submit(name, {"messages": [("user", "hello")]}, precondition=THERE), 30
        )
    for name, text in (("failed", "boom"), ("asks", "ask")):
        await runtime.wait(await runtime.submit(name, {"messages": [("user", text)]}, precondition=THERE), 30)
    for name, goes_on in (("edited", False), ("edited to go on", True)):
        row = await threads.get(name)
        assert row.run is not None
        await threads.note_edit(name, row.run.id, goes_on=goes_on)
    await runtime.submit("busy", {"messages": [("user", "hold on")]}, precondition=THERE)
    await eventually(lambda: talk.under_way)


async def found(threads: Threads, **asked: Any) -> list[str]:
    return [row.thread_id async for row in threads.index.search(**asked)]


def test_a_search_by_status_finds_what_a_look_at_each_thread_shows(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph, settings=settings(attempts=1)) as runtime:
            threads = runtime.threads
            await _filled(runtime, threads, talk)
            every = await found(threads)
            rows = {name: await threads.get(name) for name in every}
            assert {rows[name].status for name in every} == set(STATUSES)
            for by in get_args(SortBy):
                for descending in (True, False):
                    order = Order(by, descending)
                    names = await found(threads, order=order)
                    keys = [getattr(rows[name], by) for name in names]
                    assert sorted(names) == sorted(every)
                    assert keys == sorted(keys, reverse=descending), (by, descending)
                    for status in STATUSES:
                        those = [name for name in names if rows[name].status == status]
                        assert await found(threads, order=order, status=status) == those
                        for skip in range(len(those) + 1):
                            asked = {"order": order, "status": status, "skip": skip}
                            assert await found(threads, **asked) == those[skip:], (asked, those)
            for status in STATUSES:
                number = sum(row.status == status for row in rows.values())
                assert await threads.index.count(status=status) == number
            named = {"name": "edited"}
            assert await found(threads, metadata=named) == ["edited"]
            assert await threads.index.count(metadata=named) == 1
            assert await found(threads, sees=lambda metadata: metadata == named) == ["edited"]
            talk.gate.set()

    go(main())


def test_a_page_far_down_is_read_without_those_above_it(talk: Talk) -> None:
    """However many threads there are, only those of the page are fetched; a count fetches none."""

    async def main() -> None:
        database, line = storage.open()
        async with working(database, talk.graph) as runtime:
            threads = runtime.threads
            for n in range(300):
                await threads.create(f"t{n:03}", {})
            fetched: set[str] = set()
            searched: list[type] = []

            async def note(effect: Any) -> None:
                if isinstance(effect, FindListed):
                    searched.append(type(effect))
                if isinstance(effect, Fetch) and effect.partition.thread.startswith("t"):
                    fetched.add(effect.partition.thread)

            line.before = note
            for order in (Order(), Order("created_at"), Order("updated_at", descending=False)):
                for status in (None, "idle"):
                    fetched.clear()
                    rows = threads.index.search(order=order, status=status, skip=200)
                    page = [row.thread_id async for row, _ in _first(rows, 5)]
                    first = 99 if order.descending else 200
                    assert page == [f"t{first - n if order.descending else first + n:03}" for n in range(5)]
                    assert len(fetched - {"threads"}) <= 40
            searched.clear()
            fetched.clear()
            rows = threads.index.search(skip=200, enough=70)
            assert len([row async for row, _ in _first(rows, 70)]) == 70
            assert (len(searched), len(fetched - {"threads"})) == (1, 70)
            # More are there for a caller that reads on.
            assert len([row async for row in threads.index.search(enough=7)]) == 300
            fetched.clear()
            assert await threads.index.count(status="idle") == 300
            assert not fetched - {"threads"}

    with stored("sqlite") as storage:
        go(main())


async def _first(rows: Any, number: int) -> Any:
    async for row in rows:
        yield row, None
        number -= 1
        if not number:
            return


@pytest.mark.parametrize("by", get_args(SortBy))
@pytest.mark.parametrize("descending", [True, False])
def test_each_thread_that_stays_is_found_once_while_others_go(by: SortBy, *, descending: bool) -> None:
    """The listing is read in pages. Meanwhile threads that were found are removed or written to, and others
    are created."""

    async def main() -> None:
        async with working(storage.database(), Talk().graph) as runtime:
            threads = runtime.threads
            names = [f"t{n:03}" for n in range(330)]
            for name in names:
                await threads.create(name, {"kind": "old"})
            met: list[str] = []
            async for row in threads.index.search(metadata={"kind": "old"}, order=Order(by, descending)):
                met.append(row.thread_id)
                if len(met) in (1, 90):
                    # All that were found go, but for those that are written to: these move.
                    for name in met[:-3:2]:
                        await threads.remove(name)
                    for name in met[-3:]:
                        await threads.change(name, {"touched": len(met)})
                    await threads.create(f"new {len(met)}", {"kind": "new"})
            assert sorted(met) == names

    with stored("sqlite") as storage:
        go(main())
