"""Runs, questions and threads are found on every backend, in order, whoever ended them.

Covers perdure.runtime.operations.word_search.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from perdure.database.base import handle_of
from perdure.errors import NotFound, NotWaiting
from perdure.model.ops import Commit, Fetch, Get, Put
from perdure.model.records import RUN, Partition
from perdure.runtime.operations import open_questions, run_search, thread_search
from perdure.runtime.operations.reruns import rerun_standing
from perdure.runtime.operations.run_search import OF_THREAD_MAX, FoundRun, RunQuery
from perdure.runtime.operations.thread_search import ThreadQuery
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.operations.word_search import Excerpt, excerpt
from tests.inspector.test_scale import Counting
from tests.runtime.graphs import Storage, Talk, go, settings, working

ROLLED_BACK = settings(attempts=1, on_failure="rollback")


async def said(storage: Storage, talk: Talk, *messages: tuple[str, str]) -> list[str]:
    ids: list[str] = []
    async with working(storage.database(), talk.graph, settings=ROLLED_BACK) as runtime:
        for thread, text in messages:
            config = {"configurable": {"user_id": f"user of {thread}"}}
            ids.append((await runtime.wait(await runtime.accept(thread, text, config=config), 30)).id)
    return ids


def test_runs_are_found_newest_first(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        messages = [("a", "hello"), ("b", "boom"), ("a", "more"), ("c", "boom"), ("b", "boom"), ("a", "boom")]
        ids = await said(storage, talk, *messages)
        walk = ThreadWalk(handle_of(storage.database()), "")
        every = await run_search.find_newest(walk, RunQuery(), 10)
        assert [found.run.id for found in every] == ids[::-1]
        assert [found.run.id for found in await run_search.find_newest(walk, RunQuery(), 2)] == ids[:-3:-1]
        failed = await run_search.find_newest(walk, RunQuery(state="failed"), 10)
        assert [found.thread_id for found in failed] == ["a", "b", "c", "b"]
        assert {found.user for found in failed} == {"user of a", "user of b", "user of c"}
        assert all(found.stands for found in failed)
        done = await run_search.find_newest(walk, RunQuery(state="done", user="user of a"), 10)
        assert [found.run.id for found in done] == [ids[2], ids[0]]
        await said(storage, talk, ("b", "hello"))
        standing = await run_search.find_newest(walk, RunQuery(stands=True), 10)
        assert [found.thread_id for found in standing] == ["a", "c"]
        since = every[1].run.updated_at
        late = await run_search.find_newest(walk, RunQuery(since=since, before=every[0].run.updated_at), 10)
        assert [found.run.id for found in late] == ids[:-3:-1]

        slow = await run_search.find_slowest(walk, RunQuery(), 10)
        assert len(slow) == len(ids) + 1
        took = [found.run.updated_at - found.run.started_at for found in slow]
        assert took == sorted(took, reverse=True)
        assert await run_search.find_slowest(walk, RunQuery(), 2) == slow[:2]

        shown = await run_search.show(walk, ids[1])
        assert (shown.found.thread_id, shown.goes_on_from, shown.found.stands) == ("b", None, False)
        assert (await run_search.show(walk, ids[5], "a")).found.stands
        with pytest.raises(NotFound, match="no run 'none'"):
            await run_search.show(walk, "none")
        with pytest.raises(NotFound, match=f"thread 'a' has no run '{ids[1]}'"):
            await run_search.show(walk, ids[1], "a")
        assert await run_search.find_newest(ThreadWalk(walk.database, "other"), RunQuery(), 10) == []

    go(main())


def test_a_run_is_shown_by_the_id_of_each_message_that_it_joined(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(memory.database(), talk.graph, works=False) as front:
            tickets = [await front.accept("a", text) for text in ("boom", "hello")]
        async with working(memory.database(), talk.graph, settings=ROLLED_BACK) as runtime:
            run = await runtime.wait(tickets[0], 30)
            walk = ThreadWalk(handle_of(memory.database()), "")
            for ticket in tickets:
                shown = await run_search.show(walk, ticket.id, "a")
                assert (shown.found.run.id, shown.messages) == (run.id, 2)

    go(main())


def test_a_run_is_shown_by_a_beginning_of_its_id_that_no_other_has(
    storage: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ["c168ba61-1", "c168ba61-2", "c168ba7", "c168ba7-long"]

    async def main() -> None:
        for run_id, (thread, text) in zip(
            ids, (("a", "hello"), ("b", "boom"), ("c", "boom"), ("c", "boom")), strict=True
        ):
            monkeypatch.setattr("perdure.runtime.tickets.make_id", lambda run_id=run_id: run_id)
            assert await said(storage, talk, (thread, text)) == [run_id]
        walk = ThreadWalk(handle_of(storage.database()), "")
        for beginning, thread_id, run_id in (
            ("c168ba61-1", None, "c168ba61-1"),
            ("c168ba61-2", None, "c168ba61-2"),
            ("c168ba61", "b", "c168ba61-2"),
            ("c168ba7-", None, "c168ba7-long"),
            ("c168ba7", None, "c168ba7"),
        ):
            assert (await run_search.show(walk, beginning, thread_id)).found.run.id == run_id
        with pytest.raises(
            NotFound, match="the ids of 2 runs begin with 'c168ba61', write more of one: 'c168"
        ):
            await run_search.show(walk, "c168ba61")
        for short in ("c168b", "", "c168ba9"):
            with pytest.raises(NotFound, match=f"there is no run {short!r}, and none whose id begins so"):
                await run_search.show(walk, short)

    go(main())


def test_questions_are_found_and_answered_once(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        await said(storage, talk, ("a", "ask one"), ("b", "hello"), ("c", "ask two"))
        database = storage.database()
        walk = ThreadWalk(handle_of(database), "")

        async def asked() -> list[open_questions.AskedQuestion]:
            async with aclosing(open_questions.search(walk)) as steps:
                return [each async for step in steps for each in step.questions]

        found = await asked()
        assert [each.thread_id for each in found] == ["a", "c"]
        assert found[0].user == "user of a"
        assert found[0].interrupt_id is not None
        assert found[0].since <= found[1].since
        partition = Partition("", "a")
        outcomes = await asyncio.gather(
            *(open_questions.answer(storage.database(), partition, n) for n in range(3)),
            return_exceptions=True,
        )
        assert [isinstance(each, NotWaiting) for each in outcomes].count(False) == 1
        assert [each.thread_id for each in await asked()] == ["c"]

    go(main())


def test_threads_are_searched_in_parts(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        await said(storage, talk, ("a", "the moon"), ("b", "the sun"), ("c", "the moon again"))
        walk = ThreadWalk(handle_of(storage.database()), "")
        found: list[str] = []
        cursor = ""
        for _ in range(10):
            steps = thread_search.search(walk, ThreadQuery(words="MOON"), cursor)
            step = await anext(steps, None)
            await steps.aclose()
            if step is None:
                break
            cursor = step.cursor
            if step.row is not None:
                found.append(step.row.thread_id)
                assert "the moon" in (step.excerpt or "")
        assert sorted(found) == ["a", "c"]
        assert found == (["c", "a"] if walk.is_by_time else ["a", "c"])

    go(main())


def test_what_is_read_ends_at_what_is_asked(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        await said(near, talk, *((f"t{n}", "hello") for n in range(30)))
        handle = handle_of(near.database())
        handle.driver = counting = Counting(handle.driver)
        walk = ThreadWalk(handle, "")
        if walk.is_by_time:
            await run_search.find_newest(walk, RunQuery(), 2)
            few = counting.requests
            counting.clear()
            await run_search.find_newest(walk, RunQuery(), 30)
            assert few * 3 < counting.requests

    go(main())


def test_a_thread_that_cannot_be_read_hides_no_other(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        ids = await said(storage, talk, ("a", "boom"), ("b", "boom"), ("c", "boom"))
        partition = Partition("", "b")
        (stored,) = storage.driver.perform(Fetch(partition, (Get(RUN, (ids[1],)),)))[0]
        damaged = Put(RUN, stored.key, dict(stored.fields), b"no JSON", version=stored.version + 1)
        storage.driver.perform(Commit(partition, (damaged,)))
        walk = ThreadWalk(handle_of(storage.database()), "")
        for query in (RunQuery(), RunQuery(state="failed"), RunQuery(since=1), RunQuery(stands=True)):
            faults: list[str] = []
            found = await run_search.find_newest(walk, query, 10, faults.append)
            assert [each.run.id for each in found] == [ids[2], ids[0]], query
            assert len(faults) == 1
            assert "'b'" in faults[0]
        async with aclosing(thread_search.search(walk, ThreadQuery(since=1))) as steps:
            rows = [step.row.thread_id async for step in steps if step.row is not None]
        assert {"a", "c"} <= set(rows)
        for searched in (ThreadQuery(user="user of c"), ThreadQuery(tag="none")):
            async with aclosing(thread_search.search(walk, searched)) as steps:
                rows = [step.row.thread_id async for step in steps if step.row is not None]
            assert rows == (["c"] if searched.user else [])

        async def repeat(run: FoundRun) -> tuple[str, bool]:
            return f"again {run.run.id}", False

        async with aclosing(rerun_standing(walk, RunQuery(), repeat)) as reruns:
            done = [step async for step in reruns]
        assert {each.run_id for step in done for each in step.reruns} == {ids[0], ids[2]}
        assert [step.fault for step in done if step.fault is not None] == faults

    go(main())


def test_a_thread_with_many_failed_runs_is_one_of_many(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        await said(memory, talk, *(("a", "boom") for _ in range(OF_THREAD_MAX + 5)))
        walk = ThreadWalk(handle_of(memory.database()), "")
        assert len(await run_search.find_newest(walk, RunQuery(state="failed"), 500)) == OF_THREAD_MAX

    go(main())


def test_words_are_found_in_any_form_of_a_message() -> None:
    typed = {
        "type": "langchain_core.messages.human.HumanMessage",
        "value": {"content": "Straße by the sea", "type": "human", "name": "Ada"},
    }
    parts = {"content": [{"type": "text", "text": "first"}, "second", {"type": "image", "text": 3}]}
    assert excerpt([typed], ["strasse"]) == Excerpt("Straße by the sea", "human Ada")
    assert excerpt([parts], ["second"]) == Excerpt("second", "")
    assert excerpt([typed, parts], ["sea", "first"]) is None
    assert excerpt({"content": "first"}, ["first"]) is None
    assert excerpt([None, 3, {"value": None}], ["first"]) is None
    assert excerpt([{"content": f"{'x ' * 100}here{' y' * 100}"}], ["here"]) is not None
