"""An operator ends open and waiting runs: one, those of a user, or all, while workers go on."""

from __future__ import annotations

from typing import Any

from perdure.database.base import handle_of
from perdure.runtime import Runtime
from perdure.runtime.operations.stops import Stopped, stop_runs
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from tests.runtime.graphs import Storage, Talk, eventually, go, settings, working

QUICK = settings(lease=1.0)


async def _submit(runtime: Runtime, thread: str, text: str, user: str | int, **more: Any) -> Any:
    said = {"messages": [{"role": "user", "content": text}]}
    return await runtime.submit(thread, said, config={"configurable": {"user_id": user}}, **more)


async def _stop(storage: Storage, **asked: Any) -> list[Stopped]:
    # A handle of its own, as that of another process.
    walk = ThreadWalk(handle_of(storage.database()), "")
    return [each async for each in stop_runs(walk, **asked)]


def test_runs_of_a_user_end_and_those_of_others_go_on(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph, settings=QUICK) as runtime:
            opened = await _submit(runtime, "one", "hold", "ada")
            waiting = await _submit(runtime, "one", "next", "ada")
            other = await _submit(runtime, "two", "hold", "bob")
            later = await _submit(runtime, "three", "later", "ada", delay=3600)
            await eventually(lambda: talk.under_way == 2)

            ended = await _stop(storage, user="ada")

            assert {(each.thread_id, each.run_id, each.was_open) for each in ended} == {
                ("one", waiting.id, False),
                ("one", opened.id, True),
                ("three", later.id, False),
            }
            for ticket in (opened, waiting, later):
                assert (await runtime.wait(ticket, 30)).state == "interrupted"
            standing = await runtime.look(other)
            assert standing.run is not None
            assert standing.run.state == "open"
            assert await _stop(storage, user="ada") == []

            (only,) = await _stop(storage, run_id=other.id)
            assert (only.user, only.was_open) == ("bob", True)
            assert (await runtime.wait(other, 30)).state == "interrupted"
            assert await _stop(storage) == []

    go(main())


def test_runs_of_a_user_whose_id_is_a_number_end(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph, settings=QUICK) as runtime:
            later = await _submit(runtime, "one", "later", 42, delay=3600)
            await _submit(runtime, "two", "later", 43, delay=3600)
            (ended,) = await _stop(near, user="42")
            assert (ended.thread_id, ended.run_id, ended.user) == ("one", later.id, "42")

    go(main())


def test_a_run_on_a_shared_thread_is_its_own_users(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph, settings=QUICK) as runtime:
            await runtime.wait(await _submit(runtime, "shared", "first", "ada"), 30)
            waiting = await _submit(runtime, "shared", "later", "bob", delay=3600)
            # The metadata of the thread name Ada, whose run was the latest.
            assert await _stop(near, user="ada") == []
            (ended,) = await _stop(near, user="bob")
            assert (ended.run_id, ended.user) == (waiting.id, "bob")

    go(main())


def test_a_rollback_removes_what_a_stopped_run_stored(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph, settings=QUICK) as runtime:
            await runtime.wait(await _submit(runtime, "one", "first", "ada"), 30)
            opened = await _submit(runtime, "one", "hold", "ada")
            await eventually(lambda: talk.under_way == 1)
            await _stop(storage, user="ada", rollback=True)
            assert (await runtime.wait(opened, 30)).state == "rolled_back"
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "one"}})
            assert "hold" not in str(state.values)

    go(main())
