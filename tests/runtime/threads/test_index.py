"""The index: threads are found newest first, by what they are now, and move with everything else."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from typer.testing import CliRunner

from perdure.cli.app import app
from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.opening import connect
from perdure.engine.documents import Document
from perdure.errors import Unavailable
from perdure.model.ops import Commit
from perdure.model.records import SERVER
from perdure.runtime import Runtime
from perdure.runtime.threads.index import contains
from perdure.runtime.threads.threads import THERE, Threads
from tests.runtime.graphs import Storage, Talk, eventually, go, index_entry, settings, stored, working


async def found(threads: Threads, **asked: Any) -> list[str]:
    return [row.thread_id async for row in threads.index.search(**asked)]


def test_threads_are_found_newest_first_by_what_they_are(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph) as runtime:
            threads = runtime.threads
            for name, metadata in (("a", {"n": 1, "tags": ["x", "y"]}), ("b", {"n": 2}), ("c", {"n": 1})):
                assert await threads.create(name, metadata) is not None
            assert await threads.create("a", {}) is None
            assert await runtime.for_tenant("other").threads.create("a", {"n": 1}) is not None
            assert await found(threads) == ["c", "b", "a"]
            assert await found(threads, metadata={"n": 1}) == ["c", "a"]
            assert await found(threads, metadata={"tags": ["y"]}) == ["a"]
            assert await found(threads, ids=["b", "nobody"]) == ["b"]
            assert await found(threads, ids=["a", "b", "c"], metadata={"n": 1}, skip=1) == ["a"]
            await threads.touch("a")
            assert await found(threads) == ["a", "c", "b"]
            row = await threads.change("b", {"m": 3})
            assert row.metadata == {"n": 2, "m": 3}
            assert await found(threads, metadata={"m": 3}) == ["b"]
            ticket = await runtime.submit("c", {"messages": [("user", "hold on")]}, precondition=THERE)
            await eventually(lambda: talk.under_way)
            assert await found(threads, status="busy") == ["c"]
            talk.gate.set()
            await runtime.wait(ticket, 30)
            assert await found(threads, status="busy") == []
            assert await threads.remove("c")
            assert not await threads.remove("c")
            assert sorted(await found(threads)) == ["a", "b"]

    go(main())


def test_an_older_copy_that_arrives_late_does_not_hide_a_thread(storage: Storage, talk: Talk) -> None:
    """The first change's copy is held up on its way until the second change is complete."""

    async def main() -> None:
        database, line = storage.open()
        async with working(database, talk.graph, works=False) as runtime:
            threads = runtime.threads
            await threads.create("ada", {"stage": "new"})
            held, go_on = asyncio.Event(), asyncio.Event()

            async def delay(effect: Any) -> None:
                is_copy = isinstance(effect, Commit) and effect.partition.space == SERVER
                if is_copy and b'"first"' in b"".join(getattr(op, "body", b"") for op in effect.ops):
                    held.set()
                    await go_on.wait()

            line.before = delay
            first = asyncio.create_task(threads.change("ada", {"stage": "first"}))
            await held.wait()
            await threads.change("ada", {"stage": "second"})
            go_on.set()
            assert (await first).metadata == {"stage": "second"}
            line.before = None
            assert await found(threads, metadata={"stage": "second"}) == ["ada"]
            assert await found(threads, metadata={"stage": "first"}) == []
            entry = await index_entry(runtime, "ada")
            assert entry is not None
            assert entry.body["metadata"] == {"stage": "second"}

    go(main())


@pytest.mark.parametrize("lost", ["document", "copy"])
def test_a_thread_is_found_by_its_metadata_although_its_copy_never_arrived(
    storage: Storage, talk: Talk, lost: str
) -> None:
    """The process ends before a change of metadata is stored, or before its copy is."""

    async def main() -> None:
        database, line = storage.open()
        async with working(database, talk.graph, works=False) as runtime:
            threads = runtime.threads
            await threads.create("ada", {"stage": "new"})
            await threads.create("bea", {"stage": "new"})

            async def end(effect: Any) -> None:
                if not isinstance(effect, Commit):
                    return
                is_copy = effect.partition.space == SERVER
                if b'"late"' in b"".join(getattr(op, "body", b"") for op in effect.ops) and (
                    is_copy == (lost == "copy")
                ):
                    raise ConnectionResetError("the process has ended")

            line.before = end
            with pytest.raises(ConnectionResetError):
                await threads.change("ada", {"stage": "late"})
            line.before = None
            stage = "late" if lost == "copy" else "new"
            assert await found(threads, metadata={"stage": stage}) == (
                ["ada"] if lost == "copy" else ["bea", "ada"]
            )
            # The next change is as any other.
            await threads.change("ada", {"more": 1})
            assert await found(threads, metadata={"more": 1, "stage": stage}) == ["ada"]
            entry = await index_entry(runtime, "ada")
            assert entry is not None
            assert entry.body["announced"] <= entry.body["version"]

    go(main())


def test_a_thread_that_was_created_again_takes_the_place_of_an_earlier_copy(
    memory: Storage, talk: Talk
) -> None:
    async def main() -> None:
        async with working(memory.database(), talk.graph, works=False) as runtime:
            threads = runtime.threads
            await threads.create("ada", {"n": 1})
            for number in range(3):
                await threads.change("ada", {"n": number})
            earlier = await index_entry(runtime, "ada")
            assert earlier is not None
            await threads.remove("ada")
            # A copy of the earlier thread arrives after its removal.
            late = Document("", dict(earlier.body), 1, earlier.body["version"])
            await threads.index.write("ada", late)
            await threads.create("ada", {"n": 9})
            assert await found(threads, metadata={"n": 9}) == ["ada"]
            await threads.index.write("ada", late)
            assert await found(threads, metadata={"n": 9}) == ["ada"]

    go(main())


def test_more_threads_than_a_page_are_each_found_once(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(memory.database(), talk.graph) as runtime:
            threads = runtime.threads
            names = [f"thread {n}" for n in range(350)]
            for name in names:
                await threads.create(name, {})
            assert await found(threads) == names[::-1]

    go(main())


def test_no_run_is_accepted_on_a_thread_that_was_deleted(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph) as runtime:
            threads = runtime.threads
            await threads.create("a", {})
            await runtime.wait(await runtime.submit("a", {"messages": []}, precondition=THERE), 30)
            await threads.remove("a")
            with pytest.raises(Exception, match="there is no thread 'a'"):
                await runtime.submit("a", {"messages": []}, precondition=THERE)
            assert storage.rows("a") == []

    go(main())


def test_a_thread_of_a_program_is_there_and_can_be_adopted(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(memory.database(), talk.graph) as runtime:
            threads = runtime.threads
            await runtime.wait(await runtime.accept("a", "hello"), 30)
            row = await threads.get("a")
            assert (row.status, row.has_state, row.metadata) == ("idle", True, {"graph_id": "agent"})
            assert not row.has_document
            assert await found(threads) == ["a"]
            await threads.adopt(row)
            assert await found(threads) == ["a"]
            now = await threads.get("a")
            written_at = now.updated_at
            assert now == row._replace(
                has_document=True,
                updated_at=written_at,
                touched_at=written_at,
                version=now.version,
                agents=now.agents,
            )

    go(main())


@pytest.mark.parametrize(
    ("whole", "part", "holds"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": {"b": [1, {"c": 2, "d": 3}]}}, {"a": {"b": [{"c": 2}]}}, True),
        ({"a": [1]}, {"a": 1}, False),
        ({"a": None}, {"a": None}, True),
        ({}, {"a": None}, False),
    ],
)
def test_containment_is_postgresqls(whole: Any, part: Any, holds: bool) -> None:
    assert contains(whole, part) is holds


def test_a_servers_threads_are_found_where_they_were_copied(tmp_path: Any, talk: Talk) -> None:
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("one", "two")]

    async def fill() -> None:
        async with (
            connect(urls[0], migrate=True) as database,
            Runtime(database, {"agent": talk.graph}, settings=settings(), observers=()) as runtime,
        ):
            threads = runtime.threads
            await threads.create("a", {"n": 1})
            await threads.create("empty", {"n": 2})
            await runtime.wait(await runtime.submit("a", {"messages": []}, precondition=THERE), 30)

    async def look() -> list[tuple[str, Any]]:
        async with (
            connect(urls[1]) as database,
            Runtime(database, {"agent": talk.graph}, settings=settings(), observers=()) as runtime,
        ):
            return [(row.thread_id, row.metadata) async for row in runtime.threads.index.search()]

    asyncio.run(fill())
    runner = CliRunner()
    assert runner.invoke(app, ["migrate", "--db", urls[1]]).exit_code == 0
    copied = runner.invoke(app, ["copy", "--from", urls[0], "--to", urls[1]])
    assert copied.exit_code == 0, copied.output
    assert "2 records of servers" in copied.output.replace("\n", " ")
    assert asyncio.run(look()) == [("a", {"n": 1}), ("empty", {"n": 2})]
    again = runner.invoke(app, ["copy", "--from", urls[0], "--to", urls[1]])
    assert "were there already" in again.output


@pytest.mark.parametrize("by", ["checkpointer", "runtime", "threads"])
def test_wherever_a_removal_ends_no_copy_outlives_its_thread(by: str, talk: Talk) -> None:
    """A copy has the thread's metadata. Without one, a thread is listed all the same."""

    async def left(at: int | None) -> tuple[int, bool, bool]:
        with stored("memory") as storage:
            database, line = storage.open()
            async with working(storage.database(), talk.graph, works=False) as front:
                await front.threads.create("t", {"title": "secret"})
                async with working(database, talk.graph, works=False) as back:
                    start = line.count
                    if at is not None:
                        line.failing = lambda number: number > start + at
                    with suppress(Unavailable):
                        if by == "checkpointer":
                            await Database(handle_of(database)).checkpointer().adelete_thread("t")
                        elif by == "runtime":
                            await back.delete("t")
                        else:
                            await back.threads.remove("t")
                there = await found(front.threads, metadata={"title": "secret"}) == ["t"]
                return line.count - start, there, await index_entry(front, "t") is not None

    requests, is_there, has_copy = go(left(None))
    assert (requests >= 3, is_there, has_copy) == (True, False, False)
    for at in range(requests):
        _, is_there, has_copy = go(left(at))
        assert is_there or not has_copy, at


CONTAINED: tuple[tuple[list[Any], list[Any], bool], ...] = (
    ([1, "a", None, True], ["a", 1.0, None, True], True),
    ([1], [True], False),
    ([True], [1], False),
    ([0.0], [False], False),
    (["1"], [1], False),
    ([{"a": 1, "b": 2}, [1, 2]], [{"a": 1.0}, [2]], True),
    ([{"a": 1}, {"b": 2}], [{"a": 1, "b": 2}], False),
    ([[1], [2]], [[1, 2]], False),
    ([{"a": [1, {"b": None}]}], [{"a": [{"b": None}]}], True),
    ([], [], True),
    ([1], [], True),
    ([], [1], False),
)


@pytest.mark.parametrize(("whole", "part", "is_in"), CONTAINED)
def test_a_list_contains_each_entry_of_another(whole: list[Any], part: list[Any], is_in: bool) -> None:
    assert contains(whole, part) is is_in
    assert contains({"a": whole}, {"a": part}) is is_in


def test_plain_entries_are_looked_up_and_not_compared_with_each_other() -> None:
    """So the time for two lists is the sum of their lengths, not the product."""

    class Counted(int):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    whole = [Counted(n) for n in range(2000)]
    assert contains(whole, [1999] * 2000)
    assert Counted.compared < 10_000
