"""A failed run is run again once, whoever asks and whatever happens to its thread meanwhile.

Covers perdure.runtime.operations.reruns, perdure.runtime.operations.entries.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.errors import Conflict, NotFound, RunInProgress
from perdure.model.ops import Commit
from perdure.model.program import Effect
from perdure.model.records import INBOX, KINDS, RUN, Partition
from perdure.model.runs.messages import FAILED
from perdure.runtime import Runtime
from perdure.runtime.operations import entries
from perdure.runtime.operations.reruns import rerun, rerun_standing
from perdure.runtime.operations.run_search import FoundRun, RunQuery
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.testing.faults import Fault, faulty, kill
from tests.runtime.graphs import Storage, Talk, eventually, eventually_stored, go, settings, working

ADA = Partition("", "ada")
KEEP = settings(attempts=1, on_failure="keep")
Rival = Callable[[], Awaitable[Any]]


async def failed_run(database: SyncDatabase, talk: Talk, thread: str = "ada") -> str:
    """Leave a run that failed at its second step, and return its id."""
    async with working(database, talk.graph, settings=KEEP) as runtime:
        run = await runtime.wait(await runtime.accept(thread, "boom"), 30)
    assert run.state == FAILED
    return run.id


async def again(database: SyncDatabase, run_id: str, partition: Partition = ADA) -> tuple[str, bool]:
    read_asked = partial(database.checkpointer().read_asked, partition)
    return await rerun(handle_of(database), partition, run_id, read_asked)


async def beaten(storage: Storage, run_id: str, rival: Rival) -> tuple[str, bool]:
    """Run a run again, while a rival is done between what this one has read and its commit."""
    database, line = storage.open()
    rivals = [rival]

    async def before(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and rivals:
            await rivals.pop()()

    line.before = before
    try:
        return await again(database, run_id)
    finally:
        assert not rivals, "the rival was not let in"


async def is_over(runtime: Runtime, thread: str, run_id: str) -> bool:
    found = await runtime.find(thread, run_id)
    return found is not None and found.is_over


def repetitions(storage: Storage) -> int:
    return len(storage.rows("ada", INBOX)) - 1


def test_of_two_reruns_one_is_stored(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        run_id = await failed_run(storage.database(), talk)
        other = storage.database()
        first: list[tuple[str, bool]] = []

        async def rival() -> None:
            first.append(await again(other, run_id))

        second = await beaten(storage, run_id, rival)
        assert first == [(second[0], False)]
        assert second[1]
        racing = await asyncio.gather(*(again(storage.database(), run_id) for _ in range(4)))
        assert racing == [(second[0], True)] * 4
        assert repetitions(storage) == 1

    go(main())


def test_a_message_that_comes_first_is_not_overtaken(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        run_id = await failed_run(storage.database(), talk)
        async with working(storage.database(), talk.graph, works=False) as front:
            with pytest.raises(RunInProgress, match="open run or messages that wait"):
                await beaten(storage, run_id, lambda: front.accept("ada", "hello"))
        assert repetitions(storage) == 1
        async with working(storage.database(), talk.graph, settings=KEEP) as runtime:
            (message, _) = await runtime.messages("ada")
            await runtime.wait(await runtime.accept("ada", "more"), 30)
            with pytest.raises(Conflict, match="has gone on"):
                await again(storage.database(), run_id)
        assert message.message.payload["message"]["content"] == "hello"

    go(main())


def test_a_message_behind_a_rerun_waits_for_it(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        run_id = await failed_run(storage.database(), talk)
        async with working(storage.database(), talk.graph, works=False) as front:
            _, was_repeated = await again(storage.database(), run_id)
            assert not was_repeated
            await front.accept("ada", "hello")
        talk.error = RuntimeError("again")
        async with working(storage.database(), talk.graph, settings=KEEP) as runtime:
            newest = (await runtime.messages("ada"))[0].message
            await eventually_stored(partial(is_over, runtime, "ada", newest.id))
            runs = [(run.first, run.state) for run in await runtime.runs("ada")]
        assert runs == [(3, "done"), (2, "failed"), (1, "failed")]

    go(main())


def test_a_run_is_not_run_again_beside_one_that_is_open(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        run_id = await failed_run(storage.database(), talk)
        async with working(storage.database(), talk.graph, settings=KEEP) as runtime:
            ticket = await runtime.accept("ada", "hold")
            await eventually(lambda: talk.under_way)
            with pytest.raises((RunInProgress, Conflict)):
                await again(storage.database(), run_id)
            talk.gate.set()
            assert (await runtime.wait(ticket, 30)).state == "done"
        assert repetitions(storage) == 1

    go(main())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_thread_that_is_deleted_does_not_come_back(storage: Storage, talk: Talk, is_first: bool) -> None:
    async def main() -> None:
        run_id = await failed_run(storage.database(), talk)
        other = storage.database()

        async def delete() -> None:
            await other.checkpointer().adelete_thread("ada")

        if is_first:
            with pytest.raises(NotFound, match=run_id):
                await beaten(storage, run_id, delete)
        else:
            await again(storage.database(), run_id)
            await delete()
            with pytest.raises(NotFound, match=run_id):
                await again(storage.database(), run_id)
        assert storage.rows("ada", *(kind for kind in KINDS if kind.name != "event")) == []

    go(main())


def test_many_are_run_again_and_what_fails_meanwhile_is_not(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, names = storage.database(), [f"t{n}" for n in range(5)]
        for name in names:
            await failed_run(database, talk, name)
        async with working(storage.database(), talk.graph, works=False) as front:
            await front.accept("t3", "hello")  # goes on without the failed run
        handle = handle_of(database)
        walk = ThreadWalk(handle, "")

        async def repeat(found: FoundRun) -> tuple[str, bool]:
            partition = Partition("", found.thread_id)
            done = await again(database, found.run.id, partition)
            async with working(storage.database(), talk.graph, settings=KEEP) as runtime:  # it fails again
                await eventually_stored(partial(is_over, runtime, found.thread_id, done[0]))
            return done

        found: list[dict[str, Any]] = []
        cursor, pages = "", 0
        while pages < 20:
            pages += 1
            steps = rerun_standing(walk, RunQuery(), repeat, cursor)
            step = await anext(steps, None)  # each request does one step, and the next goes on
            await steps.aclose()
            if step is None:
                break
            cursor = step.cursor
            found += map(entries.rerun_entry, step.reruns)
        accepted = [each["thread_id"] for each in found if each["outcome"] == "accepted"]
        assert sorted(accepted) == ["t0", "t1", "t2", "t4"]
        assert [len(storage.rows(name, RUN)) for name in names] == [2, 2, 2, 2, 2]

    go(main())


def killed(url: str, run_id: str, at: int, when: Any) -> None:
    with faulty(url, Fault(at, kill, when), counts=(Commit,)) as (database, _):
        asyncio.run(again(database, run_id))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_leaves_one_repetition_or_none(tmp_path: Path, talk: Talk, when: str) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with perdure.connect_sync(url, migrate=True) as database:
        run_id = asyncio.run(failed_run(database, talk))
    processes = get_context("forkserver")
    child = processes.Process(target=killed, args=(url, run_id, 1, when))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    with perdure.connect_sync(url) as database:
        _, was_repeated = asyncio.run(again(database, run_id))
        assert was_repeated is (when == "after")

    async def work() -> list[str]:
        async with (
            perdure.connect(url) as db,
            Runtime(db, talk.graph, settings=KEEP, observers=()) as runtime,
        ):
            newest = (await runtime.messages("ada"))[0].message
            await eventually_stored(partial(is_over, runtime, "ada", newest.id))
            return [run.state for run in await runtime.runs("ada")]

    assert asyncio.run(work()) == ["failed", "failed"]
