"""The users of a thread are those of all of its runs and messages, and few of its checkpoints are read for
them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from perdure.database.base import handle_of
from perdure.engine.retention.thread_removal import delete_thread
from perdure.engine.threads import history
from perdure.model.ops import Check
from perdure.model.records import Partition
from perdure.runtime import Runtime, Ticket
from perdure.runtime.operations.thread_search import ThreadQuery, search
from perdure.runtime.operations.user_removal import RemovalTerms, find_user_data, remove_user
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.threads.user_and_title import read_users
from tests.runtime.graphs import Storage, go, settings, stored


def test_one_checkpoint_of_each_run_is_read(near: Storage) -> None:
    async def main() -> None:
        database = near.database()
        builder = StateGraph(MessagesState)
        before = START
        for name in "abcdefgh":
            builder.add_node(name, lambda state: {}).add_edge(before, name)
            before = name
        graph: Any = builder.compile(checkpointer=database.checkpointer())
        for number, user in enumerate(("ada", "bob", "ada")):
            config: Any = {"configurable": {"thread_id": "t", "user_id": user}}
            config["metadata"] = {"run_id": f"run-{number}"}
            await graph.ainvoke({"messages": [("user", user)]}, config)
        handle = handle_of(database)
        partition = Partition("", "t")
        names = await handle.arun(history.list_newest_of_runs(partition, ""))
        assert len(names) == 3 * len(("input", "loop"))
        assert await handle.arun(read_users(partition)) == {"ada", "bob"}
        walk = ThreadWalk(handle, "")
        for user, found in (("ada", True), ("bob", True), ("eve", False)):
            matches = [each async for each in search(walk, ThreadQuery(user=user)) if each.row is not None]
            assert [each.users for each in matches] == [{"ada", "bob"}] * found

    go(main())


def _of(user: str) -> Any:
    return {"configurable": {"user_id": user}}


async def _remove(walk: ThreadWalk, user: str, before: Callable[[str], Awaitable[None]]) -> tuple[int, int]:
    """Remove a user, and return how many threads were removed, and how many stay as others use them, too."""

    async def remove_thread(thread_id: str, checks: Sequence[Check]) -> bool | None:
        await before(thread_id)
        return await walk.database.arun(delete_thread(Partition("", thread_id), checks)) or None

    terms = RemovalTerms(await find_user_data(walk, user, ()), remove_thread, remove_thread)
    steps = [each async for each in remove_user(walk, user, terms)]
    return sum(each.threads for each in steps), sum(each.shared for each in steps)


async def _nothing(thread_id: str) -> None:
    pass


@pytest.mark.parametrize("on", ["sqlite", "postgresql", "redis"])
def test_whoever_has_sent_a_message_is_a_user_of_its_thread(on: str) -> None:
    """So does one that waits, that is postponed, or whose run failed and left nothing."""

    def answer(state: MessagesState) -> dict[str, Any]:
        if state["messages"][-1].text == "boom":
            raise ValueError("boom")
        return {}

    async def main(storage: Storage) -> None:
        database = storage.database()
        graph: Any = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
        walk = ThreadWalk(handle_of(database), "")
        async with Runtime(database, graph, settings=settings(attempts=1), observers=()) as runtime:

            async def say(thread: str, user: str, text: str) -> None:
                await runtime.wait(await runtime.accept(thread, text, config=_of(user)), 30)

            async def wait(thread: str, user: str, delay: float = 0.0) -> Ticket:
                put_off: Any = (
                    {"delay": delay} if delay else {"debounce": 1000, "max_wait": 1000, "coalesce": True}
                )
                return await runtime.submit(thread, {"messages": []}, config=_of(user), **put_off)

            for thread in ("waits", "postponed", "own"):
                await say(thread, "ada", "hello")
            await say("ada failed", "ada", "boom")
            await say("ada failed", "bob", "hello")
            await say("bob failed", "bob", "boom")
            await say("bob failed", "ada", "hello")
            await say("own", "ada", "boom")
            await say("failed only", "ada", "boom")
            await wait("not begun", "ada", 3600)
            await wait("own, not begun", "ada", 3600)
            bobs = [
                await wait("waits", "bob"),
                await wait("postponed", "bob", 3600),
                await wait("not begun", "bob", 3600),
            ]
            shared = {"waits", "postponed", "ada failed", "bob failed"}
            own = {"own", "failed only"}
            found = {
                each.row.thread_id: each.users
                async for each in search(walk, ThreadQuery(user="ada"))
                if each.row is not None
            }
            assert found == {name: {"ada", "bob"} if name in shared else {"ada"} for name in shared | own}
            data = await find_user_data(walk, "ada", ())
            assert data.unlisted == {"not begun": {"bob"}, "own, not begun": set()}
            assert await _remove(walk, "ada", _nothing) == (3, 5)
            for ticket in bobs:
                assert (await runtime.look(ticket)).run is None
            assert await _remove(walk, "ada", _nothing) == (0, 5)

    with stored(on) as storage:
        go(main(storage))


@pytest.mark.parametrize("on", ["sqlite", "postgresql", "redis"])
@pytest.mark.parametrize("delay", [0.0, 3600.0])
def test_a_message_that_another_user_sends_during_the_removal_keeps_the_thread(on: str, delay: float) -> None:
    async def main(storage: Storage) -> None:
        database = storage.database()
        graph: Any = StateGraph(MessagesState).add_node("answer", lambda state: {}).add_edge(START, "answer")
        walk = ThreadWalk(handle_of(database), "")
        async with Runtime(database, graph.compile(), settings=settings(), observers=()) as runtime:
            for thread in ("a", "b"):
                await runtime.wait(await runtime.accept(thread, "hello", config=_of("ada")), 30)
            sent: list[Ticket] = []

            async def send(thread_id: str) -> None:
                if thread_id == "a" and not sent:
                    sent.append(await runtime.submit("a", {"messages": []}, config=_of("bob"), delay=delay))

            assert await _remove(walk, "ada", send) == (1, 1)
            assert await runtime.look(sent[0])
            if not delay:
                assert (await runtime.wait(sent[0], 30)).state == "done"

    with stored(on) as storage:
        go(main(storage))
