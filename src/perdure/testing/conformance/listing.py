"""Listing the checkpoints of all threads at once: in which order, before which, and how many."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.errors import Corrupt, NotAllowed
from perdure.langgraph.saver import PerdureSaver
from perdure.model.ops import Commit, Committed, Delete, Fetch, Get
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, Partition
from perdure.testing.conformance.backend import Backend, at, expect_refusal, put
from perdure.testing.faults import FaultyDriver

PLACES = (("a", ""), ("b", ""), ("b", "inner"), ("c", ""), ("c", "inner|deep"))
PLACE_BY_AGE = (0, 1, 3, 3, 0, 2, 4, 0, 1, 2, 4, 4, 0, 3, 1, 2)
"""The index in ``PLACES`` of each checkpoint, the oldest checkpoint first."""


def _fill(saver: PerdureSaver) -> list[str]:
    """Store checkpoints in several threads and namespaces; return their ids, the newest first."""
    ids: list[str] = []
    last: dict[int, Any] = {}
    for age, place in enumerate(PLACE_BY_AGE):
        thread, namespace = PLACES[place]
        ids.append(f"1f0{age:03}")
        on = last.get(place, at(thread=thread, namespace=namespace))
        last[place] = put(saver, on, ids[-1], source="input" if age % 3 == 0 else "loop")
    return ids[::-1]


def _list_twice(saver: PerdureSaver, **options: Any) -> list[str]:
    """Return the listed ids, and assert that blocking and awaited listings agree."""

    async def collect() -> list[Any]:
        return [item async for item in saver.alist(None, **options)]

    found = list(saver.list(None, **options))
    assert [item.config for item in asyncio.run(collect())] == [item.config for item in found]
    for item in found:
        assert item.checkpoint["channel_values"] == {"x": item.checkpoint["id"]}
    return [item.checkpoint["id"] for item in found]


class Listing:
    """Contract of ``list(None)``: all threads and namespaces by id, descending, like the stock savers."""

    def test_all_threads_are_listed_newest_first(self, backend: Backend) -> None:
        ids = _fill(backend.saver())
        saver = backend.saver(may_list_all_threads=True)
        assert _list_twice(saver) == ids
        assert [(n, _list_twice(saver, limit=n)) for n in range(len(ids) + 2)] == [
            (n, ids[:n]) for n in range(len(ids) + 2)
        ]

    def test_before_a_checkpoint_is_what_is_older_in_every_thread(self, backend: Backend) -> None:
        ids = _fill(backend.saver())
        saver = backend.saver(may_list_all_threads=True)
        for n, one in enumerate(ids):
            assert _list_twice(saver, before=at(one)) == ids[n + 1 :]
            assert _list_twice(saver, before=at(one, thread="never"), limit=2) == ids[n + 1 :][:2]
        assert _list_twice(saver, before=at()) == ids
        assert _list_twice(saver, before=at("1f0003.5")) == ids[-4:]

    def test_a_filter_is_asked_before_the_limit(self, backend: Backend) -> None:
        ids = _fill(backend.saver())
        inputs = [one for n, one in enumerate(reversed(ids)) if n % 3 == 0][::-1]
        saver = backend.saver(may_list_all_threads=True)
        assert _list_twice(saver, filter={"source": "input"}) == inputs
        assert _list_twice(saver, filter={"source": "input"}, limit=3) == inputs[:3]
        assert _list_twice(saver, filter={"source": "input"}, before=at(inputs[1]), limit=2) == inputs[2:4]
        assert _list_twice(saver, filter={"source": "none"}, limit=2) == []

    def test_another_tenant_s_threads_are_not_listed(self, backend: Backend) -> None:
        ids = _fill(backend.saver())
        put(backend.saver(tenant="other"), at(), "2f0000")
        assert _list_twice(backend.saver(may_list_all_threads=True), limit=1) == ids[:1]
        assert _list_twice(backend.saver(tenant="other", may_list_all_threads=True)) == ["2f0000"]
        expect_refusal(NotAllowed, lambda: list(backend.saver().list(None, limit=1)))

    def test_what_is_not_returned_is_not_read(self, backend: Backend) -> None:
        read: list[str] = []

        def check_read(_: int, effect: Effect[Any]) -> None:
            for item in effect.items if isinstance(effect, Fetch) else ():
                if item.kind is not CHECKPOINT:
                    continue
                if isinstance(item, Get):
                    read.append(item.key[1])
                else:
                    assert not item.bodies, "a page of checkpoints was read whole"

        ids = _fill(backend.saver())
        saver = backend.saver(
            may_list_all_threads=True, wrap=lambda driver: FaultyDriver(driver, on_effect=check_read)
        )
        assert [item.checkpoint["id"] for item in saver.list(None, limit=3)] == ids[:3]
        assert sorted(read) == sorted(ids[:3])

    def test_what_is_removed_meanwhile_is_left_out(self, backend: Backend) -> None:
        ids = _fill(backend.saver())
        saver = backend.saver(may_list_all_threads=True)
        found = saver.list(None)
        first = next(found)
        backend.saver().delete_thread("c")
        rest = [item.checkpoint["id"] for item in found]
        assert [first.checkpoint["id"], *rest] in (ids, [i for i in ids if i == ids[0] or i in rest])

    def test_a_thread_whose_head_is_gone_is_named(self, backend: Backend) -> None:
        ids = _fill(backend.saver())
        head = next(one for n, one in enumerate(ids) if PLACE_BY_AGE[::-1][n] == 0)
        gone = Commit(Partition("", "a"), (Delete(CHECKPOINT, ("", head)),))
        assert isinstance(backend.driver.perform(gone), Committed)
        saver = backend.saver(may_list_all_threads=True)
        assert "'a'" in str(expect_refusal(Corrupt, lambda: list(saver.list(None))))
