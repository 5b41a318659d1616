"""A thread shows what its latest checkpoint says, also if a program went past a run with the library.

Covers perdure.engine.queue.latest_checkpoint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, get_args

import pytest
from langgraph.graph import END
from langgraph.types import Command

from perdure.database.base import handle_of
from perdure.engine.checks.fsck_queue import check_queue
from perdure.errors import NotWaiting
from perdure.model.records import Partition
from perdure.model.runs.lifecycle import Status
from perdure.runtime import Runtime
from perdure.runtime.operations import open_questions
from tests.runtime.graphs import Storage, Talk, go, settings, working

CONFIG: Any = {"configurable": {"thread_id": "t"}}
SAID: Any = {"messages": [("user", "hello")]}
Change = Callable[[Runtime], Awaitable[Any]]


async def _answer(runtime: Runtime) -> None:
    await runtime.graph("agent").ainvoke(Command(resume="yes"), CONFIG)


async def _end(runtime: Runtime) -> None:
    await runtime.graph("agent").aupdate_state(CONFIG, None, as_node=END)


async def _finish(runtime: Runtime) -> None:
    await runtime.graph("agent").aupdate_state(CONFIG, SAID, as_node="talk")


async def _go_on(runtime: Runtime) -> None:
    await runtime.graph("agent").aupdate_state(CONFIG, SAID, as_node="hear")
    await runtime.graph("agent").ainvoke(None, CONFIG)


async def _say(runtime: Runtime) -> None:
    await runtime.graph("agent").ainvoke(SAID, CONFIG)


async def _fail(runtime: Runtime) -> None:
    with pytest.raises(RuntimeError):
        await runtime.graph("agent").ainvoke({"messages": [("user", "boom")]}, CONFIG)


async def _remove(runtime: Runtime) -> None:
    runs = await runtime.runs("t")
    await runtime.database.checkpointer().adelete_for_runs([runs[0].id])


async def _edit(runtime: Runtime) -> None:
    await runtime.graph("agent").aupdate_state(CONFIG, SAID, as_node="hear")


async def _ask(runtime: Runtime) -> None:
    await runtime.graph("agent").ainvoke({"messages": [("user", "ask anew")]}, CONFIG)


async def _shows(runtime: Runtime, status: Status) -> bool:
    """Return True if the thread, and every search and count, shows a status."""
    row = await runtime.threads.get("t")
    assert row.fault is None
    for each in get_args(Status):
        found = [row.thread_id async for row in runtime.threads.index.search(status=each)]
        assert found == (["t"] if each == row.status else []), (each, row.status)
        assert await runtime.threads.index.count(status=each) == len(found)
    return row.status == status


async def _asks(runtime: Runtime) -> bool:
    row = await runtime.threads.get("t")
    handle = handle_of(runtime.database)
    assert await handle.arun(check_queue(Partition("", "t"))) == []
    found = await handle.arun(open_questions.load_questions(handle, "", row))
    assert (await runtime.question("t") is None) == (not found)
    assert (await runtime.waiting_run("t") is None) == (not found)
    return bool(found)


async def _begin(runtime: Runtime, *texts: str, **options: Any) -> None:
    await runtime.threads.create("t", {})
    for text in texts:
        await runtime.wait(await runtime.submit("t", {"messages": [("user", text)]}, **options), 30)


@pytest.mark.parametrize(
    ("change", "earlier"),
    [
        *((change, ("hello",)) for change in (_answer, _end, _finish, _go_on, _say, _fail, _remove)),
        (_remove, ()),
    ],
)
def test_a_question_that_a_program_closed_takes_no_answer(
    storage: Storage, talk: Talk, change: Change, earlier: tuple[str, ...]
) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph) as runtime:
            await _begin(runtime, *earlier, "ask")
            assert await _shows(runtime, "interrupted")
            assert await _asks(runtime)
            await change(runtime)
            assert await _shows(runtime, "idle")
            assert not await _asks(runtime)
            with pytest.raises(NotWaiting):
                await runtime.answer("t", "yes")
            assert len(await runtime.runs("t")) == len(earlier) + 1
            await _begin(runtime, "ask")
            assert await _shows(runtime, "interrupted")
            assert (await runtime.wait(await runtime.answer("t", "yes"), 30)).state == "done"
            assert await _shows(runtime, "idle")

    go(main())


@pytest.mark.parametrize("change", [_edit, _ask])
def test_a_thread_that_a_program_left_waiting_takes_an_answer(
    storage: Storage, talk: Talk, change: Change
) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph) as runtime:
            await _begin(runtime, "ask")
            await change(runtime)
            assert await _shows(runtime, "interrupted")
            assert await _asks(runtime)
            assert (await runtime.wait(await runtime.answer("t", "yes"), 30)).state == "done"
            assert await _shows(runtime, "idle")

    go(main())


def test_a_second_question_of_a_step_is_shown_and_answered(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph) as runtime:
            await _begin(runtime, "twice")
            await runtime.wait(await runtime.answer("t", "one"), 30)
            assert await _shows(runtime, "interrupted")
            assert await _asks(runtime)
            await _answer(runtime)
            assert await _shows(runtime, "idle")
            assert not await _asks(runtime)

    go(main())


@pytest.mark.parametrize("change", [_end, _finish, _say])
def test_a_thread_that_a_program_took_past_a_breakpoint_takes_no_answer(
    storage: Storage, talk: Talk, change: Change
) -> None:
    graph = talk.graph
    graph.interrupt_before_nodes = ["talk"]

    async def main() -> None:
        async with working(storage.database(), graph) as runtime:
            await _begin(runtime, "hello")
            assert await _shows(runtime, "interrupted")
            assert await _asks(runtime)
            await change(runtime)
            if change is _say:
                await runtime.graph("agent").ainvoke(None, CONFIG)
            assert await _shows(runtime, "idle")
            assert not await _asks(runtime)
            with pytest.raises(NotWaiting):
                await runtime.answer("t", "yes")

    go(main())


@pytest.mark.parametrize(
    ("change", "status", "earlier"),
    [
        (_end, "idle", ("hello",)),
        (_finish, "idle", ("hello",)),
        (_go_on, "idle", ("hello",)),
        (_say, "idle", ()),
        (_ask, "interrupted", ()),
        (_remove, "error", ("hello",)),
    ],
)
def test_a_thread_that_a_program_repaired_shows_no_failure(
    storage: Storage, talk: Talk, change: Change, status: Status, earlier: tuple[str, ...]
) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph, settings=settings(attempts=1)) as runtime:
            await _begin(runtime, *earlier, "boom")
            assert await _shows(runtime, "error")
            await change(runtime)
            assert await _shows(runtime, status)

    go(main())
